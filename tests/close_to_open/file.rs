//! One file under test: its regions, and who may change it now.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::random::Random;
use crate::versions::{CELLS, UNIT_BYTES, Versions};

const PAGE_UNITS: usize = 4096 / UNIT_BYTES;

/// The kind of a region, which determines the operations that may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Cells, one byte each.
    Cells,
    Plain,
    /// Whole pages that nothing else touches, for mappings, direct I/O and page caches.
    Pages,
    /// The end of the file, which is cut and grows.
    Tail,
}

struct Region {
    items: Range<usize>,
    kind: Kind,
    owner: Mutex<()>,
}

/// Sizes of the regions, in units.
pub(crate) struct Plan {
    pub(crate) plain: usize,
    pub(crate) pages: usize,
    pub(crate) tail: usize,
    /// Bytes by which the plain regions and the tail miss every alignment.
    pub(crate) shift: u64,
    /// Whether the FUSE mounts use it.
    pub(crate) mounted: bool,
}

pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) versions: Versions,
    pub(crate) mounted: bool,
    regions: Vec<Region>,
    /// The region that was written last: readers look there.
    hot: AtomicUsize,
    /// Held shared by changes through the server, exclusively by local ones.
    gate: RwLock<()>,
    /// Odd while a local change is at work.
    local_changes: AtomicU64,
}

/// A region that one thread writes.
pub(crate) struct Owned<'a> {
    pub(crate) items: Range<usize>,
    _owner: MutexGuard<'a, ()>,
}

/// A local change at work.
pub(crate) struct LocalChange<'a> {
    local_changes: &'a AtomicU64,
    _gate: RwLockWriteGuard<'a, ()>,
}

/// Determines which worker may change a file or directory now.
pub(crate) struct Gate<'a> {
    gate: &'a RwLock<()>,
    local_changes: &'a AtomicU64,
}

impl<'a> Gate<'a> {
    pub(crate) fn new(gate: &'a RwLock<()>, local_changes: &'a AtomicU64) -> Self {
        Self { gate, local_changes }
    }

    pub(crate) fn remote(&self) -> RwLockReadGuard<'a, ()> {
        self.gate.read().expect("a panic of a writer ends the test")
    }

    pub(crate) fn local(&self) -> LocalChange<'a> {
        let gate = self.gate.write().expect("a panic of a writer ends the test");
        self.local_changes.fetch_add(1, Ordering::SeqCst);
        LocalChange { local_changes: self.local_changes, _gate: gate }
    }

    /// A number that is the same after an answer as before its call if no local change overlapped
    /// it; `None` while one is at work.
    pub(crate) fn rest(&self) -> Option<u64> {
        let changes = self.local_changes.load(Ordering::SeqCst);
        changes.is_multiple_of(2).then_some(changes)
    }
}

impl Drop for LocalChange<'_> {
    fn drop(&mut self) {
        self.local_changes.fetch_add(1, Ordering::SeqCst);
    }
}

impl File {
    pub(crate) fn new(number: usize, path: PathBuf, plan: &Plan) -> Self {
        let mut regions = vec![Region::new(0..CELLS, Kind::Cells)];
        let mut next = CELLS;
        let mut add = |kind, units: usize| {
            regions.push(Region::new(next..next + units, kind));
            next += units;
        };
        for _ in 0..2 {
            add(Kind::Pages, plan.pages.next_multiple_of(PAGE_UNITS));
        }
        for _ in 0..3 {
            add(Kind::Plain, plan.plain);
        }
        add(Kind::Tail, plan.tail);
        let shifted_from = 2 * plan.pages.next_multiple_of(PAGE_UNITS);
        Self {
            name: format!("file{number}"),
            path,
            versions: Versions::new(number, next - CELLS, shifted_from, plan.shift),
            mounted: plan.mounted,
            regions,
            hot: AtomicUsize::new(0),
            gate: RwLock::new(()),
            local_changes: AtomicU64::new(0),
        }
    }

    /// All data, as the file is before the test begins.
    pub(crate) fn first_content(&self) -> Vec<u8> {
        let mut content = Vec::new();
        for region in &self.regions {
            let at = usize::try_from(self.versions.position(region.items.start)).unwrap();
            content.resize(at, 0);
            content.extend(self.versions.begin_writing(&region.items));
            self.versions.acknowledge(&region.items);
        }
        content
    }

    pub(crate) fn gate(&self) -> Gate<'_> {
        Gate::new(&self.gate, &self.local_changes)
    }

    /// Bytes up to the end of the last region of whole pages.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        let pages = self.regions.iter().rfind(|region| region.kind == Kind::Pages);
        self.versions.bytes(&pages.expect("each file has them").items).end
    }

    /// A region of one of these kinds without a writer.
    pub(crate) fn own(&self, kinds: &[Kind], random: &mut Random) -> Option<Owned<'_>> {
        let fitting = |(_, region): &(usize, &Region)| kinds.contains(&region.kind);
        let fitting: Vec<_> = self.regions.iter().enumerate().filter(fitting).collect();
        let (number, region) = *fitting.get(random.index(fitting.len().max(1)))?;
        let owner = region.owner.try_lock().ok()?;
        self.hot.store(number, Ordering::Relaxed);
        Some(Owned { items: region.items.clone(), _owner: owner })
    }

    /// Where the regions of a kind begin.
    pub(crate) fn first_items(&self, kind: Kind) -> impl Iterator<Item = usize> {
        self.regions.iter().filter(move |region| region.kind == kind).map(|each| each.items.start)
    }

    /// Items to read, of one region, mostly of the one that was written last.
    pub(crate) fn any_items(&self, random: &mut Random) -> Range<usize> {
        let number = if random.percent(70) {
            self.hot.load(Ordering::Relaxed)
        } else {
            random.index(self.regions.len())
        };
        part(&self.regions[number].items, random)
    }
}

impl Region {
    fn new(items: Range<usize>, kind: Kind) -> Self {
        Self { items, kind, owner: Mutex::new(()) }
    }
}

/// Some of a region: all of it, a few items, or any number of them.
pub(crate) fn part(items: &Range<usize>, random: &mut Random) -> Range<usize> {
    let len = match random.index(4) {
        0 => 1,
        1 => items.len(),
        2 => 1 + random.index(items.len().min(32)),
        _ => 1 + random.index(items.len()),
    };
    let start = items.start + random.index(items.len() - len + 1);
    start..start + len
}

/// Whole pages of a region of them.
pub(crate) fn pages(items: &Range<usize>, random: &mut Random) -> Range<usize> {
    let len = PAGE_UNITS * (1 + random.index(items.len() / PAGE_UNITS));
    let pages = (items.len() - len) / PAGE_UNITS;
    let start = items.start + PAGE_UNITS * random.index(pages + 1);
    start..start + len
}
