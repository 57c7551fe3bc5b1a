//! LOOKUP, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK: RFC 1813
//! §3.3.3, §3.3.5 and §3.3.8 to §3.3.15.
//!
//! Names are any bytes, and the server decides which it accepts. A server rejects a name that is
//! too long with GARBAGE_ARGS or NFS3ERR_NAMETOOLONG.

use bytes::Bytes;
use proto::nfs3::{
    Attributes, CreateArgs, CreateHow, CreatedOk, DirOp, FileHandle, LinkArgs, LinkFailure, LinkOk,
    LookupArgs, LookupOk, LookupReply, MkdirArgs, MknodArgs, MknodData, Procedure, ReadlinkArgs,
    ReadlinkReply, RemoveArgs, RemovedOk, RenameArgs, RenameFailure, RenameOk, Reply, RmdirArgs,
    SetAttributes, SymlinkArgs, WccData,
};
use proto::xdr::Encode;
use rpc::client::Route;

use super::{Nfs3, check_handle, decode};
use crate::Result;

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
        let args = LookupArgs { what: DirOp { dir, name } };
        self.ask_with(Procedure::Lookup, Route::Any, &args, Bytes::new(), |results| {
            let reply = decode::<LookupReply>(results)?;
            check_handle(reply.as_ref().ok().map(|ok| ok.object))?;
            Ok(reply.map_err(|failure| failure.status))
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
        self.make(Procedure::Create, &CreateArgs { where_: DirOp { dir, name }, how })
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
        self.make(Procedure::Mkdir, &MkdirArgs { where_: DirOp { dir, name }, attributes })
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
        self.make(Procedure::Symlink, &args)
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
        self.make(Procedure::Mknod, &MknodArgs { where_: DirOp { dir, name }, what })
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
        self.ask::<RemovedOk, WccData>(Procedure::Remove, Route::Any, &args)
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
        self.ask::<RemovedOk, WccData>(Procedure::Rmdir, Route::Any, &args)
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
        let from = DirOp { dir: from_dir, name: from };
        let args = RenameArgs { from, to: DirOp { dir: to_dir, name: to } };
        self.ask::<_, RenameFailure>(Procedure::Rename, Route::Any, &args)
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
        self.ask::<_, LinkFailure>(Procedure::Link, Route::Any, &args)
    }

    /// The four creating procedures have the same results.
    fn make(
        &self,
        procedure: Procedure,
        arguments: &dyn Encode,
    ) -> impl Future<Output = Result<CreatedOk>> + Send + use<> {
        self.ask_with(procedure, Route::Any, arguments, Bytes::new(), |results| {
            let reply = decode::<Reply<CreatedOk, WccData>>(results)?;
            check_handle(reply.as_ref().ok().and_then(|ok| ok.object))?;
            Ok(reply.map_err(|failure| failure.status))
        })
    }
}
