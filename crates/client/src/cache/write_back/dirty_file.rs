//! The written data of one file, shared by writers, readers and the task that makes the calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Notify;

use super::budget::{Account, Reclaim, Room, Rooms};
use super::errors::Errors;
use super::extents::{Extents, Goal};
use super::{TracedFile, WriteTarget};

/// See the module.
pub(super) struct DirtyFile<T> {
    pub(super) sync: bool,
    pub(super) traced: TracedFile,
    pub(super) account: Arc<Account>,
    data: Mutex<DirtyData<T>>,
    /// Notified after each reply.
    pub(super) progress: Notify,
}

/// Protected by the lock of the file.
pub(super) struct DirtyData<T> {
    pub(super) extents: Extents<T>,
    pub(super) errors: Errors,
    pub(super) task: Task,
}

/// The task that makes the calls.
pub(super) enum Task {
    Absent,
    /// It runs, and will see all changes before it sleeps.
    Busy,
    Asleep(Waker),
}

/// The data of a write.
#[derive(Clone, Copy)]
pub(super) struct WriteData<'a> {
    pub(super) bytes: &'a [u8],
    /// The memory of exactly these bytes, if it may be referenced instead of copied.
    pub(super) owned: Option<&'a Bytes>,
}

impl WriteData<'_> {
    /// The rest behind a prefix of `taken` bytes.
    pub(super) fn behind(self, taken: usize) -> Self {
        Self { bytes: &self.bytes[taken..], owned: self.owned.filter(|_| taken == 0) }
    }
}

/// A write that lacks room: bytes taken, and bytes of room for the next.
pub(super) struct Lack {
    pub(super) taken: usize,
    pub(super) room: usize,
}

impl<T: WriteTarget> DirtyFile<T> {
    pub(super) fn new(
        sync: bool,
        traced: TracedFile,
        account: Arc<Account>,
        extents: Extents<T>,
    ) -> Self {
        let data = DirtyData { extents, errors: Errors::default(), task: Task::Absent };
        Self { sync, traced, account, data: Mutex::new(data), progress: Notify::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, DirtyData<T>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes as much of `data` as there is room for, first from `spare`.
    pub(super) fn put(
        self: &Arc<Self>,
        dirty: &mut DirtyData<T>,
        target: &T,
        offset: u64,
        data: WriteData<'_>,
        spare: Option<Room>,
    ) -> Result<(), Lack> {
        let mut rooms = Rooms::new(&self.account, spare);
        let mut taken = 0;
        while taken < data.bytes.len() {
            let (offset, rest) = (offset + taken as u64, data.behind(taken));
            let adopted = rest.owned.and_then(|owned| {
                dirty.extents.adopt(target, offset, owned, &mut rooms, Instant::now)
            });
            let placed = adopted.unwrap_or_else(|| {
                dirty.extents.write(target, offset, rest.bytes, &mut rooms, Instant::now)
            });
            taken += placed.count;
            if placed.is_new || placed.is_complete {
                self.start_task(dirty);
            }
            if let Some(room) = placed.lacks {
                return Err(Lack { taken, room });
            }
        }
        Ok(())
    }

    /// Waits until `probe`, called after each reply, returns something.
    pub(super) async fn wait_until<R>(
        &self,
        mut probe: impl FnMut(&mut DirtyData<T>) -> Option<R>,
    ) -> R {
        loop {
            // Registered before the probe, so that no reply is missed in between.
            let progress = self.progress.notified();
            if let Some(result) = probe(&mut self.lock()) {
                return result;
            }
            progress.await;
        }
    }
}

impl<T: WriteTarget> DirtyData<T> {
    pub(super) fn wake(&mut self) {
        if let Task::Asleep(_) = self.task
            && let Task::Asleep(waker) = std::mem::replace(&mut self.task, Task::Busy)
        {
            waker.wake();
        }
    }
}

impl<T: WriteTarget> Reclaim for DirtyFile<T> {
    fn held(&self) -> usize {
        self.account.held()
    }

    fn press(&self) {
        let mut dirty = self.lock();
        dirty.extents.request(Goal::Committed);
        dirty.wake();
    }
}

/// Delays the WRITEs of a file until it is dropped.
pub(super) struct Pause<'a, T: WriteTarget>(&'a DirtyFile<T>);

impl<'a, T: WriteTarget> Pause<'a, T> {
    pub(super) fn new(file: &'a DirtyFile<T>) -> Self {
        file.lock().extents.pause();
        Self(file)
    }

    pub(super) fn file(&self) -> &DirtyFile<T> {
        self.0
    }
}

impl<T: WriteTarget> Drop for Pause<'_, T> {
    fn drop(&mut self) {
        let mut dirty = self.0.lock();
        dirty.extents.resume();
        dirty.wake();
        drop(dirty);
        self.0.progress.notify_waiters();
    }
}
