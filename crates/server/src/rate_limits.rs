//! The limits of exports, in calls and bytes per second.
//!
//! Each limit has a time from which on it permits the next call (GCRA, ITU-T I.371): a call moves it
//! on by what it takes at the limit's rate, and it lags behind by [`BURST_NS`] at most. A connection
//! takes its next call when that time has come; what waits stays in the socket. The reply is charged
//! when it is made, so limits hold on average, and a call is never refused.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use io::ClientId;
use rustc_hash::FxBuildHasher;

use crate::export::{Limits, Rate};
use crate::moment::Moment;

/// What a limit that was not used permits at once, as the time in which it permits that otherwise. The
/// timers of connections have milliseconds.
const BURST_NS: u64 = 50_000_000;
/// Limits that are remembered before those are forgotten that have nothing to wait for.
const KNOWN_MAX: usize = 1024;
const SEC_NS: u64 = 1_000_000_000;

/// An export, and a client of it or all together.
type Limited = (u32, Option<ClientId>);

/// The use of all limits.
#[derive(Debug, Default)]
pub(crate) struct RateLimits {
    used: Mutex<HashMap<Limited, Used, FxBuildHasher>>,
}

/// When a limit permits the next call, by the calls and by the bytes before.
#[derive(Debug, Default)]
struct Used {
    calls_until: u64,
    bytes_until: u64,
}

/// What a call or a reply takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
}

impl RateLimits {
    /// Charges a client and an export. Limits that are not set are not charged.
    pub(crate) fn charge(
        &self,
        export: u32,
        client: ClientId,
        limits: &Limits,
        taken: Use,
        now: Moment,
    ) {
        let mut used = self.lock();
        if used.len() >= KNOWN_MAX {
            used.retain(|_, used| used.until() > now.nanoseconds());
        }
        for (limited, rate) in each_limit(export, client, limits) {
            used.entry(limited).or_default().charge(rate, taken, now.nanoseconds());
        }
    }

    /// How long the next call of a client to an export has to wait.
    pub(crate) fn delay(
        &self,
        export: u32,
        client: ClientId,
        limits: &Limits,
        now: Moment,
    ) -> Duration {
        let used = self.lock();
        let until =
            each_limit(export, client, limits).filter_map(|(limited, _)| used.get(&limited));
        let until = until.map(Used::until).max().unwrap_or(0);
        Duration::from_nanos(until.saturating_sub(now.nanoseconds()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Limited, Used, FxBuildHasher>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The limits that are set.
fn each_limit(
    export: u32,
    client: ClientId,
    limits: &Limits,
) -> impl Iterator<Item = (Limited, Rate)> {
    let all = ((export, None), limits.all);
    let client = ((export, Some(client)), limits.client);
    [all, client].into_iter().filter(|(_, rate)| *rate != Rate::default())
}

impl Used {
    fn charge(&mut self, rate: Rate, taken: Use, now: u64) {
        let after = |until: u64, taken: u64, per_sec: Option<u64>| match per_sec {
            Some(per_sec) => {
                let ns = u128::from(taken) * u128::from(SEC_NS) / u128::from(per_sec);
                let until = until.max(now.saturating_sub(BURST_NS));
                until.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX))
            }
            None => 0,
        };
        let calls_per_sec = rate.calls_per_sec.map(|calls| u64::from(calls.get()));
        self.calls_until = after(self.calls_until, taken.calls, calls_per_sec);
        let bytes_per_sec = rate.bytes_per_sec.map(u64::from);
        self.bytes_until = after(self.bytes_until, taken.bytes, bytes_per_sec);
    }

    fn until(&self) -> u64 {
        self.calls_until.max(self.bytes_until)
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use super::*;

    const EXPORT: u32 = 7;
    const A: ClientId = 1;
    const B: ClientId = 2;

    fn rate(calls_per_sec: u32, bytes_per_sec: u64) -> Rate {
        Rate {
            calls_per_sec: NonZeroU32::new(calls_per_sec),
            bytes_per_sec: NonZeroU64::new(bytes_per_sec),
        }
    }

    /// Calls of one second, each as soon as it is permitted, of clients in turn.
    fn calls_in_a_second(limits: Limits, clients: &[ClientId], bytes: u64) -> u64 {
        let (table, mut calls, start) = (RateLimits::default(), 0, SEC_NS);
        let mut now = start;
        while now < start + SEC_NS {
            let mut waits = Vec::new();
            for client in clients {
                let at = Moment::at_nanoseconds(now);
                let delay = table.delay(EXPORT, *client, &limits, at);
                if delay.is_zero() {
                    table.charge(EXPORT, *client, &limits, Use { calls: 1, bytes }, at);
                    calls += 1;
                }
                waits.push(table.delay(EXPORT, *client, &limits, at));
            }
            let wait = waits.into_iter().min().unwrap();
            // Timers have milliseconds, and wait too long.
            now += u64::try_from(wait.as_nanos()).unwrap().next_multiple_of(1_000_000).max(10_000);
        }
        calls
    }

    #[test]
    fn calls_of_all_clients_are_limited_together() {
        let limits = Limits { all: rate(1000, 0), ..Limits::default() };
        for clients in [&[A][..], &[A, B]] {
            let calls = calls_in_a_second(limits, clients, 100);
            assert!((1000..=1060).contains(&calls), "{calls}");
        }
    }

    #[test]
    fn calls_of_each_client_are_limited_alone() {
        let limits = Limits { client: rate(1000, 0), ..Limits::default() };
        let calls = calls_in_a_second(limits, &[A, B], 100);
        assert!((2000..=2120).contains(&calls), "{calls}");
    }

    #[test]
    fn bytes_are_limited_however_large_a_call_is() {
        let limits = Limits { all: rate(0, 10 << 20), ..Limits::default() };
        for bytes in [100, 4096, 1 << 20, 4 << 20] {
            let moved = calls_in_a_second(limits, &[A], bytes) * bytes;
            assert!((9 << 20..=15 << 20).contains(&moved), "{moved} in calls of {bytes}");
        }
    }

    #[test]
    fn an_export_without_limits_is_not_remembered() {
        let table = RateLimits::default();
        let now = Moment::at_nanoseconds(SEC_NS);
        table.charge(EXPORT, A, &Limits::default(), Use { calls: 1, bytes: 1 << 30 }, now);
        assert!(table.delay(EXPORT, A, &Limits::default(), now).is_zero());
        assert!(table.lock().is_empty());
    }

    #[test]
    fn clients_without_calls_are_forgotten() {
        let table = RateLimits::default();
        let limits = Limits { client: rate(1000, 0), ..Limits::default() };
        for client in 0..10_000 {
            let now = Moment::at_nanoseconds(SEC_NS + u64::try_from(client).unwrap() * 1_000_000);
            table.charge(EXPORT, client, &limits, Use { calls: 1, bytes: 0 }, now);
        }
        assert!(table.lock().len() <= KNOWN_MAX);
    }
}
