//! Read-ahead for one open file.
//!
//! A file is divided into chunks of the size of one READ. Reads that begin at the start of the
//! file, or continue where another read ended, form a stream: its data is fetched in whole chunks,
//! and as soon as a stream is detected, all chunks of its window are requested at once. A read
//! within one chunk makes no copy. A chunk is dropped when all its bytes have been returned or the
//! stream has passed it. Reads may be concurrent and slightly out of order, as a kernel sends them;
//! up to eight streams of a file are distinguished. Reads outside of streams go to the server
//! unchanged.
//!
//! A [`ReadAheadBudget`] bounds the chunks of all files of a mount. A read that finds no room goes
//! to the server unchanged; it neither waits nor fails.
//!
//! # Freshness
//!
//! A read that begins after [`ReadAhead::invalidate`] has returned gets no data requested before
//! it. Otherwise a chunk may be as old as its READ: the caller detects changes
//! ([`crate::cache::change`]), and sends its own writes before it reads the same range.

mod budget;
mod chunks;
mod streams;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

pub(crate) use budget::ReadAheadBudget;
use chunks::{Call, Chunk, ChunkTable, FileChunks, Started};

use crate::error::Result;
use crate::nfs3::{ReadData, ReadPart, read_whole};

/// READ of one file as the user that opened it.
///
/// Cloned for each call, because a call can outlive the reader that sent it while other readers
/// wait for it.
pub(crate) trait ReadSource: Clone + Send + Sync + 'static {
    /// READ, RFC 1813 §3.3.6: at most `count` bytes from `offset` on. Dropped when no reader needs
    /// the data any more.
    ///
    /// # Errors
    /// Those of the call. The readers of the range return them; they are not cached.
    fn read(
        &self,
        offset: u64,
        count: u32,
        purpose: Purpose,
    ) -> impl Future<Output = Result<ReadPart>> + Send;
}

/// Why a range is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A reader waits for it.
    Asked,
    /// It is read ahead.
    Ahead,
}

/// Parameters of read-ahead.
#[derive(Clone, Debug)]
pub(crate) struct ReadAheadConfig {
    /// Bytes of a READ, and of a chunk. At least 1.
    pub(crate) read_bytes: u32,
    /// Chunks ahead of a stream, fetched or in flight.
    pub(crate) chunks_ahead: usize,
    /// Bounds the chunks of all files.
    pub(crate) budget: Arc<ReadAheadBudget>,
}

/// One open file, for any number of concurrent readers. To be used within a Tokio runtime.
///
/// Drop cancels the calls in flight.
pub(crate) struct ReadAhead<S: ReadSource> {
    source: S,
    chunks: Arc<FileChunks>,
    read_bytes: u32,
    chunks_ahead: usize,
}

impl<S: ReadSource> ReadAhead<S> {
    /// A file without chunks.
    ///
    /// # Panics
    /// If `read_bytes` is 0.
    #[must_use]
    pub(crate) fn new(source: S, config: ReadAheadConfig) -> Self {
        let ReadAheadConfig { read_bytes, chunks_ahead, budget } = config;
        assert!(read_bytes > 0, "a READ of 0 bytes");
        Self { source, chunks: FileChunks::new(budget, read_bytes), read_bytes, chunks_ahead }
    }

    /// Reads `len` bytes at `offset`; fewer only at the end of the file. `size` is the length of
    /// the file as far as the caller knows it: the limit of read-ahead, and the reason to read
    /// again behind a cached end of file that lies before it. The end of the result is always the
    /// server's end of file.
    ///
    /// Dropping the future does not cancel calls that other readers wait for.
    ///
    /// # Errors
    /// Those of [`ReadSource::read`] for a part of the range.
    pub(crate) async fn read(&self, offset: u64, len: usize, size: u64) -> Result<Bytes> {
        let end = offset.saturating_add(bytes_u64(len));
        let mut pieces = Vec::with_capacity(1);
        let mut at = offset;
        // One read has at most as many calls in flight as a stream.
        let span_bytes = bytes_u64(self.chunks_ahead.max(1)) * u64::from(self.read_bytes);
        while at < end {
            let span = at..end.min(at.saturating_add(span_bytes));
            let wanted = span.end - span.start;
            let got = self.read_span(span, size, &mut pieces).await?;
            at += got;
            if got < wanted {
                break;
            }
        }
        Ok(join(pieces))
    }

