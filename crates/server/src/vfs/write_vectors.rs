//! Which WRITEs of a batch become one vectored write, and what each gets of its outcome: pure
//! functions.

use io::ByteRange;

use crate::inode_cache::BATCH_WRITES_MAX;

/// The least preallocation of XFS behind a write that extends a file (`allocsize` in xfs(5)). A
/// write that leaves a gap behind the end of the file makes an extent of the blocks that are
/// preallocated there. If the gap is longer, that extent is an island in the file, and each such
/// write makes one.
const GAP_BYTES_MAX: u64 = 64 * 1024;

/// The WRITEs of a batch by their places in it, as vectored writes in the order in which they are
/// to be performed. Those of one are adjacent in the file, ascending, and of one `kind`.
///
/// WRITEs that overlap keep the order of the batch. All others are put in the order of the file;
/// but where they leave large gaps, the furthest comes first.
pub(super) fn vectors<K: PartialEq>(writes: &[(ByteRange, K)]) -> Vec<Vec<usize>> {
    let mut vectors = Vec::new();
    // The last WRITEs, ascending, none of which overlaps another.
    let mut apart: Vec<usize> = Vec::with_capacity(writes.len());
    for (index, (range, _)) in writes.iter().enumerate() {
        if range.is_empty() {
            // It has no neighbours, and overlaps nothing.
            vectors.push(vec![index]);
            continue;
        }
        let place = apart.partition_point(|&other| writes[other].0.offset() < range.offset());
        let neighbours = &apart[place.saturating_sub(1)..(place + 1).min(apart.len())];
        if neighbours.iter().any(|&other| writes[other].0.overlaps(*range)) {
            vectors.extend(in_file_order(writes, &apart));
            apart.clear();
            apart.push(index);
        } else {
            apart.insert(place, index);
        }
    }
    vectors.extend(in_file_order(writes, &apart));
    vectors
}

/// The ascending WRITEs as vectors, the furthest first where they leave large gaps.
fn in_file_order<K: PartialEq>(writes: &[(ByteRange, K)], ascending: &[usize]) -> Vec<Vec<usize>> {
    let mut vectors: Vec<_> = adjacent(writes, ascending).collect();
    let gap = |pair: &[usize]| writes[pair[1]].0.offset() - writes[pair[0]].0.end();
    if ascending.windows(2).any(|pair| gap(pair) > GAP_BYTES_MAX) {
        vectors.rotate_right(1);
    }
    vectors
}

/// The ascending WRITEs, cut where two neighbours do not meet or are not of one kind, and where
/// they are too many for one vectored write.
fn adjacent<'a, K: PartialEq>(
    writes: &'a [(ByteRange, K)],
    ascending: &'a [usize],
) -> impl Iterator<Item = Vec<usize>> + 'a {
    let belong = |&one: &usize, &next: &usize| {
        writes[one].0.end() == writes[next].0.offset() && writes[one].1 == writes[next].1
    };
    ascending.chunk_by(belong).flat_map(|run| run.chunks(BATCH_WRITES_MAX)).map(<[usize]>::to_vec)
}

