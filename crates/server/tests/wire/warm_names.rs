//! LOOKUP and ACCESS of names that were asked for before, which the server answers from what the
//! kernel has in memory: still as the files are at that moment.

use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use proto::nfs3::*;
use rustix::fs::{XattrFlags, removexattr, setxattr};
use spillway_server::report::TraceRequest;

use crate::client::{Client, Ids, ok, refusal};
use crate::fixture::{Fixture, Frozen, Mounted, TRUSTING, is_root, run, set_access_list, set_mode};
use crate::own_process::ran_in_own_process;
use crate::skip::skip_in_ci_too;

const ALL_ACCESS: u32 = 0x3f;

/// From then on, the server knows a later change of what exists by its ctime.
fn settle() {
    sleep(Duration::from_millis(1100));
}

/// Finds a name some times, always the same object, and returns its inode number.
fn warm(client: &mut Client, dir: FileHandle, name: &str) -> u64 {
    let [first, .., last] = [(); 4].map(|()| ok(client.lookup(dir, name.as_bytes())));
    assert_eq!(first.object, last.object, "{name}");
    last.object_attributes.unwrap().fileid
}

#[test]
fn a_local_change_of_a_name_is_seen_by_the_next_lookup() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let local = |name: &str| fixture.exported(name);
    let write = |name: &str| std::fs::write(local(name), name).unwrap();
    let inode = |name: &str| std::fs::symlink_metadata(local(name)).unwrap().ino();
    let names = ["removed", "replaced", "moved", "a directory", "a link", "other"];
    names.into_iter().for_each(write);
    // The second time the directory has just been changed, and its name of the past is known.
    for settled in [true, false, true, false] {
        if settled {
            settle();
        }
        for name in names {
            assert_eq!(warm(&mut client, root, name), inode(name), "{name}");
        }
        let mut find = |name: &str| client.lookup(root, name.as_bytes());

        std::fs::remove_file(local("removed")).unwrap();
        assert_eq!(refusal(find("removed")), Status::Noent);
        write("removed");
        assert_eq!(ok(find("removed")).object_attributes.unwrap().fileid, inode("removed"));

        write("new");
        let new = inode("new");
        std::fs::rename(local("new"), local("replaced")).unwrap();
        assert_eq!(ok(find("replaced")).object_attributes.unwrap().fileid, new);
        assert_eq!(refusal(find("new")), Status::Noent);

        let moved = ok(find("moved")).object;
        std::fs::rename(local("moved"), local("moved away")).unwrap();
        assert_eq!(refusal(find("moved")), Status::Noent);
        assert_eq!(ok(find("moved away")).object, moved);
        std::fs::rename(local("moved away"), local("moved")).unwrap();
        assert_eq!(ok(find("moved")).object, moved);

        let exchanged = (ok(find("moved")).object, ok(find("other")).object);
        assert!(
            run("mv", &["--exchange", path(&local("moved")), path(&local("other"))]).is_ok() || {
                std::fs::rename(local("moved"), local("t")).unwrap();
                std::fs::rename(local("other"), local("moved")).unwrap();
                std::fs::rename(local("t"), local("other")).is_ok()
            }
        );
        assert_eq!((ok(find("other")).object, ok(find("moved")).object), exchanged);

        std::fs::remove_file(local("a directory")).unwrap();
        std::fs::create_dir(local("a directory")).unwrap();
        let found = ok(find("a directory")).object_attributes.unwrap();
        assert_eq!((found.file_type, found.fileid), (FileType::Directory, inode("a directory")));
        std::fs::remove_dir(local("a directory")).unwrap();
        write("a directory");

        std::fs::remove_file(local("a link")).unwrap();
        symlink("other", local("a link")).unwrap();
        let found = ok(find("a link")).object_attributes.unwrap();
        assert_eq!((found.file_type, found.fileid), (FileType::Symlink, inode("a link")));
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn attributes_of_a_warm_name_are_those_of_now() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let local = fixture.exported("f");
    std::fs::write(&local, "").unwrap();
    settle();
    for len in 1..20 {
        std::fs::write(&local, vec![b'x'; len]).unwrap();
        set_mode(&local, if len % 2 == 0 { 0o600 } else { 0o644 });
        let found = ok(client.lookup(root, b"f"));
        let (shown, on_disk) = (found.object_attributes.unwrap(), local.metadata().unwrap());
        assert_eq!((shown.size, shown.mode), (on_disk.size(), on_disk.mode() & 0o7777));
        assert_eq!(shown.ctime.nseconds, u32::try_from(on_disk.ctime_nsec()).unwrap());
        assert_eq!(found.dir_attributes, Some(client.getattr(root).unwrap()));
    }
}

