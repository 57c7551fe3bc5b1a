//! Exclusion between cached and direct I/O in flight on the same pages of a file.
//!
//! A direct write passes the page cache: it drops the cached pages first and then writes to the
//! disk. A buffered write that fetches such a page between the two keeps the old bytes beside its
//! own, and writes both back over what the direct write left there. Kernels keep some of this apart
//! with the inode's lock, each file system another part; this lock keeps all of it apart, by pages.

use std::fmt;
use std::sync::{Arc, PoisonError};

use rustix::param::page_size;

use crate::byte_range::ByteRange;
use crate::sync::{Mutex, MutexGuard, oneshot};

/// How pages are about to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RangeUse {
    /// Reading through the page cache. Shares pages with other cached use: the kernel merges it
    /// there.
    Cached,
    /// Writing through the page cache, likewise.
    CachedWrite,
    /// Reading pages that are in memory, by a thread that must not wait for the disk. Shares pages
    /// only with itself: others may be reading them from the disk, and they count as cached
    /// meanwhile. Nor is there any write of the file: some file systems (XFS) take a lock of the
    /// whole file for splicing, and hold it while a write waits for the disk.
    InMemory,
    /// Past the page cache. Shares pages with other direct use, which meets only on the disk.
    Direct,
    /// Truncation, of everything past the new end. Shares pages with no other use.
    Exclusive,
}

impl RangeUse {
    /// Whether both may be in flight on the same page.
    #[must_use]
    pub fn shares_pages_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Direct, Self::Direct) | (Self::InMemory, Self::InMemory) => true,
            (one, another) => one.is_cached() && another.is_cached(),
        }
    }

    /// Whether both may be in flight in one file.
    fn shares_file_with(self, other: Self) -> bool {
        let must_not_wait = self == Self::InMemory || other == Self::InMemory;
        !(must_not_wait && (self.writes() || other.writes()))
    }

    fn is_cached(self) -> bool {
        matches!(self, Self::Cached | Self::CachedWrite)
    }

    fn writes(self) -> bool {
        matches!(self, Self::CachedWrite | Self::Exclusive)
    }
}

/// The page ranges of one open file that are in use or waited for.
///
/// A request waits for each earlier one that it conflicts with, whether that one holds its pages or
/// waits itself, and for no other: no request starves, and unrelated ranges do not meet. Memory
/// grows with the requests in flight, whose number the caller bounds.
///
/// The holder of a guard must not wait for another of the same file: a request between the two in
/// the queue that wants the pages of both would wait for the first, and the second for it.
#[derive(Default)]
pub struct RangeLock {
    state: Mutex<State>,
}

/// The lock covers everything here. It is never held across an await, nor while anyone is woken.
#[derive(Default)]
struct State {
    /// The requests that hold or wait for pages, in the order of their arrival.
    ///
    /// Holders and waiters need not be distinguished: a request waits for every conflicting entry
    /// *before* it, and proceeds when there is none.
    entries: Vec<Entry>,
    next_ticket: u64,
}

struct Entry {
    ticket: u64,
    claim: Claim,
    /// Present while it waits.
    grant: Option<oneshot::Sender<()>>,
}

/// A request: whole pages, and their use.
#[derive(Clone, Copy, Debug)]
struct Claim {
    pages: ByteRange,
    range_use: RangeUse,
}

/// The right to use a range, until it is dropped. It may be moved to another thread and dropped
/// there.
#[must_use = "the range is free again once this is dropped"]
pub struct RangeGuard {
    lock: Arc<RangeLock>,
    claim: Claim,
    ticket: u64,
}

impl RangeLock {
    /// A lock with all of the file free.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The right to use the pages of `range` as `range_use`, once nothing earlier conflicts. An
    /// empty range has no pages and never waits.
    ///
    /// Dropping the future gives up its place in the queue.
    pub async fn lock(self: &Arc<Self>, range: ByteRange, range_use: RangeUse) -> RangeGuard {
        // From here on the guard owns the place in the queue, and gives it up when this future is
        // dropped before its turn.
        let (guard, turn) = self.enter(Claim::new(range, range_use));
        if let Some(turn) = turn {
            turn.await.expect(GRANTED);
        }
        guard
    }

    /// [`lock`](Self::lock) for a thread that may block.
    ///
    /// # Panics
    /// Called from within an asynchronous task.
    #[cfg(test)]
    fn blocking_lock(self: &Arc<Self>, range: ByteRange, range_use: RangeUse) -> RangeGuard {
        let (guard, turn) = self.enter(Claim::new(range, range_use));
        if let Some(turn) = turn {
            turn.blocking_recv().expect(GRANTED);
        }
        guard
    }

