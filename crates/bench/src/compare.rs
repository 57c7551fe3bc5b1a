//! `spillway bench compare`: what differs significantly between two sets of records, or between
//! the subjects of one.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::ptr;
use std::slice::from_ref;

use crate::error::{Error, Result};
use crate::figure::{Better, Figure};
use crate::numeral::{parameters, plain, rounded, size_about, wrapped};
use crate::record::Run;
use crate::results::{Case, Parameters, Results, RunResults};
use crate::statistics::{Comparison, Evidence, ROUNDS_MIN, Summary};
use crate::table::COLUMNS;

/// Arguments of `spillway bench compare`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Records to compare the others with: FILE, or FILE:SUBJECT for one subject of it
    #[arg(value_name = "BASE")]
    pub base: String,
    /// Records to compare. Without them the subjects of BASE are compared with its first, or with
    /// the named one
    #[arg(value_name = "OTHER")]
    pub other: Option<String>,
}

/// A figure of two cases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contrast {
    /// The figure.
    pub figure: Figure,
    /// Of the case that is compared with.
    pub base: Summary,
    /// Of the case that is compared.
    pub other: Summary,
    /// The second by the first.
    pub comparison: Comparison,
}

/// The direction of a contrast, if it is significant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Significantly.
    Better,
    /// Significantly.
    Worse,
    /// The interval has 1 in it.
    NoDifference,
    /// Fewer than [`ROUNDS_MIN`] rounds.
    TooFewRounds,
}

impl Contrast {
    /// All figures that both cases have and that can be better or worse, in the order of tables.
    #[must_use]
    pub fn all(base: &Case, other: &Case) -> Vec<Self> {
        Figure::ALL.iter().filter_map(|figure| Self::of(*figure, base, other)).collect()
    }

    /// One figure; none if either has no value of it, or if neither way is better: as of a sum,
    /// where time limits the load and the faster of two does more of it.
    #[must_use]
    pub fn of(figure: Figure, base: &Case, other: &Case) -> Option<Self> {
        let is_limited = base.has_time_limit() || other.has_time_limit();
        if figure.better() == Better::Neither || is_limited && figure.is_sum() {
            return None;
        }
        let comparison = Comparison::of(&base.observations(figure), &other.observations(figure))?;
        Some(Self {
            figure,
            base: base.summary(figure)?,
            other: other.summary(figure)?,
            comparison,
        })
    }

    /// Whether the second is better or worse than the first.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let improves = match self.comparison.evidence {
            Evidence::TooFewRounds => return Verdict::TooFewRounds,
            Evidence::Unclear => return Verdict::NoDifference,
            Evidence::Higher => self.figure.better() == Better::Higher,
            Evidence::Lower => self.figure.better() == Better::Lower,
        };
        if improves { Verdict::Better } else { Verdict::Worse }
    }

    /// The verdict in a word that suits the figure.
    #[must_use]
    pub fn verdict_word(&self) -> &'static str {
        let (better, worse) = match self.figure.unit() {
            "MiB/s" | "/s" | "s" | "us" => ("faster", "slower"),
            "s/GiB" | "us/op" => ("cheaper", "dearer"),
            _ => ("better", "worse"),
        };
        match self.verdict() {
            Verdict::Better => better,
            Verdict::Worse => worse,
            Verdict::NoDifference => "no difference",
            Verdict::TooFewRounds => "too few rounds",
        }
    }

    /// By how much the worse of the two is worse, as a factor from 1; infinite beside a 0.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.comparison.ratio.map_or(f64::INFINITY, |ratio| ratio.max(ratio.recip()))
    }

    /// The ratio, `1.23`; `-` where there is none.
    #[must_use]
    pub fn ratio_text(&self) -> String {
        self.comparison.ratio.map_or_else(|| "-".into(), rounded)
    }

    /// The interval, `1.20 to 1.26`; `-` where there is none.
    #[must_use]
    pub fn interval_text(&self) -> String {
        self.comparison.interval.map_or_else(
            || "-".into(),
            |(low, high)| format!("{} to {}", rounded(low), rounded(high)),
        )
    }
}

/// Compares as the arguments say, and writes what came out.
///
/// # Errors
/// `Misuse` if a subject is not there, and those of [`Results::read`]; `Stdout` if `out` takes no
/// more.
pub fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let mut text = Text::default();
    let base = Side::read(&args.base)?;
    match &args.other {
        None => compare_subjects(&base, &mut text),
        Some(other) => compare_sides(base, Side::read(other)?, &mut text)?,
    }
    text.close();
    out.write_all(text.lines.as_bytes()).and_then(|()| out.flush()).map_err(Error::Stdout)
}

