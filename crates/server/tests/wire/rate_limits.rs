//! The limits of exports: calls and bytes per second.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use proto::nfs3::{self, *};
use rustix::net::sockopt::set_socket_linger;
use spillway_server::counters::Counter;

use crate::client::{Client, encoded};
use crate::fixture::Fixture;
use crate::local_file::eventually;

const MIB: u32 = 1 << 20;
/// Permitted at once.
const BURST: Duration = Duration::from_millis(50);
/// Far more than a call takes that does not wait for a limit, on a machine that may stand still for
/// seconds.
const SOON: Duration = Duration::from_secs(8);

/// An export with these limits.
fn with_limits(limits: &str) -> String {
    format!("[[export]]\npath = \"$DIR/export\"\nname = \"/export\"\nsquash = \"none\"\n{limits}")
}

/// A file of 1 MiB.
fn file(fixture: &Fixture) {
    std::fs::write(fixture.exported("f"), vec![1; MIB as usize]).unwrap();
}

/// A client that comes from an address of its own.
fn other_client(fixture: &Fixture) -> Client {
    Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), fixture.address())
}

/// Sends READs of 1 MiB and does not wait for their replies.
fn send_reads(client: &mut Client, file: FileHandle, calls: usize) {
    let read = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Read.code());
    let args = encoded(&ReadArgs { file, offset: 0, count: MIB });
    for _ in 0..calls {
        let xid = client.xid();
        let call = client.encode(xid, read, &args);
        client.send_record(&call);
    }
}

/// Sends a GETATTR and does not wait for its reply.
fn send_getattr(client: &mut Client, object: FileHandle) {
    let getattr = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Getattr.code());
    let xid = client.xid();
    let call = client.encode(xid, getattr, &encoded(&GetattrArgs { object }));
    client.send_record(&call);
}

fn read(client: &mut Client, file: FileHandle) {
    assert_eq!(client.read(file, 0, MIB).unwrap().data.len(), MIB as usize);
}

/// A server with a limit that a client has used up for the next 14 s, and the file of the export.
fn used_up(settings: &str) -> (Fixture, Client, FileHandle) {
    let limits = with_limits("bytes_per_sec = \"64KiB\"");
    let fixture = Fixture::with(&format!("{settings}\n{limits}"));
    file(&fixture);
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    read(&mut client, file);
    (fixture, client, file)
}

#[test]
fn a_client_that_connects_anew_for_each_call_is_held_back() {
    let fixture = Fixture::with(&with_limits("client_bytes_per_sec = \"4MiB\""));
    file(&fixture);
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    let start = Instant::now();
    for _ in 0..5 {
        read(&mut fixture.client(), file);
    }
    // The last READ is not waited for.
    assert!(start.elapsed() >= Duration::from_secs(1) - BURST, "{:?}", start.elapsed());
}

#[test]
fn the_debt_of_a_client_delays_no_other() {
    let fixture = Fixture::with(&with_limits("client_bytes_per_sec = \"64KiB\""));
    file(&fixture);
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    // It has used up its limit for the next 14 s.
    read(&mut client, file);
    other_client(&fixture).getattr(root).unwrap();
    assert_eq!(fixture.counter(Counter::LimitWaits), 0);
    send_getattr(&mut client, root);
    assert!(eventually(|| fixture.counter(Counter::LimitWaits) == 1));
}

#[test]
fn reads_that_are_sent_ahead_are_held_back() {
    let fixture = Fixture::with(&with_limits("bytes_per_sec = \"32MiB\""));
    file(&fixture);
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    let start = Instant::now();
    thread::scope(|scope| {
        let mut sender =
            Client { stream: client.stream.try_clone().unwrap(), next_xid: 1, ids: None };
        scope.spawn(move || send_reads(&mut sender, file, 128));
        for replies in 1..=128 {
            assert!(client.receive_record().unwrap().len() > MIB as usize);
            let permitted = start.elapsed() + BURST;
            assert!(f64::from(replies - 1) <= permitted.as_secs_f64() * 32.0, "{replies}");
        }
    });
}

#[test]
fn two_clients_share_a_limit_equally() {
    let fixture = Fixture::with(&with_limits("bytes_per_sec = \"8MiB\""));
    file(&fixture);
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    let end = Instant::now() + Duration::from_secs(4);
    let reads = |mut client: Client| {
        let mut count = 0_u32;
        while Instant::now() < end {
            read(&mut client, file);
            count += u32::from(Instant::now() < end);
        }
        count
    };
    // One of them has seven connections.
    let (one, other) = thread::scope(|scope| {
        let one: Vec<_> = (0..7).map(|_| scope.spawn(|| reads(fixture.client()))).collect();
        let other = scope.spawn(|| reads(other_client(&fixture)));
        let one: u32 = one.into_iter().map(|reads| reads.join().unwrap()).sum();
        (one, other.join().unwrap())
    });
    let ratio = f64::from(one) / f64::from(other);
    // Seven of eight, were it shared by connections.
    assert!((0.25..=4.0).contains(&ratio), "{one} and {other}");
    // The READs that the limit permits in 4 s, and one of each connection that is not paid for.
    assert!((6..=32 + 8).contains(&(one + other)), "{one} and {other}");
}

