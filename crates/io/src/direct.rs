//! Reads and writes that pass by the page cache (`O_DIRECT`), and writes that do so in part.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags, fstat, statx};
use rustix::io::{Errno, pread, pwritev};

use crate::align::{DioAlign, WidenedRead, WriteSplit};
use crate::byte_range::ByteRange;
use crate::data_file::{DataError, WriteError, write_all_parts};
use crate::slab::BUFFER_ALIGN;

/// The alignment that direct I/O on the open file requires; `None` if the file does not support
/// direct I/O or the kernel does not report it (before Linux 6.1).
///
/// The answer belongs to the inode as it is now: ext4 and f2fs, for example, refuse direct I/O for
/// files whose data they journal, encrypt or verify, and these can be switched on later.
///
/// # Errors
/// As `statx(2)` on a descriptor, so hardly any: a network file system that is gone.
pub fn dio_align(fd: BorrowedFd<'_>) -> io::Result<Option<DioAlign>> {
    let wanted = StatxFlags::DIOALIGN | STATX_DIO_READ_ALIGN;
    let found = match statx(fd, c"", AtFlags::EMPTY_PATH, wanted) {
        Ok(found) => found,
        Err(Errno::NOSYS) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let known = StatxFlags::from_bits_retain(found.stx_mask);
    if !known.contains(StatxFlags::DIOALIGN) {
        return Ok(None);
    }
    // A separate alignment for reads came with Linux 6.14. File systems that have none leave zero.
    let read_offset = match found.stx_dio_read_offset_align {
        align if align != 0 && known.contains(STATX_DIO_READ_ALIGN) => align,
        _ => found.stx_dio_offset_align,
    };
    // A file without direct I/O has zeroes here, which are no alignment.
    Ok(DioAlign::new(found.stx_dio_mem_align, found.stx_dio_offset_align, read_offset))
}

/// Reads the widened range into the front of `buf`; returns the bytes read from `start` on, which
/// [`WidenedRead::asked_of`] turns into those asked for. `fd` is open with `O_DIRECT`, and `buf`
/// aligned to [`DioAlign::memory`].
///
/// Short at the end of the file, and where the file system returns less although the file
/// continues. The file's size distinguishes the two.
///
/// # Errors
/// As [`read_at`](crate::read_at). `EINVAL` also when the kernel wants another alignment than it
/// has reported.
///
/// # Panics
/// `buf` is shorter than the widened range.
pub fn read_direct(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
    read: &WidenedRead,
) -> Result<usize, DataError> {
    let len = usize::try_from(read.range().len()).unwrap_or(usize::MAX);
    assert!(buf.len() >= len, "{} bytes have no room for {read}", buf.len());
    read_in_steps(
        &mut buf[..len],
        read,
        |part, offset| pread(fd, part, offset),
        || Ok(fstat(fd)?.st_size.try_into().unwrap_or(0)),
    )
}

/// [`read_direct`] over any file: `read_once` tries one read, `size` asks for the file's size.
fn read_in_steps(
    buf: &mut [u8],
    read: &WidenedRead,
    mut read_once: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
    mut size: impl FnMut() -> Result<u64, Errno>,
) -> Result<usize, DataError> {
    let step = usize::try_from(read.step()).expect("an alignment is a u32");
    // `next` is where the next read begins, at most one step before the end of what is `done`.
    let (mut next, mut done) = (0, 0);
    while done < buf.len() {
        let end = match read_once(&mut buf[next..], read.start + next as u64) {
            Ok(got) => next + got,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        // A file that shrinks meanwhile may give less than it did; what was read stays read.
        if end <= done {
            break;
        }
        done = end;
        next = done - done % step;
        // Only the end of the file is expected off the alignment. Reading the size costs less than
        // reading a block again that is here already.
        if next < done && read.start + done as u64 >= size()? {
            break;
        }
    }
    Ok(done)
}

/// How a part of a write goes to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Through the page cache.
    Cached,
    /// Past it.
    Direct,
}

/// A part of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where in the file.
    pub range: ByteRange,
    /// How it gets there.
    pub route: Route,
}

impl WriteSplit {
    /// The three parts in the order of the file: the ends through the page cache, the middle past
    /// it.
    #[must_use]
    pub fn segments(self) -> [Segment; 3] {
        [
            Segment { range: self.head, route: Route::Cached },
            Segment { range: self.middle, route: Route::Direct },
            Segment { range: self.tail, route: Route::Cached },
        ]
    }
}

