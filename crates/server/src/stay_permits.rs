//! Permits of threads to stay with a connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io::{ClientId, LaneKind};

/// The permits for the threads of all devices: for each lane as many as a quarter of its threads
/// for one device, and one for each processor for calls that end on the network thread mostly.
pub(crate) struct StayPermits {
    data: Arc<StaySemaphore>,
    metadata: Arc<StaySemaphore>,
    light: Arc<StaySemaphore>,
    processors: u64,
}

/// The kind of calls that a thread stays for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Purpose {
    /// The lane of the thread.
    pub(crate) lane: LaneKind,
    /// The network thread would end most of the calls itself. It serves many connections with fewer
    /// switches between threads than as many threads that stay.
    pub(crate) is_light: bool,
}

impl StayPermits {
    /// For lanes with so many threads, on so many processors.
    pub(crate) fn new(data_threads: usize, metadata_threads: usize, processors: usize) -> Self {
        let semaphore = |max| Arc::new(StaySemaphore::new(max));
        Self {
            data: semaphore(data_threads / 4),
            metadata: semaphore(metadata_threads / 4),
            light: semaphore(processors.min(data_threads / 4).min(metadata_threads / 4)),
            processors: processors as u64,
        }
    }

    /// Whether a light stay pays for a connection with `own` of the last `all` calls of the server:
    /// as long as about as many connections are busy as there are processors. Of four on two
    /// processors it made READs of 4 KiB 0.8 times as fast.
    pub(crate) fn light_one_pays(&self, own: u64, all: u64) -> bool {
        all * 2 <= own * self.processors * 3
    }

    /// The permits for a purpose.
    pub(crate) fn of(&self, purpose: Purpose) -> &Arc<StaySemaphore> {
        match purpose {
            Purpose { is_light: true, .. } => &self.light,
            Purpose { lane: LaneKind::Data, .. } => &self.data,
            Purpose { lane: LaneKind::Metadata, .. } => &self.metadata,
        }
    }
}

/// The permits for a purpose, which clients share.
pub(crate) struct StaySemaphore {
    max: usize,
    taken: Mutex<Taken>,
    /// All are taken, one client has more than half, and another with less has asked for one.
    /// Changed only with `taken` locked.
    is_one_owed: AtomicBool,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Of the clients that have any.
    by_client: HashMap<ClientId, usize>,
}

impl Taken {
    fn of(&self, client: ClientId) -> usize {
        self.by_client.get(&client).copied().unwrap_or(0)
    }
}

impl StaySemaphore {
    fn new(max: usize) -> Self {
        Self { max, taken: Mutex::default(), is_one_owed: AtomicBool::new(false) }
    }

    /// A permit for a client. If all are taken, a client with more than half of them gives up one
    /// after the other until this client has its half.
    pub(crate) fn try_acquire(self: &Arc<Self>, client: ClientId) -> Option<StayPermit> {
        let mut taken = self.lock();
        let its = taken.of(client);
        if taken.all >= self.max {
            let half = self.half();
            if its < half && taken.by_client.values().any(|its| *its > half) {
                self.is_one_owed.store(true, Ordering::Relaxed);
            }
            return None;
        }
        taken.all += 1;
        taken.by_client.insert(client, its + 1);
        Some(StayPermit { semaphore: Arc::clone(self), client })
    }

    /// Whether a stay of a client has to end, because another client has asked for one in vain and
    /// this one has more than half. One request ends one stay.
    pub(crate) fn is_owed_by(&self, client: ClientId) -> bool {
        self.is_one_owed.load(Ordering::Relaxed) && {
            let taken = self.lock();
            taken.of(client) > self.half() && self.is_one_owed.swap(false, Ordering::Relaxed)
        }
    }

    fn half(&self) -> usize {
        self.max.div_ceil(2)
    }

    /// How many are taken.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right of one thread to stay with a connection of a client, until it is dropped.
pub(crate) struct StayPermit {
    semaphore: Arc<StaySemaphore>,
    client: ClientId,
}

impl Drop for StayPermit {
    fn drop(&mut self) {
        let mut taken = self.semaphore.lock();
        taken.all -= 1;
        self.semaphore.is_one_owed.store(false, Ordering::Relaxed);
        if let Some(its) = taken.by_client.get_mut(&self.client) {
            *its -= 1;
            if *its == 0 {
                taken.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Purpose = Purpose { lane: LaneKind::Data, is_light: false };

    #[test]
    fn clients_share_the_stays_and_one_alone_has_all() {
        for (threads, all, half) in [(4, 1, 1), (8, 2, 1), (22, 5, 3), (44, 11, 6)] {
            let permits = StayPermits::new(threads, 1, 1);
            let data = permits.of(DATA);
            let mut first: Vec<_> = (0..all).map_while(|_| data.try_acquire(1)).collect();
            assert_eq!(first.len(), all, "{threads} threads");
            assert!(data.try_acquire(1).is_none() && !data.is_owed_by(1), "no other client asks");
            let mut second = Vec::new();
            while second.len() < all {
                assert!(data.try_acquire(2).is_none(), "all are taken");
                if !data.is_owed_by(1) {
                    break;
                }
                first.pop();
                second.push(data.try_acquire(2).unwrap());
            }
            assert_eq!((first.len(), second.len()), (half, all - half), "{threads} threads");
            assert!(
                data.try_acquire(1).is_none() && !data.is_owed_by(2),
                "it has no more than half"
            );
            drop(first);
            assert!(data.try_acquire(3).is_some());
            drop(second);
            assert!(data.lock().by_client.is_empty());
        }
    }

    #[test]
    fn light_calls_have_a_stay_for_each_processor_at_most() {
        for (threads, processors, light) in [(3, 2, 0), (44, 2, 2), (44, 64, 11)] {
            let permits = StayPermits::new(threads, threads, processors);
            for lane in [LaneKind::Data, LaneKind::Metadata] {
                let count = |is_light| {
                    let semaphore = permits.of(Purpose { lane, is_light });
                    std::iter::from_fn(|| semaphore.try_acquire(1)).collect::<Vec<_>>().len()
                };
                assert_eq!((count(true), count(false)), (light, threads / 4), "{threads} {lane:?}");
            }
        }
    }

    #[test]
    fn light_stay_pays_while_no_more_connections_than_processors_are_busy() {
        for (processors, busy, pays) in
            [(1, 1, true), (1, 2, false), (2, 2, true), (2, 3, true), (2, 4, false), (64, 64, true)]
        {
            let permits = StayPermits::new(44, 22, processors);
            assert_eq!(permits.light_one_pays(10, 10 * busy), pays, "{processors}, {busy}");
        }
    }

    #[test]
    fn one_refusal_ends_one_stay_of_the_client_with_most() {
        let permits = StayPermits::new(44, 1, 1);
        let data = permits.of(DATA);
        let take = |client, count| -> Vec<_> {
            (0..count).map_while(|_| data.try_acquire(client)).collect()
        };
        let mut first = take(1, 8);
        let mut second = take(2, 3);
        assert!(data.try_acquire(3).is_none());
        assert!(!data.is_owed_by(2));
        assert!(data.is_owed_by(1));
        assert!(!data.is_owed_by(1));
        assert!(data.try_acquire(3).is_none());
        second.pop();
        assert!(!data.is_owed_by(1), "one is free");
        first.truncate(6);
        drop(take(3, 3));
        second.extend(take(2, 3));
        assert!(data.try_acquire(3).is_none());
        assert!(!data.is_owed_by(1) && !data.is_owed_by(2), "no client has more than half");
    }
}
