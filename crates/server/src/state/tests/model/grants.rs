//! Locks that the kernel is still asked for while clients do more.

use super::*;

/// A lock that the kernel is still asked for, of an owner that has a stateid.
pub(super) struct ModelGrant {
    pub(super) key: Key,
    /// The owner of the open.
    pub(super) through: u8,
    /// That of the owner's lock state, without its seqid.
    state: [u8; 12],
    /// The locks that the owner had in the range before, without those that it has unlocked since.
    pub(super) before: ModelBytes,
    bytes: (usize, usize),
    grant: LockGrant,
}

impl Model {
    /// Whether another owner has a lock in the way, also one that the kernel may have still.
    pub(super) fn has_conflict(
        &self,
        key: Key,
        (first, last): (usize, usize),
        kind: LockKind,
    ) -> bool {
        let is_other = |other: &Key| *other != key && other.1 == key.1 && !self.is_expired(other.0);
        let others = self.locks.iter().filter(|(other, _)| is_other(other));
        let held = others.map(|(_, locks)| &locks.bytes);
        let unconfirmed = self.unconfirmed.iter().filter(|grant| is_other(&grant.key));
        let before = unconfirmed.filter(|grant| self.is_alive(grant)).map(|grant| &grant.before);
        held.chain(before)
            .flat_map(|bytes| bytes[first..=last].iter().flatten())
            .any(|(held, _)| kind.conflicts(*held))
    }

    /// Whether the lock state of a grant has not ended.
    pub(super) fn is_alive(&self, grant: &ModelGrant) -> bool {
        let stateid =
            self.locks.get(&grant.key).and_then(|locks| locks.stateids.get(&grant.through));
        stateid.is_some_and(|stateid| stateid.other == grant.state)
    }

    pub(super) fn answer(&mut self, kernel_grants: bool) -> Result<(), TestCaseError> {
        if self.unconfirmed.is_empty() {
            return Ok(());
        }
        let asked = self.unconfirmed.remove(0);
        let is_alive = self.is_alive(&asked);
        let ModelGrant { key, through, before, bytes, grant, .. } = asked;
        let Bed { state, step } = &mut self.bed;
        let locks = self.locks.get_mut(&key).filter(|_| is_alive);
        if !kernel_grants {
            state.undo_lock(grant, step);
            if let Some(locks) = locks {
                locks.bytes[bytes.0..=bytes.1].copy_from_slice(&before[bytes.0..=bytes.1]);
            }
            return Ok(());
        }
        let confirmed = state.confirm_lock(grant, step);
        prop_assert_eq!(confirmed.is_ok(), is_alive);
        if let (Some(locks), Ok(stateid)) = (locks, confirmed) {
            locks.stateids.insert(through, stateid);
        }
        Ok(())
    }

    pub(super) fn leave_unconfirmed(
        &mut self,
        (key, through): (Key, u8),
        bytes: (usize, usize),
        grant: LockGrant,
    ) {
        let locks = self.locks.get_mut(&key).expect("the owner has a stateid");
        let (first, last) = bytes;
        let mut before = [None; BYTES];
        before[first..=last].copy_from_slice(&locks.bytes[first..=last]);
        locks.bytes[first..=last].fill(Some((grant.piece.kind, through)));
        let state = locks.stateids[&through].other;
        self.unconfirmed.push(ModelGrant { key, through, state, before, bytes, grant });
    }
}
