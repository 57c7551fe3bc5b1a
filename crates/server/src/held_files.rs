//! The hold of NFSv4's state on files: the inodes of opens and delegations, a descriptor for each
//! lock owner's locks in a file, and the lease by which local programs break delegations.
//!
//! `state` decides among clients. Each granted lock is then mirrored to the kernel, so that local
//! programs and clients see each other's locks. A lock belongs to an open file description, so each
//! owner has one, and closing it unlocks all.

mod delegations;
mod removed;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io::{DeviceNumber, OfdLock};

use self::delegations::Delegated;
pub(crate) use self::removed::Removed;
use crate::fs::Status;
use crate::inode_cache::{Inode, LockDescriptor};
use crate::state::{
    Effect, ExportId, FileId, LockGrant, LockId, LockKind, Piece, Range, State, TestedLock,
};

/// Files with opens or delegations.
#[derive(Default)]
pub(crate) struct HeldFiles {
    /// Held for moments. An inode counts its holds under it, and no other lock is taken.
    table: Mutex<Table>,
    /// Descriptors of lock owners, at most.
    owners_max: usize,
}

#[derive(Default)]
struct Table {
    files: HashMap<FileId, Held>,
    /// Lock owners in all files.
    owners: usize,
}

/// A file with opens or delegations, or with locks that are still to be released. Its inodes stay
/// in the cache, also when its last name is gone.
struct Held {
    /// One of each export that it is open in, with the number of its opens and delegations there.
    /// At least one.
    inodes: Vec<(Arc<Inode>, usize)>,
    locks: HashMap<LockId, Arc<OwnerLocks>>,
    delegations: Delegated,
}

/// The descriptor of a lock owner, opened for its first lock. The lock is held over the system
/// calls of this owner alone. Under it the lock of `state` may be taken, which never waits for this
/// one, and no other; [`HeldFiles::table`] is released before it is taken.
#[derive(Default)]
struct OwnerLocks(Mutex<Option<LockDescriptor>>);

/// Why a lock that `state` has granted is not mirrored to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotMirrored {
    /// There are as many descriptors of lock owners as there may be, with those that wait to be
    /// closed.
    NoRoom,
    Status(Status),
}

impl From<Status> for NotMirrored {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// Holds a file while it is opened.
#[must_use]
pub(crate) struct Pin<'a> {
    held: &'a HeldFiles,
    inode: &'a Arc<Inode>,
}

impl Pin<'_> {
    /// The name of the file in `state`.
    pub(crate) fn file(&self) -> FileId {
        file_id(self.inode)
    }

    /// The name of the export in `state`.
    pub(crate) fn export(&self) -> ExportId {
        export_id(self.inode)
    }

    /// Holds the file until the effect `Unpin`: the open is new.
    pub(crate) fn keep(self) {
        mem::forget(self);
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        // The caller still has the inode, so that none is closed here.
        drop(self.held.unpin(self.file(), self.export()));
    }
}

/// The name of a file in `state`, which is its own while the object is open.
pub(crate) fn file_id(inode: &Inode) -> FileId {
    FileId(u64::try_from(inode.address()).expect("an address has at most 64 bits"))
}

/// The name of its export in `state`, which is its own while the object is open.
pub(crate) fn export_id(inode: &Inode) -> ExportId {
    ExportId(inode.root_address())
}

impl HeldFiles {
    /// No files yet, with so many descriptors of lock owners at most.
    pub(crate) fn new(owners_max: usize) -> Self {
        Self { table: Mutex::default(), owners_max }
    }

    /// Holds a file.
    pub(crate) fn pin<'a>(&'a self, inode: &'a Arc<Inode>) -> Pin<'a> {
        let file = file_id(inode);
        let new = || {
            inode.hold();
            let (inodes, locks) = (Vec::new(), HashMap::new());
            Held { inodes, locks, delegations: Delegated::default() }
        };
        let mut table = self.lock();
        let held = table.files.entry(file).or_insert_with(new);
        match held.inodes.iter_mut().find(|(known, _)| Arc::ptr_eq(known.root(), inode.root())) {
            Some((_, opens)) => *opens += 1,
            None => held.inodes.push((Arc::clone(inode), 1)),
        }
        Pin { held: self, inode }
    }

    /// The opens in exports that are not served any more.
    pub(crate) fn retired(&self) -> Vec<(FileId, ExportId)> {
        let table = self.lock();
        let inodes = table
            .files
            .iter()
            .flat_map(|(file, held)| held.inodes.iter().map(move |(inode, _)| (*file, inode)));
        let retired = inodes.filter(|(_, inode)| inode.root().is_retired());
        retired.map(|(file, inode)| (file, export_id(inode))).collect()
    }

    /// The device that an effect on a file may wait for; `None` when there is nothing left to do.
    pub(crate) fn device(&self, file: FileId) -> Option<DeviceNumber> {
        Some(self.lock().files.get(&file)?.inodes[0].0.root().device())
    }

