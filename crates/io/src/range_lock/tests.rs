use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use proptest::prelude::*;
use proptest::sample::Index;

use super::simulated_file::{Exclusion, Placement, Random, exercise, two_adjacent_writes};
use super::*;

use RangeUse::{Cached, CachedWrite, Direct, Exclusive, InMemory};

fn pages(first: u64, count: u64) -> ByteRange {
    let page_bytes = page_size() as u64;
    ByteRange::new(first * page_bytes, count * page_bytes).unwrap()
}

#[test]
fn cached_use_and_direct_use_share_pages_with_their_own_kind() {
    for (one, other, shares) in [
        (Cached, Cached, true),
        (Cached, CachedWrite, true),
        (CachedWrite, CachedWrite, true),
        (InMemory, InMemory, true),
        (InMemory, Cached, false),
        (InMemory, Direct, false),
        (CachedWrite, Direct, false),
        (CachedWrite, Exclusive, false),
        (Direct, Direct, true),
        (Exclusive, Exclusive, false),
        (Cached, Direct, false),
        (Cached, Exclusive, false),
        (Direct, Exclusive, false),
    ] {
        for (one, other) in [(one, other), (other, one)] {
            assert_eq!(one.shares_pages_with(other), shares, "{one:?} {other:?}");
            let lock = RangeLock::new();
            let _held = lock.try_lock(pages(1, 2), one).unwrap();
            assert_eq!(lock.try_lock(pages(2, 1), other).is_some(), shares, "{one:?} {other:?}");
            assert!(lock.try_lock(pages(0, 1), other).is_some(), "another page");
            assert!(lock.try_lock(pages(3, 9), other).is_some(), "another page");
        }
    }
}

#[test]
fn pages_in_memory_are_not_read_next_to_a_write_anywhere_in_the_file() {
    for write in [CachedWrite, Exclusive] {
        let lock = RangeLock::new();
        let written = lock.try_lock(pages(8, 1), write).unwrap();
        assert!(lock.try_lock(pages(0, 1), InMemory).is_none(), "{write:?}");
        drop(written);
        let read = lock.try_lock(pages(0, 1), InMemory).unwrap();
        let mut waiting = Waiting::new(&lock, pages(8, 1), write);
        assert!(waiting.poll().is_none(), "{write:?}");
        assert!(lock.try_lock(pages(4, 1), InMemory).is_none(), "a write waits");
        drop(read);
        assert!(waiting.poll().is_some(), "{write:?}");
    }
}

#[test]
fn ranges_are_those_of_whole_pages() {
    let page_bytes = page_size() as u64;
    for (range, first, count) in [
        (ByteRange::new(0, 1), 0, 1),
        (ByteRange::new(page_bytes - 1, 2), 0, 2),
        (ByteRange::new(page_bytes, page_bytes), 1, 1),
        (ByteRange::new(3 * page_bytes + 512, 47_008), 3, (512 + 47_008u64).div_ceil(page_bytes)),
    ] {
        let guard = RangeLock::new().try_lock(range.unwrap(), Direct).unwrap();
        assert_eq!((guard.pages(), guard.range_use()), (pages(first, count), Direct));
    }
}

#[test]
fn an_empty_range_meets_nothing() {
    let lock = RangeLock::new();
    let _all = lock.try_lock(ByteRange::starting_at(0), Exclusive).unwrap();
    let empty = ByteRange::new(100, 0).unwrap();
    let guard = lock.try_lock(empty, Exclusive).expect("no pages, no conflict");
    assert!(guard.pages().is_empty());
    drop((_all, guard));
    let _empty = lock.try_lock(empty, Exclusive).unwrap();
    assert!(lock.try_lock(pages(0, 1), Cached).is_some());
}

#[test]
fn truncation_waits_for_the_page_of_the_new_end_and_all_after_it() {
    let page_bytes = page_size() as u64;
    let lock = RangeLock::new();
    let _cut = lock.try_lock(ByteRange::starting_at(2 * page_bytes + 1), Exclusive).unwrap();
    assert!(lock.try_lock(pages(0, 2), Direct).is_some());
    assert!(lock.try_lock(pages(2, 1), Cached).is_none());
    assert!(lock.try_lock(ByteRange::new(i64::MAX as u64 - 1, 1).unwrap(), Cached).is_none());
}

#[test]
fn no_request_overtakes_a_waiter_that_it_conflicts_with() {
    let lock = RangeLock::new();
    let cached = lock.try_lock(pages(0, 2), Cached).unwrap();
    let mut direct = Waiting::new(&lock, pages(1, 2), Direct);
    assert!(direct.poll().is_none());
    assert!(lock.try_lock(pages(1, 1), Cached).is_none(), "would share, but Direct came before");
    assert!(lock.try_lock(pages(0, 1), Cached).is_some(), "meets no waiter");
    assert!(lock.try_lock(pages(2, 1), Direct).is_some(), "shares with the waiter");
    drop(cached);
    assert!(direct.woken());
    assert!(direct.poll().is_some());
}

