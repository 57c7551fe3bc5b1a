//! Followers: readers of events as they happen, each with a queue of its own.
//!
//! An event never waits for a follower. One that does not fit into the queue is lost to that
//! follower, and counted. A follower of slow calls alone gets the events of a call when the call
//! has lasted long enough: until then they are held.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::{gettid, sched_getcpu};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{CallId, CallKey, Detail, Event, Events, Tracer};
use crate::moment::Moment;

/// Followers at a time.
pub(crate) const FOLLOWERS_MAX: usize = 8;
/// Events in the queue of a follower, as many that it has taken and not sent, and as many that are
/// held.
const QUEUE_MAX: usize = 1024;
/// How often a follower of slow calls looks for those in progress, at most and at least.
const LOOK_AFTER: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// The longest text of an event's own fields, and of a thread's name.
const TEXT_BYTES_MAX: usize = 128;
/// Memory of the queues of all followers, in bytes, at most.
pub(crate) const FOLLOWERS_BYTES_MAX: usize =
    FOLLOWERS_MAX * 3 * QUEUE_MAX * (size_of::<Followed>() + 2 * TEXT_BYTES_MAX);

/// The calls whose events a follower wants; those of all calls by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) client: Option<IpAddr>,
    pub(crate) export_id: Option<u32>,
    /// The hashes of the handles of one object, which has one in each export that contains it.
    /// Those of all objects if there is none.
    pub(crate) fh_hashes: Vec<u32>,
    pub(crate) xid: Option<u32>,
    /// The least time from a call's last byte to its reply.
    pub(crate) latency_min: Duration,
}

impl Filter {
    /// Whether an event of a call is wanted if the call lasts long enough.
    fn admits(&self, call: &CallId) -> bool {
        let is_wanted =
            |wanted: Option<u32>, found: Option<u32>| wanted.is_none() || wanted == found;
        is_wanted(self.xid, Some(call.xid))
            && (self.fh_hashes.is_empty() || self.fh_hashes.contains(&call.fh_hash))
            && is_wanted(self.export_id, call.export_id)
            && self.client.is_none_or(|client| client == call.client)
    }
}

/// An event that happens on this thread.
pub(super) struct Happened<'a> {
    pub(super) event: Event,
    pub(super) call: &'a CallId,
    pub(super) range: (u64, u64),
    pub(super) latency: Duration,
}

/// An event that a follower wants.
#[derive(Clone, Debug)]
pub(crate) struct Followed {
    pub(crate) event: Event,
    pub(crate) call: CallId,
    /// Offset and length, in bytes.
    pub(crate) range: (u64, u64),
    /// Its other fields.
    pub(crate) detail: Box<str>,
    /// Since the call's last byte.
    pub(crate) latency: Duration,
    /// The time of `CLOCK_MONOTONIC`.
    pub(crate) time: Duration,
    pub(crate) thread: Box<str>,
    pub(crate) tid: i32,
    pub(crate) cpu: usize,
}

impl Followed {
    fn here(happened: &Happened<'_>, detail: &Detail<'_>) -> Self {
        let Happened { event, call, range, latency } = *happened;
        let time = Duration::from_nanos(Moment::now().0);
        let thread = std::thread::current();
        Self {
            event,
            call: *call,
            range,
            detail: short(detail.to_string()),
            latency,
            time,
            thread: short(thread.name().unwrap_or("?").to_owned()),
            tid: gettid().as_raw_nonzero().get(),
            cpu: sched_getcpu(),
        }
    }
}

fn short(mut text: String) -> Box<str> {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    text.into_boxed_str()
}

/// The events for one follower.
#[derive(Debug)]
pub(super) struct Feed {
    events: Events,
    filter: Filter,
    queue: Mutex<Queue>,
    has_some: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Followed>,
    /// Those since the first that did not fit.
    lost: u64,
    /// Events of calls that have not lasted long enough yet, in the order in which they happened.
    held: Vec<Followed>,
}

impl Queue {
    fn push(&mut self, followed: Followed) {
        if self.events.len() < QUEUE_MAX {
            self.events.push_back(followed);
        } else {
            self.lost += 1;
        }
    }

    /// Queues the held events of the calls that are slow.
    fn release(&mut self, is_slow: impl Fn(&Followed) -> bool) {
        let Self { events, lost, held } = self;
        let room = QUEUE_MAX - events.len();
        let mut released = held.extract_if(.., |followed| is_slow(followed));
        events.extend(released.by_ref().take(room));
        *lost += released.count() as u64;
    }

    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.lost == 0
    }
}

impl Feed {
    pub(super) fn new(events: Events, filter: Filter) -> Self {
        Self { events, filter, queue: Mutex::default(), has_some: Notify::new() }
    }

