//! An object of the server: its handle, what is known of it, and what is cached.
//!
//! All users and all names of an object share its inode, as long as anybody holds it. Every reply
//! that says something about an object is noted with its inode, which finds out whether what is
//! cached still holds.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::nfs3::{Attributes, FileHandle, FileType, WccData};
use rustix::io::Errno;

use crate::attribute_cache::{self, AttributeCache};
use crate::change::{Change, ChangeText, ChangeTracker, Moment, OwnCall, Verdict};
use crate::directory_cache::{DirectoryCache, Found};
use crate::file_system::FileSystem;
use crate::inode_table::InodeTable;
use crate::trace::{Event, Object};
use crate::write_back::WriteBack;
use crate::write_calls::WriteCalls;
use crate::{Error, Result};

/// An object of the server.
pub struct Inode {
    handle: FileHandle,
    fileid: u64,
    file_type: FileType,
    known: Mutex<Known>,
    contents: Contents,
    table: Arc<InodeTable>,
}

/// What replies said.
struct Known {
    attributes: AttributeCache,
    tracker: ChangeTracker,
    /// The last event: a reply, or an own change that began.
    disturbed_at: Instant,
}

/// What is cached beside the attributes.
enum Contents {
    File(FileContents),
    Directory(DirectoryContents),
    Other,
}

struct DirectoryContents {
    listing: DirectoryCache,
    /// Objects by names under which they were found. A hint: who acts on it has the server's word
    /// for nothing.
    children: Mutex<HashMap<Bytes, Weak<Inode>>>,
}

struct FileContents {
    written: WriteBack<WriteCalls>,
    opens: Mutex<Opens>,
    /// Counts the changes after which what was read before is not to be served any more.
    data_epoch: AtomicU64,
}

#[derive(Default)]
struct Opens {
    /// Open files.
    count: usize,
    /// Somebody else has changed the file since it was last opened.
    changed: bool,
    /// The name that a silly rename left it, and its directory.
    aside: Option<Aside>,
}

/// A name to be removed when the file is closed: by the user who removed the file, because the one
/// who closes it last need not be allowed to.
pub(crate) struct Aside {
    pub(crate) file_system: FileSystem,
    pub(crate) dir: Arc<Inode>,
    pub(crate) name: Bytes,
}

/// When a call was sent, for the attributes in its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    /// Then, and the object was not known yet, as with LOOKUP.
    At(Instant),
    /// In this order among the events of the object.
    InOrder(Moment, attribute_cache::Sent),
}

impl Sent {
    /// Now, for a call about an object that is not known yet.
    pub(crate) fn now() -> Self {
        Self::At(Instant::now())
    }

    fn at(self) -> Instant {
        match self {
            Self::At(at) => at,
            Self::InOrder(_, sent) => sent.at(),
        }
    }
}

impl Known {
    /// Now, for a call about this object.
    fn sending(&mut self) -> (Moment, attribute_cache::Sent) {
        (self.tracker.moment(), self.attributes.sending(Instant::now()))
    }

