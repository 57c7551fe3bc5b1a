//! A queue of work for each client, and the threads that serve them in turn.

mod asking;
mod client_queue;
mod noted;
mod owed;
mod task;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, oneshot};

use super::{ClientId, Task};
use crate::identity::{self, Identity};
use crate::time_slice::take_short_slices;
pub(super) use asking::{ask_for_lane, give_way};
use client_queue::{ClientQueue, Work};
use noted::Noted;
pub(super) use noted::{Destination, note_wait, noting};
use owed::owing;
pub use owed::rouse as rouse_owed;
use task::{LaneTask, Progress};

type Job = Box<dyn FnOnce() + Send>;

/// Distinguishes the devices of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceId(pub(super) u64);

/// The waits that are allowed on a lane's threads, from the shortest to the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaneKind {
    /// Names and attributes.
    Metadata,
    /// File content and flushes, and all the rest.
    Data,
}

/// The place of a task among the work of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// It may hold what others wait for, tasks of other clients too: a file's lock, pages, room in
    /// the window. It is taken before what holds nothing. Every task that was woken is one, for it
    /// may have been given what it waited for.
    Holder,
    /// It holds nothing, and has only asked for a thread, or lets others go first. It has its turn
    /// behind all that its client has queued.
    Asker,
}

/// The waits allowed on a lane's thread: for one device, and as long as the lane's purpose allows.
#[derive(Clone, Copy)]
struct Waits {
    device: DeviceId,
    longest: LaneKind,
}

thread_local! {
    /// The waits allowed on this thread; `None` outside a lane.
    static MAY_WAIT: Cell<Option<Waits>> = const { Cell::new(None) };
    /// The lane that this thread serves.
    static SERVES: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
    /// The tasks of that lane that were woken, within [`wake_here`].
    static WOKEN: RefCell<Option<Vec<Arc<LaneTask>>>> = const { RefCell::new(None) };
    /// The jobs that these tasks have left for the end, while they go on.
    static LEFT: RefCell<Option<Vec<Job>>> = const { RefCell::new(None) };
}

/// Runs `wake`. The tasks of this thread's lane that it wakes go on here and now, one after the
/// other, up to where they would block; then the jobs that they have left by
/// [`after_tasks_woken_here`].
pub(super) fn wake_here(wake: impl FnOnce()) {
    if goes_on_here() {
        // By one of those tasks: what it wakes is queued as elsewhere.
        return wake();
    }
    /// Leaves nothing behind if `wake` panics.
    struct Woken;
    impl Drop for Woken {
        fn drop(&mut self) {
            for task in WOKEN.take().into_iter().flatten() {
                task.lane().push_task(task, Rank::Holder);
            }
            LEFT.take().into_iter().flatten().for_each(|job| job());
        }
    }
    let woken = Woken;
    WOKEN.set(Some(Vec::new()));
    wake();
    let tasks = WOKEN.take();
    LEFT.set(Some(Vec::new()));
    tasks.into_iter().flatten().for_each(go_on);
    drop(woken);
}

/// Runs `job` when the tasks have gone on that this thread runs within [`wake_here`]; at once
/// outside it.
pub(super) fn after_tasks_woken_here(job: impl FnOnce() + Send + 'static) {
    if !goes_on_here() {
        return job();
    }
    LEFT.with_borrow_mut(|left| left.get_or_insert_default().push(Box::new(job)));
}

/// Whether this thread runs a task that it has woken within [`wake_here`]. Others wait for that
/// task, so it must not block here.
fn goes_on_here() -> bool {
    LEFT.with_borrow(Option::is_some)
}

/// Whether this thread may block for as long as `purpose` takes, and no task waits for the one that
/// it runs.
fn may_block_here(purpose: LaneKind) -> bool {
    MAY_WAIT.get().is_some_and(|may| may.longest >= purpose) && !goes_on_here()
}

