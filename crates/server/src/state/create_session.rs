//! CREATE_SESSION, RFC 8881 §18.36.

use std::hash::Hasher;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proto::nfs4::{ClientId, SEQ4_STATUS_RESTART_RECLAIM_NEEDED, SequenceId, SessionId, Status};
use siphasher::sip::SipHasher24;

use super::backchannel::{Backchannel, CallbackParameters};
use super::lease::{Lease, Path};
use super::registry::{State, Table};
use super::replies::ReplyBudget;
use super::session::{ChannelAttributes, Session, SessionState};
use super::slots::Slots;
use super::{Bounded, ConnectionId, CreatedSession, Limits, Principal, Step};

/// CREATE_SESSION's arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreateSession {
    pub(crate) client: ClientId,
    pub(crate) sequence: SequenceId,
    pub(crate) fore: ChannelAttributes,
    pub(crate) back: ChannelAttributes,
    /// `CREATE_SESSION4_FLAG_CONN_BACK_CHAN`.
    pub(crate) wants_backchannel: bool,
    /// `None` without a flavor of callbacks that this server has.
    pub(crate) callbacks: Option<CallbackParameters>,
    pub(crate) principal: Principal,
    pub(crate) connection: ConnectionId,
    /// The client whose session the call itself is at work in.
    pub(crate) within: Option<ClientId>,
}

impl State {
    /// CREATE_SESSION, RFC 8881 §18.36. Confirms the client; state of its incarnation before is
    /// forgotten.
    ///
    /// # Errors
    /// `StaleClientid`; `ClidInuse` for another principal; `SeqMisordered`; `Toosmall`; `Nospc` and
    /// `Delay` for too many sessions of the client, and of all; `Delay` while calls of its
    /// incarnation before are at work.
    pub(crate) fn create_session(
        &self,
        call: &CreateSession,
        step: &mut Step,
    ) -> Result<CreatedSession, Status> {
        let mut table = self.lock();
        let client = table.clients.get(call.client).ok_or(Status::StaleClientid)?;
        if client.principal != call.principal {
            return Err(Status::ClidInuse);
        }
        if let Some(result) = client.replay(call.sequence)? {
            return result;
        }
        let result = self.add_session(&mut table, call, step);
        // Linux repeats a delayed call with the same number.
        if result != Err(Status::Delay) {
            table.clients.get_mut(call.client).expect("it was found above").keep(result);
        }
        result
    }

    fn add_session(
        &self,
        table: &mut Table,
        call: &CreateSession,
        step: &mut Step,
    ) -> Result<CreatedSession, Status> {
        let fore = self.negotiate(call.fore)?;
        let client = table.clients.get(call.client).expect("the caller has looked it up");
        if client.sessions.len() >= self.limits.client_sessions_max {
            return Err(Status::Nospc);
        }
        let is_confirmed = client.is_confirmed;
        // It has just called, so it is not among those that leave.
        client.lease.renew(step.now);
        await_calls_of_predecessor(table, call, step.now)?;
        let Limits { sessions_max, peer_sessions_max, .. } = self.limits;
        let sessions = |table: &Table| self.other_sessions(table, call.client);
        let is_peer_full = |table: &Table| sessions(table).1 >= peer_sessions_max;
        let is_full = |table: &Table| sessions(table).0 >= sessions_max;
        self.make_room(table, call.client, Bounded::Sessions, (is_peer_full, is_full), step)?;
        if !is_confirmed {
            self.confirm(table, call.client, step);
        }
        let id = self.session_id(table, call.client);
        table.clients.add_session(call.client, id);
        let client = table.clients.get(call.client).expect("it was found above");
        client.lease.renew(step.now);
        let lease = Arc::clone(&client.lease);
        let replies = table.clients.replies_of(call.client);
        replies.begin_session();
        let session = session_of(call, id, lease, replies, fore);
        let has_backchannel =
            call.wants_backchannel && session.bind_back(call.connection).expect("it is new");
        self.change_sessions(|sessions| sessions.insert(id, Arc::new(session)));
        let (sequence, back) = (call.sequence, call.back);
        Ok(CreatedSession { session: id, sequence, fore, back, has_backchannel })
    }

