//! The additions of one call to the counters.

use std::sync::{Arc, OnceLock};

use super::{ClientCounters, CounterSet, Counters, Operation};
use crate::moment::Moment;

/// The counters that a call adds to: those of its client, and of the export that it is about.
pub(crate) struct Tally<'a> {
    counters: &'a Counters,
    client: &'a ClientCounters,
    export: OnceLock<Arc<CounterSet>>,
}

impl<'a> Tally<'a> {
    pub(crate) fn new(counters: &'a Counters, client: &'a ClientCounters) -> Self {
        Self { counters, client, export: OnceLock::new() }
    }

    /// Notes the export that the call is about: that of the first handle which its gate admits.
    pub(crate) fn note_export(&self, set: &Arc<CounterSet>) {
        self.export.get_or_init(|| Arc::clone(set));
    }

    /// The export that the call was about.
    pub(crate) fn into_export(self) -> Option<Arc<CounterSet>> {
        self.export.into_inner()
    }

    /// Counts the one operation of a call, with its status: 0 for a success. `time_ns` is known if
    /// the call is timed.
    pub(crate) fn count(&self, operation: Operation, status: u32, time_ns: Option<u64>) {
        self.count_on(self.export.get().map(Arc::as_ref), operation, status, time_ns);
    }

    /// As [`Self::count`], for one of several operations, on an export or on none.
    pub(crate) fn count_on(
        &self,
        set: Option<&CounterSet>,
        operation: Operation,
        status: u32,
        time_ns: Option<u64>,
    ) {
        let set = set.unwrap_or(self.counters.general());
        set.count(operation, status);
        self.client.count_operation(operation);
        if status != 0 {
            self.client.count_failure();
        }
        if let Some(time_ns) = time_ns {
            set.note_time(operation, time_ns);
        }
    }

    /// The time now, if calls are timed.
    pub(crate) fn start(&self) -> Option<Moment> {
        self.counters.timing.start()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use proto::nfs3;

    use super::*;

    /// A counter that decreases looks to Prometheus like a restart.
    #[test]
    fn failures_never_decrease_the_number_of_successes() {
        const READ: Operation = Operation::nfs3(nfs3::Procedure::Read);
        const SUCCESSES: u64 = 1000;
        let (counters, client) = (Counters::default(), ClientCounters::default());
        let tally = Tally::new(&counters, &client);
        (0..SUCCESSES).for_each(|_| tally.count(READ, 0, None));
        let is_over = AtomicBool::new(false);
        let fail = || {
            let tally = Tally::new(&counters, &client);
            while !is_over.load(Ordering::Relaxed) {
                tally.count(READ, 70, None);
            }
        };
        let successes = || counters.operations(None).first().map(|(_, value)| value.successes);
        let seen = std::thread::scope(|scope| {
            scope.spawn(fail);
            scope.spawn(fail);
            let other = (0..2000).map(|_| successes()).find(|seen| *seen != Some(SUCCESSES));
            is_over.store(true, Ordering::Relaxed);
            other
        });
        assert_eq!(seen, None, "not {SUCCESSES}");
    }
}
