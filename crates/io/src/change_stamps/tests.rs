use std::cell::Cell;

use super::*;

const TICK: u32 = 100_000;
/// The client of the changes, and another one.
const CLIENT: ClientId = 1;
const OTHER: ClientId = 2;
const WRITTEN: Done = done(Mtime::Renewed);

const fn done(mtime: Mtime) -> Done {
    Done { by: Clients::One(CLIENT), mtime }
}

/// A time so late that no stamp of these tests is of its step, and that of tick 0.
const LATE: StampTime = (100, 0);
const EARLY: StampTime = (5, 0);

fn stamp(tick: u32) -> Stamp {
    Stamp { size: u64::from(tick), mtime: (5, tick * TICK), ctime: (5, tick * TICK) }
}

/// The stamp that other calls see when the kernel shows that of `tick`.
fn seen(stamps: &ChangeStamps, clock: &ChangeClock, tick: u32) -> Stamp {
    let since = clock.now();
    stamps.seen(stamp(tick), since, CLIENT)
}

fn begin_shared(stamps: &ChangeStamps, tick: u32) -> Stamp {
    let begun = stamps.begin_shared(Lengths::ANY, || Ok::<_, ()>(stamp(tick)), taken).unwrap().1;
    stamps.note_call(|| stamp(tick).ctime);
    begun
}

/// A stamp, as read before all changes.
fn taken(stamp: &Stamp) -> (Stamp, Moment) {
    (*stamp, Moment::default())
}

fn begin_exclusive(stamps: &ChangeStamps, tick: u32, lengths: Lengths) {
    stamps.begin_exclusive(taken(&stamp(tick)), lengths);
    stamps.note_call(|| stamp(tick).ctime);
}

#[test]
fn a_change_alone_shows_the_stamp_before_it_until_it_ends() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    assert_eq!(seen(&stamps, &clock, 1), stamp(1));
    begin_exclusive(&stamps, 1, Lengths::ANY);
    assert_eq!(seen(&stamps, &clock, 2), stamp(1));
    let during = clock.now();
    stamps.end(&clock);
    assert_eq!(
        stamps.seen(stamp(2), during, CLIENT),
        stamp(1),
        "it was at work when the stamp was read"
    );
    assert_eq!(seen(&stamps, &clock, 2), stamp(2));
}

#[test]
fn sharers_take_effect_one_after_the_other_at_their_ends() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    let end = |tick: u32| stamps.end_shared(&clock, WRITTEN.by, tick.into(), || Some(stamp(tick)));
    for _ in 0..3 {
        assert_eq!(begin_shared(&stamps, 1), stamp(1));
    }
    assert_eq!(seen(&stamps, &clock, 4), stamp(1), "nothing has ended");
    let (before, first) = end(4).unwrap();
    assert_eq!((before, first.size), (stamp(1), 4));
    assert_eq!(first.ctime, (5, TICK + 1), "after what is known, before what the kernel has");
    // The kernel's mtime may be that of the change that is still at work.
    assert_eq!(first.mtime, first.ctime);
    assert_eq!(seen(&stamps, &clock, 4), first);
    assert_eq!(begin_shared(&stamps, 5), first, "one more, while the others are at work");
    stamps.end(&clock);
    let (before, second) = end(5).unwrap();
    assert_eq!((before, second.ctime), (first, (5, TICK + 2)));
    assert_eq!(end(5).unwrap(), (second, stamp(5)), "the last one leaves the kernel's stamp");
    assert_eq!(seen(&stamps, &clock, 5), stamp(5));
}

#[test]
fn a_sharer_shows_no_length_of_those_at_work() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    let end = |end, tick| {
        let ended = stamps.end_shared(&clock, WRITTEN.by, end, || Some(stamp(tick)));
        ended.unwrap().1
    };
    for _ in 0..4 {
        begin_shared(&stamps, 1);
    }
    let first = end(3, 9);
    assert_eq!(first.size, 3, "the rest is of another one");
    assert_eq!(seen(&stamps, &clock, 9), first);
    assert_eq!(end(2, 9).size, 3);
    assert_eq!(end(9, 9).size, 9);
    assert_eq!(end(5, 9), stamp(9));
}

