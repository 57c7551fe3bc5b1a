//! The operations of a mount against a server whose replies the tests choose.

mod peer;

use std::sync::Arc;

use bytes::Bytes;
use proto::nfs3::{Procedure, Status};
use rustix::io::Errno;

use self::peer::{FILE, Peer};
use super::operations::{Operations, Refusal};
use super::request::{HEAD_BYTES, Head, Name};

/// Node number of the root directory.
const ROOT: u64 = 1;

/// A request on `node` by the user `uid`.
fn request(node: u64, uid: u32) -> Head {
    let mut message = [0; HEAD_BYTES];
    message[16..24].copy_from_slice(&node.to_ne_bytes());
    message[24..28].copy_from_slice(&uid.to_ne_bytes());
    Head::decode(&message).unwrap()
}

fn errno(Refusal(errno): Refusal) -> Errno {
    errno
}

/// The node number of the file.
async fn looked_up(operations: &Operations) -> u64 {
    let found = operations.lookup(&request(ROOT, 0), &Name(FILE.into())).await;
    found.map_err(errno).unwrap().granted.nodes[0]
}

/// Opens `node` for reading and writing. Returns its `fh`.
async fn opened(operations: &Operations, node: u64, uid: u32) -> u64 {
    let flags = rustix::fs::OFlags::RDWR.bits();
    let open = operations.open(&request(node, uid), flags).await;
    open.map_err(errno).unwrap().granted.file.unwrap()
}

async fn write(operations: &Arc<Operations>, node: u64, fh: u64) {
    let data = Bytes::from_static(b"data");
    let written = operations.write(&request(node, 0), fh, 0, 0, 0, &data).await;
    assert!(written.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_lost_at_release_is_reported_at_the_end_of_the_mount() {
    let (peer, operations) = Peer::mounted().await;
    peer.refuse(Procedure::Write, Status::Nospc);
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    write(&operations, node, fh).await;
    operations.release(fh).await;
    assert!(operations.finish().await.unwrap_err().is(Status::Nospc));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_lost_in_a_file_that_the_kernel_forgets_is_reported_at_the_end_of_the_mount() {
    let (peer, operations) = Peer::mounted().await;
    peer.refuse(Procedure::Write, Status::Nospc);
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    write(&operations, node, fh).await;
    operations.release(fh).await;
    operations.forget(node, 1);
    assert!(operations.finish().await.unwrap_err().is(Status::Nospc));
    assert!(operations.finish().await.is_ok(), "it is reported once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_lost_at_release_is_reported_to_the_next_open() {
    let (peer, operations) = Peer::mounted().await;
    peer.refuse(Procedure::Write, Status::Nospc);
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    write(&operations, node, fh).await;
    operations.release(fh).await;
    let next = opened(&operations, node, 0).await;
    assert_eq!(operations.sync(next).await.map_err(errno).err(), Some(Errno::NOSPC));
    assert!(operations.sync(next).await.is_ok(), "it is reported once");
}
