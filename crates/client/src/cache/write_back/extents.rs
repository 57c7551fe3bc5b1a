//! The uncommitted data of a file, and the next call to make.
//!
//! A byte is *unsent*, then *in flight* in a WRITE, then *unstable* until COMMIT returns the
//! verifier of its WRITE, and then dropped. A newer byte may lie above one that is in flight or
//! unstable; it is sent after the reply to the WRITE beneath it, so that the order at the server is
//! the order of the writers. Data in flight does not overlap, nor does unstable data: a WRITE over
//! unstable data replaces it, and takes its epoch. See [`super::sent`] for foreign changes.
//!
//! Pure: without clock, lock and calls. The caller passes the time and the replies.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::nfs3::{Procedure, StableHow, WriteOk, WriteVerifier};
use proto::xdr::DecodeError;

use super::budget::Rooms;
use super::chunk::index;
use super::epochs::Deadlines;
use super::kept::{Kept, KeptBudget};
use super::retired::{Mark, Retired};
use super::sent::{SentData, SentExtent, UnstableReply};
use super::unsent::{Caller, Origin, Placed, Run, Unsent};
use crate::error::{Error, Result};

/// The limits of calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes of a WRITE at most, and the alignment of WRITEs.
    pub(super) write_bytes: u32,
    /// WRITEs in flight at most.
    pub(super) in_flight_max: usize,
    /// From this number of unstable bytes on they are committed without a request.
    pub(super) commit_bytes: u64,
    /// Unstable pieces at most: with so many no WRITE is sent, and from half of them on they are
    /// committed without a request.
    pub(super) pieces_max: usize,
}

/// The written data of one file.
pub(super) struct Extents<T> {
    limits: Limits,
    unsent: Unsent<T>,
    /// Blocks to be sent.
    ready: BTreeMap<u64, Ready>,
    /// When blocks are too old to wait for more data.
    ages: Deadlines,
    /// When blocks have waited long enough for their predecessors.
    patience: Deadlines,
    sent: SentData<T>,
    /// While data is unstable: since when, or since the latest COMMIT.
    unstable_since: Option<Instant>,
    /// The latest write verifier.
    verifier: Option<WriteVerifier>,
    /// The place of the next event: a reply to a WRITE, the sending of a COMMIT, or a foreign
    /// change. A COMMIT covers the replies before its sending.
    ordinal: u64,
    /// The place of the latest foreign change; 0 for none.
    foreign_at: u64,
    /// The place of the latest one that an open has waited for.
    awaited_at: u64,
    /// Data sent before a foreign change was committed, or data was given up that the server has
    /// lost repeatedly, and readers may have cached it: the calls of its writer, until
    /// [`superseded_noted`](Self::superseded_noted).
    superseded: Option<T>,
    /// The ordinal of the COMMIT in flight.
    commit: Option<u64>,
    /// The end of the latest WRITE.
    cursor: u64,
    /// The current epoch.
    epoch: u64,
    /// Up to which epochs data was requested to be answered, and committed.
    goals: Goals,
    /// While it is not 0, no WRITE is sent.
    pauses: usize,
    retired: Retired,
}

/// When a block is to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    /// It is complete. It waits until this time for its predecessors, which may be written soon.
    Complete(Instant),
    /// At once.
    Now,
}

#[derive(Default)]
struct Goals {
    answered: u64,
    committed: u64,
}

/// The requested state of written data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// The server has replied to its WRITE.
    Answered,
    /// It is on the server's stable storage.
    Committed,
}

/// A call to make.
pub(super) enum Action<T> {
    /// WRITE, to be followed by [`Extents::written`].
    Write {
        /// The calls of the user.
        caller: T,
        /// Its offset.
        offset: u64,
        /// Its data.
        data: Bytes,
        /// How the server stores it.
        stable: StableHow,
        /// Whether a server has lost these bytes before.
        again: bool,
    },
    /// COMMIT of the whole file, to be followed by [`Extents::committed`].
    Commit {
        /// The calls of each user who wrote part of the data.
        callers: Vec<T>,
    },
}

