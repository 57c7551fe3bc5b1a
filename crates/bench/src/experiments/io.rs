//! READ and WRITE loads after the patterns of IOR: large and aligned in files of one's own, small
//! and misaligned in one file of all, and small at random.

mod calibration;
mod phase;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use proto::nfs3::StableHow;
use server::config::ByteSize;

use super::cache_state::CacheState;
use super::load_meter::LoadMeter;
use crate::figure::Figure;
use crate::load::{
    self, Direction, Load, LoadFile, Outcome, Pool, Service, TIMEOUT, Verify, Version, Watch,
    create_files,
};
use crate::numeral::mib;
use crate::options::{RoundOptions, TargetOptions, VersionOptions, check_distinct};
use crate::output::{Output, OutputOptions};
use crate::record::{self, CALIBRATION, Measurement};
use crate::rig::begin_run;
use crate::stage::{MountedDirectory, Stage, SurroundingsOptions};
use crate::stop::Stop;
use crate::subject::{self, Running, Subject};
use crate::{Error, Result};
use calibration::NullServer;
use phase::{Files, Phase, Sizes};

/// `spillway bench io`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    pub(crate) target: TargetOptions,

    #[command(flatten)]
    versions: VersionOptions,

    /// Phases to run, in this order: easy-write, easy-read, random-read, random-write, hard-write,
    /// hard-read [default: all]
    #[arg(long, value_name = "PHASE[,PHASE...]", value_delimiter = ',')]
    phases: Vec<Phase>,

    /// Ranks of the load, each with a connection of its own
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    ranks: u16,

    /// Calls that each rank has in flight, one number after the other: with fewer calls the load
    /// itself costs more per call, and ranks drift further apart
    #[arg(long, value_name = "COUNT[,COUNT...]", value_delimiter = ',', default_value = "1,8")]
    depth: Vec<u16>,

    /// Data of all ranks together in the easy phases, and in the hard ones
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    size: ByteSize,

    /// Size of a READ or WRITE of the easy phases
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    easy_bytes: ByteSize,

    /// Size of a READ or WRITE of the hard phases, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 47_008)]
    hard_bytes: u32,

    /// Size of a random READ or WRITE
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    random_bytes: ByteSize,

    /// Random READs or WRITEs of all ranks together
    #[arg(long, value_name = "COUNT", default_value_t = 50_000)]
    random_operations: u64,

    /// End each phase after so many seconds; the rest of its calls is not made [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,

    #[command(flatten)]
    rounds: RoundOptions,

    /// State of the caches when a phase begins: cold (dropped, needs root), warm (dropped, then
    /// filled by one read of the whole files, but not for easy-write and hard-write, which make
    /// theirs; needs root), found (written back, and not dropped) [default: cold where root may
    /// drop them, else found]
    #[arg(long, value_name = "STATE")]
    cache: Option<CacheState>,

    /// How many of the timed READs are compared with the expected data: full (all), sampled (one of
    /// 64), none. Unless none, all data is read and compared after each writing phase, outside of
    /// the measured time
    #[arg(long, value_name = "EXTENT", default_value = "sampled")]
    verify: Extent,

    /// Do not first measure the cost of the load itself, against a null server
    #[arg(long)]
    no_calibration: bool,

    #[command(flatten)]
    pub(crate) surroundings: SurroundingsOptions,

    #[command(flatten)]
    output: OutputOptions,
}

/// How many ranks, and calls of one, there may be at once is the load's to say; a transfer larger
/// than the server takes, too.
impl Options {
    fn sizes(&self) -> Result<Sizes> {
        let bytes = |size: ByteSize| u32::try_from(size.0).ok().filter(|bytes| *bytes > 0);
        let too_large =
            |size: ByteSize| Error::Misuse(format!("{size} is not a valid transfer size"));
        let sizes = Sizes {
            ranks: self.ranks,
            bytes: self.size.0,
            easy_bytes: bytes(self.easy_bytes).ok_or_else(|| too_large(self.easy_bytes))?,
            hard_bytes: self.hard_bytes,
            random_bytes: bytes(self.random_bytes).ok_or_else(|| too_large(self.random_bytes))?,
            random_operations: self.random_operations,
        };
        if self.ranks == 0 || self.hard_bytes == 0 || self.depth.contains(&0) {
            return Err(Error::Misuse("ranks, calls and bytes must not be 0".into()));
        }
        check_distinct("--phases", &self.phases)?;
        check_distinct("--depth", &self.depth)?;
        Ok(sizes)
    }