/// The outcome of a write in segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentsWritten {
    /// Bytes written: all of them.
    pub written: usize,
    /// The smallest range with everything that was to go directly but went through the page cache,
    /// where it is dirty now. `None` if all went as planned.
    pub cached_instead: Option<ByteRange>,
    /// Whether the kernel refused direct I/O (`EINVAL`), which means that the alignment it reports
    /// for this file is not the one it wants.
    pub refused_direct: bool,
}

/// Writes data that comes in parts, in segments, strictly in the order of the file, and never one
/// before the segment in front of it is whole.
///
/// Each part begins at an address that is congruent to its place in the file, modulo the alignment,
/// and direct segments are whole pages. So only the pages in which two parts meet are copied before
/// they are written directly.
///
/// A direct write that the kernel refuses with `EINVAL` goes through the page cache instead, as do
/// the direct segments after it: a misreported alignment is no reason to fail. So does the *rest*
/// of a direct write that came back short, wherever that was. It could not go on directly in the
/// middle of a block; stopping would only make the caller send the same rest again, as a write with
/// a ragged head, that is through the page cache; and the kernel merges that head with the block's
/// front, which is on the disk by then. If the reason was a full disk, the rest meets it at once
/// and the error is reported with every byte before it counted.
///
/// `before_call` is called before each system call.
///
/// # Errors
/// [`WriteError`] of the first segment that cannot be completed; its `written` counts from the
/// start of `data` over all segments and has no gap. Direct parts of these bytes may have gone
/// through the page cache.
///
/// # Panics
/// The segments are not adjacent, or are not as long as `data` in all.
pub fn write_segments(
    segments: &[Segment],
    data: &[&[u8]],
    cached_fd: BorrowedFd<'_>,
    direct_fd: BorrowedFd<'_>,
    before_call: &dyn Fn(),
) -> Result<SegmentsWritten, WriteError> {
    write_in_segments(segments, data, |route, parts, offset| {
        before_call();
        match route {
            Route::Cached => pwritev(cached_fd, parts, offset),
            Route::Direct => pwritev(direct_fd, parts, offset),
        }
    })
}

/// [`write_segments`] over any file: `write_once` tries one write.
fn write_in_segments(
    segments: &[Segment],
    data: &[&[u8]],
    write_once: impl FnMut(Route, &[IoSlice<'_>], u64) -> Result<usize, Errno>,
) -> Result<SegmentsWritten, WriteError> {
    let done = SegmentsWritten { written: 0, cached_instead: None, refused_direct: false };
    let mut writer = SegmentWriter { write_once, done };
    let mut rest = data.to_vec();
    let mut next_offset = segments.first().map_or(0, |segment| segment.range.offset());
    for &Segment { range, route } in segments {
        assert_eq!(range.offset(), next_offset, "segments must be adjacent");
        next_offset = range.end();
        let len = usize::try_from(range.len()).unwrap_or(usize::MAX);
        let behind = split_off(&mut rest, len).expect("segments are as long as the data");
        let parts = std::mem::replace(&mut rest, behind);
        writer.write(parts, range, route)?;
    }
    assert!(rest.iter().all(|part| part.is_empty()), "segments are as long as the data");
    Ok(writer.done)
}

/// A write in segments at work.
struct SegmentWriter<W> {
    write_once: W,
    /// The segments written so far.
    done: SegmentsWritten,
}

impl<W: FnMut(Route, &[IoSlice<'_>], u64) -> Result<usize, Errno>> SegmentWriter<W> {
    /// Writes one segment whole. `parts` are its data, `range` where it belongs.
    fn write(
        &mut self,
        mut parts: Vec<&[u8]>,
        range: ByteRange,
        route: Route,
    ) -> Result<(), WriteError> {
        let direct = match route {
            Route::Direct if !self.done.refused_direct => self.write_direct(&parts, range)?,
            Route::Direct | Route::Cached => 0,
        };
        self.done.written += direct;
        // How short a result is, is seen by the segment's own length. Whatever is missing from that
        // belongs at the offset right behind what was taken, and before the next segment.
        let rest = ByteRange::between(range.offset() + direct as u64, range.end());
        if route == Route::Direct && !rest.is_empty() {
            let first = self.done.cached_instead.unwrap_or(rest);
            self.done.cached_instead = Some(ByteRange::between(first.offset(), rest.end()));
        }
        let left = split_off(&mut parts, direct).expect("no more is taken than there is");
        let outcome = write_all_parts(&left, rest.offset(), |parts, offset| {
            (self.write_once)(Route::Cached, parts, offset)
        });
        self.done.written += outcome.map_err(|failed| self.stopped(failed))?;
        Ok(())
    }

    /// Tries one direct write; returns the bytes it took, none of an empty or refused one.
    fn write_direct(&mut self, parts: &[&[u8]], range: ByteRange) -> Result<usize, WriteError> {
        if range.is_empty() {
            return Ok(0);
        }
        let pages = WholePages::of(parts);
        let slices = pages.slices();
        loop {
            match (self.write_once)(Route::Direct, &slices, range.offset()) {
                Ok(taken) => return Ok(taken),
                Err(Errno::INTR) => {}
                Err(Errno::INVAL) => {
                    self.done.refused_direct = true;
                    return Ok(0);
                }
                Err(error) => {
                    return Err(self.stopped(WriteError { written: 0, error: error.into() }));
                }
            }
        }
    }

    /// The failure of a segment as that of the whole write.
    fn stopped(&self, segment: WriteError) -> WriteError {
        WriteError { written: self.done.written + segment.written, ..segment }
    }
}

/// Cuts adjacent parts behind the first `len` bytes, and returns those behind the cut. `None` if
/// there are fewer bytes.
pub(crate) fn split_off<'a>(parts: &mut Vec<&'a [u8]>, len: usize) -> Option<Vec<&'a [u8]>> {
    let (mut whole, mut left) = (0, len);
    while left > 0 {
        let part = parts.get(whole)?.len();
        if left < part {
            break;
        }
        (whole, left) = (whole + 1, left - part);
    }
    let mut behind = parts.split_off(whole);
    if left > 0 {
        let (before, after) = behind[0].split_at(left);
        parts.push(before);
        behind[0] = after;
    }
    Some(behind)
}

/// Adjacent parts that are whole pages together, cut so that each piece is.
struct WholePages<'a> {
    pieces: Vec<Piece<'a>>,
    /// The pages in which two parts meet, or more.
    seams: Vec<Page>,
}

