//! `spillway bench readdir`: a large directory listed while nothing happens and while another
//! client adds and removes entries, by bare calls and by Spillway's own client.

mod changer;
mod changes;
mod entries;
mod listing;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::ValueEnum;
use server::config::ByteSize;
use tokio::runtime::Runtime;

use super::export::Export;
use super::scratch_directory::ScratchDirectory;
use super::servers;
use crate::figure::Figure;
use crate::options::TargetOptions;
use crate::record::{Measurement, Run};
use crate::{Error, Result};
use changer::Changer;
use changes::Change;
use entries::wrong_entries;
use listing::{Listed, Pause};

/// The directory to list, the calls that list it, and the changes meanwhile.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Files in the directory, which is created for the experiment, 10 to 10,000,000 [default:
    /// 100000]
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, hide_default_value = true,
        value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    pub entries: u32,

    /// Changes by another client during the listing of the modified directory: add, remove, both
    /// (one in each of two listings) or none [default: both]
    #[arg(long, value_name = "WHAT", default_value = "both", hide_default_value = true)]
    pub modified: Modified,

    /// Time between its changes, 1ms to 3600s. 1s and --entries 500000 repeat the experiment of the
    /// Linux client's authors, where a listing of less than a second sees only one change [default:
    /// 10ms]
    #[arg(long, value_name = "TIME", default_value = "10ms", hide_default_value = true,
        value_parser = parse_time)]
    pub change_interval: Duration,

    /// List with attributes and handles, by READDIRPLUS [default: names, by READDIR]
    #[arg(long)]
    pub plus: bool,

    /// Maximum bytes of each reply, 4KiB to 1MiB; the client requests at least what the server
    /// prefers [default: that for bare calls, as much as it can send for the client]
    #[arg(long, value_name = "SIZE")]
    pub reply: Option<ByteSize>,

    /// Create symbolic links in place of files, for servers that keep created files open [default:
    /// files]
    #[arg(long)]
    pub links: bool,

    /// Keep the directory afterwards [default: remove it]
    #[arg(long)]
    pub keep: bool,
}

/// Changes of the directory while it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Modified {
    /// Files are added.
    Add,
    /// Files are removed.
    Remove,
    /// The one, and then the other.
    Both,
    /// Nothing.
    None,
}

/// The client that lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lister {
    /// Calls one after the other, as any client has to make them.
    Raw,
    /// Spillway's client, which believes no attributes of directories at all.
    Client,
}

/// The longest time between two changes.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Reads a time with its unit, one that a timer can have.
fn parse_time(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let time = number.parse().ok().and_then(|number| match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    });
    let time = time.filter(|time| !time.is_zero() && *time <= INTERVAL_MAX);
    time.ok_or_else(|| format!("`{text}` is not a time of 1ms to 3600s, such as 10ms or 1s"))
}

impl servers::Experiment for Options {
    const NAME: &str = "readdir";

    fn describe(&self, _targets: &TargetOptions, run: &mut Run) -> Result<()> {
        self.check()?;
        for change in self.changes() {
            let every = self.change_interval;
            let (name, what) = match change {
                None => ("idle", "the directory does not change".to_owned()),
                Some(Change::Add) => {
                    ("adding", format!("another client adds a file each {every:?}"))
                }
                Some(Change::Remove) => {
                    ("removing", format!("another client removes a file each {every:?}"))
                }
            };
            run.subjects.insert(name.to_owned(), what);
        }
        "each listing is made over a new connection; the server keeps what it has cached"
            .clone_into(&mut run.cache);
        Ok(())
    }

    /// Fills a directory at `export` and lists it in turns. The order of each of the `rounds`
    /// follows from its number.
    fn carry_out(
        &self,
        rounds: RangeInclusive<u32>,
        export: &Export<'_>,
        record: &mut dyn FnMut(Measurement) -> Result<()>,
    ) -> Result<()> {
        self.check()?;
        ScratchDirectory::lend(export, self.keep, |runtime, directory| {
            runtime.block_on(export.until_stopped(entries::fill(directory, self)))?;
            Experiment { options: self, export, directory, runtime }.run(rounds, record)
        })
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        if self.reply.is_some_and(|ByteSize(bytes)| !REPLY_BYTES.contains(&bytes)) {
            return Err(Error::Misuse("--reply is 4KiB to 1MiB".to_owned()));
        }
        Ok(())
    }

