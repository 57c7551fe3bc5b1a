use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::{NonZeroU32, NonZeroU64};

use super::*;
use crate::callbacks::CALLBACK_ANSWER_MAX;
use crate::export::Rate;
use crate::state;

const EXPORT: u32 = 7;
const A: ClientId = 0xffff_0a00_0001;
const B: ClientId = 0xffff_0a00_0002;
const SEC_NS: u64 = 1_000_000_000;

fn rate(calls_per_sec: u32, bytes_per_sec: u64) -> Rate {
    Rate {
        calls_per_sec: NonZeroU32::new(calls_per_sec),
        bytes_per_sec: NonZeroU64::new(bytes_per_sec),
    }
}

fn limits_of(export: u32, limits: Limits) -> ExportLimits {
    ExportLimits { export, limits }
}

/// The calls of one second over a connection for each of `clients`, each call as soon as those
/// before it are paid for.
fn calls_in_a_second(limits: Limits, clients: &[ClientId], bytes: u64) -> u64 {
    let (table, limited, start) = (RateLimits::default(), limits_of(EXPORT, limits), SEC_NS);
    let mut latest: Vec<Option<Tags>> = vec![None; clients.len()];
    let (mut calls, mut now) = (0, start);
    while now < start + SEC_NS {
        let mut wait = Duration::from_secs(1);
        for (client, tags) in clients.iter().zip(&mut latest) {
            let at = Moment::at_nanoseconds(now);
            let delay = |tags: Tags| table.delay(limited, *client, tags, at);
            if tags.is_none_or(|tags| delay(tags).is_zero()) {
                let taken = Use { calls: 1, bytes };
                *tags = Some(table.charge(limited, *client, taken, at).0);
                calls += 1;
            }
            wait = wait.min(delay(tags.expect("it was set")));
        }
        // Timers have milliseconds, and wait too long.
        now += u64::try_from(wait.as_nanos()).unwrap().next_multiple_of(1_000_000).max(10_000);
    }
    calls
}

#[test]
fn calls_of_all_clients_are_limited_together() {
    let limits = Limits { all: rate(1000, 0), ..Limits::default() };
    for clients in [&[A][..], &[A, A, A], &[A, B], &[A, B, B]] {
        let calls = calls_in_a_second(limits, clients, 100);
        assert!((1000..=1060).contains(&calls), "{calls}");
    }
}

#[test]
fn calls_of_each_client_are_limited_alone() {
    let limits = Limits { client: rate(1000, 0), ..Limits::default() };
    let calls = calls_in_a_second(limits, &[A, B, B], 100);
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
fn the_limit_that_takes_longer_is_waited_for() {
    let (table, now) = (RateLimits::default(), Moment::at_nanoseconds(SEC_NS));
    let limits = Limits { all: rate(1, 0), client: rate(0, 1 << 20) };
    let limited = limits_of(EXPORT, limits);
    let (tags, _) = table.charge(limited, A, Use { calls: 1, bytes: 4 << 20 }, now);
    assert_eq!(table.delay(limited, A, tags, now), Duration::from_millis(3950));
    let (later, _) = table.charge(limited, A, Use { calls: 8, bytes: 0 }, now);
    assert_eq!(table.delay(limited, A, later, now), Duration::from_millis(8950));
    assert_eq!(tags.later(later), later);
    assert_eq!(later.later(tags), later);
    assert_eq!(table.charge(limited, A, Use::default(), now).0, later);
    for (export, client) in [(EXPORT, B), (EXPORT + 1, A)] {
        let limited = limits_of(export, limits);
        let (tags, _) = table.charge(limited, client, Use::default(), now);
        assert!(table.delay(limited, client, tags, now).is_zero());
    }
}

#[test]
fn a_reply_settles_what_its_call_was_charged() {
    let (table, now) = (RateLimits::default(), Moment::at_nanoseconds(SEC_NS));
    let limits = Limits { all: rate(0, 1 << 20), ..Limits::default() };
    let limited = limits_of(EXPORT, limits);
    let taken = Use { calls: 1, bytes: 1 << 20 };
    let owed = || {
        let (all, _) = table.charge(limited, A, Use::default(), now);
        table.delay(limited, A, all, now) + BURST
    };
    let (tags, charged) = table.charge(limited, A, taken, now);
    table.settle(limited, A, (charged, Use { bytes: 3 << 20, ..taken }), now);
    assert_eq!(table.delay(limited, A, tags, now) + BURST, Duration::from_secs(1));
    assert_eq!(owed(), Duration::from_secs(3));
    table.settle(limited, A, (charged, Use { bytes: 1 << 19, ..taken }), now);
    assert_eq!(owed(), Duration::from_millis(2500));
}

#[test]
fn a_reply_gives_back_no_debt_that_the_longest_one_has_cut() {
    let (table, now) = (RateLimits::default(), Moment::at_nanoseconds(SEC_NS));
    let limits = Limits { all: rate(0, 64 << 10), ..Limits::default() };
    let limited = limits_of(EXPORT, limits);
    let owed = || {
        let (all, _) = table.charge(limited, A, Use::default(), now);
        table.delay(limited, A, all, now) + BURST
    };
    // 16 s each.
    let read = Use { calls: 1, bytes: 1 << 20 };
    let (_, first) = table.charge(limited, A, read, now);
    assert_eq!(owed(), WAIT_MAX);
    // A READ behind the end of its file.
    let (_, second) = table.charge(limited, A, read, now);
    table.settle(limited, A, (second, Use { bytes: 0, ..read }), now);
    assert_eq!(owed(), WAIT_MAX);
    table.settle(limited, A, (first, Use { bytes: 1 << 19, ..read }), now);
    assert_eq!(owed(), Duration::from_secs(8));
}

/// The calls of two connections, of which one has read nothing, in both orders of charging and of
/// settling.
#[test]
fn a_reply_gives_back_no_debt_that_another_call_has_used() {
    let limits = Limits { all: rate(0, 64 << 10), ..Limits::default() };
    let (limited, now) = (limits_of(EXPORT, limits), Moment::at_nanoseconds(SEC_NS));
    // 16 s each.
    let read = Use { calls: 1, bytes: 1 << 20 };
    for (unused, settled) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let table = RateLimits::default();
        let charged = [0, 1].map(|_| table.charge(limited, A, read, now).1);
        for at in [settled, 1 - settled] {
            let bytes = if at == unused { 0 } else { read.bytes };
            table.settle(limited, A, (charged[at], Use { bytes, ..read }), now);
            let (all, _) = table.charge(limited, A, Use::default(), now);
            assert_eq!(table.delay(limited, A, all, now) + BURST, WAIT_MAX);
        }
    }
}

