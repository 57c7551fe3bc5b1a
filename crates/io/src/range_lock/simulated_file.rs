//! A file with a page cache above a disk, to show what happens where nothing keeps cached and
//! direct use of a page apart, and that the lock is enough to.
//!
//! Kernels hide most of these interleavings behind the inode's lock. Here every step is one at
//! which others may run, and only the page itself is locked, as a kernel does. Blocks hold stamps
//! in the place of bytes, and a journal of the writes determines which stamps may be found.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::param::page_size;

use super::{RangeGuard, RangeLock, RangeUse};
use crate::byte_range::ByteRange;
use crate::sync::{Mutex, thread};

/// The mechanism that excludes uses of a page from each other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Exclusion {
    RangeLock,
    /// To see that the journal notices.
    Nothing,
}

/// Where the workers of [`exercise`] read and write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Placement {
    /// Each in blocks of its own, which share pages with its neighbours'.
    Neighbours,
    Anywhere,
}

/// A stamp where it must not be: what was written over it, or in its place, is lost.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Loss {
    block: usize,
    found: Stamp,
}

pub(super) struct SimulatedFile {
    lock: Option<Arc<RangeLock>>,
    cache: [Mutex<Option<CachedPage>>; PAGES],
    disk: [Mutex<Page>; PAGES],
    journal: Journal,
}

/// Names a write; [`BLANK`] is what a block holds before the first.
pub(super) type Stamp = u64;

type Page = [Stamp; BLOCKS_PER_PAGE];

#[derive(Clone, Copy)]
struct CachedPage {
    blocks: Page,
    dirty: bool,
}

impl SimulatedFile {
    pub(super) fn new(exclusion: Exclusion) -> Self {
        Self {
            lock: match exclusion {
                Exclusion::RangeLock => Some(RangeLock::new()),
                Exclusion::Nothing => None,
            },
            cache: Default::default(),
            disk: Default::default(),
            journal: Journal::default(),
        }
    }

    pub(super) fn write(&self, range_use: RangeUse, blocks: Range<usize>, stamp: Stamp) {
        self.journal.write(blocks.clone(), stamp, || {
            let _guard = self.hold(&blocks, range_use);
            match range_use {
                RangeUse::Cached | RangeUse::CachedWrite => self.write_cached(blocks, stamp),
                RangeUse::Direct => self.write_direct(blocks, |written| written.fill(stamp)),
                RangeUse::InMemory | RangeUse::Exclusive => {
                    unreachable!("nothing is written under it")
                }
            }
        });
    }

    /// A read-modify-write, which needs exclusive use: to write less than the blocks of a device,
    /// it reads the blocks, changes them, and writes them whole.
    pub(super) fn merge_and_write(&self, range_use: RangeUse, blocks: Range<usize>, stamp: Stamp) {
        self.journal.write(blocks.clone(), stamp, || {
            let device_blocks = blocks.start / BLOCKS_PER_DEVICE_BLOCK * BLOCKS_PER_DEVICE_BLOCK
                ..blocks.end.next_multiple_of(BLOCKS_PER_DEVICE_BLOCK);
            let _guard = self.hold(&device_blocks, range_use);
            let mut merged = self.read_direct(device_blocks.clone());
            merged[blocks.start - device_blocks.start..][..blocks.len()].fill(stamp);
            let mut merged = merged.into_iter();
            self.write_direct(device_blocks, |written| {
                written.fill_with(|| merged.next().expect("as many as were read"));
            });
        });
    }

    /// Reads, and notes what it should not have found.
    pub(super) fn read(&self, range_use: RangeUse, blocks: Range<usize>) {
        self.journal.read(blocks.clone(), || {
            let _guard = self.hold(&blocks, range_use);
            match range_use {
                RangeUse::Cached | RangeUse::InMemory => self.read_cached(blocks),
                RangeUse::Direct => self.read_direct(blocks),
                RangeUse::CachedWrite | RangeUse::Exclusive => {
                    unreachable!("nothing is read under it")
                }
            }
        });
    }

    /// Write-back by the kernel, which does not take our lock.
    pub(super) fn write_back_all(&self) {
        (0..PAGES).for_each(|page| self.write_back(page));
    }

