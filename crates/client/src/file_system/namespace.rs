//! The names of a mounted file system: LOOKUP, READLINK, and the calls that create, remove and
//! rename.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use proto::nfs3::{
    Attributes, CreateHow, CreatedOk, FileType, MknodData, Procedure, SetAttributes, SetTime,
    Status,
};

use super::FileSystem;
use super::silly_rename::Names;
use crate::cache::change::Evidence;
use crate::inode::{Inode, Sent, remove};
use crate::nfs3::Nfs3;
use crate::trace::Event;
use crate::{Error, Result};

/// The outcome of a search for a name.
pub(crate) enum Found {
    /// An object in a cached listing.
    Listed(Arc<Inode>),
    /// An object in the reply to a LOOKUP, which may have had the attributes of the directory.
    Replied(Arc<Inode>, Option<Attributes>),
    /// NFS3ERR_NOENT, with the attributes of the directory likewise.
    Absent(Option<Attributes>),
}

impl FileSystem {
    /// LOOKUP, RFC 1813 §3.3.3, of a name other than `.` and `..`. No call is made if a valid
    /// listing has the name.
    ///
    /// # Errors
    /// Those of the call, [`Status::Noent`] for one.
    pub async fn lookup(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Arc<Inode>> {
        match self.find(dir, name).await? {
            Found::Listed(inode) | Found::Replied(inode, _) => Ok(inode),
            Found::Absent(_) => {
                Err(Error::Nfs { procedure: Procedure::Lookup, status: Status::Noent })
            }
        }
    }

    /// As [`lookup`](Self::lookup). A name that does not exist is no error.
    pub(crate) async fn find(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Found> {
        if let Some(inode) = self.lookup_cached(dir, name).await? {
            return Ok(Found::Listed(inode));
        }
        self.trace_name(Event::LookupCall, dir, name);
        let (sent, dir_sent) = (Sent::now(), dir.sent());
        match dir.note_outcome(self.nfs.look_up(dir.handle(), name).await)? {
            Ok(found) => {
                dir.note(found.dir_attributes.as_ref(), dir_sent);
                let inode = self.inode(found.object, found.object_attributes, sent).await?;
                dir.name_found(name, &inode);
                Ok(Found::Replied(inode, found.dir_attributes))
            }
            Err(absent) => {
                dir.note(absent.body.as_ref(), dir_sent);
                Ok(Found::Absent(absent.body))
            }
        }
    }

    /// The object under `name` from a cached listing that is believed, unless the handle is known
    /// to be stale.
    async fn lookup_cached(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Inode>>> {
        let Some(mut listed) = dir.listed(name) else { return Ok(None) };
        if self.shared.inodes.is_stale(&listed.0) {
            // The listing is outdated, and so are the attributes of the directory.
            dir.expire();
            return Ok(None);
        }
        if dir.fresh_attributes().is_none() {
            // One GETATTR for all names of the listing; LOOKUP would be one call for each.
            self.revalidate(dir).await?;
            match dir.listed(name) {
                Some(again) => listed = again,
                None => return Ok(None),
            }
        }
        let (handle, attributes, sent) = listed;
        self.trace_name(Event::LookupCached, dir, name);
        let inode = self.shared.inodes.inode(handle, &attributes, sent);
        dir.name_found(name, &inode);
        Ok(Some(inode))
    }

    /// READLINK, RFC 1813 §3.3.5.
    ///
    /// # Errors
    /// Those of the call, [`Status::Inval`] if `inode` is not a symbolic link.
    pub async fn read_link(&self, inode: &Arc<Inode>) -> Result<Bytes> {
        let sent = inode.sent();
        let link = inode.note_outcome(self.nfs.readlink(inode.handle()).await)?;
        inode.note(link.attributes.as_ref(), sent);
        Ok(link.target)
    }

    /// CREATE, RFC 1813 §3.3.8. Returns an existing regular file as it is, unless `exclusive`.
    ///
    /// # Errors
    /// Those of the call, [`Status::Exist`] if `exclusive` and the name exists.
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
            // Exclusive creation is optional (RFC 1813 §3.3.8).
            Err(error) if error.is(Status::Notsupp) => {
                return self.create_guarded(dir, name, mode).await;
            }
            created => created?,
        };
        // The server has stored the verifier in place of attributes, usually in the times.
        let now = SetTime::ToServerTime;
        let new = SetAttributes { atime: now, mtime: now, ..attributes };
        self.set_attributes(&inode, new).await?;
        Ok(inode)
    }

    /// CREATE of a regular file for an open(2) that has found no `name`, at the cost of one call.
    /// The caller may open the file whatever its mode is.
    ///
    /// # Errors
    /// Those of the calls, [`Status::Exist`] if the name exists: its permissions count.
    pub async fn create_for_open(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        mode: u32,
    ) -> Result<Arc<Inode>> {
        let mut created = self.create_guarded(dir, name, mode).await;
        for _ in 1..CREATES_MAX {
            if !created.as_ref().is_err_and(|error| error.is(Status::Exist)) {
                break;
            }
            // Listings are outdated for the name by now, so this is a call, and the kernel may use
            // the name for as long as after a CREATE.
            created = match self.lookup(dir, name).await {
                Ok(found) if self.may_have_created(&found, mode) => return Ok(found),
                Ok(_) => break,
                // Another client has removed the name.
                Err(error) if error.is(Status::Noent) => self.create_guarded(dir, name, mode).await,
                Err(error) => return Err(error),
            };
        }
        created
    }

    /// Whether an earlier transmission of a CREATE with `mode` may have created `found`: a server
    /// that was restarted executes the next one too. If it was another process of this user, that
    /// may change the mode.
    fn may_have_created(&self, found: &Inode, mode: u32) -> bool {
        let Attributes { file_type, mode: its_mode, nlink, uid, size, .. } = found.attributes();
        file_type == FileType::Regular
            && (its_mode, nlink, uid, size) == (mode, 1, self.nfs.identity().uid, 0)
    }

    async fn create_guarded(&self, dir: &Arc<Inode>, name: &[u8], mode: u32) -> Result<Arc<Inode>> {
        let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        self.create_how(dir, name, CreateHow::Guarded(attributes)).await
    }

    async fn create_how(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        how: CreateHow,
    ) -> Result<Arc<Inode>> {
        let call = |nfs: &Nfs3| nfs.create(dir.handle(), name, how);
        self.create_with(Procedure::Create, dir, name, call).await
    }

    /// MKDIR, RFC 1813 §3.3.9.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn make_dir(&self, dir: &Arc<Inode>, name: &[u8], mode: u32) -> Result<Arc<Inode>> {
        let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        let call = |nfs: &Nfs3| nfs.mkdir(dir.handle(), name, attributes);
        self.create_with(Procedure::Mkdir, dir, name, call).await
    }

