//! Stateids and locks: CLOSE, OPEN_DOWNGRADE, TEST_STATEID, FREE_STATEID, LOCK, LOCKT, LOCKU.

use std::sync::Arc;

use proto::nfs4::{
    ClientId, CloseArgs, LockArgs, LockDenied, LockOwner, Locker, LocktArgs, LockuArgs, NFS4_OK,
    OPAQUE_BYTES_MAX, OneStateid, OpenDowngradeArgs, OperationCode, SHARE_ACCESS_MASK, ShareAccess,
    ShareDeny, Stateid, Status, TEST_STATEIDS_MAX, TestStateidArgs, TestStateidOk,
};
use proto::xdr::{Array, Encode, Reader};

use super::compound::Compound;
use super::filehandle::Located;
use super::operation::decoded;
use super::results::RESULT_BYTES_MAX;
use super::{Outcome, Refused};
use crate::fs::{Caller, OpenedFor};
use crate::held_files::{export_id, file_id};
use crate::inode_cache::Inode;
use crate::state::{Conflict, FileId, IoState, Lock, LockFailure, LockTarget, Piece, State, Step};

/// Room for the result of a LOCK or LOCKT that is denied: it names the owner of the other lock.
const DENIED_BYTES_MAX: usize = RESULT_BYTES_MAX + OPAQUE_BYTES_MAX;

