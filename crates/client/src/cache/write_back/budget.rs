//! The memory of the written data of all files of a mount.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;

/// Bounds the memory of written data of all files of a mount. A clone is the same budget.
///
/// It counts memory and not data: the allocation of a chunk, until its last reference is dropped. A
/// writer that finds no room waits, first come first served, and the files that hold most are made
/// to send and commit their data.
#[derive(Clone)]
pub(crate) struct WriteBudget(Arc<Accounts>);

struct Accounts {
    bytes_max: usize,
    /// One permit for each free byte.
    free: Semaphore,
    /// Bytes that writers are waiting for.
    wanted: AtomicUsize,
    /// The files that can release room.
    files: Mutex<HashMap<u64, Weak<dyn Reclaim>>>,
    next_account: AtomicU64,
}

/// A file that can release room.
pub(super) trait Reclaim: Send + Sync {
    /// Bytes held.
    fn held(&self) -> usize;
    /// Makes it release all that it holds now, in the background.
    fn press(&self);
}

impl WriteBudget {
    /// A budget of `bytes_max`, at least 1. A single larger chunk is admitted when all is free.
    #[must_use]
    pub(crate) fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.clamp(1, Semaphore::MAX_PERMITS);
        Self(Arc::new(Accounts {
            bytes_max,
            free: Semaphore::new(bytes_max),
            wanted: AtomicUsize::new(0),
            files: Mutex::default(),
            next_account: AtomicU64::new(0),
        }))
    }

    /// The bound.
    #[must_use]
    pub(crate) fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Bytes in use.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes_max - self.0.free.available_permits()
    }

    /// Presses the files that hold most, until these hold as much as the writers wait for. A file
    /// counts with all it holds, even if some of that is being released: so the other files are
    /// left alone, and one stream does not force its neighbours to send small chunks.
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

/// The share of one file in a budget.
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

    /// Bytes held by the file.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Adds `file` to those that can release room.
    pub(super) fn enlist(&self, file: Weak<dyn Reclaim>) {
        self.budget.files().insert(self.id, file);
    }

    /// Removes the file from those that can release room.
    pub(super) fn withdraw(&self) {
        self.budget.files().remove(&self.id);
    }

    /// Reserves `bytes`, if there is room now.
    pub(super) fn try_room(self: &Arc<Self>, bytes: usize) -> Option<Room> {
        let permits = self.permits(bytes);
        self.budget.0.free.try_acquire_many(permits).ok()?.forget();
        Some(self.granted(permits))
    }

    /// Waits for room for `bytes`. Dropping the future only leaves the queue.
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

    /// The permits for `bytes`: at most the whole budget.
    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.budget.bytes_max())).unwrap_or(u32::MAX)
    }
}

/// Reserved bytes, released on drop.
pub(super) struct Room {
    account: Arc<Account>,
    bytes: usize,
}

impl Room {
    /// Splits off `bytes`; all of it if it is smaller.
    pub(super) fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { account: Arc::clone(&self.account), bytes }
    }

    /// Merges two rooms of a file.
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

/// Source of room for a write under the lock of its file: the room that was waited for, then free
/// room.
pub(super) struct Rooms<'a> {
    account: &'a Arc<Account>,
    spare: Option<Room>,
}

impl<'a> Rooms<'a> {
    pub(super) fn new(account: &'a Arc<Account>, spare: Option<Room>) -> Self {
        Self { account, spare }
    }

    /// Room for `wish` bytes, otherwise for `least`, with the number of bytes.
    ///
    /// # Errors
    /// [`NoRoom`] if `least` bytes have to be waited for.
    pub(super) fn take_up_to(
        &mut self,
        wish: usize,
        least: usize,
    ) -> Result<(Room, usize), NoRoom> {
        match self.take(wish) {
            Some(room) => Ok((room, wish)),
            None => Ok((self.take(least).ok_or(NoRoom(least))?, least)),
        }
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

/// Bytes of room that are lacking.
pub(super) struct NoRoom(pub(super) usize);

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

/// A writer that still waits after this time presses the files again: a READ that does not end may
/// hold the data of the first one.
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
    async fn only_the_file_that_holds_most_is_pressed() {
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
    async fn a_chunk_larger_than_the_budget_is_admitted_when_all_is_free() {
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
    async fn a_cancelled_writer_leaves_the_queue() {
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