/// A reload removes the limit of a call at work, and sets it again.
#[test]
fn a_reply_gives_back_nothing_of_a_limit_that_was_set_after_its_call() {
    let limits = Limits { all: rate(0, 64 << 10), ..Limits::default() };
    let (table, limited) = (RateLimits::default(), limits_of(EXPORT, limits));
    let second = |seconds| Moment::at_nanoseconds(seconds * SEC_NS);
    let read = Use { calls: 1, bytes: 1 << 19 };
    let (_, early) = table.charge(limited, A, read, second(1));
    table.charge(limits_of(EXPORT, Limits::default()), A, Use::default(), second(2));
    let (tags, _) = table.charge(limited, A, read, second(3));
    table.settle(limited, A, (early, Use::default()), second(3));
    assert_eq!(table.delay(limited, A, tags, second(3)) + BURST, Duration::from_secs(8));
}

#[test]
fn limits_that_are_not_set_are_not_charged() {
    let (table, now) = (RateLimits::default(), Moment::at_nanoseconds(SEC_NS));
    let (free, limits) = (Limits::default(), Limits { all: rate(1, 0), ..Limits::default() });
    let (tags, _) = table.charge(limits_of(EXPORT, free), A, Use { calls: 1, bytes: 1 << 30 }, now);
    assert!(table.delay(limits_of(EXPORT, free), A, tags, now).is_zero());
    let (tags, _) = table.charge(limits_of(EXPORT, limits), A, Use { calls: 8, bytes: 0 }, now);
    // A reload removes the limit, and another one sets it again.
    assert!(table.delay(limits_of(EXPORT, free), A, tags, now).is_zero());
    assert!(table.delay(limits_of(EXPORT, limits), A, tags, now).is_zero());
    table.retain(|export| export != EXPORT);
    assert!(table.lock().is_empty());
}

#[test]
fn a_host_has_one_share_whatever_its_address_in_its_network() {
    let id = |address: &str| match address.parse().unwrap() {
        IpAddr::V4(address) => Prefix::of(Ipv4Addr::to_ipv6_mapped(&address).to_bits()),
        IpAddr::V6(address) => Prefix::of(Ipv6Addr::to_bits(address)),
    };
    assert_eq!(id("2001:db8:0:1::1"), id("2001:db8:0:1:ffff::2"));
    assert_ne!(id("2001:db8:0:1::1"), id("2001:db8:0:2::1"));
    assert_ne!(id("10.0.0.1"), id("10.0.0.2"));
    assert_eq!(id("10.0.0.1"), id("::ffff:10.0.0.1"));
    assert_ne!(id("::1"), id("10.0.0.1"));
}

#[test]
fn leases_outlast_waits() {
    let lease = state::Limits::default().lease;
    // Of an old and of a new connection, after two thirds of the lease.
    assert!(2 * WAIT_MAX < lease / 3);
}

#[test]
fn callbacks_outlast_one_wait() {
    assert!(WAIT_MAX < CALLBACK_ANSWER_MAX);
}
