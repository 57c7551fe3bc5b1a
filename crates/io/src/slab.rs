//! Memory that buffers of one size are cut out of, in huge pages where the system has them.
//!
//! Direct I/O hands the disk pieces of memory that are contiguous to it. 1 MiB of ordinary pages is
//! 256 of them, which a virtual disk takes as several requests while others wait; in huge pages it
//! is two at most.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, PoisonError};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::sync::{Mutex, MutexGuard};

/// The alignment of every buffer's first byte, in bytes.
///
/// Direct I/O asks for at most the logical block size of the device, which Linux file systems cap
/// at one page of 4096 bytes on the machines we serve from; larger system pages only align better.
pub const BUFFER_ALIGN: usize = 4096;

/// The size of a huge page on x86-64, and on arm64 with pages of 4 KiB. Elsewhere fewer of them
/// fit.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// An anonymous private mapping of slots, all of one length. Unmapped when the last slot and all
/// other references are dropped.
pub(crate) struct Slab {
    start: NonNull<u8>,
    len: usize,
    slot_bytes: usize,
    /// Free slots. The first is taken first, so that the used ones share huge pages.
    vacant: Mutex<BTreeSet<usize>>,
}

impl Slab {
    /// Maps `slots` of `slot_bytes` each, at least one, a multiple of the system page size. A page
    /// gets memory when it is first touched; with `huge`, a huge page at a time where slots fill
    /// one, if the system has one and allows it (`transparent_hugepage/enabled` is `madvise` or
    /// `always`).
    pub(crate) fn map(slot_bytes: usize, slots: usize, huge: bool) -> Result<Arc<Self>, Errno> {
        let used = slot_bytes.checked_mul(slots).ok_or(Errno::NOMEM)?;
        // Linux aligns to huge pages what is a multiple of them (since 6.7). Without that, those at
        // both ends are ordinary ones.
        let len = if huge { used.next_multiple_of(HUGE_PAGE_BYTES) } else { used };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: with a null hint and without MAP_FIXED the kernel picks unused addresses, so no
        // existing object is touched.
        let start = unsafe { mmap_anonymous(null_mut(), len, protection, MapFlags::PRIVATE)? };
        let start =
            NonNull::new(start.cast::<u8>()).expect("mmap without MAP_FIXED never maps page zero");
        assert!(start.as_ptr().addr().is_multiple_of(BUFFER_ALIGN));
        let vacant = Mutex::new((0..slots).collect());
        let slab = Self { start, len, slot_bytes, vacant };
        if huge {
            // The last page would have memory that no slot has.
            let filled = used / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            let advised = slab
                .advise(0..filled, Advice::LinuxHugepage)
                .and_then(|()| slab.advise(filled..len, Advice::LinuxNoHugepage));
            if let Err(error) = advised {
                tracing::debug!(%error, "this kernel has no transparent huge pages");
            }
        }
        Ok(Arc::new(slab))
    }

    /// Advises the kernel which pages a range of the new mapping is to consist of.
    fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        debug_assert!(matches!(advice, Advice::LinuxHugepage | Advice::LinuxNoHugepage));
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies in the mapping, and these two change no content.
        unsafe { madvise(self.start.add(range.start).as_ptr().cast(), range.len(), advice) }
    }

    /// A free slot, if there is one; zeroed, or with content of an earlier use.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Slot> {
        let number = self.lock().pop_first()?;
        Some(Slot { slab: Arc::clone(self), number })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.vacant.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { len, slot_bytes, .. } = self;
        f.debug_struct("Slab").field("len", len).field("slot_bytes", slot_bytes).finish()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `map` mapped, no other code unmaps it, and every slice
        // of it borrowed a slot, each of which held a reference to this value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        // Unmapping a whole own mapping has no documented failure but running out of mappings by
        // splitting, which whole mappings do not do. Memory that stayed mapped outside the budget
        // would be a silent leak.
        if let Err(error) = unmapped {
            tracing::error!(%error, len = self.len, "a slab could not be unmapped and leaks");
        }
    }
}

/// A slot, held by the owner of this value alone. Dropped, it gives its memory back to the system.
#[derive(Debug)]
pub(crate) struct Slot {
    slab: Arc<Slab>,
    number: usize,
}

