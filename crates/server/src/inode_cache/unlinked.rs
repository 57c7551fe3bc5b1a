//! Giving back the blocks of objects that a local process has deleted.
//!
//! A descriptor of the cache keeps a deleted file and its blocks, and the kernel reports nothing of
//! the deletion to the holder. So the link counts of objects that no call uses are read once a
//! second, and before a call fails for want of space, on file systems that answer from memory.
//! Elsewhere such a file keeps its blocks until it is idle.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use io::{DeviceNumber, Engine, Identity, Share};
use tokio::sync::OwnedMutexGuard;

use super::sweeps::LastSweeps;
use super::table::{has_no_name, is_unflushed, is_unused, lock};
use super::{Inode, InodeCache, InodeKey};

/// Objects of a shard whose link count is read in one sweep: 16,384 of the whole table, which takes
/// a thread about 10 ms. Larger tables take turns.
const SHARD_INODES_MAX: usize = 1024;

/// For so long after a sweep of a device that has closed something, calls that lack space may
/// succeed; and after one for want of space that has closed nothing, there is no other.
const SPACE_SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// Unused objects of one device.
pub(crate) struct UnusedInodes {
    device: DeviceNumber,
    inodes: Candidates,
    sweep: OwnedMutexGuard<LastSweeps>,
}

/// Objects that no call used when they were listed, and their descriptors.
type Candidates = Vec<(InodeKey, Arc<OwnedFd>)>;

impl InodeCache {
    /// Objects of each device that no call uses, unless a sweep of the device is under way. To be
    /// called once a second; does not block.
    #[must_use]
    pub(crate) fn unused(&self) -> Vec<UnusedInodes> {
        let begun = |(device, inodes)| {
            let sweep = self.sweeps.of(device).try_lock_owned().ok()?;
            Some(UnusedInodes { device, inodes, sweep })
        };
        self.candidates(|_| true).into_iter().filter_map(begun).collect()
    }

    /// Closes those of the objects that have lost their last name, unless a call uses them now. No
    /// client can reach them, so what is not flushed of them is not flushed any more. Waits for the
    /// disk, on the device's threads.
    pub(crate) async fn give_up_unlinked(&self, unused: UnusedInodes, engine: &Engine) {
        let UnusedInodes { device, inodes, mut sweep } = unused;
        let share = Share::new(&engine.device(device), 0);
        if share.run(self.close_unlinked(inodes, device, engine)).await {
            sweep.closed_at = Some(Instant::now());
        }
    }

    /// The same for a device on which an attempt has failed for want of space. Calls that fail
    /// meanwhile wait for it. Returns whether there may be enough now: something was closed `since`
    /// then, or shortly before.
    pub(crate) async fn free_space(
        &self,
        device: DeviceNumber,
        since: Instant,
        engine: &Engine,
    ) -> bool {
        let asked_at = Instant::now();
        let is_within = |last: Option<Instant>, before: Instant| {
            last.is_some_and(|at| at + SPACE_SWEEP_INTERVAL > before)
        };
        let mut sweep = self.sweeps.of(device).lock_owned().await;
        if sweep.closed_at.is_some_and(|at| at >= asked_at) {
            return true;
        }
        if !is_within(sweep.futile_at, asked_at) {
            let candidates = self.candidates(|of| of == device).remove(&device).unwrap_or_default();
            if self.close_unlinked(candidates, device, engine).await {
                sweep.closed_at = Some(Instant::now());
            } else if !is_within(sweep.closed_at, asked_at) {
                sweep.futile_at = Some(Instant::now());
            }
        }
        is_within(sweep.closed_at, since)
    }

