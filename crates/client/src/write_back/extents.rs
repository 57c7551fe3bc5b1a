//! What of a file is written and not yet committed, and which call is to be made next.
//!
//! A byte is *unsent*, then *in flight* in a WRITE, then *unstable* until COMMIT returns the
//! verifier of its WRITE, and then gone. A newer byte may lie above one that is in flight or
//! unstable; it is sent when the WRITE beneath it has been answered, so that the order at the server
//! is the order of the writers. What is in flight never overlaps, and neither does what is unstable:
//! a WRITE that is sent over unstable data takes its place, and its age.
//!
//! There is no clock, no lock and no call in here: who uses it brings the time and the answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::nfs3::{StableHow, WriteOk, WriteVerifier};
use proto::xdr::DecodeError;

use super::budget::Rooms;
use super::epochs::{Deadlines, Epochs};
use super::kept::{Kept, KeptBudget};
use super::retired::Retired;
use super::unsent::{Caller, Origin, Placed, Run, Unsent, copy_overlap, index};
use crate::error::{Error, Result};

/// How calls are made out of data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes of a WRITE at most; also what WRITEs are aligned to.
    pub(super) write_bytes: u32,
    /// WRITEs that await their answer at most.
    pub(super) in_flight_max: usize,
    /// From so many unstable bytes on they are committed without being asked for.
    pub(super) commit_bytes: u64,
}

/// The written data of one file.
pub(super) struct Extents<T> {
    limits: Limits,
    unsent: Unsent<T>,
    /// Blocks that are to be sent.
    ready: BTreeMap<u64, Ready>,
    /// When blocks become too old to wait for more data.
    ages: Deadlines,
    /// When blocks have waited long enough for those before them.
    patience: Deadlines,
    /// In flight or unstable, by offset.
    sent: BTreeMap<u64, Sent<T>>,
    in_flight: usize,
    in_flight_epochs: Epochs,
    unstable_epochs: Epochs,
    unstable_bytes: u64,
    /// While something is unstable: since when, or since the latest COMMIT.
    unstable_since: Option<Instant>,
    /// The verifier that the server told last.
    verifier: Option<WriteVerifier>,
    /// Ordinal of the next answer or COMMIT: a COMMIT covers what was answered before it was sent.
    ordinal: u64,
    /// That of the COMMIT under way.
    commit: Option<u64>,
    /// Where the latest WRITE ended.
    cursor: u64,
    /// The epoch of what is written now.
    epoch: u64,
    /// Up to these epochs all is to be answered, and committed.
    goals: Goals,
    /// While it is not 0 nothing is sent.
    pauses: usize,
    retired: Retired,
}

/// Why a block is to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    /// It is complete, and its predecessors may be on their way: it waits for them until then.
    Complete(Instant),
    /// Somebody waits for it.
    Now,
}

struct Sent<T> {
    bytes: Bytes,
    origin: Origin<T>,
    state: SentState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SentState {
    InFlight,
    Unstable { verifier: WriteVerifier, answered: u64 },
}

#[derive(Default)]
struct Goals {
    answered: u64,
    committed: u64,
}

/// How far what was written is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// The server has it.
    Answered,
    /// The server has it on stable storage.
    Committed,
}

