//! Room for the descriptors that objects are about to be given.
//!
//! Closing an object may wait for the disk, and so is not for the network threads. They find room
//! all the same: when little is left, some objects are closed on data threads, many at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use io::{DeviceNumber, Engine, Identity};

use super::descriptor_count::Counted;
use super::table::{SHARDS, VICTIM_SEARCH_MAX, Victim, by_device, lock, shard_of};
use super::{InodeCache, InodeKey};

/// Descriptors that are closed before they are needed, at most.
const AHEAD_MAX: usize = 64;
/// And at most this part of all.
const AHEAD_PART: usize = 8;

/// Notes the end of closing ahead when it is dropped.
struct ClosingAhead(Arc<AtomicBool>);

impl Drop for ClosingAhead {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl InodeCache {
    /// Room for a descriptor of an object, if there is any. Waits for nothing.
    pub(crate) fn room(&self, key: &InodeKey, engine: &Engine) -> Option<Counted> {
        if self.shard(key).files.len() >= self.shard_files_max {
            return None;
        }
        let room = self.descriptors.room();
        let ahead = AHEAD_MAX.min(self.descriptors.max() / AHEAD_PART);
        if self.descriptors.left() < ahead {
            self.close_ahead(ahead, engine);
        }
        room
    }

    /// Makes room for a descriptor of an object on `device`. Where all objects have unflushed data,
    /// it waits for flushes of those on the same device. Those on others may not be waited for;
    /// where there are only such, and where all are in use, the table exceeds its bound. May block.
    pub(crate) async fn make_room(
        &self,
        key: &InodeKey,
        device: DeviceNumber,
        engine: &Engine,
    ) -> Counted {
        let mut flushes = true;
        for _ in 0..VICTIM_SEARCH_MAX {
            if let Some(room) = self.room(key, engine) {
                return room;
            }
            match self.victim_near(key, device, flushes) {
                // The thread may be one of the device that the call began with.
                Victim::Removed(file) if file.root.device() == device => {
                    let closed = engine.metadata(Identity::Server, move || drop(file)).await;
                    closed.expect("a thread can always return to the server's identity");
                }
                // Closed soon, or as soon as that device answers.
                Victim::Removed(file) => {
                    drop(self.close(engine, vec![file]));
                    break;
                }
                Victim::Dirty(file) => flushes = self.flush_victim(&file, engine).await,
                Victim::None => break,
            }
        }
        self.descriptors.one_more()
    }

    /// Room for a descriptor, whether there is any or not.
    #[cfg(test)]
    pub(crate) fn any_room(&self) -> Counted {
        self.descriptors.one_more()
    }

    /// An object that is to make room for a call on `device`, of the part of the table that `key`
    /// belongs to if there is one; a dirty one of that device alone, and if it may be flushed. None
    /// of another device that has too many to be closed: it would free nothing for the call.
    fn victim_near(&self, key: &InodeKey, device: DeviceNumber, flushes: bool) -> Victim {
        let full = self.closings.full();
        let victims = (0..SHARDS).map(|step| {
            let shard = (shard_of(key) + step) % SHARDS;
            lock(&self.shards[shard]).victim(Some(device), flushes, &full)
        });
        victims.into_iter().find(|victim| !matches!(victim, Victim::None)).unwrap_or(Victim::None)
    }

