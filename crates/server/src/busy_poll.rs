//! Waiting for a call without sleeping.
//!
//! A thread that sleeps is woken when the call comes. On a virtual machine whose processor was halted
//! meanwhile this takes 20 to 30 microseconds, longer than a small call (figures: docs/decisions,
//! "busy-polling"). A client with few calls in flight sends the next one soon after a reply, so the
//! thread that receives its calls, a network thread or one that stays with the connection, looks for it
//! again and again for a moment before it sleeps. Between two looks it offers the processor to other
//! threads, and it sleeps at once if one of them has taken it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::yield_now;

use crate::counters::{Counter, Counters};

/// For so long a thread polls: two times what sleeping costs. Beyond it there is little to gain.
const POLL_MAX: Duration = Duration::from_micros(50);
/// Another thread has run if offering it the processor took longer. It takes about 1 microsecond if none
/// wants it, and more if the host of a virtual machine has taken the processor for a moment.
const YIELD_MAX: Duration = Duration::from_micros(20);
/// Waits without polling after one in vain, which costs 3 microseconds per call then.
const WAITS_AFTER_MISS: u32 = 16;

/// The threads of the server that poll.
pub(crate) struct BusyPolls {
    max: usize,
    polling: AtomicUsize,
    counters: Arc<Counters>,
}

/// The waits of a thread for calls.
#[derive(Default)]
pub(crate) struct Waits {
    /// So many more are without polling.
    without: u32,
}

/// The calls of the connections of a network thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadCalls {
    /// Those that came and that the thread was to end itself.
    light: AtomicU64,
    /// A light one has come.
    has_come: Notify,
    /// Those at work, on any thread.
    at_work: AtomicUsize,
}

/// A call of a network thread's connection, until it is dropped.
pub(crate) struct CallAtWork(Arc<ThreadCalls>);

/// One wait with polling.
struct Poll<'a> {
    polls: &'a BusyPolls,
    began: Instant,
    /// Another thread wants the processor.
    is_last_look: bool,
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
                waits.without = WAITS_AFTER_MISS;
                return false;
            }
        }
        self.counters.add(Counter::CallsFoundByPolling, 1);
        true
    }

    /// Polls for light calls on this network thread after each of them, for ever.
    pub(crate) async fn poll_for(&self, calls: &ThreadCalls) {
        let mut waits = Waits::default();
        loop {
            calls.has_come.notified().await;
            while self.finds_next(&mut waits, calls).await {}
        }
    }

    /// Whether another light call comes before the thread should sleep.
    async fn finds_next(&self, waits: &mut Waits, calls: &ThreadCalls) -> bool {
        let light = calls.light.load(Ordering::Relaxed);
        // tokio continues a task that yields after it has polled the sockets, and behind the tasks that
        // these have made ready.
        let has_come = async || {
            yield_now().await;
            calls.light.load(Ordering::Relaxed) != light
        };
        let mut poll = None;
        loop {
            // While the thread has light calls, this is all it costs.
            if has_come().await {
                if poll.is_some() {
                    self.counters.add(Counter::CallsFoundByPolling, 1);
                }
                return true;
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
                waits.without = WAITS_AFTER_MISS;
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
        let poll = Poll { polls: self, began: Instant::now(), is_last_look: false };
        (others < self.max).then_some(poll)
    }
}

impl Poll<'_> {
    /// Lets other threads run. Whether to look again.
    fn offer_processor(&mut self) -> bool {
        let offered = Instant::now();
        if self.is_last_look || offered - self.began > POLL_MAX {
            return false;
        }
        thread::yield_now();
        self.is_last_look = offered.elapsed() > YIELD_MAX;
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
        let mut waits = Waits::default();
        // A processor that another program takes meanwhile ends a poll.
        while !polls.finds_next(&mut waits, &calls).await {
            assert!(!coming.is_finished());
            waits = Waits::default();
        }
        assert_eq!(polls.polling.into_inner(), 0);
        coming.await.unwrap();
    }

    #[tokio::test]
    async fn network_thread_does_not_poll_while_a_call_of_its_is_at_work_elsewhere() {
        let (polls, calls) = (BusyPolls::new(2, Arc::default()), Arc::new(ThreadCalls::default()));
        let mut waits = Waits::default();
        let at_work = calls.begin();
        assert!(!polls.finds_next(&mut waits, &calls).await);
        assert_eq!(waits.without, 0, "it has not polled");
        drop(at_work);
        assert!(!polls.finds_next(&mut waits, &calls).await);
        assert_eq!(waits.without, WAITS_AFTER_MISS, "it has polled in vain");
    }

    #[tokio::test]
    async fn network_thread_with_work_never_offers_its_processor() {
        let (polls, calls) = (BusyPolls::new(2, Arc::default()), Arc::new(ThreadCalls::default()));
        let working = tokio::spawn({
            let calls = Arc::clone(&calls);
            async move {
                loop {
                    calls.note_light_one();
                    yield_now().await;
                }
            }
        });
        let mut waits = Waits::default();
        for _ in 0..1000 {
            assert!(polls.finds_next(&mut waits, &calls).await);
        }
        assert_eq!(polls.counters.value(Counter::CallsFoundByPolling), 0);
        working.abort();
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
