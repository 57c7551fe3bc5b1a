//! Reports write errors to write(2).
//!
//! The kernel sends one write(2) as several WRITEs: one per MiB, and one for each page that it
//! begins or ends within. It returns an error only if the first of them has failed. After a later
//! one it returns the length of those before, and the error would be lost. A WRITE does not show
//! which one it is.
//!
//! So a WRITE that finds an error is answered with fewer bytes, which ends the write(2), whichever
//! one it was. The next WRITE of the same thread is the first of another, and returns the error.
//! Threads of a foreign PID namespace all have the number 0: a WRITE of one can return the error
//! within the write(2) of another.
//!
//! But sendfile(2), splice(2) and copy_file_range(2) go on after a short write, and return the
//! length before the error. So FSYNC, or FLUSH by the same process, returns an error that a WRITE
//! has returned once more. Other processes that close the file, such as the later commands of a
//! script, have not failed.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// The errors that WRITEs to an open file return.
#[derive(Debug, Default)]
pub(super) struct ShortWrite {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The threads whose last WRITE has ended its write(2) for certain, the latest at the end.
    ended: VecDeque<u32>,
    /// The last error that a WRITE has returned, until FSYNC, or FLUSH by the same process.
    returned: Option<Returned>,
}

#[derive(Debug)]
struct Returned {
    /// The process that wrote, if it is known.
    writer: Option<u32>,
    errno: Errno,
}

impl ShortWrite {
    /// Whether a WRITE of thread `pid` is the first of a write(2), and can return an error. Only
    /// one WRITE is.
    pub(super) fn take(&self, pid: u32) -> bool {
        let mut state = self.lock();
        let found = state.ended.iter().position(|ended| *ended == pid);
        found.and_then(|index| state.ended.remove(index)).is_some()
    }

    /// Notes an error that a WRITE returns to the process `writer`.
    pub(super) fn note_returned(&self, writer: Option<u32>, errno: Errno) {
        self.lock().returned = Some(Returned { writer, errno });
    }

    /// Whether [`take_returned`](Self::take_returned) would return an error.
    pub(super) fn has_returned(&self) -> bool {
        self.lock().returned.is_some()
    }

    /// The last error that a WRITE has returned, once.
    pub(super) fn take_returned(&self) -> Option<Errno> {
        self.lock().returned.take().map(|returned| returned.errno)
    }

    /// As [`take_returned`](Self::take_returned), but the error of a process that is known is left
    /// for it if another one asks.
    pub(super) fn take_returned_to(&self, process: Option<u32>) -> Option<Errno> {
        let is_own = |returned: &mut Returned| match (returned.writer, process) {
            (Some(writer), Some(process)) => writer == process,
            _ => true,
        };
        self.lock().returned.take_if(is_own).map(|returned| returned.errno)
    }

    /// How many of `len` bytes a WRITE of thread `pid` at `offset` accepts, to end its write(2).
    pub(super) fn cut(&self, pid: u32, offset: u64, len: usize) -> usize {
        // A single byte cannot be cut. It is the last of its write(2), unless it ends a page.
        let is_end = len > 1 || !(offset + 1).is_multiple_of(PAGE_BYTES);
        let mut state = self.lock();
        // A single byte that fails itself, behind an error, is cut twice.
        if is_end && !state.ended.contains(&pid) {
            if state.ended.len() == THREADS_MAX {
                state.ended.pop_front();
            }
            state.ended.push_back(pid);
        }
        if len > 1 { len / 2 } else { len }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread before so many others that write to the file gets another short write instead of the
/// error.
const THREADS_MAX: usize = 1024;

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
    fn a_returned_error_is_left_for_its_process_if_both_are_known() {
        let short = ShortWrite::default();
        for writer in [Some(7), None] {
            short.note_returned(writer, Errno::NOSPC);
            assert_eq!(short.take_returned_to(Some(8)).is_none(), writer.is_some());
            short.note_returned(writer, Errno::NOSPC);
            assert_eq!(short.take_returned_to(None), Some(Errno::NOSPC));
            short.note_returned(writer, Errno::NOSPC);
            assert_eq!(short.take_returned_to(Some(7)), Some(Errno::NOSPC));
            assert!(!short.has_returned());
        }
    }

    #[test]
    fn threads_in_turns_do_not_cut_each_other_short_again() {
        let short = ShortWrite::default();
        for pid in [7, 8] {
            assert!(!short.take(pid));
            short.cut(pid, 0, 100);
        }
        assert!(short.take(7) && short.take(8));
    }

    #[test]
    fn remembered_threads_are_bounded() {
        let short = ShortWrite::default();
        for pid in 0..=u32::try_from(THREADS_MAX).unwrap() {
            short.cut(pid, 0, 100);
        }
        assert_eq!(short.lock().ended.len(), THREADS_MAX);
        assert!(!short.take(0) && short.take(1));
    }

    #[test]
    fn writes_of_single_bytes_return_the_error_too() {
        let short = ShortWrite::default();
        assert_eq!(short.cut(7, 4095, 1), 1);
        assert!(!short.take(7), "the next may continue in the next page");
        assert_eq!(short.cut(7, 4096, 1), 1);
        assert_eq!(short.cut(7, 4096, 1), 1);
        assert!(short.take(7));
        assert!(!short.take(7));
    }
}
