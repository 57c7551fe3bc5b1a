//! The settings in force, and how much there is.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{MonitorFacts, figures, path_text};
use crate::counters::{Counter, Figure};
use crate::export::Export;
use crate::service::Service;
use crate::trace::{Event, Events};
use crate::vfs::Switches;

/// A server at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of the program.
    pub version: String,
    /// The process.
    pub pid: u32,
    /// The configuration file, if there is one.
    pub config: Option<String>,
    /// The state directory.
    pub state_dir: String,
    /// Time since the start.
    pub uptime_seconds: u64,
    /// Addresses of NFS, and of MOUNT with version 3.
    pub listen: Vec<SocketAddr>,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The versions of NFS that are served.
    pub nfs_versions: Vec<String>,
    /// Whether sequential READs past the page cache are read ahead.
    pub read_ahead: bool,
    /// Whether READs are spliced from the page cache to the socket.
    pub splice: bool,
    /// The trace events that are printed.
    pub trace: Vec<String>,
    /// In the order of the configuration.
    pub exports: Vec<ExportStatus>,
    /// Connections, and calls in progress.
    pub connections: ConnectionsStatus,
    /// Memory of the budget.
    pub memory: MemoryStatus,
    /// Counters of what went wrong, by name; those that are 0 are left out.
    pub errors: Vec<(String, u64)>,
    /// The state of version 4, if it is served.
    pub nfs4: Option<Nfs4Status>,
}

/// An export with the modes in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportStatus {
    /// The name that clients mount.
    pub name: String,
    /// The directory.
    pub path: String,
    /// The id in file handles.
    pub id: u32,
    /// The mode of READs.
    pub io_cache_read: String,
    /// The mode of WRITEs.
    pub io_cache_write: String,
    /// Whether sequential READs past the page cache are read ahead: it is on here and for the
    /// server.
    pub read_ahead: bool,
    /// Whether READs are spliced from the page cache to the socket: it is on here and for the
    /// server.
    pub splice: bool,
    /// Whether changes of metadata are durable before their reply.
    pub sync: bool,
    /// Whether each WRITE is FILE_SYNC, whatever its client asks for.
    pub file_sync_writes: bool,
    /// The hosts of all rules.
    pub hosts: Vec<String>,
    /// Whether each rule refuses every change.
    #[serde(default)]
    pub read_only: bool,
}

/// Connections, and calls in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionsStatus {
    /// Client addresses with a connection.
    pub clients: u64,
    /// Connections that are open.
    pub open: u64,
    /// The most that may be open.
    pub max: u64,
    /// Calls in progress.
    pub calls_in_flight: u64,
}

/// The memory budget: buffers, and the write-behind window. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// The most that buffers and window take together.
    pub budget_bytes: u64,
    /// Buffers in use.
    pub buffers_bytes: u64,
    /// The most that buffers take.
    pub buffers_max_bytes: u64,
    /// Written data in the window.
    pub window_bytes: u64,
    /// The most that the window holds.
    pub window_max_bytes: u64,
    /// Files with data in the window.
    pub window_files: u64,
    /// Objects that the server has open between calls.
    pub open_objects: u64,
}

/// The state of version 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nfs4Status {
    /// How long state lasts without a call of its client.
    pub lease_seconds: u64,
    /// Whether clients may reclaim state of before a restart.
    pub is_in_grace: bool,
    /// Clients.
    pub clients: u64,
    /// Sessions.
    pub sessions: u64,
    /// Opens.
    pub opens: u64,
    /// Lock states and locked ranges.
    pub locks: u64,
    /// Requests for locks that wait.
    pub waiting_locks: u64,
    /// Read delegations that clients hold; `None` if none are given.
    pub delegations: Option<u64>,
}

type Figures = BTreeMap<Figure, u64>;

/// The counters that [`Status::errors`] shows.
const ERRORS: [Counter; 8] = [
    Counter::GarbageCalls,
    Counter::DeniedCalls,
    Counter::BrokenConnections,
    Counter::ConnectionsRefused,
    Counter::ConnectionsEvicted,
    Counter::DirectRefused,
    Counter::DirectReadsFailed,
    Counter::ReaddirsCutShort,
];

