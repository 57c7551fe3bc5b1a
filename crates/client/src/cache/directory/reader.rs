//! A reader: an open directory.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::DirectoryCache;
use super::directory_cache::{Obtained, Position};
use super::page::{Page, PageSlice};
use super::source::ListingSource;
use super::validity::View;
use crate::cache::change::Change;
use crate::error::Result;
use crate::listing_progress::ListingProgress;
use crate::trace::Event;

/// An open directory, from [`DirectoryCache::open`] on.
///
/// The caller gives the position as a cookie, so tasks can share a reader; sequential positions are
/// fastest.
pub(crate) struct Reader<S: ListingSource> {
    directory: Arc<DirectoryCache>,
    source: S,
    progress: Mutex<Progress>,
}

/// Locked for a few steps, never over a call. The directory's lock is taken under it.
struct Progress {
    view: View,
    /// Whether the reader has asked for the first entries.
    begun: bool,
    /// The current page.
    page: Option<Arc<Page>>,
    /// Index of the next entry in it.
    next: usize,
    /// Number of pages since the beginning.
    page_index: u64,
    /// Detects a loop in the pages that were read in sequence.
    listing: ListingProgress,
    /// The page behind `page`, referenced so that it is not evicted before it is read.
    ahead: Option<Ahead>,
}

/// The page behind a cookie.
struct Ahead {
    cookie: u64,
    obtained: Obtained,
}

impl DirectoryCache {
    /// Opens the directory. The caller has checked that the user may read it: the reader is shown
    /// pages that other users have fetched.
    ///
    /// `current` is the change stamp from attributes that are recent enough for the caller's notion
    /// of consistency. Without it everything is fetched again.
    ///
    /// Readers must be used within a Tokio runtime.
    #[must_use]
    pub(crate) fn open<S: ListingSource>(
        self: &Arc<Self>,
        source: S,
        current: Option<Change>,
    ) -> Reader<S> {
        Reader::new(Arc::clone(self), source, current)
    }
}

impl<S: ListingSource> Reader<S> {
    /// How long the handle of `name` in `entries` may be used.
    pub(crate) fn handle_ttl(&self, entries: &PageSlice, name: &[u8]) -> Duration {
        self.directory.handle_ttl(entries.page(), name)
    }

    fn new(directory: Arc<DirectoryCache>, source: S, current: Option<Change>) -> Self {
        let view = directory.add_reader(current);
        let progress = Progress {
            view,
            begun: false,
            page: None,
            next: 0,
            page_index: 0,
            listing: ListingProgress::default(),
            ahead: None,
        };
        Self { directory, source, progress: Mutex::new(progress) }
    }

    /// The entries behind `cookie`: 0 or the cookie of any entry. None only at the end of the
    /// directory.
    ///
    /// Makes at most one call for the page, beginning at `cookie`, and starts one for the next
    /// page. Dropping the future does not cancel the call.
    ///
    /// # Errors
    /// Those of READDIR and READDIRPLUS; NFS3ERR_BAD_COOKIE if the server rejects the cookie with
    /// either verifier; [`Error::Malformed`](crate::Error::Malformed) for a page without entries
    /// before the end. An error is not cached: the next read makes a new call.
    pub(crate) async fn entries_after(&self, cookie: u64) -> Result<PageSlice> {
        self.directory.emit(Event::ReaddirEnter, cookie, 0, format_args!(""));
        let (slice, page_index) = match self.go_on(cookie) {
            Some(slice) => slice,
            None => self.turn_to(cookie).await?,
        };
        let eof = u8::from(slice.eof());
        let detail = format_args!("page={page_index} eof={eof}");
        self.directory.emit(Event::ReaddirExit, slice.last_cookie(), slice.len(), detail);
        Ok(slice)
    }

    /// `rewinddir`: the listing shows the directory as it is from now on. `current` is as in
    /// [`DirectoryCache::open`]. The next cookie should be 0.
    pub(crate) fn rewind(&self, current: Option<Change>) {
        let mut progress = self.lock();
        progress.view = self.directory.rewind(current);
        progress.page = None;
        progress.ahead = None;
    }

