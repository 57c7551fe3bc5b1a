//! Memory of written data, with the room that it takes.

use bytes::Bytes;

use super::budget::{NoRoom, Room, Rooms};

/// A growing buffer and its room.
pub(super) struct Chunk {
    bytes: Vec<u8>,
    room: Room,
}

impl Chunk {
    /// A chunk that holds `data`, with this capacity if there is room for it.
    pub(super) fn new(data: &[u8], capacity: usize, rooms: &mut Rooms<'_>) -> Result<Self, NoRoom> {
        let least = data.len() + CHUNK_OVERHEAD_BYTES;
        let wish = capacity.max(data.len()) + CHUNK_OVERHEAD_BYTES;
        let (room, charged) = rooms.take_up_to(wish, least)?;
        let mut bytes = Vec::with_capacity(charged - CHUNK_OVERHEAD_BYTES);
        bytes.extend_from_slice(data);
        Ok(Self { bytes, room })
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Appends `data` if there is capacity for it. Returns whether there is.
    #[inline]
    pub(super) fn append_within_capacity(&mut self, data: &[u8]) -> bool {
        let fits = self.bytes.capacity() - self.bytes.len() >= data.len();
        if fits {
            self.bytes.extend_from_slice(data);
        }
        fits
    }

    /// Appends `data`. Doubles the capacity if needed, up to `limit`.
    #[inline]
    pub(super) fn append(
        &mut self,
        data: &[u8],
        limit: usize,
        rooms: &mut Rooms<'_>,
    ) -> Result<(), NoRoom> {
        if self.append_within_capacity(data) {
            return Ok(());
        }
        let (len, capacity) = (self.bytes.len(), self.bytes.capacity());
        let needed = len + data.len();
        let wish = (2 * capacity).clamp(needed, limit) - capacity;
        let (room, growth) = rooms.take_up_to(wish, needed - capacity)?;
        self.room.merge(room);
        self.bytes.reserve_exact(capacity + growth - len);
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Joins the bytes of this chunk and `rest`, `len` in all. A single chunk is not copied.
    pub(super) fn join(self, rest: impl Iterator<Item = Self>, len: usize) -> Bytes {
        if self.bytes.len() == len {
            return Bytes::from_owner(self);
        }
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(&self.bytes);
        let mut room = self.room;
        for chunk in rest {
            bytes.extend_from_slice(&chunk.bytes);
            room.merge(chunk.room);
        }
        Bytes::from_owner(Self { bytes, room })
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Memory of a writer and its room.
struct Adopted {
    bytes: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Adopted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// References `data` without a copy. `None` if there is no room.
pub(super) fn adopt(data: &Bytes, rooms: &mut Rooms<'_>) -> Option<Bytes> {
    let room = rooms.take(data.len() + CHUNK_OVERHEAD_BYTES)?;
    Some(Bytes::from_owner(Adopted { bytes: data.clone(), _room: room }))
}

/// Copies the overlap of `data`, which begins at `start`, into `buf`, which begins at `offset`.
pub(super) fn copy_overlap(offset: u64, buf: &mut [u8], start: u64, data: &[u8]) {
    let from = offset.max(start);
    let to = (offset + buf.len() as u64).min(start + data.len() as u64);
    if from < to {
        buf[index(from - offset)..index(to - offset)]
            .copy_from_slice(&data[index(from - start)..index(to - start)]);
    }
}

/// Converts a distance within a file to one within memory.
pub(super) fn index(distance: u64) -> usize {
    usize::try_from(distance).expect("no longer than a block or a buffer")
}

/// Memory of a chunk besides its bytes: entries in the maps, and overhead of the allocator.
const CHUNK_OVERHEAD_BYTES: usize = 128;