pub(super) fn of(service: &Service, facts: &MonitorFacts) -> Status {
    let exports = service.exports.load();
    let switches = service.vfs.switches();
    let versions = facts.versions.to_string();
    let figures: Figures = figures(service).into_iter().collect();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        config: None,
        state_dir: path_text(&facts.state_dir),
        uptime_seconds: service.now().as_secs(),
        listen: facts.listen.clone(),
        metrics: None,
        nfs_versions: versions.split(',').map(str::to_owned).collect(),
        read_ahead: switches.read_ahead(),
        splice: switches.splice(),
        trace: trace(service.tracer.events()),
        exports: exports.table.iter().map(|export| export_status(export, switches)).collect(),
        connections: connections(service, &figures),
        memory: memory(&figures),
        errors: errors(service, &figures),
        nfs4: service.serves_v4().then(|| nfs4(service, &figures)),
    }
}

fn trace(events: Events) -> Vec<String> {
    let on = Event::ALL.iter().filter(|event| events.contains(**event));
    on.map(|event| event.name().to_owned()).collect()
}

fn export_status(export: &Export, switches: &Switches) -> ExportStatus {
    ExportStatus {
        name: export.name.clone(),
        path: path_text(&export.path),
        id: export.id,
        io_cache_read: export.policy.read.to_string(),
        io_cache_write: export.policy.write.to_string(),
        read_ahead: export.policy.read_ahead && switches.read_ahead(),
        splice: export.policy.splice && switches.splice(),
        sync: export.sync,
        file_sync_writes: export.file_sync_writes,
        hosts: export.host_specs().collect(),
        read_only: export
            .metadata_servers
            .iter()
            .chain(&export.rules)
            .all(|rule| rule.access.read_only),
    }
}

fn connections(service: &Service, figures: &Figures) -> ConnectionsStatus {
    ConnectionsStatus {
        clients: service.connections.by_peer().len() as u64,
        open: figures[&Figure::ConnectionsOpen],
        max: figures[&Figure::ConnectionsMax],
        calls_in_flight: figures[&Figure::CallsInFlight],
    }
}

fn memory(figures: &Figures) -> MemoryStatus {
    MemoryStatus {
        budget_bytes: figures[&Figure::BuffersMaxBytes] + figures[&Figure::WindowBytesMax],
        buffers_bytes: figures[&Figure::BuffersInUseBytes],
        buffers_max_bytes: figures[&Figure::BuffersMaxBytes],
        window_bytes: figures[&Figure::WindowBytes],
        window_max_bytes: figures[&Figure::WindowBytesMax],
        window_files: figures[&Figure::WindowFiles],
        open_objects: figures[&Figure::OpenObjects],
    }
}

fn errors(service: &Service, figures: &Figures) -> Vec<(String, u64)> {
    let counters = &service.counters;
    let named = |counter: &Counter| (counter.name().to_owned(), counters.value(*counter));
    let mut errors: Vec<_> = ERRORS.iter().map(named).collect();
    let window = Figure::WindowErrors;
    errors.push((window.name().to_owned(), figures[&window]));
    errors.retain(|(_, count)| *count > 0);
    errors
}

fn nfs4(service: &Service, figures: &Figures) -> Nfs4Status {
    Nfs4Status {
        lease_seconds: service.lease().as_secs(),
        is_in_grace: figures[&Figure::Nfs4InGrace] != 0,
        clients: figures[&Figure::Nfs4Clients],
        sessions: figures[&Figure::Nfs4Sessions],
        opens: figures[&Figure::Nfs4Opens],
        locks: figures[&Figure::Nfs4Locks],
        waiting_locks: figures[&Figure::Nfs4WaitingLocks],
        delegations: service.gives_delegations().then(|| figures[&Figure::Nfs4Delegations]),
    }
}
