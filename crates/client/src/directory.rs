//! An open directory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Result;
use crate::cache::change::Change;
use crate::cache::directory::{ListingRequest, ListingSource, PageSlice, Reader};
use crate::inode::Inode;
use crate::nfs3::{Listing, Nfs3};

/// An open directory, as from `opendir`.
///
/// The caller holds the position, the cookie of the last entry it has read. Several tasks can read
/// from one directory at different positions.
pub struct Directory {
    nfs: Nfs3,
    inode: Arc<Inode>,
    reader: Reader<ListingCalls>,
}

impl Directory {
    /// Opens `inode` as the user of `nfs`.
    ///
    /// # Errors
    /// `NOTDIR` for other types than a directory.
    pub(crate) fn new(nfs: &Nfs3, inode: Arc<Inode>) -> Result<Self> {
        let calls = ListingCalls { nfs: nfs.clone(), inode: Arc::clone(&inode) };
        let reader = inode.listing()?.open(calls, Some(inode.change_stamp()));
        Ok(Self { nfs: nfs.clone(), inode, reader })
    }

    /// The inode.
    #[must_use]
    pub fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// The entries behind `cookie`: 0 or the cookie of any entry. None only at the end. Includes
    /// `.` and `..` if the server lists them.
    ///
    /// # Errors
    /// Those of READDIR and READDIRPLUS, RFC 1813 §3.3.16 and §3.3.17.
    pub async fn entries_after(&self, cookie: u64) -> Result<PageSlice> {
        self.reader.entries_after(cookie).await
    }

    /// How long the handle of `name` in `entries` of this directory may be used; zero if it may
    /// not. A listing shows the names as they were; one of them may refer to another object since.
    #[must_use]
    pub fn handle_ttl(&self, entries: &PageSlice, name: &[u8]) -> Duration {
        self.reader.handle_ttl(entries, name)
    }

    /// `rewinddir`: the listing shows the directory as it is from now on.
    ///
    /// # Errors
    /// Those of GETATTR, if the attributes have expired.
    pub async fn rewind(&self) -> Result<()> {
        if self.inode.fresh_attributes().is_none() {
            self.inode.revalidate(&self.nfs).await?;
        }
        self.reader.rewind(Some(self.inode.change_stamp()));
        Ok(())
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").field("inode", &self.inode).finish_non_exhaustive()
    }
}

/// READDIR and READDIRPLUS of one directory as one user. Updates the inode from the replies.
#[derive(Clone)]
struct ListingCalls {
    nfs: Nfs3,
    inode: Arc<Inode>,
}

impl ListingSource for ListingCalls {
    async fn list(
        &self,
        request: ListingRequest,
        note: impl FnOnce(Change) + Send,
    ) -> Result<Listing> {
        let ListingRequest { cookie, verifier, plus, bytes_max } = request;
        let (dir, sent) = (self.inode.handle(), self.inode.sent());
        let listing = if plus {
            // `dircount` is the same as `maxcount`: all of a reply may be names.
            self.nfs.readdirplus(dir, cookie, verifier, bytes_max, bytes_max).await
        } else {
            self.nfs.readdir(dir, cookie, verifier, bytes_max).await
        };
        let listing = self.inode.note_outcome(listing)?;
        self.inode.note_listing(listing.dir_attributes.as_ref(), sent, note);
        Ok(listing)
    }
}
