//! The state that the files of one device share: the bound, the queue of files, and the threads.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::WriteBehindCounts;
use super::dirty_runs::Limits;
use super::file::WriteBehindFile;
use super::runs::{Arrival, Pending, Urgency};
use super::window::{Part, Window};
use crate::identity::{self, Identity};
use crate::sync::{Condvar, Mutex, MutexGuard, oneshot, thread};
use crate::time_slice::take_usual_slices;

/// See the module. A file's own lock may be held when this one is taken, never the other way round.
pub(super) struct Shared {
    window: Arc<Window>,
    state: Mutex<State>,
    /// Wakes one sleeping thread when there is work, or earlier work.
    work: Condvar,
    /// Notified when the last thread of a closed device has ended.
    ended: Condvar,
}

/// The lock is held for a few steps in these queues, and while a thread is being started.
struct State {
    /// Bytes in the window; all amounts are those of this device.
    enrolled: u64,
    /// How much of it is in pages that are filled only in part, and wait for the rest.
    edge_bytes: u64,
    /// Bytes of admitted writes that are not enrolled yet.
    reserved: u64,
    /// Files in the window, each with a descriptor.
    files: usize,
    /// Files that admitted writes may add.
    reserved_files: usize,
    /// Served strictly in order, so that a large write is not starved by small ones.
    waiters: VecDeque<Waiter>,
    /// Files with something to do now. They take turns.
    ready: VecDeque<Arc<WriteBehindFile>>,
    /// Files with whole pages to be written at a certain time, or as soon as memory is needed.
    pages: Timers,
    /// Files with nothing to do but to write pages that are filled only in part.
    edges: Timers,
    /// Files with nothing to do but to drop what could not be dropped before.
    retries: Timers,
    threads: usize,
    sleeping: usize,
    /// Everything is due, and threads do not sleep any more but end.
    closed: bool,
    /// It is among the devices that the window is divided among.
    is_active: bool,
}

/// By time, then by the file's address, which distinguishes files of the same time.
type Timers = BTreeMap<(Instant, usize), Arc<WriteBehindFile>>;

struct Waiter {
    bytes: u64,
    grant: oneshot::Sender<Reservation>,
}

/// Where a file stands in the queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere: there is nothing to do.
    #[default]
    Idle,
    /// Among the files for this time, or ready, or just taken by a thread.
    Queued { at: Instant, pending: Pending },
    /// With a thread, which will queue it again.
    Busy,
}

/// A file's share of the window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Booked {
    pub(super) bytes: u64,
    /// How much of it is in pages that are filled only in part.
    pub(super) edge_bytes: u64,
    pub(super) has_descriptor: bool,
}

/// How a file's share of the window changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Change {
    pub(super) before: Booked,
    pub(super) booked: Booked,
    pub(super) arrival: Arrival,
    /// When it has something to do next, and what, if it has.
    pub(super) due: Option<(Instant, Pending)>,
}

/// Space in the window for one write, and for a file that it may add. Given up when dropped.
#[must_use = "the room is given up when this is dropped"]
pub struct Reservation {
    shared: Arc<Shared>,
    bytes: u64,
    files: usize,
}

/// Reservations to be handed over when no lock is held: dropping one whose receiver is gone takes
/// the lock.
#[must_use]
pub(super) struct Grants(Vec<(Waiter, Reservation)>);

impl Reservation {
    /// Moves up to `bytes` of it to another reservation, for another part of the same write.
    pub fn split_off(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { shared: Arc::clone(&self.shared), bytes, files: 0 }
    }
}

impl Shared {
    /// A device without any thread yet.
    pub(super) fn new(window: Arc<Window>) -> Arc<Self> {
        Arc::new(Self {
            window,
            state: Mutex::new(State {
                enrolled: 0,
                edge_bytes: 0,
                reserved: 0,
                files: 0,
                reserved_files: 0,
                waiters: VecDeque::new(),
                ready: VecDeque::new(),
                pages: Timers::new(),
                edges: Timers::new(),
                retries: Timers::new(),
                threads: 0,
                sleeping: 0,
                closed: false,
                is_active: false,
            }),
            work: Condvar::new(),
            ended: Condvar::new(),
        })
    }

    pub(super) fn limits(&self) -> Limits {
        self.window.limits()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.lock().enrolled
    }

    pub(super) fn files(&self) -> usize {
        self.lock().files
    }

