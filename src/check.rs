//! `spillway check`: what a configuration file means, or why it is refused.

use std::fmt::Write as _;
use std::process::ExitCode;

use server::config::{ByteSize, Config, Overrides};
use server::export::{Access, Export, Rate, Rule, Squash};

use crate::announce::print;
use crate::cli::{self, CheckOptions};
use crate::exit;

/// Prints a summary of the file's settings and warnings about them, or the file's first error.
pub(crate) fn run(options: &CheckOptions) -> ExitCode {
    match Config::load(options.file(), &Overrides::default()) {
        Ok(config) => {
            for warning in config.warnings() {
                exit::warn(&warning);
            }
            exit::written(print(&summary(&config)))
        }
        Err(error) => cli::refused(&error),
    }
}

fn summary(config: &Config) -> String {
    let listen: Vec<_> = config.listen().iter().map(ToString::to_string).collect();
    let memory = ByteSize(u64::try_from(config.memory_bytes()).unwrap_or(u64::MAX));
    let transfer = ByteSize(config.max_transfer_bytes().into());
    let window = ByteSize(u64::try_from(config.window_bytes()).unwrap_or(u64::MAX));
    let mut text = format!(
        "valid: {} on {}, {memory} of memory, a window of {window}, transfers up to {transfer}{}\n\
         NFS {}, state in {}{}\n",
        counted(config.exports().iter().len() as u64, "export"),
        listen.join(" and "),
        switched(config),
        config.nfs_versions(),
        config.state_dir().display(),
        offered(config),
    );
    for export in config.exports().iter() {
        write_export(&mut text, export).expect("a String takes all that is written");
    }
    text
}

/// The settings that differ from their defaults, as the end of the same sentence.
fn switched(config: &Config) -> String {
    let mut text = String::new();
    if !config.read_ahead() {
        text += ", no read-ahead";
    }
    if !config.splice() {
        text += ", no splice";
    }
    if !config.delegations() {
        text += ", no delegations";
    }
    if !config.trace().is_empty() {
        text += &format!(", tracing {}", config.trace());
    }
    text
}

/// The services beside NFS, as the end of the same sentence.
fn offered(config: &Config) -> String {
    let mut text = String::new();
    if config.portmap() {
        text += ", the portmapper protocol";
    }
    if let Some(address) = config.metrics() {
        text += &format!(", metrics on {address}");
    }
    text
}

fn write_export(text: &mut String, export: &Export) -> std::fmt::Result {
    let sync = if export.sync { "sync" } else { "async" };
    let (read, write) = (export.policy.read, export.policy.write);
    let stability = if export.file_sync_writes { " as FILE_SYNC" } else { "" };
    let (name, path, id) = (&export.name, export.path.display(), export.id);
    let read_ahead = if export.policy.read_ahead { "" } else { ", no read-ahead" };
    let splice = if export.policy.splice { "" } else { ", no splice" };
    writeln!(
        text,
        "{name} from {path}, {sync}, reads {read}, writes {write}{stability}{read_ahead}{splice}, \
         id {id}"
    )?;
    for (rate, whom) in [(export.limits.all, ""), (export.limits.client, " for each client")] {
        if rate != Rate::default() {
            writeln!(text, "    at most {} per second{whom}", amounts(rate))?;
        }
    }
    if export.metadata_servers.is_some() {
        writeln!(text, "    version 3 alone, for the clients of these metadata servers:")?;
    }
    for Rule { hosts, access } in export.metadata_servers.iter().chain(&export.rules) {
        let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
        writeln!(text, "    {}: {}", hosts.join(" "), rights(access))?;
    }
    Ok(())
}

fn amounts(rate: Rate) -> String {
    let calls = rate.calls_per_sec.map(|calls| counted(calls.get().into(), "call"));
    let bytes = rate.bytes_per_sec.map(|bytes| ByteSize(bytes.get()).to_string());
    calls.into_iter().chain(bytes).collect::<Vec<_>>().join(" and ")
}

fn rights(access: &Access) -> String {
    let mode = if access.read_only { "read-only" } else { "read-write" };
    let (uid, gid) = (access.anonymous_uid, access.anonymous_gid);
    let squash = match access.squash {
        Squash::None => "no squashing".to_owned(),
        Squash::Root => format!("root squashed to {uid}:{gid}"),
        Squash::All => format!("all squashed to {uid}:{gid}"),
    };
    let ports = if access.require_privileged_port { ", source ports below 1024 only" } else { "" };
    let data = if access.data_only { ", only READ and WRITE of files" } else { "" };
    format!("{mode}, {squash}{ports}{data}")
}

fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
