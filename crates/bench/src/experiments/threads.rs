//! Throughput and latency versus concurrency: by calls in flight and by connections, and for one
//! client beside another with many connections.

use std::collections::BTreeMap;
use std::iter;
use std::net::Ipv4Addr;
use std::path::Path;
use std::slice::SliceIndex;
use std::time::Duration;

use clap::Args;
use proto::nfs3::StableHow;
use server::config::ByteSize;

use super::cache_state::CacheState;
use super::load_meter::LoadMeter;
use super::turned;
use crate::figure::Figure;
use crate::load::{
    self, Direction, Group, Load, LoadFile, NICE, Outcome, Pattern, Pool, Service, TIMEOUT, Verify,
    Watch, create_files,
};
use crate::options::{RoundOptions, TargetOptions, VersionOptions, check_distinct};
use crate::output::{Output, OutputOptions};
use crate::record::{self, Measurement};
use crate::rig::begin_run;
use crate::stage::{Stage, SurroundingsOptions};
use crate::stop::Stop;
use crate::subject::{self, Running, Subject};
use crate::{Error, Result};

/// `spillway bench threads`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    pub(crate) target: TargetOptions,

    #[command(flatten)]
    versions: VersionOptions,

    /// Calls in flight in total, as from so many threads that wait for one call each
    #[arg(long, value_name = "COUNT[,COUNT...]", value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,

    /// Connections that share them; at most as many as threads
    #[arg(long, value_name = "COUNT[,COUNT...]", value_delimiter = ',', default_value = "1,16",
        value_parser = clap::value_parser!(u16).range(1..=256))]
    connections: Vec<u16>,

    /// WRITE instead of READ
    #[arg(long)]
    write: bool,

    /// Size of each READ or WRITE, at random places
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    io_bytes: ByteSize,

    /// Data of all files: as many as the largest of --connections, at least 16, and one more; a
    /// measurement uses one for each of its connections
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    size: ByteSize,

    /// Duration of each measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 3,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    #[command(flatten)]
    rounds: RoundOptions,

    /// State of the caches when a measurement begins: cold (dropped, needs root), warm (dropped,
    /// then filled by one read of all data; needs root), found (written back, and not dropped)
    #[arg(long, value_name = "STATE", default_value = "found")]
    cache: CacheState,

    /// Calls that each connection of the other client has in flight
    #[arg(long, value_name = "COUNT", default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    others_depth: u16,

    /// Skip the measurement of one client beside another with many connections
    #[arg(long)]
    no_fairness: bool,

    #[command(flatten)]
    pub(crate) surroundings: SurroundingsOptions,

    #[command(flatten)]
    output: OutputOptions,
}

/// Connections of the other client.
const OTHERS: u16 = 16;
/// Their address: servers distinguish clients by it.
const OTHER_CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Calls that the one client has in flight.
const ONE_DEPTH: u16 = 4;

/// Carries the experiment out. `program` is this program, `arguments` what it was given.
///
/// # Errors
/// Measurements before the error are kept and shown.
pub fn run(options: &Options, program: &Path, arguments: Vec<String>) -> Result<()> {
    options.check()?;
    let stop = Stop::on_signals()?;
    let mut run = begin_run("threads", arguments)?;
    let connections = options.most_connections();
    let mut stage = Stage::set(&options.surroundings, &options.target, connections, &mut run)?;
    let versions = &options.versions.nfs_versions;
    let subjects =
        Subject::all(&options.target, versions, program, |directory| stage.place(directory))?;
    options.cache.note(&options.target, &mut run);
    run.memory_limit_bytes = options.target.memory_limit.map(|size| size.0);
    run.note.clone_from(&options.output.note);
    subject::describe(&subjects, &mut run)?;
    if !options.no_fairness {
        for subject in &subjects {
            run.left_out.extend(without_fairness(subject, &stage)?);
        }
    }
    let output = Output::start(&options.output, run)?;
    let pool = Pool::fill();
    let mut experiment = Experiment { options, stop, stage, pool, output, generation: 0 };
    let done = experiment.all_rounds(&subjects);
    experiment.output.finish()?;
    done
}

impl Options {
    fn check(&self) -> Result<()> {
        check_distinct("--threads", &self.threads)?;
        check_distinct("--connections", &self.connections)
    }
}

