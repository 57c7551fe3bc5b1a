//! Fair queueing of clients on a network thread.
//!
//! A thread works for one connection until its socket is empty, so a client with many connections,
//! or with many calls in each, would have the thread to itself. So the connections of a client are
//! one flow, which has a quantum of time in each round. When it is used up, the flow's connections
//! wait, in the order in which they came, for the next round, which begins once the thread has
//! polled its sockets and has worked for the others. While one flow alone has work, quanta are
//! longer.
//!
//! A client with a single connection is on one thread, and another with many is on all of them. So
//! shares are those of the time of all threads together, in the [`Ledger`]: beside a client that
//! has had less of it lately, one that has had more gets shorter quanta.
//!
//! A poll is charged after it has ended, and can exceed the quantum by as much as one call takes.
//! The excess is deducted from later quanta.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

use io::ClientId;
use rustc_hash::FxBuildHasher;
use tokio::sync::Notify;

use crate::busy_poll::ThreadCalls;
use crate::moment::Moment;

/// The quantum of a flow that joins others: a GETATTR of another client waits for no more than some
/// ten of them.
const QUANTUM_NS: i64 = 100_000;
/// The least quantum, of a client that has more of all threads than another that has work here.
/// Short, because a client with few calls in flight has them answered once in a round, and shorter
/// than most calls: the excess is deducted from the next quanta.
const QUANTUM_MIN_NS: i64 = 5_000;
/// The greatest quantum, of a client that has less than another.
const QUANTUM_MAX_NS: i64 = 200_000;
/// The interval over which shares are measured.
const MEASUREMENT_NS: u64 = 10_000_000;
/// A client's last measurement is discarded after this.
const MEASUREMENT_AGE_MAX_NS: u64 = 10 * MEASUREMENT_NS;
/// The share of a client that has all the time of one thread.
const WHOLE_SHARE: u64 = 1024;
/// A client with a smaller share does not shorten the quanta of others: short quanta cost them a
/// fifth of their rate.
const SMALL_SHARE: u64 = WHOLE_SHARE / 32;
/// The quantum of a client that has the thread to itself. A round costs about two microseconds.
const LONE_QUANTUM_NS: i64 = 500_000;
/// A client is expected to have work again so long after its last.
const ACTIVE_NS: u64 = 10_000_000;
/// The greatest excess that is deducted from later quanta, in quanta.
const DEBT_ROUNDS_MAX: i64 = 10;
/// Connections of one client that may go on in a round. A poll takes at least a few microseconds.
const WOKEN_MAX: usize = 16;

/// The time that all threads together have worked for each client with a connection.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<HashMap<ClientId, Weak<AtomicU64>, FxBuildHasher>>);

/// The flows of one thread.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    ledger: Arc<Ledger>,
    flows: Mutex<Flows>,
    /// The end of the quantum in use, as [`Moment::nanoseconds`].
    ends_at: AtomicU64,
    /// A connection waits for the next round.
    due: Notify,
    /// The calls of all connections.
    pub(crate) calls: Arc<ThreadCalls>,
}

#[derive(Debug, Default)]
struct Flows {
    by_client: HashMap<ClientId, Flow, FxBuildHasher>,
    connections: usize,
    /// The clients that have used a part of their quantum, each once.
    charged: Vec<ClientId>,
    /// The last use of a quantum.
    last: Option<(ClientId, Moment)>,
    /// When a client was last active soon after another.
    shared_at: Option<Moment>,
    measured_at: Option<Moment>,
    next_ticket: u64,
}

/// The connections of one client on the thread.
#[derive(Debug)]
struct Flow {
    connections: usize,
    used_ns: i64,
    is_charged: bool,
    /// Nanoseconds that all threads have worked for it.
    total_ns: Arc<AtomicU64>,
    /// The time of its last measurement, and `total_ns` then.
    measured: Option<(Moment, u64)>,
    /// Its quantum while others have work too. Changed in steps: if the last measurement alone
    /// decided, quanta would be long and short by turns, and the shares of more than two clients
    /// unequal.
    shared_quantum_ns: i64,
    /// The work that waits for the next round, by ticket.
    waiting: BTreeMap<u64, Waker>,
}

