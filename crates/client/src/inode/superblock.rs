//! State that the inodes of a mount share: options, memory budgets, and what is known of the
//! server.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use proto::nfs3::{FileHandle, FsinfoOk};
use tokio::sync::watch;

use crate::cache::change::WritePairs;
use crate::cache::directory::{DirectoryCache, ListingBudget, ListingConfig};
use crate::cache::read_ahead::{ReadAhead, ReadAheadBudget, ReadAheadConfig, ReadSource};
use crate::cache::write_back::{
    KeptBudget, TracedFile, WriteBack, WriteBackConfig, WriteBudget, WriteTarget,
};
use crate::error::{Error, Result};
use crate::options::MountOptions;
use crate::trace::Tracer;

/// The state of a mount that all its inodes use.
pub(crate) struct Superblock {
    options: MountOptions,
    write_back: WriteBackConfig,
    write_budget: WriteBudget,
    kept_budget: KeptBudget,
    read_ahead: ReadAheadConfig,
    listing: Arc<ListingConfig>,
    open_files: AtomicUsize,
    /// Closes in progress, and removals of names.
    closes: watch::Sender<usize>,
    write_pairs: WritePairs,
    /// An error of written data that was reported to no open file, of an inode that is dropped.
    lost: Mutex<Option<Error>>,
    on_foreign_change: OnceLock<ForeignChangeListener>,
}

/// One of what a counter counts, until it is dropped.
pub(crate) struct InProgress(watch::Sender<usize>);

impl InProgress {
    pub(crate) fn begin(counter: &watch::Sender<usize>) -> Self {
        counter.send_modify(|count| *count += 1);
        Self(counter.clone())
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Waits until nothing that `counter` counts is in progress.
pub(crate) async fn ended(counter: &watch::Sender<usize>) {
    // There is a sender.
    let _ = counter.subscribe().wait_for(|count| *count == 0).await;
}

/// Like [`ended`], for no longer than `time`.
pub(super) async fn ended_within(counter: &watch::Sender<usize>, time: Duration) {
    let _ = tokio::time::timeout(time, ended(counter)).await;
}

/// Called with the handle of an open file or a directory that another client has changed.
pub(crate) type ForeignChangeListener = Box<dyn Fn(FileHandle) + Send + Sync>;

impl Superblock {
    pub(crate) fn new(options: MountOptions, info: &FsinfoOk, tracer: Arc<Tracer>) -> Self {
        let write_back = WriteBackConfig {
            write_bytes: info.wtmax,
            writes_in_flight: options.writes_in_flight,
            sync: options.sync,
        };
        let read_ahead = ReadAheadConfig {
            read_bytes: info.rtmax,
            chunks_ahead: CHUNKS_AHEAD,
            budget: ReadAheadBudget::new(options.read_ahead_bytes),
        };
        let listing = ListingConfig {
            budget: Arc::new(ListingBudget::new(options.listing_bytes)),
            readdirplus: options.readdirplus,
            reply_bytes: info.dtpref.max(info.rtmax.min(LISTING_BYTES_MAX)),
            names_believed: options.dir_attributes_min.min(NAMES_BELIEVED_MAX),
            // As long as the attributes of a directory that has changed.
            unstamped_believed: options.dir_attributes_min.min(options.dir_attributes_max),
            tracer,
        };
        Self {
            write_back,
            write_budget: WriteBudget::new(options.write_back_bytes),
            kept_budget: KeptBudget::new(options.kept_bytes),
            read_ahead,
            listing: Arc::new(listing),
            open_files: AtomicUsize::new(0),
            closes: watch::Sender::new(0),
            write_pairs: WritePairs::default(),
            lost: Mutex::default(),
            on_foreign_change: OnceLock::new(),
            options,
        }
    }

    pub(crate) fn options(&self) -> &MountOptions {
        &self.options
    }

    pub(crate) fn tracer(&self) -> &Arc<Tracer> {
        &self.listing.tracer
    }

    /// Whether the server returns pre-operation attributes for WRITE.
    pub(crate) fn write_pairs(&self) -> &WritePairs {
        &self.write_pairs
    }

    /// The write-back cache of a new inode.
    pub(crate) fn write_back<T: WriteTarget>(
        &self,
        fileid: u64,
        handle: FileHandle,
    ) -> WriteBack<T> {
        let traced = TracedFile { tracer: Arc::clone(self.tracer()), fileid, handle };
        WriteBack::new(self.write_back, &self.write_budget, &self.kept_budget, traced)
    }

    /// The read-ahead of a file opened now.
    pub(crate) fn read_ahead<S: ReadSource>(&self, calls: S) -> ReadAhead<S> {
        ReadAhead::new(calls, self.read_ahead.clone())
    }

    /// The directory cache of a new inode.
    pub(crate) fn listing(&self, fileid: u64, handle: FileHandle) -> Arc<DirectoryCache> {
        DirectoryCache::new(&self.listing, fileid, handle)
    }

    pub(crate) fn file_opened(&self) {
        self.open_files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn file_closed(&self) {
        self.open_files.fetch_sub(1, Ordering::Relaxed);
    }

    /// A file is being closed, or a name removed, until the guard is dropped.
    pub(crate) fn begin_close(&self) -> InProgress {
        InProgress::begin(&self.closes)
    }

    /// Waits until no file is being closed and no name removed.
    pub(crate) async fn closes_ended(&self) {
        ended(&self.closes).await;
    }

    /// Whether any file of the mount is open or being opened.
    pub(crate) fn has_open_files(&self) -> bool {
        self.open_files.load(Ordering::Relaxed) > 0
    }

    /// Keeps the error of an inode that is being dropped for [`check_lost`](Self::check_lost).
    pub(crate) fn note_lost(&self, error: Error) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Waits for nothing.
    ///
    /// # Errors
    /// Data of a dropped inode was lost, and this was not reported. It is reported once.
    pub(crate) fn check_lost(&self) -> Result<()> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner).take();
        lost.map_or(Ok(()), Err)
    }

    /// Sets the listener. Only the first one counts.
    pub(crate) fn on_foreign_change(&self, listener: ForeignChangeListener) {
        let _ = self.on_foreign_change.set(listener);
    }

    /// Calls the listener.
    pub(crate) fn report_foreign_change(&self, handle: FileHandle) {
        if let Some(listener) = self.on_foreign_change.get() {
            listener(handle);
        }
    }
}

impl fmt::Debug for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Superblock").field("options", &self.options).finish_non_exhaustive()
    }
}

/// READs in flight for a sequential reader: enough to hide a round trip behind the transfer of the
/// others.
const CHUNKS_AHEAD: usize = 8;

/// Bytes of a READDIR reply at most, also where the server prefers less: as in the Linux client, to
/// make fewer calls.
const LISTING_BYTES_MAX: u32 = 1 << 20;

/// A program that stats the entries that it lists does so at once, or after the buffer that it
/// listed into.
const NAMES_BELIEVED_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_bounded_wait_ends_before_what_it_waits_for() {
        let counter = watch::Sender::new(0);
        let in_progress = InProgress::begin(&counter);
        ended_within(&counter, Duration::from_millis(1)).await;
        drop(in_progress);
        ended_within(&counter, Duration::MAX).await;
    }
}
