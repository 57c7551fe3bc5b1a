//! The registry of calls that must not run twice: those at work, and the replies to those that are
//! done. A retransmission is answered from it.
//!
//! A call repeats another if both have the same [`CallKey`] and the first was not answered as far
//! as the client's TCP knows:
//!
//! - over the same connection, or a new one from the same port, it is a repetition;
//! - over a connection from another port it is one if the reply was lost with its connection, or is
//!   still unacknowledged after [`ACKNOWLEDGED_WITHIN`]. If the reply was acknowledged, it is a new
//!   call: another process that counts its calls alike.
//!
//! A false hit answers a call that never ran; a false miss runs a call twice, which is what happens
//! without a cache. Bounds: each client has a share of the memory and loses its own oldest replies
//! when that is full; when all shares together are too large, the client that holds most does.
//!
//! Only procedures that are not idempotent come here. READ, WRITE, GETATTR and the like give the
//! same result when they are run again.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rpc::server::{Delivery, Link, Receipt};
use tokio::sync::oneshot;

use crate::call::{self, Credential};
use crate::procedures::Procedure;

/// Memory for one client's replies. Linux has up to 128 calls outstanding on each of at most 16
/// connections; this holds about 2500 replies.
const SHARE_BYTES_MAX: usize = 2 << 20;
/// Memory for all replies.
pub(crate) const BYTES_MAX: usize = 8 << 20;
/// Memory of an entry besides its reply: the key three times, nodes of trees, the receipt.
const ENTRY_BYTES: usize = 512;
/// How long a client may go on retransmitting. Linux gives up or reconnects within a minute
/// (`timeo=600,retrans=2`, nfs(5)).
const LIFETIME: Duration = Duration::from_secs(120);
/// A peer that is there acknowledges within this: its delayed acknowledgement takes at most 200 ms,
/// and TCP sends a lost segment again after 200, 400 and 800 ms.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(2);

/// The identity of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallKey {
    /// The client.
    pub(crate) address: IpAddr,
    /// Transaction id.
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    /// Keyed hash of credential and arguments. A client cannot predict it.
    pub(crate) content: u64,
}

/// The decision on a call.
pub(crate) enum Begin<'a> {
    /// It is new: run it.
    Run(Running<'a>),
    /// It was answered: send this reply again.
    Replay(Replay),
    /// It came over this connection before and will be answered.
    Duplicate,
    /// Wait for this and begin again.
    Wait(Wait),
}

/// A stored reply on its way to the client that asked again.
#[derive(Debug)]
pub(crate) struct Replay {
    /// The reply's head.
    pub(crate) reply: Vec<u8>,
    pub(crate) receipt: Arc<Receipt>,
}

/// The event that a retransmission waits for.
#[derive(Debug)]
pub(crate) enum Wait {
    /// The end of the first copy, which closes the channel.
    End(oneshot::Receiver<()>),
    /// News about the reply's delivery. There is no event for it: ask again soon.
    Delivery,
}

/// Calls that must not run twice.
pub(crate) struct ReplyCache {
    hasher: std::hash::RandomState,
    calls: Mutex<Calls>,
}

impl ReplyCache {
    pub(crate) fn new() -> Self {
        Self { hasher: std::hash::RandomState::new(), calls: Mutex::default() }
    }

    /// The key of a call of `row` from `peer`. The name of the client's machine is a part of it,
    /// because machines behind one address may count their calls alike. The stamp of the credential
    /// is not: some clients renew it when they send a call again.
    pub(crate) fn key(&self, peer: IpAddr, row: &Procedure, call: &call::Call) -> CallKey {
        let sys = match &call.credential {
            Credential::Sys(sys) => Some((call.machine_name(), sys.uid, sys.gid, &*sys.gids)),
            Credential::None | Credential::Other { .. } => None,
        };
        CallKey {
            address: peer.to_canonical(),
            xid: call.xid,
            program: row.program,
            version: row.version,
            procedure: row.code,
            content: self.hasher.hash_one((sys, call.arguments())),
        }
    }

