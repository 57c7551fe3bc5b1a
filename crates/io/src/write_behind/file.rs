//! One file in the window: what its writers call, and the steps that a thread takes for it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use rustix::io::Errno;

use super::pages::{self, Method};
use super::runs::{Action, Arrival, Runs, Step, Urgency, bytes_of};
use super::shared::{Booked, Change, Grants, Place, Reservation, Shared};
use crate::byte_range::ByteRange;
use crate::data_file::{DataError, WriteError, write_parts_at};
use crate::descriptor_path::path_of;
use crate::direct::split_off;
use crate::engine::rouse_owed;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The window's view of one file; see [`WriteBehind::file`](super::WriteBehind::file).
pub struct WriteBehindFile {
    shared: Arc<Shared>,
    state: Mutex<FileState>,
    /// Notified when a wait for the disk is over, and when a step is.
    waited: Condvar,
}

/// The lock is never held over a system call.
struct FileState {
    runs: Runs,
    /// The file's share of the window, as of the latest booking.
    booked: Booked,
    /// The descriptor of the latest write, while anything is in the window.
    fd: Option<Arc<OwnedFd>>,
    /// How to write back; unknown before the first write.
    method: Option<Method>,
    place: Place,
    /// A thread begins a write-back or waits for one. Its error is not in `error` yet, and the
    /// kernel may not report it again.
    is_at_disk: bool,
    /// How often a thread has returned from that.
    returns: u64,
    /// Flushes under way, each of which may take an error of the window's descriptor.
    flushes: u64,
    error: Option<Errno>,
    /// Nothing enters any more.
    released: bool,
}

/// A write that is about to happen. Dropped without [`enroll`](Self::enroll), it has not happened.
#[must_use = "written data leaves the page cache only if it is enrolled"]
pub struct WriteIntent {
    file: Arc<WriteBehindFile>,
    range: ByteRange,
    reservation: Reservation,
    is_announced: bool,
    /// The end of the first page, if that is filled only in part and was not cached before.
    cut: Option<u64>,
}

impl WriteBehindFile {
    pub(super) fn new(shared: Arc<Shared>) -> Arc<Self> {
        let runs = Runs::new(shared.limits());
        let state = FileState {
            runs,
            booked: Booked::default(),
            fd: None,
            method: None,
            place: Place::default(),
            is_at_disk: false,
            returns: 0,
            flushes: 0,
            error: None,
            released: false,
        };
        Arc::new(Self { shared, state: Mutex::new(state), waited: Condvar::new() })
    }

    /// Reserves room for a write of so many bytes. Waits while the device has filled its part of
    /// the window, first come first served. A write larger than that is admitted when the device
    /// has nothing in the window.
    ///
    /// Dropping the future gives up the place in the queue without other effect.
    pub async fn reserve(&self, bytes: u64) -> Reservation {
        self.shared.reserve(bytes).await
    }

    /// As [`reserve`](Self::reserve), for a thread that may block.
    ///
    /// # Panics
    /// Within an asynchronous task.
    pub fn reserve_blocking(&self, bytes: u64) -> Reservation {
        self.shared.reserve_blocking(bytes)
    }

    /// To be called before `range` is written through the page cache, with its reservation. Asks
    /// which of its pages are cached already: they will be written back, and stay.
    ///
    /// One system call, if all or none are; none for pages that are in the window.
    pub fn before_write(
        self: &Arc<Self>,
        fd: BorrowedFd<'_>,
        range: ByteRange,
        reservation: Reservation,
    ) -> WriteIntent {
        let (foreign, known) = {
            let mut state = self.lock();
            (state.runs.announce(range), state.method.is_some())
        };
        let method = (!known).then(|| Method::of(fd));
        // Between the two, another write of a shared page may come and go; then the page stays
        // cached for good. That is rare, and the harmless one of the two mistakes.
        let mut resident = Vec::new();
        for &pages in foreign.iter().filter(|pages| !pages.is_empty()) {
            match pages::resident_parts(fd, pages) {
                Some(parts) => resident.extend(parts),
                None => resident.push(pages),
            }
        }
        let cut = self.cut(range, &foreign, &resident);
        if method.is_some() || !resident.is_empty() {
            let mut state = self.lock();
            state.method = state.method.or(method);
            resident.into_iter().for_each(|pages| state.runs.keep(pages));
        }
        WriteIntent { file: Arc::clone(self), range, reservation, is_announced: true, cut }
    }

