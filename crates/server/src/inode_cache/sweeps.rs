//! Searches for deleted files: one on each device at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use io::DeviceNumber;

use super::InodeKey;

/// The last sweeps of each device, locked during one.
#[derive(Default)]
pub(super) struct Sweeps {
    last: Mutex<HashMap<DeviceNumber, Arc<tokio::sync::Mutex<LastSweeps>>>>,
    /// Objects that sweeps have taken out of the table and are closing, and their devices.
    closing: Mutex<HashMap<InodeKey, DeviceNumber>>,
}

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
        let mut devices = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(devices.entry(device).or_default())
    }

    /// Waits for the end of the sweep of a device that is under way.
    pub(super) async fn ended(&self, device: DeviceNumber) {
        drop(self.of(device).lock().await);
    }

    pub(super) fn closing(&self) -> MutexGuard<'_, HashMap<InodeKey, DeviceNumber>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn last_sweeps_of_a_device_are_known_when_another_comes() {
        let sweeps = Sweeps::default();
        sweeps.of((8, 0)).lock().await.futile_at = Some(Instant::now());
        drop(sweeps.of((8, 1)));
        assert!(sweeps.of((8, 0)).lock().await.futile_at.is_some());
    }
}
