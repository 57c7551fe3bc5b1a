//! [`State`]: the clients and their sessions from EXCHANGE_ID until they are forgotten.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use proto::nfs4::{
    ClientId, SEQ4_STATUS_ADMIN_STATE_REVOKED, SEQ4_STATUS_RECALLABLE_STATE_REVOKED,
    SEQ4_STATUS_RESTART_RECLAIM_NEEDED, SessionId, Status,
};
use rustc_hash::FxHashMap;

use super::clients::{Case, Clients, ExchangeId, ExchangedId};
use super::delegation_table::Delegations;
use super::files::Files;
use super::grace::Grace;
use super::replies::ReplyBudget;
use super::revoked::{REVOKED_MAX, Revoked};
use super::session::Session;
use super::{Bounded, ClientRecord, ConnectionId, Effect, Limits, Principal, RecordChange, Step};

/// The state of NFS version 4.
#[derive(Debug)]
pub(crate) struct State {
    /// In clientids and stateids: those of an earlier server are not taken for ours.
    pub(super) epoch: u32,
    pub(super) limits: Limits,
    /// Makes session ids that no other client can guess.
    pub(super) session_key: (u64, u64),
    replies: Arc<ReplyBudget>,
    /// The ids are of this server's making, so a hash without a key is enough.
    sessions: RwLock<FxHashMap<SessionId, Arc<Session>>>,
    table: Mutex<Table>,
}

/// All but the sessions' slots.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) clients: Clients,
    pub(super) files: Files,
    /// Of exports that are not served any more.
    pub(super) revoked: Revoked,
    pub(super) delegations: Delegations,
    pub(super) grace: Grace,
    /// Changes that are not on the disk yet: the latest for each owner.
    ///
    /// Bounded by the clients, and the owners whose records cannot be removed from the disk.
    records: BTreeMap<Arc<[u8]>, RecordChange>,
    pub(super) sessions_made: u64,
    /// When all clients may be searched for expired ones again.
    next_search: Duration,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateCounts {
    pub(crate) clients: usize,
    pub(crate) sessions: usize,
    pub(crate) opens: usize,
    /// Delegations, revoked ones too.
    pub(crate) delegations: usize,
    /// Lock states and locked ranges.
    pub(crate) locks: usize,
    /// Blocking requests that wait.
    pub(crate) waiting: usize,
    /// Taken for the replies that slots keep.
    pub(crate) replies_bytes: usize,
    pub(crate) is_in_grace: bool,
}

impl State {
    /// No state. `epoch` is another one with each start of the server, `session_key` random, and
    /// `recorded` are the clients that may reclaim, with the times of their records: if there are
    /// any, a grace period begins.
    pub(crate) fn new(
        limits: Limits,
        epoch: u32,
        session_key: (u64, u64),
        recorded: Vec<(ClientRecord, SystemTime)>,
        now: Duration,
    ) -> Self {
        let replies = ReplyBudget::new(limits.replies_bytes_max, limits.fore.cached_bytes_max);
        let replies = Arc::new(replies);
        let table = Table {
            clients: Clients::new(epoch, Arc::clone(&replies)),
            files: Files::default(),
            revoked: Revoked::new(REVOKED_MAX),
            delegations: Delegations::new(limits.delegations_max),
            grace: Grace::new(recorded, now, limits.grace),
            records: BTreeMap::new(),
            sessions_made: 0,
            next_search: Duration::ZERO,
        };
        let table = Mutex::new(table);
        Self { epoch, limits, session_key, replies, sessions: RwLock::default(), table }
    }

