//! Who may do what: ACCESS, and the check that READ and WRITE repeat on every call.
//!
//! Namespace operations run as the caller, and the kernel decides. READ and WRITE go through
//! descriptors that the server opened, so they are decided here, each time anew from the inode as it
//! is now: a chown or chmod on the server fences at once. Mode bits alone do not tell what an
//! access control list grants; where there is one, the kernel is asked.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::Access;
use rustix::io::Errno;

use super::{Attributes, Caller, Object, Status, Vfs};
use crate::open_files::OpenFile;

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

/// What the mode bits say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Denied,
    /// The bits of a class that an access control list may widen or narrow.
    UnlessList(bool),
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
        let file = self.open(object).await?;
        let opened = Arc::clone(&file);
        let mut rights = self
            .in_metadata_lane(caller.identity.clone(), move || {
                let may = |access| kernel_allows(&opened, access);
                Ok(AccessRights {
                    read: may(Access::READ_OK),
                    write: may(Access::WRITE_OK),
                    execute: may(Access::EXEC_OK),
                })
            })
            .await?;
        rights.write &= !caller.read_only;
        Ok((self.attributes(&file).await?, rights))
    }

    /// Whether `caller` may read or write the data of a file with these attributes now. The owner
    /// always may: a client checks the mode when it opens the file, and goes on writing after a
    /// chmod that would forbid a second open.
    ///
    /// # Errors
    /// `Access`.
    pub(super) async fn authorize_data(
        &self,
        caller: &Caller,
        file: &Arc<OpenFile>,
        descriptor: impl AsFd,
        attributes: &Attributes,
        wanted: Access,
    ) -> Result<(), Status> {
        let allowed = match by_mode(caller, attributes, wanted) {
            Verdict::Allowed => true,
            Verdict::Denied => false,
            Verdict::UnlessList(allowed) => {
                if has_access_list(descriptor) {
                    let file = Arc::clone(file);
                    self.in_metadata_lane(caller.identity.clone(), move || {
                        let paging = wanted == Access::READ_OK;
                        Ok(kernel_allows(&file, wanted)
                            || (paging && kernel_allows(&file, Access::EXEC_OK)))
                    })
                    .await?
                } else {
                    allowed
                }
            }
        };
        if allowed { Ok(()) } else { Err(Status::Access) }
    }
}

/// Decides from owner, group and mode. Reading is also allowed to who may only execute, because a
/// client pages a program in with READ (RFC 1813 §4.4).
fn by_mode(caller: &Caller, attributes: &Attributes, wanted: Access) -> Verdict {
    if caller.uid == 0 || caller.uid == attributes.uid {
        return Verdict::Allowed;
    }
    let in_group = caller.gid == attributes.gid || caller.groups.contains(&attributes.gid);
    let class = if in_group { attributes.mode >> 3 } else { attributes.mode } & 7;
    let needed = if wanted.contains(Access::WRITE_OK) { 0o2 } else { 0o5 };
    let allowed = class & needed != 0;
    // With no permission in the group bits, which are then the list's mask, and none for others,
    // no list can grant anything.
    if attributes.mode & 0o077 == 0 { Verdict::Denied } else { Verdict::UnlessList(allowed) }
}

/// Asks the kernel, as the identity of this thread.
fn kernel_allows(file: &OpenFile, wanted: Access) -> bool {
    io::check_access(file.fd(), wanted).is_ok()
}

/// Whether a file has a POSIX access control list beyond its mode bits. The kernel keeps the answer
/// with the inode.
fn has_access_list(fd: impl AsFd) -> bool {
    match rustix::fs::fgetxattr_query(fd, c"system.posix_acl_access") {
        Ok(len) => len > 0,
        Err(Errno::NODATA | Errno::OPNOTSUPP) => false,
        // Unreadable: assume one.
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::Timestamp;
    use io::Identity;
    use rustix::fs::FileType;

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        let groups: Arc<[u32]> = groups.into();
        Caller { xid: 0, uid, gid, groups, read_only: false, identity: Identity::Server }
    }

    fn file(mode: u32) -> Attributes {
        let zero = Timestamp { seconds: 0, nanoseconds: 0 };
        Attributes {
            file_type: FileType::RegularFile,
            mode,
            nlink: 1,
            uid: 10,
            gid: 20,
            size: 0,
            used: 0,
            rdev: (0, 0),
            device: (0, 0),
            fileid: 1,
            atime: zero,
            mtime: zero,
            ctime: zero,
            is_mount_root: false,
        }
    }

    #[test]
    fn mode_bits_decide_by_class() {
        use Verdict::{Allowed, Denied, UnlessList};
        let (read, write) = (Access::READ_OK, Access::WRITE_OK);
        let cases = [
            (caller(0, 0, &[]), 0o000, write, Allowed),
            (caller(10, 1, &[]), 0o000, write, Allowed),
            (caller(11, 20, &[]), 0o640, read, UnlessList(true)),
            (caller(11, 20, &[]), 0o640, write, UnlessList(false)),
            (caller(11, 1, &[5, 20]), 0o660, write, UnlessList(true)),
            (caller(11, 1, &[]), 0o604, read, UnlessList(true)),
            (caller(11, 1, &[]), 0o711, read, UnlessList(true)),
            (caller(11, 1, &[]), 0o600, read, Denied),
            // The group class hides the class of others.
            (caller(11, 20, &[]), 0o606, write, UnlessList(false)),
        ];
        for (caller, mode, wanted, verdict) in cases {
            assert_eq!(by_mode(&caller, &file(mode), wanted), verdict, "{mode:o} {wanted:?}");
        }
    }
}
