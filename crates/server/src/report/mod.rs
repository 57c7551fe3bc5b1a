//! Reports of a running server on itself: its status, and samples of all that is counted.
//!
//! The types are those that the control socket carries. They can be read back, so that a command
//! sees what the server has sent.

mod figures;
mod follow;
mod prometheus;
mod requests;
mod sample;
mod status;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use figures::figures;
pub use follow::{TraceFeed, TraceLine, TraceRequest, trace_events};
pub use prometheus::metric_names;
pub use requests::RequestRecord;
pub use sample::{ClientSample, ExportSample, Nfs4Client, OperationSample, PhaseSample, Sample};
pub use status::{ConnectionsStatus, ExportStatus, MemoryStatus, Nfs4Status, Status};

use crate::config::NfsVersions;
use crate::service::{Dropped, Service};

/// A path as reports have it. They are text: bytes that are not UTF-8 become U+FFFD.
pub fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Reports about a running server, from any thread. Nothing here waits for a disk.
#[derive(Clone)]
pub struct Monitor {
    service: Arc<Service>,
    facts: Arc<MonitorFacts>,
}

/// Facts that do not change while the server runs.
pub(crate) struct MonitorFacts {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) state_dir: PathBuf,
    pub(crate) versions: NfsVersions,
}

/// The outcome of [`Monitor::drop_client`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedClient {
    /// Its connections. Calls in progress are completed and answered first.
    pub connections: usize,
    /// Its clients of version 4, each with all sessions, opens and locks.
    pub nfs4_clients: usize,
    /// Calls that had not ended after a minute, and still run.
    #[serde(default)]
    pub calls_in_progress: usize,
}

impl Monitor {
    pub(crate) fn new(service: Arc<Service>, facts: MonitorFacts) -> Self {
        Self { service, facts: Arc::new(facts) }
    }

    /// The settings in force, and how much there is.
    pub fn status(&self) -> Status {
        status::of(&self.service, &self.facts)
    }

    /// All that is counted, and what there is now.
    pub fn sample(&self) -> Sample {
        sample::of(&self.service)
    }

    /// All of it in the text format of Prometheus, version 0.0.4.
    pub fn metrics(&self) -> String {
        prometheus::text(&self.service)
    }

    /// Has calls timed for some seconds from now on.
    pub fn time_calls_for(&self, seconds: u64) {
        self.service.counters.timing.keep_on_for(seconds);
    }

    /// Ends the connections of a client address once its calls in progress have ended, for which
    /// it waits a minute at most, and then all its state of version 4, which others can have at
    /// once. The client may connect again.
    pub async fn drop_client(&self, address: IpAddr) -> DroppedClient {
        let dropped = self.service.drop_client(address).await;
        let Dropped { connections, nfs4_clients, calls_in_progress } = dropped;
        DroppedClient { connections, nfs4_clients, calls_in_progress }
    }
}
