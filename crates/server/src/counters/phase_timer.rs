//! Times phases of a call that follow each other.

use super::timing::{CallKind, Phase};
use super::{CounterSet, Counters};
use crate::moment::Moment;

/// Times phases of a call, if it is timed: a phase begins where the one before it ends, so that one
/// look at the clock serves both.
pub(crate) struct PhaseTimer<'a> {
    counters: &'a Counters,
    times: &'a CounterSet,
    client: fn() -> u128,
    kind: CallKind,
    /// Of the phase that is not over; `None` if the call is not timed.
    start: Option<Moment>,
}

impl<'a> PhaseTimer<'a> {
    /// Begins the first phase. `client` returns the bits of the client's address, as one of IPv6.
    pub(crate) fn start(
        counters: &'a Counters,
        times: &'a CounterSet,
        client: fn() -> u128,
        kind: CallKind,
    ) -> Self {
        Self { counters, times, client, kind, start: counters.timing.start() }
    }

    /// Notes the time of a phase, and begins the next.
    pub(crate) fn end(&mut self, phase: Phase) {
        if let Some(start) = self.start {
            let now = Moment::now();
            let nanoseconds = now.nanoseconds_since(start);
            self.times.note_phase(self.kind, phase, nanoseconds);
            if self.counters.timing.is_watched() {
                self.counters.clients.note_phase((self.client)(), phase, nanoseconds);
            }
            self.start = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_begins_where_the_one_before_it_ends() {
        let (counters, times) = (Counters::default(), CounterSet::default());
        let start = || PhaseTimer::start(&counters, &times, || 1, CallKind::Write);
        let nanoseconds = || {
            [Phase::Queue, Phase::Io].map(|phase| times.phase(CallKind::Write, phase).nanoseconds)
        };
        start().end(Phase::Io);
        assert_eq!(times.phase(CallKind::Write, Phase::Io).count(), 0, "calls are not timed");
        counters.timing.keep_on();
        let before = Moment::now();
        let mut timer = start();
        std::thread::sleep(std::time::Duration::from_millis(3));
        timer.end(Phase::Queue);
        timer.end(Phase::Io);
        let [queue, io] = nanoseconds();
        assert!(queue >= 3_000_000, "{queue}");
        assert!(queue + io <= Moment::now().nanoseconds_since(before), "{queue} and {io}");
    }
}
