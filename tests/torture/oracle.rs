//! The bytes that may legally be read from a file with many writers.
//!
//! A file is a row of units of 32 bytes behind a few bytes that shift all of them off every
//! alignment. Whatever changes a unit gives it the next *version*; a unit holds its stamp, which is
//! a function of file, position and version, so every byte of it is known. The writer counts a
//! version as *begun* before it asks for the change and as *acknowledged* once it was promised. A
//! reader notes the acknowledged versions before it asks, and the begun ones after the answer: the
//! unit that it got must be of a version between the two. If there is but one, all of it must be
//! there; if a change was in flight, each byte must be that of one of those versions.
//!
//! Only one may change a unit at a time; the callers see to that with the locks of
//! [`Layout`](crate::layout::Layout).

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::random::scramble;

pub(crate) const UNIT_BYTES: usize = 32;

/// The value of the bytes before the first unit, from the file's creation to its end.
const HEAD_BYTE: u8 = 0x5f;
/// As many contents fit beside a version into 64 bits.
const HISTORY_VERSIONS: u32 = 16;

/// The content of a unit in one of its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Stamp,
    /// Cut off: behind the end of the file, or zeros once the file has grown over it again.
    Nothing,
    /// Written and cut off at the same time, so either.
    Either,
}

impl Content {
    fn bits(self) -> u64 {
        match self {
            Self::Stamp => 0,
            Self::Nothing => 1,
            Self::Either => 2,
        }
    }

    fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Stamp,
            1 => Self::Nothing,
            _ => Self::Either,
        }
    }

    fn may_be_stamp(self) -> bool {
        self != Self::Nothing
    }

    fn may_be_absent(self) -> bool {
        self != Self::Stamp
    }
}

struct Unit {
    acknowledged: AtomicU32,
    /// The newest version in the upper half; below it, in pairs of bits, the contents of this and
    /// the versions before it, newest lowest. One word, so that a reader sees both of one moment.
    begun: AtomicU64,
}

impl Unit {
    /// Version 0, before anything was written.
    fn new() -> Self {
        Self { acknowledged: AtomicU32::new(0), begun: AtomicU64::new(Content::Nothing.bits()) }
    }

    fn begin(&self, content: Content) -> u32 {
        let (version, history) = self.begun();
        let version = version.checked_add(1).expect("no test lasts 2^32 changes of a unit");
        let history = (history << 2 | content.bits()) & u64::from(u32::MAX);
        self.begun.store(u64::from(version) << 32 | history, Ordering::SeqCst);
        version
    }

    fn acknowledge(&self) {
        self.acknowledged.store(self.begun().0, Ordering::SeqCst);
    }

    fn begun(&self) -> (u32, u64) {
        let begun = self.begun.load(Ordering::SeqCst);
        (u32::try_from(begun >> 32).expect("the upper half"), begun & u64::from(u32::MAX))
    }
}

/// The versions of one file's units.
pub(crate) struct Oracle {
    file: u8,
    /// Where the first unit begins; less than a unit.
    skew: usize,
    units: Box<[Unit]>,
}

impl Oracle {
    /// A file of which nothing has been written.
    pub(crate) fn new(file: u8, skew: usize, units: usize) -> Self {
        assert!(skew < UNIT_BYTES);
        Self { file, skew, units: (0..units).map(|_| Unit::new()).collect() }
    }

    /// The constant bytes before the first unit.
    pub(crate) fn head(&self) -> Vec<u8> {
        vec![HEAD_BYTE; self.skew]
    }

    /// Where a unit begins in the file.
    pub(crate) fn position(&self, unit: usize) -> u64 {
        (self.skew + unit * UNIT_BYTES) as u64
    }

    /// The first unit that begins at or behind a byte of the file.
    pub(crate) fn unit_from(&self, position: u64) -> usize {
        usize::try_from(position).unwrap().saturating_sub(self.skew).div_ceil(UNIT_BYTES)
    }

    /// Where the file ends when all units are there.
    pub(crate) fn end(&self) -> u64 {
        self.position(self.units.len())
    }

    /// The bytes for the next version of `units`, which may be read from now on.
    pub(crate) fn begin_writing(&self, units: &Range<usize>) -> Vec<u8> {
        self.begin(units.clone(), |_| Content::Stamp)
    }

