//! Loads on the null server, on a real one, and on some that behave badly.

mod nfs4;

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::{Identity, MountOptions, NfsUrl, mount3};
use proto::nfs3::{
    CommitOk, CommitReply, Failure, FileType, Procedure, ReadArgs, ReadOk, ReadReply,
    SetAttributes, Status, WccData, WriteArgs, WriteOk, WriteReply, WriteVerifier,
};
use proto::oncrpc::{decode_call, encode_success};
use proto::xdr::{Decode, Encode, Reader, Writer};
use rpc::record;
use server::Server;
use server::config::{Config, Overrides};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::plan::Transfer;
use super::pool::Unit;
use super::*;
use crate::null_server;

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(Pool::fill)
}

fn identity() -> Identity {
    Identity::of_process()
}

fn service(address: SocketAddr) -> Service {
    let (read_bytes_max, write_bytes_max) = (1 << 20, 1 << 20);
    let (version, path) = (Version::V3, Vec::new());
    Service {
        address,
        source: None,
        identity: identity(),
        read_bytes_max,
        write_bytes_max,
        version,
        path,
    }
}

fn write_load(pattern: Pattern, operations_by_rank: &[u64], io_bytes: u32) -> Load {
    Load {
        direction: Direction::Write,
        pattern,
        operations_by_rank: operations_by_rank.to_vec(),
        depth: 3,
        io_bytes,
        time_max: None,
        stop: Stop::default(),
        verify: Verify::Full,
        stable: StableHow::Unstable,
        generation: 0,
        timeout: TIMEOUT,
    }
}

fn read_load(pattern: Pattern, operations_by_rank: &[u64], io_bytes: u32) -> Load {
    Load { direction: Direction::Read, ..write_load(pattern, operations_by_rank, io_bytes) }
}

fn put(load: &Load, service: &Service, files: &mut [LoadFile]) -> Outcome {
    run(pool(), load, service, files, &mut Watch::none()).unwrap()
}

fn verify(service: &Service, files: &mut [LoadFile]) -> Outcome {
    verify_all(pool(), service, files, 100_000, 4, &Stop::default()).unwrap()
}

fn assert_done(outcome: &Outcome, operations: u64, io_bytes: u32) {
    assert_eq!((outcome.errors, &outcome.first_trouble()), (0, &None));
    assert_eq!(outcome.operations, operations);
    assert_eq!(outcome.bytes, operations * u64::from(io_bytes));
    assert_eq!(outcome.latency.len(), operations);
    assert_eq!(outcome.wrong_bytes, 0);
    let of_ranks = outcome.by_rank.iter().map(|share| share.operations);
    assert_eq!(of_ranks.sum::<u64>(), operations);
    let of_seconds = outcome.seconds.iter().map(|second| (second.bytes, second.operations));
    let sums = of_seconds.fold((0, 0), |sum, second| (sum.0 + second.0, sum.1 + second.1));
    assert_eq!(sums, (outcome.bytes, operations));
    let secs: f64 = outcome.seconds.iter().map(|second| second.secs).sum();
    assert!((secs - outcome.time.as_secs_f64()).abs() < 1e-6, "{secs} s of {:?}", outcome.time);
    assert!(outcome.cpu > Duration::ZERO && outcome.commit_time < outcome.time);
}

/// A null server on a thread that ends with the tests.
fn null() -> Service {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || null_server::serve(&listener));
    service(address)
}

fn null_files(count: u64) -> Vec<LoadFile> {
    let handle = FileHandle::new(&[2; 32]).unwrap();
    (0..count).map(|id| LoadFile::new(format!("file-{id}"), handle, id)).collect()
}

/// A Spillway server on a directory of its own.
struct Real {
    dir: TempDir,
    runtime: Runtime,
    server: Server,
    nfs: client::Nfs3,
    root: FileHandle,
    service: Service,
}

