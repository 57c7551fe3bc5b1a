//! File operations, free of any protocol version: objects and callers in, attributes and results
//! out. `nfs3` and `nfs4` are built on it; nothing below knows of NFS.

mod access;
mod attr;
#[cfg(test)]
mod busy_client;
mod copy;
#[cfg(test)]
mod counted_changes;
mod descriptors;
mod fsinfo;
mod io_plan;
mod namespace;
mod prefetch;
mod read;
mod read_ahead;
mod read_data;
#[cfg(test)]
mod readable;
mod readdir;
mod retry;
mod space;
mod splice;
mod switches;
mod write;
mod write_batch;
mod write_data;
mod write_vectors;
mod xattr;

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use io::{
    BufferPool, ChangeWatches, DeviceNumber, Engine, Identity, KernelHandle, Lengths, Memory,
    PipePool, ReadAheadBudget, WriteBehind, WriteBehindConfig,
};
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use self::prefetch::PrefetchRuns;
use self::space::HeldSpace;
use crate::counters::{CallKind, Counters, Figure, Phase, PhaseTimer};
use crate::descriptor_plan::DescriptorPlan;
use crate::export::{ExportRoot, Object};
use crate::fs::{
    Caller, LiveAttributes, Status, Timestamp, attributes_and_birth_at, attributes_of,
    attributes_of_linked_or_not,
};
use crate::inode_cache::{
    Attributes, Change, Changing, Counted, ExclusiveGuard, Flush, HandleCache, IdleInodes, Inode,
    InodeCache, InodeKey, RecallRequests, UnusedInodes, Wcc, Writing,
};
use crate::memory_plan::MemoryPlan;
use crate::trace::Tracer;

pub(crate) use attr::{Applied, AttributeChange, SetTime};
pub(crate) use copy::{Allocation, CopyEnd, CopyRange, Sought};
pub(crate) use fsinfo::{FileSystemSpace, PathLimits};
pub(crate) use namespace::{CreateMode, Created, EntryName, NodeKind};
pub(crate) use read::ReadDone;
pub(crate) use readdir::{DirectoryEntry, Listing, Objects, Pushed};
pub(crate) use retry::RETURN_PAUSES;
pub(crate) use space::SpaceWanted;
pub(crate) use switches::Switches;
pub(crate) use write::Stability;
pub(crate) use xattr::{SetXattr, XattrNames};

/// A window holds at least so many runs: a small one writes in smaller runs.
const WINDOW_RUNS_MIN: u64 = 8;
/// The longest file name of any Linux file system, in bytes (`NAME_MAX`, limits.h).
const NAME_BYTES_MAX: usize = 255;

/// The file operations of the server.
pub(crate) struct Vfs {
    /// Runs jobs that may block.
    engine: Arc<Engine>,
    /// Payload memory.
    buffers: Arc<BufferPool>,
    /// Pipes for replies whose data is not copied.
    pipes: Arc<PipePool>,
    /// Objects open between requests.
    inode_cache: Arc<InodeCache>,
    /// Space of removed files that clients have open.
    held_space: HeldSpace,
    /// Places for listings that wait for their next call.
    listings: Arc<Semaphore>,
    /// Handles of listed objects.
    handle_cache: Arc<HandleCache>,
    counters: Arc<Counters>,
    tracer: Arc<Tracer>,
    /// Features that a reload switches on and off, for all exports.
    switches: Switches,
    /// The memory that the page cache may grow into.
    memory: Memory,
    /// Written data that leaves the page cache behind the writer.
    window: Arc<WriteBehind>,
    /// Room for chunks that are read ahead.
    read_ahead: ReadAheadBudget,
    /// Read-ahead into the page cache that is at work.
    prefetch_runs: Arc<PrefetchRuns>,
    /// Changes of files with such chunks.
    watches: ChangeWatches,
    /// Bytes that `auto` read from the disk: the clock of what is read again.
    uncached_bytes: AtomicU64,
    /// The most bytes that one READ returns.
    transfer_bytes_max: u32,
    /// The runtime whose timers calls use on threads that have none.
    timers: Handle,
}

/// The answer to an operation: attributes that the client is to have whether it succeeded or not,
/// and the result.
pub(crate) struct Answer<A, T> {
    /// Attributes of the object or directory the operation was on.
    pub(crate) attributes: A,
    /// The result.
    pub(crate) result: Result<T, Status>,
}

