//! The legal contents of one file: the versions of its items, and the bytes of each version.
//!
//! An item is a cell of one byte or a unit of 512 bytes. A change gives each item that it touches
//! the next version: an odd one is data, an even one is a hole (zeros, or behind the end of the
//! file). Cells are never cut, so all their versions are data. A version is *begun* before the
//! change is asked for and *acknowledged* once it was promised. Bytes of a version older than the
//! one acknowledged before an open began are stale.
//!
//! Only one thread changes an item at a time: the regions of [`File`](crate::file::File) see to
//! that.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::random::scramble;

pub(crate) const UNIT_BYTES: usize = 512;
pub(crate) const CELLS: usize = 64;
const WORD_BYTES: usize = 16;

struct Item {
    begun: AtomicU32,
    acknowledged: AtomicU32,
}

/// Cells first, then units.
pub(crate) struct Versions {
    file: u64,
    items: Box<[Item]>,
    /// Where each unit begins: the position of the first, and the unit from which on all are
    /// shifted by some bytes.
    first_at: u64,
    shifted_from: usize,
    shift: u64,
}

/// The versions that an answer must at least have: those acknowledged when the open began.
pub(crate) struct Floors(Vec<u32>);

/// Why bytes are wrong.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) item: usize,
    why: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "item {}: {}", self.item, self.why)
    }
}

