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

/// Polls a future once and returns whether it is still pending.
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
async fn a_trimmed_buffer_keeps_its_bytes_and_serves_waiters() {
    // One large buffer, or one small and what is left.
    let pool = BufferPool::new(LARGE + SMALL);
    let mut buffer = pool.try_take(LARGE).unwrap();
    buffer.as_mut_slice()[..3].copy_from_slice(b"abc");
    let mut waiting = pin!(pool.take(Holder::OWN, MEDIUM));
    assert!(is_pending(waiting.as_mut()).await);
    let buffer = buffer.trimmed(3);
    assert_eq!((buffer.capacity(), &buffer.as_slice()[..3]), (SMALL, &b"abc"[..]));
    assert_eq!(waiting.await.unwrap().capacity(), MEDIUM);
    assert!(pool.bytes_mapped() <= pool.budget_bytes());
    assert_eq!(pool.bytes_in_use(), SMALL);
    // Nothing is smaller, and nothing else changes.
    assert_eq!(buffer.trimmed(8192).capacity(), SMALL);
    assert_eq!(pool.bytes_in_use(), 0);
}

#[tokio::test]
async fn impossible_requests_are_refused_at_once() {
    let pool = BufferPool::new(64 << 20);
    let max = 4096 * KIB + SPARE_BYTES;
    assert_eq!(pool.len_max(), max);
    assert!(pool.take(Holder::OWN, max).await.is_ok());
    assert_eq!(
        pool.take(Holder::OWN, max + 1).await.unwrap_err(),
        BufferTooLarge { len: max + 1, max }
    );

    let tight = BufferPool::new(LARGE - 1);
    let max = 256 * KIB + SPARE_BYTES;
    assert_eq!(
        tight.take(Holder::OWN, LARGE).await.unwrap_err(),
        BufferTooLarge { len: LARGE, max }
    );
    assert!(tight.try_take(LARGE).is_none());
    assert_eq!(
        BufferPool::new(SMALL - 1).take(Holder::OWN, 0).await.unwrap_err(),
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
    let held = pool.take(Holder::OWN, LARGE).await.unwrap();
    let mut large = pin!(pool.take(Holder::OWN, LARGE));
    let mut small = pin!(pool.take(Holder::OWN, 1));
    assert!(is_pending(large.as_mut()).await);
    assert!(is_pending(small.as_mut()).await);
    assert_eq!(pool.waiters(), 2);

    drop(held);
    // The small one would fit nowhere beside the large one, and must not have passed it.
    assert!(is_pending(small.as_mut()).await);
    assert_eq!(pool.waiters(), 1);
    let large = large.await.unwrap();
    assert!(pool.try_take(1).is_none(), "no taker overtakes a waiter");
    drop(large);
    assert_eq!(small.await.unwrap().capacity(), SMALL);
}

#[tokio::test]
async fn a_small_buffer_is_not_lent_past_a_large_waiter() {
    let pool = BufferPool::new(LARGE + SMALL);
    let first = pool.take(Holder::OWN, LARGE).await.unwrap();
    let mut large = pin!(pool.take(Holder::OWN, LARGE));
    assert!(is_pending(large.as_mut()).await);
    assert!(pool.try_take(1).is_none(), "there is room, but someone waits");
    drop(first);
    assert!(large.await.is_ok());
    assert!(pool.try_take(1).is_some());
}

#[tokio::test]
async fn a_waiter_that_leaves_frees_those_behind_it() {
    let pool = BufferPool::new(LARGE + SMALL);
    let _held = pool.take(Holder::OWN, LARGE).await.unwrap();
    let mut large = Box::pin(pool.take(Holder::OWN, LARGE));
    let mut small = pin!(pool.take(Holder::OWN, 1));
    assert!(is_pending(large.as_mut()).await);
    assert!(is_pending(small.as_mut()).await, "in line behind the large one");
    drop(large);
    assert!(small.await.is_ok());
    assert_eq!(pool.waiters(), 0);
}

#[tokio::test]
async fn one_client_cannot_hold_the_whole_pool() {
    const GREEDY: ClientId = 1;
    const OTHER: ClientId = 2;
    let pool = BufferPool::new(8 * MEDIUM);
    let mut held: Vec<_> =
        std::iter::from_fn(|| pool.try_take_for(Holder::of(GREEDY), MEDIUM)).collect();
    assert_eq!(held.len(), 6, "three quarters");
    let mut waiting: Vec<_> =
        (0..3).map(|_| Box::pin(pool.take(Holder::of(GREEDY), MEDIUM))).collect();
    for waiting in &mut waiting {
        assert!(is_pending(waiting.as_mut()).await);
    }
    assert!(pool.try_take_for(Holder::of(GREEDY), 1).is_none(), "its own requests wait");
    // The requests of a client at its share hold up no other client.
    let others = [(); 2].map(|()| pool.try_take_for(Holder::of(OTHER), MEDIUM).unwrap());
    drop(others);
    assert_eq!(pool.waiters(), 3);
    assert!(is_pending(waiting[0].as_mut()).await);
    drop(held.pop());
    assert!(waiting.remove(0).await.is_ok());
    drop((waiting, held));
    assert_eq!((pool.bytes_in_use(), pool.waiters()), (0, 0));
}

#[tokio::test]
async fn one_device_of_several_cannot_hold_the_whole_pool() {
    let (stuck, other) = ((8, 0), (8, 16));
    let holder = |client, device| Holder { client, device };
    let pool = BufferPool::new(8 * MEDIUM);
    pool.set_several_devices(true);
    let take = |client, device| pool.try_take_for(holder(client, device), MEDIUM);
    let mut held: Vec<_> = (1..=8).map_while(|client| take(client, stuck)).collect();
    assert_eq!(held.len(), 6, "three quarters");
    let mut waiting = pin!(pool.take(holder(7, stuck), MEDIUM));
    assert!(is_pending(waiting.as_mut()).await);
    assert!(take(0, stuck).is_none(), "this process has no share of a device either");
    // Neither the client of that request nor others wait for its turn elsewhere.
    let others = [1, 2].map(|client| take(client, other).unwrap());
    assert!(take(3, other).is_none());
    drop(others);
    drop(held.pop());
    assert!(waiting.await.is_ok());
    // A single device may hold all.
    pool.set_several_devices(false);
    held.extend((1..=8).map_while(|client| take(client, stuck)));
    assert_eq!(held.len(), 8);
    drop(held);
    assert_eq!((pool.bytes_in_use(), pool.waiters()), (0, 0));
}

#[tokio::test]
async fn a_request_for_a_device_at_its_share_waits_for_memory_of_that_device() {
    let (stuck, other) = ((8, 0), (8, 16));
    let holder = |client, device| Holder { client, device };
    let pool = BufferPool::new(8 * MEDIUM);
    pool.set_several_devices(true);
    let take = |client, device| pool.try_take_for(holder(client, device), MEDIUM);
    let _held: Vec<_> = (1..=6).map(|client| take(client, stuck).unwrap()).collect();
    let _elsewhere = take(7, other).unwrap();
    let mut waiting = pin!(pool.take(holder(8, stuck), MEDIUM));
    assert!(is_pending(waiting.as_mut()).await);
    assert_eq!([1, 7, 8].map(|client| pool.has_waiters_for(client)), [true, false, false]);
}

#[tokio::test]
async fn small_requests_of_a_client_at_its_share_do_not_pass_its_large_one_for_another_device() {
    let holder = |device| Holder { client: 1, device: (8, device) };
    let pool = BufferPool::new(16 * MEDIUM);
    pool.set_several_devices(true);
    let take = |device| pool.try_take_for(holder(device), MEDIUM).unwrap();
    let mut held: Vec<_> = [0, 0, 0, 0, 0, 16, 16, 16, 16].map(take).into();
    let mut large = pin!(pool.take(holder(0), 256 * KIB));
    assert!(is_pending(large.as_mut()).await);
    let mut small = pin!(pool.take(holder(16), SMALL));
    assert!(is_pending(small.as_mut()).await, "the share has room for it");
    drop(held.pop());
    assert!(large.await.is_ok());
    assert!(small.await.is_ok());
}

#[tokio::test]
async fn small_requests_for_a_device_at_its_share_do_not_pass_a_large_one() {
    let holder = |client| Holder { client, device: (8, 0) };
    let pool = BufferPool::new(16 * MEDIUM);
    pool.set_several_devices(true);
    let take = |client| pool.try_take_for(holder(client), MEDIUM);
    let mut held: Vec<_> = (0..12).map(|i| take(1 + i % 2).unwrap()).collect();
    let mut large = pin!(pool.take(holder(3), 256 * KIB));
    assert!(is_pending(large.as_mut()).await);
    let mut small = pin!(pool.take(holder(4), MEDIUM));
    assert!(is_pending(small.as_mut()).await);
    drop(held.pop());
    assert!(take(5).is_none());
    assert!(is_pending(small.as_mut()).await, "the device's share has room for it");
    held.truncate(8);
    assert!(large.await.is_ok());
}

#[tokio::test]
async fn a_client_of_a_device_that_does_not_answer_has_memory_for_another() {
    let holder = |client, device| Holder { client, device: (8, device) };
    let pool = BufferPool::new(16 * MEDIUM);
    pool.set_several_devices(true);
    let take = |client, device| pool.try_take_for(holder(client, device), MEDIUM);
    let held: Vec<_> = std::iter::from_fn(|| take(1, 0)).collect();
    assert_eq!(held.len(), 9, "three quarters of three quarters");
    let mut waiting = pin!(pool.take(holder(1, 0), MEDIUM));
    assert!(is_pending(waiting.as_mut()).await);
    assert!(take(2, 0).is_some(), "another client of the device");
    assert!(take(1, 16).is_some());
}

#[tokio::test]
async fn client_at_its_share_waits_for_memory_of_no_other() {
    let pool = BufferPool::new(8 * MEDIUM);
    let _held: Vec<_> = std::iter::from_fn(|| pool.try_take_for(Holder::of(1), MEDIUM)).collect();
    let _slow = pool.try_take_for(Holder::of(2), MEDIUM).unwrap();
    assert!(!pool.has_waiters_for(1));
    let mut at_its_share = pin!(pool.take(Holder::of(1), MEDIUM));
    assert!(is_pending(at_its_share.as_mut()).await);
    assert_eq!([1, 2].map(|client| pool.has_waiters_for(client)), [true, false]);
    let mut within_its_share = pin!(pool.take(Holder::of(3), 2 * MEDIUM));
    assert!(is_pending(within_its_share.as_mut()).await, "one buffer is left");
    assert_eq!([1, 2].map(|client| pool.has_waiters_for(client)), [true, true]);
}

#[tokio::test]
async fn clients_are_served_in_turn() {
    let pool = BufferPool::new(2 * MEDIUM);
    let held = pool.try_take(MEDIUM).unwrap();
    let small = pool.try_take_for(Holder::of(1), SMALL).unwrap();
    let mut first = [(); 2].map(|()| Box::pin(pool.take(Holder::of(1), MEDIUM)));
    let mut second = Box::pin(pool.take(Holder::of(2), MEDIUM));
    for waiting in &mut first {
        assert!(is_pending(waiting.as_mut()).await);
    }
    assert!(is_pending(second.as_mut()).await);
    drop(small);
    let [granted, mut behind] = first;
    let granted = granted.await.unwrap();
    drop(held);
    assert!(is_pending(behind.as_mut()).await, "it is the turn of the other client");
    let of_second = second.await.unwrap();
    drop(granted);
    assert!(behind.await.is_ok());
    drop(of_second);
    assert_eq!((pool.bytes_in_use(), pool.waiters()), (0, 0));
}

#[tokio::test]
async fn client_that_holds_nothing_may_have_the_whole_budget() {
    let pool = BufferPool::new(LARGE);
    let large = pool.take(Holder::of(1), LARGE).await.unwrap();
    let mut waiting = Box::pin(pool.take(Holder::of(1), SMALL));
    assert!(is_pending(waiting.as_mut()).await);
    // The part that it returned can be taken again.
    let trimmed = large.trimmed(1);
    assert!(waiting.await.is_ok());
    drop(trimmed);
    assert_eq!(pool.bytes_in_use(), 0);
}

#[tokio::test]
async fn an_unclaimed_grant_returns_its_buffer() {
    let pool = BufferPool::new(SMALL);
    let held = pool.take(Holder::OWN, 1).await.unwrap();
    let mut first = Box::pin(pool.take(Holder::OWN, 1));
    let mut second = pin!(pool.take(Holder::OWN, 1));
    assert!(is_pending(first.as_mut()).await);
    assert!(is_pending(second.as_mut()).await);
    drop(held); // Grants to the first, which is dropped before it is polled.
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
    let taken = runtime().block_on(async {
        tokio::time::timeout(Duration::from_secs(10), pool.take(Holder::OWN, 1)).await
    });
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

/// A step of [`no_request_waits_for_memory_that_it_may_have`].
#[derive(Clone, Debug)]
enum Step {
    Take { client: ClientId, device: u32, len: usize },
    GiveBack(Index),
    Leave(Index),
    SetDevices(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop::sample::select(vec![SMALL, MEDIUM, 256 * KIB]);
    let take = (0_u128..4, 0_u32..4, len).prop_map(|(client, device, len)| Step::Take {
        client,
        device,
        len,
    });
    let step = prop_oneof![
        6 => take,
        3 => any::<Index>().prop_map(Step::GiveBack),
        1 => any::<Index>().prop_map(Step::Leave),
        1 => any::<bool>().prop_map(Step::SetDevices),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    /// Client 0 and device 0 stand for none.
    #[test]
    fn no_request_waits_for_memory_that_it_may_have(steps in steps()) {
        runtime().block_on(async {
            let pool = BufferPool::new(16 * MEDIUM);
            let mut held = Vec::new();
            let mut waiting = Vec::new();
            for step in steps.into_iter().chain([Step::SetDevices(true)]) {
                match step {
                    Step::Take { client, device, len } => {
                        let holder = Holder { client, device: (device, 0) };
                        let pool = &pool;
                        let request = async move { pool.take(holder, len).await.unwrap() };
                        waiting.push(Box::pin(request));
                    }
                    Step::GiveBack(which) if !held.is_empty() => {
                        drop(held.swap_remove(which.index(held.len())));
                    }
                    Step::Leave(which) if !waiting.is_empty() => {
                        drop(waiting.swap_remove(which.index(waiting.len())));
                    }
                    Step::SetDevices(several) => pool.set_several_devices(several),
                    Step::GiveBack(_) | Step::Leave(_) => {}
                }
                waiting = served(waiting, &mut held).await;
                let state = pool.lock();
                if let Some((_, class)) = state.holders.next() {
                    assert!(state.in_use_bytes + CLASS_BYTES[class] > pool.budget_bytes);
                }
            }
            // Each is served in the end.
            while !waiting.is_empty() {
                assert!(held.pop().is_some(), "{} wait for nothing", waiting.len());
                waiting = served(waiting, &mut held).await;
            }
            held.clear();
            assert_eq!((pool.bytes_in_use(), pool.waiters()), (0, 0));
        });
    }
}

/// Polls each request once. Returns those that still wait, and adds the buffers of the others.
async fn served<F: Future<Output = Buffer>>(
    waiting: Vec<std::pin::Pin<Box<F>>>,
    held: &mut Vec<Buffer>,
) -> Vec<std::pin::Pin<Box<F>>> {
    let mut still = Vec::new();
    for mut request in waiting {
        match poll_fn(|context| Poll::Ready(request.as_mut().poll(context))).await {
            Poll::Ready(buffer) => held.push(buffer),
            Poll::Pending => still.push(request),
        }
    }
    still
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
        let waiting = pool.take(Holder::of(u128::from(seed % 3)), len);
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
