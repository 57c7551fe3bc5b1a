//! Everyone at the same files and names, while the modes change.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::environment::{number_from, seed};
use crate::file::{File, Plan};
use crate::journal::Journal;
use crate::local::Local;
use crate::mount::{Mount, MountUser};
use crate::names::{Directory, NameClient, change_locally};
use crate::place::Place;
use crate::random::Random;
use crate::raw_client::RawClient;
use crate::server::{ModePair, Server, Settings, mode_pairs};
use crate::trust::Trust;
use crate::versions::Wrong;

const TRANSFER_BYTES_MAX: usize = 4 << 20;
const SETTINGS: Settings =
    Settings { global: "max_transfer = \"4MiB\"", exports: &["/export", "/again"] };
const SWITCH_EVERY: Duration = Duration::from_millis(300);
const MEETING_MAX: Duration = Duration::from_millis(5);

const PLANS: [Plan; 4] = [
    Plan { plain: 16, pages: 64, tail: 16, shift: 0, mounted: true },
    Plan { plain: 8192, pages: 512, tail: 512, shift: 0, mounted: true },
    Plan { plain: 9000, pages: 512, tail: 2048, shift: 67, mounted: false },
    Plan { plain: 1000, pages: 128, tail: 128, shift: 67, mounted: false },
];
const DIRECTORIES: usize = 2;
/// Of each [`Trust`].
const RAW_CLIENTS: usize = 2;
const NAME_CLIENTS: usize = 3;
const USERS_OF_A_MOUNT: usize = 2;

/// The files, the names and all that the threads share.
pub(crate) struct Workload {
    seed: u64,
    pub(crate) server: Server,
    pub(crate) files: Vec<File>,
    pub(crate) directories: Vec<Directory>,
    pub(crate) write_units: usize,
    pub(crate) done: Tally,
    journal: Journal,
    /// How many clients came to write together.
    met: AtomicU64,
    started: Instant,
    ending: AtomicBool,
}

/// How often what was done, so that a run that did nothing is seen to have done nothing.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) opens: AtomicU64,
    /// Opens that let the cache be used.
    pub(crate) kept: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) local_changes: AtomicU64,
    pub(crate) mount_opens: AtomicU64,
    pub(crate) mount_writes: AtomicU64,
    pub(crate) names_opened: AtomicU64,
    pub(crate) names_kept: AtomicU64,
    pub(crate) names_changed: AtomicU64,
    pub(crate) names_changed_locally: AtomicU64,
}

/// Counts one more.
pub(crate) fn count(what: &AtomicU64) {
    what.fetch_add(1, Ordering::Relaxed);
}

/// Works on files in `place` for `SPILLWAY_TORTURE_SECS`, or `default_secs`; with this many FUSE
/// mounts, where they can be had.
pub(crate) fn fuzz(place: &Place, mounts: usize, default_secs: u64) {
    let secs = number_from("SPILLWAY_TORTURE_SECS").unwrap_or(default_secs);
    let workload = Workload::new(place, seed());
    workload.run(place, mounts, Duration::from_secs(secs));
    println!("{:?}", workload.done);
    let used = |count: &AtomicU64| count.load(Ordering::Relaxed) > 0;
    assert!(used(&workload.done.kept) || !takes_part("raw"), "no cached data was ever used");
    let names = place.renews_times_of_directories() && takes_part("names");
    assert!(used(&workload.done.names_kept) || !names, "no cached name was ever used");
    workload.server.stop(place.may_lack_direct());
}

type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

impl Workload {
    fn new(place: &Place, seed: u64) -> Self {
        let export = place.export();
        let file = |(number, plan)| File::new(number, export.join(format!("file{number}")), plan);
        let files: Vec<_> = PLANS.iter().enumerate().map(file).collect();
        for file in &files {
            fs::write(&file.path, file.first_content()).unwrap();
            fs::set_permissions(&file.path, fs::Permissions::from_mode(0o666)).unwrap();
        }
        fs::create_dir(export.join("links")).unwrap();
        Self {
            seed,
            server: Server::start_with(export, ("auto", "auto"), SETTINGS),
            files,
            directories: (0..DIRECTORIES).map(|number| Directory::new(number, export)).collect(),
            write_units: TRANSFER_BYTES_MAX / crate::versions::UNIT_BYTES,
            done: Tally::default(),
            journal: Journal::new(),
            met: AtomicU64::new(0),
            started: Instant::now(),
            ending: AtomicBool::new(false),
        }
    }

    fn run(&self, place: &Place, mounts: usize, time: Duration) {
        let url = self.server.url();
        let mounts: Option<Vec<_>> = (0..mounts).map(|_| Mount::new(&url, "rw")).collect();
        let mounts = mounts.unwrap_or_default();
        thread::scope(|scope| {
            for (name, work) in self.workers(place, &mounts) {
                let work = move || {
                    let _ending = EndOnPanic(self);
                    work();
                };
                thread::Builder::new().name(name).spawn_scoped(scope, work).unwrap();
            }
            self.switch_modes(time, &mut self.random(400));
        });
    }

