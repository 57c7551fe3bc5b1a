use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Wake;
use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, yield_now};

use super::*;

const A: ClientId = 1;
const B: ClientId = 2;
const ROUND_NS: u64 = QUANTUM_NS.unsigned_abs();

/// Flows under a clock of the test.
struct World {
    flows: Flows,
    now: u64,
}

impl World {
    fn new(clients: &[ClientId]) -> Self {
        let mut flows = Flows::default();
        for client in clients {
            flows.enter(*client, Arc::default());
        }
        Self { flows, now: 1 }
    }

    /// Two clients that have work.
    fn shared() -> Self {
        let mut world = World::new(&[A, B]);
        assert!(world.takes(A, 0) && world.takes(B, 0));
        world
    }

    fn begin(&mut self, client: ClientId, number: &mut Option<u64>) -> bool {
        let now = Moment::at_nanoseconds(self.now);
        self.flows.begin(client, number, now, Waker::noop()).is_some()
    }

    /// Whether new work of a client may go on; it takes `ns`.
    fn takes(&mut self, client: ClientId, ns: u64) -> bool {
        let mut number = None;
        let begins = self.begin(client, &mut number);
        match number {
            Some(number) => self.flows.forget(client, number),
            None => self.works(client, ns),
        }
        begins
    }

    fn works(&mut self, client: ClientId, ns: u64) {
        self.now += ns;
        self.flows.charge(client, ns);
    }

    fn next_round(&mut self) -> usize {
        self.flows.next_round(Moment::at_nanoseconds(self.now)).len()
    }
}

#[test]
fn a_client_waits_when_its_quantum_is_used_and_the_other_does_not() {
    let mut world = World::shared();
    assert!(world.takes(A, ROUND_NS / 2));
    assert!(world.takes(A, ROUND_NS / 2));
    assert!(!world.takes(A, 1));
    assert!(world.takes(B, 1));
    world.next_round();
    assert!(world.takes(A, 1));
}

#[test]
fn a_client_alone_has_a_longer_quantum() {
    let mut world = World::new(&[A, B]);
    for _ in 0..4 {
        assert!(world.takes(A, ROUND_NS));
    }
    assert!(world.takes(B, 1));
    assert!(!world.takes(A, 1), "the thread is shared");
    world.next_round();
    world.now += ACTIVE_NS;
    for _ in 0..5 {
        world.next_round();
    }
    assert!(world.takes(A, 3 * ROUND_NS));
    assert!(world.takes(A, 1), "the other has no work");
}

#[test]
fn an_excess_is_deducted_from_later_quanta_up_to_a_bound() {
    let mut world = World::shared();
    assert!(world.takes(A, 3 * ROUND_NS));
    for _ in 0..2 {
        world.next_round();
        assert!(world.takes(B, 0));
        assert!(!world.takes(A, 1));
    }
    world.next_round();
    assert!(world.takes(A, 1000 * ROUND_NS));
    let rounds = (0..).find(|_| {
        world.next_round();
        world.takes(A, 0)
    });
    assert_eq!(rounds, Some(usize::try_from(DEBT_ROUNDS_MAX).unwrap() - 1));
}

/// Both clients work half of the time here, and `elsewhere_ns` of each millisecond for A on other
/// threads, for some time.
fn after_work_elsewhere(elsewhere_ns: u64) -> World {
    let mut world = World::shared();
    for _ in 0..20 * MEASUREMENT_NS / 1_000_000 {
        for client in [A, B] {
            world.works(client, 500_000);
        }
        let account = &world.flows.by_client[&A].total_ns;
        account.fetch_add(elsewhere_ns, Ordering::Relaxed);
        let _have_work = [A, B].map(|client| world.takes(client, 0));
        world.next_round();
    }
    for _ in 0..2 * DEBT_ROUNDS_MAX {
        world.next_round();
    }
    world
}

#[test]
fn a_client_with_work_on_other_threads_has_a_shorter_quantum() {
    let mut world = after_work_elsewhere(1_000_000);
    assert!(world.takes(A, QUANTUM_MIN_NS.unsigned_abs()));
    assert!(!world.takes(A, 1));
    assert!(world.takes(B, QUANTUM_MAX_NS.unsigned_abs() - 1));
    assert!(world.takes(B, 1));
    assert!(!world.takes(B, 1));
}

