//! The cached pages of one directory and the calls that fetch them, shared by its readers.

use std::collections::HashMap;
use std::fmt;
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
use super::validity::{Believed, Validity, View};
use super::{Found, ListingConfig, SAMPLE_BYTES};
use crate::cache::change::Change;
use crate::error::{Error, Result};
use crate::nfs3::{Listing, leave_out_rejected};
use crate::trace::{Event, Object};

/// The cached entries of one directory. Takes little memory until the directory is listed.
pub(crate) struct DirectoryCache {
    pub(super) config: Arc<ListingConfig>,
    fileid: u64,
    handle: FileHandle,
    /// For the tasks of calls, which end when the directory is dropped.
    this: Weak<Self>,
    contents: Mutex<Contents>,
}

/// Locked for a few steps, never over a call. The budget's lock is taken under it.
struct Contents {
    validity: Validity,
    pages: Pages,
    /// By cookie, and whether attributes are asked for.
    calls: HashMap<(u64, bool), CallInFlight>,
    /// The cookie verifier of the latest reply.
    verifier: CookieVerifier,
    learned: Learned,
    /// Open readers.
    readers: usize,
    /// Open readers that have begun to read.
    reading: usize,
}

/// A call that awaits its reply.
struct CallInFlight {
    issued: u64,
    outcome: Outcome,
    task: AbortHandle,
}

/// The page that a call has fetched, once there is a reply.
type Outcome = watch::Receiver<Option<Result<Arc<Page>>>>;

/// Where a reader continues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) cookie: u64,
    /// The verifier that came with the cookie.
    pub(super) verifier: CookieVerifier,
    /// Whether the reader comes from another position, by `seekdir`.
    pub(super) sought: bool,
}

/// A page, cached or being fetched.
#[derive(Debug)]
pub(super) enum Obtained {
    /// The page, and the index of the first entry to return.
    Page(Arc<Page>, usize),
    Pending(PendingPage),
}

/// A page that a call in flight fetches.
#[derive(Debug)]
pub(super) struct PendingPage {
    outcome: Outcome,
    /// Whether this reader has sent the call.
    pub(super) own: bool,
}

impl PendingPage {
    /// Waits for the page. Dropping the future does not cancel the call.
    pub(super) async fn wait(mut self) -> Result<Arc<Page>> {
        match self.outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().expect("`wait_for` has seen it"),
            // The task was dropped: the runtime shuts down.
            Err(_) => Err(Error::Refused(rustix::io::Errno::INTR)),
        }
    }

    /// Whether the call has failed.
    pub(super) fn has_failed(&self) -> bool {
        match *self.outcome.borrow() {
            Some(ref outcome) => outcome.is_err(),
            None => self.outcome.has_changed().is_err(),
        }
    }
}

/// A reply.
struct Fetched {
    listing: Listing,
    /// The request that was answered, after retries.
    request: ListingRequest,
    sent_at: Instant,
}

impl DirectoryCache {
    /// The empty cache of the directory with this file id and handle, which trace events name.
    #[must_use]
    pub(crate) fn new(config: &Arc<ListingConfig>, fileid: u64, handle: FileHandle) -> Arc<Self> {
        let contents = Contents {
            validity: Validity::default(),
            pages: Pages::default(),
            calls: HashMap::new(),
            verifier: CookieVerifier::default(),
            learned: Learned::new(config.readdirplus),
            readers: 0,
            reading: 0,
        };
        Arc::new_cyclic(|this| Self {
            config: Arc::clone(config),
            fileid,
            handle,
            this: Weak::clone(this),
            contents: Mutex::new(contents),
        })
    }

