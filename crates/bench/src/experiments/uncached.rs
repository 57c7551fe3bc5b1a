//! `spillway bench uncached`: many files written at once in a local directory, through the page
//! cache and past it. No NFS is involved; what is measured is the write-behind window of the `io`
//! package beside what the kernel does by itself.

mod pattern;
mod writers;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use ::io::{WriteBehindConfig, write_dontcache};
use clap::ValueEnum;
use server::config::ByteSize;

use super::course::{self, secs_per_gib};
use crate::figure::Figure;
use crate::numeral::mib;
use crate::options::{RoundOptions, check_distinct};
use crate::record::{LIMIT_SECS, Measurement, Run, Second};
use crate::rig::{MemoryGroup, WorkDirectory, touch_free_memory};
use crate::stop::Stop;
use crate::{Error, Result, successor};
use writers::{Written, write};

/// The files to write, the modes to write them in, and the number of rounds.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Directory on the file system under test; the files are made in a new directory there, which
    /// is removed afterwards
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// Files, each written by a thread of its own, 1 to 1024 [default: 32]
    #[arg(long, value_name = "COUNT", default_value_t = 32, hide_default_value = true,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub files: u16,

    /// Bytes of each write, at most 4MiB [default: 64KiB]
    #[arg(long, value_name = "SIZE", default_value = "64KiB", hide_default_value = true)]
    pub block: ByteSize,

    /// Bytes of each file [default: 256MiB]
    #[arg(long, value_name = "SIZE", default_value = "256MiB", hide_default_value = true)]
    pub size: ByteSize,

    /// Write for at most so many seconds in each mode and round [default: 60]
    #[arg(long, value_name = "COUNT", default_value_t = 60, hide_default_value = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,

    #[command(flatten)]
    pub(crate) rounds: RoundOptions,

    /// Modes to compare: cached (plain writes), window (plain writes, written back early and
    /// dropped by Spillway) and dontcache (the kernel's RWF_DONTCACHE) [default: all]
    #[arg(
        long,
        value_name = "MODE[,MODE...]",
        value_delimiter = ',',
        default_value = "cached,window,dontcache",
        hide_default_value = true
    )]
    pub modes: Vec<Mode>,

    /// Bytes that the window holds until they are written to disk [default: 64MiB]
    #[arg(long, value_name = "SIZE", default_value = "64MiB", hide_default_value = true)]
    pub window: ByteSize,

    /// Limit the memory of the writer, including its page cache, by a memory cgroup, so that the
    /// data exceeds it; needs root [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<ByteSize>,

    /// It is done: this process is in that group.
    #[arg(long, hide = true, requires = "memory_limit")]
    pub in_memory_group: bool,

    /// Do not read the files back to compare them with the written data [default: do, after the
    /// measured time]
    #[arg(long)]
    pub no_verify: bool,
}

/// How the data gets into the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Plain writes; the data stays in the page cache until the kernel needs memory.
    Cached,
    /// Plain writes, written back early and dropped by Spillway.
    Window,
    /// `RWF_DONTCACHE` writes, where kernel and file system have them.
    #[value(name = "dontcache")]
    DontCache,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Window => "window",
            Self::DontCache => "dontcache",
        }
    }
}

impl Options {
    /// Notes what is compared, and what this machine cannot do.
    ///
    /// # Errors
    /// [`Error::Misuse`] for sizes that cannot be; [`Error::Machine`] when nothing can be written
    /// in the directory.
    pub fn describe(&self, run: &mut Run) -> Result<()> {
        self.check()?;
        let window =
            format!("plain writes, in a window of {} until they are on the disk", self.window);
        for mode in self.modes_here()? {
            let what = match mode {
                Mode::Cached => "plain writes",
                Mode::Window => &window,
                Mode::DontCache => "writes with RWF_DONTCACHE",
            };
            run.subjects.insert(mode.name().to_owned(), what.to_owned());
        }
        if self.modes.contains(&Mode::DontCache) && !run.subjects.contains_key("dontcache") {
            let sentence = "dontcache: the kernel or the file system does not support \
                            RWF_DONTCACHE, which needs Linux 6.14 and ext4, XFS or btrfs.";
            run.left_out.push(sentence.to_owned());
        }
        run.memory_limit_bytes = self.memory_limit.map(|ByteSize(bytes)| bytes);
        "each measurement writes new files; the ones before are removed and synced; free memory \
         touched"
            .clone_into(&mut run.cache);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        check_distinct("--modes", &self.modes)?;
        let misuse = |sentence: &str| Err(Error::Misuse(sentence.to_owned()));
        if self.size.0 == 0 {
            return misuse("--size is at least 1B");
        }
        match (self.block.0, self.window.0) {
            (0, _) | (BLOCK_BYTES_BEYOND.., _) => misuse("--block is 1B to 4MiB"),
            (_, ..WINDOW_BYTES_MIN) => misuse("--window is at least 1MiB"),
            _ => Ok(()),
        }
    }

    /// The modes that kernel and file system have.
    fn modes_here(&self) -> Result<Vec<Mode>> {
        let is_supported = !self.modes.contains(&Mode::DontCache)
            || is_dontcache_supported(&self.directory)
                .map_err(Error::machine(format!("cannot write in {}", self.directory.display())))?;
        let is_here = |mode: &&Mode| is_supported || **mode != Mode::DontCache;
        Ok(self.modes.iter().filter(is_here).copied().collect())
    }

