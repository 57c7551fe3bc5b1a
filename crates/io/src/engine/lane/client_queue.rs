//! The work of one client that waits for a thread.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{Job, LaneTask, Rank};

/// The work of one client.
pub(super) struct ClientQueue {
    /// Tasks of [`Rank::Holder`]. Others would wait for what they hold until all that was queued
    /// before them is done.
    holders: VecDeque<Work>,
    /// All other work.
    work: VecDeque<Work>,
    /// A holder was taken last. Other work is next, if there is any: tasks that wake each other all
    /// the time do not keep it in the queue for good.
    holder_was_last: bool,
    /// Threads that do work of this client.
    pub(super) threads: usize,
    /// It is among the [turns](super::Queue::turns).
    pub(super) has_turn: bool,
    /// One permit per free place for a job.
    pub(super) places: Arc<Semaphore>,
}

pub(super) enum Work {
    /// Holds a place.
    Job(Job),
    /// Was woken. It holds none, for the waker cannot wait for one: there are as many of these, at
    /// most, as tasks were begun.
    Task(Arc<LaneTask>, Rank),
}

impl ClientQueue {
    /// An empty one with so many places for jobs.
    pub(super) fn new(places: usize) -> Self {
        Self {
            holders: VecDeque::new(),
            work: VecDeque::new(),
            holder_was_last: false,
            threads: 0,
            has_turn: false,
            places: Arc::new(Semaphore::new(places)),
        }
    }

    /// Pieces of work that wait.
    pub(super) fn waiting(&self) -> usize {
        self.holders.len() + self.work.len()
    }

    pub(super) fn push(&mut self, work: Work) {
        match work {
            Work::Task(_, Rank::Holder) => self.holders.push_back(work),
            Work::Task(_, Rank::Asker) | Work::Job(_) => self.work.push_back(work),
        }
    }

    /// The next piece of work, which gives its place back if it holds one.
    pub(super) fn pop(&mut self) -> Option<Work> {
        self.holder_was_last =
            !self.holders.is_empty() && (!self.holder_was_last || self.work.is_empty());
        if self.holder_was_last {
            return self.holders.pop_front();
        }
        let work = self.work.pop_front()?;
        if matches!(work, Work::Job(_)) {
            self.places.add_permits(1);
        }
        Some(work)
    }
}
