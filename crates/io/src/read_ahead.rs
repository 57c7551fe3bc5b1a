//! Read-ahead past the page cache: chunks of a file, read before they are asked for.
//!
//! The kernel reads ahead only into its page cache. A stream that must not fill it, and whose
//! client asks for one piece at a time, would pay the disk's latency for each piece; so the next
//! chunks are read into pool buffers while the client is busy with the last one.
//!
//! A chunk is a second copy of the file's data, so it must never outlive a change of it. Each chunk
//! carries the [`FileVersion`] that the file had *before* the chunk was read, serves only readers
//! that have just seen the same version, and is watched from before it was read
//! ([`ChangeWatches`]). Each kind of change is covered as follows:
//!
//! - A system call that writes, cuts or allocates, however long it takes: the watch. One that was
//!   finished when reading began is in the chunk, and one that is finished later has fired the
//!   watch when it returns. [`ReadAhead::serve`] checks the watch after the READ began.
//! - A store through a shared mapping, of a page that was clean: the version. The kernel renews the
//!   change time before it lets the page be stored to, and pages become clean by being protected
//!   again.
//! - A store to a page that was dirty before: no chunk is kept of a range that has a dirty page,
//!   before or after it is read through the page cache. A direct read has the pages written first.
//!   The filler ensures this.
//! - Stores where the kernel does not note that a page becomes dirty (tmpfs, DAX), changes on other
//!   machines, in a FUSE daemon, in the layers of an overlay: no chunks are read there, which the
//!   filler ensures.
//! - Changes that raise no event (`io_submit`, users of the file inside the kernel): the version,
//!   if the change ends within [`SETTLED_AFTER`] of its beginning, which is when its time is taken.
//!   A version must have [settled](FileVersion::has_settled) before a chunk is read.
//! - Two changes within a tick of the kernel's clock (before Linux 6.13 they have equal stamps):
//!   likewise.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::SetOnce;

use crate::buffer_pool::Buffer;
use crate::byte_range::ByteRange;
use crate::change_watch::{ChangeWatch, ChangeWatches};
use crate::engine::ClientId;
use crate::streams::{CHUNK_BYTES, Streams};

mod budget;

use budget::Permit;
pub use budget::ReadAheadBudget;

/// The most chunks of one file: enough for all streams that are distinguished.
const CHUNKS_MAX: usize = 72;
/// The most ranges of one file that are remembered as read in vain.
const IN_VAIN_MAX: usize = 16;
/// How long a chunk waits for its reader, and for a thread before other clients pass over it, and
/// how long a range that was read in vain is not read again.
const UNUSED_MAX: Duration = Duration::from_secs(2);
/// How long ago the last change of a file must be, for changes that raise no event. See the module.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// The state of a file at one moment. Different versions mean different content; equal ones the
/// same, except for a change in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// The change time (`ctime`), which no program can set: seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
    /// The length in bytes.
    pub size: u64,
    /// Changes that this process has made itself, counted when the kernel has taken them.
    pub changes: u64,
}

impl FileVersion {
    /// Whether the last change is long enough ago that a change still under way, or another one at
    /// nearly the same time, cannot hide behind the same version.
    #[must_use]
    pub fn has_settled(&self, now: SystemTime) -> bool {
        let Ok(now) = now.duration_since(SystemTime::UNIX_EPOCH) else { return false };
        let Ok(seconds) = u64::try_from(self.changed.0) else { return true };
        let changed = Duration::new(seconds, self.changed.1);
        // A change time in the future means that a clock was set back: nothing is known then.
        now.checked_sub(changed).is_some_and(|age| age >= SETTLED_AFTER)
    }
}

/// The streams through one file and the chunks read ahead for them.
#[derive(Default)]
pub struct ReadAhead {
    /// `None` for a file without sequential readers. Held while a few entries are examined.
    state: Mutex<Option<Box<State>>>,
}

