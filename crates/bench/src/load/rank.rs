//! One connection at work: a closed loop of READs or WRITEs, so many in flight as is wanted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use proto::nfs3::StableHow;
use rustix::time::{ClockId, clock_gettime};

use super::call::{Broken, PUT_OFF_PAUSE, ReadHead, Refusal, Written, Xids, slot_of, until_taken};
use super::contents::Comparison;
use super::file_calls::FileCalls;
use super::plan::{Direction, Plan, Transfer};
use super::pool::{Pool, Unit, mix};
use super::{Load, LoadFile, Verify};
use crate::record_stream::{COPIED_BYTES_MAX, RecordStream};

/// Failed operations of a rank until it gives up.
pub(super) const ERRORS_MAX: u64 = 16;
/// Of the READs of a phase that verifies samples, the first of each rank is compared, and of the
/// others one in so many.
const SAMPLED: u64 = 64;
/// A COMMIT may take so many times as long as any other call: all that the server holds goes to
/// the disk meanwhile.
const COMMIT_PATIENCE: u32 = 15;
/// The range of latencies, in nanoseconds, up to an hour. The lower bound is also the step in
/// which those below 2,048 times as much are counted: a 300th of a call of 20 us. Each rank counts
/// in some 220 KiB.
const LATENCY_NS: (u64, u64) = (64, 3_600_000_000_000);

/// The progress of a rank, for an observer.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Progress {
    pub(super) bytes: AtomicU64,
    pub(super) operations: AtomicU64,
}

/// The part of a rank in a load, and the files and data for it.
pub(super) struct Rank<'a> {
    pub(super) number: usize,
    pub(super) load: &'a Load,
    pub(super) plan: Plan<'a>,
    pub(super) files: &'a [LoadFile],
    pub(super) pool: &'a Pool,
    pub(super) progress: &'a Progress,
    /// Decides which READs are compared of samples: another number in each load, or the same data
    /// would be compared each time.
    pub(super) sample: u64,
    /// See [`Group`](super::Group).
    pub(super) nice: i32,
}

/// The outcome of the rank's part, whether it was done or broke off.
#[derive(Debug)]
pub(super) struct RankOutcome {
    /// Operations that were begun: the first so many of the plan.
    pub(super) begun: u64,
    /// Of these, operations whose extent is unknown.
    pub(super) failed: Vec<u64>,
    pub(super) operations: u64,
    pub(super) bytes: u64,
    /// The last reply to a READ or WRITE, and the end of all.
    pub(super) data_ended: Instant,
    pub(super) ended: Instant,
    /// In nanoseconds.
    pub(super) latency: Histogram<u64>,
    pub(super) cpu: Duration,
    pub(super) verified: Comparison,
    /// Number of the file in which the first wrong byte is.
    pub(super) wrong_file: Option<u64>,
    /// Replies with less data than was asked for, whose rest was asked for again.
    pub(super) short_replies: u64,
    /// Calls that the server put off.
    pub(super) put_off: u64,
    pub(super) errors: u64,
    pub(super) first_error: Option<(Instant, String)>,
}

/// Carries the rank's part of the load out, from `started` on, until it is done or broken.
pub(super) fn run<'a>(
    rank: Rank<'a>,
    stream: RecordStream,
    calls: FileCalls<'a>,
    started: Instant,
) -> RankOutcome {
    let cpu_before = clock_gettime(ClockId::ThreadCPUTime);
    let mut work = Work::new(rank, stream, calls, started);
    let done = work.transfers().and_then(|()| work.commit());
    work.outcome.ended = Instant::now();
    let cpu = clock_gettime(ClockId::ThreadCPUTime) - cpu_before;
    work.outcome.cpu = Duration::try_from(cpu).expect("the clock does not go backwards");
    if let Err(Broken(why)) = done.and_then(|()| work.end()) {
        let put_off = work.put_off.iter().map(|(_, operation)| operation);
        let rest = work.slots.iter().flatten().chain(put_off).map(|operation| operation.index);
        work.outcome.failed.extend(rest);
        work.error(why);
    }
    work.outcome.begun = work.next;
    work.outcome
}

/// Counts latencies, in nanoseconds.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_NS.0, LATENCY_NS.1, 3).expect("the bounds are in order")
}

struct Operation {
    index: u64,
    transfer: Transfer,
    /// Bytes of the transfer that are wanted, and those that were done.
    wanted: u32,
    done: u32,
    began: Option<Instant>,
    xid: u32,
}

