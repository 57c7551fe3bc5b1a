//! The content of files of records: runs, phases, and in each phase a case for each subject and
//! each setting of the varied parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::error::{Error, Result};
use crate::figure::Figure;
use crate::numeral::{as_f64, size_about};
use crate::record::{CALIBRATION, LIMIT_SECS, Measurement, Record, Run};
use crate::statistics::{Observation, Summary};

/// Parameters by name.
pub type Parameters = BTreeMap<String, u64>;

/// The runs of one or more files, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// The runs.
    pub runs: Vec<RunResults>,
    /// Remarks about the files, in sentences: one was cut off.
    pub remarks: Vec<String>,
}

/// A run with its measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResults {
    /// Its circumstances.
    pub run: Run,
    /// Its phases, in order of first appearance.
    pub phases: Vec<Phase>,
}

/// A phase of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// Parameters that are the same in all its measurements.
    pub fixed: Parameters,
    /// Its cases: by setting in ascending order, then by subject in order of first appearance in
    /// the run.
    pub cases: Vec<Case>,
}

/// The measurements of one subject in one setting of a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The subject.
    pub subject: String,
    /// Parameters that vary for a subject of the phase.
    pub setting: Parameters,
    /// Parameters that are the same for this subject, and others or none for another: they are
    /// a part of what the subject is.
    pub own: Parameters,
    /// A measurement for each round, in the order in which they were made. Never empty.
    pub rounds: Vec<Measurement>,
}

impl Results {
    /// Reads files of records, one after the other.
    ///
    /// A last line without its end is what a run leaves that was killed: it is left out, and a
    /// remark reports it.
    ///
    /// # Errors
    /// `Machine` if a file cannot be read, `Record` if a line is not a record, belongs to no run
    /// above it, or begins a run that was there before.
    pub fn read<P: AsRef<Path>>(files: &[P]) -> Result<Self> {
        let mut records = Vec::new();
        let mut remarks = Vec::new();
        let mut runs = BTreeSet::new();
        for file in files {
            let name = file.as_ref().display().to_string();
            let text = fs::read_to_string(file)
                .map_err(Error::machine(format!("cannot read the records in {name}")))?;
            let mut here = BTreeSet::new();
            let found = parse(&name, &text, &mut remarks)?;
            for (line, record) in found {
                let why = match &record {
                    Record::Run(run) if !runs.insert(run.id.clone()) => {
                        Some(format!("the run `{}` was already read", run.id))
                    }
                    Record::Run(run) => {
                        here.insert(run.id.clone());
                        None
                    }
                    Record::Measurement(one) if !here.contains(&one.run) => {
                        Some(format!("a measurement of the run `{}`, not in this file", one.run))
                    }
                    Record::Measurement(_) => None,
                };
                if let Some(why) = why {
                    return Err(Error::Record { file: name, line, why });
                }
                records.push(record);
            }
        }
        Ok(Self { remarks, ..Self::group(&records) })
    }

    /// The subjects of all runs, in order of first appearance.
    #[must_use]
    pub fn subjects(&self) -> Vec<&str> {
        let mut found: Vec<&str> = Vec::new();
        for subject in self.runs.iter().flat_map(RunResults::subjects) {
            if !found.contains(&subject) {
                found.push(subject);
            }
        }
        found
    }

    /// Groups records. Measurements of a run that is not among them get an empty one.
    #[must_use]
    pub fn group(records: &[Record]) -> Self {
        let mut runs: Vec<(Run, Vec<&Measurement>)> = Vec::new();
        for record in records {
            match record {
                Record::Run(run) => runs.push((run.clone(), Vec::new())),
                Record::Measurement(one) => {
                    if !runs.iter().any(|(run, _)| run.id == one.run) {
                        let run = Run { id: one.run.clone(), ..Run::default() };
                        runs.push((run, Vec::new()));
                    }
                    let (_, all) = runs
                        .iter_mut()
                        .find(|(run, _)| run.id == one.run)
                        .expect("it was put there if it was not");
                    all.push(one);
                }
            }
        }
        let grouped = runs.into_iter().map(|(run, all)| {
            let mut phases = phases(&all);
            // It is made first, and read last.
            phases.sort_by_key(Phase::is_calibration);
            RunResults { run, phases }
        });
        Self { runs: grouped.collect(), remarks: Vec::new() }
    }
}

