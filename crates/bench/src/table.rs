//! The tables of a terminal.

use std::io::{self, Write};

use crate::figure::Figure;
use crate::numeral::{parameters, plain, rounded, size_about, wrapped};
use crate::record::Run;
use crate::results::{Case, Phase, Results, RunResults};
use crate::statistics::Summary;

/// Columns that a table tries to stay within.
pub const COLUMNS: usize = 100;

/// A generator that costs more than this part of the server's processor time may be what is
/// measured.
pub const GENERATOR_TO_SERVER_MAX: f64 = 0.25;

/// Columns that the names of subjects get at most, so that figures stay in sight.
const LABEL_MAX: usize = 34;

/// The figures that stand beside each other.
const BLOCKS: [&[Figure]; 5] = [
    &[
        Figure::MibPerSec,
        Figure::OperationsPerSec,
        Figure::Secs,
        Figure::CommitSecs,
        Figure::LowestMibPerSec,
        Figure::LastToFirst,
        Figure::Fairness,
        Figure::BesideOthers,
    ],
    &[
        Figure::LatencyP50Us,
        Figure::LatencyP95Us,
        Figure::LatencyP99Us,
        Figure::LatencyP999Us,
        Figure::LatencyMaxUs,
        Figure::LastTenthToFirst,
    ],
    &[
        Figure::ServerSecsPerGib,
        Figure::ServerUserSecsPerGib,
        Figure::ServerSystemSecsPerGib,
        Figure::ServerUsPerOperation,
        Figure::ServerSwitchesPerOperation,
        Figure::GeneratorSecsPerGib,
        Figure::GeneratorUsPerOperation,
        Figure::GeneratorToServer,
        Figure::GeneratorAloneToServer,
        Figure::OwnUserSecsPerGib,
        Figure::OwnSystemSecsPerGib,
        Figure::MachineSecsPerGib,
    ],
    &[
        Figure::ServerRssMibMax,
        Figure::PageCacheMibMax,
        Figure::DirtyMibMax,
        Figure::HeldMibMax,
        Figure::DeviceReadMib,
        Figure::DeviceWrittenMib,
        Figure::DeviceReads,
        Figure::DeviceWrites,
    ],
    &[
        Figure::GivenMib,
        Figure::CachedAtStartMib,
        Figure::CachedAtEndMib,
        Figure::VerifiedMib,
        Figure::WrongBytes,
        Figure::Errors,
        Figure::PutOff,
        Figure::Calls,
        Figure::CallKib,
        Figure::RepliesMib,
        Figure::CallsFromStart,
        Figure::Entries,
        Figure::WrongEntries,
        Figure::Changes,
        Figure::OutOfOrder,
    ],
];

/// Writes all runs: circumstances, a block of rows for each phase, and what was left out.
///
/// # Errors
/// Those of `out`.
pub fn write(results: &Results, out: &mut impl Write) -> io::Result<()> {
    for remark in &results.remarks {
        paragraph(out, &format!("Note: {remark}"))?;
    }
    for run in &results.runs {
        write_run(run, out)?;
    }
    Ok(())
}

/// The circumstances of a run, in sentences.
#[must_use]
pub fn circumstances(run: &Run) -> Vec<String> {
    let known =
        |name: &str, text: &str| (!text.is_empty()).then(|| format!("{name} {}", plain(text)));
    let machine = [
        Some(format!("{}, {}", plain(&run.experiment), plain(&run.date))),
        known("Spillway", &run.version),
        known("Linux", &run.kernel),
        (run.cores > 0).then(|| format!("{} x {}", run.cores, plain(&run.cpu))),
        (run.memory_bytes > 0).then(|| format!("{} of memory", size_about(run.memory_bytes))),
    ];
    let limit = run.memory_limit_bytes.map(size_about);
    let setup = [
        known("files on", &run.file_system),
        known("network:", &run.network),
        known("TCP by", &run.congestion_control),
        known("storage:", &run.storage),
        limit.map(|limit| format!("servers limited to {limit}")),
        known("cache:", &run.cache),
    ];
    let line =
        |parts: &[Option<String>]| parts.iter().flatten().cloned().collect::<Vec<_>>().join("; ");
    [line(&machine), line(&setup), known("Note:", &run.note).unwrap_or_default()]
        .into_iter()
        .filter(|line| !line.is_empty())
        .collect()
}

/// Reasons to doubt the measurements of a phase, in sentences: faults, and a generator that took
/// more than `GENERATOR_TO_SERVER_MAX` of the server's processor time.
#[must_use]
pub fn warnings(phase: &Phase) -> Vec<String> {
    let mut found = Vec::new();
    for case in &phase.cases {
        let name = label(case);
        for fault in case.faults() {
            found.push(format!("{name}: {}", plain(&fault)));
        }
        if let Some(cost) = case.median(Figure::GeneratorToServer)
            && cost > GENERATOR_TO_SERVER_MAX
        {
            found.push(format!(
                "{name}: the generator took {} of the server's processor time, more than a \
                 quarter; the generator may have limited the result",
                rounded(cost)
            ));
        }
    }
    found
}

