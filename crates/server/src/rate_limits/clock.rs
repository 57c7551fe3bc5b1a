//! The virtual clock of one limit (fair queueing with finish tags).
//!
//! Clients that owe something to a limit pay at one pace: an equal share of its rate, or each at
//! the whole rate. The clock shows what a client has paid that has owed since its beginning. A call
//! gets a finish tag: the later of the clock and its client's last tag, and its cost behind that.
//! It is paid for when the clock shows its tag. The pace changes when a client begins or ceases to
//! owe, and with the rate; the clock has gone at the former pace until then, and no tag changes.

use std::collections::{BTreeSet, HashMap};

use rustc_hash::FxBuildHasher;

use super::{Prefix, WAIT_MAX};

/// Clients that owe something to a limit. Beyond that, the one that would have paid first owes
/// nothing.
pub(super) const DEBTORS_MAX: usize = 1024;
/// A call or byte is so many units per nanosecond of a second, so that the slowest clock moves in
/// each nanosecond: 1 per second, divided by [`DEBTORS_MAX`].
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
    /// The clients that owe something: the last tag of none is behind the clock.
    debtors: HashMap<Prefix, Debtor, FxBuildHasher>,
    /// Their last tags, in the order in which they will have paid.
    order: BTreeSet<(Tag, Prefix)>,
}

/// The debt of a client to the limit, in readings of the clock.
#[derive(Debug, Clone, Copy)]
struct Debtor {
    /// Its last tag.
    finish: Tag,
    /// Since when it owes something, in nanoseconds.
    since: u64,
    /// Its charges since then for calls that are not settled: so much may be given back.
    at_work: Tag,
    /// The charges that the longest debt has cut, as far as calls at work may give them back: they
    /// give these back first, because the other calls have used what is owed, or may do so.
    cut: Tag,
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
        let (debtors, order) = (HashMap::default(), BTreeSet::new());
        Self { pace, reading: 0, read_at: now, debtors, order }
    }

    /// Changes the pace, from now on.
    pub(super) fn set_pace(&mut self, pace: Pace, now: u64) {
        if self.pace == pace {
            return;
        }
        self.advance(now);
        self.pace = pace;
        // A debt of a second at one rate may be one of a day at another.
        let latest = self.latest();
        let beyond = self.order.iter().filter(|(finish, _)| *finish > latest);
        let prefixes: Vec<_> = beyond.map(|(_, prefix)| *prefix).collect();
        for prefix in prefixes {
            if let Some(debtor) = self.debtors.get(&prefix).copied() {
                self.set(prefix, debtor.cut_to(latest));
            }
        }
    }

    /// Has a client owe so many calls or bytes more for a call, until that is settled. Returns its
    /// last tag, and when it was charged, which [`settle`](Self::settle) needs.
    pub(super) fn charge(&mut self, prefix: Prefix, count: u64, now: u64) -> (Tag, u64) {
        self.advance(now);
        (self.owe(prefix, count, units(count)), self.read_at)
    }

    /// Has a client owe what a call has used in place of what it was charged, and when. What it was
    /// charged before its client last owed nothing is not given back. Earlier tags stay, but none
    /// is behind the last one of the client.
    pub(super) fn settle(
        &mut self,
        prefix: Prefix,
        (taken, charged_at): (u64, u64),
        used: u64,
        now: u64,
    ) {
        self.advance(now);
        let debtor = self.debtors.get(&prefix).copied();
        if let Some(mut debtor) = debtor.filter(|debtor| debtor.since <= charged_at) {
            let unused = units(taken.saturating_sub(used));
            let of_cut = unused.min(debtor.cut);
            debtor.at_work = debtor.at_work.saturating_sub(units(taken));
            debtor.cut = (debtor.cut - of_cut).min(debtor.at_work);
            debtor.finish = debtor.finish.saturating_sub(unused - of_cut);
            self.set(prefix, debtor);
        }
        self.owe(prefix, used.saturating_sub(taken), 0);
    }

    /// The nanoseconds until the clock shows a tag of a client, if no client begins to owe
    /// something until then; 0 for a client that owes nothing.
    pub(super) fn delay(&mut self, prefix: Prefix, tag: Tag, now: u64) -> u64 {
        self.advance(now);
        let Some(debtor) = self.debtors.get(&prefix) else { return 0 };
        let (tag, mut reading) = (tag.min(debtor.finish), self.reading);
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

    /// Has a client owe so many calls or bytes more, up to the longest debt, and so much of it for
    /// a call at work. Returns its last tag.
    fn owe(&mut self, prefix: Prefix, count: u64, at_work: Tag) -> Tag {
        let former = self.debtors.get(&prefix).copied();
        if count == 0 {
            return former.map_or(self.reading, |debtor| debtor.finish);
        }
        if former.is_none() && self.debtors.len() >= DEBTORS_MAX {
            self.forget_first();
        }
        let (finish, since) = (self.reading, self.read_at);
        let mut debtor = former.unwrap_or(Debtor { finish, since, at_work: 0, cut: 0 });
        debtor.finish += units(count);
        debtor.at_work = debtor.at_work.saturating_add(at_work);
        // It is one of those that share the rate from now on.
        self.set(prefix, debtor);
        let debtor = debtor.cut_to(self.latest());
        self.set(prefix, debtor);
        debtor.finish
    }

    /// The last tag that a call may have.
    fn latest(&self) -> Tag {
        let wait_max = u64::try_from(WAIT_MAX.as_nanos()).unwrap_or(u64::MAX);
        self.reading + self.pace.progress(wait_max, self.order.len())
    }

    /// Sets what a client owes.
    fn set(&mut self, prefix: Prefix, debtor: Debtor) {
        let former = self.debtors.remove(&prefix);
        former.inspect(|former| _ = self.order.remove(&(former.finish, prefix)));
        if debtor.finish > self.reading {
            self.debtors.insert(prefix, debtor);
            self.order.insert((debtor.finish, prefix));
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, prefix)) = self.order.pop_first() {
            self.debtors.remove(&prefix);
        }
    }
}

impl Debtor {
    /// With the longest debt.
    fn cut_to(self, latest: Tag) -> Self {
        let cut = self.finish.saturating_sub(latest);
        let kept = self.cut.saturating_add(cut).min(self.at_work);
        Self { finish: self.finish - cut, cut: kept, ..self }
    }
}

/// Calls or bytes as a distance on the clock.
fn units(count: u64) -> Tag {
    Tag::from(count) * UNITS_PER_SEC * SEC_NS
}

#[cfg(test)]
mod tests;