    /// Connections to a server at once: those of a load, and of the mount beside it.
    fn connections(&self) -> usize {
        usize::from(self.ranks) + 1
    }

    /// All that makes the load of a phase: measurements with other parameters are no pair.
    fn parameters(&self, phase: Phase, depth: u16, sizes: &Sizes) -> BTreeMap<String, u64> {
        let is_random = matches!(phase, Phase::RandomRead | Phase::RandomWrite);
        let is_read = phase.direction() == Direction::Read;
        record::parameters([
            ("ranks", Some(self.ranks.into())),
            ("depth", Some(depth.into())),
            ("io_bytes", Some(phase.io_bytes(sizes).into())),
            ("data_bytes", Some(sizes.bytes)),
            ("random_operations", is_random.then_some(sizes.random_operations)),
            (record::LIMIT_SECS, self.seconds),
            ("verified_of_64_reads", is_read.then(|| self.verify.of_64_reads())),
        ])
    }
}

/// Carries the experiment out. `program` is this program, `arguments` what it was given.
///
/// # Errors
/// Measurements before the error are kept and shown.
pub fn run(options: &Options, program: &Path, arguments: Vec<String>) -> Result<()> {
    let sizes = options.sizes()?;
    let stop = Stop::on_signals()?;
    let mut run = begin_run("io", arguments)?;
    let connections = options.connections();
    let mut stage = Stage::set(&options.surroundings, &options.target, connections, &mut run)?;
    let versions = &options.versions.nfs_versions;
    let subjects =
        Subject::all(&options.target, versions, program, |directory| stage.place(directory))?;
    let cache = options.cache.unwrap_or_else(CacheState::default_here);
    cache.note(&options.target, &mut run);
    run.memory_limit_bytes = options.target.memory_limit.map(|size| size.0);
    run.note.clone_from(&options.output.note);
    subject::describe(&subjects, &mut run)?;
    let output = Output::start(&options.output, run)?;
    let mut experiment = Experiment {
        options,
        sizes,
        cache,
        stop,
        stage,
        pool: Pool::fill(),
        output,
        generation: 0,
    };
    let mut trials: Vec<_> = subjects.into_iter().map(Trial::new).collect();
    let done = experiment.all_rounds(&mut trials, program);
    let tidied = trials.iter().map(|trial| experiment.tidy(trial)).fold(Ok(()), Result::and);
    experiment.output.finish()?;
    done.and(tidied)
}

struct Experiment<'a> {
    options: &'a Options,
    sizes: Sizes,
    cache: CacheState,
    stop: Stop,
    stage: Stage,
    pool: Pool,
    output: Output,
    /// Of the data written last.
    generation: u32,
}

/// A phase and its depth, measured on each subject in turn.
#[derive(Clone, Copy)]
struct Setting {
    phase: Phase,
    depth: u16,
    time_max: Option<Duration>,
}

/// A subject, and what loads have left in its files.
struct Trial {
    subject: Subject,
    own: Made,
    shared: Made,
}

/// Files as a phase that makes them left them.
#[derive(Default)]
struct Made {
    files: Vec<LoadFile>,
    /// The number of WRITEs that each rank has done.
    operations_by_rank: Vec<u64>,
    /// Why they are not what their loads are to find, if they are not.
    trouble: Option<String>,
}

impl Trial {
    fn new(subject: Subject) -> Self {
        Self { subject, own: Made::default(), shared: Made::default() }
    }

    fn made(&mut self, files: Files) -> &mut Made {
        match files {
            Files::Own => &mut self.own,
            Files::Shared => &mut self.shared,
        }
    }
}

