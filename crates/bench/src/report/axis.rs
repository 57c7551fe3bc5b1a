//! Where values stand on an axis, and which of them are written beside it.

use crate::numeral::short;

/// A range of values, with the ticks that are shown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// The values that are shown, and what is written there.
    pub(crate) ticks: Vec<(f64, String)>,
}

/// Values beyond this are drawn at it: records may come from anywhere.
const VALUE_MAX: f64 = 1e15;

/// Values of a logarithmic axis below this are drawn at it.
const VALUE_MIN: f64 = 1e-9;

impl Axis {
    /// From 0 to the first round value that is not below `max`, in about `ticks` steps.
    pub(crate) fn linear(max: f64, ticks: u32) -> Self {
        let max = if max > 0.0 { max.min(VALUE_MAX) } else { 1.0 };
        let step = nice_step(max / f64::from(ticks));
        let steps = (max / step - 1e-9).ceil().max(1.0);
        let mut all = Vec::new();
        let mut at = 0.0;
        while at <= steps {
            all.push((at * step, short(at * step)));
            at += 1.0;
        }
        Self { low: 0.0, high: steps * step, logarithmic: false, ticks: all }
    }

    /// From 1, 2 or 5 times a power of ten below `min` to one above `max`, each tick labelled by
    /// `label`: all of these within fewer than three powers, else the powers and both ends.
    pub(crate) fn logarithmic(min: f64, max: f64, label: impl Fn(f64) -> String) -> Self {
        let max = max.clamp(VALUE_MIN, VALUE_MAX);
        let min = min.clamp(VALUE_MIN, max);
        let steps = || {
            let (from, to) = (decade(min).floor(), decade(max).ceil() + 1.0);
            let decades =
                std::iter::successors(Some(from), move |at| (*at < to).then_some(*at + 1.0));
            decades.flat_map(|at| [1.0, 2.0, 5.0].map(|digit| (digit, digit * power(at))))
        };
        let low = steps().map(|(_, at)| at).take_while(|at| *at <= min * (1.0 + 1e-9)).last();
        let low = low.unwrap_or(min);
        let above = |at: &f64| *at >= max * (1.0 - 1e-9) && *at > low * 1.5;
        let high = steps().map(|(_, at)| at).find(above).unwrap_or(max * 10.0);
        let decades = decade(high) - decade(low);
        let every = (decades / 8.0).ceil().max(1.0);
        let shown = |digit: f64, at: f64| {
            let is_end = (at / low - 1.0).abs() < 1e-9 || (at / high - 1.0).abs() < 1e-9;
            if decades < 3.0 || is_end {
                true
            } else {
                digit == 1.0 && decade(at).rem_euclid(every) < 0.5
            }
        };
        let ticks = steps()
            .filter(|(digit, at)| (low * 0.999..=high * 1.001).contains(at) && shown(*digit, *at))
            .map(|(_, tick)| (tick, label(tick)))
            .collect();
        Self { low, high, logarithmic: true, ticks }
    }

    /// From the first to the last of `values`, which are in order and all shown; logarithmic if
    /// they grow by leaps.
    pub(crate) fn of_values(values: &[(f64, String)]) -> Self {
        let low = values.first().map_or(0.0, |(value, _)| *value);
        let high = values.last().map_or(1.0, |(value, _)| *value);
        let logarithmic = low > 0.0 && high / low >= 8.0;
        let margin = (high - low).max(high.abs() * 0.1).max(1e-6) * 0.04;
        let (low, high) = if logarithmic {
            let margin = (high / low).powf(0.04);
            (low / margin, high * margin)
        } else {
            (low - margin, high + margin)
        };
        Self { low, high, logarithmic, ticks: values.to_vec() }
    }

    /// From `low` to `high` with these ticks.
    pub(crate) fn with_ticks(low: f64, high: f64, ticks: Vec<(f64, String)>) -> Self {
        Self { low, high, logarithmic: false, ticks }
    }

