//! The open-file cache: descriptors kept open between requests.
//!
//! Purposes: NFSv3 has no OPEN and no CLOSE, and opening a file for each READ or WRITE costs more
//! than the I/O itself; and what the server must know of a file between requests (what is not yet
//! on the disk, who is changing it) needs one place to live.
//!
//! Bounds: at most `files_max` objects, most of them with one or two descriptors; a directory being
//! listed has a few more, which are counted apart (`directory_stream::LISTINGS_MAX`). The sweep
//! gives up what was not used for a while: soon where the descriptor could write, because the kernel
//! refuses to execute a file that someone holds open for writing. An object with unflushed data is
//! flushed before it leaves; one in use does not leave at all, so that there is never a second one
//! of it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use indexmap::IndexMap;
use io::{
    Engine, KernelHandle, RangeLock, ReadAhead, ReadHistory, Streams, WriteBehind, WriteBehindFile,
};
use rustix::fs::{Advice, CWD, FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::data_descriptors::{DataDescriptors, DirectFile, Use};
use crate::directory_stream::DirectoryStreams;
use crate::export_root::ExportRoot;
use crate::turns::Turns;
use crate::vfs::Status;

/// Locks that the table is spread over.
const SHARDS: usize = 16;
/// Sweeps after which an unused object that can be written is given up. A sweep is a second.
const WRITABLE_IDLE_SWEEPS: u64 = 5;
/// Sweeps after which any unused object is given up; a file that a local process deletes keeps its
/// blocks until then.
const IDLE_SWEEPS: u64 = 30;
/// Entries that one search for a victim looks at.
const VICTIM_SEARCH_MAX: usize = 64;

/// What an object is known by in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    /// Where its export's root is in memory, which stays the root's alone while the object is open:
    /// a reload may give the same export id to another directory.
    root: usize,
    handle: KernelHandle,
}

impl FileKey {
    /// The key of the object with this handle in an export.
    pub(crate) fn new(root: &Arc<ExportRoot>, handle: KernelHandle) -> Self {
        Self { root: Arc::as_ptr(root).addr(), handle }
    }
}

/// An object that is open.
pub(crate) struct OpenFile {
    // Constant.
    root: Arc<ExportRoot>,
    handle: KernelHandle,
    file_type: FileType,
    base: Arc<OwnedFd>,

    /// Held over every operation that changes the object.
    pub(crate) turns: Turns,
    data: Mutex<DataDescriptors>,
    streams: Mutex<DirectoryStreams>,
    /// Keeps cached and direct I/O on the same pages apart.
    pub(crate) ranges: Arc<RangeLock>,
    /// Readers in sequence, and what is read ahead for them.
    pub(crate) read_ahead: ReadAhead,
    /// What was read past the page cache.
    pub(crate) read_history: ReadHistory,
    /// Bytes that READs have left in the page cache since it was opened.
    kept_bytes: AtomicU64,
    /// What the write-behind window holds of it.
    window: OnceLock<Arc<WriteBehindFile>>,
    /// Writers in sequence.
    writers: Mutex<Streams>,

    /// Changes so far; each is counted after the kernel took it and before the client hears of it.
    changes: AtomicU64,
    /// The number of changes that were there when the last flush that succeeded began. The lock is
    /// held over the flush: whoever waits for it finds its own changes flushed, most often.
    flushed: tokio::sync::Mutex<Flushed>,
    /// `flushed.all`, readable without the lock.
    durable: AtomicU64,
    /// Flushes that failed.
    failures: AtomicU64,

    referenced: AtomicBool,
    used_at_sweep: AtomicU64,
    /// When a directory was last known to lie below the export.
    placed_at_sweep: AtomicU64,
}

#[derive(Default)]
struct Flushed {
    data: u64,
    all: u64,
}

/// What a flush must make durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// The data, and what is needed to read it back (`fdatasync`).
    Data,
    /// The data and all attributes (`fsync`).
    All,
}

