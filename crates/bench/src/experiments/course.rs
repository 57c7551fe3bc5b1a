//! Figures of the steadiness of a measurement, from its seconds.

use std::collections::BTreeMap;

use crate::figure::Figure;
use crate::numeral::mib;
use crate::record::Second;

/// Seconds that are shorter say nothing about a rate.
const WHOLE_SECS: f64 = 0.999;

/// The slowest whole second, and the rate of the last quarter of them by that of the first; what
/// there are too few of is left out.
pub(super) fn note(seconds: &[Second], figures: &mut BTreeMap<Figure, f64>) {
    let rates: Vec<f64> =
        seconds.iter().filter(|s| s.secs >= WHOLE_SECS).map(|s| mib(s.bytes) / s.secs).collect();
    if let Some(lowest) = rates.iter().copied().reduce(f64::min) {
        figures.insert(Figure::LowestMibPerSec, lowest);
    }
    let quarter = rates.len() / 4;
    if quarter > 0 {
        let first: f64 = rates[..quarter].iter().sum();
        let last: f64 = rates[rates.len() - quarter..].iter().sum();
        if first > 0.0 {
            figures.insert(Figure::LastToFirst, last / first);
        }
    }
}

/// Seconds for so many bytes as seconds for each GiB.
pub(super) fn secs_per_gib(secs: f64, bytes: u64) -> f64 {
    secs * 1024.0 / mib(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(mib_by_second: &[u64]) -> BTreeMap<Figure, f64> {
        let second = |(at, mib): (u32, &u64)| Second {
            at_secs: f64::from(at),
            secs: 1.0,
            bytes: mib << 20,
            ..Second::default()
        };
        let mut seconds: Vec<_> = (1..).zip(mib_by_second).map(second).collect();
        seconds.push(Second { secs: 0.5, ..Second::default() });
        let mut figures = BTreeMap::new();
        note(&seconds, &mut figures);
        figures
    }

    #[test]
    fn a_sagging_run_differs_from_a_flat_one() {
        let flat = noted(&[100; 8]);
        assert_eq!(flat[&Figure::LastToFirst], 1.0);
        assert_eq!(flat[&Figure::LowestMibPerSec], 100.0);
        let sagging = noted(&[200, 200, 100, 90, 80, 100, 120, 80]);
        assert_eq!(sagging[&Figure::LastToFirst], 0.5);
        assert_eq!(sagging[&Figure::LowestMibPerSec], 80.0);
    }

    #[test]
    fn the_rest_of_a_second_is_no_second() {
        assert!(noted(&[]).is_empty());
        let short = noted(&[100, 50, 30]);
        assert_eq!(short.get(&Figure::LastToFirst), None);
        assert_eq!(short[&Figure::LowestMibPerSec], 30.0);
    }
}
