//! Written data that no WRITE carries yet.
//!
//! A file is divided into blocks as long as a WRITE may be, and no piece of data crosses the border
//! of two. A block holds pieces that do not overlap. A piece still grows, or it is fixed: a block
//! whose memory the writer has given away, or what comes back from the server, the rest of a short
//! WRITE or data that was lost in a restart. Such a piece is never changed, because its bytes are
//! shared with calls and readers.

use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, Range};
use std::ops::Bound;
use std::time::Instant;

use bytes::Bytes;

use super::budget::{Room, Rooms};
use super::epochs::Epochs;

/// Who writes.
pub(super) trait Caller: Clone {
    /// Whether data of the two may share a WRITE.
    fn same_user(&self, other: &Self) -> bool;
}

/// All of a file that is to be sent.
pub(super) struct Unsent<T> {
    block_bytes: u64,
    blocks: BTreeMap<u64, Block<T>>,
    /// Of the pieces.
    epochs: Epochs,
    /// Where the writer goes on if it is a sequential one: the border that it reached last.
    stream_end: u64,
}

struct Block<T> {
    pieces: BTreeMap<u64, Piece<T>>,
    /// Bytes of the pieces.
    bytes: u64,
    /// When the first piece came.
    since: Instant,
}

struct Piece<T> {
    content: Content,
    origin: Origin<T>,
}

enum Content {
    Growing(Chunk),
    Fixed(Bytes),
}

/// Where a piece comes from.
#[derive(Clone)]
pub(super) struct Origin<T> {
    /// Who wrote it.
    pub(super) caller: T,
    /// The epoch of its oldest byte.
    pub(super) epoch: u64,
    /// How often servers lost it.
    pub(super) losses: u32,
}

/// Bytes and the room that they take.
struct Chunk {
    bytes: Vec<u8>,
    room: Room,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Memory of a writer and the room that it takes.
struct Adopted {
    bytes: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Adopted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What a write did to its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// Bytes taken, from the first on.
    pub(super) count: usize,
    /// The bytes of room without which the next byte is not taken.
    pub(super) lacks: Option<usize>,
    /// The block was empty before.
    pub(super) is_new: bool,
    /// The block needs no waiting: there is nothing more to come for it.
    pub(super) is_complete: bool,
}

/// Touching pieces that make one WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Of the oldest byte.
    pub(super) epoch: u64,
}

impl<T: Caller> Unsent<T> {
    pub(super) fn new(block_bytes: u64) -> Self {
        let (blocks, epochs) = (BTreeMap::new(), Epochs::default());
        Self { block_bytes, blocks, epochs, stream_end: u64::MAX }
    }

    /// The first byte of the block of `offset`.
    pub(super) fn block_of(&self, offset: u64) -> u64 {
        offset - offset % self.block_bytes
    }

    /// Puts `data` of a caller and an epoch at `offset`, all in one block. Data that is there is
    /// replaced.
    pub(super) fn write(
        &mut self,
        by: (&T, u64),
        offset: u64,
        data: &[u8],
        rooms: &mut Rooms<'_>,
        now: impl Fn() -> Instant,
    ) -> Placed {
        let key = self.block_of(offset);
        let border = key.saturating_add(self.block_bytes);
        debug_assert!(data.len() as u64 <= border - offset, "a write across blocks");
        let block = self.blocks.entry(key).or_insert_with(|| Block::new(now()));
        let is_new = block.pieces.is_empty();
        let (caller, epoch) = by;
        let (mut count, mut lacks) = (0, None);
        if block.append(caller, offset, data) {
            count = data.len();
        }
        let mut step = Step { caller, epoch, border, stream_end: self.stream_end, rooms };
        while count < data.len() {
            match block.put(&mut step, &mut self.epochs, offset + count as u64, &data[count..]) {
                Ok(taken) => count += taken,
                Err(NoRoom(bytes)) => {
                    lacks = Some(bytes);
                    break;
                }
            }
        }
        let end = offset + count as u64;
        let reaches_border = end == border && block.pieces.len() == 1;
        let is_complete = reaches_border || block.bytes == self.block_bytes;
        if end == border && count > 0 {
            self.stream_end = border;
        }
        let is_new = is_new && count > 0;
        if block.pieces.is_empty() {
            self.blocks.remove(&key);
        }
        Placed { count, lacks, is_new, is_complete }
    }

