//! One bounded queue of jobs and the threads that serve it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread::{self, Thread};

use tokio::sync::{Notify, Semaphore, oneshot};

use super::Task;
use super::lane_task::{LaneTask, Progress};

type Job = Box<dyn FnOnce() + Send>;

/// What the threads of a lane may wait for, in rising order of how long that takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// Names and attributes.
    Metadata,
    /// File content and flushes, and all the rest.
    Data,
}

thread_local! {
    /// What this thread may block for; `None` on a thread that is no lane's.
    static MAY_BLOCK_FOR: Cell<Option<Purpose>> = const { Cell::new(None) };
    /// The lane that this thread serves.
    static SERVES: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
    /// That lane, while this thread has left a task in its queue to take it next.
    static OWES: Cell<Option<Arc<Shared>>> = const { Cell::new(None) };
}

/// Resolves at once on a thread that may block for data. Elsewhere it is pending once, so that a
/// task that goes on in a lane moves there; any other goes on where it is.
pub(super) async fn ask_for_lane() {
    let mut asked = false;
    poll_fn(|context| {
        if MAY_BLOCK_FOR.get() == Some(Purpose::Data) || asked {
            return Poll::Ready(());
        }
        asked = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// See the module.
pub(super) struct Lane {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    name: &'static str,
    purpose: Purpose,
    threads_max: usize,
    /// One permit per free place in the queue.
    places: Semaphore,
    queue: Mutex<Queue>,
    /// Told when the last thread of a closed lane has ended.
    ended: Notify,
}

/// The lock is held for a push or a pop, and while a thread is being started.
struct Queue {
    work: VecDeque<Work>,
    threads: usize,
    /// Sleeping threads that nobody has claimed yet. Who claims one takes it out, so that nobody
    /// else relies on it. The last that went to sleep is the first to be claimed: it finds most of
    /// what it needs in its processor's cache.
    sleeping: Vec<Thread>,
    /// Threads do not sleep any more but end.
    closed: bool,
}

enum Work {
    /// Holds a place.
    Job(Job),
    /// Was woken. It holds none, for whoever wakes cannot wait for one: there are as many of these,
    /// at most, as tasks were begun.
    Task(Arc<LaneTask>),
}

impl Lane {
    pub(super) fn new(
        name: &'static str,
        purpose: Purpose,
        threads_max: usize,
        queue_max: usize,
    ) -> Self {
        assert!(threads_max > 0, "{name}: a lane without threads would never run a job");
        assert!(queue_max > 0, "{name}: a queue without places would never take a job");
        let queue =
            Queue { work: VecDeque::new(), threads: 0, sleeping: Vec::new(), closed: false };
        Self {
            shared: Arc::new(Shared {
                name,
                purpose,
                threads_max,
                places: Semaphore::new(queue_max.min(Semaphore::MAX_PERMITS)),
                queue: Mutex::new(queue),
                ended: Notify::new(),
            }),
        }
    }

    /// Runs a job on a thread of the lane and resumes its panic here. A caller on a thread that may
    /// block for as much runs it itself: handing it over would only make two threads wait for one
    /// disk. A flush leaves the metadata threads all the same, for others' lookups need them.
    pub(super) async fn run<R, F>(&self, job: F) -> R
    where
        R: Send + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        if MAY_BLOCK_FOR.get() >= Some(self.shared.purpose) {
            if let Some(lane) = OWES.take() {
                lane.rouse();
            }
            return job();
        }
        let (sender, outcome) = oneshot::channel();
        let place = self.shared.places.acquire().await.expect("the semaphore is never closed");
        // The job is boxed only now: a caller dropped while it waits has allocated nothing but its
        // channel.
        self.shared.push_job(Box::new(move || {
            // Nobody listens any more if the caller was dropped; the result goes with it.
            let _ = sender.send(catch_unwind(AssertUnwindSafe(job)));
        }));
        // The thread that takes the job from the queue frees the place.
        place.forget();
        match outcome.await.expect("an accepted job always sends its outcome") {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Queues a job that nobody waits for, if there is a place; never runs it on this thread.
    pub(super) fn leave(&self, job: Job) -> bool {
        let Ok(place) = self.shared.places.try_acquire() else { return false };
        self.shared.push_job(job);
        place.forget();
        true
    }

    /// Begins a task on a thread of the lane, and lets it go on there.
    pub(super) async fn begin(&self, task: Task) {
        let task = LaneTask::new(&self.shared, task);
        self.queue(task).await;
    }

    /// Begins a task on this thread, and lets it go on in the lane.
    pub(super) async fn begin_here(&self, task: Task) {
        let task = LaneTask::new(&self.shared, task);
        match task.poll() {
            Progress::Woken => self.queue(task).await,
            Progress::Waits | Progress::Ended => {}
        }
    }

    async fn queue(&self, task: Arc<LaneTask>) {
        let place = self.shared.places.acquire().await.expect("the semaphore is never closed");
        self.shared.push_job(Box::new(move || go_on(task)));
        place.forget();
    }

    pub(super) fn queued(&self) -> usize {
        self.shared.lock().work.len()
    }

    pub(super) fn close(&self) {
        let sleeping = {
            let mut queue = self.shared.lock();
            queue.closed = true;
            std::mem::take(&mut queue.sleeping)
        };
        sleeping.iter().for_each(Thread::unpark);
    }

    pub(super) async fn shutdown(&self) {
        self.close();
        loop {
            // Registered before the check, so that an end between the two is not missed.
            let ended = self.shared.ended.notified();
            if self.shared.lock().threads == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl Shared {
    /// Queues a task that was woken.
    pub(super) fn push_task(self: &Arc<Self>, task: Arc<LaneTask>) {
        let is_own = SERVES.get() == Arc::as_ptr(self);
        if is_own && OWES.replace(Some(Arc::clone(self))).is_none() {
            // By what this thread does for the same lane, and that is mostly over when it wakes
            // somebody: the thread takes the task next, and no second one is woken. Before it waits
            // for the disk again it sees to a thread for the task.
            self.lock().work.push_back(Work::Task(task));
        } else {
            self.push(Work::Task(task));
        }
    }

    /// Queues a job, which has a place.
    fn push_job(self: &Arc<Self>, job: Job) {
        self.push(Work::Job(job));
    }

    fn push(self: &Arc<Self>, work: Work) {
        let mut queue = self.lock();
        let sleeping = self.claim_thread(&mut queue);
        queue.work.push_back(work);
        drop(queue);
        if let Some(thread) = sleeping {
            thread.unpark();
        }
    }

    /// Sees to a thread for what is in the queue.
    fn rouse(self: &Arc<Self>) {
        let mut queue = self.lock();
        if queue.work.is_empty() {
            return;
        }
        let sleeping = self.claim_thread(&mut queue);
        drop(queue);
        if let Some(thread) = sleeping {
            thread.unpark();
        }
    }

    /// Sees to one more thread: a sleeping one, which is to be woken, else a new one, else the next
    /// to finish.
    fn claim_thread(self: &Arc<Self>, queue: &mut Queue) -> Option<Thread> {
        let sleeping = queue.sleeping.pop();
        if sleeping.is_none() && queue.threads < self.threads_max {
            match self.start_thread(queue.threads) {
                Ok(()) => queue.threads += 1,
                Err(error) if queue.threads > 0 => {
                    let (lane, threads) = (self.name, queue.threads);
                    tracing::warn!(%error, lane, threads, "no further thread can be started");
                }
                // Nobody would ever run the job.
                Err(error) => panic!("{}: the first thread cannot be started: {error}", self.name),
            }
        }
        sleeping
    }

    fn start_thread(self: &Arc<Self>, index: usize) -> io::Result<()> {
        let shared = Arc::clone(self);
        thread::Builder::new()
            .name(format!("{}-{index}", self.name))
            .spawn(move || shared.serve())
            .map(drop)
    }

    fn serve(&self) {
        MAY_BLOCK_FOR.set(Some(self.purpose));
        SERVES.set(self);
        while let Some(work) = self.next_work() {
            match work {
                Work::Job(job) => {
                    self.places.add_permits(1);
                    self.contain(job);
                }
                Work::Task(task) => self.contain(|| go_on(task)),
            }
            // What was left for this thread it takes now.
            OWES.set(None);
        }
    }

    /// Runs one piece of work. A job's own panic goes to its caller. What is left is a result that
    /// nobody wanted and whose destructor panics.
    fn contain(&self, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!(lane = self.name, "dropping the result of abandoned work panicked");
        }
    }

    /// What to do next, or `None` when the lane is closed and empty; this thread is no longer
    /// counted then, under the same lock, so that a submitter never relies on a thread about to end.
    fn next_work(&self) -> Option<Work> {
        let mut queue = self.lock();
        loop {
            if let Some(work) = queue.work.pop_front() {
                return Some(work);
            }
            if queue.closed {
                queue.threads -= 1;
                if queue.threads == 0 {
                    self.ended.notify_waiters();
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
                return queue;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Polls a task on a thread of its lane.
fn go_on(task: Arc<LaneTask>) {
    if task.poll() == Progress::Woken {
        let lane = Arc::clone(task.lane());
        lane.push_task(task);
    }
}
