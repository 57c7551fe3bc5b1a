//! Line charts and bar charts as SVG.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{BoldPoints, DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::numeral::{plain, short};

/// Width of a drawing in pixels.
const WIDTH: u32 = 760;
/// Width of the legend on the right.
const LEGEND_WIDTH: u32 = 170;
const TITLE_HEIGHT: u32 = 34;
const LINES_HEIGHT: u32 = 330;
const LETTERS: (&str, u32) = ("sans-serif", 13);
const TITLE: (&str, u32) = ("sans-serif", 16);
const GRID: RGBColor = RGBColor(212, 212, 212);
/// A line with more points has no markers.
const MARKERS_MAX: usize = 40;
/// Records come from anywhere: a value outside is drawn at the bound.
const VALUE_MAX: f64 = 1e15;
const LOGARITHM_VALUE_MIN: f64 = 1e-9;

/// The palette of Okabe and Ito for all kinds of colour vision.
const COLORS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    BLACK,
];

/// The colour of the subject at this place; the eighth has that of the first.
pub(super) const fn color(place: usize) -> RGBColor {
    COLORS[place % COLORS.len()]
}

/// Values and ticks of one direction of a chart.
#[derive(Clone)]
pub(super) struct Axis {
    title: String,
    low: f64,
    high: f64,
    logarithmic: bool,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From 0 to `max`.
    pub(super) fn linear(title: impl Into<String>, max: f64) -> Self {
        let high = if max > 0.0 { max.min(VALUE_MAX) * 1.05 } else { 1.0 };
        let ticks = RangedCoordf64::from(0.0..high).key_points(BoldPoints(7));
        let ticks = ticks.into_iter().map(|tick| (tick, short(tick))).collect();
        Self { title: title.into(), low: 0.0, high, logarithmic: false, ticks }
    }

    /// From `min` to `max`, with ticks at 1, 2 and 5 times the powers of ten if there are few
    /// powers, else at the powers.
    pub(super) fn logarithmic(
        title: impl Into<String>,
        min: f64,
        max: f64,
        label: impl Fn(f64) -> String,
    ) -> Self {
        let high = max.clamp(LOGARITHM_VALUE_MIN, VALUE_MAX) * 1.1;
        let low = min.clamp(LOGARITHM_VALUE_MIN, high) / 1.1;
        let (first, last) = (low.log10().floor(), high.log10().ceil());
        let digits: &[f64] = if last - first <= 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let powers = std::iter::successors(Some(first), |power| Some(power + 1.0));
        let ticks = powers
            .take_while(|power| *power <= last)
            .flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powf(power)))
            .filter(|tick| (low..=high).contains(tick))
            .map(|tick| (tick, label(tick)))
            .collect();
        Self { title: title.into(), low, high, logarithmic: true, ticks }
    }

    /// From the first to the last of `values`, which are in ascending order and all labelled.
    pub(super) fn of_values(title: impl Into<String>, values: Vec<(f64, String)>) -> Self {
        let low = values.first().map_or(0.0, |(value, _)| *value);
        let high = values.last().map_or(1.0, |(value, _)| value.min(VALUE_MAX)).max(low);
        let title = title.into();
        if low > 0.0 && high / low >= 8.0 {
            return Self {
                title,
                low: low / 1.1,
                high: high * 1.1,
                logarithmic: true,
                ticks: values,
            };
        }
        let margin = ((high - low) * 0.04).max(0.5);
        let (low, high) = (low - margin, high + margin);
        Self { title, low, high, logarithmic: false, ticks: values }
    }

    /// From `low` to `high` with these ticks.
    pub(super) fn with_ticks(
        title: impl Into<String>,
        (low, high): (f64, f64),
        ticks: Vec<(f64, String)>,
    ) -> Self {
        Self { title: title.into(), low, high, logarithmic: false, ticks }
    }

    /// The label of a tick.
    fn label(&self, at: f64) -> String {
        let tick = self.ticks.iter().find(|(tick, _)| tick.total_cmp(&at).is_eq());
        tick.map_or_else(String::new, |(_, label)| label.clone())
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    /// The place of a value in pixels; a value outside is drawn at the end.
    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let value = if value.is_nan() { self.low } else { value.clamp(self.low, self.high) };
        let scale = |value: f64| if self.logarithmic { value.log10() } else { value };
        RangedCoordf64::from(scale(self.low)..scale(self.high)).map(&scale(value), limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        self.ticks.iter().map(|(tick, _)| *tick).collect()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// A line of a chart.
pub(super) struct Series {
    /// In the legend; a line without a name is not in it.
    pub(super) name: String,
    pub(super) color: RGBColor,
    pub(super) width: u32,
    pub(super) points: Vec<(f64, f64)>,
    /// From the least to the greatest at a value of the horizontal axis.
    pub(super) ranges: Vec<(f64, f64, f64)>,
}

impl Series {
    /// The line of the subject at this place.
    pub(super) fn of_subject(name: &str, place: usize, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), color: color(place), width: 2, points, ranges: Vec::new() }
    }
}

