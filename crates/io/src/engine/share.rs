//! Whose work it is, and which device it waits for.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::lane::{DeviceId, Lane, LaneKind, note_wait, noting};
use super::{ClientId, EngineConfig, Task, wait};
use crate::per_device::{DeviceNumber, PerDevice};

/// The threads that wait for one device. A device that does not answer holds up no other's.
#[derive(Clone)]
pub struct Device(pub(super) Arc<Lanes>);

impl Device {
    /// (0, 0) for no device in particular.
    pub fn number(&self) -> DeviceNumber {
        self.0.number
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// See [`Engine`](super::Engine).
pub(super) struct Lanes {
    /// (0, 0) for work on no device in particular.
    number: DeviceNumber,
    pub(super) data: Lane,
    pub(super) metadata: Lane,
}

impl Lanes {
    pub(super) fn new(number: DeviceNumber, config: &EngineConfig) -> Self {
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        let device = DeviceId(DEVICES.fetch_add(1, Ordering::Relaxed));
        let lane = |name, kind, threads| Lane::new(name, device, kind, threads, config.queue_max);
        Self {
            number,
            data: lane("spillway-data", LaneKind::Data, config.data_threads),
            metadata: lane("spillway-meta", LaneKind::Metadata, config.metadata_threads),
        }
    }

    pub(super) fn of(&self, kind: LaneKind) -> &Lane {
        match kind {
            LaneKind::Metadata => &self.metadata,
            LaneKind::Data => &self.data,
        }
    }

    /// Sees to it that each lane has a thread, until it is closed.
    ///
    /// # Errors
    /// The system refuses one.
    pub(super) fn start(&self) -> io::Result<()> {
        self.data.start()?;
        self.metadata.start()
    }

    fn have_started(&self) -> bool {
        self.data.has_started() && self.metadata.has_started()
    }

    /// Ends the threads once they have done all that is queued.
    pub(super) fn close(&self) {
        self.data.close();
        self.metadata.close();
    }

    /// Closes the lanes if the caller has the last reference and no work is left. None is queued
    /// any more then: that takes a [`Share`], which has a reference, and a task of a lane has one.
    fn close_if_unused(self: &Arc<Self>) -> bool {
        let is_unused =
            Arc::strong_count(self) == 1 && self.data.is_idle() && self.metadata.is_idle();
        if is_unused {
            self.close();
        }
        is_unused
    }
}

/// The devices that work was done for since another one came, and those that are in use.
#[derive(Default)]
pub(super) struct Devices(Mutex<KnownDevices>);

#[derive(Default)]
struct KnownDevices {
    lanes: PerDevice<Lanes>,
    /// The time when the system last refused the first thread of a lane.
    refused_at: Option<Instant>,
}

/// The system is asked again for the first threads of a device after so long: a network thread
/// waits for its answer.
pub(super) const FIRST_THREAD_RETRY: Duration = Duration::from_secs(1);

impl Devices {
    /// The threads for a device, of which each lane has one. `None` if the system refuses these, or
    /// has refused others a moment ago.
    pub(super) fn get(&self, number: DeviceNumber, config: &EngineConfig) -> Option<Device> {
        let mut known = self.lock();
        let new = || Arc::new(Lanes::new(number, config));
        let lanes = known.lanes.get(number, Lanes::close_if_unused, new);
        if !lanes.have_started() {
            if known.refused_at.is_some_and(|at| at.elapsed() < FIRST_THREAD_RETRY) {
                return None;
            }
            if let Err(error) = lanes.start() {
                known.refused_at = Some(Instant::now());
                drop(known);
                let (major, minor) = number;
                tracing::error!(%error, major, minor, "cannot start the first threads of a device");
                return None;
            }
        }
        Some(Device(lanes))
    }

    pub(super) fn all(&self) -> Vec<Device> {
        self.lock().lanes.iter().map(|(_, lanes)| Device(Arc::clone(lanes))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, KnownDevices> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client that memory is for, and the device whose data it has. In the order of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// 0 for this process itself.
    pub client: ClientId,
    /// (0, 0) for none.
    pub device: DeviceNumber,
}

impl Holder {
    /// This process, for data of no device.
    pub const OWN: Self = Self::of(0);

    /// A client, for data of no device.
    pub const fn of(client: ClientId) -> Self {
        Self { client, device: (0, 0) }
    }
}

thread_local! {
    /// The share of the task that is polled on this thread.
    static CURRENT: RefCell<Option<Share>> = const { RefCell::new(None) };
}

/// A client's share of the threads of a device. The jobs that a task submits are done within its
/// share, on whatever thread it is polled.
#[derive(Clone)]
pub struct Share {
    device: Device,
    client: ClientId,
}

impl Share {
    /// The share of a client.
    pub fn new(device: &Device, client: ClientId) -> Self {
        Self { device: device.clone(), client }
    }

    /// That of the task that is polled on this thread.
    pub(super) fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// A property of that share; `None` where there is none.
    pub(super) fn with_current<T>(get: impl FnOnce(&Self) -> T) -> Option<T> {
        CURRENT.with_borrow(|share| share.as_ref().map(get))
    }

    /// Whether the task that is polled on this thread does its work on this device.
    pub fn is_of(device: &Device) -> bool {
        let is_same = |share: &Self| share.device == *device;
        CURRENT.with_borrow(|share| share.as_ref().is_some_and(is_same))
    }

    /// The share that the client of the task on this thread has of `device`; `None` where the task
    /// is within that device's already. For work of a task that waits for another device than its
    /// own.
    pub fn elsewhere(device: &Device) -> Option<Self> {
        (!Self::is_of(device)).then(|| Self::new(device, Self::current_client()))
    }

    /// The client of the task that is polled on this thread; 0 where there is none.
    pub fn current_client() -> ClientId {
        CURRENT.with_borrow(|share| share.as_ref().map_or(0, Self::client))
    }

    /// How long the task that is polled on this thread has waited so far for the threads that it
    /// [asked for](super::Engine::ask_for_data_thread); 0 if it was not handed over, or is no task
    /// of a lane.
    pub fn current_wait() -> Duration {
        wait::current()
    }

    pub(super) fn client(&self) -> ClientId {
        self.client
    }

    /// The holder of buffers for the data of the device.
    pub fn holder(&self) -> Holder {
        Holder { client: self.client, device: self.device.number() }
    }

    /// That of the task that is polled on this thread; [`Holder::OWN`] where there is none.
    pub fn current_holder() -> Holder {
        CURRENT.with_borrow(|share| share.as_ref().map_or(Holder::OWN, Self::holder))
    }

    /// The device whose threads it is a share of.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn lanes(&self) -> &Lanes {
        &self.device.0
    }

    /// Makes it the current one of this thread until the guard is dropped.
    #[must_use]
    pub fn enter(&self) -> impl Drop + use<> {
        struct Entered(Option<Share>);
        impl Drop for Entered {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        Entered(CURRENT.replace(Some(self.clone())))
    }

    /// Runs `work` within this share, wherever the caller runs. A task of another device's lane
    /// goes on in that of this device while it waits for `work`: what it holds of this device is
    /// not held up by the other.
    pub async fn run<T>(self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            let _entered = self.enter();
            let polled = work.as_mut().poll(context);
            if polled.is_pending() {
                note_wait(&self.lanes().data, &self.lanes().metadata);
            }
            polled
        })
        .await
    }

    /// Begins `work` on a data thread, where the jobs that it submits run in place: a task that
    /// needs nothing but the disk is done with a single handover. Where it has to wait for anything
    /// else (a lock, memory) it leaves the thread to others, and goes on on a data thread when it
    /// is woken.
    ///
    /// Resolves as soon as the task is queued; a full queue of the client makes the caller wait. A
    /// waker of a task never waits. A panic of the task ends the task.
    pub fn begin_data(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> {
        self.lanes().data.begin(self.client, self.task(work))
    }

    /// As [`begin_data`](Self::begin_data), on a metadata thread, where metadata jobs run in place;
    /// jobs for the data lane are handed over, so that they hold up no lookups.
    pub fn begin_metadata(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> {
        self.lanes().metadata.begin(self.client, self.task(work))
    }

    /// As [`begin_data`](Self::begin_data), but the task runs on this thread up to where it first
    /// has to wait, which may be
    /// [`Engine::ask_for_data_thread`](super::Engine::ask_for_data_thread). The caller never waits.
    pub fn begin_here(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.lanes().data.begin_here(self.client, self.task(work));
    }

    /// As [`begin_here`](Self::begin_here), for a task that goes on on a metadata thread. Most end
    /// here. One that does not is polled again there, whatever it waits for: only then it needs a
    /// waker.
    pub fn begin_metadata_here(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut task = self.task(work);
        let poll = || {
            let mut context = Context::from_waker(Waker::noop());
            catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut context)))
        };
        let (first, noted) = noting(poll);
        if matches!(first, Ok(Poll::Pending)) {
            self.lanes().metadata.go_on(self.client, task, noted);
        }
    }

    /// Leaves `job` to a thread of a lane, where it may run tasks by [`run_here`](Self::run_here).
    /// Returns whether it was taken.
    pub fn leave_to(&self, lane: LaneKind, job: impl FnOnce() + Send + 'static) -> bool {
        self.lanes().of(lane).leave(self.client, job, |job| job()).is_ok()
    }

    /// Runs `work` as a task of a lane on this thread, which is one of the lane's. Where it has to
    /// wait it waits here, at most `patience` each time; then it leaves this thread and goes on in
    /// the lane when it is woken. Returns whether it has ended.
    pub fn run_here(
        &self,
        lane: LaneKind,
        work: impl Future<Output = ()> + Send + 'static,
        patience: Duration,
    ) -> bool {
        self.lanes().of(lane).run_here(self.client, self.task(work), patience)
    }

    /// Whether a thread of a lane that is at work for this client is wanted for other work: another
    /// client's, or of this one, if no thread is on its way to it.
    pub fn wants_thread(&self, lane: LaneKind) -> bool {
        self.lanes().of(lane).wants_thread(self.client)
    }

    /// `work` as a task that is polled within this share.
    fn task(&self, work: impl Future<Output = ()> + Send + 'static) -> Task {
        let share = self.clone();
        Box::pin(async move {
            let mut work = pin!(work);
            let mut waited = Duration::ZERO;
            poll_fn(|context| {
                let _entered = (share.enter(), wait::Waited::enter(&mut waited));
                work.as_mut().poll(context)
            })
            .await;
        })
    }
}
