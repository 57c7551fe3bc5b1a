//! Watching a load from outside: how much was done in each second, and what it did to the server.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::rank::Progress;
use crate::record::Second;

/// The period of looking.
const PERIOD: Duration = Duration::from_millis(100);
/// How many times as long as it took to look at the server it is left alone afterwards: what its
/// files occupy of the page cache is counted page by page, on a processor that the load could use.
const REST_TO_LOOK: u32 = 100;
/// The length of what is results.
const SECOND: Duration = Duration::from_secs(1);

/// The memory and page cache of a server at one moment; `None` where they are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Resident memory of the server.
    pub server_rss_bytes: Option<u64>,
    /// Page cache, as [`Second::page_cache_bytes`].
    pub page_cache_bytes: Option<u64>,
    /// Of that, dirty or in write-back.
    pub dirty_bytes: Option<u64>,
}

/// An observer of a running load, ten times a second.
pub struct Watch<'a> {
    /// Looks at the server, less often if that takes more than a millisecond. Of each second the
    /// most is results.
    pub observe: Box<dyn FnMut() -> Observed + 'a>,
    /// Is given the bytes that all groups have done so far.
    pub progress: Box<dyn FnMut(u64) + 'a>,
}

impl Watch<'_> {
    /// No observer.
    #[must_use]
    pub fn none() -> Self {
        Self { observe: Box::new(Observed::default), progress: Box::new(|_| {}) }
    }
}

/// The seconds of a group.
pub(super) struct Series {
    started: Instant,
    /// The end of the recorded seconds; `bytes` and `operations` are their sums.
    until: Instant,
    bytes: u64,
    operations: u64,
    most: Observed,
    seconds: Vec<Second>,
}

impl Series {
    pub(super) fn new(started: Instant) -> Self {
        let most = Observed::default();
        Self { started, until: started, bytes: 0, operations: 0, most, seconds: Vec::new() }
    }

    pub(super) fn into_seconds(self) -> Vec<Second> {
        self.seconds
    }

    fn look(&mut self, now: Instant, observed: Observed, ranks: &[Progress]) {
        let most = &mut self.most;
        most.server_rss_bytes = most.server_rss_bytes.max(observed.server_rss_bytes);
        most.page_cache_bytes = most.page_cache_bytes.max(observed.page_cache_bytes);
        most.dirty_bytes = most.dirty_bytes.max(observed.dirty_bytes);
        if now - self.until >= SECOND {
            self.record(now, ranks);
        }
    }

    /// Records the rest of the last second, up to the group's end.
    pub(super) fn end(&mut self, end: Instant, ranks: &[Progress]) {
        if end > self.until {
            self.record(end, ranks);
        } else {
            self.shorten(end);
        }
    }

    /// Has the last second end with the group, which was looked at after its end and before that
    /// was reported.
    fn shorten(&mut self, end: Instant) {
        let end_secs = (end - self.started).as_secs_f64();
        while let Some(mut last) = self.seconds.pop() {
            let begin_secs = last.at_secs - last.secs;
            match self.seconds.last_mut() {
                Some(before) if begin_secs >= end_secs => {
                    before.bytes += last.bytes;
                    before.operations += last.operations;
                }
                _ => {
                    (last.at_secs, last.secs) = (end_secs, end_secs - begin_secs);
                    self.seconds.push(last);
                    break;
                }
            }
        }
        self.until = end;
    }

    fn record(&mut self, now: Instant, ranks: &[Progress]) {
        let (bytes, operations) = (Progress::bytes(ranks), Progress::operations(ranks));
        self.seconds.push(Second {
            at_secs: (now - self.started).as_secs_f64(),
            secs: (now - self.until).as_secs_f64(),
            bytes: bytes - self.bytes,
            operations: operations - self.operations,
            server_rss_bytes: self.most.server_rss_bytes,
            page_cache_bytes: self.most.page_cache_bytes,
            dirty_bytes: self.most.dirty_bytes,
        });
        (self.until, self.bytes, self.operations) = (now, bytes, operations);
        self.most = Observed::default();
    }
}

/// Observes until all ranks have reported their end to `ends`, each with its group.
pub(super) fn until_ended(
    ends: &Receiver<usize>,
    progress: &[Vec<Progress>],
    series: &mut [Series],
    watch: &mut Watch<'_>,
) {
    let mut at_work: Vec<_> = progress.iter().map(Vec::len).collect();
    let mut next = Instant::now();
    let mut next_observed = next;
    loop {
        match ends.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(group) => at_work[group] -= 1,
            Err(RecvTimeoutError::Timeout) => {
                let began = Instant::now();
                let is_due = began >= next_observed;
                let observed = if is_due { (watch.observe)() } else { Observed::default() };
                let now = Instant::now();
                if is_due {
                    next_observed = now + (now - began) * REST_TO_LOOK;
                }
                for ((series, ranks), at_work) in series.iter_mut().zip(progress).zip(&at_work) {
                    if *at_work > 0 {
                        series.look(now, observed, ranks);
                    }
                }
                let bytes = progress.iter().map(|ranks| Progress::bytes(ranks)).sum();
                (watch.progress)(bytes);
                next = (next + PERIOD).max(now);
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn server_that_takes_long_to_look_at_is_looked_at_less_often() {
        let took = Duration::from_millis(10);
        let (end, ends) = mpsc::channel();
        let (mut end, mut looks, mut reports) = (Some(end), 0, 0);
        let begun = Instant::now();
        let observe = Box::new(|| {
            looks += 1;
            thread::sleep(took);
            Observed::default()
        });
        let progress = Box::new(|_| {
            reports += 1;
            end.take_if(|_| reports == 11);
        });
        let (ranks, mut series) = ([vec![Progress::default()]], [Series::new(begun)]);
        until_ended(&ends, &ranks, &mut series, &mut Watch { observe, progress });
        assert!(took * REST_TO_LOOK * (looks - 1) <= begun.elapsed(), "{looks} looks");
        assert!(looks > 0);
        assert!(!series[0].seconds.is_empty(), "seconds are recorded without a look too");
    }

    #[test]
    fn seconds_end_with_the_group_even_if_it_was_looked_at_later() {
        let started = Instant::now();
        let at = |millis| started + Duration::from_millis(millis);
        for (looks, end) in [(&[1000][..], 963), (&[1000, 2000], 963), (&[1000], 1500)] {
            let mut series = Series::new(started);
            for &look in looks {
                series.look(at(look), Observed::default(), &[]);
            }
            series.end(at(end), &[]);
            let seconds = series.into_seconds();
            let sum: f64 = seconds.iter().map(|second| second.secs).sum();
            let end = Duration::from_millis(end).as_secs_f64();
            assert!((sum - end).abs() < 1e-9, "{looks:?} {end}: {seconds:?}");
            assert!((seconds[seconds.len() - 1].at_secs - end).abs() < 1e-9, "{seconds:?}");
        }
    }
}
