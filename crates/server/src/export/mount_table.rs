//! Where paths lead inside file systems: several mounts can show one directory at different paths.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;

/// The kernel's table of mounts, `/proc/self/mountinfo`.
pub(super) struct MountTable(Vec<u8>);

/// A place inside a file system.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `MAJOR:MINOR` of the file system. The subvolumes of a btrfs share it, while stat(2) reports
    /// another one for each.
    device: Vec<u8>,
    /// From the root of the file system.
    path: PathBuf,
}

impl Place {
    /// Whether it is `directory` or below it.
    pub(super) fn is_in(&self, directory: &Self) -> bool {
        self.device == directory.device && self.path.starts_with(&directory.path)
    }
}

impl MountTable {
    /// # Errors
    /// There is no `/proc`.
    pub(super) fn read() -> std::io::Result<Self> {
        fs::read("/proc/self/mountinfo").map(Self)
    }

    /// The place of `path`, which is absolute and has no symbolic links. Its end may not exist yet.
    /// `None` before Linux 5.8, or if the table does not have its mount.
    pub(super) fn place_of(&self, path: &Path) -> Option<Place> {
        self.place_on(mount_of(path)?, path)
    }

    /// The place of a path on the mount with this number.
    fn place_on(&self, mount: u64, path: &Path) -> Option<Place> {
        let number = mount.to_string();
        let mut lines = self.0.split(|byte| *byte == b'\n');
        // proc_pid_mountinfo(5): the number, that of the parent, the device, the directory of the
        // file system that the mount shows, and the mount point.
        let mut fields = lines.find_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            (fields.next()? == number.as_bytes()).then_some(fields)
        })?;
        let device = fields.nth(1)?.to_vec();
        let (shown, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        let below = path.strip_prefix(point).ok()?;
        Some(Place { device, path: shown.join(below) })
    }
}

/// The number of the mount that a path is on, or will be once it exists.
fn mount_of(path: &Path) -> Option<u64> {
    for existing in path.ancestors() {
        match statx(CWD, existing, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID) {
            Ok(stat) => {
                let is_known = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
                return is_known.then_some(stat.stx_mnt_id);
            }
            Err(Errno::NOENT) => {}
            Err(_) => return None,
        }
    }
    None
}

/// A path of the table, where the kernel has replaced spaces and the like by `\` and three octal
/// digits.
fn unescaped(mut path: &[u8]) -> PathBuf {
    let mut unescaped = Vec::with_capacity(path.len());
    while let Some((first, rest)) = path.split_first() {
        let code = rest.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        unescaped.push(byte.unwrap_or(*first));
        path = if byte.is_some() { &rest[3..] } else { rest };
    }
    OsString::from_vec(unescaped).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip_in_ci_too;

    /// A disk with its root and two of its directories, another disk, and a subvolume.
    const TABLE: &[u8] = b"\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 8:1 /srv/a\\040b /mnt/c\\134d rw - ext4 /dev/sda1 rw
221 21 8:1 /srv /var/lib/spillway rw - ext4 /dev/sda1 rw
23 21 8:2 / /srv/disk rw master:2 - xfs /dev/sdb rw
24 21 0:40 /home/state /state rw - btrfs /dev/sdc rw
25 21 0:40 / /pool rw - btrfs /dev/sdc rw";

    fn place(mount: u64, path: &str) -> Option<(String, String)> {
        let place = MountTable(TABLE.to_vec()).place_on(mount, Path::new(path))?;
        let path = place.path.components().collect::<PathBuf>();
        Some((String::from_utf8(place.device).unwrap(), path.to_str().unwrap().to_owned()))
    }

    #[test]
    fn a_path_is_translated_by_the_line_of_its_mount() {
        let at = |device: &str, path: &str| Some((device.to_owned(), path.to_owned()));
        assert_eq!(place(21, "/etc/x"), at("8:1", "/etc/x"));
        assert_eq!(place(22, "/mnt/c\\d"), at("8:1", "/srv/a b"));
        assert_eq!(place(22, "/mnt/c\\d/e/f"), at("8:1", "/srv/a b/e/f"));
        assert_eq!(place(23, "/srv/disk/e"), at("8:2", "/e"));
        assert_eq!(place(22, "/mnt/other"), None, "it is not on that mount");
        assert_eq!(place(2, "/etc/x"), None, "no line has the number");
    }

    #[test]
    fn a_directory_contains_what_another_mount_shows_of_it() {
        let table = MountTable(TABLE.to_vec());
        let is_in = |(mount, path), (outer, directory)| {
            let place = |mount, path| table.place_on(mount, Path::new(path)).unwrap();
            place(mount, path).is_in(&place(outer, directory))
        };
        assert!(is_in((22, "/mnt/c\\d/state"), (21, "/srv")));
        assert!(is_in((22, "/mnt/c\\d"), (221, "/var/lib/spillway/a b")));
        assert!(is_in((24, "/state"), (25, "/pool/home")));
        assert!(!is_in((21, "/srv"), (22, "/mnt/c\\d")), "it is above it");
        assert!(!is_in((21, "/srv/a bc"), (22, "/mnt/c\\d")), "it is another name");
        assert!(!is_in((23, "/srv/disk/srv"), (21, "/srv")), "it is another file system");
    }

    #[test]
    fn a_path_that_does_not_exist_yet_has_a_place() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        let table = MountTable::read().unwrap();
        let Some(place) = table.place_of(&dir) else {
            return skip_in_ci_too("no numbers of mounts, or not the mount of the directory");
        };
        assert!(table.place_of(&dir.join("missing/state")).unwrap().is_in(&place));
        assert!(!place.is_in(&table.place_of(&dir.join("missing")).unwrap()));
    }
}
