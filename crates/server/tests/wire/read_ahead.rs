//! READs in sequence are answered from what was read ahead, and never with anything that the file
//! does not hold any more.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use proto::nfs3::*;
use spillway_server::counters::Counter;

use crate::client::{Client, ok, size};
use crate::fixture::{Fixture, Mounted, in_modes, is_root, run_or_skip, set_mode};
use crate::local_file::{LocalFile, assert_same, content, eventually, settle};
use crate::mapping::Mapping;
use crate::skip::skip_in_ci_too;

const MIB: u64 = 1 << 20;
/// The modes that always read ahead by themselves.
const AHEAD: [&str; 2] = ["dontcache", "direct"];
/// Modes in which it may be: in `auto` the kernel often does where the page cache may grow.
const MAY_BE_AHEAD: [&str; 3] = ["dontcache", "direct", "auto"];
const FILE_BYTES: usize = (6 << 20) + 1000;
const TRANSFER: u32 = 47_008;

/// The initial content of the files.
fn whole() -> &'static [u8] {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    WHOLE.get_or_init(|| content(1, 0, FILE_BYTES))
}

#[test]
fn a_stream_at_depth_one_is_answered_from_chunks() {
    let expected = whole();
    for mode in AHEAD {
        let settings = "max_transfer = \"4MiB\"";
        let fixture = Fixture::in_modes(settings, mode, "auto");
        let transfers = [4096, TRANSFER, 300_007, 1 << 20, (1 << 20) + 1, 4 << 20];
        let files = transfers.map(|transfer| {
            let local = LocalFile::create(&fixture.exported(&transfer.to_string()), expected);
            local.forget();
            local
        });
        if !files[0].is_on_disk() {
            return;
        }
        settle();
        let (mut client, root) = fixture.mounted();
        for transfer in transfers {
            let file = client.find(root, &transfer.to_string());
            let before = fixture.counter(Counter::ReadsFromReadAhead);
            for offset in (0..FILE_BYTES).step_by(transfer as usize) {
                let read = client.read(file, offset as u64, transfer).unwrap();
                let end = FILE_BYTES.min(offset + transfer as usize);
                assert_same(&read.data, &expected[offset..end], mode);
                assert_eq!(read.eof, end == FILE_BYTES);
            }
            // The first makes no stream. Memory for a chunk is never waited for, so under other
            // load not all are read ahead.
            let reads = FILE_BYTES.div_ceil(transfer as usize) as u64;
            let ahead = fixture.counter(Counter::ReadsFromReadAhead) - before;
            assert!(ahead < reads && ahead * 2 >= reads - 1, "{ahead} of {reads} in {mode}");
        }
        assert!(fixture.counter(Counter::ReadAheadBytes) >= FILE_BYTES as u64);
    }
}

#[test]
fn switched_off_nothing_is_read_ahead() {
    let expected = whole();
    let of_server = |mode| in_modes("read_ahead = false", mode, "auto");
    let of_export = |mode| in_modes("", mode, "auto") + "\n    read_ahead = false";
    let configs = AHEAD
        .into_iter()
        .flat_map(|mode| [of_server(mode), of_export(mode)].map(|off| (mode, off)));
    for (mode, off) in configs {
        let fixture = Fixture::with(&off);
        let local = LocalFile::create(&fixture.exported("f"), expected);
        local.forget();
        settle();
        let (mut client, root) = fixture.mounted();
        let file = client.find(root, "f");
        stream(&mut client, file, expected, 0..MIB);
        assert_eq!(fixture.counter(Counter::ReadAheadBytes), 0, "{mode}");
        assert_eq!(fixture.counter(Counter::ReadsFromReadAhead), 0, "{mode}");
        // Switched on, the same stream is read ahead from the next READ on.
        local.forget();
        fixture.reload(&in_modes("", mode, "auto"));
        stream(&mut client, file, expected, MIB..3 * MIB);
        let ahead = fixture.counter(Counter::ReadsFromReadAhead);
        assert_eq!(ahead > 0, local.is_on_disk(), "{mode}");
    }
}

