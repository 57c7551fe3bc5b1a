//! The end of a connection: the last replies, and what was opened for it.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use rpc::server::{ReplyQueue, Socket};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::connections::Activity;
use crate::service::Service;
use crate::state::ConnectionId;

/// How long the last calls of a connection that the server ends, or that its peer has lost, may
/// take to be answered while the server goes on.
pub(crate) const LAST_CALLS_MAX: Duration = Duration::from_secs(10);
/// How long the last replies may take to reach the peer while the server goes on.
const FINISH_MAX: Duration = Duration::from_secs(1);
/// How long the peer may acknowledge none of them when the server stops: Linux sends a lost segment
/// four times again until then.
const FINISH_STALL_MAX: Duration = Duration::from_secs(5);

/// Has accepted calls completed and answered, if the peer still reads: within `last_calls_max` and
/// [`FINISH_MAX`], or for as long as the server waits for its connections if it stops.
pub(super) async fn drain(
    socket: &Socket,
    activity: &Activity,
    stop: &mut watch::Receiver<bool>,
    last_calls_max: Duration,
) {
    tokio::select! {
        biased;
        () = activity.calls_ended() => {}
        // The peer has to learn of the end, to repeat its calls over another connection.
        () = too_long(last_calls_max, stop) => return socket.end(),
    }
    // One that was idle: nothing unread makes the kernel drop its last replies.
    if !activity.makes_room() || socket.has_unread_bytes() {
        tokio::select! {
            biased;
            () = socket.finish(FINISH_STALL_MAX) => {}
            () = too_long(FINISH_MAX, stop) => {}
        }
    }
}

/// Waits for so long; for ever once the server stops, which has a limit of its own.
async fn too_long(at_most: Duration, stop: &mut watch::Receiver<bool>) {
    let stops = timeout(at_most, stop.wait_for(|stop| *stop)).await;
    if stops.is_ok_and(|stops| stops.is_ok()) {
        pending::<()>().await;
    }
}

/// Ends what serves an open connection beside its task, also when that panics: the socket would
/// stay open with no task that reads it.
pub(super) struct Open<'a> {
    pub(super) service: &'a Service,
    pub(super) connection: ConnectionId,
    pub(super) replies: Arc<ReplyQueue>,
    pub(super) sender: AbortHandle,
}

impl Open<'_> {
    /// Waits until a peer that has ended its own side alone, and answers no callback, has all its
    /// replies.
    pub(super) async fn answer_last_calls(&self, socket: &Socket, activity: &Activity) {
        if socket.sends_no_more() && !self.replies.has_lost_peer() {
            self.end_callbacks();
            activity.calls_ended().await;
        }
    }

    fn end_callbacks(&self) {
        self.service.callbacks.remove(self.connection);
        self.service.state.connection_closed(self.connection);
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.sender.abort();
        self.replies.close();
        self.end_callbacks();
    }
}

