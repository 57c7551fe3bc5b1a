//! The state of a regular file: one part for all exports, and one for each.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use io::{
    ByteRange, DeviceNumber, Prefetch, RangeLock, ReadAhead, ReadHistory, ReadOrder, WriteBehind,
    WriteBehindFile,
};

use super::write_progress::{WriteProgress, Writers};
use super::{DataDescriptors, WriteQueue};
use crate::fs::Caller;

/// How long a failure to read a part of a file is remembered: by then the page that was not read
/// has most likely left the cache, or another READ has failed.
const FAILED_FOR: Duration = Duration::from_secs(300);

/// The state of a regular file, which all exports share.
pub(crate) struct FileState {
    /// Keeps cached and direct I/O on the same pages apart.
    pub(crate) ranges: Arc<RangeLock>,
    /// Readers in sequence, and what is read ahead for them past the page cache.
    pub(crate) read_ahead: ReadAhead,
    /// Data that is read into the page cache before they ask for it.
    pub(crate) prefetch: Arc<Prefetch>,
    /// Turns of the READs that the kernel reads ahead for.
    pub(crate) read_order: Arc<ReadOrder>,
    /// The parts read past the page cache.
    pub(crate) read_history: ReadHistory,
    /// The kernel refuses to report to the server which pages of it are cached.
    hides_cache: AtomicBool,
    /// The last time that the disk has failed to read a part of it. Hardly any file has one, and no
    /// READ of the others takes a lock.
    failed: OnceLock<Mutex<Instant>>,
    /// Bytes that READs have left in the page cache since it was opened, or found there.
    kept_bytes: AtomicU64,
    /// The end of the furthest of them.
    kept_end: AtomicU64,
    /// Its part of the write-behind window.
    pub(super) window: OnceLock<Arc<WriteBehindFile>>,
    writers: Mutex<Writers>,
    /// The descriptors of all exports that a flush or the window may use, in the order in which
    /// they were opened. To each of them the kernel reports an error of the disk once.
    flushed_through: Mutex<Vec<FlushDescriptor>>,
    /// Writers that take turns in it have drifted further apart than the window reaches.
    outreaches_window: AtomicBool,
    /// An export has closed it for writing because it was not written.
    was_closed: AtomicBool,
}

/// A descriptor that a flush or the window may use.
struct FlushDescriptor {
    fd: Weak<OwnedFd>,
    /// It is open for writing, and not given up.
    is_writer: bool,
}

/// No user has this id (`Identity`).
const NO_WRITER: u64 = u64::MAX;

/// A regular file in one export.
pub(super) struct File {
    pub(super) state: Arc<FileState>,
    /// WRITEs that wait for the inode lock.
    pub(super) writes: Arc<WriteQueue>,
    /// The user and group that were permitted to write last.
    last_writer: AtomicU64,
    descriptors: Mutex<DataDescriptors>,
    /// Ticks since the descriptor for writing was last given out.
    writer_idle_ticks: AtomicU64,
}

impl Default for FileState {
    fn default() -> Self {
        Self {
            ranges: RangeLock::new(),
            read_ahead: ReadAhead::default(),
            prefetch: Arc::default(),
            read_order: Arc::default(),
            read_history: ReadHistory::default(),
            hides_cache: AtomicBool::new(false),
            failed: OnceLock::new(),
            kept_bytes: AtomicU64::new(0),
            kept_end: AtomicU64::new(0),
            window: OnceLock::new(),
            writers: Mutex::default(),
            flushed_through: Mutex::default(),
            outreaches_window: AtomicBool::new(false),
            was_closed: AtomicBool::new(false),
        }
    }
}

impl FileState {
    /// Whether the kernel refuses to report to the server which pages of it are cached, as far as
    /// is known. Lasts as long as the file is open.
    pub(crate) fn hides_cache(&self) -> bool {
        self.hides_cache.load(Ordering::Relaxed)
    }

    /// Notes that it does.
    pub(crate) fn note_hidden_cache(&self) {
        self.hides_cache.store(true, Ordering::Relaxed);
    }

    /// Whether the disk has lately failed to read a part of it. There may be a page in the cache
    /// that only another attempt of the disk would fill.
    pub(crate) fn has_failed(&self, now: impl FnOnce() -> Instant) -> bool {
        self.failed.get().is_some_and(|failed| {
            let failed = *failed.lock().unwrap_or_else(PoisonError::into_inner);
            now().saturating_duration_since(failed) < FAILED_FOR
        })
    }

