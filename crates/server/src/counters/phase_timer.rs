//! Times phases of a call that follow each other.

use super::CounterSet;
use super::timing::{CallKind, Phase, Timing};
use crate::moment::Moment;

/// Times phases of a call, if it is timed: a phase begins where the one before it ends, so that one
/// look at the clock serves both.
pub(crate) struct PhaseTimer<'a> {
    times: &'a CounterSet,
    kind: CallKind,
    /// Of the phase that is not over; `None` if the call is not timed.
    start: Option<Moment>,
}

impl<'a> PhaseTimer<'a> {
    /// Begins the first phase.
    pub(crate) fn start(timing: &Timing, times: &'a CounterSet, kind: CallKind) -> Self {
        Self { times, kind, start: timing.start() }
    }

    /// Notes the time of a phase, and begins the next.
    pub(crate) fn end(&mut self, phase: Phase) {
        if let Some(start) = self.start {
            let now = Moment::now();
            self.times.note_phase(self.kind, phase, now.nanoseconds_since(start));
            self.start = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_begins_where_the_one_before_it_ends() {
        let (timing, times) = (Timing::default(), CounterSet::default());
        let nanoseconds = || {
            [Phase::Queue, Phase::Io].map(|phase| times.phase(CallKind::Write, phase).nanoseconds)
        };
        PhaseTimer::start(&timing, &times, CallKind::Write).end(Phase::Io);
        assert_eq!(times.phase(CallKind::Write, Phase::Io).count(), 0, "calls are not timed");
        timing.keep_on();
        let before = Moment::now();
        let mut timer = PhaseTimer::start(&timing, &times, CallKind::Write);
        std::thread::sleep(std::time::Duration::from_millis(3));
        timer.end(Phase::Queue);
        timer.end(Phase::Io);
        let [queue, io] = nanoseconds();
        assert!(queue >= 3_000_000, "{queue}");
        assert!(queue + io <= Moment::now().nanoseconds_since(before), "{queue} and {io}");
    }
}