/// Ends the connection when it is dropped, by a panic in the work on a call or with the tasks of a
/// server that ends: the peer would wait for a reply as long as the connection stands.
pub(super) struct Unanswered<'a>(pub(super) &'a ReplyQueue);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        // Those of other calls, which were performed.
        self.0.flush();
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use rpc::server::Slot;
    use tempfile::TempDir;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::config::NfsVersions;
    use crate::network_threads::NetworkThreads;
    use crate::procedures::Programs;
    use crate::server::Server;
    use crate::test_server::{config, directory};

    const LIMIT: Duration = Duration::from_millis(20);
    /// Long enough to see what waits for no more than the limit.
    const MUCH_LONGER: Duration = Duration::from_millis(300);

    /// A client, and its connection and address at the server.
    fn connected() -> (TcpStream, (TcpStream, SocketAddr)) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap())
    }

    /// A connection with a call at work, which ends with its slot.
    struct Rig {
        client: TcpStream,
        activity: Arc<Activity>,
        call: Slot,
        stop: watch::Sender<bool>,
        serving: JoinHandle<()>,
        _threads: NetworkThreads,
        server: Server,
        _dir: TempDir,
    }

    impl Rig {
        async fn new() -> Self {
            let dir = directory();
            let server = Server::start(config(dir.path(), "", "")).await.unwrap();
            let service = Arc::clone(server.service());
            let (client, (accepted, address)) = connected();
            let permit = service.connections.enter(address, || false).await.unwrap();
            let activity = Arc::clone(&permit.activity);
            let mut call = activity.slot(0).await.unwrap();
            call.begin_call();
            let (stop, stopped) = watch::channel(false);
            let threads = NetworkThreads::start(&service.busy_polls).unwrap();
            let (thread, flow) = threads.join(activity.client());
            let programs = Programs::Files(NfsVersions::V3);
            let place = (permit, flow);
            let serving = super::super::serve(service, programs, accepted, place, stopped, LIMIT);
            let serving = thread.spawn(serving);
            let (_threads, _dir) = (threads, dir);
            Self { client, activity, call, stop, serving, server, _threads, _dir }
        }

        /// Whether the server has ended the stream.
        fn is_closed(&mut self) -> bool {
            self.client.set_read_timeout(Some(MUCH_LONGER)).unwrap();
            match self.client.read(&mut [0]) {
                Ok(bytes) => bytes == 0,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            }
        }

        /// Ends the call, and so the connection.
        async fn end(self) {
            drop(self.call);
            timeout(Duration::from_secs(10), self.serving).await.expect("it ends").unwrap();
        }
    }

    #[tokio::test]
    async fn last_call_of_an_evicted_connection_has_a_limit_and_counts_until_it_ends() {
        let mut rig = Rig::new().await;
        drop(rig.server.service().connections.evict_peer(Ipv4Addr::LOCALHOST.into()));
        assert!(rig.is_closed());
        assert!(!rig.serving.is_finished());
        // The server does not go on without it either.
        rig.stop.send_replace(true);
        assert!(timeout(MUCH_LONGER, &mut rig.serving).await.is_err());
        assert_eq!(rig.activity.calls(), 1);
        rig.end().await;
    }

    #[tokio::test]
    async fn peer_that_has_ended_its_own_side_gets_its_last_reply_however_late() {
        let mut rig = Rig::new().await;
        rig.client.shutdown(Shutdown::Write).unwrap();
        assert!(!rig.is_closed(), "it could not be answered");
        assert!(!rig.serving.is_finished());
        rig.end().await;
    }

    #[tokio::test]
    async fn peer_that_has_ended_its_own_side_is_evicted_as_others_are() {
        let mut rig = Rig::new().await;
        rig.client.shutdown(Shutdown::Write).unwrap();
        assert!(!rig.is_closed());
        drop(rig.server.service().connections.evict_peer(Ipv4Addr::LOCALHOST.into()));
        assert!(rig.is_closed());
        rig.end().await;
    }

    #[tokio::test]
    async fn work_that_is_dropped_without_a_reply_ends_its_connection() {
        let rig = Rig::new().await;
        let (_peer, (accepted, peer)) = connected();
        let transport = Socket::new(accepted).unwrap();
        let service = rig.server.service();
        let (client, buffers) = (rig.activity.client(), Arc::clone(&service.buffers));
        let replies = ReplyQueue::new(peer, client, transport, buffers);
        let work = || {
            let _unanswered = Unanswered(&replies);
            panic!("the work on a call");
        };
        catch_unwind(AssertUnwindSafe(work)).unwrap_err();
        assert!(replies.has_lost_peer());
        rig.stop.send_replace(true);
        rig.end().await;
    }

    #[tokio::test]
    async fn last_call_has_no_limit_of_its_own_when_the_server_stops() {
        let mut rig = Rig::new().await;
        rig.stop.send_replace(true);
        assert!(!rig.is_closed(), "it could not be answered");
        assert!(!rig.serving.is_finished());
        rig.end().await;
    }
}
