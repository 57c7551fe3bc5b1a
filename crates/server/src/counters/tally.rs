//! What one call adds to the counters.

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

    /// Counts the one operation of a call, with its status: 0 for a success. `time_ns` is known if the
    /// call is timed.
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
        set.count_operation(operation);
        self.client.count_operation(operation);
        if status != 0 {
            set.count_failure(operation, status);
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
