//! Sequential reads of one open file, fetched before they are asked for.
//!
//! A file is divided into chunks of the size of one READ. A reader that begins at the start of the
//! file or continues where another read ended is a stream: its data is fetched in whole chunks, and
//! as soon as it is known for a stream, all of the chunks of the window ahead of it are asked for
//! at once. A request that lies in one chunk is served without a copy. Chunks are let go of when
//! their bytes have been delivered or the stream has passed them. Requests may come several at once
//! and somewhat out of order, as a kernel sends them; up to eight streams of a file are told apart.
//! Reads that belong to no stream are asked of the server as they are.
//!
//! What all files of a mount hold ahead is bounded by a [`ReadAheadBudget`]. A read that finds no
//! room is asked of the server as it is; it does not wait, nor fail.
//!
//! ```
//! # use std::sync::Arc;
//! # use spillway_client::read_ahead::{ReadAhead, ReadAheadBudget, ReadAheadConfig, ReadSource};
//! # use spillway_client::{MountOptions, Result};
//! # async fn example<S: ReadSource>(source: S, size: u64, options: &MountOptions) -> Result<()> {
//! let budget = ReadAheadBudget::new(options.read_ahead_bytes);
//! let config = ReadAheadConfig { read_bytes: 1 << 20, chunks_ahead: 8, budget };
//! let file = ReadAhead::new(source, config);
//! let mut offset = 0;
//! loop {
//!     let data = file.read(offset, 128 << 10, size).await?;
//!     if data.is_empty() {
//!         break;
//!     }
//!     offset += data.len() as u64;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Freshness
//!
//! A read that begins after [`ReadAhead::invalidate`] has returned gets nothing that was asked for
//! before it. Until then a chunk may be as old as its READ; it is the caller's business to hear of
//! changes ([`crate::change`]), and to send its own writes before it reads what they cover.

mod budget;
mod chunks;
mod streams;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use proto::xdr::DecodeError;

pub use budget::ReadAheadBudget;
use chunks::{Call, Chunk, Piece, Shared, Started, State};

use crate::error::Result;
use crate::nfs3::ReadData;

/// Asks the server for a part of a file.
///
/// Cloned for each call, because a call outlives the reader that wanted it first when others wait
/// for it too. It speaks for the user who opened the file.
pub trait ReadSource: Clone + Send + Sync + 'static {
    /// READ, RFC 1813 §3.3.6: at most `count` bytes from `offset` on. Fewer before the end of the
    /// file are asked for again. Dropped when nobody wants the data any more.
    ///
    /// # Errors
    /// Those of the call. They reach who reads the range, and are forgotten then.
    fn read(
        &self,
        offset: u64,
        count: u32,
        purpose: Purpose,
    ) -> impl Future<Output = Result<ReadData>> + Send;
}

/// Why a part is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A reader waits for it.
    Asked,
    /// Nobody asked for it yet.
    Ahead,
}

/// How a file is read ahead.
#[derive(Clone, Debug)]
pub struct ReadAheadConfig {
    /// Bytes of a READ, and of a chunk. At least 1.
    pub read_bytes: u32,
    /// Chunks that are kept fetched or on their way ahead of a stream.
    pub chunks_ahead: usize,
    /// Bounds them over all files.
    pub budget: Arc<ReadAheadBudget>,
}

/// One open file, read by any number of tasks at once. To be used within a Tokio runtime.
///
/// Dropped, it gives up what is on its way.
pub struct ReadAhead<S: ReadSource> {
    source: S,
    shared: Arc<Shared>,
    read_bytes: u32,
    chunks_ahead: usize,
}

impl<S: ReadSource> ReadAhead<S> {
    /// A file that nobody has read yet.
    ///
    /// # Panics
    /// If `read_bytes` is 0.
    #[must_use]
    pub fn new(source: S, config: ReadAheadConfig) -> Self {
        let ReadAheadConfig { read_bytes, chunks_ahead, budget } = config;
        assert!(read_bytes > 0, "a READ of nothing gets nowhere");
        Self { source, shared: Shared::new(budget, read_bytes), read_bytes, chunks_ahead }
    }

