//! A client's lease, RFC 8881 §8.3. Its sessions share it, so SEQUENCE renews it without the lock
//! of [`State`](super::State).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use proto::nfs4::SEQ4_STATUS_CB_PATH_DOWN;

/// The time of the last renewal, and the calls at work: a client is not late while the server works
/// for it.
#[derive(Debug)]
pub(super) struct Lease {
    /// Milliseconds since the server's start; [`REVOKED`] once the client is forgotten.
    renewed_at_ms: AtomicU64,
    calls: AtomicU32,
    /// Those of them whose data is not read, because the server has no memory for it.
    memory_waits: AtomicU32,
    /// `SEQ4_STATUS_*` that all sessions of the client report.
    status: AtomicU32,
    /// Sessions whose client has asked for a backchannel.
    backchannels: AtomicU32,
    /// Those of them that callbacks can be sent over.
    paths: AtomicU32,
}

/// The backchannel of a session, as it is counted for the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Path {
    /// The client has asked for it.
    pub(super) is_wanted: bool,
    /// Callbacks can be sent.
    pub(super) is_there: bool,
}

/// No time that a server reaches.
const REVOKED: u64 = u64::MAX;

impl Lease {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            renewed_at_ms: AtomicU64::new(millis(now)),
            calls: AtomicU32::new(0),
            memory_waits: AtomicU32::new(0),
            status: AtomicU32::new(0),
            backchannels: AtomicU32::new(0),
            paths: AtomicU32::new(0),
        }
    }

    /// Notes a call at work; false if the client is forgotten. Until the call [renews](Self::renew)
    /// the lease it may still be revoked.
    pub(super) fn begin_call(&self) -> bool {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let is_known = self.renewed_at_ms.load(Ordering::SeqCst) != REVOKED;
        if !is_known {
            self.end_call();
        }
        is_known
    }

    /// Notes the end of a call.
    pub(super) fn end_call(&self) {
        self.calls.fetch_sub(1, Ordering::SeqCst);
    }

    /// Renews the lease; false if the client is forgotten.
    pub(super) fn renew(&self, now: Duration) -> bool {
        let later = |at: u64| (at != REVOKED).then_some(at.max(millis(now)));
        self.renewed_at_ms.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later).is_ok()
    }

    /// Calls at work.
    pub(super) fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Notes that a call begins to wait for memory.
    pub(super) fn begin_memory_wait(&self) {
        self.memory_waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a call waits for memory no longer.
    pub(super) fn end_memory_wait(&self) {
        self.memory_waits.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a call waits for memory. What the client has sent behind it is not read meanwhile.
    pub(super) fn waits_for_memory(&self) -> bool {
        self.memory_waits.load(Ordering::Relaxed) > 0
    }

    /// How long ago the lease ran out, if it did.
    pub(super) fn expired_for(&self, now: Duration, length: Duration) -> Option<Duration> {
        if self.calls() > 0 {
            return None;
        }
        let renewed_at = self.renewed_at_ms.load(Ordering::SeqCst);
        now.checked_sub(Duration::from_millis(renewed_at))?.checked_sub(length)
    }

    /// Revokes the lease if it ran out. A call that renews it at the same time either does so
    /// first, and then this is false, or finds the client forgotten.
    pub(super) fn revoke_if_expired(&self, now: Duration, length: Duration) -> bool {
        let renewed_at = self.renewed_at_ms.load(Ordering::SeqCst);
        if self.expired_for(now, length).is_none() {
            return false;
        }
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        self.renewed_at_ms.compare_exchange(renewed_at, REVOKED, success, failure).is_ok()
    }

    /// `SEQ4_STATUS_*` of the client.
    pub(super) fn status(&self) -> u32 {
        let is_path_down = self.backchannels.load(Ordering::Relaxed) > 0
            && self.paths.load(Ordering::Relaxed) == 0;
        let path_down = if is_path_down { SEQ4_STATUS_CB_PATH_DOWN } else { 0 };
        self.status.load(Ordering::Relaxed) | path_down
    }

    /// Reports a flag of `SEQ4_STATUS_*` from now on, or no longer.
    pub(super) fn show(&self, flag: u32, is_on: bool) {
        if is_on {
            self.status.fetch_or(flag, Ordering::Relaxed);
        } else {
            self.status.fetch_and(!flag, Ordering::Relaxed);
        }
    }

    /// Counts a session's backchannel, as it was and as it is.
    pub(super) fn count_path(&self, before: Path, now: Path) {
        let count = |counter: &AtomicU32, before: bool, now: bool| match (before, now) {
            (false, true) => drop(counter.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(counter.fetch_sub(1, Ordering::Relaxed)),
            (false, false) | (true, true) => {}
        };
        count(&self.backchannels, before.is_wanted, now.is_wanted);
        count(&self.paths, before.is_there, now.is_there);
    }

    /// Ends the lease: the client is forgotten.
    pub(super) fn revoke(&self) {
        self.renewed_at_ms.store(REVOKED, Ordering::SeqCst);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(REVOKED - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(90);

    fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_lease_runs_out_unless_it_is_renewed_or_a_call_is_at_work() {
        let lease = Lease::new(at(0));
        assert_eq!(lease.expired_for(at(89), LENGTH), None);
        assert_eq!(lease.expired_for(at(95), LENGTH), Some(at(5)));
        assert!(lease.begin_call());
        lease.end_call();
        assert_eq!(lease.expired_for(at(95), LENGTH), Some(at(5)), "the call was refused");
        assert!(lease.begin_call() && lease.renew(at(95)));
        assert_eq!(lease.expired_for(at(1000), LENGTH), None);
        assert!(!lease.revoke_if_expired(at(1000), LENGTH));
        lease.end_call();
        assert!(lease.revoke_if_expired(at(1000), LENGTH));
        assert!(!lease.begin_call() && !lease.renew(at(1000)));
        assert_eq!(lease.calls.load(Ordering::SeqCst), 0);
        assert_eq!(lease.expired_for(at(2000), LENGTH), None, "forgotten, not late");
    }

    #[test]
    fn renewals_out_of_order_keep_the_latest() {
        let lease = Lease::new(at(10));
        assert!(lease.renew(at(5)));
        assert_eq!(lease.expired_for(at(100), LENGTH), Some(at(0)));
    }
}
