//! LOCK, LOCKT and LOCKU, RFC 8881 §18.10 to §18.12.

use std::sync::Arc;

use proto::nfs4::{ClientId, FileHandle, LockRange, LockType, ShareAccess, Stateid, Status};

use super::file_locks::{Denied, FileLocks, Freed, Holder, Owner, PEER_WAITERS_MAX, WAITERS_MAX};
use super::files::{Files, StateKey, WaiterBounds};
use super::lock_states::LockState;
use super::ranges::{LockKind, Piece, Range};
use super::registry::{State, Table};
use super::shares::Share;
use super::{Bounded, Effect, ExportId, FileId, Limits, LockId, Step};

/// LOCK's arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lock<'a> {
    pub(crate) client: ClientId,
    pub(crate) target: LockTarget<'a>,
    pub(crate) file: FileId,
    /// The file as the client names it.
    pub(crate) object: FileHandle,
    pub(crate) range: LockRange,
    pub(crate) kind: LockType,
    pub(crate) is_reclaim: bool,
}

/// Whose lock it is to be: `locker4`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockTarget<'a> {
    /// An owner without a stateid below the open yet, by the stateid of that.
    New { open: &'a Stateid, owner: &'a [u8] },
    /// By the stateid of an earlier LOCK.
    Known(&'a Stateid),
}

/// Why a lock is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockFailure {
    /// `NFS4ERR_DENIED`.
    Denied(Conflict),
    /// As [`OpenFailure::Delegated`](super::OpenFailure::Delegated).
    Delegated,
    Status(Status),
}

/// The lock in the way, `LOCK4denied`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) client: ClientId,
    pub(crate) owner: Arc<[u8]>,
    pub(crate) piece: Piece,
}

/// A lock that is granted here, and has to be mirrored to the kernel before it is
/// [confirmed](State::confirm_lock) or [undone](State::undo_lock).
#[derive(Debug)]
#[must_use]
pub(crate) struct LockGrant {
    pub(crate) file: FileId,
    /// That of the owner's open, through whose mount the file is opened for the lock.
    pub(crate) export: ExportId,
    pub(crate) lock: LockId,
    /// The number of the lock state.
    state: u64,
    pub(crate) piece: Piece,
    /// Whether the owner may write to the file, so that its descriptor can.
    pub(crate) is_writable: bool,
}

/// A lock that no other client's is in the way of. The kernel is to be asked for those of local
/// programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestedLock {
    pub(crate) wanted: Piece,
    /// The locks of the owner in the file, if it has any.
    pub(crate) own: Option<LockId>,
}

impl From<Status> for LockFailure {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl State {
    /// LOCK. A denied blocking request is queued, and its client notified when it can be granted.
    ///
    /// # Errors
    /// `Denied`; `Inval` for the range; `BadStateid`, `OldStateid`, `Openmode`; those of
    /// [`Self::check_claim`], and `ReclaimConflict`; `Delay` for too many locks, and while the
    /// kernel is asked for another lock of the owner that overlaps it; `Delegated`.
    pub(crate) fn lock_range(
        &self,
        call: &Lock<'_>,
        step: &mut Step,
    ) -> Result<LockGrant, LockFailure> {
        let mut table = self.lock();
        table.check_claim(call.client, call.is_reclaim)?;
        let piece = Piece { range: Range::new(call.range)?, kind: call.kind.into() };
        let (open, owner, known) = self.lock_owner(&table, call)?;
        let share = table.files.open(open).modes.share();
        let needed = if call.kind.is_write() { ShareAccess::Write } else { ShareAccess::Read };
        if !share.allows(Share::of_access(needed)) {
            return Err(Status::Openmode.into());
        }
        // Locks of a holder of a delegation, which it keeps to itself, exclude no open for writing
        // of a client that was cut off when the delegation was given.
        let is_other = |holder| holder != call.client;
        let due = self.due(step);
        if share.writes() && self.recall_where(&mut table, call.file, due, is_other, step) {
            return Err(LockFailure::Delegated);
        }
        let is_blocking = call.kind.is_blocking();
        let found = self.conflict(&mut table, call.file, &owner, piece, step);
        let reserved = || table.files.locks(call.file)?.reservation(&owner, piece, step.now);
        let reserved = || reserved().map(|(owner, piece)| Conflict::new(owner, piece));
        let blocker = found.as_ref().map(|(id, _)| *id);
        let found = found.map(|(_, conflict)| conflict);
        if let Some(conflict) = found.or_else(|| if is_blocking { reserved() } else { None }) {
            if call.is_reclaim {
                return Err(Status::ReclaimConflict.into());
            }
            if is_blocking {
                let denied = Denied { owner, object: call.object, wanted: piece, blocker };
                self.note_waiter(&mut table, call.file, denied, step);
            }
            return Err(LockFailure::Denied(conflict));
        }
        if table.files.is_unconfirmed(call.file, &owner, piece.range) {
            return Err(Status::Delay.into());
        }
        self.make_room_for_lock(&mut table, call.client, step)?;
        if known.is_none() {
            self.make_room_for_lock_owner(&mut table, call, owner.name.len(), step)?;
        }
        let state = known.unwrap_or_else(|| table.files.add_lock_state(open, owner.clone()));
        let holder = table.files.lock_states().holder(state);
        let (lock, mut has_ended) = (holder.owner, false);
        table.files.change_locks(lock, |locks| {
            locks.grant(holder, piece);
            has_ended = locks.stop_waiting(&owner, piece.range);
        });
        if has_ended {
            // Those that have waited for this request may not conflict with what was granted.
            table.files.wake(call.file, &Freed::turn(), step);
        }
        table.settle_records(step);
        let (file, export) = (call.file, owner.export);
        Ok(LockGrant { file, export, lock, state, piece, is_writable: share.writes() })
    }

