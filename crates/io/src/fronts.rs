//! Detects that a file is being filled, by however many writers that take turns in it.
//!
//! A writer among many leaves out all that the others write, and when they drift apart none of them
//! is a stream ([`Streams`](crate::Streams)). Together they still go through the file from one end
//! to the other, in one or a few *fronts*, and write about each byte once.

use crate::byte_range::ByteRange;

/// Fronts of one file.
const FRONTS_MAX: usize = 16;
/// How far from a front its writers are, in bytes.
const APART_BYTES_MAX: u64 = 16 << 20;
/// A file is judged by about so many of the bytes that were written last: some times as many as
/// clients have in flight.
const JUDGED_BYTES_MAX: u64 = 64 << 20;
/// Of so many parts of what the fronts pass, the writes cover one at least. Each front of writers
/// that fill the file together passes all of it; of random writes of 64 KiB they cover a 30th.
const PASSED_PARTS_MAX: u64 = 16;
/// Of so many parts of the writes, one at most lies far from all fronts.
const SCATTERED_PARTS_MIN: u64 = 4;
/// Writes that cover less than so many quarters of what the fronts pass leave gaps.
const COVERED_QUARTERS_MIN: u64 = 3;
/// Of the bytes of one writer less than so many quarters begin elsewhere than at the end of a
/// front, as long as few writes change places on the way.
const SKIPPED_QUARTERS_MIN: u64 = 3;

/// Where a file is being written, and how densely.
#[derive(Debug, Default)]
pub struct Fronts {
    /// The end of the furthest write of each; the one used last is the last.
    ends: Vec<u64>,
    /// Of the latest writes: their bytes, those of them that began a front, those that began
    /// elsewhere than at the end of one, and the bytes that the fronts passed.
    written_bytes: u64,
    scattered_bytes: u64,
    skipped_bytes: u64,
    passed_bytes: u64,
}

impl Fronts {
    /// Notes a write.
    pub fn note(&mut self, range: ByteRange) {
        let distance = |end: u64| range.offset().abs_diff(end);
        let near = (0..self.ends.len())
            .filter(|&index| distance(self.ends[index]) <= APART_BYTES_MAX)
            .min_by_key(|&index| distance(self.ends[index]));
        let before = if let Some(index) = near {
            self.ends.remove(index)
        } else {
            self.scattered_bytes += range.len();
            if self.ends.len() == FRONTS_MAX {
                self.ends.remove(0);
            }
            range.offset()
        };
        self.ends.push(before.max(range.end()));
        if range.offset() != before {
            self.skipped_bytes += range.len();
        }
        self.passed_bytes += range.end().saturating_sub(before);
        self.written_bytes += range.len();
        let judged = self.written_bytes.max(self.passed_bytes / PASSED_PARTS_MAX);
        if judged > JUDGED_BYTES_MAX {
            self.written_bytes /= 2;
            self.scattered_bytes /= 2;
            self.skipped_bytes /= 2;
            self.passed_bytes /= 2;
        }
    }

    /// The bytes of the latest writes if these fill the file; 0 if they are scattered, or write the
    /// same bytes again and again.
    #[must_use]
    pub fn filled_bytes(&self) -> u64 {
        let fills = self.written_bytes >= self.passed_bytes / PASSED_PARTS_MAX
            && self.written_bytes / 2 <= self.passed_bytes
            && self.scattered_bytes <= self.written_bytes / SCATTERED_PARTS_MIN;
        if fills { self.written_bytes } else { 0 }
    }

    /// Whether most of the latest writes leave a gap or fill one, as those of several writers do
    /// that are apart from each other.
    #[must_use]
    pub fn skip(&self) -> bool {
        self.skipped_bytes > self.written_bytes / 4 * SKIPPED_QUARTERS_MIN
    }

    /// Whether the latest writes leave out part of the file, as those of writers do that are far
    /// apart.
    #[must_use]
    pub fn have_gaps(&self) -> bool {
        self.written_bytes < self.passed_bytes / 4 * COVERED_QUARTERS_MIN
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const RECORD: u64 = 47_008;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange::new(offset, len).unwrap()
    }