    /// Takes over `data` of a caller and an epoch, which is the whole block at `offset`. `None`, and
    /// nothing has happened: there is something in the block, or no room.
    pub(super) fn adopt(
        &mut self,
        (caller, epoch): (&T, u64),
        offset: u64,
        data: &Bytes,
        rooms: &mut Rooms<'_>,
        now: impl Fn() -> Instant,
    ) -> Option<Placed> {
        debug_assert!(offset.is_multiple_of(self.block_bytes), "a block begins elsewhere");
        debug_assert!(data.len() as u64 == self.block_bytes, "a block is longer or shorter");
        let Entry::Vacant(vacant) = self.blocks.entry(offset) else { return None };
        let room = rooms.take(data.len() + CHUNK_OVERHEAD_BYTES)?;
        let bytes = Bytes::from_owner(Adopted { bytes: data.clone(), _room: room });
        let origin = Origin { caller: caller.clone(), epoch, losses: 0 };
        let piece = Piece { content: Content::Fixed(bytes), origin };
        vacant.insert(Block::new(now())).add(&mut self.epochs, offset, piece);
        self.stream_end = offset + self.block_bytes;
        Some(Placed { count: data.len(), lacks: None, is_new: true, is_complete: true })
    }

    /// Takes back `data`, which was sent and is not at the server, where nothing newer was written
    /// over it. What was is older now: whoever waits for the one has to wait for the other.
    pub(super) fn put_back(&mut self, origin: &Origin<T>, offset: u64, data: &Bytes, now: Instant) {
        let key = self.block_of(offset);
        let end = offset + data.len() as u64;
        let block = self.blocks.entry(key).or_insert_with(|| Block::new(now));
        let mut at = offset;
        while at < end {
            match block.covering(at) {
                Some((start, piece)) => {
                    at = start + piece.len();
                    piece.age(origin.epoch, &mut self.epochs);
                }
                None => {
                    let until = block.next_start(at).unwrap_or(end).min(end);
                    let part = data.slice(index(at - offset)..index(until - offset));
                    self.epochs.add(origin.epoch);
                    block.bytes += until - at;
                    let piece = Piece { content: Content::Fixed(part), origin: origin.clone() };
                    block.pieces.insert(at, piece);
                    at = until;
                }
            }
        }
    }

