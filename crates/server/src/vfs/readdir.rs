//! READDIR and READDIRPLUS.
//!
//! The cookie of an entry is the kernel's own offset after it, which stays good while the directory
//! changes and over restarts: continuing costs the same everywhere, and nothing has to be remembered
//! of a listing. What the kernel read ahead is (`directory_stream`), to save reading it again.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Access, Mode, openat};
use tokio::sync::Semaphore;

use super::{Answer, Attributes, Caller, Found, Object, Status, Vfs, attributes_of};
use crate::directory_stream::{DirectoryStream, KernelEntry};
use crate::export_root::PATH_ONLY;
use crate::known_handles::KnownHandles;
use crate::open_files::OpenFile;

/// After this long a reply is sent with what it has: a client on a slow disk gets many short
/// replies instead of a timeout.
const CALL_TIME_MAX: Duration = Duration::from_millis(100);

/// One name in a directory.
pub(crate) struct DirectoryEntry {
    /// Inode number.
    pub(crate) fileid: u64,
    /// The name, at most 255 bytes.
    pub(crate) name: Box<CStr>,
    /// Where a listing continues after this entry.
    pub(crate) cookie: u64,
    /// For READDIRPLUS: the object, unless it vanished or is another file system's.
    pub(crate) object: Option<Found>,
}

/// How much a reply can hold, so that exactly what is sent is read.
#[derive(Clone, Copy)]
pub(crate) struct ListingRoom {
    /// Bytes for all of the entries.
    pub(crate) bytes_max: usize,
    /// Bytes for the parts that READDIR has too (RFC 1813 §3.3.17, `dircount`).
    pub(crate) name_bytes_max: usize,
    /// Bytes of an entry in the reply, from its name and its object.
    pub(crate) entry_bytes: fn(&CStr, Option<&Found>) -> usize,
    /// Bytes of an entry that count towards `name_bytes_max`.
    pub(crate) name_bytes: fn(&CStr) -> usize,
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
        let places = Arc::clone(&self.listings);
        let known = Arc::clone(&self.known_handles);
        let job = move || list(&listed, cookie, room, &places, &known);
        let result = self.in_metadata_lane(caller.identity.clone(), job).await;
        Answer { attributes: self.attributes(&directory).await.ok(), result }
    }
}

/// Lists as the identity of this thread.
fn list(
    directory: &OpenFile,
    cookie: u64,
    room: ListingRoom,
    places: &Arc<Semaphore>,
    known: &KnownHandles,
) -> Result<Listing, Status> {
    if directory.file_type() != rustix::fs::FileType::Directory {
        return Err(Status::NotDirectory);
    }
    // The descriptor may have been opened by another caller.
    io::check_access(directory.fd(), Access::READ_OK)?;
    let changed = attributes_of(directory.fd())?.ctime;
    let mut stream = match directory.streams().take(cookie, changed) {
        Some(stream) => stream,
        None => DirectoryStream::at(directory.open_stream()?, cookie, changed)?,
    };
    let listing = list_from(directory, &mut stream, room, known)?;
    directory.streams().put_back(stream, places);
    Ok(listing)
}

fn list_from(
    directory: &OpenFile,
    stream: &mut DirectoryStream,
    room: ListingRoom,
    known: &KnownHandles,
) -> Result<Listing, Status> {
    let began = Instant::now();
    let mut listing = Listing::default();
    let (mut bytes, mut name_bytes) = (0, 0);
    while let Some((next, fd)) = stream.peek()? {
        let (fileid, object) = describe(directory, fd, next, room.with_objects.then_some(known));
        bytes += (room.entry_bytes)(&next.name, object.as_ref());
        name_bytes += (room.name_bytes)(&next.name);
        let full = bytes > room.bytes_max || name_bytes > room.name_bytes_max;
        if full && listing.entries.is_empty() {
            return Err(Status::TooSmall);
        }
        if full || (!listing.entries.is_empty() && began.elapsed() > CALL_TIME_MAX) {
            return Ok(listing);
        }
        let KernelEntry { name, cookie, .. } = stream.next().expect("just seen");
        listing.entries.push(DirectoryEntry { fileid, name, cookie, object });
    }
    listing.eof = true;
    Ok(listing)
}

/// The inode number to show for a name, and its object if that is wanted: with `known`, the handles
/// that need not be asked for.
fn describe(
    directory: &OpenFile,
    fd: BorrowedFd<'_>,
    entry: &KernelEntry,
    known: Option<&KnownHandles>,
) -> (u64, Option<Found>) {
    // The parent of the root is nobody's business: `..` is the root itself.
    if *entry.name == *c".." && *directory.handle() == directory.root().handle {
        let root = find(directory, fd, c".").ok();
        let fileid = root.as_ref().map_or(entry.fileid, |root| root.attributes.fileid);
        return (fileid, root.filter(|_| known.is_some()));
    }
    let object = known.and_then(|known| {
        let by_name = directory.root().find_by_name(fd, &entry.name, entry.fileid, known);
        by_name.or_else(|| find(directory, fd, &entry.name).ok())
    });
    (entry.fileid, object)
}

/// Attributes and handle of a name, both from one descriptor: of the same object even if the name
/// changes hands meanwhile.
fn find(directory: &OpenFile, stream: BorrowedFd<'_>, name: &CStr) -> Result<Found, Status> {
    let root = directory.root();
    let fd = openat(stream, name, PATH_ONLY, Mode::empty())?;
    let attributes = attributes_of(&fd)?;
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
