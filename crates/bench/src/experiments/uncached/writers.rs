//! The writers, a thread for each file, and what is watched meanwhile.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ::io::{
    BufferPool, ByteRange, DeviceNumber, WriteBehind, cache_state, write_at, write_dontcache,
};

use super::pattern::{Pattern, Verified};
use super::{Mode, Options};
use crate::record::Second;
use crate::rig::{
    BlockDevice, CpuSecs, CpuTime, DeviceTraffic, MemoryGroup, PageCache, machine_cpu_secs,
};
use crate::stop::Stop;
use crate::{Error, Result};

/// The files written in one mode, and the time and cost of writing them.
pub(super) struct Written {
    files: Vec<WrittenFile>,
    /// From the first write to the end of the last.
    pub(super) writing: Duration,
    /// Until all was on the disk.
    pub(super) durable: Duration,
    pub(super) seconds: Vec<Second>,
    /// Of this process.
    pub(super) cpu: CpuSecs,
    /// Of all processors, the kernel's own threads included.
    pub(super) machine_cpu_secs: f64,
    /// The I/O of the device meanwhile, if there is one.
    pub(super) device: Option<DeviceTraffic>,
    /// Page cache of the files afterwards, if the kernel reports it.
    pub(super) cached_bytes: Option<u64>,
}

struct WrittenFile {
    fd: Arc<OwnedFd>,
    pattern: Pattern,
    bytes: u64,
}

/// Writes all files in one mode until they have their size or the time is up.
pub(super) fn write(
    options: &Options,
    mode: Mode,
    directory: &Path,
    stop: &Stop,
) -> Result<Written> {
    let refused = || Error::machine(format!("cannot write in {}", directory.display()));
    let mut files = create(options, directory).map_err(refused())?;
    let window = WriteBehind::new(options.window_config());
    let progress = Progress::default();
    let device = BlockDevice::under(directory)?;
    let device_before = device.as_ref().map(BlockDevice::traffic).transpose()?;
    let (cpu_before, machine_before) = (CpuTime::of_self()?, machine_cpu_secs()?);
    let mut watch = Watch::begin(&progress)?;
    thread::scope(|scope| {
        let writers: Vec<_> = files
            .iter_mut()
            .map(|file| {
                let writer = Writer { options, mode, window: &window, progress: &progress };
                scope.spawn(move || writer.write_all(file))
            })
            .collect();
        let is_over =
            || stop.is_wanted() || writers.iter().all(thread::ScopedJoinHandle::is_finished);
        let watched = watch.until(Duration::from_secs(options.seconds.into()), is_over);
        join(writers).map_err(refused()).and(watched)
    })?;
    let writing = watch.begun.elapsed();
    watch.note_rest()?;
    sync(&files).map_err(refused())?;
    let durable = watch.begun.elapsed();
    window.shutdown();
    let cpu = CpuTime::of_self()?.since(&cpu_before);
    let machine_cpu_secs = machine_cpu_secs()? - machine_before;
    let device = device.map(|device| device.traffic()).transpose()?;
    let device = device.zip(device_before).map(|(after, before)| after.since(&before));
    let cached_bytes = cached_bytes(&files).map_err(refused())?;
    let seconds = watch.seconds;
    Ok(Written { files, writing, durable, seconds, cpu, machine_cpu_secs, device, cached_bytes })
}

fn create(options: &Options, directory: &Path) -> io::Result<Vec<WrittenFile>> {
    let block_bytes = usize::try_from(options.block.0).expect("it is at most 4 MiB");
    let pool = BufferPool::new(usize::MAX);
    let file = |number: u16| {
        let path = directory.join(number.to_string());
        let file = fs::File::options().read(true).write(true).create_new(true).open(path)?;
        let block = pool.try_take(block_bytes).expect("the pool is without bound");
        let pattern = Pattern::new(block, block_bytes, number.into());
        Ok(WrittenFile { fd: Arc::new(file.into()), pattern, bytes: 0 })
    };
    (0..options.files).map(file).collect()
}

fn join(threads: Vec<thread::ScopedJoinHandle<'_, io::Result<()>>>) -> io::Result<()> {
    let joined = threads.into_iter().map(|thread| thread.join().expect("a writer does not panic"));
    // All of them are waited for; the first error is returned.
    joined.fold(Ok(()), io::Result::and)
}

/// All files at once, as they were written.
fn sync(files: &[WrittenFile]) -> io::Result<()> {
    thread::scope(|scope| {
        let sync = |file: &WrittenFile| Ok(rustix::fs::fdatasync(&file.fd)?);
        join(files.iter().map(|file| scope.spawn(move || sync(file))).collect())
    })
}

fn cached_bytes(files: &[WrittenFile]) -> io::Result<Option<u64>> {
    let page_bytes = rustix::param::page_size() as u64;
    let mut bytes = Some(0);
    for file in files {
        let state = cache_state(file.fd.as_fd(), ByteRange::starting_at(0))?;
        bytes = bytes.zip(state).map(|(bytes, state)| bytes + state.cached * page_bytes);
    }
    Ok(bytes)
}

