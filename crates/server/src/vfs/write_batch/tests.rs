//! Batches of WRITEs. Tests hold the file's lock until all WRITEs wait, so that they are one batch.
#![expect(clippy::result_large_err, reason = "a failure carries the attributes of the protocol")]

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use proto::nfs3::{
    self, SetAttributes, SetattrArgs, SetattrReply, StableHow, WccAttributes, WccData, WriteArgs,
    WriteReply,
};
use proto::oncrpc::{AuthSys, CallHeader, Credential, Gids};
use proto::xdr::{Decode, Encode, Writer, decode_all};
use rpc::record::{in_fragments, read_blocking};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::*;
use crate::inode_cache::ExclusiveGuard;
use crate::own_process::ran_in_own_process;
use crate::server::Server;
use crate::skip::{skip, skip_in_ci_too};
use crate::test_server::{config, directory, root};

const PATIENCE: Duration = Duration::from_secs(20);
const USER: u32 = 1000;
const OTHER: u32 = 1001;

/// A server of one file `f`.
struct Rig {
    runtime: Runtime,
    server: Server,
    file: nfs3::FileHandle,
    path: PathBuf,
    _mount: Option<Mounted>,
    _dir: TempDir,
}

impl Rig {
    fn new(mode: &str) -> Self {
        Self::with(&format!("io_cache_write = \"{mode}\""))
    }

    /// With settings of the export.
    fn with(settings: &str) -> Self {
        Self::over(settings, directory(), None)
    }

    /// The same in a directory of [`directory`], on what is mounted there.
    fn over(settings: &str, dir: TempDir, mount: Option<Mounted>) -> Self {
        let path = dir.path().join("export/f");
        std::fs::write(&path, "").unwrap();
        set_mode(&path, 0o666);
        let rules = format!("squash = \"none\"\n{settings}");
        let config = config(dir.path(), "", &rules);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let server = runtime.block_on(Server::start(config)).unwrap();
        let file = handle_of(&server, &path);
        Self { runtime, server, file, path, _mount: mount, _dir: dir }
    }

    fn client(&self, uid: u32) -> Client {
        let stream = TcpStream::connect(self.server.local_addrs()[0]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { stream, uid, file: self.file, xid: 0 }
    }

    fn inode(&self) -> Arc<Inode> {
        // One WRITE puts the file into the cache.
        self.client(0).write(0, b"", StableHow::Unstable).unwrap();
        let service = self.server.service();
        let handle = service.handle_key.open(self.file.as_bytes()).unwrap();
        service.vfs.find_open(&root(&self.server), handle.kernel).expect("it was just written to")
    }

    /// Keeps WRITEs waiting until it is dropped.
    fn hold(&self) -> Held {
        let inode = self.inode();
        let guard = self.runtime.block_on(inode.lock.exclusive());
        Held { inode, _guard: guard }
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.server.counters().value(counter)
    }

    /// How often a way for a WRITE was chosen.
    fn choices(&self) -> u64 {
        const CHOICES: [Counter; 8] = [
            Counter::WritesCachedByMode,
            Counter::WritesCachedInFreeMemory,
            Counter::WritesWindowByMode,
            Counter::WritesWindowAsSmall,
            Counter::WritesWindowWithoutDirect,
            Counter::WritesWindowAsStream,
            Counter::WritesWindowUnderPressure,
            Counter::WritesDirect,
        ];
        CHOICES.into_iter().map(|choice| self.counter(choice)).sum()
    }

    fn content(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }

    /// The stamp that a client gets.
    fn stamp(&self) -> WccAttributes {
        let refused = self.client(0).write(u64::MAX, b"x", StableHow::Unstable).unwrap_err();
        refused.body.before.unwrap()
    }
}

fn handle_of(server: &Server, path: &Path) -> nfs3::FileHandle {
    let root = root(server);
    let opened = rustix::fs::open(path, crate::fs::PATH_ONLY, rustix::fs::Mode::empty());
    let handle = root.identify(opened.unwrap().as_fd()).unwrap();
    server.service().seal(&root, handle)
}

/// A file system that is mounted until this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// Runs `mount` with these arguments and the place; `None`, and the test is skipped, if it
    /// fails.
    fn at(place: PathBuf, args: &[&str]) -> Option<Self> {
        run_or_skip(Command::new("mount").args(args).arg(&place)).then(|| Self(place))
    }

