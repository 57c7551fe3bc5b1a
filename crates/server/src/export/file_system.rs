//! The state that the exports of one file system share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Generations, WriteVerifier};

/// Major and minor number of a device.
pub(crate) type Device = (u32, u32);

/// The state that the exports of one file system share. It lives as long as one of them is served,
/// or has an object in the inode cache.
pub(crate) struct FileSystem {
    /// The write verifier of all its files. One for all, because a flush through one export may
    /// fail for data that was written through another.
    pub(crate) verifier: WriteVerifier,
    /// Distinguishes inodes of one number, where the kernel does not.
    pub(crate) generations: Generations,
}

impl FileSystem {
    fn new() -> std::io::Result<Self> {
        Ok(Self { verifier: WriteVerifier::new()?, generations: Generations::default() })
    }
}

/// The file systems that a server has exports on, by device. One that no export uses any more, and
/// of which nothing is open, is forgotten: its device number may become another one's.
#[derive(Default)]
pub(crate) struct FileSystems(Mutex<HashMap<Device, Weak<FileSystem>>>);

impl FileSystems {
    /// The file system on `device`. The caller has a directory of it open, so that the device
    /// number is its alone.
    ///
    /// # Errors
    /// The kernel has no random bytes for a verifier.
    pub(crate) fn on(&self, device: Device) -> std::io::Result<Arc<FileSystem>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, file_system| file_system.strong_count() > 0);
        if let Some(file_system) = known.get(&device).and_then(Weak::upgrade) {
            return Ok(file_system);
        }
        let file_system = Arc::new(FileSystem::new()?);
        known.insert(device, Arc::downgrade(&file_system));
        Ok(file_system)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_file_system_is_dropped() {
        let systems = FileSystems::default();
        let first = systems.on((8, 1)).unwrap();
        let verifier = first.verifier.current();
        let user = Arc::clone(&first);
        drop(first);
        assert_eq!(systems.on((8, 1)).unwrap().verifier.current(), verifier, "still in use");
        drop(user);
        assert_ne!(systems.on((8, 1)).unwrap().verifier.current(), verifier);
    }
}
