//! Statistics of a few rounds: summaries, and differences with their confidence.

use std::collections::BTreeMap;

/// Fewer rounds than this on either side tell no difference.
pub const ROUNDS_MIN: usize = 3;

/// A value and where it is from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation<'a> {
    /// The run.
    pub run: &'a str,
    /// The round in it.
    pub round: u32,
    /// The value of a figure.
    pub value: f64,
}

/// Some values in short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// How many they are; at least one.
    pub rounds: usize,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// A quarter of the way from the least to the greatest by rank, interpolated.
    pub lower_quartile: f64,
    /// Three quarters of the way.
    pub upper_quartile: f64,
}

impl Summary {
    /// Of all these values; none of no values. They are finite: JSON has no others.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self {
            rounds: sorted.len(),
            median: quantile(&sorted, 1, 2),
            min,
            max,
            lower_quartile: quantile(&sorted, 1, 4),
            upper_quartile: quantile(&sorted, 3, 4),
        })
    }

    /// From the least to the greatest, by the median; none of one round, or of a median of 0.
    #[must_use]
    pub fn relative_spread(&self) -> Option<f64> {
        let spread = (self.max - self.min) / self.median.abs();
        (self.rounds > 1 && spread.is_finite()).then_some(spread)
    }
}

/// Whether two sets of rounds differ, and which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// One of them has fewer than [`ROUNDS_MIN`] rounds.
    TooFewRounds,
    /// The interval has "no difference" in it.
    Unclear,
    /// The second is higher: all of the interval is above "no difference".
    Higher,
    /// The second is lower.
    Lower,
}

/// One set of rounds by another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// How many times the first the second is: the geometric mean of the ratios. None if a value
    /// is 0 or below.
    pub ratio: Option<f64>,
    /// 95 % confidence interval of the ratio. None without a ratio, or with one round.
    pub interval: Option<(f64, f64)>,
    /// Whether that is more than chance.
    pub evidence: Evidence,
    /// The rounds that were compared, in the first and in the second.
    pub rounds: (usize, usize),
    /// Each round of the one was compared with the same round of the other.
    pub paired: bool,
}

impl Comparison {
    /// Compares `other` with `base`.
    ///
    /// If all rounds of the one are also rounds of the other, in the same runs, they are compared
    /// round by round (Student's t on the logarithms of the ratios), so that what slows a whole
    /// round down does not count. Else the means of the logarithms are compared by Welch's t.
    /// Where there is a 0 the differences are taken in place of the ratios. None if either has no
    /// values.
    #[must_use]
    pub fn of(base: &[Observation<'_>], other: &[Observation<'_>]) -> Option<Self> {
        if base.is_empty() || other.is_empty() {
            return None;
        }
        let all = || base.iter().chain(other).map(|one| one.value);
        let positive = all().all(|value| value > 0.0);
        let scale = |value: f64| if positive { value.ln() } else { value };
        let pairs = pairs(base, other);
        let paired = pairs.len() == base.len().min(other.len());
        let (rounds, estimate) = if paired {
            let gains: Vec<_> = pairs.iter().map(|(a, b)| scale(*b) - scale(*a)).collect();
            ((gains.len(), gains.len()), paired_t(&gains))
        } else {
            let scaled = |of: &[Observation<'_>]| -> Vec<f64> {
                of.iter().map(|one| scale(one.value)).collect()
            };
            ((base.len(), other.len()), welch(&scaled(base), &scaled(other)))
        };
        let bounds = estimate.interval();
        let evidence = match bounds {
            _ if rounds.0.min(rounds.1) < ROUNDS_MIN => Evidence::TooFewRounds,
            Some((low, _)) if low > 0.0 => Evidence::Higher,
            Some((_, high)) if high < 0.0 => Evidence::Lower,
            Some(_) | None => Evidence::Unclear,
        };
        Some(Self {
            ratio: positive.then(|| estimate.difference.exp()),
            interval: bounds.filter(|_| positive).map(|(low, high)| (low.exp(), high.exp())),
            evidence,
            rounds,
            paired,
        })
    }
}

/// A difference of means, how uncertain it is, and by how many values that is known.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    difference: f64,
    standard_error: f64,
    freedom: f64,
}

