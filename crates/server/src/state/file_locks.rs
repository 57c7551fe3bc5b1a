//! The byte-range locks of one file, and the requests that wait for them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proto::nfs4::{ClientId, FileHandle};

use super::backchannel::Notice;
use super::ranges::{LockKind, Piece, Range, Ranges};
use super::waiting::Counted;
use super::{ExportId, LockId};

/// The locks of a file.
#[derive(Debug, Default)]
pub(super) struct FileLocks {
    /// By lock state: none is empty, and those of one owner do not overlap.
    held: BTreeMap<Holder, Ranges>,
    /// Grants that the kernel is still asked for: as many as LOCKs are at work. Those of one owner
    /// do not overlap.
    unconfirmed: Vec<Unconfirmed>,
    waiters: VecDeque<Waiter>,
    /// Holders and grants that were asked for conflicts.
    #[cfg(test)]
    pub(super) visits: std::cell::Cell<usize>,
}

/// An owner as its client names it. To a client the same file in two exports is two files, so that
/// its owners are others in each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Owner {
    pub(super) client: ClientId,
    pub(super) export: ExportId,
    pub(super) name: Arc<[u8]>,
}

/// A lock state, as the holder of the ranges that were locked through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    pub(super) owner: LockId,
    /// The number of the lock state.
    pub(super) state: u64,
}

/// A granted range that the kernel is still asked for.
#[derive(Debug)]
struct Unconfirmed {
    holder: Holder,
    range: Range,
    /// The ranges that the owner held there, by lock state, without those that it has unlocked
    /// since. The kernel may have them still, so they are in the way of others.
    before: Vec<(Holder, Ranges)>,
}

/// A blocking request that was denied. Its client repeats it after a notification, or polls.
#[derive(Debug)]
struct Waiter {
    owner: Owner,
    /// The file as its client names it, which may have it from another export than others.
    object: FileHandle,
    wanted: Piece,
    /// The owner of a lock in the way, when it was last searched for.
    blocker: Option<LockId>,
    asked_at: Duration,
    /// The lock is reserved for a while from here on.
    notified_at: Option<Duration>,
    /// Its client has let a reservation lapse, and not repeated the request since.
    has_passed: bool,
    /// Shared with the notice that is under way, if there is one.
    counted: Arc<Counted>,
}

/// A blocking request that is denied.
#[derive(Debug)]
pub(super) struct Denied {
    pub(super) owner: Owner,
    /// The file as its client names it.
    pub(super) object: FileHandle,
    pub(super) wanted: Piece,
    /// The owner of the lock in the way, unless it is a reservation.
    pub(super) blocker: Option<LockId>,
}

/// Changes by which requests that wait may be granted.
#[derive(Clone, Debug, Default)]
pub(super) struct Freed {
    /// Their kinds do not matter.
    pub(super) ranges: Ranges,
    pub(super) has_reservation_ended: bool,
}

impl Freed {
    /// A reservation has ended, and nothing is unlocked.
    pub(super) fn turn() -> Self {
        Self { has_reservation_ended: true, ..Self::default() }
    }

    pub(super) fn range(range: Range) -> Self {
        let mut ranges = Ranges::default();
        ranges.lock(range, LockKind::Write);
        ranges.into()
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.ranges.add(&other.ranges);
        self.has_reservation_ended |= other.has_reservation_ended;
    }
}

impl From<Ranges> for Freed {
    fn from(ranges: Ranges) -> Self {
        Self { ranges, has_reservation_ended: false }
    }
}

