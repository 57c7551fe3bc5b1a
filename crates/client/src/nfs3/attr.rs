//! GETATTR, SETATTR and ACCESS: RFC 1813 §3.3.1, §3.3.2 and §3.3.4.

use proto::nfs3::{
    AccessArgs, AccessOk, Attributes, FileHandle, GetattrArgs, GetattrOk, Procedure, SetAttributes,
    SetattrArgs, SetattrOk, Time, WccData,
};
use rpc::client::Route;

use super::{Nfs3, pinned};
use crate::Result;

impl Nfs3 {
    /// GETATTR, RFC 1813 §3.3.1.
    ///
    /// # Errors
    /// The server's status, and those of [`Rpc::call`](rpc::client::Rpc::call), as for all calls.
    pub fn getattr(
        &self,
        object: FileHandle,
    ) -> impl Future<Output = Result<Attributes>> + Send + use<> {
        let reply =
            self.ask::<GetattrOk, ()>(Procedure::Getattr, Route::Any, &GetattrArgs { object });
        async move { Ok(reply.await?.attributes) }
    }

    /// SETATTR, RFC 1813 §3.3.2. With a `guard`, only if it is the ctime of the file.
    ///
    /// # Errors
    /// The server's status: NFS3ERR_NOT_SYNC if the guard does not match.
    pub fn setattr(
        &self,
        object: FileHandle,
        new_attributes: SetAttributes,
        guard: Option<Time>,
    ) -> impl Future<Output = Result<SetattrOk>> + Send + use<> {
        let args = SetattrArgs { object, new_attributes, guard };
        self.ask::<SetattrOk, WccData>(Procedure::Setattr, pinned(object), &args)
    }

    /// ACCESS, RFC 1813 §3.3.4: the granted subset of `wanted`, a sum of `ACCESS_*`.
    ///
    /// # Errors
    /// The server's status.
    pub fn access(
        &self,
        object: FileHandle,
        wanted: u32,
    ) -> impl Future<Output = Result<AccessOk>> + Send + use<> {
        let args = AccessArgs { object, access: wanted };
        self.ask::<_, Option<Attributes>>(Procedure::Access, Route::Any, &args)
    }
}