    /// The stateid of a lock that the kernel has granted too.
    ///
    /// # Errors
    /// `BadStateid` if the client has closed the file meanwhile, or was forgotten.
    pub(crate) fn confirm_lock(
        &self,
        grant: LockGrant,
        step: &mut Step,
    ) -> Result<Stateid, Status> {
        let mut table = self.lock();
        let LockGrant { file, lock, state, piece, .. } = grant;
        let range = piece.range;
        if !table.files.lock_states().contains(state) {
            release_ended(&table, &grant, step);
            return Err(Status::BadStateid);
        }
        let before = table.files.change_locks(lock, |locks| locks.confirm(lock, range));
        let has_shared = before.iter().any(|before| before.kind != piece.kind);
        if !table.files.ranges(state).is_some_and(|ranges| ranges.holds(piece)) {
            // A LOCKU came between, and its effect perhaps before the kernel's lock.
            step.effects.push(Effect::Unlock { file, lock, range });
        }
        let seqid = table.files.advance_lock_state(state);
        table.settle_records(step);
        if has_shared && piece.kind == LockKind::Read {
            table.files.wake(file, &Freed::from(before), step);
        }
        Ok(self.stateid(state, seqid))
    }

    /// Takes back a lock that the kernel has denied.
    pub(crate) fn undo_lock(&self, grant: LockGrant, step: &mut Step) {
        let mut table = self.lock();
        let LockGrant { file, lock, state, piece: Piece { range, .. }, .. } = grant;
        let holder = Holder { owner: lock, state };
        if !table.files.lock_states().contains(state) {
            release_ended(&table, &grant, step);
            return;
        }
        table.files.change_locks(lock, |locks| locks.undo(holder, range));
        let is_asked_for =
            || table.files.locks(file).is_some_and(|locks| locks.is_asked_for(holder));
        let is_unused = table.files.ranges(state).is_none() && !is_asked_for();
        if is_unused && table.files.lock_states().get(state).seqid == 0 {
            table.files.remove_lock_state(state, step);
        }
        if table.files.lock_states().has(lock) {
            // An earlier LOCKU left to the kernel what this grant had taken over.
            step.effects.push(Effect::Unlock { file, lock, range });
        }
        table.files.wake(file, &Freed::range(range), step);
    }

    /// Takes back a lock of a client for which there is no descriptor, and returns the answer.
    pub(crate) fn put_off_lock(
        &self,
        client: ClientId,
        grant: LockGrant,
        step: &mut Step,
    ) -> Status {
        self.undo_lock(grant, step);
        self.lock().put_off(client, Bounded::LockOwners, step)
    }

    /// The pieces that the owner of a lock would hold in the file without the grant.
    pub(crate) fn pieces_before(&self, grant: &LockGrant) -> Vec<Piece> {
        let table = self.lock();
        let (mut ranges, range) = (table.files.held(grant.lock, Range::ALL), grant.piece.range);
        let locks = table.files.locks(grant.file);
        match locks.and_then(|locks| locks.before_grant(grant.lock, range)) {
            Some(before) => ranges.restore(range, &before),
            None => ranges.unlock(range),
        }
        ranges.iter().collect()
    }

