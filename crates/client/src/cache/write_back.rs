//! Write-back: the written data of a file until the server has committed it.
//!
//! Writes of any size are gathered into WRITEs of the server's maximum size, aligned to that size
//! and sent in ascending order. Many can be in flight without reordering: one task makes all calls
//! of a file, and the connection preserves their order. Data is held until COMMIT confirms the
//! verifier of its WRITE, and sent again when a restarted server has lost it.
//!
//! # Reads of written data
//!
//! Held data is newer than the reply to a READ. But while a READ is in flight, data can be sent,
//! committed and dropped, and the reply, which the server made before that, lacks it. So a reader
//! takes a [`ReadMark`] before the READ, which holds such data, and copies it over the reply. Data
//! that is committed, and whose WRITE was answered before the READ was sent, is not copied: the
//! reply has it, or what another client has written over it.
//!
//! After a foreign change, held data that was sent before may be older than the server's, or lost
//! by a server whose restart looks like a change. It is committed at once, and then read from the
//! server: the verifier has shown that the server has executed its WRITE and not lost it. An open
//! waits for that.

mod budget;
mod chunk;
mod dirty_file;
mod dispatch;
mod epochs;
mod errors;
mod extents;
mod kept;
mod retired;
mod sent;
mod unsent;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use proto::nfs3::{CommitOk, FileHandle, StableHow, WriteOk};
use rustix::io::Errno;

use self::budget::Account;
use self::dirty_file::{DirtyFile, Lack, Pause, WriteData};
use self::errors::ErrorCursor;
use self::extents::{Extents, Goal, Limits};
use self::retired::Mark;
use self::unsent::Caller;
use crate::error::{Error, Result};
use crate::trace::{Event, Object, Tracer};

pub(crate) use self::budget::WriteBudget;
pub(crate) use self::kept::KeptBudget;

/// The calls of one user that write to one file.
pub(crate) trait WriteTarget: Clone + Send + Sync + 'static {
    /// WRITE, RFC 1813 §3.3.7. Sent by the first poll, in the order of the first polls.
    ///
    /// An error is final and loses the data, so the implementation retries transient errors such as
    /// NFS3ERR_JUKEBOX.
    fn write(
        &self,
        offset: u64,
        data: Bytes,
        stable: StableHow,
    ) -> impl Future<Output = Result<WriteOk>> + Send;

    /// COMMIT, RFC 1813 §3.3.21; `count` 0 is all from `offset` on. Sent and retried as
    /// [`write`](Self::write).
    fn commit(&self, offset: u64, count: u32) -> impl Future<Output = Result<CommitOk>> + Send;

    /// Data that was sent before another client changed the file is committed, or data that the
    /// server has lost repeatedly is given up. It is no longer held: caches above may have it in
    /// place of the server's data.
    fn superseded(&self);

    /// Whether both are calls of the same user, so that their data may share a WRITE.
    fn same_user(&self, other: &Self) -> bool;
}

impl<T: WriteTarget> Caller for T {
    fn same_user(&self, other: &Self) -> bool {
        WriteTarget::same_user(self, other)
    }
}

/// Parameters of write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteBackConfig {
    /// Bytes of a WRITE at most, and the alignment of WRITEs; at least 1.
    pub(crate) write_bytes: u32,
    /// WRITEs in flight at most; at least 1.
    pub(crate) writes_in_flight: usize,
    /// A write returns when the data is on stable storage.
    pub(crate) sync: bool,
}

/// The subject of trace events.
#[derive(Clone, Debug)]
pub(crate) struct TracedFile {
    /// Prints the events.
    pub(crate) tracer: Arc<Tracer>,
    /// The file id.
    pub(crate) fileid: u64,
    /// The file handle.
    pub(crate) handle: FileHandle,
}

impl TracedFile {
    fn emit(&self, event: Event, offset: u64, len: u64, detail: fmt::Arguments<'_>) {
        let object = Object { fileid: self.fileid, handle: &self.handle };
        self.tracer.emit(event, object, offset, len, detail);
    }
}

/// The written data of one file.
///
/// A task of its own makes all calls, so dropping a future of these methods only ends the wait. The
/// methods that write need the context of a Tokio runtime.
///
/// After drop the task continues until all is committed, as long as the runtime exists; errors are
/// not reported then. [`commit`](Self::commit) first.
pub(crate) struct WriteBack<T: WriteTarget> {
    file: Arc<DirtyFile<T>>,
}