impl Real {
    fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let export = dir.path().join("export");
        std::fs::create_dir(&export).unwrap();
        let text = format!(
            "listen = \"127.0.0.1:0\"\nstate_dir = {:?}\n\
             nfs_versions = [\"3\", \"4.1\", \"4.2\"]\n[[export]]\npath = {export:?}\n\
             name = \"/data\"\nsquash = \"none\"\nio_cache_read = \"buffered\"\n\
             io_cache_write = \"buffered\"",
            dir.path().join("state")
        );
        let config = Config::parse(&text, Path::new("test"), &Overrides::default()).unwrap();
        let runtime = Runtime::new().unwrap();
        let (server, mounted, service) = runtime.block_on(async {
            let server = Server::start(config).await.unwrap();
            let url = format!("nfs://{}/data", server.local_addrs()[0]);
            let url: NfsUrl = url.parse().unwrap();
            let identity = Arc::new(identity());
            let mounted = mount3::mount(&url, &MountOptions::default(), &identity).await.unwrap();
            let service = Service::of(&mounted.nfs, mounted.root).await.unwrap();
            (server, mounted, service)
        });
        Self { dir, runtime, server, nfs: mounted.nfs, root: mounted.root, service }
    }

    fn create(&self, count: u64) -> Vec<LoadFile> {
        let names = (0..count).map(|number| format!("file-{number}"));
        self.runtime.block_on(create_files(&self.nfs, self.root, names)).unwrap()
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.path().join("export").join(format!("file-{number}"))
    }

    fn counter(&self, wanted: &str) -> u64 {
        let figures = self.server.figures();
        figures.iter().find(|(name, _)| *name == wanted).unwrap().1
    }

    fn stop(self) {
        self.runtime.block_on(self.server.shutdown()).unwrap();
    }
}

/// The first `bytes` bytes that a unit has to hold.
fn unit(file: u64, number: u64, generation: u32, bytes: u32) -> &'static [u8] {
    pool().bytes(pool().place(Unit { file, number, generation }, 0..bytes))
}

#[test]
fn loads_of_all_patterns_on_the_null_server() {
    let service = null();
    let random = Pattern::Random { units: 70, seed: 1 };
    for pattern in [Pattern::EasySequential, Pattern::HardInterleaved, random] {
        // Below and above what is copied, and lengths that need padding.
        for io_bytes in [1, 4096, 47_001, 1 << 20] {
            let mut files = null_files(2);
            let write = write_load(pattern, &[70, 30], io_bytes);
            assert_done(&put(&write, &service, &mut files), 100, io_bytes);
            let known: u64 = files.iter().map(|file| file.contents.known_bytes()).sum();
            assert_eq!(known, 100 * u64::from(io_bytes));

            let mut unknown = null_files(2);
            let read = read_load(pattern, &[70, 30], io_bytes);
            let outcome = put(&read, &service, &mut unknown);
            assert_done(&outcome, 100, io_bytes);
            assert_eq!(outcome.verified_bytes, 0, "of these files nothing is known");
        }
    }
}

#[test]
fn the_null_server_can_be_mounted_and_worked_on() {
    let url: NfsUrl = format!("nfs://{}/any/path", null().address).parse().unwrap();
    Runtime::new().unwrap().block_on(async {
        let identity = Arc::new(identity());
        let options = MountOptions::default();
        let exports = client::export::Exports::find(&url, &options, &identity).await.unwrap();
        let holding = exports.mount(&url.path, false, |_| false).await.unwrap();
        assert_eq!(holding.export, b"/");
        let mount3::Mounted { nfs, root } = holding.mounted.unwrap();
        let service = Service::of(&nfs, root).await.unwrap();
        assert_eq!((service.read_bytes_max, service.write_bytes_max), (4 << 20, 4 << 20));
        let dir = nfs.mkdir(root, b"any", SetAttributes::default()).await.unwrap().object.unwrap();
        assert_eq!(nfs.getattr(dir).await.unwrap().file_type, FileType::Directory);
        let files = create_files(&nfs, dir, ["a".into(), "b".into()]).await.unwrap();
        assert_eq!(files.iter().map(|file| file.id).collect::<Vec<_>>(), [0, 1]);
        let file = nfs.getattr(files[0].handle).await.unwrap();
        assert_eq!((file.file_type, file.size), (FileType::Regular, null_server::FILE_BYTES));
        let last = nfs.read(files[0].handle, null_server::FILE_BYTES - 10, 100).await.unwrap();
        assert_eq!((last.data.len(), last.eof), (10, true));
        nfs.fsstat(root).await.unwrap();
        nfs.pathconf(root).await.unwrap();
        assert_eq!(nfs.access(root, 0x3f).await.unwrap().access, 0x3f);
        remove_files(&nfs, dir, ["a".into()]).await.unwrap();
        nfs.rmdir(root, b"any").await.unwrap();
        assert!(nfs.readlink(root).await.is_err());
    });
}