    /// From now on, what is behind the first `cut` units may be gone.
    pub(crate) fn begin_cutting(&self, cut: usize) {
        self.begin(cut..self.units.len(), |_| Content::Nothing);
    }

    /// As both of these, in an unknown order.
    pub(crate) fn begin_writing_and_cutting(&self, written: &Range<usize>, cut: usize) -> Vec<u8> {
        let kept = written.start.min(cut)..written.end.min(cut);
        let mut data = self.begin(kept, |_| Content::Stamp);
        let both = written.start.max(cut)..written.end.max(cut);
        let rest = self.begin(cut..self.units.len(), |unit| {
            if both.contains(&unit) { Content::Either } else { Content::Nothing }
        });
        let skipped = (both.start - cut) * UNIT_BYTES;
        data.extend(&rest[skipped..skipped + both.len() * UNIT_BYTES]);
        data
    }

    fn begin(&self, units: Range<usize>, content: impl Fn(usize) -> Content) -> Vec<u8> {
        let mut data = Vec::with_capacity(units.len() * UNIT_BYTES);
        for unit in units {
            let version = self.units[unit].begin(content(unit));
            data.extend(self.stamp(unit, version));
        }
        data
    }

    /// Notes that the changes begun for `units` have been promised.
    pub(crate) fn acknowledge(&self, units: Range<usize>) {
        for unit in &self.units[units] {
            unit.acknowledge();
        }
    }

    /// Notes that the cut of the units from `cut` on has been promised.
    pub(crate) fn acknowledge_cut(&self, cut: usize) {
        self.acknowledge(cut..self.units.len());
    }

    /// Notes what must at least be there, before a read of `count` bytes at `offset` begins.
    pub(crate) fn look(&self, offset: u64, count: usize) -> Look<'_> {
        let end = offset + count as u64;
        let first = usize::try_from(offset).unwrap().saturating_sub(self.skew) / UNIT_BYTES;
        // The unit behind the range decides whether the file may end there.
        let last = self.unit_from(end).saturating_add(1).min(self.units.len());
        let first = first.min(last);
        let versions = self.units[first..last]
            .iter()
            .map(|unit| unit.acknowledged.load(Ordering::SeqCst))
            .collect();
        Look { oracle: self, offset, count, first, acknowledged: versions }
    }

    fn stamp(&self, unit: usize, version: u32) -> [u8; UNIT_BYTES] {
        let place = u64::from(self.file) << 56 | self.position(unit);
        let sum = scramble(place ^ scramble(u64::from(version)));
        let words = [place, u64::from(version), sum, scramble(sum)];
        let mut bytes = [0; UNIT_BYTES];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }
}

/// A read that has begun.
pub(crate) struct Look<'a> {
    oracle: &'a Oracle,
    offset: u64,
    count: usize,
    first: usize,
    /// Of the units from `first` on.
    acknowledged: Vec<u32>,
}

/// Bytes that must not be there, or that are missing.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// The file's bytes it is about.
    pub(crate) at: Range<u64>,
    why: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}..{}: {}", self.at.start, self.at.end, self.why)
    }
}

