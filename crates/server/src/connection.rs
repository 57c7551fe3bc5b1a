//! One connection: calls come in, are worked on side by side, and are answered as they finish.

mod dues;
mod end;
mod stay;
mod timing;

use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Waker};
use std::time::Duration;

use io::{Share, WriteData};
use proto::oncrpc::CallError;
use rpc::server::{ReceiveError, Receiver, Record, ReplyQueue, Slot, Socket, SocketReader};
use tokio::sync::watch;

use crate::busy_poll::{ThreadCalls, Waits};
use crate::call::Incoming;
use crate::call_trace::{self, Traced};
use crate::connections::{Activity, ConnectionPermit};
use crate::counters::{ClientCounters, Counter, Counters};
use crate::dispatch::{self, Ended, Verdict};
use crate::fair_queue::FlowHandle;
use crate::moment::Moment;
use crate::placement::{self, Claimed};
use crate::procedures::{Programs, Thread};
use crate::request::{Origin, Peer};
use crate::service::Service;
use crate::state::{ConnectionId, Receiving};
use dues::{Charge, Dues};
pub(crate) use end::LAST_CALLS_MAX;
use end::{Open, Unanswered, drain};
use stay::{Stayed, Streak};
use timing::Timed;

/// The longest data of a WRITE received from a peer whom no export admits. The gate is behind the
/// receiver, and a stranger who sends slowly must not keep memory from the others until then.
/// Longer data is thrown away and the call refused, or the connection ended where the record is
/// longer than this and a head. A reload that admits the peer applies to its next record.
const STRANGER_TRANSFER_BYTES_MAX: u32 = 4096;
/// A client does not connect anew and send its calls again, and newer ones, in less time.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// The number of the next connection.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(0);

/// The state that the calls of a connection share.
struct Intake {
    service: Arc<Service>,
    peer: Peer,
    /// The peer's counters while no export admits it.
    stranger: Arc<ClientCounters>,
    /// Its counters from when an export admits it.
    client: OnceLock<Arc<ClientCounters>>,
    socket: Arc<Socket>,
    replies: Arc<ReplyQueue>,
    activity: Arc<Activity>,
    /// For the callbacks: see [`Callbacks::add`](crate::callbacks::Callbacks::add).
    waits_for_memory: Arc<AtomicBool>,
    thread_calls: Arc<ThreadCalls>,
    /// Charges of the limits of exports that delay the next call.
    dues: Arc<Dues>,
    /// How well polling served the thread that stays with the connection, kept between two stays.
    waits: Mutex<Waits>,
}

/// A call that was received, and where the work on it begins.
struct Accepted {
    thread: Thread,
    share: Share,
    work: Work,
    transfer: Transfer,
    /// The connection has no other call: none at work, none received.
    is_alone: bool,
    received: Moment,
    /// Its export has limits.
    is_limited: bool,
}

/// The next record of a connection.
enum Next {
    Call(Accepted),
    /// There is no work on it: it answers a callback, or is a call that was refused.
    Settled,
    /// The peer sends no more, or what are no calls; or the connection was evicted.
    End,
}

