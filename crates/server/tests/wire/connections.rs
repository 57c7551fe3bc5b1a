//! Idle connections: what they cost, and that they lock out no other client.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Shutdown};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use proto::mount3::MountStatus;
use proto::nfs3::{self, StableHow, Status, WriteArgs};
use proto::nfs4;
use proto::oncrpc::{AcceptStat, ReplyHeader};
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spillway_server::counters::Counter;
use spillway_server::report::{DroppedClient, Monitor};

use crate::client::{Client, encoded, in_fragments, mode, ok, refusal};
use crate::fixture::{Fixture, Frozen, Mounted, TRUSTING, is_root};
use crate::local_file::eventually;
use crate::nfs4::client::{CHANNEL, Operations, Session, compound};
use crate::own_process::ran_in_own_process;

/// Admits every loopback address but 127.0.0.66.
const NETWORK: &str = r#"
    [[export]]
    path = "$DIR/export"
    name = "/export"
    squash = "none"
    [[export.client]]
    hosts = ["127.0.0.0/26"]
"#;
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);

fn loopback(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, last)
}

/// Connects and calls NULL. The client waits for less time than an idle connection stays open by
/// itself.
#[track_caller]
fn is_answered(fixture: &Fixture, source: Ipv4Addr) -> Client {
    let mut client = Client::connect_from(source, fixture.address());
    client.null();
    client
}

