//! The turns of clients on a network thread.
//!
//! A thread works for one connection until its socket is empty, so a client with many connections,
//! or with many calls in each, would have the thread to itself. So each client has time for each
//! round. When it is used up, the client's connections wait, in the order in which they came, for
//! the next round, which begins once the thread has looked at its sockets and has worked for the
//! others. While one client alone has work, rounds are longer.
//!
//! A client with a single connection is on one thread, and another with many is on all of them. So
//! what counts is the time of all threads together, in the [`Ledger`]: beside a client that has had
//! less of it lately, one that has had more gets shorter rounds.
//!
//! A poll is charged after it has ended, and can exceed the time by as much as one call takes. The
//! client owes the excess in later rounds.

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

/// The time in a round of a client that comes to others: a GETATTR of another client waits for no
/// more than some ten of them.
const SHARED_NS: i64 = 100_000;
/// The least time, of a client that has more of all threads than another that has work here. Short,
/// because a client with few calls in flight has them answered once in a round, and shorter than
/// most calls: what one takes more is owed in the next rounds.
const SHARED_MIN_NS: i64 = 5_000;
/// The most, of a client that has less than another.
const SHARED_MAX_NS: i64 = 200_000;
/// How long a time is judged by.
const JUDGED_NS: u64 = 10_000_000;
/// A client's last judgement is forgotten after this.
const JUDGED_AGE_MAX_NS: u64 = 10 * JUDGED_NS;
/// The time of one thread is so much in the units that shares are compared in.
const WHOLE_SHARE: u64 = 1024;
/// A client that needs less than this does not shorten the rounds of others: short rounds cost them
/// a fifth of their rate.
const SMALL_SHARE: u64 = WHOLE_SHARE / 32;
/// The time of a client that has the thread to itself. A round costs about two microseconds.
const ALONE_NS: i64 = 500_000;
/// A client is expected to have work again so long after its last.
const ACTIVE_NS: u64 = 10_000_000;
/// What a client can owe at most, in rounds.
const DEBT_ROUNDS_MAX: i64 = 10;
/// Connections of one client that may go on in a round. A poll takes at least a few microseconds.
const WOKEN_MAX: usize = 16;

/// The time that all threads together have worked for each client with a connection.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<HashMap<ClientId, Weak<AtomicU64>, FxBuildHasher>>);

/// The turns on one thread.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    ledger: Arc<Ledger>,
    state: Mutex<State>,
    /// When the turn that is being taken ends, as [`Moment::nanoseconds`].
    ends_at: AtomicU64,
    /// A connection waits for the next round.
    due: Notify,
    /// The calls of all connections.
    pub(crate) calls: Arc<ThreadCalls>,
}

#[derive(Debug, Default)]
struct State {
    clients: HashMap<ClientId, Client, FxBuildHasher>,
    seats: usize,
    /// The clients that have used time since they last had all of it, each once.
    charged: Vec<ClientId>,
    /// The last turn.
    last: Option<(ClientId, Moment)>,
    /// When a client was last active soon after another.
    shared_at: Option<Moment>,
    judged_at: Option<Moment>,
    next_ticket: u64,
}

/// A client with connections on the thread.
#[derive(Debug)]
struct Client {
    seats: usize,
    used_ns: i64,
    is_charged: bool,
    /// Nanoseconds that all threads have worked for it.
    total_ns: Arc<AtomicU64>,
    /// When it was judged last, and `total_ns` then.
    judged: Option<(Moment, u64)>,
    /// Its time in a round while others have work too. Changed in steps: if the last judgement
    /// alone decided, clients would have much and little by turns, and more than two of them
    /// unequal shares.
    shared_ns: i64,
    /// The work that waits for the next round, by ticket.
    waiting: BTreeMap<u64, Waker>,
}

/// A connection on the thread.
#[derive(Debug)]
pub(crate) struct Seat {
    turns: Arc<Turns>,
    client: ClientId,
}

/// The place of a part of a connection's work among all that waits for its client's time.
#[derive(Debug)]
struct Ticket<'a> {
    seat: &'a Seat,
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

impl Turns {
    /// The turns on one of the threads that share `ledger`.
    pub(crate) fn new(ledger: &Arc<Ledger>) -> Self {
        Self { ledger: Arc::clone(ledger), ..Self::default() }
    }

