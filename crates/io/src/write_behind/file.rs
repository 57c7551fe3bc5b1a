//! One file in the window: what its writers call, and the steps that a thread takes for it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use rustix::io::Errno;

use super::pages::{self, Method};
use super::runs::{Action, Arrival, Runs, Step, Urgency, bytes_of};
use super::shared::{Change, Grants, Place, Room, Shared};
use crate::byte_range::ByteRange;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The window's view of one file; see [`WriteBehind::file`](super::WriteBehind::file).
pub struct WriteBehindFile {
    shared: Arc<Shared>,
    state: Mutex<FileState>,
    /// Told when a wait for the disk is over.
    waited: Condvar,
}

/// The lock is never held over a system call.
struct FileState {
    runs: Runs,
    /// What the window has booked for the runs.
    booked: u64,
    /// The descriptor of the latest write, while anything is in the window.
    fd: Option<Arc<OwnedFd>>,
    /// How to write back; unknown before the first write.
    method: Option<Method>,
    place: Place,
    /// A thread waits for the disk, and with its answer consumes the error that the kernel keeps.
    waiting: bool,
    /// How many such waits are over.
    waits: u64,
    error: Option<Errno>,
}

/// A write that is about to happen. Dropped without [`enroll`](Self::enroll), it has not happened.
#[must_use = "written data leaves the page cache only if it is enrolled"]
pub struct WriteIntent {
    file: Arc<WriteBehindFile>,
    range: ByteRange,
    room: Room,
    is_announced: bool,
}

impl WriteBehindFile {
    pub(super) fn new(shared: Arc<Shared>) -> Arc<Self> {
        let runs = Runs::new(shared.limits());
        let state = FileState {
            runs,
            booked: 0,
            fd: None,
            method: None,
            place: Place::default(),
            waiting: false,
            waits: 0,
            error: None,
        };
        Arc::new(Self { shared, state: Mutex::new(state), waited: Condvar::new() })
    }

    /// To be called before `range` is written through the page cache, with the room for it. Asks
    /// which of its pages are cached already: they will be written back, and stay.
    ///
    /// One system call, if all or none are; none for pages that are in the window.
    pub fn before_write(
        self: &Arc<Self>,
        fd: BorrowedFd<'_>,
        range: ByteRange,
        room: Room,
    ) -> WriteIntent {
        let (foreign, known) = {
            let mut state = self.lock();
            (state.runs.announce(range), state.method.is_some())
        };
        let method = (!known).then(|| Method::of(fd));
        // Between the two, another write of a shared page may come and go; then the page stays
        // cached for good. That is rare, and the harmless one of the two mistakes.
        let mut resident = Vec::new();
        for pages in foreign.into_iter().filter(|pages| !pages.is_empty()) {
            match pages::resident_parts(fd, pages) {
                Some(parts) => resident.extend(parts),
                None => resident.push(pages),
            }
        }
        if method.is_some() || !resident.is_empty() {
            let mut state = self.lock();
            state.method = state.method.or(method);
            resident.into_iter().for_each(|pages| state.runs.keep(pages));
        }
        WriteIntent { file: Arc::clone(self), range, room, is_announced: true }
    }

    /// The file has been cut or extended to `new_len` bytes: what was written past it needs no disk.
    pub fn truncated(self: &Arc<Self>, new_len: u64) {
        let mut state = self.lock();
        state.runs.truncate(new_len);
        let grants = self.book(&mut state, Arrival::default(), None);
        drop(state);
        grants.deliver();
    }

    /// The first error of a background write-back since the last call. If one is under way it is
    /// waited for, so this may block for as long as the disk takes for some MiB.
    ///
    /// Waiting for write-back consumes the error that the kernel keeps for each open file. So an
    /// `fsync` of a descriptor that was enrolled proves nothing by itself; together with this call,
    /// made after it, it does.
    #[must_use]
    pub fn take_error(&self) -> Option<io::Error> {
        let mut state = self.lock();
        let waits = state.waits;
        while state.waiting && state.waits == waits {
            state = self.waited.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.take().map(io::Error::from)
    }

    /// Whether the window holds nothing of the file: no bytes and no descriptor. There may be an
    /// error to be taken.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.runs.is_empty() && state.place != Place::Busy
    }

    /// Takes the next step, on a thread of the window.
    pub(super) fn take_step(self: &Arc<Self>, urgency: Urgency) {
        let (step, fd, method) = {
            let mut state = self.lock();
            state.place = Place::Busy;
            let Some(step) = state.runs.next(Instant::now(), urgency) else {
                let grants = self.queue_again(&mut state);
                drop(state);
                return grants.deliver();
            };
            state.waiting = step.action == Action::Finish;
            let fd = state.fd.clone().expect("a file in the window has a descriptor");
            (step, fd, state.method.unwrap_or(Method::Ranges))
        };
        match step.action {
            Action::Start => self.start(&fd, method, &step),
            Action::Finish if self.wait(&fd, method, &step) => self.drop_pages(&fd),
            Action::Finish => {}
            Action::Retry => self.drop_pages(&fd),
        }
    }

