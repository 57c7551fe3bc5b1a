//! Exact knowledge of finished writes: inotify watches on single files.
//!
//! The kernel queues `IN_MODIFY` after a write's data is in place and before the system call
//! returns. That is so for `write` and its kin, past the page cache too, `sendfile`, `splice`,
//! `copy_file_range`, `truncate` and `fallocate`, and before an io_uring completion can be seen. So
//! a reader of the queue finds the event of a call that has returned, however long the call took.
//! These raise **no** event: stores through a mapping, `io_submit` (the older asynchronous I/O),
//! and users of a file inside the kernel (an overlay above it, a loop device on it).

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Bytes of events that one system call returns: 256 of them.
const EVENT_BUFFER_BYTES: usize = 4096;

/// The watches of a process: one inotify instance, made when the first watch is. The kernel bounds
/// the number of watches (`fs.inotify.max_user_watches`) and of events in the queue; when the queue
/// overflows, all watches count as fired.
#[derive(Clone, Default)]
pub struct ChangeWatches(Arc<Shared>);

#[derive(Default)]
struct Shared {
    inotify: OnceLock<OwnedFd>,
    /// By the kernel's number of the watch. The lock is held over the system calls that add and
    /// remove watches and read events, none of which waits for a disk.
    watches: Mutex<HashMap<i32, Entry>>,
}

struct Entry {
    fired: Arc<AtomicBool>,
    /// Watches of the same inode share one of the kernel.
    users: usize,
}

/// A watch of one file, from its making to its end.
pub struct ChangeWatch {
    shared: Arc<Shared>,
    number: i32,
    fired: Arc<AtomicBool>,
}

impl ChangeWatches {
    /// Watches the file of `fd`, which may be of any kind, `O_PATH` too. A change that is finished
    /// after this call returns fires the watch.
    ///
    /// # Errors
    /// `ENOSPC` at the limit of watches, `EMFILE` at that of inotify instances or descriptors,
    /// `EACCES` if the thread's user may not read the file, `ENOENT` without `/proc`.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<ChangeWatch> {
        let mut watches = self.0.lock();
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let number = inotify::add_watch(self.0.inotify()?, path, WatchFlags::MODIFY)?;
        let entry = watches
            .entry(number)
            .or_insert_with(|| Entry { fired: Arc::new(AtomicBool::new(false)), users: 0 });
        entry.users += 1;
        let fired = Arc::clone(&entry.fired);
        drop(watches);
        Ok(ChangeWatch { shared: Arc::clone(&self.0), number, fired })
    }

    /// Fires the watches of all files that were changed: for every change that was finished before
    /// this call, [`ChangeWatch::has_fired`] is true after it. One system call if there was none.
    pub fn drain(&self) {
        let Some(inotify) = self.0.inotify.get() else { return };
        let mut watches = self.0.lock();
        let mut buffer = [MaybeUninit::uninit(); EVENT_BUFFER_BYTES];
        let mut events = Reader::new(inotify, &mut buffer);
        // Ends: a file whose event was read is not watched any more, and raises no other.
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    fire_all(inotify, &mut watches);
                }
                // Also the end of a watch that the kernel made, as by an unmount.
                Ok(event) => fire(inotify, &mut watches, event.wd()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    tracing::error!(%error, "cannot read inotify events");
                    return fire_all(inotify, &mut watches);
                }
            }
        }
    }
}

fn fire_all(inotify: &OwnedFd, watches: &mut HashMap<i32, Entry>) {
    let numbers: Vec<i32> = watches.keys().copied().collect();
    numbers.into_iter().for_each(|number| fire(inotify, watches, number));
}

/// Fires a watch and ends it, so that a file that is written all the time raises one event.
fn fire(inotify: &OwnedFd, watches: &mut HashMap<i32, Entry>, number: i32) {
    // One that is not there has ended, and this is its last event.
    if let Some(entry) = watches.remove(&number) {
        entry.fired.store(true, Ordering::Release);
        end(inotify, number);
    }
}

fn end(inotify: &OwnedFd, number: i32) {
    match inotify::remove_watch(inotify, number) {
        // EINVAL: the kernel has ended it.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => tracing::warn!(%error, "cannot remove the inotify watch of a file"),
    }
}

