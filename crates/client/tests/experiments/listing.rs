//! A large directory, listed with attributes that expire on the way, while nothing happens and
//! while another client adds and removes entries: how many calls it takes, and that each entry that
//! stays comes once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proto::nfs3::Procedure;
use spillway_client::{FileSystem, Inode, MountOptions, UseReaddirplus};
use tokio::task::JoinHandle;

use crate::bed::{Bed, knob, lookup, options};
use crate::tap::Seen;

/// Entries of the directory.
fn entries_of_all() -> usize {
    knob("SPILLWAY_LISTING_ENTRIES", 20_000)
}

/// Long, so that a page is few of them: all names are of this length.
const NAME_BYTES: usize = 100;
/// Entries that a program takes at once.
const BUFFER_ENTRIES: usize = 200;
/// How long the other client waits between changes.
const CHANGE_INTERVAL: Duration = Duration::from_millis(5);
/// How long attributes of directories are believed.
const ATTRIBUTES_BELIEVED: Duration = Duration::from_millis(50);

/// Attributes of directories expire many times while one is listed.
fn impatient() -> MountOptions {
    believing(ATTRIBUTES_BELIEVED, UseReaddirplus::Never)
}

fn believing(attributes: Duration, readdirplus: UseReaddirplus) -> MountOptions {
    let (dir_attributes_min, dir_attributes_max) = (attributes, attributes);
    // Without it few replies hold all that a test lists.
    let is_small = std::env::var_os("SPILLWAY_LISTING_ENTRIES").is_none();
    let rsize = is_small.then_some(64 << 10);
    MountOptions { dir_attributes_min, dir_attributes_max, readdirplus, rsize, ..options() }
}

/// The number in front distinguishes entries.
fn name(number: usize) -> String {
    format!("{number:0>8}{:x<1$}", "", NAME_BYTES - 8)
}

fn number(name: &[u8]) -> Option<usize> {
    (name.len() == NAME_BYTES).then(|| str::from_utf8(&name[..8]).unwrap().parse().unwrap())
}

/// A program that lists.
#[derive(Clone, Copy, Default)]
struct Program {
    /// Pause after each buffer of entries.
    pause: Duration,
    /// Whether it stats every entry, as `ls -l`.
    stats: bool,
}

/// The result of a listing.
struct Listed {
    numbers: Vec<usize>,
    /// Entries of the longest page.
    page_entries_max: usize,
    took: Duration,
}

impl Program {
    /// Slow enough that attributes expire on the way.
    const SLOW: Self = Self { pause: Duration::from_millis(3), stats: false };

    async fn list(self, file_system: &FileSystem, dir: &Arc<Inode>) -> Listed {
        let begun = Instant::now();
        let directory = file_system.open_dir(dir).await.unwrap();
        let (mut numbers, mut cookie, mut page_entries_max) = (Vec::new(), 0, 0);
        loop {
            let page = directory.entries_after(cookie).await.unwrap();
            if page.is_empty() {
                let took = begun.elapsed();
                return Listed { numbers, page_entries_max, took };
            }
            page_entries_max = page_entries_max.max(page.len());
            for entry in page.iter().take(BUFFER_ENTRIES) {
                cookie = entry.cookie;
                numbers.extend(number(entry.name));
                if self.stats && number(entry.name).is_some() {
                    self.stat(file_system, dir, entry.name, entry.fileid).await;
                }
            }
            if !self.pause.is_zero() {
                tokio::time::sleep(self.pause).await;
            }
        }
    }

    async fn stat(self, file_system: &FileSystem, dir: &Arc<Inode>, name: &[u8], fileid: u64) {
        let inode = file_system.lookup(dir, name).await.unwrap();
        let attributes = file_system.attributes(&inode).await.unwrap();
        assert_eq!(attributes.fileid, fileid);
    }
}

impl Listed {
    /// Each entry that was there all the time came once, and no other twice.
    fn assert_exact(&self, stayed: impl Iterator<Item = usize>) {
        let distinct: BTreeSet<_> = self.numbers.iter().copied().collect();
        assert_eq!(distinct.len(), self.numbers.len(), "nothing comes twice");
        for number in stayed {
            assert!(distinct.contains(&number), "entry {number} is missing");
        }
    }