    fn window_config(&self) -> WriteBehindConfig {
        WriteBehindConfig { window_bytes: self.window.0, ..WriteBehindConfig::default() }
    }
}

const BLOCK_BYTES_BEYOND: u64 = (4 << 20) + 1;
const WINDOW_BYTES_MIN: u64 = 1 << 20;

fn is_dontcache_supported(directory: &Path) -> std::io::Result<bool> {
    let file = tempfile::tempfile_in(directory)?;
    let written = write_dontcache(file.as_fd(), &[&[0; 4096]], 0);
    Ok(written.map_err(|failed| failed.error)?.is_some())
}

/// Carries the experiment out in a memory group of its own, if that is asked for: by `program`,
/// which is this one, with the same `arguments` and one more. `None` if there is nothing to be done
/// but to go on here.
///
/// # Errors
/// [`Error::Machine`]: there can be no such group, or no process.
pub fn in_memory_group(
    options: &Options,
    program: &Path,
    arguments: &[OsString],
) -> Result<Option<ExitStatus>> {
    let limit = options.memory_limit.filter(|_| !options.in_memory_group);
    if options.in_memory_group {
        successor::follow()?;
    }
    let Some(ByteSize(limit_bytes)) = limit else { return Ok(None) };
    let group = MemoryGroup::create("uncached", Some(limit_bytes))?;
    let mut command = group.command(program);
    command.args(successor::arguments_with(arguments, &["--in-memory-group"]));
    successor::carry_out(command).map(Some)
}

/// Writes in each mode in turns; `record` is given each measurement when it is made.
///
/// # Errors
/// [`Error::Misuse`] for sizes that cannot be, [`Error::Machine`] for what the file system refuses,
/// and those of `record`; [`Error::Interrupted`] when `stop` is wanted.
pub fn run(
    options: &Options,
    stop: &Stop,
    record: &mut dyn FnMut(Measurement) -> Result<()>,
) -> Result<()> {
    options.check()?;
    let modes = options.modes_here()?;
    for round in 1..=options.rounds.rounds {
        for (order, at) in (1..).zip(super::turned(modes.len(), round)) {
            let measurement = measure(options, modes[at], stop)?;
            record(Measurement { round, order, ..measurement })?;
        }
    }
    Ok(())
}

/// One mode, once, in a directory of its own.
fn measure(options: &Options, mode: Mode, stop: &Stop) -> Result<Measurement> {
    touch_free_memory(options.size.0.saturating_mul(options.files.into()), stop)?;
    let directory = WorkDirectory::create(&options.directory)?;
    let mut written = write(options, mode, directory.path(), stop)?;
    // Writing that was cut short is no measurement.
    stop.check()?;
    let mut measurement = measurement(options, mode, &written);
    if !options.no_verify {
        let verified = written.verify(stop)?;
        stop.check()?;
        let wrong = f64::from(u32::try_from(verified.wrong_bytes).unwrap_or(u32::MAX));
        measurement.figures.insert(Figure::VerifiedMib, mib(verified.bytes));
        measurement.figures.insert(Figure::WrongBytes, wrong);
    }
    drop(written);
    directory.remove()?;
    // The next measurement shall not wait for what is freed on the disk by this one.
    let at = Error::machine(format!("cannot sync {}", options.directory.display()));
    File::open(&options.directory).and_then(|it| Ok(rustix::fs::syncfs(it)?)).map_err(at)?;
    Ok(measurement)
}

fn measurement(options: &Options, mode: Mode, written: &Written) -> Measurement {
    let (bytes, secs) = (written.bytes(), written.durable.as_secs_f64());
    let per_gib = |cpu_secs| secs_per_gib(cpu_secs, bytes);
    let mut figures = [
        (Figure::MibPerSec, mib(bytes) / secs),
        (Figure::Secs, secs),
        (Figure::CommitSecs, (written.durable - written.writing).as_secs_f64()),
        (Figure::OwnUserSecsPerGib, per_gib(written.cpu.user)),
        (Figure::OwnSystemSecsPerGib, per_gib(written.cpu.system)),
        (Figure::MachineSecsPerGib, per_gib(written.machine_cpu_secs)),
    ]
    .into();
    course::note(&written.seconds, &mut figures);
    let most = |bytes: fn(&Second) -> Option<u64>| written.seconds.iter().filter_map(bytes).max();
    let bytes = [
        (Figure::PageCacheMibMax, most(|second| second.page_cache_bytes)),
        (Figure::DirtyMibMax, most(|second| second.dirty_bytes)),
        (Figure::CachedAtEndMib, written.cached_bytes),
        (Figure::DeviceReadMib, written.device.map(|moved| moved.read)),
        (Figure::DeviceWrittenMib, written.device.map(|moved| moved.written)),
    ];
    figures.extend(bytes.into_iter().filter_map(|(figure, bytes)| Some((figure, mib(bytes?)))));
    let parameters = [
        ("files", u64::from(options.files)),
        ("block_bytes", options.block.0),
        ("file_bytes", options.size.0),
        (LIMIT_SECS, options.seconds.into()),
    ];
    let mut parameters: BTreeMap<_, _> =
        parameters.map(|(name, value)| (name.to_owned(), value)).into();
    if mode == Mode::Window {
        parameters.insert("window_bytes".to_owned(), options.window.0);
    }
    Measurement {
        phase: "write".to_owned(),
        subject: mode.name().to_owned(),
        parameters,
        figures,
        seconds: written.seconds.clone(),
        ..Measurement::default()
    }
}

#[cfg(test)]
mod tests;
