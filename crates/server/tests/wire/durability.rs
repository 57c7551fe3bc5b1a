//! The promises of a successful WRITE or COMMIT, and the replies when the disk fails.

use std::path::Path;
use std::time::Duration;

use proto::nfs3::*;

use crate::client::{Client, mode, ok, refusal};
use crate::fixture::{Fixture, Mounted, in_modes, is_root, run, run_or_skip, set_mode};
use crate::local_file::{MODES, eventually};
use crate::own_process::ran_in_own_process;
use crate::programs::{PROGRAM, can_be_executed, is_open_for_writing};
use crate::skip::skip_in_ci_too;

const STABLE: [StableHow; 3] = [StableHow::Unstable, StableHow::DataSync, StableHow::FileSync];

#[test]
fn a_write_reports_its_stability() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    for stable in STABLE {
        let done = ok(client.write_stable(file, 0, b"data", stable));
        assert!(done.committed >= stable, "{:?} for {stable:?}", done.committed);
        assert_eq!(done.count, 4);
    }
}

#[test]
fn each_write_is_file_sync_by_file_sync_writes_and_a_reload_changes_the_next_one() {
    for mode in MODES {
        let asked = in_modes("", "buffered", mode);
        let promoted = format!("{asked}\n    file_sync_writes = true");
        let fixture = Fixture::with(&promoted);
        let (mut client, root) = fixture.mounted();
        let file = client.create(root, "f");
        let data = vec![7; 1 << 20];
        let mut committed = |config: &str, len: usize| {
            fixture.reload(config);
            STABLE.map(|stable| {
                let done = ok(client.write_stable(file, 4096, &data[..len], stable));
                assert_eq!(done.count as usize, len, "{mode}");
                assert_eq!(ok(client.commit(file)).verifier, done.verifier, "{mode}");
                done.committed
            })
        };
        for len in [0, 4, data.len()] {
            assert_eq!(committed(&promoted, len), [StableHow::FileSync; 3], "{mode}, {len}");
            assert_eq!(committed(&asked, len), STABLE, "{mode}, {len}");
        }
    }
}

#[test]
fn the_verifier_is_one_for_writes_and_commits_and_another_after_a_restart() {
    let mut fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let (file, other) = (client.create(root, "f"), client.create(root, "g"));
    let verifier = ok(client.write(file, 0, b"data")).verifier;
    for stable in STABLE {
        assert_eq!(ok(client.write_stable(file, 4, b"more", stable)).verifier, verifier);
        assert_eq!(ok(client.write_stable(other, 4, b"more", stable)).verifier, verifier);
    }
    assert_eq!(ok(client.commit(file)).verifier, verifier);
    assert_eq!(ok(client.commit(other)).verifier, verifier);
    assert_eq!(ok(client.commit(other)).verifier, verifier, "with nothing to flush");
    ok(client.write(file, 0, b"unstable"));
    fixture.restart();
    let mut client = fixture.client();
    let after = ok(client.commit(file)).verifier;
    assert_ne!(after, verifier, "the client must send its unstable data again");
    assert_eq!(client.read(file, 0, 8).unwrap().data, b"unstable", "although none was lost");
    assert_eq!(ok(client.write(file, 0, b"x")).verifier, after);
}

/// Without privileges an object without read permission cannot be opened; this test runs as a user
/// too.
#[test]
fn object_that_cannot_be_opened_is_flushed_and_the_verifier_stays() {
    let mut fixture =
        Fixture::with("[[export]]\npath = \"$DIR/export\"\nname = \"/export\"\nsquash = \"none\"");
    let (mut client, root) = fixture.mounted();
    client.create(root, "f");
    let witness = client.create(root, "witness");
    client.mkdir(root, "d");
    // The server has none of them open any more.
    fixture.restart();
    let mut client = fixture.client();
    let verifier = ok(client.write(witness, 0, b"unstable")).verifier;
    let file = client.find(root, "f");
    ok(client.setattr(file, mode(0)));
    let directory = client.find(root, "d");
    ok(client.setattr(directory, mode(0o300)));
    client.create(directory, "in-d");
    assert_eq!(ok(client.commit(witness)).verifier, verifier);
    ok(client.setattr(directory, mode(0o700)));
}

