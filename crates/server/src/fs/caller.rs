//! The caller of an operation.

use std::sync::Arc;

use io::Identity;

use super::Status;

/// The user that an operation acts as, after squashing, and its rights by the export.
#[derive(Clone)]
pub(crate) struct Caller {
    /// User id of file operations.
    pub(crate) uid: u32,
    /// Primary group.
    pub(crate) gid: u32,
    /// Supplementary groups.
    pub(crate) groups: Arc<[u32]>,
    /// The export is read-only for this caller.
    pub(crate) read_only: bool,
    /// The identity of the threads that work for the caller. [`Identity::Server`] where the server
    /// cannot assume other users.
    pub(crate) identity: Identity,
}

impl Caller {
    /// Refuses a change on an export that this caller may only read.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(crate) fn may_change(&self) -> Result<(), Status> {
        if self.read_only { Err(Status::ReadOnly) } else { Ok(()) }
    }
}
