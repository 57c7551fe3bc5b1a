//! Free memory of the machine, which a virtual machine may have returned to its host.

use std::hint::black_box;

use io::Memory;
use rustix::param::page_size;

/// The part of the free memory that is left alone, so that the kernel reclaims nothing.
const LEFT_PART: u64 = 8;

/// Uses `bytes` of memory and frees them, or fewer if fewer are free. Returns how many.
///
/// The balloon of a virtual machine returns free memory to the host within half a minute
/// (`VIRTIO_BALLOON_F_REPORTING`). The host provides a page anew at its first use, which took 1.5 s
/// for each GiB where a WRITE of it into the page cache takes 0.1 s. Otherwise the measurement that
/// happens to come first pays for that.
pub fn touch_free_memory(bytes: u64) -> u64 {
    let bytes = touched_bytes(bytes, Memory::new().free_bytes());
    let mut memory = Vec::<u8>::new();
    let Ok(len) = usize::try_from(bytes) else { return 0 };
    if memory.try_reserve_exact(len).is_err() {
        return 0;
    }
    memory.resize(len, 0);
    black_box(&mut memory).iter_mut().step_by(page_size()).for_each(|byte| *byte = 1);
    bytes
}

const fn touched_bytes(wanted: u64, free: u64) -> u64 {
    let touchable = free - free / LEFT_PART;
    if wanted < touchable { wanted } else { touchable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_touched_than_is_free() {
        assert_eq!(touched_bytes(700, 801), 700);
        assert_eq!(touched_bytes(u64::MAX, 800), 700);
        assert_eq!(touched_bytes(1, 0), 0);
        assert_eq!(touch_free_memory(1 << 20), 1 << 20);
    }
}
