use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1000 * SECOND;
const A: Prefix = Prefix(1);
const B: Prefix = Prefix(2);
const C: Prefix = Prefix(3);

fn shared(per_sec: u64) -> Clock {
    Clock::new(Pace::Shared(per_sec), START)
}

/// A moment, in milliseconds since the start.
fn at(millis: u64) -> u64 {
    START + millis * 1_000_000
}

fn delay_millis(clock: &mut Clock, prefix: Prefix, tag: Tag, now: u64) -> u64 {
    clock.delay(prefix, tag, now).div_ceil(1_000_000)
}

fn owes(clock: &mut Clock, prefix: Prefix, now: u64) -> bool {
    clock.advance(now);
    clock.debtors.contains_key(&prefix)
}

#[test]
fn calls_of_a_client_come_one_after_another() {
    let mut clock = shared(10);
    let tags: Vec<_> = (0..16).map(|_| clock.charge(A, 1, START).0).collect();
    for elapsed in [0, 50, 100, 1000, 1600, 9000] {
        for (tag, ahead) in tags.iter().zip(1_u64..) {
            let expected = (ahead * 100).saturating_sub(elapsed);
            assert_eq!(delay_millis(&mut clock, A, *tag, at(elapsed)), expected, "{ahead}");
        }
    }
    assert!(clock.order.is_empty() && clock.debtors.is_empty());
}

#[test]
fn a_client_does_not_wait_for_what_others_have_taken() {
    let mut clock = shared(10);
    clock.charge(A, 100, START);
    let (tag, _) = clock.charge(B, 1, START);
    // It has half of the rate.
    assert_eq!(delay_millis(&mut clock, B, tag, START), 200);
    assert_eq!(clock.delay(C, tag, START), 0);
    let mut clock = Clock::new(Pace::Each(10), START);
    clock.charge(A, 100, START);
    let (tag, _) = clock.charge(B, 1, START);
    assert_eq!(delay_millis(&mut clock, B, tag, START), 100);
}

#[test]
fn what_was_paid_before_others_came_or_went_stays_paid() {
    let mut clock = shared(10);
    let (tag, _) = clock.charge(A, 10, START);
    assert_eq!(delay_millis(&mut clock, A, tag, at(400)), 600);
    // Six are left, at half of the rate while B owes two.
    clock.charge(B, 2, at(400));
    assert_eq!(delay_millis(&mut clock, A, tag, at(400)), 400 + 400);
    assert_eq!(delay_millis(&mut clock, A, tag, at(600)), 200 + 400);
    clock.charge(C, 1, at(600));
    // B and C owe one each: a third each of 300 ms, and then A alone.
    assert_eq!(delay_millis(&mut clock, A, tag, at(600)), 300 + 400);
    // No look in between: the clock finds both gone.
    assert_eq!(delay_millis(&mut clock, A, tag, at(1000)), 300);
    assert!(!owes(&mut clock, B, at(1000)) && !owes(&mut clock, C, at(1000)));
}

#[test]
fn looks_however_close_lose_no_time() {
    let mut clock = shared(1);
    for prefix in 0..1000 {
        clock.charge(Prefix(prefix), 1, START);
    }
    let (tag, _) = clock.charge(A, 1, START);
    for now in (START..START + 1_000_000).step_by(10) {
        clock.advance(now);
    }
    let delay = clock.delay(A, tag, START + 1_000_000);
    let expected = 14 * SECOND - 1_000_000;
    assert!(delay.abs_diff(expected) < 100_000, "{delay}");
}

#[test]
fn what_was_not_used_is_given_back_and_places_stay() {
    let mut clock = shared(10);
    let (first, _) = clock.charge(A, 10, START);
    let (second, _) = clock.charge(A, 10, START);
    clock.settle(A, (10, START), 2, START);
    assert_eq!(delay_millis(&mut clock, A, first, START), 1000);
    assert_eq!(delay_millis(&mut clock, A, second, START), 1200);
    // A later charge is for the calls to come: earlier tags stay.
    clock.charge(A, 50, START);
    assert_eq!(delay_millis(&mut clock, A, first, START), 1000);
    assert_eq!(delay_millis(&mut clock, A, second, START), 2000);
    clock.settle(A, (1000, START), 0, START);
    clock.settle(B, (1000, START), 0, START);
    assert!(!owes(&mut clock, A, START) && !owes(&mut clock, B, START));
    assert_eq!(clock.delay(A, second, START), 0);
}

#[test]
fn a_charge_adds_no_more_than_the_longest_debt() {
    let mut clock = shared(1000);
    assert_eq!(clock.charge(A, 14_000, START), (units(14_000), START));
    assert_eq!(clock.charge(A, 16_000, START), (units(14_000), START));
    clock.settle(A, (16_000, START), 16_000, START);
    assert_eq!(delay_millis(&mut clock, A, Tag::MAX, START), 14_000);
    assert_eq!(clock.charge(A, 3000, at(1000)), (units(15_000), at(1000)));
    assert_eq!(clock.charge(A, 0, at(1000)), (units(15_000), at(1000)));
}

