//! `spillway bench report`: pages and plots from records.

mod document;
mod draw;
mod html;
mod losses;
mod markdown;
mod plots;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::results::Results;

pub use html::page;
pub use markdown::markdown;
pub use plots::{Plot, plots};

/// Arguments of `spillway bench report`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Records, as written by `--out` of an experiment
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Write a self-contained page with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write each plot as a file of its own
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Write the tables as Markdown, losses first
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Subject to compare the others with, such as another server; repeatable
    #[arg(long, value_name = "SUBJECT")]
    pub peer: Vec<String>,
}

/// Writes what was asked for, and the tables for the terminal to `out` if nothing was.
///
/// # Errors
/// Those of [`Results::read`]; `Misuse` if a peer is not among the subjects; `Machine` if a file
/// cannot be written; `Stdout` if `out` takes no more.
pub fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let results = Results::read(&args.files)?;
    for peer in &args.peer {
        if !results.runs.iter().any(|run| run.subjects().contains(&peer.as_str())) {
            return Err(Error::Misuse(format!("no run has a subject `{peer}`")));
        }
    }
    if let Some(file) = &args.html {
        write_file(file, &page(&results, &args.peer))?;
    }
    if let Some(directory) = &args.svg {
        write_svgs(&results, directory)?;
    }
    if let Some(file) = &args.markdown {
        write_file(file, &markdown(&results, &args.peer))?;
    }
    if args.html.is_none() && args.svg.is_none() && args.markdown.is_none() {
        crate::table::write(&results, out).and_then(|()| out.flush()).map_err(Error::Stdout)?;
    }
    Ok(())
}

/// Writes each plot into a directory, which is made if it is not there.
///
/// # Errors
/// `Machine` if that fails.
pub fn write_svgs(results: &Results, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .map_err(Error::machine(format!("cannot make {}", directory.display())))?;
    let subjects = results.subjects();
    for run in &results.runs {
        for plot in run.phases.iter().flat_map(|phase| plots(run, phase, &subjects)) {
            write_file(&directory.join(format!("{}.svg", plot.name)), &plot.svg)?;
        }
    }
    Ok(())
}

fn write_file(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).map_err(Error::machine(format!("cannot write {}", file.display())))
}

/// Text for XML and HTML, between tags or in quotes, without any markup.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            // XML has no place for these, not even escaped.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
