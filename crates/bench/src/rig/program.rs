//! Running the programs of the system.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::{Error, Result};

/// Of what a program said, how much an error repeats.
const LAST_WORDS_BYTES_MAX: usize = 800;

/// Runs a program that must succeed and returns what it printed.
///
/// # Errors
/// [`Error::Program`], with its last words.
pub(super) fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<String> {
    let mut command = Command::new(program);
    // A group of its own: Ctrl-C is for this process, which then undoes the steps so far.
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    let output = command.output().map_err(|error| not_run(program, &error))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(printed);
    }
    let words = String::from_utf8_lossy(&output.stderr) + printed.as_str();
    Err(Error::Program(format!("{program}: {}: {}", output.status, last_words(&words))))
}

/// The error that `program` could not be started.
pub(super) fn not_run(program: &str, error: &io::Error) -> Error {
    Error::Program(match error.kind() {
        io::ErrorKind::NotFound => format!("{program} is required and not installed"),
        _ => format!("{program}: {error}"),
    })
}

/// The end of `text`, from the beginning of a line if that is not far.
pub(super) fn last_words(text: &str) -> &str {
    let text = text.trim();
    let cut = text.len().saturating_sub(LAST_WORDS_BYTES_MAX);
    if cut == 0 {
        return text;
    }
    let end = &text[text.ceil_char_boundary(cut)..];
    end.split_once('\n').map_or(end, |(_, whole_lines)| whole_lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reports_which_program_and_why() {
        assert_eq!(run("echo", &["a b"]).unwrap(), "a b\n");
        let error = run("sh", &["-c", "echo no >&2; exit 3"]).unwrap_err().to_string();
        assert_eq!(error, "sh: exit status: 3: no");
        let error = run("/missing/program", &["-h"]).unwrap_err().to_string();
        assert_eq!(error, "/missing/program is required and not installed");
    }

    #[test]
    fn last_words_are_few_and_whole() {
        assert_eq!(last_words(" short\n"), "short");
        let long = "wörter und mehr\n".repeat(200);
        let last = last_words(&long);
        assert!(last.len() <= LAST_WORDS_BYTES_MAX && last.starts_with("wörter"), "{last}");
    }
}