    /// Reads `len` bytes at `offset`; fewer only at the end of the file. `size` is the length of the
    /// file as far as the caller knows: nothing is fetched ahead beyond it, and where it says that
    /// the file has grown, an end that was seen before is looked for again. Where the file ends is
    /// decided by the server.
    ///
    /// Dropping the future loses nothing that others wait for.
    ///
    /// # Errors
    /// Those of [`ReadSource::read`] for a part of the range.
    pub async fn read(&self, offset: u64, len: usize, size: u64) -> Result<Bytes> {
        let end = offset.saturating_add(bytes_u64(len));
        let mut pieces = Vec::with_capacity(1);
        let mut at = offset;
        // The calls under way for one read are as many as a stream would have.
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

    /// Forgets all that was fetched or is on its way: the file was changed, cut off or replaced.
    pub fn invalidate(&self) {
        self.shared.lock().chunks.clear();
    }

    /// Forgets what an own write of `len` bytes at `offset` made untrue, the end of the file
    /// included.
    pub fn invalidate_range(&self, offset: u64, len: u64) {
        let written = offset..offset.saturating_add(len);
        self.shared.lock().chunks.retain(|index, chunk| {
            // What is on its way may be about to say that the file ends where it ended before.
            chunk.is_full(self.read_bytes) && intersection(&self.chunk(*index), &written).is_empty()
        });
    }

    /// Reads all of `span`, and tells how many bytes there were; fewer only at the end of the file.
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

    /// Divides a request into what comes from chunks and what is asked for by itself, and starts
    /// the chunks that the stream needs.
    fn plan(&self, range: &Range<u64>, size: u64) -> VecDeque<Part> {
        let mut parts = VecDeque::<Part>::new();
        let mut state = self.shared.lock();
        let stream = state.streams.note(range.clone());
        if stream.is_some_and(|stream| stream.crossed) {
            state.drop_passed(u64::from(self.read_bytes), self.window_bytes());
        }
        // A look at the start of a file that is a single READ may as well bring all of it.
        let whole = range.start == 0 && size <= u64::from(self.read_bytes);
        let in_chunks = stream.is_some() || whole;
        for index in self.indexes(range) {
            let wanted = intersection(range, &self.chunk(index));
            state.drop_outgrown(index, self.chunk(index).start, wanted.end.min(size));
            if in_chunks && wanted.start < size && !state.chunks.contains_key(&index) {
                self.start(&mut state, index, Purpose::Asked);
            }
            let from = match state.chunks.get(&index) {
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
            self.start_ahead(&mut state, stream.next, size);
        }
        parts
    }

    /// Fills the window of a stream that goes on at `next`.
    fn start_ahead(&self, state: &mut State, next: u64, size: u64) {
        let first = next / u64::from(self.read_bytes);
        // A chunk that is being read is not ahead.
        let begun = u64::from(!next.is_multiple_of(u64::from(self.read_bytes)));
        for index in first..first.saturating_add(begun + bytes_u64(self.chunks_ahead)) {
            let chunk = state.chunks.get(&index);
            let (there, ended) = (chunk.is_some(), chunk.is_some_and(Chunk::is_end));
            let beyond = self.chunk(index).start >= size;
            if ended || beyond || (!there && !self.start(state, index, Purpose::Ahead)) {
                return;
            }
        }
    }

    /// Asks for a chunk. Whether there is room for it.
    fn start(&self, state: &mut State, index: u64, purpose: Purpose) -> bool {
        let Some(room) = self.shared.room(self.read_bytes as usize) else { return false };
        let (source, offset, count) =
            (self.source.clone(), self.chunk(index).start, self.read_bytes);
        let call = async move { fetch(&source, offset, count, purpose).await };
        state.start(&self.shared, index, room, call);
        true
    }

    /// Waits for a part.
    async fn part(&self, part: Part) -> Result<Bytes> {
        let Part { range, from } = part;
        match from {
            Origin::Server => {}
            Origin::Call(call) => {
                if let Some(filled) = call.wait().await {
                    return filled.map(|piece| piece.data);
                }
            }
            Origin::Chunk(index, started) => {
                if let Some(filled) = started.wait().await {
                    let chunk_start = self.chunk(index).start;
                    let data = slice(&filled?, range.start - chunk_start..range.end - chunk_start);
                    self.shared.lock().delivered(index, &started, data.len());
                    return Ok(data);
                }
            }
        }
        // Or it was given up meanwhile, for room or because it is no longer true.
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
        self.shared.close();
    }
}

impl<S: ReadSource> fmt::Debug for ReadAhead<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadAhead").field("read_bytes", &self.read_bytes).finish_non_exhaustive()
    }
}

/// A part of a request: no longer than a READ, and in one chunk if it comes from one.
struct Part {
    range: Range<u64>,
    from: Origin,
}

enum Origin {
    /// The chunk of this index.
    Chunk(u64, Started),
    /// To be asked for.
    Server,
    /// Asked for, for this part alone.
    Call(Call),
}

impl Part {
    /// Asks the server for what comes from it alone, so that all parts are under way at once.
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
) -> Result<Piece> {
    let mut pieces = Vec::with_capacity(1);
    let mut got = 0;
    loop {
        let ReadData { data, eof, .. } =
            source.read(offset.saturating_add(u64::from(got)), count - got, purpose).await?;
        // Without this a server could keep the client asking for ever.
        if data.is_empty() && !eof {
            return Err(DecodeError { what: "READ3resok without data or eof", at_byte: 0 }.into());
        }
        got += u32::try_from(data.len()).unwrap_or(u32::MAX).min(count - got);
        pieces.push(data);
        if eof || got == count {
            let mut data = join(pieces);
            data.truncate(count as usize);
            return Ok(Piece { data, eof });
        }
    }
}

/// One piece as it is, several in one.
fn join(mut pieces: Vec<Bytes>) -> Bytes {
    pieces.retain(|piece| !piece.is_empty());
    if pieces.len() <= 1 {
        return pieces.pop().unwrap_or_default();
    }
    let mut joined = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
    joined.freeze()
}

/// What there is of `range`, counted from the start of the piece.
fn slice(piece: &Piece, range: Range<u64>) -> Bytes {
    let len = piece.data.len();
    let within = |at: u64| usize::try_from(at).map_or(len, |at| at.min(len));
    piece.data.slice(within(range.start)..within(range.end))
}

fn intersection(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// A number of bytes or chunks in memory as one in a file.
fn bytes_u64(len: usize) -> u64 {
    len as u64
}

#[cfg(test)]
mod tests;
