//! Bounds that hold whatever clients do: connections, memory, open files.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proto::mount3;
use proto::nfs3::{self, *};
use rustix::io::dup;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spillway_server::counters::Counter;

use crate::client::{Client, encoded, in_fragments, mode, ok, refusal};
use crate::fixture::Fixture;
use crate::local_file::eventually;
use crate::own_process::ran_in_own_process;

#[test]
fn slow_peers_delay_no_other_client() {
    let fixture = Fixture::with_settings("memory = \"8MiB\"");
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let write = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write.code());
    let (data, stable) = (vec![2; 4096], StableHow::Unstable);
    let args = encoded(&WriteArgs { file, offset: 0, count: 4096, stable, data: &data });
    let record = in_fragments(&client.encode(1, write, &args), &[]);
    let mut trickling: Vec<Client> = (0..50).map(|_| fixture.client()).collect();
    for round in 0..20 {
        for peer in &mut trickling {
            peer.send_bytes(&record[round * 10..round * 10 + 10]);
        }
        assert_eq!(ok(client.write(file, 8192, b"quick")).count, 5);
        client.readdir(root, 0, 4096).unwrap();
    }
    // They were slow, not wrong.
    for peer in &mut trickling {
        peer.send_bytes(&record[200..]);
        assert!(peer.receive_record().is_some());
    }
    assert_eq!(client.read(file, 0, 4096).unwrap().data, data);
}

#[test]
fn a_client_that_takes_no_replies_cannot_ask_on() {
    let fixture = Fixture::new();
    for i in 0..500 {
        std::fs::write(fixture.exported(&format!("{i}-{}", "n".repeat(200))), "").unwrap();
    }
    let (mut client, root) = fixture.mounted();
    let readdir = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Readdir.code());
    let verifier = CookieVerifier::default();
    let args = encoded(&ReaddirArgs { dir: root, cookie: 0, verifier, count: 1 << 17 });
    let calls: u64 = 2000;
    let before = fixture.counter(Counter::Calls);
    for _ in 0..calls {
        let xid = client.xid();
        let call = client.encode(xid, readdir, &args);
        client.send_record(&call);
    }
    let taken = || fixture.counter(Counter::Calls) - before;
    let mut last = u64::MAX;
    while taken() != last {
        last = taken();
        thread::sleep(Duration::from_millis(200));
    }
    // Some wait in the sockets' buffers; 230 MB of replies do not.
    assert!(last < calls / 2, "{last} of {calls} calls were taken");
    // A client that continues to read is served.
    for _ in 0..calls {
        client.receive_record().unwrap();
    }
    assert_eq!(taken(), calls);
}

#[test]
fn strangers_cannot_take_the_memory() {
    let fixture = Fixture::with(
        r#"
        memory = "8MiB"
        [[export]]
        path = "$DIR/export"
        name = "/export"
        squash = "none"
        [[export.client]]
        hosts = ["127.0.0.1"]
        "#,
    );
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let write = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write.code());
    let (data, stable) = (vec![2; 1 << 20], StableHow::Unstable);
    let args = encoded(&WriteArgs { file, offset: 0, count: 1 << 20, stable, data: &data });
    let record = in_fragments(&client.encode(1, write, &args), &[]);
    // Each begins a WRITE and never ends it.
    let elsewhere = std::net::Ipv4Addr::new(127, 0, 0, 2);
    let mut strangers: Vec<Client> =
        (0..12).map(|_| Client::connect_from(elsewhere, fixture.address())).collect();
    for stranger in &mut strangers {
        stranger.send_bytes(&record[..1000]);
    }
    thread::sleep(Duration::from_millis(200));
    for _ in 0..4 {
        assert_eq!(ok(client.write(file, 0, &data)).count, 1 << 20);
    }
}