    /// Writers that take turns, record by record. In each step one of them, which `next` chooses,
    /// writes its next record, unless it is further ahead of the last than `drift_max` bytes.
    fn take_turns(
        writers: u64,
        drift_max: u64,
        steps: u64,
        mut next: impl FnMut(u64) -> u64,
    ) -> Fronts {
        let mut fronts = Fronts::default();
        let mut turns = vec![0; usize::try_from(writers).unwrap()];
        for step in 0..steps {
            let last = *turns.iter().min().unwrap();
            let mut writer = usize::try_from(next(step) % writers).unwrap();
            while (turns[writer] - last) * writers * RECORD > drift_max {
                writer = (writer + 1) % turns.len();
            }
            fronts.note(range((turns[writer] * writers + writer as u64) * RECORD, RECORD));
            turns[writer] += 1;
        }
        fronts
    }

    /// Numbers that look random, the same in each run.
    fn scramble(step: u64) -> u64 {
        (step + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) % 1_000_003
    }

    #[test]
    fn one_writer_fills_a_file_from_its_beginning() {
        let mut fronts = Fronts::default();
        for index in 0..1000 {
            fronts.note(range(index * RECORD, RECORD));
            assert_eq!(fronts.filled_bytes() > 0, index > 2, "{index}");
            assert!(!fronts.have_gaps() && !fronts.skip());
        }
        assert!(fronts.filled_bytes() >= 8 * MIB);
    }

    #[test]
    fn writers_that_are_apart_leave_gaps_and_fill_them() {
        let random = |writers, drift_max| take_turns(writers, drift_max, 6000, scramble);
        assert!(!take_turns(4, 0, 6000, |step| step).skip(), "one record after the other");
        assert!(random(2, 4 * MIB).skip());
        assert!(random(16, 100 * MIB).skip());
    }

    #[test]
    fn random_writes_fill_nothing() {
        for (file, len) in
            [(4 * MIB, 4096), (128 * MIB, 4096), (1024 * MIB, 4096), (512 * MIB, 65_536)]
        {
            let mut fronts = Fronts::default();
            let mut filled = 0;
            for step in 0..20_000 {
                fronts.note(range(scramble(step) % (file / len) * len, len));
                filled += u64::from(fronts.filled_bytes() >= 8 * MIB);
            }
            assert!(filled < 1000, "{filled} in {file} bytes by {len}");
        }
    }

    #[test]
    fn writes_of_the_same_bytes_fill_nothing() {
        let mut fronts = Fronts::default();
        for step in 0..10_000 {
            fronts.note(range(step % 100 * 65_536, 65_536));
        }
        assert_eq!(fronts.filled_bytes(), 0);
    }

    #[test]
    fn a_second_pass_fills_as_the_first() {
        let mut fronts = Fronts::default();
        for step in 0..4000 {
            fronts.note(range(step % 2000 * RECORD, RECORD));
        }
        assert!(fronts.filled_bytes() >= 8 * MIB && !fronts.have_gaps());
    }

    #[test]
    fn a_writer_that_leaves_out_most_leaves_gaps() {
        let mut fronts = Fronts::default();
        for step in 0..4000 {
            fronts.note(range(step * 4 * RECORD, RECORD));
        }
        assert!(fronts.filled_bytes() >= 8 * MIB && fronts.have_gaps());
    }

    proptest! {
        /// However many they are, and in whatever order they come, as long as all are near one
        /// front: the first is less than two records of each further than the drift.
        #[test]
        fn writers_that_take_turns_fill_a_file(
            writers in 1..100u64,
            drift_mib in 0..6u64,
            seed in any::<u64>(),
        ) {
            let next = |step: u64| scramble(step ^ seed);
            let fronts = take_turns(writers, drift_mib * MIB, 6000, next);
            prop_assert!(fronts.filled_bytes() >= 8 * MIB, "{:?}", fronts);
            prop_assert!(!fronts.have_gaps(), "{:?}", fronts);
        }

        /// They may be far apart, but then they are few.
        #[test]
        fn few_writers_fill_a_file_though_they_are_far_apart(
            writers in 2..12u64,
            drift_mib in 0..500u64,
            seed in any::<u64>(),
        ) {
            let next = |step: u64| scramble(step ^ seed);
            let fronts = take_turns(writers, drift_mib * MIB, 6000, next);
            prop_assert!(fronts.filled_bytes() >= 8 * MIB, "{:?}", fronts);
        }

        #[test]
        fn any_writes_are_counted_without_overflow(
            writes in prop::collection::vec((any::<u64>(), 0..1u64 << 20), 0..200),
        ) {
            let mut fronts = Fronts::default();
            for (offset, len) in writes {
                if let Some(range) = ByteRange::new(offset >> 1, len) {
                    fronts.note(range);
                }
            }
            prop_assert!(fronts.filled_bytes() <= 2 * JUDGED_BYTES_MAX);
        }
    }
}