    /// Looks up a call that came over `link`, and notes it as running when it is new.
    pub(crate) fn begin(&self, key: CallKey, link: &Arc<Link>, now: Instant) -> Begin<'_> {
        match self.lock().begin(key, link, now) {
            Step::Run => {
                let link = Arc::clone(link);
                Begin::Run(Running { cache: self, key, link, is_complete: false })
            }
            Step::Replay(replay) => Begin::Replay(replay),
            Step::Duplicate => Begin::Duplicate,
            Step::Wait(wait) => Begin::Wait(wait),
        }
    }

    /// Whether a call is noted as running.
    #[cfg(test)]
    pub(crate) fn has_running(&self) -> bool {
        self.lock().calls.values().any(|call| matches!(call, Call::Running(_)))
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call noted as running, which is forgotten if it ends without a reply to store.
pub(crate) struct Running<'a> {
    cache: &'a ReplyCache,
    key: CallKey,
    link: Arc<Link>,
    is_complete: bool,
}

impl Running<'_> {
    /// Stores the reply. It must be sent with the receipt.
    pub(crate) fn complete(mut self, reply: &[u8], now: Instant) -> Arc<Receipt> {
        let receipt = Arc::new(Receipt::new(Arc::clone(&self.link)));
        self.is_complete = true;
        self.cache.lock().complete(self.key, reply, Arc::clone(&receipt), now);
        receipt
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            self.cache.lock().abandon(&self.key);
        }
    }
}

/// [`Begin`] without the guard.
#[derive(Debug)]
enum Step {
    Run,
    Replay(Replay),
    Duplicate,
    Wait(Wait),
}

/// The registry, without lock and clock.
#[derive(Default)]
struct Calls {
    calls: HashMap<CallKey, Call>,
    /// Completed calls, oldest first.
    by_age: BTreeMap<u64, CallKey>,
    shares: HashMap<IpAddr, Share>,
    /// The clients by the memory that their replies take.
    by_bytes: BTreeSet<(usize, IpAddr)>,
    bytes: usize,
    /// The number of the next completion.
    next_number: u64,
}

enum Call {
    Running(AtWork),
    Done(Done),
}

struct AtWork {
    link: Arc<Link>,
    /// Copies that came over other connections, each with a slot of its own. Dropping a sender
    /// wakes its copy.
    copies: Vec<(Arc<Link>, oneshot::Sender<()>)>,
}

struct Done {
    number: u64,
    completed_at: Instant,
    reply: Vec<u8>,
    /// Where the reply was sent last, and when.
    receipt: Arc<Receipt>,
    sent_at: Instant,
}

/// The completed calls of one client, oldest first, and the memory they take.
#[derive(Default)]
struct Share {
    calls: BTreeMap<u64, CallKey>,
    bytes: usize,
}

/// The relation of a call to a completed one with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Repetition,
    Another,
    /// The reply is on its way: its delivery decides.
    Undecided,
}

impl Calls {
    fn begin(&mut self, key: CallKey, link: &Arc<Link>, now: Instant) -> Step {
        self.forget_old(now);
        match self.calls.get_mut(&key) {
            Some(Call::Running(running)) => return running.join(link),
            Some(Call::Done(done)) => match done.relation_to(link, now) {
                Relation::Repetition => return Step::Replay(done.send_over(link, now)),
                Relation::Undecided => return Step::Wait(Wait::Delivery),
                Relation::Another => self.forget(&key),
            },
            None => {}
        }
        let running = AtWork { link: Arc::clone(link), copies: Vec::new() };
        self.calls.insert(key, Call::Running(running));
        Step::Run
    }

    fn complete(&mut self, key: CallKey, reply: &[u8], receipt: Arc<Receipt>, now: Instant) {
        let number = self.next_number;
        self.next_number += 1;
        let (reply, completed_at) = (reply.to_vec(), now);
        let done = Done { number, completed_at, reply, receipt, sent_at: now };
        let bytes = done.bytes();
        self.calls.insert(key, Call::Done(done));
        self.by_age.insert(number, key);
        self.shares.entry(key.address).or_default().calls.insert(number, key);
        self.resize_share(key.address, |share| share + bytes);
        self.forget_excess(key.address);
        self.forget_old(now);
    }

