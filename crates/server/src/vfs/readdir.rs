//! READDIR and READDIRPLUS.
//!
//! The cookie of an entry is the kernel's own offset after it, which stays good while the directory
//! changes and over restarts: continuing costs the same at every position, and a listing needs no
//! state. Names read ahead are kept (`directory_stream`), to save reading them again.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Access, FileType, Mode, openat};

use super::{Answer, Attributes, Caller, Found, Object, Status, Timestamp, Vfs, attributes_of};
use crate::counters::Counter;
use crate::fs::{PATH_ONLY, escaped};
use crate::inode_cache::{DirectoryStream, HandleCache, Inode, KernelEntry};

/// After this long a reply is sent with what it has: a client on a slow disk gets many short
/// replies instead of a timeout.
const CALL_TIME_MAX: Duration = Duration::from_millis(100);

/// One name in a directory.
pub(crate) struct DirectoryEntry<'a> {
    /// Inode number.
    pub(crate) fileid: u64,
    /// The type as the directory lists it; `Unknown` where it does not.
    pub(crate) file_type: FileType,
    /// The name, at most 255 bytes.
    pub(crate) name: &'a CStr,
    /// Where a listing continues after this entry.
    pub(crate) cookie: u64,
    /// The object, if it is wanted, or why there is none: it vanished, is another file system's, or
    /// the caller may not search the directory.
    pub(crate) object: Option<Result<Found, Status>>,
}

/// Takes an entry of a listing, on the thread that lists.
pub(crate) type Push<P> = fn(&mut P, &DirectoryEntry<'_>) -> Pushed;

/// The outcome of adding an entry to a listing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// The reply has it.
    Taken,
    /// The listing does not show it: the version has no such entry, or the client may not see it.
    Skipped,
    /// There is no room for it: the listing ends, and the next call begins with that entry.
    Full,
}

/// A part of a directory.
pub(crate) struct Listing<P> {
    /// Has taken the entries, in the kernel's order.
    pub(crate) page: P,
    /// Nothing comes after them.
    pub(crate) eof: bool,
}

impl Vfs {
    /// READDIR and READDIRPLUS, RFC 1813 §3.3.16 and §3.3.17: the entries after `cookie` (0 for
    /// the first), as many as `push` takes into `page`.
    ///
    /// # Errors
    /// `NotDirectory`, `Access`, `BadCookie`, `TooSmall` (not one entry fits), `Stale`, `Io`.
    pub(crate) async fn readdir<P: Send + 'static>(
        &self,
        caller: &Caller,
        object: &Object,
        cookie: u64,
        objects: Objects,
        page: P,
        push: Push<P>,
    ) -> Answer<Option<Attributes>, Listing<P>> {
        count_listing(object, cookie);
        let directory = match self.hold(object).await {
            Ok(directory) => directory,
            Err(status) => return Answer::refused(status),
        };
        // Before the names are read: a change that comes between makes them too old, and never
        // newer than the names.
        let live = match self.live_attributes(&directory).await {
            Ok(live) => live,
            Err(status) => return Answer::refused(status),
        };
        let attributes = directory.lock.attributes(live);
        let is_settled = !directory.lock.may_hide(&live);
        let state = DirectoryState { shown: attributes.ctime, is_settled };
        let places = Arc::clone(&self.listings);
        let known = Arc::clone(&self.handle_cache);
        let page = Mutex::new(Some(page));
        let job = move || {
            let mut stream = open_listing(&directory, state, cookie)?;
            // An attempt that got here has left entries in it, and cannot be repeated.
            let page = page.lock().unwrap_or_else(PoisonError::into_inner).take();
            let mut page = page.ok_or(Status::NoDescriptor)?;
            let push = |entry: &DirectoryEntry<'_>| push(&mut page, entry);
            let eof = list_from(&directory, &mut stream, (objects, &known), push)?;
            directory.streams()?.put_back(stream, &places);
            Ok(Listing { page, eof })
        };
        let device = object.root().device();
        let result = self.open_in_metadata_lane(device, &caller.identity, job).await;
        Answer { attributes: Some(attributes), result }
    }
}

/// Counts listings, and those that begin at the beginning.
fn count_listing(directory: &Object, cookie: u64) {
    let counters = &directory.root().counters;
    counters.add(Counter::Readdirs, 1);
    if cookie == 0 {
        counters.add(Counter::ReaddirsFromStart, 1);
    }
}

/// The state of a directory before its names are read.
#[derive(Clone, Copy)]
struct DirectoryState {
    /// The ctime in the reply.
    shown: Timestamp,
    /// No change is at work that hides what local programs do.
    is_settled: bool,
}