    /// The handle of `name` from a READDIRPLUS reply, unless it may refer to another file by now:
    /// the directory has not changed during the call or since, or the call is younger than
    /// [`ListingConfig::unstamped_believed`] or [`ListingConfig::names_believed`], and this client
    /// has not changed the name. The caller revalidates the directory's attributes as often as they
    /// expire.
    ///
    /// If several entries are looked up during a listing or soon after, found or not, the directory
    /// is listed by READDIRPLUS.
    #[must_use]
    pub(crate) fn lookup(&self, name: &[u8]) -> Option<Found> {
        let now = Instant::now();
        let mut contents = self.lock();
        contents.learned.look_up(now);
        self.find(&mut contents, name, now)
    }

    /// Whether [`lookup`](Self::lookup) would find the name. Does not count as a lookup.
    pub(crate) fn has_handle(&self, name: &[u8]) -> bool {
        self.find(&mut self.lock(), name, Instant::now()).is_some()
    }

    /// How long [`lookup`](Self::lookup) would find `name` with this handle; zero if it does not.
    /// Does not count as a lookup.
    pub(crate) fn ttl(&self, name: &[u8], handle: FileHandle) -> Duration {
        let found = self.find(&mut self.lock(), name, Instant::now());
        found.filter(|found| found.handle == handle).map_or(Duration::ZERO, |found| found.ttl)
    }

    fn find(&self, contents: &mut Contents, name: &[u8], now: Instant) -> Option<Found> {
        if matches!(name, b"." | b"..") {
            return None;
        }
        let Contents { validity, pages, .. } = contents;
        let ttl = validity.handle_ttl(name, now, self.believed());
        let (page, at) = pages.find_name(name, |page| page.plus && !ttl(page).is_zero())?;
        let entry = page.entry(at);
        Some(Found {
            handle: entry.handle?,
            attributes: entry.attributes.copied(),
            sent_at: page.sent_at.into_std(),
            ttl: ttl(page),
        })
    }

    /// How long the handle of `name` in a page may be used, as by [`lookup`](Self::lookup).
    pub(super) fn handle_ttl(&self, page: &Page, name: &[u8]) -> Duration {
        let now = Instant::now();
        self.lock().validity.handle_ttl(name, now, self.believed())(page)
    }

    fn believed(&self) -> Believed {
        let ListingConfig { names_believed, unstamped_believed, .. } = *self.config;
        Believed { after_change: names_believed, unstamped: unstamped_believed }
    }

    /// Notes that this client has created, removed, replaced or renamed `name`. `after` is the
    /// change stamp after that, or `None` if another client changed the directory too;
    /// [`invalidate`](Self::invalidate) reports that.
    pub(crate) fn note_own_change(&self, name: &[u8], after: Option<Change>) {
        self.lock().validity.note_own_change(name, after);
    }

    /// Invalidates the cached entries, because another client has changed the directory. Open
    /// readers go on.
    pub(crate) fn invalidate(&self, why: &str) {
        let mut contents = self.lock();
        contents.validity.invalidate();
        if contents.readers == 0 {
            self.drop_pages(&mut contents, why, |_| true);
        } else {
            self.emit(Event::ReaddirInvalidate, 0, 0, format_args!("why={why}"));
        }
    }

    /// Counts a new reader, of the directory with the change stamp `current`.
    pub(super) fn add_reader(&self, current: Option<Change>) -> View {
        let mut contents = self.lock();
        contents.readers += 1;
        self.emit(Event::Opendir, 0, 0, format_args!(""));
        self.view(&mut contents, current)
    }

    /// The view of a reader that is rewound, of the directory with the change stamp `current`.
    pub(super) fn rewind(&self, current: Option<Change>) -> View {
        self.emit(Event::LlseekDir, 0, 0, format_args!(""));
        self.view(&mut self.lock(), current)
    }

    fn view(&self, contents: &mut Contents, current: Option<Change>) -> View {
        let (view, is_changed) = contents.validity.view(current);
        if is_changed {
            self.emit(Event::ReaddirInvalidate, 0, 0, format_args!("why=changed"));
        }
        view
    }

