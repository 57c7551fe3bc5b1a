//! The names under which objects were last met, for servers that may not open handles.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// A directory that a walk has yet to read.
struct Unread {
    parent: Arc<OwnedFd>,
    name: CString,
    handle: KernelHandle,
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

    /// Walks the tree below `root`, once in the life of the server: enough to find every handle from
    /// before the restart, and not a tool to keep the disk busy with old handles. A walk that misses
    /// objects [without evidence](is_no_evidence) is made again the next time. `identify` returns the
    /// handle of an object that belongs to the export.
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
            if self.lock().len() >= PLACES_MAX {
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
                    self.remember(known, handle, name);
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

    fn lock(&self) -> MutexGuard<'_, HashMap<KernelHandle, Place>> {
        self.by_handle.lock().unwrap_or_else(PoisonError::into_inner)
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
