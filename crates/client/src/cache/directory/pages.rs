//! The pages of one directory, found by cookie.

use std::collections::BTreeMap;
use std::hash::RandomState;
use std::ops::Bound;
use std::sync::Arc;

use super::page::Page;

/// Pages by the cookie behind which they begin.
///
/// Cookies are positions in the server's order, so pages fetched before and after a change fit
/// together: a page may end in the middle of its successor, or lack entries that the next one has.
/// A reader continues from the last cookie of one page behind the same cookie in another.
#[derive(Default)]
pub(super) struct Pages {
    by_start: BTreeMap<u64, Arc<Page>>,
    /// Number of pages whose cookies do not ascend.
    unordered: usize,
    /// Start cookie of the page, and index of the entry, behind the name that was found last.
    next_name: (u64, usize),
    hasher: RandomState,
}

impl Pages {
    /// A page that `suits` accepts and that has the entries behind `cookie`, with the index of the
    /// first of them.
    ///
    /// `anywhere` also searches all entries of the pages whose cookies do not ascend. That is for
    /// `seekdir`, not for each step of a listing.
    pub(super) fn find(
        &self,
        cookie: u64,
        anywhere: bool,
        suits: impl Fn(&Page) -> bool,
    ) -> Option<(&Arc<Page>, usize)> {
        let exact = self.by_start.get(&cookie).into_iter();
        let before = self.by_start.range(..cookie).rev().take(OVERLAPPING_MAX);
        let ordered = before.map(|(_, page)| page).filter(|page| page.ascending);
        let unordered = match anywhere && self.unordered > 0 {
            true => Some(self.by_start.values().filter(|page| !page.ascending)),
            false => None,
        };
        let mut pages = exact.chain(ordered).chain(unordered.into_iter().flatten());
        pages.find_map(|page| {
            let first = page.position_after(cookie, 0)?;
            suits(page).then_some((page, first))
        })
    }

    /// Inserts a page, and returns the pages that it replaces because it covers them. If the page
    /// in its place is from a later call, that stays and the new page is returned.
    pub(super) fn insert(&mut self, page: &Arc<Page>) -> Vec<Arc<Page>> {
        let at_its_place = self.by_start.get(&page.start_cookie);
        if at_its_place.is_some_and(|other| other.issued > page.issued) {
            return vec![Arc::clone(page)];
        }
        let mut covered = vec![page.start_cookie];
        if page.ascending && page.last_cookie() > page.start_cookie {
            let within = (Bound::Excluded(page.start_cookie), Bound::Excluded(page.last_cookie()));
            covered.extend(
                (self.by_start.range(within))
                    .filter(|(_, other)| other.ascending && other.issued < page.issued)
                    .filter(|(_, other)| other.last_cookie() <= page.last_cookie())
                    .map(|(start_cookie, _)| *start_cookie),
            );
        }
        let replaced = covered.iter().filter_map(|start| self.remove(*start)).collect();
        self.unordered += usize::from(!page.ascending);
        self.by_start.insert(page.start_cookie, Arc::clone(page));
        replaced
    }

    /// The page that begins behind this cookie.
    pub(super) fn get(&self, start_cookie: u64) -> Option<&Arc<Page>> {
        self.by_start.get(&start_cookie)
    }

    /// A page that `suits` accepts and that has `name`, with the index of the entry. The entry
    /// behind the last one found is tried first.
    pub(super) fn find_name(
        &mut self,
        name: &[u8],
        suits: impl Fn(&Page) -> bool,
    ) -> Option<(&Arc<Page>, usize)> {
        let (likely_page, likely_entry) = self.next_name;
        let likely = self.by_start.get(&likely_page).into_iter();
        let pages = likely.chain(self.by_start.values().take(LOOKUP_PAGES_MAX));
        let (page, at) = pages.filter(|page| suits(page)).find_map(|page| {
            let likely = if page.start_cookie == likely_page { likely_entry } else { 0 };
            Some((page, page.find_name(name, likely, &self.hasher)?))
        })?;
        self.next_name = match at + 1 < page.len() {
            true => (page.start_cookie, at + 1),
            false => (page.last_cookie(), 0),
        };
        Some((page, at))
    }

    pub(super) fn remove(&mut self, start_cookie: u64) -> Option<Arc<Page>> {
        let page = self.by_start.remove(&start_cookie)?;
        self.unordered -= usize::from(!page.ascending);
        Some(page)
    }

    /// Removes and returns the pages that `selects` accepts.
    pub(super) fn remove_if(&mut self, selects: impl Fn(&Page) -> bool) -> Vec<Arc<Page>> {
        let selected = self.by_start.values().filter(|page| selects(page));
        let selected: Vec<_> = selected.map(|page| page.start_cookie).collect();
        selected.into_iter().filter_map(|start_cookie| self.remove(start_cookie)).collect()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<Page>> {
        self.by_start.values()
    }
}

/// Pages before a cookie that are searched for it. They overlap where readers have found pages
/// outdated, because a new page begins where its reader was.
const OVERLAPPING_MAX: usize = 4;

/// Pages that are searched for a name. Beyond that, LOOKUP is as fast.
const LOOKUP_PAGES_MAX: usize = 256;
