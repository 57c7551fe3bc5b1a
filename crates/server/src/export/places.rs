//! The names under which objects were last met, for servers that may not open handles.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;
use indexmap::map::Entry;
use io::KernelHandle;
use rustix::fs::{Mode, OFlags, RawDir, openat};

use crate::fs::{LiveAttributes, PATH_ONLY, Status, attributes_of};

/// How deep a directory may lie below its export before it counts as outside of it. Longer than
/// any path that PATH_MAX (4,096 bytes) allows; a tree made or renamed by handles can be deeper.
pub(super) const DEPTH_MAX: usize = 2048;
/// Objects remembered by path when handles cannot be opened; about 150 bytes each, 250 with an
/// earlier name.
const PLACES_MAX: usize = 1_000_000;
/// Entries that one search for a victim examines.
const VICTIM_SEARCH_MAX: usize = 1024;
/// Bytes of names that one system call of a walk reads.
const WALK_BUFFER_BYTES: usize = 32 * 1024;

/// Where each object was last met, for servers that may not open handles.
#[derive(Default)]
pub(super) struct Places {
    table: Mutex<Table>,
    /// Held over the walk, so that those who come meanwhile find what it finds.
    walked: Mutex<bool>,
}

/// Once it is full, an object that is met takes the place of one that has not been used for long,
/// is not open, and is the directory of none that is remembered.
#[derive(Default)]
struct Table {
    by_handle: IndexMap<KernelHandle, Place>,
    /// Where the search for the next victim starts.
    hand: usize,
}

struct Place {
    at: Name,
    /// The name that it was met under before. Good if the object has several, and wrong if another
    /// program has moved it.
    earlier: Option<Box<Name>>,
    /// How many of those remembered are in it.
    children: u32,
    /// How often the server has it open.
    open: u32,
    /// Met again, opened or closed since the last search for a victim passed it.
    is_used: bool,
}

#[derive(PartialEq, Eq)]
struct Name {
    parent: KernelHandle,
    name: Box<CStr>,
}

/// A directory that a walk has yet to read.
struct Unread {
    parent: Arc<OwnedFd>,
    name: CString,
    handle: KernelHandle,
}

impl Places {
    /// Remembers an object met as `name` in `parent`.
    pub(super) fn remember(&self, handle: KernelHandle, parent: KernelHandle, name: &CStr) {
        self.lock().remember(handle, Name { parent, name: name.into() });
    }

    /// Remembers an object that was renamed, by directories and names.
    pub(super) fn note_renamed(
        &self,
        handle: KernelHandle,
        from: (KernelHandle, &CStr),
        to: (KernelHandle, &CStr),
    ) {
        let name = |(parent, name): (KernelHandle, &CStr)| Name { parent, name: name.into() };
        let (mut table, from) = (self.lock(), name(from));
        let place = table.by_handle.get_mut(&handle).filter(|place| place.at == from);
        let earlier = place.map(|place| place.earlier.take());
        table.remember(handle, name(to));
        if let (Some(earlier), Some(place)) = (earlier, table.by_handle.get_mut(&handle)) {
            place.earlier = earlier;
        }
    }

    /// Forgets an object that has lost its last name.
    pub(super) fn forget(&self, handle: &KernelHandle) {
        let mut table = self.lock();
        if let Some(place) = table.by_handle.swap_remove(handle) {
            table.leave(&place.at.parent);
        }
    }

    /// Forgets a name of an object that has others.
    pub(super) fn forget_name(&self, handle: &KernelHandle, parent: KernelHandle, name: &CStr) {
        let mut table = self.lock();
        let Some(place) = table.by_handle.get_mut(handle) else { return };
        let gone = Name { parent, name: name.into() };
        if place.earlier.as_deref() == Some(&gone) {
            place.earlier = None;
        } else if place.at == gone
            && let Some(earlier) = place.earlier.take()
        {
            let parent = earlier.parent;
            place.at = *earlier;
            table.enter(&parent);
            table.leave(&gone.parent);
        }
    }

    /// Notes that the server keeps an object open until [`Self::note_closed`].
    pub(super) fn note_open(&self, handle: &KernelHandle) {
        if let Some(place) = self.lock().by_handle.get_mut(handle) {
            place.open += 1;
        }
    }

    /// Notes that the server is about to close an object.
    pub(super) fn note_closed(&self, handle: &KernelHandle) {
        if let Some(place) = self.lock().by_handle.get_mut(handle) {
            place.open = place.open.saturating_sub(1);
            place.is_used = true;
        }
    }

    /// The path from `root` to `handle`; `None` when a part of it is not known.
    pub(super) fn path(&self, handle: &KernelHandle, root: &KernelHandle) -> Option<CString> {
        let table = self.lock();
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = handle;
        while at != root {
            let place = table.by_handle.get(at)?;
            names.push(place.at.name.to_bytes());
            if names.len() > DEPTH_MAX {
                return None;
            }
            at = &place.at.parent;
        }
        names.reverse();
        CString::new(names.join(&b'/')).ok()
    }