    /// The runs of a block, ascending.
    pub(super) fn runs(&self, key: u64) -> Runs<'_, T> {
        Runs { pieces: self.blocks.get(&key).map(|block| block.pieces.range(..)), next: None }
    }

    /// Takes out a run: its bytes, in one piece, and where they come from.
    pub(super) fn take(&mut self, run: Run) -> (Bytes, Origin<T>) {
        let key = self.block_of(run.start);
        let block = self.blocks.get_mut(&key).expect("a run is in a block");
        let mut rest = block.pieces.split_off(&run.start);
        let mut behind = rest.split_off(&run.end);
        block.pieces.append(&mut behind);
        block.bytes -= run.end - run.start;
        if block.pieces.is_empty() {
            self.blocks.remove(&key);
        }
        rest.values().for_each(|piece| self.epochs.remove(piece.origin.epoch));
        let mut pieces = rest.into_values();
        let first = pieces.next().expect("a run is not empty");
        let origin = Origin { epoch: run.epoch, ..first.origin };
        let bytes = match first.content {
            Content::Fixed(bytes) => bytes,
            Content::Growing(chunk) => joined(chunk, pieces, index(run.end - run.start)),
        };
        (bytes, origin)
    }

    /// The blocks, and since when they hold something.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> {
        self.blocks.keys().copied()
    }

    /// When the first piece of a block came.
    pub(super) fn since(&self, key: u64) -> Option<Instant> {
        self.blocks.get(&key).map(|block| block.since)
    }

    /// Where the first piece of a block begins.
    pub(super) fn start_of(&self, key: u64) -> Option<u64> {
        self.blocks.get(&key)?.pieces.first_key_value().map(|(start, _)| *start)
    }

    /// Whether `run` is all there is.
    pub(super) fn is_only(&self, run: Run) -> bool {
        self.blocks.len() == 1
            && self.blocks.values().all(|block| block.bytes == run.end - run.start)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Where the highest byte ends.
    pub(super) fn end(&self) -> Option<u64> {
        let (_, block) = self.blocks.last_key_value()?;
        block.pieces.last_key_value().map(|(start, piece)| start + piece.len())
    }

    /// Where the piece that covers `offset` ends.
    pub(super) fn covered_until(&self, offset: u64) -> Option<u64> {
        let block = self.blocks.get(&self.block_of(offset))?;
        let (start, piece) = block.pieces.range(..=offset).next_back()?;
        let end = start + piece.len();
        (offset < end).then_some(end)
    }

    /// Copies what there is of `offset..` into `buf`.
    pub(super) fn overlay(&self, offset: u64, buf: &mut [u8]) {
        let end = offset.saturating_add(buf.len() as u64);
        for block in self.blocks.range(self.block_of(offset)..end).map(|(_, block)| block) {
            let from =
                block.pieces.range(..=offset).next_back().map_or(offset, |(start, _)| *start);
            for (start, piece) in block.pieces.range(from..end) {
                copy_overlap(offset, buf, *start, piece.as_ref());
            }
        }
    }

    /// Drops all from `size` on.
    pub(super) fn cut(&mut self, size: u64) {
        let border = self.block_of(size);
        let mut gone = self.blocks.split_off(&border);
        if let Some(mut block) = gone.remove(&border) {
            let behind = block.pieces.split_off(&size);
            behind.values().for_each(|piece| self.epochs.remove(piece.origin.epoch));
            if let Some((start, piece)) = block.pieces.iter_mut().next_back() {
                piece.truncate(index(size - start));
            }
            block.bytes = block.pieces.values().map(Piece::len).sum();
            if !block.pieces.is_empty() {
                self.blocks.insert(border, block);
            }
        }
        for piece in gone.values().flat_map(|block| block.pieces.values()) {
            self.epochs.remove(piece.origin.epoch);
        }
    }

    /// Panics unless the sums are those of the pieces.
    #[cfg(test)]
    pub(super) fn verify(&self) {
        let mut epochs = Epochs::default();
        for (key, block) in &self.blocks {
            let mut at = *key;
            assert!(!block.pieces.is_empty());
            for (start, piece) in &block.pieces {
                assert!(*start >= at && piece.len() > 0, "pieces overlap");
                at = start + piece.len();
                epochs.add(piece.origin.epoch);
            }
            assert!(at <= key + self.block_bytes, "a piece crosses the border");
            assert_eq!(block.bytes, block.pieces.values().map(Piece::len).sum::<u64>());
        }
        assert_eq!(epochs, self.epochs);
    }
}

/// What stays the same while a write is put into a block.
struct Step<'a, 'r, T> {
    caller: &'a T,
    epoch: u64,
    /// Where the block ends.
    border: u64,
    stream_end: u64,
    rooms: &'a mut Rooms<'r>,
}

/// Bytes of room that are lacking.
struct NoRoom(usize);

impl<T: Caller> Block<T> {
    fn new(since: Instant) -> Self {
        Self { pieces: BTreeMap::new(), bytes: 0, since }
    }

    /// Appends `data` to the last piece if it goes there as it is: what a sequential writer does,
    /// maybe a byte at a time.
    #[inline]
    fn append(&mut self, caller: &T, at: u64, data: &[u8]) -> bool {
        let Some(mut last) = self.pieces.last_entry() else { return false };
        let start = *last.key();
        let Piece { content: Content::Growing(chunk), origin } = last.get_mut() else {
            return false;
        };
        let spare = chunk.bytes.capacity() - chunk.bytes.len();
        let is_next = start + chunk.bytes.len() as u64 == at;
        let fits = is_next && spare >= data.len() && origin.caller.same_user(caller);
        if fits {
            chunk.bytes.extend_from_slice(data);
            self.bytes += data.len() as u64;
        }
        fits
    }

