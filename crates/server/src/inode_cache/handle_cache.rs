//! Kernel handles of inodes that were listed before.
//!
//! READDIRPLUS shows attributes and handle of each name. The attributes must be read each time; a
//! handle never changes, and reading it costs the kernel as much as the attributes.
//!
//! A remembered handle is the right one because an inode number is used again, but two inodes of
//! one number differ in birth time, if the first was a second old while it still lived
//! ([`Timestamp::is_settled`]).
//! Only such inodes are remembered. Should the clock be set back to the nanosecond at which an
//! inode of the same number was born, the handle is one that the kernel refuses as stale, because
//! the generation of the inode is in it; and a handle that was refused is forgotten.
//!
//! The table is set-associative: an inode can be in one of [`WAYS`] slots, and when they are taken
//! it takes the place of another. Nothing is allocated for an inode, and the whole has a bound:
//! [`BYTES_MAX`] for all exports, of which a server that lists nothing allocates nothing.

mod by_name;

use std::num::NonZeroU8;
use std::sync::{Mutex, MutexGuard, PoisonError};

use io::KernelHandle;

use crate::export::ExportRoot;
use crate::fs::Timestamp;
use crate::memory_plan::{CACHED_HANDLE_BYTES, CACHED_HANDLES_MAX};

/// Locks that the table is spread over, each with memory of its own.
const SHARDS: usize = 64;
/// Sets of a shard.
const SETS: usize = CACHED_HANDLES_MAX / SHARDS / WAYS;
/// Slots of a set.
const WAYS: usize = 8;
/// Inodes with neighbouring numbers that have neighbouring sets of one shard. File systems number
/// the files of a directory mostly in sequence, and a listing then walks through memory.
const RUN_INODES: u64 = 64;
/// The longest handle remembered, that of btrfs. ext4 has 8 bytes, XFS 12.
const SHORT_BYTES_MAX: usize = 20;
const _: () = assert!(
    SHARDS * SETS * WAYS == CACHED_HANDLES_MAX && size_of::<Option<Slot>>() == CACHED_HANDLE_BYTES,
    "a table in full use takes the memory that is planned"
);

/// An inode number of one export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InodeNumber {
    /// The number that the export's root has alone in the life of the server.
    root: u64,
    /// The number on its file system.
    fileid: u64,
}

impl InodeNumber {
    fn new(root: &ExportRoot, fileid: u64) -> Self {
        Self { root: root.serial(), fileid }
    }
}

/// When an inode was made, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BirthTime(i64);

impl BirthTime {
    /// The birth time in a form that distinguishes inodes; `None` for a whole second, which may
    /// come from a file system with that resolution, and for an implausible one.
    fn new(time: Timestamp) -> Option<Self> {
        if time.nanoseconds == 0 {
            return None;
        }
        let nanoseconds = time.seconds.checked_mul(1_000_000_000)?;
        Some(Self(nanoseconds.checked_add(time.nanoseconds.into())?))
    }
}

/// The table of handles, for all exports of a server.
pub(crate) struct HandleCache {
    shards: [Mutex<Shard>; SHARDS],
}

impl HandleCache {
    /// An empty table, without memory yet.
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// The handle of the inode that had this number when it was remembered. It is the handle of the
    /// one that has the number now if that has the same birth time.
    fn find(&self, inode: InodeNumber) -> Option<(BirthTime, KernelHandle)> {
        let place = Place::of(inode);
        let mut shard = self.lock(place);
        let slot = shard.set(place).iter().flatten().find(|slot| slot.inode == inode)?;
        Some((slot.birth, slot.handle.whole()?))
    }

    /// Remembers the handle of an inode whose birth time is settled, instead of an earlier one of
    /// its number. A handle that is longer than local file systems have is left out.
    fn remember(&self, inode: InodeNumber, birth: BirthTime, handle: &KernelHandle) {
        let Some(handle) = ShortHandle::new(handle) else { return };
        let place = Place::of(inode);
        let mut shard = self.lock(place);
        *shard.slot_for(inode, place) = Some(Slot { inode, birth, handle });
    }

    /// Forgets a handle that the kernel does not open any more.
    fn forget(&self, inode: InodeNumber, handle: &KernelHandle) {
        let place = Place::of(inode);
        let mut shard = self.lock(place);
        for slot in shard.set(place) {
            let is_it = |slot: Slot| slot.inode == inode && slot.handle.whole() == Some(*handle);
            slot.take_if(|slot| is_it(*slot));
        }
    }

