//! `spillway bench clients`: programs that know nothing of this crate as the load. fio's nfs engine
//! writes and reads through libnfs; libnfs's `nfs-cp` and `spillway cp` copy a file.

mod fio;

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use clap::ValueEnum as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use client::NfsUrl;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use server::config::ByteSize;

use super::cache_state::CacheState;
use super::export::Export;
use super::meter::Spent;
use super::scratch_directory::ScratchDirectory;
use super::servers;
use crate::figure::Figure;
use crate::numeral::mib;
use crate::options::{TargetOptions, check_distinct};
use crate::record::{Measurement, Run};
use crate::rig::{Undo, WorkDirectory, cached_files};
use crate::stop::Stop;
use crate::{Error, Result};
use fio::Job;

/// Which programs, and how much.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Programs that generate the load [default: fio]
    #[arg(
        long = "load",
        value_name = "PROGRAM[,PROGRAM...]",
        value_delimiter = ',',
        default_value = "fio",
        hide_default_value = true
    )]
    loads: Vec<Client>,

    /// Bytes of the file [default: 1GiB]
    #[arg(long, value_name = "SIZE", default_value = "1GiB", hide_default_value = true)]
    size: ByteSize,

    /// Bytes that each of fio's four connections reads at random, 4 KiB at a time [default: 64MiB]
    #[arg(long, value_name = "SIZE", default_value = "64MiB", hide_default_value = true)]
    random_size: ByteSize,

    /// State of the caches before each measurement: cold (dropped), found (written back)
    /// [default: cold where root may drop them, else found]
    #[arg(long, value_name = "STATE", value_parser = cold_or_found())]
    cache: Option<CacheState>,
}

/// A program that makes a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Client {
    /// fio with its nfs engine, one call in flight on each connection
    Fio,
    /// nfs-cp of libnfs
    NfsCp,
    /// spillway cp
    Cp,
}

impl Client {
    /// The name in results.
    const fn subject(self) -> &'static str {
        match self {
            Self::Fio => "fio",
            Self::NfsCp => "nfs-cp",
            Self::Cp => "spillway cp",
        }
    }
}

/// The transfer size of IOR's hard pattern.
const HARD_BYTES: u64 = 47_008;
const EASY_BYTES: u64 = 1 << 20;
const RANDOM_BYTES: u64 = 4096;
const RANDOM_JOBS: u16 = 4;
/// How soon a request to stop, or the end of the server, is noticed.
const CHECK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Whether a program that works may go on: [`Export::check`].
type Check<'a> = &'a dyn Fn() -> Result<()>;

impl servers::Experiment for Options {
    const NAME: &str = "clients";

    fn describe(&self, targets: &TargetOptions, run: &mut Run) -> Result<()> {
        if self.size.0 < EASY_BYTES {
            return Err(Error::Misuse("--size is at least 1MiB".to_owned()));
        }
        check_distinct("--load", &self.loads)?;
        self.cache().note(targets, run);
        Ok(())
    }

    /// Runs the programs on files in a new directory of `export` for each round: fio would
    /// overwrite those of the round before.
    fn carry_out(
        &self,
        mut rounds: RangeInclusive<u32>,
        export: &Export<'_>,
        record: &mut dyn FnMut(Measurement) -> Result<()>,
    ) -> Result<()> {
        rounds.try_for_each(|round| {
            ScratchDirectory::lend(export, false, |_, directory| {
                let experiment = Experiment { options: self, export, directory: directory.name() };
                for (order, at) in (1..).zip(super::turned(self.loads.len(), round)) {
                    experiment.round(self.loads[at], round, &mut |measurement| {
                        record(Measurement { round, order, ..measurement })
                    })?;
                }
                Ok(())
            })
        })
    }
}

impl Options {
    fn cache(&self) -> CacheState {
        self.cache.unwrap_or_else(CacheState::default_here)
    }
}

/// The programs read nothing before a measurement, so caches cannot be warm.
fn cold_or_found() -> impl TypedValueParser<Value = CacheState> {
    let states = [CacheState::Cold, CacheState::Found];
    let values = states.map(|state| state.to_possible_value().expect("none is hidden"));
    PossibleValuesParser::new(values)
        .map(|state| CacheState::from_str(&state, false).expect("it is one of them"))
}

