//! How far the kernel reads ahead into the page cache.

use std::fs;
use std::path::PathBuf;

use crate::engine::DeviceNumber;

/// Bytes that the kernel reads ahead of a reader in sequence, at most, from a block device or a
/// partition (`read_ahead_kb` of its queue). `None` for a file system that shows no block device of
/// its own, such as btrfs, and where sysfs is not mounted.
#[must_use]
pub fn kernel_read_ahead_bytes((major, minor): DeviceNumber) -> Option<u64> {
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition has no queue, the disk around it does.
    let queues = [device.join("queue"), device.join("../queue")];
    queues.iter().find_map(|queue| {
        let kib: u64 = fs::read_to_string(queue.join("read_ahead_kb")).ok()?.trim().parse().ok()?;
        Some(kib * 1024)
    })
}

#[cfg(not(shuttle))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_without_a_queue_have_none() {
        assert_eq!(kernel_read_ahead_bytes((0, 5)), None);
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
            let of_disk = number(&disk).and_then(kernel_read_ahead_bytes);
            let kib = fs::read_to_string(disk.path().join("queue/read_ahead_kb"));
            let Ok(expected) = kib.unwrap_or_default().trim().parse::<u64>() else { continue };
            assert_eq!(of_disk, Some(expected * 1024), "{disk:?}");
            let parts = fs::read_dir(disk.path()).into_iter().flatten().flatten();
            for part in parts.filter(|part| part.path().join("partition").exists()) {
                assert_eq!(number(&part).and_then(kernel_read_ahead_bytes), of_disk, "{part:?}");
            }
            compared += 1;
        }
        if compared == 0 {
            eprintln!("skipped: sysfs shows no disk");
        }
    }
}
