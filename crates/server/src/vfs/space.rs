//! The space that removed files keep while clients have them open.
//!
//! The file operations do not know of clients. The owner of the opens gives a function that closes
//! such files where no client needs them, and calls that lack space call it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use io::DeviceNumber;

use crate::inode_cache::InodeKey;

/// The space that a change of an object has lacked.
#[derive(Clone)]
pub(crate) struct SpaceWanted {
    pub(crate) device: DeviceNumber,
    /// The change takes at least so many bytes.
    pub(crate) bytes_min: u64,
    pub(crate) object: InodeKey,
}

type Free = dyn Fn(SpaceWanted) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync;

/// Searches for removed files that clients have open and do not need: one on each device at a time.
/// The lock of a device is not that of its sweeps, for a search may wait for another disk, and
/// REMOVE and CLOSE wait for sweeps.
#[derive(Default)]
pub(crate) struct HeldSpace {
    free: OnceLock<Box<Free>>,
    searches: Mutex<HashMap<DeviceNumber, Arc<tokio::sync::Mutex<LastSearches>>>>,
}

/// The last searches of a device: the end of each, and the bytes that it was for.
#[derive(Default)]
struct LastSearches {
    freeing: Option<(Instant, u64)>,
    /// It has freed nothing.
    vain: Option<(Instant, u64)>,
}

impl HeldSpace {
    /// Sets the function that frees space. It returns whether the call may succeed now.
    pub(crate) fn set(
        &self,
        free: impl Fn(SpaceWanted) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync + 'static,
    ) {
        let is_first = self.free.set(Box::new(free)).is_ok();
        assert!(is_first, "there is one owner of opens");
    }

    /// Frees space for an attempt that has failed. Returns whether some came free since then.
    pub(super) async fn free(&self, wanted: SpaceWanted, since: Instant) -> bool {
        let Some(free) = self.free.get() else { return false };
        let (asked_at, bytes_min) = (Instant::now(), wanted.bytes_min);
        let mut last = self.last(wanted.device).lock_owned().await;
        let freed_meanwhile = last.freeing.filter(|(ended_at, _)| *ended_at >= since);
        let vain = last.vain.filter(|(ended_at, _)| *ended_at + HELD_SEARCH_INTERVAL > asked_at);
        let is_answered = freed_meanwhile.is_some_and(|(_, for_bytes)| bytes_min <= for_bytes)
            || vain.is_some_and(|(_, for_bytes)| bytes_min >= for_bytes);
        let has_freed = !is_answered && free(wanted).await;
        let now = Instant::now();
        if has_freed {
            last.freeing = Some((now, bytes_min));
        } else if !is_answered {
            // A second one in vain stands for all calls.
            last.vain = Some((now, if vain.is_some() { 0 } else { bytes_min }));
        }
        has_freed || freed_meanwhile.is_some()
    }

    fn last(&self, device: DeviceNumber) -> Arc<tokio::sync::Mutex<LastSearches>> {
        let mut searches = self.searches.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(searches.entry(device).or_default())
    }
}

/// After a search of a device that has freed nothing there is no other for so long, whatever the
/// calls are: each examines all files of the expired clients. A call that takes less than the one
/// of the search may find enough, so one of these is let through.
const HELD_SEARCH_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::held_files::tests::Bed;

    const DEVICE: DeviceNumber = (8, 1);

    /// The space of removed files, and the searches for it.
    struct Disk {
        object: InodeKey,
        held: Arc<HeldSpace>,
        searches: Arc<AtomicUsize>,
    }

    impl Disk {
        /// Each search finds so many bytes, in a moment.
        fn with_bytes(bytes: u64) -> Self {
            let object = Bed::new().inode.key();
            let disk = Self { object, held: Arc::default(), searches: Arc::default() };
            let searches = Arc::clone(&disk.searches);
            disk.held.set(move |wanted| {
                searches.fetch_add(1, Ordering::SeqCst);
                Box::pin(async move {
                    tokio::task::yield_now().await;
                    wanted.bytes_min <= bytes
                })
            });
            disk
        }

        async fn free_on(&self, device: DeviceNumber, bytes_min: u64) -> bool {
            let wanted = SpaceWanted { device, bytes_min, object: self.object };
            self.held.free(wanted, Instant::now()).await
        }

        async fn free(&self, bytes_min: u64) -> bool {
            self.free_on(DEVICE, bytes_min).await
        }

        fn searches(&self) -> usize {
            self.searches.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn calls_that_lack_space_at_the_same_time_share_a_search() {
        let disk = Disk::with_bytes(10);
        assert_eq!(tokio::join!(disk.free(10), disk.free(5)), (true, true));
        assert_eq!(disk.searches(), 1);
        assert!(disk.free(5).await, "the space may be used up again");
        assert_eq!(disk.searches(), 2);
        assert_eq!(tokio::join!(disk.free(5), disk.free(10)), (true, true));
        assert_eq!(disk.searches(), 4, "the second takes more than the first");
    }

    #[tokio::test]
    async fn a_call_that_waits_hears_of_all_space_that_came_free_meanwhile() {
        let disk = Disk::with_bytes(10);
        let found = tokio::join!(disk.free(10), disk.free(20), disk.free(5), disk.free(30));
        assert_eq!(found, (true, true, true, true));
        assert_eq!(disk.searches(), 2, "one that frees, one in vain");
        assert!(!disk.free(30).await, "it has failed after that");
    }

    #[tokio::test]
    async fn a_search_in_vain_stands_for_all_but_one_call_that_takes_less() {
        let disk = Disk::with_bytes(5);
        for (bytes_min, searches) in [(20, 1), (20, 1), (30, 1), (15, 2), (15, 2), (5, 2), (0, 2)] {
            assert!(!disk.free(bytes_min).await, "{bytes_min} bytes");
            assert_eq!(disk.searches(), searches, "{bytes_min} bytes");
        }
        assert!(disk.free_on((8, 2), 5).await);
        let disk = Disk::with_bytes(5);
        assert!(!disk.free(20).await);
        assert!(disk.free(5).await, "it takes less");
    }
}
