//! An open regular file.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use proto::nfs3::{ACCESS_EXTEND, ACCESS_MODIFY, ACCESS_READ};

use crate::Result;
use crate::cache::read_ahead::{Purpose, ReadAhead, ReadSource};
use crate::cache::write_back::Writer;
use crate::inode::{Hold, Inode, WriteCalls};
use crate::nfs3::{Nfs3, ReadPart};
use crate::trace::{Event, Tracer};

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// A write returns when the data is on stable storage, as with `O_SYNC`.
    pub sync: bool,
    /// A read always makes a READ call, and a write returns after the reply to its WRITE, as with
    /// `O_DIRECT`.
    pub direct: bool,
}

impl OpenFlags {
    /// The permissions needed, a sum of `ACCESS_*`.
    pub(crate) fn wanted(self) -> u32 {
        let read = if self.read { ACCESS_READ } else { 0 };
        let write = if self.write { ACCESS_MODIFY | ACCESS_EXTEND } else { 0 };
        read | write
    }
}

/// An open regular file. A write error is reported to each open file of the inode once.
///
/// [`close`](Self::close) a file after writing: drop loses no data within a Tokio runtime, but
/// leaves write errors for the next open and for [`FileSystem::sync`](crate::FileSystem::sync).
pub struct File {
    inode: Arc<Inode>,
    flags: OpenFlags,
    nfs: Nfs3,
    writer: Writer<WriteCalls>,
    read_ahead: ReadAhead<ReadCalls>,
    /// The epoch of the inode's data for which the read-ahead is valid.
    epoch: AtomicU64,
    keep_cache: bool,
    /// Until it is closed.
    hold: Option<Hold>,
}

impl File {
    /// Opens the file that `hold` has held since before the calls of this open, as the user of
    /// `nfs`.
    ///
    /// # Errors
    /// `ISDIR` for a directory, `INVAL` for other types than a regular file.
    pub(crate) fn new(nfs: &Nfs3, hold: Hold, flags: OpenFlags) -> Result<Self> {
        let inode = Arc::clone(hold.inode());
        let writer = inode.written()?.open(WriteCalls::new(nfs.clone(), &inode));
        let nfs = nfs.clone();
        let reads = ReadCalls { nfs: nfs.clone(), inode: Arc::clone(&inode) };
        let read_ahead = inode.superblock().read_ahead(reads);
        let epoch = AtomicU64::new(inode.data_epoch());
        let keep_cache = inode.opened();
        let detail = format_args!("kept={}", u8::from(keep_cache));
        tracer(&inode).emit(Event::OpenFile, inode.object(), 0, 0, detail);
        Ok(Self { inode, flags, nfs, writer, read_ahead, epoch, keep_cache, hold: Some(hold) })
    }

    /// The inode.
    #[must_use]
    pub fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// The calls of the user that opened it.
    pub(crate) fn nfs(&self) -> &Nfs3 {
        &self.nfs
    }

    /// How it was opened.
    #[must_use]
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// Whether data of the file that the caller cached before this open is still valid: no other
    /// client has changed it.
    #[must_use]
    pub fn keep_cache(&self) -> bool {
        self.keep_cache
    }

