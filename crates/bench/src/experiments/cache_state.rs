//! What caches hold when a measurement begins.

use clap::ValueEnum;

use crate::Result;
use crate::rig::drop_caches;

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
            Self::Cold => "written back and dropped before each measurement",
            Self::Warm => "dropped, then what is read was read once, before each measurement",
            Self::Found => "written back before each measurement, otherwise as it was found",
        }
    }

    /// Writes back what is dirty, and empties the caches if they are to be cold. What is to be warm
    /// is read afterwards.
    ///
    /// # Errors
    /// [`crate::Error::Machine`]: only root may.
    pub(super) fn prepare(self) -> Result<()> {
        match self {
            Self::Found => rustix::fs::sync(),
            Self::Cold | Self::Warm => drop_caches()?,
        }
        Ok(())
    }
}
