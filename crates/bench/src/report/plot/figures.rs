//! Bars of the figures of each subject.

use crate::figure::{Better, Figure};
use crate::numeral::{parameters, rounded};
use crate::recorded::Case;

use super::super::bars::{Bar, Bars, Fill, Row};
use super::super::svg::Svg;
use super::{Picture, Plot, Scene, WIDTH, table_of, with_unit};

/// How fast it was: by data, else by operations, else by time.
pub(super) fn rate(scene: Scene<'_>) -> Option<Plot> {
    let figure = [Figure::MibPerSec, Figure::OperationsPerSec, Figure::Secs]
        .into_iter()
        .find(|figure| scene.phase.has(*figure))?;
    one(scene, figure)
}

/// Figures that only some experiments have.
pub(super) fn others(scene: Scene<'_>) -> Vec<Plot> {
    let figures = [
        Figure::CommitSecs,
        Figure::LastToFirst,
        Figure::Fairness,
        Figure::BesideOthers,
        Figure::LastTenthToFirst,
        Figure::OutOfOrder,
        Figure::CallKib,
        Figure::CallsFromStart,
        Figure::CachedAtEndMib,
    ];
    let told = |figure: &Figure| {
        scene.phase.cases.iter().any(|case| case.median(*figure).is_some_and(|one| one != 0.0))
    };
    figures.into_iter().filter(told).filter_map(|figure| one(scene, figure)).collect()
}

/// Processor time of the server, or of this process where it is what is measured, by user and
/// system, and of the generator beside it.
pub(super) fn processor(scene: Scene<'_>) -> Option<Plot> {
    let server = (Figure::ServerUserSecsPerGib, Figure::ServerSystemSecsPerGib);
    let own = (Figure::OwnUserSecsPerGib, Figure::OwnSystemSecsPerGib);
    let by_gib = processor_by_gib(scene, server, ["server, user", "server, system"])
        .or_else(|| processor_by_gib(scene, own, ["program, user", "program, system"]));
    by_gib.or_else(|| {
        let title = "processor time per operation, us";
        let pairs = [
            (Figure::ServerUsPerOperation, Fill::Solid),
            (Figure::GeneratorUsPerOperation, Fill::Hollow),
        ];
        let legend = vec![(Fill::Solid, "server"), (Fill::Hollow, "load generator")];
        pair(scene, "cpu", "processor time", title, pairs, legend)
    })
}

