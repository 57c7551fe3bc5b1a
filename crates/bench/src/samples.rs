//! Records for tests: invented, and the same each time.

use crate::figure::Figure;
use crate::record::{LatencyBucket, Measurement, Position, Record, Run, Second};

/// Circumstances that no machine has.
pub(crate) fn run(id: &str) -> Run {
    Run {
        id: id.into(),
        experiment: "io".into(),
        date: "2026-01-02T03:04:05Z".into(),
        version: "0.0.0".into(),
        kernel: "9.9.9".into(),
        cpu: "Imaginary 9000".into(),
        cores: 2,
        memory_bytes: 4 << 30,
        arguments: vec!["bench".into(), "io".into()],
        file_system: "xfs, /dev/imaginary".into(),
        network: "loopback".into(),
        cache: "dropped before each".into(),
        ..Run::default()
    }
}

/// A measurement with these figures and nothing else.
pub(crate) fn measurement(
    phase: &str,
    subject: &str,
    round: u32,
    figures: &[(Figure, f64)],
) -> Measurement {
    Measurement {
        run: "sample".into(),
        phase: phase.into(),
        subject: subject.into(),
        round,
        order: 1,
        figures: figures.iter().copied().collect(),
        ..Measurement::default()
    }
}

/// A run of that name with these measurements.
pub(crate) fn records(id: &str, measurements: Vec<Measurement>) -> Vec<Record> {
    let of_run = |one: Measurement| Record::Measurement(Measurement { run: id.into(), ..one });
    std::iter::once(Record::Run(run(id))).chain(measurements.into_iter().map(of_run)).collect()
}

/// A phase on each of these subjects, in rounds. The subject at place `n` (from 0) moves about
/// 400 / (n + 1) MiB/s, and has all that a load can have.
pub(crate) fn loads(phase: &str, subjects: &[&str], rounds: u32) -> Vec<Measurement> {
    let mut all = Vec::new();
    for round in 1..=rounds {
        for (place, subject) in (0_u32..).zip(subjects) {
            let jitter = f64::from((round * 7 + place * 3) % 5) / 100.0;
            let mib_per_sec = 400.0 / f64::from(place + 1) * (1.0 + jitter);
            let slowness = f64::from(place + 1);
            let mut one = measurement(
                phase,
                subject,
                round,
                &[
                    (Figure::MibPerSec, mib_per_sec),
                    (Figure::OperationsPerSec, mib_per_sec),
                    (Figure::Secs, 1024.0 / mib_per_sec),
                    (Figure::LatencyP50Us, 500.0 * slowness),
                    (Figure::LatencyP99Us, 2_000.0 * slowness * (1.0 + jitter)),
                    (Figure::LatencyP999Us, 20_000.0 * slowness),
                    (Figure::LatencyMaxUs, 90_000.0 * slowness),
                    (Figure::ServerUserSecsPerGib, 0.05),
                    (Figure::ServerSystemSecsPerGib, 0.4 * slowness),
                    (Figure::GeneratorSecsPerGib, 0.05),
                    (Figure::GeneratorToServer, 0.05 / (0.05 + 0.4 * slowness)),
                    (Figure::ServerRssMibMax, 20.0),
                    (Figure::PageCacheMibMax, if place == 0 { 0.0 } else { 900.0 + jitter }),
                    (Figure::DeviceReadMib, 1.0),
                    (Figure::DeviceWrittenMib, 1024.0),
                    (Figure::VerifiedMib, 1024.0),
                    (Figure::Errors, 0.0),
                    (Figure::WrongBytes, 0.0),
                ],
            );
            one.order = place + 1;
            one.parameters = [("io_bytes".into(), 1 << 20), ("ranks".into(), 4)].into();
            one.latency = latency(slowness);
            one.seconds = seconds(mib_per_sec);
            all.push(one);
        }
    }
    all
}

/// The same with the load of one subject at each of these values of a parameter.
pub(crate) fn sweep(subjects: &[&str], parameter: &str, values: &[u64]) -> Vec<Measurement> {
    let mut all = Vec::new();
    for value in values {
        for mut one in loads("sweep", subjects, 3) {
            one.parameters.insert(parameter.into(), *value);
            all.push(one);
        }
    }
    all
}

/// A listing on each of these subjects, dearer towards its end.
pub(crate) fn listings(subjects: &[&str]) -> Vec<Measurement> {
    let mut all = Vec::new();
    for round in 1..=3 {
        for (place, subject) in (1_u32..).zip(subjects) {
            let figures = [(Figure::Secs, 2.0), (Figure::LastTenthToFirst, 3.0)];
            let mut one = measurement("idle", subject, round, &figures);
            let cost = |part: u32| f64::from(place) * (1.0 + f64::from(part) / 5.0);
            one.positions = (0..10)
                .map(|part| Position { entry: u64::from(part) * 1000, us_per_entry: cost(part) })
                .collect();
            all.push(one);
        }
    }
    all
}

fn latency(slowness: f64) -> Vec<LatencyBucket> {
    let buckets =
        [(500.0, 5_000), (1_000.0, 4_000), (2_000.0, 900), (20_000.0, 90), (90_000.0, 10)];
    let bucket = |(us, count)| LatencyBucket { us_max: us * slowness, count };
    buckets.into_iter().map(bucket).collect()
}

fn seconds(mib_per_sec: f64) -> Vec<Second> {
    let count = (1024.0 / mib_per_sec).ceil().clamp(1.0, 60.0);
    let mut all = Vec::new();
    let mut at_secs = 0.0;
    while at_secs < count {
        at_secs += 1.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sample")]
        let operations = mib_per_sec as u64;
        all.push(Second {
            at_secs,
            secs: 1.0,
            bytes: operations << 20,
            operations,
            server_rss_bytes: Some(20 << 20),
            page_cache_bytes: Some(operations << 20),
            dirty_bytes: Some(operations << 18),
        });
    }
    all
}
