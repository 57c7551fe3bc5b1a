//! The work of one client that waits for a thread.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{Job, LaneTask};

/// The work of one client.
pub(super) struct ClientQueue {
    work: VecDeque<Work>,
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
    Task(Arc<LaneTask>),
}

impl ClientQueue {
    /// An empty one with so many places for jobs.
    pub(super) fn new(places: usize) -> Self {
        let places = Arc::new(Semaphore::new(places));
        Self { work: VecDeque::new(), threads: 0, has_turn: false, places }
    }

    /// Pieces of work that wait.
    pub(super) fn waiting(&self) -> usize {
        self.work.len()
    }

    pub(super) fn push(&mut self, work: Work) {
        self.work.push_back(work);
    }

    /// The next piece of work, which gives its place back if it holds one.
    pub(super) fn pop(&mut self) -> Option<Work> {
        let work = self.work.pop_front()?;
        if matches!(work, Work::Job(_)) {
            self.places.add_permits(1);
        }
        Some(work)
    }
}