/// A client checks the mode when it opens a file. Without privileges the server cannot open the
/// file after the chmod; this test runs as a user too.
#[test]
fn file_that_was_not_written_for_long_is_written_after_a_change_of_its_mode() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let (file, path) = (client.create(root, "f"), fixture.exported("f"));
    ok(client.setattr(file, mode(0o700)));
    ok(client.write(file, 0, PROGRAM));
    let is_closed = eventually(|| {
        client.getattr(file).unwrap();
        can_be_executed(&path)
    });
    assert!(is_closed, "it is open for writing");
    ok(client.setattr(file, mode(0o500)));
    ok(client.write(file, PROGRAM.len() as u64, b"true\n"));
    for _ in 0..80 {
        client.getattr(file).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    ok(client.write(file, PROGRAM.len() as u64, b"exit\n"));
    assert_eq!(std::fs::read(path).unwrap(), [PROGRAM, b"exit\n"].concat());
}

#[test]
fn commit_takes_any_range() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    ok(client.write(file, 0, b"data"));
    for (offset, count) in [(0, 0), (0, 4), (1, 2), (1 << 40, 10), (u64::MAX, u32::MAX)] {
        let reply: CommitReply =
            client.call(Procedure::Commit, &CommitArgs { file, offset, count });
        assert!(ok(reply).wcc.after.is_some(), "{count} at {offset}");
    }
}

#[test]
fn a_full_disk_shortens_a_write_and_then_refuses() {
    if !is_root() {
        return;
    }
    let over = Fixture::over(
        "[[export]]\npath = \"$DIR/export\"\nname = \"/export\"\nsquash = \"none\"",
        |dir| Mounted::tmpfs_export(dir, 512),
    );
    let Some((fixture, _mount)) = over else { return };
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let data: Vec<u8> = (0..1 << 20).map(|i: u32| i.to_le_bytes()[1]).collect();
    let count = usize::try_from(ok(client.write(file, 0, &data)).count).unwrap();
    assert!((1..data.len()).contains(&count), "{count} bytes fit");
    assert_eq!(client.read(file, 0, 1 << 20).unwrap().data, data[..count]);
    for stable in STABLE {
        let rest = client.write_stable(file, count as u64, &data[count..], stable);
        let failure = rest.unwrap_err();
        assert_eq!(failure.status, Status::Nospc);
        assert_eq!(failure.body.after.unwrap().size, count as u64);
    }
    // Existing data stays writable, and freed space is available.
    ok(client.write(file, 0, b"again"));
    ok(client.setattr(file, crate::client::size(4096)));
    assert_eq!(ok(client.write(file, 4096, &data[..8192])).count, 8192);
}

/// Makes a file system whose disk takes about a MiB of what seems to be 32: what it has taken into
/// memory, it cannot write back.
pub(crate) fn lying_disk(dir: &Path) -> Option<(Mounted, Mounted)> {
    let backing = dir.join("backing");
    std::fs::create_dir(&backing).unwrap();
    let tmpfs = Mounted::tmpfs(&backing, 1536)?;
    let image = backing.join("image");
    std::fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
    let options = ["-q", "-F", "-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1"];
    let made =
        run_or_skip("mkfs.ext4", &[&options[..], &["-N", "64", image.to_str().unwrap()]].concat());
    let mounted = made.then(|| Mounted::image(&image, &dir.join("export"))).flatten()?;
    Some((mounted, tmpfs))
}

fn on_lying_disk(body: impl FnOnce(&Fixture, Client, FileHandle)) {
    on_lying_disk_in("auto", body);
}

