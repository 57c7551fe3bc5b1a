//! Since when a connection waits for its peer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Since when a connection waits for bytes of its peer. Its receiver writes it, and other threads
/// read it to find the connection that is idle longest.
#[derive(Debug)]
pub struct PeerWait {
    epoch: Instant,
    /// Microseconds from `epoch` to when the wait began; 0 while the connection does not wait.
    since_micros: AtomicU64,
}

impl PeerWait {
    /// Of a connection that waits from `now` on.
    pub fn new(now: Instant) -> Self {
        let wait = Self { epoch: now, since_micros: AtomicU64::new(0) };
        wait.begin(now);
        wait
    }

    /// Notes that the connection waits from `now` on.
    pub fn begin(&self, now: Instant) {
        self.since_micros.store(self.micros(now), Ordering::Relaxed);
    }

    /// Notes that the connection does not wait for its peer.
    pub fn end(&self) {
        self.since_micros.store(0, Ordering::Relaxed);
    }

    /// Ends the wait that began at `since`, unless another has begun meanwhile.
    pub fn end_if_since(&self, since: Instant) {
        let (relaxed, since) = (Ordering::Relaxed, self.micros(since));
        let _ = self.since_micros.compare_exchange(since, 0, relaxed, relaxed);
    }

    /// When the wait began; `None` while the connection does not wait.
    pub fn since(&self) -> Option<Instant> {
        let micros = self.since_micros.load(Ordering::Relaxed);
        (micros > 0).then(|| self.epoch + Duration::from_micros(micros))
    }

    /// The value that stands for `time`; never 0.
    fn micros(&self, time: Instant) -> u64 {
        let micros = time.saturating_duration_since(self.epoch).as_micros();
        u64::try_from(micros).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_wait_that_is_meant_ends() {
        let start = Instant::now();
        let wait = PeerWait::new(start);
        let first = wait.since().expect("it waits from the start");
        wait.end_if_since(first);
        assert_eq!(wait.since(), None);
        let later = start + Duration::from_secs(1);
        wait.begin(later);
        wait.end_if_since(first);
        assert_eq!(wait.since(), Some(later));
        wait.end();
        assert_eq!(wait.since(), None);
    }
}
