//! The calls that fetch pages.

use proto::nfs3::CookieVerifier;

use crate::cache::change::Change;
use crate::error::Result;
use crate::nfs3::Listing;

/// The calls of one user that list one directory.
///
/// Cloned for each call, because a call can outlive the reader that sent it while other readers
/// wait for it.
pub(crate) trait ListingSource: Clone + Send + Sync + 'static {
    /// READDIR or READDIRPLUS, RFC 1813 §3.3.16 and §3.3.17. Passes the change stamp in the reply
    /// to `note`, before the attributes of the directory in the same reply count as valid: by these
    /// the names in older pages would be believed.
    ///
    /// # Errors
    /// Those of the call. The cache handles NFS3ERR_BAD_COOKIE and NFS3ERR_NOTSUPP.
    fn list(
        &self,
        request: ListingRequest,
        note: impl FnOnce(Change) + Send,
    ) -> impl Future<Output = Result<Listing>> + Send;
}

/// The arguments of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListingRequest {
    /// The cookie behind which the reply begins; 0 for the first entry.
    pub(crate) cookie: u64,
    /// The verifier that came with the cookie, or zeros.
    pub(crate) verifier: CookieVerifier,
    /// READDIRPLUS instead of READDIR.
    pub(crate) plus: bool,
    /// Bytes of the reply at most.
    pub(crate) bytes_max: u32,
}
