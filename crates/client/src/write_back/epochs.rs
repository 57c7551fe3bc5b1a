//! How old pieces of data are, counted in epochs, and what is due when.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// How many pieces there are of each epoch. A new epoch begins with each request to settle what was
/// written so far; such a request is fulfilled when no piece of its epoch or an older one is left.
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

    /// The epoch of the oldest piece.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.0.first_key_value().map(|(epoch, _)| *epoch)
    }

    /// Whether there is a piece of `epoch` or an older one.
    pub(super) fn reach(&self, epoch: u64) -> bool {
        self.oldest().is_some_and(|oldest| oldest <= epoch)
    }
}

/// Blocks in the order in which something is due for them. All wait equally long, so the queue is
/// in order by itself. An entry may have become pointless; its reader knows.
#[derive(Debug, Default)]
pub(super) struct Deadlines(VecDeque<(Instant, u64)>);

impl Deadlines {
    pub(super) fn push(&mut self, due: Instant, block: u64) {
        self.0.push_back((due, block));
    }

    /// The first entry that has a point.
    pub(super) fn first(&mut self, has_point: impl Fn(Instant, u64) -> bool) -> Option<Instant> {
        while let Some(&(due, block)) = self.0.front() {
            if has_point(due, block) {
                return Some(due);
            }
            self.0.pop_front();
        }
        None
    }

    /// Takes out the first entry if it is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Instant, u64)> {
        self.0.pop_front_if(|(due, _)| *due <= now)
    }
}