/// A connection's part in its client's flow, until it is dropped.
#[derive(Debug)]
pub(crate) struct FlowHandle {
    queue: Arc<FairQueue>,
    client: ClientId,
}

/// The place of a part of a connection's work in the queue of its flow.
#[derive(Debug)]
struct Ticket<'a> {
    flow: &'a FlowHandle,
    /// Set while it waits.
    number: Option<u64>,
}

impl Ledger {
    /// The account of a client, which lasts as long as a thread has it.
    fn account(&self, client: ClientId) -> Arc<AtomicU64> {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let account = accounts.entry(client).or_default();
        account.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *account = Arc::downgrade(&new);
            new
        })
    }

    /// Gives an account back.
    fn close(&self, client: ClientId, account: Arc<AtomicU64>) {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(account);
        if let Entry::Occupied(entry) = accounts.entry(client)
            && entry.get().strong_count() == 0
        {
            entry.remove();
        }
    }
}

impl FairQueue {
    /// The queue of one of the threads that share `ledger`.
    pub(crate) fn new(ledger: &Arc<Ledger>) -> Self {
        Self { ledger: Arc::clone(ledger), ..Self::default() }
    }

    /// Adds a connection to the flow of `client`.
    pub(crate) fn join(self: &Arc<Self>, client: ClientId) -> FlowHandle {
        let account = self.ledger.account(client);
        let unused = self.lock().enter(client, account);
        unused.into_iter().for_each(|account| self.ledger.close(client, account));
        FlowHandle { queue: Arc::clone(self), client }
    }

    /// The connections on the thread: those of `client`, and all.
    pub(crate) fn connections(&self, client: ClientId) -> (usize, usize) {
        let flows = self.lock();
        (flows.by_client.get(&client).map_or(0, |flow| flow.connections), flows.connections)
    }

