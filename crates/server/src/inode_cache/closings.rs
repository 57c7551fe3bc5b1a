//! How many objects of each device are on their way to being closed.
//!
//! While a device does not answer, what is given up on it frees no descriptor. So others do not
//! give up more of it than a few.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use io::{DeviceNumber, PerDevice};

/// With so many objects to be closed on a device, others do not give up more of it.
pub(super) const CLOSINGS_MAX: usize = 64;

/// The objects of each device that were given to its threads to be closed and are still open.
#[derive(Default)]
pub(super) struct Closings(Mutex<PerDevice<AtomicUsize>>);

/// An object that is to be closed. It counts until this is dropped.
pub(super) struct Closing(Arc<AtomicUsize>);

impl Closings {
    /// The count of a device.
    pub(super) fn of(&self, device: DeviceNumber) -> Arc<AtomicUsize> {
        let mut devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        devices.get(device, |count| Arc::strong_count(count) == 1, Arc::default)
    }

    /// The devices of which no more objects are to be given up, but by their own calls.
    pub(super) fn full(&self) -> Vec<DeviceNumber> {
        let devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |count: &AtomicUsize| count.load(Ordering::SeqCst) >= CLOSINGS_MAX;
        devices.iter().filter(|(_, count)| is_full(count)).map(|(device, _)| device).collect()
    }
}

impl Closing {
    /// One more of a device's count.
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