    /// Drops all chunks, fetched or in flight, because the file was changed, truncated or replaced.
    pub(crate) fn invalidate(&self) {
        self.chunks.lock().chunks.clear();
    }

    /// Whether reads may be answered from chunks.
    pub(crate) fn has_chunks(&self) -> bool {
        !self.chunks.lock().chunks.is_empty()
    }

    /// Reads all of `span`. Returns the number of bytes; fewer only at the end of the file.
    async fn read_span(&self, span: Range<u64>, size: u64, pieces: &mut Vec<Bytes>) -> Result<u64> {
        let mut parts = self.plan(&span, size);
        if parts.len() > 1 {
            parts.iter_mut().for_each(|part| part.send(&self.source));
        }
        let mut got = 0;
        while let Some(part) = parts.pop_front() {
            let wanted = part.range.end - part.range.start;
            let data = self.part(part).await?;
            let part_bytes = bytes_u64(data.len());
            got += part_bytes;
            pieces.push(data);
            if part_bytes < wanted {
                break;
            }
        }
        Ok(got)
    }

    /// Divides a read into parts from chunks and parts with a READ of their own, and requests the
    /// chunks that the stream needs.
    fn plan(&self, range: &Range<u64>, size: u64) -> VecDeque<Part> {
        let mut parts = VecDeque::<Part>::new();
        let mut table = self.chunks.lock();
        let stream = table.streams.note(range.clone());
        if stream.is_some_and(|stream| stream.crossed) {
            table.drop_passed(u64::from(self.read_bytes), self.window_bytes());
        }
        // A read at the start of a file as small as one READ fetches all of it.
        let whole = range.start == 0 && size <= u64::from(self.read_bytes);
        let in_chunks = stream.is_some() || whole;
        for index in self.indexes(range) {
            let wanted = intersection(range, &self.chunk(index));
            table.drop_outgrown(index, self.chunk(index).start, wanted.end.min(size));
            if in_chunks && wanted.start < size && !table.chunks.contains_key(&index) {
                self.start(&mut table, index, Purpose::Asked);
            }
            let from = match table.chunks.get(&index) {
                Some(chunk) => Origin::Chunk(index, chunk.started()),
                None => Origin::Server,
            };
            match (parts.back_mut(), &from) {
                (Some(Part { range, from: Origin::Server }), Origin::Server)
                    if wanted.end - range.start <= u64::from(self.read_bytes) =>
                {
                    range.end = wanted.end;
                }
                _ => parts.push_back(Part { range: wanted, from }),
            }
        }
        if let Some(stream) = stream {
            self.start_ahead(&mut table, stream.next, size);
        }
        parts
    }

    /// Fills the window of a stream that continues at `next`.
    fn start_ahead(&self, table: &mut ChunkTable, next: u64, size: u64) {
        let first = next / u64::from(self.read_bytes);
        // The chunk at `next`, already read in part, is not ahead.
        let begun = u64::from(!next.is_multiple_of(u64::from(self.read_bytes)));
        for index in first..first.saturating_add(begun + bytes_u64(self.chunks_ahead)) {
            let chunk = table.chunks.get(&index);
            let (there, ended) = (chunk.is_some(), chunk.is_some_and(Chunk::is_end));
            let beyond = self.chunk(index).start >= size;
            if ended || beyond || (!there && !self.start(table, index, Purpose::Ahead)) {
                return;
            }
        }
    }