impl Estimate {
    /// 95 % confidence interval; none if there are too few values for one.
    fn interval(&self) -> Option<(f64, f64)> {
        let margin = t_quantile(self.freedom)? * self.standard_error;
        // The rounding error of logarithms of equal values is no difference.
        let rounding = 1e-12;
        let difference = if self.difference.abs() < rounding { 0.0 } else { self.difference };
        Some((difference - margin, difference + margin))
    }
}

/// The values of the rounds that both have; none if a round has two values.
fn pairs(base: &[Observation<'_>], other: &[Observation<'_>]) -> Vec<(f64, f64)> {
    let by_round = |of: &[Observation<'_>]| -> BTreeMap<(String, u32), f64> {
        of.iter().map(|one| ((one.run.to_owned(), one.round), one.value)).collect()
    };
    let (first, second) = (by_round(base), by_round(other));
    if first.len() < base.len() || second.len() < other.len() {
        return Vec::new();
    }
    first.iter().filter_map(|(round, a)| second.get(round).map(|b| (*a, *b))).collect()
}

fn paired_t(differences: &[f64]) -> Estimate {
    let (mean, variance) = moments(differences);
    let n = as_f64(differences.len());
    Estimate { difference: mean, standard_error: (variance / n).sqrt(), freedom: n - 1.0 }
}

/// Welch's t for unequal variances, with the degrees of freedom by Satterthwaite.
fn welch(base: &[f64], other: &[f64]) -> Estimate {
    let ((mean_a, variance_a), (mean_b, variance_b)) = (moments(base), moments(other));
    let (n_a, n_b) = (as_f64(base.len()), as_f64(other.len()));
    let (a, b) = (variance_a / n_a, variance_b / n_b);
    let least = (n_a - 1.0).min(n_b - 1.0);
    let freedom = (a + b).powi(2) / (a.powi(2) / (n_a - 1.0) + b.powi(2) / (n_b - 1.0));
    Estimate {
        difference: mean_b - mean_a,
        standard_error: (a + b).sqrt(),
        // Values without any variance leave 0 by 0; one value leaves nothing to know it by.
        freedom: if freedom.is_finite() && least > 0.0 { freedom.max(least) } else { least },
    }
}

/// Mean and variance of a sample; the variance of one value is 0.
fn moments(values: &[f64]) -> (f64, f64) {
    let n = as_f64(values.len());
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, if values.len() > 1 { squares / (n - 1.0) } else { 0.0 })
}

/// The quantile `part`/`parts` of sorted values, interpolated between ranks.
fn quantile(sorted: &[f64], part: usize, parts: usize) -> f64 {
    let steps = (sorted.len() - 1) * part;
    let (rank, rest) = (steps / parts, steps % parts);
    let low = sorted[rank];
    let high = sorted[(rank + 1).min(sorted.len() - 1)];
    if rest == 0 { low } else { low + (high - low) * (as_f64(rest) / as_f64(parts)) }
}

/// Upper 2.5 % point of Student's t: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
const T_QUANTILES: [(f64, f64); 34] = [
    (1.0, 12.706),
    (2.0, 4.303),
    (3.0, 3.182),
    (4.0, 2.776),
    (5.0, 2.571),
    (6.0, 2.447),
    (7.0, 2.365),
    (8.0, 2.306),
    (9.0, 2.262),
    (10.0, 2.228),
    (11.0, 2.201),
    (12.0, 2.179),
    (13.0, 2.160),
    (14.0, 2.145),
    (15.0, 2.131),
    (16.0, 2.120),
    (17.0, 2.110),
    (18.0, 2.101),
    (19.0, 2.093),
    (20.0, 2.086),
    (21.0, 2.080),
    (22.0, 2.074),
    (23.0, 2.069),
    (24.0, 2.064),
    (25.0, 2.060),
    (26.0, 2.056),
    (27.0, 2.052),
    (28.0, 2.048),
    (29.0, 2.045),
    (30.0, 2.042),
    (40.0, 2.021),
    (60.0, 2.000),
    (120.0, 1.980),
    (f64::INFINITY, 1.960),
];

