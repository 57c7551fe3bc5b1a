//! A range of bytes in a file.

/// Bytes `offset..offset + len` of a file. Its end never passes the kernel's largest file offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    offset: u64,
    len: u64,
}

/// The largest file offset of the kernel, whose offsets are signed.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

impl ByteRange {
    /// The range, unless it would end beyond `i64::MAX`, which no file reaches.
    #[must_use]
    pub fn new(offset: u64, len: u64) -> Option<Self> {
        (offset.checked_add(len)? <= OFFSET_MAX).then_some(Self { offset, len })
    }

    /// Everything from `offset` on; empty at `i64::MAX` and beyond.
    #[must_use]
    pub fn starting_at(offset: u64) -> Self {
        let offset = offset.min(OFFSET_MAX);
        Self { offset, len: OFFSET_MAX - offset }
    }

    /// From `start` to before `end`; empty when that is not after `start`.
    ///
    /// # Panics
    /// `start` or `end` is beyond `i64::MAX`.
    #[must_use]
    pub fn between(start: u64, end: u64) -> Self {
        assert!(start <= OFFSET_MAX && end <= OFFSET_MAX, "{start}..{end} is no range of a file");
        Self { offset: start, len: end.saturating_sub(start) }
    }

    /// The first byte.
    #[must_use]
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// How many bytes.
    #[must_use]
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The byte after the last.
    #[must_use]
    pub fn end(self) -> u64 {
        self.offset + self.len
    }

    /// Whether both have a byte in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.offset.max(other.offset) < self.end().min(other.end())
    }

    /// Whether every byte of `other` is in this range.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.offset <= other.offset && other.end() <= self.end()
    }

    /// The bytes in both; empty, somewhere in this range, if there are none.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        let start = self.offset.max(other.offset).min(self.end());
        Self { offset: start, len: self.end().min(other.end()).saturating_sub(start) }
    }

    /// The smallest range of whole `unit`s (a power of two, in bytes) with all of this one; cut off
    /// at the largest file offset.
    ///
    /// # Panics
    /// `unit` is no power of two.
    #[must_use]
    pub fn widened_to(self, unit: u64) -> Self {
        assert!(unit.is_power_of_two(), "{unit} is no power of two");
        let start = self.offset & !(unit - 1);
        // Below 2^63 plus a unit, so this cannot overflow while units are.
        let end = self.end().checked_next_multiple_of(unit).unwrap_or(OFFSET_MAX);
        Self::between(start, end.min(OFFSET_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange::new(offset, len).unwrap()
    }

    #[test]
    fn no_range_passes_the_largest_offset() {
        assert!(ByteRange::new(OFFSET_MAX, 0).is_some());
        assert!(ByteRange::new(OFFSET_MAX - 1, 1).is_some());
        assert!(ByteRange::new(OFFSET_MAX, 1).is_none());
        assert!(ByteRange::new(u64::MAX, 2).is_none());
        assert_eq!(ByteRange::starting_at(5).end(), OFFSET_MAX);
        assert!(ByteRange::starting_at(u64::MAX).is_empty());
        assert_eq!(range(OFFSET_MAX - 1, 1).widened_to(4096).end(), OFFSET_MAX);
    }

    #[test]
    fn overlapping_ranges_are_detected() {
        for (a, b, common) in [
            (range(0, 10), range(10, 10), 0),
            (range(0, 10), range(9, 10), 1),
            (range(0, 10), range(2, 3), 3),
            (range(0, 10), range(20, 3), 0),
            (range(0, 0), range(0, 3), 0),
        ] {
            assert_eq!(a.intersection(b).len(), common, "{a:?} {b:?}");
            assert_eq!(b.intersection(a).len(), common, "{b:?} {a:?}");
            assert_eq!(a.overlaps(b), common > 0);
            assert_eq!(b.overlaps(a), common > 0);
        }
        assert!(range(0, 10).contains(range(2, 8)));
        assert!(!range(0, 10).contains(range(2, 9)));
    }

    #[test]
    fn widening_reaches_whole_units() {
        assert_eq!(range(0, 4096).widened_to(4096), range(0, 4096));
        assert_eq!(range(1, 4096).widened_to(4096), range(0, 8192));
        assert_eq!(range(47008, 47008).widened_to(512), range(46592, 47616));
    }
}
