//! The memory in which messages of the kernel arrive.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Buffers of one size, used again: memory fresh from the system costs a page fault for each 4 KiB.
#[derive(Debug)]
pub(super) struct BufferPool {
    buffer_bytes: usize,
    idle: Mutex<Vec<Vec<u8>>>,
}

impl BufferPool {
    /// One that hands out empty buffers with room for `buffer_bytes`.
    pub(super) fn new(buffer_bytes: usize) -> Arc<Self> {
        Arc::new(Self { buffer_bytes, idle: Mutex::default() })
    }

    /// An empty buffer, a used one if there is one.
    pub(super) fn take(self: &Arc<Self>) -> Buffer {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = idle.unwrap_or_else(|| Vec::with_capacity(self.buffer_bytes));
        Buffer { bytes, pool: Arc::clone(self) }
    }
}

/// A buffer that goes back to its pool when it is dropped.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    pool: Arc<BufferPool>,
}

impl Buffer {
    /// Emptied, to be filled within its capacity.
    pub(super) fn clear(&mut self) -> &mut Vec<u8> {
        self.bytes.clear();
        &mut self.bytes
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_BUFFERS_MAX {
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.clear();
            idle.push(bytes);
        }
    }
}

/// The data of a WRITE, where it arrived.
#[derive(PartialEq, Eq)]
pub(super) struct Payload(Bytes);

impl Payload {
    /// The bytes `range` of `buffer`. Small ones are copied, so that requests that wait hold about
    /// as much memory as they have data; the buffer stays with the caller then.
    ///
    /// # Errors
    /// `None`: the buffer is not that long.
    pub(super) fn cut(buffer: &mut Option<Buffer>, range: Range<usize>) -> Option<Self> {
        let data = buffer.as_deref()?.get(range.clone())?;
        if data.len() <= COPIED_BYTES_MAX {
            return Some(Self(Bytes::copy_from_slice(data)));
        }
        Some(Self(Bytes::from_owner(buffer.take()?).slice(range)))
    }

    /// The bytes; the buffer is used again when the last of them is let go of.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Buffers kept for the next message: as many as the kernel sends ahead of answers.
const IDLE_BUFFERS_MAX: usize = 24;

const COPIED_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(pool: &Arc<BufferPool>, len: usize) -> Buffer {
        let mut buffer = pool.take();
        buffer.clear().resize(len, 7);
        buffer
    }

    #[test]
    fn a_buffer_is_used_again() {
        let pool = BufferPool::new(1 << 20);
        let first = filled(&pool, 10).as_ptr();
        let again = pool.take();
        assert_eq!(again.as_ptr(), first);
        assert!(again.is_empty());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = BufferPool::new(64);
        let many: Vec<_> = (0..2 * IDLE_BUFFERS_MAX).map(|_| pool.take()).collect();
        drop(many);
        assert_eq!(pool.idle.lock().unwrap().len(), IDLE_BUFFERS_MAX);
    }

    #[test]
    fn large_data_stays_where_it_came_and_small_data_does_not() {
        let pool = BufferPool::new(1 << 20);
        let mut large = Some(filled(&pool, COPIED_BYTES_MAX + 81));
        let payload = Payload::cut(&mut large, 80..COPIED_BYTES_MAX + 81).unwrap();
        assert_eq!(payload.bytes().len(), COPIED_BYTES_MAX + 1);
        assert!(large.is_none());

        let mut small = Some(filled(&pool, 90));
        let payload = Payload::cut(&mut small, 80..90).unwrap();
        assert_eq!(payload.bytes(), &[7; 10][..]);
        assert!(small.is_some());
    }

    #[test]
    fn data_that_did_not_come_is_none() {
        let pool = BufferPool::new(128);
        assert!(Payload::cut(&mut Some(filled(&pool, 90)), 80..91).is_none());
        assert!(Payload::cut(&mut Some(filled(&pool, 70)), 80..90).is_none());
        assert!(Payload::cut(&mut None, 0..0).is_none());
    }
}
