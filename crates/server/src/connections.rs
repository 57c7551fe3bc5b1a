//! The open connections: how many there may be, and which one makes room for a new one.
//!
//! There are limits for all connections, for those of one peer address, and for those of strangers,
//! that is of peers that no export admits. At a limit a new connection takes the place of an idle
//! one, which loses nothing: an NFSv3 client connects again with its next call. A connection is
//! idle while it has no call at work, no reply to send and no unread bytes in its socket. It is
//! idle from the beginning until its first call is whole. While it waits for limits of exports, or
//! for the end of its peer's state, it is idle with a call in its socket too, and makes room after
//! all others. A peer at its own limit
//! loses any idle connection; at the limit for all, a connection has to be idle for [`IDLE_MIN`],
//! so that one just accepted, or one between two calls, stays open. The new connection waits for
//! one just accepted if that is next in rank: many accepted at once displace no client.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rpc::server::{Link, PeerWait, Slot, Slots};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::counters::{Counter, Counters};

/// One peer may have one in so many of all connections, ...
const PEER_PART: usize = 4;
/// ... and at least so many.
const PEER_MIN: usize = 256;
/// All strangers together may have one in so many of all connections, ...
const STRANGERS_PART: usize = 16;
/// ... and at least so many.
const STRANGERS_MIN: usize = 16;
/// Of few connections one in so many is reserved for other peers all the same: calls that hang keep
/// a connection for as long as the disk takes.
const OTHERS_PART: usize = 4;
/// Calls of all connections at work at a time, about: with many connections open, each takes fewer
/// calls at a time. It bounds the small replies that peers leave unread.
pub(crate) const CALLS_MAX: usize = 32 * 1024;
/// Calls that a connection may have at work however many are open. That of a stranger has no more.
pub(crate) const CALLS_MIN: usize = 2;
/// How often a new connection that waits for a place searches for one to evict.
const SEARCH_INTERVAL: Duration = Duration::from_millis(100);
/// How long a connection has to be idle to be evicted at the limit for all.
const IDLE_MIN: Duration = Duration::from_millis(100);

/// The first call of a client keeps its connection for so long at the limit for all, however slowly
/// it comes: 1 MiB over a line of 1 Mbit/s.
const FIRST_CALL_MAX: Duration = Duration::from_secs(10);
/// Sockets examined for unread bytes in one search for a connection to evict.
const SOCKETS_EXAMINED_MAX: usize = 16;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    all: usize,
    peer: usize,
    strangers: usize,
}

impl Limits {
    fn new(all: usize) -> Self {
        let part = |part: usize, least: usize| (all / part).max(least.min(all - all / OTHERS_PART));
        Self {
            all,
            peer: part(PEER_PART, PEER_MIN),
            strangers: part(STRANGERS_PART, STRANGERS_MIN),
        }
    }
}

/// Connections that compete for one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Peer(IpAddr),
    Strangers,
    All,
}

/// All open connections of a server.
pub(crate) struct Connections {
    limits: Limits,
    /// The calls of one connection that may be at work at a time.
    calls_max: usize,
    counters: Arc<Counters>,
    /// The value of [`State::open`], readable without the lock.
    open: AtomicUsize,
    state: Mutex<State>,
    /// Notified when a connection or an [`Eviction`] has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    /// Connections that were not evicted.
    peers: HashMap<IpAddr, Vec<Arc<Activity>>>,
    /// Of these, the strangers'.
    strangers: usize,
    /// Evicted connections that have not ended.
    evicted: Vec<Arc<Activity>>,
    /// The peer of each [`Eviction`].
    held_peers: Vec<IpAddr>,
    /// Connections that have not ended, evicted or not.
    open: usize,
}

/// The connections of a peer, and their calls in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerLoad {
    pub(crate) address: IpAddr,
    pub(crate) connections: usize,
    pub(crate) calls: usize,
}