impl<T: Caller> Extents<T> {
    pub(super) fn new(limits: Limits, kept: &KeptBudget) -> Self {
        Self {
            limits,
            unsent: Unsent::new(u64::from(limits.write_bytes)),
            ready: BTreeMap::new(),
            ages: Deadlines::default(),
            patience: Deadlines::default(),
            sent: SentData::default(),
            unstable_since: None,
            verifier: None,
            ordinal: 1,
            foreign_at: 0,
            awaited_at: 0,
            superseded: None,
            commit: None,
            cursor: 0,
            epoch: 1,
            goals: Goals::default(),
            pauses: 0,
            retired: Retired::new(Kept::new(kept.clone(), u64::from(limits.write_bytes))),
        }
    }

    /// Writes a prefix of `data` at `offset`, limited by the end of the block and by the room.
    pub(super) fn write(
        &mut self,
        caller: &T,
        offset: u64,
        data: &[u8],
        rooms: &mut Rooms<'_>,
        now: impl Fn() -> Instant,
    ) -> Placed {
        let block = self.unsent.block_of(offset);
        let rest = index(u64::from(self.limits.write_bytes) - (offset - block));
        let data = &data[..data.len().min(rest)];
        let placed = self.unsent.write((caller, self.epoch), offset, data, rooms, &now);
        self.retired.kept.note_write(offset, placed.count);
        self.schedule(block, placed, now);
        placed
    }

    /// Adopts `data` at `offset` without the copy that [`write`](Self::write) makes. Returns
    /// `None`, and does nothing, unless it is one whole block without unsent data, and there is
    /// room.
    pub(super) fn adopt(
        &mut self,
        caller: &T,
        offset: u64,
        data: &Bytes,
        rooms: &mut Rooms<'_>,
        now: impl Fn() -> Instant,
    ) -> Option<Placed> {
        let is_block = data.len() as u64 == u64::from(self.limits.write_bytes)
            && self.unsent.block_of(offset) == offset;
        if !is_block {
            return None;
        }
        let placed = self.unsent.adopt((caller, self.epoch), offset, data, rooms, &now)?;
        self.retired.kept.note_write(offset, placed.count);
        self.schedule(offset, placed, now);
        Some(placed)
    }

    /// Schedules a block after a write.
    fn schedule(&mut self, block: u64, placed: Placed, now: impl Fn() -> Instant) {
        if placed.is_new {
            self.ages.push(now() + AGE_MAX, block);
        }
        if placed.is_complete && placed.count > 0 && !self.ready.contains_key(&block) {
            let due = now() + NEIGHBOUR_WAIT;
            self.ready.insert(block, Ready::Complete(due));
            self.patience.push(due, block);
        }
    }

    /// Requests `goal` for all data written so far. Returns the epoch for
    /// [`is_reached`](Self::is_reached).
    pub(super) fn request(&mut self, goal: Goal) -> u64 {
        let epoch = self.epoch;
        self.epoch += 1;
        match goal {
            Goal::Answered => self.goals.answered = epoch,
            Goal::Committed => self.goals.committed = epoch,
        }
        self.ready.extend(self.unsent.blocks().map(|block| (block, Ready::Now)));
        epoch
    }

    /// Whether the data written up to `epoch` has reached `goal`.
    pub(super) fn is_reached(&self, goal: Goal, epoch: u64) -> bool {
        !self.is_unanswered(epoch) && (goal == Goal::Answered || !self.sent.has_unstable(epoch))
    }

    /// Whether a WRITE is in flight.
    pub(super) fn has_in_flight(&self) -> bool {
        self.sent.in_flight() > 0
    }

    fn is_unanswered(&self, epoch: u64) -> bool {
        self.unsent.epochs().reach(epoch) || self.sent.has_in_flight(epoch)
    }

    /// The call to make now, if any.
    pub(super) fn next(&mut self, now: Instant) -> Option<Action<T>> {
        self.expire(now);
        if self.is_commit_due(now) {
            self.commit = Some(self.ordinal);
            self.ordinal += 1;
            return Some(Action::Commit { callers: self.sent.unstable_callers() });
        }
        let is_full = self.sent.unstable_pieces() >= self.limits.pieces_max;
        if self.sent.in_flight() >= self.limits.in_flight_max || self.pauses > 0 || is_full {
            return None;
        }
        let run = self.pick()?;
        Some(self.send(run))
    }

