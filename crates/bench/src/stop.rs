//! An orderly end before the time: servers are stopped, mounts and groups undone, records kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::{Error, Result};

/// Whether the user wants no more of it. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Set by the first SIGINT or SIGTERM; the second ends the process at once, as it is.
    ///
    /// # Errors
    /// [`Error::Machine`]: the signals cannot be had.
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

    /// Whether it is time to end.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// For between two measurements.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub fn check(&self) -> Result<()> {
        if self.is_wanted() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// What a shell says of a program that SIGINT ended.
const INTERRUPTED: i32 = 128 + 2;