#[derive(Default)]
struct State {
    streams: Streams,
    chunks: Vec<Arc<Chunk>>,
    /// Ranges that the disk has failed to read ahead, the latest last.
    in_vain: Vec<(ByteRange, FileVersion, Instant)>,
}

/// The result of noting a read.
#[derive(Debug)]
pub struct Ahead {
    /// The chunks with all that was asked for, in file order; empty if there is none of some part.
    /// They may still be on their way, see [`Chunk::data`]: being read, or begun by the same client
    /// and queued. One that waits for the turn of another client counts as not there.
    pub chunks: Vec<Arc<Chunk>>,
    /// Chunks to be read now, by the caller, in this order.
    pub fills: Vec<Fill>,
    /// The budget had no room for a chunk.
    pub lacks_room: bool,
}

impl ReadAhead {
    /// Notes a read by a client of `range`, not empty, and returns the chunks that hold it and
    /// those to be read ahead.
    ///
    /// `version` is the file's current one. Without a `budget` nothing is read ahead, and the read
    /// is only noted.
    pub fn note(
        &self,
        (client, range): (ClientId, ByteRange),
        version: FileVersion,
        budget: Option<&ReadAheadBudget>,
    ) -> Ahead {
        let mut state = self.lock();
        let state = state.get_or_insert_default();
        state.forget_gone();
        state.chunks.retain(|chunk| chunk.version == version);
        state.in_vain.retain(|(_, failed, _)| *failed == version);
        let stream = state.streams.note(range);
        let mut fills = Vec::new();
        let mut lacks_room = false;
        if let (true, Some(budget)) = (stream.is_sequential(), budget) {
            let wanted = stream.wanted_ahead(range, version.size);
            let mut at = wanted.offset();
            while at < wanted.end() {
                let chunk = ByteRange::between(at, (at + CHUNK_BYTES).min(wanted.end()));
                match state.begin((client, chunk), version, budget) {
                    Begun::Fill(fill) => fills.push(fill),
                    Begun::Known => {}
                    Begun::TooMany => break,
                    Begun::NoRoom => {
                        lacks_room = true;
                        break;
                    }
                }
                at = chunk.end();
            }
        }
        let mut chunks = state.covering(range);
        if !chunks.iter().all(|chunk| chunk.client == client || chunk.has_left_queue()) {
            chunks.clear();
        }
        Ahead { chunks, fills, lacks_room }
    }

    /// The chunks with all of `range` in them, if they are there; nothing is noted.
    pub fn find(&self, range: ByteRange, version: FileVersion) -> Vec<Arc<Chunk>> {
        let state = self.lock();
        let found = state.as_ref().map_or_else(Vec::new, |state| state.covering(range));
        if found.iter().all(|chunk| chunk.version == version) { found } else { Vec::new() }
    }

    /// Whether a READ of `range`, which has begun before this call, may be answered from `chunks`,
    /// whose data is there. If so it is counted, and chunks whose bytes have all been read are
    /// dropped. If not, the file was changed since they were read.
    #[must_use]
    pub fn serve(&self, range: ByteRange, chunks: &[Arc<Chunk>], watches: &ChangeWatches) -> bool {
        watches.drain();
        if chunks.iter().any(|chunk| chunk.is_gone()) {
            if let Some(state) = self.lock().as_mut() {
                state.forget_gone();
            }
            return false;
        }
        let mut used_up = false;
        for chunk in chunks {
            let bytes = chunk.range.intersection(range).len();
            let before = chunk.served_bytes.fetch_add(bytes, Ordering::Relaxed);
            used_up |= before + bytes >= chunk.range.len();
        }
        if used_up && let Some(state) = self.lock().as_mut() {
            state.chunks.retain(|chunk| !chunk.is_used_up());
        }
        true
    }

