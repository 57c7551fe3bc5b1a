//! Waiting for a call without sleeping.
//!
//! A thread that sleeps is woken when the call comes. On a virtual machine whose processor was halted
//! meanwhile this takes 20 to 30 microseconds, longer than a small call (figures: docs/decisions,
//! "busy-polling"). A client with one call in flight sends the next one soon after its reply, so the
//! thread that stays with it looks for it again and again for a moment before it sleeps. Between two
//! looks it offers the processor to other threads, and it sleeps at once if one of them has taken it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// For so long a thread polls: two times what sleeping costs. Beyond it there is little to gain.
const POLL_MAX: Duration = Duration::from_micros(50);
/// Another thread has run if offering it the processor took longer. It takes about 1 microsecond if none
/// wants it, and more if the host of a virtual machine has taken the processor for a moment.
const YIELD_MAX: Duration = Duration::from_micros(20);
/// Waits without polling after one in vain, which costs 3 microseconds per call then.
const WAITS_AFTER_MISS: u32 = 16;

/// The threads of the server that poll.
pub(crate) struct BusyPolls {
    max: usize,
    polling: AtomicUsize,
}

/// The waits of a thread that stays with a connection.
#[derive(Default)]
pub(crate) struct Waits {
    /// So many more are without polling.
    without: u32,
}

impl BusyPolls {
    /// For so many processors, of which half may be polled on.
    pub(crate) fn new(processors: usize) -> Self {
        Self { max: (processors / 2).max(1), polling: AtomicUsize::new(0) }
    }

    /// Polls until `is_ready`, if that is worth it. Whether it is ready.
    pub(crate) fn poll(&self, waits: &mut Waits, is_ready: impl FnMut() -> bool) -> bool {
        if waits.without > 0 {
            waits.without -= 1;
            return false;
        }
        let has_room = self.polling.fetch_add(1, Ordering::Relaxed) < self.max;
        let found = has_room && poll(is_ready);
        self.polling.fetch_sub(1, Ordering::Relaxed);
        if has_room && !found {
            waits.without = WAITS_AFTER_MISS;
        }
        found
    }
}

fn poll(mut is_ready: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if is_ready() {
            return true;
        }
        let offered = Instant::now();
        if offered - began > POLL_MAX {
            return false;
        }
        thread::yield_now();
        if offered.elapsed() > YIELD_MAX {
            return is_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_in_vain_is_rare_and_short() {
        let (polls, mut waits) = (BusyPolls::new(1), Waits::default());
        let polled: Vec<_> = (0..100)
            .map(|_| {
                let (mut looks, began) = (0, Instant::now());
                assert!(!polls.poll(&mut waits, || {
                    looks += 1;
                    assert!(looks == 1 || began.elapsed() < Duration::from_secs(10));
                    false
                }));
                looks > 0
            })
            .collect();
        let each = 1 + WAITS_AFTER_MISS as usize;
        let expected: Vec<_> = (0..100).map(|number| number % each == 0).collect();
        assert_eq!(polled, expected);
    }

    #[test]
    fn a_call_that_comes_in_time_is_found_each_time() {
        let (polls, mut waits) = (BusyPolls::new(2), Waits::default());
        for _ in 0..100 {
            assert!(polls.poll(&mut waits, || true));
        }
    }

    #[test]
    fn no_more_threads_poll_than_half_of_the_processors() {
        for (processors, max) in [(1, 1), (2, 1), (3, 1), (8, 4)] {
            let polls = BusyPolls::new(processors);
            assert_eq!(polls.deepest(0), max, "{processors} processors");
            assert_eq!(polls.polling.into_inner(), 0);
        }
    }

    impl BusyPolls {
        /// How many poll at once where each begins another.
        fn deepest(&self, depth: usize) -> usize {
            let mut deepest = depth;
            self.poll(&mut Waits::default(), || {
                deepest = self.deepest(depth + 1);
                true
            });
            deepest
        }
    }
}
