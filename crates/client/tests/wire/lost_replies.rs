//! Calls that must not run twice, on a server whose replies get lost on the way.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proto::nfs3::{CreateHow, FileHandle, SetAttributes, Status};
use spillway_client::nfs3::Flavor;
use spillway_client::{MountOptions, Nfs3, mount3};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{Fixture, options, root_user};
use crate::peer::within;

/// A way to a server on which replies can be lost, together with their connection.
struct LossyWay {
    address: SocketAddr,
    losses: Arc<AtomicUsize>,
}

impl LossyWay {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let losses = Arc::new(AtomicUsize::new(0));
        let ahead = Arc::clone(&losses);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(carry(client, server, Arc::clone(&ahead)));
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
/// server has sent it, and goes no further.
async fn carry(mut client: TcpStream, server: SocketAddr, losses: Arc<AtomicUsize>) {
    let mut server = TcpStream::connect(server).await.unwrap();
    let (mut calls, mut replies) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            count = client.read(&mut calls) => match count {
                Ok(count @ 1..) => server.write_all(&calls[..count]).await.unwrap(),
                _ => return,
            },
            count = server.read(&mut replies) => {
                let count = count.unwrap();
                let lost = losses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                });
                if count == 0 || lost.is_ok() {
                    return;
                }
                client.write_all(&replies[..count]).await.unwrap();
            }
        }
    }
}

async fn over_lossy_way(fixture: &Fixture) -> (LossyWay, Nfs3, FileHandle) {
    let root = mount3::mount(&fixture.url(), &options(), &root_user()).await.unwrap().root;
    let way = LossyWay::to(fixture.address()).await;
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
