//! The chunks of one file, fetched or in flight.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::budget::{ReadAheadBudget, Room, Seat};
use super::streams::Streams;
use crate::error::Result;
use crate::nfs3::ReadData;

/// The outcome of a call.
pub(super) type Filled = Result<ReadData>;

/// The chunks of one file, shared by its readers and calls and the budget.
#[derive(Debug)]
pub(super) struct FileChunks {
    table: Mutex<ChunkTable>,
    budget: Arc<ReadAheadBudget>,
    seat: Seat,
}

impl FileChunks {
    pub(super) fn new(budget: Arc<ReadAheadBudget>, read_bytes: u32) -> Arc<Self> {
        let table =
            ChunkTable { streams: Streams::new(read_bytes), chunks: BTreeMap::new(), next: 0 };
        Arc::new_cyclic(|file| {
            let file: Weak<Self> = Weak::clone(file);
            let seat = budget.seat(move || {
                if let Some(file) = file.upgrade() {
                    file.give_up();
                }
            });
            Self { table: Mutex::new(table), budget, seat }
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ChunkTable> {
        // The table is consistent between any two statements.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves room for a chunk, if there is any. Called with the table locked.
    pub(super) fn room(&self, bytes: usize) -> Option<Room> {
        self.budget.room(self.seat, bytes)
    }

    /// Drops all chunks to make room for another file, unless the table is locked.
    pub(super) fn give_up(&self) {
        match self.table.try_lock() {
            Ok(mut table) => table.chunks.clear(),
            Err(TryLockError::Poisoned(table)) => table.into_inner().chunks.clear(),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// The file is closed.
    pub(super) fn close(&self) {
        self.lock().chunks.clear();
        self.budget.leave(self.seat);
    }

    /// Notes the outcome of the call for a chunk, before its readers see it.
    fn settle(&self, index: u64, number: u64, filled: &Filled) {
        let mut table = self.lock();
        let Some(chunk) = table.chunks.get_mut(&index).filter(|chunk| chunk.number == number)
        else {
            return;
        };
        match filled {
            Ok(piece) => chunk.room.shrink_to(piece.data.len()),
            // Waiting readers return the error. Later reads retry, one READ at a time.
            Err(_) => {
                table.chunks.remove(&index);
                table.streams.clear();
            }
        }
    }
}

/// The chunks and streams of a file, protected by its lock.
#[derive(Debug)]
pub(super) struct ChunkTable {
    pub(super) streams: Streams,
    /// By index: offset divided by the size of a chunk.
    pub(super) chunks: BTreeMap<u64, Chunk>,
    /// The number of the next call for a chunk.
    next: u64,
}

impl ChunkTable {
    /// Requests a chunk with `call`, which can outlive the reader.
    pub(super) fn start(
        &mut self,
        file: &Arc<FileChunks>,
        index: u64,
        room: Room,
        call: impl Future<Output = Filled> + Send + 'static,
    ) {
        let (number, file) = (self.next, Arc::downgrade(file));
        self.next += 1;
        let call = Call::spawn(async move {
            let filled = call.await;
            if let Some(file) = file.upgrade() {
                file.settle(index, number, &filled);
            }
            filled
        });
        self.chunks.insert(index, Chunk { number, call, delivered_bytes: 0, room });
    }

    /// Notes that `bytes` of a chunk were returned to a reader. Drops the chunk after the last
    /// byte.
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

    /// Drops a chunk that begins at `start` and ends before `end` with an end of file: the file has
    /// grown since.
    pub(super) fn drop_outgrown(&mut self, index: u64, start: u64, end: u64) {
        let outgrown =
            self.chunks.get(&index).and_then(Chunk::filled).is_some_and(|piece| {
                piece.eof && start.saturating_add(piece.data.len() as u64) < end
            });
        if outgrown {
            self.chunks.remove(&index);
        }
    }

    /// Drops the chunks that no stream will reach.
    pub(super) fn drop_passed(&mut self, read_bytes: u64, window_bytes: u64) {
        let streams = &self.streams;
        self.chunks.retain(|index, _| {
            let start = index.saturating_mul(read_bytes);
            streams.wants(&(start..start.saturating_add(read_bytes)), window_bytes)
        });
    }
}

/// A chunk: whole, or up to the end of the file.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Distinguishes it from an earlier chunk of the same index.
    number: u64,
    call: Call,
    delivered_bytes: usize,
    room: Room,
}

impl Chunk {
    pub(super) fn started(&self) -> Started {
        Started(self.call.filled.clone())
    }

    /// Whether the file ends in it.
    pub(super) fn is_end(&self) -> bool {
        self.filled().is_some_and(|piece| piece.eof)
    }

    fn filled(&self) -> Option<ReadData> {
        self.call.filled.borrow().as_ref()?.as_ref().ok().cloned()
    }
}

/// A call, in flight or answered. Drop cancels it.
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

    /// Its outcome; `None` if it was cancelled.
    pub(super) async fn wait(&self) -> Option<Filled> {
        Started(self.filled.clone()).wait().await
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A reader's reference to a call that other readers may wait for too.
#[derive(Debug)]
pub(super) struct Started(watch::Receiver<Option<Filled>>);

impl Started {
    /// Its outcome; `None` if it was cancelled.
    pub(super) async fn wait(&self) -> Option<Filled> {
        let mut filled = self.0.clone();
        filled.wait_for(Option::is_some).await.ok()?.clone()
    }
}
