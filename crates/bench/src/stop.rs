//! An orderly early end: servers are stopped, mounts and groups undone, records kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::{Error, Result};

/// The user's request to stop. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Set by the first SIGINT or SIGTERM; the second ends the process at once, as it is.
    ///
    /// # Errors
    /// [`Error::Machine`]: the signals cannot be handled.
    pub fn on_signals() -> Result<Self> {
        let stop = Self::default();
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::machine("cannot wait for signals"))?;
        let listening = stop.clone();
        let signals = {
            let _guard = runtime.enter();
            [SignalKind::interrupt(), SignalKind::terminate()].map(signal)
        };
        let [interrupt, terminate] = signals;
        let mut interrupt = interrupt.map_err(Error::machine("cannot wait for SIGINT"))?;
        let mut terminate = terminate.map_err(Error::machine("cannot wait for SIGTERM"))?;
        // It ends with the process.
        thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! { _ = interrupt.recv() => (), _ = terminate.recv() => () }
                listening.0.store(true, Ordering::Relaxed);
                tokio::select! { _ = interrupt.recv() => (), _ = terminate.recv() => () }
                std::process::exit(INTERRUPTED);
            });
        });
        Ok(stop)
    }

    /// As if the user had asked.
    #[cfg(test)]
    pub(crate) fn wanted() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// The same from now on.
    #[cfg(test)]
    pub(crate) fn want(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the user asked to stop.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// For use between two measurements.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub fn check(&self) -> Result<()> {
        if self.is_wanted() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// A shell's exit status for a program that SIGINT ended.
const INTERRUPTED: i32 = 128 + 2;