    /// Enrolls `written`, which went through the page cache in place of a direct write: that would
    /// have left no page there, so none stays. All else as [`WriteIntent::enroll`].
    ///
    /// Exceeds the bound of the window while such writes follow each other. Room cannot be waited
    /// for: those who have it may wait for this thread, and the pages are dirty already.
    pub fn enroll_undirected(self: &Arc<Self>, fd: &Arc<OwnedFd>, written: ByteRange) {
        let (file, reservation) = (Arc::clone(self), self.shared.no_reservation());
        let intent =
            WriteIntent { file, range: written, reservation, is_announced: false, cut: None };
        intent.enroll(fd, written);
    }

    /// See [`WriteIntent`]. `foreign` are the pages that are not in the window, `resident` those of
    /// them that are cached.
    fn cut(&self, range: ByteRange, foreign: &[ByteRange], resident: &[ByteRange]) -> Option<u64> {
        let page_bytes = self.shared.limits().page_bytes;
        let cut = range.offset().next_multiple_of(page_bytes);
        if cut == range.offset() || cut >= range.end() {
            return None;
        }
        let first = ByteRange::between(range.offset(), cut).widened_to(page_bytes);
        let is_in = |pages: &[ByteRange]| pages.iter().any(|pages| pages.overlaps(first));
        (is_in(foreign) && !is_in(resident)).then_some(cut)
    }

    /// The file has been cut or extended to `new_len` bytes: what was written past it needs no
    /// disk.
    pub fn truncated(self: &Arc<Self>, new_len: u64) {
        let mut state = self.lock();
        state.runs.truncate(new_len);
        let grants = self.book(&mut state, Arrival::default(), None);
        drop(state);
        grants.deliver();
    }

    /// No write of the file is expected: its pages leave soon, also those that are filled only in
    /// part, and with them the descriptor. Does not block.
    pub fn close(self: &Arc<Self>) {
        let mut state = self.lock();
        state.runs.close();
        let grants = self.book(&mut state, Arrival::default(), None);
        drop(state);
        grants.deliver();
    }

    /// The file has lost its last name: what was written to it needs no disk, and nothing of it
    /// enters the window again. When this returns the window has no descriptor of the file. A step
    /// under way is waited for, so this may block for as long as the disk takes for some MiB.
    pub fn release(self: &Arc<Self>) {
        let mut state = self.lock();
        state.released = true;
        state.runs.truncate(0);
        let grants = self.book(&mut state, Arrival::default(), None);
        drop(state);
        grants.deliver();
        // The caller closes the file next, which frees its blocks.
        rouse_owed();
        let mut state = self.lock();
        while state.place == Place::Busy {
            state = self.wait_for_step(state);
        }
    }

    /// Runs `sync`, an `fsync` of the file, and takes the error that the window has met.
    ///
    /// The kernel reports an error once for each open file description, and not of which pages. So
    /// what is finished while `sync` runs leaves the page cache only when that has succeeded; after
    /// an error nothing does that is in the window by then. Writers are not held up.
    ///
    /// # Errors
    /// That of `sync`; that of [`take_error`](Self::take_error). Both are reported by this call.
    pub fn flush(
        self: &Arc<Self>,
        sync: impl FnOnce() -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        self.lock().flushes += 1;
        let flushed = sync();
        let mut state = self.lock();
        if flushed.is_err() {
            state.runs.keep_all();
        }
        state.flushes -= 1;
        if state.flushes == 0 {
            state.runs.flush_ended(Instant::now());
        }
        let grants = self.book(&mut state, Arrival::default(), None);
        drop(state);
        grants.deliver();
        // Also after an error, or the next flush would fail for one that is reported now.
        let written_behind = self.take_error();
        flushed?;
        written_behind.map_or(Ok(()), Err)
    }