/// Waits until the server has so many connections open, or fewer.
#[track_caller]
fn open_connections_fall_to(fixture: &Fixture, most: u64) {
    let began = Instant::now();
    while fixture.figure("connections_open") > most {
        assert!(began.elapsed() < Duration::from_secs(20), "they stay open");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn idle_connection_makes_room_beyond_the_limit() {
    let fixture = Fixture::with(&format!("max_connections = 2\n{NETWORK}"));
    let idle: Vec<Client> = [1, 2].map(|last| is_answered(&fixture, loopback(last))).into();
    let mut third = is_answered(&fixture, loopback(3));
    third.null();
    assert_eq!(fixture.counter(Counter::ConnectionsEvicted), 1);
    assert_eq!(fixture.figure("connections_open"), 2);
    drop(idle);
}

#[test]
fn connection_with_an_unread_reply_is_not_evicted() {
    let fixture = Fixture::with_settings("max_connections = 2");
    let (mut busy, root) = fixture.mounted();
    let file = busy.create(root, "f");
    busy.write(file, 0, &vec![1; 1 << 20]).unwrap();
    // More replies than the sockets take.
    let args = crate::client::encoded(&nfs3::ReadArgs { file, offset: 0, count: 1 << 20 });
    let read = (nfs3::PROGRAM, nfs3::VERSION, nfs3::Procedure::Read.code());
    let calls = 24;
    for _ in 0..calls {
        let xid = busy.xid();
        let call = busy.encode(xid, read, &args);
        busy.send_record(&call);
    }
    for _ in 0..8 {
        is_answered(&fixture, loopback(1));
    }
    for _ in 0..calls {
        busy.receive_record().unwrap();
    }
    busy.null();
}

#[test]
fn idle_strangers_lock_out_no_client() {
    let fixture = Fixture::with(&format!("max_connections = 1024\n{NETWORK}"));
    let mut first = is_answered(&fixture, loopback(1));
    let strangers: Vec<Client> =
        (0..1100).map(|_| Client::connect_from(STRANGER, fixture.address())).collect();
    // The connections accepted last: a stranger can still call the server.
    is_answered(&fixture, STRANGER);
    open_connections_fall_to(&fixture, 1 + 1024 / 16 + 1);
    is_answered(&fixture, loopback(2));
    first.null();
    drop(strangers);
}

#[test]
fn idle_connections_of_one_peer_lock_out_no_client() {
    let fixture = Fixture::with(&format!("max_connections = 1024\n{NETWORK}"));
    let mut first = is_answered(&fixture, loopback(1));
    let idle: Vec<Client> = (0..5)
        .cycle()
        .take(1100)
        .map(|i| Client::connect_from(loopback(2 + i), fixture.address()))
        .collect();
    let mut others: Vec<Client> =
        (10..20).map(|last| is_answered(&fixture, loopback(last))).collect();
    assert_eq!(fixture.figure("connections_open"), 1024);
    // No more than had to make room, and none was refused.
    let evicted = fixture.counter(Counter::ConnectionsEvicted);
    assert_eq!(evicted, (1 + idle.len() + others.len() - 1024) as u64);
    assert_eq!(fixture.counter(Counter::ConnectionsRefused), 0);
    // It is the longest idle of all, and its peer has no other.
    first.null();
    others.iter_mut().for_each(Client::null);
    drop(idle);
}

/// A server, its frozen disk, a client, and a SETATTR that is not answered before the disk takes
/// changes again. `None`, with the reason printed, if no disk can be frozen here.
fn with_a_frozen_disk() -> Option<(Fixture, Mounted, Client, Frozen, Vec<u8>)> {
    with_settings_and_a_frozen_disk("")
}

/// An export of a disk that is not frozen.
const HEALTHY: &str = r#"
    [[export]]
    path = "$DIR/healthy"
    name = "/healthy"
    squash = "none"
"#;

/// As [`with_a_frozen_disk`], with settings of the server, which also serves [`HEALTHY`].
fn with_settings_and_a_frozen_disk(
    settings: &str,
) -> Option<(Fixture, Mounted, Client, Frozen, Vec<u8>)> {
    if !is_root() {
        return None;
    }
    let config = format!("{settings}\n{NETWORK}\n{HEALTHY}");
    let (fixture, disk) = Fixture::over(&config, |dir| {
        std::fs::create_dir(dir.join("healthy")).unwrap();
        Mounted::ext4_export(dir)
    })?;
    let (mut client, root) = fixture.mounted();
    let object = client.create(root, "f");
    let frozen = Frozen::at(&fixture.path("export"))?;
    let args = nfs3::SetattrArgs { object, new_attributes: mode(0o600), guard: None };
    let setattr = (nfs3::PROGRAM, nfs3::VERSION, nfs3::Procedure::Setattr.code());
    let setattr = client.encode(1, setattr, &encoded(&args));
    Some((fixture, disk, client, frozen, setattr))
}

#[test]
fn a_closed_connection_counts_until_its_calls_end() {
    let Some((fixture, _disk, mut first, frozen, setattr)) = with_a_frozen_disk() else { return };
    for _ in 0..3 {
        fixture.client().send_record(&setattr);
    }
    // Longer than the last calls of a connection may take to be answered.
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(fixture.figure("connections_open"), 4);
    drop(frozen);
    open_connections_fall_to(&fixture, 1);
    first.null();
}

#[test]
fn connection_with_a_call_at_work_is_not_idle() {
    let frozen = with_settings_and_a_frozen_disk("idle_timeout = \"1s\"");
    let Some((fixture, _disk, mut client, frozen, setattr)) = frozen else { return };
    client.send_record(&setattr);
    std::thread::sleep(Duration::from_millis(2500));
    let thawed = Instant::now();
    drop(frozen);
    assert!(client.receive_record().is_some(), "the call is answered");
    assert!(client.is_closed_by_server());
    assert!(thawed.elapsed() > Duration::from_millis(900), "the clock starts at its end");
    assert_eq!(fixture.counter(Counter::BrokenConnections), 0);
}

/// Waits until so many calls are at work.
#[track_caller]
fn calls_at_work_are(fixture: &Fixture, calls: u64) {
    assert!(eventually(|| fixture.figure("calls_in_flight") == calls), "{:?}", fixture.counters());
}

#[test]
fn call_that_waited_for_a_slot_is_not_executed_after_its_client_has_given_it_up() {
    for is_reset in [true, false] {
        call_that_waited_for_a_slot_is_not_executed(is_reset);
    }
}

/// `is_reset`: the client resets the connection; otherwise it closes it.
fn call_that_waited_for_a_slot_is_not_executed(is_reset: bool) {
    // Two calls of a connection at a time.
    let frozen = with_settings_and_a_frozen_disk("memory = \"8MiB\"");
    let Some((fixture, _disk, mut second, frozen, setattr)) = frozen else { return };
    let root = second.mnt("/healthy");
    let file = second.create(root, "f");
    let mut first = fixture.client();
    for xid in 1..=2_u32 {
        let call = [&xid.to_be_bytes()[..], &setattr[4..]].concat();
        first.send_record(&call);
    }
    calls_at_work_are(&fixture, 2);
    let (stable, data) = (StableHow::Unstable, &b"old"[..]);
    let args = encoded(&WriteArgs { file, offset: 0, count: 3, stable, data });
    let write = (nfs3::PROGRAM, nfs3::VERSION, nfs3::Procedure::Write.code());
    let call = first.encode(3, write, &args);
    first.send_record(&call);
    // So that the server's socket has it before the reset.
    std::thread::sleep(Duration::from_millis(100));
    if is_reset {
        set_socket_linger(&first.stream, Some(Duration::ZERO)).unwrap();
    }
    drop(first);
    for data in [b"old", b"new"] {
        second.write(file, 0, data).unwrap();
    }
    second.commit(file).unwrap();
    drop(frozen);
    open_connections_fall_to(&fixture, 1);
    assert_eq!(std::fs::read(fixture.path("healthy/f")).unwrap(), b"new");
}

fn drop_client(monitor: &Monitor, address: Ipv4Addr) -> DroppedClient {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.unwrap().block_on(monitor.drop_client(address.into()))
}

/// The status of SEQUENCE.
fn sequence(session: &mut Session) -> nfs4::Reply<()> {
    let call = session.sequenced(&Operations::new());
    compound(&mut session.client, session.minor_version, &call).status
}

#[test]
fn a_dropped_client_keeps_its_state_until_its_calls_end() {
    for has_state in [true, false] {
        let Some(frozen) = with_a_frozen_disk() else { return };
        let (fixture, _disk, mut first, frozen, setattr) = frozen;
        let mut session = has_state.then(|| Session::new(&fixture));
        // The last call of the session counts for a moment after its reply.
        calls_at_work_are(&fixture, 0);
        first.send_record(&setattr);
        calls_at_work_are(&fixture, 1);
        let monitor = fixture.server().monitor();
        let dropping = std::thread::spawn(move || drop_client(&monitor, loopback(1)));
        match &mut session {
            Some(session) => assert!(session.client.is_closed_by_server()),
            None => std::thread::sleep(Duration::from_millis(500)),
        }
        let second = Client::connect_from(loopback(1), fixture.address());
        let calling = std::thread::spawn(move || Session::over(second, b"second", 1, CHANNEL));
        if has_state {
            std::thread::sleep(Duration::from_millis(500));
            assert!(!calling.is_finished(), "the client has its state still");
        } else {
            assert!(eventually(|| calling.is_finished()), "there is no state to wait for");
        }
        assert!(!dropping.is_finished(), "a call is in progress");
        drop(frozen);
        let lost = usize::from(has_state);
        let expected =
            DroppedClient { connections: 1 + lost, nfs4_clients: lost, calls_in_progress: 0 };
        assert_eq!(dropping.join().unwrap(), expected);
        calling.join().unwrap().export();
        if let Some(mut session) = session {
            session.client = Client::connect_from(loopback(1), fixture.address());
            assert_eq!(sequence(&mut session), Err(nfs4::Status::Badsession));
        }
    }
}

#[test]
fn a_session_ends_when_the_address_is_dropped_that_its_client_came_from() {
    let fixture = Fixture::with(NETWORK);
    let monitor = fixture.server().monitor();
    let connect = |last| Client::connect_from(loopback(last), fixture.address());
    let mut session = Session::over(connect(1), b"a client", 1, CHANNEL);
    let _first = std::mem::replace(&mut session.client, connect(2));
    session.export();
    let expected =
        |nfs4_clients| DroppedClient { connections: 1, nfs4_clients, calls_in_progress: 0 };
    assert_eq!(drop_client(&monitor, loopback(2)), expected(0));
    session.client = connect(2);
    session.export();
    assert_eq!(drop_client(&monitor, loopback(1)), expected(1));
    assert_eq!(sequence(&mut session), Err(nfs4::Status::Badsession));
    Session::over(connect(1), b"a client", 1, CHANNEL).export();
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn ten_thousand_idle_connections_cost_less_than_300_mib() {
    if ran_in_own_process("connections::ten_thousand_idle_connections_cost_less_than_300_mib") {
        return;
    }
    // Both ends of each connection are in this process, and the server uses a quarter of them.
    let wanted = Some(65_536);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum: wanted }).is_ok();
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let count = if raised { 10_000 } else { limit / 4 - 100 };
    let fixture = Fixture::with(NETWORK);
    let mut first = is_answered(&fixture, loopback(1));
    let before = resident_bytes();
    let mut idle: Vec<Client> = (0..count)
        .map(|i| {
            let last = u8::try_from(2 + i % 8).unwrap();
            let mut client = Client::connect_from(loopback(last), fixture.address());
            client.null();
            client
        })
        .collect();
    assert_eq!(fixture.figure("connections_open"), count + 1);
    let grown = resident_bytes() - before;
    println!("{count} connections: {} bytes each", grown / count);
    assert!(grown / count < (300 << 20) / 10_000, "{} bytes each", grown / count);
    is_answered(&fixture, loopback(20));
    is_answered(&fixture, STRANGER);
    // Nor does an incomplete record cost much.
    for client in &mut idle {
        client.send_bytes(&[0x80, 0, 0]);
    }
    first.null();
    let grown = resident_bytes() - before;
    println!("with 3 bytes of a record: {} bytes each", grown / count);
    assert!(grown / count < (300 << 20) / 10_000, "{} bytes each", grown / count);
    assert_eq!(fixture.counter(Counter::ConnectionsEvicted), 0);
}

/// A peer that sends calls all the time gets the replies of those that were performed, and then the
/// end of the stream, also if the server has not read all that it sent.
#[test]
fn a_server_that_stops_answers_all_calls_that_it_has_performed() {
    let mut fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let target = (nfs3::PROGRAM, nfs3::VERSION, nfs3::Procedure::Mkdir.code());
    let calls: Vec<u8> = (0..20_000)
        .flat_map(|number: u32| {
            let name = number.to_string();
            let where_ = nfs3::DirOp { dir: root, name: name.as_bytes() };
            let args = encoded(&nfs3::MkdirArgs { where_, attributes: mode(0o755) });
            in_fragments(&client.encode(number, target, &args), &[])
        })
        .collect();
    // Most replies wait in the server's socket when it stops.
    set_socket_recv_buffer_size(&client.stream, 4096).unwrap();
    let mut stream = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || drop(stream.write_all(&calls)));
    let (stopping, begin) = channel();
    let receiver = std::thread::spawn(move || {
        begin.recv().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let replies = std::iter::from_fn(|| client.receive_record()).count();
        drop(client.stream.shutdown(Shutdown::Both));
        replies
    });
    assert!(eventually(|| fixture.counter(Counter::Calls) > 100));
    stopping.send(()).unwrap();
    fixture.stop();
    // A reset would have been no reply.
    let replies = receiver.join().unwrap();
    sender.join().unwrap();
    let performed = std::fs::read_dir(fixture.exported("")).unwrap().count();
    assert_eq!(replies, performed);
    assert!((1..20_000).contains(&performed), "{performed}");
}