    /// Puts a prefix of `data` at `at`, at least one byte. Either that or nothing has happened: no
    /// old byte is given up before there is room for the new one.
    fn put(
        &mut self,
        step: &mut Step<'_, '_, T>,
        epochs: &mut Epochs,
        at: u64,
        data: &[u8],
    ) -> Result<usize, NoRoom> {
        let limit = self.next_start(at).unwrap_or(step.border);
        let gap = data.len().min(index(limit - at));
        let before = self.pieces.range_mut(..=at).next_back();
        let Some((start, piece)) = before else {
            return self.insert(step, epochs, at, &data[..gap]);
        };
        let (start, end) = (*start, *start + piece.len());
        let is_ours = piece.origin.caller.same_user(step.caller);
        match &mut piece.content {
            Content::Growing(chunk) if is_ours && at < end => {
                let count = data.len().min(index(end - at));
                let from = index(at - start);
                chunk.bytes[from..from + count].copy_from_slice(&data[..count]);
                Ok(count)
            }
            Content::Growing(chunk) if is_ours && at == end => {
                chunk.reserve(gap, index(limit - start), step.rooms)?;
                chunk.bytes.extend_from_slice(&data[..gap]);
                self.bytes += gap as u64;
                Ok(gap)
            }
            _ if at < end => {
                let count = data.len().min(index(end - at));
                let epoch = step.epoch.min(piece.origin.epoch);
                let chunk = Chunk::new(&data[..count], count, step.rooms)?;
                self.remove(epochs, start, at, at + count as u64);
                self.add(epochs, at, Piece::new(chunk, step.caller, epoch));
                Ok(count)
            }
            _ => self.insert(step, epochs, at, &data[..gap]),
        }
    }

    fn insert(
        &mut self,
        step: &mut Step<'_, '_, T>,
        epochs: &mut Epochs,
        at: u64,
        data: &[u8],
    ) -> Result<usize, NoRoom> {
        // A writer that filled the block before will fill this one: it is allocated whole.
        let is_stream = at == step.stream_end && self.pieces.is_empty();
        let capacity = if is_stream { index(step.border - at) } else { CHUNK_BYTES_MIN };
        let limit = index(self.next_start(at).unwrap_or(step.border) - at);
        let chunk = Chunk::new(data, capacity.min(limit), step.rooms)?;
        self.add(epochs, at, Piece::new(chunk, step.caller, step.epoch));
        Ok(data.len())
    }

    fn add(&mut self, epochs: &mut Epochs, at: u64, piece: Piece<T>) {
        epochs.add(piece.origin.epoch);
        self.bytes += piece.len();
        self.pieces.insert(at, piece);
    }

    /// Removes `from..to` out of the piece that begins at `start`; what is on either side stays.
    fn remove(&mut self, epochs: &mut Epochs, start: u64, from: u64, to: u64) {
        let piece = self.pieces.remove(&start).expect("the caller has found it");
        self.bytes -= piece.len();
        epochs.remove(piece.origin.epoch);
        let Piece { content, origin } = piece;
        let bytes = match content {
            Content::Fixed(bytes) => bytes,
            Content::Growing(chunk) => Bytes::from_owner(chunk),
        };
        for (at, part) in
            [(start, bytes.slice(..index(from - start))), (to, bytes.slice(index(to - start)..))]
        {
            if !part.is_empty() {
                let content = Content::Fixed(part);
                self.add(epochs, at, Piece { content, origin: origin.clone() });
            }
        }
    }

    fn covering(&mut self, at: u64) -> Option<(u64, &mut Piece<T>)> {
        let (start, piece) = self.pieces.range_mut(..=at).next_back()?;
        (at < start + piece.len()).then_some((*start, piece))
    }

    /// Where the first piece behind `at` begins.
    fn next_start(&self, at: u64) -> Option<u64> {
        let behind = (Bound::Excluded(at), Bound::Unbounded);
        self.pieces.range(behind).next().map(|(start, _)| *start)
    }
}

impl<T: Clone> Piece<T> {
    fn new(chunk: Chunk, caller: &T, epoch: u64) -> Self {
        let origin = Origin { caller: caller.clone(), epoch, losses: 0 };
        Self { content: Content::Growing(chunk), origin }
    }
}

impl<T> Piece<T> {
    fn len(&self) -> u64 {
        self.as_ref().len() as u64
    }

    fn truncate(&mut self, len: usize) {
        match &mut self.content {
            Content::Growing(chunk) => chunk.bytes.truncate(len),
            Content::Fixed(bytes) => bytes.truncate(len),
        }
    }

    fn age(&mut self, epoch: u64, epochs: &mut Epochs) {
        if epoch < self.origin.epoch {
            epochs.remove(self.origin.epoch);
            epochs.add(epoch);
            self.origin.epoch = epoch;
        }
    }
}

impl<T> AsRef<[u8]> for Piece<T> {
    fn as_ref(&self) -> &[u8] {
        match &self.content {
            Content::Growing(chunk) => &chunk.bytes,
            Content::Fixed(bytes) => bytes,
        }
    }
}