    /// A connection of `client` comes to the thread.
    pub(crate) fn seat(self: &Arc<Self>, client: ClientId) -> Seat {
        let account = self.ledger.account(client);
        let unused = self.lock().enter(client, account);
        unused.into_iter().for_each(|account| self.ledger.close(client, account));
        Seat { turns: Arc::clone(self), client }
    }

    /// The connections on the thread: those of `client`, and all.
    pub(crate) fn seats(&self, client: ClientId) -> (usize, usize) {
        let state = self.lock();
        (state.clients.get(&client).map_or(0, |client| client.seats), state.seats)
    }

    /// Begins a round whenever work waits for it and the thread has looked at its sockets.
    pub(crate) async fn run(&self) {
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Does a part of the connection's work in turns with the work of other clients.
    pub(crate) async fn take_turns<T>(&self, work: impl Future<Output = T>) -> T {
        let mut ticket = Ticket { seat: self, number: None };
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
        &self.turns.calls
    }

    /// Whether the turn that is being taken is over. The work should yield then.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        now.nanoseconds() >= self.turns.ends_at.load(Ordering::Relaxed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let left = self.turns.lock().leave(self.client);
        if let Some(Client { total_ns, .. }) = left {
            self.turns.ledger.close(self.client, total_ns);
        }
    }
}

impl Ticket<'_> {
    /// Whether the client has time left. If not, `waker` is woken in a later round.
    fn begin(&mut self, now: Moment, waker: &Waker) -> bool {
        let turns = &self.seat.turns;
        turns.calls.note_turn();
        let ends_at = turns.lock().begin(self.seat.client, &mut self.number, now, waker);
        let Some(ends_at) = ends_at else {
            turns.due.notify_one();
            return false;
        };
        turns.ends_at.store(ends_at, Ordering::Relaxed);
        true
    }

    fn end(&self, began: Moment, now: Moment) {
        self.seat.turns.lock().charge(self.seat.client, now.nanoseconds_since(began));
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.seat.turns.lock().forget(self.seat.client, number);
        }
    }
}

impl State {
    /// Whether several clients have work.
    fn is_shared(&self, now: Moment) -> bool {
        self.shared_at.is_some_and(|at| now.nanoseconds_since(at) < ACTIVE_NS)
    }