#[test]
fn the_null_server_returns_other_data_than_was_written() {
    const UNITS: u64 = 400;
    const BYTES: u64 = UNITS * 20_000;
    let service = null();
    let mut files = null_files(1);
    put(&write_load(Pattern::EasySequential, &[UNITS], 20_000), &service, &mut files);
    let read = read_load(Pattern::EasySequential, &[UNITS], 20_000);
    let full = put(&read, &service, &mut files);
    assert_eq!(full.verified_bytes, BYTES);
    // Of random bytes one in 256 is right.
    assert!(full.wrong_bytes > BYTES / 100 * 99, "{}", full.wrong_bytes);
    let sampled = put(&Load { verify: Verify::Sampled, ..read.clone() }, &service, &mut files);
    assert!(sampled.verified_bytes > 20_000 && sampled.verified_bytes <= BYTES / 20);
    let nothing = put(&Load { verify: Verify::Nothing, ..read }, &service, &mut files);
    assert_eq!((nothing.verified_bytes, nothing.wrong_bytes), (0, 0));
    assert_eq!(nothing.operations, UNITS);
}

#[test]
fn each_load_compares_other_reads() {
    const UNITS: u64 = 640;
    let service = null();
    // The null server returns other data, so the first READ that is compared is wrong; of the unit
    // that is compared in each load nothing is known.
    let mut files = null_files(1);
    let unit = |unit| (Transfer { file: 0, unit, bytes: 512 }, Written::Whole);
    files[0].contents.note(0, (1..UNITS).map(unit));
    let read = read_load(Pattern::EasySequential, &[UNITS], 512);
    let read = Load { verify: Verify::Sampled, ..read };
    let outcomes: Vec<_> = (0..6).map(|_| put(&read, &service, &mut files)).collect();
    let first: HashSet<_> = outcomes.iter().map(|outcome| outcome.first_wrong).collect();
    assert!(first.len() > 1, "{first:?}");
    let compared: u64 = outcomes.iter().map(|outcome| outcome.verified_bytes / 512).sum();
    // One in 64 of 3,840 is 60, give or take 8.
    assert!((15..110).contains(&compared), "{compared} READs");
}

#[test]
fn files_of_ranks_are_on_the_disk_as_planned() {
    const IO_BYTES: u32 = 47_001;
    let real = Real::start();
    let mut files = real.create(3);
    let write = write_load(Pattern::EasySequential, &[9, 5, 1], IO_BYTES);
    let outcome = put(&write, &real.service, &mut files);
    assert_done(&outcome, 15, IO_BYTES);
    assert_eq!(outcome.operations_by_rank(), [9, 5, 1]);
    assert!(outcome.commit_time > Duration::ZERO);
    assert_eq!(real.counter("write_bytes"), outcome.bytes);
    assert_eq!(real.counter("writes_cached_by_mode"), outcome.operations);
    assert_eq!(real.counter("commits"), 3);
    for (number, operations) in [(0, 9), (1, 5), (2, 1)] {
        let expected: Vec<_> = (0..operations)
            .flat_map(|index| unit(number, index, 0, IO_BYTES).iter().copied())
            .collect();
        assert!(std::fs::read(real.path(number)).unwrap() == expected, "file {number}");
    }
    let read = read_load(Pattern::EasySequential, &[9, 5, 1], IO_BYTES);
    let outcome = put(&read, &real.service, &mut files);
    assert_done(&outcome, 15, IO_BYTES);
    assert_eq!((outcome.verified_bytes, outcome.commit_time), (outcome.bytes, Duration::ZERO));
    assert_eq!(real.counter("read_bytes"), outcome.bytes);
    assert_eq!(real.counter("commits"), 3);
    let outcome = verify(&real.service, &mut files);
    assert_eq!((outcome.verified_bytes, outcome.wrong_bytes), (15 * u64::from(IO_BYTES), 0));
    let names = (0..4).map(|number| format!("file-{number}"));
    real.runtime.block_on(remove_files(&real.nfs, real.root, names)).unwrap();
    assert!(!real.path(0).exists());
    real.stop();
}

