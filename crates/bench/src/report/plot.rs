//! The plots of a phase: which there are, and the table under each.

mod course;
mod distribution;
mod figures;
mod position;
mod sweep;

use std::collections::BTreeSet;

use crate::figure::Figure;
use crate::numeral::{parameters, rounded};
use crate::recorded::{Case, Phase, RecordedRun};

use super::svg::Svg;

/// Width of a plot, in its own unit.
const WIDTH: f64 = 760.0;

/// A picture of some figures, and the figures themselves.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// What it is called in a name of a file: letters, digits and `-`.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// How to read it.
    pub caption: String,
    /// The picture: XML of its own.
    pub svg: String,
    /// What is in the picture, in numbers.
    pub table: Table,
}

/// Text in rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Above the columns.
    pub header: Vec<String>,
    /// As many texts in each as in the header.
    pub rows: Vec<Vec<String>>,
}

/// A phase of a run that is drawn.
#[derive(Clone, Copy)]
struct Scene<'a> {
    run: &'a RecordedRun,
    phase: &'a Phase,
    subjects: &'a [&'a str],
}

/// All plots that the measurements of a phase give. Subjects look as their place among `subjects`
/// says, so that they look the same in all plots of a page.
#[must_use]
pub fn plots(run: &RecordedRun, phase: &Phase, subjects: &[&str]) -> Vec<Plot> {
    let own = phase.subjects();
    let subjects = if phase.is_calibration() { &own } else { subjects };
    let scene = Scene { run, phase, subjects };
    let mut all = Vec::new();
    if let Some(parameter) = scene.swept() {
        all.extend(sweep::plots(scene, parameter));
    } else {
        all.extend(figures::rate(scene));
        all.extend(course::rate(scene));
        all.extend(distribution::plots(scene));
        all.extend(figures::processor(scene));
        all.extend(figures::memory(scene));
        all.extend(course::memory(scene));
        all.extend(figures::device(scene));
        all.extend(figures::others(scene));
    }
    all.extend(position::plots(scene));
    all
}

impl<'a> Scene<'a> {
    /// The place of a subject, which gives it its looks.
    fn place(self, subject: &str) -> usize {
        self.subjects.iter().position(|one| *one == subject).unwrap_or(0)
    }

    /// The parameter that takes the most values, if these are at least three.
    fn swept(self) -> Option<&'a str> {
        let settings = self.phase.settings();
        let names: BTreeSet<&str> =
            settings.iter().flat_map(|setting| setting.keys().map(String::as_str)).collect();
        let values = |name: &str| {
            settings.iter().filter_map(|setting| setting.get(name)).collect::<BTreeSet<_>>().len()
        };
        names
            .into_iter()
            .map(|name| (values(name), name))
            .filter(|(values, _)| *values >= 3)
            .max_by_key(|(values, _)| *values)
            .map(|(_, name)| name)
    }

    /// How many rounds a median is of, in words.
    fn medians(self) -> String {
        match self.phase.rounds() {
            1 => "one round, so without any spread".into(),
            rounds => format!("median of {rounds} rounds"),
        }
    }

    /// A plot of this phase.
    fn plot(self, name: &str, title: &str, caption: String, picture: Picture) -> Plot {
        let title = format!("{}: {title}", self.phase.name);
        let svg = picture.svg.finish(picture.height, &title, &caption);
        let name = slug(&format!("{}-{}-{name}", self.run.run.id, self.phase.name));
        Plot { name, title, caption, svg, table: picture.table }
    }
}

/// A drawing that is done, and what is in it.
struct Picture {
    svg: Svg,
    height: f64,
    table: Table,
}

/// A table of these figures: a row for each case and figure, with all rounds.
fn table_of(phase: &Phase, figures: &[Figure]) -> Table {
    let header = ["subject", "figure", "median", "least", "greatest", "rounds, in their order"];
    let mut rows = Vec::new();
    for case in &phase.cases {
        for figure in figures {
            let Some(summary) = case.summary(*figure) else { continue };
            let rounds: Vec<_> =
                case.observations(*figure).iter().map(|one| rounded(one.value)).collect();
            rows.push(vec![
                name_of(case),
                with_unit(figure.title(), figure.unit()),
                rounded(summary.median),
                rounded(summary.min),
                rounded(summary.max),
                rounds.join("; "),
            ]);
        }
    }
    Table { header: header.map(Into::into).into(), rows }
}

/// A case with its setting.
fn name_of(case: &Case) -> String {
    if case.setting.is_empty() {
        return case.subject.clone();
    }
    format!("{}, {}", case.subject, parameters(&case.setting))
}

/// `throughput, MiB/s`; a title alone where there is no unit.
fn with_unit(title: &str, unit: &str) -> String {
    if unit.is_empty() { title.into() } else { format!("{title}, {unit}") }
}

/// A name for a file: what is neither letter nor digit becomes one `-`.
fn slug(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(120) {
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if !out.ends_with('-') && !out.is_empty() {
            out.push('-');
        }
    }
    out.trim_end_matches('-').into()
}

#[cfg(test)]
mod tests;
