//! The memory that the written data of all files of a mount may take together.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;

/// Room for written data, shared by the files of a mount; a clone is the same budget.
///
/// What is charged is memory and not data: what was allocated for a chunk, until its last reader
/// lets go of it. A writer that finds no room waits, first come first served, and the files that
/// hold most are told to send and commit what they have.
#[derive(Clone)]
pub struct WriteBudget(Arc<Shared>);

struct Shared {
    bytes_max: usize,
    /// One permit for each free byte.
    free: Semaphore,
    /// Bytes that writers are waiting for.
    wanted: AtomicUsize,
    /// The files that hold something which they can give back.
    files: Mutex<HashMap<u64, Weak<dyn Reclaim>>>,
    next_account: AtomicU64,
}

/// A file that holds room.
pub(super) trait Reclaim: Send + Sync {
    /// Bytes that it holds.
    fn held(&self) -> usize;
    /// Asks it to give back all that it holds now, in the background.
    fn press(&self);
}

impl WriteBudget {
    /// A budget of so many bytes, at least 1. A single chunk that is larger passes when all else
    /// is free.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.clamp(1, Semaphore::MAX_PERMITS);
        Self(Arc::new(Shared {
            bytes_max,
            free: Semaphore::new(bytes_max),
            wanted: AtomicUsize::new(0),
            files: Mutex::default(),
            next_account: AtomicU64::new(0),
        }))
    }

    /// The bound.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Bytes taken now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes_max - self.0.free.available_permits()
    }

    /// Asks the files that hold most, until what they hold is as much as the writers wait for.
    /// What a file holds is counted whole although some of it may be on its way back already: then
    /// the others are left alone, and a single stream does not break up the chunks of its
    /// neighbours.
    fn press(&self) {
        let mut files: Vec<_> = {
            let files = self.files();
            files.values().filter_map(Weak::upgrade).map(|file| (file.held(), file)).collect()
        };
        files.sort_unstable_by_key(|(held, _)| std::cmp::Reverse(*held));
        let mut wanted = self.0.wanted.load(Ordering::Relaxed);
        for (held, file) in files {
            if wanted == 0 {
                break;
            }
            file.press();
            wanted = wanted.saturating_sub(held);
        }
    }

    fn files(&self) -> MutexGuard<'_, HashMap<u64, Weak<dyn Reclaim>>> {
        self.0.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for WriteBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBudget")
            .field("bytes_max", &self.bytes_max())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

/// What one file holds of a budget.
pub(super) struct Account {
    budget: WriteBudget,
    id: u64,
    held: AtomicUsize,
}

impl Account {
    pub(super) fn new(budget: &WriteBudget) -> Arc<Self> {
        let id = budget.0.next_account.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { budget: budget.clone(), id, held: AtomicUsize::new(0) })
    }

    /// Bytes that the file holds.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// From now on `file` can be asked to give back its room.
    pub(super) fn enlist(&self, file: Weak<dyn Reclaim>) {
        self.budget.files().insert(self.id, file);
    }

    /// The file has nothing that it could give back.
    pub(super) fn withdraw(&self) {
        self.budget.files().remove(&self.id);
    }

    /// Room for so many bytes, if there is now.
    pub(super) fn try_room(self: &Arc<Self>, bytes: usize) -> Option<Room> {
        let permits = self.permits(bytes);
        self.budget.0.free.try_acquire_many(permits).ok()?.forget();
        Some(self.granted(permits))
    }

    /// Room for so many bytes. Dropping the future gives up the place in the queue, and nothing
    /// else.
    pub(super) async fn room(self: &Arc<Self>, bytes: usize) -> Room {
        let permits = self.permits(bytes);
        let _wish = Wish::new(&self.budget, permits);
        let mut free = pin!(self.budget.0.free.acquire_many(permits));
        loop {
            self.budget.press();
            tokio::select! {
                biased;
                permit = &mut free => {
                    permit.expect("the semaphore is never closed").forget();
                    return self.granted(permits);
                }
                () = tokio::time::sleep(PRESS_AGAIN) => {}
            }
        }
    }

    fn granted(self: &Arc<Self>, permits: u32) -> Room {
        let bytes = permits as usize;
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Room { account: Arc::clone(self), bytes }
    }

    /// What is charged for `bytes`: never more than there can be.
    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.budget.bytes_max())).unwrap_or(u32::MAX)
    }
}