impl Experiment<'_> {
    fn all_rounds(&mut self, trials: &mut [Trial], program: &Path) -> Result<()> {
        let phases = match &self.options.phases[..] {
            [] => Phase::value_variants(),
            chosen => chosen,
        };
        // They would be reached only after the first calibration, and after each other.
        trials.iter().try_for_each(|trial| self.check(&trial.subject))?;
        for round in 1..=self.options.rounds.rounds {
            let depths = &self.options.depth;
            let time_max = self.options.seconds.map(Duration::from_secs);
            let settings = phases.iter().flat_map(|&phase| {
                depths.iter().map(move |&depth| Setting { phase, depth, time_max })
            });
            for setting in settings {
                let Setting { phase, depth, .. } = setting;
                let mut alone_us = Vec::new();
                if !self.options.no_calibration {
                    for version in versions(trials) {
                        alone_us.push((version, self.calibrate(setting, version, round, program)?));
                    }
                }
                for (order, at) in (1..).zip(super::turned(trials.len(), round)) {
                    self.stop.check()?;
                    let trial = &mut trials[at];
                    let (name, version) = (trial.subject.name.clone(), trial.subject.version);
                    let phase = phase.name();
                    self.output.doing(format!("round {round}: {phase} of {name}, depth {depth}"));
                    let mut measurement = self.measure(setting, trial)?;
                    let alone = alone_us.iter().find(|(of, _)| *of == version);
                    compare_costs(alone.and_then(|(_, us)| *us), &mut measurement.figures);
                    let subject = name;
                    self.output.add(Measurement { round, order, subject, ..measurement })?;
                }
            }
        }
        Ok(())
    }

    /// Fails if a subject cannot be measured, because it does not start, or refuses the mount.
    fn check(&self, subject: &Subject) -> Result<()> {
        self.stop.check()?;
        let running = subject.start(&self.stage)?;
        let mounted = self.stage.mount(&running.url, subject.version, subject.directory());
        mounted.map_err(|error| running.cause_of(error))?;
        running.stop()
    }

    /// One phase on one subject.
    fn measure(&mut self, setting: Setting, trial: &mut Trial) -> Result<Measurement> {
        let running = trial.subject.start(&self.stage)?;
        let measured = self.measure_running(setting, trial, &running);
        let measurement = measured.map_err(|error| running.cause_of(error))?;
        running.stop()?;
        Ok(measurement)
    }

    fn measure_running(
        &mut self,
        setting: Setting,
        trial: &mut Trial,
        running: &Running,
    ) -> Result<Measurement> {
        let phase = setting.phase;
        let (name, version) = (trial.subject.name.clone(), trial.subject.version);
        let directory = trial.subject.directory();
        let export = self.stage.mount(&running.url, version, directory)?;
        let service = self.stage.service(&export)?;
        let made = trial.made(phase.files());
        if made.files.is_empty() && !phase.is_new() {
            self.find_files(phase.maker(), made, &export)?;
            let maker = Setting { phase: phase.maker(), ..setting };
            self.put_unmeasured(maker, &name, made, &service)?;
        }
        self.find_files(phase, made, &export)?;
        self.cache.prepare(self.sizes.bytes, running.files(), &self.stop)?;
        if self.cache == CacheState::Warm
            && let Some(phase) = phase.warmer()
        {
            // Data that the time would not suffice for would stay cold.
            let warmer = Setting { phase, time_max: None, ..setting };
            self.put_unmeasured(warmer, &name, made, &service)?;
        }
        let mut measurement = self.measurement(setting);
        let meter = LoadMeter::start(running)?;
        let outcome = self.put(setting, made, &service, &mut running.watch())?;
        // A load that was cut short is no measurement.
        self.stop.check()?;
        outcome.fill(&mut measurement);
        if !phase.is_new() {
            self.note_given(phase, made, &mut measurement);
        }
        meter.end(outcome.bytes, outcome.operations, &mut measurement)?;
        if phase.direction() == Direction::Write && self.options.verify != Extent::None {
            self.verify(made, &service, phase, &mut measurement)?;
        }
        Ok(measurement)
    }

    fn measurement(&self, Setting { phase, depth, .. }: Setting) -> Measurement {
        let parameters = self.options.parameters(phase, depth, &self.sizes);
        Measurement { phase: phase.name(), parameters, ..Measurement::default() }
    }

    /// Notes what of the files was there for a phase that did not make them itself.
    fn note_given(&self, phase: Phase, made: &Made, measurement: &mut Measurement) {
        if measurement.first_error.is_none() {
            measurement.first_error.clone_from(&made.trouble);
        }
        if self.options.seconds.is_some() {
            let given_bytes = phase.given_bytes(&self.sizes, &made.operations_by_rank);
            measurement.figures.insert(Figure::GivenMib, mib(given_bytes));
        }
    }

    /// Makes the files that a phase begins with, or finds those that it goes on with: a server that
    /// was started anew may call them differently.
    fn find_files(&self, phase: Phase, made: &mut Made, export: &MountedDirectory) -> Result<()> {
        let names = names(phase.files(), self.options.ranks);
        if phase.is_new() {
            let created = create_files(&export.nfs, export.directory, names);
            made.files = self.stage.block_on(created)?;
            return Ok(());
        }
        for (file, name) in made.files.iter_mut().zip(names) {
            let found = export.nfs.lookup(export.directory, name.as_bytes());
            let found = self.stage.block_on(found);
            file.handle = found.map_err(Error::call(format!("LOOKUP {name}")))?.object;
        }
        Ok(())
    }

    /// Makes or reads what a measurement is to find. An error ends the experiment: the measurement
    /// would be that of another load than its parameters state. But the measurement itself reports
    /// that its files were written with errors.
    fn put_unmeasured(
        &mut self,
        setting: Setting,
        subject: &str,
        made: &mut Made,
        service: &Service,
    ) -> Result<()> {
        let is_reported = made.trouble.is_some();
        let outcome = self.put(setting, made, service, &mut Watch::none())?;
        self.stop.check()?;
        outcome.first_trouble().filter(|_| !is_reported).map_or(Ok(()), |trouble| {
            let phase = setting.phase.name();
            let what = format!("{phase} of {subject}, before a measurement, failed: {trouble}");
            Err(Error::Server(what))
        })
    }

    /// Puts a phase's load on a server.
    fn put(
        &mut self,
        Setting { phase, depth, time_max }: Setting,
        made: &mut Made,
        service: &Service,
        watch: &mut Watch<'_>,
    ) -> Result<Outcome> {
        let operations = phase.operations(&self.sizes);
        let all = vec![operations; usize::from(self.options.ranks)];
        let all_operations: u64 = all.iter().sum();
        // Of a file that a phase ended before its time, what is there.
        let is_again = matches!(phase, Phase::EasyRead | Phase::HardRead);
        let operations_by_rank = if is_again { made.operations_by_rank.clone() } else { all };
        // The shortest file decides where random transfers are.
        let easy_operations = made.operations_by_rank.iter().copied().min().unwrap_or_default();
        let is_write = phase.direction() == Direction::Write;
        self.generation += u32::from(is_write);
        let load = Load {
            direction: phase.direction(),
            pattern: phase.pattern(&self.sizes, easy_operations, self.generation.into()),
            operations_by_rank,
            depth: depth.into(),
            io_bytes: phase.io_bytes(&self.sizes),
            time_max,
            stop: self.stop.clone(),
            verify: self.options.verify.of_reads(),
            stable: StableHow::Unstable,
            generation: self.generation,
            timeout: TIMEOUT,
        };
        let outcome = load::run(&self.pool, &load, service, &mut made.files, watch)?;
        if phase.is_new() {
            made.operations_by_rank = outcome.operations_by_rank();
            let wanted_bytes = all_operations * u64::from(phase.io_bytes(&self.sizes));
            made.trouble = outcome.first_error.as_ref().map(|why| {
                let bytes = outcome.bytes;
                format!(
                    "the files were written with errors, {bytes} of {wanted_bytes} bytes: {why}"
                )
            });
        }
        Ok(outcome)
    }

    /// Reads all of the files and compares every byte.
    fn verify(
        &self,
        made: &mut Made,
        service: &Service,
        phase: Phase,
        measurement: &mut Measurement,
    ) -> Result<()> {
        self.output.doing(format!("comparing what {} wrote", phase.name()));
        let (bytes, depth) = (self.sizes.easy_bytes.min(service.read_bytes_max), VERIFY_DEPTH);
        let files = &mut made.files;
        let read = load::verify_all(&self.pool, service, files, bytes, depth, &self.stop)?;
        read.note_verified(measurement);
        Ok(())
    }

    /// Measures the cost of the load by itself, against a null server. Returns its processor time
    /// for each call, in microseconds; `None` if no call was done.
    fn calibrate(
        &mut self,
        setting: Setting,
        version: Version,
        round: u32,
        program: &Path,
    ) -> Result<Option<f64>> {
        let phase = setting.phase;
        self.stop.check()?;
        self.output.doing(format!("round {round}: {} of no server", phase.name()));
        let server = NullServer::start(program)?;
        let export = self.stage.mount(server.url(), version, None)?;
        let service = self.stage.service(&export)?;
        let mut made = Made::default();
        self.find_files(phase.maker(), &mut made, &export)?;
        // As if the whole files had been written.
        let written = phase.maker().operations(&self.sizes);
        made.operations_by_rank = vec![written; usize::from(self.options.ranks)];
        let mut measurement = self.measurement(setting);
        let outcome = self.put(setting, &mut made, &service, &mut Watch::none())?;
        self.stop.check()?;
        outcome.fill(&mut measurement);
        let us = measurement.figures.get(&Figure::GeneratorUsPerOperation).copied();
        let mut subject = phase.name();
        if version != Version::V3 {
            subject += &format!(" v{version}");
        }
        let phase = CALIBRATION.to_owned();
        self.output.add(Measurement { phase, subject, round, order: 1, ..measurement })?;
        Ok(us)
    }

    fn tidy(&self, trial: &Trial) -> Result<()> {
        let names = names(Files::Own, self.options.ranks).chain(names(Files::Shared, 1));
        trial.subject.tidy(&self.stage, names)
    }
}

