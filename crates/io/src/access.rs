//! Asking the kernel what the thread's identity may do with an open object.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::Access;

/// Checks the permissions of the object behind `fd` (which may be an `O_PATH` descriptor) for the
/// identity that this thread acts as: access control lists and security modules count, the
/// process's real user does not.
///
/// # Errors
/// EACCES when the kernel denies it, EROFS for writing on a read-only file system.
pub fn check_access(fd: BorrowedFd<'_>, wanted: Access) -> io::Result<()> {
    // rustix and glibc offer faccessat2 without AT_EMPTY_PATH or by the real user only.
    //
    // SAFETY: the path is a NUL-terminated string that lives forever, the descriptor is open for as
    // long as the borrow, and the call writes no memory.
    let result = unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            fd.as_raw_fd(),
            c"".as_ptr(),
            wanted.bits(),
            libc::AT_EACCESS | libc::AT_EMPTY_PATH,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use rustix::fs::{CWD, Mode, OFlags, openat};

    #[test]
    fn answers_for_path_only_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let fd = openat(CWD, dir.path(), OFlags::PATH, Mode::empty()).unwrap();
        check_access(fd.as_fd(), Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).unwrap();
        let file = dir.path().join("no-one-executes");
        std::fs::write(&file, "").unwrap();
        let fd = openat(CWD, file, OFlags::PATH, Mode::empty()).unwrap();
        // Not even root may execute a file without any execute bit.
        let error = check_access(fd.as_fd(), Access::EXEC_OK).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
