//! Read delegations, RFC 8881 §10.2 to §10.4: while a client holds one, no other opens the file for
//! writing or changes it before the client has returned it.
//!
//! A delegation is held, then recalled when something conflicts with it, and revoked when the client
//! does not return it in time. A recall is repeated until then, so that it does not matter which
//! connection loses it. What is revoked stays known until the client has freed it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use proto::nfs4::{ClientId, FileHandle, SEQ4_STATUS_RECALLABLE_STATE_REVOKED, Stateid, Status};

use super::backchannel::Recall;
use super::registry::{State, Table};
use super::{DelegationId, Effect, ExportId, FileId, Step};

/// A delegation to be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delegate {
    pub(crate) client: ClientId,
    /// Pinned by the caller, until the effect [`EndDelegation`](Effect::EndDelegation).
    pub(crate) file: FileId,
    /// The export that it was opened in.
    pub(crate) export: ExportId,
    /// The file as the client names it.
    pub(crate) object: FileHandle,
    /// The user whose permission was checked.
    pub(crate) user: u32,
    /// It is one of before a restart.
    pub(crate) is_reclaim: bool,
}

/// Why a delegation is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotDelegated {
    /// Others use the file in a way that conflicts with it, or did lately.
    Contention,
    /// There are too many, or the server has no means to.
    Resource,
}

/// The number of delegations, and what has become of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DelegationTotals {
    pub(crate) granted: u64,
    /// Each counted once, however often it was repeated.
    pub(crate) recalled: u64,
    /// By DELEGRETURN.
    pub(crate) returned: u64,
    pub(crate) revoked: u64,
}

/// All delegations.
#[derive(Debug, Default)]
pub(super) struct Delegations {
    by_id: BTreeMap<DelegationId, Delegation>,
    /// Those that are not revoked.
    by_file: HashMap<FileId, BTreeSet<DelegationId>>,
    by_client: HashMap<ClientId, BTreeSet<DelegationId>>,
    /// The recalled ones.
    recalled: BTreeSet<DelegationId>,
    /// Until when a file is not delegated again, because it was recalled.
    held_off: HashMap<FileId, Duration>,
    totals: DelegationTotals,
}

#[derive(Debug)]
struct Delegation {
    client: ClientId,
    file: FileId,
    export: ExportId,
    object: FileHandle,
    user: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    Recalled {
        /// It is revoked then.
        ends_at: Duration,
        sent_at: Option<Duration>,
    },
    Revoked,
}

