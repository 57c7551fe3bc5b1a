//! The control socket: how commands on the same machine see and change a running server.
//!
//! A Unix socket in the state directory. A connection carries one request and its reply, each a
//! line of JSON: `{"version":1,"command":"status"}`, then `{"version":1,"result":{...}}` or
//! `{"version":1,"error":"..."}`. Only root and the server's own user are served.

pub(crate) mod client;
pub(crate) mod discovery;
mod http;
pub(crate) mod listener;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use server::report::{TraceLine, TraceRequest};

/// The version of the requests and replies. A server answers no other.
pub(crate) const VERSION: u32 = 1;
/// The name of the socket in the state directory.
pub(crate) const SOCKET: &str = "spillway.sock";
/// The longest request: a few settings, with names of at most 1 KiB.
const REQUEST_BYTES_MAX: u64 = 64 * 1024;
/// The longest reply that a command takes: samples of 1,024 client addresses, 65,536 clients of
/// version 4 (at most 26 MiB) and some hundred exports.
const REPLY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) version: u32,
    #[serde(flatten)]
    pub(crate) command: Command,
}

/// The command of a request, and its arguments.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(crate) enum Command {
    /// The settings in force, and how much there is: [`server::report::Status`].
    Status,
    /// All that is counted: [`server::report::Sample`].
    Sample {
        /// Have calls timed for so long; 0 changes nothing.
        #[serde(default)]
        time_calls_seconds: u64,
    },
    /// Change settings: [`SetDone`].
    Set {
        /// `None` for settings of the server.
        export: Option<String>,
        /// As `io_cache_read=direct`.
        settings: Vec<String>,
        /// Keep them in the configuration file.
        #[serde(default)]
        save: bool,
    },
    /// Read the configuration again: [`ReloadDone`].
    Reload,
    /// Change how much is logged: the filter in force then.
    Log {
        /// As `vfs=debug`; none changes nothing.
        #[serde(default)]
        levels: Vec<String>,
    },
    /// The last calls: a list of [`server::report::RequestRecord`].
    Requests,
    /// Panic, in a build for tests.
    #[cfg(debug_assertions)]
    Panic,
    /// Follow trace events: an empty result, then a [`TraceMessage`] a line until the peer closes.
    Trace(TraceRequest),
    /// End the connections and the state of a client: [`server::report::DroppedClient`].
    DropClient {
        /// Its address.
        address: IpAddr,
    },
}

/// A line after the reply to [`Command::Trace`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum TraceMessage {
    Event(TraceLine),
    /// So many events were lost here, because the peer had not taken those before.
    Lost {
        lost: u64,
    },
}

/// The result of [`Command::Set`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SetDone {
    /// A summary; empty if all was so before.
    pub(crate) changes: String,
    /// The file that keeps the settings.
    pub(crate) saved: Option<String>,
    /// Settings that flags of `serve` override at the next reload.
    pub(crate) overridden: Vec<String>,
}

/// The result of [`Command::Reload`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReloadDone {
    /// A summary.
    pub(crate) changes: String,
    /// Keys that differ and take effect only after a restart.
    pub(crate) restart_only: Vec<String>,
}

/// A reply.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) version: u32,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

/// The result of a request, or a sentence why there is none.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Result(serde_json::Value),
    Error(String),
}