impl Slot {
    pub(crate) fn bytes(&self) -> usize {
        self.slab.slot_bytes
    }

    /// The first byte.
    fn start(&self) -> NonNull<u8> {
        // SAFETY: `take` hands out numbers of slots that lie within the mapping.
        unsafe { self.slab.start.add(self.number * self.slab.slot_bytes) }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `map` mapped the slot's bytes readable, zero-filled by the kernel and hence
        // initialised; they stay mapped as long as `slab`, which lives as long as `self`; this slot
        // has no other holder, and only `as_mut_slice` writes it, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.bytes()) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`; the pages are writable, and `&mut self` makes this the only
        // reference.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.bytes()) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: the range is this slot, whole pages to which no slice is left, and what they hold
        // afterwards, zeroes, is initialised.
        let given_back =
            unsafe { madvise(self.start().as_ptr().cast(), self.bytes(), Advice::LinuxDontNeed) };
        // The memory stays in use, as long as the slab does; no content of it is at risk.
        if let Err(error) = given_back {
            tracing::error!(%error, len = self.bytes(), "cannot return memory to the system");
        }
        self.slab.lock().insert(self.number);
    }
}

// SAFETY: the mapping is plain memory owned by this value, munmap works from any thread, and what
// is in it is reached by slots alone, each of which has a part to itself.
unsafe impl Send for Slab {}
// SAFETY: as above; the set of vacant slots is behind a lock.
unsafe impl Sync for Slab {}

#[cfg(not(shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip_in_ci_too;

    const KIB: usize = 1024;

    /// Kilobytes of this process in huge pages, within the mapping of `slot`.
    fn huge_kib(slot: &Slot) -> usize {
        let address = slot.start().as_ptr().addr();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut within = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let bounds = range.and_then(|(start, end)| {
                Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
            });
            if let Some((start, end)) = bounds {
                within = (start..end).contains(&address);
            } else if within && line.starts_with("AnonHugePages:") {
                return line.split_whitespace().nth(1).unwrap().parse().unwrap();
            }
        }
        panic!("no mapping has {address:#x}");
    }

    #[test]
    fn each_slot_is_held_once_and_the_first_is_taken_first() {
        let slab = Slab::map(12 * KIB, 3, false).unwrap();
        let mut slots: Vec<_> = std::iter::from_fn(|| slab.take()).collect();
        assert_eq!(slots.iter().map(|slot| slot.number).collect::<Vec<_>>(), [0, 1, 2]);
        for (slot, byte) in slots.iter_mut().zip(1..) {
            assert!(slot.as_slice() == [0; 12 * KIB]);
            slot.as_mut_slice().fill(byte);
        }
        for (slot, byte) in slots.iter().zip(1..) {
            assert!(slot.as_slice() == [byte; 12 * KIB], "slot {}", slot.number);
        }
        drop(slots.remove(1));
        drop(slots.remove(0));
        assert_eq!(slab.take().unwrap().number, 0);
        assert!(slab.take().unwrap().as_slice() == [0; 12 * KIB], "its memory was given back");
    }

    #[test]
    fn a_slab_is_there_as_long_as_its_slots() {
        let slab = Slab::map(4 * KIB, 2, false).unwrap();
        let slot = slab.take().unwrap();
        let weak = Arc::downgrade(&slab);
        drop(slab);
        assert!(slot.as_slice() == [0; 4 * KIB]);
        drop(slot);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn large_slots_lie_in_huge_pages_where_there_are_any() {
        let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        if !enabled.is_ok_and(|modes| modes.contains("[madvise]") || modes.contains("[always]")) {
            return skip_in_ci_too("no transparent huge pages by madvise");
        }
        let slab = Slab::map(1032 * KIB, 7, true).unwrap();
        let mut slots: Vec<_> = std::iter::from_fn(|| slab.take()).collect();
        for slot in &mut slots {
            slot.as_mut_slice().fill(1);
        }
        // A machine whose memory is in pieces has none at the moment.
        if huge_kib(&slots[0]) == 0 {
            return skip_in_ci_too("this machine has no huge page now");
        }
        // 7,224 KiB are three of them.
        assert!(
            huge_kib(&slots[0]) <= 6144 && huge_kib(&slots[0]) >= 2048,
            "{} KiB",
            huge_kib(&slots[0])
        );
    }
}
