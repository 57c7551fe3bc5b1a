//! WRITE and COMMIT of one file as one user, for its write-back.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use proto::nfs3::{CommitOk, FileHandle, StableHow, WriteOk};

use crate::Result;
use crate::inode::Inode;
use crate::nfs3::Nfs3;
use crate::write_back::WriteTarget;

/// Makes the calls and notes with the inode that the changes are this client's own.
#[derive(Clone, Debug)]
pub(crate) struct WriteCalls {
    nfs: Nfs3,
    file: FileHandle,
    /// The inode holds the write-back, which holds this. Data can outlive the inode.
    inode: Weak<Inode>,
}

impl WriteCalls {
    pub(crate) fn new(nfs: Nfs3, inode: &Arc<Inode>) -> Self {
        Self { nfs, file: inode.handle(), inode: Arc::downgrade(inode) }
    }
}

impl WriteTarget for WriteCalls {
    async fn write(&self, offset: u64, data: Bytes, stable: StableHow) -> Result<WriteOk> {
        let change = self.inode.upgrade().map(|inode| inode.begin_change());
        let written = self.nfs.write(self.file, offset, data, stable).await;
        if let Some(change) = change {
            match &written {
                Ok(written) => {
                    // What was fetched since the write and before the server had it lacks it.
                    change.inode().data_changed();
                    change.finish(&written.wcc);
                }
                Err(_) => change.inode().data_lost(),
            }
        }
        written
    }

    async fn commit(&self, offset: u64, count: u32) -> Result<CommitOk> {
        let sent = self.inode.upgrade().map(|inode| (inode.sent(), inode));
        let committed = self.nfs.commit(self.file, offset, count).await;
        if let Some((sent, inode)) = sent {
            match &committed {
                // It changes nothing. What changed around it on the server may be WRITEs of this
                // client that are under way, or half of one.
                Ok(committed) => inode.note(committed.wcc.after.as_ref(), sent),
                Err(_) => inode.data_lost(),
            }
        }
        committed
    }

    fn same_user(&self, other: &Self) -> bool {
        self.nfs.identity() == other.nfs.identity()
    }
}
