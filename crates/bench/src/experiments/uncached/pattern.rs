//! The data of the files. Blocks of a file differ in their stamps, and files in all other data, so
//! that data at a wrong place is detected.

use std::io;
use std::os::fd::BorrowedFd;

use ::io::{Buffer, ByteRange, drop_clean, read_at};

use crate::stop::Stop;

/// The data of one file, a block at a time.
pub(super) struct Pattern {
    /// May be larger than a block.
    buffer: Buffer,
    block_bytes: usize,
}

/// The outcome of reading files back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verified {
    /// Bytes that were compared.
    pub(super) bytes: u64,
    /// Those that differ, or are missing.
    pub(super) wrong_bytes: u64,
}

/// Distance of the stamps. A block costs its writer a word for each page, not one for each word.
const STAMP_EVERY_BYTES: usize = 4096;

impl Pattern {
    /// The data of file number `file`, in blocks of `block_bytes`, for which `buffer` has room.
    pub(super) fn new(mut buffer: Buffer, block_bytes: usize, file: u64) -> Self {
        let words = (0_u64..).map(|word| mixed((file << 32) + word));
        for (bytes, word) in buffer.as_mut_slice().chunks_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
        Self { buffer, block_bytes }
    }

    /// The first `len` bytes of the block at `offset`.
    pub(super) fn block_at(&mut self, offset: u64, len: usize) -> &[u8] {
        for (page, bytes) in (0..).zip(self.buffer.as_mut_slice().chunks_mut(STAMP_EVERY_BYTES)) {
            if let Some(stamp) = bytes.first_chunk_mut() {
                *stamp = mixed(offset + page).to_le_bytes();
            }
        }
        &self.buffer.as_slice()[..len]
    }

    /// Compares the first `len` bytes of a file with what was written, from the disk as far as the
    /// kernel forgets what it has in memory. Nothing of it stays there. Ends before its time when
    /// `stop` is wanted.
    pub(super) fn verify(
        &mut self,
        fd: BorrowedFd<'_>,
        len: u64,
        stop: &Stop,
    ) -> io::Result<Verified> {
        let everything = ByteRange::starting_at(0);
        drop_clean(fd, everything)?;
        let mut verified = Verified::default();
        let mut found = vec![0; self.block_bytes];
        while verified.bytes < len && !stop.is_wanted() {
            let offset = verified.bytes;
            let left = usize::try_from(len - offset).unwrap_or(usize::MAX);
            let found = &mut found[..left.min(self.block_bytes)];
            let here = read_at(fd, found, offset)?;
            let expected = self.block_at(offset, found.len());
            let differ = expected[..here].iter().zip(&found[..here]).filter(|(a, b)| a != b);
            verified.wrong_bytes += (differ.count() + found.len() - here) as u64;
            verified.bytes += found.len() as u64;
        }
        drop_clean(fd, everything)?;
        Ok(verified)
    }
}

/// A number of which every bit depends on every bit of `n`: the finalizer of SplitMix64.
fn mixed(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}
