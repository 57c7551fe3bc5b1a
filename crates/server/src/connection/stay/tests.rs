use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::thread;

use io::Share;
use proto::nfs3;
use proto::oncrpc::{CallHeader, Credential};
use proto::xdr::{Encode, Writer};
use rpc::record::in_fragments;
use rpc::server::{ReplyQueue, Socket};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::*;
use crate::connections::ConnectionPermit;
use crate::procedures::Programs;
use crate::request::Peer;
use crate::server::Server;
use crate::state::ConnectionId;
use crate::test_server::{config, directory};

const PATIENCE: Duration = Duration::from_secs(20);
/// As many as a lane has, or more.
const LANE_THREADS: usize = 64;

/// The purpose of a stay for calls that only a thread of this lane can perform.
fn of(lane: LaneKind) -> Purpose {
    Purpose { lane, is_light: false }
}

/// The record of a call that no thread stays for.
fn null() -> Vec<u8> {
    let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
    let procedure = nfs3::Procedure::Null.code();
    let (xid, credential, verifier_flavor) = (1, Credential::None, 0);
    let mut w = Writer::new();
    CallHeader { xid, program, version, procedure, credential, verifier_flavor }.encode(&mut w);
    in_fragments(w.as_slice(), &[])
}

/// A connection to a server of nothing.
struct Rig {
    intake: Arc<Intake>,
    client: TcpStream,
    /// When its calls come: all at once, and so in one streak however busy the machine is.
    received: Moment,
    /// Sends what the socket does not take at once. It takes nothing until the runtime, which has
    /// just begun to watch it again, has noted that it has room.
    _sender: JoinSet<()>,
    _permit: ConnectionPermit,
    _server: Server,
    _dir: TempDir,
}

impl Rig {
    async fn new() -> (Self, Receiver<SocketReader>) {
        let dir = directory();
        let server = Server::start(config(dir.path(), "", "")).await.unwrap();
        let service = Arc::clone(server.service());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let (accepted, address) = listener.accept().unwrap();
        let permit = service.connections.enter(address, || false).await.unwrap();
        let socket = Socket::new(accepted).unwrap();
        let buffers = Arc::clone(&service.buffers);
        let replies = ReplyQueue::new(address, 1, Arc::clone(&socket) as _, Arc::clone(&buffers));
        let activity = Arc::clone(&permit.activity);
        activity.begins(replies.link());
        let programs = Programs::Files(crate::config::NfsVersions::V3);
        let peer = Peer { address, connection: ConnectionId(1), programs };
        let wait = Arc::clone(&activity.peer_wait);
        let slots = Arc::clone(activity.slots());
        let reader = socket.reader();
        let receiver = Receiver::new(reader, 1, buffers, wait, service.idle_timeout, slots);
        let replies = Arc::new(replies);
        let mut sender = JoinSet::new();
        sender.spawn({
            let replies = Arc::clone(&replies);
            async move { replies.run().await }
        });
        let stranger = service.counters.clients.of(address.ip(), true);
        let intake = Intake {
            service,
            peer,
            stranger,
            client: OnceLock::new(),
            socket,
            replies,
            activity,
            waits_for_memory: Arc::default(),
            thread_calls: Arc::default(),
            dues: Arc::default(),
            waits: Mutex::default(),
        };
        let (intake, received) = (Arc::new(intake), Moment::now());
        let rig = Self {
            intake,
            client,
            received,
            _sender: sender,
            _permit: permit,
            _server: server,
            _dir: dir,
        };
        (rig, receiver)
    }

    fn write(&self, work: impl Future<Output = ()> + Send + 'static) -> Accepted {
        self.call(LaneKind::Data, work)
    }

    fn call(&self, lane: LaneKind, work: impl Future<Output = ()> + Send + 'static) -> Accepted {
        Accepted {
            thread: match lane {
                LaneKind::Data => Thread::NetworkThenData,
                LaneKind::Metadata => Thread::Metadata,
            },
            share: Share::new(self.intake.service.engine.own_device(), 1),
            work: Box::pin(work),
            transfer: match lane {
                LaneKind::Data => Transfer::Write(1),
                LaneKind::Metadata => Transfer::None,
            },
            is_alone: true,
            received: self.received,
            is_limited: false,
        }
    }

    /// Sends a call that no thread stays for.
    fn send_null(&mut self) {
        self.client.write_all(&null()).unwrap();
    }

    /// The stay for a call.
    fn stay_for(&self, call: &Accepted) -> Stay {
        let purpose = purpose(call).expect("a thread stays for it");
        Stay::new(&self.intake, purpose, call.share.clone())
    }

    /// The same, which waits for its thread however late that begins.
    fn patient_stay_for(&self, call: &Accepted) -> Stay {
        Stay { check_interval: 2 * PATIENCE, ..self.stay_for(call) }
    }

