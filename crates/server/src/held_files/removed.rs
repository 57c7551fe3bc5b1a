//! The space of files that have lost their last name while clients have them open.

use std::cmp::Reverse;
use std::sync::Arc;

use rustix::fs::{StatVfs, fstatvfs};

use super::{Held, HeldFiles};
use crate::fs::attributes_of_linked_or_not;
use crate::inode_cache::Inode;
use crate::state::FileId;
use crate::vfs::SpaceWanted;

/// Removed files whose last close frees space for a call.
#[derive(Default)]
pub(crate) struct Removed {
    /// The biggest first.
    pub(crate) files: Vec<RemovedFile>,
    /// The bytes that the call lacks.
    pub(crate) lacking: u64,
}

/// A removed file.
pub(crate) struct RemovedFile {
    /// One of each export that it is open in; at least one.
    pub(crate) inodes: Vec<Arc<Inode>>,
    /// The bytes of its blocks. Those that it shares with other files count, too.
    pub(crate) bytes: u64,
}

impl HeldFiles {
    /// Those of the files that have no name, and whose last close frees space for a call; none if
    /// the file system is not short of it. Each file comes with the number of its opens and
    /// delegations in `state`: one with more is being opened. May block.
    ///
    /// Files that local programs have open, too, are among them: the kernel does not report these.
    pub(crate) fn removed(&self, files: &[(FileId, usize)], wanted: &SpaceWanted) -> Removed {
        let on_device = self.on_device(files, wanted);
        let Some(first) = on_device.first() else { return Removed::default() };
        let space = fstatvfs(first[0].fd());
        let lacking = space.ok().and_then(|space| lacking(&space, wanted.bytes_min));
        let Some(lacking) = lacking else { return Removed::default() };
        let files = on_device.into_iter().filter_map(|inodes| {
            let live = attributes_of_linked_or_not(inodes[0].fd()).ok()?;
            let frees = live.nlink == 0 && live.used > 0;
            frees.then_some(RemovedFile { inodes, bytes: live.used })
        });
        let mut files: Vec<_> = files.collect();
        files.sort_by_key(|file| Reverse(file.bytes));
        Removed { files, lacking }
    }

    /// The inodes of those of the files that are on the device and that no call is about, by files.
    fn on_device(&self, files: &[(FileId, usize)], wanted: &SpaceWanted) -> Vec<Vec<Arc<Inode>>> {
        let table = self.lock();
        let is_candidate = |held: &Held, holders| {
            let pins: usize = held.inodes.iter().map(|(_, pins)| pins).sum();
            pins == holders
                && held.inodes[0].0.root().device() == wanted.device
                && held.inodes.iter().all(|(inode, _)| inode.key() != wanted.object)
        };
        let candidates = files.iter().filter_map(|(file, holders)| {
            table.files.get(file).filter(|held| is_candidate(held, *holders))
        });
        let inodes = |held: &Held| held.inodes.iter().map(|(inode, _)| Arc::clone(inode)).collect();
        candidates.map(inodes).collect()
    }
}

/// The bytes that have to come free for a call that takes so many at least; `None` if the file
/// system has enough. Then something else is full: the quota of a project on XFS, or the index of a
/// directory on ext4.
fn lacking(space: &StatVfs, bytes_min: u64) -> Option<u64> {
    // The engine's threads may not use the blocks that are reserved for root.
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    // Without a number of inodes there is no bound of them: btrfs.
    let has_inodes = space.f_files == 0 || space.f_favail > 0;
    let has_enough = has_inodes && free >= bytes_min.saturating_add(FREE_MARGIN);
    (!has_enough).then(|| bytes_min.saturating_sub(free))
}

/// Free space with which a file system may be full: for blocks of its own, and those that are
/// reserved for data on its way.
const FREE_MARGIN: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use proto::nfs4::ShareAccess;

    use super::super::tests::Bed;
    use super::*;
    use crate::held_files::file_id;

    const LATER: Duration = Duration::from_secs(3600);

    #[test]
    fn a_file_frees_its_space_for_a_call_if_it_was_removed_and_the_disk_is_full() {
        let bed = Bed::new();
        let mut local = bed.local_file();
        local.write_all(&[7; 64 << 10]).unwrap();
        let client = bed.client(b"c");
        let other = bed.in_other_export();
        for inode in [&bed.inode, &other] {
            bed.open_in(client, inode, ShareAccess::Both);
        }
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = bed.elsewhere(dir.path());
        let device = bed.inode.root().device();
        let full = SpaceWanted { device, bytes_min: u64::MAX, object: elsewhere.key() };
        let frees = |wanted: &SpaceWanted| {
            let removed = bed.held.removed(&bed.state.files_in_courtesy(LATER), wanted).files;
            let inodes = removed.iter().map(|file| (file.inodes.len(), file.bytes > 0));
            let inodes: Vec<_> = inodes.collect();
            assert!(inodes.is_empty() || inodes == [(2, true)], "in each export");
            !inodes.is_empty()
        };
        assert!(!frees(&full), "it has a name");
        std::fs::remove_file(bed.path()).unwrap();
        assert!(frees(&full));
        assert!(!frees(&SpaceWanted { bytes_min: 0, ..full.clone() }), "the disk is not full");
        let other_device = (device.0, device.1 + 1);
        assert!(!frees(&SpaceWanted { device: other_device, ..full.clone() }));
        assert!(!frees(&SpaceWanted { object: other.key(), ..full.clone() }), "it is to grow");
        let pin = bed.held.pin(&bed.inode);
        assert!(!frees(&full), "it is being opened");
        drop(pin);
        assert!(frees(&full));
        local.set_len(0).unwrap();
        assert!(!frees(&full), "it has no blocks");
        assert!(bed.state.files_in_courtesy(Duration::ZERO).is_empty());
        assert_eq!(bed.state.files_in_courtesy(LATER), [(file_id(&bed.inode), 2)]);
    }

    #[test]
    fn a_file_system_is_short_if_it_has_no_inodes_or_hardly_the_bytes_of_the_call() {
        let space = fstatvfs(std::fs::File::open("/").unwrap()).unwrap();
        let space = |free, (f_files, f_favail)| StatVfs {
            f_bavail: free / 4096,
            f_frsize: 4096,
            f_files,
            f_favail,
            ..space
        };
        let (mib, some, none, unbounded) = (1 << 20, (9, 1), (9, 0), (0, 0));
        assert_eq!(lacking(&space(20 * mib, some), 4 * mib), None);
        assert_eq!(lacking(&space(20 * mib, unbounded), 4 * mib), None);
        assert_eq!(lacking(&space(20 * mib, none), 4 * mib), Some(0));
        assert_eq!(lacking(&space(19 * mib, some), 4 * mib), Some(0));
        assert_eq!(lacking(&space(mib, some), 4 * mib), Some(3 * mib));
        assert_eq!(lacking(&space(mib, some), u64::MAX), Some(u64::MAX - mib));
    }
}