#[test]
fn clients_with_equal_shares_have_equal_quanta() {
    let mut world = after_work_elsewhere(0);
    for client in [A, B] {
        assert!(world.takes(client, ROUND_NS));
        assert!(!world.takes(client, 1));
    }
}

#[test]
fn a_client_with_a_small_share_shortens_no_quanta() {
    let mut world = World::shared();
    for _ in 0..4 * MEASUREMENT_NS / 1_000_000 {
        world.works(A, 990_000);
        world.works(B, 10_000);
        let _have_work = [A, B].map(|client| world.takes(client, 0));
        world.next_round();
    }
    assert_eq!(world.flows.by_client[&A].shared_quantum_ns, QUANTUM_NS);
}

#[test]
fn a_quantum_changes_in_steps_and_within_limits() {
    let busy = WHOLE_SHARE;
    let next = |share, least| next_quantum_ns(QUANTUM_NS, share, least, busy);
    assert_eq!(next(busy, busy), QUANTUM_NS);
    assert_eq!(next(busy, busy / 8 * 7), QUANTUM_NS);
    assert_eq!(next(busy, busy / 2), 80_000);
    assert_eq!(next(busy / 2, busy / 2), 125_000);
    // More than one and less than another.
    assert_eq!(next(busy / 2, busy / 4), QUANTUM_NS);
    assert_eq!(next_quantum_ns(QUANTUM_MIN_NS, busy, busy / 2, busy), QUANTUM_MIN_NS);
    assert_eq!(next_quantum_ns(QUANTUM_MAX_NS, busy / 2, busy / 2, busy), QUANTUM_MAX_NS);
}

#[test]
fn a_shortened_quantum_is_restored_beside_a_client_with_a_small_share() {
    let mut world = after_work_elsewhere(1_000_000);
    assert_eq!(world.flows.by_client[&A].shared_quantum_ns, QUANTUM_MIN_NS);
    for _ in 0..20 * MEASUREMENT_NS / 1_000_000 {
        world.works(A, 990_000);
        world.works(B, 10_000);
        let _have_work = [A, B].map(|client| world.takes(client, 0));
        world.next_round();
    }
    let times = [A, B].map(|client| world.flows.by_client[&client].shared_quantum_ns);
    assert_eq!(times, [QUANTUM_NS; 2]);
}

#[test]
fn a_client_without_a_recent_measurement_has_the_quantum_of_a_new_one() {
    let mut world = after_work_elsewhere(1_000_000);
    assert_eq!(world.flows.by_client[&A].shared_quantum_ns, QUANTUM_MIN_NS);
    world.now += MEASUREMENT_AGE_MAX_NS;
    for client in [A, B] {
        world.works(client, 0);
        assert!(world.takes(client, 0));
    }
    world.next_round();
    assert_eq!(world.flows.by_client[&A].shared_quantum_ns, QUANTUM_NS);
}

#[test]
fn an_account_lasts_as_long_as_a_connection_on_any_thread() {
    let ledger = Arc::new(Ledger::default());
    let threads = [(); 2].map(|()| Arc::new(FairQueue::new(&ledger)));
    let accounts = || ledger.0.lock().unwrap().len();
    let handles = [threads[0].join(A), threads[0].join(A), threads[1].join(A), threads[1].join(B)];
    let total = |thread: &FairQueue| Arc::clone(&thread.lock().by_client[&A].total_ns);
    assert!(Arc::ptr_eq(&total(&threads[0]), &total(&threads[1])));
    assert_eq!(accounts(), 2);
    let [first, second, third, fourth] = handles;
    drop((first, second, fourth));
    assert_eq!(accounts(), 1);
    drop(third);
    assert_eq!(accounts(), 0);
}

#[test]
fn work_that_waits_goes_on_in_the_order_in_which_it_came() {
    let mut world = World::shared();
    assert!(world.takes(A, ROUND_NS));
    let (mut first, mut second) = (None, None);
    assert!(!world.begin(A, &mut first));
    assert!(!world.begin(A, &mut second));
    assert!(world.flows.is_due());
    assert_eq!(world.next_round(), 2);
    let mut third = None;
    assert!(!world.begin(A, &mut third), "others have waited for longer");
    assert!(world.begin(A, &mut first));
    world.works(A, ROUND_NS);
    assert!(!world.begin(A, &mut second));
    assert_eq!(world.next_round(), 2);
    assert!(world.begin(A, &mut second));
    world.works(A, 1);
    assert!(world.begin(A, &mut third));
    assert!(!world.flows.is_due());
}

