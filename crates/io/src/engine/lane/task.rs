//! A task that continues in its lane, on whichever thread it was woken.

use std::hint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::noted::{Destination, Lanes, noting};
use super::{Rank, Shared, owing, rouse_owed};
use crate::engine::{ClientId, Task};

/// A task and the lane that it is queued in when it is woken.
pub(super) struct LaneTask {
    /// The lane that it was begun in.
    own: Arc<Shared>,
    client: ClientId,
    state: Mutex<State>,
}

struct State {
    /// The lane of another device, within whose share it waits.
    elsewhere: Option<Arc<Shared>>,
    stage: Stage,
}

enum Stage {
    /// It is not being polled, and is in a queue.
    Queued(Task),
    /// It is to be queued when it is woken.
    Waits(Task),
    /// It goes on on this thread when it is woken.
    WaitsHere(Task, Thread),
    /// It is being polled, or has ended.
    Taken { woken: bool },
}

/// The outcome of polling.
pub(super) enum Progress {
    /// It has ended, normally or by a panic, which the panic hook has reported.
    Ended,
    /// It waits; its waker queues it.
    Waits,
    /// It was woken meanwhile, and the caller is to queue it.
    Woken(Destination),
}

/// How long a thread looks for the end of a task's wait before it sleeps: a turn on a file takes
/// that long, and so does waking a thread.
const SPIN_MAX: Duration = Duration::from_micros(15);

impl State {
    fn replace(&mut self, stage: Stage) -> Stage {
        std::mem::replace(&mut self.stage, stage)
    }
}

impl LaneTask {
    pub(super) fn new(lane: &Arc<Shared>, client: ClientId, task: Task) -> Arc<Self> {
        let state = State { elsewhere: None, stage: Stage::Queued(task) };
        Arc::new(Self { own: Arc::clone(lane), client, state: Mutex::new(state) })
    }

    pub(super) fn lane(&self) -> Arc<Shared> {
        Arc::clone(self.lock().elsewhere.as_ref().unwrap_or(&self.own))
    }

    /// Has it queued in the lane of the device within whose share it waits. What it holds there, a
    /// file's lock perhaps, must not wait for a thread of another device.
    pub(super) fn move_to(&self, within: Option<Lanes>) {
        self.lock().elsewhere = self.elsewhere(within);
    }

    fn elsewhere(&self, within: Option<Lanes>) -> Option<Arc<Shared>> {
        within.map(|lanes| lanes.of(self.own.purpose))
    }

    /// Queues it. Only for the one that has polled it, or has made it.
    pub(super) fn queue(self: Arc<Self>, to: Destination) {
        to.lane.unwrap_or_else(|| self.lane()).push_task(self, to.rank);
    }

    pub(super) fn client(&self) -> ClientId {
        self.client
    }

    /// Polls it. Only for the one that has it from the queue, or has made it.
    pub(super) fn poll(self: &Arc<Self>) -> Progress {
        self.poll_and(Stage::Waits)
    }

    /// Polls it; it is in the stage that `waits` makes while it waits.
    fn poll_and(self: &Arc<Self>, waits: impl FnOnce(Task) -> Stage) -> Progress {
        let taken = self.lock().replace(Stage::Taken { woken: false });
        let Stage::Queued(mut task) = taken else { unreachable!("it is in the queue once") };
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        let poll = || catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut context)));
        let (polled, noted) = noting(poll);
        match polled {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(())) | Err(_) => return Progress::Ended,
        }
        let mut state = self.lock();
        state.elsewhere = self.elsewhere(noted.within);
        if matches!(state.stage, Stage::Taken { woken: true }) {
            state.stage = Stage::Queued(task);
            Progress::Woken(noted.to)
        } else {
            state.stage = waits(task);
            Progress::Waits
        }
    }

    /// Polls it on this thread until it has ended, and waits here when it waits, at most `patience`
    /// each time; then it goes on in its lane. One that asks for another lane goes on there at
    /// once. Returns whether it has ended.
    pub(super) fn run_here(self: &Arc<Self>, patience: Duration) -> bool {
        loop {
            match owing(|| self.poll_and(|task| Stage::WaitsHere(task, thread::current()))) {
                Progress::Ended => return true,
                // Jobs that it handed over from here would be behind all work of its client there.
                Progress::Woken(to) if to.lane.is_some() => {
                    Arc::clone(self).queue(to);
                    return false;
                }
                Progress::Woken(_) => {}
                Progress::Waits => {
                    rouse_owed();
                    if !self.is_woken_within(patience) {
                        return false;
                    }
                }
            }
        }
    }

    /// Waits on this thread until the task is woken, which is then in no queue. If it takes longer,
    /// its waker queues it.
    fn is_woken_within(&self, patience: Duration) -> bool {
        let began = Instant::now();
        loop {
            if matches!(self.lock().stage, Stage::Queued(_)) {
                return true;
            }
            let waited = began.elapsed();
            if waited < SPIN_MAX {
                (0..32).for_each(|_| hint::spin_loop());
            } else if waited < patience {
                thread::park_timeout(patience - waited);
            } else {
                break;
            }
        }
        let mut state = self.lock();
        match state.replace(Stage::Taken { woken: false }) {
            Stage::WaitsHere(task, _) => {
                state.stage = Stage::Waits(task);
                false
            }
            woken => {
                state.stage = woken;
                true
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for LaneTask {
    fn wake(self: Arc<Self>) {
        let lane = {
            let mut state = self.lock();
            match state.replace(Stage::Taken { woken: true }) {
                Stage::Waits(task) => state.stage = Stage::Queued(task),
                Stage::WaitsHere(task, thread) => {
                    state.stage = Stage::Queued(task);
                    drop(state);
                    thread.unpark();
                    return;
                }
                queued @ Stage::Queued(_) => {
                    state.stage = queued;
                    return;
                }
                Stage::Taken { .. } => return,
            }
            Arc::clone(state.elsewhere.as_ref().unwrap_or(&self.own))
        };
        lane.push_task(self, Rank::Holder);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Arc::clone(self).wake();
    }
}
