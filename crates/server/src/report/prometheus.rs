//! The text format of Prometheus, version 0.0.4.
//!
//! Names begin with `spillway_`. Those of counters end in `_total`, and units are base units.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::figures;
use crate::counters::{
    BOUNDS_US, CallKind, ClientCounters, Counter, Figure, FigureKind, HistogramValue, Operation,
    OperationValue, Phase,
};
use crate::service::Service;

/// The families that several counters share, and those that are no counters or figures.
const FAMILIES: [(&str, &str); 12] = [
    ("build_info", "The version of the program, in a label of the value 1."),
    ("client_calls_total", "Calls received from a client address. A COMPOUND is one."),
    ("client_connections", "Open connections of a client address."),
    ("client_failures_total", "Failed operations of a client address."),
    ("client_received_bytes_total", "Bytes of the calls of a client address."),
    ("client_sent_bytes_total", "Bytes of the replies to a client address."),
    ("io_bytes_total", "Bytes of READ and WRITE by I/O path."),
    (
        "operation_duration_seconds",
        "Time of operations, from the call's last byte (nfs4: its own start) to the result.",
    ),
    ("operations_total", "Operations performed, by their status."),
    ("phase_duration_seconds", "Time of parts of the work on calls."),
    ("read_choices_total", "READs by the source of their data, and the reason for the choice."),
    ("write_choices_total", "WRITEs by the path of their data, and the reason for the choice."),
];

/// The names of all metrics, without the suffixes of histograms.
pub fn metric_names() -> Vec<String> {
    let families = FAMILIES.iter().map(|(name, _)| format!("{PREFIX}{name}"));
    let counters = Counter::ALL.iter().map(|counter| counter_name(*counter));
    let figures = Figure::ALL.iter().map(|figure| figure_name(*figure));
    let mut names: Vec<_> = families.chain(counters).chain(figures).collect();
    names.sort_unstable();
    names.dedup();
    names
}

const PREFIX: &str = "spillway_";

fn counter_name(counter: Counter) -> String {
    format!("{PREFIX}{}_total", counter.metric().0)
}

fn figure_name(figure: Figure) -> String {
    let suffix = match figure.kind() {
        FigureKind::Counter => "_total",
        FigureKind::Gauge => "",
    };
    format!("{PREFIX}{}{suffix}", figure.name())
}

/// The exports by their names in labels, and their ids; operations on no export have an empty name.
type Exports = Vec<(String, Option<u32>)>;

pub(super) fn text(service: &Service) -> String {
    let exports = service.exports.load();
    let mut names: Exports =
        exports.table.iter().map(|export| (export.name.clone(), Some(export.id))).collect();
    names.push((String::new(), None));
    let mut text = Text::default();
    text.begin("build_info", "gauge", help_of("build_info"));
    text.sample("", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    counters(service, &names, &mut text);
    for (figure, value) in figures(service) {
        let (kind, name) = match figure.kind() {
            FigureKind::Counter => ("counter", format!("{}_total", figure.name())),
            FigureKind::Gauge => ("gauge", figure.name().to_owned()),
        };
        text.begin(&name, kind, figure.help());
        text.sample("", &[], value);
    }
    operations(service, &names, &mut text);
    phases(service, &names, &mut text);
    clients(service, &mut text);
    text.0
}

fn help_of(family: &str) -> &'static str {
    let found = FAMILIES.iter().find(|(name, _)| *name == family);
    found.expect("each family is listed").1
}

/// All counters, those of one family together.
fn counters(service: &Service, exports: &Exports, text: &mut Text) {
    let mut families: BTreeMap<&str, Vec<Counter>> = BTreeMap::new();
    for counter in Counter::ALL {
        families.entry(counter.metric().0).or_default().push(*counter);
    }
    for (family, members) in families {
        let name = format!("{family}_total");
        let own_help = members[0].help();
        let shared = FAMILIES.iter().find(|(shared, _)| *shared == name).map(|(_, help)| *help);
        text.begin(&name, "counter", shared.unwrap_or(own_help));
        for counter in members {
            counter_samples(service, exports, counter, text);
        }
    }
}

