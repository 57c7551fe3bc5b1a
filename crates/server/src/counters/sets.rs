//! The counters of each export, and of the whole server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::histogram::{Histogram, HistogramValue};
use super::operations::Operation;
use super::striped::Striped;
use super::timing::{CallKind, Phase, PhaseTimes, Timing};
use super::{ClientTable, Counter};

/// Status codes below this, and so many above `LATE_CODES_AT`, have a counter of their own.
const EARLY_CODES: u32 = 100;
/// The codes that are not those of Unix begin here in all versions.
const LATE_CODES_AT: u32 = 10_000;
const STATUSES: usize = 2 * EARLY_CODES as usize + 1;

/// The counters of one server.
#[derive(Debug, Default)]
pub struct Counters {
    /// Counts that belong to no export, such as those of the whole server.
    general: Arc<CounterSet>,
    /// Counts of exports that are gone. Only values of the whole server contain them: added to the
    /// counts of no export, they would look like new work.
    departed: CounterSet,
    /// By the id of the export. An export that leads elsewhere after a reload has two for a while.
    exports: Mutex<Vec<(u32, Arc<CounterSet>)>>,
    /// By client address.
    pub(crate) clients: ClientTable,
    pub(crate) timing: Timing,
}

/// The counters of one export, or of what belongs to none.
#[derive(Debug, Default)]
pub(crate) struct CounterSet {
    counters: Striped<{ Counter::ALL.len() }>,
    /// By operation. Not all calls are counted, so that the number of successes needs no
    /// subtraction: one of a value that was read a moment later could decrease.
    successes: Striped<{ Operation::COUNT }>,
    failures: Places<Failures>,
    /// Of those that were timed.
    times: Places<Histogram>,
    phases: PhaseTimes,
}

/// A value for each operation, made when it is first used.
#[derive(Debug)]
struct Places<T>(Box<[OnceLock<Box<T>>]>);

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self((0..Operation::COUNT).map(|_| OnceLock::new()).collect())
    }
}

impl<T: Default> Places<T> {
    fn at(&self, operation: Operation) -> &T {
        self.0[operation.place()].get_or_init(Box::default)
    }

    fn get(&self, operation: Operation) -> Option<&T> {
        self.0[operation.place()].get().map(Box::as_ref)
    }
}

/// Failures of an operation by status; the last place is for all other codes.
#[derive(Debug)]
struct Failures([AtomicU64; STATUSES]);

impl Default for Failures {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; STATUSES])
    }
}

/// How often an operation was performed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperationValue {
    pub(crate) successes: u64,
    /// Those that ended in another status, by its code.
    pub(crate) failures: BTreeMap<u32, u64>,
    /// The times of those that were timed.
    pub(crate) times: HistogramValue,
}

impl OperationValue {
    /// All, whatever their status.
    pub(crate) fn calls(&self) -> u64 {
        self.successes + self.failures.values().sum::<u64>()
    }
}