    /// Requests a chunk. Returns whether there is room for it.
    fn start(&self, table: &mut ChunkTable, index: u64, purpose: Purpose) -> bool {
        let Some(room) = self.chunks.room(self.read_bytes as usize) else { return false };
        let (source, offset, count) =
            (self.source.clone(), self.chunk(index).start, self.read_bytes);
        let call = async move { fetch(&source, offset, count, purpose).await };
        table.start(&self.chunks, index, room, call);
        true
    }

    /// Waits for a part.
    async fn part(&self, part: Part) -> Result<Bytes> {
        let Part { range, from } = part;
        match from {
            Origin::Server => {}
            Origin::Call(call) => {
                if let Some(filled) = call.wait().await {
                    return filled.map(|read| read.data);
                }
            }
            Origin::Chunk(index, started) => {
                if let Some(filled) = started.wait().await {
                    let chunk_start = self.chunk(index).start;
                    let data = slice(&filled?, range.start - chunk_start..range.end - chunk_start);
                    self.chunks.lock().delivered(index, &started, data.len());
                    return Ok(data);
                }
            }
        }
        // Or the chunk was dropped meanwhile, for room or because it is outdated.
        let count =
            u32::try_from(range.end - range.start).expect("a part is no longer than a READ");
        Ok(fetch(&self.source, range.start, count, Purpose::Asked).await?.data)
    }

    fn window_bytes(&self) -> u64 {
        bytes_u64(self.chunks_ahead + 1) * u64::from(self.read_bytes)
    }

    fn chunk(&self, index: u64) -> Range<u64> {
        let start = index.saturating_mul(u64::from(self.read_bytes));
        start..start.saturating_add(u64::from(self.read_bytes))
    }

    fn indexes(&self, range: &Range<u64>) -> Range<u64> {
        let read_bytes = u64::from(self.read_bytes);
        range.start / read_bytes..range.end.div_ceil(read_bytes)
    }
}

impl<S: ReadSource> Drop for ReadAhead<S> {
    fn drop(&mut self) {
        self.chunks.close();
    }
}

impl<S: ReadSource> fmt::Debug for ReadAhead<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadAhead").field("read_bytes", &self.read_bytes).finish_non_exhaustive()
    }
}

/// A part of a read: no longer than a READ, and within one chunk if it comes from a chunk.
struct Part {
    range: Range<u64>,
    from: Origin,
}

enum Origin {
    /// The chunk of this index.
    Chunk(u64, Started),
    /// A READ to be sent.
    Server,
    /// A READ in flight for this part alone.
    Call(Call),
}

impl Part {
    /// Sends the READ of a part without chunk, so that all parts are in flight at once.
    fn send<S: ReadSource>(&mut self, source: &S) {
        if let Origin::Server = self.from {
            let (source, offset) = (source.clone(), self.range.start);
            let count = u32::try_from(self.range.end - offset).expect("no longer than a READ");
            self.from = Origin::Call(Call::spawn(async move {
                fetch(&source, offset, count, Purpose::Asked).await
            }));
        }
    }
}

/// Reads `count` bytes; fewer only at the end of the file.
async fn fetch<S: ReadSource>(
    source: &S,
    offset: u64,
    count: u32,
    purpose: Purpose,
) -> Result<ReadData> {
    read_whole(offset, count, |offset, count| source.read(offset, count, purpose)).await
}

/// Joins pieces. A single one is not copied.
fn join(mut pieces: Vec<Bytes>) -> Bytes {
    pieces.retain(|piece| !piece.is_empty());
    if pieces.len() <= 1 {
        return pieces.pop().unwrap_or_default();
    }
    let mut joined = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
    joined.freeze()
}

/// The existing part of `range`, relative to the start of the piece.
fn slice(piece: &ReadData, range: Range<u64>) -> Bytes {
    let len = piece.data.len();
    let within = |at: u64| usize::try_from(at).map_or(len, |at| at.min(len));
    piece.data.slice(within(range.start)..within(range.end))
}

fn intersection(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// Converts a length in memory to a length in a file.
fn bytes_u64(len: usize) -> u64 {
    len as u64
}

#[cfg(test)]
mod tests;