    /// Walks the tree below `root`, once in the life of the server: enough to find every handle
    /// from before the restart, and not a tool to keep the disk busy with old handles. A walk that
    /// misses objects [without evidence](is_no_evidence) is made again the next time. `identify`
    /// returns the handle of an object that belongs to the export.
    ///
    /// # Errors
    /// Why the last object that was missed so was; all others are known.
    pub(super) fn walk_once(
        &self,
        root: BorrowedFd<'_>,
        handle: KernelHandle,
        identify: impl Fn(BorrowedFd<'_>, &LiveAttributes) -> Result<Option<KernelHandle>, Status>,
    ) -> Result<(), Status> {
        let mut walked = self.walked.lock().unwrap_or_else(PoisonError::into_inner);
        if *walked {
            return Ok(());
        }
        let mut missed = Ok(());
        let root = openat(root, c".", directory_flags(), Mode::empty())?;
        // The last directory first: descriptors are open only of those on the way to it.
        let mut unread = vec![Unread { parent: Arc::new(root), name: c".".into(), handle }];
        while let Some(next) = unread.pop() {
            if let Err(status) = self.walk_directory(next, &identify, &mut unread)
                && is_no_evidence(status)
            {
                missed = Err(status);
            }
            if self.lock().by_handle.len() >= PLACES_MAX {
                break;
            }
        }
        *walked = missed.is_ok();
        missed
    }

    /// Remembers the entries of a directory, and adds its directories to `unread`.
    ///
    /// # Errors
    /// The directory cannot be read; or why the last entry that was missed
    /// [without evidence](is_no_evidence) was.
    fn walk_directory(
        &self,
        Unread { parent, name, handle }: Unread,
        identify: impl Fn(BorrowedFd<'_>, &LiveAttributes) -> Result<Option<KernelHandle>, Status>,
        unread: &mut Vec<Unread>,
    ) -> Result<(), Status> {
        let directory = Arc::new(openat(&parent, name, directory_flags(), Mode::empty())?);
        drop(parent);
        let find = |name: &CStr| {
            let child = openat(&directory, name, PATH_ONLY, Mode::empty())?;
            let attributes = attributes_of(&child)?;
            let known = identify(child.as_fd(), &attributes)?;
            Ok(known.map(|known| (known, attributes.is_directory())))
        };
        let mut missed = Ok(());
        let mut buffer = Vec::with_capacity(WALK_BUFFER_BYTES);
        let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            match find(name) {
                Ok(Some((known, is_directory))) => {
                    let mut table = self.lock();
                    // The walk evicts nothing: objects that clients have met stay.
                    if table.has_room_for(&known, PLACES_MAX) {
                        table.insert(known, Name { parent: handle, name: name.into() });
                    }
                    drop(table);
                    if is_directory {
                        let parent = Arc::clone(&directory);
                        unread.push(Unread { parent, name: name.into(), handle: known });
                    }
                }
                Err(status) if is_no_evidence(status) => missed = Err(status),
                Ok(None) | Err(_) => {}
            }
        }
        missed
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn has_room_for(&self, handle: &KernelHandle, len_max: usize) -> bool {
        self.by_handle.len() < len_max || self.by_handle.contains_key(handle)
    }

    fn remember(&mut self, handle: KernelHandle, at: Name) {
        if self.has_room_for(&handle, PLACES_MAX) || self.evict() {
            self.insert(handle, at);
        }
    }

    fn insert(&mut self, handle: KernelHandle, at: Name) {
        let parent = at.parent;
        match self.by_handle.entry(handle) {
            Entry::Vacant(vacant) => {
                vacant.insert(Place { at, earlier: None, children: 0, open: 0, is_used: false });
            }
            Entry::Occupied(mut occupied) => {
                let place = occupied.get_mut();
                place.is_used = true;
                let old_parent = place.at.parent;
                if place.at != at {
                    place.earlier = Some(Box::new(std::mem::replace(&mut place.at, at)));
                }
                self.leave(&old_parent);
            }
        }
        self.enter(&parent);
    }

    /// An object is in `parent`.
    fn enter(&mut self, parent: &KernelHandle) {
        if let Some(directory) = self.by_handle.get_mut(parent) {
            directory.children += 1;
        }
    }

    /// An object is no more in `parent`.
    fn leave(&mut self, parent: &KernelHandle) {
        if let Some(directory) = self.by_handle.get_mut(parent) {
            directory.children = directory.children.saturating_sub(1);
        }
    }

    /// Makes room for one: removes the first from the hand on that was not used since the hand last
    /// passed it, or else one of those that were. Returns whether there was any to remove.
    fn evict(&mut self) -> bool {
        let mut victim = None;
        for _ in 0..VICTIM_SEARCH_MAX.min(self.by_handle.len()) {
            self.hand = (self.hand + 1) % self.by_handle.len();
            let place = &mut self.by_handle[self.hand];
            if place.open > 0 || place.children > 0 {
                continue;
            }
            victim = Some(self.hand);
            if !std::mem::take(&mut place.is_used) {
                break;
            }
        }
        let removed = victim.and_then(|victim| self.by_handle.swap_remove_index(victim));
        if let Some((_, place)) = &removed {
            self.leave(&place.at.parent);
        }
        removed.is_some()
    }
}

/// Whether an object that could not be opened may be there all the same: the disk failed, or the
/// server is short of something for now.
pub(super) fn is_no_evidence(status: Status) -> bool {
    status.is_fault() || matches!(status, Status::Delay | Status::NoDescriptor)
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN_MAX: usize = 8;
    const ROOT: u32 = 0;

    fn handle(number: u32) -> KernelHandle {
        KernelHandle::from_parts(1, &number.to_be_bytes()).unwrap()
    }

    /// Whether there was room for it.
    fn meet(places: &Places, number: u32, parent: u32) -> bool {
        let mut table = places.lock();
        let has_room = table.has_room_for(&handle(number), LEN_MAX) || table.evict();
        if has_room {
            table.insert(handle(number), Name { parent: handle(parent), name: c"name".into() });
        }
        assert!(table.by_handle.len() <= LEN_MAX);
        has_room
    }

    fn is_known(places: &Places, number: u32) -> bool {
        places.path(&handle(number), &handle(ROOT)).is_some()
    }

    #[test]
    fn a_full_table_keeps_what_is_used_and_the_directories_above_it() {
        let places = Places::default();
        let [directory, inner, met_again, open] = [1, 2, 3, 4];
        for (number, parent) in [(directory, ROOT), (inner, directory), (open, inner)] {
            assert!(meet(&places, number, parent));
        }
        places.note_open(&handle(open));
        for number in 10..100 {
            assert!(meet(&places, met_again, directory));
            assert!(meet(&places, number, ROOT));
            for known in [number, met_again, open] {
                assert!(is_known(&places, known), "{known} after {number}");
            }
        }
        places.note_closed(&handle(open));
        (100..200).for_each(|number| assert!(meet(&places, number, ROOT)));
        assert!(!is_known(&places, open) && !is_known(&places, directory));
    }

    #[test]
    fn a_table_of_open_objects_takes_no_other() {
        let places = Places::default();
        for number in 1..=8 {
            assert!(meet(&places, number, ROOT));
            places.note_open(&handle(number));
        }
        assert!(!meet(&places, 9, ROOT));
        assert!(meet(&places, 1, 2), "one that is known may move");
        places.note_closed(&handle(2));
        assert!(!meet(&places, 9, ROOT), "1 is in it");
        places.note_closed(&handle(3));
        assert!(meet(&places, 9, ROOT));
        assert!(is_known(&places, 1) && !is_known(&places, 3));
    }

    #[test]
    fn an_object_that_loses_a_name_is_found_under_the_one_before() {
        let (places, root) = (Places::default(), handle(ROOT));
        for (number, parent, name) in [(1, 0, c"d"), (2, 0, c"a"), (2, 1, c"b")] {
            places.remember(handle(number), handle(parent), name);
        }
        let path = || places.path(&handle(2), &root).unwrap();
        let children = || places.lock().by_handle[&handle(1)].children;
        assert_eq!((path().as_c_str(), children()), (c"d/b", 1));
        places.forget_name(&handle(2), handle(1), c"another");
        assert_eq!(path().as_c_str(), c"d/b");
        places.forget_name(&handle(2), handle(1), c"b");
        assert_eq!((path().as_c_str(), children()), (c"a", 0));
        places.forget_name(&handle(2), root, c"a");
        assert_eq!(path().as_c_str(), c"a", "no other is known");
        places.remember(handle(2), handle(1), c"b");
        places.forget_name(&handle(2), root, c"a");
        places.forget_name(&handle(2), handle(1), c"b");
        assert_eq!((path().as_c_str(), children()), (c"d/b", 1), "no other is known");
        places.remember(handle(2), root, c"a");
        places.note_renamed(handle(2), (root, c"a"), (root, c"c"));
        assert_eq!((path().as_c_str(), children()), (c"c", 0));
        places.forget_name(&handle(2), root, c"c");
        assert_eq!((path().as_c_str(), children()), (c"d/b", 1), "the name before is c's too");
    }

    #[test]
    fn an_object_that_is_gone_makes_room() {
        let places = Places::default();
        assert!(meet(&places, 1, ROOT));
        for number in 2..=100 {
            assert!(meet(&places, number, 1));
            places.forget(&handle(number));
        }
        assert_eq!(places.lock().by_handle[0].children, 0);
        places.forget(&handle(1));
        assert_eq!(places.lock().by_handle.len(), 0);
    }
}
