//! The text of a report as blocks, which HTML and Markdown write in their ways.

use super::losses::{Loss, Losses};
use super::plots::{Plot, plots};
use crate::compare::{Contrast, Verdict};
use crate::figure::Figure;
use crate::numeral::{count, parameters, plain, rounded};
use crate::results::{Case, Parameters, Phase, Results, RunResults};
use crate::statistics::ROUNDS_MIN;
use crate::table::{circumstances, warnings};

/// A part of a document. Texts are those of the records, without any markup.
pub(super) enum Block {
    /// A heading of the document (1), of a run (2) or of a phase (3).
    Heading(u8, String),
    Paragraph(String),
    /// A paragraph that must not be overlooked.
    Loud(String),
    /// A line for a shell, after its name.
    Code(&'static str, String),
    Items(Vec<String>),
    Table {
        header: Vec<String>,
        rows: Vec<Vec<Cell>>,
    },
    /// Details, below their title.
    Fold(String, Vec<Block>),
    Plot(Plot),
}

/// A cell of a table.
pub(super) struct Cell {
    pub(super) text: String,
    /// Significantly worse than what it is compared with.
    pub(super) loud: bool,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, loud: false }
    }
}

/// Losses beyond this are folded.
const LOSSES_SHOWN: usize = 15;

/// The report: the losses first, then each run. The other subjects are compared with `peers`;
/// without any, each one with the best other one.
pub(super) fn document(results: &Results, peers: &[String]) -> Vec<Block> {
    let title = match results.runs.as_slice() {
        [] => "No runs".into(),
        [run] => title_of(run),
        runs => format!("{} runs", runs.len()),
    };
    let mut blocks = vec![Block::Heading(1, title)];
    blocks.extend(results.remarks.iter().cloned().map(Block::Loud));
    losses(&Losses::of(results, peers), peers, &mut blocks);
    let subjects = results.subjects();
    for run in &results.runs {
        blocks.push(Block::Heading(2, title_of(run)));
        head(run, &mut blocks);
        overview(run, peers, &mut blocks);
        for each in &run.phases {
            phase(run, each, &subjects, peers, &mut blocks);
        }
    }
    blocks
}

/// Experiment, circumstances and date of a run.
fn title_of(run: &RunResults) -> String {
    let title = run.title();
    let parts: Vec<_> =
        [title.as_str(), &run.run.date].into_iter().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { run.run.id.clone() } else { parts.join(", ") }
}

fn losses(losses: &Losses, peers: &[String], blocks: &mut Vec<Block>) {
    blocks.push(Block::Heading(2, "Losses".into()));
    if losses.compared == 0 {
        let text = "There is only one subject of each load, so nothing to compare.";
        blocks.push(Block::Paragraph(text.into()));
        return;
    }
    let best = if peers.is_empty() { "the best other" } else { "the best other mode" };
    let names = peers.join(", ");
    for (name, all) in [(names.as_str(), &losses.behind_peers), (best, &losses.behind_others)] {
        if name.is_empty() {
            continue;
        }
        if all.is_empty() {
            blocks.push(Block::Paragraph(format!("Nothing is significantly worse than {name}.")));
            continue;
        }
        blocks.push(Block::Paragraph(format!(
            "Worse than {name}, figure by figure, the greatest factor first:"
        )));
        let (shown, folded) = all.split_at(all.len().min(LOSSES_SHOWN));
        blocks.push(loss_table(shown));
        if !folded.is_empty() {
            let summary = format!("and {} more", count(folded.len() as u64));
            blocks.push(Block::Fold(summary, vec![loss_table(folded)]));
        }
    }
    blocks.push(Block::Paragraph(
        "Only significant differences are listed: the 95 % interval of the ratio leaves out 1. Of \
         equal figures, about one in twenty is listed by chance."
            .into(),
    ));
    if losses.too_few > 0 {
        blocks.push(Block::Loud(format!(
            "{} of {} comparisons have too few rounds to tell: each side needs {ROUNDS_MIN}.",
            losses.too_few, losses.compared
        )));
    }
}

