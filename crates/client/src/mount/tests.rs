//! The operations of a mount against a server whose replies the tests choose.

mod peer;

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::nfs3::{Attributes, Procedure, Status, Time};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::runtime::Handle;

use self::peer::{ABSENT, DIRECTORY, FILE, LAST, NODE_BYTES, Peer, ROOT_BYTES, within};
use super::callers::is_exiting;
use super::file::{EXIT_WAIT_MAX, FMODE_EXEC};
use super::operations::{Operations, Outcome, Refusal};
use super::reply::Answer;
use super::request::{HEAD_BYTES, Head, Name, Operation, Setattr, WRITE_CACHE, When};
use super::session::Session;
use crate::error::{Attempt, Error, ServerName};
use crate::file::OpenFlags;
use crate::inode::InProgress;
use crate::options::{MountOptions, Recovery, UseReaddirplus};
use crate::trace::Event;

/// Node number of the root directory.
const ROOT: u64 = 1;

/// `FUSE_RELEASE` and `FUSE_DESTROY`.
const RELEASE: u32 = 18;
const DESTROY: u32 = 38;

/// The head of a message of the kernel.
fn head(opcode: u32, node: u64, uid: u32) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[4..8].copy_from_slice(&opcode.to_ne_bytes());
    head[16..24].copy_from_slice(&node.to_ne_bytes());
    head[24..28].copy_from_slice(&uid.to_ne_bytes());
    head
}

/// A request on `node` by the user `uid`.
fn request(node: u64, uid: u32) -> Head {
    Head::decode(&head(0, node, uid)).unwrap()
}

/// A request on `node` by the thread `pid` of the superuser.
fn request_by(pid: u32, node: u64) -> Head {
    let mut head = request(node, 0);
    head.pid = pid;
    head
}

/// `S_IFIFO`.
const FIFO: u32 = 0o010_000;

fn errno(Refusal(errno): Refusal) -> Errno {
    errno
}

/// The node number of the file.
async fn looked_up(operations: &Operations) -> u64 {
    looked_up_by(operations, FILE).await
}

async fn looked_up_by(operations: &Operations, name: &[u8]) -> u64 {
    let found = operations.lookup(&request(ROOT, 0), &Name(name.into())).await;
    found.map_err(errno).unwrap().granted.nodes[0]
}

/// Opens `node` for reading and writing. Returns its `fh`.
async fn opened(operations: &Operations, node: u64, uid: u32) -> u64 {
    opened_with(operations, node, uid, OFlags::RDWR).await
}

async fn opened_with(operations: &Operations, node: u64, uid: u32, flags: OFlags) -> u64 {
    let open = operations.open(&request(node, uid), flags.bits()).await;
    open.map_err(errno).unwrap().granted.file.unwrap()
}

async fn write(operations: &Arc<Operations>, node: u64, fh: u64) {
    let data = Bytes::from_static(b"data");
    let written = operations.write(&request(node, 0), fh, 0, 0, 0, &data).await;
    assert!(written.is_ok());
}

/// A write(2) of four bytes with `O_APPEND`, at the end of the file as the kernel has it.
async fn append(operations: &Arc<Operations>, node: u64, fh: u64, offset: u64) {
    let (data, flags) = (Bytes::from_static(b"data"), OFlags::APPEND.bits());
    let written = operations.write(&request(node, 0), fh, offset, 0, flags, &data).await;
    assert!(written.is_ok());
}

