//! Open files whose names this client removes or replaces.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::sync::Arc;
use std::time::Duration;

use proto::nfs3::{Procedure, SetAttributes, Status};
use spillway_client::{File, FileSystem, Identity, Inode, OpenFlags, Result};
use tokio::task::JoinHandle;

use crate::fixture::{Fixture, options};
use crate::peer::within;
use crate::way::{Way, mount_on_a_way};

const READ: OpenFlags = OpenFlags { read: true, write: false, sync: false, direct: false };
const WRITE: OpenFlags = OpenFlags { write: true, ..READ };

/// A mount over a way, with the closed files `a` and `b` of these names as data.
async fn with_two_files(fixture: &Fixture) -> (Arc<Way>, FileSystem, [Arc<Inode>; 2]) {
    for name in ["a", "b"] {
        fs::write(fixture.exported(name), name).unwrap();
    }
    let (way, file_system) = mount_on_a_way(fixture, &options()).await;
    let root = file_system.root();
    let a = file_system.lookup(&root, b"a").await.unwrap();
    let b = file_system.lookup(&root, b"b").await.unwrap();
    (way, file_system, [a, b])
}

fn opening(fs: &FileSystem, inode: &Arc<Inode>, flags: OpenFlags) -> JoinHandle<Result<File>> {
    let (fs, inode) = (fs.clone(), Arc::clone(inode));
    tokio::spawn(async move { fs.open(&inode, flags).await })
}

fn renaming(fs: &FileSystem, from: &'static [u8], to: &'static [u8]) -> JoinHandle<Result<()>> {
    let (fs, root) = (fs.clone(), fs.root());
    tokio::spawn(async move { fs.rename(&root, from, &root, to).await })
}