    /// The rest of the current page, if `cookie` is in it.
    fn go_on(&self, cookie: u64) -> Option<(PageSlice, u64)> {
        let mut progress = self.lock();
        let page = Arc::clone(progress.page.as_ref()?);
        let first = page.position_after(cookie, progress.next.saturating_sub(1))?;
        // Attributes may have turned out to be needed meanwhile.
        if first < page.len() && !self.directory.may_go_on(&page) {
            return None;
        }
        progress.next = first;
        Some((PageSlice::new(page, first), progress.page_index))
    }

    /// Goes to the page with the entries behind `cookie`.
    async fn turn_to(&self, cookie: u64) -> Result<(PageSlice, u64)> {
        let (position, mut view, ahead) = self.leave_for(cookie);
        let mut obtained = match ahead {
            Some(obtained) => obtained,
            None => self.directory.obtain(&self.source, position, view),
        };
        loop {
            let (page, first) = match obtained {
                Obtained::Page(page, first) => (page, first),
                Obtained::Pending(page) => {
                    let own = page.own;
                    match page.wait().await {
                        Ok(page) => (page, 0),
                        // The call was made as another user. This user may have the permission.
                        Err(error)
                            if !own && matches!(error.errno(), Errno::ACCESS | Errno::PERM) =>
                        {
                            obtained = self.directory.obtain(&self.source, position, view);
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
            };
            // A call sent before this reader was opened may be too early for it. A new one is not.
            if self.directory.suits(&page, view) {
                return self.enter(position, page, first);
            }
            view = self.lock().view;
            obtained = self.directory.obtain(&self.source, position, view);
        }
    }

    /// The position to read from next, the view to use, and the page if it was fetched ahead.
    fn leave_for(&self, cookie: u64) -> (Position, View, Option<Obtained>) {
        let mut progress = self.lock();
        if cookie == 0 {
            self.directory.begin(progress.begun);
            progress.begun = true;
        }
        let here = progress.page.as_ref();
        let verifier = here.map_or_else(|| self.directory.verifier(), |page| page.verifier);
        let sought = cookie != 0 && !here.is_some_and(|page| page.contains(cookie));
        if sought {
            self.directory.emit(Event::LlseekDir, cookie, 0, format_args!(""));
        }
        let ahead = progress.ahead.take_if(|ahead| ahead.cookie == cookie);
        let ahead = ahead.map(|ahead| ahead.obtained).filter(|obtained| match obtained {
            Obtained::Page(page, _) => self.directory.suits(page, progress.view),
            // The error belongs to an earlier read, or another user's.
            Obtained::Pending(page) => !page.has_failed(),
        });
        (Position { cookie, verifier, sought }, progress.view, ahead)
    }

    /// Makes `page` the current one, and starts to fetch the next.
    ///
    /// # Errors
    /// [`Error::ListingLoop`](crate::Error::ListingLoop) if the cookies lead back to an earlier
    /// page.
    fn enter(&self, at: Position, page: Arc<Page>, first: usize) -> Result<(PageSlice, u64)> {
        self.directory.may_go_on(&page);
        let mut progress = self.lock();
        progress.note_page(at.cookie, &page)?;
        progress.page_index = match at.cookie == 0 {
            true => 0,
            false => progress.page_index + 1,
        };
        progress.ahead = (!page.eof).then(|| {
            let cookie = page.last_cookie();
            let behind = Position { cookie, verifier: page.verifier, sought: false };
            let obtained = self.directory.obtain(&self.source, behind, progress.view);
            Ahead { cookie, obtained }
        });
        progress.page = Some(Arc::clone(&page));
        progress.next = first;
        Ok((PageSlice::new(page, first), progress.page_index))
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    /// Checks that the listing does not loop. After a seek, it may come to the same pages again.
    fn note_page(&mut self, cookie: u64, next: &Page) -> Result<()> {
        let follows = self.page.as_ref().is_some_and(|page| page.last_cookie() == cookie);
        if !follows || cookie == 0 {
            self.listing = ListingProgress::default();
        }
        if next.eof { Ok(()) } else { self.listing.advance(next.last_cookie()) }
    }
}

impl<S: ListingSource> Drop for Reader<S> {
    fn drop(&mut self) {
        let begun = self.lock().begun;
        self.directory.remove_reader(begun);
    }
}

impl<S: ListingSource> fmt::Debug for Reader<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress = self.lock();
        f.debug_struct("Reader")
            .field("page", &progress.page)
            .field("page_index", &progress.page_index)
            .finish_non_exhaustive()
    }
}