#[test]
fn a_shared_file_is_on_the_disk_as_planned_and_wrong_bytes_are_counted() {
    const IO_BYTES: u32 = 47_008;
    let real = Real::start();
    let mut files = real.create(1);
    let write = write_load(Pattern::HardInterleaved, &[8; 3], IO_BYTES);
    assert_done(&put(&write, &real.service, &mut files), 24, IO_BYTES);
    let expected: Vec<_> =
        (0..24).flat_map(|index| unit(0, index, 0, IO_BYTES).iter().copied()).collect();
    assert!(std::fs::read(real.path(0)).unwrap() == expected);
    let read = read_load(Pattern::HardInterleaved, &[8; 3], IO_BYTES);
    assert_done(&put(&read, &real.service, &mut files), 24, IO_BYTES);

    let file = OpenOptions::new().write(true).open(real.path(0)).unwrap();
    for at in [100_000, 100_001, 700_000] {
        let at_index = usize::try_from(at).unwrap();
        file.write_all_at(&[expected[at_index] ^ 1], at).unwrap();
    }
    let outcome = put(&read, &real.service, &mut files);
    assert_eq!((outcome.verified_bytes, outcome.wrong_bytes), (expected.len() as u64, 3));
    let outcome = verify(&real.service, &mut files);
    assert_eq!((outcome.verified_bytes, outcome.wrong_bytes), (expected.len() as u64, 3));
    assert_eq!(outcome.first_wrong, Some((0, 100_000)));
    assert_eq!(outcome.errors, 0);
    real.stop();
}

#[test]
fn overwritten_units_are_distinguished_from_others() {
    let real = Real::start();
    let mut files = real.create(2);
    put(&write_load(Pattern::EasySequential, &[4; 2], 40_960), &real.service, &mut files);
    let random = Pattern::Random { units: 40, seed: 7 };
    let overwrite = Load { generation: 1, ..write_load(random, &[25, 10], 4096) };
    assert_done(&put(&overwrite, &real.service, &mut files), 35, 4096);
    let known: u64 = files.iter().map(|file| file.contents.known_bytes()).sum();
    assert_eq!(known, 2 * 4 * 40_960);
    assert_done(&put(&read_load(random, &[40; 2], 4096), &real.service, &mut files), 80, 4096);
    let outcome = verify(&real.service, &mut files);
    assert_eq!((outcome.verified_bytes, outcome.wrong_bytes), (known, 0));

    // A block of the first generation where one of the second was written: a write that was lost.
    let plan = plan(&overwrite);
    let lost = plan.transfer(1, 3);
    let old = unit(1, lost.offset() / 40_960, 0, 40_960);
    let within = usize::try_from(lost.offset() % 40_960).unwrap();
    let file = OpenOptions::new().write(true).open(real.path(1)).unwrap();
    file.write_all_at(&old[within..][..4096], lost.offset()).unwrap();
    let outcome = verify(&real.service, &mut files);
    assert!((4000..=4096).contains(&outcome.wrong_bytes), "{}", outcome.wrong_bytes);
    assert_eq!(outcome.first_wrong.map(|(file, at)| (file, at / 4096)), Some((1, lost.unit)));
    real.stop();
}

