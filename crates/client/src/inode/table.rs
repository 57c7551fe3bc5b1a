//! The inodes of a mount by file handle.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use proto::nfs3::{Attributes, FileHandle};

use super::{Inode, Sent, Superblock};

/// The inodes of a mount. An inode is in the table as long as it is referenced.
pub(crate) struct InodeTable {
    inodes: Mutex<HashMap<FileHandle, Weak<Inode>>>,
    superblock: Superblock,
}

impl InodeTable {
    pub(crate) fn new(superblock: Superblock) -> Arc<Self> {
        Arc::new(Self { inodes: Mutex::default(), superblock })
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The inode of `handle`, updated with `attributes` from the reply to a call sent at `sent`.
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

    /// The inode of `handle`, if it is referenced.
    pub(super) fn get(&self, handle: &FileHandle) -> Option<Arc<Inode>> {
        self.lock().get(handle).and_then(Weak::upgrade)
    }

    /// Whether there is an inode of `handle`.
    pub(super) fn contains(&self, handle: &FileHandle) -> bool {
        self.lock().contains_key(handle)
    }

    /// Whether the inode of `handle`, if there is one, [is stale](Inode::is_stale).
    pub(crate) fn is_stale(&self, handle: &FileHandle) -> bool {
        // Upgraded under the lock and dropped after it: the drop of the last reference locks again.
        self.get(handle).is_some_and(|inode| inode.is_stale())
    }

    /// Removes a dropped inode, unless a new one for the same handle has taken its place.
    pub(super) fn forget(&self, handle: &FileHandle) {
        let mut inodes = self.lock();
        if inodes.get(handle).is_some_and(|inode| inode.strong_count() == 0) {
            inodes.remove(handle);
        }
    }

    /// All inodes.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.lock().values().filter_map(Weak::upgrade).collect()
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
