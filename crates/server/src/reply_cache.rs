//! The reply cache: a retransmitted call that must not run twice is answered from memory.
//!
//! Criteria, first to last. A false hit answers a new call with an old reply, so the key holds all
//! that tells two calls apart: the client's address (not its port, which changes when it
//! reconnects), transaction id, procedure, and a keyed hash of the credential and all arguments, for
//! programs of different users may count their calls alike; and entries die after two minutes,
//! because transaction ids come round again. A false miss runs a call twice, which is what happens
//! without the cache. Memory is bounded: the oldest reply leaves first.
//!
//! Only procedures that are not idempotent come here. READ, WRITE, GETATTR and the like give the
//! same result when they are run again.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::export_table::Credential;

/// Replies kept, at most; about 400 bytes each.
const REPLIES_MAX: usize = 8192;
/// How long a client may go on retransmitting. Linux gives up or reconnects within a minute
/// (`timeo=600,retrans=2`, nfs(5)).
const LIFETIME: Duration = Duration::from_secs(120);

/// What tells calls apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallKey {
    /// The client.
    pub(crate) address: IpAddr,
    /// Transaction id.
    pub(crate) xid: u32,
    /// Procedure number of NFSv3.
    pub(crate) procedure: u32,
    /// Hash of credential and arguments, from [`ReplyCache::hash`].
    pub(crate) content: u64,
}

/// What to do with a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is new: run it, then call [`ReplyCache::complete`] or [`ReplyCache::abandon`].
    Run,
    /// It was answered: send this reply again.
    Replay(Vec<u8>),
    /// It is running: its reply will come.
    Drop,
}

/// Calls that must not run twice: those at work, and the replies to those that are done.
pub(crate) struct ReplyCache {
    hasher: std::hash::RandomState,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    /// `None` while the call runs.
    replies: HashMap<CallKey, Option<Vec<u8>>>,
    /// Completed calls, oldest first.
    completed: VecDeque<(Instant, CallKey)>,
}

impl ReplyCache {
    pub(crate) fn new() -> Self {
        Self { hasher: std::hash::RandomState::new(), calls: Mutex::default() }
    }

    /// A hash that a client cannot predict.
    pub(crate) fn hash(&self, credential: Option<Credential<'_>>, arguments: &[u8]) -> u64 {
        self.hasher.hash_one((credential, arguments))
    }

    /// Looks a call up, and notes it as running when it is new.
    pub(crate) fn begin(&self, key: CallKey, now: Instant) -> Outcome {
        let mut calls = self.lock();
        calls.forget_old(now);
        match calls.replies.get(&key) {
            Some(Some(reply)) => Outcome::Replay(reply.clone()),
            Some(None) => Outcome::Drop,
            None => {
                calls.replies.insert(key, None);
                Outcome::Run
            }
        }
    }

    /// Keeps the reply to a call that [`Self::begin`] said to run.
    pub(crate) fn complete(&self, key: CallKey, reply: &[u8], now: Instant) {
        let mut calls = self.lock();
        calls.replies.insert(key, Some(reply.to_vec()));
        calls.completed.push_back((now, key));
        calls.forget_old(now);
    }

    /// Forgets a call that ended without a reply.
    pub(crate) fn abandon(&self, key: &CallKey) {
        self.lock().replies.remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().expect("no code panics while it holds the calls")
    }
}

impl Calls {
    fn forget_old(&mut self, now: Instant) {
        while let Some((completed_at, key)) = self.completed.front() {
            let is_old = now.saturating_duration_since(*completed_at) > LIFETIME;
            if !is_old && self.completed.len() <= REPLIES_MAX {
                return;
            }
            self.replies.remove(key);
            self.completed.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(xid: u32) -> CallKey {
        CallKey { address: [127, 0, 0, 1].into(), xid, procedure: 8, content: 1 }
    }

    #[test]
    fn a_call_runs_once_is_dropped_while_it_runs_and_replayed_after() {
        let cache = ReplyCache::new();
        let now = Instant::now();
        assert_eq!(cache.begin(key(1), now), Outcome::Run);
        assert_eq!(cache.begin(key(1), now), Outcome::Drop);
        cache.complete(key(1), b"done", now);
        assert_eq!(cache.begin(key(1), now), Outcome::Replay(b"done".to_vec()));
        assert_eq!(cache.begin(key(2), now), Outcome::Run);
        cache.abandon(&key(2));
        assert_eq!(cache.begin(key(2), now), Outcome::Run);
    }

    #[test]
    fn any_difference_is_another_call() {
        let cache = ReplyCache::new();
        let now = Instant::now();
        let first = key(1);
        cache.begin(first, now);
        cache.complete(first, b"done", now);
        for other in [
            CallKey { address: [127, 0, 0, 2].into(), ..first },
            CallKey { xid: 2, ..first },
            CallKey { procedure: 9, ..first },
            CallKey { content: cache.hash(None, b"other"), ..first },
        ] {
            assert_eq!(cache.begin(other, now), Outcome::Run);
        }
    }

    #[test]
    fn replies_age_and_their_number_is_bounded() {
        let cache = ReplyCache::new();
        let start = Instant::now();
        cache.begin(key(0), start);
        cache.complete(key(0), b"old", start);
        let later = start + LIFETIME + Duration::from_secs(1);
        assert_eq!(cache.begin(key(0), later), Outcome::Run);
        cache.complete(key(0), b"new", later);
        for xid in 1..=u32::try_from(REPLIES_MAX).unwrap() {
            cache.begin(key(xid), later);
            cache.complete(key(xid), b"", later);
        }
        assert_eq!(cache.lock().replies.len(), REPLIES_MAX);
        assert_eq!(cache.begin(key(0), later), Outcome::Run, "the oldest has left");
    }
}
