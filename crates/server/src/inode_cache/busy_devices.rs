//! Devices whose objects are being given up: one task for each at a time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Major and minor number of a block device, or what stands for it.
pub(super) type Device = (u32, u32);

/// The devices that a task works on now.
#[derive(Clone, Default)]
pub(super) struct BusyDevices(Arc<Mutex<HashSet<Device>>>);

/// The right to give up objects of one device.
pub(super) struct Claim {
    devices: BusyDevices,
    pub(super) device: Device,
}

impl BusyDevices {
    /// The right to give up objects of a device, unless it is taken.
    pub(super) fn claim(&self, device: Device) -> Option<Claim> {
        let is_free = self.lock().insert(device);
        is_free.then(|| Claim { devices: self.clone(), device })
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Device>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.devices.lock().remove(&self.device);
    }
}
