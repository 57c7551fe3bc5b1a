//! Changes the flags of a mounted file system.

use std::fs;
use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, mount_remount};

use super::kernel::{MountError, SUBTYPE, check, refused};
use crate::mount_options::MountRequest;

/// Gives the file system of this program that is mounted on `dir` the flags of `request`: `ro`,
/// `sync`, `dev`, `suid`, `exec`. The kernel takes no other options. Blocks.
///
/// # Errors
/// [`MountError`] with the reason: `EBUSY` for `ro` while a file is open for writing.
pub fn remount(dir: &Path, request: &MountRequest) -> Result<(), MountError> {
    let dir = check(dir)?;
    let table = fs::read("/proc/self/mountinfo").map_err(|error| refused(&dir, &error))?;
    if !has_mount(&String::from_utf8_lossy(&table), &dir) {
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

/// Whether the topmost file system on `dir` in the text of `/proc/self/mountinfo` is one of this
/// program.
fn has_mount(table: &str, dir: &Path) -> bool {
    let dir = escaped(dir);
    // proc_pid_mountinfo(5): the mount point is the fifth field, and the type follows ` - `.
    let found = table.lines().rfind(|line| line.split(' ').nth(4) == Some(&dir));
    let kind = found.and_then(|line| line.split_once(" - ")?.1.split(' ').next());
    kind == Some(&format!("fuse.{SUBTYPE}"))
}

/// The path as the kernel writes it in the table.
fn escaped(path: &Path) -> String {
    let mut escaped = String::new();
    for character in path.to_string_lossy().chars() {
        match character {
            ' ' | '\t' | '\n' | '\\' => escaped += &format!("\\{:03o}", u32::from(character)),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_topmost_file_system_on_a_directory_is_found() {
        let table = "21 1 0:19 / /m rw,nodev shared:2 - fuse.spillway h:/e rw,user_id=0\n\
            22 1 0:20 / /m\\040n rw - fuse.spillway h:/e rw\n\
            23 1 0:21 / /over rw - fuse.spillway h:/e rw\n\
            24 1 0:22 / /over rw - ext4 /dev/vda rw\n";
        let found = |dir: &str| has_mount(table, Path::new(dir));
        assert!(found("/m") && found("/m n"));
        assert!(!found("/over") && !found("/"));
    }
}
