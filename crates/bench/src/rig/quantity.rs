//! Times and rates as they are written on a command line, always with a unit.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// In nanoseconds.
const TIME_UNITS: [(&str, u64); 3] = [("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// In bits for each second.
const RATE_UNITS: [(&str, u64); 7] = [
    ("gbit", 1_000_000_000),
    ("mbit", 1_000_000),
    ("kbit", 1_000),
    ("GiB/s", 8 << 30),
    ("MiB/s", 8 << 20),
    ("KiB/s", 8 << 10),
    ("B/s", 8),
];

/// The longest delay that is taken: what is longer is a mistake.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// A delay: `5ms`, `100us`, `1s`. More than nothing and at most 10 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay(pub Duration);

/// A rate in bytes for each second: `1gbit`, `100mbit` (powers of 1000), `10MiB/s` (of 1024). At
/// least 1,000 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub u64);

/// A text that is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAQuantity {
    /// Not a [`Delay`].
    #[error("`{}` is not a time up to 10 s, such as 5ms, 100us or 1s", .0.escape_debug())]
    Delay(String),
    /// Not a [`Rate`].
    #[error("`{}` is not a rate, such as 100mbit, 1gbit or 10MiB/s", .0.escape_debug())]
    Rate(String),
}

impl FromStr for Delay {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        let delay = scaled(text, &TIME_UNITS).map(Duration::from_nanos);
        let delay = delay.filter(|delay| !delay.is_zero() && *delay <= DELAY_MAX);
        delay.map(Self).ok_or_else(|| NotAQuantity::Delay(text.to_owned()))
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        write_scaled(f, nanos, &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)], "ns")
    }
}

impl FromStr for Rate {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        let bytes_per_sec = scaled(text, &RATE_UNITS).map(|bits| bits / 8);
        let bytes_per_sec = bytes_per_sec.filter(|bytes| *bytes >= 1_000);
        bytes_per_sec.map(Self).ok_or_else(|| NotAQuantity::Rate(text.to_owned()))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.checked_mul(8).filter(|bits| bits % 1_000_000 == 0) {
            Some(bits) => write_scaled(f, bits, &RATE_UNITS[..2], " bit"),
            None => write_scaled(f, self.0, &[("GiB/s", 1 << 30), ("MiB/s", 1 << 20)], " B/s"),
        }
    }
}

/// A number, whole or with decimals, times its unit; `None` if either is missing.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| c != '.' && !c.is_ascii_digit())?);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim_start_matches(' '))?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let whole = whole.parse::<u64>().ok()?.checked_mul(*scale)?;
    // Below 10^9, so that the product fits.
    let digits = u32::try_from(decimals.len()).ok().filter(|digits| (1..=9).contains(digits))?;
    let part = u128::from(decimals.parse::<u32>().ok()?) * u128::from(*scale);
    whole.checked_add(u64::try_from(part / 10_u128.pow(digits)).ok()?)
}

/// In the largest of `units` that divides it.
fn write_scaled(
    f: &mut fmt::Formatter<'_>,
    value: u64,
    units: &[(&str, u64)],
    smallest: &str,
) -> fmt::Result {
    match units.iter().find(|(_, scale)| value.is_multiple_of(*scale)) {
        Some((unit, scale)) => write!(f, "{} {unit}", value / scale),
        None => write!(f, "{value}{smallest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_with_units_are_read() {
        let delay = |text: &str| text.parse::<Delay>().unwrap().0;
        assert_eq!(delay("5ms"), Duration::from_millis(5));
        assert_eq!(delay("100 us"), Duration::from_micros(100));
        assert_eq!(delay("0.5ms"), Duration::from_micros(500));
        assert_eq!(delay("10s"), DELAY_MAX);
        let rate = |text: &str| text.parse::<Rate>().unwrap().0;
        assert_eq!(rate("100mbit"), 12_500_000);
        assert_eq!(rate("1gbit"), 125_000_000);
        assert_eq!(rate("2.5gbit"), 312_500_000);
        assert_eq!(rate("10MiB/s"), 10 << 20);
        assert_eq!(rate("1000B/s"), 1_000);
    }

    #[test]
    fn others_are_refused() {
        for text in ["", "5", "ms", "-5ms", "0ms", "11s", "5 m", "5msx", "1.ms", ".5ms", "1.2.3s"] {
            assert!(text.parse::<Delay>().is_err(), "{text}");
        }
        for text in ["", "100", "mbit", "0gbit", "7kbit", "100Mbps", "99999999999gbit", "1e3B/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        let error = "5m\n".parse::<Delay>().unwrap_err().to_string();
        assert!(error.starts_with("`5m\\n` is not a time"), "{error}");
    }

    #[test]
    fn quantities_have_a_fitting_unit() {
        for (text, shown) in [("5ms", "5 ms"), ("1500us", "1500 us"), ("1s", "1 s")] {
            assert_eq!(text.parse::<Delay>().unwrap().to_string(), shown);
        }
        let rates = [("100mbit", "100 mbit"), ("1gbit", "1 gbit"), ("10MiB/s", "10 MiB/s")];
        for (text, shown) in rates {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), shown);
        }
        assert_eq!(Rate(1_234).to_string(), "1234 B/s");
    }
}
