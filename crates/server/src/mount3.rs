//! MOUNT version 3 (RFC 1813 Appendix I): where a client gets its first file handle.

use io::Payload;
use proto::mount3::{
    DirectoryArgs, ExportList, ExportNode, Group, MountOk, MountReply, MountStatus, Procedure,
};
use proto::xdr::{Array, DecodeError, Encode, List, Reader, Writer, decode_all};

use crate::call::{Call, Credential};
use crate::export::{Denied, Object};
use crate::fs::{Caller, Shown, Status};
use crate::request::{Peer, Request};
use crate::service::Service;

/// The RPC flavours that files can be used with (RFC 5531 §8.2): AUTH_SYS.
const FLAVORS: [u32; 1] = [1];

/// Decodes the arguments, runs the procedure and appends its result to `reply`. A long list is
/// returned in memory of the budget, to be sent behind it.
///
/// # Errors
/// The arguments are not those of the procedure.
pub(crate) async fn execute(
    request: &Request<'_>,
    procedure: Procedure,
    args: &[u8],
    reply: &mut Writer,
) -> Result<Option<Payload>, DecodeError> {
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
            return Ok(in_budget(request, reply, |list| mounts.encode(list)).await);
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
            return Ok(in_budget(request, reply, |list| export(request, list)).await);
        }
    }
    Ok(None)
}

/// A list in memory of the budget, which is encoded again when there is that memory: what waits for
/// memory holds none. One that the head of a reply has room for is appended to `reply`: the least
/// buffer is many times as long, and no export has to admit the peer that leaves it unread. So is
/// one for which the budget is too small.
async fn in_budget(
    request: &Request<'_>,
    reply: &mut Writer,
    encode: impl Fn(&mut Writer),
) -> Option<Payload> {
    let encoded = || {
        let mut list = Writer::new();
        encode(&mut list);
        list
    };
    let room = request.service.memory.reply_head_bytes_max.saturating_sub(reply.len());
    let mut list = encoded();
    while list.len() > room {
        let wanted = list.len();
        drop(list);
        let taken = request.service.take_buffer(wanted).await;
        list = encoded();
        let Ok(buffer) = taken else { break };
        if list.len() <= buffer.capacity() {
            return Some(Payload::copied(buffer, list.as_slice()));
        }
    }
    reply.array(list.as_slice());
    None
}

/// MNT, RFC 1813 §5.2.1. The path may lead below an export, but not out of it.
async fn mnt(request: &Request<'_>, path: &[u8], reply: &mut Writer) {
    let client = request.peer.address.ip().to_canonical();
    let result: MountReply<'_> = match find_directory(request, path).await {
        Ok(object) => {
            tracing::info!(%client, path = %Shown(path), "mounted");
            request.service.mounts.add(client.to_string(), path);
            let file_handle = request.service.seal(object.root(), *object.handle());
            Ok(MountOk { file_handle, auth_flavors: Array::from(&FLAVORS[..]) })
        }
        Err(refusal) => {
            let status = mount_status(refusal.status());
            let name = status.name();
            tracing::info!(%client, path = %Shown(path), status = name, %refusal, "mount refused");
            Err(status)
        }
    };
    result.encode(reply);
}

/// Logs that a MNT was refused for the flavour of its credential, before anything was decoded.
pub(crate) fn log_flavor(peer: &Peer, procedure: Procedure, call: &Call) {
    let (Procedure::Mnt, Ok(DirectoryArgs { directory }), Credential::Other { flavor }) =
        (procedure, decode_all(call.arguments()), call.credential)
    else {
        return;
    };
    let client = peer.address.ip().to_canonical();
    let refusal = Refusal::Flavor { flavor };
    let (path, status) = (Shown(directory), "AUTH_REJECTEDCRED");
    tracing::info!(%client, %path, status, %refusal, "mount refused");
}

/// Why a path is not mounted.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("RPC flavour {flavor} is neither AUTH_NONE (0) nor AUTH_SYS (1)")]
    Flavor { flavor: u32 },
    #[error("no export has this name")]
    NoExport,
    #[error("export {export}: {denied}")]
    Denied { export: String, denied: Denied },
    #[error("export {export}: a path with `..` is not resolved")]
    Parent { export: String },
    #[error("export {export}: LOOKUP of {name}: {status}")]
    Below { export: String, name: String, status: Status },
}

impl Refusal {
    fn status(&self) -> Status {
        match self {
            Self::NoExport => Status::NoEntry,
            Self::Flavor { .. } | Self::Denied { .. } | Self::Parent { .. } => Status::Access,
            Self::Below { status, .. } => *status,
        }
    }
}

async fn find_directory(request: &Request<'_>, path: &[u8]) -> Result<Object, Refusal> {
    let service = request.service;
    // The search may hang, and must not keep the roots of other exports.
    let (caller, root, export, below) = {
        let exports = service.exports.load();
        let (export, below) = exports.table.longest_prefix(path).ok_or(Refusal::NoExport)?;
        let refuse = |denied| Refusal::Denied { export: export.name.clone(), denied };
        let admitted =
            service.admit(&exports, export, &request.peer, request.flavor).map_err(refuse)?;
        // As the caller, squashed: a directory that they may not search is not a way in either.
        let caller = service.caller(admitted.access(), request.credential).map_err(refuse)?;
        (caller, admitted.root(), export.name.clone(), below)
    };
    let search = search(service, &caller, root.clone(), (&export, below));
    // The call began on threads of no device, which all exports share.
    match service.elsewhere(&root) {
        Some(share) => share.run(search).await,
        None => search.await,
    }
}

/// The directory at a path below the root of an export.
async fn search(
    service: &Service,
    caller: &Caller,
    mut object: Object,
    (export, below): (&str, &[u8]),
) -> Result<Object, Refusal> {
    for name in below.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        if name == b".." {
            return Err(Refusal::Parent { export: export.to_owned() });
        }
        let refuse = |status| {
            let name = Shown(name).to_string();
            Refusal::Below { export: export.to_owned(), name, status }
        };
        let found = service.vfs.lookup(caller, &object, name).await.result.map_err(refuse)?;
        if !found.attributes.is_directory() {
            return Err(refuse(Status::NotDirectory));
        }
        object = object.found(found.handle);
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
        Status::Io(_) | Status::NoDevice | Status::NoSpace | Status::Quota => MountStatus::Io,
        Status::Exists
        | Status::IsDirectory
        | Status::TooLarge
        | Status::NoAttribute
        | Status::AttributeTooLarge
        | Status::TooManyLinks
        | Status::NotEmpty
        | Status::NotSync
        | Status::ServerFault
        | Status::Identity(_)
        | Status::Busy
        | Status::Delay
        | Status::Delegated
        | Status::NoDescriptor => MountStatus::Serverfault,
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