    /// Counts off a reader. The last one leaves only pages that can be of use again.
    pub(super) fn remove_reader(&self, had_begun: bool) {
        self.emit(Event::Closedir, 0, 0, format_args!(""));
        let mut contents = self.lock();
        contents.readers -= 1;
        contents.reading -= usize::from(had_begun);
        if contents.readers == 0 {
            let Contents { pages, validity, .. } = &mut *contents;
            self.release(&pages.remove_if(|page| !validity.is_reusable(page)));
        }
    }

    /// Notes that a reader asks for the first entries; `begun` is whether it did so before.
    pub(super) fn begin(&self, begun: bool) {
        let mut contents = self.lock();
        contents.reading += usize::from(!begun);
        if contents.reading == 1 {
            contents.learned.begin();
        }
    }

    /// Notes that entries of `page` are returned to a reader. Returns whether the reader can go on
    /// in this page: not if attributes have turned out to be needed, and the page has none.
    pub(super) fn may_go_on(&self, page: &Page) -> bool {
        let mut contents = self.lock();
        contents.learned.hand_out(Instant::now());
        page.plus || !contents.learned.wants_plus()
    }

    /// Whether a reader may be shown `page`.
    pub(super) fn suits(&self, page: &Page, view: View) -> bool {
        self.lock().suits(page, view)
    }

    /// The page with the entries behind `position`, from the cache or by a call.
    pub(super) fn obtain(
        &self,
        source: &impl ListingSource,
        position: Position,
        view: View,
    ) -> Obtained {
        let mut contents = self.lock();
        let Position { cookie, verifier, sought } = position;
        let found = contents.pages.find(cookie, sought, |page| contents.suits(page, view));
        if let Some((page, first)) = found {
            self.config.budget.touch(page);
            self.emit(Event::ReaddirCacheHit, page.start_cookie, page.len(), format_args!(""));
            return Obtained::Page(Arc::clone(page), first);
        }
        let samples = contents.learned.samples(cookie);
        let plus = samples || contents.learned.wants_plus();
        let with_attributes = contents.calls.get(&(cookie, true));
        let without = || contents.calls.get(&(cookie, false)).filter(|_| !plus);
        if let Some(call) = with_attributes.or_else(without) {
            return Obtained::Pending(PendingPage { outcome: call.outcome.clone(), own: false });
        }
        let bytes_max = self.config.reply_bytes;
        let request = ListingRequest {
            cookie,
            // RFC 1813 §3.3.16: zero with the first request.
            verifier: if cookie == 0 { CookieVerifier::default() } else { verifier },
            plus,
            bytes_max: if samples { bytes_max.min(SAMPLE_BYTES) } else { bytes_max },
        };
        let outcome = self.send(&mut contents, source.clone(), request);
        Obtained::Pending(PendingPage { outcome, own: true })
    }

    /// Sends a call, as a task that other readers can wait for too.
    fn send<S: ListingSource>(
        &self,
        contents: &mut Contents,
        source: S,
        request: ListingRequest,
    ) -> Outcome {
        let ListingRequest { cookie, plus, bytes_max, .. } = request;
        let detail = format_args!("plus={}", u8::from(plus));
        self.emit(Event::ReaddirCall, cookie, bytes_max as usize, detail);
        let issued = contents.validity.tick();
        let before = contents.validity.stamp();
        let (sender, outcome) = watch::channel(None);
        let this = Weak::clone(&self.this);
        let task = tokio::spawn(async move {
            let note = |stamp| {
                if let Some(this) = this.upgrade() {
                    this.note_reply(stamp, issued);
                }
            };
            let fetched = fetch(&source, request, note).await;
            if let Some(this) = this.upgrade() {
                sender.send_replace(Some(this.complete((cookie, plus), issued, before, fetched)));
            }
        });
        let task = task.abort_handle();
        let call = CallInFlight { issued, outcome: outcome.clone(), task };
        contents.calls.insert((cookie, plus), call);
        outcome
    }

    /// Notes the change stamp in the reply to a call. The handles in its page are as recent as
    /// those of a LOOKUP sent at the same time.
    fn note_reply(&self, stamp: Change, issued: u64) {
        if self.lock().validity.note_stamp(stamp, issued - 1) {
            self.emit(Event::ReaddirInvalidate, 0, 0, format_args!("why=changed"));
        }
    }