/// A call to be made.
pub(super) enum Action<T> {
    /// WRITE; to be followed by [`Extents::written`].
    Write {
        /// As whom.
        caller: T,
        /// Where.
        offset: u64,
        /// What.
        data: Bytes,
        /// How durable.
        stable: StableHow,
        /// Whether a server lost these bytes before.
        again: bool,
    },
    /// COMMIT of the whole file; to be followed by [`Extents::committed`].
    Commit {
        /// As whom.
        caller: T,
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
            sent: BTreeMap::new(),
            in_flight: 0,
            in_flight_epochs: Epochs::default(),
            unstable_epochs: Epochs::default(),
            unstable_bytes: 0,
            unstable_since: None,
            verifier: None,
            ordinal: 0,
            commit: None,
            cursor: 0,
            epoch: 1,
            goals: Goals::default(),
            pauses: 0,
            retired: Retired::new(Kept::new(kept.clone(), u64::from(limits.write_bytes))),
        }
    }

    /// Puts a prefix of `data` at `offset`: no more than the rest of a block, and no more than
    /// there is room for.
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

    /// Takes over `data` at `offset`, to spare the copy that [`write`](Self::write) makes. `None`,
    /// and nothing has happened, unless it is one whole block where nothing is unsent, and there is
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

    /// Notes when a block that was written to is to be sent.
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

    /// Asks that all written so far gets to `goal`; [`is_reached`](Self::is_reached) takes the
    /// result.
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

    /// Whether what was written up to `epoch` is where it was to get.
    pub(super) fn is_reached(&self, goal: Goal, epoch: u64) -> bool {
        !self.is_unanswered(epoch) && (goal == Goal::Answered || !self.unstable_epochs.reach(epoch))
    }

    fn is_unanswered(&self, epoch: u64) -> bool {
        self.unsent.epochs().reach(epoch) || self.in_flight_epochs.reach(epoch)
    }

    /// The call to make now, if there is one.
    pub(super) fn next(&mut self, now: Instant) -> Option<Action<T>> {
        self.expire(now);
        if let Some(caller) = self.commit_due(now) {
            self.commit = Some(self.ordinal);
            self.ordinal += 1;
            return Some(Action::Commit { caller });
        }
        if self.in_flight >= self.limits.in_flight_max || self.pauses > 0 {
            return None;
        }
        let run = self.pick()?;
        Some(self.send(run))
    }

    /// When [`next`](Self::next) has something although nothing else happened.
    pub(super) fn wake_at(&mut self) -> Option<Instant> {
        let Self { unsent, ready, .. } = self;
        let is_young = |due, block| {
            unsent.since(block).is_some_and(|since| since + AGE_MAX == due)
                && ready.get(&block) != Some(&Ready::Now)
        };
        let age = self.ages.first(is_young);
        let patience =
            self.patience.first(|due, block| ready.get(&block) == Some(&Ready::Complete(due)));
        let is_due = self.unstable_bytes > 0 && self.commit.is_none();
        let commit = self.unstable_since.filter(|_| is_due).map(|since| since + AGE_MAX);
        [age, patience, commit].into_iter().flatten().min()
    }

    /// What is too old to wait is ready now.
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

    /// As whom to commit, if it is time.
    fn commit_due(&self, now: Instant) -> Option<T> {
        let asked_for = self.unstable_epochs.reach(self.goals.committed)
            && !self.is_unanswered(self.goals.committed);
        let is_old = self.unstable_since.is_some_and(|since| since + AGE_MAX <= now);
        let is_much = self.unstable_bytes >= self.limits.commit_bytes;
        if self.commit.is_some() || !(asked_for || is_old || is_much) {
            return None;
        }
        let is_unstable = |sent: &&Sent<T>| sent.state != SentState::InFlight;
        self.sent.values().find(is_unstable).map(|sent| sent.origin.caller.clone())
    }

    /// What to send next: upwards from where the latest WRITE ended, then from the start again.
    fn pick(&self) -> Option<Run> {
        let from = self.unsent.block_of(self.cursor);
        self.ready
            .range(from..)
            .chain(self.ready.range(..from))
            .filter(|&(&block, &ready)| ready == Ready::Now || self.is_next(block))
            .find_map(|(&block, _)| self.unsent.runs(block).find(|run| self.may_send(*run)))
    }

    /// Whether no earlier data is to be expected before `block`: it continues what was sent, lies
    /// behind it, or so far ahead that the writer has gone elsewhere. Writers of one stream that
    /// run in parallel, as the threads of a kernel do, arrive slightly out of order.
    fn is_next(&self, block: u64) -> bool {
        let start = self.unsent.start_of(block).unwrap_or(block);
        let ahead = start.saturating_sub(self.cursor);
        ahead == 0 || ahead > NEIGHBOUR_BLOCKS * u64::from(self.limits.write_bytes)
    }

    /// Whether `run` may go out while what it overlaps is where it is. Not over data in flight, as
    /// two such WRITEs may be carried out in either order. And while a request waits, what is newer
    /// does not go over what is older: it would take over its age, and a writer that never rests
    /// could keep the request waiting for ever.
    fn may_send(&self, run: Run) -> bool {
        let Goals { answered, committed } = self.goals;
        let answered = if self.is_unanswered(answered) { answered } else { 0 };
        self.overlapping(run.start, run.end).all(|(_, beneath)| {
            let is_parted = |goal| beneath.origin.epoch <= goal && run.epoch > goal;
            beneath.state != SentState::InFlight && !is_parted(answered) && !is_parted(committed)
        })
    }

    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Sent<T>)> {
        let from = self.sent.range(..=start).next_back().map_or(start, |(offset, _)| *offset);
        let sent = self.sent.range(from..end).map(|(offset, sent)| (*offset, sent));
        sent.filter(move |(offset, sent)| offset + sent.len() > start)
    }

    fn send(&mut self, run: Run) -> Action<T> {
        let goal = self.goals.committed;
        // All there is, in one WRITE: cheaper durable at once than with a COMMIT behind it.
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
        origin.epoch = origin.epoch.min(self.replace(run));
        self.in_flight += 1;
        self.in_flight_epochs.add(origin.epoch);
        self.cursor = run.end;
        let (caller, again) = (origin.caller.clone(), origin.losses > 0);
        let sent = Sent { bytes: data.clone(), origin, state: SentState::InFlight };
        self.sent.insert(run.start, sent);
        Action::Write { caller, offset: run.start, data, stable, again }
    }

    /// Takes the unstable data under `run` away; returns the oldest epoch of it.
    fn replace(&mut self, run: Run) -> u64 {
        let beneath: Vec<u64> =
            self.overlapping(run.start, run.end).map(|(offset, _)| offset).collect();
        let mut epoch = u64::MAX;
        for offset in beneath {
            let old = self.take_unstable(offset);
            epoch = epoch.min(old.origin.epoch);
            let end = offset + old.len();
            if offset < run.start {
                self.add_unstable(offset, old.part(0, run.start - offset));
            }
            if end > run.end {
                self.add_unstable(run.end, old.part(run.end - offset, end - offset));
            }
        }
        epoch
    }

    fn take_unstable(&mut self, offset: u64) -> Sent<T> {
        let sent = self.sent.remove(&offset).expect("the caller has found it");
        self.unstable_epochs.remove(sent.origin.epoch);
        self.unstable_bytes -= sent.len();
        sent
    }

    fn add_unstable(&mut self, offset: u64, sent: Sent<T>) {
        self.unstable_epochs.add(sent.origin.epoch);
        self.unstable_bytes += sent.len();
        self.sent.insert(offset, sent);
    }

    /// The answer to the WRITE at `offset`.
    ///
    /// # Errors
    /// Data is lost for good, and somebody has to be told: the server refused it, or its answer
    /// cannot be, or it loses data over and over.
    pub(super) fn written(
        &mut self,
        offset: u64,
        answer: Result<WriteOk>,
        now: Instant,
    ) -> Result<()> {
        let sent = self.sent.remove(&offset).expect("only a WRITE that was sent is answered");
        self.in_flight -= 1;
        self.in_flight_epochs.remove(sent.origin.epoch);
        let answer = answer?;
        let count = u64::from(answer.count);
        if count == 0 || count > sent.len() {
            return Err(Error::Decode(DecodeError { what: "WriteOk.count", at_byte: 0 }));
        }
        if count < sent.len() {
            let rest = sent.bytes.slice(index(count)..);
            self.put_back(&sent.origin, offset + count, &rest, now);
        }
        let head = sent.part(0, count);
        match answer.committed {
            StableHow::Unstable => {
                let state =
                    SentState::Unstable { verifier: answer.verifier, answered: self.ordinal };
                self.ordinal += 1;
                if self.unstable_bytes == 0 {
                    self.unstable_since = Some(now);
                }
                self.add_unstable(offset, Sent { state, ..head });
            }
            StableHow::DataSync | StableHow::FileSync => self.retired.push(offset, head.bytes),
        }
        if self.verifier.replace(answer.verifier) == Some(answer.verifier) {
            return Ok(());
        }
        self.lose(now, |verifier, _| verifier != answer.verifier)
    }

    /// The answer to the COMMIT under way.
    ///
    /// # Errors
    /// As for [`written`](Self::written).
    pub(super) fn committed(&mut self, answer: Result<WriteVerifier>, now: Instant) -> Result<()> {
        let commit = self.commit.take().expect("only a COMMIT that was sent is answered");
        let confirmed = answer.as_ref().ok().copied();
        let mut covered = Vec::new();
        for (offset, sent) in &self.sent {
            if let SentState::Unstable { verifier, answered } = sent.state
                && answered < commit
                && (answer.is_err() || confirmed == Some(verifier))
            {
                covered.push(*offset);
            }
        }
        for offset in covered {
            let sent = self.take_unstable(offset);
            if answer.is_ok() {
                self.retired.push(offset, sent.bytes);
            }
        }
        self.unstable_since = Some(now);
        self.verifier = Some(answer?);
        self.lose(now, |_, answered| answered < commit)
    }

    /// The unstable data that `is_lost` says, of its verifier and the ordinal of its answer, is not
    /// at the server any more: it is to be sent again.
    fn lose(&mut self, now: Instant, is_lost: impl Fn(WriteVerifier, u64) -> bool) -> Result<()> {
        let mut lost = Vec::new();
        for (offset, sent) in &self.sent {
            if let SentState::Unstable { verifier, answered } = sent.state
                && is_lost(verifier, answered)
            {
                lost.push(*offset);
            }
        }
        // Again in the order of the file, as the first time.
        self.cursor = lost.first().copied().unwrap_or(self.cursor);
        let mut outcome = Ok(());
        for offset in lost {
            let mut sent = self.take_unstable(offset);
            sent.origin.losses += 1;
            if sent.origin.losses > LOSSES_MAX {
                outcome = Err(Error::Forgetful { times: sent.origin.losses });
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

    /// Whether there is nothing, and nothing under way.
    pub(super) fn is_clean(&self) -> bool {
        self.unsent.is_empty() && self.sent.is_empty() && self.commit.is_none()
    }

    /// Where the highest byte ends.
    pub(super) fn end(&self) -> Option<u64> {
        let sent = self.sent.last_key_value().map(|(offset, sent)| offset + sent.len());
        self.unsent.end().max(sent)
    }

    /// Up to where all is held or kept from `offset` on.
    pub(super) fn held_until(&self, offset: u64) -> u64 {
        let mut at = offset;
        loop {
            let sent = self.overlapping(at, at.saturating_add(1)).next();
            let sent = sent.map(|(offset, sent)| offset + sent.len());
            let kept = self.retired.kept.covered_until(at);
            match self.unsent.covered_until(at).max(sent).max(kept) {
                Some(end) => at = end,
                None => return at,
            }
        }
    }

    /// Copies what is held of `offset..` into `buf`, over what was since `mark` or, without one, what
    /// is kept.
    pub(super) fn overlay(&self, offset: u64, buf: &mut [u8], mark: Option<u64>) {
        self.retired.overlay(offset, buf, mark);
        let end = offset.saturating_add(buf.len() as u64);
        for (start, sent) in self.overlapping(offset, end) {
            copy_overlap(offset, buf, start, &sent.bytes);
        }
        self.unsent.overlay(offset, buf);
    }

    /// Nothing committed is kept any longer.
    pub(super) fn forget_kept(&mut self) {
        self.retired.kept.cut(0);
    }

    /// From now on what is committed is kept for a reader, until it calls
    /// [`unmark`](Self::unmark).
    pub(super) fn mark(&mut self) -> u64 {
        self.retired.mark()
    }

    pub(super) fn unmark(&mut self, mark: u64) {
        self.retired.unmark(mark);
    }

    /// Holds WRITEs back, until [`resume`](Self::resume) was called as often.
    pub(super) fn pause(&mut self) {
        self.pauses += 1;
    }

    pub(super) fn resume(&mut self) {
        self.pauses -= 1;
    }

    /// Drops all from `size` on, unless a WRITE that reaches there is under way: then nothing, and
    /// the answer is no.
    pub(super) fn cut(&mut self, size: u64) -> bool {
        let beyond: Vec<u64> = self.overlapping(size, u64::MAX).map(|(offset, _)| offset).collect();
        if beyond.iter().any(|offset| self.sent[offset].state == SentState::InFlight) {
            return false;
        }
        for offset in beyond {
            let sent = self.take_unstable(offset);
            if offset < size {
                self.add_unstable(offset, sent.part(0, size - offset));
            }
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

    /// Panics unless the sums are those of the parts, and what was sent does not overlap.
    #[cfg(test)]
    fn verify(&self) {
        self.unsent.verify();
        let (mut in_flight, mut unstable) = (Epochs::default(), Epochs::default());
        let (mut bytes, mut at) = (0, 0);
        for (offset, sent) in &self.sent {
            assert!(*offset >= at && sent.len() > 0, "what was sent overlaps");
            at = offset + sent.len();
            match sent.state {
                SentState::InFlight => in_flight.add(sent.origin.epoch),
                SentState::Unstable { .. } => {
                    bytes += sent.len();
                    unstable.add(sent.origin.epoch);
                }
            }
        }
        assert_eq!((bytes, &unstable), (self.unstable_bytes, &self.unstable_epochs));
        assert_eq!(in_flight, self.in_flight_epochs);
        let is_held = |block: &u64| self.unsent.since(*block).is_some();
        assert!(self.ready.keys().all(is_held), "an empty block is ready");
    }
}

impl<T: Clone> Sent<T> {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The bytes `from..to` of it.
    fn part(&self, from: u64, to: u64) -> Self {
        let bytes = self.bytes.slice(index(from)..index(to));
        Self { bytes, origin: self.origin.clone(), state: self.state }
    }
}

/// Data waits no longer than this for more to be sent with it, and for its COMMIT: what a crash of
/// this process can take, as it holds nothing that is older unless the server does not answer. The
/// kernel's clients wait for 30 s, but they do not die with a program.
pub(super) const AGE_MAX: Duration = Duration::from_secs(5);
/// So long a complete block waits for data before it that parallel writers may be about to bring.
/// Nobody waits with it: a request to settle overrides this.
const NEIGHBOUR_WAIT: Duration = Duration::from_millis(20);
/// Only data at most so many blocks behind the latest WRITE waits for its predecessors; what is
/// farther away is another place.
const NEIGHBOUR_BLOCKS: u64 = 64;
/// A server that has lost the same data so often is not asked again.
const LOSSES_MAX: u32 = 8;

#[cfg(test)]
mod tests;
