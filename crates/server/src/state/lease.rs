//! A client's lease, RFC 8881 §8.3. Its sessions share it, so SEQUENCE renews it without the lock of
//! [`State`](super::State).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The time of the last renewal, and the calls at work: a client is not late while the server works
/// for it.
#[derive(Debug)]
pub(super) struct Lease {
    /// Milliseconds since the server's start; [`REVOKED`] once the client is forgotten.
    renewed_at_ms: AtomicU64,
    calls: AtomicU32,
}

/// No time that a server reaches.
const REVOKED: u64 = u64::MAX;

impl Lease {
    pub(super) fn new(now: Duration) -> Self {
        Self { renewed_at_ms: AtomicU64::new(millis(now)), calls: AtomicU32::new(0) }
    }

    /// Notes a call at work and renews the lease; false if the client is forgotten.
    pub(super) fn begin_call(&self, now: Duration) -> bool {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let is_known = self.renew(now);
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

    /// How long ago the lease ran out, if it did.
    pub(super) fn expired_for(&self, now: Duration, length: Duration) -> Option<Duration> {
        if self.calls.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let renewed_at = self.renewed_at_ms.load(Ordering::SeqCst);
        now.checked_sub(Duration::from_millis(renewed_at))?.checked_sub(length)
    }

    /// Revokes the lease if it ran out. A call that begins at the same time either renews it, and then
    /// this is false, or finds the client forgotten.
    pub(super) fn revoke_if_expired(&self, now: Duration, length: Duration) -> bool {
        let renewed_at = self.renewed_at_ms.load(Ordering::SeqCst);
        if self.expired_for(now, length).is_none() {
            return false;
        }
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        self.renewed_at_ms.compare_exchange(renewed_at, REVOKED, success, failure).is_ok()
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
        assert!(lease.begin_call(at(95)));
        assert_eq!(lease.expired_for(at(1000), LENGTH), None);
        assert!(!lease.revoke_if_expired(at(1000), LENGTH));
        lease.end_call();
        assert!(lease.revoke_if_expired(at(1000), LENGTH));
        assert!(!lease.begin_call(at(1000)));
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
