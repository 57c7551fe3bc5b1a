use std::cell::Cell;
use std::fs::{self, File, Permissions};
use std::future::poll_fn;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::task::Poll;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{Notify, oneshot};

use super::share::FIRST_THREAD_RETRY;
use super::*;
use crate::own_process::ran_in_own_process;
use crate::skip::skip;

fn engine(threads: usize, queue_max: usize) -> Engine {
    let config = EngineConfig { data_threads: threads, metadata_threads: threads, queue_max };
    Engine::new(config).unwrap()
}

async fn is_pending<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

/// A job that holds a thread until the sender is used or dropped.
fn gate() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
    let (open, wait) = mpsc::channel();
    (open, move || {
        let _ = wait.recv();
    })
}

fn thread_name() -> String {
    thread::current().name().unwrap().to_owned()
}

#[tokio::test]
async fn jobs_run_on_named_threads_of_their_lane() {
    let engine = engine(1, 4);
    assert_eq!(engine.data(thread_name).await, "spillway-data-0");
    assert_eq!(engine.metadata(Identity::Server, thread_name).await.unwrap(), "spillway-meta-0");
}

#[tokio::test]
async fn a_task_of_no_lane_that_asks_for_a_thread_leaves_no_wait_to_others() {
    let engine = engine(1, 4);
    engine.ask_for_metadata_thread().await;
    engine.ask_for_data_thread().await;
    assert_eq!(Share::current_wait(), Duration::ZERO);
}

#[tokio::test]
async fn threads_start_on_demand_and_are_reused() {
    let engine = engine(2, 4);
    for _ in 0..50 {
        // The thread that answered may not be asleep yet when the next job comes, so a second one
        // may start; a third never.
        let name = engine.data(thread_name).await;
        assert!(["spillway-data-0", "spillway-data-1"].contains(&name.as_str()), "{name}");
    }
}

#[tokio::test]
async fn work_is_left_to_a_thread_that_has_been_started_for_none() {
    let engine = engine(4, 4);
    for minor in 0..200 {
        // The first thread of a device starts when the device comes into use.
        let share = Share::new(&engine.device((8, minor)), 1);
        assert_eq!(share.run(engine.data(thread_name)).await, "spillway-data-0");
    }
}

/// Each pair meets at a barrier, which one thread alone would never get through: no job may be left
/// to a sleeping thread that another submitter has already claimed.
#[tokio::test]
async fn jobs_submitted_together_run_together() {
    let engine = engine(2, 4);
    for _ in 0..2_000 {
        let barrier = Arc::new(Barrier::new(2));
        let meet = |barrier: &Arc<Barrier>| {
            let barrier = Arc::clone(barrier);
            engine.data(move || {
                barrier.wait();
            })
        };
        let both = async { tokio::join!(meet(&barrier), meet(&barrier)) };
        tokio::time::timeout(Duration::from_secs(10), both).await.expect("both jobs run");
    }
}

#[tokio::test]
async fn a_full_queue_makes_the_caller_wait() {
    let engine = engine(1, 1);
    let (open, hold) = gate();
    let mut running = pin!(engine.data(hold));
    assert!(is_pending(running.as_mut()).await);
    while engine.data_queued() > 0 {
        thread::yield_now();
    }
    let mut queued = pin!(engine.data(|| 1));
    assert!(is_pending(queued.as_mut()).await);
    assert_eq!(engine.data_queued(), 1);
    let mut waiting = pin!(engine.data(|| 2));
    assert!(is_pending(waiting.as_mut()).await);
    assert_eq!(engine.data_queued(), 1, "the queue holds no more than it may");
    // The lanes are separate: metadata jobs run while data jobs are stuck.
    assert_eq!(engine.metadata(Identity::Server, || 3).await.unwrap(), 3);

    open.send(()).unwrap();
    running.await;
    assert_eq!(queued.await, 1);
    assert_eq!(waiting.await, 2);
}

#[tokio::test]
async fn a_job_outlives_its_caller() {
    let engine = engine(1, 2);
    let finished = Arc::new(AtomicBool::new(false));
    let (open, hold) = gate();
    let mut abandoned = Box::pin(engine.data({
        let finished = Arc::clone(&finished);
        move || {
            hold();
            finished.store(true, Ordering::SeqCst);
        }
    }));
    assert!(is_pending(abandoned.as_mut()).await);
    drop(abandoned);
    open.send(()).unwrap();
    engine.data(|| ()).await; // Behind it in the only thread's queue.
    assert!(finished.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_caller_that_leaves_the_line_takes_its_job_along() {
    let engine = engine(1, 1);
    let (open, hold) = gate();
    let ran = Arc::new(AtomicBool::new(false));
    let mut running = pin!(engine.data(hold));
    assert!(is_pending(running.as_mut()).await);
    while engine.data_queued() > 0 {
        thread::yield_now();
    }
    let mut queued = pin!(engine.data(|| ()));
    assert!(is_pending(queued.as_mut()).await);
    let mut waiting = Box::pin(engine.data({
        let ran = Arc::clone(&ran);
        move || ran.store(true, Ordering::SeqCst)
    }));
    assert!(is_pending(waiting.as_mut()).await);
    drop(waiting);
    open.send(()).unwrap();
    running.await;
    queued.await;
    engine.shutdown().await;
    assert!(!ran.load(Ordering::SeqCst));
}

#[test]
fn a_panic_reaches_the_caller_and_spares_the_lane() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let engine = engine(1, 2);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(engine.data(|| panic!("the job's own words")));
    }));
    let payload = caught.unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"the job's own words"));
    assert_eq!(runtime.block_on(engine.data(thread_name)), "spillway-data-0");
}

