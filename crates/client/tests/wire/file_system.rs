//! The operations of a mounted export, and the caches of its files.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use proto::nfs3::{SetAttributes, SetTime, Status, Time};
use spillway_client::{Error, FileSystem, Inode, MountOptions, OpenFlags, Result, UseReaddirplus};

use crate::fixture::{Fixture, options, root_user};

const READ: OpenFlags = OpenFlags { read: true, write: false, sync: false, direct: false };
const WRITE: OpenFlags = OpenFlags { write: true, ..READ };

async fn mount_with(fixture: &Fixture, options: &MountOptions) -> FileSystem {
    FileSystem::mount(&fixture.url(), &root_user(), options, Arc::default()).await.unwrap()
}

async fn mount(fixture: &Fixture) -> FileSystem {
    mount_with(fixture, &options()).await
}

/// With handles and attributes in each listing.
async fn mount_readdirplus(fixture: &Fixture) -> FileSystem {
    let always = MountOptions { readdirplus: UseReaddirplus::Always, ..options() };
    mount_with(fixture, &always).await
}

/// A file with `data`, written and closed through the mount.
async fn written(file_system: &FileSystem, name: &str, data: &[u8]) -> Arc<Inode> {
    let root = file_system.root();
    let inode = file_system.create(&root, name.as_bytes(), 0o644, false).await.unwrap();
    let file = file_system.open_created(&inode, WRITE).unwrap();
    file.write_at(0, data).await.unwrap();
    file.close().await.unwrap();
    inode
}

fn is_absent<T>(outcome: Result<T>) -> bool {
    outcome.is_err_and(|error| error.is(Status::Noent))
}

#[tokio::test]
async fn written_data_is_read_before_and_after_it_is_sent() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let root = file_system.root();
    let inode = file_system.create(&root, b"file", 0o600, true).await.unwrap();
    let file = file_system.open_created(&inode, WRITE).unwrap();

    file.write_at(10, b"later").await.unwrap();
    file.write_at(0, b"first").await.unwrap();
    let expected = b"first\0\0\0\0\0later";
    assert_eq!(file.read_at(0, 100).await.unwrap(), expected[..]);
    assert_eq!(inode.attributes().size, 15, "the size includes unsent data");
    file.sync().await.unwrap();
    assert_eq!(fs::read(fixture.exported("file")).unwrap(), expected);
    // Behind the server's end, so that the hole between is the client's to make.
    file.write_at(20, b"!").await.unwrap();
    assert_eq!(file.read_at(12, 8).await.unwrap(), b"ter\0\0\0\0\0"[..]);
    assert_eq!(file.read_at(12, 100).await.unwrap(), b"ter\0\0\0\0\0!"[..]);
    assert!(file.read_at(21, 1).await.unwrap().is_empty());
    file.close().await.unwrap();
    assert_eq!(fs::read(fixture.exported("file")).unwrap().len(), 21);

    let again = file_system.create(&root, b"file", 0o600, true).await;
    assert!(again.is_err_and(|error| error.is(Status::Exist)));
}