#[test]
fn a_change_of_the_right_to_search_counts_for_the_next_lookup() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let mut client = fixture.client().becoming(Ids { uid: 1001, gid: 1002, groups: vec![5] });
    let root = client.mnt("/export");
    let dir = fixture.exported("d");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("f"), "").unwrap();
    let handle = client.find(root, "d");
    if !set_access_list(&dir, 0o755, &[(1003, 4)]) {
        return skip_in_ci_too("the file system has no access control lists");
    }
    type Change<'a> = (&'a dyn Fn(), bool);
    let list = |permissions| {
        let dir = &dir;
        move || assert!(set_access_list(dir, 0o755, &[(1001, permissions), (1003, 4)]))
    };
    let (denied, granted) = (list(4), list(5));
    let bare = || removexattr(&dir, "system.posix_acl_access").unwrap();
    let owner = |uid, gid| {
        let dir = &dir;
        move || chown(dir, Some(uid), Some(gid)).unwrap()
    };
    let bits = |mode| {
        let dir = &dir;
        move || set_mode(dir, mode)
    };
    let changes: [Change<'_>; 12] = [
        (&bits(0o755), true),
        (&denied, false),
        (&granted, true),
        (&denied, false),
        (&bare, true),
        (&bits(0o700), false),
        (&owner(1001, 0), true),
        (&bits(0o677), false),
        (&owner(0, 0), true),
        (&bits(0o750), false),
        (&owner(0, 5), true),
        (&owner(0, 6), false),
    ];
    for is_settled in [false, true] {
        for (number, (change, may_search)) in changes.iter().enumerate() {
            change();
            for attempt in 0..3 {
                let found = client.lookup(handle, b"f").map(drop).map_err(|f| f.status);
                let wanted = if *may_search { Ok(()) } else { Err(Status::Acces) };
                assert_eq!(found, wanted, "change {number}");
                if is_settled && attempt == 0 {
                    settle();
                }
            }
        }
    }
}

#[test]
fn a_change_of_rights_counts_for_the_next_access() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let mut client = fixture.client().becoming(Ids { uid: 1001, gid: 1002, groups: vec![5] });
    let root = client.mnt("/export");
    let file = fixture.exported("f");
    std::fs::write(&file, "").unwrap();
    let handle = client.find(root, "f");
    let mut has = |bits: u32, what: &str| {
        // Asked, remembered, and asked of what is remembered.
        for pause in [0, 1100, 0] {
            sleep(Duration::from_millis(pause));
            let access = ok(client.access(handle, ALL_ACCESS)).access;
            assert_eq!(access, bits, "{what}");
        }
    };
    let (write, execute) = (ACCESS_MODIFY | ACCESS_EXTEND, ACCESS_EXECUTE);
    set_mode(&file, 0o644);
    has(ACCESS_READ, "of another");
    chown(&file, Some(1001), None).unwrap();
    has(ACCESS_READ | write, "its owner");
    set_mode(&file, 0o144);
    has(execute, "its owner, who took it from himself");
    chown(&file, Some(0), Some(5)).unwrap();
    has(ACCESS_READ, "of his group");
    set_mode(&file, 0o600);
    has(0, "of none");
    if set_access_list(&file, 0o600, &[(1001, 6), (1009, 7)]) {
        has(ACCESS_READ | write, "by a list");
        assert!(set_access_list(&file, 0o600, &[(1001, 4), (1009, 7)]));
        has(ACCESS_READ, "by a list of the same mask");
        assert!(set_access_list(&file, 0o600, &[(1001, 1), (1009, 7)]));
        has(execute, "by a list of the same mode");
        removexattr(&file, "system.posix_acl_access").unwrap();
    } else {
        skip_in_ci_too("the part with access control lists, which the file system lacks");
    }
    let mut others = [1003, 1004, 1005, 1006, 1007, 1001].map(|id| {
        let mut client = fixture.client().becoming(Ids::user(id));
        client.mnt("/export");
        client
    });
    chown(&file, Some(1006), None).unwrap();
    run("chmod", &["u=rw,g=,o=", path(&file)]).unwrap();
    settle();
    for _ in 0..3 {
        for (client, id) in others.iter_mut().zip([1003, 1004, 1005, 1006, 1007]) {
            let access = ok(client.access(handle, ALL_ACCESS)).access;
            assert_eq!(access, if id == 1006 { ACCESS_READ | write } else { 0 }, "{id}");
        }
    }
}

