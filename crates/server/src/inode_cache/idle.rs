//! Giving up objects that were not used for a while, and the descriptors for writing of files that
//! were not written for a while. Also the renewal of ctimes that the kernel has given to two
//! changes ([`io::ChangeStamps`]).
//!
//! The tick advances the clock and lists what is idle. It calls nothing that can wait for a disk,
//! so no disk stops it. Flushes and closes run in tasks of their own, one per device at a time: a
//! slow disk delays only the objects that lie on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use io::{Engine, Identity, Lengths, Share};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};

use super::busy_devices::{Claim, Device};
use super::permitted::WRITER_FLAGS;
use super::table::{is_unused, lock};
use super::{Change, Inode, InodeCache, InodeKey};
use crate::fs::{Timestamp, proc_path};

/// Ticks after which an unused object that can be written is given up, and after which one that is
/// used otherwise is closed for writing. A tick is a second.
const WRITABLE_IDLE_TICKS: u64 = 5;
/// Ticks after which any unused object is given up, and a listing that no call continues.
const IDLE_TICKS: u64 = 30;
/// Ctimes of a device that are renewed at a tick: it must not hold up what comes at the next.
const BEHIND_MAX: usize = 1000;

/// Idle objects of one device. There is one per device at a time.
pub(crate) struct IdleInodes {
    listed: Listed,
    claim: Claim,
}

/// At most as many as the table has objects.
#[derive(Default)]
struct Listed {
    /// Objects that no call uses.
    unused: Vec<InodeKey>,
    /// Files that are used, and open for writing without being written, or were closed for writing
    /// and have descriptors of that time.
    unwritten: Vec<InodeKey>,
    /// Directories with listings that were not continued.
    listed: Vec<InodeKey>,
    /// Objects whose ctime is to be renewed, [`BEHIND_MAX`] at most.
    behind: Vec<InodeKey>,
}

impl InodeCache {
    /// Advances the clock, drops chunks that were not used or are outdated, and returns what is
    /// idle on each device whose last such list was worked off. To be called once a second; does
    /// not block.
    #[must_use]
    pub(crate) fn tick(&self) -> Vec<IdleInodes> {
        let now = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        self.is_closing_ahead.store(false, Ordering::SeqCst);
        let mut idle: HashMap<Device, Listed> = HashMap::new();
        for shard in &self.shards {
            for file in lock(shard).files.values() {
                if file.lock.is_behind() {
                    let behind = &mut idle.entry(file.root.device()).or_default().behind;
                    if behind.len() < BEHIND_MAX {
                        behind.push(file.key());
                    }
                }
                if file.tick_streams(IDLE_TICKS) {
                    idle.entry(file.root.device()).or_default().listed.push(file.key());
                }
                let mut is_unwritten = false;
                if let Ok(data) = file.file() {
                    data.state.read_ahead.trim(Instant::now());
                    data.state.prefetch.trim(Instant::now());
                    is_unwritten =
                        data.tick() > WRITABLE_IDLE_TICKS || data.descriptors().has_given_up();
                }
                if is_idle(file, now) {
                    idle.entry(file.root.device()).or_default().unused.push(file.key());
                } else if is_unwritten {
                    idle.entry(file.root.device()).or_default().unwritten.push(file.key());
                }
            }
        }
        for device in self.unflushed_devices() {
            idle.entry(device).or_default();
        }
        let claimed =
            |(device, listed)| Some(IdleInodes { listed, claim: self.busy.claim(device)? });
        idle.into_iter().filter_map(claimed).collect()
    }

    /// Flushes and closes what [`Self::tick`] found idle, unless it was used since, and what has
    /// left the table unflushed. Files that `is_held_for_writing` names stay open for writing.
    /// Waits for the disk, on the device's threads.
    pub(crate) async fn give_up(
        &self,
        idle: IdleInodes,
        engine: &Engine,
        is_held_for_writing: impl Fn(&Inode) -> bool + Clone + Send + 'static,
    ) {
        let IdleInodes { listed, claim } = idle;
        let share = Share::new(&engine.device(claim.device), 0);
        let give_up = async {
            self.flush_left(claim.device, engine).await;
            self.give_up_listed(listed, engine, is_held_for_writing).await;
        };
        share.run(give_up).await;
        drop(claim);
    }

