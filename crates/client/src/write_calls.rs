//! WRITE and COMMIT of one file as one user, for its write-back.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use proto::nfs3::{CommitOk, FileHandle, StableHow, WccData, WriteOk};

use crate::inode::{Inode, OwnChange};
use crate::nfs3::Nfs3;
use crate::write_back::WriteTarget;
use crate::{Error, Result};

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
        let change = self.begin();
        let written = self.nfs.write(self.file, offset, data, stable).await;
        self.end(change, written.as_ref().map(|written| &written.wcc));
        written
    }

    async fn commit(&self, offset: u64, count: u32) -> Result<CommitOk> {
        let change = self.begin();
        let committed = self.nfs.commit(self.file, offset, count).await;
        self.end(change, committed.as_ref().map(|committed| &committed.wcc));
        committed
    }

    fn same_user(&self, other: &Self) -> bool {
        self.nfs.identity() == other.nfs.identity()
    }
}

impl WriteCalls {
    fn begin(&self) -> Option<OwnChange> {
        self.inode.upgrade().map(|inode| inode.begin_change())
    }

    fn end(&self, change: Option<OwnChange>, wcc: std::result::Result<&WccData, &Error>) {
        let Some(change) = change else { return };
        match wcc {
            Ok(wcc) => {
                // What was fetched since the write and before the server had it lacks it.
                change.inode().data_changed();
                change.finish(wcc);
            }
            // The data is lost, and a program that reads it back must not see it.
            Err(_) => change.fail(),
        }
    }
}