    /// The sessions of all clients, and those of this one's address, without those that end when it
    /// is confirmed.
    fn other_sessions(&self, table: &Table, id: ClientId) -> (usize, usize) {
        let clients = &table.clients;
        let peer = clients.get(id).expect("the caller has looked it up").peer;
        let replaced = clients.predecessor(id).and_then(|old| clients.get(old));
        let ending = replaced.map_or(0, |old| old.sessions.len());
        let ending_there = if replaced.is_some_and(|old| old.peer == peer) { ending } else { 0 };
        (self.session_count() - ending, clients.sessions_of_peer(peer) - ending_there)
    }

    fn negotiate(&self, asked: ChannelAttributes) -> Result<ChannelAttributes, Status> {
        let mut fore = asked.min(self.limits.fore);
        fore.slots_max = fore.slots_max.max(1);
        let bytes = fore.request_bytes_max.min(fore.response_bytes_max);
        if bytes < CHANNEL_BYTES_MIN || fore.operations_max < CHANNEL_OPERATIONS_MIN {
            return Err(Status::Toosmall);
        }
        Ok(fore)
    }

    /// Confirms a client; the incarnation before it has ended.
    fn confirm(&self, table: &mut Table, id: ClientId, step: &mut Step) {
        if let Some(old) = table.clients.predecessor(id) {
            self.forget(table, old, step);
        }
        table.clients.confirm(id);
        let client = table.clients.get_mut(id).expect("the caller has looked it up");
        if table.grace.may_reclaim(&client.owner, client.principal) {
            client.is_recorded = true;
            client.lease.show(SEQ4_STATUS_RESTART_RECLAIM_NEEDED, true);
        }
    }

    /// A session id that is not in use. One half names the client, the other cannot be guessed.
    fn session_id(&self, table: &mut Table, client: ClientId) -> SessionId {
        loop {
            table.sessions_made += 1;
            let mut hasher = SipHasher24::new_with_keys(self.session_key.0, self.session_key.1);
            hasher.write_u64(client.0);
            hasher.write_u64(table.sessions_made);
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&client.0.to_be_bytes());
            bytes[8..].copy_from_slice(&hasher.finish().to_be_bytes());
            let id = SessionId(bytes);
            if self.session(id).is_err() {
                return id;
            }
        }
    }
}

/// Waits for the calls of the incarnation before: a WRITE under a lock must not go on after
/// another client has taken the lock. A call that begins after this cannot use state before it
/// has the lock of `table`, and then finds its client forgotten.
///
/// # Errors
/// `Delay`.
fn await_calls_of_predecessor(
    table: &mut Table,
    call: &CreateSession,
    now: Duration,
) -> Result<(), Status> {
    let Some(id) = table.clients.predecessor(call.client) else { return Ok(()) };
    let by = table.clients.get(call.client).expect("it has a predecessor").verifier;
    let old = table.clients.get_mut(id).expect("it is an incarnation");
    if old.lease.calls() <= u32::from(call.within == Some(id)) {
        return Ok(());
    }
    let since = match old.awaited_by {
        Some((verifier, since)) if verifier == by => since,
        Some(_) | None => now,
    };
    old.awaited_by = Some((by, since));
    if now.saturating_sub(since) < OLD_CALLS_WAIT_MAX { Err(Status::Delay) } else { Ok(()) }
}

fn session_of(
    call: &CreateSession,
    id: SessionId,
    lease: Arc<Lease>,
    replies: Arc<ReplyBudget>,
    fore: ChannelAttributes,
) -> Session {
    let slots = Slots::new(fore.slots_max);
    let (backchannel, wants_backchannel) = (Backchannel::new(call.callbacks), false);
    let path = Path::default();
    let state = SessionState { slots, is_destroyed: false, backchannel, wants_backchannel, path };
    Session { id, client: call.client, lease, replies, fore, state: Mutex::new(state) }
}

/// For calls of an incarnation that has ended: a disk that hangs must not keep its client from
/// mounting. Chosen as the limit for `drop-client`.
const OLD_CALLS_WAIT_MAX: Duration = Duration::from_secs(60);
/// The least `ca_maxrequestsize` and `ca_maxresponsesize`: a COMPOUND with a name and a handle.
const CHANNEL_BYTES_MIN: u32 = 1024;
/// The least `ca_maxoperations`: SEQUENCE and another.
const CHANNEL_OPERATIONS_MIN: u32 = 2;
