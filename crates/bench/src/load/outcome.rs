//! The outcome of a load, and the figures of it.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::figure::Figure;
use crate::numeral::{as_f64, mib};
use crate::record::{LatencyBucket, Measurement, Second};

/// Buckets of the latencies that are recorded grow by this factor, from a microsecond on.
const BUCKET_FACTOR: f64 = 1.1;

/// The outcome of a load on all its connections.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// From the first call to the end of the last, COMMIT included.
    pub time: Duration,
    /// Of that, what came after the last WRITE was answered.
    pub commit_time: Duration,
    /// Bytes of data of the operations that were done.
    pub bytes: u64,
    /// READs or WRITEs that were done.
    pub operations: u64,
    /// The share of each connection.
    pub by_rank: Vec<Share>,
    /// Of each operation, from just before its call was sent until its reply was read; in
    /// nanoseconds.
    pub latency: Histogram<u64>,
    /// The course of it, second by second.
    pub seconds: Vec<Second>,
    /// Processor time of the threads that made the load.
    pub cpu: Duration,
    /// Bytes of READs that were compared with what has to be there.
    pub verified_bytes: u64,
    /// Of these, bytes that were something else.
    pub wrong_bytes: u64,
    /// Number of the file in which one of the first of them is, and its place.
    pub first_wrong: Option<(u64, u64)>,
    /// Replies with less data than was asked for, which is legal: the rest was asked for again.
    pub short_replies: u64,
    /// Calls that the server put off, by JUKEBOX, DELAY or GRACE, and that were made again.
    pub put_off: u64,
    /// Operations that failed, and connections that broke.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
}

/// The part of one connection in a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// READs or WRITEs that were done.
    pub operations: u64,
    /// Bytes of their data.
    pub bytes: u64,
    /// From the first call of all connections to the end of the last of this one.
    pub time: Duration,
}

impl Outcome {
    /// How many operations each rank did: what a later phase that reads has to know.
    #[must_use]
    pub fn operations_by_rank(&self) -> Vec<u64> {
        self.by_rank.iter().map(|share| share.operations).collect()
    }