impl OpenFile {
    /// An object known by a descriptor, which may be an `O_PATH` one.
    pub(crate) fn new(
        root: Arc<ExportRoot>,
        handle: KernelHandle,
        file_type: FileType,
        base: OwnedFd,
    ) -> Self {
        Self {
            root,
            handle,
            file_type,
            base: Arc::new(base),
            turns: Turns::default(),
            data: Mutex::default(),
            streams: Mutex::default(),
            ranges: RangeLock::new(),
            read_ahead: ReadAhead::default(),
            read_history: ReadHistory::default(),
            kept_bytes: AtomicU64::new(0),
            window: OnceLock::new(),
            writers: Mutex::default(),
            changes: AtomicU64::new(0),
            flushed: tokio::sync::Mutex::default(),
            durable: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            referenced: AtomicBool::new(true),
            used_at_sweep: AtomicU64::new(0),
            placed_at_sweep: AtomicU64::new(0),
        }
    }

    /// A regular file known by the descriptor that created it, open for reading and writing.
    pub(crate) fn created(root: Arc<ExportRoot>, handle: KernelHandle, fd: OwnedFd) -> Self {
        let file = Self::new(root, handle, FileType::RegularFile, fd);
        file.data().write = Some(Arc::clone(&file.base));
        file
    }

    /// The export it belongs to.
    pub(crate) fn root(&self) -> &Arc<ExportRoot> {
        &self.root
    }

    /// The kernel's handle.
    pub(crate) fn handle(&self) -> &KernelHandle {
        &self.handle
    }

    /// Regular file, directory, …
    pub(crate) fn file_type(&self) -> FileType {
        self.file_type
    }

