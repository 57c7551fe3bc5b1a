//! Where pages come from.

use bytes::Bytes;
use proto::nfs3::{Attributes, CookieVerifier, FileHandle};

use crate::error::Result;

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

/// What the server says: a part of a directory.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The directory as it is after the call.
    pub dir_attributes: Option<Attributes>,
    /// To be sent back with any of the cookies.
    pub verifier: CookieVerifier,
    /// The entries, in the server's order.
    pub names: Vec<Name>,
    /// Whether the last entry of the directory is among them.
    pub eof: bool,
}

/// An entry as it was received.
#[derive(Clone, Debug)]
pub struct Name {
    /// The file's number.
    pub fileid: u64,
    /// Its name.
    pub name: Bytes,
    /// Where the entry after this one is found.
    pub cookie: u64,
    /// The file as it is: of READDIRPLUS, and not always there.
    pub attributes: Option<Attributes>,
    /// Its handle: of READDIRPLUS, and not always there.
    pub handle: Option<FileHandle>,
}
