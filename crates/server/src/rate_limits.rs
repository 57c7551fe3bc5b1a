//! The limits of exports, in calls and bytes per second.
//!
//! Each call is charged to its client when it is accepted, with the data that it asks for. It has
//! its place among the calls of its client then: a connection reads its next call when those up to
//! there are paid for, and a new connection when its client has paid for all. What waits stays in
//! the socket, and a call is never refused. The reply settles the difference, for the calls to
//! come. So limits hold on average.

mod clock;

use std::array::from_fn;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use io::ClientId;
use rustc_hash::FxBuildHasher;

use crate::export::{Export, Limits};
use crate::moment::Moment;
use clock::{Clock, Pace, Tag};

/// The burst that an unused limit permits at once, as the time in which its rate permits as much.
/// The timers of connections have a resolution of milliseconds.
const BURST: Duration = Duration::from_millis(50);
/// The longest wait of a connection, and the longest debt of a client, at the pace at which it
/// pays: beyond that the limit is exceeded. A client of version 4 renews its lease after two thirds
/// of it at the latest: a wait, or one of the old and one of the new connection, has to end within
/// the rest.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(14);
/// The limits of an export: of calls and of bytes, each for all clients and for each.
const LIMITS: usize = 4;

/// The use of all limits.
#[derive(Debug, Default)]
pub(crate) struct RateLimits {
    /// By the id of the export.
    exports: Mutex<HashMap<u32, ExportUse, FxBuildHasher>>,
}

/// The use of the limits of an export that are set.
#[derive(Debug, Default)]
struct ExportUse([Option<Clock>; LIMITS]);

/// The limits of an export that has any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExportLimits {
    /// The id of the export.
    pub(crate) export: u32,
    pub(crate) limits: Limits,
}

/// An amount that is taken from the limits of an export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
}

/// The charge to a client for a call, until that is settled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Charged {
    taken: Use,
    /// When each limit was charged, by its clock.
    at: [u64; LIMITS],
}

/// The tags of a call by the clocks of an export: its place among the calls of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tags([Tag; LIMITS]);

/// The prefix of the addresses whose calls share a debt: all of an IPv4 address, and 64 bits of an
/// IPv6 address, because a host may take any address of such a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Prefix(ClientId);

impl Prefix {
    fn of(client: ClientId) -> Self {
        const IPV4_MAPPED: ClientId = 0xffff;
        if client >> 32 == IPV4_MAPPED { Self(client) } else { Self(client >> 64 << 64) }
    }
}

impl ExportLimits {
    /// `None` if the export has no limits.
    pub(crate) fn of(export: &Export) -> Option<Self> {
        let limits = export.limits;
        limits.are_set().then_some(Self { export: export.id, limits })
    }
}

impl Use {
    fn counts(self) -> [u64; LIMITS] {
        [self.calls, self.calls, self.bytes, self.bytes]
    }
}

impl Tags {
    /// The later one of two of an export.
    pub(crate) fn later(self, other: Self) -> Self {
        Self(from_fn(|at| self.0[at].max(other.0[at])))
    }
}

impl RateLimits {
    /// Charges a client. Returns the tags behind all that it has taken, also for nothing, and what
    /// [`settle`](Self::settle) needs: each call that has taken something is settled.
    pub(crate) fn charge(
        &self,
        limited: ExportLimits,
        client: ClientId,
        taken: Use,
        now: Moment,
    ) -> (Tags, Charged) {
        let (counts, prefix, now) = (taken.counts(), Prefix::of(client), now.nanoseconds());
        let mut exports = self.lock();
        let clocks = exports.entry(limited.export).or_default().clocks(limited.limits, now);
        let charges: [_; LIMITS] = from_fn(|at| match &mut clocks[at] {
            Some(clock) => clock.charge(prefix, counts[at], now),
            None => (0, 0),
        });
        let at = charges.map(|(_, at)| at);
        (Tags(charges.map(|(tag, _)| tag)), Charged { taken, at })
    }

    /// Charges a client what a call has used beyond what it was charged for it, or gives back the
    /// rest, as far as no other call has used that. Its calls keep their places.
    pub(crate) fn settle(
        &self,
        limited: ExportLimits,
        client: ClientId,
        (Charged { taken, at: charged_at }, used): (Charged, Use),
        now: Moment,
    ) {
        let (taken, used) = (taken.counts(), used.counts());
        let (prefix, now) = (Prefix::of(client), now.nanoseconds());
        let mut exports = self.lock();
        let clocks = exports.entry(limited.export).or_default().clocks(limited.limits, now);
        for (at, clock) in clocks.iter_mut().enumerate() {
            let Some(clock) = clock else { continue };
            clock.settle(prefix, (taken[at], charged_at[at]), used[at], now);
        }
    }

    /// How long the call behind these tags has to wait, as far as is known now: longer if other
    /// clients come.
    pub(crate) fn delay(
        &self,
        limited: ExportLimits,
        client: ClientId,
        Tags(tags): Tags,
        now: Moment,
    ) -> Duration {
        let (prefix, now) = (Prefix::of(client), now.nanoseconds());
        let mut exports = self.lock();
        let clocks = exports.entry(limited.export).or_default().clocks(limited.limits, now);
        let delays = clocks.iter_mut().zip(tags);
        let delays =
            delays.filter_map(|(clock, tag)| Some(clock.as_mut()?.delay(prefix, tag, now)));
        Duration::from_nanos(delays.max().unwrap_or(0)).saturating_sub(BURST)
    }

    /// Forgets the exports without limits.
    pub(crate) fn retain(&self, has_limits: impl Fn(u32) -> bool) {
        self.lock().retain(|export, _| has_limits(*export));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, ExportUse, FxBuildHasher>> {
        self.exports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExportUse {
    /// The clocks of the limits that are set now.
    fn clocks(&mut self, Limits { all, client }: Limits, now: u64) -> &mut [Option<Clock>; LIMITS] {
        let calls = |calls: std::num::NonZeroU32| u64::from(calls.get());
        let paces = [
            all.calls_per_sec.map(calls).map(Pace::Shared),
            client.calls_per_sec.map(calls).map(Pace::Each),
            all.bytes_per_sec.map(u64::from).map(Pace::Shared),
            client.bytes_per_sec.map(u64::from).map(Pace::Each),
        ];
        for (clock, pace) in self.0.iter_mut().zip(paces) {
            match (clock.as_mut(), pace) {
                (Some(clock), Some(pace)) => clock.set_pace(pace, now),
                (None, Some(pace)) => *clock = Some(Clock::new(pace, now)),
                (_, None) => *clock = None,
            }
        }
        &mut self.0
    }
}

#[cfg(test)]
mod tests;
