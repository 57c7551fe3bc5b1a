//! Files as other processes of this machine see and change them, beside the server.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use io::{ByteRange, Residency};
use rustix::fs::{Advice, fadvise, fsync};

use crate::skip::skip_in_ci_too;

/// How often it is tried to take a file out of the page cache.
const FORGET_TIMES_MAX: u32 = 20;

/// The modes that an export can have, for READs and for WRITEs.
pub(crate) const MODES: [&str; 4] = ["buffered", "dontcache", "direct", "auto"];

/// A file that is open for reading and writing on this machine.
pub(crate) struct LocalFile(File);

impl LocalFile {
    /// A new file with this content, on the disk.
    pub(crate) fn create(path: &Path, content: &[u8]) -> Self {
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.write_all_at(content, 0).unwrap();
        fsync(&file).unwrap();
        Self(file)
    }

    pub(crate) fn open(path: &Path) -> Self {
        Self(File::options().read(true).write(true).open(path).unwrap())
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) {
        self.0.write_all_at(data, offset).unwrap();
    }

    /// All that is there.
    pub(crate) fn content(&self) -> Vec<u8> {
        self.read(0, usize::try_from(self.len()).unwrap())
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.0.read_exact_at(&mut data, offset).unwrap();
        data
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    pub(crate) fn set_len(&self, len: u64) {
        self.0.set_len(len).unwrap();
    }

    /// Writes the file to the disk and takes it out of the page cache. The kernel leaves pages that
    /// are still referenced, as by another processor that has just read them.
    pub(crate) fn forget(&self) {
        fsync(&self.0).unwrap();
        for _ in 0..FORGET_TIMES_MAX {
            fadvise(&self.0, 0, None, Advice::DontNeed).unwrap();
            if self.cached_bytes() == 0 {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        // A file system in memory keeps it; the tests that mind ask for a disk.
    }

    /// Makes the kernel cache what is read through this descriptor and nothing beside it.
    pub(crate) fn forbid_read_ahead(&self) {
        fadvise(&self.0, 0, None, Advice::Random).unwrap();
    }

    /// The parts of the file in the page cache.
    pub(crate) fn residency(&self) -> Residency {
        self.residency_of(ByteRange::new(0, self.len()).unwrap())
    }

    /// The parts of a range of the file in the page cache.
    pub(crate) fn residency_of(&self, range: ByteRange) -> Residency {
        io::resident_ranges(self.0.as_fd(), range).unwrap().expect("the file is ours")
    }

    /// Bytes of the file in the page cache.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.residency().ranges().iter().map(|range| range.len()).sum()
    }

    /// The same, and those that the kernel took out of it by itself (DAMON, or short memory): it
    /// remembers these, and not the ones that a program dropped.
    pub(crate) fn kept_bytes(&self) -> u64 {
        let range = ByteRange::new(0, self.len()).unwrap();
        let state = io::cache_state(self.0.as_fd(), range).unwrap();
        state.map_or_else(
            || self.cached_bytes(),
            |state| (state.cached + state.evicted) * rustix::param::page_size() as u64,
        )
    }

    /// Whether the kernel took a page out of the page cache by itself: it remembers such a page,
    /// and not one that a program dropped or wrote past.
    pub(crate) fn was_reclaimed(&self, page: ByteRange) -> bool {
        let state = io::cache_state(self.0.as_fd(), page).unwrap();
        state.is_some_and(|state| state.evicted == state.pages)
    }

    /// The pages of `range` that were cached and no longer are.
    pub(crate) fn absent_pages(&self, cached: &Residency, range: ByteRange) -> Vec<ByteRange> {
        let page_bytes = rustix::param::page_size();
        let pages = range.widened_to(page_bytes as u64);
        let now = self.residency_of(pages);
        let offsets = (pages.offset()..pages.end()).step_by(page_bytes);
        let pages = offsets.map(|offset| ByteRange::new(offset, page_bytes as u64).unwrap());
        pages.filter(|page| cached.covers(*page) && !now.covers(*page)).collect()
    }

    /// The pages that were cached, no longer are, and were not reclaimed. The kernel reclaims, even
    /// single pages, when memory is short and on machines that return cold pages to their host
    /// (DAMON).
    pub(crate) fn dropped_pages(&self, cached: &Residency) -> Vec<ByteRange> {
        let whole = ByteRange::new(0, self.len()).unwrap();
        let absent = self.absent_pages(cached, whole).into_iter();
        absent.filter(|page| !self.was_reclaimed(*page)).collect()
    }

    /// Whether the file supports direct I/O on a disk; prints why a test is skipped.
    pub(crate) fn is_on_disk(&self) -> bool {
        let on_disk = io::dio_align(self.0.as_fd()).unwrap().is_some();
        if !on_disk {
            skip_in_ci_too("temporary files are on no disk that does direct I/O");
        }
        on_disk
    }
}

/// Bytes that encode their offset, and the file or writer by its `seed`.
pub(crate) fn content(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let skipped = usize::try_from(offset % 8).unwrap();
    let mut bytes = vec![0; (skipped + len).next_multiple_of(8)];
    // Without optimization, appending each word takes several times as long.
    for (word, place) in (offset / 8..).zip(bytes.chunks_exact_mut(8)) {
        let mixed = (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0x5851_f42d);
        place.copy_from_slice(&mixed.to_le_bytes());
    }
    bytes.drain(..skipped);
    bytes.truncate(len);
    bytes
}

/// Where two contents differ first, for messages that a person can read.
#[track_caller]
pub(crate) fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    if found != expected {
        let at = (0..found.len()).find(|&at| found[at] != expected[at]).expect("they differ");
        panic!("{what}: byte {at} is {}, not {}", found[at], expected[at]);
    }
}

/// Whether this process, which the server runs in, has `path` or anything below it open. The name
/// of a deleted file ends in ` (deleted)`.
pub(crate) fn is_open_below(path: &Path) -> bool {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    // One may be closed meanwhile.
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.into_iter().any(|target| target.starts_with(path))
}

/// Lets the last change of all files be long enough ago for read-ahead to trust their times.
pub(crate) fn settle() {
    thread::sleep(Duration::from_millis(1100));
}

/// Waits for what happens by itself; whether it did within a time that is far beyond what it takes.
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}