    /// The parts of a range that a lock owner does not hold: all, if it has no lock state any more.
    pub(crate) fn unheld(&self, lock: LockId, range: Range) -> Vec<Range> {
        self.lock().files.held(lock, range).gaps(range)
    }

    /// LOCKT: whether a lock could be granted, as far as is known here.
    ///
    /// # Errors
    /// `Denied`; `Inval`; `Grace`.
    pub(crate) fn test_lock(
        &self,
        (client, export, owner): (ClientId, ExportId, &[u8]),
        file: FileId,
        range: LockRange,
        kind: LockType,
        step: &mut Step,
    ) -> Result<TestedLock, LockFailure> {
        let mut table = self.lock();
        table.check_claim(client, false)?;
        let piece = Piece { range: Range::new(range)?, kind: kind.into() };
        let owner = Owner { client, export, name: owner.into() };
        match self.conflict(&mut table, file, &owner, piece, step) {
            Some((_, conflict)) => Err(LockFailure::Denied(conflict)),
            None => {
                // The kernel is asked next. The records of those that have lost locks come first.
                table.settle_records(step);
                Ok(TestedLock { wanted: piece, own: table.files.lock_of(file, &owner) })
            }
        }
    }

    /// LOCKU. What the owner does not hold in the range does not matter, nor through which of its
    /// opens it has locked the rest.
    ///
    /// # Errors
    /// `BadStateid`, `OldStateid`, `Inval`; `Delay` when there are too many ranges to split one.
    pub(crate) fn unlock_range(
        &self,
        client: ClientId,
        stateid: &Stateid,
        file: FileId,
        range: LockRange,
        step: &mut Step,
    ) -> Result<Stateid, Status> {
        let mut table = self.lock();
        let range = Range::new(range)?;
        let StateKey::Lock(state) = self.key_of(&table, client, stateid, file)? else {
            return Err(Status::BadStateid);
        };
        let lock = table.files.lock_states().get(state).lock;
        if table.files.locks(file).is_some_and(|locks| locks.is_split_by(lock, range)) {
            self.make_room_for_lock(&mut table, client, step)?;
        }
        let freed = table.files.change_locks(lock, |locks| locks.unlock(lock, range));
        // The descriptor stays with the owner, which may be locking again already.
        step.effects.push(Effect::Unlock { file, lock, range });
        table.files.wake(file, &freed, step);
        let seqid = table.files.advance_lock_state(state);
        Ok(self.stateid(state, seqid))
    }

    /// The open below which a lock is to be, its owner, and the lock state that this has there.
    fn lock_owner(
        &self,
        table: &Table,
        call: &Lock<'_>,
    ) -> Result<(u64, Owner, Option<u64>), Status> {
        match call.target {
            LockTarget::New { open, owner } => {
                let open = self.open_number(table, call.client, open, call.file)?;
                let Owner { client, export, .. } = table.files.open(open).owner;
                let owner = Owner { client, export, name: owner.into() };
                let known = table.files.lock_state_of(open, &owner);
                Ok((open, owner, known))
            }
            LockTarget::Known(stateid) => {
                match self.key_of(table, call.client, stateid, call.file)? {
                    StateKey::Lock(number) => {
                        let LockState { lock, open, .. } = table.files.lock_states().get(number);
                        let owner = table.files.lock_states().owner(lock).clone();
                        Ok((open, owner, Some(number)))
                    }
                    StateKey::Open(_) => Err(Status::BadStateid),
                }
            }
        }
    }

    /// A lock of another owner in the way, and that owner, after expired clients have made way.
    fn conflict(
        &self,
        table: &mut Table,
        file: FileId,
        owner: &Owner,
        wanted: Piece,
        step: &mut Step,
    ) -> Option<(LockId, Conflict)> {
        loop {
            let own = table.files.lock_of(file, owner);
            let (id, piece) = table.files.locks(file)?.conflict(own, wanted)?;
            let holder = table.files.lock_states().owner(id).clone();
            let is_other = holder.client != owner.client;
            if !is_other || !self.forget_expired(table, [holder.client], step) {
                return Some((id, Conflict::new(&holder, piece)));
            }
        }
    }

