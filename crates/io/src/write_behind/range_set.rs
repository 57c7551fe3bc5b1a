//! A set of bytes of a file, kept as ranges.

use std::collections::BTreeMap;

use crate::byte_range::ByteRange;

/// Ranges that neither overlap nor touch.
#[derive(Debug, Default)]
pub(super) struct RangeSet {
    /// The end of each range by its start.
    ends: BTreeMap<u64, u64>,
    /// The sum of their lengths.
    bytes: u64,
}

impl RangeSet {
    /// Adds all bytes of `range`.
    pub(super) fn insert(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.offset(), range.end());
        while let Some((&before, &before_end)) = self.ends.range(..=end).next_back()
            && before_end >= start
        {
            self.ends.remove(&before);
            self.bytes -= before_end - before;
            start = start.min(before);
            end = end.max(before_end);
        }
        self.ends.insert(start, end);
        self.bytes += end - start;
    }

    /// Takes all bytes of `range` out; returns how many were there.
    pub(super) fn remove(&mut self, range: ByteRange) -> u64 {
        let mut removed = 0;
        if range.is_empty() {
            return removed;
        }
        while let Some((&start, &end)) = self.ends.range(..range.end()).next_back()
            && end > range.offset()
        {
            self.ends.remove(&start);
            if end > range.end() {
                self.ends.insert(range.end(), end);
            }
            if start < range.offset() {
                self.ends.insert(start, range.offset());
            }
            removed += end.min(range.end()) - start.max(range.offset());
        }
        self.bytes -= removed;
        removed
    }

    /// Takes out a range that overlaps or touches `range`, whole.
    pub(super) fn take_touching(&mut self, range: ByteRange) -> Option<ByteRange> {
        let (&start, &end) = self.ends.range(..=range.end()).next_back()?;
        (end >= range.offset()).then(|| {
            self.ends.remove(&start);
            self.bytes -= end - start;
            ByteRange::between(start, end)
        })
    }

    /// The parts of the set in `range`, ascending.
    pub(super) fn within(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        // Only one range can begin in front of `range` and still reach into it.
        let first = self.ends.range(..=range.offset()).next_back();
        let first = first.map_or(range.offset(), |(&start, _)| start);
        self.ends
            .range(first..range.end().max(first))
            .map(move |(&start, &end)| ByteRange::between(start, end).intersection(range))
            .filter(|part| !part.is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many bytes it has.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Takes the bytes of `cut` out of `parts`, which are ascending and do not overlap.
pub(super) fn subtract(parts: &mut Vec<ByteRange>, cut: ByteRange) {
    let Some(first) = parts.iter().position(|part| part.overlaps(cut)) else { return };
    let touched = parts[first..].iter().take_while(|part| part.overlaps(cut)).count();
    let front = ByteRange::between(parts[first].offset(), cut.offset());
    let back = ByteRange::between(cut.end(), parts[first + touched - 1].end());
    let rest = [front, back].into_iter().filter(|part| !part.is_empty());
    parts.splice(first..first + touched, rest);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn bytes(ranges: impl IntoIterator<Item = ByteRange>) -> BTreeSet<u64> {
        ranges.into_iter().flat_map(|range| range.offset()..range.end()).collect()
    }

    proptest! {
        #[test]
        fn it_is_a_set(changes in prop::collection::vec((any::<bool>(), 0..64_u64, 0..24_u64), 1..40)) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (adds, offset, len) in changes {
                let range = ByteRange::new(offset, len).unwrap();
                if adds {
                    set.insert(range);
                    model.extend(offset..offset + len);
                } else {
                    let before = model.len();
                    model.retain(|byte| !(offset..offset + len).contains(byte));
                    prop_assert_eq!(set.remove(range), (before - model.len()) as u64);
                }
                let all: Vec<_> = set.within(ByteRange::starting_at(0)).collect();
                prop_assert!(all.windows(2).all(|pair| pair[0].end() < pair[1].offset()));
                prop_assert_eq!(set.bytes(), model.len() as u64);
                prop_assert_eq!(bytes(all), model.clone());
                prop_assert_eq!(bytes(set.within(range)), model.range(offset..offset + len).copied().collect());
                prop_assert_eq!(set.is_empty(), model.is_empty());
            }
        }

        #[test]
        fn subtracting_leaves_the_rest(
            cuts in prop::collection::vec((0..100_u64, 0..30_u64), 0..12),
        ) {
            let whole = ByteRange::new(10, 70).unwrap();
            let (mut parts, mut model) = (vec![whole], bytes([whole]));
            for (offset, len) in cuts {
                subtract(&mut parts, ByteRange::new(offset, len).unwrap());
                model.retain(|byte| !(offset..offset + len).contains(byte));
                prop_assert!(parts.windows(2).all(|pair| pair[0].end() <= pair[1].offset()));
                prop_assert_eq!(bytes(parts.clone()), model.clone());
            }
        }
    }
}
