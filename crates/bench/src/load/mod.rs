//! READs and WRITEs on any server of NFS version 3, 4.1 or 4.2, at little cost: what is measured
//! shall be the server.
//!
//! A load has a number of ranks, each a thread with a connection of its own, on which a number of
//! calls is in flight all the time. In versions 4.1 and 4.2 a rank is a client with a session,
//! whose slots are the calls in flight, and opens its file before the load begins. Data is sent
//! from a file in memory and thrown away by the kernel without being copied, but for what is
//! verified: see [`Verify`].

mod call;
mod connect;
mod contents;
mod file_calls;
mod files;
pub(crate) mod nfs3;
pub(crate) mod nfs4;
mod outcome;
mod plan;
mod pool;
mod rank;
mod session;
mod version;
mod watch;

pub(crate) use call::{Broken, CallResult, Xids, until_taken};
pub(crate) use connect::{from_reserved_port, send_unpaced};
pub(crate) use session::Session;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use client::Identity;
use proto::nfs3::{FileHandle, StableHow};
use proto::nfs4::ShareAccess;
use proto::oncrpc::{AuthSys, GIDS_MAX, Gids};
use rustix::process::nice;
use rustix::time::{ClockId, clock_gettime};

pub use contents::Contents;
pub use files::{create_files, remove_files};
pub use outcome::{Outcome, Share};
pub use plan::{Direction, Pattern};
pub use pool::{IO_BYTES_MAX, Pool};
pub use version::Version;
pub use watch::{Observed, Watch};

use contents::Written;
use file_calls::FileCalls;
use plan::Plan;
use pool::mix;
use rank::{Progress, Rank, RankOutcome};
use watch::Series;

use crate::record_stream::RecordStream;
use crate::stop::Stop;
use crate::{Error, Result};

/// Connections of a load at most.
pub const RANKS_MAX: usize = 1024;
/// Calls in flight on a connection at most.
pub const DEPTH_MAX: usize = 256;
/// How long a server may take to answer a call.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// How far ranks stand back behind a server that they share processors with, as nice(2) counts:
/// they do not interrupt it, and find several replies at once when it pauses, which costs both of
/// them less. With 10 a rank beside other busy programs still gets a tenth of what they get.
pub const NICE: i32 = 10;

/// An NFS service and how it is called.
#[derive(Clone, Debug)]
pub struct Service {
    /// Where it is.
    pub address: SocketAddr,
    /// The address of this machine that calls come from, if the system is not to choose it.
    pub source: Option<IpAddr>,
    /// The AUTH_SYS credential of the calls.
    pub identity: Identity,
    /// `rtmax` of FSINFO: bytes of a READ at most.
    pub read_bytes_max: u32,
    /// `wtmax` of FSINFO: bytes of a WRITE at most.
    pub write_bytes_max: u32,
    /// The version that loads speak.
    pub version: Version,
    /// The directory of the files, from the pseudo root on: version 3 has no need of it.
    pub path: Vec<u8>,
}

/// A file that loads work on.
#[derive(Clone, Debug)]
pub struct LoadFile {
    /// Its name in the directory of the service.
    pub name: String,
    /// The handle of version 3.
    pub handle: FileHandle,
    /// Decides about its data: the files of one experiment have different numbers.
    pub id: u64,
    /// Its contents as far as loads have written them.
    pub contents: Contents,
}

impl LoadFile {
    /// A file that is empty, or of whose contents nothing is known.
    #[must_use]
    pub fn new(name: String, handle: FileHandle, id: u64) -> Self {
        Self { name, handle, id, contents: Contents::default() }
    }
}

/// How much of what is read is compared with what has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Every byte.
    Full,
    /// One READ of 64, others in each load, and the first of each rank. Comparing one of 16 was a
    /// tenth of what the load cost.
    Sampled,
    /// None.
    Nothing,
}

/// A phase of READs or WRITEs.
#[derive(Clone, Debug)]
pub struct Load {
    /// Which of both.
    pub direction: Direction,
    /// Their order.
    pub pattern: Pattern,
    /// Most operations of each rank; as many ranks as there are numbers, 1 to [`RANKS_MAX`]. A
    /// phase that reads what another wrote is given what that did,
    /// [`Outcome::operations_by_rank`], rank by rank as they wrote.
    pub operations_by_rank: Vec<u64>,
    /// Calls in flight on each connection, 1 to [`DEPTH_MAX`]; fewer while the server wants fewer
    /// slots of a session to be used.
    pub depth: usize,
    /// Bytes of an operation, 1 to [`IO_BYTES_MAX`] and what the server takes.
    pub io_bytes: u32,
    /// After this time no operation is begun.
    pub time_max: Option<Duration>,
    /// No operation begins after this is set.
    pub stop: Stop,
    /// Of READs.
    pub verify: Verify,
    /// The `stable` of the WRITEs. Each rank commits its unstable data at its end,
    /// within the time of the load.
    pub stable: StableHow,
    /// Decides about the data that is written: overwritten data differs from data that was not
    /// written.
    pub generation: u32,
    /// How long the server may take for a call, mostly [`TIMEOUT`]; for COMMIT, fifteen times as
    /// long.
    pub timeout: Duration,
}

