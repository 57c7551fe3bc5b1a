use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const SMALL: usize = 8 * KIB;
const MEDIUM: usize = 64 * KIB + SPARE_BYTES;
const LARGE: usize = 1024 * KIB + SPARE_BYTES;

/// Polls a future once and says whether it is still pending.
async fn is_pending<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
    let mut future = Some(future);
    poll_fn(|context| {
        let future = future.take().expect("polled once");
        Poll::Ready(future.poll(context).is_pending())
    })
    .await
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

#[test]
fn buffers_are_aligned_blank_when_new_and_large_enough() {
    let pool = BufferPool::new(16 << 20);
    for (len, capacity) in [
        (0, SMALL),
        (1, SMALL),
        (8192, SMALL),
        (8193, MEDIUM),
        (65_536, MEDIUM),
        (73_728, MEDIUM),
        (73_729, 256 * KIB + SPARE_BYTES),
        (1 << 20, LARGE),
        (4 << 20, 4096 * KIB + SPARE_BYTES),
    ] {
        let mut buffer = pool.try_take(len).unwrap();
        assert_eq!(buffer.capacity(), capacity, "for {len}");
        assert_eq!(buffer.as_slice().len(), capacity);
        assert!(buffer.as_slice().as_ptr().addr().is_multiple_of(BUFFER_ALIGN));
        buffer.as_mut_slice()[capacity - 1] = 7;
        assert_eq!(buffer.as_slice()[capacity - 1], 7);
    }
    let fresh = BufferPool::new(SMALL).try_take(1).unwrap();
    assert!(fresh.as_slice().iter().all(|&byte| byte == 0));
}

#[tokio::test]
async fn impossible_requests_are_refused_at_once() {
    let pool = BufferPool::new(64 << 20);
    let max = 4096 * KIB + SPARE_BYTES;
    assert_eq!(pool.len_max(), max);
    assert!(pool.take(max).await.is_ok());
    assert_eq!(pool.take(max + 1).await.unwrap_err(), BufferTooLarge { len: max + 1, max });

    let tight = BufferPool::new(LARGE - 1);
    let max = 256 * KIB + SPARE_BYTES;
    assert_eq!(tight.take(LARGE).await.unwrap_err(), BufferTooLarge { len: LARGE, max });
    assert!(tight.try_take(LARGE).is_none());
    assert_eq!(
        BufferPool::new(SMALL - 1).take(0).await.unwrap_err(),
        BufferTooLarge { len: 0, max: 0 }
    );
}

#[test]
fn gauges_follow_and_idle_memory_is_reused() {
    let pool = BufferPool::new(1 << 20);
    assert_eq!((pool.bytes_in_use(), pool.bytes_mapped(), pool.budget_bytes()), (0, 0, 1 << 20));
    let buffer = pool.try_take(1).unwrap();
    let address = buffer.as_slice().as_ptr().addr();
    assert_eq!((pool.bytes_in_use(), pool.bytes_mapped()), (SMALL, SMALL));
    drop(buffer);
    assert_eq!((pool.bytes_in_use(), pool.bytes_mapped()), (0, SMALL));
    assert_eq!(pool.try_take(1).unwrap().as_slice().as_ptr().addr(), address);
}

#[test]
fn idle_memory_of_other_classes_makes_room() {
    let pool = BufferPool::new(LARGE + MEDIUM);
    let small: Vec<_> = std::iter::from_fn(|| pool.try_take(1)).collect();
    assert_eq!(small.len(), (LARGE + MEDIUM) / SMALL);
    assert!(pool.try_take(LARGE).is_none(), "everything is in use");
    let kept = small.into_iter().next().unwrap();
    // All but one are idle now: enough for one large buffer, in the place of many small ones.
    let large = pool.try_take(LARGE).unwrap();
    assert_eq!(pool.bytes_in_use(), LARGE + SMALL);
    assert!(pool.bytes_mapped() <= pool.budget_bytes());
    assert!(pool.bytes_mapped() > LARGE + SMALL, "no more was unmapped than needed");
    drop((kept, large));
    let medium: Vec<_> = std::iter::from_fn(|| pool.try_take(MEDIUM)).collect();
    assert_eq!(medium.len(), (LARGE + MEDIUM) / MEDIUM);
}

#[tokio::test]
async fn waiters_are_served_in_order() {
    let pool = BufferPool::new(LARGE);
    let held = pool.take(LARGE).await.unwrap();
    let mut large = pin!(pool.take(LARGE));
    let mut small = pin!(pool.take(1));
    assert!(is_pending(large.as_mut()).await);
    assert!(is_pending(small.as_mut()).await);
    assert_eq!(pool.waiters(), 2);

    drop(held);
    // The small one would fit nowhere beside the large one, and must not have passed it.
    assert!(is_pending(small.as_mut()).await);
    assert_eq!(pool.waiters(), 1);
    let large = large.await.unwrap();
    assert!(pool.try_take(1).is_none(), "nobody passes a waiter");
    drop(large);
    assert_eq!(small.await.unwrap().capacity(), SMALL);
}