#[test]
fn work_that_was_given_up_is_not_waited_for() {
    let mut world = World::shared();
    assert!(world.takes(A, ROUND_NS));
    let mut number = None;
    assert!(!world.begin(A, &mut number));
    world.flows.forget(A, number.unwrap());
    assert!(!world.flows.is_due());
    assert_eq!(world.next_round(), 0);
    world.flows.leave(A);
    assert!(!world.flows.by_client.contains_key(&A));
    assert_eq!(world.flows.connections, 1);
    world.next_round();
}

#[test]
fn only_a_few_of_many_connections_are_woken_in_a_round() {
    let mut world = World::shared();
    assert!(world.takes(A, ROUND_NS));
    for _ in 0..3 * WOKEN_MAX {
        assert!(!world.begin(A, &mut None));
    }
    assert_eq!(world.next_round(), WOKEN_MAX);
    assert!(world.flows.is_due());
}

#[test]
fn a_connection_that_is_woken_early_does_not_overtake_those_that_have_waited_longer() {
    let mut world = World::shared();
    assert!(world.takes(A, ROUND_NS));
    let (mut first, mut second) = (None, None);
    assert!(!world.begin(A, &mut first) && !world.begin(A, &mut second));
    world.next_round();
    assert!(!world.begin(A, &mut second));
    assert!(world.begin(A, &mut first));
    assert!(world.begin(A, &mut second));
}

#[test]
fn a_client_that_reconnects_has_one_quantum_in_a_round() {
    let mut world = World::shared();
    for _ in 0..3 {
        assert!(world.takes(A, ROUND_NS));
        world.flows.leave(A);
        world.flows.enter(A, Arc::default());
    }
    assert!(world.takes(A, 3 * ROUND_NS));
    world.next_round();
    assert!(!world.takes(A, 1), "two more are owed");
}

/// The connections that were woken, of a thread that is not real.
#[derive(Default)]
struct Ready(Mutex<VecDeque<usize>>);

/// Wakes a connection of such a thread.
struct Awakes {
    connection: usize,
    ready: Arc<Ready>,
}

impl Wake for Awakes {
    fn wake(self: Arc<Self>) {
        let mut ready = self.ready.0.lock().unwrap();
        if !ready.contains(&self.connection) {
            ready.push_back(self.connection);
        }
    }
}

/// A connection that always has calls, each of so many nanoseconds.
struct Busy {
    client: ClientId,
    call_ns: u64,
    number: Option<u64>,
    waker: Waker,
    worked_ns: u64,
}

/// A thread under a clock of the test.
struct Thread {
    world: World,
    ready: Arc<Ready>,
    connections: Vec<Busy>,
}

impl Thread {
    fn new(connections: &[(ClientId, u64)], accounts: &HashMap<ClientId, Arc<AtomicU64>>) -> Self {
        let mut world = World::new(&[]);
        let ready = Arc::new(Ready::default());
        let busy = |(connection, &(client, call_ns)): (usize, &(ClientId, u64))| {
            drop(world.flows.enter(client, Arc::clone(&accounts[&client])));
            let waker = Waker::from(Arc::new(Awakes { connection, ready: Arc::clone(&ready) }));
            waker.wake_by_ref();
            Busy { client, call_ns, number: None, waker, worked_ns: 0 }
        };
        let connections = connections.iter().enumerate().map(busy).collect();
        Self { world, ready, connections }
    }

    /// A few tasks, and a round.
    fn works(&mut self) {
        for _ in 0..16 {
            let next = self.ready.0.lock().unwrap().pop_front();
            let Some(next) = next else { break };
            let Busy { client, call_ns, number, waker, worked_ns } = &mut self.connections[next];
            let world = &mut self.world;
            let began = world.now;
            let now = Moment::at_nanoseconds(began);
            let Some(ends_at) = world.flows.begin(*client, number, now, waker) else { continue };
            let calls = (ends_at - began).div_ceil(*call_ns);
            *worked_ns += calls * *call_ns;
            world.works(*client, calls * *call_ns);
            waker.wake_by_ref();
        }
        self.world.now += 1_000;
        let now = Moment::at_nanoseconds(self.world.now);
        self.world.flows.next_round(now).into_iter().for_each(Waker::wake);
    }
}

/// The time that each of the threads has worked for a client.
fn worked_ns(threads: &[Thread], client: ClientId) -> u64 {
    let all = threads.iter().flat_map(|thread| &thread.connections);
    all.filter(|busy| busy.client == client).map(|busy| busy.worked_ns).sum()
}

