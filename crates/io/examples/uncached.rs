//! Many files written at once, through the page cache and past it: MB/s second by second.
//!
//!     cargo run --release -p spillway-io --example uncached -- DIR
//!
//! Each of `--files` threads writes a file of its own in `--block` sized writes, until each has
//! `--size` bytes or `--seconds` are over. The modes take turns, `--rounds` times:
//!
//! - `cached`: plain writes; what is written stays in the page cache until the kernel needs memory;
//! - `window`: plain writes, enrolled in a [`WriteBehind`] window;
//! - `dontcache`: `RWF_DONTCACHE` writes, where kernel and file system have them.
//!
//! To see a cached run sag, there must be more data than memory: run it in a small memory cgroup.
//! With `--json`, a line for each run is all that is printed.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spillway_io::{
    Buffer, BufferPool, ByteRange, WriteBehind, WriteBehindConfig, cache_state, write_at,
    write_dontcache,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Cached,
    Window,
    DontCache,
}

struct Options {
    directory: PathBuf,
    files: usize,
    block_bytes: u64,
    file_bytes: u64,
    seconds: u64,
    rounds: usize,
    modes: Vec<Mode>,
    window: WriteBehindConfig,
    json: bool,
}

/// What one run came to.
struct Outcome {
    /// Bytes written in each second.
    bytes_by_second: Vec<u64>,
    bytes: u64,
    /// From the first write to the last.
    writing: Duration,
    /// Until everything was on the disk.
    durable: Duration,
    /// CPU of this process: user, system.
    own_cpu: [f64; 2],
    /// CPU of the whole machine, in which the kernel's own threads show.
    all_cpu: f64,
    /// Bytes of the files in the page cache when the last write was done, and the dirty among them.
    cached: u64,
    dirty: u64,
}

fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    if !options.json {
        println!("{} files, {} byte writes", options.files, options.block_bytes);
    }
    for round in 1..=options.rounds {
        for &mode in &options.modes {
            match run(&options, mode) {
                Ok(outcome) if options.json => println!("{}", outcome.json(round, mode, &options)),
                Ok(outcome) => outcome.print(round, mode),
                Err(error) => eprintln!("{}: {error}", mode.name()),
            }
        }
    }
    Ok(())
}

fn run(options: &Options, mode: Mode) -> Result<Outcome> {
    let directory = options.directory.join(format!("uncached-{}", std::process::id()));
    fs::create_dir(&directory)?;
    let outcome = run_in(options, mode, &directory);
    fs::remove_dir_all(&directory)?;
    outcome
}

fn run_in(options: &Options, mode: Mode, directory: &Path) -> Result<Outcome> {
    let window = WriteBehind::new(options.window);
    let files: Vec<_> = (0..options.files)
        .map(|index| Ok(Arc::new(create(&directory.join(index.to_string()))?)))
        .collect::<Result<_>>()?;
    let pool = BufferPool::new(usize::MAX);
    let (written, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (own_cpu, all_cpu) = (own_cpu_seconds()?, all_cpu_seconds()?);
    let begun = Instant::now();
    let (writing, bytes_by_second) = thread::scope(|scope| {
        let writers: Vec<_> = files
            .iter()
            .map(|fd| {
                let writer =
                    Writer { options, mode, window: &window, written: &written, stop: &stop };
                let mut block = block(&pool, options);
                scope.spawn(move || writer.write_all(fd, &mut block))
            })
            .collect();
        let is_over = || writers.iter().all(thread::ScopedJoinHandle::is_finished);
        let by_second = watch(begun, &written, options.seconds, is_over);
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().map_err(|_| "a writer panicked")??;
        }
        Ok::<_, Box<dyn Error + Send + Sync>>((begun.elapsed(), by_second))
    })?;
    let (cached, dirty) = left_in_cache(&files)?;
    for fd in &files {
        rustix::fs::fdatasync(fd)?;
    }
    window.shutdown();
    let durable = begun.elapsed();
    let own = own_cpu_seconds()?;
    Ok(Outcome {
        bytes_by_second,
        bytes: written.into_inner(),
        writing,
        durable,
        own_cpu: [own[0] - own_cpu[0], own[1] - own_cpu[1]],
        all_cpu: all_cpu_seconds()? - all_cpu,
        cached,
        dirty,
    })
}

