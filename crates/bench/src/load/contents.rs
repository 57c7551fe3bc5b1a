//! The contents of a file as all the phases of a run wrote them, to compare READs with.

use super::plan::Transfer;
use super::pool::{Pool, Unit};

/// The known contents of a file: layers of written units, the latest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    layers: Vec<Layer>,
    bytes: u64,
}

/// The units that phases with one size of transfer wrote in one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layer {
    unit_bytes: u32,
    generation: u32,
    /// A bit for each unit.
    written: Vec<u64>,
}

/// The outcome of a transfer of a phase that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// All of it was written.
    Whole,
    /// It failed, after some of it was written or none.
    Unknown,
}

/// The outcome of comparing data with what has to be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Bytes of which it is known what they have to be.
    pub(super) verified: u64,
    /// Of these, bytes that differ.
    pub(super) wrong: u64,
    /// Where in the file the first of them is.
    pub(super) first_wrong: Option<u64>,
}

impl Contents {
    /// Length of the file, if nothing but the loads wrote to it; 0 when they wrote nothing.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of which it is known what they have to be.
    #[must_use]
    pub fn known_bytes(&self) -> u64 {
        let (mut at, mut known) = (0, 0);
        while at < self.bytes {
            let (unit, end) = self.piece(0, at);
            known += if unit.is_some() { end.min(self.bytes) - at } else { 0 };
            at = end;
        }
        known
    }

    /// Notes what a phase did: transfers that were written in `generation`, or that failed, so that
    /// the content is unknown.
    pub(super) fn note(
        &mut self,
        generation: u32,
        transfers: impl Iterator<Item = (Transfer, Written)>,
    ) {
        for (transfer, written) in transfers {
            match written {
                Written::Whole => self.write(&transfer, generation),
                Written::Unknown => self.forget(&transfer),
            }
        }
        self.layers.retain(|layer| layer.written.iter().any(|word| *word != 0));
    }

    fn write(&mut self, transfer: &Transfer, generation: u32) {
        let unit_bytes = transfer.bytes;
        let fits = |layer: &Layer| layer.unit_bytes == unit_bytes && layer.generation == generation;
        if !self.layers.last().is_some_and(fits) {
            self.layers.push(Layer { unit_bytes, generation, written: Vec::new() });
        }
        let (last, below) = self.layers.split_last_mut().expect("one was added");
        last.set(transfer.unit);
        // Layers of which nothing is left to be seen are dropped later.
        for layer in below.iter_mut().filter(|layer| layer.unit_bytes == unit_bytes) {
            layer.clear(transfer.unit);
        }
        self.bytes = self.bytes.max(transfer.end());
    }

    /// Nothing is known any more of the transfer's bytes, nor of the units that they are part of.
    fn forget(&mut self, transfer: &Transfer) {
        let (mut at, mut end) = (transfer.offset(), transfer.end());
        for layer in self.layers.iter_mut().rev() {
            let unit_bytes = u64::from(layer.unit_bytes);
            for unit in at / unit_bytes..end.div_ceil(unit_bytes) {
                if layer.has(unit) {
                    layer.clear(unit);
                    // Older data that it covered in the layers below must not count as known.
                    at = at.min(unit * unit_bytes);
                    end = end.max((unit + 1) * unit_bytes);
                }
            }
        }
    }

    /// Compares what was read at `offset` of the file with this number.
    pub(super) fn compare(&self, pool: &Pool, file: u64, offset: u64, data: &[u8]) -> Comparison {
        let mut comparison = Comparison::default();
        let end = offset + data.len() as u64;
        let mut at = offset;
        while at < end {
            let (unit, piece_end) = self.piece(file, at);
            let piece_end = piece_end.min(end);
            let piece = &data[index(at - offset)..index(piece_end - offset)];
            if let Some((unit, unit_at)) = unit {
                let within = |at: u64| u32::try_from(at - unit_at).expect("within a unit");
                let wanted = pool.bytes(pool.place(unit, within(at)..within(piece_end)));
                comparison.add(at, piece, wanted);
            }
            at = piece_end;
        }
        comparison
    }

    /// The unit that `at` belongs to, with its beginning, and how far that is known to hold.
    fn piece(&self, file: u64, at: u64) -> (Option<(Unit, u64)>, u64) {
        let mut end = u64::MAX;
        for layer in self.layers.iter().rev() {
            let unit_bytes = u64::from(layer.unit_bytes);
            let number = at / unit_bytes;
            end = end.min((number + 1) * unit_bytes);
            if layer.has(number) {
                let unit = Unit { file, number, generation: layer.generation };
                return (Some((unit, number * unit_bytes)), end);
            }
        }
        (None, end)
    }
}