    /// All that was read, and is on the disk in the end, without being what was written.
    pub(super) fn losses(self) -> Vec<Loss> {
        self.write_back_all();
        self.journal.read(0..BLOCKS, || self.read_direct(0..BLOCKS));
        self.journal.losses.into_inner().expect("no worker panicked")
    }

    fn hold(&self, blocks: &Range<usize>, range_use: RangeUse) -> Option<RangeGuard> {
        let block_bytes = page_size() / BLOCKS_PER_PAGE;
        let [start, end] = [blocks.start, blocks.end].map(|block| (block * block_bytes) as u64);
        Some(self.lock.as_ref()?.blocking_lock(ByteRange::between(start, end), range_use))
    }

    /// Page by page: fetch what is not cached, change it, and leave it to be written back.
    fn write_cached(&self, blocks: Range<usize>, stamp: Stamp) {
        for (page, within) in pages_of(blocks) {
            let mut cached = self.cache[page].lock().unwrap();
            let mut content = match *cached {
                Some(cached) => cached.blocks,
                None => self.fetch(page),
            };
            content[within].fill(stamp);
            *cached = Some(CachedPage { blocks: content, dirty: true });
        }
    }

    /// Drops the cached pages, then writes to the disk: a step each.
    fn write_direct(&self, blocks: Range<usize>, mut fill: impl FnMut(&mut [Stamp])) {
        for (page, _) in pages_of(blocks.clone()) {
            self.write_back(page);
            *self.cache[page].lock().unwrap() = None;
        }
        for (page, within) in pages_of(blocks) {
            step();
            fill(&mut self.disk[page].lock().unwrap()[within]);
        }
    }

    fn read_cached(&self, blocks: Range<usize>) -> Vec<Stamp> {
        let mut stamps = Vec::new();
        for (page, within) in pages_of(blocks) {
            let mut cached = self.cache[page].lock().unwrap();
            let content = cached.get_or_insert_with(|| {
                let blocks = self.fetch(page);
                CachedPage { blocks, dirty: false }
            });
            stamps.extend_from_slice(&content.blocks[within]);
        }
        stamps
    }

    fn read_direct(&self, blocks: Range<usize>) -> Vec<Stamp> {
        let mut stamps = Vec::new();
        for (page, within) in pages_of(blocks) {
            self.write_back(page);
            stamps.extend_from_slice(&self.fetch(page)[within]);
        }
        stamps
    }

    fn fetch(&self, page: usize) -> Page {
        step();
        let content = *self.disk[page].lock().unwrap();
        step();
        content
    }

    /// Writes the whole page, whatever part of it was changed: the cache knows no more.
    fn write_back(&self, page: usize) {
        let mut cached = self.cache[page].lock().unwrap();
        if let Some(cached) = cached.as_mut().filter(|cached| cached.dirty) {
            step();
            *self.disk[page].lock().unwrap() = cached.blocks;
            cached.dirty = false;
        }
        step();
    }
}

/// The writes, by a clock of its own, and the stamps found that should not have been there.
///
/// It only observes, so its locks are the plain ones: the checker need not try their orders.
#[derive(Default)]
struct Journal {
    clock: AtomicU64,
    writes: std::sync::Mutex<Vec<Write>>,
    losses: std::sync::Mutex<Vec<Loss>>,
}

struct Write {
    blocks: Range<usize>,
    stamp: Stamp,
    began: u64,
    /// `None` while it is in flight.
    ended: Option<u64>,
}

impl Journal {
    fn write(&self, blocks: Range<usize>, stamp: Stamp, perform: impl FnOnce()) {
        let began = self.tick();
        self.writes.lock().unwrap().push(Write { blocks, stamp, began, ended: None });
        perform();
        let ended = self.tick();
        let mut writes = self.writes.lock().unwrap();
        let write = writes.iter_mut().find(|write| write.stamp == stamp);
        write.expect("noted when it began").ended = Some(ended);
    }

    fn read(&self, blocks: Range<usize>, perform: impl FnOnce() -> Vec<Stamp>) {
        let began = self.tick();
        let found = perform();
        let writes = self.writes.lock().unwrap();
        for (block, found) in blocks.zip(found) {
            if !may_be_found(&writes, block, found, began) {
                self.losses.lock().unwrap().push(Loss { block, found });
            }
        }
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }
}

