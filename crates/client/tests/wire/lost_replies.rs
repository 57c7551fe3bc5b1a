//! Calls on a server whose replies get lost on the way, and that must not run twice.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use proto::nfs3::{CreateHow, FileHandle, SetAttributes, StableHow, Status};
use spillway_client::nfs3::Flavor;
use spillway_client::{MountOptions, Nfs3, mount3};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::fixture::{Fixture, options, root_user};
use crate::peer::{PATIENCE, within};

/// A way to a server on which replies can be lost, together with their connection, and on which
/// connections can end after some bytes.
struct LossyWay {
    address: SocketAddr,
    losses: Arc<AtomicUsize>,
}

impl LossyWay {
    /// Carries [`CONNECTIONS`] connections at a time, from `source` to the server. Each carries as
    /// many bytes of replies as in `lifetimes`.
    async fn to(
        server: SocketAddr,
        source: Ipv4Addr,
        lifetimes: impl Fn() -> usize + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let losses = Arc::new(AtomicUsize::new(0));
        let ahead = Arc::clone(&losses);
        let ports = Ports::new(source).await;
        tokio::spawn(async move {
            loop {
                let (client, peer) = listener.accept().await.unwrap();
                let slot = Arc::clone(&ports).acquire(peer.port()).await;
                let (ahead, lifetime) = (Arc::clone(&ahead), lifetimes());
                tokio::spawn(async move { carry(client, server, slot, &ahead, lifetime).await });
            }
        });
        Self { address, losses }
    }

    /// The reply to the next call is lost.
    fn lose_next_reply(&self) {
        self.losses.store(1, Ordering::Relaxed);
    }

    fn assert_lost(&self) {
        assert_eq!(self.losses.load(Ordering::Relaxed), 0, "the reply was lost");
    }
}

/// Connections of the client at a time.
const CONNECTIONS: usize = 2;

/// The ports towards the server, as a NAT maps them: a connection of the client that is made again
/// comes to the server from the port that it had, by which the server recognises a retransmission.
struct Ports {
    source: Ipv4Addr,
    slots: Mutex<[PortSlot; CONNECTIONS]>,
}

#[derive(Clone, Copy)]
struct PortSlot {
    client_port: u16,
    server_port: u16,
    is_free: bool,
}

impl Ports {
    async fn new(source: Ipv4Addr) -> Arc<Self> {
        let mut slots = [PortSlot { client_port: 0, server_port: 0, is_free: true }; CONNECTIONS];
        let listeners = [(); CONNECTIONS].map(|()| std::net::TcpListener::bind((source, 0)));
        for (slot, listener) in slots.iter_mut().zip(listeners) {
            slot.server_port = listener.unwrap().local_addr().unwrap().port();
        }
        Arc::new(Self { source, slots: Mutex::new(slots) })
    }