fn processor_by_gib(
    scene: Scene<'_>,
    (user, system): (Figure, Figure),
    names: [&'static str; 2],
) -> Option<Plot> {
    if !scene.phase.has(user) && !scene.phase.has(system) {
        return None;
    }
    let generator = Figure::GeneratorSecsPerGib;
    let rows = rows(scene, |case, _| {
        let of = |figure| case.median(figure).unwrap_or(0.0);
        let has_both = case.median(user).is_some() || case.median(system).is_some();
        let both = has_both.then(|| Bar {
            parts: vec![(of(user), Fill::Solid), (of(system), Fill::Striped)],
            rounds: Vec::new(),
            text: format!("{} + {}", rounded(of(user)), rounded(of(system))),
        });
        let generator = bar(case, generator, Fill::Hollow).map(|bar| Bar { rounds: vec![], ..bar });
        both.into_iter().chain(generator).collect()
    })?;
    let mut legend = vec![(Fill::Solid, names[0]), (Fill::Striped, names[1])];
    if scene.phase.has(generator) {
        legend.push((Fill::Hollow, "load generator"));
    }
    let bars = Bars { rows, axis_title: "processor time per GiB, s".into(), legend };
    let figures = [user, system, generator];
    Some(drawn(scene, "cpu", "processor time", lower_is_better(scene), &bars, &figures))
}

/// Page cache and resident memory at their most.
pub(super) fn memory(scene: Scene<'_>) -> Option<Plot> {
    let pairs = [(Figure::PageCacheMibMax, Fill::Striped), (Figure::ServerRssMibMax, Fill::Solid)];
    let legend =
        vec![(Fill::Striped, "page cache caused"), (Fill::Solid, "resident memory of the server")];
    let title = "memory at its most";
    pair(scene, "memory", title, "memory at its most, MiB", pairs, legend)
}

/// What the device read and wrote.
pub(super) fn device(scene: Scene<'_>) -> Option<Plot> {
    let pairs = [(Figure::DeviceReadMib, Fill::Hollow), (Figure::DeviceWrittenMib, Fill::Solid)];
    let legend = vec![(Fill::Hollow, "read"), (Fill::Solid, "written")];
    pair(scene, "device", "data moved by the device", "data, MiB", pairs, legend)
}

fn pair(
    scene: Scene<'_>,
    name: &str,
    title: &str,
    axis_title: &str,
    pairs: [(Figure, Fill); 2],
    legend: Vec<(Fill, &'static str)>,
) -> Option<Plot> {
    let rows = rows(scene, |case, _| {
        pairs.iter().filter_map(|(figure, fill)| bar(case, *figure, *fill)).collect()
    })?;
    let measured =
        |fill: Fill| pairs.iter().any(|(figure, of)| *of == fill && scene.phase.has(*figure));
    let legend = legend.into_iter().filter(|(fill, _)| measured(*fill)).collect();
    let bars = Bars { rows, axis_title: axis_title.into(), legend };
    let figures = pairs.map(|(figure, _)| figure);
    Some(drawn(scene, name, title, lower_is_better(scene), &bars, &figures))
}

fn one(scene: Scene<'_>, figure: Figure) -> Option<Plot> {
    let rows =
        rows(scene, |case, place| bar(case, figure, Fill::Subject(place)).into_iter().collect())?;
    let axis_title = with_unit(figure.title(), figure.unit());
    let bars = Bars { rows, axis_title, legend: Vec::new() };
    let caption = match figure.better() {
        Better::Higher => format!("Longer is better. {}", how_to_read(scene)),
        Better::Lower => lower_is_better(scene),
        Better::Neither => how_to_read(scene),
    };
    Some(drawn(scene, figure.title(), figure.title(), caption, &bars, &[figure]))
}

fn lower_is_better(scene: Scene<'_>) -> String {
    format!("Shorter is better. {}", how_to_read(scene))
}

fn how_to_read(scene: Scene<'_>) -> String {
    match scene.phase.rounds() {
        1 => "Bar: the only round, so without any spread.".into(),
        rounds => format!(
            "Bar: median of {rounds} rounds. Line and rings, where drawn: least to greatest, and \
             the rounds in their order from top to bottom."
        ),
    }
}

/// The bar of a figure with its rounds; none if it was not measured.
fn bar(case: &Case, figure: Figure, fill: Fill) -> Option<Bar> {
    let summary = case.summary(figure)?;
    let rounds = case.observations(figure).iter().map(|one| one.value).collect();
    Some(Bar { parts: vec![(summary.median, fill)], rounds, text: rounded(summary.median) })
}

/// A row for each case, under a heading for each setting; none if no case has a bar.
fn rows(scene: Scene<'_>, bars: impl Fn(&Case, usize) -> Vec<Bar>) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    let mut any = false;
    for setting in scene.phase.settings() {
        if !setting.is_empty() {
            rows.push(Row { label: parameters(setting), bars: Vec::new() });
        }
        for case in scene.phase.cases.iter().filter(|case| case.setting == *setting) {
            let bars = bars(case, scene.place(&case.subject));
            if !bars.is_empty() {
                any = true;
                rows.push(Row { label: case.subject.clone(), bars });
            }
        }
    }
    any.then_some(rows)
}

fn drawn(
    scene: Scene<'_>,
    name: &str,
    title: &str,
    caption: String,
    bars: &Bars,
    figures: &[Figure],
) -> Plot {
    let mut svg = Svg::new(WIDTH);
    let height = bars.draw(&mut svg);
    let table = table_of(scene.phase, figures);
    scene.plot(name, title, caption, Picture { svg, height, table })
}
