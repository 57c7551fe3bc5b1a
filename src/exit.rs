//! The end of the program: its exit status, and the form of every failure.
//!
//! Exit status: 0 for success, [`FAILED`] for a failure, [`MISUSED`] for a wrong command line. Each
//! failure is one sentence on stderr, or in the system's log of a process that has left its stderr.

use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

use rustix::io::Errno;

use crate::log;
use crate::printable::Printable;

pub(crate) const FAILED: u8 = 1;
pub(crate) const MISUSED: u8 = 2;
/// The statuses of mount(8) for the same.
const MOUNT_MISUSED: u8 = 1;
const MOUNT_FAILED: u8 = 32;
/// The status that a shell reports for a program that SIGPIPE ended, as it ends coreutils. Rust's
/// runtime ignores the signal, and so the write fails instead.
pub(crate) const READER_GONE: u8 = 128 + 13;

/// Reports an error with its causes as one line.
pub(crate) fn failed(error: &dyn Error) -> ExitCode {
    complain(log::ERROR, &Printable::line(&sentence(error)));
    ExitCode::from(FAILED)
}

/// As [`failed`], for an error that repeats lines of another program.
pub(crate) fn failed_in_lines(error: &dyn Error) -> ExitCode {
    complain(log::ERROR, &Printable::lines(&sentence(error)));
    ExitCode::from(FAILED)
}

/// An error with its causes, each once: many errors repeat their source in their own text.
fn sentence(error: &dyn Error) -> String {
    let mut sentence = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !sentence.contains(&text) {
            sentence = format!("{sentence}: {text}");
        }
        cause = error.source();
    }
    sentence
}

/// Reports that the command line is wrong, and where the help of `command` is.
pub(crate) fn misused(command: &str, sentence: &str) -> ExitCode {
    let text = format!("{}\nTry `{command} --help`.", Printable::line(sentence));
    complain(log::ERROR, &Printable::lines(&text));
    ExitCode::from(MISUSED)
}

/// The status that a helper of mount(8) ends with.
pub(crate) fn of_mount_helper(status: ExitCode) -> ExitCode {
    if status == ExitCode::from(FAILED) {
        ExitCode::from(MOUNT_FAILED)
    } else if status == ExitCode::from(MISUSED) {
        ExitCode::from(MOUNT_MISUSED)
    } else {
        status
    }
}

/// The exit status once all output was written to stdout, or was not: then as coreutils.
pub(crate) fn written(output: io::Result<()>) -> ExitCode {
    match output {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(READER_GONE),
        Err(error) => {
            let sentence = format!("write error: {}", io_reason(&error));
            complain(log::ERROR, &Printable::line(&sentence));
            ExitCode::from(FAILED)
        }
    }
}

/// Reports what does not fail.
pub(crate) fn warn(sentence: &str) {
    complain(log::WARNING, &Printable::line(&format!("warning: {sentence}")));
}

fn complain(priority: u8, text: &Printable<'_>) {
    if log::system::send(priority, &text.to_string()) {
        return;
    }
    // There is no other place to report that stderr takes nothing.
    let _ = writeln!(io::stderr().lock(), "spillway: {text}");
}

/// The system's text for the error, without its number.
pub(crate) fn io_reason(error: &io::Error) -> String {
    Errno::from_io_error(error).map_or_else(|| error.to_string(), client::error::errno_text)
}