/// The kernel reports the page cache of a file to those alone who may write it.
#[test]
fn without_privileges_a_file_of_another_user_ends_no_read_ahead_of_others() {
    if let Ok(served) = std::env::var(SERVED) {
        return unprivileged_server_of_two_users(&served);
    }
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o755);
    for name in ["foreign", "own"] {
        let local = LocalFile::create(&dir.path().join(name), whole());
        if !local.is_on_disk() {
            return;
        }
        local.forget();
    }
    chown(dir.path().join("own"), Some(SERVER_USER), None).unwrap();
    settle();
    let mut tests = Command::new("/proc/self/exe");
    let name = "without_privileges_a_file_of_another_user_ends_no_read_ahead_of_others";
    tests.args(["--exact", &format!("read_ahead::{name}")]);
    tests.uid(SERVER_USER).gid(SERVER_USER).env(SERVED, dir.path());
    let output = tests.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

const SERVER_USER: u32 = 12_345;
/// The variable that names the directory to be served, in the process of that user.
const SERVED: &str = "READ_AHEAD_SERVED";

fn unprivileged_server_of_two_users(served: &str) {
    let config = in_modes("", "dontcache", "auto").replace("$DIR/export", served);
    let fixture = Fixture::with(&config);
    let (mut client, root) = fixture.mounted();
    for (name, is_read_ahead) in [("foreign", false), ("own", true)] {
        let file = client.find(root, name);
        stream(&mut client, file, whole(), 0..3 * MIB);
        let ahead = fixture.counter(Counter::ReadsFromReadAhead);
        // From Linux 6.5 to 6.13 the kernel reports it to all.
        assert!(ahead > 0 || !is_read_ahead, "{name}: {:?}", fixture.counters());
    }
    // The first chunks alone are tried in vain.
    let abandoned = fixture.counter(Counter::ReadAheadAbandoned);
    assert!(abandoned <= 4, "{:?}", fixture.counters());
}

#[test]
fn a_file_that_was_changed_just_now_is_not_read_ahead() {
    let expected = whole();
    for mode in MAY_BE_AHEAD {
        let fixture = Fixture::in_modes("", mode, "auto");
        let path = fixture.exported("f");
        LocalFile::create(&path, expected).forget();
        let (mut client, root) = fixture.mounted();
        let file = client.find(root, "f");
        for (i, offset) in (0..FILE_BYTES as u64).step_by(300_000).enumerate() {
            let changed = Instant::now();
            set_mode(&path, [0o600, 0o644][i % 2]);
            let before = fixture.counter(Counter::ReadAheadBytes);
            let read = client.read(file, offset, 300_000).unwrap();
            let start = usize::try_from(offset).unwrap();
            assert_same(&read.data, &expected[start..FILE_BYTES.min(start + 300_000)], mode);
            // A machine that takes a second from there to here proves nothing.
            if changed.elapsed() < Duration::from_millis(900) {
                assert_eq!(fixture.counter(Counter::ReadAheadBytes), before, "{mode}");
            }
        }
    }
}

/// Reads a part of a file in sequence.
#[track_caller]
fn stream(client: &mut Client, file: FileHandle, expected: &[u8], part: std::ops::Range<u64>) {
    for offset in part.step_by(TRANSFER as usize) {
        let read = client.read(file, offset, TRANSFER).unwrap();
        let start = usize::try_from(offset).unwrap();
        let end = expected.len().min(start + TRANSFER as usize);
        assert_same(&read.data, &expected[start..end], &format!("at {offset}"));
    }
}

/// A change by another writer of a file of which a part has been read ahead.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// WRITE by another client.
    OtherClient,
    /// A local `write`.
    LocalWrite,
    /// A store through a mapping, of a page that was clean.
    Store,
    /// A store to a page that has been dirty since before it was read ahead.
    StoreToDirty,
    /// Cut and grown again locally, to the same length.
    CutAndGrown,
    /// The same by another client.
    CutByClient,
    /// Another file in its place.
    RenamedOver,
}

