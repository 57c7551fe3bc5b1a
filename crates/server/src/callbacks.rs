//! Callbacks: calls that the server sends to a client of NFSv4.1 over the client's own connection,
//! RFC 8881 §2.10.3.1. `state` decides on their order; here are the connections, and the answers.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::nfs4::{
    CALLBACK_VERSION, CB_COMPOUND, CB_NOTIFY_LOCK, CB_RECALL, CB_SEQUENCE, CallbackHead,
    CallbackNotifyLockArgs, CallbackRecallArgs, CallbackSequenceArgs, CompoundResult, LockOwner,
    NFS4_OK, NoItems, SlotId, Status,
};
use proto::oncrpc::{
    AcceptStat, AuthSys, CallHeader, Credential, FLAVOR_NONE, Gids, ReplyHeader, is_reply,
};
use proto::xdr::{Decode, DecodeError, Encode, Reader, Writer};
use rpc::record::MARK_ROOM;
use rpc::server::{Reply, ReplyQueue, SendObserver};
use tokio::sync::{oneshot, watch};

use crate::state::{
    Callback, CallbackEnd, ConnectionId, MEMORY_WAITS_MAX, Message, Session, State,
};

/// How long a client may take to answer. Then the connection is a backchannel no longer. Where a
/// limit holds calls back, an answer lies behind those that were sent before it, and each of them
/// may wait for [`WAIT_MAX`](crate::rate_limits::WAIT_MAX): the time is enough for one such wait,
/// not for several. The time in which a WRITE on the connection waits for memory
/// does not count, up to [`MEMORY_WAITS_MAX`].
pub(crate) const CALLBACK_ANSWER_MAX: Duration = Duration::from_secs(20);
/// How often such a wait is looked for.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The connections that callbacks can be sent over.
#[derive(Default)]
pub(crate) struct Callbacks {
    connections: Mutex<HashMap<ConnectionId, Connection>>,
    last_xid: AtomicU32,
}

/// A connection. A session has one callback at work, so there are as few in the queue, and as few
/// answers outstanding.
struct Connection {
    queue: Arc<ReplyQueue>,
    /// The callbacks that are not answered, by their transaction ids.
    awaited: HashMap<u32, oneshot::Sender<CallbackEnd>>,
    /// Callbacks were sent, so that an answer may come late.
    has_called: bool,
    /// A call on it waits for memory, so that an answer behind the call is not read.
    waits_for_memory: Arc<AtomicBool>,
    /// The end in the queue of a callback that was given up there. No other is queued before.
    left_in_queue: Option<watch::Receiver<bool>>,
}

impl Connection {
    /// Whether the queue still has a callback that was given up. A peer that does not read could
    /// fill it otherwise: it binds the connection again after each.
    fn is_blocked(&self) -> bool {
        self.left_in_queue.as_ref().is_some_and(|is_gone| !*is_gone.borrow())
    }
}

/// Turns true when a callback is no longer in the queue.
struct Departure(watch::Sender<bool>);

impl SendObserver for Departure {
    fn reply_is_gone(&self, _token: u64) {
        self.0.send_replace(true);
    }
}