struct Experiment<'a> {
    options: &'a Options,
    export: &'a Export<'a>,
    directory: &'a str,
}

/// Copies by a program.
struct Copies<'a> {
    client: Client,
    program: &'a Path,
    /// Of its command line, before source and destination.
    words: &'a [&'a str],
    /// The file on the server, as the program has it.
    remote: String,
    round: u32,
}

/// Result of a program: bytes and calls where it counts them, and the time until all was durable.
struct Done {
    bytes: u64,
    operations: Option<u64>,
    secs: f64,
    latencies: Vec<(Figure, f64)>,
}

impl Experiment<'_> {
    /// All that one program does in a round.
    fn round(
        &self,
        client: Client,
        round: u32,
        record: &mut dyn FnMut(Measurement) -> Result<()>,
    ) -> Result<()> {
        match client {
            Client::Fio => {
                for job in self.jobs() {
                    let phase = job.phase();
                    let mut measurement = self.measure(&phase, client.subject(), || {
                        fio::run(&job, &self.libnfs_url(b""), self.directory, &|| {
                            self.export.check()
                        })
                    })?;
                    let moved = ("moved_bytes".to_owned(), job.bytes_by_job);
                    measurement.parameters.extend([moved]);
                    record(measurement)?;
                }
                Ok(())
            }
            Client::NfsCp => {
                let (program, words) = (Path::new("nfs-cp"), &[]);
                let remote = self.libnfs_url(self.copy_path(client).as_bytes());
                self.copies(Copies { client, program, words, remote, round }, record)
            }
            Client::Cp => {
                let program = std::env::current_exe();
                let program = &program.map_err(Error::machine("cannot find this program"))?;
                let path = self.path_of(self.copy_path(client).as_bytes());
                let remote = NfsUrl { path, ..self.export.url.clone() }.to_string();
                self.copies(Copies { client, program, words: &["cp"], remote, round }, record)
            }
        }
    }

    /// Of a copy, below the export.
    fn copy_path(&self, client: Client) -> String {
        format!("/{}/copy-{}", self.directory, client as u8)
    }

    fn jobs(&self) -> [Job; 5] {
        let size = |block: u64| self.options.size.0 / block * block;
        let whole = |operation, block_bytes: u64| {
            let bytes = size(block_bytes);
            Job { operation, block_bytes, jobs: 1, file_bytes: bytes, bytes_by_job: bytes }
        };
        [
            whole("write", HARD_BYTES),
            whole("read", HARD_BYTES),
            whole("write", EASY_BYTES),
            whole("read", EASY_BYTES),
            Job {
                operation: "randread",
                block_bytes: RANDOM_BYTES,
                jobs: RANDOM_JOBS,
                file_bytes: size(EASY_BYTES),
                bytes_by_job: self.options.random_size.0,
            },
        ]
    }

    /// A copy to the server, and one of that file back.
    fn copies(
        &self,
        copies: Copies<'_>,
        record: &mut dyn FnMut(Measurement) -> Result<()>,
    ) -> Result<()> {
        let Copies { client, program, words, remote, round } = copies;
        let subject = client.subject();
        let local = WorkDirectory::create(Path::new("/dev/shm"))?;
        let (source, back) = (local.path().join("source"), local.path().join("back"));
        let bytes = self.options.size.0;
        let stop = &self.export.stop;
        fill(&source, bytes, (client, round), stop)?;
        let copy = |phase, from: &Path, to: &Path| {
            self.measure(phase, subject, || {
                let mut command = Command::new(program);
                command.args(words).args([from, to]);
                let secs = timed(command, &|| self.export.check())?;
                Ok(Done { bytes, operations: None, secs, latencies: Vec::new() })
            })
        };
        let remote = Path::new(&remote);
        let mut to_server = copy("copy-to", &source, remote)?;
        let compared = copy("copy-from", remote, &back)
            .and_then(|from_server| Ok((from_server, wrong_bytes(&source, &back, stop)?)));
        let (mut from_server, wrong_bytes) = match compared {
            Ok(compared) => compared,
            Err(error) => {
                record(to_server)?;
                return Err(error);
            }
        };
        let trouble = format!("{subject} returned other data than it sent");
        for measurement in [&mut to_server, &mut from_server] {
            let figures = [
                (Figure::VerifiedMib, mib(bytes)),
                (Figure::WrongBytes, crate::numeral::as_f64(wrong_bytes)),
            ];
            measurement.figures.extend(figures);
            measurement.first_error = (wrong_bytes > 0).then(|| trouble.clone());
        }
        record(to_server)?;
        record(from_server)?;
        if wrong_bytes > 0 { Err(Error::Server(trouble)) } else { Ok(()) }
    }

    fn measure(
        &self,
        phase: &str,
        subject: &str,
        program: impl FnOnce() -> Result<Done>,
    ) -> Result<Measurement> {
        self.export.stop.check()?;
        let files = self.export.files.as_deref();
        self.options.cache().prepare(self.options.size.0, files, &self.export.stop)?;
        let cached = files.map(cached_files).transpose()?.and_then(|files| files.cached_bytes);
        let meter = self.export.begin()?;
        let done = program()?;
        let spent = meter.end()?;
        let mut figures = done.figures(&spent);
        figures.extend(done.latencies);
        figures.extend(cached.map(|bytes| (Figure::CachedAtStartMib, mib(bytes))));
        Ok(Measurement {
            phase: phase.to_owned(),
            subject: self.export.subject(subject),
            parameters: [("file_bytes".to_owned(), self.options.size.0)].into(),
            figures: figures.into_iter().collect(),
            counters: spent.counters,
            ..Measurement::default()
        })
    }

    /// A path below that of the export.
    fn path_of(&self, below: &[u8]) -> Vec<u8> {
        let mut path = self.export.url.path.clone();
        if path.ends_with(b"/") {
            path.pop();
        }
        path.extend_from_slice(below);
        path
    }

    /// The URL of a path below the export as libnfs has it.
    fn libnfs_url(&self, below: &[u8]) -> String {
        let url = &self.export.url;
        let bare = NfsUrl {
            path: self.path_of(below),
            port: None,
            mount_port: None,
            uid: None,
            gid: None,
            ..url.clone()
        };
        let port = url.port.unwrap_or(NFS_PORT);
        let mount_port = url.mount_port.unwrap_or(port);
        format!("{bare}?version=3&nfsport={port}&mountport={mount_port}")
    }
}

