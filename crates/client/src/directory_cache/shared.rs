//! What the readers of one directory share: its pages, the calls in flight, and what is known of
//! the directory's state.

use std::collections::HashMap;
use std::fmt;
use std::hash::RandomState;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use proto::nfs3::{CookieVerifier, FileHandle, Status};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::learned::Learned;
use super::page::{Page, Provenance};
use super::pages::Pages;
use super::source::{ListingRequest, ListingSource};
use super::{Found, ListingConfig, SAMPLE_BYTES};
use crate::change::Change;
use crate::error::{Error, Result};
use crate::nfs3::Listing;
use crate::trace::{Event, Object};

/// See the module.
pub(super) struct Shared {
    pub(super) config: Arc<ListingConfig>,
    fileid: u64,
    handle: FileHandle,
    /// Handed to the tasks of calls: a directory that nobody has any more waits for no reply.
    this: Weak<Self>,
    state: Mutex<State>,
}

/// Held for a few steps, never over a call. The budget's lock is taken within it.
struct State {
    /// Counts the events whose order matters: opens, calls, changes.
    clock: u64,
    pages: Pages,
    /// By cookie, and whether attributes are asked for.
    flights: HashMap<(u64, bool), Flying>,
    /// The state of the directory, as last heard of.
    change: Option<Change>,
    /// Pages asked for up to here are good only for those who were reading then, whatever their
    /// stamp.
    stale_until: u64,
    /// Handles in pages asked for up to here are not believed.
    names_stale_until: u64,
    /// Somebody else has changed the directory since the pages up to here were asked for: handles
    /// in them are believed for [`ListingConfig::names_believed`].
    names_doubtful_until: u64,
    /// Nor are those of these names in pages asked for up to then. Smaller than
    /// [`CHANGED_NAMES_MAX`].
    changed_names: HashMap<Box<[u8]>, u64>,
    /// That of the last reply.
    verifier: CookieVerifier,
    learned: Learned,
    /// Readers that are open.
    readers: usize,
    /// Of these, the ones that have begun to read.
    reading: usize,
    hasher: RandomState,
    /// Page and entry behind the name that was looked up last.
    next_lookup: (u64, usize),
}

/// A call that awaits its reply.
struct Flying {
    issued: u64,
    outcome: watch::Receiver<Option<Result<Arc<Page>>>>,
    task: AbortHandle,
}

/// What a reader may be shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// When it was opened or rewound: what was fetched later is new enough for it.
    pub(super) opened: u64,
    /// The state of the directory then: what is older must be of just this state.
    pub(super) change: Option<Change>,
}

/// Where a listing goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) cookie: u64,
    /// What came with the cookie.
    pub(super) verifier: CookieVerifier,
    /// The reader was somewhere else before.
    pub(super) sought: bool,
}

/// A page, or the promise of one.
#[derive(Debug)]
pub(super) enum Obtained {
    /// The page, and the number of its first entry that is wanted.
    Page(Arc<Page>, usize),
    Flight(Flight),
}

/// A call that somebody waits for.
#[derive(Debug)]
pub(super) struct Flight {
    outcome: watch::Receiver<Option<Result<Arc<Page>>>>,
    /// The call is this reader's own.
    pub(super) own: bool,
}

impl Flight {
    /// Waits for the page. Dropping the future gives up nothing but the wait.
    pub(super) async fn landed(mut self) -> Result<Arc<Page>> {
        match self.outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().expect("it has just been seen"),
            // The task has gone: the runtime is being shut down.
            Err(_) => Err(Error::Refused(rustix::io::Errno::INTR)),
        }
    }

    /// Whether it is known already to have failed.
    pub(super) fn has_failed(&self) -> bool {
        match *self.outcome.borrow() {
            Some(ref outcome) => outcome.is_err(),
            None => self.outcome.has_changed().is_err(),
        }
    }
}

/// What came of a request.
struct Fetched {
    listing: Listing,
    /// As it was asked for in the end.
    request: ListingRequest,
}

impl Shared {
    pub(super) fn new(config: &Arc<ListingConfig>, fileid: u64, handle: FileHandle) -> Arc<Self> {
        let state = State {
            clock: 0,
            pages: Pages::default(),
            flights: HashMap::new(),
            change: None,
            stale_until: 0,
            names_stale_until: 0,
            names_doubtful_until: 0,
            changed_names: HashMap::new(),
            verifier: CookieVerifier::default(),
            learned: Learned::new(config.readdirplus),
            readers: 0,
            reading: 0,
            hasher: RandomState::new(),
            next_lookup: (0, 0),
        };
        Arc::new_cyclic(|this| Self {
            config: Arc::clone(config),
            fileid,
            handle,
            this: Weak::clone(this),
            state: Mutex::new(state),
        })
    }

