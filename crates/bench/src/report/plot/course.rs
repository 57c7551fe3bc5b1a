//! What happened second by second, a small chart for each subject.

use crate::figure::Figure;
use crate::numeral::{as_f64, rounded, short};
use crate::record::{Measurement, Second};
use crate::recorded::Case;

use super::super::axis::Axis;
use super::super::chart::{Chart, Line};
use super::super::ink;
use super::super::svg::{Anchor, Area, INK, Marker, Stroke, Svg, fitted, text_width};
use super::{Picture, Plot, Scene, Table, WIDTH, name_of};

/// Points of a line beyond which some are left out: more than a plot is wide.
const POINTS_MAX: usize = 600;

const MIB: f64 = 1_048_576.0;

/// What is told of a second; none if it was not measured.
type Measure = fn(&Second) -> Option<f64>;

/// Other subjects, to compare with.
const BACKDROP: Stroke = Stroke::plain("#cccccc", 1.0);

/// What memory is told by, and how it is drawn: not in the colour of any subject.
const MEMORY: [(&str, Measure, Stroke); 3] = [
    ("page cache", |one| one.page_cache_bytes.map(in_mib), Stroke::plain(INK, 2.4)),
    (
        "of that dirty",
        |one| one.dirty_bytes.map(in_mib),
        Stroke { color: INK, width: 1.4, dash: "1.5 2.5" },
    ),
    (
        "resident memory of the server",
        |one| one.server_rss_bytes.map(in_mib),
        Stroke { color: "#7a7a7a", width: 2.4, dash: "7 4" },
    ),
];

/// Throughput, or operations where no data moved.
pub(super) fn rate(scene: Scene<'_>) -> Option<Plot> {
    let cases = with_seconds(scene);
    let data = cases.iter().flat_map(|case| &case.rounds).flat_map(|one| &one.seconds);
    let (unit, title, measure): (_, _, Measure) = if data.into_iter().any(|one| one.bytes > 0) {
        ("MiB/s", "throughput over time", |one| per_sec(as_f64(one.bytes) / MIB, one.secs))
    } else {
        ("operations/s", "operations over time", |one| per_sec(as_f64(one.operations), one.secs))
    };
    let max = greatest(&cases, &[measure])?;
    let charts = cases.iter().map(|case| {
        let others = cases.iter().filter(|other| !std::ptr::eq(**other, *case));
        let mut lines: Vec<_> =
            others.filter_map(|other| Some(line(BACKDROP, typical(other)?, measure))).collect();
        let place = scene.place(&case.subject);
        let thin = Stroke::plain(ink::color(place), 0.7);
        lines.extend(case.rounds.iter().map(|one| line(thin, one, measure)));
        let bold = Stroke::plain(ink::color(place), 2.8);
        let typical = typical(case).map(|one| line(bold, one, measure));
        lines.extend(typical);
        (name_of(case), chart(&cases, unit, max, lines, None))
    });
    let (svg, height) = draw(charts.collect(), &[]);
    let table = table(&cases, &[(unit, measure)]);
    let caption = "Higher is better. Bold: the round of median speed. Thin: the other rounds. \
                   Grey: the other subjects, to compare with. All charts have the same axes.";
    Some(scene.plot("over-time", title, caption.into(), Picture { svg, height, table }))
}

/// Page cache, what of it was dirty, and resident memory.
pub(super) fn memory(scene: Scene<'_>) -> Option<Plot> {
    let cases = with_seconds(scene);
    let measures: Vec<_> = MEMORY.iter().map(|(_, measure, _)| *measure).collect();
    let max = greatest(&cases, &measures)?;
    // A limit far above all that was held would press the lines to the floor.
    let limit = scene.run.run.memory_limit_bytes.map(in_mib).filter(|limit| *limit < 3.0 * max);
    let max = max.max(limit.unwrap_or(0.0));
    let charts = cases.iter().filter_map(|case| {
        let one = typical(case)?;
        let lines = MEMORY.iter().map(|(_, measure, stroke)| line(*stroke, one, *measure));
        let level = limit.map(|limit| (limit, "memory limit".into()));
        Some((name_of(case), chart(&cases, "MiB", max, lines.collect(), level)))
    });
    let legend = MEMORY.map(|(name, _, stroke)| (name, stroke));
    let (svg, height) = draw(charts.collect(), &legend);
    let table = table(&cases, &MEMORY.map(|(name, measure, _)| (name, measure)));
    let caption = "The round of median speed of each subject. All charts have the same axes.";
    let picture = Picture { svg, height, table };
    Some(scene.plot("memory-over-time", "memory over time", caption.into(), picture))
}

fn with_seconds(scene: Scene<'_>) -> Vec<&Case> {
    let has = |case: &&Case| case.rounds.iter().any(|one| !one.seconds.is_empty());
    scene.phase.cases.iter().filter(has).collect()
}

