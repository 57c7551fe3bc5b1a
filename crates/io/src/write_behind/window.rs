//! State common to the devices of a window: its sizes, its counters, and the number of active
//! devices, among which it is divided.

use std::sync::PoisonError;

use rustix::param::page_size;

use super::dirty_runs::Limits;
use super::{WriteBehindConfig, WriteBehindCounts};
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// See the module.
pub(super) struct Window {
    config: WriteBehindConfig,
    limits: Limits,
    /// Devices with data in the window, or with a write that is admitted to it.
    active: AtomicUsize,
    /// Taken inside every other lock of the window.
    counts: Mutex<WriteBehindCounts>,
}

/// The part of a window that one device may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) bytes: u64,
    /// At least 1.
    pub(super) files: usize,
}

impl Part {
    /// How much of it pages that are filled only in part may take: the rest is for what passes
    /// through. Of 64 MiB that is enough for the edges of records of 47,008 bytes among writers
    /// that are 500 MiB apart.
    pub(super) fn edge_bytes_max(self) -> u64 {
        self.bytes / 4 * 3
    }

    /// Whether of `bytes` in it, of which `edge_bytes` wait to be filled, the others take more than
    /// half of what is left to them.
    pub(super) fn is_crowded(self, bytes: u64, edge_bytes: u64) -> bool {
        bytes - edge_bytes > self.bytes.saturating_sub(edge_bytes) / 2
    }
}

impl Window {
    /// See [`super::WriteBehind::new`].
    pub(super) fn new(config: WriteBehindConfig) -> Self {
        let WriteBehindConfig {
            window_bytes,
            files_max,
            run_bytes,
            age_max,
            neighbour_wait,
            threads,
        } = config;
        assert!(window_bytes > 0, "a window without bytes would admit one write at a time");
        assert!(files_max > 0, "a window without files would admit nothing");
        assert!(run_bytes > 0, "runs without bytes would never be written");
        assert!(threads > 0, "a window without threads would never be emptied");
        let page_bytes = page_size() as u64;
        let run_bytes = run_bytes.next_multiple_of(page_bytes);
        Self {
            config,
            limits: Limits { page_bytes, run_bytes, age_max, neighbour_wait },
            active: AtomicUsize::new(0),
            counts: Mutex::default(),
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Threads of each device, at most.
    pub(super) fn threads_max(&self) -> usize {
        self.config.threads
    }

    /// An equal part for each active device, among which the caller counts itself.
    pub(super) fn part(&self, is_active: bool) -> Part {
        let devices = self.active.load(Ordering::SeqCst) + usize::from(!is_active);
        let whole = self.whole();
        Part { bytes: whole.bytes / devices as u64, files: (whole.files / devices).max(1) }
    }

    /// The part of a device that is alone.
    pub(super) fn whole(&self) -> Part {
        let WriteBehindConfig { window_bytes, files_max, .. } = self.config;
        Part { bytes: window_bytes, files: files_max }
    }

    /// Notes that one more device is active, or one less.
    pub(super) fn note_activity(&self, is_active: bool) {
        if is_active {
            self.active.fetch_add(1, Ordering::SeqCst);
        } else {
            self.active.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(super) fn counts(&self) -> WriteBehindCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut WriteBehindCounts)) {
        add(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
