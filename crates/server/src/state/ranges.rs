//! The byte ranges that one owner has locked in one file.

use std::collections::BTreeMap;

use proto::nfs4::{LockRange, LockType, Status};

/// The bytes `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Range {
    /// All bytes.
    pub(crate) const ALL: Self = Self { first: 0, last: u64::MAX };

    /// The range of a LOCK, RFC 8881 §18.10.3: a length of all ones reaches to the last offset.
    ///
    /// # Errors
    /// `Inval` for a length of zero, and for a range that passes the last offset.
    pub(crate) fn new(range: LockRange) -> Result<Self, Status> {
        let first = range.offset;
        if range.length == u64::MAX {
            return Ok(Self { first, last: u64::MAX });
        }
        let last = range.length.checked_sub(1).and_then(|more| first.checked_add(more));
        Ok(Self { first, last: last.ok_or(Status::Inval)? })
    }

    /// As a reply has it.
    pub(crate) fn to_wire(self) -> LockRange {
        let length = if self.last == u64::MAX { u64::MAX } else { self.last - self.first + 1 };
        LockRange { offset: self.first, length }
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// A shared or an exclusive lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

impl LockKind {
    /// Whether two owners cannot hold these on the same byte.
    pub(crate) fn conflicts(self, other: Self) -> bool {
        self == Self::Write || other == Self::Write
    }
}

impl From<LockType> for LockKind {
    fn from(wanted: LockType) -> Self {
        if wanted.is_write() { Self::Write } else { Self::Read }
    }
}

/// A locked range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) range: Range,
    pub(crate) kind: LockKind,
}

impl Piece {
    /// Whether two owners cannot hold both.
    pub(crate) fn conflicts(self, other: Self) -> bool {
        self.range.overlaps(other.range) && self.kind.conflicts(other.kind)
    }
}

/// Ranges that do not overlap; neighbours of one kind are one range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    /// The last byte of each piece by its first. Apart, so that a search for exclusive pieces
    /// passes over no shared ones, however many there are.
    shared: BTreeMap<u64, u64>,
    exclusive: BTreeMap<u64, u64>,
}

impl Ranges {
    pub(super) fn len(&self) -> usize {
        self.shared.len() + self.exclusive.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.exclusive.is_empty()
    }