/// Subject of a case, with what goes with it, and its setting.
#[must_use]
pub fn label(case: &Case) -> String {
    let parts =
        [plain(&case.subject), plain(&parameters(&case.own)), plain(&parameters(&case.setting))];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}

fn write_run(run: &RunResults, out: &mut impl Write) -> io::Result<()> {
    writeln!(out)?;
    for line in circumstances(&run.run) {
        paragraph(out, &line)?;
    }
    for (name, what) in &run.run.subjects {
        paragraph(out, &format!("{}: {}", plain(name), plain(what)))?;
    }
    for phase in &run.phases {
        write_phase(phase, out)?;
    }
    if !run.run.left_out.is_empty() {
        writeln!(out, "\nLeft out:")?;
    }
    for what in &run.run.left_out {
        paragraph(out, &format!("- {}", plain(what)))?;
    }
    Ok(())
}

fn write_phase(phase: &Phase, out: &mut impl Write) -> io::Result<()> {
    let rounds = match phase.rounds() {
        1 => "1 round".into(),
        rounds => format!("median of {rounds} rounds; in parentheses (max - min) / median"),
    };
    let title = [plain(&phase.name), plain(&parameters(&phase.fixed)), rounds];
    let title: Vec<_> = title.into_iter().filter(|part| !part.is_empty()).collect();
    writeln!(out, "\n{}", wrapped(&title.join("; "), "", COLUMNS))?;
    for block in BLOCKS {
        write_block(phase, block, out)?;
    }
    for warning in warnings(phase) {
        paragraph(out, &format!("!! {warning}"))?;
    }
    Ok(())
}

/// A column: its heading in lines, and a cell for each case.
struct Column {
    heading: Vec<String>,
    cells: Vec<String>,
    width: usize,
}

/// Writes the figures of a block that were measured, in as many parts as fit side by side.
fn write_block(phase: &Phase, figures: &[Figure], out: &mut impl Write) -> io::Result<()> {
    let labels: Vec<String> = phase.cases.iter().map(row_label).collect();
    let widest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let mut part: Vec<Column> = Vec::new();
    let mut used = widest;
    for figure in figures.iter().filter(|figure| phase.has(**figure) && !is_dull(phase, **figure)) {
        let column = column(phase, *figure);
        if used + 2 + column.width > COLUMNS && !part.is_empty() {
            write_part(&labels, widest, &part, out)?;
            part.clear();
            used = widest;
        }
        used += 2 + column.width;
        part.push(column);
    }
    if part.is_empty() { Ok(()) } else { write_part(&labels, widest, &part, out) }
}

/// Counts of faults and of calls put off that are 0 everywhere are not worth a column: a fault has
/// a line of its own.
fn is_dull(phase: &Phase, figure: Figure) -> bool {
    match figure {
        Figure::WrongBytes | Figure::Errors | Figure::WrongEntries => {
            phase.cases.iter().all(Case::is_sound)
        }
        Figure::PutOff => {
            let mut counts = phase.cases.iter().filter_map(|case| case.summary(figure));
            counts.all(|count| count.max == 0.0)
        }
        _ => false,
    }
}

fn column(phase: &Phase, figure: Figure) -> Column {
    let summaries: Vec<_> = phase.cases.iter().map(|case| case.summary(figure)).collect();
    // All latencies of a column have the same unit.
    let millis =
        figure.unit() == "us" && summaries.iter().flatten().all(|summary| summary.median >= 1000.0);
    let (unit, scale) = if millis { ("ms", 1e-3) } else { (figure.unit(), 1.0) };
    let mut heading = heading(figure.title());
    heading.push(unit.into());
    let cells: Vec<_> = summaries
        .iter()
        .map(|one| one.map_or_else(|| "-".into(), |one| cell(&one, scale)))
        .collect();
    let width = heading.iter().chain(&cells).map(|text| text.chars().count()).max().unwrap_or(0);
    Column { heading, cells, width }
}

fn cell(summary: &Summary, scale: f64) -> String {
    let median = rounded(summary.median * scale);
    match summary.relative_spread() {
        Some(spread) if spread >= 0.005 => format!("{median} ({:.0}%)", spread * 100.0),
        Some(_) | None => median,
    }
}

/// A title in two lines, if it is long.
fn heading(title: &str) -> Vec<String> {
    let lines = wrapped(title, "", 12);
    let mut lines: Vec<String> = lines.lines().map(Into::into).collect();
    if lines.len() < 2 {
        lines.insert(0, String::new());
    }
    lines
}

fn row_label(case: &Case) -> String {
    let mark = if case.is_sound() { "   " } else { "!! " };
    let label = label(case);
    if label.chars().count() <= LABEL_MAX {
        return format!("{mark}{label}");
    }
    // Settings differ at the end, subjects at the beginning.
    let chars: Vec<char> = label.chars().collect();
    let (head, tail) = (&chars[..LABEL_MAX / 2], &chars[chars.len() - LABEL_MAX / 2 + 1..]);
    format!("{mark}{}~{}", head.iter().collect::<String>(), tail.iter().collect::<String>())
}

