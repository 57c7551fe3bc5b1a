//! Stateids: the current one, what they permit, TEST_STATEID and FREE_STATEID.

use std::sync::Arc;

use proto::nfs4::{
    NFS4_OK, OneStateid, OperationCode, ShareAccess, Stateid, Status, TestStateidArgs,
    TestStateidOk,
};
use proto::xdr::{Array, Encode, Reader};

use super::Outcome;
use super::compound::Compound;
use super::operation::decoded;
use super::resolved_handle::Located;
use crate::fs::{Caller, OpenedFor};
use crate::held_files::file_id;
use crate::inode_cache::Inode;
use crate::state::{FileId, IoState, State, Step};

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

    /// Checks the stateid of an operation on data. Returns the caller with what the stateid
    /// permits, and the file.
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
        let wanted = (access, caller.uid());
        let check =
            |state: &State, step: &mut Step| state.check_io(client, &stateid, file, wanted, step);
        let was_permitted = service.change_state(check).await? == IoState::Opened;
        caller.opened = OpenedFor {
            reading: was_permitted && access.reads(),
            writing: was_permitted && access.writes(),
        };
        Ok((caller, inode))
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
        let status = |stateid| state.test_stateid(client, &stateid).err();
        let statuses = args.stateids.iter().map(status);
        Ok(statuses.map(|status| status.map_or(NFS4_OK, Status::code)).collect())
    }
}
