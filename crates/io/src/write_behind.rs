//! A window of written data that leaves the page cache behind the writer.
//!
//! Data written through the page cache stays there until the kernel needs the memory, and then
//! everybody pays: writers stop for whole seconds, and what others use is gone. The window does in
//! time what the kernel does late. It begins the write-back of what was written in large ascending
//! runs, on threads of its own, waits for it and drops the pages, except those that were cached
//! before. Writers wait only when they are faster than the disk, and then for a bounded amount.
//!
//! Each device has threads and a queue of its own, and an equal part of the window with those that
//! have data in it; a device alone may fill all of it. What it has filled alone it keeps until the
//! disk takes it: a disk that stands still holds up no other, and the window exceeds its bound
//! meanwhile, by at most the parts of those that came later.
//!
//! A write goes like this:
//!
//! ```no_run
//! # use std::{fs::File, os::fd::{AsFd, OwnedFd}, sync::Arc};
//! # use spillway_io::{ByteRange, WriteBehind, WriteBehindConfig, write_at};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let window = WriteBehind::new(WriteBehindConfig::default());
//! let fd = Arc::new(OwnedFd::from(File::create("data")?));
//! let file = window.file((8, 1));
//!
//! let data = [7; 47_008];
//! let range = ByteRange::new(0, 47_008).ok_or("no file is that long")?;
//! let reservation = file.reserve(range.len()).await;
//! let intent = file.before_write(fd.as_fd(), range, reservation);
//! write_at(fd.as_fd(), &data, range.offset())?;
//! intent.enroll(&fd, range);
//!
//! file.flush(|| Ok(rustix::fs::fsync(&fd)?))?;
//! # Ok(())
//! # }
//! ```

mod dirty_runs;
mod file;
mod pages;
mod range_set;
mod runs;
mod shared;
mod window;

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::engine::DeviceNumber;
use crate::per_device::PerDevice;
use crate::sync::{Mutex, MutexGuard};
pub use file::{WriteBehindFile, WriteIntent};
pub use pages::discard_error;
pub use shared::Reservation;
use shared::Shared;
use window::Window;

/// Sizes and times of a [`WriteBehind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBehindConfig {
    /// Bytes in the window at most, divided among the devices: written, and not yet clean. Writers
    /// wait at this bound; data hurries along from half of it on. At least 1.
    pub window_bytes: u64,
    /// The most files in the window, divided likewise, each with an open descriptor: files with
    /// data on its way, and files that admitted writes may add. Writers wait at this bound too;
    /// from half of it on, write-back begins early. At least 1.
    pub files_max: usize,
    /// Write-back begins in pieces of about this size, ending at multiples of it; rounded up to
    /// whole pages. At least 1.
    pub run_bytes: u64,
    /// The write-back of a byte begins about this long after it arrived; at most twice as long, if
    /// it is overwritten meanwhile.
    pub age_max: Duration,
    /// A page that is filled only in part waits this long for the write that fills it, where
    /// several write one file in turns: it would have to be read back. Such pages leave earlier,
    /// the oldest first, when they take three quarters of the window. Those at the ends of a file
    /// written in sequence wait for `age_max`.
    pub neighbour_wait: Duration,
    /// Threads of each device at most; at least 1. They start when they are needed. One waits for
    /// one file.
    pub threads: usize,
}

impl Default for WriteBehindConfig {
    /// 64 MiB of 16,384 files, in runs of 4 MiB, for a second; four threads. 30 s for a neighbour,
    /// after which the kernel writes dirty pages by itself (`vm.dirty_expire_centisecs`).
    fn default() -> Self {
        Self {
            window_bytes: 64 << 20,
            files_max: 16_384,
            run_bytes: 4 << 20,
            age_max: Duration::from_secs(1),
            neighbour_wait: Duration::from_secs(30),
            threads: 4,
        }
    }
}

