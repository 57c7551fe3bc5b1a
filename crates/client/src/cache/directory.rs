//! Directory listings that never start over.
//!
//! A directory is cached as pages, one for each reply of READDIR or READDIRPLUS, found by the
//! cookie behind which they begin. A reader asks for the entries behind its last cookie and gets
//! the rest of a page. If no cached page is valid for the reader, a call fetches one, beginning at
//! this cookie. So a listing makes the same number of calls whether or not the directory changes
//! meanwhile, or its attributes expire: outdated pages are fetched again from the reader's
//! position, never from the beginning. Cookies are positions in the server's order, which do not
//! change (RFC 1813 §3.3.16): an entry that exists all the time is listed exactly once, also across
//! pages fetched at different times.
//!
//! A reader is shown a page
//! - whose call was sent after the reader was opened or rewound. POSIX leaves open whether a
//!   listing shows changes made after `opendir`, so concurrent readers share the pages that the
//!   first of them fetches, however often the directory changes;
//! - or that has the change stamp which the directory had when the reader was opened. The server
//!   returns the stamp ([`Change`]) with each reply, but reads it after the entries; so a page has
//!   a stamp only if it was the same before and after the call.
//!
//! When a reader enters a page, the next one is fetched if it is not cached. A reader that stops
//! leaves one page unread.
//!
//! Own changes do not affect open readers. Readers opened later fetch the directory again: only the
//! server knows the position of a new name, and with a coarse clock the change stamp may be the
//! same as before the change. A foreign change within the same tick of the clock as a listing is
//! not detected until the next change, as with every NFSv3 client.

mod budget;
mod directory_cache;
mod learned;
mod page;
mod pages;
mod reader;
mod source;
mod validity;

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::nfs3::{Attributes, FileHandle};

pub(crate) use budget::ListingBudget;
pub(crate) use directory_cache::DirectoryCache;
pub use page::{Entry, PageSlice};
pub(crate) use reader::Reader;
pub(crate) use source::{ListingRequest, ListingSource};

#[cfg(doc)]
use crate::cache::change::Change;
use crate::options::UseReaddirplus;
use crate::trace::Tracer;

/// The configuration that all directories of a mount share.
#[derive(Debug)]
pub(crate) struct ListingConfig {
    /// Bounds the memory of all listings.
    pub(crate) budget: Arc<ListingBudget>,
    /// When READDIRPLUS is used.
    pub(crate) readdirplus: UseReaddirplus,
    /// Bytes of a reply, and so of a page, at most. The server may return less.
    pub(crate) reply_bytes: u32,
    /// How long the handles in a page are used after a foreign change of the directory, from the
    /// sending of its call on. Without it, a program that stats each listed entry would send a
    /// LOOKUP for each, in a directory that changes all the time.
    pub(crate) names_believed: Duration,
    /// How long the handles in a page are used that was fetched while the directory changed, from
    /// the sending of its call on. Its names may be those from before the change, and its reply the
    /// only one that shows it.
    pub(crate) unstamped_believed: Duration,
    /// Prints the trace events.
    pub(crate) tracer: Arc<Tracer>,
}

/// A name found in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The file handle.
    pub(crate) handle: FileHandle,
    /// The attributes, if the server returned them.
    pub(crate) attributes: Option<Attributes>,
    /// When the call was sent: the attributes may be as old.
    pub(crate) sent_at: Instant,
    /// How long it may be used.
    pub(crate) ttl: Duration,
}

/// Bytes of the first READDIRPLUS reply, which samples whether attributes are needed: about 150
/// entries.
const SAMPLE_BYTES: u32 = 32 << 10;

#[cfg(test)]
mod tests;
