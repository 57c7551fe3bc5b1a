//! A session: the slots of its fore channel, and the connections of its backchannel.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::nfs4::{ClientId, SEQ4_STATUS_CB_PATH_DOWN_SESSION, SessionId, SlotId, Stateid, Status};

use super::ConnectionId;
use super::backchannel::{Backchannel, Callback, CallbackEnd, CallbackParameters, Message};
use super::lease::{Lease, Path};
use super::replies::ReplyBudget;
use super::slots::{Decision, Sequence, Slots};

/// `channel_attrs4` without header padding and RDMA, RFC 8881 §18.36.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelAttributes {
    pub(crate) request_bytes_max: u32,
    pub(crate) response_bytes_max: u32,
    pub(crate) cached_bytes_max: u32,
    pub(crate) operations_max: u32,
    pub(crate) slots_max: u32,
}

impl ChannelAttributes {
    /// The lesser of each.
    pub(super) fn min(self, other: Self) -> Self {
        Self {
            request_bytes_max: self.request_bytes_max.min(other.request_bytes_max),
            response_bytes_max: self.response_bytes_max.min(other.response_bytes_max),
            cached_bytes_max: self.cached_bytes_max.min(other.cached_bytes_max),
            operations_max: self.operations_max.min(other.operations_max),
            slots_max: self.slots_max.min(other.slots_max),
        }
    }
}

/// A session, which many connections may use.
#[derive(Debug)]
pub(crate) struct Session {
    pub(super) id: SessionId,
    pub(super) client: ClientId,
    pub(super) lease: Arc<Lease>,
    /// Of the client's address.
    pub(super) replies: Arc<ReplyBudget>,
    pub(super) fore: ChannelAttributes,
    pub(super) state: Mutex<SessionState>,
}

/// The fields that the session's lock protects.
#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) slots: Slots,
    pub(super) is_destroyed: bool,
    pub(super) backchannel: Backchannel,
    /// The client has asked for the backchannel.
    pub(super) wants_backchannel: bool,
    /// The backchannel as it is counted for the client.
    pub(super) path: Path,
}

/// The decision on a COMPOUND that begins with SEQUENCE.
#[derive(Debug)]
pub(crate) enum Begin {
    /// Run it.
    Run(Running),
    /// Send this body again.
    Replay(Arc<[u8]>),
    /// Send nothing: its first copy came over the same connection and will be answered.
    Duplicate,
}

/// SEQUENCE's results, RFC 8881 §18.46.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequenced {
    pub(crate) highest_slot: SlotId,
    /// The slots that the client should use from now on.
    pub(crate) target_highest_slot: SlotId,
    /// `SEQ4_STATUS_*`.
    pub(crate) status_flags: u32,
}

impl Session {
    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    /// The negotiated fore channel.
    pub(crate) fn fore(&self) -> &ChannelAttributes {
        &self.fore
    }

    /// Whether calls of its client are received or at work.
    #[cfg(test)]
    pub(crate) fn has_calls(&self) -> bool {
        self.lease.calls() > 0
    }

    /// The connection for callbacks, if one is bound: the latest.
    #[cfg(test)]
    pub(crate) fn callback_connection(&self) -> Option<ConnectionId> {
        self.lock().backchannel.connection()
    }

    /// SEQUENCE, RFC 8881 §18.46: decides on a call. One that runs or is replayed renews the
    /// client's lease. `digest` is a hash of the credential and the arguments without the data of
    /// WRITE and the highest slot: a slot's number with another digest is another call.
    ///
    /// # Errors
    /// `Badsession`, and those of slots: `Badslot`, `BadHighSlot`, `SeqMisordered`,
    /// `SeqFalseRetry`, `RetryUncachedRep`, and `Delay` for a copy of a call that is at work for
    /// another connection, or without room for a reply that must be kept, beyond the slots that the
    /// session should use.
    pub(crate) fn begin(
        self: &Arc<Self>,
        call: &Sequence,
        digest: u64,
        connection: ConnectionId,
        now: Duration,
    ) -> Result<Begin, Status> {
        let mut state = self.lock();
        if state.is_destroyed || !self.lease.begin_call() {
            return Err(Status::Badsession);
        }
        let reply_bytes = usize::try_from(self.fore.cached_bytes_max).unwrap_or(usize::MAX);
        let room = || self.replies.take(reply_bytes);
        let decision = state.slots.begin(call, digest, connection, room);
        let renews = matches!(decision, Ok(Decision::Run | Decision::Replay(_)));
        if renews && !self.lease.renew(now) {
            // Revoked meanwhile: the session goes with its client, so its slot may stay busy.
            self.lease.end_call();
            return Err(Status::Badsession);
        }
        if matches!(decision, Ok(Decision::Run)) {
            let sequenced = self.sequenced(&mut state, call);
            let (session, slot) = (Arc::clone(self), call.slot);
            let is_cached = call.cache_this;
            return Ok(Begin::Run(Running { session, slot, is_cached, sequenced, is_done: false }));
        }
        self.lease.end_call();
        match decision? {
            Decision::Run => unreachable!("returned above"),
            Decision::Replay(body) => Ok(Begin::Replay(body)),
            Decision::Duplicate => Ok(Begin::Duplicate),
        }
    }

    /// Keeps the client's lease from running out while the rest of a call is received, which may
    /// wait for memory and hold up the calls behind it. `None` if the client is forgotten.
    pub(crate) fn receive_call(self: Arc<Self>) -> Option<Receiving> {
        self.lease.begin_call().then(|| Receiving(self))
    }

