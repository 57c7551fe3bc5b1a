//! The form of a line: for a terminal or a file with the time, for the journal with its priority,
//! for programs as JSON.

use std::fmt;
use std::io;
use std::os::fd::AsFd as _;

use clap::ValueEnum;
use rustix::fs::fstat;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::json;
use super::system::{self, priority};
use crate::printable::Printable;

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Words and fields `name=value`
    #[default]
    Text,
    /// An object of JSON a line
    Json,
}

/// Set by systemd to the device and inode of the socket that it gave as stderr (systemd.exec(5)).
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// Writes lines in the form of `tracing_subscriber`, each in one piece and in printable characters.
pub(super) enum Lines {
    /// With the time in front.
    Timed(Format),
    /// With the priority in front, as sd-daemon(3) has it; the journal adds the time.
    Journal(Format<Full, ()>),
    /// As JSON, in the journal with the priority in front.
    Json { is_journal: bool },
}

impl Lines {
    pub(super) fn for_stderr(form: LogFormat, has_colors: bool) -> Self {
        let is_journal = std::env::var(JOURNAL_STREAM).is_ok_and(|stream| is_stderr(&stream));
        match form {
            LogFormat::Json => Self::Json { is_journal },
            LogFormat::Text if is_journal => Self::Journal(Format::default().without_time()),
            LogFormat::Text => Self::Timed(Format::default().with_ansi(has_colors)),
        }
    }

    pub(super) fn for_file() -> Self {
        Self::Timed(Format::default().with_ansi(false))
    }
}

/// Whether stderr is the stream `DEVICE:INODE`. A program that has redirected it inherits the
/// variable all the same.
fn is_stderr(stream: &str) -> bool {
    let Ok(found) = fstat(io::stderr().as_fd()) else { return false };
    stream == format!("{}:{}", found.st_dev, found.st_ino)
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // With colors the formatter adds escapes of its own, and makes those in fields harmless.
        let has_colors = writer.has_ansi_escapes();
        let mut line = String::new();
        let inner = Writer::new(&mut line);
        if matches!(self, Self::Journal(_) | Self::Json { is_journal: true }) {
            write!(writer, "<{}>", priority(*event.metadata().level()))?;
        }
        match self {
            // `system::send` adds the priority, and the receiver adds the time.
            _ if system::is_open() => {
                Format::default().without_time().format_event(context, inner, event)?;
            }
            Self::Timed(format) => format.format_event(context, inner, event)?,
            Self::Journal(format) => format.format_event(context, inner, event)?,
            Self::Json { .. } => return writeln!(writer, "{}", json::line(event)?),
        }
        writeln!(writer, "{}", Printable::colored_line(line.trim_end_matches('\n'), has_colors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_stream_is_not_stderr() {
        assert!(!is_stderr("0:0") && !is_stderr("") && !is_stderr("1:2:3"));
    }
}
