//! `spillway nfsstat`: what a server has counted, once or again and again.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use clap::Args;
use server::report::{ExportSample, OperationSample, PhaseSample, Sample};

use super::clients::{is_shown, name};
use super::table::{row, table};
use super::text::{mean_ms, per_second, rate};
use super::{Done, Failure, Target};
use crate::announce::print;
use crate::control::Command;
use crate::control::client::ask;
use crate::printable::for_stdout;

/// Show the operations of a running server by procedure, export and client
///
/// Shows the operations that a server has performed, by procedure, by export and by client: since
/// its start, and with an INTERVAL also those of each interval after that, until COUNT reports are
/// printed or the command is interrupted. Exports that are not served any more are left out.
///
/// Times are the mean from a call's last byte to its result, and of the parts of the work on READ,
/// WRITE, COMMIT and all other calls. They are measured while an INTERVAL is given, or the server
/// serves metrics; otherwise `-` is printed, and no parts.
///
/// Exit status: 0 if the server answered, 1 if it does not, or stops answering.
#[derive(Args)]
pub(crate) struct Options {
    /// Seconds between two reports [default: one report, since the start]
    #[arg(value_name = "INTERVAL", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    interval: Option<u32>,

    /// Number of reports [default: without end]
    #[arg(value_name = "COUNT", requires = "interval", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,

    /// Only operations on this export: no figures of the server or its clients
    #[arg(long, value_name = "NAME")]
    export: Option<String>,

    #[command(flatten)]
    target: Target,
}

pub(super) fn run(options: &Options) -> Result<Done, Failure> {
    let socket = options.target.find()?;
    let time_calls_seconds = options.interval.map_or(0, |seconds| u64::from(seconds) * 2 + 5);
    let mut before = Sample::default();
    for report in 0.. {
        let sample: Sample = ask(&socket, Command::Sample { time_calls_seconds })?;
        check_export(options, &sample)?;
        let difference = sample.since(&before);
        let text = if options.target.json {
            serde_json::to_string(&of_export(options, difference))? + "\n"
        } else {
            let separator = if report == 0 { "" } else { "\n" };
            let text = text(options, &difference);
            format!("{separator}{}", for_stdout(&text))
        };
        if let Err(error) = print(&text) {
            return Ok(Done::Printed(Err(error)));
        }
        let Some(interval) = options.interval else { break };
        if options.count.is_some_and(|count| report + 1 >= count) {
            break;
        }
        before = sample;
        thread::sleep(Duration::from_secs(interval.into()));
    }
    Ok(Done::Printed(Ok(())))
}

fn check_export(options: &Options, sample: &Sample) -> Result<(), Failure> {
    let Some(wanted) = &options.export else { return Ok(()) };
    let mut names = sample.exports.iter().filter_map(|export| export.name.as_ref());
    if names.any(|name| name == wanted) {
        return Ok(());
    }
    let names: Vec<_> = sample.exports.iter().filter_map(|e| e.name.as_deref()).collect();
    Err(format!("there is no export {wanted}; the exports are {}", names.join(", ")).into())
}

/// The part of a sample that is of the wanted export; all of it if none is named.
fn of_export(options: &Options, mut sample: Sample) -> Sample {
    if options.export.is_none() {
        return sample;
    }
    sample.exports.retain(|export| export.name == options.export);
    let Sample { uptime_us, start_ns, exports, .. } = sample;
    Sample { uptime_us, start_ns, exports, ..Sample::default() }
}

fn text(options: &Options, sample: &Sample) -> String {
    let seconds = sample.uptime_us as f64 / 1e6;
    let mut text = format!("{seconds:.1} s\n");
    text += &table(&operations(options, sample, seconds), usize::MAX);
    text += &table(&phases(options, sample), usize::MAX);
    if options.export.is_none() {
        text += &table(&exports(sample, seconds), usize::MAX);
        text += &table(&clients(sample, seconds), usize::MAX);
    }
    text
}

/// The exports whose operations are shown together: all, or one.
fn chosen<'a>(options: &Options, sample: &'a Sample) -> impl Iterator<Item = &'a ExportSample> {
    let wanted = options.export.clone();
    sample.exports.iter().filter(move |export| wanted.is_none() || export.name == wanted)
}