/// A load and what it is put on. Groups that run at once have files and outcomes of their own.
#[derive(Debug)]
pub struct Group<'a> {
    /// The load.
    pub load: &'a Load,
    /// The server.
    pub service: &'a Service,
    /// A file for each rank, or one for all: see [`Pattern`].
    pub files: &'a mut [LoadFile],
    /// How far the ranks stand back behind other threads of this machine, as nice(2) counts.
    pub nice: i32,
}

/// Puts one load on a server.
///
/// # Errors
/// As [`run_groups`].
pub fn run(
    pool: &Pool,
    load: &Load,
    service: &Service,
    files: &mut [LoadFile],
    watch: &mut Watch<'_>,
) -> Result<Outcome> {
    let mut outcomes = run_groups(pool, &mut [Group { load, service, files, nice: NICE }], watch)?;
    Ok(outcomes.pop().expect("one for each group"))
}

/// Carries loads out that begin at one moment, and notes in the files what they wrote. Returns an
/// outcome for each.
///
/// A call that fails, data that is wrong and a connection that breaks are reported in the outcome.
///
/// # Errors
/// [`Error::Misuse`] when a load is not possible, with this server or these files;
/// [`Error::Server`] when it takes no connections; [`Error::Machine`] when there are no threads.
pub fn run_groups(
    pool: &Pool,
    groups: &mut [Group<'_>],
    watch: &mut Watch<'_>,
) -> Result<Vec<Outcome>> {
    groups.iter().try_for_each(check)?;
    let connections = groups.iter().map(connect).collect::<Result<Vec<_>>>()?;
    let progress: Vec<Vec<Progress>> = groups
        .iter()
        .map(|group| group.load.operations_by_rank.iter().map(|_| Progress::default()).collect())
        .collect();
    let numbered = groups.iter().zip(&progress).enumerate();
    let work = numbered.flat_map(|(number, (group, progress))| {
        ranks(pool, group, progress).map(move |rank| (number, rank))
    });
    let (started, ended, series) =
        carry_out(work.zip(connections.into_iter().flatten()), &progress, watch)?;
    Ok(groups
        .iter_mut()
        .zip(ended)
        .zip(series)
        .map(|((group, ranks), series)| {
            note(group, &ranks);
            summed_up(group.load, started, ranks, series)
        })
        .collect())
}

/// Reads everything that is known to be in the files back through the server, in transfers of
/// `io_bytes`, and compares every byte; to have compared less of it is an error in the outcome. The
/// files are read at once, `depth` calls at a time for each.
///
/// # Errors
/// As [`run_groups`]; [`Error::Interrupted`] if `stop` was wanted meanwhile.
pub fn verify_all(
    pool: &Pool,
    service: &Service,
    files: &mut [LoadFile],
    io_bytes: u32,
    depth: usize,
    stop: &Stop,
) -> Result<Outcome> {
    let units = |file: &LoadFile| file.contents.bytes().div_ceil(io_bytes.max(1).into());
    let load = Load {
        direction: Direction::Read,
        pattern: Pattern::EasySequential,
        operations_by_rank: files.iter().map(units).collect(),
        depth,
        io_bytes,
        time_max: None,
        stop: stop.clone(),
        verify: Verify::Full,
        stable: StableHow::Unstable,
        generation: 0,
        timeout: TIMEOUT,
    };
    let mut read = run(pool, &load, service, files, &mut Watch::none())?;
    // A part that was compared is not all of it.
    stop.check()?;
    read.expect_verified(files.iter().map(|file| file.contents.known_bytes()).sum());
    Ok(read)
}

fn plan(load: &Load) -> Plan<'_> {
    Plan {
        direction: load.direction,
        pattern: load.pattern,
        io_bytes: load.io_bytes,
        operations_by_rank: &load.operations_by_rank,
    }
}