impl State {
    /// Gives a client a read delegation of a file that it has opened for reading. The caller keeps all
    /// changes from the file meanwhile.
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
        if clients.get(call.client).is_none() {
            return Err(NotDelegated::Resource);
        }
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
        delegations.add(id, call);
        Ok((id, self.delegation_stateid(id)))
    }

    /// Whether a delegation is there, not revoked.
    pub(crate) fn has_delegation(&self, id: DelegationId) -> bool {
        let table = self.lock();
        table.delegations.get(id).is_some_and(|found| found.phase != Phase::Revoked)
    }

    /// DELEGRETURN, RFC 8881 §18.6.
    ///
    /// # Errors
    /// `BadStateid`; `DelegRevoked`.
    pub(crate) fn return_delegation(
        &self,
        client: ClientId,
        stateid: &Stateid,
        file: FileId,
        step: &mut Step,
    ) -> Result<(), Status> {
        let mut table = self.lock();
        let id = self.delegation(&table, client, stateid).ok_or(Status::BadStateid)??;
        if table.delegations.get(id).is_none_or(|found| found.file != file) {
            return Err(Status::BadStateid);
        }
        table.delegations.remove(id, step);
        self.forget_recall(&table, client, id);
        table.delegations.note_returned(file, step.now);
        Ok(())
    }

    /// Checks the stateid of an OPEN by `CLAIM_DELEGATE_CUR`.
    ///
    /// # Errors
    /// `BadStateid`; `DelegRevoked`.
    pub(crate) fn check_delegation(
        &self,
        client: ClientId,
        stateid: &Stateid,
        file: FileId,
    ) -> Result<(), Status> {
        let table = self.lock();
        let id = self.delegation(&table, client, stateid).ok_or(Status::BadStateid)??;
        let is_of_file = table.delegations.get(id).is_some_and(|found| found.file == file);
        if is_of_file { Ok(()) } else { Err(Status::BadStateid) }
    }

    /// Recalls all delegations of a file, because something conflicts with them; `is_local` is a local
    /// program's open, for which the kernel waits less long. Those of expired clients end at once.
    pub(crate) fn recall(&self, file: FileId, is_local: bool, step: &mut Step) {
        let mut table = self.lock();
        let within = if is_local { self.limits.local_recall } else { self.limits.recall };
        self.recall_where(&mut table, file, within, |_| true, step);
    }

    /// Recalls the delegations of a file for which `conflicts` holds of their clients. Returns whether
    /// any is left.
    pub(super) fn recall_where(
        &self,
        table: &mut Table,
        file: FileId,
        within: Duration,
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
            table.delegations.recall(*id, step.now, within);
            self.send_recall(table, *id, step);
        }
        !left.is_empty()
    }

    /// Sends the recalls that are due, and revokes what was not returned in time. To be called about
    /// once a second.
    pub(super) fn attend_recalls(&self, table: &mut Table, step: &mut Step) {
        for id in table.delegations.recalled() {
            // An expired client that was forgotten in this loop has none left.
            let Some(delegation) = table.delegations.get(id) else { continue };
            let is_late =
                matches!(delegation.phase, Phase::Recalled { ends_at, .. } if ends_at <= step.now);
            let client = delegation.client;
            if !is_late {
                self.send_recall(table, id, step);
            } else if !self.forget_expired(table, [client], step) {
                table.delegations.revoke(id, step);
                self.forget_recall(table, client, id);
                Self::show_revoked_delegations(table, client);
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
        step: &mut Step,
    ) -> Option<Result<(), Status>> {
        Some(match self.delegation(table, client, stateid)? {
            Ok(_) => Err(Status::LocksHeld),
            Err(Status::DelegRevoked) => {
                let id = DelegationId(self.number(stateid).ok()?);
                table.delegations.remove(id, step);
                Self::show_revoked_delegations(table, client);
                Ok(())
            }
            Err(status) => Err(status),
        })
    }

    /// Checks the stateid of a READ, WRITE or their like: the user who opened the file, or the status.
    /// `None` if the stateid is of something else.
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
        let id = DelegationId(self.number(stateid).ok()?);
        let delegation = table.delegations.get(id)?;
        let is_known = delegation.client == client && stateid.seqid <= SEQID;
        Some(match (is_known, delegation.phase) {
            (false, _) => Err(Status::BadStateid),
            (true, Phase::Revoked) => Err(Status::DelegRevoked),
            (true, Phase::Held | Phase::Recalled { .. }) => Ok(id),
        })
    }

    pub(crate) fn delegation_totals(&self) -> DelegationTotals {
        self.lock().delegations.totals()
    }

    /// Has SEQUENCE report whether the client has to free revoked delegations.
    fn show_revoked_delegations(table: &Table, client: ClientId) {
        if let Some(known) = table.clients.get(client) {
            let has_revoked = table.delegations.has_revoked(client);
            known.lease.show(SEQ4_STATUS_RECALLABLE_STATE_REVOKED, has_revoked);
        }
    }
}

impl Table {
    /// Whether a client has opens or delegations.
    pub(super) fn has_state(&self, client: ClientId) -> bool {
        self.files.has_state(client) || self.delegations.has_live(client)
    }
}

impl Delegations {
    fn get(&self, id: DelegationId) -> Option<&Delegation> {
        self.by_id.get(&id)
    }

    /// The recalled ones.
    fn recalled(&self) -> Vec<DelegationId> {
        self.recalled.iter().copied().collect()
    }

    /// Whether a file is not to be delegated again yet, because it was recalled.
    fn is_held_off(&self, file: FileId, now: Duration) -> bool {
        self.held_off.get(&file).is_some_and(|until| now < *until)
    }

    /// Notes that a file was returned in time, if it was recalled.
    fn note_returned(&mut self, file: FileId, now: Duration) {
        self.totals.returned += 1;
        if let Some(until) = self.held_off.get_mut(&file) {
            *until = (now + HOLD_OFF).min(*until);
        }
    }

    /// Forgets what was recalled long ago.
    fn end_hold_offs(&mut self, now: Duration) {
        self.held_off.retain(|_, until| now < *until);
    }

    /// All that the server keeps in mind, revoked ones too.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The same of a client.
    fn of_client(&self, client: ClientId) -> usize {
        self.by_client.get(&client).map_or(0, BTreeSet::len)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_unused = self.by_file.is_empty() && self.by_client.is_empty();
        self.by_id.is_empty() && is_unused && self.recalled.is_empty()
    }

    fn totals(&self) -> DelegationTotals {
        self.totals
    }

    fn of_file(&self, file: FileId) -> impl Iterator<Item = (DelegationId, &Delegation)> {
        let ids = self.by_file.get(&file).into_iter().flatten();
        ids.map(|id| (*id, &self.by_id[id]))
    }

    /// Whether a client holds one that is not revoked.
    fn has_live(&self, client: ClientId) -> bool {
        self.phases_of(client).any(|phase| phase != Phase::Revoked)
    }

