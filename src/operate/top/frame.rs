//! One view, as lines of text.

use server::counters::Counter;
use server::report::{ClientSample, ExportSample, OperationSample, PhaseSample, Sample};

use super::device::Load;
use crate::operate::clients::{is_shown, name};
use crate::operate::text::{bytes, counted, mean_ms, per_second, rate, time};
use crate::printable::Printable;

/// A terminal, or what of it is to be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// The columns of a name.
const NAME_COLUMNS: usize = 22;
/// Reasons that are shown of READs, and of WRITEs.
const REASONS_MAX: usize = 3;

/// The data of a view.
pub(super) struct Frame<'a> {
    /// The latest sample, with the counts since the one before.
    pub(super) work: &'a Sample,
    /// The counts from the server's start to the second of them.
    pub(super) now: &'a Sample,
    pub(super) devices: &'a [Load],
}

impl Frame<'_> {
    /// The lines, as many and as long as the terminal has room for; all of them without one.
    pub(super) fn lines(&self, size: Option<Size>) -> Vec<String> {
        let mut lines = self.head();
        let rows = size.map_or(usize::MAX, |size| size.rows);
        // Three quarters of the rest for exports, which have three lines each.
        let left = rows.saturating_sub(lines.len());
        let exports_max = (left / 4 * 3).saturating_sub(2) / 3;
        lines.extend(self.exports(exports_max));
        // Two lines each, between the head and the number of the others.
        let clients_max = rows.saturating_sub(lines.len() + 2) / 2;
        lines.extend(self.clients(clients_max));
        if let Some(Size { columns, rows }) = size {
            lines.truncate(rows);
            for line in &mut lines {
                *line = Printable::line(line).to_string().chars().take(columns).collect();
            }
        }
        lines
    }

    fn seconds(&self) -> f64 {
        self.work.uptime_us as f64 / 1e6
    }

    fn figure(&self, name: &str) -> u64 {
        self.work.figures.get(name).copied().unwrap_or_default()
    }

    fn head(&self) -> Vec<String> {
        let figure = |name| self.figure(name);
        let per_second = |name| per_second(figure(name), self.seconds());
        let mut lines = vec![
            format!(
                "spillway {}, up {}",
                env!("CARGO_PKG_VERSION"),
                time(self.now.uptime_us / 1_000_000)
            ),
            format!(
                "calls    {:.0}/s, {} in progress; {}",
                per_second("calls"),
                figure("calls_in_flight"),
                counted(figure("connections_open"), "connection"),
            ),
            format!(
                "memory   {} of {} buffers, {} wait; {} free for the page cache",
                bytes(figure("buffers_in_use_bytes")),
                bytes(figure("buffers_max_bytes")),
                figure("buffer_waiters"),
                bytes(figure("memory_free_bytes")),
            ),
            format!(
                "window   {} of {}, {}; {:.0} throttled/s, {} since the start",
                bytes(figure("window_bytes")),
                bytes(figure("window_max_bytes")),
                counted(figure("window_files"), "file"),
                per_second("window_throttled_writes"),
                // A view is soon gone, and lost data stays lost.
                counted(
                    self.now.figures.get("window_errors").copied().unwrap_or_default(),
                    "error"
                ),
            ),
            means(&self.work.phases, "ms      "),
        ];
        lines.extend(self.devices.iter().map(device_line));
        lines.push(String::new());
        lines
    }

    /// The phases of all calls for an export or of a client, which are some of these.
    fn phases<'a>(
        &self,
        calls: u64,
        of_kinds: impl IntoIterator<Item = &'a PhaseSample>,
    ) -> String {
        let of_kinds: Vec<_> = of_kinds.into_iter().collect();
        if calls > 0 && of_kinds.iter().all(|phase| phase.timed == 0) {
            return "  ms not timed".to_owned();
        }
        let of_all_kinds = |phase: &PhaseSample| {
            let same = || of_kinds.iter().filter(|of_kind| of_kind.name == phase.name);
            PhaseSample {
                name: phase.name.clone(),
                timed: same().map(|of_kind| of_kind.timed).sum(),
                microseconds: same().map(|of_kind| of_kind.microseconds).sum(),
            }
        };
        means(&self.work.phases.iter().map(of_all_kinds).collect::<Vec<_>>(), "  ms")
    }

    fn exports(&self, most: usize) -> Vec<String> {
        let exports = self.work.exports.iter().filter(|export| export.name.is_some());
        let mut exports: Vec<_> = exports.collect();
        exports.sort_by_key(|export| std::cmp::Reverse(calls(export)));
        let head = row(["EXPORT", "CALLS/S", "FAILED", "READ", "WRITTEN", "MS"].map(str::to_owned));
        let mut lines = vec![head];
        for export in exports.iter().take(most) {
            lines.push(self.export(export));
            lines.push(self.phases(calls(export), export.phases.values().flatten()));
            lines.push(choices(export));
        }
        more(&mut lines, exports.len(), most);
        lines.push(String::new());
        lines
    }

    fn export(&self, export: &ExportSample) -> String {
        let sum = |of: fn(&OperationSample) -> u64| export.operations.iter().map(of).sum::<u64>();
        let counter = |name| export.counters.get(name).copied().unwrap_or_default();
        row([
            export.name.clone().unwrap_or_default(),
            format!("{:.0}", per_second(calls(export), self.seconds())),
            sum(|operation| operation.failures.values().sum()).to_string(),
            rate(counter("read_bytes"), self.seconds()),
            rate(counter("write_bytes"), self.seconds()),
            mean_ms(sum(|operation| operation.microseconds), sum(|operation| operation.timed)),
        ])
    }

    fn clients(&self, most: usize) -> Vec<String> {
        let mut clients: Vec<_> =
            self.work.clients.iter().filter(|client| is_shown(client)).collect();
        clients.sort_by_key(|client| std::cmp::Reverse(client.received_bytes + client.sent_bytes));
        let head =
            row(["CLIENT", "CALLS/S", "FAILED", "RECEIVED", "SENT", "MS"].map(str::to_owned));
        let mut lines = vec![head];
        for client in clients.iter().take(most) {
            lines.push(self.client(client));
            lines.push(self.phases(client.calls, &client.phases));
        }
        more(&mut lines, clients.len(), most);
        lines
    }

    fn client(&self, client: &ClientSample) -> String {
        row([
            name(client),
            format!("{:.0}", per_second(client.calls, self.seconds())),
            client.failures.to_string(),
            rate(client.received_bytes, self.seconds()),
            rate(client.sent_bytes, self.seconds()),
            mean_ms(client.microseconds, client.timed),
        ])
    }
}

