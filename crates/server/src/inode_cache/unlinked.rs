//! Giving back the blocks of objects that a local process has deleted.
//!
//! A descriptor of the cache keeps a deleted file and its blocks, and the kernel reports nothing of
//! the deletion to the holder. So the link counts of objects that no call uses are read once a second,
//! on file systems that answer from memory. Elsewhere such a file keeps its blocks until it is idle.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use io::Engine;

use super::busy_devices::{Claim, Device};
use super::table::lock;
use super::{Inode, InodeCache, InodeKey};
use crate::fs::attributes_of_linked_or_not;

/// Objects of a shard whose link count is read in one second: 16,384 of the whole table, which takes
/// a thread about 10 ms. Larger tables take turns.
const SHARD_INODES_MAX: usize = 1024;

/// Unused objects of one device. There is one list per device at a time.
pub(crate) struct UnusedInodes {
    inodes: Vec<(InodeKey, Arc<OwnedFd>)>,
    claim: Claim,
}

impl InodeCache {
    /// Objects of each device that no call uses. To be called once a second; does not block.
    #[must_use]
    pub(crate) fn unused(&self) -> Vec<UnusedInodes> {
        let turn = usize::try_from(self.ticks.load(Ordering::Relaxed)).unwrap_or(0);
        let mut unused: HashMap<Device, Vec<(InodeKey, Arc<OwnedFd>)>> = HashMap::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let len = shard.files.len();
            let first = if len > SHARD_INODES_MAX { turn * SHARD_INODES_MAX % len } else { 0 };
            for step in 0..len.min(SHARD_INODES_MAX) {
                let inode = &shard.files[(first + step) % len];
                if inode.root.attributes_in_memory && is_unused(inode) {
                    let of_device = unused.entry(inode.root.device()).or_default();
                    of_device.push((inode.key(), Arc::clone(&inode.base)));
                }
            }
        }
        let claimed =
            |(device, inodes)| Some(UnusedInodes { inodes, claim: self.sweeping.claim(device)? });
        unused.into_iter().filter_map(claimed).collect()
    }

    /// Closes those of the objects that have lost their last name, unless a call uses them now. No
    /// client can reach them, so what is not flushed of them is not flushed any more.
    pub(crate) async fn give_up_unlinked(&self, unused: UnusedInodes, engine: &Engine) {
        let UnusedInodes { inodes, claim } = unused;
        let unlinked = engine.data(move || {
            let is_unlinked =
                |fd: &OwnedFd| attributes_of_linked_or_not(fd).is_ok_and(|now| now.nlink == 0);
            let unlinked = inodes.into_iter().filter(|(_, fd)| is_unlinked(fd));
            unlinked.map(|(key, _)| key).collect::<Vec<_>>()
        });
        let leave = |key: &InodeKey| {
            let mut shard = self.shard(key);
            let leaves = shard.files.get(key).is_some_and(is_unused);
            if leaves { shard.files.swap_remove(key) } else { None }
        };
        let leaving: Vec<Arc<Inode>> = unlinked.await.iter().filter_map(leave).collect();
        if !leaving.is_empty() {
            // The last close of a file frees its blocks, which may wait for the disk.
            engine.data(move || leaving.iter().for_each(|inode| inode.release())).await;
        }
        drop(claim);
    }
}

/// Whether no call uses an object. Under the shard's lock no new reference can be taken, so an
/// unused one stays unused.
fn is_unused(inode: &Arc<Inode>) -> bool {
    Arc::strong_count(inode) == 1
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use io::EngineConfig;
    use rustix::fs::{CWD, Mode, openat};

    use super::*;
    use crate::export::{ExportRoot, FileSystems};
    use crate::fs::{PATH_ONLY, attributes_of};

    fn open(cache: &InodeCache, root: &Arc<ExportRoot>, path: &Path) -> InodeKey {
        let fd = openat(CWD, path, PATH_ONLY, Mode::empty()).unwrap();
        let handle = root.identify(fd.as_fd()).unwrap();
        let file_type = attributes_of(&fd).unwrap().file_type;
        cache.add(Arc::clone(root), handle, file_type, fd).key()
    }

    #[tokio::test]
    async fn deleted_files_leave_unless_they_are_used() {
        let memory = Path::new("/dev/shm");
        if !memory.exists() {
            return eprintln!("skipped: no /dev/shm");
        }
        let dir = tempfile::tempdir_in(memory).unwrap();
        let root = ExportRoot::open_path(1, dir.path(), &FileSystems::default()).unwrap();
        let root = Arc::new(root);
        let config = EngineConfig { data_threads: 1, metadata_threads: 1, queue_max: 16 };
        let (cache, engine) = (InodeCache::new(1000), Engine::new(config));
        let [kept, deleted, used] = ["kept", "deleted", "used"].map(|name| {
            let path = dir.path().join(name);
            std::fs::write(&path, vec![1; 1 << 20]).unwrap();
            open(&cache, &root, &path)
        });
        let user = cache.find(&used).unwrap();
        for name in ["deleted", "used"] {
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        let sweep = async || {
            for unused in cache.unused() {
                cache.give_up_unlinked(unused, &engine).await;
            }
        };
        sweep().await;
        assert!(cache.find(&kept).is_some());
        assert!(cache.find(&deleted).is_none());
        assert!(cache.find(&used).is_some(), "a call uses it");
        drop(user);
        sweep().await;
        assert!(cache.find(&used).is_none());
    }
}
