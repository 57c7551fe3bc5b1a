//! GETATTR, SETATTR and ACCESS of a mounted file system.

use std::sync::Arc;

use proto::nfs3::{Attributes, SetAttributes};

use super::FileSystem;
use crate::Result;
use crate::cache::change::Evidence;
use crate::inode::Inode;
use crate::trace::Event;

impl FileSystem {
    /// The attributes of an object, by GETATTR if the cached ones have expired. Written data is
    /// sent first, so that times and size are those of the server.
    ///
    /// # Errors
    /// Those of GETATTR. Write errors are left for the open files.
    pub async fn attributes(&self, inode: &Arc<Inode>) -> Result<Attributes> {
        inode.send_written().await;
        self.last_attributes(inode).await
    }

    /// As [`attributes`](Self::attributes), without the wait for written data: times are those from
    /// before it.
    ///
    /// # Errors
    /// Those of GETATTR.
    pub(crate) async fn last_attributes(&self, inode: &Arc<Inode>) -> Result<Attributes> {
        match inode.fresh_attributes() {
            Some(attributes) => Ok(attributes),
            None => self.revalidate(inode).await,
        }
    }

    /// GETATTR, RFC 1813 §3.3.1.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn revalidate(&self, inode: &Arc<Inode>) -> Result<Attributes> {
        inode.revalidate(&self.nfs).await
    }

    /// SETATTR, RFC 1813 §3.3.2. Data written earlier is committed first, as by the kernel's NFS
    /// client: a WRITE behind it, also one of data that the server lost in a restart, would change
    /// the mtime and clear the set-id bits that are set here. For the size alone the data is only
    /// sent, and none is sent while the size is being set.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn set_attributes(
        &self,
        inode: &Arc<Inode>,
        new: SetAttributes,
    ) -> Result<Attributes> {
        let others = SetAttributes { size: None, ..new };
        if new.size.is_none() || others != SetAttributes::default() {
            inode.commit_written().await;
        }
        let truncation = match new.size {
            Some(_) => inode.begin_truncation().await,
            None => None,
        };
        self.tracer().emit(Event::SetattrCall, inode.object(), 0, 0, format_args!(""));
        let change = inode.begin_change();
        let set = inode.note_outcome(self.nfs.setattr(inode.handle(), new, None).await);
        change.finish(&set, Evidence::of_setattr);
        if set.is_err() {
            // Servers that set one attribute after another may have set some before the refusal.
            inode.expire();
        }
        let set = set?;
        if let (Some(size), Some(truncation)) = (new.size, truncation) {
            inode.data_changed();
            truncation.finish(size);
        }
        if set.wcc.after.is_none() {
            inode.note_set(&new);
            // SETATTR has succeeded, whatever becomes of GETATTR.
            let _ = self.revalidate(inode).await;
        }
        Ok(inode.attributes())
    }

    /// ACCESS, RFC 1813 §3.3.4. Returns the granted subset of `wanted`, a sum of `ACCESS_*`.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn access(&self, inode: &Arc<Inode>, wanted: u32) -> Result<u32> {
        let sent = inode.sent();
        let granted = inode.note_outcome(self.nfs.access(inode.handle(), wanted).await)?;
        inode.note(granted.attributes.as_ref(), sent);
        Ok(granted.access)
    }
}
