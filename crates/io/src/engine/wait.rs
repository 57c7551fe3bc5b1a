//! How long a task has waited for the threads that it asked for.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    /// That of the task that is polled on this thread.
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// That of the task that is polled on this thread.
pub(super) fn current() -> Duration {
    WAITED.get()
}

/// Adds a wait of that task.
pub(super) fn note(time: Duration) {
    WAITED.set(WAITED.get() + time);
}

/// Makes the time that of a task while the task is polled. Another one may be polled within it.
pub(super) struct Waited<'a> {
    task: &'a mut Duration,
    outer: Duration,
}

impl<'a> Waited<'a> {
    pub(super) fn enter(task: &'a mut Duration) -> Self {
        Self { outer: WAITED.replace(*task), task }
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        *self.task = WAITED.replace(self.outer);
    }
}