    /// Reads `len` bytes at `offset`, fewer only at the end of the file. Includes data written
    /// through this mount, sent or not. Data that is cached is no older than the attributes may be.
    ///
    /// # Errors
    /// Those of READ, RFC 1813 §3.3.6; those of GETATTR if data is cached and the attributes have
    /// expired.
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        tracer(&self.inode).emit(
            Event::ReadEnter,
            self.inode.object(),
            offset,
            len as u64,
            format_args!(""),
        );
        let written = self.inode.written()?;
        if self.flags.direct {
            written.forget_kept();
        } else if self.inode.fresh_attributes().is_none()
            && (self.read_ahead.has_chunks() || written.mark().covers(offset, len))
        {
            // A foreign change drops what is cached. READ would show it, but may not be needed.
            self.inode.revalidate(&self.nfs).await?;
        }
        let (was_clean, mark) = (written.is_clean(), written.mark());
        let len_here = self.len_within_file(offset, len);
        if mark.covers(offset, len_here) {
            let mut held = BytesMut::zeroed(len_here);
            if mark.fill(offset, &mut held) {
                return Ok(held.freeze());
            }
        }
        let data = self.read_from_server(offset, len).await?;
        // The result may include a write that began and ended meanwhile, or not.
        if was_clean && written.is_clean() {
            return Ok(data);
        }
        Ok(mark.overlaid(offset, len, &data))
    }

    /// `len`, limited by the end of the file if that is known.
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
        // A size of 0 disables read-ahead for direct reads.
        let size = if self.flags.direct { 0 } else { self.inode.attributes().size };
        self.read_ahead.read(offset, len, size).await
    }

    /// Writes a copy of `data` at `offset`. Makes no call, unless the file or the mount is `sync`
    /// or the file `direct`.
    ///
    /// # Errors
    /// The error of an earlier write that was not reported to this file; nothing is written then.
    pub async fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.inode.written()?;
        self.inode.data_changed();
        written.write(&self.writer, offset, data).await?;
        if self.flags.sync {
            written.sync(&self.writer).await
        } else if self.flags.direct {
            written.flush(&self.writer).await
        } else {
            Ok(())
        }
    }

    /// Like [`write_at`](Self::write_at), but `data` is referenced until it is on stable storage,
    /// and not copied, if it is the payload of one WRITE. It should not be a part of a larger
    /// allocation. Write errors, also those of a `sync` or `direct` file, are left for
    /// [`check`](Self::check).
    ///
    /// # Errors
    /// `FBIG` beyond the largest offset of a file.
    pub async fn write_bytes_at(&self, offset: u64, data: &Bytes) -> Result<()> {
        let written = self.inode.written()?;
        self.inode.data_changed();
        written.write_bytes(&self.writer, offset, data).await?;
        if self.flags.sync {
            written.commit().await;
        } else if self.flags.direct {
            written.drain().await;
        }
        Ok(())
    }

    /// Whether [`check`](Self::check) would report an error.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.inode.written().is_ok_and(|written| written.has_failed(&self.writer))
    }

    /// Waits for nothing.
    ///
    /// # Errors
    /// Data written since the file was opened was lost, and this was not reported to this file.
    pub fn check(&self) -> Result<()> {
        self.inode.written()?.check(&self.writer)
    }

    /// As [`check`](Self::check), for the close of one of several descriptors: the error is
    /// reported again, unless the file is closed next.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub(crate) fn peek(&self) -> Result<()> {
        self.inode.written()?.peek(&self.writer)
    }

    /// No program has got what [`peek`](Self::peek) has returned: the close does not count it as
    /// reported.
    pub(crate) fn unpeek(&self) {
        self.writer.unpeek();
    }

    /// As [`check`](Self::check), at the close: without an error that [`peek`](Self::peek) has
    /// returned.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub(crate) fn check_closing(&self) -> Result<()> {
        self.inode.written()?.close(&self.writer);
        self.check()
    }

    /// Waits until all data written to the file so far is on the server's stable storage.
    ///
    /// # Errors
    /// Data written since the file was opened was lost, and this was not reported to this file.
    pub async fn sync(&self) -> Result<()> {
        self.inode.written()?.sync(&self.writer).await
    }

    /// Syncs and closes the file. The last close of a removed file removes its silly rename.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync). The file is closed in any case.
    pub async fn close(self) -> Result<()> {
        let _closing = self.inode.superblock().begin_close();
        // If this is dropped, it is closed before the guard is.
        let file = self;
        let synced = file.sync().await;
        file.end().await;
        synced
    }

    /// Like [`close`](Self::close), for a caller that cannot return an error: write errors are left
    /// for the next open and for [`FileSystem::sync`](crate::FileSystem::sync).
    pub async fn release(self) {
        let _closing = self.inode.superblock().begin_close();
        // From before the COMMIT: a program may expect the name to be gone.
        let _removals = self.inode.begin_silly_removals();
        // As in `close`.
        let file = self;
        if let Ok(written) = file.inode.written() {
            written.commit().await;
        }
        file.end().await;
    }

    /// Counts the close. The last one removes the names that were kept for open files.
    async fn end(mut self) {
        if let Some(hold) = self.count_close() {
            hold.end().await;
        }
    }

    /// Counts the close, once.
    fn count_close(&mut self) -> Option<Hold> {
        let hold = self.hold.take()?;
        if let Ok(written) = self.inode.written() {
            written.close(&self.writer);
        }
        tracer(&self.inode).emit(Event::CloseFile, self.inode.object(), 0, 0, format_args!(""));
        self.inode.closed();
        Some(hold)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        drop(self.count_close());
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

fn tracer(inode: &Inode) -> &Tracer {
    inode.superblock().tracer()
}

/// READ of one file as one user. Updates the inode from the replies.
#[derive(Clone, Debug)]
struct ReadCalls {
    nfs: Nfs3,
    inode: Arc<Inode>,
}

impl ReadSource for ReadCalls {
    async fn read(&self, offset: u64, count: u32, purpose: Purpose) -> Result<ReadPart> {
        let sent = self.inode.sent();
        let read = self.nfs.read_part(self.inode.handle(), offset, count);
        let event = match purpose {
            Purpose::Asked => Event::ReadCall,
            Purpose::Ahead => Event::ReadAhead,
        };
        let object = self.inode.object();
        tracer(&self.inode).emit(event, object, offset, count.into(), format_args!(""));
        let read = self.inode.note_outcome(read.await);
        match &read {
            Ok(ReadPart { attributes, eof, data }) => {
                self.inode.note(attributes.as_ref(), sent);
                let (len, eof) = (data.len() as u64, u8::from(*eof));
                tracer(&self.inode).emit(
                    Event::ReadReply,
                    object,
                    offset,
                    len,
                    format_args!("eof={eof}"),
                );
            }
            Err(error) => {
                let detail = format_args!("error={error}");
                tracer(&self.inode).emit(Event::ReadReply, object, offset, 0, detail);
            }
        }
        read
    }
}