/// A step of the kernel's clock covers the ticks that begin with it.
fn in_step(tick: u32, size: u64) -> Stamp {
    Stamp { size, ..stamp(tick) }
}

/// A stamp so many changes behind one that was shown.
fn raised(from: Stamp, changes: u32, size: u64) -> Stamp {
    let ctime = after(from.ctime, changes * STEP.subsec_nanos());
    Stamp { size, mtime: ctime, ctime }
}

#[test]
fn changes_within_a_step_of_the_clock_have_times_of_their_own() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    let change = |live: [Stamp; 2], mtime| {
        let before = stamps.begin_exclusive(taken(&live[0]), Lengths::ANY);
        let pair = stamps.pair_exclusive(Some(done(mtime)), Some(live[1]), || EARLY);
        stamps.end(&clock);
        assert_eq!(pair.0, before);
        (before, pair.1.unwrap())
    };
    let see = |live| stamps.seen(live, clock.now(), CLIENT);
    let (first, longer) = (in_step(1, 0), in_step(1, 7));
    assert_eq!(see(first), first);
    assert_eq!(change([first, longer], Mtime::Renewed), (first, raised(first, 1, 7)));
    assert_eq!(see(longer), raised(first, 1, 7));
    assert_eq!(change([longer; 2], Mtime::Renewed).1, raised(first, 2, 7));
    // A change of attributes alone leaves the mtime that was shown.
    let (_, mode) = change([longer; 2], Mtime::Kept);
    assert_eq!(mode, Stamp { mtime: raised(first, 2, 7).mtime, ..raised(first, 3, 7) });
    // One that is set stays, whatever it is.
    let (_, set) = change([longer; 2], Mtime::Set);
    assert_eq!(set, Stamp { mtime: longer.mtime, ..raised(first, 4, 7) });
    assert_eq!(see(longer), set);
    // The kernel's clock goes on.
    assert_eq!(change([longer, in_step(2, 8)], Mtime::Renewed).1, in_step(2, 8));
    assert_eq!(see(in_step(2, 8)), in_step(2, 8));
    assert!(!stamps.is_behind(), "no other client has seen one");
}

#[test]
fn a_change_of_nothing_leaves_the_stamp() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    let change = |done, time| {
        let before = stamps.begin_exclusive(taken(&stamp(1)), Lengths::ANY);
        let after = stamps.pair_exclusive(done, Some(stamp(1)), || time).1;
        stamps.end(&clock);
        (before, after.unwrap())
    };
    assert_eq!(change(None, EARLY), (stamp(1), stamp(1)), "refused");
    assert_eq!(change(Some(WRITTEN), LATE), (stamp(1), stamp(1)), "its ctime is old");
    let raised = raised(stamp(1), 1, 1);
    assert_eq!(change(Some(WRITTEN), EARLY), (stamp(1), raised));
    assert_eq!(change(None, EARLY), (raised, raised));
}

#[test]
fn a_ctime_that_another_client_has_seen_is_to_be_renewed() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    let change = |done, ticks: [u32; 2]| {
        let [before, now] = ticks.map(stamp);
        stamps.begin_exclusive(taken(&before), Lengths::ANY);
        let after = stamps.pair_exclusive(done, Some(now), || EARLY).1.unwrap();
        stamps.end(&clock);
        after
    };
    stamps.seen(stamp(1), clock.now(), OTHER);
    change(Some(WRITTEN), [1, 1]);
    // A renewal within the same step, and one after it.
    assert!(stamps.is_behind() && stamps.begin_renewal());
    assert_eq!(change(None, [1, 1]), raised(stamp(1), 1, 1));
    assert!(stamps.is_behind() && stamps.begin_renewal());
    assert_eq!(change(None, [1, 2]), stamp(2));
    assert!(!stamps.is_behind() && !stamps.begin_renewal());
    // A clock that was set back.
    stamps.seen(stamp(2), clock.now(), OTHER);
    let shown = change(Some(WRITTEN), [2, 0]);
    assert_eq!(shown.ctime, after(stamp(2).ctime, STEP.subsec_nanos()));
    // Where no renewal has an effect there is no end of them otherwise.
    let attempts = std::iter::repeat_with(|| stamps.begin_renewal()).take_while(|&begun| begun);
    assert_eq!(attempts.count(), RENEWALS_MAX.into());
    assert_eq!(change(None, [0, 0]), shown);
    // A change by clients of which one has seen its own beginning.
    let both = Done { by: Clients::Many, mtime: Mtime::Renewed };
    change(Some(both), [0, 3]);
    change(Some(WRITTEN), [3, 3]);
    assert!(stamps.is_behind());
}

