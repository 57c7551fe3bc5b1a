//! The descriptors that data is read and written through, opened when they are first needed.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use io::{DioAlign, Identity};

use super::Vfs;
use crate::counters::Counter;
use crate::fs::Status;
use crate::inode_cache::{DataUse, DirectFile, Inode, Permitted, Reading, Writing};

/// Notes that the kernel refused direct I/O that fits the alignment it had reported.
pub(super) fn note_refused(file: &Inode, used: DioAlign) {
    file.root().counters.add(Counter::DirectRefused, 1);
    if file.direct_refused(used) {
        file.root().io_support.note_no_direct(|| file.root().name());
    }
}

impl Vfs {
    /// The descriptor for reading.
    pub(super) async fn reader(&self, file: &Permitted<Reading>) -> Result<Arc<OwnedFd>, Status> {
        match file.reader() {
            Some(reader) => Ok(reader),
            None => self.reopen(file, Permitted::open_reader).await,
        }
    }

    /// The descriptor for reading without the kernel's read-ahead, if the server may open one.
    pub(super) async fn quiet_reader(
        &self,
        file: &Permitted<Reading>,
    ) -> Result<Option<Arc<OwnedFd>>, Status> {
        match file.quiet_reader() {
            Some(reader) => Ok(Some(reader)),
            None => self.reopen(file, Permitted::open_quiet_reader).await,
        }
    }

    /// The descriptor for writing.
    pub(super) async fn writer(&self, file: &Permitted<Writing>) -> Result<Arc<OwnedFd>, Status> {
        match file.writer() {
            Some(writer) => Ok(writer),
            None => self.reopen(file, Permitted::open_writer).await,
        }
    }

    /// Opens a file for writing that clients may have open for writing, before a change of its mode
    /// may forbid that to a server without privileges: they go on writing. To be called within that
    /// change, which is one of [`Changing::Data`](crate::inode_cache::Changing::Data).
    ///
    /// Not every file: while it is open for writing, and by such a mode it stays so as long as it
    /// is used, local programs cannot execute it.
    pub(super) async fn keep_writable(
        &self,
        file: &Arc<Inode>,
        has_writer: impl FnOnce(&Inode) -> bool,
    ) {
        if !file.may_miss_writer(has_writer) {
            return;
        }
        let (kept, device) = (Arc::clone(file), file.root().device());
        let _room = self.room(&file.key(), device).await;
        let open = move || kept.keep_writer();
        if let Err(status) = self.open_in_metadata_lane(device, &Identity::Server, open).await {
            tracing::debug!(?status, "cannot open a file for WRITEs after a change of its mode");
        }
    }

    /// The descriptor that passes by the page cache, if there can be one now.
    pub(super) async fn direct<U: DataUse>(
        &self,
        file: &Permitted<U>,
    ) -> Result<Option<DirectFile>, Status> {
        match file.direct() {
            Some(known) => Ok(known),
            None => self.reopen(file, Permitted::open_direct).await,
        }
    }

    /// The same, and notes it where direct I/O is missing.
    pub(super) async fn direct_or_note<U: DataUse>(
        &self,
        file: &Permitted<U>,
    ) -> Result<Option<DirectFile>, Status> {
        let direct = self.direct(file).await?;
        // Where the server may not open the file now, nothing is missing from the file system.
        if direct.is_none() && matches!(file.direct(), Some(None)) {
            file.root().io_support.note_no_direct(|| file.root().name());
        }
        Ok(direct)
    }

    async fn reopen<U: DataUse, T: Send + 'static>(
        &self,
        file: &Permitted<U>,
        open: fn(&Permitted<U>) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let (file, device) = (file.clone(), file.root().device());
        let _room = self.room(&file.key(), device).await;
        self.open_in_metadata_lane(device, &Identity::Server, move || open(&file)).await
    }
}
