//! FSSTAT, FSINFO and PATHCONF: RFC 1813 §3.3.18 to §3.3.20.

use proto::nfs3::{
    Attributes, FileHandle, FsinfoArgs, FsinfoOk, FsstatArgs, FsstatOk, PathconfArgs, PathconfOk,
    Procedure,
};
use rpc::client::Route;

use super::Nfs3;
use crate::Result;

impl Nfs3 {
    /// FSSTAT, RFC 1813 §3.3.18.
    ///
    /// # Errors
    /// The server's status.
    pub fn fsstat(
        &self,
        fsroot: FileHandle,
    ) -> impl Future<Output = Result<FsstatOk>> + Send + use<> {
        self.ask::<_, Option<Attributes>>(Procedure::Fsstat, Route::Any, &FsstatArgs { fsroot })
    }

    /// FSINFO, RFC 1813 §3.3.19. The caller bounds the server's values.
    ///
    /// # Errors
    /// The server's status.
    pub fn fsinfo(
        &self,
        fsroot: FileHandle,
    ) -> impl Future<Output = Result<FsinfoOk>> + Send + use<> {
        self.ask::<_, Option<Attributes>>(Procedure::Fsinfo, Route::Any, &FsinfoArgs { fsroot })
    }

    /// PATHCONF, RFC 1813 §3.3.20.
    ///
    /// # Errors
    /// The server's status.
    pub fn pathconf(
        &self,
        object: FileHandle,
    ) -> impl Future<Output = Result<PathconfOk>> + Send + use<> {
        self.ask::<_, Option<Attributes>>(Procedure::Pathconf, Route::Any, &PathconfArgs { object })
    }
}
