//! The operations of a mounted file system: executes requests of the kernel on a [`FileSystem`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::nfs3::{Attributes, FileHandle, FileType, Status};
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::debug;

use super::callers::Callers;
use super::grants::Grants;
use super::handles::Handles;
use super::kernel::Notifier;
use super::kernel_view::{KernelView, SET_ID_BITS};
use super::nodes::Nodes;
use super::reply::{Answer, Entry, Granted, Stat};
use super::request::{Head, Operation};
use super::short_write::ShortWrite;
use crate::directory::Directory;
use crate::error::Error;
use crate::file::File;
use crate::file_system::FileSystem;
use crate::inode::{InProgress, Inode, ended};
use crate::mount_options::LookupCache;

/// The files of one mount, and the kernel's state of each.
pub(super) struct Operations {
    pub(super) file_system: FileSystem,
    pub(super) nodes: Nodes<Node>,
    pub(super) files: Handles<OpenFile>,
    pub(super) dirs: Handles<Directory>,
    pub(super) callers: Callers,
    rules: Rules,
    /// Set when the file system is mounted, before the first request.
    pub(super) notifier: OnceLock<Notifier>,
    /// [`Kernel::maps_direct_files`](super::kernel::Kernel::maps_direct_files), set at the same
    /// time.
    maps_direct_files: OnceLock<bool>,
    /// Notifications that write mappings back.
    pub(super) dropping_mappings: tokio::sync::Mutex<JoinSet<()>>,
    /// Whether mappings may hold what they have not written back yet.
    pub(super) is_writing_back: AtomicBool,
    /// Shared by the WRITEs that are being performed, which the end of the mount waits for.
    pub(super) writes: tokio::sync::RwLock<()>,
    /// Counts removed names, see [`Operations::links_are_known`].
    names_removed: AtomicU64,
}

/// The options of the mount that its operations need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Several users share the kernel's caches, and it does not check permissions.
    pub(super) ask_before_search: bool,
    pub(super) lookup_cache: LookupCache,
    /// `st_blksize`; a power of two.
    pub(super) block_bytes: u32,
    /// Bytes of a name at most.
    pub(super) name_max: u32,
}

/// A file that the kernel knows.
pub(super) struct Node {
    pub(super) inode: Arc<Inode>,
    view: Mutex<KernelView>,
    pub(super) grants: Grants,
    /// [`Operations::names_removed`] when the attributes were last revalidated.
    names_removed: AtomicU64,
    dropping_pages: tokio::sync::Mutex<()>,
    /// Notifications under way that another client has changed this directory.
    pub(super) notifications: watch::Sender<usize>,
    /// Held from the choice of [`Node::append_offset`] until the data is there.
    pub(super) appending: tokio::sync::Mutex<()>,
}

/// A file that is open.
pub(super) struct OpenFile {
    pub(super) file: File,
    /// Whether the reply to the OPEN had the kernel keep its pages.
    pub(super) keeps_pages: bool,
    /// Whether it had the kernel bypass its page cache without being asked by the program.
    pub(super) bypasses_pages: bool,
    pub(super) short_write: ShortWrite,
}

/// The error of a request.
pub(super) struct Refusal(pub(super) Errno);

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        // Programs do not expect the errors of a connection from calls on files. With `soft`, the
        // kernel's client returns EIO for a server that is silent, too.
        let is_of_connection = matches!(error, Error::Connection { .. } | Error::TimedOut { .. });
        // Nor EAGAIN: NFS3ERR_JUKEBOX is returned after the last try of a soft mount, and
        // NFS3ERR_NOT_SYNC is for the guard of SETATTR, which a mount does not send.
        let is_to_be_repeated = error.is(Status::Jukebox) || error.is(Status::NotSync);
        Self(if is_of_connection || is_to_be_repeated { Errno::IO } else { error.errno() })
    }
}

/// The result of an operation.
pub(super) type Outcome = Result<Answer, Refusal>;

