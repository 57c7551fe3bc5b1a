//! Callbacks: calls that the server sends to a client of NFSv4.1 over the client's own connection,
//! RFC 8881 §2.10.3.1. `state` decides on their order; here are the connections, and the answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::nfs4::{
    CALLBACK_VERSION, CB_COMPOUND, CB_NOTIFY_LOCK, CB_RECALL, CB_SEQUENCE, CallbackHead,
    CallbackNotifyLockArgs, CallbackRecallArgs, CallbackSequenceArgs, CompoundResult, LockOwner,
    NoItems, SlotId, Status,
};
use proto::oncrpc::{
    AcceptStat, AuthSys, CallHeader, Credential, FLAVOR_NONE, Gids, ReplyHeader, is_reply,
};
use proto::xdr::{Decode, DecodeError, Encode, Reader, Writer};
use rpc::record::MARK_ROOM;
use rpc::server::{Reply, ReplyQueue};
use tokio::sync::oneshot;

use crate::state::{Callback, CallbackEnd, ConnectionId, Message, Session, State};

/// How long a client may take to answer. Then the connection is a backchannel no longer. Where a
/// limit holds calls back, an answer lies behind those that were sent before it, and each of them
/// may wait for [`WAIT_MAX`](crate::rate_limits::WAIT_MAX): the time is enough for one such wait,
/// not for several.
pub(crate) const CALLBACK_ANSWER_MAX: Duration = Duration::from_secs(20);

/// The connections that callbacks can be sent over.
#[derive(Default)]
pub(crate) struct Callbacks {
    connections: Mutex<HashMap<ConnectionId, Connection>>,
    last_xid: AtomicU32,
}

/// A connection. A session has one callback at work, so there are as few answers outstanding.
struct Connection {
    queue: Arc<ReplyQueue>,
    /// The callbacks that are not answered, by their transaction ids.
    awaited: HashMap<u32, oneshot::Sender<CallbackEnd>>,
    /// Callbacks were sent, so that an answer may come late.
    has_called: bool,
}

impl Callbacks {
    /// Notes a connection that was made.
    pub(crate) fn add(&self, connection: ConnectionId, queue: &Arc<ReplyQueue>) {
        let queue = Arc::clone(queue);
        let new = Connection { queue, awaited: HashMap::new(), has_called: false };
        self.lock().insert(connection, new);
    }

    /// Forgets a connection: its callbacks are lost.
    pub(crate) fn remove(&self, connection: ConnectionId) {
        self.lock().remove(&connection);
    }

    /// Takes a record that is an answer; false if it is a call, or answers nothing.
    pub(crate) fn take_reply(&self, connection: ConnectionId, record: &[u8]) -> bool {
        if !is_reply(record) {
            return false;
        }
        let mut connections = self.lock();
        let Some(connection) = connections.get_mut(&connection) else { return false };
        let xid = Reader::new(record).u32("xid").unwrap_or_default();
        if let Some(awaiting) = connection.awaited.remove(&xid) {
            let end = outcome(record).unwrap_or_else(|error| {
                tracing::debug!(%error, "cannot decode the reply to a callback");
                CallbackEnd::Lost
            });
            // The sender may have given up in this very moment.
            let _ = awaiting.send(end);
        }
        connection.has_called
    }

    /// Sends a callback of a session, and those that follow it. `now` is the clock of `state`.
    pub(crate) async fn send(
        &self,
        state: &State,
        session: &Session,
        first: Callback,
        now: impl Fn() -> Duration,
    ) {
        let mut next = Some(first);
        while let Some(callback) = next {
            let end = self.call(session, &callback).await;
            tracing::trace!(?callback, ?end, "callback");
            next = state.end_callback(session, callback, end, now());
        }
    }