    /// Notes that it has.
    pub(crate) fn note_failed(&self, now: Instant) {
        let failed = self.failed.get_or_init(|| Mutex::new(now));
        *failed.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// About how much of it READs have left in the page cache, or found there.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// Notes a READ after which `range` is in the page cache. What was there before may have been
    /// read ahead, or be read again: it counts beyond all that was noted, as where a stream goes
    /// on.
    pub(crate) fn note_kept(&self, range: ByteRange, was_resident: bool) {
        if was_resident && range.end() <= self.kept_end.load(Ordering::Relaxed) {
            return;
        }
        let end = self.kept_end.fetch_max(range.end(), Ordering::Relaxed);
        let first = if was_resident { range.offset().max(end) } else { range.offset() };
        self.kept_bytes.fetch_add(range.end().saturating_sub(first), Ordering::Relaxed);
    }

    /// Notes a descriptor that is open for writing.
    pub(super) fn note_writer(&self, fd: &Arc<OwnedFd>) {
        self.note_descriptor(fd, true);
    }

    /// Notes a descriptor that is open for reading, which a flush takes if there is none for
    /// writing.
    pub(super) fn note_reader(&self, fd: &Arc<OwnedFd>) {
        self.note_descriptor(fd, false);
    }

    fn note_descriptor(&self, fd: &Arc<OwnedFd>, is_writer: bool) {
        let mut descriptors = self.lock_flushed_through();
        descriptors.retain(|known| known.fd.strong_count() > 0);
        if !descriptors.iter().any(|known| known.is(fd)) {
            descriptors.push(FlushDescriptor { fd: Arc::downgrade(fd), is_writer });
        }
    }

    /// No flush takes this descriptor any more: all that was written through it has been flushed.
    /// The window may use it still.
    fn forget_writer(&self, fd: &Arc<OwnedFd>) {
        let mut descriptors = self.lock_flushed_through();
        descriptors.iter_mut().filter(|known| known.is(fd)).for_each(|it| it.is_writer = false);
    }

    /// The descriptor that has been open for writing for longest, in any export: to it the kernel
    /// reports every error of the disk since. What was written through one that is closed was
    /// flushed before.
    pub(super) fn oldest_writer(&self) -> Option<Arc<OwnedFd>> {
        let descriptors = self.lock_flushed_through();
        descriptors.iter().filter(|known| known.is_writer).find_map(|known| known.fd.upgrade())
    }

    /// Takes from each open descriptor the error of the disk that the kernel would report by it.
    /// May block.
    pub(super) fn discard_errors(&self) {
        let open: Vec<_> =
            self.lock_flushed_through().iter().filter_map(|known| known.fd.upgrade()).collect();
        open.iter().for_each(|fd| io::discard_error(fd.as_fd()));
    }

    fn lock_flushed_through(&self) -> MutexGuard<'_, Vec<FlushDescriptor>> {
        self.flushed_through.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its view of the server's window. The file lies on `device`.
    pub(crate) fn window(
        &self,
        window: &WriteBehind,
        device: DeviceNumber,
    ) -> Arc<WriteBehindFile> {
        Arc::clone(self.window.get_or_init(|| window.file(device)))
    }

    /// Notes WRITEs that are performed together, and returns what they are part of. `begin_turn`:
    /// they are the first ones of their turn.
    pub(crate) fn note_writes(
        &self,
        begin_turn: bool,
        ranges: impl Iterator<Item = ByteRange>,
    ) -> WriteProgress {
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        writers.note(begin_turn, ranges)
    }

    /// Whether writers that leave gaps for each other have ever been too far apart for the window.
    /// `do_now` reports whether they are now. It must not depend on other files: the answer stays.
    pub(crate) fn outreaches_window(&self, do_now: impl FnOnce() -> bool) -> bool {
        if !self.outreaches_window.load(Ordering::Relaxed) && do_now() {
            self.outreaches_window.store(true, Ordering::Relaxed);
        }
        self.outreaches_window.load(Ordering::Relaxed)
    }
}

impl FlushDescriptor {
    fn is(&self, fd: &Arc<OwnedFd>) -> bool {
        std::ptr::eq(self.fd.as_ptr(), Arc::as_ptr(fd))
    }
}

impl File {
    /// A file with no descriptor open for its data.
    pub(super) fn new(state: &Arc<FileState>) -> Self {
        Self {
            state: Arc::clone(state),
            writes: Arc::default(),
            last_writer: AtomicU64::new(NO_WRITER),
            descriptors: Mutex::default(),
            writer_idle_ticks: AtomicU64::new(0),
        }
    }

