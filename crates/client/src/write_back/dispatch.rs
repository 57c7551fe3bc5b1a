//! The task that makes the calls of one file.
//!
//! It exists while there is something that the server has not committed. It alone makes the file's
//! calls, one after the other: a call is handed over by the first poll of its future, so they reach
//! the connection in the order in which they were chosen, however many are under way.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use proto::nfs3::{CommitOk, WriteOk};
use tokio::time::Sleep;

use super::extents::Action;
use super::{Shared, WriteTarget};
use crate::error::Result;

pub(super) struct Dispatch<T: WriteTarget> {
    shared: Arc<Shared<T>>,
    /// In the order in which they were made.
    calls: Vec<Call>,
    /// Until something is due by itself.
    sleep: Option<Pin<Box<Sleep>>>,
}

type Call = Pin<Box<dyn Future<Output = Answer> + Send>>;

pub(super) enum Answer {
    Written { offset: u64, result: Result<WriteOk> },
    Committed { result: Result<CommitOk> },
}

impl<T: WriteTarget> Dispatch<T> {
    pub(super) fn new(shared: Arc<Shared<T>>) -> Self {
        Self { shared, calls: Vec::new(), sleep: None }
    }

    /// Polls the calls under way; whether one is over.
    fn take_answers(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.calls.len();
        let shared = &self.shared;
        self.calls.retain_mut(|call| match call.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(answer) => {
                shared.answered(answer);
                false
            }
        });
        self.calls.len() < before
    }

    /// Makes all calls that can be made now. Returns when to look again; `None` if the task is no
    /// longer needed.
    fn make_calls(&mut self, cx: &mut Context<'_>) -> Option<Option<Instant>> {
        loop {
            let action = {
                let mut state = self.shared.lock();
                match state.extents.next(Instant::now()) {
                    Some(action) => action,
                    None if state.extents.is_clean() => {
                        self.shared.end_task(&mut state);
                        return None;
                    }
                    None => {
                        state.set_waker(cx.waker());
                        return Some(state.extents.wake_at());
                    }
                }
            };
            self.shared.trace_call(&action);
            let mut call = call(action);
            match call.as_mut().poll(cx) {
                Poll::Pending => self.calls.push(call),
                Poll::Ready(answer) => self.shared.answered(answer),
            }
        }
    }

    /// Whether the time to look again has come already.
    fn sleep_until(&mut self, at: Option<Instant>, cx: &mut Context<'_>) -> bool {
        let Some(at) = at.map(tokio::time::Instant::from_std) else {
            self.sleep = None;
            return false;
        };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(cx).is_ready()
    }
}

impl<T: WriteTarget> Future for Dispatch<T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let answered = self.take_answers(cx);
            let Some(wake_at) = self.make_calls(cx) else { return Poll::Ready(()) };
            let is_due = self.sleep_until(wake_at, cx);
            if !answered && !is_due {
                return Poll::Pending;
            }
        }
    }
}

fn call<T: WriteTarget>(action: Action<T>) -> Call {
    match action {
        Action::Write { caller, offset, data, stable, .. } => Box::pin(async move {
            let result = caller.write(offset, data, stable).await;
            Answer::Written { offset, result }
        }),
        Action::Commit { caller } => Box::pin(async move {
            let result = caller.commit(0, 0).await;
            Answer::Committed { result }
        }),
    }
}
