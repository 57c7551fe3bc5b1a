//! A task that goes on in its lane, whoever wakes it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::Task;
use super::lane::Shared;

/// A task and the lane that it is queued in when it is woken.
pub(super) struct LaneTask {
    lane: Arc<Shared>,
    state: Mutex<State>,
}

enum State {
    /// Nobody polls it, and somebody will.
    Queued(Task),
    /// It is to be queued when it is woken.
    Waits(Task),
    /// Somebody polls it, or it has ended.
    Taken { woken: bool },
}

/// What came of polling.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has ended, by itself or by a panic, of which the panic hook has told.
    Ended,
    /// Whoever wakes it queues it.
    Waits,
    /// It was woken meanwhile, and the caller is to queue it.
    Woken,
}

impl LaneTask {
    pub(super) fn new(lane: &Arc<Shared>, task: Task) -> Arc<Self> {
        Arc::new(Self { lane: Arc::clone(lane), state: Mutex::new(State::Queued(task)) })
    }

    pub(super) fn lane(&self) -> &Arc<Shared> {
        &self.lane
    }

    /// Polls it. Only for the one that has it from the queue, or has made it.
    pub(super) fn poll(self: &Arc<Self>) -> Progress {
        let taken = std::mem::replace(&mut *self.lock(), State::Taken { woken: false });
        let State::Queued(mut task) = taken else { unreachable!("it is in the queue once") };
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut context))) {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(())) | Err(_) => return Progress::Ended,
        }
        let mut state = self.lock();
        if matches!(*state, State::Taken { woken: true }) {
            *state = State::Queued(task);
            Progress::Woken
        } else {
            *state = State::Waits(task);
            Progress::Waits
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for LaneTask {
    fn wake(self: Arc<Self>) {
        {
            let mut state = self.lock();
            match std::mem::replace(&mut *state, State::Taken { woken: true }) {
                State::Waits(task) => *state = State::Queued(task),
                queued @ State::Queued(_) => {
                    *state = queued;
                    return;
                }
                State::Taken { .. } => return,
            }
        }
        let lane = Arc::clone(&self.lane);
        lane.push_task(self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Arc::clone(self).wake();
    }
}
