//! The grace period after a restart, RFC 8881 §8.4.2: only clients that held state may have it
//! again, and no client gets new state.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{ClientRecord, Principal};

/// The clients that have yet to reclaim. Without one there is no grace period.
#[derive(Debug)]
pub(super) struct Grace {
    /// `None` when the period is over.
    ends_at: Option<Duration>,
    /// Recorded clients by owner that have not sent RECLAIM_COMPLETE, and when they were recorded.
    reclaiming: HashMap<Arc<[u8]>, (Principal, SystemTime)>,
}

impl Grace {
    /// Begins the period for the clients on record, each with the time of its record.
    pub(super) fn new(
        recorded: Vec<(ClientRecord, SystemTime)>,
        now: Duration,
        length: Duration,
    ) -> Self {
        let ends_at = (!recorded.is_empty()).then_some(now + length);
        let entry = |(client, at): (ClientRecord, _)| (client.owner, (client.principal, at));
        Self { ends_at, reclaiming: recorded.into_iter().map(entry).collect() }
    }

    pub(super) fn is_active(&self) -> bool {
        self.ends_at.is_some()
    }

    /// Whether this client held state before the restart and has not finished reclaiming it.
    pub(super) fn may_reclaim(&self, owner: &[u8], principal: Principal) -> bool {
        self.recorded_at(owner, principal).is_some()
    }

    /// When this client was recorded; `None` unless it may reclaim.
    pub(super) fn recorded_at(&self, owner: &[u8], principal: Principal) -> Option<SystemTime> {
        let (recorded, at) = self.reclaiming.get(owner).filter(|_| self.is_active())?;
        (*recorded == principal).then_some(*at)
    }

    /// Whether another principal's client of this name may still reclaim.
    pub(super) fn is_reserved(&self, owner: &[u8], principal: Principal) -> bool {
        self.reclaiming.get(owner).is_some_and(|(recorded, _)| *recorded != principal)
    }

    /// The client has reclaimed all, or has gone. The caller asks [`Self::end`] afterwards.
    pub(super) fn finish(&mut self, owner: &[u8]) {
        self.reclaiming.remove(owner);
    }

    /// Ends the period if all clients have reclaimed or the time is over. Returns the clients that
    /// have not: what they held may be given to others now, so their records must go first.
    pub(super) fn end(&mut self, now: Duration) -> Option<Vec<Arc<[u8]>>> {
        let ends_at = self.ends_at?;
        if now < ends_at && !self.reclaiming.is_empty() {
            return None;
        }
        self.ends_at = None;
        Some(std::mem::take(&mut self.reclaiming).into_keys().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(90);

    fn record(owner: &[u8]) -> (ClientRecord, SystemTime) {
        let client = ClientRecord { owner: owner.into(), principal: Principal::User(0) };
        (client, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn no_grace_period_begins_without_clients() {
        let mut grace = Grace::new(Vec::new(), Duration::ZERO, LENGTH);
        assert!(!grace.is_active());
        assert_eq!(grace.end(Duration::MAX), None);
    }

    #[test]
    fn grace_ends_when_all_clients_have_reclaimed() {
        let mut grace = Grace::new(vec![record(b"a"), record(b"b")], Duration::ZERO, LENGTH);
        assert!(grace.may_reclaim(b"a", Principal::User(0)));
        assert!(!grace.may_reclaim(b"a", Principal::User(1)), "another principal");
        assert!(grace.is_reserved(b"a", Principal::User(1)));
        assert!(!grace.is_reserved(b"a", Principal::User(0)));
        assert!(!grace.may_reclaim(b"c", Principal::User(0)), "not on record");
        grace.finish(b"a");
        assert!(!grace.may_reclaim(b"a", Principal::User(0)));
        assert_eq!(grace.end(Duration::ZERO), None);
        grace.finish(b"b");
        assert_eq!(grace.end(Duration::ZERO), Some(Vec::new()));
        assert!(!grace.is_active());
    }

    #[test]
    fn grace_ends_in_time_and_names_the_clients_that_did_not_reclaim() {
        let mut grace = Grace::new(vec![record(b"a")], Duration::from_secs(5), LENGTH);
        assert_eq!(grace.end(Duration::from_secs(94)), None);
        assert_eq!(grace.end(Duration::from_secs(95)), Some(vec![b"a".as_slice().into()]));
        assert_eq!(grace.end(Duration::from_secs(96)), None);
    }
}