#[test]
fn strangers_that_read_no_lists_of_exports_take_none_of_the_memory() {
    // A list of some 1500 bytes.
    let hosts: Vec<String> = (1..60).map(|net| format!("\"10.11.{net}.0/24\"")).collect();
    let fixture = Fixture::with(&format!(
        r#"
        memory = "8MiB"
        [[export]]
        path = "$DIR/export"
        name = "/export"
        [[export.client]]
        hosts = [{}]
        "#,
        hosts.join(", ")
    ));
    let before = fixture.figure("buffers_in_use_bytes");
    let export = (mount3::PROGRAM, mount3::VERSION, mount3::Procedure::Export.code());
    let mut strangers = Vec::new();
    for _ in 0..4 {
        let mut stranger = fixture.client();
        stranger.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let calls = in_fragments(&stranger.encode(1, export, &[]), &[]).repeat(1000);
        // Until the server reads no more, because its replies are not read.
        while stranger.stream.write_all(&calls).is_ok() {}
        strangers.push(stranger);
    }
    assert!(eventually(|| fixture.figure("calls_in_flight") == 4 * 2), "all replies are sent");
    assert_eq!(fixture.figure("buffers_in_use_bytes"), before);
}

/// The most memory that this process has had so far, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

const MIB: u64 = 1 << 20;
/// The budget of the servers below, and what the process may grow beside it: stacks, tables, and
/// the clients, which are here too.
const BUDGET: u64 = 16 * MIB;
const BESIDE: u64 = 24 * MIB;

#[test]
fn many_writers_stay_within_the_budget() {
    if ran_in_own_process("limits::many_writers_stay_within_the_budget") {
        return;
    }
    let fixture = Fixture::with_settings("memory = \"16MiB\"");
    let (mut client, root) = fixture.mounted();
    let write = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write.code());
    let stable = StableHow::Unstable;
    let data = vec![3; 1 << 20];
    let calls: Vec<Vec<u8>> = (0..16)
        .map(|i| {
            let file = client.create(root, &format!("f{i}"));
            let args = WriteArgs { file, offset: 0, count: 1 << 20, stable, data: &data };
            let mut record = in_fragments(&client.encode(i, write, &encoded(&args)), &[]);
            // The data is the same for all; each keeps its own head.
            record.truncate(record.len() - data.len());
            record
        })
        .collect();
    let before = peak_memory();
    thread::scope(|scope| {
        for head in &calls {
            let mut client = fixture.client();
            let (data, mut stream) = (&data, client.stream.try_clone().unwrap());
            scope.spawn(move || {
                for _ in 0..32 {
                    stream.write_all(head).unwrap();
                    stream.write_all(data).unwrap();
                }
            });
            scope.spawn(move || (0..32).for_each(|_| drop(client.receive_record().unwrap())));
        }
    });
    let grown = peak_memory() - before;
    assert!(grown < BUDGET + BESIDE, "grown by {} MiB", grown / MIB);
}

#[test]
fn clients_that_take_no_replies_stay_within_the_budget() {
    if ran_in_own_process("limits::clients_that_take_no_replies_stay_within_the_budget") {
        return;
    }
    let fixture = Fixture::with_settings("memory = \"16MiB\"");
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    ok(client.write(file, 0, &vec![4; 1 << 20]));
    let read = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Read.code());
    let args = encoded(&ReadArgs { file, offset: 0, count: 1 << 20 });
    let before = peak_memory();
    let greedy: Vec<Client> = (0..8)
        .map(|_| {
            let mut client = fixture.client();
            for _ in 0..64 {
                let xid = client.xid();
                let call = client.encode(xid, read, &args);
                client.send_record(&call);
            }
            client
        })
        .collect();
    // Names and attributes need no such memory, so other clients go on with those.
    for _ in 0..200 {
        client.getattr(file).unwrap();
        client.find(root, "f");
        thread::sleep(Duration::from_millis(2));
    }
    let grown = peak_memory() - before;
    assert!(grown < BUDGET + BESIDE, "grown by {} MiB", grown / MIB);
    // A READ needs the memory that they sit on, and gets it in the time of a few windows.
    let began = Instant::now();
    assert_eq!(client.read(file, 0, 1 << 20).unwrap().data.len(), 1 << 20);
    assert!(began.elapsed() < Duration::from_secs(10), "waited {:?}", began.elapsed());
    drop(greedy);
}