impl Operations {
    /// The operations of `file_system`, of which the kernel has only the root so far.
    pub(super) fn new(file_system: FileSystem, rules: Rules) -> Self {
        let root = file_system.root();
        let nodes = Nodes::new(root.handle(), Node::new(root));
        Self {
            file_system,
            nodes,
            files: Handles::default(),
            dirs: Handles::default(),
            callers: Callers::default(),
            rules,
            notifier: OnceLock::new(),
            maps_direct_files: OnceLock::new(),
            dropping_mappings: tokio::sync::Mutex::default(),
            is_writing_back: AtomicBool::new(false),
            writes: tokio::sync::RwLock::default(),
            names_removed: AtomicU64::new(0),
        }
    }

    /// Sets how the kernel is notified of changes.
    pub(super) fn notify_through(&self, notifier: Notifier, maps_direct_files: bool) {
        // A second notifier would be for the same mount.
        let _ = self.notifier.set(notifier);
        let _ = self.maps_direct_files.set(maps_direct_files);
    }

    /// Whether reads and writes of a file opened now have to bypass the kernel's page cache,
    /// because the kernel may have another size, see [`KernelView::has_size`], or because no cached
    /// data is valid for any time: the kernel reads its pages without a request. Not if a program
    /// may map the file shared and the kernel permits only one of both.
    pub(super) fn must_bypass_pages(&self, node: &Node, can_be_mapped: bool) -> bool {
        let can_bypass = !can_be_mapped || self.maps_direct_files.get() == Some(&true);
        let is_never_valid = self.file_system.options().file_attributes_max.is_zero();
        can_bypass && (is_never_valid || !node.has_settled())
    }

    /// Carries out one request.
    pub(super) async fn perform(self: Arc<Self>, head: Head, operation: Operation) -> Answer {
        let outcome = match operation {
            Operation::Lookup { name } => self.lookup(&head, &name).await,
            Operation::Getattr => self.getattr(&head).await,
            Operation::Setattr(set) => self.setattr(&head, &set).await,
            Operation::Readlink => self.readlink(&head).await,
            Operation::Symlink { name, target } => self.symlink(&head, &name, &target).await,
            Operation::Mknod { name, mode, rdev } => self.mknod(&head, &name, mode, rdev).await,
            Operation::Mkdir { name, mode } => self.mkdir(&head, &name, mode).await,
            Operation::Unlink { name } => self.unlink(&head, &name).await,
            Operation::Rmdir { name } => self.rmdir(&head, &name).await,
            Operation::Rename { name, new_dir, new_name, flags } => {
                self.rename(&head, &name, new_dir, &new_name, flags).await
            }
            Operation::Link { node, new_name } => self.link(&head, node, &new_name).await,
            Operation::Open { flags } => self.open(&head, flags).await,
            Operation::Create { name, mode, flags } => self.create(&head, &name, mode, flags).await,
            Operation::Read { fh, offset, size } => self.read(&head, fh, offset, size).await,
            Operation::Write { fh, offset, write_flags, flags, data } => {
                self.write(&head, fh, offset, write_flags, flags, data.bytes()).await
            }
            Operation::Flush { fh } => self.flush(&head, fh).await,
            Operation::Fsync { fh } => self.sync(fh).await,
            Operation::Release { fh } => {
                self.release(fh).await;
                Ok(Answer::done())
            }
            Operation::Opendir => self.opendir(&head).await,
            Operation::Readdir { fh, cookie, size, plus } => {
                self.readdir(&head, fh, cookie, size, plus).await
            }
            Operation::Releasedir { fh } => {
                self.dirs.remove(fh);
                Ok(Answer::done())
            }
            // Changes of directories are on the server's disk when they are answered.
            Operation::Fsyncdir => Ok(Answer::done()),
            Operation::Access { mask } => self.access(&head, mask).await,
            Operation::Statfs => self.statfs(&head).await,
            Operation::Forget { .. }
            | Operation::BatchForget { .. }
            | Operation::Interrupt { .. }
            | Operation::Destroy => unreachable!("the session executes these"),
            // The kernel does not send the operation again, and uses its fallback: extended
            // attributes and preallocation return EOPNOTSUPP, SEEK_HOLE finds no holes,
            // copy_file_range copies, locks hold on this machine.
            Operation::Unknown => Err(Refusal(Errno::NOSYS)),
        };
        outcome.unwrap_or_else(|Refusal(errno)| Answer::error(errno))
    }

