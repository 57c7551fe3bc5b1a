//! All that is counted, at a moment. Rates are differences of two samples.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::counters::{
    CallKind, ClientCounters, Counter, Figure, FigureKind, HistogramValue, Operation,
    OperationValue, Phase,
};
use crate::service::Service;

/// Characters of a client's owner in a sample. All of its 1 KiB would be up to 5 KiB of JSON, and
/// the sample of 65,536 clients longer than commands take.
const OWNER_CHARS_MAX: usize = 128;

/// All that is counted since the start of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Microseconds since the start.
    pub uptime_us: u64,
    /// When the server was started, in nanoseconds since 1970: no two servers have the same. 0 from
    /// one that does not report it.
    #[serde(default)]
    pub start_ns: u64,
    /// Counters of the whole server, and what there is now, by name with the unit last.
    pub figures: BTreeMap<String, u64>,
    /// Each export that is served; the last one, without a name, is what belongs to none.
    pub exports: Vec<ExportSample>,
    /// Client addresses; the one without an address is all others together.
    pub clients: Vec<ClientSample>,
    /// How long the parts of the work on calls have taken, while calls were timed.
    pub phases: Vec<PhaseSample>,
}

/// The counts of one export, and its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportSample {
    /// The name that clients mount; `None` for operations on no export.
    pub name: Option<String>,
    /// The directory.
    pub path: Option<String>,
    /// Major and minor number of its device.
    pub device: Option<(u32, u32)>,
    /// The mode of READs.
    pub io_cache_read: Option<String>,
    /// The mode of WRITEs.
    pub io_cache_write: Option<String>,
    /// Counters by name; those that are 0 are left out.
    pub counters: BTreeMap<String, u64>,
    /// Operations that were performed at least once.
    pub operations: Vec<OperationSample>,
    /// How long the parts of the work on READ, WRITE, COMMIT and other calls have taken, by that
    /// name.
    #[serde(default)]
    pub phases: BTreeMap<String, Vec<PhaseSample>>,
}

/// How often an operation was performed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationSample {
    /// `nfs3`, `nfs4` or `mount3`.
    pub program: String,
    /// The RFC's own spelling.
    pub name: String,
    /// All, whatever their status.
    pub calls: u64,
    /// Those that ended in another status than success, by its name.
    pub failures: BTreeMap<String, u64>,
    /// Those that were timed, and their time together in microseconds.
    pub timed: u64,
    /// See `timed`.
    pub microseconds: u64,
}

/// The counts of one client address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientSample {
    /// `None` for all others together: strangers, and clients beyond the bound.
    pub address: Option<IpAddr>,
    /// Connections that are open.
    pub connections: u64,
    /// Calls in progress.
    pub calls_in_flight: u64,
    /// Calls received. A COMPOUND is one.
    pub calls: u64,
    /// Operations performed, by program and name: `nfs3 READ`.
    pub operations: BTreeMap<String, u64>,
    /// Operations that ended in another status than success.
    pub failures: u64,
    /// Bytes of its calls.
    pub received_bytes: u64,
    /// Bytes of the replies to it.
    pub sent_bytes: u64,
    /// Calls that were timed, and their time together in microseconds.
    pub timed: u64,
    /// See `timed`.
    pub microseconds: u64,
    /// How long the parts of the work on its calls have taken; those that were timed.
    #[serde(default)]
    pub phases: Vec<PhaseSample>,
    /// Its clients of version 4.
    pub nfs4: Vec<Nfs4Client>,
}

/// A client of version 4.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nfs4Client {
    /// `clientid4`, in hexadecimal.
    pub id: String,
    /// The name that the client gives itself (`co_ownerid`), in printable characters: the first
    /// 128, with `...` behind them if there are more.
    pub owner: String,
    /// Whether it has made a session.
    pub is_confirmed: bool,
    /// Whether its lease has run out, and its state is kept as a courtesy.
    pub is_expired: bool,
    /// Sessions.
    pub sessions: u64,
    /// Opens.
    pub opens: u64,
    /// Lock states and locked ranges.
    pub locks: u64,
}