/// As [`on_lying_disk`], with a mode for WRITEs.
fn on_lying_disk_in(mode: &str, body: impl FnOnce(&Fixture, Client, FileHandle)) {
    if !is_root() {
        return;
    }
    let mut mounts = None;
    let config = twice_exported(&format!("io_cache_write = \"{mode}\""));
    let fixture = Fixture::prepared(&config, |dir| mounts = lying_disk(dir));
    let Some(_mounts) = mounts else { return };
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    body(&fixture, client, file);
}

/// Two exports of one directory with these settings.
fn twice_exported(settings: &str) -> String {
    let export = |name| {
        format!(
            "[[export]]\npath = \"$DIR/export\"\nname = \"{name}\"\nsquash = \"none\"\n\
             sync = false\n{settings}\n"
        )
    };
    ["/export", "/second"].map(export).concat()
}

/// Fills the kernel's memory with four MiB of the file.
fn write_much(client: &mut Client, file: FileHandle) -> WriteVerifier {
    let data = vec![7; 1 << 20];
    let verifiers: Vec<_> =
        (0..4).map(|i| ok(client.write(file, i << 20, &data)).verifier).collect();
    assert!(verifiers.iter().all(|verifier| *verifier == verifiers[0]));
    verifiers[0]
}

#[test]
fn a_failed_commit_is_reported_once_and_changes_the_verifier() {
    on_lying_disk(|_, mut client, file| {
        let verifier = write_much(&mut client, file);
        let status = refusal(client.commit(file));
        assert!(matches!(status, Status::Io | Status::Nospc), "{status:?}");
        // The kernel has dropped the data that it could not write. The verifier reveals it.
        assert_ne!(ok(client.commit(file)).verifier, verifier);
    });
}

#[test]
fn a_failed_stable_write_is_an_error_and_changes_the_verifier() {
    on_lying_disk(|_, mut client, file| {
        let verifier = write_much(&mut client, file);
        let reply = client.write_stable(file, 4 << 20, &[1; 1 << 20], StableHow::FileSync);
        let status = refusal(reply);
        assert!(matches!(status, Status::Io | Status::Nospc), "{status:?}");
        assert_ne!(ok(client.commit(file)).verifier, verifier);
    });
}

#[test]
fn an_unstable_write_is_flushed_before_its_reply_by_file_sync_writes() {
    // In `direct` a WRITE of 1 MiB goes past the kernel's memory and fails without a flush.
    for mode in MODES.into_iter().filter(|mode| *mode != "direct") {
        on_lying_disk_in(mode, |fixture, mut client, file| {
            let config = format!("io_cache_write = \"{mode}\"\nfile_sync_writes = true");
            fixture.reload(&twice_exported(&config));
            let data = vec![7; 1 << 20];
            let mut write = |number: u64| client.write(file, number << 20, &data);
            // Without the flush the kernel takes all of them.
            let failed = (0..4).find_map(|number| write(number).err());
            let status = failed.map(|failed| failed.status);
            assert!(matches!(status, Some(Status::Io | Status::Nospc)), "{mode}: {status:?}");
        });
    }
}

#[test]
fn a_flush_that_failed_for_one_stable_write_fails_for_all_that_it_covered() {
    on_lying_disk(|fixture, mut client, file| {
        write_much(&mut client, file);
        let together = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for i in 0..8 {
                let (mut client, together) = (fixture.client(), &together);
                scope.spawn(move || {
                    together.wait();
                    let offset = (4 << 20) + (i << 16);
                    let reply = client.write_stable(file, offset, &[1; 1 << 16], STABLE[2]);
                    let status = refusal(reply);
                    assert!(matches!(status, Status::Io | Status::Nospc), "{status:?}");
                });
            }
        });
    });
}