    /// The kernel forgets `lookups` lookups of `node`.
    pub(super) fn forget(&self, node: u64, lookups: u64) {
        self.nodes.forget(node, lookups);
    }

    /// Undoes the sizes of an answer that the kernel has refused. To be called before
    /// [`take_back`](Self::take_back) without waiting, so that no later WRITE relies on them.
    pub(super) fn unsettle_sizes(&self, granted: &Granted) {
        for number in granted.nodes.iter().copied().chain(granted.size) {
            if let Some(node) = self.nodes.get(number) {
                node.view().unsettle_size(Instant::now());
            }
        }
    }

    /// Undoes the other effects of an answer that the kernel has refused.
    pub(super) async fn take_back(self: &Arc<Self>, granted: Granted) {
        for node in granted.nodes {
            self.nodes.forget(node, 1);
        }
        if let Some(fh) = granted.dir {
            self.dirs.remove(fh);
        }
        if let Some(fh) = granted.file {
            self.reconsider_pages(fh);
            self.release(fh).await;
        }
    }

    /// The file system as the caller sees it.
    pub(super) fn as_caller(&self, head: &Head) -> FileSystem {
        self.file_system.as_user(&self.callers.identity(head))
    }

    /// The node of a number of the kernel.
    ///
    /// # Errors
    /// ESTALE if the kernel has forgotten it.
    pub(super) fn node(&self, number: u64) -> Result<Arc<Node>, Refusal> {
        self.nodes.get(number).ok_or(Refusal(Errno::STALE))
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The answer with the attributes of `node`, of this `number`, and at least the links that
    /// [`Node::nlink_min`] returned when the request arrived. The kernel may use them for `ttl_max`
    /// at most.
    pub(super) fn attributes(
        &self,
        number: u64,
        node: &Node,
        nlink_min: u32,
        ttl_max: Duration,
    ) -> Answer {
        let (attributes, ttl) = node.attributes_for_reply(nlink_min, ttl_max);
        Answer::attributes(number, &self.stat(attributes), ttl)
    }

    fn stat(&self, attributes: Attributes) -> Stat {
        Stat { attributes, block_bytes: self.rules.block_bytes }
    }

    /// The answer that a name in `dir` leads to `inode`, for which a lookup is counted. The kernel
    /// may use the name for `name_ttl_max` at most, and the attributes for `attributes_ttl_max`.
    pub(super) fn entry(
        &self,
        dir: &Inode,
        inode: &Arc<Inode>,
        name_ttl_max: Duration,
        attributes_ttl_max: Duration,
    ) -> Entry {
        let (number, node) =
            self.nodes.count_lookup(inode.handle(), || Node::new(Arc::clone(inode)));
        let (attributes, attributes_ttl) = node.attributes_for_reply(0, attributes_ttl_max);
        Entry {
            node: number,
            stat: self.stat(attributes),
            name_ttl: self.name_ttl(dir).min(name_ttl_max),
            attributes_ttl,
        }
    }

    /// How long the kernel may use a cached name in `dir`: as long as the attributes of the
    /// directory are valid, by which a change of its names is detected.
    ///
    /// If several users share a mount and the kernel does not check permissions, it resolves a
    /// cached name for all users. So names are not cached in directories that not all users may
    /// search, and the server checks each search. An access list that excludes a user does not show
    /// in the mode.
    pub(super) fn name_ttl(&self, dir: &Inode) -> Duration {
        if self.rules.lookup_cache == LookupCache::None || self.must_ask(dir) {
            return Duration::ZERO;
        }
        let ttl = dir.attributes_ttl();
        if is_shared(dir) { ttl.min(SHARED_NAME_TTL_MAX) } else { ttl }
    }

    /// Whether not all users may search `dir`, so that the server checks each search.
    pub(super) fn must_ask(&self, dir: &Inode) -> bool {
        self.rules.ask_before_search && dir.attributes().mode & SEARCH_BY_ALL != SEARCH_BY_ALL
    }

    /// Makes the kernel look up each name in the directory `number` again, because from now on not
    /// all users may search it.
    ///
    /// The kernel can expire a name only after the SETATTR that changed the mode has been answered.
    /// So a thread does it, and until then names are found without permission. A notification that
    /// outdates all names at once (Linux 6.16) need not wait, but detaches what is mounted on any
    /// directory of this mount, and each owner of a directory can cause it.
    pub(super) fn forget_names(&self, number: u64, dir: &Inode) {
        self.expire_names(number, dir.names());
    }

    /// Makes the kernel look up `names` in the directory `number` again, once the requests that
    /// hold the directory are answered.
    pub(super) fn expire_names(&self, number: u64, names: Vec<Bytes>) {
        let Some(notifier) = self.notifier.get().cloned() else { return };
        tokio::task::spawn_blocking(move || {
            for name in names {
                if let Err(error) = notifier.expire_name(number, &name) {
                    debug!(%error, "cannot expire a name in the kernel's cache");
                }
            }
        });
    }

    /// Notes that a name was removed or replaced. The reply has neither the file nor its `nlink`.
    pub(super) fn name_removed(&self) {
        self.names_removed.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the cached `nlink` of a file is as valid as its other attributes: the file has one
    /// name, or no name was removed since the last call for it. If not, the caller revalidates.
    pub(super) fn links_are_known(&self, node: &Node) -> bool {
        if node.is_dir() || node.inode.attributes().nlink < 2 {
            return true;
        }
        let removed = self.names_removed.load(Ordering::Acquire);
        node.names_removed.swap(removed, Ordering::AcqRel) == removed
    }

    /// Prepares the reply to an OPEN: invalidates the kernel's attributes of `number`, if it has
    /// older ones. Returns whether the kernel may keep its pages.
    ///
    /// Waits for no lock of another request, so that requests may call it.
    pub(super) fn prepare_open(&self, number: u64, node: &Node) -> bool {
        let (keeps_pages, believes_others) = {
            let mut view = node.view();
            let believes_others = view.believes_others(&node.inode.attributes());
            if believes_others {
                view.discard_attributes();
            }
            (view.open(node.inode.foreign_change_at(), Instant::now()), believes_others)
        };
        if believes_others {
            self.invalidate_attributes(number);
        }
        keeps_pages
    }

    /// Has the kernel ask for attributes before it uses them again.
    pub(super) fn invalidate_attributes(&self, number: u64) {
        if let Some(notifier) = self.notifier.get() {
            invalidate_attributes(notifier, number);
        }
    }

    /// Has the kernel ask for the attributes of a directory that another client has changed, also
    /// where the known ones are still those that the kernel has: they have expired.
    ///
    /// The kernel keeps the names: their notification would wait for the lock of the directory
    /// there, where a thread cannot be killed. This one takes no lock of a request. It waits for
    /// umount(2), which can wait for a READ (`fc->killsb`), so that no thread that requests need
    /// sends it.
    fn invalidate_dir(&self, number: u64, node: &Node, runtime: &Handle) {
        let Some(notifier) = self.notifier.get().cloned() else { return };
        if node.view().discard_believed() {
            let in_progress = InProgress::begin(&node.notifications);
            runtime.spawn_blocking(move || {
                invalidate_attributes(&notifier, number);
                drop(in_progress);
            });
        }
    }

    /// Another client has changed an open file or a directory. The next OPEN drops the pages of a
    /// file, or a task when [`KernelView::until_drop`] has passed.
    pub(super) fn changed_by_others(self: &Arc<Self>, handle: FileHandle, runtime: &Handle) {
        let Some((number, node)) = self.nodes.find(handle) else { return };
        if node.is_dir() {
            return self.invalidate_dir(number, &node, runtime);
        }
        if !node.view().note_stale_pages(Instant::now()) {
            return;
        }
        let operations = Arc::downgrade(self);
        runtime.spawn(async move {
            loop {
                let Some(operations) = operations.upgrade() else { return };
                let Some(node) = operations.nodes.get(number) else { return };
                let wait = node.view().until_drop(Instant::now());
                match wait {
                    None => return,
                    Some(Duration::ZERO) => {
                        let is_due =
                            |view: &mut KernelView| view.until_drop(Instant::now()) == wait;
                        operations.drop_stale_pages(number, &node, is_due).await;
                    }
                    Some(wait) => {
                        drop((operations, node));
                        tokio::time::sleep(wait).await;
                    }
                }
            }
        });
    }

    /// Drops the pages of a file that another client has changed, if `is_permitted`. Waits for
    /// requests that read or write these pages, so that no such request may call it.
    pub(super) async fn drop_stale_pages(
        &self,
        number: u64,
        node: &Node,
        is_permitted: impl FnOnce(&mut KernelView) -> bool,
    ) {
        let _only = node.dropping_pages.lock().await;
        {
            let mut view = node.view();
            if !is_permitted(&mut view) || !view.take_stale_pages() {
                return;
            }
        }
        let Some(notifier) = self.notifier.get().cloned() else { return };
        let dropped = tokio::task::spawn_blocking(move || notifier.invalidate(number, 0));
        if let Ok(Err(error)) = dropped.await {
            debug!(%error, "cannot invalidate the kernel's page cache");
        }
    }
}

impl Node {
    fn new(inode: Arc<Inode>) -> Self {
        Self {
            inode,
            view: Mutex::default(),
            grants: Grants::default(),
            names_removed: AtomicU64::new(0),
            dropping_pages: tokio::sync::Mutex::default(),
            notifications: watch::Sender::default(),
            appending: tokio::sync::Mutex::default(),
        }
    }

    /// The attributes as they are known now, with at least `nlink_min` links, and for how long the
    /// kernel may believe them: for `ttl_max` at most.
    fn attributes_for_reply(&self, nlink_min: u32, ttl_max: Duration) -> (Attributes, Duration) {
        // Under the lock, so that a later OPEN with newer attributes finds these and replaces them.
        let mut view = self.view();
        // First, too: the attributes may be those from before a WRITE that has ended since.
        let was_clean = is_clean(&self.inode);
        let known = self.inode.attributes();
        let nlink = known.nlink.max(view.nlink_min());
        let shown = Attributes { nlink: nlink.max(nlink_min), ..known };
        let is_exact = shown.nlink == known.nlink;
        let is_final = is_exact && was_clean;
        let ttl = if is_final { attributes_ttl(&self.inode, &known) } else { Duration::ZERO };
        let ttl = ttl.min(ttl_max);
        // `nlink_min` is from before a removal that the kernel subtracts, if it is the larger.
        view.learn(&Attributes { nlink, ..known }, ttl, Instant::now());
        (shown, ttl)
    }

    /// [`KernelView::nlink_min`] of a request that arrives now.
    pub(super) fn nlink_min(&self) -> u32 {
        self.view().nlink_min()
    }

    /// Whether the kernel has the file's size, and no other client has changed the file lately.
    pub(super) fn has_settled(&self) -> bool {
        let size = self.inode.attributes().size;
        !is_shared(&self.inode) && self.view().has_size(size, Instant::now())
    }

    /// Waits for the parts of an asynchronous write(2) that are before the one at `offset`: the
    /// kernel sends them at once, and their order shows where they belong if it has another size of
    /// the file.
    pub(super) async fn earlier_parts_appended(&self, offset: u64) {
        for _ in 0..PARTS_POLLS {
            if self.has_settled() || !self.view().ends_before(offset) {
                return;
            }
            tokio::time::sleep(PARTS_POLL).await;
        }
    }

    /// Where data appended by a write(2) goes, for which the kernel has chosen `offset`: to the end
    /// of the file. In a settled file that is `offset`.
    ///
    /// # Errors
    /// Those of GETATTR.
    pub(super) async fn append_offset(
        &self,
        caller: &FileSystem,
        offset: u64,
    ) -> Result<u64, Refusal> {
        if is_shared(&self.inode) {
            self.inode.send_written().await;
            caller.revalidate(&self.inode).await?;
            // Another client may have cut the file in front of what this one has written.
            self.inode.written()?.foreign_change_readable().await;
        } else if self.inode.fresh_attributes().is_none() {
            caller.revalidate(&self.inode).await?;
        }
        let has_settled = self.has_settled();
        let end = self.inode.attributes().size;
        Ok(if has_settled { offset } else { end })
    }

    /// Waits until the kernel has been notified of the changes of this directory by other clients
    /// that were noticed so far: after a reply that shows one, stat(2) does too.
    pub(super) async fn notified(&self) {
        ended(&self.notifications).await;
    }

    /// Waits until pages that are being dropped are gone.
    pub(super) async fn pages_dropped(&self) {
        drop(self.dropping_pages.lock().await);
    }

    pub(super) fn view(&self) -> MutexGuard<'_, KernelView> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_dir(&self) -> bool {
        self.inode.file_type() == FileType::Directory
    }
}

/// How long the kernel may use the attributes of `inode`. Zero while written data is being sent,
/// which will change them: the next GETATTR waits for it, as with the kernel's NFS client. Zero
/// while other clients change the file, so that an OPEN that finds a change does not have to
/// invalidate the kernel's attributes, which would discard replies that reads of other programs
/// wait for. Zero for a file with set-id bits: the kernel keeps them when another user writes the
/// file on this mount, the server clears them, and execve(2) must not use the kernel's. A write by
/// another client is seen when the attributes expire, as with all files, or by OPEN.
fn attributes_ttl(inode: &Inode, known: &Attributes) -> Duration {
    let is_file = inode.file_type() == FileType::Regular;
    let changes = || is_shared(inode) || known.mode & SET_ID_BITS != 0 || !is_clean(inode);
    if is_file && changes() { Duration::ZERO } else { inode.attributes_ttl() }
}

/// How long the kernel may use the attributes of `inode` in the reply to a SETATTR, or to a call
/// that creates it, at most. It takes them also if a notification has overtaken the reply, other
/// than with GETATTR and LOOKUP (`fuse_do_setattr`, `create_new_entry`, fs/fuse/dir.c). So it asks
/// again for those of a directory, whose changes are shown by notifications.
pub(super) fn changed_ttl_max(inode: &Inode) -> Duration {
    if inode.file_type() == FileType::Directory { Duration::ZERO } else { Duration::MAX }
}

fn invalidate_attributes(notifier: &Notifier, number: u64) {
    if let Err(error) = notifier.invalidate(number, -1) {
        debug!(%error, "cannot invalidate attributes in the kernel's cache");
    }
}

/// Whether the file has no written data that is not committed.
fn is_clean(inode: &Inode) -> bool {
    inode.written().map_or(true, |written| written.is_clean())
}

/// Whether the file runs as its owner or group.
pub(super) fn is_set_id(inode: &Inode) -> bool {
    inode.attributes().mode & SET_ID_BITS != 0
}

/// Whether another client has changed the file or directory lately.
fn is_shared(inode: &Inode) -> bool {
    inode.foreign_change_at().is_some_and(|at| at.elapsed() < SHARED_FOR)
}

/// Time in which an object that another client has changed is expected to be changed again: a job
/// on another machine that writes a log, or files into a directory, pauses for some seconds.
const SHARED_FOR: Duration = Duration::from_secs(10);

/// How long the kernel may use a name in a directory that another client has changed lately: as
/// long as with the shortest time that nfs(5) can set, `acdirmax=1`. The kernel does not learn of a
/// further change until then. With none, each open(2) of a program would send a LOOKUP.
const SHARED_NAME_TTL_MAX: Duration = Duration::from_secs(1);

/// How often, and how many times at most, a part of a write(2) looks for earlier parts.
const PARTS_POLL: Duration = Duration::from_millis(1);
const PARTS_POLLS: u32 = 100;

/// The execute bits of owner, group and all others.
const SEARCH_BY_ALL: u32 = 0o111;
