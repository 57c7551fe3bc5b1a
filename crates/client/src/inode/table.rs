//! The inodes of a mount by file handle.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use proto::nfs3::{Attributes, FileHandle};

use super::{Inode, Sent, Superblock};

/// The inodes of a mount. An inode is in the table as long as it is referenced.
pub(crate) struct InodeTable {
    inodes: Mutex<Inodes>,
    superblock: Superblock,
}

#[derive(Default)]
struct Inodes {
    by_handle: HashMap<FileHandle, Weak<Inode>>,
    /// The latest event of all dropped inodes that this client has changed. Attributes of a call
    /// sent before it, as those of a cached listing, may be older than such a change.
    changed_until: Option<Instant>,
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
        if let Some(inode) = inodes.by_handle.get(&handle).and_then(Weak::upgrade) {
            drop(inodes);
            inode.note(Some(attributes), sent);
            return inode;
        }
        let inode = Arc::new(Inode::new(handle, attributes, sent, self));
        // One of this handle that is being dropped may not have noted its changes yet.
        let is_dropping = inodes.by_handle.contains_key(&handle);
        if is_dropping || Some(sent.at()) <= inodes.changed_until {
            inode.expire();
        }
        inodes.by_handle.insert(handle, Arc::downgrade(&inode));
        inode
    }

    /// The inode of `handle`, if it is referenced.
    pub(super) fn get(&self, handle: &FileHandle) -> Option<Arc<Inode>> {
        self.lock().by_handle.get(handle).and_then(Weak::upgrade)
    }

    /// Whether there is an inode of `handle`.
    pub(super) fn contains(&self, handle: &FileHandle) -> bool {
        self.lock().by_handle.contains_key(handle)
    }

    /// Whether the inode of `handle`, if there is one, [is stale](Inode::is_stale).
    pub(crate) fn is_stale(&self, handle: &FileHandle) -> bool {
        // Upgraded under the lock and dropped after it: the drop of the last reference locks again.
        self.get(handle).is_some_and(|inode| inode.is_stale())
    }

    /// Removes a dropped inode, unless a new one for the same handle has taken its place.
    /// `changed_until`: its last event, if this client has changed it.
    pub(super) fn forget(&self, handle: &FileHandle, changed_until: Option<Instant>) {
        let mut inodes = self.lock();
        inodes.changed_until = inodes.changed_until.max(changed_until);
        if inodes.by_handle.get(handle).is_some_and(|inode| inode.strong_count() == 0) {
            inodes.by_handle.remove(handle);
        }
    }

    /// All inodes.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.lock().by_handle.values().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inodes> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for InodeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeTable")
            .field("inodes", &self.lock().by_handle.len())
            .finish_non_exhaustive()
    }
}