/// A part of the budget, given back when it is dropped.
pub(super) struct Room {
    account: Arc<Account>,
    bytes: usize,
}

impl Room {
    /// Takes `bytes` out of this room; all of it when it is smaller.
    pub(super) fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { account: Arc::clone(&self.account), bytes }
    }

    /// Makes one of two rooms of a file.
    pub(super) fn merge(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.account, &other.account), "rooms of two files");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.account.held.fetch_sub(self.bytes, Ordering::Relaxed);
            self.account.budget.0.free.add_permits(self.bytes);
        }
    }
}

/// Where a write under the lock of its file takes room from: what was waited for, then whatever is
/// free.
pub(super) struct Rooms<'a> {
    account: &'a Arc<Account>,
    spare: Option<Room>,
}

impl<'a> Rooms<'a> {
    pub(super) fn new(account: &'a Arc<Account>, spare: Option<Room>) -> Self {
        Self { account, spare }
    }

    /// Room for `bytes`, or `None` if it has to be waited for.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Room> {
        let charged = self.account.permits(bytes) as usize;
        match &mut self.spare {
            Some(spare) if spare.bytes() >= charged => Some(spare.split(charged)),
            _ => self.account.try_room(bytes),
        }
    }
}

/// Bytes that a writer waits for.
struct Wish<'a> {
    budget: &'a WriteBudget,
    bytes: usize,
}

impl<'a> Wish<'a> {
    fn new(budget: &'a WriteBudget, permits: u32) -> Self {
        let bytes = permits as usize;
        budget.0.wanted.fetch_add(bytes, Ordering::Relaxed);
        Self { budget, bytes }
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        self.budget.0.wanted.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// After this time a writer that still waits asks again: what was held by the file asked first may
/// be kept by a READ that does not end.
const PRESS_AGAIN: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    struct File {
        account: Arc<Account>,
        room: Mutex<Option<Room>>,
        pressed: AtomicUsize,
    }

    impl Reclaim for File {
        fn held(&self) -> usize {
            self.account.held()
        }

        fn press(&self) {
            self.pressed.fetch_add(1, Ordering::Relaxed);
            drop(self.room.lock().unwrap().take());
        }
    }

    fn file(budget: &WriteBudget, bytes: usize) -> Arc<File> {
        let account = Account::new(budget);
        let room = Mutex::new(account.try_room(bytes));
        let file = Arc::new(File { account, room, pressed: AtomicUsize::new(0) });
        let reclaim: Arc<dyn Reclaim> = file.clone();
        file.account.enlist(Arc::downgrade(&reclaim));
        file
    }

    #[tokio::test]
    async fn the_file_that_holds_most_is_asked_and_the_others_are_left_alone() {
        let budget = WriteBudget::new(100);
        let [small, large] = [20, 80].map(|bytes| file(&budget, bytes));
        assert_eq!(budget.bytes(), 100);
        assert!(small.account.try_room(1).is_none());
        let room = small.account.room(70).await;
        assert_eq!((budget.bytes(), small.account.held(), large.account.held()), (90, 90, 0));
        assert_eq!(small.pressed.load(Ordering::Relaxed), 0);
        drop(room);
        assert_eq!(budget.bytes(), 20);
        let _all = small.account.room(100).await;
        assert_eq!(small.pressed.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_chunk_larger_than_the_budget_passes_when_all_is_free() {
        let budget = WriteBudget::new(10);
        let account = Account::new(&budget);
        let mut room = account.room(1000).await;
        assert_eq!((room.bytes(), budget.bytes()), (10, 10));
        let part = room.split(4);
        drop(room);
        assert_eq!((budget.bytes(), account.held()), (4, 4));
        drop(part);
        assert_eq!((budget.bytes(), account.held()), (0, 0));
    }

    #[tokio::test]
    async fn a_writer_that_gives_up_leaves_the_queue() {
        let budget = WriteBudget::new(10);
        let account = Account::new(&budget);
        let held = account.try_room(10);
        let waits = tokio::time::timeout(Duration::from_millis(5), account.room(8)).await;
        assert!(waits.is_err());
        drop(held);
        assert_eq!((budget.bytes(), budget.0.wanted.load(Ordering::Relaxed)), (0, 0));
        assert!(account.try_room(10).is_some());
    }
}
