//! File data on its way through the server: in a pool buffer, or still in the page cache.

use io::{Buffer, Pipe};

/// What a WRITE brought or a READ takes away.
pub(crate) struct Payload {
    place: Place,
    len: usize,
}

/// Where the data is.
enum Place {
    /// At `start` of a buffer.
    Memory { buffer: Buffer, start: usize },
    /// In a pipe, which is emptied as the data is sent.
    Pipe(Pipe),
}

impl Payload {
    /// The bytes `start..start + len` of `buffer`.
    ///
    /// # Panics
    /// The part is empty or not inside the buffer.
    pub(crate) fn new(buffer: Buffer, start: usize, len: usize) -> Self {
        assert!(len > 0 && start <= buffer.capacity() && len <= buffer.capacity() - start);
        Self { place: Place::Memory { buffer, start }, len }
    }

    /// All that is in `pipe`: data of a READ, which only the socket will see.
    ///
    /// # Panics
    /// The pipe is empty.
    #[cfg_attr(not(test), expect(dead_code, reason = "the I/O modes are about to use it"))]
    pub(crate) fn in_pipe(pipe: Pipe) -> Self {
        let len = pipe.len();
        assert!(len > 0);
        Self { place: Place::Pipe(pipe), len }
    }

    /// The data.
    ///
    /// # Panics
    /// It is in a pipe. Data of a WRITE never is.
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.in_memory().expect("data that was received is in memory")
    }

    /// The data, unless it is in a pipe.
    pub(crate) fn in_memory(&self) -> Option<&[u8]> {
        match &self.place {
            Place::Memory { buffer, start } => Some(&buffer.as_slice()[*start..*start + self.len]),
            Place::Pipe(_) => None,
        }
    }

    /// The pipe with what was not sent yet, unless the data is in memory.
    pub(crate) fn unsent_pipe(&mut self) -> Option<&mut Pipe> {
        match &mut self.place {
            Place::Pipe(pipe) if !pipe.is_empty() => Some(pipe),
            Place::Pipe(_) | Place::Memory { .. } => None,
        }
    }

    /// Its length in bytes, as it was before any was sent; never 0.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