/// The activity of a connection, for its eviction.
pub(crate) struct Activity {
    address: SocketAddr,
    accepted_at: Instant,
    /// The address without its port, in its shortest form.
    peer: IpAddr,
    /// Changed only with [`State`] locked.
    is_stranger: AtomicBool,
    /// One for each call that may be at work. The connection holds one while it receives a call.
    slots: Arc<Slots>,
    pub(crate) peer_wait: Arc<PeerWait>,
    /// It waits for limits of exports, and does not read its socket.
    is_held_back: AtomicBool,
    /// A call has been found that waits with it. Without meaning while it is not held back.
    holds_call: AtomicBool,
    /// A call has come over it.
    has_called: AtomicBool,
    /// The socket; empty until the connection's task begins.
    link: OnceLock<Arc<Link>>,
    /// It has to end. Set before a wait for the end of its calls, and read by each call that has
    /// taken its slot: either the wait sees the slot in use, or the call sees this.
    is_evicted: AtomicBool,
    /// Notified when [`Self::is_evicted`] is set.
    evicted: Notify,
    /// Another connection waits for its place.
    makes_room: AtomicBool,
}

/// The permit of an open connection; dropping it makes room for another.
pub(crate) struct ConnectionPermit {
    connections: Arc<Connections>,
    pub(crate) activity: Arc<Activity>,
}

/// The end of all connections of a peer. Those that it makes before this is dropped take no calls
/// meanwhile.
pub(crate) struct Eviction<'a> {
    connections: &'a Connections,
    peer: IpAddr,
    /// The connections that had not ended, also those evicted before: their calls may be at work.
    pub(crate) evicted: Vec<Arc<Activity>>,
}

enum Entry {
    Admitted(Arc<Activity>),
    /// An evicted connection, or any other, has to end first.
    Full,
    /// The limit is the peer's own, or that of strangers, and none of its connections is idle.
    Refused(Scope),
}

impl Activity {
    /// Sets the socket of the connection.
    pub(crate) fn begins(&self, link: &Arc<Link>) {
        self.link.get_or_init(|| Arc::clone(link));
    }

    /// Whether no export admits the peer.
    pub(crate) fn is_stranger(&self) -> bool {
        self.is_stranger.load(Ordering::Relaxed)
    }

    /// Notes that a call has come over the connection.
    pub(crate) fn note_call(&self) {
        self.has_called.store(true, Ordering::Relaxed);
    }

    /// Whether the connection waits for bytes of its peer, and for nothing else.
    pub(crate) fn waits_for_peer(&self) -> bool {
        !self.is_held_back.load(Ordering::Relaxed) && self.peer_wait.since().is_some()
    }

    /// Notes whether the connection waits for limits of exports, or for the end of its peer's
    /// state: it is idle then unless a call is at work, whatever is unread. A call that waits for
    /// its peer's limits must not keep a place that no other connection can leave.
    pub(crate) fn set_held_back(&self, is_held_back: bool) {
        self.holds_call.store(false, Ordering::Relaxed);
        self.is_held_back.store(is_held_back, Ordering::Relaxed);
        if is_held_back { self.peer_wait.begin(Instant::now()) } else { self.peer_wait.end() }
    }

    /// Notes that a call has come over the connection while it is held back.
    pub(crate) fn note_held_call(&self) {
        self.holds_call.store(true, Ordering::Relaxed);
    }

    /// Whether a call is known to wait with it for limits of exports.
    fn holds_call_back(&self) -> bool {
        self.is_held_back.load(Ordering::Relaxed) && self.holds_call.load(Ordering::Relaxed)
    }

    /// The peer's identity where threads are shared among clients.
    pub(crate) fn client(&self) -> io::ClientId {
        match self.peer {
            IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
            IpAddr::V6(address) => address.to_bits(),
        }
    }

    /// The slots of its calls.
    pub(crate) fn slots(&self) -> &Arc<Slots> {
        &self.slots
    }

    /// Waits for the slot of the next call, while all but `withheld` are in use. `None` if the
    /// connection has to end: after [`Self::calls_ended`] its client's state may be gone.
    pub(crate) async fn slot(&self, withheld: usize) -> Option<Slot> {
        let slot = self.slots.take(withheld).await;
        (!self.is_evicted.load(Ordering::SeqCst)).then_some(slot)
    }

    /// Whether one call is at work.
    pub(crate) fn has_one_call(&self) -> bool {
        self.slots.calls() == 1
    }

    /// Resolves when no call is at work any more, and none is received.
    pub(crate) async fn calls_ended(&self) {
        self.slots.all_free().await;
    }