const CHANGES: [Change; 7] = [
    Change::OtherClient,
    Change::LocalWrite,
    Change::Store,
    Change::StoreToDirty,
    Change::CutAndGrown,
    Change::CutByClient,
    Change::RenamedOver,
];
/// In the chunk that the first READs are in, and in the one after it.
const PLACES: [u64; 2] = [700_001, MIB + 200_003];
const NEW: [u8; 100] = [0xee; 100];

/// A file that is about to be changed in one of these ways.
struct Victim {
    change: Change,
    name: String,
    local: LocalFile,
    mapping: Option<Mapping>,
    expected: Vec<u8>,
}

impl Victim {
    fn new(fixture: &Fixture, change: Change) -> Option<Self> {
        let (name, mut expected) = (format!("{change:?}"), whole()[..FILE_BYTES / 2].to_vec());
        let path = fixture.exported(&name);
        let local = LocalFile::create(&path, &expected);
        local.forget();
        let mut mapping = None;
        if matches!(change, Change::Store | Change::StoreToDirty) {
            mapping = Some(Mapping::of(&path, expected.len() as u64)?);
        }
        if let (Change::StoreToDirty, Some(mapping)) = (change, &mut mapping) {
            for place in PLACES {
                mapping.write(place, &[1; 200]);
                let at = usize::try_from(place).unwrap();
                expected[at..at + 200].fill(1);
            }
        }
        Some(Self { change, name, local, mapping, expected })
    }

    /// Makes the change at `place`.
    fn change(&mut self, fixture: &Fixture, file: FileHandle, root: FileHandle, place: u64) {
        let at = usize::try_from(place).unwrap();
        let cut = (place - 1000, self.expected.len() as u64);
        match self.change {
            Change::CutAndGrown | Change::CutByClient => {
                self.expected[at - 1000..].fill(0);
            }
            _ => self.expected[at..at + NEW.len()].copy_from_slice(&NEW),
        }
        match self.change {
            Change::OtherClient => {
                ok(fixture.client().write(file, place, &NEW));
            }
            Change::LocalWrite => self.local.write(place, &NEW),
            Change::Store | Change::StoreToDirty => {
                self.mapping.as_mut().unwrap().write(place, &NEW);
            }
            Change::CutAndGrown => {
                self.local.set_len(cut.0);
                self.local.set_len(cut.1);
            }
            Change::CutByClient => {
                let mut other = fixture.client();
                ok(other.setattr(file, size(cut.0)));
                ok(other.setattr(file, size(cut.1)));
            }
            Change::RenamedOver => {
                LocalFile::create(&fixture.exported("new"), &self.expected);
                ok(fixture.client().rename((root, b"new"), (root, self.name.as_bytes())));
            }
        }
    }
}

#[test]
fn the_next_read_sees_every_change() {
    let mut rooms = Vec::new();
    for mode in MAY_BE_AHEAD {
        for write_mode in ["auto", "direct"] {
            let fixture = Fixture::in_modes("", mode, write_mode);
            let victims: Vec<_> =
                CHANGES.into_iter().filter_map(|change| Victim::new(&fixture, change)).collect();
            rooms.push((fixture, mode, victims));
        }
    }
    settle();
    for (fixture, mode, victims) in &mut rooms {
        for victim in victims {
            see_change(fixture, mode, victim, PLACES[1]);
            // Not read ahead, so soon after the change, and still right.
            see_change(fixture, "buffered", victim, PLACES[0]);
        }
    }
}

