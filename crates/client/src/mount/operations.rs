//! The operations of a mounted file system: what a request of the kernel means to a
//! [`FileSystem`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use fuser::{INodeNo, Notifier};
use proto::nfs3::{Attributes, FileType};
use rustix::io::Errno;
use tokio::runtime::Handle;
use tracing::debug;

use super::callers::Callers;
use super::grants::Grants;
use super::handles::Handles;
use super::nodes::Nodes;
use super::reply::{Answer, Entry, Granted, Stat};
use super::request::{Head, Operation};
use crate::directory::Directory;
use crate::error::Error;
use crate::file::File;
use crate::file_system::FileSystem;
use crate::inode::Inode;
use crate::mount_options::LookupCache;

/// The files of one mount, and what the kernel holds of them.
pub(super) struct Operations {
    pub(super) file_system: FileSystem,
    pub(super) nodes: Nodes<Node>,
    pub(super) files: Handles<OpenFile>,
    pub(super) dirs: Handles<Directory>,
    callers: Callers,
    rules: Rules,
    /// Set once the file system is mounted, before the first request.
    notifier: OnceLock<Notifier>,
    /// Counts the names that went, see [`Operations::links_are_known`].
    names_removed: AtomicU64,
}

/// What the options of the mount mean to its operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Several users share what the kernel remembers, and it does not look at permissions.
    pub(super) ask_before_search: bool,
    pub(super) lookup_cache: LookupCache,
    /// Bytes that programs are told to read and write at a time; a power of two.
    pub(super) block_bytes: u32,
    /// Bytes of a name at most.
    pub(super) name_max: u32,
}

/// A file that the kernel knows.
pub(super) struct Node {
    pub(super) inode: Arc<Inode>,
    /// The attributes that the kernel was told last.
    told: Mutex<Option<Attributes>>,
    pub(super) grants: Grants,
    /// As many names had gone when the attributes were asked for.
    names_removed: AtomicU64,
    /// Somebody else has changed the file since its pages were dropped.
    pages_are_stale: AtomicBool,
    dropping_pages: tokio::sync::Mutex<()>,
}

/// A file that is open.
pub(super) struct OpenFile {
    pub(super) file: File,
    pub(super) node: u64,
}

/// Why a request is not carried out.
pub(super) struct Refusal(pub(super) Errno);

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        // Why no connection came about is of no use to who uses a file, and not expected there.
        Self(if matches!(error, Error::Connection { .. }) { Errno::IO } else { error.errno() })
    }
}

/// What an operation comes to.
pub(super) type Outcome = Result<Answer, Refusal>;

