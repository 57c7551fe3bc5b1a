//! Large directories: the number of calls, and the entries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proto::nfs3::{Attributes, SetAttributes};
use spillway_client::{FileSystem, Inode, MountOptions, OpenFlags, UseReaddirplus};

use crate::fixture::{Fixture, options, root_user};
use crate::peer::within;

const WRITE: OpenFlags = OpenFlags { read: true, write: true, sync: false, direct: false };

/// Some thirty replies.
const ENTRIES: usize = 20_000;
/// Entries that a program takes at once, as `getdents` with a buffer of 32 KiB.
const BUFFER_ENTRIES: usize = 800;

/// Attributes of directories that expire again and again while one is listed.
fn impatient(readdirplus: UseReaddirplus) -> MountOptions {
    let a_moment = Duration::from_millis(20);
    let (dir_attributes_min, dir_attributes_max) = (a_moment, a_moment);
    MountOptions { dir_attributes_min, dir_attributes_max, readdirplus, ..options() }
}

struct LargeDirectory {
    fixture: Fixture,
    path: PathBuf,
}

impl LargeDirectory {
    async fn new() -> Self {
        let fixture = Fixture::new().await;
        let path = fixture.exported("large");
        fs::create_dir(&path).unwrap();
        for nth in 0..ENTRIES {
            File::create(path.join(name(nth))).unwrap();
        }
        Self { fixture, path }
    }

    async fn mount(&self, options: &MountOptions) -> (FileSystem, Arc<Inode>) {
        let (url, user) = (self.fixture.url(), root_user());
        let file_system = FileSystem::mount(&url, &user, options, Arc::default()).await.unwrap();
        let dir = file_system.lookup(&file_system.root(), b"large").await.unwrap();
        (file_system, dir)
    }

    fn calls(&self) -> Calls {
        let figure = |name| self.fixture.figure(name);
        Calls {
            all: figure("readdirs"),
            whole: figure("readdirs") - figure("readdirs_cut_short"),
            from_start: figure("readdirs_from_start"),
        }
    }

    /// How many calls happen while `work` is done.
    async fn calls_of<T>(&self, work: impl Future<Output = T>) -> (T, Calls) {
        let before = self.calls();
        let done = work.await;
        let after = self.calls();
        let calls = Calls {
            all: after.all - before.all,
            whole: after.whole - before.whole,
            from_start: after.from_start - before.from_start,
        };
        (done, calls)
    }
}

/// Numbers of READDIRs and READDIRPLUSes. On a busy machine a listing takes `all`, where on an idle
/// one it takes at least `whole`.
#[derive(Debug, PartialEq, Eq)]
struct Calls {
    all: u64,
    /// Those whose reply did not end early because it took too long.
    whole: u64,
    /// Those from the beginning of a directory.
    from_start: u64,
}

fn name(nth: usize) -> String {
    format!("file{nth:06}")
}

