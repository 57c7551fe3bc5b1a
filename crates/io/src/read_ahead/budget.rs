//! The memory for chunks, and who has how much of it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::ClientId;
use crate::streams::CHUNK_BYTES;

/// The memory that all read-ahead of a process may hold, in chunks. One client has no more than
/// three quarters of it: others find room, whatever it keeps.
#[derive(Clone)]
pub struct ReadAheadBudget(Arc<Inner>);

struct Inner {
    chunks_max: usize,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    all: usize,
    /// Of the clients that have any.
    by_client: HashMap<ClientId, usize>,
}

/// Room for one chunk, which is given back when this is dropped.
pub(super) struct Permit {
    budget: ReadAheadBudget,
    client: Mutex<ClientId>,
}

impl ReadAheadBudget {
    /// Room for as many whole chunks as `bytes` hold.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let chunk_bytes = usize::try_from(CHUNK_BYTES).expect("a chunk is a MiB");
        Self(Arc::new(Inner { chunks_max: bytes / chunk_bytes, counts: Mutex::default() }))
    }

    /// Room for a chunk that a client has begun, if there is any for it.
    pub(super) fn take(&self, client: ClientId) -> Option<Permit> {
        let chunks_max = self.0.chunks_max;
        let client_max = chunks_max - chunks_max / 4;
        let mut counts = self.counts();
        let own = counts.by_client.get(&client).copied().unwrap_or(0);
        if counts.all >= chunks_max || own >= client_max {
            return None;
        }
        counts.all += 1;
        counts.add(client);
        Some(Permit { budget: self.clone(), client: Mutex::new(client) })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn add(&mut self, client: ClientId) {
        *self.by_client.entry(client).or_default() += 1;
    }

    fn remove(&mut self, client: ClientId) {
        if let Some(count) = self.by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}

impl Permit {
    /// Counts it to another client from now on, also if that has more than its part then: it gets
    /// no other until it has less.
    pub(super) fn count_to(&self, client: ClientId) {
        let mut own = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts = self.budget.counts();
        counts.remove(*own);
        counts.add(client);
        *own = client;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let client = *self.client.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut counts = self.budget.counts();
        counts.all -= 1;
        counts.remove(client);
    }
}

impl fmt::Debug for ReadAheadBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.0.chunks_max - self.counts().all;
        f.debug_struct("ReadAheadBudget").field("free", &free).finish_non_exhaustive()
    }
}