/// Lets threads work until a time.
fn work(threads: &mut [Thread], until_ns: u64) {
    while let Some(thread) = threads.iter_mut().min_by_key(|thread| thread.world.now)
        && thread.world.now < until_ns
    {
        thread.works();
    }
}

/// Time that a call takes on its thread, in nanoseconds.
const CALL_NS: std::ops::Range<u64> = 1_000..200_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn clients_of_a_thread_have_equal_shares_and_every_connection_goes_on(
        connections in proptest::collection::vec((0..4_u128, CALL_NS), 1..40),
    ) {
        let accounts = (0..4).map(|client| (client, Arc::default())).collect();
        let mut threads = [Thread::new(&connections, &accounts)];
        work(&mut threads, 500_000_000);
        let [thread] = &threads;
        prop_assert!(thread.connections.iter().all(|busy| busy.worked_ns > 0));
        let shares: Vec<_> =
            (0..4).map(|client| worked_ns(&threads, client)).filter(|share| *share > 0).collect();
        let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
        prop_assert!(least * 10 >= most * 8, "{shares:?}");
    }

    #[test]
    fn each_client_that_has_used_time_is_charged_once_and_no_other_is(
        steps in proptest::collection::vec((0..3_u128, 0..4), 0..100),
    ) {
        let mut world = World::new(&[]);
        for (client, step) in steps {
            let is_there = world.flows.by_client.contains_key(&client);
            match step {
                0 => drop(world.flows.enter(client, Arc::default())),
                1 if is_there => drop(world.flows.leave(client)),
                2 if is_there => drop(world.takes(client, ROUND_NS)),
                _ => drop(world.next_round()),
            }
            let mut charged = world.flows.charged.clone();
            charged.sort_unstable();
            let flows = world.flows.by_client.iter();
            let mut expected: Vec<_> =
                flows.filter(|(_, flow)| flow.is_charged).map(|(id, _)| *id).collect();
            expected.sort_unstable();
            prop_assert_eq!(charged, expected);
        }
    }

    #[test]
    fn one_connection_beside_many_on_all_threads_has_four_fifths_of_an_equal_share(
        many in proptest::collection::vec(CALL_NS, 2..32),
        one in CALL_NS,
    ) {
        let accounts = [A, B].map(|client| (client, Arc::default())).into();
        let on = |parity| many.iter().skip(parity).step_by(2).map(|call_ns| (A, *call_ns));
        let first: Vec<_> = on(0).chain([(B, one)]).collect();
        let second: Vec<_> = on(1).collect();
        let mut threads = [Thread::new(&first, &accounts), Thread::new(&second, &accounts)];
        work(&mut threads, 500_000_000);
        let [had, others] = [B, A].map(|client| worked_ns(&threads, client));
        prop_assert!(had * 10 >= (had + others) / 2 * 8, "{had} and {others}");
    }
}

/// Work that always has more to do, a call of some 20 us at a time.
async fn busy(flow: FlowHandle, done: Rc<RefCell<Vec<ClientId>>>) {
    let client = flow.client;
    flow.schedule(async {
        loop {
            let began = Moment::now();
            while began.elapsed() < Duration::from_micros(20) {}
            done.borrow_mut().push(client);
            if flow.quantum_is_over(began) {
                yield_now().await;
            }
        }
    })
    .await;
}

#[test]
fn two_clients_get_equal_shares_of_a_thread_whatever_their_connections() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let queue = Arc::new(FairQueue::default());
    let done = Rc::new(RefCell::new(Vec::new()));
    let tasks = LocalSet::new();
    let rounds = Arc::clone(&queue);
    tasks.spawn_local(async move { rounds.run_rounds().await });
    for client in [A, A, A, A, A, A, A, A, A, A, A, A, A, A, A, B] {
        tasks.spawn_local(busy(queue.join(client), Rc::clone(&done)));
    }
    assert_eq!((queue.connections(A), queue.connections(B)), ((15, 16), (1, 16)));
    tasks.block_on(&runtime, async {
        while done.borrow().len() < 10_000 {
            yield_now().await;
        }
    });
    let done = done.borrow();
    let share = done.iter().filter(|client| **client == B).count();
    // By time, of which a call can have more if the machine is busy.
    assert!((2500..7500).contains(&share), "{share} of {}", done.len());
    drop(tasks);
    assert_eq!(queue.connections(A), (0, 0));
}
