//! An open regular file.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use proto::nfs3::{ACCESS_EXTEND, ACCESS_MODIFY, ACCESS_READ};
use tokio::runtime::Handle;

use crate::Result;
use crate::file_system::FileSystem;
use crate::inode::{Aside, Inode};
use crate::read_ahead::ReadAhead;
use crate::read_calls::ReadCalls;
use crate::trace::Event;
use crate::write_back::{ReadMark, WriteBack, Writer};
use crate::write_calls::WriteCalls;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// To be read.
    pub read: bool,
    /// To be written.
    pub write: bool,
    /// Its data goes, as with `O_TRUNC`.
    pub truncate: bool,
    /// A write returns when the data is on stable storage, as with `O_SYNC`.
    pub sync: bool,
    /// Reads are answered by the server, and a write returns when the server has the data, as with
    /// `O_DIRECT`.
    pub direct: bool,
}

impl OpenFlags {
    /// The permissions that this takes.
    pub(crate) fn wanted(self) -> u32 {
        let read = if self.read { ACCESS_READ } else { 0 };
        let write = if self.write || self.truncate { ACCESS_MODIFY | ACCESS_EXTEND } else { 0 };
        read | write
    }
}

/// An open regular file. What it is told of failed writes, others that have it open are told too,
/// each once.
///
/// [`close`](Self::close) it when it was written to: dropping it loses nothing, but nobody is told
/// of errors then.
pub struct File {
    file_system: FileSystem,
    inode: Arc<Inode>,
    flags: OpenFlags,
    writer: Writer<WriteCalls>,
    read_ahead: ReadAhead<ReadCalls>,
    /// What was read ahead is good for this epoch of the inode's data.
    epoch: AtomicU64,
    keep_cache: bool,
    is_closed: bool,
}

impl File {
    pub(crate) fn new(
        file_system: FileSystem,
        inode: Arc<Inode>,
        flags: OpenFlags,
    ) -> Result<Self> {
        let calls = WriteCalls::new(file_system.nfs().clone(), &inode);
        let writer = inode.written()?.open(calls);
        let table = file_system.table();
        let tracer = Arc::clone(table.tracer());
        let reads = ReadCalls::new(file_system.nfs().clone(), Arc::clone(&inode), tracer);
        let (read_ahead, epoch) = (table.read_ahead(reads), AtomicU64::new(inode.data_epoch()));
        let keep_cache = inode.opened();
        let detail = format_args!("kept={}", u8::from(keep_cache));
        file_system.tracer().emit(Event::OpenFile, inode.object(), 0, 0, detail);
        let is_closed = false;
        Ok(Self { file_system, inode, flags, writer, read_ahead, epoch, keep_cache, is_closed })
    }

    /// The file.
    #[must_use]
    pub fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// What it was opened for.
    #[must_use]
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// Whether what the caller cached of the file's data before it was opened is still believed:
    /// nobody else has changed it since.
    #[must_use]
    pub fn keep_cache(&self) -> bool {
        self.keep_cache
    }

