//! A task that continues in its lane, on whichever thread it was woken.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::Shared;
use crate::engine::{ClientId, Task};

/// A task and the lane that it is queued in when it is woken.
pub(super) struct LaneTask {
    lane: Arc<Shared>,
    client: ClientId,
    state: Mutex<State>,
}

enum State {
    /// It is not being polled, and is in a queue.
    Queued(Task),
    /// It is to be queued when it is woken.
    Waits(Task),
    /// It is being polled, or has ended.
    Taken { woken: bool },
}

/// The outcome of polling.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has ended, normally or by a panic, which the panic hook has reported.
    Ended,
    /// It waits; its waker queues it.
    Waits,
    /// It was woken meanwhile, and the caller is to queue it.
    Woken,
}

impl LaneTask {
    pub(super) fn new(lane: &Arc<Shared>, client: ClientId, task: Task) -> Arc<Self> {
        Arc::new(Self { lane: Arc::clone(lane), client, state: Mutex::new(State::Queued(task)) })
    }

    pub(super) fn lane(&self) -> &Arc<Shared> {
        &self.lane
    }

    pub(super) fn client(&self) -> ClientId {
        self.client
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
