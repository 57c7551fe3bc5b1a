//! The slots of a connection: how many calls it may have at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

/// The slots of one connection.
#[derive(Debug)]
pub struct Slots {
    slots_max: usize,
    /// A permit for each slot that is not in use. A wait for several takes those that are free
    /// before it ends, so they do not show how many calls are at work.
    free: Semaphore,
    calls: AtomicUsize,
}

/// A slot in use, until it is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    holds_call: bool,
}

impl Slots {
    /// So many, none in use.
    pub fn new(slots_max: usize) -> Arc<Self> {
        Arc::new(Self { slots_max, free: Semaphore::new(slots_max), calls: AtomicUsize::new(0) })
    }

    /// Waits for the slot of the next call, while all but `withheld` are in use.
    pub async fn take(self: &Arc<Self>, withheld: usize) -> Slot {
        let mut permits = self.acquire(1 + withheld).await;
        drop(permits.split(withheld));
        permits.forget();
        Slot { slots: Arc::clone(self), holds_call: false }
    }

    /// Calls at work: those whose slot is in use.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Resolves when no slot is in use.
    pub async fn all_free(&self) {
        drop(self.acquire(self.slots_max).await);
    }

    async fn acquire(&self, count: usize) -> SemaphorePermit<'_> {
        let count = u32::try_from(count).expect("a connection has few slots");
        self.free.acquire_many(count).await.expect("the semaphore stays open")
    }
}

impl Slot {
    /// Notes that the call has come that the slot was taken for.
    pub fn begin_call(&mut self) {
        self.holds_call = true;
        self.slots.calls.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.holds_call {
            self.slots.calls.fetch_sub(1, Ordering::Relaxed);
        }
        self.slots.free.add_permits(1);
    }
}
