//! Properties that hold for every order of the threads' steps;
//! [Testing](../../../../docs/testing.md) describes how to run them. The checker reports a missing
//! wake-up as a deadlock.

use shuttle::{check_dfs, future, thread};

use super::*;
use crate::sync::checker::{below, check};

const SMALL: usize = 8 * KIB;
const MEDIUM: usize = 64 * KIB + SPARE_BYTES;

/// Holds a buffer for a moment in which all others may run.
async fn take_and_hold(pool: Arc<BufferPool>, client: ClientId, len: usize) {
    let buffer = pool.take(Holder::of(client), len).await.expect("within the budget");
    check_budget(&pool);
    assert!(buffer.capacity() >= len);
    future::yield_now().await;
    drop(buffer);
    check_budget(&pool);
}

fn check_budget(pool: &BufferPool) {
    let state = pool.lock();
    assert!(state.in_use_bytes <= state.mapped_bytes);
    assert!(state.mapped_bytes <= pool.budget_bytes);
}

fn check_idle(pool: &BufferPool) {
    assert_eq!((pool.bytes_in_use(), pool.waiters()), (0, 0));
    check_budget(pool);
}

#[test]
fn the_budget_holds_and_everyone_gets_a_buffer() {
    check(1_000, || {
        let pool = BufferPool::new(MEDIUM + SMALL);
        let takers = (0..4).map(|taker| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                for _ in 0..3 {
                    let len = [1, SMALL, MEDIUM][below(3)];
                    if below(3) == 0 {
                        drop(pool.try_take_for(Holder::of(taker % 3), len));
                    } else {
                        future::block_on(take_and_hold(Arc::clone(&pool), taker % 3, len));
                    }
                }
            })
        });
        for taker in takers.collect::<Vec<_>>() {
            taker.join().unwrap();
        }
        check_idle(&pool);
    });
}

/// A cancelled taker may be in the queue, may just have been granted a buffer, or be done.
fn give_up_at_random(leaver_len: usize, follower: ClientId, follower_len: usize) {
    let pool = BufferPool::new(MEDIUM);
    let held = pool.try_take(MEDIUM).expect("the first");
    let leaver = future::spawn(take_and_hold(Arc::clone(&pool), 1, leaver_len));
    let follower = future::spawn(take_and_hold(Arc::clone(&pool), follower, follower_len));
    let releaser = thread::spawn(move || drop(held));
    leaver.abort();
    // It may have been done before.
    let _ = future::block_on(leaver);
    future::block_on(follower).expect("it is not cancelled");
    releaser.join().unwrap();
    check_idle(&pool);
}

#[test]
fn a_waiter_may_give_up_at_any_time() {
    for (leaver_len, follower_len) in [(MEDIUM, MEDIUM), (MEDIUM, SMALL), (SMALL, MEDIUM)] {
        for follower in [1, 2] {
            let scenario = move || give_up_at_random(leaver_len, follower, follower_len);
            check(1_000, scenario);
            check_dfs(scenario, Some(2_000));
        }
    }
}

/// While a small buffer is on loan, a waiter for the large one blocks later ones for small buffers.
#[test]
fn a_large_waiter_that_gives_up_frees_the_small_ones_behind_it() {
    check(1_000, || {
        let pool = BufferPool::new(MEDIUM);
        let held = pool.try_take(SMALL).expect("the first");
        let large = future::spawn(take_and_hold(Arc::clone(&pool), 1, MEDIUM));
        let small = [(); 2].map(|()| future::spawn(take_and_hold(Arc::clone(&pool), 1, SMALL)));
        large.abort();
        for small in small {
            future::block_on(small).expect("there is room for it while one is held");
        }
        let _ = future::block_on(large);
        drop(held);
        check_idle(&pool);
    });
}
