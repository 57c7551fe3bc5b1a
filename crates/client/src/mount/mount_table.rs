//! The kernel's table of mounts, `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountLine {
    /// The number of the mount, which no other has as long as it exists.
    id: u64,
    /// The number of the mount on which it is mounted; that of the mount itself, or of one outside
    /// the table, for the first.
    parent: u64,
    /// `MAJOR:MINOR` of the file system, which is that of its bind mounts too.
    device: String,
    /// The mount point, as an absolute path.
    pub(super) dir: PathBuf,
    /// The type of the file system, as `fuse.spillway`.
    pub(super) kind: String,
}

/// The mounts of the table, in the order of their numbers, which is not that of stacked mounts.
pub(super) struct MountTable {
    mounts: Vec<MountLine>,
}

impl MountTable {
    pub(super) fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read("/proc/self/mountinfo")?))
    }

    fn parse(table: &[u8]) -> Self {
        Self { mounts: table.split(|byte| *byte == b'\n').filter_map(parse_line).collect() }
    }

    /// The mount that the path `dir`, absolute and without symbolic links, leads to, and that
    /// umount(2) takes.
    pub(super) fn topmost_on(&self, dir: &Path) -> Option<&MountLine> {
        self.mounts.iter().find(|mount| mount.dir == dir && !self.is_covered(mount))
    }

    /// The line of the mount that had the line `earlier`, wherever it is by now.
    pub(super) fn find(&self, earlier: &MountLine) -> Option<&MountLine> {
        let is_same = |mount: &&MountLine| mount.id == earlier.id && mount.device == earlier.device;
        self.mounts.iter().find(is_same)
    }

    /// Whether another mount is on the mount point or on a directory above it, so that the path
    /// leads to that.
    pub(super) fn is_covered(&self, mount: &MountLine) -> bool {
        let (mut below, mut dir, mut through) = (mount, &mount.dir, mount.id);
        // A table that changed while it was read can have a loop.
        for _ in &self.mounts {
            let others =
                self.mounts.iter().filter(|other| ![below.id, through].contains(&other.id));
            let mut on_it = others.filter(|other| other.parent == below.id);
            if on_it.any(|other| dir.starts_with(&other.dir)) {
                return true;
            }
            let parent = self.mounts.iter().find(|other| other.id == below.parent);
            let Some(parent) = parent.filter(|parent| parent.id != below.id) else { break };
            (dir, through, below) = (&below.dir, below.id, parent);
        }
        false
    }

    /// Whether other mounts are on directories of `mount`. Those on their directories are below one
    /// of these.
    pub(super) fn has_mounts_below(&self, mount: &MountLine) -> bool {
        self.mounts.iter().any(|other| other.parent == mount.id && other.id != mount.id)
    }
}

fn parse_line(line: &[u8]) -> Option<MountLine> {
    // proc_pid_mountinfo(5): the mount point is the fifth field, and the type follows the field
    // `-`.
    let mut fields = line.split(|byte| *byte == b' ');
    let mut text = || fields.next().map(|field| String::from_utf8_lossy(field).into_owned());
    let (id, parent) = (text()?.parse().ok()?, text()?.parse().ok()?);
    let device = text()?;
    let dir = PathBuf::from(OsString::from_vec(unescaped(fields.nth(1)?)));
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    let kind = String::from_utf8_lossy(kind).into_owned();
    Some(MountLine { id, parent, device, dir, kind })
}

