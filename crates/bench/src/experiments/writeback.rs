//! `spillway bench writeback`: a file written in tiny records through Spillway's client, with many
//! WRITEs under way at once: what that does to their size, their order and the speed.

mod written;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use server::config::ByteSize;
use tokio::runtime::Runtime;

use super::course::secs_per_gib;
use super::export::Export;
use super::scratch_directory::ScratchDirectory;
use super::servers;
use crate::figure::Figure;
use crate::numeral::{as_f64, mib};
use crate::options::{TargetOptions, check_distinct};
use crate::record::{Measurement, Run};
use crate::{Error, Result};
use written::{Written, verify, write};

/// The file to write, its records, and the WRITEs of the client.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Bytes that the program writes at a time [default: 1,512,4096]
    #[arg(
        long,
        value_name = "BYTES[,BYTES...]",
        value_delimiter = ',',
        default_value = "1,512,4096",
        hide_default_value = true
    )]
    pub record_sizes: Vec<NonZeroU32>,

    /// WRITEs that the client has in flight at once, 1 to 1024 [default: 1,2,4,20,64]
    #[arg(long, value_name = "COUNT[,COUNT...]", value_delimiter = ',',
        default_value = "1,2,4,20,64", hide_default_value = true,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Vec<u16>,

    /// Bytes of the file, 1B to 1GiB; they are in memory while it is written [default: 64MiB]
    #[arg(long, value_name = "SIZE", default_value = "64MiB", hide_default_value = true)]
    pub size: ByteSize,

    /// Largest WRITE, 1KiB to 4MiB [default: what the server takes]
    #[arg(long, value_name = "SIZE")]
    pub wsize: Option<ByteSize>,

    /// Do not read the file back to compare it with the written data [default: do, through another
    /// mount, after the measured time]
    #[arg(long)]
    pub no_verify: bool,
}

const SIZE_BYTES: RangeInclusive<u64> = 1..=1 << 30;
const WSIZE_BYTES: RangeInclusive<u64> = 1 << 10..=4 << 20;

impl servers::Experiment for Options {
    const NAME: &str = "writeback";

    /// Notes what is done about caches. The parameters name what is compared.
    fn describe(&self, _targets: &TargetOptions, run: &mut Run) -> Result<()> {
        self.check()?;
        "each measurement writes a new file through a new mount".clone_into(&mut run.cache);
        Ok(())
    }

    /// Writes files to a directory at `export` in turns.
    fn carry_out(
        &self,
        rounds: RangeInclusive<u32>,
        export: &Export<'_>,
        record: &mut dyn FnMut(Measurement) -> Result<()>,
    ) -> Result<()> {
        self.check()?;
        let data = &data(usize::try_from(self.size.0).expect("it is at most 1 GiB"));
        ScratchDirectory::lend(export, false, |runtime, directory| {
            Experiment { options: self, export, directory, runtime, data }.run(rounds, record)
        })
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        if !SIZE_BYTES.contains(&self.size.0) {
            return Err(Error::Misuse("--size is 1B to 1GiB".to_owned()));
        }
        if self.wsize.is_some_and(|ByteSize(bytes)| !WSIZE_BYTES.contains(&bytes)) {
            return Err(Error::Misuse("--wsize is 1KiB to 4MiB".to_owned()));
        }
        check_distinct("--record-sizes", &self.record_sizes)?;
        check_distinct("--workers", &self.workers)
    }
}

/// Bytes of which no WRITE is like another.
fn data(len: usize) -> Vec<u8> {
    let words = (0_u64..).flat_map(|nth| nth.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    words.take(len).collect()
}

struct Experiment<'a> {
    options: &'a Options,
    export: &'a Export<'a>,
    directory: &'a ScratchDirectory,
    runtime: &'a Runtime,
    data: &'a [u8],
}

impl Experiment<'_> {
    fn run(
        &self,
        rounds: RangeInclusive<u32>,
        record: &mut dyn FnMut(Measurement) -> Result<()>,
    ) -> Result<()> {
        for round in rounds {
            let mut workers = self.options.workers.clone();
            if round.is_multiple_of(2) {
                workers.reverse();
            }
            for record_bytes in &self.options.record_sizes {
                for (order, workers) in (1..).zip(&workers) {
                    let measurement = self.measure(*record_bytes, *workers)?;
                    record(Measurement { round, order, ..measurement })?;
                }
            }
        }
        Ok(())
    }

    /// One file.
    fn measure(&self, record_bytes: NonZeroU32, workers: u16) -> Result<Measurement> {
        let name = format!("{record_bytes}-{workers}");
        let written = self.runtime.block_on(self.export.until_stopped(async {
            let written = write(self, &name, record_bytes, workers).await?;
            let wrong_bytes = match self.options.no_verify {
                true => None,
                false => Some(verify(self, &name).await?),
            };
            self.directory.remove_all(vec![name.into_bytes()]).await?;
            Ok((written, wrong_bytes))
        }));
        let (written, wrong_bytes) = written?;
        let mut measurement = self.measurement(record_bytes, workers, written);
        if let Some(wrong_bytes) = wrong_bytes {
            measurement.figures.insert(Figure::VerifiedMib, mib(self.options.size.0));
            measurement.figures.insert(Figure::WrongBytes, as_f64(wrong_bytes));
        }
        Ok(measurement)
    }

    fn measurement(&self, record_bytes: NonZeroU32, workers: u16, written: Written) -> Measurement {
        let (bytes, secs) = (self.options.size.0, written.took.as_secs_f64());
        let records = as_f64(bytes.div_ceil(record_bytes.get().into()));
        let mut figures: BTreeMap<_, _> = [
            (Figure::MibPerSec, mib(bytes) / secs),
            (Figure::OperationsPerSec, records / secs),
            (Figure::Secs, secs),
            (Figure::Calls, as_f64(written.seen.writes)),
            (Figure::CallKib, mib(written.seen.bytes) * 1024.0 / as_f64(written.seen.writes)),
            (Figure::OutOfOrder, as_f64(written.seen.out_of_order)),
            (Figure::GeneratorSecsPerGib, secs_per_gib(written.spent.own.total(), bytes)),
        ]
        .into();
        if let Some(commit) = written.seen.commit_took() {
            figures.insert(Figure::CommitSecs, commit.as_secs_f64());
        }
        figures.extend(written.spent.server_per_gib(bytes));
        if let Some(rss_bytes) = written.spent.server_rss_bytes_max {
            figures.insert(Figure::ServerRssMibMax, mib(rss_bytes));
        }
        let parameters = [
            ("record_bytes", record_bytes.get().into()),
            ("workers", workers.into()),
            ("file_bytes", bytes),
            ("wsize_bytes", written.wsize_bytes.into()),
        ];
        let name = &self.export.name;
        Measurement {
            phase: format!("record-{record_bytes}"),
            subject: if name.is_empty() { "server".to_owned() } else { name.clone() },
            parameters: parameters.map(|(name, value)| (name.to_owned(), value)).into(),
            figures,
            counters: written.spent.counters,
            ..Measurement::default()
        }
    }
}

#[cfg(test)]
mod tests;