/// A file of records, and the subject of it that is meant.
struct Side {
    name: String,
    results: Results,
    subject: Option<String>,
}

impl Side {
    fn read(argument: &str) -> Result<Self> {
        // A subject that is named after its server has a colon too: `host:2049`.
        let splits = argument.rmatch_indices(':');
        let mut splits = splits.map(|(at, _)| (&argument[..at], &argument[at + 1..]));
        let (file, subject) = match splits.find(|(file, _)| Path::new(file).exists()) {
            Some((file, subject)) if !Path::new(argument).exists() => (file, Some(subject)),
            // If there is no such file either, reading it returns the reason.
            Some(_) | None => (argument, None),
        };
        let results = Results::read(&[file])?;
        let subjects: BTreeSet<&str> = results.runs.iter().flat_map(RunResults::subjects).collect();
        if let Some(wanted) = subject
            && !subjects.contains(wanted)
        {
            let there: Vec<_> = subjects.into_iter().collect();
            return Err(Error::Misuse(format!(
                "{file} has no subject `{wanted}`; it has {}",
                there.join(", ")
            )));
        }
        Ok(Self { name: argument.into(), results, subject: subject.map(Into::into) })
    }

    /// Those of all runs.
    fn circumstances(&self) -> Vec<Circumstances> {
        self.results.runs.iter().map(|run| circumstances(&run.run)).collect()
    }

    /// The subjects of all runs.
    fn subjects(&self) -> BTreeSet<&str> {
        self.results.runs.iter().flat_map(RunResults::subjects).collect()
    }

    /// Its cases with all their parameters, those of the same load in several runs in one if the
    /// circumstances of the runs are the same.
    fn loads(&self) -> Vec<Load> {
        let mut loads: Vec<Load> = Vec::new();
        for run in &self.results.runs {
            let circumstances = circumstances(&run.run);
            for phase in run.phases.iter().filter(|phase| !phase.is_calibration()) {
                for case in &phase.cases {
                    if self.subject.as_ref().is_some_and(|wanted| *wanted != case.subject) {
                        continue;
                    }
                    let mut case = case.clone();
                    case.setting.extend(phase.fixed.clone());
                    case.setting.extend(case.own.clone());
                    let load = Load {
                        experiment: run.run.experiment.clone(),
                        phase: phase.name.clone(),
                        case,
                        circumstances: circumstances.clone(),
                        distinction: Vec::new(),
                    };
                    let same =
                        |one: &&mut Load| one.is_like(&load) && one.is_in_circumstances_of(&load);
                    match loads.iter_mut().find(same) {
                        Some(one) => one.case.rounds.extend(load.case.rounds),
                        None => loads.push(load),
                    }
                }
            }
        }
        distinguish(&mut loads);
        loads
    }
}

/// Notes in each load the circumstances that are not the same for all of them.
fn distinguish(loads: &mut [Load]) {
    let all: Vec<Circumstances> = loads.iter().map(|load| load.circumstances.clone()).collect();
    for load in loads {
        let of_load = load.circumstances.iter().enumerate();
        let varying = of_load.filter(|(at, one)| all.iter().any(|other| other[*at] != **one));
        let words = |(_, (name, value)): (usize, &(_, String))| format!("{name}: {value}");
        load.distinction = varying.map(words).collect();
    }
}

/// A case and the load that it was measured with.
struct Load {
    experiment: String,
    phase: String,
    case: Case,
    circumstances: Circumstances,
    /// Those of the circumstances, in words, that other loads of its file differ in.
    distinction: Vec<String>,
}

impl Load {
    fn is_like(&self, other: &Self) -> bool {
        self.is_same_but_subject(other)
            && self.case.subject == other.case.subject
            && self.case.setting == other.case.setting
    }

    /// Parameters that belong to a subject ([`Case::own`]) may differ.
    fn is_same_but_subject(&self, other: &Self) -> bool {
        let own =
            |name: &String| self.case.own.contains_key(name) || other.case.own.contains_key(name);
        let load = |of: &Self| -> Parameters {
            let load = of.case.setting.iter().filter(|(name, _)| !own(name));
            load.map(|(name, value)| (name.clone(), *value)).collect()
        };
        self.experiment == other.experiment
            && self.phase == other.phase
            && load(self) == load(other)
    }

    fn is_in_circumstances_of(&self, other: &Self) -> bool {
        self.circumstances == other.circumstances
    }

