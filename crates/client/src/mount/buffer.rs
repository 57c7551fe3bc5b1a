//! Receive buffers for messages of the kernel.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Buffers of one size. They are reused, because new memory costs a page fault for each 4 KiB.
#[derive(Debug)]
pub(super) struct BufferPool {
    buffer_bytes: usize,
    idle: Mutex<Vec<Vec<u8>>>,
}

impl BufferPool {
    /// A pool of buffers with capacity `buffer_bytes`.
    pub(super) fn new(buffer_bytes: usize) -> Arc<Self> {
        Arc::new(Self { buffer_bytes, idle: Mutex::default() })
    }

    /// An empty buffer, reused if possible.
    pub(super) fn take(self: &Arc<Self>) -> Buffer {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = idle.unwrap_or_else(|| Vec::with_capacity(self.buffer_bytes));
        Buffer { bytes, pool: Arc::clone(self) }
    }
}

/// A buffer, returned to its pool on drop.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    pool: Arc<BufferPool>,
}

impl Buffer {
    /// Empties it, to be filled up to its capacity.
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

/// The data of a WRITE, in the receive buffer if it is large.
#[derive(PartialEq, Eq)]
pub(super) struct Payload(Bytes);

impl Payload {
    /// The bytes `range` of `buffer`, or `None` if the buffer is shorter. Small data is copied and
    /// leaves the buffer with the caller, so that waiting requests hold about as much memory as
    /// data.
    pub(super) fn cut(buffer: &mut Option<Buffer>, range: Range<usize>) -> Option<Self> {
        let data = buffer.as_deref()?.get(range.clone())?;
        if data.len() <= COPIED_BYTES_MAX {
            return Some(Self(Bytes::copy_from_slice(data)));
        }
        Some(Self(Bytes::from_owner(buffer.take()?).slice(range)))
    }

    /// The bytes. The buffer is reused after the last reference is dropped.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Idle buffers that are kept: as many as the kernel sends requests ahead of replies.
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
    fn a_buffer_is_reused() {
        let pool = BufferPool::new(1 << 20);
        let first = filled(&pool, 10).as_ptr();
        let again = pool.take();
        assert_eq!(again.as_ptr(), first);
        assert!(again.is_empty());
    }

    #[test]
    fn idle_buffers_are_bounded() {
        let pool = BufferPool::new(64);
        let many: Vec<_> = (0..2 * IDLE_BUFFERS_MAX).map(|_| pool.take()).collect();
        drop(many);
        assert_eq!(pool.idle.lock().unwrap().len(), IDLE_BUFFERS_MAX);
    }

    #[test]
    fn large_data_stays_in_the_buffer_and_small_data_is_copied() {
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
    fn missing_data_is_none() {
        let pool = BufferPool::new(128);
        assert!(Payload::cut(&mut Some(filled(&pool, 90)), 80..91).is_none());
        assert!(Payload::cut(&mut Some(filled(&pool, 70)), 80..90).is_none());
        assert!(Payload::cut(&mut None, 0..0).is_none());
    }
}