fn create(path: &Path) -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).create_new(true).open(path)?.into())
}

fn block(pool: &Arc<BufferPool>, options: &Options) -> Buffer {
    let len = usize::try_from(options.block_bytes).expect("checked when parsed");
    let mut buffer = pool.try_take(len).expect("the pool has no bound, and no block is larger");
    buffer.as_mut_slice().fill(0x5a);
    buffer
}

/// One thread's part.
struct Writer<'a> {
    options: &'a Options,
    mode: Mode,
    window: &'a WriteBehind,
    written: &'a AtomicU64,
    stop: &'a AtomicBool,
}

impl Writer<'_> {
    fn write_all(&self, fd: &Arc<OwnedFd>, block: &mut Buffer) -> Result<()> {
        let file = self.window.file();
        let mut offset = 0;
        while offset < self.options.file_bytes && !self.stop.load(Ordering::Relaxed) {
            let len = self.options.block_bytes.min(self.options.file_bytes - offset);
            let range = ByteRange::new(offset, len).ok_or("past the largest offset")?;
            let data = &block.as_slice()[..usize::try_from(len)?];
            match self.mode {
                Mode::Cached => {
                    write_at(fd.as_fd(), data, offset)?;
                }
                Mode::DontCache => {
                    let written = write_dontcache(fd.as_fd(), data, offset)?;
                    written.ok_or("RWF_DONTCACHE is not supported here")?;
                }
                Mode::Window => {
                    let room = self.window.room_blocking(len);
                    let intent = file.before_write(fd.as_fd(), range, room);
                    write_at(fd.as_fd(), data, offset)?;
                    intent.enroll(fd, range);
                }
            }
            offset += len;
            self.written.fetch_add(len, Ordering::Relaxed);
        }
        file.take_error().map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Notes what was written in each second, until it is over or the time is up.
fn watch(
    begun: Instant,
    written: &AtomicU64,
    seconds: u64,
    is_over: impl Fn() -> bool,
) -> Vec<u64> {
    let mut by_second = Vec::new();
    let mut before = 0;
    for second in 1..=seconds {
        let until = begun + Duration::from_secs(second);
        while Instant::now() < until && !is_over() {
            thread::sleep(Duration::from_millis(5).min(until.duration_since(Instant::now())));
        }
        let now = written.load(Ordering::Relaxed);
        if is_over() {
            // A fraction of a second says nothing about a rate.
            break;
        }
        by_second.push(now - before);
        before = now;
    }
    by_second
}

fn left_in_cache(files: &[Arc<OwnedFd>]) -> io::Result<(u64, u64)> {
    let page_bytes = rustix::param::page_size() as u64;
    let mut left = (0, 0);
    for fd in files {
        let state = cache_state(fd.as_fd(), ByteRange::starting_at(0))?.unwrap_or_default();
        left.0 += state.cached * page_bytes;
        left.1 += (state.dirty + state.writeback) * page_bytes;
    }
    Ok(left)
}

/// User and system time of this process.
fn own_cpu_seconds() -> Result<[f64; 2]> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name of the program, in parentheses, may hold spaces.
    let fields = stat.rsplit_once(')').ok_or("/proc/self/stat has another form")?.1;
    let mut ticks = fields.split_ascii_whitespace().skip(11).map(str::parse::<f64>);
    let mut next = || ticks.next().ok_or("/proc/self/stat is too short");
    Ok([next()?? / TICKS_PER_SECOND, next()?? / TICKS_PER_SECOND])
}

/// Busy time of all processors: everything but idle and waiting for a disk.
fn all_cpu_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().ok_or("/proc/stat is empty")?;
    let ticks: Vec<f64> = line
        .split_ascii_whitespace()
        .skip(1)
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?;
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks[..] else {
        return Err("/proc/stat has another form".into());
    };
    Ok((user + nice + system + irq + softirq) / TICKS_PER_SECOND)
}