    /// [`lock`](Self::lock) if that needs no wait. It never passes a waiter that it conflicts with.
    pub fn try_lock(self: &Arc<Self>, range: ByteRange, range_use: RangeUse) -> Option<RangeGuard> {
        let claim = Claim::new(range, range_use);
        let mut state = self.state();
        if state.is_blocked(state.entries.len(), claim) {
            return None;
        }
        Some(self.guard(claim, state.push(claim, None)))
    }

    /// Takes the last place in the queue; with it, if the turn has to be waited for, the receiver
    /// that reports it.
    fn enter(self: &Arc<Self>, claim: Claim) -> (RangeGuard, Option<oneshot::Receiver<()>>) {
        let mut state = self.state();
        if !state.is_blocked(state.entries.len(), claim) {
            return (self.guard(claim, state.push(claim, None)), None);
        }
        let (grant, turn) = oneshot::channel();
        (self.guard(claim, state.push(claim, Some(grant))), Some(turn))
    }

    fn guard(self: &Arc<Self>, claim: Claim, ticket: u64) -> RangeGuard {
        RangeGuard { lock: Arc::clone(self), claim, ticket }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, claim: Claim, grant: Option<oneshot::Sender<()>>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.entries.push(Entry { ticket, claim, grant });
        ticket
    }

    /// Whether any of the first `earlier` entries conflicts with the claim.
    fn is_blocked(&self, earlier: usize, claim: Claim) -> bool {
        self.entries[..earlier].iter().any(|entry| entry.claim.conflicts_with(claim))
    }

    /// Removes an entry, in use or waiting, and returns it with the grants of those that were held
    /// up by nothing else.
    fn remove(&mut self, ticket: u64) -> (Entry, Vec<oneshot::Sender<()>>) {
        let place = self
            .entries
            .binary_search_by_key(&ticket, |entry| entry.ticket)
            .expect("a guard's entry stays until the guard is dropped");
        let removed = self.entries.remove(place);
        let mut grants = Vec::new();
        for place in place..self.entries.len() {
            let Entry { claim, ref grant, .. } = self.entries[place];
            if grant.is_some()
                && claim.conflicts_with(removed.claim)
                && !self.is_blocked(place, claim)
            {
                grants.extend(self.entries[place].grant.take());
            }
        }
        if self.entries.is_empty() {
            self.entries.shrink_to(IDLE_ENTRIES);
        }
        (removed, grants)
    }
}

impl Claim {
    fn new(range: ByteRange, range_use: RangeUse) -> Self {
        // Widening would make a page of an empty range within one.
        let pages = if range.is_empty() { range } else { range.widened_to(page_size() as u64) };
        Self { pages, range_use }
    }

    fn conflicts_with(self, other: Self) -> bool {
        let (one, another) = (self.range_use, other.range_use);
        let have_pages = !self.pages.is_empty() && !other.pages.is_empty();
        (have_pages && !one.shares_file_with(another))
            || (self.pages.overlaps(other.pages) && !one.shares_pages_with(another))
    }
}

impl RangeGuard {
    /// The whole pages that are in use.
    #[must_use]
    pub fn pages(&self) -> ByteRange {
        self.claim.pages
    }

    /// How they are used.
    #[must_use]
    pub fn range_use(&self) -> RangeUse {
        self.claim.range_use
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        // Wakers run code that is not ours, so the lock is free again when the grants are sent and
        // the removed entry is dropped. A grant that finds its waiter gone needs no more: that
        // waiter's own guard is being dropped, and passes the turn on.
        let (_removed, grants) = self.lock.state().remove(self.ticket);
        for grant in grants {
            let _ = grant.send(());
        }
    }
}

impl fmt::Debug for RangeLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.state().entries.iter()).finish()
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("pages", &self.claim.pages)
            .field("range_use", &self.claim.range_use)
            .field("waits", &self.grant.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RangeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeGuard")
            .field("pages", &self.pages())
            .field("range_use", &self.range_use())
            .finish_non_exhaustive()
    }
}

const GRANTED: &str = "an entry leaves the queue by its own guard, which is here";

/// Places for entries that an idle lock keeps, so that a burst does not stay with an open file.
const IDLE_ENTRIES: usize = 8;

#[cfg(shuttle)]
#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod simulated_file;
#[cfg(not(shuttle))]
#[cfg(test)]
mod tests;