/// The counters of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteBehindCounts {
    /// Writes that arrived after data that belongs behind them. A second stream in the same file
    /// and a second write to the same bytes are none.
    pub out_of_order: u64,
    /// Of these, writes that met the data behind them before it went to the disk, so that the disk
    /// saw both in order.
    pub put_in_order: u64,
    /// Ranges whose write-back was begun, each in one piece.
    pub runs: u64,
    /// Bytes of these ranges.
    pub bytes_written_back: u64,
    /// Bytes dropped from the page cache when they were clean.
    pub bytes_dropped: u64,
    /// Bytes left there because they were cached before they were written, or their write-back may
    /// have failed.
    pub bytes_kept: u64,
    /// Bytes that could not be dropped: mapped by a process, in a folio with others, or in use.
    pub bytes_stuck: u64,
    /// Bytes forgotten because their file system offers no way to write them back early.
    pub bytes_forgotten: u64,
    /// Pages filled only in part that the writes beside them have filled in the window, about.
    pub edges_filled: u64,
    /// Pages written back though they were filled only in part. The write that fills one of them
    /// later has to read it first.
    pub edges_given_up: u64,
    /// Writers that had to wait for room.
    pub throttled: u64,
    /// Write-backs that failed. The first error of each file is kept for
    /// [`WriteBehindFile::take_error`].
    pub errors: u64,
}

/// The window of a process: one for all files, so that there is one bound.
///
/// Dropped, it writes back what it holds without being waited for; see
/// [`shutdown`](Self::shutdown).
pub struct WriteBehind {
    window: Arc<Window>,
    devices: Mutex<Devices>,
}

/// The devices that files were opened on since another one came, and those that have some.
#[derive(Default)]
struct Devices {
    known: PerDevice<Shared>,
    /// All of them, and those that come, write their data back at once and end their threads.
    closed: bool,
}

impl WriteBehind {
    /// A window without any thread yet.
    ///
    /// # Panics
    /// If a size or the number of threads is 0.
    #[must_use]
    pub fn new(config: WriteBehindConfig) -> Self {
        Self { window: Arc::new(Window::new(config)), devices: Mutex::default() }
    }

    /// The window's view of one file, which lies on `device`. There must be one only for each file,
    /// or pages that one brought into the cache seem to the other to have been there before. Costs
    /// nothing until the first write.
    #[must_use]
    pub fn file(&self, device: DeviceNumber) -> Arc<WriteBehindFile> {
        let mut devices = self.lock();
        let closed = devices.closed;
        let shared = devices.known.get(device, Shared::close_if_unused, || {
            let new = Shared::new(Arc::clone(&self.window));
            if closed {
                new.close();
            }
            new
        });
        WriteBehindFile::new(shared)
    }

    /// Bytes in the window now, in whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.devices().iter().map(|device| device.bytes()).sum()
    }

    /// Files in the window now, each with a descriptor.
    #[must_use]
    pub fn files(&self) -> usize {
        self.devices().iter().map(|device| device.files()).sum()
    }

    /// The counters so far.
    #[must_use]
    pub fn counts(&self) -> WriteBehindCounts {
        self.window.counts()
    }

    /// Writes everything back, drops it, and returns when all threads have ended. Blocks the
    /// calling thread, which helps one device after the other; none waits for that. Ranges enrolled
    /// later are written back at once.
    pub fn shutdown(&self) {
        self.close();
        for device in self.devices() {
            device.shutdown();
        }
    }

    fn close(&self) {
        self.lock().closed = true;
        for device in self.devices() {
            device.close();
        }
    }

    fn devices(&self) -> Vec<Arc<Shared>> {
        self.lock().known.iter().map(|(_, device)| Arc::clone(device)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for WriteBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBehind")
            .field("bytes", &self.bytes())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

#[cfg(shuttle)]
#[cfg(test)]
mod interleavings;
#[cfg(not(shuttle))]
#[cfg(test)]
mod tests;