    /// A reader opens, and sees the directory as it is now: `change`, if that is known.
    pub(super) fn open(&self, change: Option<Change>) -> View {
        let mut state = self.lock();
        state.readers += 1;
        self.emit(Event::Opendir, 0, 0, format_args!(""));
        self.look_anew(&mut state, change)
    }

    /// A reader goes back to the beginning, and sees the directory as it is now.
    pub(super) fn rewind(&self, change: Option<Change>) -> View {
        self.emit(Event::LlseekDir, 0, 0, format_args!(""));
        self.look_anew(&mut self.lock(), change)
    }

    fn look_anew(&self, state: &mut State, change: Option<Change>) -> View {
        let opened = state.tick();
        if let Some(change) = change {
            self.hear_of(state, change, opened);
        }
        View { opened, change }
    }

    /// A reader that has begun, or not, goes away.
    pub(super) fn close(&self, had_begun: bool) {
        self.emit(Event::Closedir, 0, 0, format_args!(""));
        let mut state = self.lock();
        state.readers -= 1;
        state.reading -= usize::from(had_begun);
        if state.readers == 0 {
            let names_stale_until = state.names_stale_until.max(state.names_doubtful_until);
            let State { pages, stale_until, change, .. } = &mut *state;
            let useless = |page: &Page| {
                let listed_again =
                    page.issued > *stale_until && page.stamp.is_some() && page.stamp == *change;
                let looked_up = page.plus && page.issued > names_stale_until;
                !listed_again && !looked_up
            };
            self.release(&pages.remove_if(useless));
        }
    }

    /// A reader asks for the first entries; `begun` says whether it did so before.
    pub(super) fn begin(&self, begun: bool) {
        let mut state = self.lock();
        state.reading += usize::from(!begun);
        if state.reading == 1 {
            state.learned.begin();
        }
    }

    /// Whether a reader may go on in a page that it is in, which it need not if it has come to the
    /// end of the directory. Says that entries are handed out.
    pub(super) fn may_go_on(&self, page: &Page) -> bool {
        let mut state = self.lock();
        state.learned.hand_out(Instant::now());
        page.plus || !state.learned.wants_plus()
    }

    /// Whether a page will do for a reader.
    pub(super) fn suits(&self, page: &Page, view: View) -> bool {
        self.lock().suits(page, view)
    }

    /// What is behind `place`, from the cache or by a call.
    pub(super) fn obtain(&self, source: &impl ListingSource, place: Place, view: View) -> Obtained {
        let mut state = self.lock();
        let found = state.pages.find(place.cookie, place.sought, |page| state.suits(page, view));
        if let Some((page, first)) = found {
            self.config.budget.touch(page);
            self.emit(Event::ReaddirCacheHit, page.start_cookie, page.len(), format_args!(""));
            return Obtained::Page(Arc::clone(page), first);
        }
        let samples = state.learned.samples(place.cookie);
        let plus = samples || state.learned.wants_plus();
        let with_attributes = state.flights.get(&(place.cookie, true));
        let without = || state.flights.get(&(place.cookie, false)).filter(|_| !plus);
        if let Some(flying) = with_attributes.or_else(without) {
            return Obtained::Flight(Flight { outcome: flying.outcome.clone(), own: false });
        }
        let bytes_max = self.config.reply_bytes;
        let request = ListingRequest {
            cookie: place.cookie,
            // RFC 1813 §3.3.16: zero with the first request.
            verifier: if place.cookie == 0 { CookieVerifier::default() } else { place.verifier },
            plus,
            bytes_max: if samples { bytes_max.min(SAMPLE_BYTES) } else { bytes_max },
        };
        let outcome = self.send(&mut state, source.clone(), request);
        Obtained::Flight(Flight { outcome, own: true })
    }

