//! Runs a test under the schedulers of shuttle.

use std::env;

use shuttle::rand::{RngCore, thread_rng};

/// Runs a test this many times under each of the two schedulers that find different things: one
/// switches threads at every chance, the other seldom and at the places that matter.
/// `INTERLEAVINGS=n` in the environment multiplies the rounds.
///
/// # Panics
/// The test panicked, or all its threads waited for each other. The printed schedule repeats the
/// round when it is given to [`shuttle::replay`].
pub(crate) fn check(rounds: usize, test: impl Fn() + Clone + Send + Sync + 'static) {
    let factor = env::var("INTERLEAVINGS").map_or(1, |factor| factor.parse().expect("a number"));
    shuttle::check_random(test.clone(), rounds * factor);
    shuttle::check_pct(test, rounds * factor, PREEMPTIONS);
}

/// A random number, which a repeated round sees again.
pub(crate) fn below(bound: usize) -> usize {
    usize::try_from(thread_rng().next_u32()).expect("32 bits") % bound
}

/// How many switches, at the worst places, the second scheduler assumes a fault to need.
const PREEMPTIONS: usize = 3;
