//! Properties that hold for every order of the threads' steps;
//! [Testing](../../../../docs/testing.md) describes how to run them. The checker reports a missing
//! wake-up as a deadlock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::rand::{RngCore, thread_rng};
use shuttle::{check_dfs, future, thread};

use super::simulated_file::{
    Exclusion, Loss, Placement, Random, SimulatedFile, Stamp, exercise, two_adjacent_writes,
};
use super::*;
use crate::sync::checker::{below, check};

use RangeUse::{Cached, Direct, Exclusive};

fn pages(first: usize, count: usize) -> ByteRange {
    let [offset, len] = [first, count].map(|pages| (pages * page_size()) as u64);
    ByteRange::new(offset, len).expect("a small file")
}

/// The current users of each page. A mere observer, with a lock that the checker does not see.
#[derive(Default)]
struct Occupants {
    pages: [Mutex<Vec<RangeUse>>; PAGES],
}

impl Occupants {
    /// Occupies the pages of a guard for a moment in which all others may run.
    fn occupy(&self, guard: RangeGuard) {
        let [first, end] = [guard.pages().offset(), guard.pages().end()]
            .map(|offset| usize::try_from(offset).expect("a small file") / page_size());
        for page in &self.pages[first..end] {
            let mut uses = page.lock().unwrap();
            assert!(uses.iter().all(|other| guard.range_use().shares_pages_with(*other)));
            uses.push(guard.range_use());
        }
        thread::yield_now();
        for page in &self.pages[first..end] {
            let mut uses = page.lock().unwrap();
            let place = uses.iter().position(|other| *other == guard.range_use());
            uses.swap_remove(place.expect("pushed above"));
        }
    }
}

