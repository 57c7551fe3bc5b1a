//! Whether calls are timed, and how long their parts take.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::histogram::{Histogram, HistogramValue};

/// A part of the work on calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// From a call's last byte, or from where it comes to block, until a thread takes it.
    Queue,
    /// The permission of a READ, a WRITE or a COMMIT.
    Permission,
    /// The data of a READ, from the plan on; the system calls of a WRITE, and their thread.
    Io,
    /// A flush.
    Sync,
    /// From a reply's end until the kernel has all of it.
    Send,
}

impl Phase {
    pub(crate) const ALL: [Self; 5] =
        [Self::Queue, Self::Permission, Self::Io, Self::Sync, Self::Send];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Permission => "permission",
            Self::Io => "io",
            Self::Sync => "sync",
            Self::Send => "send",
        }
    }
}

/// Times calls while something reads the times: the metrics, or a command until a while ago.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    is_on: AtomicBool,
    always: AtomicBool,
    /// Seconds that remain of what a command asked for.
    seconds_left: AtomicU64,
    phases: [Histogram; Phase::ALL.len()],
}

impl Timing {
    /// Times calls from now on.
    pub(crate) fn keep_on(&self) {
        self.always.store(true, Ordering::Relaxed);
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Times calls for some seconds.
    pub(crate) fn keep_on_for(&self, seconds: u64) {
        self.seconds_left.fetch_max(seconds, Ordering::Relaxed);
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// To be called once a second.
    pub(crate) fn tick(&self) {
        let less = |left: u64| Some(left.saturating_sub(1));
        let left = self.seconds_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if left.is_ok_and(|before| before <= 1) && !self.always.load(Ordering::Relaxed) {
            self.is_on.store(false, Ordering::Relaxed);
        }
    }

    /// The time now, if calls are timed: one load if not.
    pub(crate) fn start(&self) -> Option<Instant> {
        self.is_on.load(Ordering::Relaxed).then(Instant::now)
    }

    /// Notes the time that a phase has taken, if its start is known.
    pub(crate) fn end(&self, phase: Phase, start: Option<Instant>) {
        if let Some(start) = start {
            self.note(phase, start.elapsed());
        }
    }

    pub(crate) fn note(&self, phase: Phase, time: Duration) {
        self.phases[phase as usize].observe(time);
    }

    pub(crate) fn value(&self, phase: Phase) -> HistogramValue {
        self.phases[phase as usize].value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_timed_for_as_long_as_asked() {
        let timing = Timing::default();
        assert!(timing.start().is_none());
        timing.keep_on_for(2);
        timing.tick();
        assert!(timing.start().is_some());
        timing.tick();
        assert!(timing.start().is_none());
        timing.keep_on();
        timing.tick();
        timing.end(Phase::Io, timing.start());
        assert_eq!(timing.value(Phase::Io).count(), 1);
        assert_eq!(timing.value(Phase::Sync).count(), 0);
    }
}