/// See the module.
pub(super) struct Lane {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    device: DeviceId,
    purpose: LaneKind,
    threads_max: usize,
    /// Jobs of one client that wait for a thread, at most.
    queue_max: usize,
    queue: Mutex<Queue>,
    /// Notified when the last thread of a closed lane has ended.
    all_ended: Notify,
}

/// The lock is held for a push or a pop, and while a thread is being started.
struct Queue {
    /// Clients with work that waits or is being done, or with callers that wait for a place.
    clients: BTreeMap<ClientId, ClientQueue>,
    /// Clients whose work a thread may take, each once, in the order of their turns.
    turns: VecDeque<ClientId>,
    /// Work that waits, of all clients.
    waiting: usize,
    threads: usize,
    /// Sleeping threads that are not claimed yet. A submitter that claims one takes it out, so that
    /// no other relies on it. The last that went to sleep is claimed first: its processor's cache
    /// is warmest.
    sleeping: Vec<Thread>,
    /// Threads on their way to work: started, or taken out of those that sleep, and not at it yet.
    claimed: usize,
    /// Threads do not sleep any more but end.
    closed: bool,
}

impl Queue {
    fn has_started(&self) -> bool {
        self.threads > 0 || self.closed
    }
}

impl Lane {
    pub(super) fn new(
        name: &'static str,
        device: DeviceId,
        purpose: LaneKind,
        threads_max: usize,
        queue_max: usize,
    ) -> Self {
        assert!(threads_max > 0, "{name}: a lane without threads would never run a job");
        assert!(queue_max > 0, "{name}: a queue without places would never take a job");
        let queue = Queue {
            clients: BTreeMap::new(),
            turns: VecDeque::new(),
            waiting: 0,
            threads: 0,
            sleeping: Vec::new(),
            claimed: 0,
            closed: false,
        };
        Self {
            shared: Arc::new(Shared {
                name,
                device,
                purpose,
                threads_max,
                queue_max: queue_max.min(Semaphore::MAX_PERMITS),
                queue: Mutex::new(queue),
                all_ended: Notify::new(),
            }),
        }
    }