    async fn give_up_listed(
        &self,
        listed: Listed,
        engine: &Engine,
        is_held_for_writing: impl Fn(&Inode) -> bool + Clone + Send + 'static,
    ) {
        let Listed { unused, unwritten, listed, behind } = listed;
        self.close_idle(&unused, engine).await;
        self.close_listings(&listed, engine).await;
        for key in &unused {
            let file = self.shard(key).files.get(key).cloned();
            if let Some(file) = file.filter(|file| file.is_dirty())
                && !file.flush_before_leaving(engine).await
            {
                // Not again in the next second: with each failure clients send their data again.
                self.note_use(&file);
                file.put_off_closing();
            }
        }
        self.close_idle(&unused, engine).await;
        for key in &unwritten {
            let file = self.shard(key).files.get(key).cloned();
            let Some(file) = file else { continue };
            if !is_held_for_writing(&file) {
                file.give_up_writers(engine, is_held_for_writing.clone()).await;
            }
            file.close_given_up(engine).await;
        }
        for key in &behind {
            let file = self.shard(key).files.get(key).cloned();
            if let Some(file) = file {
                // Without a thread's identity it stays as it is until the next tick.
                drop(engine.metadata(Identity::Server, move || file.renew_ctime()).await);
            }
        }
    }

    /// Closes those of the objects that are idle still and have nothing to be flushed. The last
    /// close of a file may wait for the disk, and so runs on a data thread.
    async fn close_idle(&self, keys: &[InodeKey], engine: &Engine) {
        let now = self.ticks.load(Ordering::Relaxed);
        let leave = |key| {
            let mut shard = self.shard(key);
            let leaves =
                shard.files.get(key).is_some_and(|file| is_idle(file, now) && !file.is_dirty());
            if leaves { shard.files.swap_remove(key) } else { None }
        };
        let leaving: Vec<_> = keys.iter().filter_map(leave).collect();
        if !leaving.is_empty() {
            engine.data(move || drop(leaving)).await;
        }
    }

    /// Closes the listings of these directories that no call has continued meanwhile. Where the
    /// directory is an overlay, that waits for a change of it, which waits for the disk.
    async fn close_listings(&self, keys: &[InodeKey], engine: &Engine) {
        let find = |key| self.shard(key).files.get(key).cloned();
        let directories: Vec<Arc<Inode>> = keys.iter().filter_map(find).collect();
        if !directories.is_empty() {
            let close = |directory: Arc<Inode>| directory.close_idle_streams(IDLE_TICKS);
            engine.data(move || directories.into_iter().for_each(close)).await;
        }
    }
}

impl Inode {
    /// Whether a descriptor for writing is open that was not used for long.
    fn is_unwritten(&self) -> bool {
        self.file().is_ok_and(|file| file.writer_idle_ticks() > WRITABLE_IDLE_TICKS)
    }

    /// Flushes a file and gives up its descriptors for writing, unless it is written meanwhile: a
    /// file that is open for writing can be neither executed nor leased by local programs, nor
    /// delegated. What fails is tried again as if the file had been written just now. Waits for the
    /// disk.
    async fn give_up_writers(
        self: &Arc<Self>,
        engine: &Engine,
        is_held_for_writing: impl Fn(&Inode) -> bool + Send + 'static,
    ) {
        // A change at work uses the descriptor.
        let is_unchanging = self.lock.try_exclusive().is_some();
        if !is_unchanging || !self.is_unwritten() {
            return;
        }
        let is_flushed = !self.is_dirty() || self.flush_before_leaving(engine).await;
        let file = Arc::clone(self);
        let give_up = move || file.give_up_clean_writers(is_held_for_writing);
        let is_done = is_flushed && engine.data(give_up).await;
        if !is_done {
            self.put_off_closing();
        }
    }