impl RunResults {
    /// The experiment, and the main differences between its runs: `io, xfs, 128 MiB of memory`.
    #[must_use]
    pub fn title(&self) -> String {
        let Run { experiment, file_system, network, storage, memory_limit_bytes, .. } = &self.run;
        let kind = file_system.split(',').next().unwrap_or_default();
        let limit = memory_limit_bytes.map(|bytes| format!("{} of memory", size_about(bytes)));
        // The network is named if it was slowed down.
        let network = network.split_once(": ").map_or("", |(_, slow)| slow);
        let parts = [experiment, kind, limit.as_deref().unwrap_or_default(), network, storage];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(", ")
    }

    /// The subjects that were measured, in order of first appearance.
    #[must_use]
    pub fn subjects(&self) -> Vec<&str> {
        let mut found: Vec<&str> = Vec::new();
        let phases = self.phases.iter().filter(|phase| !phase.is_calibration());
        for case in phases.flat_map(|phase| &phase.cases) {
            if !found.contains(&case.subject.as_str()) {
                found.push(&case.subject);
            }
        }
        found
    }
}

impl Phase {
    /// Whether it measures the load and not a subject.
    #[must_use]
    pub fn is_calibration(&self) -> bool {
        self.name == CALIBRATION
    }

    /// The settings of what varies, in ascending order; one without anything if nothing does.
    #[must_use]
    pub fn settings(&self) -> Vec<&Parameters> {
        let mut found: Vec<&Parameters> = Vec::new();
        for case in &self.cases {
            if !found.contains(&&case.setting) {
                found.push(&case.setting);
            }
        }
        found
    }

    /// The subjects, in order of first appearance in the run.
    #[must_use]
    pub fn subjects(&self) -> Vec<&str> {
        let mut found: Vec<&str> = Vec::new();
        for case in &self.cases {
            if !found.contains(&case.subject.as_str()) {
                found.push(&case.subject);
            }
        }
        found
    }

    /// The case of a subject in a setting.
    #[must_use]
    pub fn case(&self, subject: &str, setting: &Parameters) -> Option<&Case> {
        self.cases.iter().find(|case| case.subject == subject && case.setting == *setting)
    }

    /// Whether any measurement has this figure.
    #[must_use]
    pub fn has(&self, figure: Figure) -> bool {
        self.cases.iter().any(|case| case.summary(figure).is_some())
    }

    /// The most rounds that a case has.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.cases.iter().map(|case| case.rounds.len()).max().unwrap_or(0)
    }
}

impl Case {
    /// The values of a figure, with the rounds they are from.
    #[must_use]
    pub fn observations(&self, figure: Figure) -> Vec<Observation<'_>> {
        let of = |one: &Measurement| {
            one.figures.get(&figure).copied().or_else(|| unrecorded(one, figure))
        };
        self.rounds
            .iter()
            .filter_map(|one| {
                of(one).map(|value| Observation { run: &one.run, round: one.round, value })
            })
            .collect()
    }

    /// The values of a figure in short; none if no round has it.
    #[must_use]
    pub fn summary(&self, figure: Figure) -> Option<Summary> {
        let values: Vec<_> = self.observations(figure).iter().map(|one| one.value).collect();
        Summary::of(&values)
    }

    /// The median of a figure.
    #[must_use]
    pub fn median(&self, figure: Figure) -> Option<f64> {
        self.summary(figure).map(|summary| summary.median)
    }

    /// Whether a limit of time ended its load in some round, so that its rounds differ in what they
    /// did.
    #[must_use]
    pub fn has_time_limit(&self) -> bool {
        self.rounds.iter().any(|one| {
            let limit = one.parameters.get(LIMIT_SECS);
            let times = limit.zip(one.figures.get(&Figure::Secs));
            times.is_some_and(|(limit, secs)| *secs >= as_f64(*limit))
        })
    }

    /// One sentence for each of its measurements with errors or wrong data.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        self.rounds.iter().filter_map(fault).collect()
    }

    /// Whether nothing was wrong in any round.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.rounds.iter().all(|one| fault(one).is_none())
    }
}

/// The figures that earlier versions left out: the count of calls put off where it was 0, of loads
/// that count errors too; and the sum of the server's user and system time, whose medians have
/// another one.
fn unrecorded(one: &Measurement, figure: Figure) -> Option<f64> {
    let of = |figure| one.figures.get(&figure).copied();
    match figure {
        Figure::PutOff => of(Figure::Errors).map(|_| 0.0),
        Figure::ServerSecsPerGib => {
            Some(of(Figure::ServerUserSecsPerGib)? + of(Figure::ServerSystemSecsPerGib)?)
        }
        _ => None,
    }
}

