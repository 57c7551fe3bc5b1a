//! Written data that no WRITE carries yet.
//!
//! A file is divided into blocks of the maximum size of a WRITE, and no piece of data crosses the
//! border of two blocks. The pieces of a block do not overlap. A piece is growing or fixed. Fixed
//! pieces are blocks adopted from a writer, the rest of a short WRITE, and data that a server lost
//! in a restart. They are never modified, because calls and readers share their bytes.

use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, Range};
use std::ops::Bound;
use std::time::Instant;

use bytes::Bytes;

use super::budget::{NoRoom, Rooms};
use super::chunk::{Chunk, adopt, copy_overlap, index};
use super::epochs::Epochs;

/// The calls of a user.
pub(super) trait Caller: Clone {
    /// Whether data of both may share a WRITE.
    fn same_user(&self, other: &Self) -> bool;
}

/// The unsent data of a file.
pub(super) struct Unsent<T> {
    block_bytes: u64,
    blocks: BTreeMap<u64, Block<T>>,
    /// The epochs of the pieces.
    epochs: Epochs,
    /// The border that was reached last, where a sequential writer continues.
    stream_end: u64,
}

struct Block<T> {
    pieces: BTreeMap<u64, Piece<T>>,
    /// Bytes of all pieces.
    bytes: u64,
    /// When the first piece was added.
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

/// The origin of a piece.
#[derive(Clone)]
pub(super) struct Origin<T> {
    /// The calls of the writer.
    pub(super) caller: T,
    /// The epoch of its oldest byte.
    pub(super) epoch: u64,
    /// How often a server lost it.
    pub(super) losses: u32,
}

/// The effect of a write on its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// Length of the prefix that was taken.
    pub(super) count: usize,
    /// Bytes of room needed for the next byte.
    pub(super) lacks: Option<usize>,
    /// Whether the block was empty before.
    pub(super) is_new: bool,
    /// Whether the block is complete, so that it need not wait for more data.
    pub(super) is_complete: bool,
}

/// Adjacent pieces that form one WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The epoch of the oldest byte.
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

    /// Writes a prefix of `data`, by a caller and in an epoch, at `offset`. All of it lies in one
    /// block. Replaces older data.
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

    /// Adopts `data`, by a caller and in an epoch, as the whole block at `offset`. Returns `None`,
    /// and does nothing, if the block has data or there is no room.
    pub(super) fn adopt(
        &mut self,
        (caller, epoch): (&T, u64),
        offset: u64,
        data: &Bytes,
        rooms: &mut Rooms<'_>,
        now: impl Fn() -> Instant,
    ) -> Option<Placed> {
        debug_assert!(offset.is_multiple_of(self.block_bytes), "not the beginning of a block");
        debug_assert!(data.len() as u64 == self.block_bytes, "not the length of a block");
        let Entry::Vacant(vacant) = self.blocks.entry(offset) else { return None };
        let content = Content::Fixed(adopt(data, rooms)?);
        let piece = Piece { content, origin: Origin { caller: caller.clone(), epoch, losses: 0 } };
        vacant.insert(Block::new(now())).add(&mut self.epochs, offset, piece);
        self.stream_end = offset + self.block_bytes;
        Some(Placed { count: data.len(), lacks: None, is_new: true, is_complete: true })
    }

    /// Adds `data` again, which was sent and then lost, except where newer data was written over
    /// it. The newer piece takes the older of the two epochs, so a flush of either waits for both.
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

    /// Removes a run. Returns its bytes in one piece and their origin.
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
            Content::Growing(chunk) => {
                chunk.join(pieces.map(Piece::into_chunk), index(run.end - run.start))
            }
        };
        (bytes, origin)
    }

    /// The blocks with data.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> {
        self.blocks.keys().copied()
    }

    /// When the first piece of a block was added.
    pub(super) fn since(&self, key: u64) -> Option<Instant> {
        self.blocks.get(&key).map(|block| block.since)
    }

    /// Where the first piece of a block begins.
    pub(super) fn start_of(&self, key: u64) -> Option<u64> {
        self.blocks.get(&key)?.pieces.first_key_value().map(|(start, _)| *start)
    }

    /// Whether `run` is all unsent data.
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

    /// The end of the last byte.
    pub(super) fn end(&self) -> Option<u64> {
        let (_, block) = self.blocks.last_key_value()?;
        block.pieces.last_key_value().map(|(start, piece)| start + piece.len())
    }

    /// The end of the piece at `offset`.
    pub(super) fn covered_until(&self, offset: u64) -> Option<u64> {
        let block = self.blocks.get(&self.block_of(offset))?;
        let (start, piece) = block.pieces.range(..=offset).next_back()?;
        let end = start + piece.len();
        (offset < end).then_some(end)
    }

    /// Copies the data at `offset` into `buf`.
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

    /// Drops all data from `size` on.
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

    /// Panics unless the sums match the pieces.
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

/// The parameters of a write to a block.
struct Step<'a, 'r, T> {
    caller: &'a T,
    epoch: u64,
    /// Where the block ends.
    border: u64,
    stream_end: u64,
    rooms: &'a mut Rooms<'r>,
}

impl<T: Caller> Block<T> {
    fn new(since: Instant) -> Self {
        Self { pieces: BTreeMap::new(), bytes: 0, since }
    }

    /// Appends `data` to the last piece if there is capacity: the fast path of a sequential writer,
    /// maybe of one byte at a time.
    #[inline]
    fn append(&mut self, caller: &T, at: u64, data: &[u8]) -> bool {
        let Some(mut last) = self.pieces.last_entry() else { return false };
        let start = *last.key();
        let Piece { content: Content::Growing(chunk), origin } = last.get_mut() else {
            return false;
        };
        let is_appended = start + chunk.len() as u64 == at
            && origin.caller.same_user(caller)
            && chunk.append_within_capacity(data);
        if is_appended {
            self.bytes += data.len() as u64;
        }
        is_appended
    }

    /// Writes a prefix of `data` at `at`, at least one byte.
    ///
    /// # Errors
    /// There is no room, and no old byte was replaced.
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
                chunk.bytes_mut()[from..from + count].copy_from_slice(&data[..count]);
                Ok(count)
            }
            Content::Growing(chunk) if is_ours && at == end => {
                chunk.append(&data[..gap], index(limit - start), step.rooms)?;
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
        // A writer that filled the block before will fill this one, so it is allocated whole.
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

    /// Removes `from..to` from the piece that begins at `start`. The rest on both sides stays.
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

    /// The chunk of a piece of a run of several: only growing pieces are joined.
    fn into_chunk(self) -> Chunk {
        match self.content {
            Content::Growing(chunk) => chunk,
            Content::Fixed(_) => unreachable!("a fixed piece is a run by itself"),
        }
    }

    fn truncate(&mut self, len: usize) {
        match &mut self.content {
            Content::Growing(chunk) => chunk.truncate(len),
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
            Content::Growing(chunk) => chunk.as_ref(),
            Content::Fixed(bytes) => bytes,
        }
    }
}

/// Iterates over the runs of a block.
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
    /// Whether both may share a WRITE. Fixed pieces are not joined, because that would take room.
    fn joins(&self, next: &Self) -> bool {
        matches!((&self.content, &next.content), (Content::Growing(_), Content::Growing(_)))
            && self.origin.caller.same_user(&next.origin.caller)
    }
}

/// Capacity of a chunk that does not continue a stream.
const CHUNK_BYTES_MIN: usize = 256;
