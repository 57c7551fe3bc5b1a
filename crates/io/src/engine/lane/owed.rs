//! The task that a thread has woken in its own lane, and takes from the queue next.
//!
//! A thread's work usually ends soon after it wakes a task, so no other thread is woken for the
//! first one. If the thread is to wait before it ends, it first has another one take the task.

use std::cell::Cell;
use std::sync::Arc;

use super::Shared;

thread_local! {
    /// This thread runs what ends, or calls [`rouse`], soon after it has woken a task: no job from
    /// the queue, which may wake one half-way. A job that runs in place, within a task, may do so
    /// too, and calls [`rouse`] before it waits.
    static MAY_OWE: Cell<bool> = const { Cell::new(false) };
    /// The lane of this thread, while there is such a task in its queue.
    static OWES: Cell<Option<Arc<Shared>>> = const { Cell::new(None) };
}

/// Runs `work`, after which this thread ends its work or calls [`rouse`].
pub(super) fn owing<T>(work: impl FnOnce() -> T) -> T {
    /// Also if `work` panics.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            MAY_OWE.set(self.0);
        }
    }
    let _before = Before(MAY_OWE.replace(true));
    work()
}

/// Whether this thread takes a task next that it has woken in `lane`, its own.
pub(super) fn takes_next(lane: &Arc<Shared>) -> bool {
    MAY_OWE.get() && OWES.replace(Some(Arc::clone(lane))).is_none()
}

/// Has another thread take the task that this one would take next: for a job that is about to wait,
/// and has woken tasks.
pub fn rouse() {
    if let Some(lane) = OWES.take() {
        lane.rouse();
    }
}

/// Notes that this thread takes the task now.
pub(super) fn settle() {
    OWES.set(None);
}
