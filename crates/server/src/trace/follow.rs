//! Followers: readers of events as they happen, each with a queue of its own.
//!
//! An event never waits for a follower. One that does not fit into the queue is lost to that
//! follower, and counted.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::{gettid, sched_getcpu};
use tokio::sync::Notify;

use super::{CallId, Detail, Event, Events, Moment, Tracer};

/// Followers at a time.
pub(crate) const FOLLOWERS_MAX: usize = 8;
/// Events in the queue of a follower, and as many that it has taken and not sent.
const QUEUE_MAX: usize = 1024;
/// The longest text of an event's own fields, and of a thread's name.
const TEXT_BYTES_MAX: usize = 128;
/// What all followers hold, at most.
pub(crate) const FOLLOWERS_BYTES_MAX: usize =
    FOLLOWERS_MAX * 2 * QUEUE_MAX * (size_of::<Followed>() + 2 * TEXT_BYTES_MAX);

/// The calls whose events a follower wants; those of all calls by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) client: Option<IpAddr>,
    pub(crate) export_id: Option<u32>,
    pub(crate) fh_hash: Option<u32>,
    pub(crate) xid: Option<u32>,
    /// The least time from a call's last byte to the event.
    pub(crate) latency_min: Duration,
}

impl Filter {
    fn admits(&self, call: &CallId, latency: Duration) -> bool {
        let is_wanted =
            |wanted: Option<u32>, found: Option<u32>| wanted.is_none() || wanted == found;
        latency >= self.latency_min
            && is_wanted(self.xid, Some(call.xid))
            && is_wanted(self.fh_hash, Some(call.fh_hash))
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
}

impl Feed {
    pub(super) fn new(events: Events, filter: Filter) -> Self {
        Self { events, filter, queue: Mutex::default(), has_some: Notify::new() }
    }

    pub(super) fn events(&self) -> Events {
        self.events
    }

    pub(super) fn offer(&self, happened: &Happened<'_>, detail: &Detail<'_>) {
        if !self.events.contains(happened.event)
            || !self.filter.admits(happened.call, happened.latency)
        {
            return;
        }
        if self.lock().events.len() < QUEUE_MAX {
            // Formatted without the lock, so that another may have taken the place.
            let followed = Followed::here(happened, detail);
            let mut queue = self.lock();
            if queue.events.len() < QUEUE_MAX {
                queue.events.push_back(followed);
                drop(queue);
                return self.has_some.notify_one();
            }
        }
        self.lock().lost += 1;
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
        loop {
            let Queue { events, lost } = std::mem::take(&mut *self.feed.lock());
            if !events.is_empty() || lost > 0 {
                return (events, lost);
            }
            self.feed.has_some.notified().await;
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
            (Filter { fh_hash: Some(2), ..all.clone() }, true),
            (Filter { fh_hash: Some(1), ..all.clone() }, false),
            (Filter { export_id: Some(7), ..all.clone() }, true),
            (Filter { export_id: Some(1), ..all.clone() }, false),
            (Filter { client: Some(call.client), ..all.clone() }, true),
            (Filter { client: Some(other), ..all.clone() }, false),
            (Filter { latency_min: Duration::from_secs(60), ..all.clone() }, false),
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
}
