//! Committed data that was written in parts of pages, kept for later reads.
//!
//! The kernel's page cache above this one keeps pages that were written whole. A page written in
//! parts is not complete there and is read again, although all its data went through here. So such
//! data is kept until another client changes the file, or other files need the room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;

use super::chunk::{copy_overlap, index};

/// Bounds the kept data of all files of a mount. Files are evicted whole, first in first out.
#[derive(Clone)]
pub(crate) struct KeptBudget(Arc<Mutex<Files>>);

struct Files {
    bytes_max: usize,
    /// As [`Data::bytes`].
    bytes: usize,
    /// Files with kept data, and some without, in order of eviction.
    order: VecDeque<Weak<Mutex<Data>>>,
}

/// The kept data of one file. Locked under the lock of the budget.
#[derive(Default)]
struct Data {
    /// By offset; they do not overlap.
    extents: BTreeMap<u64, Extent>,
    /// With [`EXTENT_OVERHEAD_BYTES`] for each extent.
    bytes: usize,
    is_enlisted: bool,
}

/// Kept data, of which no other holds the memory.
struct Extent {
    bytes: Bytes,
    /// Bytes of the allocation of which `bytes` are a part.
    allocated: usize,
}

/// The kept data of one file, and which data to keep.
pub(super) struct Kept {
    budget: KeptBudget,
    data: Arc<Mutex<Data>>,
    /// Blocks of the file with writes in parts of pages since they were last committed whole.
    ragged: BTreeSet<u64>,
    block_bytes: u64,
}

impl KeptBudget {
    /// A bound of `bytes_max` for all files.
    #[must_use]
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Files { bytes_max, bytes: 0, order: VecDeque::new() })))
    }

    /// Bytes kept, with those of their administration.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.0).bytes
    }
}

impl Kept {
    pub(super) fn new(budget: KeptBudget, block_bytes: u64) -> Self {
        Self { budget, data: Arc::default(), ragged: BTreeSet::new(), block_bytes }
    }

    /// Notes a write of `len` bytes at `offset`.
    pub(super) fn note_write(&mut self, offset: u64, len: usize) {
        let end = offset + len as u64;
        for edge in if len > 0 { [offset, end] } else { [0, 0] } {
            if !edge.is_multiple_of(PAGE_BYTES) {
                // The block of the page: blocks consist of whole pages.
                self.ragged.insert(edge.saturating_sub(u64::from(edge == end)) / self.block_bytes);
            }
        }
        if self.ragged.len() > RAGGED_MAX {
            self.ragged.clear();
        }
    }

    /// Notes that the server has committed `bytes` at `offset`.
    pub(super) fn committed(&mut self, offset: u64, bytes: &Bytes) {
        let end = offset + bytes.len() as u64;
        let blocks = offset / self.block_bytes..end.div_ceil(self.block_bytes);
        let is_ragged = self.ragged.range(blocks.clone()).next().is_some();
        for block in blocks {
            if block * self.block_bytes >= offset && (block + 1) * self.block_bytes <= end {
                self.ragged.remove(&block);
            }
        }
        let mut files = lock(&self.budget.0);
        files.remove(&self.data, offset, end);
        let charge = bytes.len() + EXTENT_OVERHEAD_BYTES;
        if !is_ragged || charge > files.bytes_max {
            return;
        }
        files.make_room(charge);
        files.bytes += charge;
        let mut data = lock(&self.data);
        if !std::mem::replace(&mut data.is_enlisted, true) {
            files.enlist(&self.data);
        }
        // A copy, because the bytes themselves count in the budget of the writers.
        data.extents.insert(offset, Extent::copy(bytes));
        data.bytes += charge;
    }

    /// The end of the kept data at `offset`, if there is any.
    pub(super) fn covered_until(&self, offset: u64) -> Option<u64> {
        let data = lock(&self.data);
        let (start, extent) = data.extents.range(..=offset).next_back()?;
        let end = start + extent.bytes.len() as u64;
        (end > offset).then_some(end)
    }

    /// Copies the kept data into `buf`, which begins at `offset`.
    pub(super) fn overlay(&self, offset: u64, buf: &mut [u8]) {
        let end = offset.saturating_add(buf.len() as u64);
        let data = lock(&self.data);
        let first = data.extents.range(..=offset).next_back().map_or(offset, |(start, _)| *start);
        for (start, extent) in data.extents.range(first..end) {
            copy_overlap(offset, buf, *start, &extent.bytes);
        }
    }

    /// Drops all data from `size` on.
    pub(super) fn cut(&mut self, size: u64) {
        lock(&self.budget.0).remove(&self.data, size, u64::MAX);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.cut(0);
    }
}

