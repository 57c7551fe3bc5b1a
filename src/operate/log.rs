//! `spillway log`: how much a running server logs.

use clap::Args;

use super::{Done, Failure, Target};
use crate::control::Command;

/// Show or change how much a running server logs, by part
///
/// Prints the levels in force, in the form of RUST_LOG, after changing those that are given. They
/// hold until the server ends.
///
/// The parts are calls (a line for each call at debug), connections, export, inode_cache, io,
/// mount3, nfs3, nfs4, program, rpc, server, state, vfs, or a module such as
/// spillway_server::recovery. The levels are off, error, warn, info, debug and trace.
///
/// Exit status: 0 if they are in force, 1 if nothing was changed.
#[derive(Args)]
#[command(after_help = "Examples:\n  spillway log calls=debug\n  \
                        spillway log warn vfs=trace\n  spillway log default")]
pub(crate) struct Options {
    /// A level of a part, a level of all other parts, or default for the levels of the start
    #[arg(value_name = "PART=LEVEL|LEVEL|default")]
    levels: Vec<String>,

    #[command(flatten)]
    target: Target,
}

pub(super) fn run(options: &Options) -> Result<Done, Failure> {
    let command = Command::Log { levels: options.levels.clone() };
    let levels: String = options.target.ask(command)?;
    Ok(Done::Printed(options.target.show(&levels, |levels| format!("{levels}\n"))))
}
