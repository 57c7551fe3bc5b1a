//! Whether the kernel's way of writing past the page cache is worth using.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fsync, ftruncate, openat};
use rustix::io::Errno;
use rustix::system::uname;

use crate::byte_range::ByteRange;
use crate::data_file::{write_at, write_dontcache};
use crate::engine::DeviceNumber;
use crate::write_behind::{WriteBehind, WriteBehindConfig};

/// The verdict on `RWF_DONTCACHE` on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DontCacheVerdict {
    /// It cannot be had there, or cannot be tried.
    Unsupported,
    /// Writes are slower with it than with a [`WriteBehind`] window.
    Slower,
    /// They are as fast, small ones too.
    NoSlower,
}

/// Tries, from Linux 7.2 on, `RWF_DONTCACHE` writes against plain ones in a [`WriteBehind`] window,
/// on an unnamed file in `directory`: streams of 47,008-byte and of 1 MiB writes, in turns,
/// compared by their medians. Blocks for about 200 ms, longer only if the disk takes longer for a
/// single turn of each, and writes 32 MiB at most.
///
/// # Errors
/// `EIO` and other failures of the disk. A missing or forbidden feature is no error but
/// [`DontCacheVerdict::Unsupported`], and so is a full disk.
pub fn dontcache_writes_pay(directory: BorrowedFd<'_>) -> io::Result<DontCacheVerdict> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match openat(directory, ".", flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => compare(&Arc::new(file)).or_else(|error| {
            let full = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG];
            if Errno::from_io_error(&error).is_some_and(|errno| full.contains(&errno)) {
                Ok(DontCacheVerdict::Unsupported)
            } else {
                Err(error)
            }
        }),
        Err(Errno::IO) => Err(Errno::IO.into()),
        Err(_) => Ok(DontCacheVerdict::Unsupported),
    }
}

fn compare(file: &Arc<OwnedFd>) -> io::Result<DontCacheVerdict> {
    let data = vec![0x5a; LARGE_BYTES];
    // Whether the kernel knows the flag at all, and the first blocks of the file.
    if !stream_dontcache(file, &data, LARGE_STREAM)? {
        return Ok(DontCacheVerdict::Unsupported);
    }
    if !flushes_in_batches(&uname().release().to_string_lossy()) {
        return Ok(DontCacheVerdict::Slower);
    }
    race(file, &data)
}

/// Whether the kernel of this release gathers such writes before it writes them back, as Linux does
/// since 7.2. Before, each write begins its own write-back and waits for a place in the disk's
/// queue: short streams do not show how slow that gets in long ones.
fn flushes_in_batches(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (7, 2),
        _ => false,
    }
}

fn race(file: &Arc<OwnedFd>, data: &[u8]) -> io::Result<DontCacheVerdict> {
    let begun = Instant::now();
    for (write_bytes, stream_bytes, rounds) in
        [(SMALL_BYTES, SMALL_STREAM, SMALL_ROUNDS), (LARGE_BYTES, LARGE_STREAM, LARGE_ROUNDS)]
    {
        let data = &data[..write_bytes];
        let (mut with, mut without) = (Vec::new(), Vec::new());
        while with.len() < rounds && (with.is_empty() || begun.elapsed() < TIME_MAX) {
            without.push(timed(file, || stream_window(file, data, stream_bytes))?);
            with.push(timed(file, || stream_dontcache(file, data, stream_bytes).map(drop))?);
        }
        // In doubt the window, which is as good everywhere.
        if median(with) > median(without) {
            return Ok(DontCacheVerdict::Slower);
        }
    }
    Ok(DontCacheVerdict::NoSlower)
}

/// The time that writing the empty file takes until all of it is on the disk.
fn timed(file: &OwnedFd, write: impl FnOnce() -> io::Result<()>) -> io::Result<Duration> {
    ftruncate(file, 0)?;
    fsync(file)?;
    let begun = Instant::now();
    write()?;
    fsync(file)?;
    Ok(begun.elapsed())
}