    /// When to call [`next`](Self::next) again without another event.
    pub(super) fn wake_at(&mut self) -> Option<Instant> {
        let Self { unsent, ready, .. } = self;
        let is_young = |due, block| {
            unsent.since(block).is_some_and(|since| since + AGE_MAX == due)
                && ready.get(&block) != Some(&Ready::Now)
        };
        let age = self.ages.first(is_young);
        let patience =
            self.patience.first(|due, block| ready.get(&block) == Some(&Ready::Complete(due)));
        let is_due = self.sent.unstable_bytes() > 0 && self.commit.is_none();
        let commit = self.unstable_since.filter(|_| is_due).map(|since| since + AGE_MAX);
        [age, patience, commit].into_iter().flatten().min()
    }

    /// Makes blocks ready that are too old to wait.
    fn expire(&mut self, now: Instant) {
        while let Some((due, block)) = self.ages.pop_due(now) {
            if self.unsent.since(block).is_some_and(|since| since + AGE_MAX == due) {
                self.ready.insert(block, Ready::Now);
            }
        }
        while let Some((due, block)) = self.patience.pop_due(now) {
            if self.ready.get(&block) == Some(&Ready::Complete(due)) {
                self.ready.insert(block, Ready::Now);
            }
        }
    }

    fn is_commit_due(&self, now: Instant) -> bool {
        let asked_for = self.sent.has_unstable(self.goals.committed)
            && !self.is_unanswered(self.goals.committed);
        let is_old = self.unstable_since.is_some_and(|since| since + AGE_MAX <= now);
        let is_much = self.sent.unstable_bytes() >= self.limits.commit_bytes
            || self.sent.unstable_pieces() >= self.limits.pieces_max / 2;
        let is_in_doubt =
            self.sent.unstable_bytes() > 0 && self.sent.has_sent_before(self.awaited_at);
        let is_due = asked_for || is_old || is_much || is_in_doubt;
        is_due && self.commit.is_none() && self.sent.unstable_pieces() > 0
    }

    /// The run to send next: upwards from the end of the latest WRITE, then from the start.
    fn pick(&self) -> Option<Run> {
        let from = self.unsent.block_of(self.cursor);
        self.ready
            .range(from..)
            .chain(self.ready.range(..from))
            .filter(|&(&block, &ready)| ready == Ready::Now || self.is_next(block))
            .find_map(|(&block, _)| self.unsent.runs(block).find(|run| self.may_send(*run)))
    }

    /// Whether no data is expected before `block`: it continues the latest WRITE, lies before its
    /// end, or so far ahead that the writer has moved. Parallel writers of one stream, as kernel
    /// threads are, write slightly out of order.
    fn is_next(&self, block: u64) -> bool {
        let start = self.unsent.start_of(block).unwrap_or(block);
        let ahead = start.saturating_sub(self.cursor);
        ahead == 0 || ahead > NEIGHBOUR_BLOCKS * u64::from(self.limits.write_bytes)
    }

    /// Whether `run` may be sent over the data beneath it. Not over data in flight, because a
    /// server may execute the two WRITEs in either order. And while a request waits, newer data is
    /// not sent over older data: it would take the older epoch, and a continuous writer could delay
    /// the request for ever.
    fn may_send(&self, run: Run) -> bool {
        let Goals { answered, committed } = self.goals;
        let answered = if self.is_unanswered(answered) { answered } else { 0 };
        self.sent.overlapping(run.start, run.end).all(|(_, beneath)| {
            let is_parted = |goal| beneath.origin.epoch <= goal && run.epoch > goal;
            !beneath.is_in_flight() && !is_parted(answered) && !is_parted(committed)
        })
    }

    fn send(&mut self, run: Run) -> Action<T> {
        let goal = self.goals.committed;
        // One WRITE with all data: FILE_SYNC is cheaper than a COMMIT behind it.
        let is_alone = self.sent.is_empty() && self.unsent.is_only(run);
        let stable = match is_alone && run.epoch <= goal {
            true => StableHow::FileSync,
            false => StableHow::Unstable,
        };
        let (data, mut origin) = self.unsent.take(run);
        let block = self.unsent.block_of(run.start);
        if self.unsent.since(block).is_none() {
            self.ready.remove(&block);
        }
        origin.epoch = origin.epoch.min(self.sent.replace(run));
        self.cursor = run.end;
        let (caller, again) = (origin.caller.clone(), origin.losses > 0);
        self.sent.send(run.start, data.clone(), origin, self.ordinal);
        Action::Write { caller, offset: run.start, data, stable, again }
    }