#[test]
fn a_waiter_that_leaves_frees_those_behind_it() {
    let lock = RangeLock::new();
    let held = lock.try_lock(pages(0, 2), Cached).unwrap();
    let mut direct = Waiting::new(&lock, pages(0, 1), Direct);
    let mut cached = Waiting::new(&lock, pages(0, 1), Cached);
    assert!(direct.poll().is_none() && cached.poll().is_none());
    drop(direct);
    assert!(cached.woken(), "it shares with the holder");
    drop((cached.poll().unwrap(), held));
    assert!(lock.state().entries.is_empty());
}

#[test]
fn an_unclaimed_turn_passes_on() {
    let lock = RangeLock::new();
    let held = lock.try_lock(pages(0, 1), Exclusive).unwrap();
    let mut first = Waiting::new(&lock, pages(0, 1), Exclusive);
    let mut second = Waiting::new(&lock, pages(0, 1), Exclusive);
    assert!(first.poll().is_none() && second.poll().is_none());
    drop(held);
    assert!(first.woken() && !second.woken());
    drop(first); // Without polling it.
    assert!(second.woken());
    assert!(second.poll().is_some());
}

#[test]
fn a_burst_leaves_no_memory_behind() {
    let lock = RangeLock::new();
    let guards = (0..1000).map(|page| lock.try_lock(pages(page, 1), Direct)).collect::<Vec<_>>();
    assert!(guards.iter().all(Option::is_some));
    drop(guards);
    assert!(lock.state().entries.capacity() <= IDLE_ENTRIES);
}

#[test]
fn a_guard_may_be_dropped_on_another_thread() {
    let lock = RangeLock::new();
    let held = lock.try_lock(pages(0, 1), Cached).unwrap();
    let dropper = thread::spawn({
        let lock = Arc::clone(&lock);
        move || {
            while lock.state().entries.len() < 2 {
                thread::yield_now();
            }
            drop(held);
        }
    });
    let _guard = lock.blocking_lock(pages(0, 1), Direct);
    dropper.join().unwrap();
}

