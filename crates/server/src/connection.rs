//! One connection: calls come in, are worked on side by side, and are answered as they finish.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use io::{Engine, Task};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};

use crate::counters::Counter;
use crate::dispatch::{self, Peer, Place, Programs, Verdict};
use crate::receive::{Limits, Receiver};
use crate::reply_queue::ReplyQueue;
use crate::service::Service;

/// Calls of one connection at work at a time, at most. Linux asks for up to 128 at once.
const REQUESTS_MAX: usize = 128;
/// One connection's calls may hold this part of the memory budget, so that a client that stops
/// reading its replies leaves enough for the others until it is given up.
const CONNECTION_SHARE: usize = 4;
/// The longest data of a WRITE received from a peer whom no export admits. The gate is behind the
/// receiver, and a stranger who sends slowly must not keep memory from the others until then. Longer
/// data is thrown away and the call refused, or the connection ended where the record is longer than
/// this and a head. After a reload that admits the peer, its next connection takes all.
const STRANGER_TRANSFER_BYTES_MAX: u32 = 4096;
/// How long the last calls may take when the server stops.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Serves a connection until the peer closes it, breaks the protocol, or the server stops.
pub(crate) async fn serve(
    service: Arc<Service>,
    programs: Programs,
    stream: std::net::TcpStream,
    mut stop: watch::Receiver<bool>,
) {
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    let Ok(address) = stream.peer_addr() else { return };
    // Replies are whole when they are sent: holding them back would only delay them.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    service.counters.add(Counter::Connections, 1);
    tracing::debug!(client = %address, "connected");
    let (reader, writer) = stream.into_split();
    let replies = Arc::new(ReplyQueue::new(writer, Arc::clone(&service.vfs.buffers)));
    let peer = Peer { address, programs };
    let buffers = Arc::clone(&service.vfs.buffers);
    let counters = Arc::clone(&service.counters);
    let write_order = Arc::clone(&service.write_order);
    let receiver = Receiver::new(reader, buffers, counters, write_order, limits(&service, peer));
    let slots = Arc::new(Semaphore::new(requests_max(&service)));
    let mut sender = tokio::spawn({
        let replies = Arc::clone(&replies);
        async move { replies.run().await }
    });
    tokio::select! {
        () = take_calls(&service, peer, receiver, &replies, &slots) => {}
        // The peer does not take its replies, or sends what are no calls.
        _ = &mut sender => service.counters.add(Counter::BrokenConnections, 1),
        _ = stop.wait_for(|stop| *stop) => {}
    }
    // What was accepted is worked off and answered, if the peer still listens.
    let all = u32::try_from(requests_max(&service)).expect("at most 128");
    drop(tokio::time::timeout(DRAIN_MAX, slots.acquire_many(all)).await);
    sender.abort();
    tracing::debug!(client = %address, "disconnected");
}

/// Takes calls until the peer sends no more, or what are none.
async fn take_calls(
    service: &Arc<Service>,
    peer: Peer,
    mut receiver: Receiver,
    replies: &Arc<ReplyQueue>,
    slots: &Arc<Semaphore>,
) {
    let requests_max = requests_max(service);
    loop {
        let slot = Arc::clone(slots).acquire_owned().await.expect("the semaphore stays open");
        let record = match receiver.next().await {
            Ok(Some(record)) => record,
            Ok(None) => return,
            Err(error) => {
                tracing::info!(client = %peer.address, %error, "connection given up");
                service.counters.add(Counter::BrokenConnections, 1);
                return;
            }
        };
        service.counters.add(Counter::Calls, 1);
        // This call holds one of the slots.
        let alone = slots.available_permits() + 1 == requests_max;
        let begins_on = dispatch::begins_on(&record, alone);
        let (answering, replies) = (Arc::clone(service), Arc::clone(replies));
        let task = Box::pin(async move {
            match dispatch::answer(&answering, peer, record).await {
                Verdict::Reply(reply) => replies.send(reply.holding(slot)),
                Verdict::Drop => {}
                Verdict::Close => replies.close(),
            }
        });
        begin(&service.vfs.engine, begins_on, task).await;
    }
}

/// Begins the work on a call where it will have to wait, if anywhere.
async fn begin(engine: &Engine, place: Place, mut task: Task) {
    match place {
        // What needs no waiting is done here and now; the runtime gets only the rest.
        Place::Here => {
            if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                drop(tokio::spawn(task));
            }
        }
        Place::HereAtFirst => engine.begin_here(task).await,
        Place::DataThread => engine.begin_data(task).await,
        Place::MetadataThread => engine.begin_metadata(task).await,
    }
}

/// What a peer may send and keep.
fn limits(service: &Service, peer: Peer) -> Limits {
    let may_write = peer.programs == Programs::Files && service.knows(peer.address);
    let transfer_bytes_max =
        if may_write { service.vfs.transfer_bytes_max } else { STRANGER_TRANSFER_BYTES_MAX };
    Limits { transfer_bytes_max, idle_timeout: service.idle_timeout }
}

/// How many calls of one connection are at work at a time: as many as its share of the memory holds
/// at their largest, at least 2.
fn requests_max(service: &Service) -> usize {
    let largest = usize::try_from(service.vfs.transfer_bytes_max).unwrap_or(usize::MAX);
    let share = service.vfs.buffers.budget_bytes() / CONNECTION_SHARE / largest;
    share.clamp(2, REQUESTS_MAX)
}
