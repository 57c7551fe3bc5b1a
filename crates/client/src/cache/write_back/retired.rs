//! Committed data that is held for READs in flight, or kept for later reads.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::chunk::{copy_overlap, index};
use super::kept::Kept;

/// The data committed while READs are in flight, and the kept data.
pub(super) struct Retired {
    pub(super) kept: Kept,
    /// In the order of commits, which for each byte is the order of the writes.
    extents: VecDeque<(u64, Bytes)>,
    /// Number of extents dropped from the front.
    dropped: u64,
    /// Number of readers by the number of commits at their beginning.
    marks: BTreeMap<u64, usize>,
}

impl Retired {
    pub(super) fn new(kept: Kept) -> Self {
        Self { kept, extents: VecDeque::new(), dropped: 0, marks: BTreeMap::new() }
    }

    pub(super) fn push(&mut self, offset: u64, bytes: Bytes) {
        self.kept.committed(offset, &bytes);
        if self.marks.is_empty() {
            self.dropped += 1;
        } else {
            self.extents.push_back((offset, bytes));
        }
    }

    /// Begins a read: data committed from now on is held until its end.
    pub(super) fn mark(&mut self) -> u64 {
        let mark = self.dropped + self.extents.len() as u64;
        *self.marks.entry(mark).or_default() += 1;
        mark
    }

    pub(super) fn unmark(&mut self, mark: u64) {
        let count = self.marks.get_mut(&mark).expect("a mark is removed once");
        *count -= 1;
        if *count == 0 {
            self.marks.remove(&mark);
        }
        let end = self.dropped + self.extents.len() as u64;
        let needed = self.marks.first_key_value().map_or(end, |(mark, _)| *mark);
        while self.dropped < needed {
            self.extents.pop_front();
            self.dropped += 1;
        }
    }

    /// Copies the data committed since `mark`, or without one the kept data, into `buf`, which
    /// begins at `offset`.
    pub(super) fn overlay(&self, offset: u64, buf: &mut [u8], mark: Option<u64>) {
        let Some(mark) = mark else { return self.kept.overlay(offset, buf) };
        for (start, bytes) in self.extents.iter().skip(index(mark - self.dropped)) {
            copy_overlap(offset, buf, *start, bytes);
        }
    }

    /// Drops all data from `size` on.
    pub(super) fn cut(&mut self, size: u64) {
        for (offset, bytes) in &mut self.extents {
            let keep = size.saturating_sub(*offset).min(bytes.len() as u64);
            bytes.truncate(index(keep));
        }
        self.kept.cut(size);
    }
}
