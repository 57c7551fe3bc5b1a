//! How the WRITEs of a file go on through it.

use io::{ByteRange, Fronts, Stream, Streams};

/// So many of the latest WRITEs show how many come at a time.
const COUNTED_WRITES_MAX: u64 = 1024;
/// WRITEs begin to come alone when so many turns have fewer WRITEs than the second number, and
/// cease to when they have twice as many WRITEs as turns: through the page cache they are performed
/// sooner than through the window, so that fewer wait together.
const SINGLE_TURNS: u64 = 2;
const SINGLE_TURNS_WRITES: u64 = 3;
/// Longer WRITEs go through the window: it was faster for those of 256 KiB that came alone, free
/// memory as fast or faster for those of 150,000 bytes (decision
/// `2026-11-29-writes-that-come-alone.md`).
const SMALL_BYTES_MAX: u64 = 128 * 1024;

/// How the latest WRITEs go on through a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteProgress {
    /// Bytes written in sequence, by one writer or by several that take turns; 0 if they were not.
    pub(crate) bytes: u64,
    /// They leave out part of the file.
    pub(crate) has_gaps: bool,
    /// They are small, most leave gaps or fill some, and few wait together.
    pub(crate) come_alone: bool,
}

/// Where a file was written last.
#[derive(Default)]
pub(super) struct Writers {
    streams: Streams,
    fronts: Fronts,
    turns: Turns,
}

/// The latest WRITEs, by the turns that they were performed in.
#[derive(Default)]
struct Turns {
    count: u64,
    writes: u64,
    bytes: u64,
    /// Few WRITEs have waited together.
    are_single: bool,
}

impl Writers {
    /// Notes WRITEs that are performed together, and returns what they are part of. `begin_turn`:
    /// they are the first ones of their turn.
    pub(super) fn note(
        &mut self,
        begin_turn: bool,
        ranges: impl Iterator<Item = ByteRange>,
    ) -> WriteProgress {
        if begin_turn {
            self.turns.begin();
        }
        let noted = ranges.map(|range| {
            self.turns.note_write(range.len());
            self.fronts.note(range);
            self.streams.note(range)
        });
        let longest = noted.filter(Stream::is_sequential).max_by_key(Stream::bytes);
        let filled_bytes = self.fronts.filled_bytes();
        let come_alone = self.turns.are_single && self.turns.are_small() && self.fronts.skip();
        match longest {
            Some(stream) if stream.bytes() > filled_bytes => {
                WriteProgress { bytes: stream.bytes(), has_gaps: stream.has_gaps(), come_alone }
            }
            _ => {
                WriteProgress { bytes: filled_bytes, has_gaps: self.fronts.have_gaps(), come_alone }
            }
        }
    }
}

impl Turns {
    /// Notes the beginning of one: those before it are complete.
    fn begin(&mut self) {
        if self.writes * SINGLE_TURNS < self.count * SINGLE_TURNS_WRITES {
            self.are_single = true;
        } else if self.writes > 2 * self.count {
            self.are_single = false;
        }
        self.count += 1;
    }

    fn note_write(&mut self, bytes: u64) {
        self.writes += 1;
        self.bytes += bytes;
        if self.writes > COUNTED_WRITES_MAX {
            self.count /= 2;
            self.writes /= 2;
            self.bytes /= 2;
        }
    }

    fn are_small(&self) -> bool {
        self.bytes <= self.writes * SMALL_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: u64 = 47_008;

    /// Writes records by two writers of which the second stays `apart` records behind the first, in
    /// turns of so many WRITEs, which are not adjacent.
    fn two_writers(record_bytes: u64, apart: u64, turn_writes: usize) -> WriteProgress {
        let mut writers = Writers::default();
        let mut last = WriteProgress::default();
        let of = |record| ByteRange::new(record * record_bytes, record_bytes).unwrap();
        let records =
            (0..4000).flat_map(|step| [(step + apart) * 2, step * 2 + 1].map(of)).enumerate();
        for (index, range) in records {
            last = writers.note(index % turn_writes == 0, [range].into_iter());
        }
        last
    }

    #[test]
    fn small_writes_of_writers_apart_come_alone_unless_they_share_turns() {
        let table = [
            (RECORD, 10, 1, true),
            (RECORD, 2000, 1, true),
            // Two WRITEs in each turn.
            (RECORD, 10, 2, false),
            (100_000, 10, 1, true),
            (140_000, 10, 1, false),
            // The second writer goes on where the first one stands, as one writer would.
            (RECORD, 0, 1, false),
        ];
        for (record_bytes, apart, turn_writes, expected) in table {
            let progress = two_writers(record_bytes, apart, turn_writes);
            assert!(progress.bytes >= 8 << 20, "{progress:?}");
            assert_eq!(progress.come_alone, expected, "{record_bytes} {apart} {turn_writes}");
        }
    }

    /// Whether WRITEs of two writers come alone after each of some times: in tenths, how many are
    /// in a turn.
    fn come_alone_after(times: &[u64]) -> Vec<bool> {
        let mut writers = Writers::default();
        let (mut step, mut tenths) = (0, 0);
        times
            .iter()
            .map(|turn_writes_tenths| {
                let mut last = WriteProgress::default();
                for _ in 0..3000 {
                    let record = if step % 2 == 0 { step + 20 } else { step };
                    let range = ByteRange::new(record * RECORD, RECORD).unwrap();
                    tenths += 10;
                    let begin_turn = tenths >= *turn_writes_tenths;
                    if begin_turn {
                        tenths -= turn_writes_tenths;
                    }
                    last = writers.note(begin_turn, [range].into_iter());
                    step += 1;
                }
                last.come_alone
            })
            .collect()
    }

    #[test]
    fn how_writes_come_changes_only_beyond_the_other_bound() {
        assert_eq!(
            come_alone_after(&[17, 13, 17, 25, 17, 13]),
            [false, true, true, false, false, true]
        );
    }

    #[test]
    fn one_writer_whose_writes_change_places_never_comes_alone() {
        let mut writers = Writers::default();
        for step in 0..4000_u64 {
            // Each eighth comes before the one that it follows.
            let record = match step % 8 {
                6 => step + 1,
                7 => step - 1,
                _ => step,
            };
            let range = ByteRange::new(record * RECORD, RECORD).unwrap();
            assert!(step < 8 || !writers.note(true, [range].into_iter()).come_alone, "{step}");
        }
    }
}