/// A path that the kernel has written in the table: spaces and the like as `\` and three octal
/// digits.
fn unescaped(mut path: &[u8]) -> Vec<u8> {
    let mut unescaped = Vec::with_capacity(path.len());
    while let Some((first, rest)) = path.split_first() {
        let code = rest.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        unescaped.push(byte.unwrap_or(*first));
        path = if byte.is_some() { &rest[3..] } else { rest };
    }
    unescaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topmost(table: &str, dir: &str) -> Option<(u64, String)> {
        let table = MountTable::parse(table.as_bytes());
        table.topmost_on(Path::new(dir)).map(|mount| (mount.id, mount.kind.clone()))
    }

    fn some(id: u64, kind: &str) -> Option<(u64, String)> {
        Some((id, kind.to_owned()))
    }

    #[test]
    fn the_topmost_mount_is_the_parent_of_no_other_on_the_directory() {
        let table = "1 1 0:2 / / rw - rootfs rootfs rw\n\
            20 1 254:0 / / rw - ext4 /dev/vda rw\n\
            21 20 0:19 / /m rw,nodev shared:2 - fuse.spillway h:/e rw,user_id=0\n\
            22 20 0:20 / /m\\040n\\134 rw - fuse.spillway h:/e rw\n\
            23 20 0:21 / /over rw - fuse.spillway h:/e rw\n\
            24 23 254:0 / /over rw master:1 propagate_from:2 - ext4 /dev/vda rw\n";
        assert_eq!(topmost(table, "/m"), some(21, "fuse.spillway"));
        assert_eq!(topmost(table, "/m n\\"), some(22, "fuse.spillway"));
        assert_eq!(topmost(table, "/over"), some(24, "ext4"));
        assert_eq!(topmost(table, "/"), some(20, "ext4"));
        assert_eq!(topmost(table, "/other"), None);
    }

    #[test]
    fn a_mount_that_was_moved_over_a_later_one_is_the_topmost() {
        let table = "20 1 254:0 / / rw - ext4 /dev/vda rw\n\
            21 22 0:19 / /q rw - tmpfs moved rw\n\
            22 20 0:20 / /q rw - fuse.spillway h:/e rw\n";
        assert_eq!(topmost(table, "/q"), some(21, "tmpfs"));
    }

    #[test]
    fn a_bind_mount_of_the_own_file_system_covers_a_mount() {
        let line = "22 20 0:20 / /q rw - fuse.spillway h:/e rw\n";
        let bind = "23 22 0:20 /sub /q rw - fuse.spillway h:/e rw\n";
        let own = parse_line(line.trim().as_bytes()).unwrap();
        let table = MountTable::parse((line.to_owned() + bind).as_bytes());
        assert!(table.is_covered(table.find(&own).unwrap()));
        assert_eq!(topmost(&(line.to_owned() + bind), "/q"), some(23, "fuse.spillway"));
        assert!(MountTable::parse(bind.as_bytes()).find(&own).is_none());
    }

    #[test]
    fn a_mount_on_a_directory_above_covers_a_mount() {
        let table = "20 1 254:0 / / rw - ext4 /dev/vda rw\n\
            21 20 0:19 / /a/b rw - tmpfs covered rw\n\
            22 20 0:20 / /a rw - tmpfs above rw\n\
            23 22 0:21 / /a/b rw - fuse.spillway h:/e rw\n\
            24 23 0:22 / /a/b/c rw - tmpfs below rw\n";
        assert_eq!(topmost(table, "/a/b"), some(23, "fuse.spillway"));
        assert_eq!(topmost(table, "/a/b/c"), some(24, "tmpfs"));
    }

    #[test]
    fn mounts_on_directories_of_a_mount_are_below_it() {
        let table = "1 1 0:2 / / rw - rootfs rootfs rw\n\
            20 1 254:0 / / rw - ext4 /dev/vda rw\n\
            21 20 0:20 / /m rw - fuse.spillway h:/e rw\n\
            22 21 0:21 / /m/scratch rw - tmpfs scratch rw\n\
            23 22 0:22 / /m/scratch/deep rw - tmpfs deep rw\n\
            24 20 0:23 / /m2 rw - fuse.spillway h:/e rw\n\
            25 20 0:24 / /m2/hidden rw - tmpfs earlier rw\n";
        let table = MountTable::parse(table.as_bytes());
        let has_below = |mount: &&MountLine| table.has_mounts_below(mount);
        let found = table.mounts.iter().filter(has_below).map(|mount| mount.id);
        assert_eq!(found.collect::<Vec<_>>(), [1, 20, 21, 22]);
    }

    #[test]
    fn a_mount_is_found_after_its_directory_was_renamed() {
        let own = parse_line(b"22 20 0:20 / /a/m rw - fuse.spillway h:/e rw").unwrap();
        let moved = MountTable::parse(b"22 20 0:20 / /b/m rw - fuse.spillway h:/e rw\n");
        assert_eq!(moved.find(&own).unwrap().dir, Path::new("/b/m"));
        let other = MountTable::parse(b"22 20 0:21 / /a/m rw - fuse.spillway h:/e rw\n");
        assert!(other.find(&own).is_none(), "its number belongs to another file system");
    }
}
