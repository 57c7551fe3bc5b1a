//! Which transfers the ranks of a load make: nothing but arithmetic.

use super::pool::mix;

/// Whether data goes to the server or comes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// READ.
    Read,
    /// WRITE.
    Write,
}

/// The order of a load's transfers. Each rank is a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A file for each rank, from its beginning on: what IOR calls easy.
    EasySequential,
    /// One file for all, in which the transfers of the ranks take turns: what IOR calls hard. When
    /// it is read, each rank reads what the next one wrote.
    HardInterleaved,
    /// A file for each rank, all of its units once in a random order; then again in another.
    Random {
        /// Units of a transfer's size in each file, at least 1.
        units: u64,
        /// Decides about the order.
        seed: u64,
    },
}

/// One transfer of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    /// Which of the files.
    pub(super) file: usize,
    /// Which unit of it, from 0.
    pub(super) unit: u64,
    /// Size of a unit.
    pub(super) bytes: u32,
}

impl Transfer {
    /// Its first byte's place in the file.
    pub(super) const fn offset(&self) -> u64 {
        self.unit * self.bytes as u64
    }

    /// The place behind its last byte.
    pub(super) const fn end(&self) -> u64 {
        self.offset() + self.bytes as u64
    }
}

/// The transfers of all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    pub(super) direction: Direction,
    pub(super) pattern: Pattern,
    pub(super) io_bytes: u32,
    /// As [`super::Load::operations_by_rank`].
    pub(super) operations_by_rank: &'a [u64],
}

impl Plan<'_> {
    /// Files that it needs.
    pub(super) const fn files(&self) -> usize {
        match self.pattern {
            Pattern::HardInterleaved => 1,
            Pattern::EasySequential | Pattern::Random { .. } => self.operations_by_rank.len(),
        }
    }

    /// How many transfers a rank makes.
    pub(super) fn operations(&self, rank: usize) -> u64 {
        self.operations_by_rank[self.writer(rank)]
    }

    /// The transfer of a rank with this index, from 0.
    pub(super) fn transfer(&self, rank: usize, index: u64) -> Transfer {
        let bytes = self.io_bytes;
        match self.pattern {
            Pattern::EasySequential => Transfer { file: rank, unit: index, bytes },
            Pattern::HardInterleaved => {
                let ranks = self.operations_by_rank.len() as u64;
                let unit = index * ranks + self.writer(rank) as u64;
                Transfer { file: 0, unit, bytes }
            }
            Pattern::Random { units, seed } => {
                let seed = mix(mix(seed, rank as u64), index / units);
                Transfer { file: rank, unit: permute(seed, units, index % units), bytes }
            }
        }
    }

    /// The rank whose transfers a rank makes.
    const fn writer(&self, rank: usize) -> usize {
        match (self.pattern, self.direction) {
            (Pattern::HardInterleaved, Direction::Read) => {
                (rank + 1) % self.operations_by_rank.len()
            }
            (Pattern::HardInterleaved, Direction::Write)
            | (Pattern::EasySequential | Pattern::Random { .. }, _) => rank,
        }
    }
}

/// Where `index` comes in an order of `0..len` that `seed` decides about: a Feistel network over
/// the next power of four, gone through until it leads back below `len`.
fn permute(seed: u64, len: u64, index: u64) -> u64 {
    debug_assert!(index < len, "one of them");
    let half = (u64::BITS - len.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1 << half) - 1;
    let mut number = index;
    loop {
        let (mut left, mut right) = (number >> half, number & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (mix(seed ^ round, right) & mask));
        }
        number = left << half | right;
        if number < len {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn plan(pattern: Pattern, direction: Direction, operations_by_rank: &[u64]) -> Plan<'_> {
        Plan { direction, pattern, io_bytes: 10, operations_by_rank }
    }

    #[test]
    fn transfers_by_pattern() {
        use Direction::{Read, Write};
        use Pattern::{EasySequential, HardInterleaved};
        // Pattern, direction, rank, index, then the file and the offset.
        for (pattern, direction, rank, index, file, offset) in [
            (EasySequential, Write, 0, 0, 0, 0),
            (EasySequential, Write, 2, 5, 2, 50),
            (EasySequential, Read, 2, 5, 2, 50),
            (HardInterleaved, Write, 0, 0, 0, 0),
            (HardInterleaved, Write, 2, 0, 0, 20),
            (HardInterleaved, Write, 1, 4, 0, 130),
            (HardInterleaved, Read, 0, 4, 0, 130),
            (HardInterleaved, Read, 2, 4, 0, 120),
        ] {
            let transfer = plan(pattern, direction, &[9; 3]).transfer(rank, index);
            assert_eq!((transfer.file, transfer.offset()), (file, offset), "{pattern:?} {rank}");
        }
    }

    #[test]
    fn a_rank_reads_as_much_as_its_neighbour_wrote() {
        let operations = [5, 7, 9];
        let read = plan(Pattern::HardInterleaved, Direction::Read, &operations);
        assert_eq!([0, 1, 2].map(|rank| read.operations(rank)), [7, 9, 5]);
        let read = plan(Pattern::EasySequential, Direction::Read, &operations);
        assert_eq!([0, 1, 2].map(|rank| read.operations(rank)), operations);
    }

    fn all(plan: &Plan<'_>) -> Vec<(usize, u64)> {
        let ranks = 0..plan.operations_by_rank.len();
        ranks
            .flat_map(|rank| (0..plan.operations(rank)).map(move |index| (rank, index)))
            .map(|(rank, index)| plan.transfer(rank, index))
            .map(|transfer| (transfer.file, transfer.offset()))
            .collect()
    }

    proptest! {
        #[test]
        fn reads_cover_the_written_parts_once(
            operations in prop::collection::vec(0_u64..40, 1..9),
            pattern in prop_oneof![
                Just(Pattern::EasySequential),
                Just(Pattern::HardInterleaved),
                (40_u64..100, any::<u64>()).prop_map(|(units, seed)| Pattern::Random { units, seed }),
            ],
        ) {
            let written = all(&plan(pattern, Direction::Write, &operations));
            let read = all(&plan(pattern, Direction::Read, &operations));
            let once: HashSet<_> = written.iter().collect();
            prop_assert_eq!(once.len(), written.len());
            prop_assert_eq!(once, read.iter().collect());
            prop_assert_eq!(read.len(), written.len());
        }

        #[test]
        fn a_random_order_is_an_order(len in 1_u64..2000, seed: u64) {
            let mut order: Vec<_> = (0..len).map(|index| permute(seed, len, index)).collect();
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..len));
        }
    }

    #[test]
    fn random_orders_differ_by_rank_seed_and_turn() {
        let order = |seed, rank, turn: u64| -> Vec<_> {
            let pattern = Pattern::Random { units: 100, seed };
            let plan = plan(pattern, Direction::Read, &[1000; 2]);
            (turn * 100..turn * 100 + 100).map(|index| plan.transfer(rank, index).unit).collect()
        };
        let orders = [order(1, 0, 0), order(2, 0, 0), order(1, 1, 0), order(1, 0, 1)];
        let different: HashSet<_> = orders.iter().collect();
        assert_eq!(different.len(), orders.len());
        let ascending = orders[0].windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(ascending < 10, "{ascending} of 99 neighbours are neighbours in the file");
    }
}
