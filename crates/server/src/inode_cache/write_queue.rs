//! WRITEs that wait for a file's turn together.
//!
//! A WRITE that finds the file locked joins the last batch that waits for the lock, or begins one.
//! The task that begins a batch takes a place in the queue of the lock at once. When it has the
//! lock, it carries out the batch that has waited longest, and answers each of its WRITEs, which
//! are in the order of arrival. So there are as many duties to carry out a batch as there are
//! batches.
//!
//! WRITEs that are ahead of others in the file may be [left](order) for the next batch. If no other
//! batch waits, they form one, and the duty goes to the task of one of them.

mod order;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io::{ClientId, IoMode, WriteData};
use tokio::sync::oneshot;

use self::order::{Waiting, are_left};
use super::inode_lock::{ExclusiveGuard, InodeLock, Queued};
use super::{Flush, Wcc};
use crate::fs::{Caller, Status};
use crate::trace::CallId;

/// At most so many WRITEs are in one vectored write, and in a batch that leaves others waiting.
pub(crate) const BATCH_WRITES_MAX: usize = 64;
/// At most so many bytes are in a batch of several WRITEs that leaves others waiting: some hundred
/// microseconds of work. Its first WRITEs span no more in the file, either.
const BATCH_BYTES_MAX: u64 = 2 * 1024 * 1024;
/// WRITEs and bytes that wait together, at most: as many as 16 ranks have in flight, and some more.
/// All are performed at once if a change of another kind waits behind them, or if the next batch
/// has no room for those that would be left.
const WAITING_WRITES_MAX: usize = 256;
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A WRITE of a file.
pub(crate) struct WriteRequest {
    pub(crate) caller: Caller,
    /// The client by whose share of the threads its call is carried out.
    pub(crate) client: ClientId,
    pub(crate) call: CallId,
    pub(crate) mode: IoMode,
    pub(crate) offset: u64,
    /// `None` if it has no bytes.
    pub(crate) data: Option<WriteData>,
    /// The flush that its stability asks for.
    pub(crate) flush: Option<Flush>,
}

/// The outcome of a WRITE's turn. It has yet to be flushed.
pub(crate) struct WriteTurn {
    pub(crate) attributes: Wcc,
    /// Bytes taken.
    pub(crate) result: Result<usize, Status>,
    /// The write verifier from before the data was written.
    pub(crate) verifier: [u8; 8],
    /// The file's failed flushes from before the data was written.
    pub(crate) failures: u64,
    /// The flush to make: the strongest that a WRITE of the batch asked for, so that they share
    /// one. `None` if this one asked for none.
    pub(crate) flush: Option<Flush>,
}

impl WriteTurn {
    /// The outcome of a WRITE that ended before anything of the file was known.
    pub(crate) fn refused(status: Status) -> Self {
        Self {
            attributes: Wcc::default(),
            result: Err(status),
            verifier: [0; 8],
            failures: 0,
            flush: None,
        }
    }
}

/// A WRITE that waits.
pub(crate) struct WaitingWrite {
    pub(crate) request: Box<WriteRequest>,
    pub(crate) task: oneshot::Sender<Woken>,
    /// Batches that it was left out of.
    passes: u8,
}

/// The message that wakes the task of a WRITE that waits.
#[expect(clippy::large_enum_variant, reason = "nearly all are outcomes")]
pub(crate) enum Woken {
    /// The outcome of the WRITE.
    Turn(WriteTurn),
    /// The channel to wait on, and a batch to carry out before. The channel is dropped first, so
    /// that the duty is not handed back to this task.
    Duty(oneshot::Receiver<Self>, BatchDuty),
}

/// The WRITEs of one file that wait. Their number and bytes are bounded by those of calls in
/// progress.
#[derive(Default)]
pub(crate) struct WriteQueue(Mutex<VecDeque<Batch>>);

struct Batch {
    writes: Vec<WaitingWrite>,
    bytes: usize,
    /// Takes no more, whatever its size.
    is_closed: bool,
}

/// The duty to carry out a batch, with a place in the queue of the inode lock. Dropped, that of
/// WRITEs that were left goes to the task of one of them. Any other, or if no such task lives, ends
/// with the last batch, whose WRITEs are not answered.
#[must_use = "the WRITEs of a batch wait for it"]
pub(crate) struct BatchDuty {
    queue: Arc<WriteQueue>,
    /// Until it has the lock.
    place: Option<Queued>,
    /// Of WRITEs that were left.
    is_of_left: bool,
    is_done: bool,
}

impl WaitingWrite {
    /// A WRITE, and how its task is woken.
    pub(crate) fn new(request: Box<WriteRequest>) -> (Self, oneshot::Receiver<Woken>) {
        let (task, woken) = oneshot::channel();
        (Self { request, task, passes: 0 }, woken)
    }
}

impl WriteRequest {
    /// Bytes to write.
    pub(crate) fn len(&self) -> usize {
        self.data.as_ref().map_or(0, WriteData::len)
    }

    /// Where it ends in the file.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.len() as u64)
    }
}

