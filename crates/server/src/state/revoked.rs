//! States that were ended without their clients: opens and lock states of an export that a reload
//! has taken away, and delegations that were not returned. Their stateids stay known until the
//! clients have freed them (RFC 8881 §8.5).

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use proto::nfs4::ClientId;

/// The numbers of revoked states, by client, with the times at which they were revoked.
#[derive(Debug)]
pub(super) struct Revoked {
    clients: HashMap<ClientId, BTreeMap<u64, Duration>>,
    count: usize,
    /// States that stay known. The stateids of others are bad at once.
    states_max: usize,
}

impl Revoked {
    pub(super) fn new(states_max: usize) -> Self {
        Self { clients: HashMap::new(), count: 0, states_max }
    }

    /// Those of all clients.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Those of this client.
    pub(super) fn of_client(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, BTreeMap::len)
    }

    /// Adds a state, unless there are too many: one of each client stays known, so that
    /// [`Self::has_any`] holds.
    pub(super) fn add(&mut self, client: ClientId, number: u64, now: Duration) {
        if self.count < self.states_max || !self.has_any(client) {
            let old = self.clients.entry(client).or_default().insert(number, now);
            assert_eq!(old, None, "a state ends once");
            self.count += 1;
        }
    }

    /// Whether a state of the client was revoked.
    pub(super) fn contains(&self, client: ClientId, number: u64) -> bool {
        self.clients.get(&client).is_some_and(|states| states.contains_key(&number))
    }

    /// Whether the client has any to free.
    pub(super) fn has_any(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }

    /// Forgets a state that the client has freed; false if it has none of this number.
    pub(super) fn free(&mut self, client: ClientId, number: u64) -> bool {
        let Some(states) = self.clients.get_mut(&client) else { return false };
        let is_freed = states.remove(&number).is_some();
        self.count -= usize::from(is_freed);
        if states.is_empty() {
            self.clients.remove(&client);
        }
        is_freed
    }

    /// Forgets those of a client that is forgotten.
    pub(super) fn forget_client(&mut self, client: ClientId) {
        self.count -= self.clients.remove(&client).map_or(0, |states| states.len());
    }

    /// Forgets those that were not freed in time, which begins anew for a client that is cut off:
    /// it has yet to learn of them. Returns the clients that have none left.
    pub(super) fn expire(
        &mut self,
        now: Duration,
        is_cut_off: impl Fn(ClientId) -> bool,
    ) -> Vec<ClientId> {
        let is_late = |at: &Duration| now.saturating_sub(*at) > LIFETIME;
        let mut left = Vec::new();
        for (client, states) in &mut self.clients {
            if is_cut_off(*client) {
                states.values_mut().for_each(|at| *at = now);
                continue;
            }
            let before = states.len();
            states.retain(|_, at| !is_late(at));
            self.count -= before - states.len();
            if states.is_empty() {
                left.push(*client);
            }
        }
        left.iter().for_each(|client| drop(self.clients.remove(client)));
        left
    }
}

/// Opens, lock states and delegations of exports that stay known, about 64 bytes each, beside one
/// of each client.
pub(super) const REVOKED_MAX: usize = 1 << 14;
/// How long they stay known to a client that holds its lease. Linux frees neither what it closes
/// while the filehandle is stale nor a delegation that it does not know, and looks for revoked
/// states after each call until all are freed.
const LIFETIME: Duration = Duration::from_secs(180);