    pub(super) fn events(&self) -> Events {
        self.events
    }

    pub(super) fn offer(&self, happened: &Happened<'_>, detail: &Detail<'_>) {
        if !self.events.contains(happened.event) || !self.filter.admits(happened.call) {
            return;
        }
        // Its time since the call's last byte is not the call's.
        if happened.call.outlasts && !self.filter.latency_min.is_zero() {
            return;
        }
        let is_slow = happened.latency >= self.filter.latency_min;
        let has_room = |queue: &Queue| {
            if is_slow { queue.events.len() < QUEUE_MAX } else { queue.held.len() < QUEUE_MAX }
        };
        if !has_room(&self.lock()) {
            self.lock().lost += 1;
            return;
        }
        // Formatted without the lock, so that another may have taken the place.
        let followed = Followed::here(happened, detail);
        let mut queue = self.lock();
        if is_slow {
            let key = happened.call.key();
            queue.release(|held| held.call.key() == key);
            queue.push(followed);
        } else if has_room(&queue) {
            queue.held.push(followed);
        } else {
            queue.lost += 1;
        }
        drop(queue);
        if is_slow {
            self.has_some.notify_one();
        }
    }

    /// Queues the held events of a call that has ended, if it was slow, or else drops them.
    pub(super) fn end(&self, call: CallKey, latency: Duration) {
        if self.filter.latency_min.is_zero() {
            return;
        }
        let is_slow = latency >= self.filter.latency_min;
        let mut queue = self.lock();
        if is_slow {
            queue.release(|held| held.call.key() == call);
        } else {
            queue.held.retain(|held| held.call.key() != call);
        }
        let has_some = !queue.is_empty();
        drop(queue);
        if has_some {
            self.has_some.notify_one();
        }
    }