#[test]
fn a_flush_that_fails_on_its_own_changes_the_verifier() {
    on_lying_disk(|fixture, mut client, file| {
        let verifier = write_much(&mut client, file);
        // Write-back by someone else meets the error first; the server's COMMIT must still fail or
        // show another verifier.
        let local = std::fs::File::open(fixture.exported("f")).unwrap();
        assert!(local.sync_all().is_err(), "the disk is full");
        match client.commit(file) {
            Err(failure) => assert!(matches!(failure.status, Status::Io | Status::Nospc)),
            Ok(done) => assert_ne!(done.verifier, verifier),
        }
        assert_ne!(ok(client.commit(file)).verifier, verifier);
    });
}

#[test]
fn a_commit_through_another_export_hides_no_failed_flush() {
    on_lying_disk(|fixture, mut client, file| {
        let verifier = write_much(&mut client, file);
        let local = std::fs::File::open(fixture.exported("f")).unwrap();
        assert!(local.sync_all().is_err(), "the disk is full");
        let mut other = fixture.client();
        let root = other.mnt("/second");
        let found = other.find(root, "f");
        for result in [other.commit(found), client.commit(file)] {
            match result {
                Err(failure) => assert!(matches!(failure.status, Status::Io | Status::Nospc)),
                Ok(done) => assert_ne!(done.verifier, verifier),
            }
        }
    });
}

#[test]
fn a_file_closed_for_writing_hides_no_failed_flush() {
    on_lying_disk(|fixture, mut client, file| {
        let verifier = write_much(&mut client, file);
        ok(client.setattr(file, mode(0o700)));
        // The kernel reports the error to the descriptors that are open now, and to no later one.
        let path = fixture.exported("f");
        let local = std::fs::File::open(&path).unwrap();
        assert!(local.sync_all().is_err(), "the disk is full");
        assert!(is_open_for_writing(&path));
        let is_closed = eventually(|| {
            client.getattr(file).unwrap();
            !is_open_for_writing(&path)
        });
        assert!(is_closed);
        match client.commit(file) {
            Err(failure) => assert!(matches!(failure.status, Status::Io | Status::Nospc)),
            Ok(done) => assert_ne!(done.verifier, verifier),
        }
        assert_ne!(ok(client.commit(file)).verifier, verifier);
    });
}

#[test]
fn an_error_reported_by_a_file_closed_for_writing_is_not_reported_again() {
    on_lying_disk(|fixture, mut client, _| {
        let path = fixture.exported("read");
        std::fs::write(&path, "data").unwrap();
        set_mode(&path, 0o700);
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        let root = client.mnt("/export");
        let file = client.find(root, "read");
        // Opened before the error, and not by the descriptor for writing.
        assert_eq!(client.read(file, 0, 4).unwrap().data, b"data");
        write_much(&mut client, file);
        let status = refusal(client.commit(file));
        assert!(matches!(status, Status::Io | Status::Nospc), "{status:?}");
        let verifier = ok(client.commit(file)).verifier;
        let is_closed = eventually(|| {
            client.getattr(file).unwrap();
            !is_open_for_writing(&path)
        });
        assert!(is_closed);
        ok(client.setattr(file, mode(0o600)));
        assert_eq!(ok(client.commit(file)).verifier, verifier);
    });
}

#[test]
fn an_error_reported_through_one_export_is_not_reported_again_through_another() {
    send_again_through_another_export("buffered");
}

#[test]
fn an_error_reported_through_one_export_is_not_met_again_by_the_window_of_another() {
    send_again_through_another_export("dontcache");
}

