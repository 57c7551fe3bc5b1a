//! Which of the WRITEs that wait for a file come first: a pure function.
//!
//! Writers that fill a file in turns drift apart, because nothing holds back the one that is ahead.
//! Then no WRITE that waits is beside another one in the file, and each is performed by itself. So
//! those that are ahead wait for those behind, while enough others wait: the writers stay together,
//! and most WRITEs become parts of longer ones.

use super::{BATCH_BYTES_MAX, BATCH_WRITES_MAX};

/// Fewer bytes are not worth a batch of their own, and a WRITE as long needs no neighbours: a local
/// program takes half as long for each byte with 188,032 at a time as with 47,008, and little less
/// with more.
const BATCH_BYTES_MIN: u64 = 256 * 1024;
/// WRITEs further ahead are of writers that fill another part of the file, and wait for none: some
/// times as far as clients that keep together have WRITEs in flight.
const AHEAD_BYTES_MAX: u64 = 64 << 20;
/// At most so many batches pass a WRITE because it is ahead: some milliseconds of work.
const PASSES_MAX: u8 = 16;

/// A WRITE that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// Where it begins and ends in the file.
    pub(super) offset: u64,
    pub(super) end: u64,
    /// Batches that it was left out of.
    pub(super) passes: u8,
}

impl Waiting {
    fn len(&self) -> u64 {
        self.end - self.offset
    }
}

/// Whether each of the WRITEs is left for a later batch. At least one is not.
///
/// Those that come first are the half that is behind in the file, within 2 MiB, and what is
/// adjacent to it; a run of 256 KiB without a gap from the first one on is enough. If two of the
/// WRITEs overlap, or too few are near the first one, they come in the order of arrival. Of those
/// that come first, what exceeds one batch is left, in the order of arrival.
pub(super) fn are_left(waiting: &[Waiting]) -> Vec<bool> {
    let behind = behind_in_file(waiting);
    let is_ahead = |write: &Waiting| {
        behind.is_some_and(|Behind { first, end }| {
            write.offset >= end && write.offset - first < AHEAD_BYTES_MAX
        }) && write.passes < PASSES_MAX
            && write.len() < BATCH_BYTES_MIN
    };
    let (mut writes, mut bytes, mut is_full) = (0, 0, false);
    let is_left = |write| {
        if is_ahead(write) {
            return true;
        }
        is_full |=
            writes > 0 && (writes == BATCH_WRITES_MAX || bytes + write.len() > BATCH_BYTES_MAX);
        (writes, bytes) = (writes + 1, bytes + write.len());
        is_full
    };
    waiting.iter().map(is_left).collect()
}

/// Where the WRITEs are that come first.
#[derive(Clone, Copy)]
struct Behind {
    first: u64,
    end: u64,
}

/// The WRITEs that are behind in the file; `None` if the order of arrival counts.
fn behind_in_file(waiting: &[Waiting]) -> Option<Behind> {
    let bytes: u64 = waiting.iter().map(Waiting::len).sum();
    if bytes < 2 * BATCH_BYTES_MIN {
        return None;
    }
    let mut ascending = waiting.to_vec();
    ascending.sort_unstable_by_key(|write| (write.offset, write.end));
    if ascending.windows(2).any(|pair| pair[0].end > pair[1].offset) {
        return None;
    }
    let (end, behind_bytes) = half(&ascending, bytes / 2);
    (behind_bytes >= BATCH_BYTES_MIN).then_some(Behind { first: ascending[0].offset, end })
}