    /// All pieces, those of one kind in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Piece> {
        self.overlapping(Range::ALL)
    }

    /// The pieces that have a byte in `range`, those of one kind in order.
    pub(super) fn overlapping(&self, range: Range) -> impl Iterator<Item = Piece> {
        let exclusive = self.of_kind(LockKind::Write, range);
        exclusive.chain(self.of_kind(LockKind::Read, range))
    }

    /// A piece that conflicts with `wanted`, if it is of another owner.
    pub(super) fn conflict(&self, wanted: Piece) -> Option<Piece> {
        let exclusive = self.of_kind(LockKind::Write, wanted.range).next();
        let shared = || self.of_kind(LockKind::Read, wanted.range).next();
        exclusive.or_else(|| if wanted.kind == LockKind::Write { shared() } else { None })
    }

    fn of_kind(&self, kind: LockKind, range: Range) -> impl Iterator<Item = Piece> {
        let pieces = self.pieces(kind);
        let piece = move |(first, last): (&u64, &u64)| Piece {
            range: Range { first: *first, last: *last },
            kind,
        };
        let before = pieces.range(..range.first).next_back().map(piece);
        let before = before.filter(move |piece| piece.range.overlaps(range));
        before.into_iter().chain(pieces.range(range.first..=range.last).map(piece))
    }

    fn pieces(&self, kind: LockKind) -> &BTreeMap<u64, u64> {
        match kind {
            LockKind::Read => &self.shared,
            LockKind::Write => &self.exclusive,
        }
    }

    fn pieces_mut(&mut self, kind: LockKind) -> &mut BTreeMap<u64, u64> {
        match kind {
            LockKind::Read => &mut self.shared,
            LockKind::Write => &mut self.exclusive,
        }
    }

    /// Locks the range in place of what was locked there. The range grows by what it touches of its
    /// kind.
    pub(super) fn lock(&mut self, range: Range, kind: LockKind) {
        self.unlock(range);
        let (pieces, mut whole) = (self.pieces_mut(kind), range);
        if let Some((first, last)) = pieces.range(..range.first).next_back()
            && last.checked_add(1) == Some(range.first)
        {
            whole.first = *first;
        }
        if let Some(next) = range.last.checked_add(1)
            && let Some(last) = pieces.remove(&next)
        {
            whole.last = last;
        }
        pieces.insert(whole.first, whole.last);
    }

    /// Unlocks the range; a piece that reaches beyond it is cut.
    pub(super) fn unlock(&mut self, range: Range) {
        for Piece { range: whole, kind } in self.overlapping(range).collect::<Vec<_>>() {
            let pieces = self.pieces_mut(kind);
            pieces.remove(&whole.first);
            if whole.first < range.first {
                pieces.insert(whole.first, range.first - 1);
            }
            if whole.last > range.last {
                pieces.insert(range.last + 1, whole.last);
            }
        }
    }

    /// From the first locked byte to the last.
    pub(super) fn span(&self) -> Option<Range> {
        let span = |pieces: &BTreeMap<u64, u64>| {
            let (first, _) = pieces.first_key_value()?;
            let (_, last) = pieces.last_key_value()?;
            Some(Range { first: *first, last: *last })
        };
        let spans = [&self.shared, &self.exclusive].into_iter().filter_map(span);
        spans.reduce(|a, b| Range { first: a.first.min(b.first), last: a.last.max(b.last) })
    }

    /// Whether to unlock `range` leaves a piece on either side of it.
    pub(super) fn is_split_by(&self, range: Range) -> bool {
        let reaches_beyond =
            |piece: Piece| piece.range.first < range.first && piece.range.last > range.last;
        self.overlapping(range).any(reaches_beyond)
    }

    /// Whether one piece of the kind covers all of `wanted`.
    pub(super) fn holds(&self, wanted: Piece) -> bool {
        let Range { first, last } = wanted.range;
        self.overlapping(wanted.range).any(|Piece { range, kind }| {
            kind == wanted.kind && range.first <= first && last <= range.last
        })
    }

    /// The parts of `range` that are not locked, in order.
    pub(super) fn gaps(&self, range: Range) -> Vec<Range> {
        let mut pieces: Vec<_> = self.overlapping(range).collect();
        pieces.sort_unstable_by_key(|piece| piece.range.first);
        let (mut gaps, mut next) = (Vec::new(), Some(range.first));
        for piece in pieces {
            if let Some(first) = next
                && first < piece.range.first
            {
                gaps.push(Range { first, last: piece.range.first - 1 });
            }
            next = piece.range.last.checked_add(1);
        }
        let rest = next.filter(|first| *first <= range.last);
        gaps.extend(rest.map(|first| Range { first, last: range.last }));
        gaps
    }

    /// The pieces within `range`, cut to it: what [`Self::restore`] takes.
    pub(super) fn within(&self, range: Range) -> Self {
        let mut within = Self::default();
        for Piece { range: whole, kind } in self.overlapping(range) {
            let (first, last) = (whole.first.max(range.first), whole.last.min(range.last));
            within.pieces_mut(kind).insert(first, last);
        }
        within
    }

    /// Adds the bytes of other ranges. Where they overlap, the kind is that of `other`.
    pub(super) fn add(&mut self, other: &Self) {
        other.iter().for_each(|piece| self.lock(piece.range, piece.kind));
    }

    /// Makes `range` what it was when [`Self::within`] returned `before`.
    pub(super) fn restore(&mut self, range: Range, before: &Self) {
        self.unlock(range);
        self.add(before);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::config;
    use super::*;

    /// Bytes of the model; the real offsets end at the last of all.
    const BYTES: u8 = 24;

    fn real(byte: u8) -> u64 {
        u64::MAX - u64::from(BYTES - 1 - byte)
    }

    fn any_range() -> impl Strategy<Value = (u8, u8)> {
        (0..BYTES, 0..BYTES).prop_map(|(a, b)| (a.min(b), a.max(b)))
    }

    fn any_kind() -> impl Strategy<Value = LockKind> {
        prop_oneof![Just(LockKind::Read), Just(LockKind::Write)]
    }

    fn range((first, last): (u8, u8)) -> Range {
        Range { first: real(first), last: real(last) }
    }

    fn kind_at(ranges: &Ranges, byte: u8) -> Option<LockKind> {
        let at = Range { first: real(byte), last: real(byte) };
        let mut found = ranges.overlapping(at);
        let kind = found.next().map(|piece| piece.kind);
        assert_eq!(found.next(), None);
        kind
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn ranges_are_as_an_array_of_bytes(
            steps in prop::collection::vec((any_range(), prop::option::of(any_kind()), any::<bool>()), 1..40)
        ) {
            let mut ranges = Ranges::default();
            let mut model = [None; BYTES as usize];
            for (bytes, kind, undo) in steps {
                let before = ranges.clone();
                let saved = ranges.within(range(bytes));
                match kind {
                    Some(kind) => ranges.lock(range(bytes), kind),
                    None => ranges.unlock(range(bytes)),
                }
                if undo {
                    ranges.restore(range(bytes), &saved);
                    prop_assert_eq!(&ranges, &before);
                } else {
                    model[usize::from(bytes.0)..=usize::from(bytes.1)].fill(kind);
                }
                for byte in 0..BYTES {
                    prop_assert_eq!(kind_at(&ranges, byte), model[usize::from(byte)]);
                }
                let all = range((0, BYTES - 1));
                let mut inverse = Ranges::default();
                ranges.gaps(all).into_iter().for_each(|gap| inverse.lock(gap, LockKind::Read));
                for byte in 0..BYTES {
                    let is_locked = model[usize::from(byte)].is_some();
                    prop_assert_ne!(kind_at(&inverse, byte).is_some(), is_locked);
                }
                prop_assert_eq!(inverse.len(), ranges.gaps(all).len());
                let bytes_of = &model[usize::from(bytes.0)..=usize::from(bytes.1)];
                for kind in [LockKind::Read, LockKind::Write] {
                    let holds = bytes_of.iter().all(|byte| *byte == Some(kind));
                    let wanted = Piece { range: range(bytes), kind };
                    prop_assert_eq!(ranges.holds(wanted), holds);
                    let conflicts =
                        |held: &Option<LockKind>| held.is_some_and(|held| held.conflicts(kind));
                    let found = ranges.conflict(wanted);
                    prop_assert_eq!(found.is_some(), bytes_of.iter().any(conflicts));
                    prop_assert!(found.is_none_or(|found| found.conflicts(wanted)));
                }
                let first = (0..BYTES).find(|byte| model[usize::from(*byte)].is_some());
                let last = (0..BYTES).rfind(|byte| model[usize::from(*byte)].is_some());
                prop_assert_eq!(ranges.span(), first.zip(last).map(range));
                let runs = model.chunk_by(|a, b| a == b).filter(|run| run[0].is_some()).count();
                prop_assert_eq!(ranges.len(), runs, "neighbours of one kind are one range");
            }
        }
    }

    #[test]
    fn lengths_reach_to_the_last_offset_and_not_beyond() {
        let new = |offset, length| Range::new(LockRange { offset, length });
        let max = u64::MAX;
        assert_eq!(new(0, 1), Ok(Range { first: 0, last: 0 }));
        assert_eq!(new(5, max), Ok(Range { first: 5, last: max }));
        assert_eq!(new(max, max), Ok(Range { first: max, last: max }));
        assert_eq!(new(max, 1), Ok(Range { first: max, last: max }));
        assert_eq!(new(1, max - 1), Ok(Range { first: 1, last: max - 1 }));
        assert_eq!(new(0, 0), Err(Status::Inval));
        assert_eq!(new(max, 2), Err(Status::Inval));
        for (offset, length) in [(0, 1), (7, max), (1, max - 1)] {
            let wire = LockRange { offset, length };
            assert_eq!(Range::new(wire).map(Range::to_wire), Ok(wire));
        }
    }
}
