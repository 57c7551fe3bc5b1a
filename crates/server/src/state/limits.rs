//! The bounds of the state, in total and for each client.

use std::time::Duration;

use super::ChannelAttributes;

/// At a bound calls get `Delay`, and the client repeats them: expired clients make room first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long state lives without a call of its client.
    pub(crate) lease: Duration,
    /// The longest grace period.
    pub(crate) grace: Duration,
    /// How long an expired client keeps its state if no other needs it.
    pub(crate) courtesy: Duration,
    /// Expired clients with state.
    pub(crate) courteous_max: usize,
    /// Clients, confirmed or not.
    pub(crate) clients_max: usize,
    /// Sessions of all clients.
    pub(crate) sessions_max: usize,
    /// Sessions of one client.
    pub(crate) client_sessions_max: usize,
    /// Opens of all clients.
    pub(crate) opens_max: usize,
    /// Opens of one client.
    pub(crate) client_opens_max: usize,
    /// Lock states of all clients: each has a descriptor.
    pub(crate) lock_owners_max: usize,
    /// Lock states of one client.
    pub(crate) client_lock_owners_max: usize,
    /// Opens of one file.
    pub(crate) file_opens_max: usize,
    /// Lock states of one file.
    pub(crate) file_lock_owners_max: usize,
    /// Lock states and locked ranges of all clients.
    pub(crate) locks_max: usize,
    /// Lock states and locked ranges of one client.
    pub(crate) client_locks_max: usize,
    /// Slots of all sessions together, to which the sessions are steered. With `fore.cached_bytes_max`
    /// this bounds the memory of replies.
    pub(crate) slots_max: u32,
    /// The largest fore channel.
    pub(crate) fore: ChannelAttributes,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(90),
            grace: Duration::from_secs(90),
            courtesy: Duration::from_secs(24 * 60 * 60),
            courteous_max: 1024,
            clients_max: 4096,
            sessions_max: 8192,
            client_sessions_max: 64,
            opens_max: 1 << 16,
            client_opens_max: 1 << 15,
            lock_owners_max: 1 << 16,
            client_lock_owners_max: 1 << 15,
            file_opens_max: 1024,
            file_lock_owners_max: 1024,
            locks_max: 1 << 20,
            client_locks_max: 1 << 18,
            slots_max: 1 << 14,
            fore: ChannelAttributes {
                request_bytes_max: (1 << 20) + (64 << 10),
                response_bytes_max: (1 << 20) + (64 << 10),
                cached_bytes_max: 4 << 10,
                operations_max: 64,
                slots_max: 64,
            },
        }
    }
}

impl Limits {
    /// At most so many opens and lock owners, of which a client has half.
    pub(crate) fn within(self, opens: usize, lock_owners: usize) -> Self {
        let opens_max = self.opens_max.min(opens);
        let lock_owners_max = self.lock_owners_max.min(lock_owners);
        Self {
            opens_max,
            client_opens_max: opens_max / 2,
            lock_owners_max,
            client_lock_owners_max: lock_owners_max / 2,
            ..self
        }
    }
}