#[test]
fn conflicting_uses_exclude_each_other_and_none_starves() {
    check(1_000, || {
        let (lock, occupants) = (RangeLock::new(), Arc::new(Occupants::default()));
        let workers = (0..4).map(|_| {
            let (lock, occupants) = (Arc::clone(&lock), Arc::clone(&occupants));
            thread::spawn(move || (0..3).for_each(|_| take_a_turn(&lock, &occupants)))
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.join().unwrap();
        }
        assert!(lock.state().entries.is_empty());
    });
}

fn take_a_turn(lock: &Arc<RangeLock>, occupants: &Arc<Occupants>) {
    let first = below(PAGES);
    let range = pages(first, below(PAGES - first + 1));
    let range_use = [Cached, Direct, Exclusive][below(3)];
    match below(4) {
        0 => {
            if let Some(guard) = lock.try_lock(range, range_use) {
                occupants.occupy(guard);
            }
        }
        1 => occupants.occupy(lock.blocking_lock(range, range_use)),
        2 => occupants.occupy(future::block_on(lock.lock(range, range_use))),
        _ => {
            let guard = lock.blocking_lock(range, range_use);
            let occupants = Arc::clone(occupants);
            thread::spawn(move || occupants.occupy(guard)).join().unwrap();
        }
    }
}

/// A holder, a waiter that is cancelled at any time, and a waiter behind it.
fn give_up_between_two(give_up: RangeUse, behind: RangeUse) {
    let (lock, occupants) = (RangeLock::new(), Arc::new(Occupants::default()));
    let held = lock.try_lock(pages(0, 2), Cached).expect("the first");
    let enter = |range_use| {
        let (lock, occupants) = (Arc::clone(&lock), Arc::clone(&occupants));
        future::spawn(async move { occupants.occupy(lock.lock(pages(0, 1), range_use).await) })
    };
    let (leaver, follower) = (enter(give_up), enter(behind));
    let releaser = thread::spawn({
        let occupants = Arc::clone(&occupants);
        move || occupants.occupy(held)
    });
    leaver.abort();
    // It may have had its turn before.
    let _ = future::block_on(leaver);
    future::block_on(follower).expect("it is not cancelled");
    releaser.join().unwrap();
    assert!(lock.state().entries.is_empty());
}

#[test]
fn a_waiter_may_give_up_at_any_time() {
    for (leaver, behind) in
        [(Direct, Cached), (Direct, Direct), (Exclusive, Direct), (Cached, Exclusive)]
    {
        check(1_000, move || give_up_between_two(leaver, behind));
        check_dfs(move || give_up_between_two(leaver, behind), Some(2_000));
    }
}

#[test]
fn a_turn_of_a_cancelled_waiter_passes_on() {
    check(1_000, || {
        let lock = RangeLock::new();
        let held = lock.try_lock(pages(0, 1), Exclusive).expect("the first");
        let tasks = (0..4).map(|_| {
            let lock = Arc::clone(&lock);
            future::spawn(async move {
                let guard = lock.lock(pages(0, 1), Exclusive).await;
                future::yield_now().await;
                drop(guard);
            })
        });
        let tasks = tasks.collect::<Vec<_>>();
        let releaser = thread::spawn(move || drop(held));
        tasks.iter().step_by(2).for_each(|task| task.abort());
        for (number, task) in tasks.into_iter().enumerate() {
            assert!(future::block_on(task).is_ok() || number.is_multiple_of(2));
        }
        releaser.join().unwrap();
        assert!(lock.state().entries.is_empty());
    });
}

/// How many rounds of those asked for, twice, lose something.
fn rounds_with_losses(
    rounds: usize,
    round: impl Fn() -> Vec<Loss> + Clone + Send + Sync + 'static,
) -> usize {
    let found = Arc::new(AtomicUsize::new(0));
    check(rounds, {
        let found = Arc::clone(&found);
        move || {
            found.fetch_add(usize::from(!round().is_empty()), Ordering::Relaxed);
        }
    });
    found.load(Ordering::Relaxed)
}

fn exercise_at_random(exclusion: Exclusion, placement: Placement) -> Vec<Loss> {
    exercise(exclusion, placement, &mut Random::new(thread_rng().next_u64()))
}

#[test]
fn with_the_lock_nothing_is_lost() {
    for placement in [Placement::Neighbours, Placement::Anywhere] {
        check(500, move || {
            assert_eq!(exercise_at_random(Exclusion::RangeLock, placement), []);
        });
    }
}

#[test]
fn without_the_lock_something_is_lost() {
    for placement in [Placement::Neighbours, Placement::Anywhere] {
        let rounds =
            rounds_with_losses(300, move || exercise_at_random(Exclusion::Nothing, placement));
        assert!(rounds > 0, "{placement:?}: what finds no loss here proves nothing elsewhere");
    }
}

type WriteOne = fn(&SimulatedFile, std::ops::Range<usize>, Stamp);

const BY_THE_KERNEL: WriteOne = |file, blocks, stamp| file.write(Cached, blocks, stamp);
const ALONE: WriteOne = |file, blocks, stamp| file.merge_and_write(Exclusive, blocks, stamp);
const TOGETHER: WriteOne = |file, blocks, stamp| file.merge_and_write(Direct, blocks, stamp);

#[test]
fn two_adjacent_writes_of_a_shared_block_both_stay() {
    for write in [BY_THE_KERNEL, ALONE] {
        check(1_000, move || assert_eq!(two_adjacent_writes(Exclusion::RangeLock, write), []));
    }
}

/// Direct uses share a page because each writes device blocks of its own there. One that merged
/// blocks itself would have to be alone.
#[test]
fn two_merges_of_a_shared_block_that_are_not_kept_apart_lose_one() {
    for (exclusion, write) in [(Exclusion::Nothing, ALONE), (Exclusion::RangeLock, TOGETHER)] {
        let rounds = rounds_with_losses(200, move || two_adjacent_writes(exclusion, write));
        assert!(rounds > 0, "{exclusion:?}: the race must be found");
    }
}

const PAGES: usize = 3;