    fn title(&self) -> String {
        let parts =
            [self.experiment.as_str(), self.phase.as_str(), &parameters(&self.case.setting)];
        let parts = parts.into_iter().chain(self.distinction.iter().map(String::as_str));
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).map(plain).collect();
        parts.join("; ")
    }
}

/// Compares what has the same load and subject; if subjects were named, those with each other.
fn compare_sides(mut base: Side, mut other: Side, text: &mut Text) -> Result<()> {
    name_the_missing(&base, &mut other)?;
    name_the_missing(&other, &mut base)?;
    let named = base.subject.is_some();
    for remark in base.results.remarks.iter().chain(&other.results.remarks) {
        text.paragraph(&format!("Note: {remark}"));
    }
    text.paragraph(&format!("Base: {}", plain(&base.name)));
    text.paragraph(&format!("Other: {}", plain(&other.name)));
    let (base_loads, other_loads) = (base.loads(), other.loads());
    let known = differences(&base.circumstances(), &other.circumstances());
    for difference in &known {
        text.paragraph(&format!("!! The circumstances differ: {}", plain(difference)));
    }
    let same = |a: &Load, b: &Load| if named { a.is_same_but_subject(b) } else { a.is_like(b) };
    let pairs = pairs(&base_loads, &other_loads, same);
    for (load, with) in &pairs {
        let mut of_pair = differences(from_ref(&load.circumstances), from_ref(&with.circumstances));
        of_pair.retain(|difference| !known.contains(difference));
        text.contrasts(load, with, &of_pair);
    }
    let is_paired = |load: &Load| pairs.iter().any(|(a, b)| ptr::eq(*a, load) || ptr::eq(*b, load));
    for (loads, whose) in [(&base_loads, "the base"), (&other_loads, "the other")] {
        for load in loads.iter().filter(|load| !is_paired(load)) {
            let subject = plain(&load.case.subject);
            text.paragraph(&format!("Only in {whose}: {}; {subject}", load.title()));
        }
    }
    Ok(())
}

/// Each load of the base with the one of the others that is the `same`: in the same circumstances,
/// or else the one that differs least of those for whose circumstances the base has no load.
fn pairs<'a>(
    base: &'a [Load],
    others: &'a [Load],
    same: impl Fn(&Load, &Load) -> bool,
) -> Vec<(&'a Load, &'a Load)> {
    let matches = |a: &Load, b: &Load| same(a, b) && a.is_in_circumstances_of(b);
    let is_free = |other: &Load| !base.iter().any(|load| matches(load, other));
    let unlike = |a: &Load, b: &Load| {
        a.circumstances.iter().zip(&b.circumstances).filter(|(a, b)| a != b).count()
    };
    let partner = |load: &Load| {
        let may = |one: &&Load| same(load, one) && (matches(load, one) || is_free(one));
        others.iter().filter(may).min_by_key(|one| unlike(load, one))
    };
    base.iter().filter_map(|load| Some((load, partner(load)?))).collect()
}

/// If `one` names a subject and `other` does not, finds the subject of `other` that is meant.
fn name_the_missing(one: &Side, other: &mut Side) -> Result<()> {
    let (Some(wanted), None) = (&one.subject, &other.subject) else { return Ok(()) };
    let subjects = other.subjects();
    let found = match subjects.first() {
        Some(only) if subjects.len() == 1 => (*only).to_owned(),
        _ if subjects.contains(wanted.as_str()) => wanted.clone(),
        _ => {
            return Err(Error::Misuse(format!(
                "{} has several subjects and none is `{wanted}`: name one as FILE:SUBJECT",
                other.name
            )));
        }
    };
    other.subject = Some(found);
    Ok(())
}

/// Compares the subjects of each run with the one that is named, or else the first.
fn compare_subjects(side: &Side, text: &mut Text) {
    for remark in &side.results.remarks {
        text.paragraph(&format!("Note: {remark}"));
    }
    let all = Side { subject: None, results: side.results.clone(), name: side.name.clone() };
    let subjects: Vec<String> = side
        .results
        .runs
        .first()
        .map(|run| run.subjects().into_iter().map(Into::into).collect())
        .unwrap_or_default();
    let Some(base) = side.subject.as_ref().or(subjects.first()) else { return };
    text.paragraph(&format!("Base: {} of {}", plain(base), plain(&side.name)));
    let loads = all.loads();
    let before = text.compared;
    for load in loads.iter().filter(|load| load.case.subject != *base) {
        let is_base = |one: &&Load| {
            one.case.subject == *base
                && one.is_same_but_subject(load)
                && one.is_in_circumstances_of(load)
        };
        match loads.iter().find(is_base) {
            Some(with) => text.contrasts(with, load, &[]),
            None => text.paragraph(&format!(
                "Not measured on the base: {}; {}",
                load.title(),
                plain(&load.case.subject)
            )),
        }
    }
    if text.compared == before {
        text.paragraph("There is nothing to compare: no other subject had the same load.");
    }
}