impl FileLocks {
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.held.is_empty() && self.waiters.is_empty()
    }

    /// The ranges that were locked through a lock state.
    pub(super) fn of(&self, holder: Holder) -> Option<&Ranges> {
        self.held.get(&holder)
    }

    /// All ranges of an owner, by lock state.
    fn of_owner(&self, owner: LockId) -> impl Iterator<Item = (Holder, &Ranges)> {
        let holder = |state| Holder { owner, state };
        self.held.range(holder(0)..=holder(u64::MAX)).map(|(holder, ranges)| (*holder, ranges))
    }

    /// The locks of an owner within a range, cut to it.
    pub(super) fn within(&self, owner: LockId, range: Range) -> Ranges {
        let mut within = Ranges::default();
        self.of_owner(owner).for_each(|(_, ranges)| within.add(&ranges.within(range)));
        within
    }

    /// Whether to unlock `range` splits a piece of an owner.
    pub(super) fn is_split_by(&self, owner: LockId, range: Range) -> bool {
        self.of_owner(owner).any(|(_, ranges)| ranges.is_split_by(range))
    }

    /// A lock that conflicts with `wanted`, of another owner than `owner`.
    pub(super) fn conflict(&self, owner: Option<LockId>, wanted: Piece) -> Option<(LockId, Piece)> {
        let held = self.held.iter().map(|(other, ranges)| (other.owner, ranges));
        let before = self.unconfirmed.iter().flat_map(Unconfirmed::before);
        let mut others = held.chain(before).filter(|(other, _)| Some(*other) != owner);
        others.find_map(|(other, ranges)| {
            #[cfg(test)]
            self.visits.set(self.visits.get() + 1);
            Some((other, ranges.conflict(wanted)?))
        })
    }

    /// Whether a lock of this owner is in the way of another's request.
    fn is_blocker(&self, owner: LockId, wanted: Piece) -> bool {
        let held = self.of_owner(owner).map(|(_, ranges)| ranges);
        let own = self.unconfirmed.iter().filter(|grant| grant.holder.owner == owner);
        let before = own.flat_map(Unconfirmed::before).map(|(_, ranges)| ranges);
        held.chain(before).any(|ranges| {
            #[cfg(test)]
            self.visits.set(self.visits.get() + 1);
            ranges.conflict(wanted).is_some()
        })
    }

    /// Whether the kernel is still asked for a grant of the owner in the range.
    pub(super) fn is_unconfirmed(&self, owner: LockId, range: Range) -> bool {
        let is_of = |grant: &Unconfirmed| grant.holder.owner == owner;
        self.unconfirmed.iter().any(|grant| is_of(grant) && grant.range.overlaps(range))
    }

    /// Whether the kernel is still asked for a grant through a lock state, or for one that gives
    /// ranges back to it when it is denied.
    pub(super) fn is_asked_for(&self, holder: Holder) -> bool {
        let is_given_back =
            |(other, ranges): &(Holder, Ranges)| *other == holder && !ranges.is_empty();
        let mut grants = self.unconfirmed.iter();
        grants.any(|grant| grant.holder == holder || grant.before.iter().any(is_given_back))
    }

    /// The locks of the owner in the range before an unconfirmed grant, without those that it has
    /// unlocked since.
    pub(super) fn before_grant(&self, owner: LockId, range: Range) -> Option<Ranges> {
        let is_it = |grant: &&Unconfirmed| grant.holder.owner == owner && grant.range == range;
        self.unconfirmed.iter().find(is_it).map(|grant| joined(&grant.before))
    }

    /// The ranges of an owner, and those that it has again if its unconfirmed grants are undone, at
    /// most.
    pub(super) fn count_of(&self, owner: LockId) -> usize {
        let own = self.unconfirmed.iter().filter(|grant| grant.holder.owner == owner);
        // One more each: a grant may have joined two ranges.
        let before =
            own.flat_map(|grant| grant.before().map(|(_, ranges)| ranges.len()).chain([1]));
        let held = self.of_owner(owner).map(|(_, ranges)| ranges.len());
        held.chain(before).sum()
    }

    /// Grants a lock that the kernel is to be asked for: [`Self::confirm`] and [`Self::undo`] end
    /// it. What the owner held there through other lock states is replaced too.
    pub(super) fn grant(&mut self, holder: Holder, Piece { range, kind }: Piece) {
        let before =
            self.of_owner(holder.owner).map(|(other, ranges)| (other, ranges.within(range)));
        let before: Vec<_> = before.filter(|(_, ranges)| !ranges.is_empty()).collect();
        for (other, _) in &before {
            self.change(*other, |ranges| ranges.unlock(range));
        }
        self.change(holder, |ranges| ranges.lock(range, kind));
        self.unconfirmed.push(Unconfirmed { holder, range, before });
    }

    /// Confirms the grant of a range. Returns what the owner held there, without what it has
    /// unlocked since.
    pub(super) fn confirm(&mut self, owner: LockId, range: Range) -> Ranges {
        joined(&self.end_grant(owner, range))
    }

    /// Takes back the grant of a range through a lock state.
    pub(super) fn undo(&mut self, holder: Holder, range: Range) {
        let before = self.end_grant(holder.owner, range);
        self.change(holder, |ranges| ranges.unlock(range));
        for (holder, ranges) in before {
            self.change(holder, |held| held.add(&ranges));
        }
    }

    fn end_grant(&mut self, owner: LockId, range: Range) -> Vec<(Holder, Ranges)> {
        let is_it = |grant: &Unconfirmed| grant.holder.owner == owner && grant.range == range;
        let at = self.unconfirmed.iter().position(is_it);
        at.map(|at| self.unconfirmed.swap_remove(at).before).unwrap_or_default()
    }

    /// Unlocks a range of an owner, also for the time when its unconfirmed grants are undone.
    /// Returns what that frees, if any request waits. What was there before a grant is within the
    /// grant.
    pub(super) fn unlock(&mut self, owner: LockId, range: Range) -> Freed {
        let freed = if self.has_waiters() { self.within(owner, range) } else { Ranges::default() };
        let holders: Vec<_> = self.of_owner(owner).map(|(holder, _)| holder).collect();
        for holder in holders {
            self.change(holder, |ranges| ranges.unlock(range));
        }
        let own = self.unconfirmed.iter_mut().filter(|grant| grant.holder.owner == owner);
        own.flat_map(|grant| &mut grant.before).for_each(|(_, ranges)| ranges.unlock(range));
        freed.into()
    }

    /// Forgets a lock state with its ranges, and the last one of an owner with its grants. Returns
    /// what that frees.
    pub(super) fn end(&mut self, holder: Holder, is_last: bool) -> Freed {
        self.unconfirmed.retain_mut(|grant| {
            grant.before.retain(|(held, _)| *held != holder);
            grant.holder.owner != holder.owner || !is_last
        });
        self.held.remove(&holder).unwrap_or_default().into()
    }

    fn change(&mut self, holder: Holder, change: impl FnOnce(&mut Ranges)) {
        let ranges = self.held.entry(holder).or_default();
        change(ranges);
        if ranges.is_empty() {
            self.held.remove(&holder);
        }
    }

    /// Notes a denied request, once however often it is repeated. `counted` is what a new one
    /// holds; without it, and when `waiters_max` wait for the file, the client has to poll. Returns
    /// whether a reservation has ended with that: others may have waited for it, and are to be
    /// woken.
    pub(super) fn wait(
        &mut self,
        Denied { owner, object, wanted, blocker }: Denied,
        (counted, waiters_max): (Option<Arc<Counted>>, usize),
        now: Duration,
    ) -> bool {
        self.forget_lost_waiters(now);
        let is_same = |waiter: &&mut Waiter| waiter.owner == owner && waiter.wanted == wanted;
        if let Some(known) = self.waiters.iter_mut().find(is_same) {
            (known.object, known.asked_at, known.has_passed) = (object, now, false);
            known.blocker = blocker;
            // The next notice does not wait until the last one is answered.
            known.counted = counted.unwrap_or_else(|| Arc::clone(&known.counted));
            return known.notified_at.take().is_some();
        }
        if self.waiters.len() < waiters_max
            && let Some(counted) = counted
        {
            let (asked_at, notified_at, has_passed) = (now, None, false);
            self.waiters.push_back(Waiter {
                owner,
                object,
                wanted,
                blocker,
                asked_at,
                notified_at,
                has_passed,
                counted,
            });
        }
        false
    }

    /// The clients of the requests that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = ClientId> {
        self.waiters.iter().map(|waiter| waiter.owner.client)
    }

    pub(super) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Forgets the requests that their clients have not repeated. A reservation is ended first, by
    /// [`Self::end_reservations`].
    fn forget_lost_waiters(&mut self, now: Duration) {
        self.waiters.retain(|waiter| {
            waiter.notified_at.is_some() || now.saturating_sub(waiter.asked_at) <= WAITER_LIFETIME
        });
    }

    /// Moves the requests behind all others whose clients have let the reservation lapse, and
    /// forgets those that were not repeated. Returns whether a reservation has ended: others may
    /// have waited for it, and are to be woken.
    pub(super) fn end_reservations(&mut self, now: Duration) -> bool {
        let has_lapsed =
            |waiter: &Waiter| waiter.notified_at.is_some() && !waiter.holds_reservation(now);
        let has_any = self.waiters.iter().any(has_lapsed);
        if has_any {
            let (mut lapsed, others): (VecDeque<_>, VecDeque<_>) =
                self.waiters.drain(..).partition(has_lapsed);
            self.waiters = others;
            for waiter in &mut lapsed {
                (waiter.notified_at, waiter.has_passed) = (None, true);
            }
            self.waiters.append(&mut lapsed);
        }
        self.forget_lost_waiters(now);
        has_any
    }

    /// The request that `wanted` has to let pass: it waits longer, and its client was just
    /// notified.
    pub(super) fn reservation(
        &self,
        owner: &Owner,
        wanted: Piece,
        now: Duration,
    ) -> Option<(&Owner, Piece)> {
        let ahead = self.waiters.iter().take_while(|w| w.owner != *owner || w.wanted != wanted);
        let mut reserved = ahead.filter(|waiter| waiter.holds_reservation(now));
        let found =
            reserved.find(|waiter| waiter.owner != *owner && waiter.wanted.conflicts(wanted))?;
        Some((&found.owner, found.wanted))
    }

    /// Ends the wait of a request that was granted. Returns whether a reservation has ended with
    /// that, as in [`Self::wait`].
    pub(super) fn stop_waiting(&mut self, owner: &Owner, range: Range) -> bool {
        let is_granted = |waiter: &Waiter| waiter.owner == *owner && waiter.wanted.range == range;
        let mut granted = self.waiters.iter().filter(|waiter| is_granted(waiter));
        let has_ended = granted.any(|waiter| waiter.notified_at.is_some());
        self.waiters.retain(|waiter| !is_granted(waiter));
        has_ended
    }

    /// Ends all waits of a client in an export. Returns whether a reservation has ended with that,
    /// as in [`Self::wait`].
    pub(super) fn stop_waiting_in(&mut self, client: ClientId, export: ExportId) -> bool {
        let is_of = |owner: &Owner| (owner.client, owner.export) == (client, export);
        let mut ended = self.waiters.iter().filter(|waiter| is_of(&waiter.owner));
        let has_ended = ended.any(|waiter| waiter.notified_at.is_some());
        self.waiters.retain(|waiter| !is_of(&waiter.owner));
        has_ended
    }

    /// Notices for the owners whose requests can be granted now because of what is freed, in the
    /// order in which they asked. `lock_of` gives the [`LockId`] of an owner.
    ///
    /// All locks are searched only for a request whose blocker has gone, and then once for all
    /// requests that the next blocker is in the way of. Otherwise a client that locks and unlocks
    /// in turn could make each request cost a search.
    pub(super) fn wake(
        &mut self,
        freed: &Freed,
        now: Duration,
        lock_of: impl Fn(&Owner) -> Option<LockId>,
    ) -> Vec<(ClientId, Notice)> {
        let has_ended = self.end_reservations(now) || freed.has_reservation_ended;
        let mut waiters = std::mem::take(&mut self.waiters);
        let (mut ahead, mut woken) = (Vec::<(Owner, Piece)>::new(), Vec::new());
        let mut blockers = Vec::new();
        for waiter in &mut waiters {
            if waiter.holds_reservation(now) {
                ahead.push((waiter.owner.clone(), waiter.wanted));
                continue;
            }
            // A client misses a notice at times: one that has let its turn pass gets another with
            // what is freed, and none when the turn of others has passed.
            let may_be_granted = freed.ranges.overlapping(waiter.wanted.range).next().is_some()
                || (has_ended && !waiter.has_passed);
            if !may_be_granted {
                continue;
            }
            let is_behind = ahead
                .iter()
                .any(|(owner, wanted)| *owner != waiter.owner && wanted.conflicts(waiter.wanted));
            if is_behind || self.is_blocked(waiter, lock_of(&waiter.owner), &mut blockers) {
                continue;
            }
            waiter.notified_at = Some(now);
            let has_notice = Arc::strong_count(&waiter.counted) > 1;
            if !has_notice {
                let Owner { client, name: owner, .. } = waiter.owner.clone();
                let (object, _counted) = (waiter.object, Arc::clone(&waiter.counted));
                woken.push((client, Notice { object, owner, _counted }));
            }
            ahead.push((waiter.owner.clone(), waiter.wanted));
        }
        self.waiters = waiters;
        woken
    }

    /// Whether a lock is in the way of a request. `own` is the [`LockId`] of its owner, and
    /// `blockers` are the owners of locks that were found in the way of others.
    fn is_blocked(
        &self,
        waiter: &mut Waiter,
        own: Option<LockId>,
        blockers: &mut Vec<LockId>,
    ) -> bool {
        let is_blocker = |id: &LockId| Some(*id) != own && self.is_blocker(*id, waiter.wanted);
        let known = waiter.blocker.into_iter().chain(blockers.iter().copied()).find(is_blocker);
        waiter.blocker = known.or_else(|| {
            let (found, _) = self.conflict(own, waiter.wanted)?;
            blockers.push(found);
            Some(found)
        });
        waiter.blocker.is_some()
    }
}

