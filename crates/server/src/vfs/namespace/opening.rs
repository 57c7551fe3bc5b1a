//! Opening the objects that have names in a directory, as the identity of this thread.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{FileType, Mode, ResolveFlags, openat, openat2};

use super::{Opened, unless_descriptors_lack};
use crate::fs::PATH_ONLY;
use crate::inode_cache::Inode;
use crate::vfs::{Attributes, Caller, Found, LiveAttributes, Status, attributes_of};

/// How often, and how long apart, a name is opened whose file has lost its last link. A rename over
/// the name leaves it so until the kernel's log takes the change.
const OPENS_MAX: u32 = 64;
const OPENS_APART: Duration = Duration::from_millis(1);

/// Looks a name up as far as the kernel has it in memory: waits for nothing. Only for a caller who
/// is known to be permitted; the kernel decides on all else. The attributes are the directory's
/// before it. A descriptor without an object may be the last of a removed file, and is to be closed
/// where that may wait for the disk; another one is as long as the object is open.
pub(super) fn find_in_memory(
    caller: &Caller,
    directory: &Inode,
    name: &CStr,
) -> Option<(OwnedFd, Option<(Attributes, Found)>)> {
    let root = directory.root();
    if !root.attributes_in_memory || name == c"." || name == c".." {
        return None;
    }
    let live = directory.live_attributes().ok()?;
    if !directory.is_known_to_search(&caller.identity, &live) {
        return None;
    }
    let attributes = directory.lock.attributes(live);
    let in_memory = ResolveFlags::CACHED;
    let fd = openat2(directory.fd(), name, PATH_ONLY, Mode::empty(), in_memory).ok()?;
    let found = attributes_of(&fd).and_then(|live| identified(directory, name, fd.as_fd(), live));
    Some((fd, found.ok().map(|found| (attributes, found))))
}

pub(super) fn find_child(directory: &Inode, name: &CStr) -> Result<(Found, Opened), Status> {
    let (found, fd) = open_child(directory, name)?;
    Ok((found, Opened::path_only(fd)))
}

pub(super) fn open_child(directory: &Inode, name: &CStr) -> Result<(Found, OwnedFd), Status> {
    if directory.file_type() != FileType::Directory {
        return Err(Status::NotDirectory);
    }
    let root = directory.root();
    let at_root = directory.handle() == &root.handle;
    let stays = name == c"." || (name == c".." && at_root);
    let name = if stays { c"." } else { name };
    let (fd, attributes) = open_linked(directory, name, stays)?;
    let found = identified(directory, name, fd.as_fd(), attributes)?;
    Ok((found, fd))
}

/// The object behind a descriptor that has a name and these attributes; `.` is the directory.
///
/// # Errors
/// `Access` for what is on another file system; as `name_to_handle_at`.
fn identified(
    directory: &Inode,
    name: &CStr,
    fd: BorrowedFd<'_>,
    attributes: LiveAttributes,
) -> Result<Found, Status> {
    let root = directory.root();
    if !root.contains(&attributes) {
        return Err(Status::Access);
    }
    let handle = match name {
        name if name == c"." => *directory.handle(),
        // Not a name to remember the parent by.
        name if name == c".." => root.identify(fd)?,
        name => root.identify_child(directory.handle(), name, fd)?,
    };
    Ok(Found::new(directory, handle, attributes))
}

/// Opens the file that has a name, again while that file has no link left: another file is about to
/// get the name, or the name goes. `Stale` would mean the directory.
///
/// # Errors
/// `Delay` if that lasts; else as `openat` and `statx`.
fn open_linked(
    directory: &Inode,
    name: &CStr,
    is_the_directory: bool,
) -> Result<(OwnedFd, LiveAttributes), Status> {
    for _ in 0..OPENS_MAX {
        let fd = openat(directory.fd(), name, PATH_ONLY, Mode::empty())?;
        match attributes_of(&fd) {
            Ok(attributes) => return Ok((fd, attributes)),
            Err(Status::Stale) if !is_the_directory => std::thread::sleep(OPENS_APART),
            Err(status) => return Err(status),
        }
    }
    Err(Status::Delay)
}

/// A descriptor of the object that has a name, if there is one that can be opened.
///
/// # Errors
/// `NoDescriptor`.
pub(super) fn open_if_there(directory: &Inode, name: &CStr) -> Result<Option<OwnedFd>, Status> {
    Ok(unless_descriptors_lack(open_entry(directory, name))?.ok())
}

pub(super) fn open_entry(directory: &Inode, name: &CStr) -> Result<OwnedFd, Status> {
    Ok(openat(directory.fd(), name, PATH_ONLY, Mode::empty())?)
}