    /// A descriptor good for attributes and as the start of a path, not for data.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.base.as_fd()
    }

    /// The descriptor for reading, if one is open.
    pub(crate) fn reader(&self) -> Option<Arc<OwnedFd>> {
        let data = self.data();
        data.read.clone().or_else(|| data.write.clone())
    }

    /// The descriptor for writing, if one is open.
    pub(crate) fn writer(&self) -> Option<Arc<OwnedFd>> {
        self.data().write.clone()
    }

    /// Opens the object for reading. To be called with the server's own identity, where blocking
    /// is allowed; who may read is decided for each READ.
    ///
    /// # Errors
    /// `Access` where the server's own user may not, `Delay` without a descriptor left, `Io`.
    pub(crate) fn open_reader(&self) -> Result<Arc<OwnedFd>, Status> {
        let flags = match self.file_type {
            FileType::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
            _ => OFlags::RDONLY | OFlags::NONBLOCK,
        };
        let fd = Arc::new(self.reopen(flags)?);
        Ok(self.data().read.get_or_insert(fd).clone())
    }

    /// Opens the object for reading and writing; all else as [`Self::open_reader`].
    ///
    /// # Errors
    /// Also `ReadOnly`, of the file system.
    pub(crate) fn open_writer(&self) -> Result<Arc<OwnedFd>, Status> {
        let fd = Arc::new(self.reopen(OFlags::RDWR | OFlags::NONBLOCK)?);
        Ok(self.data().write.get_or_insert(fd).clone())
    }

    /// The descriptor for reading just what is asked for, if it is open.
    pub(crate) fn quiet_reader(&self) -> Option<Arc<OwnedFd>> {
        self.data().quiet.clone()
    }

    /// Opens the object for reading without the kernel's read-ahead. All else as
    /// [`Self::open_reader`].
    ///
    /// # Errors
    /// As [`Self::open_reader`].
    pub(crate) fn open_quiet_reader(&self) -> Result<Arc<OwnedFd>, Status> {
        let fd = Arc::new(self.reopen(OFlags::RDONLY | OFlags::NONBLOCK)?);
        rustix::fs::fadvise(&*fd, 0, None, Advice::Random)?;
        Ok(self.data().quiet.get_or_insert(fd).clone())
    }

    /// What is known of direct I/O: the descriptor, `Some(None)` where it is not possible, and `None`
    /// before [`Self::open_direct`].
    pub(crate) fn direct(&self, purpose: Use) -> Option<Option<DirectFile>> {
        self.data().direct(purpose)
    }

    /// Opens the object for direct I/O, if that is possible. All else as [`Self::open_reader`].
    ///
    /// # Errors
    /// As [`Self::open_reader`], for [`Use::Write`] also `ReadOnly`.
    pub(crate) fn open_direct(&self, purpose: Use) -> Result<Option<DirectFile>, Status> {
        let known = self.data().align();
        let found = match known {
            Some(align) => Some(align),
            None => io::dio_align(self.fd())?,
        };
        let Some(align) = self.data().set_align(found) else { return Ok(None) };
        let access = match purpose {
            Use::Read => OFlags::RDONLY,
            Use::Write => OFlags::RDWR,
        };
        match self.reopen_raw(access | OFlags::NONBLOCK | OFlags::DIRECT) {
            Ok(fd) => {
                let fd = self.data().keep_direct(purpose, fd);
                Ok(Some(DirectFile { fd, align }))
            }
            // What is said of the inode does not hold for the file system above it.
            Err(Errno::INVAL) => {
                self.data().set_align(None);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Notes that the kernel refused a direct request that fits the alignment it told. Says whether
    /// that ended direct I/O for this object.
    pub(crate) fn direct_refused(&self) -> bool {
        let align = io::dio_align(self.fd()).unwrap_or(None);
        let mut data = self.data();
        data.refused(align);
        data.align().is_none()
    }

    /// About how much of it READs have left in the page cache.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// Notes that a READ leaves so many bytes in the page cache.
    pub(crate) fn note_kept(&self, bytes: u64) {
        self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Its view of the server's window.
    pub(crate) fn window(&self, window: &WriteBehind) -> Arc<WriteBehindFile> {
        Arc::clone(self.window.get_or_init(|| window.file()))
    }

    /// Tells the window that the length is now `size`.
    pub(crate) fn note_truncated(&self, size: u64) {
        if let Some(window) = self.window.get() {
            window.truncated(size);
        }
    }

    /// Notes a WRITE; returns how many bytes were written in sequence with it, 0 for none.
    pub(crate) fn note_writer(&self, range: io::ByteRange) -> u64 {
        let stream = self.writers.lock().expect("nothing panics under this lock").note(range);
        if stream.is_sequential() { stream.bytes() } else { 0 }
    }

    /// A descriptor of its own for listing a directory, as the identity of this thread.
    ///
    /// # Errors
    /// As [`Self::open_reader`].
    pub(crate) fn open_stream(&self) -> Result<OwnedFd, Status> {
        self.reopen(OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// A directory's listings in progress.
    pub(crate) fn streams(&self) -> MutexGuard<'_, DirectoryStreams> {
        self.streams.lock().expect("no code panics while it holds the streams")
    }

    fn reopen(&self, flags: OFlags) -> Result<OwnedFd, Status> {
        Ok(self.reopen_raw(flags)?)
    }

    fn reopen_raw(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        openat(CWD, proc_path(self.fd()), flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// Counts a change that the kernel has taken and a crash could lose.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Changes so far. With the attributes read *after* it, it makes an
    /// [`io::FileVersion`].
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    fn is_dirty(&self) -> bool {
        self.changes.load(Ordering::SeqCst) > self.durable.load(Ordering::SeqCst)
    }

    /// Makes every change counted so far durable. Callers that come while a flush runs share the
    /// next one; where nothing is dirty, nothing is flushed.
    ///
    /// # Errors
    /// The disk's error, once. The export's write verifier is then another one, because the kernel
    /// forgets which pages it could not write.
    pub(crate) async fn flush(
        self: &Arc<Self>,
        engine: &Engine,
        what: Flush,
    ) -> Result<(), Status> {
        let wanted = self.changes.load(Ordering::SeqCst);
        let mut flushed = self.flushed.lock().await;
        let done = match what {
            Flush::Data => flushed.data.max(flushed.all),
            Flush::All => flushed.all,
        };
        if done >= wanted {
            return Ok(());
        }
        let covered = self.changes.load(Ordering::SeqCst);
        let file = Arc::clone(self);
        let result = engine.data(move || file.flush_now(what)).await;
        if let Err(status) = result {
            tracing::error!(export = self.root.id, ?status, "a flush failed; the verifier changes");
            self.root.verifier.renew();
            self.failures.fetch_add(1, Ordering::SeqCst);
            return Err(status);
        }
        match what {
            Flush::Data => flushed.data = covered,
            Flush::All => {
                flushed.all = covered;
                self.durable.store(covered, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    /// How many flushes of this object have failed. A promise needs more than a flush that succeeds:
    /// when another one has failed since the data was written, the kernel may have dropped it, and
    /// the next flush finds nothing to complain of.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    /// A flush that no client asked for. Its error is not lost: it has changed the verifier.
    async fn flush_before_leaving(self: &Arc<Self>, engine: &Engine) {
        if let Err(status) = self.flush(engine, Flush::All).await {
            tracing::warn!(?status, "unstable data was lost before a client asked for it");
        }
    }

    fn flush_now(&self, what: Flush) -> Result<(), Status> {
        // Symbolic links, pipes, sockets and devices cannot be opened to be flushed alone.
        if !matches!(self.file_type, FileType::RegularFile | FileType::Directory) {
            return Ok(rustix::fs::syncfs(self.root.directory())?);
        }
        let fd = match self.writer().or_else(|| self.reader()) {
            Some(fd) => fd,
            None => self.open_reader()?,
        };
        let flushed = match what {
            Flush::Data => rustix::fs::fdatasync(&*fd),
            Flush::All => rustix::fs::fsync(&*fd),
        };
        // The window waits for write-back on the same descriptor, which takes the error from it.
        // Asked also when the flush has failed: both are told now, or the next flush would fail for
        // what its caller has heard of already.
        let written_behind = self.window.get().and_then(|window| window.take_error());
        flushed?;
        match written_behind {
            None => Ok(()),
            Some(error) => Err(error.into()),
        }
    }

    fn data(&self) -> MutexGuard<'_, DataDescriptors> {
        self.data.lock().expect("no code panics while it holds the descriptors")
    }

    /// What the cache knows it by.
    pub(crate) fn key(&self) -> FileKey {
        FileKey::new(&self.root, self.handle)
    }
}

/// The table of open objects.
pub(crate) struct OpenFiles {
    shards: [Mutex<Shard>; SHARDS],
    shard_files_max: usize,
    hasher: std::hash::RandomState,
    sweeps: AtomicU64,
}

#[derive(Default)]
struct Shard {
    files: IndexMap<FileKey, Arc<OpenFile>>,
    /// Where the search for the next victim starts (CLOCK).
    hand: usize,
}

impl OpenFiles {
    /// A table that uses at most about `descriptors_max` descriptors.
    pub(crate) fn new(descriptors_max: usize) -> Self {
        // An object read or written both ways has a base and two more.
        let files_max = descriptors_max / 3;
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            shard_files_max: (files_max / SHARDS).max(1),
            hasher: std::hash::RandomState::new(),
            sweeps: AtomicU64::new(0),
        }
    }

    /// The object, if it is open.
    pub(crate) fn find(&self, key: &FileKey) -> Option<Arc<OpenFile>> {
        let file = self.shard(key).files.get(key).cloned()?;
        self.touch(&file);
        Some(file)
    }

    /// Adds an object, or returns the one that another request added first.
    pub(crate) fn insert(&self, file: OpenFile) -> Arc<OpenFile> {
        let key = file.key();
        file.placed_at_sweep.store(self.sweeps.load(Ordering::Relaxed), Ordering::Relaxed);
        let mut shard = self.shard(&key);
        let file = Arc::clone(shard.files.entry(key).or_insert_with(|| Arc::new(file)));
        drop(shard);
        self.touch(&file);
        file
    }

    /// Whether a directory was not looked for below its export since the last sweep: it may have
    /// been moved out. Says so to one caller only.
    pub(crate) fn place_is_due(&self, file: &OpenFile) -> bool {
        let now = self.sweeps.load(Ordering::Relaxed);
        file.file_type == FileType::Directory
            && file.handle != file.root.handle
            && file.placed_at_sweep.swap(now, Ordering::Relaxed) != now
    }

    /// Gives an object up after its last name was removed.
    pub(crate) fn forget(&self, key: &FileKey) {
        let removed = self.shard(key).files.swap_remove(key);
        drop(removed);
    }

    /// Makes room for `key` before its object is opened. The common case takes one lock; where all
    /// objects of the shard have unflushed data, it waits for flushes.
    pub(crate) async fn make_room(&self, key: &FileKey, engine: &Engine) {
        for _ in 0..VICTIM_SEARCH_MAX {
            let victim = {
                let mut shard = self.shard(key);
                if shard.files.len() < self.shard_files_max {
                    return;
                }
                shard.victim()
            };
            match victim {
                Victim::Removed(file) => drop(file),
                Victim::Dirty(file) => file.flush_before_leaving(engine).await,
                Victim::None => return,
            }
        }
    }

    /// Gives up a part of all objects, after the kernel has run out of descriptors.
    pub(crate) async fn shrink(&self, engine: &Engine) {
        for shard in &self.shards {
            for _ in 0..VICTIM_SEARCH_MAX {
                let victim = lock(shard).victim();
                match victim {
                    Victim::Removed(file) => drop(file),
                    Victim::Dirty(file) => file.flush_before_leaving(engine).await,
                    Victim::None => break,
                }
            }
        }
    }

    /// Flushes and gives up what was not used for a while. To be called once a second.
    pub(crate) async fn sweep(&self, engine: &Engine) {
        let now = self.sweeps.fetch_add(1, Ordering::Relaxed) + 1;
        for shard in &self.shards {
            let idle: Vec<_> = {
                let shard = lock(shard);
                shard.files.values().for_each(|file| file.read_ahead.trim(Instant::now()));
                shard.files.values().filter(|file| is_idle(file, now)).cloned().collect()
            };
            for file in idle {
                if file.is_dirty() {
                    file.flush_before_leaving(engine).await;
                }
                let key = file.key();
                drop(file);
                let removed = {
                    let mut shard = lock(shard);
                    let leaves = shard.files.get(&key).is_some_and(may_leave);
                    if leaves { shard.files.swap_remove(&key) } else { None }
                };
                drop(removed);
            }
        }
    }

    /// Flushes everything, at the end of the server.
    ///
    /// # Errors
    /// The first failure; the rest is flushed all the same.
    pub(crate) async fn flush_all(&self, engine: &Engine) -> Result<(), Status> {
        let mut outcome = Ok(());
        for shard in &self.shards {
            let files: Vec<_> = lock(shard).files.values().cloned().collect();
            for file in files {
                if file.is_dirty()
                    && let Err(status) = file.flush(engine, Flush::All).await
                {
                    outcome = Err(status);
                }
            }
        }
        outcome
    }

    fn touch(&self, file: &OpenFile) {
        file.referenced.store(true, Ordering::Relaxed);
        file.used_at_sweep.store(self.sweeps.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn shard(&self, key: &FileKey) -> MutexGuard<'_, Shard> {
        use std::hash::BuildHasher;
        let hash = self.hasher.hash_one(key);
        lock(&self.shards[usize::try_from(hash % SHARDS as u64).expect("below 16")])
    }
}

/// A path that names the object of a descriptor, for the calls that take no `O_PATH` descriptor.
pub(crate) fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

enum Victim {
    Removed(Arc<OpenFile>),
    Dirty(Arc<OpenFile>),
    None,
}

impl Shard {
    /// Advances the hand to an object that was not used since the hand last passed it. Dirty ones
    /// are only named, for their flush must come first.
    fn victim(&mut self) -> Victim {
        let mut dirty = None;
        for _ in 0..VICTIM_SEARCH_MAX.max(self.files.len() * 2).min(4 * VICTIM_SEARCH_MAX) {
            if self.files.is_empty() {
                return Victim::None;
            }
            self.hand %= self.files.len();
            let file = &self.files[self.hand];
            if file.referenced.swap(false, Ordering::Relaxed) || Arc::strong_count(file) > 1 {
                self.hand += 1;
            } else if file.is_dirty() {
                dirty.get_or_insert_with(|| Arc::clone(file));
                self.hand += 1;
            } else {
                let (_, file) = self.files.swap_remove_index(self.hand).expect("in bounds");
                return Victim::Removed(file);
            }
        }
        dirty.map_or(Victim::None, Victim::Dirty)
    }
}

fn is_idle(file: &Arc<OpenFile>, now: u64) -> bool {
    let idle = now.saturating_sub(file.used_at_sweep.load(Ordering::Relaxed));
    let patience = match file.writer() {
        Some(_) => WRITABLE_IDLE_SWEEPS,
        None => IDLE_SWEEPS,
    };
    idle > patience && Arc::strong_count(file) == 1
}

/// Under the shard's lock nobody can take a new reference, so a count of one stays one.
fn may_leave(file: &Arc<OpenFile>) -> bool {
    Arc::strong_count(file) == 1 && !file.is_dirty()
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().expect("no code panics while it holds a shard")
}