impl Files {
    /// Appends a file to the order. Dropped files are removed before the order grows.
    fn enlist(&mut self, data: &Arc<Mutex<Data>>) {
        if self.order.len() == self.order.capacity() {
            self.order.retain(|file| file.strong_count() > 0);
        }
        self.order.push_back(Arc::downgrade(data));
    }

    /// Removes the data of a file between `from` and `to`.
    fn remove(&mut self, data: &Mutex<Data>, from: u64, to: u64) {
        let mut data = lock(data);
        self.bytes -= data.bytes;
        data.remove(from, to);
        self.bytes += data.bytes;
        drop(data);
        // Two extents can be left of one, which count more than the bytes removed.
        self.make_room(0);
    }

    /// Evicts files in order until there is room for `bytes`, at most the bound.
    fn make_room(&mut self, bytes: usize) {
        while self.bytes + bytes > self.bytes_max {
            let Some(first) = self.order.pop_front() else { return };
            let Some(data) = first.upgrade() else { continue };
            let mut data = lock(&data);
            self.bytes -= data.bytes;
            *data = Data::default();
        }
    }
}

impl Data {
    /// Removes the data between `from` and `to`.
    fn remove(&mut self, from: u64, to: u64) {
        let first = self.extents.range(..=from).next_back().map_or(from, |(start, _)| *start);
        let hit: Vec<u64> = self.extents.range(first..to).map(|(start, _)| *start).collect();
        for start in hit {
            let old = self.extents.remove(&start).expect("it was found");
            let end = start + old.bytes.len() as u64;
            self.bytes -= old.charge();
            let rest = [
                (start, old.part(0, from.clamp(start, end) - start)),
                (to.clamp(start, end), old.part(to.clamp(start, end) - start, end - start)),
            ];
            for (start, extent) in rest {
                if !extent.bytes.is_empty() {
                    self.bytes += extent.charge();
                    self.extents.insert(start, extent);
                }
            }
        }
    }
}

impl Extent {
    fn copy(bytes: &[u8]) -> Self {
        Self { bytes: Bytes::copy_from_slice(bytes), allocated: bytes.len() }
    }

    /// The bytes `from..to`. A part keeps the whole allocation, so less than half of it is copied:
    /// the charge is at least half of the memory.
    fn part(&self, from: u64, to: u64) -> Self {
        let range = index(from)..index(to);
        if 2 * range.len() < self.allocated {
            return Self::copy(&self.bytes[range]);
        }
        Self { bytes: self.bytes.slice(range), allocated: self.allocated }
    }

