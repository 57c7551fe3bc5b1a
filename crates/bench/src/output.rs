//! A run's records as they come: each at once in a file, all of them for the table and the page at
//! the end, and a line on the terminal meanwhile.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::figure::Figure;
use crate::record::{Measurement, Record, Run};
use crate::results::Results;
use crate::{Error, Result, report, table};

/// Where results go.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Results")]
pub(crate) struct OutputOptions {
    /// Write a line of JSON for the run and each measurement to FILE; - is stdout, without the
    /// table [default: none]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Write a self-contained page with plots to FILE [default: none]
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Write each plot to an SVG file in DIR, which is created [default: none]
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Note in the record of this run: what was changed, what else ran [default: nothing]
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) note: String,
}

impl OutputOptions {
    /// Whether stdout belongs to the records.
    fn is_for_machines(&self) -> bool {
        self.out.as_ref().is_some_and(|file| file.as_os_str() == "-")
    }
}

/// The records of one run.
pub(crate) struct Output {
    options: OutputOptions,
    id: String,
    file: Option<Box<dyn Write>>,
    records: Vec<Record>,
    bar: ProgressBar,
}

impl Output {
    /// Begins with the run's own record.
    ///
    /// # Errors
    /// [`Error::Machine`]: the file cannot be written.
    pub(crate) fn start(options: &OutputOptions, run: Run) -> Result<Self> {
        let file: Option<Box<dyn Write>> = match &options.out {
            None => None,
            Some(_) if options.is_for_machines() => Some(Box::new(io::stdout())),
            Some(path) => {
                let created = File::create(path);
                let what = format!("cannot write records to {}", path.display());
                Some(Box::new(created.map_err(Error::machine(what))?))
            }
        };
        let (options, id) = (options.clone(), run.id.clone());
        let mut output = Self { options, id, file, records: Vec::new(), bar: bar() };
        output.write(Record::Run(run))?;
        Ok(output)
    }

    /// Adds a measurement, names its run in it, and reports it on stderr.
    ///
    /// # Errors
    /// [`Error::Machine`]: the file cannot be written.
    pub(crate) fn add(&mut self, mut measurement: Measurement) -> Result<()> {
        measurement.run.clone_from(&self.id);
        // JSON has no infinity: the line could not be read again.
        measurement.figures.retain(|_, value| value.is_finite());
        self.report(&summary(&measurement));
        self.write(Record::Measurement(measurement))
    }

    /// Shows the current work on a terminal.
    pub(crate) fn doing(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
    }

    /// A remark on stderr, above the line.
    pub(crate) fn report(&self, sentence: &str) {
        // A closed stderr has no reader.
        self.bar.suspend(|| drop(writeln!(io::stderr().lock(), "{sentence}")));
    }

    /// Prints the table, and writes page and plots if they were asked for.
    ///
    /// # Errors
    /// [`Error::Machine`]: a file cannot be written. [`Error::Stdout`].
    pub(crate) fn finish(self) -> Result<()> {
        self.bar.finish_and_clear();
        let results = Results::group(&self.records);
        if !self.options.is_for_machines() {
            let mut stdout = io::stdout().lock();
            let written = table::write(&results, &mut stdout).and_then(|()| stdout.flush());
            written.map_err(Error::Stdout)?;
        }
        if let Some(file) = &self.options.report {
            let written = fs::write(file, report::page(&results, &[]));
            written.map_err(Error::machine(format!("cannot write {}", file.display())))?;
        }
        match &self.options.svg {
            Some(directory) => report::write_svgs(&results, directory),
            None => Ok(()),
        }
    }

    fn write(&mut self, record: Record) -> Result<()> {
        if let Some(file) = &mut self.file {
            let mut line = serde_json::to_string(&record).expect("records are plain data");
            line.push('\n');
            let written = file.write_all(line.as_bytes()).and_then(|()| file.flush());
            let is_stdout = self.options.is_for_machines();
            written.map_err(|source| match is_stdout {
                true => Error::Stdout(source),
                false => Error::Machine { what: "cannot write records".to_owned(), source },
            })?;
        }
        self.records.push(record);
        Ok(())
    }
}

fn bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}");
    bar.set_style(style.expect("the template is well formed"));
    bar.enable_steady_tick(TICK);
    bar
}

/// A measurement in a line.
fn summary(measurement: &Measurement) -> String {
    let Measurement { phase, subject, round, parameters, figures, first_error, .. } = measurement;
    let mut line = format!("round {round}: {phase}, {subject}");
    for (name, value) in parameters {
        line += &format!(", {name} {value}");
    }
    line += ":";
    let shown = SHOWN.iter().filter_map(|figure| Some((figure, figures.get(figure)?)));
    for (figure, value) in shown {
        let digits = if value.abs() < 10.0 { 2 } else { 0 };
        line += &format!(" {} {value:.digits$} {}", figure.title(), figure.unit());
        line = line.trim_end().to_owned() + ",";
    }
    line.pop();
    match first_error {
        Some(error) => format!("{line}\n    FAILED: {error}"),
        None => line,
    }
}

/// Figures that fit one line.
const SHOWN: [Figure; 5] = [
    Figure::MibPerSec,
    Figure::OperationsPerSec,
    Figure::LatencyP99Us,
    Figure::Calls,
    Figure::WrongBytes,
];
const TICK: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn figures_that_are_no_numbers_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("records");
        let options = OutputOptions { out: Some(file.clone()), ..OutputOptions::default() };
        let mut output = Output::start(&options, samples::run("a")).unwrap();
        let figures = [
            (Figure::MibPerSec, 1.0),
            (Figure::GeneratorToServer, f64::INFINITY),
            (Figure::MachineSecsPerGib, f64::NAN),
        ];
        output.add(samples::measurement("read", "server", 1, &figures)).unwrap();
        let results = Results::read(&[file]).unwrap();
        let kept = &results.runs[0].phases[0].cases[0].rounds[0].figures;
        assert_eq!(*kept, [(Figure::MibPerSec, 1.0)].into());
    }
}
