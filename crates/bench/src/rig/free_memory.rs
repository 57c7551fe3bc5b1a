//! Free memory of the machine, which a virtual machine may have returned to its host.

use std::hint::black_box;

use io::Memory;

use crate::Result;
use crate::stop::Stop;

/// Touched of the free memory, as a multiple of the data of a measurement: it is in the page cache,
/// and on the way there, and the kernel takes free pages in no order.
const TOUCHED_PARTS: u64 = 4;

/// The part of the free memory that is left alone, so that the kernel reclaims nothing.
const LEFT_PART: u64 = 8;

/// Memory that is touched before the user is heard again: a tenth of a second.
const PIECE_BYTES: u64 = 64 << 20;

/// Touches free memory before a measurement with so much data.
///
/// The balloon of a virtual machine returns free memory to the host within half a minute
/// (`VIRTIO_BALLOON_F_REPORTING`). The host provides a page anew at its first use, which took 1.5 s
/// for each GiB where a WRITE of it into the page cache takes 0.1 s. Otherwise the measurement that
/// happens to come first pays for that.
///
/// # Errors
/// [`crate::Error::Interrupted`], within the time of a [`PIECE_BYTES`].
pub fn touch_free_memory(data_bytes: u64, stop: &Stop) -> Result<()> {
    touch(data_bytes.saturating_mul(TOUCHED_PARTS), stop).map(drop)
}

/// Uses `bytes` of memory and frees them, or fewer if fewer are free. Returns how many.
fn touch(bytes: u64, stop: &Stop) -> Result<u64> {
    let bytes = touched_bytes(bytes, Memory::new().free_bytes());
    // Held together until the end, or the next piece would be the same memory.
    let mut pieces = Vec::new();
    let mut touched = 0;
    while touched < bytes {
        stop.check()?;
        let piece_bytes = PIECE_BYTES.min(bytes - touched);
        let mut piece = Vec::new();
        let Ok(len) = usize::try_from(piece_bytes) else { break };
        if piece.try_reserve_exact(len).is_err() {
            break;
        }
        piece.resize(len, 1_u8);
        pieces.push(black_box(piece));
        touched += piece_bytes;
    }
    Ok(touched)
}

const fn touched_bytes(wanted: u64, free: u64) -> u64 {
    let touchable = free - free / LEFT_PART;
    if wanted < touchable { wanted } else { touchable }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn no_more_is_touched_than_is_free() {
        assert_eq!(touched_bytes(700, 801), 700);
        assert_eq!(touched_bytes(u64::MAX, 800), 700);
        assert_eq!(touched_bytes(1, 0), 0);
    }

    #[test]
    fn memory_is_touched_in_pieces_until_the_user_stops_it() {
        let bytes = PIECE_BYTES + 4096;
        assert_eq!(touch(bytes, &Stop::default()).unwrap(), bytes);
        let stopped = touch(bytes, &Stop::wanted());
        assert!(matches!(stopped, Err(Error::Interrupted)));
    }
}