impl<A: Default, T> Answer<A, T> {
    fn refused(status: Status) -> Self {
        Self { attributes: A::default(), result: Err(status) }
    }
}

/// `Err` is an operation that was refused before its attributes were read.
impl<A: Default, T> From<Result<(A, Result<T, Status>), Status>> for Answer<A, T> {
    fn from(done: Result<(A, Result<T, Status>), Status>) -> Self {
        match done {
            Ok((attributes, result)) => Self { attributes, result },
            Err(status) => Self::refused(status),
        }
    }
}

/// An object found or made under a name.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// Its handle.
    pub(crate) handle: KernelHandle,
    /// Its attributes.
    pub(crate) attributes: Attributes,
}

impl Found {
    /// The object with this handle on the file system of `directory`, with the attributes that were
    /// read of it.
    fn new(directory: &Inode, handle: KernelHandle, live: LiveAttributes) -> Self {
        Self { handle, attributes: directory.attributes_of_other(&handle, live) }
    }
}

impl Object {
    fn key(&self) -> InodeKey {
        InodeKey::new(self.root(), *self.handle())
    }
}

impl Vfs {
    /// File operations without any open file, within the bounds of both plans.
    pub(crate) fn new(
        plan: &MemoryPlan,
        descriptors: &DescriptorPlan,
        engine: Arc<Engine>,
        buffers: Arc<BufferPool>,
        counters: Arc<Counters>,
        tracer: Arc<Tracer>,
        switches: Switches,
    ) -> Self {
        let transfer_bytes = usize::try_from(plan.transfer_bytes_max).unwrap_or(usize::MAX);
        let usual = WriteBehindConfig::default();
        let window_bytes = plan.window_bytes as u64;
        let window = WriteBehind::new(WriteBehindConfig {
            window_bytes,
            files_max: descriptors.window_files,
            run_bytes: usual.run_bytes.min(window_bytes / WINDOW_RUNS_MIN),
            ..usual
        });
        Self {
            engine,
            buffers,
            pipes: PipePool::new(descriptors.pipes, transfer_bytes),
            inode_cache: Arc::new(InodeCache::new(descriptors.objects())),
            held_space: HeldSpace::default(),
            listings: Arc::new(Semaphore::new(descriptors.listings)),
            handle_cache: Arc::new(HandleCache::new()),
            counters,
            tracer,
            switches,
            memory: Memory::new(),
            window: Arc::new(window),
            read_ahead: ReadAheadBudget::new(plan.chunks_bytes),
            prefetch_runs: Arc::default(),
            watches: ChangeWatches::default(),
            uncached_bytes: AtomicU64::new(0),
            transfer_bytes_max: plan.transfer_bytes_max,
            timers: Handle::current(),
        }
    }

    /// The files whose delegations are to be recalled.
    pub(crate) fn recall_requests(&self) -> &Arc<RecallRequests> {
        self.inode_cache.recall_requests()
    }

    /// The space of removed files that clients have open.
    pub(crate) fn held_space(&self) -> &HeldSpace {
        &self.held_space
    }

    /// Features that a reload switches on and off.
    pub(crate) fn switches(&self) -> &Switches {
        &self.switches
    }

    /// The object behind a handle, open for as long as it is held.
    ///
    /// # Errors
    /// `Stale` when it is gone.
    pub(crate) async fn hold(&self, object: &Object) -> Result<Arc<Inode>, Status> {
        Ok(self.open_inode(object).await?.0)
    }

    /// The object with this handle in an export, if it is open.
    pub(crate) fn find_open(
        &self,
        root: &Arc<ExportRoot>,
        handle: KernelHandle,
    ) -> Option<Arc<Inode>> {
        self.inode_cache.find(&InodeKey::new(root, handle))
    }

    /// Closes some of the open objects, after the process or the system has run out of descriptors.
    /// Does not block.
    pub(crate) fn close_some(&self) {
        self.inode_cache.shrink_clean(&self.engine);
    }

    /// Closes open objects of a device that no call uses, after a call has found no descriptor.
    pub(crate) async fn close_unused(&self, device: DeviceNumber) {
        self.inode_cache.shrink(device, &self.engine).await;
    }

