//! The alignment rules of direct I/O, as arithmetic: no system call is made here.
//!
//! A range that is not aligned goes to the disk in one of two ways. A read is *widened* to the
//! alignment at both ends, and the answer trimmed:
//!
//! ```text
//!    start       asked                  asked end      end
//!      |-extra-->|=======================|----extra---->|
//!      ^         ^                       ^              ^
//!    46592     47008                   94016          94208      start=46592+416 end=94208-192
//! ```
//!
//! A write must not touch what it was not given, so it is *split*: whole units go directly, and the
//! ragged ends through the page cache, where the kernel merges them with their neighbours.

use std::fmt;

use crate::ByteRange;

/// The alignments that direct I/O on one file asks for, in bytes; each is a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DioAlign {
    memory: u32,
    offset: u32,
    read_offset: u32,
}

impl DioAlign {
    /// Alignment of the address in memory; of offset and length in the file; and of these two when
    /// reading, where some file systems ask for less. `None` unless all are powers of two.
    #[must_use]
    pub const fn new(memory: u32, offset: u32, read_offset: u32) -> Option<Self> {
        if memory.is_power_of_two() && offset.is_power_of_two() && read_offset.is_power_of_two() {
            Some(Self { memory, offset, read_offset })
        } else {
            None
        }
    }

    /// The alignment of the first byte's address in memory.
    #[must_use]
    pub const fn memory(self) -> u32 {
        self.memory
    }

    /// The alignment of a write's offset and length.
    #[must_use]
    pub const fn offset(self) -> u32 {
        self.offset
    }

    /// The alignment of a read's offset and length.
    #[must_use]
    pub const fn read_offset(self) -> u32 {
        self.read_offset
    }

    /// Whether `data` begins where direct I/O may take it from or put it.
    #[cfg(test)]
    pub(crate) fn fits_memory(self, data: &[u8]) -> bool {
        data.as_ptr().addr().is_multiple_of(self.memory as usize)
    }

    /// `asked`, widened to the alignment of reads. `None` when that would pass the largest file
    /// offset, where only the page cache can read.
    #[must_use]
    pub fn widen_read(self, asked: ByteRange) -> Option<WidenedRead> {
        let unit = u64::from(self.read_offset);
        let start = asked.offset() & !(unit - 1);
        let end = asked.end().checked_next_multiple_of(unit)?;
        ByteRange::new(start, end - start)?;
        Some(WidenedRead {
            start,
            start_extra: asked.offset() - start,
            end,
            end_extra: end - asked.end(),
            step: unit.max(self.memory.into()),
        })
    }

    /// `range`, split for writing. The parts lie one after the other in the order of the fields.
    ///
    /// The middle consists of whole pages even if the file asks for less, because a page that was
    /// written through the page cache just now would have to be written back and dropped before a
    /// part of it could be written directly.
    ///
    /// # Panics
    /// `page_bytes` is no power of two.
    #[must_use]
    pub fn split_write(self, range: ByteRange, page_bytes: u64) -> WriteSplit {
        assert!(page_bytes.is_power_of_two(), "{page_bytes} is no size of a page");
        let unit = page_bytes.max(self.offset.into());
        let middle_end = range.end() & !(unit - 1);
        let middle_start = range
            .offset()
            .checked_next_multiple_of(unit)
            .filter(|start| *start < middle_end)
            .unwrap_or(range.end());
        let middle_end = middle_end.max(middle_start);
        WriteSplit {
            head: ByteRange::between(range.offset(), middle_start),
            middle: ByteRange::between(middle_start, middle_end),
            tail: ByteRange::between(middle_end, range.end()),
        }
    }
}

/// A read as the disk sees it: `start..end`, of which the first `start_extra` and the last
/// `end_extra` bytes were not asked for. Comes from [`DioAlign::widen_read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WidenedRead {
    /// Offset of the first byte read, aligned.
    pub start: u64,
    /// Bytes read before the first that was asked for, less than the alignment.
    pub start_extra: u64,
    /// Offset after the last byte read, aligned, and at most `i64::MAX`.
    pub end: u64,
    /// Bytes read after the last that was asked for, less than the alignment.
    pub end_extra: u64,
    /// A read that was cut short can go on at multiples of this from `start`: file and memory are
    /// aligned there.
    step: u64,
}

impl WidenedRead {
    /// The range that the disk sees.
    #[must_use]
    pub fn range(self) -> ByteRange {
        ByteRange::between(self.start, self.end)
    }

    /// The range that was asked for.
    #[must_use]
    pub fn asked(self) -> ByteRange {
        ByteRange::between(self.start + self.start_extra, self.end - self.end_extra)
    }

    /// How many of `got` bytes, read from `start` on, belong to the range that was asked for. They
    /// begin `start_extra` bytes behind the first. Fewer than asked for if the read was short or
    /// the file ends inside the widened range, and none if that is before the first of them.
    #[must_use]
    pub fn asked_of(self, got: u64) -> u64 {
        got.saturating_sub(self.start_extra).min(self.asked().len())
    }

    pub(crate) fn step(self) -> u64 {
        self.step
    }
}

/// `start=46592+416 end=94208-192`: the widened ends, and how far it is back to those asked for.
impl fmt::Display for WidenedRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, start_extra, end, end_extra, step: _ } = self;
        write!(f, "start={start}+{start_extra} end={end}-{end_extra}")
    }
}

/// A range to write, in three adjacent parts, of which any may be empty. Without a middle all is
/// head. Comes from [`DioAlign::split_write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSplit {
    /// Before the first whole unit.
    pub head: ByteRange,
    /// Whole units: both ends are multiples of the offset alignment and of the page size.
    pub middle: ByteRange,
    /// After the last whole unit.
    pub tail: ByteRange,
}

#[cfg(test)]
mod tests;