#[test]
fn a_mount_that_changes_counts_for_the_next_access() {
    let over = Fixture::over(TRUSTING, |dir| Mounted::tmpfs_export(dir, 1024));
    let Some((fixture, _mount)) = over else { return };
    let (mut client, root) = fixture.mounted();
    let file = fixture.exported("f");
    std::fs::write(&file, "").unwrap();
    set_mode(&file, 0o777);
    let handle = client.find(root, "f");
    let export = fixture.exported("");
    let (write, execute) = (ACCESS_MODIFY | ACCESS_EXTEND, ACCESS_EXECUTE);
    let mut has = |bits: u32, options: &str| {
        run("mount", &["-o", options, path(&export)]).unwrap();
        for pause in [0, 1100, 0] {
            sleep(Duration::from_millis(pause));
            assert_eq!(ok(client.access(handle, ALL_ACCESS)).access, bits, "{options}");
        }
    };
    has(ACCESS_READ | write | execute, "remount,rw,exec");
    has(ACCESS_READ | execute, "remount,ro");
    has(ACCESS_READ | write | execute, "remount,rw");
    has(ACCESS_READ | write, "remount,noexec");
    has(ACCESS_READ | write | execute, "remount,exec");
    has(ACCESS_READ | execute, "remount,bind,ro");
    has(ACCESS_READ | write | execute, "remount,bind,rw");
}

/// A server with one metadata thread, on a file system of its own. `None`, with the reason printed,
/// if there can be none.
fn with_one_metadata_thread() -> Option<(Fixture, Mounted)> {
    let config = format!("metadata_threads = 1\n{TRUSTING}");
    let over = Fixture::over(&config, Mounted::ext4_export)?;
    set_mode(&over.0.exported(""), 0o777);
    Some(over)
}

/// Calls `work` until all that it needs is known, and then while the only metadata thread waits
/// until the file system takes changes again.
fn while_the_metadata_thread_waits(fixture: &Fixture, mut work: impl FnMut()) {
    let Some(frozen) = Frozen::at(&fixture.exported("")) else { return };
    // Not before: that may take longer than a right is believed.
    for _ in 0..2 {
        work();
    }
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| {
            let (mut other, root) = fixture.mounted();
            other.create(root, "g")
        });
        sleep(Duration::from_millis(200));
        work();
        assert!(!stuck.is_finished());
        drop(frozen);
        stuck.join().unwrap();
    });
}

#[test]
fn warm_names_wait_for_no_metadata_thread() {
    let Some((fixture, _mounted)) = with_one_metadata_thread() else { return };
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    settle();
    while_the_metadata_thread_waits(&fixture, || {
        assert_eq!(ok(client.lookup(root, b"f")).object, file);
        ok(client.access(file, ALL_ACCESS));
        ok(client.access(root, ALL_ACCESS));
        client.getattr(file).unwrap();
    });
}

#[test]
fn names_of_a_directory_that_just_changed_wait_for_no_metadata_thread() {
    let Some((fixture, _mounted)) = with_one_metadata_thread() else { return };
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    while_the_metadata_thread_waits(&fixture, || {
        assert_eq!(ok(client.lookup(root, b"f")).object, file);
    });
}