impl CounterSet {
    /// Adds to a counter.
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        self.counters.add(counter as usize, n);
    }

    pub(crate) fn value(&self, counter: Counter) -> u64 {
        self.counters.value(counter as usize)
    }

    /// Counts an operation that was performed, with its status: 0 for a success.
    pub(crate) fn count(&self, operation: Operation, status: u32) {
        if status == 0 {
            self.successes.add(operation.place(), 1);
        } else {
            self.failures.at(operation).0[place_of(status)].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn note_time(&self, operation: Operation, nanoseconds: u64) {
        self.times.at(operation).observe(nanoseconds);
    }

    /// Notes the time that a phase of a call has taken.
    pub(crate) fn note_phase(&self, kind: CallKind, phase: Phase, nanoseconds: u64) {
        self.phases.observe(kind, phase, nanoseconds);
    }

    /// The times of a phase.
    pub(super) fn phase(&self, kind: CallKind, phase: Phase) -> HistogramValue {
        self.phases.value(kind, phase)
    }

    fn add_values_to(&self, values: &mut BTreeMap<usize, OperationValue>) {
        for operation in Operation::all() {
            let successes = self.successes.value(operation.place());
            let failures = self.failures.get(operation);
            if successes == 0 && failures.is_none() {
                continue;
            }
            let value = values.entry(operation.place()).or_default();
            value.successes += successes;
            for (place, count) in failures.into_iter().flat_map(|f| &f.0).enumerate() {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    *value.failures.entry(code_at(place)).or_default() += count;
                }
            }
            if let Some(times) = self.times.get(operation) {
                value.times.add(&times.value());
            }
        }
    }

    fn absorb(&self, other: &Self) {
        for counter in Counter::ALL {
            self.add(*counter, other.value(*counter));
        }
        for operation in Operation::all() {
            self.successes.add(operation.place(), other.successes.value(operation.place()));
            let failures = other.failures.get(operation).into_iter().flat_map(|f| &f.0);
            for (place, count) in failures.enumerate() {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    self.failures.at(operation).0[place].fetch_add(count, Ordering::Relaxed);
                }
            }
            if let Some(times) = other.times.get(operation) {
                self.times.at(operation).absorb(&times.value());
            }
        }
        self.phases.absorb(&other.phases);
    }
}

impl Counters {
    /// Adds to a counter of no export.
    pub fn add(&self, counter: Counter, n: u64) {
        self.general.add(counter, n);
    }

    /// The value of a counter: of all exports, and of what belongs to none.
    pub fn value(&self, counter: Counter) -> u64 {
        let exports = self.lock();
        let of_exports: u64 = exports.iter().map(|(_, set)| set.value(counter)).sum();
        self.general.value(counter) + self.departed.value(counter) + of_exports
    }

    /// The counts that belong to no export.
    pub(crate) fn general(&self) -> &Arc<CounterSet> {
        &self.general
    }

    /// Counters for an export that begins to be served, to be dropped with it.
    pub(crate) fn of_export(&self, id: u32) -> Arc<CounterSet> {
        let mut exports = self.lock();
        let set = Arc::new(CounterSet::default());
        exports.push((id, Arc::clone(&set)));
        set
    }

    /// A counter of an export.
    pub(crate) fn export_value(&self, id: u32, counter: Counter) -> u64 {
        self.sets_of(Some(id)).iter().map(|set| set.value(counter)).sum()
    }

    /// The operations on an export, or on none, that were performed at least once.
    pub(crate) fn operations(&self, export: Option<u32>) -> Vec<(Operation, OperationValue)> {
        let mut values = BTreeMap::new();
        self.sets_of(export).iter().for_each(|set| set.add_values_to(&mut values));
        let found = |operation: Operation| Some((operation, values.remove(&operation.place())?));
        Operation::all().filter_map(found).collect()
    }

    /// The times of a phase of calls for an export, or for none.
    pub(crate) fn phase(
        &self,
        export: Option<u32>,
        kind: CallKind,
        phase: Phase,
    ) -> HistogramValue {
        let mut value = HistogramValue::default();
        let sets = self.sets_of(export);
        sets.iter().for_each(|set| value.add(&set.phase(kind, phase)));
        value
    }

    /// The times of a phase of all calls.
    pub(crate) fn phase_of_all(&self, phase: Phase) -> HistogramValue {
        let mut value = HistogramValue::default();
        let exports = self.lock();
        let of_exports = exports.iter().map(|(_, set)| &**set);
        for set in of_exports.chain([&*self.general, &self.departed]) {
            CallKind::ALL.iter().for_each(|kind| value.add(&set.phase(*kind, phase)));
        }
        value
    }

    fn sets_of(&self, export: Option<u32>) -> Vec<Arc<CounterSet>> {
        let exports = self.lock();
        let Some(id) = export else { return vec![Arc::clone(&self.general)] };
        let sets = exports.iter().filter(|(of, _)| *of == id);
        sets.map(|(_, set)| Arc::clone(set)).collect()
    }