#[tokio::test]
async fn a_write_beyond_one_write_call_arrives_whole() {
    let fixture = Fixture::new().await;
    let sizes = MountOptions { wsize: Some(4096), rsize: Some(8192), ..options() };
    let file_system = mount_with(&fixture, &sizes).await;
    let data: Vec<u8> = (0..300_000_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let inode = written(&file_system, "long", &data).await;
    assert_eq!(fs::read(fixture.exported("long")).unwrap(), data);
    let file = file_system.open(&inode, READ).await.unwrap();
    assert_eq!(file.read_at(5, 299_000).await.unwrap(), data[5..299_005]);
    assert_eq!(file.read_at(299_999, 5).await.unwrap(), data[299_999..]);
}

#[tokio::test]
async fn own_writes_keep_the_cache_and_foreign_writes_drop_it() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let inode = written(&file_system, "file", &[7; 100_000]).await;

    let again = file_system.open(&inode, WRITE).await.unwrap();
    assert!(again.keep_cache(), "no other client has changed it");
    again.write_at(50, b"mine").await.unwrap();
    let now = SetTime::ToClientTime(Time { seconds: 1_000_000, nseconds: 5 });
    let new = SetAttributes { mtime: now, mode: Some(0o600), ..SetAttributes::default() };
    file_system.set_attributes(&inode, new).await.unwrap();
    again.write_at(60, b"mine").await.unwrap();
    again.close().await.unwrap();
    assert!(file_system.open(&inode, READ).await.unwrap().keep_cache(), "SETATTR was its own too");

    fs::write(fixture.exported("file"), b"theirs").unwrap();
    let changed = file_system.open(&inode, READ).await.unwrap();
    assert!(!changed.keep_cache());
    assert_eq!(changed.read_at(0, 100).await.unwrap(), b"theirs"[..]);
    assert!(
        file_system.open(&inode, READ).await.unwrap().keep_cache(),
        "a foreign change is reported once"
    );
}

#[tokio::test]
async fn an_own_link_does_not_hide_a_foreign_write() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let root = file_system.root();
    let inode = written(&file_system, "file", b"before").await;
    let file = file_system.open(&inode, READ).await.unwrap();
    assert_eq!(file.read_at(0, 100).await.unwrap(), b"before"[..]);
    file.close().await.unwrap();

    file_system.link(&inode, &root, b"second").await.unwrap();
    let unchanged = file_system.open(&inode, READ).await.unwrap();
    assert!(unchanged.keep_cache(), "the link alone changes no data");
    unchanged.close().await.unwrap();

    fs::write(fixture.exported("file"), b"behind").unwrap();
    file_system.link(&inode, &root, b"third").await.unwrap();
    let changed = file_system.open(&inode, READ).await.unwrap();
    assert!(!changed.keep_cache(), "the data from before the foreign write is dropped");
    assert_eq!(changed.read_at(0, 100).await.unwrap(), b"behind"[..]);
}

#[tokio::test]
async fn an_open_file_outlives_its_names() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let root = file_system.root();
    let inode = written(&file_system, "removed", b"data").await;
    let file = file_system.open(&inode, WRITE).await.unwrap();
    file_system.remove(&root, b"removed").await.unwrap();
    assert!(is_absent(file_system.lookup(&root, b"removed").await));
    file.write_at(4, b" and more").await.unwrap();
    file.sync().await.unwrap();
    assert_eq!(file.read_at(0, 100).await.unwrap(), b"data and more"[..]);
    file.close().await.unwrap();
    assert_eq!(fs::read_dir(fixture.exported("")).unwrap().count(), 0, "nothing is left of it");
}

#[tokio::test]
async fn an_open_file_replaced_by_rename_is_still_read() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let root = file_system.root();
    let old = written(&file_system, "name", b"old").await;
    let file = file_system.open(&old, READ).await.unwrap();
    written(&file_system, "new", b"new").await;
    file_system.rename(&root, b"new", &root, b"name").await.unwrap();
    assert_eq!(file.read_at(0, 9).await.unwrap(), b"old"[..]);
    assert_eq!(fs::read(fixture.exported("name")).unwrap(), b"new");
    drop(file);
    let gone = async {
        while fs::read_dir(fixture.exported("")).unwrap().count() > 1 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(options().timeout, gone).await.expect("dropping closes too");

    // To its own name, and to another of its names: nothing happens, and nothing is put aside.
    let inode = file_system.lookup(&root, b"name").await.unwrap();
    let file = file_system.open(&inode, READ).await.unwrap();
    file_system.link(&inode, &root, b"second").await.unwrap();
    file_system.rename(&root, b"name", &root, b"name").await.unwrap();
    file_system.rename(&root, b"name", &root, b"second").await.unwrap();
    file.close().await.unwrap();
    assert_eq!(fs::read_dir(fixture.exported("")).unwrap().count(), 2);
}

