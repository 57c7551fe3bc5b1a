//! The hold of NFSv4's state on files: the inodes of opens, and a descriptor for each lock owner's
//! locks in a file.
//!
//! `state` decides among clients. Each granted lock is then mirrored to the kernel, so that local
//! programs and clients see each other's locks. A lock belongs to an open file description, so each
//! owner has one, and closing it unlocks all.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io::OfdLock;

use crate::fs::Status;
use crate::inode_cache::{Inode, LockDescriptor};
use crate::state::{Effect, FileId, LockGrant, LockId, LockKind, Piece, Range, State};

/// Files with opens.
#[derive(Default)]
pub(crate) struct HeldFiles {
    /// Held for moments. An inode counts its holds under it, and no other lock is taken.
    files: Mutex<HashMap<FileId, Held>>,
}

/// A file with opens. Its inodes stay in the cache, also when its last name is gone.
struct Held {
    /// One of each export that it was opened in, and at least one.
    inodes: Vec<Arc<Inode>>,
    opens: usize,
    locks: HashMap<LockId, Arc<OwnerLocks>>,
}

/// The descriptor of a lock owner, opened for its first lock. The lock is held over the system calls
/// of this owner alone. Under it the lock of `state` may be taken, which never waits for this one, and
/// no other; [`HeldFiles::files`] is released before it is taken.
#[derive(Default)]
struct OwnerLocks(Mutex<Option<LockDescriptor>>);

/// Holds a file while it is opened.
#[must_use]
pub(crate) struct Pin<'a> {
    held: &'a HeldFiles,
    file: FileId,
}

impl Pin<'_> {
    /// The name of the file in `state`.
    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    /// Holds the file until the effect `Unpin`: the open is new.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.held.unpin(self.file);
    }
}

/// The name of a file in `state`, which is its own while the object is open.
pub(crate) fn file_id(inode: &Inode) -> FileId {
    FileId(u64::try_from(inode.address()).expect("an address has at most 64 bits"))
}

impl HeldFiles {
    /// Holds a file.
    pub(crate) fn pin(&self, inode: &Arc<Inode>) -> Pin<'_> {
        let file = file_id(inode);
        let new = || {
            inode.hold();
            Held { inodes: Vec::new(), opens: 0, locks: HashMap::new() }
        };
        let mut files = self.lock();
        let held = files.entry(file).or_insert_with(new);
        if !held.inodes.iter().any(|known| Arc::ptr_eq(known, inode)) {
            held.inodes.push(Arc::clone(inode));
        }
        held.opens += 1;
        Pin { held: self, file }
    }

    /// The files that were opened in no export that is still served. A file that another one serves
    /// leaves the retired ones: those inodes come beside, because closing one may wait for the disk.
    pub(crate) fn retired(&self) -> (Vec<FileId>, Vec<Arc<Inode>>) {
        let (mut retired, mut left) = (Vec::new(), Vec::new());
        for (file, held) in self.lock().iter_mut() {
            // Looked at once: an export may retire meanwhile, and one inode at least stays.
            let inodes = mem::take(&mut held.inodes);
            let (gone, served): (Vec<_>, Vec<_>) =
                inodes.into_iter().partition(|inode| inode.root().is_retired());
            if served.is_empty() {
                held.inodes = gone;
                retired.push(*file);
            } else {
                held.inodes = served;
                left.extend(gone);
            }
        }
        (retired, left)
    }

    /// Performs what `state` asks of files. May block.
    pub(crate) fn perform(&self, effect: &Effect) {
        match *effect {
            Effect::Unpin(file) => self.unpin(file),
            Effect::Release { file, lock } => self.release(file, lock),
            Effect::Unlock { file, lock, range } => self.unlock(file, lock, range),
            Effect::Records | Effect::NotifyLock { .. } | Effect::EndSession(_) => {}
        }
    }

    /// Mirrors a lock that `state` has granted. Returns the lock of a local program that is in the way.
    /// To be called as the server's user; may block.
    ///
    /// # Errors
    /// `Stale` if the file was closed meanwhile; those of opening it and of fcntl(2).
    pub(crate) fn mirror(&self, state: &State, grant: &LockGrant) -> Result<Option<Piece>, Status> {
        let (inode, owner) = {
            let mut files = self.lock();
            let held = files.get_mut(&grant.file).ok_or(Status::Stale)?;
            (Arc::clone(&held.inodes[0]), Arc::clone(held.locks.entry(grant.lock).or_default()))
        };
        let mut descriptor = owner.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = grant.piece;
        let needs_writing = wanted.kind == LockKind::Write;
        let new = match &*descriptor {
            None => Some(LockDescriptor::open(&inode, grant.is_writable)?),
            Some(old) if needs_writing && !old.is_writable() => {
                let new = LockDescriptor::open(&inode, true)?;
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

    /// The lock of a local program in the way of one that `state` would grant. `lock` is what the owner
    /// holds in the file. To be called as the server's user; may block.
    ///
    /// # Errors
    /// Those of opening the file and of fcntl(2).
    pub(crate) fn foreign_lock(
        &self,
        inode: &Arc<Inode>,
        lock: Option<LockId>,
        wanted: Piece,
    ) -> Result<Option<Piece>, Status> {
        let own = lock.and_then(|lock| self.owner(file_id(inode), lock));
        let (range, kind) = (bounds(wanted.range), wanted.kind.into());
        if let Some(own) = own
            && let Some(fd) = &*own.0.lock().unwrap_or_else(PoisonError::into_inner)
        {
            return Ok(fd.foreign(range, kind)?.map(Piece::from));
        }
        Ok(LockDescriptor::open(inode, false)?.foreign(range, kind)?.map(Piece::from))
    }

    fn unlock(&self, file: FileId, lock: LockId, range: Range) {
        let Some(owner) = self.owner(file, lock) else { return };
        let descriptor = owner.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(descriptor) = &*descriptor else { return };
        if let Err(status) = descriptor.set(bounds(range), OfdLock::Unlock) {
            tracing::error!(?status, "a range stays locked for local programs");
        }
    }

    fn release(&self, file: FileId, lock: LockId) {
        let owner = self.lock().get_mut(&file).and_then(|held| held.locks.remove(&lock));
        drop(owner);
    }

    fn unpin(&self, file: FileId) {
        let mut files = self.lock();
        let Some(held) = files.get_mut(&file) else { return };
        held.opens -= 1;
        if held.opens == 0 {
            held.inodes[0].end_hold();
            let held = files.remove(&file);
            drop(files);
            drop(held);
        }
    }

    fn owner(&self, file: FileId, lock: LockId) -> Option<Arc<OwnerLocks>> {
        self.lock().get(&file)?.locks.get(&lock).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Held>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the shared locks of an owner over to a descriptor that can write. What the old one holds are
/// shared locks alone, so both hold them until it is closed, and no other lock comes between.
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
mod tests;
