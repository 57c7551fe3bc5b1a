//! The names under which objects were last met, for servers that may not open handles.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use io::KernelHandle;
use rustix::fs::{Mode, OFlags, RawDir, openat};

use crate::fs::{LiveAttributes, PATH_ONLY, Status, attributes_of};

/// How deep a directory may lie below its export before it counts as outside of it. Longer than
/// any path that PATH_MAX (4,096 bytes) allows.
pub(super) const DEPTH_MAX: usize = 2048;
/// Objects remembered by path when handles cannot be opened; about 150 bytes each.
const PLACES_MAX: usize = 1_000_000;
/// Bytes of names that one system call of a walk reads.
const WALK_BUFFER_BYTES: usize = 32 * 1024;

/// Where each object was last met, for servers that may not open handles.
#[derive(Default)]
pub(super) struct Places {
    by_handle: Mutex<HashMap<KernelHandle, Place>>,
    /// Held over the walk, so that those who come meanwhile find what it finds.
    walked: Mutex<bool>,
}

struct Place {
    parent: KernelHandle,
    name: Box<CStr>,
}

impl Places {
    /// Remembers an object met as `name` in `parent`.
    pub(super) fn remember(&self, handle: KernelHandle, parent: KernelHandle, name: &CStr) {
        let mut by_handle = self.lock();
        if by_handle.len() >= PLACES_MAX && !by_handle.contains_key(&handle) {
            return;
        }
        by_handle.insert(handle, Place { parent, name: name.into() });
    }

    /// The path from `root` to `handle`; `None` when a part of it is not known.
    pub(super) fn path(&self, handle: &KernelHandle, root: &KernelHandle) -> Option<CString> {
        let by_handle = self.lock();
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = handle;
        while at != root {
            let place = by_handle.get(at)?;
            names.push(place.name.to_bytes());
            if names.len() > DEPTH_MAX {
                return None;
            }
            at = &place.parent;
        }
        names.reverse();
        CString::new(names.join(&b'/')).ok()
    }

    /// Walks the tree below `directory`, once in the life of the server: enough to find every handle
    /// from before the restart, and not a tool to keep the disk busy with made-up handles. `identify`
    /// returns the handle of an object that belongs to the export.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub(super) fn walk_once(
        &self,
        directory: BorrowedFd<'_>,
        handle: KernelHandle,
        identify: impl Fn(BorrowedFd<'_>, &LiveAttributes) -> Option<KernelHandle>,
    ) -> Result<(), Status> {
        let mut walked = self.walked.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *walked, true) {
            return Ok(());
        }
        let start = openat(directory, c".", directory_flags(), Mode::empty())?;
        let mut unread = vec![(start, handle)];
        while let Some((directory, handle)) = unread.pop() {
            self.walk_directory(&directory, &handle, &identify, &mut unread);
            if self.lock().len() >= PLACES_MAX {
                break;
            }
        }
        Ok(())
    }

    fn walk_directory(
        &self,
        directory: &OwnedFd,
        handle: &KernelHandle,
        identify: impl Fn(BorrowedFd<'_>, &LiveAttributes) -> Option<KernelHandle>,
        unread: &mut Vec<(OwnedFd, KernelHandle)>,
    ) {
        let mut buffer = Vec::with_capacity(WALK_BUFFER_BYTES);
        let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let Ok(child) = openat(directory, name, PATH_ONLY, Mode::empty()) else { continue };
            let Ok(attributes) = attributes_of(&child) else { continue };
            let Some(known) = identify(child.as_fd(), &attributes) else { continue };
            self.remember(known, *handle, name);
            if attributes.is_directory()
                && let Ok(opened) = openat(&child, c".", directory_flags(), Mode::empty())
            {
                unread.push((opened, known));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KernelHandle, Place>> {
        self.by_handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}