/// The greatest of what is drawn; none if nothing is.
fn greatest(cases: &[&Case], measures: &[Measure]) -> Option<f64> {
    let seconds = cases.iter().flat_map(|case| &case.rounds).flat_map(|one| &one.seconds);
    seconds
        .flat_map(|second| measures.iter().filter_map(|measure| measure(second)))
        .reduce(f64::max)
}

/// The round of median speed: by throughput, else by time.
fn typical(case: &Case) -> Option<&Measurement> {
    let mut rounds: Vec<_> = case.rounds.iter().filter(|one| !one.seconds.is_empty()).collect();
    let speed = |one: &Measurement| {
        let of = |figure| one.figures.get(&figure).copied();
        of(Figure::MibPerSec).or_else(|| of(Figure::OperationsPerSec)).unwrap_or(0.0)
    };
    rounds.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
    rounds.get(rounds.len().saturating_sub(1) / 2).copied()
}

/// The course of a measure. Each second is drawn in its middle; a rest of less than half a second
/// is left out, for the rate of a moment says little.
fn line(stroke: Stroke, one: &Measurement, measure: Measure) -> Line {
    let every = one.seconds.len().div_ceil(POINTS_MAX).max(1);
    let is_whole = |second: &&Second| second.secs >= 0.5 || one.seconds.len() < 3;
    let points = one
        .seconds
        .iter()
        .filter(is_whole)
        .step_by(every)
        .filter_map(|second| {
            measure(second).map(|value| (second.at_secs - second.secs / 2.0, value))
        })
        .collect();
    let label = String::new();
    Line { label, stroke, points, marks: vec![], marker: Marker::Circle, ranges: vec![] }
}

fn chart(
    cases: &[&Case],
    unit: &str,
    max: f64,
    lines: Vec<Line>,
    level: Option<(f64, String)>,
) -> Chart {
    let seconds = cases.iter().flat_map(|case| &case.rounds).flat_map(|one| &one.seconds);
    let end = seconds.map(|second| second.at_secs).fold(1.0, f64::max);
    Chart {
        x: Axis::linear(end, 6),
        x_title: "seconds from the first call".into(),
        y: Axis::linear(max, 4),
        y_title: unit.into(),
        lines,
        level,
    }
}

/// Draws charts in two columns, each with its name above, under a legend.
fn draw(charts: Vec<(String, Chart)>, legend: &[(&str, Stroke)]) -> (Svg, f64) {
    let mut svg = Svg::new(WIDTH);
    let mut left = 0.0;
    for (name, stroke) in legend {
        svg.line((left, 12.0), (left + 34.0, 12.0), *stroke);
        svg.text((left + 40.0, 16.0), Anchor::Start, name);
        left += 40.0 + text_width(name) + 24.0;
    }
    let columns = if charts.len() == 1 { 1.0 } else { 2.0 };
    let (width, height) = ((WIDTH - 16.0 * (columns - 1.0)) / columns, 220.0);
    let (mut left, mut top) = (0.0, if legend.is_empty() { 0.0 } else { 30.0 });
    let mut bottom = top;
    for (name, chart) in charts {
        svg.bold((left, top + 15.0), Anchor::Start, &fitted(&name, width));
        let area = Area { left, top: top + 22.0, width, height: height - 22.0 };
        chart.draw(&mut svg, area);
        bottom = top + height;
        left += width + 16.0;
        if left >= WIDTH {
            (left, top) = (0.0, top + height + 8.0);
        }
    }
    (svg, bottom)
}

/// Of each case and measure: the seconds of the round that is drawn in bold, in short.
fn table(cases: &[&Case], parts: &[(&str, Measure)]) -> Table {
    let header = ["subject", "what", "round", "seconds", "least", "median", "greatest"];
    let mut rows = Vec::new();
    for case in cases {
        for (what, measure) in parts {
            let Some(one) = typical(case) else { continue };
            let values: Vec<_> = one.seconds.iter().filter_map(measure).collect();
            let Some(summary) = crate::statistics::Summary::of(&values) else { continue };
            rows.push(vec![
                name_of(case),
                (*what).into(),
                one.round.to_string(),
                short(last_second(&one.seconds)),
                rounded(summary.min),
                rounded(summary.median),
                rounded(summary.max),
            ]);
        }
    }
    Table { header: header.map(Into::into).into(), rows }
}

fn last_second(seconds: &[Second]) -> f64 {
    seconds.last().map_or(0.0, |second| second.at_secs)
}

/// A rate; none of no time.
fn per_sec(count: f64, secs: f64) -> Option<f64> {
    (secs > 0.0).then(|| count / secs)
}

fn in_mib(bytes: u64) -> f64 {
    as_f64(bytes) / MIB
}