/// A chart of lines. A line of few points has markers.
pub(super) fn lines(title: &str, x: &Axis, y: &Axis, series: &[Series]) -> String {
    let mut svg = String::new();
    {
        let legend: Vec<_> = series.iter().map(|one| (one.name.as_str(), one.color)).collect();
        let area = frame(&mut svg, LINES_HEIGHT, title, &legend);
        let labels = y.ticks.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0);
        let mut chart = ChartBuilder::on(&area)
            .x_label_area_size(44)
            .margin_left(12)
            .y_label_area_size(letters_width(labels) + 32)
            .build_cartesian_2d(x.clone(), y.clone())
            .expect(IN_MEMORY);
        chart
            .configure_mesh()
            .x_desc(&x.title)
            .y_desc(&y.title)
            .x_label_formatter(&|at| x.label(*at))
            .y_label_formatter(&|at| y.label(*at))
            .label_style(LETTERS)
            .axis_desc_style(LETTERS)
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .draw()
            .expect(IN_MEMORY);
        for one in series {
            for (place, low, high) in &one.ranges {
                let ends = [(*place, *low), (*place, *high)];
                chart.draw_series([PathElement::new(ends, one.color)]).expect(IN_MEMORY);
            }
            if one.points.len() <= MARKERS_MAX {
                let markers =
                    one.points.iter().map(|point| Circle::new(*point, 3, one.color.filled()));
                chart.draw_series(markers).expect(IN_MEMORY);
            }
            let style = one.color.stroke_width(one.width);
            chart.draw_series(LineSeries::new(one.points.iter().copied(), style)).expect(IN_MEMORY);
        }
    }
    titled(svg, title)
}

/// A bar of a row.
pub(super) struct Bar {
    pub(super) value: f64,
    pub(super) color: RGBColor,
    /// The values of the rounds, of which `value` is the median.
    pub(super) rounds: Vec<f64>,
    /// Stands beside it.
    pub(super) text: String,
}