    /// The first error of a background write-back since the last call. If a thread begins one, or
    /// waits for one, it is waited for, so this may block for as long as the disk takes for some
    /// MiB.
    ///
    /// Waiting for write-back consumes the error that the kernel keeps for each open file. So an
    /// `fsync` of a descriptor that was enrolled proves nothing by itself, and is called by
    /// [`flush`](Self::flush).
    #[must_use]
    pub fn take_error(&self) -> Option<DataError> {
        let mut state = self.lock();
        let returns = state.returns;
        while state.is_at_disk && state.returns == returns {
            state = self.wait_for_step(state);
        }
        state.error.take().map(DataError)
    }

    /// Whether the window holds nothing of the file: no bytes and no descriptor. There may be an
    /// error to be taken.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.runs.is_empty() && state.place != Place::Busy
    }

    /// Whether the file has so much in the window that pages of it which could still wait for their
    /// neighbours would leave even if no other file were in the window. The load of other files and
    /// devices does not matter.
    #[must_use]
    pub fn outgrows_window(&self) -> bool {
        let Booked { bytes, edge_bytes, .. } = self.lock().booked;
        let whole = self.shared.whole_window();
        whole.is_crowded(bytes, edge_bytes) || edge_bytes > whole.edge_bytes_max()
    }

    /// Takes the next step, on a thread of the window.
    pub(super) fn take_step(self: &Arc<Self>, urgency: Urgency) {
        let guard = StepGuard { file: self };
        self.step(urgency);
        std::mem::forget(guard);
        // Only after the step has dropped its descriptor: waiters rely on that at its end.
        let grants = self.queue_again(&mut self.lock());
        grants.deliver();
    }

    fn step(&self, urgency: Urgency) {
        let (step, fd, method) = {
            let mut state = self.lock();
            state.place = Place::Busy;
            let Some(step) = state.runs.next(Instant::now(), urgency) else { return };
            state.is_at_disk = step.action != Action::Retry;
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

    fn start(&self, fd: &OwnedFd, method: Method, step: &Step) {
        let outcome = match method {
            Method::Ranges => all_ranges(&step.ranges, |range| pages::start(fd.as_fd(), range)),
            Method::WholeFile | Method::Nothing => Ok(true),
        };
        self.shared.count(|counts| {
            counts.runs += step.ranges.len() as u64;
            counts.bytes_written_back += bytes_of(&step.ranges);
            counts.edges_given_up += step.edges;
        });
        let mut state = self.lock();
        self.has_returned(&mut state);
        match outcome {
            Ok(true) => {}
            Ok(false) => state.method = Some(Method::WholeFile),
            // The pages are still dirty, or marked as failed: waiting for them finds out.
            Err(error) => self.note_error(&mut state, &step.ranges, error),
        }
        state.runs.began(Instant::now());
    }

    /// Waits until the batch at work is clean; whether it is and may be dropped. If it is not, the
    /// window is done with it.
    fn wait(&self, fd: &OwnedFd, method: Method, step: &Step) -> bool {
        let outcome = match method {
            Method::Ranges => all_ranges(&step.ranges, |range| pages::finish(fd.as_fd(), range)),
            Method::WholeFile => pages::finish_file(fd.as_fd()),
            Method::Nothing => Ok(false),
        };
        let mut state = self.lock();
        self.has_returned(&mut state);
        match outcome {
            // The flush under way may have taken the error of this batch.
            Ok(true) if state.flushes > 0 => {
                state.runs.put_off();
                return false;
            }
            Ok(true) => return true,
            Ok(false) => {
                let forgotten = bytes_of(&step.ranges);
                self.shared.count(|counts| counts.bytes_forgotten += forgotten);
                state.method = Some(Method::Nothing);
            }
            // It may be that of another batch, whose own wait will not report it. Pages that could
            // not be written stay cached: readers see the data until the writer gets the error.
            Err(error) => {
                self.note_error(&mut state, &step.ranges, error);
                state.runs.keep_all();
            }
        }
        state.runs.finished(Vec::new(), Instant::now());
        false
    }

    /// Drops the batch at work, which is clean.
    fn drop_pages(&self, fd: &OwnedFd) {
        let droppable = self.lock().runs.droppable();
        let drop_range = |&range: &ByteRange| pages::drop_pages(fd.as_fd(), range);
        let left: Vec<_> = droppable.ranges.iter().flat_map(drop_range).collect();
        let dropped = bytes_of(&droppable.ranges).saturating_sub(bytes_of(&left));
        let stuck = self.lock().runs.finished(left, Instant::now());
        self.shared.count(|counts| {
            counts.bytes_dropped += dropped;
            counts.bytes_kept += droppable.kept_bytes;
            counts.bytes_stuck += stuck;
        });
    }

    /// Wakes those who wait for the error of a step, which the caller stores before it unlocks.
    fn has_returned(&self, state: &mut FileState) {
        state.is_at_disk = false;
        state.returns += 1;
        self.waited.notify_all();
    }

    /// Keeps an error of the write-back of `ranges` for the next [`take_error`](Self::take_error),
    /// unless there is one already.
    fn note_error(&self, state: &mut FileState, ranges: &[ByteRange], error: Errno) {
        let path = state.fd.as_ref().and_then(|fd| path_of(fd.as_fd())).unwrap_or_default();
        let (offset, count) = (ranges.first().map_or(0, |range| range.offset()), bytes_of(ranges));
        tracing::warn!(?path, offset, count, %error, "write-back failed");
        state.error.get_or_insert(error);
        self.shared.count(|counts| counts.errors += 1);
    }

    /// Ends a step that panicked. The runs may be inconsistent, so they are forgotten: the kernel
    /// writes the data back in its own time. Whether an error of the disk was consumed is not known
    /// either, so there is one.
    fn give_up(self: &Arc<Self>) {
        let mut state = self.lock();
        self.note_error(&mut state, &[], Errno::IO);
        state.runs = Runs::new(self.shared.limits());
        self.has_returned(&mut state);
        let grants = self.queue_again(&mut state);
        drop(state);
        grants.deliver();
    }

    /// Ends a step.
    fn queue_again(self: &Arc<Self>, state: &mut FileState) -> Grants {
        state.place = Place::Idle;
        self.waited.notify_all();
        self.book(state, Arrival::default(), None)
    }

    fn book(
        self: &Arc<Self>,
        state: &mut FileState,
        arrival: Arrival,
        reservation: Option<&mut Reservation>,
    ) -> Grants {
        if state.runs.is_empty() {
            state.fd = None;
        }
        let now = Instant::now();
        let due = state.runs.due(now).map(|at| (at, state.runs.pending()));
        let booked = Booked {
            bytes: state.runs.charged(),
            edge_bytes: state.runs.edge_bytes(),
            has_descriptor: state.fd.is_some(),
        };
        let before = std::mem::replace(&mut state.booked, booked);
        let change = Change { before, booked, arrival, due };
        self.shared.book(self, &mut state.place, change, reservation, now)
    }

    /// Waits until a step is over, or its wait for the disk.
    fn wait_for_step<'a>(&self, state: MutexGuard<'a, FileState>) -> MutexGuard<'a, FileState> {
        // For one of those that room was granted to.
        rouse_owed();
        self.waited.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A step in progress. When it is dropped, also by a panic of the step, its waiters continue: a
/// COMMIT that waits for the disk, writers that wait for room.
struct StepGuard<'a> {
    file: &'a Arc<WriteBehindFile>,
}

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        self.file.give_up();
    }
}

