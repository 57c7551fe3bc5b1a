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
use crate::stage::{Stage, SurroundingsOptions};
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

/// What the experiments have in common.
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

/// Carries an experiment out on each subject. With several of them each round is one of each, and
/// begins with another.
///
/// # Errors
/// What was measured before the error is kept and shown.
pub(crate) fn run<T: Experiment>(
    options: &OnServers<T>,
    program: &Path,
    arguments: Vec<String>,
) -> Result<()> {
    let stop = Stop::on_signals()?;
    let mut run = begin_run(T::NAME, arguments)?;
    let mut stage = Stage::set(&options.surroundings, &options.target, &mut run)?;
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
    if let [subject] = subjects {
        output.doing(T::NAME);
        return once(experiment, rounds, stage, subject, String::new(), stop, &mut |measurement| {
            output.add(measurement)?;
            stop.check()
        });
    }
    for round in rounds {
        for at in super::turned(subjects.len(), round) {
            let subject = &subjects[at];
            output.doing(format!("{} on {}, round {round}", T::NAME, subject.name));
            let name = subject.name.clone();
            once(experiment, round..=round, stage, subject, name, stop, &mut |measurement| {
                output.add(measurement)?;
                stop.check()
            })?;
        }
    }
    Ok(())
}

/// All of an experiment on one server, which is started for it if it is ours to start.
fn once(
    experiment: &impl Experiment,
    rounds: RangeInclusive<u32>,
    stage: &Stage,
    subject: &Subject,
    name: String,
    stop: &Stop,
    record: &mut dyn FnMut(Measurement) -> Result<()>,
) -> Result<()> {
    let running = subject.start(stage)?;
    let export = Export {
        name,
        url: running.url.clone(),
        version: subject.version,
        watched: running.watched(),
        counters: Box::new(|| running.counters()),
        stop: stop.clone(),
    };
    let done = experiment.carry_out(rounds, &export, record);
    drop(export);
    done.map_err(|error| running.cause_of(error))?;
    running.stop()
}