enum Piece<'a> {
    /// Whole pages of one part.
    Part(&'a [u8]),
    /// The next of the seams.
    Seam,
}

/// The least page, at an address that is a multiple of its size, as those of buffers are.
#[repr(align(4096))]
struct Page([u8; Self::BYTES]);

impl Page {
    const BYTES: usize = BUFFER_ALIGN;
}

const _: () = assert!(align_of::<Page>() == BUFFER_ALIGN && size_of::<Page>() == BUFFER_ALIGN);

impl<'a> WholePages<'a> {
    fn of(parts: &[&'a [u8]]) -> Self {
        let mut pages = Self { pieces: Vec::new(), seams: Vec::new() };
        if let [part] = parts {
            pages.pieces.push(Piece::Part(part));
            return pages;
        }
        // Bytes of the last seam that are filled, until it is full.
        let mut filled = 0;
        for part in parts {
            let mut part = *part;
            if filled > 0 {
                let (front, behind) = part.split_at(part.len().min(Page::BYTES - filled));
                pages.fill(filled, front);
                filled = (filled + front.len()) % Page::BYTES;
                part = behind;
            }
            let (whole, tail) = part.split_at(part.len() - part.len() % Page::BYTES);
            if !whole.is_empty() {
                pages.pieces.push(Piece::Part(whole));
            }
            if !tail.is_empty() {
                pages.pieces.push(Piece::Seam);
                pages.seams.push(Page([0; Page::BYTES]));
                pages.fill(0, tail);
                filled = tail.len();
            }
        }
        debug_assert_eq!(filled, 0, "the parts are whole pages together");
        pages
    }

    fn fill(&mut self, at: usize, data: &[u8]) {
        let page = self.seams.last_mut().expect("a page that is being filled");
        page.0[at..at + data.len()].copy_from_slice(data);
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut seams = self.seams.iter();
        let slice = |piece: &Piece<'a>| match piece {
            Piece::Part(part) => IoSlice::new(part),
            Piece::Seam => IoSlice::new(&seams.next().expect("one for each such piece").0),
        };
        self.pieces.iter().map(slice).collect()
    }
}

/// `STATX_DIO_READ_ALIGN`, since Linux 6.14; rustix has the field but not the flag.
const STATX_DIO_READ_ALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2_0000);

#[cfg(test)]
mod tests;