#[test]
fn a_reload_frees_calls_that_wait_for_a_limit() {
    let (fixture, mut client, file) = used_up("");
    for limits in ["bytes_per_sec = \"1GiB\"", ""] {
        let start = Instant::now();
        thread::scope(|scope| {
            let client = &mut client;
            let call = scope.spawn(move || client.getattr(file).unwrap());
            thread::sleep(Duration::from_millis(100));
            assert!(!call.is_finished());
            fixture.reload(&with_limits(limits));
            call.join().unwrap();
        });
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        fixture.reload(&with_limits("bytes_per_sec = \"64KiB\""));
        read(&mut client, file);
    }
}

#[test]
fn a_wait_for_a_limit_is_counted_once() {
    let fixture = Fixture::with(&with_limits("bytes_per_sec = \"64KiB\""));
    file(&fixture);
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    // 4 s at the limit, and then what the first GETATTR takes.
    client.read(file, 0, MIB / 4).unwrap();
    client.getattr(root).unwrap();
    client.getattr(root).unwrap();
    let waits = fixture.counter(Counter::LimitWaits);
    assert!((1..=2).contains(&waits), "{waits}");
}

#[test]
fn a_wait_without_a_call_is_not_counted() {
    let fixture = Fixture::with(&with_limits("bytes_per_sec = \"64KiB\""));
    file(&fixture);
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    for calls in 0..3 {
        // 3 s at the limit.
        client.read(file, 0, 3 * 64 * 1024).unwrap();
        // The connection waits already, and no call does.
        thread::sleep(Duration::from_millis(50));
        assert_eq!(fixture.counter(Counter::LimitWaits), calls);
    }
}

#[test]
fn a_connection_that_waits_for_a_limit_ends_with_its_peer() {
    let (fixture, mut client, file) = used_up("");
    let open = || fixture.figure("connections_open");
    let ends_soon = |peer: Client| {
        let before = open();
        let start = Instant::now();
        drop(peer);
        assert!(eventually(|| open() < before));
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    };
    let connect = |connections| {
        let client = fixture.client();
        assert!(eventually(|| open() == connections));
        client
    };
    // It has sent nothing.
    ends_soon(connect(2));
    // It has sent a call, and resets the connection.
    let mut peer = connect(2);
    send_getattr(&mut peer, file);
    set_socket_linger(&peer.stream, Some(Duration::ZERO)).unwrap();
    ends_soon(peer);
    // It ends its side alone, and has all its answers.
    let start = Instant::now();
    client.half_close();
    assert!(client.is_closed_by_server());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn a_call_that_waits_for_a_limit_is_answered_though_its_peer_sends_no_more() {
    let fixture = Fixture::with(&with_limits("bytes_per_sec = \"64KiB\""));
    file(&fixture);
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    client.read(file, 0, 3 * 64 * 1024).unwrap();
    let start = Instant::now();
    send_getattr(&mut client, root);
    client.half_close();
    assert!(client.receive_record().is_some());
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(client.is_closed_by_server());
}

#[test]
fn connections_that_wait_for_a_limit_make_room() {
    let (fixture, mut client, file) = used_up("max_connections = 3");
    let start = Instant::now();
    // One has no call in its socket.
    let (mut second, mut third) = (fixture.client(), fixture.client());
    send_getattr(&mut client, file);
    send_getattr(&mut third, file);
    assert!(eventually(|| fixture.figure("connections_open") == 3));
    other_client(&fixture).null();
    assert!(second.is_closed_by_server());
    assert_eq!(fixture.counter(Counter::ConnectionsEvicted), 1);
    assert!(eventually(|| fixture.figure("connections_open") == 2));
    // All have one.
    let mut second = fixture.client();
    send_getattr(&mut second, file);
    assert!(eventually(|| fixture.figure("connections_open") == 3));
    other_client(&fixture).null();
    assert_eq!(fixture.counter(Counter::ConnectionsEvicted), 2);
    assert!(client.is_closed_by_server());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn the_server_stops_while_connections_wait_for_a_limit() {
    let (mut fixture, mut client, file) = used_up("");
    send_getattr(&mut client, file);
    let start = Instant::now();
    fixture.stop();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn calls_that_an_export_refuses_use_up_no_limit() {
    let fixture = Fixture::with(&with_limits("calls_per_sec = 2"));
    let (mut client, root) = fixture.mounted();
    let mut forged = root.as_bytes().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let forged = FileHandle::new(&forged).unwrap();
    let start = Instant::now();
    for _ in 0..20 {
        assert_eq!(client.getattr(forged), Err(Status::Stale));
    }
    // The port of the client is not a privileged one.
    fixture.reload(&with_limits("calls_per_sec = 2\nsecure_ports = true"));
    for _ in 0..20 {
        assert_eq!(client.getattr(root), Err(Status::Acces));
    }
    assert_eq!(fixture.counter(Counter::LimitWaits), 0);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}
