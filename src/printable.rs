//! Lines in printable characters.

use std::fmt::{self, Write as _};

/// A line without what would end it, move the cursor, or show it in another order than it has.
pub(crate) struct Printable<'a> {
    pub(crate) text: &'a str,
    /// Whether escapes stay.
    pub(crate) has_colors: bool,
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
            assert_eq!(Printable { text, has_colors }.to_string(), expected);
        }
    }
}
