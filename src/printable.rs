//! Text of other users and machines in printable characters, for people.
//!
//! Every message on stderr, line of the log and report on a terminal passes here, so that a name or
//! an answer neither moves the cursor nor forges lines. Programs get the bytes as they are. JSON is
//! for programs on a terminal too; it escapes control characters below U+0020 alone.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal as _};

/// Text without what would move the cursor, or show it in another order than it has.
pub(crate) struct Printable<'a> {
    text: &'a str,
    /// Control characters that stay.
    kept: &'static [char],
}

impl<'a> Printable<'a> {
    /// One line.
    pub(crate) fn line(text: &'a str) -> Self {
        Self { text, kept: &[] }
    }

    /// One line with the escape sequences that it has, if it `has_colors`.
    pub(crate) fn colored_line(text: &'a str, has_colors: bool) -> Self {
        Self { text, kept: if has_colors { &['\u{1b}'] } else { &[] } }
    }

    /// Several lines.
    pub(crate) fn lines(text: &'a str) -> Self {
        Self { text, kept: &['\n'] }
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.text.chars() {
            if self.kept.contains(&char) || !(char.is_control() || reorders(char)) {
                f.write_char(char)?;
            } else {
                write!(f, "{}", char.escape_default())?;
            }
        }
        Ok(())
    }
}

/// Lines for standard output: as they are for a program, in printable characters for a terminal.
pub(crate) fn for_stdout(lines: &str) -> Cow<'_, str> {
    if io::stdout().is_terminal() {
        Printable::lines(lines).to_string().into()
    } else {
        lines.into()
    }
}

/// Line ends of Unicode, and what sets the direction of text (UAX #9).
pub(crate) fn reorders(char: char) -> bool {
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
            assert_eq!(Printable::colored_line(text, has_colors).to_string(), expected);
        }
        assert_eq!(Printable::line("a\nb").to_string(), "a\\nb");
        assert_eq!(Printable::lines("a\n\u{1b}[31mb\n").to_string(), "a\n\\u{1b}[31mb\n");
    }
}