    /// Takes all but so many bytes of its space with the file `filler`.
    fn fill(&self, free: u64) -> PathBuf {
        set_mode(&self.0, 0o777);
        let space = rustix::fs::statvfs(&self.0).unwrap();
        let path = self.0.join("filler");
        let (filler, flags) = (std::fs::File::create(&path), rustix::fs::FallocateFlags::empty());
        let taken = space.f_bavail * space.f_frsize - free;
        rustix::fs::fallocate(filler.unwrap(), flags, 0, taken).unwrap();
        path
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The server may still hold a descriptor there: detached now, gone when that is closed.
        drop(Command::new("umount").arg("--lazy").arg(&self.0).status());
    }
}

fn run_or_skip(command: &mut Command) -> bool {
    let done = command.status();
    let has_succeeded = done.as_ref().is_ok_and(std::process::ExitStatus::success);
    if !has_succeeded {
        skip(format!("{command:?}: {done:?}"));
    }
    has_succeeded
}

struct Held {
    inode: Arc<Inode>,
    _guard: ExclusiveGuard,
}

impl Held {
    /// Waits until so many WRITEs wait.
    fn holds_back(&self, writes: usize) {
        let begun = Instant::now();
        while self.inode.writes().unwrap().len() < writes {
            assert!(begun.elapsed() < PATIENCE, "{writes} WRITEs wait");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

struct Client {
    stream: TcpStream,
    uid: u32,
    file: nfs3::FileHandle,
    xid: u32,
}

impl Client {
    fn send(&mut self, offset: u64, data: &[u8], stable: StableHow) {
        let count = u32::try_from(data.len()).unwrap();
        let args = WriteArgs { file: self.file, offset, count, stable, data };
        self.send_call(nfs3::Procedure::Write, &args);
    }

    fn send_call(&mut self, procedure: nfs3::Procedure, args: &impl Encode) {
        let gids = Gids::new(&[]).unwrap();
        let (uid, gid, machine_name) = (self.uid, self.uid, b"test");
        let credential = Credential::Sys(AuthSys { stamp: 0, machine_name, uid, gid, gids });
        let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
        let procedure = procedure.code();
        self.xid += 1;
        let xid = self.xid;
        let mut w = Writer::new();
        CallHeader { xid, program, version, procedure, credential, verifier_flavor: 0 }
            .encode(&mut w);
        args.encode(&mut w);
        self.stream.write_all(&in_fragments(w.as_slice(), &[])).unwrap();
    }

    fn receive<R: for<'a> Decode<'a>>(&mut self) -> R {
        let reply = read_blocking(&mut self.stream, 1 << 20).unwrap().expect("a reply");
        decode_all(&reply[24..]).unwrap()
    }

    fn write(&mut self, offset: u64, data: &[u8], stable: StableHow) -> WriteReply {
        self.send(offset, data, stable);
        self.receive()
    }
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Has WRITEs of these users wait in this order, performs them as one batch, and returns the
/// replies.
fn perform(rig: &Rig, writes: &[(u32, u64, &[u8], StableHow)]) -> Vec<WriteReply> {
    perform_after(rig, writes, || ())
}

/// The same, with something done while they wait.
fn perform_after(
    rig: &Rig,
    writes: &[(u32, u64, &[u8], StableHow)],
    meanwhile: impl FnOnce(),
) -> Vec<WriteReply> {
    let batches = rig.counter(Counter::WriteBatches);
    let replies = perform_in_batches(rig, writes, meanwhile);
    assert_eq!(rig.counter(Counter::WriteBatches), batches + 1);
    replies
}

/// The same, in as many batches as they become.
fn perform_in_batches(
    rig: &Rig,
    writes: &[(u32, u64, &[u8], StableHow)],
    meanwhile: impl FnOnce(),
) -> Vec<WriteReply> {
    let held = rig.hold();
    let mut clients: Vec<_> = writes.iter().map(|(uid, ..)| rig.client(*uid)).collect();
    for (nth, (client, (_, offset, data, stable))) in (1..).zip(clients.iter_mut().zip(writes)) {
        client.send(*offset, data, *stable);
        held.holds_back(nth);
    }
    meanwhile();
    drop(held);
    clients.iter_mut().map(Client::receive).collect()
}

/// Puts the pairs of replies end to end, from the stamp before to the one that the file has now.
#[track_caller]
fn assert_chain<'a>(rig: &Rig, before: WccAttributes, pairs: impl Iterator<Item = &'a WccData>) {
    let mut pairs: Vec<_> = pairs
        .map(|wcc| (wcc.before.unwrap(), WccAttributes::from(wcc.after.as_ref().unwrap())))
        .collect();
    let mut last = before;
    while let Some(next) = pairs.iter().position(|(before, _)| *before == last) {
        last = pairs.swap_remove(next).1;
    }
    assert_eq!((pairs, last), (Vec::new(), rig.stamp()), "one chain of all");
}

const UNSTABLE: StableHow = StableHow::Unstable;

#[test]
fn small_writes_that_wait_together_do_not_come_alone() {
    let rig = Rig::new("auto");
    let data = [7; 47_008];
    for round in 0..100 {
        // Those of every other round fill the gaps of the one before.
        let records = [6, 0, 4, 2].map(|record| (round / 2) * 8 + record + round % 2);
        let writes = records.map(|record| (USER, record * data.len() as u64, &data[..], UNSTABLE));
        for reply in perform_in_batches(&rig, &writes, || ()) {
            reply.unwrap();
        }
    }
    let streamed = rig.counter(Counter::WritesWindowAsStream);
    assert!(streamed > 200, "{streamed} of 400, of which 8 MiB are no stream yet");
}

#[test]
fn writes_that_wait_are_performed_together() {
    for mode in ["buffered", "dontcache", "direct", "auto"] {
        let rig = Rig::new(mode);
        let data: Vec<_> = (1..=8u8).map(|byte| vec![byte; 47_008]).collect();
        let place = |nth: usize| (nth * 5 + 3) % data.len();
        let writes: Vec<_> = (0..data.len())
            .map(|nth| (0, (place(nth) * 47_008) as u64, &data[place(nth)][..], UNSTABLE))
            .collect();
        let before = rig.stamp();
        let replies = perform(&rig, &writes);
        assert!(rig.content() == data.concat(), "{mode}");
        let done: Vec<_> = replies.into_iter().map(Result::unwrap).collect();
        assert!(done.iter().all(|ok| (ok.count, ok.committed) == (47_008, UNSTABLE)), "{mode}");
        assert_chain(&rig, before, done.iter().map(|ok| &ok.wcc));
        // They are in the order of the file, and none has the length that the next one made.
        let sizes = done.iter().map(|ok| ok.wcc.after.as_ref().unwrap().size);
        assert!(sizes.eq((0..8).map(|nth| (place(nth) as u64 + 1) * 47_008)), "{mode}");
        let counters = [Counter::WritesInBatches, Counter::WritesVectored];
        assert_eq!(counters.map(|counter| rig.counter(counter)), [8, 8], "{mode}");
        assert_eq!(rig.counter(Counter::WriteBatchBytes), 8 * 47_008);
    }
}

#[test]
fn writes_ahead_in_the_file_come_in_a_later_batch() {
    for mode in ["buffered", "dontcache", "direct", "auto"] {
        let rig = Rig::new(mode);
        // Every second record, those that are ahead first.
        let data: Vec<_> = (1..=24u8).map(|byte| vec![byte; 47_008]).collect();
        let offset = |nth: usize| (nth * 2 * 47_008) as u64;
        let writes: Vec<_> =
            (0..data.len()).map(|nth| (0, offset(nth), &data[nth][..], UNSTABLE)).rev().collect();
        let before = rig.stamp();
        let done: Vec<_> =
            perform_in_batches(&rig, &writes, || ()).into_iter().map(Result::unwrap).collect();
        assert_chain(&rig, before, done.iter().map(|ok| &ok.wcc));
        let content = rig.content();
        for (nth, data) in data.iter().enumerate() {
            let at = usize::try_from(offset(nth)).unwrap();
            assert!(content[at..][..47_008] == data[..], "{mode}, {nth}");
        }
        // Half of them comes first, whose replies show no length of the others.
        let sizes: Vec<_> = done.iter().map(|ok| ok.wcc.after.as_ref().unwrap().size).collect();
        let longest = |nth: usize| offset(nth) + 47_008;
        assert_eq!(
            sizes[12..].iter().max(),
            Some(&longest(11)),
            "{mode}: the half behind is first"
        );
        assert_eq!(rig.counter(Counter::WritesInBatches), 24, "{mode}");
    }
}

#[test]
fn a_change_of_another_kind_waits_for_all_writes_before_it() {
    let rig = Rig::new("auto");
    let data = [7; 47_008];
    let writes: Vec<_> = (0..24).map(|nth| (0, nth * 2 * 47_008, &data[..], UNSTABLE)).collect();
    // A local one, as any that takes the lock: it sees all of them done.
    let (inode, runtime) = (rig.inode(), &rig.runtime);
    let (sender, size) = std::sync::mpsc::channel();
    let path = rig.path.clone();
    perform_in_batches(&rig, &writes, || {
        inode.close_write_batch();
        let change = inode.lock.queue();
        drop(runtime.spawn(async move {
            let _guard = change.await;
            sender.send(std::fs::metadata(path).unwrap().len()).unwrap();
        }));
    });
    assert_eq!(size.recv_timeout(PATIENCE), Ok(47 * 47_008));
}

#[test]
fn a_batch_that_is_long_enough_passes_by_the_page_cache() {
    let rig = Rig::new("direct");
    let data: Vec<_> = (1..=16u8).map(|byte| vec![byte; 47_008]).collect();
    // A ragged front, too.
    let offset = |nth: usize| (1_000 + nth * 47_008) as u64;
    let writes: Vec<_> =
        data.iter().enumerate().map(|(nth, data)| (0, offset(nth), &data[..], UNSTABLE)).collect();
    let before = rig.stamp();
    let done: Vec<_> = perform(&rig, &writes).into_iter().map(Result::unwrap).collect();
    assert_chain(&rig, before, done.iter().map(|ok| &ok.wcc));
    assert!(rig.content()[1_000..] == data.concat());
    if rig.counter(Counter::WritesWindowWithoutDirect) > 0 {
        return skip_in_ci_too("the file system does no direct I/O");
    }
    let counters = [Counter::WritesDirect, Counter::WritesSplit, Counter::DirectRefused];
    assert_eq!(counters.map(|counter| rig.counter(counter)), [16, 16, 0]);
}

#[test]
fn overlapping_writes_of_a_batch_keep_their_order() {
    for mode in ["buffered", "dontcache", "direct", "auto"] {
        let rig = Rig::new(mode);
        let data: Vec<_> = (1..=6u8).map(|byte| vec![byte; 30_000]).collect();
        let offsets = [0, 20_000, 10_000, 40_000, 15_000, 70_000];
        let writes: Vec<_> = offsets
            .into_iter()
            .zip(&data)
            .map(|(offset, data)| (0, offset, &data[..], UNSTABLE))
            .collect();
        let mut expected = vec![0; 100_000];
        for (_, offset, data, _) in &writes {
            expected[usize::try_from(*offset).unwrap()..][..data.len()].copy_from_slice(data);
        }
        let before = rig.stamp();
        let done: Vec<_> = perform(&rig, &writes).into_iter().map(Result::unwrap).collect();
        assert!(rig.content() == expected, "{mode}");
        assert_chain(&rig, before, done.iter().map(|ok| &ok.wcc));
    }
}

#[test]
fn each_write_of_a_batch_has_the_stability_that_it_asked_for() {
    let rig = Rig::new("auto");
    let all = [UNSTABLE, StableHow::DataSync, StableHow::FileSync, UNSTABLE, StableHow::DataSync];
    let writes: Vec<_> =
        (0..).zip(all).map(|(nth, stable)| (0, nth * 3, &b"abc"[..], stable)).collect();
    let inode = rig.inode();
    for (reply, stable) in perform(&rig, &writes).into_iter().zip(all) {
        let done = reply.unwrap();
        assert_eq!((done.count, done.committed), (3, stable));
    }
    assert_eq!(rig.content(), b"abcabcabcabcabc");
    assert!(!inode.is_dirty(), "the FILE_SYNC one covers all of them");
}

#[test]
fn unstable_writes_of_a_batch_are_flushed_by_file_sync_writes() {
    for mode in ["buffered", "dontcache", "direct", "auto"] {
        let rig = Rig::with(&format!("io_cache_write = \"{mode}\"\nfile_sync_writes = true"));
        let data = vec![7; 47_008];
        let writes: Vec<_> = (0..8).map(|nth| (0, nth * 47_008, &data[..], UNSTABLE)).collect();
        let inode = rig.inode();
        for reply in perform(&rig, &writes) {
            let done = reply.unwrap();
            assert_eq!((done.count, done.committed), (47_008, StableHow::FileSync), "{mode}");
        }
        assert!(!inode.is_dirty(), "{mode}");
        assert!(rig.content() == [7; 8 * 47_008], "{mode}");
    }
}

#[test]
fn each_write_of_a_batch_is_permitted_by_itself() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can act as other users");
    }
    let rig = Rig::new("auto");
    let owner = |uid| std::os::unix::fs::chown(&rig.path, Some(uid), None).unwrap();
    owner(USER);
    let writes = [
        (USER, 0, &b"aaa"[..], UNSTABLE),
        (OTHER, 3, b"bbb", UNSTABLE),
        (USER, 6, b"ccc", UNSTABLE),
        (0, 9, b"ddd", UNSTABLE),
    ];
    // All may write when they arrive, one not any more when their turn has come.
    let replies = perform_after(&rig, &writes, || set_mode(&rig.path, 0o600));
    assert_eq!(rig.content(), b"aaa\0\0\0cccddd");
    let refused = replies[1].as_ref().unwrap_err();
    assert_eq!(refused.status, nfs3::Status::Acces);
    let WccData { before, after } = &refused.body;
    assert_eq!(*before, after.as_ref().map(WccAttributes::from), "it has changed nothing");
    let done = replies.iter().filter_map(|reply| reply.as_ref().ok());
    assert_eq!(done.clone().count(), 3);
    assert_chain(&rig, before.unwrap(), done.map(|ok| &ok.wcc));
    assert_eq!(rig.counter(Counter::WritesVectored), 0, "neighbours are of other users");
}

/// The longest file that the file system takes, unless that is the longest of all.
fn file_bytes_max(path: &Path) -> Option<u64> {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let (mut fits, mut too_long) = (0, i64::MAX as u64);
    while fits + 1 < too_long {
        let len = fits + (too_long - fits) / 2;
        if file.set_len(len).is_ok() { fits = len } else { too_long = len }
    }
    file.set_len(0).unwrap();
    (fits + 1 < i64::MAX as u64).then_some(fits)
}

#[test]
fn writes_behind_one_that_fails_have_results_of_their_own() {
    for mode in ["buffered", "dontcache", "direct", "auto"] {
        let rig = Rig::new(mode);
        let Some(end) = file_bytes_max(&rig.path) else {
            return skip_in_ci_too("the file system has no limit on the length of a file");
        };
        let start = end - 5_000;
        let data = vec![7; 3_000];
        let writes: Vec<_> = [start, start + 3_000, start + 6_000, start - 3_000]
            .map(|offset| (0, offset, &data[..], UNSTABLE))
            .into();
        let choices = rig.choices();
        let replies = perform(&rig, &writes);
        assert_eq!(rig.choices() - choices, 4, "{mode}: each is counted once");
        assert_eq!(rig.counter(Counter::WritesVectored), 4, "{mode}");
        let counts: Vec<_> =
            replies.iter().map(|reply| reply.as_ref().map(|ok| ok.count)).collect();
        assert_eq!(counts[..2], [Ok(3_000), Ok(2_000)], "{mode}");
        assert_eq!(counts[2].unwrap_err().status, nfs3::Status::Fbig, "{mode}");
        assert_eq!(counts[3], Ok(3_000), "{mode}");
        let mut written = vec![0; 8_001];
        let read = std::fs::File::open(&rig.path).unwrap().read_at(&mut written, start - 3_000);
        assert_eq!(read.unwrap(), 8_000, "{mode}");
        assert!(written[..8_000].iter().all(|byte| *byte == 7), "{mode}");
    }
}

/// A program that another test starts has all descriptors of this process for a moment, so this has
/// its own.
#[test]
fn each_write_of_a_batch_on_a_full_disk_gets_the_space_of_a_deleted_file() {
    let name = "each_write_of_a_batch_on_a_full_disk_gets_the_space_of_a_deleted_file";
    if ran_in_own_process(&format!("vfs::write_batch::tests::{name}")) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("only root can mount a file system");
    }
    const LEN: usize = 16 * 1024;
    for mode in ["buffered", "dontcache", "direct", "auto"] {
        let dir = directory();
        let options = ["-t", "tmpfs", "-o", "size=4m", "tmpfs"];
        let Some(mount) = Mounted::at(dir.path().join("export"), &options) else { return };
        // The first two have room, and no part of the third.
        let filler = mount.fill(2 * LEN as u64);
        let rig = Rig::over(&format!("io_cache_write = \"{mode}\""), dir, Some(mount));
        // The server opens it.
        let mut client = rig.client(0);
        client.file = handle_of(&rig.server, &filler);
        client.write(0, b"", UNSTABLE).unwrap();
        let data: Vec<_> = (1..=6u8).map(|byte| vec![byte; LEN]).collect();
        let writes: Vec<_> = (0..)
            .zip(&data)
            .map(|(nth, data)| (0, nth * LEN as u64, &data[..], UNSTABLE))
            .collect();
        let replies = perform_after(&rig, &writes, || std::fs::remove_file(filler).unwrap());
        for (nth, reply) in replies.into_iter().enumerate() {
            let count = reply.map(|ok| ok.count).map_err(|failed| failed.status);
            assert_eq!(count, Ok(u32::try_from(LEN).unwrap()), "{nth} in {mode}");
        }
        assert!(rig.content() == data.concat(), "{mode}");
    }
}

