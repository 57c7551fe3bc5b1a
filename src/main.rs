//! `spillway`: serves directories over NFS version 3.

mod announce;
mod check;
mod cli;
mod serve;

use std::process::ExitCode;

use cli::Command;

fn main() -> ExitCode {
    match cli::parse() {
        Ok(Command::Serve(options)) => serve::run(&options),
        Ok(Command::Check(options)) => check::run(&options),
        Err(status) => status,
    }
}
