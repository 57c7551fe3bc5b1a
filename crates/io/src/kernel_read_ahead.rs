//! How far the kernel reads ahead into the page cache.

use std::fs;
use std::path::PathBuf;

use crate::engine::DeviceNumber;

/// How the kernel reads from a block device into the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelReadAhead {
    /// Bytes that it reads ahead of a reader in sequence, at most (`read_ahead_kb` of the queue).
    pub ahead_bytes: u64,
    /// The longest request to the device, in bytes (`max_sectors_kb`).
    pub request_bytes_max: u64,
}

impl KernelReadAhead {
    /// That of a block device, or of the disk that a partition is on. `None` for a file system that
    /// shows no block device of its own, such as btrfs, and where sysfs is not mounted.
    #[must_use]
    pub fn of((major, minor): DeviceNumber) -> Option<Self> {
        let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        // A partition has no queue, the disk around it does.
        let queues = [device.join("queue"), device.join("../queue")];
        queues.iter().find_map(|queue| {
            let bytes = |name: &str| {
                let kib: u64 = fs::read_to_string(queue.join(name)).ok()?.trim().parse().ok()?;
                Some(kib.saturating_mul(1024))
            };
            Some(Self {
                ahead_bytes: bytes("read_ahead_kb")?,
                request_bytes_max: bytes("max_sectors_kb")?,
            })
        })
    }

    /// Bytes that the kernel reads at once for a read of `len` bytes that goes on where another
    /// ended: what it reads ahead, or a longer read as far as one request goes. 0 if it does not
    /// read ahead.
    #[must_use]
    pub fn at_once_bytes(&self, len: u64) -> u64 {
        match self.ahead_bytes {
            0 => 0,
            ahead_bytes => ahead_bytes.max(len.min(self.request_bytes_max)),
        }
    }
}

#[cfg(not(shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip_in_ci_too;

    #[test]
    fn devices_without_a_queue_have_none() {
        assert_eq!(KernelReadAhead::of((0, 5)), None);
    }

    #[test]
    fn a_long_read_is_read_at_once_as_far_as_a_request_goes() {
        for (ahead_kib, request_kib, read_kib, at_once_kib) in [
            (128, 1280, 46, 128),
            (128, 1280, 1024, 1024),
            (128, 512, 1024, 512),
            (2560, 1280, 1024, 2560),
            (128, 64, 1024, 128),
            (0, 1280, 1024, 0),
        ] {
            let device = KernelReadAhead {
                ahead_bytes: ahead_kib << 10,
                request_bytes_max: request_kib << 10,
            };
            assert_eq!(device.at_once_bytes(read_kib << 10), at_once_kib << 10, "{device:?}");
        }
    }

    #[test]
    fn partitions_have_that_of_their_disk() {
        let number = |device: &fs::DirEntry| {
            let number = fs::read_to_string(device.path().join("dev")).ok()?;
            let (major, minor) = number.trim().split_once(':')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let mut compared = 0;
        for disk in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let of_disk = number(&disk).and_then(KernelReadAhead::of);
            let kib = fs::read_to_string(disk.path().join("queue/read_ahead_kb"));
            let Ok(expected) = kib.unwrap_or_default().trim().parse::<u64>() else { continue };
            assert_eq!(of_disk.unwrap().ahead_bytes, expected * 1024, "{disk:?}");
            let parts = fs::read_dir(disk.path()).into_iter().flatten().flatten();
            for part in parts.filter(|part| part.path().join("partition").exists()) {
                assert_eq!(number(&part).and_then(KernelReadAhead::of), of_disk, "{part:?}");
            }
            compared += 1;
        }
        if compared == 0 {
            skip_in_ci_too("sysfs shows no disk");
        }
    }
}
