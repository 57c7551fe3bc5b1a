//! The bytes of one file whose write-back has not begun.
//!
//! They are kept as runs. One without a whole page is an *edge*: it fills pages only in part. If
//! such a page were written back and dropped, it would have to be read again for the write that
//! fills the rest. So an edge waits for its neighbour. Among writers that take turns in one file,
//! each record leaves two edges until the records beside it come.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::range_set::RangeSet;
use crate::byte_range::{ByteRange, OFFSET_MAX};

/// Sizes and times by which the next step is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// A page of this machine, in bytes; a power of two.
    pub(super) page_bytes: u64,
    /// Write-back begins in pieces of about this size, a multiple of `page_bytes`.
    pub(super) run_bytes: u64,
    /// No byte waits longer than about this for its write-back to begin.
    pub(super) age_max: Duration,
    /// A page of a file that several write in turns, filled only in part, waits this long for the
    /// write that fills it. Of a file written in sequence it waits for `age_max`.
    pub(super) neighbour_wait: Duration,
}

/// Bytes without a gap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) end: u64,
    /// When its first byte arrived.
    pub(super) since: Instant,
    /// When its latest byte arrived.
    pub(super) touched: Instant,
}

/// See the module. No two runs overlap or touch.
#[derive(Debug)]
pub(super) struct DirtyRuns {
    limits: Limits,
    /// Runs with a whole page at least, by their first byte.
    runs: BTreeMap<u64, Run>,
    /// Runs without one.
    edges: BTreeMap<u64, Run>,
    /// The edges by their age.
    edge_ages: BTreeSet<(Instant, u64)>,
    /// There were more edges than a file written in sequence has, and some are left.
    is_shared: bool,
    /// No write is expected any more, so that edges wait for nothing.
    is_closed: bool,
    /// The earliest `since` of the runs with a whole page.
    oldest: Option<Instant>,
    /// Whether one of them is long enough to begin with it at once.
    full: bool,
    /// See [`Self::charged`] and [`Self::edge_bytes`].
    charged: u64,
    edge_bytes: u64,
}

/// A file written in sequence has an edge at each end; only one that has more is written by several
/// in turns.
const SEQUENTIAL_EDGES_MAX: usize = 2;

/// The most ranges of a batch: a thread that writes scattered pages must check for other work.
const RANGES_MAX: usize = 256;

