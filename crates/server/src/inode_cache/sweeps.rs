//! Searches for deleted files: one on each device at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use io::DeviceNumber;

/// The last sweeps of each device, locked during one.
#[derive(Default)]
pub(super) struct Sweeps(Mutex<HashMap<DeviceNumber, Arc<tokio::sync::Mutex<LastSweeps>>>>);

/// The last sweeps of a device.
#[derive(Default)]
pub(super) struct LastSweeps {
    /// The end of the last that has closed something.
    pub(super) closed_at: Option<Instant>,
    /// The end of the last for want of space that has closed nothing.
    pub(super) futile_at: Option<Instant>,
}

impl Sweeps {
    pub(super) fn of(&self, device: DeviceNumber) -> Arc<tokio::sync::Mutex<LastSweeps>> {
        let mut devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(devices.entry(device).or_default())
    }
}