    fn lock(&self, place: Place) -> MutexGuard<'_, Shard> {
        self.shards[place.shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where in the table an inode belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    shard: usize,
    set: usize,
}

impl Place {
    fn of(inode: InodeNumber) -> Self {
        // Two multiplications by an odd number without pattern, and the upper half folded in
        // between, spread runs evenly.
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let run = (inode.fileid / RUN_INODES) ^ inode.root;
        let mixed = run.wrapping_mul(ODD);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(ODD);
        let shard = (mixed >> 32) % SHARDS as u64;
        let set = ((mixed >> 40) + inode.fileid % RUN_INODES) % SETS as u64;
        let index = |remainder| usize::try_from(remainder).expect("less than the table has");
        Self { shard: index(shard), set: index(set) }
    }
}

#[derive(Default)]
struct Shard {
    /// Set after set; empty until the first inode is remembered.
    slots: Vec<Option<Slot>>,
    /// The slot that is given up next, in whichever set is full. Counting over all sets makes it a
    /// different one each time: a listing that is a little too long for its sets, and begins anew
    /// at its end, finds most of its inodes, where giving up the oldest would leave it none.
    hand: usize,
}

impl Shard {
    /// The slots of a set, none while the shard has no memory.
    fn set(&mut self, place: Place) -> &mut [Option<Slot>] {
        self.slots.chunks_exact_mut(WAYS).nth(place.set).unwrap_or_default()
    }

    /// The slot that an inode is to have: its own, or an empty one, or another's.
    fn slot_for(&mut self, inode: InodeNumber, place: Place) -> &mut Option<Slot> {
        if self.slots.is_empty() {
            self.slots = vec![None; SETS * WAYS];
        }
        let hand = self.hand;
        let set = self.set(place);
        let own = set.iter().position(|slot| slot.is_some_and(|slot| slot.inode == inode));
        let way = own.or_else(|| set.iter().position(Option::is_none)).unwrap_or(hand);
        self.hand = (hand + 1) % WAYS;
        &mut self.set(place)[way]
    }
}

#[derive(Clone, Copy)]
struct Slot {
    inode: InodeNumber,
    birth: BirthTime,
    handle: ShortHandle,
}

/// A kernel handle in as many bytes as local file systems need.
#[derive(Clone, Copy)]
struct ShortHandle {
    kind: u8,
    /// Not zero, which leaves a value for the empty slot.
    len: NonZeroU8,
    bytes: [u8; SHORT_BYTES_MAX],
}

impl ShortHandle {
    fn new(handle: &KernelHandle) -> Option<Self> {
        let kind = u8::try_from(handle.kind()).ok()?;
        let len = u8::try_from(handle.bytes().len()).ok().and_then(NonZeroU8::new)?;
        let mut bytes = [0; SHORT_BYTES_MAX];
        bytes.get_mut(..handle.bytes().len())?.copy_from_slice(handle.bytes());
        Some(Self { kind, len, bytes })
    }