impl Unconfirmed {
    /// The ranges of `before`, each with its owner.
    fn before(&self) -> impl Iterator<Item = (LockId, &Ranges)> {
        self.before.iter().map(|(holder, ranges)| (holder.owner, ranges))
    }
}

/// The ranges of an owner, whatever it has locked them through.
fn joined(held: &[(Holder, Ranges)]) -> Ranges {
    let mut joined = Ranges::default();
    held.iter().for_each(|(_, ranges)| joined.add(ranges));
    joined
}

impl Waiter {
    fn holds_reservation(&self, now: Duration) -> bool {
        self.notified_at.is_some_and(|at| now.saturating_sub(at) <= RESERVED_FOR)
    }
}

/// Requests that may wait for one file.
pub(super) const WAITERS_MAX: usize = 256;
/// Those of one address.
pub(super) const PEER_WAITERS_MAX: usize = WAITERS_MAX / 2;
/// How long a request waits for its client to repeat it. Linux polls every 30 s at the latest.
const WAITER_LIFETIME: Duration = Duration::from_secs(60);
/// How long a notified client has to repeat its request before others are served. Its process may
/// have ended.
const RESERVED_FOR: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(client: u64) -> Owner {
        let (client, export) = (ClientId(client), ExportId(0));
        Owner { client, export, name: b"owner".as_slice().into() }
    }

    fn piece(first: u64, last: u64, kind: LockKind) -> Piece {
        Piece { range: Range { first, last }, kind }
    }

    /// Asks for a lock of the file that each client has a handle of its own for.
    fn wait(locks: &mut FileLocks, client: u64, wanted: Piece, now: Duration) {
        let (owner, object, blocker) = (owner(client), object(client), None);
        locks.wait(Denied { owner, object, wanted, blocker }, (counted(), WAITERS_MAX), now);
    }

    fn object(client: u64) -> FileHandle {
        FileHandle::new(&client.to_be_bytes()).unwrap()
    }

    fn notice(client: u64) -> (ClientId, Notice) {
        let (object, _counted) = (object(client), Arc::default());
        (ClientId(client), Notice { object, owner: owner(client).name, _counted })
    }

    fn counted() -> Option<Arc<Counted>> {
        Some(Arc::default())
    }

    fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn lock(locks: &mut FileLocks, id: u64, piece: Piece) {
        assert_eq!(locks.conflict(Some(LockId(id)), piece), None);
        locks.grant(Holder { owner: LockId(id), state: id }, piece);
        locks.confirm(LockId(id), piece.range);
    }

    fn unlock(locks: &mut FileLocks, id: u64, range: Range) {
        locks.unlock(LockId(id), range);
    }

    #[test]
    fn conflicts_are_between_owners_and_need_a_write_lock() {
        let mut locks = FileLocks::default();
        lock(&mut locks, 1, piece(0, 9, LockKind::Read));
        lock(&mut locks, 2, piece(5, 14, LockKind::Read));
        let wanted = piece(9, 9, LockKind::Write);
        assert_eq!(
            locks.conflict(Some(LockId(1)), wanted),
            Some((LockId(2), piece(5, 14, LockKind::Read)))
        );
        assert_eq!(locks.conflict(None, piece(15, 20, LockKind::Write)), None);
        unlock(&mut locks, 2, Range { first: 0, last: u64::MAX });
        assert_eq!(locks.conflict(Some(LockId(1)), wanted), None);
        unlock(&mut locks, 1, Range { first: 0, last: u64::MAX });
        assert!(locks.is_unused());
    }

    #[test]
    fn waiters_are_served_in_order_and_readers_together() {
        let mut locks = FileLocks::default();
        let none = |_: &Owner| None;
        lock(&mut locks, 1, piece(0, 9, LockKind::Write));
        let [read, write] = [LockKind::Read, LockKind::Write].map(|kind| piece(0, 0, kind));
        for (client, wanted) in [(2, read), (3, read), (4, write), (2, read)] {
            wait(&mut locks, client, wanted, at(1));
        }
        let freed = &Freed::range(Range { first: 0, last: 9 });
        assert_eq!(locks.wake(freed, at(2), none), []);
        unlock(&mut locks, 1, Range { first: 0, last: 9 });
        let beyond = &Freed::range(Range { first: 1, last: 9 });
        assert_eq!(locks.wake(beyond, at(2), none), [], "none waits for this");
        assert_eq!(locks.wake(freed, at(2), none), [notice(2), notice(3)]);
        assert_eq!(locks.wake(freed, at(2), none), [], "each is notified once");
        assert_eq!(locks.reservation(&owner(4), write, at(3)), Some((&owner(2), read)));
        assert!(locks.reservation(&owner(9), write, at(3)).is_some(), "a newcomer waits too");
        assert_eq!(locks.reservation(&owner(9), read, at(3)), None);
        assert_eq!(locks.reservation(&owner(4), write, at(4)), None, "it is over");
        for client in [2, 3] {
            locks.stop_waiting(&owner(client), read.range);
        }
        assert_eq!(locks.wake(freed, at(4), none), [notice(4)]);
        assert!(locks.stop_waiting_in(ClientId(4), ExportId(0)), "its reservation ends");
        assert!(locks.is_unused());
    }

    #[test]
    fn requests_that_are_not_repeated_are_forgotten() {
        let mut locks = FileLocks::default();
        lock(&mut locks, 1, piece(0, 0, LockKind::Write));
        for client in 0..WAITERS_MAX as u64 + 9 {
            wait(&mut locks, client, piece(0, 0, LockKind::Write), at(1));
        }
        assert_eq!(locks.waiters.len(), WAITERS_MAX);
        wait(&mut locks, 1, piece(0, 0, LockKind::Write), at(62));
        assert_eq!(locks.waiters.len(), 1);
    }
}