    /// Drops chunks that were not read in time, and outdated ones. Those on their way stay: they
    /// would be read twice. To be called periodically.
    pub fn trim(&self, now: Instant) {
        let mut state = self.lock();
        if let Some(state) = state.as_deref_mut() {
            state.forget_gone();
            let is_recent = |at| now.saturating_duration_since(at) < UNUSED_MAX;
            state.chunks.retain(|chunk| chunk.read_at().is_none_or(is_recent));
            state.in_vain.retain(|(.., at)| is_recent(*at));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<State>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chunks = self.lock().as_ref().map_or(0, |state| state.chunks.len());
        f.debug_struct("ReadAhead").field("chunks", &chunks).finish_non_exhaustive()
    }
}

enum Begun {
    Fill(Fill),
    /// It is there or on its way, or was read in vain.
    Known,
    /// The file has as many as it may.
    TooMany,
    NoRoom,
}

impl State {
    /// Drops chunks that could not be had or are outdated, with their room, and remembers which of
    /// them were read in vain.
    fn forget_gone(&mut self) {
        let Self { chunks, in_vain, .. } = self;
        chunks.retain(|chunk| {
            if let Some(End::InVain(at)) = chunk.end.get() {
                in_vain.push((chunk.range, chunk.version, *at));
            }
            !chunk.is_gone()
        });
        in_vain.drain(..in_vain.len().saturating_sub(IN_VAIN_MAX));
    }

    fn begin(
        &mut self,
        (client, range): (ClientId, ByteRange),
        version: FileVersion,
        budget: &ReadAheadBudget,
    ) -> Begun {
        // The client's threads may be stuck, and its chunks with them.
        self.chunks.retain(|chunk| {
            let is_stuck = !chunk.has_left_queue() && chunk.begun.elapsed() >= UNUSED_MAX;
            chunk.client == client || !is_stuck || !chunk.range.contains(range)
        });
        if self.chunks.iter().any(|chunk| chunk.range.contains(range)) {
            return Begun::Known;
        }
        if self.in_vain.iter().any(|(failed, ..)| failed.contains(range)) {
            return Begun::Known;
        }
        // No other chunk is dropped for it: its readers are on their way, and would read it again.
        if self.chunks.len() >= CHUNKS_MAX {
            return Begun::TooMany;
        }
        let Some(permit) = budget.take(client) else { return Begun::NoRoom };
        let chunk = Arc::new(Chunk {
            client,
            range,
            version,
            begun: Instant::now(),
            has_left_queue: AtomicBool::new(false),
            end: SetOnce::new(),
            served_bytes: AtomicU64::new(0),
            permit,
        });
        self.chunks.push(Arc::clone(&chunk));
        Begun::Fill(Fill { chunk })
    }

    fn covering(&self, range: ByteRange) -> Vec<Arc<Chunk>> {
        let mut found = Vec::new();
        let mut at = range.offset();
        while at < range.end() {
            let next = self.chunks.iter().find(|chunk| {
                chunk.range.offset() <= at && at < chunk.range.end() && !chunk.is_gone()
            });
            let Some(next) = next else { return Vec::new() };
            at = next.range.end();
            found.push(Arc::clone(next));
        }
        found
    }
}

/// A piece of a file that was read ahead, or is being read.
pub struct Chunk {
    /// Whose READ it was begun for.
    client: ClientId,
    range: ByteRange,
    /// The file's version before it was read.
    version: FileVersion,
    begun: Instant,
    /// A thread reads it, or has done so.
    has_left_queue: AtomicBool,
    end: SetOnce<End>,
    served_bytes: AtomicU64,
    permit: Permit,
}

/// The end of a [`Fill`].
enum End {
    Read(Content, Instant),
    /// The disk has failed. Another attempt so soon would be as vain, and wait as long.
    InVain(Instant),
    /// It was not read, for want of something that may be there the next time, or may not be kept.
    Nothing,
}

struct Content {
    buffer: Buffer,
    len: usize,
    /// Since before it was read.
    watch: ChangeWatch,
}

impl Chunk {
    /// Where in the file it is.
    #[must_use]
    pub fn range(&self) -> ByteRange {
        self.range
    }