/// Student's t for two-sided 95 %; none below one degree of freedom.
///
/// Between the rows it is interpolated over the reciprocal. The quantile is convex in that, so
/// what comes out is a little too wide and never too narrow.
fn t_quantile(freedom: f64) -> Option<f64> {
    if freedom < 1.0 {
        return None;
    }
    let above = T_QUANTILES.iter().position(|(rows, _)| *rows >= freedom)?;
    let (high, t_high) = T_QUANTILES[above];
    if high == freedom {
        return Some(t_high);
    }
    let (low, t_low) = T_QUANTILES[above - 1];
    let part = (freedom.recip() - high.recip()) / (low.recip() - high.recip());
    Some(t_high + (t_low - t_high) * part)
}

#[expect(clippy::cast_precision_loss, reason = "counts of rounds")]
fn as_f64(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Cushny and Peebles' hours of sleep, as in Student (1908).
    const SLEEP_A: [f64; 10] = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
    const SLEEP_B: [f64; 10] = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];

    fn rounds<'a>(run: &'a str, values: &[f64]) -> Vec<Observation<'a>> {
        (1..).zip(values).map(|(round, value)| Observation { run, round, value: *value }).collect()
    }

    fn near(value: f64, expected: f64, within: f64) {
        assert!((value - expected).abs() <= within, "{value} is not {expected}");
    }

    #[test]
    fn summaries_are_those_of_the_textbook() {
        let data = [43.0, 6.0, 7.0, 15.0, 47.0, 36.0, 39.0, 49.0, 40.0, 41.0, 42.0];
        let summary = Summary::of(&data).expect("values");
        assert_eq!(
            summary,
            Summary {
                rounds: 11,
                median: 40.0,
                min: 6.0,
                max: 49.0,
                lower_quartile: 25.5,
                upper_quartile: 42.5
            }
        );
        near(summary.relative_spread().expect("a spread"), 43.0 / 40.0, 1e-12);
        assert_eq!(Summary::of(&[4.0, 1.0]).map(|two| two.median), Some(2.5));
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[0.0, 0.0]).and_then(|zero| zero.relative_spread()), None);
        assert_eq!(Summary::of(&[7.0]).and_then(|one| one.relative_spread()), None);
    }

    /// R: `t.test(extra ~ group, data = sleep, paired = TRUE)` gives -4.0621, 9 degrees, and
    /// -2.4598858 to -0.7001142; unpaired -1.8608, 17.776, and -3.3654832 to 0.2054832.
    #[test]
    fn the_example_of_student_is_reproduced() {
        let differences: Vec<_> = SLEEP_A.iter().zip(SLEEP_B).map(|(a, b)| b - a).collect();
        let paired = paired_t(&differences);
        near(paired.difference / paired.standard_error, 4.0621, 1e-4);
        near(paired.freedom, 9.0, 0.0);
        let (low, high) = paired.interval().expect("ten values");
        near(low, 0.700_114, 1e-3);
        near(high, 2.459_886, 1e-3);

        let unpaired = welch(&SLEEP_A, &SLEEP_B);
        near(unpaired.difference / unpaired.standard_error, 1.8608, 1e-4);
        near(unpaired.freedom, 17.776, 1e-3);
        let (low, high) = unpaired.interval().expect("ten values");
        near(low, -0.205_483, 2e-3);
        near(high, 3.365_483, 2e-3);
    }

    /// The exact ones are from integrating the density numerically.
    #[test]
    fn quantiles_between_rows_are_a_little_wide() {
        let exact = [(2.5, 3.5747), (17.776, 2.1028), (35.0, 2.0301), (90.0, 1.9867)];
        for (freedom, t) in exact {
            let ours = t_quantile(freedom).expect("enough");
            assert!(ours >= t - 1e-3 && ours < t * 1.03, "{freedom}: {ours}, not {t}");
        }
        assert_eq!(t_quantile(4.0), Some(2.776));
        assert_eq!(t_quantile(0.5), None);
        assert_eq!(t_quantile(f64::INFINITY), Some(1.960));
        near(t_quantile(1e9).expect("enough"), 1.960, 1e-6);
    }

    #[test]
    fn the_same_rounds_are_compared_one_by_one() {
        let (slow, quick) = ([100.0, 200.0, 400.0], [110.0, 222.0, 436.0]);
        let one = Comparison::of(&rounds("r", &slow), &rounds("r", &quick)).expect("values");
        assert!(one.paired);
        assert_eq!(one.evidence, Evidence::Higher);
        near(one.ratio.expect("positive"), (1.1_f64 * 1.11 * 1.09).cbrt(), 1e-12);
        let apart = Comparison::of(&rounds("r", &slow), &rounds("s", &quick)).expect("values");
        assert!(!apart.paired);
        assert_eq!(apart.evidence, Evidence::Unclear);
        near(apart.ratio.expect("positive"), one.ratio.expect("positive"), 1e-12);
    }

    #[test]
    fn two_rounds_tell_nothing_and_one_has_no_interval() {
        let two = Comparison::of(&rounds("r", &[1.0, 1.0]), &rounds("r", &[9.0, 9.0]));
        assert_eq!(two.map(|two| two.evidence), Some(Evidence::TooFewRounds));
        let one = Comparison::of(&rounds("r", &[1.0]), &rounds("s", &[9.0])).expect("values");
        assert_eq!((one.evidence, one.interval), (Evidence::TooFewRounds, None));
        let uneven = Comparison::of(&rounds("r", &[1.0; 9]), &rounds("s", &[9.0; 2]));
        assert_eq!(uneven.map(|two| two.evidence), Some(Evidence::TooFewRounds));
        assert_eq!(Comparison::of(&[], &rounds("r", &[1.0])), None);
    }

    #[test]
    fn values_without_variance_and_zeros_are_compared() {
        let of = |a: &[f64], b: &[f64]| {
            Comparison::of(&rounds("r", a), &rounds("s", b)).expect("values")
        };
        assert_eq!(of(&[5.0; 3], &[5.0; 3]).evidence, Evidence::Unclear);
        assert_eq!(of(&[0.1, 0.1, 0.1], &[0.1; 4]).evidence, Evidence::Unclear);
        assert_eq!(of(&[5.0; 3], &[6.0; 3]).evidence, Evidence::Higher);
        assert_eq!(of(&[0.0; 3], &[0.0; 3]).evidence, Evidence::Unclear);
        let none = of(&[0.0; 3], &[900.0, 890.0, 910.0]);
        assert_eq!((none.ratio, none.evidence), (None, Evidence::Higher));
        assert_eq!(of(&[0.0; 3], &[0.0, 0.0, 900.0]).evidence, Evidence::Unclear);
    }

    fn values() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(1e-3..1e6_f64, 1..12)
    }

    proptest! {
        #[test]
        fn quartiles_are_in_order(values in values()) {
            let all = Summary::of(&values).expect("values");
            let ranks = [all.min, all.lower_quartile, all.median, all.upper_quartile, all.max];
            prop_assert!(ranks.is_sorted());
            let below = values.iter().filter(|value| **value <= all.median).count();
            prop_assert!(2 * below >= values.len());
        }

        #[test]
        fn turning_it_round_turns_the_ratio_round(a in values(), b in values(), same: bool) {
            let other_run = if same { "r" } else { "s" };
            let there = Comparison::of(&rounds("r", &a), &rounds(other_run, &b)).expect("values");
            let back = Comparison::of(&rounds(other_run, &b), &rounds("r", &a)).expect("values");
            let product = there.ratio.expect("positive") * back.ratio.expect("positive");
            prop_assert!((product - 1.0).abs() < 1e-9);
            let turned = match there.evidence {
                Evidence::Higher => Evidence::Lower,
                Evidence::Lower => Evidence::Higher,
                same => same,
            };
            prop_assert_eq!(turned, back.evidence);
            if let Some((low, high)) = there.interval {
                let ratio = there.ratio.expect("positive");
                prop_assert!(low <= ratio * (1.0 + 1e-9) && ratio <= high * (1.0 + 1e-9));
            }
        }

        #[test]
        fn a_known_factor_is_found(a in prop::collection::vec(1.0..1e6_f64, 3..12),
                                   factor in 1.01..100.0_f64) {
            let b: Vec<_> = a.iter().map(|value| value * factor).collect();
            let one = Comparison::of(&rounds("r", &a), &rounds("r", &b)).expect("values");
            prop_assert!((one.ratio.expect("positive") / factor - 1.0).abs() < 1e-9);
            prop_assert_eq!(one.evidence, Evidence::Higher);
        }
    }
}
