//! Replies during a change: data that a client caches under an object's final stamp must be the
//! object's final data. A stamp is size, mtime and ctime, by which clients detect a change.

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use proto::nfs3::*;

use crate::client::{Client, mode, ok, size};
use crate::fixture::{Fixture, Mounted, in_modes, is_root, run_or_skip, set_mode};

const MIB: usize = 1024 * 1024;
/// Bytes of each WRITE, the longest that the server takes.
const WRITE_BYTES: usize = 4 * MIB;
/// Bytes at the end of a WRITE that readers check: they change last.
const SAMPLE_BYTES: u32 = 4096;
const LARGE_TRANSFERS: &str = "max_transfer = \"4MiB\"";

/// A stamp from a reply, and what was read after it was taken.
type Seen = (WccAttributes, u8);

fn stamp(attributes: &Attributes) -> WccAttributes {
    WccAttributes::from(attributes)
}

/// A file `f` that writers change, each a part of its own, and a reader checks.
struct Watched<'a> {
    fixture: &'a Fixture,
    root: FileHandle,
    file: FileHandle,
    writers: usize,
}

impl<'a> Watched<'a> {
    fn new(fixture: &'a Fixture, writers: usize) -> Self {
        let (mut client, root) = fixture.mounted();
        let file = client.create(root, "f");
        for part in 0..writers {
            ok(client.write(file, (part * WRITE_BYTES) as u64, &vec![0; WRITE_BYTES]));
        }
        Self { fixture, root, file, writers }
    }

    /// The last byte of a part.
    fn sample(&self, client: &mut Client, part: usize) -> (Option<Attributes>, u8) {
        let offset = (part + 1) * WRITE_BYTES - SAMPLE_BYTES as usize;
        let read = client.read(self.file, offset as u64, SAMPLE_BYTES).unwrap();
        assert_eq!(read.data.len(), SAMPLE_BYTES as usize);
        (read.attributes, *read.data.last().unwrap())
    }

    /// Each way to get attributes of the file once, with a READ of `part` after it.
    fn look(&self, client: &mut Client, part: usize) -> Vec<Seen> {
        let mut stamps = vec![stamp(&client.getattr(self.file).unwrap())];
        let mut seen = Vec::new();
        let (attributes, byte) = self.sample(client, part);
        seen.extend(attributes.map(|attributes| (stamp(&attributes), byte)));
        stamps.extend(ok(client.access(self.file, 1)).attributes.as_ref().map(stamp));
        stamps.extend(ok(client.lookup(self.root, b"f")).object_attributes.as_ref().map(stamp));
        let listed = client.list_plus(self.root);
        let entry = listed.iter().find(|entry| entry.name == b"f").unwrap();
        stamps.extend(entry.attributes.as_ref().map(stamp));
        let (_, byte) = self.sample(client, part);
        seen.extend(stamps.into_iter().map(|stamp| (stamp, byte)));
        seen
    }

    /// All writers write `value` at once, and a reader checks until they have ended.
    fn round(&self, value: u8) {
        let is_over = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..self.writers)
                .map(|part| {
                    let data = vec![value; WRITE_BYTES];
                    let offset = (part * WRITE_BYTES) as u64;
                    let mut client = self.fixture.client();
                    scope.spawn(move || ok(client.write(self.file, offset, &data)))
                })
                .collect();
            let readers: Vec<_> = (0..self.writers)
                .map(|part| {
                    let mut client = self.fixture.client();
                    let is_over = &is_over;
                    scope.spawn(move || {
                        let mut seen = Vec::new();
                        while !is_over.load(Ordering::Acquire) {
                            seen.extend(self.look(&mut client, part));
                        }
                        seen
                    })
                })
                .collect();
            let written: Vec<_> =
                writers.into_iter().map(|writer| writer.join().unwrap()).collect();
            is_over.store(true, Ordering::Release);
            drop(written);
            readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
        });
        let mut client = self.fixture.client();
        let last = stamp(&client.getattr(self.file).unwrap());
        for (stamp, byte) in seen {
            assert!(stamp != last || byte == value, "{byte} under the stamp of {value}");
        }
    }
}