/// Two calls of 16 s: what one does not use was charged for the other one too.
#[test]
fn what_the_longest_debt_has_cut_is_given_back_first() {
    // In seconds: the use of the call that is settled first, the debt then, the use of the other
    // call, and the debt then.
    for (one, owed_by_both, other, owed) in [
        (0, 14, 16, 14),
        (0, 14, 0, 0),
        (0, 14, 3, 3),
        (16, 14, 0, 14),
        (8, 14, 0, 8),
        (8, 14, 2, 10),
        (20, 14, 0, 14),
        (1, 14, 20, 14),
    ] {
        let mut clock = shared(1000);
        let call = (16_000, clock.charge(A, 16_000, START).1);
        clock.charge(A, 16_000, START);
        clock.settle(A, call, one * 1000, START);
        let delay = delay_millis(&mut clock, A, Tag::MAX, START);
        assert_eq!(delay, owed_by_both * 1000, "{one}, {other}");
        clock.settle(A, call, other * 1000, START);
        let delay = delay_millis(&mut clock, A, Tag::MAX, START);
        assert_eq!(delay, owed * 1000, "{one}, {other}");
    }
}

#[test]
fn a_call_gives_back_nothing_of_a_debt_that_began_after_it() {
    let mut clock = Clock::new(Pace::Each(1000), START);
    let (_, early) = clock.charge(A, 16_000, START);
    // It has paid.
    let now = at(14_000);
    let (_, late) = clock.charge(A, 10_000, now);
    clock.settle(A, (16_000, early), 0, now);
    assert_eq!(delay_millis(&mut clock, A, Tag::MAX, now), 10_000);
    // One too many owes something.
    (10..10 + DEBTORS_MAX as u128).for_each(|prefix| _ = clock.charge(Prefix(prefix), 11_000, now));
    assert!(!owes(&mut clock, A, now));
    clock.charge(A, 5000, at(14_001));
    clock.settle(A, (10_000, late), 0, at(14_001));
    assert_eq!(delay_millis(&mut clock, A, Tag::MAX, at(14_001)), 5000);
}

#[test]
fn what_another_rate_has_cut_is_given_back_first() {
    let mut clock = shared(1000);
    let first = (8000, clock.charge(A, 8000, START).1);
    clock.charge(A, 4000, START);
    clock.set_pace(Pace::Shared(500), START);
    assert_eq!(delay_millis(&mut clock, A, Tag::MAX, START), 14_000);
    clock.settle(A, first, 0, START);
    assert_eq!(delay_millis(&mut clock, A, Tag::MAX, START), 8000);
}

#[test]
fn another_rate_holds_from_then_on() {
    let mut clock = shared(10);
    let (tag, _) = clock.charge(A, 100, START);
    clock.set_pace(Pace::Shared(100), at(5000));
    assert_eq!(delay_millis(&mut clock, A, tag, at(5000)), 500);
    clock.set_pace(Pace::Shared(10), at(5400));
    assert_eq!(delay_millis(&mut clock, A, tag, at(5400)), 1000);
    // A debt that would take too long now is cut.
    clock.charge(B, 1, at(5400));
    clock.set_pace(Pace::Each(1), at(5400));
    clock.charge(A, 100, at(5400));
    clock.set_pace(Pace::Shared(1), at(5400));
    let most = u64::try_from(WAIT_MAX.as_millis()).unwrap();
    let delay = delay_millis(&mut clock, A, Tag::MAX, at(5400));
    assert!((most / 2..=most).contains(&delay), "{delay}");
    assert!(owes(&mut clock, B, at(5400)));
}

#[test]
fn debts_are_bounded() {
    let (mut clock, mut tag) = (shared(10), 0);
    (0..100_000).for_each(|_| tag = clock.charge(A, 1, START).0);
    assert_eq!(u128::from(clock.delay(A, tag, START)), WAIT_MAX.as_nanos());
    clock.charge(A, u64::MAX, START);
    assert_eq!(u128::from(clock.delay(A, Tag::MAX, START)), WAIT_MAX.as_nanos());
    let mut clock = shared(u64::MAX);
    clock.charge(A, u64::MAX, START);
    assert_eq!(delay_millis(&mut clock, A, Tag::MAX, START), 1000);
    clock.advance(u64::MAX);
    assert!(clock.order.is_empty());
}