    /// Bytes by the time of all.
    #[must_use]
    pub fn mib_per_sec(&self) -> f64 {
        mib(self.bytes) / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The rate of the slowest connection by that of the fastest; `None` of less than two.
    #[must_use]
    pub fn fairness(&self) -> Option<f64> {
        let rate = |share: &Share| mib(share.bytes) / share.time.as_secs_f64();
        let rates: Vec<_> = self.by_rank.iter().map(rate).filter(|rate| rate.is_finite()).collect();
        let slowest = rates.iter().copied().reduce(f64::min)?;
        let fastest = rates.iter().copied().reduce(f64::max)?;
        (rates.len() > 1 && fastest > 0.0).then_some(slowest / fastest)
    }

    /// Puts figures, latencies and seconds in a measurement. Figures that so short or so small
    /// a load cannot have are left out.
    pub fn fill(&self, measurement: &mut Measurement) {
        let figures = &mut measurement.figures;
        let secs = self.time.as_secs_f64();
        let operations = as_f64(self.operations);
        figures.insert(Figure::MibPerSec, self.mib_per_sec());
        figures.insert(Figure::OperationsPerSec, operations / secs.max(f64::MIN_POSITIVE));
        figures.insert(Figure::Secs, secs);
        if !self.commit_time.is_zero() {
            figures.insert(Figure::CommitSecs, self.commit_time.as_secs_f64());
        }
        let rates = self.whole_second_rates();
        if let Some(lowest) = rates.iter().copied().reduce(f64::min) {
            figures.insert(Figure::LowestMibPerSec, lowest);
        }
        if let Some(ratio) = last_to_first(&rates) {
            figures.insert(Figure::LastToFirst, ratio);
        }
        if self.operations > 0 {
            for (figure, quantile) in [
                (Figure::LatencyP50Us, 0.5),
                (Figure::LatencyP95Us, 0.95),
                (Figure::LatencyP99Us, 0.99),
                (Figure::LatencyP999Us, 0.999),
                (Figure::LatencyMaxUs, 1.0),
            ] {
                figures.insert(figure, us(self.latency.value_at_quantile(quantile)));
            }
            let cpu_secs = self.cpu.as_secs_f64();
            figures.insert(Figure::GeneratorSecsPerGib, cpu_secs / (mib(self.bytes) / 1024.0));
            figures.insert(Figure::GeneratorUsPerOperation, cpu_secs * 1e6 / operations);
        }
        figures.insert(Figure::VerifiedMib, mib(self.verified_bytes));
        figures.insert(Figure::WrongBytes, as_f64(self.wrong_bytes));
        figures.insert(Figure::Errors, as_f64(self.errors));
        figures.insert(Figure::PutOff, as_f64(self.put_off));
        measurement.latency = self.latency_buckets();
        measurement.seconds.clone_from(&self.seconds);
        measurement.first_error = self.first_trouble();
    }

    /// Notes an error if less was compared than is known of the files, and no other error is the
    /// reason.
    pub(super) fn expect_verified(&mut self, known_bytes: u64) {
        let verified = self.verified_bytes;
        if self.errors == 0 && verified < known_bytes {
            self.errors = 1;
            self.first_error =
                Some(format!("only {verified} of {known_bytes} written bytes were compared"));
        }
    }

    /// Adds what this, which read back and compared all data, found to the measurement of the load
    /// that wrote it.
    pub fn note_verified(&self, measurement: &mut Measurement) {
        let figures = &mut measurement.figures;
        *figures.entry(Figure::VerifiedMib).or_default() += mib(self.verified_bytes);
        *figures.entry(Figure::WrongBytes).or_default() += as_f64(self.wrong_bytes);
        *figures.entry(Figure::Errors).or_default() += as_f64(self.errors);
        if measurement.first_error.is_none() {
            measurement.first_error = self.first_trouble();
        }
    }

    /// The first error, or else where the first wrong data was found.
    #[must_use]
    pub fn first_trouble(&self) -> Option<String> {
        let wrong = || {
            let (file, at) = self.first_wrong?;
            Some(format!("{} wrong bytes, file {file} at {at} among the first", self.wrong_bytes))
        };
        self.first_error.clone().or_else(wrong)
    }

    /// Rates of the whole seconds in which data was moved: the time after the last WRITE is
    /// reported as that of COMMIT.
    fn whole_second_rates(&self) -> Vec<f64> {
        let data_secs = (self.time - self.commit_time).as_secs_f64();
        let whole = |second: &&Second| second.secs > 0.9 && second.at_secs <= data_secs;
        self.seconds.iter().filter(whole).map(|second| mib(second.bytes) / second.secs).collect()
    }

    fn latency_buckets(&self) -> Vec<LatencyBucket> {
        self.latency
            .iter_log(1_000, BUCKET_FACTOR)
            .map(|bucket| LatencyBucket {
                us_max: us(bucket.value_iterated_to()),
                count: bucket.count_since_last_iteration(),
            })
            .filter(|bucket| bucket.count > 0)
            .collect()
    }
}

/// Mean of the last quarter of `rates` by that of the first; `None` of less than four.
fn last_to_first(rates: &[f64]) -> Option<f64> {
    let quarter = rates.len() / 4;
    let first: f64 = rates[..quarter].iter().sum();
    let last: f64 = rates[rates.len() - quarter..].iter().sum();
    (quarter > 0 && first > 0.0).then_some(last / first)
}

fn us(ns: u64) -> f64 {
    as_f64(ns) / 1e3
}

#[cfg(test)]
mod tests {
    use super::super::rank::histogram;
    use super::*;

    fn outcome() -> Outcome {
        let mut latency = histogram();
        for us in 1..=1000 {
            latency.record(us * 1000).unwrap();
        }
        let second = |at_secs, secs, mib: u64| Second {
            at_secs,
            secs,
            bytes: mib << 20,
            ..Second::default()
        };
        let share = |mib: u64, secs| Share {
            operations: mib,
            bytes: mib << 20,
            time: Duration::from_secs(secs),
        };
        Outcome {
            time: Duration::from_secs(8),
            commit_time: Duration::from_secs(3),
            bytes: 1000 << 20,
            operations: 1000,
            by_rank: vec![share(600, 6), share(400, 8)],
            latency,
            seconds: vec![
                second(1.0, 1.0, 400),
                second(2.0, 1.0, 200),
                second(3.0, 1.0, 100),
                second(4.0, 1.0, 200),
                second(4.9, 0.9, 100),
                second(6.0, 1.1, 0),
                second(8.0, 2.0, 0),
            ],
            cpu: Duration::from_millis(125),
            verified_bytes: 3 << 20,
            wrong_bytes: 0,
            first_wrong: None,
            short_replies: 0,
            put_off: 0,
            errors: 0,
            first_error: None,
        }
    }