/// A line with the mean time of each phase.
fn means(phases: &[PhaseSample], head: &str) -> String {
    let mean = |phase: &PhaseSample| {
        format!("{} {}", phase.name, mean_ms(phase.microseconds, phase.timed))
    };
    format!("{head} {}", phases.iter().map(mean).collect::<Vec<_>>().join(", "))
}

fn device_line(load: &Load) -> String {
    let Load { name, read, written, busy, queue } = load;
    let (read, written) = (rate(whole(*read), 1.0), rate(whole(*written), 1.0));
    let busy = busy * 100.0;
    format!("device   {name} {busy:.0}% busy, queue {queue:.1}, reads {read}, writes {written}")
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate of bytes is positive, and is shown with three digits"
)]
fn whole(rate: f64) -> u64 {
    rate as u64
}

fn calls(export: &ExportSample) -> u64 {
    export.operations.iter().map(|operation| operation.calls).sum()
}

/// A line of a table: a name, and numbers.
fn row([name, a, b, c, d, e]: [String; 6]) -> String {
    let name = shortened(&name);
    format!("{name:<NAME_COLUMNS$} {a:>9} {b:>7} {c:>12} {d:>12} {e:>9}")
}

/// A name that is too long without its beginning, which is the same for many.
fn shortened(name: &str) -> String {
    let excess = name.chars().count().saturating_sub(NAME_COLUMNS);
    match excess {
        0 => name.to_owned(),
        _ => ['…'].into_iter().chain(name.chars().skip(excess + 1)).collect(),
    }
}

fn more(lines: &mut Vec<String>, all: usize, shown: usize) {
    if all > shown {
        lines.push(format!("and {} more", all - shown));
    }
}

/// The modes of an export, and the ways that most of its READs and WRITEs went.
fn choices(export: &ExportSample) -> String {
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_default();
    let reads = mode(&export.io_cache_read) + &ways(export, "read_choices");
    let writes = mode(&export.io_cache_write) + &ways(export, "write_choices");
    format!("  reads {reads}; writes {writes}")
}

