//! Random choices that a seed repeats.

use std::ops::Range;

/// SplitMix64: small, and good enough to choose offsets with.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another sequence for part `number` of a test, so that threads do not share one.
    pub(crate) fn part(seed: u64, number: u64) -> Self {
        Self(scramble(seed ^ scramble(number)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scramble(self.0)
    }

    /// One of `range`, which is not empty.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// An index below `len`, which is not 0.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.within(0..len as u64)).unwrap()
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// True in so many of a hundred cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }
}

/// The output function of SplitMix64; also a hash of one number.
pub(crate) fn scramble(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