/// The bytes that each of adjacent parts has of the first `written` of them all: up to and with the
/// first part that has not all, if there is one.
pub(super) fn shares(lens: impl IntoIterator<Item = usize>, mut written: usize) -> Vec<usize> {
    let mut shares = Vec::new();
    for len in lens {
        let share = len.min(written);
        written -= share;
        shares.push(share);
        if share < len {
            break;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange::new(offset, len).unwrap()
    }

    #[test]
    fn adjacent_writes_of_one_kind_become_one() {
        let write = |place: u64, kind: char| (range(place * 10, 10), kind);
        let table: [(&[_], Vec<Vec<usize>>); 5] = [
            (&[write(3, 'a')], vec![vec![0]]),
            (&[write(0, 'a'), write(1, 'a'), write(2, 'a')], vec![vec![0, 1, 2]]),
            (&[write(2, 'a'), write(0, 'a'), write(1, 'a')], vec![vec![1, 2, 0]]),
            (&[write(0, 'a'), write(1, 'b'), write(3, 'b')], vec![vec![0], vec![1], vec![2]]),
            // The second and the third are the same bytes.
            (
                &[write(1, 'a'), write(0, 'a'), write(0, 'a'), write(1, 'a')],
                vec![vec![1, 0], vec![2, 3]],
            ),
        ];
        for (writes, expected) in table {
            assert_eq!(vectors(writes), expected, "{writes:?}");
        }
    }

    #[test]
    fn vectors_are_bounded() {
        let writes: Vec<_> = (0..200).map(|place| (range(place, 1), 'a')).collect();
        let lens: Vec<_> = vectors(&writes).iter().map(Vec::len).collect();
        assert_eq!(lens, [64, 64, 64, 8]);
    }

    #[test]
    fn the_furthest_write_comes_first_if_large_gaps_are_left() {
        let (len, gap) = (GAP_BYTES_MAX / 2, GAP_BYTES_MAX);
        let order = |gap: u64| {
            let write = |place: u64| (range(place * (len + gap), len), 'a');
            vectors(&[write(1), write(3), write(0)]).concat()
        };
        // Between the second and the third lies one more.
        assert_eq!(order(gap), [1, 2, 0]);
        assert_eq!(order(gap / 4), [2, 0, 1]);
    }

    #[test]
    fn what_was_written_is_shared_out_from_the_front() {
        assert_eq!(shares([10, 20, 30], 60), [10, 20, 30]);
        assert_eq!(shares([10, 20, 30], 25), [10, 15], "the third was not attempted");
        assert_eq!(shares([10, 20, 30], 10), [10, 0]);
        assert_eq!(shares([10, 20, 30], 0), [0]);
    }

    fn any_batch() -> impl Strategy<Value = Vec<(ByteRange, u8)>> {
        let write = (0..40u64, 0..8u64, 0..2u8);
        let write = write.prop_map(|(offset, len, kind)| (range(offset, len), kind));
        prop::collection::vec(write, 1..40)
    }

    proptest! {
        #[test]
        fn each_write_is_in_one_vector_of_adjacent_ones(batch in any_batch()) {
            let vectors = vectors(&batch);
            let mut all: Vec<_> = vectors.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..batch.len()).collect::<Vec<_>>());
            for vector in vectors {
                for pair in vector.windows(2) {
                    let [one, next] = [pair[0], pair[1]].map(|index| batch[index]);
                    prop_assert_eq!((one.0.end(), one.1), (next.0.offset(), next.1));
                }
            }
        }

        /// The file ends up as if the WRITEs had been performed in the order of arrival.
        #[test]
        fn overlapping_writes_keep_their_order(batch in any_batch()) {
            let write_all = |order: &[usize]| {
                let mut file = [None; 64];
                for &index in order {
                    let (range, _) = batch[index];
                    let bounds = [range.offset(), range.end()];
                    let [start, end] = bounds.map(|bound| usize::try_from(bound).unwrap());
                    file[start..end].fill(Some(index));
                }
                file
            };
            let in_order: Vec<_> = (0..batch.len()).collect();
            prop_assert_eq!(write_all(&vectors(&batch).concat()), write_all(&in_order));
        }

        #[test]
        fn shares_are_all_that_was_written(
            lens in prop::collection::vec(1..100usize, 1..20),
            part in 0.0..=1.0f64,
        ) {
            let total: usize = lens.iter().sum();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part")]
            let written = (total as f64 * part) as usize;
            let shares = shares(lens.iter().copied(), written);
            prop_assert_eq!(shares.iter().sum::<usize>(), written);
            let whole = shares.iter().zip(&lens).take_while(|(share, len)| share == len).count();
            prop_assert!(whole + 1 >= shares.len() && (whole == lens.len() || written < total));
        }
    }
}