#[tokio::test]
async fn a_panic_in_the_destructor_of_a_result_leaves_the_lane_running() {
    struct Grenade;
    impl Drop for Grenade {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let engine = engine(1, 2);
    let (open, hold) = gate();
    let mut abandoned = Box::pin(engine.data(move || {
        hold();
        Grenade
    }));
    assert!(is_pending(abandoned.as_mut()).await);
    drop(abandoned);
    open.send(()).unwrap();
    assert_eq!(engine.data(thread_name).await, "spillway-data-0");
}

#[tokio::test]
async fn shutdown_drains_and_later_jobs_still_run() {
    let engine = engine(2, 64);
    let done = Arc::new(AtomicUsize::new(0));
    let count = |done: &Arc<AtomicUsize>| {
        let done = Arc::clone(done);
        move || {
            thread::sleep(Duration::from_millis(1));
            done.fetch_add(1, Ordering::SeqCst);
        }
    };
    for _ in 0..40 {
        // Queued; some have ended by the time that they are abandoned.
        let mut abandoned = Box::pin(engine.data(count(&done)));
        let _ = is_pending(abandoned.as_mut()).await;
    }
    engine.shutdown().await;
    assert_eq!(done.load(Ordering::SeqCst), 40);
    engine.data(count(&done)).await;
    assert_eq!(done.load(Ordering::SeqCst), 41);
    tokio::time::timeout(Duration::from_secs(10), engine.shutdown()).await.expect("threads end");
}

#[tokio::test]
async fn an_identity_that_cannot_be_assumed_keeps_the_job_from_running() {
    let engine = engine(1, 2);
    let ran = Arc::new(AtomicBool::new(false));
    let invalid = Identity::User { uid: u32::MAX, gid: 1, groups: Arc::from([]) };
    let job = {
        let ran = Arc::clone(&ran);
        move || ran.store(true, Ordering::SeqCst)
    };
    let error = engine.metadata(invalid, job).await.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    assert!(!ran.load(Ordering::SeqCst));
    assert_eq!(engine.metadata(Identity::Server, || 5).await.unwrap(), 5);
}

/// A file created on either lane belongs to the user that the job acts as; a data job without a
/// user acts as the server again, on the same thread.
#[tokio::test]
async fn both_lanes_act_as_the_requested_user() {
    if !crate::can_assume_users() {
        return skip("acting as other users takes root with CAP_SETUID and CAP_SETGID");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    let engine = engine(1, 2);
    let create = |name: &str| {
        let path = directory.path().join(name);
        move || File::create(path).and_then(|file| file.metadata()).map(|made| made.uid()).unwrap()
    };
    let user = Identity::User { uid: 1000, gid: 1000, groups: Arc::from([]) };
    assert_eq!(engine.metadata(user.clone(), create("a")).await.unwrap(), 1000);
    assert_eq!(engine.data_as(user, create("b")).await.unwrap(), 1000);
    assert_eq!(engine.data(create("c")).await, 0);
    assert_eq!(engine.metadata(Identity::Server, create("d")).await.unwrap(), 0);
}

#[tokio::test]
async fn a_thread_that_is_started_by_one_of_a_user_acts_as_the_server() {
    if !crate::can_assume_users() {
        return skip("acting as other users takes root with CAP_SETUID and CAP_SETGID");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    let engine = Arc::new(engine(2, 4));
    let (at_work, waits) = oneshot::channel();
    let (open, wait) = gate();
    let occupy = move || {
        at_work.send(()).unwrap();
        wait();
    };
    assert!(engine.leave_to_data(occupy));
    waits.await.unwrap();
    let (reply, received) = oneshot::channel();
    let (within, path) = (Arc::clone(&engine), directory.path().join("file"));
    let start = move || {
        let work = move || {
            let made = File::create(path).and_then(|file| file.metadata()).unwrap();
            reply.send((thread_name(), made.uid())).unwrap();
        };
        assert!(within.own.leave_to(LaneKind::Data, work));
    };
    let user = Identity::User { uid: 1000, gid: 1000, groups: Arc::from([]) };
    engine.metadata(user, start).await.unwrap();
    assert_eq!(received.await.unwrap(), ("spillway-data-1".to_owned(), 0));
    drop(open);
}

/// Many submitters, few threads, a tiny queue: every job runs exactly once and every caller gets
/// its own answer.
#[test]
fn every_caller_gets_its_own_answer() {
    let engine = engine(3, 2);
    thread::scope(|scope| {
        for submitter in 0..4_u64 {
            let engine = &engine;
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    for round in 0..500_u64 {
                        let answer = |part: u64| move || (submitter, round, part);
                        let (a, b, c) = tokio::join!(
                            engine.data(answer(0)),
                            engine.metadata(Identity::Server, answer(1)),
                            engine.data(answer(2)),
                        );
                        assert_eq!(a, (submitter, round, 0));
                        assert_eq!(b.unwrap(), (submitter, round, 1));
                        assert_eq!(c, (submitter, round, 2));
                    }
                });
            });
        }
    });
}

#[tokio::test]
async fn jobs_submitted_on_a_lane_run_in_place() {
    let engine = Arc::new(engine(1, 8));
    let (reply, received) = oneshot::channel();
    let within = Arc::clone(&engine);
    let task: Task = Box::pin(async move {
        let outer = thread::current().id();
        // With a single thread in each lane, anything but running here would wait for ever.
        let inner = within.data(|| thread::current().id()).await;
        let other = within.metadata(Identity::Server, || thread::current().id()).await.unwrap();
        reply.send((outer, inner, other)).unwrap();
    });
    engine.own.begin_data(task).await;
    let (outer, inner, other) = received.await.unwrap();
    assert_eq!((outer, outer), (inner, other));
}

#[tokio::test]
async fn content_is_not_waited_for_on_a_metadata_thread() {
    let engine = Arc::new(engine(1, 8));
    let (reply, received) = oneshot::channel();
    let within = Arc::clone(&engine);
    let task: Task = Box::pin(async move {
        let name = within.metadata(Identity::Server, thread_name).await.unwrap();
        reply.send((name, within.data(thread_name).await)).unwrap();
    });
    engine.own.begin_metadata(task).await;
    let (names, content) = received.await.unwrap();
    assert_eq!((names.as_str(), content.as_str()), ("spillway-meta-0", "spillway-data-0"));
}

