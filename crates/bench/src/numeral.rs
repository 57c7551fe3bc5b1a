//! Numbers and names for readers.

use std::collections::BTreeMap;
use std::fmt::Write as _;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Three digits that count, and thousands apart: `0.0123`, `1.23`, `12.3`, `12,345`.
#[must_use]
pub fn rounded(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 {
        return "0".into();
    }
    if !(1e-4..1e12).contains(&magnitude) {
        return format!("{value:.2e}");
    }
    let decimals = [(99.95, 0), (9.995, 1), (0.9995, 2), (0.099_95, 3), (0.009_995, 4)]
        .iter()
        .find(|(from, _)| magnitude >= *from)
        .map_or(5, |(_, decimals)| *decimals);
    let text = format!("{value:.decimals$}");
    if decimals == 0 { apart(&text) } else { text }
}

/// The same without zeros at the end, as axes want it: `0.5`, `12`.
#[must_use]
pub fn short(value: f64) -> String {
    let text = rounded(value);
    if !text.contains('.') || text.contains('e') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// A whole number with its thousands apart: `12,345`.
#[must_use]
pub fn count(value: u64) -> String {
    apart(&value.to_string())
}

/// Bytes in the largest unit in which they are whole, or with one decimal from 10 KiB on.
#[must_use]
pub fn size(bytes: u64) -> String {
    for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", count(bytes / unit));
        }
    }
    if bytes < 100 * MIB { format!("{} B", count(bytes)) } else { size_about(bytes) }
}

/// Bytes with one decimal.
#[must_use]
pub fn size_about(bytes: u64) -> String {
    let (unit, name) = [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit)
        .unwrap_or((1, "B"));
    let tenths = (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

/// A parameter in words: `io_bytes` of 1048576 is `io 1 MiB`, `calls_in_flight` of 4 is
/// `calls in flight 4`.
#[must_use]
pub fn parameter(name: &str, value: u64) -> String {
    let (words, unit) = parameter_name(name);
    let value = if name.ends_with("_bytes") {
        size(value)
    } else if unit.is_empty() {
        count(value)
    } else {
        format!("{} {unit}", count(value))
    };
    format!("{words} {value}")
}

/// The words of a parameter's name, and its unit, where the name ends with one.
#[must_use]
pub fn parameter_name(name: &str) -> (String, &'static str) {
    let units = [("_bytes", "B"), ("_mib", "MiB"), ("_secs", "s"), ("_ms", "ms"), ("_us", "us")];
    for (suffix, unit) in units {
        if let Some(stem) = name.strip_suffix(suffix) {
            return (stem.replace('_', " "), unit);
        }
    }
    (name.replace('_', " "), "")
}

/// Parameters in words, with commas between them.
#[must_use]
pub fn parameters(all: &BTreeMap<String, u64>) -> String {
    let words: Vec<_> = all.iter().map(|(name, value)| parameter(name, *value)).collect();
    words.join(", ")
}

/// Text from a record without what would move a terminal's cursor.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// `text` in lines of up to `columns` where spaces allow it, each after `indent`.
#[must_use]
pub fn wrapped(text: &str, indent: &str, columns: usize) -> String {
    let mut out = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if used == 0 || used + 1 + width > columns {
            let gap = if used == 0 { "" } else { "\n" };
            write!(out, "{gap}{indent}{word}").expect("a String takes everything");
            used = indent.chars().count() + width;
        } else {
            write!(out, " {word}").expect("a String takes everything");
            used += 1 + width;
        }
    }
    out
}

/// Bytes in MiB.
#[must_use]
pub const fn mib(bytes: u64) -> f64 {
    as_f64(bytes) / as_f64(MIB)
}

/// A count as a figure.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub const fn as_f64(count: u64) -> f64 {
    count as f64
}

fn apart(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let mut out = String::from(sign);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let cases = [
            (0.0, "0"),
            (-0.0, "0"),
            (0.00123, "0.00123"),
            (0.012_34, "0.0123"),
            (0.123_4, "0.123"),
            (0.9996, "1.00"),
            (1.234, "1.23"),
            (9.996, "10.0"),
            (12.34, "12.3"),
            (99.96, "100"),
            (999.6, "1,000"),
            (1_234.5, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-1_234.0, "-1,234"),
            (0.000_01, "1.00e-5"),
            (1e300, "1.00e300"),
        ];
        for (value, text) in cases {
            assert_eq!(rounded(value), text, "{value}");
        }
        assert_eq!((short(0.5), short(20.0)), ("0.5".into(), "20".into()));
        assert_eq!((short(100.0), short(0.0)), ("100".into(), "0".into()));
    }

    #[test]
    fn sizes_are_exact_where_they_are_short() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(47_008), "47,008 B");
        assert_eq!(size(1 << 20), "1 MiB");
        assert_eq!(size(3 << 29), "1,536 MiB");
        assert_eq!(size((1 << 30) + 1), "1.0 GiB");
        assert_eq!(size_about(1_610_612_736), "1.5 GiB");
        assert_eq!(size_about(u64::MAX), "17179869184.0 GiB");
    }

    #[test]
    fn parameters_are_words() {
        assert_eq!(parameter("io_bytes", 4096), "io 4 KiB");
        assert_eq!(parameter("calls_in_flight", 1234), "calls in flight 1,234");
        assert_eq!(parameter("delay_ms", 5), "delay 5 ms");
    }

    #[test]
    fn lines_break_at_spaces() {
        assert_eq!(wrapped("aa bb cc dd", "  ", 7), "  aa bb\n  cc dd");
        assert_eq!(wrapped("longer-than-that b", "", 5), "longer-than-that\nb");
        assert_eq!(wrapped("", "  ", 5), "");
        assert_eq!(plain("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
    }
}