/// Why one client beside another cannot be measured, if it cannot.
fn without_fairness(subject: &Subject, stage: &Stage) -> Result<Option<String>> {
    let why = "not at 127.0.0.0/8, or behind a relay, it would take both for one client";
    let name = &subject.name;
    let sentence = format!("One client beside another was not measured on {name}: {why}.");
    Ok((!subject.distinguishes_clients(stage)?).then_some(sentence))
}

struct Experiment<'a> {
    options: &'a Options,
    stop: Stop,
    stage: Stage,
    pool: Pool,
    output: Output,
    /// Of the data written last.
    generation: u32,
}

/// A subject with its files, for a round.
struct Trial<'a> {
    name: &'a str,
    running: Running,
    /// [`Subject::distinguishes_clients`].
    distinguishes_clients: bool,
    service: Service,
    /// One for each connection there may be, and one for the client beside them.
    files: Vec<LoadFile>,
}

/// A point of the experiment.
#[derive(Clone, Copy)]
struct Point {
    threads: u16,
    connections: u16,
}

impl Experiment<'_> {
    fn all_rounds(&mut self, subjects: &[Subject]) -> Result<()> {
        for round in 1..=self.options.rounds.rounds {
            // All of them run at once, those that are not measured idle.
            let mut trials = Vec::new();
            let prepared = subjects.iter().try_for_each(|subject| {
                self.stop.check()?;
                self.output.doing(format!("round {round}: files for {}", subject.name));
                let distinguishes_clients = subject.distinguishes_clients(&self.stage)?;
                let running = subject.start(&self.stage)?;
                match self.prepare(subject, &running) {
                    Ok((service, files)) => {
                        let name = &subject.name;
                        trials.push(Trial { name, running, distinguishes_clients, service, files });
                        Ok(())
                    }
                    Err(error) => Err(running.cause_of(error)),
                }
            });
            let done = prepared.and_then(|()| self.one_round(round, &mut trials));
            let ended = trials.into_iter().map(|trial| trial.running.stop());
            let ended = ended.fold(Ok(()), Result::and);
            // Also what a subject has made that could not be prepared.
            let tidied =
                subjects.iter().map(|subject| subject.tidy(&self.stage, self.options.names()));
            done.and(ended).and(tidied.fold(Ok(()), Result::and))?;
        }
        Ok(())
    }

    fn one_round(&mut self, round: u32, trials: &mut [Trial<'_>]) -> Result<()> {
        for point in self.points() {
            for (order, at) in (1..).zip(turned(trials.len(), round)) {
                self.stop.check()?;
                let trial = &mut trials[at];
                let measured = self.measure(point, trial);
                let measurement = measured.map_err(|error| trial.running.cause_of(error))?;
                self.add(Measurement { round, order, ..measurement }, trial.name)?;
            }
        }
        if self.options.no_fairness {
            return Ok(());
        }
        for (order, at) in (1..).zip(turned(trials.len(), round)) {
            self.stop.check()?;
            let trial = &mut trials[at];
            if !trial.distinguishes_clients {
                continue;
            }
            let measured = self.fairness(trial);
            for measurement in measured.map_err(|error| trial.running.cause_of(error))? {
                self.add(Measurement { round, order, ..measurement }, trial.name)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, measurement: Measurement, subject: &str) -> Result<()> {
        self.output.add(Measurement { subject: subject.to_owned(), ..measurement })
    }

    /// All numbers of threads, with each number of connections that they can be parted among.
    fn points(&self) -> Vec<Point> {
        let points = self.options.connections.iter().flat_map(|&connections| {
            let threads = self.options.threads.iter();
            threads.map(move |&threads| Point { threads, connections })
        });
        points.filter(|point| point.threads.is_multiple_of(point.connections)).collect()
    }

    /// Writes the files of a subject.
    fn prepare(
        &mut self,
        subject: &Subject,
        running: &Running,
    ) -> Result<(Service, Vec<LoadFile>)> {
        let export = self.stage.mount(&running.url, subject.version, subject.directory())?;
        let service = self.stage.service(&export)?;
        let created = create_files(&export.nfs, export.directory, self.options.names());
        let mut files = self.stage.block_on(created)?;
        self.generation += 1;
        let write_bytes = WRITE_BYTES.min(service.write_bytes_max);
        let load = Load {
            io_bytes: write_bytes,
            operations_by_rank: vec![
                self.options.file_bytes().div_ceil(write_bytes.into());
                files.len()
            ],
            pattern: Pattern::EasySequential,
            time_max: None,
            ..self.load(Direction::Write, 1, ONE_DEPTH)
        };
        let written = load::run(&self.pool, &load, &service, &mut files, &mut Watch::none())?;
        match written.first_error {
            Some(error) => {
                Err(Error::Server(format!("{} cannot be filled: {error}", subject.name)))
            }
            None => Ok((service, files)),
        }
    }

    /// A load of `connections` with so many calls in flight on each, for the time of a measurement.
    fn load(&self, direction: Direction, connections: u16, depth: u16) -> Load {
        let io_bytes = u32::try_from(self.options.io_bytes.0).unwrap_or(u32::MAX);
        let units = self.options.file_bytes() / u64::from(io_bytes.max(1));
        Load {
            direction,
            pattern: Pattern::Random { units, seed: self.generation.into() },
            operations_by_rank: vec![u64::MAX; connections.into()],
            depth: depth.into(),
            io_bytes,
            time_max: Some(Duration::from_secs(self.options.seconds)),
            stop: self.stop.clone(),
            verify: Verify::Sampled,
            stable: StableHow::Unstable,
            generation: self.generation,
            timeout: TIMEOUT,
        }
    }

    fn direction(&self) -> Direction {
        if self.options.write { Direction::Write } else { Direction::Read }
    }

    fn measure(&mut self, point: Point, trial: &mut Trial<'_>) -> Result<Measurement> {
        let Point { threads, connections } = point;
        self.output.doing(format!("{threads} on {connections}: {}", trial.name));
        let load = self.next_load(connections, threads / connections);
        self.warm_up(trial)?;
        let mut measurement = self.measurement(&self.phase(), &load);
        let parameters = &mut measurement.parameters;
        parameters.insert("threads".to_owned(), threads.into());
        parameters.insert("connections".to_owned(), connections.into());
        let meter = LoadMeter::start(&trial.running)?;
        let (service, files) = (&trial.service, &mut trial.files);
        let outcome = load::run(&self.pool, &load, service, files, &mut trial.running.watch())?;
        // A load that was cut short is no measurement.
        self.stop.check()?;
        outcome.fill(&mut measurement);
        if let Some(fairness) = outcome.fairness() {
            measurement.figures.insert(Figure::Fairness, fairness);
        }
        meter.end(outcome.bytes, outcome.operations, &mut measurement)?;
        self.verify(trial, .., &mut measurement)?;
        Ok(measurement)
    }

    /// Reads back files that were written in a measurement, and compares every byte.
    fn verify(
        &self,
        trial: &mut Trial<'_>,
        files: impl SliceIndex<[LoadFile], Output = [LoadFile]>,
        measurement: &mut Measurement,
    ) -> Result<()> {
        if self.options.write {
            self.output.doing(format!("comparing what was written: {}", trial.name));
            self.read_back(trial, files)?.note_verified(measurement);
        }
        Ok(())
    }

    /// One client alone, and then beside another that has many connections.
    fn fairness(&mut self, trial: &mut Trial<'_>) -> Result<[Measurement; 3]> {
        self.output.doing(format!("one client beside another: {}", trial.name));
        self.warm_up(trial)?;
        let one = self.next_load(1, ONE_DEPTH);
        let mut group = one_and_others((&one, &trial.service, &mut trial.files[..1]), None);
        let alone = load::run_groups(&self.pool, &mut group, &mut trial.running.watch())?.remove(0);
        self.stop.check()?;
        let mut alone_measured = self.measurement_beside(ALONE, &one, &alone);
        // Before the same file is written again.
        self.verify(trial, ..1, &mut alone_measured)?;
        // It shall not read again what it has brought into the caches.
        self.warm_up(trial)?;
        let one = self.next_load(1, ONE_DEPTH);
        let others = self.next_load(OTHERS, self.options.others_depth);
        let one = Load { generation: others.generation, ..one };
        let (own, rest) = trial.files.split_at_mut(1);
        let service = &trial.service;
        let other_client = Service { source: Some(OTHER_CLIENT.into()), ..service.clone() };
        let mut groups = one_and_others((&one, service, own), Some((&others, &other_client, rest)));
        let beside = load::run_groups(&self.pool, &mut groups, &mut trial.running.watch())?;
        self.stop.check()?;
        let mut one_beside = self.measurement_beside("one-beside-sixteen", &one, &beside[0]);
        let share = beside[0].mib_per_sec() / alone.mib_per_sec();
        if share.is_finite() {
            one_beside.figures.insert(Figure::BesideOthers, share);
        }
        let mut others_beside = self.measurement_beside("sixteen-beside-one", &others, &beside[1]);
        self.verify(trial, ..1, &mut one_beside)?;
        self.verify(trial, 1.., &mut others_beside)?;
        Ok([alone_measured, one_beside, others_beside])
    }

    fn measurement_beside(&self, phase: &str, load: &Load, outcome: &Outcome) -> Measurement {
        let mut measurement = self.measurement(phase, load);
        measurement.parameters.extend(self.options.beside(phase));
        outcome.fill(&mut measurement);
        measurement
    }

    fn next_load(&mut self, connections: u16, depth: u16) -> Load {
        self.generation += 1;
        self.load(self.direction(), connections, depth)
    }

    fn warm_up(&self, trial: &mut Trial<'_>) -> Result<()> {
        self.options.cache.prepare(self.options.size.0, trial.running.files(), &self.stop)?;
        if self.options.cache == CacheState::Warm
            && let Some(error) = self.read_back(trial, ..)?.first_trouble()
        {
            return Err(Error::Server(format!("{} cannot be read: {error}", trial.name)));
        }
        Ok(())
    }

    /// Reads files, and compares them.
    fn read_back(
        &self,
        trial: &mut Trial<'_>,
        files: impl SliceIndex<[LoadFile], Output = [LoadFile]>,
    ) -> Result<Outcome> {
        let bytes = WRITE_BYTES.min(trial.service.read_bytes_max);
        let (service, files) = (&trial.service, &mut trial.files[files]);
        load::verify_all(&self.pool, service, files, bytes, 4, &self.stop)
    }

    fn phase(&self) -> String {
        format!("random-{}", if self.options.write { "write" } else { "read" })
    }

    fn measurement(&self, phase: &str, load: &Load) -> Measurement {
        let parameters = self.options.parameters(load.io_bytes);
        Measurement { phase: phase.to_owned(), parameters, ..Measurement::default() }
    }
}

/// A load, and what it is put on.
type Client<'a> = (&'a Load, &'a Service, &'a mut [LoadFile]);

/// One client, and the others beside it. Its own machine would be there for it alone, so it comes
/// before the others; and also where there are none, because the two measurements are compared.
fn one_and_others<'a>(one: Client<'a>, others: Option<Client<'a>>) -> Vec<Group<'a>> {
    let group = |(load, service, files), nice| Group { load, service, files, nice };
    iter::once(group(one, -20)).chain(others.map(|others| group(others, NICE))).collect()
}

impl Options {
    fn names(&self) -> impl Iterator<Item = String> + use<> {
        let most = self.connections.iter().copied().max().unwrap_or(1).max(OTHERS);
        (0..=most).map(|number| format!("threads.{number}"))
    }

    /// Connections to a server at once: one for each file when all are written, and the mount's.
    fn most_connections(&self) -> usize {
        self.names().count() + 1
    }

    /// Bytes of each file that a load uses: whole transfers, at least one.
    fn file_bytes(&self) -> u64 {
        let (files, io_bytes) = (self.names().count() as u64, self.io_bytes.0.max(1));
        (self.size.0 / files / io_bytes).max(1) * io_bytes
    }

    /// The parameters of a load beside the numbers that vary: measurements that differ in them
    /// are not compared. Each connection has a file of its own.
    fn parameters(&self, io_bytes: u32) -> BTreeMap<String, u64> {
        record::parameters([
            ("io_bytes", Some(io_bytes.into())),
            ("file_bytes", Some(self.file_bytes())),
            (record::LIMIT_SECS, Some(self.seconds)),
        ])
    }

    /// The same of one client and another beside it, whose phases are not named after READ or
    /// WRITE.
    fn beside(&self, phase: &str) -> BTreeMap<String, u64> {
        let others_depth = (phase != ALONE).then_some(self.others_depth.into());
        record::parameters([("write", Some(self.write.into())), ("others_depth", others_depth)])
    }
}

/// The phase of one client without another.
const ALONE: &str = "one-alone";
/// Size of the WRITEs that fill files, and of the READs that warm them up.
const WRITE_BYTES: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use client::Identity;

    use super::*;
    use crate::experiments::own_server::{OwnServer, measurements_in, options};
    use crate::load::Version;
    use crate::record::Run;

    /// The measurements of a short run on a server of this process.
    fn measured(words: &str) -> Vec<Measurement> {
        let server = OwnServer::start();
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("records");
        let short = "--threads 2 --connections 1 --size 1MiB --seconds 1 --rounds 1";
        let line = format!("{} {short} {words} --out {}", server.url(), out.display());
        let options: Options = options(&line).unwrap();
        let (surroundings, target) = (&options.surroundings, &options.target);
        let connections = options.most_connections();
        let mut stage = Stage::set(surroundings, target, connections, &mut Run::default()).unwrap();
        let subjects =
            Subject::all(&options.target, &[], Path::new("/bin/true"), |place| stage.place(place));
        let output = Output::start(&options.output, Run::default()).unwrap();
        let (stop, pool) = (Stop::default(), Pool::fill());
        let mut experiment =
            Experiment { options: &options, stop, stage, pool, output, generation: 0 };
        experiment.all_rounds(&subjects.unwrap()).unwrap();
        measurements_in(&out)
    }

    #[test]
    fn all_that_was_written_is_compared() {
        let measurements = measured("--write");
        let phases: Vec<_> = measurements.iter().map(|one| one.phase.as_str()).collect();
        assert_eq!(phases, ["random-write", ALONE, "one-beside-sixteen", "sixteen-beside-one"]);
        for measurement in &measurements {
            let figures = &measurement.figures;
            assert!(figures[&Figure::VerifiedMib] >= 1.0, "{figures:?}");
            assert_eq!((figures[&Figure::WrongBytes], figures[&Figure::Errors]), (0.0, 0.0));
        }
    }

    #[test]
    fn one_client_beside_another_is_left_out_behind_a_relay() {
        let measurements = measured("--net-delay 1ms");
        let phases: Vec<_> = measurements.iter().map(|one| one.phase.as_str()).collect();
        assert_eq!(phases, ["random-read"]);
    }

    #[test]
    fn one_client_has_the_same_priority_alone_and_beside_others() {
        let load = Load {
            direction: Direction::Read,
            pattern: Pattern::EasySequential,
            operations_by_rank: vec![1],
            depth: 1,
            io_bytes: 1,
            time_max: None,
            stop: Stop::default(),
            verify: Verify::Nothing,
            stable: StableHow::Unstable,
            generation: 0,
            timeout: TIMEOUT,
        };
        let service = Service {
            address: (Ipv4Addr::LOCALHOST, 2049).into(),
            source: None,
            identity: Identity { uid: 0, gid: 0, groups: Vec::new() },
            read_bytes_max: 1,
            write_bytes_max: 1,
            version: Version::V3,
            path: Vec::new(),
        };
        let client = || -> Client<'_> { (&load, &service, &mut []) };
        let alone = one_and_others(client(), None);
        let beside = one_and_others(client(), Some(client()));
        assert_eq!((alone.len(), beside.len()), (1, 2));
        assert_eq!(alone[0].nice, beside[0].nice);
        assert!(beside[0].nice < beside[1].nice);
    }

    #[test]
    fn lists_with_a_value_twice_are_refused() {
        let checked = |list| options::<Options>(&format!("/srv {list}")).unwrap().check();
        checked("").unwrap();
        for list in ["--threads 4,4", "--connections 1,2,1"] {
            assert!(matches!(checked(list), Err(Error::Misuse(_))), "{list}");
        }
    }

    #[test]
    fn each_option_of_the_load_is_a_parameter() {
        let parameters = |line: &str| {
            let options: Options = options(&format!("/srv {line}")).unwrap();
            let mut parameters = options.parameters(4096);
            parameters.extend(options.beside("one-beside-sixteen"));
            parameters
        };
        for other in ["--size 1GiB", "--seconds 9", "--write", "--others-depth 5"] {
            assert_ne!(parameters(""), parameters(other), "{other}");
        }
        // The same data is divided among more files.
        assert_ne!(parameters("--connections 1"), parameters("--connections 1,64"));
        assert_eq!(parameters("--connections 1"), parameters("--connections 1,16"));
        assert_eq!(parameters("--size 17MiB")["file_bytes"], 1 << 20);
    }
}
