//! The plots of a phase.

use std::collections::{BTreeMap, BTreeSet};

use plotters::style::RGBColor;

use super::draw::{Axis, Bar, Series, bars, color, latency_label, lines};
use crate::figure::{Better, Figure};
use crate::numeral::{as_f64, count, mib, parameter_name, parameters, rounded, short, size};
use crate::record::{LatencyBucket, Measurement, Second};
use crate::results::{Case, Parameters, Phase, RunResults};
use crate::statistics::Summary;

/// A drawing of some figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Its name in a file name: letters, digits and `-`.
    pub name: String,
    /// Phase and figures that it shows, with the setting.
    pub title: String,
    /// How to read it.
    pub caption: String,
    /// The drawing.
    pub svg: String,
}

/// A phase of a run. Each subject has the colour of its place among `subjects`, so that it has the
/// same one in all plots of a page.
#[derive(Clone, Copy)]
struct Scene<'a> {
    run: &'a RunResults,
    phase: &'a Phase,
    subjects: &'a [&'a str],
}

/// Figures that have a bar chart of their own, where they are not 0.
const SINGLE: [Figure; 9] = [
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

/// Figures that share a bar chart.
struct Shared {
    title: &'static str,
    unit: &'static str,
    figures: [(Figure, &'static str); 2],
}

const SHARED: [Shared; 4] = [
    Shared {
        title: "processor time of the server",
        unit: "s per GiB",
        figures: [
            (Figure::ServerUserSecsPerGib, "user"),
            (Figure::ServerSystemSecsPerGib, "system"),
        ],
    },
    Shared {
        title: "processor time of the program",
        unit: "s per GiB",
        figures: [(Figure::OwnUserSecsPerGib, "user"), (Figure::OwnSystemSecsPerGib, "system")],
    },
    Shared {
        title: "memory at its most",
        unit: "MiB",
        figures: [(Figure::PageCacheMibMax, "page cache"), (Figure::ServerRssMibMax, "server RSS")],
    },
    Shared {
        title: "data moved by the device",
        unit: "MiB",
        figures: [(Figure::DeviceReadMib, "read"), (Figure::DeviceWrittenMib, "written")],
    },
];

/// Figures that are drawn against a parameter of three or more values.
const SWEPT: [Figure; 19] = [
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
    Figure::ServerSecsPerGib,
    Figure::ServerUsPerOperation,
    Figure::OwnUserSecsPerGib,
    Figure::OwnSystemSecsPerGib,
    Figure::PageCacheMibMax,
    Figure::ServerRssMibMax,
    Figure::DeviceReadMib,
    Figure::DeviceWrittenMib,
];

/// Fills of bars that stand for figures and not for subjects.
const FILLS: [RGBColor; 2] = [RGBColor(0x5a, 0x5a, 0x5a), RGBColor(0xd8, 0xd8, 0xd8)];

/// Percentiles that have a tick, and the part of the calls that takes longer.
const PERCENTILES: [(&str, f64); 6] = [
    ("50 %", 0.5),
    ("90 %", 0.1),
    ("99 %", 0.01),
    ("99.9 %", 0.001),
    ("99.99 %", 0.0001),
    ("99.999 %", 0.00001),
];

/// A line of more points than this is thinned out: it would have more points than pixels.
const POINTS_MAX: usize = 600;

/// All plots that the measurements of a phase give.
#[must_use]
pub fn plots(run: &RunResults, phase: &Phase, subjects: &[&str]) -> Vec<Plot> {
    let own = phase.subjects();
    let subjects = if phase.is_calibration() { &own } else { subjects };
    let scene = Scene { run, phase, subjects };
    let mut all = Vec::new();
    if let Some(parameter) = scene.swept() {
        all.extend(scene.sweeps(parameter));
    } else {
        let rates = [Figure::MibPerSec, Figure::OperationsPerSec, Figure::Secs];
        let rate = rates.into_iter().find(|figure| phase.has(*figure));
        all.extend(rate.and_then(|figure| scene.figure_bars(figure)));
        all.extend(scene.rate_over_time());
        all.extend(scene.settings(Scene::latency));
        all.extend(SHARED.iter().filter_map(|shared| scene.shared_bars(shared)));
        all.extend(scene.memory_over_time());
        all.extend(SINGLE.into_iter().filter_map(|figure| scene.figure_bars(figure)));
    }
    all.extend(scene.settings(Scene::positions));
    all
}

impl<'a> Scene<'a> {
    /// The place of a subject, which gives it its colour.
    fn place(self, subject: &str) -> usize {
        self.subjects.iter().position(|one| *one == subject).unwrap_or(0)
    }

    fn title(self, title: &str, setting: &Parameters) -> String {
        let setting = parameters(setting);
        let parts = [self.phase.name.as_str(), title, &setting];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(": ")
    }

    fn plot(self, title: String, caption: String, draw: impl FnOnce(&str) -> String) -> Plot {
        let svg = draw(&title);
        Plot { name: slug(&format!("{}-{title}", self.run.run.id)), title, caption, svg }
    }

    /// A plot for each setting that has one.
    fn settings(self, plot: fn(Self, &Parameters) -> Option<Plot>) -> Vec<Plot> {
        self.phase.settings().into_iter().filter_map(|setting| plot(self, setting)).collect()
    }

    /// The number of rounds in words.
    fn medians(self) -> String {
        match self.phase.rounds() {
            1 => "one round".into(),
            rounds => format!("median of {rounds} rounds"),
        }
    }

    /// Bars of one figure, with its rounds.
    fn figure_bars(self, figure: Figure) -> Option<Plot> {
        let is_measured = |case: &Case| case.median(figure).is_some_and(|value| value != 0.0);
        if !self.phase.cases.iter().any(is_measured) {
            return None;
        }
        let row = |case: &Case| {
            let bar = bar(case, figure, color(self.place(&case.subject)), true)?;
            Some((name_of(case), vec![bar]))
        };
        let rows: Vec<_> = self.phase.cases.iter().filter_map(row).collect();
        let caption = format!("{}Bar: {}; rings: the rounds.", better(figure), self.medians());
        let title = self.title(figure.title(), &Parameters::new());
        Some(self.plot(title, caption, |title| bars(title, &figure.with_unit(), &rows, &[])))
    }

    /// Bars of figures that belong together.
    fn shared_bars(self, shared: &Shared) -> Option<Plot> {
        let Shared { title, unit, figures } = shared;
        let row = |case: &Case| {
            let bars = figures.iter().zip(FILLS);
            let bars: Vec<_> =
                bars.filter_map(|((figure, _), fill)| bar(case, *figure, fill, false)).collect();
            (!bars.is_empty()).then(|| (name_of(case), bars))
        };
        let rows: Vec<_> = self.phase.cases.iter().filter_map(row).collect();
        let legend: Vec<_> =
            figures.iter().zip(FILLS).map(|((_, name), fill)| (*name, fill)).collect();
        let caption = format!("Shorter is better. Bar: {}.", self.medians());
        let title = self.title(title, &Parameters::new());
        (!rows.is_empty())
            .then(|| self.plot(title, caption, |title| bars(title, unit, &rows, &legend)))
    }

    /// The parameter with the most values, if these are at least three.
    fn swept(self) -> Option<&'a str> {
        let settings = self.phase.settings();
        let names: BTreeSet<&str> =
            settings.iter().flat_map(|setting| setting.keys().map(String::as_str)).collect();
        let values = |name: &str| {
            settings.iter().filter_map(|setting| setting.get(name)).collect::<BTreeSet<_>>().len()
        };
        let counted = names.into_iter().map(|name| (values(name), name));
        let swept = counted.filter(|(values, _)| *values >= 3).max_by_key(|(values, _)| *values);
        swept.map(|(_, name)| name)
    }

    /// A plot for each figure and each setting of the other parameters.
    fn sweeps(self, parameter: &str) -> Vec<Plot> {
        let rest: BTreeSet<Parameters> =
            self.phase.cases.iter().map(|case| without(&case.setting, parameter)).collect();
        let pairs = SWEPT.iter().flat_map(|figure| rest.iter().map(move |rest| (*figure, rest)));
        pairs.filter_map(|(figure, rest)| self.sweep(parameter, figure, rest)).collect()
    }

    fn sweep(self, parameter: &str, figure: Figure, rest: &Parameters) -> Option<Plot> {
        let cases: Vec<(u64, &Case, Summary)> = self
            .phase
            .cases
            .iter()
            .filter(|case| without(&case.setting, parameter) == *rest)
            .filter_map(|case| Some((*case.setting.get(parameter)?, case, case.summary(figure)?)))
            .collect();
        let max = cases.iter().map(|(_, _, summary)| summary.max).reduce(f64::max);
        let max = max.filter(|max| *max > 0.0)?;
        let least = cases.iter().map(|(_, _, summary)| summary.min).filter(|value| *value > 0.0);
        let y = match least.reduce(f64::min).filter(|_| figure.unit() == "us") {
            Some(least) => Axis::logarithmic(figure.title(), least, max, latency_label),
            None => Axis::linear(figure.with_unit(), max),
        };
        let values: BTreeSet<u64> = cases.iter().map(|(value, _, _)| *value).collect();
        let (words, unit) = parameter_name(parameter);
        let label = |value| if unit == "B" { size(value) } else { count(value) };
        let ticks = values.into_iter().map(|value| (as_f64(value), label(value))).collect();
        let x = Axis::of_values(words.clone(), ticks);
        let series = self.phase.subjects().into_iter().map(|subject| {
            let own = cases.iter().filter(|(_, case, _)| case.subject == subject);
            let points = own.clone().map(|(value, _, one)| (as_f64(*value), one.median)).collect();
            let ranges = own.map(|(value, _, one)| (as_f64(*value), one.min, one.max)).collect();
            Series { ranges, ..Series::of_subject(subject, self.place(subject), points) }
        });
        let series: Vec<_> = series.filter(|one| !one.points.is_empty()).collect();
        let caption = format!(
            "{}Point: {}; vertical line: least to greatest.",
            better(figure),
            self.medians()
        );
        let title = self.title(&format!("{} by {words}", figure.title()), rest);
        Some(self.plot(title, caption, |title| lines(title, &x, &y, &series)))
    }

    /// Throughput by time, or operations where no data was moved.
    fn rate_over_time(self) -> Option<Plot> {
        let seconds = self.phase.cases.iter().flat_map(|case| &case.rounds);
        let has_data = seconds.flat_map(|one| &one.seconds).any(|one| one.bytes > 0);
        let measure = move |one: &Second| {
            let moved = if has_data { mib(one.bytes) } else { as_f64(one.operations) };
            (one.secs > 0.0).then(|| moved / one.secs)
        };
        let unit = if has_data { "MiB/s" } else { "operations/s" };
        let caption = "Higher is better. The round of median speed.";
        self.course("over time", caption, unit, &[("", measure)])
    }

    /// Page cache by time, and the dirty part of it.
    fn memory_over_time(self) -> Option<Plot> {
        let caption = "Thick: page cache; thin: the dirty part of it. The round of median speed.";
        let cached: fn(&Second) -> Option<f64> = |one| one.page_cache_bytes.map(mib);
        let dirty: fn(&Second) -> Option<f64> = |one| one.dirty_bytes.map(mib);
        let measures = [("page cache", cached), ("dirty", dirty)];
        self.course("memory over time", caption, "MiB", &measures)
    }

    /// Measures of each second: the first in thick lines with a name, the others in thin ones.
    fn course(
        self,
        title: &str,
        caption: &str,
        unit: &str,
        measures: &[(&str, impl Fn(&Second) -> Option<f64>)],
    ) -> Option<Plot> {
        let mut series = Vec::new();
        for case in &self.phase.cases {
            let Some(round) = typical_round(case) else { continue };
            for (nth, (_, measure)) in measures.iter().enumerate() {
                let name = if nth == 0 { name_of(case) } else { String::new() };
                let points = course(round, measure);
                let own = Series::of_subject(&name, self.place(&case.subject), points);
                series.push(Series { width: if nth == 0 { 3 } else { 1 }, ..own });
            }
        }
        series.retain(|one| !one.points.is_empty());
        let points = || series.iter().flat_map(|one| &one.points);
        let max = points().map(|(_, value)| *value).reduce(f64::max)?;
        let end = points().map(|(at, _)| *at).fold(1.0, f64::max);
        let x = Axis::linear("seconds from the first call", end);
        // A limit far above all values would press the lines to the floor.
        let limit = self.run.run.memory_limit_bytes.map(mib);
        let limit = limit.filter(|limit| unit == "MiB" && *limit < 3.0 * max);
        if let Some(limit) = limit {
            let points = vec![(0.0, limit), (end, limit)];
            let (name, color) = ("memory limit".into(), FILLS[0]);
            series.push(Series { name, color, width: 1, points, ranges: Vec::new() });
        }
        let y = Axis::linear(unit, max.max(limit.unwrap_or(0.0)));
        let title = self.title(title, &Parameters::new());
        Some(self.plot(title, caption.into(), |title| lines(title, &x, &y, &series)))
    }

    /// Latency by percentile.
    fn latency(self, setting: &Parameters) -> Option<Plot> {
        let cases = self.phase.cases.iter().filter(|case| case.setting == *setting);
        let series: Vec<_> = cases
            .map(|case| Series::of_subject(&case.subject, self.place(&case.subject), latency(case)))
            .filter(|one| !one.points.is_empty())
            .collect();
        let points = || series.iter().flat_map(|one| &one.points);
        let (min, max) = (
            points().map(|(_, us)| *us).reduce(f64::min)?,
            points().map(|(_, us)| *us).reduce(f64::max)?,
        );
        let end = points().map(|(nines, _)| *nines).fold(2.0, f64::max);
        let ticks = PERCENTILES.iter().map(|(label, longer)| (nines(*longer), (*label).into()));
        let ticks = ticks.filter(|(nines, _)| *nines <= end + 1e-9).collect();
        let x = Axis::with_ticks("part of the calls that took no longer", (0.0, end), ticks);
        let y = Axis::logarithmic("latency", min, max, latency_label);
        let caption = "Lower is better. From 90 % on, each tick leaves a tenth of the calls of \
                       the one before. All rounds together.";
        let title = self.title("latency", setting);
        Some(self.plot(title, caption.into(), |title| lines(title, &x, &y, &series)))
    }

    /// The cost of an entry by its position in a listing.
    fn positions(self, setting: &Parameters) -> Option<Plot> {
        let cases = self.phase.cases.iter().filter(|case| case.setting == *setting);
        let series: Vec<_> = cases
            .map(|case| {
                let costs = by_position(case);
                let points = costs.iter().map(|(entry, cost)| (*entry, cost.median)).collect();
                let ranges = costs.iter().map(|(entry, cost)| (*entry, cost.min, cost.max));
                let ranges = ranges.collect();
                Series {
                    ranges,
                    ..Series::of_subject(&case.subject, self.place(&case.subject), points)
                }
            })
            .filter(|one| !one.points.is_empty())
            .collect();
        let points = || series.iter().flat_map(|one| &one.points);
        let max = series.iter().flat_map(|one| &one.ranges).map(|(_, _, max)| *max);
        let max = max.reduce(f64::max)?;
        let end = points().map(|(entry, _)| *entry).fold(1.0, f64::max);
        let x = Axis::linear("position in the listing, entries", end);
        let least = points().map(|(_, cost)| *cost).filter(|cost| *cost > 0.0).reduce(f64::min);
        // On a linear axis the dearest entries would press all others to the floor.
        let y = match least.filter(|least| max / least > 50.0) {
            Some(least) => Axis::logarithmic("cost of an entry, us", least, max, short),
            None => Axis::linear("cost of an entry, us", max),
        };
        let caption = format!(
            "Lower is better; level if a listing costs the same everywhere. Point: {}; vertical \
             line: least to greatest.",
            self.medians()
        );
        let title = self.title("cost of an entry by its position", setting);
        Some(self.plot(title, caption, |title| lines(title, &x, &y, &series)))
    }
}

const fn better(figure: Figure) -> &'static str {
    match figure.better() {
        Better::Higher => "Higher is better. ",
        Better::Lower => "Lower is better. ",
        Better::Neither => "",
    }
}

/// A case with its setting.
fn name_of(case: &Case) -> String {
    if case.setting.is_empty() {
        return case.subject.clone();
    }
    format!("{}, {}", case.subject, parameters(&case.setting))
}

/// The bar of a figure; none if it was not measured.
fn bar(case: &Case, figure: Figure, color: RGBColor, with_rounds: bool) -> Option<Bar> {
    let summary = case.summary(figure)?;
    let rounds = case.observations(figure);
    let is_shown = with_rounds && rounds.len() > 1;
    let rounds = rounds.iter().filter(|_| is_shown).map(|one| one.value).collect();
    Some(Bar { value: summary.median, color, rounds, text: rounded(summary.median) })
}

fn without(setting: &Parameters, parameter: &str) -> Parameters {
    let mut rest = setting.clone();
    rest.remove(parameter);
    rest
}

/// The round of median speed.
fn typical_round(case: &Case) -> Option<&Measurement> {
    let mut rounds: Vec<_> = case.rounds.iter().filter(|one| !one.seconds.is_empty()).collect();
    let speed = |one: &Measurement| {
        let of = |figure| one.figures.get(&figure).copied();
        of(Figure::MibPerSec).or_else(|| of(Figure::OperationsPerSec)).unwrap_or(0.0)
    };
    rounds.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
    rounds.get(rounds.len().saturating_sub(1) / 2).copied()
}

/// A measure of each second, in its middle. A rest of less than half a second is left out.
fn course(round: &Measurement, measure: impl Fn(&Second) -> Option<f64>) -> Vec<(f64, f64)> {
    let every = round.seconds.len().div_ceil(POINTS_MAX).max(1);
    let is_whole = |second: &&Second| second.secs >= 0.5 || round.seconds.len() < 3;
    let seconds = round.seconds.iter().filter(is_whole).step_by(every);
    seconds.filter_map(|one| Some((one.at_secs - one.secs / 2.0, measure(one)?))).collect()
}

/// The number of nines of a percentile: 1 for 90 %, 2 for 99 %.
fn nines(longer: f64) -> f64 {
    -longer.log10()
}

/// Nines and microseconds: a stair of the calls of all rounds, or the percentiles that the figures
/// have where the calls were not results.
fn latency(case: &Case) -> Vec<(f64, f64)> {
    let buckets = buckets(case);
    let calls: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let mut points = Vec::new();
    let (mut done, mut x) = (0, 0.0);
    for bucket in &buckets {
        points.push((x, bucket.us_max));
        done += bucket.count;
        // There is no percentile after the last call; half a call is left for it.
        x = nines(as_f64(calls - done).max(0.5) / as_f64(calls));
        points.push((x, bucket.us_max));
    }
    if !points.is_empty() {
        return points;
    }
    let known = [
        (Figure::LatencyP50Us, 0.5),
        (Figure::LatencyP95Us, 0.05),
        (Figure::LatencyP99Us, 0.01),
        (Figure::LatencyP999Us, 0.001),
    ];
    let point = |(figure, longer): (Figure, f64)| Some((nines(longer), case.median(figure)?));
    known.into_iter().filter_map(point).collect()
}

/// The buckets of all rounds in one list, in ascending order.
fn buckets(case: &Case) -> Vec<LatencyBucket> {
    let mut all: BTreeMap<u64, LatencyBucket> = BTreeMap::new();
    for bucket in case.rounds.iter().flat_map(|one| &one.latency).filter(|one| one.count > 0) {
        // The bits of numbers that are not negative have the order of the numbers.
        let us_max = bucket.us_max.max(0.0);
        let one = all.entry(us_max.to_bits()).or_insert(LatencyBucket { us_max, count: 0 });
        one.count = one.count.saturating_add(bucket.count).min(1 << 53);
    }
    all.into_values().collect()
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

/// A name for a file: each run of other characters than letters and digits becomes one `-`.
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
