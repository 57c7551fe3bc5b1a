//! Changes the flags of a mounted file system.

use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, mount_remount};

use super::kernel::{MountError, SUBTYPE, check, refused};
use super::mount_table::MountTable;
use crate::mount_options::MountRequest;

/// Gives the file system of this program that is mounted on `dir` the flags of `request`: `ro`,
/// `sync`, `dev`, `suid`, `exec`. The kernel takes no other options. Blocks.
///
/// # Errors
/// [`MountError`] with the reason: `EBUSY` for `ro` while a file is open for writing.
pub fn remount(dir: &Path, request: &MountRequest) -> Result<(), MountError> {
    let dir = check(dir)?;
    let table = MountTable::read().map_err(|error| refused(&dir, &error))?;
    let kind = format!("fuse.{SUBTYPE}");
    if table.topmost_on(&dir).is_none_or(|topmost| topmost.kind != kind) {
        return Err(MountError::NotMounted { dir });
    }
    let set = |flag: MountFlags, is_set| if is_set { flag } else { MountFlags::empty() };
    let allowed = request.fuse.flags;
    let flags = set(MountFlags::RDONLY, request.nfs.read_only)
        | set(MountFlags::SYNCHRONOUS, request.nfs.sync)
        | set(MountFlags::NODEV, !allowed.dev)
        | set(MountFlags::NOSUID, !allowed.suid)
        | set(MountFlags::NOEXEC, !allowed.exec);
    mount_remount(&dir, flags, c"").map_err(|errno| refused(&dir, &io::Error::from(errno)))
}