#[tokio::test]
async fn a_task_of_the_metadata_lane_goes_on_on_a_data_thread_until_it_waits() {
    for begins_here in [false, true] {
        let engine = Arc::new(engine(1, 8));
        let (sender, reply) = oneshot::channel();
        let within = Arc::clone(&engine);
        let task = async move {
            within.ask_for_data_thread().await;
            let moved = thread_name();
            let job = within.data(thread_name).await;
            tokio::task::yield_now().await;
            let back = thread_name();
            within.move_to_data_thread().await;
            sender.send([moved, job, back, thread_name()]).unwrap();
        };
        match begins_here {
            true => engine.own.begin_metadata_here(task),
            false => engine.own.begin_metadata(task).await,
        }
        let [data, meta] = ["spillway-data-0", "spillway-meta-0"];
        assert_eq!(reply.await.unwrap(), [data, data, meta, data]);
    }
}

#[tokio::test]
async fn staying_task_that_asks_for_a_data_thread_moves_there_before_queued_work() {
    let engine = Arc::new(engine(1, 8));
    let held = hold_threads(&engine, &engine.own, 1);
    wait_until_taken(&engine);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = |name| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap().push((name, thread_name()))
    };
    assert!(engine.leave_to_data(note("job")));
    let (within, share, note) = (Arc::clone(&engine), engine.own.clone(), note("task"));
    let (left, has_left) = oneshot::channel();
    assert!(engine.own.leave_to(LaneKind::Metadata, move || {
        let task = async move {
            within.move_to_data_thread().await;
            within.data(note).await;
        };
        left.send(share.run_here(LaneKind::Metadata, task, Duration::from_secs(10))).unwrap();
    }));
    assert!(!has_left.await.unwrap(), "it leaves the thread");
    drop(held);
    engine.shutdown().await;
    let data = || "spillway-data-0".to_owned();
    assert_eq!(*order.lock().unwrap(), [("task", data()), ("job", data())]);
}

/// A task that notes the thread that it runs on before and after it waits for `gate`.
fn waits_for(
    gate: &Arc<Notify>,
) -> (Task, oneshot::Receiver<(String, String)>, oneshot::Receiver<()>) {
    let gate = Arc::clone(gate);
    let ((sender, reply), (begin, begun)) = (oneshot::channel(), oneshot::channel());
    let task = Box::pin(async move {
        let before = thread::current().name().unwrap_or_default().to_owned();
        begin.send(()).unwrap();
        gate.notified().await;
        sender.send((before, thread_name())).unwrap();
    });
    (task, reply, begun)
}

#[tokio::test]
async fn a_task_that_has_to_wait_goes_on_in_its_lane_and_holds_no_thread_of_it() {
    let engine = engine(1, 8);
    let gate = Arc::new(Notify::new());
    let (task, reply, begun) = waits_for(&gate);
    engine.own.begin_metadata(task).await;
    begun.await.unwrap();
    assert_eq!(engine.metadata(Identity::Server, || 1).await.unwrap(), 1, "the thread is free");
    gate.notify_one();
    let meta = "spillway-meta-0".to_owned();
    assert_eq!(reply.await.unwrap(), (meta.clone(), meta));
}

#[tokio::test]
async fn a_task_that_is_begun_here_goes_on_on_a_data_thread() {
    let engine = Arc::new(engine(1, 8));
    let gate = Arc::new(Notify::new());
    let (task, reply, _begun) = waits_for(&gate);
    engine.own.begin_here(task);
    gate.notify_one();
    let (before, after) = reply.await.unwrap();
    assert_ne!(before, after);
    assert_eq!(after, "spillway-data-0");

    let (sender, reply) = oneshot::channel();
    let within = Arc::clone(&engine);
    let task = Box::pin(async move {
        within.ask_for_data_thread().await;
        sender.send(thread_name()).unwrap();
    });
    engine.own.begin_here(task);
    assert_eq!(reply.await.unwrap(), "spillway-data-0");
}

#[tokio::test]
async fn a_task_that_asks_for_a_metadata_thread_moves_once() {
    let engine = Arc::new(engine(1, 8));
    let (sender, reply) = oneshot::channel();
    let within = Arc::clone(&engine);
    let here = thread_name();
    let task = async move {
        let begun = thread_name();
        within.ask_for_metadata_thread().await;
        let moved = thread_name();
        within.ask_for_metadata_thread().await;
        let job = within.metadata(Identity::Server, thread_name).await.unwrap();
        sender.send((begun, moved, job, thread_name())).unwrap();
    };
    engine.own.begin_metadata_here(task);
    let meta = "spillway-meta-0".to_owned();
    assert_eq!(reply.await.unwrap(), (here, meta.clone(), meta.clone(), meta));

    // A data thread may do the same.
    let (sender, reply) = oneshot::channel();
    let within = Arc::clone(&engine);
    let task = async move {
        within.ask_for_metadata_thread().await;
        sender.send(thread_name()).unwrap();
    };
    engine.own.begin_data(task).await;
    assert_eq!(reply.await.unwrap(), "spillway-data-0");
}

