//! A mounted export and the operations on its objects.
//!
//! The operations take and return inodes. The attributes of every object in a reply update its
//! inode.

mod attr;
mod namespace;
mod silly_rename;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use proto::nfs3::{ACCESS_EXECUTE, Attributes, FileHandle, FsinfoOk, FsstatOk};
use rustix::io::Errno;

pub(crate) use namespace::Found;

use crate::cache::directory::Entry;
use crate::directory::Directory;
use crate::file::{File, OpenFlags};
use crate::inode::{Inode, InodeTable, Sent, Superblock};
use crate::nfs3::Nfs3;
use crate::trace::Tracer;
use crate::{Error, Identity, MountOptions, NfsUrl, Result, mount3};

/// A mounted export, used as one user. Clones share everything but the user.
#[derive(Clone, Debug)]
pub struct FileSystem {
    nfs: Nfs3,
    shared: Arc<MountedExport>,
}

/// State that all users of the mount share.
#[derive(Debug)]
struct MountedExport {
    inodes: Arc<InodeTable>,
    root: Arc<Inode>,
    info: FsinfoOk,
    /// Part of the next silly name. Begins at random, so that no two clients give a file the same
    /// name: one client would remove that of the other.
    silly_renames: AtomicU32,
}

impl FileSystem {
    /// Mounts the export that `url` names, as `identity`.
    ///
    /// # Errors
    /// The server cannot be reached or refuses the mount, or FSINFO or GETATTR of the root fails.
    pub async fn mount(
        url: &NfsUrl,
        identity: &Arc<Identity>,
        options: &MountOptions,
        tracer: Arc<Tracer>,
    ) -> Result<Self> {
        let mounted = mount3::mount(url, options, identity).await?;
        Self::over(mounted.nfs, mounted.root, options, tracer).await
    }

    /// The file system whose root directory has the handle `root`.
    ///
    /// # Errors
    /// FSINFO or GETATTR of the root fails.
    pub async fn over(
        nfs: Nfs3,
        root: FileHandle,
        options: &MountOptions,
        tracer: Arc<Tracer>,
    ) -> Result<Self> {
        let info = within_options(nfs.fsinfo(root).await?, options);
        let inodes = InodeTable::new(Superblock::new(options.clone(), &info, tracer));
        let sent = Sent::now();
        let attributes = nfs.getattr(root).await?;
        let root = inodes.inode(root, &attributes, sent);
        let silly_renames = AtomicU32::new(any_number());
        let shared = MountedExport { inodes, root, info, silly_renames };
        Ok(Self { nfs, shared: Arc::new(shared) })
    }

    /// The same file system for another user.
    #[must_use]
    pub fn as_user(&self, identity: &Arc<Identity>) -> Self {
        Self { nfs: self.nfs.as_user(identity), shared: Arc::clone(&self.shared) }
    }

    /// The root directory of the mount.
    #[must_use]
    pub fn root(&self) -> Arc<Inode> {
        Arc::clone(&self.shared.root)
    }

    /// FSINFO of the server, with the sizes limited by the options.
    #[must_use]
    pub fn info(&self) -> &FsinfoOk {
        &self.shared.info
    }

    /// The mount options.
    #[must_use]
    pub fn options(&self) -> &MountOptions {
        self.superblock().options()
    }

    /// The tracer of the mount.
    #[must_use]
    pub fn tracer(&self) -> &Tracer {
        self.superblock().tracer()
    }

    /// Calls `listener` with the handle of each open file and each directory that another client
    /// has changed. Only the first listener counts.
    pub fn on_foreign_change(&self, listener: impl Fn(FileHandle) + Send + Sync + 'static) {
        self.superblock().on_foreign_change(Box::new(listener));
    }

    /// The object of an entry of a listing whose call was sent at `sent_at`, if the entry has
    /// handle and attributes and the handle is not known to be stale. Makes no call.
    pub(crate) fn listed(&self, entry: &Entry<'_>, sent_at: Instant) -> Option<Arc<Inode>> {
        let sent = Sent::At(sent_at);
        let (handle, attributes) = (entry.handle?, entry.attributes?);
        let is_stale = self.shared.inodes.is_stale(&handle);
        (!is_stale).then(|| self.shared.inodes.inode(handle, attributes, sent))
    }

