//! The task that makes the calls of one file.
//!
//! It runs while there is uncommitted data. It alone makes the file's calls: the first poll of a
//! call's future hands it over, so the calls reach the connection in the order in which they were
//! chosen, however many are in flight.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use proto::nfs3::{CommitOk, WriteOk};
use rustix::io::Errno;
use tokio::time::Sleep;

use super::dirty_file::{DirtyData, DirtyFile, Task};
use super::extents::Action;
use super::{TracedFile, WriteTarget};
use crate::error::{Error, Result};
use crate::trace::Event;

struct Dispatch<T: WriteTarget> {
    file: Arc<DirtyFile<T>>,
    /// Calls in flight, in the order of sending.
    calls: Vec<Call>,
    /// Until the next deadline.
    sleep: Option<Pin<Box<Sleep>>>,
}

type Call = Pin<Box<dyn Future<Output = Answer> + Send>>;

enum Answer {
    Written { offset: u64, result: Result<WriteOk> },
    Committed { result: Result<CommitOk> },
}

impl<T: WriteTarget> DirtyFile<T> {
    /// Makes sure that the task sees what is new.
    pub(super) fn start_task(self: &Arc<Self>, dirty: &mut DirtyData<T>) {
        if !matches!(dirty.task, Task::Absent) {
            return dirty.wake();
        }
        dirty.task = Task::Busy;
        let file: Weak<Self> = Arc::downgrade(self);
        self.account.enlist(file);
        let file = Arc::clone(self);
        tokio::spawn(Dispatch { file, calls: Vec::new(), sleep: None });
    }

    /// Ends the task: all is committed.
    fn end_task(&self, dirty: &mut DirtyData<T>) {
        dirty.task = Task::Absent;
        self.account.withdraw();
    }

    /// Processes the reply to a call.
    fn answered(&self, answer: Answer) {
        trace_answer(&self.traced, &answer);
        let mut dirty = self.lock();
        let now = Instant::now();
        let outcome = match answer {
            Answer::Written { offset, result } => dirty.extents.written(offset, result, now),
            Answer::Committed { result } => {
                dirty.extents.committed(result.map(|ok| ok.verifier), now)
            }
        };
        let lost = outcome.err().map(|error| {
            // Each WRITE of a file can fail: one message until the error is reported.
            let is_first = !dirty.errors.is_unreported();
            dirty.errors.record(error.clone());
            (error, is_first)
        });
        let superseded = dirty.extents.superseded();
        drop(dirty);
        if let Some((error, true)) = lost {
            tracing::warn!(fileid = self.traced.fileid, %error, "written data is lost");
        }
        if let Some(target) = superseded {
            // Before those are notified that wait for it.
            target.superseded();
            self.lock().extents.superseded_noted();
        }
        self.progress.notify_waiters();
    }
}

impl<T: WriteTarget> Dispatch<T> {
    /// Polls the calls in flight. Returns whether any has ended.
    fn take_answers(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.calls.len();
        let file = &self.file;
        self.calls.retain_mut(|call| match call.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(answer) => {
                file.answered(answer);
                false
            }
        });
        self.calls.len() < before
    }

    /// Makes all calls that can be made now. Returns the next deadline, or `None` if the task is no
    /// longer needed.
    fn make_calls(&mut self, cx: &mut Context<'_>) -> Option<Option<Instant>> {
        loop {
            let action = {
                let mut dirty = self.file.lock();
                match dirty.extents.next(Instant::now()) {
                    Some(action) => action,
                    None if dirty.extents.is_clean() => {
                        self.file.end_task(&mut dirty);
                        return None;
                    }
                    None => {
                        dirty.task = Task::Asleep(cx.waker().clone());
                        return Some(dirty.extents.wake_at());
                    }
                }
            };
            trace_call(&self.file.traced, &action);
            let mut call = call(action);
            match call.as_mut().poll(cx) {
                Poll::Pending => self.calls.push(call),
                Poll::Ready(answer) => self.file.answered(answer),
            }
        }
    }

    /// Sleeps until `at`. Returns whether that has passed already.
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
        Action::Commit { callers } => {
            Box::pin(async move { Answer::Committed { result: commit_as_any(callers).await } })
        }
    }
}

/// COMMIT of the whole file, as each of `callers` until the server permits it: one of them may have
/// lost the permission since the WRITE.
async fn commit_as_any<T: WriteTarget>(callers: Vec<T>) -> Result<CommitOk> {
    let mut callers = callers.into_iter().peekable();
    loop {
        let caller = callers.next().expect("each byte has a writer");
        let committed = caller.commit(0, 0).await;
        let is_refused = |error: &Error| matches!(error.errno(), Errno::ACCESS | Errno::PERM);
        if callers.peek().is_none() || !committed.as_ref().is_err_and(is_refused) {
            return committed;
        }
    }
}

fn trace_call<T>(traced: &TracedFile, action: &Action<T>) {
    match action {
        Action::Write { offset, data, stable, again, .. } => {
            let len = data.len() as u64;
            if *again {
                traced.emit(Event::WriteResend, *offset, len, format_args!(""));
            }
            let stable = stable.name();
            traced.emit(Event::WriteCall, *offset, len, format_args!("stable={stable}"));
        }
        Action::Commit { .. } => traced.emit(Event::CommitCall, 0, 0, format_args!("")),
    }
}

fn trace_answer(traced: &TracedFile, answer: &Answer) {
    let error = |error: &Error| error.errno().raw_os_error();
    match answer {
        Answer::Written { offset, result: Ok(WriteOk { count, committed, .. }) } => {
            let (count, committed) = (u64::from(*count), committed.name());
            traced.emit(Event::WriteReply, *offset, count, format_args!("committed={committed}"));
        }
        Answer::Written { offset, result: Err(e) } => {
            traced.emit(Event::WriteReply, *offset, 0, format_args!("error={}", error(e)));
        }
        Answer::Committed { result: Ok(_) } => {
            traced.emit(Event::CommitReply, 0, 0, format_args!(""));
        }
        Answer::Committed { result: Err(e) } => {
            traced.emit(Event::CommitReply, 0, 0, format_args!("error={}", error(e)));
        }
    }
}