const NFS_PORT: u16 = 2049;

impl Done {
    fn figures(&self, spent: &Spent) -> Vec<(Figure, f64)> {
        let bytes = self.bytes;
        let mut figures =
            vec![(Figure::MibPerSec, mib(bytes) / self.secs), (Figure::Secs, self.secs)];
        if let Some(operations) = self.operations {
            let operations = crate::numeral::as_f64(operations);
            figures.push((Figure::OperationsPerSec, operations / self.secs));
            if let Some(server) = &spent.server {
                figures.push((Figure::ServerUsPerOperation, server.total() * 1e6 / operations));
            }
        }
        figures.extend(spent.server_per_gib(bytes));
        let rss = spent.server_rss_bytes_max.map(|bytes| (Figure::ServerRssMibMax, mib(bytes)));
        figures.extend(rss);
        figures
    }
}

/// A program, and what ends it when this process is gone.
struct Started {
    child: Child,
    /// To be revoked once the child was waited for: another process may get its number.
    undo: Undo,
    began: Instant,
}

/// Starts a program in a process group of its own: Ctrl-C is for this process, which ends the
/// program.
fn start(command: &mut Command) -> Result<Started> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut undo = Undo::new::<&str>(END, &[])?;
    let began = Instant::now();
    let child = command.stdin(Stdio::null()).process_group(0).spawn();
    let child = child.map_err(|error| Error::Program(format!("{name}: {error}")))?;
    // The shell is gone if this fails.
    let _ = undo.tell(&child.id().to_string());
    Ok(Started { child, undo, began })
}