struct Work<'a> {
    rank: Rank<'a>,
    stream: RecordStream,
    calls: FileCalls<'a>,
    ends_at: Option<Instant>,
    operations: u64,
    /// The first operation that was not begun.
    next: u64,
    slots: Vec<Option<Operation>>,
    /// Slots without a call. The last of those that the server has is used next.
    vacant: Vec<usize>,
    /// Slots whose calls are in the stream's queue.
    queued: Vec<usize>,
    /// Operations that the server has put off or done in part, and when the rest is called for: in
    /// this order. A vacant slot is kept for each.
    put_off: VecDeque<(Instant, Operation)>,
    xids: Xids,
    verifier: Option<[u8; 8]>,
    /// Where data that is verified is received.
    data: Vec<u8>,
    outcome: RankOutcome,
}

impl<'a> Work<'a> {
    fn new(rank: Rank<'a>, stream: RecordStream, calls: FileCalls<'a>, started: Instant) -> Self {
        let load = rank.load;
        let outcome = RankOutcome {
            begun: 0,
            failed: Vec::new(),
            operations: 0,
            bytes: 0,
            data_ended: started,
            ended: started,
            latency: histogram(),
            cpu: Duration::ZERO,
            verified: Comparison::default(),
            wrong_file: None,
            short_replies: 0,
            put_off: 0,
            errors: 0,
            first_error: None,
        };
        Self {
            stream,
            calls,
            // A time that has no end on the clock is no limit.
            ends_at: load.time_max.and_then(|time| started.checked_add(time)),
            operations: rank.plan.operations(rank.number),
            next: 0,
            slots: (0..load.depth).map(|_| None).collect(),
            vacant: (0..load.depth).rev().collect(),
            queued: Vec::new(),
            put_off: VecDeque::new(),
            xids: Xids::new(),
            verifier: None,
            data: vec![0; usize::try_from(load.io_bytes).expect("32 bits fit")],
            outcome,
            rank,
        }
    }

    fn transfers(&mut self) -> Result<(), Broken> {
        loop {
            self.fill_slots()?;
            let in_flight = self.slots.len() - self.vacant.len();
            if in_flight == 0 && self.put_off.is_empty() {
                return Ok(());
            }
            // Replies that have come are taken before the next calls are sent: many go at once
            // then. With all calls in the queue, none is in flight and no reply can come.
            let all_queued = self.queued.len() == in_flight;
            if all_queued || !self.stream.has_received_more()? {
                self.flush()?;
            }
            // The other calls go on while one is put off. Without a slot for it, one of these ends
            // before it is called for.
            let due = self.put_off.front().map(|(due, _)| *due);
            if let Some(due) = due.filter(|_| self.vacant_slot().is_some())
                && !self.stream.wait_until(due)?
            {
                continue;
            }
            self.receive()?;
        }
    }

    /// Makes a call on each slot that has none, as far as there are operations.
    fn fill_slots(&mut self) -> Result<(), Broken> {
        while let Some(place) = self.vacant_slot() {
            let due = |(due, _): &mut (Instant, _)| *due <= Instant::now();
            let operation = match self.put_off.pop_front_if(due) {
                Some((_, operation)) => operation,
                None if self.vacant.len() <= self.put_off.len() => break,
                None => match self.next_operation() {
                    Some(operation) => operation,
                    None => break,
                },
            };
            let slot = self.vacant.swap_remove(place);
            self.send(slot, operation)?;
        }
        Ok(())
    }

    /// The place in `vacant` of a slot that the server has.
    fn vacant_slot(&self) -> Option<usize> {
        let slots_max = self.calls.slots_max();
        self.vacant.iter().rposition(|slot| *slot < slots_max)
    }

    /// The next operation of the plan, if there is one and its time has not come to an end.
    fn next_operation(&mut self) -> Option<Operation> {
        let too_late = self.ends_at.is_some_and(|end| Instant::now() >= end)
            || self.rank.load.stop.is_wanted();
        if self.next == self.operations || self.outcome.errors >= ERRORS_MAX || too_late {
            return None;
        }
        let index = self.next;
        self.next += 1;
        let transfer = self.rank.plan.transfer(self.rank.number, index);
        let known = self.rank.files[transfer.file].contents.bytes();
        let wanted = match self.rank.load.direction {
            Direction::Read if transfer.offset() < known => {
                u32::try_from(known - transfer.offset()).unwrap_or(u32::MAX).min(transfer.bytes)
            }
            Direction::Read | Direction::Write => transfer.bytes,
        };
        Some(Operation { index, transfer, wanted, done: 0, began: None, xid: 0 })
    }

