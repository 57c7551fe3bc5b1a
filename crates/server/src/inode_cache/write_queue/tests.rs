//! The queue by itself, and under many tasks in many orders.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use io::{BufferPool, Identity};
use proptest::prelude::*;

use super::*;
use crate::fs::OpenedFor;

fn write(offset: u64) -> (WaitingWrite, oneshot::Receiver<Woken>) {
    write_of(offset, 0)
}

fn write_of(offset: u64, len: usize) -> (WaitingWrite, oneshot::Receiver<Woken>) {
    static BUFFERS: LazyLock<Arc<BufferPool>> = LazyLock::new(|| BufferPool::new(256 << 20));
    let data = (len > 0).then(|| WriteData::new(BUFFERS.try_take(len).unwrap(), 0, len));
    let (identity, opened) = (Identity::Server, OpenedFor::default());
    let caller = Caller { identity, read_only: false, opened, client: None };
    let call = CallId::local(0, 0);
    let (mode, flush) = (IoMode::Auto, None);
    let request = Box::new(WriteRequest { caller, client: 1, call, mode, offset, data, flush });
    WaitingWrite::new(request)
}

fn offsets(batch: &[WaitingWrite]) -> Vec<u64> {
    batch.iter().map(|write| write.request.offset).collect()
}

#[test]
fn a_change_of_another_kind_parts_those_before_it_from_those_behind() {
    let (queue, lock) = (Arc::new(WriteQueue::default()), InodeLock::default());
    queue.close();
    let first = queue.join(write(0).0, &lock).expect("it begins a batch");
    assert!(queue.join(write(1).0, &lock).is_none());
    queue.close();
    let second = queue.join(write(2).0, &lock).expect("it begins a batch");
    assert!(queue.join(write(3).0, &lock).is_none());
    assert_eq!(queue.len(), 4);
    let taken = |duty: BatchDuty| offsets(&duty.take(&lock).0);
    assert_eq!(taken(second), [0, 1], "the one that has waited longest");
    assert_eq!(taken(first), [2, 3]);
    assert!(queue.join(write(4).0, &lock).is_some());
}

#[test]
fn those_that_wait_together_are_bounded() {
    let (queue, lock) = (Arc::new(WriteQueue::default()), InodeLock::default());
    let duties: Vec<_> =
        (0..=WAITING_WRITES_MAX as u64).filter_map(|n| queue.join(write(n).0, &lock)).collect();
    assert_eq!(duties.len(), 2);
    let full = Batch { writes: Vec::new(), bytes: WAITING_BYTES_MAX - 1, is_closed: false };
    assert!(full.has_room(1, 1) && !full.has_room(1, 2));
    duties.into_iter().for_each(drop);
    assert_eq!(queue.len(), 0);
}

#[test]
fn what_is_left_is_carried_out_before_a_change_that_came_later() {
    let (queue, lock) = (Arc::new(WriteQueue::default()), InodeLock::default());
    let guard = lock.try_exclusive().expect("the lock is free");
    let (first, _task) = write(0);
    let duty = queue.join(first, &lock).expect("it begins a batch");
    let (given_up, task) = write(1);
    drop(task);
    assert!(queue.join(given_up, &lock).is_none());
    let mut tasks: Vec<_> = (2..100)
        .map(|offset| {
            let (write, task) = write(offset);
            assert!(queue.join(write, &lock).is_none());
            task
        })
        .collect();
    let (taken, next) = duty.take(&lock);
    assert_eq!(offsets(&taken), (0..64).collect::<Vec<_>>());
    queue.close();
    let mut change = lock.queue();
    let mut context = Context::from_waker(Waker::noop());
    drop(guard);
    drop(next.expect("36 are left"));
    let Ok(Woken::Duty(_again, mut duty)) = tasks[62].try_recv() else { panic!("it has the duty") };
    assert!(change.as_mut().poll(&mut context).is_pending());
    let Poll::Ready(guard) = std::pin::pin!(duty.lock()).poll(&mut context) else {
        panic!("it is next")
    };
    assert_eq!(offsets(&duty.take(&lock).0), (64..100).collect::<Vec<_>>());
    drop(guard);
    assert!(change.as_mut().poll(&mut context).is_ready());
}

#[test]
fn a_write_behind_those_that_were_left_and_given_up_is_carried_out() {
    let (queue, lock) = (Arc::new(WriteQueue::default()), InodeLock::default());
    let duty = queue.join(write(0).0, &lock).expect("it begins a batch");
    for given_up in 1..100 {
        assert!(queue.join(write(given_up).0, &lock).is_none());
    }
    let (_, next) = duty.take(&lock);
    queue.close();
    let (behind, _task) = write(200);
    let own = queue.join(behind, &lock).expect("it begins a batch");
    drop(next.expect("36 are left"));
    assert_eq!(queue.len(), 1);
    assert_eq!(offsets(&own.take(&lock).0), [200]);
}