#[tokio::test]
async fn removing_one_of_several_names_takes_effect_at_once() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let root = file_system.root();
    let inode = written(&file_system, "one", b"data").await;
    file_system.link(&inode, &root, b"two").await.unwrap();
    let file = file_system.open(&inode, READ).await.unwrap();
    file_system.remove(&root, b"one").await.unwrap();
    let names: Vec<_> = fs::read_dir(fixture.exported("")).unwrap().collect();
    assert_eq!(names.len(), 1);
    assert_eq!(file.read_at(0, 9).await.unwrap(), b"data"[..]);
}

/// The last name of an open file is put aside also if the client has removed or replaced the
/// others.
#[tokio::test]
async fn an_open_file_outlives_all_of_several_names() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let root = file_system.root();
    let inode = written(&file_system, "one", b"data").await;
    file_system.link(&inode, &root, b"two").await.unwrap();
    file_system.link(&inode, &root, b"three").await.unwrap();
    let file = file_system.open(&inode, WRITE).await.unwrap();
    file.write_at(4, b" and more").await.unwrap();
    file_system.remove(&root, b"one").await.unwrap();
    written(&file_system, "new", b"new").await;
    file_system.rename(&root, b"new", &root, b"two").await.unwrap();
    assert_eq!(fs::read_dir(fixture.exported("")).unwrap().count(), 2, "both took effect at once");
    assert_eq!(file_system.attributes(&inode).await.unwrap().nlink, 1);
    assert!(file_system.open(&inode, READ).await.unwrap().keep_cache(), "the RENAME was its own");
    written(&file_system, "new", b"new").await;
    file_system.rename(&root, b"new", &root, b"three").await.unwrap();
    assert_eq!(fs::read(fixture.exported("three")).unwrap(), b"new");
    file.sync().await.unwrap();
    assert_eq!(file.read_at(0, 100).await.unwrap(), b"data and more"[..]);
    file.close().await.unwrap();
    assert_eq!(fs::read_dir(fixture.exported("")).unwrap().count(), 2);

    // Another client has removed one of the names.
    let inode = written(&file_system, "one", b"data").await;
    file_system.link(&inode, &root, b"four").await.unwrap();
    let file = file_system.open(&inode, READ).await.unwrap();
    fs::remove_file(fixture.exported("one")).unwrap();
    file_system.remove(&root, b"four").await.unwrap();
    assert_eq!(file.read_at(0, 9).await.unwrap(), b"data"[..]);
}

#[tokio::test]
async fn a_cut_file_stays_cut() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let inode = written(&file_system, "file", &[1; 10_000]).await;
    let file = file_system.open(&inode, WRITE).await.unwrap();
    file.write_at(0, &[2; 9_000]).await.unwrap();
    let cut = SetAttributes { size: Some(5_000), ..SetAttributes::default() };
    assert_eq!(file_system.set_attributes(&inode, cut).await.unwrap().size, 5_000);
    assert_eq!(file.read_at(4_990, 100).await.unwrap(), [2; 10][..]);
    file.close().await.unwrap();
    assert_eq!(fs::read(fixture.exported("file")).unwrap(), [2; 5_000]);

    let file = file_system.open(&inode, WRITE).await.unwrap();
    let emptied = SetAttributes { size: Some(0), ..SetAttributes::default() };
    assert_eq!(file_system.set_attributes(&inode, emptied).await.unwrap().size, 0);
    assert!(file.read_at(0, 10).await.unwrap().is_empty());
    assert_eq!(inode.attributes().size, 0);
}

