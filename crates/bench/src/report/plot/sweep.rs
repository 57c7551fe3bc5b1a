//! Figures against a parameter that takes several values.

use std::collections::BTreeSet;

use crate::figure::{Better, Figure};
use crate::numeral::{as_f64, count, parameter_name, parameters, rounded, size};
use crate::recorded::{Case, Parameters};

use super::super::axis::{Axis, latency_label};
use super::super::chart::{Chart, Line};
use super::super::svg::{Area, Svg};
use super::{Picture, Plot, Scene, Table, WIDTH, name_of, with_unit};

/// What is drawn, where it was measured.
const FIGURES: [Figure; 20] = [
    Figure::MibPerSec,
    Figure::OperationsPerSec,
    Figure::LatencyP50Us,
    Figure::LatencyP99Us,
    Figure::Fairness,
    Figure::BesideOthers,
    Figure::CommitSecs,
    Figure::OutOfOrder,
    Figure::CallKib,
    Figure::CallsFromStart,
    Figure::LastTenthToFirst,
    Figure::ServerUserSecsPerGib,
    Figure::ServerSystemSecsPerGib,
    Figure::ServerUsPerOperation,
    Figure::OwnUserSecsPerGib,
    Figure::OwnSystemSecsPerGib,
    Figure::PageCacheMibMax,
    Figure::ServerRssMibMax,
    Figure::DeviceReadMib,
    Figure::DeviceWrittenMib,
];

/// A plot for each figure, and for each setting of what else varies.
pub(super) fn plots(scene: Scene<'_>, parameter: &str) -> Vec<Plot> {
    let rest: BTreeSet<Parameters> =
        scene.phase.cases.iter().map(|case| without(&case.setting, parameter)).collect();
    let mut all = Vec::new();
    for figure in FIGURES {
        for rest in &rest {
            all.extend(plot(scene, parameter, figure, rest));
        }
    }
    all
}

fn plot(scene: Scene<'_>, parameter: &str, figure: Figure, rest: &Parameters) -> Option<Plot> {
    let cases: Vec<(f64, &Case)> = scene
        .phase
        .cases
        .iter()
        .filter(|case| without(&case.setting, parameter) == *rest)
        .filter(|case| case.summary(figure).is_some())
        .filter_map(|case| Some((as_f64(*case.setting.get(parameter)?), case)))
        .collect();
    let max = cases.iter().filter_map(|(_, case)| case.summary(figure)).map(|one| one.max);
    // A figure that is 0 throughout needs no picture.
    let max = max.reduce(f64::max).filter(|max| *max > 0.0)?;
    let (words, unit) = parameter_name(parameter);
    let chart = Chart {
        x: Axis::of_values(&ticks(scene, parameter)),
        x_title: if unit == "B" { words.clone() } else { with_unit(&words, unit) },
        y: vertical(&cases, figure, max),
        y_title: if figure.unit() == "us" {
            figure.title().into()
        } else {
            with_unit(figure.title(), figure.unit())
        },
        lines: lines(scene, &cases, figure),
        level: None,
    };
    let mut svg = Svg::new(WIDTH);
    let height = 300.0;
    chart.draw(&mut svg, Area { left: 0.0, top: 0.0, width: WIDTH, height });
    let mut title = format!("{} by {words}", figure.title());
    if !rest.is_empty() {
        title = format!("{title}, {}", parameters(rest));
    }
    let better = match figure.better() {
        Better::Higher => "Higher is better. ",
        Better::Lower => "Lower is better. ",
        Better::Neither => "",
    };
    let caption =
        format!("{better}Each point: {}; lines up and down: least to greatest.", scene.medians());
    let picture = Picture { svg, height, table: table(&cases, figure) };
    Some(scene.plot(&title, &title, caption, picture))
}

fn without(setting: &Parameters, parameter: &str) -> Parameters {
    let mut rest = setting.clone();
    rest.remove(parameter);
    rest
}

fn lines(scene: Scene<'_>, cases: &[(f64, &Case)], figure: Figure) -> Vec<Line> {
    let of_subject = |subject: &str| {
        let mut line = Line::of_subject(subject, scene.place(subject), Vec::new());
        for (x, case) in cases.iter().filter(|(_, case)| case.subject == subject) {
            let Some(summary) = case.summary(figure) else { continue };
            line.points.push((*x, summary.median));
            line.marks.push((*x, summary.median));
            if summary.rounds > 1 {
                line.ranges.push((*x, summary.min, summary.max));
            }
        }
        line
    };
    let subjects = scene.phase.subjects();
    subjects.into_iter().map(of_subject).filter(|line| !line.points.is_empty()).collect()
}

/// Latencies by their powers, all else from 0.
fn vertical(cases: &[(f64, &Case)], figure: Figure, max: f64) -> Axis {
    let least = cases.iter().filter_map(|(_, case)| case.summary(figure)).map(|one| one.min);
    let least = least.filter(|value| *value > 0.0).reduce(f64::min);
    match least.filter(|_| figure.unit() == "us") {
        Some(least) => Axis::logarithmic(least, max, latency_label),
        None => Axis::linear(max, 5),
    }
}

/// Each value that the parameter takes.
fn ticks(scene: Scene<'_>, parameter: &str) -> Vec<(f64, String)> {
    let settings = scene.phase.settings();
    let values: BTreeSet<u64> =
        settings.iter().filter_map(|setting| setting.get(parameter).copied()).collect();
    let label = |value| if parameter.ends_with("_bytes") { size(value) } else { count(value) };
    values.into_iter().map(|value| (as_f64(value), label(value))).collect()
}

fn table(cases: &[(f64, &Case)], figure: Figure) -> Table {
    let header = ["subject", "median", "least", "greatest", "rounds, in their order"];
    let row = |(_, case): &(f64, &Case)| {
        let summary = case.summary(figure)?;
        let rounds: Vec<_> =
            case.observations(figure).iter().map(|one| rounded(one.value)).collect();
        Some(vec![
            name_of(case),
            rounded(summary.median),
            rounded(summary.min),
            rounded(summary.max),
            rounds.join("; "),
        ])
    };
    Table { header: header.map(Into::into).into(), rows: cases.iter().filter_map(row).collect() }
}
