//! WRITE and COMMIT of one file as one user, for its write-back.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use proto::nfs3::{CommitOk, FileHandle, StableHow, WriteOk};

use super::Inode;
use crate::Result;
use crate::cache::change::Evidence;
use crate::cache::write_back::WriteTarget;
use crate::nfs3::Nfs3;

/// Makes the calls and updates the inode from their replies: the changes are this client's own.
#[derive(Clone, Debug)]
pub(crate) struct WriteCalls {
    nfs: Nfs3,
    file: FileHandle,
    /// Weak, because the inode owns the write-back, which owns this. Written data can outlive it.
    inode: Weak<Inode>,
}

impl WriteCalls {
    pub(crate) fn new(nfs: Nfs3, inode: &Arc<Inode>) -> Self {
        Self { nfs, file: inode.handle(), inode: Arc::downgrade(inode) }
    }

    fn note_outcome<T>(&self, outcome: Result<T>) -> Result<T> {
        match self.inode.upgrade() {
            Some(inode) => inode.note_outcome(outcome),
            None => outcome,
        }
    }
}

impl WriteTarget for WriteCalls {
    async fn write(&self, offset: u64, data: Bytes, stable: StableHow) -> Result<WriteOk> {
        let change = self.inode.upgrade().map(|inode| inode.begin_write());
        let written = self.nfs.write(self.file, offset, data, stable).await;
        if let Some(change) = change {
            let inode = Arc::clone(change.inode());
            match &written {
                // Data fetched between the write and the WRITE lacks it.
                Ok(_) => inode.data_changed(),
                Err(_) => inode.outdate(),
            }
            let pairs = inode.superblock().write_pairs();
            change.finish(&written, |written| Evidence::of_write(written, pairs));
        }
        self.note_outcome(written)
    }

    async fn commit(&self, offset: u64, count: u32) -> Result<CommitOk> {
        let sent = self.inode.upgrade().map(|inode| (inode.sent(), inode));
        let committed = self.nfs.commit(self.file, offset, count).await;
        if let Some((sent, inode)) = sent {
            match &committed {
                // COMMIT changes nothing. Its wcc_data can differ because of WRITEs of this client
                // in flight, even in the middle of one.
                Ok(committed) => inode.note(committed.wcc.after.as_ref(), sent),
                Err(_) => inode.outdate(),
            }
        }
        self.note_outcome(committed)
    }

    fn superseded(&self) {
        if let Some(inode) = self.inode.upgrade() {
            inode.outdate();
        }
    }

    fn same_user(&self, other: &Self) -> bool {
        self.nfs.identity() == other.nfs.identity()
    }
}