    /// Where a call that was sent at `at` stands among the events of the object: behind all of them
    /// or, when it is not known better, before.
    fn in_order(&mut self, sent: Sent) -> (Moment, attribute_cache::Sent) {
        match sent {
            Sent::InOrder(moment, sent) => (moment, sent),
            Sent::At(at) if at > self.disturbed_at => {
                (self.tracker.moment(), self.attributes.sending(at))
            }
            Sent::At(at) => (Moment::BEFORE_ALL, attribute_cache::Sent::before_all(at)),
        }
    }
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
                written: table.write_back(fileid, handle),
                opens: Mutex::default(),
                data_epoch: AtomicU64::new(0),
            }),
            FileType::Directory => Contents::Directory(DirectoryContents {
                listing: table.listing(fileid, handle),
                children: Mutex::default(),
            }),
            _ => Contents::Other,
        };
        let known = Known {
            attributes: AttributeCache::new(attributes, table.options().into(), sent.at()),
            tracker: ChangeTracker::new(attributes),
            disturbed_at: Instant::now(),
        };
        let (known, table) = (Mutex::new(known), Arc::clone(table));
        Self { handle, fileid, file_type, known, contents, table }
    }

    /// What the server calls it.
    #[must_use]
    pub fn handle(&self) -> FileHandle {
        self.handle
    }

    /// Its number within the file system.
    #[must_use]
    pub fn fileid(&self) -> u64 {
        self.fileid
    }

    /// What kind of object it is.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// How events name it.
    #[must_use]
    pub fn object(&self) -> Object<'_> {
        Object { fileid: self.fileid, handle: &self.handle }
    }

    /// The attributes as they were last heard of, however long ago, with a length that counts what
    /// was written and not sent.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        let attributes = *self.known().attributes.latest();
        self.with_written(attributes)
    }

    /// The attributes, if they are believed without asking the server.
    pub(crate) fn fresh_attributes(&self) -> Option<Attributes> {
        let attributes = *self.known().attributes.fresh(Instant::now())?;
        Some(self.with_written(attributes))
    }

    /// How long the attributes are believed from now on.
    #[must_use]
    pub fn attributes_ttl(&self) -> Duration {
        self.known().attributes.fresh_for(Instant::now())
    }

    fn with_written(&self, attributes: Attributes) -> Attributes {
        let end = self.file().ok().and_then(|file| file.written.end());
        Attributes { size: attributes.size.max(end.unwrap_or(0)), ..attributes }
    }

    /// The attributes are not believed any more.
    pub(crate) fn expire(&self) {
        self.known().attributes.expire();
    }

    /// Now, for a call about this object.
    pub(crate) fn sent(&self) -> Sent {
        let (moment, sent) = self.known().sending();
        Sent::InOrder(moment, sent)
    }

    /// Notes what the reply to a call that changes nothing says; `sent` is from before that call.
    pub(crate) fn note(&self, attributes: Option<&Attributes>, sent: Sent) {
        if self.observe(attributes, sent) == Verdict::Foreign {
            self.drop_cached();
        }
    }

    /// As [`note`](Self::note), for the reply to a call that lists this directory. The listing takes
    /// the state of the directory from the same reply, and knows which of its pages are older.
    pub(crate) fn note_listing(&self, attributes: Option<&Attributes>, sent: Sent) {
        let _ = self.observe(attributes, sent);
    }

    fn observe(&self, attributes: Option<&Attributes>, sent: Sent) -> Verdict {
        let Some(attributes) = attributes else { return Verdict::Undecided };
        let (verdict, from, to) = {
            let mut known = self.known();
            let from = known.tracker.known();
            let (moment, sent) = known.in_order(sent);
            let verdict = known.tracker.observe(attributes, moment);
            known.attributes.learn(attributes, sent);
            known.disturbed_at = Instant::now();
            (verdict, from, known.tracker.known())
        };
        self.trace(verdict, from, to);
        verdict
    }

    /// A call that changes this object is about to be sent.
    pub(crate) fn begin_change(self: &Arc<Self>) -> OwnChange {
        let mut known = self.known();
        let (call, sent) = (known.tracker.begin(), known.attributes.sending(Instant::now()));
        known.disturbed_at = Instant::now();
        OwnChange { inode: Arc::clone(self), call, sent }
    }

    /// A call that changes `name` in this directory is about to be sent.
    pub(crate) fn begin_name_change<'a>(self: &'a Arc<Self>, name: &'a [u8]) -> NameChange<'a> {
        NameChange { dir: self, name, change: Some(self.begin_change()), is_answered: false }
    }

    /// As [`begin_name_change`](Self::begin_name_change), for the second name of one call.
    pub(crate) fn begin_other_name_change<'a>(&'a self, name: &'a [u8]) -> NameChange<'a> {
        NameChange { dir: self, name, change: None, is_answered: false }
    }

    /// Acts on what a reply says of whose change it was.
    fn judge(&self, verdict: Verdict, from: Change, to: Change) {
        self.trace(verdict, from, to);
        if verdict == Verdict::Foreign {
            self.drop_cached();
        }
    }

    /// Prints whose change it was.
    fn trace(&self, verdict: Verdict, from: Change, to: Change) {
        let event = match verdict {
            Verdict::Unchanged | Verdict::Undecided => return,
            Verdict::Own => Event::OwnChange,
            Verdict::Foreign => Event::CacheInvalidate,
        };
        let detail = format_args!("from={} to={}", ChangeText(from), ChangeText(to));
        self.table.tracer().emit(event, self.object(), 0, 0, detail);
    }

    /// What is cached of it is not to be believed.
    fn drop_cached(&self) {
        match &self.contents {
            Contents::File(file) => {
                file.data_epoch.fetch_add(1, Ordering::AcqRel);
                file.written.forget_kept();
                let is_open = {
                    let mut opens = lock(&file.opens);
                    opens.changed = true;
                    opens.count > 0
                };
                if is_open {
                    self.table.tell_foreign_change(self);
                }
            }
            Contents::Directory(directory) => directory.listing.invalidate("foreign change"),
            Contents::Other => {}
        }
    }

    /// Has the server take all that was written so far. Who wrote is told of errors.
    pub(crate) async fn send_written(&self) {
        if let Contents::File(file) = &self.contents {
            file.written.drain().await;
        }
    }

    /// Forgets what was written beyond `size`, to which the server has cut the file.
    pub(crate) async fn cut_written(&self, size: u64) {
        if let Contents::File(file) = &self.contents {
            file.data_epoch.fetch_add(1, Ordering::AcqRel);
            file.written.truncate(size).await;
        }
    }

    /// Has the server commit all that was written.
    ///
    /// # Errors
    /// Data was lost, and nobody was told.
    pub(crate) async fn settle(&self) -> Result<()> {
        match &self.contents {
            Contents::File(file) => file.written.settle().await,
            Contents::Directory(_) | Contents::Other => Ok(()),
        }
    }

    /// The written data of a regular file.
    ///
    /// # Errors
    /// `ISDIR` for a directory, `INVAL` for what else is no regular file.
    pub(crate) fn written(&self) -> Result<&WriteBack<WriteCalls>> {
        self.file().map(|file| &file.written)
    }

    /// The listing of a directory.
    ///
    /// # Errors
    /// `NOTDIR` for anything else.
    pub(crate) fn listing(&self) -> Result<&DirectoryCache> {
        match &self.contents {
            Contents::Directory(directory) => Ok(&directory.listing),
            Contents::File(_) | Contents::Other => Err(Error::Refused(Errno::NOTDIR)),
        }
    }

    /// The directory's state as it was last heard of, for its listing.
    pub(crate) fn state_of_listing(&self) -> Change {
        self.known().attributes.latest().into()
    }

    /// This client has changed the name `name` of the directory, whose state is `after` then if
    /// nobody else has changed it meanwhile.
    pub(crate) fn name_changed(&self, name: &[u8], after: Option<Change>) {
        if let Contents::Directory(DirectoryContents { listing, children }) = &self.contents {
            listing.note_own_change(name, after);
            lock(children).remove(name);
        }
    }

    /// Remembers that the directory had `child` under `name`.
    pub(crate) fn name_found(&self, name: &[u8], child: &Arc<Self>) {
        let Contents::Directory(DirectoryContents { children, .. }) = &self.contents else {
            return;
        };
        let mut children = lock(children);
        if children.len() == children.capacity() {
            children.retain(|_, child| child.strong_count() > 0);
        }
        children.insert(Bytes::copy_from_slice(name), Arc::downgrade(child));
    }

    /// What the directory had under `name` when that was last heard of, if somebody holds it.
    pub(crate) fn child(&self, name: &[u8]) -> Option<Arc<Self>> {
        let Contents::Directory(DirectoryContents { children, .. }) = &self.contents else {
            return None;
        };
        lock(children).get(name)?.upgrade()
    }

    /// The names in it that somebody was told of.
    pub(crate) fn names(&self) -> Vec<Bytes> {
        match &self.contents {
            Contents::Directory(DirectoryContents { children, .. }) => {
                lock(children).keys().cloned().collect()
            }
            Contents::File(_) | Contents::Other => Vec::new(),
        }
    }

    /// What a listing says of a name: the handle, attributes, and when they were true.
    pub(crate) fn listed(&self, name: &[u8]) -> Option<(FileHandle, Attributes, Sent)> {
        let Contents::Directory(directory) = &self.contents else { return None };
        let Found { handle, attributes, age } = directory.listing.lookup(name)?;
        let at = Instant::now().checked_sub(age)?;
        Some((handle, attributes?, Sent::At(at)))
    }

    /// Counts the changes after which data that was read before is outdated.
    pub(crate) fn data_epoch(&self) -> u64 {
        self.file().map_or(0, |file| file.data_epoch.load(Ordering::Acquire))
    }

    /// This client writes: what was read ahead may lack it.
    pub(crate) fn data_changed(&self) {
        if let Contents::File(file) = &self.contents {
            file.data_epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The server has refused what was written: what is cached shows data that is lost.
    pub(crate) fn data_lost(&self) {
        self.expire();
        self.drop_cached();
    }

    /// Whether a file of it is open.
    pub(crate) fn is_open(&self) -> bool {
        self.file().is_ok_and(|file| lock(&file.opens).count > 0)
    }

    /// A file of it is opened. Whether what was cached of it is still believed.
    pub(crate) fn opened(&self) -> bool {
        let Ok(file) = self.file() else { return false };
        let mut opens = lock(&file.opens);
        opens.count += 1;
        self.table.file_opened();
        !std::mem::take(&mut opens.changed)
    }

    /// A file of it is closed. The name to remove, after the last one.
    pub(crate) fn closed(&self) -> Option<Aside> {
        let file = self.file().ok()?;
        let mut opens = lock(&file.opens);
        opens.count -= 1;
        self.table.file_closed();
        if opens.count == 0 { opens.aside.take() } else { None }
    }

    /// Leaves the removal of its last name to the last close. `false` if that was already.
    pub(crate) fn remove_when_closed(&self, aside: Aside) -> bool {
        let Ok(file) = self.file() else { return false };
        let mut opens = lock(&file.opens);
        let is_open = opens.count > 0;
        if is_open {
            opens.aside = Some(aside);
        }
        is_open
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
        self.table.forget(&self.handle);
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

/// A call that changes an object and is under way. Dropped, it counts as one without a reply: what
/// it did will be taken for somebody else's change.
#[derive(Debug)]
pub(crate) struct OwnChange {
    inode: Arc<Inode>,
    call: OwnCall,
    sent: attribute_cache::Sent,
}

impl OwnChange {
    /// The object.
    pub(crate) fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// Notes what the reply says. The object's state, if nobody else changed it meanwhile.
    pub(crate) fn finish(self, wcc: &WccData) -> Option<Change> {
        let Self { inode, call, sent } = self;
        let (verdict, from, to) = {
            let mut known = inode.known();
            let from = known.tracker.known();
            let verdict = known.tracker.finish(call, wcc);
            match &wcc.after {
                Some(after) => {
                    known.attributes.learn(after, sent);
                }
                None => known.attributes.expire(),
            }
            known.disturbed_at = Instant::now();
            (verdict, from, known.tracker.known())
        };
        inode.judge(verdict, from, to);
        matches!(verdict, Verdict::Own | Verdict::Unchanged).then_some(to)
    }

    /// Notes that the reply says nothing of the object, but its change time has moved: one of its
    /// names came or went.
    pub(crate) fn finish_silent(self) {
        let Self { inode, call, .. } = self;
        let (verdict, from, to) = {
            let mut known = inode.known();
            let from = known.tracker.known();
            let verdict = known.tracker.finish_silent(call);
            known.attributes.expire();
            known.disturbed_at = Instant::now();
            (verdict, from, known.tracker.known())
        };
        inode.judge(verdict, from, to);
    }
}

/// A call that changes a name of a directory and is under way. Dropped, it failed or has no reply,
/// and what the directory has under that name is unknown.
#[derive(Debug)]
pub(crate) struct NameChange<'a> {
    dir: &'a Inode,
    name: &'a [u8],
    /// The change of the directory, unless another name of the same call stands for it.
    change: Option<OwnChange>,
    is_answered: bool,
}

impl NameChange<'_> {
    /// Notes what the reply says of the directory. Its state then, if nobody else changed it.
    pub(crate) fn finish(mut self, wcc: &WccData) -> Option<Change> {
        let after = self.change.take().and_then(|change| change.finish(wcc));
        self.finish_in(after);
        after
    }

    /// Notes that the call was carried out, and the directory's state then, if nobody else changed
    /// it.
    pub(crate) fn finish_in(mut self, after: Option<Change>) {
        self.dir.name_changed(self.name, after);
        self.is_answered = true;
    }
}

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.dir.name_changed(self.name, None);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