#[test]
fn what_is_read_back_in_part_is_not_verified() {
    let real = Real::start();
    let mut files = real.create(1);
    put(&write_load(Pattern::EasySequential, &[4], 4096), &real.service, &mut files);
    let stopped = verify_all(pool(), &real.service, &mut files, 4096, 1, &Stop::wanted());
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    real.stop();
}

#[test]
fn a_phase_ends_with_its_time_and_the_next_reads_what_it_wrote() {
    let real = Real::start();
    let mut files = real.create(1);
    let time_max = Some(Duration::from_millis(150));
    let operations = [1_000_000; 2];
    let write = Load { time_max, ..write_load(Pattern::HardInterleaved, &operations, 8192) };
    let outcome = put(&write, &real.service, &mut files);
    assert!(outcome.time >= Duration::from_millis(150));
    assert!(outcome.operations < 2_000_000, "on no machine this takes 75 ns");
    assert_done(&outcome, outcome.operations, 8192);
    let of_ranks = outcome.operations_by_rank();
    let read = put(&read_load(write.pattern, &of_ranks, 8192), &real.service, &mut files);
    assert_done(&read, outcome.operations, 8192);
    assert_eq!(read.verified_bytes, outcome.bytes);
    let written: Vec<_> = of_ranks.into_iter().collect();
    let read: Vec<_> = read.operations_by_rank();
    assert_eq!([read[1], read[0]], *written);
    real.stop();
}

#[test]
fn groups_have_outcomes_of_their_own() {
    let service = null();
    let (mut one, mut many) = (null_files(1), null_files(4));
    let small = write_load(Pattern::EasySequential, &[20], 4096);
    let large = read_load(Pattern::EasySequential, &[10; 4], 100_000);
    let mut reported = 0;
    let mut watch = Watch {
        observe: Box::new(|| Observed { server_rss_bytes: Some(7), ..Observed::default() }),
        progress: Box::new(|bytes| reported = bytes),
    };
    let mut groups = [
        Group { load: &small, service: &service, files: &mut one, nice: NICE },
        Group { load: &large, service: &service, files: &mut many, nice: NICE },
    ];
    let outcomes = run_groups(pool(), &mut groups, &mut watch).unwrap();
    assert_done(&outcomes[0], 20, 4096);
    assert_done(&outcomes[1], 40, 100_000);
    assert_eq!((outcomes[0].by_rank.len(), outcomes[1].by_rank.len()), (1, 4));
    assert_eq!(outcomes[1].seconds[0].server_rss_bytes, Some(7));
    drop(watch);
    assert!(reported <= 20 * 4096 + 40 * 100_000);
}

#[test]
fn each_operation_on_a_removed_file_fails_until_the_rank_ends() {
    let real = Real::start();
    let mut files = real.create(2);
    put(&write_load(Pattern::EasySequential, &[100; 2], 4096), &real.service, &mut files);
    let names = ["file-1".to_owned()];
    real.runtime.block_on(remove_files(&real.nfs, real.root, names)).unwrap();
    let read = read_load(Pattern::EasySequential, &[100; 2], 4096);
    let outcome = put(&read, &real.service, &mut files);
    assert_eq!(outcome.operations_by_rank(), [100, 0]);
    assert!((16..16 + 3).contains(&outcome.errors), "{} errors", outcome.errors);
    let first = outcome.first_error.unwrap();
    assert!(first.starts_with("rank 1: READ "), "{first}");
    assert!(first.ends_with(": NFS3ERR_STALE"), "{first}");
    real.stop();
}

