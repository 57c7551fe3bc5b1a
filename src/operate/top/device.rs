//! The block devices below the exports, by what the kernel counts of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use server::report::Sample;

/// Bytes of a sector in the kernel's counts, whatever the device's own.
const SECTOR_BYTES: u64 = 512;

/// The devices of all exports at a moment.
#[derive(Clone)]
pub(super) struct Devices {
    by_name: BTreeMap<String, Counts>,
    at: Instant,
}

/// `/sys/dev/block/*/stat`, as far as it is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    read_sectors: u64,
    written_sectors: u64,
    /// Milliseconds in which it had requests.
    busy_ms: u64,
    /// Milliseconds of all requests together.
    queued_ms: u64,
}

/// The load of a device.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Load {
    pub(super) name: String,
    /// Bytes in a second.
    pub(super) read: f64,
    pub(super) written: f64,
    /// The part of the time in which it had requests.
    pub(super) busy: f64,
    /// Requests on average.
    pub(super) queue: f64,
}

impl Devices {
    /// Those of the exports; none for exports without a block device, as on tmpfs.
    pub(super) fn of(sample: &Sample) -> Self {
        let numbers = sample.exports.iter().filter_map(|export| export.device);
        Self { by_name: numbers.filter_map(read).collect(), at: Instant::now() }
    }

    /// The loads since an earlier moment.
    pub(super) fn since(&self, earlier: &Self) -> Vec<Load> {
        let seconds = (self.at - earlier.at).as_secs_f64();
        if seconds <= 0.0 {
            return Vec::new();
        }
        let load = |(name, now): (&String, &Counts)| {
            let before = earlier.by_name.get(name)?;
            let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            Some(Load {
                name: name.clone(),
                read: rate(now.read_sectors, before.read_sectors) * SECTOR_BYTES as f64,
                written: rate(now.written_sectors, before.written_sectors) * SECTOR_BYTES as f64,
                busy: (rate(now.busy_ms, before.busy_ms) / 1000.0).min(1.0),
                queue: rate(now.queued_ms, before.queued_ms) / 1000.0,
            })
        };
        self.by_name.iter().filter_map(load).collect()
    }
}

fn read((major, minor): (u32, u32)) -> Option<(String, Counts)> {
    let directory = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    let counts = parse(&fs::read_to_string(directory.join("stat")).ok()?)?;
    let name = fs::read_link(&directory).ok()?.file_name()?.to_string_lossy().into_owned();
    Some((name, counts))
}

/// The kernel's Documentation/block/stat.rst has the order of the fields.
fn parse(text: &str) -> Option<Counts> {
    let fields: Option<Vec<u64>> =
        text.split_whitespace().take(11).map(|field| field.parse().ok()).collect();
    let [_, _, read_sectors, _, _, _, written_sectors, _, _, busy_ms, queued_ms] = fields?[..]
    else {
        return None;
    };
    Some(Counts { read_sectors, written_sectors, busy_ms, queued_ms })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_load_is_the_difference_of_counts() {
        let at = Instant::now();
        let devices = |text: &str, at| {
            let by_name = BTreeMap::from([("vda".to_owned(), parse(text).unwrap())]);
            Devices { by_name, at }
        };
        let before = devices("1 0 100 5 2 0 200 9 0 1000 2000 0 0 0 0 0 0\n", at);
        let now =
            devices("1 0 4196 5 2 0 200 9 3 1500 6000 0 0 0 0 0 0\n", at + Duration::from_secs(2));
        let load =
            Load { name: "vda".to_owned(), read: 1048576.0, written: 0.0, busy: 0.25, queue: 2.0 };
        assert_eq!(now.since(&before), [load]);
        assert!(now.since(&now).is_empty());
        assert_eq!(parse("1 2 3"), None);
    }
}
