//! The state of an inode between requests, once for all exports that reach it.
//!
//! Two exports may show one object: one export lies in the other, or both have the same directory.
//! Locks, the count of changes and what was read ahead are then worth something only if there is
//! one of each. So they belong to the inode of a file system, which is found by its kernel handle.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use io::{DataError, KernelHandle, WriteBehindFile};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::delegation_gate::{DelegationGate, DelegationGates};
use super::file::FileState;
use super::{Attributes, InodeLock};
use crate::export::FileSystem;
use crate::fs::LiveAttributes;

/// Locks that the table is spread over.
const SHARDS: usize = 16;

/// The state of an inode. It lives as long as an export has the object open.
pub(crate) struct InodeState {
    // Constant.
    pub(super) states: Arc<InodeStates>,
    file_system: Arc<FileSystem>,
    handle: KernelHandle,
    /// [`Creations::begun`](super::delegation_gate::Creations::begun) when this was made.
    pub(super) creations_begun: u64,

    /// The state of a regular file; `None` for any other type.
    pub(super) file: Option<Arc<FileState>>,

    /// Held over every operation that changes the object.
    pub(crate) lock: InodeLock,

    // Atomic.
    /// The clients that have it delegated, and the changes that keep it from being delegated.
    pub(super) gate: DelegationGate,
    /// Changes so far; each is counted after its system call and before the reply.
    changes: AtomicU64,
    /// `flushed.all`, readable without the lock.
    durable: AtomicU64,
    /// Flushes that failed.
    failures: AtomicU64,
    /// Holders of opens of NFSv4. With one, the object can be used without a name.
    holds: AtomicU64,
    /// It was found without a name, or its last one was removed through this server.
    unlinked: AtomicBool,

    /// The number of changes that were there when the last flush that succeeded began. The lock is
    /// held over the flush: a caller that waits for it finds its own changes flushed, most often.
    pub(crate) flushed: tokio::sync::Mutex<Flushed>,
}

/// Changes that flushes have covered.
#[derive(Default)]
pub(crate) struct Flushed {
    /// By the last `fdatasync`.
    pub(crate) data: u64,
    /// By the last `fsync`.
    pub(crate) all: u64,
}

impl InodeState {
    fn new(
        states: Arc<InodeStates>,
        file_system: Arc<FileSystem>,
        handle: KernelHandle,
        file_type: FileType,
    ) -> Self {
        let file = (file_type == FileType::RegularFile).then(Arc::default);
        Self {
            creations_begun: states.gates.creations.begun(),
            states,
            file_system,
            handle,
            lock: InodeLock::default(),
            gate: DelegationGate::default(),
            file,
            changes: AtomicU64::new(0),
            flushed: tokio::sync::Mutex::default(),
            durable: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            holds: AtomicU64::new(0),
            unlinked: AtomicBool::new(false),
        }
    }

    /// Where its file system is in memory, which stays its own while this holds it.
    pub(super) fn file_system_address(&self) -> usize {
        Arc::as_ptr(&self.file_system).addr()
    }

    /// Notes that the length of a file is now `size`.
    pub(crate) fn note_truncated(&self, size: u64) {
        if let Some(window) = self.window() {
            window.truncated(size);
        }
    }

    /// Whether [`Self::release`] has anything to do.
    pub(crate) fn is_in_window(&self) -> bool {
        self.window().is_some_and(|window| !window.is_idle())
    }

    /// After its last name was removed: takes it out of the window, without writing it back. Blocks
    /// while the window is at work on it.
    pub(crate) fn release(&self) {
        if let Some(window) = self.window() {
            window.release();
        }
    }

    /// Lets the window close its descriptor soon, when it is not written for a while: a program
    /// that is open for writing cannot be executed.
    pub(super) fn close_window(&self) {
        if let Some(window) = self.window() {
            window.close();
        }
    }

