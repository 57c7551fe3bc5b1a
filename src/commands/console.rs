//! A command's messages on stderr, and the exit status that follows from them.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use indicatif::ProgressBar;

use crate::exit::{FAILED, READER_GONE, io_reason};
use crate::printable::Printable;
use crate::{log, stdout};

/// One command's complaints. Shared by all that works for it.
pub(crate) struct Console {
    /// `spillway ls`, which every message begins with.
    program: String,
    /// The worst of what went wrong so far.
    status: AtomicU8,
    /// Steps aside while a line is printed.
    bar: Mutex<Option<ProgressBar>>,
    /// Why stdout took no more, once it did not.
    stdout_failure: Mutex<Option<io::Error>>,
}

impl Console {
    pub(crate) fn new(command: &str) -> Self {
        Self {
            program: format!("spillway {command}"),
            status: AtomicU8::new(0),
            bar: Mutex::new(None),
            stdout_failure: Mutex::new(None),
        }
    }

    /// Reports a failure. The command continues with its other arguments.
    pub(crate) fn fail(&self, sentence: impl Display) {
        self.fail_with(FAILED, sentence);
    }

    /// The same with an exit status of its own; the highest of all failures counts.
    pub(crate) fn fail_with(&self, status: u8, sentence: impl Display) {
        self.status.fetch_max(status, Ordering::Relaxed);
        self.remark(sentence);
    }

    /// Reports a remark, which is no failure.
    pub(crate) fn remark(&self, sentence: impl Display) {
        self.complain(&Printable::line(&sentence.to_string()));
    }

    /// Reports a line of the log, which has escape sequences if stderr may have colors.
    pub(crate) fn log(&self, line: &str) {
        self.complain(&Printable::colored_line(line, log::stderr_has_colors()));
    }

    fn complain(&self, text: &Printable<'_>) {
        let line = format!("{}: {text}\n", self.program);
        // A closed stderr leaves no way to report it.
        self.aside(|| drop(io::stderr().lock().write_all(line.as_bytes())));
    }

    /// Prints a line on stdout, for `-v`.
    pub(crate) fn say(&self, line: impl Display) {
        let line = format!("{line}\n");
        self.aside(|| {
            if let Err(error) = stdout::lock().write_all(line.as_bytes()) {
                locked(&self.stdout_failure).get_or_insert(error);
            }
        });
    }

    /// Lets lines go above `bar` from now on.
    pub(crate) fn step_aside(&self, bar: ProgressBar) {
        *locked(&self.bar) = Some(bar);
    }

    fn aside(&self, print: impl FnOnce()) {
        match &*locked(&self.bar) {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// The exit status. `output` is the outcome of the command's own writes to stdout.
    pub(crate) fn finish(&self, output: io::Result<()>) -> ExitCode {
        let said = locked(&self.stdout_failure).take().map_or(Ok(()), Err);
        match output.and(said).and_then(|()| stdout::check_close()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return ExitCode::from(READER_GONE);
            }
            Err(error) => self.fail(format_args!("write error: {}", io_reason(&error))),
            Ok(()) => {}
        }
        ExitCode::from(self.status.load(Ordering::Relaxed))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
