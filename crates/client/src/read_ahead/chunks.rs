//! The chunks of one file: fetched, or on their way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::budget::{ReadAheadBudget, Room, Seat};
use super::streams::Streams;
use crate::error::Result;

/// What a call brought.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) data: Bytes,
    /// Whether the file ends with it.
    pub(super) eof: bool,
}

/// What has become of a call.
pub(super) type Filled = Result<Piece>;

/// What the readers of a file, its calls and the budget share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    budget: Arc<ReadAheadBudget>,
    seat: Seat,
}

impl Shared {
    pub(super) fn new(budget: Arc<ReadAheadBudget>, read_bytes: u32) -> Arc<Self> {
        let state = State { streams: Streams::new(read_bytes), chunks: BTreeMap::new(), next: 0 };
        Arc::new_cyclic(|shared| {
            let seat = budget.seat(Weak::clone(shared));
            Self { state: Mutex::new(state), budget, seat }
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // What the lock guards is whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for a chunk, if there is any. Called with the state locked.
    pub(super) fn room(&self, bytes: usize) -> Option<Room> {
        self.budget.room(self.seat, bytes)
    }

    /// Gives up all chunks, unless somebody is at work with them: for the budget, which another
    /// file needs.
    pub(super) fn give_up(&self) {
        match self.state.try_lock() {
            Ok(mut state) => state.chunks.clear(),
            Err(TryLockError::Poisoned(state)) => state.into_inner().chunks.clear(),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// The file is closed.
    pub(super) fn close(&self) {
        self.lock().chunks.clear();
        self.budget.leave(self.seat);
    }

    /// A call for a chunk has ended, and nobody knows yet.
    fn settle(&self, index: u64, number: u64, filled: &Filled) {
        let mut state = self.lock();
        let Some(chunk) = state.chunks.get_mut(&index).filter(|chunk| chunk.number == number)
        else {
            return;
        };
        match filled {
            Ok(piece) => chunk.room.shrink_to(piece.data.len()),
            // Who waits for it hears of it, and who comes later asks again, one READ at a time.
            Err(_) => {
                state.chunks.remove(&index);
                state.streams.clear();
            }
        }
    }
}

/// What is guarded by the lock of a file.
#[derive(Debug)]
pub(super) struct State {
    pub(super) streams: Streams,
    /// By their number in the file.
    pub(super) chunks: BTreeMap<u64, Chunk>,
    /// The number of the next call for a chunk.
    next: u64,
}

impl State {
    /// Asks for a chunk with `call`, which outlives the reader that wants it.
    pub(super) fn start(
        &mut self,
        shared: &Arc<Shared>,
        index: u64,
        room: Room,
        call: impl Future<Output = Filled> + Send + 'static,
    ) {
        let (number, shared) = (self.next, Arc::downgrade(shared));
        self.next += 1;
        let call = Call::spawn(async move {
            let filled = call.await;
            if let Some(shared) = shared.upgrade() {
                shared.settle(index, number, &filled);
            }
            filled
        });
        self.chunks.insert(index, Chunk { number, call, delivered_bytes: 0, room });
    }

    /// `bytes` of a chunk went to a reader. When all of them did, it is not needed any more.
    pub(super) fn delivered(&mut self, index: u64, started: &Started, bytes: usize) {
        let Some(chunk) = self.chunks.get_mut(&index) else { return };
        if !chunk.call.filled.same_channel(&started.0) {
            return;
        }
        chunk.delivered_bytes += bytes;
        if chunk.filled().is_some_and(|piece| chunk.delivered_bytes >= piece.data.len()) {
            self.chunks.remove(&index);
        }
    }

    /// Lets go of a chunk that begins at `start` and ends before `end` because the file did, when
    /// it no longer does.
    pub(super) fn drop_outgrown(&mut self, index: u64, start: u64, end: u64) {
        let outgrown =
            self.chunks.get(&index).and_then(Chunk::filled).is_some_and(|piece| {
                piece.eof && start.saturating_add(piece.data.len() as u64) < end
            });
        if outgrown {
            self.chunks.remove(&index);
        }
    }

    /// Lets go of chunks that no stream will come to.
    pub(super) fn drop_passed(&mut self, read_bytes: u64, window_bytes: u64) {
        let streams = &self.streams;
        self.chunks.retain(|index, _| {
            let start = index.saturating_mul(read_bytes);
            streams.wants(&(start..start.saturating_add(read_bytes)), window_bytes)
        });
    }
}

/// A chunk: all of it, or up to the end of the file.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Tells it from an earlier one at the same place.
    number: u64,
    call: Call,
    delivered_bytes: usize,
    room: Room,
}

impl Chunk {
    pub(super) fn started(&self) -> Started {
        Started(self.call.filled.clone())
    }

    /// Whether it is there, with all its bytes.
    pub(super) fn is_full(&self, read_bytes: u32) -> bool {
        self.filled().is_some_and(|piece| piece.data.len() == read_bytes as usize)
    }

    /// Whether the file is known to end with it.
    pub(super) fn is_end(&self) -> bool {
        self.filled().is_some_and(|piece| piece.eof)
    }

    fn filled(&self) -> Option<Piece> {
        self.call.filled.borrow().as_ref()?.as_ref().ok().cloned()
    }
}

/// A call under way or answered; given up when this is dropped.
#[derive(Debug)]
pub(super) struct Call {
    filled: watch::Receiver<Option<Filled>>,
    task: AbortHandle,
}

impl Call {
    pub(super) fn spawn(call: impl Future<Output = Filled> + Send + 'static) -> Self {
        let (sender, filled) = watch::channel(None);
        let task = tokio::spawn(async move {
            sender.send_replace(Some(call.await));
        });
        Self { filled, task: task.abort_handle() }
    }

    /// What it brought. None if it was given up.
    pub(super) async fn wait(&self) -> Option<Filled> {
        Started(self.filled.clone()).wait().await
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A reader's view of a call that others may wait for too.
#[derive(Debug)]
pub(super) struct Started(watch::Receiver<Option<Filled>>);

impl Started {
    /// What it brought. None if it was given up.
    pub(super) async fn wait(&self) -> Option<Filled> {
        let mut filled = self.0.clone();
        filled.wait_for(Option::is_some).await.ok()?.clone()
    }
}
