//! Own calls whose replies are late, while another client changes the file.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proto::nfs3::SetAttributes;
use spillway_client::{File, FileSystem, Inode, MountOptions, OpenFlags};

use crate::fixture::{Fixture, options};
use crate::peer::within;
use crate::way::{Way, mount_on_a_way};

const READ: OpenFlags = OpenFlags { read: true, write: false, sync: false, direct: false };
const WRITE: OpenFlags = OpenFlags { write: true, ..READ };

/// How long an open waits for replies to own calls. On a busy machine this passes before a test
/// knows it.
const DECIDED_WITHIN: Duration = Duration::from_secs(1);

/// A file with own data, and a SETATTR of it that the server has executed and not answered yet,
/// before another client wrote the file.
async fn changed_behind_a_setattr(fixture: &Fixture) -> (Arc<Way>, FileSystem, Arc<Inode>) {
    let (way, file_system) = mount_on_a_way(fixture, &options()).await;
    let root = file_system.root();
    let inode = file_system.create(&root, b"file", 0o644, true).await.unwrap();
    let file = file_system.open(&inode, WRITE).await.unwrap();
    file.write_at(0, b"mine").await.unwrap();
    file.close().await.unwrap();

    way.setattrs.is_holding.store(true, Ordering::SeqCst);
    let (changing, changed) = (file_system.clone(), Arc::clone(&inode));
    tokio::spawn(async move {
        let new = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        changing.set_attributes(&changed, new).await
    });
    within(way.setattrs.held.notified()).await;
    fs::write(fixture.exported("file"), b"theirs").unwrap();
    (way, file_system, inode)
}

