//! One page-aligned buffer, on loan from a [`BufferPool`].

use std::fmt;
use std::sync::Arc;

use crate::buffer_pool::BufferPool;
use crate::slab::Slot;

/// The alignment of every buffer's first byte, in bytes.
///
/// Direct I/O asks for at most the logical block size of the device, which Linux file systems cap
/// at one page of 4096 bytes on the machines we serve from; larger system pages only align better.
pub const BUFFER_ALIGN: usize = 4096;

/// A page-aligned piece of memory owned by the holder until it is dropped, when it goes back to its
/// pool.
///
/// All of [`capacity`](Self::capacity) is initialised memory, but not blank: content of an earlier
/// use may remain. Whoever sends a buffer's bytes anywhere sends only the range it has filled
/// itself.
pub struct Buffer {
    /// `None` only while being dropped.
    slot: Option<Slot>,
    /// The pool's size class, an index.
    class: usize,
    pool: Arc<BufferPool>,
}

impl Buffer {
    pub(crate) fn new(slot: Slot, class: usize, pool: Arc<BufferPool>) -> Self {
        Self { slot: Some(slot), class, pool }
    }

    /// The whole capacity. See the type's note on stale content.
    pub fn as_slice(&self) -> &[u8] {
        self.slot().as_slice()
    }

    /// The whole capacity, to fill.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.slot.as_mut().expect("a buffer holds its slot until it is dropped").as_mut_slice()
    }

    /// Usable bytes: the size of the pool's class, so at least the length asked for.
    pub fn capacity(&self) -> usize {
        self.slot().bytes()
    }

    fn slot(&self) -> &Slot {
        self.slot.as_ref().expect("a buffer holds its slot until it is dropped")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.pool.give_back(slot, self.class);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}