/// The conditions of a measurement beside its parameters: names and values in words.
type Circumstances = [(&'static str, String); 10];

fn circumstances(run: &Run) -> Circumstances {
    let or = |text: &str, missing: &str| if text.is_empty() { missing } else { text }.to_owned();
    [
        ("kernel", or(&run.kernel, "none")),
        ("processor", or(&run.cpu, "none")),
        ("processors", run.cores.to_string()),
        ("memory", size_about(run.memory_bytes)),
        ("file system", or(&run.file_system, "none")),
        ("network", or(&run.network, "none")),
        ("congestion control", or(&run.congestion_control, "not recorded")),
        ("storage", or(&run.storage, "none")),
        ("limit of memory", run.memory_limit_bytes.map_or("none".into(), size_about)),
        ("cache", or(&run.cache, "none")),
    ]
}

/// The differences between the circumstances of two sets of runs, in words.
fn differences(base: &[Circumstances], other: &[Circumstances]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, (name, _)) in base.first().iter().flat_map(|first| first.iter()).enumerate() {
        let values = |of: &[Circumstances]| -> BTreeSet<String> {
            of.iter().map(|one| one[at].1.clone()).collect()
        };
        let (a, b) = (values(base), values(other));
        if a != b {
            let list = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join(" / ");
            found.push(format!("{name}: {}, but {} in the other", list(a), list(b)));
        }
    }
    found
}

/// The text of a comparison, the number of figures compared in it, and of those with too few
/// rounds.
#[derive(Default)]
struct Text {
    lines: String,
    compared: usize,
    too_few: usize,
}

impl Text {
    fn paragraph(&mut self, text: &str) {
        self.lines.push_str(&wrapped(text, "", COLUMNS));
        self.lines.push('\n');
    }

    /// The figures of two loads under each other, below the `differences` of their circumstances.
    fn contrasts(&mut self, base: &Load, other: &Load, differences: &[String]) {
        let contrasts = Contrast::all(&base.case, &other.case);
        self.lines.push('\n');
        self.paragraph(&base.title());
        for difference in differences {
            self.paragraph(&format!("!! The circumstances differ: {}", plain(difference)));
        }
        let (a, b) = (plain(&base.case.subject), plain(&other.case.subject));
        let rounds = contrasts.first().map_or_else(String::new, |one| {
            let (base, other) = one.comparison.rounds;
            let how = if one.comparison.paired { ", round by round" } else { "" };
            if base == other {
                format!(" ({base} rounds{how})")
            } else {
                format!(" ({other} rounds by {base}{how})")
            }
        });
        let names = if a == b { a.clone() } else { format!("{b} by {a}") };
        self.paragraph(&format!("{names}{rounds}"));
        self.lines.push_str(&format!(
            "  {:<30}{:>12}{:>12}{:>9}  {:<18}\n",
            "figure", "base", "other", "ratio", "95 % interval"
        ));
        for one in &contrasts {
            self.compared += 1;
            self.too_few += usize::from(one.verdict() == Verdict::TooFewRounds);
            let line = format!(
                "  {:<30}{:>12}{:>12}{:>9}  {:<18}{}",
                format!("{} {}", one.figure.title(), one.figure.unit()),
                rounded(one.base.median),
                rounded(one.other.median),
                one.ratio_text(),
                one.interval_text(),
                one.verdict_word()
            );
            self.lines.push_str(line.trim_end());
            self.lines.push('\n');
        }
        for (load, whose) in [(base, "base"), (other, "other")] {
            for fault in load.case.faults() {
                self.paragraph(&format!("!! {whose}: {}", plain(&fault)));
            }
        }
    }

    /// Appends the remarks that hold for all the figures, if any were compared.
    fn close(&mut self) {
        if self.compared == 0 {
            return;
        }
        self.lines.push('\n');
        let mut words = format!(
            "{} figures were compared. A ratio is the other by the base; base and other are \
             medians. Of figures that do not differ, about one in twenty looks as if it did.",
            self.compared
        );
        if self.too_few > 0 {
            words.push_str(&format!(
                " {} have too few rounds to tell: at least {ROUNDS_MIN} on each side are needed.",
                self.too_few
            ));
        }
        self.paragraph(&words);
    }
}

#[cfg(test)]
mod tests;