    fn workers<'a>(&'a self, place: &Place, mounts: &'a [Mount]) -> Vec<(String, Work<'a>)> {
        let mut workers: Vec<(String, Work<'a>)> = Vec::new();
        for number in 0..RAW_CLIENTS {
            for (part, trust) in [(0, Trust::Pairs), (50, Trust::After)] {
                let random = self.random(part + number as u64);
                let work = move || RawClient::new(self, number, trust, random).run();
                workers.push((format!("raw-{number}-{trust:?}"), Box::new(work)));
            }
        }
        let name_clients = if place.renews_times_of_directories() { NAME_CLIENTS } else { 0 };
        for number in 0..name_clients {
            let random = self.random(100 + number as u64);
            let work = move || NameClient::new(self, number, random).run();
            workers.push((format!("names-{number}"), Box::new(work)));
        }
        let users = mounts.iter().flat_map(|mount| [mount; USERS_OF_A_MOUNT]);
        for (number, mount) in users.enumerate() {
            let random = self.random(200 + number as u64);
            let work = move || MountUser::new(self, mount, number, random).run();
            workers.push((format!("mount-{number}"), Box::new(work)));
        }
        let maps = place.keeps_times_of_mappings();
        let work = move || Local::new(self, self.random(300), maps).run();
        workers.push(("programs".to_owned(), Box::new(work)));
        let work = || change_locally(self, &mut self.random(301));
        workers.push(("programs-names".to_owned(), Box::new(work)));
        workers.retain(|(name, _)| takes_part(name));
        workers
    }

    fn random(&self, part: u64) -> Random {
        Random::part(self.seed, part)
    }

    pub(crate) fn goes_on(&self) -> bool {
        !self.ending.load(Ordering::Relaxed)
    }

    pub(crate) fn any_file(&self, random: &mut Random) -> usize {
        random.index(self.files.len())
    }

    /// The long file at which clients write together now.
    pub(crate) fn file_to_meet_at(&self) -> usize {
        if self.started.elapsed().as_secs().is_multiple_of(2) { 1 } else { 2 }
    }

    /// Waits a moment for another client that comes here.
    pub(crate) fn meet(&self) {
        let both = (self.met.fetch_add(1, Ordering::SeqCst) + 1).next_multiple_of(2);
        let came = Instant::now();
        while self.met.load(Ordering::SeqCst) < both && came.elapsed() < MEETING_MAX {
            thread::yield_now();
        }
    }

    fn switch_modes(&self, time: Duration, random: &mut Random) {
        let _ending = EndOnPanic(self);
        let pairs = permitted_modes();
        while self.goes_on() && self.started.elapsed() < time {
            let modes = random.one_of(&pairs);
            self.server.switch(modes);
            self.journal.note_all(format_args!("modes are {modes:?}"));
            thread::sleep(SWITCH_EVERY);
        }
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Notes a step on items of a file.
    pub(crate) fn note(&self, number: usize, items: &Range<usize>, what: &str) {
        self.journal.note(number, self.files[number].versions.bytes(items), format_args!("{what}"));
    }

    /// Ends everything with what is known about wrong bytes.
    pub(crate) fn fail(&self, number: usize, wrong: &Wrong, what: &str, stamps: &str) -> ! {
        let first = !self.ending.swap(true, Ordering::Relaxed);
        let file = &self.files[number];
        let bytes = file.versions.bytes(&(wrong.item..wrong.item + 1));
        let steps = if first { self.journal.around(number, &bytes) } else { String::new() };
        let (seed, name, after) = (self.seed, &file.name, self.started.elapsed());
        panic!(
            "SPILLWAY_TORTURE_SEED={seed}, after {after:?}: {what}: {name}, bytes {bytes:?}: \
             {wrong}\nstamps:\n  {stamps}\nsteps:\n{steps}"
        );
    }

    /// Ends everything with what is known about a wrong name.
    pub(crate) fn fail_name(&self, what: &str, stamps: &str) -> ! {
        self.ending.store(true, Ordering::Relaxed);
        let (seed, after) = (self.seed, self.started.elapsed());
        panic!("SPILLWAY_TORTURE_SEED={seed}, after {after:?}: {what}\nstamps:\n  {stamps}");
    }
}

/// The pairs of modes of which the text, as `direct/auto`, begins with `SPILLWAY_TORTURE_MODES`.
fn permitted_modes() -> Vec<ModePair> {
    let wanted = std::env::var("SPILLWAY_TORTURE_MODES").unwrap_or_default();
    let pairs: Vec<_> = mode_pairs()
        .filter(|(read, write)| format!("{read}/{write}").starts_with(&wanted))
        .collect();
    assert!(!pairs.is_empty(), "SPILLWAY_TORTURE_MODES={wanted} is no pair of modes");
    pairs
}

/// Whether `SPILLWAY_TORTURE_WORKERS`, a list of parts of names, or its absence permits a worker.
fn takes_part(name: &str) -> bool {
    let Ok(list) = std::env::var("SPILLWAY_TORTURE_WORKERS") else { return true };
    list.split(',').any(|part| name.contains(part))
}

/// Ends the work of all when one of them panics.
struct EndOnPanic<'a>(&'a Workload);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.ending.store(true, Ordering::Relaxed);
        }
    }
}
