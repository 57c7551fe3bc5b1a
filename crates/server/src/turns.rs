//! The turns of clients on a network thread.
//!
//! A thread works for one connection until its socket is empty, so a client with many connections, or
//! with many calls in each, would have the thread to itself. So each client has time for each round.
//! When it is used up, the client's connections wait, in the order in which they came, for the next
//! round, which begins once the thread has looked at its sockets and has worked for the others. While
//! one client alone has work, rounds are longer.
//!
//! A poll is charged after it has ended, and can exceed the time by as much as one call takes. The
//! client owes the excess in later rounds.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use io::ClientId;
use rustc_hash::FxBuildHasher;
use tokio::sync::Notify;

use crate::trace::Moment;

/// A client's time in a round while others have work too: a GETATTR of another client waits for no more
/// than some ten of them.
const SHARED_NS: i64 = 100_000;
/// The time of a client that has the thread to itself. A round costs about two microseconds.
const ALONE_NS: i64 = 500_000;
/// A client is expected to have work again so long after its last.
const ACTIVE_NS: u64 = 10_000_000;
/// What a client can owe at most, in rounds.
const DEBT_ROUNDS_MAX: i64 = 10;
/// Connections of one client that may go on in a round. A poll takes at least a few microseconds.
const WOKEN_MAX: usize = 16;

/// The turns on one thread.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    /// When the turn that is being taken ends, as [`Moment::nanoseconds`].
    ends_at: AtomicU64,
    /// A connection waits for the next round.
    due: Notify,
}

#[derive(Debug, Default)]
struct State {
    clients: HashMap<ClientId, Client, FxBuildHasher>,
    seats: usize,
    /// The clients that have used time since they last had all of it.
    charged: Vec<ClientId>,
    /// The last turn.
    last: Option<(ClientId, Moment)>,
    /// When a client was last active soon after another.
    shared_at: Option<Moment>,
    next_ticket: u64,
}

/// A client with connections on the thread.
#[derive(Debug, Default)]
struct Client {
    seats: usize,
    used_ns: i64,
    is_charged: bool,
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

impl Turns {
    /// A connection of `client` comes to the thread.
    pub(crate) fn seat(self: &Arc<Self>, client: ClientId) -> Seat {
        self.lock().enter(client);
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
            // tokio continues a task that yields after it has polled the sockets, and behind the tasks
            // that these have made ready.
            tokio::task::yield_now().await;
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

    /// Whether the turn that is being taken is over. The work should yield then.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        now.nanoseconds() >= self.turns.ends_at.load(Ordering::Relaxed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.turns.lock().leave(self.client);
    }
}

impl Ticket<'_> {
    /// Whether the client has time left. If not, `waker` is woken in a later round.
    fn begin(&mut self, now: Moment, waker: &Waker) -> bool {
        let turns = &self.seat.turns;
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
    /// A client's time in a round.
    fn time_ns(&self, now: Moment) -> i64 {
        let is_shared = self.shared_at.is_some_and(|at| now.nanoseconds_since(at) < ACTIVE_NS);
        if is_shared { SHARED_NS } else { ALONE_NS }
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
        let time_ns = self.time_ns(now);
        let client = self.clients.entry(id).or_default();
        let left = time_ns - client.used_ns;
        // Those that wait go first, which a socket that has become readable does not know.
        let is_behind = number.is_none() && !client.waiting.is_empty();
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
        if !std::mem::replace(&mut client.is_charged, true) {
            self.charged.push(id);
        }
    }

    /// Gives each client its time. Returns those that may go on, a few of each client.
    fn next_round(&mut self, now: Moment) -> Vec<Waker> {
        let time_ns = self.time_ns(now);
        let mut woken = Vec::new();
        for id in std::mem::take(&mut self.charged) {
            let Some(client) = self.clients.get_mut(&id) else { continue };
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

    fn enter(&mut self, id: ClientId) {
        self.seats += 1;
        self.clients.entry(id).or_default().seats += 1;
    }

    fn leave(&mut self, id: ClientId) {
        self.seats -= 1;
        let Entry::Occupied(mut client) = self.clients.entry(id) else { return };
        client.get_mut().seats -= 1;
        if client.get().seats == 0 {
            client.remove();
        }
    }

    /// The work with a ticket is given up.
    fn forget(&mut self, id: ClientId, number: u64) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.waiting.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests;