    async fn call(&self, session: &Session, callback: &Callback) -> CallbackEnd {
        let xid = self.last_xid.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let (awaiting, answer) = oneshot::channel();
        let queue = {
            let mut connections = self.lock();
            let Some(connection) = connections.get_mut(&callback.connection) else {
                return CallbackEnd::Lost;
            };
            connection.awaited.insert(xid, awaiting);
            connection.has_called = true;
            Arc::clone(&connection.queue)
        };
        queue.send(Reply::new(encoded(session, callback, xid), None));
        queue.flush();
        let answer = tokio::time::timeout(CALLBACK_ANSWER_MAX, answer).await;
        if answer.is_err()
            && let Some(connection) = self.lock().get_mut(&callback.connection)
        {
            connection.awaited.remove(&xid);
        }
        answer.ok().and_then(Result::ok).unwrap_or(CallbackEnd::Lost)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ConnectionId, Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// CB_COMPOUND of CB_SEQUENCE and what the callback is for.
fn encoded(session: &Session, callback: &Callback, xid: u32) -> Vec<u8> {
    let Callback { parameters, sequence, message, .. } = callback;
    let credential = match parameters.ids {
        None => Credential::None,
        Some((uid, gid)) => {
            let (machine_name, gids) = (&b"spillway"[..], Gids::default());
            Credential::Sys(AuthSys { stamp: 0, machine_name, uid, gid, gids })
        }
    };
    let mut w = Writer::with_capacity(512);
    w.array(&MARK_ROOM);
    CallHeader {
        xid,
        program: parameters.program,
        version: CALLBACK_VERSION,
        procedure: CB_COMPOUND,
        credential,
        verifier_flavor: FLAVOR_NONE,
    }
    .encode(&mut w);
    let minor_version = parameters.minor_version;
    let operations = if *message == Message::Probe { 1 } else { 2 };
    CallbackHead { tag: b"", minor_version, callback_ident: 0, operations }.encode(&mut w);
    w.u32(CB_SEQUENCE);
    CallbackSequenceArgs {
        session: session.id(),
        sequence: *sequence,
        slot: SlotId(0),
        highest_slot: SlotId(0),
        cache_this: false,
        referring: NoItems,
    }
    .encode(&mut w);
    match message {
        Message::Probe => {}
        Message::NotifyLock(notice) => {
            w.u32(CB_NOTIFY_LOCK);
            let owner = LockOwner { client: session.client(), owner: &notice.owner };
            CallbackNotifyLockArgs { object: notice.object, owner }.encode(&mut w);
        }
        Message::Recall(recall) => {
            w.u32(CB_RECALL);
            let (stateid, object) = (recall.stateid, recall.object);
            CallbackRecallArgs { stateid, truncate: false, object }.encode(&mut w);
        }
    }
    w.into_vec()
}

/// The outcome of a callback by the status of CB_SEQUENCE, and by whether the client knows the
/// object of the operation behind it. A client obeys a recall by DELEGRETURN, not by its answer.
fn outcome(record: &[u8]) -> Result<CallbackEnd, DecodeError> {
    let mut r = Reader::new(record);
    let header = ReplyHeader::decode(&mut r)?;
    if !matches!(header, ReplyHeader::Accepted { stat: AcceptStat::Success, .. }) {
        return Ok(CallbackEnd::Lost);
    }
    let CompoundResult { status, results, .. } = Decode::decode(&mut r)?;
    let is_behind_sequence = results >= 2;
    Ok(match Status::from_code(status) {
        None => CallbackEnd::Performed,
        Some(Status::Badhandle | Status::BadStateid) if is_behind_sequence => CallbackEnd::Unknown,
        Some(_) if is_behind_sequence => CallbackEnd::Performed,
        Some(Status::Delay) => CallbackEnd::Delayed,
        Some(Status::SeqMisordered | Status::SeqFalseRetry | Status::RetryUncachedRep) => {
            CallbackEnd::Misordered
        }
        Some(_) => CallbackEnd::Lost,
    })
}