    /// Sends or queues the call for what is left of an operation.
    fn send(&mut self, slot: usize, mut operation: Operation) -> Result<(), Broken> {
        operation.xid = self.xids.next(slot);
        let (transfer, done) = (operation.transfer, operation.done);
        let file = &self.rank.files[transfer.file];
        let offset = transfer.offset() + u64::from(done);
        let (xid, count) = (operation.xid, operation.wanted - done);
        self.slots[slot] = Some(operation);
        self.queued.push(slot);
        match self.rank.load.direction {
            Direction::Read => self.calls.queue_read(&mut self.stream, xid, offset, count),
            Direction::Write => {
                let load = self.rank.load;
                let stream = &mut self.stream;
                let tail = self.calls.queue_write(stream, xid, offset, count, load.stable);
                let (generation, number) = (load.generation, transfer.unit);
                let unit = Unit { file: file.id, number, generation };
                let data = self.rank.pool.bytes(self.rank.pool.place(unit, done..done + count));
                if data.len() <= COPIED_BYTES_MAX {
                    self.stream.queue_payload(data, tail);
                } else {
                    self.stamp();
                    self.stream.send_payload(data, tail)?;
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Broken> {
        self.stamp();
        Ok(self.stream.flush()?)
    }

    /// Notes that what is queued is sent now.
    fn stamp(&mut self) {
        let now = Instant::now();
        for slot in self.queued.drain(..) {
            if let Some(operation) = &mut self.slots[slot] {
                operation.began.get_or_insert(now);
            }
        }
    }

    fn receive(&mut self) -> Result<(), Broken> {
        if !self.stream.next_record()? {
            return Err(Broken("the server closed the connection".into()));
        }
        match self.rank.load.direction {
            Direction::Read => {
                let (xid, answer) = self.calls.read_reply(&mut self.stream)?;
                let operation = self.operation(xid)?;
                match answer {
                    Ok(head) => self.read_answered(operation, head)?,
                    Err(refusal) => {
                        self.stream.finish()?;
                        self.refused(operation, refusal);
                    }
                }
            }
            Direction::Write => {
                let (xid, answer) = self.calls.write_reply(&mut self.stream)?;
                self.stream.finish()?;
                let operation = self.operation(xid)?;
                match answer {
                    Ok(ok) => self.write_answered(operation, &ok),
                    Err(refusal) => self.refused(operation, refusal),
                }
            }
        }
        Ok(())
    }

    /// The operation that a reply is for. Its slot is vacant from now on.
    fn operation(&mut self, xid: u32) -> Result<Operation, Broken> {
        let slot = slot_of(xid);
        let place = self.slots.get_mut(slot);
        let operation = place.and_then(|slot| slot.take_if(|operation| operation.xid == xid));
        let Some(operation) = operation else {
            let what = format!("the server answers call {xid:#010x}, which was not made");
            return Err(Broken(what));
        };
        self.vacant.push(slot);
        Ok(operation)
    }

    fn read_answered(&mut self, mut operation: Operation, head: ReadHead) -> Result<(), Broken> {
        let left = operation.wanted - operation.done;
        let at = operation.transfer.offset() + u64::from(operation.done);
        let end = at + u64::from(head.count);
        if head.count > left {
            let what = format!("READ of {left} bytes at {at} was answered with {}", head.count);
            return Err(Broken(what));
        }
        self.take_data(&operation, at, head.count)?;
        self.stream.finish()?;
        operation.done += head.count;
        // At the end a server may leave it to the next READ to find that out; before the end it is
        // a lie by which a client loses data.
        let known = self.rank.files[operation.transfer.file].contents.bytes();
        if head.eof && end < known {
            self.failed(&operation, &format!("said to be the end of a file of {known} bytes"));
        } else if operation.done == operation.wanted {
            self.completed(&operation);
        } else if head.count == 0 || head.eof {
            self.failed(&operation, &format!("the file ends at {end}"));
        } else {
            self.go_on(operation);
        }
        Ok(())
    }

    fn take_data(&mut self, operation: &Operation, at: u64, count: u32) -> Result<(), Broken> {
        let len = usize::try_from(count).expect("32 bits fit");
        let compare = match self.rank.load.verify {
            Verify::Full => true,
            Verify::Sampled => {
                let chosen = mix(self.rank.sample, operation.index);
                operation.index == 0 || chosen.is_multiple_of(SAMPLED)
            }
            Verify::Nothing => false,
        };
        if !compare {
            return Ok(self.stream.discard(len)?);
        }
        let data = &mut self.data[..len];
        self.stream.receive(data)?;
        let file = &self.rank.files[operation.transfer.file];
        let comparison = file.contents.compare(self.rank.pool, file.id, at, data);
        let sum = &mut self.outcome.verified;
        sum.verified += comparison.verified;
        sum.wrong += comparison.wrong;
        if sum.first_wrong.is_none() && comparison.first_wrong.is_some() {
            sum.first_wrong = comparison.first_wrong;
            self.outcome.wrong_file = Some(file.id);
        }
        Ok(())
    }

    fn write_answered(&mut self, mut operation: Operation, ok: &Written) {
        let left = operation.wanted - operation.done;
        if ok.count == 0 || ok.count > left {
            return self.failed(&operation, &format!("{} of {left} bytes written", ok.count));
        }
        if ok.committed < self.rank.load.stable {
            let why = format!("less durable than wanted: {}", ok.committed.name());
            return self.failed(&operation, &why);
        }
        if *self.verifier.get_or_insert(ok.verifier) != ok.verifier {
            self.verifier = Some(ok.verifier);
            return self.failed(&operation, LOST);
        }
        operation.done += ok.count;
        if operation.done < operation.wanted {
            self.go_on(operation);
        } else {
            self.completed(&operation);
        }
    }

    /// The rest after a short reply is called for next.
    fn go_on(&mut self, operation: Operation) {
        self.outcome.short_replies += 1;
        self.put_off.push_front((Instant::now(), operation));
    }

    fn completed(&mut self, operation: &Operation) {
        let now = Instant::now();
        let began = operation.began.expect("it was sent");
        let ns = u64::try_from((now - began).as_nanos()).unwrap_or(u64::MAX);
        self.outcome.latency.saturating_record(ns);
        self.outcome.data_ended = now;
        self.outcome.operations += 1;
        self.outcome.bytes += u64::from(operation.wanted);
        self.rank.progress.bytes.fetch_add(operation.wanted.into(), Ordering::Relaxed);
        self.rank.progress.operations.fetch_add(1, Ordering::Relaxed);
    }

    /// The server refused an operation; what it cannot do now is asked for again.
    fn refused(&mut self, operation: Operation, refusal: Refusal) {
        let patient = operation.began.is_none_or(|at| at.elapsed() < self.rank.load.timeout);
        match refusal {
            Refusal::PutOff(_) if patient => {
                self.outcome.put_off += 1;
                // The pause is the same for all, so the last is due last.
                self.put_off.push_back((Instant::now() + PUT_OFF_PAUSE, operation));
            }
            refusal => self.failed(&operation, &refusal.to_string()),
        }
    }

    fn failed(&mut self, operation: &Operation, why: &str) {
        let name = match self.rank.load.direction {
            Direction::Read => "READ",
            Direction::Write => "WRITE",
        };
        let Operation { index, transfer, .. } = operation;
        self.outcome.failed.push(*index);
        let id = self.rank.files[transfer.file].id;
        self.error(format!("{name} {index}, file {id} at {}: {why}", transfer.offset()));
    }

    fn error(&mut self, what: String) {
        self.outcome.errors += 1;
        let number = self.rank.number;
        let text = || (Instant::now(), format!("rank {number}: {what}"));
        self.outcome.first_error.get_or_insert_with(text);
    }

    /// Has the rank's file made durable, if its data is not.
    fn commit(&mut self) -> Result<(), Broken> {
        let load = self.rank.load;
        if load.direction == Direction::Read || load.stable != StableHow::Unstable || self.next == 0
        {
            return Ok(());
        }
        self.stream.set_patience(Some(load.timeout * COMMIT_PATIENCE))?;
        let Self { calls, stream, xids, outcome, .. } = self;
        let committed =
            until_taken(load.timeout, &mut outcome.put_off, || calls.commit(stream, xids.next(0)));
        match committed? {
            Ok(verifier) if self.verifier.is_some_and(|written| written != verifier) => {
                self.error(format!("COMMIT: {LOST}"));
            }
            Ok(_) => {}
            Err(refusal) => self.error(format!("COMMIT: {refusal}")),
        }
        Ok(())
    }

    /// Ends the state that the server holds for the rank.
    fn end(&mut self) -> Result<(), Broken> {
        self.stream.set_patience(Some(self.rank.load.timeout))?;
        if let Err(refusal) = self.calls.end(&mut self.stream)? {
            self.error(format!("the end of the session: {refusal}"));
        }
        Ok(())
    }
}

const LOST: &str = "the write verifier changed: the server restarted, and data that was not \
                    committed is lost";