/// A server that runs `serve` on each connection.
fn misbehaving(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Service {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    service(address)
}

#[test]
fn connections_that_break_and_servers_that_do_not_answer_are_errors() {
    let cuts = misbehaving(|mut stream| {
        stream.read_exact(&mut [0; 100]).unwrap();
    });
    let silent =
        misbehaving(|mut stream| while stream.read(&mut [0; 4096]).is_ok_and(|len| len > 0) {});
    let babbles = misbehaving(|mut stream| {
        stream.read_exact(&mut [0; 100]).unwrap();
        stream.write_all(&[0x80, 0, 0, 4, 1, 2, 3, 4]).unwrap();
        while stream.read(&mut [0; 4096]).is_ok_and(|len| len > 0) {}
    });
    let floods = misbehaving(|mut stream| {
        stream.read_exact(&mut [0; 100]).unwrap();
        while stream.write_all(&[0; 4096]).is_ok() {}
    });
    let reports_much = misbehaving(|mut stream| {
        stream.read_exact(&mut [0; 100]).unwrap();
        stream.write_all(&[0xff; 4096]).unwrap();
        while stream.read(&mut [0; 4096]).is_ok_and(|len| len > 0) {}
    });
    for (server, timeout_ms, words) in [
        (&cuts, 20_000, "connection"),
        (&silent, 300, "does not answer"),
        (&babbles, 20_000, "malformed"),
        (&floods, 20_000, "longer than any expected reply"),
        (&reports_much, 20_000, "longer than any expected reply"),
    ] {
        let load = read_load(Pattern::EasySequential, &[5; 2], 4096);
        let load = Load { timeout: Duration::from_millis(timeout_ms), ..load };
        let outcome = put(&load, server, &mut null_files(2));
        assert_eq!((outcome.errors, outcome.operations), (2, 0), "{words}");
        let first = outcome.first_error.unwrap();
        assert!(first.starts_with("rank ") && first.contains(words), "{first}");
    }
    let refuses = service("127.0.0.1:1".parse().unwrap());
    let load = read_load(Pattern::EasySequential, &[5], 4096);
    let error = run(pool(), &load, &refuses, &mut null_files(1), &mut Watch::none());
    assert!(
        error.unwrap_err().to_string().starts_with("cannot connect to the server at 127.0.0.1:1: ")
    );
}

/// More than any record of these tests.
const RECORD_BYTES_MAX: usize = 64 << 20;

/// Passes calls on to a server, and its replies back in fragments of these sizes, in turns.
fn in_fragments(server: SocketAddr, sizes: &'static [usize]) -> Service {
    misbehaving(move |client| {
        let upstream = TcpStream::connect(server).unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            to.shutdown(std::net::Shutdown::Both)
        });
        let (mut from, mut to) = (upstream, client);
        while let Some(message) = record::read_blocking(&mut from, RECORD_BYTES_MAX).unwrap() {
            let ends = sizes.iter().cycle().scan(0, |end, size| {
                *end += size;
                Some(*end)
            });
            let cuts: Vec<usize> = ends.take_while(|end| *end < message.len()).collect();
            to.write_all(&record::in_fragments(&message, &cuts)).unwrap();
        }
    })
}

#[test]
fn replies_in_fragments_are_understood() {
    let real = Real::start();
    for (number, sizes) in [&[7][..], &[1, 0, 3], &[50, 4096, 1], &[20_000]].iter().enumerate() {
        let service = in_fragments(real.service.address, sizes);
        for io_bytes in [4097, 60_001] {
            let mut files = real.create(2);
            let write = write_load(Pattern::EasySequential, &[10; 2], io_bytes);
            let write = Load { generation: u32::try_from(number).unwrap(), ..write };
            assert_done(&put(&write, &service, &mut files), 20, io_bytes);
            for verify in [Verify::Full, Verify::Nothing] {
                let read = read_load(Pattern::EasySequential, &[10; 2], io_bytes);
                let read = Load { verify, ..read };
                let outcome = put(&read, &service, &mut files);
                assert_done(&outcome, 20, io_bytes);
                let verified = if verify == Verify::Full { outcome.bytes } else { 0 };
                assert_eq!(outcome.verified_bytes, verified);
            }
        }
    }
    real.stop();
}