impl Look<'_> {
    /// Judges what the read returned: fewer bytes than asked for only at the end of the file.
    pub(crate) fn check(&self, data: &[u8]) -> Result<(), Wrong> {
        assert!(data.len() <= self.count, "more than was asked for");
        self.check_head(data)?;
        for (i, &acknowledged) in self.acknowledged.iter().enumerate() {
            let unit = self.first + i;
            let (start, end) = self.asked_of(unit);
            if start < end {
                self.check_unit(unit, acknowledged, data, start..end)?;
            }
        }
        Ok(())
    }

    /// Judges whether the file may have ended behind `len` bytes of the range.
    pub(crate) fn check_eof(&self, len: usize) -> Result<(), Wrong> {
        let unit = self.oracle.unit_from(self.offset + len as u64);
        let Some(&acknowledged) = self.acknowledged.get(unit.wrapping_sub(self.first)) else {
            return Ok(());
        };
        if self.legal(unit, acknowledged).any(|(_, content)| content.may_be_absent()) {
            return Ok(());
        }
        let at = self.oracle.position(unit);
        Err(Wrong { at: at..at + 1, why: "said to be behind the end of the file".to_owned() })
    }

    /// The part of a unit that was asked for, in bytes of the unit.
    fn asked_of(&self, unit: usize) -> (usize, usize) {
        let position = self.oracle.position(unit);
        let within =
            |at: u64| usize::try_from(at.saturating_sub(position)).unwrap().min(UNIT_BYTES);
        (within(self.offset), within(self.offset + self.count as u64))
    }

    fn check_head(&self, data: &[u8]) -> Result<(), Wrong> {
        let from = usize::try_from(self.offset).unwrap();
        let asked = self.oracle.skew.saturating_sub(from).min(self.count);
        match (0..asked).find(|&i| data.get(i) != Some(&HEAD_BYTE)) {
            None => Ok(()),
            Some(i) => {
                let at = self.offset + i as u64;
                Err(Wrong { at: at..at + 1, why: format!("{:?} in the head", data.get(i)) })
            }
        }
    }

    fn check_unit(
        &self,
        unit: usize,
        acknowledged: u32,
        data: &[u8],
        asked: Range<usize>,
    ) -> Result<(), Wrong> {
        let position = self.oracle.position(unit);
        let from = usize::try_from(position + asked.start as u64 - self.offset).unwrap();
        let to = (from + asked.len()).min(data.len());
        let found = data.get(from..to).unwrap_or_default();
        let missing = asked.len() - found.len();
        let stamp = self.oracle.stamp(unit, acknowledged);
        let legal = || self.legal(unit, acknowledged);
        // Nearly all units are as their last acknowledged version left them.
        if missing == 0
            && found == &stamp[asked.start..asked.end]
            && legal().next().is_some_and(|(_, content)| content.may_be_stamp())
        {
            return Ok(());
        }
        if missing > 0 && !legal().any(|(_, content)| content.may_be_absent()) {
            return Err(self.wrong(unit, acknowledged, found, "missing"));
        }
        let place = asked.start..asked.start + found.len();
        let mut contents = Vec::new();
        for (version, content) in legal() {
            if content.may_be_stamp() {
                contents.push(self.oracle.stamp(unit, version));
            }
            if content.may_be_absent() {
                contents.push([0; UNIT_BYTES]);
            }
        }
        if contents.iter().any(|content| &content[place.clone()] == found) {
            return Ok(());
        }
        let in_flight = legal().nth(1).is_some();
        let of_one = |(i, byte): (usize, &u8)| contents.iter().any(|content| content[i] == *byte);
        if in_flight && place.zip(found).all(of_one) {
            return Ok(());
        }
        Err(self.wrong(unit, acknowledged, found, if in_flight { "garbage" } else { "wrong" }))
    }

    /// The versions that may be read now, oldest first, and what they make of the unit.
    fn legal(&self, unit: usize, acknowledged: u32) -> impl Iterator<Item = (u32, Content)> {
        let (newest, history) = self.oracle.units[unit].begun();
        (acknowledged..=newest).map(move |version| {
            let age = newest - version;
            // A version too old for the history may have had any content.
            let content = if age < HISTORY_VERSIONS {
                Content::from_bits(history >> (2 * age))
            } else {
                Content::Either
            };
            (version, content)
        })
    }

    fn wrong(&self, unit: usize, acknowledged: u32, found: &[u8], what: &str) -> Wrong {
        let at = self.oracle.position(unit);
        let expected: Vec<_> = self.legal(unit, acknowledged).collect();
        let why = format!("{what}: {}, where {expected:?} may be", described(found));
        Wrong { at: at..at + UNIT_BYTES as u64, why }
    }
}

