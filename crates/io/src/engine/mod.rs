//! Threads for blocking file calls.
//!
//! Asynchronous tasks must not block on a disk, so they hand jobs to threads kept for that purpose.
//! There are two lanes, so that a burst of slow data transfers does not hold up lookups. Only their
//! threads ever act as another user; each takes on a job's identity before it runs the job.

mod lane;
mod lane_task;

use std::fmt;
use std::io;
use std::pin::Pin;

use crate::identity::{self, Identity};
use lane::{Lane, Purpose};

/// Work that may wait for several things in turn.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sizes of an [`Engine`]. Each number is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Threads for reading and writing file content, at most.
    pub data_threads: usize,
    /// Threads for operations on names and attributes, at most.
    pub metadata_threads: usize,
    /// Jobs waiting for a thread, at most, per lane. Further callers wait asynchronously.
    pub queue_max: usize,
}

/// Runs blocking jobs on its own threads: not on the async runtime's, whose pool is unbounded in
/// its queue and shared with name resolution and everything else.
///
/// Threads start on demand up to the configured number and are kept. A job that was accepted runs
/// to completion, whatever becomes of the future that asked for it: the kernel may be writing into
/// the job's buffer.
pub struct Engine {
    data: Lane,
    metadata: Lane,
}

impl Engine {
    /// An engine without any thread yet.
    ///
    /// # Panics
    /// If a number in `config` is 0.
    pub fn new(config: EngineConfig) -> Self {
        Self {
            data: Lane::new("spillway-data", Purpose::Data, config.data_threads, config.queue_max),
            metadata: Lane::new(
                "spillway-meta",
                Purpose::Metadata,
                config.metadata_threads,
                config.queue_max,
            ),
        }
    }

    /// Runs `job` on a data thread, under the server's own identity.
    ///
    /// A full queue makes the caller wait. If the returned future is dropped before the job was
    /// queued, the job does not run; after that it runs, and its result is dropped.
    ///
    /// # Panics
    /// With the job's own panic, if it panics; the thread lives on. And if the system refuses the
    /// lane its very first thread.
    pub async fn data<R, F>(&self, job: F) -> R
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        self.data
            .run(|| {
                // A thread inherits the identity of the thread that happened to start it.
                identity::assume(&Identity::Server)
                    .expect("a thread can always return to the server's identity");
                job()
            })
            .await
    }

    /// Runs `job` on a data thread that acts as `identity` towards the file system, so that quotas
    /// and reserved blocks count for that user.
    ///
    /// Waiting, dropping and panics are as for [`data`](Self::data).
    ///
    /// # Errors
    /// When the thread cannot take on the identity; the job does not run then. See [`Identity`].
    pub async fn data_as<R, F>(&self, identity: Identity, job: F) -> io::Result<R>
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        self.data.run(move || identity::assume(&identity).map(|()| job())).await
    }

    /// Runs `job` on a metadata thread that acts as `identity` towards the file system.
    ///
    /// Waiting, dropping and panics are as for [`data`](Self::data).
    ///
    /// # Errors
    /// When the thread cannot take on the identity; the job does not run then. See [`Identity`].
    pub async fn metadata<R, F>(&self, identity: Identity, job: F) -> io::Result<R>
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        self.metadata.run(move || identity::assume(&identity).map(|()| job())).await
    }

    /// Leaves `job` to a data thread, under the server's own identity, and does not wait for it. Says
    /// whether it was taken; with a full queue it is dropped, for work that is only to save time must
    /// not hold up work that is asked for.
    pub fn leave_to_data(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.data.leave(Box::new(|| {
            identity::assume(&Identity::Server)
                .expect("a thread can always return to the server's identity");
            job();
        }))
    }

    /// Begins `task` on a data thread, where the jobs that it submits run in place: a task that
    /// needs nothing but the disk is done with a single handover. Where it has to wait for anything
    /// else (a lock, memory) it leaves the thread to others, and goes on on a data thread when it is
    /// woken.
    ///
    /// Returns as soon as the task is queued; a full queue makes the caller wait. Whoever wakes a
    /// task never waits. A panic of the task ends the task.
    pub async fn begin_data(&self, task: Task) {
        self.data.begin(task).await;
    }

    /// As [`begin_data`](Self::begin_data), on a metadata thread, where metadata jobs run in place;
    /// jobs for the data lane are handed over, so that they hold up no lookups.
    pub async fn begin_metadata(&self, task: Task) {
        self.metadata.begin(task).await;
    }

    /// As [`begin_data`](Self::begin_data), but the task runs on this thread up to where it first
    /// has to wait, which may be [`ask_for_data_thread`](Self::ask_for_data_thread).
    pub async fn begin_here(&self, task: Task) {
        self.data.begin_here(task).await;
    }

    /// For a task that was begun elsewhere and comes to where it may block: goes on on a data thread,
    /// if it was begun by one of the above. Any other goes on where it is, and hands over each of
    /// its jobs.
    pub async fn ask_for_data_thread(&self) {
        lane::ask_for_lane().await;
    }

    /// Jobs waiting for a data thread now.
    pub fn data_queued(&self) -> usize {
        self.data.queued()
    }

    /// Jobs waiting for a metadata thread now.
    pub fn metadata_queued(&self) -> usize {
        self.metadata.queued()
    }

    /// Runs every accepted job to its end, then ends all threads; returns when none is left.
    ///
    /// Jobs handed in later still run, on threads that end as soon as they have nothing to do, so
    /// that work which outlives the call is neither lost nor stuck.
    pub async fn shutdown(&self) {
        self.data.shutdown().await;
        self.metadata.shutdown().await;
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("data_queued", &self.data_queued())
            .field("metadata_queued", &self.metadata_queued())
            .finish_non_exhaustive()
    }
}

impl Drop for Engine {
    /// Lets the threads end once they have run what was accepted. Does not wait for them.
    fn drop(&mut self) {
        self.data.close();
        self.metadata.close();
    }
}

#[cfg(test)]
mod tests;
