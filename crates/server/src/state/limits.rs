//! The bounds of the state, in total and for each client address, and the memory that they allow.

use std::time::Duration;

use proto::nfs4::OPAQUE_BYTES_MAX;

use super::ChannelAttributes;
use super::revoked::REVOKED_MAX;

/// At a bound calls get `Delay`, and the client repeats them: expired clients make room first. The
/// bounds of an address are for the clients that introduced themselves from it, so that one host
/// leaves room for the others however many clients it makes up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long state lives without a call of its client.
    pub(crate) lease: Duration,
    /// The longest grace period.
    pub(crate) grace: Duration,
    /// How long an expired client keeps its state if no other needs it.
    pub(crate) courtesy: Duration,
    /// The same of a client that holds byte-range locks. A local program may wait for them in the
    /// kernel, of which the server is not notified.
    pub(crate) lock_courtesy: Duration,
    /// Expired clients with state.
    pub(crate) courteous_max: usize,
    /// Clients, confirmed or not.
    pub(crate) clients_max: usize,
    /// Clients of one address.
    pub(crate) peer_clients_max: usize,
    /// Sessions of all clients.
    pub(crate) sessions_max: usize,
    /// Sessions of one address.
    pub(crate) peer_sessions_max: usize,
    /// Sessions of one client.
    pub(crate) client_sessions_max: usize,
    /// Opens of all clients.
    pub(crate) opens_max: usize,
    /// Opens of one address.
    pub(crate) peer_opens_max: usize,
    /// Lock states of all clients. Those of one owner in a file share one descriptor.
    pub(crate) lock_owners_max: usize,
    /// Lock states of one address.
    pub(crate) peer_lock_owners_max: usize,
    /// Opens of one file.
    pub(crate) file_opens_max: usize,
    /// Opens of one file by one address.
    pub(crate) peer_file_opens_max: usize,
    /// Lock states of one file.
    pub(crate) file_lock_owners_max: usize,
    /// Lock states of one file and one address.
    pub(crate) peer_file_lock_owners_max: usize,
    /// Lock states and locked ranges of all clients.
    pub(crate) locks_max: usize,
    /// Lock states and locked ranges of one address.
    pub(crate) peer_locks_max: usize,
    /// The names of the owners of opens and lock states of all clients, in bytes.
    pub(crate) names_bytes_max: usize,
    /// The names of one address.
    pub(crate) peer_names_bytes_max: usize,
    /// Blocking requests that wait in all files, or whose notices are under way. The clients of
    /// others poll.
    pub(crate) waiters_max: usize,
    /// Blocking requests of one address.
    pub(crate) peer_waiters_max: usize,
    /// Blocking requests of one client that wait.
    pub(crate) client_waiters_max: usize,
    /// Delegations of all clients, revoked ones too.
    pub(crate) delegations_max: usize,
    /// Delegations of one address.
    pub(crate) peer_delegations_max: usize,
    /// How long a client has to return a delegation that another client's call conflicts with.
    pub(crate) recall: Duration,
    /// The same where a local program waits, for which the kernel has a time of its own.
    pub(crate) local_recall: Duration,
    /// The replies that slots keep, in bytes, beside one for each session. An address has a
    /// quarter.
    pub(crate) replies_bytes_max: usize,
    /// The largest fore channel.
    pub(crate) fore: ChannelAttributes,
}

impl Default for Limits {
    fn default() -> Self {
        let bytes_max = (1 << 20) + (64 << 10);
        let fore = ChannelAttributes {
            request_bytes_max: bytes_max,
            response_bytes_max: bytes_max,
            cached_bytes_max: 2 << 10,
            operations_max: 64,
            slots_max: 64,
        };
        let (opens_max, locks_max, delegations_max) = (1 << 16, 1 << 20, 1 << 14);
        let lease = Duration::from_secs(90);
        Self {
            lease,
            grace: Duration::from_secs(90),
            courtesy: Duration::from_secs(24 * 60 * 60),
            // Outlasts a restart of a switch and a short sleep of a laptop.
            lock_courtesy: Duration::from_secs(10 * 60),
            courteous_max: 1024,
            clients_max: 0,
            peer_clients_max: 0,
            sessions_max: 0,
            peer_sessions_max: 0,
            client_sessions_max: 64,
            opens_max,
            peer_opens_max: opens_max / 2,
            lock_owners_max: opens_max,
            peer_lock_owners_max: opens_max / 2,
            file_opens_max: 0,
            peer_file_opens_max: 0,
            file_lock_owners_max: FILE_LOCK_OWNERS_MAX,
            peer_file_lock_owners_max: FILE_LOCK_OWNERS_MAX / 2,
            locks_max,
            peer_locks_max: locks_max / 2,
            names_bytes_max: NAMES_BYTES_MAX,
            peer_names_bytes_max: NAMES_BYTES_MAX / 2,
            waiters_max: WAITERS_MAX,
            peer_waiters_max: WAITERS_MAX / 2,
            client_waiters_max: CLIENT_WAITERS_MAX,
            delegations_max,
            peer_delegations_max: delegations_max / 2,
            recall: lease,
            local_recall: Duration::from_secs(30),
            replies_bytes_max: 32 << 20,
            fore,
        }
        .with_clients(1 << 12, 1 << 13)
    }
}