/// A chart of horizontal bars: for each row its label, and its bars from top to bottom.
pub(super) fn bars(
    title: &str,
    axis_title: &str,
    rows: &[(String, Vec<Bar>)],
    legend: &[(&str, RGBColor)],
) -> String {
    const BAR_HEIGHT: u32 = 22;
    let all = || rows.iter().flat_map(|(_, bars)| bars);
    let values = all().flat_map(|bar| bar.rounds.iter().copied().chain([bar.value]));
    // Room for the text beside the longest bar.
    let x = Axis::linear(axis_title, values.fold(0.0, f64::max).min(VALUE_MAX) * 1.15);
    let heights = rows.iter().map(|(_, bars)| bars.len() + 1);
    let count = u32::try_from(heights.sum::<usize>()).unwrap_or(u32::MAX).min(500);
    let labels: Vec<_> = rows.iter().map(|(label, _)| shortened(&plain(label))).collect();
    let longest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let mut svg = String::new();
    {
        let area = frame(&mut svg, TITLE_HEIGHT + 60 + count * BAR_HEIGHT, title, legend);
        let mut chart = ChartBuilder::on(&area)
            .x_label_area_size(44)
            .y_label_area_size(letters_width(longest) + 10)
            .build_cartesian_2d(x.clone(), f64::from(count)..0.0)
            .expect(IN_MEMORY);
        chart
            .configure_mesh()
            .x_desc(&x.title)
            .x_label_formatter(&|at| x.label(*at))
            .label_style(LETTERS)
            .axis_desc_style(LETTERS)
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .disable_y_mesh()
            .y_labels(0)
            .draw()
            .expect(IN_MEMORY);
        let middle = LETTERS.into_text_style(&area).pos(Pos::new(HPos::Right, VPos::Center));
        let beside = LETTERS.into_text_style(&area).pos(Pos::new(HPos::Left, VPos::Center));
        let mut top = 0.5;
        for ((_, bars), label) in rows.iter().zip(labels) {
            let center = (0.0, top + f64::from(u32::try_from(bars.len()).unwrap_or(1)) / 2.0);
            let label = EmptyElement::at(center) + Text::new(label, (-6, 0), middle.clone());
            chart.draw_series([label]).expect(IN_MEMORY);
            for bar in bars {
                let rectangle = [(0.0, top + 0.1), (bar.value, top + 0.9)];
                let fill = Rectangle::new(rectangle, bar.color.filled());
                let edge = Rectangle::new(rectangle, BLACK.stroke_width(1));
                chart.draw_series([fill, edge]).expect(IN_MEMORY);
                let rounds = bar
                    .rounds
                    .iter()
                    .map(|round| Circle::new((*round, top + 0.5), 3, BLACK.stroke_width(1)));
                chart.draw_series(rounds).expect(IN_MEMORY);
                let end = bar.rounds.iter().copied().fold(bar.value, f64::max);
                let end = EmptyElement::at((end, top + 0.5));
                let text = end + Text::new(bar.text.clone(), (8, 0), beside.clone());
                chart.draw_series([text]).expect(IN_MEMORY);
                top += 1.0;
            }
            top += 1.0;
        }
    }
    titled(svg, title)
}

const IN_MEMORY: &str = "a drawing in memory has no reason to fail";

/// A white area with its title; returns what is left of it beside the legend.
fn frame<'a>(
    svg: &'a mut String,
    height: u32,
    title: &str,
    legend: &[(&str, RGBColor)],
) -> DrawingArea<SVGBackend<'a>, Shift> {
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE).expect(IN_MEMORY);
    let title = Text::new(plain(title), (0, 8), TITLE.into_font());
    root.draw(&title).expect(IN_MEMORY);
    let (_, area) = root.split_vertically(TITLE_HEIGHT);
    let legend: Vec<_> = legend.iter().filter(|(name, _)| !name.is_empty()).collect();
    if legend.is_empty() {
        return area;
    }
    let (area, right) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
    for (top, (name, color)) in (4..).step_by(18).zip(legend) {
        let sample = Rectangle::new([(8, top), (22, top + 12)], color.filled());
        right.draw(&sample).expect(IN_MEMORY);
        let name = Text::new(shortened(&plain(name)), (28, top + 1), LETTERS.into_font());
        right.draw(&name).expect(IN_MEMORY);
    }
    area
}

/// Adds the title for readers that do not see the drawing.
fn titled(svg: String, title: &str) -> String {
    let title = super::escaped(title);
    svg.replacen(">\n", &format!(" role=\"img\">\n<title>{title}</title>\n"), 1)
}

/// About how wide a text of this length is, in pixels.
fn letters_width(letters: usize) -> u32 {
    u32::try_from(letters).unwrap_or(u32::MAX).min(100) * 7
}

/// A text of at most 30 letters: the middle of a longer one becomes `…`.
fn shortened(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= 30 {
        return text.into();
    }
    let (head, tail) = (&letters[..15], &letters[letters.len() - 14..]);
    format!("{}\u{2026}{}", head.iter().collect::<String>(), tail.iter().collect::<String>())
}

/// A latency with its unit: `500 us`, `2 ms`, `1 s`.
pub(super) fn latency_label(us: f64) -> String {
    match us {
        us if us >= 0.999_999e6 => format!("{} s", short(us / 1e6)),
        us if us >= 0.999_999e3 => format!("{} ms", short(us / 1e3)),
        us => format!("{} us", short(us)),
    }
}
