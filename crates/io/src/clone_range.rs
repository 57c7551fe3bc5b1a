//! Copies within the kernel.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::ByteRange;

/// Shares the blocks of `range` of `source` with `destination` from `to` on (`FICLONERANGE`,
/// ioctl_ficlonerange(2)). A range of no length reaches to the end of the source.
///
/// # Errors
/// `EOPNOTSUPP` where the file system cannot, `EXDEV` between file systems, `EINVAL` for
/// ranges that are not aligned to its blocks or overlap.
pub fn clone_range(
    source: BorrowedFd<'_>,
    range: ByteRange,
    destination: BorrowedFd<'_>,
    to: u64,
) -> io::Result<()> {
    let argument = libc::file_clone_range {
        src_fd: source.as_raw_fd().into(),
        src_offset: range.offset(),
        src_length: range.len(),
        dest_offset: to,
    };
    let fd = destination.as_raw_fd();
    // SAFETY: both descriptors are open for as long as the borrows; the request takes a pointer to
    // a `file_clone_range`, which it reads before it returns.
    let result = unsafe { libc::ioctl(fd, libc::FICLONERANGE, &raw const argument) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // A file system without the request at all.
    let is_unknown = error.raw_os_error() == Some(libc::ENOTTY);
    Err(if is_unknown { io::Error::from_raw_os_error(libc::EOPNOTSUPP) } else { error })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn blocks_are_shared_or_the_file_system_cannot() {
        let [source, destination] = [0; 2].map(|_| tempfile::tempfile().unwrap());
        crate::write_at(source.as_fd(), &[7; 8192], 0).unwrap();
        let range = ByteRange::new(4096, 4096).unwrap();
        match clone_range(source.as_fd(), range, destination.as_fd(), 0) {
            Ok(()) => assert_eq!(destination.metadata().unwrap().len(), 4096),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
        }
    }
}