/// A file opened for writing: the calls of its user, and which errors were reported to it.
pub(crate) struct Writer<T> {
    target: T,
    errors: ErrorCursor,
}

impl<T> Writer<T> {
    /// Undoes [`WriteBack::peek`]: what it has returned does not count as reported at the close.
    pub(crate) fn unpeek(&self) {
        self.errors.unpeek();
    }
}

impl<T: WriteTarget> WriteBack<T> {
    /// A file without written data. Allocates little until the first write.
    ///
    /// # Panics
    /// If a number of `config` is 0.
    #[must_use]
    pub(crate) fn new(
        config: WriteBackConfig,
        budget: &WriteBudget,
        kept: &KeptBudget,
        traced: TracedFile,
    ) -> Self {
        let WriteBackConfig { write_bytes, writes_in_flight, sync } = config;
        assert!(write_bytes > 0 && writes_in_flight > 0, "{config:?} allows no WRITE");
        let limits = Limits {
            write_bytes,
            in_flight_max: writes_in_flight,
            commit_bytes: (budget.bytes_max() as u64 / COMMIT_SHARE).max(1),
            pieces_max: PIECES_MAX,
        };
        let extents = Extents::new(limits, kept);
        Self { file: Arc::new(DirtyFile::new(sync, traced, Account::new(budget), extents)) }
    }

    /// Opens the file. Each error from now on is reported to the writer once, and so is an earlier
    /// one that was reported to none.
    #[must_use]
    pub(crate) fn open(&self, target: T) -> Writer<T> {
        Writer { target, errors: self.file.lock().errors.cursor() }
    }

    /// Writes a copy of `data` at `offset`. Waits only for room and, in a `sync` file, until the
    /// data is on stable storage.
    ///
    /// If the future is dropped, a prefix may have been written.
    ///
    /// # Errors
    /// An earlier WRITE or COMMIT failed and this was not reported to `writer`; nothing is written
    /// then. [`Error::Refused`] with EFBIG beyond the largest offset of a file. In a `sync` file
    /// also the error of this write.
    pub(crate) async fn write(&self, writer: &Writer<T>, offset: u64, data: &[u8]) -> Result<()> {
        self.check(writer)?;
        self.write_from(writer, offset, WriteData { bytes: data, owned: None }).await?;
        if self.file.sync { self.check(writer) } else { Ok(()) }
    }

    /// Like [`write`](Self::write), but `data` is referenced and not copied if it is the payload of
    /// one WRITE, of the length and alignment [`write_bytes`](WriteBackConfig::write_bytes). It
    /// should not be a part of a larger allocation, which the budget does not include. Errors of
    /// WRITE and COMMIT, also those of a `sync` file, are left for [`check`](Self::check).
    ///
    /// # Errors
    /// [`Error::Refused`] with EFBIG beyond the largest offset of a file.
    pub(crate) async fn write_bytes(
        &self,
        writer: &Writer<T>,
        offset: u64,
        data: &Bytes,
    ) -> Result<()> {
        self.write_from(writer, offset, WriteData { bytes: data, owned: Some(data) }).await
    }

    async fn write_from(&self, writer: &Writer<T>, offset: u64, data: WriteData<'_>) -> Result<()> {
        let len = data.bytes.len() as u64;
        let is_in_range = offset.checked_add(len).is_some_and(|end| end <= OFFSET_MAX);
        if !is_in_range {
            return Err(Error::Refused(Errno::FBIG));
        }
        self.file.traced.emit(Event::WriteEnter, offset, len, format_args!(""));
        let taken = self.file.put(&mut self.file.lock(), &writer.target, offset, data, None);
        if let Err(lack) = taken {
            Box::pin(self.write_rest(writer, offset, data, lack)).await;
        }
        if self.file.sync && len > 0 {
            Box::pin(self.commit()).await;
        }
        Ok(())
    }

    /// Continues a write that lacks room.
    async fn write_rest(
        &self,
        writer: &Writer<T>,
        mut offset: u64,
        mut data: WriteData<'_>,
        mut lack: Lack,
    ) {
        loop {
            offset += lack.taken as u64;
            data = data.behind(lack.taken);
            let room = self.file.account.room(lack.room).await;
            let mut dirty = self.file.lock();
            match self.file.put(&mut dirty, &writer.target, offset, data, Some(room)) {
                Ok(()) => return,
                Err(next) => lack = next,
            }
        }
    }

