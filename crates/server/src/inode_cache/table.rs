//! The table of open objects, and which of them make room for others.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use indexmap::IndexMap;
use io::{DeviceNumber, Engine, KernelHandle, Share};
use rustc_hash::FxBuildHasher;
use rustix::fs::FileType;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::busy_devices::BusyDevices;
use super::closings::{Closing, Closings};
use super::descriptor_count::{Counted, DescriptorCount};
use super::state::{InodeState, InodeStates};
use super::sweeps::Sweeps;
use super::{Flush, Inode, InodeKey, RecallRequests};
use crate::export::ExportRoot;
use crate::fs::attributes_of_linked_or_not;

/// Locks that the table is spread over.
pub(super) const SHARDS: usize = 16;
/// Objects of a part of the table, 131,072 in all. Each takes about 900 bytes, and the kernel keeps
/// its inode in memory.
const SHARD_FILES_MAX: usize = 8192;
/// Entries that one search for a victim examines.
pub(super) const VICTIM_SEARCH_MAX: usize = 64;

/// The table of open objects.
pub(crate) struct InodeCache {
    pub(super) shards: [Mutex<Shard>; SHARDS],
    states: Arc<InodeStates>,
    pub(super) shard_files_max: usize,
    pub(super) descriptors: DescriptorCount,
    /// Whether objects are being closed so that there is room for others.
    pub(super) is_closing_ahead: Arc<AtomicBool>,
    began: Instant,
    /// Counts seconds, for what need not be exact: reading it costs nothing.
    pub(super) ticks: AtomicU64,
    pub(super) busy: BusyDevices,
    pub(super) closings: Closings,
    pub(super) sweeps: Sweeps,
    /// Objects that left the table while calls used them, or while their device took no more, or
    /// unflushed: see [`Self::close_left`].
    left: Mutex<Vec<Arc<Inode>>>,
}

#[derive(Default)]
pub(super) struct Shard {
    /// A shard is small, and clients do not choose the handles, so a hash without a key is enough.
    pub(super) files: IndexMap<InodeKey, Arc<Inode>, FxBuildHasher>,
    /// A number without pattern: where the search for the next victim starts.
    draw: u64,
}

