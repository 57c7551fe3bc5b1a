//! The work that remains after changes of `state`: records of clients, locks in the kernel, files
//! to be closed.
//!
//! Each waits for a disk, and is done by the threads of its device. A call waits for the records,
//! and for the files of the device that it works on; all else is done behind it, by one job at a
//! time for each device. So a disk that hangs takes one thread, and delays no other. That of the
//! records delays what others get of a client that is to lose its record.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io::{Device, DeviceNumber, Engine, Share};
use tokio::runtime::Handle;

use crate::held_files::HeldFiles;
use crate::inode_cache::Inode;
use crate::recovery::Recovery;
use crate::state::{Effect, Effects, State};

/// Performs effects of `state`.
pub(crate) struct Settlement {
    state: Arc<State>,
    held_files: Arc<HeldFiles>,
    /// The records of clients, if version 4 is served.
    recovery: Option<Arc<Recovery>>,
    engine: Arc<Engine>,
    tasks: Handle,
    /// Work that no call waits for. A queue has an entry while a task is at work on it.
    ///
    /// Bounded by the opens and locks that ended: their descriptors count until they are closed.
    queues: Mutex<HashMap<EffectQueue, Work>>,
}

/// Where effects wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum EffectQueue {
    /// The disk with the state directory.
    Records,
    Device(DeviceNumber),
}

/// The content of a queue, to be done in order.
#[derive(Default)]
struct Work {
    effects: Effects,
    /// To be closed.
    inodes: Vec<Arc<Inode>>,
    /// Effects that wait for the records in this queue, each list with the queue that it goes to.
    then: Vec<(EffectQueue, Effects)>,
}

