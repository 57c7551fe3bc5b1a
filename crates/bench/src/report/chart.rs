//! Lines over an axis, with their names at their ends.

use super::axis::Axis;
use super::ink;
use super::svg::{Anchor, Area, FAINT, INK, LETTERS, Marker, Point, Stroke, Svg, fitted};

/// A line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Written at its end; empty for none.
    pub(crate) label: String,
    pub(crate) stroke: Stroke,
    pub(crate) points: Vec<Point>,
    /// Where the marker stands.
    pub(crate) marks: Vec<Point>,
    pub(crate) marker: Marker,
    /// From the least to the greatest at a value of the first axis.
    pub(crate) ranges: Vec<(f64, f64, f64)>,
}

impl Line {
    /// The line of the subject at a place in the run, with its name.
    pub(crate) fn of_subject(label: &str, place: usize, points: Vec<Point>) -> Self {
        Self {
            label: label.into(),
            stroke: ink::stroke(place, 2.4),
            points,
            marks: Vec::new(),
            marker: ink::marker(place),
            ranges: Vec::new(),
        }
    }
}

/// Lines over a common axis.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) x: Axis,
    pub(crate) x_title: String,
    pub(crate) y: Axis,
    pub(crate) y_title: String,
    /// The later ones are drawn over the earlier ones.
    pub(crate) lines: Vec<Line>,
    /// A level that all have in common, with its name.
    pub(crate) level: Option<(f64, String)>,
}

/// Width that is left for the names at the ends of lines, at most.
const LABELS_MAX: f64 = 190.0;

impl Chart {
    /// Draws it within `area`, labels and all.
    pub(crate) fn draw(&self, svg: &mut Svg, area: Area) {
        let widest = |texts: &mut dyn Iterator<Item = &str>| {
            texts.map(super::svg::text_width).fold(0.0, f64::max)
        };
        let left = widest(&mut self.y.ticks.iter().map(|(_, label)| label.as_str())) + 10.0;
        let labels = widest(&mut self.lines.iter().map(|line| line.label.as_str()));
        let right = if labels > 0.0 { labels.min(LABELS_MAX) + 44.0 } else { 14.0 };
        let frame = Area {
            left: area.left + left,
            top: area.top + 22.0,
            width: area.width - left - right,
            height: area.height - 22.0 - 40.0,
        };
        self.draw_axes(svg, area, frame);
        for line in &self.lines {
            self.draw_line(svg, frame, line);
        }
        self.draw_labels(svg, frame, area.right());
    }

    fn at(&self, frame: Area, (x, y): Point) -> Point {
        (frame.left + self.x.part(x) * frame.width, frame.bottom() - self.y.part(y) * frame.height)
    }

    fn draw_axes(&self, svg: &mut Svg, area: Area, frame: Area) {
        for (tick, label) in &self.y.ticks {
            let y = frame.bottom() - self.y.part(*tick) * frame.height;
            svg.line((frame.left, y), (frame.right(), y), Stroke::plain(FAINT, 1.0));
            svg.text((frame.left - 6.0, y + LETTERS * 0.35), Anchor::End, label);
        }
        svg.text((area.left, area.top + LETTERS - 2.0), Anchor::Start, &self.y_title);
        let floor = frame.bottom();
        svg.line((frame.left, floor), (frame.right(), floor), Stroke::plain(INK, 1.0));
        let mut free = f64::NEG_INFINITY;
        for (tick, label) in &self.x.ticks {
            let x = frame.left + self.x.part(*tick) * frame.width;
            svg.line((x, floor), (x, floor + 4.0), Stroke::plain(INK, 1.0));
            // A label that would run into the one before is left out; its tick stays.
            let half = super::svg::text_width(label) / 2.0;
            if x - half > free {
                svg.text((x, floor + 17.0), Anchor::Middle, label);
                free = x + half + 6.0;
            }
        }
        let middle = frame.left + frame.width / 2.0;
        svg.text((middle, floor + 34.0), Anchor::Middle, &self.x_title);
        if let Some((level, name)) = &self.level {
            let y = frame.bottom() - self.y.part(*level) * frame.height;
            let stroke = Stroke { color: INK, width: 1.0, dash: "2 3" };
            svg.line((frame.left, y), (frame.right(), y), stroke);
            svg.text((frame.left + 4.0, y - 4.0), Anchor::Start, name);
        }
    }

    fn draw_line(&self, svg: &mut Svg, frame: Area, line: &Line) {
        let stroke = line.stroke;
        for (x, low, high) in &line.ranges {
            let (from, to) = (self.at(frame, (*x, *low)), self.at(frame, (*x, *high)));
            svg.line(from, to, Stroke::plain(stroke.color, 1.0));
            for (x, y) in [from, to] {
                svg.line((x - 3.0, y), (x + 3.0, y), Stroke::plain(stroke.color, 1.0));
            }
        }
        let points: Vec<_> = line.points.iter().map(|point| self.at(frame, *point)).collect();
        svg.path(&points, stroke);
        // A line of one point would not be seen without.
        let marks = if points.len() == 1 { &line.points } else { &line.marks };
        for mark in marks {
            svg.marker(self.at(frame, *mark), line.marker, stroke.color);
        }
    }

    /// Names the lines at their ends, apart from each other.
    fn draw_labels(&self, svg: &mut Svg, frame: Area, right: f64) {
        let mut ends: Vec<(Point, &Line)> = self
            .lines
            .iter()
            .filter(|line| !line.label.is_empty())
            .filter_map(|line| Some((self.at(frame, *line.points.last()?), line)))
            .collect();
        ends.sort_by(|((_, a), _), ((_, b), _)| a.total_cmp(b));
        let wanted: Vec<_> = ends.iter().map(|((_, y), _)| *y).collect();
        let floor = frame.bottom() + 4.0;
        for (((x, y), line), beside) in ends.iter().zip(spread(&wanted, LETTERS + 2.0, floor)) {
            let from = frame.right() + 8.0;
            svg.line((x + 4.0, *y), (from, beside), Stroke::plain("#999999", 0.7));
            svg.line((from, beside), (from + 26.0, beside), line.stroke);
            if !line.marks.is_empty() {
                svg.marker((from + 13.0, beside), line.marker, line.stroke.color);
            }
            let text = (from + 31.0, beside + LETTERS * 0.35);
            svg.text(text, Anchor::Start, &fitted(&line.label, right - text.0));
        }
    }
}

/// Moves heights apart so that `gap` lies between them, the last not below `floor` if that can
/// be. They come and go from top to bottom.
fn spread(wanted: &[f64], gap: f64, floor: f64) -> Vec<f64> {
    let mut places = wanted.to_vec();
    let mut free = f64::NEG_INFINITY;
    for place in &mut places {
        *place = place.max(free);
        free = *place + gap;
    }
    let mut limit = floor;
    for place in places.iter_mut().rev() {
        *place = place.min(limit);
        limit = *place - gap;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_moved_apart_and_stay_above_the_floor() {
        assert_eq!(spread(&[10.0, 50.0], 15.0, 100.0), [10.0, 50.0]);
        assert_eq!(spread(&[10.0, 10.0, 12.0], 15.0, 100.0), [10.0, 25.0, 40.0]);
        assert_eq!(spread(&[98.0, 99.0, 100.0], 15.0, 100.0), [70.0, 85.0, 100.0]);
        assert_eq!(spread(&[], 15.0, 100.0), Vec::<f64>::new());
    }
}