    /// The change during each listing of a round; none during the first.
    fn changes(&self) -> Vec<Option<Change>> {
        let modified: &[_] = match self.modified {
            Modified::Add => &[Change::Add],
            Modified::Remove => &[Change::Remove],
            Modified::Both => &[Change::Add, Change::Remove],
            Modified::None => &[],
        };
        std::iter::once(None).chain(modified.iter().copied().map(Some)).collect()
    }
}

const REPLY_BYTES: RangeInclusive<u64> = 4 << 10..=1 << 20;

struct Experiment<'a> {
    options: &'a Options,
    export: &'a Export<'a>,
    directory: &'a ScratchDirectory,
    runtime: &'a Runtime,
}

impl Experiment<'_> {
    fn run(
        &self,
        rounds: RangeInclusive<u32>,
        record: &mut dyn FnMut(Measurement) -> Result<()>,
    ) -> Result<()> {
        for round in rounds {
            let mut changes = self.options.changes();
            if round.is_multiple_of(2) {
                changes.reverse();
            }
            for lister in [Lister::Raw, Lister::Client] {
                for (order, change) in (1..).zip(&changes) {
                    let measurement = self.measure(lister, *change)?;
                    record(Measurement { round, order, ..measurement })?;
                }
            }
        }
        Ok(())
    }

    /// One listing. The directory is afterwards what it was before.
    fn measure(&self, lister: Lister, change: Option<Change>) -> Result<Measurement> {
        let changer = change.map(|change| self.start(change)).transpose()?;
        let listed =
            self.runtime.block_on(self.export.until_stopped(self.list(lister, changer.as_ref())));
        let stopped = changer
            .map(|changer| self.runtime.block_on(self.export.unless_gone(changer.stop())))
            .transpose();
        let (listed, changes) = (listed?, stopped?);
        if let Some(changes) = changes {
            let undone = entries::undo(self.directory, &changes, self.options);
            self.runtime.block_on(self.export.unless_gone(undone))?;
        }
        Ok(self.measurement(lister, change, listed))
    }

    fn start(&self, change: Change) -> Result<Changer> {
        self.runtime.block_on(Changer::start(self.export, self.directory, change, self.options))
    }

    async fn list(&self, lister: Lister, changer: Option<&Changer>) -> Result<Listed> {
        let pause = match changer {
            Some(changer) => Pause::UntilChange(changer),
            None => Pause::For(self.options.change_interval),
        };
        match lister {
            Lister::Raw => listing::raw(self.export, self.directory, self.options, pause).await,
            Lister::Client => {
                listing::by_client(self.export, self.directory, self.options, pause).await
            }
        }
    }

    fn measurement(&self, lister: Lister, change: Option<Change>, listed: Listed) -> Measurement {
        let phase = match lister {
            Lister::Raw => "list-raw",
            Lister::Client => "list-client",
        };
        let subject = match change {
            None => "idle",
            Some(Change::Add) => "adding",
            Some(Change::Remove) => "removing",
        };
        let mut figures = listed.figures();
        let changes = listed.changes.as_ref();
        let wrong = wrong_entries(&listed.numbers, self.options.entries, changes);
        figures.insert(Figure::WrongEntries, f64::from(wrong));
        if let Some(changes) = changes {
            figures.insert(Figure::Changes, f64::from(changes.times.end - changes.times.start));
        }
        let interval_ms = self.options.change_interval.as_millis();
        // The idle listing has it too, and pauses as long: what differs in parameters is no pair.
        let parameters: BTreeMap<_, _> = [
            ("entries".to_owned(), self.options.entries.into()),
            ("plus".to_owned(), self.options.plus.into()),
            ("links".to_owned(), self.options.links.into()),
            ("reply_bytes".to_owned(), listed.reply_bytes_max),
            ("change_interval_ms".to_owned(), u64::try_from(interval_ms).unwrap_or(u64::MAX)),
        ]
        .into();
        Measurement {
            phase: phase.to_owned(),
            subject: self.export.subject(subject),
            parameters,
            figures,
            positions: listed.positions(),
            counters: listed.spent.counters,
            ..Measurement::default()
        }
    }
}

#[cfg(test)]
mod tests;