/// Whether a read that began then may find this stamp: not if another write of the block began
/// after this one had ended, and ended before the read began.
fn may_be_found(writes: &[Write], block: usize, stamp: Stamp, read_began: u64) -> bool {
    let of_block = || writes.iter().filter(|write| write.blocks.contains(&block));
    let mut over = of_block().filter(|write| write.ended.is_some_and(|ended| ended < read_began));
    if stamp == BLANK {
        return over.next().is_none();
    }
    let write = of_block().find(|write| write.stamp == stamp);
    write.is_some_and(|write| match write.ended {
        Some(ended) => over.all(|other| other.began < ended),
        None => true,
    })
}

/// Many workers that read and write at random, beside a kernel that writes back. Returns the lost
/// writes.
pub(super) fn exercise(
    exclusion: Exclusion,
    placement: Placement,
    random: &mut Random,
) -> Vec<Loss> {
    let file = SimulatedFile::new(exclusion);
    let plans = (0..WORKERS).map(|worker| plan(placement, worker, random)).collect::<Vec<_>>();
    thread::scope(|scope| {
        for plan in &plans {
            let file = &file;
            scope.spawn(move || plan.iter().for_each(|step| step.perform(file)));
        }
        scope.spawn(|| file.write_back_all());
    });
    file.losses()
}

/// Two writes of one and a half device blocks each, side by side, so that they share the block in
/// the middle; `write` is given the file, the blocks and the stamp.
pub(super) fn two_adjacent_writes(
    exclusion: Exclusion,
    write: impl Fn(&SimulatedFile, Range<usize>, Stamp) + Sync,
) -> Vec<Loss> {
    let file = SimulatedFile::new(exclusion);
    thread::scope(|scope| {
        scope.spawn(|| write(&file, 0..3, 1));
        write(&file, 3..6, 2);
    });
    file.losses()
}

struct Access {
    range_use: RangeUse,
    blocks: Range<usize>,
    /// `None` reads.
    stamp: Option<Stamp>,
}

impl Access {
    fn perform(&self, file: &SimulatedFile) {
        let blocks = self.blocks.clone();
        match self.stamp {
            Some(stamp) => file.write(self.range_use, blocks, stamp),
            None => file.read(self.range_use, blocks),
        }
    }
}

fn plan(placement: Placement, worker: usize, random: &mut Random) -> Vec<Access> {
    let share = BLOCKS / WORKERS;
    let room = match placement {
        Placement::Neighbours => worker * share..(worker + 1) * share,
        Placement::Anywhere => 0..BLOCKS,
    };
    let access = |number: usize| {
        let start = room.start + random.below(room.len());
        let len = 1 + random.below(BLOCKS_PER_PAGE.min(room.end - start));
        let range_use = [RangeUse::Cached, RangeUse::Direct][random.below(2)];
        let stamp = (1 + worker * ACCESSES + number) as Stamp;
        let writes = random.below(4) > 0;
        Access { range_use, blocks: start..start + len, stamp: writes.then_some(stamp) }
    };
    (0..ACCESSES).map(access).collect()
}

/// xorshift64: any sequence without a pattern will do.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}

/// The parts of a range of blocks by page: its number, and the blocks within it.
fn pages_of(blocks: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let pages = blocks.start / BLOCKS_PER_PAGE..blocks.end.div_ceil(BLOCKS_PER_PAGE);
    pages.map(move |page| {
        let first = page * BLOCKS_PER_PAGE;
        let start = blocks.start.max(first) - first;
        let end = blocks.end.min(first + BLOCKS_PER_PAGE) - first;
        (page, start..end)
    })
}

/// Where others may run.
fn step() {
    thread::yield_now();
}

const BLANK: Stamp = 0;
const PAGES: usize = 2;
/// Of 512 bytes where a page has 4096.
const BLOCKS_PER_PAGE: usize = 8;
const BLOCKS_PER_DEVICE_BLOCK: usize = 2;
const BLOCKS: usize = PAGES * BLOCKS_PER_PAGE;
const WORKERS: usize = 3;
const ACCESSES: usize = 3;
