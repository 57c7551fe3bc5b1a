//! Changes of the names of objects that may be delegated.
//!
//! A change that the kernel would refuse is refused before the delegations are recalled: their
//! holders have nothing to return for it. Only regular files are delegated.

use std::ffi::CStr;
use std::fs;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use io::Identity;
use rustix::fs::Access;

use super::opening::open_if_there;
use crate::inode_cache::{Inode, NameChange, kernel_allows};
use crate::vfs::access::may_be_owner;
use crate::vfs::{Caller, Status, attributes_of, attributes_of_linked_or_not};

/// The caller of a change of names. The thread that makes the change has its identity.
pub(super) struct NameChanger {
    client: Option<NonZeroU64>,
    identity: Identity,
}

/// A directory, and the object that a name in it is of.
type Entry<'a> = (&'a Inode, Option<&'a OwnedFd>);

impl NameChanger {
    pub(super) fn of(caller: &Caller) -> Self {
        Self { client: caller.client, identity: caller.identity.clone() }
    }

    /// Begins REMOVE or RMDIR of an object, if there is one.
    ///
    /// # Errors
    /// `Delegated`; those of the kernel.
    pub(super) fn begin_removal(
        &self,
        directory: &Inode,
        object: Option<&OwnedFd>,
        is_directory: bool,
    ) -> Result<Option<NameChange>, Status> {
        let entry = (directory, object);
        self.begin(entry, || {
            self.check_entry(entry)?;
            if is_directory { Err(Status::NotDirectory) } else { Ok(()) }
        })
    }

    /// Begins RENAME of an object, or of one that cannot be opened, to an entry whose object it
    /// replaces. The kernel renames nothing if both are one object, and then checks nothing.
    ///
    /// # Errors
    /// As [`Self::begin_removal`].
    pub(super) fn begin_rename(
        &self,
        (from, moved): (&Inode, Result<&OwnedFd, Status>),
        to: Entry<'_>,
    ) -> Result<[Option<NameChange>; 2], Status> {
        let from = (from, moved.ok());
        if let (Some(moved), Some(replaced)) = (from.1, to.1)
            && is_one_object(moved, replaced)?
        {
            return Ok([None, None]);
        }
        let check = || {
            self.check_entry(from)?;
            self.check_entry(to)?;
            // The kernel decides on what cannot be opened for another reason.
            if moved.is_err_and(|status| status == Status::NoEntry) {
                return Err(Status::NoEntry);
            }
            Ok(())
        };
        Ok([self.begin(to, check)?, self.begin(from, check)?])
    }

    /// Begins LINK of an object to a name.
    ///
    /// # Errors
    /// As [`Self::begin_removal`].
    pub(super) fn begin_link(
        &self,
        directory: &Inode,
        object: &Inode,
        name: &CStr,
    ) -> Result<NameChange, Status> {
        directory.begin_name_change_in(&object.fd(), self.client, || {
            if open_if_there(directory, name)?.is_some() {
                return Err(Status::Exists);
            }
            self.check_entry((directory, None))?;
            let owner = attributes_of_linked_or_not(object.fd())?.uid;
            let may_link = may_be_owner(&self.identity, owner)
                || !are_links_protected()
                || kernel_allows(object, Access::READ_OK | Access::WRITE_OK)?;
            if may_link { Ok(()) } else { Err(Status::NotOwner) }
        })
    }

    fn begin(
        &self,
        (directory, object): Entry<'_>,
        check: impl FnOnce() -> Result<(), Status>,
    ) -> Result<Option<NameChange>, Status> {
        let begin = |object| directory.begin_name_change_in(object, self.client, check);
        object.map(begin).transpose()
    }

    /// Checks the right to change entries of a directory, and to take one from its object.
    ///
    /// # Errors
    /// `Access`, `ReadOnly`; `NotOwner` in a directory with the sticky bit.
    fn check_entry(&self, (directory, object): Entry<'_>) -> Result<(), Status> {
        io::check_access(directory.fd(), Access::WRITE_OK | Access::EXEC_OK)?;
        let Some(object) = object else { return Ok(()) };
        let around = attributes_of(directory.fd())?;
        // Stale would mean the directory.
        let object = attributes_of_linked_or_not(object)?;
        let is_owner = |uid| may_be_owner(&self.identity, uid);
        if around.mode & STICKY == 0 || is_owner(around.uid) || is_owner(object.uid) {
            Ok(())
        } else {
            Err(Status::NotOwner)
        }
    }
}

fn is_one_object(one: &OwnedFd, other: &OwnedFd) -> Result<bool, Status> {
    let [one, other] = [attributes_of_linked_or_not(one)?, attributes_of_linked_or_not(other)?];
    Ok((one.device, one.fileid) == (other.device, other.fileid))
}

/// Whether the kernel refuses links to files that their maker may not write (`protected_hardlinks`,
/// proc_sys_fs(5)).
fn are_links_protected() -> bool {
    fs::read("/proc/sys/fs/protected_hardlinks").is_ok_and(|value| value.first() == Some(&b'1'))
}

/// The mode bit by which only owners take names from a directory.
const STICKY: u32 = 0o1000;

#[cfg(test)]
mod tests {
    use rustix::fs::Mode;

    use super::*;
    use crate::fs::PATH_ONLY;
    use crate::inode_cache::Holders;
    use crate::test_server::directory;
    use crate::vfs::readable::{open, serve};

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn removal_of_a_file_that_is_not_open_holds_off_no_other_file() {
        let dir = directory();
        let export = dir.path().join("export");
        for name in ["delegated", "other", "removed"] {
            fs::write(export.join(name), name).unwrap();
        }
        let server = serve(dir.path()).await;
        let parent = open(&server, &export).await;
        let delegated = open(&server, &export.join("delegated")).await;
        let other = open(&server, &export.join("other")).await;
        delegated.set_holders(Holders::Several);
        let path = export.join("removed");
        let victim = rustix::fs::open(&path, PATH_ONLY, Mode::empty()).unwrap();
        let by = NameChanger { client: None, identity: Identity::Server };
        let removal = by.begin_removal(&parent, Some(&victim), false).unwrap();
        assert!(!other.has_name_changes());
        let removed = open(&server, &path).await;
        assert!(removed.has_name_changes(), "it is opened meanwhile");
        drop(removal);
        assert!(!removed.has_name_changes());
        delegated.set_holders(Holders::None);
    }
}
