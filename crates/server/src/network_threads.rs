//! The threads that sockets live on.
//!
//! Each runs a single-threaded runtime, and a connection stays on the thread it was given. A
//! runtime that shares its tasks among threads wakes the others for every call that a quiet
//! connection sends, which costs a good part of a small READ (figures: docs/decisions,
//! "network-threads"). The work itself is spread over all processors by the engine's lanes; here
//! bytes are received, and calls answered from memory.

use std::io::Result;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use io::ClientId;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::busy_poll::BusyPolls;
use crate::counters::{assign_stripe, next_stripes};
use crate::fair_queue::{FairQueue, FlowHandle, Ledger};

/// A busy thread runs one task that another thread has made or woken for each so many tasks: a new
/// connection, one to be evicted, one whose calls a lane has finished. With tokio's 31 they
/// wait for seconds beside a few hundred connections that send as fast as they can.
const REMOTE_INTERVAL: u32 = 2;
/// A busy thread looks for bytes in its sockets after so many tasks, instead of tokio's 61. A task
/// takes about a millisecond where calls are waiting.
const SOCKETS_INTERVAL: u32 = 16;

/// A fixed number of threads; they end when this is dropped.
pub(crate) struct NetworkThreads {
    accepting: NetworkThread,
    threads: Vec<NetworkThread>,
    next: AtomicUsize,
}

struct NetworkThread {
    runtime: Handle,
    queue: Arc<FairQueue>,
    /// The thread waits for this to be dropped.
    _ends: oneshot::Sender<()>,
}

impl NetworkThreads {
    /// Starts a thread for each processor that this process may use, and one that accepts.
    ///
    /// # Errors
    /// The system refuses a thread or a poll descriptor.
    pub(crate) fn start(polls: &Arc<BusyPolls>) -> Result<Self> {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let ledger = Arc::new(Ledger::default());
        // Before there are threads that could take them.
        let stripes = next_stripes(count);
        let accepting = NetworkThread::start("spillway-accept".to_owned(), None, &ledger, polls)?;
        let start = |(index, stripe)| {
            NetworkThread::start(format!("spillway-net-{index}"), Some(stripe), &ledger, polls)
        };
        let threads = stripes.enumerate().map(start).collect::<Result<_>>()?;
        Ok(Self { accepting, threads, next: AtomicUsize::new(0) })
    }

    /// The thread that accepts connections. It has no calls: beside those of a few busy
    /// connections, a new one would wait for seconds in a full queue of the kernel.
    pub(crate) fn accepting(&self) -> &Handle {
        &self.accepting.runtime
    }

    /// The threads in turn, for work of the server.
    pub(crate) fn next(&self) -> &Handle {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.threads.len();
        &self.threads[turn].runtime
    }

    /// The thread for a connection of `client`: the one with the fewest connections of that client,
    /// and of all. In turn they would all be on one thread if the client made two and used one of
    /// them.
    pub(crate) fn join(&self, client: ClientId) -> (&Handle, FlowHandle) {
        let thread = self.threads.iter().min_by_key(|thread| thread.queue.connections(client));
        let thread = thread.expect("there is at least one");
        (&thread.runtime, thread.queue.join(client))
    }

    /// Ends when each of the threads has run a task that it was given now.
    pub(crate) async fn round_trip(&self) {
        let threads = iter::once(&self.accepting).chain(&self.threads);
        let tasks: Vec<_> = threads.map(|thread| thread.runtime.spawn(async {})).collect();
        for task in tasks {
            // An error is a thread that has ended, as the server does then.
            let _ended = task.await;
        }
    }
}

impl NetworkThread {
    /// A thread without a `stripe` takes the next one when it counts.
    fn start(
        name: String,
        stripe: Option<usize>,
        ledger: &Arc<Ledger>,
        polls: &Arc<BusyPolls>,
    ) -> Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .global_queue_interval(REMOTE_INTERVAL)
            .event_interval(SOCKETS_INTERVAL)
            .build()?;
        let handle = runtime.handle().clone();
        let (ends, ended) = oneshot::channel();
        thread::Builder::new().name(name).spawn(move || {
            io::take_short_slices();
            stripe.into_iter().for_each(assign_stripe);
            // An error is the sender's drop, which is what is waited for.
            let _dropped = runtime.block_on(ended);
        })?;
        let queue = Arc::new(FairQueue::new(ledger));
        let rounds = Arc::clone(&queue);
        drop(handle.spawn(async move { rounds.run_rounds().await }));
        let (polls, polled) = (Arc::clone(polls), Arc::clone(&queue));
        drop(handle.spawn(async move { polls.poll_for(&polled.calls).await }));
        Ok(Self { runtime: handle, queue, _ends: ends })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{STRIPES, own_stripe};
    use crate::own_process::ran_in_own_process;

    #[test]
    fn network_threads_share_no_stripe_with_each_other_or_the_next_threads() {
        // Nothing else counts there.
        let name = "network_threads_share_no_stripe_with_each_other_or_the_next_threads";
        if ran_in_own_process(&format!("network_threads::tests::{name}")) {
            return;
        }
        let runtime = Builder::new_current_thread().build().unwrap();
        let threads = NetworkThreads::start(&Arc::new(BusyPolls::new(2, Arc::default()))).unwrap();
        let stripe_of = |thread: &NetworkThread| {
            let stripe = thread.runtime.spawn(async { own_stripe() });
            runtime.block_on(stripe).unwrap()
        };
        let another = thread::spawn(own_stripe).join().unwrap();
        // The last one first: stripes do not depend on which thread needs one first.
        let mut stripes: Vec<_> = threads.threads.iter().rev().map(stripe_of).collect();
        stripes.reverse();
        stripes.push(another);
        let expected: Vec<_> = (0..stripes.len()).map(|index| index % STRIPES).collect();
        assert_eq!(stripes, expected);
    }
}