    /// Advances the clock of the open objects, and returns those that are idle now: a list for each
    /// device, for [`Self::close_idle`]. To be called once a second; does not block.
    #[must_use]
    pub(crate) fn tick(&self) -> Vec<IdleInodes> {
        // So that the chunks of changed files leave, and the queue of events stays short.
        self.watches.drain();
        self.inode_cache.close_left(&self.engine);
        self.inode_cache.tick()
    }

    /// Flushes and closes idle objects of one device; those that `is_held_for_writing` names stay
    /// open for writing while they are used. Waits for the disk.
    pub(crate) async fn close_idle(
        &self,
        idle: IdleInodes,
        is_held_for_writing: impl Fn(&Inode) -> bool + Clone + Send + 'static,
    ) {
        self.inode_cache.give_up(idle, &self.engine, is_held_for_writing).await;
    }

    /// Objects that no call uses: a list for each device, for [`Self::close_unlinked`]. To be
    /// called once a second; does not block.
    #[must_use]
    pub(crate) fn unused(&self) -> Vec<UnusedInodes> {
        self.inode_cache.unused()
    }

    /// Closes those of the objects that have lost their last name. Waits for the disk.
    pub(crate) async fn close_unlinked(&self, unused: UnusedInodes) {
        self.inode_cache.give_up_unlinked(unused, &self.engine).await;
    }

    /// Flushes everything. No device waits for another.
    pub(crate) async fn flush_all(&self) {
        self.inode_cache.flush_all(&self.engine).await;
    }

    /// Empties the window, closes all objects and ends the threads.
    pub(crate) async fn shutdown(&self) {
        let (window, inode_cache) = (Arc::clone(&self.window), Arc::clone(&self.inode_cache));
        let close = move || {
            window.shutdown();
            inode_cache.clear();
        };
        self.engine.data(close).await;
        self.engine.shutdown().await;
    }

    /// Flushes that have failed so far.
    pub(crate) fn failed_flushes(&self) -> u64 {
        self.inode_cache.failed_flushes()
    }

    /// The state of the window, of the open objects, and of the memory of the machine.
    pub(crate) fn figures(&self) -> [(Figure, u64); 16] {
        let counts = self.window.counts();
        [
            (Figure::WindowBytes, self.window.bytes()),
            (Figure::WindowFiles, self.window.files() as u64),
            (Figure::WindowOutOfOrderWrites, counts.out_of_order),
            (Figure::WindowWritesPutInOrder, counts.put_in_order),
            (Figure::WindowRuns, counts.runs),
            (Figure::WindowWrittenBackBytes, counts.bytes_written_back),
            (Figure::WindowDroppedBytes, counts.bytes_dropped),
            (Figure::WindowKeptBytes, counts.bytes_kept),
            (Figure::WindowStuckBytes, counts.bytes_stuck),
            (Figure::WindowForgottenBytes, counts.bytes_forgotten),
            (Figure::WindowEdgesFilled, counts.edges_filled),
            (Figure::WindowEdgesGivenUp, counts.edges_given_up),
            (Figure::WindowThrottledWrites, counts.throttled),
            (Figure::WindowErrors, counts.errors),
            (Figure::OpenObjects, self.inode_cache.len() as u64),
            (Figure::MemoryFreeBytes, self.memory.free_bytes()),
        ]
    }

    /// The open object behind a handle, and its attributes if it was opened for this call.
    ///
    /// # Errors
    /// `Stale` when it is gone.
    async fn open_inode(
        &self,
        object: &Object,
    ) -> Result<(Arc<Inode>, Option<LiveAttributes>), Status> {
        let key = object.key();
        if let Some(file) = self.inode_cache.find(&key) {
            if self.inode_cache.place_is_due(&file) {
                self.check_place(&file).await?;
            }
            return Ok((file, None));
        }
        // Opening may wait for the disk.
        self.engine.ask_for_metadata_thread().await;
        let device = object.root().device();
        let room = self.room(&key, device).await;
        let (root, handle) = (Arc::clone(object.root()), *object.handle());
        let open = move || root.open(&handle);
        let opened = self.open_in_metadata_lane(device, &Identity::Server, open).await;
        if opened.as_ref().is_err_and(|status| *status == Status::Stale) {
            self.handle_cache.forget_stale(object.root(), object.handle());
        }
        let (fd, attributes) = opened?;
        let root = Arc::clone(object.root());
        let file_type = attributes.file_type;
        let file = self.inode_cache.add(root, *object.handle(), file_type, (fd, room));
        Ok((file, Some(attributes)))
    }