/// Ends a program when this process is gone.
const END: &str = "test -z \"$word\" || kill \"$word\"";

/// Runs a program that must succeed, as long as `check` does; its time.
fn timed(mut command: Command, check: Check<'_>) -> Result<f64> {
    let name = command.get_program().to_string_lossy().into_owned();
    let Started { mut child, undo, began } = start(command.stdout(Stdio::null()))?;
    let ended = watch(&mut child, &name, check);
    let secs = began.elapsed().as_secs_f64();
    // It has ended if it cannot be killed.
    drop(child.kill());
    drop(child.wait());
    undo.revoke();
    let status = ended?;
    if status.success() { Ok(secs) } else { Err(failed(format!("{name}: {status}"), check)) }
}

/// Waits until a program has ended, as long as `check` succeeds.
fn watch(child: &mut Child, name: &str, check: Check<'_>) -> Result<ExitStatus> {
    let at = || Error::machine(format!("cannot wait for {name}"));
    let end = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
    let end = end.map_err(|error| at()(error.into()))?;
    loop {
        if let Some(status) = child.try_wait().map_err(at())? {
            return Ok(status);
        }
        check()?;
        wait_a_little(&mut [PollFd::new(&end, PollFlags::IN)]).map_err(at())?;
    }
}

/// Waits for the end of a process, but not beyond the time of the next check.
fn wait_a_little(processes: &mut [PollFd<'_>]) -> io::Result<()> {
    match poll(processes, Some(&CHECK_EVERY)) {
        // A signal, perhaps the request to stop.
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Why a program failed: a signal that asks this process to end may have reached it too, and what
/// it called may be gone.
fn failed(why: String, check: Check<'_>) -> Error {
    check().err().unwrap_or(Error::Program(why))
}

/// Bytes in which two files differ, with those that only one of them has. The files are read in
/// pieces: they may fill the memory.
fn wrong_bytes(one: &Path, other: &Path, stop: &Stop) -> Result<u64> {
    use io::BufRead as _;
    let failed = || Error::machine("cannot compare the copies");
    let open = |path: &Path| -> Result<_> {
        let file = File::open(path).map_err(failed())?;
        let bytes = file.metadata().map_err(failed())?.len();
        Ok((io::BufReader::with_capacity(PIECE_BYTES, file), bytes))
    };
    let ((mut one, one_bytes), (mut other, other_bytes)) = (open(one)?, open(other)?);
    let mut wrong = one_bytes.abs_diff(other_bytes);
    loop {
        stop.check()?;
        let piece = one.fill_buf().map_err(failed())?;
        let counterpart = other.fill_buf().map_err(failed())?;
        let len = piece.len().min(counterpart.len());
        if len == 0 {
            return Ok(wrong);
        }
        // Comparing them whole is faster, and they are the same as a rule.
        if piece[..len] != counterpart[..len] {
            let differing = piece.iter().zip(counterpart).filter(|(a, b)| a != b);
            wrong += differing.count() as u64;
        }
        one.consume(len);
        other.consume(len);
    }
}

/// Bytes of a file that are compared at once.
const PIECE_BYTES: usize = 1 << 20;

/// Writes bytes of which no 8 are like others, of this file or of that of another program or round:
/// what a copy before has left is no copy.
fn fill(path: &Path, bytes: u64, of: (Client, u32), stop: &Stop) -> Result<()> {
    use io::Write as _;
    let failed = || Error::machine(format!("cannot write {}", path.display()));
    let mut file = io::BufWriter::new(File::create(path).map_err(failed())?);
    let (client, round) = of;
    let seed = (u64::from(round) << 2 | client as u64) << WORD_BITS;
    for nth in 0..bytes.div_ceil(8) {
        stop.check()?;
        let word = (seed ^ nth).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let rest = usize::try_from(bytes - nth * 8).unwrap_or(usize::MAX);
        file.write_all(&word[..word.len().min(rest)]).map_err(failed())?;
    }
    file.flush().map_err(failed())
}

/// Enough to number the words of a file of 4 TiB.
const WORD_BITS: u32 = 39;

#[cfg(test)]
mod tests;
