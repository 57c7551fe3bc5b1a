//! Threads for blocking file calls.
//!
//! Asynchronous tasks must not block on a disk, so they hand jobs to threads kept for that purpose.
//! Each device has two lanes, so that a burst of slow data transfers does not hold up lookups, and
//! no device another. A lane serves its clients in turn. Only lanes' threads ever act as another
//! user; each takes on a job's identity before it runs the job.

mod lane;
mod share;
mod wait;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use crate::identity::{self, Identity};
pub use crate::per_device::DeviceNumber;
pub use lane::LaneKind;
pub use lane::rouse_owed;
use lane::{Destination, Rank};
pub use share::{Device, Holder, Share};
use share::{Devices, Lanes};

/// A client among which the threads of a device are shared. 0 is this process itself.
pub type ClientId = u128;

/// Work that may wait for several things in turn.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sizes of an [`Engine`], for each device. Each number is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Threads for reading and writing file content, at most.
    pub data_threads: usize,
    /// Threads for operations on names and attributes, at most.
    pub metadata_threads: usize,
    /// Jobs of one client waiting for a thread, at most, per lane. Further callers wait
    /// asynchronously.
    pub queue_max: usize,
}

/// Runs blocking jobs on its own threads: not on the async runtime's, whose pool is unbounded in
/// its queue and shared with name resolution and everything else.
///
/// Threads start on demand up to the configured number. They are kept, and those of a device that
/// is not used any more end when another device comes. A job that was accepted runs to completion,
/// whatever becomes of the future that asked for it: the kernel may be writing into the job's
/// buffer.
///
/// Work is done within the [`Share`] of the task that submits it; what belongs to no share is done
/// by threads of its own, for client 0.
pub struct Engine {
    config: EngineConfig,
    own: Share,
    devices: Devices,
}

impl Engine {
    /// An engine with a thread for each kind of work on no device in particular.
    ///
    /// # Errors
    /// The system refuses these threads.
    ///
    /// # Panics
    /// If a number in `config` is 0.
    pub fn new(config: EngineConfig) -> io::Result<Self> {
        let own = Lanes::new((0, 0), &config);
        own.start()?;
        let own = Share::new(&Device(Arc::new(own)), 0);
        Ok(Self { config, own, devices: Devices::default() })
    }

    /// The threads for work on a device. While the system refuses the first of them, those for work
    /// on no device in particular; it is asked again after a second.
    pub fn device(&self, number: DeviceNumber) -> Device {
        let device = self.devices.get(number, &self.config);
        device.unwrap_or_else(|| self.own_device().clone())
    }

    /// The threads for work on no device in particular.
    pub fn own_device(&self) -> &Device {
        self.own.device()
    }

    fn share(&self) -> Share {
        Share::current().unwrap_or_else(|| self.own.clone())
    }

    fn all(&self) -> Vec<Share> {
        let devices = self.devices.all();
        let mut all = vec![self.own.clone()];
        all.extend(devices.iter().map(|device| Share::new(device, 0)));
        all
    }

    /// Runs `job` on a data thread, under the server's own identity.
    ///
    /// A full queue makes the caller wait. If the returned future is dropped before the job was
    /// queued, the job does not run; after that it runs, and its result is dropped.
    ///
    /// # Panics
    /// With the job's own panic, if it panics; the thread lives on. And if the system refuses a
    /// thread after [`shutdown`](Self::shutdown).
    pub async fn data<R, F>(&self, job: F) -> R
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        let share = self.share();
        share
            .lanes()
            .data
            .run(share.client(), || {
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
        let share = self.share();
        share
            .lanes()
            .data
            .run(share.client(), move || identity::assume(&identity).map(|()| job()))
            .await
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
        let share = self.share();
        share
            .lanes()
            .metadata
            .run(share.client(), move || identity::assume(&identity).map(|()| job()))
            .await
    }

    /// Leaves `job` to a data thread, under the server's own identity, and does not wait for it.
    /// Returns whether it was taken; with a full queue it is dropped, because optional work must
    /// not delay requested work.
    pub fn leave_to_data(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.give_to_data(job, |job| job()).is_ok()
    }

    /// As [`leave_to_data`](Self::leave_to_data), for a job on what this thread must not drop.
    ///
    /// # Errors
    /// The subject comes back from a full queue.
    pub fn give_to_data<T: Send + 'static>(
        &self,
        subject: T,
        job: impl FnOnce(T) + Send + 'static,
    ) -> Result<(), T> {
        let share = self.share();
        let job = |subject| {
            identity::assume(&Identity::Server)
                .expect("a thread can always return to the server's identity");
            job(subject);
        };
        share.lanes().data.leave(share.client(), subject, job)
    }

