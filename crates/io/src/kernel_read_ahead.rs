//! How far the kernel reads ahead into the page cache, and how it is brought to read further.
//!
//! It reads ahead in windows, and marks a page of the last one. Whatever reads that page, be it one
//! byte with `RWF_NOWAIT`, begins the next window: as long as the last one (since Linux 6.14;
//! before, as `read_ahead_kb`), and in larger folios. A read longer than one request to the device
//! begins new windows of the length of a request, whatever was read before, and the mark of the
//! first is in its middle. The mark of any other is on its first page. A read of one request or
//! less, where it follows nothing, is read as it is, in single pages and without a mark.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use rustix::param::page_size;

use crate::byte_range::ByteRange;
use crate::data_file::begin_read;
use crate::engine::DeviceNumber;
use crate::residency::{CacheState, cache_state};

/// Longer windows are not asked for: most would lie behind what a stream is read ahead.
const WINDOW_BYTES_MAX: u64 = 4 * 1024 * 1024;

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

    /// Has the kernel begin to read what the page cache has not of `range`, and what it reads at
    /// once with that, as far as `until`, or to the end of a window. Does not wait for the data; it
    /// may wait for the file's block map and for a free request to the device. `range` begins where
    /// a page does. What is cached of it should be its beginning, as where a file is read in
    /// sequence: else all of it is asked for once more.
    ///
    /// Returns the state of the range after that, as [`cache_state`] does. Fewer pages are cached
    /// than there are where that brought the kernel to nothing.
    ///
    /// # Errors
    /// As [`cache_state`].
    pub fn begin(
        &self,
        fd: BorrowedFd<'_>,
        range: ByteRange,
        until: u64,
    ) -> io::Result<Option<CacheState>> {
        let window = self.at_once_bytes(WINDOW_BYTES_MAX);
        let page = page_size() as u64;
        let Some(mut state) = cache_state(fd, range)? else { return Ok(None) };
        for _ in 0..state.pages {
            let before = state.cached;
            if before >= state.pages || window == 0 {
                break;
            }
            let end = range.offset() + before * page;
            let anew = |at: u64| (Some(at), (window + page).min(until.max(range.end()) - at));
            // The mark of a window behind others, that of a first one; then new windows.
            let reads = [
                (end.checked_sub(window), 1),
                (end.checked_sub(window / 2), 1),
                anew(end),
                anew(range.offset()),
            ];
            for (at, len) in reads {
                let Some(at) = at else { continue };
                // No page has a mark before it is there, and to ask for it would read it alone.
                if len == 1 && !is_cached(fd, at)? {
                    continue;
                }
                begin_read(fd, at, len);
                let Some(now) = cache_state(fd, range)? else { return Ok(None) };
                state = now;
                if state.cached > before {
                    break;
                }
            }
            if state.cached <= before {
                break;
            }
        }
        Ok(Some(state))
    }
}

/// Whether the page at `at` is in the page cache, or on its way.
fn is_cached(fd: BorrowedFd<'_>, at: u64) -> io::Result<bool> {
    let state = cache_state(fd, ByteRange::between(at, at + 1))?;
    Ok(state.is_some_and(|page| page.cached > 0))
}

#[cfg(not(shuttle))]
#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use rustix::fs::{Advice, fadvise, fstat, major, minor};

    use super::*;
    use crate::data_file::read_into_cache;
    use crate::skip::skip_in_ci_too;

    #[test]
    fn a_file_is_begun_chunk_by_chunk_wherever_that_starts() {
        const CHUNK: u64 = 1024 * 1024;
        const CHUNKS: u64 = 8;
        const FILE_BYTES: usize = (8 << 20) - 5;
        for (first, begun_at, len) in
            [(0, 0, 0), (0, 0, 47_008), (3, 0, 0), (3, 0, 100_000), (3, 500_000, 47_008)]
        {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&vec![1; FILE_BYTES]).unwrap();
            file.sync_all().unwrap();
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            let device = fstat(&file).unwrap().st_dev;
            let Some(device) = KernelReadAhead::of((major(device), minor(device))) else {
                return skip_in_ci_too("temporary files are on no block device");
            };
            if device.ahead_bytes == 0 {
                return skip_in_ci_too("the kernel does not read ahead here");
            }
            let chunk = |index: u64| {
                let end = ((index + 1) * CHUNK).min(FILE_BYTES as u64);
                ByteRange::between(index * CHUNK, end)
            };
            match cache_state(file.as_fd(), chunk(first)).unwrap() {
                None => return skip_in_ci_too("the kernel does not report cached pages"),
                Some(state) if state.cached > 0 => {
                    return skip_in_ci_too("files are in memory whatever is advised");
                }
                Some(_) => {}
            }
            if len > 0 {
                let begun = ByteRange::new(first * CHUNK + begun_at, len).unwrap();
                read_into_cache(file.as_fd(), begun).unwrap();
                if !is_cached(file.as_fd(), begun.offset()).unwrap() {
                    return skip_in_ci_too("the kernel does not report cached pages of this file");
                }
            }
            for index in first..CHUNKS {
                let begun = device.begin(file.as_fd(), chunk(index), 0).unwrap().unwrap();
                let case = format!("{index} of {first}.. after {len} at {begun_at}, {device:?}");
                assert_eq!(begun.cached, begun.pages, "{case}");
            }
        }
    }

    #[test]
    fn nothing_is_begun_where_the_kernel_does_not_read_ahead() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let device = KernelReadAhead { ahead_bytes: 0, request_bytes_max: 1 << 20 };
        let begun = device.begin(file.as_fd(), ByteRange::between(0, 1 << 20), 0).unwrap();
        assert_eq!(begun.map_or(0, |begun| begun.cached), 0);
    }

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
