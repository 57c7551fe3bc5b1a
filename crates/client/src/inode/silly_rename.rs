//! Removed files that are still open: a "silly rename" gives them a name until the last close.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proto::nfs3::Status;
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;

use super::superblock::{InProgress, ended_within};
use super::{Contents, Inode, lock, to_the_end};
use crate::Result;
use crate::cache::change::Evidence;
use crate::nfs3::Nfs3;

/// The name of a removed file, to be removed by the last close. The calls are made as the user that
/// removed the file: the user of the last close may lack the permission.
pub(crate) struct SillyRename {
    nfs: Nfs3,
    dir: Arc<Inode>,
    name: Bytes,
}

impl SillyRename {
    pub(crate) fn new(nfs: Nfs3, dir: Arc<Inode>, name: Bytes) -> Self {
        Self { nfs, dir, name }
    }

    /// REMOVE of the name. Returns it if that fails.
    pub(crate) async fn remove(self) -> Option<Self> {
        match remove(&self.nfs, &self.dir, &self.name).await {
            Ok(()) => None,
            // The call that would have made the name was not executed.
            Err(error) if error.is(Status::Noent) => None,
            Err(error) => {
                tracing::warn!("cannot remove {}: {error}", self.name.escape_ascii());
                Some(self)
            }
        }
    }
}

/// Begins the removals in the directories of the names.
fn begin_all(silly_renames: &[SillyRename]) -> Vec<InProgress> {
    let begin = |silly_rename: &SillyRename| match &silly_rename.dir.contents {
        Contents::Directory(directory) => Some(InProgress::begin(&directory.silly_removals)),
        Contents::File(_) | Contents::Other => None,
    };
    silly_renames.iter().filter_map(begin).collect()
}

/// Keeps a file: while it is held, this client renames its last name instead of removing it. Held
/// by each open file and, from before its first call, by each open in progress.
pub(crate) struct Hold {
    inode: Arc<Inode>,
    is_ended: bool,
}

impl Hold {
    /// The file.
    pub(crate) fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// Leaves the removal of a silly rename to the last hold.
    pub(crate) fn remove_at_end(&self, silly_rename: SillyRename) {
        if let Ok(file) = self.inode.file() {
            lock(&file.opens).silly_renames.push(silly_rename);
        }
    }

    /// Ends the hold. The last one commits what was written, by this or another, and removes the
    /// silly rename of a removed file, also if this is dropped.
    pub(crate) async fn end(mut self) {
        if let Some(rest) = self.count_end() {
            to_the_end(self.inode.superblock(), rest).await;
        }
    }

    /// Counts the end, once. Returns what the last hold has to do, if that is anything. The
    /// removals begin at once.
    fn count_end(&mut self) -> Option<impl Future<Output = ()> + Send + use<>> {
        if std::mem::replace(&mut self.is_ended, true) {
            return None;
        }
        let (file, superblock) = (self.inode.file().ok()?, self.inode.superblock());
        let mut opens = lock(&file.opens);
        opens.holds -= 1;
        superblock.file_closed();
        if opens.holds > 0 || (opens.silly_renames.is_empty() && file.written.is_clean()) {
            return None;
        }
        let (removals, inode) = (begin_all(&opens.silly_renames), Arc::clone(&self.inode));
        Some(async move {
            // A COMMIT behind the REMOVE would fail, as if data of the file were lost.
            if let Ok(written) = inode.written() {
                written.commit().await;
            }
            remove_unless_held(inode).await;
            drop(removals);
        })
    }
}

/// A hold that is dropped before its [`end`](Hold::end), as by a file that is not closed. The inode
/// stays until the data is committed: it must be found by the next open and the next sync.
impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(rest) = self.count_end()
            && let Ok(runtime) = Handle::try_current()
        {
            let closing = self.inode.superblock().begin_close();
            runtime.spawn(async move {
                rest.await;
                drop(closing);
            });
        }
    }
}

/// Removes the silly renames of a file, unless it was opened again. If that fails they stay, until
/// the server's own cleaning of such names removes them.
async fn remove_unless_held(inode: Arc<Inode>) {
    let Ok(file) = inode.file() else { return };
    let _turn = file.removing.lock().await;
    let silly_renames = {
        let mut opens = lock(&file.opens);
        if opens.holds == 0 { std::mem::take(&mut opens.silly_renames) } else { Vec::new() }
    };
    for silly_rename in silly_renames {
        silly_rename.remove().await;
    }
}

impl Inode {
    /// Holds a regular file.
    ///
    /// # Errors
    /// `ISDIR` for a directory, `INVAL` for other types.
    pub(crate) fn hold(self: &Arc<Self>) -> Result<Hold> {
        lock(&self.file()?.opens).holds += 1;
        self.superblock().file_opened();
        Ok(Hold { inode: Arc::clone(self), is_ended: false })
    }

    /// The turn to remove a name of the file, from before the count of its holds until the reply.
    /// Of two removals at once each would leave the last name to the other. An open that holds the
    /// file waits for the turn before its first call, and then finds the file removed if it was.
    /// `None` for other types than files.
    pub(crate) async fn removal_turn(&self) -> Option<OwnedMutexGuard<()>> {
        let removing = Arc::clone(&self.file().ok()?.removing);
        Some(removing.lock_owned().await)
    }

    /// The removals of the silly names of a file that is being closed, until the guards are
    /// dropped.
    pub(crate) fn begin_silly_removals(&self) -> Vec<InProgress> {
        let Ok(file) = self.file() else { return Vec::new() };
        begin_all(&lock(&file.opens).silly_renames)
    }

    /// Waits until no silly name is being removed in the directory, [`SILLY_REMOVALS_MAX`] at most:
    /// the server can delay a REMOVE for any time, and files in the directory can be closed again
    /// and again.
    pub(crate) async fn silly_removals_ended(&self) {
        if let Contents::Directory(directory) = &self.contents {
            ended_within(&directory.silly_removals, SILLY_REMOVALS_MAX).await;
        }
    }

    /// Holds a file that is held already.
    pub(crate) fn hold_again(self: &Arc<Self>) -> Option<Hold> {
        {
            let mut opens = lock(&self.file().ok()?.opens);
            if opens.holds == 0 {
                return None;
            }
            opens.holds += 1;
        }
        self.superblock().file_opened();
        Some(Hold { inode: Arc::clone(self), is_ended: false })
    }
}

/// REMOVE, RFC 1813 §3.3.12, whether or not the file is open.
///
/// # Errors
/// Those of the call.
pub(crate) async fn remove(nfs: &Nfs3, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    let (change, of_file) = (dir.begin_name_change(name), dir.begin_child_change(name));
    let removed = nfs.remove(dir.handle(), name).await;
    change.finish(&removed, Evidence::of_removed_dir);
    if let Some(of_file) = of_file {
        let file = Arc::clone(of_file.inode());
        of_file.finish(&removed, Evidence::of_removed_file);
        if removed.is_ok() {
            file.note_removed_name();
        }
    }
    removed.map(drop)
}

/// The name given to a removed file: of the form that Linux clients use, so that servers which
/// clean up after these clean up after this client too.
pub(crate) fn silly_name(fileid: u64, number: u32) -> Vec<u8> {
    format!(".nfs{fileid:016x}{number:08x}").into_bytes()
}

/// How long a call that needs an empty directory, or shows its names, waits for the removal of
/// silly names: a server may need seconds to free the blocks of a large file.
const SILLY_REMOVALS_MAX: Duration = Duration::from_secs(30);