impl InodeCache {
    /// A table whose objects have at most `descriptors_max` descriptors; more while each of them is
    /// in use or has unflushed data on a device that may not be waited for.
    pub(crate) fn new(descriptors_max: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            states: InodeStates::new(),
            shard_files_max: SHARD_FILES_MAX,
            descriptors: DescriptorCount::new(descriptors_max),
            is_closing_ahead: Arc::default(),
            began: Instant::now(),
            ticks: AtomicU64::new(0),
            busy: BusyDevices::default(),
            closings: Closings::default(),
            sweeps: Sweeps::default(),
            left: Mutex::default(),
        }
    }

    /// The files whose delegations are to be recalled.
    pub(crate) fn recall_requests(&self) -> &Arc<RecallRequests> {
        &self.states.gates.requests
    }

    /// Objects that are open.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).files.len()).sum()
    }

    /// The object, if it is open.
    pub(crate) fn find(&self, key: &InodeKey) -> Option<Arc<Inode>> {
        let file = self.shard(key).files.get(key).cloned()?;
        self.touch(&file);
        Some(file)
    }

    /// Adds an object known by a descriptor, which may be an `O_PATH` one, or returns the one that
    /// another request added first. The descriptor has its room from [`Self::room`].
    pub(crate) fn add(
        &self,
        root: Arc<ExportRoot>,
        handle: KernelHandle,
        file_type: FileType,
        (base, room): (OwnedFd, Counted),
    ) -> Arc<Inode> {
        self.insert(Inode::new(&self.states, root, handle, file_type, (base, room)))
    }

    fn insert(&self, file: Inode) -> Arc<Inode> {
        let key = file.key();
        file.placed_at_secs.store(self.began.elapsed().as_secs(), Ordering::Relaxed);
        let mut shard = self.shard(&key);
        let file = Arc::clone(shard.files.entry(key).or_insert_with(|| Arc::new(file)));
        drop(shard);
        // Not yet as referenced: an object that is used once makes room before one that is used
        // again.
        self.note_use(&file);
        file
    }

    /// Whether a directory was not yet checked in this second: it may have been moved out of its
    /// export. Returns `true` to one caller only. The clock is the kernel's, not the tick, so that
    /// nothing which delays the tick delays this.
    pub(crate) fn place_is_due(&self, file: &Inode) -> bool {
        if file.file_type != FileType::Directory || file.handle == file.root.handle {
            return false;
        }
        let now = self.began.elapsed().as_secs();
        file.placed_at_secs.swap(now, Ordering::Relaxed) != now
    }

    /// Gives an object up that no client can reach any more. A call that uses it still may be on a
    /// thread that must not wait for the disk, and so does not close it: [`Self::close_left`] does.
    pub(crate) fn forget(&self, key: &InodeKey) {
        let forgotten = self.shard(key).files.swap_remove(key);
        self.lock_left().extend(forgotten);
    }

    /// Takes an object out of the table.
    #[cfg(test)]
    pub(crate) fn take(&self, key: &InodeKey) -> Option<Arc<Inode>> {
        self.shard(key).files.swap_remove(key)
    }

    /// Gives an object up that has lost its last name, unless a client has it open. One that no
    /// call uses comes back, for the caller to close it on a thread that may wait for the disk.
    pub(crate) fn take_unlinked(&self, key: &InodeKey) -> Option<Arc<Inode>> {
        let file = {
            let mut shard = self.shard(key);
            let file = shard.files.get(key)?;
            // Noted first: the last hold may end at this moment, and one of the two sees the other.
            file.note_unlinked();
            if file.is_held() {
                return None;
            }
            shard.files.swap_remove(key)?
        };
        if is_unused(&file) {
            return Some(file);
        }
        self.lock_left().push(file);
        None
    }

    /// Has the objects closed, on threads of their devices, that left the table before and are used
    /// no more: the last close of a file may free its blocks. Those that may have to be flushed are
    /// left for [`Self::flush_left`]. To be called once a second; does not block.
    pub(crate) fn close_left(&self, engine: &Engine) {
        drop(self.close(engine, self.take_left(|inode| !is_unflushed(inode))));
    }

    /// Flushes and closes the objects of a device that left the table unflushed, as a directory
    /// that was moved out of its export. Waits for the disk, on the device's threads.
    pub(super) async fn flush_left(&self, device: DeviceNumber, engine: &Engine) {
        let left = self.take_left(|inode| inode.root.device() == device && is_unflushed(inode));
        for inode in left {
            let named = Arc::clone(&inode);
            if !engine.data(move || has_no_name(named.fd())).await {
                inode.flush_before_leaving(engine).await;
            }
            engine.data(move || drop(inode)).await;
        }
    }

    /// The devices of objects that left the table unflushed.
    pub(super) fn unflushed_devices(&self) -> Vec<DeviceNumber> {
        let left = self.lock_left();
        left.iter().filter(|inode| is_unflushed(inode)).map(|inode| inode.root.device()).collect()
    }

    /// Those of the objects that left the table which are selected and which no call uses.
    pub(super) fn take_left(&self, selects: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        // In this order: a call that ends between the two may have changed what is selected by.
        let leaves = |inode: &mut Arc<Inode>| is_unused(inode) && selects(inode);
        self.lock_left().extract_if(.., leaves).collect()
    }

    /// The descriptors and states of the objects of a device that left the table unflushed. To
    /// have these is not to use the objects.
    pub(super) fn left_unflushed(
        &self,
        device: DeviceNumber,
    ) -> Vec<(Arc<OwnedFd>, Arc<InodeState>)> {
        let left = self.lock_left();
        let of_device = left.iter().filter(|inode| inode.root.device() == device);
        let unflushed = of_device.filter(|inode| is_unflushed(inode));
        unflushed.map(|inode| (Arc::clone(&inode.base), Arc::clone(&inode.state))).collect()
    }

    /// Objects that left the table and are not closed yet, but for those that threads of their
    /// devices have.
    #[cfg(test)]
    pub(super) fn left_len(&self) -> usize {
        self.lock_left().len()
    }

    fn lock_left(&self) -> MutexGuard<'_, Vec<Arc<Inode>>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes objects on data threads of their devices, because the last close of a file may wait
    /// for the disk. The senders of the results are dropped when those of a device are closed, or
    /// are left for later.
    pub(super) fn close(
        &self,
        engine: &Engine,
        leaving: Vec<Arc<Inode>>,
    ) -> HashMap<DeviceNumber, oneshot::Receiver<()>> {
        by_device(leaving)
            .into_iter()
            .map(|(device, leaving)| {
                let (at_work, closed) = oneshot::channel::<()>();
                self.leave_to_device(engine, device, leaving, at_work);
                (device, closed)
            })
            .collect()
    }

    /// Has objects of a device closed on one of its data threads, and then drops `at_work`. Those
    /// that a device does not take, because it does not answer, are left for [`Self::close_left`]:
    /// this thread may be one that must not wait for it.
    pub(super) fn leave_to_device(
        &self,
        engine: &Engine,
        device: DeviceNumber,
        leaving: Vec<Arc<Inode>>,
        at_work: impl Send + 'static,
    ) {
        let count = self.closings.of(device);
        for file in &leaving {
            file.closing.get_or_init(|| Closing::new(&count));
        }
        let _entered = Share::new(&engine.device(device), 0).enter();
        if let Err((leaving, _)) = engine.give_to_data((leaving, at_work), drop) {
            self.lock_left().extend(leaving);
        }
    }

    /// As [`Self::close`]. Waits for those on `device`.
    async fn close_and_wait(
        &self,
        engine: &Engine,
        leaving: Vec<Arc<Inode>>,
        device: DeviceNumber,
    ) {
        if let Some(closed) = self.close(engine, leaving).remove(&device) {
            // Nothing is ever sent.
            let _ = closed.await;
        }
    }

    /// Gives up a part of all objects, after the kernel has run out of descriptors for one on
    /// `device`. Waits for the flushes and closes of those on the same device only: what is on
    /// others is left to their threads, or stays where it has unflushed data.
    pub(crate) async fn shrink(&self, device: DeviceNumber, engine: &Engine) {
        let full = self.closings.full();
        let mut flushes = true;
        for shard in &self.shards {
            let mut leaving = Vec::new();
            for _ in 0..VICTIM_SEARCH_MAX {
                let victim = lock(shard).victim(Some(device), flushes, &full);
                match victim {
                    Victim::Removed(file) => leaving.push(file),
                    Victim::Dirty(file) => flushes = self.flush_victim(&file, engine).await,
                    Victim::None => break,
                }
            }
            self.close_and_wait(engine, leaving, device).await;
        }
        self.flush_left(device, engine).await;
        let left = self.take_left(|inode| !is_unflushed(inode));
        self.close_and_wait(engine, left, device).await;
    }

    /// Flushes an object that is to make room; returns whether it has succeeded. After a failure a
    /// search flushes nothing more: the disk would most likely refuse that too, and with each
    /// failure clients send their data again. The object counts as used, so that the next search
    /// prefers others.
    pub(super) async fn flush_victim(&self, file: &Arc<Inode>, engine: &Engine) -> bool {
        let is_flushed = file.flush_before_leaving(engine).await;
        if !is_flushed {
            self.touch(file);
        }
        is_flushed
    }

    /// Gives up a part of the objects that need no flush, on whatever device, and leaves closing
    /// them to the threads of their devices. Waits for nothing.
    pub(crate) fn shrink_clean(&self, engine: &Engine) {
        let full = self.closings.full();
        for shard in &self.shards {
            let victim = || match lock(shard).victim(None, false, &full) {
                Victim::Removed(file) => Some(file),
                Victim::Dirty(_) | Victim::None => None,
            };
            let leaving = std::iter::from_fn(victim).take(VICTIM_SEARCH_MAX).collect();
            drop(self.close(engine, leaving));
        }
    }

    /// Flushes everything, at the end of the server, whatever fails. No device waits for another.
    ///
    /// # Panics
    /// With a flush that panics.
    pub(crate) async fn flush_all(&self, engine: &Arc<Engine>) {
        let mut dirty = Vec::new();
        for shard in &self.shards {
            dirty.extend(lock(shard).files.values().filter(|file| file.is_dirty()).cloned());
        }
        dirty.extend(self.lock_left().iter().filter(|inode| is_unflushed(inode)).cloned());
        let mut devices = JoinSet::new();
        for (device, files) in by_device(dirty) {
            let engine = Arc::clone(engine);
            let share = Share::new(&engine.device(device), 0);
            let flush = async move {
                for file in files {
                    if let Err(status) = file.flush(&engine, Flush::All).await {
                        file.log_loss(status);
                    }
                }
            };
            devices.spawn(share.run(Box::pin(flush)));
        }
        devices.join_all().await;
    }

    /// Flushes that have failed so far.
    pub(crate) fn failed_flushes(&self) -> u64 {
        self.states.failures.load(Ordering::SeqCst)
    }

    /// Closes everything that no call uses, at the end of the server: what it holds of the server
    /// may outlive it for a moment, and deleted files are not to wait for that. May block.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let inodes = std::mem::take(&mut lock(shard).files);
            drop(inodes);
        }
        let left = std::mem::take(&mut *self.lock_left());
        drop(left);
    }

    fn touch(&self, file: &Inode) {
        file.referenced.store(true, Ordering::Relaxed);
        self.note_use(file);
    }

    pub(super) fn note_use(&self, file: &Inode) {
        file.used_at_tick.store(self.ticks.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn shard(&self, key: &InodeKey) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard_of(key)])
    }
}

