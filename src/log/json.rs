//! Lines of the log as objects of JSON.

use std::error::Error;
use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tracing::Event;
use tracing::field::{Field, Visit};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use crate::printable::reorders;

/// An event as one line: `timestamp`, `level`, `target`, `message`, and the fields of the event.
///
/// # Errors
/// The clock cannot be shown.
pub(super) fn line(event: &Event<'_>) -> Result<String, fmt::Error> {
    let mut timestamp = String::new();
    SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
    let mut members = Members(Map::new());
    event.record(&mut members);
    let Members(mut members) = members;
    let metadata = event.metadata();
    let (level, target) = (metadata.level().as_str(), metadata.target());
    for (name, value) in [("timestamp", timestamp.as_str()), ("level", level), ("target", target)] {
        members.insert(name.to_owned(), value.into());
    }
    Ok(printable(&Value::Object(members).to_string()))
}

/// The fields of an event: numbers and truth values as they are, all others as strings.
struct Members(Map<String, Value>);

impl Members {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Members {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.add(field, value.to_string());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }
}

/// JSON text with what would move the cursor or reorder the line as `\uXXXX`: such characters are
/// in strings only. Those below U+0020 are escaped already.
fn printable(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for char in json.chars() {
        if char.is_control() || reorders(char) {
            write!(text, "\\u{:04x}", u32::from(char)).expect("a String takes all that is written");
        } else {
            text.push(char);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_characters_are_escaped_and_read_back() {
        for text in
            ["plain ä 日本", "a\nb\r\tc\0", "\u{1b}[31m", "\u{9b}31m\u{7f}", "\u{202e}\u{2028}\"\\"]
        {
            let json = printable(&Value::from(text).to_string());
            assert!(!json.chars().any(|char| char.is_control() || reorders(char)), "{json}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }
}