    fn whole(&self) -> Option<KernelHandle> {
        KernelHandle::from_parts(self.kind.into(), &self.bytes[..usize::from(self.len.get())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::sync::LazyLock;

    const BIRTH: BirthTime = BirthTime(1_700_000_000_123_456_789);

    fn inode(fileid: u64) -> InodeNumber {
        InodeNumber { root: 7, fileid }
    }

    fn handle(kind: i32, seed: u64, len: usize) -> KernelHandle {
        let bytes: Vec<u8> = seed.to_ne_bytes().into_iter().cycle().take(len).collect();
        KernelHandle::from_parts(kind, &bytes).unwrap()
    }

    fn time(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp { seconds, nanoseconds }
    }

    #[test]
    fn ambiguous_birth_times_are_none() {
        let table = [
            (time(1_000, 0), false),
            (time(1_000, 1), true),
            (time(0, 999_999_999), true),
            (time(i64::MAX, 1), false),
            (time(i64::MIN, 1), false),
            // The last second of what 64 bits count, in the year 2262.
            (time(9_223_372_036, 854_775_807), true),
            (time(9_223_372_036, 854_775_808), false),
        ];
        for (time, some) in table {
            assert_eq!(BirthTime::new(time).is_some(), some, "{time:?}");
        }
        assert_ne!(BirthTime::new(time(1, 2)), BirthTime::new(time(2, 1)));
    }

    #[test]
    fn only_short_handles_are_remembered() {
        let table =
            [(1, 8, true), (0x81, 12, true), (0x4d, 20, true), (1, 21, false), (-1, 20, false)];
        for (kind, len, kept) in table {
            let (known, handle) = (HandleCache::new(), handle(kind, 99, len));
            known.remember(inode(1), BIRTH, &handle);
            let found = known.find(inode(1));
            assert_eq!(found, kept.then_some((BIRTH, handle)), "kind {kind}, {len} bytes");
        }
    }

    #[test]
    fn a_later_inode_takes_the_place_of_the_earlier_one() {
        let known = HandleCache::new();
        let (first, second) = (handle(1, 1, 8), handle(1, 2, 8));
        let later = BirthTime(BIRTH.0 + 1);
        known.remember(inode(5), BIRTH, &first);
        known.remember(inode(5), later, &second);
        assert_eq!(known.find(inode(5)), Some((later, second)));
        known.forget(inode(5), &first);
        assert_eq!(known.find(inode(5)), Some((later, second)), "that was an earlier handle");
        known.forget(inode(5), &second);
        assert_eq!(known.find(inode(5)), None);
        assert_eq!(known.find(InodeNumber { root: 8, fileid: 5 }), None, "another export");
    }

    #[test]
    fn memory_comes_with_the_first_inode_and_stays_within_its_bound() {
        let known = HandleCache::new();
        let bytes_max = CACHED_HANDLES_MAX * CACHED_HANDLE_BYTES;
        let bytes = |known: &HandleCache| {
            let slots = known.shards.iter().map(|shard| shard.lock().unwrap().slots.capacity());
            slots.sum::<usize>() * size_of::<Option<Slot>>()
        };
        known.forget(inode(1), &handle(1, 1, 8));
        assert_eq!((known.find(inode(1)), bytes(&known)), (None, 0));
        known.remember(inode(1), BIRTH, &handle(1, 1, 8));
        assert_eq!(bytes(&known), bytes_max / SHARDS);
        for fileid in 0..500_000 {
            known.remember(inode(fileid), BIRTH, &handle(1, fileid, 8));
        }
        assert_eq!(bytes(&known), bytes_max);
    }

    /// How many of these inodes a second listing finds.
    fn found_again(fileids: impl Iterator<Item = u64> + Clone) -> usize {
        let known = HandleCache::new();
        let list = || {
            let mut found = 0;
            for fileid in fileids.clone() {
                match known.find(inode(fileid)) {
                    Some(_) => found += 1,
                    None => known.remember(inode(fileid), BIRTH, &handle(1, fileid, 8)),
                }
            }
            found
        };
        assert_eq!(list(), 0);
        list()
    }

    #[test]
    fn a_listing_of_100_000_finds_nearly_all_the_next_time() {
        let in_sequence = found_again(12..100_012);
        let in_chunks = found_again((0..100_000).map(|i| i / 64 * 4096 + i % 64));
        let scattered = found_again((0..100_000).map(|i| i * 8192 + 11));
        let long = found_again(0..300_000);
        assert!(in_sequence > 95_000, "{in_sequence}");
        assert!(in_chunks > 95_000, "{in_chunks}");
        assert!(scattered > 95_000, "{scattered}");
        assert!(long > 30_000, "more than the table holds, and still of use: {long}");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Remember(u64, u64),
        Forget(u64, u64),
    }

    /// Inode numbers that all belong in one set, three times as many as it holds.
    static CROWD: LazyLock<Vec<u64>> = LazyLock::new(|| {
        let place = Place::of(inode(0));
        (0..).filter(|fileid| Place::of(inode(*fileid)) == place).take(3 * WAYS).collect()
    });

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let fileid = prop::sample::select(CROWD.clone());
        let step = (fileid, 1..4u64, prop::bool::weighted(0.8)).prop_map(|(fileid, seed, new)| {
            if new { Step::Remember(fileid, seed) } else { Step::Forget(fileid, seed) }
        });
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// A search finds the handle that was remembered last of that number, or none: never an
        /// earlier handle, never one of another number, and nothing after it was forgotten.
        #[test]
        fn finds_the_last_or_nothing(steps in steps()) {
            let known = HandleCache::new();
            let mut last = HashMap::new();
            for step in steps {
                match step {
                    Step::Remember(fileid, seed) => {
                        let birth = BirthTime(i64::try_from(seed).unwrap());
                        let handle = handle(1, (fileid << 8) | seed, 8);
                        known.remember(inode(fileid), birth, &handle);
                        last.insert(fileid, (birth, handle));
                        prop_assert_eq!(known.find(inode(fileid)), Some((birth, handle)));
                    }
                    Step::Forget(fileid, seed) => {
                        let handle = handle(1, (fileid << 8) | seed, 8);
                        known.forget(inode(fileid), &handle);
                        if last.get(&fileid).is_some_and(|(_, last)| *last == handle) {
                            last.remove(&fileid);
                        }
                    }
                }
                let found = CROWD.iter().filter_map(|fileid| {
                    known.find(inode(*fileid)).map(|found| (fileid, found))
                });
                let found: Vec<_> = found.collect();
                prop_assert!(found.len() <= WAYS);
                for (fileid, found) in found {
                    prop_assert_eq!(Some(&found), last.get(fileid));
                }
            }
        }
    }
}