/// The part of the table that an object belongs to.
pub(super) fn shard_of(key: &InodeKey) -> usize {
    use std::hash::BuildHasher;
    // Bits that the tables of the shards do not begin with.
    let hash = FxBuildHasher.hash_one(key) >> 32;
    usize::try_from(hash % SHARDS as u64).expect("below 16")
}

pub(super) enum Victim {
    Removed(Arc<Inode>),
    Dirty(Arc<Inode>),
    None,
}

impl Shard {
    /// An object that was not used since a search last passed it. Each search starts at another
    /// place: of objects that are used in turn, and are a few too many, most are then found, where
    /// giving up the oldest would leave none of them. Dirty ones are only named, for their flush
    /// must come first, and only those of `device`, the caller's own, while it `flushes`. Of the
    /// other devices, none that is in `full`: see [`Closings`].
    pub(super) fn victim(
        &mut self,
        device: Option<DeviceNumber>,
        flushes: bool,
        full: &[DeviceNumber],
    ) -> Victim {
        let mut dirty = None;
        let mut hand = self.draw();
        for _ in 0..VICTIM_SEARCH_MAX.max(self.files.len() * 2).min(4 * VICTIM_SEARCH_MAX) {
            if self.files.is_empty() {
                return Victim::None;
            }
            hand %= self.files.len();
            let file = &self.files[hand];
            let of = file.root.device();
            let stays = device != Some(of) && full.contains(&of);
            if stays || file.referenced.swap(false, Ordering::Relaxed) || !is_unused(file) {
                hand += 1;
            } else if file.is_dirty() {
                if flushes && device == Some(of) {
                    dirty.get_or_insert_with(|| Arc::clone(file));
                }
                hand += 1;
            } else {
                let (_, file) = self.files.swap_remove_index(hand).expect("in bounds");
                return Victim::Removed(file);
            }
        }
        dirty.map_or(Victim::None, Victim::Dirty)
    }