    #[test]
    fn figures_equal_the_counts() {
        let mut measurement = Measurement::default();
        outcome().fill(&mut measurement);
        for (figure, expected) in [
            (Figure::MibPerSec, 125.0),
            (Figure::OperationsPerSec, 125.0),
            (Figure::Secs, 8.0),
            (Figure::CommitSecs, 3.0),
            (Figure::LowestMibPerSec, 100.0),
            (Figure::LastToFirst, 0.5),
            (Figure::GeneratorSecsPerGib, 0.128),
            (Figure::GeneratorUsPerOperation, 125.0),
            (Figure::VerifiedMib, 3.0),
            (Figure::WrongBytes, 0.0),
            (Figure::Errors, 0.0),
            (Figure::PutOff, 0.0),
        ] {
            let value = measurement.figures[&figure];
            assert!((value - expected).abs() < 1e-9, "{figure:?} is {value}");
        }
        for (figure, expected) in [
            (Figure::LatencyP50Us, 500.0),
            (Figure::LatencyP95Us, 950.0),
            (Figure::LatencyP99Us, 990.0),
            (Figure::LatencyP999Us, 999.0),
            (Figure::LatencyMaxUs, 1000.0),
        ] {
            let value = measurement.figures[&figure];
            assert!((value / expected - 1.0).abs() < 0.002, "{figure:?} is {value}");
        }
        let mut fast = Outcome { latency: histogram(), ..outcome() };
        fast.latency.record_n(20_000, 1000).unwrap();
        let mut short = Measurement::default();
        fast.fill(&mut short);
        let value = short.figures[&Figure::LatencyP50Us];
        assert!((value / 20.0 - 1.0).abs() < 0.002, "{value} us instead of 20");
        assert_eq!(outcome().operations_by_rank(), [600, 400]);
        assert!((outcome().fairness().unwrap() - 0.5).abs() < 1e-9);
        assert_eq!(measurement.first_error, None);
    }

    #[test]
    fn to_compare_less_than_was_written_is_an_error() {
        let expecting = |known_bytes| {
            let mut outcome = outcome();
            outcome.expect_verified(known_bytes);
            (outcome.errors, outcome.first_error)
        };
        assert_eq!(expecting(3 << 20), (0, None));
        let text = "only 3145728 of 3145729 written bytes were compared";
        assert_eq!(expecting((3 << 20) + 1), (1, Some(text.to_owned())));
    }

    #[test]
    fn buckets_hold_each_latency_once_and_grow() {
        let buckets = outcome().latency_buckets();
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 1000);
        assert!(buckets.is_sorted_by(|a, b| a.us_max < b.us_max));
        let half: u64 = buckets.iter().filter(|b| b.us_max < 501.0).map(|b| b.count).sum();
        assert!((440..=500).contains(&half), "{half} of 500 calls up to 500 us");
        assert!(buckets.last().unwrap().us_max >= 1000.0);
    }

    #[test]
    fn too_short_measurements_are_omitted() {
        let mut outcome = outcome();
        outcome.seconds.truncate(2);
        outcome.seconds[0].secs = 0.5;
        outcome.seconds[1].secs = 0.5;
        outcome.operations = 0;
        outcome.errors = 1;
        outcome.wrong_bytes = 7;
        outcome.first_wrong = Some((2, 99));
        let mut measurement = Measurement::default();
        outcome.fill(&mut measurement);
        for figure in [Figure::LowestMibPerSec, Figure::LastToFirst, Figure::LatencyP50Us] {
            assert_eq!(measurement.figures.get(&figure), None);
        }
        let text = "7 wrong bytes, file 2 at 99 among the first";
        assert_eq!(measurement.first_error.as_deref(), Some(text));
    }
}