/// The most frequent ways of a family of counters, with their parts.
fn ways(export: &ExportSample, family: &str) -> String {
    let of_family = Counter::ALL.iter().filter(|counter| counter.metric().0 == family);
    let mut ways: Vec<(u64, String)> = of_family
        .filter_map(|counter| {
            let count = *export.counters.get(counter.name())?;
            let labels: Vec<_> = counter.metric().1.iter().map(|(_, value)| *value).collect();
            Some((count, labels.join(":")))
        })
        .collect();
    ways.sort_by(|a, b| b.cmp(a));
    let all: u64 = ways.iter().map(|(count, _)| count).sum();
    let shown = ways.iter().take(REASONS_MAX);
    let shown = shown.map(|(count, way)| format!("{way} {}%", count * 100 / all.max(1)));
    let shown = shown.collect::<Vec<_>>().join(" ");
    if shown.is_empty() { shown } else { format!(" ({shown})") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const USUAL: Size = Size { columns: 80, rows: 24 };

    fn export(number: u64) -> ExportSample {
        let counters = [("read_bytes", 300 << 20), ("reads_direct", 90), ("reads_resident", 10)];
        let operation = OperationSample {
            program: "nfs3".to_owned(),
            name: "READ".to_owned(),
            calls: 1000 - number,
            timed: 10,
            microseconds: 25_000,
            ..OperationSample::default()
        };
        ExportSample {
            name: Some(format!("/export/with/a/long/name/{number}")),
            io_cache_read: Some("auto".to_owned()),
            io_cache_write: Some("direct".to_owned()),
            counters: counters.map(|(name, value)| (name.to_owned(), value)).into(),
            operations: vec![operation],
            phases: [("READ", 3, 6000), ("WRITE", 1, 2000)]
                .map(|(kind, timed, microseconds)| (kind.to_owned(), vec![io(timed, microseconds)]))
                .into(),
            ..ExportSample::default()
        }
    }

    fn io(timed: u64, microseconds: u64) -> PhaseSample {
        PhaseSample { name: "io".to_owned(), timed, microseconds }
    }

    fn client(number: u32) -> ClientSample {
        let address = Some(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number)));
        ClientSample {
            address,
            calls: 10,
            sent_bytes: u64::from(number),
            phases: vec![io(4, 1000)],
            ..ClientSample::default()
        }
    }

    fn lines(exports: u64, clients: u32, size: Option<Size>) -> Vec<String> {
        let queue = PhaseSample { name: "queue".to_owned(), ..PhaseSample::default() };
        let work = Sample {
            uptime_us: 2_000_000,
            start_ns: 0,
            figures: [("calls", 5000), ("window_files", 1), ("connections_open", 2)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            exports: (0..exports).map(export).chain([ExportSample::default()]).collect(),
            clients: (0..clients).map(client).chain([ClientSample::default()]).collect(),
            phases: vec![queue, io(2, 500)],
        };
        let load =
            Load { name: "vda".to_owned(), read: 1048576.0, written: 0.0, busy: 0.5, queue: 2.0 };
        let now = Sample {
            uptime_us: 90_000_000,
            figures: BTreeMap::from([("window_errors".to_owned(), 3)]),
            ..Sample::default()
        };
        Frame { work: &work, now: &now, devices: &[load] }.lines(size)
    }

    #[test]
    fn a_view_fits_80_columns_and_24_rows() {
        for (exports, clients) in [(1, 1), (3, 5), (30, 300)] {
            let lines = lines(exports, clients, Some(USUAL));
            assert!(lines.len() <= 24, "{lines:#?}");
            assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
            let has = |text: &str| lines.iter().any(|line| line.contains(text));
            assert!(has("EXPORT") && has("CLIENT") && has("…rt/with/a/long/name/0 "), "{lines:#?}");
            assert!(has("10.0."), "{lines:#?}");
        }
        assert!(lines(30, 300, Some(Size { columns: 1, rows: 1 })).len() == 1);
    }

    #[test]
    fn rates_reasons_and_phases_are_shown() {
        let lines = lines(1, 2, None).join("\n");
        for text in [
            "spillway 0.1.0, up 1min 30s",
            "calls    2500/s, 0 in progress; 2 connections",
            "ms       queue -, io 0.250",
            "  ms queue -, io 2.000",
            "  ms queue -, io 0.250",
            "window   0B of 0B, 1 file; 0 throttled/s, 3 errors since the start",
            "device   vda 50% busy, queue 2.0, reads 1.0MiB/s, writes 0B/s",
            "150MiB/s",
            "2.500",
            "  reads auto (direct:plan 90% page_cache:resident 10%); writes direct",
        ] {
            assert!(lines.contains(text), "{text}\n{lines}");
        }
    }

    #[test]
    fn phases_that_were_not_timed_are_distinguished_from_those_that_did_not_occur() {
        let mut idle = ExportSample { operations: Vec::new(), ..export(1) };
        idle.phases.clear();
        let untimed = ExportSample { phases: idle.phases.clone(), ..export(1) };
        let work = Sample { phases: vec![io(0, 0)], ..Sample::default() };
        let frame = Frame { work: &work, now: &work, devices: &[] };
        let views = [&idle, &untimed]
            .map(|export| frame.phases(calls(export), export.phases.values().flatten()));
        assert_eq!(views, ["  ms io -", "  ms not timed"]);
    }

    #[test]
    fn the_busiest_come_first_and_the_others_are_counted() {
        let lines = lines(1, 300, Some(USUAL));
        assert!(lines.iter().any(|line| line.starts_with("10.0.1.43 ")), "{lines:#?}");
        assert!(lines.last().is_some_and(|line| line.ends_with(" more")), "{lines:#?}");
    }
}
