//! Giving up objects that were not used for a while.
//!
//! The tick advances the clock and lists what is idle. It calls nothing that can wait for a disk, so
//! no disk stops it. Flushes and closes run in tasks of their own, one per device at a time: a slow
//! disk delays only the objects that lie on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use io::Engine;

use super::busy_devices::{Claim, Device};
use super::table::lock;
use super::{Inode, InodeCache, InodeKey};

/// Ticks after which an unused object that can be written is given up. A tick is a second.
const WRITABLE_IDLE_TICKS: u64 = 5;
/// Ticks after which any unused object is given up.
const IDLE_TICKS: u64 = 30;

/// Idle objects of one device. There is one per device at a time.
pub(crate) struct IdleInodes {
    /// At most as many as the table has objects.
    keys: Vec<InodeKey>,
    claim: Claim,
}

impl InodeCache {
    /// Advances the clock, drops chunks that were not used or are outdated, and returns what is idle
    /// on each device whose last such list was worked off. To be called once a second; does not
    /// block.
    #[must_use]
    pub(crate) fn tick(&self) -> Vec<IdleInodes> {
        let now = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        self.is_closing_ahead.store(false, Ordering::SeqCst);
        let mut idle: HashMap<Device, Vec<InodeKey>> = HashMap::new();
        for shard in &self.shards {
            for file in lock(shard).files.values() {
                if let Ok(data) = file.file() {
                    data.state.read_ahead.trim(Instant::now());
                    data.state.prefetch.trim(Instant::now());
                }
                if is_idle(file, now) {
                    idle.entry(file.root.device()).or_default().push(file.key());
                }
            }
        }
        let claimed = |(device, keys)| Some(IdleInodes { keys, claim: self.busy.claim(device)? });
        idle.into_iter().filter_map(claimed).collect()
    }

    /// Flushes and closes what [`Self::tick`] found idle, unless it was used since. Waits for the
    /// disk.
    pub(crate) async fn give_up(&self, idle: IdleInodes, engine: &Engine) {
        self.close_idle(&idle.keys, engine).await;
        for key in &idle.keys {
            let file = self.shard(key).files.get(key).cloned();
            if let Some(file) = file.filter(|file| file.is_dirty())
                && !file.flush_before_leaving(engine).await
            {
                // Not again in the next second: with each failure clients send their data again.
                self.note_use(&file);
            }
        }
        self.close_idle(&idle.keys, engine).await;
        drop(idle.claim);
    }

    /// Closes those of the objects that are idle still and have nothing to be flushed. The last close
    /// of a file may wait for the disk, and so runs on a data thread.
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
}

/// Whether it was not used for long. Under the shard's lock no new reference can be taken, so an
/// unused one stays unused.
fn is_idle(file: &Arc<Inode>, now: u64) -> bool {
    let idle = now.saturating_sub(file.used_at_tick.load(Ordering::Relaxed));
    let is_retired = file.root.is_retired();
    let is_short = file.is_writable() || is_retired;
    let ticks_max = if is_short { WRITABLE_IDLE_TICKS } else { IDLE_TICKS };
    // If its flush fails, at once would be in each second.
    let is_at_once = is_retired && file.failures() == 0;
    (idle > ticks_max || is_at_once) && Arc::strong_count(file) == 1
}

#[cfg(test)]
mod tests {
    use super::super::two_devices::{TestExport, block_data_thread, engine};
    use super::*;

    #[tokio::test]
    async fn slow_flush_does_not_stop_the_tick_the_place_check_or_another_device() {
        let files = Arc::new(InodeCache::new(1000));
        let Some([slow, quick]) = TestExport::on_two_devices(&files) else { return };
        // The only data thread of this engine waits, as in a flush on a disk that does not answer.
        let (stuck_engine, engine) = (engine(1), engine(1));
        let release = block_data_thread(&stuck_engine);
        files.find(&slow.file).unwrap().note_change();
        let directory = files.find(&quick.directory).unwrap();

        let mut flushes = Vec::new();
        for _ in 0..=2 * IDLE_TICKS {
            for idle in files.tick() {
                if idle.claim.device == slow.device() {
                    let (files, engine) = (Arc::clone(&files), Arc::clone(&stuck_engine));
                    let give_up = async move { files.give_up(idle, &engine).await };
                    flushes.push(tokio::spawn(give_up));
                    tokio::task::yield_now().await;
                } else {
                    files.give_up(idle, &engine).await;
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
                files.give_up(idle, &engine).await;
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

    #[tokio::test]
    async fn file_used_since_the_tick_stays_open() {
        let (files, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&files, 1, &std::env::temp_dir());
        let idle: Vec<_> = (0..=IDLE_TICKS).flat_map(|_| files.tick()).collect();
        assert_eq!(idle.len(), 1);
        assert!(files.find(&export.file).is_some());
        for idle in idle {
            files.give_up(idle, &engine).await;
        }
        assert!(files.find(&export.file).is_some());
        assert!(files.find(&export.directory).is_none());
    }
}