/// The listing that continues at `cookie`, as the identity of this thread.
fn open_listing(
    directory: &Inode,
    state: DirectoryState,
    cookie: u64,
) -> Result<DirectoryStream, Status> {
    if directory.file_type() != FileType::Directory {
        return Err(Status::NotDirectory);
    }
    // The descriptor may have been opened by another caller.
    io::check_access(directory.fd(), Access::READ_OK)?;
    let taken = directory.streams()?.take(cookie, state.shown);
    let mut stream = match taken {
        Some(stream) => stream,
        None => DirectoryStream::at(directory.open_stream()?, cookie, state.shown)?,
    };
    if !state.is_settled {
        stream.restart(cookie, state.shown)?;
    }
    Ok(stream)
}

/// The entries of a listing that are returned with their objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Objects {
    None,
    /// Those of names, and none for `.` and `..`.
    OfNames,
    All,
}

/// Lists as the identity of this thread, and returns whether the directory ends there. `known` has
/// the handles that need not be asked for.
fn list_from(
    directory: &Inode,
    stream: &mut DirectoryStream,
    (objects, known): (Objects, &HandleCache),
    mut push: impl FnMut(&DirectoryEntry<'_>) -> Pushed,
) -> Result<bool, Status> {
    let began = Instant::now();
    let mut is_empty = true;
    while let Some((next, fd)) = stream.peek()? {
        let has_object = match objects {
            Objects::None => false,
            Objects::OfNames => next.name != c"." && next.name != c"..",
            Objects::All => true,
        };
        let (fileid, object) = describe(directory, fd, next, has_object.then_some(known));
        let (file_type, name, cookie) = (next.file_type, next.name, next.cookie);
        let entry = DirectoryEntry { fileid, file_type, name, cookie, object };
        match push(&entry) {
            Pushed::Full if is_empty => return Err(Status::TooSmall),
            Pushed::Full => return Ok(false),
            Pushed::Taken => is_empty = false,
            Pushed::Skipped => {}
        }
        stream.advance();
        // A reply without an entry would have no cookie to continue at.
        if !is_empty && began.elapsed() > CALL_TIME_MAX {
            directory.root().counters.add(Counter::ReaddirsCutShort, 1);
            return Ok(false);
        }
    }
    Ok(true)
}

/// The inode number to show for a name, and its object if that is wanted: with `known`, the handles
/// that need not be asked for.
fn describe(
    directory: &Inode,
    fd: BorrowedFd<'_>,
    entry: KernelEntry<'_>,
    known: Option<&HandleCache>,
) -> (u64, Option<Result<Found, Status>>) {
    // The parent of the root is not served: `..` is the root itself.
    if entry.name == c".." && *directory.handle() == directory.root().handle {
        let root = known.map(|_| find_or_log(directory, fd, c"."));
        return (directory.root().fileid, root);
    }
    let object = known.map(|known| {
        // Where `..` leads is checked by its descriptor.
        let by_name = (entry.name != c"..")
            .then(|| known.find_by_name(directory.root(), fd, entry.name, entry.fileid))
            .flatten()
            .map(|(handle, live)| Ok(Found::new(directory, handle, live)));
        by_name.unwrap_or_else(|| find_or_log(directory, fd, entry.name))
    });
    (entry.fileid, object)
}

/// As [`find`]. An entry whose object cannot be had is listed without it, so the status of the
/// reply does not show a fault: the log does.
fn find_or_log(directory: &Inode, stream: BorrowedFd<'_>, name: &CStr) -> Result<Found, Status> {
    let found = find(directory, stream, name);
    if let Err(status) = &found
        && status.is_fault()
    {
        let (export, path) = (directory.root().name(), directory.shown_path().unwrap_or_default());
        let name = escaped(name.to_bytes());
        tracing::error!(export, path, %name, error = %status, "cannot read an object to list");
    }
    found
}

/// Attributes and handle of a name, both from one descriptor: of the same object even if the name
/// changes hands meanwhile.
fn find(directory: &Inode, stream: BorrowedFd<'_>, name: &CStr) -> Result<Found, Status> {
    let root = directory.root();
    let fd = openat(stream, name, PATH_ONLY, Mode::empty())?;
    let attributes = match attributes_of(&fd) {
        // Its last name was removed meanwhile. STALE would mean the directory.
        Err(Status::Stale) if name != c"." && name != c".." => return Err(Status::NoEntry),
        attributes => attributes?,
    };
    if !root.contains(&attributes) {
        // As LOOKUP has it.
        return Err(Status::Access);
    }
    let handle = if name == c"." {
        *directory.handle()
    } else if name == c".." {
        // The parent of a directory that was moved out of the export is not part of it. A caller
        // who may not search what lies between is shown the name alone.
        if !root.is_above(fd.as_fd())? {
            return Err(Status::Stale);
        }
        root.identify(fd.as_fd())?
    } else {
        root.identify_child(directory.handle(), name, fd.as_fd())?
    };
    if !root.lasts_unopened(&handle) {
        return Err(Status::NotSupported);
    }
    Ok(Found::new(directory, handle, attributes))
}
