//! `spillway trace`: the steps of calls in a running server, as they happen.

use std::fs;
use std::io::{BufRead as _, Write as _};
use std::net::IpAddr;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value};
use server::report::{TraceLine, TraceRequest, trace_events};

use super::text::parse_time;
use super::{Done, Failure, Target};
use crate::announce::print;
use crate::control::TraceMessage;
use crate::control::client::follow;
use crate::printable::for_stdout;
use crate::stdout;

/// Follow trace events of a running server, or list them
///
/// Without an EVENT, lists the events by subsystem with their meaning. With events, prints each as
/// it happens, in the form of the kernel's trace: thread, processor, seconds since boot, event, and
/// its fields. latency= is the time from the last byte of the call to the event.
///
/// When the command ends, the server disables its events. Several commands may follow at once. A
/// command that is too slow loses events, and prints how many; the server never waits for it.
///
/// Exit status: 0 if the server stopped, 1 if it could not be reached or refused.
#[derive(Args)]
#[command(after_help = "Examples:\n  spillway trace read\n  \
                        spillway trace read write --min-latency 10ms\n  \
                        spillway trace all --client 192.0.2.1 --file /srv/data/file --json")]
pub(crate) struct Options {
    /// Events, subsystems such as read, or all
    #[arg(value_name = "EVENT")]
    events: Vec<String>,

    /// Only calls of the client with this address
    #[arg(long, value_name = "ADDRESS", requires = "events")]
    client: Option<IpAddr>,

    /// Only calls on this export
    #[arg(long, value_name = "NAME", requires = "events")]
    export: Option<String>,

    /// Only calls on one object: its path on the server, or the hash of its handle (fh_hash), like
    /// 0xe4dadb60
    #[arg(long, value_name = "PATH|HASH", requires = "events")]
    file: Option<String>,

    /// Only the call with this transaction id, like 0x5dcf019c
    #[arg(long, value_name = "XID", value_parser = xid, requires = "events")]
    xid: Option<u32>,

    /// Only calls that take at least this long from their last byte to their reply, like 500us,
    /// 10ms or 1s; their events are printed once the time has passed
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "events")]
    min_latency: Option<Duration>,

    #[command(flatten)]
    target: Target,
}

pub(super) fn run(options: &Options) -> Result<Done, Failure> {
    if options.events.is_empty() {
        return Ok(Done::Printed(print(&if options.target.json { list_json()? } else { list() })));
    }
    let events = options.events.iter().flat_map(|word| word.split(',')).map(str::to_owned);
    let request = TraceRequest {
        events: events.collect(),
        client: options.client,
        export: options.export.clone(),
        file: options.file.as_deref().map(on_server),
        xid: options.xid,
        latency_min_us: options.min_latency.map(microseconds),
    };
    let mut lines = follow(&options.target.find()?, request)?;
    let (mut out, mut line) = (stdout::lock(), String::new());
    loop {
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            return Ok(Done::Printed(Ok(())));
        }
        let message: TraceMessage = serde_json::from_str(&line)?;
        let text = if options.target.json { json(message)? } else { text(&message) };
        let text = if options.target.json { text.into() } else { for_stdout(&text) };
        if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
            return Ok(Done::Printed(Err(error)));
        }
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A path as the server has it, if it is one.
fn on_server(file: &str) -> String {
    if file.starts_with("0x") {
        return file.to_owned();
    }
    // An object that this process may not reach the server finds by the path as it is.
    let path = fs::canonicalize(file).or_else(|_| std::path::absolute(file));
    path.ok().and_then(|path| path.into_os_string().into_string().ok()).unwrap_or(file.to_owned())
}

fn text(message: &TraceMessage) -> String {
    match message {
        TraceMessage::Event(event) => event.to_string(),
        TraceMessage::Lost { lost } => format!("[LOST {lost} EVENTS]"),
    }
}

/// The message with the event's own fields as members.
fn json(message: TraceMessage) -> serde_json::Result<String> {
    let event = match message {
        TraceMessage::Event(event) => event,
        lost @ TraceMessage::Lost { .. } => return serde_json::to_string(&lost),
    };
    let TraceLine { detail, xid, fh_hash, .. } = &event;
    let (detail, xid, fh_hash) = (detail.clone(), *xid, *fh_hash);
    let Value::Object(mut members) = serde_json::to_value(event)? else {
        unreachable!("a struct is an object");
    };
    members.remove("detail");
    let hex = |number: u32| Value::from(format!("0x{number:08x}"));
    members.insert("xid".to_owned(), hex(xid));
    members.insert("fh_hash".to_owned(), hex(fh_hash));
    let fields = detail.split(' ').filter_map(|field| field.split_once('='));
    members.extend(fields.map(|(name, value)| member(name, value)));
    serde_json::to_string(&members)
}

/// A field as a member: a number without its unit, which the name has instead.
fn member(name: &str, value: &str) -> (String, Value) {
    let number = |text: &str| text.parse::<u64>().ok().map(Value::from);
    match (number(value), value.strip_suffix("us").and_then(number)) {
        (Some(number), _) => (name.to_owned(), number),
        (None, Some(microseconds)) => (format!("{name}_us"), microseconds),
        (None, None) => (name.to_owned(), value.into()),
    }
}

fn list() -> String {
    let (mut text, mut last) = (String::new(), "");
    for (subsystem, name, help) in trace_events() {
        if subsystem != last {
            text += if last.is_empty() { "" } else { "\n" };
            text += &format!("{subsystem}\n");
            last = subsystem;
        }
        text += &format!("  {name:<16} {help}\n");
    }
    text
}

fn list_json() -> serde_json::Result<String> {
    let events = trace_events().into_iter().map(|(subsystem, event, help)| {
        let members = [("subsystem", subsystem), ("event", event), ("help", help)];
        let members = members.map(|(name, value)| (name.to_owned(), Value::from(value)));
        Value::Object(Map::from_iter(members))
    });
    Ok(serde_json::to_string_pretty(&Value::Array(events.collect()))? + "\n")
}

fn xid(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "a transaction id is a number, like 0x5dcf019c".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_units() {
        assert_eq!((xid("0x5dcf019c"), xid("7")), (Ok(0x5dcf_019c), Ok(7)));
        assert!(xid("0x").is_err() && xid("0x100000000").is_err());
        assert_eq!(member("queue", "7us"), ("queue_us".to_owned(), 7.into()));
        assert_eq!(member("count", "7"), ("count".to_owned(), 7.into()));
        assert_eq!(member("status", "bonus"), ("status".to_owned(), "bonus".into()));
    }
}