    /// Caches the page from the reply to a call. `before` is the change stamp as it was known when
    /// the call was sent.
    fn complete(
        &self,
        key: (u64, bool),
        issued: u64,
        before: Option<Change>,
        fetched: Result<Fetched>,
    ) -> Result<Arc<Page>> {
        let page = fetched.and_then(|fetched| {
            // A server reads the entries first and the attributes afterwards: the change stamp is
            // that of the entries only if it is the same before and after the call.
            let after = fetched.listing.dir_attributes.as_ref().map(Change::from);
            let provenance = Provenance {
                start_cookie: key.0,
                plus: fetched.request.plus,
                stamp: after.filter(|after| before == Some(*after)),
                issued,
                sent_at: fetched.sent_at,
            };
            Ok(Arc::new(Page::new(&fetched.listing, provenance)?))
        });
        let mut contents = self.lock();
        if contents.calls.get(&key).is_some_and(|call| call.issued == issued) {
            contents.calls.remove(&key);
        }
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                self.emit(Event::ReaddirReply, key.0, 0, format_args!("error={error}"));
                if error.is(Status::BadCookie) {
                    self.drop_pages(&mut contents, "bad_cookie", |_| true);
                }
                return Err(error);
            }
        };
        let eof = u8::from(page.eof);
        self.emit(Event::ReaddirReply, key.0, page.len(), format_args!("eof={eof}"));
        if key.1 && !page.plus {
            contents.learned.refuse();
        }
        if page.verifier != contents.verifier {
            contents.verifier = page.verifier;
            self.drop_pages(&mut contents, "verifier", |other| other.verifier != page.verifier);
        }
        self.release(&contents.pages.insert(&page));
        let kept = contents.pages.get(key.0).is_some_and(|kept| Arc::ptr_eq(kept, &page));
        let evicted = match kept {
            true => self.config.budget.admit(&page, &self.this),
            false => Vec::new(),
        };
        drop(contents);
        for page in evicted {
            page.evict();
        }
        Ok(page)
    }

    /// Removes a page for which the budget has no room.
    pub(super) fn evict(&self, start_cookie: u64, issued: u64) {
        let mut contents = self.lock();
        if contents.pages.get(start_cookie).is_some_and(|page| page.issued == issued) {
            contents.pages.remove(start_cookie);
        }
    }

    /// The cookie verifier for a reader that seeks.
    pub(super) fn verifier(&self) -> CookieVerifier {
        self.lock().verifier
    }

    fn drop_pages(&self, contents: &mut Contents, why: &str, go: impl Fn(&Page) -> bool) {
        let dropped = contents.pages.remove_if(go);
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

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contents {
    fn suits(&self, page: &Page, view: View) -> bool {
        self.validity.suits(page, view) && (page.plus || !self.learned.wants_plus())
    }
}

impl Drop for DirectoryCache {
    fn drop(&mut self) {
        let contents = self.contents.get_mut().unwrap_or_else(PoisonError::into_inner);
        for call in contents.calls.values() {
            call.task.abort();
        }
        for page in contents.pages.values() {
            self.config.budget.release(page);
        }
    }
}

impl fmt::Debug for DirectoryCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryCache").finish_non_exhaustive()
    }
}

/// Makes the call, and retries once without what the server rejects. `note` gets the change stamp
/// in the reply.
async fn fetch(
    source: &impl ListingSource,
    mut request: ListingRequest,
    note: impl Fn(Change) + Send + Sync,
) -> Result<Fetched> {
    loop {
        let sent_at = Instant::now();
        match source.list(request, &note).await {
            Err(error) if leave_out_rejected(&error, &mut request.verifier, &mut request.plus) => {}
            Err(error) => return Err(error),
            Ok(listing) => return Ok(Fetched { listing, request, sent_at }),
        }
    }
}
