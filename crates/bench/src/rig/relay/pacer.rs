//! When bytes are through a link of a certain rate.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest read: a fair share for each connection, with few calls.
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// The least room for a read: a packet of Ethernet.
const CHUNK_BYTES_MIN: usize = 1500;
/// The queue before the link. Without one the link would idle whenever a thread wakes up late.
const QUEUE: Duration = Duration::from_millis(5);

/// One direction of a link, for all its connections.
#[derive(Debug)]
pub(super) struct Pacer {
    bytes_per_sec: Option<u64>,
    /// When all is through that was taken.
    free_at: Mutex<Instant>,
}

impl Pacer {
    pub(super) fn new(bytes_per_sec: Option<u64>) -> Self {
        Self { bytes_per_sec, free_at: Mutex::new(Instant::now()) }
    }

    /// How much may be taken at once: what the link needs a millisecond for.
    pub(super) fn chunk_bytes(&self) -> usize {
        let bytes = self.bytes_per_sec.map(|rate| usize::try_from(rate / 1_000));
        let bytes = bytes.unwrap_or(Ok(CHUNK_BYTES_MAX)).unwrap_or(CHUNK_BYTES_MAX);
        bytes.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
    }

    /// When the last of `bytes` more bytes is through, if they queue up now.
    pub(super) fn departure(&self, bytes: usize) -> Instant {
        let now = Instant::now();
        let Some(rate) = self.bytes_per_sec else { return now };
        let nanos = (bytes as u64).saturating_mul(1_000_000_000).div_ceil(rate);
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        *free_at = now.max(*free_at) + Duration::from_nanos(nanos);
        *free_at
    }

    /// When to go on after bytes with this departure; `None` for at once.
    pub(super) fn next_read(departure: Instant) -> Option<Instant> {
        departure.checked_sub(QUEUE).filter(|next| *next > Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_queue_up_behind_each_other() {
        let start = Instant::now();
        let pacer = Pacer::new(Some(1_000_000));
        for count in 1..=20 {
            let due = start + Duration::from_millis(10) * count;
            assert!(pacer.departure(10_000) >= due);
        }
        let last = pacer.departure(0);
        assert!(last >= start + Duration::from_millis(200));
        assert_eq!(Pacer::next_read(last), Some(last - QUEUE));
        assert_eq!(Pacer::next_read(start), None);
    }

    #[test]
    fn an_idle_link_saves_nothing_up() {
        let pacer = Pacer::new(Some(1_000_000));
        std::thread::sleep(Duration::from_millis(20));
        let now = Instant::now();
        assert!(pacer.departure(10_000) >= now + Duration::from_millis(10));
    }

    #[test]
    fn chunks_fit_the_rate() {
        assert_eq!(Pacer::new(None).chunk_bytes(), CHUNK_BYTES_MAX);
        assert_eq!(Pacer::new(Some(1_000)).chunk_bytes(), CHUNK_BYTES_MIN);
        assert_eq!(Pacer::new(Some(12_500_000)).chunk_bytes(), 12_500);
        assert_eq!(Pacer::new(Some(u64::MAX)).chunk_bytes(), CHUNK_BYTES_MAX);
    }
}