    /// Runs `sync`, which flushes it, with its view of the window, if it has one.
    ///
    /// # Errors
    /// As [`WriteBehindFile::flush`].
    pub(super) fn flush_with_window(
        &self,
        sync: impl FnOnce() -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        if let Some(window) = self.window() {
            return window.flush(sync);
        }
        let synced = sync();
        // A WRITE may have made it meanwhile.
        match self.window() {
            Some(window) => window.flush(|| synced),
            None => synced,
        }
    }

    /// Has no later flush report the errors of the disk so far, which each open descriptor of the
    /// file would report once more. To be called between a flush that failed and
    /// [`Self::note_failure`]: whatever data such an error is about was written before, so its
    /// client finds another verifier, and its stable WRITE another [`Self::failures`]. May block.
    pub(super) fn discard_errors(&self) {
        let Some(file) = &self.file else { return };
        let discard = || {
            file.discard_errors();
            Err(Errno::IO.into())
        };
        // As a flush that fails: what the window finishes meanwhile stays in the page cache, for
        // its error may be among them, and an error of the window is taken.
        let _ = self.flush_with_window(discard);
    }

    fn window(&self) -> Option<&Arc<WriteBehindFile>> {
        self.file.as_ref().and_then(|file| file.window.get())
    }

    /// Lets the object be used when it has lost its last name, until [`Self::end_hold`].
    pub(crate) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends a hold.
    pub(crate) fn end_hold(&self) {
        self.holds.fetch_sub(1, Ordering::SeqCst);
    }

    /// Notes that it has no name left.
    pub(super) fn note_unlinked(&self) {
        self.unlinked.store(true, Ordering::SeqCst);
    }

    /// Whether it is known to have no name left, and no client has it open any more.
    pub(crate) fn is_over(&self) -> bool {
        !self.is_held() && self.unlinked.load(Ordering::SeqCst)
    }

