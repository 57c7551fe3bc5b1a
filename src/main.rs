//! `spillway`: serves directories over NFS version 3, and works with those of other servers.

mod announce;
mod check;
mod cli;
mod commands;
mod serve;

use std::process::ExitCode;

use cli::Command;

fn main() -> ExitCode {
    match cli::parse() {
        Ok(Command::Serve(options)) => serve::run(&options),
        Ok(Command::Check(options)) => check::run(&options),
        Ok(Command::Mount(command)) => commands::mount::run(&command),
        Ok(Command::Files(command)) => commands::run(&command),
        Err(status) => status,
    }
}