/// Does the same to all of the ranges, also after an error: each may have one. `Ok(false)` if it
/// cannot be done for one of them; otherwise the first error.
fn all_ranges(
    ranges: &[ByteRange],
    act: impl Fn(ByteRange) -> Result<bool, Errno>,
) -> Result<bool, Errno> {
    let mut all = Ok(true);
    for &range in ranges {
        match act(range) {
            Ok(true) => {}
            Ok(false) => all = all.map(|_| false),
            Err(error) => all = all.and(Err(error)),
        }
    }
    all
}

impl WriteIntent {
    /// Writes data at the beginning of the range, as [`write_parts_at`] does.
    ///
    /// A new page that is filled only in part is written by a call of its own. Otherwise the kernel
    /// puts it into one folio with pages behind it, and as long as it waits for the rest none of
    /// them can be dropped. (A page at the end never is in such a folio: the kernel makes none that
    /// is longer than the write.) `before_call` is called before each of the two.
    ///
    /// # Errors
    /// As [`write_at`](crate::write_at).
    pub fn write(
        &self,
        fd: BorrowedFd<'_>,
        parts: &[&[u8]],
        before_call: &dyn Fn(),
    ) -> Result<usize, WriteError> {
        let offset = self.range.offset();
        before_call();
        let Some(cut) = self.cut else { return write_parts_at(fd, parts, offset) };
        let mut first = parts.to_vec();
        let first_bytes = usize::try_from(cut - offset).expect("less than a page");
        let Some(rest) = split_off(&mut first, first_bytes) else {
            return write_parts_at(fd, parts, offset);
        };
        let first_bytes = write_parts_at(fd, &first, offset)?;
        before_call();
        match write_parts_at(fd, &rest, cut) {
            Ok(written) => Ok(first_bytes + written),
            Err(failed) => Err(WriteError { written: first_bytes + failed.written, ..failed }),
        }
    }

