//! `spillway bench names`: the rates at which files are created, opened, queried, looked up and
//! removed, one call in flight on each connection, and each connection in a directory of its own.

mod connection;

use std::mem;
use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use client::Identity;
use tokio::runtime::Runtime;

use super::export::{Export, runtime};
use super::scratch_directory::ScratchDirectory;
use super::servers;
use crate::figure::Figure;
use crate::load::{Broken, Version};
use crate::numeral::as_f64;
use crate::numeral::mib;
use crate::options::{TargetOptions, VersionOptions};
use crate::record::{Measurement, Run};
use crate::stop::Stop;
use crate::{Error, Result};
use connection::Connection;

/// How many names.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Connections, each with a directory and one call in flight [default: 2]
    #[arg(long, value_name = "COUNT", default_value_t = 2, hide_default_value = true,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub connections: u16,

    /// Names in each directory [default: 8000]
    #[arg(long, value_name = "COUNT", default_value_t = 8000, hide_default_value = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub names: u32,

    #[command(flatten)]
    pub(crate) versions: VersionOptions,
}

impl servers::Experiment for Options {
    const NAME: &str = "names";

    fn describe(&self, _targets: &TargetOptions, run: &mut Run) -> Result<()> {
        "each round creates new names; the other phases find what that left in caches"
            .clone_into(&mut run.cache);
        Ok(())
    }

    fn versions(&self) -> &[Version] {
        &self.versions.nfs_versions
    }

    /// Each directory was mounted by another one.
    fn connections(&self) -> usize {
        2 * usize::from(self.connections)
    }

    /// Creates, uses and removes files in new directories of `export`.
    fn carry_out(
        &self,
        rounds: RangeInclusive<u32>,
        export: &Export<'_>,
        record: &mut dyn FnMut(Measurement) -> Result<()>,
    ) -> Result<()> {
        let runtime = runtime()?;
        let mut directories = Vec::new();
        let done = self.rounds_in(&runtime, &mut directories, rounds, export, record);
        let removals = directories.iter().map(ScratchDirectory::remove);
        let removed = runtime.block_on(export.unless_gone(all_unless_gone(removals)));
        done.and(removed)
    }
}

/// Carries out one work after the other, also after one that the server refuses.
///
/// # Errors
/// The first of those of the works.
async fn all_unless_gone(
    works: impl Iterator<Item = impl Future<Output = Result<()>>>,
) -> Result<()> {
    let mut all = Ok(());
    for work in works {
        let done = work.await;
        let is_gone = done.as_ref().is_err_and(|error| !error.is_refusal());
        all = all.and(done);
        // Each further call would wait for its timeout.
        if is_gone {
            break;
        }
    }
    all
}

/// The calls for each name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// CREATE; in version 4 OPEN and CLOSE.
    Create,
    /// LOOKUP; in version 4 OPEN and CLOSE.
    Open,
    /// GETATTR.
    Stat,
    /// LOOKUP.
    Lookup,
    /// ACCESS.
    Access,
    /// REMOVE.
    Remove,
}

impl Operation {
    const ALL: [Self; 6] =
        [Self::Create, Self::Open, Self::Stat, Self::Lookup, Self::Access, Self::Remove];

    const fn phase(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Open => "open",
            Self::Stat => "stat",
            Self::Lookup => "lookup",
            Self::Access => "access",
            Self::Remove => "remove",
        }
    }
}

impl Options {
    fn rounds_in(
        &self,
        runtime: &Runtime,
        directories: &mut Vec<ScratchDirectory>,
        rounds: RangeInclusive<u32>,
        export: &Export<'_>,
        record: &mut dyn FnMut(Measurement) -> Result<()>,
    ) -> Result<()> {
        for number in 0..self.connections {
            let name = format!("{}-{number}", export.directory);
            let made = ScratchDirectory::make(export, &name);
            directories.push(runtime.block_on(export.unless_gone(made))?);
        }
        let identity = Identity::of_process();
        let begin = |directory| Connection::begin(export, directory, &identity);
        let mut connections = directories.iter().map(begin).collect::<Result<Vec<_>>>()?;
        for round in rounds {
            for operation in Operation::ALL {
                let measurement = self.measure(&mut connections, operation, export)?;
                record(Measurement { round, order: 1, ..measurement })?;
            }
        }
        connections.into_iter().try_for_each(Connection::end)
    }