    async fn stay(&self, receiver: Receiver<SocketReader>, call: Accepted) -> (Received, bool) {
        Self::ended(self.stay_for(&call).run(receiver, call)).await
    }

    async fn ended(stay: impl Future<Output = Option<Stayed>>) -> (Received, bool) {
        let stayed = tokio::time::timeout(PATIENCE, stay).await;
        match stayed.expect("the stay ends").expect("the connection goes on") {
            Stayed::Ended { received, has_failed } => (received, has_failed),
            Stayed::Refused(..) => panic!("there is a thread for it"),
        }
    }

    /// Performs a call that was received, whose reply is sent then.
    async fn answer(&mut self, next: Next) {
        let Next::Call(call) = next else { panic!("a call came") };
        crate::connection::begin(call).await;
        let mut reply = [0; 28];
        self.client.read_exact(&mut reply).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_blocks_its_thread_delays_no_other_call_of_the_connection() {
    for (lane, name) in [(LaneKind::Data, "spillway-data"), (LaneKind::Metadata, "spillway-meta")] {
        let (mut rig, receiver) = Rig::new().await;
        let (release, blocked) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel();
        let call = rig.call(lane, async move {
            // The disk takes long.
            let _released = blocked.recv();
            ended.send(thread::current().name().unwrap_or_default().to_owned()).unwrap();
        });
        rig.send_null();
        let ((_, next), has_failed) = rig.stay(receiver, call).await;
        assert!(has_failed);
        rig.answer(next).await;
        assert!(end.try_recv().is_err(), "it still waits for its disk");
        drop(release);
        let thread = end.recv_timeout(PATIENCE).unwrap();
        assert!(thread.starts_with(name), "{thread}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stay_that_waits_for_its_thread_delays_no_other_call_of_the_connection() {
    for lane in [LaneKind::Data, LaneKind::Metadata] {
        let (mut rig, receiver) = Rig::new().await;
        let (ended, end) = mpsc::channel();
        let call = rig.call(lane, async move { ended.send(()).unwrap() });
        let blocks: Vec<_> = (0..LANE_THREADS)
            .map(|_| {
                let (release, blocked) = mpsc::channel::<()>();
                assert!(call.share.leave_to(lane, move || assert!(blocked.recv().is_err())));
                release
            })
            .collect();
        rig.send_null();
        let ((_, next), has_failed) = rig.stay(receiver, call).await;
        assert!(has_failed);
        rig.answer(next).await;
        assert!(end.try_recv().is_err(), "no thread has taken it");
        assert_eq!(rig.intake.service.stays.of(of(lane)).taken(), 0, "others may stay meanwhile");
        drop(blocks);
        end.recv_timeout(PATIENCE).unwrap();
    }
}

#[tokio::test]
async fn a_streak_and_a_stay_are_of_one_device() {
    let (rig, _receiver) = Rig::new().await;
    let call_on = |minor| Accepted {
        share: Share::new(&rig.intake.service.engine.device((0, minor)), 1),
        ..rig.call(LaneKind::Metadata, async {})
    };
    let mut streak = Streak::default();
    for number in 0..20 {
        let call = call_on(number % 2);
        assert_eq!(streak.worth_a_stay(&rig.intake, &call), None, "the devices change");
    }
    for number in 1..STREAK_MIN {
        assert_eq!(streak.worth_a_stay(&rig.intake, &call_on(1)), None, "{number}");
    }
    let call = call_on(1);
    let metadata = of(LaneKind::Metadata);
    assert_eq!(streak.worth_a_stay(&rig.intake, &call), Some(metadata));
    let stay = Stay::new(&rig.intake, metadata, call.share);
    assert!(stay.goes_on_with(&call_on(1)));
    assert!(!stay.goes_on_with(&call_on(0)));
}

#[tokio::test]
async fn the_purpose_of_a_stay_is_that_of_all_calls_of_its_streak() {
    let (rig, _receiver) = Rig::new().await;
    let (data, metadata) = (of(LaneKind::Data), of(LaneKind::Metadata));
    let light = |purpose| Some(Purpose { is_light: true, ..purpose });
    let getattr = || Accepted {
        thread: Thread::NetworkThenMetadata,
        ..rig.call(LaneKind::Metadata, async {})
    };
    let read = |bytes| Accepted { transfer: Transfer::Read(bytes), ..rig.write(async {}) };
    let mut streak = Streak::default();
    let mut after = |call: Accepted| streak.worth_a_stay(&rig.intake, &call);
    for number in 0..STREAK_MIN {
        assert_eq!(after(getattr()), None, "{number}");
    }
    assert_eq!(after(getattr()), light(metadata));
    assert_eq!(after(rig.call(LaneKind::Metadata, async {})), Some(metadata));
    assert_eq!(after(read(DATA_BYTES_MAX)), Some(data));
    assert_eq!(after(getattr()), Some(data));
    assert_eq!(after(read(DATA_BYTES_MAX + 1)), None);
    for number in 0..STREAK_MIN {
        assert_eq!(after(read(1)), None, "{number}");
    }
    assert_eq!(after(getattr()), light(data));
    assert_eq!(after(rig.write(async {})), Some(data));
    for (purpose, goes_on) in [(data, true), (metadata, false)] {
        let stay = Stay::new(&rig.intake, purpose, getattr().share);
        assert!(stay.goes_on_with(&getattr()));
        assert_eq!(stay.goes_on_with(&read(1)), goes_on, "{purpose:?}");
        assert!(!stay.goes_on_with(&read(DATA_BYTES_MAX + 1)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_waits_for_others_ends_the_stay_and_is_performed() {
    let (mut rig, receiver) = Rig::new().await;
    let (turn, its_turn) = oneshot::channel::<()>();
    let (ended, end) = oneshot::channel();
    let write = rig.write(async move {
        its_turn.await.unwrap();
        ended.send(()).unwrap();
    });
    rig.send_null();
    let ((_, next), has_failed) = rig.stay(receiver, write).await;
    assert!(has_failed);
    rig.answer(next).await;
    turn.send(()).unwrap();
    tokio::time::timeout(PATIENCE, end).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_pauses_is_heard_afterwards() {
    let (mut rig, receiver) = Rig::new().await;
    let write = rig.write(async {});
    let stayed = tokio::spawn(rig.patient_stay_for(&write).run(receiver, write));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!stayed.is_finished(), "the receiver waits for a call");
    rig.send_null();
    let ((_, next), has_failed) = Rig::ended(async { stayed.await.unwrap() }).await;
    assert!(!has_failed);
    rig.answer(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_connection_ends_the_stay() {
    let (rig, receiver) = Rig::new().await;
    let write = rig.write(async {});
    {
        let stay = stay(&rig.intake, of(LaneKind::Data), receiver, write);
        drop(tokio::time::timeout(Duration::from_millis(1), stay).await);
    }
    // All slots are free again, and so is the thread.
    tokio::time::timeout(PATIENCE, rig.intake.activity.calls_ended()).await.unwrap();
    let permits = rig.intake.service.stays.of(of(LaneKind::Data));
    let begun = Instant::now();
    while permits.taken() > 0 || Arc::strong_count(&rig.intake) > 1 {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_connection_begins_no_call_once_its_slots_were_free() {
    let (mut rig, receiver) = Rig::new().await;
    let (service, activity) = (Arc::clone(&rig.intake.service), Arc::clone(&rig.intake.activity));
    let peer = rig.client.local_addr().unwrap().ip();
    // The staying thread has the receiver, and learns of the eviction by the next slot alone.
    let write = rig.write(async move {
        let _eviction = service.connections.evict_peer(peer);
        activity.calls_ended().await;
    });
    rig.send_null();
    let stay = rig.patient_stay_for(&write).run(receiver, write);
    let ((_, next), _) = Rig::ended(stay).await;
    assert!(matches!(next, Next::End));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_refused_end_the_stay_however_many_come() {
    let (rig, receiver) = Rig::new().await;
    // RPC version 7 is refused.
    let mut refused = null();
    refused[15] = 7;
    let calls = refused.repeat(10_000);
    let mut client = rig.client.try_clone().unwrap();
    thread::spawn(move || while client.write_all(&calls).is_ok() {});
    let mut client = rig.client.try_clone().unwrap();
    thread::spawn(move || while client.read(&mut [0; 65_536]).is_ok_and(|len| len > 0) {});
    thread::sleep(Duration::from_millis(50));
    let write = rig.write(async {});
    let stay = rig.patient_stay_for(&write).run(receiver, write);
    let ((_, next), has_failed) = Rig::ended(stay).await;
    assert!(matches!(next, Next::Settled) && !has_failed);
    rig.client.shutdown(Shutdown::Both).unwrap();
}

#[tokio::test]
async fn a_stay_is_owed_to_another_client_that_asks_in_vain() {
    let (rig, _receiver) = Rig::new().await;
    let purpose = of(LaneKind::Data);
    let stay = Stay::new(&rig.intake, purpose, rig.write(async {}).share);
    let permits = rig.intake.service.stays.of(purpose);
    let client = rig.intake.activity.client();
    let _taken: Vec<_> = std::iter::from_fn(|| permits.try_acquire(client)).collect();
    assert!(!stay.is_owed());
    assert!(permits.try_acquire(client + 1).is_none());
    assert!(stay.is_owed());
}
