//! Numbers for people.

use std::time::Duration;

/// A number of bytes with three digits or so: `512B`, `1.5MiB`.
pub(super) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64)
}

/// Bytes in a second.
pub(super) fn rate(bytes: u64, seconds: f64) -> String {
    scaled(per_second(bytes, seconds)) + "/s"
}

/// How often in a second.
pub(super) fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

fn scaled(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$}{}", UNITS[unit])
}

/// The mean of so many times, in milliseconds; `-` if none was taken.
pub(super) fn mean_ms(microseconds: u64, timed: u64) -> String {
    if timed == 0 {
        return "-".to_owned();
    }
    format!("{:.3}", microseconds as f64 / timed as f64 / 1000.0)
}

/// A length of time by its two largest units: `3d 4h`, `12min 5s`.
pub(super) fn time(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}min {rest}s"),
        (0, _, _) => format!("{hours}h {minutes}min"),
        _ => format!("{days}d {hours}h"),
    }
}

/// `1 client`, `2 clients`.
pub(super) fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Reads a length of time, as `10ms`.
///
/// # Errors
/// A sentence with the units.
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let time = |number: u64| match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    };
    let time = number.parse().ok().and_then(time);
    time.ok_or_else(|| "a time is a number with us, ms or s, like 10ms".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0, 1023, 1024, 1536 << 10, 150 << 30].map(bytes),
            ["0B", "1023B", "1.0KiB", "1.5MiB", "150GiB"]
        );
        assert_eq!(rate(10 << 20, 2.0), "5.0MiB/s");
        assert_eq!(rate(10, 0.0), "0B/s");
        assert_eq!([5, 65, 3700, 90_000].map(time), ["5s", "1min 5s", "1h 1min", "1d 1h"]);
        assert_eq!((mean_ms(0, 0), mean_ms(3000, 2)), ("-".to_owned(), "1.500".to_owned()));
    }

    #[test]
    fn times_have_their_units() {
        for (text, time) in [
            ("500us", Duration::from_micros(500)),
            ("10ms", Duration::from_millis(10)),
            ("2s", Duration::from_secs(2)),
        ] {
            assert_eq!(parse_time(text), Ok(time));
        }
        for wrong in ["", "10", "ms", "1.5s", "-1s", "1h", "99999999999999999999s"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
