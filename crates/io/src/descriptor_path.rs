//! Where an open object is.

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::PathBuf;

/// The path of an open object as the kernel knows it now, for messages: of an object without a name
/// it ends with ` (deleted)`, and of one that was opened by its handle it may be the last name or a
/// slash alone. Does not wait for a disk. `None` without `/proc`.
#[must_use]
pub fn path_of(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn the_path_follows_a_rename() {
        let dir = tempfile::tempdir().unwrap();
        let path = std::fs::canonicalize(dir.path()).unwrap();
        let file = std::fs::File::create(path.join("a")).unwrap();
        assert_eq!(path_of(file.as_fd()), Some(path.join("a")));
        std::fs::rename(path.join("a"), path.join("b")).unwrap();
        assert_eq!(path_of(file.as_fd()), Some(path.join("b")));
    }
}
