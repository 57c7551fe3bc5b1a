//! A mounted export and the operations on its objects.
//!
//! Each operation takes inodes and gives inodes; what a reply says about any object on the way is
//! noted with that object. The FUSE mount and the commands stand on the same operations.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::nfs3::{
    Attributes, CreateHow, CreatedOk, FileHandle, FsinfoOk, FsstatOk, MknodData, SetAttributes,
    SetTime, Status, WccData,
};
use rustix::io::Errno;

use crate::directory::Directory;
use crate::directory_cache::Entry;
use crate::file::{File, OpenFlags};
use crate::inode::{Aside, Inode, OwnChange, Sent};
use crate::inode_table::InodeTable;
use crate::nfs3::Nfs3;
use crate::trace::{Event, Tracer};
use crate::{Error, Identity, MountOptions, NfsUrl, Result, mount3};

/// A mounted export, as one user sees it. Clones share everything but the user.
#[derive(Clone, Debug)]
pub struct FileSystem {
    nfs: Nfs3,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    table: Arc<InodeTable>,
    root: Arc<Inode>,
    info: FsinfoOk,
    /// Silly renames so far: part of the name of the next.
    silly_renames: AtomicU32,
}

impl FileSystem {
    /// Mounts the export that `url` names, as `identity`.
    ///
    /// # Errors
    /// The server cannot be reached, does not let this client mount the path, or does not answer
    /// FSINFO and GETATTR for its root.
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
    /// The server does not answer FSINFO and GETATTR for it.
    pub async fn over(
        nfs: Nfs3,
        root: FileHandle,
        options: &MountOptions,
        tracer: Arc<Tracer>,
    ) -> Result<Self> {
        let info = within_options(nfs.fsinfo(root).await?, options);
        let table = InodeTable::new(options.clone(), &info, tracer);
        let sent = Sent::now();
        let attributes = nfs.getattr(root).await?;
        let root = table.inode(root, &attributes, sent);
        let shared = Shared { table, root, info, silly_renames: AtomicU32::new(0) };
        Ok(Self { nfs, shared: Arc::new(shared) })
    }

    /// The same file system for another user.
    #[must_use]
    pub fn as_user(&self, identity: &Arc<Identity>) -> Self {
        Self { nfs: self.nfs.as_user(identity), shared: Arc::clone(&self.shared) }
    }

    /// The directory that was mounted.
    #[must_use]
    pub fn root(&self) -> Arc<Inode> {
        Arc::clone(&self.shared.root)
    }

    /// FSINFO of the server, its sizes within those of the options.
    #[must_use]
    pub fn info(&self) -> &FsinfoOk {
        &self.shared.info
    }

    /// How it was mounted.
    #[must_use]
    pub fn options(&self) -> &MountOptions {
        self.shared.table.options()
    }

    /// What prints its events.
    #[must_use]
    pub fn tracer(&self) -> &Tracer {
        self.shared.table.tracer()
    }

    /// Calls `listener` with each file whose cached data turns out to be changed by somebody else
    /// while it is open. Set once; later ones are ignored.
    pub fn on_foreign_change(&self, listener: impl Fn(&Inode) + Send + Sync + 'static) {
        self.shared.table.on_foreign_change(Box::new(listener));
    }

