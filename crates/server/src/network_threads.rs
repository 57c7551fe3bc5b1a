//! The threads that sockets live on.
//!
//! Each runs a single-threaded runtime, and a connection stays on the thread it was given. A
//! runtime that shares its tasks among threads wakes the others for every call that a quiet
//! connection sends, which costs a good part of a small READ (figures: docs/decisions,
//! "network-threads"). The work itself is spread over all processors by the engine's lanes; here
//! bytes are received, and calls answered from memory.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A fixed number of threads; they end when this is dropped.
pub(crate) struct NetworkThreads {
    threads: Vec<NetworkThread>,
    next: AtomicUsize,
}

struct NetworkThread {
    runtime: Handle,
    /// The thread waits for this to be dropped.
    _ends: oneshot::Sender<()>,
}

impl NetworkThreads {
    /// Starts a thread for each processor that this process may use.
    ///
    /// # Errors
    /// The system refuses a thread or a poll descriptor.
    pub(crate) fn start() -> io::Result<Self> {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..count).map(NetworkThread::start).collect::<io::Result<_>>()?;
        Ok(Self { threads, next: AtomicUsize::new(0) })
    }

    /// The thread for the next connection, in turn.
    pub(crate) fn next(&self) -> &Handle {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.threads.len();
        &self.threads[turn].runtime
    }
}

impl NetworkThread {
    fn start(index: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (ends, ended) = oneshot::channel();
        thread::Builder::new().name(format!("spillway-net-{index}")).spawn(move || {
            // An error is the sender's drop, which is what is waited for.
            let _dropped = runtime.block_on(ended);
        })?;
        Ok(Self { runtime: handle, _ends: ends })
    }
}