#[tokio::test]
async fn changes_of_a_directory_show_in_its_names() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let root = file_system.root();
    let names = async || {
        let directory = file_system.open_dir(&root).await.unwrap();
        let (mut names, mut cookie) = (BTreeSet::new(), 0);
        loop {
            let page = directory.entries_after(cookie).await.unwrap();
            for entry in page.iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
                assert!(names.insert(String::from_utf8(entry.name.to_vec()).unwrap()));
            }
            if page.eof() {
                return names;
            }
            cookie = page.last_cookie();
        }
    };
    let expect = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();

    assert_eq!(names().await, expect(&[]));
    written(&file_system, "a", b"").await;
    file_system.make_dir(&root, b"dir", 0o755).await.unwrap();
    file_system.symlink(&root, b"link", b"a").await.unwrap();
    assert_eq!(names().await, expect(&["a", "dir", "link"]));
    file_system.rename(&root, b"a", &root, b"b").await.unwrap();
    assert!(is_absent(file_system.lookup(&root, b"a").await));
    file_system.remove_dir(&root, b"dir").await.unwrap();
    assert_eq!(names().await, expect(&["b", "link"]));
    let link = file_system.lookup(&root, b"link").await.unwrap();
    assert_eq!(file_system.read_link(&link).await.unwrap(), b"a"[..]);
    file_system.remove(&root, b"link").await.unwrap();
    file_system.remove(&root, b"b").await.unwrap();
    assert_eq!(names().await, expect(&[]));
}

#[tokio::test]
async fn data_read_ahead_is_not_older_than_a_change() {
    let fixture = Fixture::new().await;
    let sizes = MountOptions { rsize: Some(4096), ..options() };
    let file_system = mount_with(&fixture, &sizes).await;
    let inode = written(&file_system, "file", &[1; 100_000]).await;
    let file = file_system.open(&inode, WRITE).await.unwrap();
    assert_eq!(file.read_at(0, 1000).await.unwrap(), [1; 1000][..], "a stream begins");
    file.write_at(5000, &[2; 100]).await.unwrap();
    file.sync().await.unwrap();
    assert_eq!(file.read_at(1000, 5000).await.unwrap()[3990..4110].to_vec(), {
        let mut expected = vec![1; 10];
        expected.extend([2; 100]);
        expected.extend([1; 10]);
        expected
    });

    fs::write(fixture.exported("file"), [3; 100_000]).unwrap();
    let again = file_system.open(&inode, READ).await.unwrap();
    for reader in [&again, &file] {
        assert_eq!(reader.read_at(6000, 5000).await.unwrap(), [3; 5000][..]);
    }
}

#[tokio::test]
async fn data_read_ahead_before_a_write_is_not_returned_after_it() {
    let fixture = Fixture::new().await;
    let sizes = MountOptions { rsize: Some(4096), ..options() };
    let file_system = mount_with(&fixture, &sizes).await;
    let inode = written(&file_system, "file", &[1; 100_000]).await;
    let file = file_system.open(&inode, WRITE).await.unwrap();
    file.write_at(50_000, &[2; 100]).await.unwrap();
    // Read-ahead fetches the server's old data behind the read.
    for offset in (0..49_152).step_by(4096) {
        assert_eq!(file.read_at(offset, 4096).await.unwrap(), [1; 4096][..]);
    }
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    file.sync().await.unwrap();
    assert_eq!(file.read_at(50_000, 100).await.unwrap(), [2; 100][..]);
}

#[tokio::test]
async fn a_new_name_keeps_the_cache() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let root = file_system.root();
    let inode = written(&file_system, "file.new", &[1; 1000]).await;
    file_system.rename(&root, b"file.new", &root, b"file").await.unwrap();
    assert!(file_system.open(&inode, READ).await.unwrap().keep_cache());
    file_system.link(&inode, &root, b"other").await.unwrap();
    assert!(file_system.open(&inode, READ).await.unwrap().keep_cache());
    file_system.remove(&root, b"file").await.unwrap();
    assert!(file_system.open(&inode, READ).await.unwrap().keep_cache());
}