/// How long a part of the work on calls has taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseSample {
    /// `queue`, `permission`, `io`, `sync` or `send`.
    pub name: String,
    /// How often it was timed.
    pub timed: u64,
    /// Together, in microseconds.
    pub microseconds: u64,
}

pub(super) fn of(service: &Service) -> Sample {
    let counters = &service.counters;
    let named = |counter: &Counter| (counter.name().to_owned(), counters.value(*counter));
    let mut figures: BTreeMap<_, _> = Counter::ALL.iter().map(named).collect();
    let others = super::figures(service).into_iter();
    figures.extend(others.map(|(figure, value)| (figure.name().to_owned(), value)));
    Sample {
        uptime_us: u64::try_from(service.now().as_micros()).unwrap_or(u64::MAX),
        start_ns: service.start_ns,
        figures,
        exports: exports(service),
        clients: clients(service),
        phases: Phase::ALL
            .iter()
            .map(|phase| phase_sample(*phase, &counters.phase_of_all(*phase)))
            .collect(),
    }
}

fn exports(service: &Service) -> Vec<ExportSample> {
    let (exports, counters) = (service.exports.load(), &service.counters);
    let mut samples: Vec<_> = exports
        .table
        .iter()
        .map(|export| ExportSample {
            name: Some(export.name.clone()),
            path: Some(super::path_text(&export.path)),
            device: Some(exports.root(export).device()),
            io_cache_read: Some(export.policy.read.to_string()),
            io_cache_write: Some(export.policy.write.to_string()),
            counters: nonzero(|counter| counters.export_value(export.id, counter)),
            operations: operations(counters.operations(Some(export.id))),
            phases: phases(service, Some(export.id)),
        })
        .collect();
    samples.push(ExportSample {
        counters: nonzero(|counter| counters.general().value(counter)),
        operations: operations(counters.operations(None)),
        phases: phases(service, None),
        ..ExportSample::default()
    });
    samples
}

fn nonzero(value: impl Fn(Counter) -> u64) -> BTreeMap<String, u64> {
    let all = Counter::ALL.iter().map(|counter| (counter.name().to_owned(), value(*counter)));
    all.filter(|(_, value)| *value > 0).collect()
}

fn operations(values: Vec<(Operation, OperationValue)>) -> Vec<OperationSample> {
    let sample = |(operation, value): (Operation, OperationValue)| {
        let (timed, microseconds) = times(&value.times);
        let calls = value.calls();
        let failures = value.failures.into_iter();
        OperationSample {
            program: operation.program().to_owned(),
            name: operation.name().to_owned(),
            calls,
            failures: failures
                .map(|(code, count)| (operation.status_name(code).to_owned(), count))
                .collect(),
            timed,
            microseconds,
        }
    };
    values.into_iter().map(sample).collect()
}

fn times(times: &HistogramValue) -> (u64, u64) {
    (times.count(), times.nanoseconds / 1000)
}

/// The phases of each kind of calls for an export, or for none, that were timed at least once.
fn phases(service: &Service, export: Option<u32>) -> BTreeMap<String, Vec<PhaseSample>> {
    let of = |kind: CallKind| {
        let samples = Phase::ALL
            .iter()
            .map(|phase| phase_sample(*phase, &service.counters.phase(export, kind, *phase)));
        samples.filter(|phase| phase.timed > 0).collect::<Vec<_>>()
    };
    let all = CallKind::ALL.iter().map(|kind| (kind.name().to_owned(), of(*kind)));
    all.filter(|(_, phases)| !phases.is_empty()).collect()
}

fn phase_sample(phase: Phase, value: &HistogramValue) -> PhaseSample {
    let (timed, microseconds) = times(value);
    PhaseSample { name: phase.name().to_owned(), timed, microseconds }
}

fn phases_of_client(counters: &ClientCounters) -> Vec<PhaseSample> {
    let sample = |phase: &Phase| {
        let (timed, nanoseconds) = counters.phase(*phase);
        PhaseSample { name: phase.name().to_owned(), timed, microseconds: nanoseconds / 1000 }
    };
    Phase::ALL.iter().map(sample).filter(|phase| phase.timed > 0).collect()
}