    /// SYMLINK, RFC 1813 §3.3.10.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn symlink(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        target: &[u8],
    ) -> Result<Arc<Inode>> {
        let attributes = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
        let call = |nfs: &Nfs3| nfs.symlink(dir.handle(), name, target, attributes);
        self.create_with(Procedure::Symlink, dir, name, call).await
    }

    /// MKNOD, RFC 1813 §3.3.11: creates a device, pipe or socket.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn make_node(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        what: MknodData,
    ) -> Result<Arc<Inode>> {
        let call = |nfs: &Nfs3| nfs.mknod(dir.handle(), name, what);
        self.create_with(Procedure::Mknod, dir, name, call).await
    }

    /// Makes a call of `procedure`, which creates `name`, and returns the new object. LOOKUP
    /// follows if the reply has no handle, and GETATTR if it has no attributes: both are optional.
    ///
    /// # Errors
    /// Those of the call; [`CreatedUnseen`](Error::CreatedUnseen) for those of LOOKUP and
    /// GETATTR, which by themselves would mean that nothing was created.
    async fn create_with<C: Future<Output = Result<CreatedOk>>>(
        &self,
        procedure: Procedure,
        dir: &Arc<Inode>,
        name: &[u8],
        call: impl FnOnce(&Nfs3) -> C,
    ) -> Result<Arc<Inode>> {
        let (sent, change) = (Sent::now(), dir.begin_name_change(name));
        let created = call(&self.nfs).await;
        change.finish(&created, Evidence::of_created_dir);
        let created = created?;
        let seen = match created.object {
            Some(handle) => self.inode(handle, created.attributes, sent).await,
            None => self.lookup(dir, name).await,
        };
        let inode = seen.map_err(|error| error.after_creation(procedure, name))?;
        dir.name_found(name, &inode);
        Ok(inode)
    }

    /// REMOVE, RFC 1813 §3.3.12. The last name of a file that is open through this mount is renamed
    /// instead, and removed by the last close ("silly rename"), so that reads and writes still
    /// work.
    ///
    /// # Errors
    /// Those of the calls.
    pub async fn remove(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        match self.child_to_remove(dir, name).await? {
            Some(child) => self.remove_child(child, dir, name).await,
            None => remove(&self.nfs, dir, name).await,
        }
    }

    /// RMDIR, RFC 1813 §3.3.13.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn remove_dir(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        silly_removals_ended_in(dir, name).await;
        let (change, child) = (dir.begin_name_change(name), dir.child(name));
        let removed = self.nfs.rmdir(dir.handle(), name).await;
        change.finish(&removed, Evidence::of_removed_dir);
        if let (Ok(_), Some(child)) = (&removed, child) {
            child.note_removed_name();
        }
        removed.map(drop)
    }

    /// RENAME, RFC 1813 §3.3.14. An open file whose last name is replaced keeps a silly name until
    /// the last close, as in [`remove`](Self::remove).
    ///
    /// # Errors
    /// Those of the calls.
    pub async fn rename(
        &self,
        from_dir: &Arc<Inode>,
        from: &[u8],
        to_dir: &Arc<Inode>,
        to: &[u8],
    ) -> Result<()> {
        silly_removals_ended_in(to_dir, to).await;
        match self.child_to_remove(to_dir, to).await {
            Ok(Some(target)) => {
                let (from, to) = (Bytes::copy_from_slice(from), Bytes::copy_from_slice(to));
                let (from_dir, to_dir) = (Arc::clone(from_dir), Arc::clone(to_dir));
                self.replace_child(target, Names { from_dir, from, to_dir, to }).await
            }
            Ok(None) => self.rename_only(from_dir, from, to_dir, to).await,
            // There is nothing to replace.
            Err(error) if error.is(Status::Noent) => {
                self.rename_only(from_dir, from, to_dir, to).await
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn rename_only(
        &self,
        from_dir: &Arc<Inode>,
        from: &[u8],
        to_dir: &Arc<Inode>,
        to: &[u8],
    ) -> Result<()> {
        let (from_change, of_file) =
            (from_dir.begin_name_change(from), from_dir.begin_child_change(from));
        let replaced = to_dir.begin_child_change(to);
        let is_one_dir = Arc::ptr_eq(from_dir, to_dir);
        let to_change = match is_one_dir {
            true => to_dir.begin_other_name_change(to),
            false => to_dir.begin_name_change(to),
        };
        // NFS3ERR_STALE can be that of either directory.
        let renamed = self.nfs.rename(from_dir.handle(), from, to_dir.handle(), to).await;
        let after = from_change.finish(&renamed, Evidence::of_rename_from_dir);
        if is_one_dir {
            to_change.finish_in(&renamed, after);
        } else {
            to_change.finish(&renamed, Evidence::of_rename_to_dir);
        }
        if let Some(of_file) = of_file {
            if renamed.is_ok() {
                to_dir.name_found(to, of_file.inode());
            }
            of_file.finish(&renamed, Evidence::of_renamed_file);
        }
        if let Some(replaced) = replaced {
            replaced.finish(&renamed, Evidence::of_replaced_file);
        }
        renamed.map(drop)
    }

    /// The object that `name` in `dir` was last known to refer to, otherwise by LOOKUP.
    pub(super) async fn child(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Arc<Inode>> {
        match dir.child(name).filter(|child| !child.is_stale()) {
            Some(child) => Ok(child),
            None => self.lookup(dir, name).await,
        }
    }

    /// LINK, RFC 1813 §3.3.15.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn link(&self, inode: &Arc<Inode>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        let (change, of_file) = (dir.begin_name_change(name), inode.begin_change());
        // NFS3ERR_STALE can be that of either.
        let linked = self.nfs.link(inode.handle(), dir.handle(), name).await;
        let linked = inode.note_outcome(linked);
        change.finish(&linked, Evidence::of_link_dir);
        if linked.is_ok() {
            dir.name_found(name, inode);
        }
        of_file.finish(&linked, Evidence::of_linked_file);
        linked.map(drop)
    }

    fn trace_name(&self, event: Event, dir: &Inode, name: &[u8]) {
        let detail = format_args!("name={}", name.escape_ascii());
        self.tracer().emit(event, dir.object(), 0, 0, detail);
    }
}

/// Waits until no silly name is being removed in the directory `name` of `dir`, which is not empty
/// before that. After a bounded time the server decides: its answer is NFS3ERR_NOTEMPTY.
async fn silly_removals_ended_in(dir: &Inode, name: &[u8]) {
    if let Some(child) = dir.child(name) {
        child.silly_removals_ended().await;
    }
}

/// A verifier for exclusive creation that no other CREATE has used, by which the server detects a
/// retransmission.
fn create_verifier() -> [u8; 8] {
    RandomState::new().hash_one(Instant::now()).to_be_bytes()
}

/// CREATEs of one open at most, while other clients create and remove the name.
const CREATES_MAX: u32 = 8;