    /// Its bytes, once they are there; fewer than its range has where the file ended when they were
    /// read; `None` when they could not be had.
    pub async fn data(&self) -> Option<&[u8]> {
        self.end.wait().await.content().map(Content::as_slice)
    }

    /// Its bytes, if they are there.
    #[must_use]
    pub fn data_now(&self) -> Option<&[u8]> {
        self.end.get()?.content().map(Content::as_slice)
    }

    /// Counts it from now on to a client that it is sent to, which may keep it for long.
    pub fn count_to(&self, client: ClientId) {
        self.permit.count_to(client);
    }

    /// Whether it is there, or waits for the disk alone.
    fn has_left_queue(&self) -> bool {
        self.has_left_queue.load(Ordering::Relaxed)
    }

    /// Whether it could not be had, or the file is known to have changed since.
    fn is_gone(&self) -> bool {
        match self.end.get() {
            None => false,
            Some(End::Read(content, _)) => content.watch.has_fired(),
            Some(End::InVain(_) | End::Nothing) => true,
        }
    }

    /// Since when it has had its bytes.
    fn read_at(&self) -> Option<Instant> {
        match self.end.get()? {
            End::Read(_, at) => Some(*at),
            End::InVain(_) | End::Nothing => None,
        }
    }

    fn is_used_up(&self) -> bool {
        self.served_bytes.load(Ordering::Relaxed) >= self.range.len()
    }
}

impl End {
    fn content(&self) -> Option<&Content> {
        match self {
            Self::Read(content, _) => Some(content),
            Self::InVain(_) | Self::Nothing => None,
        }
    }
}

impl Content {
    fn as_slice(&self) -> &[u8] {
        &self.buffer.as_slice()[..self.len]
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk").field("range", &self.range).finish_non_exhaustive()
    }
}

/// The duty to read a chunk. When it is dropped, waiters for the chunk read for themselves.
#[derive(Debug)]
pub struct Fill {
    chunk: Arc<Chunk>,
}

impl Fill {
    /// The bytes of the file to read.
    #[must_use]
    pub fn range(&self) -> ByteRange {
        self.chunk.range
    }

    /// Watches the file of `fd` from now on. To be called just before the chunk is read, by the
    /// thread that reads it.
    ///
    /// # Errors
    /// As [`ChangeWatches::watch`]; the chunk is given up.
    pub fn watch(self, watches: &ChangeWatches, fd: BorrowedFd<'_>) -> io::Result<WatchedFill> {
        let watch = watches.watch(fd)?;
        self.chunk.has_left_queue.store(true, Ordering::Relaxed);
        Ok(WatchedFill { watch, fill: self })
    }

    fn set(&self, end: End) {
        // Refused only when it was set before: by `complete` or `fail`, whose drop comes after.
        drop(self.chunk.end.set(end));
    }
}

/// The duty to read a chunk, of a file that is watched. Only such a chunk can be completed.
#[derive(Debug)]
pub struct WatchedFill {
    fill: Fill,
    watch: ChangeWatch,
}

impl WatchedFill {
    /// The bytes of the file to read.
    #[must_use]
    pub fn range(&self) -> ByteRange {
        self.fill.range()
    }

    /// Hands over the first `len` bytes of the buffer as the content of the chunk: all of it, or
    /// what there was up to the end of the file.
    ///
    /// # Panics
    /// The buffer is shorter than `len`.
    pub fn complete(self, buffer: Buffer, len: usize) {
        assert!(len <= buffer.capacity(), "a buffer holds what was read into it");
        let Self { fill, watch } = self;
        fill.set(End::Read(Content { buffer, len, watch }, Instant::now()));
    }

    /// Gives up: the disk has failed. It is not read ahead again for some seconds, unless the file
    /// changes.
    pub fn fail(self) {
        self.fill.set(End::InVain(Instant::now()));
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.set(End::Nothing);
    }
}

#[cfg(test)]
mod tests;
