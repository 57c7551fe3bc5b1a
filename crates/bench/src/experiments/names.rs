//! `spillway bench names`: the rates of CREATE, LOOKUP and REMOVE, one call in flight on each
//! connection, and each connection in a directory of its own.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use client::Nfs3;
use proto::nfs3::{CreateHow, FileHandle, SetAttributes};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::export::{Export, runtime};
use super::scratch_directory::ScratchDirectory;
use super::servers;
use crate::figure::Figure;
use crate::numeral::as_f64;
use crate::numeral::mib;
use crate::record::{Measurement, Run};
use crate::stop::Stop;
use crate::{Error, Result};

/// How many names, and how often.
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

    /// How often all names are created, looked up and removed [default: 3]
    #[arg(long, value_name = "COUNT", default_value_t = 3, hide_default_value = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
}

impl servers::Experiment for Options {
    const NAME: &str = "names";

    fn describe(&self, run: &mut Run) -> Result<()> {
        "each round creates new names; LOOKUP and REMOVE find what CREATE left in caches"
            .clone_into(&mut run.cache);
        Ok(())
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Creates, looks up and removes names in new directories of `export`.
    fn carry_out(
        &self,
        rounds: RangeInclusive<u32>,
        export: &Export<'_>,
        record: &mut dyn FnMut(Measurement) -> Result<()>,
    ) -> Result<()> {
        let runtime = runtime()?;
        let mut directories = Vec::new();
        let done = self.rounds_in(&runtime, &mut directories, rounds, export, record);
        let removed = runtime.block_on(export.unless_gone(async {
            for directory in &directories {
                directory.remove().await?;
            }
            Ok(())
        }));
        done.and(removed)
    }
}

#[derive(Clone, Copy)]
enum Operation {
    Create,
    Lookup,
    Remove,
}

impl Operation {
    const ALL: [Self; 3] = [Self::Create, Self::Lookup, Self::Remove];

    const fn phase(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Lookup => "lookup",
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
            let name = format!("names-{number}");
            let made = ScratchDirectory::make(export, &name);
            directories.push(runtime.block_on(export.unless_gone(made))?);
        }
        for round in rounds {
            for operation in Operation::ALL {
                let measurement = self.measure(runtime, directories, operation, export)?;
                record(Measurement { round, order: 1, ..measurement })?;
            }
        }
        Ok(())
    }

    /// One operation on all names.
    fn measure(
        &self,
        runtime: &Runtime,
        directories: &[ScratchDirectory],
        operation: Operation,
        export: &Export<'_>,
    ) -> Result<Measurement> {
        let meter = export.begin()?;
        let began = Instant::now();
        let latencies = runtime.block_on(export.until_stopped(async {
            let mut connections = JoinSet::new();
            for directory in directories {
                let (nfs, directory) = (directory.calls().clone(), directory.handle());
                let calls = calls(nfs, directory, operation, self.names, export.stop.clone());
                connections.spawn(calls);
            }
            let mut latencies = Vec::new();
            while let Some(connection) = connections.join_next().await {
                let own = connection.expect("the calls do not panic");
                let what = format!("{} failed", operation.phase().to_uppercase());
                latencies.extend(own.map_err(Error::call(what))?);
            }
            Ok(latencies)
        }))?;
        let secs = began.elapsed().as_secs_f64();
        let spent = meter.end()?;
        // A connection that is stopped leaves the rest of its calls out.
        export.stop.check()?;
        let mut measurement = self.measurement(operation, &export.name, secs, latencies);
        let figures = &mut measurement.figures;
        let calls = f64::from(self.connections) * f64::from(self.names);
        figures.insert(Figure::GeneratorUsPerOperation, spent.own.total() * 1e6 / calls);
        if let Some(server) = spent.server {
            figures.insert(Figure::ServerUsPerOperation, server.total() * 1e6 / calls);
            figures.insert(Figure::GeneratorToServer, spent.own.total() / server.total());
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

/// The calls of one connection, one after the other; the time of each.
async fn calls(
    nfs: Nfs3,
    directory: FileHandle,
    operation: Operation,
    names: u32,
    stop: Stop,
) -> client::Result<Vec<Duration>> {
    let attributes = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
    let mut latencies = Vec::new();
    for number in 0..names {
        if stop.is_wanted() {
            break;
        }
        let name = format!("file-{number:08}");
        let began = Instant::now();
        match operation {
            Operation::Create => {
                let how = CreateHow::Guarded(attributes);
                nfs.create(directory, name.as_bytes(), how).await?;
            }
            Operation::Lookup => {
                nfs.lookup(directory, name.as_bytes()).await?;
            }
            Operation::Remove => {
                nfs.remove(directory, name.as_bytes()).await?;
            }
        }
        latencies.push(began.elapsed());
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::own_server::OwnServer;
    use crate::experiments::servers::Experiment as _;

    #[test]
    fn each_name_is_one_call_of_each_procedure() {
        let server = OwnServer::start();
        let options = Options { connections: 3, names: 50, rounds: 2 };
        let mut phases = Vec::new();
        options
            .carry_out(1..=2, &server.export(), &mut |measurement| {
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
        assert_eq!(phases, ["create", "lookup", "remove"].repeat(2));
        assert_eq!(std::fs::read_dir(server.path()).unwrap().count(), 0, "directories are left");
    }
}
