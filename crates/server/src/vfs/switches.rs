//! The settings of all exports that can change while the server runs.

use std::sync::atomic::{AtomicBool, Ordering};

/// Read at each request, so that a change is in force from the next one on.
#[derive(Debug)]
pub(crate) struct Switches {
    read_ahead: AtomicBool,
    splice: AtomicBool,
}

impl Switches {
    pub(crate) fn new(read_ahead: bool, splice: bool) -> Self {
        Self { read_ahead: AtomicBool::new(read_ahead), splice: AtomicBool::new(splice) }
    }

    /// Whether sequential READs past the page cache are read ahead.
    pub(crate) fn read_ahead(&self) -> bool {
        self.read_ahead.load(Ordering::Relaxed)
    }

    /// Whether READs are spliced from the page cache to the socket.
    pub(crate) fn splice(&self) -> bool {
        self.splice.load(Ordering::Relaxed)
    }

    /// Switches read-ahead; returns whether that was a change.
    pub(crate) fn set_read_ahead(&self, on: bool) -> bool {
        self.read_ahead.swap(on, Ordering::Relaxed) != on
    }

    /// Switches splicing; returns whether that was a change.
    pub(crate) fn set_splice(&self, on: bool) -> bool {
        self.splice.swap(on, Ordering::Relaxed) != on
    }
}
