//! MOUNT version 3 (RFC 1813 Appendix I): where a client gets its first file handle.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use proto::mount3::{
    AuthFlavors, DirectoryArgs, ExportList, ExportNode, Group, MountEntry, MountOk, MountReply,
    MountStatus, Procedure,
};
use proto::xdr::{DecodeError, Encode, List, Reader, Writer, decode_all, encode_list};

use crate::dispatch::Request;
use crate::vfs::{Object, Status};

/// Mounts remembered for DUMP. The list is advisory (RFC 1813 §5.2.2): clients that crash never
/// leave it, so the oldest make room.
const MOUNTS_MAX: usize = 1024;
/// The RPC flavours that files can be used with (RFC 5531 §8.2): AUTH_SYS.
const FLAVORS: [u32; 1] = [1];

/// Who has mounted what, as far as clients said.
#[derive(Default)]
pub(crate) struct MountList(Mutex<VecDeque<Mounted>>);

#[derive(Clone, PartialEq, Eq)]
struct Mounted {
    hostname: String,
    directory: Vec<u8>,
}

impl MountList {
    fn add(&self, hostname: String, directory: &[u8]) {
        let mounted = Mounted { hostname, directory: directory.to_vec() };
        self.change(|mounts| {
            mounts.retain(|other| *other != mounted);
            if mounts.len() == MOUNTS_MAX {
                mounts.pop_front();
            }
            mounts.push_back(mounted);
        });
    }

    fn remove(&self, hostname: &str, directory: Option<&[u8]>) {
        self.change(|mounts| {
            mounts.retain(|mounted| {
                mounted.hostname != hostname
                    || directory.is_some_and(|directory| mounted.directory != directory)
            });
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut VecDeque<Mounted>) -> T) -> T {
        change(&mut self.0.lock().expect("no code panics while it holds the mounts"))
    }
}

/// Decodes the arguments, runs the procedure and appends its result to `reply`.
///
/// # Errors
/// The arguments are not those of the procedure.
pub(crate) async fn execute(
    request: &Request<'_>,
    procedure: Procedure,
    args: &[u8],
    reply: &mut Writer,
) -> Result<(), DecodeError> {
    let client = || request.peer.address.ip().to_canonical().to_string();
    let mounts = &request.service.mounts;
    match procedure {
        Procedure::Null => Reader::new(args).finish()?,
        Procedure::Mnt => {
            let DirectoryArgs { directory } = decode_all(args)?;
            mnt(request, directory, reply).await;
        }
        Procedure::Dump => {
            Reader::new(args).finish()?;
            mounts.change(|mounts| {
                encode_list(
                    reply,
                    mounts.iter().map(|mounted| MountEntry {
                        hostname: mounted.hostname.as_bytes(),
                        directory: &mounted.directory,
                    }),
                );
            });
        }
        Procedure::Umnt => {
            let DirectoryArgs { directory } = decode_all(args)?;
            mounts.remove(&client(), Some(directory));
        }
        Procedure::Umntall => {
            Reader::new(args).finish()?;
            mounts.remove(&client(), None);
        }
        Procedure::Export => {
            Reader::new(args).finish()?;
            export(request, reply);
        }
    }
    Ok(())
}

/// MNT, RFC 1813 §5.2.1. The path may lead below an export, but not out of it.
async fn mnt(request: &Request<'_>, path: &[u8], reply: &mut Writer) {
    let client = request.peer.address.ip().to_canonical();
    let result: MountReply<'_> = match find_directory(request, path).await {
        Ok(object) => {
            tracing::info!(%client, path = %path.escape_ascii(), "mounted");
            request.service.mounts.add(client.to_string(), path);
            let file_handle = request.service.seal(object.root.id, object.handle);
            Ok(MountOk { file_handle, auth_flavors: AuthFlavors::from(&FLAVORS[..]) })
        }
        Err(status) => {
            tracing::info!(%client, path = %path.escape_ascii(), ?status, "mount refused");
            Err(mount_status(status))
        }
    };
    result.encode(reply);
}

async fn find_directory(request: &Request<'_>, path: &[u8]) -> Result<Object, Status> {
    let service = request.service;
    let exports = service.exports.load_full();
    let (export, below) = exports.table.longest_prefix(path).ok_or(Status::NoEntry)?;
    let access = service.admit(export, &request.peer, request.flavor)?;
    let root = Arc::clone(exports.root(export));
    let mut object = Object {
        handle: root.handle,
        root,
        sync: export.sync,
        policy: export.policy,
        // No event is about MOUNT.
        fh_hash: 0,
    };
    // As the caller, squashed: a directory that they may not search is not a way in either.
    let caller = service.caller(request.xid, &access, request.credential);
    for name in below.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        if name == b".." {
            return Err(Status::Access);
        }
        let found = service.vfs.lookup(&caller, &object, name).await.result?;
        if !found.attributes.is_directory() {
            return Err(Status::NotDirectory);
        }
        object.handle = found.handle;
    }
    Ok(object)
}

/// `mountstat3` of a refusal (RFC 1813 §5.1.5).
fn mount_status(status: Status) -> MountStatus {
    match status {
        Status::NotOwner => MountStatus::Perm,
        Status::NoEntry | Status::Stale | Status::BadHandle => MountStatus::Noent,
        Status::Access | Status::CrossDevice | Status::ReadOnly => MountStatus::Acces,
        Status::NotDirectory => MountStatus::Notdir,
        Status::Invalid | Status::BadCookie | Status::BadType | Status::TooSmall => {
            MountStatus::Inval
        }
        Status::NameTooLong => MountStatus::Nametoolong,
        Status::NotSupported => MountStatus::Notsupp,
        Status::Io | Status::NoDevice | Status::NoSpace | Status::Quota => MountStatus::Io,
        Status::Exists
        | Status::IsDirectory
        | Status::TooLarge
        | Status::TooManyLinks
        | Status::NotEmpty
        | Status::NotSync
        | Status::ServerFault
        | Status::Delay => MountStatus::Serverfault,
    }
}

/// EXPORT, RFC 1813 §5.2.5: what `showmount -e` shows.
fn export(request: &Request<'_>, reply: &mut Writer) {
    let exports = request.service.exports.load();
    let hosts: Vec<Vec<String>> =
        exports.table.iter().map(|export| export.host_specs().collect()).collect();
    let groups: Vec<Vec<Group<'_>>> = hosts
        .iter()
        .map(|hosts| hosts.iter().map(|host| Group { name: host.as_bytes() }).collect())
        .collect();
    let nodes: Vec<ExportNode<'_>> = exports
        .table
        .iter()
        .zip(&groups)
        .map(|(export, groups)| ExportNode {
            directory: export.name.as_bytes(),
            groups: List::from(&groups[..]),
        })
        .collect();
    ExportList::from(&nodes[..]).encode(reply);
}
