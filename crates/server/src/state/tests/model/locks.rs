//! Byte-range locks in the model.

use super::*;

#[derive(Clone, Debug)]
pub(super) struct ModelLocks {
    pub(super) bytes: [Option<LockKind>; BYTES],
    pub(super) stateid: Stateid,
    pub(super) open_owner: u8,
}

impl Model {
    /// An open of the client's, for a new lock owner.
    fn any_open(&self, client: usize, file: u64) -> Option<(u8, Stateid, (u32, u32))> {
        let of_client = |(key, _): &(&Key, &ModelOpen)| key.0 == client && key.1 == file;
        let (key, open) = self.opens.iter().find(of_client)?;
        Some((key.2, open.stateid, open.share()))
    }

    pub(super) fn lock(
        &mut self,
        key: Key,
        bytes: (usize, usize),
        kind: LockType,
        kernel_grants: Option<bool>,
    ) -> Result<(), TestCaseError> {
        let known = self.locks.get(&key).map(|locks| (locks.open_owner, locks.stateid));
        let Some((open_owner, open, _)) = self.any_open(key.0, key.1) else { return Ok(()) };
        let owner = [key.2];
        let (open_owner, target) = match &known {
            Some((open_owner, stateid)) => (*open_owner, LockTarget::Known(stateid)),
            None => (open_owner, LockTarget::New { open: &open, owner: &owner }),
        };
        let access = self.opens[&(key.0, key.1, open_owner)].share().0;
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
                self.leave_unconfirmed(key, bytes, grant);
            }
            Ok(grant) if kernel_grants != Some(false) => {
                prop_assert!(!has_conflict);
                self.perform_effects()?;
                self.mirrored.insert(grant.lock);
                let confirmed = self.bed.state.confirm_lock(grant, &mut self.bed.step);
                let stateid = confirmed.map_err(|status| TestCaseError::fail(status.name()))?;
                let new = ModelLocks { bytes: [None; BYTES], stateid, open_owner };
                let locks = self.locks.entry(key).or_insert(new);
                locks.bytes[bytes.0..=bytes.1].fill(Some(kind.into()));
                locks.stateid = stateid;
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

    pub(super) fn unlock(&mut self, key: Key, bytes: (usize, usize)) -> Result<(), TestCaseError> {
        let Some(locks) = self.locks.get_mut(&key) else { return Ok(()) };
        let (client, file) = (self.clients[key.0].0, FileId(key.1));
        let Bed { state, step } = &mut self.bed;
        let range = range_of(bytes);
        match state.unlock_range(client, &locks.stateid, file, range, step) {
            Ok(stateid) => {
                locks.bytes[bytes.0..=bytes.1].fill(None);
                locks.stateid = stateid;
                let own = self.unconfirmed.iter_mut().filter(|grant| grant.key == key);
                own.for_each(|grant| grant.before[bytes.0..=bytes.1].fill(None));
            }
            Err(status) => prop_assert_eq!(status, Status::Delay),
        }
        self.note_forgotten()
    }

    pub(super) fn free(&mut self, key: Key) -> Result<(), TestCaseError> {
        let Some(locks) = self.locks.get(&key) else { return Ok(()) };
        let client = self.clients[key.0].0;
        let Bed { state, step } = &mut self.bed;
        let result = state.free_stateid(client, &locks.stateid, step);
        let is_held = locks.bytes.iter().any(Option::is_some);
        prop_assert_eq!(result, if is_held { Err(Status::LocksHeld) } else { Ok(()) });
        if !is_held {
            self.locks.remove(&key);
        }
        Ok(())
    }
}
