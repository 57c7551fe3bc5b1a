//! The ranges of one file in the window, and the next step for them.
//!
//! Pure bookkeeping: no system call, and the time is an argument.
//!
//! ```text
//!            insert             next           began              next      finished
//!   announced ────▶ dirty runs ─────▶ working ──────▶ started ──────────▶ working ──▶ gone
//!   (being          (bytes)         (one batch,        (batches on            │  ▲
//!    written)                        whole pages)       their way)            ▼  │
//!                                                                           leftovers
//!                                                             (clean, but not yet dropped)
//! ```
//!
//! While a flush is under way, finished batches are `doubtful`. At its end they become leftovers.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::dirty_runs::{DirtyRuns, Limits};
use super::range_set::{RangeSet, subtract};
use crate::byte_range::{ByteRange, OFFSET_MAX};

/// How much the rest of the process needs the window to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Not at all: large runs and old data only.
    Relaxed,
    /// There is too much in it: whole pages, in order.
    Pressed,
    /// There are too many pages that are filled only in part, or nothing else makes room: those
    /// too, the oldest first.
    Starved,
    /// Everything must leave now.
    Draining,
}

/// The next work of a file with [`Urgency::Relaxed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// Whole pages have to be written.
    Pages,
    /// Nothing but pages filled only in part.
    Edges,
    /// Nothing but to drop what could not be dropped before.
    Retries,
}

/// The runs of one file.
#[derive(Debug)]
pub(super) struct Runs {
    limits: Limits,
    /// Bytes whose write-back has not begun.
    dirty: DirtyRuns,
    /// Where the last batch ended. The next one begins there, so that scattered runs are visited in
    /// ascending order, and none is forgotten for those in front of it.
    cursor: u64,
    /// Batches whose write-back has begun, in that order.
    started: VecDeque<Batch>,
    /// Batches that are clean and could not be dropped.
    leftovers: VecDeque<Batch>,
    /// Clean pages that could not be dropped and lie beside pages that are still to be written: a
    /// folio holds them together, and leaves when all of it may.
    deferred: RangeSet,
    /// Pages that seem clean, while a flush is under way that may have taken their error.
    doubtful: RangeSet,
    /// The batch that a thread is at work on.
    working: Option<(Action, Batch)>,
    /// Pages that a write in progress is about to change.
    announced: Vec<ByteRange>,
    /// Pages of the window that are to stay cached: they were before it touched them, or their
    /// write-back may have failed.
    keep: RangeSet,
    /// The end of the furthest byte that arrived since the file entered the window.
    furthest: u64,
    /// The end of the latest arrival.
    last_end: u64,
    /// Bytes of the batches on their way.
    started_bytes: u64,
}

/// Ranges of whole pages, ascending and apart.
#[derive(Clone, Debug)]
struct Batch {
    ranges: Vec<ByteRange>,
    /// The time of its next step.
    at: Instant,
    /// How often dropping it has been tried.
    tries: u32,
}

/// A thread's task for some ranges, each of whole pages, ascending and disjoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) action: Action,
    pub(super) ranges: Vec<ByteRange>,
    /// How many of the pages are filled only in part, and do not wait any longer.
    pub(super) edges: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Begin their write-back.
    Start,
    /// Wait for it, then drop them.
    Finish,
    /// Drop what could not be dropped before.
    Retry,
}

/// How an arrival fits what came before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrival {
    /// It belongs in front of what arrived already.
    pub(super) out_of_order: bool,
    /// And what it belongs in front of had not gone to the disk yet, so that now it goes first.
    pub(super) put_in_order: bool,
    /// Pages filled only in part that it has filled, about.
    pub(super) edges_filled: u64,
}

/// The parts of a batch that may leave the page cache.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Droppable {
    /// Ascending and apart.
    pub(super) ranges: Vec<ByteRange>,
    /// Bytes that stay because they were cached before.
    pub(super) kept_bytes: u64,
}