    fn draw(&mut self) -> usize {
        // Knuth's MMIX generator; the upper half is without pattern.
        self.draw = self.draw.wrapping_mul(6_364_136_223_846_793_005);
        self.draw = self.draw.wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.draw >> 33).expect("31 bits fit")
    }
}

pub(super) fn by_device(files: Vec<Arc<Inode>>) -> HashMap<DeviceNumber, Vec<Arc<Inode>>> {
    let mut by_device: HashMap<_, Vec<_>> = HashMap::new();
    for file in files {
        by_device.entry(file.root.device()).or_default().push(file);
    }
    by_device
}

/// Whether an object has changes that no flush has covered, and may have a name. One that has lost
/// its last name is reached by no client again.
pub(super) fn is_unflushed(inode: &Inode) -> bool {
    inode.is_dirty() && !inode.is_over()
}

pub(super) fn has_no_name(fd: BorrowedFd<'_>) -> bool {
    attributes_of_linked_or_not(fd).is_ok_and(|now| now.nlink == 0)
}

/// Whether no call uses an object. Under the lock of the shard or of the list that it is in, or in
/// neither, no new reference can be taken, so an unused one stays unused.
pub(super) fn is_unused(inode: &Arc<Inode>) -> bool {
    let is_unused = Arc::strong_count(inode) == 1;
    // The count is read without any order. What the last call has changed is seen from here on.
    fence(Ordering::Acquire);
    is_unused
}

