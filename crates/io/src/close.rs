//! Write errors that close(2) returns.

use std::io;
use std::os::fd::{AsFd, IntoRawFd};

use rustix::io::Errno;

/// Closes a duplicate of `file`, which stays open. NFS and FUSE send data that was written to the
/// page cache when a descriptor is closed, and return here that it was refused. Dropping a
/// [`std::fs::File`] ignores that.
///
/// # Errors
/// Those of close(2), such as ENOSPC, EDQUOT and EIO. Without a descriptor for the duplicate those
/// of fsync(2), which sends the data too.
pub fn check_close(file: impl AsFd) -> io::Result<()> {
    let duplicate = match rustix::io::fcntl_dupfd_cloexec(&file, 0) {
        Ok(duplicate) => duplicate.into_raw_fd(),
        Err(Errno::MFILE | Errno::NFILE) => return Ok(rustix::fs::fsync(&file)?),
        Err(errno) => return Err(errno.into()),
    };
    // SAFETY: `into_raw_fd` has given up the descriptor, so that it is closed here alone.
    if unsafe { libc::close(duplicate) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn file_stays_open() {
        let mut file = tempfile::tempfile().unwrap();
        check_close(&file).unwrap();
        file.write_all(b"data").unwrap();
    }
}