    /// The data at `offset`: `len` bytes of it, fewer only at the end of the file. What was written
    /// through this mount is in it, whether it was sent or not.
    ///
    /// # Errors
    /// What the server says to READ, RFC 1813 §3.3.6.
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        self.file_system.tracer().emit(
            Event::ReadEnter,
            self.inode.object(),
            offset,
            len as u64,
            format_args!(""),
        );
        let written = self.inode.written()?;
        if self.flags.direct {
            written.forget_kept();
        }
        let (was_clean, mark, end) = (written.is_clean(), written.mark(), written.end());
        let len_here = self.len_within_file(offset, len);
        if mark.covers(offset, len_here) {
            let mut held = BytesMut::zeroed(len_here);
            if mark.fill(offset, &mut held) {
                return Ok(held.freeze());
            }
        }
        let data = self.read_from_server(offset, len).await?;
        // A write that began and ended meanwhile may be seen or not.
        if was_clean && written.is_clean() {
            return Ok(data);
        }
        let end = end.max(written.end()).unwrap_or(0);
        Ok(overlaid(&mark, offset, len, &data, end))
    }

    /// `len`, or what is left of it before the end of the file, if it is known where that is.
    fn len_within_file(&self, offset: u64, len: usize) -> usize {
        match self.inode.fresh_attributes() {
            Some(attributes) => {
                let left = attributes.size.saturating_sub(offset);
                usize::try_from(left).map_or(len, |left| left.min(len))
            }
            None => len,
        }
    }

    async fn read_from_server(&self, offset: u64, len: usize) -> Result<Bytes> {
        let epoch = self.inode.data_epoch();
        if self.epoch.load(Ordering::Acquire) != epoch || self.flags.direct {
            self.read_ahead.invalidate();
            self.epoch.store(epoch, Ordering::Release);
        }
        // Nothing is fetched ahead of the end of the file, which a direct read is said to be at.
        let size = if self.flags.direct { 0 } else { self.inode.attributes().size };
        self.read_ahead.read(offset, len, size).await
    }

    /// Writes `data` at `offset`: takes a copy of it and returns, unless the file or the mount is
    /// `sync`.
    ///
    /// # Errors
    /// That of an earlier write which this file was not told of; nothing is written then.
    pub async fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.inode.written()?;
        self.inode.data_changed();
        written.write(&self.writer, offset, data).await?;
        self.settle_write(written).await
    }

    /// As [`write_at`](Self::write_at), but where `data` is just what a WRITE carries it is held
    /// and not copied, until it is on stable storage. So it should be no part of larger memory.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn write_bytes_at(&self, offset: u64, data: &Bytes) -> Result<()> {
        let written = self.inode.written()?;
        self.inode.data_changed();
        written.write_bytes(&self.writer, offset, data).await?;
        self.settle_write(written).await
    }

    /// Waits for what has been written as far as the file was opened to.
    async fn settle_write(&self, written: &WriteBack<WriteCalls>) -> Result<()> {
        if self.flags.sync {
            written.sync(&self.writer).await
        } else if self.flags.direct {
            written.flush(&self.writer).await
        } else {
            Ok(())
        }
    }

    /// Waits until the server has all that was written to the file so far on stable storage.
    ///
    /// # Errors
    /// Data was lost that was written since the file was opened, and this file was not told.
    pub async fn sync(&self) -> Result<()> {
        self.inode.written()?.sync(&self.writer).await
    }

    /// Syncs and closes the file. The last one to close a file that was removed meanwhile removes
    /// what a silly rename left of it.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync). The file is closed all the same.
    pub async fn close(mut self) -> Result<()> {
        let synced = self.sync().await;
        if let Some(aside) = self.release() {
            remove(aside).await;
        }
        synced
    }

    /// Counts it as closed, once.
    fn release(&mut self) -> Option<Aside> {
        if std::mem::replace(&mut self.is_closed, true) {
            return None;
        }
        self.file_system.tracer().emit(
            Event::CloseFile,
            self.inode.object(),
            0,
            0,
            format_args!(""),
        );
        self.inode.closed()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let (Some(aside), Ok(runtime)) = (self.release(), Handle::try_current()) else { return };
        runtime.spawn(remove(aside));
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("inode", &self.inode)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}

/// Removes what a silly rename left. If that fails, the name stays, and the server's cleaning of
/// such names removes it one day.
async fn remove(Aside { file_system, dir, name }: Aside) {
    if let Err(error) = file_system.remove(&dir, &name).await {
        tracing::warn!("cannot remove {}: {error}", name.escape_ascii());
    }
}

/// `data`, which the server has at `offset`, with what was held over it. `len` bytes were asked for;
/// what was held ends at `end`.
fn overlaid(mark: &ReadMark<WriteCalls>, offset: u64, len: usize, data: &Bytes, end: u64) -> Bytes {
    let held = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX).min(len);
    // Between the server's end of the file and held data behind it is a hole.
    let mut overlaid = BytesMut::zeroed(held.max(data.len()));
    overlaid[..data.len()].copy_from_slice(data);
    mark.overlay(offset, &mut overlaid);
    overlaid.freeze()
}
