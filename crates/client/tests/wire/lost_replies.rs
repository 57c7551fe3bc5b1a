//! Calls on a server whose replies get lost on the way, and that must not run twice.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use proto::nfs3::{CreateHow, FileHandle, SetAttributes, StableHow, Status};
use spillway_client::nfs3::Flavor;
use spillway_client::{MountOptions, Nfs3, mount3};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{Fixture, options, root_user};
use crate::peer::within;

/// A way to a server on which replies can be lost, together with their connection, and on which
/// connections can end after some bytes.
struct LossyWay {
    address: SocketAddr,
    losses: Arc<AtomicUsize>,
}

impl LossyWay {
    /// Each connection carries as many bytes of replies as `lifetimes` says.
    async fn to(server: SocketAddr, lifetimes: impl Fn() -> usize + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let losses = Arc::new(AtomicUsize::new(0));
        let ahead = Arc::clone(&losses);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(carry(client, server, Arc::clone(&ahead), lifetimes()));
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

/// Carries bytes between both ends until a reply is to be lost: it is received whole, so that the
/// server has sent it, and goes no further; or until it has carried `lifetime` bytes of replies,
/// the last of them in the middle of anything.
async fn carry(
    mut client: TcpStream,
    server: SocketAddr,
    losses: Arc<AtomicUsize>,
    mut lifetime: usize,
) {
    let mut server = TcpStream::connect(server).await.unwrap();
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
    let way = LossyWay::to(fixture.address(), || usize::MAX).await;
    let options = MountOptions { nconnect: 2, ..options() };
    let nfs = Nfs3::connect(way.address, Flavor::Sys, &root_user(), &options).await.unwrap();
    (way, nfs, root)
}

#[tokio::test]
async fn what_was_done_once_is_answered_as_done() {
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
    // A call of one's own that has truly nothing to remove says so.
    assert!(nfs.remove(root, b"removed").await.unwrap_err().is(Status::Noent));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_done_twice_over_connections_that_keep_breaking() {
    let fixture = Fixture::new().await;
    let root = mount3::mount(&fixture.url(), &options(), &root_user()).await.unwrap().root;
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    // Enough for ten to a hundred replies.
    let lifetimes = move || 2000 + counter.fetch_add(1, Ordering::Relaxed) * 7773 % 18_000;
    let way = LossyWay::to(fixture.address(), lifetimes).await;
    // A call that is sent again while the server is at it is dropped there, and its reply goes to
    // the connection that is no more: it is asked for once more after the timeout.
    let timeout = Duration::from_millis(400);
    let options = MountOptions { nconnect: 2, timeout, ..options() };
    let nfs = Nfs3::connect(way.address, Flavor::Sys, &root_user(), &options).await.unwrap();
    let workers: Vec<_> = (0..4).map(|i| tokio::spawn(work(nfs.clone(), root, i))).collect();
    for worker in workers {
        within(worker).await.unwrap();
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
