//! The limits of exports at a connection: what its calls take, and when it may read the next one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use io::ClientId;

use super::{Intake, Transfer};
use crate::counters::Counter;
use crate::export::Exports;
use crate::moment::Moment;
use crate::procedures::Programs;
use crate::rate_limits::{Charged, ExportLimits, Tags, Use, WAIT_MAX};
use crate::request::Moved;
use crate::service::Service;

/// A connection looks at least so often whether its calls are paid for: a reload may have changed
/// the limits, other clients may have paid or begun to owe, and the peer may have hung up.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Charges that are to be paid before a connection reads its next call. Connections to exports
/// without limits read the flag alone.
#[derive(Default)]
pub(super) struct Dues {
    are_set: AtomicBool,
    /// The latest tags of a call, for each export that has limits.
    latest: Mutex<Vec<(u32, Tags)>>,
}

/// The charge of a call to the limits of exports, until it is settled.
pub(super) struct Charge {
    dues: Arc<Dues>,
    client: ClientId,
    call_bytes: u64,
    /// The export that was charged when the call was accepted, and what.
    charged: Option<(u32, Charged)>,
}

impl Dues {
    /// Of a new connection of a client: all that it owes. The export of its first call is not known
    /// yet. The portmapper has none.
    pub(super) fn of(service: &Service, programs: Programs, client: ClientId) -> Self {
        let (dues, now, exports) = (Self::default(), Moment::now(), service.exports.load());
        if matches!(programs, Programs::Portmapper(_)) {
            return dues;
        }
        for limited in exports.table.iter().filter_map(|export| ExportLimits::of(export)) {
            let (tags, _) = service.rate_limits.charge(limited, client, Use::default(), now);
            dues.add(limited.export, tags);
        }
        dues
    }

    /// Whether there may be any.
    pub(super) fn are_set(&self) -> bool {
        self.are_set.load(Ordering::Relaxed)
    }

    fn add(&self, export: u32, tags: Tags) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match latest.iter_mut().find(|(former, _)| *former == export) {
            Some((_, former)) => *former = former.later(tags),
            None => latest.push((export, tags)),
        }
        self.are_set.store(true, Ordering::Relaxed);
    }

    /// How long the next call has to wait, by the limits that are in force now. What is paid for is
    /// forgotten.
    fn delay(&self, service: &Service, client: ClientId) -> Duration {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let (exports, now, mut longest) = (service.exports.load(), Moment::now(), Duration::ZERO);
        latest.retain(|(export, tags)| {
            let Some(limited) = limits(&exports, *export) else { return false };
            let delay = service.rate_limits.delay(limited, client, *tags, now);
            longest = longest.max(delay);
            !delay.is_zero()
        });
        self.are_set.store(!latest.is_empty(), Ordering::Relaxed);
        longest
    }

    /// Gives up to wait for what is left.
    fn clear(&self) {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.are_set.store(false, Ordering::Relaxed);
    }
}

impl Charge {
    /// Of a call of `call_bytes`. If the export that its work begins on is known and has limits, it
    /// is charged for the call and the data that that asks for.
    pub(super) fn new(
        intake: &Intake,
        limited: Option<ExportLimits>,
        call_bytes: u64,
        transfer: Transfer,
        now: Moment,
    ) -> Self {
        let Intake { service, activity, dues, .. } = intake;
        let client = activity.client();
        let charged = limited.map(|limited| {
            let read_bytes = transfer.read_bytes(service.memory.transfer_bytes_max);
            let taken = Use { calls: 1, bytes: call_bytes + read_bytes };
            let (tags, charged) = service.rate_limits.charge(limited, client, taken, now);
            dues.add(limited.export, tags);
            (limited.export, charged)
        });
        Self { dues: Arc::clone(dues), client, call_bytes, charged }
    }

    /// Charges what the call has used, or gives back what it was charged beyond. `moved` is that of
    /// a COMPOUND: each export that it has worked on is charged for a call.
    pub(super) fn settle(self, service: &Service, moved: &Moved, reply_bytes: u64) {
        for (export, bytes) in moved.exports() {
            self.settle_with(service, *export, Use { calls: 1, bytes: *bytes });
        }
        let Some((export, _)) = self.charged else { return };
        if moved.exports().is_empty() {
            let bytes = self.call_bytes + reply_bytes;
            self.settle_with(service, export, Use { calls: 1, bytes });
        } else if moved.exports().iter().all(|(other, _)| *other != export) {
            self.settle_with(service, export, Use::default());
        }
    }

    /// Settles what was used of an export. One that was not charged is charged now, and the call
    /// has its place there from now on.
    fn settle_with(&self, service: &Service, export: u32, used: Use) {
        let (exports, now) = (service.exports.load(), Moment::now());
        let Some(limited) = limits(&exports, export) else { return };
        let rate_limits = &service.rate_limits;
        match self.charged.filter(|(charged, _)| *charged == export) {
            Some((_, charged)) => rate_limits.settle(limited, self.client, (charged, used), now),
            None => {
                let (tags, charged) = rate_limits.charge(limited, self.client, used, now);
                rate_limits.settle(limited, self.client, (charged, used), now);
                self.dues.add(export, tags);
            }
        }
    }
}

/// The limits of an export, if it has any.
fn limits(exports: &Exports, export: u32) -> Option<ExportLimits> {
    exports.table.by_id(export).and_then(|export| ExportLimits::of(export))
}

impl Intake {
    /// Waits until the calls so far are paid for. The connection is idle meanwhile if it has no
    /// call at work. `false` if the peer has hung up and is owed no answer. `has_more`: a part of
    /// the next call was received.
    pub(super) async fn wait_for_limits(&self, has_more: bool) -> bool {
        let Self { service, activity, dues, socket, replies, .. } = self;
        let (began, mut holds_call) = (Moment::now(), false);
        let mut delay = dues.delay(service, activity.client());
        if delay.is_zero() {
            return true;
        }
        activity.set_held_back(true);
        while !delay.is_zero() {
            let left = WAIT_MAX.saturating_sub(began.elapsed());
            if left.is_zero() {
                dues.clear();
                break;
            }
            tokio::time::sleep(delay.min(left).min(LOOK_INTERVAL)).await;
            if (has_more || socket.has_unread_bytes()) && !std::mem::replace(&mut holds_call, true)
            {
                activity.note_held_call();
                service.counters.add(Counter::LimitWaits, 1);
            }
            let is_owed = holds_call || activity.has_calls_at_work();
            if replies.has_lost_peer() || socket.sends_no_more() && !is_owed {
                return false;
            }
            delay = dues.delay(service, activity.client());
        }
        activity.set_held_back(false);
        true
    }
}