fn no_reply_has_the_last_stamp_with_older_data(fixture: &Fixture, writers: usize, rounds: u8) {
    let watched = Watched::new(fixture, writers);
    (1..=rounds).for_each(|value| watched.round(value));
}

#[test]
fn replies_during_a_write_through_the_page_cache_do_not_have_its_stamp() {
    for mode in ["auto", "buffered"] {
        let fixture = Fixture::in_modes(LARGE_TRANSFERS, mode, mode);
        no_reply_has_the_last_stamp_with_older_data(&fixture, 1, 25);
    }
}

#[test]
fn replies_during_writes_past_the_page_cache_do_not_have_their_stamp() {
    let fixture = Fixture::in_modes(LARGE_TRANSFERS, "direct", "direct");
    no_reply_has_the_last_stamp_with_older_data(&fixture, 2, 12);
}

/// Mounts an empty XFS over the exported directory.
fn mount_xfs(dir: &Path) -> Option<Mounted> {
    let (image, export) = (dir.join("xfs"), dir.join("export"));
    std::fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
    if !run_or_skip("mkfs.xfs", &["-q", image.to_str().unwrap()]) {
        return None;
    }
    let mounted = Mounted::image(&image, &export)?;
    set_mode(&export, 0o777);
    Some(mounted)
}

#[test]
fn replies_during_writes_on_xfs_do_not_have_their_stamp() {
    if !is_root() {
        return;
    }
    for (mode, writers) in [("auto", 1), ("direct", 2)] {
        let config = in_modes(LARGE_TRANSFERS, mode, mode);
        let Some((fixture, _mounted)) = Fixture::over(&config, mount_xfs) else { return };
        no_reply_has_the_last_stamp_with_older_data(&fixture, writers, 8);
    }
}

/// A local process cuts and extends a file while WRITEs to another part of it are in progress.
fn a_local_length_is_reported_at_once(config: &str) {
    const ROUNDS: u64 = 150;
    let fixture = Fixture::with(config);
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let local = std::fs::File::options().write(true).open(fixture.exported("f")).unwrap();
    local.set_len(2 * WRITE_BYTES as u64).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut writer = fixture.client();
                while !is_over.load(Ordering::Acquire) {
                    ok(writer.write(file, 0, &vec![1; WRITE_BYTES]));
                }
            });
        }
        let reported: Vec<_> = (0..ROUNDS)
            .map(|round| {
                let len = 2 * WRITE_BYTES as u64 + ROUNDS - round;
                local.set_len(len).unwrap();
                (len, client.getattr(file).unwrap().size)
            })
            .collect();
        is_over.store(true, Ordering::Release);
        for (len, reported) in reported {
            assert_eq!(reported, len);
        }
    });
}

#[test]
fn a_local_length_is_reported_at_once_during_writes() {
    for mode in ["auto", "buffered", "direct"] {
        a_local_length_is_reported_at_once(&in_modes(LARGE_TRANSFERS, mode, mode));
    }
}

/// A client that keeps what it has cached as long as RFC 1813 §2.6 lets it.
struct CachingClient {
    client: Client,
    known: WccAttributes,
    /// A byte of each part.
    bytes: [u8; 2],
}

impl CachingClient {
    fn new(fixture: &Fixture, file: FileHandle, part_bytes: usize) -> Self {
        let mut client = fixture.client();
        let (known, bytes) = Self::read(&mut client, file, part_bytes);
        Self { client, known, bytes }
    }

    fn read(client: &mut Client, file: FileHandle, part_bytes: usize) -> (WccAttributes, [u8; 2]) {
        let first = stamp(&client.getattr(file).unwrap());
        let bytes = [1, 2].map(|parts| {
            let last = (parts * part_bytes - 1) as u64;
            client.read(file, last, 1).unwrap().data[0]
        });
        (first, bytes)
    }