    /// Runs a job on a thread of the lane and resumes its panic here. A caller on a thread of the
    /// same device that may block for as much runs it itself: handing it over would only make two
    /// threads wait for one disk. A flush leaves the metadata threads all the same, for others'
    /// lookups need them; no thread waits for another's disk; and a task that others wait for
    /// within [`wake_here`] does not wait there.
    pub(super) async fn run<R, F>(&self, client: ClientId, job: F) -> R
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        if self.shared.may_wait_here() && !goes_on_here() {
            rouse_owed();
            return job();
        }
        Box::pin(self.hand_over(client, job)).await
    }

    async fn hand_over<R, F>(&self, client: ClientId, job: F) -> R
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        let (sender, outcome) = oneshot::channel();
        let job = Box::new(move || {
            let outcome = catch_unwind(AssertUnwindSafe(job));
            // The channel is closed if the caller was dropped; the result is dropped with it.
            let _ = owing(|| sender.send(outcome));
        });
        self.shared.submit(client, job).await;
        match outcome.await.expect("an accepted job always sends its outcome") {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Queues a job on `subject` without a waiter; never runs it on this thread. If there is no
    /// place for it, the subject comes back.
    pub(super) fn leave<T: Send + 'static>(
        &self,
        client: ClientId,
        subject: T,
        job: impl FnOnce(T) + Send + 'static,
    ) -> Result<(), T> {
        let queued = self.shared.try_submit(client, subject, |subject| Box::new(|| job(subject)));
        queued.map_err(|(subject, _)| subject)
    }

    /// Begins a task of a client on a thread of the lane, where it continues.
    pub(super) async fn begin(&self, client: ClientId, task: Task) {
        let task = LaneTask::new(&self.shared, client, task);
        self.shared.submit(client, Box::new(move || go_on(task))).await;
    }

    /// Begins a task of a client on this thread; it continues in the lane.
    pub(super) fn begin_here(&self, client: ClientId, task: Task) {
        poll(LaneTask::new(&self.shared, client, task));
    }

    /// Goes on with a task of a client in the lane, or where it has `noted`. It has begun, and
    /// takes no place: its caller could give up the wait for one, and the task with it.
    pub(super) fn go_on(&self, client: ClientId, task: Task, noted: Noted) {
        let task = LaneTask::new(&self.shared, client, task);
        task.move_to(noted.within);
        task.queue(noted.to);
    }

    /// A place in its queue.
    pub(super) fn place(&self, rank: Rank) -> Destination {
        Destination { lane: Some(Arc::clone(&self.shared)), rank }
    }

    /// Runs a task of a client on this thread, which serves the lane. See [`LaneTask::run_here`].
    pub(super) fn run_here(&self, client: ClientId, task: Task, patience: Duration) -> bool {
        let has_ended = LaneTask::new(&self.shared, client, task).run_here(patience);
        // This thread goes on with other work: another one takes the task that it was to take next.
        rouse_owed();
        has_ended
    }

    /// Jobs and tasks that wait for a thread.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.shared.lock().waiting
    }

    /// Whether a thread at work for `client` is wanted for other work: of another client, which is
    /// not to wait for a processor either, or of this one, if no thread is on its way to it.
    pub(super) fn wants_thread(&self, client: ClientId) -> bool {
        let queue = self.shared.lock();
        let is_wanted = |own: &ClientQueue| {
            // Without a turn it waits for one of the client's own threads.
            own.waiting() > 0 && (!own.has_turn || own.waiting() > queue.claimed)
        };
        queue.turns.iter().any(|&turn| turn != client)
            || queue.clients.get(&client).is_some_and(is_wanted)
    }

    /// Starts the first thread, unless the lane is closed. It stays until the lane is closed: work
    /// that is queued always finds one.
    ///
    /// # Errors
    /// The system refuses it.
    pub(super) fn start(&self) -> io::Result<()> {
        let mut queue = self.shared.lock();
        if queue.has_started() { Ok(()) } else { self.shared.add_thread(&mut queue) }
    }

    /// Whether nothing is left for [`Self::start`].
    pub(super) fn has_started(&self) -> bool {
        self.shared.lock().has_started()
    }

    /// Whether no work is queued, and all threads sleep.
    pub(super) fn is_idle(&self) -> bool {
        let queue = self.shared.lock();
        queue.waiting == 0 && queue.threads == queue.sleeping.len()
    }

    pub(super) fn close(&self) {
        let sleeping = {
            let mut queue = self.shared.lock();
            queue.closed = true;
            queue.claimed += queue.sleeping.len();
            std::mem::take(&mut queue.sleeping)
        };
        sleeping.iter().for_each(Thread::unpark);
    }

    pub(super) async fn shutdown(&self) {
        self.close();
        loop {
            // Registered before the check, so that an end between the two is not missed.
            let ended = self.shared.all_ended.notified();
            if self.shared.lock().threads == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl Shared {
    /// Whether this thread may wait for what the lane's threads wait for.
    fn may_wait_here(&self) -> bool {
        let allows = |may: Waits| may.device == self.device && may.longest >= self.purpose;
        MAY_WAIT.get().is_some_and(allows)
    }

    /// Queues a task that was woken.
    fn push_task(self: &Arc<Self>, task: Arc<LaneTask>, rank: Rank) {
        let client = task.client();
        let is_own = SERVES.get() == Arc::as_ptr(self);
        let keep =
            |woken: &mut Option<Vec<_>>| woken.as_mut().map(|woken| woken.push(Arc::clone(&task)));
        if is_own && WOKEN.with_borrow_mut(keep).is_some() {
            return;
        }
        if is_own && owed::takes_next(self) {
            self.add(&mut self.lock(), client, Work::Task(task, rank));
        } else {
            let mut queue = self.lock();
            let sleeping = self.push(&mut queue, client, Work::Task(task, rank));
            drop(queue);
            wake(sleeping);
        }
    }

    /// Queues a job. Waits while its client has as many waiting as it may.
    async fn submit(self: &Arc<Self>, client: ClientId, job: Job) {
        let Err((job, places)) = self.try_submit(client, job, |job| job) else { return };
        // The thread that takes the job from the queue frees the place.
        places.acquire().await.expect("the semaphore is never closed").forget();
        let mut queue = self.lock();
        let sleeping = self.push(&mut queue, client, Work::Job(job));
        drop(queue);
        wake(sleeping);
    }

    /// Queues a job on `subject` if its client has a place for it; else gives the subject back, and
    /// the client's places.
    fn try_submit<T>(
        self: &Arc<Self>,
        client: ClientId,
        subject: T,
        job: impl FnOnce(T) -> Job,
    ) -> Result<(), (T, Arc<Semaphore>)> {
        let mut queue = self.lock();
        let places = &self.client(&mut queue, client).places;
        match places.try_acquire() {
            Ok(place) => place.forget(),
            Err(_) => return Err((subject, Arc::clone(places))),
        }
        let sleeping = self.push(&mut queue, client, Work::Job(job(subject)));
        drop(queue);
        wake(sleeping);
        Ok(())
    }

    /// Queues work and sees to a thread for it. Returns a thread that is to be woken, without the
    /// lock.
    fn push(self: &Arc<Self>, queue: &mut Queue, client: ClientId, work: Work) -> Option<Thread> {
        let may_begin = self.add(queue, client, work);
        if may_begin { self.claim_thread(queue) } else { None }
    }

    /// Queues work, and returns whether its client has a turn. If it has none, one of its threads
    /// takes the work when it has ended what it does.
    fn add(&self, queue: &mut Queue, client: ClientId, work: Work) -> bool {
        self.client(queue, client).push(work);
        queue.waiting += 1;
        self.give_turn(queue, client)
    }

    fn client<'a>(&self, queue: &'a mut Queue, client: ClientId) -> &'a mut ClientQueue {
        queue.clients.entry(client).or_insert_with(|| ClientQueue::new(self.queue_max))
    }

    /// Gives a client its turn, if it has work and not too many threads already. Returns whether it
    /// has one.
    fn give_turn(&self, queue: &mut Queue, id: ClientId) -> bool {
        let Some(client) = queue.clients.get_mut(&id) else { return false };
        if !client.has_turn
            && client.waiting() > 0
            && client.threads < client_threads_max(self.threads_max)
        {
            client.has_turn = true;
            queue.turns.push_back(id);
        }
        client.has_turn
    }

    /// Work of the client whose turn it is, which has one thread more then.
    fn take(&self, queue: &mut Queue) -> Option<(ClientId, Work)> {
        let id = queue.turns.pop_front()?;
        let client = queue.clients.get_mut(&id).expect("a client with a turn has a queue");
        client.has_turn = false;
        client.threads += 1;
        let work = client.pop().expect("a client with a turn has work");
        queue.waiting -= 1;
        self.give_turn(queue, id);
        Some((id, work))
    }

    /// Notes that a thread has ended work of a client.
    fn ended(&self, queue: &mut Queue, id: ClientId) {
        let client = queue.clients.get_mut(&id).expect("a client with a thread has a queue");
        client.threads -= 1;
        let is_unused =
            client.threads == 0 && client.waiting() == 0 && Arc::strong_count(&client.places) == 1;
        if is_unused && queue.clients.len() > CLIENTS_KEPT_MAX {
            queue.clients.remove(&id);
        } else {
            self.give_turn(queue, id);
        }
    }

    /// Sees to a thread for what is in the queue.
    fn rouse(self: &Arc<Self>) {
        let mut queue = self.lock();
        if queue.turns.is_empty() {
            return;
        }
        let sleeping = self.claim_thread(&mut queue);
        drop(queue);
        wake(sleeping);
    }

    /// Sees to a thread for the work that was queued last: one on its way to work that another has
    /// taken, else a sleeping one, which is to be woken, else a new one, else the next to finish.
    fn claim_thread(self: &Arc<Self>, queue: &mut Queue) -> Option<Thread> {
        if queue.claimed >= queue.waiting {
            return None;
        }
        let sleeping = queue.sleeping.pop();
        if sleeping.is_some() {
            queue.claimed += 1;
        } else if queue.threads < self.threads_max
            && let Err(error) = self.add_thread(queue)
        {
            let (lane, threads) = (self.name, queue.threads);
            // Only a closed lane has no thread left. It would never run the job.
            assert!(threads > 0, "{lane}: cannot start a thread after the end: {error}");
            tracing::warn!(%error, lane, threads, "cannot start another thread");
        }
        sleeping
    }

    /// Starts a thread, which is on its way to work then.
    fn add_thread(self: &Arc<Self>, queue: &mut Queue) -> io::Result<()> {
        let shared = Arc::clone(self);
        thread::Builder::new()
            .name(format!("{}-{}", self.name, queue.threads))
            .spawn(move || shared.serve())?;
        queue.threads += 1;
        queue.claimed += 1;
        Ok(())
    }

    fn serve(&self) {
        take_short_slices();
        // A thread inherits the identity of the thread that happened to start it.
        if let Err(error) = identity::assume(&Identity::Server) {
            // Jobs take on their own identity, or report why they cannot.
            tracing::error!(%error, lane = self.name, "cannot return to the server's identity");
        }
        MAY_WAIT.set(Some(Waits { device: self.device, longest: self.purpose }));
        SERVES.set(self);
        let mut done_for = None;
        while let Some((client, work)) = self.next_work(done_for) {
            done_for = Some(client);
            match work {
                Work::Job(job) => self.contain(job),
                Work::Task(task, _) => self.contain(|| go_on(task)),
            }
            owed::settle();
        }
    }

    /// Runs one piece of work. A job's own panic goes to its caller. The remaining case is a
    /// dropped result whose destructor panics.
    fn contain(&self, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!(lane = self.name, "dropping the result of a cancelled job panicked");
        }
    }

    /// The next work after work of `done_for`, or `None` when the lane is closed and there is
    /// nothing for this thread; the thread is no longer counted then, under the same lock, so that
    /// a submitter never relies on a thread about to end. Work of a client without a turn is left
    /// to the threads that the client has.
    fn next_work(&self, done_for: Option<ClientId>) -> Option<(ClientId, Work)> {
        let mut queue = self.lock();
        match done_for {
            Some(client) => self.ended(&mut queue, client),
            None => queue.claimed -= 1,
        }
        loop {
            if let Some(work) = self.take(&mut queue) {
                return Some(work);
            }
            if queue.closed {
                queue.threads -= 1;
                if queue.threads == 0 {
                    self.all_ended.notify_waiters();
                }
                return None;
            }
            queue = self.sleep(queue);
        }
    }

    /// Sleeps until this thread is claimed or the lane is closed.
    fn sleep<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let this = thread::current();
        queue.sleeping.push(this.clone());
        loop {
            drop(queue);
            thread::park();
            queue = self.lock();
            if queue.sleeping.iter().all(|thread| thread.id() != this.id()) {
                queue.claimed -= 1;
                return queue;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Clients without work whose queues are kept, so that a job of a client that has one at a time
/// allocates no queue.
const CLIENTS_KEPT_MAX: usize = 64;

/// Threads that one client may hold: three quarters of a lane's, rounded up, so that the others'
/// calls find one at once however long its own take.
fn client_threads_max(threads_max: usize) -> usize {
    threads_max - threads_max / 4
}

fn wake(sleeping: Option<Thread>) {
    if let Some(thread) = sleeping {
        thread.unpark();
    }
}

/// Polls a task on a thread of its lane.
fn go_on(task: Arc<LaneTask>) {
    owing(|| poll(task));
}

/// Polls a task on this thread, and queues it if it was woken meanwhile.
fn poll(task: Arc<LaneTask>) {
    if let Progress::Woken(to) = task.poll() {
        task.queue(to);
    }
}