    /// Has the kernel renew the ctime, by setting the atime that the object has, and the mtime that
    /// is shown. Waits for no change at work, which may renew it as well. A server without
    /// privileges may do it for its own user's objects alone.
    fn renew_ctime(&self) {
        let Some(guard) = self.lock.try_exclusive() else { return };
        let Ok(live) = self.live_attributes() else { return };
        let change = Change::begin(guard, live, Lengths::KEPT);
        if !self.lock.begin_renewal() {
            return;
        }
        change.system_calls().note();
        let timespec = |Timestamp { seconds, nanoseconds }| Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds.into(),
        };
        let kept = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let shown = change.before().mtime;
        let times = Timestamps {
            last_access: timespec(live.atime),
            last_modification: if shown == live.mtime { kept } else { timespec(shown) },
        };
        if let Err(error) = utimensat(CWD, proc_path(self.fd()), &times, AtFlags::empty()) {
            tracing::debug!(%error, fileid = live.fileid, "cannot renew a ctime");
        }
        change.end_refused(self.live_attributes().ok());
    }

    /// Has it stay open for writing as if it had been written just now.
    fn put_off_closing(&self) {
        if let Ok(file) = self.file() {
            file.note_write();
        }
    }

    /// Gives up the descriptors for writing if nothing is to be flushed; whether it did. As the
    /// server's user; may wait for the disk.
    fn give_up_clean_writers(&self, is_held_for_writing: impl Fn(&Inode) -> bool) -> bool {
        let Ok(data) = self.file() else { return false };
        // A WRITE, from taking the descriptor to counting its change, is within a change of the
        // object. So what was written through the descriptor is counted, and was flushed with its
        // errors reported: one opened later need not get them from the kernel.
        let Some(guard) = self.lock.try_exclusive() else { return false };
        if self.is_dirty() || !self.is_unwritten() || is_held_for_writing(self) {
            return false;
        }
        // Without privileges the server may have lost the permission, as by a chmod of a client
        // that goes on writing. No answer of the kernel is certain but that of opening it, under
        // the lock, for a SETATTR that takes the permission away expects a descriptor that is open
        // to stay so.
        let Ok(another) = self.reopen(WRITER_FLAGS) else { return false };
        data.give_up_writers();
        self.close_window();
        drop(guard);
        drop(another);
        true
    }

    /// Closes descriptors that were given up, unless READs or the window use them still: the
    /// threads of READs must not close them, for the last close of a file may wait for the disk.
    async fn close_given_up(self: &Arc<Self>, engine: &Engine) {
        let Ok(data) = self.file() else { return };
        let unused = data.descriptors().take_unused();
        if unused.is_empty() {
            return;
        }
        let (file, number) = (Arc::clone(self), unused.len());
        let close = move || {
            drop(unused);
            if let Ok(data) = file.file() {
                data.descriptors().note_closed(number);
                file.count_descriptors();
            }
        };
        engine.data(close).await;
    }
}