    /// Notes a denied blocking request, if its address and its client have room for it.
    fn note_waiter(&self, table: &mut Table, file: FileId, denied: Denied, step: &mut Step) {
        let id = denied.owner.client;
        let Limits { waiters_max, peer_waiters_max, client_waiters_max, .. } = self.limits;
        let (all, own) = (table.files.waiting(), Files::waiting_of);
        let is_full = table.is_peer_full(id, all, peer_waiters_max, own);
        let client = if is_full { 0 } else { client_waiters_max };
        let is_full = table.peer_waiters_in(id, file) >= PEER_WAITERS_MAX;
        let of_file = if is_full { 0 } else { WAITERS_MAX };
        let bounds = WaiterBounds { all: waiters_max, client, file: of_file };
        table.files.wait(file, denied, bounds, step);
    }

    fn make_room_for_lock(
        &self,
        table: &mut Table,
        client: ClientId,
        step: &mut Step,
    ) -> Result<(), Status> {
        let all = |table: &Table| table.files.locks_and_ranges();
        let peer_max = (self.limits.peer_locks_max + 1).saturating_sub(LOCK_GROWTH_MAX);
        let is_peer_full = |table: &Table| {
            table.is_peer_full(client, all(table), peer_max, Files::locks_and_ranges_of)
        };
        let is_full = |table: &Table| all(table) + LOCK_GROWTH_MAX > self.limits.locks_max;
        self.make_room(table, client, Bounded::Locks, (is_peer_full, is_full), step)
    }

    fn make_room_for_lock_owner(
        &self,
        table: &mut Table,
        call: &Lock<'_>,
        name_bytes: usize,
        step: &mut Step,
    ) -> Result<(), Status> {
        let is_peer_full = |table: &Table| {
            let all = table.files.lock_states().len();
            let own = Files::lock_states_of;
            let of_file = table.files.file_counts(call.file).lock_states;
            let own_of_file =
                |files: &Files, client| files.file_counts_of(call.file, client).lock_states;
            let peer_file_max = self.limits.peer_file_lock_owners_max;
            table.is_peer_full(call.client, all, self.limits.peer_lock_owners_max, own)
                || table.is_peer_full(call.client, of_file, peer_file_max, own_of_file)
                || self.is_peer_full_of_names(table, call.client, name_bytes)
        };
        let is_full = |table: &Table| {
            let all = table.files.lock_states().len();
            let of_file = table.files.file_counts(call.file).lock_states;
            all >= self.limits.lock_owners_max
                || of_file >= self.limits.file_lock_owners_max
                || self.is_full_of_names(table, name_bytes)
        };
        self.make_room(table, call.client, Bounded::LockOwners, (is_peer_full, is_full), step)
    }
}

/// Has the kernel's lock released of a grant whose lock state has ended: the effects of that came
/// before the lock. An owner with other lock states keeps this one meanwhile ([`Files::is_tied`]);
/// the kernel's locks of the others must not end in any case.
fn release_ended(table: &Table, grant: &LockGrant, step: &mut Step) {
    let LockGrant { file, lock, piece: Piece { range, .. }, .. } = *grant;
    let has_others = table.files.lock_states().has(lock);
    debug_assert!(!has_others, "its lock state is tied");
    let release = Effect::Release { file, lock };
    step.effects.push(if has_others { Effect::Unlock { file, lock, range } } else { release });
}

impl Table {
    /// Requests that wait for a file, of all clients at the address of this one.
    fn peer_waiters_in(&self, client: ClientId, file: FileId) -> usize {
        let peer = |id| self.clients.get(id).map(|client| client.peer);
        let own = peer(client);
        let waiting = self.files.locks(file).into_iter().flat_map(FileLocks::waiting);
        waiting.filter(|client| peer(*client) == own).count()
    }
}

impl Conflict {
    fn new(owner: &Owner, piece: Piece) -> Self {
        Self { client: owner.client, owner: Arc::clone(&owner.name), piece }
    }

    /// As `LOCK4denied` has it.
    pub(crate) fn kind(&self) -> LockType {
        match self.piece.kind {
            LockKind::Read => LockType::Read,
            LockKind::Write => LockType::Write,
        }
    }
}

/// A LOCK makes a lock state, and cuts a range into three. Until the kernel has answered, what was
/// there counts too, and one more.
const LOCK_GROWTH_MAX: usize = 5;
