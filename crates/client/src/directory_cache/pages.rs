//! The pages of one directory, found by cookie.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::page::Page;

/// Pages by the cookie they begin behind.
///
/// Cookies are positions in the server's order, so pages of different states of the directory fit
/// together: a page may end within its successor, or leave out what used to be there. Each is
/// whole in itself, and a reader goes from the end of one to the place behind the same cookie in
/// another.
#[derive(Default)]
pub(super) struct Pages {
    by_start: BTreeMap<u64, Arc<Page>>,
    /// Those whose cookies do not ascend.
    unordered: usize,
}

impl Pages {
    /// A page for which `suits` holds and which has what is behind `cookie`, and the number of the
    /// first such entry.
    ///
    /// `anywhere` looks into the midst of pages whose cookies do not ascend too. That goes through
    /// all of their entries: it is for a seek, not for each step of a listing.
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

    /// Puts a page in, in place of those that it covers, which are returned. A page that was asked
    /// for after it stays, and the new one is returned.
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

    pub(super) fn remove(&mut self, start_cookie: u64) -> Option<Arc<Page>> {
        let page = self.by_start.remove(&start_cookie)?;
        self.unordered -= usize::from(!page.ascending);
        Some(page)
    }

    /// Takes out the pages that `go` chooses.
    pub(super) fn remove_if(&mut self, go: impl Fn(&Page) -> bool) -> Vec<Arc<Page>> {
        let going = self.by_start.values().filter(|page| go(page)).map(|page| page.start_cookie);
        let going: Vec<_> = going.collect();
        going.into_iter().filter_map(|start_cookie| self.remove(start_cookie)).collect()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<Page>> {
        self.by_start.values()
    }
}

/// Pages before a cookie that are looked into: more than one where they overlap, because each
/// begins where a reader was when it found the page there outdated.
const OVERLAPPING_MAX: usize = 4;
