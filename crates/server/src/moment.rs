//! The clock of calls.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`. Each call reads it twice; a difference costs a subtraction,
/// where one of `Instant` costs some sixty instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        // The kernel's are positive, and last for centuries.
        Self(now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
    }

    /// A moment of a test.
    #[cfg(test)]
    pub(crate) fn at_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since a moment that the system has chosen.
    pub(crate) fn nanoseconds(self) -> u64 {
        self.0
    }

    /// The time since.
    pub(crate) fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// The time since an earlier moment.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanoseconds_since(earlier))
    }

    /// The nanoseconds since an earlier moment.
    pub(crate) fn nanoseconds_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