/// The bytes found in place of a unit, in words if they are a stamp.
fn described(found: &[u8]) -> String {
    if found.iter().all(|byte| *byte == 0) {
        return format!("{} zeros", found.len());
    }
    if let Some((place, rest)) = found.split_first_chunk::<8>()
        && let Some((version, _)) = rest.split_first_chunk::<8>()
    {
        let (place, version) = (u64::from_be_bytes(*place), u64::from_be_bytes(*version));
        let sum = scramble(place ^ scramble(version));
        if found.get(16..24).is_some_and(|bytes| bytes == sum.to_be_bytes()) {
            let (file, position) = (place >> 56, place & ((1 << 56) - 1));
            return format!("version {version} of file {file} at {position}");
        }
    }
    format!("{found:02x?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: usize = 200;

    /// A file in memory that is changed as a server would change it, or wrongly.
    struct Fixture {
        oracle: Oracle,
        bytes: Vec<u8>,
    }

    impl Fixture {
        fn new() -> Self {
            let oracle = Oracle::new(3, 7, UNITS);
            let mut fixture = Self { bytes: oracle.head(), oracle };
            fixture.bytes.resize(usize::try_from(fixture.oracle.end()).unwrap(), 0);
            fixture.write(0..UNITS);
            fixture
        }

        fn place(&self, units: &Range<usize>) -> Range<usize> {
            let at = |unit| usize::try_from(self.oracle.position(unit)).unwrap();
            at(units.start)..at(units.end)
        }

        fn put(&mut self, units: &Range<usize>, data: &[u8]) {
            let place = self.place(units);
            self.bytes[place].copy_from_slice(data);
        }

        fn write(&mut self, units: Range<usize>) {
            let data = self.oracle.begin_writing(&units);
            self.put(&units, &data);
            self.oracle.acknowledge(units);
        }

        /// Reads all of it at each alignment, and returns the first wrong unit.
        fn read(&self) -> Result<(), Wrong> {
            self.read_while(|| ())
        }

        fn read_while(&self, meanwhile: impl FnOnce()) -> Result<(), Wrong> {
            let all = self.bytes.len();
            let looks: Vec<_> = (0..100)
                .flat_map(|i| [(i, all - i), (i, 1), (0, all - i), (i * 13, i), (all - i, i + 64)])
                .map(|(at, count)| (at, self.oracle.look(at as u64, count)))
                .collect();
            meanwhile();
            for (at, look) in looks {
                let end = (at + look.count).min(self.bytes.len());
                let data = self.bytes.get(at..end).unwrap_or_default();
                look.check(data)?;
                if end == self.bytes.len() {
                    look.check_eof(data.len())?;
                }
            }
            Ok(())
        }

        #[track_caller]
        fn assert_wrong(&self, unit: usize, what: &str) {
            let wrong = self.read().expect_err("it is wrong");
            assert_eq!(wrong.at.start, self.oracle.position(unit), "{wrong}");
            assert!(wrong.to_string().contains(what), "{wrong}");
        }
    }

    #[test]
    fn written_data_is_accepted() {
        let mut fixture = Fixture::new();
        fixture.read().unwrap();
        fixture.write(10..20);
        fixture.write(15..16);
        fixture.read().unwrap();
    }

    #[test]
    fn a_lost_write_is_found() {
        let mut fixture = Fixture::new();
        fixture.write(40..50);
        let before = fixture.bytes.clone();
        fixture.write(44..46);
        let lost = fixture.place(&(45..46));
        fixture.bytes[lost.clone()].copy_from_slice(&before[lost]);
        fixture.assert_wrong(45, "version 2 of file 3");
    }

    #[test]
    fn a_neighbour_written_back_is_found() {
        // As after two read-modify-writes of one block: the last unit of the left range comes back.
        let mut fixture = Fixture::new();
        let block = fixture.place(&(8..16));
        let stale = fixture.bytes[block.clone()].to_vec();
        fixture.write(0..12);
        fixture.bytes[block].copy_from_slice(&stale);
        fixture.assert_wrong(8, "version 1");
    }

    #[test]
    fn zeros_garbage_and_misplaced_data_are_detected() {
        let mut fixture = Fixture::new();
        fixture.put(&(60..61), &[0; UNIT_BYTES]);
        fixture.assert_wrong(60, "32 zeros");
        fixture.put(&(60..61), &[0xa5; UNIT_BYTES]);
        fixture.assert_wrong(60, "a5");
        let neighbour = fixture.place(&(59..60));
        let neighbour = fixture.bytes[neighbour].to_vec();
        fixture.put(&(60..61), &neighbour);
        fixture.assert_wrong(60, "version 1 of file 3");
        fixture.write(60..61);
        fixture.bytes[3] = 0;
        assert_eq!(fixture.read().unwrap_err().at, 3..4);
    }

    #[test]
    fn a_wrong_bit_is_detected_in_any_byte() {
        for byte in 0..UNIT_BYTES {
            let mut fixture = Fixture::new();
            let place = fixture.place(&(77..78));
            fixture.bytes[place.start + byte] ^= 4;
            fixture.assert_wrong(77, "wrong");
        }
    }

    #[test]
    fn a_write_in_flight_may_be_seen_in_part() {
        let mut fixture = Fixture::new();
        let data = fixture.oracle.begin_writing(&(100..110));
        fixture.read().unwrap();
        let torn = fixture.place(&(100..104));
        let torn = torn.start..torn.start + 3 * UNIT_BYTES + 9;
        fixture.bytes[torn].copy_from_slice(&data[..3 * UNIT_BYTES + 9]);
        fixture.read().unwrap();
        // Once acknowledged, the part that is missing is lost.
        fixture.oracle.acknowledge(100..110);
        fixture.assert_wrong(103, "wrong");
    }

    #[test]
    fn a_torn_unit_of_neither_version_is_found() {
        let mut fixture = Fixture::new();
        let _ = fixture.oracle.begin_writing(&(100..110));
        let place = fixture.place(&(105..106));
        fixture.bytes[place.start + 20] ^= 0x10;
        fixture.assert_wrong(105, "garbage");
    }

    #[test]
    fn zeros_in_an_overwrite_in_flight_are_found() {
        let mut fixture = Fixture::new();
        let _ = fixture.oracle.begin_writing(&(100..110));
        fixture.put(&(103..104), &[0; UNIT_BYTES]);
        fixture.assert_wrong(103, "garbage: 32 zeros");
    }

    #[test]
    fn a_version_acknowledged_during_the_read_may_be_missed() {
        let fixture = Fixture::new();
        let meanwhile = || {
            let _ = fixture.oracle.begin_writing(&(30..40));
            fixture.oracle.acknowledge(30..40);
        };
        fixture.read_while(meanwhile).unwrap();
        fixture.assert_wrong(30, "version 1");
    }

    #[test]
    fn truncated_data_may_only_be_absent_or_zeros() {
        let mut fixture = Fixture::new();
        let whole = fixture.bytes.clone();
        fixture.oracle.begin_cutting(150);
        fixture.read().unwrap();
        fixture.oracle.acknowledge_cut(150);
        fixture.assert_wrong(150, "version 1");
        let cut = fixture.place(&(0..150)).end;
        fixture.bytes.truncate(cut);
        fixture.read().unwrap();
        fixture.bytes.resize(cut + 640, 0);
        fixture.read().unwrap();
        // Bytes from before the cut come back.
        fixture.bytes[cut + 320..].copy_from_slice(&whole[cut + 320..cut + 640]);
        fixture.assert_wrong(160, "version 1");
    }

    #[test]
    fn missing_bytes_and_a_false_end_are_found() {
        let mut fixture = Fixture::new();
        let look = fixture.oracle.look(0, 1000);
        look.check(&fixture.bytes[..1000]).unwrap();
        assert!(look.check(&fixture.bytes[..999]).unwrap_err().to_string().contains("missing"));
        assert!(look.check(&[]).is_err());
        assert!(look.check_eof(1000).is_err());
        let end = fixture.place(&(199..200)).start;
        fixture.bytes.truncate(end);
        fixture.assert_wrong(199, "");
    }

    #[test]
    fn a_write_and_a_cut_at_once_leave_either() {
        for (cut_last, cut) in [(true, 120), (false, 120), (true, 90), (false, 150)] {
            let mut fixture = Fixture::new();
            let data = fixture.oracle.begin_writing_and_cutting(&(100..140), cut);
            fixture.read().unwrap();
            if cut_last {
                fixture.put(&(100..140), &data);
            }
            let end = fixture.place(&(0..cut)).end;
            fixture.bytes.truncate(end);
            if !cut_last {
                let written = fixture.place(&(100..140));
                if fixture.bytes.len() < written.end {
                    fixture.bytes.resize(written.end, 0);
                }
                fixture.put(&(100..140), &data);
            }
            fixture.oracle.acknowledge(100..140);
            fixture.oracle.acknowledge_cut(cut);
            fixture.read().unwrap();
            let last = fixture.bytes.len() - 1;
            fixture.bytes[last] ^= 1;
            assert!(fixture.read().is_err(), "cut at {cut}");
        }
    }
}
