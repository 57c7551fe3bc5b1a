//! The objects of a mount: their handles, attributes and caches.
//!
//! All users and all names of an object share its inode. Every reply with attributes of an object
//! updates its inode, which decides whether its caches are still valid.
//!
//! An inode refers to its mount ([`superblock`]) and to the table that it is in, never to the file
//! system above it. The modules of `inode` refer to each other: a file's write-back makes its calls
//! through [`write_calls`], which update the inode that owns the write-back.

mod known;
mod own_change;
mod silly_rename;
mod superblock;
mod table;
mod to_the_end;
mod write_calls;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::nfs3::{Attributes, FileHandle, FileType, SetAttributes, Status};
use rustix::io::Errno;
use tokio::sync::{Notify, watch};

pub(crate) use known::{KnownBefore, Sent};
pub(crate) use silly_rename::{Hold, SillyRename, remove, silly_name};
pub(crate) use superblock::{InProgress, Superblock, ended};
pub(crate) use table::InodeTable;
pub(crate) use to_the_end::to_the_end;
pub(crate) use write_calls::WriteCalls;

use crate::cache::change::{Attribution, Change, ChangeText};
use crate::cache::directory::{DirectoryCache, Found};
use crate::cache::write_back::{Truncation, WriteBack};
use crate::nfs3::Nfs3;
use crate::trace::{Event, Object};
use crate::{Error, Result};
use known::Known;

/// An object of the server.
pub struct Inode {
    handle: FileHandle,
    fileid: u64,
    file_type: FileType,
    /// Locked after the kernel's view of the file in `mount`, under which a reply takes the
    /// attributes, and before the locks of `contents`, which a foreign change clears. The listener
    /// of such changes locks the view, so it is called without this lock.
    known: Mutex<Known>,
    /// A call failed with NFS3ERR_STALE, and no LOOKUP has returned the handle since.
    is_stale: AtomicBool,
    /// An own call has been answered.
    own_call_ended: Notify,
    contents: Contents,
    table: Arc<InodeTable>,
}

/// The caches beside the attributes.
enum Contents {
    File(FileContents),
    Directory(DirectoryContents),
    Other,
}

struct DirectoryContents {
    listing: Arc<DirectoryCache>,
    /// Objects by the names under which they were found. A hint, which the server has not confirmed
    /// since. Handles, because a weak reference would keep the memory of a dropped inode.
    children: Mutex<HashMap<Bytes, FileHandle>>,
    /// Silly names in the directory that are being removed.
    silly_removals: watch::Sender<usize>,
}

struct FileContents {
    written: WriteBack<WriteCalls>,
    opens: Mutex<Opens>,
    /// See [`removal_turn`](Inode::removal_turn).
    removing: Arc<tokio::sync::Mutex<()>>,
    /// Counts the changes that make data read before them outdated.
    data_epoch: AtomicU64,
}

#[derive(Default)]
struct Opens {
    /// Open files.
    count: usize,
    /// Those of open files, and of opens in progress.
    holds: usize,
    /// Another client has changed the file since it was last opened.
    changed: bool,
    /// To be removed at the end of the last hold.
    silly_renames: Vec<SillyRename>,
}

impl Inode {
    pub(crate) fn new(
        handle: FileHandle,
        attributes: &Attributes,
        sent: Sent,
        table: &Arc<InodeTable>,
    ) -> Self {
        let (fileid, file_type) = (attributes.fileid, attributes.file_type);
        let contents = match file_type {
            FileType::Regular => Contents::File(FileContents {
                written: table.superblock().write_back(fileid, handle),
                opens: Mutex::default(),
                removing: Arc::default(),
                data_epoch: AtomicU64::new(0),
            }),
            FileType::Directory => Contents::Directory(DirectoryContents {
                listing: table.superblock().listing(fileid, handle),
                children: Mutex::default(),
                silly_removals: watch::Sender::new(0),
            }),
            _ => Contents::Other,
        };
        let known = Known::new(attributes, table.superblock().options().into(), sent);
        let (known, table) = (Mutex::new(known), Arc::clone(table));
        let (is_stale, own_call_ended) = (AtomicBool::new(false), Notify::new());
        Self { handle, fileid, file_type, known, is_stale, own_call_ended, contents, table }
    }

