//! Sequences of changes of a directory.

use std::ops::Range;

/// A change of the directory by another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Adds files, numbered from those on that are there.
    Add,
    /// Removes files, all over the directory.
    Remove,
}

/// A sequence of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) change: Change,
    /// Entries there were before the first.
    pub(super) entries: u32,
    /// Which, from 0. Of those while a directory was listed, the first may have been done before
    /// and the last afterwards.
    pub(super) times: Range<u32>,
}

impl Changes {
    /// The numbers of the entries that the changes `times` were about.
    pub(super) fn numbers(&self, times: Range<u32>) -> impl Iterator<Item = u32> + use<> {
        let (change, entries) = (self.change, self.entries);
        times.map(move |nth| match change {
            Change::Add => entries + nth,
            Change::Remove => removed(nth, entries),
        })
    }
}

/// The `nth` to be removed: steps that come by every entry before any comes twice.
pub(super) fn removed(nth: u32, entries: u32) -> u32 {
    let step = STEPS.into_iter().find(|step| !entries.is_multiple_of(*step)).unwrap_or(1);
    let at = u64::from(nth) * u64::from(step) % u64::from(entries);
    u32::try_from(at).expect("less than `entries`")
}

/// Primes; no number of entries is a multiple of all of them.
const STEPS: [u32; 4] = [7919, 7907, 7901, 7883];
