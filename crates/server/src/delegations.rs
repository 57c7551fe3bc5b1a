//! Read delegations: how they are given, and the task that has them recalled. `state` decides on them,
//! and `held_files` has the leases.

use std::sync::Arc;

use proto::nfs4::Stateid;

use crate::inode_cache::Inode;
use crate::service::Service;
use crate::state::{Delegate, FileId, NotDelegated};

/// Recalls the delegations of files that something conflicts with, until it is aborted.
pub(crate) async fn attend(service: Arc<Service>) {
    let requests = Arc::clone(service.vfs.recall_requests());
    loop {
        let conflicts = requests.next().await;
        service.change_state_settle_later(|state, step| {
            for (file, is_local) in conflicts {
                let file = FileId(u64::try_from(file).expect("an address has at most 64 bits"));
                state.recall(file, is_local, step);
            }
        });
    }
}

impl Service {
    /// Gives a client a delegation of a file that it has opened.
    ///
    /// # Errors
    /// As [`HeldFiles::delegate`](crate::held_files::HeldFiles::delegate); `Contention` while the file
    /// is being changed.
    pub(crate) async fn delegate(
        &self,
        inode: &Arc<Inode>,
        call: Delegate,
    ) -> Result<Stateid, NotDelegated> {
        let leases = self.leases.clone().ok_or(NotDelegated::Resource)?;
        let alone = inode.lock.try_alone().ok_or(NotDelegated::Contention)?;
        let (state, held, now) =
            (Arc::clone(&self.state), Arc::clone(&self.held_files), self.now());
        let inode = Arc::clone(inode);
        let job = move || held.delegate((&state, &leases), &inode, alone, &call, now);
        self.engine.data(job).await
    }
}