    /// Where a value stands, from 0 to 1; what lies outside stands at the end.
    pub(crate) fn part(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (decade(value.max(self.low)) - decade(self.low))
                / (decade(self.high) - decade(self.low))
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// Microseconds as people say them: `500 us`, `2 ms`, `1 s`.
pub(crate) fn latency_label(us: f64) -> String {
    match us {
        us if us >= 0.999_999e6 => format!("{} s", short(us / 1e6)),
        us if us >= 0.999_999e3 => format!("{} ms", short(us / 1e3)),
        us => format!("{} us", short(us)),
    }
}

/// The least of 1, 2, 5, 10, … (times a power of ten) that is not below `step`.
fn nice_step(step: f64) -> f64 {
    let unit = power(decade(step).floor());
    let nice = [1.0, 2.0, 5.0, 10.0].into_iter().find(|nice| nice * unit >= step * (1.0 - 1e-9));
    nice.unwrap_or(10.0) * unit
}

fn decade(value: f64) -> f64 {
    let decade = value.log10();
    // 1000 is 2.9999999999999996 decades, and belongs to the third.
    if (decade - decade.round()).abs() < 1e-9 { decade.round() } else { decade }
}

fn power(decade: f64) -> f64 {
    10_f64.powf(decade)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn linear_ticks_are_round_and_reach_the_maximum() {
        let cases = [
            (100.0, vec!["0", "20", "40", "60", "80", "100"]),
            (101.0, vec!["0", "50", "100", "150"]),
            (0.9, vec!["0", "0.2", "0.4", "0.6", "0.8", "1"]),
            (7.0, vec!["0", "2", "4", "6", "8"]),
            (1_200_000.0, vec!["0", "500,000", "1,000,000", "1,500,000"]),
            (0.003, vec!["0", "0.001", "0.002", "0.003"]),
            (0.0, vec!["0", "0.2", "0.4", "0.6", "0.8", "1"]),
            (-5.0, vec!["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ];
        for (max, expected) in cases {
            assert_eq!(labels(&Axis::linear(max, 5)), expected, "{max}");
        }
    }

    #[test]
    fn logarithmic_ticks_are_powers_of_ten() {
        let of = |min, max| Axis::logarithmic(min, max, latency_label);
        assert_eq!(labels(&of(150.0, 900_000.0)), ["100 us", "1 ms", "10 ms", "100 ms", "1 s"]);
        assert_eq!(labels(&of(150.0, 190.0)), ["100 us", "200 us"]);
        assert_eq!(labels(&of(1_000.0, 5_000.0)), ["1 ms", "2 ms", "5 ms"]);
        assert_eq!(labels(&of(1e6, 1e6)), ["1 s", "2 s"]);
        assert!(of(0.0, 1e300).ticks.len() <= 10);
        assert!((of(100.0, 10_000.0).part(1_000.0) - 0.5).abs() < 1e-9);
        assert_eq!(of(100.0, 10_000.0).part(0.0), 0.0);
        assert_eq!(of(100.0, 10_000.0).part(1e9), 1.0);
    }

    #[test]
    fn values_that_leap_get_a_logarithmic_axis() {
        let of = |values: &[f64]| {
            let values: Vec<_> = values.iter().map(|value| (*value, short(*value))).collect();
            Axis::of_values(&values)
        };
        let leaps = of(&[1.0, 4.0, 16.0]);
        assert!((leaps.part(4.0) - 0.5).abs() < 1e-9);
        let steps = of(&[1.0, 2.0, 3.0]);
        assert!((steps.part(2.0) - 0.5).abs() < 1e-9);
        assert!(of(&[0.0, 5.0, 100.0]).part(5.0) < 0.1);
        assert_eq!(labels(&leaps), ["1", "4", "16"]);
        assert!((of(&[7.0]).part(7.0) - 0.5).abs() < 1e-9);
        assert!(of(&[]).part(7.0).is_finite());
    }

    proptest! {
        #[test]
        fn every_value_stands_on_its_axis(max in 0.0..1e12_f64, part in 0.0..1.0_f64) {
            for axis in [Axis::linear(max, 5), Axis::logarithmic(max * part, max, latency_label)] {
                let (at, end) = (axis.part(max * part), axis.part(max));
                prop_assert!((0.0..=1.0).contains(&at) && at <= end + 1e-9);
                prop_assert!((2..=25).contains(&axis.ticks.len()));
                let mut ticks = axis.ticks.iter().map(|(tick, _)| axis.part(*tick));
                prop_assert!(ticks.all(|at| (0.0..=1.0).contains(&at)));
                let last = axis.ticks.last().expect("a tick").0;
                prop_assert!(axis.part(last) > 0.6);
            }
        }
    }
}
