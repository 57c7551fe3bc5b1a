//! Reports write errors to write(2).
//!
//! The kernel sends one write(2) as several WRITEs: one per MiB, and one for each page that it
//! begins or ends within. It returns an error only if the first of them has failed. After a later
//! one it returns the length of those before, and the error would be lost. A WRITE does not show
//! which one it is.
//!
//! So a WRITE that finds an error is answered with fewer bytes, which ends the write(2), whichever
//! one it was. The next WRITE of the same thread is the first of another, and returns the error.
//!
//! But sendfile(2), splice(2) and copy_file_range(2) go on after a short write, and return the
//! length before the error. So FSYNC or FLUSH returns that error once more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

/// The errors that WRITEs to an open file return.
#[derive(Debug)]
pub(super) struct ShortWrite {
    /// The thread whose last WRITE has ended its write(2) for certain.
    thread: AtomicU64,
    /// The last error that a WRITE has returned, until FSYNC or FLUSH.
    returned: Mutex<Option<Errno>>,
}

impl Default for ShortWrite {
    fn default() -> Self {
        Self { thread: AtomicU64::new(NONE), returned: Mutex::default() }
    }
}

impl ShortWrite {
    /// Whether a WRITE of thread `pid` is the first of a write(2), and can return an error. Only one
    /// WRITE is.
    pub(super) fn take(&self, pid: u32) -> bool {
        let (acquired, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        self.thread.compare_exchange(pid.into(), NONE, acquired, failed).is_ok()
    }

    /// Notes an error that a WRITE returns.
    pub(super) fn note_returned(&self, errno: Errno) {
        *self.returned.lock().unwrap_or_else(PoisonError::into_inner) = Some(errno);
    }

    /// The last error that a WRITE has returned, once.
    pub(super) fn take_returned(&self) -> Option<Errno> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// How many of `len` bytes a WRITE of thread `pid` at `offset` accepts, to end its write(2).
    pub(super) fn cut(&self, pid: u32, offset: u64, len: usize) -> usize {
        // A single byte cannot be cut. It is the last of its write(2), unless it ends a page.
        let is_end = len > 1 || !(offset + 1).is_multiple_of(PAGE_BYTES);
        if is_end {
            self.thread.store(pid.into(), Ordering::Release);
        }
        if len > 1 { len / 2 } else { len }
    }
}

/// No thread: their numbers have 32 bits.
const NONE: u64 = u64::MAX;

/// The kernel's pages have this size or a multiple of it.
const PAGE_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_behind_a_short_one_of_the_same_thread_returns_the_error() {
        let short = ShortWrite::default();
        assert!(!short.take(7));
        assert_eq!(short.cut(7, 0, 1 << 20), 1 << 19);
        assert!(!short.take(8));
        assert!(short.take(7));
        assert!(!short.take(7));
    }

    #[test]
    fn writes_of_single_bytes_return_the_error_too() {
        let short = ShortWrite::default();
        assert_eq!(short.cut(7, 4095, 1), 1);
        assert!(!short.take(7), "the next may continue in the next page");
        assert_eq!(short.cut(7, 4096, 1), 1);
        assert!(short.take(7));
    }
}