#[tokio::test]
async fn a_small_buffer_is_not_lent_past_a_large_waiter() {
    let pool = BufferPool::new(LARGE + SMALL);
    let first = pool.take(LARGE).await.unwrap();
    let mut large = pin!(pool.take(LARGE));
    assert!(is_pending(large.as_mut()).await);
    assert!(pool.try_take(1).is_none(), "there is room, but someone waits");
    drop(first);
    assert!(large.await.is_ok());
    assert!(pool.try_take(1).is_some());
}

#[tokio::test]
async fn a_waiter_that_leaves_frees_those_behind_it() {
    let pool = BufferPool::new(LARGE + SMALL);
    let _held = pool.take(LARGE).await.unwrap();
    let mut large = Box::pin(pool.take(LARGE));
    let mut small = pin!(pool.take(1));
    assert!(is_pending(large.as_mut()).await);
    assert!(is_pending(small.as_mut()).await, "in line behind the large one");
    drop(large);
    assert!(small.await.is_ok());
    assert_eq!(pool.waiters(), 0);
}

#[tokio::test]
async fn a_granted_buffer_nobody_fetches_comes_back() {
    let pool = BufferPool::new(SMALL);
    let held = pool.take(1).await.unwrap();
    let mut first = Box::pin(pool.take(1));
    let mut second = pin!(pool.take(1));
    assert!(is_pending(first.as_mut()).await);
    assert!(is_pending(second.as_mut()).await);
    drop(held); // Grants to the first, which leaves without looking.
    drop(first);
    assert!(second.await.is_ok());
    assert_eq!((pool.bytes_in_use(), pool.waiters()), (0, 0));
}

#[test]
fn dropping_on_another_thread_wakes_the_waiter() {
    let pool = BufferPool::new(SMALL);
    let held = pool.try_take(1).unwrap();
    let dropper = thread::spawn({
        let pool = Arc::clone(&pool);
        move || {
            while pool.waiters() == 0 {
                thread::yield_now();
            }
            drop(held);
        }
    });
    let taken = runtime()
        .block_on(async { tokio::time::timeout(Duration::from_secs(10), pool.take(1)).await });
    assert_eq!(taken.expect("woken").unwrap().capacity(), SMALL);
    dropper.join().unwrap();
}

#[test]
fn the_budget_holds_under_concurrent_random_takes() {
    const THREADS: u64 = 8;
    const TAKES: usize = 2_000;
    let pool = BufferPool::new(3 << 20);
    let in_use = AtomicUsize::new(0);
    thread::scope(|scope| {
        for seed in 1..=THREADS {
            let (pool, in_use) = (&pool, &in_use);
            scope.spawn(move || runtime().block_on(take_at_random(pool, in_use, seed, TAKES)));
        }
    });
    assert_eq!((pool.bytes_in_use(), pool.waiters()), (0, 0));
    assert!(pool.bytes_mapped() <= pool.budget_bytes());
}

proptest! {
    /// Whatever came before, a buffer can be had exactly when what is in use leaves room for it:
    /// idle memory, of whatever class, never stands in the way.
    #[test]
    fn only_memory_in_use_limits_a_take(
        budget in 0_usize..4 << 20,
        steps in prop::collection::vec((any::<bool>(), 0_usize..2 << 20, any::<Index>()), 1..60),
    ) {
        let pool = BufferPool::new(budget);
        let mut held: Vec<Buffer> = Vec::new();
        for (take, len, which) in steps {
            if take || held.is_empty() {
                let capacity = CLASS_BYTES.into_iter().find(|&bytes| bytes >= len).unwrap();
                let room = budget - pool.bytes_in_use();
                let buffer = pool.try_take(len);
                prop_assert_eq!(buffer.is_some(), capacity <= room);
                held.extend(buffer);
            } else {
                held.swap_remove(which.index(held.len()));
            }
            prop_assert_eq!(pool.bytes_in_use(), held.iter().map(Buffer::capacity).sum::<usize>());
            prop_assert!(pool.bytes_mapped() <= budget);
        }
    }
}

/// Each buffer is marked with its holder, to see that no two hold the same memory.
async fn take_at_random(pool: &Arc<BufferPool>, in_use: &AtomicUsize, seed: u64, takes: usize) {
    let mut state = seed;
    let mut random = |below: usize| {
        // xorshift64: any sequence without a pattern will do.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap() % below
    };
    for _ in 0..takes {
        let len = [100, SMALL, 60 * KIB, 200 * KIB, LARGE][random(5)];
        let waiting = pool.take(len);
        // Some give up early, to exercise leaving the queue.
        let limit = Duration::from_micros(if random(8) == 0 { 50 } else { 60_000_000 });
        let Ok(buffer) = tokio::time::timeout(limit, waiting).await else {
            assert!(limit.as_secs() == 0, "a waiter was forgotten");
            continue;
        };
        let mut buffer = buffer.unwrap();
        let total = in_use.fetch_add(buffer.capacity(), Ordering::SeqCst) + buffer.capacity();
        assert!(total <= pool.budget_bytes());
        assert!(pool.bytes_mapped() <= pool.budget_bytes());
        let mark = u8::try_from(seed).unwrap();
        buffer.as_mut_slice()[..100].fill(mark);
        if random(4) == 0 {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        assert!(buffer.as_slice()[..100].iter().all(|&byte| byte == mark));
        in_use.fetch_sub(buffer.capacity(), Ordering::SeqCst);
    }
}