/// Has a COMMIT fail through one export, and sends the data again through another, whose descriptor
/// is the only one in the end.
fn send_again_through_another_export(mode: &str) {
    on_lying_disk_in(mode, |fixture, mut client, file| {
        let block = [7; 1 << 16];
        // The disk has room for what it has taken.
        ok(client.write(file, 0, &block));
        ok(client.commit(file));
        let mut other = fixture.client();
        let root = other.mnt("/second");
        let found = other.find(root, "f");
        let before = ok(other.write(found, 0, &block)).verifier;
        write_much(&mut client, file);
        let path = fixture.exported("f");
        assert_eq!(writers_of(&path), 2);
        refusal(client.commit(file));
        let verifier = ok(other.commit(found)).verifier;
        assert_ne!(verifier, before);
        let is_closed = eventually(|| {
            assert_eq!(ok(other.write(found, 0, &block)).verifier, verifier);
            assert!(eventually(|| fixture.figure("window_bytes") == 0));
            assert_eq!(ok(other.commit(found)).verifier, verifier);
            writers_of(&path) == 1
        });
        assert!(is_closed, "the export that is not written keeps its descriptor");
        ok(other.write(found, 0, &block));
        assert_eq!(ok(other.commit(found)).verifier, verifier);
    });
}

/// Descriptors of this process that are open for writing a file.
fn writers_of(path: &Path) -> usize {
    let is_writer = |fd: &std::fs::DirEntry| {
        let info = Path::new("/proc/self/fdinfo").join(fd.file_name());
        let info = std::fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        std::fs::read_link(fd.path()).is_ok_and(|of| of == path)
            && flags.is_some_and(|flags| !flags.ends_with('0'))
    };
    std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(is_writer).count()
}

/// An export of the directory `export` that trusts its clients, with a mode for WRITEs.
fn trusting(mode: &str) -> String {
    format!(
        "[[export]]\npath = \"$DIR/export\"\nname = \"/export\"\nsquash = \"none\"\n\
         sync = false\nio_cache_write = \"{mode}\""
    )
}

/// XFS gives the blocks of a file back when the last descriptor of it is closed. A program that
/// another test starts has all descriptors of this process for a moment, so this has its own.
#[test]
fn space_of_a_removed_file_is_free_at_once() {
    if ran_in_own_process("durability::space_of_a_removed_file_is_free_at_once") {
        return;
    }
    if !is_root() {
        return;
    }
    for (mode, replaces) in [("dontcache", false), ("direct", true), ("auto", false)] {
        let mut mount = None;
        let fixture = Fixture::prepared(&trusting(mode), |dir| mount = nearly_full_xfs(dir));
        let Some(_mount) = mount else { return };
        let (mut client, root) = fixture.mounted();
        let data = vec![7; 1 << 20];
        for round in 0..5 {
            let file = client.create(root, "f");
            for block in 0..BLOCKS_WRITTEN {
                let written = client.write(file, block << 20, &data);
                let what = format!("block {block} of round {round} in {mode}");
                assert_eq!(
                    written.unwrap_or_else(|failed| panic!("{what}: {failed:?}")).count,
                    1 << 20,
                    "{what}"
                );
            }
            if replaces {
                client.create(root, "empty");
                ok(client.rename((root, b"empty"), (root, b"f")));
            }
            ok(client.remove(root, b"f"));
        }
    }
}

#[test]
fn space_of_a_file_that_a_local_program_removes_is_free_at_once() {
    if ran_in_own_process(
        "durability::space_of_a_file_that_a_local_program_removes_is_free_at_once",
    ) {
        return;
    }
    if !is_root() {
        return;
    }
    for mode in ["dontcache", "direct", "auto"] {
        let mut mount = None;
        let fixture = Fixture::prepared(&trusting(mode), |dir| mount = nearly_full_xfs(dir));
        let Some(_mount) = mount else { return };
        write_and_remove_locally(&fixture, mode);
    }
}

