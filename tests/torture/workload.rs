//! Everyone at the same files at once, while the modes change.

use std::any::Any;
use std::fmt;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proto::nfs3::WriteVerifier;
use rustix::fs::{Advice, fadvise, fdatasync};

use crate::cutter::Cutter;
use crate::environment::{number_from, seed};
use crate::journal::Journal;
use crate::layout::Layout;
use crate::local_worker::LocalWorker;
use crate::mapping::Mapping;
use crate::nfs_worker::NfsWorker;
use crate::oracle::Wrong;
use crate::place::Place;
use crate::random::Random;
use crate::server::{MODES, ModePair, Server};

const FILES: u8 = 3;
const NFS_WORKERS: u64 = 6;
const LOCAL_WORKERS: u64 = 2;
const SWITCH_EVERY: Duration = Duration::from_millis(200);

/// Begins the description of what no reader may see.
const WRONG_BYTES: &str = "wrong bytes";

/// The lengths that clients are known to use, and the one that aligns with nothing.
const TRANSFERS_BYTES: [usize; 6] = [1536, 4096, 16_384, 47_008, 65_536, 1 << 20];

/// The files and all that the workers share.
pub(crate) struct Workload {
    pub(crate) seed: u64,
    pub(crate) server: Server,
    pub(crate) layouts: Vec<Layout>,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) journal: Journal,
    pub(crate) done: Tally,
    verifier: Mutex<Option<WriteVerifier>>,
    /// A file that no worker begins to change; `FILES` for none of them.
    quiet: AtomicUsize,
    ending: AtomicBool,
}

/// The work of one thread until the end.
type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

/// How often what was done, so that a run that did nothing is seen to have done nothing.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) nfs_reads: AtomicU64,
    pub(crate) nfs_writes: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) local_reads: AtomicU64,
    pub(crate) local_writes: AtomicU64,
    pub(crate) mapped_reads: AtomicU64,
    pub(crate) mapped_writes: AtomicU64,
    pub(crate) cuts: AtomicU64,
    pub(crate) races: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) switches: AtomicU64,
}

/// Counts one more.
pub(crate) fn count(what: &AtomicU64) {
    what.fetch_add(1, Ordering::Relaxed);
}

/// Works on files in `place` for `SPILLWAY_TORTURE_SECS`, or `default_secs`, and checks every byte
/// that any worker reads.
pub(crate) fn torture(place: &Place, default_secs: u64) {
    let secs = number_from("SPILLWAY_TORTURE_SECS").unwrap_or(default_secs);
    let seed = seed();
    let workload = Workload::new(place, seed);
    let switched = workload.run(Duration::from_secs(secs));
    workload.check_all_in_each_mode();
    println!("{:?}, {switched} of 16 pairs of modes", workload.done);
    workload.finish(place.may_lack_direct());
}

/// Whether the run has panicked because a reader got wrong bytes, and for no other reason.
pub(crate) fn is_about_wrong_bytes(panic: &(dyn Any + Send)) -> bool {
    panic.downcast_ref::<String>().is_some_and(|words| words.contains(WRONG_BYTES))
}

/// A length to read or write.
pub(crate) fn transfer_bytes(random: &mut Random) -> usize {
    if random.percent(20) {
        return random.index(200_000) + 1;
    }
    random.one_of(&TRANSFERS_BYTES)
}

/// A range to read: of any file, at any byte or at a multiple of its length.
pub(crate) fn anywhere(end: u64, random: &mut Random) -> (u64, usize) {
    let count = transfer_bytes(random);
    let offset = random.within(0..end);
    if random.percent(40) { (offset - offset % count as u64, count) } else { (offset, count) }
}

impl Workload {
    fn new(place: &Place, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let layouts: Vec<_> = (0..FILES).map(|file| Layout::random(file, &mut random)).collect();
        let path = |layout: &Layout| place.export().join(&layout.name);
        let paths: Vec<_> = layouts.iter().map(path).collect();
        for (path, layout) in paths.iter().zip(&layouts) {
            fs::write(path, layout.first_content()).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
        }
        Self {
            seed,
            server: Server::start(place.export(), ("auto", "auto")),
            layouts,
            paths,
            journal: Journal::new(),
            done: Tally::default(),
            verifier: Mutex::new(None),
            quiet: AtomicUsize::new(0),
            ending: AtomicBool::new(false),
        }
    }