/// The file data that a call carries or asks for, in bytes.
#[derive(Clone, Copy)]
enum Transfer {
    None,
    Read(u64),
    Write(u64),
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Transfer {
    fn new(written_bytes: Option<usize>, read_bytes: Option<u32>) -> Self {
        match (written_bytes, read_bytes) {
            (Some(bytes), _) => Self::Write(bytes as u64),
            (None, Some(bytes)) => Self::Read(bytes.into()),
            (None, None) => Self::None,
        }
    }

    /// The data that is asked for, of which a reply has at most `bytes_max`.
    fn read_bytes(self, bytes_max: u32) -> u64 {
        match self {
            Self::Read(bytes) => bytes.min(bytes_max.into()),
            Self::Write(_) | Self::None => 0,
        }
    }
}

impl Accepted {
    /// The network thread will end it itself most likely: it waits for no disk and for no other
    /// thread.
    fn is_light(&self) -> bool {
        match self.thread {
            Thread::Network | Thread::NetworkThenMetadata => true,
            Thread::NetworkThenData => matches!(self.transfer, Transfer::Read(_)),
            Thread::Data | Thread::Metadata => false,
        }
    }
}

/// Serves a connection until the peer closes it, breaks the protocol, its place is needed for
/// another while it is idle, or the server stops. `flow` is on this thread. `permit` is kept until
/// the last call has ended; in front of that, the connection ends after `last_calls_max`, unless
/// the server stops or the peer has ended its own side alone.
pub(crate) async fn serve(
    service: Arc<Service>,
    programs: Programs,
    stream: std::net::TcpStream,
    (permit, flow): (ConnectionPermit, FlowHandle),
    mut stop: watch::Receiver<bool>,
    last_calls_max: Duration,
) {
    let Ok(address) = stream.peer_addr() else { return };
    let Ok(socket) = Socket::new(stream) else { return };
    service.counters.add(Counter::Connections, 1);
    tracing::debug!(client = %address, "connected");
    let (transport, buffers) = (Arc::clone(&socket), Arc::clone(&service.buffers));
    let activity = &permit.activity;
    let replies = Arc::new(ReplyQueue::new(address, activity.client(), transport, buffers));
    let connection = ConnectionId(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed));
    let peer = Peer { address, connection, programs };
    let waits_for_memory = service.callbacks.add(connection, &replies);
    activity.begins(replies.link());
    let receiver = Receiver::new(
        socket.reader(),
        activity.client(),
        Arc::clone(&service.buffers),
        Arc::clone(&activity.peer_wait),
        service.idle_timeout,
        Arc::clone(activity.slots()),
    );
    let flow = Arc::new(flow);
    let mut sender = tokio::spawn({
        let (replies, flow) = (Arc::clone(&replies), Arc::clone(&flow));
        async move { flow.schedule(replies.run()).await }
    });
    let open = Open {
        service: &service,
        connection,
        replies: Arc::clone(&replies),
        sender: sender.abort_handle(),
    };
    let intake = Arc::new(Intake {
        service: Arc::clone(&service),
        peer,
        stranger: service.counters.clients.of(address.ip(), true),
        client: OnceLock::new(),
        socket: Arc::clone(&socket),
        replies: Arc::clone(&replies),
        activity: Arc::clone(activity),
        waits_for_memory,
        thread_calls: Arc::clone(flow.calls()),
        dues: Arc::new(Dues::of(&service, programs, activity.client())),
        waits: Mutex::default(),
    });
    // Listed from now on, also without a call.
    let _ = intake.client();
    tokio::select! {
        // Without it each poll takes a random number, to choose where it begins.
        biased;
        () = activity.evicted() => tracing::debug!(client = %address, "evicted"),
        // The peer does not take its replies, or sends what are no calls. In front of its next
        // calls, for which a peer that was given up has made room.
        _ = &mut sender => service.counters.add(Counter::BrokenConnections, 1),
        () = calls(&flow, intake, receiver, &open) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    drain(&socket, activity, &mut stop, last_calls_max).await;
    drop(open);
    // Calls that hang hold the socket, which counts as the peer's until they end. A server that
    // stops waits for them too: what they change is flushed then.
    activity.calls_ended().await;
    tracing::debug!(client = %address, "disconnected");
}

/// Takes calls and begins them until the connection ends, once it may take any.
async fn calls(
    flow: &FlowHandle,
    intake: Arc<Intake>,
    receiver: Receiver<SocketReader>,
    open: &Open<'_>,
) {
    let (socket, activity) = (Arc::clone(&intake.socket), Arc::clone(&intake.activity));
    intake.service.connections.may_take_calls(&activity).await;
    if open.replies.has_lost_peer() {
        return;
    }
    flow.schedule(flushed(&open.replies, take_calls(flow, intake, receiver))).await;
    open.answer_last_calls(&socket, &activity).await;
}

/// Does the work, and sends the replies that are left whenever it waits.
async fn flushed(replies: &ReplyQueue, work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    poll_fn(|context| {
        let polled = work.as_mut().poll(context);
        replies.flush();
        polled
    })
    .await;
}

/// Receives calls until the peer closes the connection or sends a message that is not a call.
async fn take_calls(flow: &FlowHandle, intake: Arc<Intake>, mut receiver: Receiver<SocketReader>) {
    let mut streak = Streak::default();
    let mut next = intake.next(&mut receiver, None).await;
    loop {
        let mut call = match next {
            Next::Call(call) => call,
            Next::Settled => {
                if flow.quantum_is_over(Moment::now()) {
                    tokio::task::yield_now().await;
                }
                next = intake.next(&mut receiver, None).await;
                continue;
            }
            Next::End => return,
        };
        // After a limited one no call is taken for a while.
        if call.is_light() && !call.is_limited {
            intake.thread_calls.note_light_one();
        }
        if let Some(purpose) = streak.worth_a_stay(&intake, &call) {
            match stay::stay(&intake, purpose, receiver, call).await {
                Some(Stayed::Ended { received, has_failed }) => {
                    streak.end(has_failed);
                    (receiver, next) = received;
                    continue;
                }
                Some(Stayed::Refused(its_receiver, its_call)) => {
                    streak.end(true);
                    (receiver, call) = (its_receiver, its_call);
                }
                None => return,
            }
        }
        let received = call.received;
        let ((), waits_since) = intake.noting_waits(pin!(begin(call)), None).await;
        if flow.quantum_is_over(received) {
            tokio::task::yield_now().await;
        }
        next = intake.next(&mut receiver, waits_since).await;
    }
}

/// Begins the work on a call where it will have to wait, if anywhere.
async fn begin(Accepted { thread, share, work, .. }: Accepted) {
    match thread {
        Thread::Network => poll_first(share.run(work)),
        Thread::NetworkThenData => share.begin_here(work),
        Thread::NetworkThenMetadata => share.begin_metadata_here(work),
        Thread::Data => share.begin_data(work).await,
        Thread::Metadata => share.begin_metadata(work).await,
    }
}

impl Intake {
    /// Receives the next record. One at a time, also of those without work: the caller's bounds
    /// hold between two of them.
    ///
    /// A client that gives a connection up sends its calls again over another, and newer ones then.
    /// Its old calls must not be executed after these, but the kernel keeps what came in front of a
    /// reset. So a record that the server itself has made wait, in front of this or from
    /// `waits_since`, is discarded if the peer has given the connection up.
    async fn next(
        &self,
        receiver: &mut Receiver<SocketReader>,
        waits_since: Option<Moment>,
    ) -> Next {
        let mut incoming = Incoming::new(self.peer.programs);
        let (taken, waits_since) = {
            let taken = pin!(self.take_record(receiver, &mut incoming));
            self.noting_waits(taken, waits_since).await
        };
        let Some((slot, record, receiving)) = taken else { return Next::End };
        if let Some(since) = waits_since
            && self.is_given_up(since, record.payload.is_some()).await
        {
            tracing::debug!(client = %self.peer.address, "given up before its next call began");
            return Next::End;
        }
        let call = self.accept(slot, incoming, (record, receiving), receiver.has_more());
        call.map_or(Next::Settled, Next::Call)
    }

