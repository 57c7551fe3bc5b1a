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
const ROUND_NS: u64 = SHARED_NS.unsigned_abs();

/// Turns under a clock of the test.
struct World {
    state: State,
    now: u64,
}

impl World {
    fn new(clients: &[ClientId]) -> Self {
        let mut state = State::default();
        for client in clients {
            state.enter(*client, Arc::default());
        }
        Self { state, now: 1 }
    }

    /// Two clients that have work.
    fn shared() -> Self {
        let mut world = World::new(&[A, B]);
        assert!(world.takes(A, 0) && world.takes(B, 0));
        world
    }

    fn begin(&mut self, client: ClientId, number: &mut Option<u64>) -> bool {
        let now = Moment::at_nanoseconds(self.now);
        self.state.begin(client, number, now, Waker::noop()).is_some()
    }

    /// Whether new work of a client may go on; it takes `ns`.
    fn takes(&mut self, client: ClientId, ns: u64) -> bool {
        let mut number = None;
        let begins = self.begin(client, &mut number);
        match number {
            Some(number) => self.state.forget(client, number),
            None => self.works(client, ns),
        }
        begins
    }

    fn works(&mut self, client: ClientId, ns: u64) {
        self.now += ns;
        self.state.charge(client, ns);
    }

    fn next_round(&mut self) -> usize {
        self.state.next_round(Moment::at_nanoseconds(self.now)).len()
    }
}

#[test]
fn a_client_waits_when_its_time_is_used_and_the_other_does_not() {
    let mut world = World::shared();
    assert!(world.takes(A, ROUND_NS / 2));
    assert!(world.takes(A, ROUND_NS / 2));
    assert!(!world.takes(A, 1));
    assert!(world.takes(B, 1));
    world.next_round();
    assert!(world.takes(A, 1));
}

