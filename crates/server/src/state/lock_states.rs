//! Lock states: what each lock owner has locked through each open.

use proto::nfs4::ClientId;
use rustc_hash::FxHashMap;

use super::file_locks::{Holder, Owner};
use super::{FileId, LockId};

/// The lock states of all files. The numbers are of this server's making, so a hash without a key
/// is enough.
#[derive(Debug, Default)]
pub(super) struct LockStates {
    states: FxHashMap<u64, LockState>,
    owners: FxHashMap<LockId, OwnerInFile>,
}

/// The locks of an owner through one open: the state that a stateid stands for (RFC 8881 §8.2.1).
#[derive(Clone, Copy, Debug)]
pub(super) struct LockState {
    pub(super) lock: LockId,
    pub(super) open: u64,
    pub(super) seqid: u32,
}

/// A lock owner's grip on a file.
#[derive(Debug)]
struct OwnerInFile {
    owner: Owner,
    file: FileId,
    /// Its lock states, at least one.
    states: usize,
}

impl LockStates {
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty() && self.owners.is_empty()
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.states.contains_key(&number)
    }

    pub(super) fn get(&self, number: u64) -> LockState {
        self.states[&number]
    }

    pub(super) fn holder(&self, number: u64) -> Holder {
        Holder { owner: self.get(number).lock, state: number }
    }

    /// Whether an owner still has a lock state in a file.
    pub(super) fn has(&self, lock: LockId) -> bool {
        self.owners.contains_key(&lock)
    }

    pub(super) fn owner(&self, lock: LockId) -> &Owner {
        &self.owners[&lock].owner
    }

    pub(super) fn client_and_file(&self, lock: LockId) -> (ClientId, FileId) {
        let OwnerInFile { owner, file, .. } = &self.owners[&lock];
        (owner.client, *file)
    }

    /// How many lock states an owner has in a file.
    pub(super) fn count_of(&self, lock: LockId) -> usize {
        self.owners[&lock].states
    }

    /// Adds the lock state of an owner below an open.
    pub(super) fn add(&mut self, number: u64, state: LockState, owner: Owner, file: FileId) {
        let new = OwnerInFile { owner, file, states: 0 };
        self.owners.entry(state.lock).or_insert(new).states += 1;
        self.states.insert(number, state);
    }

    pub(super) fn set_seqid(&mut self, number: u64, seqid: u32) {
        self.states.get_mut(&number).expect("the caller has looked it up").seqid = seqid;
    }

    /// Removes a lock state, and its owner with the last one.
    pub(super) fn remove(&mut self, number: u64) {
        let state = self.states.remove(&number).expect("the caller has looked it up");
        let owner = self.owners.get_mut(&state.lock).expect("it has a lock state");
        owner.states -= 1;
        if owner.states == 0 {
            self.owners.remove(&state.lock);
        }
    }
}