    /// Processes the reply to the WRITE at `offset`.
    ///
    /// # Errors
    /// Data is lost: the server refused it, returned a malformed reply, or lost the data
    /// repeatedly.
    pub(super) fn written(
        &mut self,
        offset: u64,
        answer: Result<WriteOk>,
        now: Instant,
    ) -> Result<()> {
        let sent = self.sent.take_answered(offset);
        let answer = answer?;
        let count = u64::from(answer.count);
        if count == 0 || count > sent.len() {
            let error = DecodeError { what: "WriteOk.count", at_byte: 0 };
            return Err(Error::Malformed { procedure: Procedure::Write.name(), error });
        }
        if count < sent.len() {
            let rest = sent.bytes.slice(index(count)..);
            self.put_back(&sent.origin, offset + count, &rest, now);
        }
        let head = sent.part(0, count);
        let reply = UnstableReply { verifier: answer.verifier, ordinal: self.ordinal };
        self.ordinal += 1;
        match answer.committed {
            StableHow::Unstable => {
                if self.sent.unstable_bytes() == 0 {
                    self.unstable_since = Some(now);
                }
                self.sent.add_unstable(offset, head, reply);
            }
            StableHow::DataSync | StableHow::FileSync => self.retire(offset, head, reply.ordinal),
        }
        if self.verifier.replace(answer.verifier) == Some(answer.verifier) {
            return Ok(());
        }
        self.lose(now, |reply| reply.verifier != answer.verifier)
    }

    /// Processes the reply to the COMMIT in flight.
    ///
    /// # Errors
    /// Those of [`written`](Self::written).
    pub(super) fn committed(&mut self, answer: Result<WriteVerifier>, now: Instant) -> Result<()> {
        let commit = self.commit.take().expect("only a COMMIT that was sent is answered");
        let confirmed = answer.as_ref().ok().copied();
        let covered = self.sent.unstable(|reply| {
            reply.ordinal < commit && (answer.is_err() || confirmed == Some(reply.verifier))
        });
        for offset in covered {
            let sent = self.sent.take_unstable(offset);
            if answer.is_ok() {
                let answered_at = sent.answered_at().expect("it was unstable");
                self.retire(offset, sent, answered_at);
            }
        }
        self.unstable_since = Some(now);
        self.verifier = Some(answer?);
        self.lose(now, |reply| reply.ordinal < commit)
    }

    /// Drops data that is on stable storage, or holds it for readers.
    fn retire(&mut self, offset: u64, sent: SentExtent<T>, answered_at: u64) {
        if sent.was_sent_before(self.foreign_at) {
            self.superseded = Some(sent.origin.caller.clone());
        } else {
            self.retired.kept.committed(offset, &sent.bytes);
        }
        self.retired.push(offset, sent.bytes, answered_at);
    }

    /// Schedules the unstable data that the server has lost, by the reply to its WRITE, to be sent
    /// again.
    fn lose(&mut self, now: Instant, is_lost: impl Fn(UnstableReply) -> bool) -> Result<()> {
        let lost = self.sent.unstable(is_lost);
        // Again in ascending order, as the first time.
        self.cursor = lost.first().copied().unwrap_or(self.cursor);
        let mut outcome = Ok(());
        for offset in lost {
            let mut sent = self.sent.take_unstable(offset);
            sent.origin.losses += 1;
            if sent.origin.losses > LOSSES_MAX {
                outcome = Err(Error::Forgetful { times: sent.origin.losses });
                // Caches above may have it, as after the error of a WRITE.
                self.superseded = Some(sent.origin.caller);
            } else {
                self.put_back(&sent.origin, offset, &sent.bytes, now);
            }
        }
        outcome
    }

    fn put_back(&mut self, origin: &Origin<T>, offset: u64, bytes: &Bytes, now: Instant) {
        self.unsent.put_back(origin, offset, bytes, now);
        self.ready.insert(self.unsent.block_of(offset), Ready::Now);
    }

    /// Whether there is no data and no call in flight.
    pub(super) fn is_clean(&self) -> bool {
        self.unsent.is_empty() && self.sent.is_empty() && self.commit.is_none()
    }

    /// The end of the last byte.
    pub(super) fn end(&self) -> Option<u64> {
        self.unsent.end().max(self.sent.end())
    }

