//! Silly renames: the last name of an open file is not removed but given a name of its own until
//! the last close, so that reads and writes still work.
//!
//! The calls on an open file go on if the caller is killed: otherwise a name made by a call without
//! a reply would never be removed. A call that the caller still waits to send is dropped with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use proto::nfs3::Status;
use tokio::sync::OwnedMutexGuard;

use super::FileSystem;
use crate::inode::{Hold, Inode, SillyRename, remove, silly_name, to_the_end};
use crate::{Error, Result};

/// The names of a RENAME.
pub(super) struct Names {
    pub(super) from_dir: Arc<Inode>,
    pub(super) from: Bytes,
    pub(super) to_dir: Arc<Inode>,
    pub(super) to: Bytes,
}

/// The turn to remove `name`, and the object that it refers to when the turn has come: `child`, or
/// another that a RENAME before it has put there.
async fn removal_turn(
    mut child: Arc<Inode>,
    dir: &Inode,
    name: &[u8],
) -> (Arc<Inode>, Option<OwnedMutexGuard<()>>) {
    loop {
        let turn = child.removal_turn().await;
        match dir.child(name) {
            Some(now) if !Arc::ptr_eq(&now, &child) => child = now,
            _ => return (child, turn),
        }
    }
}

impl FileSystem {
    /// The object under `name` as it was last known; by LOOKUP only if any file is open.
    pub(super) async fn child_to_remove(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
    ) -> Result<Option<Arc<Inode>>> {
        match self.superblock().has_open_files() {
            true => self.child(dir, name).await.map(Some),
            false => Ok(dir.child(name)),
        }
    }

    /// REMOVE of a name of `child`, or its silly rename if it is the last name and the file is
    /// open.
    pub(super) async fn remove_child(
        &self,
        child: Arc<Inode>,
        dir: &Arc<Inode>,
        name: &[u8],
    ) -> Result<()> {
        let (child, turn) = removal_turn(child, dir, name).await;
        let Some(file) = child.hold_again() else {
            return remove(&self.nfs, dir, name).await;
        };
        let file_system = self.clone();
        let (dir, name) = (Arc::clone(dir), Bytes::copy_from_slice(name));
        to_the_end(self.superblock(), async move {
            let removed = file_system.remove_held(&file, &dir, &name).await;
            drop(turn);
            file.end().await;
            removed
        })
        .await
    }

    /// In the file's turn.
    async fn remove_held(&self, file: &Hold, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        if self.has_other_names(file.inode()).await? {
            return remove(&self.nfs, dir, name).await;
        }
        let silly_name = self.silly_name(file.inode());
        let renamed = self.rename_only(dir, name, dir, &silly_name).await;
        if renamed.as_ref().err().is_none_or(may_be_executed) {
            file.remove_at_end(self.silly_rename(dir, silly_name));
        }
        renamed
    }

    /// RENAME that replaces a name of `target`, which may be open.
    pub(super) async fn replace_child(&self, target: Arc<Inode>, names: Names) -> Result<()> {
        let (target, turn) = removal_turn(target, &names.to_dir, &names.to).await;
        let Some(file) = target.hold_again() else {
            return self.rename_names(&names).await;
        };
        let file_system = self.clone();
        to_the_end(self.superblock(), async move {
            let replaced = file_system.replace_held(&file, &names).await;
            drop(turn);
            file.end().await;
            replaced
        })
        .await
    }

    /// LINK gives the target its silly name and leaves the old one, which RENAME replaces: other
    /// processes always find one of the files. After a RENAME that fails the silly name is removed,
    /// which needs the permission to remove names of the target. In a sticky directory a user can
    /// have that of LINK alone. In the target's turn.
    async fn replace_held(&self, target: &Hold, names: &Names) -> Result<()> {
        let inode = target.inode();
        // If both names refer to one file, RENAME does nothing, and the file keeps its names.
        if Arc::ptr_eq(inode, &self.child(&names.from_dir, &names.from).await?)
            || self.has_other_names(inode).await?
        {
            return self.rename_names(names).await;
        }
        let silly_name = self.silly_name(inode);
        if self.is_kept_by_sticky_bit(&names.to_dir, inode) {
            return self.replace_in_two_steps(target, names, silly_name).await;
        }
        let silly_rename = self.silly_rename(&names.to_dir, silly_name.clone());
        match self.link(inode, &names.to_dir, &silly_name).await {
            Ok(()) => {}
            // An earlier transmission of this LINK has made it: the name is this client's alone.
            Err(error) if error.is(Status::Exist) => {}
            // The name does not refer to the target any more.
            Err(error) if error.is(Status::Stale) || error.is(Status::Noent) => {
                return self.rename_names(names).await;
            }
            Err(Error::Nfs { .. } | Error::Accept(_)) => {
                return self.replace_in_two_steps(target, names, silly_name).await;
            }
            Err(error) => {
                target.remove_at_end(silly_rename);
                return Err(error);
            }
        }
        let renamed = self.rename_names(names).await;
        match &renamed {
            // NFS3ERR_NOENT can be the answer to a retransmission, after which this is the last
            // name.
            Err(Error::Nfs { .. }) if self.has_other_names(inode).await.unwrap_or(false) => {
                if let Some(kept) = silly_rename.remove().await {
                    target.remove_at_end(kept);
                }
            }
            _ => target.remove_at_end(silly_rename),
        }
        renamed
    }

