//! `spillway status`: the main settings in force, and the state of the server.

use std::iter;

use clap::Args;
use server::report::{ExportStatus, Nfs4Status, Status};

use super::table::{row, table};
use super::text::{bytes, counted, time};
use super::{Done, Failure, Target};
use crate::control::Command;

/// Show a running server: exports with their modes, connections, memory, errors
///
/// Shows the addresses, what is switched on or off, the exports with their I/O modes and hosts and
/// whether they are read-only, connections, memory in use, the state of NFS version 4, and counters
/// of errors. `spillway check` shows the rules and rates of each export of a configuration file.
///
/// Exit status: 0 if the server answered, 1 if none runs or it takes no commands of this user.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
}

pub(super) fn run(options: &Options) -> Result<Done, Failure> {
    let status: Status = options.target.ask(Command::Status)?;
    Ok(Done::Printed(options.target.show(&status, text)))
}

fn text(status: &Status) -> String {
    let Status { version, pid, uptime_seconds, .. } = status;
    let mut text = format!("spillway {version}, process {pid}, up {}\n", time(*uptime_seconds));
    text += &table(&facts(status), 1);
    text.push('\n');
    text += &table(&exports(&status.exports), 1);
    if !status.errors.is_empty() {
        text.push('\n');
        let errors =
            status.errors.iter().map(|(name, count)| vec![name.clone(), count.to_string()]);
        text += &table(&errors.collect::<Vec<_>>(), 2);
    }
    text
}

fn facts(status: &Status) -> Vec<Vec<String>> {
    let (memory, connections) = (&status.memory, &status.connections);
    let listen: Vec<_> = status.listen.iter().map(ToString::to_string).collect();
    let switch = |on| if on { "on" } else { "off" };
    let tracing = status.trace.join(",");
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: String| facts.push(vec![name.to_owned(), value]);
    if let Some(config) = &status.config {
        fact("configuration", config.clone());
    }
    fact("state directory", status.state_dir.clone());
    let versions = status.nfs_versions.join(", ");
    fact("listening on", format!("{}, NFS version {versions}", listen.join(", ")));
    fact(
        "switches",
        format!("read-ahead {}, splice {}", switch(status.read_ahead), switch(status.splice)),
    );
    if let Some(metrics) = status.metrics {
        fact("metrics", format!("http://{metrics}/metrics"));
    }
    fact("tracing", if tracing.is_empty() { "no event".to_owned() } else { tracing });
    fact(
        "connections",
        format!(
            "{} of at most {}, {}, {} in progress",
            connections.open,
            connections.max,
            counted(connections.clients, "client"),
            counted(connections.calls_in_flight, "call"),
        ),
    );
    let held = memory.buffers_bytes + memory.window_bytes;
    fact("memory", format!("{} of {}", bytes(held), bytes(memory.budget_bytes)));
    fact(
        "  buffers",
        format!("{} of {}", bytes(memory.buffers_bytes), bytes(memory.buffers_max_bytes)),
    );
    fact(
        "  window",
        format!(
            "{} of {}, {}",
            bytes(memory.window_bytes),
            bytes(memory.window_max_bytes),
            counted(memory.window_files, "file")
        ),
    );
    fact("open objects", memory.open_objects.to_string());
    if let Some(nfs4) = &status.nfs4 {
        fact("NFS version 4", nfs4_text(nfs4));
    }
    facts
}

fn nfs4_text(nfs4: &Nfs4Status) -> String {
    let grace = if nfs4.is_in_grace { ", grace period" } else { "" };
    let delegations = nfs4.delegations.map(|count| counted(count, "delegation"));
    let delegations = delegations.unwrap_or_else(|| "delegations off".to_owned());
    format!(
        "{}, {}, {}, {}, {} waiting, {delegations}, lease {}{grace}",
        counted(nfs4.clients, "client"),
        counted(nfs4.sessions, "session"),
        counted(nfs4.opens, "open"),
        counted(nfs4.locks, "lock"),
        nfs4.waiting_locks,
        time(nfs4.lease_seconds),
    )
}

fn exports(exports: &[ExportStatus]) -> Vec<Vec<String>> {
    let mut rows = vec![row(["EXPORT", "READS", "WRITES", "SYNC", "DIRECTORY", "HOSTS"])];
    rows.extend(exports.iter().map(|export| {
        let sync = if export.sync { "yes" } else { "no" };
        vec![
            export.name.clone(),
            reads(export),
            writes(export),
            sync.to_owned(),
            export.path.clone(),
            export.hosts.join(" "),
        ]
    }));
    rows
}

/// The mode of READs, and what is switched off for this export.
fn reads(export: &ExportStatus) -> String {
    let off = [(export.read_ahead, "no read-ahead"), (export.splice, "no splice")];
    let off = off.into_iter().filter(|(is_on, _)| !is_on).map(|(_, text)| text);
    iter::once(export.io_cache_read.as_str()).chain(off).collect::<Vec<_>>().join(", ")
}

/// The mode of WRITEs, and the stability if it is one for all; none if all are refused.
fn writes(export: &ExportStatus) -> String {
    if export.read_only {
        return "read-only".to_owned();
    }
    let stability = if export.file_sync_writes { ", FILE_SYNC" } else { "" };
    format!("{}{stability}", export.io_cache_write)
}
