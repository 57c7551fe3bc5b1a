//! How much of everything a server has.

use crate::counters::Figure;
use crate::service::Service;

/// All figures, in the order of their table.
pub(crate) fn figures(service: &Service) -> Vec<(Figure, u64)> {
    let (state, connections) = (service.state.counts(), &service.connections);
    let delegations = service.state.delegation_totals();
    let mut figures = service.vfs.figures().to_vec();
    figures.extend([
        (Figure::WindowBytesMax, service.memory.window_bytes as u64),
        (Figure::Nfs4Clients, state.clients as u64),
        (Figure::Nfs4Sessions, state.sessions as u64),
        (Figure::Nfs4Opens, state.opens as u64),
        (Figure::Nfs4Locks, state.locks as u64),
        (Figure::Nfs4Delegations, state.delegations as u64),
        (Figure::Nfs4DelegationsGranted, delegations.granted),
        (Figure::Nfs4DelegationsRecalled, delegations.recalled),
        (Figure::Nfs4DelegationsReturned, delegations.returned),
        (Figure::Nfs4DelegationsRevoked, delegations.revoked),
        (Figure::Nfs4WaitingLocks, state.waiting as u64),
        (Figure::Nfs4RepliesBytes, state.replies_bytes as u64),
        (Figure::Nfs4InGrace, u64::from(state.is_in_grace)),
        (Figure::ConnectionsOpen, connections.open() as u64),
        (Figure::ConnectionsMax, connections.max() as u64),
        (Figure::CallsInFlight, connections.calls_in_flight() as u64),
        (Figure::BuffersInUseBytes, service.buffers.bytes_in_use() as u64),
        (Figure::BuffersMappedBytes, service.buffers.bytes_mapped() as u64),
        (Figure::BuffersMaxBytes, service.memory.pool_bytes as u64),
        (Figure::BufferWaiters, service.buffers.waiters() as u64),
        (Figure::UptimeSeconds, service.now().as_secs()),
    ]);
    figures.sort_unstable();
    figures
}
