//! Times, by their length.

use std::sync::atomic::{AtomicU64, Ordering};

/// The longest time of each bucket, in microseconds; the last bucket has no bound.
pub(crate) const BOUNDS_US: [u64; 16] = [
    20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    2_000_000, 10_000_000,
];

/// Of each power of two in nanoseconds, the bounds that are less. At most one bound lies between
/// two powers, so one comparison finds the bucket of a time.
const BOUNDS_BELOW: [usize; 64] = {
    let mut below = [0; 64];
    let mut power = 0;
    while power < 64 {
        let mut at = 0;
        while at < BOUNDS_US.len() && BOUNDS_US[at] * 1000 < 1 << power {
            at += 1;
        }
        below[power] = at;
        power += 1;
    }
    below
};

/// The bucket of a time.
fn bucket_of(nanoseconds: u64) -> usize {
    let below = BOUNDS_BELOW[nanoseconds.checked_ilog2().unwrap_or(0) as usize];
    below + usize::from(BOUNDS_US.get(below).is_some_and(|bound| bound * 1000 < nanoseconds))
}

/// Counts times by bucket.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    nanoseconds: AtomicU64,
}

/// A copy of the counts of a [`Histogram`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HistogramValue {
    /// In the order of [`BOUNDS_US`], and those beyond the last. Not cumulative.
    pub(crate) buckets: [u64; BOUNDS_US.len() + 1],
    /// All times together.
    pub(crate) nanoseconds: u64,
}

impl Histogram {
    pub(crate) fn observe(&self, nanoseconds: u64) {
        self.buckets[bucket_of(nanoseconds)].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> HistogramValue {
        HistogramValue {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            nanoseconds: self.nanoseconds.load(Ordering::Relaxed),
        }
    }

    /// Adds what another has counted.
    pub(super) fn absorb(&self, other: &HistogramValue) {
        for (bucket, n) in self.buckets.iter().zip(other.buckets) {
            bucket.fetch_add(n, Ordering::Relaxed);
        }
        self.nanoseconds.fetch_add(other.nanoseconds, Ordering::Relaxed);
    }
}

impl HistogramValue {
    /// The number of times.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(bucket, n)| *bucket += n);
        self.nanoseconds += other.nanoseconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_whose_bound_it_does_not_exceed() {
        let around = |bound: u64| [bound * 1000 - 1, bound * 1000, bound * 1000 + 1];
        let powers = (0..64).map(|power| 1 << power);
        for nanoseconds in BOUNDS_US.into_iter().flat_map(around).chain(powers).chain([0, u64::MAX])
        {
            let bucket = BOUNDS_US.iter().filter(|bound| *bound * 1000 < nanoseconds).count();
            let histogram = Histogram::default();
            histogram.observe(nanoseconds);
            let value = histogram.value();
            assert_eq!((value.buckets[bucket], value.count()), (1, 1), "{nanoseconds}");
        }
        let histogram = Histogram::default();
        histogram.observe(1500);
        histogram.observe(500);
        assert_eq!(histogram.value().nanoseconds, 2000);
    }
}