    /// The end of the last byte that [`overlay`](Self::overlay) copies with `mark`.
    pub(super) fn end_since(&self, mark: Mark) -> Option<u64> {
        self.end().max(self.retired.end_since(mark))
    }

    /// The end of the contiguous held or kept data at `offset`.
    pub(super) fn held_until(&self, offset: u64) -> u64 {
        let mut at = offset;
        loop {
            let kept = self.retired.kept.covered_until(at);
            match self.unsent.covered_until(at).max(self.sent.covered_until(at)).max(kept) {
                Some(end) => at = end,
                None => return at,
            }
        }
    }

    /// Copies the held data at `offset` into `buf`, over the data answered and committed since
    /// `mark` or, without one, the kept data.
    pub(super) fn overlay(&self, offset: u64, buf: &mut [u8], mark: Option<Mark>) {
        self.retired.overlay(offset, buf, mark);
        self.sent.overlay(offset, buf);
        self.unsent.overlay(offset, buf);
    }

    /// Drops the kept data.
    pub(super) fn forget_kept(&mut self) {
        self.retired.kept.cut(0);
    }

    /// Another client has changed the file: drops the kept data. Data in flight or unstable is not
    /// kept once it is committed.
    pub(super) fn note_foreign_change(&mut self) {
        self.forget_kept();
        self.ordinal += 1;
        self.foreign_at = self.ordinal;
    }

    /// Has data that was sent before the latest foreign change committed at once, for
    /// [`Self::hides`] to end. Returns the place of that change in the order of events.
    pub(super) fn await_foreign_change(&mut self) -> u64 {
        self.awaited_at = self.foreign_at;
        self.foreign_at
    }

    /// Whether data sent before a place in the order of events hides the server's, or caches of it
    /// may do so.
    pub(super) fn hides(&self, place: u64) -> bool {
        self.superseded.is_some() || self.sent.has_sent_before(place)
    }

    /// The calls by which to report that data sent before a foreign change was committed.
    pub(super) fn superseded(&self) -> Option<T> {
        self.superseded.clone()
    }

    /// That was reported.
    pub(super) fn superseded_noted(&mut self) {
        self.superseded = None;
    }

    /// Begins to hold data committed from now on, until [`unmark`](Self::unmark).
    pub(super) fn mark(&mut self) -> Mark {
        self.retired.mark(self.ordinal)
    }

    pub(super) fn unmark(&mut self, mark: Mark) {
        self.retired.unmark(mark);
    }

    /// Stops WRITEs until [`resume`](Self::resume) was called as often.
    pub(super) fn pause(&mut self) {
        self.pauses += 1;
    }

    pub(super) fn resume(&mut self) {
        self.pauses -= 1;
    }

    /// Drops all data from `size` on. Returns `false`, and drops nothing, if a WRITE behind `size`
    /// is in flight.
    pub(super) fn cut(&mut self, size: u64) -> bool {
        if !self.sent.cut(size) {
            return false;
        }
        self.unsent.cut(size);
        let gone = self.ready.split_off(&self.unsent.block_of(size));
        for (block, ready) in gone {
            if self.unsent.since(block).is_some() {
                self.ready.insert(block, ready);
            }
        }
        self.retired.cut(size);
        true
    }

    /// Panics unless the parts are consistent.
    #[cfg(test)]
    fn verify(&self) {
        self.unsent.verify();
        self.sent.verify();
        let is_held = |block: &u64| self.unsent.since(*block).is_some();
        assert!(self.ready.keys().all(is_held), "an empty block is ready");
    }
}

/// Data waits at most this long for more data and for its COMMIT. A crash of this process loses at
/// most this, unless the server does not reply. The kernel's clients wait for 30 s, but they do not
/// exit with a program.
pub(super) const AGE_MAX: Duration = Duration::from_secs(5);
/// A complete block waits at most this long for the data before it, which parallel writers may be
/// about to write. A request overrides it.
const NEIGHBOUR_WAIT: Duration = Duration::from_millis(20);
/// Only blocks within this distance of the latest WRITE wait for their predecessors; farther ones
/// belong to another position of the writer.
const NEIGHBOUR_BLOCKS: u64 = 64;
/// After a server has lost the same data this often, it is not sent again.
const LOSSES_MAX: u32 = 8;

#[cfg(test)]
mod tests;