/// An open file of a server that has no space, with data that is not sent yet.
async fn written_without_space() -> (Arc<Peer>, Arc<Operations>, u64, u64) {
    let (peer, operations) = Peer::mounted().await;
    peer.refuse(Procedure::Write, Status::Nospc);
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    write(&operations, node, fh).await;
    (peer, operations, node, fh)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_lost_at_release_is_reported_at_the_end_of_the_mount() {
    let (_peer, operations, _, fh) = written_without_space().await;
    operations.release(fh).await;
    assert!(operations.finish().await.unwrap_err().is(Status::Nospc));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_lost_in_a_file_that_the_kernel_forgets_is_reported_at_the_end_of_the_mount() {
    let (_peer, operations, node, fh) = written_without_space().await;
    operations.release(fh).await;
    operations.forget(node, 1);
    assert!(operations.finish().await.unwrap_err().is(Status::Nospc));
    assert!(operations.finish().await.is_ok(), "it is reported once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_lost_at_release_is_reported_to_the_next_open() {
    let (_peer, operations, node, fh) = written_without_space().await;
    operations.release(fh).await;
    let next = opened(&operations, node, 0).await;
    assert_eq!(operations.sync(next).await.map_err(errno).err(), Some(Errno::NOSPC));
    assert!(operations.sync(next).await.is_ok(), "it is reported once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_found_by_an_interrupted_sync_is_reported_at_the_end_of_the_mount() {
    // The order of the files differs by mount.
    for _ in 0..8 {
        let (peer, operations) = Peer::mounted().await;
        peer.refuse(Procedure::Write, Status::Nospc);
        let lost = looked_up(&operations).await;
        let fh = opened(&operations, lost, 0).await;
        write(&operations, lost, fh).await;
        operations.release(fh).await;
        peer.permit();
        let slow = looked_up_by(&operations, b"slow").await;
        let fh = opened(&operations, slow, 0).await;
        write(&operations, slow, fh).await;
        peer.hold(Procedure::Commit);
        tokio::select! {
            _ = operations.file_system.sync() => panic!("COMMIT is held"),
            () = within(peer.called(Procedure::Commit)) => {}
        }
        peer.release();
        assert!(within(operations.finish()).await.unwrap_err().is(Status::Nospc));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_a_writer_was_reported_is_not_reported_again_for_a_reader() {
    let (peer, operations) = Peer::mounted().await;
    peer.refuse(Procedure::Write, Status::Nospc);
    let node = looked_up(&operations).await;
    opened_with(&operations, node, 0, OFlags::RDONLY).await;
    let writer = opened(&operations, node, 0).await;
    write(&operations, node, writer).await;
    assert_eq!(operations.sync(writer).await.map_err(errno).err(), Some(Errno::NOSPC));
    peer.permit();
    write(&operations, node, writer).await;
    assert!(operations.sync(writer).await.is_ok());
    operations.release(writer).await;
    assert!(operations.finish().await.is_ok());
}

/// A process that `end` ends: as a zombie it stays in the state in which the kernel closes its
/// files.
async fn exiting(end: &str) -> Child {
    let process = Command::new("sh").args(["-c", end]).spawn().unwrap();
    let exits = async {
        while !is_exiting(process.id()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(exits).await;
    process
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_that_a_write_has_returned_is_not_lost_with_a_process_that_exits() {
    let (_peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    operations.files.get(fh).unwrap().short_write.note_returned(None, Errno::NOSPC);
    let mut process = exiting("exit 0").await;
    let mut of_process = request(node, 0);
    of_process.pid = process.id();
    assert!(operations.flush(&of_process, fh).await.is_ok());
    process.wait().unwrap();
    assert_eq!(operations.sync(fh).await.map_err(errno).err(), Some(Errno::NOSPC));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_lost_by_a_process_that_exits_is_reported_to_the_next_open() {
    let (_peer, operations, node, exits) = written_without_space().await;
    let mut process = exiting("exit 0").await;
    let mut of_process = request(node, 0);
    of_process.pid = process.id();
    assert!(operations.flush(&of_process, exits).await.is_ok());
    process.wait().unwrap();
    operations.release(exits).await;
    let next = opened(&operations, node, 0).await;
    let closed = operations.flush(&request(node, 0), next).await;
    assert_eq!(closed.map_err(errno).err(), Some(Errno::NOSPC));
    assert!(operations.finish().await.is_ok(), "it is reported once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_returned_to_a_child_is_not_lost_with_the_writer_that_exits() {
    for is_opened_again in [true, false] {
        let (_peer, operations, node, fh) = written_without_space().await;
        // The child's execve(2), which ignores the error.
        assert!(operations.flush(&request(node, 0), fh).await.is_err());
        let mut process = exiting("exit 0").await;
        assert!(operations.flush(&request_by(process.id(), node), fh).await.is_ok());
        process.wait().unwrap();
        operations.release(fh).await;
        if is_opened_again {
            let next = opened(&operations, node, 0).await;
            assert_eq!(operations.sync(next).await.map_err(errno).err(), Some(Errno::NOSPC));
        }
        assert_eq!(operations.finish().await.is_ok(), is_opened_again);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_of_one_descriptor_leaves_the_error_for_fsync_of_another() {
    let (_peer, operations, node, fh) = written_without_space().await;
    for _ in 0..2 {
        let closed = operations.flush(&request(node, 0), fh).await;
        assert_eq!(closed.map_err(errno).err(), Some(Errno::NOSPC));
    }
    assert_eq!(operations.sync(fh).await.map_err(errno).err(), Some(Errno::NOSPC));
    assert!(operations.flush(&request(node, 0), fh).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_that_a_write_has_returned_is_returned_by_a_close_of_the_same_process_alone() {
    let (peer, operations) = Peer::mounted().await;
    peer.refuse(Procedure::Write, Status::Nospc);
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    assert_ne!(thread, std::process::id());
    let by = |pid| request_by(pid, node);
    let mut errors = Vec::new();
    for _ in 0..3 {
        let data = Bytes::from_static(b"data");
        let written = operations.write(&by(thread), fh, 0, 0, 0, &data).await;
        errors.push(written.map_err(errno).err());
        operations.files.get(fh).unwrap().file.inode().send_written().await;
    }
    assert_eq!(errors, [None, None, Some(Errno::NOSPC)]);
    peer.permit();
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    assert!(operations.flush(&by(other.id()), fh).await.is_ok());
    other.kill().unwrap();
    other.wait().unwrap();
    let closed = operations.flush(&by(std::process::id()), fh).await;
    assert_eq!(closed.map_err(errno).err(), Some(Errno::NOSPC));
    assert!(operations.flush(&by(std::process::id()), fh).await.is_ok());
    assert!(operations.sync(fh).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_the_last_close_has_returned_is_not_reported_again() {
    for is_released in [true, false] {
        let (_peer, operations, node, fh) = written_without_space().await;
        let closed = operations.flush(&request(node, 0), fh).await;
        assert_eq!(closed.map_err(errno).err(), Some(Errno::NOSPC));
        if is_released {
            operations.release(fh).await;
            let next = opened(&operations, node, 0).await;
            assert!(operations.flush(&request(node, 0), next).await.is_ok());
        }
        assert!(operations.finish().await.is_ok(), "released: {is_released}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_behind_the_one_that_a_close_has_returned_is_reported_to_the_next_open() {
    let (_peer, operations, node, fh) = written_without_space().await;
    assert!(operations.flush(&request(node, 0), fh).await.is_err());
    // A store through a mapping.
    let data = Bytes::from_static(b"data");
    let stored = operations.write(&request(node, 0), fh, 0, WRITE_CACHE, 0, &data).await;
    assert!(stored.is_ok());
    operations.release(fh).await;
    let next = opened(&operations, node, 0).await;
    assert_eq!(operations.sync(next).await.map_err(errno).err(), Some(Errno::NOSPC));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flush_waits_not_long_if_a_signal_ended_the_process() {
    for (end, waits) in [("exit 0", true), ("kill -TERM $$", false)] {
        let (peer, operations) = Peer::mounted().await;
        let node = looked_up(&operations).await;
        let fh = opened(&operations, node, 0).await;
        write(&operations, node, fh).await;
        peer.hold(Procedure::Commit);
        let mut process = exiting(end).await;
        let mut of_process = request(node, 0);
        of_process.pid = process.id();
        let flush = operations.flush(&of_process, fh);
        // The wait of FLUSH begins after this one.
        let flush_max = if waits { EXIT_WAIT_MAX + A_WHILE } else { 2 * EXIT_WAIT_MAX };
        let flushed = tokio::time::timeout(flush_max, flush).await;
        assert_eq!(flushed.is_err(), waits, "{end}");
        process.wait().unwrap();
        peer.release();
        within(operations.release(fh)).await;
        assert!(operations.file_system.is_clean(), "{end}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flush_of_all_files_waits_no_longer_than_of_one_if_a_signal_ended_the_process() {
    let (peer, operations) = Peer::mounted().await;
    let mut files = Vec::new();
    for name in [b"1", b"2", b"3"] {
        let node = looked_up_by(&operations, name).await;
        let fh = opened(&operations, node, 0).await;
        write(&operations, node, fh).await;
        files.push((node, fh));
    }
    peer.hold(Procedure::Commit);
    let mut process = exiting("kill -TERM $$").await;
    let flushes = async {
        for (node, fh) in files {
            assert!(operations.flush(&request_by(process.id(), node), fh).await.is_ok());
        }
    };
    // A second wait would end after twice that time.
    let flushed = tokio::time::timeout(2 * EXIT_WAIT_MAX - A_WHILE, flushes).await;
    assert!(flushed.is_ok(), "a file waits for itself");
    process.wait().unwrap();
    peer.release();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_is_reported_at_the_end_of_the_mount_for_another_writer() {
    let (peer, operations) = Peer::mounted().await;
    peer.refuse(Procedure::Write, Status::Nospc);
    let node = looked_up(&operations).await;
    opened(&operations, node, 0).await;
    let other = opened(&operations, node, 0).await;
    write(&operations, node, other).await;
    assert_eq!(operations.sync(other).await.map_err(errno).err(), Some(Errno::NOSPC));
    assert!(operations.finish().await.is_err());
}

/// Time in which a call would arrive that must not.
const A_WHILE: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_session_leaves_a_release_to_commit_before_it_removes() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    write(&operations, node, fh).await;
    let removed = operations.unlink(&request(ROOT, 0), &Name(FILE.into())).await;
    assert!(removed.is_ok());
    peer.hold(Procedure::Commit);

    let (kernel, device) = UnixDatagram::pair().unwrap();
    let session = Session::new(device.into(), Arc::clone(&operations), Handle::current(), 4096);
    kernel.send(&[&head(RELEASE, node, 0)[..], &fh.to_ne_bytes()].concat()).unwrap();
    kernel.send(&head(DESTROY, ROOT, 0)).unwrap();
    tokio::task::spawn_blocking(move || session.serve()).await.unwrap().unwrap();

    let finishing = tokio::spawn(async move { operations.finish().await });
    within(peer.called(Procedure::Commit)).await;
    tokio::time::sleep(A_WHILE).await;
    assert!(peer.calls(&[Procedure::Remove]).is_empty(), "REMOVE has overtaken COMMIT");
    assert!(!finishing.is_finished());
    peer.release();
    within(finishing).await.unwrap().unwrap();
    assert_eq!(peer.calls(&[Procedure::Remove]).len(), 1);
}

/// Asks again and again until there is a result.
async fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            match ask() {
                Some(result) => return result,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    };
    within(asking).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_ends_while_it_is_abandoned_is_answered_once() {
    for ends_first in [true, false] {
        let (_peer, operations) = Peer::mounted().await;
        let node = looked_up(&operations).await;
        let fh = opened(&operations, node, 0).await;
        let (kernel, device) = UnixDatagram::pair().unwrap();
        let session = Session::new(device.into(), Arc::clone(&operations), Handle::current(), 4096);
        kernel.set_nonblocking(true).unwrap();
        let head = request(node, 0);
        let abandoning = Arc::clone(&session);
        let work = Box::pin(async move {
            // A request that waits runs as a task.
            tokio::task::yield_now().await;
            if !ends_first {
                // As by another thread during the last poll.
                let mut abandoned = Box::pin(async move { abandoning.abandon(head.unique).await });
                let begins = |cx: &mut std::task::Context<'_>| {
                    std::task::Poll::Ready(abandoned.as_mut().poll(cx))
                };
                assert!(std::future::poll_fn(begins).await.is_pending());
                tokio::spawn(abandoned);
            }
            Answer::opened(fh, 0)
        });
        let naming = operations.begin_naming(&head, &Operation::Open { flags: 0 });
        session.carry_out(&head, false, naming, work);
        let mut reply = [0; 64];
        until(|| kernel.recv(&mut reply).ok()).await;
        let error = i32::from_ne_bytes(reply[4..8].try_into().unwrap());
        let expected = if ends_first { 0 } else { -Errno::INTR.raw_os_error() };
        assert_eq!(error, expected, "ends first: {ends_first}");
        if ends_first {
            session.abandon(head.unique).await;
        } else {
            until(|| operations.files.get(fh).is_none().then_some(())).await;
        }
        assert!(kernel.recv(&mut reply).is_err(), "ends first: {ends_first}: a second answer");
        assert_eq!(operations.files.get(fh).is_some(), ends_first);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_dropped_by_an_aborted_request_commits_before_it_removes() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    write(&operations, node, fh).await;
    let removed = operations.unlink(&request(ROOT, 0), &Name(FILE.into())).await;
    assert!(removed.is_ok());
    peer.hold(Procedure::Commit);
    drop(operations.files.remove(fh));
    within(peer.called(Procedure::Commit)).await;
    tokio::time::sleep(A_WHILE).await;
    assert!(peer.calls(&[Procedure::Remove]).is_empty(), "REMOVE has overtaken COMMIT");
    peer.release();
    within(operations.finish()).await.unwrap();
    assert_eq!(peer.calls(&[Procedure::Remove]).len(), 1);
}

/// Ends the mount, which waits for the held reply. Returns with the mount ended.
async fn finished_after_the_held_reply(peer: &Peer, operations: &Arc<Operations>) {
    let finishing = Arc::clone(operations);
    let finishing = tokio::spawn(async move { finishing.finish().await });
    tokio::time::sleep(A_WHILE).await;
    assert!(!finishing.is_finished());
    peer.release();
    within(finishing).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_mount_waits_for_an_unlink_whose_caller_was_killed() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    peer.hold(Procedure::Rename);
    let unlinking = Arc::clone(&operations);
    let unlink =
        tokio::spawn(async move { unlinking.unlink(&request(ROOT, 0), &Name(FILE.into())).await });
    within(peer.called(Procedure::Rename)).await;
    unlink.abort();
    within(operations.release(fh)).await;
    finished_after_the_held_reply(&peer, &operations).await;
    assert_eq!(peer.calls(&[Procedure::Remove]).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_mount_waits_for_the_remove_of_a_close_that_was_aborted() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    let removed = operations.unlink(&request(ROOT, 0), &Name(FILE.into())).await;
    assert!(removed.is_ok());
    peer.hold(Procedure::Remove);
    let releasing = Arc::clone(&operations);
    let release = tokio::spawn(async move { releasing.release(fh).await });
    within(peer.called(Procedure::Remove)).await;
    release.abort();
    finished_after_the_held_reply(&peer, &operations).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_mount_commits_what_a_write_in_progress_stores() {
    let options = MountOptions { file_attributes_max: Duration::ZERO, ..MountOptions::default() };
    let (peer, operations) = Peer::mounted_with(options).await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    peer.hold(Procedure::Getattr);
    let before = peer.calls(&[Procedure::Getattr]).len();
    let writing = Arc::clone(&operations);
    let write = tokio::spawn(async move {
        let (data, flags) = (Bytes::from_static(b"data"), OFlags::APPEND.bits());
        writing.write(&request(node, 0), fh, 0, 0, flags, &data).await.is_ok()
    });
    until(|| (peer.calls(&[Procedure::Getattr]).len() > before).then_some(())).await;
    finished_after_the_held_reply(&peer, &operations).await;
    assert!(within(write).await.unwrap());
    assert_eq!(peer.calls(&[Procedure::Write, Procedure::Commit]).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn written_data_is_committed_before_times_or_a_mode_are_set() {
    let mtime = Some(When::At { seconds: 7, nseconds: 0 });
    let (mode, size) = (Some(0o4755), Some(2));
    let unset = Setattr::default();
    let sets = [
        Setattr { mtime, ..unset },
        Setattr { mode, ..unset },
        Setattr { mtime, size, ..unset },
        Setattr { mode, size, ..unset },
    ];
    for set in sets {
        let (peer, operations) = Peer::mounted().await;
        let node = looked_up(&operations).await;
        let fh = opened(&operations, node, 0).await;
        write(&operations, node, fh).await;
        assert!(operations.setattr(&request(node, 0), &set).await.is_ok());
        let calls = peer.calls(&[Procedure::Write, Procedure::Commit, Procedure::Setattr]);
        let order = calls.into_iter().map(|call| call.procedure);
        let wanted = [Procedure::Write, Procedure::Commit, Procedure::Setattr];
        assert_eq!(order.collect::<Vec<_>>(), wanted, "{set:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ftruncate_is_the_call_of_the_opener() {
    const OTHER: u32 = 1000;
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let fh = Some(opened(&operations, node, 0).await);
    let (size, mode) = (Some(7), Some(0o600));
    let cut = Setattr { size, fh, ..Setattr::default() };
    let changed = Setattr { mode, ..cut };
    for set in [&cut, &changed, &Setattr { fh: None, ..cut }] {
        assert!(operations.setattr(&request(node, OTHER), set).await.is_ok());
    }
    let sent = peer.calls(&[Procedure::Setattr]).into_iter().map(|call| {
        let new = call.new.unwrap();
        (call.uid, new.size, new.mode)
    });
    let of_opener = (0, size, None);
    let wanted = [of_opener, of_opener, (OTHER, None, mode), (OTHER, size, None)];
    assert_eq!(sent.collect::<Vec<_>>(), wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_with_o_trunc_leaves_the_truncation_to_the_setattr_behind_it() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let appender = opened(&operations, node, 0).await;
    append(&operations, node, appender, 0).await;
    let trunc = OFlags::WRONLY | OFlags::TRUNC;
    opened_with(&operations, node, 0, trunc).await;
    // The opener has not run yet: the kernel has the size from before.
    append(&operations, node, appender, 4).await;
    assert!(operations.sync(appender).await.is_ok());
    assert!(peer.calls(&[Procedure::Setattr]).is_empty());
    assert_eq!(peer.size(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_setattr_behind_an_open_with_o_trunc_makes_no_further_access() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    opened_with(&operations, node, 1000, OFlags::WRONLY | OFlags::TRUNC).await;
    let cut = Setattr { size: Some(0), ..Setattr::default() };
    assert!(operations.setattr(&request(node, 1000), &cut).await.is_ok());
    let calls = peer.calls(&[Procedure::Access, Procedure::Setattr, Procedure::Getattr]);
    let after_root = calls.into_iter().map(|call| call.procedure).skip(1);
    assert_eq!(after_root.collect::<Vec<_>>(), [Procedure::Access, Procedure::Setattr]);
    // One that was opened for reading needs the permission to write.
    opened_with(&operations, node, 2000, OFlags::RDONLY | OFlags::TRUNC).await;
    assert!(operations.setattr(&request(node, 2000), &cut).await.is_ok());
    assert_eq!(peer.calls(&[Procedure::Access]).len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ftruncate_makes_no_call_behind_that_of_the_opener() {
    let (file_attributes_min, file_attributes_max) = (Duration::ZERO, Duration::ZERO);
    let noac = MountOptions { file_attributes_min, file_attributes_max, ..MountOptions::default() };
    let (peer, operations) = Peer::mounted_with(noac).await;
    let node = looked_up(&operations).await;
    let fh = Some(opened(&operations, node, 0).await);
    peer.refuse(Procedure::Getattr, Status::Acces);
    let cut = Setattr { size: Some(7), fh, ..Setattr::default() };
    assert!(operations.setattr(&request(node, 1000), &cut).await.is_ok());
    let node = operations.node(node).map_err(errno).unwrap();
    assert!(node.view().has_size(7, Instant::now()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ftruncate_succeeds_if_the_attributes_are_left_out_and_cannot_be_asked_for() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let fh = Some(opened(&operations, node, 0).await);
    peer.leave_out_attributes();
    peer.refuse(Procedure::Getattr, Status::Acces);
    let cut = Setattr { size: Some(7), fh, ..Setattr::default() };
    assert!(operations.setattr(&request(node, 0), &cut).await.is_ok());
    assert_eq!(peer.calls(&[Procedure::Setattr]).len(), 1);
    let node = operations.node(node).map_err(errno).unwrap();
    assert!(node.view().has_size(7, Instant::now()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn link_succeeds_if_the_attributes_are_left_out_and_cannot_be_asked_for() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    peer.refuse(Procedure::Getattr, Status::Acces);
    let linked = operations.link(&request(ROOT, 0), node, &Name((*b"other").into())).await;
    assert_eq!(linked.map_err(errno).unwrap().granted.nodes, [node]);
    assert_eq!(peer.calls(&[Procedure::Getattr]).len(), 2, "one of the root, by the mount");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_was_created_and_cannot_be_looked_at_is_no_missing_object() {
    for (refused, has_handle) in [(Procedure::Getattr, true), (Procedure::Lookup, false)] {
        let (peer, operations) = Peer::mounted().await;
        if !has_handle {
            peer.leave_out_handles();
        }
        peer.refuse(refused, Status::Noent);
        let (root, name) = (request(ROOT, 0), Name((*b"new").into()));
        let exclusive = (OFlags::RDWR | OFlags::EXCL).bits();
        let outcomes = [
            operations.mkdir(&root, &name, 0o755).await,
            operations.symlink(&root, &name, &Name(FILE.into())).await,
            operations.mknod(&root, &name, FIFO | 0o644, 0).await,
            operations.create(&root, &name, 0o644, OFlags::RDWR.bits()).await,
            operations.create(&root, &name, 0o644, exclusive).await,
        ];
        for outcome in outcomes {
            assert_eq!(outcome.map_err(errno).err(), Some(Errno::IO), "{refused:?}");
        }
        let root = operations.file_system.root();
        assert!(root.child(b"new").is_none());
        let error = operations.file_system.make_dir(&root, b"new", 0o755).await.unwrap_err();
        let sentence = error.to_string();
        assert!(sentence.starts_with("MKDIR: new was created, but "), "{sentence}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_names_refer_to_is_known_after_a_refusal_and_not_after_an_error_of_the_disk() {
    for (status, is_known) in [(Status::Acces, true), (Status::Io, false), (Status::Noent, false)] {
        for procedure in [Procedure::Remove, Procedure::Rename] {
            let (peer, operations) = Peer::mounted().await;
            for name in [FILE, LAST] {
                looked_up_by(&operations, name).await;
            }
            peer.refuse(procedure, status);
            let (root, from, to) = (request(ROOT, 0), Name(FILE.into()), Name(LAST.into()));
            let outcome = match procedure {
                Procedure::Remove => operations.unlink(&root, &from).await,
                _ => operations.rename(&root, &from, ROOT, &to, 0).await,
            };
            assert!(outcome.is_err());
            let root = operations.node(ROOT).map_err(errno).unwrap();
            let known = [FILE, LAST].map(|name| root.inode.child(name).is_some());
            let is_last_known = is_known || procedure == Procedure::Remove;
            assert_eq!(known, [is_known, is_last_known], "{procedure:?}: {status:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_waits_for_the_removal_of_a_name_known_from_a_listing() {
    let (peer, operations, dir) = listing().await;
    let node = listed(&operations, dir, 0, 4096).await[0];
    peer.hold(Procedure::Remove);
    let unlinking = Arc::clone(&operations);
    let unlinked =
        tokio::spawn(async move { unlinking.unlink(&request(ROOT, 0), &Name(FILE.into())).await });
    within(peer.called(Procedure::Remove)).await;
    let opening = Arc::clone(&operations);
    let open = OFlags::RDONLY.bits();
    let opened = tokio::spawn(async move { opening.open(&request(node, 0), open).await });
    tokio::time::sleep(A_WHILE).await;
    let calls = peer.calls(&[Procedure::Access]).len();
    assert!(!opened.is_finished() && calls == 1, "{calls} ACCESS: of the directory only");
    peer.release();
    assert!(within(unlinked).await.unwrap().is_ok());
    let _ = within(opened).await.unwrap();
}

/// A mount that lists by READDIRPLUS, and the `fh` of its root directory.
async fn listing() -> (Arc<Peer>, Arc<Operations>, u64) {
    let readdirplus = UseReaddirplus::Always;
    let options = MountOptions { readdirplus, ..MountOptions::default() };
    let (peer, operations) = Peer::mounted_with(options).await;
    let opened = operations.opendir(&request(ROOT, 0)).await;
    let dir = opened.map_err(errno).unwrap().granted.dir.unwrap();
    (peer, operations, dir)
}

/// READDIRPLUS behind `cookie`. Returns the node numbers of the names.
async fn listed(operations: &Operations, dir: u64, cookie: u64, size: u32) -> Vec<u64> {
    let listed = operations.readdir(&request(ROOT, 0), dir, cookie, size, true).await;
    listed.map_err(errno).unwrap().granted.nodes
}

/// Room for one name in a READDIRPLUS of the kernel.
const ONE_NAME_BYTES: u32 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_leads_no_more_to_the_object_of_a_name_that_was_renamed() {
    let (_peer, operations, dir) = listing().await;
    assert_eq!(listed(&operations, dir, 0, ONE_NAME_BYTES).await.len(), 1);
    let root = request(ROOT, 0);
    let (name, new_name) = (Name(LAST.into()), Name(b"old"[..].into()));
    let renamed = operations.rename(&root, &name, ROOT, &new_name, 0);
    assert!(renamed.await.is_ok());
    assert_eq!(listed(&operations, dir, 1, ONE_NAME_BYTES).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_the_server_refuses_to_continue_does_not_end_without_an_error() {
    for status in [Status::BadCookie, Status::Noent] {
        let (peer, operations, dir) = listing().await;
        assert_eq!(listed(&operations, dir, 0, 4096).await.len(), 2);
        peer.refuse(Procedure::Readdirplus, status);
        let next = operations.readdir(&request(ROOT, 0), dir, UNLISTED_COOKIE, 4096, true).await;
        assert_eq!(next.map_err(errno).err(), Some(Errno::IO), "{status:?}");
    }
}

/// A cookie of no listed name.
const UNLISTED_COOKIE: u64 = 7;

/// How long the kernel may use the first name of an answer.
fn first_name_ttl(outcome: Outcome) -> Duration {
    ttl_at(outcome, 16, 32)
}

/// A time in an answer, whose seconds and nanoseconds are at these offsets.
fn ttl_at(outcome: Outcome, seconds_at: usize, nanoseconds_at: usize) -> Duration {
    outcome.map_err(errno).unwrap().send(1, |parts| {
        let seconds = parts[1][seconds_at..][..8].try_into().unwrap();
        let nanoseconds = parts[1][nanoseconds_at..][..4].try_into().unwrap();
        Duration::new(u64::from_ne_bytes(seconds), u32::from_ne_bytes(nanoseconds))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_does_not_keep_the_attributes_of_a_file_with_set_id_bits() {
    let (_peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let file = request(node, 0);
    for (mode, is_kept) in [(0o755, true), (0o4755, false), (0o2755, false), (0o1755, true)] {
        let set = Setattr { mode: Some(mode), ..Setattr::default() };
        let ttl = ttl_at(operations.setattr(&file, &set).await, 0, 8);
        assert_eq!(!ttl.is_zero(), is_kept, "SETATTR, mode {mode:o}: {ttl:?}");
        let ttl = ttl_at(operations.getattr(&file).await, 0, 8);
        assert_eq!(!ttl.is_zero(), is_kept, "GETATTR, mode {mode:o}: {ttl:?}");
        let found = operations.lookup(&request(ROOT, 0), &Name(FILE.into())).await;
        let ttl = ttl_at(found, 24, 36);
        assert_eq!(!ttl.is_zero(), is_kept, "LOOKUP, mode {mode:o}: {ttl:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_lost_its_set_id_bits_is_looked_up_again_before_it_runs() {
    let (peer, operations) = Peer::mounted().await;
    peer.set_mode(0o4755);
    let node = looked_up(&operations).await;
    let file = request(node, 0);
    let open = async |flags| operations.open(&file, flags).await.map(drop).map_err(errno);
    assert_eq!(open(FMODE_EXEC).await, Ok(()));
    peer.set_mode(0o755);
    // The kernel asks for the mode first, which is cached here.
    assert!(operations.getattr(&file).await.is_ok());
    assert_eq!(open(FMODE_EXEC).await, Err(Errno::STALE));
    assert_eq!(open(OFlags::RDONLY.bits()).await, Ok(()));
    assert_eq!(looked_up(&operations).await, node);
    assert_eq!(open(FMODE_EXEC).await, Ok(()));
}

/// How long the kernel may use the name [`FILE`], by the answer to a LOOKUP.
async fn name_ttl(operations: &Operations) -> Duration {
    first_name_ttl(operations.lookup(&request(ROOT, 0), &Name(FILE.into())).await)
}

/// How long the kernel may use the name behind `cookie`, by the answer to a READDIRPLUS.
async fn listed_name_ttl(operations: &Operations, dir: u64, cookie: u64) -> Duration {
    let root = request(ROOT, 0);
    first_name_ttl(operations.readdir(&root, dir, cookie, ONE_NAME_BYTES, true).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_that_newer_attributes_of_the_directory_have_overtaken_is_not_believed() {
    for (is_missing, is_changed) in [(false, false), (false, true), (true, false), (true, true)] {
        let (peer, operations) = Peer::mounted().await;
        if is_missing {
            peer.refuse(Procedure::Lookup, Status::Noent);
        }
        peer.hold(Procedure::Lookup);
        let looking = Arc::clone(&operations);
        let found = tokio::spawn(async move {
            looking.lookup(&request(ROOT, 0), &Name(FILE.into())).await.map_err(errno)
        });
        within(peer.called(Procedure::Lookup)).await;
        if is_changed {
            peer.change_root();
        }
        let file_system = &operations.file_system;
        file_system.revalidate(&file_system.root()).await.unwrap();
        peer.release();
        let answer = within(found).await.unwrap().unwrap();
        // For no time, the kernel gets ENOENT alone.
        let is_kept = answer.error.is_none() && !first_name_ttl(Ok(answer)).is_zero();
        assert_eq!(is_kept, !is_changed, "missing: {is_missing}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_of_an_absent_name_renews_the_attributes_of_the_directory() {
    let (peer, operations) = Peer::mounted().await;
    let is_kept = async || {
        let found = operations.lookup(&request(ROOT, 0), &Name(ABSENT.into())).await;
        // For no time, the kernel gets ENOENT alone.
        found.map_err(errno).unwrap().error.is_none()
    };
    let getattrs = || peer.calls(&[Procedure::Getattr]).len();
    let before = getattrs();
    operations.file_system.root().expire();
    assert!(is_kept().await, "the reply has the attributes");
    peer.change_root();
    assert!(!is_kept().await, "the server may have searched before the change");
    assert!(is_kept().await);
    assert_eq!(getattrs(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_to_a_dirty_file_whose_attributes_have_expired_is_at_its_end() {
    let long = Duration::from_hours(1);
    let options = MountOptions {
        file_attributes_min: long,
        file_attributes_max: long,
        ..MountOptions::default()
    };
    let (peer, operations) = Peer::mounted_with(options).await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    append(&operations, node, fh, 0).await;
    append(&operations, node, fh, 4).await;
    let of_mount = peer.calls(&[Procedure::Getattr]).len();
    assert_eq!(of_mount, 1, "the attributes are valid while the file is dirty");
    // The replies to WRITE and COMMIT have no attributes.
    assert!(operations.sync(fh).await.is_ok());
    write(&operations, node, fh).await;
    append(&operations, node, fh, 8).await;
    assert!(operations.sync(fh).await.is_ok());
    assert_eq!(peer.size(), 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_asks_for_the_size_beside_a_write_is_behind_that() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    append(&operations, node, fh, 0).await;
    // The replies to WRITE and COMMIT have no attributes.
    assert!(operations.sync(fh).await.is_ok());
    let data = Bytes::from_static(b"data");
    assert!(operations.write(&request(node, 0), fh, 4, 0, 0, &data).await.is_ok());
    let getattrs = || peer.calls(&[Procedure::Getattr]).len();
    let before = getattrs();
    peer.hold(Procedure::Getattr);
    let appending = Arc::clone(&operations);
    let appended = tokio::spawn(async move { append(&appending, node, fh, 8).await });
    within(async {
        while getattrs() == before {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(within(operations.sync(fh)).await.is_ok());
    peer.release();
    within(appended).await.unwrap();
    assert!(operations.sync(fh).await.is_ok());
    assert_eq!(peer.size(), 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_behind_one_whose_writer_was_killed_is_not_laid_over_it() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let killed = opened_with(&operations, node, 0, OFlags::WRONLY | OFlags::SYNC).await;
    let other = opened(&operations, node, 0).await;
    peer.hold(Procedure::Commit);
    tokio::select! {
        () = append(&operations, node, killed, 0) => panic!("COMMIT is held"),
        () = within(peer.called(Procedure::Commit)) => {}
    }
    // The kernel has not extended the file.
    append(&operations, node, other, 0).await;
    peer.release();
    assert!(within(operations.sync(other)).await.is_ok());
    assert_eq!(peer.size(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_does_not_have_the_size_of_a_reply_that_it_has_refused() {
    let (_peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    let has_size = |bytes| {
        let node = operations.node(node).map_err(errno).unwrap();
        node.view().has_size(bytes, Instant::now())
    };
    let cut = Setattr { size: Some(7), fh: Some(fh), ..Setattr::default() };
    let data = Bytes::from_static(b"data");
    let file = request(node, 0);
    assert!(has_size(0));
    let cut = operations.setattr(&file, &cut).await.map_err(errno).unwrap();
    assert!(has_size(7));
    operations.unsettle_sizes(&cut.granted);
    assert!(!has_size(7));

    let (_peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    let view = operations.node(node).map_err(errno).unwrap();
    let written = operations.write(&file, fh, 0, 0, 0, &data).await.map_err(errno).unwrap();
    assert!(view.view().has_size(4, Instant::now()));
    operations.unsettle_sizes(&written.granted);
    assert!(!view.view().has_size(4, Instant::now()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_given_name_that_newer_attributes_of_the_directory_have_overtaken_is_not_believed() {
    let given = [Procedure::Create, Procedure::Mkdir, Procedure::Symlink, Procedure::Link];
    let given = given.into_iter().chain([Procedure::Mknod]);
    for (procedure, is_changed) in given.flat_map(|given| [(given, false), (given, true)]) {
        let (peer, operations) = Peer::mounted().await;
        let node = looked_up(&operations).await;
        peer.hold(procedure);
        let giving = Arc::clone(&operations);
        let given = tokio::spawn(async move {
            let (root, name) = (request(ROOT, 0), Name((*b"new").into()));
            let given = match procedure {
                Procedure::Create => giving.create(&root, &name, 0o644, 0).await,
                Procedure::Mkdir => giving.mkdir(&root, &name, 0o755).await,
                Procedure::Symlink => giving.symlink(&root, &name, &Name(FILE.into())).await,
                Procedure::Link => giving.link(&root, node, &name).await,
                _ => giving.mknod(&root, &name, FIFO | 0o644, 0).await,
            };
            given.map_err(errno)
        });
        within(peer.called(procedure)).await;
        if is_changed {
            peer.change_root();
        }
        let file_system = &operations.file_system;
        file_system.revalidate(&file_system.root()).await.unwrap();
        peer.release();
        let ttl = first_name_ttl(Ok(within(given).await.unwrap().unwrap()));
        assert_eq!(!ttl.is_zero(), !is_changed, "{procedure:?}: {ttl:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_and_a_link_do_not_wait_for_the_unsent_data_of_the_file() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    peer.hold(Procedure::Write);
    write(&operations, node, fh).await;
    let sending = Arc::clone(&operations);
    let shown = tokio::spawn(async move { sending.getattr(&request(node, 0)).await.is_ok() });
    within(peer.called(Procedure::Write)).await;
    let root = request(ROOT, 0);
    let found = within(operations.lookup(&root, &Name(FILE.into()))).await;
    assert!(ttl_at(found, 24, 36).is_zero(), "stat(2) asks for the attributes");
    let linked = within(operations.link(&root, node, &Name(b"link"[..].into()))).await;
    assert!(ttl_at(linked, 24, 36).is_zero());
    tokio::time::sleep(A_WHILE).await;
    assert!(!shown.is_finished(), "stat(2) shows times from before the write(2)");
    peer.release();
    assert!(within(shown).await.unwrap());
}

/// A reply shows that another client has changed the object of `node`.
fn note_foreign_change(operations: &Operations, node: u64) {
    let inode = &operations.node(node).map_err(errno).unwrap().inode;
    let attributes = inode.attributes();
    let mtime = Time { seconds: attributes.mtime.seconds + 1, ..attributes.mtime };
    let changed = Attributes { mtime, ctime: mtime, ..attributes };
    inode.note(Some(&changed), inode.sent());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_keeps_names_for_a_second_once_another_client_has_changed_their_directory() {
    let (peer, operations) = Peer::mounted().await;
    assert!(name_ttl(&operations).await > BELIEVED, "the directory has not changed");
    peer.change_root();
    operations.file_system.revalidate(&operations.file_system.root()).await.unwrap();
    let ttl = name_ttl(&operations).await;
    assert!(!ttl.is_zero() && ttl <= Duration::from_secs(1), "found: {ttl:?}");
    let ttl = absent_ttl(&operations).await;
    assert!(!ttl.is_zero() && ttl <= Duration::from_secs(1), "absent: {ttl:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_changes_that_look_foreign_leave_names_their_time() {
    for leaves_out_before in [false, true] {
        let (peer, operations) = Peer::mounted().await;
        if leaves_out_before {
            peer.leave_out_before();
        }
        // By the CREATE, or by another client if that has found the directory as it left it.
        peer.change_root();
        let (root, new) = (request(ROOT, 0), Name(b"new"[..].into()));
        assert!(operations.create(&root, &new, 0o644, 0).await.is_ok());
        let ttl = name_ttl(&operations).await;
        assert_eq!(ttl > BELIEVED, leaves_out_before, "{ttl:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_asks_again_for_the_attributes_of_a_directory_that_an_own_call_has_set() {
    let (_peer, operations) = Peer::mounted().await;
    let made = operations.mkdir(&request(ROOT, 0), &Name(DIRECTORY.into()), 0o755).await;
    assert!(ttl_at(made, 24, 36).is_zero(), "MKDIR");
    let directory = request(looked_up_by(&operations, DIRECTORY).await, 0);
    let set = Setattr { mode: Some(0o700), ..Setattr::default() };
    assert!(ttl_at(operations.setattr(&directory, &set).await, 0, 8).is_zero(), "SETATTR");
    assert!(!ttl_at(operations.getattr(&directory).await, 0, 8).is_zero(), "GETATTR");
    let found = operations.lookup(&request(ROOT, 0), &Name(DIRECTORY.into())).await;
    assert!(!ttl_at(found, 24, 36).is_zero(), "LOOKUP");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_and_a_listing_are_answered_once_the_kernel_is_notified_of_a_change_of_the_directory()
 {
    let (_peer, operations, dir) = listing().await;
    let root = operations.node(ROOT).map_err(errno).unwrap();
    let notification = InProgress::begin(&root.notifications);
    let by = |operation: fn(Arc<Operations>, u64) -> Answered| {
        tokio::spawn(operation(Arc::clone(&operations), dir))
    };
    let answered = [
        by(|operations, _| Box::pin(async move { name_ttl(&operations).await })),
        by(|operations, _| Box::pin(async move { absent_ttl(&operations).await })),
        by(|operations, dir| Box::pin(async move { listed_name_ttl(&operations, dir, 0).await })),
    ];
    tokio::time::sleep(A_WHILE).await;
    assert!(answered.iter().all(|answered| !answered.is_finished()));
    drop(notification);
    for answered in answered {
        within(answered).await.unwrap();
    }
}

/// A request that is being answered.
type Answered = std::pin::Pin<Box<dyn Future<Output = Duration> + Send>>;

/// How long the kernel may use the absence of [`ABSENT`], by the answer to a LOOKUP.
async fn absent_ttl(operations: &Operations) -> Duration {
    first_name_ttl(operations.lookup(&request(ROOT, 0), &Name(ABSENT.into())).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_keeps_a_name_no_longer_than_its_listing_is_believed() {
    for _ in 0..ATTEMPTS_MAX {
        let (peer, operations, dir) = listing().await;
        let began = Instant::now();
        listed(&operations, dir, 0, 4096).await;
        assert!(name_ttl(&operations).await > BELIEVED, "the directory has not changed");
        note_foreign_change(&operations, ROOT);
        let ttl = name_ttl(&operations).await;
        if began.elapsed() < BELIEVED {
            assert!(peer.calls(&[Procedure::Lookup]).is_empty(), "the listing is believed");
            return assert!(!ttl.is_zero() && ttl <= BELIEVED, "{ttl:?}");
        }
    }
    panic!("the machine is too slow");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_keeps_a_listed_name_no_longer_than_its_listing_is_believed() {
    for _ in 0..ATTEMPTS_MAX {
        let (_peer, operations, dir) = listing().await;
        let began = Instant::now();
        let ttl = listed_name_ttl(&operations, dir, 0).await;
        assert!(ttl > BELIEVED, "the directory has not changed");
        note_foreign_change(&operations, ROOT);
        let ttl = listed_name_ttl(&operations, dir, 1).await;
        if began.elapsed() < BELIEVED {
            return assert!(!ttl.is_zero() && ttl <= BELIEVED, "{ttl:?}");
        }
    }
    panic!("the machine is too slow");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_shows_a_change_does_not_confirm_the_names_listed_before() {
    let (peer, operations, dir) = listing().await;
    listed(&operations, dir, 0, 4096).await;
    let root = operations.file_system.root();
    let handle = root.child(FILE).unwrap().handle();
    let (noticed, notices) = mpsc::channel();
    let tracer = operations.file_system.tracer();
    let dir_inode = Arc::clone(&root);
    tracer.listen(move |_, _, _| noticed.send(dir_inode.listed_ttl(FILE, handle)).unwrap());
    tracer.set(Event::CacheInvalidate.into());
    assert!(root.listed_ttl(FILE, handle) > BELIEVED, "the directory has not changed");
    peer.change_root();
    assert_eq!(listed(&operations, dir, UNLISTED_COOKIE, 4096).await, []);
    let ttl = notices.try_recv().expect("the listing shows the change");
    assert!(ttl <= BELIEVED, "{ttl:?} when the new attributes are known");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_does_not_show_attributes_from_before_a_change_seen_since_its_call() {
    let (peer, operations, dir) = listing().await;
    let node = looked_up(&operations).await;
    peer.hold(Procedure::Readdirplus);
    let listing = Arc::clone(&operations);
    let listed = tokio::spawn(async move { listed(&listing, dir, 0, 4096).await });
    within(peer.called(Procedure::Readdirplus)).await;
    note_foreign_change(&operations, node);
    let inode = Arc::clone(&operations.node(node).map_err(errno).unwrap().inode);
    let changed = inode.attributes();
    peer.release();
    assert_eq!(within(listed).await.unwrap()[0], node);
    assert_eq!(inode.attributes(), changed, "after READDIRPLUS");
    let file_system = &operations.file_system;
    file_system.lookup(&file_system.root(), FILE).await.unwrap();
    assert_eq!(peer.calls(&[Procedure::Lookup]).len(), 1, "the name is found in the listing");
    assert_eq!(inode.attributes(), changed, "after LOOKUP");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_a_create_finds_is_looked_up_at_the_server_and_not_in_a_listing() {
    let (peer, operations, dir) = listing().await;
    listed(&operations, dir, 0, 4096).await;
    peer.refuse(Procedure::Create, Status::Exist);
    let (root, name, flags) = (request(ROOT, 0), Name(FILE.into()), OFlags::RDWR.bits());
    assert!(operations.create(&root, &name, 0o644, flags).await.is_ok());
    assert_eq!(peer.calls(&[Procedure::Lookup]).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_drops_pages_although_an_earlier_one_has_noticed_the_change() {
    let (_peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let keeps_pages = async || {
        let fh = opened_with(&operations, node, 0, OFlags::RDONLY).await;
        let open = operations.files.remove(fh).unwrap();
        open.keeps_pages
    };
    assert!(keeps_pages().await);
    note_foreign_change(&operations, node);
    let inode = Arc::clone(&operations.node(node).map_err(errno).unwrap().inode);
    let (read, file_system) =
        (OpenFlags { read: true, ..OpenFlags::default() }, &operations.file_system);
    let unanswered = file_system.open(&inode, read).await.unwrap();
    assert!(!keeps_pages().await);
    drop(unanswered);
}

/// How long a listing is believed after a foreign change of its directory.
const BELIEVED: Duration = Duration::from_secs(1);

/// On a slow machine an attempt can take longer than [`BELIEVED`].
const ATTEMPTS_MAX: u32 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_was_opened_by_a_name_from_a_listing_keeps_a_silly_name() {
    let (peer, operations, dir) = listing().await;
    let before = looked_up(&operations).await;
    peer.replace_file();
    let listed = listed(&operations, dir, 0, 4096).await;
    assert_ne!(listed[0], before);
    opened(&operations, listed[0], 0).await;
    assert!(operations.unlink(&request(ROOT, 0), &Name(FILE.into())).await.is_ok());
    assert_eq!(peer.calls(&[Procedure::Remove, Procedure::Rename]).len(), 1);
    assert_eq!(peer.calls(&[Procedure::Rename]).len(), 1);
}

/// Makes a call of `procedure` that needs an empty directory, while a removed file in it is being
/// closed. The call has to wait until the silly name is gone.
async fn waits_for_silly_removals<C: Future<Output = Outcome> + Send + 'static>(
    procedure: Procedure,
    call: impl FnOnce(Arc<Operations>) -> C,
) {
    let (peer, operations) = Peer::mounted().await;
    let directory = looked_up_by(&operations, DIRECTORY).await;
    let in_directory = request(directory, 0);
    let found = operations.lookup(&in_directory, &Name(FILE.into())).await;
    let node = found.map_err(errno).unwrap().granted.nodes[0];
    let fh = opened(&operations, node, 0).await;
    write(&operations, node, fh).await;
    assert!(operations.unlink(&in_directory, &Name(FILE.into())).await.is_ok());
    let calls_before = peer.calls(&[procedure]).len();
    peer.hold(Procedure::Commit);
    let releasing = Arc::clone(&operations);
    let released = tokio::spawn(async move { releasing.release(fh).await });
    within(peer.called(Procedure::Commit)).await;
    let answered = tokio::spawn(call(Arc::clone(&operations)));
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(peer.calls(&[procedure]).len(), calls_before, "the call has overtaken REMOVE");
    peer.release();
    within(released).await.unwrap();
    assert!(within(answered).await.unwrap().is_ok());
    let order = peer.calls(&[Procedure::Remove, procedure]);
    let last = order[order.len() - 2..].iter().map(|call| call.procedure);
    assert!(last.eq([Procedure::Remove, procedure]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_removed_behind_the_silly_names_of_closed_files_in_it() {
    waits_for_silly_removals(Procedure::Rmdir, async |operations: Arc<Operations>| {
        operations.rmdir(&request(ROOT, 0), &Name(DIRECTORY.into())).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_replaced_behind_the_silly_names_of_closed_files_in_it() {
    waits_for_silly_removals(Procedure::Rename, async |operations: Arc<Operations>| {
        let (from, to) = (Name(b"other"[..].into()), Name(DIRECTORY.into()));
        operations.rename(&request(ROOT, 0), &from, ROOT, &to, 0).await
    })
    .await;
}

#[test]
fn a_silent_server_of_a_soft_mount_is_eio_as_for_the_kernels_client() {
    let server = ServerName { host: "filer".to_owned(), port: None };
    assert_eq!(errno(Error::TimedOut { server: server.clone() }.into()), Errno::IO);
    let source = Arc::new(std::io::ErrorKind::ConnectionRefused.into());
    let error = Error::Connection { attempt: Attempt::Connect, server, source };
    assert_eq!(errno(error.into()), Errno::IO);
}

/// A mount whose calls fail after a time in which the peer answers one on a busy machine, too.
fn soft() -> MountOptions {
    let (recovery, timeout) = (Recovery::Soft, Duration::from_secs(2));
    MountOptions { recovery, timeout, retransmissions: 0, ..MountOptions::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_keeps_asking_a_soft_mount_for_patience_is_eio() {
    let (peer, operations) = Peer::mounted_with(soft()).await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    peer.refuse(Procedure::Read, Status::Jukebox);
    let read = within(operations.read(&request(node, 0), fh, 0, 10)).await;
    assert_eq!(read.map_err(errno).err(), Some(Errno::IO));
    peer.refuse(Procedure::Write, Status::Jukebox);
    write(&operations, node, fh).await;
    assert_eq!(within(operations.sync(fh)).await.map_err(errno).err(), Some(Errno::IO));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fsync_after_a_write_that_a_soft_mount_has_given_up_is_eio() {
    let (peer, operations) = Peer::mounted_with(soft()).await;
    let node = looked_up(&operations).await;
    let fh = opened(&operations, node, 0).await;
    peer.hold(Procedure::Write);
    write(&operations, node, fh).await;
    let open = operations.files.get(fh).unwrap();
    open.file.inode().written().unwrap().commit().await;
    assert!(open.file.has_failed());
    peer.release();
    let data = Bytes::from_static(b"data");
    write(&operations, node, fh).await;
    let failed = operations.write(&request(node, 0), fh, 0, 0, 0, &data).await;
    assert_eq!(failed.map_err(errno).err(), Some(Errno::IO));
    assert_eq!(operations.sync(fh).await.map_err(errno).err(), Some(Errno::IO));
    assert!(operations.sync(fh).await.is_ok(), "it is returned once more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_with_rwf_dsync_that_bypasses_the_page_cache_is_committed_before_its_reply() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    let data = Bytes::from_static(b"data");
    for (open_flags, commits) in [(OFlags::RDWR, 0), (OFlags::RDWR | OFlags::DIRECT, 1)] {
        let fh = opened_with(&operations, node, 0, open_flags).await;
        let (flags, of_root) = ((open_flags | OFlags::DSYNC).bits(), request(node, 0));
        assert!(operations.write(&of_root, fh, 0, 0, flags, &data).await.is_ok());
        assert_eq!(peer.calls(&[Procedure::Commit]).len(), commits);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_is_committed_at_the_end_of_a_mount_before_deleted_files_are_removed() {
    let (peer, operations) = Peer::mounted().await;
    let deleted = looked_up(&operations).await;
    opened(&operations, deleted, 0).await;
    let removed = operations.unlink(&request(ROOT, 0), &Name(FILE.into())).await;
    assert!(removed.is_ok());
    for name in [b"1", b"2", b"3"] {
        let node = looked_up_by(&operations, name).await;
        let fh = opened(&operations, node, 0).await;
        write(&operations, node, fh).await;
    }
    peer.hold(Procedure::Remove);
    assert!(!operations.file_system.is_clean());
    tokio::select! {
        _ = operations.finish() => panic!("REMOVE is held"),
        () = within(peer.called(Procedure::Remove)) => {}
    }
    assert!(operations.file_system.is_clean());
    assert_eq!(peer.calls(&[Procedure::Commit]).len(), 3);
    assert!(operations.file_system.check_lost().is_ok());
    peer.release();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_file_is_opened_once_the_end_of_the_mount_has_closed_all() {
    let (_peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    opened(&operations, node, 0).await;
    operations.finish().await.unwrap();
    let flags = OFlags::RDWR.bits();
    let again = operations.open(&request(node, 0), flags).await;
    assert_eq!(again.map_err(errno).err(), Some(Errno::NOTCONN));
    let name = Name(b"new"[..].into());
    let created = operations.create(&request(ROOT, 0), &name, 0o600, flags).await;
    assert_eq!(created.map_err(errno).err(), Some(Errno::NOTCONN));
    assert!(!operations.file_system.root().superblock().has_open_files());
}

/// The blocks of the file system of `node`, as statfs(2) returns them.
async fn blocks_of(operations: &Operations, node: u64) -> u64 {
    let answer = operations.statfs(&request(node, 0)).await.map_err(errno).unwrap();
    let bytes: Vec<u8> =
        answer.send(0, |parts| parts.iter().flat_map(|part| part.to_vec()).collect());
    u64::from_ne_bytes(bytes[16..24].try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statfs_is_of_the_file_system_of_the_node() {
    let (peer, operations) = Peer::mounted().await;
    let node = looked_up(&operations).await;
    assert_eq!(blocks_of(&operations, node).await, NODE_BYTES / 4096);
    assert_eq!(blocks_of(&operations, ROOT).await, ROOT_BYTES / 4096);
    peer.replace_file();
    assert_eq!(blocks_of(&operations, node).await, ROOT_BYTES / 4096);
}
