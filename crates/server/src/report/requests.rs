//! The last calls of a running server, from its flight recorder.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Monitor;
use crate::export::claimed_export_id;
use crate::moment::Moment;
use crate::trace::{Outcome, Recorded, handle_hash};

/// A call in the flight recorder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// When its last byte was there: microseconds since 1970, by the clock as it is now.
    pub received_us: u64,
    /// Its procedure, or the first operation of a COMPOUND that works on files; `-` for others.
    pub procedure: String,
    /// Of the program: `nfs3`, `nfs4`, `mount3` or `-`.
    pub program: String,
    /// The other end of the connection.
    pub client: SocketAddr,
    /// The transaction id.
    pub xid: u32,
    /// The export that the first handle claims to be of, if it is served.
    pub export: Option<String>,
    /// The CRC-32 of the first handle, if there is one.
    pub fh_hash: Option<u32>,
    /// Bytes of the file, or the cookie of a listing.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// The I/O that was done for it: names of trace events.
    pub io: Vec<String>,
    /// Its status by name, or what became of it; `None` while it is in progress.
    pub status: Option<String>,
    /// Its waits for the threads that it was handed to; `None` while it is in progress.
    pub queue_us: Option<u64>,
    /// From its last byte to the end of its reply, or to now.
    pub time_us: u64,
}

/// `READ client=192.0.2.1:700 xid=0x5dcf019c ...`
impl fmt::Display for RequestRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { procedure, client, xid, offset, len, time_us, .. } = self;
        write!(f, "{procedure} client={client} xid=0x{xid:08x}")?;
        if let Some(export) = &self.export {
            write!(f, " export={}", export.escape_debug())?;
        }
        if let Some(fh_hash) = self.fh_hash {
            write!(f, " fh_hash=0x{fh_hash:08x}")?;
        }
        if (*offset, *len) != (0, 0) {
            write!(f, " offset={offset} count={len}")?;
        }
        if !self.io.is_empty() {
            write!(f, " io={}", self.io.join(","))?;
        }
        let status = self.status.as_deref().unwrap_or("in progress");
        write!(f, " status={status}")?;
        if let Some(queue_us) = self.queue_us {
            write!(f, " queue={queue_us}us")?;
        }
        write!(f, " time={time_us}us")
    }
}

impl Monitor {
    /// The last calls of all clients, oldest first: some thousands, those in progress too.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestRecord> {
        let now = (Moment::now(), SystemTime::now());
        self.service
            .tracer
            .recorder
            .calls()
            .into_iter()
            .map(|call| self.request(call, now))
            .collect()
    }

    fn request(&self, call: Recorded, (now, clock): (Moment, SystemTime)) -> RequestRecord {
        let Recorded { received, queue, client, xid, operation, handle, offset, len, .. } = call;
        let age = Duration::from_nanos(now.nanoseconds_since(received));
        let at = clock.checked_sub(age).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let exports = self.service.exports.load();
        let export = claimed_export_id(&handle).and_then(|id| exports.table.by_id(id));
        let name = |status: u32| match (Outcome::of(status), operation) {
            (Some(outcome), _) => outcome.name(),
            (None, Some(operation)) if status != 0 => operation.status_name(status),
            (None, _) => "OK",
        };
        RequestRecord {
            received_us: microseconds(at.unwrap_or_default()),
            procedure: operation.map_or("-", |operation| operation.name()).to_owned(),
            program: operation.map_or("-", |operation| operation.program()).to_owned(),
            client,
            xid,
            export: export.map(|export| export.name.clone()),
            fh_hash: (!handle.is_empty()).then(|| handle_hash(&handle)),
            offset,
            len,
            io: call.events.iter().map(|event| event.name().to_owned()).collect(),
            status: call.end.map(|(status, _)| name(status).to_owned()),
            queue_us: call.end.map(|_| microseconds(queue)),
            time_us: microseconds(call.end.map_or(age, |(_, time)| time)),
        }
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