impl Settlement {
    pub(crate) fn new(
        state: &Arc<State>,
        held_files: &Arc<HeldFiles>,
        recovery: Option<Recovery>,
        engine: &Arc<Engine>,
        tasks: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Arc::clone(state),
            held_files: Arc::clone(held_files),
            recovery: recovery.map(Arc::new),
            engine: Arc::clone(engine),
            tasks,
            queues: Mutex::default(),
        })
    }

    /// Whether there are records of clients.
    pub(crate) fn has_records(&self) -> bool {
        self.recovery.is_some()
    }

    /// Performs effects of a call before its reply: the records, and those on files of the device
    /// that the call works on. The others are left to the threads of their devices.
    pub(crate) async fn settle(self: &Arc<Self>, effects: Effects) {
        for (queue, effects) in self.sorted(effects) {
            let device = self.device(queue);
            let work = Work { effects, ..Work::default() };
            if queue == EffectQueue::Records || Share::is_of(&device) {
                let share = Share::new(&device, Share::current_client());
                self.perform(share, work).await;
            } else {
                self.enqueue(queue, work);
            }
        }
    }

    /// Leaves effects to the threads of their devices.
    pub(crate) fn settle_later(self: &Arc<Self>, effects: Effects) {
        let mut sorted = self.sorted(effects).into_iter().peekable();
        let is_records = |(queue, _): &(EffectQueue, Effects)| *queue == EffectQueue::Records;
        if let Some((queue, effects)) = sorted.next_if(is_records) {
            self.enqueue(queue, Work { effects, then: sorted.collect(), ..Work::default() });
        } else {
            self.enqueue_all(sorted);
        }
    }

    /// Gives up an inode that may be the last reference to it. To close one frees the blocks of a
    /// file that was removed, which is left to the threads of its device.
    pub(crate) fn close(self: &Arc<Self>, inode: Arc<Inode>) {
        if let Some(inode) = Arc::into_inner(inode) {
            let queue = EffectQueue::Device(inode.root().device());
            self.enqueue(queue, Work { inodes: vec![Arc::new(inode)], ..Work::default() });
        }
    }

    /// The effects that may wait, by their queues. The others are performed at once. The records
    /// come first: local programs and clients of version 3 get what a client has lost by the
    /// effects on its files, and the client must not be able to reclaim it then.
    fn sorted(self: &Arc<Self>, effects: Effects) -> Vec<(EffectQueue, Effects)> {
        let mut sorted: Vec<(EffectQueue, Effects)> = Vec::new();
        for effect in effects {
            let queue = match effect {
                Effect::Records => Some(EffectQueue::Records),
                Effect::Unpin { file, .. }
                | Effect::Unlock { file, .. }
                | Effect::Release { file, .. }
                | Effect::EndDelegation { file, .. } => {
                    self.held_files.device(file).map(EffectQueue::Device)
                }
                Effect::NotifyLock { .. } | Effect::Recall { .. } | Effect::NoRoom { .. } => None,
            };
            let Some(queue) = queue else { continue };
            match sorted.iter_mut().find(|(known, _)| *known == queue) {
                // One performs the changes of all.
                Some((EffectQueue::Records, _)) => (),
                Some((_, effects)) => effects.push(effect),
                None => sorted.push((queue, vec![effect])),
            }
        }
        sorted.retain(|(_, effects)| {
            let waits = !effects.iter().all(|effect| matches!(effect, Effect::Unpin { .. }));
            if !waits {
                let left =
                    effects.iter().flat_map(|effect| self.held_files.perform(&self.state, effect));
                left.for_each(|inode| self.close(inode));
            }
            waits
        });
        sorted.sort_by_key(|(queue, _)| *queue != EffectQueue::Records);
        sorted
    }

    fn device(&self, queue: EffectQueue) -> Device {
        match queue {
            EffectQueue::Records => self.engine.own_device().clone(),
            EffectQueue::Device(number) => self.engine.device(number),
        }
    }

    fn enqueue_all(self: &Arc<Self>, sorted: impl IntoIterator<Item = (EffectQueue, Effects)>) {
        for (queue, effects) in sorted {
            self.enqueue(queue, Work { effects, ..Work::default() });
        }
    }

    /// Adds to a queue, and begins to work on it.
    fn enqueue(self: &Arc<Self>, queue: EffectQueue, work: Work) {
        let mut queues = self.lock();
        match queues.entry(queue) {
            Entry::Occupied(mut entry) => entry.get_mut().add(work),
            Entry::Vacant(entry) => {
                entry.insert(work);
                let settlement = Arc::clone(self);
                self.tasks.spawn(async move { settlement.drain(queue).await });
            }
        }
    }

    /// Works on a queue until it is empty.
    async fn drain(self: Arc<Self>, queue: EffectQueue) {
        let device = self.device(queue);
        while let Some(mut work) = self.next(queue) {
            let then = mem::take(&mut work.then);
            self.perform(Share::new(&device, 0), work).await;
            self.enqueue_all(then);
        }
    }

    /// All that waits in a queue; ends it when nothing does.
    fn next(&self, queue: EffectQueue) -> Option<Work> {
        let mut queues = self.lock();
        let work = mem::take(queues.get_mut(&queue)?);
        if work.is_empty() {
            queues.remove(&queue);
            return None;
        }
        Some(work)
    }

    async fn perform(&self, share: Share, work: Work) {
        let (state, held_files) = (Arc::clone(&self.state), Arc::clone(&self.held_files));
        let recovery = self.recovery.clone();
        let job = move || {
            for effect in &work.effects {
                if *effect == Effect::Records
                    && let Some(recovery) = &recovery
                {
                    recovery.settle(&state);
                }
                drop(held_files.perform(&state, effect));
            }
            drop(work.inodes);
        };
        share.run(self.engine.data(job)).await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<EffectQueue, Work>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    fn add(&mut self, mut other: Self) {
        // Once is enough, however many clients have changed.
        let knows_records = self.effects.contains(&Effect::Records);
        other.effects.retain(|effect| !knows_records || *effect != Effect::Records);
        self.effects.append(&mut other.effects);
        self.inodes.append(&mut other.inodes);
        self.then.append(&mut other.then);
    }

    fn is_empty(&self) -> bool {
        self.effects.is_empty() && self.inodes.is_empty()
    }
}

#[cfg(test)]
mod tests;
