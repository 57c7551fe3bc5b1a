//! Positioned reads and writes that deal with short results.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, pwrite, pwritev, pwritev2};

use crate::byte_range::{ByteRange, OFFSET_MAX};
use crate::streams::CHUNK_BYTES;

/// Where bytes that are not wanted go: small enough to stay in the processor's first cache.
const DISCARDED_BYTES: usize = 16 * 1024;
/// Parts of one read, together a little more than 4 MiB.
const DISCARDED_PARTS: usize = 257;

/// The outcome of a read that must not wait for the disk.
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

/// An error of reading, writing or flushing the data of a file.
///
/// A number of its own type, because it may be the one that the block layer has for a failure of
/// the device: direct I/O and write-back pass on `EILSEQ`, `ENODEV`, `EBUSY` and others, which mean
/// something else where a file is named or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct DataError(pub Errno);

impl From<Errno> for DataError {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

impl From<DataError> for io::Error {
    fn from(error: DataError) -> Self {
        error.0.into()
    }
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
    pub error: DataError,
}

/// Reads at `offset` until `buf` is full or the file ends; returns the bytes read.
///
/// # Errors
/// The first error other than an interruption; what was read before it is not reported. `EINVAL`
/// for an offset beyond `i64::MAX`, which no file reaches.
pub fn read_at(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Result<usize, DataError> {
    let buf = within_file_offsets(buf, offset)?;
    Ok(read_all(buf, offset, |part, offset| pread(fd, part, offset))?)
}

/// Reads `range` of a file into the page cache, as one request as far as the device takes it: the
/// kernel judges by the length that is asked for. Returns the bytes read, fewer at the end of the
/// file.
///
/// # Errors
/// As [`read_at`].
pub fn read_into_cache(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<u64> {
    let mut done = 0;
    while done < range.len() {
        let (offset, left) = (range.offset() + done, range.len() - done);
        match read_and_discard(fd, offset, left.min(CHUNK_BYTES), 0) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Asks for `len` bytes at `offset`, or as many of them as one call takes, and does not wait for
/// the disk: the kernel begins to read them into the page cache, and more where it sees a stream.
/// Nothing reports whether it does; errors are met by those who read the bytes.
pub(crate) fn begin_read(fd: BorrowedFd<'_>, offset: u64, len: u64) {
    drop(read_and_discard(fd, offset, len, libc::RWF_NOWAIT));
}

/// One read of `len` bytes, or fewer, that are not looked at. Returns how many they are.
fn read_and_discard(
    fd: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    flags: libc::c_int,
) -> io::Result<u64> {
    // All parts of the read go to one small buffer.
    let mut discarded = [MaybeUninit::<u8>::uninit(); DISCARDED_BYTES];
    let base = discarded.as_mut_ptr().cast();
    let mut parts = [libc::iovec { iov_base: base, iov_len: DISCARDED_BYTES }; DISCARDED_PARTS];
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(DISCARDED_PARTS * DISCARDED_BYTES);
    let count = len.div_ceil(DISCARDED_BYTES).max(1);
    parts[count - 1].iov_len = len - (count - 1) * DISCARDED_BYTES;
    let offset = libc::off_t::try_from(offset).map_err(|_| io::Error::from(Errno::INVAL))?;
    let count = libc::c_int::try_from(count).expect("DISCARDED_PARTS at most");
    // SAFETY: each of the first `count` parts is within `discarded`, which outlives the call and
    // which no reference is to meanwhile. The kernel may write it in any order and number of times:
    // it is never read.
    let got = unsafe { libc::preadv2(fd.as_raw_fd(), parts.as_ptr(), count, offset, flags) };
    u64::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// [`read_at`] through the page cache, from which the kernel drops the pages that the read brought
/// in (`RWF_DONTCACHE`, since Linux 6.14). Pages cached before stay.
///
/// `None` if the kernel or the file system does not know such reads; asking again for files of it
/// is pointless, and [`read_at`] serves.
///
/// # Errors
/// As [`read_at`].
pub fn read_dontcache(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
    offset: u64,
) -> Result<Option<usize>, DataError> {
    let buf = within_file_offsets(buf, offset)?;
    let outcome = read_all(buf, offset, |part, offset| {
        preadv2(fd, &mut [IoSliceMut::new(part)], offset, RWF_DONTCACHE)
    });
    match outcome {
        Err(error) if is_unknown_flag(error) => Ok(None),
        outcome => Ok(outcome.map(Some)?),
    }
}

/// Reads the part of the range that is in memory, without waiting for the disk (`RWF_NOWAIT`).
///
/// `size_hint` is the file's size in bytes as the caller has just seen it. A cached range that is
/// only partly resident gives a short read, exactly as the end of the file does; the size
/// distinguishes the two without another system call.
///
/// # Errors
/// As [`read_at`]. Waiting is not an error but [`NowaitRead::Partly`].
pub fn try_read_at_nowait(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
    offset: u64,
    size_hint: u64,
) -> Result<NowaitRead, DataError> {
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
    write_all(data, offset, |part, offset| pwrite(fd, part, offset))
}

/// [`write_at`] of data in several parts, adjacent in the file and anywhere in memory. Its length
/// is that of all parts.
///
/// # Errors
/// As [`write_at`].
pub fn write_parts_at(
    fd: BorrowedFd<'_>,
    parts: &[&[u8]],
    offset: u64,
) -> Result<usize, WriteError> {
    match parts {
        [data] => write_at(fd, data, offset),
        parts => write_all_parts(parts, offset, |parts, offset| pwritev(fd, parts, offset)),
    }
}

/// [`write_parts_at`] through the page cache, out of which the kernel drops the data once it is on
/// the disk (`RWF_DONTCACHE`, since Linux 6.14). It starts to write back at once and in the
/// caller's time, which makes many small writes of this kind slower than plain ones before Linux
/// 7.2.
///
/// `None`, with nothing written, if the kernel or the file system does not know such writes; asking
/// again for files of it is pointless, and [`write_parts_at`] serves.
///
/// # Errors
/// As [`write_at`].
pub fn write_dontcache(
    fd: BorrowedFd<'_>,
    parts: &[&[u8]],
    offset: u64,
) -> Result<Option<usize>, WriteError> {
    let mut refused = false;
    let outcome = write_all_parts(parts, offset, |parts, offset| {
        pwritev2(fd, parts, offset, RWF_DONTCACHE)
            .inspect_err(|error| refused = is_unknown_flag(*error))
    });
    match outcome {
        Err(failed) if refused && failed.written == 0 => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// Reads until `buf` is full or the file ends. `read_once` tries one read at an offset.
fn read_all(
    buf: &mut [u8],
    offset: u64,
    mut read_once: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buf.len() {
        match read_once(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes all of `data`, or all up to the first error. `write_once` tries one write at an offset.
fn write_all(
    data: &[u8],
    offset: u64,
    mut write_once: impl FnMut(&[u8], u64) -> Result<usize, Errno>,
) -> Result<usize, WriteError> {
    write_steps(data.len(), offset, |written| write_once(&data[written..], offset + written as u64))
}

/// [`write_all`] of data in parts.
pub(crate) fn write_all_parts(
    parts: &[&[u8]],
    offset: u64,
    mut write_once: impl FnMut(&[IoSlice<'_>], u64) -> Result<usize, Errno>,
) -> Result<usize, WriteError> {
    let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let (mut rest, mut gone) = (slices.as_mut_slice(), 0);
    write_steps(parts.iter().map(|part| part.len()).sum(), offset, |written| {
        IoSlice::advance_slices(&mut rest, written - std::mem::replace(&mut gone, written));
        write_once(rest, offset + written as u64)
    })
}

/// Writes `len` bytes at `offset`, or all up to the first error. `write_from` tries one write of
/// what lies behind so many bytes.
fn write_steps(
    len: usize,
    offset: u64,
    mut write_from: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<usize, WriteError> {
    if offset.checked_add(len as u64).is_none_or(|end| end > OFFSET_MAX) {
        return Err(WriteError { written: 0, error: Errno::FBIG.into() });
    }
    let mut written = 0;
    while written < len {
        let error = match write_from(written) {
            // Not documented for regular files, and looping on it would never end.
            Ok(0) => Errno::IO.into(),
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

/// Whether the error means that a `RWF_` flag is not known: to the file system (`EOPNOTSUPP`, also
/// the kernel's answer for an unknown flag), to emulations of Linux (`EINVAL`), or because a
/// sandbox does not know the call. The other reasons for these come back from the same call without
/// the flag, so nothing is lost by trying that.
fn is_unknown_flag(error: Errno) -> bool {
    matches!(error, Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM)
}

/// `RWF_DONTCACHE`, which rustix does not name yet.
const RWF_DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

#[cfg(test)]
mod tests;