/// Whether it was not used for long. To be called under the shard's lock.
fn is_idle(file: &Arc<Inode>, now: u64) -> bool {
    let idle = now.saturating_sub(file.used_at_tick.load(Ordering::Relaxed));
    let is_retired = file.root.is_retired();
    let is_short = file.is_writable() || is_retired;
    let ticks_max = if is_short { WRITABLE_IDLE_TICKS } else { IDLE_TICKS };
    // If its flush fails, at once would be in each second.
    let is_at_once = is_retired && file.failures() == 0;
    (idle > ticks_max || is_at_once) && is_unused(file)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use io::Mtime;
    use tokio::sync::Semaphore;

    use super::super::DirectoryStream;
    use super::super::two_devices::{TestExport, engine};
    use super::*;

    #[tokio::test]
    async fn slow_flush_does_not_stop_the_tick_the_place_check_or_another_device() {
        let files = Arc::new(InodeCache::new(1000));
        let Some([slow, quick]) = TestExport::on_two_devices(&files) else { return };
        // The only data thread of the device waits, as in a flush on a disk that does not answer.
        let engine = engine(1);
        let release = slow.block_data_thread(&engine);
        files.find(&slow.file).unwrap().note_change();
        let directory = files.find(&quick.directory).unwrap();

        let mut flushes = Vec::new();
        for _ in 0..=2 * IDLE_TICKS {
            for idle in files.tick() {
                if idle.claim.device == slow.device() {
                    let (files, engine) = (Arc::clone(&files), Arc::clone(&engine));
                    let give_up = async move { files.give_up(idle, &engine, |_| false).await };
                    flushes.push(tokio::spawn(give_up));
                    tokio::task::yield_now().await;
                } else {
                    files.give_up(idle, &engine, |_| false).await;
                }
            }
        }
        assert_eq!(flushes.len(), 1, "one list per device at a time");
        assert!(!flushes[0].is_finished());
        assert!(files.find(&quick.file).is_none(), "the other device's idle file is closed");
        directory.placed_at_secs.store(u64::MAX, Ordering::Relaxed);
        assert!(files.place_is_due(&directory));

        drop(release);
        flushes.remove(0).await.unwrap();
        assert!(files.find(&slow.file).is_none());
        assert!(files.find(&slow.directory).is_none());
    }

    #[tokio::test]
    async fn ctime_of_two_changes_is_renewed_at_the_next_tick() {
        let (files, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&files, 1, &std::env::temp_dir());
        let file = files.find(&export.file).unwrap();
        let live = file.live_attributes().unwrap();
        {
            let _another = Share::new(&engine.device(export.device()), 7).enter();
            file.lock.attributes(live);
        }
        // Without a system call it leaves the kernel's ctime, as one in the same step of the clock.
        let change = Change::begin(file.lock.try_exclusive().unwrap(), live, Lengths::ANY);
        let shown = change.end(file.fd(), Mtime::Renewed).after.unwrap();
        assert!(shown.ctime > live.ctime && file.lock.is_behind());
        std::thread::sleep(std::time::Duration::from_millis(50));
        for idle in files.tick() {
            files.give_up(idle, &engine, |_| false).await;
        }
        let renewed = file.live_attributes().unwrap();
        assert!(renewed.ctime > shown.ctime && !file.lock.is_behind());
        assert_eq!((renewed.mtime, renewed.atime), (shown.mtime, live.atime));
        assert_eq!(file.attributes().unwrap().ctime, renewed.ctime);
    }

    #[tokio::test]
    async fn failed_flush_of_an_idle_file_is_not_repeated_each_second() {
        let (files, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&files, 1, &std::env::temp_dir());
        let file = files.find(&export.file).unwrap();
        let _writer = file.fail_flushes();
        let state = Arc::clone(&file.state);
        drop(file);
        state.note_change();
        for _ in 0..2 * (WRITABLE_IDLE_TICKS + 1) {
            for idle in files.tick() {
                files.give_up(idle, &engine, |_| false).await;
            }
        }
        assert_eq!(state.failures(), 2);
        assert!(state.is_dirty());
    }

    #[test]
    fn object_of_a_removed_export_is_idle_at_once_unless_its_flush_has_just_failed() {
        let files = InodeCache::new(1000);
        let export = TestExport::in_directory(&files, 1, &std::env::temp_dir());
        let file = files.take(&export.file).unwrap();
        assert!(!is_idle(&file, 0));
        file.root.retire();
        assert!(is_idle(&file, 0));
        file.note_failure();
        files.note_use(&file);
        assert!(!is_idle(&file, WRITABLE_IDLE_TICKS));
        assert!(is_idle(&file, WRITABLE_IDLE_TICKS + 1));
    }

    /// Where the directory is an overlay, to close a listing can wait for the disk.
    #[tokio::test]
    async fn listing_that_no_call_continues_is_closed_behind_the_tick_though_its_directory_is_used()
    {
        let (files, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&files, 1, &std::env::temp_dir());
        let directory = files.find(&export.directory).unwrap();
        let changed = directory.live_attributes().unwrap().ctime;
        let (listings, places) = (|| directory.streams().unwrap(), Arc::new(Semaphore::new(1)));
        let stream = DirectoryStream::at(directory.open_stream().unwrap(), 0, changed).unwrap();
        listings().put_back(stream, &places);
        let idle_after = |ticks| (0..ticks).fold(Vec::new(), |_, _| files.tick());
        let give_up = async |idle: Vec<IdleInodes>| {
            for idle in idle {
                files.give_up(idle, &engine, |_| false).await;
            }
        };
        give_up(idle_after(IDLE_TICKS)).await;
        assert_eq!(places.available_permits(), 0);
        let idle = idle_after(1);
        assert_eq!(places.available_permits(), 0, "the tick waits for no close");
        let continued = listings().take(0, changed).expect("it waits for its next call");
        listings().put_back(continued, &places);
        give_up(idle).await;
        assert_eq!(places.available_permits(), 0, "it was continued meanwhile");
        give_up(idle_after(IDLE_TICKS + 1)).await;
        assert_eq!(places.available_permits(), 1);
        assert!(files.find(&export.directory).is_some());
    }

    #[tokio::test]
    async fn file_used_since_the_tick_stays_open() {
        let (files, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&files, 1, &std::env::temp_dir());
        let idle: Vec<_> = (0..=IDLE_TICKS).flat_map(|_| files.tick()).collect();
        assert_eq!(idle.len(), 1);
        assert!(files.find(&export.file).is_some());
        for idle in idle {
            files.give_up(idle, &engine, |_| false).await;
        }
        assert!(files.find(&export.file).is_some());
        assert!(files.find(&export.directory).is_none());
    }

    #[tokio::test]
    async fn descriptor_for_writing_is_closed_once_it_is_idle_and_nothing_is_unflushed() {
        let (files, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&files, 1, &std::env::temp_dir());
        let file = files.find(&export.file).unwrap();
        let data = file.file().unwrap();
        file.open_for_writing().unwrap();
        assert_eq!(file.descriptors_open(), 2);
        let second = async |is_held_for_writing: bool| {
            files.find(&export.file).unwrap();
            for idle in files.tick() {
                files.give_up(idle, &engine, move |_| is_held_for_writing).await;
            }
            file.is_writable()
        };
        for _ in 0..WRITABLE_IDLE_TICKS {
            assert!(second(false).await);
        }
        file.note_change();
        assert!(second(true).await, "a client holds it");
        assert!(file.is_dirty());
        let written = file.lock.try_exclusive().unwrap();
        assert!(second(false).await, "a WRITE is at work");
        file.note_change();
        drop(written);
        data.note_write();
        assert!(second(false).await, "it was just written");
        assert!(file.is_dirty());
        for _ in 0..WRITABLE_IDLE_TICKS {
            second(false).await;
        }
        assert!(!file.is_writable());
        assert!(!file.is_dirty());
        assert!(data.state.oldest_writer().is_none());
        second(false).await;
        assert_eq!(file.descriptors_open(), 1);
    }

    #[tokio::test]
    async fn descriptor_for_writing_is_not_closed_by_the_last_read_that_uses_it() {
        let (files, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&files, 1, &std::env::temp_dir());
        let file = files.find(&export.file).unwrap();
        file.open_for_writing().unwrap();
        let reader = file.file().unwrap().any_reader().unwrap();
        let seconds = async |count: u64| {
            for _ in 0..count {
                files.find(&export.file).unwrap();
                for idle in files.tick() {
                    files.give_up(idle, &engine, |_| false).await;
                }
            }
        };
        seconds(WRITABLE_IDLE_TICKS + 2).await;
        assert!(!file.is_writable());
        assert_eq!(Arc::strong_count(&reader), 2, "the READ closes it");
        let next = file.open_for_writing().unwrap();
        let flushed_through = file.descriptor_for_flush().unwrap();
        assert!(Arc::ptr_eq(&flushed_through, &next), "not the one that was given up");
        let given_up = Arc::downgrade(&reader);
        drop(reader);
        assert_eq!(given_up.strong_count(), 1);
        seconds(1).await;
        assert_eq!(given_up.strong_count(), 0);
    }

    #[tokio::test]
    async fn file_whose_flush_fails_stays_open_for_writing_and_is_not_flushed_each_second() {
        let (files, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&files, 1, &std::env::temp_dir());
        let file = files.find(&export.file).unwrap();
        let _writer = file.fail_flushes();
        file.note_change();
        for _ in 0..2 * (WRITABLE_IDLE_TICKS + 1) {
            files.find(&export.file).unwrap();
            for idle in files.tick() {
                files.give_up(idle, &engine, |_| false).await;
            }
        }
        assert_eq!(file.failures(), 2);
        assert!(file.is_writable() && file.is_dirty());
    }

    #[tokio::test]
    async fn file_that_is_opened_for_writing_during_its_flush_stays_so() {
        let (files, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&files, 1, &std::env::temp_dir());
        let file = files.find(&export.file).unwrap();
        file.open_for_writing().unwrap();
        file.note_change();
        let is_opened = Arc::new(AtomicBool::new(false));
        for _ in 0..=WRITABLE_IDLE_TICKS {
            files.find(&export.file).unwrap();
            for idle in files.tick() {
                // The second time that is asked is under the lock.
                let is_opened = Arc::clone(&is_opened);
                let is_held = move |_: &Inode| is_opened.swap(true, Ordering::SeqCst);
                files.give_up(idle, &engine, is_held).await;
            }
        }
        assert!(is_opened.load(Ordering::SeqCst) && !file.is_dirty());
        assert!(file.is_writable());
    }
}