    /// For a task that comes to where it may block: goes on on a data thread until it waits for
    /// something else, if it was begun by a [`Share`], also on a metadata thread. Any other goes on
    /// where it is, and hands over each of its jobs.
    ///
    /// The task waits for its turn behind the work that its client has queued already. So it should
    /// hold nothing that others wait for; else see
    /// [`move_to_data_thread`](Self::move_to_data_thread).
    pub async fn ask_for_data_thread(&self) {
        go_to_data_thread(Rank::Asker).await;
    }

    /// As [`ask_for_data_thread`](Self::ask_for_data_thread), for a task that holds what others
    /// wait for, a file's lock perhaps: it comes before the work that its client has queued.
    pub async fn move_to_data_thread(&self) {
        go_to_data_thread(Rank::Holder).await;
    }

    /// As [`ask_for_data_thread`](Self::ask_for_data_thread), for a task that may block for names
    /// and attributes: any thread of a lane will do. It goes on in the lane where it was begun.
    pub async fn ask_for_metadata_thread(&self) {
        lane::ask_for_lane(LaneKind::Metadata, || Destination::own(Rank::Asker)).await;
    }

    /// As [`move_to_data_thread`](Self::move_to_data_thread), for a task that may block for names
    /// and attributes: any thread of a lane will do. It goes on in the lane where it was begun.
    pub async fn move_to_metadata_thread(&self) {
        lane::ask_for_lane(LaneKind::Metadata, || Destination::own(Rank::Holder)).await;
    }

    /// For a task that has more to do and holds nothing that others wait for: lets the work go
    /// first that its client has queued already.
    pub async fn give_way() {
        lane::give_way().await;
    }

    /// Runs `wake`. The tasks of the lane that this thread serves go on here and now if it wakes
    /// them, one after the other, and no other thread is woken for them: for tasks that have little
    /// left to do. Where such a task waits again, or is to block, it leaves this thread.
    pub fn wake_here(&self, wake: impl FnOnce()) {
        lane::wake_here(wake);
    }

    /// Runs `job` at once; or, by a task that this thread runs within
    /// [`wake_here`](Self::wake_here), when the last of these tasks has gone on: so that what they
    /// all do can be done once. It must not wait.
    pub fn after_tasks_woken_here(job: impl FnOnce() + Send + 'static) {
        lane::after_tasks_woken_here(job);
    }

    /// Jobs waiting for a data thread now.
    #[cfg(test)]
    fn data_queued(&self) -> usize {
        self.all().iter().map(|share| share.lanes().data.queued()).sum()
    }

    /// Runs every accepted job to its end, then ends all threads; returns when none is left.
    ///
    /// Jobs handed in later still run, on threads that end as soon as they have nothing to do, so
    /// that work which outlives the call is neither lost nor stuck.
    pub async fn shutdown(&self) {
        for share in self.all() {
            share.lanes().data.shutdown().await;
            share.lanes().metadata.shutdown().await;
        }
    }
}

/// As [`lane::ask_for_lane`], for a thread of the device that the task is within the share of.
async fn go_to_data_thread(rank: Rank) {
    let place = |share: &Share| share.lanes().data.place(rank);
    let to = || Share::with_current(place).unwrap_or(Destination::own(rank));
    lane::ask_for_lane(LaneKind::Data, to).await;
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Drop for Engine {
    /// Ends the threads once they have run the accepted jobs. Does not wait for them.
    fn drop(&mut self) {
        for share in self.all() {
            share.lanes().close();
        }
    }
}

#[cfg(test)]
mod tests;