impl Layer {
    fn has(&self, unit: u64) -> bool {
        self.written.get(index(unit / 64)).is_some_and(|word| word & (1 << (unit % 64)) != 0)
    }

    fn set(&mut self, unit: u64) {
        let word = index(unit / 64);
        if self.written.len() <= word {
            self.written.resize(word + 1, 0);
        }
        self.written[word] |= 1 << (unit % 64);
    }

    fn clear(&mut self, unit: u64) {
        if let Some(word) = self.written.get_mut(index(unit / 64)) {
            *word &= !(1 << (unit % 64));
        }
    }
}

impl Comparison {
    fn add(&mut self, at: u64, data: &[u8], wanted: &[u8]) {
        self.verified += data.len() as u64;
        if data == wanted {
            return;
        }
        let differs = |(is, wanted): (&u8, &u8)| is != wanted;
        let first = data.iter().zip(wanted).position(differs).expect("they differ");
        self.first_wrong = self.first_wrong.or(Some(at + first as u64));
        self.wrong += data.iter().zip(wanted).filter(|pair| differs(*pair)).count() as u64;
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("64 bits")
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use proptest::prelude::*;

    use super::*;

    const FILE: u64 = 3;
    const FILE_BYTES: usize = 400;

    fn pool() -> &'static Pool {
        static POOL: OnceLock<Pool> = OnceLock::new();
        POOL.get_or_init(Pool::fill)
    }

    fn data(transfer: &Transfer, generation: u32) -> &'static [u8] {
        let unit = Unit { file: FILE, number: transfer.unit, generation };
        pool().bytes(pool().place(unit, 0..transfer.bytes))
    }

    /// Phases of one unit size each: the units written, and one that failed or none.
    fn phases() -> impl Strategy<Value = Vec<(u32, Vec<u64>, Option<u64>)>> {
        let phase = prop_oneof![Just(5_u32), Just(20), Just(7)].prop_flat_map(|bytes| {
            let units = FILE_BYTES as u64 / u64::from(bytes);
            let unit = 0..units;
            (Just(bytes), prop::collection::vec(unit.clone(), 0..20), prop::option::of(unit))
        });
        prop::collection::vec(phase, 1..6)
    }

    proptest! {
        #[test]
        fn the_latest_write_is_the_expected_data(
            phases in phases(),
            offset in 0..FILE_BYTES,
            flip in 0..FILE_BYTES,
        ) {
            let mut contents = Contents::default();
            let mut file = vec![0_u8; FILE_BYTES];
            // Of what was written whole and not touched by a failure since.
            let mut known = vec![false; FILE_BYTES];
            for (generation, (bytes, units, failed)) in (0..).zip(&phases) {
                let transfer = |unit: &u64| Transfer { file: 0, unit: *unit, bytes: *bytes };
                let range = |transfer: &Transfer| index(transfer.offset())..index(transfer.end());
                for transfer in units.iter().map(transfer) {
                    file[range(&transfer)].copy_from_slice(data(&transfer, generation));
                    known[range(&transfer)].fill(true);
                }
                for transfer in failed.iter().map(transfer) {
                    file[range(&transfer)].fill(0xee);
                    known[range(&transfer)].fill(false);
                }
                let written = units.iter().map(|unit| (transfer(unit), Written::Whole));
                let failed = failed.iter().map(|unit| (transfer(unit), Written::Unknown));
                contents.note(generation, written.chain(failed));
            }
            let compared = contents.compare(pool(), FILE, offset as u64, &file[offset..]);
            prop_assert_eq!((compared.wrong, compared.first_wrong), (0, None));
            // A failure may take the knowledge of a larger unit that it was in with it.
            let most = known[offset..].iter().filter(|known| **known).count() as u64;
            prop_assert!(compared.verified <= most);
            if phases.iter().all(|(_, _, failed)| failed.is_none()) {
                prop_assert_eq!(compared.verified, most);
                prop_assert_eq!(contents.known_bytes(), known.iter().filter(|k| **k).count() as u64);
            }
            if phases.iter().all(|(_, _, failed)| failed.is_none()) && known[flip] {
                file[flip] ^= 0x40;
                let compared = contents.compare(pool(), FILE, 0, &file);
                prop_assert_eq!((compared.wrong, compared.first_wrong), (1, Some(flip as u64)));
            }
        }
    }
}
