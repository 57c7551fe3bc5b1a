//! The device within whose share a task waits, where that is another than the one of its lane.

use std::cell::RefCell;
use std::sync::Arc;

use super::{Lane, LaneKind, Shared};

thread_local! {
    /// That of the innermost poll in [`noting_wait`] on this thread. What is noted outside of one
    /// is never read.
    static WITHIN: RefCell<Option<Lanes>> = const { RefCell::new(None) };
}

/// The lanes of a device.
pub(in crate::engine) struct Lanes {
    data: Arc<Shared>,
    metadata: Arc<Shared>,
}

impl Lanes {
    pub(super) fn of(self, kind: LaneKind) -> Arc<Shared> {
        match kind {
            LaneKind::Metadata => self.metadata,
            LaneKind::Data => self.data,
        }
    }
}

/// Notes that the task which is being polled waits within a share of the device of these lanes.
/// Of shares within each other, the innermost counts, which is noted first.
pub(in crate::engine) fn note_wait(data: &Lane, metadata: &Lane) {
    let lanes = || Lanes { data: Arc::clone(&data.shared), metadata: Arc::clone(&metadata.shared) };
    WITHIN.with_borrow_mut(|within| {
        within.get_or_insert_with(lanes);
    });
}

/// Polls a task by `poll`. Returns also what it has noted by [`note_wait`].
pub(in crate::engine) fn noting_wait<T>(poll: impl FnOnce() -> T) -> (T, Option<Lanes>) {
    // Another task may be polled within a poll.
    let outer = WITHIN.take();
    let polled = poll();
    (polled, WITHIN.replace(outer))
}
