//! The records of an experiment: a line of JSON for the run and its circumstances, and one for each
//! measurement. `docs/benchmarking.md` describes the fields for other programs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::figure::Figure;

/// A line of a file of records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// The first line of each run.
    Run(Run),
    /// A line for each measurement, in the order in which they were made.
    Measurement(Measurement),
}

/// The circumstances of a run, needed to compare its measurements with others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Names the run in its measurements: experiment and date.
    pub id: String,
    /// `io`, `uncached`, `readdir`, `writeback` or `threads`.
    pub experiment: String,
    /// When it began, RFC 3339, UTC.
    pub date: String,
    /// Version of this program.
    pub version: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Processor model.
    pub cpu: String,
    /// Processors online.
    pub cores: u32,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// Arguments as they were given, without the program.
    pub arguments: Vec<String>,
    /// File system and device under the files: `xfs, /dev/loop0`; empty if they are elsewhere.
    pub file_system: String,
    /// The path between client and server: `loopback`, `netem, delay 5 ms`.
    pub network: String,
    /// How TCP here decides what may be sent, where a socket does not say: `bbr`, `cubic`. Empty
    /// where that is unknown.
    #[serde(default)]
    pub congestion_control: String,
    /// How the device was slowed down; empty if it was not.
    pub storage: String,
    /// Bound on the memory of each server that was started; page cache included.
    pub memory_limit_bytes: Option<u64>,
    /// Treatment of caches before each measurement, in words.
    pub cache: String,
    /// Descriptions of the compared subjects, by name.
    pub subjects: BTreeMap<String, String>,
    /// Options that were not applied and measurements that could not be made, in sentences.
    pub left_out: Vec<String>,
    /// The user's remark.
    pub note: String,
}

/// The phase in which a load's own cost is measured, against a null server. Its
/// subjects are the phases of the run, and there is nothing in them to compare.
pub const CALIBRATION: &str = "calibration";

/// The parameter of a load that ends after so many seconds.
pub(crate) const LIMIT_SECS: &str = "limit_secs";

/// [`Measurement::parameters`] of names and values; those without a value are left out.
pub(crate) fn parameters<const N: usize>(named: [(&str, Option<u64>); N]) -> BTreeMap<String, u64> {
    named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// One phase, on one subject, once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measurement {
    /// [`Run::id`].
    pub run: String,
    /// The load: `easy-write`.
    pub phase: String,
    /// One of [`Run::subjects`].
    pub subject: String,
    /// From 1. The subjects of one phase and round follow each other at once.
    pub round: u32,
    /// Place in the round, from 1.
    pub order: u32,
    /// All that makes the load: `ranks`, `io_bytes`, `entries`. Measurements with other parameters
    /// are not compared.
    pub parameters: BTreeMap<String, u64>,
    /// The values, each in [`Figure::unit`].
    pub figures: BTreeMap<Figure, f64>,
    /// How many calls took how long; empty buckets are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<LatencyBucket>,
    /// The course of it, second by second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub seconds: Vec<Second>,
    /// Cost of an entry by its position in the listing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub positions: Vec<Position>,
    /// Growth of the server's counters meanwhile, if it reports them; without those that did not
    /// grow.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
    /// The first of the errors, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

/// Calls that took up to so long, and longer than the bucket before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// Upper bound, inclusive.
    pub us_max: f64,
    /// Calls.
    pub count: u64,
}

/// A second, or the rest of one at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Second {
    /// Its end, from the first call.
    pub at_secs: f64,
    /// How long it was.
    pub secs: f64,
    /// Bytes of data of the calls that ended in it.
    pub bytes: u64,
    /// Calls that ended in it.
    pub operations: u64,
    /// Resident memory of the server, at its most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_rss_bytes: Option<u64>,
    /// Page cache, as [`Figure::PageCacheMibMax`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_bytes: Option<u64>,
    /// Of that, dirty or in write-back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_bytes: Option<u64>,
}

/// The cost of the entries in a part of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Entries before it.
    pub entry: u64,
    /// Time of each entry.
    pub us_per_entry: f64,
}
