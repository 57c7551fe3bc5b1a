//! Repeatable experiments on NFS servers and file systems: `spillway bench`.
//!
//! An experiment puts loads on subjects (servers or I/O modes) in turns, watches processes, caches
//! and devices meanwhile, and leaves records ([`record`]). Tables, reports and comparisons are
//! made from records alone.
#![forbid(unsafe_code)]

pub mod compare;
mod error;
pub mod experiments;
pub mod figure;
pub mod load;
pub mod null_server;
pub mod numeral;
mod options;
mod output;
pub mod record;
mod record_stream;
pub mod report;
pub mod results;
pub mod rig;
#[cfg(test)]
mod samples;
#[cfg(test)]
#[path = "../../../tests/skip/mod.rs"]
mod skip;
mod stage;
pub mod statistics;
pub mod stop;
mod subject;
mod successor;
pub mod table;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use clap::{Args, Subcommand};

pub use error::{Error, Result};
use experiments::servers::{self, OnServers};
use experiments::{clients, io as reads_and_writes, names, readdir, threads, uncached, writeback};
use options::TargetOptions;
use output::{Output, OutputOptions};
use stage::SurroundingsOptions;
use stop::Stop;

/// The experiments of `spillway bench`, and the commands for their records.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// READ and WRITE in the patterns of IOR and at random: rate, latency, cost to the server, and
    /// a check of every byte
    Io(Box<reads_and_writes::Options>),
    /// Write many files at once in a local directory, through the page cache and without leaving
    /// data in it
    Uncached(Box<Uncached>),
    /// List a large directory, unchanged and while another client changes it
    Readdir(Box<OnServers<readdir::Options>>),
    /// Write a file in tiny records through Spillway's client, with few and with many WRITEs in
    /// flight
    Writeback(Box<OnServers<writeback::Options>>),
    /// READ or WRITE with few and with many calls in flight, on one connection and on several, and
    /// one client beside another with many connections
    Threads(Box<threads::Options>),
    /// CREATE, LOOKUP, GETATTR and REMOVE on a few connections, one call in flight on each
    Names(Box<OnServers<names::Options>>),
    /// Write, read and copy files with other programs, fio's nfs engine and nfs-cp of libnfs, and
    /// with spillway cp
    Clients(Box<OnServers<clients::Options>>),
    /// Make pages, plots and tables from files of records
    Report(report::Args),
    /// Report significant differences between two files of records, or between the subjects of one
    Compare(compare::Args),
    /// Serve nothing, at once: what a load costs beside this server is the load's own cost
    #[command(hide = true)]
    NullServer,
}

impl Command {
    /// Of an experiment on servers.
    fn surroundings(&self) -> Option<(&SurroundingsOptions, &TargetOptions)> {
        match self {
            Self::Io(options) => Some((&options.surroundings, &options.target)),
            Self::Readdir(options) => Some((&options.surroundings, &options.target)),
            Self::Writeback(options) => Some((&options.surroundings, &options.target)),
            Self::Threads(options) => Some((&options.surroundings, &options.target)),
            Self::Names(options) => Some((&options.surroundings, &options.target)),
            Self::Clients(options) => Some((&options.surroundings, &options.target)),
            Self::Uncached(_) | Self::Report(_) | Self::Compare(_) | Self::NullServer => None,
        }
    }
}

/// Options of `spillway bench uncached`.
#[derive(Args, Clone, Debug)]
pub struct Uncached {
    #[command(flatten)]
    own: uncached::Options,
    #[command(flatten)]
    output: OutputOptions,
}

/// Carries a command out. `program` is this program, `arguments` what it was given.
///
/// # Errors
/// [`Error`] sorts them; what was measured before one is kept and shown.
pub fn run(command: &Command, program: &Path, arguments: Vec<OsString>) -> Result<()> {
    let words = || arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some((surroundings, targets)) = command.surroundings()
        && let Some(status) = stage::in_network_link(surroundings, targets, program, &arguments)?
    {
        // It has reported everything.
        std::process::exit(status.code().unwrap_or(1));
    }
    match command {
        Command::Io(options) => reads_and_writes::run(options, program, words()),
        Command::Uncached(options) => run_uncached(options, program, &arguments, words()),
        Command::Readdir(options) => servers::run(options, program, words()),
        Command::Writeback(options) => servers::run(options, program, words()),
        Command::Threads(options) => threads::run(options, program, words()),
        Command::Names(options) => servers::run(options, program, words()),
        Command::Clients(options) => servers::run(options, program, words()),
        Command::Report(options) => report::run(options, &mut io::stdout().lock()),
        Command::Compare(options) => compare::run(options, &mut io::stdout().lock()),
        Command::NullServer => serve_nothing(),
    }
}

fn run_uncached(
    options: &Uncached,
    program: &Path,
    arguments: &[OsString],
    words: Vec<String>,
) -> Result<()> {
    let again = uncached::in_memory_group(&options.own, program, arguments)?;
    if let Some(status) = again {
        // It has reported everything.
        std::process::exit(status.code().unwrap_or(1));
    }
    let stop = Stop::on_signals()?;
    let mut run = rig::begin_run("uncached", words)?;
    options.own.describe(&mut run)?;
    run.file_system = rig::FileSystem::described(&options.own.directory)?;
    run.note.clone_from(&options.output.note);
    let mut output = Output::start(&options.output, run)?;
    let done = uncached::run(&options.own, &stop, &mut |measurement| output.add(measurement));
    output.finish()?;
    done
}

/// Prints its address, and serves until it is killed or its parent ends.
fn serve_nothing() -> Result<()> {
    let failed = || Error::machine("the null server");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
    let address = listener.local_addr().map_err(failed())?;
    let mut stdout = io::stdout();
    writeln!(stdout, "{address}").and_then(|()| stdout.flush()).map_err(failed())?;
    std::thread::spawn(|| {
        // Its stdin is a pipe without data, which ends with the parent.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    });
    null_server::serve(&listener).map_err(failed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_each_experiment_have_different_names() {
        use clap::CommandFactory as _;

        #[derive(clap::Parser)]
        struct Line {
            #[command(subcommand)]
            _command: Command,
        }
        Line::command().debug_assert();
    }
}