    /// The object that `dir` has under `name`, which is neither `.` nor `..`: LOOKUP, RFC 1813
    /// §3.3.3, unless a listing that is still believed has it.
    ///
    /// # Errors
    /// [`Status::Noent`], or what the server says.
    pub async fn lookup(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Arc<Inode>> {
        if let Some(inode) = self.lookup_cached(dir, name).await? {
            return Ok(inode);
        }
        self.trace_name(Event::LookupCall, dir, name);
        let (sent, dir_sent) = (Sent::now(), dir.sent());
        let found = self.nfs.lookup(dir.handle(), name).await?;
        dir.note(found.dir_attributes.as_ref(), dir_sent);
        let inode = self.inode(found.object, found.object_attributes, sent).await?;
        dir.name_found(name, &inode);
        Ok(inode)
    }

    /// The object under `name` as a listing shows it, if the directory is known to be unchanged
    /// since.
    async fn lookup_cached(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Inode>>> {
        let Some(mut listed) = dir.listed(name) else { return Ok(None) };
        if dir.fresh_attributes().is_none() {
            // One call for all names of the listing, where LOOKUP is one for each.
            self.revalidate(dir).await?;
            match dir.listed(name) {
                Some(again) => listed = again,
                None => return Ok(None),
            }
        }
        let (handle, attributes, sent) = listed;
        self.trace_name(Event::LookupCached, dir, name);
        let inode = self.shared.table.inode(handle, &attributes, sent);
        dir.name_found(name, &inode);
        Ok(Some(inode))
    }

    /// The object of an entry of a listing that was fetched `age` ago, if the listing came with its
    /// handle and attributes. Asks nobody.
    pub(crate) fn listed(&self, entry: &Entry<'_>, age: Duration) -> Option<Arc<Inode>> {
        let sent = Sent::At(Instant::now().checked_sub(age)?);
        Some(self.shared.table.inode(entry.handle?, entry.attributes?, sent))
    }

    /// The inode of a handle that came with attributes or without.
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
        Ok(self.shared.table.inode(handle, &attributes, sent))
    }

    /// The attributes of an object, no older than the options allow. Data that was written and not
    /// yet sent is sent first, so that times and size are the server's.
    ///
    /// # Errors
    /// What the server says to GETATTR. A failed WRITE is not reported here, but to who wrote.
    pub async fn attributes(&self, inode: &Arc<Inode>) -> Result<Attributes> {
        inode.send_written().await;
        match inode.fresh_attributes() {
            Some(attributes) => Ok(attributes),
            None => self.revalidate(inode).await,
        }
    }

    /// Asks the server for the attributes of an object.
    ///
    /// # Errors
    /// What the server says to GETATTR.
    pub async fn revalidate(&self, inode: &Arc<Inode>) -> Result<Attributes> {
        self.trace(Event::GetattrCall, inode);
        let sent = inode.sent();
        let attributes = self.nfs.getattr(inode.handle()).await?;
        inode.note(Some(&attributes), sent);
        Ok(inode.attributes())
    }

    /// SETATTR, RFC 1813 §3.3.2. What was written before is at the server before it, so that times
    /// that are set stay.
    ///
    /// # Errors
    /// What the server says.
    pub async fn set_attributes(
        &self,
        inode: &Arc<Inode>,
        new: SetAttributes,
    ) -> Result<Attributes> {
        inode.send_written().await;
        self.trace(Event::SetattrCall, inode);
        let change = inode.begin_change();
        let wcc = self.nfs.setattr(inode.handle(), new, None).await?;
        change.finish(&wcc);
        if let Some(size) = new.size {
            inode.cut_written(size).await;
        }
        match wcc.after {
            Some(_) => Ok(inode.attributes()),
            None => self.revalidate(inode).await,
        }
    }

    /// Which of the permissions `wanted`, a sum of `ACCESS_*`, the server grants: ACCESS, RFC 1813
    /// §3.3.4.
    ///
    /// # Errors
    /// What the server says.
    pub async fn access(&self, inode: &Arc<Inode>, wanted: u32) -> Result<u32> {
        let sent = inode.sent();
        let granted = self.nfs.access(inode.handle(), wanted).await?;
        inode.note(granted.attributes.as_ref(), sent);
        Ok(granted.access)
    }

    /// The target of a symbolic link: READLINK, RFC 1813 §3.3.5.
    ///
    /// # Errors
    /// [`Status::Inval`] for what is no symbolic link, or what the server says.
    pub async fn read_link(&self, inode: &Arc<Inode>) -> Result<Bytes> {
        let sent = inode.sent();
        let link = self.nfs.readlink(inode.handle()).await?;
        inode.note(link.attributes.as_ref(), sent);
        Ok(link.target)
    }

    /// Creates a regular file: CREATE, RFC 1813 §3.3.8. One that is there already is opened as it
    /// is, unless `exclusive`.
    ///
    /// # Errors
    /// [`Status::Exist`] when `exclusive`, or what the server says.
    pub async fn create(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        mode: u32,
        exclusive: bool,
    ) -> Result<Arc<Inode>> {
        let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        if !exclusive {
            return self.create_how(dir, name, CreateHow::Unchecked(attributes)).await;
        }
        let how = CreateHow::Exclusive(create_verifier());
        let inode = match self.create_how(dir, name, how).await {
            // Optional for a server (RFC 1813 §3.3.8); a reply that is lost is then less safe.
            Err(error) if error.is(Status::Notsupp) => {
                return self.create_how(dir, name, CreateHow::Guarded(attributes)).await;
            }
            created => created?,
        };
        // The server kept the verifier in place of attributes, most of them in its times.
        let now = SetTime::ToServerTime;
        let new = SetAttributes { atime: now, mtime: now, ..attributes };
        self.set_attributes(&inode, new).await?;
        Ok(inode)
    }

    async fn create_how(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        how: CreateHow,
    ) -> Result<Arc<Inode>> {
        self.create_with(dir, name, |nfs| nfs.create(dir.handle(), name, how)).await
    }

    /// Creates a directory: MKDIR, RFC 1813 §3.3.9.
    ///
    /// # Errors
    /// What the server says.
    pub async fn make_dir(&self, dir: &Arc<Inode>, name: &[u8], mode: u32) -> Result<Arc<Inode>> {
        let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        self.create_with(dir, name, |nfs| nfs.mkdir(dir.handle(), name, attributes)).await
    }

    /// Creates a symbolic link: SYMLINK, RFC 1813 §3.3.10.
    ///
    /// # Errors
    /// What the server says.
    pub async fn symlink(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        target: &[u8],
    ) -> Result<Arc<Inode>> {
        let attributes = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
        self.create_with(dir, name, |nfs| nfs.symlink(dir.handle(), name, target, attributes)).await
    }

    /// Creates a device, pipe or socket: MKNOD, RFC 1813 §3.3.11.
    ///
    /// # Errors
    /// What the server says.
    pub async fn make_node(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        what: MknodData,
    ) -> Result<Arc<Inode>> {
        self.create_with(dir, name, |nfs| nfs.mknod(dir.handle(), name, what)).await
    }

    /// Makes a call that creates `name`, and takes the inode of what it created. A server need not
    /// give its handle.
    async fn create_with<C: Future<Output = Result<CreatedOk>>>(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        call: impl FnOnce(&Nfs3) -> C,
    ) -> Result<Arc<Inode>> {
        let (sent, change) = (Sent::now(), dir.begin_name_change(name));
        let created = call(&self.nfs).await?;
        change.finish(&created.dir_wcc);
        let Some(handle) = created.object else { return self.lookup(dir, name).await };
        let inode = self.inode(handle, created.attributes, sent).await?;
        dir.name_found(name, &inode);
        Ok(inode)
    }

    /// Removes a name: REMOVE, RFC 1813 §3.3.12. The last name of a file that is open here is
    /// changed instead, and removed when the file is closed ("silly rename"), so that it can be
    /// read and written on.
    ///
    /// # Errors
    /// What the server says.
    pub async fn remove(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        if self.put_aside(dir, name).await? {
            return Ok(());
        }
        let (change, of_file) = (dir.begin_name_change(name), begin_of_child(dir, name));
        let wcc = self.nfs.remove(dir.handle(), name).await?;
        change.finish(&wcc);
        if let Some(of_file) = of_file {
            of_file.finish_silent();
        }
        Ok(())
    }

    /// Removes an empty directory: RMDIR, RFC 1813 §3.3.13.
    ///
    /// # Errors
    /// What the server says.
    pub async fn remove_dir(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        let change = dir.begin_name_change(name);
        let wcc = self.nfs.rmdir(dir.handle(), name).await?;
        change.finish(&wcc);
        Ok(())
    }

    /// Changes a name: RENAME, RFC 1813 §3.3.14. A file that is open here and loses its last name
    /// by this is put aside first, as by [`remove`](Self::remove).
    ///
    /// # Errors
    /// What the server says.
    pub async fn rename(
        &self,
        from_dir: &Arc<Inode>,
        from: &[u8],
        to_dir: &Arc<Inode>,
        to: &[u8],
    ) -> Result<()> {
        if self.shared.table.has_open_files() && !self.is_same(from_dir, from, to_dir, to).await? {
            match self.put_aside(to_dir, to).await {
                Ok(_) => {}
                // Nothing is there to be replaced.
                Err(error) if error.is(Status::Noent) => {}
                Err(error) => return Err(error),
            }
        }
        self.rename_only(from_dir, from, to_dir, to).await
    }

    /// Whether both names are of one file: then RENAME does nothing, and nothing may be put aside.
    async fn is_same(
        &self,
        from_dir: &Arc<Inode>,
        from: &[u8],
        to_dir: &Arc<Inode>,
        to: &[u8],
    ) -> Result<bool> {
        let from = self.child(from_dir, from).await?;
        match self.child(to_dir, to).await {
            Ok(to) => Ok(Arc::ptr_eq(&from, &to)),
            Err(error) if error.is(Status::Noent) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn rename_only(
        &self,
        from_dir: &Arc<Inode>,
        from: &[u8],
        to_dir: &Arc<Inode>,
        to: &[u8],
    ) -> Result<()> {
        let (from_change, of_file) =
            (from_dir.begin_name_change(from), begin_of_child(from_dir, from));
        let is_one_dir = Arc::ptr_eq(from_dir, to_dir);
        let to_change = match is_one_dir {
            true => to_dir.begin_other_name_change(to),
            false => to_dir.begin_name_change(to),
        };
        let wcc = self.nfs.rename(from_dir.handle(), from, to_dir.handle(), to).await?;
        let after = from_change.finish(&wcc.from_wcc);
        if is_one_dir {
            to_change.finish_in(after);
        } else {
            to_change.finish(&wcc.to_wcc);
        }
        if let Some(of_file) = of_file {
            to_dir.name_found(to, of_file.inode());
            of_file.finish_silent();
        }
        Ok(())
    }

    /// What `dir` has under `name`, as last heard of or, if nothing was, as the server says.
    async fn child(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Arc<Inode>> {
        match dir.child(name) {
            Some(child) => Ok(child),
            None => self.lookup(dir, name).await,
        }
    }

    /// Gives the file under `name` another name if it is open here and would be gone without it.
    async fn put_aside(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<bool> {
        if !self.shared.table.has_open_files() {
            return Ok(false);
        }
        let inode = self.child(dir, name).await?;
        if !inode.is_open() || inode.attributes().nlink > 1 {
            return Ok(false);
        }
        let number = self.shared.silly_renames.fetch_add(1, Ordering::Relaxed);
        let aside = silly_name(inode.fileid(), number);
        self.rename_only(dir, name, dir, &aside).await?;
        let name = Bytes::from(aside);
        let left = Aside { file_system: self.clone(), dir: Arc::clone(dir), name: name.clone() };
        if !inode.remove_when_closed(left) {
            // It was closed meanwhile.
            Box::pin(self.remove(dir, &name)).await?;
        }
        Ok(true)
    }

    /// Gives a file another name: LINK, RFC 1813 §3.3.15.
    ///
    /// # Errors
    /// What the server says.
    pub async fn link(&self, inode: &Arc<Inode>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        let (change, of_file) = (dir.begin_name_change(name), inode.begin_change());
        let linked = self.nfs.link(inode.handle(), dir.handle(), name).await?;
        change.finish(&linked.dir_wcc);
        // As a change from the state that nobody else has touched, for no other is told.
        of_file.finish(&WccData { before: None, after: linked.file_attributes });
        Ok(())
    }

    /// Opens a regular file. With `cto` the server is asked whether it is still what is cached, and
    /// whether the user may do what `flags` say.
    ///
    /// # Errors
    /// `ACCES`, `ISDIR`, or what the server says.
    pub async fn open(&self, inode: &Arc<Inode>, flags: OpenFlags) -> Result<File> {
        inode.written()?;
        self.check_open(inode, flags).await?;
        if flags.truncate {
            let new = SetAttributes { size: Some(0), ..SetAttributes::default() };
            self.set_attributes(inode, new).await?;
        }
        File::new(self.clone(), Arc::clone(inode), flags)
    }

    /// The file that [`create`](Self::create) has just made: open to its maker whatever its mode
    /// is, and not asked for again.
    ///
    /// # Errors
    /// `ISDIR` and the like for what is no regular file.
    pub fn open_created(&self, inode: &Arc<Inode>, flags: OpenFlags) -> Result<File> {
        inode.written()?;
        File::new(self.clone(), Arc::clone(inode), flags)
    }

    /// ACCESS tells both: whether the user may, and what the file is now.
    async fn check_open(&self, inode: &Arc<Inode>, flags: OpenFlags) -> Result<()> {
        let wanted = flags.wanted();
        let sent = inode.sent();
        let granted = self.nfs.access(inode.handle(), wanted).await?;
        inode.note(granted.attributes.as_ref(), sent);
        if granted.access & wanted != wanted {
            return Err(Error::Refused(Errno::ACCESS));
        }
        if granted.attributes.is_none() && self.options().close_to_open {
            self.revalidate(inode).await?;
        }
        Ok(())
    }

    /// Opens a directory to be listed.
    ///
    /// # Errors
    /// `NOTDIR`, or what the server says to GETATTR when its attributes have expired.
    pub async fn open_dir(&self, inode: &Arc<Inode>) -> Result<Directory> {
        inode.listing()?;
        if inode.fresh_attributes().is_none() {
            self.revalidate(inode).await?;
        }
        Directory::new(self.clone(), Arc::clone(inode))
    }

    /// Space and files of the file system: FSSTAT, RFC 1813 §3.3.18.
    ///
    /// # Errors
    /// What the server says.
    pub async fn statfs(&self) -> Result<FsstatOk> {
        self.nfs.fsstat(self.shared.root.handle()).await
    }

    /// Sends and commits all that was written to any file.
    ///
    /// # Errors
    /// The first failure. All files are tried.
    pub async fn sync(&self) -> Result<()> {
        let mut outcome = Ok(());
        for inode in self.shared.table.all() {
            outcome = outcome.and(inode.settle().await);
        }
        outcome
    }

    fn trace(&self, event: Event, inode: &Inode) {
        self.tracer().emit(event, inode.object(), 0, 0, format_args!(""));
    }

    fn trace_name(&self, event: Event, dir: &Inode, name: &[u8]) {
        let detail = format_args!("name={}", name.escape_ascii());
        self.tracer().emit(event, dir.object(), 0, 0, detail);
    }

    pub(crate) fn table(&self) -> &Arc<InodeTable> {
        &self.shared.table
    }

    pub(crate) fn nfs(&self) -> &Nfs3 {
        &self.nfs
    }
}

/// The change of the object under `name`, if it is known, by a call that moves or removes the name.
fn begin_of_child(dir: &Inode, name: &[u8]) -> Option<OwnChange> {
    dir.child(name).map(|child| child.begin_change())
}

/// The name of a removed file that is still open: one that Linux clients use too, so that what
/// cleans up after them cleans up after this one.
fn silly_name(fileid: u64, number: u32) -> Vec<u8> {
    format!(".nfs{fileid:016x}{number:08x}").into_bytes()
}

/// A number that no other CREATE has used, so that a server that finds it with a file knows whose
/// work the file is.
fn create_verifier() -> [u8; 8] {
    RandomState::new().hash_one(Instant::now()).to_be_bytes()
}

/// The server's sizes within those of the options. At least a page, so that no size is nothing.
fn within_options(info: FsinfoOk, options: &MountOptions) -> FsinfoOk {
    let within = |max: u32, option: Option<u32>| {
        option.map_or(max, |option| option.min(max)).clamp(TRANSFER_BYTES_MIN, TRANSFER_BYTES_MAX)
    };
    let (rtmax, wtmax) = (within(info.rtmax, options.rsize), within(info.wtmax, options.wsize));
    let dtpref = info.dtpref.clamp(TRANSFER_BYTES_MIN, TRANSFER_BYTES_MAX);
    FsinfoOk { rtmax, wtmax, dtpref, ..info }
}

/// The least READ or WRITE: Linux's client goes no lower either.
const TRANSFER_BYTES_MIN: u32 = 1024;

/// The largest READ or WRITE, as much as Spillway's server ever offers.
const TRANSFER_BYTES_MAX: u32 = 4 << 20;