    /// Performs what `state` asks of files. May block, unless it is `Unpin`. Returns the inodes
    /// that are not held any more: to close one may block.
    pub(crate) fn perform(&self, state: &State, effect: &Effect) -> Vec<Arc<Inode>> {
        match *effect {
            Effect::Unpin { file, export } => self.unpin(file, export),
            Effect::Release { file, lock } => self.release(file, lock),
            Effect::Unlock { file, lock, range } => {
                self.unlock(state, file, lock, range);
                Vec::new()
            }
            Effect::EndDelegation { file, delegation } => self.end_delegation(file, delegation),
            Effect::Records
            | Effect::NotifyLock { .. }
            | Effect::Recall { .. }
            | Effect::NoRoom { .. } => Vec::new(),
        }
    }

    /// Mirrors a lock that `state` has granted. Returns the lock of a local program that is in the
    /// way. To be called as the server's user; may block.
    ///
    /// # Errors
    /// `Stale` if the file was closed meanwhile; `NoRoom`; those of opening it and of fcntl(2).
    pub(crate) fn mirror(
        &self,
        state: &State,
        grant: &LockGrant,
    ) -> Result<Option<Piece>, NotMirrored> {
        let (inode, owner) = self.owner_of(grant)?;
        let found = owner.take(state, &inode, grant)?;
        if found.is_some()
            && self.release_ended(state, grant.file, Some(grant.lock), grant.piece.range)
        {
            return Ok(owner.take(state, &inode, grant)?);
        }
        Ok(found)
    }

    /// The lock of a local program in the way of one that `state` would grant. To be called as the
    /// server's user; may block.
    ///
    /// # Errors
    /// Those of opening the file and of fcntl(2).
    pub(crate) fn foreign_lock(
        &self,
        state: &State,
        inode: &Arc<Inode>,
        TestedLock { wanted, own: lock }: TestedLock,
    ) -> Result<Option<Piece>, Status> {
        let file = file_id(inode);
        let own = lock.and_then(|lock| self.owner(file, lock));
        let found = foreign(inode, own.as_deref(), wanted)?;
        if found.is_some() && self.release_ended(state, file, lock, wanted.range) {
            return foreign(inode, own.as_deref(), wanted);
        }
        Ok(found)
    }

    /// Unlocks in the kernel what a lock owner does not hold in a range.
    fn unlock(&self, state: &State, file: FileId, lock: LockId, range: Range) {
        let Some(owner) = self.owner(file, lock) else { return };
        if let Err((Range { first, last }, error)) = owner.unlock(state, lock, range) {
            let inode = self.lock().files.get(&file).map(|held| Arc::clone(&held.inodes[0].0));
            let export = inode.as_ref().map(|inode| inode.root().name()).unwrap_or_default();
            let path = inode.and_then(|inode| inode.shown_path()).unwrap_or_default();
            tracing::error!(
                export,
                path,
                %error,
                "cannot release the kernel locks of bytes {first} to {last}"
            );
        }
    }

    /// Releases what other lock owners than `own` have released in `state`, whether or not the
    /// effects were performed: all of those that have ended, and of the others what is in the
    /// range. Returns whether there may have been any.
    fn release_ended(
        &self,
        state: &State,
        file: FileId,
        own: Option<LockId>,
        range: Range,
    ) -> bool {
        let others: Vec<_> = match self.lock().files.get(&file) {
            Some(held) => held.locks.keys().copied().filter(|lock| Some(*lock) != own).collect(),
            None => return false,
        };
        for lock in &others {
            if state.has_lock(*lock) {
                self.unlock(state, file, *lock, range);
            } else {
                drop(self.release(file, *lock));
            }
        }
        !others.is_empty()
    }

    fn release(&self, file: FileId, lock: LockId) -> Vec<Arc<Inode>> {
        let mut table = self.lock();
        let Some(held) = table.files.get_mut(&file) else { return Vec::new() };
        let owner = held.locks.remove(&lock);
        table.owners -= usize::from(owner.is_some());
        let left = table.leave(file);
        drop(table);
        drop(owner);
        left
    }

    fn unpin(&self, file: FileId, export: ExportId) -> Vec<Arc<Inode>> {
        let mut table = self.lock();
        let Some(held) = table.files.get_mut(&file) else { return Vec::new() };
        let mut inodes = held.inodes.iter_mut();
        if let Some((_, opens)) = inodes.find(|(inode, _)| export_id(inode) == export) {
            *opens -= 1;
        }
        table.leave(file)
    }