impl Limits {
    /// So many clients and sessions, of which an address has a quarter. As many opens of one file,
    /// so that all clients can run one program; of these an address has half.
    pub(crate) fn with_clients(self, clients_max: usize, sessions_max: usize) -> Self {
        let part = |all: usize| (all / PEER_PART).max(PEER_CLIENTS_MIN).min(all);
        let file_opens_max = clients_max.max(FILE_OPENS_MIN);
        Self {
            clients_max,
            peer_clients_max: part(clients_max),
            sessions_max,
            peer_sessions_max: part(sessions_max),
            file_opens_max,
            peer_file_opens_max: file_opens_max.div_ceil(2),
            ..self
        }
    }

    /// So many opens, lock states, and locks, of which an address has half.
    pub(crate) fn with_files(self, opens: usize, lock_owners: usize, locks: usize) -> Self {
        Self {
            opens_max: opens,
            peer_opens_max: opens.div_ceil(2),
            lock_owners_max: lock_owners,
            peer_lock_owners_max: lock_owners.div_ceil(2),
            locks_max: locks,
            peer_locks_max: locks.div_ceil(2),
            ..self
        }
    }

    /// So many delegations, of which an address has half.
    pub(crate) fn with_delegations(self, delegations_max: usize) -> Self {
        let peer_delegations_max = delegations_max.div_ceil(2);
        Self { delegations_max, peer_delegations_max, ..self }
    }

    /// The sessions, in bytes: each has its slots, and the reply of the first.
    pub(crate) fn sessions_bytes(&self) -> usize {
        let slots = self.fore.slots_max as usize * SLOT_BYTES;
        self.sessions_max * (SESSION_BYTES + slots + self.fore.cached_bytes_max as usize)
    }

    /// Clients, opens, locks and waiting requests with their notices, in bytes, with names of the
    /// greatest length.
    pub(crate) fn owners_bytes(&self) -> usize {
        let named = self.clients_max + self.waiters_max;
        named * (OPAQUE_BYTES_MAX + NAMED_BYTES)
            + self.opens_max * OPEN_BYTES
            + self.lock_owners_max * LOCK_STATE_BYTES
            + self.names_bytes_max
            + self.locks_max * RANGE_BYTES
            + (REVOKED_MAX + self.clients_max) * REVOKED_BYTES
    }

    /// Delegations, each with its recall, in bytes.
    pub(crate) fn delegations_bytes(&self) -> usize {
        self.delegations_max * DELEGATION_BYTES
    }
}

/// An address has this part of the clients and sessions, but not fewer than so many.
const PEER_PART: usize = 4;
const PEER_CLIENTS_MIN: usize = 64;
/// One file may have so many opens at least: Linux has one for each of its users.
const FILE_OPENS_MIN: usize = 1024;
const FILE_LOCK_OWNERS_MAX: usize = 1024;
/// A slot without its reply.
const SLOT_BYTES: usize = 64;
/// A session without its slots.
const SESSION_BYTES: usize = 512;
/// A client, or a waiting request and its notice, without the name of its owner.
const NAMED_BYTES: usize = 512;
/// An open of a file that nothing else has open, without the name of its owner.
const OPEN_BYTES: usize = 1408;
/// A lock state without the name of its owner.
const LOCK_STATE_BYTES: usize = 512;
/// A state that was revoked.
const REVOKED_BYTES: usize = 64;
/// Names of owners of opens and lock states, together. Those of Linux have 24 bytes.
const NAMES_BYTES_MAX: usize = 16 << 20;
/// Requests that wait for locks.
const WAITERS_MAX: usize = 1 << 14;
const CLIENT_WAITERS_MAX: usize = 1 << 10;
/// A delegation and its recall, each with a handle.
const DELEGATION_BYTES: usize = 1024;
/// A locked range.
const RANGE_BYTES: usize = 64;