/// It may have taken what others wait for: it must not wait for a place, nor end with its caller.
#[tokio::test]
async fn a_task_that_has_begun_here_goes_on_though_the_queue_is_full() {
    for kind in [LaneKind::Data, LaneKind::Metadata] {
        let engine = Arc::new(engine(1, 1));
        let (open, hold) = gate();
        assert!(engine.own.leave_to(kind, hold));
        while engine.own.lanes().of(kind).queued() > 0 {
            thread::yield_now();
        }
        assert!(engine.own.leave_to(kind, || {}), "the last place");
        let ((sender, reply), within) = (oneshot::channel(), Arc::clone(&engine));
        let task = async move {
            match kind {
                LaneKind::Data => within.ask_for_data_thread().await,
                LaneKind::Metadata => within.ask_for_metadata_thread().await,
            }
            sender.send(thread_name()).unwrap();
        };
        match kind {
            LaneKind::Data => engine.own.begin_here(task),
            LaneKind::Metadata => engine.own.begin_metadata_here(task),
        }
        assert_eq!(engine.own.lanes().of(kind).queued(), 2);
        drop(open);
        let name = tokio::time::timeout(Duration::from_secs(10), reply).await.unwrap().unwrap();
        assert!(["spillway-data-0", "spillway-meta-0"].contains(&name.as_str()), "{name}");
    }
}

#[tokio::test]
async fn asking_for_a_thread_outside_a_lane_does_not_wait() {
    let engine = engine(1, 8);
    engine.ask_for_data_thread().await;
    engine.ask_for_metadata_thread().await;
}

/// Tasks of one file, so to speak: each has its turn when the one before it has ended its own, and
/// then waits for the disk for a while.
#[tokio::test]
async fn a_turn_that_is_handed_on_does_not_wait_for_the_disk_of_the_one_before() {
    let engine = Arc::new(engine(2, 64));
    let turns = Arc::new(tokio::sync::Mutex::new(0));
    // Two disks that wait for each other: were they waited for one by one, it would be for ever.
    let disks = Arc::new(Barrier::new(2));
    let make = |order: usize| {
        let ((sender, reply), within) = (oneshot::channel(), Arc::clone(&engine));
        let (turns, disks) = (Arc::clone(&turns), Arc::clone(&disks));
        let task: Task = Box::pin(async move {
            let mut turn = turns.lock_owned().await;
            within.ask_for_data_thread().await;
            let before = within
                .data(move || {
                    *turn += 1;
                    *turn - 1
                })
                .await;
            let meet = move || {
                disks.wait();
            };
            within.data(meet).await;
            sender.send((order, before)).unwrap();
        });
        (task, reply)
    };
    for _ in 0..200 {
        let first = *turns.lock().await;
        let ((a, reply_a), (b, reply_b)) = (make(first), make(first + 1));
        engine.own.begin_here(a);
        engine.own.begin_here(b);
        for reply in [reply_a, reply_b] {
            let answer = tokio::time::timeout(Duration::from_secs(10), reply).await;
            let (order, before) = answer.expect("both waits run together").unwrap();
            assert_eq!(order, before, "the order of arrival");
        }
    }
}

/// Tasks that wake one another from all sides, and are woken while they are polled.
#[test]
fn no_wake_up_is_lost() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let engine = engine(3, 4);
    runtime.block_on(async {
        let baton = Arc::new(tokio::sync::Mutex::new(0_u32));
        let mut ends = Vec::new();
        for task in 0..40_usize {
            let ((sender, reply), baton) = (oneshot::channel(), Arc::clone(&baton));
            let work = Box::pin(async move {
                for _ in 0..200 {
                    *baton.lock().await += 1;
                    tokio::task::yield_now().await;
                }
                sender.send(()).unwrap();
            });
            match task % 3 {
                0 => engine.own.begin_data(work).await,
                1 => engine.own.begin_metadata(work).await,
                _ => engine.own.begin_here(work),
            }
            ends.push(reply);
        }
        for end in ends {
            end.await.unwrap();
        }
        assert_eq!(*baton.lock().await, 40 * 200);
        engine.shutdown().await;
    });
}

#[tokio::test]
async fn a_panic_of_a_task_spares_its_lane() {
    let engine = engine(1, 8);
    let gate = Arc::new(Notify::new());
    let waited_for = Arc::clone(&gate);
    let task = Box::pin(async move {
        waited_for.notified().await;
        panic!("the task's own words");
    });
    engine.own.begin_data(task).await;
    gate.notify_one();
    assert_eq!(engine.data(thread_name).await, "spillway-data-0");
    engine.shutdown().await;
}

#[tokio::test]
async fn work_left_to_the_data_lane_never_runs_here_and_never_waits() {
    let engine = Arc::new(engine(1, 1));
    let (open, gate) = gate();
    assert!(engine.leave_to_data(gate));
    // The thread holds the gate once it has taken it from the queue, which has one place.
    while engine.data_queued() > 0 {
        tokio::task::yield_now().await;
    }
    let (sender, reply) = mpsc::channel();
    assert!(engine.leave_to_data(move || sender.send(thread_name()).unwrap()));
    let dropped = Arc::new(());
    let witness = Arc::clone(&dropped);
    assert!(!engine.leave_to_data(move || drop(witness)), "the queue is full");
    assert_eq!(Arc::strong_count(&dropped), 1, "a job that was not taken is dropped");
    drop(open);
    assert_eq!(reply.recv().unwrap(), "spillway-data-0");
}

/// Submits jobs of a client to a device, each of which holds its thread until the sender is
/// dropped.
fn hold_threads(engine: &Engine, share: &Share, jobs: usize) -> Vec<mpsc::Sender<()>> {
    let mut senders = Vec::new();
    for _ in 0..jobs {
        let (open, hold) = gate();
        senders.push(open);
        let _entered = share.enter();
        assert!(engine.leave_to_data(hold));
    }
    senders
}

/// Notes in `threads` the thread that it runs on, until that ends.
fn note_thread(threads: &Arc<()>) -> impl FnOnce() + Send + 'static {
    thread_local! {
        static NOTED: Cell<Option<Arc<()>>> = const { Cell::new(None) };
    }
    let threads = Arc::clone(threads);
    move || NOTED.set(Some(threads))
}

