//! Counters of each client address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::operations::Operation;
use super::timing::Phase;

/// Client addresses that are counted by themselves, about 1 KiB each. At the bound, the one that
/// has been without a connection for longest is forgotten. Added to the others, its counts would
/// look like new work of theirs.
const CLIENTS_MAX: usize = 1024;
/// The most memory that a [`ClientTable`] takes. A hash table of this many entries has two buckets
/// for each, with a control byte; each client and the others have counters behind two reference
/// counts.
pub(crate) const CLIENTS_BYTES_MAX: usize = 2 * CLIENTS_MAX * (size_of::<(IpAddr, Entry)>() + 1)
    + (CLIENTS_MAX + 1) * (size_of::<ClientCounters>() + 2 * size_of::<usize>());

/// The counters of one client address.
#[derive(Debug)]
pub(crate) struct ClientCounters {
    operations: [AtomicU64; Operation::COUNT],
    failures: AtomicU64,
    calls: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    /// Of the calls that were timed.
    times: Times,
    /// Of the phases of these calls.
    phases: [Times; Phase::ALL.len()],
}

/// How often something was timed, and the times together.
#[derive(Debug, Default)]
struct Times {
    timed: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Times {
    fn add(&self, nanoseconds: u64) {
        self.timed.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn value(&self) -> (u64, u64) {
        (self.timed.load(Ordering::Relaxed), self.nanoseconds.load(Ordering::Relaxed))
    }
}

impl Default for ClientCounters {
    fn default() -> Self {
        Self {
            operations: [const { AtomicU64::new(0) }; Operation::COUNT],
            failures: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            times: Times::default(),
            phases: Default::default(),
        }
    }
}

impl ClientCounters {
    /// Counts a call by its length.
    pub(crate) fn count_call(&self, bytes: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a reply by its length.
    pub(crate) fn count_reply(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_operation(&self, operation: Operation) {
        self.operations[operation.place()].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the time from a call's last byte to the end of its reply.
    pub(crate) fn note_time(&self, nanoseconds: u64) {
        self.times.add(nanoseconds);
    }

    /// Notes the time of a phase of a call.
    pub(crate) fn note_phase(&self, phase: Phase, nanoseconds: u64) {
        self.phases[phase as usize].add(nanoseconds);
    }

    /// How often an operation was performed for it.
    pub(crate) fn operations(&self, operation: Operation) -> u64 {
        self.operations[operation.place()].load(Ordering::Relaxed)
    }

    /// Operations that ended in another status than success.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    /// The calls that were timed, and all their time.
    pub(crate) fn times(&self) -> (u64, u64) {
        self.times.value()
    }

    /// How often a phase was timed, and all its time.
    pub(crate) fn phase(&self, phase: Phase) -> (u64, u64) {
        self.phases[phase as usize].value()
    }
}

/// The counters of all clients. A connection holds those of its peer while it is open.
#[derive(Debug, Default)]
pub(crate) struct ClientTable {
    known: RwLock<Known>,
    /// Peers that no export admits, and clients without a place.
    others: Arc<ClientCounters>,
}

#[derive(Debug, Default)]
struct Known {
    by_address: HashMap<IpAddr, Entry>,
    /// Counts connections: the clock of what was used last.
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    counters: Arc<ClientCounters>,
    /// When it last connected.
    used: u64,
}

impl ClientTable {
    /// The counters for a new connection of a peer.
    pub(crate) fn of(&self, address: IpAddr, is_stranger: bool) -> Arc<ClientCounters> {
        let address = address.to_canonical();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let Known { by_address, clock } = &mut *known;
        *clock += 1;
        if let Some(entry) = by_address.get_mut(&address) {
            entry.used = *clock;
            return Arc::clone(&entry.counters);
        }
        // So that no peers without rights take the place of clients.
        if is_stranger || (by_address.len() >= CLIENTS_MAX && !make_room(by_address)) {
            return Arc::clone(&self.others);
        }
        let entry = Entry { counters: Arc::default(), used: *clock };
        let counters = Arc::clone(&entry.counters);
        by_address.insert(address, entry);
        counters
    }

    /// All that are counted by themselves, by address, and the others.
    pub(crate) fn all(&self) -> Vec<(Option<IpAddr>, Arc<ClientCounters>)> {
        let known = self.known();
        let clients = known.by_address.iter();
        let mut all: Vec<_> =
            clients.map(|(address, entry)| (Some(*address), Arc::clone(&entry.counters))).collect();
        all.push((None, Arc::clone(&self.others)));
        all
    }

    /// Notes the time of a phase of a call of the client whose address, as one of IPv6, has these
    /// bits.
    pub(super) fn note_phase(&self, client: u128, phase: Phase, nanoseconds: u64) {
        let address = Ipv6Addr::from_bits(client).to_canonical();
        let known = self.known();
        let counters = known.by_address.get(&address).map_or(&self.others, |entry| &entry.counters);
        counters.note_phase(phase, nanoseconds);
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets the client that has been without a connection for longest; whether there is one.
fn make_room(by_address: &mut HashMap<IpAddr, Entry>) -> bool {
    let unused = by_address.iter().filter(|(_, entry)| Arc::strong_count(&entry.counters) == 1);
    let oldest = unused.min_by_key(|(_, entry)| entry.used).map(|(address, _)| *address);
    oldest.and_then(|address| by_address.remove(&address)).is_some()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: usize) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(number).unwrap()))
    }

    fn calls_of(table: &ClientTable, asked: Option<IpAddr>) -> Option<u64> {
        let found = table.all().into_iter().find(|(address, _)| *address == asked);
        found.map(|(_, counters)| counters.calls())
    }

    #[test]
    fn connections_of_a_client_count_together() {
        let table = ClientTable::default();
        let mapped = "::ffff:0.0.0.1".parse().unwrap();
        table.of(address(1), false).count_call(100);
        table.of(mapped, false).count_call(50);
        let client = table.of(address(1), false);
        assert_eq!((client.calls(), client.received_bytes()), (2, 150));
    }

    #[test]
    fn the_table_is_bounded_and_a_client_that_left_is_no_new_work_of_the_others() {
        let table = ClientTable::default();
        let connected = table.of(address(0), false);
        for number in 0..CLIENTS_MAX + 10 {
            table.of(address(number), false).count_call(1);
        }
        assert_eq!(table.all().len(), CLIENTS_MAX + 1);
        assert_eq!(calls_of(&table, Some(address(0))), Some(1), "it has a connection");
        assert_eq!(calls_of(&table, Some(address(1))), None);
        assert_eq!(calls_of(&table, None), Some(0));
        let all: u64 = table.all().iter().map(|(_, counters)| counters.calls()).sum();
        assert_eq!(all, CLIENTS_MAX as u64, "no call of those in the table is lost");
        drop(connected);
    }

    #[test]
    fn phases_are_those_of_the_client_while_it_has_its_place() {
        let table = ClientTable::default();
        let client = table.of(address(7), false);
        table.note_phase(Ipv4Addr::from_bits(7).to_ipv6_mapped().to_bits(), Phase::Io, 500);
        client.note_phase(Phase::Send, 20);
        table.note_phase(8, Phase::Io, 1);
        assert_eq!((client.phase(Phase::Io), client.phase(Phase::Send)), ((1, 500), (1, 20)));
        assert_eq!(client.phase(Phase::Queue), (0, 0));
        drop(client);
        (100..100 + CLIENTS_MAX).for_each(|number| drop(table.of(address(number), false)));
        table.note_phase(Ipv4Addr::from_bits(7).to_ipv6_mapped().to_bits(), Phase::Io, 500);
        assert_eq!(table.others.phase(Phase::Io), (2, 501));
    }

    #[test]
    fn strangers_take_no_place() {
        let table = ClientTable::default();
        for number in 0..2 * CLIENTS_MAX {
            table.of(address(number), true).count_call(1);
        }
        assert_eq!(table.all().len(), 1);
        assert_eq!(calls_of(&table, None), Some(2 * CLIENTS_MAX as u64));
    }
}
