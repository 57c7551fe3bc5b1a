//! Generations of inodes that neither the kernel nor a birth time distinguishes.
//!
//! A few file systems have neither handles nor birth times (overlayfs over ext4 with inodes of 128
//! bytes, ramfs, 9p). An inode number alone names another file once it is used again, so the server
//! adds a random generation. It is the same for as long as the inode is surely the same: while the
//! server has it open, for then the number cannot be used again; and if its change time is that of
//! the last look, when it was older than the coarsest clock of a file system. In all other cases
//! there is a new generation, and handles with the old one are stale.
//!
//! `FS_IOC_GETVERSION` is of no use: the file systems that know it have handles.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;

use crate::fs::{LiveAttributes, Timestamp};
use crate::random::random_u64;

/// Major and minor number of a device.
type Device = (u32, u32);

/// Inodes remembered for a file system, about 100 bytes each. As many as places of an export.
const INODES_MAX: usize = 1_000_000;
/// The age from which a change time is not that of a later inode: file systems count in steps of at
/// most 2 s (FAT), and the rest is margin.
const SETTLED_AFTER: Duration = Duration::from_secs(3);
/// Entries that one search for a victim examines.
const VICTIM_SEARCH_MAX: usize = 64;

/// The generations of one file system.
#[derive(Default)]
pub(crate) struct Generations(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// By the device that the object shows, which differs between the layers of an overlay, and the
    /// inode number.
    inodes: IndexMap<(Device, u64), Seen>,
    /// Where the search for the next victim starts.
    hand: usize,
}

/// An inode as last seen.
struct Seen {
    generation: u64,
    changed: Timestamp,
    /// No inode that is made later has this change time.
    is_settled: bool,
    /// How often the server has it open.
    open: u32,
}

impl Generations {
    /// The generation of an inode that the caller has open. `now` is from before the attributes
    /// were read.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub(crate) fn of(&self, attributes: &LiveAttributes, now: SystemTime) -> std::io::Result<u64> {
        let mut table = self.lock();
        if let Some(seen) = table.inodes.get(&number(attributes))
            && (seen.open > 0 || (seen.is_settled && seen.changed == attributes.ctime))
        {
            return Ok(seen.generation);
        }
        let seen = Seen::new(random_u64()?, attributes, now);
        let generation = seen.generation;
        table.insert(attributes, seen);
        Ok(generation)
    }

    /// Notes that the server keeps the inode open until [`Self::note_closed`].
    pub(crate) fn note_open(&self, attributes: &LiveAttributes, generation: u64) {
        let mut table = self.lock();
        if let Some(seen) = table.find(attributes, generation) {
            seen.open += 1;
        }
    }

    /// Notes that the server is about to close the inode, with its last attributes. `now` is from
    /// before they were read.
    pub(crate) fn note_closed(
        &self,
        attributes: &LiveAttributes,
        generation: u64,
        now: SystemTime,
    ) {
        let mut table = self.lock();
        let Some(seen) = table.find(attributes, generation) else { return };
        *seen =
            Seen { open: seen.open.saturating_sub(1), ..Seen::new(generation, attributes, now) };
        if attributes.nlink == 0 && seen.open == 0 {
            table.inodes.swap_remove(&number(attributes));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The entry of an inode, unless it has another generation now.
    fn find(&mut self, attributes: &LiveAttributes, generation: u64) -> Option<&mut Seen> {
        let seen = self.inodes.get_mut(&number(attributes));
        seen.filter(|seen| seen.generation == generation)
    }

    /// Puts an entry in the place of an earlier one of its number, or of any that is not open. With
    /// no place it is not remembered, and its handle is stale once it is closed.
    fn insert(&mut self, attributes: &LiveAttributes, seen: Seen) {
        let number = number(attributes);
        if self.inodes.len() >= INODES_MAX && !self.inodes.contains_key(&number) {
            let places = (0..VICTIM_SEARCH_MAX).map(|step| (self.hand + step) % self.inodes.len());
            let Some(victim) = { places }.find(|place| self.inodes[*place].open == 0) else {
                return;
            };
            self.inodes.swap_remove_index(victim);
            self.hand = victim + 1;
        }
        self.inodes.insert(number, seen);
    }
}

impl Seen {
    fn new(generation: u64, attributes: &LiveAttributes, now: SystemTime) -> Self {
        let changed = attributes.ctime;
        let since = u64::try_from(changed.seconds).ok().map(Duration::from_secs);
        let at = since.and_then(|since| UNIX_EPOCH.checked_add(since + Duration::from_secs(1)));
        let age = at.and_then(|at| now.duration_since(at).ok());
        let is_settled = age.is_some_and(|age| age >= SETTLED_AFTER);
        Self { generation, changed, is_settled, open: 0 }
    }
}

fn number(attributes: &LiveAttributes) -> (Device, u64) {
    (attributes.device, attributes.fileid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::attributes_of;

    fn inode(fileid: u64, changed: i64, nlink: u32) -> LiveAttributes {
        let attributes = attributes_of(std::fs::File::open("/proc/self/exe").unwrap()).unwrap();
        let ctime = Timestamp { seconds: changed, nanoseconds: 0 };
        LiveAttributes { fileid, ctime, nlink, ..attributes }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_number_that_is_used_again_has_another_generation() {
        let generations = Generations::default();
        let first = generations.of(&inode(1, 100, 1), at(200)).unwrap();
        assert_eq!(generations.of(&inode(1, 100, 1), at(300)).unwrap(), first, "unchanged");
        let second = generations.of(&inode(1, 300, 1), at(400)).unwrap();
        assert_ne!(second, first, "it may have been made anew");
        assert_ne!(generations.of(&inode(2, 300, 1), at(400)).unwrap(), second);
    }

    #[test]
    fn a_change_time_of_just_now_is_no_evidence() {
        let generations = Generations::default();
        let first = generations.of(&inode(1, 100, 1), at(103)).unwrap();
        let second = generations.of(&inode(1, 100, 1), at(104)).unwrap();
        assert_ne!(second, first, "it may have been removed and made again in the same second");
        assert_eq!(generations.of(&inode(1, 100, 1), at(105)).unwrap(), second);
    }

    #[test]
    fn an_open_inode_keeps_its_generation_over_changes() {
        let generations = Generations::default();
        let first = generations.of(&inode(1, 100, 1), at(100)).unwrap();
        generations.note_open(&inode(1, 100, 1), first);
        generations.note_open(&inode(1, 100, 1), first);
        assert_eq!(generations.of(&inode(1, 200, 1), at(200)).unwrap(), first);
        generations.note_closed(&inode(1, 200, 1), first, at(200));
        assert_eq!(generations.of(&inode(1, 300, 1), at(300)).unwrap(), first, "open once more");
        generations.note_closed(&inode(1, 300, 1), first, at(400));
        assert_eq!(generations.of(&inode(1, 300, 1), at(500)).unwrap(), first, "as it was closed");
        assert_ne!(generations.of(&inode(1, 450, 1), at(500)).unwrap(), first);
    }

    #[test]
    fn a_removed_inode_is_forgotten_when_it_is_closed() {
        let generations = Generations::default();
        let first = generations.of(&inode(1, 100, 1), at(200)).unwrap();
        generations.note_open(&inode(1, 100, 1), first);
        generations.note_closed(&inode(1, 100, 0), first, at(300));
        assert_ne!(generations.of(&inode(1, 100, 1), at(300)).unwrap(), first);
        assert_eq!(generations.lock().inodes.len(), 1);
    }
}
