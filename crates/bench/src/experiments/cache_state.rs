//! What caches hold when a measurement begins.

use clap::ValueEnum;

use crate::Result;
use crate::rig::{drop_caches, touch_free_memory};

/// Touched of the free memory, as a multiple of the data of a measurement.
const TOUCHED_PARTS: u64 = 2;

/// What caches hold when a phase begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum CacheState {
    /// Nothing of the files.
    Cold,
    /// What is read was read before.
    Warm,
    /// Whatever is there.
    Found,
}

impl CacheState {
    /// Cold for root, who alone may drop caches.
    pub(super) fn default_here() -> Self {
        if rustix::process::geteuid().is_root() { Self::Cold } else { Self::Found }
    }

    /// In words for the record.
    pub(super) const fn described(self) -> &'static str {
        match self {
            Self::Cold => "written back and dropped before each measurement; free memory touched",
            Self::Warm => {
                "dropped, then what is read was read once, before each measurement; free memory \
                 touched"
            }
            Self::Found => {
                "written back before each measurement, otherwise as it was found; free memory \
                 touched"
            }
        }
    }

    /// Writes back what is dirty, and empties the caches if they are to be cold. What is to be warm
    /// is read afterwards. Then touches free memory for `bytes` of data: in the page cache, and on
    /// the way there.
    ///
    /// # Errors
    /// [`crate::Error::Machine`]: only root may.
    pub(super) fn prepare(self, bytes: u64) -> Result<()> {
        match self {
            Self::Found => rustix::fs::sync(),
            Self::Cold | Self::Warm => drop_caches()?,
        }
        touch_free_memory(bytes.saturating_mul(TOUCHED_PARTS));
        Ok(())
    }
}