    /// One operation on all names.
    fn measure(
        &self,
        connections: &mut [Connection<'_>],
        operation: Operation,
        export: &Export<'_>,
    ) -> Result<Measurement> {
        let meter = export.begin()?;
        let began = Instant::now();
        let stop = &export.stop;
        let latencies = thread::scope(|scope| {
            let work =
                |connection| scope.spawn(|| operations(connection, operation, self.names, stop));
            let threads: Vec<_> = connections.iter_mut().map(work).collect();
            let latencies = threads.into_iter().map(|thread| thread.join().expect("no panics"));
            latencies.collect::<Result<Vec<_>>>()
        })?;
        let secs = began.elapsed().as_secs_f64();
        let spent = meter.end()?;
        // A connection that is stopped leaves the rest of its calls out.
        export.stop.check()?;
        let mut measurement = self.measurement(operation, &export.name, secs, latencies.concat());
        let figures = &mut measurement.figures;
        let put_off: u64 = connections.iter_mut().map(|it| mem::take(&mut it.put_off)).sum();
        figures.insert(Figure::PutOff, as_f64(put_off));
        let calls = f64::from(self.connections) * f64::from(self.names);
        figures.insert(Figure::GeneratorUsPerOperation, spent.own.total() * 1e6 / calls);
        if let Some(server) = spent.server {
            figures.insert(Figure::ServerUsPerOperation, server.total() * 1e6 / calls);
            if server.total() > 0.0 {
                figures.insert(Figure::GeneratorToServer, spent.own.total() / server.total());
            }
        }
        if let Some(rss_bytes) = spent.server_rss_bytes_max {
            figures.insert(Figure::ServerRssMibMax, mib(rss_bytes));
        }
        measurement.counters = spent.counters;
        Ok(measurement)
    }

    fn measurement(
        &self,
        operation: Operation,
        server: &str,
        secs: f64,
        mut latencies: Vec<Duration>,
    ) -> Measurement {
        latencies.sort_unstable();
        let calls = latencies.len();
        let us = |part: usize| latencies[(calls * part / 1000).min(calls - 1)].as_secs_f64() * 1e6;
        let figures = [
            (Figure::OperationsPerSec, as_f64(calls as u64) / secs),
            (Figure::Secs, secs),
            (Figure::LatencyP50Us, us(500)),
            (Figure::LatencyP95Us, us(950)),
            (Figure::LatencyP99Us, us(990)),
            (Figure::LatencyMaxUs, us(1000)),
        ];
        let parameters =
            [("connections", u64::from(self.connections)), ("names", u64::from(self.names))];
        Measurement {
            phase: operation.phase().to_owned(),
            subject: if server.is_empty() { "server" } else { server }.to_owned(),
            parameters: parameters.map(|(name, value)| (name.to_owned(), value)).into(),
            figures: figures.into(),
            ..Measurement::default()
        }
    }
}

/// The operations of one connection, one after the other; the time of each.
fn operations(
    connection: &mut Connection<'_>,
    operation: Operation,
    names: u32,
    stop: &Stop,
) -> Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    for number in 0..names {
        if stop.is_wanted() {
            break;
        }
        let name = format!("file-{number:08}");
        let began = Instant::now();
        let done = connection.perform(operation, number, name.as_bytes());
        latencies.push(began.elapsed());
        let failed = |why| Error::Server(format!("{} of {name} failed: {why}", operation.phase()));
        match done {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => return Err(failed(refusal.to_string())),
            Err(Broken(why)) => return Err(failed(why)),
        }
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::own_server::OwnServer;
    use crate::experiments::servers::Experiment as _;

    #[test]
    fn directories_are_removed_until_the_server_is_gone() {
        let refused = || client::Error::Accept(proto::oncrpc::AcceptStat::SystemErr);
        let nfs = || client::Error::Nfs {
            procedure: proto::nfs3::Procedure::Rmdir,
            status: proto::nfs3::Status::Notempty,
        };
        let mut begun = Vec::new();
        let works = [Some(nfs()), None, Some(refused()), None].into_iter().enumerate();
        let works = works.map(|(number, error)| {
            begun.push(number);
            std::future::ready(error.map_or(Ok(()), |error| Err(Error::call("work")(error))))
        });
        let done = runtime().unwrap().block_on(all_unless_gone(works));
        assert!(matches!(&done, Err(error) if error.is_refusal()), "the first is kept: {done:?}");
        assert_eq!(begun, [0, 1, 2]);
    }

    #[test]
    fn each_name_is_one_call_of_each_procedure() {
        for version in [Version::V3, Version::V4_2] {
            each_name_is_one_call_in(version);
        }
    }

    fn each_name_is_one_call_in(version: Version) {
        let server = OwnServer::start();
        let versions = VersionOptions::default();
        let options = Options { connections: 3, names: 50, versions };
        let mut phases = Vec::new();
        let export = Export { version, ..server.export() };
        options
            .carry_out(1..=2, &export, &mut |measurement| {
                phases.push(measurement.phase.clone());
                let rate = measurement.figures[&Figure::OperationsPerSec];
                let secs = measurement.figures[&Figure::Secs];
                assert!((rate * secs - 150.0).abs() < 1e-6, "{rate} in {secs} s");
                let files = |directory| std::fs::read_dir(directory).unwrap().count();
                let directories = std::fs::read_dir(server.path()).unwrap();
                let there: usize = directories.map(|entry| files(entry.unwrap().path())).sum();
                assert_eq!(there, if measurement.phase == "remove" { 0 } else { 150 });
                Ok(())
            })
            .unwrap();
        assert_eq!(phases, ["create", "open", "stat", "lookup", "access", "remove"].repeat(2));
        assert_eq!(std::fs::read_dir(server.path()).unwrap().count(), 0, "directories are left");
    }
}