    /// When the client's turn ends, if it has time left; else `waker` waits.
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
        let client = self.clients.entry(id).or_default();
        let left = client.time_ns(is_shared) - client.used_ns;
        // Those that have waited longer go first, which a socket that has become readable does not
        // know.
        let first = client.waiting.keys().next();
        let is_behind = first.is_some_and(|first| number.is_none_or(|number| *first < number));
        if let (true, false, Ok(left)) = (left > 0, is_behind, u64::try_from(left)) {
            if let Some(number) = number.take() {
                client.waiting.remove(&number);
            }
            return Some(now.nanoseconds() + left);
        }
        let number = *number.get_or_insert_with(|| {
            self.next_ticket += 1;
            self.next_ticket
        });
        client.waiting.insert(number, waker.clone());
        None
    }

    fn charge(&mut self, id: ClientId, ns: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.used_ns = client.used_ns.saturating_add(i64::try_from(ns).unwrap_or(i64::MAX));
        client.total_ns.fetch_add(ns, Ordering::Relaxed);
        if !std::mem::replace(&mut client.is_charged, true) {
            self.charged.push(id);
        }
    }

    /// Gives each client its time. Returns those that may go on, a few of each client.
    fn next_round(&mut self, now: Moment) -> Vec<Waker> {
        let is_shared = self.is_shared(now);
        if is_shared {
            self.judge(now);
        }
        let mut woken = Vec::new();
        for id in std::mem::take(&mut self.charged) {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            let time_ns = client.time_ns(is_shared);
            client.used_ns = client.used_ns.min(DEBT_ROUNDS_MAX * time_ns);
            client.used_ns = (client.used_ns - time_ns).max(0);
            client.is_charged = client.used_ns > 0 || !client.waiting.is_empty();
            if client.is_charged {
                self.charged.push(id);
            }
            if client.used_ns < time_ns {
                woken.extend(client.waiting.values().take(WOKEN_MAX).cloned());
            }
        }
        woken
    }

    /// Whether a connection waits for the next round.
    fn is_due(&self) -> bool {
        self.charged
            .iter()
            .any(|id| self.clients.get(id).is_some_and(|client| !client.waiting.is_empty()))
    }

    /// Compares the times of the clients on all network threads, once in each [`JUDGED_NS`].
    fn judge(&mut self, now: Moment) {
        let is_due = |at: Moment| now.nanoseconds_since(at) >= JUDGED_NS;
        if self.judged_at.replace(self.judged_at.unwrap_or(now)).is_some_and(|at| !is_due(at)) {
            return;
        }
        self.judged_at = Some(now);
        let mut shares = Vec::with_capacity(self.charged.len());
        for id in &self.charged {
            let Some(client) = self.clients.get_mut(id) else { continue };
            let total_ns = client.total_ns.load(Ordering::Relaxed);
            let before = client.judged.replace((now, total_ns));
            let before = before.map(|(at, had_ns)| (now.nanoseconds_since(at).max(1), had_ns));
            let Some((ns, before_ns)) = before.filter(|(ns, _)| *ns < JUDGED_AGE_MAX_NS) else {
                client.shared_ns = SHARED_NS;
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
            let Some(client) = self.clients.get_mut(id) else { continue };
            client.shared_ns = match bounds {
                Some((least, most)) if *share >= SMALL_SHARE => {
                    next_shared_ns(client.shared_ns, *share, *least, *most)
                }
                _ => nearer_to_equal_ns(client.shared_ns),
            };
        }
    }

    /// Returns the account if the client has one here already.
    fn enter(&mut self, id: ClientId, account: Arc<AtomicU64>) -> Option<Arc<AtomicU64>> {
        self.seats += 1;
        match self.clients.entry(id) {
            Entry::Occupied(mut client) => {
                client.get_mut().seats += 1;
                Some(account)
            }
            Entry::Vacant(place) => {
                place.insert(Client { seats: 1, total_ns: account, ..Client::default() });
                None
            }
        }
    }

    /// Returns the client if it has no connection here any more.
    fn leave(&mut self, id: ClientId) -> Option<Client> {
        self.seats -= 1;
        let Entry::Occupied(mut client) = self.clients.entry(id) else { return None };
        client.get_mut().seats -= 1;
        if client.get().seats > 0 {
            return None;
        }
        let left = client.remove();
        if left.is_charged {
            // It would be listed twice when it comes again and works.
            self.charged.retain(|charged| *charged != id);
        }
        Some(left)
    }

    /// The work with a ticket is given up.
    fn forget(&mut self, id: ClientId, number: u64) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.waiting.remove(&number);
        }
    }
}

/// The time in a round of a client that had `share` of all threads with `time_ns` in a round, among
/// clients that had between `least` and `most`.
fn next_shared_ns(time_ns: i64, share: u64, least: u64, most: u64) -> i64 {
    let is_less = |less: u64, than: u64| less < than / 8 * 7;
    let next_ns = match (is_less(share, most), is_less(least, share)) {
        (true, false) => longer_ns(time_ns),
        (false, true) => shorter_ns(time_ns),
        _ => time_ns,
    };
    next_ns.clamp(SHARED_MIN_NS, SHARED_MAX_NS)
}

/// As [`next_shared_ns`], of a client that is compared with no other.
fn nearer_to_equal_ns(time_ns: i64) -> i64 {
    if time_ns > SHARED_NS {
        shorter_ns(time_ns).max(SHARED_NS)
    } else {
        longer_ns(time_ns).min(SHARED_NS)
    }
}

/// One step up.
fn longer_ns(time_ns: i64) -> i64 {
    time_ns + time_ns / 4
}

/// One step down, which undoes one up.
fn shorter_ns(time_ns: i64) -> i64 {
    time_ns - time_ns / 5
}

impl Client {
    /// Its time in a round.
    fn time_ns(&self, is_shared: bool) -> i64 {
        if is_shared { self.shared_ns } else { ALONE_NS }
    }
}

impl Default for Client {
    fn default() -> Self {
        Self {
            seats: 0,
            used_ns: 0,
            is_charged: false,
            total_ns: Arc::default(),
            judged: None,
            shared_ns: SHARED_NS,
            waiting: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests;