fn see_change(fixture: &Fixture, mode: &str, victim: &mut Victim, place: u64) {
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, &victim.name);
    let ahead = fixture.counter(Counter::ReadsFromReadAhead);
    stream(&mut client, file, &victim.expected, 0..place - 100_000);
    // A chunk of dirty pages is kept only if a direct READ has written them.
    let is_kept = AHEAD.contains(&mode) && !matches!(victim.change, Change::StoreToDirty);
    if is_kept && victim.local.is_on_disk() {
        let what = victim.change;
        assert!(fixture.counter(Counter::ReadsFromReadAhead) > ahead, "{what:?} in {mode}");
    }
    victim.change(fixture, file, root, place);
    let file = client.find(root, &victim.name);
    let what = format!("{:?} at {place} in {mode}", victim.change);
    for (offset, count) in [(place, 50), (place - 20_000, TRANSFER), (place + 50, TRANSFER)] {
        let read = client.read(file, offset, count).unwrap();
        let start = usize::try_from(offset).unwrap();
        assert_same(&read.data, &victim.expected[start..start + count as usize], &what);
    }
    stream(&mut client, file, &victim.expected, place - 100_000..place + 500_000);
}

#[test]
fn changes_while_chunks_are_being_read_are_seen() {
    let mut rooms = Vec::new();
    for mode in MAY_BE_AHEAD {
        let fixture = Fixture::in_modes("", mode, "direct");
        let files: Vec<_> = (0..10)
            .map(|i| LocalFile::create(&fixture.exported(&i.to_string()), &whole()[..3 << 20]))
            .collect();
        files.iter().for_each(LocalFile::forget);
        rooms.push((fixture, files));
    }
    settle();
    for (fixture, files) in &rooms {
        let (mut client, root) = fixture.mounted();
        let mut other = fixture.client();
        for (i, local) in files.iter().enumerate() {
            let file = client.find(root, &i.to_string());
            let mut expected = whole()[..3 << 20].to_vec();
            // Two READs make a stream, and with the second its next chunks are on their way.
            stream(&mut client, file, &expected, 0..2 * u64::from(TRANSFER));
            let (place, data) = (200_000 + i * 150_000, content(2, 0, 300_000));
            if i % 2 == 0 {
                ok(other.write(file, place as u64, &data));
            } else {
                local.write(place as u64, &data);
            }
            expected[place..place + data.len()].copy_from_slice(&data);
            stream(&mut client, file, &expected, 2 * u64::from(TRANSFER)..expected.len() as u64);
        }
    }
}

/// Exports of `$DIR/export/MODE` as `/MODE`, with READs in that mode.
fn export_for_each_mode() -> String {
    let export = |mode: &str| {
        format!(
            "[[export]]\npath = \"$DIR/export/{mode}\"\nname = \"/{mode}\"\nsquash = \"none\"\n\
             sync = false\nio_cache_read = \"{mode}\"\n"
        )
    };
    MAY_BE_AHEAD.iter().map(|mode| export(mode)).collect()
}

/// Fills a directory for each mode with a file `f`.
fn make_files(export: &Path) -> Vec<LocalFile> {
    let make = |mode: &&str| {
        let dir = export.join(mode);
        std::fs::create_dir(&dir).unwrap();
        let local = LocalFile::create(&dir.join("f"), whole());
        local.forget();
        local
    };
    MAY_BE_AHEAD.iter().map(make).collect()
}

/// A mounted ext4 on a device of its own, whose writes can be made slow.
struct SlowDisk {
    /// Major and minor number.
    device: String,
    _mount: Mounted,
}

impl SlowDisk {
    /// Bytes per second that the device takes, for everybody (cgroups version 1); 0 for no limit.
    const LIMIT: &str = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device";

    fn new(dir: &Path) -> Option<Self> {
        let (image, export) = (dir.join("image"), dir.join("export"));
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        if !Path::new(Self::LIMIT).exists() {
            skip_in_ci_too("no device can be slowed down");
            return None;
        }
        if !run_or_skip("mkfs.ext4", &["-q", image.to_str().unwrap()]) {
            return None;
        }
        let mount = Mounted::image(&image, &export)?;
        let device = rustix::fs::stat(&export).unwrap().st_dev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        Some(Self { device: format!("{major}:{minor}"), _mount: mount })
    }