impl DirtyRuns {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            runs: BTreeMap::new(),
            edges: BTreeMap::new(),
            edge_ages: BTreeSet::new(),
            is_shared: false,
            is_closed: false,
            oldest: None,
            full: false,
            charged: 0,
            edge_bytes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.edges.is_empty()
    }

    /// Whether there is no whole page.
    pub(super) fn has_only_edges(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether a run is long enough to begin with it at once.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// The earliest arrival of a byte, but for the edges.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.oldest
    }

    /// Bytes of the pages with dirty bytes. A page that two runs share counts for each, so every
    /// run counts for a page at least, and the number of runs is bounded too.
    pub(super) fn charged(&self) -> u64 {
        self.charged
    }

    /// How much of [`Self::charged`] is that of edges.
    pub(super) fn edge_bytes(&self) -> u64 {
        self.edge_bytes
    }

    /// When the oldest edge has waited long enough for its neighbour.
    pub(super) fn edge_expires(&self) -> Option<Instant> {
        self.edge_ages.first().map(|&(since, _)| since + self.edge_wait())
    }

    fn edge_wait(&self) -> Duration {
        match (self.is_closed, self.is_shared) {
            (true, _) => Duration::ZERO,
            (false, true) => self.limits.neighbour_wait,
            (false, false) => self.limits.age_max,
        }
    }

    /// Has the edges leave now.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Adds bytes. Returns the edges that have become part of a run with a whole page.
    pub(super) fn insert(&mut self, range: ByteRange, now: Instant) -> u64 {
        self.is_closed = false;
        let (mut start, mut end) = (range.offset(), range.end());
        let (mut run_since, mut edge_since, mut edges) = (now, now, 0);
        while let Some((before, touching)) = self.at_or_before(end)
            && touching.end >= start
        {
            if self.is_edge(before, touching.end) {
                (edge_since, edges) = (edge_since.min(touching.since), edges + 1);
            } else {
                run_since = run_since.min(touching.since);
            }
            self.take(before);
            start = start.min(before);
            end = end.max(touching.end);
        }
        // Bytes that waited for others do not hurry them.
        let is_edge = self.is_edge(start, end);
        let since = if is_edge { edge_since } else { run_since };
        if !is_edge {
            self.full |= self.boundary(start, end).is_some();
            self.oldest = Some(self.oldest.map_or(since, |oldest| oldest.min(since)));
        }
        self.put(start, Run { end, since, touched: now });
        if is_edge { 0 } else { edges }
    }

    /// Forgets what lies past the new end of the file.
    pub(super) fn truncate(&mut self, new_len: u64) {
        self.remove(&[ByteRange::starting_at(new_len)]);
    }

    /// Takes these bytes out of all runs. The rest of a run that is cut waits anew.
    pub(super) fn remove(&mut self, ranges: &[ByteRange]) {
        ranges.iter().for_each(|&range| self.remove_range(range));
        self.oldest = self.runs.values().map(|run| run.since).min();
        self.full = self.runs.iter().any(|(&start, run)| self.boundary(start, run.end).is_some());
    }

    fn remove_range(&mut self, range: ByteRange) {
        while let Some((start, run)) = self.before(range.end())
            && run.end > range.offset()
        {
            self.take(start);
            if start < range.offset() {
                self.put(start, Run { end: range.offset(), ..run });
            }
            if range.end() < run.end {
                // Its bytes came last, as a rule; if not, they wait once more for the same time at
                // most.
                self.put(range.end(), Run { since: run.touched, ..run });
            }
        }
    }

    /// The run that begins last of those that begin at `offset` or before.
    pub(super) fn at_or_before(&self, offset: u64) -> Option<(u64, Run)> {
        self.before(offset.saturating_add(1))
    }

    fn before(&self, offset: u64) -> Option<(u64, Run)> {
        let last = |runs: &BTreeMap<u64, Run>| {
            runs.range(..offset).next_back().map(|(&start, &run)| (start, run))
        };
        last(&self.runs).into_iter().chain(last(&self.edges)).max_by_key(|(start, _)| *start)
    }

    /// The pages with dirty bytes that overlap `pages`. Not ascending; two runs can share one.
    pub(super) fn pages_in(&self, pages: ByteRange) -> impl Iterator<Item = ByteRange> {
        [&self.runs, &self.edges].into_iter().flat_map(move |runs| {
            // A run that begins in front of the pages can reach into them.
            let before = runs.range(..pages.offset()).next_back();
            let inside = runs.range(pages.offset()..pages.end());
            before
                .into_iter()
                .chain(inside)
                .map(|(&start, run)| self.pages_of(start, run.end))
                .filter(move |dirty| dirty.overlaps(pages))
        })
    }

    /// Whole pages of runs that are long enough, from `cursor` on or else from the beginning.
    pub(super) fn full_runs(&self, cursor: u64) -> Vec<ByteRange> {
        self.pick(cursor, |start, run| {
            let end = self.boundary(start, run.end)?;
            Some(ByteRange::between(self.round_up(start), end))
        })
    }

    /// As [`Self::full_runs`], of runs with bytes of such an age.
    pub(super) fn whole_pages(&self, cursor: u64, now: Instant, age: Duration) -> Vec<ByteRange> {
        let is_old = |run: &Run| run.since + age <= now;
        self.pick(cursor, |start, run| is_old(run).then(|| self.whole(start, run.end)))
    }

    /// As [`Self::full_runs`], all pages of any run.
    pub(super) fn all_pages(&self, cursor: u64) -> Vec<ByteRange> {
        let picked = self.pick(cursor, |start, run| Some(self.pages_of(start, run.end)));
        if picked.is_empty() { self.oldest_edges() } else { picked }
    }

    /// The pages of the oldest edges, up to one batch. Ascending and apart.
    pub(super) fn oldest_edges(&self) -> Vec<ByteRange> {
        self.pages_of_edges(|_| true)
    }

    /// The pages of the edges that have waited long enough, and of those that soon have: they are
    /// on the way.
    pub(super) fn expired_edges(&self, now: Instant) -> Vec<ByteRange> {
        let wait = self.edge_wait();
        let is_due = self.edge_expires().is_some_and(|at| at <= now);
        self.pages_of_edges(|since| is_due && since + wait / 2 <= now)
    }

    fn pages_of_edges(&self, leaves: impl Fn(Instant) -> bool) -> Vec<ByteRange> {
        let mut pages = RangeSet::default();
        let leaving = self.edge_ages.iter().take_while(|(since, _)| leaves(*since));
        for (_, start) in leaving.take(RANGES_MAX) {
            pages.insert(self.pages_of(*start, self.edges[start].end));
        }
        pages.within(ByteRange::starting_at(0)).collect()
    }

    /// Chooses whole pages of runs, up to one batch. Ascending; two runs can share a page.
    fn pick(
        &self,
        cursor: u64,
        part_of: impl Fn(u64, &Run) -> Option<ByteRange>,
    ) -> Vec<ByteRange> {
        for runs in [self.runs.range(cursor..), self.runs.range(..cursor)] {
            let mut picked = Vec::new();
            let mut room = self.limits.run_bytes;
            for (&start, run) in runs {
                let Some(part) = part_of(start, run) else { continue };
                let part = self.shortened(part);
                if part.len() > room && !picked.is_empty() {
                    break;
                }
                picked.push(part);
                room = room.saturating_sub(part.len());
                if room == 0 || picked.len() == RANGES_MAX {
                    break;
                }
            }
            if !picked.is_empty() {
                return picked;
            }
        }
        Vec::new()
    }

    /// The front of a part that is too long for one batch.
    fn shortened(&self, part: ByteRange) -> ByteRange {
        if part.len() <= self.limits.run_bytes + self.limits.run_bytes / 2 {
            return part;
        }
        let end = self.boundary(part.offset(), part.end()).unwrap_or(part.end());
        ByteRange::between(part.offset(), end)
    }

    /// Where the first batch of a run ends that is long enough to begin with it: at a multiple of
    /// the batch size. Large folios end there too, and one that sticks out of a range is never
    /// dropped.
    fn boundary(&self, start: u64, end: u64) -> Option<u64> {
        let run_bytes = self.limits.run_bytes;
        let start = self.round_up(start);
        let nearest = start.next_multiple_of(run_bytes);
        let far_enough = nearest - start >= run_bytes / 2;
        let boundary = if far_enough { nearest } else { nearest + run_bytes };
        (boundary <= end).then_some(boundary)
    }

    fn take(&mut self, start: u64) {
        if let Some(run) = self.runs.remove(&start) {
            self.charged -= self.pages_of(start, run.end).len();
        } else if let Some(edge) = self.edges.remove(&start) {
            let bytes = self.pages_of(start, edge.end).len();
            self.edge_ages.remove(&(edge.since, start));
            self.is_shared &= !self.edges.is_empty();
            self.charged -= bytes;
            self.edge_bytes -= bytes;
        }
    }

    fn put(&mut self, start: u64, run: Run) {
        let bytes = self.pages_of(start, run.end).len();
        self.charged += bytes;
        if self.is_edge(start, run.end) {
            self.edge_bytes += bytes;
            self.edge_ages.insert((run.since, start));
            self.edges.insert(start, run);
            self.is_shared |= self.edges.len() > SEQUENTIAL_EDGES_MAX;
        } else {
            self.runs.insert(start, run);
        }
    }

    fn is_edge(&self, start: u64, end: u64) -> bool {
        self.whole(start, end).is_empty()
    }

    /// The whole pages of a run.
    fn whole(&self, start: u64, end: u64) -> ByteRange {
        let start = self.round_up(start).min(OFFSET_MAX);
        ByteRange::between(start, end & !(self.limits.page_bytes - 1))
    }

    fn pages_of(&self, start: u64, end: u64) -> ByteRange {
        ByteRange::between(start, end).widened_to(self.limits.page_bytes)
    }

    fn round_up(&self, offset: u64) -> u64 {
        offset.next_multiple_of(self.limits.page_bytes)
    }

    /// The bytes of all runs, ascending.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> Vec<ByteRange> {
        let mut all: Vec<_> = self
            .runs
            .iter()
            .chain(&self.edges)
            .map(|(&start, run)| ByteRange::between(start, run.end))
            .collect();
        all.sort_unstable_by_key(|range| range.offset());
        all
    }

    /// Panics unless everything that is counted is what is there.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let charged = |runs: &BTreeMap<u64, Run>| -> u64 {
            runs.iter().map(|(&start, run)| self.pages_of(start, run.end).len()).sum()
        };
        assert_eq!(self.edge_bytes, charged(&self.edges));
        assert_eq!(self.charged, charged(&self.runs) + self.edge_bytes);
        assert_eq!(self.oldest, self.runs.values().map(|run| run.since).min());
        let is_full = |(&start, run): (&u64, &Run)| self.boundary(start, run.end).is_some();
        assert_eq!(self.full, self.runs.iter().any(is_full));
        assert!(self.runs.iter().all(|(&start, run)| !self.is_edge(start, run.end)));
        assert!(self.edges.iter().all(|(&start, run)| self.is_edge(start, run.end)));
        let ages = self.edges.iter().map(|(&start, edge)| (edge.since, start));
        assert_eq!(self.edge_ages, ages.collect());
        assert!(self.bytes().windows(2).all(|pair| pair[0].end() < pair[1].offset()));
    }
}
