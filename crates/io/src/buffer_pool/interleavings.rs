//! What holds whoever goes on at each step. [Testing](../../../../docs/testing.md) says how to run
//! it. A wake-up that does not come is a deadlock to the checker, and reported as one.

use shuttle::{check_dfs, future, thread};

use super::*;
use crate::sync::checker::{below, check};

const SMALL: usize = 8 * KIB;
const MEDIUM: usize = 64 * KIB + SPARE_BYTES;

/// Holds a buffer for a moment in which all others may run.
async fn take_and_hold(pool: Arc<BufferPool>, len: usize) {
    let buffer = pool.take(len).await.expect("within the budget");
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
        let takers = (0..4).map(|_| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                for _ in 0..3 {
                    let len = [1, SMALL, MEDIUM][below(3)];
                    if below(3) == 0 {
                        drop(pool.try_take(len));
                    } else {
                        future::block_on(take_and_hold(Arc::clone(&pool), len));
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

/// Those told to give up may be in the queue, may just have been granted a buffer, or be done.
fn give_up_at_random(leaver_len: usize, follower_len: usize) {
    let pool = BufferPool::new(MEDIUM);
    let held = pool.try_take(MEDIUM).expect("the first");
    let leaver = future::spawn(take_and_hold(Arc::clone(&pool), leaver_len));
    let follower = future::spawn(take_and_hold(Arc::clone(&pool), follower_len));
    let releaser = thread::spawn(move || drop(held));
    leaver.abort();
    // It may have been done before.
    let _ = future::block_on(leaver);
    future::block_on(follower).expect("nobody told it to give up");
    releaser.join().unwrap();
    check_idle(&pool);
}

#[test]
fn a_waiter_may_give_up_at_any_time() {
    for (leaver_len, follower_len) in [(MEDIUM, MEDIUM), (MEDIUM, SMALL), (SMALL, MEDIUM)] {
        check(1_000, move || give_up_at_random(leaver_len, follower_len));
        check_dfs(move || give_up_at_random(leaver_len, follower_len), Some(2_000));
    }
}

/// While a small buffer is on loan, who wants the large one holds up those who want small ones.
#[test]
fn a_large_waiter_that_gives_up_frees_the_small_ones_behind_it() {
    check(1_000, || {
        let pool = BufferPool::new(MEDIUM);
        let held = pool.try_take(SMALL).expect("the first");
        let large = future::spawn(take_and_hold(Arc::clone(&pool), MEDIUM));
        let small = [(); 2].map(|()| future::spawn(take_and_hold(Arc::clone(&pool), SMALL)));
        large.abort();
        for small in small {
            future::block_on(small).expect("there is room for it while one is held");
        }
        let _ = future::block_on(large);
        drop(held);
        check_idle(&pool);
    });
}