    /// Waits for the replies to the WRITEs of all data written so far: other clients can read it,
    /// but a crash of the server may lose it; see [`sync`](Self::sync).
    ///
    /// # Errors
    /// Data was lost, and this was not reported to `writer`.
    pub(crate) async fn flush(&self, writer: &Writer<T>) -> Result<()> {
        self.reach(Goal::Answered).await;
        self.check(writer)
    }

    /// Waits until all data written so far is on the server's stable storage, as fsync promises,
    /// and close in the Linux client.
    ///
    /// # Errors
    /// Data was lost, and this was not reported to `writer`.
    pub(crate) async fn sync(&self, writer: &Writer<T>) -> Result<()> {
        self.reach(Goal::Committed).await;
        self.check(writer)
    }

    /// Like [`flush`](Self::flush), but leaves write errors for the openers to collect.
    pub(crate) async fn drain(&self) {
        self.reach(Goal::Answered).await;
    }

    /// Like [`sync`](Self::sync), but leaves write errors for the openers to collect.
    pub(crate) async fn commit(&self) {
        self.reach(Goal::Committed).await;
    }

    /// Waits for nothing. At the end of a mount, after [`commit`](Self::commit).
    ///
    /// # Errors
    /// Data was lost, and this was reported to no writer. It is reported to the open ones as well.
    pub(crate) fn check_unreported(&self) -> Result<()> {
        self.file.lock().errors.check_unreported()
    }

    /// Whether [`check`](Self::check) would report an error to `writer`.
    pub(crate) fn has_failed(&self, writer: &Writer<T>) -> bool {
        self.file.lock().errors.has(&writer.errors)
    }

    /// Reports the latest error to `writer`, once.
    ///
    /// # Errors
    /// Data was lost, and this was not reported to `writer`.
    pub(crate) fn check(&self, writer: &Writer<T>) -> Result<()> {
        self.file.lock().errors.check(&writer.errors)
    }

    /// As [`check`](Self::check), which is left to return the same error once more.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub(crate) fn peek(&self, writer: &Writer<T>) -> Result<()> {
        self.file.lock().errors.peek(&writer.errors)
    }

    /// The file of `writer` is closed: the latest error counts as reported, if
    /// [`peek`](Self::peek) has returned it.
    pub(crate) fn close(&self, writer: &Writer<T>) {
        self.file.lock().errors.close(&writer.errors);
    }

    async fn reach(&self, goal: Goal) {
        let file = &self.file;
        let epoch = {
            let mut dirty = file.lock();
            if dirty.extents.is_clean() {
                return;
            }
            let epoch = dirty.extents.request(goal);
            dirty.wake();
            epoch
        };
        file.wait_until(|dirty| dirty.extents.is_reached(goal, epoch).then_some(())).await;
    }

    /// To be called before a SETATTR of the size. Waits for the replies to the WRITEs of all data
    /// written so far and to all in flight. None is sent until the result is dropped: a WRITE
    /// behind the SETATTR would extend the file again, also one of data that the server lost in a
    /// restart.
    pub(crate) async fn begin_truncation(&self) -> Truncation<'_, T> {
        self.drain().await;
        let truncation = Truncation(Pause::new(&self.file));
        // Data can be written, or lost and sent again, before the pause.
        self.file.wait_until(|dirty| (!dirty.extents.has_in_flight()).then_some(())).await;
        truncation
    }

    /// To be called before a READ. The mark is held until the reply has been processed.
    #[must_use]
    pub(crate) fn mark(&self) -> ReadMark<T> {
        let mark = self.file.lock().extents.mark();
        ReadMark { file: Arc::clone(&self.file), mark }
    }

    /// Drops the committed data: it is to be read from the server again.
    pub(crate) fn forget_kept(&self) {
        self.file.lock().extents.forget_kept();
    }

    /// Another client has changed the file, or the server has lost data in a restart. Data sent
    /// before is read from the server once it is committed; what the server has lost is sent again.
    pub(crate) fn note_foreign_change(&self) {
        self.file.lock().extents.note_foreign_change();
    }

    /// Waits until no data that was sent before the latest foreign change hides the server's data,
    /// which is committed at once. Write errors are left for the openers to collect.
    pub(crate) async fn foreign_change_readable(&self) {
        let place = {
            let mut dirty = self.file.lock();
            let place = dirty.extents.await_foreign_change();
            dirty.wake();
            place
        };
        self.file.wait_until(|dirty| (!dirty.extents.hides(place)).then_some(())).await;
    }

    /// The end of the last byte that is not committed: a lower bound of the file's size.
    #[must_use]
    pub(crate) fn end(&self) -> Option<u64> {
        self.file.lock().extents.end()
    }

    /// Whether all data is committed.
    #[must_use]
    pub(crate) fn is_clean(&self) -> bool {
        self.file.lock().extents.is_clean()
    }
}