    fn has_revoked(&self, client: ClientId) -> bool {
        self.phases_of(client).any(|phase| phase == Phase::Revoked)
    }

    fn phases_of(&self, client: ClientId) -> impl Iterator<Item = Phase> {
        let own = self.by_client.get(&client).into_iter().flatten();
        own.map(|id| self.by_id[id].phase)
    }

    fn add(&mut self, id: DelegationId, call: &Delegate) {
        let Delegate { client, file, export, object, user, .. } = *call;
        let phase = Phase::Held;
        self.by_id.insert(id, Delegation { client, file, export, object, user, phase });
        self.by_file.entry(file).or_default().insert(id);
        self.by_client.entry(client).or_default().insert(id);
        self.totals.granted += 1;
    }

    /// Ends a delegation that is not revoked: nothing conflicts with it any more.
    fn end(&mut self, id: DelegationId, step: &mut Step) {
        let file = self.by_id[&id].file;
        self.recalled.remove(&id);
        let of_file = self.by_file.get_mut(&file).expect("the file has this one");
        of_file.remove(&id);
        if of_file.is_empty() {
            self.by_file.remove(&file);
        }
        step.effects.push(Effect::EndDelegation { file, delegation: id });
    }

    /// Takes a delegation away that was not returned in time. Its client learns of it by SEQUENCE.
    fn revoke(&mut self, id: DelegationId, step: &mut Step) {
        self.end(id, step);
        self.by_id.get_mut(&id).expect("it has ended, and is still known").phase = Phase::Revoked;
        self.totals.revoked += 1;
    }

    /// Removes a delegation.
    fn remove(&mut self, id: DelegationId, step: &mut Step) {
        let Delegation { client, phase, .. } = self.by_id[&id];
        if phase != Phase::Revoked {
            self.end(id, step);
        }
        self.by_id.remove(&id);
        let of_client = self.by_client.get_mut(&client).expect("the client has this one");
        of_client.remove(&id);
        if of_client.is_empty() {
            self.by_client.remove(&client);
        }
    }

    /// Removes all that a client holds.
    pub(super) fn remove_client(&mut self, client: ClientId, step: &mut Step) {
        let ids = self.by_client.get(&client).cloned().unwrap_or_default();
        ids.into_iter().for_each(|id| self.remove(id, step));
    }

    /// Removes all of a file in an export. Returns them, with their clients.
    pub(super) fn remove_file(
        &mut self,
        file: FileId,
        export: ExportId,
        step: &mut Step,
    ) -> Vec<(ClientId, DelegationId)> {
        let of_file = self.of_file(file).filter(|(_, found)| found.export == export);
        let removed: Vec<_> = of_file.map(|(id, found)| (found.client, id)).collect();
        removed.iter().for_each(|(_, id)| self.remove(*id, step));
        removed
    }

    /// Recalls a delegation, to be returned within `within`.
    fn recall(&mut self, id: DelegationId, now: Duration, within: Duration) {
        let delegation = self.by_id.get_mut(&id).expect("the caller has looked it up");
        let ends_at = now + within;
        match &mut delegation.phase {
            Phase::Held => {
                delegation.phase = Phase::Recalled { ends_at, sent_at: None };
                self.recalled.insert(id);
                self.totals.recalled += 1;
            }
            Phase::Recalled { ends_at: earlier, .. } => *earlier = ends_at.min(*earlier),
            Phase::Revoked => {}
        }
        let file = delegation.file;
        if self.held_off.len() < HELD_OFF_MAX || self.held_off.contains_key(&file) {
            self.held_off.insert(file, ends_at + HOLD_OFF);
        }
    }

    /// The client to be called, and the recall, if it is time to send it.
    fn due_recall(
        &mut self,
        id: DelegationId,
        stateid: Stateid,
        now: Duration,
    ) -> Option<(ClientId, Recall)> {
        let delegation = self.by_id.get_mut(&id)?;
        let Phase::Recalled { sent_at, .. } = &mut delegation.phase else { return None };
        if sent_at.is_some_and(|at| now < at + REPEAT_AFTER) {
            return None;
        }
        *sent_at = Some(now);
        Some((delegation.client, Recall { stateid, object: delegation.object }))
    }
}

/// The seqid of all stateids of delegations: none is ever changed.
const SEQID: u32 = 1;
/// A recall is repeated as long as the client has not returned the delegation.
const REPEAT_AFTER: Duration = Duration::from_secs(2);
/// A file is not delegated again for so long after a recall: what conflicted is likely to come again.
const HOLD_OFF: Duration = Duration::from_secs(30);
/// Files that this is kept in mind for.
const HELD_OFF_MAX: usize = 4096;