    /// Whether another connection waits for its place.
    pub(crate) fn makes_room(&self) -> bool {
        self.makes_room.load(Ordering::Relaxed)
    }

    /// Has the connection end.
    fn evict(&self) {
        self.is_evicted.store(true, Ordering::SeqCst);
        self.evicted.notify_one();
    }

    /// Resolves when the connection has to end.
    pub(crate) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Since when it is idle; `None` while it is not. Each byte of a call begins a new wait for the
    /// peer, and a first call that comes by the byte must not keep the connection's place. That of
    /// a client may be a long WRITE over a slow network, and has some time.
    fn idle_since(&self) -> Option<Instant> {
        let waits_since = self.peer_wait.since()?;
        let has_called = self.has_called.load(Ordering::Relaxed);
        let is_in_time = !self.is_stranger() && self.accepted_at.elapsed() < FIRST_CALL_MAX;
        let since = if has_called || is_in_time { waits_since } else { self.accepted_at };
        (!self.has_calls_at_work()).then_some(since)
    }

    /// Calls at work, or whose replies are not sent.
    pub(crate) fn calls(&self) -> usize {
        self.slots.calls()
    }

    /// Whether a call is at work or its reply is not sent.
    pub(crate) fn has_calls_at_work(&self) -> bool {
        self.slots.calls() > 0
    }

    /// Whether the socket holds bytes, not seen before, that its thread has not received yet. If
    /// so, the connection is idle no more, or holds a call back.
    fn has_new_bytes(&self) -> bool {
        if self.holds_call_back() {
            return false;
        }
        let waits_since = self.peer_wait.since();
        let unread = self.link.get().is_some_and(|link| link.unread_bytes() > 0);
        if unread && self.is_held_back.load(Ordering::Relaxed) {
            self.note_held_call();
        } else if let Some(since) = waits_since.filter(|_| unread) {
            // Its thread may have received them meanwhile, and wait again.
            self.peer_wait.end_if_since(since);
        }
        unread
    }
}

impl Connections {
    /// No connections yet, and at most `connections_max`; each may have `calls_max` calls at work.
    pub(crate) fn new(
        connections_max: usize,
        calls_max: usize,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        Arc::new(Self {
            limits: Limits::new(connections_max),
            calls_max,
            counters,
            open: AtomicUsize::new(0),
            state: Mutex::default(),
            ended: Notify::new(),
        })
    }

    /// Connections open now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// The most connections that may be open.
    pub(crate) fn max(&self) -> usize {
        self.limits.all
    }

    /// Calls of all connections in progress.
    pub(crate) fn calls_in_flight(&self) -> usize {
        let state = self.lock();
        let activities = state.peers.values().flatten().chain(&state.evicted);
        activities.map(|activity| activity.slots.calls()).sum()
    }

    /// The load of each peer that has connections.
    pub(crate) fn by_peer(&self) -> Vec<PeerLoad> {
        let state = self.lock();
        let of_peer = |(peer, list): (&IpAddr, &Vec<Arc<Activity>>)| PeerLoad {
            address: *peer,
            connections: list.len(),
            calls: list.iter().map(|activity| activity.slots.calls()).sum(),
        };
        state.peers.iter().map(of_peer).collect()
    }