#[tokio::test]
async fn threads_of_a_device_that_is_gone_end_when_another_comes() {
    let engine = engine(2, 4);
    let threads = Arc::new(());
    for minor in 0..20 {
        let share = Share::new(&engine.device((8, minor)), 1);
        let _entered = share.enter();
        engine.data(note_thread(&threads)).await;
        engine.metadata(Identity::Server, note_thread(&threads)).await.unwrap();
        // The threads sleep again.
        while !(share.lanes().data.is_idle() && share.lanes().metadata.is_idle()) {
            thread::yield_now();
        }
    }
    drop(engine.device((8, 20)));
    let ended = async {
        while Arc::strong_count(&threads) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), ended).await.expect("they end");
    assert_eq!(engine.all().len(), 2);
}

#[tokio::test]
async fn device_with_work_or_in_use_is_kept_when_another_comes() {
    let engine = engine(1, 4);
    let (in_use, number) = (engine.device((8, 0)), (8, 1));
    let held = hold_threads(&engine, &Share::new(&engine.device(number), 1), 2);
    drop(engine.device((8, 2)));
    assert!(engine.device((8, 0)) == in_use);
    let mut shutdown = pin!(engine.shutdown());
    assert!(tokio::time::timeout(Duration::from_millis(20), shutdown.as_mut()).await.is_err());
    drop(held);
    shutdown.await;
}

#[tokio::test]
async fn work_is_done_while_devices_come_and_go() {
    // The queue of each client takes all of its jobs.
    let engine = engine(2, 500);
    let done = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        for thread in 0..4 {
            let (engine, done) = (&engine, &done);
            scope.spawn(move || {
                for nth in 0..500 {
                    let device = engine.device((8, (nth * 5 + thread) % 7));
                    let entered = Share::new(&device, u128::from(thread)).enter();
                    drop(device);
                    let done = Arc::clone(done);
                    assert!(engine.leave_to_data(move || {
                        done.fetch_add(1, Ordering::SeqCst);
                    }));
                    drop(entered);
                }
            });
        }
    });
    engine.shutdown().await;
    assert_eq!(done.load(Ordering::SeqCst), 2_000);
}

#[tokio::test]
async fn work_for_a_device_is_done_though_the_system_refuses_its_threads() {
    let name = "work_for_a_device_is_done_though_the_system_refuses_its_threads";
    if ran_in_own_process(&format!("engine::tests::{name}")) {
        return;
    }
    let engine = engine(2, 4);
    // A thread that starts has more mapped than one that sleeps.
    let own = engine.own_device().0.clone();
    while !(own.data.is_idle() && own.metadata.is_idle()) {
        thread::yield_now();
    }
    let limit = getrlimit(Resource::As);
    let mapped = fs::read_to_string("/proc/self/statm").unwrap();
    let mapped: u64 = mapped.split(' ').next().unwrap().parse().unwrap();
    // Less than a stack beyond what is mapped.
    let current = Some(mapped * rustix::param::page_size() as u64 + (1 << 20));
    setrlimit(Resource::As, Rlimit { current, ..limit }).unwrap();
    let asked = Instant::now();
    let device = engine.device((8, 0));
    let entered = Share::new(&device, 1).enter();
    assert_eq!(engine.data(|| 7).await, 7);
    drop(entered);
    setrlimit(Resource::As, limit).unwrap();
    assert!(device == *engine.own_device());
    let devices = [(8, 0), (8, 1)].map(|number| engine.device(number));
    let is_soon = asked.elapsed() < FIRST_THREAD_RETRY;
    let are_own = devices.iter().all(|device| device == engine.own_device());
    assert!(are_own || !is_soon, "the system is not asked again at once");
    thread::sleep(FIRST_THREAD_RETRY);
    assert_eq!(engine.device((8, 0)).number(), (8, 0), "the system has threads again");
}

#[tokio::test]
async fn a_stalled_device_delays_no_other() {
    let engine = engine(4, 128);
    let stuck = Share::new(&engine.device((8, 0)), 1);
    let held = hold_threads(&engine, &stuck, 100);
    let other = Share::new(&engine.device((8, 16)), 1);
    let (answer, answered) = oneshot::channel();
    let task = Box::pin(async move {
        answer.send(thread_name()).unwrap();
    });
    other.begin_data(task).await;
    let name = tokio::time::timeout(Duration::from_secs(10), answered).await.unwrap().unwrap();
    assert_eq!(name, "spillway-data-0");
    drop(held);
}

#[tokio::test]
async fn work_of_a_task_elsewhere_holds_no_thread_of_its_own_device() {
    let engine = Arc::new(engine(1, 8));
    let [own, stuck] = [(8, 0), (8, 16)].map(|number| engine.device(number));
    let held = hold_threads(&engine, &Share::new(&stuck, 1), 1);
    let (within, answer) = (Arc::clone(&engine), oneshot::channel());
    let (begun, has_begun) = oneshot::channel();
    let task = Box::pin(async move {
        assert!(Share::elsewhere(&own).is_none(), "the task is there");
        let share = Share::elsewhere(&stuck).unwrap();
        assert_eq!(share.client(), 7);
        begun.send(own).unwrap_or_else(|_| panic!("the test waits"));
        answer.0.send(share.run(within.data(thread_name)).await).unwrap();
    });
    Share::new(&engine.device((8, 0)), 7).begin_data(task).await;
    let own = has_begun.await.unwrap();
    let other = Share::new(&own, 1).run(engine.data(|| 1));
    assert_eq!(tokio::time::timeout(Duration::from_secs(10), other).await, Ok(1));
    drop(held);
    assert_eq!(answer.1.await.unwrap(), "spillway-data-0");
}

