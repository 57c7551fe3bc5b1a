//! Detects that data is read again.
//!
//! With no memory free, caching what was just read pays only if it is read again before it would be
//! pushed out. Data read past the page cache leaves no trace there, so the trace is kept here: for
//! each of a few parts of a file, when it was last read through. Time is counted in bytes read from
//! the disk, as page reclaim counts it: data read again within half of the memory's size would have
//! stayed in the cache.

use std::sync::{Mutex, PoisonError};

use crate::byte_range::ByteRange;

/// Parts of a file whose reads are distinguished.
const PARTS: usize = 64;

/// The parts of one file that were read past the page cache, and when.
#[derive(Debug, Default)]
pub struct ReadHistory {
    /// Nothing before the first read.
    parts: Mutex<Option<Box<Parts>>>,
}

#[derive(Debug)]
struct Parts {
    /// The length of the file that they divide.
    size: u64,
    parts: [Part; PARTS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Bytes read since it was last read through.
    read_bytes: u64,
    /// The reading of the clock when it was last read through.
    done_at: Option<u64>,
}

impl ReadHistory {
    /// Notes that `range` of a file of `size` bytes is read, and returns whether any of it was read
    /// before within the last `horizon` bytes of `clock`, which counts bytes read from the disk.
    pub fn note(&self, range: ByteRange, size: u64, clock: u64, horizon: u64) -> bool {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = parts.get_or_insert_with(|| Box::new(Parts::of(size)));
        if parts.size != size {
            **parts = Parts::of(size);
        }
        let part_bytes = size.div_ceil(PARTS as u64).max(1);
        let first = range.offset() / part_bytes;
        let touched = range.end().div_ceil(part_bytes).saturating_sub(first);
        let mut again = false;
        let skipped = usize::try_from(first).unwrap_or(PARTS);
        let touched = usize::try_from(touched).unwrap_or(PARTS);
        for (index, part) in (0..).zip(&mut parts.parts).skip(skipped).take(touched) {
            let start = part_bytes * index;
            let Some(place) = ByteRange::new(start, part_bytes) else { break };
            let read = place.intersection(range).len();
            again |= part.done_at.is_some_and(|at| clock.saturating_sub(at) <= horizon);
            part.read_bytes += read;
            if part.read_bytes >= part_bytes.min(size.saturating_sub(start)) {
                *part = Part { read_bytes: 0, done_at: Some(clock) };
            }
        }
        again
    }
}

impl Parts {
    fn of(size: u64) -> Self {
        Self { size, parts: [Part::default(); PARTS] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Reads a file of `size` bytes through, piece by piece; returns how many pieces were read
    /// again.
    fn pass(history: &ReadHistory, size: u64, clock: &mut u64, horizon: u64) -> u64 {
        let mut again = 0;
        for piece in 0..size.div_ceil(MIB) {
            let offset = piece * MIB;
            let range = ByteRange::new(offset, MIB.min(size - offset)).unwrap();
            again += u64::from(history.note(range, size, *clock, horizon));
            *clock += range.len();
        }
        again
    }

    #[test]
    fn a_second_pass_within_memory_is_noticed() {
        let (history, mut clock) = (ReadHistory::default(), 0);
        assert_eq!(pass(&history, 100 * MIB + 5, &mut clock, 200 * MIB), 0);
        assert_eq!(pass(&history, 100 * MIB + 5, &mut clock, 200 * MIB), 101);
    }

    #[test]
    fn a_second_pass_that_no_cache_would_have_served_is_not() {
        let (history, mut clock) = (ReadHistory::default(), 0);
        assert_eq!(pass(&history, 400 * MIB, &mut clock, 200 * MIB), 0);
        assert_eq!(pass(&history, 400 * MIB, &mut clock, 200 * MIB), 0);
    }

    #[test]
    fn random_reads_count_once_they_have_covered_a_part() {
        let history = ReadHistory::default();
        let size = 64 * MIB;
        let mut again = 0;
        for i in 0..512_u64 {
            let range = ByteRange::new(i * 37 % 256 * 4096, 4096).unwrap();
            again += u64::from(history.note(range, size, i * 4096, size));
        }
        assert_eq!(again, 256, "the second time through the first MiB");
    }

    #[test]
    fn another_length_is_another_file() {
        let (history, mut clock) = (ReadHistory::default(), 0);
        pass(&history, 10 * MIB, &mut clock, 100 * MIB);
        assert_eq!(pass(&history, 11 * MIB, &mut clock, 100 * MIB), 0);
        assert!(!history.note(ByteRange::new(0, 5).unwrap(), 0, clock, MIB), "an empty file");
    }
}