    /// Where LINK is not supported or could not be undone: silly rename, then RENAME. If the first
    /// fails nothing has changed, and if the second fails the first is undone. Where the outcome is
    /// not known the silly name stays: it may be the only name of a file that was not replaced.
    async fn replace_in_two_steps(
        &self,
        target: &Hold,
        names: &Names,
        silly_name: Bytes,
    ) -> Result<()> {
        let Names { to_dir, to, .. } = names;
        let silly_rename = self.silly_rename(to_dir, silly_name.clone());
        match self.rename_only(to_dir, to, to_dir, &silly_name).await {
            Ok(()) => {}
            // There is nothing to replace, or a retransmission has found the name gone.
            Err(error) if error.is(Status::Noent) => {}
            Err(error) => {
                if may_be_executed(&error) {
                    warn_kept(&silly_name, &error);
                }
                return Err(error);
            }
        }
        let renamed = self.rename_names(names).await;
        let Err(failed) = &renamed else {
            target.remove_at_end(silly_rename);
            return renamed;
        };
        match self.lookup(to_dir, to).await {
            // An earlier transmission has replaced it.
            Ok(_) => target.remove_at_end(silly_rename),
            Err(error) if error.is(Status::Noent) && is_answer(failed) => {
                if let Err(error) = self.rename_only(to_dir, &silly_name, to_dir, to).await {
                    warn_kept(&silly_name, &error);
                }
            }
            Err(error) => warn_kept(&silly_name, &error),
        }
        renamed
    }

    async fn rename_names(&self, names: &Names) -> Result<()> {
        let Names { from_dir, from, to_dir, to } = names;
        self.rename_only(from_dir, from, to_dir, to).await
    }

    /// A name that no other client uses.
    fn silly_name(&self, inode: &Inode) -> Bytes {
        let number = self.shared.silly_renames.fetch_add(1, Ordering::Relaxed);
        silly_name(inode.fileid(), number).into()
    }

    fn silly_rename(&self, dir: &Arc<Inode>, name: Bytes) -> SillyRename {
        SillyRename::new(self.nfs.clone(), Arc::clone(dir), name)
    }

    /// Whether the sticky bit of `dir` keeps this user from removing names of `file`. Root may be
    /// another user on the server.
    fn is_kept_by_sticky_bit(&self, dir: &Inode, file: &Inode) -> bool {
        let (uid, dir) = (self.nfs.identity().uid, dir.attributes());
        let is_owner = uid != 0 && [dir.uid, file.attributes().uid].contains(&uid);
        dir.mode & STICKY_BIT != 0 && !is_owner
    }

    /// Whether a file has more than one name. GETATTR confirms it: the reply to the removal of
    /// another name has no `nlink`, and another client can have removed one.
    async fn has_other_names(&self, inode: &Arc<Inode>) -> Result<bool> {
        if inode.attributes().nlink <= 1 {
            return Ok(false);
        }
        match self.revalidate(inode).await {
            Ok(attributes) => Ok(attributes.nlink > 1),
            // It has no name, so the call with this name does not remove it.
            Err(error) if error.is(Status::Stale) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// Whether the server may have executed a RENAME with this outcome. A retransmission finds the old
/// name gone.
fn may_be_executed(error: &Error) -> bool {
    error.is(Status::Noent) || !is_answer(error)
}

/// Whether the server has answered the call, so that it does not execute it later.
fn is_answer(error: &Error) -> bool {
    matches!(error, Error::Nfs { .. } | Error::Accept(_) | Error::Reject(_))
}

fn warn_kept(silly_name: &[u8], error: &Error) {
    tracing::warn!("a file may be left as {}: {error}", silly_name.escape_ascii());
}

/// `S_ISVTX`.
const STICKY_BIT: u32 = 0o1000;
