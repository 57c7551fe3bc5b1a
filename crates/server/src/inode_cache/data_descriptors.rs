//! The descriptors that one object's data is read and written through.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use io::{BUFFER_ALIGN, CHUNK_BYTES, DioAlign};

/// The use of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Reading.
    Read,
    /// Writing, and reading before it.
    Write,
}

/// A descriptor that passes by the page cache, and what it asks of requests.
#[derive(Clone)]
pub(crate) struct DirectFile {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) align: DioAlign,
}

/// Opened when they are first needed, and kept.
#[derive(Default)]
pub(crate) struct DataDescriptors {
    pub(crate) read: Option<Arc<OwnedFd>>,
    pub(crate) write: Option<Arc<OwnedFd>>,
    /// For reading without the kernel's read-ahead, whose pages would not be dropped.
    pub(crate) quiet: Option<Arc<OwnedFd>>,
    direct_read: Option<Arc<OwnedFd>>,
    direct_write: Option<Arc<OwnedFd>>,
    /// Not given out any more, and closed when nothing uses them: four, and as many as READs in
    /// progress use.
    given_up: Vec<Arc<OwnedFd>>,
    /// Of those, the ones that are being closed, which may wait for the disk.
    closing: usize,
    /// The alignment of direct I/O, `Some(None)` where there is none, and `None` before it was
    /// read.
    align: Option<Option<DioAlign>>,
}

impl DataDescriptors {
    /// The direct descriptor, `Some(None)` where there can be none, and `None` before it was
    /// opened.
    pub(crate) fn direct(&self, purpose: Use) -> Option<Option<DirectFile>> {
        let Some(align) = self.align? else { return Some(None) };
        let fd = match purpose {
            Use::Read => self.direct_read.as_ref().or(self.direct_write.as_ref()),
            Use::Write => self.direct_write.as_ref(),
        };
        Some(Some(DirectFile { fd: Arc::clone(fd?), align }))
    }

    /// The alignment, if it is known and there is one.
    pub(crate) fn align(&self) -> Option<DioAlign> {
        self.align?
    }

    /// Notes the alignment that the kernel reports. One beyond that of our buffers and chunks
    /// counts as none.
    pub(crate) fn set_align(&mut self, align: Option<DioAlign>) -> Option<DioAlign> {
        let align = align.filter(|align| {
            let offset_max = align.offset().max(align.read_offset());
            align.memory() as usize <= BUFFER_ALIGN && u64::from(offset_max) <= CHUNK_BYTES
        });
        *self.align.insert(align)
    }

    /// Notes an open direct descriptor, unless another request was first; returns the one kept. One
    /// for writing serves READs too, and gives up that for reading.
    pub(crate) fn keep_direct(&mut self, purpose: Use, fd: OwnedFd) -> Arc<OwnedFd> {
        let kept = match (purpose, &mut self.direct_write) {
            (Use::Read, None) => &mut self.direct_read,
            (_, writer) => {
                self.given_up.extend(self.direct_read.take());
                writer
            }
        };
        Arc::clone(kept.get_or_insert_with(|| Arc::new(fd)))
    }

    /// Gives up those that are open for writing, and the one for reading: a flush through that
    /// would report an error of the disk again which a flush through one for writing has reported.
    pub(super) fn give_up_writers(&mut self) {
        let open = [self.write.take(), self.direct_write.take(), self.read.take()];
        self.given_up.extend(open.into_iter().flatten());
    }

    /// Whether some that were given up are still open.
    pub(super) fn has_given_up(&self) -> bool {
        !self.given_up.is_empty()
    }

    /// Takes out those given up that nothing uses, to be closed: [`Self::note_closed`].
    pub(super) fn take_unused(&mut self) -> Vec<Arc<OwnedFd>> {
        // None is given out any more.
        let is_unused = |fd: &mut Arc<OwnedFd>| Arc::strong_count(fd) == 1;
        let unused: Vec<_> = self.given_up.extract_if(.., is_unused).collect();
        self.closing += unused.len();
        unused
    }

    /// So many of those that were taken out are closed.
    pub(super) fn note_closed(&mut self, number: usize) {
        self.closing -= number;
    }

    /// How many they are, without the object's first descriptor, which may be one of them. At most
    /// four, and those that were given up.
    pub(super) fn number_beside(&self, base: &Arc<OwnedFd>) -> usize {
        let all = [&self.read, &self.write, &self.quiet, &self.direct_read, &self.direct_write];
        let given_up = self.given_up.iter();
        let open = all.into_iter().flatten().chain(given_up);
        open.filter(|fd| !Arc::ptr_eq(fd, base)).count() + self.closing
    }

    /// The kernel refused a request that fits the alignment `used`, and now reports `align`. If
    /// that is another, it counts; if not, there is no direct I/O for this object.
    pub(crate) fn refused(&mut self, used: DioAlign, align: Option<DioAlign>) {
        if self.set_align(align) == Some(used) {
            self.align = Some(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn align(memory: u32, offset: u32) -> Option<DioAlign> {
        DioAlign::new(memory, offset, offset)
    }

    #[test]
    fn alignments_beyond_our_buffers_are_none() {
        let mut data = DataDescriptors::default();
        assert!(data.direct(Use::Read).is_none(), "not read yet");
        for (given, kept) in [
            (align(512, 512), true),
            (align(4096, 65_536), true),
            (align(8192, 512), false),
            (align(512, 2 << 20), false),
            (None, false),
        ] {
            assert_eq!(data.set_align(given).is_some(), kept, "{given:?}");
            assert_eq!(data.align().is_some(), kept);
            assert_eq!(matches!(data.direct(Use::Read), Some(None)), !kept);
        }
    }

    #[test]
    fn a_refusal_counts_unless_the_kernel_changed_its_mind() {
        let mut data = DataDescriptors::default();
        let (old, new) = (align(512, 512), align(512, 4096));
        data.set_align(old);
        // Of two requests that are in flight when it changes.
        for _ in 0..2 {
            data.refused(old.unwrap(), new);
            assert_eq!(data.align(), new);
        }
        for _ in 0..2 {
            data.refused(new.unwrap(), new);
            assert_eq!(data.align(), None);
        }
    }
}
