//! The data of loads. What belongs at a place in a file is known from file, place and generation
//! alone, so that data which is misplaced, stale or of another file is not taken for the right.

use std::ops::Range;

/// Bytes of one READ or WRITE at most.
pub const IO_BYTES_MAX: u32 = 4 << 20;
/// A unit of data begins anywhere in the first so many bytes of the pool.
const BEGINNINGS: u64 = 16 << 20;
/// The same for each run: results are to be repeated.
const SEED: u64 = 0x5_91_1a_11;

/// Pseudo-random bytes of which every unit of data is a slice. They never change, so they may be
/// sent without being copied.
pub struct Pool {
    bytes: Box<[u8]>,
}

impl Pool {
    /// Makes it; 20 MiB in all.
    #[must_use]
    pub fn fill() -> Self {
        let len = usize::try_from(BEGINNINGS + u64::from(IO_BYTES_MAX)).expect("20 MiB");
        let words = (0..len as u64 / 8).flat_map(|word| mix(SEED, word).to_le_bytes());
        Self { bytes: words.collect() }
    }

    /// Where `range` of a unit of `unit_bytes` lies in the pool.
    pub(super) fn place(&self, unit: Unit, range: Range<u32>) -> Range<usize> {
        debug_assert!(range.end <= IO_BYTES_MAX, "units are no longer than that");
        let hash = mix(mix(unit.file, unit.number), u64::from(unit.generation));
        let beginning = usize::try_from(hash % BEGINNINGS).expect("less than 16 Mi");
        let within = |at: u32| beginning + usize::try_from(at).expect("32 bits fit");
        within(range.start)..within(range.end)
    }

    /// The bytes of a [`Pool::place`].
    pub(super) fn bytes(&self, place: Range<usize>) -> &[u8] {
        &self.bytes[place]
    }
}

/// The key of the data of a unit: the number of the file, that of the unit in it, and the
/// generation of the load that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) file: u64,
    pub(super) number: u64,
    pub(super) generation: u32,
}

/// Scatters the bits of two numbers over one: the finalizer of SplitMix64, twice.
pub(super) const fn mix(a: u64, b: u64) -> u64 {
    scatter(scatter(a).wrapping_add(b))
}

const fn scatter(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_depends_on_file_place_and_generation() {
        let pool = Pool::fill();
        let unit = Unit { file: 1, number: 2, generation: 3 };
        let data = |unit| pool.bytes(pool.place(unit, 0..4096));
        let others = [
            Unit { file: 2, ..unit },
            Unit { number: 3, ..unit },
            Unit { generation: 4, ..unit },
            Unit { file: 2, number: 1, ..unit },
        ];
        for other in others {
            assert_ne!(data(unit), data(other), "{other:?}");
        }
        assert_eq!(data(unit), data(unit));
    }

    #[test]
    fn parts_of_a_unit_are_where_they_are_in_the_whole() {
        let pool = Pool::fill();
        for number in 0..1000 {
            let unit = Unit { file: 0, number, generation: 0 };
            let whole = pool.bytes(pool.place(unit, 0..IO_BYTES_MAX));
            let place = pool.place(unit, 47_008..50_000);
            assert_eq!(pool.bytes(place), &whole[47_008..50_000]);
        }
    }
}