/// Answers calls by a script: procedure and arguments, and which call of the connection it is.
fn scripted(
    script: impl Fn(Procedure, &mut Reader<'_>, u32, &mut Writer) + Send + Sync + 'static,
) -> Service {
    misbehaving(move |mut stream| {
        let mut calls = 0;
        while let Some(call) = record::read_blocking(&mut stream, RECORD_BYTES_MAX).unwrap() {
            let mut reader = Reader::new(&call);
            let header = decode_call(&mut reader).unwrap();
            let procedure = Procedure::from_code(header.procedure).unwrap();
            let reply = record::encode(|w| {
                encode_success(w, header.xid);
                script(procedure, &mut reader, calls, w);
            });
            calls += 1;
            stream.write_all(&reply).unwrap();
        }
    })
}

fn write_ok(count: u32, committed: StableHow, verifier: u8) -> Box<WriteReply> {
    let verifier = WriteVerifier([verifier; 8]);
    Box::new(Ok(WriteOk { wcc: WccData::default(), count, committed, verifier }))
}

fn commit_ok(verifier: u8) -> Box<CommitReply> {
    let verifier = WriteVerifier([verifier; 8]);
    Box::new(Ok(CommitOk { wcc: WccData::default(), verifier }))
}

#[test]
fn a_call_that_is_put_off_does_not_stop_the_others() {
    const CALLS: u32 = 200;
    // Each of them once: so long if one after the other was waited for.
    let all_pauses = call::PUT_OFF_PAUSE * CALLS;
    let service = scripted(|_, _, call, reply| {
        let later = Failure { status: Status::Jukebox, body: None };
        let answer: ReadReply<'_> =
            if call < CALLS { Err(later) } else { read_ok(&[0; 512], false) };
        answer.encode(reply);
    });
    let read = read_load(Pattern::EasySequential, &[CALLS.into()], 512);
    let outcome = put(&Load { depth: 200, ..read }, &service, &mut null_files(1));
    assert_done(&outcome, CALLS.into(), 512);
    assert_eq!(outcome.put_off, u64::from(CALLS));
    assert!(outcome.time > call::PUT_OFF_PAUSE && outcome.time < all_pauses, "{outcome:?}");
}

fn read_ok(data: &[u8], eof: bool) -> ReadReply<'_> {
    let count = u32::try_from(data.len()).unwrap();
    Ok(ReadOk { attributes: None, count, eof, data })
}

#[test]
fn short_replies_are_completed_and_those_for_later_repeated() {
    let service = scripted(|procedure, args, call, reply| {
        let later = Failure { status: Status::Jukebox, body: WccData::default() };
        match procedure {
            _ if call == 2 => WriteReply::Err(later).encode(reply),
            Procedure::Write => {
                let args = WriteArgs::decode(args).unwrap();
                // That the rest is the rest can be seen from the data.
                let number = args.offset / 20_000;
                let within = usize::try_from(args.offset % 20_000).unwrap();
                assert_eq!(args.data, &unit(0, number, 0, 20_000)[within..]);
                write_ok(args.count.min(9_000), StableHow::Unstable, 0).encode(reply);
            }
            Procedure::Read => {
                let args = ReadArgs::decode(args).unwrap();
                let number = args.offset / 20_000;
                let within = usize::try_from(args.offset % 20_000).unwrap();
                let len = usize::try_from(args.count.min(9_000)).unwrap();
                let data = &unit(0, number, 0, 20_000)[within..][..len];
                read_ok(data, args.offset + 9_000 >= 100_000).encode(reply);
            }
            _ => commit_ok(0).encode(reply),
        }
    });
    let mut files = null_files(1);
    let write = write_load(Pattern::EasySequential, &[5], 20_000);
    let outcome = put(&write, &service, &mut files);
    assert_done(&outcome, 5, 20_000);
    assert_eq!(outcome.short_replies, 10);
    assert!(outcome.time > Duration::from_millis(100), "it waited before it asked again");
    let read = read_load(Pattern::EasySequential, &[5], 20_000);
    let outcome = put(&read, &service, &mut files);
    assert_done(&outcome, 5, 20_000);
    assert_eq!((outcome.short_replies, outcome.verified_bytes), (10, 100_000));
}

