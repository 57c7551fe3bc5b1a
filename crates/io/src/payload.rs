//! Data between a connection and a file.

use std::sync::Arc;

use crate::buffer_pool::Buffer;
use crate::pipe::Pipe;
use crate::read_ahead::Chunk;

/// Data that was received for a file, in a pool buffer.
pub struct WriteData {
    buffer: Buffer,
    start: usize,
    len: usize,
}

impl WriteData {
    /// The bytes `start..start + len` of `buffer`.
    ///
    /// # Panics
    /// The part is empty or not inside the buffer.
    pub fn new(buffer: Buffer, start: usize, len: usize) -> Self {
        assert!(len > 0 && start <= buffer.capacity() && len <= buffer.capacity() - start);
        Self { buffer, start, len }
    }

    /// Its length in bytes; never 0.
    #[expect(clippy::len_without_is_empty, reason = "there is always some")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The data.
    pub fn as_slice(&self) -> &[u8] {
        &self.buffer.as_slice()[self.start..][..self.len]
    }
}

/// Data to be sent, in memory or in a pipe.
pub struct Payload {
    place: Place,
    len: usize,
}

/// Where the data is.
enum Place {
    /// At `start` of a buffer.
    Memory { buffer: Buffer, start: usize },
    /// At `start` of a chunk that was read ahead and serves others too.
    Chunk { chunk: Arc<Chunk>, start: usize },
    /// In a pipe, which is emptied as the data is sent.
    Pipe(Pipe),
}

impl Payload {
    /// The bytes `start..start + len` of `buffer`.
    ///
    /// # Panics
    /// The part is empty or not inside the buffer.
    pub fn new(buffer: Buffer, start: usize, len: usize) -> Self {
        assert!(len > 0 && start <= buffer.capacity() && len <= buffer.capacity() - start);
        Self { place: Place::Memory { buffer, start }, len }
    }

    /// A copy of `bytes` in `buffer`, without the part of the buffer that they do not need.
    ///
    /// # Panics
    /// There are no bytes, or more than the buffer holds.
    pub fn copied(mut buffer: Buffer, bytes: &[u8]) -> Self {
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        Self::new(buffer.trimmed(bytes.len()), 0, bytes.len())
    }

    /// The bytes `start..start + len` of a chunk that has them.
    ///
    /// # Panics
    /// The part is empty, or not inside what the chunk holds now.
    pub fn in_chunk(chunk: Arc<Chunk>, start: usize, len: usize) -> Self {
        let held = chunk.data_now().map_or(0, <[u8]>::len);
        assert!(len > 0 && start <= held && len <= held - start);
        Self { place: Place::Chunk { chunk, start }, len }
    }

    /// All that is in `pipe`: data of a file, which only the receiver will see.
    ///
    /// # Panics
    /// The pipe is empty.
    pub fn in_pipe(pipe: Pipe) -> Self {
        let len = pipe.len();
        assert!(len > 0);
        Self { place: Place::Pipe(pipe), len }
    }

    /// The data, unless it is in a pipe.
    pub fn in_memory(&self) -> Option<&[u8]> {
        match &self.place {
            Place::Memory { buffer, start } => Some(&buffer.as_slice()[*start..*start + self.len]),
            Place::Chunk { chunk, start } => {
                let held = chunk.data_now().expect("a chunk keeps what it holds");
                Some(&held[*start..*start + self.len])
            }
            Place::Pipe(_) => None,
        }
    }

    /// The pipe with what was not sent yet, unless the data is in memory.
    pub fn unsent_pipe(&mut self) -> Option<&mut Pipe> {
        match &mut self.place {
            Place::Pipe(pipe) if !pipe.is_empty() => Some(pipe),
            Place::Pipe(_) | Place::Memory { .. } | Place::Chunk { .. } => None,
        }
    }

    /// Its length in bytes, as it was before any was sent; never 0.
    #[expect(clippy::len_without_is_empty, reason = "there is always some")]
    pub fn len(&self) -> usize {
        self.len
    }
}
