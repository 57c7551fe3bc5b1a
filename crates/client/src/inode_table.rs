//! The inodes of a mount by their handles, and what they share.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use proto::nfs3::{Attributes, FileHandle, FsinfoOk};

use crate::MountOptions;
use crate::directory_cache::{DirectoryCache, ListingBudget, ListingConfig};
use crate::inode::{Inode, Sent};
use crate::read_ahead::{ReadAhead, ReadAheadBudget, ReadAheadConfig};
use crate::read_calls::ReadCalls;
use crate::trace::Tracer;
use crate::write_back::{KeptBudget, TracedFile, WriteBack, WriteBackConfig, WriteBudget};
use crate::write_calls::WriteCalls;

/// The inodes of a mount.
pub(crate) struct InodeTable {
    /// An inode is here as long as somebody holds it.
    inodes: Mutex<HashMap<FileHandle, Weak<Inode>>>,
    options: MountOptions,
    write_back: WriteBackConfig,
    write_budget: WriteBudget,
    kept_budget: KeptBudget,
    read_ahead: ReadAheadConfig,
    listing: Arc<ListingConfig>,
    open_files: AtomicUsize,
    listener: OnceLock<Listener>,
}

/// Told of a foreign change.
type Listener = Box<dyn Fn(&Inode) + Send + Sync>;

impl InodeTable {
    pub(crate) fn new(options: MountOptions, info: &FsinfoOk, tracer: Arc<Tracer>) -> Arc<Self> {
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
            tracer,
        };
        Arc::new(Self {
            inodes: Mutex::default(),
            write_back,
            write_budget: WriteBudget::new(options.write_back_bytes),
            kept_budget: KeptBudget::new(options.kept_bytes),
            read_ahead,
            listing: Arc::new(listing),
            open_files: AtomicUsize::new(0),
            listener: OnceLock::new(),
            options,
        })
    }

    /// The inode of `handle`, of which a reply to a call sent at `sent` shows `attributes`.
    pub(crate) fn inode(
        self: &Arc<Self>,
        handle: FileHandle,
        attributes: &Attributes,
        sent: Sent,
    ) -> Arc<Inode> {
        let mut inodes = self.lock();
        if let Some(inode) = inodes.get(&handle).and_then(Weak::upgrade) {
            drop(inodes);
            inode.note(Some(attributes), sent);
            return inode;
        }
        let inode = Arc::new(Inode::new(handle, attributes, sent, self));
        inodes.insert(handle, Arc::downgrade(&inode));
        inode
    }

    /// An inode is gone. Another one for its handle may have come meanwhile.
    pub(crate) fn forget(&self, handle: &FileHandle) {
        let mut inodes = self.lock();
        if inodes.get(handle).is_some_and(|inode| inode.strong_count() == 0) {
            inodes.remove(handle);
        }
    }

    /// All inodes that somebody holds.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.lock().values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn options(&self) -> &MountOptions {
        &self.options
    }

    pub(crate) fn tracer(&self) -> &Arc<Tracer> {
        &self.listing.tracer
    }

    pub(crate) fn write_back(&self, fileid: u64, handle: FileHandle) -> WriteBack<WriteCalls> {
        let traced = TracedFile { tracer: Arc::clone(self.tracer()), fileid, handle };
        WriteBack::new(self.write_back, &self.write_budget, &self.kept_budget, traced)
    }

    pub(crate) fn read_ahead(&self, calls: ReadCalls) -> ReadAhead<ReadCalls> {
        ReadAhead::new(calls, self.read_ahead.clone())
    }

    pub(crate) fn listing(&self, fileid: u64, handle: FileHandle) -> DirectoryCache {
        DirectoryCache::new(&self.listing, fileid, handle)
    }

    pub(crate) fn file_opened(&self) {
        self.open_files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn file_closed(&self) {
        self.open_files.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether any file is open.
    pub(crate) fn has_open_files(&self) -> bool {
        self.open_files.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn on_foreign_change(&self, listener: Listener) {
        // The first one stays.
        let _ = self.listener.set(listener);
    }

    pub(crate) fn tell_foreign_change(&self, inode: &Inode) {
        if let Some(listener) = self.listener.get() {
            listener(inode);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FileHandle, Weak<Inode>>> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for InodeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeTable").field("inodes", &self.lock().len()).finish_non_exhaustive()
    }
}

/// READs under way for a sequential reader: enough to hide a round trip behind the transfer of the
/// others.
const CHUNKS_AHEAD: usize = 8;

/// A reply to READDIR at most, where the server would rather have less: as in the Linux client, for
/// the fewer calls.
const LISTING_BYTES_MAX: u32 = 1 << 20;

/// A program that looks at what it lists does so at once, or after the buffer that it listed into.
const NAMES_BELIEVED_MAX: Duration = Duration::from_secs(1);
