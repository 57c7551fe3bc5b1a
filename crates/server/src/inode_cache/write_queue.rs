//! WRITEs that wait for a file's turn together.
//!
//! A WRITE that finds the file locked joins the last batch that waits for the lock, or begins one.
//! The task that begins a batch takes the lock, carries out the batch that has waited longest, and
//! answers each of its WRITEs. So batches are carried out in the order of their beginning, whichever
//! task comes first, and the WRITEs of each are in the order of arrival.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use io::{IoMode, WriteData};
use tokio::sync::oneshot;

use super::{Flush, Wcc};
use crate::fs::{Caller, Status};
use crate::trace::CallId;

/// WRITEs of a batch, at most.
const BATCH_WRITES_MAX: usize = 64;
/// Bytes of a batch of more than one WRITE, at most: some hundred microseconds of work.
const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A WRITE of a file.
pub(crate) struct WriteRequest {
    pub(crate) caller: Caller,
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
    /// The flush to make: the strongest that a WRITE of the batch asked for, so that they share one.
    /// `None` if this one asked for none.
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
    pub(crate) turn: oneshot::Sender<WriteTurn>,
}

/// The WRITEs of one file that wait. Their number and bytes are bounded by those of calls in progress.
#[derive(Default)]
pub(crate) struct WriteQueue(Mutex<VecDeque<Batch>>);

struct Batch {
    writes: Vec<WaitingWrite>,
    bytes: usize,
    /// Takes no more, whatever its size.
    is_closed: bool,
}

/// The duty to carry out a batch. Dropped, it drops the WRITEs of the batch, which are not answered.
#[must_use = "the WRITEs of a batch wait for it"]
pub(crate) struct BatchDuty<'a> {
    queue: &'a WriteQueue,
    is_taken: bool,
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
    /// Puts a WRITE behind those that wait. If it begins a batch, its task has to take the inode lock
    /// and to carry out a batch.
    pub(crate) fn join(&self, write: WaitingWrite) -> Option<BatchDuty<'_>> {
        let mut batches = self.lock();
        let bytes = write.request.len();
        match batches.back_mut() {
            Some(batch) if batch.takes(bytes) => {
                batch.bytes += bytes;
                batch.writes.push(write);
                None
            }
            _ => {
                batches.push_back(Batch { writes: vec![write], bytes, is_closed: false });
                Some(BatchDuty { queue: self, is_taken: false })
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

    fn take(&self) -> Vec<WaitingWrite> {
        self.lock().pop_front().map_or_else(Vec::new, |batch| batch.writes)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Batch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Batch {
    fn takes(&self, bytes: usize) -> bool {
        !self.is_closed
            && self.writes.len() < BATCH_WRITES_MAX
            && self.bytes + bytes <= BATCH_BYTES_MAX
    }
}

impl BatchDuty<'_> {
    /// The WRITEs to be carried out now, by the holder of the inode lock. There is at least one.
    pub(crate) fn take(mut self) -> Vec<WaitingWrite> {
        self.is_taken = true;
        self.queue.take()
    }
}

impl Drop for BatchDuty<'_> {
    fn drop(&mut self) {
        if !self.is_taken {
            drop(self.queue.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use io::Identity;

    use super::*;
    use crate::fs::OpenedFor;

    fn write(offset: u64) -> (WaitingWrite, oneshot::Receiver<WriteTurn>) {
        let (turn, taken) = oneshot::channel();
        let identity = Identity::Server;
        let (groups, opened) = (Arc::default(), OpenedFor::default());
        let caller =
            Caller { uid: 0, gid: 0, groups, read_only: false, opened, client: None, identity };
        let call = CallId::local(0, 0);
        let (mode, flush) = (IoMode::Auto, None);
        let request = Box::new(WriteRequest { caller, call, mode, offset, data: None, flush });
        (WaitingWrite { request, turn }, taken)
    }

    fn offsets(batch: &[WaitingWrite]) -> Vec<u64> {
        batch.iter().map(|write| write.request.offset).collect()
    }

    #[test]
    fn a_change_of_another_kind_parts_those_before_it_from_those_behind() {
        let queue = WriteQueue::default();
        queue.close();
        let first = queue.join(write(0).0).expect("it begins a batch");
        assert!(queue.join(write(1).0).is_none());
        queue.close();
        let second = queue.join(write(2).0).expect("it begins a batch");
        assert!(queue.join(write(3).0).is_none());
        assert_eq!(queue.len(), 4);
        assert_eq!(offsets(&second.take()), [0, 1], "the one that has waited longest");
        assert_eq!(offsets(&first.take()), [2, 3]);
        assert!(queue.join(write(4).0).is_some());
    }

    #[test]
    fn a_batch_is_bounded() {
        let queue = WriteQueue::default();
        let duties: Vec<_> =
            (0..=BATCH_WRITES_MAX as u64).filter_map(|n| queue.join(write(n).0)).collect();
        assert_eq!(duties.len(), 2);
        let lens: Vec<_> = duties.into_iter().map(|duty| duty.take().len()).collect();
        assert_eq!(lens, [BATCH_WRITES_MAX, 1]);
        let full = Batch { writes: Vec::new(), bytes: BATCH_BYTES_MAX - 1, is_closed: false };
        assert!(full.takes(1) && !full.takes(2));
    }

    #[test]
    fn writes_do_not_wait_for_a_task_that_has_ended() {
        let queue = WriteQueue::default();
        let (first, mut taken) = write(0);
        drop(queue.join(first));
        assert!(matches!(taken.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert_eq!(queue.len(), 0);
    }
}
