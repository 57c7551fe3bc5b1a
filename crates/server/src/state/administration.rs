//! An administrator's view of the clients, and operations on them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::nfs4::ClientId;

use super::Step;
use super::registry::State;

/// A client of version 4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientReport {
    pub(crate) id: ClientId,
    /// `co_ownerid`.
    pub(crate) owner: Arc<[u8]>,
    /// The address that it introduced itself from.
    pub(crate) peer: IpAddr,
    /// Whether it has made a session.
    pub(crate) is_confirmed: bool,
    /// Whether its lease has run out, and its state is kept as a courtesy.
    pub(crate) is_expired: bool,
    pub(crate) sessions: usize,
    pub(crate) opens: usize,
    /// Lock states and locked ranges.
    pub(crate) locks: usize,
}

impl State {
    /// All clients, in the order of their ids.
    pub(crate) fn client_reports(&self, now: Duration) -> Vec<ClientReport> {
        let table = self.lock();
        let report = |(id, client): (ClientId, &super::clients::Client)| ClientReport {
            id,
            owner: Arc::clone(&client.owner),
            peer: client.peer,
            is_confirmed: client.is_confirmed,
            is_expired: client.lease.expired_for(now, self.limits.lease).is_some(),
            sessions: client.sessions.len(),
            opens: table.files.opens_of(id),
            locks: table.files.locks_and_ranges_of(id),
        };
        let mut reports: Vec<_> = table.clients.iter().map(report).collect();
        reports.sort_unstable_by_key(|report| report.id);
        reports
    }

    /// Whether there is a client of an address.
    pub(crate) fn has_client_of(&self, peer: IpAddr) -> bool {
        self.lock().clients.of_peer(peer.to_canonical()).next().is_some()
    }

    /// Forgets the clients of an address with all they have; returns how many there were. The
    /// clients notice it by `BADSESSION`, and cannot reclaim anything.
    pub(crate) fn forget_peer(&self, peer: IpAddr, step: &mut Step) -> usize {
        let mut table = self.lock();
        let clients: Vec<_> = table.clients.of_peer(peer.to_canonical()).collect();
        for id in &clients {
            // After a restart it may have introduced itself, and not been confirmed yet.
            table.forbid_to_reclaim(*id);
            self.forget(&mut table, *id, step);
        }
        clients.len()
    }
}