    async fn acquire(self: Arc<Self>, client_port: u16) -> AcquiredPort {
        loop {
            if let Some(index) = self.try_acquire(client_port) {
                return AcquiredPort { ports: self, index };
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn try_acquire(&self, client_port: u16) -> Option<usize> {
        let mut slots = self.slots.lock().unwrap();
        let index = slots
            .iter()
            .position(|slot| slot.client_port == client_port)
            .or_else(|| slots.iter().position(|slot| slot.client_port == 0))
            .expect("the client keeps its ports");
        let slot = &mut slots[index];
        slot.client_port = client_port;
        std::mem::replace(&mut slot.is_free, false).then_some(index)
    }
}

/// A port that one connection to the server has.
struct AcquiredPort {
    ports: Arc<Ports>,
    index: usize,
}

impl AcquiredPort {
    /// Connects to the server. The reset at the end frees the port at once.
    async fn connect(&self, server: SocketAddr) -> TcpStream {
        let port = self.ports.slots.lock().unwrap()[self.index].server_port;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind((self.ports.source, port).into()).unwrap();
        let stream = socket.connect(server).await.unwrap();
        stream.set_zero_linger().unwrap();
        stream
    }
}

impl Drop for AcquiredPort {
    fn drop(&mut self) {
        self.ports.slots.lock().unwrap()[self.index].is_free = true;
    }
}

/// Carries bytes between both ends until a reply is to be lost: it is received whole, so that the
/// server has sent it, and goes no further; or until it has carried `lifetime` bytes of replies,
/// the last of them in the middle of anything.
async fn carry(
    mut client: TcpStream,
    server: SocketAddr,
    port: AcquiredPort,
    losses: &AtomicUsize,
    mut lifetime: usize,
) {
    // Dropped before the port, and both before the client reads that its connection has ended.
    let mut server = port.connect(server).await;
    let (mut calls, mut replies) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    while lifetime > 0 {
        tokio::select! {
            count = client.read(&mut calls) => {
                let count = count.unwrap_or(0);
                if count == 0 || server.write_all(&calls[..count]).await.is_err() {
                    return;
                }
            }
            count = server.read(&mut replies) => {
                let count = count.unwrap_or(0).min(lifetime);
                let lost = losses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                });
                if count == 0
                    || lost.is_ok()
                    || client.write_all(&replies[..count]).await.is_err()
                {
                    return;
                }
                lifetime -= count;
            }
        }
    }
}

async fn over_lossy_way(fixture: &Fixture) -> (LossyWay, Nfs3, FileHandle) {
    let root = mount3::mount(&fixture.url(), &options(), &root_user()).await.unwrap().root;
    let way = LossyWay::to(fixture.address(), Ipv4Addr::new(127, 0, 0, 9), || usize::MAX).await;
    let options = MountOptions { nconnect: 2, ..options() };
    let nfs = Nfs3::connect(way.address, Flavor::Sys, &root_user(), &options).await.unwrap();
    (way, nfs, root)
}

#[tokio::test]
async fn a_repeated_call_gets_the_first_result() {
    let fixture = Fixture::new().await;
    let (way, nfs, root) = over_lossy_way(&fixture).await;
    for name in ["removed", "from", "linked"] {
        fs::write(fixture.exported(name), name).unwrap();
    }
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let linked = nfs.lookup(root, b"linked").await.unwrap().object;

    way.lose_next_reply();
    within(nfs.remove(root, b"removed")).await.unwrap();
    way.assert_lost();
    way.lose_next_reply();
    within(nfs.rename(root, b"from", root, b"to")).await.unwrap();
    way.assert_lost();
    way.lose_next_reply();
    let exclusive = CreateHow::Exclusive(*b"verifier");
    let made = within(nfs.create(root, b"exclusive", exclusive)).await.unwrap();
    way.assert_lost();
    way.lose_next_reply();
    let guarded = within(nfs.create(root, b"guarded", CreateHow::Guarded(set))).await.unwrap();
    way.assert_lost();
    way.lose_next_reply();
    within(nfs.mkdir(root, b"dir", set)).await.unwrap();
    way.assert_lost();
    way.lose_next_reply();
    within(nfs.rmdir(root, b"dir")).await.unwrap();
    way.assert_lost();
    way.lose_next_reply();
    within(nfs.link(linked, root, b"link")).await.unwrap();
    way.assert_lost();
    way.lose_next_reply();
    let ctime = nfs.getattr(linked).await.unwrap().ctime;
    way.assert_lost();
    way.lose_next_reply();
    within(nfs.setattr(linked, set, Some(ctime))).await.unwrap();
    way.assert_lost();

    for (name, created) in [(&b"exclusive"[..], made), (b"guarded", guarded)] {
        assert_eq!(nfs.lookup(root, name).await.unwrap().object, created.object.unwrap());
    }
    assert_eq!(fs::read(fixture.exported("to")).unwrap(), b"from");
    assert_eq!(fs::read(fixture.exported("link")).unwrap(), b"linked");
    for gone in ["removed", "from", "dir"] {
        assert!(!fixture.exported(gone).exists(), "{gone}");
    }
    // A new REMOVE of an absent name is an error.
    assert!(nfs.remove(root, b"removed").await.unwrap_err().is(Status::Noent));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaking_connections_lose_and_repeat_no_call() {
    let fixture = Fixture::new().await;
    let root = mount3::mount(&fixture.url(), &options(), &root_user()).await.unwrap().root;
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    // Enough for 6 to 24 replies. Ten connections carry 24 KB of them together, and the replies to
    // the WRITEs alone are 26 KB.
    let lifetimes = move || 1000 + counter.fetch_add(1, Ordering::Relaxed) * 7773 % 3000;
    let way = LossyWay::to(fixture.address(), Ipv4Addr::new(127, 0, 0, 10), lifetimes).await;
    // A reply that is lost with its connection is asked for once more after the timeout.
    let timeout = Duration::from_millis(400);
    let options = MountOptions { nconnect: 2, timeout, ..options() };
    let nfs = Nfs3::connect(way.address, Flavor::Sys, &root_user(), &options).await.unwrap();
    let workers: Vec<_> = (0..4).map(|i| tokio::spawn(work(nfs.clone(), root, i))).collect();
    for worker in workers {
        tokio::time::timeout(3 * PATIENCE, worker).await.expect("it ends in time").unwrap();
    }
    for worker in 0..4 {
        let expected: Vec<u8> = (0..BLOCKS).flat_map(|i| block(worker, i)).collect();
        assert!(fs::read(fixture.exported(&format!("done-{worker}"))).unwrap() == expected);
        assert!(!fixture.exported(&format!("new-{worker}")).exists());
        assert!(!fixture.exported(&format!("gone-{worker}")).exists());
    }
    assert!(connections.load(Ordering::Relaxed) > 10, "{connections:?}");
}

const BLOCKS: u8 = 40;
const BLOCK_BYTES: usize = 16_384;

fn block(worker: u8, i: u8) -> Vec<u8> {
    [worker, i].repeat(BLOCK_BYTES / 2)
}

/// Makes a file and writes it, with much in flight, renames it, and makes and removes another. Each
/// succeeds once only.
async fn work(nfs: Nfs3, root: FileHandle, worker: u8) {
    let name = |what: &str| format!("{what}-{worker}").into_bytes();
    let how = CreateHow::Guarded(SetAttributes::default());
    let file = nfs.create(root, &name("new"), how).await.unwrap().object.unwrap();
    let writes: Vec<_> = (0..BLOCKS)
        .map(|i| {
            let offset = u64::from(i) * u64::try_from(BLOCK_BYTES).unwrap();
            let data = Bytes::from(block(worker, i));
            tokio::spawn(nfs.write(file, offset, data, StableHow::Unstable))
        })
        .collect();
    for i in 0..BLOCKS {
        let name = format!("gone-{worker}").into_bytes();
        nfs.create(root, &name, how).await.unwrap_or_else(|error| panic!("create {i}: {error}"));
        nfs.remove(root, &name).await.unwrap_or_else(|error| panic!("remove {i}: {error}"));
    }
    for write in writes {
        assert_eq!(write.await.unwrap().unwrap().count, u32::try_from(BLOCK_BYTES).unwrap());
    }
    nfs.commit(file, 0, 0).await.unwrap();
    nfs.rename(root, &name("new"), root, &name("done")).await.unwrap();
}
