//! Byte-range locks in the model.

use super::*;

/// The lock on each byte, with the owner of the open that it was taken through.
pub(super) type ModelBytes = [Option<(LockKind, u8)>; BYTES];

#[derive(Clone, Debug)]
pub(super) struct ModelLocks {
    pub(super) bytes: ModelBytes,
    /// By the owner of the open.
    pub(super) stateids: BTreeMap<u8, Stateid>,
}

/// This owner of an open, or the other one where only that will do.
fn either(owner: u8, will_do: impl Fn(u8) -> bool) -> u8 {
    if !will_do(owner) && will_do(1 - owner) { 1 - owner } else { owner }
}

impl Model {
    pub(super) fn lock(
        &mut self,
        key: Key,
        through: u8,
        (bytes, kind): ((usize, usize), LockType),
        kernel_grants: Option<bool>,
    ) -> Result<(), TestCaseError> {
        let through = either(through, |owner| self.opens.contains_key(&(key.0, key.1, owner)));
        let Some(open) = self.opens.get(&(key.0, key.1, through)) else { return Ok(()) };
        let (access, open) = (open.share().0, open.stateid);
        let known = self.locks.get(&key).and_then(|locks| locks.stateids.get(&through).copied());
        let owner = [key.2];
        let target = match &known {
            Some(stateid) => LockTarget::Known(stateid),
            None => LockTarget::New { open: &open, owner: &owner },
        };
        let (client, file) = (self.clients[key.0].0, FileId(key.1));
        let (object, range) = (object(), range_of(bytes));
        let call = Lock { client, target, file, object, range, kind, is_reclaim: false };
        let result = self.bed.state.lock_range(&call, &mut self.bed.step);
        self.note_forgotten()?;
        let needed = if kind.is_write() { 2 } else { 1 };
        if access & 2 != 0 && access & needed != 0 && self.note_lock(key) {
            prop_assert_eq!(result.unwrap_err(), LockFailure::Delegated);
            return Ok(());
        }
        let has_conflict = self.has_conflict(key, bytes, kind.into());
        match result {
            Ok(grant) if kernel_grants.is_none() && known.is_some() => {
                prop_assert!(!has_conflict);
                self.leave_unconfirmed((key, through), bytes, grant);
            }
            Ok(grant) if kernel_grants != Some(false) => {
                prop_assert!(!has_conflict);
                self.perform_effects()?;
                self.mirrored.insert(grant.lock);
                let confirmed = self.bed.state.confirm_lock(grant, &mut self.bed.step);
                let stateid = confirmed.map_err(|status| TestCaseError::fail(status.name()))?;
                let new = ModelLocks { bytes: [None; BYTES], stateids: BTreeMap::new() };
                let locks = self.locks.entry(key).or_insert(new);
                locks.bytes[bytes.0..=bytes.1].fill(Some((kind.into(), through)));
                locks.stateids.insert(through, stateid);
            }
            Ok(grant) => self.bed.state.undo_lock(grant, &mut self.bed.step),
            // A blocking request may have to let an earlier one pass.
            Err(LockFailure::Denied(_)) => prop_assert!(has_conflict || kind.is_blocking()),
            Err(LockFailure::Status(Status::Openmode)) => {
                prop_assert_eq!(access & needed, 0);
            }
            Err(failure) => prop_assert_eq!(failure, LockFailure::Status(Status::Delay)),
        }
        Ok(())
    }

    pub(super) fn test(
        &mut self,
        key: Key,
        bytes: (usize, usize),
        kind: LockType,
    ) -> Result<(), TestCaseError> {
        let name = [key.2];
        let owner = (self.clients[key.0].0, EXPORT, name.as_slice());
        let Bed { state, step } = &mut self.bed;
        let result = state.test_lock(owner, FileId(key.1), range_of(bytes), kind, step);
        self.note_forgotten()?;
        prop_assert_eq!(result.is_err(), self.has_conflict(key, bytes, kind.into()));
        Ok(())
    }

    pub(super) fn unlock(
        &mut self,
        key: Key,
        through: u8,
        bytes: (usize, usize),
    ) -> Result<(), TestCaseError> {
        let Some(locks) = self.locks.get_mut(&key) else { return Ok(()) };
        let through = either(through, |owner| locks.stateids.contains_key(&owner));
        let Some(stateid) = locks.stateids.get_mut(&through) else { return Ok(()) };
        let (client, file) = (self.clients[key.0].0, FileId(key.1));
        let Bed { state, step } = &mut self.bed;
        match state.unlock_range(client, stateid, file, range_of(bytes), step) {
            Ok(unlocked) => {
                *stateid = unlocked;
                locks.bytes[bytes.0..=bytes.1].fill(None);
                let own = self.unconfirmed.iter_mut().filter(|grant| grant.key == key);
                own.for_each(|grant| grant.before[bytes.0..=bytes.1].fill(None));
            }
            Err(status) => prop_assert_eq!(status, Status::Delay),
        }
        self.note_forgotten()
    }

    /// Whether the kernel is asked for a lock through an open, or for one that gives bytes back to
    /// it when it is denied, of an owner that locks through several.
    pub(super) fn is_tied(&self, key: Key, through: u8) -> bool {
        let mut own =
            self.unconfirmed.iter().filter(|grant| grant.key == key && self.is_alive(grant));
        let is_its = |(_, held): &(LockKind, u8)| *held == through;
        let has_part = |grant: &ModelGrant| {
            grant.through == through || grant.before.iter().flatten().any(is_its)
        };
        self.locks[&key].stateids.len() > 1 && own.any(has_part)
    }

    pub(super) fn free(&mut self, key: Key, through: u8) -> Result<(), TestCaseError> {
        let Some(locks) = self.locks.get(&key) else { return Ok(()) };
        let through = either(through, |owner| locks.stateids.contains_key(&owner));
        let Some(stateid) = locks.stateids.get(&through) else { return Ok(()) };
        let client = self.clients[key.0].0;
        let Bed { state, step } = &mut self.bed;
        let result = state.free_stateid(client, stateid, step);
        let expected = if locks.bytes.iter().flatten().any(|(_, held)| *held == through) {
            Err(Status::LocksHeld)
        } else if self.is_tied(key, through) {
            Err(Status::Delay)
        } else {
            Ok(())
        };
        prop_assert_eq!(result, expected);
        if result.is_ok() {
            self.end_stateid(key, through);
        }
        Ok(())
    }

    /// The owner of locks has none through this open any more.
    pub(super) fn end_stateid(&mut self, key: Key, through: u8) {
        let Some(locks) = self.locks.get_mut(&key) else { return };
        locks.stateids.remove(&through);
        for lock in &mut locks.bytes {
            *lock = lock.filter(|(_, held)| *held != through);
        }
        if locks.stateids.is_empty() {
            self.locks.remove(&key);
        }
    }
}
