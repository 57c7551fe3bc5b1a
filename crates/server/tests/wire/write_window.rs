//! The write-behind window from outside: its bound, its errors, and what leaves it early.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proto::nfs3::{self, *};

use crate::client::{Client, Ids, encoded, in_fragments, mode, ok, refusal, size};
use crate::durability::lying_disk;
use crate::fixture::{Fixture, Frozen, Mounted, in_modes, is_root, run_or_skip};
use crate::local_file::{LocalFile, assert_same, content, eventually};

const MIB: usize = 1 << 20;
/// The smallest window, and transfers of which it holds four.
const TINY_WINDOW: &str = "window = \"8MiB\"\nmax_transfer = \"2MiB\"\nmemory = \"64MiB\"";
const WRITE: (u32, u32, u32) = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write as u32);

/// A disk that can be made to stand still: a file system in a file of another one, which can be
/// frozen. The window's write-back then waits, as on a slow disk.
struct StoppableDisk {
    below: std::path::PathBuf,
    _mounts: [Mounted; 2],
}

impl StoppableDisk {
    fn mount(dir: &Path) -> Option<Self> {
        let below = dir.join("below");
        std::fs::create_dir(&below).unwrap();
        let (outer, inner) = (dir.join("outer"), below.join("inner"));
        let lower = Self::image(&outer, 100, &below)?;
        let upper = Self::image(&inner, 64, &dir.join("export"))?;
        Some(Self { below, _mounts: [upper, lower] })
    }

    fn image(image: &Path, mib: u64, at: &Path) -> Option<Mounted> {
        std::fs::File::create(image).unwrap().set_len(mib << 20).unwrap();
        let made =
            run_or_skip("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", image.to_str().unwrap()]);
        made.then(|| Mounted::image(image, at)).flatten()
    }

    /// Stops the disk until the guard is dropped.
    fn stop(&self) -> Option<Frozen> {
        Frozen::at(&self.below)
    }
}

fn on_stoppable_disk(body: impl Fn(&Fixture, &StoppableDisk)) {
    if !is_root() {
        return;
    }
    let config = in_modes(TINY_WINDOW, "auto", "dontcache");
    if let Some((fixture, disk)) = Fixture::over(&config, StoppableDisk::mount) {
        body(&fixture, &disk);
    }
}