impl Operations {
    /// Those of `file_system`, of which the kernel knows only the root so far.
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
            names_removed: AtomicU64::new(0),
        }
    }

    /// Says how the kernel is told that something changed.
    pub(super) fn notify_through(&self, notifier: Notifier) {
        // A second one would be for the same mount.
        let _ = self.notifier.set(notifier);
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
            Operation::Read { fh, offset, size } => self.read(fh, offset, size).await,
            Operation::Write { fh, offset, write_flags, data } => {
                self.write(fh, offset, write_flags, data.bytes()).await
            }
            Operation::Flush { fh } | Operation::Fsync { fh } => self.sync(fh).await,
            Operation::Release { fh } => self.release(fh).await,
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
            | Operation::Destroy => unreachable!("the session keeps these to itself"),
            // The kernel does not ask again, and does what it can without us: extended attributes
            // and preallocation are EOPNOTSUPP, SEEK_HOLE sees no holes, copy_file_range copies,
            // locks hold on this machine.
            Operation::Unknown => Err(Refusal(Errno::NOSYS)),
        };
        outcome.unwrap_or_else(|Refusal(errno)| Answer::error(errno))
    }

    /// The kernel forgets `lookups` lookups of `node`.
    pub(super) fn forget(&self, node: u64, lookups: u64) {
        self.nodes.forget(node, lookups);
    }

    /// Takes back what the kernel did not take.
    pub(super) async fn take_back(&self, granted: Granted) {
        for node in granted.nodes {
            self.nodes.forget(node, 1);
        }
        if let Some(fh) = granted.dir {
            self.dirs.remove(fh);
        }
        if let Some(fh) = granted.file {
            self.reconsider_pages(fh).await;
        }
        if let Some(fh) = granted.file
            && let Err(Refusal(error)) = self.release(fh).await
        {
            debug!(%error, "file closed for a caller that is gone");
        }
    }

    /// The file system as the caller sees it.
    pub(super) fn as_caller(&self, head: &Head) -> FileSystem {
        self.file_system.as_user(&self.callers.identity(head))
    }

    /// What is kept for a number of the kernel's.
    pub(super) fn node(&self, number: u64) -> Result<Arc<Node>, Refusal> {
        self.nodes.get(number).ok_or(Refusal(Errno::STALE))
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    pub(super) fn stat<'a>(&self, attributes: &'a Attributes) -> Stat<'a> {
        Stat { attributes, block_bytes: self.rules.block_bytes }
    }

    /// The answer that a name in `dir` leads to `inode`, for which a lookup is counted.
    pub(super) fn entry<'a>(
        &self,
        dir: &Inode,
        inode: &Arc<Inode>,
        attributes: &'a Attributes,
    ) -> Entry<'a> {
        let (number, node) =
            self.nodes.count_lookup(inode.handle(), || Node::new(Arc::clone(inode)));
        node.tell(attributes);
        Entry {
            node: number,
            stat: self.stat(attributes),
            name_ttl: self.name_ttl(dir),
            attributes_ttl: attributes_ttl(inode),
        }
    }

    /// How long the kernel may believe what it knows of a name in `dir`: as long as the
    /// attributes of the directory are believed, by which a change of its names shows.
    ///
    /// Where several users share a mount, and the kernel leaves permissions to us, a name that it
    /// remembers leads everybody through the directory. So it remembers none in a directory that
    /// not everybody may search, and each search is checked.
    pub(super) fn name_ttl(&self, dir: &Inode) -> Duration {
        if self.rules.lookup_cache == LookupCache::None || self.must_ask(dir) {
            return Duration::ZERO;
        }
        dir.attributes_ttl()
    }

    /// Whether not everybody may search `dir`, so that the server is to be asked for each caller.
    pub(super) fn must_ask(&self, dir: &Inode) -> bool {
        self.rules.ask_before_search && dir.attributes().mode & SEARCH_BY_ALL != SEARCH_BY_ALL
    }

    /// Makes the kernel ask again for each name in the directory `number`, which is searched by
    /// leave from now on. That waits for the request that changed it, so it is done beside it.
    pub(super) fn forget_names(&self, number: u64, dir: &Inode) {
        let Some(notifier) = self.notifier.get().cloned() else { return };
        let names = dir.names();
        tokio::task::spawn_blocking(move || {
            for name in names {
                if let Err(error) = notifier.inval_entry(INodeNo(number), OsStr::from_bytes(&name))
                {
                    debug!(%error, "a name of the kernel not invalidated");
                }
            }
        });
    }

    /// A name was removed or replaced. The server does not say of which file, nor what became of its
    /// count of links.
    pub(super) fn name_removed(&self) {
        self.names_removed.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the count of links of a file is as good as its other attributes: it has but one
    /// name, or no name went since this was asked for it. Who gets `false` asks the server.
    pub(super) fn links_are_known(&self, node: &Node) -> bool {
        if node.is_dir() || node.inode.attributes().nlink < 2 {
            return true;
        }
        let removed = self.names_removed.load(Ordering::Acquire);
        node.names_removed.swap(removed, Ordering::AcqRel) == removed
    }

    /// Makes the kernel ask for the attributes of `number` again, unless it has been told these.
    /// Takes no lock that a request could hold, so that requests may do it.
    pub(super) fn refresh_attributes(&self, number: u64, node: &Node, attributes: &Attributes) {
        if node.was_told(attributes) {
            return;
        }
        if let Some(notifier) = self.notifier.get()
            && let Err(error) = notifier.inval_inode(INodeNo(number), -1, 0)
        {
            debug!(%error, "attributes of the kernel not invalidated");
        }
    }

    /// Somebody else has changed an open file: its pages go as soon as may be, and before anybody is
    /// told its new length, behind which the last page would read as zeros.
    pub(super) fn changed_by_others(self: &Arc<Self>, inode: &Inode, runtime: &Handle) {
        let Some((number, node)) = self.nodes.find(inode.handle()) else { return };
        node.note_stale_pages();
        let operations = Arc::clone(self);
        runtime.spawn(async move { operations.drop_stale_pages(number, &node).await });
    }

    /// Takes the contents of the file away from the page cache, if they are known to be outdated.
    /// Waits for requests that read or write them, so that it is never done by one of those.
    pub(super) async fn drop_stale_pages(&self, number: u64, node: &Node) {
        if !node.pages_are_stale.load(Ordering::Acquire) && node.dropping_pages.try_lock().is_ok() {
            return;
        }
        let _only = node.dropping_pages.lock().await;
        if !node.pages_are_stale.swap(false, Ordering::AcqRel) {
            return;
        }
        let Some(notifier) = self.notifier.get().cloned() else { return };
        let dropped =
            tokio::task::spawn_blocking(move || notifier.inval_inode(INodeNo(number), 0, 0));
        if let Ok(Err(error)) = dropped.await {
            debug!(%error, "page cache not invalidated");
        }
    }
}

impl Node {
    fn new(inode: Arc<Inode>) -> Self {
        Self {
            inode,
            told: Mutex::default(),
            grants: Grants::default(),
            names_removed: AtomicU64::new(0),
            pages_are_stale: AtomicBool::new(false),
            dropping_pages: tokio::sync::Mutex::default(),
        }
    }

    /// Notes that the kernel gets to know `attributes`.
    pub(super) fn tell(&self, attributes: &Attributes) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(*attributes);
    }

    fn was_told(&self, attributes: &Attributes) -> bool {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.as_ref() == Some(attributes)
    }

    /// Notes that somebody else has changed the file since its pages were dropped.
    pub(super) fn note_stale_pages(&self) {
        self.pages_are_stale.store(true, Ordering::Release);
    }

    pub(super) fn is_dir(&self) -> bool {
        self.inode.file_type() == FileType::Directory
    }
}

/// How long the kernel may believe the attributes of `inode`. Not at all while data is on its way
/// to the server, which will change them: the next to ask waits for it, as with the kernel's NFS
/// client.
pub(super) fn attributes_ttl(inode: &Inode) -> Duration {
    match inode.written() {
        Ok(written) if !written.is_clean() => Duration::ZERO,
        _ => inode.attributes_ttl(),
    }
}

/// The execute bits of owner, group and all others.
const SEARCH_BY_ALL: u32 = 0o111;