fn loss_table(losses: &[Loss]) -> Block {
    let header =
        ["load", "subject", "figure", "median", "better", "of", "worse by", "95 % of ratio"];
    let row = |loss: &Loss| {
        let cells = [
            loss.load(),
            loss.subject.clone(),
            loss.contrast.figure.with_unit(),
            rounded(loss.contrast.other.median),
            rounded(loss.contrast.base.median),
            loss.against.clone(),
            loss.how_much(),
            loss.contrast.interval_text(),
        ];
        cells.map(Cell::from).into()
    };
    Block::Table { header: header.map(Into::into).into(), rows: losses.iter().map(row).collect() }
}

/// Circumstances, subjects, and what was left out.
fn head(run: &RunResults, blocks: &mut Vec<Block>) {
    blocks.extend(circumstances(&run.run).into_iter().map(Block::Paragraph));
    if !run.run.arguments.is_empty() {
        blocks.push(Block::Code("Arguments", plain(&run.run.arguments.join(" "))));
    }
    let subjects = run.run.subjects.iter().map(|(name, what)| format!("{name}: {what}"));
    let left_out = run.run.left_out.iter().map(|what| format!("Left out: {what}"));
    let items: Vec<_> = subjects.chain(left_out).collect();
    if !items.is_empty() {
        blocks.push(Block::Items(items));
    }
}

/// One table of the run: a row for each phase of one setting, a column for each subject, with the
/// rate and the processor time of the server.
fn overview(run: &RunResults, peers: &[String], blocks: &mut Vec<Block>) {
    let phases: Vec<_> = run
        .phases
        .iter()
        .filter(|phase| !phase.is_calibration() && phase.settings().len() == 1)
        .collect();
    let subjects = run.subjects();
    if phases.len() < 2 {
        return;
    }
    let row = |phase: &&Phase| {
        let rates = [Figure::MibPerSec, Figure::OperationsPerSec, Figure::Secs];
        let rate = rates.into_iter().find(|figure| phase.has(*figure))?;
        let base = base(run, phase, peers).and_then(|name| case_of(phase, name));
        let cells = subjects.iter().map(|subject| {
            let Some(case) = case_of(phase, subject) else { return Cell::from("-".to_owned()) };
            let value = case.median(rate).map_or_else(|| "-".into(), rounded);
            Cell { text: format!("{value}{}", processor(case)), loud: is_worse(rate, case, base) }
        });
        let name = match rate {
            Figure::MibPerSec => format!("{}, MiB/s", phase.name),
            _ => format!("{}, {}", phase.name, rate.unit()),
        };
        Some(std::iter::once(Cell::from(name)).chain(cells).collect())
    };
    let rows: Vec<Vec<Cell>> = phases.iter().filter_map(row).collect();
    let names = subjects.iter().map(|subject| (*subject).to_owned());
    let header = std::iter::once("load".to_owned()).chain(names).collect();
    blocks.push(Block::Paragraph(
        "Medians; in parentheses the server's processor time, in seconds per GiB or microseconds per \
         operation:"
            .into(),
    ));
    blocks.push(Block::Table { header, rows });
}

fn case_of<'a>(phase: &'a Phase, subject: &str) -> Option<&'a Case> {
    phase.cases.iter().find(|case| case.subject == subject)
}

fn processor(case: &Case) -> String {
    let costs = [Figure::ServerSecsPerGib, Figure::ServerUsPerOperation];
    let cost = costs.into_iter().find_map(|figure| case.median(figure));
    cost.map_or_else(String::new, |cost| format!(" ({})", rounded(cost)))
}

fn is_worse(figure: Figure, case: &Case, base: Option<&Case>) -> bool {
    let base = base.filter(|base| base.subject != case.subject);
    let contrast = base.and_then(|base| Contrast::of(figure, base, case));
    contrast.is_some_and(|contrast| contrast.verdict() == Verdict::Worse)
}