    /// The sets of exports, after those that are not served any more have been added to their
    /// successor's, or to those that have departed.
    fn lock(&self) -> MutexGuard<'_, Vec<(u32, Arc<CounterSet>)>> {
        let mut exports = self.exports.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(at) = exports.iter().position(|(_, set)| Arc::strong_count(set) == 1) {
            let (id, left) = exports.swap_remove(at);
            let successor = exports.iter().find(|(of, _)| *of == id).map(|(_, set)| &**set);
            successor.unwrap_or(&self.departed).absorb(&left);
        }
        exports
    }
}

fn place_of(status: u32) -> usize {
    let place = match status {
        early if early < EARLY_CODES => early,
        late if (LATE_CODES_AT..LATE_CODES_AT + EARLY_CODES).contains(&late) => {
            EARLY_CODES + late - LATE_CODES_AT
        }
        _ => 2 * EARLY_CODES,
    };
    usize::try_from(place).expect("less than 201")
}

fn code_at(place: usize) -> u32 {
    match u32::try_from(place).unwrap_or(u32::MAX) {
        early if early < EARLY_CODES => early,
        late if late < 2 * EARLY_CODES => LATE_CODES_AT + late - EARLY_CODES,
        _ => u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use proto::{nfs3, nfs4};

    use super::*;

    const READ: Operation = Operation::nfs3(nfs3::Procedure::Read);

    #[test]
    fn each_status_of_a_protocol_has_its_place() {
        let nfs3 = nfs3::Status::ALL.iter().map(|status| status.code());
        let nfs4 = nfs4::Status::ALL.iter().map(|status| status.code());
        for code in nfs3.chain(nfs4) {
            assert_eq!(code_at(place_of(code)), code);
        }
        for code in [100, 9999, 10_100, u32::MAX] {
            assert_eq!(code_at(place_of(code)), u32::MAX);
        }
    }

    #[test]
    fn the_value_of_the_server_is_that_of_all_exports() {
        let counters = Counters::default();
        let (a, b) = (counters.of_export(1), counters.of_export(2));
        counters.add(Counter::ReadBytes, 1);
        a.add(Counter::ReadBytes, 10);
        b.add(Counter::ReadBytes, 100);
        assert_eq!(counters.value(Counter::ReadBytes), 111);
        assert_eq!(counters.export_value(1, Counter::ReadBytes), 10);
        drop(a);
        assert_eq!(counters.value(Counter::ReadBytes), 111, "of an export that is gone");
        assert_eq!(counters.export_value(1, Counter::ReadBytes), 0);
        assert_eq!(counters.general().value(Counter::ReadBytes), 1);
    }

    #[test]
    fn an_export_with_another_path_keeps_its_counters() {
        let counters = Counters::default();
        let before = counters.of_export(1);
        before.count(READ, 70);
        before.note_time(READ, 3_000_000);
        before.note_phase(CallKind::Read, Phase::Io, 1000);
        let after = counters.of_export(1);
        after.count(READ, 0);
        let phase_of = |export| counters.phase(export, CallKind::Read, Phase::Io).count();
        let expected = counters.operations(Some(1));
        assert_eq!(expected.len(), 1);
        let value = &expected[0].1;
        assert_eq!((value.successes, value.failures.get(&70)), (1, Some(&1)));
        assert_eq!((value.calls(), value.times.nanoseconds), (2, 3_000_000));
        drop(before);
        assert_eq!(counters.operations(Some(1)), expected);
        assert!(counters.operations(None).is_empty());
        assert_eq!((phase_of(Some(1)), phase_of(None)), (1, 0));
        drop(after);
        assert!(counters.operations(None).is_empty(), "they are not of what belongs to none");
        assert_eq!((phase_of(Some(1)), phase_of(None)), (0, 0));
        assert_eq!(counters.phase_of_all(Phase::Io).count(), 1);
    }
}