impl Runs {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            dirty: DirtyRuns::new(limits),
            cursor: 0,
            started: VecDeque::new(),
            leftovers: VecDeque::new(),
            deferred: RangeSet::default(),
            doubtful: RangeSet::default(),
            working: None,
            announced: Vec::new(),
            keep: RangeSet::default(),
            furthest: 0,
            last_end: 0,
            started_bytes: 0,
        }
    }

    /// Whether nothing of the file is in the window. (Writes may be announced.)
    pub(super) fn is_empty(&self) -> bool {
        self.is_clean()
            && self.leftovers.is_empty()
            && self.doubtful.is_empty()
            && self.working.is_none()
    }

    fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.started.is_empty()
    }

    /// Bytes of the pages that are dirty or being written back; see [`DirtyRuns::charged`].
    pub(super) fn charged(&self) -> u64 {
        self.dirty.charged() + self.started_bytes
    }

    /// How much of [`Self::charged`] is that of pages that wait to be filled.
    pub(super) fn edge_bytes(&self) -> u64 {
        self.dirty.edge_bytes()
    }

    /// The work at the time that [`due`](Self::due) returns.
    pub(super) fn pending(&self) -> Pending {
        if !self.dirty.has_only_edges() || !self.started.is_empty() {
            Pending::Pages
        } else if !self.dirty.is_empty() {
            Pending::Edges
        } else {
            Pending::Retries
        }
    }

    /// Notes that `range` is about to be written. Returns the pages of it that are not the window's
    /// already: if they are cached, [`keep`](Self::keep) them.
    pub(super) fn announce(&mut self, range: ByteRange) -> Vec<ByteRange> {
        let pages = self.pages_of(range);
        let foreign = self.outside(pages);
        self.announced.push(pages);
        foreign
    }

    /// These pages were in the cache before the window touched them.
    pub(super) fn keep(&mut self, pages: ByteRange) {
        self.keep.insert(pages);
    }

    /// The write of `range` is over; what was written has been inserted.
    pub(super) fn withdraw(&mut self, range: ByteRange) {
        let pages = self.pages_of(range);
        if let Some(index) = self.announced.iter().position(|&announced| announced == pages) {
            self.announced.swap_remove(index);
        }
        self.stop_keeping(&[pages]);
    }

    /// Adds bytes that are in the page cache now.
    pub(super) fn insert(&mut self, range: ByteRange, now: Instant) -> Arrival {
        if range.is_empty() {
            return Arrival::default();
        }
        let arrival = self.judge(range);
        self.furthest = self.furthest.max(range.end());
        self.last_end = range.end();
        Arrival { edges_filled: self.dirty.insert(range, now), ..arrival }
    }

    /// No write is expected any more: nothing waits for the rest of its page.
    pub(super) fn close(&mut self) {
        self.dirty.close();
    }

    /// Forgets what lies past the new end of the file.
    pub(super) fn truncate(&mut self, new_len: u64) {
        let gone = ByteRange::starting_at(new_len.next_multiple_of(self.limits.page_bytes));
        self.dirty.truncate(new_len);
        let working = self.working.iter_mut().map(|(_, batch)| batch);
        for batch in self.started.iter_mut().chain(&mut self.leftovers).chain(working) {
            subtract(&mut batch.ranges, gone);
        }
        self.started.retain(|batch| !batch.ranges.is_empty());
        self.leftovers.retain(|batch| !batch.ranges.is_empty());
        self.keep.remove(gone);
        self.deferred.remove(gone);
        self.doubtful.remove(gone);
        self.furthest = self.furthest.min(new_len);
        self.started_bytes = self.recount();
        self.leave_if_empty();
    }

    /// When [`next`](Self::next) has something to do if nothing presses: at once, at some later
    /// time, or never.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        if self.dirty.is_full() || self.started.len() > STARTED_MAX || self.defers_much() {
            return Some(now);
        }
        let old = self.dirty.oldest().map(|oldest| oldest + self.limits.age_max);
        let expired = self.dirty.edge_expires();
        let settled = self.started.front().map(|batch| batch.at);
        let retry = self.leftovers.front().map(|batch| batch.at);
        [old, expired, settled, retry].into_iter().flatten().min()
    }

    /// The next step, if there is one to be taken now. Its outcome must be passed to
    /// [`began`](Self::began) or [`finished`](Self::finished) before the next call.
    pub(super) fn next(&mut self, now: Instant, urgency: Urgency) -> Option<Step> {
        assert!(self.working.is_none(), "one step at a time");
        let waits = urgency == Urgency::Relaxed;
        let mut edges = 0;
        let was_put_off = |batch: &mut Batch| batch.tries == 0;
        let (action, batch) = if let Some(batch) = self.leftovers.pop_front_if(was_put_off) {
            // First: they fill memory beyond the bound of the window.
            (Action::Retry, batch)
        } else if self.started.len() > STARTED_MAX {
            (Action::Finish, self.take_started()?)
        } else if let Some((ranges, given_up)) = self.take_dirty(now, urgency) {
            edges = given_up;
            (Action::Start, Batch { ranges, at: now, tries: 0 })
        } else if self.started.front().is_some_and(|batch| batch.at <= now || !waits) {
            (Action::Finish, self.take_started()?)
        } else {
            let due = |batch: &mut Batch| batch.at <= now || urgency == Urgency::Draining;
            (Action::Retry, self.leftovers.pop_front_if(due)?)
        };
        let ranges = batch.ranges.clone();
        self.working = Some((action, batch));
        Some(Step { action, ranges, edges })
    }

    /// The write-back of the batch at work has begun.
    pub(super) fn began(&mut self, now: Instant) {
        if let Some((_, batch)) = self.working.take()
            && !batch.ranges.is_empty()
        {
            self.started.push_back(Batch { at: now + SETTLE, ..batch });
        }
    }

    /// The parts of the current batch that may be dropped now that they are clean. Excludes ranges
    /// that are or will be written again: a half-filled page must await its neighbour, and the
    /// error of one that was written again since it was clean may still come.
    pub(super) fn droppable(&self) -> Droppable {
        let Some((action, batch)) = &self.working else { return Droppable::default() };
        let mut ranges = batch.ranges.clone();
        if *action == Action::Retry {
            let again = self.started.iter().flat_map(|batch| &batch.ranges).copied();
            let again = again.chain(self.doubtful.within(ByteRange::starting_at(0)));
            again.for_each(|pages| subtract(&mut ranges, pages));
        }
        for &range in &batch.ranges {
            self.dirty.pages_in(range).for_each(|pages| subtract(&mut ranges, pages));
        }
        self.announced.iter().for_each(|&pages| subtract(&mut ranges, pages));
        let clean_bytes = bytes_of(&ranges);
        for &range in &batch.ranges {
            self.keep.within(range).for_each(|pages| subtract(&mut ranges, pages));
        }
        Droppable { kept_bytes: clean_bytes - bytes_of(&ranges), ranges }
    }

    /// The batch at work is clean, and all of it dropped but `left`. Returns the bytes given up:
    /// they stay in the cache, and the window has nothing more to do with them.
    pub(super) fn finished(&mut self, left: Vec<ByteRange>, now: Instant) -> u64 {
        let Some((action, batch)) = self.working.take() else { return 0 };
        if action == Action::Finish {
            self.started_bytes -= bytes_of(&batch.ranges);
        }
        let mut left = self.clean_and_ours(&batch, left);
        left.retain(|&pages| {
            let is_beside = self.is_beside_unclean(pages);
            if is_beside {
                self.deferred.insert(pages);
            }
            !is_beside
        });
        let left_bytes = bytes_of(&left);
        let tries = batch.tries + 1;
        let retries = self.leftovers.iter().filter(|batch| batch.tries > 0).count();
        let given_up = tries >= TRIES_MAX || retries >= LEFTOVERS_MAX;
        if !left.is_empty() && !given_up {
            let at = now + RETRY_AFTER * tries;
            let index = self.leftovers.partition_point(|other| other.at <= at);
            self.leftovers.insert(index, Batch { ranges: left, at, tries });
        }
        self.stop_keeping(&batch.ranges);
        self.leave_if_empty() + if given_up { left_bytes } else { 0 }
    }

    /// The batch at work seems clean, but a flush is under way that may have taken its error: it is
    /// dropped after [`flush_ended`](Self::flush_ended).
    pub(super) fn put_off(&mut self) {
        let Some((_, batch)) = self.working.take() else { return };
        self.started_bytes -= bytes_of(&batch.ranges);
        batch.ranges.into_iter().for_each(|pages| self.doubtful.insert(pages));
        self.leave_if_empty();
    }

    /// No flush is under way any more. What was put off for one is dropped next.
    pub(super) fn flush_ended(&mut self, now: Instant) {
        let doubtful = std::mem::take(&mut self.doubtful);
        let mut batch = Batch { ranges: Vec::new(), at: now, tries: 0 };
        let mut batch_bytes = 0;
        // In the sizes of write-backs: a step of all of it would hold up the file for long.
        for range in doubtful.within(ByteRange::starting_at(0)) {
            batch_bytes += range.len();
            batch.ranges.push(range);
            if batch_bytes >= self.limits.run_bytes {
                let next = Batch { ranges: Vec::new(), at: now, tries: 0 };
                self.leftovers.push_front(std::mem::replace(&mut batch, next));
                batch_bytes = 0;
            }
        }
        if !batch.ranges.is_empty() {
            self.leftovers.push_front(batch);
        }
    }

    /// A write-back has failed, which may be that of any page in the window: all of them stay in
    /// the page cache.
    pub(super) fn keep_all(&mut self) {
        let everywhere = ByteRange::starting_at(0);
        let working = self.working.iter().map(|(_, batch)| batch);
        let batches = self.started.iter().chain(&self.leftovers).chain(working);
        let ours = batches
            .flat_map(|batch| &batch.ranges)
            .chain(&self.announced)
            .copied()
            .chain(self.dirty.pages_in(everywhere))
            .chain(self.deferred.within(everywhere))
            .chain(self.doubtful.within(everywhere));
        ours.for_each(|pages| self.keep.insert(pages));
    }

    /// Whether an arrival comes late. A range that continues a run, or the arrival before it, is a
    /// stream of its own; one inside a run is written a second time.
    fn judge(&self, range: ByteRange) -> Arrival {
        if range.offset() >= self.furthest || range.offset() == self.last_end {
            return Arrival::default();
        }
        let before = self.dirty.at_or_before(range.offset()).map_or(0, |(_, run)| run.end);
        if before >= range.end() {
            return Arrival::default();
        }
        let next = self.dirty.at_or_before(range.end());
        let joins_next = next.is_some_and(|(start, _)| start > range.offset());
        let continues = before >= range.offset() && before > 0;
        Arrival {
            out_of_order: joins_next || !continues,
            put_in_order: joins_next,
            ..Arrival::default()
        }
    }

    /// The ranges to begin with, taken out of the dirty runs, and how many edges are among them.
    fn take_dirty(&mut self, now: Instant, urgency: Urgency) -> Option<(Vec<ByteRange>, u64)> {
        let (picked, edges) = self.pick(now, urgency);
        let edges = if edges { bytes_of(&picked) / self.limits.page_bytes } else { 0 };
        let mut ranges: Vec<ByteRange> = Vec::with_capacity(picked.len());
        for part in picked {
            match ranges.last_mut() {
                Some(last) if last.end() >= part.offset() => {
                    *last = ByteRange::between(last.offset(), last.end().max(part.end()));
                }
                _ => ranges.push(part),
            }
        }
        self.cursor = ranges.last()?.end();
        self.add_deferred(&mut ranges);
        // A page goes as a whole, with what other runs have of it.
        self.dirty.remove(&ranges);
        self.started_bytes += bytes_of(&ranges);
        Some((ranges, edges))
    }

    /// The ranges to begin with: whole pages, ascending, and whether they are those of edges. Two
    /// of the ranges can share a page.
    fn pick(&self, now: Instant, urgency: Urgency) -> (Vec<ByteRange>, bool) {
        let (dirty, age_max) = (&self.dirty, self.limits.age_max);
        let is_overdue = dirty.oldest().is_some_and(|oldest| oldest + age_max <= now);
        let edges = match urgency {
            Urgency::Draining => return (dirty.all_pages(self.cursor), false),
            Urgency::Starved => dirty.oldest_edges(),
            Urgency::Pressed | Urgency::Relaxed if self.defers_much() => dirty.oldest_edges(),
            Urgency::Pressed | Urgency::Relaxed => Vec::new(),
        };
        if !edges.is_empty() {
            return (edges, true);
        }
        let pages = match urgency {
            Urgency::Relaxed if !is_overdue => dirty.full_runs(self.cursor),
            // Data that will be overdue soon goes along: it is on the way.
            Urgency::Relaxed => dirty.whole_pages(self.cursor, now, age_max / 2),
            _ => dirty.whole_pages(self.cursor, now, Duration::ZERO),
        };
        if pages.is_empty() { (dirty.expired_edges(now), true) } else { (pages, false) }
    }

    /// Whether many clean pages wait for half-filled ones beside them, in folios with them.
    fn defers_much(&self) -> bool {
        self.deferred.bytes() > self.limits.run_bytes && self.dirty.edge_bytes() > 0
    }

    fn take_started(&mut self) -> Option<Batch> {
        let mut batch = self.started.pop_front()?;
        self.started_bytes -= bytes_of(&batch.ranges);
        self.add_deferred(&mut batch.ranges);
        self.started_bytes += bytes_of(&batch.ranges);
        Some(batch)
    }

    /// Adds what waits beside the ranges of a batch.
    fn add_deferred(&mut self, ranges: &mut Vec<ByteRange>) {
        if self.deferred.is_empty() {
            return;
        }
        let mut all = RangeSet::default();
        for &range in &*ranges {
            all.insert(range);
            while let Some(beside) = self.deferred.take_touching(range) {
                all.insert(beside);
            }
        }
        *ranges = all.within(ByteRange::starting_at(0)).collect();
    }

    /// The pages of a batch that are still to be dropped: `left`, and those that were spared for a
    /// write that may never come. Not those that are dirty again; they go their way.
    fn clean_and_ours(&self, batch: &Batch, left: Vec<ByteRange>) -> Vec<ByteRange> {
        let mut all = RangeSet::default();
        for &range in &batch.ranges {
            // A truncation or a release has taken the rest out of the batch meanwhile.
            left.iter().for_each(|pages| all.insert(pages.intersection(range)));
            self.announced.iter().for_each(|pages| all.insert(pages.intersection(range)));
        }
        for &range in &batch.ranges {
            for theirs in self.dirty.pages_in(range).chain(self.keep.within(range)) {
                all.remove(theirs);
            }
        }
        all.within(ByteRange::starting_at(0)).collect()
    }

    /// Whether pages beside these are still to be written, or on their way.
    fn is_beside_unclean(&self, pages: ByteRange) -> bool {
        let start = pages.offset().saturating_sub(self.limits.page_bytes);
        let end = pages.end().saturating_add(self.limits.page_bytes).min(OFFSET_MAX);
        let around = ByteRange::between(start, end);
        let mut on_their_way = self.started.iter().flat_map(|batch| &batch.ranges);
        self.dirty.pages_in(around).next().is_some()
            || on_their_way.any(|&ours| ours.overlaps(around))
    }

    /// Begins anew if nothing is left. Returns the bytes given up with that.
    fn leave_if_empty(&mut self) -> u64 {
        if !self.is_empty() {
            return 0;
        }
        (self.cursor, self.furthest, self.last_end) = (0, 0, 0);
        let everywhere = ByteRange::starting_at(0);
        let given_up = self.deferred.remove(everywhere);
        self.stop_keeping(&[everywhere]);
        given_up
    }

    fn recount(&self) -> u64 {
        let started: u64 = self.started.iter().map(|batch| bytes_of(&batch.ranges)).sum();
        let working = self.working.iter().filter(|(action, _)| *action != Action::Retry);
        started + working.map(|(_, batch)| bytes_of(&batch.ranges)).sum::<u64>()
    }

    /// The parts of `pages` that the window has nothing to do with.
    fn outside(&self, pages: ByteRange) -> Vec<ByteRange> {
        let mut parts = vec![pages];
        self.dirty.pages_in(pages).for_each(|ours| subtract(&mut parts, ours));
        let working = self.working.iter().map(|(_, batch)| batch);
        for batch in self.started.iter().chain(&self.leftovers).chain(working) {
            let first = batch.ranges.partition_point(|ours| ours.end() <= pages.offset());
            let ours = batch.ranges[first..].iter().take_while(|ours| ours.offset() < pages.end());
            ours.for_each(|&ours| subtract(&mut parts, ours));
        }
        let waiting = self.deferred.within(pages).chain(self.doubtful.within(pages));
        waiting.for_each(|ours| subtract(&mut parts, ours));
        self.announced.iter().for_each(|&ours| subtract(&mut parts, ours));
        parts
    }

    /// Forgets what was to be kept of `pages`, unless they are in the window still.
    fn stop_keeping(&mut self, pages: &[ByteRange]) {
        if self.keep.is_empty() {
            return;
        }
        for gone in pages.iter().flat_map(|&pages| self.outside(pages)).collect::<Vec<_>>() {
            self.keep.remove(gone);
        }
    }

    fn pages_of(&self, range: ByteRange) -> ByteRange {
        range.widened_to(self.limits.page_bytes)
    }
}

/// Bytes of all the ranges.
pub(super) fn bytes_of(ranges: &[ByteRange]) -> u64 {
    ranges.iter().map(|range| range.len()).sum()
}

/// Batches of one file on their way to the disk at once. With two, the disk has the next one while
/// the first is waited for and dropped.
const STARTED_MAX: usize = 2;

/// After this, waiting for a batch is worth a thread even if no newer one is on its way.
const SETTLE: Duration = Duration::from_millis(20);

/// A page that cannot be dropped is tried again this much later, and later still each time.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// Then it stays.
const TRIES_MAX: u32 = 4;

/// Batches of a file that wait to be tried again, at most.
const LEFTOVERS_MAX: usize = 64;

#[cfg(test)]
mod tests;
