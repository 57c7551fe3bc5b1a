//! Reports write errors to write(2).
//!
//! The kernel sends one write(2) as several WRITEs: one per MiB, and one for each page that it
//! begins or ends within. It returns an error only if the first of them has failed. After a later
//! one it returns the length of those before, and the error would be lost. A WRITE does not show
//! which one it is.
//!
//! So a WRITE that finds an error is answered with fewer bytes, which ends the write(2), whichever
//! one it was. The next WRITE of the same thread is the first of another, and returns the error.

use std::sync::atomic::{AtomicU64, Ordering};

/// The thread whose last WRITE to an open file has ended its write(2) for certain.
#[derive(Debug)]
pub(super) struct ShortWrite(AtomicU64);

impl Default for ShortWrite {
    fn default() -> Self {
        Self(AtomicU64::new(NONE))
    }
}

impl ShortWrite {
    /// Whether a WRITE of thread `pid` is the first of a write(2), and can return an error. Only one
    /// WRITE is.
    pub(super) fn take(&self, pid: u32) -> bool {
        let taken = self.0.compare_exchange(pid.into(), NONE, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    }

    /// How many of `len` bytes a WRITE of thread `pid` at `offset` accepts, to end its write(2).
    pub(super) fn cut(&self, pid: u32, offset: u64, len: usize) -> usize {
        // A single byte cannot be cut. It is the last of its write(2), unless it ends a page.
        let is_end = len > 1 || !(offset + 1).is_multiple_of(PAGE_BYTES);
        if is_end {
            self.0.store(pid.into(), Ordering::Release);
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