fn counter_samples(service: &Service, exports: &Exports, counter: Counter, text: &mut Text) {
    let (counters, labels) = (&service.counters, counter.metric().1);
    if counter.is_of_server() {
        return text.sample("", labels, counters.value(counter));
    }
    for (export, id) in exports {
        let value = match id {
            Some(id) => counters.export_value(*id, counter),
            None => counters.general().value(counter),
        };
        // Most counters count for exports alone: a series without one begins with its first count.
        if id.is_some() || value > 0 {
            let labels = [&[("export", export.as_str())], labels].concat();
            text.sample("", &labels, value);
        }
    }
}

fn operations(service: &Service, exports: &Exports, text: &mut Text) {
    let of = |id: &Option<u32>| service.counters.operations(*id);
    let all: Vec<(&str, Operation, OperationValue)> = exports
        .iter()
        .flat_map(|(export, id)| of(id).into_iter().map(|(o, value)| (export.as_str(), o, value)))
        .collect();
    text.begin("operations_total", "counter", help_of("operations_total"));
    for (export, operation, value) in &all {
        let succeeded = ("OK", value.successes);
        let failures = value.failures.iter();
        let failures = failures.map(|(code, count)| (operation.status_name(*code), *count));
        for (status, count) in std::iter::once(succeeded).chain(failures) {
            let labels =
                [&operation_labels(export, *operation)[..], &[("status", status)]].concat();
            text.sample("", &labels, count);
        }
    }
    let help = help_of("operation_duration_seconds");
    text.begin("operation_duration_seconds", "histogram", help);
    for (export, operation, value) in &all {
        if value.times.count() > 0 {
            text.histogram(&operation_labels(export, *operation), &value.times);
        }
    }
}

fn phases(service: &Service, exports: &Exports, text: &mut Text) {
    text.begin("phase_duration_seconds", "histogram", help_of("phase_duration_seconds"));
    for (export, id) in exports {
        for (kind, phase) in CallKind::ALL.iter().flat_map(|kind| Phase::ALL.map(|p| (kind, p))) {
            let value = service.counters.phase(*id, *kind, phase);
            if value.count() > 0 {
                let (operation, phase) = (kind.name(), phase.name());
                let labels = [("export", &**export), ("operation", operation), ("phase", phase)];
                text.histogram(&labels, &value);
            }
        }
    }
}

fn operation_labels(export: &str, operation: Operation) -> [(&str, &str); 3] {
    [("export", export), ("program", operation.program()), ("operation", operation.name())]
}

/// The label of clients that are not counted by themselves.
const OTHERS: &str = "others";

type ClientValue = fn(&ClientCounters) -> u64;

fn clients(service: &Service, text: &mut Text) {
    let clients: Vec<_> = service
        .counters
        .clients
        .all()
        .into_iter()
        .map(|(address, client)| {
            (address.map_or_else(|| OTHERS.to_owned(), |address| address.to_string()), client)
        })
        .collect();
    let values: [(&str, ClientValue); 4] = [
        ("client_calls_total", ClientCounters::calls),
        ("client_failures_total", ClientCounters::failures),
        ("client_received_bytes_total", ClientCounters::received_bytes),
        ("client_sent_bytes_total", ClientCounters::sent_bytes),
    ];
    for (family, value) in values {
        text.begin(family, "counter", help_of(family));
        for (address, client) in &clients {
            text.sample("", &[("client", address)], value(client));
        }
    }
    // Those of strangers together: each address that connects would be another time series.
    let mut connections: BTreeMap<String, u64> = BTreeMap::new();
    for peer in service.connections.by_peer() {
        let address = peer.address.to_string();
        let is_known = clients.iter().any(|(known, _)| *known == address);
        let client = if is_known { address } else { OTHERS.to_owned() };
        *connections.entry(client).or_default() += peer.connections as u64;
    }
    text.begin("client_connections", "gauge", help_of("client_connections"));
    for (client, open) in connections {
        text.sample("", &[("client", &client)], open);
    }
}

