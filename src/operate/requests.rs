//! `spillway requests`: the last calls of a running server.

use clap::Args;
use server::report::RequestRecord;

use super::{Done, Failure, Target};
use crate::control::Command;
use crate::flight_record;

/// Show the last calls of a running server, and those in progress
///
/// The server records every call, whether or not anything is traced or logged: the last 512 of each
/// network thread, with client, procedure, object, range, I/O, status, the time that it waited for
/// a thread, and its total time. The oldest come first.
///
/// When a thread of the server panics, it writes the same to the file requests-at-panic.txt in its
/// state directory.
///
/// Exit status: 0 if the server answered, 1 if not.
#[derive(Args)]
#[command(after_help = "Examples:\n  spillway requests | grep 'in progress'\n  \
                        spillway requests --min-latency-us 10000")]
pub(crate) struct Options {
    /// Only calls that took at least this long, or have been in progress for this long [default:
    /// all]
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0, hide_default_value = true)]
    min_latency_us: u64,

    #[command(flatten)]
    target: Target,
}

pub(super) fn run(options: &Options) -> Result<Done, Failure> {
    let mut calls: Vec<RequestRecord> = options.target.ask(Command::Requests)?;
    calls.retain(|call| call.time_us >= options.min_latency_us);
    Ok(Done::Printed(options.target.show(&calls, |calls| flight_record::text(calls))))
}
