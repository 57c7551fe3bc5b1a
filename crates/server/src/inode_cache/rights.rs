//! The rights of a caller to an object: known, or asked of the kernel. An answer that may follow from
//! the mount is not remembered.

use std::time::SystemTime;

use io::Identity;
use rustix::fs::Access;

use super::{AccessRights, Inode};
use crate::fs::{LiveAttributes, Status};

impl Inode {
    /// The rights of a caller to an object with these attributes now, if they are known. The export
    /// may limit them further. Waits for nothing.
    pub(crate) fn known_rights(
        &self,
        identity: &Identity,
        live: &LiveAttributes,
    ) -> Option<AccessRights> {
        let rights = self.rights.find(identity, live.ctime)?;
        // A mount that became read-only or lost execution meanwhile refuses the server too.
        let mut granted = Access::empty();
        granted.set(Access::WRITE_OK, rights.write);
        granted.set(Access::EXEC_OK, rights.execute && live.is_regular());
        let is_granted = granted.is_empty() || io::check_access(self.fd(), granted).is_ok();
        is_granted.then_some(rights)
    }

    /// Whether it is known that a caller may look names up in a directory with these attributes now.
    /// Waits for nothing.
    pub(crate) fn is_known_to_search(&self, identity: &Identity, live: &LiveAttributes) -> bool {
        match self.rights.find(identity, live.ctime) {
            Some(rights) => rights.execute,
            // Everybody may.
            None => live.mode & 0o111 == 0o111 && !self.has_access_list(),
        }
    }

    /// Asks the kernel for the rights of `identity`, which this thread has, to an object that had
    /// these attributes before. Access control lists and security modules count. May block.
    ///
    /// # Errors
    /// Any other than a refusal: a disk that fails denies no caller access.
    pub(crate) fn ask_rights(
        &self,
        identity: &Identity,
        before: &LiveAttributes,
    ) -> Result<AccessRights, Status> {
        let is_settled =
            self.root.attributes_in_memory && before.ctime.is_settled(SystemTime::now());
        let mut lasts = is_settled;
        let mut may = |wanted| match io::check_access(self.fd(), wanted).map_err(Status::from) {
            Ok(()) => Ok(true),
            Err(status @ (Status::Access | Status::NotOwner | Status::ReadOnly)) => {
                lasts &= status != Status::ReadOnly;
                Ok(false)
            }
            Err(status) => Err(status),
        };
        let rights = AccessRights {
            read: may(Access::READ_OK)?,
            write: may(Access::WRITE_OK)?,
            execute: may(Access::EXEC_OK)?,
        };
        // The refusal of a mount without execution looks like that of the mode.
        let is_by_mount = before.is_regular() && before.mode & 0o111 != 0 && !rights.execute;
        if lasts && !is_by_mount {
            self.rights.remember(identity, before.ctime, rights);
        }
        Ok(rights)
    }

    /// Has the rights of `identity`, which this thread has, to a directory known, for look-ups to
    /// come. `before`: its attributes before. May block.
    pub(crate) fn learn_rights(&self, identity: &Identity, before: &LiveAttributes) {
        let is_settled = before.ctime.is_settled(SystemTime::now());
        if is_settled && self.rights.find(identity, before.ctime).is_none() {
            // Nothing is remembered then.
            let _ = self.ask_rights(identity, before);
        }
    }
}
