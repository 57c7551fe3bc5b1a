//! How long the slowest calls took: latency by percentile.

use std::collections::BTreeMap;

use crate::figure::Figure;
use crate::numeral::as_f64;
use crate::record::LatencyBucket;
use crate::recorded::{Case, Parameters};

use super::super::axis::{Axis, latency_label};
use super::super::chart::{Chart, Line};
use super::super::svg::{Area, Point, Svg};
use super::{Picture, Plot, Scene, Table, WIDTH, parameters};

/// Percentiles that are shown, with what part of the calls takes longer.
const PERCENTILES: [(&str, f64); 6] = [
    ("50 %", 0.5),
    ("90 %", 0.1),
    ("99 %", 0.01),
    ("99.9 %", 0.001),
    ("99.99 %", 0.0001),
    ("99.999 %", 0.00001),
];

/// A plot for each setting.
pub(super) fn plots(scene: Scene<'_>) -> Vec<Plot> {
    scene.phase.settings().into_iter().filter_map(|setting| plot(scene, setting)).collect()
}

fn plot(scene: Scene<'_>, setting: &Parameters) -> Option<Plot> {
    let cases: Vec<(&Case, Latency)> = scene
        .phase
        .cases
        .iter()
        .filter(|case| case.setting == *setting)
        .filter_map(|case| Some((case, Latency::of(case)?)))
        .collect();
    let values = || cases.iter().flat_map(|(_, of)| of.points.iter().map(|(_, us)| *us));
    let (min, max) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
    let end = cases.iter().filter_map(|(_, of)| of.points.last()).map(|(x, _)| *x);
    let end = end.fold(2.0, f64::max);
    let ticks = PERCENTILES
        .iter()
        .filter(|(_, longer)| nines(*longer) <= end + 1e-9)
        .map(|(label, longer)| (nines(*longer), (*label).into()));
    let lines = cases.iter().map(|(case, of)| Line {
        marks: of.marks.clone(),
        ..Line::of_subject(&case.subject, scene.place(&case.subject), of.points.clone())
    });
    let chart = Chart {
        x: Axis::with_ticks(0.0, end, ticks.collect()),
        x_title: "part of the calls that took no longer".into(),
        y: Axis::logarithmic(min, max, latency_label),
        y_title: "latency".into(),
        lines: lines.collect(),
        level: None,
    };
    let mut svg = Svg::new(WIDTH);
    let height = 340.0;
    chart.draw(&mut svg, Area { left: 0.0, top: 0.0, width: WIDTH, height });
    let table = table(&cases);
    let title = match setting.is_empty() {
        true => "latency".to_owned(),
        false => format!("latency, {}", parameters(setting)),
    };
    let caption = "Lower is better. Each tick to the right leaves a tenth of the calls of the \
                   one before, from 90 % on; all rounds together.";
    Some(scene.plot(&title, &title, caption.into(), Picture { svg, height, table }))
}

/// How many nines a percentile has: 1 for 90 %, 2 for 99 %.
fn nines(longer: f64) -> f64 {
    -longer.log10()
}

/// Latency by percentile.
struct Latency {
    /// Nines and microseconds, as stairs; or the few that figures tell.
    points: Vec<Point>,
    /// At the percentiles of [`PERCENTILES`].
    marks: Vec<Point>,
    /// By the percentiles of [`PERCENTILES`].
    table: Vec<String>,
}

impl Latency {
    /// From the calls of all rounds; without them, from the figures.
    fn of(case: &Case) -> Option<Self> {
        let buckets = buckets(case);
        let calls: u64 = buckets.iter().map(|bucket| bucket.count).sum();
        if calls == 0 {
            return Self::of_figures(case);
        }
        let mut points = Vec::new();
        let mut done = 0;
        let mut x = 0.0;
        for bucket in &buckets {
            points.push((x, bucket.us_max));
            done += bucket.count;
            // After the last call there is no further percentile; half a call is left for it.
            let left = as_f64(calls - done).max(0.5);
            x = nines(left / as_f64(calls));
            points.push((x, bucket.us_max));
        }
        let known = |longer: f64| quantile(&buckets, calls, longer);
        let mark = |(_, longer): &(&str, f64)| Some((nines(*longer), known(*longer)?));
        let marks = PERCENTILES.iter().filter_map(mark).collect();
        let table = PERCENTILES
            .iter()
            .map(|(_, longer)| known(*longer).map_or_else(|| "-".into(), latency_label));
        Some(Self { points, marks, table: table.collect() })
    }

    fn of_figures(case: &Case) -> Option<Self> {
        let known = [
            (Figure::LatencyP50Us, 0.5),
            (Figure::LatencyP95Us, 0.05),
            (Figure::LatencyP99Us, 0.01),
            (Figure::LatencyP999Us, 0.001),
        ];
        let points: Vec<Point> = known
            .iter()
            .filter_map(|(figure, longer)| Some((nines(*longer), case.median(*figure)?)))
            .collect();
        let table = PERCENTILES.iter().map(|(_, longer)| {
            let figure = known.iter().find(|(_, known)| known == longer);
            let us = figure.and_then(|(figure, _)| case.median(*figure));
            us.map_or_else(|| "-".into(), latency_label)
        });
        let table = table.collect();
        (!points.is_empty()).then(|| Self { marks: points.clone(), points, table })
    }
}

/// The latency that all but the part `longer` of the calls did not exceed; none where that part
/// is less than one call.
fn quantile(buckets: &[LatencyBucket], calls: u64, longer: f64) -> Option<f64> {
    let allowed = as_f64(calls) * longer;
    if allowed < 1.0 - 1e-9 {
        return None;
    }
    let mut left = calls;
    buckets.iter().find_map(|bucket| {
        left -= bucket.count;
        (as_f64(left) <= allowed + 1e-9).then_some(bucket.us_max)
    })
}

/// The buckets of all rounds in one, in ascending order.
fn buckets(case: &Case) -> Vec<LatencyBucket> {
    let mut all: BTreeMap<u64, LatencyBucket> = BTreeMap::new();
    for bucket in case.rounds.iter().flat_map(|one| &one.latency) {
        // Of numbers that are not negative the bits are in the order of the numbers.
        let us_max = bucket.us_max.max(0.0);
        let one = all.entry(us_max.to_bits()).or_insert(LatencyBucket { us_max, count: 0 });
        one.count = one.count.saturating_add(bucket.count).min(1 << 53);
    }
    all.into_values().collect()
}

fn table(cases: &[(&Case, Latency)]) -> Table {
    let percentiles = PERCENTILES.iter().map(|(label, _)| (*label).into());
    let header = std::iter::once("subject".into()).chain(percentiles).collect();
    let row = |(case, of): &(&Case, Latency)| {
        std::iter::once(case.subject.clone()).chain(of.table.clone()).collect()
    };
    Table { header, rows: cases.iter().map(row).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_calls() {
        let bucket = |us_max, count| LatencyBucket { us_max, count };
        let buckets = [bucket(1.0, 500), bucket(2.0, 400), bucket(3.0, 90), bucket(9.0, 10)];
        let of = |longer| quantile(&buckets, 1000, longer);
        assert_eq!(of(0.5), Some(1.0));
        assert_eq!(of(0.4), Some(2.0));
        assert_eq!(of(0.1), Some(2.0));
        assert_eq!(of(0.01), Some(3.0));
        assert_eq!(of(0.001), Some(9.0));
        assert_eq!(of(0.0001), None);
        assert_eq!(quantile(&[], 0, 0.5), None);
    }
}