    /// The queued events, and the number of those lost. The held events of calls in progress that
    /// are slow by now are queued first.
    fn take(&self) -> (VecDeque<Followed>, u64) {
        let mut queue = self.lock();
        queue.release(|held| held.call.received.elapsed() >= self.filter.latency_min);
        (std::mem::take(&mut queue.events), std::mem::take(&mut queue.lost))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader of events. They cost nothing any more once it is dropped.
pub(crate) struct Follower {
    pub(super) tracer: Arc<Tracer>,
    pub(super) feed: Arc<Feed>,
}

impl Follower {
    /// Waits for events. Returns those in the queue, and how many were lost behind them.
    pub(crate) async fn next(&self) -> (VecDeque<Followed>, u64) {
        let latency_min = self.feed.filter.latency_min;
        loop {
            let (events, lost) = self.feed.take();
            if !events.is_empty() || lost > 0 {
                return (events, lost);
            }
            let notified = self.feed.has_some.notified();
            if latency_min.is_zero() {
                notified.await;
            } else {
                let (least, most) = LOOK_AFTER;
                // A call in progress gets slow without an event.
                let _elapsed = timeout(latency_min.clamp(least, most), notified).await;
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.tracer.forget(&self.feed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::recorder::Begun;
    use super::*;

    fn tracer() -> Arc<Tracer> {
        Arc::default()
    }

    fn emit(tracer: &Tracer, call: CallId) {
        tracer.emit(Event::ReadDone, call, 1, 2, format_args!("count={}", 3));
    }

    #[tokio::test]
    async fn a_follower_gets_what_its_filter_admits() {
        let tracer = tracer();
        let call = CallId { export_id: Some(7), ..CallId::local(1, 2) };
        let all = Filter::default();
        let other = IpAddr::from([192, 0, 2, 1]);
        for (filter, is_admitted) in [
            (Filter { xid: Some(1), ..all.clone() }, true),
            (Filter { xid: Some(2), ..all.clone() }, false),
            (Filter { fh_hashes: vec![1, 2], ..all.clone() }, true),
            (Filter { fh_hashes: vec![1], ..all.clone() }, false),
            (Filter { export_id: Some(7), ..all.clone() }, true),
            (Filter { export_id: Some(1), ..all.clone() }, false),
            (Filter { client: Some(call.client), ..all.clone() }, true),
            (Filter { client: Some(other), ..all.clone() }, false),
            (all.clone(), true),
        ] {
            let shown = format!("{filter:?}");
            let follower = tracer.follow(Event::ReadDone.into(), filter).unwrap();
            emit(&tracer, call);
            tracer.emit(Event::WriteDone, call, 0, 0, format_args!(""));
            assert_eq!(follower.feed.lock().events.len(), usize::from(is_admitted), "{shown}");
            if is_admitted {
                let (events, lost) = follower.next().await;
                assert_eq!((&*events[0].detail, lost), ("count=3", 0));
                assert_eq!((events[0].call, events[0].range), (call, (1, 2)));
            }
        }
    }

    #[tokio::test]
    async fn a_slow_follower_loses_events_and_no_other_does() {
        let tracer = tracer();
        let follow = || tracer.follow(Event::ReadDone.into(), Filter::default()).unwrap();
        let (slow, quick) = (follow(), follow());
        let mut received = 0;
        for round in 0..4 {
            for xid in 0..u32::try_from(QUEUE_MAX).unwrap() {
                emit(&tracer, CallId::local(xid, round));
            }
            received += quick.next().await.0.len();
        }
        assert_eq!(received, 4 * QUEUE_MAX);
        let (events, lost) = slow.next().await;
        assert_eq!((events.len(), lost), (QUEUE_MAX, 3 * QUEUE_MAX as u64));
        emit(&tracer, CallId::local(0, 0));
        assert_eq!(slow.next().await.1, 0);
    }

    #[tokio::test]
    async fn a_follower_of_slow_calls_gets_all_their_events_and_none_of_quick_ones() {
        let tracer = tracer();
        let latency_min = Duration::from_secs(3600);
        let filter = Filter { latency_min, ..Filter::default() };
        let events = [Event::ReadStart, Event::ReadDone].map(Events::from).into_iter().collect();
        let follower = tracer.follow(events, filter).unwrap();
        let call = |xid: u32| CallId::local(xid, 0);
        let start = |call: CallId| tracer.emit(Event::ReadStart, call, 0, 0, format_args!(""));
        let (quick, slow, late) = (call(1), call(2), call(3));
        for call in [quick, slow, late] {
            start(call);
        }
        emit(&tracer, quick);
        tracer.end(quick.key(), Duration::from_secs(1));
        assert_eq!(follower.feed.lock().held.len(), 2);
        emit(&tracer, slow);
        tracer.end(slow.key(), latency_min);
        let (events, lost) = follower.next().await;
        let got: Vec<_> = events.iter().map(|event| (event.event, event.call.xid)).collect();
        assert_eq!(got, [(Event::ReadStart, 2), (Event::ReadDone, 2)]);
        assert_eq!((lost, follower.feed.lock().held.len()), (0, 1));
    }

    #[test]
    fn work_that_outlasts_a_quick_call_is_not_shown_as_slow() {
        let tracer = tracer();
        let latency_min = Duration::from_millis(1);
        let follow = |filter| tracer.follow(Event::ReadAhead.into(), filter).unwrap();
        let of_slow = follow(Filter { latency_min, ..Filter::default() });
        let of_all = follow(Filter::default());
        let record = tracer.recorder.begin(&a_call());
        let call = CallId { record, ..CallId::local(1, 0) };
        tracer.end(call.key(), Duration::ZERO);
        let read_ahead =
            || tracer.emit(Event::ReadAhead, call.outlasting(), 0, 1, format_args!(""));
        read_ahead();
        std::thread::sleep(2 * latency_min);
        read_ahead();
        assert_eq!(of_slow.feed.take().0.len(), 0);
        assert_eq!(of_all.feed.take().0.len(), 2);
        assert_eq!(tracer.recorder.calls()[0].events, []);
    }

    fn a_call() -> Begun<'static> {
        let client = (std::net::Ipv4Addr::LOCALHOST, 700).into();
        let (received, handle) = (Moment::now(), &[][..]);
        Begun { received, client, xid: 1, operation: None, handle, offset: 0, len: 0 }
    }

    #[tokio::test]
    async fn a_call_in_progress_is_shown_once_it_is_slow() {
        let tracer = tracer();
        let latency_min = Duration::from_millis(1);
        let filter = Filter { latency_min, ..Filter::default() };
        let follower = tracer.follow(Event::ReadDone.into(), filter).unwrap();
        emit(&tracer, CallId::local(1, 0));
        assert_eq!(follower.next().await.0.len(), 1);
    }

    #[tokio::test]
    async fn held_events_are_bounded_and_those_beyond_are_counted() {
        let tracer = tracer();
        let filter = Filter { latency_min: Duration::from_secs(3600), ..Filter::default() };
        let follower = tracer.follow(Event::ReadDone.into(), filter).unwrap();
        let call = CallId::local(1, 0);
        (0..QUEUE_MAX + 5).for_each(|_| emit(&tracer, call));
        tracer.end(call.key(), Duration::from_secs(3601));
        let (events, lost) = follower.next().await;
        assert_eq!((events.len(), lost), (QUEUE_MAX, 5));
    }
}
