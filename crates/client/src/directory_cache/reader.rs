//! A reader: one open directory.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::page::{Page, PageSlice};
use super::shared::{Obtained, Place, Shared, View};
use super::source::ListingSource;
use crate::change::Change;
use crate::error::Result;
use crate::trace::Event;

/// Reads a directory from [`super::DirectoryCache::open`] on, as one `opendir` does.
///
/// Its position is whatever cookie the caller gives, so one reader can be shared; it is fastest
/// when the cookies follow each other.
pub struct Reader<S: ListingSource> {
    shared: Arc<Shared>,
    source: S,
    position: Mutex<Position>,
}

/// Held for a few steps, never over a call. The directory's lock is taken within it.
struct Position {
    view: View,
    /// It has asked for the beginning of the directory once.
    begun: bool,
    /// Where the reader is.
    page: Option<Arc<Page>>,
    /// Number of the next entry in it.
    next: usize,
    /// Pages since the beginning.
    page_index: u64,
    /// What comes behind `page`, held on to so that it cannot be evicted before it is read.
    ahead: Option<Ahead>,
}

/// What is behind a cookie.
struct Ahead {
    cookie: u64,
    obtained: Obtained,
}

impl<S: ListingSource> Reader<S> {
    pub(super) fn new(shared: Arc<Shared>, source: S, change: Option<Change>) -> Self {
        let view = shared.open(change);
        let position =
            Position { view, begun: false, page: None, next: 0, page_index: 0, ahead: None };
        Self { shared, source, position: Mutex::new(position) }
    }

    /// Entries behind `cookie`: 0, or any that this directory's entries came with. There are none
    /// only at the end of the directory.
    ///
    /// Makes at most one call for its own page, from `cookie` itself and no other, and begins one
    /// for the page behind it. Dropping the future loses nothing: the call goes on, for others and
    /// for the cache.
    ///
    /// # Errors
    /// Those of READDIR and READDIRPLUS; NFS3ERR_BAD_COOKIE when the server does not know the
    /// cookie any more, with whatever verifier; [`Error::Decode`](crate::Error::Decode) for a
    /// listing that leads nowhere. An error is not remembered: who asks again asks the server
    /// again.
    pub async fn entries_after(&self, cookie: u64) -> Result<PageSlice> {
        self.shared.emit(Event::ReaddirEnter, cookie, 0, format_args!(""));
        let (slice, page_index) = match self.go_on(cookie) {
            Some(slice) => slice,
            None => self.turn_to(cookie).await?,
        };
        let eof = u8::from(slice.eof());
        let detail = format_args!("page={page_index} eof={eof}");
        self.shared.emit(Event::ReaddirExit, slice.last_cookie(), slice.len(), detail);
        Ok(slice)
    }

    /// Begins anew, as `rewinddir` does: what the directory holds from now on will be seen.
    /// `current` is as in [`super::DirectoryCache::open`]. The next cookie should be 0.
    pub fn rewind(&self, current: Option<Change>) {
        let mut position = self.lock();
        position.view = self.shared.rewind(current);
        position.page = None;
        position.ahead = None;
    }

    /// The rest of the page that the reader is in, if `cookie` is in it.
    fn go_on(&self, cookie: u64) -> Option<(PageSlice, u64)> {
        let mut position = self.lock();
        let page = Arc::clone(position.page.as_ref()?);
        let first = page.position_after(cookie, position.next.saturating_sub(1))?;
        // Attributes may have turned out to be wanted on the way.
        if first < page.len() && !self.shared.may_go_on(&page) {
            return None;
        }
        position.next = first;
        Some((PageSlice::new(page, first), position.page_index))
    }

    /// Another page, that of `cookie`.
    async fn turn_to(&self, cookie: u64) -> Result<(PageSlice, u64)> {
        let (place, mut view, ahead) = self.set_out(cookie);
        let mut obtained = match ahead {
            Some(obtained) => obtained,
            None => self.shared.obtain(&self.source, place, view),
        };
        loop {
            let (page, first) = match obtained {
                Obtained::Page(page, first) => (page, first),
                Obtained::Flight(flight) => {
                    let own = flight.own;
                    match flight.landed().await {
                        Ok(page) => (page, 0),
                        // Another user's call: what it may not, this one perhaps may.
                        Err(error)
                            if !own && matches!(error.errno(), Errno::ACCESS | Errno::PERM) =>
                        {
                            obtained = self.shared.obtain(&self.source, place, view);
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
            };
            // A call that was under way when this reader was opened may have been too early for
            // it. The next one is not.
            if self.shared.suits(&page, view) {
                return Ok(self.arrive(place, page, first));
            }
            view = self.lock().view;
            obtained = self.shared.obtain(&self.source, place, view);
        }
    }

    /// Where to look for the page, and what is there ahead of it.
    fn set_out(&self, cookie: u64) -> (Place, View, Option<Obtained>) {
        let mut position = self.lock();
        if cookie == 0 {
            self.shared.begin(position.begun);
            position.begun = true;
        }
        let here = position.page.as_ref();
        let verifier = here.map_or_else(|| self.shared.verifier(), |page| page.verifier);
        let sought = cookie != 0 && !here.is_some_and(|page| page.contains(cookie));
        if sought {
            self.shared.emit(Event::LlseekDir, cookie, 0, format_args!(""));
        }
        let ahead = position.ahead.take_if(|ahead| ahead.cookie == cookie);
        let ahead = ahead.map(|ahead| ahead.obtained).filter(|obtained| match obtained {
            Obtained::Page(page, _) => self.shared.suits(page, position.view),
            // That was somebody else's error, or one of another time.
            Obtained::Flight(flight) => !flight.has_failed(),
        });
        (Place { cookie, verifier, sought }, position.view, ahead)
    }

    /// Takes a page as the one to be in, and sees to the next one.
    fn arrive(&self, place: Place, page: Arc<Page>, first: usize) -> (PageSlice, u64) {
        self.shared.may_go_on(&page);
        let mut position = self.lock();
        position.page_index = match place.cookie == 0 {
            true => 0,
            false => position.page_index + 1,
        };
        position.ahead = (!page.eof).then(|| {
            let cookie = page.last_cookie();
            let behind = Place { cookie, verifier: page.verifier, sought: false };
            let obtained = self.shared.obtain(&self.source, behind, position.view);
            Ahead { cookie, obtained }
        });
        position.page = Some(Arc::clone(&page));
        position.next = first;
        (PageSlice::new(page, first), position.page_index)
    }

    fn lock(&self) -> MutexGuard<'_, Position> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: ListingSource> Drop for Reader<S> {
    fn drop(&mut self) {
        let begun = self.lock().begun;
        self.shared.close(begun);
    }
}

impl<S: ListingSource> fmt::Debug for Reader<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let position = self.lock();
        f.debug_struct("Reader")
            .field("page", &position.page)
            .field("page_index", &position.page_index)
            .finish_non_exhaustive()
    }
}
