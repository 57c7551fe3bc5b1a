//! Numbers of bytes and of other things, in powers of 1024.

use proto::nfs3::Attributes;

/// At most four letters, rounded up so that no size is understated: `0`, `1023`, `1.0K`, `9.9K`,
/// `10K`, `1.0M`.
pub(crate) fn human(bytes: u64) -> String {
    let bytes = u128::from(bytes);
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut unit: u128 = 1024;
    for letter in UNITS.chars() {
        let tenths = (bytes * 10).div_ceil(unit);
        if tenths < 100 {
            return format!("{}.{}{letter}", tenths / 10, tenths % 10);
        }
        let whole = bytes.div_ceil(unit);
        if whole < 1024 {
            return format!("{whole}{letter}");
        }
        unit *= 1024;
    }
    unreachable!("2^64 is 16E")
}

/// A number of bytes as with `--human-readable`, or in KiB.
pub(crate) fn kib(bytes: u64, is_human: bool) -> String {
    if is_human { human(bytes) } else { bytes.div_ceil(1024).to_string() }
}

/// Bytes on the disk in whole blocks of 512, as a kernel would count them.
pub(crate) fn disk_bytes(attributes: &Attributes) -> u64 {
    attributes.used.div_ceil(512).saturating_mul(512)
}

/// `used` of `available` and used together, in percent rounded up, as `df` prints it; `-` where
/// there is nothing to take part of.
pub(crate) fn percent(used: u64, available: u64) -> String {
    let (used, all) = (u128::from(used), u128::from(used) + u128::from(available));
    if all == 0 { "-".to_owned() } else { format!("{}%", (used * 100).div_ceil(all)) }
}

const UNITS: &str = "KMGTPE";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_letters_of_ls() {
        for (bytes, expected) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_138, "10K"),
            (10_137, "9.9K"),
            (1023 * 1024, "1023K"),
            (1023 * 1024 + 1, "1.0M"),
            (1 << 30, "1.0G"),
            (15 << 40, "15T"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn percents_are_rounded_up() {
        for (used, available, expected) in
            [(0, 0, "-"), (0, 9, "0%"), (1, 999, "1%"), (1, 1, "50%"), (9, 0, "100%")]
        {
            assert_eq!(percent(used, available), expected);
        }
        assert_eq!(percent(u64::MAX, u64::MAX), "50%");
    }
}