#[tokio::test]
async fn many_tasks_on_few_pages_all_get_their_turn() {
    const TASKS: u64 = 16;
    const TURNS: u64 = 200;
    let lock = RangeLock::new();
    let turns = Arc::new(AtomicU64::new(0));
    let tasks = (0..TASKS).map(|task| {
        let (lock, turns) = (Arc::clone(&lock), Arc::clone(&turns));
        tokio::spawn(async move {
            for turn in 0..TURNS {
                let range_use =
                    [Cached, Direct, Exclusive][usize::try_from(task + turn).unwrap() % 3];
                let guard = lock.lock(pages(turn % 4, 1 + task % 3), range_use).await;
                tokio::task::yield_now().await;
                drop(guard);
                turns.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(turns.load(Ordering::Relaxed), TASKS * TURNS);
    assert!(lock.state().entries.is_empty());
}

#[test]
fn with_the_lock_threads_lose_nothing() {
    for (placement, seed) in placements_and_seeds(2_000) {
        let losses = exercise(Exclusion::RangeLock, placement, &mut Random::new(seed));
        assert_eq!(losses, [], "seed {seed}, {placement:?}");
    }
}

#[test]
fn without_the_lock_threads_lose_something() {
    for wanted in [Placement::Neighbours, Placement::Anywhere] {
        let lost = (1..=100_000)
            .any(|seed| !exercise(Exclusion::Nothing, wanted, &mut Random::new(seed)).is_empty());
        assert!(lost, "{wanted:?}: what finds no loss here proves nothing elsewhere");
    }
}

#[test]
fn two_adjacent_writes_of_a_shared_block_both_stay() {
    for _ in 0..10_000 {
        let merged_by_kernel = two_adjacent_writes(Exclusion::RangeLock, |file, blocks, stamp| {
            file.write(Cached, blocks, stamp);
        });
        assert_eq!(merged_by_kernel, []);
        let merged_here = two_adjacent_writes(Exclusion::RangeLock, |file, blocks, stamp| {
            file.merge_and_write(Exclusive, blocks, stamp);
        });
        assert_eq!(merged_here, []);
    }
}

/// Each use as a number of pages, by a kind of request and what becomes of it.
#[derive(Clone, Debug)]
enum Move {
    Request { first: u64, count: u64, range_use: RangeUse },
    Try { first: u64, count: u64, range_use: RangeUse },
    Release(Index),
    GiveUp(Index),
}

fn any_move() -> impl Strategy<Value = Move> {
    let range_use = prop_oneof![3 => Just(Cached), 3 => Just(Direct), 1 => Just(Exclusive)];
    let claim = (0_u64..6, 0_u64..4, range_use);
    prop_oneof![
        4 => claim.clone().prop_map(|(first, count, range_use)| Move::Request { first, count, range_use }),
        1 => claim.prop_map(|(first, count, range_use)| Move::Try { first, count, range_use }),
        3 => any::<Index>().prop_map(Move::Release),
        2 => any::<Index>().prop_map(Move::GiveUp),
    ]
}

proptest! {
    /// At each point a request has its turn exactly if no earlier request still present conflicts
    /// with it. That is exclusion, order of arrival, and progress past unrelated requests. Only
    /// woken requests are polled, so a missing wake-up is found too; and not all at once, so that
    /// some turns are given up unclaimed.
    #[test]
    fn a_request_proceeds_exactly_without_an_earlier_conflict(
        moves in prop::collection::vec((any_move(), any::<bool>()), 1..60),
    ) {
        let mut crowd = Crowd::default();
        for (next, poll) in moves {
            crowd.perform(next);
            if poll {
                crowd.poll();
                crowd.check();
            }
        }
        while !crowd.there.is_empty() {
            crowd.poll();
            crowd.check();
            crowd.there.retain(|visitor| visitor.guard.is_none());
        }
        prop_assert!(crowd.lock.state().entries.is_empty());
    }
}

/// The lock, and the requests that hold or wait, in the order of their arrival.
#[derive(Default)]
struct Crowd {
    lock: Arc<RangeLock>,
    there: Vec<Visitor>,
}

struct Visitor {
    pages: std::ops::Range<u64>,
    range_use: RangeUse,
    /// Dropped to give up.
    waiting: Option<Waiting>,
    guard: Option<RangeGuard>,
}

impl Visitor {
    fn conflicts_with(&self, other: &Self) -> bool {
        let meets = self.pages.clone().any(|page| other.pages.contains(&page));
        meets && (self.range_use != other.range_use || self.range_use == Exclusive)
    }
}

impl Crowd {
    fn perform(&mut self, next: Move) {
        match next {
            Move::Request { first, count, range_use } => {
                let mut waiting = Waiting::new(&self.lock, pages(first, count), range_use);
                let guard = waiting.poll();
                let waiting = guard.is_none().then_some(waiting);
                let pages = first..first + count;
                self.there.push(Visitor { pages, range_use, waiting, guard });
                self.check_last();
            }
            Move::Try { first, count, range_use } => {
                let guard = self.lock.try_lock(pages(first, count), range_use);
                let refused = guard.is_none();
                let pages = first..first + count;
                self.there.push(Visitor { pages, range_use, waiting: None, guard });
                self.check_last();
                if refused {
                    self.there.pop();
                }
            }
            Move::Release(which) => self.remove(which, |visitor| visitor.guard.is_some()),
            Move::GiveUp(which) => self.remove(which, |visitor| visitor.waiting.is_some()),
        }
    }

    fn remove(&mut self, which: Index, candidate: impl Fn(&Visitor) -> bool) {
        let places = (0..self.there.len()).filter(|&place| candidate(&self.there[place]));
        let places = places.collect::<Vec<_>>();
        if !places.is_empty() {
            self.there.remove(*which.get(&places));
        }
    }

    fn poll(&mut self) {
        for visitor in &mut self.there {
            let Some(waiting) = visitor.waiting.as_mut().filter(|waiting| waiting.woken()) else {
                continue;
            };
            visitor.guard = waiting.poll();
            if visitor.guard.is_some() {
                visitor.waiting = None;
            }
        }
    }

    fn check(&self) {
        (0..self.there.len()).for_each(|place| self.check_one(place));
    }

    fn check_last(&self) {
        self.check_one(self.there.len() - 1);
    }

    fn check_one(&self, place: usize) {
        let (before, visitor) = (&self.there[..place], &self.there[place]);
        let free = !before.iter().any(|other| other.conflicts_with(visitor));
        assert_eq!(visitor.guard.is_some(), free, "{:?}", self.lock);
    }
}

/// A pending request, polled by hand.
struct Waiting {
    future: Pin<Box<dyn Future<Output = RangeGuard>>>,
    woken: Arc<Flag>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Waiting {
    fn new(lock: &Arc<RangeLock>, range: ByteRange, range_use: RangeUse) -> Self {
        let lock = Arc::clone(lock);
        let future = Box::pin(async move { lock.lock(range, range_use).await });
        Self { future, woken: Arc::default() }
    }

    fn woken(&self) -> bool {
        self.woken.0.load(Ordering::Acquire)
    }

    fn poll(&mut self) -> Option<RangeGuard> {
        self.woken.0.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }
}

fn placements_and_seeds(count: u64) -> impl Iterator<Item = (Placement, u64)> {
    [Placement::Neighbours, Placement::Anywhere]
        .into_iter()
        .flat_map(move |placement| (1..=count).map(move |seed| (placement, seed)))
}