/// It may hold what others wait for: a file's lock, or their WRITEs.
#[tokio::test]
async fn work_of_a_task_elsewhere_goes_on_while_its_own_device_is_stuck() {
    for kind in [LaneKind::Data, LaneKind::Metadata] {
        let engine = Arc::new(engine(1, 8));
        let [own, other] = [(8, 0), (8, 16)].map(|number| Share::new(&engine.device(number), 7));
        let (open, hold) = gate();
        assert!(own.leave_to(kind, hold));
        // A task that was woken would go before it.
        while own.lanes().of(kind).queued() > 0 {
            thread::yield_now();
        }
        let (gate, within) = (Arc::new(Notify::new()), Arc::clone(&engine));
        let (notified, (sender, reply)) = (Arc::clone(&gate), oneshot::channel());
        let (elsewhere, at_end) = (other.clone(), oneshot::channel());
        let task = async move {
            let work = async {
                within.ask_for_metadata_thread().await;
                notified.notified().await;
                sender.send(thread_name()).unwrap();
            };
            elsewhere.run(work).await;
            // That of its own device again.
            tokio::task::yield_now().await;
            at_end.0.send(()).unwrap();
        };
        match kind {
            LaneKind::Data => own.begin_here(task),
            LaneKind::Metadata => own.begin_metadata_here(task),
        }
        gate.notify_one();
        let name = tokio::time::timeout(Duration::from_secs(10), reply).await.unwrap().unwrap();
        assert!(["spillway-data-0", "spillway-meta-0"].contains(&name.as_str()), "{name}");
        let mut at_end = at_end.1;
        while own.lanes().of(kind).queued() == 0 {
            thread::yield_now();
        }
        assert!(at_end.try_recv().is_err(), "it waits for a thread of its own device");
        drop(open);
        at_end.await.unwrap();
    }
}

#[tokio::test]
async fn clients_share_the_threads_of_a_device() {
    let engine = engine(4, 128);
    let device = engine.device((8, 0));
    let held = hold_threads(&engine, &Share::new(&device, 1), 100);
    let answers_another_client = async || {
        let (answer, answered) = oneshot::channel();
        let task = Box::pin(async move {
            answer.send(()).unwrap();
        });
        Share::new(&device, 2).begin_data(task).await;
        tokio::time::timeout(Duration::from_secs(10), answered).await.unwrap().unwrap();
    };
    answers_another_client().await;
    let began = Instant::now();
    while engine.data_queued() > 97 {
        assert!(began.elapsed() < Duration::from_secs(10), "fewer than three quarters");
        thread::yield_now();
    }
    // The thread that answers this finds the jobs of the first client in the queue.
    answers_another_client().await;
    assert_eq!(engine.data_queued(), 97, "three quarters of the threads, and no more");
    drop(held);
    engine.shutdown().await;
}

#[tokio::test]
async fn thread_is_wanted_only_for_work_that_none_is_on_its_way_to() {
    let engine = engine(2, 128);
    let share = Share::new(&engine.device((8, 0)), 1);
    let wants_thread = || share.wants_thread(LaneKind::Data);
    let held = hold_threads(&engine, &share, 2);
    assert!(!wants_thread(), "a thread was started for each");
    drop(held);
    // Threads are woken, and find work that another has taken.
    for _ in 0..1000 {
        drop(hold_threads(&engine, &share, 2));
        while engine.data_queued() > 2 {
            thread::yield_now();
        }
    }
    while engine.data_queued() > 0 {
        thread::yield_now();
    }
    let mut held = hold_threads(&engine, &share, 2);
    while engine.data_queued() > 0 {
        thread::yield_now();
    }
    assert!(!wants_thread());
    held.extend(hold_threads(&engine, &share, 1));
    assert!(wants_thread(), "both are held");
    drop(held);
    engine.shutdown().await;
}

#[tokio::test]
async fn work_of_a_client_with_all_its_threads_wants_one_of_those() {
    let engine = engine(4, 128);
    let device = engine.device((8, 0));
    let [greedy, other] = [1, 2].map(|client| Share::new(&device, client));
    let held = hold_threads(&engine, &greedy, 3);
    while engine.data_queued() > 0 {
        thread::yield_now();
    }
    assert!(!greedy.wants_thread(LaneKind::Data));
    let left = hold_threads(&engine, &greedy, 1);
    assert!(greedy.wants_thread(LaneKind::Data));
    assert!(!other.wants_thread(LaneKind::Data), "its thread cannot take that");
    let others = hold_threads(&engine, &other, 2);
    assert!(other.wants_thread(LaneKind::Data), "there is one thread for two");
    let third = Share::new(&device, 3);
    assert!(third.wants_thread(LaneKind::Data), "another client's work waits");
    drop((held, left, others));
    engine.shutdown().await;
}

#[tokio::test]
async fn waiting_clients_take_turns() {
    let engine = engine(1, 128);
    let device = engine.device((8, 0));
    let held = hold_threads(&engine, &Share::new(&device, 9), 1);
    while engine.data_queued() > 0 {
        thread::yield_now();
    }
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    for (client, jobs) in [(1, 4), (2, 2), (3, 1)] {
        for _ in 0..jobs {
            let order = Arc::clone(&order);
            let _entered = Share::new(&device, client).enter();
            assert!(engine.leave_to_data(move || order.lock().unwrap().push(client)));
        }
    }
    drop(held);
    engine.shutdown().await;
    assert_eq!(*order.lock().unwrap(), [1, 2, 3, 1, 2, 1, 1]);
}

/// Waits until threads have taken all jobs of the data lanes.
fn wait_until_taken(engine: &Engine) {
    while engine.data_queued() > 0 {
        thread::yield_now();
    }
}

#[tokio::test]
async fn task_that_was_given_a_lock_does_not_wait_for_the_backlog_of_its_client() {
    let engine = engine(4, 128);
    let device = engine.device((8, 0));
    let [busy, other] = [1, 2].map(|client| Share::new(&device, client));
    let mut held = hold_threads(&engine, &busy, 3);
    wait_until_taken(&engine);
    let lock = Arc::new(tokio::sync::Mutex::new(()));
    let guard = lock.lock().await;
    for kind in [LaneKind::Data, LaneKind::Metadata] {
        let wanted = Arc::clone(&lock);
        let task = async move {
            drop(wanted.lock().await);
        };
        match kind {
            LaneKind::Data => busy.begin_here(task),
            LaneKind::Metadata => busy.begin_metadata_here(task),
        }
    }
    held.extend(hold_threads(&engine, &busy, 100));
    drop(guard);
    let (sender, locked) = oneshot::channel();
    let task = async move {
        drop(lock.lock().await);
        sender.send(()).unwrap();
    };
    other.begin_here(task);
    drop(held.remove(0));
    let locked = tokio::time::timeout(Duration::from_secs(10), locked).await;
    locked.expect("it has the lock before the backlog is done").unwrap();
    drop(held);
    engine.shutdown().await;
}

