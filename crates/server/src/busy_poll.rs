//! Waiting for a call without sleeping.
//!
//! A thread that sleeps is woken when the call comes. On a virtual machine whose processor was
//! halted meanwhile this takes 20 to 30 microseconds, longer than a small call (figures:
//! docs/decisions, "busy-polling"). A client with few calls in flight sends the next one soon after
//! a reply, so the thread that receives its calls, a network thread or one that stays with the
//! connection, looks for it again and again for a moment before it sleeps. Between two looks it
//! offers the processor to other threads, and it sleeps at once if one of them has taken it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::yield_now;

use crate::counters::{Counter, Counters};

/// The longest poll: twice what sleeping and waking cost. Beyond it there is little to gain.
const POLL_MAX: Duration = Duration::from_micros(50);
/// Another thread has run if offering it the processor took longer. It takes about 1 microsecond if
/// none wants it, and more if the host of a virtual machine has taken the processor for a moment.
const YIELD_MAX: Duration = Duration::from_micros(20);
/// Another thread works on something else than the next call if it has kept the processor for
/// longer: on a processor that a busy program shares it keeps it for milliseconds.
const LOSS_MIN: Duration = Duration::from_micros(250);
/// Waits without polling after one in vain, which costs 3 microseconds per call then.
const WAITS_AFTER_MISS: u32 = 16;
/// The waits without polling are doubled so often at most, after one loss of the processor each.
const LOSSES_MAX: u32 = 6;
/// A network thread is idle after so many turns of its loop without work. After one it need not be:
/// tokio runs the tasks that have yielded in reverse, so a connection with work can come after the
/// poll.
const IDLE_TURNS: u32 = 2;

/// The threads of the server that poll.
pub(crate) struct BusyPolls {
    max: usize,
    polling: AtomicUsize,
    counters: Arc<Counters>,
}

/// The waits of a thread for calls.
#[derive(Default)]
pub(crate) struct Waits {
    /// Waits left until polling is tried again.
    without: u32,
    /// The processor was lost in so many polls, one after the other.
    losses: u32,
}

/// The calls of the connections of a network thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadCalls {
    /// Calls received that this thread was expected to complete without a handover.
    light: AtomicU64,
    /// A light one has come.
    has_come: Notify,
    /// The parts of work that the thread has done for connections, or has put off, and their
    /// rounds.
    turns: AtomicU64,
    /// Those at work, on any thread.
    at_work: AtomicUsize,
}

/// A call of a network thread's connection, until it is dropped.
pub(crate) struct CallAtWork(Arc<ThreadCalls>);

/// One wait with polling.
struct Poll<'a> {
    polls: &'a BusyPolls,
    began: Instant,
    /// How long other threads have kept the processor, zero before it is offered.
    lost: Duration,
}

impl BusyPolls {
    /// For so many processors, of which half may be polled on.
    pub(crate) fn new(processors: usize, counters: Arc<Counters>) -> Self {
        Self { max: (processors / 2).max(1), polling: AtomicUsize::new(0), counters }
    }

    /// Polls until `is_ready`, if that is worth it. Whether it is ready.
    pub(crate) fn poll(&self, waits: &mut Waits, mut is_ready: impl FnMut() -> bool) -> bool {
        let Some(mut poll) = self.begin(waits) else { return false };
        while !is_ready() {
            if !poll.offer_processor() {
                waits.end_poll(poll.lost, false);
                return false;
            }
        }
        if !poll.lost.is_zero() {
            waits.end_poll(poll.lost, true);
        }
        self.counters.add(Counter::CallsFoundByPolling, 1);
        true
    }

    /// Polls for light calls on this network thread after each of them, for ever.
    pub(crate) async fn poll_for(&self, calls: &ThreadCalls) {
        let (mut waits, mut seen) = (Waits::default(), 0);
        loop {
            while seen == calls.light.load(Ordering::Relaxed) {
                calls.has_come.notified().await;
            }
            while self.finds_next(&mut waits, &mut seen, calls).await {}
        }
    }

    /// Whether another light call comes before the thread should sleep. `seen` is set to how many
    /// had come before.
    async fn finds_next(&self, waits: &mut Waits, seen: &mut u64, calls: &ThreadCalls) -> bool {
        *seen = calls.light.load(Ordering::Relaxed);
        let (mut turns, mut idle) = (calls.turns.load(Ordering::Relaxed), 0);
        let mut poll: Option<Poll<'_>> = None;
        loop {
            // tokio continues a task that yields after it has polled the sockets. While the thread
            // has light calls, this is all it costs.
            yield_now().await;
            if calls.light.load(Ordering::Relaxed) != *seen {
                if let Some(poll) = &poll {
                    waits.end_poll(poll.lost, true);
                    self.counters.add(Counter::CallsFoundByPolling, 1);
                }
                return true;
            }
            let worked = turns != calls.turns.load(Ordering::Relaxed);
            if worked && let Some(poll) = &poll {
                waits.end_poll(poll.lost, true);
                return false;
            }
            turns = calls.turns.load(Ordering::Relaxed);
            idle = if worked { 0 } else { idle + 1 };
            if idle < IDLE_TURNS {
                continue;
            }
            // Other threads need the processor for calls that this one has handed over.
            if calls.at_work.load(Ordering::Relaxed) > 0 {
                return false;
            }
            if poll.is_none() {
                poll = self.begin(waits);
            }
            let Some(poll) = &mut poll else { return false };
            if !poll.offer_processor() {
                waits.end_poll(poll.lost, false);
                return false;
            }
        }
    }