/// Lists like a program that stats `lookups` entries of each buffer, and returns how often
/// each name came.
async fn list(file_system: &FileSystem, dir: &Arc<Inode>, lookups: usize) -> BTreeMap<String, u32> {
    let directory = file_system.open_dir(dir).await.unwrap();
    let mut listed = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let page = directory.entries_after(cookie).await.unwrap();
        for (nth, entry) in page.iter().take(BUFFER_ENTRIES).enumerate() {
            let name = str::from_utf8(entry.name).unwrap();
            *listed.entry(name.to_owned()).or_default() += 1;
            cookie = entry.cookie;
            if nth < lookups && !matches!(entry.name, b"." | b"..") {
                let inode = file_system.lookup(dir, entry.name).await.unwrap();
                assert_eq!(inode.fileid(), entry.fileid);
            }
        }
        if page.is_empty() {
            return listed;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

fn assert_holds_once(listed: &BTreeMap<String, u32>, names: impl IntoIterator<Item = String>) {
    assert!(listed.values().all(|times| *times == 1), "no entry twice");
    for name in names {
        assert!(listed.contains_key(&name), "{name} is missing");
    }
}

/// Does something at once, and again and again on another thread until dropped.
struct Meanwhile {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Meanwhile {
    fn new(mut act: impl FnMut(usize) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        act(0);
        let thread = std::thread::spawn(move || {
            for nth in 1.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                act(nth);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listing_a_changing_directory_makes_no_extra_calls() {
    let large = LargeDirectory::new().await;
    let options = impatient(UseReaddirplus::Never);
    let (file_system, dir) = large.mount(&options).await;

    let (listed, idle) = large.calls_of(list(&file_system, &dir, 0)).await;
    assert_holds_once(&listed, (0..ENTRIES).map(name));
    assert_eq!(idle.from_start, 1);
    let (again, calls) = large.calls_of(list(&file_system, &dir, 0)).await;
    assert_eq!((again, calls.all), (listed, 0), "nothing has changed");

    // Names are added.
    let path = large.path.clone();
    let adding = Meanwhile::new(move |nth| {
        File::create(path.join(format!("new{nth}"))).unwrap();
    });
    let (listed, busy) = large.calls_of(list(&file_system, &dir, 0)).await;
    drop(adding);
    assert_holds_once(&listed, (0..ENTRIES).map(name));
    assert_eq!(busy.from_start, 1);
    let added = listed.len() - ENTRIES;
    let more = 2 + u64::try_from(added / 500).unwrap();
    assert!(busy.whole <= idle.all + more, "{idle:?} and {busy:?}");

    // Names are removed.
    let path = large.path.clone();
    let removing = Meanwhile::new(move |nth| {
        fs::remove_file(path.join(name(nth))).unwrap();
    });
    let (listed, busy) = large.calls_of(list(&file_system, &dir, 0)).await;
    drop(removing);
    let stayed = (0..ENTRIES).map(name).filter(|name| large.path.join(name).exists());
    assert_holds_once(&listed, stayed);
    assert_eq!(busy.from_start, 1);
    assert!(busy.whole <= idle.all + 3, "{idle:?} and {busy:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_readers_of_a_busy_directory_make_hardly_more_calls_than_one() {
    let large = LargeDirectory::new().await;
    let (file_system, dir) = large.mount(&impatient(UseReaddirplus::Never)).await;
    let (_, alone) = large.calls_of(list(&file_system, &dir, 0)).await;
    let path = large.path.clone();
    let adding = Meanwhile::new(move |nth| {
        File::create(path.join(format!("new{nth}"))).unwrap();
    });
    let listers = async {
        let (one, two) = (list(&file_system, &dir, 0), list(&file_system, &dir, 0));
        let (three, four) = (list(&file_system, &dir, 0), list(&file_system, &dir, 0));
        tokio::join!(one, two, three, four)
    };
    let (listed, together) = large.calls_of(listers).await;
    drop(adding);
    for listed in [listed.0, listed.1, listed.2, listed.3] {
        assert_holds_once(&listed, (0..ENTRIES).map(name));
    }
    assert!(together.from_start <= 4, "{together:?}");
    assert!(together.whole <= alone.all + 8, "{alone:?} and {together:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_listing_fetches_the_attributes_that_are_needed() {
    let large = LargeDirectory::new().await;
    let (file_system, dir) = large.mount(&options()).await;
    let others = || large.fixture.figure("calls") - large.fixture.figure("readdirs");
    let before = others();
    let (listed, readdirs) = large.calls_of(list(&file_system, &dir, BUFFER_ENTRIES)).await;
    assert_holds_once(&listed, (0..ENTRIES).map(name));
    let others = others() - before;
    // A sample, and the page fetched ahead by READDIR, from which a few entries are looked up. A
    // sample that is cut short can be too small to learn from: then the next entries are looked up,
    // too.
    let too_small = BUFFER_ENTRIES as u64 * (readdirs.all - readdirs.whole);
    assert!(others <= 50 + too_small, "{others} calls beside {readdirs:?}");
    assert_eq!(readdirs.from_start, 1);

    // Entries without attributes are shorter: their listing takes less than half of the calls.
    let (fresh, dir) = large.mount(&options()).await;
    let (listed, names_only) = large.calls_of(list(&fresh, &dir, 0)).await;
    assert_holds_once(&listed, (0..ENTRIES).map(name));
    assert!(names_only.whole * 2 < readdirs.all, "{names_only:?} and {readdirs:?}");
}

#[tokio::test]
async fn an_older_listing_does_not_undo_own_changes_of_a_dropped_inode() {
    let fixture = Fixture::new().await;
    File::create(fixture.exported("file")).unwrap();
    let options = MountOptions { readdirplus: UseReaddirplus::Always, ..options() };
    let (url, user) = (fixture.url(), root_user());
    let file_system = FileSystem::mount(&url, &user, &options, Arc::default()).await.unwrap();
    let root = file_system.root();
    list(&file_system, &root, BUFFER_ENTRIES).await;
    let inode = file_system.lookup(&root, b"file").await.unwrap();
    let new = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    file_system.set_attributes(&inode, new).await.unwrap();
    let file = file_system.open(&inode, WRITE).await.unwrap();
    file.write_at(0, b"hello").await.unwrap();
    file.close().await.unwrap();
    let dropped = Arc::downgrade(&inode);
    drop(inode);
    let is_dropped = async {
        while dropped.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(is_dropped).await;
    let calls = fixture.figure("calls");
    let again = file_system.lookup(&root, b"file").await.unwrap();
    assert_eq!(fixture.figure("calls"), calls, "it is found in the listing");
    let Attributes { size, mode, .. } = file_system.attributes(&again).await.unwrap();
    assert_eq!((size, mode & 0o777), (5, 0o600));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_changes_are_listed_at_once() {
    let large = LargeDirectory::new().await;
    let (file_system, dir) = large.mount(&options()).await;
    let mut names: BTreeSet<_> = list(&file_system, &dir, 0).await.into_keys().collect();
    for nth in 0..5 {
        let (old, new) = (name(nth * 3000), format!("new{nth}"));
        file_system.remove(&dir, old.as_bytes()).await.unwrap();
        file_system.create(&dir, new.as_bytes(), 0o644, true).await.unwrap();
        assert!(names.remove(&old) && names.insert(new));
        let listed: BTreeSet<_> = list(&file_system, &dir, 0).await.into_keys().collect();
        assert_eq!(listed, names);
    }
}
