//! Whether calls are timed, and how long their parts take.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use proto::{nfs3, nfs4};

use super::histogram::{Histogram, HistogramValue};
use super::operations::Operation;
use crate::moment::Moment;

/// A part of the work on calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// From a call's last byte, or from where it comes to block, until a thread takes it.
    Queue,
    /// The permission to use the data of a file.
    Permission,
    /// The data of a READ or WRITE, from its permission on: descriptor, plan, memory or room in the
    /// window, thread, system calls.
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

/// The calls whose phases are counted together: a COMPOUND by its first operation on files. Few, as
/// each has a histogram per phase and export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Read,
    Write,
    Commit,
    Other,
}

impl CallKind {
    pub(crate) const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Commit, Self::Other];

    /// That of a call with this operation.
    pub(crate) fn of(operation: Operation) -> Self {
        const KINDS: [(CallKind, nfs3::Procedure, nfs4::OperationCode); 3] = [
            (CallKind::Read, nfs3::Procedure::Read, nfs4::OperationCode::Read),
            (CallKind::Write, nfs3::Procedure::Write, nfs4::OperationCode::Write),
            (CallKind::Commit, nfs3::Procedure::Commit, nfs4::OperationCode::Commit),
        ];
        let is_of = |(_, nfs3, nfs4): &&(Self, nfs3::Procedure, nfs4::OperationCode)| {
            operation == Operation::nfs3(*nfs3) || operation == Operation::nfs4(*nfs4)
        };
        KINDS.iter().find(is_of).map_or(Self::Other, |(kind, ..)| *kind)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Commit => "COMMIT",
            Self::Other => "other",
        }
    }
}

/// The times of phases by the kind of call, each made when a call of the kind is first timed. 3 KiB
/// for an export at most.
#[derive(Debug, Default)]
pub(super) struct PhaseTimes([OnceLock<Box<[Histogram; Phase::ALL.len()]>>; CallKind::ALL.len()]);

impl PhaseTimes {
    pub(super) fn observe(&self, kind: CallKind, phase: Phase, nanoseconds: u64) {
        self.0[kind as usize].get_or_init(Box::default)[phase as usize].observe(nanoseconds);
    }

    pub(super) fn value(&self, kind: CallKind, phase: Phase) -> HistogramValue {
        let times = self.0[kind as usize].get();
        times.map_or_else(HistogramValue::default, |times| times[phase as usize].value())
    }

    pub(super) fn absorb(&self, other: &Self) {
        for (own, others) in self.0.iter().zip(&other.0) {
            let Some(others) = others.get() else { continue };
            let own = own.get_or_init(Box::default);
            own.iter().zip(&**others).for_each(|(own, other)| own.absorb(&other.value()));
        }
    }
}

/// Times calls while something reads the times: the metrics, or a command until a while ago.
///
/// One number, so that a tick and a request to time cannot each undo a part of the other.
#[derive(Debug, Default)]
pub(crate) struct Timing(AtomicU64);

impl Timing {
    /// Set while the metrics read the times. The other bits are the seconds that remain of what a
    /// command asked for.
    const ALWAYS: u64 = 1 << 63;

    /// Times calls from now on.
    pub(crate) fn keep_on(&self) {
        self.0.fetch_or(Self::ALWAYS, Ordering::Relaxed);
    }

    /// Times calls for some seconds.
    pub(crate) fn keep_on_for(&self, seconds: u64) {
        self.update(|left| left.max(seconds.min(Self::ALWAYS - 1)));
    }

    /// To be called once a second.
    pub(crate) fn tick(&self) {
        self.update(|left| left.saturating_sub(1));
    }

    /// Whether calls are timed.
    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Whether a command reads the times: those by client are of no metric.
    pub(crate) fn is_watched(&self) -> bool {
        self.0.load(Ordering::Relaxed) & !Self::ALWAYS > 0
    }

    /// Changes the seconds that remain.
    fn update(&self, change: impl Fn(u64) -> u64) {
        let changed = |state: u64| Some(state & Self::ALWAYS | change(state & !Self::ALWAYS));
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed).ok();
    }

    /// The time now, if calls are timed: one load if not.
    pub(crate) fn start(&self) -> Option<Moment> {
        self.is_on().then(Moment::now)
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
        assert!(timing.start().is_some() && timing.is_watched());
        timing.tick();
        assert!(timing.start().is_none());
        timing.keep_on();
        timing.tick();
        assert!(timing.start().is_some() && !timing.is_watched());
        timing.keep_on_for(1);
        assert!(timing.is_watched());
        timing.tick();
        assert!(timing.start().is_some() && !timing.is_watched());
    }

    #[test]
    fn a_tick_beside_a_request_to_time_does_not_undo_it() {
        for _ in 0..2_000 {
            let timing = Timing::default();
            std::thread::scope(|threads| {
                threads.spawn(|| timing.tick());
                timing.keep_on();
                timing.keep_on_for(5);
            });
            assert!(timing.is_on() && timing.is_watched());
        }
    }

    #[test]
    fn phases_are_counted_by_the_kind_of_call() {
        let (times, successor) = (PhaseTimes::default(), PhaseTimes::default());
        times.observe(CallKind::Read, Phase::Io, 3000);
        successor.observe(CallKind::Read, Phase::Io, 4000);
        successor.absorb(&times);
        for kind in CallKind::ALL {
            for phase in Phase::ALL {
                let (nanoseconds, count) =
                    if (kind, phase) == (CallKind::Read, Phase::Io) { (7000, 2) } else { (0, 0) };
                let value = successor.value(kind, phase);
                assert_eq!((value.nanoseconds, value.count()), (nanoseconds, count), "{kind:?}");
            }
        }
    }

    #[test]
    fn both_versions_have_the_same_kinds() {
        use nfs3::Procedure;
        use nfs4::OperationCode as Op;
        for (kind, procedure, operation) in [
            (CallKind::Read, Procedure::Read, Op::Read),
            (CallKind::Write, Procedure::Write, Op::Write),
            (CallKind::Commit, Procedure::Commit, Op::Commit),
            (CallKind::Other, Procedure::Lookup, Op::Open),
        ] {
            assert_eq!(CallKind::of(Operation::nfs3(procedure)), kind);
            assert_eq!(CallKind::of(Operation::nfs4(operation)), kind);
        }
    }
}
