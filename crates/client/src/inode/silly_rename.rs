//! Removed files that are still open: a "silly rename" gives them a name until the last close.

use std::sync::Arc;

use bytes::Bytes;

use super::Inode;
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

    /// REMOVE of the name. If that fails the name stays, until the server's own cleaning of such
    /// names removes it.
    pub(crate) async fn remove(self) {
        if let Err(error) = remove(&self.nfs, &self.dir, &self.name).await {
            tracing::warn!("cannot remove {}: {error}", self.name.escape_ascii());
        }
    }
}

/// REMOVE, RFC 1813 §3.3.12, whether or not the file is open.
///
/// # Errors
/// Those of the call.
pub(crate) async fn remove(nfs: &Nfs3, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    let (change, of_file) = (dir.begin_name_change(name), dir.begin_child_change(name));
    let removed = dir.note_outcome(nfs.remove(dir.handle(), name).await)?;
    change.finish(&Evidence::of_removed_dir(&removed));
    if let Some(of_file) = of_file {
        of_file.finish(&Evidence::of_removed_file(&removed));
    }
    Ok(())
}

/// The name given to a removed file: of the form that Linux clients use, so that servers which
/// clean up after these clean up after this client too.
pub(crate) fn silly_name(fileid: u64, number: u32) -> Vec<u8> {
    format!(".nfs{fileid:016x}{number:08x}").into_bytes()
}
