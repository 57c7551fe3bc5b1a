//! Handles of names, remembered or asked for.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::time::SystemTime;

use io::KernelHandle;

use super::{BirthTime, HandleCache, InodeNumber};
use crate::export::ExportRoot;
use crate::fs::{LiveAttributes, attributes_and_birth_at};

impl HandleCache {
    /// Handle and attributes of a name in an export, without a descriptor; `None` where this cannot
    /// be had or might mix two objects. `fileid` is what the name was listed with.
    pub(crate) fn find_by_name(
        &self,
        root: &ExportRoot,
        directory: BorrowedFd<'_>,
        name: &CStr,
        fileid: u64,
    ) -> Option<(KernelHandle, LiveAttributes)> {
        if !root.opens_by_handle() {
            return None;
        }
        self.find_known(root, directory, name, fileid)
            .or_else(|| self.find_and_remember(root, directory, name))
    }

    /// One call, if the handle is remembered. The name's current inode counts: the inode of these
    /// attributes is the one whose handle it is.
    fn find_known(
        &self,
        root: &ExportRoot,
        directory: BorrowedFd<'_>,
        name: &CStr,
        fileid: u64,
    ) -> Option<(KernelHandle, LiveAttributes)> {
        let (known_birth, handle) = self.find(InodeNumber::new(root, fileid))?;
        let (attributes, birth) = attributes_and_birth_at(directory, name).ok()?;
        let same = attributes.fileid == fileid
            && birth.and_then(BirthTime::new) == Some(known_birth)
            && root.contains(&attributes);
        same.then_some((handle, attributes))
    }

    /// Two calls. A name may change hands between them, and the inode number with it; but an inode
    /// that is settled at a moment before both is the one that had the number in both. The handle
    /// of any other is read again: an inode that has the name at the third call, and had it at the
    /// first, still lived at the second.
    fn find_and_remember(
        &self,
        root: &ExportRoot,
        directory: BorrowedFd<'_>,
        name: &CStr,
    ) -> Option<(KernelHandle, LiveAttributes)> {
        let began = SystemTime::now();
        let handle = io::name_to_handle(directory, Some(name)).ok()?;
        let (attributes, birth) = attributes_and_birth_at(directory, name).ok()?;
        if handle.inode() != Some(attributes.fileid) || !root.contains(&attributes) {
            return None;
        }
        let settled = birth.filter(|birth| birth.is_settled(began)).and_then(BirthTime::new);
        if let Some(birth) = settled.filter(|_| root.keeps_handles()) {
            self.remember(InodeNumber::new(root, attributes.fileid), birth, &handle);
        } else if io::name_to_handle(directory, Some(name)).ok() != Some(handle) {
            return None;
        }
        Some((handle, attributes))
    }