    /// Lets everyone work for a while; returns how many pairs of modes there were.
    ///
    /// # Panics
    /// With the words of a worker that panics.
    fn run(&self, time: Duration) -> usize {
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for (name, work) in self.workers() {
                let work = move || {
                    let _ending = EndOnPanic(self);
                    work();
                };
                let worker = thread::Builder::new().name(name).spawn_scoped(scope, work);
                workers.push(worker.unwrap());
            }
            let switched = self.switch_modes(time, &mut self.random(203));
            for worker in workers {
                worker.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
            switched
        })
    }

    fn workers(&self) -> Vec<(String, Work<'_>)> {
        let mut workers: Vec<(String, Work<'_>)> = Vec::new();
        for number in 0..NFS_WORKERS {
            let work = move || NfsWorker::new(self, self.random(number)).run();
            workers.push((format!("nfs-{number}"), Box::new(work)));
        }
        for number in 0..LOCAL_WORKERS {
            let work = move || LocalWorker::new(self, self.random(100 + number)).run();
            workers.push((format!("local-{number}"), Box::new(work)));
        }
        let map = || self.read_and_write_mapped(&mut self.random(200));
        workers.push(("mapped".to_owned(), Box::new(map)));
        let cut = || Cutter::new(self, self.random(201)).run();
        workers.push(("cut".to_owned(), Box::new(cut)));
        let evict = || self.evict(&mut self.random(202));
        workers.push(("evict".to_owned(), Box::new(evict)));
        workers
    }

    fn random(&self, part: u64) -> Random {
        Random::part(self.seed, part)
    }

    pub(crate) fn goes_on(&self) -> bool {
        !self.ending.load(Ordering::Relaxed)
    }

    /// Which file to work on next.
    pub(crate) fn any_file(&self, random: &mut Random) -> usize {
        random.index(self.layouts.len())
    }

    /// Whether a file is to rest for a while: what is read ahead of streams is only kept of files
    /// that were not changed a moment ago, and has to be given up when they are changed again.
    pub(crate) fn is_quiet(&self, file: usize) -> bool {
        self.quiet.load(Ordering::Relaxed) == file
    }

    fn switch_modes(&self, time: Duration, random: &mut Random) -> usize {
        let _ending = EndOnPanic(self);
        let started = Instant::now();
        let mut seen = std::collections::HashSet::new();
        while self.goes_on() && started.elapsed() < time {
            let modes: ModePair = (random.one_of(&MODES), random.one_of(&MODES));
            self.server.switch(modes);
            self.journal.note_all(format_args!("modes are {modes:?}"));
            count(&self.done.switches);
            seen.insert(modes);
            // Twice as long as the server waits before it reads ahead, most often.
            if random.percent(12) {
                self.quiet.store(random.index(usize::from(FILES) + 1), Ordering::Relaxed);
            }
            thread::sleep(SWITCH_EVERY);
        }
        self.ending.store(true, Ordering::Relaxed);
        seen.len()
    }

    fn read_and_write_mapped(&self, random: &mut Random) {
        let map = |(layout, path): (&Layout, &PathBuf)| {
            Mapping::of(path, layout.oracle.position(layout.body().end))
        };
        let mappings: Option<Vec<_>> = self.layouts.iter().zip(&self.paths).map(map).collect();
        let Some(mut mappings) = mappings else { return };
        while self.goes_on() {
            let file = self.any_file(random);
            let (layout, mapping) = (&self.layouts[file], &mut mappings[file]);
            if random.percent(60) {
                let end = layout.oracle.position(layout.body().end);
                let (offset, count_wanted) = anywhere(end, random);
                let bytes = usize::try_from(end - offset).unwrap().min(count_wanted);
                let look = layout.oracle.look(offset, bytes);
                let data = mapping.read(offset, bytes);
                self.judge(file, look.check(&data), format_args!("{bytes} mapped at {offset}"));
                count(&self.done.mapped_reads);
            } else if !self.is_quiet(file)
                && let Some(owned) = layout.own_mapped(random)
            {
                let units = owned.part(transfer_bytes(random), random);
                let data = layout.oracle.begin_writing(&units);
                self.note_units(file, &units, format_args!("stores"));
                mapping.write(layout.oracle.position(units.start), &data);
                owned.acknowledge(units.clone());
                self.note_units(file, &units, format_args!("stored"));
                count(&self.done.mapped_writes);
            }
        }
    }

    /// Sees to it that the page cache never holds all of the files for long.
    fn evict(&self, random: &mut Random) {
        let files: Vec<_> = self.paths.iter().map(|path| File::open(path).unwrap()).collect();
        while self.goes_on() {
            let file = self.any_file(random);
            if random.percent(30) {
                fdatasync(&files[file]).unwrap();
            }
            let (offset, len) = if random.percent(30) {
                (0, None)
            } else {
                let offset = random.within(0..self.layouts[file].oracle.end());
                (offset, std::num::NonZeroU64::new(random.within(0..2 << 20)))
            };
            fadvise(&files[file], offset, len, Advice::DontNeed).unwrap();
            count(&self.done.evictions);
            thread::sleep(Duration::from_millis(random.within(1..40)));
        }
    }

    /// Ends everything, with what is known about it, if bytes are wrong.
    #[track_caller]
    pub(crate) fn judge(&self, file: usize, bytes: Result<(), Wrong>, read: fmt::Arguments<'_>) {
        if let Err(wrong) = bytes {
            let first = !self.ending.swap(true, Ordering::Relaxed);
            let steps = if first { self.journal.around(file, &wrong.at) } else { String::new() };
            let (seed, name) = (self.seed, &self.layouts[file].name);
            let read = format_args!("{WRONG_BYTES} in {read} of {name}");
            panic!("SPILLWAY_TORTURE_SEED={seed}: {read}: {wrong}\n{steps}");
        }
    }

    /// Notes a step on units of a file.
    pub(crate) fn note_units(&self, file: usize, units: &Range<usize>, what: fmt::Arguments<'_>) {
        let oracle = &self.layouts[file].oracle;
        self.journal.note(file, oracle.position(units.start)..oracle.position(units.end), what);
    }

    /// The server never restarts here, so it may not ask for data again.
    #[track_caller]
    pub(crate) fn check_verifier(&self, verifier: WriteVerifier) {
        let mut first = self.verifier.lock().unwrap();
        assert_eq!(*first.get_or_insert(verifier), verifier, "another write verifier");
    }

    /// Once no worker writes, every unit has one content for every reader in every mode.
    fn check_all_in_each_mode(&self) {
        let mut reader = NfsWorker::new(self, self.random(300));
        for mode in MODES {
            self.server.switch((mode, "buffered"));
            for file in 0..self.layouts.len() {
                for transfer in [1 << 20, 47_008] {
                    reader.read_whole(file, transfer);
                }
            }
        }
        self.check_all_locally();
    }

    fn check_all_locally(&self) {
        for (file, (layout, path)) in self.layouts.iter().zip(&self.paths).enumerate() {
            let whole = usize::try_from(layout.oracle.end()).unwrap();
            let look = layout.oracle.look(0, whole);
            let data = fs::read(path).unwrap();
            assert_eq!(data.len() as u64, layout.own_shape().len(), "length of {}", layout.name);
            self.judge(file, look.check(&data), format_args!("all"));
        }
    }

    /// Stops the server and looks at what reached the disk.
    fn finish(self, may_lack_direct: bool) {
        for path in &self.paths {
            let file = File::open(path).unwrap();
            fdatasync(&file).unwrap();
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        }
        self.check_all_locally();
        self.server.stop(may_lack_direct);
    }
}

/// Ends the work of all when one of them panics, so that the panic is reported without delay.
struct EndOnPanic<'a>(&'a Workload);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.ending.store(true, Ordering::Relaxed);
        }
    }
}

/// Reads at a place until all is there or the file ends.
pub(crate) fn read_fully(file: &File, offset: u64, count: usize) -> Vec<u8> {
    let mut data = vec![0; count];
    let mut done = 0;
    while done < count {
        match file.read_at(&mut data[done..], offset + done as u64).unwrap() {
            0 => break,
            more => done += more,
        }
    }
    data.truncate(done);
    data
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_run_fails_with_the_wrong_bytes_that_a_worker_finds() {
        let place = Place::in_directory();
        let workload = Workload::new(&place, 1);
        for Layout { oracle, .. } in &workload.layouts {
            // Versions that are acknowledged and never written.
            let all = 0..oracle.unit_from(oracle.end());
            oracle.begin_writing(&all);
            oracle.acknowledge(all);
        }
        let ran = catch_unwind(AssertUnwindSafe(|| workload.run(Duration::from_secs(60))));
        assert!(is_about_wrong_bytes(&*ran.unwrap_err()));
    }
}