#[test]
fn unread_listings_stay_within_the_budget() {
    if ran_in_own_process("limits::unread_listings_stay_within_the_budget") {
        return;
    }
    let fixture = Fixture::with_settings("memory = \"16MiB\"");
    // Replies of a megabyte each, but for those that are cut short because they take too long.
    for i in 0..4000 {
        std::fs::write(fixture.exported(&format!("{i:05}-{}", "n".repeat(240))), "").unwrap();
    }
    let (mut client, root) = fixture.mounted();
    assert!(eventually(|| client.readdir(root, 0, 1 << 20).unwrap().bytes > 1 << 18));
    let (verifier, count) = (CookieVerifier::default(), 1 << 20);
    let readdir = encoded(&ReaddirArgs { dir: root, cookie: 0, verifier, count });
    let readdirplus = encoded(&ReaddirplusArgs {
        dir: root,
        cookie: 0,
        verifier,
        dir_count: count,
        max_count: count,
    });
    let calls = [(Procedure::Readdir, readdir), (Procedure::Readdirplus, readdirplus)];
    let before = peak_memory();
    let greedy: Vec<Client> = calls
        .iter()
        .cycle()
        .take(100)
        .map(|(procedure, args)| {
            let mut client = fixture.client();
            for _ in 0..16 {
                let xid = client.xid();
                let target = (nfs3::PROGRAM, nfs3::VERSION, procedure.code());
                let call = client.encode(xid, target, args);
                client.send_record(&call);
            }
            client
        })
        .collect();
    let began = Instant::now();
    assert!(!client.readdir(root, 0, 1 << 16).unwrap().names.is_empty());
    assert!(began.elapsed() < Duration::from_secs(15), "waited {:?}", began.elapsed());
    client.getattr(root).unwrap();
    let grown = peak_memory() - before;
    assert!(grown < BUDGET + BESIDE, "grown by {} MiB", grown / MIB);
    drop(greedy);
}

/// Sixteen peers each send the first bytes of a record and then one byte at a time, beside a WRITE
/// of another client.
#[track_caller]
fn do_not_delay_others(fixture: &Fixture, file: FileHandle, record: &[u8], at_once: usize) {
    let done = AtomicBool::new(false);
    let peers: Vec<Client> = (0..16).map(|_| fixture.client()).collect();
    thread::scope(|scope| {
        for peer in &peers {
            let (mut stream, done) = (&peer.stream, &done);
            scope.spawn(move || {
                // One that was given up takes no more.
                let mut bytes = record[at_once..].chunks(1);
                let mut is_open = stream.write_all(&record[..at_once]).is_ok();
                while is_open && !done.load(Ordering::Relaxed) {
                    is_open = bytes.next().is_some_and(|byte| stream.write_all(byte).is_ok());
                    thread::sleep(Duration::from_millis(20));
                }
            });
        }
        thread::sleep(Duration::from_millis(100));
        let mut client = fixture.client();
        let began = Instant::now();
        let written = client.write(file, 0, &vec![3; 1 << 20]);
        done.store(true, Ordering::Relaxed);
        for peer in &peers {
            let _ = peer.stream.shutdown(std::net::Shutdown::Both);
        }
        assert_eq!(ok(written).count, 1 << 20);
        assert!(began.elapsed() < Duration::from_secs(10), "waited {:?}", began.elapsed());
    });
}

#[test]
fn writers_that_send_single_bytes_do_not_delay_others() {
    let fixture = Fixture::with_settings("memory = \"16MiB\"");
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let write = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write.code());
    let data = vec![3; 1 << 20];
    let args =
        WriteArgs { file, offset: 0, count: 1 << 20, stable: StableHow::Unstable, data: &data };
    let mut call = client.encode(1, write, &encoded(&args));
    let head = call.len() - data.len();
    do_not_delay_others(&fixture, file, &in_fragments(&call, &[]), 4 + head);
    let fragments: Vec<usize> = (head..head + 2000).collect();
    do_not_delay_others(&fixture, file, &in_fragments(&call, &fragments), 4 + head);
    let at_once = 4 + call.len();
    call.extend([0; 2000]);
    do_not_delay_others(&fixture, file, &in_fragments(&call, &[]), at_once);
}