impl Shared {
    /// The inotify instance; made under the lock, so that there is one.
    fn inotify(&self) -> Result<&OwnedFd, Errno> {
        if let Some(inotify) = self.inotify.get() {
            return Ok(inotify);
        }
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(self.inotify.get_or_init(|| inotify))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Entry>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChangeWatch {
    /// Whether the file was changed, as far as [`ChangeWatches::drain`] has found out.
    #[must_use]
    pub fn has_fired(&self) -> bool {
        self.fired.load(Ordering::Acquire)
    }
}

impl Drop for ChangeWatch {
    fn drop(&mut self) {
        let mut watches = self.shared.lock();
        // Under this number there may be a later watch of the same file.
        let ours = |entry: &&mut Entry| Arc::ptr_eq(&entry.fired, &self.fired);
        let Some(entry) = watches.get_mut(&self.number).filter(ours) else { return };
        entry.users -= 1;
        if entry.users == 0 {
            watches.remove(&self.number);
            if let Some(inotify) = self.shared.inotify.get() {
                end(inotify, self.number);
            }
        }
    }
}

impl fmt::Debug for ChangeWatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeWatches").field("watches", &self.0.lock().len()).finish()
    }
}

impl fmt::Debug for ChangeWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeWatch").field("fired", &self.has_fired()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{FallocateFlags, Mode, OFlags};

    use super::*;
    use crate::skip::skip_in_ci_too;

    fn file() -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 8192], 0).unwrap();
        file
    }

    #[test]
    fn every_finished_change_fires_the_watch() {
        let (watches, file) = (ChangeWatches::default(), file());
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path_only = rustix::fs::open(path, OFlags::PATH, Mode::empty()).unwrap();
        let changes: [(&str, &dyn Fn()); 5] = [
            ("write", &|| file.write_all_at(b"x", 0).unwrap()),
            ("shorter", &|| file.set_len(5000).unwrap()),
            ("longer", &|| file.set_len(9000).unwrap()),
            ("hole", &|| {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, flags, 0, 4096).unwrap();
            }),
            ("copy", &|| {
                let source = File::open("/proc/self/exe").unwrap();
                rustix::fs::copy_file_range(&source, None, &file, None, 100).unwrap();
            }),
        ];
        for (what, change) in changes {
            let watch = watches.watch(path_only.as_fd()).unwrap();
            watches.drain();
            assert!(!watch.has_fired(), "before {what}");
            change();
            watches.drain();
            assert!(watch.has_fired(), "{what}");
        }
    }

    #[test]
    fn direct_write_fires_the_watch() {
        let (watches, file) = (ChangeWatches::default(), file());
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::DIRECT;
        let Ok(direct) = rustix::fs::open(path, flags, Mode::empty()) else {
            return skip_in_ci_too("no direct I/O in the temporary directory");
        };
        let watch = watches.watch(file.as_fd()).unwrap();
        let pool = crate::BufferPool::new(1 << 20);
        let mut buffer = pool.try_take(4096).unwrap();
        buffer.as_mut_slice()[..4096].fill(2);
        rustix::io::pwrite(&direct, &buffer.as_slice()[..4096], 0).unwrap();
        watches.drain();
        assert!(watch.has_fired());
    }

    #[test]
    fn watches_of_one_file_share_a_number_and_end_with_the_last() {
        let (watches, file, other) = (ChangeWatches::default(), file(), file());
        let first = watches.watch(file.as_fd()).unwrap();
        let second = watches.watch(file.as_fd()).unwrap();
        let elsewhere = watches.watch(other.as_fd()).unwrap();
        drop(first);
        file.write_all_at(b"x", 0).unwrap();
        watches.drain();
        assert!(second.has_fired() && !elsewhere.has_fired());
        // A new one begins anew, whatever the old one knows, and outlives it.
        let third = watches.watch(file.as_fd()).unwrap();
        drop(second);
        assert!(!third.has_fired());
        file.write_all_at(b"y", 0).unwrap();
        watches.drain();
        assert!(third.has_fired());
        drop((third, elsewhere));
        assert!(watches.0.lock().is_empty());
    }

    #[test]
    fn overflow_of_the_queue_fires_all_watches() {
        let (watches, file) = (ChangeWatches::default(), file());
        let watch = watches.watch(file.as_fd()).unwrap();
        fire_all(watches.0.inotify.get().unwrap(), &mut watches.0.lock());
        assert!(watch.has_fired());
        let again = watches.watch(file.as_fd()).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        watches.drain();
        assert!(again.has_fired());
    }
}
