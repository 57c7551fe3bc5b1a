//! `spillway`: serves directories over NFS version 3, and works with those of other servers.

mod announce;
mod arguments;
mod check;
mod cli;
mod commands;
mod control;
mod exit;
mod flight_record;
mod log;
mod manual;
mod operate;
mod printable;
mod privileges;
mod replace_file;
mod serve;
mod service_manager;
#[cfg(test)]
#[path = "../tests/skip/mod.rs"]
mod skip;
mod stdout;

use std::env;
use std::process::ExitCode;

use cli::Command;

fn main() -> ExitCode {
    let status = run();
    if arguments::are_of_mount_helper() { exit::of_mount_helper(status) } else { status }
}

fn run() -> ExitCode {
    match cli::parse() {
        Ok(Command::Serve(options)) => serve::run(options),
        Ok(Command::Check(options)) => check::run(&options),
        Ok(Command::Mount(command)) => commands::mount::run(&command),
        Ok(Command::Operate(command)) => operate::run(&command),
        Ok(Command::Files(command)) => commands::run(&command),
        Ok(Command::Bench { experiment }) => experiments(&experiment),
        Ok(Command::Man(options)) => manual::write(cli::definition(), &options),
        Ok(Command::Completions(options)) => manual::complete(cli::definition(), &options),
        Err(status) => status,
    }
}

fn experiments(experiment: &bench::Command) -> ExitCode {
    // Before it has measured for an hour.
    if let Err(error) = stdout::check() {
        return exit::written(Err(error));
    }
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return exit::failed(&error),
    };
    match bench::run(experiment, &program, env::args_os().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(bench::Error::Misuse(sentence)) => cli::misused(&sentence),
        Err(bench::Error::Stdout(error)) => exit::written(Err(error)),
        Err(error) => exit::failed_in_lines(&error),
    }
}
