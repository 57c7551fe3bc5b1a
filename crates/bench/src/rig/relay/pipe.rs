//! Bytes on their way through a link.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The most bytes on the way in one direction of a connection. With a long delay, this divided by
/// the delay bounds the rate. TCP bounds the bytes too, by its windows: on Linux to 6 MiB by
/// default.
pub(super) const BYTES_MAX: usize = 8 << 20;

/// A queue from the thread that reads a socket to the one that writes the other.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    closed: bool,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `data`, which may leave at `due`; waits for room before. `false` if the pipe is closed.
    pub(super) fn push(&self, due: Instant, data: Vec<u8>) -> bool {
        let full = |state: &mut State| state.bytes + data.len() > BYTES_MAX && !state.closed;
        let waited = self.changed.wait_while(self.lock(), full);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return false;
        }
        state.bytes += data.len();
        state.chunks.push_back((due, data));
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Takes the next chunk, once it is due. `None` if the pipe is closed.
    pub(super) fn pop(&self) -> Option<Vec<u8>> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            let now = Instant::now();
            let due = state.chunks.front().map(|(due, _)| *due);
            state = match due {
                Some(due) if due <= now => break,
                Some(due) => {
                    let waited = self.changed.wait_timeout(state, due - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let (_, data) = state.chunks.pop_front()?;
        state.bytes -= data.len();
        drop(state);
        self.changed.notify_all();
        Some(data)
    }

    /// Waits until then. `false` if the pipe is closed before.
    pub(super) fn pause_until(&self, end: Instant) -> bool {
        let pause = end.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), pause, |state| !state.closed);
        !waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }

    /// Ends all waiting on either side; what is in the pipe is lost.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn chunks_come_out_in_order_and_not_before_their_time() {
        let pipe = Pipe::default();
        let due = Instant::now() + Duration::from_millis(20);
        assert!(pipe.push(due, vec![1]));
        assert!(pipe.push(due, vec![]));
        assert_eq!(pipe.pop(), Some(vec![1]));
        assert!(Instant::now() >= due);
        assert_eq!(pipe.pop(), Some(vec![]));
    }

    #[test]
    fn a_full_pipe_waits_for_room() {
        let pipe = Pipe::default();
        let now = Instant::now();
        assert!(pipe.push(now, vec![0; BYTES_MAX]));
        std::thread::scope(|scope| {
            let pushed = scope.spawn(|| pipe.push(now, vec![7]));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!pushed.is_finished());
            assert_eq!(pipe.pop().map(|data| data.len()), Some(BYTES_MAX));
            assert!(pushed.join().unwrap());
        });
        assert_eq!(pipe.pop(), Some(vec![7]));
    }

    #[test]
    fn closing_ends_all_waiting() {
        let pipe = Pipe::default();
        let far = Instant::now() + Duration::from_secs(3600);
        assert!(pipe.push(far, vec![0; BYTES_MAX]));
        std::thread::scope(|scope| {
            let push = scope.spawn(|| pipe.push(far, vec![1]));
            let pop = scope.spawn(|| pipe.pop());
            let pause = scope.spawn(|| pipe.pause_until(far));
            pipe.close();
            assert!(!push.join().unwrap());
            assert_eq!(pop.join().unwrap(), None);
            assert!(!pause.join().unwrap());
        });
    }
}
