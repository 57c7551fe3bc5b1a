//! Where pages come from.

use proto::nfs3::CookieVerifier;

use crate::error::Result;
use crate::nfs3::Listing;

/// Asks the server for a part of a directory.
///
/// Cloned for each call, because a call outlives the reader that wanted it first when others wait
/// for it too. It speaks for one user: a reader brings its own.
pub trait ListingSource: Clone + Send + Sync + 'static {
    /// READDIR or READDIRPLUS, RFC 1813 §3.3.16 and §3.3.17.
    ///
    /// # Errors
    /// Those of the call. NFS3ERR_BAD_COOKIE and NFS3ERR_NOTSUPP are dealt with by the cache.
    fn list(&self, request: ListingRequest) -> impl Future<Output = Result<Listing>> + Send;
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListingRequest {
    /// The entries after this one; 0 for the first.
    pub cookie: u64,
    /// What came with that cookie, or zeros.
    pub verifier: CookieVerifier,
    /// READDIRPLUS rather than READDIR.
    pub plus: bool,
    /// Bytes of the reply at most.
    pub bytes_max: u32,
}
