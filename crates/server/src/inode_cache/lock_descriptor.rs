//! A descriptor of a file for byte-range locks, and for nothing else: its data is for [`Permitted`]
//! callers.
//!
//! [`Permitted`]: super::Permitted

use std::os::fd::{AsFd, OwnedFd};

use io::{ForeignLock, OfdLock};
use rustix::fs::OFlags;

use super::Inode;
use crate::fs::Status;

/// An open file description of its own, whose locks end when this is dropped.
#[derive(Debug)]
pub(crate) struct LockDescriptor {
    fd: OwnedFd,
    is_writable: bool,
}

impl LockDescriptor {
    /// Opens a regular file as the server's user. May block.
    ///
    /// # Errors
    /// `IsDirectory` or `Invalid` for what has no data, and those of open(2).
    pub(crate) fn open(inode: &Inode, is_writable: bool) -> Result<Self, Status> {
        inode.file()?;
        let access = if is_writable { OFlags::RDWR } else { OFlags::RDONLY };
        Ok(Self { fd: inode.reopen(access | OFlags::NONBLOCK)?, is_writable })
    }

    /// Whether it takes exclusive locks.
    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Locks or unlocks `first..=last` without waiting; false if another lock is in the way.
    ///
    /// # Errors
    /// Those of `F_OFD_SETLK`.
    pub(crate) fn set(&self, range: (u64, u64), wanted: OfdLock) -> Result<bool, Status> {
        Ok(io::set_ofd_lock(self.fd.as_fd(), range, wanted)?)
    }

    /// A lock of another description or of a process that would be in the way.
    ///
    /// # Errors
    /// Those of `F_OFD_GETLK`.
    pub(crate) fn foreign(
        &self,
        range: (u64, u64),
        wanted: OfdLock,
    ) -> Result<Option<ForeignLock>, Status> {
        Ok(io::foreign_lock(self.fd.as_fd(), range, wanted)?)
    }
}

impl Drop for LockDescriptor {
    /// Closing the descriptor does not release the locks while a process that was just forked has a
    /// copy of it, which it has until it executes its program.
    fn drop(&mut self) {
        if let Err(error) = self.set((0, u64::MAX), OfdLock::Unlock) {
            tracing::debug!(?error, "locks end when the file is closed");
        }
    }
}
