//! File systems: which one is under a directory.

use std::fs;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::{Error, Result};

/// The file system that a directory is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// As `xfs`, `overlay`.
    pub kind: String,
    /// The source of the mount: mostly a device, `/dev/loop0`.
    pub source: String,
    /// Number of the device, or of what stands for it.
    pub(super) number: String,
}

impl FileSystem {
    /// Of a directory or file.
    ///
    /// # Errors
    /// [`Error::Machine`]: it is missing, or `/proc` is.
    pub fn of(path: &Path) -> Result<Self> {
        let what = || Error::machine(format!("file system of {}", path.display()));
        // The number of the mount, which no bind mount or mount over another can deceive.
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID);
        let mount_id = found.map_err(|error| what()(error.into()))?.stx_mnt_id;
        let mounts = fs::read_to_string("/proc/self/mountinfo");
        let mounts = mounts.map_err(Error::machine("/proc/self/mountinfo"))?;
        Self::of_mount(mount_id, &mounts).ok_or_else(|| what()(std::io::ErrorKind::NotFound.into()))
    }

    /// From the line of `/proc/self/mountinfo` that describes the mount.
    fn of_mount(mount_id: u64, mounts: &str) -> Option<Self> {
        let mut lines = mounts.lines().filter_map(|line| line.split_once(' '));
        let (_, line) = lines.find(|(id, _)| id.parse() == Ok(mount_id))?;
        let number = line.split(' ').nth(1)?.to_owned();
        let (_, system) = line.split_once(" - ")?;
        let mut fields = system.split(' ');
        let kind = fields.next()?.to_owned();
        Some(Self { kind, source: unescaped(fields.next()?), number })
    }
}

/// Blanks and the like are written as `\040`.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                whole.push(char::from(code));
                whole += &part[3..];
            }
            None => {
                whole.push('\\');
                whole += part;
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_the_kernel_are_decoded() {
        assert_eq!(unescaped(r"/mnt/a\040b\134c"), r"/mnt/a b\c");
        assert_eq!(unescaped(r"odd\"), r"odd\");
    }

    #[test]
    fn a_mount_is_found_by_its_number() {
        let mounts = "22 27 0:21 / /proc rw - proc proc rw\n\
            90 27 0:44 / /mnt/a\\040b rw,noatime shared:1 master:2 - btrfs /dev/vda2 rw,space\n";
        let found = FileSystem::of_mount(90, mounts).unwrap();
        assert_eq!((found.kind.as_str(), found.source.as_str()), ("btrfs", "/dev/vda2"));
        assert_eq!(found.number, "0:44");
        assert_eq!(FileSystem::of_mount(2, mounts), None);
    }

    #[test]
    fn file_systems_are_found_and_missing_directories_are_errors() {
        assert_eq!(FileSystem::described(Path::new("/proc")).unwrap(), "proc");
        assert!(FileSystem::of(Path::new("/missing/directory")).is_err());
    }
}