fn check(group: &Group<'_>) -> Result<()> {
    let Group { load, service, files, .. } = group;
    let misuse = |what: String| Err(Error::Misuse(what));
    let (limit, name) = match load.direction {
        Direction::Read => (service.read_bytes_max, "READs"),
        Direction::Write => (service.write_bytes_max, "WRITEs"),
    };
    let io_bytes = load.io_bytes;
    if !(1..=IO_BYTES_MAX).contains(&io_bytes) {
        return misuse(format!("a transfer has 1 to {IO_BYTES_MAX} bytes, not {io_bytes}"));
    }
    if io_bytes > limit {
        let what = format!("the server takes {name} of up to {limit} bytes, not {io_bytes}");
        return misuse(what);
    }
    let (ranks, depth) = (load.operations_by_rank.len(), load.depth);
    if !(1..=RANKS_MAX).contains(&ranks) || !(1..=DEPTH_MAX).contains(&depth) {
        let what = format!(
            "a load has 1 to {RANKS_MAX} connections and 1 to {DEPTH_MAX} calls in flight on each, \
             not {ranks} and {depth}"
        );
        return misuse(what);
    }
    if let Pattern::Random { units: 0, .. } = load.pattern {
        return misuse(
            "a random load needs files with at least one transfer in each: give more seconds"
                .into(),
        );
    }
    if load.timeout.is_zero() {
        return misuse("a server needs time to answer".into());
    }
    let (wanted, have) = (plan(load).files(), files.len());
    if have < wanted {
        return misuse(format!("a load of {ranks} ranks needs {wanted} files, not {have}"));
    }
    Ok(())
}

/// A connection for each rank, with the rank's file open.
fn connect<'a>(group: &Group<'a>) -> Result<Vec<(RecordStream, FileCalls<'a>)>> {
    let Group { load, service, .. } = *group;
    let (address, timeout) = (service.address, load.timeout);
    let payload_bytes_max = match load.direction {
        Direction::Read => usize::try_from(load.io_bytes).expect("32 bits fit"),
        Direction::Write => 0,
    };
    let connect = |rank| {
        let connected = match service.source {
            Some(source) => connect::from_reserved_port_of(source, address, timeout),
            None => connect::from_reserved_port(address, timeout),
        };
        let stream = connected
            .and_then(|stream| RecordStream::new(stream, payload_bytes_max, Some(timeout)));
        let mut stream = stream.map_err(|error| {
            Error::Server(format!("cannot connect to the server at {address}: {error}"))
        })?;
        let file = &group.files[plan(load).transfer(rank, 0).file];
        let calls = calls(load, service, file, &mut stream)
            .map_err(|Broken(why)| Error::Server(format!("no session with {address}: {why}")))?;
        Ok((stream, calls))
    };
    (0..load.operations_by_rank.len()).map(connect).collect()
}

/// The calls over a new connection: in version 4, of a new session with `file` opened.
fn calls<'a>(
    load: &Load,
    service: &'a Service,
    file: &LoadFile,
    stream: &mut RecordStream,
) -> std::result::Result<FileCalls<'a>, Broken> {
    let caller = caller(&service.identity);
    let Some(minor_version) = service.version.minor() else {
        return Ok(FileCalls::V3(nfs3::FileCalls { caller, file: file.handle }));
    };
    let (slots, timeout) = (load.depth, load.timeout);
    let session = Session::begin(stream, caller, minor_version, slots, load.io_bytes, timeout)?;
    let access = match load.direction {
        Direction::Read => ShareAccess::Read,
        Direction::Write => ShareAccess::Write,
    };
    let opened =
        nfs4::FileCalls::open(session, stream, &service.path, &file.name, access, timeout)?;
    Ok(FileCalls::V4(Box::new(opened)))
}

/// The credential of the calls.
pub(crate) fn caller(identity: &Identity) -> AuthSys<'_> {
    let Identity { uid, gid, ref groups } = *identity;
    let gids = &groups[..groups.len().min(GIDS_MAX)];
    let gids = Gids::new(gids).expect("no more than fit");
    AuthSys { stamp: 0, machine_name: b"spillway", uid, gid, gids }
}

fn ranks<'a>(
    pool: &'a Pool,
    group: &'a Group<'_>,
    progress: &'a [Progress],
) -> impl Iterator<Item = Rank<'a>> {
    let Group { load, files, nice, .. } = group;
    let now = clock_gettime(ClockId::Monotonic);
    let now_ns = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
    progress.iter().enumerate().map(move |(number, progress)| Rank {
        number,
        load,
        plan: plan(load),
        files,
        pool,
        progress,
        sample: mix(now_ns, number as u64),
        nice: *nice,
    })
}

