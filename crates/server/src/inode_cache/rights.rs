//! The rights of a caller to an object: known, or asked of the kernel. An answer that may follow
//! from the mount is not remembered.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime};

use io::Identity;
use rustix::fs::Access;

use super::known_rights::Answer;
use super::{AccessRights, Inode};
use crate::fs::{LiveAttributes, Status};

const READ_WRITE_EXECUTE: Access = Access::READ_OK.union(Access::WRITE_OK).union(Access::EXEC_OK);

impl Inode {
    /// The rights of a caller to an object with these attributes now, if they are known. The export
    /// may limit them further. Waits for nothing.
    pub(crate) fn known_rights(
        &self,
        identity: &Identity,
        live: &LiveAttributes,
    ) -> Option<AccessRights> {
        let granted = self.known(identity, READ_WRITE_EXECUTE, live)?;
        // A mount that became read-only or lost execution meanwhile refuses the server too.
        let mut by_mount = granted & Access::WRITE_OK;
        by_mount |= if live.is_regular() { granted & Access::EXEC_OK } else { Access::empty() };
        let is_granted = by_mount.is_empty() || io::check_access(self.fd(), by_mount).is_ok();
        is_granted.then(|| rights(granted))
    }

    /// Whether it is known that a caller may look names up in a directory with these attributes
    /// now. Waits for nothing.
    pub(crate) fn is_known_to_search(&self, identity: &Identity, live: &LiveAttributes) -> bool {
        if let Some(granted) = self.known(identity, Access::EXEC_OK, live) {
            return !granted.is_empty();
        }
        let everybody = live.mode & 0o111 == 0o111;
        let remembers = everybody && self.may_remember(identity, live);
        let may = everybody && self.has_no_access_list_in_memory();
        if may && remembers {
            self.remember(identity, Access::EXEC_OK, Access::EXEC_OK, live);
        }
        may
    }

    /// Whether a caller is known to have one of the permissions `wanted` to an object with these
    /// attributes now. Waits for nothing.
    pub(super) fn is_known_to_grant(
        &self,
        identity: &Identity,
        wanted: Access,
        live: &LiveAttributes,
    ) -> bool {
        let granted = |one| self.known(identity, one, live).is_some_and(|known| !known.is_empty());
        wanted.iter().any(granted)
    }

    /// As [`Self::ask_rights`], for one of the permissions `wanted`.
    ///
    /// # Errors
    /// As [`Self::ask_rights`].
    pub(super) fn ask_to_grant(
        &self,
        identity: &Identity,
        wanted: Access,
        before: &LiveAttributes,
    ) -> Result<bool, Status> {
        Ok(!self.ask(identity, wanted, before)?.is_empty())
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
        Ok(rights(self.ask(identity, READ_WRITE_EXECUTE, before)?))
    }

    /// Has it known whether `identity`, which this thread has, may look names up in a directory,
    /// for look-ups to come. `before`: its attributes before. May block.
    pub(crate) fn learn_to_search(&self, identity: &Identity, before: &LiveAttributes) {
        if self.may_remember(identity, before)
            && self.known(identity, Access::EXEC_OK, before).is_none()
        {
            // Nothing is remembered then.
            let _ = self.ask(identity, Access::EXEC_OK, before);
        }
        // Where everybody may, that is known as soon as the kernel was asked for a list, also of a
        // directory that changes all the time, of which no answer lasts.
        if self.root.attributes_in_memory && !self.is_access_list_in_memory.load(Relaxed) {
            self.has_access_list();
        }
    }

    /// Asks for each of the permissions `wanted`, returns those that are granted, and remembers
    /// what may be.
    fn ask(
        &self,
        identity: &Identity,
        wanted: Access,
        before: &LiveAttributes,
    ) -> Result<Access, Status> {
        let remembers = self.may_remember(identity, before);
        let (mut lasting, mut granted) = (wanted, Access::empty());
        for one in wanted.iter() {
            match io::check_access(self.fd(), one).map_err(Status::from) {
                Ok(()) => granted |= one,
                Err(Status::Access | Status::NotOwner) => {}
                Err(Status::ReadOnly) => lasting -= one,
                Err(status) => return Err(status),
            }
        }
        // The refusal of a mount without execution looks like that of the mode.
        if before.is_regular() && before.mode & 0o111 != 0 && !granted.contains(Access::EXEC_OK) {
            lasting -= Access::EXEC_OK;
        }
        if remembers {
            // Remembered rights are used where nothing may wait: this brings the list into memory.
            self.has_access_list();
            self.remember(identity, lasting, granted & lasting, before);
        }
        Ok(granted)
    }

    /// The permissions among `wanted` that a caller is known to have.
    fn known(&self, identity: &Identity, wanted: Access, live: &LiveAttributes) -> Option<Access> {
        self.rights.find(identity, wanted, live.ctime, Instant::now())
    }

    /// Whether an answer to a question that comes after this call would last, and be remembered.
    fn may_remember(&self, identity: &Identity, before: &LiveAttributes) -> bool {
        self.root.attributes_in_memory
            && before.ctime.is_settled(SystemTime::now())
            && self.rights.has_room(identity, before.ctime, Instant::now())
    }

    fn remember(
        &self,
        identity: &Identity,
        asked: Access,
        granted: Access,
        before: &LiveAttributes,
    ) {
        self.rights.remember(identity, Answer { asked, granted }, before.ctime, Instant::now());
    }
}

fn rights(granted: Access) -> AccessRights {
    AccessRights {
        read: granted.contains(Access::READ_OK),
        write: granted.contains(Access::WRITE_OK),
        execute: granted.contains(Access::EXEC_OK),
    }
}