    fn limit_writes(&self, bytes_per_second: u64) {
        std::fs::write(Self::LIMIT, format!("{} {bytes_per_second}", self.device)).unwrap();
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.limit_writes(0);
    }
}

/// The kernel renews the change time when a write begins, and these take longer than any time after
/// which a version could count as settled.
#[test]
fn a_finished_write_is_seen_regardless_of_its_duration() {
    if !is_root() {
        return;
    }
    let (mut disk, mut files) = (None, Vec::new());
    let fixture = Fixture::prepared(&export_for_each_mode(), |dir| {
        disk = SlowDisk::new(dir);
        files = make_files(&dir.join("export"));
    });
    let Some(disk) = disk else { return };
    settle();
    rustix::fs::sync();
    // A MiB for each mode takes three seconds.
    disk.limit_writes(1 << 20);
    let place = 2 * MIB;
    let input = fixture.path("new");
    std::fs::write(&input, vec![0xee; 1 << 20]).unwrap();
    let changed =
        |mode: &str| std::fs::metadata(fixture.exported(mode).join("f")).unwrap().ctime_nsec();
    let before = MAY_BE_AHEAD.map(changed);
    let write = |mode: &&str| {
        let (input, output) = (input.display(), fixture.exported(mode).join("f"));
        let (input, output) = (format!("if={input}"), format!("of={}", output.display()));
        let how = ["bs=1M", "seek=2", "oflag=direct", "conv=notrunc", "status=none"];
        Command::new("dd").args([&input, &output]).args(how).spawn().unwrap()
    };
    let writes: Vec<_> = MAY_BE_AHEAD.iter().map(write).collect();
    let have_begun =
        || MAY_BE_AHEAD.map(changed).iter().zip(&before).all(|(now, then)| now != then);
    assert!(eventually(have_begun));
    // Their change times have settled.
    std::thread::sleep(Duration::from_millis(1100));
    let mut client = fixture.client();
    let opened = MAY_BE_AHEAD.map(|mode| {
        let root = client.mnt(&format!("/{mode}"));
        let file = client.find(root, "f");
        stream(&mut client, file, whole(), 0..place - 100_000);
        file
    });
    assert!(fixture.counter(Counter::ReadsFromReadAhead) > 0, "the test tests nothing");
    for mut write in writes {
        assert!(write.wait().unwrap().success());
    }
    for (file, mode) in opened.into_iter().zip(MAY_BE_AHEAD) {
        let read = client.read(file, place, 1 << 20).unwrap();
        assert_same(&read.data, &vec![0xee; 1 << 20], mode);
    }
    drop(files);
    drop(fixture);
    drop(disk);
}

/// The kernel notes no change time for these stores.
#[test]
fn store_through_a_mapping_on_tmpfs_is_seen() {
    if !is_root() {
        return;
    }
    let over = Fixture::over(&export_for_each_mode(), |dir| {
        let mount = Mounted::tmpfs_export(dir, 32 << 10);
        make_files(&dir.join("export"));
        mount
    });
    let Some((fixture, _mount)) = over else { return };
    let place = 2 * MIB;
    let mut client = fixture.client();
    let mapped = MAY_BE_AHEAD.map(|mode| {
        let mut mapping = Mapping::of(&fixture.exported(mode).join("f"), FILE_BYTES as u64)?;
        let at = usize::try_from(place).unwrap();
        mapping.write(place, &whole()[at..at + 1000]);
        Some(mapping)
    });
    settle();
    for (mapping, mode) in mapped.into_iter().zip(MAY_BE_AHEAD) {
        let Some(mut mapping) = mapping else { return };
        let root = client.mnt(&format!("/{mode}"));
        let file = client.find(root, "f");
        stream(&mut client, file, whole(), 0..place - 100_000);
        // Time for read-ahead to complete.
        std::thread::sleep(Duration::from_millis(20));
        mapping.write(place, &NEW);
        let read = client.read(file, place, 100).unwrap();
        assert_same(&read.data, &NEW, mode);
    }
}
