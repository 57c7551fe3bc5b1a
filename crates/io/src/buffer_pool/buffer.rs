//! One page-aligned buffer, on loan from a [`BufferPool`].

use std::fmt;
use std::sync::Arc;

use super::BufferPool;
use crate::engine::Holder;
use crate::slab::Slot;

/// A page-aligned piece of memory owned by the holder until it is dropped, when it goes back to its
/// pool.
///
/// All of [`capacity`](Self::capacity) is initialised memory, but not zeroed: content of an earlier
/// use may remain. A sender sends only the range that it has filled itself.
pub struct Buffer {
    /// `None` only while being dropped.
    slot: Option<Slot>,
    /// The pool's size class, an index.
    class: usize,
    /// Whose shares of the pool it is in.
    holder: Holder,
    pool: Arc<BufferPool>,
}

impl Buffer {
    pub(crate) fn new(slot: Slot, class: usize, holder: Holder, pool: Arc<BufferPool>) -> Self {
        Self { slot: Some(slot), class, holder, pool }
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

    /// The same first `len` bytes in the smallest buffer that holds them; the rest goes back to the
    /// pool, without a wait. For what may be kept for long.
    #[must_use]
    pub fn trimmed(mut self, len: usize) -> Self {
        let Some(class) = self.pool.smaller_class(self.class, len) else { return self };
        let kept = self.as_slice()[..len].to_vec();
        let slot = self.slot.take().expect("a buffer holds its slot until it is dropped");
        let (slot, class) = self.pool.exchange(slot, self.class, class, self.holder);
        (self.slot, self.class) = (Some(slot), class);
        self.as_mut_slice()[..len].copy_from_slice(&kept);
        self
    }

    fn slot(&self) -> &Slot {
        self.slot.as_ref().expect("a buffer holds its slot until it is dropped")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.pool.give_back(slot, self.class, self.holder);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}
