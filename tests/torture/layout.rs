//! The right to write to a file: it is divided into regions, and a writer owns one at a time.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::oracle::{Oracle, UNIT_BYTES};
use crate::random::Random;

const PAGE_BYTES: u64 = 4096;
/// Where the first unit is aligned, each so many units are.
const PAGE_UNITS: usize = 4096 / UNIT_BYTES;

/// Bytes that are never cut off.
const BODY_BYTES: u64 = 8 << 20;
/// Bytes behind those, in which truncations move the end of the file about.
const TAIL_BYTES: u64 = 2 << 20;

/// A part of a file that has one writer at a time. It begins and ends anywhere, so neighbours share
/// a page, a block and a sector.
struct Region {
    units: Range<usize>,
    owner: Mutex<()>,
}

impl Region {
    fn new(units: Range<usize>) -> Self {
        Self { units, owner: Mutex::new(()) }
    }
}

/// One file: what may be in it, and who may change that.
pub(crate) struct Layout {
    pub(crate) name: String,
    pub(crate) oracle: Oracle,
    shared: Vec<Region>,
    /// For stores through mappings alone, and whole pages: a store into a page that a direct WRITE
    /// is replacing is a second writer of the same bytes, whatever bytes it stores into.
    mapped: Vec<Region>,
    /// Behind the body; their writers also hold `shape`.
    tail: Vec<Region>,
    /// Held for writing by the worker that cuts the file, so that it knows the length.
    shape: RwLock<()>,
    /// The file's length whenever no worker is writing.
    len: AtomicU64,
}

/// A part of a file that the holder may write.
pub(crate) struct Owned<'a> {
    pub(crate) units: Range<usize>,
    layout: &'a Layout,
    _owner: MutexGuard<'a, ()>,
    _shape: Option<RwLockReadGuard<'a, ()>>,
}

/// The right to change the length, with the tail.
pub(crate) struct OwnedShape<'a> {
    layout: &'a Layout,
    _shape: RwLockWriteGuard<'a, ()>,
}

impl Layout {
    /// Divides file number `file` at random.
    pub(crate) fn random(file: u8, random: &mut Random) -> Self {
        // One file in four begins on a boundary, as aligned clients have it.
        let skew = if random.percent(25) { 0 } else { random.index(UNIT_BYTES) };
        let unit = UNIT_BYTES as u64;
        let body = usize::try_from(BODY_BYTES / unit).unwrap();
        let units = body + usize::try_from(TAIL_BYTES / unit).unwrap();
        let oracle = Oracle::new(file, skew, units);
        let (mut shared, mut mapped) = (Vec::new(), Vec::new());
        let mut next = 0;
        while next < body {
            let bytes = Self::random_len(random);
            if random.percent(15) {
                // Bytes between a page boundary and the nearest unit are never written again.
                let start = oracle.position(next).next_multiple_of(PAGE_BYTES);
                let end = (start + bytes).next_multiple_of(PAGE_BYTES);
                if end <= oracle.position(body) {
                    let last = usize::try_from((end - skew as u64) / unit).unwrap();
                    mapped.push(Region::new(oracle.unit_from(start)..last));
                    next = oracle.unit_from(end);
                    continue;
                }
            }
            let end = (next + usize::try_from(bytes / unit).unwrap()).min(body);
            shared.push(Region::new(next..end));
            next = end;
        }
        let mut tail = Vec::new();
        while next < units {
            let len = usize::try_from(Self::random_len(random) / unit).unwrap();
            let end = (next + len).min(units);
            tail.push(Region::new(next..end));
            next = end;
        }
        let len = AtomicU64::new(oracle.position(body));
        let shape = RwLock::new(());
        Self { name: format!("file{file}"), oracle, shared, mapped, tail, shape, len }
    }

    fn random_len(random: &mut Random) -> u64 {
        let unit = UNIT_BYTES as u64;
        match random.index(4) {
            0 => 1536,
            1 => unit * random.within(1..512),
            2 => unit * random.within(1500..6000),
            _ => (1 << 20) + unit * random.within(1..20_000),
        }
    }

    /// The units of the body.
    pub(crate) fn body(&self) -> Range<usize> {
        0..self.tail[0].units.start
    }