    /// Enrolls `written`, all of the intended range or its beginning, which is in the page cache.
    /// `fd` is kept until it is clean: about as long as data stays in the window.
    pub fn enroll(mut self, fd: &Arc<OwnedFd>, written: ByteRange) {
        let file = Arc::clone(&self.file);
        let mut state = file.lock();
        if written.is_empty() || state.released || state.method == Some(Method::Nothing) {
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
        let grants = file.book(&mut state, arrival, Some(&mut self.reservation));
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
            .field("reservation", &self.reservation)
            .finish_non_exhaustive()
    }
}

#[cfg(not(shuttle))]
#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::data_file::write_at;
    use crate::engine::{DeviceNumber, Engine, EngineConfig, Share};
    use crate::residency::cache_state;
    use crate::write_behind::{WriteBehind, WriteBehindConfig};

    const DISK: DeviceNumber = (8, 1);

    /// A window whose threads do nothing by themselves.
    fn idle_window() -> WriteBehind {
        let never = Duration::from_secs(3600);
        WriteBehind::new(WriteBehindConfig {
            age_max: never,
            neighbour_wait: Duration::ZERO,
            ..WriteBehindConfig::default()
        })
    }

    /// Enrolls a page of an unnamed file by way of `fd_of` it.
    fn enrolled(window: &WriteBehind, fd_of: impl FnOnce(File) -> OwnedFd) -> Arc<WriteBehindFile> {
        enrolled_in(window, tempfile::tempfile().unwrap(), fd_of)
    }