/// The exported names, sorted, with `.nfs` for each silly name.
fn names(fixture: &Fixture) -> Vec<String> {
    let names = fs::read_dir(fixture.exported("")).unwrap().map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with(".nfs") { ".nfs".to_owned() } else { name }
    });
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Waits until the exported names are `expected`.
async fn names_become(fixture: &Fixture, expected: &[&str]) {
    let become_so = async {
        while names(fixture) != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(options().timeout, become_so)
        .await
        .unwrap_or_else(|_| panic!("{:?} become {expected:?}", names(fixture)));
}

#[tokio::test]
async fn a_file_removed_during_its_open_is_read_until_it_is_closed() {
    let fixture = Fixture::new().await;
    let (way, file_system, [a, _]) = with_two_files(&fixture).await;
    way.accesses.begin();
    let open = opening(&file_system, &a, READ);
    within(way.accesses.held.notified()).await;
    within(file_system.remove(&file_system.root(), b"a")).await.unwrap();
    assert_eq!(names(&fixture), [".nfs", "b"]);
    way.accesses.end();
    let file = within(open).await.unwrap().unwrap();
    assert_eq!(file.read_at(0, 9).await.unwrap(), b"a"[..]);
    file.close().await.unwrap();
    assert_eq!(names(&fixture), ["b"]);
}

#[tokio::test]
async fn a_file_removed_while_it_is_truncated_can_be_written() {
    let fixture = Fixture::new().await;
    let (way, file_system, [a, _]) = with_two_files(&fixture).await;
    let file = file_system.open(&a, WRITE).await.unwrap();
    way.setattrs.begin();
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    let (truncating, inode) = (file_system.clone(), Arc::clone(&a));
    let cut = tokio::spawn(async move { truncating.set_attributes(&inode, cut).await });
    within(way.setattrs.held.notified()).await;
    within(file_system.remove(&file_system.root(), b"a")).await.unwrap();
    way.setattrs.end();
    within(cut).await.unwrap().unwrap();
    file.write_at(0, b"new").await.unwrap();
    file.close().await.unwrap();
    assert_eq!(names(&fixture), ["b"]);
}

#[tokio::test]
async fn a_file_removed_during_an_open_that_is_given_up_is_gone() {
    let fixture = Fixture::new().await;
    let (way, file_system, [a, _]) = with_two_files(&fixture).await;
    way.accesses.begin();
    let open = opening(&file_system, &a, READ);
    within(way.accesses.held.notified()).await;
    within(file_system.remove(&file_system.root(), b"a")).await.unwrap();
    open.abort();
    names_become(&fixture, &["b"]).await;
}

/// The name to be renamed is removed by another client.
#[tokio::test]
async fn a_failed_rename_leaves_its_open_target() {
    let fixture = Fixture::new().await;
    let (_way, file_system, [_a, b]) = with_two_files(&fixture).await;
    let file = file_system.open(&b, READ).await.unwrap();
    fs::remove_file(fixture.exported("a")).unwrap();
    let renamed = within(renaming(&file_system, b"a", b"b")).await.unwrap();
    assert!(renamed.is_err_and(|error| error.is(Status::Noent)));
    assert_eq!(names(&fixture), ["b"]);

    fs::create_dir(fixture.exported("dir")).unwrap();
    let renamed = within(renaming(&file_system, b"dir", b"b")).await.unwrap();
    assert!(renamed.is_err(), "a directory does not replace a file");
    assert_eq!(names(&fixture), ["b", "dir"]);
    file.close().await.unwrap();
    assert_eq!(fs::read(fixture.exported("b")).unwrap(), b"b");
}

#[tokio::test]
async fn a_rename_that_a_sticky_directory_refuses_leaves_no_silly_name() {
    const OWNER: u32 = 1000;
    const OTHER: u32 = 2000;
    let fixture = Fixture::new().await;
    let (_way, file_system, [_a, b]) = with_two_files(&fixture).await;
    for (name, mode, owner) in [("", 0o1777, 0), ("a", 0o666, OTHER), ("b", 0o666, OWNER)] {
        chown(fixture.exported(name), Some(owner), Some(owner)).unwrap();
        fs::set_permissions(fixture.exported(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for inode in [&file_system.root(), &b] {
        file_system.revalidate(inode).await.unwrap();
    }
    let as_user =
        |uid| file_system.as_user(&Arc::new(Identity { uid, gid: uid, groups: Vec::new() }));
    let (owner, other) = (as_user(OWNER), as_user(OTHER));
    let file = owner.open(&b, READ).await.unwrap();
    let renamed = within(renaming(&other, b"a", b"b")).await.unwrap();
    assert!(renamed.is_err_and(|error| error.is(Status::Perm) || error.is(Status::Acces)));
    assert_eq!(names(&fixture), ["a", "b"]);
    owner.remove(&owner.root(), b"b").await.unwrap();
    assert_eq!(file.read_at(0, 9).await.unwrap(), b"b"[..]);
    file.close().await.unwrap();
    assert_eq!(names(&fixture), ["a"]);
}

#[tokio::test]
async fn a_silly_link_whose_removal_is_refused_is_removed_at_close() {
    let fixture = Fixture::new().await;
    let (way, file_system, [_a, b]) = with_two_files(&fixture).await;
    let file = file_system.open(&b, READ).await.unwrap();
    for refused in [Procedure::Rename, Procedure::Remove] {
        way.refuse(refused, Status::Acces);
    }
    let renamed = within(renaming(&file_system, b"a", b"b")).await.unwrap();
    assert!(renamed.is_err_and(|error| error.is(Status::Acces)));
    assert_eq!(names(&fixture), [".nfs", "a", "b"]);
    way.permit(Procedure::Remove);
    file.close().await.unwrap();
    assert_eq!(names(&fixture), ["a", "b"]);
}

#[tokio::test]
async fn an_open_target_has_its_name_until_it_is_replaced() {
    let fixture = Fixture::new().await;
    let (way, file_system, [_a, b]) = with_two_files(&fixture).await;
    let file = file_system.open(&b, READ).await.unwrap();
    way.links.begin();
    let rename = renaming(&file_system, b"a", b"b");
    within(way.links.held.notified()).await;
    assert_eq!(names(&fixture), [".nfs", "a", "b"]);
    way.links.end();
    within(rename).await.unwrap().unwrap();
    assert_eq!(fs::read(fixture.exported("b")).unwrap(), b"a");
    let again = file_system.open(&b, READ).await.unwrap();
    assert!(again.keep_cache(), "LINK and RENAME are own changes");
    again.close().await.unwrap();
    assert_eq!(file.read_at(0, 9).await.unwrap(), b"b"[..]);
    file.close().await.unwrap();
    assert_eq!(names(&fixture), ["b"]);
}

#[tokio::test]
async fn a_rename_goes_on_when_its_caller_is_killed() {
    for holds_link in [true, false] {
        let fixture = Fixture::new().await;
        let (way, file_system, [_a, b]) = with_two_files(&fixture).await;
        let file = file_system.open(&b, READ).await.unwrap();
        let hold = if holds_link { &way.links } else { &way.renames };
        hold.begin();
        let rename = renaming(&file_system, b"a", b"b");
        within(hold.held.notified()).await;
        rename.abort();
        assert!(within(rename).await.unwrap_err().is_cancelled());
        hold.end();
        names_become(&fixture, &[".nfs", "b"]).await;
        assert_eq!(file.read_at(0, 9).await.unwrap(), b"b"[..]);
        file.close().await.unwrap();
        names_become(&fixture, &["b"]).await;
        assert_eq!(fs::read(fixture.exported("b")).unwrap(), b"a");
    }
}

/// The reply to the first transmission of the RENAME is lost.
#[tokio::test]
async fn an_open_target_outlives_a_rename_whose_retransmission_finds_no_name() {
    let fixture = Fixture::new().await;
    let (way, file_system, [_a, b]) = with_two_files(&fixture).await;
    let file = file_system.open(&b, READ).await.unwrap();
    way.links.begin();
    let rename = renaming(&file_system, b"a", b"b");
    within(way.links.held.notified()).await;
    fs::rename(fixture.exported("a"), fixture.exported("b")).unwrap();
    way.refuse(Procedure::Rename, Status::Noent);
    way.links.end();
    assert!(within(rename).await.unwrap().is_err_and(|error| error.is(Status::Noent)));
    assert_eq!(names(&fixture), [".nfs", "b"]);
    assert_eq!(file.read_at(0, 9).await.unwrap(), b"b"[..]);
    file.close().await.unwrap();
    assert_eq!(names(&fixture), ["b"]);
    assert_eq!(fs::read(fixture.exported("b")).unwrap(), b"a");
}

#[tokio::test]
async fn an_open_target_is_replaced_on_a_server_without_links() {
    let fixture = Fixture::new().await;
    let (way, file_system, [_a, b]) = with_two_files(&fixture).await;
    way.refuse(Procedure::Link, Status::Notsupp);
    let file = file_system.open(&b, READ).await.unwrap();
    within(renaming(&file_system, b"a", b"b")).await.unwrap().unwrap();
    assert_eq!(names(&fixture), [".nfs", "b"]);
    assert_eq!(file.read_at(0, 9).await.unwrap(), b"b"[..]);
    file.close().await.unwrap();
    assert_eq!(names(&fixture), ["b"]);
    assert_eq!(fs::read(fixture.exported("b")).unwrap(), b"a");
}

#[tokio::test]
async fn a_failed_rename_is_undone_on_a_server_without_links() {
    let fixture = Fixture::new().await;
    let (way, file_system, [_a, b]) = with_two_files(&fixture).await;
    way.refuse(Procedure::Link, Status::Notsupp);
    let file = file_system.open(&b, READ).await.unwrap();
    fs::remove_file(fixture.exported("a")).unwrap();
    let renamed = within(renaming(&file_system, b"a", b"b")).await.unwrap();
    assert!(renamed.is_err_and(|error| error.is(Status::Noent)));
    assert_eq!(names(&fixture), ["b"]);
    file.close().await.unwrap();
    assert_eq!(fs::read(fixture.exported("b")).unwrap(), b"b");
}

/// Renames `a` to the open `b` in two steps, the second of which the server does not execute, and
/// closes `b`.
async fn closed_after_a_failed_second_step(fixture: &Fixture, lookup: Option<Status>) {
    let (way, file_system, [_a, b]) = with_two_files(fixture).await;
    way.refuse(Procedure::Link, Status::Notsupp);
    let file = file_system.open(&b, READ).await.unwrap();
    way.renames.begin();
    let rename = renaming(&file_system, b"a", b"b");
    within(way.renames.held.notified()).await;
    way.fail_next(Procedure::Rename);
    if let Some(status) = lookup {
        way.refuse(Procedure::Lookup, status);
    }
    way.renames.end();
    assert!(within(rename).await.unwrap().is_err());
    file.close().await.unwrap();
}

#[tokio::test]
async fn a_rename_that_cannot_be_executed_is_undone_on_a_server_without_links() {
    let fixture = Fixture::new().await;
    closed_after_a_failed_second_step(&fixture, None).await;
    assert_eq!(names(&fixture), ["a", "b"]);
    assert_eq!(fs::read(fixture.exported("b")).unwrap(), b"b");
}

#[tokio::test]
async fn the_only_copy_of_a_target_that_may_not_be_replaced_is_kept() {
    let fixture = Fixture::new().await;
    closed_after_a_failed_second_step(&fixture, Some(Status::Io)).await;
    assert_eq!(names(&fixture), [".nfs", "a"]);
}

#[tokio::test]
async fn a_silly_name_whose_removal_was_killed_is_removed_at_close() {
    let fixture = Fixture::new().await;
    let (way, file_system, [a, _]) = with_two_files(&fixture).await;
    let root = file_system.root();
    let file = file_system.open(&a, READ).await.unwrap();
    way.renames.begin();
    let (removing, dir) = (file_system.clone(), Arc::clone(&root));
    let remove = tokio::spawn(async move { removing.remove(&dir, b"a").await });
    within(way.renames.held.notified()).await;
    remove.abort();
    assert!(within(remove).await.unwrap_err().is_cancelled());
    file.close().await.unwrap();
    assert_eq!(names(&fixture), [".nfs", "b"]);
    way.renames.end();
    names_become(&fixture, &["b"]).await;
}

#[tokio::test]
async fn an_open_file_outlives_two_names_removed_at_once() {
    let fixture = Fixture::new().await;
    let (_way, file_system, [a, _]) = with_two_files(&fixture).await;
    let root = file_system.root();
    file_system.link(&a, &root, b"c").await.unwrap();
    let file = file_system.open(&a, READ).await.unwrap();
    let (first, second) =
        tokio::join!(file_system.remove(&root, b"a"), file_system.remove(&root, b"c"));
    first.and(second).unwrap();
    assert_eq!(file.read_at(0, 9).await.unwrap(), b"a"[..]);
    file.close().await.unwrap();
    assert_eq!(names(&fixture), ["b"]);
}

fn removing(fs: &FileSystem, name: &'static [u8]) -> JoinHandle<Result<()>> {
    let (fs, root) = (fs.clone(), fs.root());
    tokio::spawn(async move { fs.remove(&root, name).await })
}

/// Opens `a` while a call of REMOVE is on its way, and lets that through.
async fn opened_during_a_removal(
    way: &Way,
    fs: &FileSystem,
    a: &Arc<Inode>,
) -> JoinHandle<Result<File>> {
    within(way.removes.held.notified()).await;
    let open = opening(fs, a, READ);
    tokio::time::sleep(A_WHILE).await;
    open
}

#[tokio::test]
async fn an_open_does_not_succeed_ahead_of_a_remove_that_was_sent() {
    let fixture = Fixture::new().await;
    let (way, file_system, [a, _]) = with_two_files(&fixture).await;
    way.removes.begin();
    let remove = removing(&file_system, b"a");
    let open = opened_during_a_removal(&way, &file_system, &a).await;
    way.removes.end();
    within(remove).await.unwrap().unwrap();
    assert!(within(open).await.unwrap().is_err_and(|error| error.is(Status::Stale)));
    assert_eq!(names(&fixture), ["b"]);
}

#[tokio::test]
async fn a_remove_that_was_not_sent_is_dropped_with_its_caller() {
    let fixture = Fixture::new().await;
    let (way, file_system, [a, _]) = with_two_files(&fixture).await;
    file_system.link(&a, &file_system.root(), b"c").await.unwrap();
    way.removes.begin();
    let first = removing(&file_system, b"a");
    within(way.removes.held.notified()).await;
    let second = removing(&file_system, b"c");
    tokio::time::sleep(A_WHILE).await;
    second.abort();
    assert!(within(second).await.unwrap_err().is_cancelled());
    way.removes.end();
    within(first).await.unwrap().unwrap();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(names(&fixture), ["b", "c"]);
}

#[tokio::test]
async fn an_open_file_outlives_the_removal_of_a_name_that_it_has_got_meanwhile() {
    let fixture = Fixture::new().await;
    let (way, file_system, [a, _]) = with_two_files(&fixture).await;
    let file = file_system.open(&a, READ).await.unwrap();
    way.renames.begin();
    let rename = renaming(&file_system, b"a", b"b");
    within(way.renames.held.notified()).await;
    let remove = removing(&file_system, b"b");
    tokio::time::sleep(A_WHILE).await;
    way.renames.end();
    within(rename).await.unwrap().unwrap();
    within(remove).await.unwrap().unwrap();
    assert_eq!(file.read_at(0, 9).await.unwrap(), b"a"[..]);
    file.close().await.unwrap();
    assert_eq!(names(&fixture), [""; 0]);
}

#[tokio::test]
async fn an_open_does_not_succeed_ahead_of_the_removal_of_a_silly_name() {
    let fixture = Fixture::new().await;
    let (way, file_system, [a, _]) = with_two_files(&fixture).await;
    let file = file_system.open(&a, READ).await.unwrap();
    file_system.remove(&file_system.root(), b"a").await.unwrap();
    way.removes.begin();
    let close = tokio::spawn(file.close());
    let open = opened_during_a_removal(&way, &file_system, &a).await;
    way.removes.end();
    within(close).await.unwrap().unwrap();
    assert!(within(open).await.unwrap().is_err_and(|error| error.is(Status::Stale)));
    assert_eq!(names(&fixture), ["b"]);
}

#[tokio::test]
async fn a_file_opened_while_its_two_names_are_removed_is_read() {
    let fixture = Fixture::new().await;
    let (way, file_system, [a, _]) = with_two_files(&fixture).await;
    file_system.link(&a, &file_system.root(), b"c").await.unwrap();
    way.removes.begin();
    let first = removing(&file_system, b"a");
    let open = opened_during_a_removal(&way, &file_system, &a).await;
    let second = removing(&file_system, b"c");
    tokio::time::sleep(A_WHILE).await;
    way.removes.end();
    within(first).await.unwrap().unwrap();
    let file = within(open).await.unwrap().unwrap();
    within(second).await.unwrap().unwrap();
    assert_eq!(file.read_at(0, 9).await.unwrap(), b"a"[..]);
    file.close().await.unwrap();
    assert_eq!(names(&fixture), ["b"]);
}

#[tokio::test]
async fn an_open_that_waits_for_a_removal_can_be_killed() {
    let fixture = Fixture::new().await;
    let (way, file_system, [a, _]) = with_two_files(&fixture).await;
    way.removes.begin();
    let remove = removing(&file_system, b"a");
    let open = opened_during_a_removal(&way, &file_system, &a).await;
    open.abort();
    assert!(within(open).await.unwrap_err().is_cancelled());
    way.removes.end();
    within(remove).await.unwrap().unwrap();
}

/// Time in which an open would succeed that must not.
const A_WHILE: Duration = Duration::from_millis(100);

#[tokio::test]
async fn sync_waits_for_the_data_of_a_file_that_was_dropped() {
    let fixture = Fixture::new().await;
    let (way, file_system, [a, _]) = with_two_files(&fixture).await;
    let file = file_system.open(&a, WRITE).await.unwrap();
    way.writes.begin();
    file.write_at(0, b"written").await.unwrap();
    drop((file, a));
    within(way.writes.held.notified()).await;
    let syncing = file_system.clone();
    let sync = tokio::spawn(async move { syncing.sync().await });
    tokio::time::sleep(A_WHILE).await;
    assert!(!sync.is_finished());
    way.writes.end();
    within(sync).await.unwrap().unwrap();
    assert_eq!(fs::read(fixture.exported("a")).unwrap(), b"written");
}

#[tokio::test]
async fn the_close_of_a_reader_commits_what_a_dropped_file_has_left() {
    let fixture = Fixture::new().await;
    let (_, file_system, [a, _]) = with_two_files(&fixture).await;
    let writer = file_system.open(&a, WRITE).await.unwrap();
    let reader = file_system.open(&a, READ).await.unwrap();
    writer.write_at(0, b"written").await.unwrap();
    drop(writer);
    within(reader.close()).await.unwrap();
    assert_eq!(fs::read(fixture.exported("a")).unwrap(), b"written");
}

#[tokio::test]
async fn sync_returns_the_error_of_a_file_that_was_dropped() {
    let fixture = Fixture::new().await;
    let (way, file_system, [a, _]) = with_two_files(&fixture).await;
    let file = file_system.open(&a, WRITE).await.unwrap();
    way.refuse(Procedure::Write, Status::Nospc);
    file.write_at(0, b"written").await.unwrap();
    drop((file, a));
    assert!(within(file_system.sync()).await.unwrap_err().is(Status::Nospc));
    assert!(within(file_system.sync()).await.is_ok(), "it is reported once");
}