    /// The descriptor for a lock that `state` has granted, and the file in the export of its open:
    /// another may be mounted read-only.
    fn owner_of(&self, grant: &LockGrant) -> Result<(Arc<Inode>, Arc<OwnerLocks>), NotMirrored> {
        let mut table = self.lock();
        let Table { files, owners } = &mut *table;
        let held = files.get_mut(&grant.file).ok_or(Status::Stale)?;
        let mut inodes = held.inodes.iter().map(|(inode, _)| inode);
        let inode = inodes.find(|inode| export_id(inode) == grant.export).ok_or(Status::Stale)?;
        let inode = Arc::clone(inode);
        let owner = match held.locks.entry(grant.lock) {
            Entry::Occupied(known) => Arc::clone(known.get()),
            Entry::Vacant(_) if *owners >= self.owners_max => return Err(NotMirrored::NoRoom),
            Entry::Vacant(new) => {
                *owners += 1;
                Arc::clone(new.insert(Arc::default()))
            }
        };
        Ok((inode, owner))
    }

    fn owner(&self, file: FileId, lock: LockId) -> Option<Arc<OwnerLocks>> {
        self.lock().files.get(&file)?.locks.get(&lock).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnerLocks {
    /// Takes a lock that `state` has granted. Returns the lock in the way.
    fn take(
        &self,
        state: &State,
        inode: &Inode,
        grant: &LockGrant,
    ) -> Result<Option<Piece>, Status> {
        let mut descriptor = self.lock();
        let wanted = grant.piece;
        let needs_writing = wanted.kind == LockKind::Write;
        let new = match &*descriptor {
            None => Some(LockDescriptor::open(inode, grant.is_writable)?),
            Some(old) if needs_writing && !old.is_writable() => {
                let new = LockDescriptor::open(inode, true)?;
                copy_shared_locks(&new, state, grant)?;
                Some(new)
            }
            Some(_) => None,
        };
        if new.is_some() {
            *descriptor = new;
        }
        let descriptor = descriptor.as_ref().expect("it was there, or is new");
        let (range, kind) = (bounds(wanted.range), wanted.kind.into());
        if descriptor.set(range, kind)? {
            return Ok(None);
        }
        Ok(Some(descriptor.foreign(range, kind)?.map_or(wanted, Piece::from)))
    }

    /// Unlocks what the lock owner does not hold in a range. The owner may be locking again
    /// already, so `state` is asked under the lock.
    ///
    /// # Errors
    /// The first part that cannot be unlocked, and those of fcntl(2).
    fn unlock(&self, state: &State, lock: LockId, range: Range) -> Result<(), (Range, Status)> {
        let descriptor = self.lock();
        let Some(descriptor) = &*descriptor else { return Ok(()) };
        for gap in state.unheld(lock, range) {
            descriptor.set(bounds(gap), OfdLock::Unlock).map_err(|error| (gap, error))?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<LockDescriptor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Takes out the inodes of a file that have no open left, and the file when it has no lock
    /// either: its last inode stays until then.
    fn leave(&mut self, file: FileId) -> Vec<Arc<Inode>> {
        let Some(held) = self.files.get_mut(&file) else { return Vec::new() };
        let is_open = held.inodes.iter().any(|(_, opens)| *opens > 0);
        if !is_open && held.locks.is_empty() {
            let held = self.files.remove(&file).expect("it was found above");
            held.inodes[0].0.end_hold();
            return held.inodes.into_iter().map(|(inode, _)| inode).collect();
        }
        let first = usize::from(!is_open);
        let unused = held.inodes.extract_if(first.., |(_, opens)| *opens == 0);
        unused.map(|(inode, _)| inode).collect()
    }
}

/// A lock in the way of one of this owner, or of a new one.
fn foreign(
    inode: &Inode,
    own: Option<&OwnerLocks>,
    wanted: Piece,
) -> Result<Option<Piece>, Status> {
    let (range, kind) = (bounds(wanted.range), wanted.kind.into());
    if let Some(own) = own
        && let Some(descriptor) = &*own.lock()
    {
        return Ok(descriptor.foreign(range, kind)?.map(Piece::from));
    }
    Ok(LockDescriptor::open(inode, false)?.foreign(range, kind)?.map(Piece::from))
}

/// Takes the shared locks of an owner over to a descriptor that can write. What the old one holds
/// are shared locks alone, so both hold them until it is closed, and no other lock comes between.
fn copy_shared_locks(new: &LockDescriptor, state: &State, grant: &LockGrant) -> Result<(), Status> {
    for piece in state.pieces_before(grant) {
        new.set(bounds(piece.range), OfdLock::Read)?;
    }
    Ok(())
}

fn bounds(range: Range) -> (u64, u64) {
    (range.first, range.last)
}

impl From<LockKind> for OfdLock {
    fn from(kind: LockKind) -> Self {
        match kind {
            LockKind::Read => Self::Read,
            LockKind::Write => Self::Write,
        }
    }
}

impl From<io::ForeignLock> for Piece {
    fn from(lock: io::ForeignLock) -> Self {
        let kind = if lock.is_write { LockKind::Write } else { LockKind::Read };
        Self { range: Range { first: lock.first, last: lock.last }, kind }
    }
}

#[cfg(test)]
pub(crate) mod tests;
