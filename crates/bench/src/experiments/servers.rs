//! Experiments that are made on each subject in turns, whole: a directory listed, a file written in
//! tiny records.

use std::ops::RangeInclusive;
use std::path::Path;

use clap::Args;

use super::export::Export;
use crate::Result;
use crate::load::Version;
use crate::options::{RoundOptions, TargetOptions};
use crate::output::{Output, OutputOptions};
use crate::record::{Measurement, Run};
use crate::rig::begin_run;
use crate::stage::{Stage, SurroundingsOptions, own_directory};
use crate::stop::Stop;
use crate::subject::{self, Subject};

/// The options of such an experiment, `T` its own.
#[derive(Args, Clone, Debug)]
pub struct OnServers<T: Args> {
    #[command(flatten)]
    pub(crate) target: TargetOptions,
    #[command(flatten)]
    own: T,
    #[command(flatten)]
    rounds: RoundOptions,
    #[command(flatten)]
    pub(crate) surroundings: SurroundingsOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// An experiment on one server at a time; [`run`] carries it out on each subject.
pub(crate) trait Experiment: Args + Clone {
    /// Of the experiment.
    const NAME: &str;

    /// Notes what is compared.
    ///
    /// # Errors
    /// [`crate::Error::Misuse`].
    fn describe(&self, targets: &TargetOptions, run: &mut Run) -> Result<()>;

    /// The versions of NFS that it speaks, if it can choose.
    fn versions(&self) -> &[Version] {
        &[]
    }

    /// Connections to a server at once, at most, those of mounts included. Few experiments have an
    /// option for their number.
    fn connections(&self) -> usize {
        FEW_CONNECTIONS
    }

    /// Carries out the rounds of these numbers on one server; `record` is given each measurement
    /// when it is made.
    ///
    /// # Errors
    /// [`crate::Error::Misuse`] for what cannot be, [`crate::Error::Call`] for what the server
    /// refuses, and those of `record`.
    fn carry_out(
        &self,
        rounds: RangeInclusive<u32>,
        export: &Export<'_>,
        record: &mut dyn FnMut(Measurement) -> Result<()>,
    ) -> Result<()>;
}

const FEW_CONNECTIONS: usize = 16;

/// Carries an experiment out on each subject. With several of them each round is one of each, and
/// begins with another.
///
/// # Errors
/// Measurements before the error are kept and shown.
pub(crate) fn run<T: Experiment>(
    options: &OnServers<T>,
    program: &Path,
    arguments: Vec<String>,
) -> Result<()> {
    let stop = Stop::on_signals()?;
    let mut run = begin_run(T::NAME, arguments)?;
    let connections = options.own.connections();
    let mut stage = Stage::set(&options.surroundings, &options.target, connections, &mut run)?;
    let versions = options.own.versions();
    let subjects =
        Subject::all(&options.target, versions, program, |directory| stage.place(directory))?;
    subject::describe(&subjects, &mut run)?;
    options.own.describe(&options.target, &mut run)?;
    run.memory_limit_bytes = options.target.memory_limit.map(|size| size.0);
    run.note.clone_from(&options.output.note);
    let mut output = Output::start(&options.output, run)?;
    let done = all_rounds(options, &stage, &subjects, &stop, &mut output);
    output.finish()?;
    done
}

fn all_rounds<T: Experiment>(
    options: &OnServers<T>,
    stage: &Stage,
    subjects: &[Subject],
    stop: &Stop,
    output: &mut Output,
) -> Result<()> {
    let (experiment, rounds) = (&options.own, 1..=options.rounds.rounds);
    if subjects.len() == 1 {
        output.doing(T::NAME);
        return once(experiment, rounds, stage, subjects, 0, stop, &mut |measurement| {
            output.add(measurement)?;
            stop.check()
        });
    }
    for round in rounds {
        for at in super::turned(subjects.len(), round) {
            output.doing(format!("{} on {}, round {round}", T::NAME, subjects[at].name));
            once(experiment, round..=round, stage, subjects, at, stop, &mut |measurement| {
                output.add(measurement)?;
                stop.check()
            })?;
        }
    }
    Ok(())
}

/// Rounds of an experiment on the subject `at` this place, which is started for them if it is ours
/// to start.
fn once<T: Experiment>(
    experiment: &T,
    rounds: RangeInclusive<u32>,
    stage: &Stage,
    subjects: &[Subject],
    at: usize,
    stop: &Stop,
    record: &mut dyn FnMut(Measurement) -> Result<()>,
) -> Result<()> {
    let subject = &subjects[at];
    let running = subject.start(stage)?;
    let export = Export {
        name: if subjects.len() == 1 { String::new() } else { subject.name.clone() },
        url: running.url.clone(),
        // Two subjects may be one export, and the directory of an earlier round may be kept.
        directory: own_directory(format!("{}-{at}-{}", T::NAME, rounds.start())),
        version: subject.version,
        watched: running.watched(),
        files: running.files().map(Path::to_owned),
        counters: Box::new(|| running.counters()),
        stop: stop.clone(),
    };
    let done = experiment.carry_out(rounds, &export, record);
    drop(export);
    done.map_err(|error| running.cause_of(error))?;
    running.stop()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;
    use crate::experiments::own_server::OwnServer;
    use crate::experiments::readdir;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: OnServers<readdir::Options>,
    }

    #[test]
    fn each_round_on_each_subject_has_a_directory_of_its_own() {
        let server = OwnServer::start();
        let [a, b] = ["a", "b"].map(|name| format!("{name}={}", server.url()));
        let own = ["--entries", "20", "--modified", "none", "--keep", "--rounds", "2"];
        let Cli { options } = Cli::parse_from(["bench", &a, &b].iter().chain(&own));
        let stage =
            Stage::set(&options.surroundings, &options.target, 1, &mut Run::default()).unwrap();
        let place = |_: &Path| panic!("they are URLs");
        let subjects = Subject::all(&options.target, &[], Path::new("/bin/true"), place).unwrap();
        let mut output = Output::start(&options.output, Run::default()).unwrap();
        all_rounds(&options, &stage, &subjects, &Stop::default(), &mut output).unwrap();
        assert_eq!(fs::read_dir(server.path()).unwrap().count(), 4);
    }
}
