//! Where the data of a copy comes from.

use std::fs::File;
use std::future::ready;
use std::io::{self, ErrorKind, Read as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use client::nfs3::{Nfs3, ReadData};
use proto::nfs3::FileHandle;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use tokio::task::spawn_blocking;

use super::super::failure::Result;

/// A file that is read in chunks, several at once. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Source {
    /// On a server. `first`: what [`Source::begin`] has read.
    Remote { nfs: Nfs3, file: FileHandle, first: Arc<Mutex<Option<First>>> },
    /// Here, read at any offset.
    Local { file: Arc<File>, buffers: Buffers },
    /// Here, a pipe or another thing that gives its bytes once and in order.
    Stream { file: Arc<File> },
}

/// The beginning of a file, read with this length.
pub(crate) struct First {
    len: u32,
    chunk: Chunk,
}

/// A part of a file.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Shorter than was asked for only at the end of the file.
    pub(crate) data: Bytes,
    /// Whether nothing follows.
    pub(crate) eof: bool,
}

/// A read that is under way.
pub(crate) type Reading = Pin<Box<dyn Future<Output = Result<Chunk>> + Send>>;

impl Source {
    /// A file on a server.
    pub(crate) fn remote(nfs: Nfs3, file: FileHandle) -> Self {
        Self::Remote { nfs, file, first: Arc::default() }
    }

    /// Reads the first `len` bytes of a file on a server, which opens no file and refuses its first
    /// READ. The next read of them is that one.
    ///
    /// # Errors
    /// Those of the READ.
    pub(super) async fn begin(&self, len: u32) -> Result<()> {
        if let Self::Remote { first, .. } = self {
            let chunk = self.read(0, len).await?;
            *lock(first) = Some(First { len, chunk });
        }
        Ok(())
    }

    /// The file may change now: what [`Source::begin`] has read is read again.
    pub(super) fn begin_over(&self) {
        if let Self::Remote { first, .. } = self {
            *lock(first) = None;
        }
    }

    /// Begins to read `len` bytes from `offset` on. The reads of a stream have to be awaited one by
    /// one, and their offsets mean nothing.
    pub(crate) fn read(&self, offset: u64, len: u32) -> Reading {
        match self {
            Self::Remote { nfs, file, first } => {
                match lock(first).take_if(|first| offset == 0 && first.len == len) {
                    Some(First { chunk, .. }) => Box::pin(ready(Ok(chunk))),
                    None => {
                        let reading = nfs.read(*file, offset, len);
                        Box::pin(async move {
                            let ReadData { data, eof, .. } = reading.await?;
                            Ok(Chunk { data, eof })
                        })
                    }
                }
            }
            Self::Local { file, buffers } => {
                let (file, buffers) = (Arc::clone(file), buffers.clone());
                blocking(move || read_local(&file, &buffers, offset, len))
            }
            Self::Stream { file } => {
                let file = Arc::clone(file);
                blocking(move || read_stream(&file, len))
            }
        }
    }

    /// Reads under way at once that keep the source busy.
    pub(crate) fn reads_max(&self, chunk_bytes: u32) -> usize {
        match self {
            Self::Remote { .. } => window_len(chunk_bytes),
            // The kernel reads ahead by itself; this only keeps the next chunks at hand.
            Self::Local { .. } => 3,
            Self::Stream { .. } => 1,
        }
    }

    /// The size of now of a file of this machine.
    pub(crate) async fn local_size(&self) -> Result<Option<u64>> {
        let Self::Local { file, .. } = self else { return Ok(None) };
        let file = Arc::clone(file);
        let metadata = spawn_blocking(move || file.metadata());
        Ok(Some(metadata.await.expect("it does not panic")?.len()))
    }

    pub(crate) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream { .. })
    }
}

/// Calls that keep a connection busy: a number of bytes, in chunks of this size.
pub(crate) fn window_len(chunk_bytes: u32) -> usize {
    let chunks = WINDOW_BYTES / u64::from(chunk_bytes.max(1));
    usize::try_from(chunks).unwrap_or(usize::MAX).clamp(WINDOW_LEN_MIN, WINDOW_LEN_MAX)
}

fn blocking(work: impl FnOnce() -> io::Result<Chunk> + Send + 'static) -> Reading {
    let work = spawn_blocking(work);
    Box::pin(async move { Ok(work.await.expect("reading does not panic")?) })
}

fn lock(first: &Mutex<Option<First>>) -> MutexGuard<'_, Option<First>> {
    first.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_local(file: &File, buffers: &Buffers, offset: u64, len: u32) -> io::Result<Chunk> {
    let mut buffer = buffers.take(widen(len));
    let mut filled = 0;
    while filled < widen(len) {
        let here = offset + u64::try_from(filled).unwrap_or(u64::MAX);
        match file.read_at(&mut buffer[filled..], here) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Chunk { eof: filled < widen(len), data: buffers.lend(buffer, filled) })
}

fn read_stream(file: &File, len: u32) -> io::Result<Chunk> {
    let mut data = Vec::new();
    let count = file.take(len.into()).read_to_end(&mut data)?;
    Ok(Chunk { eof: count < widen(len), data: data.into() })
}

/// The parts of a file that hold data, in order; one unbounded part where the system does not
/// report holes.
pub(crate) fn extents(file: &File, size: u64) -> Vec<Range<u64>> {
    let mut extents = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < size => start,
            // A hole up to the end.
            Ok(_) | Err(Errno::NXIO) => break,
            // No answer: the reads find what is there, or report the error.
            Err(_) => at,
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size);
        let end = end.clamp(start + 1, size);
        extents.push(start..end);
        at = end;
    }
    extents
}

/// Buffers that go round: a fresh one costs the kernel a page fault for every 4 KiB.
#[derive(Clone, Default)]
pub(crate) struct Buffers {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Buffers {
    fn take(&self, len: usize) -> Vec<u8> {
        let mut buffer =
            self.free.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    /// The first `len` bytes of the buffer, which comes back when they are no longer needed.
    fn lend(&self, buffer: Vec<u8>, len: usize) -> Bytes {
        Bytes::from_owner(Lent { buffer, home: self.clone() }).slice(..len)
    }
}

struct Lent {
    buffer: Vec<u8>,
    home: Buffers,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < WINDOW_LEN_MIN {
            free.push(std::mem::take(&mut self.buffer));
        }
    }
}

fn widen(len: u32) -> usize {
    usize::try_from(len).expect("an address has 32 bits at least")
}

/// Data under way at once in one direction.
pub(super) const WINDOW_BYTES: u64 = 8 << 20;
const WINDOW_LEN_MIN: usize = 8;
const WINDOW_LEN_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_believed_in_only_where_they_are_reported() {
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        // ESPIPE is no answer about holes.
        assert_eq!(extents(&pipe.into(), 100), [Range { start: 0, end: 100 }]);

        let file = tempfile::tempfile().unwrap();
        assert_eq!(extents(&file, 100), [], "beyond the end");
        file.set_len(1 << 20).unwrap();
        file.write_all_at(b"data", 1 << 19).unwrap();
        let data: u64 = extents(&file, 1 << 20).iter().map(|part| part.end - part.start).sum();
        assert!((4..=1 << 20).contains(&data), "{data} bytes");
    }
}