#[test]
fn the_wait_for_a_thread_that_opens_an_object_is_in_metrics_record_and_event() {
    let mut fixture = Fixture::new();
    std::fs::write(fixture.exported("f"), "data").unwrap();
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    fixture.restart();
    let monitor = fixture.server().monitor();
    monitor.time_calls_for(60);
    let waits = |value: &str| {
        let name = format!("spillway_phase_duration_seconds_{value}");
        let sample = format!("{name}{{export=\"/export\",operation=\"other\",phase=\"queue\"}} ");
        let metrics = monitor.metrics();
        let value = metrics.lines().find_map(|line| line.strip_prefix(&sample));
        value.map_or(0.0, |value| value.parse::<f64>().unwrap())
    };
    let events = vec!["call_done".to_owned()];
    let feed = monitor.follow(&TraceRequest { events, ..TraceRequest::default() }).unwrap();
    let mut client = fixture.client();
    for _ in 0..3 {
        client.getattr(file).unwrap();
    }
    assert_eq!(waits("count"), 1.0, "{}", monitor.metrics());
    let recorded: Vec<_> = monitor.requests().iter().map(|call| call.queue_us).collect();
    let [.., Some(waited), Some(0), Some(0)] = recorded[..] else { panic!("{recorded:?}") };
    assert!(waited > 0);
    assert_eq!((waits("sum") * 1e6).floor(), f64::from(u32::try_from(waited).unwrap()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (lines, _) = runtime.block_on(feed.next());
    let queue = format!(" queue={waited}us");
    assert!(lines[0].detail.contains(&queue), "{} and not {queue}", lines[0]);
    client.getattr(root).unwrap();
    assert_eq!(waits("count"), 2.0);
}

/// The bytes that the network threads of this process have read from disks.
fn bytes_read_on_network_threads() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let read = |thread: std::path::PathBuf| {
        // A thread of another kind may end meanwhile.
        let name = std::fs::read_to_string(thread.join("comm")).ok()?;
        if !name.starts_with("spillway-net") {
            return None;
        }
        let counts = std::fs::read_to_string(thread.join("io")).unwrap();
        let line = counts.lines().find_map(|line| line.strip_prefix("read_bytes: "));
        Some(line.unwrap().parse::<u64>().unwrap())
    };
    threads.filter_map(read).sum()
}

#[test]
fn no_access_list_is_read_from_the_disk_on_a_network_thread() {
    if ran_in_own_process("warm_names::no_access_list_is_read_from_the_disk_on_a_network_thread") {
        return;
    }
    const OWNER: u32 = 1001;
    if !Path::new("/proc/self/io").exists() {
        return skip_in_ci_too("this kernel does not count what threads read");
    }
    let mut mounted = None;
    let names = ["public", "private", "owned"]
        .map(|kind| (0..11).map(|number| format!("{kind} {number}")).collect::<Vec<_>>());
    let fixture = Fixture::prepared(TRUSTING, |dir| {
        let Some(first) = Mounted::ext4_export(dir) else { return };
        let export = dir.join("export");
        set_mode(&export, 0o755);
        for (kind, modes) in names.iter().zip([(0o755, 0o644), (0o711, 0o640), (0o755, 0o600)]) {
            for name in kind {
                let (dir, file) = (export.join(name), export.join(name).join("f"));
                std::fs::create_dir(&dir).unwrap();
                // Empty: a READ of data may begin to read ahead here, which does not wait.
                std::fs::write(&file, "").unwrap();
                for (path, mode) in [(&dir, modes.0), (&file, modes.1)] {
                    chown(path, Some(OWNER), Some(5)).unwrap();
                    // Leaves no room for the list in the inode: it gets a block of its own.
                    setxattr(path, "user.small", &[b'x'; 60], XattrFlags::empty()).unwrap();
                    setxattr(path, "user.large", &[b'x'; 700], XattrFlags::empty()).unwrap();
                    assert!(set_access_list(path, mode, &[(1003, 4)]));
                }
            }
        }
        drop(first);
        mounted = Mounted::image(&dir.join("image"), &export);
    });
    if mounted.is_none() {
        return;
    }
    let identities =
        [Ids { uid: OWNER, gid: OWNER, groups: vec![] }, Ids { uid: 1002, gid: 5, groups: vec![] }];
    let mut clients = identities.map(|ids| fixture.client().becoming(ids));
    let root = clients.each_mut().map(|client| client.mnt("/export"))[0];
    settle();
    let mut visit = |name: &String| {
        for client in &mut clients {
            let Ok(dir) = client.lookup(root, name.as_bytes()) else { panic!("{name}") };
            for _ in 0..3 {
                let file = client.lookup(dir.object, b"f").map(|found| found.object);
                ok(client.access(dir.object, ALL_ACCESS));
                if let Ok(file) = file {
                    ok(client.access(file, ALL_ACCESS));
                    drop(client.read(file, 0, 4));
                }
            }
        }
    };
    // The first of each kind may read the program from the disk.
    names.iter().for_each(|names| visit(&names[0]));
    let before = bytes_read_on_network_threads();
    names.iter().flat_map(|names| &names[1..]).for_each(visit);
    assert_eq!(bytes_read_on_network_threads() - before, 0);
}
