//! One writer at a time for each file. Names may be those of one file: hard links, symbolic links,
//! or names that the target's file system does not distinguish.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::entry::{Entry, FileId};

/// The files that a copy is writing: one for each job at most.
#[derive(Default)]
pub(super) struct WriteLocks {
    state: Mutex<State>,
    released: Notify,
}

#[derive(Default)]
struct State {
    held: HashSet<FileId>,
    /// The number of calls of [`WriteLocks::lock_existing`].
    overwrites: u64,
}

/// Held while a file is written.
pub(super) struct WriteLock<'a> {
    locks: &'a WriteLocks,
    id: FileId,
}

impl WriteLocks {
    /// As [`WriteLocks::lock`], for a file that this job did not make.
    pub(super) async fn lock_existing(&self, file: &Entry) -> WriteLock<'_> {
        let lock = self.lock(file).await;
        self.state().overwrites += 1;
        lock
    }

    /// Waits while another job writes the file. One that this job has just made may hold its data
    /// by now if [`WriteLocks::overwrites`] changes between the calls.
    pub(super) async fn lock(&self, file: &Entry) -> WriteLock<'_> {
        let id = file.id();
        loop {
            let released = self.released.notified();
            if self.state().held.insert(id) {
                return WriteLock { locks: self, id };
            }
            released.await;
        }
    }

    /// Counts the existing files that were locked.
    pub(super) fn overwrites(&self) -> u64 {
        self.state().overwrites
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WriteLock<'_> {
    fn drop(&mut self) {
        self.locks.state().held.remove(&self.id);
        self.locks.released.notify_waiters();
    }
}