    /// Begins a call that others can wait for too.
    fn send<S: ListingSource>(
        &self,
        state: &mut State,
        source: S,
        request: ListingRequest,
    ) -> watch::Receiver<Option<Result<Arc<Page>>>> {
        let ListingRequest { cookie, plus, bytes_max, .. } = request;
        let detail = format_args!("plus={}", u8::from(plus));
        self.emit(Event::ReaddirCall, cookie, bytes_max as usize, detail);
        let issued = state.tick();
        let change = state.change;
        let (sender, outcome) = watch::channel(None);
        let this = Weak::clone(&self.this);
        let task = tokio::spawn(async move {
            let fetched = fetch(&source, request).await;
            if let Some(this) = this.upgrade() {
                sender.send_replace(Some(this.land((cookie, plus), issued, change, fetched)));
            }
        });
        let task = task.abort_handle();
        let flying = Flying { issued, outcome: outcome.clone(), task };
        state.flights.insert((cookie, plus), flying);
        outcome
    }

    /// Takes in what came of a call. `before` is the state of the directory as it was known when
    /// the call was sent.
    fn land(
        &self,
        key: (u64, bool),
        issued: u64,
        before: Option<Change>,
        fetched: Result<Fetched>,
    ) -> Result<Arc<Page>> {
        let page = fetched.and_then(|fetched| {
            // A server reads the entries first and the attributes then: only a state that both
            // sides of the call agree on is that of the entries.
            let after = fetched.listing.dir_attributes.as_ref().map(Change::from);
            let provenance = Provenance {
                start_cookie: key.0,
                plus: fetched.request.plus,
                stamp: after.filter(|after| before == Some(*after)),
                issued,
                fetched_at: Instant::now(),
            };
            Ok((Arc::new(Page::new(&fetched.listing, provenance)?), after))
        });
        let mut state = self.lock();
        if state.flights.get(&key).is_some_and(|flying| flying.issued == issued) {
            state.flights.remove(&key);
        }
        let (page, after) = match page {
            Ok(page) => page,
            Err(error) => {
                self.emit(Event::ReaddirReply, key.0, 0, format_args!("error={error}"));
                if error.is(Status::BadCookie) {
                    self.drop_pages(&mut state, "bad_cookie", |_| true);
                }
                return Err(error);
            }
        };
        let eof = u8::from(page.eof);
        self.emit(Event::ReaddirReply, key.0, page.len(), format_args!("eof={eof}"));
        if key.1 && !page.plus {
            state.learned.refuse();
        }
        if page.verifier != state.verifier {
            state.verifier = page.verifier;
            self.drop_pages(&mut state, "verifier", |other| other.verifier != page.verifier);
        }
        if let Some(after) = after {
            // The page itself may be believed: it is as new as a LOOKUP at that time.
            self.hear_of(&mut state, after, issued - 1);
        }
        self.release(&state.pages.insert(&page));
        let kept = state.pages.get(key.0).is_some_and(|kept| Arc::ptr_eq(kept, &page));
        let evicted = match kept {
            true => self.config.budget.admit(&page, &self.this),
            false => Vec::new(),
        };
        drop(state);
        for page in evicted {
            page.evict();
        }
        Ok(page)
    }

    /// The directory is in this state. If it was in another, somebody else has changed it, and
    /// handles in pages that were asked for until then may be those of other files by now.
    fn hear_of(&self, state: &mut State, change: Change, until: u64) {
        let known = state.change.replace(change);
        if known.is_some_and(|known| known != change) {
            self.emit(Event::ReaddirInvalidate, 0, 0, format_args!("why=changed"));
            state.names_doubtful_until = state.names_doubtful_until.max(until);
        }
    }

    /// See [`super::DirectoryCache::invalidate`].
    pub(super) fn invalidate(&self, why: &str) {
        let mut state = self.lock();
        let now = state.tick();
        state.stale_until = now;
        state.names_doubtful_until = now;
        if state.readers == 0 {
            self.drop_pages(&mut state, why, |_| true);
        } else {
            self.emit(Event::ReaddirInvalidate, 0, 0, format_args!("why={why}"));
        }
    }

    /// See [`super::DirectoryCache::note_own_change`].
    pub(super) fn note_own_change(&self, name: &[u8], after: Option<Change>) {
        let mut state = self.lock();
        let now = state.tick();
        state.stale_until = now;
        if state.changed_names.len() == CHANGED_NAMES_MAX {
            state.changed_names.clear();
            state.names_stale_until = now;
        }
        state.changed_names.insert(name.into(), now);
        state.change = after.or(state.change);
    }