#[test]
fn more_files_than_descriptors_are_no_error() {
    if ran_in_own_process("limits::more_files_than_descriptors_are_no_error") {
        return;
    }
    let limit = Some(1024);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let fixture = Fixture::with_settings("max_connections = 64");
    let (mut client, root) = fixture.mounted();
    let files: Vec<FileHandle> = (0..5000)
        .map(|i| {
            let file = client.create(root, &format!("f{i}"));
            assert_eq!(ok(client.write(file, 0, b"data")).count, 4);
            file
        })
        .collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = fixture.client();
                for file in &files {
                    assert_eq!(client.read(*file, 0, 10).unwrap().data, b"data");
                }
            });
        }
    });
    for file in files.iter().step_by(7) {
        ok(client.commit(*file));
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 900, "{open} descriptors are open");
}

#[test]
fn flush_without_a_descriptor_left_is_no_failed_flush() {
    if ran_in_own_process("limits::flush_without_a_descriptor_left_is_no_failed_flush") {
        return;
    }
    let mut fixture =
        Fixture::with("[[export]]\npath = \"$DIR/export\"\nname = \"/export\"\nsquash = \"none\"");
    let (mut client, root) = fixture.mounted();
    client.create(root, "f");
    let witness = client.create(root, "witness");
    // The server has no descriptor of the file but the one that finding it opens.
    fixture.restart();
    let mut client = fixture.client();
    let verifier = ok(client.write(witness, 0, b"unstable")).verifier;
    let file = client.find(root, "f");
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    let done = client.setattr(file, mode(0o600));
    setrlimit(Resource::Nofile, limit).unwrap();
    ok(done);
    assert_eq!(ok(client.commit(witness)).verifier, verifier);
}

/// All descriptors of this process that are free, taken.
pub(crate) struct Exhausted(Vec<OwnedFd>);

impl Exhausted {
    /// Lowers the limit to what is open, and takes the gaps.
    pub(crate) fn new() -> Self {
        let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
        let number = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().to_str().unwrap().parse::<u64>().unwrap()
        };
        let limit = getrlimit(Resource::Nofile);
        let current = Some(numbers.map(number).max().unwrap() + 1);
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        Self(std::iter::from_fn(|| dup(std::io::stdin()).ok()).collect())
    }
}

impl Drop for Exhausted {
    fn drop(&mut self) {
        self.0.clear();
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    }
}

#[test]
fn every_operation_makes_room_when_there_is_no_descriptor_left() {
    if ran_in_own_process("limits::every_operation_makes_room_when_there_is_no_descriptor_left") {
        return;
    }
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    for i in 0..20 {
        std::fs::write(fixture.exported(&format!("open-{i}")), "").unwrap();
    }
    std::fs::write(fixture.exported("there"), "").unwrap();
    let file = client.create(root, "f");
    // The server can close the files that it has open and no call uses.
    let mut exhausted = |what: &str, succeeds: &dyn Fn(&mut Client) -> bool| {
        for i in 0..20 {
            client.find(root, &format!("open-{i}"));
        }
        let exhausted = Exhausted::new();
        let succeeded = succeeds(&mut client);
        drop(exhausted);
        assert!(succeeded, "{what}");
    };
    exhausted("LOOKUP", &|client| client.lookup(root, b"there").is_ok());
    exhausted("READDIR", &|client| client.readdir(root, 0, 4000).is_ok());
    let create = |client: &mut Client, how| client.create_how(root, b"new", how).is_ok();
    exhausted("CREATE", &|client| create(client, CreateHow::Guarded(mode(0o644))));
    exhausted("REMOVE", &|client| client.remove(root, b"new").is_ok());
    exhausted("exclusive CREATE", &|client| create(client, CreateHow::Exclusive([7; 8])));
    exhausted("MKDIR", &|client| client.try_mkdir(root, b"d", mode(0o755)).is_ok());
    exhausted("RMDIR", &|client| client.rmdir(root, b"d").is_ok());
    exhausted("SYMLINK", &|client| client.symlink(root, b"s", b"target").is_ok());
    let fifo = MknodData::Fifo(mode(0o644));
    exhausted("MKNOD", &|client| client.mknod(root, b"p", fifo).is_ok());
    exhausted("LINK", &|client| client.link(file, root, b"linked").is_ok());
    exhausted("RENAME", &|client| client.rename((root, b"there"), (root, b"s")).is_ok());
    exhausted("WRITE", &|client| client.write(file, 0, b"data").is_ok());
    exhausted("READ", &|client| client.read(file, 0, 10).is_ok_and(|read| read.data == b"data"));
}

