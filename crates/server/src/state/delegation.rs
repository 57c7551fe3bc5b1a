//! Delegations: grants, DELEGRETURN, recalls, and the check of their stateids.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use proto::nfs4::{ClientId, Stateid, Status};

use super::delegation_table::{Delegate, Delegation, DelegationTotals, Due, NotDelegated, Phase};
use super::registry::{State, Table};
use super::{DelegationId, Effect, FileId, Step};

impl State {
    /// Gives a client a read delegation of a file that it has opened for reading. The caller keeps
    /// all changes from the file meanwhile.
    ///
    /// # Errors
    /// See [`NotDelegated`].
    pub(crate) fn delegate(
        &self,
        call: &Delegate,
        now: Duration,
    ) -> Result<(DelegationId, Stateid), NotDelegated> {
        let mut table = self.lock();
        let has_writer = self.has_writer_in(&table, call.file, now);
        let Table { clients, files, grace, delegations, .. } = &mut *table;
        let peer = clients.get(call.client).ok_or(NotDelegated::Resource)?.peer;
        // A client has one of a file at most, and one that is recalled is not given anew before.
        let is_in_the_way = |(_, other): (DelegationId, &Delegation)| {
            other.client == call.client || other.phase != Phase::Held
        };
        if delegations.of_file(call.file).any(is_in_the_way)
            || has_writer
            || (grace.is_active() && !call.is_reclaim)
            || delegations.is_held_off(call.file, now)
        {
            return Err(NotDelegated::Contention);
        }
        let of_peer = clients.of_same_peer(call.client).map(|id| delegations.of_client(id));
        if delegations.len() >= self.limits.delegations_max
            || of_peer.sum::<usize>() >= self.limits.peer_delegations_max
        {
            return Err(NotDelegated::Resource);
        }
        let id = DelegationId(files.next_number());
        delegations.add(id, call, peer);
        Ok((id, self.delegation_stateid(id)))
    }

    /// When a client that may reclaim was recorded. All its delegations were given later, or held
    /// then.
    pub(crate) fn recorded_at(&self, client: ClientId) -> Option<SystemTime> {
        let Table { clients, grace, .. } = &*self.lock();
        let client = clients.get(client)?;
        grace.recorded_at(&client.owner, client.principal)
    }

    /// Whether a delegation is there, not revoked.
    pub(crate) fn has_delegation(&self, id: DelegationId) -> bool {
        self.lock().delegations.get(id).is_some()
    }

    /// DELEGRETURN, RFC 8881 §18.6.
    ///
    /// # Errors
    /// `BadStateid`; `DelegRevoked`; `AdminRevoked` for a stateid of an export that was removed.
    pub(crate) fn return_delegation(
        &self,
        client: ClientId,
        stateid: &Stateid,
        file: FileId,
        step: &mut Step,
    ) -> Result<(), Status> {
        let mut table = self.lock();
        let id = self
            .delegation(&table, client, stateid)
            .ok_or_else(|| self.other_than_delegation(&table, client, stateid))??;
        if table.delegations.get(id).is_none_or(|found| found.file != file) {
            return Err(Status::BadStateid);
        }
        table.delegations.remove(id, step);
        self.forget_recall(&table, client, id);
        table.delegations.note_returned(file, step.now);
        Ok(())
    }

    /// Checks the stateid of an OPEN by `CLAIM_DELEGATE_CUR`. Returns the user of the delegation.
    ///
    /// # Errors
    /// As of [`Self::return_delegation`].
    pub(crate) fn check_delegation(
        &self,
        client: ClientId,
        stateid: &Stateid,
        file: FileId,
    ) -> Result<u32, Status> {
        let table = self.lock();
        self.delegated_user(&table, (client, file), stateid, false)
            .ok_or_else(|| self.other_than_delegation(&table, client, stateid))?
    }

    /// Recalls all delegations of a file, because something conflicts with them; `is_local` is a
    /// local program's open, for which the kernel waits less long. Those of expired clients end at
    /// once.
    pub(crate) fn recall(&self, file: FileId, is_local: bool, step: &mut Step) {
        let mut table = self.lock();
        let due = if is_local {
            Due::within_local(self.limits.local_recall, step.now)
        } else {
            self.due(step)
        };
        self.recall_where(&mut table, file, due, |_| true, step);
    }

    /// When a delegation is to be returned that a client's call recalls.
    pub(super) fn due(&self, step: &Step) -> Due {
        Due::within(self.limits.recall, step.now)
    }

