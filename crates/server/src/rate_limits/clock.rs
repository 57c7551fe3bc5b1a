//! The virtual clock of one limit (fair queueing with finish tags).
//!
//! Clients that owe something to a limit pay at one pace: an equal share of its rate, or each at the
//! whole rate. The clock shows what a client has paid that has owed since its beginning. A call gets a
//! finish tag: the later of the clock and its client's last tag, and its cost behind that. It is paid
//! for when the clock shows its tag. The pace changes when a client begins or ceases to owe, and with
//! the rate; the clock has gone at the former pace until then, and no tag changes.

use std::collections::{BTreeSet, HashMap};

use rustc_hash::FxBuildHasher;

use super::{Flow, WAIT_MAX};

/// Clients that owe something to a limit. Beyond that, the one that would have paid first owes nothing.
pub(super) const DEBTORS_MAX: usize = 1024;
/// A call or byte is so many units per nanosecond of a second, so that the slowest clock moves in each
/// nanosecond: 1 per second, divided by [`DEBTORS_MAX`].
const UNITS_PER_SEC: u128 = 1 << 10;
const SEC_NS: u128 = 1_000_000_000;

/// A reading of the clock.
pub(super) type Tag = u128;

/// How fast the clients that owe something pay, in calls or bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// All together.
    Shared(u64),
    /// Each of them.
    Each(u64),
}

#[derive(Debug)]
pub(super) struct Clock {
    pace: Pace,
    reading: Tag,
    /// When it was read last, in nanoseconds.
    read_at: u64,
    /// The last tag of each client that owes something: none is behind the clock.
    finishes: HashMap<Flow, Tag, FxBuildHasher>,
    /// The same, in the order in which the clients will have paid.
    order: BTreeSet<(Tag, Flow)>,
}

impl Pace {
    /// How far the clock goes in so many nanoseconds while so many clients owe something.
    fn progress(self, nanoseconds: u64, clients: usize) -> Tag {
        let (rate, sharers) = self.rate(clients);
        rate * u128::from(nanoseconds) / sharers
    }

    /// The nanoseconds in which the clock goes so far.
    fn nanoseconds(self, distance: Tag, clients: usize) -> u64 {
        let (rate, sharers) = self.rate(clients);
        u64::try_from((distance * sharers).div_ceil(rate)).unwrap_or(u64::MAX)
    }

    /// Units per nanosecond, and by how many they are divided.
    fn rate(self, clients: usize) -> (u128, u128) {
        let (per_sec, sharers) = match self {
            Self::Shared(per_sec) => (per_sec, clients.max(1) as u128),
            Self::Each(per_sec) => (per_sec, 1),
        };
        (u128::from(per_sec.max(1)) * UNITS_PER_SEC, sharers)
    }
}

impl Clock {
    pub(super) fn new(pace: Pace, now: u64) -> Self {
        let (finishes, order) = (HashMap::default(), BTreeSet::new());
        Self { pace, reading: 0, read_at: now, finishes, order }
    }

    /// Changes the pace, from now on.
    pub(super) fn set_pace(&mut self, pace: Pace, now: u64) {
        if self.pace == pace {
            return;
        }
        self.advance(now);
        self.pace = pace;
        // What is a second at one rate may be a day at another.
        let latest = self.latest();
        let beyond = self.finishes.extract_if(|_, finish| *finish > latest);
        let flows: Vec<_> = beyond.map(|(flow, _)| flow).collect();
        self.order = self.finishes.iter().map(|(flow, finish)| (*finish, *flow)).collect();
        flows.into_iter().for_each(|flow| self.set(flow, latest));
    }

    /// Has a client owe so many calls or bytes more, up to the longest debt. Returns its last tag, and
    /// how many more it owes.
    pub(super) fn charge(&mut self, flow: Flow, count: u64, now: u64) -> (Tag, u64) {
        self.advance(now);
        let former = self.finishes.get(&flow).copied();
        let begin = former.unwrap_or(self.reading);
        if count == 0 {
            return (begin, 0);
        }
        if former.is_none() && self.finishes.len() >= DEBTORS_MAX {
            self.forget_first();
        }
        let finish = begin + units(count);
        self.set(flow, finish);
        let finish = finish.min(self.latest());
        self.set(flow, finish);
        let added = finish.saturating_sub(begin) / units(1);
        (finish, u64::try_from(added).unwrap_or(count))
    }

    /// Has a client owe so many calls or bytes less, of those that a charge has added. Its earlier tags stay, but none is behind its last.
    pub(super) fn give_back(&mut self, flow: Flow, count: u64, now: u64) {
        self.advance(now);
        if let Some(finish) = self.finishes.get(&flow) {
            self.set(flow, finish.saturating_sub(units(count)));
        }
    }

    /// The nanoseconds until the clock shows a tag of a client, if no client begins to owe something
    /// until then; 0 for a client that owes nothing.
    pub(super) fn delay(&mut self, flow: Flow, tag: Tag, now: u64) -> u64 {
        self.advance(now);
        let Some(finish) = self.finishes.get(&flow) else { return 0 };
        let (tag, mut reading) = (tag.min(*finish), self.reading);
        if matches!(self.pace, Pace::Each(_)) {
            return self.pace.nanoseconds(tag.saturating_sub(reading), 1);
        }
        let (mut clients, mut nanoseconds) = (self.order.len(), 0_u64);
        // Each that has paid leaves its share to the others.
        for (finish, _) in self.order.iter().take_while(|(finish, _)| *finish < tag) {
            let needed = self.pace.nanoseconds(*finish - reading, clients);
            nanoseconds = nanoseconds.saturating_add(needed);
            (reading, clients) = (*finish, clients - 1);
        }
        nanoseconds.saturating_add(self.pace.nanoseconds(tag.saturating_sub(reading), clients))
    }

    /// Moves the clock on until now, and forgets the clients that have paid.
    fn advance(&mut self, now: u64) {
        let mut elapsed = now.saturating_sub(self.read_at);
        self.read_at = self.read_at.max(now);
        while let Some((finish, _)) = self.order.first() {
            let needed = self.pace.nanoseconds(*finish - self.reading, self.order.len());
            if needed > elapsed {
                self.reading += self.pace.progress(elapsed, self.order.len());
                return;
            }
            elapsed -= needed;
            self.reading = *finish;
            self.forget_first();
        }
    }

    /// The last tag that a call may have.
    fn latest(&self) -> Tag {
        let wait_max = u64::try_from(WAIT_MAX.as_nanos()).unwrap_or(u64::MAX);
        self.reading + self.pace.progress(wait_max, self.order.len())
    }

    /// Sets the last tag of a client.
    fn set(&mut self, flow: Flow, finish: Tag) {
        let former = self.finishes.remove(&flow);
        former.inspect(|former| _ = self.order.remove(&(*former, flow)));
        if finish > self.reading {
            self.finishes.insert(flow, finish);
            self.order.insert((finish, flow));
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, flow)) = self.order.pop_first() {
            self.finishes.remove(&flow);
        }
    }
}

/// Calls or bytes as a distance on the clock.
fn units(count: u64) -> Tag {
    Tag::from(count) * UNITS_PER_SEC * SEC_NS
}

#[cfg(test)]
mod tests;