impl Compound<'_> {
    /// Replaces the special stateid that means the current one (RFC 8881 §16.2.3.1.2).
    pub(super) fn known_stateid(&self, stateid: &Stateid) -> Outcome<Stateid> {
        if *stateid != Stateid::CURRENT {
            return Ok(*stateid);
        }
        let current = self.current.as_ref().and_then(|current| current.stateid);
        current.ok_or(Status::BadStateid.into())
    }

    /// Makes a stateid the current one.
    pub(super) fn set_stateid(&mut self, stateid: Stateid) {
        if let Some(current) = &mut self.current {
            current.stateid = Some(stateid);
        }
    }

    /// The file behind an object, held while its state is looked at.
    pub(super) async fn hold(&self, located: &Located) -> Outcome<(Arc<Inode>, FileId)> {
        let inode = self.request.service.vfs.hold(&located.object).await?;
        let file = file_id(&inode);
        Ok((inode, file))
    }

    /// Checks the stateid of an operation on data. Returns the caller with what the stateid permits,
    /// and the file.
    pub(super) async fn check_io(
        &self,
        located: &Located,
        stateid: &Stateid,
        access: ShareAccess,
    ) -> Outcome<(Caller, Arc<Inode>)> {
        let mut caller = located.caller.clone();
        let stateid = self.known_stateid(stateid)?;
        let (inode, file) = self.hold(located).await?;
        let (service, client) = (self.request.service, self.client()?);
        let wanted = (access, caller.uid);
        let check =
            |state: &State, step: &mut Step| state.check_io(client, &stateid, file, wanted, step);
        let was_permitted = service.change_state(check).await? == IoState::Opened;
        caller.opened = OpenedFor {
            reading: was_permitted && access.reads(),
            writing: was_permitted && access.writes(),
        };
        Ok((caller, inode))
    }

    /// CLOSE, RFC 8881 §18.2.
    pub(super) async fn close(&mut self, args: CloseArgs) -> Outcome<OneStateid> {
        let stateid = self.known_stateid(&args.stateid)?;
        let located = self.object_or(Status::BadStateid)?;
        let (inode, file) = self.hold(&located).await?;
        let (service, client) = (self.request.service, self.client()?);
        let close = |state: &State, step: &mut Step| state.close(client, &stateid, file, step);
        let closed = service.change_state(close).await;
        self.let_go(inode).await;
        let stateid = closed?;
        self.set_stateid(stateid);
        Ok(OneStateid { stateid })
    }

    /// After a hold of a file may have ended: the blocks of a removed file are free before the reply, as
    /// with REMOVE.
    pub(super) async fn let_go(&self, inode: Arc<Inode>) {
        let service = self.request.service;
        let gone = inode.is_over().then(|| inode.key());
        // The cache has another reference, or else the last one is closed by the device's threads.
        service.settlement.close(inode);
        if let Some(gone) = gone {
            service.vfs.let_go(&gone).await;
        }
    }

    /// OPEN_DOWNGRADE, RFC 8881 §18.18.
    pub(super) async fn open_downgrade(&mut self, args: OpenDowngradeArgs) -> Outcome<OneStateid> {
        let stateid = self.known_stateid(&args.stateid)?;
        let (access, deny) = share(args.share_access, args.share_deny)?;
        let located = self.object_or(Status::BadStateid)?;
        let (_inode, file) = self.hold(&located).await?;
        let (state, client) = (&self.request.service.state, self.client()?);
        let stateid = state.open_downgrade(client, &stateid, file, access, deny)?;
        self.set_stateid(stateid);
        Ok(OneStateid { stateid })
    }

    /// FREE_STATEID, RFC 8881 §18.38.
    pub(super) async fn free_stateid(&mut self, args: OneStateid) -> Outcome<()> {
        let stateid = self.known_stateid(&args.stateid)?;
        let (service, client) = (self.request.service, self.client()?);
        let free = |state: &State, step: &mut Step| state.free_stateid(client, &stateid, step);
        Ok(service.change_state(free).await?)
    }

    /// TEST_STATEID, RFC 8881 §18.48.
    pub(super) fn test_stateid(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let outcome = match decoded::<TestStateidArgs<'_>>(reader) {
            Ok(args) => self.statuses(&args),
            Err(refused) => Err(refused),
        };
        self.put_with(OperationCode::TestStateid, outcome, |statuses, results| {
            TestStateidOk { statuses: Array::from(&statuses[..]) }.encode(results.writer());
            Ok(())
        })
    }

    fn statuses(&self, args: &TestStateidArgs<'_>) -> Outcome<Vec<u32>> {
        let (state, client) = (&self.request.service.state, self.client()?);
        let mut statuses = Vec::with_capacity(TEST_STATEIDS_MAX.min(8));
        for stateid in args.stateids.iter() {
            let status = state.test_stateid(client, &stateid).err();
            statuses.push(status.map_or(NFS4_OK, Status::code));
        }
        Ok(statuses)
    }

    /// LOCK and LOCKT, RFC 8881 §18.10 and §18.11.
    pub(super) async fn lock_or_test(
        &mut self,
        operation: OperationCode,
        reader: &mut Reader<'_>,
    ) -> Result<(), Status> {
        // The conflict's description must fit once the lock was tried.
        if self.results.room() < DENIED_BYTES_MAX {
            let too_big = self.results.too_big();
            return Err(self.refuse(operation, too_big.into()));
        }
        let result = if operation == OperationCode::Lock {
            match decoded(reader) {
                Ok(args) => self.lock(args).await.map(Some),
                Err(refused) => Err(refused.into()),
            }
        } else {
            match decoded(reader) {
                Ok(args) => self.test_lock(args).await.map(|()| None),
                Err(refused) => Err(refused.into()),
            }
        };
        match result {
            Ok(Some(locked)) => self.put(operation, Ok(locked)),
            Ok(None) => self.put(operation, Ok(())),
            Err(Unlocked::Refused(refused)) => Err(self.refuse(operation, refused)),
            Err(Unlocked::Denied(conflict)) => {
                let status = self.refuse(operation, Status::Denied.into());
                denied(&conflict).encode(self.results.writer());
                Err(status)
            }
        }
    }

    async fn lock(&mut self, args: LockArgs<'_>) -> Result<OneStateid, Unlocked> {
        let located = self.object_or(Status::BadStateid)?;
        let (inode, file) = self.hold(&located).await?;
        let (service, client) = (self.request.service, self.client()?);
        let known;
        let target = match &args.locker {
            Locker::New { open, owner, .. } => {
                known = self.known_stateid(open)?;
                LockTarget::New { open: &known, owner: owner.owner }
            }
            Locker::Existing { stateid, .. } => {
                known = self.known_stateid(stateid)?;
                LockTarget::Known(&known)
            }
        };
        let (range, kind, is_reclaim) = (args.range, args.kind, args.reclaim);
        let object = self.place().map(|place| self.handle_of(place))?;
        let call = Lock { client, target, file, object, range, kind, is_reclaim };
        let grant = service.change_state(|state, step| state.lock_range(&call, step)).await?;
        let (grant, mirrored) = service.mirror(grant).await;
        let finish = |state: &State, step: &mut Step| match mirrored {
            Ok(None) => state.confirm_lock(grant, step).map_err(Unlocked::from),
            Ok(Some(foreign)) => {
                state.undo_lock(grant, step);
                // A local program was quicker than the client after the restart.
                Err(if is_reclaim {
                    Status::ReclaimConflict.into()
                } else {
                    Unlocked::Denied(local_conflict(foreign))
                })
            }
            Err(status) => {
                state.undo_lock(grant, step);
                Err(Refused::from(status).into())
            }
        };
        let finished = service.change_state(finish).await;
        drop(inode);
        let stateid = finished?;
        self.set_stateid(stateid);
        Ok(OneStateid { stateid })
    }

    async fn test_lock(&mut self, args: LocktArgs<'_>) -> Result<(), Unlocked> {
        let located = self.object_or(Status::Isdir)?;
        let (inode, file) = self.hold(&located).await?;
        let (service, client) = (self.request.service, self.client()?);
        let owner = (client, export_id(&inode), args.owner.owner);
        let test = |state: &State, step: &mut Step| {
            state.test_lock(owner, file, args.range, args.kind, step)
        };
        let tested = service.change_state(test).await?;
        match service.foreign_lock(inode, tested).await.map_err(Refused::from)? {
            Some(foreign) => Err(Unlocked::Denied(local_conflict(foreign))),
            None => Ok(()),
        }
    }

    /// LOCKU, RFC 8881 §18.12.
    pub(super) async fn unlock(&mut self, args: LockuArgs) -> Outcome<OneStateid> {
        let stateid = self.known_stateid(&args.stateid)?;
        let located = self.object_or(Status::BadStateid)?;
        let (_inode, file) = self.hold(&located).await?;
        let (service, client) = (self.request.service, self.client()?);
        let unlock = |state: &State, step: &mut Step| {
            state.unlock_range(client, &stateid, file, args.range, step)
        };
        let stateid = service.change_state(unlock).await?;
        self.set_stateid(stateid);
        Ok(OneStateid { stateid })
    }
}

