//! Stateids: their form, their check, TEST_STATEID and FREE_STATEID, RFC 8881 §8.2.

use std::cmp::Ordering;

use proto::nfs4::{ClientId, Stateid, Status};

use super::files::StateKey;
use super::registry::{State, Table};
use super::{FileId, LockId, Step};

impl State {
    /// TEST_STATEID for one stateid, RFC 8881 §18.48.
    ///
    /// # Errors
    /// `BadStateid`, `OldStateid`, `AdminRevoked`, `DelegRevoked`.
    pub(crate) fn test_stateid(&self, client: ClientId, stateid: &Stateid) -> Result<(), Status> {
        let table = self.lock();
        match self.delegation(&table, client, stateid) {
            Some(delegation) => delegation.map(drop),
            None => self.key(&table, client, stateid).map(drop),
        }
    }

    /// FREE_STATEID, RFC 8881 §18.38: ends a lock state that holds no lock, and what is known of a
    /// revoked state.
    ///
    /// # Errors
    /// `BadStateid`, `OldStateid`; `LocksHeld` for an open and for a state with locks; `Delay`
    /// while the kernel is asked for a lock through it, or for one that has taken ranges from it,
    /// of an owner that has other lock states.
    pub(crate) fn free_stateid(
        &self,
        client: ClientId,
        stateid: &Stateid,
        step: &mut Step,
    ) -> Result<(), Status> {
        let mut table = self.lock();
        if self.number(stateid).is_ok_and(|number| table.revoked.free(client, number)) {
            table.revise_client(client);
            table.settle_records(step);
            return Ok(());
        }
        if let Some(freed) = self.free_delegation(&mut table, client, stateid) {
            table.settle_records(step);
            return freed;
        }
        match self.key(&table, client, stateid)? {
            StateKey::Lock(number) if table.files.ranges(number).is_none() => {
                if table.files.is_tied(number) {
                    return Err(Status::Delay);
                }
                table.files.remove_lock_state(number, step);
                Ok(())
            }
            StateKey::Lock(_) | StateKey::Open(_) => Err(Status::LocksHeld),
        }
    }

    /// Whether a lock owner still has a lock state in a file.
    pub(crate) fn has_lock(&self, lock: LockId) -> bool {
        self.lock().files.lock_states().has(lock)
    }

    /// The stateid of a state as it is now.
    pub(super) fn stateid(&self, number: u64, seqid: u32) -> Stateid {
        let mut other = [0; 12];
        other[..4].copy_from_slice(&self.epoch.to_be_bytes());
        other[4..].copy_from_slice(&number.to_be_bytes());
        Stateid { seqid, other }
    }

    /// The number of the state that a stateid names.
    ///
    /// # Errors
    /// `BadStateid` for one of another start of the server.
    pub(super) fn number(&self, stateid: &Stateid) -> Result<u64, Status> {
        let [a, b, c, d, number @ ..] = stateid.other;
        let is_ours = u32::from_be_bytes([a, b, c, d]) == self.epoch;
        if is_ours { Ok(u64::from_be_bytes(number)) } else { Err(Status::BadStateid) }
    }

    /// The state of `client` that a stateid names. A seqid of zero is the latest.
    ///
    /// # Errors
    /// `BadStateid`, `OldStateid`, `AdminRevoked`.
    pub(super) fn key(
        &self,
        table: &Table,
        client: ClientId,
        stateid: &Stateid,
    ) -> Result<StateKey, Status> {
        self.key_and_file(table, client, stateid).map(|(key, _)| key)
    }

    fn key_and_file(
        &self,
        table: &Table,
        client: ClientId,
        stateid: &Stateid,
    ) -> Result<(StateKey, FileId), Status> {
        let number = self.number(stateid)?;
        if table.revoked.contains(client, number) {
            return Err(Status::AdminRevoked);
        }
        let key = table.files.key(number).ok_or(Status::BadStateid)?;
        let (owner, file, seqid) = table.files.facts(key);
        if owner != client {
            return Err(Status::BadStateid);
        }
        // Seqids wrap, so the nearer way round decides.
        let ahead = stateid.seqid.wrapping_sub(seqid).cast_signed();
        match ahead.cmp(&0) {
            _ if stateid.seqid == 0 => Ok((key, file)),
            Ordering::Equal => Ok((key, file)),
            Ordering::Less => Err(Status::OldStateid),
            Ordering::Greater => Err(Status::BadStateid),
        }
    }

    /// The same for a call on `file`.
    ///
    /// # Errors
    /// `BadStateid`, also for the state of another file; `OldStateid`; `AdminRevoked`.
    pub(super) fn key_of(
        &self,
        table: &Table,
        client: ClientId,
        stateid: &Stateid,
        file: FileId,
    ) -> Result<StateKey, Status> {
        let (key, own) = self.key_and_file(table, client, stateid)?;
        if own == file { Ok(key) } else { Err(Status::BadStateid) }
    }
}
