//! Trace events of a running server, for a command that follows them.

use std::fmt;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::Monitor;
use crate::service::Service;
use crate::trace::{Event, FOLLOWERS_MAX, Filter, Followed, Follower, events_of, handle_hash};

/// Which events to follow: those named, of calls that all other members admit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRequest {
    /// Events, subsystems, or `all`.
    pub events: Vec<String>,
    /// The address of the client.
    pub client: Option<IpAddr>,
    /// The name of the export.
    pub export: Option<String>,
    /// The object: the hash of its handle as in the lines, with `0x` in front, or its path on the
    /// server.
    pub file: Option<String>,
    /// The transaction id.
    pub xid: Option<u32>,
    /// The least time from a call's last byte to its reply, in microseconds.
    pub latency_min_us: Option<u64>,
}

/// An event that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceLine {
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub time_ns: u64,
    /// The processor.
    pub cpu: usize,
    /// The thread by its name.
    pub thread: String,
    /// The thread by its number.
    pub tid: i32,
    /// The event's name.
    pub event: String,
    /// The transaction id of the call.
    pub xid: u32,
    /// The CRC-32 of the file handle.
    pub fh_hash: u32,
    /// Bytes of the file; of a listing the cookie.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The event's other fields, each `name=value`.
    pub detail: String,
    /// The client's address.
    pub client: IpAddr,
    /// The export's name, if it is still served.
    pub export: Option<String>,
    /// From the call's last byte to the event, in microseconds.
    pub latency_us: u64,
}

/// As a line of the kernel's tracing: `NAME-TID [CPU] SECONDS: EVENT: FIELDS`.
impl fmt::Display for TraceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { thread, tid, cpu, event, xid, fh_hash, offset, len, .. } = self;
        let (seconds, micros) = (self.time_ns / 1_000_000_000, self.time_ns / 1000 % 1_000_000);
        let task = format!("{thread}-{tid}");
        write!(f, "{task:>20} [{cpu:03}] {seconds:>5}.{micros:06}: {event}: ")?;
        write!(f, "xid=0x{xid:08x} fh_hash=0x{fh_hash:08x} offset={offset} len={len}")?;
        if !self.detail.is_empty() {
            write!(f, " {}", self.detail)?;
        }
        write!(f, " client={}", self.client)?;
        if let Some(export) = &self.export {
            write!(f, " export={}", export.escape_debug())?;
        }
        write!(f, " latency={}us", self.latency_us)
    }
}

/// Follows events until it is dropped.
pub struct TraceFeed {
    follower: Follower,
    service: Arc<Service>,
}

impl TraceFeed {
    /// Waits for events. Returns those that have happened since the last call, and how many were
    /// lost behind them, because there were more than are kept.
    pub async fn next(&self) -> (Vec<TraceLine>, u64) {
        let (events, lost) = self.follower.next().await;
        (events.into_iter().map(|event| self.line(event)).collect(), lost)
    }

    fn line(&self, followed: Followed) -> TraceLine {
        let Followed { event, call, range, detail, latency, time, thread, tid, cpu } = followed;
        let exports = self.service.exports.load();
        let export = call.export_id.and_then(|id| exports.table.by_id(id));
        TraceLine {
            time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            cpu,
            thread: thread.into(),
            tid,
            event: event.name().to_owned(),
            xid: call.xid,
            fh_hash: call.fh_hash,
            offset: range.0,
            len: range.1,
            detail: detail.into(),
            client: call.client,
            export: export.map(|export| export.name.clone()),
            latency_us: u64::try_from(latency.as_micros()).unwrap_or(u64::MAX),
        }
    }
}

impl Monitor {
    /// Follows events from now on. Waits for the disk if a file is named by its path.
    ///
    /// # Errors
    /// A sentence: an event, export or file is not known, or there are too many followers.
    pub fn follow(&self, request: &TraceRequest) -> Result<TraceFeed, String> {
        let events = events_of(request.events.iter().map(String::as_str));
        let events = events.map_err(|error| {
            let subsystems = "the subsystems are read, write, commit, readdir and call";
            format!("{error}; {subsystems}")
        })?;
        if events.is_empty() {
            return Err("no event is named".to_owned());
        }
        let export_id = request.export.as_deref().map(|name| self.export_id(name)).transpose()?;
        let file = request.file.as_deref();
        let fh_hashes = file.map(|file| self.hashes_of(file, export_id)).transpose()?;
        let filter = Filter {
            client: request.client.map(|client| client.to_canonical()),
            export_id,
            fh_hashes: fh_hashes.unwrap_or_default(),
            xid: request.xid,
            latency_min: request.latency_min_us.map(Duration::from_micros).unwrap_or_default(),
        };
        let follower = self.service.tracer.follow(events, filter);
        let follower = follower.ok_or_else(|| {
            format!("{FOLLOWERS_MAX} commands follow events already, which is the limit")
        })?;
        Ok(TraceFeed { follower, service: Arc::clone(&self.service) })
    }

    fn export_id(&self, name: &str) -> Result<u32, String> {
        let exports = self.service.exports.load();
        let mut table = exports.table.iter();
        if let Some(export) = table.find(|export| export.name == name) {
            return Ok(export.id);
        }
        let names: Vec<_> = exports.table.iter().map(|export| export.name.as_str()).collect();
        Err(format!("there is no export {name}; the exports are {}", names.join(", ")))
    }

    /// The hashes of an object's handles: of its handle in each export that contains it, or in the
    /// given one alone.
    fn hashes_of(&self, file: &str, export_id: Option<u32>) -> Result<Vec<u32>, String> {
        if let Some(digits) = file.strip_prefix("0x") {
            let hash = u32::from_str_radix(digits, 16);
            return hash
                .map(|hash| vec![hash])
                .map_err(|_| format!("`{file}` is not the hash of a handle, such as 0xe4dadb60"));
        }
        let path = Path::new(file);
        let exports = self.service.exports.load();
        let is_wanted = |id: u32| export_id.is_none_or(|wanted| wanted == id);
        let inside: Vec<_> = exports
            .table
            .iter()
            .filter(|export| path.starts_with(&export.path) && is_wanted(export.id))
            .collect();
        if inside.is_empty() {
            let place = if export_id.is_some() { "not in this export" } else { "in no export" };
            return Err(format!("{} is {place}; it must be a path on the server", path.display()));
        }
        let cannot = |why: &dyn fmt::Display| format!("{}: {why}", path.display());
        let opened = open(path).map_err(|error| cannot(&error))?;
        // An outer export may not show what an inner one does: a file system that is mounted there.
        let (mut hashes, mut refused) = (Vec::new(), String::new());
        for root in inside.into_iter().map(|export| exports.root(export)) {
            match root.identify(opened.as_fd()) {
                Ok(handle) => {
                    hashes.push(handle_hash(self.service.seal(root, handle).as_bytes()));
                }
                Err(status) => refused = cannot(&status),
            }
        }
        if hashes.is_empty() { Err(refused) } else { Ok(hashes) }
    }
}

/// Opens an object of any type, to be identified.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = i32::try_from(flags.bits()).expect("flags of open(2) are an int");
    File::options().read(true).custom_flags(flags).open(path)
}

/// The events of a server by subsystem, each with its name and when it happens.
#[must_use]
pub fn trace_events() -> Vec<(&'static str, &'static str, &'static str)> {
    Event::ALL.iter().map(|event| (event.subsystem(), event.name(), event.help())).collect()
}