    /// The file handle.
    #[must_use]
    pub fn handle(&self) -> FileHandle {
        self.handle
    }

    /// The file id, unique within the server's file system.
    #[must_use]
    pub fn fileid(&self) -> u64 {
        self.fileid
    }

    /// The file type.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// The subject of its trace events.
    #[must_use]
    pub fn object(&self) -> Object<'_> {
        Object { fileid: self.fileid, handle: &self.handle }
    }

    /// The latest known attributes, even if they have expired. The size includes written data that
    /// was not sent yet.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        let end = self.written_end();
        with_written(*self.known().attributes.latest(), end)
    }

    /// The attributes, unless they have expired.
    pub(crate) fn fresh_attributes(&self) -> Option<Attributes> {
        let end = self.written_end();
        let attributes = *self.known().attributes.fresh(Instant::now())?;
        Some(with_written(attributes, end))
    }

    /// Time until the attributes expire.
    #[must_use]
    pub fn attributes_ttl(&self) -> Duration {
        self.known().attributes.fresh_for(Instant::now())
    }

    /// The end of the written data that is not committed. Read before the attributes that it is
    /// added to: a WRITE that ends between the two leaves its end in these.
    fn written_end(&self) -> u64 {
        self.file().ok().and_then(|file| file.written.end()).unwrap_or(0)
    }

    /// Makes the attributes expire.
    pub(crate) fn expire(&self) {
        let mut known = self.known();
        known.attributes.expire();
        known.disturbed_at = Instant::now();
    }

    /// Notes what a SETATTR has set, if its reply had no attributes.
    pub(crate) fn note_set(&self, new: &SetAttributes) {
        self.known().attributes.note_set(new);
    }

    /// Takes note of the outcome of a call with the handle of this object, and returns it. After
    /// NFS3ERR_STALE another client has removed the object, and a cached listing that has the
    /// handle is outdated.
    pub(crate) fn note_outcome<T>(&self, outcome: Result<T>) -> Result<T> {
        if let Err(error) = &outcome {
            self.note_error(error);
        }
        outcome
    }

    /// As [`note_outcome`](Self::note_outcome), for the outcome of a call with several handles.
    pub(crate) fn note_error(&self, error: &Error) {
        if error.is(Status::Stale) {
            self.is_stale.store(true, Ordering::Release);
            self.expire();
        }
    }

    /// Whether the latest calls failed with NFS3ERR_STALE.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Acquire)
    }

    /// Notes that a LOOKUP or a call that creates a name has returned the handle.
    pub(crate) fn note_looked_up(&self) {
        self.is_stale.store(false, Ordering::Release);
    }

    /// To be taken before a call is sent whose reply has attributes of this object.
    pub(crate) fn sent(&self) -> Sent {
        self.known().sending()
    }

    /// GETATTR, RFC 1813 §3.3.1. Again if the attributes have expired since the call was sent, as
    /// by the reply to a WRITE: the server may have executed the GETATTR before the WRITE.
    ///
    /// # Errors
    /// Those of the call.
    pub(crate) async fn revalidate(&self, nfs: &Nfs3) -> Result<Attributes> {
        let tracer = self.superblock().tracer();
        for _ in 0..GETATTRS_MAX {
            tracer.emit(Event::GetattrCall, self.object(), 0, 0, format_args!(""));
            let sent = self.sent();
            let attributes = self.note_outcome(nfs.getattr(self.handle).await)?;
            self.note(Some(&attributes), sent);
            if !self.known().attributes.has_expired_early() {
                break;
            }
        }
        Ok(self.attributes())
    }

    /// Updates the inode from the reply to a call that changes nothing; `sent` was taken before the
    /// call.
    pub(crate) fn note(&self, attributes: Option<&Attributes>, sent: Sent) {
        let Some(attributes) = attributes else { return };
        let mut known = self.known();
        let (attribution, from, to) = known.observe(attributes, sent);
        self.apply(known, attribution, from, to);
    }

    /// Like [`note`](Self::note), for the call of an open, which must not miss a change that
    /// another client has finished: waits until the own calls are answered that may have hidden it.
    /// If that takes [`DECIDED_WITHIN`], drops the caches. Then waits until no written data hides
    /// the latest change of another client that was noticed.
    pub(crate) async fn note_for_open(&self, attributes: Option<&Attributes>, sent: Sent) {
        let Some(attributes) = attributes else { return };
        let attribution = {
            let mut known = self.known();
            let (attribution, from, to) = known.observe(attributes, sent);
            self.apply(known, attribution, from, to);
            attribution
        };
        if attribution == Attribution::Undecided {
            self.decide(attributes).await;
        }
        if let Contents::File(file) = &self.contents {
            file.written.foreign_change_readable().await;
        }
    }

    /// Waits until the own calls are answered that may have hidden a change.
    async fn decide(&self, attributes: &Attributes) {
        let next_call = self.known().tracker.next_call();
        let deadline = Instant::now() + DECIDED_WITHIN;
        loop {
            let ended = self.own_call_ended.notified();
            {
                let mut known = self.known();
                let from = known.tracker.known();
                if let Some(decided) = known.tracker.decide_observed(attributes, next_call) {
                    let to = known.tracker.known();
                    return self.apply(known, decided, from, to);
                }
            }
            if Instant::now() >= deadline {
                // None was seen: the own calls may take long, and the open does not wait for them.
                return self.drop_cached();
            }
            // A call that is given up ends without a notification.
            drop(tokio::time::timeout(GIVEN_UP_POLL, ended).await);
        }
    }

    /// Like [`note`](Self::note), for READDIR and READDIRPLUS of this directory. The directory
    /// cache takes the change stamp from the same reply by `note`, and invalidates its older pages
    /// itself. Under the lock: the new attributes must not confirm the names in these pages.
    pub(crate) fn note_listing(
        &self,
        attributes: Option<&Attributes>,
        sent: Sent,
        note: impl FnOnce(Change),
    ) {
        let Some(attributes) = attributes else { return };
        let mut known = self.known();
        let (attribution, from, to) = known.observe(attributes, sent);
        note(attributes.into());
        if self.is_foreign(&mut known, attribution, from, to) {
            drop(known);
            self.superblock().report_foreign_change(self.handle);
        }
    }

    /// Traces a change, and drops the caches if it was foreign. Under the lock: an open for which
    /// the change is known must not find the old data cached.
    fn apply(
        &self,
        mut known: MutexGuard<'_, Known>,
        attribution: Attribution,
        from: Change,
        to: Change,
    ) {
        if !self.is_foreign(&mut known, attribution, from, to) {
            return;
        }
        if let Contents::File(file) = &self.contents {
            file.written.note_foreign_change();
        }
        let is_reported = self.clear_caches();
        drop(known);
        if is_reported {
            self.superblock().report_foreign_change(self.handle);
        }
    }

    /// Traces a change. Returns whether it was foreign, and notes the time then.
    fn is_foreign(&self, known: &mut Known, by: Attribution, from: Change, to: Change) -> bool {
        let event = match by {
            Attribution::Unchanged | Attribution::Undecided => return false,
            Attribution::Own => Event::OwnChange,
            Attribution::Foreign => Event::CacheInvalidate,
        };
        let detail = format_args!("from={} to={}", ChangeText(from), ChangeText(to));
        self.superblock().tracer().emit(event, self.object(), 0, 0, detail);
        let is_foreign = by == Attribution::Foreign;
        if is_foreign {
            known.note_foreign_change();
        }
        is_foreign
    }

    /// Drops the caches after a foreign change.
    fn drop_cached(&self) {
        self.known().note_foreign_change();
        if self.clear_caches() {
            self.superblock().report_foreign_change(self.handle);
        }
    }

    /// Like [`drop_cached`](Self::drop_cached), without the report, whose listener may lock the
    /// inode. Returns whether it is needed: for an open file, and for a directory.
    fn clear_caches(&self) -> bool {
        match &self.contents {
            Contents::File(file) => {
                file.data_epoch.fetch_add(1, Ordering::AcqRel);
                file.written.forget_kept();
                let mut opens = lock(&file.opens);
                opens.changed = true;
                opens.count > 0
            }
            Contents::Directory(directory) => {
                directory.listing.invalidate("foreign change");
                true
            }
            Contents::Other => false,
        }
    }

    /// Waits until the server has replied to the WRITEs of all data written so far. Write errors
    /// are left for the open files.
    pub(crate) async fn send_written(&self) {
        if let Contents::File(file) = &self.contents {
            file.written.drain().await;
        }
    }

    /// Waits until all data written so far is on the server's stable storage. Write errors are left
    /// for the open files.
    pub(crate) async fn commit_written(&self) {
        if let Contents::File(file) = &self.contents {
            file.written.commit().await;
        }
    }

    /// To be called before a SETATTR of the size. Waits like [`send_written`](Self::send_written);
    /// no written data is sent until the result is dropped. `None` for other types than files.
    pub(crate) async fn begin_truncation(&self) -> Option<Truncation<'_, WriteCalls>> {
        match &self.contents {
            Contents::File(file) => Some(file.written.begin_truncation().await),
            Contents::Directory(_) | Contents::Other => None,
        }
    }

    /// The write-back cache of a regular file.
    ///
    /// # Errors
    /// `ISDIR` for a directory, `INVAL` for other types.
    pub(crate) fn written(&self) -> Result<&WriteBack<WriteCalls>> {
        self.file().map(|file| &file.written)
    }

    /// The directory cache.
    ///
    /// # Errors
    /// `NOTDIR` for other types.
    pub(crate) fn listing(&self) -> Result<&Arc<DirectoryCache>> {
        match &self.contents {
            Contents::Directory(directory) => Ok(&directory.listing),
            Contents::File(_) | Contents::Other => Err(Error::Refused(Errno::NOTDIR)),
        }
    }

    /// The latest known change stamp.
    pub(crate) fn change_stamp(&self) -> Change {
        self.known().attributes.latest().into()
    }

    /// The known state, to be taken before a call, for [`is_latest`](Self::is_latest).
    pub(crate) fn before_call(&self) -> KnownBefore {
        self.known().before_call()
    }

    /// Whether the latest attributes are no newer than what a call has found in the directory, but
    /// for own changes. No foreign change was noticed since `before` the call, not in its reply
    /// either: a server can return the attributes from after its search. And the latest attributes
    /// are those from before, of an own change, or those `in_reply`.
    pub(crate) fn is_latest(&self, before: KnownBefore, in_reply: Option<&Attributes>) -> bool {
        self.known().is_latest(before, in_reply)
    }

    /// Notes that this client has changed `name` in the directory. `after` is the directory's
    /// change stamp, or `None` if another client changed it too.
    fn name_changed(&self, name: &[u8], after: Option<Change>) {
        if let Contents::Directory(DirectoryContents { listing, children, .. }) = &self.contents {
            listing.note_own_change(name, after);
            lock(children).remove(name);
        }
    }

    /// Notes that `name` in the directory refers to `child`.
    pub(crate) fn name_found(&self, name: &[u8], child: &Arc<Self>) {
        let Contents::Directory(DirectoryContents { children, .. }) = &self.contents else {
            return;
        };
        let mut children = lock(children);
        if children.len() == children.capacity() {
            children.retain(|_, child| self.table.contains(child));
            let len = children.len();
            children.shrink_to(2 * len);
        }
        children.insert(Bytes::copy_from_slice(name), child.handle);
    }

    /// The object that `name` in the directory was last known to refer to, if it is referenced.
    pub(crate) fn child(&self, name: &[u8]) -> Option<Arc<Self>> {
        let Contents::Directory(DirectoryContents { children, .. }) = &self.contents else {
            return None;
        };
        let handle = *lock(children).get(name)?;
        self.table.get(&handle)
    }

    /// The names in the directory whose objects were [found](Self::name_found).
    pub(crate) fn names(&self) -> Vec<Bytes> {
        match &self.contents {
            Contents::Directory(DirectoryContents { children, .. }) => {
                lock(children).keys().cloned().collect()
            }
            Contents::File(_) | Contents::Other => Vec::new(),
        }
    }

    /// The handle and attributes of `name` from a cached listing, and when its call was sent.
    pub(crate) fn listed(&self, name: &[u8]) -> Option<(FileHandle, Attributes, Sent)> {
        let Contents::Directory(directory) = &self.contents else { return None };
        let Found { handle, attributes, sent_at, .. } = directory.listing.lookup(name)?;
        Some((handle, attributes?, Sent::At(sent_at)))
    }

    /// Whether [`listed`](Self::listed) finds `name`, without the count of a lookup.
    pub(crate) fn is_listed(&self, name: &[u8]) -> bool {
        match &self.contents {
            Contents::Directory(directory) => directory.listing.has_handle(name),
            _ => false,
        }
    }

    /// How long [`listed`](Self::listed) finds `name` with this handle, without the count of a
    /// lookup.
    pub(crate) fn listed_ttl(&self, name: &[u8], handle: FileHandle) -> Duration {
        match &self.contents {
            Contents::Directory(directory) => directory.listing.ttl(name, handle),
            _ => Duration::ZERO,
        }
    }

    /// The current epoch of the file's data: data read in an earlier epoch is outdated.
    pub(crate) fn data_epoch(&self) -> u64 {
        self.file().map_or(0, |file| file.data_epoch.load(Ordering::Acquire))
    }

    /// Begins a new epoch of data: this client has written, and data read ahead may lack it.
    pub(crate) fn data_changed(&self) {
        if let Contents::File(file) = &self.contents {
            file.data_epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Drops the caches, also the attributes: they may show written data that is lost after the
    /// failure of a WRITE or COMMIT, or that is older than another client's.
    pub(crate) fn outdate(&self) {
        self.expire();
        self.drop_cached();
    }

    /// Counts an open file. Returns whether data cached since the last open is still valid.
    pub(crate) fn opened(&self) -> bool {
        let Ok(file) = self.file() else { return false };
        let mut opens = lock(&file.opens);
        opens.count += 1;
        !std::mem::take(&mut opens.changed)
    }

    /// Counts a close.
    pub(crate) fn closed(&self) {
        if let Ok(file) = self.file() {
            lock(&file.opens).count -= 1;
        }
    }

    /// The state that the inodes of the mount share.
    pub(crate) fn superblock(&self) -> &Superblock {
        self.table.superblock()
    }

    fn file(&self) -> Result<&FileContents> {
        match &self.contents {
            Contents::File(file) => Ok(file),
            Contents::Directory(_) => Err(Error::Refused(Errno::ISDIR)),
            Contents::Other => Err(Error::Refused(Errno::INVAL)),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        // The kernel forgets files at any time, also before the end of the mount reports losses.
        if let Ok(file) = self.file()
            && let Err(error) = file.written.check_unreported()
        {
            self.superblock().note_lost(error);
        }
        let changed_until = self.known().changed_until();
        self.table.forget(&self.handle, changed_until);
    }
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inode")
            .field("fileid", &self.fileid)
            .field("file_type", &self.file_type)
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

/// Attributes with a size that includes written data up to `end`.
fn with_written(attributes: Attributes, end: u64) -> Attributes {
    Attributes { size: attributes.size.max(end), ..attributes }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// GETATTRs of one [`Inode::revalidate`]: in a stream of WRITEs without attributes in the replies
/// each may be too old.
const GETATTRS_MAX: usize = 8;

/// How long an open waits for replies to own calls at most.
const DECIDED_WITHIN: Duration = Duration::from_secs(1);

/// How often an open looks for own calls that were given up.
const GIVEN_UP_POLL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests;