#[test]
fn an_object_that_cannot_be_opened_after_creation_is_removed() {
    if ran_in_own_process("limits::an_object_that_cannot_be_opened_after_creation_is_removed") {
        return;
    }
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    client.getattr(root).unwrap();
    // The server has nothing open that it could close, but the directory.
    let exhausted = Exhausted::new();
    let made = [
        ("directory", client.try_mkdir(root, b"directory", mode(0o755))),
        ("link", client.symlink(root, b"link", b"target")),
        ("fifo", client.mknod(root, b"fifo", MknodData::Fifo(mode(0o644)))),
    ];
    drop(exhausted);
    for (name, reply) in made {
        assert_eq!(refusal(reply), Status::Jukebox, "{name}");
        let left = fixture.exported(name).symlink_metadata();
        assert!(left.is_err(), "{name} was left behind by a call that failed");
    }
}

#[test]
fn many_small_files_in_the_window_need_few_descriptors() {
    if ran_in_own_process("limits::many_small_files_in_the_window_need_few_descriptors") {
        return;
    }
    let limit = Some(256);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    for mode in ["dontcache", "direct"] {
        let fixture = Fixture::in_modes("max_connections = 16", mode, mode);
        let write_files = |writer: u32| {
            let (mut client, root) = fixture.mounted();
            for i in 0..100 {
                // Each call succeeds: none is answered with JUKEBOX.
                let file = client.create(root, &format!("{writer}-{i}"));
                assert_eq!(ok(client.write(file, 0, b"data")).count, 4);
            }
        };
        thread::scope(|scope| {
            for writer in 0..4 {
                let write_files = &write_files;
                scope.spawn(move || write_files(writer));
            }
        });
        assert!(fixture.figure("window_files") <= 32);
    }
}

/// Calls take as long as the limit demands, and no longer once a reload has taken it away. Another
/// export, on a connection of its own, has none.
#[test]
fn limits_of_an_export_hold_back_calls_and_bytes() {
    const EXPORT: &str = "[[export]]\npath = \"$DIR/export\"\nsquash = \"none\"\nname = ";
    const MIB: u32 = 1 << 20;
    let free = format!("{EXPORT}\"/free\"\n");
    let limited = format!("{EXPORT}\"/limited\"\n");
    let fixture = Fixture::with(&format!("{limited}client_calls_per_sec = 100\n{free}"));
    let (mut client, mut other) = (fixture.client(), fixture.client());
    let (root, free_root) = (client.mnt("/limited"), other.mnt("/free"));
    let waits = || fixture.counter(Counter::LimitWaits);
    for _ in 0..100 {
        other.getattr(free_root).unwrap();
    }
    assert_eq!(waits(), 0);
    let start = Instant::now();
    let getattr = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Getattr.code());
    // At once: a busy machine would pause between the calls by itself.
    for xid in 0..31 {
        let call = client.encode(xid, getattr, &encoded(&root));
        client.send_record(&call);
    }
    (0..31).for_each(|_| drop(client.receive_record().unwrap()));
    // 50 ms are permitted at once, and the last call is not waited for.
    assert!(start.elapsed() >= Duration::from_millis(300 - 50 - 10), "{:?}", start.elapsed());
    assert!(waits() > 0);

    let file = client.create(root, "f");
    fixture.reload(&format!("{limited}bytes_per_sec = \"10MiB\"\n{free}"));
    let start = Instant::now();
    ok(client.write(file, 0, &vec![1; 1 << 20]));
    for _ in 0..3 {
        assert_eq!(client.read(file, 0, MIB).unwrap().data.len(), 1 << 20);
    }
    // The WRITE and two READs are waited for.
    assert!(start.elapsed() >= Duration::from_millis(300 - 50 - 10), "{:?}", start.elapsed());

    fixture.reload(&format!("{limited}{free}"));
    client.getattr(root).unwrap();
    let before = waits();
    for _ in 0..100 {
        client.getattr(root).unwrap();
    }
    assert_eq!(waits(), before);
}