/// Adds what the load costs by itself, in microseconds for each call, by what the server cost.
fn compare_costs(alone_us: Option<f64>, figures: &mut BTreeMap<Figure, f64>) {
    let server_us = figures.get(&Figure::ServerUsPerOperation).copied();
    if let (Some(alone), Some(server)) = (alone_us, server_us.filter(|us| *us > 0.0)) {
        figures.insert(Figure::GeneratorAloneToServer, alone / server);
    }
}

/// The versions of all subjects, each once.
fn versions(trials: &[Trial]) -> Vec<Version> {
    let mut versions = Vec::new();
    for trial in trials {
        if !versions.contains(&trial.subject.version) {
            versions.push(trial.subject.version);
        }
    }
    versions
}

/// Names of the files of a phase.
fn names(files: Files, ranks: u16) -> Box<dyn Iterator<Item = String>> {
    match files {
        Files::Own => Box::new((0..ranks).map(|rank| format!("easy.{rank}"))),
        Files::Shared => Box::new(std::iter::once("hard".to_owned())),
    }
}

/// How much is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Extent {
    Full,
    Sampled,
    None,
}

impl Extent {
    const fn of_reads(self) -> Verify {
        match self {
            Self::Full => Verify::Full,
            Self::Sampled => Verify::Sampled,
            Self::None => Verify::Nothing,
        }
    }

