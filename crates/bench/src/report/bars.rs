//! Bars that lie, each with its name on the left and its value on the right.

use super::axis::Axis;
use super::ink;
use super::svg::{Anchor, Area, FAINT, INK, LETTERS, Marker, Stroke, Svg, fitted, text_width};

/// What a part of a bar is filled with: they differ without colours too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// The colour of the subject at this place.
    Subject(usize),
    /// A dark colour.
    Solid,
    /// Stripes.
    Striped,
    /// Nothing, within an edge.
    Hollow,
}

/// A bar of one part, or of several that add up.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) parts: Vec<(f64, Fill)>,
    /// Each round's value.
    pub(crate) rounds: Vec<f64>,
    pub(crate) text: String,
}

/// A name with its bars; without any it is a heading of those below.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) label: String,
    pub(crate) bars: Vec<Bar>,
}

/// Bars over a common axis, which begins at 0.
#[derive(Clone, Debug)]
pub(crate) struct Bars {
    pub(crate) rows: Vec<Row>,
    /// What the axis is called, with the unit.
    pub(crate) axis_title: String,
    pub(crate) legend: Vec<(Fill, &'static str)>,
}

const BAR_HEIGHT: f64 = 20.0;
const GAP: f64 = 12.0;
const LABELS_MAX: f64 = 230.0;
const ROUNDS_APART_MIN: f64 = 4.0;

impl Bars {
    /// Draws them from the top of `svg`. Returns how high they are.
    pub(crate) fn draw(&self, svg: &mut Svg) -> f64 {
        let top = self.draw_legend(svg);
        let labels = self.rows.iter().map(|row| text_width(&row.label) + 12.0).fold(40.0, f64::max);
        let bars = || self.rows.iter().flat_map(|row| &row.bars);
        let texts = bars().map(|bar| text_width(&bar.text)).fold(40.0, f64::max);
        let height = self.rows.iter().map(row_height).sum();
        let left = labels.min(LABELS_MAX);
        let frame =
            Area { left, top, width: (svg.width() - left - texts - 16.0).max(100.0), height };
        let axis = Axis::linear(bars().map(Bar::max).fold(0.0, f64::max), 6);
        self.draw_axis(svg, frame, &axis);
        let mut y = top;
        for row in &self.rows {
            let height = row_height(row);
            if row.bars.is_empty() {
                svg.bold((4.0, y + height - 8.0), Anchor::Start, &row.label);
            } else {
                let label = fitted(&row.label, frame.left - 12.0);
                let middle = y + height / 2.0 + LETTERS * 0.35;
                svg.text((frame.left - 8.0, middle), Anchor::End, &label);
            }
            let mut bar_top = y + GAP / 2.0;
            for bar in &row.bars {
                bar.draw(svg, Area { top: bar_top, height: BAR_HEIGHT, ..frame }, &axis);
                bar_top += BAR_HEIGHT;
            }
            y += height;
        }
        svg.line((left, top), (left, y), Stroke::plain(INK, 1.0));
        y + 44.0
    }

    fn draw_legend(&self, svg: &mut Svg) -> f64 {
        if self.legend.is_empty() {
            return 4.0;
        }
        let mut left = 4.0;
        for (fill, name) in &self.legend {
            fill.draw(svg, Area { left, top: 4.0, width: 26.0, height: 13.0 });
            svg.text((left + 32.0, 15.0), Anchor::Start, name);
            left += 32.0 + text_width(name) + 22.0;
        }
        28.0
    }

    fn draw_axis(&self, svg: &mut Svg, frame: Area, axis: &Axis) {
        let floor = frame.bottom();
        for (tick, label) in &axis.ticks {
            let x = frame.left + axis.part(*tick) * frame.width;
            svg.line((x, frame.top), (x, floor), Stroke::plain(FAINT, 1.0));
            svg.text((x, floor + 16.0), Anchor::Middle, label);
        }
        let middle = frame.left + frame.width / 2.0;
        svg.text((middle, floor + 34.0), Anchor::Middle, &self.axis_title);
    }
}

fn row_height(row: &Row) -> f64 {
    let bars: f64 = row.bars.iter().map(|_| BAR_HEIGHT).sum();
    if row.bars.is_empty() { 28.0 } else { bars + GAP }
}

impl Bar {
    fn length(&self) -> f64 {
        self.parts.iter().map(|(value, _)| value.max(0.0)).sum()
    }

    fn max(&self) -> f64 {
        self.rounds.iter().copied().fold(self.length(), f64::max)
    }

    /// Draws it into the left of `area`, the median as its length, its rounds upon it.
    fn draw(&self, svg: &mut Svg, area: Area, axis: &Axis) {
        let at = |value: f64| area.left + axis.part(value) * area.width;
        let mut sum = 0.0;
        for (value, fill) in &self.parts {
            let (from, to) = (at(sum), at(sum + value.max(0.0)));
            fill.draw(
                svg,
                Area { left: from, width: to - from, top: area.top + 2.0, height: 16.0 },
            );
            sum += value.max(0.0);
        }
        let middle = area.top + area.height / 2.0;
        let low = at(self.rounds.iter().copied().fold(f64::INFINITY, f64::min));
        let high = at(self.rounds.iter().copied().fold(0.0, f64::max));
        // Rounds that are nearly the same would hide the bar's end and tell nothing.
        if self.rounds.len() > 1 && high - low > ROUNDS_APART_MIN {
            svg.line((low, middle), (high, middle), Stroke::plain(INK, 1.2));
            for end in [low, high] {
                svg.line((end, middle - 4.0), (end, middle + 4.0), Stroke::plain(INK, 1.2));
            }
            let step = 12.0 / f64::from(u32::try_from(self.rounds.len()).unwrap_or(u32::MAX));
            let mut y = area.top + 4.0 + step / 2.0;
            for round in &self.rounds {
                svg.marker((at(*round), y), Marker::Ring, INK);
                y += step;
            }
        }
        let text = (at(self.max()) + 10.0, middle + LETTERS * 0.35);
        svg.text(text, Anchor::Start, &self.text);
    }
}

impl Fill {
    fn draw(self, svg: &mut Svg, area: Area) {
        match self {
            Self::Subject(place) => svg.rect(area, ink::color(place), INK),
            Self::Solid => svg.rect(area, "#5a5a5a", INK),
            Self::Hollow => svg.rect(area, "#ffffff", INK),
            Self::Striped => {
                svg.rect(area, "#f2f2f2", INK);
                let mut x = area.left + 4.0;
                while x < area.right() {
                    let stroke = Stroke::plain("#5a5a5a", 1.6);
                    svg.line((x, area.top), (x, area.bottom()), stroke);
                    x += 5.0;
                }
            }
        }
    }
}