    /// Whether the peer takes no replies any more, by a record that has waited since then. A closed
    /// connection shows no reset until a reply has come to the peer, and no end of the stream while
    /// the window is full: after a long wait the replies under way must have an effect first.
    async fn is_given_up(&self, since: Moment, holds_memory: bool) -> bool {
        let Self { service, replies, .. } = self;
        if since.elapsed() < LONG_WAIT {
            return replies.has_lost_peer();
        }
        !replies.reach_peer(holds_memory, &service.timers).await
    }

    /// The outcome of `work`, and since when something other than the peer was waited for: from
    /// `waits_since`, or from the first such wait of `work`, which stays where it is: it is large.
    fn noting_waits<T>(
        &self,
        mut work: Pin<&mut impl Future<Output = T>>,
        mut waits_since: Option<Moment>,
    ) -> impl Future<Output = (T, Option<Moment>)> {
        poll_fn(move |context| {
            let polled = work.as_mut().poll(context);
            if polled.is_pending() && !self.activity.waits_for_peer() {
                waits_since.get_or_insert_with(Moment::now);
            }
            polled.map(|outcome| (outcome, waits_since))
        })
    }

    /// Waits for a slot and for the limits of exports, and then for a record. `None` at the end of
    /// the connection.
    async fn take_record(
        &self,
        receiver: &mut Receiver<SocketReader>,
        incoming: &mut Incoming,
    ) -> Option<(Slot, Record, Option<Receiving>)> {
        let Self { service, peer, activity, dues, .. } = self;
        let withheld = service.connections.slots_withheld(activity);
        let slot = activity.slot(withheld).await?;
        if dues.are_set() && !Box::pin(self.wait_for_limits(receiver.has_more())).await {
            return None;
        }
        match self.receive(receiver, incoming).await {
            Ok(received) => return received.map(|(record, receiving)| (slot, record, receiving)),
            Err(error @ ReceiveError::Idle(_)) => {
                tracing::debug!(client = %peer.address, %error, "idle connection closed");
            }
            Err(error) => {
                tracing::info!(client = %peer.address, %error, "connection closed");
                service.counters.add(Counter::BrokenConnections, 1);
            }
        }
        None
    }