    /// Bytes of memory, at least half of those of the allocation.
    fn charge(&self) -> usize {
        self.bytes.len() + EXTENT_OVERHEAD_BYTES
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pages of all supported machines are multiples of this.
const PAGE_BYTES: u64 = 4096;

/// Memory of an extent beside its data: its entry in the map, and the shortest allocation.
const EXTENT_OVERHEAD_BYTES: usize = 128;

/// Ragged blocks of a file that are remembered, 64 GiB in blocks of 1 MiB. Beyond that the kernel
/// reads again.
const RAGGED_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const BLOCK: u64 = 8192;

    const EXTENT: usize = EXTENT_OVERHEAD_BYTES;

    fn file(budget: &KeptBudget) -> Kept {
        Kept::new(budget.clone(), BLOCK)
    }

    fn write(kept: &mut Kept, offset: u64, len: usize, byte: u8) {
        kept.note_write(offset, len);
        kept.committed(offset, &Bytes::from(vec![byte; len]));
    }

    fn read(kept: &Kept, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut at = offset;
        while at < offset + len as u64 {
            at = kept.covered_until(at)?;
        }
        let mut buf = vec![0; len];
        kept.overlay(offset, &mut buf);
        Some(buf)
    }

    #[test]
    fn only_parts_of_pages_are_kept() {
        let budget = KeptBudget::new(1 << 20);
        let mut kept = file(&budget);
        write(&mut kept, 0, 8192, 1);
        assert_eq!((read(&kept, 0, 1), budget.bytes()), (None, 0));
        write(&mut kept, 8192, 100, 2);
        assert_eq!((read(&kept, 8192, 100), budget.bytes()), (Some(vec![2; 100]), 100 + EXTENT));
        // It ends at the end of a page, and begins within one.
        write(&mut kept, 8292, 4096 - 100, 3);
        assert_eq!(read(&kept, 8290, 4), Some(vec![2, 2, 3, 3]));
        assert_eq!(read(&kept, 8190, 4), None);
        // Whole pages again: the block was ragged, and is now committed whole.
        kept.note_write(8192, 8192);
        kept.committed(8192, &Bytes::from(vec![4; 8192]));
        assert_eq!(read(&kept, 8192, 8192), Some(vec![4; 8192]));
        write(&mut kept, 8192, 8192, 5);
        assert_eq!((read(&kept, 8192, 1), budget.bytes()), (None, 0), "older data is dropped");
    }

    #[test]
    fn later_data_replaces_the_middle_of_older_data() {
        let budget = KeptBudget::new(1 << 20);
        let mut kept = file(&budget);
        write(&mut kept, 1, 1000, 1);
        write(&mut kept, 100, 10, 2);
        assert_eq!(read(&kept, 99, 12).unwrap(), [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
        assert_eq!(budget.bytes(), 1000 + 3 * EXTENT);
        kept.cut(105);
        assert_eq!((read(&kept, 1, 104).map(|b| b[103]), read(&kept, 105, 1)), (Some(2), None));
        assert_eq!(budget.bytes(), 104 + 2 * EXTENT);
        kept.cut(0);
        assert_eq!((read(&kept, 1, 1), budget.bytes()), (None, 0));
    }

    #[test]
    fn the_oldest_file_makes_room() {
        let budget = KeptBudget::new(1000 + 2 * EXTENT);
        let (mut first, mut second) = (file(&budget), file(&budget));
        write(&mut first, 0, 500, 1);
        write(&mut second, 0, 400, 2);
        write(&mut second, 400, 200, 3);
        assert_eq!((read(&first, 0, 1), budget.bytes()), (None, 600 + 2 * EXTENT));
        assert_eq!(read(&second, 399, 2), Some(vec![2, 3]));
        write(&mut first, 0, 500, 4);
        assert_eq!((read(&second, 0, 1), read(&first, 0, 1)), (None, Some(vec![4])));
        write(&mut first, 500, 1001 + EXTENT, 5);
        assert_eq!(read(&first, 0, 500), Some(vec![4; 500]), "more than the bound is not kept");
        drop(first);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn memory_of_many_small_extents_is_bounded() {
        let budget = KeptBudget::new(1 << 20);
        let (mut oldest, mut kept) = (file(&budget), file(&budget));
        write(&mut oldest, 1, 1000, 1);
        for at in 0..100 {
            write(&mut kept, 16 * at + 1, 1, 2);
        }
        assert_eq!(budget.bytes(), 1000 + 100 + 101 * EXTENT);
        for at in 0..(2 << 20) / EXTENT as u64 {
            write(&mut kept, 16 * at + 1, 1, 2);
            assert!(budget.bytes() <= 1 << 20);
        }
        assert_eq!(read(&oldest, 1, 1), None);
    }

    #[test]
    fn a_hole_in_kept_data_counts_as_another_extent() {
        let budget = KeptBudget::new(1 << 20);
        let mut kept = file(&budget);
        write(&mut kept, 1, 4 * 8192, 1);
        // A whole block, which is not kept.
        kept.ragged.clear();
        write(&mut kept, 8192, 8192, 2);
        assert_eq!((read(&kept, 8192, 1), budget.bytes()), (None, 3 * 8192 + 2 * EXTENT));
    }

    /// Memory that counts its end.
    struct Counted(Vec<u8>, Arc<AtomicUsize>);

    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn less_than_half_of_an_extent_does_not_keep_its_memory() {
        const ALLOCATED: usize = 1000;
        let freed = Arc::new(AtomicUsize::new(0));
        let bytes = Bytes::from_owner(Counted(vec![7; ALLOCATED], Arc::clone(&freed)));
        let mut data = Data { bytes: ALLOCATED + EXTENT, ..Data::default() };
        data.extents.insert(0, Extent { bytes, allocated: ALLOCATED });
        // The second cut leaves more than half of the rest, and less than half of the memory.
        for (size, times_freed) in [(600, 0), (400, 1)] {
            data.remove(size, u64::MAX);
            assert_eq!(data.bytes as u64, size + EXTENT as u64);
            assert_eq!(data.extents[&0].bytes, vec![7; index(size)]);
            assert_eq!(freed.load(Ordering::Relaxed), times_freed);
        }
    }

    #[test]
    fn dropped_files_leave_nothing_behind() {
        let budget = KeptBudget::new(1 << 20);
        let mut oldest = file(&budget);
        write(&mut oldest, 0, 100, 1);
        for _ in 0..10_000 {
            write(&mut file(&budget), 0, 100, 2);
        }
        assert_eq!((budget.bytes(), read(&oldest, 0, 1)), (100 + EXTENT, Some(vec![1])));
        assert!(lock(&budget.0).order.len() <= 16, "one file is left");
    }
}
