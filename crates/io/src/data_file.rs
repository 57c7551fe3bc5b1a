//! Positioned reads and writes that deal with short results.

use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, pwrite};

use crate::byte_range::OFFSET_MAX;

/// What a read that must not wait for the disk came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NowaitRead {
    /// This many bytes were in memory: all asked for, or all up to the end of the file.
    Done(usize),
    /// Only this many bytes at the start of the range are in memory and have been read, often none.
    /// A blocking read has to get the rest.
    Partly(usize),
    /// The file system does not know such reads; asking again for files of it is pointless.
    Unsupported,
}

/// A write that did not go in whole.
#[derive(Debug, thiserror::Error)]
#[error("write failed after {written} bytes")]
pub struct WriteError {
    /// Bytes written before the error, from the start of the data. They are in the file: a caller
    /// may report them as a short write and let the next write meet the error.
    pub written: usize,
    /// Why it stopped.
    #[source]
    pub error: io::Error,
}

/// Reads at `offset` until `buf` is full or the file ends; returns the bytes read.
///
/// # Errors
/// The first error other than an interruption; what was read before it is not reported. `EINVAL`
/// for an offset beyond `i64::MAX`, which no file reaches.
pub fn read_at(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let buf = within_file_offsets(buf, offset)?;
    let mut done = 0;
    while done < buf.len() {
        match pread(fd, &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

/// Reads at `offset` what is in memory, without waiting for the disk (`RWF_NOWAIT`).
///
/// `size_hint` is the file's size in bytes as the caller has just seen it. A cached range that is
/// only partly resident gives a short read, exactly as the end of the file does; the size tells the
/// two apart without asking the kernel again.
///
/// # Errors
/// As [`read_at`]. Waiting is not an error but [`NowaitRead::Partly`].
pub fn try_read_at_nowait(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
    offset: u64,
    size_hint: u64,
) -> io::Result<NowaitRead> {
    let buf = within_file_offsets(buf, offset)?;
    let wanted = buf.len();
    match preadv2(fd, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT) {
        Ok(read) if read == wanted || offset + read as u64 >= size_hint => {
            Ok(NowaitRead::Done(read))
        }
        Ok(read) => Ok(NowaitRead::Partly(read)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(NowaitRead::Partly(0)),
        // The read right was checked when the file was opened, so a permission error is a sandbox
        // that does not know the call.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => Ok(NowaitRead::Unsupported),
        Err(error) => Err(error.into()),
    }
}

/// Writes all of `data` at `offset`; returns its length. The descriptor must not be in append mode,
/// in which Linux ignores the offset.
///
/// # Errors
/// [`WriteError`] with the bytes that did go in. `EFBIG` without any when the data would end beyond
/// `i64::MAX`. A process with a limit on file sizes (`RLIMIT_FSIZE`) must ignore `SIGXFSZ` to see
/// that limit as `EFBIG` too.
pub fn write_at(fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize, WriteError> {
    if offset.checked_add(data.len() as u64).is_none_or(|end| end > OFFSET_MAX) {
        return Err(WriteError { written: 0, error: Errno::FBIG.into() });
    }
    let mut written = 0;
    while written < data.len() {
        let error = match pwrite(fd, &data[written..], offset + written as u64) {
            // Not documented for regular files, and looping on it would never end.
            Ok(0) => io::ErrorKind::WriteZero.into(),
            Ok(accepted) => {
                written += accepted;
                continue;
            }
            Err(Errno::INTR) => continue,
            Err(error) => error.into(),
        };
        return Err(WriteError { written, error });
    }
    Ok(written)
}

/// The part of `buf` that a file could fill from `offset`. The kernel refuses ranges that cross its
/// largest offset, where a reader simply meets the end of the file.
fn within_file_offsets(buf: &mut [u8], offset: u64) -> Result<&mut [u8], Errno> {
    let room = OFFSET_MAX.checked_sub(offset).ok_or(Errno::INVAL)?;
    let len = usize::try_from(room).map_or(buf.len(), |room| room.min(buf.len()));
    Ok(&mut buf[..len])
}

#[cfg(test)]
mod tests;