fn stream_window(file: &Arc<OwnedFd>, data: &[u8], stream_bytes: u64) -> io::Result<()> {
    // Runs so short that the stream has some.
    let config = WriteBehindConfig {
        run_bytes: stream_bytes / 4,
        threads: 1,
        ..WriteBehindConfig::default()
    };
    let window = WriteBehind::new(config);
    let view = window.file(ITS_DEVICE);
    for range in ranges(data.len(), stream_bytes) {
        let reservation = view.reserve_blocking(range.len());
        let intent = view.before_write(file.as_fd(), range, reservation);
        write_at(file.as_fd(), data, range.offset()).map_err(|failed| failed.error)?;
        intent.enroll(file, range);
    }
    window.shutdown();
    view.take_error().map_or(Ok(()), |error| Err(error.into()))
}

/// `false` if there are no such writes.
fn stream_dontcache(file: &OwnedFd, data: &[u8], stream_bytes: u64) -> io::Result<bool> {
    for range in ranges(data.len(), stream_bytes) {
        let written = write_dontcache(file.as_fd(), &[data], range.offset());
        if written.map_err(|failed| failed.error)?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The writes of one stream.
fn ranges(write_bytes: usize, stream_bytes: u64) -> impl Iterator<Item = ByteRange> {
    let len = write_bytes as u64;
    (0..stream_bytes / len).map(move |index| {
        ByteRange::new(index * len, len).expect("a stream is far from the largest offset")
    })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The size of write that IOR's hard case made famous; what is slow with it is slow with all that
/// are not whole pages.
const SMALL_BYTES: usize = 47_008;
/// Stands for the device of the file, which is the only one in the window.
const ITS_DEVICE: DeviceNumber = (0, 0);

const LARGE_BYTES: usize = 1 << 20;

// Bytes of a stream, and how often it is written in each of the two ways: 32 MiB in all, with the
// first one. Most of it goes where the two ways differ most.
const SMALL_STREAM: u64 = 4 << 20;
const SMALL_ROUNDS: usize = 3;
const LARGE_STREAM: u64 = 2 << 20;
const LARGE_ROUNDS: usize = 1;

/// No new turn begins after this.
const TIME_MAX: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{fstatvfs, memfd_create};

    use super::*;

    #[test]
    fn the_probe_ends_in_time_and_removes_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let handle = File::open(directory.path()).unwrap();
        let begun = Instant::now();
        let verdict = dontcache_writes_pay(handle.as_fd()).unwrap();
        println!("{verdict:?} after {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(10), "a busy disk is no excuse for this");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(fstatvfs(&handle).is_ok());
        if verdict == DontCacheVerdict::Unsupported {
            // Then a plain try must fail as well.
            let file = tempfile::tempfile_in(directory.path()).unwrap();
            assert!(write_dontcache(file.as_fd(), &[b"x"], 0).unwrap().is_none());
        }
    }

    #[test]
    fn a_race_has_an_end() {
        let file = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        let begun = Instant::now();
        let verdict = race(&file, &vec![1; LARGE_BYTES]).unwrap();
        println!("{verdict:?} after {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(10), "a busy disk is no excuse for this");
    }

    #[test]
    fn kernels_before_7_2_write_back_at_every_write() {
        for (release, batches) in [
            ("6.18.44-amd64", false),
            ("7.1.9", false),
            ("7.2.0-rc1", true),
            ("7.10-arch1", true),
            ("10.0", true),
            ("7", false),
            ("unknown", false),
        ] {
            assert_eq!(flushes_in_batches(release), batches, "{release}");
        }
    }

    #[test]
    fn dontcache_is_unsupported_if_anything_is_missing() {
        let unsupported = |fd: BorrowedFd<'_>| {
            assert_eq!(dontcache_writes_pay(fd).unwrap(), DontCacheVerdict::Unsupported);
        };
        unsupported(File::open("/proc").unwrap().as_fd());
        // Memory has unnamed files, and no such writes.
        if let Ok(memory) = File::open("/dev/shm") {
            unsupported(memory.as_fd());
        }
        // No directory at all.
        let memory = memfd_create("f", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        unsupported(memory.as_fd());
    }
}
