//! The memory of all listings of a mount.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use super::directory_cache::DirectoryCache;
use super::page::Page;

/// Bounds the memory of the listings of all directories. The least recently used page is evicted
/// first.
///
/// Readers can hold evicted pages, which the bound does not include: at most two each, the current
/// and the next one.
pub(crate) struct ListingBudget {
    bytes_max: usize,
    /// Locked under the lock of a directory, never the other way round.
    lru: Mutex<Lru>,
}

#[derive(Default)]
struct Lru {
    bytes: usize,
    /// The highest position given so far.
    last_place: u64,
    /// The pages in order of their last use.
    by_use: BTreeMap<u64, Admitted>,
}

/// A page within the bound. The page holds its position in the order.
struct Admitted {
    bytes: usize,
    page: PageId,
}

/// Identifies a page without a reference to it.
pub(super) struct PageId {
    pub(super) owner: Weak<DirectoryCache>,
    pub(super) start_cookie: u64,
    pub(super) issued: u64,
}

impl PageId {
    /// Removes the page from its directory's cache. No lock may be held.
    pub(super) fn evict(self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.evict(self.start_cookie, self.issued);
        }
    }
}

impl ListingBudget {
    /// A bound of `bytes_max` for all listings.
    #[must_use]
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, lru: Mutex::default() }
    }

    /// Bytes of all cached listings, without evicted pages. At most the bound.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Includes a page, as the most recently used. Returns the pages that the caller has to evict
    /// for it; `page` itself, if it is larger than the bound.
    #[must_use]
    pub(super) fn admit(&self, page: &Page, owner: &Weak<DirectoryCache>) -> Vec<PageId> {
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

    /// Makes the page the most recently used.
    pub(super) fn touch(&self, page: &Page) {
        let mut lru = self.lock();
        if let Some(admitted) = lru.by_use.remove(&page.place.load(Ordering::Relaxed)) {
            lru.put_last(page, admitted);
        }
    }

    /// Excludes a page that was removed from its cache.
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
        // Positions begin at 1 and are not reused, so an evicted page finds no page at its own.
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