impl Versions {
    pub(crate) fn new(file: usize, units: usize, shifted_from: usize, shift: u64) -> Self {
        let item = |_| Item { begun: AtomicU32::new(0), acknowledged: AtomicU32::new(0) };
        let items = (0..CELLS + units).map(item).collect();
        Self { file: file as u64, items, first_at: 4096, shifted_from, shift }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Where an item begins in the file; for the number of items, the end of the file.
    pub(crate) fn position(&self, item: usize) -> u64 {
        let Some(unit) = item.checked_sub(CELLS) else { return item as u64 };
        let shift = if unit >= self.shifted_from { self.shift } else { 0 };
        self.first_at + (unit * UNIT_BYTES) as u64 + shift
    }

    /// The bytes of items that are all cells or all units.
    pub(crate) fn bytes(&self, items: &Range<usize>) -> Range<u64> {
        let last = items.end - 1;
        self.position(items.start)..self.position(last) + size(last) as u64
    }

    pub(crate) fn floors(&self) -> Floors {
        Floors(self.items.iter().map(|item| item.acknowledged.load(Ordering::SeqCst)).collect())
    }

    fn begun(&self, item: usize) -> u32 {
        self.items[item].begun.load(Ordering::SeqCst)
    }

    /// Begins the next data of `items`, all cells or all units; returns the bytes to write.
    pub(crate) fn begin_writing(&self, items: &Range<usize>) -> Vec<u8> {
        let mut data = Vec::new();
        for item in items.clone() {
            let begun = self.begun(item);
            let version = if item < CELLS { begun + 1 } else { (begun + 1) | 1 };
            self.items[item].begun.store(version, Ordering::SeqCst);
            self.encode(item, version, &mut data);
        }
        data
    }

    /// Begins to make holes of units.
    pub(crate) fn begin_cutting(&self, units: &Range<usize>) {
        for item in units.clone() {
            let version = (self.begun(item) + 2) & !1;
            self.items[item].begun.store(version, Ordering::SeqCst);
        }
    }

    /// Notes that the changes begun for `items` have been promised.
    pub(crate) fn acknowledge(&self, items: &Range<usize>) {
        for item in &self.items[items.clone()] {
            item.acknowledged.store(item.begun.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }

    /// The version of an item that its owner last began.
    pub(crate) fn newest(&self, item: usize) -> u32 {
        self.begun(item)
    }

    fn encode(&self, item: usize, version: u32, data: &mut Vec<u8>) {
        if item < CELLS {
            data.push(version as u8);
            return;
        }
        data.extend(self.word(item, version).repeat(UNIT_BYTES / WORD_BYTES));
    }

    /// The word that fills a unit: its version, and that mixed with its place.
    fn word(&self, item: usize, version: u32) -> [u8; WORD_BYTES] {
        let place = self.file << 48 | item as u64;
        let sum = scramble(place ^ scramble(u64::from(version)));
        let mut bytes = [0; WORD_BYTES];
        bytes[..8].copy_from_slice(&u64::from(version).to_be_bytes());
        bytes[8..].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Which version an item's bytes show, the newest if they fit several; they are fewer than the
    /// item has, or none, where the file ends.
    ///
    /// # Errors
    /// If they are older than `floors` allow, or of no version that was begun.
    pub(crate) fn judge(&self, item: usize, found: &[u8], floors: &Floors) -> Result<u32, Wrong> {
        let (floor, ceiling) = (floors.0[item], self.begun(item));
        let wrong = |what: String| Wrong {
            item,
            why: format!("{what}; acknowledged {floor}, begun {ceiling}"),
        };
        if item < CELLS {
            let shown = |version: &u32| found.first() == Some(&(*version as u8));
            let fitting = (floor..=ceiling).rev().find(shown);
            return fitting.ok_or_else(|| wrong(format!("byte {found:?}")));
        }
        let shown = word_version(found);
        let whole = || found == self.word(item, shown).repeat(UNIT_BYTES / WORD_BYTES);
        // Nearly all units are of one version, and are not looked at word by word.
        if (floor.max(1)..=ceiling).contains(&shown) && whole() {
            return Ok(shown);
        }
        if found.iter().all(|&byte| byte == 0) {
            let newest_hole = ceiling & !1;
            let stale = || wrong(format!("a hole of {} bytes", found.len()));
            return if newest_hole >= floor { Ok(newest_hole) } else { Err(stale()) };
        }
        let oldest = self.oldest_word(item, found, floor, ceiling).map_err(wrong)?;
        if oldest < floor { Err(wrong(format!("version {oldest}"))) } else { Ok(oldest) }
    }

    /// The oldest version among the words of a unit. A unit is torn only while it is written.
    fn oldest_word(
        &self,
        item: usize,
        found: &[u8],
        floor: u32,
        ceiling: u32,
    ) -> Result<u32, String> {
        let mut oldest = None;
        for (number, word) in found.chunks(WORD_BYTES).enumerate() {
            let version = word_version(word);
            if word == self.word(item, version) {
                if version > ceiling {
                    return Err(format!("version {version} of the future in word {number}"));
                }
                if oldest.is_some_and(|oldest| oldest != version) && floor == ceiling {
                    return Err(format!("versions {oldest:?} and {version} together"));
                }
                oldest = Some(oldest.map_or(version, |oldest: u32| oldest.min(version)));
            } else if floor == ceiling {
                return Err(format!("garbage {word:02x?} in word {number}"));
            }
            // Else torn within the word, or zeros on the way to data.
        }
        Ok(oldest.unwrap_or(floor))
    }

    /// Judges an item of which a cache holds `version`.
    ///
    /// # Errors
    /// If it is older than `floors` allow.
    pub(crate) fn judge_cached(
        &self,
        item: usize,
        version: u32,
        floors: &Floors,
    ) -> Result<(), Wrong> {
        let floor = floors.0[item];
        // All holes look the same.
        let both_holes = item >= CELLS && floor.is_multiple_of(2) && version.is_multiple_of(2);
        if version >= floor || both_holes {
            return Ok(());
        }
        let why = format!("version {version} in the cache; acknowledged {floor}");
        Err(Wrong { item, why })
    }
}

/// The version that the first bytes of a unit or a word show, if they are not torn.
fn word_version(bytes: &[u8]) -> u32 {
    let version = bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    u32::try_from(version).unwrap_or(0)
}

/// Bytes of an item.
pub(crate) fn size(item: usize) -> usize {
    if item < CELLS { 1 } else { UNIT_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = CELLS + 3;

    fn written(times: usize) -> (Versions, Vec<Vec<u8>>) {
        let versions = Versions::new(1, 8, 4, 67);
        let mut contents = Vec::new();
        for _ in 0..times {
            contents.push(versions.begin_writing(&(UNIT..UNIT + 1)));
            versions.acknowledge(&(UNIT..UNIT + 1));
        }
        (versions, contents)
    }

    #[test]
    fn stale_data_is_found() {
        let (versions, contents) = written(2);
        let floors = versions.floors();
        assert_eq!(versions.judge(UNIT, &contents[1], &floors).unwrap(), 3);
        versions.judge(UNIT, &contents[0], &floors).unwrap_err();
        versions.judge(UNIT, &[0; UNIT_BYTES], &floors).unwrap_err();
        versions.judge(UNIT, &[], &floors).unwrap_err();
        versions.judge_cached(UNIT, 1, &floors).unwrap_err();
        versions.judge_cached(UNIT, 3, &floors).unwrap();
    }

    #[test]
    fn a_unit_may_be_torn_only_while_it_is_written() {
        let (versions, contents) = written(1);
        let floors = versions.floors();
        let mut torn = versions.begin_writing(&(UNIT..UNIT + 1));
        torn[200..].copy_from_slice(&contents[0][200..]);
        assert_eq!(versions.judge(UNIT, &torn, &floors).unwrap(), 1);
        versions.acknowledge(&(UNIT..UNIT + 1));
        versions.judge(UNIT, &torn, &versions.floors()).unwrap_err();
    }

    #[test]
    fn holes_are_distinguished_from_data() {
        let (versions, contents) = written(1);
        versions.begin_cutting(&(UNIT..UNIT + 1));
        let before = versions.floors();
        versions.acknowledge(&(UNIT..UNIT + 1));
        let floors = versions.floors();
        assert_eq!(versions.judge(UNIT, &contents[0], &before).unwrap(), 1);
        assert_eq!(versions.judge(UNIT, &[], &floors).unwrap(), 2);
        versions.judge(UNIT, &contents[0], &floors).unwrap_err();
        versions.judge_cached(UNIT, 1, &floors).unwrap_err();
    }

    #[test]
    fn a_cell_shows_its_version() {
        let versions = Versions::new(1, 8, 4, 67);
        let byte = versions.begin_writing(&(5..6));
        let before = versions.floors();
        versions.acknowledge(&(5..6));
        assert_eq!(versions.judge(5, &[0], &before).unwrap(), 0);
        assert_eq!(versions.judge(5, &byte, &before).unwrap(), 1);
        versions.judge(5, &[0], &versions.floors()).unwrap_err();
    }
}
