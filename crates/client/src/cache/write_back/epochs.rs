//! The age of data in epochs, and deadlines.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// The number of pieces of each epoch. Each request to settle the data written so far begins a new
/// epoch, and is fulfilled when no piece of its epoch or an older one is left. Places in the order
/// of events are counted alike.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Epochs(BTreeMap<u64, usize>);

impl Epochs {
    pub(super) fn add(&mut self, epoch: u64) {
        *self.0.entry(epoch).or_default() += 1;
    }

    pub(super) fn remove(&mut self, epoch: u64) {
        let count = self.0.get_mut(&epoch).expect("a piece was counted when it came");
        *count -= 1;
        if *count == 0 {
            self.0.remove(&epoch);
        }
    }

    /// The oldest epoch.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.0.first_key_value().map(|(epoch, _)| *epoch)
    }

    /// Whether there is a piece of `epoch` or an older one.
    pub(super) fn reach(&self, epoch: u64) -> bool {
        self.oldest().is_some_and(|oldest| oldest <= epoch)
    }
}

/// Deadlines of blocks. All wait for the same time, so the queue is in order. The reader recognises
/// entries that no longer apply.
#[derive(Debug, Default)]
pub(super) struct Deadlines(VecDeque<(Instant, u64)>);

impl Deadlines {
    pub(super) fn push(&mut self, due: Instant, block: u64) {
        self.0.push_back((due, block));
    }

    /// The first deadline that applies. Removes those before it.
    pub(super) fn first(&mut self, applies: impl Fn(Instant, u64) -> bool) -> Option<Instant> {
        while let Some(&(due, block)) = self.0.front() {
            if applies(due, block) {
                return Some(due);
            }
            self.0.pop_front();
        }
        None
    }

    /// Removes and returns the first entry if it is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Instant, u64)> {
        self.0.pop_front_if(|(due, _)| *due <= now)
    }
}
