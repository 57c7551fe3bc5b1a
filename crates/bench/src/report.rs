//! `spillway bench report`: pages and plots from records.

mod axis;
mod bars;
mod chart;
mod html;
mod ink;
mod losses;
mod markdown;
mod plot;
mod svg;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::recorded::Recorded;

pub use html::page;
pub use markdown::text as markdown;
pub use plot::{Plot, Table, plots};

/// Arguments of `spillway bench report`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Records, as `--out` of an experiment writes them
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Write one page with plots, which needs no other files
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write each plot as a file of its own
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Write the tables as Markdown, what is lost first
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// A subject that the others are measured by: another server. May be given several times
    #[arg(long, value_name = "SUBJECT")]
    pub peer: Vec<String>,
}

/// Writes what was asked for, and the tables for the terminal to `out` if nothing was.
///
/// # Errors
/// Those of [`Recorded::read`]; `Misuse` if a peer is not among the subjects; `Machine` if a file
/// cannot be written.
pub fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let recorded = Recorded::read(&args.files)?;
    for peer in &args.peer {
        if !recorded.runs.iter().any(|run| run.subjects().contains(&peer.as_str())) {
            return Err(Error::Misuse(format!("no run has a subject `{peer}`")));
        }
    }
    if let Some(file) = &args.html {
        write_file(file, &page(&recorded, &args.peer))?;
    }
    if let Some(directory) = &args.svg {
        write_svgs(&recorded, directory)?;
    }
    if let Some(file) = &args.markdown {
        write_file(file, &markdown(&recorded, &args.peer))?;
    }
    if args.html.is_none() && args.svg.is_none() && args.markdown.is_none() {
        crate::table::write(&recorded, out).map_err(Error::machine("cannot write the tables"))?;
    }
    Ok(())
}

/// Writes each plot into a directory, which is made if it is not there.
///
/// # Errors
/// `Machine` if that fails.
pub fn write_svgs(recorded: &Recorded, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .map_err(Error::machine(format!("cannot make {}", directory.display())))?;
    let subjects = recorded.subjects();
    for run in &recorded.runs {
        for plot in run.phases.iter().flat_map(|phase| plots(run, phase, &subjects)) {
            write_file(&directory.join(format!("{}.svg", plot.name)), &plot.svg)?;
        }
    }
    Ok(())
}

fn write_file(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).map_err(Error::machine(format!("cannot write {}", file.display())))
}

#[cfg(test)]
mod tests;