/// The mean time of each phase by the kind of call; nothing if none was timed.
fn phases(options: &Options, sample: &Sample) -> Vec<Vec<String>> {
    let mut sums: BTreeMap<&str, BTreeMap<&str, (u64, u64)>> = BTreeMap::new();
    for (kind, phases) in chosen(options, sample).flat_map(|export| &export.phases) {
        for PhaseSample { name, timed, microseconds } in phases.iter().filter(|p| p.timed > 0) {
            let sum = sums.entry(kind).or_default().entry(name).or_default();
            *sum = (sum.0 + microseconds, sum.1 + timed);
        }
    }
    if sums.is_empty() {
        return Vec::new();
    }
    let names = sample.phases.iter().map(|phase| phase.name.as_str());
    let head = names.clone().map(str::to_uppercase);
    let mut rows = vec![std::iter::once("MS OF".to_owned()).chain(head).collect()];
    rows.extend(sums.into_iter().map(|(kind, phases)| {
        let mean = |name| {
            let (microseconds, timed) = phases.get(name).copied().unwrap_or_default();
            mean_ms(microseconds, timed)
        };
        std::iter::once(kind.to_owned()).chain(names.clone().map(mean)).collect()
    }));
    rows
}

/// The operations of all exports together, or of one.
fn operations(options: &Options, sample: &Sample, seconds: f64) -> Vec<Vec<String>> {
    let mut sums: BTreeMap<(String, String), (u64, u64, u64, u64)> = BTreeMap::new();
    for export in chosen(options, sample) {
        for operation in export.operations.iter().filter(|operation| operation.calls > 0) {
            let key = (operation.program.clone(), operation.name.clone());
            let sum = sums.entry(key).or_default();
            sum.0 += operation.calls;
            sum.1 += failed(operation);
            sum.2 += operation.microseconds;
            sum.3 += operation.timed;
        }
    }
    let mut rows = vec![row(["OPERATION", "CALLS", "CALLS/S", "FAILED", "MS"])];
    rows.extend(sums.into_iter().map(|((program, name), (calls, failed, microseconds, timed))| {
        vec![
            format!("{program} {name}"),
            calls.to_string(),
            format!("{:.1}", per_second(calls, seconds)),
            failed.to_string(),
            mean_ms(microseconds, timed),
        ]
    }));
    rows
}

fn failed(operation: &OperationSample) -> u64 {
    operation.failures.values().sum()
}

fn exports(sample: &Sample, seconds: f64) -> Vec<Vec<String>> {
    let head = ["EXPORT", "CALLS", "CALLS/S", "FAILED", "READ", "WRITTEN", "MS"];
    let mut rows = vec![row(head)];
    rows.extend(sample.exports.iter().filter(|export| export.name.is_some()).map(|export| {
        let ExportSample { name, operations, counters, .. } = export;
        let sum = |of: fn(&OperationSample) -> u64| operations.iter().map(of).sum::<u64>();
        let calls = sum(|operation| operation.calls);
        let bytes = |counter| counters.get(counter).copied().unwrap_or_default();
        vec![
            name.clone().unwrap_or_default(),
            calls.to_string(),
            format!("{:.1}", per_second(calls, seconds)),
            sum(failed).to_string(),
            rate(bytes("read_bytes"), seconds),
            rate(bytes("write_bytes"), seconds),
            mean_ms(sum(|operation| operation.microseconds), sum(|operation| operation.timed)),
        ]
    }));
    rows
}

fn clients(sample: &Sample, seconds: f64) -> Vec<Vec<String>> {
    let head = ["CLIENT", "CALLS", "CALLS/S", "FAILED", "RECEIVED", "SENT", "MS"];
    let mut rows = vec![row(head)];
    rows.extend(sample.clients.iter().filter(|client| is_shown(client)).map(|client| {
        vec![
            name(client),
            client.calls.to_string(),
            format!("{:.1}", per_second(client.calls, seconds)),
            client.failures.to_string(),
            rate(client.received_bytes, seconds),
            rate(client.sent_bytes, seconds),
            mean_ms(client.microseconds, client.timed),
        ]
    }));
    rows
}