impl WriteQueue {
    /// Puts a WRITE behind those that wait. If it begins a batch, its task has to carry out a batch
    /// when it has the inode lock.
    pub(crate) fn join(
        self: &Arc<Self>,
        write: WaitingWrite,
        lock: &InodeLock,
    ) -> Option<BatchDuty> {
        let mut batches = self.lock();
        let bytes = write.request.len();
        match batches.back_mut() {
            Some(batch) if !batch.is_closed && batch.has_room(1, bytes) => {
                batch.bytes += bytes;
                batch.writes.push(write);
                None
            }
            _ => {
                batches.push_back(Batch { writes: vec![write], bytes, is_closed: false });
                // Before any other task sees them, so that places and batches are in one order.
                Some(self.duty(lock.queue(), false))
            }
        }
    }

    /// Has WRITEs that come later wait in another batch, behind a change of another kind that waits
    /// for the inode lock from now on.
    pub(crate) fn close(&self) {
        if let Some(batch) = self.lock().back_mut() {
            batch.is_closed = true;
        }
    }

    /// WRITEs that wait now.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().iter().map(|batch| batch.writes.len()).sum()
    }

    fn duty(self: &Arc<Self>, place: Queued, is_of_left: bool) -> BatchDuty {
        BatchDuty { queue: Arc::clone(self), place: Some(place), is_of_left, is_done: false }
    }

    /// The WRITEs to be carried out now by the holder of the inode lock, and the duty to carry out
    /// those that were left, if they are a batch of their own.
    ///
    /// They are only if no other batch waits. So theirs is the only duty, and comes before those of
    /// WRITEs that come later.
    fn take(self: &Arc<Self>, lock: &InodeLock) -> (Vec<WaitingWrite>, Option<BatchDuty>) {
        let mut batches = self.lock();
        let Some(batch) = batches.pop_front() else { return (Vec::new(), None) };
        if batch.is_closed || batch.writes.len() == 1 {
            return (batch.writes, None);
        }
        let are_left = are_left(&batch.waiting());
        let left = || batch.writes.iter().zip(&are_left).filter(|(_, is_left)| **is_left);
        let (writes, bytes) = (left().count(), left().map(|(write, _)| write.request.len()).sum());
        if writes == 0 || batches.front().is_some_and(|next| !next.has_room(writes, bytes)) {
            return (batch.writes, None);
        }
        let (taken, left) = batch.divided(&are_left);
        match batches.front_mut() {
            Some(next) => {
                next.bytes += bytes;
                next.writes.splice(..0, left);
                (taken, None)
            }
            None => {
                batches.push_back(Batch { writes: left, bytes, is_closed: false });
                (taken, Some(self.duty(lock.queue(), true)))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Batch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Batch {
    fn has_room(&self, writes: usize, bytes: usize) -> bool {
        self.writes.len() + writes <= WAITING_WRITES_MAX && self.bytes + bytes <= WAITING_BYTES_MAX
    }

    fn waiting(&self) -> Vec<Waiting> {
        let waiting = |WaitingWrite { request, passes, .. }: &WaitingWrite| Waiting {
            offset: request.offset,
            end: request.end(),
            passes: *passes,
        };
        self.writes.iter().map(waiting).collect()
    }

    /// The WRITEs to be carried out, and those to be left.
    fn divided(self, are_left: &[bool]) -> (Vec<WaitingWrite>, Vec<WaitingWrite>) {
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        for (mut write, is_left) in self.writes.into_iter().zip(are_left) {
            if *is_left {
                write.passes = write.passes.saturating_add(1);
                left.push(write);
            } else {
                taken.push(write);
            }
        }
        (taken, left)
    }

    /// Gives the duty to carry it out to the task of one of its WRITEs; else it comes back.
    fn hand_over(&mut self, mut duty: BatchDuty) -> Option<BatchDuty> {
        for write in &mut self.writes {
            let (task, woken) = oneshot::channel();
            let before = std::mem::replace(&mut write.task, task);
            match before.send(Woken::Duty(woken, duty)) {
                Ok(()) => return None,
                // A call that was given up.
                Err(Woken::Duty(_, back)) => duty = back,
                Err(Woken::Turn(_)) => unreachable!("no outcome was sent"),
            }
        }
        Some(duty)
    }
}

impl BatchDuty {
    /// Waits for the inode lock. Only once.
    pub(crate) async fn lock(&mut self) -> ExclusiveGuard {
        let guard = self.place.as_mut().expect("it has its place until it has the lock").await;
        self.place = None;
        guard
    }

    /// The WRITEs to be carried out now, by the holder of the inode lock, of which there is at
    /// least one; and the duty to carry out those that were left, if no other task has it. That is
    /// to be dropped when these are carried out.
    pub(crate) fn take(mut self, lock: &InodeLock) -> (Vec<WaitingWrite>, Option<Self>) {
        self.is_done = true;
        self.queue.take(lock)
    }
}

impl Drop for BatchDuty {
    fn drop(&mut self) {
        if std::mem::replace(&mut self.is_done, true) {
            return;
        }
        let mut batches = self.queue.lock();
        if self.is_of_left
            && let Some(place) = self.place.take()
            && let Some(batch) = batches.front_mut()
        {
            match batch.hand_over(self.queue.duty(place, true)) {
                None => return,
                Some(mut duty) => duty.is_done = true,
            }
        }
        // No task waits for those that were left. Behind them may be a batch with a duty of its
        // own.
        let unanswered = if self.is_of_left { batches.pop_front() } else { batches.pop_back() };
        drop(batches);
        drop(unanswered);
    }
}

#[cfg(test)]
mod tests;
