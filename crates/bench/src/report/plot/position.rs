//! What an entry costs by its position in a listing.

use std::collections::BTreeMap;

use crate::numeral::{as_f64, count, parameters, rounded};
use crate::recorded::{Case, Parameters};
use crate::statistics::Summary;

use super::super::axis::Axis;
use super::super::chart::{Chart, Line};
use super::super::svg::{Area, Svg};
use super::{Picture, Plot, Scene, Table, WIDTH};

/// Beyond this the dearest entries would press all others to the floor of the plot.
const LINEAR_MAX: f64 = 50.0;

/// More markers than this would run into each other.
const MARKS_MAX: usize = 40;

/// A plot for each setting.
pub(super) fn plots(scene: Scene<'_>) -> Vec<Plot> {
    scene.phase.settings().into_iter().filter_map(|setting| plot(scene, setting)).collect()
}

fn plot(scene: Scene<'_>, setting: &Parameters) -> Option<Plot> {
    let cases: Vec<(&Case, Vec<(f64, Summary)>)> = scene
        .phase
        .cases
        .iter()
        .filter(|case| case.setting == *setting)
        .map(|case| (case, by_position(case)))
        .filter(|(_, costs)| !costs.is_empty())
        .collect();
    let all = || cases.iter().flat_map(|(_, costs)| costs);
    let max = all().map(|(_, cost)| cost.max).reduce(f64::max)?;
    let min = all().map(|(_, cost)| cost.median).filter(|cost| *cost > 0.0).reduce(f64::min);
    let end = all().map(|(entry, _)| *entry).fold(1.0, f64::max);
    let leaps = min.filter(|min| max / min > LINEAR_MAX);
    let lines = cases.iter().map(|(case, costs)| {
        let points: Vec<_> = costs.iter().map(|(entry, cost)| (*entry, cost.median)).collect();
        let ranges = costs.iter().filter(|(_, cost)| cost.rounds > 1);
        Line {
            marks: if points.len() <= MARKS_MAX { points.clone() } else { Vec::new() },
            ranges: ranges.map(|(entry, cost)| (*entry, cost.min, cost.max)).collect(),
            ..Line::of_subject(&case.subject, scene.place(&case.subject), points)
        }
    });
    let chart = Chart {
        x: Axis::linear(end, 6),
        x_title: "position in the listing, entries".into(),
        y: leaps.map_or_else(
            || Axis::linear(max, 5),
            |min| Axis::logarithmic(min, max, crate::numeral::short),
        ),
        y_title: "cost of an entry, us".into(),
        lines: lines.collect(),
        level: None,
    };
    let mut svg = Svg::new(WIDTH);
    let height = 320.0;
    chart.draw(&mut svg, Area { left: 0.0, top: 0.0, width: WIDTH, height });
    let mut title = String::from("cost of an entry by its position");
    if !setting.is_empty() {
        title = format!("{title}, {}", parameters(setting));
    }
    let caption = format!(
        "Lower is better, and level is best: then a listing costs what its length says. Each \
         point: {}; lines up and down: least to greatest.",
        scene.medians()
    );
    let picture = Picture { svg, height, table: table(&cases) };
    Some(scene.plot(&title, &title, caption, picture))
}

/// The cost at each position, over the rounds.
fn by_position(case: &Case) -> Vec<(f64, Summary)> {
    let mut costs: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for position in case.rounds.iter().flat_map(|one| &one.positions) {
        costs.entry(position.entry).or_default().push(position.us_per_entry);
    }
    let summary = |(entry, costs): (u64, Vec<f64>)| Some((as_f64(entry), Summary::of(&costs)?));
    costs.into_iter().filter_map(summary).collect()
}

fn table(cases: &[(&Case, Vec<(f64, Summary)>)]) -> Table {
    let header = ["subject", "first entry", "us of an entry, median", "least", "greatest"];
    let mut rows = Vec::new();
    for (case, costs) in cases {
        for (entry, cost) in costs {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "was u64")]
            let entry = count(*entry as u64);
            rows.push(vec![
                case.subject.clone(),
                entry,
                rounded(cost.median),
                rounded(cost.min),
                rounded(cost.max),
            ]);
        }
    }
    Table { header: header.map(Into::into).into(), rows }
}