    /// A wait with polling, unless it is one without, or enough threads poll.
    fn begin(&self, waits: &mut Waits) -> Option<Poll<'_>> {
        if waits.without > 0 {
            waits.without -= 1;
            return None;
        }
        let others = self.polling.fetch_add(1, Ordering::Relaxed);
        let poll = Poll { polls: self, began: Instant::now(), lost: Duration::ZERO };
        (others < self.max).then_some(poll)
    }
}

impl Waits {
    /// Those of the next stay of a thread: a busy program is still there, and a pause of the client
    /// is over.
    pub(crate) fn of_next_stay(self) -> Self {
        if self.losses > 0 { self } else { Self::default() }
    }

    /// A poll has ended in which other threads have kept the processor for `lost`.
    fn end_poll(&mut self, lost: Duration, has_found: bool) {
        let was_lost = lost > LOSS_MIN;
        self.losses = if was_lost { (self.losses + 1).min(LOSSES_MAX) } else { 0 };
        if was_lost || !has_found {
            self.without = WAITS_AFTER_MISS << self.losses;
        }
    }
}

impl Poll<'_> {
    /// Lets other threads run. Whether to look again.
    fn offer_processor(&mut self) -> bool {
        let offered = Instant::now();
        if self.lost > YIELD_MAX || offered - self.began > POLL_MAX {
            return false;
        }
        thread::yield_now();
        self.lost = self.lost.max(offered.elapsed());
        true
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        self.polls.polling.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ThreadCalls {
    /// A call is at work from now on.
    pub(crate) fn begin(self: &Arc<Self>) -> CallAtWork {
        self.at_work.fetch_add(1, Ordering::Relaxed);
        CallAtWork(Arc::clone(self))
    }

    /// Notes, on the network thread, that it works for a connection, or has put that off for now.
    pub(crate) fn note_turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes, on the network thread, that a light call has come.
    pub(crate) fn note_light_one(&self) {
        self.light.fetch_add(1, Ordering::Relaxed);
        self.has_come.notify_one();
    }
}

impl Drop for CallAtWork {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fair_queue::FairQueue;
    use crate::moment::Moment;

    #[test]
    fn polling_in_vain_is_rare_and_short() {
        let (polls, mut waits) = (BusyPolls::new(1, Arc::default()), Waits::default());
        let polled: Vec<_> = (0..100)
            .map(|_| {
                let (mut looks, began) = (0, Instant::now());
                assert!(!polls.poll(&mut waits, || {
                    looks += 1;
                    assert!(looks == 1 || began.elapsed() < Duration::from_secs(10));
                    false
                }));
                // On a busy machine the processor may be lost.
                waits.without = waits.without.min(WAITS_AFTER_MISS);
                looks > 0
            })
            .collect();
        let each = 1 + WAITS_AFTER_MISS as usize;
        let expected: Vec<_> = (0..100).map(|number| number % each == 0).collect();
        assert_eq!(polled, expected);
    }

    #[test]
    fn a_call_that_comes_in_time_is_found_each_time() {
        let (polls, mut waits) = (BusyPolls::new(2, Arc::default()), Waits::default());
        for _ in 0..100 {
            assert!(polls.poll(&mut waits, || true));
        }
        // A call that is there already does not show whether others want the processor.
        waits.losses = 3;
        assert!(polls.poll(&mut waits, || true));
        assert_eq!(waits.losses, 3);
    }

    #[test]
    fn no_more_threads_poll_than_half_of_the_processors() {
        for (processors, max) in [(1, 1), (2, 1), (3, 1), (8, 4)] {
            let polls = BusyPolls::new(processors, Arc::default());
            assert_eq!(polls.deepest(0), max, "{processors} processors");
            assert_eq!(polls.polling.into_inner(), 0);
        }
    }

    #[tokio::test]
    async fn network_thread_finds_the_call_that_comes_while_it_polls() {
        let (polls, calls) = (BusyPolls::new(2, Arc::default()), Arc::new(ThreadCalls::default()));
        let coming = tokio::spawn({
            let calls = Arc::clone(&calls);
            async move {
                for _ in 0..3 {
                    yield_now().await;
                }
                calls.note_light_one();
            }
        });
        let (mut waits, mut seen) = (Waits::default(), 0);
        // A processor that another program takes meanwhile ends a poll.
        while !polls.finds_next(&mut waits, &mut seen, &calls).await {
            assert!(!coming.is_finished());
            waits = Waits::default();
        }
        assert_eq!(polls.polling.into_inner(), 0);
        coming.await.unwrap();
    }

    #[tokio::test]
    async fn network_thread_does_not_poll_while_a_call_of_its_is_at_work_elsewhere() {
        let (polls, calls) = (BusyPolls::new(2, Arc::default()), Arc::new(ThreadCalls::default()));
        let (mut waits, mut seen) = (Waits::default(), 0);
        let at_work = calls.begin();
        assert!(!polls.finds_next(&mut waits, &mut seen, &calls).await);
        assert_eq!(waits.without, 0, "it has not polled");
        drop(at_work);
        assert!(!polls.finds_next(&mut waits, &mut seen, &calls).await);
        assert!(waits.without >= WAITS_AFTER_MISS, "it has polled in vain");
    }

    #[test]
    fn waits_without_polling_double_while_the_processor_is_lost() {
        let short = LOSS_MIN / 2;
        let long = LOSS_MIN * 2;
        let mut waits = Waits::default();
        let steps = [
            (short, true, 0),
            (short, false, 16),
            (long, true, 32),
            (long, false, 64),
            (long, true, 128),
            (long, true, 256),
            (long, true, 512),
            (long, true, 1024),
            (long, true, 1024),
            (short, true, 0),
            (long, true, 32),
        ];
        for (number, (lost, has_found, without)) in steps.into_iter().enumerate() {
            waits.without = 0;
            waits.end_poll(lost, has_found);
            assert_eq!(waits.without, without, "step {number}");
            let kept = std::mem::take(&mut waits).of_next_stay();
            assert_eq!(kept.without, if lost == long { without } else { 0 }, "step {number}");
            waits = kept;
        }
    }

    /// tokio runs two tasks that yield in an order that changes with each turn, so that in every
    /// second turn the work comes behind the poll.
    #[tokio::test]
    async fn network_thread_whose_work_comes_behind_the_poll_never_offers_its_processor() {
        let polls = BusyPolls { max: 0, ..BusyPolls::new(2, Arc::default()) };
        let (calls, in_vain) = (Arc::new(ThreadCalls::default()), Arc::new(AtomicUsize::new(0)));
        let working = tokio::spawn({
            let (calls, in_vain) = (Arc::clone(&calls), Arc::clone(&in_vain));
            async move {
                for _ in 0..1000 {
                    calls.note_turn();
                    calls.note_light_one();
                    yield_now().await;
                }
                in_vain.load(Ordering::Relaxed)
            }
        });
        let polling = tokio::spawn(async move {
            let (mut waits, mut seen) = (Waits::default(), 0);
            loop {
                let has_found = polls.finds_next(&mut waits, &mut seen, &calls).await;
                in_vain.fetch_add(usize::from(!has_found), Ordering::Relaxed);
            }
        });
        assert_eq!(working.await.unwrap(), 0);
        polling.abort();
    }

    /// The server's tasks of a network thread whose only connection always has a light call.
    #[tokio::test]
    async fn network_thread_with_work_never_offers_its_processor() {
        // Each look that would offer it is refused, and counts as one in vain.
        let polls = BusyPolls { max: 0, ..BusyPolls::new(2, Arc::default()) };
        let in_vain = Arc::new(AtomicUsize::new(0));
        let queue = Arc::new(FairQueue::new(&Arc::default()));
        let (rounds, flow) = (Arc::clone(&queue), queue.join(1));
        drop(tokio::spawn(async move { rounds.run_rounds().await }));
        let (calls, counted) = (Arc::clone(&queue.calls), Arc::clone(&in_vain));
        let polling = tokio::spawn(async move {
            while calls.light.load(Ordering::Relaxed) == 0 {
                yield_now().await;
            }
            let (mut waits, mut seen) = (Waits::default(), 0);
            loop {
                let has_found = polls.finds_next(&mut waits, &mut seen, &calls).await;
                counted.fetch_add(usize::from(!has_found), Ordering::Relaxed);
            }
        });
        let working = tokio::spawn(async move {
            let work = async {
                for _ in 0..10_000 {
                    flow.calls().note_light_one();
                    let began = Moment::now();
                    while Moment::now().nanoseconds_since(began) < 10_000 {}
                    if flow.quantum_is_over(Moment::now()) {
                        yield_now().await;
                    }
                }
                in_vain.load(Ordering::Relaxed)
            };
            flow.schedule(work).await
        });
        assert_eq!(working.await.unwrap(), 0);
        polling.abort();
        assert!(queue.calls.turns.load(Ordering::Relaxed) > 100, "the work is done in many turns");
    }

    impl BusyPolls {
        /// How many poll at once where each begins another.
        fn deepest(&self, depth: usize) -> usize {
            let mut deepest = depth;
            self.poll(&mut Waits::default(), || {
                deepest = self.deepest(depth + 1);
                true
            });
            deepest
        }
    }
}
