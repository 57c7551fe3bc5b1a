//! The cost to a server and to this process between two moments: processor time, memory, and the
//! server's counters.

use std::collections::BTreeMap;

use super::course::secs_per_gib;
use crate::Result;
use crate::figure::Figure;
use crate::rig::{CpuSecs, CpuTime, Watched};

/// Asks a server for its counters since its start; none if it has none.
pub(super) type Counters<'a> = Box<dyn Fn() -> Result<BTreeMap<String, u64>> + 'a>;

/// The measurement before the work.
pub(super) struct Meter<'a> {
    watched: Option<&'a Watched>,
    count: Counters<'a>,
    counters: BTreeMap<String, u64>,
    own: CpuTime,
    server: Option<CpuTime>,
    switches: Option<u64>,
}

/// The differences after the work.
#[derive(Clone, Debug, Default)]
pub(super) struct Spent {
    /// Processor time of the server, if its process is known.
    pub(super) server: Option<CpuSecs>,
    /// Context switches of its threads, without those that have ended meanwhile.
    pub(super) server_switches: Option<u64>,
    /// Its largest resident memory.
    pub(super) server_rss_bytes_max: Option<u64>,
    /// Processor time of this process.
    pub(super) own: CpuSecs,
    /// How much each of the server's counters has grown, without those that have not.
    pub(super) counters: BTreeMap<String, u64>,
}

impl Spent {
    /// The server's processor time for `bytes` of data, if its process is known.
    pub(super) fn server_per_gib(&self, bytes: u64) -> impl Iterator<Item = (Figure, f64)> {
        let figures = |server: CpuSecs| {
            [
                (Figure::ServerSecsPerGib, server.total()),
                (Figure::ServerUserSecsPerGib, server.user),
                (Figure::ServerSystemSecsPerGib, server.system),
            ]
        };
        let secs = self.server.into_iter().flat_map(figures);
        secs.map(move |(figure, secs)| (figure, secs_per_gib(secs, bytes)))
    }
}

impl<'a> Meter<'a> {
    /// Takes the first measurement.
    ///
    /// # Errors
    /// [`crate::Error::Server`]: it has ended.
    pub(super) fn start(watched: Option<&'a Watched>, count: Counters<'a>) -> Result<Self> {
        // Where it may not be begun anew, the maximum is that since the server's start.
        drop(watched.map(Watched::forget_rss_max));
        Ok(Self {
            watched,
            counters: count()?,
            count,
            own: CpuTime::of_self()?,
            switches: watched.map(Watched::switches).transpose()?,
            // Last, and first at the end: nothing that is done here is the server's.
            server: watched.map(Watched::cpu_time).transpose()?,
        })
    }

    /// The cost since the meter was started.
    ///
    /// # Errors
    /// Those of [`Meter::start`].
    pub(super) fn end(&self) -> Result<Spent> {
        let server = self.watched.map(Watched::cpu_time).transpose()?;
        let switches = self.watched.map(Watched::switches).transpose()?;
        Ok(Spent {
            server: server.zip(self.server).map(|(now, before)| now.since(&before)),
            own: CpuTime::of_self()?.since(&self.own),
            server_switches: switches
                .zip(self.switches)
                .map(|(now, before)| now.saturating_sub(before)),
            server_rss_bytes_max: self.watched.map(Watched::rss_bytes_max).transpose()?,
            counters: grown(&self.counters, (self.count)()?),
        })
    }
}

/// How much each counter has grown, without those that have not.
fn grown(before: &BTreeMap<String, u64>, now: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let by = |(name, value): (String, u64)| {
        let by = value.checked_sub(before.get(&name).copied().unwrap_or(0))?;
        (by > 0).then_some((name, by))
    };
    now.into_iter().filter_map(by).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_processor_time_for_each_gib_is_recorded_in_all_and_split() {
        let server = Some(CpuSecs { user: 0.25, system: 0.75 });
        let figures: BTreeMap<_, _> =
            Spent { server, ..Spent::default() }.server_per_gib(512 << 20).collect();
        let expected = [
            (Figure::ServerSecsPerGib, 2.0),
            (Figure::ServerUserSecsPerGib, 0.5),
            (Figure::ServerSystemSecsPerGib, 1.5),
        ];
        assert_eq!(figures, expected.into());
    }

    #[test]
    fn counters_that_grew_are_returned() {
        let map = |pairs: &[(&str, u64)]| {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
        };
        let before = map(&[("calls", 5), ("connections", 4), ("open_files", 9)]);
        let now = map(&[("calls", 9), ("connections", 4), ("open_files", 3), ("reads", 2)]);
        assert_eq!(grown(&before, now), map(&[("calls", 4), ("reads", 2)]));
    }
}
