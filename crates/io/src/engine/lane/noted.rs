//! Notes of a task, while it is polled, on the queue that it is to go on in.

use std::cell::Cell;
use std::sync::Arc;

use super::{Lane, LaneKind, Rank, Shared};

thread_local! {
    /// Those of the innermost poll in [`noting`] on this thread. What is noted outside of one is
    /// never read. One cell for all: each call is polled in it at least once.
    static NOTED: Cell<Noted> = const { Cell::new(Noted::NOTHING) };
}

/// The lanes of a device.
pub(super) struct Lanes {
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

/// See the module.
pub(in crate::engine) struct Noted {
    /// The lanes of the device within whose share it waits, where that is another than the one of
    /// its lane.
    pub(super) within: Option<Lanes>,
    pub(super) to: Destination,
}

impl Noted {
    const NOTHING: Self = Self { within: None, to: Destination::own(Rank::Holder) };
}

/// The queue for a task that was woken while it was polled, and its rank there.
pub(in crate::engine) struct Destination {
    /// The lane that it has asked for, if that need not be its own.
    pub(super) lane: Option<Arc<Shared>>,
    pub(super) rank: Rank,
}

impl Destination {
    /// A place in whichever lane the task goes on in.
    pub(in crate::engine) const fn own(rank: Rank) -> Self {
        Self { lane: None, rank }
    }
}

/// Notes that the task which is being polled waits within a share of the device of these lanes.
/// Of shares within each other, the innermost counts, which is noted first.
pub(in crate::engine) fn note_wait(data: &Lane, metadata: &Lane) {
    let lanes = || Lanes { data: Arc::clone(&data.shared), metadata: Arc::clone(&metadata.shared) };
    let mut noted = NOTED.replace(Noted::NOTHING);
    noted.within.get_or_insert_with(lanes);
    NOTED.set(noted);
}

/// Notes that the task which is being polled, and wakes itself, asks for this place.
pub(super) fn note_ask(to: Destination) {
    let noted = NOTED.replace(Noted::NOTHING);
    NOTED.set(Noted { to, ..noted });
}

/// Polls a task by `poll`. Returns also what it has noted.
pub(in crate::engine) fn noting<T>(poll: impl FnOnce() -> T) -> (T, Noted) {
    // Another task may be polled within a poll.
    let outer = NOTED.replace(Noted::NOTHING);
    let polled = poll();
    (polled, NOTED.replace(outer))
}