    /// Whether a call of the client waits for memory.
    #[cfg(test)]
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.lease.waits_for_memory()
    }

    fn sequenced(&self, state: &mut SessionState, call: &Sequence) -> Sequenced {
        let slots_max = state.slots.slots_max();
        let target = SlotId(slots_max.min(self.replies.slots_each()) - 1);
        state.slots.set_target(call, target);
        let is_path_down = state.wants_backchannel && !state.backchannel.has_path();
        let path_down = if is_path_down { SEQ4_STATUS_CB_PATH_DOWN_SESSION } else { 0 };
        Sequenced {
            highest_slot: SlotId(slots_max - 1),
            target_highest_slot: target,
            status_flags: path_down | self.lease.status(),
        }
    }

    /// Binds a connection to the backchannel, unless its callbacks cannot be sent; returns whether
    /// it did.
    ///
    /// # Errors
    /// `Badsession`.
    pub(super) fn bind_back(&self, connection: ConnectionId) -> Result<bool, Status> {
        let mut state = self.lock();
        if state.is_destroyed {
            return Err(Status::Badsession);
        }
        let is_usable = state.backchannel.is_usable();
        if is_usable {
            state.wants_backchannel = true;
            state.backchannel.bind(connection);
            self.count_path(&mut state);
        }
        Ok(is_usable)
    }

    /// To be called after each change of the backchannel.
    fn count_path(&self, state: &mut SessionState) {
        let path = if state.is_destroyed {
            Path::default()
        } else {
            Path { is_wanted: state.wants_backchannel, is_there: state.backchannel.has_path() }
        };
        self.lease.count_path(std::mem::replace(&mut state.path, path), path);
    }

    /// BACKCHANNEL_CTL, RFC 8881 §18.33.
    pub(crate) fn set_callbacks(&self, parameters: Option<CallbackParameters>) {
        let mut state = self.lock();
        state.backchannel.set_parameters(parameters);
        self.count_path(&mut state);
    }

    /// Whether callbacks can be sent.
    pub(crate) fn has_callback_path(&self) -> bool {
        self.lock().backchannel.has_path()
    }

    /// Whether the client has answered a callback over a connection that is still there.
    pub(crate) fn is_callback_path_proved(&self) -> bool {
        self.lock().backchannel.is_proved()
    }

    /// Queues a message. Returns the callback to be sent now, if any.
    pub(crate) fn notify(&self, message: Message) -> Option<Callback> {
        let mut state = self.lock();
        if state.is_destroyed { None } else { state.backchannel.notify(message) }
    }

    /// Takes a recall out of the queue: its delegation has ended.
    pub(super) fn forget_recall(&self, stateid: &Stateid) {
        self.lock().backchannel.forget_recall(stateid);
    }

    /// Ends the callback at work. Returns the next one.
    pub(super) fn end_callback(&self, callback: Callback, end: CallbackEnd) -> Option<Callback> {
        let mut state = self.lock();
        let next = state.backchannel.end(callback, end);
        self.count_path(&mut state);
        if state.is_destroyed { None } else { next }
    }

    /// Unbinds a connection that was closed.
    pub(super) fn unbind(&self, connection: ConnectionId) {
        let mut state = self.lock();
        state.backchannel.unbind(connection);
        self.count_path(&mut state);
    }

    /// Refuses further calls; those at work go on.
    pub(super) fn destroy(&self) {
        let mut state = self.lock();
        state.is_destroyed = true;
        self.count_path(&mut state);
    }

    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call whose SEQUENCE was received, and is not executed yet.
#[derive(Debug)]
pub(crate) struct Receiving(Arc<Session>);

impl Receiving {
    /// The session that its SEQUENCE names. It may have been destroyed meanwhile.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.0
    }

    /// Counts it among the calls that wait for memory.
    pub(crate) fn wait_for_memory(&self) -> MemoryWait<'_> {
        self.0.lease.begin_memory_wait();
        MemoryWait(&self.0.lease)
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.lease.end_call();
    }
}

/// A call that waits for memory for its data.
#[derive(Debug)]
#[must_use]
pub(crate) struct MemoryWait<'a>(&'a Lease);

impl Drop for MemoryWait<'_> {
    fn drop(&mut self) {
        self.0.end_memory_wait();
    }
}

/// A call that occupies its slot. Dropped without [`Self::complete`], its retries fail with
/// `RetryUncachedRep`, because it may have run in part.
#[derive(Debug)]
pub(crate) struct Running {
    session: Arc<Session>,
    slot: SlotId,
    is_cached: bool,
    sequenced: Sequenced,
    is_done: bool,
}

impl Running {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The results of SEQUENCE.
    pub(crate) fn sequenced(&self) -> Sequenced {
        self.sequenced
    }

    /// Frees the slot, keeps the body of the reply if the client asked for it, and renews the
    /// lease.
    pub(crate) fn complete(mut self, body: &[u8], now: Duration) {
        let bytes_max = usize::try_from(self.session.fore.cached_bytes_max).unwrap_or(usize::MAX);
        let is_kept = self.is_cached && body.len() <= bytes_max;
        self.session.lease.renew(now);
        self.end(is_kept.then(|| body.into()));
    }

    fn end(&mut self, reply: Option<Arc<[u8]>>) {
        self.is_done = true;
        self.session.lock().slots.complete(self.slot, reply);
        self.session.lease.end_call();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_done {
            self.end(None);
        }
    }
}
