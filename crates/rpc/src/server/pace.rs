//! How slow a peer may be while it holds memory that others wait for.
//!
//! A peer that sends a call with data by the byte, or leaves its replies unread, holds buffers of
//! the one budget. That is its right while there is enough for everybody. When others wait for what
//! it holds, it has to keep up a pace, or its connection ends; its client connects and asks again.

use std::time::{Duration, Instant};

/// The time over which the pace is taken.
pub(crate) const WINDOW: Duration = Duration::from_secs(1);
/// Bytes in a window that are enough: half of what the slowest link that anybody would put a file
/// system on carries, 1 Mbit/s.
const WINDOW_BYTES_MIN: u64 = 64 * 1024;

/// The pace of one transfer.
#[derive(Debug)]
pub(crate) struct Pace {
    window_began: Instant,
    bytes_before: u64,
}

impl Pace {
    /// A transfer of which `bytes` were moved before.
    pub(crate) fn new(now: Instant, bytes: u64) -> Self {
        Self { window_began: now, bytes_before: bytes }
    }

    /// Whether to end the transfer, of which `bytes` have been moved in all by now.
    pub(crate) fn is_too_slow(
        &mut self,
        now: Instant,
        bytes: u64,
        others_wait: impl FnOnce() -> bool,
    ) -> bool {
        if now.saturating_duration_since(self.window_began) < WINDOW {
            return false;
        }
        let moved = bytes.saturating_sub(self.bytes_before);
        *self = Self::new(now, bytes);
        moved < WINDOW_BYTES_MIN && others_wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slow_peers_that_others_wait_for_are_given_up() {
        let start = Instant::now();
        let cases = [
            (Duration::from_millis(900), 0, true, false),
            (Duration::from_millis(1100), 0, false, false),
            (Duration::from_millis(1100), WINDOW_BYTES_MIN - 1, true, true),
            (Duration::from_millis(1100), WINDOW_BYTES_MIN, true, false),
        ];
        for (after, moved, others_wait, too_slow) in cases {
            let mut pace = Pace::new(start, 1000);
            assert_eq!(pace.is_too_slow(start + after, 1000 + moved, || others_wait), too_slow);
        }
    }

    #[test]
    fn each_window_counts_anew() {
        let start = Instant::now();
        let mut pace = Pace::new(start, 0);
        assert!(!pace.is_too_slow(start + WINDOW, 10 * WINDOW_BYTES_MIN, || true));
        assert!(pace.is_too_slow(start + 2 * WINDOW, 10 * WINDOW_BYTES_MIN, || true));
    }
}