/// The text so far, and the family that samples belong to.
#[derive(Default)]
struct Text(String, String);

impl Text {
    fn begin(&mut self, family: &str, kind: &str, help: &str) {
        let family = format!("{PREFIX}{family}");
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.line(format_args!("# HELP {family} {help}"));
        self.line(format_args!("# TYPE {family} {kind}"));
        self.1 = family;
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: u64) {
        let labels = self.labels(labels);
        let family = self.1.clone();
        self.line(format_args!("{family}{suffix}{labels} {value}"));
    }

    fn histogram(&mut self, labels: &[(&str, &str)], value: &HistogramValue) {
        let mut below = 0;
        for (bound, count) in BOUNDS_US.iter().zip(value.buckets) {
            below += count;
            let bound = seconds(bound * 1000);
            self.sample("_bucket", &[labels, &[("le", bound.as_str())]].concat(), below);
        }
        self.sample("_bucket", &[labels, &[("le", "+Inf")]].concat(), value.count());
        let (family, shown) = (self.1.clone(), self.labels(labels));
        self.line(format_args!("{family}_sum{shown} {}", seconds(value.nanoseconds)));
        self.sample("_count", labels, value.count());
    }

    fn labels(&self, labels: &[(&str, &str)]) -> String {
        if labels.is_empty() {
            return String::new();
        }
        let escaped =
            |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
        format!("{{{}}}", labels.collect::<Vec<_>>().join(","))
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a String takes all that is written");
    }
}

/// Nanoseconds as a decimal number of seconds, exactly.
fn seconds(nanoseconds: u64) -> String {
    let (whole, part) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    let text = format!("{whole}.{part:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_seconds_are_exact() {
        for (nanoseconds, text) in [
            (0, "0"),
            (1, "0.000000001"),
            (20_000, "0.00002"),
            (10_000_000_000, "10"),
            (1_500_000_000, "1.5"),
        ] {
            assert_eq!(seconds(nanoseconds), text);
        }
    }

    #[test]
    fn labels_are_escaped() {
        let mut text = Text::default();
        text.begin("reads_total", "counter", "READs.");
        text.sample("", &[("export", "/a\"b\\c\nd")], 3);
        let expected = "# HELP spillway_reads_total READs.\n# TYPE spillway_reads_total counter\n\
             spillway_reads_total{export=\"/a\\\"b\\\\c\\nd\"} 3\n";
        assert_eq!(text.0, expected);
    }

    #[test]
    fn histograms_are_cumulative() {
        let mut text = Text::default();
        text.begin("d_seconds", "histogram", "Time.");
        let mut value = HistogramValue { nanoseconds: 25_000, ..HistogramValue::default() };
        (value.buckets[0], value.buckets[1], value.buckets[16]) = (2, 3, 1);
        text.histogram(&[("phase", "io")], &value);
        for line in [
            "_bucket{phase=\"io\",le=\"0.00002\"} 2",
            "_bucket{phase=\"io\",le=\"0.00005\"} 5",
            "_bucket{phase=\"io\",le=\"10\"} 5",
            "_bucket{phase=\"io\",le=\"+Inf\"} 6",
            "_sum{phase=\"io\"} 0.000025",
            "_count{phase=\"io\"} 6",
        ] {
            assert!(text.0.contains(&format!("spillway_d_seconds{line}\n")), "{}", text.0);
        }
    }

    #[test]
    fn each_shared_family_has_help() {
        for counter in Counter::ALL {
            let (family, labels) = counter.metric();
            let is_shared = FAMILIES.iter().any(|(name, _)| *name == format!("{family}_total"));
            assert_eq!(is_shared, !labels.is_empty(), "{family}");
        }
    }
}