/// Has each rank work on a thread of its own, and watches from this one.
fn carry_out<'a>(
    ranks: impl Iterator<Item = ((usize, Rank<'a>), (RecordStream, FileCalls<'a>))>,
    progress: &[Vec<Progress>],
    watch: &mut Watch<'_>,
) -> Result<(Instant, Vec<Vec<RankOutcome>>, Vec<Series>)> {
    let failed = || Error::machine("cannot start a thread for each connection");
    // No rank begins before all are connected; if one fails, all end.
    let gate = Mutex::new(());
    let started = OnceLock::new();
    thread::scope(|scope| {
        let (ended, ends) = mpsc::channel();
        let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let mut threads = Vec::new();
        for ((group, rank), (stream, calls)) in ranks {
            let (ended, gate, started, stand_back) = (ended.clone(), &gate, &started, rank.nice);
            let name = format!("rank-{}", rank.number);
            let work = move || {
                drop(gate.lock());
                // Where the system refuses, the load works all the same and costs more.
                let _ = nice(stand_back);
                let outcome = started.get().map(|started| rank::run(rank, stream, calls, *started));
                // The receiver waits for as many as were started.
                let _ = ended.send(group);
                outcome
            };
            let thread = thread::Builder::new().name(name).spawn_scoped(scope, work);
            threads.push((group, thread.map_err(failed())?));
        }
        let start = *started.get_or_init(Instant::now);
        drop((closed, ended));
        let mut series: Vec<_> = progress.iter().map(|_| Series::new(start)).collect();
        watch::until_ended(&ends, progress, &mut series, watch);
        let mut outcomes: Vec<_> = progress.iter().map(|_| Vec::new()).collect();
        for (group, thread) in threads {
            let outcome = thread.join().expect("ranks do not panic");
            outcomes[group].push(outcome.expect("the load had begun"));
        }
        for ((series, progress), ranks) in series.iter_mut().zip(progress).zip(&outcomes) {
            let end = ranks.iter().map(|rank| rank.ended).max().unwrap_or(start);
            series.end(end, progress);
        }
        Ok((start, outcomes, series))
    })
}

/// Notes in the files what was written to them.
fn note(group: &mut Group<'_>, ranks: &[RankOutcome]) {
    if group.load.direction == Direction::Read {
        return;
    }
    let plan = plan(group.load);
    for (rank, outcome) in ranks.iter().enumerate() {
        let transfers = (0..outcome.begun).map(|index| {
            let failed = outcome.failed.contains(&index);
            let written = if failed { Written::Unknown } else { Written::Whole };
            (plan.transfer(rank, index), written)
        });
        let file = plan.transfer(rank, 0).file;
        group.files[file].contents.note(group.load.generation, transfers);
    }
}

fn summed_up(load: &Load, started: Instant, ranks: Vec<RankOutcome>, series: Series) -> Outcome {
    let ended = ranks.iter().map(|rank| rank.ended).max().unwrap_or(started);
    let data_ended = ranks.iter().map(|rank| rank.data_ended).max().unwrap_or(started);
    let commits = load.direction == Direction::Write && load.stable == StableHow::Unstable;
    let mut outcome = Outcome {
        time: ended - started,
        commit_time: if commits { ended - data_ended } else { Duration::ZERO },
        bytes: 0,
        operations: 0,
        by_rank: Vec::new(),
        latency: rank::histogram(),
        seconds: series.into_seconds(),
        cpu: Duration::ZERO,
        verified_bytes: 0,
        wrong_bytes: 0,
        first_wrong: None,
        short_replies: 0,
        put_off: 0,
        errors: 0,
        first_error: None,
    };
    let first_error = ranks.iter().filter_map(|rank| rank.first_error.as_ref()).min();
    outcome.first_error = first_error.map(|(_, text)| text.clone());
    for rank in ranks {
        let (operations, bytes) = (rank.operations, rank.bytes);
        outcome.by_rank.push(Share { operations, bytes, time: rank.ended - started });
        outcome.operations += operations;
        outcome.bytes += bytes;
        outcome.latency.add(&rank.latency).expect("the bounds are the same");
        outcome.cpu += rank.cpu;
        outcome.verified_bytes += rank.verified.verified;
        outcome.wrong_bytes += rank.verified.wrong;
        let first_wrong = rank.wrong_file.zip(rank.verified.first_wrong);
        outcome.first_wrong = outcome.first_wrong.or(first_wrong);
        outcome.short_replies += rank.short_replies;
        outcome.put_off += rank.put_off;
        outcome.errors += rank.errors;
    }
    outcome
}

impl Progress {
    fn bytes(ranks: &[Self]) -> u64 {
        ranks.iter().map(|rank| rank.bytes.load(Ordering::Relaxed)).sum()
    }

    fn operations(ranks: &[Self]) -> u64 {
        ranks.iter().map(|rank| rank.operations.load(Ordering::Relaxed)).sum()
    }
}