/// A phase: its plots, and all its figures.
fn phase(
    run: &RunResults,
    phase: &Phase,
    subjects: &[&str],
    peers: &[String],
    blocks: &mut Vec<Block>,
) {
    blocks.push(Block::Heading(3, phase.name.clone()));
    let base = base(run, phase, peers);
    let rounds = match phase.rounds() {
        1 => "One round.".to_owned(),
        rounds => {
            format!("Median of {rounds} rounds; in parentheses the spread, (max - min) / median.")
        }
    };
    let ratios = base.map_or_else(String::new, |base| {
        format!(
            "After x: the ratio to {base}, bold if significantly worse, with = if not significant."
        )
    });
    let fixed = parameters(&phase.fixed);
    let fixed = if fixed.is_empty() { fixed } else { format!("{fixed}.") };
    let facts: Vec<_> = [fixed, rounds, ratios].into_iter().filter(|one| !one.is_empty()).collect();
    blocks.push(Block::Paragraph(facts.join(" ")));
    blocks.extend(warnings(phase).into_iter().map(Block::Loud));
    blocks.extend(plots(run, phase, subjects).into_iter().map(Block::Plot));
    let mut tables = Vec::new();
    for setting in phase.settings() {
        if !setting.is_empty() {
            tables.push(Block::Paragraph(format!("With {}:", parameters(setting))));
        }
        tables.push(figures(phase, setting, base));
    }
    blocks.push(Block::Fold(format!("All figures of {}", phase.name), tables));
}

/// A row for each figure, a column for each subject.
fn figures(phase: &Phase, setting: &Parameters, base: Option<&str>) -> Block {
    let subjects = phase.subjects();
    let cases: Vec<_> = subjects.iter().filter_map(|name| phase.case(name, setting)).collect();
    let base = base.and_then(|name| phase.case(name, setting));
    let header =
        std::iter::once("figure".into()).chain(cases.iter().map(|case| case.subject.clone()));
    let is_measured = |figure: &&Figure| {
        cases.iter().any(|case| case.summary(**figure).is_some_and(|one| one.max != 0.0))
    };
    let row = |figure: &Figure| {
        let cells = cases.iter().map(|case| cell(*figure, case, base));
        std::iter::once(Cell::from(figure.with_unit())).chain(cells).collect()
    };
    let rows = Figure::ALL.iter().filter(is_measured).map(row).collect();
    Block::Table { header: header.collect(), rows }
}

/// The subject that the others are compared with: the first peer of the phase, else the first one
/// of the run.
fn base<'a>(run: &RunResults, phase: &'a Phase, peers: &[String]) -> Option<&'a str> {
    let subjects = phase.subjects();
    if subjects.len() < 2 {
        return None;
    }
    let peer = subjects.iter().find(|subject| peers.iter().any(|peer| peer == *subject));
    let first = run.subjects().first().copied();
    peer.or_else(|| subjects.iter().find(|subject| Some(**subject) == first)).copied()
}

/// Median, spread, and the ratio to the base.
fn cell(figure: Figure, case: &Case, base: Option<&Case>) -> Cell {
    let Some(summary) = case.summary(figure) else { return "-".to_owned().into() };
    let spread = summary.relative_spread().filter(|part| *part >= 0.005);
    let spread = spread.map_or_else(String::new, |part| format!(" ({:.0} %)", part * 100.0));
    let median = format!("{}{spread}", rounded(summary.median));
    let base = base.filter(|base| base.subject != case.subject);
    let Some(contrast) = base.and_then(|base| Contrast::of(figure, base, case)) else {
        return median.into();
    };
    let verdict = contrast.verdict();
    let ratio = contrast.comparison.ratio.map_or_else(String::new, |ratio| {
        let mark = match verdict {
            Verdict::NoDifference | Verdict::TooFewRounds => " =",
            Verdict::Worse | Verdict::Better => "",
        };
        format!(" x {}{mark}", rounded(ratio))
    });
    Cell { text: format!("{median}{ratio}"), loud: verdict == Verdict::Worse }
}
