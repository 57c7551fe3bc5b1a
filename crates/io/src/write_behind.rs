//! A window of written data that leaves the page cache behind the writer.
//!
//! Data written through the page cache stays there until the kernel needs the memory, and then
//! everybody pays: writers stop for whole seconds, and what others use is gone. The window does in
//! time what the kernel does late. It begins the write-back of what was written in large ascending
//! runs, on threads of its own, waits for it and drops the pages, except those that were cached
//! before. Writers wait only when they are faster than the disk, and then for a bounded amount.
//!
//! A write goes like this:
//!
//! ```no_run
//! # use std::{fs::File, os::fd::{AsFd, OwnedFd}, sync::Arc};
//! # use spillway_io::{ByteRange, WriteBehind, WriteBehindConfig, write_at};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let window = WriteBehind::new(WriteBehindConfig::default());
//! let fd = Arc::new(OwnedFd::from(File::create("data")?));
//! let file = window.file();
//!
//! let data = [7; 47_008];
//! let range = ByteRange::new(0, 47_008).ok_or("no file is that long")?;
//! let room = window.room(range.len()).await;
//! let intent = file.before_write(fd.as_fd(), range, room);
//! write_at(fd.as_fd(), &data, range.offset())?;
//! intent.enroll(&fd, range);
//!
//! rustix::fs::fsync(&fd)?;
//! if let Some(error) = file.take_error() {
//!     return Err(error.into());
//! }
//! # Ok(())
//! # }
//! ```

mod file;
mod pages;
mod range_set;
mod runs;
mod shared;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use file::{WriteBehindFile, WriteIntent};
pub use shared::Room;
use shared::Shared;

/// Sizes and times of a [`WriteBehind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBehindConfig {
    /// Bytes in the window at most: written, and not yet clean. Writers wait at this bound; data
    /// hurries along from half of it on. At least 1.
    pub window_bytes: u64,
    /// The most files in the window, each with an open descriptor: files with data on its way, and
    /// files that admitted writes may add. Writers wait at this bound too; from half of it on,
    /// write-back begins early. At least 1.
    pub files_max: usize,
    /// Write-back begins in pieces of about this size, ending at multiples of it; rounded up to
    /// whole pages. At least 1.
    pub run_bytes: u64,
    /// The write-back of a byte begins about this long after it arrived; at most twice as long, if
    /// it is overwritten meanwhile.
    pub age_max: Duration,
    /// A page that is filled only in part waits this long for the write that fills it, if the rest
    /// of its run goes to the disk before.
    pub neighbour_wait: Duration,
    /// Threads at most; at least 1. They start when they are needed. One waits for one file.
    pub threads: usize,
}

impl Default for WriteBehindConfig {
    /// 64 MiB of 16,384 files, in runs of 4 MiB, for a second; 50 ms for a neighbour; four threads.
    fn default() -> Self {
        Self {
            window_bytes: 64 << 20,
            files_max: 16_384,
            run_bytes: 4 << 20,
            age_max: Duration::from_secs(1),
            neighbour_wait: Duration::from_millis(50),
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
    /// Bytes left there because they were cached before they were written.
    pub bytes_kept: u64,
    /// Bytes that could not be dropped: mapped by a process, in a folio with others, or in use.
    pub bytes_stuck: u64,
    /// Bytes forgotten because their file system offers no way to write them back early.
    pub bytes_forgotten: u64,
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
    shared: Arc<Shared>,
}

impl WriteBehind {
    /// A window without any thread yet.
    ///
    /// # Panics
    /// If a size or the number of threads is 0.
    #[must_use]
    pub fn new(config: WriteBehindConfig) -> Self {
        Self { shared: Shared::new(config) }
    }

    /// The window's view of one file. There must be one only for each file, or pages that one
    /// brought into the cache seem to the other to have been there before. Costs nothing until the
    /// first write.
    #[must_use]
    pub fn file(&self) -> Arc<WriteBehindFile> {
        WriteBehindFile::new(Arc::clone(&self.shared))
    }

    /// Room for a write of so many bytes. Waits while the window is full, first come first served.
    /// A write larger than the window is admitted when the window is empty.
    ///
    /// Dropping the future gives up the place in the queue without other effect.
    pub async fn room(&self, bytes: u64) -> Room {
        self.shared.room(bytes).await
    }

    /// As [`room`](Self::room), for a thread that may block.
    ///
    /// # Panics
    /// Within an asynchronous task.
    pub fn room_blocking(&self, bytes: u64) -> Room {
        self.shared.room_blocking(bytes)
    }

    /// Bytes in the window now, in whole pages. At most the configured bound, but for a single write
    /// that is larger.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes()
    }

    /// Files in the window now, each with a descriptor.
    #[must_use]
    pub fn files(&self) -> usize {
        self.shared.files()
    }

    /// The counters so far.
    #[must_use]
    pub fn counts(&self) -> WriteBehindCounts {
        self.shared.counts()
    }

    /// Writes everything back, drops it, and returns when all threads have ended. Blocks the
    /// calling thread, which helps. Ranges enrolled later are written back at once.
    pub fn shutdown(&self) {
        self.shared.shutdown();
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.shared.close();
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