    /// The calls are as many as the pages of the server's size that the entries fill, and at most
    /// 1 % and one more: a server may leave a little of a page free, and need not know that an
    /// entry was the last.
    fn assert_explains(&self, seen: &Seen) {
        assert_eq!(seen.from_start, 1);
        let pages = self.numbers.len().div_ceil(self.page_entries_max);
        let (calls, bound) = (seen.readdirs(), pages + pages / 100 + 1);
        assert!((pages..=bound).contains(&calls), "{calls} calls for {pages} pages");
    }

    fn print(&self, what: &str, listers: usize, seen: &Seen) {
        println!(
            "{what:22} {listers:7} {:8} {:8} {:10} {:7} {:8} {:8.3}",
            self.numbers.len(),
            seen.readdirs(),
            seen.from_start,
            seen.count(Procedure::Lookup),
            seen.count(Procedure::Getattr),
            self.took.as_secs_f64(),
        );
    }
}

const HEAD: &str =
    "                       listers  entries READDIRs from_start LOOKUPs GETATTRs     secs";

/// Another client that changes the directory until it is stopped.
struct Other {
    end: Arc<AtomicBool>,
    task: JoinHandle<usize>,
}

#[derive(Clone, Copy)]
enum Does {
    /// Adds entries whose numbers follow those that are there.
    Add,
    /// Removes entries in no order: the `nth` is [`removed`].
    Remove,
}

impl Other {
    async fn new(bed: &Bed, does: Does, entries: usize) -> Self {
        let file_system = bed.mount_elsewhere().await;
        let dir = lookup(&file_system, "large").await;
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let task = tokio::spawn(async move {
            let mut times = 0;
            while !ended.load(Ordering::Relaxed) && times < entries / 2 {
                match does {
                    Does::Add => {
                        let name = name(entries + times);
                        let made = file_system.create(&dir, name.as_bytes(), 0o644, false).await;
                        made.unwrap();
                    }
                    Does::Remove => {
                        let name = name(removed(times, entries));
                        file_system.remove(&dir, name.as_bytes()).await.unwrap();
                    }
                }
                times += 1;
                tokio::time::sleep(CHANGE_INTERVAL).await;
            }
            times
        });
        Self { end, task }
    }

    /// How many changes it has made.
    async fn ended(self) -> usize {
        self.end.store(true, Ordering::Relaxed);
        let times = self.task.await.unwrap();
        assert!(times > 0, "it had no time");
        times
    }
}

/// The number of the `nth` entry that is removed: a step through them all that no number of entries
/// has a factor in common with, unless it is chosen so.
fn removed(nth: usize, entries: usize) -> usize {
    (nth * 7919 + 17) % entries
}

async fn large(entries: usize) -> Bed {
    let bed = Bed::new().await;
    bed.make_dir("large").await;
    bed.fill("large", (0..entries).map(name)).await;
    bed
}

