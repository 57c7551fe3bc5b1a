//! `spillway requests`: the last calls of a running server.

use std::time::Duration;

use clap::Args;
use server::report::RequestRecord;

use super::text::parse_time;
use super::{Done, Failure, Target};
use crate::control::Command;
use crate::flight_record;

/// Show the last calls of a running server, and those in progress
///
/// The server records every call, whether or not anything is traced or logged. It keeps the last
/// 512 for each network thread, up to eight threads; more threads share these. It shows client,
/// procedure, object, range, I/O, status, the time that the call waited for a thread, and its total
/// time. The oldest come first.
///
/// When a thread of the server panics, it writes the same to the file requests-at-panic.txt in its
/// state directory.
///
/// Exit status: 0 if the server answered, 1 if not.
#[derive(Args)]
#[command(after_help = "Examples:\n  spillway requests | grep 'in progress'\n  \
                        spillway requests --min-latency 10ms")]
pub(crate) struct Options {
    /// Only calls that took at least this long, like 500us, 10ms or 1s, or have been in progress
    /// for this long [default: all]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    min_latency: Option<Duration>,

    #[command(flatten)]
    target: Target,
}

pub(super) fn run(options: &Options) -> Result<Done, Failure> {
    let mut calls: Vec<RequestRecord> = options.target.ask(Command::Requests)?;
    let min_latency = options.min_latency.unwrap_or_default();
    calls.retain(|call| Duration::from_micros(call.time_us) >= min_latency);
    Ok(Done::Printed(options.target.show(&calls, |calls| flight_record::text(calls))))
}
