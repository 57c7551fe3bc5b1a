//! An open directory.

use std::fmt;
use std::sync::Arc;

use crate::Result;
use crate::directory_cache::{ListingRequest, ListingSource, PageSlice, Reader};
use crate::file_system::FileSystem;
use crate::inode::Inode;
use crate::nfs3::{Listing, Nfs3};

/// A directory that is being listed: what one `opendir` gives.
///
/// Its position is the cookie of the last entry that was taken, which the caller keeps. Several may
/// read from one, each at its own place.
pub struct Directory {
    file_system: FileSystem,
    inode: Arc<Inode>,
    reader: Reader<ListingCalls>,
}

impl Directory {
    pub(crate) fn new(file_system: FileSystem, inode: Arc<Inode>) -> Result<Self> {
        let calls = ListingCalls { nfs: file_system.nfs().clone(), inode: Arc::clone(&inode) };
        let reader = inode.listing()?.open(calls, Some(inode.state_of_listing()));
        Ok(Self { file_system, inode, reader })
    }

    /// The directory.
    #[must_use]
    pub fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// Entries behind `cookie`: 0 for the first, or that of any entry. There are none only at the
    /// end. `.` and `..` are among them where the server lists them.
    ///
    /// # Errors
    /// What the server says to READDIR or READDIRPLUS, RFC 1813 §3.3.16 and §3.3.17.
    pub async fn entries_after(&self, cookie: u64) -> Result<PageSlice> {
        self.reader.entries_after(cookie).await
    }

    /// Begins anew: what the directory holds from now on will be seen.
    ///
    /// # Errors
    /// What the server says to GETATTR when the attributes have expired.
    pub async fn rewind(&self) -> Result<()> {
        if self.inode.fresh_attributes().is_none() {
            self.file_system.revalidate(&self.inode).await?;
        }
        self.reader.rewind(Some(self.inode.state_of_listing()));
        Ok(())
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").field("inode", &self.inode).finish_non_exhaustive()
    }
}

/// READDIR and READDIRPLUS of one directory as one user.
#[derive(Clone)]
struct ListingCalls {
    nfs: Nfs3,
    inode: Arc<Inode>,
}

impl ListingSource for ListingCalls {
    async fn list(&self, request: ListingRequest) -> Result<Listing> {
        let ListingRequest { cookie, verifier, plus, bytes_max } = request;
        let (dir, sent) = (self.inode.handle(), self.inode.sent());
        let listing = if plus {
            // The bound on names alone is the same: all of a reply may be names.
            self.nfs.readdirplus(dir, cookie, verifier, bytes_max, bytes_max).await?
        } else {
            self.nfs.readdir(dir, cookie, verifier, bytes_max).await?
        };
        self.inode.note_listing(listing.dir_attributes.as_ref(), sent);
        Ok(listing)
    }
}