#[test]
fn of_a_batch_for_which_the_disk_has_no_room_the_last_writes_are_refused() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can mount a file system");
    }
    const LEN: usize = 128 * 1024;
    for mode in ["buffered", "dontcache", "direct", "auto"] {
        let dir = directory();
        let (image, export) = (dir.path().join("image"), dir.path().join("export"));
        std::fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
        if !run_or_skip(Command::new("mkfs.xfs").arg("-q").arg(&image)) {
            return;
        }
        let options = ["-o", "loop", image.to_str().unwrap()];
        let Some(mount) = Mounted::at(export, &options) else { return };
        // XFS reserves the blocks of all that comes in one call, or none.
        mount.fill(600 * 1024);
        let rig = Rig::over(&format!("io_cache_write = \"{mode}\""), dir, Some(mount));
        let data: Vec<_> = (1..=8u8).map(|byte| vec![byte; LEN]).collect();
        let writes: Vec<_> = (0..)
            .zip(&data)
            .map(|(nth, data)| (0, nth * LEN as u64, &data[..], UNSTABLE))
            .collect();
        let replies = perform(&rig, &writes);
        let counts: Vec<_> = replies
            .into_iter()
            .map(|reply| reply.map(|ok| ok.count as usize).map_err(|failed| failed.status))
            .collect();
        let whole = counts.iter().take_while(|count| **count == Ok(LEN)).count();
        assert!((1..8).contains(&whole), "{mode}: {counts:?}");
        // One may be short.
        let is_refused = |count: &Result<_, _>| *count == Err(nfs3::Status::Nospc);
        assert!(counts[whole + 1..].iter().all(is_refused), "{mode}: {counts:?}");
        let written: usize = counts.iter().flatten().sum();
        assert!(rig.content() == data.concat()[..written], "{mode}: {counts:?}");
    }
}

#[test]
fn a_change_fails_if_a_flush_of_another_call_has_failed_since_it_began() {
    let rig = Rig::new("buffered");
    let (inode, mut client) = (rig.inode(), rig.client(0));
    let new_attributes = SetAttributes { size: Some(4097), ..SetAttributes::default() };
    let args = SetattrArgs { object: rig.file, new_attributes, guard: None };
    for fails in [true, false] {
        let flushes = rig.runtime.block_on(inode.flushed.lock());
        let changes = inode.changes();
        client.send_call(nfs3::Procedure::Setattr, &args);
        let begun = Instant::now();
        while inode.changes() == changes {
            assert!(begun.elapsed() < PATIENCE, "the file is cut");
            std::thread::sleep(Duration::from_millis(1));
        }
        if fails {
            inode.note_failure();
        }
        drop(flushes);
        let status = client.receive::<SetattrReply>().map(drop).map_err(|failed| failed.status);
        assert_eq!(status, if fails { Err(nfs3::Status::Io) } else { Ok(()) });
    }
}
