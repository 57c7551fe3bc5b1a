//! The form of a line: for a terminal or a file with the time, for the journal with its priority.

use std::fmt::{self, Write as _};
use std::io;
use std::os::fd::AsFd as _;

use rustix::fs::fstat;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Set by systemd to the device and inode of the socket that it gave as stderr (systemd.exec(5)).
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// Writes lines in the form of `tracing_subscriber`, each in one piece and in printable characters.
pub(super) enum Lines {
    /// With the time in front.
    Timed(Format),
    /// With the priority in front, as sd-daemon(3) has it; the journal adds the time.
    Journal(Format<Full, ()>),
}

impl Lines {
    pub(super) fn for_stderr(has_colors: bool) -> Self {
        let is_journal = std::env::var(JOURNAL_STREAM).is_ok_and(|stream| is_stderr(&stream));
        if is_journal {
            return Self::Journal(Format::default().without_time());
        }
        Self::Timed(Format::default().with_ansi(has_colors))
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
        match self {
            Self::Timed(format) => format.format_event(context, inner, event)?,
            Self::Journal(format) => {
                write!(writer, "<{}>", priority(*event.metadata().level()))?;
                format.format_event(context, inner, event)?;
            }
        }
        writeln!(writer, "{}", Printable { text: line.trim_end_matches('\n'), has_colors })
    }
}

/// The priority of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// A line without what would end it, move the cursor, or show it in another order than it has.
struct Printable<'a> {
    text: &'a str,
    /// Whether escapes stay.
    has_colors: bool,
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.text.chars() {
            match char {
                '\u{1b}' if self.has_colors => f.write_char(char)?,
                char if char.is_control() || reorders(char) => {
                    write!(f, "{}", char.escape_default())?;
                }
                char => f.write_char(char)?,
            }
        }
        Ok(())
    }
}

/// Line ends of Unicode, and what sets the direction of text (UAX #9).
fn reorders(char: char) -> bool {
    matches!(
        char,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_in_printable_characters() {
        for (text, has_colors, expected) in [
            ("plain ä 日本", false, "plain ä 日本"),
            ("a\nb\r\tc\0", false, "a\\nb\\r\\tc\\u{0}"),
            ("\u{1b}[31mred", false, "\\u{1b}[31mred"),
            ("\u{1b}[31mred", true, "\u{1b}[31mred"),
            ("\u{9b}31m", true, "\\u{9b}31m"),
            ("txt\u{202e}exe\u{2028}", false, "txt\\u{202e}exe\\u{2028}"),
        ] {
            assert_eq!(Printable { text, has_colors }.to_string(), expected);
        }
    }

    #[test]
    fn another_stream_is_not_stderr() {
        assert!(!is_stderr("0:0") && !is_stderr("") && !is_stderr("1:2:3"));
    }
}
