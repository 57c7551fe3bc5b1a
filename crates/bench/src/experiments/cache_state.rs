//! The contents of caches when a measurement begins.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use clap::ValueEnum;

use crate::options::TargetOptions;
use crate::record::Run;
use crate::rig::{
    cached_files, drop_caches, free_socket_buffers, may_drop_caches, touch_free_memory,
};
use crate::stop::Stop;
use crate::{Error, Result};

/// How often caches are dropped for one measurement, and the time between.
const DROPS_MAX: u32 = 20;
const DROP_AGAIN: Duration = Duration::from_millis(10);

/// The contents of caches when a phase begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum CacheState {
    /// Nothing of the files.
    Cold,
    /// The data to be read, or written at random, from an earlier read.
    Warm,
    /// Whatever is there.
    Found,
}

impl CacheState {
    /// Cold where caches may be dropped.
    pub(super) fn default_here() -> Self {
        if may_drop_caches() { Self::Cold } else { Self::Found }
    }

    /// Records it, and which servers' caches it may not reach.
    pub(super) fn note(self, targets: &TargetOptions, run: &mut Run) {
        self.described().clone_into(&mut run.cache);
        if self == Self::Found {
            return;
        }
        for name in targets.maybe_remote() {
            let what =
                format!("The caches of {name} were not dropped unless it runs on this machine.");
            run.left_out.push(what);
        }
    }

    /// In words for the record.
    const fn described(self) -> &'static str {
        match self {
            Self::Cold => "written back and dropped before each measurement; free memory touched",
            Self::Warm => {
                "dropped, then what is read, or written at random, was read once, before each \
                 measurement; free memory touched"
            }
            Self::Found => {
                "written back before each measurement, otherwise as it was found; free memory \
                 touched"
            }
        }
    }

    /// Writes back dirty data, and empties the caches unless they stay as found: the caller reads
    /// data that is to be warm afterwards. Then touches free memory for `bytes` of data.
    ///
    /// Pages of the files below `files` that are in use are dropped by one of `DROPS_MAX` attempts.
    /// Pages that remain are recorded as cached at the start.
    ///
    /// # Errors
    /// [`crate::Error::Machine`]: only root may; the files cannot be examined.
    /// [`Error::Interrupted`].
    pub(super) fn prepare(self, bytes: u64, files: Option<&Path>, stop: &Stop) -> Result<()> {
        match self {
            Self::Found => rustix::fs::sync(),
            Self::Cold | Self::Warm => drop_until_empty(files)?,
        }
        touch_free_memory(bytes, stop)
    }
}

fn drop_until_empty(files: Option<&Path>) -> Result<()> {
    for _ in 0..DROPS_MAX {
        free_socket_buffers().map_err(Error::machine("cannot free socket buffers"))?;
        drop_caches()?;
        let cached = files.map(cached_files).transpose()?;
        if cached.and_then(|files| files.cached_bytes).is_none_or(|bytes| bytes == 0) {
            break;
        }
        sleep(DROP_AGAIN);
    }
    Ok(())
}
