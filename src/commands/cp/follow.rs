//! Where a symbolic link of this machine leads, link by link, so that each can be checked.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::entry::FileId;

/// A file, and the symbolic links on the way to it.
pub(super) struct Followed {
    /// Holds the file; it is not open for its data.
    pub(super) pin: OwnedFd,
    pub(super) links: Vec<FileId>,
}

/// Finds the file `name` of a directory as the kernel does. No open waits, whatever the file is.
///
/// # Errors
/// Those of open(2); `LOOP` past [`LINKS_MAX`] links.
pub(super) fn follow(dir: &Path, name: Vec<u8>) -> io::Result<Followed> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags | OFlags::DIRECTORY, Mode::empty())?;
    // The kernel follows no link that another user has put into a directory like /tmp
    // (fs.protected_symlinks), and mounts what is mounted on demand.
    let by_kernel = File::from(rustix::fs::openat(&dir, &name[..], flags, Mode::empty())?);
    let mut here = dir;
    let mut ahead = VecDeque::from([name]);
    let mut links = Vec::new();
    while let Some(name) = ahead.pop_front() {
        let found = rustix::fs::openat(&here, &name[..], flags | OFlags::NOFOLLOW, Mode::empty())?;
        let found = File::from(found);
        let metadata = found.metadata()?;
        if !metadata.is_symlink() {
            here = found.into();
            continue;
        }
        if links.len() == LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        links.push((metadata.dev(), metadata.ino()));
        // Links of procfs lead to open files that may have no name. A copy makes none there.
        if rustix::fs::fstatfs(&found)?.f_type == PROC_SUPER_MAGIC {
            here = rustix::fs::openat(&here, &name[..], flags, Mode::empty())?;
            continue;
        }
        let target = rustix::fs::readlinkat(&found, "", Vec::new())?.into_bytes();
        if target.starts_with(b"/") {
            here = rustix::fs::open("/", flags | OFlags::DIRECTORY, Mode::empty())?;
        }
        for name in names(&target).into_iter().rev() {
            ahead.push_front(name);
        }
    }
    let (found, by_kernel) = (File::from(here), by_kernel.metadata()?);
    let metadata = found.metadata()?;
    if (metadata.dev(), metadata.ino()) != (by_kernel.dev(), by_kernel.ino()) {
        // A link on the way was changed meanwhile.
        return Err(Errno::STALE.into());
    }
    Ok(Followed { pin: found.into(), links })
}

/// The names of a path; `.` is the last after a slash at the end, where only a directory can be.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let mut names = names.map(<[u8]>::to_vec).collect::<Vec<_>>();
    if path.ends_with(b"/") {
        names.push(b".".to_vec());
    }
    names
}

/// Symbolic links on the way to a file at most, as in the Linux kernel.
const LINKS_MAX: usize = 40;
/// The type of procfs in statfs(2).
const PROC_SUPER_MAGIC: rustix::fs::FsWord = 0x9fa0;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn links_are_followed_as_by_the_kernel() {
        let dir = TempDir::new().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(root.join("sub/deeper")).unwrap();
        fs::write(root.join("sub/file"), "").unwrap();
        let absolute = root.join("sub/deeper");
        for (name, target, links) in [
            ("plain", "sub/file", 1),
            ("chain", "plain", 2),
            ("deep", absolute.to_str().unwrap(), 1),
            ("up", "deep/../file", 2),
            ("slash", "deep/", 2),
            ("dots", "./sub//./file", 1),
            ("wrong", "sub/file/", 0),
            ("below", "plain/x", 0),
            ("dangling", "nowhere", 0),
            ("circle", "circle", 0),
            ("stdin", "/proc/self/fd/0", 3),
        ] {
            let path = root.join(name);
            symlink(target, &path).unwrap();
            let found = follow(&root, name.into());
            match fs::metadata(&path) {
                Ok(expected) => {
                    let Followed { pin, links: found } = found.unwrap();
                    let file = File::from(pin).metadata().unwrap();
                    assert_eq!(
                        (file.dev(), file.ino()),
                        (expected.dev(), expected.ino()),
                        "{name}"
                    );
                    assert_eq!(found.len(), links, "{name}");
                }
                Err(expected) => {
                    let error = found.err().unwrap();
                    assert_eq!(error.raw_os_error(), expected.raw_os_error(), "{name}");
                }
            }
        }
    }
}
