//! File data in a pool buffer.

use io::Buffer;

/// The bytes `start..start + len` of a buffer: what a WRITE brought or a READ takes away.
pub(crate) struct Payload {
    buffer: Buffer,
    start: usize,
    len: usize,
}

impl Payload {
    /// The given part of `buffer`.
    ///
    /// # Panics
    /// The part is empty or not inside the buffer.
    pub(crate) fn new(buffer: Buffer, start: usize, len: usize) -> Self {
        assert!(len > 0 && start <= buffer.capacity() && len <= buffer.capacity() - start);
        Self { buffer, start, len }
    }

    /// The data.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.buffer.as_slice()[self.start..self.start + self.len]
    }

    /// Its length in bytes; never 0.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