    /// A descriptor that is open for its path only: write-back of it fails with EBADF.
    fn path_only(file: File) -> OwnedFd {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let (flags, mode) = (rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
        rustix::fs::open(path, flags, mode).unwrap()
    }

    /// The same of a given file.
    fn enrolled_in(
        window: &WriteBehind,
        written: File,
        fd_of: impl FnOnce(File) -> OwnedFd,
    ) -> Arc<WriteBehindFile> {
        let file = window.file(DISK);
        let fd = written.try_clone().unwrap();
        enroll_page(&file, fd.as_fd(), &Arc::new(fd_of(written)), 0);
        file
    }

    fn page(index: u64) -> ByteRange {
        ByteRange::new(index * 4096, 4096).unwrap()
    }

    /// Writes a page through `written`, to be written back through `fd`.
    fn enroll_page(
        file: &Arc<WriteBehindFile>,
        written: BorrowedFd<'_>,
        fd: &Arc<OwnedFd>,
        index: u64,
    ) {
        let range = page(index);
        let intent = file.before_write(written, range, file.reserve_blocking(4096));
        write_at(written, &[1; 4096], range.offset()).unwrap();
        intent.enroll(fd, range);
    }

    /// A file with nothing in its window, and a descriptor of it.
    fn empty(window: &WriteBehind) -> (Arc<WriteBehindFile>, Arc<OwnedFd>) {
        (window.file(DISK), Arc::new(tempfile::tempfile().unwrap().into()))
    }

    #[test]
    fn error_of_a_write_back_that_cannot_begin_reaches_the_next_flush() {
        let window = idle_window();
        let file = enrolled(&window, path_only);
        // Cut before anybody waits for the disk: nothing but the start could have failed. Queued
        // only then, or a thread of the window might come first.
        file.step(Urgency::Pressed);
        file.truncated(0);
        file.queue_again(&mut file.lock()).deliver();
        assert!(file.is_idle());
        let error = file.take_error().expect("the start has failed");
        assert_eq!(error, DataError(Errno::BADF));
        assert!(file.take_error().is_none());
        assert_eq!(window.counts().errors, 1);
    }

    #[test]
    fn pages_whose_write_back_cannot_begin_are_written_by_the_step_that_waits_for_it() {
        let window = idle_window();
        let written = tempfile::tempfile().unwrap();
        let usable = Arc::new(OwnedFd::from(written.try_clone().unwrap()));
        let file = enrolled_in(&window, written, path_only);
        file.step(Urgency::Pressed);
        assert_eq!(window.counts().errors, 1, "the start has failed");
        assert_eq!(window.bytes(), 4096, "the page was forgotten");
        file.lock().fd = Some(Arc::clone(&usable));
        file.step(Urgency::Pressed);
        // A dirty page could not be dropped.
        let cached = cache_state(usable.as_fd(), ByteRange::starting_at(0)).unwrap();
        assert_eq!(cached.expect("the file is ours").cached, 0);
        assert!(file.take_error().is_some(), "of the start");
    }

    /// The kernel reports an error to the first who waits, for whichever batch that is.
    #[test]
    fn an_error_keeps_in_the_page_cache_what_other_batches_had_begun() {
        let window = idle_window();
        let (file, fd) = empty(&window);
        let unusable = Arc::new(path_only(File::from(fd.try_clone().unwrap())));
        for index in [0, 1] {
            enroll_page(&file, fd.as_fd(), &fd, index);
            file.step(Urgency::Pressed);
        }
        // The kernel may have tried to write also what has yet to begin.
        enroll_page(&file, fd.as_fd(), &fd, 2);
        // Then waiting for the first batch comes before that.
        std::thread::sleep(Duration::from_millis(30));
        file.lock().fd = Some(unusable);
        file.step(Urgency::Relaxed);
        assert_eq!(window.counts().errors, 1, "the first batch has failed");
        file.lock().fd = Some(Arc::clone(&fd));
        (0..4).for_each(|_| file.step(Urgency::Draining));
        assert!(file.lock().runs.is_empty());
        assert_eq!((window.counts().bytes_kept, window.counts().bytes_dropped), (8192, 0));
        assert!(file.take_error().is_some());
    }

    #[test]
    fn a_failed_flush_keeps_in_the_page_cache_what_had_begun() {
        let window = idle_window();
        let (file, fd) = empty(&window);
        enroll_page(&file, fd.as_fd(), &fd, 0);
        file.step(Urgency::Pressed);
        let flushed = file.flush(|| Err(Errno::IO.into()));
        assert_eq!(flushed, Err(DataError(Errno::IO)));
        file.step(Urgency::Pressed);
        assert_eq!((window.counts().bytes_kept, window.counts().bytes_dropped), (4096, 0));
        assert!(file.take_error().is_none());
    }

    #[test]
    fn a_batch_finished_during_a_flush_leaves_when_that_has_succeeded() {
        for succeeds in [true, false] {
            let window = idle_window();
            let (file, fd) = empty(&window);
            enroll_page(&file, fd.as_fd(), &fd, 0);
            file.step(Urgency::Pressed);
            let flushed = file.flush(|| {
                file.step(Urgency::Pressed);
                assert_eq!(window.counts().bytes_dropped, 0, "the flush may take its error");
                assert_eq!(file.lock().runs.charged(), 0, "no writer waits for the flush");
                if succeeds { Ok(()) } else { Err(Errno::IO.into()) }
            });
            assert_eq!(flushed.is_ok(), succeeds);
            file.step(Urgency::Pressed);
            assert_eq!(window.counts().bytes_dropped, if succeeds { 4096 } else { 0 });
            file.queue_again(&mut file.lock()).deliver();
            assert!(file.is_idle());
            assert_eq!(Arc::strong_count(&fd), 1);
        }
    }

    #[tokio::test]
    async fn task_that_a_flush_wakes_does_not_wait_with_it_for_the_disk() {
        let config = EngineConfig { data_threads: 2, metadata_threads: 1, queue_max: 4 };
        let engine = Arc::new(Engine::new(config).unwrap());
        let share = Share::new(engine.own_device(), 0);
        let window = idle_window();
        let file = enrolled(&window, OwnedFd::from);
        let all = WriteBehindConfig::default().window_bytes;
        let held = file.reserve(all - 4096).await;
        let (admit, admitted) = oneshot::channel();
        let writing = Arc::clone(&file);
        let writer = async move {
            let _room = writing.reserve(4096).await;
            admit.send(()).unwrap();
        };
        share.begin_here(writer);
        file.lock().is_at_disk = true;
        let (flushing, flusher) = (Arc::clone(&file), Arc::clone(&engine));
        let flush = async move {
            flusher.ask_for_data_thread().await;
            // It frees room half-way, as the end of a flush does.
            let job = move || {
                drop(held);
                flushing.take_error()
            };
            assert!(flusher.data(job).await.is_none());
        };
        share.begin_here(flush);
        let admitted = tokio::time::timeout(Duration::from_secs(10), admitted).await;
        file.has_returned(&mut file.lock());
        admitted.expect("the writer goes on").unwrap();
        engine.shutdown().await;
    }

    /// Whether a writer of the file goes on while a job is blocked that has freed room for it and
    /// then done `act`.
    async fn writer_goes_on(act: impl FnOnce(&Arc<WriteBehindFile>) + Send + 'static) -> bool {
        let config = EngineConfig { data_threads: 2, metadata_threads: 1, queue_max: 4 };
        let engine = Arc::new(Engine::new(config).unwrap());
        let share = Share::new(engine.own_device(), 0);
        let window = idle_window();
        let file = enrolled(&window, OwnedFd::from);
        let all = WriteBehindConfig::default().window_bytes;
        let held = file.reserve(all - 4096).await;
        let (admit, admitted) = mpsc::channel();
        let writing = Arc::clone(&file);
        let writer = async move {
            let _room = writing.reserve(4096).await;
            // Too late if the job has given up.
            let _ = admit.send(());
        };
        share.begin_here(writer);
        let (end, ended) = oneshot::channel();
        let worker = Arc::clone(&engine);
        let work = async move {
            worker.ask_for_data_thread().await;
            let job = move || {
                drop(held);
                act(&file);
                admitted.recv_timeout(Duration::from_secs(10)).is_ok()
            };
            end.send(worker.data(job).await).unwrap();
        };
        share.begin_here(work);
        let goes_on = ended.await.unwrap();
        engine.shutdown().await;
        goes_on
    }

    #[tokio::test]
    async fn task_that_a_failed_flush_wakes_does_not_wait_until_its_errors_are_discarded() {
        let failed_flush = |file: &Arc<WriteBehindFile>| {
            assert!(file.flush(|| Err(Errno::IO.into())).is_err());
            pages::discard_error(tempfile::tempfile().unwrap().as_fd());
        };
        assert!(writer_goes_on(failed_flush).await);
    }

    #[tokio::test]
    async fn task_that_a_release_wakes_does_not_wait_until_the_file_is_closed() {
        assert!(writer_goes_on(WriteBehindFile::release).await);
    }

    #[test]
    fn released_file_holds_no_descriptor_and_does_not_come_back() {
        let window = idle_window();
        let file = tempfile::tempfile().unwrap();
        let fd = Arc::new(OwnedFd::from(file));
        let view = window.file(DISK);
        let range = ByteRange::new(0, 4096).unwrap();
        let enroll = || {
            let intent = view.before_write(fd.as_fd(), range, view.reserve_blocking(4096));
            write_at(fd.as_fd(), &[1; 4096], 0).unwrap();
            intent.enroll(&fd, range);
        };
        enroll();
        assert_eq!(Arc::strong_count(&fd), 2);
        view.take_step(Urgency::Pressed);
        enroll();
        view.release();
        assert_eq!((Arc::strong_count(&fd), window.bytes()), (1, 0));
        enroll();
        assert_eq!((Arc::strong_count(&fd), window.bytes()), (1, 0));
        assert!(view.take_error().is_none());
    }

    #[test]
    fn release_waits_for_the_step_under_way() {
        let window = idle_window();
        let file = enrolled(&window, OwnedFd::from);
        file.lock().place = Place::Busy;
        let (sender, released) = mpsc::channel();
        let releasing = Arc::clone(&file);
        std::thread::spawn(move || {
            releasing.release();
            sender.send(())
        });
        assert!(released.recv_timeout(Duration::from_millis(50)).is_err());
        let grants = file.queue_again(&mut file.lock());
        grants.deliver();
        released.recv_timeout(Duration::from_secs(10)).expect("the step has ended");
    }

    #[test]
    fn a_panic_of_a_step_fails_the_next_flush_and_frees_the_window() {
        let window = idle_window();
        let file = enrolled(&window, OwnedFd::from);
        // Not queued again, or a thread of the window might take the next step.
        file.step(Urgency::Pressed);
        assert_eq!(window.bytes(), 4096);
        // The step that waits for the disk panics for want of a descriptor.
        file.lock().fd = None;
        let stepping = Arc::clone(&file);
        let step = std::thread::spawn(move || stepping.take_step(Urgency::Pressed));
        assert!(step.join().is_err());
        let (sender, flushed) = mpsc::channel();
        let flushing = Arc::clone(&file);
        std::thread::spawn(move || sender.send(flushing.take_error()));
        let error = flushed.recv_timeout(Duration::from_secs(10)).expect("a flush does not hang");
        assert_eq!(error, Some(DataError(Errno::IO)));
        assert_eq!(window.bytes(), 0);
        assert!(file.is_idle());
        drop(file.reserve_blocking(WriteBehindConfig::default().window_bytes - 4096));
    }
}