#[test]
fn what_sharers_have_shown_outlasts_one_that_is_not_performed() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    begin_shared(&stamps, 1);
    begin_shared(&stamps, 1);
    let (_, first) = stamps.end_shared(&clock, WRITTEN.by, 0, || Some(stamp(1))).unwrap();
    stamps.end(&clock);
    assert_eq!(seen(&stamps, &clock, 1), first);
    assert!(stamps.is_behind());
    assert_eq!(seen(&stamps, &clock, 2), stamp(2));
    assert!(!stamps.is_behind());
}

#[test]
fn a_local_change_after_the_clock_was_set_back_is_shown() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    stamps.begin_exclusive(taken(&stamp(5)), Lengths::ANY);
    let own = stamps.pair_exclusive(Some(WRITTEN), Some(stamp(5)), || EARLY).1.unwrap();
    stamps.end(&clock);
    let local = Stamp { size: 9, ..stamp(3) };
    let shown = stamps.seen(local, clock.now(), OTHER);
    assert_eq!(shown, Stamp { ctime: after(own.ctime, 1), ..local });
    assert_eq!(stamps.seen(local, clock.now(), OTHER), shown);
}

#[test]
fn the_last_sharer_within_a_step_of_the_clock_has_a_time_of_its_own() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    for _ in 0..2 {
        begin_shared(&stamps, 1);
    }
    let end = || stamps.end_shared(&clock, WRITTEN.by, 0, || Some(stamp(1))).unwrap();
    let (_, first) = end();
    let (before, last) = end();
    assert_eq!(before, first);
    assert!(last.ctime > first.ctime);
    assert_eq!(begin_shared(&stamps, 1), last);
}

#[test]
fn a_failed_stat_begins_no_change_and_makes_no_pair() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    assert!(stamps.begin_shared(Lengths::ANY, || Err::<Stamp, _>(()), taken).is_err());
    assert_eq!(seen(&stamps, &clock, 3), stamp(3));
    begin_shared(&stamps, 3);
    begin_shared(&stamps, 3);
    assert_eq!(stamps.end_shared(&clock, WRITTEN.by, 0, || None), None);
    assert!(seen(&stamps, &clock, 4).ctime > stamp(3).ctime, "a change all the same");
    assert_eq!(stamps.end_shared(&clock, WRITTEN.by, 0, || None), None);
    assert_eq!(seen(&stamps, &clock, 4), stamp(4));
}

/// The stamp that others see of what no change of the server explains, in the middle of one that
/// began at tick 1.
fn seen_of_local(stamps: &ChangeStamps, clock: &ChangeClock, local: Stamp) -> Stamp {
    let since = clock.now();
    let shown = stamps.seen(local, since, CLIENT);
    assert_eq!(shown, Stamp { mtime: (5, TICK + 1), ctime: (5, TICK + 1), ..local });
    assert_eq!(stamps.seen(local, since, CLIENT), shown, "until something changes");
    assert_eq!(seen(stamps, clock, 1), shown, "what was read before it");
    shown
}

