//! Counters that threads add to without sharing cache lines.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Stripes of each counter: threads up to this number add to memory of their own.
pub(crate) const STRIPES: usize = 8;

thread_local! {
    /// The stripe of this thread; `STRIPES` until it is assigned.
    static STRIPE: Cell<usize> = const { Cell::new(STRIPES) };
}

/// `N` counters. Adding costs one atomic addition, reading a sum over the stripes.
#[derive(Debug)]
pub(super) struct Striped<const N: usize>(Box<[Stripe<N>]>);

/// 128 bytes: processors fetch cache lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Stripe<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Striped<N> {
    fn default() -> Self {
        let stripe = || Stripe([const { AtomicU64::new(0) }; N]);
        Self((0..STRIPES).map(|_| stripe()).collect())
    }
}

impl<const N: usize> Striped<N> {
    pub(super) fn add(&self, index: usize, n: u64) {
        self.0[own_stripe()].0[index].fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn value(&self, index: usize) -> u64 {
        self.0.iter().map(|stripe| stripe.0[index].load(Ordering::Relaxed)).sum()
    }
}

/// Numbers of the next `count` stripes, for [`assign_stripe`]. No thread that is given none takes
/// one of them before all others are taken.
pub(crate) fn next_stripes(count: usize) -> Range<usize> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    first..first.saturating_add(count)
}

/// Gives this thread the stripe of a number. Threads with [`STRIPES`] consecutive numbers share
/// none.
pub(crate) fn assign_stripe(number: usize) {
    STRIPE.set(number % STRIPES);
}

/// The stripe of this thread; the next one if it was given none.
pub(crate) fn own_stripe() -> usize {
    if STRIPE.get() == STRIPES {
        assign_stripe(next_stripes(1).start);
    }
    STRIPE.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_to_one_value() {
        let counters = Striped::<3>::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * STRIPES {
                scope.spawn(|| (0..1000).for_each(|_| counters.add(1, 2)));
            }
        });
        let values = [0, 1, 2].map(|index| counters.value(index));
        assert_eq!(values, [0, 2 * STRIPES as u64 * 2000, 0]);
    }
}