    fn write(&mut self, file: FileHandle, part: usize, data: &[u8]) {
        let written = ok(self.client.write(file, (part * data.len()) as u64, data));
        match (written.wcc.before, written.wcc.after) {
            (Some(before), Some(after)) if before == self.known => {
                self.known = stamp(&after);
                self.bytes[part] = data[0];
            }
            _ => (self.known, self.bytes) = Self::read(&mut self.client, file, data.len()),
        }
    }
}

/// Two clients write one half of a file each, at once. A client with the last stamp then has the
/// last data.
fn a_client_that_trusts_its_pairs_keeps_no_stale_bytes(mode: &str, part_bytes: usize, rounds: u8) {
    let fixture = Fixture::in_modes("", mode, mode);
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    ok(client.write(file, 0, &vec![0; part_bytes]));
    ok(client.write(file, part_bytes as u64, &vec![0; part_bytes]));
    let mut clients = [(); 2].map(|()| CachingClient::new(&fixture, file, part_bytes));
    let barrier = Barrier::new(clients.len());
    for value in 1..=rounds {
        let data = vec![value; part_bytes];
        std::thread::scope(|scope| {
            for (part, client) in clients.iter_mut().enumerate() {
                let (barrier, data) = (&barrier, &data);
                scope.spawn(move || {
                    barrier.wait();
                    client.write(file, part, data);
                });
            }
        });
        let last = stamp(&client.getattr(file).unwrap());
        let knowing = clients.iter().filter(|client| client.known == last).count();
        assert!(knowing > 0, "{mode}: the one whose WRITE ended last has its stamp");
        for client in &clients {
            let is_stale = client.known == last && client.bytes != [value; 2];
            assert!(!is_stale, "{mode}: {:?} under the stamp of {value}", client.bytes);
        }
        // All are up to date for the next round, as if each had opened the file.
        for client in &mut clients {
            (client.known, client.bytes) =
                CachingClient::read(&mut client.client, file, part_bytes);
        }
    }
}

#[test]
fn no_pair_of_a_write_covers_another_clients_write() {
    a_client_that_trusts_its_pairs_keeps_no_stale_bytes("direct", MIB, 120);
    a_client_that_trusts_its_pairs_keeps_no_stale_bytes("auto", 64 * 1024, 120);
}

#[test]
fn no_pair_of_a_write_covers_the_length_of_another() {
    const ROUNDS: usize = 60;
    const WRITERS: usize = 4;
    let fixture = Fixture::in_modes("", "direct", "direct");
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let data = vec![1; MIB];
    ok(client.write(file, 0, &data));
    let mut writers = [(); WRITERS].map(|()| fixture.client());
    let barrier = Barrier::new(WRITERS);
    for round in 0..ROUNDS {
        ok(client.setattr(file, size(MIB as u64)));
        std::thread::scope(|scope| {
            for (part, client) in writers.iter_mut().enumerate() {
                let (barrier, data) = (&barrier, &data);
                scope.spawn(move || {
                    barrier.wait();
                    let offset = (1 + part) * MIB;
                    let wcc = ok(client.write(file, offset as u64, data)).wcc;
                    let (Some(before), Some(after)) = (wcc.before, wcc.after) else { return };
                    let own = before.size.max((offset + MIB) as u64);
                    assert_eq!(after.size, own, "round {round}: a WRITE at {}", before.size);
                });
            }
        });
        assert_eq!(client.getattr(file).unwrap().size, ((1 + WRITERS) * MIB) as u64);
    }
}

#[test]
fn a_directory_without_a_name_does_not_have_the_stamp_of_its_creation() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    for round in 0..150 {
        let name = format!("f{round}");
        let is_over = AtomicBool::new(false);
        let mut missed = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                fixture.client().create(dir, &name);
                is_over.store(true, Ordering::Release);
            });
            while !is_over.load(Ordering::Acquire) {
                if let Err(failure) = client.lookup(dir, name.as_bytes()) {
                    missed.extend(failure.body.as_ref().map(stamp));
                }
                let page = client.readdir(dir, 0, 64 * 1024).unwrap();
                let is_missing = page.names.iter().all(|entry| entry.name != name.as_bytes());
                // A reply without the end may lack a name because it has taken too long.
                if page.eof && is_missing {
                    missed.extend(page.attributes.as_ref().map(stamp));
                }
            }
        });
        let last = stamp(&client.getattr(dir).unwrap());
        assert!(!missed.contains(&last), "{name} was missing under the last stamp");
    }
}

