//! Whether WRITEs reach the server in the order of their files.
//!
//! A client that writes one file with many WRITEs at a time may send neighbours in the wrong order.
//! Their data is put in order before the disk sees it, but a client that does this costs gathering
//! and read-ahead of the file system, and its users ask why. So late ones are counted: WRITEs into
//! a gap that an earlier one has left by jumping ahead.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// The files that were written to lately, and where.
#[derive(Debug)]
pub(crate) struct WriteOrder {
    hash: RandomState,
    /// A file has its place by its hash. Another one there takes it over: what is lost is a little
    /// counting.
    files: Box<[Mutex<(u64, Arrivals)>]>,
}

impl WriteOrder {
    pub(crate) fn new() -> Self {
        let files = (0..FILES).map(|_| Mutex::default()).collect();
        Self { hash: RandomState::new(), files }
    }

    /// Notes the arrival of a WRITE of the file with this handle. Whether it is late.
    pub(crate) fn is_late(&self, file: &[u8], offset: u64, len: u32) -> bool {
        let key = self.hash.hash_one(file);
        let mut slot = self.files[place(key)].lock().unwrap_or_else(PoisonError::into_inner);
        let (owner, arrivals) = &mut *slot;
        if *owner != key {
            (*owner, *arrivals) = (key, Arrivals::default());
        }
        arrivals.is_late(offset, len)
    }
}

/// The place of a file with this hash.
fn place(key: u64) -> usize {
    usize::try_from(key % FILES as u64).expect("a place in the table")
}

/// The WRITEs of one file.
#[derive(Debug, Default)]
struct Arrivals {
    /// Where the next one of a sequential writer begins.
    next: u64,
    /// The skipped ranges, as begin and end, the latest last.
    gaps: Vec<(u64, u64)>,
}

impl Arrivals {
    fn is_late(&mut self, offset: u64, len: u32) -> bool {
        let (len, expected) = (u64::from(len), self.next);
        let end = offset.saturating_add(len);
        if let Some(gap) =
            self.gaps.iter().position(|(begin, end)| (*begin..*end).contains(&offset))
        {
            let (begin, gap_end) = self.gaps.swap_remove(gap);
            let rest = [(begin, offset), (end, gap_end)];
            self.gaps.extend(rest.into_iter().filter(|(begin, end)| begin < end));
            self.next = expected.max(end);
            return true;
        }
        // A longer jump is a writer that goes elsewhere.
        if offset > expected && offset - expected <= JUMP_WRITES * len {
            if self.gaps.len() == GAPS_MAX {
                self.gaps.remove(0);
            }
            self.gaps.push((expected, offset));
        }
        self.next = end;
        false
    }
}

/// Files watched at a time, as many as FreeBSD's server watches for the same end.
const FILES: usize = 1031;

/// How far ahead of its neighbour a WRITE arrives at most that has overtaken it, in WRITEs of its
/// size: FreeBSD's bound too.
const JUMP_WRITES: u64 = 16;

/// Gaps that are remembered of a file.
const GAPS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn late(arrivals: &[(u64, u32)]) -> Vec<u64> {
        let mut file = Arrivals::default();
        let late = arrivals.iter().filter(|(offset, len)| file.is_late(*offset, *len));
        late.map(|(offset, _)| *offset).collect()
    }

    #[test]
    fn only_an_overtaken_write_is_late() {
        assert_eq!(late(&[(0, 10), (10, 10), (20, 5), (25, 100)]), [], "sequential");
        assert_eq!(late(&[(0, 10), (20, 10), (10, 10), (30, 10)]), [10], "two changed places");
        assert_eq!(late(&[(30, 10), (20, 10), (10, 10), (0, 10), (40, 10)]), [20, 10, 0]);
        assert_eq!(late(&[(0, 10), (20, 10), (15, 5), (10, 5)]), [15, 10], "a gap in two parts");
        assert_eq!(late(&[(0, 10), (0, 10), (5, 10), (15, 10)]), [], "written again");
        assert_eq!(late(&[(0, 10), (9_000, 10), (10, 10), (9_010, 10)]), [], "two writers");
        assert_eq!(late(&[(u64::MAX, 10), (0, 10)]), []);
    }

    #[test]
    fn gaps_are_bounded() {
        let mut file = Arrivals::default();
        for i in 0..100 {
            assert!(!file.is_late(i * 20 + 10, 10));
        }
        assert_eq!(file.gaps.len(), GAPS_MAX);
        assert!(file.is_late(99 * 20, 10), "the latest gap is known");
        assert!(!file.is_late(0, 10), "the first one was forgotten");
    }

    #[test]
    fn files_do_not_mix() {
        let order = WriteOrder::new();
        let mut files = (0..=u8::MAX).map(|i| [i]);
        let place_of = |file: &[u8]| place(order.hash.hash_one(file));
        let a = files.next().expect("the first");
        let b = files.find(|b| place_of(b) != place_of(&a)).expect("256 files have many places");
        assert!(!order.is_late(&a, 0, 10));
        assert!(!order.is_late(&a, 20, 10));
        assert!(!order.is_late(&b, 10, 10));
        assert!(order.is_late(&a, 10, 10));
    }
}
