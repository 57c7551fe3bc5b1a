//! Data that the server has committed, kept for the readers that asked it before it had, and for
//! those who read it back.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::kept::Kept;
use super::unsent::{copy_overlap, index};

/// The data that was committed while somebody reads, and what is kept of it longer.
pub(super) struct Retired {
    pub(super) kept: Kept,
    /// In the order in which they were committed. For each byte that is the order of the writes.
    extents: VecDeque<(u64, Bytes)>,
    /// How many were dropped from the front.
    dropped: u64,
    /// How many readers began when so many had been committed.
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

    /// A reader begins: what is committed from now on is kept until it ends.
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

    /// Copies into `buf`, which begins at `offset`, what was committed since `mark`; without one,
    /// what is kept.
    pub(super) fn overlay(&self, offset: u64, buf: &mut [u8], mark: Option<u64>) {
        let Some(mark) = mark else { return self.kept.overlay(offset, buf) };
        for (start, bytes) in self.extents.iter().skip(index(mark - self.dropped)) {
            copy_overlap(offset, buf, *start, bytes);
        }
    }

    /// Drops all from `size` on.
    pub(super) fn cut(&mut self, size: u64) {
        for (offset, bytes) in &mut self.extents {
            let keep = size.saturating_sub(*offset).min(bytes.len() as u64);
            bytes.truncate(index(keep));
        }
        self.kept.cut(size);
    }
}