#[test]
fn a_client_alone_has_longer_turns() {
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
fn an_excess_is_owed_in_later_rounds_but_not_all_of_a_huge_one() {
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
    for _ in 0..20 * JUDGED_NS / 1_000_000 {
        for client in [A, B] {
            world.works(client, 500_000);
        }
        let account = &world.state.clients[&A].total_ns;
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
fn a_client_that_other_threads_work_for_has_less_time_here() {
    let mut world = after_work_elsewhere(1_000_000);
    assert!(world.takes(A, SHARED_MIN_NS.unsigned_abs()));
    assert!(!world.takes(A, 1));
    assert!(world.takes(B, SHARED_MAX_NS.unsigned_abs() - 1));
    assert!(world.takes(B, 1));
    assert!(!world.takes(B, 1));
}

#[test]
fn clients_that_had_the_same_have_the_same_time() {
    let mut world = after_work_elsewhere(0);
    for client in [A, B] {
        assert!(world.takes(client, ROUND_NS));
        assert!(!world.takes(client, 1));
    }
}

#[test]
fn only_a_client_that_needs_some_time_shortens_the_rounds_of_others() {
    let mut world = World::shared();
    for _ in 0..4 * JUDGED_NS / 1_000_000 {
        world.works(A, 990_000);
        world.works(B, 10_000);
        let _have_work = [A, B].map(|client| world.takes(client, 0));
        world.next_round();
    }
    assert_eq!(world.state.clients[&A].shared_ns, SHARED_NS);
}

#[test]
fn the_time_in_a_round_changes_in_steps_and_within_limits() {
    let busy = WHOLE_SHARE;
    let next = |share, least| next_shared_ns(SHARED_NS, share, least, busy);
    assert_eq!(next(busy, busy), SHARED_NS);
    assert_eq!(next(busy, busy / 8 * 7), SHARED_NS);
    assert_eq!(next(busy, busy / 2), 80_000);
    assert_eq!(next(busy / 2, busy / 2), 125_000);
    // More than one and less than another.
    assert_eq!(next(busy / 2, busy / 4), SHARED_NS);
    assert_eq!(next_shared_ns(SHARED_MIN_NS, busy, busy / 2, busy), SHARED_MIN_NS);
    assert_eq!(next_shared_ns(SHARED_MAX_NS, busy / 2, busy / 2, busy), SHARED_MAX_NS);
}

#[test]
fn a_client_whose_time_was_cut_has_it_again_beside_one_that_needs_little() {
    let mut world = after_work_elsewhere(1_000_000);
    assert_eq!(world.state.clients[&A].shared_ns, SHARED_MIN_NS);
    for _ in 0..20 * JUDGED_NS / 1_000_000 {
        world.works(A, 990_000);
        world.works(B, 10_000);
        let _have_work = [A, B].map(|client| world.takes(client, 0));
        world.next_round();
    }
    let times = [A, B].map(|client| world.state.clients[&client].shared_ns);
    assert_eq!(times, [SHARED_NS; 2]);
}

#[test]
fn a_client_that_was_not_judged_lately_has_the_time_of_a_new_one() {
    let mut world = after_work_elsewhere(1_000_000);
    assert_eq!(world.state.clients[&A].shared_ns, SHARED_MIN_NS);
    world.now += JUDGED_AGE_MAX_NS;
    for client in [A, B] {
        world.works(client, 0);
        assert!(world.takes(client, 0));
    }
    world.next_round();
    assert_eq!(world.state.clients[&A].shared_ns, SHARED_NS);
}

#[test]
fn an_account_lasts_as_long_as_a_connection_on_any_thread() {
    let ledger = Arc::new(Ledger::default());
    let threads = [(); 2].map(|()| Arc::new(Turns::new(&ledger)));
    let accounts = || ledger.0.lock().unwrap().len();
    let seats = [threads[0].seat(A), threads[0].seat(A), threads[1].seat(A), threads[1].seat(B)];
    let total = |thread: &Turns| Arc::clone(&thread.lock().clients[&A].total_ns);
    assert!(Arc::ptr_eq(&total(&threads[0]), &total(&threads[1])));
    assert_eq!(accounts(), 2);
    let [first, second, third, fourth] = seats;
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
    assert!(world.state.is_due());
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
    assert!(!world.state.is_due());
}

#[test]
fn work_that_was_given_up_is_not_waited_for() {
    let mut world = World::shared();
    assert!(world.takes(A, ROUND_NS));
    let mut number = None;
    assert!(!world.begin(A, &mut number));
    world.state.forget(A, number.unwrap());
    assert!(!world.state.is_due());
    assert_eq!(world.next_round(), 0);
    world.state.leave(A);
    assert!(!world.state.clients.contains_key(&A));
    assert_eq!(world.state.seats, 1);
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
    assert!(world.state.is_due());
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
fn a_client_that_comes_again_has_its_time_once_in_a_round() {
    let mut world = World::shared();
    for _ in 0..3 {
        assert!(world.takes(A, ROUND_NS));
        world.state.leave(A);
        world.state.enter(A, Arc::default());
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
            drop(world.state.enter(client, Arc::clone(&accounts[&client])));
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
            let Some(ends_at) = world.state.begin(*client, number, now, waker) else { continue };
            let calls = (ends_at - began).div_ceil(*call_ns);
            *worked_ns += calls * *call_ns;
            world.works(*client, calls * *call_ns);
            waker.wake_by_ref();
        }
        self.world.now += 1_000;
        let now = Moment::at_nanoseconds(self.world.now);
        self.world.state.next_round(now).into_iter().for_each(Waker::wake);
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

/// What a call takes.
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
            let is_there = world.state.clients.contains_key(&client);
            match step {
                0 => drop(world.state.enter(client, Arc::default())),
                1 if is_there => drop(world.state.leave(client)),
                2 if is_there => drop(world.takes(client, ROUND_NS)),
                _ => drop(world.next_round()),
            }
            let mut charged = world.state.charged.clone();
            charged.sort_unstable();
            let its_clients = world.state.clients.iter();
            let mut expected: Vec<_> =
                its_clients.filter(|(_, client)| client.is_charged).map(|(id, _)| *id).collect();
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
async fn busy(seat: Seat, done: Rc<RefCell<Vec<ClientId>>>) {
    let client = seat.client;
    seat.take_turns(async {
        loop {
            let began = Moment::now();
            while began.elapsed() < Duration::from_micros(20) {}
            done.borrow_mut().push(client);
            if seat.is_over(began) {
                yield_now().await;
            }
        }
    })
    .await;
}

#[test]
fn two_clients_get_equal_shares_of_a_thread_whatever_their_connections() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let turns = Arc::new(Turns::default());
    let done = Rc::new(RefCell::new(Vec::new()));
    let tasks = LocalSet::new();
    let rounds = Arc::clone(&turns);
    tasks.spawn_local(async move { rounds.run().await });
    for client in [A, A, A, A, A, A, A, A, A, A, A, A, A, A, A, B] {
        tasks.spawn_local(busy(turns.seat(client), Rc::clone(&done)));
    }
    assert_eq!((turns.seats(A), turns.seats(B)), ((15, 16), (1, 16)));
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
    assert_eq!(turns.seats(A), (0, 0));
}
