//! The phases: which loads they are, and which files they need.

use clap::ValueEnum;

use crate::load::{Direction, Pattern};

/// A part of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Phase {
    /// Each rank writes a file of its own from its beginning on.
    EasyWrite,
    /// Each rank reads it.
    EasyRead,
    /// Each rank reads blocks of its file in a random order.
    RandomRead,
    /// Each rank writes blocks of its file in a random order.
    RandomWrite,
    /// All ranks write one file, in turns.
    HardWrite,
    /// Each rank reads the part that another rank wrote.
    HardRead,
}

/// Which files a phase is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// One for each rank.
    Own,
    /// One for all.
    Shared,
}

/// How much the phases do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) ranks: u16,
    /// Data of all ranks together.
    pub(super) bytes: u64,
    pub(super) easy_bytes: u32,
    pub(super) hard_bytes: u32,
    pub(super) random_bytes: u32,
    /// Of all ranks together.
    pub(super) random_operations: u64,
}

impl Phase {
    /// As on the command line and in records.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value().expect("none is hidden");
        value.get_name().to_owned()
    }

    pub(super) const fn direction(self) -> Direction {
        match self {
            Self::EasyWrite | Self::RandomWrite | Self::HardWrite => Direction::Write,
            Self::EasyRead | Self::RandomRead | Self::HardRead => Direction::Read,
        }
    }

    pub(super) const fn files(self) -> Files {
        match self {
            Self::HardWrite | Self::HardRead => Files::Shared,
            Self::EasyWrite | Self::EasyRead | Self::RandomRead | Self::RandomWrite => Files::Own,
        }
    }

    /// Whether it begins with files that are empty.
    pub(super) const fn is_new(self) -> bool {
        matches!(self, Self::EasyWrite | Self::HardWrite)
    }

    /// The phase that makes the files it needs.
    pub(super) const fn maker(self) -> Self {
        match self.files() {
            Files::Own => Self::EasyWrite,
            Files::Shared => Self::HardWrite,
        }
    }

    /// The phase that reads, before this one, what is to be in warm caches; none if it makes its
    /// files. Random transfers get the whole files: their number has no bound, that of the files'
    /// blocks has.
    pub(super) const fn warmer(self) -> Option<Self> {
        match self {
            Self::EasyRead | Self::HardRead => Some(self),
            Self::RandomRead | Self::RandomWrite => Some(Self::EasyRead),
            Self::EasyWrite | Self::HardWrite => None,
        }
    }

    pub(super) const fn io_bytes(self, sizes: &Sizes) -> u32 {
        match self {
            Self::EasyWrite | Self::EasyRead => sizes.easy_bytes,
            Self::HardWrite | Self::HardRead => sizes.hard_bytes,
            Self::RandomRead | Self::RandomWrite => sizes.random_bytes,
        }
    }

    /// A random phase works on the first `easy_operations` transfers of the easy phases, which each
    /// file has; `seed` decides about its order.
    pub(super) fn pattern(self, sizes: &Sizes, easy_operations: u64, seed: u64) -> Pattern {
        match self {
            Self::EasyWrite | Self::EasyRead => Pattern::EasySequential,
            Self::HardWrite | Self::HardRead => Pattern::HardInterleaved,
            Self::RandomRead | Self::RandomWrite => {
                let file_bytes = easy_operations * u64::from(sizes.easy_bytes);
                Pattern::Random { units: file_bytes / u64::from(sizes.random_bytes), seed }
            }
        }
    }

    /// Bytes of the files that it can reach, of which each rank of the maker wrote so much.
    pub(super) fn given_bytes(self, sizes: &Sizes, operations_by_rank: &[u64]) -> u64 {
        let operations = match self {
            Self::RandomRead | Self::RandomWrite => {
                let shortest = operations_by_rank.iter().min().copied().unwrap_or_default();
                shortest * u64::from(sizes.ranks)
            }
            Self::EasyWrite | Self::EasyRead | Self::HardWrite | Self::HardRead => {
                operations_by_rank.iter().sum()
            }
        };
        operations * u64::from(self.maker().io_bytes(sizes))
    }

    /// Operations of each rank.
    pub(super) fn operations(self, sizes: &Sizes) -> u64 {
        let ranks = u64::from(sizes.ranks);
        match self {
            Self::RandomRead | Self::RandomWrite => sizes.random_operations.div_ceil(ranks),
            Self::EasyWrite | Self::EasyRead | Self::HardWrite | Self::HardRead => {
                (sizes.bytes / ranks / u64::from(self.io_bytes(sizes))).max(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        ranks: 4,
        bytes: 1 << 30,
        easy_bytes: 1 << 20,
        hard_bytes: 47_008,
        random_bytes: 4096,
        random_operations: 50_001,
    };

    #[test]
    fn ranks_share_the_work() {
        assert_eq!(Phase::EasyRead.operations(&SIZES), 256);
        assert_eq!(Phase::HardWrite.operations(&SIZES), 5710, "4 x 5,710 x 47,008 is below 1 GiB");
        assert_eq!(Phase::RandomRead.operations(&SIZES), 12_501);
        let small = Sizes { bytes: 1, ..SIZES };
        assert_eq!(Phase::EasyWrite.operations(&small), 1);
    }

    #[test]
    fn random_blocks_are_within_the_easy_files() {
        let units = |sizes, operations| match Phase::RandomWrite.pattern(&sizes, operations, 7) {
            Pattern::Random { units, seed: 7 } => units,
            other => panic!("{other:?}"),
        };
        assert_eq!(units(SIZES, 256), 65_536);
        let odd = Sizes { easy_bytes: 10_000, ..SIZES };
        assert_eq!(units(odd, 1), 2, "two blocks of 4,096 fit into 10,000 bytes");
    }

    #[test]
    fn what_was_not_written_is_not_given() {
        let written = [200, 256, 100, 256];
        let mib = |phase: Phase| phase.given_bytes(&SIZES, &written) >> 20;
        assert_eq!((mib(Phase::EasyRead), mib(Phase::RandomRead)), (812, 400));
        assert_eq!(Phase::HardRead.given_bytes(&SIZES, &[1, 2, 3, 4]), 10 * 47_008);
    }

    #[test]
    fn all_that_finds_files_reads_them_to_warm_the_caches() {
        for phase in Phase::value_variants() {
            let warmer = phase.warmer();
            assert_eq!(warmer.is_some(), !phase.is_new(), "{phase:?}");
            if let Some(warmer) = warmer {
                assert_eq!((warmer.direction(), warmer.files()), (Direction::Read, phase.files()));
                let endless = Sizes { random_operations: u64::MAX, ..SIZES };
                assert_eq!(warmer.operations(&endless), warmer.operations(&SIZES), "{phase:?}");
            }
        }
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        let names: Vec<_> = Phase::value_variants().iter().map(|phase| phase.name()).collect();
        let expected =
            ["easy-write", "easy-read", "random-read", "random-write", "hard-write", "hard-read"];
        assert_eq!(names, expected);
    }
}
