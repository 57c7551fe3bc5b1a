//! ACCESS, and the permission that READ and WRITE need on every call.

use std::sync::Arc;

use rustix::fs::Access;

use super::{Attributes, Caller, LiveAttributes, Object, Status, Vfs};
use crate::counters::{Phase, PhaseTimer};
use crate::inode_cache::{DataUse, Inode, Permitted, kernel_allows};

/// Permissions, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessRights {
    /// Read data, list a directory.
    pub(crate) read: bool,
    /// Change data, add and remove names.
    pub(crate) write: bool,
    /// Execute a file, look names up in a directory.
    pub(crate) execute: bool,
}

impl Vfs {
    /// ACCESS, RFC 1813 §3.3.4: what `caller` may do with an object. The kernel answers, so access
    /// control lists and security modules count.
    ///
    /// # Errors
    /// `Stale`.
    pub(crate) async fn access(
        &self,
        caller: &Caller,
        object: &Object,
    ) -> Result<(Attributes, AccessRights), Status> {
        let file = self.inode(object).await?;
        let attributes = self.attributes(&file).await?;
        let mut rights = self
            .in_metadata_lane(caller.identity.clone(), move || {
                let may = |access| kernel_allows(&file, access);
                Ok(AccessRights {
                    read: may(Access::READ_OK)?,
                    write: may(Access::WRITE_OK)?,
                    execute: may(Access::EXEC_OK)?,
                })
            })
            .await?;
        rights.write &= !caller.read_only;
        Ok((attributes, rights))
    }

    /// As [`Permitted::check`]. `timer` is in the phase permission.
    pub(super) async fn permit<U: DataUse>(
        &self,
        caller: &Caller,
        file: &Arc<Inode>,
        attributes: &LiveAttributes,
        timer: &mut PhaseTimer<'_>,
    ) -> Result<Permitted<U>, Status> {
        let permitted = Permitted::check(caller, file, attributes, &self.engine).await;
        timer.end(Phase::Permission);
        permitted
    }
}