/// A reload holds for connections that are open: bounds for strangers begin and end with it.
#[test]
fn what_a_stranger_may_send_is_decided_anew_by_a_reload() {
    let admitting = |host: &str| format!("{TRUSTING}\n[[export.client]]\nhosts = [\"{host}\"]");
    let fixture = Fixture::with(&admitting("127.0.0.2"));
    let mut client = fixture.client();
    assert_eq!(client.try_mnt("/export"), Err(MountStatus::Acces));
    fixture.reload(&admitting("127.0.0.1"));
    let root = client.mnt("/export");
    let file = client.create(root, "f");
    for len in [5000, 70_000, 1 << 20] {
        let data = vec![7; len];
        assert_eq!(ok(client.write(file, 0, &data)).count as usize, len);
    }
    let calls = |client: Option<IpAddr>| {
        let sample = fixture.server().monitor().sample();
        let found = sample.clients.into_iter().find(|sample| sample.address == client);
        found.map_or(0, |sample| sample.calls)
    };
    let its_own = Some(client.stream.local_addr().unwrap().ip());
    assert_eq!((calls(None), calls(its_own)), (1, 5));
    // Its WRITEs of before get an answer, and over a new connection it is a stranger.
    fixture.reload(&admitting("127.0.0.2"));
    for len in [5000, 1 << 20] {
        assert_eq!(refusal(client.write(file, 0, &vec![7; len])), Status::Acces);
    }
    assert_eq!((calls(None), calls(its_own)), (3, 5));
    let mut client = fixture.client();
    let (data, stable) = (vec![7; 5000], StableHow::Unstable);
    let args = encoded(&WriteArgs { file, offset: 0, count: 5000, stable, data: &data });
    let write = (nfs3::PROGRAM, nfs3::VERSION, nfs3::Procedure::Write.code());
    let (header, _) = client.exchange(write, &args);
    assert!(matches!(header, ReplyHeader::Accepted { stat: AcceptStat::GarbageArgs, .. }));
}