#[test]
fn writes_do_not_wait_for_a_task_that_has_ended() {
    let (queue, lock) = (Arc::new(WriteQueue::default()), InodeLock::default());
    let (first, mut woken) = write(0);
    drop(queue.join(first, &lock));
    assert!(matches!(woken.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    assert_eq!(queue.len(), 0);
}

/// The state that the tasks of a test share.
#[derive(Default)]
struct Rig {
    queue: Arc<WriteQueue>,
    lock: InodeLock,
    arrived: RefCell<BTreeSet<u64>>,
    /// The offsets of the WRITEs that were carried out, in this order.
    done: RefCell<Vec<u64>>,
}

/// Lets others run.
async fn pause() {
    let mut has_paused = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_paused, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A WRITE as `Vfs::write_in_batch` has it performed. `waits` is set while it may be given up.
async fn perform(rig: Rc<Rig>, offset: u64, len: usize, is_slow: bool, waits: Rc<Cell<bool>>) {
    let (write, mut woken) = write_of(offset, len);
    rig.arrived.borrow_mut().insert(offset);
    let mut duty = rig.queue.join(write, &rig.lock);
    loop {
        if let Some(mut duty) = duty {
            if is_slow {
                pause().await;
            }
            let guard = duty.lock().await;
            let (writes, next) = duty.take(&rig.lock);
            pause().await;
            rig.done.borrow_mut().extend(offsets(&writes));
            drop(guard);
            pause().await;
            drop(next);
            pause().await;
            for write in writes {
                drop(write.task.send(Woken::Turn(WriteTurn::refused(Status::NoSpace))));
            }
        }
        waits.set(true);
        let next = woken.await.expect("no duty is lost");
        waits.set(false);
        match next {
            Woken::Turn(_) => return,
            Woken::Duty(again, next) => (duty, woken) = (Some(next), again),
        }
    }
}

/// A change of another kind.
async fn change(rig: Rc<Rig>, comes_behind: bool) {
    rig.queue.close();
    let before = rig.arrived.borrow().clone();
    let _guard = rig.lock.exclusive().await;
    let done: BTreeSet<_> = rig.done.borrow().iter().copied().collect();
    assert!(!comes_behind || before.is_subset(&done), "a change overtakes WRITEs");
    pause().await;
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    is_woken: Arc<Flag>,
    waits: Rc<Cell<bool>>,
}

impl Task {
    fn new(future: impl Future<Output = ()> + 'static, waits: Rc<Cell<bool>>) -> Self {
        let is_woken = Arc::new(Flag(AtomicBool::new(true)));
        Self { future: Box::pin(future), is_woken, waits }
    }
}

/// Runs tasks until all have ended: one that is woken, by `choice`, after the other. Some that wait
/// are given up, if there are to be such.
fn run(mut tasks: Vec<Task>, mut choice: impl FnMut() -> usize, give_up: bool) -> usize {
    let mut given_up = 0;
    while !tasks.is_empty() {
        if give_up && choice().is_multiple_of(8) {
            let waiting: Vec<_> = (0..tasks.len()).filter(|&nth| tasks[nth].waits.get()).collect();
            if !waiting.is_empty() {
                drop(tasks.swap_remove(waiting[choice() % waiting.len()]));
                given_up += 1;
                continue;
            }
        }
        let is_woken = |nth: &usize| tasks[*nth].is_woken.0.load(Ordering::Relaxed);
        let woken: Vec<_> = (0..tasks.len()).filter(is_woken).collect();
        assert!(!woken.is_empty(), "{} tasks wait for ever", tasks.len());
        let nth = woken[choice() % woken.len()];
        let task = &mut tasks[nth];
        task.is_woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&task.is_woken));
        if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            drop(tasks.swap_remove(nth));
        }
    }
    given_up
}

proptest! {
    #[test]
    fn each_write_is_carried_out_once_in_any_order_of_the_tasks(
        places in prop::collection::btree_set(0..400u64, 1..300),
        long in any::<bool>(),
        (is_slow, give_up) in (any::<bool>(), any::<bool>()),
        changes in 0..4usize,
        seed in any::<u64>(),
    ) {
        let rig = Rc::new(Rig::default());
        let (record, len) = if long { (1 << 20, 200_000) } else { (47_008, 47_008) };
        let mut state = seed | 1;
        let mut choice = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap()
        };
        let mut tasks: Vec<_> = places
            .iter()
            .map(|place| {
                let waits = Rc::new(Cell::new(false));
                let rig = Rc::clone(&rig);
                Task::new(perform(rig, place * record, len, is_slow, Rc::clone(&waits)), waits)
            })
            .collect();
        for _ in 0..changes {
            let comes_behind = !give_up;
            tasks.push(Task::new(change(Rc::clone(&rig), comes_behind), Rc::default()));
        }
        let given_up = run(tasks, &mut choice, give_up);
        let done = rig.done.borrow();
        let once: BTreeSet<_> = done.iter().copied().collect();
        prop_assert_eq!(once.len(), done.len(), "none twice");
        prop_assert!(once.len() + given_up >= places.len());
        prop_assert_eq!(rig.queue.len(), 0);
    }
}
