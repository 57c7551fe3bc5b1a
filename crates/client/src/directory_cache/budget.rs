//! The memory of all listings together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use super::page::Page;
use super::shared::Shared;

/// Bounds the memory of the listings of all directories: the pages that were used longest ago go
/// first.
///
/// A page that has gone lives on for the readers that are in it, beside the bound: each holds two
/// pages at most, the one it is in and the one that comes next.
pub struct ListingBudget {
    bytes_max: usize,
    /// Taken while the lock of a directory is held, never the other way round.
    lru: Mutex<Lru>,
}

#[derive(Default)]
struct Lru {
    bytes: usize,
    /// The last place that was given away.
    last_place: u64,
    /// The pages in the order of their last use.
    by_use: BTreeMap<u64, Admitted>,
}

/// A page that counts. Its place in the order is in the page.
struct Admitted {
    bytes: usize,
    page: PageId,
}

/// Says which page it is without keeping it.
pub(super) struct PageId {
    pub(super) owner: Weak<Shared>,
    pub(super) start_cookie: u64,
    pub(super) issued: u64,
}

impl PageId {
    /// Takes the page out of its directory's cache. No lock may be held.
    pub(super) fn evict(self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.evict(self.start_cookie, self.issued);
        }
    }
}

impl ListingBudget {
    /// Room for so many bytes of listings.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, lru: Mutex::default() }
    }

    /// Bytes that all listings take now, beside those that only a reader still holds. At most the
    /// bound.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Counts a page from now on, as just used. Those that have to go for it are the caller's to
    /// evict; it may be among them, if it is larger than all there is.
    #[must_use]
    pub(super) fn admit(&self, page: &Page, owner: &Weak<Shared>) -> Vec<PageId> {
        let bytes = page.memory_bytes();
        let (start_cookie, issued) = (page.start_cookie, page.issued);
        let id = PageId { owner: Weak::clone(owner), start_cookie, issued };
        if bytes > self.bytes_max {
            return vec![id];
        }
        let mut lru = self.lock();
        lru.bytes += bytes;
        lru.put_last(page, Admitted { bytes, page: id });
        let mut evicted = Vec::new();
        while lru.bytes > self.bytes_max {
            let Some((_, oldest)) = lru.by_use.pop_first() else { break };
            lru.bytes -= oldest.bytes;
            evicted.push(oldest.page);
        }
        evicted
    }

    /// The page was used.
    pub(super) fn touch(&self, page: &Page) {
        let mut lru = self.lock();
        if let Some(admitted) = lru.by_use.remove(&page.place.load(Ordering::Relaxed)) {
            lru.put_last(page, admitted);
        }
    }

    /// The page is in no cache any more.
    pub(super) fn release(&self, page: &Page) {
        let mut lru = self.lock();
        if let Some(admitted) = lru.by_use.remove(&page.place.load(Ordering::Relaxed)) {
            lru.bytes -= admitted.bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lru> {
        self.lru.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lru {
    fn put_last(&mut self, page: &Page, admitted: Admitted) {
        // Places begin with 1 and are not given twice: an evicted page finds none at its old one.
        self.last_place += 1;
        page.place.store(self.last_place, Ordering::Relaxed);
        self.by_use.insert(self.last_place, admitted);
    }
}

impl fmt::Debug for ListingBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListingBudget")
            .field("bytes", &self.bytes())
            .field("bytes_max", &self.bytes_max)
            .finish_non_exhaustive()
    }
}