    /// Has about so many objects closed that need no flush, on data threads of their devices,
    /// unless that is being done or there was none in this second.
    fn close_ahead(&self, wanted: usize, engine: &Engine) {
        if self.is_closing_ahead.swap(true, Ordering::SeqCst) {
            return;
        }
        let full = self.closings.full();
        let mut leaving = Vec::with_capacity(wanted);
        for shard in &self.shards {
            let victim = || match lock(shard).victim(None, false, &full) {
                Victim::Removed(file) => Some(file),
                Victim::Dirty(_) | Victim::None => None,
            };
            leaving.extend(std::iter::from_fn(victim).take(wanted.div_ceil(SHARDS)));
        }
        if leaving.is_empty() {
            // None until the next tick.
            return;
        }
        let at_work = Arc::new(ClosingAhead(Arc::clone(&self.is_closing_ahead)));
        for (device, leaving) in by_device(leaving) {
            self.leave_to_device(engine, device, leaving, Arc::clone(&at_work));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;
    use std::time::{Duration, Instant};

    use io::Share;
    use rustix::fs::{CWD, FileType, Mode, openat};

    use super::super::closings::{CLOSINGS_MAX, Closing};
    use super::super::two_devices::{TestExport, engine};
    use super::*;
    use crate::export::{ExportRoot, FileSystems};
    use crate::fs::PATH_ONLY;

    /// An export with files, and a table for some of them.
    struct Files {
        dir: tempfile::TempDir,
        root: Arc<ExportRoot>,
        cache: InodeCache,
        engine: Arc<Engine>,
        keys: Vec<InodeKey>,
    }

    impl Files {
        fn new(number: usize, descriptors_max: usize) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (systems, counters) = (FileSystems::default(), Arc::default());
            let root = ExportRoot::open_path(1, dir.path(), &systems, counters).unwrap();
            let (root, cache) = (Arc::new(root), InodeCache::new(descriptors_max));
            let mut files = Self { dir, root, cache, engine: engine(1), keys: Vec::new() };
            let key = |number| {
                let path = files.path(number);
                std::fs::write(&path, "data").unwrap();
                let file = std::fs::File::open(path).unwrap();
                InodeKey::new(&files.root, files.root.identify(file.as_fd()).unwrap())
            };
            files.keys = (0..number).map(key).collect();
            files
        }

        fn path(&self, number: usize) -> std::path::PathBuf {
            self.dir.path().join(number.to_string())
        }

        /// Finds a file, or else opens it; returns whether it was open.
        async fn visit(&self, number: usize) -> bool {
            let key = &self.keys[number];
            if self.cache.find(key).is_some() {
                return true;
            }
            let room = self.cache.make_room(key, self.root.device(), &self.engine).await;
            self.add(&self.path(number), room);
            false
        }

        fn add(&self, path: &Path, room: Counted) -> InodeKey {
            let fd = openat(CWD, path, PATH_ONLY, Mode::empty()).unwrap();
            let handle = self.root.identify(fd.as_fd()).unwrap();
            let root = Arc::clone(&self.root);
            self.cache.add(root, handle, FileType::RegularFile, (fd, room)).key()
        }

        /// Opens a file with data that no flush stores while what this returns is held.
        fn add_unflushable(&self, number: usize) -> Arc<OwnedFd> {
            let key = self.add(&self.path(number), self.cache.any_room());
            let inode = self.cache.find(&key).unwrap();
            inode.note_change();
            inode.fail_flushes()
        }

        /// Descriptors of the table's objects that are open now.
        fn open(&self) -> usize {
            let shards = self.cache.shards.iter().map(|shard| {
                let number = |file: &Arc<super::super::Inode>| file.descriptors_open();
                lock(shard).files.values().map(number).sum::<usize>()
            });
            shards.sum()
        }
    }

    #[tokio::test]
    async fn objects_that_have_one_descriptor_fill_the_bound() {
        let files = Files::new(200, 100);
        for number in 0..200 {
            files.visit(number).await;
            assert!(files.open() <= 100, "{} at {number}", files.open());
        }
        assert!(files.cache.len() > 70, "{}", files.cache.len());
        assert!(files.cache.len() < 100, "some were closed ahead: {}", files.cache.len());
    }

    #[tokio::test]
    async fn data_descriptors_count_and_are_given_up_with_their_object() {
        let files = Files::new(60, 40);
        for number in 0..60 {
            files.visit(number).await;
            let Some(file) = files.cache.find(&files.keys[number]) else { continue };
            let room = files.cache.make_room(&file.key(), files.root.device(), &files.engine).await;
            file.open_for_flush().unwrap();
            drop(room);
            assert_eq!(file.descriptors_open(), 2);
            assert!(files.open() <= 40, "{} at {number}", files.open());
        }
        let began = Instant::now();
        for key in &files.keys {
            drop(files.cache.take(key));
        }
        while files.cache.descriptors.left() < 40 {
            assert!(began.elapsed() < Duration::from_secs(20), "closed ones count");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// As in a COMPOUND that comes to another device than that which it began with.
    #[tokio::test]
    async fn no_thread_closes_what_is_on_another_device() {
        let (cache, engine) = (Arc::new(InodeCache::new(4)), engine(1));
        let Some([slow, quick]) = TestExport::on_two_devices(&cache) else { return };
        let _used = [&quick.file, &quick.directory].map(|key| cache.find(key).unwrap());
        let [slow_share, quick_share] =
            [&slow, &quick].map(|export| Share::new(&engine.device(export.device()), 0));
        let (begins, begun) = std::sync::mpsc::channel();
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let stall = async move {
            begins.send(()).unwrap();
            assert!(blocked.recv().is_err());
        };
        slow_share.begin_metadata(stall).await;
        begun.recv().unwrap();

        let (sender, mut made) = tokio::sync::oneshot::channel();
        let (key, device) = (slow.file, slow.device());
        let (within, on) = (Arc::clone(&engine), Arc::clone(&cache));
        let task = async move {
            let room = Box::pin(on.make_room(&key, device, &within));
            drop(sender.send(slow_share.run(room).await));
        };
        quick_share.begin_metadata(task).await;
        let job = quick_share.run(engine.metadata(Identity::Server, || ()));
        let free = tokio::time::timeout(Duration::from_secs(20), job).await;
        free.expect("the thread of the other device does not wait").unwrap();
        assert!(made.try_recv().is_err(), "the object is closed by a thread of its device");
        drop(release);
        drop(made.await.unwrap());
        assert_eq!(cache.len(), 3);
    }

    /// As while a disk hangs whose names are in memory.
    #[tokio::test]
    async fn calls_give_up_few_objects_of_another_device_that_does_not_answer() {
        let (cache, engine) = (InodeCache::new(1), engine(1));
        let Some([slow, quick]) = TestExport::on_two_devices(&cache) else { return };
        let _used = [&quick.file, &quick.directory].map(|key| cache.find(key).unwrap());
        let root = Arc::clone(&cache.find(&slow.file).unwrap().root);
        let released = slow.block_data_thread(&engine);
        for _ in 0..5 * CLOSINGS_MAX {
            drop(cache.make_room(&quick.file, quick.device(), &engine).await);
            slow.reopen(&cache, &root);
        }
        let closing = || cache.closings.of(slow.device()).load(Ordering::SeqCst);
        assert!(cache.left_len() < CLOSINGS_MAX, "{}", cache.left_len());
        assert_eq!(closing(), CLOSINGS_MAX);
        cache.shrink_clean(&engine);
        cache.shrink(quick.device(), &engine).await;
        assert_eq!(closing(), CLOSINGS_MAX);

        drop(released);
        let began = Instant::now();
        while closing() > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "they are never closed");
            cache.close_left(&engine);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(cache.make_room(&quick.file, quick.device(), &engine).await);
        assert!(cache.find(&slow.file).is_none(), "it makes room again");
    }

    #[tokio::test]
    async fn a_device_that_does_not_answer_ends_closing_ahead_for_itself_only() {
        let (cache, engine) = (InodeCache::new(1), engine(1));
        let Some([slow, quick]) = TestExport::on_two_devices(&cache) else { return };
        let count = cache.closings.of(slow.device());
        let _stuck: Vec<_> = (0..CLOSINGS_MAX).map(|_| Closing::new(&count)).collect();
        let _used = [&slow.file, &quick.file].map(|key| cache.find(key).unwrap());
        [&slow.file, &quick.file].into_iter().for_each(|key| cache.forget(key));
        // Twice, for they may be in one part of the table.
        for _ in 0..2 {
            cache.is_closing_ahead.store(false, Ordering::SeqCst);
            cache.close_ahead(2, &engine);
        }
        assert!(cache.find(&quick.directory).is_none());
        assert!(cache.find(&slow.directory).is_some());
    }

    #[tokio::test]
    async fn objects_in_use_are_not_closed_and_exceed_the_bound() {
        let files = Files::new(30, 20);
        let mut used = Vec::new();
        for number in 0..30 {
            files.visit(number).await;
            used.extend(files.cache.find(&files.keys[number]));
        }
        assert_eq!((used.len(), files.cache.len()), (30, 30));
        assert!(files.cache.room(&files.keys[0], &files.engine).is_none());
        drop(used);
        let key = &files.keys[0];
        drop(files.cache.make_room(key, files.root.device(), &files.engine).await);
        assert!(files.cache.len() < 20, "{}", files.cache.len());
    }

    #[tokio::test]
    async fn a_search_for_room_flushes_nothing_after_a_flush_that_has_failed() {
        let files = Files::new(3, 1);
        let _writers = [files.add_unflushable(0), files.add_unflushable(1)];
        let (key, device) = (&files.keys[2], files.root.device());
        drop(files.cache.make_room(key, device, &files.engine).await);
        assert_eq!(files.cache.failed_flushes(), 1);
        files.cache.shrink(device, &files.engine).await;
        assert_eq!(files.cache.failed_flushes(), 2);
        let is_found = |number: usize| files.cache.find(&files.keys[number]).is_some();
        assert!(is_found(0) && is_found(1), "they stay for a later flush");
    }

    /// As while calls of other devices have many objects of this one closed.
    #[tokio::test]
    async fn a_search_whose_flush_has_failed_still_closes_clean_objects_of_its_device() {
        let files = Files::new(40, 1);
        let part = |number: &usize| shard_of(&files.keys[*number]);
        let [dirty, clean] =
            [(0..40).min_by_key(part), (0..40).max_by_key(part)].map(Option::unwrap);
        let device = files.root.device();
        let count = files.cache.closings.of(device);
        let _closing: Vec<_> = (0..CLOSINGS_MAX).map(|_| Closing::new(&count)).collect();
        let _writer = files.add_unflushable(dirty);
        let open_clean = || files.add(&files.path(clean), files.cache.any_room());

        let key = open_clean();
        // The search begins with the part of the dirty one.
        drop(files.cache.make_room(&files.keys[dirty], device, &files.engine).await);
        assert_eq!(files.cache.failed_flushes(), 1);
        assert!(files.cache.find(&key).is_none());

        open_clean();
        files.cache.shrink(device, &files.engine).await;
        assert_eq!(files.cache.failed_flushes(), 2);
        assert!(files.cache.find(&key).is_none());
    }

    #[tokio::test]
    async fn most_of_a_few_too_many_objects_that_are_used_in_turn_are_found() {
        let files = Files::new(660, 640);
        let mut found = 0;
        for round in 0..4 {
            for number in 0..660 {
                let is_found = files.visit(number).await;
                found += usize::from(is_found && round > 1);
            }
        }
        assert!(found > 660, "{found} of 1320");
    }
}