fn clients(service: &Service) -> Vec<ClientSample> {
    let mut by_address: BTreeMap<Option<IpAddr>, ClientSample> = BTreeMap::new();
    for (address, counters) in service.counters.clients.all() {
        by_address.insert(address, client_sample(address, &counters));
    }
    for peer in service.connections.by_peer() {
        let known = by_address.contains_key(&Some(peer.address));
        let sample = by_address.entry(known.then_some(peer.address)).or_default();
        sample.connections += peer.connections as u64;
        sample.calls_in_flight += peer.calls as u64;
    }
    for report in service.state.client_reports(service.now()) {
        let known = by_address.contains_key(&Some(report.peer));
        let sample = by_address.entry(known.then_some(report.peer)).or_default();
        sample.nfs4.push(Nfs4Client {
            id: format!("{:016x}", report.id.0),
            owner: owner_text(&report.owner),
            is_confirmed: report.is_confirmed,
            is_expired: report.is_expired,
            sessions: report.sessions as u64,
            opens: report.opens as u64,
            locks: report.locks as u64,
        });
    }
    by_address.into_values().collect()
}

/// The owner of a client in printable characters, cut behind [`OWNER_CHARS_MAX`].
fn owner_text(owner: &[u8]) -> String {
    let mut text = String::new();
    for escaped in owner.iter().copied().map(u8::escape_ascii) {
        if text.len() + escaped.len() > OWNER_CHARS_MAX {
            return text + "...";
        }
        text.extend(escaped.map(char::from));
    }
    text
}

fn client_sample(address: Option<IpAddr>, counters: &ClientCounters) -> ClientSample {
    let performed = Operation::all().map(|operation| (operation, counters.operations(operation)));
    let performed = performed.filter(|(_, count)| *count > 0);
    let name = |operation: Operation| format!("{} {}", operation.program(), operation.name());
    let (timed, nanoseconds) = counters.times();
    ClientSample {
        address,
        calls: counters.calls(),
        operations: performed.map(|(operation, count)| (name(operation), count)).collect(),
        failures: counters.failures(),
        received_bytes: counters.received_bytes(),
        sent_bytes: counters.sent_bytes(),
        timed,
        microseconds: nanoseconds / 1000,
        phases: phases_of_client(counters),
        ..ClientSample::default()
    }
}

impl Sample {
    /// The counts between `earlier` and this, or since the start if `earlier` is of another server.
    /// Values that are no counts stay as they are.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        if earlier.start_ns != self.start_ns || earlier.uptime_us > self.uptime_us {
            return self.clone();
        }
        let mut difference = self.clone();
        difference.uptime_us -= earlier.uptime_us;
        for name in counted_names() {
            if let Some(value) = difference.figures.get_mut(name) {
                *value = less(*value, earlier.figures.get(name));
            }
        }
        for export in &mut difference.exports {
            if let Some(before) = earlier.exports.iter().find(|before| before.name == export.name) {
                export.subtract(before);
            }
        }
        for client in &mut difference.clients {
            let mut clients = earlier.clients.iter();
            if let Some(before) = clients.find(|before| before.address == client.address) {
                client.subtract(before);
            }
        }
        subtract_phases(&mut difference.phases, &earlier.phases);
        difference
    }
}

/// The names of the figures that only grow.
fn counted_names() -> impl Iterator<Item = &'static str> {
    let counters = Counter::ALL.iter().map(|counter| counter.name());
    let grows = |figure: &&Figure| figure.kind() == FigureKind::Counter;
    counters.chain(Figure::ALL.iter().filter(grows).map(|figure| figure.name()))
}

fn less(value: u64, earlier: Option<&u64>) -> u64 {
    value.saturating_sub(earlier.copied().unwrap_or_default())
}

fn subtract(values: &mut BTreeMap<String, u64>, earlier: &BTreeMap<String, u64>) {
    values.iter_mut().for_each(|(name, value)| *value = less(*value, earlier.get(name)));
    values.retain(|_, value| *value > 0);
}

fn subtract_phases(phases: &mut [PhaseSample], earlier: &[PhaseSample]) {
    for phase in phases {
        if let Some(before) = earlier.iter().find(|before| before.name == phase.name) {
            phase.timed = less(phase.timed, Some(&before.timed));
            phase.microseconds = less(phase.microseconds, Some(&before.microseconds));
        }
    }
}

