//! How subjects are told apart: by colour, and without colours by dashes and markers.

use super::svg::{Marker, Stroke};

/// Of Okabe and Ito's palette for all kinds of colour vision, what is dark enough on white.
const COLORS: [&str; 7] =
    ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"];

/// Whole, long, short, dotted, and dash and dot.
const DASHES: [&str; 5] = ["", "9 3", "4 3", "1.5 2.5", "9 3 2 3"];

const MARKERS: [Marker; 5] =
    [Marker::Circle, Marker::Square, Marker::Triangle, Marker::Diamond, Marker::Ring];

/// The colour of the subject at a place in the run, from 0. The eighth has that of the first,
/// with other dashes.
pub(crate) const fn color(place: usize) -> &'static str {
    COLORS[place % COLORS.len()]
}

/// The line of a subject.
pub(crate) const fn stroke(place: usize, width: f64) -> Stroke {
    Stroke { color: color(place), width, dash: DASHES[place % DASHES.len()] }
}

/// The marker of a subject.
pub(crate) const fn marker(place: usize) -> Marker {
    MARKERS[place % MARKERS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn thirty_five_subjects_look_different() {
        let looks: BTreeSet<_> =
            (0..35).map(|place| (color(place), stroke(place, 1.0).dash)).collect();
        assert_eq!(looks.len(), 35);
    }
}
