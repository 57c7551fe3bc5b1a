//! The pages of a file in the page cache, and how to drop them.
//!
//! All answers are about a moment that has passed when they arrive: pages come and go meanwhile.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::null_mut;

use rustix::fs::{Advice, fadvise, fstat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use crate::byte_range::ByteRange;
use crate::identity;

/// The pages of a range by their state in the page cache. All fields count pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheState {
    /// In the range, cached or not; pages at its ends count if they are in it in part.
    pub pages: u64,
    /// In the page cache, which includes those that are being read just now.
    pub cached: u64,
    /// Of the cached, changed in memory and waiting to be written.
    pub dirty: u64,
    /// Of the cached, on their way to the disk.
    pub writeback: u64,
    /// Not in the cache any more, but not forgotten either.
    pub evicted: u64,
    /// Of the evicted, those that would still be there in a slightly larger memory.
    pub recently_evicted: u64,
}

/// The state of the range, by one system call that visits only pages that exist. `None` if the
/// kernel reports it of no file here: before Linux 6.5 it has no such call (`cachestat`).
///
/// # Errors
/// `EPERM` for this file alone: since Linux 6.14 the kernel answers only a caller that owns the
/// file, may write it, or has it open for writing. The caller is the server, whomever the thread
/// acts for. `EBADF` and the like: the caller's mistakes.
pub fn cache_state(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<Option<CacheState>> {
    match cachestat(fd, range) {
        Ok(state) => Ok(Some(state)),
        Err(Errno::NOSYS | Errno::OPNOTSUPP) => Ok(None),
        Err(Errno::PERM) if !cachestat_is_known() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether `cachestat` reaches the kernel: a sandbox that does not know a call may refuse it with
/// EPERM, whatever its arguments are.
fn cachestat_is_known() -> bool {
    let mut raw = RawCacheState::default();
    let asked = RawRange { offset: 0, len: 1 };
    call_cachestat(NO_DESCRIPTOR, &asked, &mut raw) == Err(Errno::BADF)
}

/// Which parts of a range are in the page cache: ranges of whole pages, ascending, not touching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    ranges: Vec<ByteRange>,
}

impl Residency {
    /// The resident parts. They may begin before the range that was asked about and end after it,
    /// by less than a page.
    #[must_use]
    pub fn ranges(&self) -> &[ByteRange] {
        &self.ranges
    }

    /// Whether nothing is resident.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether all of `range` is resident, as far as it was asked about.
    #[must_use]
    pub fn covers(&self, range: ByteRange) -> bool {
        range.is_empty() || self.ranges.iter().any(|resident| resident.contains(range))
    }

    /// Whether any byte of `range` is resident, as far as it was asked about.
    #[cfg(test)]
    fn touches(&self, range: ByteRange) -> bool {
        self.ranges.iter().any(|resident| resident.overlaps(range))
    }

    /// The parts of `range`, widened to whole pages, that are not resident.
    #[must_use]
    pub fn absent_in(&self, range: ByteRange) -> Vec<ByteRange> {
        let pages = range.widened_to(page_size() as u64);
        let mut absent = Vec::new();
        let mut at = pages.offset();
        for resident in self.ranges.iter().filter(|resident| resident.overlaps(pages)) {
            absent.push(ByteRange::between(at, resident.offset().max(at)));
            at = resident.end();
        }
        absent.push(ByteRange::between(at.min(pages.end()), pages.end()));
        absent.retain(|range| !range.is_empty());
        absent
    }

    /// Adds pages behind all that is here.
    fn push(&mut self, pages: ByteRange) {
        match self.ranges.last_mut() {
            Some(last) if last.end() == pages.offset() => {
                *last = ByteRange::between(last.offset(), pages.end());
            }
            _ => self.ranges.push(pages),
        }
    }
}

/// The parts of `range` in the page cache. `None` if the kernel does not report them to the server:
/// for a file that it neither owns nor may write, cached pages would reveal what others have read.
/// Kernels before 6.5 must also report them to the user that the thread acts for
/// ([`Identity`](crate::Identity)). Take `None` as "some of it may be": drop nothing, and read
/// where either is right.
///
/// One `cachestat` if all or nothing is resident, and two more for each halving on the way to a
/// border between resident and not. Ask about no more than the file has: its end is such a border.
/// Kernels before 6.5 are asked by `mincore` over a temporary mapping.
///
/// # Errors
/// As [`cache_state`]; on old kernels also `ENODEV` for a file that cannot be mapped, and `ENOMEM`.
pub fn resident_ranges(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<Option<Residency>> {
    let pages = range.widened_to(page_size() as u64);
    match bisect(pages, |range| cachestat(fd, range)) {
        Ok(residency) => Ok(Some(residency)),
        Err(Errno::NOSYS | Errno::OPNOTSUPP) => resident_by_mincore(fd, pages),
        // mincore has the same rule, but reports every page as resident where it must not answer.
        Err(Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Drops the clean pages of `range` from the page cache, also those that another process brought
/// in: the kernel does not distinguish them, so call [`resident_ranges`] before reading or writing
/// and spare what was there.
///
/// Some pages stay in memory, because this is advice (`POSIX_FADV_DONTNEED`):
/// - pages that are dirty or being written; the kernel starts to write them back, and a second call
///   after that takes them;
/// - pages that a process has mapped, or that are in use at this moment;
/// - pages that the range has only in part, except the file's last if the range ends exactly where
///   the file does;
/// - on file systems that cache in folios of many pages, a folio that sticks out of the range.
///
/// # Errors
/// `EINVAL` and `ESPIPE` for what is no file.
pub fn drop_clean(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<()> {
    // To the kernel, no length means up to the end of the file.
    let Some(len) = NonZeroU64::new(range.len()) else { return Ok(()) };
    Ok(fadvise(fd, range.offset(), Some(len), Advice::DontNeed)?)
}

/// The resident parts of `pages`, in whole pages, found by halving it wherever `state` reports that
/// some but not all are cached.
fn bisect(
    pages: ByteRange,
    mut state: impl FnMut(ByteRange) -> Result<CacheState, Errno>,
) -> Result<Residency, Errno> {
    let page_bytes = page_size() as u64;
    let mut residency = Residency::default();
    // The part in front is on top, so parts come out in ascending order. Each is half as long as
    // the one below it, which bounds the stack by the bits of a length.
    let mut parts = vec![pages];
    while let Some(part) = parts.pop() {
        let CacheState { pages, cached, .. } = state(part)?;
        if cached >= pages && cached > 0 {
            residency.push(part);
        } else if cached > 0 {
            let middle = part.offset() + pages / 2 * page_bytes;
            parts.push(ByteRange::between(middle, part.end()));
            parts.push(ByteRange::between(part.offset(), middle));
        }
    }
    Ok(residency)
}

/// [`resident_ranges`] of whole pages, on kernels without `cachestat`.
fn resident_by_mincore(fd: BorrowedFd<'_>, pages: ByteRange) -> io::Result<Option<Residency>> {
    let page_bytes = page_size() as u64;
    let size = ByteRange::between(0, u64::try_from(fstat(fd)?.st_size).unwrap_or(0));
    let file = size.widened_to(page_bytes);
    let pages = pages.intersection(file);
    let mut residency = Residency::default();
    let mut start = pages.offset();
    while start < pages.end() {
        let end = pages.end().min(start + MINCORE_BYTES_MAX);
        let mapping = FileMapping::new(fd, ByteRange::between(start, end))?;
        for (page, resident) in (0..).zip(mapping.resident_pages()?) {
            if resident {
                let first = start + page * page_bytes;
                residency.push(ByteRange::between(first, first + page_bytes));
            }
        }
        start = end;
    }
    if residency.covers(pages) && !pages.is_empty() && !mincore_is_honest(fd, file.end())? {
        return Ok(None);
    }
    Ok(Some(residency))
}

/// Whether `mincore` reports the true state of the file to this process. To a process that may not
/// write the file it reports every page as resident, so it is called for one that cannot be: far
/// behind the end of the file at `file_end`.
fn mincore_is_honest(fd: BorrowedFd<'_>, file_end: u64) -> io::Result<bool> {
    // Farther than the file grows in this moment, and than the folio of its last page reaches.
    let distance = 1 << 30;
    let Some(nowhere) = ByteRange::new(file_end + distance, page_size() as u64) else {
        return Ok(false);
    };
    match FileMapping::new(fd, nowhere) {
        Ok(mapping) => Ok(!mapping.resident_pages()?.any(|resident| resident)),
        // Beyond what the file system can address: there is no telling.
        Err(Errno::OVERFLOW) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// `cachestat(2)`, which has no page in its manual yet.
fn cachestat(fd: BorrowedFd<'_>, range: ByteRange) -> Result<CacheState, Errno> {
    if range.is_empty() {
        // To the kernel, no length means up to the end of the file.
        return Ok(CacheState::default());
    }
    let asked = RawRange { offset: range.offset(), len: range.len() };
    let mut raw = RawCacheState::default();
    let mut ask = || call_cachestat(fd.as_raw_fd(), &asked, &mut raw);
    match ask() {
        // The thread acts for a user, or has done so last. The answer is for the server.
        Err(Errno::PERM) => identity::with_overrides(ask)?,
        outcome => outcome?,
    }
    let page_bytes = page_size() as u64;
    let pages = range.end().div_ceil(page_bytes) - range.offset() / page_bytes;
    let RawCacheState { cached, dirty, writeback, evicted, recently_evicted } = raw;
    Ok(CacheState { pages, cached, dirty, writeback, evicted, recently_evicted })
}

/// The system call itself, by the number of a descriptor, which need not be open.
fn call_cachestat(fd: RawFd, asked: &RawRange, raw: &mut RawCacheState) -> Result<(), Errno> {
    let no_flags: libc::c_uint = 0;
    // SAFETY: both structures have the kernel's layout and outlive the call, which keeps no pointer
    // and changes nothing of the file.
    let outcome =
        unsafe { libc::syscall(SYS_CACHESTAT, fd, &raw const *asked, &raw mut *raw, no_flags) };
    if outcome == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// `struct cachestat_range` of the kernel.
#[repr(C)]
struct RawRange {
    offset: u64,
    len: u64,
}

/// `struct cachestat` of the kernel.
#[repr(C)]
#[derive(Default)]
struct RawCacheState {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// A part of a file, mapped to ask about its pages and never accessed, so that it does no harm when
/// the file shrinks meanwhile. Unmapped when dropped.
struct FileMapping {
    start: *mut libc::c_void,
    len: usize,
}

impl FileMapping {
    /// Maps `pages`, which begin at a page and are not empty.
    fn new(fd: BorrowedFd<'_>, pages: ByteRange) -> Result<Self, Errno> {
        let len = usize::try_from(pages.len()).map_err(|_| Errno::NOMEM)?;
        let (protection, flags) = (ProtFlags::empty(), MapFlags::SHARED);
        // SAFETY: with a null hint and without MAP_FIXED the kernel picks unused addresses, so no
        // existing object is touched; nothing can be accessed through the mapping either.
        let start = unsafe { mmap(null_mut(), len, protection, flags, fd, pages.offset())? };
        Ok(Self { start, len })
    }

    /// Whether each page is in the page cache.
    fn resident_pages(&self) -> io::Result<impl Iterator<Item = bool>> {
        let mut states = vec![0_u8; self.len.div_ceil(page_size())];
        // SAFETY: `start` and `len` are those of a mapping that lives as long as `self`, and
        // `states` has a byte for each of its pages.
        let outcome = unsafe { libc::mincore(self.start, self.len, states.as_mut_ptr()) };
        if outcome != 0 {
            return Err(io::Error::last_os_error());
        }
        // The other bits are reserved.
        Ok(states.into_iter().map(|state| state & 1 == 1))
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `new` mapped, no other code unmaps it, and no reference
        // into it was ever made.
        let unmapped = unsafe { munmap(self.start, self.len) };
        if let Err(error) = unmapped {
            tracing::error!(%error, len = self.len, "cannot unmap a file");
        }
    }
}

/// How much of a file is mapped at a time: the states of its pages then take 16 KiB.
const MINCORE_BYTES_MAX: u64 = 64 << 20;

/// The number of no descriptor.
const NO_DESCRIPTOR: RawFd = -1;

/// The number of `cachestat` in the table that new system calls of all architectures share. Where
/// numbers differ this one is free, and the answer the same as before Linux 6.5.
const SYS_CACHESTAT: libc::c_long = 451;

#[cfg(test)]
mod tests;