#[tokio::test]
async fn tasks_that_are_woken_all_the_time_leave_turns_to_other_work_of_their_client() {
    let engine = engine(1, 16);
    let is_over = Arc::new(AtomicBool::new(false));
    for _ in 0..3 {
        let is_over = Arc::clone(&is_over);
        let task = async move {
            while !is_over.load(Ordering::SeqCst) {
                tokio::task::yield_now().await;
            }
        };
        engine.own.begin_data(task).await;
    }
    let job = engine.data(move || is_over.store(true, Ordering::SeqCst));
    tokio::time::timeout(Duration::from_secs(10), job).await.expect("the job has its turn");
    engine.shutdown().await;
}

#[tokio::test]
async fn task_that_holds_something_moves_to_a_thread_before_queued_work() {
    let engine = Arc::new(engine(1, 16));
    let held = hold_threads(&engine, &engine.own, 1);
    wait_until_taken(&engine);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = |name| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap().push(name)
    };
    assert!(engine.leave_to_data(note("job")));
    let tasks = [("asker", Rank::Asker), ("holder", Rank::Holder), ("second", Rank::Holder)];
    for (name, rank) in tasks {
        let (within, note) = (Arc::clone(&engine), note(name));
        engine.own.begin_here(async move {
            match rank {
                Rank::Asker => within.ask_for_data_thread().await,
                Rank::Holder => within.move_to_data_thread().await,
            }
            note();
        });
    }
    drop(held);
    engine.shutdown().await;
    assert_eq!(*order.lock().unwrap(), ["holder", "job", "second", "asker"]);
}

#[tokio::test]
async fn task_that_gives_way_goes_on_behind_queued_work() {
    let engine = engine(1, 16);
    let held = hold_threads(&engine, &engine.own, 1);
    wait_until_taken(&engine);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = |name| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap().push(name)
    };
    let (before, after) = (note("before"), note("after"));
    let task = async move {
        before();
        Engine::give_way().await;
        after();
    };
    engine.own.begin_data(task).await;
    assert!(engine.leave_to_data(note("job")));
    drop(held);
    engine.shutdown().await;
    assert_eq!(*order.lock().unwrap(), ["before", "job", "after"]);
}

#[tokio::test]
async fn a_full_queue_of_one_client_delays_no_other() {
    let engine = engine(4, 1);
    let device = engine.device((8, 0));
    let greedy = Share::new(&device, 1);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.extend(hold_threads(&engine, &greedy, 1));
        while engine.data_queued() > 0 {
            thread::yield_now();
        }
    }
    held.extend(hold_threads(&engine, &greedy, 1));
    let entered = greedy.enter();
    assert!(!engine.leave_to_data(|| ()), "its queue is full");
    drop(entered);
    let _entered = Share::new(&device, 2).enter();
    assert!(engine.leave_to_data(|| ()));
}

#[tokio::test]
async fn tasks_that_are_woken_here_go_on_here_before_the_next_step() {
    let engine = Arc::new(engine(2, 8));
    let (log, mut lines) = tokio::sync::mpsc::unbounded_channel();
    let mut wakers = Vec::new();
    for nth in 0..4 {
        let (waker, woken) = oneshot::channel::<()>();
        let log = log.clone();
        let task = async move {
            woken.await.unwrap();
            let at_end = log.clone();
            Engine::after_tasks_woken_here(move || {
                at_end.send((10 + nth, thread::current().id())).unwrap();
            });
            log.send((nth, thread::current().id())).unwrap();
        };
        engine.own.begin_here(task);
        wakers.push(waker);
    }
    let task = {
        let engine = Arc::clone(&engine);
        async move {
            engine.ask_for_data_thread().await;
            engine.wake_here(|| wakers.into_iter().for_each(|waker| waker.send(()).unwrap()));
            let at_once = log.clone();
            Engine::after_tasks_woken_here(move || {
                at_once.send((20, thread::current().id())).unwrap();
            });
            log.send((30, thread::current().id())).unwrap();
        }
    };
    engine.own.begin_here(task);
    let mut seen = Vec::new();
    while let Some(line) = lines.recv().await {
        seen.push(line);
    }
    assert_eq!(
        seen.iter().map(|line| line.0).collect::<Vec<_>>(),
        [0, 1, 2, 3, 10, 11, 12, 13, 20, 30]
    );
    assert!(seen.iter().all(|line| line.1 == seen[9].1), "on one thread");
}

#[tokio::test]
async fn a_task_that_is_woken_here_and_blocks_holds_up_no_other_and_no_job() {
    for asks in [false, true] {
        let engine = Arc::new(engine(2, 8));
        let (log, mut lines) = tokio::sync::mpsc::unbounded_channel();
        let [(first, first_woken), (second, second_woken), (third, third_woken)] =
            [(); 3].map(|()| oneshot::channel::<()>());
        let [at_end, by_third] = [log.clone(), log.clone()];
        let task = async move {
            first_woken.await.unwrap();
            Engine::after_tasks_woken_here(move || at_end.send("job").unwrap());
        };
        engine.own.begin_here(task);
        let (open, hold) = gate();
        let blocking = Arc::clone(&engine);
        let task = async move {
            second_woken.await.unwrap();
            if asks {
                blocking.ask_for_data_thread().await;
                hold();
            } else {
                blocking.data(hold).await;
            }
        };
        engine.own.begin_here(task);
        let task = async move {
            third_woken.await.unwrap();
            by_third.send("third").unwrap();
        };
        engine.own.begin_here(task);
        let waking = Arc::clone(&engine);
        let task = async move {
            waking.ask_for_data_thread().await;
            waking.wake_here(|| {
                [first, second, third].into_iter().for_each(|task| task.send(()).unwrap())
            });
            log.send("waking task").unwrap();
        };
        engine.own.begin_here(task);
        for expected in ["third", "job", "waking task"] {
            let line = tokio::time::timeout(Duration::from_secs(10), lines.recv()).await;
            assert_eq!(line.expect("it waits for a blocked task"), Some(expected));
        }
        drop(open);
    }
}

