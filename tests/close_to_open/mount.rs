//! A program that uses the files through `spillway mount`.

use std::fs::{self, File as Opened, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::file::{File, Kind, part};
use crate::place::Place;
use crate::random::Random;
use crate::server::{Server, program};
use crate::skip::skip;
use crate::versions::{CELLS, size as item_bytes};
use crate::workload::{Workload, count};

const PATIENCE: Duration = Duration::from_secs(20);

const LINK_TRIES: u8 = 20;
const APPENDS: u8 = 200;
const OVERWRITES: u8 = 50;
const APPENDING: Duration = Duration::from_secs(3);
/// No part of a page, so that the end of the file lies within one.
const APPENDED_BYTES: usize = 700;

const CUT_FROM: usize = 32 << 10;
/// A second, by the options of the mount, and what a busy machine adds: replies to the READs ahead
/// of the program renew them after its last read.
const ATTRIBUTES_VALID_MAX: Duration = Duration::from_secs(3);

/// A mount of the export, ended when dropped.
pub(crate) struct Mount {
    child: Child,
    at: TempDir,
}

impl Mount {
    /// `None`, with the reason printed, where FUSE cannot be had.
    pub(crate) fn new(url: &str, options: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            skip("the mounts need root and /dev/fuse");
            return None;
        }
        let at = TempDir::new().unwrap();
        let mut child = Command::new(program())
            .args(["mount", "--foreground", "-o", options, url])
            .arg(at.path())
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !at.path().join("links").exists() {
            assert!(child.try_wait().unwrap().is_none(), "the mount ended at its start");
            assert!(Instant::now() < deadline, "no mount after {PATIENCE:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Some(Self { child, at })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at.path().join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let lazily = if thread::panicking() { &["--lazy"][..] } else { &[] };
        let _ = Command::new("umount").args(lazily).arg(self.at.path()).status();
        if thread::panicking() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// A thread that uses a mount.
pub(crate) struct MountUser<'a> {
    workload: &'a Workload,
    mount: &'a Mount,
    /// Among the users of all mounts.
    number: usize,
    random: Random,
}

impl<'a> MountUser<'a> {
    pub(crate) fn new(
        workload: &'a Workload,
        mount: &'a Mount,
        number: usize,
        random: Random,
    ) -> Self {
        Self { workload, mount, number, random }
    }

    pub(crate) fn run(&mut self) {
        while self.workload.goes_on() {
            let number = self.workload.any_file(&mut self.random);
            if !self.workload.files[number].mounted {
                continue;
            }
            match self.random.index(10) {
                0..=5 => self.open_and_read(number, "after an open"),
                6 | 7 => self.write(number),
                8 => self.link(number),
                _ => self.change_mode(number),
            }
        }
    }

    fn path_of(&self, file: &File) -> PathBuf {
        self.mount.path(&file.name)
    }

    fn open_and_read(&mut self, number: usize, when: &str) {
        let file = &self.workload.files[number];
        let floors = file.versions.floors();
        let units = CELLS..file.versions.len();
        self.workload.note(number, &units, "opens to read");
        let opened = Opened::open(self.path_of(file)).unwrap();
        self.workload.note(number, &units, "opened to read");
        for _ in 0..4 {
            let mut items = file.any_items(&mut self.random);
            if items.start >= CELLS {
                items.end = items.end.min(items.start + (1 << 20) / item_bytes(CELLS));
            }
            let bytes = file.versions.bytes(&items);
            let mut data = vec![0; usize::try_from(bytes.end - bytes.start).unwrap()];
            let read = read_fully(&opened, bytes.start, &mut data);
            let wanted = bytes.end - bytes.start;
            let what = format!("{read} of {wanted} bytes at {} read", bytes.start);
            let mut data = &data[..read];
            for item in items {
                let found = data.split_off(..item_bytes(item).min(data.len())).expect("as many");
                if let Err(wrong) = file.versions.judge(item, found, &floors) {
                    let what = format!("{what} by user {} of mounts {when}", self.number);
                    self.workload.fail(number, &wrong, &what, "");
                }
            }
        }
        count(&self.workload.done.mount_opens);
    }

    /// Writes whole pages' worth of a region that shares no page with others, and closes.
    fn write(&mut self, number: usize) {
        let file = &self.workload.files[number];
        let Some(owned) = file.own(&[Kind::Pages], &mut self.random) else { return };
        let items = part(&owned.items, &mut self.random);
        let gate = file.gate().remote();
        let opened = OpenOptions::new().write(true).open(self.path_of(file)).unwrap();
        let data = file.versions.begin_writing(&items);
        self.workload.note(number, &items, "write through a mount");
        opened.write_all_at(&data, file.versions.position(items.start)).unwrap();
        // close(2) writes all of it too, but its errors are lost on the way through a drop.
        opened.sync_data().unwrap();
        drop(opened);
        file.versions.acknowledge(&items);
        self.workload.note(number, &items, "written and closed");
        drop(gate);
        count(&self.workload.done.mount_writes);
    }

    /// Makes another name of a file, which changes its ctime, and opens the file before that name
    /// goes again: the change must not hide one of others.
    fn link(&mut self, number: usize) {
        let file = &self.workload.files[number];
        let gate = file.gate().remote();
        let mut link = self.mount.path(&format!("links/user{}", self.number));
        hard_link(&self.path_of(file), &link);
        if self.random.percent(30) {
            let renamed = self.mount.path(&format!("links/renamed{}", self.number));
            fs::rename(&link, &renamed).unwrap();
            link = renamed;
        }
        self.open_and_read(number, "after an own LINK and an open");
        fs::remove_file(link).unwrap();
        drop(gate);
    }

    fn change_mode(&mut self, number: usize) {
        let file = &self.workload.files[number];
        let bits = self.random.one_of(&[0o666, 0o777]);
        let gate = file.gate().remote();
        fs::set_permissions(self.path_of(file), fs::Permissions::from_mode(bits)).unwrap();
        drop(gate);
    }
}

/// Appends to a file without the mount, opens it there, and reads it to its new end. The descriptor
/// of the round before is open meanwhile, so that its pages are dropped at once.
pub(crate) fn read_what_others_append(place: &Place) {
    fs::create_dir(place.export().join("links")).unwrap();
    let path = place.export().join("file");
    fs::write(&path, b"").unwrap();
    let server = Server::start(place.export(), ("auto", "auto"));
    let Some(mount) = Mount::new(&server.url(), "rw") else { return };
    let mut before = Opened::open(mount.path("file")).unwrap();
    let mut content = Vec::new();
    for round in 0..APPENDS {
        let added = [round; APPENDED_BYTES];
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&added).unwrap();
        content.extend_from_slice(&added);
        let opened = Opened::open(mount.path("file")).unwrap();
        let mut data = vec![0; content.len()];
        let read = read_fully(&opened, 0, &mut data);
        assert_eq!(read, content.len(), "round {round}: the read ends at an old size");
        assert!(data == content, "round {round}: the read returns old data");
        before = opened;
    }
    drop((before, mount));
    server.stop(place.may_lack_direct());
}

/// Appends to a file without the mount and reads to the new end, through one descriptor. Without
/// cached attributes each read begins with a GETATTR that shows the change. It goes on for longer
/// than a mount leaves stale pages to the kernel.
pub(crate) fn read_what_others_append_to_an_open_file(place: &Place) {
    fs::create_dir(place.export().join("links")).unwrap();
    let path = place.export().join("file");
    fs::write(&path, b"").unwrap();
    let server = Server::start(place.export(), ("auto", "auto"));
    let Some(mount) = Mount::new(&server.url(), "noac") else { return };
    let opened = Opened::open(mount.path("file")).unwrap();
    let (mut offset, begun) = (0, Instant::now());
    for round in 0_u64.. {
        if begun.elapsed() > APPENDING {
            break;
        }
        let added = [round as u8; APPENDED_BYTES];
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&added).unwrap();
        let mut data = [0; APPENDED_BYTES];
        let read = opened.read_at(&mut data, offset).unwrap();
        assert_eq!(read, APPENDED_BYTES, "round {round}: the read ends at an old size");
        assert!(data == added, "round {round}: the read returns old data");
        offset += APPENDED_BYTES as u64;
    }
    drop((opened, mount));
    server.stop(place.may_lack_direct());
}

/// Overwrites an open file without the mount, in place, and reads it through one descriptor.
/// Without cached attributes each read shows the change.
pub(crate) fn read_what_others_overwrite_in_an_open_file(place: &Place) {
    fs::create_dir(place.export().join("links")).unwrap();
    let path = place.export().join("file");
    fs::write(&path, [0; APPENDED_BYTES]).unwrap();
    let server = Server::start(place.export(), ("auto", "auto"));
    let Some(mount) = Mount::new(&server.url(), "noac") else { return };
    let opened = Opened::open(mount.path("file")).unwrap();
    let local = OpenOptions::new().write(true).open(&path).unwrap();
    for round in 0..OVERWRITES {
        let data = [round; APPENDED_BYTES];
        local.write_all_at(&data, 0).unwrap();
        let mut found = [0; APPENDED_BYTES];
        opened.read_exact_at(&mut found, 0).unwrap();
        assert!(found == data, "round {round}: the read returns old data");
        // Longer than the file system takes to give the next change another time.
        thread::sleep(Duration::from_millis(20));
    }
    drop((opened, mount));
    server.stop(place.may_lack_direct());
}

/// Overwrites a file without the mount, of which a program has read a part some time ago: what was
/// read ahead of the program then is old. The kernel has pages of a few requests.
pub(crate) fn read_what_others_overwrite_behind_a_reader(place: &Place) {
    const PART_BYTES: usize = 4 << 20;
    const KERNEL_AHEAD_BYTES: usize = 3 << 20;
    fs::create_dir(place.export().join("links")).unwrap();
    let path = place.export().join("file");
    fs::write(&path, vec![1; 3 * PART_BYTES]).unwrap();
    let server = Server::start(place.export(), ("auto", "auto"));
    let Some(mount) = Mount::new(&server.url(), "acregmax=1") else { return };
    let mut opened = Opened::open(mount.path("file")).unwrap();
    let mut data = vec![0; 3 * PART_BYTES];
    let (before, behind) = data.split_at_mut(PART_BYTES);
    before.chunks_mut(64 << 10).for_each(|data| opened.read_exact(data).unwrap());
    thread::sleep(ATTRIBUTES_VALID_MAX);
    let local = OpenOptions::new().write(true).open(&path).unwrap();
    local.write_all_at(&vec![2; 3 * PART_BYTES], 0).unwrap();
    behind.chunks_mut(64 << 10).for_each(|data| opened.read_exact(data).unwrap());
    let old = behind[KERNEL_AHEAD_BYTES..].iter().filter(|byte| **byte != 2).count();
    assert_eq!(old, 0, "bytes are old that were read when the attributes had expired");
    drop((opened, mount));
    server.stop(place.may_lack_direct());
}

/// Appends without the mount and through it in turn, as a shell does with `>>`, and through a
/// descriptor that stays open for longer than attributes are valid. Nothing may be lost.
pub(crate) fn append_where_others_append(place: &Place) {
    fs::create_dir(place.export().join("links")).unwrap();
    let path = place.export().join("file");
    fs::write(&path, b"").unwrap();
    let server = Server::start(place.export(), ("auto", "auto"));
    let Some(mount) = Mount::new(&server.url(), "acregmax=1") else { return };
    let append = |path: &Path, bytes: &[u8]| {
        let mut opened = OpenOptions::new().append(true).open(path).unwrap();
        opened.write_all(bytes).unwrap();
        // close(2) writes it too, but the errors of a drop are lost.
        opened.sync_data().unwrap();
        opened
    };
    let mut content = Vec::new();
    let mut last = None;
    for round in 0..APPENDS / 4 {
        let (there, here) = ([round; APPENDED_BYTES], [!round; APPENDED_BYTES]);
        append(&path, &there);
        last = Some(append(&mount.path("file"), &here));
        content.extend_from_slice(&there);
        content.extend_from_slice(&here);
        assert!(fs::read(&path).unwrap() == content, "round {round}: an append is lost");
        assert!(fs::read(mount.path("file")).unwrap() == content, "round {round}: old data");
    }
    let mut last = last.unwrap();
    for round in 0..2 {
        append(&path, b"there");
        thread::sleep(ATTRIBUTES_VALID_MAX);
        last.write_all(b"here").unwrap();
        last.sync_data().unwrap();
        content.extend_from_slice(b"therehere");
        assert!(fs::read(&path).unwrap() == content, "round {round}: an append is lost");
    }
    drop((last, mount));
    server.stop(place.may_lack_direct());
}

/// Cuts a file without the mount, opens it there, and reads over its new end.
pub(crate) fn read_what_others_cut(place: &Place) {
    fs::create_dir(place.export().join("links")).unwrap();
    let path = place.export().join("file");
    fs::write(&path, [1; CUT_FROM]).unwrap();
    let server = Server::start(place.export(), ("auto", "auto"));
    let Some(mount) = Mount::new(&server.url(), "rw") else { return };
    let mut before = Opened::open(mount.path("file")).unwrap();
    for round in 0..usize::from(APPENDS) {
        let len = CUT_FROM - APPENDED_BYTES / 10 * (round + 1);
        OpenOptions::new().write(true).open(&path).unwrap().set_len(len as u64).unwrap();
        let opened = Opened::open(mount.path("file")).unwrap();
        let read = read_fully(&opened, 0, &mut vec![0; CUT_FROM]);
        assert_eq!(read, len, "round {round}: the read goes on behind the end");
        before = opened;
    }
    drop((before, mount));
    server.stop(place.may_lack_direct());
}

/// link(2), again if it fails with ENOENT: a stat(2) between the reply to an UNLINK and its
/// handling by the kernel makes the kernel count one link too few, which may be 0 (docs/mount.md).
/// stat(2) renews the count.
fn hard_link(path: &Path, link: &Path) {
    for _ in 0..LINK_TRIES {
        match fs::hard_link(path, link) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                assert!(fs::metadata(path).is_ok());
            }
            linked => return linked.unwrap(),
        }
    }
    panic!("no link to {} in {LINK_TRIES} tries", path.display());
}

/// Reads until the buffer is full or the file ends; returns how much that was.
fn read_fully(file: &Opened, offset: u64, data: &mut [u8]) -> usize {
    let mut done = 0;
    while done < data.len() {
        match file.read_at(&mut data[done..], offset + done as u64).unwrap() {
            0 => break,
            more => done += more,
        }
    }
    done
}
