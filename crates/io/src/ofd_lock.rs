//! Byte-range locks of an open file description (`F_OFD_SETLK`, fcntl(2)), which conflict with
//! those of other descriptions and with the locks of processes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::byte_range::OFFSET_MAX;

/// An operation on a range: `l_type` of `struct flock`, fcntl(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfdLock {
    /// Lock it shared. The descriptor must be readable.
    Read,
    /// Lock it exclusively. The descriptor must be writable.
    Write,
    /// Unlock it.
    Unlock,
}

/// A lock that another description or a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignLock {
    /// Its first byte.
    pub first: u64,
    /// Its last byte; `u64::MAX` if it has no end.
    pub last: u64,
    /// Whether it is exclusive.
    pub is_write: bool,
}

/// Locks or unlocks the bytes `first..=last` without waiting; false if another lock is in the way.
/// Bytes beyond the kernel's largest offset are left out: no file has them.
///
/// # Errors
/// `EBADF` for a descriptor that is not open for this kind of lock, `ENOLCK`.
pub fn set_ofd_lock(
    fd: BorrowedFd<'_>,
    (first, last): (u64, u64),
    wanted: OfdLock,
) -> io::Result<bool> {
    let Some(mut lock) = kernel_range(first, last, wanted) else { return Ok(true) };
    match control(fd, libc::F_OFD_SETLK, &mut lock) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(error),
        },
    }
}

/// A lock that would be in the way of this one, if there is one.
///
/// # Errors
/// Those of the kernel.
pub fn foreign_lock(
    fd: BorrowedFd<'_>,
    (first, last): (u64, u64),
    wanted: OfdLock,
) -> io::Result<Option<ForeignLock>> {
    let Some(mut lock) = kernel_range(first, last, wanted) else { return Ok(None) };
    control(fd, libc::F_OFD_GETLK, &mut lock)?;
    if i32::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let first = u64::try_from(lock.l_start).unwrap_or(0);
    let last = match u64::try_from(lock.l_len) {
        Ok(0) | Err(_) => u64::MAX,
        Ok(len) => first + (len - 1),
    };
    let is_write = i32::from(lock.l_type) == libc::F_WRLCK;
    Ok(Some(ForeignLock { first, last, is_write }))
}

/// The range as the kernel takes it; `None` if it begins behind its largest offset.
fn kernel_range(first: u64, last: u64, wanted: OfdLock) -> Option<libc::flock> {
    let start = libc::off_t::try_from(first).ok()?;
    // A length of zero has no end.
    let len = if last >= OFFSET_MAX { 0 } else { last - first + 1 };
    let kind = match wanted {
        OfdLock::Read => libc::F_RDLCK,
        OfdLock::Write => libc::F_WRLCK,
        OfdLock::Unlock => libc::F_UNLCK,
    };
    let short = |value: i32| libc::c_short::try_from(value).expect("a constant of fcntl(2)");
    Some(libc::flock {
        l_type: short(kind),
        l_whence: short(libc::SEEK_SET),
        l_start: start,
        l_len: libc::off_t::try_from(len).expect("it ends at an offset"),
        // Must be zero for these commands.
        l_pid: 0,
    })
}

fn control(fd: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as the borrow; both commands take a pointer to a
    // `flock`, which is valid and exclusively borrowed, and keep none of it.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(lock)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    fn files() -> (tempfile::NamedTempFile, File, File) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
        let (a, b) = (open(), open());
        (file, a, b)
    }

    fn set(file: &File, range: (u64, u64), lock: OfdLock) -> bool {
        set_ofd_lock(file.as_fd(), range, lock).unwrap()
    }

    #[test]
    fn descriptions_exclude_each_other_until_they_unlock_or_close() {
        let (_file, a, b) = files();
        assert!(set(&a, (0, 9), OfdLock::Read));
        assert!(set(&b, (5, 14), OfdLock::Read));
        assert!(!set(&b, (5, 14), OfdLock::Write));
        let in_the_way = foreign_lock(b.as_fd(), (5, 14), OfdLock::Write).unwrap();
        assert_eq!(in_the_way, Some(ForeignLock { first: 0, last: 9, is_write: false }));
        assert!(set(&a, (5, 9), OfdLock::Unlock));
        assert!(set(&b, (5, 14), OfdLock::Write));
        assert_eq!(foreign_lock(b.as_fd(), (5, 14), OfdLock::Write).unwrap(), None);
        assert!(!set(&a, (14, 14), OfdLock::Read));
        drop(b);
        // A program that another test is starting keeps what is closed until it is executed.
        let began = Instant::now();
        while !set(&a, (14, 14), OfdLock::Read) {
            assert!(began.elapsed() < Duration::from_secs(10), "the lock outlives its description");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn ranges_are_cut_to_the_offsets_of_the_kernel() {
        let (_file, a, b) = files();
        let max = u64::MAX;
        assert!(set(&a, (OFFSET_MAX - 1, max), OfdLock::Write));
        let found = foreign_lock(b.as_fd(), (0, max), OfdLock::Write).unwrap();
        let whole = ForeignLock { first: OFFSET_MAX - 1, last: max, is_write: true };
        assert_eq!(found, Some(whole));
        assert!(set(&b, (OFFSET_MAX + 1, max), OfdLock::Write), "no file has these bytes");
        assert!(set(&b, (0, OFFSET_MAX - 2), OfdLock::Write));
        assert!(!set(&b, (OFFSET_MAX, OFFSET_MAX), OfdLock::Read));
    }

    #[test]
    fn the_descriptor_must_be_open_for_the_kind_of_lock() {
        let (file, ..) = files();
        let reader = File::open(file.path()).unwrap();
        assert!(set(&reader, (0, 0), OfdLock::Read));
        let error = set_ofd_lock(reader.as_fd(), (0, 0), OfdLock::Write).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}
