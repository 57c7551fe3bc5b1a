//! LOOKUP, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK: RFC 1813
//! §3.3.3, §3.3.5 and §3.3.8 to §3.3.15.
//!
//! Names are any bytes, and the server decides which it accepts. The error of a name that is too
//! long is NFS3ERR_NAMETOOLONG, also where the server returns GARBAGE_ARGS.

use bytes::Bytes;
use proto::nfs3::{
    Attributes, CreateArgs, CreateHow, CreatedOk, DirOp, Failure, FileHandle, LinkArgs,
    LinkFailure, LinkOk, LookupArgs, LookupOk, LookupReply, MkdirArgs, MknodArgs, MknodData,
    Procedure, ReadlinkArgs, ReadlinkReply, RemoveArgs, RemovedOk, RenameArgs, RenameFailure,
    RenameOk, Reply, RmdirArgs, SetAttributes, Status, SymlinkArgs, WccData,
};
use proto::oncrpc::AcceptStat;
use proto::xdr::Encode;
use rpc::client::Route;

use super::{Nfs3, ReadResults, check_handle, decode, read_reply};
use crate::{Error, Result};

/// Result of READLINK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The attributes of the link.
    pub attributes: Option<Attributes>,
    /// The target, as a slice of the received record.
    pub target: Bytes,
}

impl Nfs3 {
    /// LOOKUP, RFC 1813 §3.3.3.
    ///
    /// # Errors
    /// The server's status: NFS3ERR_NOENT if there is no such name.
    pub fn lookup(
        &self,
        dir: FileHandle,
        name: &[u8],
    ) -> impl Future<Output = Result<LookupOk>> + Send + use<> {
        let reply = self.look_up(dir, name);
        async move {
            reply.await?.map_err(|Failure { status, .. }| {
                let procedure = Procedure::Lookup;
                Error::Nfs { procedure, status }
            })
        }
    }

    /// As [`lookup`](Self::lookup), with the body of NFS3ERR_NOENT: the attributes of the
    /// directory.
    ///
    /// # Errors
    /// The server's status, if it is another.
    pub(crate) fn look_up(
        &self,
        dir: FileHandle,
        name: &[u8],
    ) -> impl Future<Output = Result<LookupReply>> + Send + use<> {
        let args = LookupArgs { what: DirOp { dir, name } };
        self.ask_by_name(Procedure::Lookup, &[name], &args, |results| {
            let reply = decode::<LookupReply>(results)?;
            check_handle(reply.as_ref().ok().map(|ok| ok.object))?;
            match reply {
                Err(Failure { status, .. }) if status != Status::Noent => Ok(Err(status)),
                found_or_absent => Ok(Ok(found_or_absent)),
            }
        })
    }

    /// READLINK, RFC 1813 §3.3.5.
    ///
    /// # Errors
    /// The server's status: NFS3ERR_INVAL if it is not a symbolic link.
    pub fn readlink(
        &self,
        symlink: FileHandle,
    ) -> impl Future<Output = Result<Target>> + Send + use<> {
        let args = ReadlinkArgs { symlink };
        self.ask_with(Procedure::Readlink, Route::Any, &args, Bytes::new(), |results| {
            Ok(decode::<ReadlinkReply<'_>>(results)?
                .map(|ok| {
                    let target = results.slice_ref(ok.target);
                    Target { attributes: ok.attributes, target }
                })
                .map_err(|failure| failure.status))
        })
    }

    /// CREATE, RFC 1813 §3.3.8.
    ///
    /// # Errors
    /// The server's status: NFS3ERR_EXIST unless `how` is unchecked.
    pub fn create(
        &self,
        dir: FileHandle,
        name: &[u8],
        how: CreateHow,
    ) -> impl Future<Output = Result<CreatedOk>> + Send + use<> {
        self.make(Procedure::Create, name, &CreateArgs { where_: DirOp { dir, name }, how })
    }

    /// MKDIR, RFC 1813 §3.3.9.
    ///
    /// # Errors
    /// The server's status.
    pub fn mkdir(
        &self,
        dir: FileHandle,
        name: &[u8],
        attributes: SetAttributes,
    ) -> impl Future<Output = Result<CreatedOk>> + Send + use<> {
        self.make(Procedure::Mkdir, name, &MkdirArgs { where_: DirOp { dir, name }, attributes })
    }