    /// See [`super::DirectoryCache::note_lookup`].
    pub(super) fn note_lookup(&self) {
        self.lock().learned.look_up(Instant::now());
    }

    /// See [`super::DirectoryCache::lookup`].
    pub(super) fn lookup(&self, name: &[u8]) -> Option<Found> {
        let now = Instant::now();
        let mut state = self.lock();
        state.learned.look_up(now);
        state.lookup(name, now, self.config.names_believed)
    }

    /// The budget has no room for a page any more.
    pub(super) fn evict(&self, start_cookie: u64, issued: u64) {
        let mut state = self.lock();
        if state.pages.get(start_cookie).is_some_and(|page| page.issued == issued) {
            state.pages.remove(start_cookie);
        }
    }

    /// The verifier to go on with from a cookie that is not the reader's last.
    pub(super) fn verifier(&self) -> CookieVerifier {
        self.lock().verifier
    }

    fn drop_pages(&self, state: &mut State, why: &str, go: impl Fn(&Page) -> bool) {
        let dropped = state.pages.remove_if(go);
        self.release(&dropped);
        for page in dropped {
            let len = page.len();
            self.emit(Event::ReaddirInvalidate, page.start_cookie, len, format_args!("why={why}"));
        }
    }

    fn release(&self, pages: &[Arc<Page>]) {
        for page in pages {
            self.config.budget.release(page);
        }
    }

    pub(super) fn emit(&self, event: Event, cookie: u64, len: usize, detail: fmt::Arguments<'_>) {
        let object = Object { fileid: self.fileid, handle: &self.handle };
        self.config.tracer.emit(event, object, cookie, len as u64, detail);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn suits(&self, page: &Page, view: View) -> bool {
        let unchanged =
            page.issued > self.stale_until && page.stamp.is_some() && page.stamp == view.change;
        let new_enough = page.issued > view.opened || unchanged;
        new_enough && (page.plus || !self.learned.wants_plus())
    }

    fn lookup(&mut self, name: &[u8], now: Instant, believed: Duration) -> Option<Found> {
        if matches!(name, b"." | b"..") {
            return None;
        }
        let stale_until = self.changed_names.get(name).copied().unwrap_or_default();
        let stale_until = stale_until.max(self.names_stale_until);
        let likely = self.pages.get(self.next_lookup.0).into_iter();
        let pages = likely.chain(self.pages.values().take(LOOKUP_PAGES_MAX));
        let is_believed = |page: &Page| {
            page.issued > stale_until
                && (page.issued > self.names_doubtful_until
                    || now.saturating_duration_since(page.fetched_at) < believed)
        };
        let (page, at) = pages.filter(|page| page.plus && is_believed(page)).find_map(|page| {
            let likely = match page.start_cookie == self.next_lookup.0 {
                true => self.next_lookup.1,
                false => 0,
            };
            Some((page, page.find_name(name, likely, &self.hasher)?))
        })?;
        let entry = page.entry(at);
        let found = Found {
            handle: entry.handle?,
            attributes: entry.attributes.copied(),
            age: now.saturating_duration_since(page.fetched_at),
        };
        self.next_lookup = match at + 1 < page.len() {
            true => (page.start_cookie, at + 1),
            false => (page.last_cookie(), 0),
        };
        Some(found)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for flying in state.flights.values() {
            flying.task.abort();
        }
        for page in state.pages.values() {
            self.config.budget.release(page);
        }
    }
}

/// Asks, and once more where the server objects to something that the request can do without.
async fn fetch(source: &impl ListingSource, mut request: ListingRequest) -> Result<Fetched> {
    loop {
        match source.list(request).await {
            // The verifier has changed, as it does on some servers with each change of the
            // directory. Their cookies mean what they meant: zeros say that we take our chances.
            Err(error)
                if error.is(Status::BadCookie) && request.verifier != CookieVerifier::default() =>
            {
                request.verifier = CookieVerifier::default();
            }
            // Linux servers can be told to refuse it.
            Err(error) if error.is(Status::Notsupp) && request.plus => request.plus = false,
            Err(error) => return Err(error),
            Ok(listing) => return Ok(Fetched { listing, request }),
        }
    }
}

/// Names that were created, removed or renamed by this client and are remembered one by one.
const CHANGED_NAMES_MAX: usize = 1024;
/// Pages that are searched for a name. Beyond that asking the server is not slower.
const LOOKUP_PAGES_MAX: usize = 256;
