//! ACCESS, and the permission that READ and WRITE need on every call.

use std::sync::Arc;

use io::Identity;

use super::{Attributes, Caller, LiveAttributes, Object, Status, Vfs};
use crate::counters::{Phase, PhaseTimer};
use crate::inode_cache::{AccessRights, DataUse, Inode, Permitted};

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
        let (file, live) = self.open_inode(object).await?;
        let live = match live {
            Some(live) => live,
            None => self.live_attributes(&file).await?,
        };
        let attributes = file.lock.attributes(live);
        let mut rights = match file.known_rights(&caller.identity, &live) {
            Some(rights) => rights,
            None => {
                self.engine.ask_for_metadata_thread().await;
                let identity = caller.identity.clone();
                let ask = move || file.ask_rights(&identity, &live);
                self.in_metadata_lane(caller.identity.clone(), ask).await?
            }
        };
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

/// Whether an identity may do what takes the owner of an object, who is shown as `owner`. Where
/// that proves nothing, and of the server's own, the kernel alone decides.
pub(super) fn may_be_owner(identity: &Identity, owner: u32) -> bool {
    match identity {
        Identity::Server => true,
        Identity::User { uid, .. } => *uid == 0 || identity.is_owner(owner) != Some(false),
    }
}
