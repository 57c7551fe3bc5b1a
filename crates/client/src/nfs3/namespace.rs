//! LOOKUP, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK: RFC 1813
//! §3.3.3, §3.3.5 and §3.3.8 to §3.3.15.
//!
//! Names are any bytes; what a file system accepts is the server's question. One that is longer
//! than the protocol's description here allows comes back as GARBAGE_ARGS or NFS3ERR_NAMETOOLONG.

use bytes::Bytes;
use proto::nfs3::{
    Attributes, CreateArgs, CreateHow, CreatedOk, DirOp, FileHandle, LinkArgs, LinkFailure, LinkOk,
    LookupArgs, LookupOk, MkdirArgs, MknodArgs, MknodData, Procedure, ReadlinkArgs, ReadlinkReply,
    RemoveArgs, RemovedOk, RenameArgs, RenameFailure, RenameOk, RmdirArgs, SetAttributes,
    SymlinkArgs, WccData,
};
use proto::xdr::Encode;

use super::{Nfs3, decode};
use crate::Result;
use crate::rpc::Route;

/// Result of READLINK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The link as it is.
    pub attributes: Option<Attributes>,
    /// Where it points, as a slice of the record that brought it.
    pub target: Bytes,
}

impl Nfs3 {
    /// LOOKUP, RFC 1813 §3.3.3.
    ///
    /// # Errors
    /// The server's status: NFS3ERR_NOENT when there is no such name.
    pub fn lookup(
        &self,
        dir: FileHandle,
        name: &[u8],
    ) -> impl Future<Output = Result<LookupOk>> + Send + use<> {
        let args = LookupArgs { what: DirOp { dir, name } };
        self.ask::<_, Option<Attributes>>(Procedure::Lookup, Route::Any, &args)
    }

    /// READLINK, RFC 1813 §3.3.5.
    ///
    /// # Errors
    /// The server's status: NFS3ERR_INVAL when it is no symbolic link.
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

    /// REMOVE, RFC 1813 §3.3.12. Returns the directory on both sides of the change.
    ///
    /// # Errors
    /// The server's status.
    pub fn remove(
        &self,
        dir: FileHandle,
        name: &[u8],
    ) -> impl Future<Output = Result<WccData>> + Send + use<> {
        let args = RemoveArgs { object: DirOp { dir, name } };
        let reply = self.ask::<RemovedOk, WccData>(Procedure::Remove, Route::Any, &args);
        async move { Ok(reply.await?.dir_wcc) }
    }

    /// RMDIR, RFC 1813 §3.3.13. Returns the directory on both sides of the change.
    ///
    /// # Errors
    /// The server's status: NFS3ERR_NOTEMPTY when there is something in it.
    pub fn rmdir(
        &self,
        dir: FileHandle,
        name: &[u8],
    ) -> impl Future<Output = Result<WccData>> + Send + use<> {
        let args = RmdirArgs { object: DirOp { dir, name } };
        let reply = self.ask::<RemovedOk, WccData>(Procedure::Rmdir, Route::Any, &args);
        async move { Ok(reply.await?.dir_wcc) }
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

    /// The four that create something have one layout of results.
    fn make(
        &self,
        procedure: Procedure,
        arguments: &dyn Encode,
    ) -> impl Future<Output = Result<CreatedOk>> + Send + use<> {
        self.ask::<_, WccData>(procedure, Route::Any, arguments)
    }
}