fn fault(one: &Measurement) -> Option<String> {
    let of = |figure| one.figures.get(&figure).copied().unwrap_or(0.0);
    let mut parts = Vec::new();
    for (figure, words) in [
        (Figure::Errors, "calls failed"),
        (Figure::WrongBytes, "bytes were wrong"),
        (Figure::WrongEntries, "entries were wrong"),
    ] {
        if of(figure) != 0.0 {
            parts.push(format!("{:.0} {words}", of(figure)));
        }
    }
    match (&one.first_error, parts.is_empty()) {
        (None, true) => None,
        (None, false) => Some(format!("round {}: {}", one.round, parts.join(", "))),
        (Some(first), true) => Some(format!("round {}: {first}", one.round)),
        (Some(first), false) => {
            Some(format!("round {}: {}; first: {first}", one.round, parts.join(", ")))
        }
    }
}

/// The records of a file with their lines.
fn parse(file: &str, text: &str, remarks: &mut Vec<String>) -> Result<Vec<(usize, Record)>> {
    let mut found = Vec::new();
    for (index, part) in text.split_inclusive('\n').enumerate() {
        if part.trim().is_empty() {
            continue;
        }
        match serde_json::from_str(part) {
            Ok(record) => found.push((index + 1, record)),
            Err(_) if !part.ends_with('\n') => remarks.push(format!(
                "{file} is truncated in line {}, as after an interrupted run; the lines before it \
                 are used.",
                index + 1
            )),
            Err(why) => {
                let why = format!("not a record of spillway bench: {why}");
                return Err(Error::Record { file: file.into(), line: index + 1, why });
            }
        }
    }
    if found.is_empty() {
        let why = "it contains no complete record".into();
        return Err(Error::Record { file: file.into(), line: 1, why });
    }
    Ok(found)
}

fn phases(all: &[&Measurement]) -> Vec<Phase> {
    let mut names: Vec<&str> = Vec::new();
    let mut subjects: Vec<&str> = Vec::new();
    for one in all {
        if !names.contains(&one.phase.as_str()) {
            names.push(&one.phase);
        }
        if !subjects.contains(&one.subject.as_str()) {
            subjects.push(&one.subject);
        }
    }
    names
        .into_iter()
        .map(|name| {
            let of_phase: Vec<_> = all.iter().copied().filter(|one| one.phase == name).collect();
            phase(name, &of_phase, &subjects)
        })
        .collect()
}

fn phase(name: &str, all: &[&Measurement], subjects: &[&str]) -> Phase {
    let fixed = fixed(all);
    let varying = varying(all, subjects);
    let kept = |one: &Measurement, keep: &dyn Fn(&String) -> bool| -> Parameters {
        let kept = one.parameters.iter().filter(|(name, _)| keep(name));
        kept.map(|(name, value)| (name.clone(), *value)).collect()
    };
    let setting = |one: &Measurement| kept(one, &|name| varying.contains(name));
    let own =
        |one: &Measurement| kept(one, &|name| !varying.contains(name) && !fixed.contains_key(name));
    let settings: BTreeSet<Parameters> = all.iter().map(|one| setting(one)).collect();
    let mut cases = Vec::new();
    for at in settings {
        for subject in subjects {
            let here = |one: &&&Measurement| one.subject == *subject && setting(one) == at;
            let rounds: Vec<_> = all.iter().filter(here).map(|one| (*one).clone()).collect();
            if let Some(first) = rounds.first() {
                let (subject, own) = ((*subject).into(), own(first));
                cases.push(Case { subject, setting: at.clone(), own, rounds });
            }
        }
    }
    Phase { name: name.into(), fixed, cases }
}

/// The parameters that are not the same in all measurements of some subject.
fn varying(all: &[&Measurement], subjects: &[&str]) -> BTreeSet<String> {
    let names: BTreeSet<&String> = all.iter().flat_map(|one| one.parameters.keys()).collect();
    let varies = |name: &str| {
        subjects.iter().any(|subject| {
            let of_subject = all.iter().filter(|one| one.subject == *subject);
            let values: BTreeSet<_> = of_subject.map(|one| one.parameters.get(name)).collect();
            values.len() > 1
        })
    };
    names.into_iter().filter(|name| varies(name)).cloned().collect()
}

/// The parameters that all of them have, with the same value.
fn fixed(all: &[&Measurement]) -> Parameters {
    let Some((first, others)) = all.split_first() else { return Parameters::new() };
    let same = |name: &String, value: &u64| {
        others.iter().all(|one| one.parameters.get(name) == Some(value))
    };
    let kept = first.parameters.iter().filter(|(name, value)| same(name, value));
    kept.map(|(name, value)| (name.clone(), *value)).collect()
}

#[cfg(test)]
mod tests;