/// Writes files, and has a local program remove each before the next.
fn write_and_remove_locally(fixture: &Fixture, mode: &str) {
    let (mut client, root) = fixture.mounted();
    let data = vec![7; 1 << 20];
    for round in 0..5 {
        let name = format!("f{round}");
        let file = client.create(root, &name);
        let mut offset = 0;
        while offset < BLOCKS_WRITTEN << 20 {
            let written = client.write(file, offset, &data);
            let what = format!("{offset} of round {round} in {mode}");
            offset +=
                u64::from(written.unwrap_or_else(|failed| panic!("{what}: {failed:?}")).count);
        }
        ok(client.commit(file));
        std::fs::remove_file(fixture.exported(&name)).unwrap();
    }
}

#[test]
fn quota_of_a_file_that_a_local_program_removes_is_free_at_once() {
    if ran_in_own_process(
        "durability::quota_of_a_file_that_a_local_program_removes_is_free_at_once",
    ) {
        return;
    }
    if !is_root() {
        return;
    }
    for mode in ["dontcache", "direct", "auto"] {
        let mut mount = None;
        let fixture = Fixture::prepared(&trusting(mode), |dir| mount = limited_btrfs(dir));
        let Some(_mount) = mount else { return };
        write_and_remove_locally(&fixture, mode);
    }
}

/// A file system with much space, and a quota for not twice [`BLOCKS_WRITTEN`].
fn limited_btrfs(dir: &Path) -> Option<Mounted> {
    let (image, export) = (dir.join("image"), dir.join("export"));
    std::fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
    let at = export.to_str().unwrap();
    let limit = format!("{}m", BLOCKS_WRITTEN + BLOCKS_WRITTEN / 2);
    let run = |program, args: &[&str]| run(program, args).map_err(skip_in_ci_too).ok();
    run("mkfs.btrfs", &["-q", image.to_str().unwrap()])?;
    let mount = Mounted::image(&image, &export)?;
    set_mode(&export, 0o777);
    run("btrfs", &["quota", "enable", at])?;
    run("btrfs", &["qgroup", "limit", &limit, at])?;
    Some(mount)
}

#[test]
fn an_inode_that_a_local_program_removes_is_free_at_once() {
    if ran_in_own_process("durability::an_inode_that_a_local_program_removes_is_free_at_once") {
        return;
    }
    let mut mount = None;
    let fixture = Fixture::prepared(&trusting("auto"), |dir| {
        mount = Mounted::tmpfs_of_inodes(&dir.join("export"), 8);
    });
    let Some(_mount) = mount else { return };
    let (mut client, root) = fixture.mounted();
    let create = |number: usize| std::fs::write(fixture.exported(&format!("f{number}")), b"data");
    let count = (0..8).take_while(|&number| create(number).is_ok()).count();
    assert!((2..8).contains(&count), "{count}");
    for number in 0..count {
        // The server opens the file.
        let file = client.find(root, &format!("f{number}"));
        client.read(file, 0, 4).unwrap();
    }
    // The READ of the last one may hold it still.
    for number in 0..count - 1 {
        std::fs::remove_file(fixture.exported(&format!("f{number}"))).unwrap();
        client.create(root, &format!("g{number}"));
    }
}

/// MiB that are written, of which `nearly_full_xfs` holds not twice as many. No multiple of the
/// window's runs, so that the end of the file stays in the window for a while.
const BLOCKS_WRITTEN: u64 = 14;

fn nearly_full_xfs(dir: &Path) -> Option<Mounted> {
    let (image, export) = (dir.join("image"), dir.join("export"));
    std::fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
    let made = run_or_skip("mkfs.xfs", &["-q", image.to_str().unwrap()]);
    let mount = made.then(|| Mounted::image(&image, &export)).flatten()?;
    set_mode(&export, 0o777);
    let free = rustix::fs::statvfs(&export).unwrap();
    let free_mib = (free.f_bavail * free.f_frsize) >> 20;
    let filler = std::fs::File::create(export.join("filler")).unwrap();
    let taken = (free_mib - BLOCKS_WRITTEN - BLOCKS_WRITTEN / 2) << 20;
    rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, taken).unwrap();
    Some(mount)
}