pub(super) fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use io::LaneKind;

    use super::super::two_devices::{TestExport, engine};
    use super::*;

    #[tokio::test]
    async fn shrinking_waits_for_its_own_device_only() {
        let (cache, engine) = (InodeCache::new(1000), engine(1));
        let Some([slow, quick]) = TestExport::on_two_devices(&cache) else { return };
        for key in [&slow.file, &quick.file] {
            cache.find(key).unwrap().note_change();
        }
        // A flush of the file waits for this one, as on a disk that does not answer; and so does a
        // close for the only thread of the device.
        let state = Arc::clone(&cache.find(&slow.file).unwrap().state);
        let stuck = state.flushed.lock().await;
        let released = slow.block_data_thread(&engine);
        let shrunk = cache.shrink(quick.device(), &engine);
        tokio::time::timeout(Duration::from_secs(20), shrunk).await.expect("it does not hang");
        assert!(cache.find(&quick.file).is_none());
        assert!(cache.find(&quick.directory).is_none());
        assert!(cache.find(&slow.directory).is_none(), "its device's thread will close it");
        assert!(cache.find(&slow.file).is_some_and(|file| file.is_dirty()));
        drop((stuck, released));
    }

    #[tokio::test]
    async fn objects_that_a_stalled_device_does_not_take_are_not_closed_on_the_callers_thread() {
        let (cache, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&cache, 1, &std::env::temp_dir());
        let share = Share::new(&engine.device(export.device()), 0);
        let (begins, begun) = std::sync::mpsc::channel();
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let stall = move || {
            begins.send(()).unwrap();
            assert!(blocked.recv().is_err());
        };
        assert!(share.leave_to(LaneKind::Data, stall));
        begun.recv().unwrap();
        while share.leave_to(LaneKind::Data, || ()) {}

        let base = Arc::downgrade(&cache.find(&export.file).unwrap().base);
        cache.shrink_clean(&engine);
        assert_eq!((cache.len(), cache.left_len()), (0, 2));
        cache.close_left(&engine);
        assert_eq!((base.strong_count(), cache.left_len()), (1, 2), "closed as soon as it answers");
        drop(release);
        let began = Instant::now();
        while base.strong_count() > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "it is never closed");
            cache.close_left(&engine);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn objects_that_left_the_table_unflushed_are_flushed_unless_they_are_deleted() {
        let (cache, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&cache, 1, &std::env::temp_dir());
        let leave = |key: &InodeKey| {
            let inode = cache.find(key).unwrap();
            inode.note_change();
            cache.forget(key);
            Arc::clone(&inode.state)
        };
        let (moved, deleted) = (leave(&export.directory), leave(&export.file));
        export.remove_file();
        cache.close_left(&engine);
        assert_eq!(cache.left_len(), 2, "this thread must not wait for the disk");
        for idle in cache.tick() {
            cache.give_up(idle, &engine, |_| false).await;
        }
        assert_eq!(cache.left_len(), 0);
        assert!(!moved.is_dirty());
        assert!(deleted.is_dirty());
        let closed = [moved, deleted].map(|state| Arc::strong_count(&state));
        assert_eq!(closed, [1, 1]);
    }

    #[test]
    fn an_object_that_a_call_changes_and_gives_up_meanwhile_is_not_taken_as_clean() {
        let cache = InodeCache::new(1000);
        let export = TestExport::in_directory(&cache, 1, &std::env::temp_dir());
        let user = Cell::new(cache.find(&export.directory));
        cache.forget(&export.directory);
        let is_clean = |inode: &Inode| {
            let is_clean = !inode.is_dirty();
            if let Some(user) = user.take() {
                user.note_change();
            }
            is_clean
        };
        assert!(cache.take_left(is_clean).is_empty());
        assert_eq!(cache.left_len(), 1);
    }

    #[tokio::test]
    async fn objects_that_left_the_table_are_flushed_at_the_end_of_the_server() {
        let (cache, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&cache, 1, &std::env::temp_dir());
        let used = cache.find(&export.directory).unwrap();
        used.note_change();
        cache.forget(&export.directory);
        cache.flush_all(&engine).await;
        assert!(!used.is_dirty());
    }

    #[tokio::test]
    async fn a_stalled_disk_does_not_keep_others_from_being_flushed() {
        let (cache, engine) = (Arc::new(InodeCache::new(1000)), engine(1));
        let Some([slow, quick]) = TestExport::on_two_devices(&cache) else { return };
        for key in [&slow.file, &slow.directory, &quick.file, &quick.directory] {
            cache.find(key).unwrap().note_change();
        }
        let states =
            [&slow.file, &slow.directory].map(|key| Arc::clone(&cache.find(key).unwrap().state));
        let stuck = [states[0].flushed.lock().await, states[1].flushed.lock().await];
        let flushing = tokio::spawn({
            let (cache, engine) = (Arc::clone(&cache), Arc::clone(&engine));
            async move { cache.flush_all(&engine).await }
        });
        let is_dirty = |key| cache.find(key).unwrap().is_dirty();
        let began = Instant::now();
        while is_dirty(&quick.file) || is_dirty(&quick.directory) {
            assert!(began.elapsed() < Duration::from_secs(20), "it waits for the other device");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!flushing.is_finished());
        drop(stuck);
        flushing.await.unwrap();
        assert!(!is_dirty(&slow.file) && !is_dirty(&slow.directory));
    }
}