impl Written {
    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Reads all files back, until `stop` is wanted.
    pub(super) fn verify(&mut self, stop: &Stop) -> Result<Verified> {
        thread::scope(|scope| {
            let verify =
                |file: &mut WrittenFile| file.pattern.verify(file.fd.as_fd(), file.bytes, stop);
            let threads: Vec<_> =
                self.files.iter_mut().map(|file| scope.spawn(move || verify(file))).collect();
            let mut all = Verified::default();
            for thread in threads {
                let one = thread.join().expect("comparing does not panic");
                let one = one.map_err(Error::machine("cannot read back what was written"))?;
                all.bytes += one.bytes;
                all.wrong_bytes += one.wrong_bytes;
            }
            Ok(all)
        })
    }
}

/// The sums of all writers so far; `is_time_up` ends the writers.
#[derive(Default)]
struct Progress {
    bytes: AtomicU64,
    writes: AtomicU64,
    is_time_up: AtomicBool,
}

/// Notes the progress second by second.
struct Watch<'a> {
    progress: &'a Progress,
    /// This process is in it; for what it has caused of the page cache.
    group: Option<MemoryGroup>,
    before: PageCache,
    begun: Instant,
    /// Up to the last of them.
    noted: Duration,
    noted_bytes: u64,
    noted_writes: u64,
    seconds: Vec<Second>,
}

impl<'a> Watch<'a> {
    fn begin(progress: &'a Progress) -> Result<Self> {
        let group = MemoryGroup::own()?;
        let before = group.as_ref().map(MemoryGroup::page_cache).transpose()?.unwrap_or_default();
        let (begun, noted, seconds) = (Instant::now(), Duration::ZERO, Vec::new());
        Ok(Self { progress, group, before, begun, noted, noted_bytes: 0, noted_writes: 0, seconds })
    }

    /// Returns when the writers have ended or the time is up.
    fn until(&mut self, time: Duration, is_over: impl Fn() -> bool) -> Result<()> {
        let watched = self.note_until(time, is_over);
        self.progress.is_time_up.store(true, Ordering::Relaxed);
        watched
    }

    fn note_until(&mut self, time: Duration, is_over: impl Fn() -> bool) -> Result<()> {
        while !is_over() && self.noted < time {
            let end = self.begun + (self.noted + Duration::from_secs(1)).min(time);
            while Instant::now() < end && !is_over() {
                thread::sleep(LOOK_EVERY.min(end.saturating_duration_since(Instant::now())));
            }
            self.note()?;
        }
        Ok(())
    }

    /// Adds what was done since the last second as another one.
    fn note(&mut self) -> Result<()> {
        let cache = self.group.as_ref().map(MemoryGroup::page_cache).transpose()?;
        let grown = |now: u64, before| now.saturating_sub(before);
        let unwritten = |cache: PageCache| cache.dirty_bytes + cache.writeback_bytes;
        let before = self.before;
        let at = self.begun.elapsed();
        let bytes = self.progress.bytes.load(Ordering::Relaxed);
        let writes = self.progress.writes.load(Ordering::Relaxed);
        self.seconds.push(Second {
            at_secs: at.as_secs_f64(),
            secs: (at - self.noted).as_secs_f64(),
            bytes: bytes - self.noted_bytes,
            operations: writes - self.noted_writes,
            page_cache_bytes: cache.map(|now| grown(now.cached_bytes, before.cached_bytes)),
            dirty_bytes: cache.map(|now| grown(unwritten(now), unwritten(before))),
            ..Second::default()
        });
        (self.noted, self.noted_bytes, self.noted_writes) = (at, bytes, writes);
        Ok(())
    }

    /// Adds what the writers did after the time was up, until they noticed.
    fn note_rest(&mut self) -> Result<()> {
        let is_over = self.progress.bytes.load(Ordering::Relaxed) == self.noted_bytes;
        if is_over { Ok(()) } else { self.note() }
    }
}

/// Stands for the device of all files, which are in one directory.
const THEIR_DEVICE: DeviceNumber = (0, 0);
/// How soon the end of the writers is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// One thread's part.
struct Writer<'a> {
    options: &'a Options,
    mode: Mode,
    window: &'a WriteBehind,
    progress: &'a Progress,
}

impl Writer<'_> {
    fn write_all(&self, file: &mut WrittenFile) -> io::Result<()> {
        let window_file = self.window.file(THEIR_DEVICE);
        while file.bytes < self.options.size.0 && !self.progress.is_time_up.load(Ordering::Relaxed)
        {
            let len = self.options.block.0.min(self.options.size.0 - file.bytes);
            let data = file.pattern.block_at(file.bytes, usize::try_from(len).expect("a block"));
            let fd = file.fd.as_fd();
            match self.mode {
                Mode::Cached => write_at(fd, data, file.bytes),
                Mode::DontCache => write_dontcache(fd, &[data], file.bytes)
                    .map(|written| written.expect("it was tried before")),
                Mode::Window => {
                    let range = ByteRange::new(file.bytes, len).ok_or(ErrorKind::FileTooLarge)?;
                    let reservation = window_file.reserve_blocking(len);
                    let intent = window_file.before_write(fd, range, reservation);
                    let written = write_at(fd, data, file.bytes);
                    intent.enroll(&file.fd, range);
                    written
                }
            }
            .map_err(|failed| failed.error)?;
            file.bytes += len;
            self.progress.bytes.fetch_add(len, Ordering::Relaxed);
            self.progress.writes.fetch_add(1, Ordering::Relaxed);
        }
        window_file.take_error().map_or(Ok(()), |error| Err(error.into()))
    }
}
