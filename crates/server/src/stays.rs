//! How many threads may stay with a connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io::{ClientId, LaneKind};

/// The threads of all devices that may stay with a connection, by their lanes: a quarter of those of one
/// device.
pub(crate) struct Stays {
    data: Arc<StaySeats>,
    metadata: Arc<StaySeats>,
}

impl Stays {
    /// For lanes with so many threads.
    pub(crate) fn new(data_threads: usize, metadata_threads: usize) -> Self {
        let quarter = |threads: usize| Arc::new(StaySeats::new(threads / 4));
        Self { data: quarter(data_threads), metadata: quarter(metadata_threads) }
    }

    /// Those of a lane.
    pub(crate) fn of(&self, lane: LaneKind) -> &Arc<StaySeats> {
        match lane {
            LaneKind::Data => &self.data,
            LaneKind::Metadata => &self.metadata,
        }
    }
}

/// The stays of a lane.
pub(crate) struct StaySeats {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Of the clients that have any.
    by_client: HashMap<ClientId, usize>,
}

impl StaySeats {
    fn new(max: usize) -> Self {
        Self { max, taken: Mutex::default() }
    }

    /// One stay of a client, which may have half of them, rounded up.
    pub(crate) fn take(self: &Arc<Self>, client: ClientId) -> Option<StaySeat> {
        let mut taken = self.lock();
        let its = taken.by_client.get(&client).copied().unwrap_or(0);
        if taken.all >= self.max || its >= self.max.div_ceil(2) {
            return None;
        }
        taken.all += 1;
        taken.by_client.insert(client, its + 1);
        Some(StaySeat { seats: Arc::clone(self), client })
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
pub(crate) struct StaySeat {
    seats: Arc<StaySeats>,
    client: ClientId,
}

impl Drop for StaySeat {
    fn drop(&mut self) {
        let mut taken = self.seats.lock();
        taken.all -= 1;
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

    #[test]
    fn a_client_has_half_of_the_stays_at_most() {
        for (threads, all, of_one) in [(4, 1, 1), (8, 2, 1), (22, 5, 3), (44, 11, 6)] {
            let stays = Stays::new(threads, 1);
            let seats = stays.of(LaneKind::Data);
            let take = |client| -> Vec<_> { (0..all).map_while(|_| seats.take(client)).collect() };
            let first = take(1);
            assert_eq!(first.len(), of_one, "{threads} threads");
            let second = take(2);
            assert_eq!(second.len(), all - of_one, "{threads} threads");
            assert!(seats.take(3).is_none(), "all are taken");
            drop(second);
            assert!(seats.take(1).is_none(), "it has half of them");
            drop(first);
            assert_eq!(take(2).len(), of_one);
            assert!(seats.lock().by_client.is_empty());
        }
        assert!(Stays::new(3, 3).of(LaneKind::Metadata).take(1).is_none());
    }
}