type Script = fn(Procedure, &mut Reader<'_>, u32, &mut Writer);

#[test]
fn replies_to_write_that_break_promises_are_errors() {
    let table: [(StableHow, Script, u64, &str); 4] = [
        (
            StableHow::Unstable,
            |procedure, _, call, reply| match procedure {
                Procedure::Write => {
                    write_ok(1000, StableHow::Unstable, u8::from(call > 3)).encode(reply);
                }
                _ => commit_ok(1).encode(reply),
            },
            1,
            "WRITE 4, file 0 at 4000: the write verifier changed",
        ),
        (
            StableHow::Unstable,
            |procedure, _, _, reply| match procedure {
                Procedure::Write => write_ok(1000, StableHow::Unstable, 0).encode(reply),
                _ => commit_ok(1).encode(reply),
            },
            1,
            "COMMIT: the write verifier changed",
        ),
        (
            StableHow::FileSync,
            |_, _, _, reply| write_ok(1000, StableHow::Unstable, 0).encode(reply),
            6,
            "less durable than wanted: UNSTABLE",
        ),
        (
            StableHow::FileSync,
            |_, _, _, reply| write_ok(1001, StableHow::FileSync, 0).encode(reply),
            6,
            "1001 of 1000 bytes written",
        ),
    ];
    for (stable, script, errors, words) in table {
        let load = Load { depth: 1, stable, ..write_load(Pattern::EasySequential, &[6], 1000) };
        let outcome = put(&load, &scripted(script), &mut null_files(1));
        check_errors(&outcome, errors, words);
    }
}

#[test]
fn replies_to_read_that_break_promises_are_errors() {
    let table: [(Script, u64, &str); 3] = [
        (
            |_, _, _, reply| read_ok(&[0; 1000], true).encode(reply),
            5,
            "said to be the end of a file of 6000 bytes",
        ),
        (|_, _, _, reply| read_ok(&[0; 999], true).encode(reply), 6, "said to be the end"),
        (
            |_, _, _, reply| read_ok(&[0; 1001], false).encode(reply),
            1,
            "READ of 1000 bytes at 0 was answered with 1001",
        ),
    ];
    for (script, errors, words) in table {
        let mut files = null_files(1);
        let write = Load { depth: 1, ..write_load(Pattern::EasySequential, &[6], 1000) };
        put(&write, &null(), &mut files);
        let load = Load { direction: Direction::Read, ..write };
        check_errors(&put(&load, &scripted(script), &mut files), errors, words);
    }
}

/// Fails unless `outcome` has so many errors, the first of which contains `words`.
fn check_errors(outcome: &Outcome, errors: u64, words: &str) {
    let first = outcome.first_error.as_deref().unwrap();
    assert!(first.contains(words), "{first}");
    assert_eq!(outcome.errors, errors, "{words}");
}

#[test]
fn impossible_loads_are_refused() {
    let service = null();
    let load = read_load(Pattern::EasySequential, &[1, 1], 4096);
    let table = [
        (Load { io_bytes: 0, ..load.clone() }, "1 to 4194304 bytes"),
        (Load { io_bytes: 5 << 20, ..load.clone() }, "1 to 4194304 bytes"),
        (Load { io_bytes: 2 << 20, ..load.clone() }, "READs of up to 1048576 bytes, not 2097152"),
        (Load { operations_by_rank: vec![], ..load.clone() }, "1 to 1024 connections"),
        (Load { depth: 0, ..load.clone() }, "1 to 256 calls"),
        (Load { operations_by_rank: vec![1; 3], ..load.clone() }, "needs 3 files, not 2"),
        (Load { pattern: Pattern::Random { units: 0, seed: 0 }, ..load }, "at least one transfer"),
    ];
    for (load, words) in table {
        let error = run(pool(), &load, &service, &mut null_files(2), &mut Watch::none());
        let text = error.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_time_without_end_is_no_limit() {
    let time_max = Some(Duration::from_secs(u64::MAX));
    let load = Load { time_max, ..write_load(Pattern::EasySequential, &[5], 4096) };
    assert_done(&put(&load, &null(), &mut null_files(1)), 5, 4096);
}