    /// The inode of `handle` from the reply to a LOOKUP or a call that creates a name, by GETATTR
    /// if the reply had no attributes.
    async fn inode(
        &self,
        handle: FileHandle,
        attributes: Option<Attributes>,
        sent: Sent,
    ) -> Result<Arc<Inode>> {
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.nfs.getattr(handle).await?,
        };
        let inode = self.shared.inodes.inode(handle, &attributes, sent);
        inode.note_looked_up();
        Ok(inode)
    }

    /// Opens a regular file. ACCESS checks the permissions that `flags` need and, with `cto`,
    /// revalidates the cache.
    ///
    /// # Errors
    /// `ACCES`; `ISDIR` and `INVAL` for other types; those of the calls.
    pub async fn open(&self, inode: &Arc<Inode>, flags: OpenFlags) -> Result<File> {
        self.open_if_granted(inode, flags, flags.wanted()).await
    }

    /// Like [`open`](Self::open), to run a program: it has to be executable by the caller, and need
    /// not be readable, RFC 1813 §4.4.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub async fn open_program(&self, inode: &Arc<Inode>, flags: OpenFlags) -> Result<File> {
        self.open_if_granted(inode, flags, ACCESS_EXECUTE).await
    }

    /// Opens a regular file if ACCESS grants all of `wanted`, a sum of `ACCESS_*`.
    async fn open_if_granted(
        &self,
        inode: &Arc<Inode>,
        flags: OpenFlags,
        wanted: u32,
    ) -> Result<File> {
        // From before ACCESS: a REMOVE sent meanwhile would leave the opened file without its data.
        let hold = inode.hold()?;
        // ACCESS might overtake a REMOVE that was sent before.
        drop(inode.removal_turn().await);
        self.check_open(inode, wanted).await?;
        File::new(&self.nfs, hold, flags)
    }

    /// Opens the file that [`create`](Self::create) has returned, whatever its mode is. Makes no
    /// call.
    ///
    /// # Errors
    /// `ISDIR` and `INVAL` for other types than a regular file.
    pub fn open_created(&self, inode: &Arc<Inode>, flags: OpenFlags) -> Result<File> {
        File::new(&self.nfs, inode.hold()?, flags)
    }

    /// ACCESS returns both the permissions and the current attributes.
    async fn check_open(&self, inode: &Arc<Inode>, wanted: u32) -> Result<()> {
        let sent = inode.sent();
        let granted = inode.note_outcome(self.nfs.access(inode.handle(), wanted).await)?;
        inode.note_for_open(granted.attributes.as_ref(), sent).await;
        if granted.access & wanted != wanted {
            return Err(Error::Refused(Errno::ACCESS));
        }
        if granted.attributes.is_none() && self.options().close_to_open {
            let sent = inode.sent();
            let attributes = inode.note_outcome(self.nfs.getattr(inode.handle()).await)?;
            inode.note_for_open(Some(&attributes), sent).await;
        }
        Ok(())
    }

    /// Opens a directory for listing.
    ///
    /// # Errors
    /// `NOTDIR` for other types; those of GETATTR if the attributes have expired.
    pub async fn open_dir(&self, inode: &Arc<Inode>) -> Result<Directory> {
        inode.listing()?;
        if inode.fresh_attributes().is_none() {
            self.revalidate(inode).await?;
        }
        Directory::new(&self.nfs, Arc::clone(inode))
    }

    /// FSSTAT, RFC 1813 §3.3.18, of the file system that `inode` is in.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn statfs(&self, inode: &Inode) -> Result<FsstatOk> {
        self.nfs.fsstat(inode.handle()).await
    }

    /// Sends and commits the written data of all files. If the future is dropped, no error is lost.
    ///
    /// # Errors
    /// Those of [`check_lost`](Self::check_lost). All files are tried.
    pub async fn sync(&self) -> Result<()> {
        // Until the check: one of these that is dropped meanwhile has its error in neither place
        // for a moment.
        let _inodes = self.shared.inodes.all();
        self.commit().await;
        self.check_lost()
    }

    /// Like [`sync`](Self::sync), but leaves write errors for the openers to collect.
    pub(crate) async fn commit(&self) {
        for inode in self.shared.inodes.all() {
            if let Ok(written) = inode.written() {
                written.commit().await;
            }
        }
    }

    /// Whether the written data of all files is committed or lost.
    pub(crate) fn is_clean(&self) -> bool {
        let inodes = self.shared.inodes.all();
        inodes.iter().all(|inode| inode.written().map_or(true, |written| written.is_clean()))
    }

    /// Waits for nothing.
    ///
    /// # Errors
    /// Data of some file was lost, and this was reported to no open file. Each loss is reported
    /// once.
    pub(crate) fn check_lost(&self) -> Result<()> {
        let mut outcome = Ok(());
        for inode in self.shared.inodes.all() {
            if let Ok(written) = inode.written() {
                outcome = outcome.and(written.check_unreported());
            }
        }
        outcome.and(self.superblock().check_lost())
    }

    fn superblock(&self) -> &Superblock {
        self.shared.inodes.superblock()
    }

    pub(crate) fn nfs(&self) -> &Nfs3 {
        &self.nfs
    }
}

fn any_number() -> u32 {
    let [a, b, c, d, ..] = RandomState::new().hash_one(Instant::now()).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// The server's sizes, limited by the options and to at least [`TRANSFER_BYTES_MIN`].
fn within_options(info: FsinfoOk, options: &MountOptions) -> FsinfoOk {
    let within = |max: u32, option: Option<u32>| {
        option.map_or(max, |option| option.min(max)).clamp(TRANSFER_BYTES_MIN, TRANSFER_BYTES_MAX)
    };
    let (rtmax, wtmax) = (within(info.rtmax, options.rsize), within(info.wtmax, options.wsize));
    let dtpref = info.dtpref.clamp(TRANSFER_BYTES_MIN, TRANSFER_BYTES_MAX);
    FsinfoOk { rtmax, wtmax, dtpref, ..info }
}

/// The smallest READ or WRITE, as in the Linux client.
const TRANSFER_BYTES_MIN: u32 = 1024;

/// The largest READ or WRITE, the maximum of Spillway's server.
const TRANSFER_BYTES_MAX: u32 = 4 << 20;
