//! Times of files in the local time zone.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use proto::nfs3::Time;

/// As `ls -l` writes it: `Nov 21 22:46`, or `Nov 21  2025` if it is not in the six months up to
/// `now`, where the year replaces the time.
pub(crate) fn short(time: Time, now: Timestamp, zone: &TimeZone) -> String {
    let local = zoned(time, zone);
    let age = now.as_second() - i64::from(time.seconds);
    let recent = age < HALF_YEAR_SECS && local.timestamp() <= now;
    local.strftime(if recent { "%b %e %H:%M" } else { "%b %e  %Y" }).to_string()
}

/// As `stat` writes it: `2026-11-21 22:46:00.123456789 +0100`.
pub(crate) fn long(time: Time, zone: &TimeZone) -> String {
    zoned(time, zone).strftime("%Y-%m-%d %H:%M:%S.%9f %z").to_string()
}

/// Reads a time as `touch -d` does: ISO 8601 with a space or a `T`, down to the day, the minute or
/// fractions of a second, with or without an offset; what [`long`] writes; or `@SECONDS`. `None` if
/// it is neither, or not one that the protocol has.
pub(crate) fn parse(text: &str, zone: &TimeZone) -> Option<Time> {
    let timestamp = if let Some(seconds) = text.strip_prefix('@') {
        Timestamp::from_second(seconds.parse().ok()?).ok()?
    } else if let Ok(timestamp) = text.parse() {
        timestamp
    } else if let Ok(timestamp) = Timestamp::strptime("%Y-%m-%d %H:%M:%S%.f %z", text) {
        timestamp
    } else {
        text.parse::<DateTime>().ok()?.to_zoned(zone.clone()).ok()?.timestamp()
    };
    let seconds = u32::try_from(timestamp.as_second()).ok()?;
    let nseconds = u32::try_from(timestamp.subsec_nanosecond()).ok()?;
    Some(Time { seconds, nseconds })
}

fn zoned(time: Time, zone: &TimeZone) -> Zoned {
    // The codec lets more than a second's nanoseconds through, and so may a server.
    let nanoseconds = i32::try_from(time.nseconds.min(999_999_999)).unwrap_or(0);
    Timestamp::new(time.seconds.into(), nanoseconds)
        .expect("32 bits of seconds end in 2106")
        .to_zoned(zone.clone())
}

/// Half of a Gregorian year of 31,556,952 s on average, as coreutils counts.
const HALF_YEAR_SECS: i64 = 31_556_952 / 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn berlin() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("it is a rule of POSIX")
    }

    #[test]
    fn old_and_future_times_have_a_year_in_place_of_minutes() {
        let now = Timestamp::new(1_800_000_000, 5).unwrap();
        let seconds = 1_800_000_000;
        for (seconds, nseconds, expected) in [
            (seconds, 5, "Jan 15 09:00"),
            (seconds, 6, "Jan 15  2027"),
            (seconds - 40 * 86_400, 0, "Dec  6 09:00"),
            (seconds - 15_778_475, 0, "Jul 16 19:05"),
            (seconds - 15_778_476, 0, "Jul 16  2026"),
            (0, 0, "Jan  1  1970"),
            (u32::MAX, 0, "Feb  7  2106"),
        ] {
            assert_eq!(short(Time { seconds, nseconds }, now, &berlin()), expected);
        }
    }

    #[test]
    fn times_are_read_with_and_without_an_offset() {
        let at = |seconds, nseconds| Some(Time { seconds, nseconds });
        for (text, expected) in [
            ("2027-01-15", at(1_799_967_600, 0)),
            ("2027-01-15 09:00", at(1_800_000_000, 0)),
            ("2027-01-15T09:00:00.25", at(1_800_000_000, 250_000_000)),
            ("2027-01-15T08:00Z", at(1_800_000_000, 0)),
            ("2027-01-15 09:00:00.000012345 +0100", at(1_800_000_000, 12_345)),
            ("2027-01-15 03:00:00 -0500", at(1_800_000_000, 0)),
            ("2026-07-14 05:33:20", at(1_784_000_000, 0)),
            ("@1800000000", at(1_800_000_000, 0)),
            ("@0", at(0, 0)),
            ("@-1", None),
            ("@4294967296", None),
            ("1969-12-31", None),
            ("2107-01-01", None),
            ("2027-02-30", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(parse(text, &berlin()), expected, "{text}");
        }
    }

    #[test]
    fn stat_writes_every_nanosecond_and_the_zone() {
        let time = Time { seconds: 1_800_000_000, nseconds: 12_345 };
        assert_eq!(long(time, &berlin()), "2027-01-15 09:00:00.000012345 +0100");
        assert_eq!(long(time, &TimeZone::UTC), "2027-01-15 08:00:00.000012345 +0000");
        let summer = Time { seconds: 1_784_000_000, nseconds: u32::MAX };
        assert_eq!(long(summer, &berlin()), "2026-07-14 05:33:20.999999999 +0200");
    }
}