    /// Begins a round whenever work waits for it and the thread has polled its sockets.
    pub(crate) async fn run_rounds(&self) {
        loop {
            self.due.notified().await;
            // tokio continues a task that yields after it has polled the sockets, and behind the
            // tasks that these have made ready.
            tokio::task::yield_now().await;
            self.calls.note_turn();
            let woken = self.lock().next_round(Moment::now());
            woken.into_iter().for_each(Waker::wake);
            if self.lock().is_due() {
                self.due.notify_one();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Flows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FlowHandle {
    /// Does a part of the connection's work, within the quanta of its flow.
    pub(crate) async fn schedule<T>(&self, work: impl Future<Output = T>) -> T {
        let mut ticket = Ticket { flow: self, number: None };
        let mut work = pin!(work);
        poll_fn(move |context| {
            let began = Moment::now();
            if !ticket.begin(began, context.waker()) {
                return Poll::Pending;
            }
            let polled = work.as_mut().poll(context);
            ticket.end(began, Moment::now());
            polled
        })
        .await
    }

    /// The calls of all connections on the thread.
    pub(crate) fn calls(&self) -> &Arc<ThreadCalls> {
        &self.queue.calls
    }

    /// Whether the quantum in use is over. The work should yield then.
    pub(crate) fn quantum_is_over(&self, now: Moment) -> bool {
        now.nanoseconds() >= self.queue.ends_at.load(Ordering::Relaxed)
    }
}

impl Drop for FlowHandle {
    fn drop(&mut self) {
        let left = self.queue.lock().leave(self.client);
        if let Some(Flow { total_ns, .. }) = left {
            self.queue.ledger.close(self.client, total_ns);
        }
    }
}

impl Ticket<'_> {
    /// Whether the flow has time left. If not, `waker` is woken in a later round.
    fn begin(&mut self, now: Moment, waker: &Waker) -> bool {
        let queue = &self.flow.queue;
        queue.calls.note_turn();
        let ends_at = queue.lock().begin(self.flow.client, &mut self.number, now, waker);
        let Some(ends_at) = ends_at else {
            queue.due.notify_one();
            return false;
        };
        queue.ends_at.store(ends_at, Ordering::Relaxed);
        true
    }

    fn end(&self, began: Moment, now: Moment) {
        self.flow.queue.lock().charge(self.flow.client, now.nanoseconds_since(began));
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.flow.queue.lock().forget(self.flow.client, number);
        }
    }
}

impl Flows {
    /// Whether several flows have work.
    fn is_shared(&self, now: Moment) -> bool {
        self.shared_at.is_some_and(|at| now.nanoseconds_since(at) < ACTIVE_NS)
    }

    /// Returns the end of the flow's quantum if it has time left; else `waker` waits.
    fn begin(
        &mut self,
        id: ClientId,
        number: &mut Option<u64>,
        now: Moment,
        waker: &Waker,
    ) -> Option<u64> {
        if let Some((_, at)) = self.last.replace((id, now)).filter(|(last, _)| *last != id)
            && now.nanoseconds_since(at) < ACTIVE_NS
        {
            self.shared_at = Some(now);
        }
        let is_shared = self.is_shared(now);
        let flow = self.by_client.entry(id).or_default();
        let left = flow.quantum_ns(is_shared) - flow.used_ns;
        // Work that has waited longer goes first, although a readable socket has woken this one.
        let first = flow.waiting.keys().next();
        let is_behind = first.is_some_and(|first| number.is_none_or(|number| *first < number));
        if let (true, false, Ok(left)) = (left > 0, is_behind, u64::try_from(left)) {
            if let Some(number) = number.take() {
                flow.waiting.remove(&number);
            }
            return Some(now.nanoseconds() + left);
        }
        let number = *number.get_or_insert_with(|| {
            self.next_ticket += 1;
            self.next_ticket
        });
        flow.waiting.insert(number, waker.clone());
        None
    }

    fn charge(&mut self, id: ClientId, ns: u64) {
        let Some(flow) = self.by_client.get_mut(&id) else { return };
        flow.used_ns = flow.used_ns.saturating_add(i64::try_from(ns).unwrap_or(i64::MAX));
        flow.total_ns.fetch_add(ns, Ordering::Relaxed);
        if !std::mem::replace(&mut flow.is_charged, true) {
            self.charged.push(id);
        }
    }

    /// Gives each flow its quantum. Returns the connections that may go on, a few of each flow.
    fn next_round(&mut self, now: Moment) -> Vec<Waker> {
        let is_shared = self.is_shared(now);
        if is_shared {
            self.adjust_quanta(now);
        }
        let mut woken = Vec::new();
        for id in std::mem::take(&mut self.charged) {
            let Some(flow) = self.by_client.get_mut(&id) else { continue };
            let quantum_ns = flow.quantum_ns(is_shared);
            flow.used_ns = flow.used_ns.min(DEBT_ROUNDS_MAX * quantum_ns);
            flow.used_ns = (flow.used_ns - quantum_ns).max(0);
            flow.is_charged = flow.used_ns > 0 || !flow.waiting.is_empty();
            if flow.is_charged {
                self.charged.push(id);
            }
            if flow.used_ns < quantum_ns {
                woken.extend(flow.waiting.values().take(WOKEN_MAX).cloned());
            }
        }
        woken
    }

    /// Whether a connection waits for the next round.
    fn is_due(&self) -> bool {
        self.charged
            .iter()
            .any(|id| self.by_client.get(id).is_some_and(|flow| !flow.waiting.is_empty()))
    }

    /// Compares the shares of the clients on all network threads, once in each [`MEASUREMENT_NS`].
    fn adjust_quanta(&mut self, now: Moment) {
        let is_due = |at: Moment| now.nanoseconds_since(at) >= MEASUREMENT_NS;
        if self.measured_at.replace(self.measured_at.unwrap_or(now)).is_some_and(|at| !is_due(at)) {
            return;
        }
        self.measured_at = Some(now);
        let mut shares = Vec::with_capacity(self.charged.len());
        for id in &self.charged {
            let Some(flow) = self.by_client.get_mut(id) else { continue };
            let total_ns = flow.total_ns.load(Ordering::Relaxed);
            let before = flow.measured.replace((now, total_ns));
            let before = before.map(|(at, had_ns)| (now.nanoseconds_since(at).max(1), had_ns));
            let Some((ns, before_ns)) = before.filter(|(ns, _)| *ns < MEASUREMENT_AGE_MAX_NS)
            else {
                flow.shared_quantum_ns = QUANTUM_NS;
                continue;
            };
            let share = total_ns.saturating_sub(before_ns).saturating_mul(WHOLE_SHARE) / ns;
            shares.push((*id, share));
        }
        let compared: Vec<_> =
            shares.iter().map(|(_, share)| *share).filter(|share| *share >= SMALL_SHARE).collect();
        let bounds = compared.iter().min().zip(compared.iter().max());
        let bounds = bounds.filter(|_| compared.len() > 1);
        for (id, share) in &shares {
            let Some(flow) = self.by_client.get_mut(id) else { continue };
            flow.shared_quantum_ns = match bounds {
                Some((least, most)) if *share >= SMALL_SHARE => {
                    next_quantum_ns(flow.shared_quantum_ns, *share, *least, *most)
                }
                _ => restored_quantum_ns(flow.shared_quantum_ns),
            };
        }
    }

    /// Returns the account if the flow has one already.
    fn enter(&mut self, id: ClientId, account: Arc<AtomicU64>) -> Option<Arc<AtomicU64>> {
        self.connections += 1;
        match self.by_client.entry(id) {
            Entry::Occupied(mut flow) => {
                flow.get_mut().connections += 1;
                Some(account)
            }
            Entry::Vacant(place) => {
                place.insert(Flow { connections: 1, total_ns: account, ..Flow::default() });
                None
            }
        }
    }

    /// Returns the flow if this was its last connection.
    fn leave(&mut self, id: ClientId) -> Option<Flow> {
        self.connections -= 1;
        let Entry::Occupied(mut flow) = self.by_client.entry(id) else { return None };
        flow.get_mut().connections -= 1;
        if flow.get().connections > 0 {
            return None;
        }
        let left = flow.remove();
        if left.is_charged {
            // A new flow of the client would be listed twice.
            self.charged.retain(|charged| *charged != id);
        }
        Some(left)
    }

    /// Gives up the work with a ticket.
    fn forget(&mut self, id: ClientId, number: u64) {
        if let Some(flow) = self.by_client.get_mut(&id) {
            flow.waiting.remove(&number);
        }
    }
}

/// The next quantum of a flow that had `share` of all threads with `quantum_ns`, among flows that
/// had between `least` and `most`.
fn next_quantum_ns(quantum_ns: i64, share: u64, least: u64, most: u64) -> i64 {
    let is_less = |less: u64, than: u64| less < than / 8 * 7;
    let next_ns = match (is_less(share, most), is_less(least, share)) {
        (true, false) => longer_ns(quantum_ns),
        (false, true) => shorter_ns(quantum_ns),
        _ => quantum_ns,
    };
    next_ns.clamp(QUANTUM_MIN_NS, QUANTUM_MAX_NS)
}

/// The next quantum of a flow that is compared with no other: a step toward [`QUANTUM_NS`].
fn restored_quantum_ns(quantum_ns: i64) -> i64 {
    if quantum_ns > QUANTUM_NS {
        shorter_ns(quantum_ns).max(QUANTUM_NS)
    } else {
        longer_ns(quantum_ns).min(QUANTUM_NS)
    }
}

/// One step up.
fn longer_ns(quantum_ns: i64) -> i64 {
    quantum_ns + quantum_ns / 4
}

/// One step down, which undoes one up.
fn shorter_ns(quantum_ns: i64) -> i64 {
    quantum_ns - quantum_ns / 5
}

impl Flow {
    /// Its quantum in this round.
    fn quantum_ns(&self, is_shared: bool) -> i64 {
        if is_shared { self.shared_quantum_ns } else { LONE_QUANTUM_NS }
    }
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            connections: 0,
            used_ns: 0,
            is_charged: false,
            total_ns: Arc::default(),
            measured: None,
            shared_quantum_ns: QUANTUM_NS,
            waiting: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests;
