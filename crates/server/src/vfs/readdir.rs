//! READDIR and READDIRPLUS.
//!
//! The cookie of an entry is the kernel's own offset after it, which stays good while the directory
//! changes and over restarts: continuing costs the same everywhere, and nothing is remembered per
//! listing.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io::KernelHandle;
use rustix::fs::{Access, Mode, OFlags, RawDir, SeekFrom, openat};
use rustix::io::Errno;

use super::{Answer, Attributes, Caller, Found, Object, Status, Vfs, attributes_of};
use crate::open_files::OpenFile;

/// Bytes of one `getdents64` call.
const KERNEL_BUFFER_BYTES: usize = 32 * 1024;
/// After this long a reply is sent with what it has: a client on a slow disk gets many short
/// replies instead of a timeout.
const CALL_TIME_MAX: Duration = Duration::from_millis(100);

/// One name in a directory.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryEntry {
    /// Inode number.
    pub(crate) fileid: u64,
    /// The name, at most 255 bytes.
    pub(crate) name: Box<[u8]>,
    /// Where a listing continues after this entry.
    pub(crate) cookie: u64,
    /// For READDIRPLUS: the object, unless it vanished or is another file system's.
    pub(crate) object: Option<(KernelHandle, Attributes)>,
}

/// How much a reply can hold, so that no more is read than is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListingRoom {
    /// Bytes for all of the entries.
    pub(crate) bytes_max: usize,
    /// Bytes for the parts that READDIR has too (RFC 1813 §3.3.17, `dircount`).
    pub(crate) name_bytes_max: usize,
    /// Bytes of an entry besides its name.
    pub(crate) entry_bytes: usize,
    /// Whether entries come with their objects.
    pub(crate) with_objects: bool,
}

/// A part of a directory.
#[derive(Default)]
pub(crate) struct Listing {
    /// The entries, in the kernel's order.
    pub(crate) entries: Vec<DirectoryEntry>,
    /// Nothing comes after them.
    pub(crate) eof: bool,
}

impl Vfs {
    /// READDIR and READDIRPLUS, RFC 1813 §3.3.16 and §3.3.17: the entries after `cookie` (0 for
    /// the first) that there is room for.
    ///
    /// # Errors
    /// `NotDirectory`, `Access`, `BadCookie`, `TooSmall` (not one entry fits), `Stale`, `Io`.
    pub(crate) async fn readdir(
        &self,
        caller: &Caller,
        object: &Object,
        cookie: u64,
        room: ListingRoom,
    ) -> Answer<Option<Attributes>, Listing> {
        let directory = match self.open(object).await {
            Ok(directory) => directory,
            Err(status) => return Answer::refused(status),
        };
        let listed = Arc::clone(&directory);
        let job = move || list(&listed, cookie, room);
        let result = self.in_metadata_lane(caller.identity.clone(), job).await;
        Answer { attributes: self.attributes(&directory).await.ok(), result }
    }
}

/// Lists as the identity of this thread.
fn list(directory: &OpenFile, cookie: u64, room: ListingRoom) -> Result<Listing, Status> {
    if directory.file_type() != rustix::fs::FileType::Directory {
        return Err(Status::NotDirectory);
    }
    // The descriptor may have been opened by another caller.
    io::check_access(directory.fd(), Access::READ_OK)?;
    // A second listing at the same moment reads through a descriptor of its own.
    match directory.stream.try_lock() {
        Ok(mut stream) => {
            let stream = match &mut *stream {
                Some(stream) => stream,
                empty => empty.insert(directory.open_stream()?),
            };
            list_from(directory, stream, cookie, room)
        }
        Err(_) => list_from(directory, &directory.open_stream()?, cookie, room),
    }
}

fn list_from(
    directory: &OpenFile,
    stream: &OwnedFd,
    cookie: u64,
    room: ListingRoom,
) -> Result<Listing, Status> {
    let began = Instant::now();
    match rustix::fs::seek(stream, SeekFrom::Start(cookie)) {
        Ok(_) => {}
        Err(Errno::INVAL | Errno::OVERFLOW) => return Err(Status::BadCookie),
        Err(errno) => return Err(errno.into()),
    }
    let mut buffer = Vec::with_capacity(KERNEL_BUFFER_BYTES);
    let mut names = RawDir::new(stream, buffer.spare_capacity_mut());
    let mut listing = Listing::default();
    let (mut bytes, mut name_bytes) = (0, 0);
    while let Some(entry) = names.next() {
        let entry = entry?;
        let padded = entry.file_name().to_bytes().len().next_multiple_of(4);
        bytes += room.entry_bytes + padded;
        // What READDIR sends of an entry: list mark, fileid, length of the name, cookie.
        name_bytes += 24 + padded;
        let full = bytes > room.bytes_max || name_bytes > room.name_bytes_max;
        if full && listing.entries.is_empty() {
            return Err(Status::TooSmall);
        }
        if full || (!listing.entries.is_empty() && began.elapsed() > CALL_TIME_MAX) {
            return Ok(listing);
        }
        listing.entries.push(describe(directory, stream, &entry, room.with_objects));
    }
    listing.eof = true;
    Ok(listing)
}

fn describe(
    directory: &OpenFile,
    stream: &OwnedFd,
    entry: &rustix::fs::RawDirEntry<'_>,
    with_object: bool,
) -> DirectoryEntry {
    let name = entry.file_name();
    let root = directory.root();
    let leaves_root = name == c".." && *directory.handle() == root.handle;
    // The parent of the root is nobody's business: `..` is the root itself.
    let name_on_disk = if leaves_root { c"." } else { name };
    let found = (with_object || leaves_root)
        .then(|| find(directory, stream.as_fd(), name_on_disk).ok())
        .flatten();
    DirectoryEntry {
        fileid: match &found {
            Some(found) if leaves_root => found.attributes.fileid,
            _ => entry.ino(),
        },
        name: name.to_bytes().into(),
        cookie: entry.next_entry_cookie(),
        object: found.filter(|_| with_object).map(|found| (found.handle, found.attributes)),
    }
}

/// Attributes and handle through one descriptor, so that both are of the same object even if the
/// name changes hands meanwhile.
fn find(directory: &OpenFile, stream: BorrowedFd<'_>, name: &CStr) -> Result<Found, Status> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(stream, name, flags, Mode::empty())?;
    let attributes = attributes_of(&fd)?;
    let root = directory.root();
    if !root.contains(&attributes) {
        return Err(Status::CrossDevice);
    }
    let handle = if name == c"." {
        *directory.handle()
    } else if name == c".." {
        root.identify(fd.as_fd())?
    } else {
        root.identify_child(directory.handle(), name, fd.as_fd())?
    };
    Ok(Found { handle, attributes })
}