    const fn of_64_reads(self) -> u64 {
        match self {
            Self::Full => 64,
            Self::Sampled => 1,
            Self::None => 0,
        }
    }
}

/// Calls in flight on each connection while all is read and compared.
const VERIFY_DEPTH: usize = 4;

#[cfg(test)]
mod tests {
    use client::NfsUrl;

    use super::*;
    use crate::experiments::own_server::{OwnServer, measurements_in, options};
    use crate::record::Run;
    use crate::skip::skip_in_ci_too;

    fn stage(options: &Options) -> Result<Stage> {
        let (surroundings, target) = (&options.surroundings, &options.target);
        Stage::set(surroundings, target, options.connections(), &mut Run::default())
    }

    /// How a round on a server ends, and its measurements.
    fn carried_out(url: &NfsUrl, words: &str) -> (Result<()>, Vec<Measurement>) {
        let all_rounds = |experiment: &mut Experiment<'_>, trials: &mut [Trial]| {
            experiment.all_rounds(trials, Path::new("/bin/true"))
        };
        with_experiment(url, &format!("--no-calibration {words}"), all_rounds)
    }

    /// The result of `run`, and the measurements that it adds.
    fn with_experiment<T>(
        url: &NfsUrl,
        words: &str,
        run: impl FnOnce(&mut Experiment<'_>, &mut [Trial]) -> T,
    ) -> (T, Vec<Measurement>) {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("records");
        let short = "--rounds 1 --cache found";
        let options: Options =
            options(&format!("{url} {short} {words} --out {}", out.display())).unwrap();
        let mut stage = stage(&options).unwrap();
        let program = Path::new("/bin/true");
        let subjects = Subject::all(&options.target, &[], program, |place| stage.place(place));
        let mut trials: Vec<_> = subjects.unwrap().into_iter().map(Trial::new).collect();
        let output = Output::start(&options.output, Run::default()).unwrap();
        let mut experiment = Experiment {
            options: &options,
            sizes: options.sizes().unwrap(),
            cache: CacheState::Found,
            stop: Stop::default(),
            stage,
            pool: Pool::fill(),
            output,
            generation: 0,
        };
        let done = run(&mut experiment, &mut trials);
        (done, measurements_in(&out))
    }

    #[test]
    fn a_wrong_target_is_reported_before_a_calibration() {
        let server = OwnServer::start();
        let url = NfsUrl { path: b"/missing".to_vec(), ..server.url() };
        let (done, _) = with_experiment(&url, "", |experiment, trials| {
            experiment.all_rounds(trials, Path::new("/no/null/server"))
        });
        let error = done.unwrap_err().to_string();
        assert!(error.starts_with("cannot mount "), "{error}");
    }

    #[test]
    fn random_reads_stay_within_files_that_were_cut_short() {
        let server = OwnServer::start();
        // Each rank would have to make 262,144 WRITEs one by one in a second.
        let short = "--phases random-read --ranks 2 --depth 1 --size 256MiB --easy-bytes 512B \
                     --random-operations 2000 --seconds 1 --verify full";
        let (done, measurements) = carried_out(&server.url(), short);
        done.unwrap();
        let [measured] = &measurements[..] else { panic!("{measurements:?}") };
        assert_eq!((measured.phase.as_str(), &measured.first_error), ("random-read", &None));
        assert!(measured.figures[&Figure::VerifiedMib] > 0.0, "{:?}", measured.figures);
        assert_eq!(measured.figures[&Figure::WrongBytes], 0.0);
        let given_mib = measured.figures[&Figure::GivenMib];
        assert!(given_mib > 0.0 && given_mib < 256.0, "{given_mib} MiB were written in a second");
    }

    #[test]
    fn reads_of_files_that_were_not_wholly_written_are_not_sound() {
        let server = OwnServer::start();
        let phases = "--phases easy-write,easy-read --ranks 1 --depth 1 --size 64KiB \
                      --easy-bytes 4KiB";
        let (done, measurements) = carried_out(&server.refusing_writes(), phases);
        done.unwrap();
        let [written, read] = &measurements[..] else { panic!("{measurements:?}") };
        assert_eq!(written.figures[&Figure::Errors], 16.0, "{:?}", written.first_error);
        let first_error = read.first_error.as_deref().unwrap_or_default();
        let expected = "the files were written with errors, 0 of 65536 bytes: ";
        assert!(first_error.starts_with(expected), "{first_error}");
        let (done, measurements) = carried_out(&OwnServer::start().url(), phases);
        done.unwrap();
        assert!(measurements.iter().all(|one| one.first_error.is_none()), "{measurements:?}");
    }

    #[test]
    fn files_that_cannot_be_written_end_the_experiment() {
        let server = OwnServer::start();
        let reads = "--phases easy-read --ranks 1 --depth 1 --size 64KiB --easy-bytes 4KiB";
        let (done, measurements) = carried_out(&server.refusing_writes(), reads);
        let error = done.unwrap_err().to_string();
        assert!(error.starts_with("easy-write of ") && error.contains(": WRITE 0, "), "{error}");
        assert_eq!(measurements, []);
    }

    #[test]
    fn files_written_with_errors_are_measured_although_they_cannot_be_read_before() {
        let server = OwnServer::start();
        let words = "--ranks 1 --size 64KiB --easy-bytes 4KiB";
        let (read, _) = with_experiment(&server.url(), words, |experiment, trials| {
            let Trial { subject, own, .. } = &mut trials[0];
            let running = subject.start(&experiment.stage).unwrap();
            let directory = subject.directory();
            let export = experiment.stage.mount(&running.url, subject.version, directory).unwrap();
            let service = experiment.stage.service(&export).unwrap();
            experiment.find_files(Phase::EasyWrite, own, &export).unwrap();
            // A WRITE that is not in the file.
            own.operations_by_rank = vec![1];
            let setting = Setting { phase: Phase::EasyRead, depth: 1, time_max: None };
            [None, Some("WRITE 0, no space".to_owned())].map(|trouble| {
                own.trouble = trouble;
                experiment.put_unmeasured(setting, "server", own, &service)
            })
        });
        let [sound, with_errors] = read;
        let error = sound.unwrap_err().to_string();
        assert!(error.contains("the file ends at 0"), "{error}");
        with_errors.unwrap();
    }

    #[test]
    fn the_page_cache_of_files_is_measured_without_the_servers_process() {
        let server = OwnServer::start();
        let (url, files) = (server.url(), server.path());
        let (host, port) = (&url.host, url.port.unwrap());
        let easy_write = "--phases easy-write --ranks 1 --depth 1 --size 1MiB";
        let words = format!("{easy_write} --files {host}:{port}={}", files.display());
        let (done, measurements) = carried_out(&url, &words);
        done.unwrap();
        let [written] = &measurements[..] else { panic!("{measurements:?}") };
        assert_eq!(written.figures.get(&Figure::ServerRssMibMax), None);
        if !written.figures.contains_key(&Figure::CachedAtStartMib) {
            return skip_in_ci_too("the kernel does not report what is cached");
        }
        assert!(written.figures[&Figure::PageCacheMibMax] >= 1.0, "{:?}", written.figures);
    }

    #[test]
    fn more_connections_than_a_relay_carries_are_refused() {
        let set = |words: &str| stage(&options(&format!("nfs://127.0.0.1/x {words}")).unwrap());
        let refused = set("--ranks 300 --net-delay 1ms").map(drop).unwrap_err();
        assert!(matches!(&refused, Error::Misuse(why) if why.ends_with(" has 301")), "{refused}");
        set("--ranks 255 --net-delay 1ms").map(drop).unwrap();
        set("--ranks 300").map(drop).unwrap();
    }

    #[test]
    fn lists_with_a_value_twice_are_refused() {
        for list in ["--depth 1,8,1", "--phases easy-write,easy-write"] {
            let options: Options = options(&format!("/srv {list}")).unwrap();
            let refused = options.sizes().unwrap_err();
            assert!(matches!(refused, Error::Misuse(_)), "{refused}");
        }
    }

    #[test]
    fn each_option_of_the_load_is_a_parameter() {
        let parameters = |line: &str, phase| {
            let options: Options = options(&format!("/srv {line}")).unwrap();
            options.parameters(phase, 1, &options.sizes().unwrap())
        };
        for other in [
            "--ranks 5",
            "--size 2GiB",
            "--seconds 9",
            "--random-operations 7",
            "--random-bytes 8KiB",
            "--verify full",
            "--verify none",
        ] {
            let phase = Phase::RandomRead;
            assert_ne!(parameters("", phase), parameters(other, phase), "{other}");
        }
        // Options that a phase does not use are no reason not to compare it.
        let easy = |line: &str| parameters(line, Phase::EasyWrite);
        assert_eq!(easy(""), easy("--random-operations 7 --random-bytes 8KiB --verify full"));
    }
}