    /// The part of a device that is alone in the window.
    pub(super) fn whole_window(&self) -> Part {
        self.window.whole()
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut WriteBehindCounts)) {
        self.window.count(add);
    }

    /// See [`WriteBehindFile::reserve`].
    pub(super) async fn reserve(self: &Arc<Self>, bytes: u64) -> Reservation {
        match self.reserve_or_queue(bytes) {
            Ok(reservation) => reservation,
            Err(mut turn) => (&mut turn.grant).await.expect(TURN_COMES),
        }
    }

    /// See [`WriteBehindFile::reserve_blocking`].
    pub(super) fn reserve_blocking(self: &Arc<Self>, bytes: u64) -> Reservation {
        match self.reserve_or_queue(bytes) {
            Ok(reservation) => reservation,
            Err(turn) => turn.wait(),
        }
    }

    fn reserve_or_queue(self: &Arc<Self>, bytes: u64) -> Result<Reservation, Turn<'_>> {
        if bytes == 0 {
            // A write that brings nothing has nothing to wait for.
            return Ok(self.no_reservation());
        }
        let bytes = self.pages_of(bytes);
        let mut state = self.lock();
        if state.waiters.is_empty() && state.fits(bytes, self.part(&state)) {
            return Ok(self.grant(&mut state, bytes));
        }
        self.count(|counts| counts.throttled += 1);
        self.summon(&mut state);
        if state.threads == 0 {
            // The system refuses threads, so nothing would ever leave the window. Too much in the
            // page cache is what everybody else puts up with.
            return Ok(self.grant(&mut state, bytes));
        }
        let (sender, grant) = oneshot::channel();
        state.waiters.push_back(Waiter { bytes, grant: sender });
        Err(Turn { grant, shared: self })
    }

    /// A reservation of nothing.
    pub(super) fn no_reservation(self: &Arc<Self>) -> Reservation {
        Reservation { shared: Arc::clone(self), bytes: 0, files: 0 }
    }

    /// The most that a write can add to the window: with its ends in pages of their own.
    fn pages_of(&self, bytes: u64) -> u64 {
        let page_bytes = self.limits().page_bytes;
        bytes.div_ceil(page_bytes).saturating_add(1).saturating_mul(page_bytes)
    }

    fn grant(self: &Arc<Self>, state: &mut State, bytes: u64) -> Reservation {
        state.reserved = state.reserved.saturating_add(bytes);
        state.reserved_files += 1;
        self.note_activity(state);
        Reservation { shared: Arc::clone(self), bytes, files: 1 }
    }

    /// Books the outcome of a write or of a step, and puts the file where it belongs.
    pub(super) fn book(
        self: &Arc<Self>,
        file: &Arc<WriteBehindFile>,
        place: &mut Place,
        change: Change,
        reservation: Option<&mut Reservation>,
        now: Instant,
    ) -> Grants {
        let mut state = self.lock();
        let Change { before, booked, .. } = change;
        state.enrolled = state.enrolled + booked.bytes - before.bytes;
        state.edge_bytes = state.edge_bytes + booked.edge_bytes - before.edge_bytes;
        state.files =
            state.files + usize::from(booked.has_descriptor) - usize::from(before.has_descriptor);
        if let Some(reservation) = reservation {
            state.reserved -= std::mem::take(&mut reservation.bytes);
            state.reserved_files -= std::mem::take(&mut reservation.files);
        }
        if change.arrival != Arrival::default() {
            self.count(|counts| {
                counts.out_of_order += u64::from(change.arrival.out_of_order);
                counts.put_in_order += u64::from(change.arrival.put_in_order);
                counts.edges_filled += change.arrival.edges_filled;
            });
        }
        let earlier = state.place(file, place, change.due, now);
        if earlier || self.urgency(&state) != Urgency::Relaxed {
            self.summon(&mut state);
        }
        self.next_grants(&mut state)
    }

    /// Takes a reservation back.
    fn give_back(self: &Arc<Self>, bytes: u64, files: usize) {
        let grants = {
            let mut state = self.lock();
            state.reserved -= bytes;
            state.reserved_files -= files;
            self.next_grants(&mut state)
        };
        grants.deliver();
    }

    /// Reservations for the waiters in front, as far as the window has room.
    fn next_grants(self: &Arc<Self>, state: &mut State) -> Grants {
        let mut grants = Vec::new();
        while let Some(waiter) = state.waiters.pop_front() {
            if waiter.grant.is_closed() {
                continue;
            }
            if !state.fits(waiter.bytes, self.part(state)) {
                state.waiters.push_front(waiter);
                break;
            }
            let reservation = self.grant(state, waiter.bytes);
            grants.push((waiter, reservation));
        }
        self.note_activity(state);
        Grants(grants)
    }

    /// The part of the window that the device may fill now. It shrinks when another one comes; then
    /// writers wait until enough has left. When one goes, the next change here finds it grown.
    fn part(&self, state: &State) -> Part {
        self.window.part(state.is_active)
    }

    /// Takes part in the division of the window while anything is in it.
    fn note_activity(&self, state: &mut State) {
        let is_active = state.taken() > 0 || state.files + state.reserved_files > 0;
        if std::mem::replace(&mut state.is_active, is_active) != is_active {
            self.window.note_activity(is_active);
        }
    }

    /// Removes waiters that gave up, one of which may have held up those behind it.
    fn forget_leavers(self: &Arc<Self>) {
        let grants = {
            let mut state = self.lock();
            state.waiters.retain(|waiter| !waiter.grant.is_closed());
            self.next_grants(&mut state)
        };
        grants.deliver();
    }

    fn urgency(&self, state: &State) -> Urgency {
        let part = self.part(state);
        if state.closed {
            Urgency::Draining
        } else if state.edge_bytes > part.edge_bytes_max()
            || state.files > part.files / 2
            || state.enrolled == state.edge_bytes && !state.waiters.is_empty()
        {
            Urgency::Starved
        } else if part.is_crowded(state.enrolled, state.edge_bytes) || !state.waiters.is_empty() {
            Urgency::Pressed
        } else {
            Urgency::Relaxed
        }
    }

    /// Wakes or starts a thread, if there is one to be had.
    fn summon(self: &Arc<Self>, state: &mut State) {
        if state.sleeping > 0 {
            self.work.notify_one();
        } else if state.threads < self.window.threads_max() {
            let shared = Arc::clone(self);
            let started = thread::Builder::new().name("spillway-wb".into()).spawn(move || {
                let worker = Worker(shared);
                // A thread inherits the identity of the thread that happened to start it.
                identity::assume(&Identity::Server)
                    .expect("a thread can always return to the server's identity");
                take_usual_slices();
                worker.0.work();
            });
            match started {
                Ok(_) => state.threads += 1,
                Err(error) => {
                    tracing::error!(%error, "cannot start a thread for write-back; data stays cached longer");
                }
            }
        }
    }

    /// The main loop of each thread.
    fn work(self: &Arc<Self>) {
        while let Some((file, urgency)) = self.next_file() {
            file.take_step(urgency);
        }
    }

    /// The next file that has something to do; waits for one until the device is closed.
    fn next_file(self: &Arc<Self>) -> Option<(Arc<WriteBehindFile>, Urgency)> {
        let mut state = self.lock();
        loop {
            let (now, urgency) = (Instant::now(), self.urgency(&state));
            if let Some(file) = state.take_file(now, urgency) {
                if !state.ready.is_empty() {
                    // Only one thread may have been summoned for all of these.
                    self.summon(&mut state);
                }
                return Some((file, urgency));
            }
            if state.closed {
                return None;
            }
            state.sleeping += 1;
            state = match state.next_time() {
                Some(at) => {
                    let timeout = at.saturating_duration_since(now);
                    let woken = self.work.wait_timeout(state, timeout);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.sleeping -= 1;
        }
    }

    fn end_thread(self: &Arc<Self>) {
        let mut state = self.lock();
        state.threads -= 1;
        if state.has_files() {
            // They arrived after this thread's last check, while it still seemed available.
            self.summon(&mut state);
        }
        if state.threads == 0 {
            self.ended.notify_all();
        }
    }

    /// Ends the threads when nothing of the device is left in the window.
    pub(super) fn close(self: &Arc<Self>) {
        let mut state = self.lock();
        state.closed = true;
        if state.has_files() {
            self.summon(&mut state);
        }
        self.work.notify_all();
    }

    /// Ends the threads if nothing but they and the caller has a reference to it, one each. So no
    /// file has one, and nothing is in the window.
    pub(super) fn close_if_unused(self: &Arc<Self>) -> bool {
        let is_unused = {
            let state = self.lock();
            Arc::strong_count(self) == 1 + state.threads
        };
        if is_unused {
            self.close();
        }
        is_unused
    }

    /// See [`super::WriteBehind::shutdown`].
    pub(super) fn shutdown(self: &Arc<Self>) {
        self.close();
        self.work();
        let mut state = self.lock();
        while state.threads > 0 {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread's entry in the device, which ends with the thread, also by a panic: a waiter for the
/// end of all threads must not wait forever.
struct Worker(Arc<Shared>);

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.end_thread();
    }
}

impl State {
    fn taken(&self) -> u64 {
        self.enrolled.saturating_add(self.reserved)
    }

    fn fits(&self, bytes: u64, part: Part) -> bool {
        let taken = self.taken();
        let files = self.files + self.reserved_files;
        files < part.files && (taken == 0 || taken.saturating_add(bytes) <= part.bytes)
    }

    /// Puts a file where it belongs. Whether a sleeping thread must know.
    fn place(
        &mut self,
        file: &Arc<WriteBehindFile>,
        place: &mut Place,
        due: Option<(Instant, Pending)>,
        now: Instant,
    ) -> bool {
        let Some((at, pending)) = due else { return false };
        match *place {
            Place::Busy => return false,
            Place::Queued { at: queued, pending: same } if queued <= at && same == pending => {
                return false;
            }
            Place::Queued { at: queued, pending } => {
                let key = (queued, Arc::as_ptr(file).addr());
                // Where it is not found, a thread is about to take it.
                if self.timers_of(pending).remove(&key).is_none() {
                    return false;
                }
            }
            Place::Idle => {}
        }
        *place = Place::Queued { at, pending };
        if at <= now {
            self.ready.push_back(Arc::clone(file));
            return true;
        }
        let earliest = self.next_time();
        let key = (at, Arc::as_ptr(file).addr());
        self.timers_of(pending).insert(key, Arc::clone(file));
        earliest.is_none_or(|earliest| at < earliest)
    }

    fn timers_of(&mut self, pending: Pending) -> &mut Timers {
        match pending {
            Pending::Pages => &mut self.pages,
            Pending::Edges => &mut self.edges,
            Pending::Retries => &mut self.retries,
        }
    }

    /// A file whose time has come; if there is need, one whose time has not.
    fn take_file(&mut self, now: Instant, urgency: Urgency) -> Option<Arc<WriteBehindFile>> {
        for timers in [&mut self.pages, &mut self.edges, &mut self.retries] {
            while let Some(first) = timers.first_entry().filter(|first| first.key().0 <= now) {
                self.ready.push_back(first.remove());
            }
        }
        let ready = self.ready.pop_front();
        let hurried = |timers: &mut Timers| timers.pop_first().map(|(_, file)| file);
        // A file is hurried only if the urgency gives it something to do.
        match urgency {
            Urgency::Relaxed => ready,
            Urgency::Pressed => ready.or_else(|| hurried(&mut self.pages)),
            Urgency::Starved => {
                ready.or_else(|| hurried(&mut self.edges)).or_else(|| hurried(&mut self.pages))
            }
            Urgency::Draining => ready
                .or_else(|| hurried(&mut self.pages))
                .or_else(|| hurried(&mut self.edges))
                .or_else(|| hurried(&mut self.retries)),
        }
    }

    /// When a file that is not ready has something to do.
    fn next_time(&self) -> Option<Instant> {
        let first = |timers: &Timers| timers.keys().next().map(|key| key.0);
        [&self.pages, &self.edges, &self.retries].into_iter().filter_map(first).min()
    }

    fn has_files(&self) -> bool {
        !self.ready.is_empty() || self.next_time().is_some()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 || self.files > 0 {
            self.shared.give_back(self.bytes, self.files);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Grants {
    pub(super) fn deliver(self) {
        for (waiter, reservation) in self.0 {
            drop(waiter.grant.send(reservation));
        }
    }
}

/// A place in the queue, whose early leaving must wake those behind it. (A reservation granted in
/// the meantime is dropped with the receiver, and so given back.)
struct Turn<'a> {
    grant: oneshot::Receiver<Reservation>,
    shared: &'a Arc<Shared>,
}

impl Turn<'_> {
    fn wait(mut self) -> Reservation {
        // The receiver can only be waited on by value; an empty, closed one takes its place.
        let (_, closed) = oneshot::channel();
        std::mem::replace(&mut self.grant, closed).blocking_recv().expect(TURN_COMES)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.grant.is_terminated() {
            self.grant.close();
            self.shared.forget_leavers();
        }
    }
}

const TURN_COMES: &str = "a waiter leaves the queue with a reservation or by being dropped";
