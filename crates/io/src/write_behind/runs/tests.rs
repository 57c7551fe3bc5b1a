//! Tables and properties of the bookkeeping.

use proptest::prelude::*;

use super::*;

const PAGE: u64 = 4096;
const RUN: u64 = 16 * PAGE;

const LIMITS: Limits = Limits {
    page_bytes: PAGE,
    run_bytes: RUN,
    age_max: Duration::from_millis(1000),
    neighbour_wait: Duration::from_millis(5000),
};

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange::new(offset, len).unwrap()
}

fn pages(first: u64, count: u64) -> ByteRange {
    range(first * PAGE, count * PAGE)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The ranges whose write-back begins next; it begins here, after earlier batches are finished.
fn started(runs: &mut Runs, now: Instant, urgency: Urgency) -> Vec<ByteRange> {
    loop {
        let step = runs.next(now, urgency).expect("something to begin with");
        if step.action == Action::Start {
            runs.began(now);
            return step.ranges;
        }
        runs.finished(Vec::new(), now);
    }
}

/// Takes the step that must be a `Finish`, with everything dropped.
fn finished(runs: &mut Runs, now: Instant, urgency: Urgency) -> Droppable {
    let step = runs.next(now, urgency).expect("something to finish");
    assert_eq!(step.action, Action::Finish);
    let droppable = runs.droppable();
    assert_eq!(runs.finished(Vec::new(), now), 0);
    droppable
}

#[test]
fn a_stream_goes_in_full_runs_and_two_behind_it_leave() {
    let (mut runs, now) = (Runs::new(LIMITS), Instant::now());
    let transfer = 3 * PAGE + 77;
    let mut begun = Vec::new();
    let mut left = Vec::new();
    for index in 0..40 {
        assert!(!runs.insert(range(index * transfer, transfer), now).out_of_order);
        while runs.due(now) == Some(now) {
            match runs.next(now, Urgency::Relaxed).unwrap() {
                Step { action: Action::Start, ranges, .. } => {
                    runs.began(now);
                    begun.extend(ranges);
                }
                step => {
                    assert_eq!(step.action, Action::Finish);
                    assert!(begun.len() > left.len() + STARTED_MAX, "two are on their way");
                    assert_eq!(runs.droppable().ranges, step.ranges);
                    runs.finished(Vec::new(), now);
                    left.extend(step.ranges);
                }
            }
        }
    }
    let whole_runs = 40 * transfer / RUN;
    let expected: Vec<_> = (0..whole_runs).map(|index| range(index * RUN, RUN)).collect();
    assert_eq!(begun, expected);
    assert_eq!(left, expected[..expected.len() - STARTED_MAX]);
}

#[test]
fn a_run_that_begins_anywhere_ends_at_a_boundary() {
    for (first_page, count, expected) in [
        (0, 15, None),
        (0, 16, Some((0, 16))),
        (0, 17, Some((0, 16))),
        (1, 15, Some((1, 15))),
        (8, 8, Some((8, 8))),
        // Too little up to the next boundary: one more.
        (9, 7, None),
        (9, 22, None),
        (9, 23, Some((9, 23))),
        (15, 17, Some((15, 17))),
        (16, 16, Some((16, 16))),
    ] {
        let (mut runs, now) = (Runs::new(LIMITS), Instant::now());
        runs.insert(pages(first_page, count), now);
        let begun = match runs.due(now) == Some(now) {
            true => Some(started(&mut runs, now, Urgency::Relaxed)),
            false => None,
        };
        let expected = expected.map(|(first, count)| vec![pages(first, count)]);
        assert_eq!(begun, expected, "{count} pages from {first_page}");
    }
}

#[test]
fn half_filled_pages_wait_for_their_neighbour() {
    let now = Instant::now();
    let middle = range(PAGE / 2, 4 * PAGE);
    // The edges stay behind under pressure.
    let mut runs = Runs::new(LIMITS);
    runs.insert(middle, now);
    assert_eq!(started(&mut runs, now, Urgency::Pressed), [pages(1, 3)]);
    assert_eq!((runs.pending(), runs.edge_bytes()), (Pending::Pages, 2 * PAGE));
    finished(&mut runs, now, Urgency::Pressed);
    assert_eq!((runs.pending(), runs.charged()), (Pending::Edges, 2 * PAGE));
    assert_eq!(runs.next(now, Urgency::Pressed), None);
    // The neighbour in front comes: its page is full and may go, the other one waits on.
    assert_eq!(runs.insert(range(0, PAGE / 2), now).edges_filled, 1);
    assert_eq!(started(&mut runs, now, Urgency::Pressed), [pages(0, 1)]);
    finished(&mut runs, now, Urgency::Pressed);
    assert_eq!(runs.next(now, Urgency::Pressed), None);
    // At the end of a file written in sequence it waits as long as any byte.
    assert_eq!(runs.due(now), Some(now + LIMITS.age_max));
    assert_eq!(started(&mut runs, now + LIMITS.age_max, Urgency::Relaxed), [pages(4, 1)]);

    // Unless memory is needed that nothing else gives, or everything has to go.
    for urgency in [Urgency::Starved, Urgency::Draining] {
        let mut runs = Runs::new(LIMITS);
        runs.insert(range(10, 100), now);
        assert_eq!(started(&mut runs, now, urgency), [pages(0, 1)]);
    }
    let mut runs = Runs::new(LIMITS);
    runs.insert(middle, now);
    assert_eq!(started(&mut runs, now, Urgency::Draining), [pages(0, 5)]);
}

#[test]
fn half_filled_pages_of_several_writers_wait_long_and_leave_oldest_first() {
    const RECORD: u64 = 3 * PAGE + 100;
    let (mut runs, mut now) = (Runs::new(LIMITS), Instant::now());
    let record = |index: u64| range(index * RECORD, RECORD);
    for index in [6, 4, 0, 2] {
        runs.insert(record(index), now);
        now += ms(1);
    }
    assert_eq!(bytes_of(&started(&mut runs, now, Urgency::Pressed)), 4 * 2 * PAGE + PAGE);
    finished(&mut runs, now, Urgency::Pressed);
    // Record 0 begins with a page, so seven edges are left.
    assert_eq!((runs.pending(), runs.edge_bytes()), (Pending::Edges, 7 * PAGE));
    let later = now + LIMITS.age_max;
    assert_eq!(runs.next(later, Urgency::Relaxed), None);
    // The other writer's record fills the pages at both of its ends.
    assert_eq!(runs.insert(record(5), later).edges_filled, 2);
    assert_eq!(started(&mut runs, later, Urgency::Pressed), [record(5).widened_to(PAGE)]);
    finished(&mut runs, later, Urgency::Pressed);
    // Space is short: what has waited longest is given up, a batch at a time.
    let step = runs.next(later, Urgency::Starved).unwrap();
    assert_eq!((step.action, step.edges), (Action::Start, 5));
    runs.began(later);
    finished(&mut runs, later, Urgency::Pressed);
    assert!(runs.is_empty());
}

#[test]
fn clean_pages_do_not_pile_up_beside_half_filled_ones() {
    let (mut runs, now) = (Runs::new(LIMITS), Instant::now());
    // The folios of these records are larger than what may be dropped of them.
    for index in 0..6 {
        runs.insert(range(index * 8 * PAGE + 100, 4 * PAGE), now);
        let ranges = started(&mut runs, now, Urgency::Pressed);
        assert_eq!(runs.next(now, Urgency::Pressed).unwrap().action, Action::Finish);
        runs.finished(ranges, now);
    }
    assert_eq!(runs.due(now), Some(now), "more than a batch is clean, and cannot be dropped");
    let step = runs.next(now, Urgency::Relaxed).unwrap();
    assert_eq!((step.action, bytes_of(&step.ranges)), (Action::Start, 6 * 5 * PAGE));
}

#[test]
fn age_moves_what_nothing_else_does() {
    let (mut runs, now) = (Runs::new(LIMITS), Instant::now());
    runs.insert(pages(50, 1), now);
    runs.insert(pages(3, 1), now + ms(400));
    runs.insert(pages(7, 1), now + ms(900));
    assert_eq!(runs.due(now + ms(900)), Some(now + ms(1000)));
    assert_eq!(runs.next(now + ms(999), Urgency::Relaxed), None);
    // Ranges half as old go along, in ascending order; the youngest does not.
    let at = now + ms(1000);
    assert_eq!(started(&mut runs, at, Urgency::Relaxed), [pages(3, 1), pages(50, 1)]);
    assert_eq!(runs.due(at), Some(at + SETTLE));
    assert_eq!(runs.next(at, Urgency::Relaxed), None);
    finished(&mut runs, at + SETTLE, Urgency::Relaxed);
    assert_eq!(runs.due(at), Some(now + ms(1900)));

    // A page that is written again and again goes all the same.
    let mut runs = Runs::new(LIMITS);
    let mut begun = Vec::new();
    for tick in 0..=200 {
        let at = now + ms(10 * tick);
        runs.insert(range(10, 100), at);
        while let Some(step) = runs.next(at, Urgency::Relaxed) {
            match step.action {
                Action::Start => {
                    begun.push(tick);
                    runs.began(at);
                }
                _ => drop(runs.finished(Vec::new(), at)),
            }
        }
    }
    assert_eq!(begun, [100], "once in the second second, counted from the write after the first");
}

#[test]
fn scattered_pages_go_up_and_around() {
    let (mut runs, now) = (Runs::new(LIMITS), Instant::now());
    let press = |runs: &mut Runs, at: &[u64]| {
        for &page in at {
            runs.insert(pages(page, 1), now);
        }
        let begun = started(runs, now, Urgency::Pressed);
        begun.iter().map(|range| range.offset() / PAGE).collect::<Vec<_>>()
    };
    let many: Vec<u64> = (0..20).map(|index| 1000 - 10 * index).collect();
    let up: Vec<u64> = (0..16).map(|index| 810 + 10 * index).collect();
    assert_eq!(press(&mut runs, &many), up);
    // On from there, not back to what arrived in front of it.
    assert_eq!(press(&mut runs, &[5, 965]), [965, 970, 980, 990, 1000]);
    assert_eq!(press(&mut runs, &[]), [5]);
}

#[test]
fn arrivals_are_judged() {
    const IN: (bool, bool) = (false, false);
    const LATE: (bool, bool) = (true, false);
    const MENDED: (bool, bool) = (true, true);
    for (what, arrivals) in [
        ("in order", vec![(0, IN), (1, IN), (2, IN)]),
        ("two swapped", vec![(0, IN), (2, IN), (1, MENDED), (3, IN)]),
        ("the first late", vec![(1, IN), (0, MENDED), (2, IN)]),
        ("three turned round", vec![(0, IN), (3, IN), (2, MENDED), (1, MENDED), (4, IN)]),
        ("a gap filled in two steps", vec![(0, IN), (4, IN), (2, LATE), (3, IN), (1, MENDED)]),
        ("written again", vec![(0, IN), (1, IN), (0, IN), (1, IN)]),
        ("two streams", vec![(0, IN), (100, IN), (1, IN), (101, IN), (2, IN), (102, IN)]),
    ] {
        let (mut runs, now) = (Runs::new(LIMITS), Instant::now());
        for (index, &(at, expected)) in arrivals.iter().enumerate() {
            let arrival = runs.insert(range(at * 1500, 1500), now);
            let judged = (arrival.out_of_order, arrival.put_in_order);
            assert_eq!(judged, expected, "{what}: arrival {index}");
        }
    }
}

#[test]
fn what_was_cached_before_stays() {
    let (mut runs, now) = (Runs::new(LIMITS), Instant::now());
    assert_eq!(runs.announce(pages(0, 8)), [pages(0, 8)]);
    runs.keep(pages(2, 3));
    runs.insert(pages(0, 8), now);
    runs.withdraw(pages(0, 8));
    // While they are in the window the cache is not asked again.
    assert_eq!(runs.announce(range(0, 8 * PAGE + 1)), [pages(8, 1)]);
    runs.withdraw(range(0, 8 * PAGE + 1));
    started(&mut runs, now, Urgency::Draining);
    let droppable = finished(&mut runs, now, Urgency::Draining);
    assert_eq!(droppable.ranges, [pages(0, 2), pages(5, 3)]);
    assert_eq!(droppable.kept_bytes, 3 * PAGE);
    // Left the window: the next one asks again, and only its answer counts.
    assert_eq!(runs.announce(pages(0, 8)), [pages(0, 8)]);
    runs.insert(pages(0, 8), now);
    runs.withdraw(pages(0, 8));
    started(&mut runs, now, Urgency::Draining);
    assert_eq!(finished(&mut runs, now, Urgency::Draining).ranges, [pages(0, 8)]);
}

#[test]
fn a_page_in_use_again_is_not_dropped() {
    let (mut runs, now) = (Runs::new(LIMITS), Instant::now());
    runs.insert(pages(0, 8), now);
    started(&mut runs, now, Urgency::Draining);
    runs.insert(range(PAGE + 5, 10), now);
    runs.announce(range(6 * PAGE + 5, 10));
    let step = runs.next(now + SETTLE, Urgency::Relaxed).unwrap();
    assert_eq!(step, Step { action: Action::Finish, ranges: vec![pages(0, 8)], edges: 0 });
    let expected = vec![pages(0, 1), pages(2, 4), pages(7, 1)];
    assert_eq!(runs.droppable(), Droppable { ranges: expected, kept_bytes: 0 });
    // The write that was announced does not come: its page is not forgotten.
    runs.finished(Vec::new(), now);
    runs.withdraw(range(6 * PAGE + 5, 10));
    let step = runs.next(now + RETRY_AFTER, Urgency::Relaxed).unwrap();
    assert_eq!(step, Step { action: Action::Retry, ranges: vec![pages(6, 1)], edges: 0 });
}

#[test]
fn what_cannot_be_dropped_is_tried_again_and_then_given_up() {
    let (mut runs, mut now) = (Runs::new(LIMITS), Instant::now());
    runs.insert(pages(0, 4), now);
    started(&mut runs, now, Urgency::Draining);
    assert_eq!(runs.next(now + SETTLE, Urgency::Relaxed).unwrap().action, Action::Finish);
    assert_eq!(runs.finished(vec![pages(1, 2)], now), 0);
    assert_eq!(runs.charged(), 0, "clean pages hold no writer up");
    for tries in 2..=TRIES_MAX {
        assert_eq!(runs.next(now, Urgency::Pressed), None);
        now = runs.due(now).expect("there is another try");
        let step = runs.next(now, Urgency::Relaxed).unwrap();
        assert_eq!(step, Step { action: Action::Retry, ranges: vec![pages(1, 2)], edges: 0 });
        let given_up = runs.finished(vec![pages(1, 2)], now);
        assert_eq!(given_up, if tries == TRIES_MAX { 2 * PAGE } else { 0 });
    }
    assert!(runs.is_empty());
    assert_eq!(runs.due(now), None);
}

/// A folio that begins with a half-filled page sticks out of the batch that leaves the page behind.
#[test]
fn pages_of_one_folio_leave_together() {
    let (mut runs, now) = (Runs::new(LIMITS), Instant::now());
    runs.insert(range(PAGE / 2, 4 * PAGE - PAGE / 2), now);
    assert_eq!(started(&mut runs, now, Urgency::Pressed), [pages(1, 3)]);
    assert_eq!(runs.next(now + SETTLE, Urgency::Relaxed).unwrap().action, Action::Finish);
    assert_eq!(runs.finished(vec![pages(1, 3)], now), 0);
    assert_eq!(runs.charged(), PAGE);
    assert!(runs.announce(pages(0, 4)).is_empty(), "all of it is the window's still");
    runs.withdraw(pages(0, 4));
    let later = now + LIMITS.age_max;
    assert_eq!(started(&mut runs, later, Urgency::Relaxed), [pages(0, 4)]);
    assert_eq!(runs.charged(), 4 * PAGE);
    assert_eq!(finished(&mut runs, later, Urgency::Draining).ranges, [pages(0, 4)]);
    assert!(runs.is_empty() && runs.deferred.is_empty());
}

#[test]
fn truncation_forgets_what_is_gone() {
    let (mut runs, now) = (Runs::new(LIMITS), Instant::now());
    runs.insert(pages(0, 4), now);
    started(&mut runs, now, Urgency::Draining);
    runs.insert(pages(8, 4), now);
    runs.insert(pages(20, 1), now);
    runs.truncate(9 * PAGE + 1);
    assert_eq!(runs.charged(), 6 * PAGE);
    runs.truncate(PAGE + 1);
    assert_eq!(runs.charged(), 2 * PAGE);
    // Also what a thread is at work on.
    assert_eq!(runs.next(now + SETTLE, Urgency::Relaxed).unwrap().ranges, [pages(0, 2)]);
    runs.truncate(0);
    assert_eq!((runs.charged(), runs.droppable()), (0, Droppable::default()));
    // Of pages that are in use, which cannot be dropped, too.
    runs.finished(vec![pages(0, 2)], now);
    assert!(runs.is_empty());
    assert_eq!(runs.insert(pages(0, 1), now), Arrival::default());
}

/// Finishes the batch at work while a flush is under way.
fn put_off(runs: &mut Runs, now: Instant) {
    assert_eq!(runs.next(now, Urgency::Draining).unwrap().action, Action::Finish);
    runs.put_off();
}

#[test]
fn what_was_put_off_for_a_flush_is_dropped_after_it() {
    let (mut runs, now) = (Runs::new(LIMITS), Instant::now());
    for first in [0, 4] {
        runs.insert(pages(first, 4), now);
        started(&mut runs, now, Urgency::Pressed);
    }
    put_off(&mut runs, now);
    put_off(&mut runs, now);
    assert_eq!((runs.charged(), runs.is_empty(), runs.due(now)), (0, false, None));
    assert_eq!(runs.next(now, Urgency::Draining), None, "the flush is under way");
    assert_eq!(runs.announce(pages(0, 9)), [pages(8, 1)], "they are in the window");
    runs.withdraw(pages(0, 9));
    // Written again, and not known to be clean.
    runs.insert(pages(1, 1), now);
    started(&mut runs, now, Urgency::Pressed);
    runs.insert(pages(3, 1), now);
    started(&mut runs, now, Urgency::Pressed);
    put_off(&mut runs, now);
    runs.truncate(7 * PAGE);
    runs.flush_ended(now);
    // The next flush is under way.
    assert_eq!(runs.due(now), Some(now));
    let step = runs.next(now, Urgency::Relaxed).unwrap();
    assert_eq!((step.action, step.ranges), (Action::Retry, vec![pages(0, 7)]));
    assert_eq!(runs.droppable().ranges, [pages(0, 3), pages(4, 3)]);
    runs.finished(Vec::new(), now);
    put_off(&mut runs, now);
    runs.insert(pages(3, 1), now);
    runs.flush_ended(now);
    runs.next(now, Urgency::Relaxed).unwrap();
    assert_eq!(runs.droppable(), Droppable::default(), "it will be written again");
}

#[test]
fn an_error_keeps_all_pages_until_they_leave_the_window() {
    let (mut runs, now) = (Runs::new(LIMITS), Instant::now());
    for first in [0, 4, 8] {
        runs.insert(pages(first, 4), now);
        started(&mut runs, now, Urgency::Pressed);
    }
    put_off(&mut runs, now);
    // A page that is being written may have been written back already.
    runs.announce(pages(20, 1));
    runs.insert(range(30 * PAGE, 10), now);
    let step = runs.next(now, Urgency::Draining).unwrap();
    assert_eq!(step.action, Action::Start);
    runs.keep_all();
    runs.began(now);
    runs.insert(pages(20, 1), now);
    runs.withdraw(pages(20, 1));
    runs.insert(pages(40, 1), now);
    runs.flush_ended(now);
    let mut dropped = Vec::new();
    while let Some(step) = runs.next(now, Urgency::Draining) {
        match step.action {
            Action::Start => runs.began(now),
            Action::Finish | Action::Retry => {
                dropped.extend(runs.droppable().ranges);
                runs.finished(Vec::new(), now);
            }
        }
    }
    assert_eq!(dropped, [pages(40, 1)], "it was written after the error");
    assert!(runs.is_empty() && runs.keep.is_empty());
}

#[derive(Clone, Debug)]
enum Event {
    /// Begins a flush, or ends it; whether that fails.
    Flush(bool),
    Write {
        offset: u64,
        len: u64,
    },
    Announce {
        offset: u64,
        len: u64,
    },
    Step(Urgency),
    Truncate(u64),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let offset = 0..100 * PAGE;
    let len = prop_oneof![1..100_u64, 1..3 * PAGE, PAGE..2 * RUN];
    let urgency = prop_oneof![
        4 => Just(Urgency::Relaxed), 2 => Just(Urgency::Pressed), 1 => Just(Urgency::Starved),
        1 => Just(Urgency::Draining)
    ];
    prop_oneof![
        6 => (offset.clone(), len.clone()).prop_map(|(offset, len)| Event::Write { offset, len }),
        1 => (offset.clone(), len).prop_map(|(offset, len)| Event::Announce { offset, len }),
        5 => urgency.prop_map(Event::Step),
        1 => offset.prop_map(Event::Truncate),
        3 => prop_oneof![0..700_u64, 0..6000_u64].prop_map(Event::Pass),
        1 => any::<bool>().prop_map(Event::Flush),
    ]
}

/// The bookkeeping beside what is known of each byte.
struct Model {
    runs: Runs,
    now: Instant,
    /// Bytes whose write-back has not begun.
    dirty: RangeSet,
    /// Pages on their way to the disk, once for each time. Not kept if some pages stick.
    unclean: Vec<ByteRange>,
    /// Pages finished during a flush. Not kept if some pages stick.
    put_off: RangeSet,
    flush_is_under_way: bool,
    some_stick: bool,
}

impl Model {
    fn apply(&mut self, event: Event) {
        match event {
            Event::Write { offset, len } => {
                self.runs.insert(range(offset, len), self.now);
                self.dirty.insert(range(offset, len));
            }
            Event::Announce { offset, len } => {
                let whole = range(offset, len).widened_to(PAGE);
                let mut foreign = vec![whole];
                let ours = self.dirty.within(whole).map(|bytes| bytes.widened_to(PAGE));
                ours.chain(self.unclean.iter().copied())
                    .chain(self.put_off.within(whole))
                    .for_each(|ours| subtract(&mut foreign, ours));
                let asked = self.runs.announce(range(offset, len));
                assert!(self.some_stick || asked == foreign, "{asked:?} {foreign:?}");
                self.runs.withdraw(range(offset, len));
            }
            Event::Step(urgency) => drop(self.step(urgency)),
            Event::Flush(fails) => self.flush(fails),
            Event::Truncate(len) => {
                self.runs.truncate(len);
                self.dirty.remove(ByteRange::starting_at(len));
                let gone = ByteRange::starting_at(len.next_multiple_of(PAGE));
                subtract_from_each(&mut self.unclean, gone);
                self.put_off.remove(gone);
            }
            Event::Pass(millis) => self.now += ms(millis),
        }
    }

    fn flush(&mut self, fails: bool) {
        self.flush_is_under_way = !self.flush_is_under_way;
        if !self.flush_is_under_way {
            if fails {
                self.runs.keep_all();
            }
            self.runs.flush_ended(self.now);
        }
    }

    fn step(&mut self, urgency: Urgency) -> bool {
        let Some(Step { action, ranges, .. }) = self.runs.next(self.now, urgency) else {
            return false;
        };
        assert!(ranges.windows(2).all(|pair| pair[0].end() < pair[1].offset()), "{ranges:?}");
        assert!(ranges.iter().all(|&range| range == range.widened_to(PAGE)), "{ranges:?}");
        assert!(!ranges.is_empty());
        let is_one_batch = action != Action::Retry && !self.some_stick;
        assert!(!is_one_batch || bytes_of(&ranges) <= 2 * RUN, "{ranges:?}");
        match action {
            Action::Start => {
                self.runs.began(self.now);
                assert!(ranges.iter().any(|&range| self.dirty.remove(range) > 0), "for nothing");
                for &range in &ranges {
                    self.dirty.remove(range);
                }
                self.unclean.extend(ranges.iter().filter(|_| !self.some_stick));
            }
            Action::Finish if self.flush_is_under_way => {
                self.runs.put_off();
                self.end_unclean(&ranges);
                for &range in ranges.iter().filter(|_| !self.some_stick) {
                    self.put_off.insert(range);
                }
            }
            Action::Finish | Action::Retry => {
                let dropped = self.runs.droppable().ranges;
                assert!(dropped.iter().all(|&pages| self.dirty.within(pages).next().is_none()));
                let sticks = |range: &ByteRange| self.some_stick && range.offset() / PAGE % 4 == 3;
                let left: Vec<_> = dropped.into_iter().filter(sticks).collect();
                self.runs.finished(left, self.now);
                match action {
                    Action::Retry => ranges.iter().for_each(|&range| {
                        self.put_off.remove(range);
                    }),
                    _ => self.end_unclean(&ranges),
                }
            }
        }
        true
    }

    fn end_unclean(&mut self, ranges: &[ByteRange]) {
        for range in ranges.iter().filter(|_| !self.some_stick) {
            let index = self.unclean.iter().position(|unclean| unclean == range);
            self.unclean.swap_remove(index.expect("it was on its way"));
        }
    }

    fn check(&self) {
        self.runs.dirty.check();
        assert_eq!(self.runs.started_bytes, self.runs.recount());
        assert!(self.runs.edge_bytes() <= self.runs.charged());
        assert!(
            self.runs.dirty.bytes().into_iter().eq(self.dirty.within(ByteRange::starting_at(0)))
        );
    }
}

/// [`subtract`], for ranges that may overlap.
fn subtract_from_each(ranges: &mut Vec<ByteRange>, cut: ByteRange) {
    *ranges = ranges
        .iter()
        .flat_map(|&range| {
            let mut parts = vec![range];
            subtract(&mut parts, cut);
            parts
        })
        .collect();
}

proptest! {
    #[test]
    fn nothing_is_lost_and_nothing_waits_forever(
        events in prop::collection::vec(event(), 1..80),
        some_stick: bool,
    ) {
        let mut model = Model {
            runs: Runs::new(LIMITS),
            now: Instant::now(),
            dirty: RangeSet::default(),
            unclean: Vec::new(),
            put_off: RangeSet::default(),
            flush_is_under_way: false,
            some_stick,
        };
        for event in events {
            model.apply(event);
            model.check();
        }
        if model.flush_is_under_way {
            model.flush(false);
        }
        // Nothing comes any more: time alone empties it, and no step is promised in vain.
        let end = model.now + 2 * LIMITS.neighbour_wait + 2 * SETTLE + 6 * RETRY_AFTER;
        while let Some(due) = model.runs.due(model.now) {
            prop_assert!(due <= end, "due {:?} late", due - end);
            model.now = model.now.max(due);
            prop_assert!(model.step(Urgency::Relaxed), "due, but nothing to do");
            model.check();
        }
        prop_assert!(model.runs.is_empty());
        prop_assert!(model.dirty.is_empty() && model.unclean.is_empty());
        prop_assert!(model.put_off.is_empty());
        prop_assert!(model.runs.keep.is_empty());
    }
}
