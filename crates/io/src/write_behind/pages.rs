//! The system calls of the window: begin write-back, wait for it, drop what is clean.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{fdatasync, fstatfs};
use rustix::io::Errno;

use crate::byte_range::ByteRange;
use crate::engine::rouse_owed;
use crate::file_system_magic::{OVERLAYFS, RAMFS, TMPFS};
use crate::residency::{drop_clean, resident_ranges};

/// How a file's pages get to its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// Range by range.
    Ranges,
    /// All of the file at once, where the kernel offers nothing finer.
    WholeFile,
    /// There is no disk: the page cache is the file.
    Nothing,
}

impl Method {
    /// The method for the file system of `fd`.
    pub(super) fn of(fd: BorrowedFd<'_>) -> Self {
        match fstatfs(fd).map(|stat| stat.f_type) {
            Ok(TMPFS | RAMFS) => Self::Nothing,
            // Its files have no pages; those of the file below are out of reach of a range.
            Ok(OVERLAYFS) => Self::WholeFile,
            Ok(_) | Err(_) => Self::Ranges,
        }
    }
}

/// Begins the write-back of `range`, which is not empty. `Ok(false)` if the kernel or the file
/// system cannot.
///
/// # Errors
/// Errors of the disk. Not every file system reports an error of this call by the next `fsync`
/// again.
pub(super) fn start(fd: BorrowedFd<'_>, range: ByteRange) -> Result<bool, Errno> {
    write_back(fd, range, libc::SYNC_FILE_RANGE_WRITE)
}

/// Waits until `range`, which is not empty, is clean; writes what is still dirty. `Ok(false)` if
/// the kernel or the file system cannot.
///
/// # Errors
/// Errors of the disk, once: a later `fsync` of the same open file does not report them again.
pub(super) fn finish(fd: BorrowedFd<'_>, range: ByteRange) -> Result<bool, Errno> {
    let write_and_wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    write_back(fd, range, write_and_wait)
}

/// As [`finish`], for the whole file. What a file system without it returns for `fdatasync`, it
/// returns for the `fsync` of a COMMIT too, so that only a kernel without the call refuses it.
pub(super) fn finish_file(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    match fdatasync(fd) {
        Ok(()) => Ok(true),
        Err(Errno::NOSYS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes the error of the disk, if there is one, that the kernel would report by the next flush of
/// this open file. Waits for the first page alone, where a range can be waited for; otherwise
/// flushes the file.
pub fn discard_error(fd: BorrowedFd<'_>) {
    // For a writer that the flush has granted room to.
    rouse_owed();
    let first = ByteRange::between(0, 1);
    // An error is what is to be discarded, and a refusal is one of a file without pages.
    let _ = match Method::of(fd) {
        Method::Ranges => sync_file_range(fd, first, libc::SYNC_FILE_RANGE_WAIT_BEFORE),
        Method::WholeFile => fdatasync(fd),
        Method::Nothing => Ok(()),
    };
}

/// Drops the clean pages of `range`; returns the parts that are still cached.
pub(super) fn drop_pages(fd: BorrowedFd<'_>, range: ByteRange) -> Vec<ByteRange> {
    // Advice is refused only for what is no file, which is then found cached or not, like the rest.
    if let Err(error) = drop_clean(fd, range) {
        tracing::debug!(%error, "pages were not dropped");
    }
    resident_parts(fd, range).unwrap_or_default()
}

/// The parts of `pages` that are in the page cache; `None` if the kernel does not report it.
pub(super) fn resident_parts(fd: BorrowedFd<'_>, pages: ByteRange) -> Option<Vec<ByteRange>> {
    let residency = resident_ranges(fd, pages).ok().flatten()?;
    Some(residency.ranges().to_vec())
}

fn write_back(fd: BorrowedFd<'_>, range: ByteRange, flags: libc::c_uint) -> Result<bool, Errno> {
    done_unless_refused(sync_file_range(fd, range, flags), || sync_file_range(fd, range, 0))
}

/// `Ok(false)` if the call was refused, rather than failed. A file system may report an error of
/// its disk by the number of a refusal, and as often as it is asked, as a network file system does
/// with EPERM. So `probe` decides: the same call without flags, which the kernel validates and does
/// nothing for. It takes no error of the disk from the file.
fn done_unless_refused(
    outcome: Result<(), Errno>,
    probe: impl Fn() -> Result<(), Errno>,
) -> Result<bool, Errno> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if is_refusal(error) && probe() == Err(error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_refusal(error: Errno) -> bool {
    // EPERM is a sandbox that does not know the call.
    matches!(error, Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::SPIPE | Errno::PERM)
}

fn sync_file_range(fd: BorrowedFd<'_>, range: ByteRange, flags: libc::c_uint) -> Result<(), Errno> {
    let offset = i64::try_from(range.offset()).map_err(|_| Errno::INVAL)?;
    let len = i64::try_from(range.len()).map_err(|_| Errno::INVAL)?;
    loop {
        // SAFETY: `fd` is open while borrowed, and the call touches no memory of ours.
        let outcome = unsafe { libc::sync_file_range(fd.as_fd().as_raw_fd(), offset, len, flags) };
        if outcome == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
            Errno::INTR => {}
            errno => return Err(errno),
        }
    }
}

#[cfg(not(shuttle))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_with_the_number_of_a_refusal_is_reported() {
        let refused = || Err(Errno::PERM);
        assert_eq!(done_unless_refused(refused(), || Ok(())), Err(Errno::PERM));
        assert_eq!(done_unless_refused(refused(), refused), Ok(false));
        assert_eq!(done_unless_refused(Err(Errno::IO), || Ok(())), Err(Errno::IO));
        assert_eq!(done_unless_refused(Ok(()), refused), Ok(true));
    }

    #[test]
    fn kernel_refuses_a_file_without_pages_and_reports_errors_of_a_flush() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let range = ByteRange::new(0, 4096).unwrap();
        assert_eq!(start(reader.as_fd(), range), Ok(false));
        assert_eq!(finish(reader.as_fd(), range), Ok(false));
        assert_eq!(finish_file(reader.as_fd()), Err(Errno::INVAL));
        let file = tempfile::tempfile().unwrap();
        assert_eq!(start(file.as_fd(), range), Ok(true));
        assert_eq!(finish(file.as_fd(), range), Ok(true));
        assert_eq!(finish_file(file.as_fd()), Ok(true));
    }
}