    /// The descriptors for its data.
    pub(super) fn descriptors(&self) -> MutexGuard<'_, DataDescriptors> {
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a descriptor is open for writing.
    pub(super) fn is_writable(&self) -> bool {
        self.descriptors().write.is_some()
    }

    /// Notes that the descriptor for writing is given out.
    pub(super) fn note_write(&self) {
        self.writer_idle_ticks.store(0, Ordering::Relaxed);
    }

    /// Counts a tick of the descriptor for writing, and returns how many there were since it was
    /// last given out; 0 without one.
    pub(super) fn tick(&self) -> u64 {
        if !self.is_writable() {
            return 0;
        }
        self.writer_idle_ticks.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Ticks since the descriptor for writing was last given out; 0 without one.
    pub(super) fn writer_idle_ticks(&self) -> u64 {
        if self.is_writable() { self.writer_idle_ticks.load(Ordering::Relaxed) } else { 0 }
    }

    /// Gives up the descriptors for writing, which were not used. To be called under the inode
    /// lock, with nothing unflushed.
    pub(super) fn give_up_writers(&self) {
        self.state.was_closed.store(true, Ordering::Relaxed);
        let mut descriptors = self.descriptors();
        // While a READ or the window uses it, no flush is to report through it what one opened
        // later would report again.
        if let Some(writer) = &descriptors.write {
            self.state.forget_writer(writer);
        }
        descriptors.give_up_writers();
    }

    /// Whether it is closed for writing only because it was not written.
    pub(super) fn is_closed_for_writing(&self) -> bool {
        self.state.was_closed.load(Ordering::Relaxed) && !self.is_writable()
    }

    /// Notes whether this caller is permitted to write.
    pub(super) fn note_writer(&self, caller: &Caller, is_permitted: bool) {
        let writer = user_and_group(caller);
        if is_permitted {
            self.last_writer.store(writer, Ordering::Relaxed);
        } else {
            let _ = self.last_writer.compare_exchange(
                writer,
                NO_WRITER,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Whether this caller was permitted to write last, or one with the same ids and other groups.
    pub(super) fn has_last_writer(&self, caller: &Caller) -> bool {
        self.last_writer.load(Ordering::Relaxed) == user_and_group(caller)
    }

    /// A descriptor that can read, if one is open.
    pub(super) fn any_reader(&self) -> Option<Arc<OwnedFd>> {
        let descriptors = self.descriptors();
        descriptors.read.clone().or_else(|| descriptors.write.clone())
    }
}

fn user_and_group(caller: &Caller) -> u64 {
    u64::from(caller.uid()) << 32 | u64::from(caller.identity.gid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_to_read_a_part_of_a_file_is_remembered_for_some_minutes_from_the_last_one() {
        let (file, now) = (FileState::default(), Instant::now());
        assert!(!file.has_failed(|| now));
        file.note_failed(now);
        file.note_failed(now + FAILED_FOR / 2);
        assert!(file.has_failed(|| now + FAILED_FOR));
        assert!(!file.has_failed(|| now + FAILED_FOR * 2));
    }

    #[test]
    fn kept_bytes_of_a_stream_are_counted_once() {
        let file = FileState::default();
        let range = |start, end| ByteRange::between(start, end);
        file.note_kept(range(0, 100), false);
        // Read ahead for it.
        (1..10).for_each(|i| file.note_kept(range(i * 100, i * 100 + 100), true));
        assert_eq!(file.kept_bytes(), 1000);
        (0..10).for_each(|i| file.note_kept(range(i * 100, i * 100 + 100), true));
        assert_eq!(file.kept_bytes(), 1000);
        file.note_kept(range(900, 1100), true);
        file.note_kept(range(5000, 5100), false);
        file.note_kept(range(4000, 4100), false);
        assert_eq!(file.kept_bytes(), 1300);
    }
}