    fn start(self: &Arc<Self>, fd: &OwnedFd, method: Method, step: &Step) {
        let possible = match method {
            Method::Ranges => step.ranges.iter().all(|&range| pages::start(fd.as_fd(), range)),
            Method::WholeFile | Method::Nothing => true,
        };
        self.shared.count(|counts| {
            counts.runs += step.ranges.len() as u64;
            counts.bytes_written_back += bytes_of(&step.ranges);
        });
        let mut state = self.lock();
        if !possible {
            state.method = Some(Method::WholeFile);
        }
        state.runs.began(Instant::now());
        let grants = self.queue_again(&mut state);
        drop(state);
        grants.deliver();
    }

    /// Waits until the batch at work is clean; whether it is. If not, the step is over.
    fn wait(self: &Arc<Self>, fd: &OwnedFd, method: Method, step: &Step) -> bool {
        let outcome = match method {
            Method::Ranges => finish_all(fd.as_fd(), &step.ranges),
            Method::WholeFile => pages::finish_file(fd.as_fd()),
            Method::Nothing => Ok(false),
        };
        let mut state = self.lock();
        state.waiting = false;
        state.waits += 1;
        self.waited.notify_all();
        match outcome {
            Ok(true) => return true,
            Ok(false) => {
                let forgotten = bytes_of(&step.ranges);
                self.shared.count(|counts| counts.bytes_forgotten += forgotten);
                state.method = Some(Method::Nothing);
            }
            Err(error) => {
                tracing::warn!(%error, "write-back failed");
                state.error.get_or_insert(error);
                self.shared.count(|counts| counts.errors += 1);
            }
        }
        // What could not be written stays cached: a reader finds what the writer wrote, until the
        // writer is told.
        state.runs.finished(Vec::new(), Instant::now());
        let grants = self.queue_again(&mut state);
        drop(state);
        grants.deliver();
        false
    }

    /// Drops the batch at work, which is clean.
    fn drop_pages(self: &Arc<Self>, fd: &OwnedFd) {
        let droppable = self.lock().runs.droppable();
        let drop_range = |&range: &ByteRange| pages::drop_pages(fd.as_fd(), range);
        let left: Vec<_> = droppable.ranges.iter().flat_map(drop_range).collect();
        let dropped = bytes_of(&droppable.ranges).saturating_sub(bytes_of(&left));
        let mut state = self.lock();
        let stuck = state.runs.finished(left, Instant::now());
        self.shared.count(|counts| {
            counts.bytes_dropped += dropped;
            counts.bytes_kept += droppable.kept_bytes;
            counts.bytes_stuck += stuck;
        });
        let grants = self.queue_again(&mut state);
        drop(state);
        grants.deliver();
    }

    /// Ends a step.
    fn queue_again(self: &Arc<Self>, state: &mut FileState) -> Grants {
        state.place = Place::Idle;
        self.book(state, Arrival::default(), None)
    }

    fn book(
        self: &Arc<Self>,
        state: &mut FileState,
        arrival: Arrival,
        room: Option<&mut Room>,
    ) -> Grants {
        if state.runs.is_empty() {
            state.fd = None;
        }
        let now = Instant::now();
        let due = state.runs.due(now).map(|at| (at, !state.runs.needs_writing()));
        let booked_before = std::mem::replace(&mut state.booked, state.runs.charged());
        let change = Change { booked_before, booked: state.booked, arrival, due };
        self.shared.book(self, &mut state.place, change, room, now)
    }

    fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for all of the ranges, also after an error: each may have one.
fn finish_all(fd: BorrowedFd<'_>, ranges: &[ByteRange]) -> Result<bool, Errno> {
    let mut all = Ok(true);
    for &range in ranges {
        match pages::finish(fd, range) {
            Ok(true) => {}
            Ok(false) => all = all.map(|_| false),
            Err(error) => all = all.and(Err(error)),
        }
    }
    all
}

impl WriteIntent {
    /// Tells the window that `written`, all of the intended range or its beginning, is in the page
    /// cache. `fd` is kept until it is clean: about as long as data stays in the window.
    pub fn enroll(mut self, fd: &Arc<OwnedFd>, written: ByteRange) {
        let file = Arc::clone(&self.file);
        let mut state = file.lock();
        if written.is_empty() || state.method == Some(Method::Nothing) {
            return;
        }
        let arrival = state.runs.insert(written, Instant::now());
        // At once: pages that are announced are not dropped, and these might be written back and be
        // done with before this thread comes back.
        state.runs.withdraw(self.range);
        self.is_announced = false;
        if state.fd.as_ref().is_none_or(|current| !Arc::ptr_eq(current, fd)) {
            state.fd = Some(Arc::clone(fd));
        }
        let grants = file.book(&mut state, arrival, Some(&mut self.room));
        drop(state);
        grants.deliver();
    }
}

impl Drop for WriteIntent {
    fn drop(&mut self) {
        if self.is_announced {
            self.file.lock().runs.withdraw(self.range);
        }
    }
}

impl fmt::Debug for WriteBehindFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("WriteBehindFile")
            .field("bytes", &state.runs.charged())
            .field("place", &state.place)
            .field("error", &state.error)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WriteIntent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteIntent")
            .field("range", &self.range)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}