#[tokio::test]
async fn an_open_waits_for_an_own_call_that_may_hide_a_foreign_write() {
    let fixture = Fixture::new().await;
    let (way, file_system, inode) = changed_behind_a_setattr(&fixture).await;
    let (opening, opened, began) = (file_system.clone(), Arc::clone(&inode), Instant::now());
    let open = tokio::spawn(async move { opening.open(&opened, READ).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let has_waited = !open.is_finished() || began.elapsed() >= DECIDED_WITHIN;
    assert!(has_waited, "the reply to SETATTR decides");
    way.setattrs.released.notify_waiters();
    let file = within(open).await.unwrap().unwrap();
    assert!(!file.keep_cache());
    assert_eq!(file.read_at(0, 100).await.unwrap(), b"theirs"[..]);
}

#[tokio::test]
async fn an_open_drops_the_caches_if_an_own_call_is_not_answered() {
    let fixture = Fixture::new().await;
    let (_way, file_system, inode) = changed_behind_a_setattr(&fixture).await;
    let file = within(file_system.open(&inode, READ)).await.unwrap();
    assert!(!file.keep_cache());
    assert_eq!(file.read_at(0, 100).await.unwrap(), b"theirs"[..]);
}

/// The server restarts between the WRITEs and the SETATTR, and the reply to a COMMIT shows it
/// before the reply to the SETATTR arrives.
#[tokio::test]
async fn data_lost_by_the_server_is_not_sent_again_behind_a_cut() {
    let fixture = Fixture::new().await;
    let sizes = MountOptions { wsize: Some(4096), ..options() };
    let (way, file_system) = mount_on_a_way(&fixture, &sizes).await;
    let root = file_system.root();
    let inode = file_system.create(&root, b"file", 0o644, true).await.unwrap();
    let file = file_system.open(&inode, WRITE).await.unwrap();
    file.write_at(0, &[1; 20_000]).await.unwrap();
    for hold in [&way.setattrs, &way.commits] {
        hold.is_holding.store(true, Ordering::SeqCst);
    }
    let syncing = tokio::spawn(async move {
        file.sync().await.unwrap();
        file
    });
    within(way.commits.held.notified()).await;

    let (cutting, cut) = (file_system.clone(), Arc::clone(&inode));
    let cut = tokio::spawn(async move {
        let new = SetAttributes { size: Some(5), ..SetAttributes::default() };
        cutting.set_attributes(&cut, new).await
    });
    within(way.setattrs.held.notified()).await;
    way.commits.is_restarted.store(true, Ordering::SeqCst);
    way.commits.is_holding.store(false, Ordering::SeqCst);
    way.commits.released.notify_waiters();
    // Time for WRITEs that must not be sent.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(fs::read(fixture.exported("file")).unwrap(), [1; 5], "WRITEs behind the SETATTR");
    way.setattrs.released.notify_waiters();
    assert_eq!(within(cut).await.unwrap().unwrap().size, 5);
    let file = within(syncing).await.unwrap();
    assert_eq!(file.read_at(0, 100).await.unwrap(), [1; 5][..]);
    within(file.close()).await.unwrap();
    assert_eq!(fs::read(fixture.exported("file")).unwrap(), [1; 5]);
}

#[tokio::test]
async fn attributes_set_by_a_caller_that_is_gone_are_seen() {
    let fixture = Fixture::new().await;
    let (way, file_system) = mount_on_a_way(&fixture, &options()).await;
    let inode = file_system.create(&file_system.root(), b"file", 0o644, true).await.unwrap();
    way.setattrs.begin();
    let (setting, set) = (file_system.clone(), Arc::clone(&inode));
    let caller = tokio::spawn(async move {
        let new = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        setting.set_attributes(&set, new).await
    });
    within(way.setattrs.held.notified()).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    assert_eq!(file_system.attributes(&inode).await.unwrap().mode & 0o777, 0o600);
}

/// A file with own data that is sent and not committed, before another client replaced it by `new`.
/// Replies to COMMIT wait.
async fn replaced_before_a_commit(fixture: &Fixture, new: &[u8]) -> (Arc<Way>, FileSystem, File) {
    let (way, file_system) = mount_on_a_way(fixture, &options()).await;
    let root = file_system.root();
    let inode = file_system.create(&root, b"file", 0o644, true).await.unwrap();
    let file = file_system.open(&inode, WRITE).await.unwrap();
    file.write_at(0, &[1; 100]).await.unwrap();
    assert_eq!(file_system.attributes(&inode).await.unwrap().size, 100);
    way.commits.is_holding.store(true, Ordering::SeqCst);
    fs::write(fixture.exported("file"), new).unwrap();
    (way, file_system, file)
}

#[tokio::test]
async fn an_open_after_a_foreign_write_waits_until_earlier_own_data_is_committed() {
    let fixture = Fixture::new().await;
    let (way, file_system, file) = replaced_before_a_commit(&fixture, &[2; 90]).await;
    let changes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&changes);
    file_system.on_foreign_change(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let open = || {
        let (opening, opened) = (file_system.clone(), Arc::clone(file.inode()));
        tokio::spawn(async move { opening.open(&opened, READ).await })
    };
    let first = open();
    within(way.commits.held.notified()).await;
    // The change is known, and this one waits nevertheless.
    let second = open();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!first.is_finished() && !second.is_finished(), "the verifier decides");
    assert_eq!(changes.load(Ordering::SeqCst), 1);
    way.commits.is_holding.store(false, Ordering::SeqCst);
    way.commits.released.notify_waiters();
    let mut kept = 0;
    for open in [first, second] {
        let other = within(open).await.unwrap().unwrap();
        assert_eq!(other.read_at(0, 200).await.unwrap(), [2; 90][..]);
        kept += u32::from(other.keep_cache());
    }
    assert!(kept < 2, "pages read meanwhile are dropped");
    assert_eq!(changes.load(Ordering::SeqCst), 2, "by an open file too");
    assert_eq!(file_system.attributes(file.inode()).await.unwrap().size, 90);
}

/// The server shows the file without the WRITE that it lost in a restart.
#[tokio::test]
async fn data_that_the_server_has_lost_is_read_until_it_is_sent_again() {
    let fixture = Fixture::new().await;
    let (way, file_system, file) = replaced_before_a_commit(&fixture, &[]).await;
    let inode = file.inode();
    file_system.revalidate(inode).await.unwrap();
    within(way.commits.held.notified()).await;
    assert_eq!(inode.attributes().size, 100, "an append goes behind it");
    assert_eq!(file.read_at(0, 200).await.unwrap(), [1; 100][..]);
    way.commits.is_restarted.store(true, Ordering::SeqCst);
    way.commits.is_holding.store(false, Ordering::SeqCst);
    way.commits.released.notify_waiters();
    let other = within(file_system.open(inode, READ)).await.unwrap();
    assert_eq!(other.read_at(0, 200).await.unwrap(), [1; 100][..]);
    within(file.close()).await.unwrap();
    assert_eq!(fs::read(fixture.exported("file")).unwrap(), [1; 100]);
}

/// Own data behind a hole is committed before the reply to the READ arrives.
#[tokio::test]
async fn a_read_ends_where_another_client_has_cut_the_file() {
    let fixture = Fixture::new().await;
    let (way, file_system) = mount_on_a_way(&fixture, &options()).await;
    let root = file_system.root();
    let inode = file_system.create(&root, b"file", 0o644, true).await.unwrap();
    let file = file_system.open(&inode, WRITE).await.unwrap();
    file.write_at(50, &[1; 50]).await.unwrap();
    assert_eq!(file_system.attributes(&inode).await.unwrap().size, 100);
    fs::write(fixture.exported("file"), [2; 10]).unwrap();
    way.reads.is_holding.store(true, Ordering::SeqCst);
    let reading = tokio::spawn(async move { file.read_at(0, 200).await });
    within(way.reads.held.notified()).await;
    within(file_system.open(&inode, READ)).await.unwrap();
    way.reads.is_holding.store(false, Ordering::SeqCst);
    way.reads.released.notify_waiters();
    assert_eq!(within(reading).await.unwrap().unwrap(), [2; 10][..]);
}
