//! How many threads may stay with a connection.

use std::sync::Arc;

use io::LaneKind;
use tokio::sync::Semaphore;

/// The threads of all devices that may stay with a connection, by their lanes: a quarter of those of one
/// device.
pub(crate) struct Stays {
    data: Arc<Semaphore>,
    metadata: Arc<Semaphore>,
}

impl Stays {
    /// For lanes with so many threads.
    pub(crate) fn new(data_threads: usize, metadata_threads: usize) -> Self {
        let quarter = |threads: usize| Arc::new(Semaphore::new(threads / 4));
        Self { data: quarter(data_threads), metadata: quarter(metadata_threads) }
    }

    /// Those of a lane.
    pub(crate) fn of(&self, lane: LaneKind) -> &Arc<Semaphore> {
        match lane {
            LaneKind::Data => &self.data,
            LaneKind::Metadata => &self.metadata,
        }
    }
}
