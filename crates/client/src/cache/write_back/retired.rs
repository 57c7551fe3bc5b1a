//! Committed data that is held for READs in flight, or kept for later reads.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::chunk::{copy_overlap, index};
use super::kept::Kept;

/// The data committed while READs are in flight, and the kept data.
pub(super) struct Retired {
    pub(super) kept: Kept,
    /// In the order of commits, which for each byte is the order of the writes.
    extents: VecDeque<RetiredExtent>,
    /// Number of extents dropped from the front.
    dropped: u64,
    /// Number of readers by the number of commits at their beginning.
    marks: BTreeMap<u64, usize>,
}

/// Committed data.
struct RetiredExtent {
    offset: u64,
    bytes: Bytes,
    /// The place of the reply to its WRITE in the order of events. The reply to a READ sent later
    /// has it, or what another client has written over it.
    answered_at: u64,
}

/// The beginning of a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// Commits before it.
    commits: u64,
    /// Its place in the order of events.
    ordinal: u64,
}

impl Retired {
    pub(super) fn new(kept: Kept) -> Self {
        Self { kept, extents: VecDeque::new(), dropped: 0, marks: BTreeMap::new() }
    }

    /// Adds data whose WRITE was answered at a place in the order of events.
    pub(super) fn push(&mut self, offset: u64, bytes: Bytes, answered_at: u64) {
        if self.marks.is_empty() {
            self.dropped += 1;
        } else {
            self.extents.push_back(RetiredExtent { offset, bytes, answered_at });
        }
    }

    /// Begins a read at a place in the order of events: data committed from now on is held until
    /// its end.
    pub(super) fn mark(&mut self, ordinal: u64) -> Mark {
        let commits = self.dropped + self.extents.len() as u64;
        *self.marks.entry(commits).or_default() += 1;
        Mark { commits, ordinal }
    }

    pub(super) fn unmark(&mut self, Mark { commits, .. }: Mark) {
        let count = self.marks.get_mut(&commits).expect("a mark is removed once");
        *count -= 1;
        if *count == 0 {
            self.marks.remove(&commits);
        }
        let end = self.dropped + self.extents.len() as u64;
        let needed = self.marks.first_key_value().map_or(end, |(mark, _)| *mark);
        while self.dropped < needed {
            self.extents.pop_front();
            self.dropped += 1;
        }
    }

    /// Copies the data answered and committed since `mark`, or without one the kept data, into
    /// `buf`, which begins at `offset`.
    pub(super) fn overlay(&self, offset: u64, buf: &mut [u8], mark: Option<Mark>) {
        let Some(mark) = mark else { return self.kept.overlay(offset, buf) };
        for retired in self.since(mark) {
            copy_overlap(offset, buf, retired.offset, &retired.bytes);
        }
    }

    /// The end of the last byte that [`overlay`](Self::overlay) copies with `mark`.
    pub(super) fn end_since(&self, mark: Mark) -> Option<u64> {
        let held = self.since(mark).filter(|retired| !retired.bytes.is_empty());
        held.map(|retired| retired.offset + retired.bytes.len() as u64).max()
    }

    /// The data answered and committed since `mark`.
    fn since(&self, mark: Mark) -> impl Iterator<Item = &RetiredExtent> {
        let committed = self.extents.iter().skip(index(mark.commits - self.dropped));
        committed.filter(move |retired| retired.answered_at >= mark.ordinal)
    }

    /// Drops all data from `size` on.
    pub(super) fn cut(&mut self, size: u64) {
        for RetiredExtent { offset, bytes, .. } in &mut self.extents {
            let keep = size.saturating_sub(*offset).min(bytes.len() as u64);
            bytes.truncate(index(keep));
        }
        self.kept.cut(size);
    }
}
