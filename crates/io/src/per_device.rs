//! State of each device, which is given up when the device is gone.

use std::collections::HashMap;
use std::sync::Arc;

/// A device number: major and minor.
pub type DeviceNumber = (u32, u32);

/// The state of each device that was in use since the last new one came. So devices that are
/// mounted and unmounted for months leave nothing behind but the state of the last ones.
pub struct PerDevice<T>(HashMap<DeviceNumber, Arc<T>>);

impl<T> PerDevice<T> {
    /// The state of `device`. If it has none, one is made by `new`, and before that the states of
    /// others are dropped that are unused.
    ///
    /// `give_up` returns whether a state is unused, and ends what belongs to it then. One that has
    /// no other reference gets none meanwhile.
    pub fn get(
        &mut self,
        device: DeviceNumber,
        give_up: impl Fn(&Arc<T>) -> bool,
        new: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        if !self.0.contains_key(&device) {
            self.0.retain(|_, state| !give_up(state));
        }
        Arc::clone(self.0.entry(device).or_insert_with(new))
    }

    /// All states, with their devices.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceNumber, &Arc<T>)> {
        self.0.iter().map(|(device, state)| (*device, state))
    }
}

impl<T> Default for PerDevice<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_dropped_when_another_device_comes_unless_it_is_in_use() {
        let mut states = PerDevice::default();
        let mut get = |minor, state: u32| {
            let is_unused = |state: &Arc<u32>| Arc::strong_count(state) == 1;
            states.get((8, minor), is_unused, || Arc::new(state))
        };
        let in_use = get(0, 0);
        assert_eq!((*get(1, 1), *get(1, 2)), (1, 1));
        drop(get(2, 3));
        assert_eq!((*get(0, 4), *get(1, 5)), (0, 5));
        drop(in_use);
        drop(get(3, 6));
        assert_eq!(*get(0, 7), 7);
    }
}