    /// The first content of the file, before any other thread sees it: head and body, no tail.
    pub(crate) fn first_content(&self) -> Vec<u8> {
        let mut bytes = self.oracle.head();
        bytes.extend(self.oracle.begin_writing(&self.body()));
        self.oracle.acknowledge(self.body());
        bytes
    }

    /// A region without a writer at the moment, for a WRITE or a `pwrite`.
    pub(crate) fn own_shared(&self, random: &mut Random) -> Option<Owned<'_>> {
        if random.percent(25) {
            let shape = self.shape.try_read().ok()?;
            return self.own(&self.tail, Some(shape), random);
        }
        self.own(&self.shared, None, random)
    }

    /// A region for stores through a mapping.
    pub(crate) fn own_mapped(&self, random: &mut Random) -> Option<Owned<'_>> {
        if self.mapped.is_empty() { None } else { self.own(&self.mapped, None, random) }
    }

    fn own<'a>(
        &'a self,
        regions: &'a [Region],
        shape: Option<RwLockReadGuard<'a, ()>>,
        random: &mut Random,
    ) -> Option<Owned<'a>> {
        let region = &regions[random.index(regions.len())];
        let owner = region.owner.try_lock().ok()?;
        Some(Owned { units: region.units.clone(), layout: self, _owner: owner, _shape: shape })
    }

    /// Waits until no worker writes the tail, and keeps it so.
    pub(crate) fn own_shape(&self) -> OwnedShape<'_> {
        let shape = self.shape.write().expect("a panic of a writer ends the test");
        OwnedShape { layout: self, _shape: shape }
    }
}

impl Owned<'_> {
    /// Up to `bytes` of the region, beginning anywhere in it.
    pub(crate) fn part(&self, bytes: usize, random: &mut Random) -> Range<usize> {
        let len = (bytes / UNIT_BYTES).clamp(1, self.units.len());
        let start = self.units.start + random.index(self.units.len() - len + 1);
        let aligned = start.next_multiple_of(PAGE_UNITS);
        let start =
            if aligned + len <= self.units.end && random.percent(50) { aligned } else { start };
        start..start + len
    }

    /// The region in pieces of up to `bytes`, in order.
    pub(crate) fn pieces(&self, bytes: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (len, end) = ((bytes / UNIT_BYTES).max(1), self.units.end);
        self.units.clone().step_by(len).map(move |start| start..(start + len).min(end))
    }

    /// `units` are written, and reads must show it.
    pub(crate) fn acknowledge(&self, units: Range<usize>) {
        self.layout.len.fetch_max(self.layout.oracle.position(units.end), Ordering::SeqCst);
        self.layout.oracle.acknowledge(units);
    }
}

impl OwnedShape<'_> {
    /// A unit of the tail.
    pub(crate) fn unit(&self, random: &mut Random) -> usize {
        let first = self.layout.body().end;
        let last = self.layout.oracle.unit_from(self.layout.oracle.end());
        if random.percent(10) { first } else { first + random.index(last - first + 1) }
    }

    /// The file's length.
    pub(crate) fn len(&self) -> u64 {
        self.layout.len.load(Ordering::SeqCst)
    }

    pub(crate) fn set_len(&self, len: u64) {
        self.layout.len.store(len, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_do_not_overlap_and_mapped_ones_have_their_pages_alone() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let layout = Layout::random(0, &mut random);
            let all = layout.shared.iter().chain(&layout.mapped).chain(&layout.tail);
            let mut all: Vec<_> = all.map(|region| region.units.clone()).collect();
            all.sort_by_key(|units| units.start);
            assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start), "seed {seed}");
            let pages = |units: &Range<usize>| {
                let (start, end) =
                    (layout.oracle.position(units.start), layout.oracle.position(units.end));
                start / PAGE_BYTES..end.div_ceil(PAGE_BYTES)
            };
            for region in &layout.mapped {
                let own = pages(&region.units);
                let alone = |units: &Range<usize>| {
                    *units == region.units
                        || pages(units).end <= own.start
                        || own.end <= pages(units).start
                };
                assert!(all.iter().all(alone), "seed {seed}");
            }
            let neighbours = all.windows(2).filter(|pair| {
                let boundary = layout.oracle.position(pair[1].start);
                pair[0].end == pair[1].start && !boundary.is_multiple_of(PAGE_BYTES)
            });
            assert!(neighbours.count() > 3, "seed {seed}: few neighbours share a page");
        }
    }
}
