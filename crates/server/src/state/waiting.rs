//! The number of requests that wait for locks, and of their notices.

use std::sync::Arc;

/// Counts a request among all that wait, and among those of its client, until it and its notice are
/// gone.
#[derive(Debug, Default)]
pub(crate) struct Counted(
    #[expect(dead_code, reason = "it counts by being there")] [Arc<Waiting>; 2],
);

impl Counted {
    pub(super) fn new(all: &Arc<Waiting>, own: &Arc<Waiting>) -> Arc<Self> {
        Arc::new(Self([Arc::clone(all), Arc::clone(own)]))
    }
}

/// Shared by the requests that count together, and by their holder.
#[derive(Debug, Default)]
pub(crate) struct Waiting;

impl Waiting {
    /// The requests that share it.
    pub(super) fn count(shared: &Arc<Self>) -> usize {
        Arc::strong_count(shared) - 1
    }
}
