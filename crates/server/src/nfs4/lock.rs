//! LOCK, LOCKT and LOCKU.

use std::sync::Arc;

use proto::nfs4::{
    ClientId, LockArgs, LockDenied, LockOwner, Locker, LocktArgs, LockuArgs, OneStateid,
    OperationCode, Status,
};
use proto::xdr::{Encode, Reader, Writer};

use super::compound::Compound;
use super::convert::check_regular;
use super::operation::decoded;
use super::resolved_handle::Located;
use super::{Outcome, Refused};
use crate::fs;
use crate::held_files::{NotMirrored, export_id};
use crate::inode_cache::AccessRights;
use crate::state::{Conflict, ExportId, FileId, Lock, LockFailure, LockTarget, Piece, State, Step};

/// The operation and the status of a result.
const RESULT_HEAD_BYTES: usize = 8;

impl Compound<'_> {
    /// LOCK and LOCKT, RFC 8881 §18.10 and §18.11.
    pub(super) async fn lock_or_test(
        &mut self,
        operation: OperationCode,
        reader: &mut Reader<'_>,
    ) -> Result<(), Status> {
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
                let mut description = Writer::new();
                denied(&conflict).encode(&mut description);
                if self.results.room() < RESULT_HEAD_BYTES + description.len() {
                    // No lock was taken. A blocking request waits for its turn all the same.
                    let too_big = self.results.too_big();
                    return Err(self.refuse(operation, too_big.into()));
                }
                let status = self.refuse(operation, Status::Denied.into());
                self.results.writer().array(description.as_slice());
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
        let object = self.current_handle().map(|handle| self.handle_of(handle))?;
        let call = Lock { client, target, file, object, range, kind, is_reclaim };
        let lock = |state: &State, step: &mut Step| state.lock_range(&call, step);
        let grant = service.change_state_undelegated(lock, &LockFailure::Delegated).await?;
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
            Err(NotMirrored::NoRoom) => Err(state.put_off_lock(client, grant, step).into()),
            Err(NotMirrored::Status(status)) => {
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
        check_regular(inode.file_type())?;
        self.check_use(&located, (file, export_id(&inode))).await?;
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

    /// LOCKT needs no open, names the locks of others, and opens the file, which breaks the leases
    /// of local programs. So it takes a right to the data of the file, or what stands for one: to
    /// own the file, or to have it open.
    async fn check_use(&self, located: &Located, file: (FileId, ExportId)) -> Outcome<()> {
        let (service, client) = (self.request.service, self.client()?);
        let Located { caller, object } = located;
        let (attributes, rights) = service.vfs.access(caller, object).await?;
        let AccessRights { read, write, execute } = rights;
        let is_opener = || service.state.is_opener(client, file, caller.uid());
        let is_owner = caller.identity.is_owner(attributes.uid) == Some(true);
        let may = read || write || execute || is_owner || is_opener();
        if may { Ok(()) } else { Err(fs::Status::Access.into()) }
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
            LockFailure::Delegated => Self::Refused(Status::Delay.into()),
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