    /// Objects of the selected devices that no call uses.
    fn candidates(
        &self,
        selects: impl Fn(DeviceNumber) -> bool,
    ) -> HashMap<DeviceNumber, Candidates> {
        let turn = usize::try_from(self.ticks.load(Ordering::Relaxed)).unwrap_or(0);
        let mut candidates: HashMap<_, Candidates> = HashMap::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let len = shard.files.len();
            let first = if len > SHARD_INODES_MAX { turn * SHARD_INODES_MAX % len } else { 0 };
            for step in 0..len.min(SHARD_INODES_MAX) {
                let inode = &shard.files[(first + step) % len];
                let device = inode.root.device();
                if selects(device) && inode.root.attributes_in_memory && is_unused(inode) {
                    let of_device = candidates.entry(device).or_default();
                    of_device.push((inode.key(), Arc::clone(&inode.base)));
                }
            }
        }
        candidates
    }

    /// Closes those that have lost their last name, and those of the device that left the table
    /// while they were in use and need no flush. Returns whether there were any.
    async fn close_unlinked(
        &self,
        candidates: Candidates,
        device: DeviceNumber,
        engine: &Engine,
    ) -> bool {
        // These stay where `flush_all` finds them, unless they turn out to have no name.
        let unflushed = self.left_unflushed(device);
        let unlinked = engine.data(move || {
            for (fd, state) in unflushed {
                if has_no_name(fd.as_fd()) {
                    state.note_unlinked();
                }
            }
            let unlinked = candidates.into_iter().filter(|(_, fd)| has_no_name(fd.as_fd()));
            unlinked.map(|(key, _)| key).collect::<Vec<_>>()
        });
        let unlinked = unlinked.await;
        let leaving: Vec<_> = unlinked.iter().filter_map(|key| self.leave(key, device)).collect();
        let left = self.take_left(|inode| inode.root.device() == device && !is_unflushed(inode));
        if leaving.is_empty() && left.is_empty() {
            return false;
        }
        // The last close of a file frees its blocks, which may wait for the disk.
        let close = move || {
            // One at a time, for several exports may have had it open. What another one still uses
            // stays in the window, and what was left may have a name.
            for inode in leaving.into_iter().chain(left) {
                if inode.has_state_alone() && has_no_name(inode.fd()) {
                    inode.release();
                }
            }
        };
        engine.data(close).await;
        let mut closing = self.sweeps.closing();
        for key in &unlinked {
            closing.remove(key);
        }
        true
    }

    /// Takes an object of a device out of the table, unless a call uses it. It counts as being
    /// closed.
    fn leave(&self, key: &InodeKey, device: DeviceNumber) -> Option<Arc<Inode>> {
        let mut shard = self.shard(key);
        shard.files.get(key).filter(|inode| is_unused(inode))?;
        // Under the lock: it is found in one of the two places.
        self.sweeps.closing().insert(*key, device);
        shard.files.swap_remove(key)
    }

    /// Closes an object that has lost its last name, so that its blocks are free when this returns.
    /// Calls in progress keep it until they end, and opens until they are closed.
    pub(crate) async fn close_removed(&self, key: &InodeKey, engine: &Engine) {
        let Some(inode) = self.take_unlinked(key) else {
            let swept = self.sweeps.closing().get(key).copied();
            if let Some(device) = swept {
                self.sweeps.ended(device).await;
            }
            return;
        };
        let (device, base) = (inode.root.device(), Arc::downgrade(&inode.base));
        if inode.is_in_window() {
            engine.data(move || inode.release()).await;
        } else {
            // The server's own identity is there in any case.
            let _ = engine.metadata(Identity::Server, move || drop(inode)).await;
        }
        // A sweep has listed it, and has its descriptor.
        if base.strong_count() > 0 {
            self.sweeps.ended(device).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;

    use io::EngineConfig;
    use rustix::fs::{CWD, Mode, openat};

    use super::super::state::InodeState;
    use super::*;
    use crate::export::{ExportRoot, FileSystems};
    use crate::fs::{PATH_ONLY, attributes_of};
    use crate::skip::skip;

    fn open(cache: &InodeCache, root: &Arc<ExportRoot>, path: &Path) -> InodeKey {
        let fd = openat(CWD, path, PATH_ONLY, Mode::empty()).unwrap();
        let handle = root.identify(fd.as_fd()).unwrap();
        let file_type = attributes_of(&fd).unwrap().file_type;
        let room = cache.any_room();
        cache.add(Arc::clone(root), handle, file_type, (fd, room)).key()
    }

    /// Three files of an export, the last of which a call uses, and the last two of which are
    /// deleted.
    struct Deleted {
        _dir: tempfile::TempDir,
        root: Arc<ExportRoot>,
        cache: InodeCache,
        engine: Arc<Engine>,
        keys: [InodeKey; 3],
        user: Arc<Inode>,
    }

    impl Deleted {
        fn new() -> Option<Self> {
            let memory = Path::new("/dev/shm");
            if !memory.exists() {
                skip("no /dev/shm");
                return None;
            }
            let dir = tempfile::tempdir_in(memory).unwrap();
            let root = ExportRoot::open_path(
                1,
                dir.path(),
                &FileSystems::default(),
                std::sync::Arc::default(),
            )
            .unwrap();
            let root = Arc::new(root);
            let config = EngineConfig { data_threads: 1, metadata_threads: 1, queue_max: 16 };
            let (cache, engine) = (InodeCache::new(1000), Arc::new(Engine::new(config).unwrap()));
            let names = ["kept", "deleted", "used"];
            let keys = names.map(|name| {
                let path = dir.path().join(name);
                std::fs::write(&path, vec![1; 1 << 20]).unwrap();
                open(&cache, &root, &path)
            });
            let user = cache.find(&keys[2]).unwrap();
            for name in &names[1..] {
                std::fs::remove_file(dir.path().join(name)).unwrap();
            }
            Some(Self { _dir: dir, root, cache, engine, keys, user })
        }

        /// Which of the files are open.
        fn found(&self) -> [bool; 3] {
            self.keys.each_ref().map(|key| self.cache.find(key).is_some())
        }

        /// Takes a file with changes out of the table.
        fn leave_unflushed(&self, key: &InodeKey) -> Arc<InodeState> {
            let inode = self.cache.find(key).unwrap();
            inode.note_change();
            self.cache.forget(key);
            Arc::clone(&inode.state)
        }

        /// Occupies the thread on which sweeps work until the sender is dropped.
        fn block_data_thread(&self) -> mpsc::Sender<()> {
            let (release, blocked) = mpsc::channel();
            assert!(self.engine.leave_to_data(move || assert!(blocked.recv().is_err())));
            release
        }

        async fn free_space(&self) -> bool {
            self.cache.free_space(self.root.device(), Instant::now(), &self.engine).await
        }
    }

    #[tokio::test]
    async fn deleted_files_leave_unless_they_are_used() {
        let Some(files) = Deleted::new() else { return };
        for unused in files.cache.unused() {
            files.cache.give_up_unlinked(unused, &files.engine).await;
        }
        assert_eq!(files.found(), [true, false, true]);
        assert!(files.cache.sweeps.closing().is_empty());
    }

    #[test]
    fn a_deleted_file_that_is_used_is_closed_when_it_is_not() {
        let Some(files) = Deleted::new() else { return };
        let Deleted { cache, keys, user, .. } = files;
        assert!(cache.take_unlinked(&keys[1]).is_some());
        assert!(cache.take_unlinked(&keys[2]).is_none(), "its user would close it");
        assert!(keys[1..].iter().all(|key| cache.find(key).is_none()), "no call finds them");
        assert!(cache.take_left(|_| true).is_empty());
        let left = Arc::downgrade(&user);
        drop(user);
        assert!(left.upgrade().is_some(), "it was not closed by its user");
        assert_eq!(cache.take_left(|_| true).len(), 1);
        assert!(left.upgrade().is_none());
    }

    #[tokio::test]
    async fn a_call_that_removes_a_file_waits_for_a_sweep_that_has_it() {
        for is_taken in [false, true] {
            let Some(files) = Deleted::new() else { return };
            let (key, device) = (&files.keys[1], files.root.device());
            let base = Arc::downgrade(&files.cache.find(key).unwrap().base);
            let sweep = files.cache.unused().pop().unwrap();
            let taken = if is_taken { files.cache.leave(key, device) } else { None };
            assert_eq!(taken.is_some(), is_taken);
            let mut removing = std::pin::pin!(files.cache.close_removed(key, &files.engine));
            let wait = Duration::from_millis(10);
            assert!(tokio::time::timeout(wait, removing.as_mut()).await.is_err(), "{is_taken}");
            drop(taken);
            files.cache.give_up_unlinked(sweep, &files.engine).await;
            removing.await;
            assert_eq!(base.strong_count(), 0);
        }
    }

    #[tokio::test]
    async fn a_call_that_lacks_space_closes_deleted_files() {
        let Some(files) = Deleted::new() else { return };
        assert!(files.free_space().await);
        assert_eq!(files.found(), [true, false, true]);
    }

    #[tokio::test]
    async fn a_call_that_lacks_space_closes_deleted_files_that_left_the_table_unflushed() {
        let Some(files) = Deleted::new() else { return };
        let base = Arc::downgrade(&files.cache.find(&files.keys[1]).unwrap().base);
        files.leave_unflushed(&files.keys[1]);
        assert!(files.free_space().await);
        assert_eq!((base.strong_count(), files.cache.left_len()), (0, 0));
    }

    #[tokio::test]
    async fn a_sweep_uses_no_object_that_left_the_table_unflushed() {
        let Some(files) = Deleted::new() else { return };
        files.leave_unflushed(&files.keys[0]);
        let mut sweep = std::pin::pin!(files.free_space());
        // It waits for a thread, to look for names.
        let look = files.block_data_thread();
        let wait = Duration::from_millis(50);
        assert!(tokio::time::timeout(wait, sweep.as_mut()).await.is_err());
        assert_eq!(files.cache.take_left(|_| true).len(), 1);
        drop(look);
        assert!(sweep.await);
    }

    #[tokio::test]
    async fn a_sweep_at_the_end_of_the_server_keeps_no_object_from_being_flushed() {
        let Some(files) = Deleted::new() else { return };
        let state = files.leave_unflushed(&files.keys[0]);
        let mut sweep = std::pin::pin!(files.free_space());
        let wait = Duration::from_millis(50);
        // It waits for a thread, first to look for names and then to close.
        let look = files.block_data_thread();
        assert!(tokio::time::timeout(wait, sweep.as_mut()).await.is_err());
        let close = files.block_data_thread();
        drop(look);
        assert!(tokio::time::timeout(wait, sweep.as_mut()).await.is_err());
        files.cache.flush_all(&files.engine).await;
        drop(close);
        assert!(sweep.await);
        assert!(!state.is_dirty());
    }

    #[tokio::test]
    async fn calls_that_lack_space_wait_for_one_sweep() {
        let Some(files) = Deleted::new() else { return };
        let sweep = files.cache.unused().pop().unwrap();
        let mut lacking = std::pin::pin!(files.free_space());
        let wait = Duration::from_millis(10);
        assert!(tokio::time::timeout(wait, lacking.as_mut()).await.is_err());
        files.cache.give_up_unlinked(sweep, &files.engine).await;
        assert!(lacking.await, "the sweep has closed a file");
    }

    #[tokio::test]
    async fn an_attempt_before_the_last_sweep_may_have_space_however_late_it_asks() {
        let Some(files) = Deleted::new() else { return };
        let begun_at = Instant::now();
        assert!(files.free_space().await);
        let later = Instant::now() + SPACE_SWEEP_INTERVAL;
        std::thread::sleep(2 * SPACE_SWEEP_INTERVAL);
        let free = |since| files.cache.free_space(files.root.device(), since, &files.engine);
        assert!(free(begun_at).await);
        assert!(!free(later).await, "nothing was closed since");
    }

    #[tokio::test]
    async fn a_device_without_deleted_files_is_full() {
        let Some(files) = Deleted::new() else { return };
        files.cache.forget(&files.keys[1]);
        assert_eq!(files.cache.take_left(|_| true).len(), 1);
        assert!(!files.free_space().await, "the other one is used");
        assert_eq!(files.found(), [true, false, true]);
    }
}
