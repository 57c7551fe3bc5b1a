//! The clients of a pool: how much memory each one holds, and whose turn it is to get more.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use super::Waiter;
use crate::engine::ClientId;

/// A client may hold this part of the budget: the rest stays for the others, ...
const SHARE_PARTS: usize = 3;
/// ... of so many parts.
const PARTS: usize = 4;
/// This process itself, which has no share: its requests do not wait for a peer.
pub(super) const OWN: ClientId = 0;

/// Clients that hold memory or wait for it.
pub(super) struct Clients {
    /// Bytes that one client may hold.
    share_bytes: usize,
    /// One for each client that holds a buffer or waits.
    accounts: HashMap<ClientId, Account>,
    /// The clients with waiters, the next to be served first.
    turns: VecDeque<ClientId>,
}

#[derive(Default)]
struct Account {
    held_bytes: usize,
    /// Served strictly in order: a large request is not starved by small ones that would fit
    /// before it.
    waiters: VecDeque<Waiter>,
}

impl Account {
    fn is_empty(&self) -> bool {
        self.held_bytes == 0 && self.waiters.is_empty()
    }
}

impl Clients {
    pub(super) fn new(budget_bytes: usize) -> Self {
        Self {
            share_bytes: budget_bytes / PARTS * SHARE_PARTS,
            accounts: HashMap::new(),
            turns: VecDeque::new(),
        }
    }

    /// Whether a request of `bytes` may be served now without passing any that waits. A client that
    /// waits for its own memory holds up no other.
    pub(super) fn is_next(&self, client: ClientId, bytes: usize) -> bool {
        !self.has_waiters_for(client) && self.is_within_share(client, bytes)
    }

    /// Notes that a client holds `bytes` more.
    pub(super) fn charge(&mut self, client: ClientId, bytes: usize) {
        self.accounts.entry(client).or_default().held_bytes += bytes;
    }

    /// Notes that a client holds `bytes` less.
    pub(super) fn discharge(&mut self, client: ClientId, bytes: usize) {
        let Entry::Occupied(mut account) = self.accounts.entry(client) else {
            unreachable!("a client that holds memory is known");
        };
        account.get_mut().held_bytes -= bytes;
        if account.get().is_empty() {
            account.remove();
        }
    }

    /// Appends a request to those of a client.
    pub(super) fn push(&mut self, client: ClientId, waiter: Waiter) {
        let account = self.accounts.entry(client).or_default();
        if account.waiters.is_empty() {
            self.turns.push_back(client);
        }
        account.waiters.push_back(waiter);
    }

    /// The client whose turn it is and the size class that it waits for. Clients at their share
    /// keep their turn and are skipped.
    pub(super) fn next(&self) -> Option<(ClientId, usize)> {
        let client = *self.turns.iter().find(|client| self.is_ready(**client))?;
        Some((client, self.first(client)?.class))
    }

    /// Removes the first request of a client that [`next`](Self::next) returned, which gets the
    /// memory that it waited for. The other clients are served before it again.
    pub(super) fn serve(&mut self, client: ClientId) -> Waiter {
        let account = self.accounts.get_mut(&client).expect("a client that waits is known");
        let waiter = account.waiters.pop_front().expect("it waits");
        account.held_bytes += waiter.bytes;
        let waits = !account.waiters.is_empty();
        self.turns.retain(|other| *other != client);
        if waits {
            self.turns.push_back(client);
        }
        waiter
    }

    /// Removes the requests of a client that were given up.
    pub(super) fn forget_leavers(&mut self, client: ClientId) {
        let Entry::Occupied(mut account) = self.accounts.entry(client) else { return };
        account.get_mut().waiters.retain(|waiter| !waiter.grant.is_closed());
        if account.get().waiters.is_empty() {
            self.turns.retain(|other| *other != client);
        }
        if account.get().is_empty() {
            account.remove();
        }
    }

    /// Requests that wait.
    pub(super) fn waiters(&self) -> usize {
        self.turns.iter().map(|client| self.accounts[client].waiters.len()).sum()
    }

    /// Whether a request waits that memory of `client` would serve.
    pub(super) fn has_waiters_for(&self, client: ClientId) -> bool {
        self.turns.iter().any(|waiting| *waiting == client || self.is_ready(*waiting))
    }

    fn first(&self, client: ClientId) -> Option<&Waiter> {
        self.accounts.get(&client)?.waiters.front()
    }

    /// Whether a client waits for memory that it may hold.
    fn is_ready(&self, client: ClientId) -> bool {
        self.first(client).is_some_and(|waiter| self.is_within_share(client, waiter.bytes))
    }

    /// A client that holds nothing may have a buffer of any size, however small the budget.
    fn is_within_share(&self, client: ClientId, bytes: usize) -> bool {
        let held = self.accounts.get(&client).map_or(0, |account| account.held_bytes);
        client == OWN || held == 0 || held + bytes <= self.share_bytes
    }
}