    /// SYMLINK, RFC 1813 §3.3.10.
    ///
    /// # Errors
    /// The server's status.
    pub fn symlink(
        &self,
        dir: FileHandle,
        name: &[u8],
        target: &[u8],
        attributes: SetAttributes,
    ) -> impl Future<Output = Result<CreatedOk>> + Send + use<> {
        let args = SymlinkArgs { where_: DirOp { dir, name }, attributes, target };
        self.make(Procedure::Symlink, name, &args)
    }

    /// MKNOD, RFC 1813 §3.3.11.
    ///
    /// # Errors
    /// The server's status.
    pub fn mknod(
        &self,
        dir: FileHandle,
        name: &[u8],
        what: MknodData,
    ) -> impl Future<Output = Result<CreatedOk>> + Send + use<> {
        self.make(Procedure::Mknod, name, &MknodArgs { where_: DirOp { dir, name }, what })
    }

    /// REMOVE, RFC 1813 §3.3.12. Returns the `wcc_data` of the directory.
    ///
    /// # Errors
    /// The server's status.
    pub fn remove(
        &self,
        dir: FileHandle,
        name: &[u8],
    ) -> impl Future<Output = Result<RemovedOk>> + Send + use<> {
        let args = RemoveArgs { object: DirOp { dir, name } };
        self.ask_by_name(Procedure::Remove, &[name], &args, read_reply::<RemovedOk, WccData>)
    }

    /// RMDIR, RFC 1813 §3.3.13. Returns the `wcc_data` of the directory.
    ///
    /// # Errors
    /// The server's status: NFS3ERR_NOTEMPTY if it has entries.
    pub fn rmdir(
        &self,
        dir: FileHandle,
        name: &[u8],
    ) -> impl Future<Output = Result<RemovedOk>> + Send + use<> {
        let args = RmdirArgs { object: DirOp { dir, name } };
        self.ask_by_name(Procedure::Rmdir, &[name], &args, read_reply::<RemovedOk, WccData>)
    }

    /// RENAME, RFC 1813 §3.3.14.
    ///
    /// # Errors
    /// The server's status.
    pub fn rename(
        &self,
        from_dir: FileHandle,
        from: &[u8],
        to_dir: FileHandle,
        to: &[u8],
    ) -> impl Future<Output = Result<RenameOk>> + Send + use<> {
        let names = [from, to];
        let from = DirOp { dir: from_dir, name: from };
        let args = RenameArgs { from, to: DirOp { dir: to_dir, name: to } };
        let read = read_reply::<RenameOk, RenameFailure>;
        self.ask_by_name(Procedure::Rename, &names, &args, read)
    }

    /// LINK, RFC 1813 §3.3.15.
    ///
    /// # Errors
    /// The server's status.
    pub fn link(
        &self,
        file: FileHandle,
        dir: FileHandle,
        name: &[u8],
    ) -> impl Future<Output = Result<LinkOk>> + Send + use<> {
        let args = LinkArgs { file, link: DirOp { dir, name } };
        self.ask_by_name(Procedure::Link, &[name], &args, read_reply::<LinkOk, LinkFailure>)
    }

    /// The four creating procedures have the same results.
    fn make(
        &self,
        procedure: Procedure,
        name: &[u8],
        arguments: &dyn Encode,
    ) -> impl Future<Output = Result<CreatedOk>> + Send + use<> {
        self.ask_by_name(procedure, &[name], arguments, |results| {
            let reply = decode::<Reply<CreatedOk, WccData>>(results)?;
            check_handle(reply.as_ref().ok().and_then(|ok| ok.object))?;
            Ok(reply.map_err(|failure| failure.status))
        })
    }

    /// A call with `names` in its arguments. Linux rejects a name of more than [`NAME_BYTES_MAX`]
    /// where it decodes them.
    fn ask_by_name<O: Send, R: ReadResults<O>>(
        &self,
        procedure: Procedure,
        names: &[&[u8]],
        arguments: &dyn Encode,
        read: R,
    ) -> impl Future<Output = Result<O>> + Send + use<O, R> {
        let is_too_long = names.iter().any(|name| name.len() > NAME_BYTES_MAX);
        let call = self.ask_with(procedure, Route::Any, arguments, Bytes::new(), read);
        async move {
            call.await.map_err(|error| match error {
                Error::Accept(AcceptStat::GarbageArgs) if is_too_long => {
                    Error::Nfs { procedure, status: Status::Nametoolong }
                }
                error => error,
            })
        }
    }
}

/// The bytes of a name at most that every server takes: `NAME_MAX`.
const NAME_BYTES_MAX: usize = 255;