#[tokio::test]
async fn a_task_that_is_woken_here_may_wake_others_and_loses_no_job() {
    let engine = Arc::new(engine(2, 8));
    let (log, mut lines) = tokio::sync::mpsc::unbounded_channel();
    let (first, first_woken) = oneshot::channel::<()>();
    let (second, second_woken) = oneshot::channel::<()>();
    let (at_end, by_second) = (log.clone(), log.clone());
    let task = async move {
        second_woken.await.unwrap();
        by_second.send("second").unwrap();
    };
    engine.own.begin_here(task);
    let waking = Arc::clone(&engine);
    let task = async move {
        first_woken.await.unwrap();
        Engine::after_tasks_woken_here(move || at_end.send("at the end").unwrap());
        waking.wake_here(|| second.send(()).unwrap());
    };
    engine.own.begin_here(task);
    let waking = Arc::clone(&engine);
    let task = async move {
        waking.ask_for_data_thread().await;
        waking.wake_here(|| first.send(()).unwrap());
        drop(log);
    };
    engine.own.begin_here(task);
    let mut seen = Vec::new();
    while let Some(line) = lines.recv().await {
        seen.push(line);
    }
    seen.sort_unstable();
    assert_eq!(seen, ["at the end", "second"]);
}

/// Runs `task` by a job of a data thread that stays with it. Returns whether it ended there, and
/// where it ended.
async fn run_here(
    engine: &Engine,
    patience: Duration,
    task: impl Future<Output = ()> + Send + 'static,
) -> (bool, ThreadId, ThreadId) {
    let (staying, stayed) = oneshot::channel();
    let (ended, end) = oneshot::channel();
    let share = engine.own.clone();
    let task = async move {
        task.await;
        ended.send(thread::current().id()).unwrap();
    };
    assert!(engine.own.leave_to(LaneKind::Data, move || {
        let has_ended = share.run_here(LaneKind::Data, task, patience);
        staying.send((has_ended, thread::current().id())).unwrap();
    }));
    let (has_ended, thread) = stayed.await.unwrap();
    (has_ended, thread, end.await.unwrap())
}

#[tokio::test]
async fn a_task_goes_on_on_the_thread_that_waits_for_it() {
    let engine = engine(4, 4);
    for pause in [Duration::ZERO, Duration::from_millis(5)] {
        let (wake, woken) = oneshot::channel();
        thread::spawn(move || {
            thread::sleep(pause);
            wake.send(()).unwrap();
        });
        let task = async { woken.await.unwrap() };
        let (has_ended, waited, ended) = run_here(&engine, Duration::from_secs(10), task).await;
        assert!(has_ended);
        assert_eq!(ended, waited, "after {pause:?}");
    }
}

#[tokio::test]
async fn a_task_that_waits_too_long_goes_on_in_its_lane() {
    let engine = engine(2, 4);
    let (wake, woken) = oneshot::channel();
    let (gave_up, given_up) = mpsc::channel();
    thread::spawn(move || {
        // Not before the thread has left it.
        given_up.recv().unwrap();
        wake.send(()).unwrap();
    });
    let (ended, end) = oneshot::channel();
    let share = engine.own.clone();
    assert!(engine.own.leave_to(LaneKind::Data, move || {
        let task = async move {
            woken.await.unwrap();
            ended.send(thread_name()).unwrap();
        };
        assert!(!share.run_here(LaneKind::Data, task, Duration::from_millis(1)));
        gave_up.send(()).unwrap();
    }));
    let thread = tokio::time::timeout(Duration::from_secs(10), end).await.unwrap().unwrap();
    assert!(thread.starts_with("spillway-data"), "{thread}");
}

#[tokio::test]
async fn tasks_woken_by_a_staying_task_do_not_wait_for_its_thread() {
    let engine = engine(2, 4);
    let (wake, woken) = oneshot::channel();
    let (ended, end) = oneshot::channel();
    let waiting = async move {
        woken.await.unwrap();
        ended.send(()).unwrap();
    };
    engine.own.begin_data(waiting).await;
    let (leave, stays) = mpsc::channel::<()>();
    let share = engine.own.clone();
    assert!(engine.own.leave_to(LaneKind::Data, move || {
        assert!(share.run_here(
            LaneKind::Data,
            async { wake.send(()).unwrap() },
            Duration::from_millis(1)
        ));
        // The thread stays for another task.
        let _left = stays.recv();
    }));
    tokio::time::timeout(Duration::from_secs(10), end).await.expect("it goes on").unwrap();
    drop(leave);
}

#[tokio::test]
async fn task_woken_by_a_job_does_not_wait_for_the_end_of_the_job() {
    let engine = engine(2, 4);
    let (wake, woken) = oneshot::channel();
    let (ended, end) = oneshot::channel();
    let waiting = async move {
        woken.await.unwrap();
        ended.send(()).unwrap();
    };
    engine.own.begin_here(waiting);
    let (open, hold) = gate();
    assert!(engine.leave_to_data(move || {
        wake.send(()).unwrap();
        hold();
    }));
    tokio::time::timeout(Duration::from_secs(10), end).await.expect("it goes on").unwrap();
    drop(open);
}