impl ExportSample {
    fn subtract(&mut self, earlier: &Self) {
        subtract(&mut self.counters, &earlier.counters);
        for operation in &mut self.operations {
            let is_same = |before: &&OperationSample| {
                (&before.program, &before.name) == (&operation.program, &operation.name)
            };
            if let Some(before) = earlier.operations.iter().find(is_same) {
                operation.calls = less(operation.calls, Some(&before.calls));
                operation.timed = less(operation.timed, Some(&before.timed));
                operation.microseconds = less(operation.microseconds, Some(&before.microseconds));
                subtract(&mut operation.failures, &before.failures);
            }
        }
        self.operations.retain(|operation| operation.calls > 0);
        for (kind, phases) in &mut self.phases {
            subtract_phases(phases, earlier.phases.get(kind).map_or(&[], Vec::as_slice));
        }
    }
}

impl ClientSample {
    fn subtract(&mut self, earlier: &Self) {
        subtract(&mut self.operations, &earlier.operations);
        self.calls = less(self.calls, Some(&earlier.calls));
        self.failures = less(self.failures, Some(&earlier.failures));
        self.received_bytes = less(self.received_bytes, Some(&earlier.received_bytes));
        self.sent_bytes = less(self.sent_bytes, Some(&earlier.sent_bytes));
        self.timed = less(self.timed, Some(&earlier.timed));
        self.microseconds = less(self.microseconds, Some(&earlier.microseconds));
        subtract_phases(&mut self.phases, &earlier.phases);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(uptime_us: u64, calls: u64, connections: u64) -> Sample {
        let figures = [("calls", calls), ("connections_open", connections)];
        let operation = OperationSample {
            program: "nfs3".to_owned(),
            name: "READ".to_owned(),
            calls,
            failures: BTreeMap::from([("NFS3ERR_STALE".to_owned(), 1)]),
            ..OperationSample::default()
        };
        let client = ClientSample { calls, connections, ..ClientSample::default() };
        Sample {
            uptime_us,
            start_ns: 7,
            figures: figures.map(|(name, value)| (name.to_owned(), value)).into(),
            exports: vec![ExportSample { operations: vec![operation], ..ExportSample::default() }],
            clients: vec![client],
            phases: Vec::new(),
        }
    }

    #[test]
    fn counters_are_subtracted_and_gauges_kept() {
        let (before, after) = (sample(1_000_000, 5, 3), sample(3_000_000, 12, 2));
        let difference = after.since(&before);
        assert_eq!(difference.uptime_us, 2_000_000);
        assert_eq!((difference.figures["calls"], difference.figures["connections_open"]), (7, 2));
        let operation = &difference.exports[0].operations[0];
        assert_eq!((operation.calls, operation.failures.len()), (7, 0));
        assert_eq!((difference.clients[0].calls, difference.clients[0].connections), (7, 2));
        assert!(after.since(&after).exports[0].operations.is_empty());
    }

    #[test]
    fn a_long_owner_is_cut_between_characters_and_marked() {
        assert_eq!(owner_text(b"Linux NFSv4.2 \"host\"\0"), "Linux NFSv4.2 \\\"host\\\"\\x00");
        let longest = [b'a'; OWNER_CHARS_MAX];
        assert_eq!(owner_text(&longest), "a".repeat(OWNER_CHARS_MAX));
        assert_eq!(owner_text(&[&longest[..], b"b"].concat()), "a".repeat(OWNER_CHARS_MAX) + "...");
        let cut = "a".to_owned() + &"\\xff".repeat((OWNER_CHARS_MAX - 1) / 4) + "...";
        assert_eq!(owner_text(&[b"a", &[0xff; 1023][..]].concat()), cut);
    }

    #[test]
    fn a_server_that_was_restarted_is_shown_from_its_start() {
        let (before, after) = (sample(9_000_000, 50, 3), sample(1_000_000, 2, 1));
        assert_eq!(after.since(&before), after);
        assert_eq!(after.since(&Sample::default()), after);
        // It was started soon after the sample of the one before, which was new as well.
        let before = Sample { start_ns: 1, ..sample(500_000, 50, 3) };
        assert_eq!(after.since(&before), after);
    }
}
