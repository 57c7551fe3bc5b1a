//! One page-aligned buffer, on loan from a [`BufferPool`].

use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::buffer_pool::BufferPool;

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
    mapping: Option<Mapping>,
    pool: Arc<BufferPool>,
}

impl Buffer {
    pub(crate) fn new(mapping: Mapping, pool: Arc<BufferPool>) -> Self {
        Self { mapping: Some(mapping), pool }
    }

    /// The whole capacity. See the type's note on stale content.
    pub fn as_slice(&self) -> &[u8] {
        self.mapping().as_slice()
    }

    /// The whole capacity, to fill.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.mapping
            .as_mut()
            .expect("a buffer holds its mapping until it is dropped")
            .as_mut_slice()
    }

    /// Usable bytes: the size of the pool's class, so at least the length asked for.
    pub fn capacity(&self) -> usize {
        self.mapping().len
    }

    fn mapping(&self) -> &Mapping {
        self.mapping.as_ref().expect("a buffer holds its mapping until it is dropped")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(mapping) = self.mapping.take() {
            self.pool.give_back(mapping);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

/// An anonymous private mapping, unmapped when dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// The pool's size class, an index.
    class: usize,
}

impl Mapping {
    /// Maps `len` zeroed bytes; `len` is a non-zero multiple of the system page size.
    pub(crate) fn new(len: usize, class: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: with a null hint and without MAP_FIXED the kernel picks unused addresses, so no
        // existing object is touched.
        let start = unsafe { mmap_anonymous(null_mut(), len, protection, MapFlags::PRIVATE)? };
        let start =
            NonNull::new(start.cast::<u8>()).expect("mmap without MAP_FIXED never maps page zero");
        assert!(start.as_ptr().addr().is_multiple_of(BUFFER_ALIGN));
        Ok(Self { start, len, class })
    }

    pub(crate) fn class(&self) -> usize {
        self.class
    }

    fn as_slice(&self) -> &[u8] {
        // SAFETY: `new` mapped `len` readable bytes at `start`, zero-filled by the kernel and hence
        // initialised; they stay mapped until `drop`, which cannot run while `self` is borrowed;
        // only `as_mut_slice` writes them, and it needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`; the pages are writable, and `&mut self` makes this the only
        // reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `new` mapped, nobody else unmaps it, and every slice of
        // it borrowed this value, so none is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        // Unmapping a whole own mapping has no documented failure but running out of mappings by
        // splitting, which whole mappings do not do. Memory that stayed mapped outside the budget
        // would be a silent leak.
        if let Err(error) = unmapped {
            tracing::error!(%error, len = self.len, "a buffer could not be unmapped and leaks");
        }
    }
}

// SAFETY: the mapping is plain memory owned by this value alone, and munmap works from any thread.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` the memory can only be read.
unsafe impl Sync for Mapping {}