/// Mounts an ext4 whose inodes have no room for parts of a second over the exported directory.
fn mount_with_whole_seconds(dir: &Path) -> Option<Mounted> {
    let (image, export) = (dir.join("image"), dir.join("export"));
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    if !run_or_skip("mkfs.ext4", &["-q", "-F", "-I", "128", image.to_str().unwrap()]) {
        return None;
    }
    let mounted = Mounted::image(&image, &export)?;
    set_mode(&export, 0o777);
    Some(mounted)
}

/// The stamp of an object, checked to be another than `before`, and later; and the reply of the
/// change in between to have both.
fn changed(client: &mut Client, object: FileHandle, before: &WccAttributes, wcc: &WccData) {
    let after = stamp(&client.getattr(object).unwrap());
    assert_eq!(wcc.before.as_ref(), Some(before));
    assert_eq!(wcc.after.as_ref().map(stamp), Some(after));
    assert!(after.ctime > before.ctime, "{after:?} after {before:?}");
}

#[test]
fn changes_within_a_second_of_a_clock_of_seconds_have_stamps_of_their_own() {
    for io_mode in ["buffered", "direct"] {
        let config = in_modes("", io_mode, io_mode);
        let Some((fixture, _mounted)) = Fixture::over(&config, mount_with_whole_seconds) else {
            return;
        };
        let (mut client, root) = fixture.mounted();
        let file = client.create(root, "f");
        let stamp_of = |client: &mut Client, object| stamp(&client.getattr(object).unwrap());
        for value in 0..8 {
            // The second one shares the file in `direct`.
            for bytes in [4096, MIB] {
                let before = stamp_of(&mut client, file);
                let wcc = ok(client.write(file, 0, &vec![value; bytes])).wcc;
                changed(&mut client, file, &before, &wcc);
            }
            let before = client.getattr(file).unwrap();
            let args = SetattrArgs {
                object: file,
                new_attributes: mode(0o600 + u32::from(value)),
                guard: Some(before.ctime),
            };
            let reply: SetattrReply = client.call(Procedure::Setattr, &args);
            changed(&mut client, file, &stamp(&before), &ok(reply).wcc);
            let after = client.getattr(file).unwrap();
            // The kernel's own times once its clock has gone on, which has whole seconds.
            let is_kernels = after.ctime.nseconds == 0;
            let nseconds = if is_kernels { 0 } else { before.mtime.nseconds };
            let mtime = Time { nseconds, ..before.mtime };
            assert_eq!(after.mtime, mtime, "no data was changed");
            let before = stamp_of(&mut client, file);
            ok(client.write(file, 0, b""));
            ok(client.setattr(file, SetAttributes::default()));
            assert_eq!(stamp_of(&mut client, file), before, "nothing was changed");

            let (name, to) = (format!("n{value}"), format!("m{value}"));
            let before = stamp_of(&mut client, root);
            let how = || CreateHow::Guarded(mode(0o666));
            let wcc = ok(client.create_how(root, name.as_bytes(), how())).dir_wcc;
            changed(&mut client, root, &before, &wcc);
            let before = stamp_of(&mut client, root);
            client.create_how(root, name.as_bytes(), how()).unwrap_err();
            assert_eq!(stamp_of(&mut client, root), before, "nothing was made");
            let wcc = ok(client.rename((root, name.as_bytes()), (root, to.as_bytes()))).from_wcc;
            changed(&mut client, root, &before, &wcc);
            let before = stamp_of(&mut client, root);
            let wcc = ok(client.remove(root, to.as_bytes())).dir_wcc;
            changed(&mut client, root, &before, &wcc);
        }
        // The kernel's own times are shown again once they are later.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        ok(client.write(file, 0, b"later"));
        assert_eq!(client.getattr(file).unwrap().ctime.nseconds, 0);
    }
}