/// `USER_HZ`, the same on every architecture that anybody writes files on.
const TICKS_PER_SECOND: f64 = 100.0;

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl Outcome {
    fn rate(&self, time: Duration) -> f64 {
        mib(self.bytes) / time.as_secs_f64()
    }

    fn cpu_per_gib(&self, seconds: f64) -> f64 {
        seconds * 1024.0 / mib(self.bytes)
    }

    fn print(&self, round: usize, mode: Mode) {
        println!("\nround {round}, {}", mode.name());
        for (second, &bytes) in (1..).zip(&self.bytes_by_second) {
            println!("{second:>4} s: {:>6.0} MiB/s", mib(bytes));
        }
        println!(
            "  written {:.0} MiB/s, durable {:.0} MiB/s; {:.0} MiB in all",
            self.rate(self.writing),
            self.rate(self.durable),
            mib(self.bytes)
        );
        println!(
            "  CPU seconds per GiB: user {:.2}, system {:.2}, whole machine {:.2}",
            self.cpu_per_gib(self.own_cpu[0]),
            self.cpu_per_gib(self.own_cpu[1]),
            self.cpu_per_gib(self.all_cpu)
        );
        println!(
            "  left in the page cache: {:.0} MiB, {:.0} MiB of it dirty",
            mib(self.cached),
            mib(self.dirty)
        );
    }

    fn json(&self, round: usize, mode: Mode, options: &Options) -> String {
        format!(
            concat!(
                r#"{{"mode":"{}","round":{},"files":{},"block_bytes":{},"bytes":{},"#,
                r#""writing_seconds":{:.3},"durable_seconds":{:.3},"user_seconds":{:.2},"#,
                r#""system_seconds":{:.2},"machine_seconds":{:.2},"cached_bytes":{},"#,
                r#""dirty_bytes":{},"bytes_by_second":{:?}}}"#
            ),
            mode.name(),
            round,
            options.files,
            options.block_bytes,
            self.bytes,
            self.writing.as_secs_f64(),
            self.durable.as_secs_f64(),
            self.own_cpu[0],
            self.own_cpu[1],
            self.all_cpu,
            self.cached,
            self.dirty,
            self.bytes_by_second,
        )
    }
}

impl Mode {
    const ALL: [Self; 3] = [Self::Cached, Self::Window, Self::DontCache];

    fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Window => "window",
            Self::DontCache => "dontcache",
        }
    }
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            directory: PathBuf::new(),
            files: 32,
            block_bytes: 64 << 10,
            file_bytes: 256 << 20,
            seconds: 60,
            rounds: 1,
            modes: vec![Mode::Cached, Mode::Window],
            window: WriteBehindConfig::default(),
            json: false,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--files" => options.files = value()?.parse()?,
                "--block" => options.block_bytes = bytes(&value()?)?,
                "--size" => options.file_bytes = bytes(&value()?)?,
                "--seconds" => options.seconds = value()?.parse()?,
                "--rounds" => options.rounds = value()?.parse()?,
                "--window" => options.window.window_bytes = bytes(&value()?)?,
                "--run" => options.window.run_bytes = bytes(&value()?)?,
                "--threads" => options.window.threads = value()?.parse()?,
                "--mode" => options.modes = modes(&value()?)?,
                "--json" => options.json = true,
                _ if argument.starts_with('-') => {
                    return Err(format!("{argument}?\n{USAGE}").into());
                }
                _ => options.directory = argument.into(),
            }
        }
        if options.directory.as_os_str().is_empty() {
            return Err(USAGE.into());
        }
        if !(1..=4 << 20).contains(&options.block_bytes) {
            return Err("--block is at most 4MiB, and not 0".into());
        }
        Ok(options)
    }
}

fn modes(name: &str) -> Result<Vec<Mode>> {
    let named = |mode: &&Mode| name == "all" || mode.name() == name;
    let modes: Vec<Mode> = Mode::ALL.iter().filter(named).copied().collect();
    if modes.is_empty() { Err(format!("no mode is called {name}").into()) } else { Ok(modes) }
}

/// Reads `64KiB`, `1GiB` or a plain number.
fn bytes(text: &str) -> Result<u64> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("", 0)];
    let unit = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (number, shift) = unit.ok_or("no number")?;
    let number: u64 = number.parse().map_err(|error| format!("{text}: {error}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too much").into())
}

const USAGE: &str = "\
usage: uncached DIR [--files 32] [--block 64KiB] [--size 256MiB (of each file)] [--seconds 60]
                [--rounds 1] [--mode cached|window|dontcache|all] [--json]
                [--window 64MiB] [--run 4MiB] [--threads 4]
without --mode: cached, then window";
