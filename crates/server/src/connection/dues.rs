//! The limits of exports at a connection: what its calls take, and when it may read the next one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use io::ClientId;

use super::{Intake, Transfer};
use crate::counters::Counter;
use crate::export::{Exports, Limits};
use crate::moment::Moment;
use crate::procedures::Programs;
use crate::rate_limits::{Charged, Slot, Use, WAIT_MAX};
use crate::service::Service;

/// A connection looks at least so often whether its calls are paid for: a reload may have changed the
/// limits, other clients may have paid or begun to owe, and the peer may have hung up.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What a connection has to wait for before it reads its next call. Connections to exports without
/// limits read the flag alone.
#[derive(Default)]
pub(super) struct Dues {
    are_set: AtomicBool,
    /// The latest place of a call, for each export that has limits.
    slots: Mutex<Vec<(u32, Slot)>>,
}

/// What a call was charged when it was accepted.
pub(super) struct Charge {
    client: ClientId,
    export: u32,
    charged: Charged,
}

impl Dues {
    /// Of a new connection of a client: all that it owes. The export of its first call is not known yet.
    /// The portmapper has none.
    pub(super) fn of(service: &Service, programs: Programs, client: ClientId) -> Self {
        let (dues, now, exports) = (Self::default(), Moment::now(), service.exports.load());
        if matches!(programs, Programs::Portmapper { .. }) {
            return dues;
        }
        for export in exports.table.iter().filter(|export| export.limits.are_set()) {
            let limited = (export.id, &export.limits);
            let (slot, _) = service.rate_limits.charge(limited, client, Use::default(), now);
            dues.add(export.id, slot);
        }
        dues
    }

    /// Whether there may be any.
    pub(super) fn are_set(&self) -> bool {
        self.are_set.load(Ordering::Relaxed)
    }

    fn add(&self, export: u32, slot: Slot) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        match slots.iter_mut().find(|(former, _)| *former == export) {
            Some((_, former)) => *former = former.later(slot),
            None => slots.push((export, slot)),
        }
        self.are_set.store(true, Ordering::Relaxed);
    }

    /// How long the next call has to wait, by the limits that are in force now. What is paid for is
    /// forgotten.
    fn delay(&self, service: &Service, client: ClientId) -> Duration {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let (exports, now, mut longest) = (service.exports.load(), Moment::now(), Duration::ZERO);
        slots.retain(|(export, slot)| {
            let Some(limits) = limits(&exports, *export) else { return false };
            let delay = service.rate_limits.delay((*export, limits), client, *slot, now);
            longest = longest.max(delay);
            !delay.is_zero()
        });
        self.are_set.store(!slots.is_empty(), Ordering::Relaxed);
        longest
    }

    /// Gives up to wait for what is left.
    fn clear(&self) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.are_set.store(false, Ordering::Relaxed);
    }
}

impl Charge {
    /// Charges a call of `call_bytes` and the data that it asks for.
    pub(super) fn new(
        intake: &Intake,
        (export, limits): (u32, Limits),
        (call_bytes, transfer): (u64, Transfer),
        now: Moment,
    ) -> Self {
        let Intake { service, activity, dues, .. } = intake;
        let read_bytes = transfer.read_bytes(service.memory.transfer_bytes_max);
        let taken = Use { calls: 1, bytes: call_bytes + read_bytes };
        let client = activity.client();
        let (slot, charged) = service.rate_limits.charge((export, &limits), client, taken, now);
        dues.add(export, slot);
        Self { client, export, charged }
    }

    /// Settles the difference to what the call and its reply have used.
    pub(super) fn settle(self, service: &Service, used_bytes: u64) {
        let exports = service.exports.load();
        let Some(limits) = limits(&exports, self.export) else { return };
        let used = Use { calls: 1, bytes: used_bytes };
        let (limited, difference) = ((self.export, limits), (self.charged, used));
        service.rate_limits.settle(limited, self.client, difference, Moment::now());
    }
}

/// The limits of an export, if it has any.
fn limits(exports: &Exports, export: u32) -> Option<&Limits> {
    exports.table.by_id(export).map(|export| &export.limits).filter(|limits| limits.are_set())
}

impl Intake {
    /// Waits until the calls so far are paid for. The connection is idle meanwhile if it has no call at
    /// work. `false` if the peer has hung up and is owed no answer. `has_more`: a part of the next call
    /// was received.
    pub(super) async fn wait_for_limits(&self, has_more: bool) -> bool {
        let Self { service, activity, dues, socket, .. } = self;
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
            if socket.has_hung_up() || socket.sends_no_more() && !is_owed {
                return false;
            }
            delay = dues.delay(service, activity.client());
        }
        activity.set_held_back(false);
        true
    }
}
