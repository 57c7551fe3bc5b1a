//! One bounded queue of jobs and the threads that serve it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use tokio::sync::{Notify, Semaphore, oneshot};

use super::{FirstPoll, Task};

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
    /// Whether the task polled last on this thread asked to go on where it may block.
    static WISH: Cell<bool> = const { Cell::new(false) };
}

/// Resolves at once on a lane's thread. Elsewhere it is pending once, with the wish noted for
/// whoever polls the task; if they do not heed it, the task goes on where it is.
pub(super) async fn ask_for_lane() {
    let mut asked = false;
    poll_fn(|context| {
        if MAY_BLOCK_FOR.get() == Some(Purpose::Data) || asked {
            return Poll::Ready(());
        }
        asked = true;
        WISH.set(true);
        // Who does not know of wishes, such as a runtime, is to poll the task again at once.
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// See [`super::poll_once`].
pub(super) fn poll_once(task: &mut Task) -> FirstPoll {
    // One that a task polled by the runtime has left behind.
    WISH.set(false);
    match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(()) => FirstPoll::Done,
        Poll::Pending if WISH.take() => FirstPoll::WantsDataThread,
        Poll::Pending => FirstPoll::Waits,
    }
}

/// See the module.
pub(super) struct Lane {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    purpose: Purpose,
    threads_max: usize,
    /// One permit per free place in the queue.
    places: Semaphore,
    queue: Mutex<Queue>,
    work: Condvar,
    /// Told when the last thread of a closed lane has ended.
    ended: Notify,
}

/// The lock is held for a push or a pop, and while a thread is being started.
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Sleeping threads that no submitter has claimed yet.
    sleeping: usize,
    /// Sleeping threads that were claimed and have not woken yet. Counting them apart keeps a
    /// second submitter from relying on a thread that is already spoken for, and tells a wake-up
    /// from a spurious one.
    claimed: usize,
    /// Threads do not sleep any more but end.
    closed: bool,
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
            Queue { jobs: VecDeque::new(), threads: 0, sleeping: 0, claimed: 0, closed: false };
        Self {
            shared: Arc::new(Shared {
                name,
                purpose,
                threads_max,
                places: Semaphore::new(queue_max.min(Semaphore::MAX_PERMITS)),
                queue: Mutex::new(queue),
                work: Condvar::new(),
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
            return job();
        }
        let (sender, outcome) = oneshot::channel();
        let place = self.shared.places.acquire().await.expect("the semaphore is never closed");
        // The job is boxed only now: a caller dropped while it waits has allocated nothing but its
        // channel.
        self.shared.push(Box::new(move || {
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
        self.shared.push(job);
        place.forget();
        true
    }

    /// Begins a task on a thread of the lane. If it has to wait for something else than the disk, the
    /// rest of it is given to `go_on`.
    pub(super) async fn begin(&self, mut task: Task, go_on: impl FnOnce(Task) + Send + 'static) {
        let place = self.shared.places.acquire().await.expect("the semaphore is never closed");
        self.shared.push(Box::new(move || {
            // Whatever wakes the rest of it finds the waker of `go_on`, which polls it again.
            match catch_unwind(AssertUnwindSafe(|| poll_once(&mut task))) {
                Ok(FirstPoll::Done) => {}
                Ok(FirstPoll::WantsDataThread | FirstPoll::Waits) => go_on(task),
                // The panic hook has told; the task is gone, and what it held with it.
                Err(_panic) => {}
            }
        }));
        place.forget();
    }

    pub(super) fn queued(&self) -> usize {
        self.shared.lock().jobs.len()
    }

    pub(super) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
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
    /// Queues a job and sees to a thread for it: a sleeping one, else a new one, else the next to
    /// finish.
    fn push(self: &Arc<Self>, job: Job) {
        let mut queue = self.lock();
        if queue.sleeping > 0 {
            queue.sleeping -= 1;
            queue.claimed += 1;
            queue.jobs.push_back(job);
            drop(queue);
            self.work.notify_one();
            return;
        }
        if queue.threads < self.threads_max {
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
        queue.jobs.push_back(job);
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
        while let Some(job) = self.next_job() {
            self.places.add_permits(1);
            // A job's own panic goes to its caller. What is left is a result that nobody wanted and
            // whose destructor panics.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!(
                    lane = self.name,
                    "dropping the result of an abandoned job panicked"
                );
            }
        }
    }

    /// The next job, or `None` when the lane is closed and empty; this thread is no longer counted
    /// then, under the same lock, so that a submitter never relies on a thread about to end.
    fn next_job(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.closed {
                queue.threads -= 1;
                if queue.threads == 0 {
                    self.ended.notify_waiters();
                }
                return None;
            }
            queue.sleeping += 1;
            queue = self.sleep(queue);
        }
    }

    /// Sleeps until this thread, or one like it, is claimed or the lane is closed.
    fn sleep<'a>(&'a self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let mut queue = self
            .work
            .wait_while(queue, |queue| queue.claimed == 0 && !queue.closed)
            .unwrap_or_else(PoisonError::into_inner);
        if queue.claimed > 0 {
            queue.claimed -= 1;
        } else {
            queue.sleeping -= 1;
        }
        queue
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