fn write_part(
    labels: &[String],
    widest: usize,
    columns: &[Column],
    out: &mut impl Write,
) -> io::Result<()> {
    let lines = columns.iter().map(|column| column.heading.len()).max().unwrap_or(0);
    for line in 0..lines {
        let mut text = " ".repeat(widest);
        for column in columns {
            // Headings stand on their last line, which is the unit.
            let at = (line + column.heading.len()).checked_sub(lines);
            let words = at.map_or("", |at| column.heading[at].as_str());
            text.push_str(&format!("  {words:>width$}", width = column.width));
        }
        if !text.trim().is_empty() {
            writeln!(out, "{}", text.trim_end())?;
        }
    }
    for (row, label) in labels.iter().enumerate() {
        write!(out, "{label:widest$}")?;
        for column in columns {
            write!(out, "  {:>width$}", column.cells[row], width = column.width)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn paragraph(out: &mut impl Write, text: &str) -> io::Result<()> {
    writeln!(out, "{}", wrapped(text, "", COLUMNS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::samples::{loads, records, run, sweep};

    fn shown(results: &Results) -> String {
        let mut out = Vec::new();
        write(results, &mut out).expect("memory takes everything");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn medians_and_spreads_are_those_of_the_rounds() {
        let mut all = loads("write", &["a", "b"], 3);
        for (one, rate) in all.iter_mut().zip([100.0, 7.0, 140.0, 8.0, 120.0, 9.0]) {
            one.figures.insert(Figure::MibPerSec, rate);
        }
        let text = shown(&Results::group(&records("r", all)));
        let row = |subject: &str| {
            text.lines().find(|line| line.trim_start().starts_with(subject)).expect("a row")
        };
        assert!(row("a ").starts_with("   a   120 (33%)"), "{text}");
        assert!(row("b ").starts_with("   b  8.00 (25%)"), "{text}");
        assert!(text.contains("write; io 1 MiB, ranks 4; median of 3 rounds"), "{text}");
        assert!(!text.contains("errors"), "{text}");
    }

    #[test]
    fn calls_put_off_have_a_column_where_there_were_any() {
        let mut all = loads("write", &["a", "b"], 3);
        let text = shown(&Results::group(&records("r", all.clone())));
        assert!(!text.contains("put off"), "{text}");
        all[0].figures.insert(Figure::PutOff, 1.0);
        let text = shown(&Results::group(&records("r", all)));
        assert!(text.contains("put off"), "{text}");
    }

    #[test]
    fn the_table_fits_its_columns() {
        let long = "a subject with a name that is far longer than anybody would want to see";
        let mut all = loads("write", &["a", long], 5);
        all.extend(sweep(&["buffered", "direct"], "clients", &[1, 2, 64]));
        for one in &mut all {
            for figure in Figure::ALL {
                one.figures.entry(*figure).or_insert(123_456_789.0);
            }
        }
        let text = shown(&Results::group(&records("r", all)));
        for line in text.lines() {
            assert!(line.chars().count() <= COLUMNS, "{line}");
        }
        assert!(text.contains("direct, clients 64"), "{text}");
        for figure in Figure::ALL {
            assert!(BLOCKS.iter().any(|block| block.contains(figure)), "{figure:?} is missing");
        }
    }

    #[test]
    fn faults_and_a_dear_generator_are_loud() {
        let mut all = loads("read", &["good", "bad"], 3);
        all[3].figures.insert(Figure::WrongBytes, 512.0);
        for one in all.iter_mut().filter(|one| one.subject == "good") {
            one.figures.insert(Figure::GeneratorToServer, 0.26);
        }
        let text = shown(&Results::group(&records("r", all)));
        assert!(text.contains("\n!! bad: round 2: 512 bytes were wrong"), "{text}");
        assert!(text.contains("\n!! bad  "), "{text}");
        assert!(text.contains("!! good: the generator took 0.260 of"), "{text}");
        assert!(!text.contains("!! bad: the generator"), "{text}");
    }

    #[test]
    fn circumstances_and_omissions_are_shown() {
        let run = Run {
            memory_limit_bytes: Some(256 << 20),
            left_out: vec!["The device was not slowed down: no cgroup.".into()],
            note: "a \u{1b}[31mred note".into(),
            ..run("r")
        };
        let text = shown(&Results::group(&[Record::Run(run)]));
        for words in [
            "Linux 9.9.9",
            "2 x Imaginary 9000",
            "4.0 GiB of memory",
            "limited to 256.0 MiB",
            "files on xfs, /dev/imaginary",
            "- The device was not slowed down: no cgroup.",
        ] {
            assert!(text.contains(words), "{words} is missing: {text}");
        }
        assert!(!text.contains('\u{1b}'));
    }
}
