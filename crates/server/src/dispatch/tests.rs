//! Calls that are repeated while they run. Tests hold the directory's lock, so that the first copy
//! cannot end.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use proto::nfs3::{CreatedReply, DirOp, MkdirArgs, SetAttributes};
use proto::oncrpc::{AuthSys, CallHeader, Credential, Gids};
use proto::xdr::decode_all;
use rpc::record::{in_fragments, read_blocking};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::*;
use crate::inode_cache::ExclusiveGuard;
use crate::server::Server;
use crate::test_server::{config, directory, root};

const PATIENCE: Duration = Duration::from_secs(20);
const XID: u32 = 77;

struct Rig {
    runtime: Runtime,
    server: Server,
    root: nfs3::FileHandle,
    _dir: TempDir,
}

impl Rig {
    fn new() -> Self {
        let dir = directory();
        let config = config(dir.path(), "", "squash = \"none\"\nsync = false");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let server = runtime.block_on(Server::start(config)).unwrap();
        let root = root(&server);
        let root = server.service().seal(&root, root.handle);
        Self { runtime, server, root, _dir: dir }
    }

    /// Keeps every change of the root from beginning until the guard is dropped.
    fn hold_root(&self) -> ExclusiveGuard {
        // One change puts the directory into the cache.
        ok(&self.client().call(&self.mkdir(1, b"before")));
        let service = self.server.service();
        let root = root(&self.server);
        let directory = service.vfs.find_open(&root, root.handle).expect("it was just changed");
        self.runtime.block_on(directory.lock.exclusive())
    }

    fn address(&self) -> SocketAddr {
        self.server.local_addrs()[0]
    }

    fn client(&self) -> Client {
        Client::connect(self.address(), 0, || ())
    }

    fn mkdir(&self, xid: u32, name: &[u8]) -> Vec<u8> {
        let gids = Gids::new(&[]).unwrap();
        let credential =
            Credential::Sys(AuthSys { stamp: 0, machine_name: b"test", uid: 0, gid: 0, gids });
        let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
        let procedure = nfs3::Procedure::Mkdir.code();
        let mut w = Writer::new();
        CallHeader { xid, program, version, procedure, credential, verifier_flavor: 0 }
            .encode(&mut w);
        let attributes = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
        MkdirArgs { where_: DirOp { dir: self.root, name }, attributes }.encode(&mut w);
        w.into_vec()
    }

    /// Waits until the reply cache has the first copy of a call, so that the next one is a
    /// repetition.
    fn awaits_running_call(&self) {
        let begun = Instant::now();
        while !self.server.service().reply_cache.has_running() {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn reaches(&self, counter: Counter, value: u64) {
        let begun = Instant::now();
        while self.server.counters().value(counter) < value {
            assert!(begun.elapsed() < PATIENCE, "{}", counter.name());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

struct Client(TcpStream);

impl Client {
    /// Connects from a port, or from any if it is 0. The port is taken before `taken` is called, so
    /// that no other program can have it in between.
    fn connect(address: SocketAddr, port: u16, taken: impl FnOnce()) -> Self {
        let from = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set_socket_reuseaddr(&from, true).unwrap();
        bind(&from, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).unwrap();
        taken();
        let deadline = Instant::now() + PATIENCE;
        // A program that another test is starting has all descriptors until it is executed: the
        // old connection ends with the last of them.
        while let Err(error) = connect(&from, &address) {
            assert!(error == Errno::ADDRNOTAVAIL && Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
        let stream = TcpStream::from(from);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn send(&mut self, call: &[u8]) {
        self.0.write_all(&in_fragments(call, &[])).unwrap();
    }

    fn receive(&mut self) -> Vec<u8> {
        read_blocking(&mut self.0, 1 << 20).unwrap().expect("a reply")
    }

    fn call(&mut self, call: &[u8]) -> Vec<u8> {
        self.send(call);
        self.receive()
    }

    /// Breaks the connection by a reset, which leaves no trace of it behind.
    fn reset(self) {
        set_socket_linger(self.0.as_fd(), Some(Duration::ZERO)).unwrap();
    }

    /// Breaks the connection and connects again from the same port.
    fn reconnected(self, address: SocketAddr) -> Self {
        let port = self.0.local_addr().unwrap().port();
        Self::connect(address, port, || self.reset())
    }
}

/// The status of an accepted call: none for a success.
fn refusal(reply: &[u8]) -> Option<nfs3::Status> {
    let result: CreatedReply = decode_all(&reply[24..]).unwrap();
    result.err().map(|failure| failure.status)
}

#[track_caller]
fn ok(reply: &[u8]) {
    assert_eq!(refusal(reply), None);
}

#[test]
fn a_call_repeated_over_a_new_connection_while_it_runs_is_answered_there() {
    for same_port in [true, false] {
        let rig = Rig::new();
        let call = rig.mkdir(XID, b"d");
        let held = rig.hold_root();
        let mut first = rig.client();
        first.send(&call);
        rig.awaits_running_call();
        let mut second = if same_port {
            first.reconnected(rig.address())
        } else {
            first.reset();
            rig.client()
        };
        second.send(&call);
        rig.reaches(Counter::AwaitedRetransmissions, 1);
        // Another copy over the new connection changes nothing.
        second.send(&call);
        rig.reaches(Counter::DroppedRetransmissions, 1);
        drop(held);
        ok(&second.receive());
        assert_eq!(rig.server.counters().value(Counter::Replays), 1, "same port: {same_port}");
        let other = rig.mkdir(XID + 1, b"e");
        let reply = second.call(&other);
        assert_eq!(reply[..4], (XID + 1).to_be_bytes(), "one reply to both copies");
        ok(&reply);
    }
}

#[test]
fn a_lost_reply_is_replayed_to_another_port() {
    let rig = Rig::new();
    let call = rig.mkdir(XID, b"d");
    let held = rig.hold_root();
    let mut first = rig.client();
    first.send(&call);
    rig.awaits_running_call();
    first.reset();
    drop(held);
    ok(&rig.client().call(&call));
    assert_eq!(rig.server.counters().value(Counter::Replays), 1);
}

#[test]
fn two_processes_with_the_same_call_at_once_do_not_both_succeed() {
    let rig = Rig::new();
    let call = rig.mkdir(XID, b"d");
    let held = rig.hold_root();
    let (mut first, mut second) = (rig.client(), rig.client());
    first.send(&call);
    rig.awaits_running_call();
    second.send(&call);
    rig.reaches(Counter::AwaitedRetransmissions, 1);
    drop(held);
    ok(&first.receive());
    assert_eq!(refusal(&second.receive()), Some(nfs3::Status::Exist));
    assert_eq!(rig.server.counters().value(Counter::Replays), 0);
}