    /// Room for a descriptor of an object on a device.
    async fn room(&self, key: &InodeKey, device: DeviceNumber) -> Counted {
        if let Some(room) = self.inode_cache.room(key, &self.engine) {
            return room;
        }
        // Closing what makes room may wait for the disk.
        self.engine.ask_for_metadata_thread().await;
        Box::pin(self.inode_cache.make_room(key, device, &self.engine)).await
    }

    /// Makes sure that an open directory still lies below its export.
    ///
    /// # Errors
    /// `Stale` when it was moved out or removed.
    async fn check_place(&self, file: &Arc<Inode>) -> Result<(), Status> {
        // With the rest of the call, for which another thread would be woken again.
        self.engine.ask_for_metadata_thread().await;
        let directory = Arc::clone(file);
        let job = move || directory.root().has_below(directory.handle(), directory.fd());
        let device = file.root().device();
        match self.open_in_metadata_lane(device, &Identity::Server, job).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(Status::Stale) => {
                self.inode_cache.forget(&file.key());
                Err(Status::Stale)
            }
            Err(status) => Err(status),
        }
    }

    /// The attributes of an open object, for a reply. Data or names that are read after this are at
    /// least as new.
    async fn attributes(&self, file: &Arc<Inode>) -> Result<Attributes, Status> {
        Ok(file.lock.attributes(self.live_attributes(file).await?))
    }

    /// The attributes of an open object as the kernel has them. Answered on this thread where the
    /// file system keeps them in memory.
    async fn live_attributes(&self, file: &Arc<Inode>) -> Result<LiveAttributes, Status> {
        let result = if file.root().attributes_in_memory {
            file.live_attributes()
        } else {
            let file = Arc::clone(file);
            let look = move || file.live_attributes();
            Box::pin(self.in_metadata_lane(Identity::Server, look)).await
        };
        if result == Err(Status::Stale) {
            self.inode_cache.forget(&file.key());
        }
        result
    }

    /// Begins to time phases of a call of this kind for an export, and for the client whose call is
    /// at work: of a batch of WRITEs, the one that performs it.
    fn timer<'a>(&'a self, root: &'a ExportRoot, kind: CallKind) -> PhaseTimer<'a> {
        PhaseTimer::start(&self.counters, &root.counters, io::Share::current_client, kind)
    }

    /// Runs a blocking operation as `identity`.
    async fn in_metadata_lane<T: Send + 'static>(
        &self,
        identity: Identity,
        job: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.engine
            .metadata(identity, job)
            .await
            .unwrap_or_else(|error| Err(Status::no_identity(&error)))
    }

    /// As [`Self::in_metadata_lane`], for an operation that opens descriptors on a device.
    async fn open_in_metadata_lane<T: Send + 'static>(
        &self,
        device: DeviceNumber,
        identity: &Identity,
        job: impl Fn() -> Result<T, Status> + Send + Sync + 'static,
    ) -> Result<T, Status> {
        let job = Arc::new(job);
        let attempt = || {
            let job = Arc::clone(&job);
            self.in_metadata_lane(identity.clone(), move || job())
        };
        Box::pin(self.with_descriptors(device, attempt)).await
    }

    /// As [`Self::begin_checked`], for a change that takes the right to write the data.
    async fn begin_change(
        &self,
        caller: &Caller,
        object: &Object,
        what: (Changing, Lengths),
    ) -> Result<(Arc<Inode>, Change), Status> {
        let check = |file: Arc<Inode>, now: LiveAttributes| async move {
            let timer = &mut self.timer(file.root(), CallKind::Other);
            self.permit::<Writing>(caller, &file, &now, timer).await.map(drop)
        };
        self.begin_checked(caller, object, what, check).await
    }

    /// The open object behind a handle, and a change of it for a caller that has it to itself and
    /// may give it `lengths`. One that would wait for the return of delegations is checked before:
    /// their holders have nothing to return for a call that is refused.
    ///
    /// # Errors
    /// `ReadOnly`; `Stale` when it is gone; `Delegated`; those of `check`.
    async fn begin_checked<F>(
        &self,
        caller: &Caller,
        object: &Object,
        (what, lengths): (Changing, Lengths),
        check: impl FnOnce(Arc<Inode>, LiveAttributes) -> F,
    ) -> Result<(Arc<Inode>, Change), Status>
    where
        F: Future<Output = Result<(), Status>>,
    {
        caller.may_change()?;
        let file = self.hold(object).await?;
        if !file.admits(caller.client, what) {
            let now = file.lock.attributes(self.live_attributes(&file).await?);
            Box::pin(check(Arc::clone(&file), *now)).await?;
        }
        // First of all: what it locks, others would wait for while it waits for a thread. A client
        // may also get a delegation meanwhile, and a batch that is closed takes no more WRITEs.
        self.engine.ask_for_metadata_thread().await;
        self.wait_for_return(&file, caller, what).await?;
        file.close_write_batch();
        let guard = file.lock.exclusive().await;
        // Under the lock, so that no client gets a delegation meanwhile.
        file.may_change(caller.client, what)?;
        let change = self.begin_exclusive(&file, guard, lengths).await?;
        Ok((file, change))
    }

    /// Begins a change under the exclusive lock. It may give the object `lengths`.
    async fn begin_exclusive(
        &self,
        file: &Arc<Inode>,
        guard: ExclusiveGuard,
        lengths: Lengths,
    ) -> Result<Change, Status> {
        if !file.root().attributes_in_memory {
            // The job that reads them would be behind all work of its client.
            Box::pin(self.engine.move_to_metadata_thread()).await;
        }
        let before = self.live_attributes(file).await?;
        Ok(Change::begin(guard, before, lengths))
    }

    /// Makes the changes of `file` that were noted durable where the export promises that.
    /// `failures` as for [`Self::make_durable`].
    ///
    /// # Errors
    /// As [`Self::make_durable`].
    async fn settle(&self, file: &Arc<Inode>, sync: bool, failures: u64) -> Result<(), Status> {
        if !sync {
            return Ok(());
        }
        self.make_durable(file, Flush::All, failures, CallKind::Other).await
    }

    /// Makes a change of `file` durable by a flush. `failures` counts the file's failed flushes
    /// from before the change.
    ///
    /// # Errors
    /// As [`Inode::flush`]. `Io` also if a flush of another call has failed since: it may have lost
    /// the change, which this flush does not report.
    async fn make_durable(
        &self,
        file: &Arc<Inode>,
        what: Flush,
        failures: u64,
        kind: CallKind,
    ) -> Result<(), Status> {
        self.flush(file, what, kind).await?;
        if file.failures() == failures { Ok(()) } else { Err(Status::Io(Errno::IO)) }
    }

    /// Makes every change of `file` so far durable, for a call of this kind.
    ///
    /// # Errors
    /// As [`Inode::flush`].
    async fn flush(&self, file: &Arc<Inode>, what: Flush, kind: CallKind) -> Result<(), Status> {
        if file.needs_descriptor_for_flush() {
            let opened = Arc::clone(file);
            let open = move || opened.open_for_flush();
            // Without a descriptor the flush is that of the whole file system.
            let device = file.root().device();
            let _room = self.room(&file.key(), device).await;
            if let Err(status) = self.open_in_metadata_lane(device, &Identity::Server, open).await {
                tracing::debug!(?status, "cannot open a file to flush it");
            }
        }
        let mut timer = self.timer(file.root(), kind);
        let flushed = file.flush(&self.engine, what).await;
        timer.end(Phase::Sync);
        // The call's line of the log shows a fault. A full disk or quota is logged here: the server
        // had accepted the data.
        flushed.inspect_err(|status| {
            if !status.is_fault() {
                file.log_loss(*status);
            }
        })
    }
}

/// Checks one path component that a client sent.
///
/// # Errors
/// `NameTooLong`, or `Invalid` for what can be no name: empty, with a slash or a NUL.
fn component(name: &[u8]) -> Result<CString, Status> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Status::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') {
        return Err(Status::Invalid);
    }
    CString::new(name).map_err(|_| Status::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_one_name() {
        assert!(component(b"a").is_ok());
        assert!(component(&[b'a'; 255]).is_ok());
        assert_eq!(component(&[b'a'; 256]), Err(Status::NameTooLong));
        for bad in [&b""[..], b"a/b", b"/", b"a\0b"] {
            assert_eq!(component(bad), Err(Status::Invalid), "{bad:?}");
        }
    }
}