    /// Has all connections of a peer end. Calls in progress are completed and answered.
    pub(crate) fn evict_peer(&self, peer: IpAddr) -> Eviction<'_> {
        let mut state = self.lock();
        let peer = peer.to_canonical();
        state.held_peers.push(peer);
        for activity in state.peers.get(&peer).cloned().unwrap_or_default() {
            state.remove(&activity);
            activity.evict();
            state.evicted.push(activity);
        }
        let of_peer = state.evicted.iter().filter(|activity| activity.peer == peer);
        Eviction { connections: self, peer, evicted: of_peer.cloned().collect() }
    }

    /// Resolves when a connection may take calls: while no [`Eviction`] of its peer is there.
    pub(crate) async fn may_take_calls(&self, activity: &Activity) {
        let mut is_held_back = false;
        loop {
            let ended = self.ended.notified();
            if !self.lock().held_peers.contains(&activity.peer) {
                break;
            }
            if !std::mem::replace(&mut is_held_back, true) {
                activity.set_held_back(true);
            }
            ended.await;
        }
        if is_held_back {
            activity.set_held_back(false);
        }
    }

    /// The slots that a connection has to leave unused now: because many are open, or because its
    /// peer is a stranger, whose unread replies may hold memory too.
    pub(crate) fn slots_withheld(&self, activity: &Activity) -> usize {
        let share = if activity.is_stranger() { 0 } else { CALLS_MAX / self.open().max(1) };
        self.calls_max.saturating_sub(share.max(CALLS_MIN))
    }

    /// A permit for a new connection, made by evicting an idle one where a limit is reached. Waits
    /// while all permits are taken and none is idle. `None` refuses the connection. `is_stranger`
    /// is asked with the connections locked, so that [`Self::find_strangers`] misses none.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        address: SocketAddr,
        is_stranger: impl Fn() -> bool,
    ) -> Option<ConnectionPermit> {
        loop {
            let ended = self.ended.notified();
            match self.try_enter(address, &is_stranger) {
                Entry::Admitted(activity) => {
                    return Some(ConnectionPermit { connections: Arc::clone(self), activity });
                }
                Entry::Refused(limit) => {
                    self.counters.add(Counter::ConnectionsRefused, 1);
                    tracing::warn!(client = %address, ?limit, "connection refused: too many");
                    return None;
                }
                Entry::Full => {}
            }
            // The search is repeated in either case.
            let _ = tokio::time::timeout(SEARCH_INTERVAL, ended).await;
        }
    }

    fn try_enter(&self, address: SocketAddr, is_stranger: impl Fn() -> bool) -> Entry {
        let mut state = self.lock();
        let (peer, is_stranger) = (address.ip().to_canonical(), is_stranger());
        let mut evicted_for = None;
        while let Some(scope) = self.limit_reached(&state, peer, is_stranger) {
            // Another eviction would not make room any sooner.
            if scope == Scope::All && state.open - state.ending() < self.limits.all {
                return Entry::Full;
            }
            // Since a reload there may be far more strangers than the limit. Each eviction is a
            // search.
            if evicted_for == Some(scope) {
                return Entry::Refused(scope);
            }
            evicted_for = Some(scope);
            match (state.evict(scope), scope) {
                (Some(evicted), _) => {
                    self.counters.add(Counter::ConnectionsEvicted, 1);
                    tracing::warn!(client = %peer, limit = ?scope, %evicted, "idle connection closed");
                    if scope == Scope::All {
                        return Entry::Full;
                    }
                }
                (None, Scope::All) if !is_stranger => return Entry::Full,
                (None, scope) => return Entry::Refused(scope),
            }
        }
        let now = Instant::now();
        let activity = Arc::new(Activity {
            address,
            accepted_at: now,
            peer,
            is_stranger: AtomicBool::new(is_stranger),
            slots: Slots::new(self.calls_max),
            peer_wait: Arc::new(PeerWait::new(now)),
            is_held_back: AtomicBool::new(false),
            holds_call: AtomicBool::new(false),
            has_called: AtomicBool::new(false),
            link: OnceLock::new(),
            is_evicted: AtomicBool::new(false),
            evicted: Notify::new(),
            makes_room: AtomicBool::new(false),
        });
        state.peers.entry(peer).or_default().push(Arc::clone(&activity));
        state.strangers += usize::from(is_stranger);
        state.open += 1;
        self.open.store(state.open, Ordering::Relaxed);
        Entry::Admitted(activity)
    }

    fn limit_reached(&self, state: &State, peer: IpAddr, is_stranger: bool) -> Option<Scope> {
        let of_peer = state.peers.get(&peer).map_or(0, Vec::len);
        // A part that is the whole is no limit of its own: the peer waits as all others do.
        if of_peer >= self.limits.peer && self.limits.peer < self.limits.all {
            Some(Scope::Peer(peer))
        } else if is_stranger && state.strangers >= self.limits.strangers {
            Some(Scope::Strangers)
        } else if state.open >= self.limits.all {
            Some(Scope::All)
        } else {
            None
        }
    }

    /// Evicts an idle connection of anybody; for when the process has no descriptor left.
    pub(crate) fn evict_one(&self) {
        if self.lock().evict(Scope::All).is_some() {
            self.counters.add(Counter::ConnectionsEvicted, 1);
        }
    }

    /// Finds the strangers among the open connections anew, after the exports have changed.
    pub(crate) fn find_strangers(&self, is_stranger: impl Fn(SocketAddr) -> bool) {
        let mut state = self.lock();
        let mut strangers = 0;
        for activity in state.peers.values().flatten() {
            let is_stranger = is_stranger(activity.address);
            activity.is_stranger.store(is_stranger, Ordering::Relaxed);
            strangers += usize::from(is_stranger);
        }
        state.strangers = strangers;
    }

    /// Resolves when no connection is open.
    pub(crate) async fn all_ended(&self) {
        loop {
            let ended = self.ended.notified();
            if self.lock().open == 0 {
                return;
            }
            ended.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Evicts the idle connection that its peer misses least, if one of `scope` is idle long
    /// enough: a stranger's first, then one of the peer with the most connections, then the longest
    /// idle, and in the same order those that hold a call back. Returns its peer.
    fn evict(&mut self, scope: Scope) -> Option<IpAddr> {
        let now = Instant::now();
        for _ in 0..SOCKETS_EXAMINED_MAX {
            let victim = self.idlest(scope, now)?;
            if victim.has_new_bytes() {
                continue;
            }
            let victim = Arc::clone(victim);
            self.remove(&victim);
            victim.makes_room.store(true, Ordering::Relaxed);
            victim.evict();
            let peer = victim.peer;
            self.evicted.push(victim);
            return Some(peer);
        }
        None
    }

    /// See [`evict`](Self::evict). `None` also if the first in rank was just accepted and has not
    /// called yet: soon it is idle for long enough, or it has a call.
    fn idlest(&self, scope: Scope, now: Instant) -> Option<&Arc<Activity>> {
        let is_long = |since: Instant| match scope {
            Scope::Peer(_) | Scope::Strangers => true,
            Scope::All => now.saturating_duration_since(since) >= IDLE_MIN,
        };
        self.peers
            .values()
            .flat_map(|list| list.iter().map(|activity| (list.len(), activity)))
            .filter(|(_, activity)| match scope {
                Scope::Peer(peer) => activity.peer == peer,
                Scope::Strangers => activity.is_stranger(),
                Scope::All => true,
            })
            .filter_map(|(of_peer, activity)| Some((of_peer, activity, activity.idle_since()?)))
            .filter(|(_, activity, since)| {
                is_long(*since) || !activity.has_called.load(Ordering::Relaxed)
            })
            .max_by_key(|(of_peer, activity, since)| {
                let holds_call = activity.holds_call_back();
                (!holds_call, activity.is_stranger(), *of_peer, std::cmp::Reverse(*since))
            })
            .filter(|(_, _, since)| is_long(*since))
            .map(|(_, activity, _)| activity)
            // Unread bytes of one that has not begun cannot be seen.
            .filter(|activity| scope != Scope::All || activity.link.get().is_some())
    }

    /// The evicted connections that end as soon as their threads run.
    fn ending(&self) -> usize {
        self.evicted.iter().filter(|activity| !activity.has_calls_at_work()).count()
    }

    /// Removes a connection from those that count for a limit, or from the evicted.
    fn remove(&mut self, activity: &Arc<Activity>) {
        if let Some(at) = self.evicted.iter().position(|other| Arc::ptr_eq(other, activity)) {
            self.evicted.swap_remove(at);
            return;
        }
        let Some(list) = self.peers.get_mut(&activity.peer) else { return };
        let Some(at) = list.iter().position(|other| Arc::ptr_eq(other, activity)) else { return };
        list.swap_remove(at);
        if list.is_empty() {
            self.peers.remove(&activity.peer);
        }
        self.strangers -= usize::from(activity.is_stranger());
    }
}

impl Drop for Eviction<'_> {
    fn drop(&mut self) {
        {
            let held_peers = &mut self.connections.lock().held_peers;
            let at = held_peers.iter().position(|peer| *peer == self.peer);
            held_peers.swap_remove(at.expect("it was added for this"));
        }
        self.connections.ended.notify_waiters();
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let connections = &self.connections;
        {
            let mut state = connections.lock();
            state.remove(&self.activity);
            state.open -= 1;
            connections.open.store(state.open, Ordering::Relaxed);
        }
        connections.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