    /// EXCHANGE_ID, RFC 8881 §18.35.
    ///
    /// # Errors
    /// `ClidInuse` for another principal's client; `Noent`, `NotSame` and `Perm` for an update;
    /// `Delay` when there are too many clients.
    pub(crate) fn exchange_id(
        &self,
        call: &ExchangeId<'_>,
        step: &mut Step,
    ) -> Result<ExchangedId, Status> {
        let mut table = self.lock();
        if table.grace.is_reserved(call.owner, call.principal) {
            return Err(Status::ClidInuse);
        }
        let case = table.clients.case(call, |client, id| {
            let is_expired = client.lease.expired_for(step.now, self.limits.lease).is_some();
            !is_expired && (!client.sessions.is_empty() || table.has_state(id))
        })?;
        let id = match case {
            Case::Known(id) => id,
            Case::New { replaces } => {
                for id in replaces.into_iter().flatten() {
                    self.forget(&mut table, id, step);
                }
                self.make_room_for_client(&mut table, call, step)?;
                table.clients.add(call, step.now)
            }
        };
        Ok(table.clients.exchanged(id))
    }

    /// The session with this id.
    ///
    /// # Errors
    /// `Badsession`.
    pub(crate) fn session(&self, id: SessionId) -> Result<Arc<Session>, Status> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.get(&id).cloned().ok_or(Status::Badsession)
    }

    /// DESTROY_SESSION, RFC 8881 §18.37. Its calls at work go on. The id is a secret of the client,
    /// so the principal does not matter.
    ///
    /// # Errors
    /// `Badsession`.
    pub(crate) fn destroy_session(&self, id: SessionId) -> Result<(), Status> {
        let mut table = self.lock();
        let session = self.session(id)?;
        table.clients.remove_session(session.client(), id);
        self.end_session(id);
        Ok(())
    }

    /// DESTROY_CLIENTID, RFC 8881 §18.50.
    ///
    /// # Errors
    /// `StaleClientid`; `WrongCred` for another principal; `ClientidBusy` while it has sessions or
    /// state.
    pub(crate) fn destroy_clientid(
        &self,
        id: ClientId,
        principal: Principal,
        step: &mut Step,
    ) -> Result<(), Status> {
        let mut table = self.lock();
        let client = table.clients.get(id).ok_or(Status::StaleClientid)?;
        if client.principal != principal {
            return Err(Status::WrongCred);
        }
        if !client.sessions.is_empty() || table.has_state(id) {
            return Err(Status::ClientidBusy);
        }
        self.forget(&mut table, id, step);
        Ok(())
    }

    /// BIND_CONN_TO_SESSION, RFC 8881 §18.34, for the backchannel; returns whether it is bound. The
    /// fore channel takes calls from any connection.
    ///
    /// # Errors
    /// `Badsession`.
    pub(crate) fn bind_backchannel(
        &self,
        id: SessionId,
        connection: ConnectionId,
    ) -> Result<bool, Status> {
        self.session(id)?.bind_back(connection)
    }

    /// Unbinds a closed connection from all sessions.
    pub(crate) fn connection_closed(&self, connection: ConnectionId) {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.values().for_each(|session| session.unbind(connection));
    }

    /// RECLAIM_COMPLETE, RFC 8881 §18.51: from now on the client may have new state. `is_one_fs` is
    /// for migration and changes nothing.
    ///
    /// # Errors
    /// `CompleteAlready`; `Badsession` if the client was forgotten meanwhile.
    pub(crate) fn reclaim_complete(
        &self,
        id: ClientId,
        is_one_fs: bool,
        step: &mut Step,
    ) -> Result<(), Status> {
        let mut table = self.lock();
        let Table { clients, grace, .. } = &mut *table;
        let client = clients.get_mut(id).ok_or(Status::Badsession)?;
        if is_one_fs {
            return Ok(());
        }
        if std::mem::replace(&mut client.has_reclaimed, true) {
            return Err(Status::CompleteAlready);
        }
        client.lease.show(SEQ4_STATUS_RESTART_RECLAIM_NEEDED, false);
        grace.finish(&client.owner);
        table.revise_client(id);
        table.end_grace(step.now);
        table.settle_records(step);
        Ok(())
    }

    /// The changes of records that are still to be performed. One thread at a time performs them
    /// and calls [`Self::records_changed`].
    pub(crate) fn record_changes(&self) -> Vec<RecordChange> {
        self.lock().records.values().cloned().collect()
    }

    /// These changes are on the disk. One that another has replaced meanwhile is not the latest.
    pub(crate) fn records_changed(&self, changes: &[RecordChange]) {
        let records = &mut self.lock().records;
        for change in changes {
            if records.get(change.owner()) == Some(change) {
                records.remove(change.owner());
            }
        }
    }

    /// Forgets what is due, and ends the grace period when its time is over. To be called about
    /// once a second.
    pub(crate) fn expire(&self, step: &mut Step) {
        let mut table = self.lock();
        let mut expired: Vec<_> = table
            .clients
            .iter()
            .filter_map(|(id, client)| {
                Some((client.lease.expired_for(step.now, self.limits.lease)?, id))
            })
            .collect();
        // The latest first: the others have had their courtesy.
        expired.sort_unstable();
        let mut courteous = 0;
        for (since, id) in expired {
            let courtesy = if table.files.has_ranges(id) {
                self.limits.lock_courtesy
            } else {
                self.limits.courtesy
            };
            let is_courteous =
                table.has_state(id) && since <= courtesy && courteous < self.limits.courteous_max;
            if is_courteous {
                courteous += 1;
            } else {
                self.forget_if_expired(&mut table, id, step);
            }
        }
        table.files.expire_waiters(step);
        self.attend_recalls(&mut table, step);
        table.expire_revoked(step.now, self.limits.lease);
        table.end_grace(step.now);
        table.settle_records(step);
    }

    pub(crate) fn counts(&self) -> StateCounts {
        let sessions = self.session_count();
        let table = self.lock();
        StateCounts {
            clients: table.clients.len(),
            sessions,
            opens: table.files.opens(),
            delegations: table.delegations.len(),
            locks: table.files.locks_and_ranges(),
            waiting: table.files.waiting(),
            replies_bytes: self.replies.bytes(),
            is_in_grace: table.grace.is_active(),
        }
    }

    /// Whether no entry of any table is left.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let table = self.lock();
        let has_state = !table.files.is_empty() || !table.delegations.is_empty();
        self.session_count() == 0 && table.clients.is_empty() && !has_state
    }

    /// Forgets those of the clients that have expired; true if there was one.
    pub(super) fn forget_expired(
        &self,
        table: &mut Table,
        clients: impl IntoIterator<Item = ClientId>,
        step: &mut Step,
    ) -> bool {
        let mut has_forgotten = false;
        for id in clients {
            has_forgotten |= self.forget_if_expired(table, id, step);
        }
        has_forgotten
    }

    /// Forgets all clients that have expired, because others need the room. Looks at every client,
    /// so it does nothing within [`SEARCH_PERIOD`] of the last time: a bound that is reached costs
    /// all calls the same, however many fail at it.
    pub(super) fn forget_all_expired(&self, table: &mut Table, step: &mut Step) {
        if step.now < table.next_search {
            return;
        }
        table.next_search = step.now + SEARCH_PERIOD;
        let all: Vec<_> = table.clients.iter().map(|(id, _)| id).collect();
        self.forget_expired(table, all, step);
    }

    fn forget_if_expired(&self, table: &mut Table, id: ClientId, step: &mut Step) -> bool {
        let Some(client) = table.clients.get(id) else { return false };
        let is_due = client.lease.revoke_if_expired(step.now, self.limits.lease);
        if is_due {
            self.forget(table, id, step);
        }
        is_due
    }

    /// Forgets a client with all it has.
    pub(super) fn forget(&self, table: &mut Table, id: ClientId, step: &mut Step) {
        let Some(client) = table.clients.remove(id) else { return };
        client.sessions.into_iter().for_each(|session| self.end_session(session));
        table.files.remove_client(id, step);
        table.revoked.forget_client(id);
        table.delegations.remove_client(id, step);
        if client.is_confirmed {
            // Its record may have been removed before.
            table.grace.finish(&client.owner);
        }
        if client.is_recorded {
            table.change_record(RecordChange::Remove(client.owner));
        }
        // Its removal may be under way since before.
        table.settle_records(step);
    }

    /// Makes room for a client, at the bound of its address among the clients there, and at the
    /// bound of all among all: it takes the place of the one that waits longest to be confirmed.
    /// Then the expired make room; those without state have left by [`Self::expire`].
    fn make_room_for_client(
        &self,
        table: &mut Table,
        call: &ExchangeId<'_>,
        step: &mut Step,
    ) -> Result<(), Status> {
        let ExchangeId { owner, peer, .. } = *call;
        // How many are to leave. The one that it replaces does so once it is confirmed.
        let excess = |table: &Table| {
            let replaced = usize::from(table.clients.is_confirmed_at(owner, peer));
            let count = table.clients.count_of_peer(peer) + 1;
            count.saturating_sub(self.limits.peer_clients_max + replaced)
        };
        // Others leave the place to a host that boots; two such hosts take turns.
        let replaces = table.clients.is_confirmed_at(owner, peer);
        while excess(table) > 0
            && let Some(oldest) = table.clients.oldest_unconfirmed_of(peer, replaces)
        {
            self.forget(table, oldest, step);
        }
        if excess(table) > 0 {
            let of_peer: Vec<_> = table.clients.of_peer(peer).collect();
            self.forget_expired(table, of_peer, step);
        }
        if excess(table) > 0 {
            return Err(step.put_off(peer, Bounded::Clients));
        }
        let is_full = |table: &Table| {
            let replaced = usize::from(table.clients.has_confirmed(owner));
            table.clients.len() >= self.limits.clients_max + replaced
        };
        if is_full(table)
            && let Some(oldest) = table.clients.oldest_unconfirmed()
        {
            self.forget(table, oldest, step);
        }
        if is_full(table) {
            self.forget_all_expired(table, step);
        }
        if is_full(table) { Err(step.put_off(peer, Bounded::Clients)) } else { Ok(()) }
    }

    /// Makes room for what a client asks for: at the bound of its address, which costs no client of
    /// another one its courtesy, and at the bound of all.
    ///
    /// # Errors
    /// `Delay`; `Badsession` if the client was among the expired.
    pub(super) fn make_room(
        &self,
        table: &mut Table,
        client: ClientId,
        of: Bounded,
        (is_peer_full, is_full): (impl Fn(&Table) -> bool, impl Fn(&Table) -> bool),
        step: &mut Step,
    ) -> Result<(), Status> {
        if is_peer_full(table) {
            let of_peer: Vec<_> = table.clients.of_same_peer(client).collect();
            self.forget_expired(table, of_peer, step);
            table.check_known(client)?;
        }
        if is_peer_full(table) {
            return Err(table.put_off(client, of, step));
        }
        if is_full(table) {
            self.forget_all_expired(table, step);
            table.check_known(client)?;
        }
        if is_full(table) { Err(table.put_off(client, of, step)) } else { Ok(()) }
    }

    fn end_session(&self, id: SessionId) {
        if let Some(session) = self.change_sessions(|sessions| sessions.remove(&id)) {
            session.destroy();
            session.replies.end_session();
        }
    }

    pub(super) fn change_sessions<T>(
        &self,
        change: impl FnOnce(&mut FxHashMap<SessionId, Arc<Session>>) -> T,
    ) -> T {
        change(&mut self.sessions.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn session_count(&self) -> usize {
        self.sessions.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Ends the grace period when it is time. The clients that have not reclaimed lose their
    /// records.
    fn end_grace(&mut self, now: Duration) {
        for owner in self.grace.end(now).unwrap_or_default() {
            self.clients.forget_records(&owner);
            self.change_record(RecordChange::Remove(owner));
        }
    }

    /// Takes the right to reclaim, and the record, from a client that is not confirmed since the
    /// restart. Where another incarnation of it is confirmed, that one has them.
    pub(super) fn forbid_to_reclaim(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(id).filter(|client| !client.is_confirmed) else {
            return;
        };
        let owner = Arc::clone(&client.owner);
        let is_alone = self.clients.predecessor(id).is_none();
        if is_alone && self.grace.may_reclaim(&owner, client.principal) {
            self.grace.finish(&owner);
            self.change_record(RecordChange::Remove(owner));
        }
    }

    /// Has a record changed, whatever was to become of it before.
    fn change_record(&mut self, change: RecordChange) {
        self.records.insert(Arc::clone(change.owner()), change);
    }

    /// To be called when state of a client was revoked, and when the client has freed some. Its
    /// SEQUENCE reports what is left. As long as it has any to free, it may take for its own what
    /// others have got since: it has no record, and cannot reclaim (RFC 8881 §8.4.2.1).
    pub(super) fn revise_client(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let of_exports = self.revoked.has_any(id);
        let delegations = self.delegations.revoked.has_any(id);
        client.lease.show(SEQ4_STATUS_ADMIN_STATE_REVOKED, of_exports);
        client.lease.show(SEQ4_STATUS_RECALLABLE_STATE_REVOKED, delegations);
        // A record that was removed is not written before all is reclaimed: it would be newer than
        // changes of files that the client has delegated.
        let reclaims = || self.grace.may_reclaim(&client.owner, client.principal);
        let may_have_state = client.has_reclaimed || (client.is_recorded && reclaims());
        let is_recorded = may_have_state && !of_exports && !delegations;
        if std::mem::replace(&mut client.is_recorded, is_recorded) != is_recorded {
            let change = match is_recorded {
                true => RecordChange::Write(client.record()),
                false => RecordChange::Remove(Arc::clone(&client.owner)),
            };
            self.change_record(change);
        }
    }

    /// Forgets the revoked states that were not freed in time.
    fn expire_revoked(&mut self, now: Duration, lease: Duration) {
        let Self { clients, revoked, delegations, .. } = self;
        let is_cut_off = |id| {
            let client = clients.get(id);
            client.is_some_and(|client| client.lease.expired_for(now, lease).is_some())
        };
        let mut freed = revoked.expire(now, is_cut_off);
        freed.extend(delegations.revoked.expire(now, is_cut_off));
        freed.into_iter().for_each(|id| self.revise_client(id));
    }

    /// Whether the clients at the address of this one have `peer_max` of something together, of
    /// which all clients have `all`. Summed up only when all have as much.
    pub(super) fn is_peer_full(
        &self,
        client: ClientId,
        all: usize,
        peer_max: usize,
        of: impl Fn(&Files, ClientId) -> usize,
    ) -> bool {
        let own = || self.clients.of_same_peer(client).map(|id| of(&self.files, id));
        all >= peer_max && own().sum::<usize>() >= peer_max
    }

    /// Reports a call of a client that is put off for want of room.
    pub(super) fn put_off(&self, client: ClientId, of: Bounded, step: &mut Step) -> Status {
        match self.clients.get(client) {
            Some(client) => step.put_off(client.peer, of),
            None => Status::Badsession,
        }
    }

    /// To be called with every grant, and with I/O that no open has granted: what kept it away
    /// before may have belonged to a client whose record is still on the disk.
    pub(super) fn settle_records(&self, step: &mut Step) {
        if !self.records.is_empty() {
            step.effects.push(Effect::Records);
        }
    }
}

/// Between two searches of all clients for expired ones that are in the way of others.
const SEARCH_PERIOD: Duration = Duration::from_secs(1);