#[test]
fn a_local_length_is_shown_during_a_change() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    for lengths in [Lengths::up_to(3), Lengths::set_to(3), Lengths::KEPT] {
        begin_exclusive(&stamps, 1, lengths);
        assert_eq!(seen(&stamps, &clock, 1), stamp(1));
        let shown = seen_of_local(&stamps, &clock, Stamp { size: 0, ..stamp(2) });
        let pair = stamps.pair_exclusive(Some(WRITTEN), Some(stamp(3)), || EARLY);
        assert_eq!(pair, (shown, Some(stamp(3))), "not the local change");
        stamps.end(&clock);
    }
    begin_shared(&stamps, 1);
    begin_shared(&stamps, 1);
    let late = Stamp { ctime: (9, 0), ..stamp(1) };
    let shown = seen_of_local(&stamps, &clock, late);
    let end = || stamps.end_shared(&clock, WRITTEN.by, 0, || Some(late)).unwrap();
    let (before, after) = end();
    assert_eq!((before, after.ctime), (shown, (5, TICK + 2)));
    assert_eq!(end(), (after, late));
}

#[test]
fn a_local_change_is_distinguished_by_its_time() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    stamps.begin_exclusive(taken(&stamp(1)), Lengths::up_to(9));
    seen_of_local(&stamps, &clock, Stamp { size: 1, ..stamp(2) });
    stamps.end(&clock);
    begin_exclusive(&stamps, 1, Lengths::up_to(9));
    let delay = u32::try_from(STAMP_DELAY.as_nanos()).unwrap();
    let own = Stamp { ctime: (5, TICK + delay), ..stamp(1) };
    assert_eq!(stamps.seen(own, clock.now(), CLIENT), stamp(1), "the change's own stamp");
    seen_of_local(&stamps, &clock, Stamp { ctime: (5, TICK + delay + 1), ..stamp(1) });
    stamps.end(&clock);
}

#[test]
fn a_stamp_at_the_end_of_a_call_is_that_of_one_that_waited() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    let at = |seconds: i64, size: u64| Stamp { size, mtime: (seconds, 0), ctime: (seconds, 0) };
    for _ in 0..3 {
        begin_shared(&stamps, 1);
    }
    stamps.note_call(|| (7, 0));
    // The end is noted a moment after it.
    let early = Stamp { ctime: (6, 950_000_000), ..stamp(1) };
    assert_eq!(stamps.seen(early, clock.now(), CLIENT), stamp(1));
    let (before, after) = stamps.end_shared(&clock, WRITTEN.by, 0, || Some(at(7, 1))).unwrap();
    assert_eq!((before, after.ctime), (stamp(1), (5, TICK + 1)), "no local change between them");
    stamps.note_call(|| (9, 0));
    let during = Stamp { mtime: (5, TICK + 2), ctime: (5, TICK + 2), ..at(8, 1) };
    assert_eq!(stamps.seen(at(8, 1), clock.now(), CLIENT), during, "by no call of the server");
    stamps.end(&clock);
    let (before, after) = stamps.end_shared(&clock, WRITTEN.by, 0, || Some(at(9, 1))).unwrap();
    assert_eq!((before, after), (during, at(9, 1)));
}

#[test]
fn an_end_hides_no_local_change_from_after_its_look() {
    for looked in [Some(stamp(1)), None] {
        let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
        for _ in 0..2 {
            let look = || Ok::<_, ()>(stamp(1));
            stamps.begin_shared(Lengths::up_to(1), look, taken).unwrap();
            stamps.note_call(|| stamp(1).ctime);
        }
        let since = [Cell::new(clock.now()), Cell::default()];
        let look = || {
            since[1].set(clock.now());
            looked
        };
        stamps.end_shared(&clock, WRITTEN.by, 0, look);
        let local = Stamp { size: 0, ..stamp(2) };
        let [before, after] = since.map(|since| stamps.seen(local, since.get(), CLIENT).size);
        assert_eq!(before, u64::from(looked.is_some()), "the look may be the later one");
        assert_eq!(after, 0);
        assert_eq!(seen(&stamps, &clock, 1).size, 0, "what was read before it");
    }
}