#[tokio::test]
async fn an_absent_name_is_dropped() {
    let fixture = Fixture::new().await;
    let file_system = mount_readdirplus(&fixture).await;
    let root = file_system.root();
    fs::write(fixture.exported("file"), b"").unwrap();
    let directory = file_system.open_dir(&root).await.unwrap();
    assert!(directory.entries_after(0).await.unwrap().iter().any(|entry| entry.name == b"file"));
    file_system.lookup(&root, b"file").await.unwrap();
    fs::remove_file(fixture.exported("file")).unwrap();
    assert!(is_absent(file_system.remove(&root, b"file").await));
    assert!(is_absent(file_system.lookup(&root, b"file").await));
}

/// A listing has handles of objects that another client has replaced or removed since.
#[tokio::test]
async fn a_name_is_looked_up_again_after_its_handle_was_stale() {
    let fixture = Fixture::new().await;
    let theirs = mount(&fixture).await;
    let their_root = theirs.root();
    for name in ["current", "next", "removed"] {
        written(&theirs, name, name.as_bytes()).await;
    }
    theirs.make_dir(&their_root, b"dir", 0o755).await.unwrap();
    let mut listed = Vec::new();
    for _ in 0..3 {
        let ours = mount_readdirplus(&fixture).await;
        let directory = ours.open_dir(&ours.root()).await.unwrap();
        assert!(directory.entries_after(0).await.unwrap().eof());
        listed.push(ours);
    }
    theirs.rename(&their_root, b"next", &their_root, b"current").await.unwrap();
    theirs.remove(&their_root, b"removed").await.unwrap();
    theirs.remove_dir(&their_root, b"dir").await.unwrap();
    theirs.make_dir(&their_root, b"dir", 0o755).await.unwrap();

    let is_stale = |error: Error| error.is(Status::Stale);
    let ours = &listed[0];
    let old = ours.lookup(&ours.root(), b"current").await.unwrap();
    assert!(ours.open(&old, READ).await.is_err_and(is_stale));
    let new = ours.lookup(&ours.root(), b"current").await.unwrap();
    let file = ours.open(&new, READ).await.unwrap();
    assert_eq!(file.read_at(0, 9).await.unwrap(), b"next"[..]);
    assert!(is_absent(ours.lookup(&ours.root(), b"removed").await), "the listing is outdated");

    let ours = &listed[1];
    let old = ours.lookup(&ours.root(), b"removed").await.unwrap();
    assert!(ours.open(&old, READ).await.is_err_and(is_stale));
    assert!(is_absent(ours.lookup(&ours.root(), b"removed").await));
    // Only the stale name was looked up; the directory is revalidated for the others.
    let new = ours.lookup(&ours.root(), b"current").await.unwrap();
    assert!(ours.open(&new, READ).await.is_ok());

    let ours = &listed[2];
    let old = ours.lookup(&ours.root(), b"dir").await.unwrap();
    assert!(ours.lookup(&old, b"name").await.is_err_and(is_stale));
    let new = ours.lookup(&ours.root(), b"dir").await.unwrap();
    assert!(is_absent(ours.lookup(&new, b"name").await));
}

#[tokio::test]
async fn data_written_in_small_pieces_is_read_back_without_a_call() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let root = file_system.root();
    let inode = file_system.create(&root, b"small", 0o644, true).await.unwrap();
    let file = file_system.open_created(&inode, WRITE).unwrap();
    for offset in (0..100_100).step_by(100) {
        file.write_at(offset, &[7; 100]).await.unwrap();
    }
    file.close().await.unwrap();
    let file = file_system.open(&inode, WRITE).await.unwrap();
    assert!(file.keep_cache());
    assert_eq!(file.read_at(0, 65_536).await.unwrap(), [7; 65_536][..]);
    // A kernel asks for whole pages, also where the file ends within one.
    assert_eq!(file.read_at(65_536, 65_536).await.unwrap(), [7; 34_564][..]);
    assert_eq!(fixture.figure("read_bytes"), 0);

    // Over kept data, first unsent and then committed; and truncated.
    file.write_at(50, &[8; 4096]).await.unwrap();
    assert_eq!(file.read_at(0, 51).await.unwrap()[49..], [7, 8]);
    file.sync().await.unwrap();
    assert_eq!(file.read_at(4145, 2).await.unwrap(), [8, 7][..]);
    let cut = SetAttributes { size: Some(60), ..SetAttributes::default() };
    file_system.set_attributes(&inode, cut).await.unwrap();
    assert_eq!(file.read_at(49, 100).await.unwrap()[..], [&[7][..], &[8; 10]].concat());
    assert_eq!(fixture.figure("read_bytes"), 0);
    file.close().await.unwrap();

    fs::write(fixture.exported("small"), [9; 60]).unwrap();
    let file = file_system.open(&inode, READ).await.unwrap();
    assert_eq!(file.read_at(0, 100).await.unwrap(), [9; 60][..]);
}