/// Why a lock is not granted.
enum Unlocked {
    Refused(Refused),
    Denied(Conflict),
}

impl From<Refused> for Unlocked {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Status> for Unlocked {
    fn from(status: Status) -> Self {
        Self::Refused(status.into())
    }
}

impl From<LockFailure> for Unlocked {
    fn from(failure: LockFailure) -> Self {
        match failure {
            LockFailure::Denied(conflict) => Self::Denied(conflict),
            LockFailure::Status(status) => Self::Refused(status.into()),
        }
    }
}

/// The lock of a local program, which has no name here.
fn local_conflict(piece: Piece) -> Conflict {
    Conflict { client: ClientId(0), owner: Arc::default(), piece }
}

fn denied(conflict: &Conflict) -> LockDenied<'_> {
    let (client, owner) = (conflict.client, &*conflict.owner);
    LockDenied {
        range: conflict.piece.range.to_wire(),
        kind: conflict.kind(),
        owner: LockOwner { client, owner },
    }
}

/// The access and the deny mode of an open, without the wants.
///
/// # Errors
/// `Inval`.
pub(super) fn share(access: u32, deny: u32) -> Outcome<(ShareAccess, ShareDeny)> {
    let access = ShareAccess::from_code(access & SHARE_ACCESS_MASK).ok_or(Status::Inval)?;
    let deny = ShareDeny::from_code(deny).ok_or(Status::Inval)?;
    Ok((access, deny))
}
