//! Properties that hold for every order of the threads' steps;
//! [Testing](../../../../docs/testing.md) describes how to run them. The checker reports a missing
//! wake-up as a deadlock.

use shuttle::{future, thread};

use super::*;
use crate::sync::checker::check;
use crate::sync::{AtomicUsize, Ordering};

fn block(number: u64) -> ByteRange {
    ByteRange::new(number * 4096, 4096).expect("small")
}

#[test]
fn neighbours_take_turns_and_none_is_forgotten() {
    check(1_000, || {
        let order = Arc::new(ReadOrder::default());
        let running = Arc::new(AtomicUsize::new(0));
        let first = future::block_on(order.turn(1, block(0), u64::MAX));
        let readers = [3, 1, 2].map(|number| {
            let (turn, begins) = order.enter(1, block(number), u64::MAX);
            let running = Arc::clone(&running);
            thread::spawn(move || {
                future::block_on(begins.expect("the first has not ended")).expect("a turn");
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "neighbours take turns");
                future::block_on(future::yield_now());
                running.fetch_sub(1, Ordering::SeqCst);
                drop(turn);
            })
        });
        drop(first);
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(order.lock().reads.is_empty());
    });
}

#[test]
fn a_turn_given_up_at_any_moment_is_passed_on() {
    check(1_000, || {
        let order = Arc::new(ReadOrder::default());
        let first = future::block_on(order.turn(1, block(0), 0));
        let (turn, begins) = order.enter(1, block(1), 0);
        let leaver = thread::spawn(move || drop((begins, turn)));
        let follower = Arc::clone(&order);
        let follower = thread::spawn(move || drop(future::block_on(follower.turn(1, block(2), 0))));
        drop(first);
        leaver.join().unwrap();
        follower.join().unwrap();
        assert!(order.lock().reads.is_empty());
    });
}