impl Callbacks {
    /// Notes a connection that was made. Returns where it notes whether a call on it waits for
    /// memory: an answer behind the call is awaited longer.
    pub(crate) fn add(&self, connection: ConnectionId, queue: &Arc<ReplyQueue>) -> Arc<AtomicBool> {
        let waits_for_memory = Arc::new(AtomicBool::new(false));
        let new = Connection {
            queue: Arc::clone(queue),
            awaited: HashMap::new(),
            has_called: false,
            waits_for_memory: Arc::clone(&waits_for_memory),
            left_in_queue: None,
        };
        self.lock().insert(connection, new);
        waits_for_memory
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
            let encoded = |xid| encoded(session, &callback, xid);
            let end = self.call(callback.connection, encoded).await;
            tracing::trace!(?callback, ?end, "callback");
            next = state.end_callback(session, callback, end, now());
        }
    }

    /// Sends a call over a connection, as `encoded` makes it of its transaction id, and waits for
    /// the answer.
    async fn call(&self, to: ConnectionId, encoded: impl FnOnce(u32) -> Vec<u8>) -> CallbackEnd {
        let xid = self.last_xid.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let (awaiting, answer) = oneshot::channel();
        let (departure, mut is_gone) = watch::channel(false);
        let (queue, waits_for_memory) = {
            let mut connections = self.lock();
            let connection = connections.get_mut(&to);
            let Some(connection) = connection.filter(|connection| !connection.is_blocked()) else {
                return CallbackEnd::Lost;
            };
            connection.awaited.insert(xid, awaiting);
            connection.has_called = true;
            (Arc::clone(&connection.queue), Arc::clone(&connection.waits_for_memory))
        };
        let message = Reply::new(encoded(xid), None);
        queue.send(message.observed(Arc::new(Departure(departure)), 0));
        queue.flush();
        // A client can guess the id of a callback that it has not received. By such an answer the
        // next would be queued behind this one, and so on without bound.
        let answered = async {
            let end = answer.await.unwrap_or(CallbackEnd::Lost);
            // It also ends when the connection does.
            let _ = is_gone.wait_for(|is_gone| *is_gone).await;
            end
        };
        if let Some(end) = in_time(answered, &waits_for_memory).await {
            return end;
        }
        if let Some(connection) = self.lock().get_mut(&to) {
            connection.awaited.remove(&xid);
            if !*is_gone.borrow() {
                connection.left_in_queue = Some(is_gone);
            }
        }
        CallbackEnd::Lost
    }

    /// Whether a call on any connection waits for memory.
    #[cfg(test)]
    pub(crate) fn wait_for_memory(&self) -> bool {
        let waits = |found: &Connection| found.waits_for_memory.load(Ordering::Relaxed);
        self.lock().values().any(waits)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ConnectionId, Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcome of `answered` within [`CALLBACK_ANSWER_MAX`]. The time in which its connection
/// `waits_for_memory` does not count, up to [`MEMORY_WAITS_MAX`].
async fn in_time<T>(answered: impl Future<Output = T>, waits_for_memory: &AtomicBool) -> Option<T> {
    let mut answered = pin!(answered);
    let (mut left, mut waits_left) = (CALLBACK_ANSWER_MAX, MEMORY_WAITS_MAX);
    while !left.is_zero() {
        if let Ok(end) = tokio::time::timeout(CHECK_INTERVAL, answered.as_mut()).await {
            return Some(end);
        }
        let waits = waits_for_memory.load(Ordering::Relaxed) && !waits_left.is_zero();
        let counted = if waits { &mut waits_left } else { &mut left };
        *counted = counted.saturating_sub(CHECK_INTERVAL);
    }
    None
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

/// The outcome of a callback by its status, and by whether CB_SEQUENCE succeeded: then the status
/// is that of the operation behind it.
fn outcome(record: &[u8]) -> Result<CallbackEnd, DecodeError> {
    let mut r = Reader::new(record);
    let header = ReplyHeader::decode(&mut r)?;
    if !matches!(header, ReplyHeader::Accepted { stat: AcceptStat::Success, .. }) {
        return Ok(CallbackEnd::Lost);
    }
    let CompoundResult { status, results, .. } = Decode::decode(&mut r)?;
    if status == NFS4_OK {
        return Ok(CallbackEnd::Performed);
    }
    let is_behind_sequence = results >= 2;
    Ok(match Status::from_code(status) {
        // Of CB_SEQUENCE, wherever they are: for a number that it has used, Linux lets CB_SEQUENCE
        // succeed, and refuses the operation behind it by RETRY_UNCACHED_REP.
        Some(Status::SeqFalseRetry | Status::RetryUncachedRep) => CallbackEnd::Used,
        Some(Status::Badhandle | Status::BadStateid) if is_behind_sequence => CallbackEnd::Unknown,
        _ if is_behind_sequence => CallbackEnd::Refused,
        Some(Status::Delay) => CallbackEnd::Delayed,
        _ => CallbackEnd::Lost,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind, IoSlice};
    use std::net::Ipv4Addr;
    use std::task::{Context, Poll, Waker};

    use rpc::server::Transport;

    use super::*;

    const CONNECTION: ConnectionId = ConnectionId(1);

    /// A stream that is full until its peer reads.
    #[derive(Default)]
    struct Stream(Mutex<StreamState>);

    #[derive(Default)]
    struct StreamState {
        is_read: bool,
        bytes: usize,
        waker: Option<Waker>,
    }

    impl Stream {
        fn lock(&self) -> MutexGuard<'_, StreamState> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn read(&self) {
            let mut state = self.lock();
            state.is_read = true;
            state.waker.take().unwrap().wake();
        }
    }

    impl Transport for Stream {
        fn try_send(&self, parts: &[IoSlice<'_>], _: bool) -> io::Result<usize> {
            let mut state = self.lock();
            if !state.is_read {
                return Err(ErrorKind::WouldBlock.into());
            }
            let bytes = parts.iter().map(|part| part.len()).sum();
            state.bytes += bytes;
            Ok(bytes)
        }

        fn try_send_pipe(&self, _: &mut ::io::Pipe, _: bool) -> io::Result<usize> {
            unreachable!("callbacks are in memory")
        }

        fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            let mut state = self.lock();
            state.waker = Some(cx.waker().clone());
            if state.is_read { Poll::Ready(Ok(())) } else { Poll::Pending }
        }

        fn unacknowledged_bytes(&self) -> io::Result<u64> {
            Ok(0)
        }

        fn acknowledged_bytes(&self) -> io::Result<u64> {
            Ok(0)
        }

        fn has_hung_up(&self) -> bool {
            false
        }

        fn unread_bytes(&self) -> io::Result<u64> {
            Ok(0)
        }
    }

    /// The answer to a callback, without the results of its operations.
    fn encoded_answer(xid: u32, status: u32, results: u32) -> Vec<u8> {
        let mut w = Writer::new();
        ReplyHeader::Accepted { xid, stat: AcceptStat::Success }.encode(&mut w);
        CompoundResult { status, tag: b"", results }.encode(&mut w);
        w.into_vec()
    }

    /// Sends a callback and answers it at once, with its id as the peer guesses it.
    async fn call_and_answer(callbacks: &Callbacks, xid: u32) -> CallbackEnd {
        let encoded = |given| {
            assert_eq!(given, xid);
            MARK_ROOM.to_vec()
        };
        let answer = encoded_answer(xid, NFS4_OK, 2);
        let answered = async { callbacks.take_reply(CONNECTION, &answer) };
        let (end, _) = tokio::join!(callbacks.call(CONNECTION, encoded), answered);
        end
    }

    /// It may lie behind the data of the WRITE. A client can make its WRITEs wait without end.
    #[tokio::test(start_paused = true)]
    async fn an_answer_is_awaited_while_its_connection_waits_for_memory_up_to_ten_minutes() {
        let (callbacks, stream) = (Callbacks::default(), Arc::new(Stream::default()));
        let (peer, buffers) = ((Ipv4Addr::LOCALHOST, 1).into(), ::io::BufferPool::new(1 << 20));
        let queue = Arc::new(ReplyQueue::new(peer, 1, Arc::clone(&stream) as _, buffers));
        for (waits, end) in [(0, 20), (300, 320), (600, 620), (6000, 620)] {
            let waits_for_memory = callbacks.add(CONNECTION, &queue);
            waits_for_memory.store(true, Ordering::Relaxed);
            let began = tokio::time::Instant::now();
            let call = callbacks.call(CONNECTION, |_| MARK_ROOM.to_vec());
            let call = async { (call.await, began.elapsed().as_secs()) };
            let wait = async {
                tokio::time::sleep(Duration::from_secs(waits)).await;
                waits_for_memory.store(false, Ordering::Relaxed);
            };
            let ((outcome, ended), ()) = tokio::join!(call, wait);
            assert_eq!(outcome, CallbackEnd::Lost);
            assert!((end - 1..=end + 1).contains(&ended), "{ended} s, with {waits} s of waiting");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_to_callbacks_that_were_not_sent_do_not_fill_the_queue() {
        let (callbacks, stream) = (Callbacks::default(), Arc::new(Stream::default()));
        let (peer, buffers) = ((Ipv4Addr::LOCALHOST, 1).into(), ::io::BufferPool::new(1 << 20));
        let queue = Arc::new(ReplyQueue::new(peer, 1, Arc::clone(&stream) as _, buffers));
        let running = Arc::clone(&queue);
        tokio::spawn(async move { running.run().await });
        callbacks.add(CONNECTION, &queue);
        for xid in 1..=3 {
            assert_eq!(call_and_answer(&callbacks, xid).await, CallbackEnd::Lost, "{xid}");
        }
        stream.read();
        // The task of the connection goes on.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(stream.lock().bytes, MARK_ROOM.len());
        assert_eq!(call_and_answer(&callbacks, 4).await, CallbackEnd::Performed);
        assert_eq!(stream.lock().bytes, 2 * MARK_ROOM.len());
    }

    #[test]
    fn a_callback_with_a_number_that_the_client_has_used_is_not_performed() {
        use CallbackEnd::{Delayed, Lost, Performed, Refused, Unknown, Used};
        for (status, at_sequence, behind_it) in [
            (NFS4_OK, Performed, Performed),
            (Status::RetryUncachedRep.code(), Used, Used),
            (Status::SeqFalseRetry.code(), Used, Used),
            (Status::SeqMisordered.code(), Lost, Refused),
            (Status::Delay.code(), Delayed, Refused),
            (Status::BadStateid.code(), Lost, Unknown),
            (Status::Badsession.code(), Lost, Refused),
            (u32::MAX, Lost, Refused),
        ] {
            for (results, end) in [(1, at_sequence), (2, behind_it)] {
                let answer = encoded_answer(1, status, results);
                assert_eq!(outcome(&answer), Ok(end), "{status}, {results} results");
            }
        }
    }
}