#[test]
fn a_stamp_near_a_system_call_may_be_its_own() {
    const MS: i128 = 1_000_000;
    for (notes, stamp, may_be_own) in [
        (&[1000][..], 899, false),
        (&[1000], 900, true),
        (&[1000], 1100, true),
        (&[1000], 1101, false),
        (&[0, 1000], 100, true),
        (&[0, 1000], 101, false),
        (&[0, 1000], 899, false),
        (&[0, 1000], 900, true),
        (&[0, 1000, 1050, 1200], 500, false),
        (&[0, 190], 120, true),
        // The clock was set back.
        (&[0, 1000, 500], 450, true),
        (&[0, 1000, 500], 650, false),
    ] {
        let mut own = Own { lengths: Lengths::ANY, calls: None };
        notes.iter().for_each(|note| own.note_call(note * MS));
        let contained = own.calls.unwrap().contain(stamp * MS);
        assert_eq!(contained, may_be_own, "{stamp} ms, calls at {notes:?}");
    }
}

#[test]
fn a_local_change_at_the_end_of_a_change_is_shown() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    begin_exclusive(&stamps, 1, Lengths::up_to(3));
    let since = clock.now();
    stamps.end(&clock);
    let local = Stamp { size: 0, ..stamp(2) };
    let shown = Stamp { mtime: (5, TICK + 1), ctime: (5, TICK + 1), ..local };
    assert_eq!(stamps.seen(local, since, CLIENT), shown);
    assert_eq!(stamps.seen(stamp(3), since, CLIENT), stamp(1), "the change's own");
    assert_eq!(seen(&stamps, &clock, 0), stamp(0), "read after it");
}

#[test]
fn a_pair_over_a_local_change_begins_after_it() {
    let (stamps, clock) = (ChangeStamps::default(), ChangeClock::new());
    let still = Stamp { size: 0, ..stamp(1) };
    begin_exclusive(&stamps, 1, Lengths::up_to(3));
    let shown = seen_of_local(&stamps, &clock, still);
    let (before, after) = stamps.pair_exclusive(Some(WRITTEN), Some(still), || EARLY);
    assert_eq!(before, shown);
    assert!(after.unwrap().ctime > shown.ctime);
    stamps.end(&clock);
}

#[test]
fn the_last_nanosecond_of_a_second_is_followed_by_the_next_second() {
    let last = Stamp { ctime: (5, 999_999_999), ..stamp(0) };
    let next = Stamp { mtime: (6, 0), ctime: (6, 0), ..stamp(3) };
    assert_eq!(stamp(3).right_after(&last), next);
}

#[test]
fn changes_of_one_turn_have_a_chain_of_pairs() {
    let (before, after) = (stamp(1), stamp(2));
    assert_eq!(stamps_between((before, after), 1), Some(vec![]));
    let between = stamps_between((before, after), 4).unwrap();
    assert_eq!(between.len(), 3);
    let chain: Vec<_> = [before].into_iter().chain(between).chain([after]).collect();
    assert!(chain.is_sorted_by(|one, next| one.ctime < next.ctime));
    // Each is a change of data: none has the mtime of another.
    assert!(chain.is_sorted_by(|one, next| one.mtime < next.mtime));
    let ticks = TICK as usize;
    assert_eq!(stamps_between((before, after), ticks).unwrap().len(), ticks - 1);
    assert_eq!(stamps_between((before, after), ticks + 1), None, "no room");
    assert_eq!(stamps_between((after, before), 2), None, "the clock was set back");
    assert_eq!(stamps_between((after, before), 1), Some(vec![]));
    assert_eq!(stamps_between((after, after), 3), Some(vec![after; 2]), "the clock stands still");
    let last = Stamp { ctime: (5, 999_999_999), ..before };
    let later = Stamp { ctime: (6, 10), ..after };
    assert_eq!(stamps_between((last, later), 2).unwrap()[0].ctime, (6, 0));
}