    /// Forgets a running call that ended without a reply to store.
    fn abandon(&mut self, key: &CallKey) {
        self.calls.remove(key);
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some((_, key)) = self.by_age.first_key_value() {
            let key = *key;
            if matches!(&self.calls[&key], Call::Done(done) if !done.is_old(now)) {
                return;
            }
            self.forget(&key);
        }
    }

    /// Forgets replies until the share of `client` and all together are within their bounds.
    fn forget_excess(&mut self, client: IpAddr) {
        while self.shares.get(&client).is_some_and(|share| share.bytes > SHARE_BYTES_MAX) {
            self.forget_oldest_of(client);
        }
        while self.bytes > BYTES_MAX
            && let Some((_, largest)) = self.by_bytes.last()
        {
            self.forget_oldest_of(*largest);
        }
    }

    fn forget_oldest_of(&mut self, client: IpAddr) {
        let oldest = self.shares.get(&client).and_then(|share| share.calls.first_key_value());
        let key = *oldest.expect("a client in the order of sizes has replies").1;
        self.forget(&key);
    }

    /// Forgets a completed call.
    fn forget(&mut self, key: &CallKey) {
        let Entry::Occupied(entry) = self.calls.entry(*key) else { return };
        let Call::Done(done) = entry.get() else { return };
        let (number, bytes) = (done.number, done.bytes());
        entry.remove();
        self.by_age.remove(&number);
        if let Some(share) = self.shares.get_mut(&key.address) {
            share.calls.remove(&number);
        }
        self.resize_share(key.address, |share| share - bytes);
    }

    /// Changes the size of a client's share; one of no size is dropped.
    fn resize_share(&mut self, client: IpAddr, resized: impl FnOnce(usize) -> usize) {
        let share = self.shares.entry(client).or_default();
        let (before, after) = (share.bytes, resized(share.bytes));
        share.bytes = after;
        self.bytes = self.bytes + after - before;
        self.by_bytes.remove(&(before, client));
        if after == 0 {
            self.shares.remove(&client);
        } else {
            self.by_bytes.insert((after, client));
        }
    }
}

impl AtWork {
    /// A copy of a call at work. One copy on each connection waits.
    fn join(&mut self, link: &Arc<Link>) -> Step {
        let is_here = |known: &Arc<Link>| Arc::ptr_eq(known, link);
        if is_here(&self.link) || self.copies.iter().any(|(copy, _)| is_here(copy)) {
            return Step::Duplicate;
        }
        let (wake, woken) = oneshot::channel();
        self.copies.push((Arc::clone(link), wake));
        Step::Wait(Wait::End(woken))
    }
}

impl Done {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.reply.len()
    }

    fn is_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.completed_at) > LIFETIME
    }

    fn relation_to(&self, link: &Arc<Link>, now: Instant) -> Relation {
        let answered_over = self.receipt.link();
        if Arc::ptr_eq(answered_over, link) || answered_over.peer() == link.peer() {
            return Relation::Repetition;
        }
        match self.receipt.delivery() {
            Delivery::Acknowledged => Relation::Another,
            Delivery::Lost => Relation::Repetition,
            Delivery::Pending => {
                let waited = now.saturating_duration_since(self.sent_at);
                let is_dead = waited > ACKNOWLEDGED_WITHIN;
                if is_dead { Relation::Repetition } else { Relation::Undecided }
            }
        }
    }

    fn send_over(&mut self, link: &Arc<Link>, now: Instant) -> Replay {
        self.receipt = Arc::new(Receipt::new(Arc::clone(link)));
        self.sent_at = now;
        Replay { reply: self.reply.clone(), receipt: Arc::clone(&self.receipt) }
    }
}

#[cfg(test)]
mod tests;