    /// Whether a client has it open.
    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(Ordering::SeqCst) > 0
    }

    /// Counts a change that the kernel has taken and a crash could lose.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts what a server before this one has changed and may not have flushed before it was
    /// killed. The flush of a later change covers that, too.
    pub(crate) fn note_earlier_changes(&self) {
        let _ = self.changes.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Changes so far. With the attributes read *after* it, it makes an
    /// [`io::FileVersion`].
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Whether there are changes that no flush has covered.
    pub(crate) fn is_dirty(&self) -> bool {
        self.changes.load(Ordering::SeqCst) > self.durable.load(Ordering::SeqCst)
    }

    /// Notes that so many changes are durable, with all attributes.
    pub(crate) fn note_durable(&self, changes: u64) {
        self.durable.store(changes, Ordering::SeqCst);
    }

    /// How many flushes of this object have failed. A promise needs more than a flush that
    /// succeeds: when another one has failed since the data was written, the kernel may have
    /// dropped it, and the next flush finds nothing to complain of.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    /// The attributes for a reply, of those that were read of the object with this handle on the
    /// same file system.
    pub(crate) fn attributes_of_other(
        &self,
        handle: &KernelHandle,
        live: LiveAttributes,
    ) -> Attributes {
        // Not in the table: no export has it open, and so no change is at work.
        match self.other(handle) {
            Some(state) => state.lock.attributes(live),
            None => Attributes::of_unlocked(live),
        }
    }

    /// The state of the object with this handle on the same file system, if an export has it open.
    pub(super) fn other(&self, handle: &KernelHandle) -> Option<Arc<Self>> {
        // The lock of the table is released first, because dropping a state takes it.
        let key = StateKey::new(&self.file_system, *handle);
        self.states.shard(&key).get(&key).and_then(Weak::upgrade)
    }

    /// The state of the regular file with this handle on the same file system.
    pub(super) fn of_file(&self, handle: KernelHandle) -> Arc<Self> {
        self.states.state(&self.file_system, handle, FileType::RegularFile)
    }

    /// Notes that a flush failed: clients of all exports of the file system send again what they
    /// have not committed.
    pub(crate) fn note_failure(&self) {
        self.file_system.verifier.renew();
        self.failures.fetch_add(1, Ordering::SeqCst);
        self.states.failures.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for InodeState {
    fn drop(&mut self) {
        self.close_window();
        self.states.forget(&StateKey::new(&self.file_system, self.handle));
    }
}

/// The states of the inodes that are open. As many as the exports have objects open, at most.
pub(crate) struct InodeStates {
    pub(super) gates: DelegationGates,
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    /// Flushes that failed.
    pub(super) failures: AtomicU64,
}

type Shard = HashMap<StateKey, Weak<InodeState>>;

/// The key of a state.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct StateKey {
    /// Where the file system is in memory, which stays its own while the state holds it.
    file_system: usize,
    handle: KernelHandle,
}

impl StateKey {
    fn new(file_system: &Arc<FileSystem>, handle: KernelHandle) -> Self {
        Self { file_system: Arc::as_ptr(file_system).addr(), handle }
    }
}

impl InodeStates {
    /// An empty table.
    pub(super) fn new() -> Arc<Self> {
        let shards = std::array::from_fn(|_| Mutex::default());
        let gates = DelegationGates::default();
        Arc::new(Self { gates, shards, hasher: RandomState::new(), failures: AtomicU64::new(0) })
    }

    /// The state of the inode with this handle, a new one if no export has it open.
    pub(super) fn state(
        self: &Arc<Self>,
        file_system: &Arc<FileSystem>,
        handle: KernelHandle,
        file_type: FileType,
    ) -> Arc<InodeState> {
        let key = StateKey::new(file_system, handle);
        let mut shard = self.shard(&key);
        if let Some(state) = shard.get(&key).and_then(Weak::upgrade) {
            return state;
        }
        let file_system = Arc::clone(file_system);
        let state = InodeState::new(Arc::clone(self), file_system, handle, file_type);
        let state = Arc::new(state);
        shard.insert(key, Arc::downgrade(&state));
        state
    }

    /// Drops the entry of a state that nothing holds any more. Another one may have it already.
    fn forget(&self, key: &StateKey) {
        let mut shard = self.shard(key);
        if let Entry::Occupied(entry) = shard.entry(*key)
            && entry.get().strong_count() == 0
        {
            entry.remove();
        }
    }

    fn shard(&self, key: &StateKey) -> MutexGuard<'_, Shard> {
        let index = self.hasher.hash_one(key) % SHARDS as u64;
        let shard = &self.shards[usize::try_from(index).expect("below 16")];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::FileSystems;

    fn handle(seed: u8) -> KernelHandle {
        KernelHandle::from_parts(1, &[seed; 8]).unwrap()
    }

    #[test]
    fn an_inode_has_one_state_while_it_is_open() {
        let (states, systems) = (InodeStates::new(), FileSystems::default());
        let (one, other) = (systems.on((8, 1)).unwrap(), systems.on((8, 2)).unwrap());
        let inode = states.state(&one, handle(1), FileType::RegularFile);
        inode.note_change();
        let again = systems.on((8, 1)).unwrap();
        assert!(Arc::ptr_eq(&inode, &states.state(&again, handle(1), FileType::RegularFile)));
        assert!(!Arc::ptr_eq(&inode, &states.state(&one, handle(2), FileType::RegularFile)));
        assert!(
            !Arc::ptr_eq(&inode, &states.state(&other, handle(1), FileType::RegularFile)),
            "another file system"
        );
        drop(inode);
        assert_eq!(
            states.state(&one, handle(1), FileType::RegularFile).changes(),
            0,
            "a new state"
        );
        assert!(states.shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }

    #[test]
    fn an_open_inode_keeps_its_file_system() {
        let (states, systems) = (InodeStates::new(), FileSystems::default());
        let first = systems.on((8, 1)).unwrap();
        let verifier = first.verifier.current();
        let inode = states.state(&first, handle(1), FileType::RegularFile);
        drop(first);
        assert_eq!(systems.on((8, 1)).unwrap().verifier.current(), verifier, "an inode is open");
        drop(inode);
        assert_ne!(systems.on((8, 1)).unwrap().verifier.current(), verifier);
    }
}