#[test]
fn at_the_bound_writers_wait_and_none_fails() {
    on_stoppable_disk(|fixture, disk| {
        let (mut client, root) = fixture.mounted();
        let files: Vec<_> = (0..4).map(|i| client.create(root, &format!("f{i}"))).collect();
        let other = client.create(root, "other");
        // Nothing that a WRITE needs is to be read from the disk once it stands still.
        for file in files.iter().chain([&other]) {
            ok(client.write_stable(*file, 0, b"data", StableHow::FileSync));
        }
        let Some(stopped) = disk.stop() else { return };
        let written = AtomicUsize::new(0);
        thread::scope(|scope| {
            for &file in &files {
                let (mut client, written) = (fixture.client(), &written);
                scope.spawn(move || {
                    for offset in (0..8 * MIB).step_by(MIB) {
                        ok(client.write(file, offset as u64, &content(1, offset as u64, MIB)));
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            assert!(eventually(|| fixture.figure("window_throttled_writes") > 0), "none waits");
            let in_window = fixture.figure("window_bytes");
            assert!(in_window <= 8 << 20, "{in_window} bytes in a window of 8 MiB");
            assert!(written.load(Ordering::Relaxed) <= 8, "more was taken than the window holds");
            // Other calls, and WRITEs of other modes, are not delayed.
            assert!(client.getattr(files[0]).is_ok());
            fixture.reload(&in_modes(TINY_WINDOW, "auto", "buffered"));
            ok(client.write(other, 0, &content(2, 0, 4000)));
            drop(stopped);
        });
        for (i, &file) in files.iter().enumerate() {
            ok(client.commit(file));
            let local = LocalFile::open(&fixture.exported(&format!("f{i}")));
            assert_same(&local.content(), &content(1, 0, 8 * MIB), "after the wait");
        }
        assert!(eventually(|| fixture.figure("window_bytes") == 0));
    });
}

/// Beside a disk that can be stopped, another one, exported as `/other`.
fn on_two_disks(body: impl Fn(&Fixture, &StoppableDisk)) {
    if !is_root() {
        return;
    }
    let config = in_modes(TINY_WINDOW, "auto", "dontcache");
    let exports = config.replace("[[export]]", OTHER_EXPORT);
    let over = Fixture::over(&exports, |dir| {
        std::fs::create_dir(dir.join("other")).unwrap();
        StoppableDisk::mount(dir)
    });
    if let Some((fixture, disk)) = over {
        body(&fixture, &disk);
    }
}

#[test]
fn a_stalled_disk_does_not_delay_writes_to_another() {
    on_two_disks(a_stalled_disk_leaves_room_in_the_window);
}

fn a_stalled_disk_leaves_room_in_the_window(fixture: &Fixture, disk: &StoppableDisk) {
    let (mut client, root) = fixture.mounted();
    let other_root = client.mnt("/other");
    // One for each thread that the window has for a device.
    let stuck: Vec<_> = (0..4).map(|i| client.create(root, &format!("f{i}"))).collect();
    let other = client.create(other_root, "f");
    for file in stuck.iter().chain([&other]) {
        ok(client.write_stable(*file, 0, b"data", StableHow::FileSync));
    }
    let Some(stopped) = disk.stop() else { return };
    thread::scope(|scope| {
        for &file in &stuck {
            let mut client = fixture.client();
            scope.spawn(move || {
                for offset in (0..4 * MIB).step_by(MIB) {
                    ok(client.write(file, offset as u64, &vec![1; MIB]));
                }
            });
        }
        assert!(eventually(|| fixture.figure("window_throttled_writes") > 0), "none waits");
        // Twice as much as the window holds, by a disk that takes it.
        for offset in (0..16 * MIB).step_by(MIB) {
            ok(client.write(other, offset as u64, &content(2, offset as u64, MIB)));
        }
        ok(client.commit(other));
        drop(stopped);
    });
    let local = LocalFile::open(&fixture.path("other/f"));
    assert_same(&local.content(), &content(2, 0, 16 * MIB), "of the other disk");
}

#[test]
fn a_write_that_is_refused_does_not_wait_for_others() {
    on_stoppable_disk(|fixture, disk| {
        let (mut client, root) = fixture.mounted();
        let file = client.create(root, "f");
        ok(client.write_stable(file, 0, b"data", StableHow::FileSync));
        ok(client.setattr(file, mode(0o600)));
        let Some(stopped) = disk.stop() else { return };
        thread::scope(|scope| {
            let mut writer = fixture.client();
            scope.spawn(move || {
                for i in 0..16 {
                    ok(writer.write(file, i * MIB as u64, &vec![1; MIB]));
                }
            });
            assert!(eventually(|| fixture.figure("window_throttled_writes") > 0), "none waits");
            let mut stranger = fixture.client().becoming(Ids::user(1001));
            let refused = stranger.write(file, 0, b"x").unwrap_err();
            assert_eq!(refused.status, Status::Acces);
            assert_eq!(refused.body.after.unwrap().mode, 0o600);
            assert_eq!(refusal(client.write(file, u64::MAX, b"x")), Status::Fbig);
            drop(stopped);
        });
    });
}

#[test]
fn writes_to_a_stalled_disk_leave_memory_for_those_to_another() {
    on_two_disks(|fixture, disk| {
        let (mut client, root) = fixture.mounted();
        let other_root = client.mnt("/other");
        let [stuck, other] = [(root, "f"), (other_root, "f")].map(|(dir, name)| {
            let file = client.create(dir, name);
            ok(client.write_stable(file, 0, b"data", StableHow::FileSync));
            file
        });
        let Some(stopped) = disk.stop() else { return };
        thread::scope(|scope| {
            // More than all buffers, and than one client may have.
            for number in 0..4 {
                let source = Ipv4Addr::new(127, 0, 0, 2 + number % 2);
                let mut writer = Client::connect_from(source, fixture.address());
                scope.spawn(move || {
                    let data = vec![1; 2 * MIB];
                    let offset = |i| (u64::from(number) * 8 + i) * 2 * MIB as u64;
                    for i in 0..8 {
                        let args = WriteArgs {
                            file: stuck,
                            offset: offset(i) % (32 * MIB as u64),
                            count: 2 << 20,
                            stable: StableHow::Unstable,
                            data: &data,
                        };
                        let xid = writer.xid();
                        let call = writer.encode(xid, WRITE, &encoded(&args));
                        writer.send_record(&call);
                    }
                    for _ in 0..8 {
                        writer.receive_record().expect("an answer when the disk goes on");
                    }
                });
            }
            assert!(eventually(|| fixture.figure("buffer_waiters") > 2), "none waits for memory");
            for offset in (0..8 * MIB).step_by(2 * MIB) {
                let data = content(2, offset as u64, 2 * MIB);
                ok(client.write(other, offset as u64, &data));
            }
            assert_eq!(client.read(other, 0, 2 << 20).unwrap().data, content(2, 0, 2 * MIB));
            drop(stopped);
        });
    });
}

/// In front of an export, another one on another device, in the same modes.
const OTHER_EXPORT: &str = r#"
    [[export]]
    path = "$DIR/other"
    name = "/other"
    squash = "none"
    io_cache_write = "dontcache"
    [[export]]"#;

/// A call of WRITE as it goes over the wire.
fn write_call(client: &mut Client, file: FileHandle, offset: u64, data: &[u8]) -> Vec<u8> {
    let (count, stable) = (u32::try_from(data.len()).unwrap(), StableHow::Unstable);
    let args = encoded(&WriteArgs { file, offset, count, stable, data });
    let xid = client.xid();
    in_fragments(&client.encode(xid, WRITE, &args), &[])
}

#[test]
fn a_connection_that_dies_while_its_write_waits_leaves_nothing() {
    on_stoppable_disk(|fixture, disk| {
        let (mut client, root) = fixture.mounted();
        let files: Vec<_> = (0..6).map(|i| client.create(root, &format!("f{i}"))).collect();
        let Some(stopped) = disk.stop() else { return };
        // Each sends more than the window holds, and goes away when all wait.
        let data = vec![1; MIB];
        let mut senders = Vec::new();
        for &file in &files {
            let mut sender = fixture.client();
            let calls: Vec<u8> =
                (0..3).flat_map(|i| write_call(&mut sender, file, i * MIB as u64, &data)).collect();
            let mut stream = sender.stream.try_clone().unwrap();
            let sent = thread::spawn(move || {
                // The server stops reading when it is full.
                let _ = std::io::Write::write_all(&mut stream, &calls);
            });
            senders.push((sender, sent));
        }
        let throttled = || fixture.figure("window_throttled_writes");
        assert!(eventually(|| throttled() >= 3), "{}", throttled());
        for (sender, sent) in senders {
            sender.stream.shutdown(std::net::Shutdown::Both).unwrap();
            sent.join().unwrap();
        }
        thread::sleep(Duration::from_millis(100));
        drop(stopped);
        // Room, turns and buffers are free again.
        for &file in &files {
            assert_eq!(ok(client.write(file, 0, &vec![2; 2 * MIB])).count as usize, 2 * MIB);
            ok(client.commit(file));
        }
        let free = eventually(|| {
            fixture.figure("window_bytes") == 0 && fixture.figure("buffers_in_use_bytes") == 0
        });
        let left = ["window_bytes", "buffers_in_use_bytes"].map(|name| fixture.figure(name));
        assert!(free, "{left:?} are left");
    });
}

#[test]
fn a_direct_write_of_whole_pages_does_not_wait_for_the_window() {
    on_stoppable_disk(|fixture, disk| {
        let (mut client, root) = fixture.mounted();
        let (file, other) = (client.create(root, "f"), client.create(root, "g"));
        ok(client.write(other, 0, &vec![1; MIB]));
        ok(client.commit(other));
        let Some(stopped) = disk.stop() else { return };
        thread::scope(|scope| {
            let mut writer = fixture.client();
            scope.spawn(move || {
                for i in 0..16 {
                    ok(writer.write(file, i * MIB as u64, &vec![1; MIB]));
                }
            });
            let throttled = || fixture.figure("window_throttled_writes");
            assert!(eventually(|| throttled() >= 1));
            fixture.reload(&in_modes(TINY_WINDOW, "auto", "direct"));
            let mut direct = fixture.client();
            let before = throttled();
            scope.spawn(move || ok(direct.write(other, 0, &vec![2; MIB])));
            // It stands at the disk, not in the queue for the window.
            thread::sleep(Duration::from_millis(200));
            let waits = throttled() - before;
            drop(stopped);
            // The writer before it may have begun to wait anew.
            assert_eq!(waits, 0, "a WRITE waits for room that it does not need");
        });
    });
}

#[test]
fn truncated_data_leaves_the_window_at_once() {
    on_stoppable_disk(|fixture, disk| {
        let (mut client, root) = fixture.mounted();
        let file = client.create(root, "f");
        // Its write-back has not begun, so that the cut need not wait for it: it is less than a
        // run, and not a second old, if the machine has not stood still.
        let stopped = loop {
            let Some(stopped) = disk.stop() else { return };
            let began = Instant::now();
            ok(client.write(file, 0, &content(1, 0, 500_000)));
            assert!(fixture.figure("window_bytes") >= 500_000);
            if began.elapsed() < Duration::from_millis(500) {
                break stopped;
            }
            drop(stopped);
            assert!(eventually(|| fixture.figure("window_bytes") == 0));
        };
        ok(client.setattr(file, size(5000)));
        let left = fixture.figure("window_bytes");
        drop(stopped);
        assert_eq!(left, 8192, "two pages are left of the file");
        ok(client.commit(file));
        let local = LocalFile::open(&fixture.exported("f"));
        assert_same(&local.content(), &content(1, 0, 5000), "after the cut");
    });
}

#[test]
fn errors_of_the_window_are_reported_once_and_change_the_verifier() {
    if !is_root() {
        return;
    }
    for (mode, len, commits) in [
        ("dontcache", MIB, true),
        ("dontcache", 47_008, false),
        ("direct", 200_000, true),
        ("direct", 600_007, true),
    ] {
        let what = format!("{len} in {mode}");
        let mut mounts = None;
        let config = in_modes("", "auto", mode);
        let fixture = Fixture::prepared(&config, |dir| mounts = lying_disk(dir));
        let Some(_mounts) = mounts else { return };
        let (mut client, root) = fixture.mounted();
        let file = client.create(root, "f");
        let mut verifiers = Vec::new();
        let mut refused = 0;
        for offset in (0..4 * MIB).step_by(len) {
            // A direct WRITE reaches the disk at once.
            match client.write(file, offset as u64, &vec![7; len]) {
                Ok(done) => verifiers.push(done.verifier),
                Err(failure) => {
                    assert!(mode == "direct" && len > 500_000, "{what}: {failure:?}");
                    assert!(matches!(failure.status, Status::Io | Status::Nospc), "{what}");
                    refused += 1;
                }
            }
        }
        let verifier = verifiers[0];
        assert!(verifiers.iter().all(|other| *other == verifier), "{what}: nothing was flushed");
        // The window has written back by itself, and failed.
        let failed = eventually(|| fixture.figure("window_errors") > 0);
        assert!(failed || refused > 0, "{what}");
        // And more comes, of which the flush finds out.
        let more = client.write(file, 4 << 20, &[8; 100_000]);
        let status = if commits {
            ok(more);
            refusal(client.commit(file))
        } else {
            refusal(client.write_stable(file, 5 << 20, &[8; 5000], StableHow::FileSync))
        };
        assert!(matches!(status, Status::Io | Status::Nospc), "{what}: {status:?}");
        let done = ok(client.commit(file));
        assert_ne!(done.verifier, verifier, "{what}");
        assert_eq!(ok(client.commit(file)).verifier, done.verifier, "{what}: reported twice");
    }
}
