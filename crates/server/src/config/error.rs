//! The errors of a configuration, and their places.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// Why a configuration was refused: one sentence, with its place.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text of the configuration file.
    #[error("{}:{line}:{column}: {why}", file.display())]
    Text {
        /// The configuration file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
        /// One sentence.
        why: String,
    },
    /// The configuration file as a whole: it cannot be read, or lacks something.
    #[error("{}: {why}", file.display())]
    File {
        /// The configuration file.
        file: PathBuf,
        /// One sentence.
        why: String,
    },
    /// A command-line flag or its combination with others.
    #[error("{flag}: {why}")]
    Flag {
        /// As typed, with its dashes.
        flag: &'static str,
        /// One sentence.
        why: String,
    },
    /// The machine: the setting is valid, but this machine does not have it.
    #[error("{why}")]
    System {
        /// One sentence.
        why: String,
    },
}

/// The origin of a setting, which its error names.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// Bytes of the configuration file.
    Text(Range<usize>),
    /// A flag, with its dashes.
    Flag(&'static str),
    /// The default.
    Default,
}

/// A setting with its origin.
pub(super) struct Given<T> {
    pub(super) value: T,
    pub(super) origin: Origin,
}

impl<T> Given<T> {
    /// A flag wins over the file, the file over the default.
    pub(super) fn pick(
        flag: Option<(&'static str, T)>,
        text: Option<toml::Spanned<T>>,
        default: T,
    ) -> Self {
        match (flag, text) {
            (Some((name, value)), _) => Self { value, origin: Origin::Flag(name) },
            (None, Some(text)) => {
                Self { origin: Origin::Text(text.span()), value: text.into_inner() }
            }
            (None, None) => Self { value: default, origin: Origin::Default },
        }
    }
}

/// The configuration file while it is checked.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    pub(super) fn whole_file(&self, why: String) -> ConfigError {
        ConfigError::File { file: self.file.to_owned(), why }
    }

    pub(super) fn at(&self, span: &Range<usize>, why: String) -> ConfigError {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |newline| newline + 1);
        let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
        let column = 1 + String::from_utf8_lossy(&before[line_start..]).chars().count();
        ConfigError::Text { file: self.file.to_owned(), line, column, why: one_line(&why) }
    }

    pub(super) fn blame(&self, origin: &Origin, why: String) -> ConfigError {
        match origin {
            Origin::Text(span) => self.at(span, why),
            Origin::Flag(flag) => ConfigError::Flag { flag, why },
            Origin::Default => ConfigError::System { why },
        }
    }

    /// Turns the parser's complaint into ours: its position as line and column, one line, and an
    /// operator's words for those of its data model.
    pub(super) fn not_toml(&self, error: &toml::de::Error) -> ConfigError {
        let message = error.message();
        let why = message.lines().map(str::trim).collect::<Vec<_>>().join(", ");
        let why = PARSER_WORDS.iter().fold(why, |why, (word, ours)| why.replacen(word, ours, 1));
        match error.span() {
            Some(span) => self.at(&span, why),
            None => self.whole_file(why),
        }
    }
}

/// Escapes what a quoted value may bring along: a log takes one line per error.
fn one_line(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.into() };
    text.chars().map(escaped).collect()
}

const PARSER_WORDS: [(&str, &str); 6] = [
    ("unknown field", "unknown key"),
    ("missing field", "missing key"),
    ("unknown variant", "unknown value"),
    ("expected u32", "expected a number from 0 to 4294967295"),
    ("expected a boolean", "expected true or false"),
    ("expected path string", "expected a path in quotes"),
];