    /// Recalls the delegations of a file for which `conflicts` holds of their clients. Returns
    /// whether any is left.
    pub(super) fn recall_where(
        &self,
        table: &mut Table,
        file: FileId,
        due: Due,
        conflicts: impl Fn(ClientId) -> bool,
        step: &mut Step,
    ) -> bool {
        let found = |table: &Table| -> Vec<_> {
            let of_file = table.delegations.of_file(file).map(|(id, found)| (id, found.client));
            of_file.filter(|(_, client)| conflicts(*client)).collect()
        };
        let holders: BTreeSet<_> = found(table).into_iter().map(|(_, client)| client).collect();
        self.forget_expired(table, holders, step);
        let left = found(table);
        for (id, _) in &left {
            table.delegations.recall(*id, step.now, due);
            self.send_recall(table, *id, step);
        }
        !left.is_empty()
    }

    /// Sends the recalls that are due, and revokes what was not returned in time. To be called
    /// about once a second.
    pub(super) fn attend_recalls(&self, table: &mut Table, step: &mut Step) {
        for id in table.delegations.recalled() {
            // An expired client that was forgotten in this loop has none left.
            let Some(client) = table.delegations.get(id).map(|found| found.client) else {
                continue;
            };
            if table.clients.get(client).is_some_and(|client| client.lease.waits_for_memory()) {
                table.delegations.put_off(id, step.now);
            }
            if !table.delegations.is_late(id, step.now) {
                self.send_recall(table, id, step);
            } else if !self.forget_expired(table, [client], step) {
                table.delegations.revoke(id, step);
                self.forget_recall(table, client, id);
                table.revise_client(client);
            }
        }
        table.delegations.end_hold_offs(step.now);
    }

    pub(super) fn delegation_stateid(&self, id: DelegationId) -> Stateid {
        self.stateid(id.0, SEQID)
    }

    fn send_recall(&self, table: &mut Table, id: DelegationId, step: &mut Step) {
        let stateid = self.delegation_stateid(id);
        if let Some((client, recall)) = table.delegations.due_recall(id, stateid, step.now) {
            step.effects.push(Effect::Recall { client, recall });
        }
    }

    /// Ends what a client knows of a revoked delegation, FREE_STATEID. `None` if the stateid is of
    /// something else.
    ///
    /// # Errors
    /// `BadStateid`; `LocksHeld` if it is not revoked.
    pub(super) fn free_delegation(
        &self,
        table: &mut Table,
        client: ClientId,
        stateid: &Stateid,
    ) -> Option<Result<(), Status>> {
        Some(match self.delegation(table, client, stateid)? {
            Ok(_) => Err(Status::LocksHeld),
            Err(Status::DelegRevoked) => {
                table.delegations.revoked.free(client, self.number(stateid).ok()?);
                table.revise_client(client);
                Ok(())
            }
            Err(status) => Err(status),
        })
    }

    /// Checks the stateid of a READ, WRITE or their like: the user who opened the file, or the
    /// status. `None` if the stateid is of something else.
    ///
    /// # Errors
    /// `BadStateid`, also for another file; `DelegRevoked`; `Openmode` for a write.
    pub(super) fn delegated_user(
        &self,
        table: &Table,
        (client, file): (ClientId, FileId),
        stateid: &Stateid,
        writes: bool,
    ) -> Option<Result<u32, Status>> {
        let id = match self.delegation(table, client, stateid)? {
            Ok(id) => id,
            Err(status) => return Some(Err(status)),
        };
        let delegation = table.delegations.get(id)?;
        Some(match (delegation.file == file, writes) {
            (false, _) => Err(Status::BadStateid),
            (true, true) => Err(Status::Openmode),
            (true, false) => Ok(delegation.user),
        })
    }

    /// The delegation that a stateid names; `None` if it is of something else.
    ///
    /// # Errors
    /// `BadStateid` for that of another client and for a seqid that it never had; `DelegRevoked`.
    pub(super) fn delegation(
        &self,
        table: &Table,
        client: ClientId,
        stateid: &Stateid,
    ) -> Option<Result<DelegationId, Status>> {
        let number = self.number(stateid).ok()?;
        let (id, was_given) = (DelegationId(number), stateid.seqid <= SEQID);
        if was_given && table.delegations.revoked.contains(client, number) {
            return Some(Err(Status::DelegRevoked));
        }
        let delegation = table.delegations.get(id)?;
        let is_known = delegation.client == client && was_given;
        Some(if is_known { Ok(id) } else { Err(Status::BadStateid) })
    }

    /// The error of a stateid of no delegation where one is required.
    fn other_than_delegation(&self, table: &Table, client: ClientId, stateid: &Stateid) -> Status {
        match self.key(table, client, stateid) {
            Err(Status::AdminRevoked) => Status::AdminRevoked,
            Ok(_) | Err(_) => Status::BadStateid,
        }
    }

    pub(crate) fn delegation_totals(&self) -> DelegationTotals {
        self.lock().delegations.totals()
    }
}

impl Table {
    /// Whether a client has opens or delegations.
    pub(super) fn has_state(&self, client: ClientId) -> bool {
        self.files.has_state(client) || self.delegations.has_live(client)
    }
}

/// The seqid of all stateids of delegations: none is ever changed.
const SEQID: u32 = 1;
