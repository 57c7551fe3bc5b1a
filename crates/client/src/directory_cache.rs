//! Listings of directories that never start over.
//!
//! A directory is kept as pages, one for each reply of READDIR or READDIRPLUS, found by the cookie
//! they begin behind. A reader asks for what is behind the last cookie it saw and gets the rest of
//! a page; where there is none in the cache that it may use, the server is asked, from that very
//! cookie. So a listing costs the same number of calls whether or not the directory changes under
//! it, or its attributes are no longer believed: what is outdated is fetched again where the reader
//! is, and nothing sends it back to the beginning. Cookies are positions in the server's order,
//! which entries keep (RFC 1813 §3.3.16): an entry that stays is listed exactly once, even where
//! pages of different times follow each other.
//!
//! A reader may use a page
//! - that was asked for after the reader was opened or rewound. What changes in a directory after
//!   `opendir` may be seen or not, says POSIX, so readers that were there first share what the
//!   first of them fetches, however busy the directory is;
//! - or that is of the state in which the directory was when the reader was opened. The server
//!   tells that state ([`Change`]) with each reply, but reads it after the entries; so a page is
//!   known to be of a state only if the directory was in it before the call and after it.
//!
//! As soon as a reader enters a page, the one behind it is asked for, if it is not there. A reader
//! that stops leaves one page behind that nobody wanted.
//!
//! What the client changes itself does not disturb those who are reading. Who opens the directory
//! then lists it anew: where the new name would be in the server's order only the server knows,
//! and the change stamp of a server with a coarse clock may still be the old one.
//!
//! Where a server's clock is coarse, somebody else's change within the tick of a listing is not
//! seen until the next change, as with every NFSv3 client.

mod budget;
mod learned;
mod page;
mod pages;
mod reader;
mod shared;
mod source;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use proto::nfs3::{Attributes, FileHandle};

pub use budget::ListingBudget;
pub use page::{Entry, Page, PageSlice};
pub use reader::Reader;
use shared::Shared;
pub use source::{ListingRequest, ListingSource};

use crate::change::Change;
use crate::options::UseReaddirplus;
use crate::trace::Tracer;

/// What the listings of a mount have in common.
#[derive(Debug)]
pub struct ListingConfig {
    /// Bounds their memory.
    pub budget: Arc<ListingBudget>,
    /// When attributes are asked for.
    pub readdirplus: UseReaddirplus,
    /// Bytes of a reply at most, which is what a page is. The server may make it less.
    pub reply_bytes: u32,
    /// How old a page may be for its handles to be believed although somebody else has changed the
    /// directory since. A program that looks at each entry that it lists would have to ask for each
    /// otherwise, in a directory that is never quiet.
    pub names_believed: Duration,
    /// Where events go.
    pub tracer: Arc<Tracer>,
}

/// What is known of one directory's entries. Costs little until the directory is listed.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// # use spillway_client::change::Change;
/// # use spillway_client::directory_cache::*;
/// # use spillway_client::{Result, UseReaddirplus};
/// # use proto::nfs3::FileHandle;
/// # async fn list<S: ListingSource>(source: S, handle: FileHandle, current: Change) -> Result<()> {
/// let config = Arc::new(ListingConfig {
///     budget: Arc::new(ListingBudget::new(64 << 20)),
///     readdirplus: UseReaddirplus::Learned,
///     reply_bytes: 1 << 20,
///     names_believed: Duration::from_secs(1),
///     tracer: Arc::default(),
/// });
/// let directory = DirectoryCache::new(&config, 2, handle);
///
/// let reader = directory.open(source, Some(current));
/// let mut cookie = 0;
/// loop {
///     let page = reader.entries_after(cookie).await?;
///     for entry in page.iter() {
///         println!("{}", entry.name.escape_ascii());
///     }
///     if page.eof() {
///         break Ok(());
///     }
///     cookie = page.last_cookie();
/// }
/// # }
/// ```
pub struct DirectoryCache {
    shared: Arc<Shared>,
}

/// What a listing says of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its handle.
    pub handle: FileHandle,
    /// The file as it was `age` ago, if the server knew.
    pub attributes: Option<Attributes>,
    /// Time since the reply came.
    pub age: Duration,
}

impl DirectoryCache {
    /// Nothing yet, of the directory with this number and handle, by which events name it.
    #[must_use]
    pub fn new(config: &Arc<ListingConfig>, fileid: u64, handle: FileHandle) -> Self {
        Self { shared: Shared::new(config, fileid, handle) }
    }

    /// Begins to read. Whether its user may read the directory at all has been asked before: pages
    /// that others fetched are shown to it.
    ///
    /// `current` is the state of the directory that its attributes show, new enough for the
    /// caller's notion of consistency. Without it the listing is fetched anew.
    ///
    /// Readers must be used within a Tokio runtime.
    #[must_use]
    pub fn open<S: ListingSource>(&self, source: S, current: Option<Change>) -> Reader<S> {
        Reader::new(Arc::clone(&self.shared), source, current)
    }

    /// A name as READDIRPLUS showed it, unless it may have changed hands since: no change of the
    /// directory was heard of, or it was shown less than [`ListingConfig::names_believed`] ago, and
    /// this client has not changed it. The caller knows how long to go without asking, and has the
    /// directory's attributes asked for so often.
    ///
    /// Counts as [`note_lookup`](Self::note_lookup), found or not.
    #[must_use]
    pub fn lookup(&self, name: &[u8]) -> Option<Found> {
        self.shared.lookup(name)
    }

    /// The handle or the attributes of an entry are wanted. When that happens to several while
    /// entries are handed out, or soon after, the directory is one to be listed with attributes.
    pub fn note_lookup(&self) {
        self.shared.note_lookup();
    }

    /// This client has created, removed, replaced or renamed `name`. `after` is the state of the
    /// directory then, if nobody else changed it meanwhile; for who did is told by
    /// [`invalidate`](Self::invalidate).
    pub fn note_own_change(&self, name: &[u8], after: Option<Change>) {
        self.shared.note_own_change(name, after);
    }

    /// The listing is not to be believed by those who open the directory from now on. Those who are
    /// reading go on.
    pub fn invalidate(&self, why: &str) {
        self.shared.invalidate(why);
    }
}

impl fmt::Debug for DirectoryCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryCache").finish_non_exhaustive()
    }
}

/// Bytes of the reply that finds out whether attributes are wanted: some 150 entries.
const SAMPLE_BYTES: u32 = 32 << 10;

#[cfg(test)]
mod tests;