impl Chunk {
    /// A chunk that holds `data`, with so much capacity if that can be had.
    fn new(data: &[u8], capacity: usize, rooms: &mut Rooms<'_>) -> Result<Self, NoRoom> {
        let least = data.len() + CHUNK_OVERHEAD_BYTES;
        let wish = capacity.max(data.len()) + CHUNK_OVERHEAD_BYTES;
        let (room, charged) = match rooms.take(wish) {
            Some(room) => (room, wish),
            None => (rooms.take(least).ok_or(NoRoom(least))?, least),
        };
        let mut bytes = Vec::with_capacity(charged - CHUNK_OVERHEAD_BYTES);
        bytes.extend_from_slice(data);
        Ok(Self { bytes, room })
    }

    /// Makes sure that `more` bytes can follow. Doubles what there is, up to `limit` in all.
    #[inline]
    fn reserve(&mut self, more: usize, limit: usize, rooms: &mut Rooms<'_>) -> Result<(), NoRoom> {
        if self.bytes.capacity() - self.bytes.len() >= more {
            return Ok(());
        }
        let (len, capacity) = (self.bytes.len(), self.bytes.capacity());
        let least = len + more - capacity;
        let wish = (2 * capacity).clamp(len + more, limit) - capacity;
        let (room, growth) = match rooms.take(wish) {
            Some(room) => (room, wish),
            None => (rooms.take(least).ok_or(NoRoom(least))?, least),
        };
        self.room.merge(room);
        self.bytes.reserve_exact(capacity + growth - len);
        Ok(())
    }
}

/// One run after the other.
pub(super) struct Runs<'a, T> {
    pieces: Option<Range<'a, u64, Piece<T>>>,
    /// The piece behind the latest run.
    next: Option<(u64, &'a Piece<T>)>,
}

impl<T: Caller> Iterator for Runs<'_, T> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let pieces = self.pieces.as_mut()?;
        let mut following = || pieces.next().map(|(start, piece)| (*start, piece));
        let (start, first) = self.next.take().or_else(&mut following)?;
        let mut run = Run { start, end: start + first.len(), epoch: first.origin.epoch };
        self.next = following();
        while let Some((start, piece)) = self.next {
            if start != run.end || !first.joins(piece) {
                break;
            }
            run.end += piece.len();
            run.epoch = run.epoch.min(piece.origin.epoch);
            self.next = following();
        }
        Some(run)
    }
}

impl<T: Caller> Piece<T> {
    /// Whether the two may share a WRITE. What is fixed stays as it is: joining it would take room
    /// that nobody asked for.
    fn joins(&self, next: &Self) -> bool {
        matches!((&self.content, &next.content), (Content::Growing(_), Content::Growing(_)))
            && self.origin.caller.same_user(&next.origin.caller)
    }
}

/// The bytes of chunks that follow each other, `len` in all. A single one is not copied.
fn joined<T>(first: Chunk, rest: impl Iterator<Item = Piece<T>>, len: usize) -> Bytes {
    if first.bytes.len() == len {
        return Bytes::from_owner(first);
    }
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&first.bytes);
    let mut room = first.room;
    for piece in rest {
        bytes.extend_from_slice(piece.as_ref());
        if let Content::Growing(chunk) = piece.content {
            room.merge(chunk.room);
        }
    }
    Bytes::from_owner(Chunk { bytes, room })
}

/// Copies into `buf`, which begins at `offset`, what it shares with `data`, which begins at `start`.
pub(super) fn copy_overlap(offset: u64, buf: &mut [u8], start: u64, data: &[u8]) {
    let from = offset.max(start);
    let to = (offset + buf.len() as u64).min(start + data.len() as u64);
    if from < to {
        buf[index(from - offset)..index(to - offset)]
            .copy_from_slice(&data[index(from - start)..index(to - start)]);
    }
}

/// A distance within memory.
pub(super) fn index(distance: u64) -> usize {
    usize::try_from(distance).expect("no longer than a block or a buffer")
}

/// Capacity of a chunk that does not continue a stream.
const CHUNK_BYTES_MIN: usize = 256;
/// What a chunk costs besides its bytes: its places in the maps, and the allocator's.
const CHUNK_OVERHEAD_BYTES: usize = 128;