/// Where the WRITEs end that are to come first, of all in the order of the file, and their bytes:
/// `enough` or more, if as many are near.
fn half(ascending: &[Waiting], enough: u64) -> (u64, u64) {
    let first = ascending[0].offset;
    let (mut end, mut bytes) = (first, 0);
    for write in ascending {
        let are_adjacent = end - first == bytes;
        let are_enough = bytes >= enough || bytes >= BATCH_BYTES_MIN && are_adjacent;
        if are_enough && write.offset > end || write.offset - first >= BATCH_BYTES_MAX {
            break;
        }
        bytes += write.len();
        end = write.end;
    }
    (end, bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const RECORD: u64 = 47_008;

    fn record(number: u64) -> Waiting {
        Waiting { offset: number * RECORD, end: (number + 1) * RECORD, passes: 0 }
    }

    /// The numbers of the records that come first.
    fn first(waiting: &[Waiting]) -> Vec<u64> {
        let are_left = are_left(waiting);
        let first = waiting.iter().zip(are_left).filter(|(_, is_left)| !is_left);
        first.map(|(write, _)| write.offset / RECORD).collect()
    }

    fn records(numbers: impl IntoIterator<Item = u64>) -> Vec<Waiting> {
        numbers.into_iter().map(record).collect()
    }

    #[test]
    fn the_half_that_is_behind_comes_first() {
        let odd = |range: std::ops::Range<u64>| range.map(|number| number * 2 + 1);
        assert_eq!(first(&records(odd(0..16))), odd(0..8).collect::<Vec<_>>());
        assert_eq!(first(&records(odd(0..16).rev())), odd(0..8).rev().collect::<Vec<_>>());
        // Those of another writer are between them, or ahead.
        let ahead = records(odd(0..8).chain(100..108));
        assert_eq!(first(&ahead), odd(0..8).collect::<Vec<_>>());
    }

    #[test]
    fn adjacent_writes_come_first_without_those_behind_a_gap() {
        assert_eq!(first(&records((0..6).chain(7..20))), (0..6).collect::<Vec<_>>());
        // Five are not enough, and nothing is cut in two.
        assert_eq!(first(&records((0..5).chain(6..20))).len(), 19);
    }

    #[test]
    fn few_writes_are_not_divided() {
        assert_eq!(first(&records(0..11)).len(), 11);
        let small =
            (0..64).map(|nth| Waiting { offset: nth << 20, end: (nth << 20) + 4096, passes: 0 });
        assert!(!are_left(&small.collect::<Vec<_>>()).contains(&true));
        // At random, none near another one.
        let apart = (0..32).map(|nth| record(nth * 50));
        assert_eq!(first(&apart.collect::<Vec<_>>()).len(), 32);
    }

    #[test]
    fn writes_of_another_part_of_the_file_wait_for_none() {
        let far = AHEAD_BYTES_MAX / RECORD + 1;
        let even = |range: std::ops::Range<u64>| range.map(|number| number * 2);
        let chosen = first(&records(even(0..16).chain(far..far + 8)));
        assert_eq!(chosen, even(0..12).chain(far..far + 8).collect::<Vec<_>>());
    }

    #[test]
    fn long_writes_wait_for_none() {
        let mut waiting = records(0..16);
        waiting.push(Waiting { offset: 1 << 20, end: (1 << 20) + BATCH_BYTES_MIN, passes: 0 });
        assert_eq!(are_left(&waiting).last(), Some(&false));
    }

    #[test]
    fn writers_that_have_drifted_apart_come_together() {
        // The next record of each of four writers, one of which is ahead by 20 MB.
        let mut next = [0, 1, 2, 403];
        let mut waiting: VecDeque<_> =
            next.iter().flat_map(|next| (0..8).map(move |nth| record(next + nth * 4))).collect();
        next.iter_mut().for_each(|next| *next += 32);
        for _ in 0..200 {
            let are_left = are_left(waiting.make_contiguous());
            let turn: Vec<_> = waiting.drain(..).zip(are_left).collect();
            for (mut write, is_left) in turn {
                if is_left {
                    write.passes += 1;
                    waiting.push_back(write);
                } else {
                    // Its writer sends the next one.
                    let writer = usize::try_from(write.offset / RECORD % 4).unwrap();
                    waiting.push_back(record(next[writer]));
                    next[writer] += 4;
                }
            }
        }
        let (behind, ahead) = (next.iter().min().unwrap(), next.iter().max().unwrap());
        assert!((ahead - behind) * RECORD < BATCH_BYTES_MAX, "{next:?}");
    }

    /// WRITEs in the order of arrival, none of which overlaps another.
    fn any_apart() -> impl Strategy<Value = Vec<Waiting>> {
        let places = prop::collection::btree_set(0..200u64, 1..100);
        let any_len = prop::sample::select(vec![0, 1, 4096, RECORD, RECORD, RECORD]);
        (places, prop::collection::vec((any_len, 0..PASSES_MAX), 100), 0..4u64)
            .prop_map(|(places, lens, base)| {
                let base = base * (i64::MAX as u64 / 4);
                let write = |(place, (len, passes)): (u64, (u64, u8))| {
                    let offset = base + place * RECORD;
                    Waiting { offset, end: offset + len, passes }
                };
                places.into_iter().zip(lens).map(write).collect::<Vec<_>>()
            })
            .prop_shuffle()
    }

    fn any_waiting() -> impl Strategy<Value = Vec<Waiting>> {
        let long = (0..200u64, 1..400_000u64).prop_map(|(place, len)| {
            let offset = place * RECORD;
            Waiting { offset, end: offset + len, passes: 0 }
        });
        (any_apart(), prop::collection::vec(long, 0..3)).prop_map(|(mut apart, long)| {
            apart.extend(long);
            apart
        })
    }

    proptest! {
        #[test]
        fn each_batch_is_bounded_and_has_enough(waiting in any_waiting()) {
            let are_left = are_left(&waiting);
            let bytes = |left: bool| -> u64 {
                let those = waiting.iter().zip(&are_left).filter(|(_, is_left)| **is_left == left);
                those.map(|(write, _)| write.len()).sum()
            };
            let writes = are_left.iter().filter(|is_left| !**is_left).count();
            prop_assert!((1..=BATCH_WRITES_MAX).contains(&writes));
            prop_assert!(bytes(false) <= BATCH_BYTES_MAX);
            let is_full = writes == BATCH_WRITES_MAX || bytes(false) >= BATCH_BYTES_MIN;
            prop_assert!(bytes(true) == 0 || is_full);
        }

        #[test]
        fn writes_that_overlap_come_in_the_order_of_arrival(waiting in any_waiting()) {
            let mut ascending = waiting.clone();
            ascending.sort_by_key(|write| write.offset);
            let overlap = ascending.windows(2).any(|pair| pair[0].end > pair[1].offset);
            let are_left = are_left(&waiting);
            let taken = are_left.iter().take_while(|is_left| !**is_left).count();
            prop_assert!(!overlap || are_left[taken..].iter().all(|is_left| *is_left));
        }

        #[test]
        fn no_write_waits_for_long(older in 0..12u64, newer in 12..60u64, ahead in 1..1000u64) {
            let ahead = Waiting { offset: (60 + ahead) * RECORD, end: (60 + ahead) * RECORD + 2, passes: 0 };
            let mut queue: Vec<_> = (0..older).map(record).chain([ahead]).collect();
            let waits = |queue: &[Waiting]| queue.iter().any(|write| write.len() == 2);
            let mut batches = 0;
            while waits(&queue) {
                // The same records again, as far as they were performed.
                let missing = (0..newer).filter(|number| !queue.iter().any(|write| write.offset == number * RECORD));
                let missing: Vec<_> = missing.map(record).collect();
                queue.extend(missing);
                let are_left = are_left(&queue);
                let left = queue.into_iter().zip(are_left).filter(|(_, is_left)| *is_left);
                queue = left.map(|(write, _)| Waiting { passes: write.passes.saturating_add(1), ..write }).collect();
                batches += 1;
                prop_assert!(batches <= u32::from(PASSES_MAX) + 2);
            }
        }

        #[test]
        fn those_behind_come_first_of_records(numbers in prop::collection::btree_set(0..40u64, 12..40)) {
            let waiting = records(numbers);
            let first = first(&waiting);
            let ahead = waiting.iter().map(|write| write.offset / RECORD).filter(|number| !first.contains(number));
            prop_assert!(ahead.min().is_none_or(|ahead| first.iter().all(|number| *number < ahead)));
        }
    }
}