impl<T: WriteTarget> Drop for WriteBack<T> {
    fn drop(&mut self) {
        let mut dirty = self.file.lock();
        if !dirty.extents.is_clean() {
            dirty.extents.request(Goal::Committed);
            dirty.wake();
        }
    }
}

impl<T: WriteTarget> fmt::Debug for WriteBack<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBack")
            .field("held_bytes", &self.file.account.held())
            .field("is_clean", &self.is_clean())
            .finish_non_exhaustive()
    }
}

/// A SETATTR of the size. Until it is dropped no WRITE of the file is sent.
pub(crate) struct Truncation<'a, T: WriteTarget>(Pause<'a, T>);

impl<T: WriteTarget> Truncation<'_, T> {
    /// The server has set the size: drops all data from `size` on.
    pub(crate) fn finish(self, size: u64) {
        let is_cut = self.0.file().lock().extents.cut(size);
        debug_assert!(is_cut, "a WRITE is in flight during a pause");
    }
}

/// Holds the data committed from now on, for the reply to a READ sent from now on.
pub(crate) struct ReadMark<T: WriteTarget> {
    file: Arc<DirtyFile<T>>,
    mark: Mark,
}

impl<T: WriteTarget> ReadMark<T> {
    /// Whether [`fill`](Self::fill) can fill `len` bytes, and `len` is not 0.
    #[must_use]
    pub(crate) fn covers(&self, offset: u64, len: usize) -> bool {
        let end = offset.saturating_add(len as u64);
        len > 0 && self.file.lock().extents.held_until(offset) >= end
    }

    /// Fills `buf` with the data at `offset`, if all of it is held or kept; no READ is needed then.
    #[must_use]
    pub(crate) fn fill(&self, offset: u64, buf: &mut [u8]) -> bool {
        let dirty = self.file.lock();
        let is_held = dirty.extents.held_until(offset) >= offset.saturating_add(buf.len() as u64);
        if is_held {
            dirty.extents.overlay(offset, buf, None);
        }
        is_held
    }

    /// The server's `data` at `offset`, of which `len` bytes were requested, with all data held
    /// since the mark was taken copied over it.
    #[must_use]
    pub(crate) fn overlaid(&self, offset: u64, len: usize, data: &[u8]) -> Bytes {
        // A hole between the server's end of file and held data reads as zeros.
        let mut overlaid = BytesMut::zeroed(len.max(data.len()));
        overlaid[..data.len()].copy_from_slice(data);
        let end = {
            let dirty = self.file.lock();
            dirty.extents.overlay(offset, &mut overlaid, Some(self.mark));
            dirty.extents.end_since(self.mark).unwrap_or(0)
        };
        let held = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
        overlaid.truncate(held.max(data.len()));
        overlaid.freeze()
    }
}

impl<T: WriteTarget> Drop for ReadMark<T> {
    fn drop(&mut self) {
        self.file.lock().extents.unmark(self.mark);
    }
}

/// A file commits in the background when this fraction of the budget is unstable, so that a long
/// stream releases room while it continues, and does not wait for one large COMMIT.
const COMMIT_SHARE: u64 = 4;
/// Unstable pieces of a file at most, of some 300 bytes: a server may write a few bytes of each
/// WRITE, and each reply leaves a piece that the budget does not include.
const PIECES_MAX: usize = 65_536;
/// The largest file offset: `loff_t` is signed.
const OFFSET_MAX: u64 = i64::MAX as u64;

#[cfg(test)]
mod tests;