#[test]
fn of_too_many_debtors_the_one_that_has_paid_first_is_forgotten() {
    let mut clock = Clock::new(Pace::Each(1000), START);
    let count = |prefix: u128| 2 + u64::try_from(prefix).unwrap() % 1000;
    for prefix in 0..10_000 {
        clock.charge(Prefix(prefix), count(prefix), START);
        assert!(clock.debtors.len() <= DEBTORS_MAX && clock.order.len() == clock.debtors.len());
    }
    let owing = |prefix: &u128| clock.debtors.contains_key(&Prefix(*prefix));
    assert!((0..10_000).filter(|prefix| count(*prefix) > 950).all(|prefix| owing(&prefix)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Connections of some clients with calls of some sizes, each call as soon as the one before it
    /// on its connection is paid for. Together they have the rate, and each client its share.
    #[test]
    fn clients_have_equal_shares_of_a_rate(
        connections in prop::collection::vec((0_u128..4, 1_u64..200), 1..12),
    ) {
        const RATE: u64 = 1000;
        let (mut clock, seconds) = (shared(RATE), 10);
        let mut tags = vec![None; connections.len()];
        let mut taken: HashMap<Prefix, u64> = HashMap::new();
        // A connection looks again a little later than it may.
        for now in (0..200 * seconds).map(|step| START + step * SECOND / 200) {
            for ((prefix, count), tag) in connections.iter().zip(&mut tags) {
                let prefix = Prefix(*prefix);
                while tag.is_none_or(|tag| clock.delay(prefix, tag, now) == 0) {
                    *tag = Some(clock.charge(prefix, *count, now).0);
                    *taken.entry(prefix).or_default() += count;
                }
            }
        }
        // The last call of each connection is not paid for yet.
        let owed: u64 = connections.iter().map(|(_, count)| count).sum();
        let (sum, bound) = (taken.values().sum::<u64>(), RATE * seconds);
        prop_assert!(sum <= bound + owed, "{} {}", sum, owed);
        // A client that looks late while it owes nothing loses the time.
        prop_assert!(sum + bound * 2 / 3 >= bound, "{} {}", sum, owed);
        for (prefix, count) in &taken {
            let share = bound / u64::try_from(taken.len()).unwrap();
            let least = connections.iter().filter(|(other, _)| Prefix(*other) == *prefix);
            let per_call = least.map(|(_, count)| *count).min().unwrap();
            // 5 ms of the rate are lost at most for each call.
            let late = RATE / 200 * (share / per_call);
            prop_assert!(count + late + owed >= share, "{} of {}, {}", count, share, owed);
        }
    }

    /// Calls end in any order, and have used less or more than they were charged. The debt is the
    /// longest one, or what the calls at work were charged and the others have used.
    #[test]
    fn debts_are_what_calls_have_used(
        calls in prop::collection::vec((0_u64..20_000, 0_u64..20_000, 0_usize..80), 1..40),
    ) {
        let (mut clock, mut used_by_all) = (Clock::new(Pace::Each(1000), START), 0);
        let mut at_work: Vec<(u64, u64, u64)> = Vec::new();
        for (count, used, ending) in calls {
            let (_, charged_at) = clock.charge(A, count, START);
            at_work.push((count, used, charged_at));
            if ending < at_work.len() {
                let (count, used, charged_at) = at_work.swap_remove(ending);
                clock.settle(A, (count, charged_at), used, START);
                used_by_all += used;
            }
            let charged: u64 = at_work.iter().map(|(count, ..)| count).sum();
            let owed = (used_by_all + charged).min(14_000);
            prop_assert_eq!(delay_millis(&mut clock, A, Tag::MAX, START), owed);
        }
        for (count, used, charged_at) in at_work {
            clock.settle(A, (count, charged_at), used, START);
            used_by_all += used;
        }
        let owed = used_by_all.min(14_000);
        prop_assert_eq!(delay_millis(&mut clock, A, Tag::MAX, START), owed);
    }

    /// Whatever happens, tags of a client ascend, a delay that was promised holds if no one comes,
    /// and the tables agree.
    #[test]
    fn the_clock_keeps_its_promises(
        steps in prop::collection::vec((0_u128..6, 0_u64..3000, 0_u64..2000, 0_u8..5), 1..60),
        is_shared in any::<bool>(),
    ) {
        let pace = if is_shared { Pace::Shared } else { Pace::Each };
        let (mut clock, mut now) = (Clock::new(pace(1000), START), START);
        for (prefix, count, millis, kind) in steps {
            let prefix = Prefix(prefix);
            match kind {
                0 => clock.settle(prefix, (count, now), count / 3, now),
                1 => clock.set_pace(pace(1 + count), now),
                _ => {
                    let (before, _) = clock.charge(prefix, 0, now);
                    let latest = clock.latest();
                    let (after, charged_at) = clock.charge(prefix, count, now);
                    prop_assert!(after >= before.min(latest) || is_shared);
                    if kind == 2 {
                        clock.settle(prefix, (count, charged_at), 0, now);
                        let (left, _) = clock.charge(prefix, 0, now);
                        prop_assert!(left >= before.min(after));
                    }
                }
            }
            let (tag, _) = clock.charge(prefix, 0, now);
            let delay = clock.delay(prefix, tag, now);
            prop_assert!(u128::from(clock.delay(prefix, Tag::MAX, now)) == u128::from(delay));
            if delay > 0 {
                let (mut later, mut paid) = (now + delay - 1, false);
                while !paid && later <= now + delay + 100 {
                    let mut same = Clock { debtors: clock.debtors.clone(),
                        order: clock.order.clone(), ..clock };
                    paid = same.delay(prefix, tag, later) == 0;
                    prop_assert!(!paid || later + 100 >= now + delay);
                    later += 1;
                }
                prop_assert!(paid);
            }
            prop_assert_eq!(clock.order.len(), clock.debtors.len());
            now += millis * 1_000_000;
        }
    }
}