    /// Forgets a handle that proved stale, if it is remembered.
    pub(crate) fn forget_stale(&self, root: &ExportRoot, handle: &KernelHandle) {
        if let Some(fileid) = handle.inode() {
            self.forget(InodeNumber::new(root, fileid), handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs::OpenOptions;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::export::FileSystems;
    use crate::fs::Timestamp;
    use crate::skip::skip_in_ci_too;

    /// An export with a file `f` that is old enough to be remembered; `None` where handles are not
    /// kept, with the reason printed.
    fn export_with_settled_file() -> Option<(tempfile::TempDir, ExportRoot)> {
        let dir = tempfile::tempdir().unwrap();
        let root = ExportRoot::open_path(
            1,
            dir.path(),
            &FileSystems::default(),
            std::sync::Arc::default(),
        )
        .unwrap();
        if !root.keeps_handles() || !root.opens_by_handle() {
            skip_in_ci_too("no handles are kept on this file system, or for this user");
            return None;
        }
        std::fs::write(dir.path().join("f"), "").unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        Some((dir, root))
    }

    fn inode_of(root: &ExportRoot, name: &CStr) -> (u64, Option<BirthTime>) {
        let (attributes, birth) = attributes_and_birth_at(root.directory(), name).unwrap();
        (attributes.fileid, birth.and_then(BirthTime::new))
    }

    #[test]
    fn a_remembered_handle_is_given_for_its_inode_alone() {
        let Some((dir, root)) = export_with_settled_file() else { return };
        let known = HandleCache::new();
        let (fileid, birth) = inode_of(&root, c"f");
        let find = |name, fileid| known.find_by_name(&root, root.directory(), name, fileid);
        let truth = find(c"f", fileid).unwrap().0;
        assert_eq!(known.find(InodeNumber::new(&root, fileid)), Some((birth.unwrap(), truth)));
        // A handle that the kernel never gave shows who answers.
        let planted = KernelHandle::from_parts(1, b"planted!").unwrap();
        let plant = |birth| known.remember(InodeNumber::new(&root, fileid), birth, &planted);
        plant(birth.unwrap());
        assert_eq!(find(c"f", fileid).unwrap().0, planted);
        // Listed with a number that the name no longer has.
        assert_eq!(find(c"f", fileid + 1).unwrap().0, truth);
        // An earlier inode of this number, born a nanosecond before.
        let time = Timestamp { seconds: 1_700_000_000, nanoseconds: 1 };
        plant(BirthTime::new(time).unwrap());
        assert_eq!(find(c"f", fileid).unwrap().0, truth);
        // The name has gone to another inode.
        plant(birth.unwrap());
        std::fs::write(dir.path().join("g"), "").unwrap();
        std::fs::rename(dir.path().join("g"), dir.path().join("f")).unwrap();
        assert_eq!(
            find(c"f", fileid).unwrap().0,
            io::name_to_handle(root.directory(), Some(c"f")).unwrap()
        );
    }

    #[test]
    fn new_inodes_are_not_cached() {
        let Some((dir, root)) = export_with_settled_file() else { return };
        let known = HandleCache::new();
        std::fs::write(dir.path().join("new"), "").unwrap();
        let (fileid, _) = inode_of(&root, c"new");
        assert!(known.find_by_name(&root, root.directory(), c"new", fileid).is_some());
        assert_eq!(known.find(InodeNumber::new(&root, fileid)), None);
    }

    /// On ext4 the next file takes the number of the one that was removed.
    #[test]
    fn a_handle_comes_with_the_attributes_of_its_own_inode() {
        const PAIRS: usize = 20_000;
        let Some((dir, root)) = export_with_settled_file() else { return };
        let path = dir.path().join("new");
        let is_over = AtomicBool::new(false);
        let (modes, pairs) = std::thread::scope(|scope| {
            let replacing = scope.spawn(|| {
                let mut modes = HashMap::new();
                for mode in (0..0o1000).cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let _ = std::fs::remove_file(&path);
                    let mut options = OpenOptions::new();
                    options.write(true).create_new(true).mode(mode);
                    let file = options.open(&path).unwrap();
                    let handle = io::name_to_handle(file.as_fd(), None).unwrap();
                    modes.insert(handle.bytes().to_vec(), file.metadata().unwrap().mode());
                }
                modes
            });
            let known = HandleCache::new();
            let find = |_| known.find_by_name(&root, root.directory(), c"new", 0);
            let pairs: Vec<_> = (0..PAIRS).filter_map(find).collect();
            is_over.store(true, Ordering::Relaxed);
            (replacing.join().unwrap(), pairs)
        });
        assert!(!pairs.is_empty(), "the name was found");
        for (handle, attributes) in pairs {
            assert_eq!(attributes.mode, modes[handle.bytes()] & 0o7777);
        }
    }

    #[test]
    fn a_handle_that_proved_stale_is_forgotten() {
        let Some((_dir, root)) = export_with_settled_file() else { return };
        let known = HandleCache::new();
        let (fileid, _) = inode_of(&root, c"f");
        let handle = known.find_by_name(&root, root.directory(), c"f", fileid).unwrap().0;
        known.forget_stale(&root, &handle);
        assert_eq!(known.find(InodeNumber::new(&root, fileid)), None);
    }

    #[test]
    fn two_roots_of_one_directory_remember_no_handles_of_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            ExportRoot::open_path(1, dir.path(), &FileSystems::default(), std::sync::Arc::default())
                .unwrap()
        };
        assert_ne!(open().serial(), open().serial());
    }
}