/// One program lists the directory through a mount of its own.
async fn list(bed: &Bed, dir: &str, options: &MountOptions, program: Program) -> (Listed, Seen) {
    let file_system = bed.mount(options).await;
    let dir = lookup(&file_system, dir).await;
    bed.seen();
    let listed = program.list(&file_system, &dir).await;
    (listed, bed.seen())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_takes_the_calls_that_its_entries_explain_whatever_happens_meanwhile() {
    let entries = entries_of_all();
    let bed = large(entries).await;
    println!("{HEAD}");

    let (listed, idle) = list(&bed, "large", &impatient(), Program::SLOW).await;
    listed.print("idle", 1, &idle);
    listed.assert_exact(0..entries);
    listed.assert_explains(&idle);

    let adding = Other::new(&bed, Does::Add, entries).await;
    let (listed, seen) = list(&bed, "large", &impatient(), Program::SLOW).await;
    let added = adding.ended().await;
    listed.print(&format!("{added} added"), 1, &seen);
    listed.assert_exact(0..entries);
    listed.assert_explains(&seen);
    assert!(listed.numbers.len() <= entries + added);

    let removing = Other::new(&bed, Does::Remove, entries).await;
    let (listed, seen) = list(&bed, "large", &impatient(), Program::SLOW).await;
    let gone: BTreeSet<_> = (0..removing.ended().await).map(|nth| removed(nth, entries)).collect();
    listed.print(&format!("{} removed", gone.len()), 1, &seen);
    listed.assert_exact((0..entries + added).filter(|number| !gone.contains(number)));
    assert_eq!(seen.from_start, 1);
    let explained = idle.readdirs() + added.div_ceil(listed.page_entries_max) + 1;
    assert!(seen.readdirs() <= explained, "{} calls, not {explained}", seen.readdirs());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_linear_in_the_number_of_entries() {
    let entries = entries_of_all();
    let bed = large(entries).await;
    bed.make_dir("tenth").await;
    bed.fill("tenth", (0..entries / 10).map(name)).await;
    println!("{HEAD}");
    for (dir, entries) in [("tenth", entries / 10), ("large", entries)] {
        for readdirplus in [UseReaddirplus::Never, UseReaddirplus::Always] {
            let options = believing(ATTRIBUTES_BELIEVED, readdirplus);
            let (listed, seen) = list(&bed, dir, &options, Program::default()).await;
            listed.print(&format!("{readdirplus:?} PLUS, at once"), 1, &seen);
            listed.assert_exact(0..entries);
            listed.assert_explains(&seen);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_listers_take_few_more_calls_than_one() {
    const LISTERS: usize = 4;
    let entries = entries_of_all();
    let bed = large(entries).await;
    println!("{HEAD}");
    let (alone, of_one) = list(&bed, "large", &impatient(), Program::SLOW).await;
    alone.print("idle", 1, &of_one);

    let file_system = bed.mount(&impatient()).await;
    let dir = lookup(&file_system, "large").await;
    let adding = Other::new(&bed, Does::Add, entries).await;
    bed.seen();
    let listers: Vec<_> = (0..LISTERS)
        .map(|_| {
            let (file_system, dir) = (file_system.clone(), Arc::clone(&dir));
            tokio::spawn(async move { Program::SLOW.list(&file_system, &dir).await })
        })
        .collect();
    let mut all_listed = Vec::new();
    for lister in listers {
        all_listed.push(lister.await.unwrap());
    }
    let seen = bed.seen();
    let added = adding.ended().await;
    for listed in &all_listed {
        listed.print(&format!("{added} added"), LISTERS, &seen);
        listed.assert_exact(0..entries);
    }
    assert!(seen.from_start <= LISTERS, "{}", seen.from_start);
    let explained = added.div_ceil(alone.page_entries_max);
    let calls = seen.readdirs();
    assert!(calls <= of_one.readdirs() + explained + 2 * LISTERS, "{calls}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ls_l_sends_no_getattr_per_entry() {
    let entries = entries_of_all();
    let bed = large(entries).await;
    println!("{HEAD}");
    let ls_l = Program { stats: true, ..Program::SLOW };
    // Entries are statted before attributes expire, also on a busy machine.
    let options = believing(Duration::from_secs(1), UseReaddirplus::Learned);
    let (listed, seen) = list(&bed, "large", &options, ls_l).await;
    listed.print("idle, ls -l", 1, &seen);
    listed.assert_exact(0..entries);
    assert_eq!(seen.from_start, 1);
    assert_few_others(&listed, &seen);

    let adding = Other::new(&bed, Does::Add, entries).await;
    let (listed, seen) = list(&bed, "large", &options, ls_l).await;
    let added = adding.ended().await;
    listed.print(&format!("{added} added, ls -l"), 1, &seen);
    listed.assert_exact(0..entries);
    assert_eq!(seen.from_start, 1);
    assert_few_others(&listed, &seen);
}

/// Besides the listing only the calls that sample whether attributes are needed, and those that
/// revalidate the directory.
fn assert_few_others(listed: &Listed, seen: &Seen) {
    let (others, bound) = (seen.others(), 64 + listed.numbers.len() / 100);
    assert!(others <= bound, "{others} calls beside the listing, where {bound} are enough");
}