#[tokio::test]
async fn uncommitted_data_does_not_hide_a_foreign_write() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let root = file_system.root();
    let inode = file_system.create(&root, b"file", 0o644, true).await.unwrap();
    let file = file_system.open_created(&inode, WRITE).unwrap();
    file.write_at(0, &[1; 100]).await.unwrap();
    // The data is sent and not committed.
    assert_eq!(file_system.attributes(&inode).await.unwrap().size, 100);
    fs::write(fixture.exported("file"), [2; 90]).unwrap();

    let read = async || {
        let other = file_system.open(&inode, READ).await.unwrap();
        (inode.attributes().size, other.read_at(0, 200).await.unwrap().to_vec())
    };
    let theirs = (90, vec![2; 90]);
    assert_eq!(read().await, theirs);
    file.sync().await.unwrap();
    assert_eq!(read().await, theirs, "the commit does not restore it");
    // Data written later is read from memory again.
    file.write_at(10, &[3; 4]).await.unwrap();
    assert_eq!(file.read_at(9, 6).await.unwrap(), [2, 3, 3, 3, 3, 2][..]);
}

#[tokio::test]
async fn permissions_are_those_of_the_user() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let inode = written(&file_system, "secret", b"data").await;
    let private = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    file_system.set_attributes(&inode, private).await.unwrap();
    let other = spillway_client::Identity { uid: 1234, gid: 1234, groups: Vec::new() };
    let theirs = file_system.as_user(&Arc::new(other));
    // Servers of other tests in this process may have made the umask 0.
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(fixture.exported(""), mode).unwrap();
    let refused = theirs.open(&inode, READ).await;
    assert!(matches!(refused, Err(Error::Refused(rustix::io::Errno::ACCESS))));
    assert!(theirs.create(&theirs.root(), b"new", 0o600, false).await.is_err());
    assert_eq!(theirs.attributes(&inode).await.unwrap().size, 4);
}

/// As ganesha, a server may have set one attribute when it refuses another.
#[tokio::test]
async fn attributes_are_those_of_the_server_after_a_refused_setattr() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let inode = written(&file_system, "file", b"data").await;
    fs::set_permissions(fixture.exported(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(fixture.exported("file"), fs::Permissions::from_mode(0o640)).unwrap();
    let other = spillway_client::Identity { uid: 1234, gid: 1234, groups: Vec::new() };
    let theirs = file_system.as_user(&Arc::new(other));
    let private = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let refused = theirs.set_attributes(&inode, private).await;
    assert!(refused.is_err_and(|error| error.is(Status::Perm)));
    assert_eq!(theirs.attributes(&inode).await.unwrap().mode & 0o777, 0o640);
}

/// A weak reference from its directory would keep the memory of each inode that was dropped.
#[tokio::test]
async fn a_directory_does_not_keep_the_memory_of_its_files() {
    let fixture = Fixture::new().await;
    let file_system = mount(&fixture).await;
    let root = file_system.root();
    written(&file_system, "file", b"data").await;
    let inode = file_system.lookup(&root, b"file").await.unwrap();
    assert_eq!(Arc::weak_count(&inode), 1, "that of the table, which ends with the inode");
    drop(inode);
    assert_eq!(file_system.lookup(&root, b"file").await.unwrap().attributes().size, 4);
}