    /// The next record. A WRITE is counted in the order in which the heads of calls arrive. With a
    /// session of version 4 in its head, its client's lease does not run out until it is executed.
    async fn receive(
        &self,
        receiver: &mut Receiver<SocketReader>,
        incoming: &mut Incoming,
    ) -> Result<Option<(Record, Option<Receiving>)>, ReceiveError> {
        let service = &self.service;
        let receiving = OnceLock::new();
        let layout = |head: &[u8]| {
            let layout = incoming.layout(head, |file| placement::device_of(service, file));
            if let Some((file, offset, len)) = incoming.write(head)
                && service.write_order.is_late(file, offset, len)
            {
                service.counters.add(Counter::WritesOutOfOrder, 1);
            }
            if let Some(session) = incoming.session(head) {
                let session = service.state.session(session).ok();
                let call = session.and_then(|session| session.receive_call());
                call.map(|call| receiving.get_or_init(|| call));
            }
            layout
        };
        let record = {
            let received = pin!(receiver.next(|| self.transfer_bytes_max(), layout));
            self.noting_memory_waits(received, &receiving).await?
        };
        Ok(record.map(|record| (record, receiving.into_inner())))
    }

    /// The outcome of `received`. While it waits for memory, the recalls of the client's
    /// delegations do not run out: its answers may lie behind the data.
    fn noting_memory_waits<'a, T>(
        &'a self,
        mut received: Pin<&'a mut impl Future<Output = T>>,
        receiving: &'a OnceLock<Receiving>,
    ) -> impl Future<Output = T> + 'a {
        let mut memory_wait = None;
        poll_fn(move |context| {
            let polled = received.as_mut().poll(context);
            // Behind the head of a WRITE, a receiver waits for its peer or for memory.
            if polled.is_ready() || self.activity.waits_for_peer() {
                memory_wait = None;
            } else if memory_wait.is_none() {
                memory_wait = receiving.get().map(Receiving::wait_for_memory);
            }
            self.waits_for_memory.store(memory_wait.is_some(), Ordering::Relaxed);
            polled
        })
    }

    /// The longest data that the peer may send with a call. Once it was admitted on this
    /// connection, its WRITEs are received as before, to be refused as others are.
    fn transfer_bytes_max(&self) -> u32 {
        let is_admitted = !self.activity.is_stranger() || self.client.get().is_some();
        let may_write = matches!(self.peer.programs, Programs::Files(_)) && is_admitted;
        if may_write { self.service.memory.transfer_bytes_max } else { STRANGER_TRANSFER_BYTES_MAX }
    }

    /// Where the peer's calls are counted.
    fn client(&self) -> &Arc<ClientCounters> {
        if self.activity.is_stranger() {
            return &self.stranger;
        }
        let clients = &self.service.counters.clients;
        self.client.get_or_init(|| clients.of(self.peer.address.ip(), false))
    }

    /// The work on a record, if there is any. `has_more`: the next one has come, or its beginning.
    fn accept(
        &self,
        mut slot: Slot,
        incoming: Incoming,
        (record, receiving): (Record, Option<Receiving>),
        has_more: bool,
    ) -> Option<Accepted> {
        let Self { service, replies, activity, .. } = self;
        let (client, peer, received) = (self.client(), self.peer, Moment::now());
        if service.callbacks.take_reply(peer.connection, &record.head) {
            return None;
        }
        activity.note_call();
        slot.begin_call();
        count(&service.counters, &record);
        let record_bytes = record.bytes;
        client.count_call(record_bytes);
        replies.cork(has_more);
        let written_bytes = record.payload.as_ref().map(WriteData::len);
        let replies = Arc::clone(replies);
        let mut call = match incoming.finish(record, receiving) {
            Ok(call) => call,
            Err(error) => {
                self.refuse(&error, received, slot);
                return None;
            }
        };
        let outline = call.outline();
        let transfer = Transfer::new(written_bytes, outline.read_bytes);
        let Claimed { device, limited } =
            placement::claimed(service, &call, &outline, peer.address);
        let is_limited = limited.is_some();
        // Operations of a COMPOUND may work on exports that are not known yet.
        let charge = (is_limited || call.is_compound())
            .then(|| Charge::new(self, limited, record_bytes, transfer, received));
        let has_one_call = activity.has_one_call();
        let thread = placement::thread(&call, &outline, has_one_call);
        let share = Share::new(&device, activity.client());
        let is_alone = !is_limited && has_one_call && !has_more;
        let kind = service.counters.timing.is_on().then(|| outline.kind());
        let traced = Traced { service, call: &call, client: peer.address, received };
        let record = call_trace::record(traced, &outline);
        call_trace::start(traced);
        let (service, client) = (Arc::clone(service), Arc::clone(client));
        let at_work = self.thread_calls.begin();
        // In its place on the heap, which is allocated first: it is large, and a move is a copy.
        let work = Box::into_pin(Box::write(Box::new_uninit(), async move {
            let unanswered = Unanswered(&replies);
            let queue_ns = thread.is_queued().then(|| Moment::now().nanoseconds_since(received));
            let (link, client, is_timed) = (replies.link(), &client, kind.is_some());
            let origin = Origin { peer, link, client, received, is_timed, queue_ns, record };
            let mut ended = Ended::default();
            let mut verdict = dispatch::answer(&service, origin, &mut call, &mut ended).await;
            drop(call.receiving.take());
            if let Verdict::Reply(reply) = &verdict {
                client.count_reply(reply.bytes());
            }
            if let Some(charge) = charge {
                charge.settle(&service, &ended.moved, verdict.reply_bytes());
            }
            if let Some(kind) = kind {
                let timed = Timed { kind, received, ended };
                verdict = timed.note(&service, client, verdict);
            }
            send(&replies, verdict, slot);
            drop(at_work);
            mem::forget(unanswered);
        }));
        Some(Accepted { thread, share, work, transfer, is_alone, received, is_limited })
    }

    /// Answers a record that is no call to be executed.
    fn refuse(&self, error: &CallError, received: Moment, slot: Slot) {
        let verdict = dispatch::refuse(&self.service, self.peer.address, received, error);
        if let Verdict::Reply(reply) = &verdict {
            self.client().count_reply(reply.bytes());
        }
        send(&self.replies, verdict, slot);
    }
}

/// Counts a call and its payload.
fn count(counters: &Counters, record: &Record) {
    counters.add(Counter::Calls, 1);
    if let Some(payload) = &record.payload {
        counters.add(Counter::PayloadBytes, payload.len() as u64);
        counters.add(Counter::PayloadMovedBytes, record.moved_bytes as u64);
    }
}

/// Sends what there is to send to a call that holds `slot`.
fn send(replies: &Arc<ReplyQueue>, verdict: Verdict, slot: Slot) {
    match verdict {
        Verdict::Reply(reply) => replies.send(reply.holding(slot)),
        Verdict::Drop => {}
        Verdict::Close => {
            // Good calls came before it, and may have been performed.
            replies.flush();
            replies.close();
        }
    }
}

/// Does the work on this thread as far as it goes without waiting. The rest becomes a task.
fn poll_first(work: impl Future<Output = ()> + Send + 'static) {
    let mut work = Box::pin(work);
    if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        drop(tokio::spawn(work));
    }
}

#[cfg(test)]
mod tests;
