//! The caller of an operation.

use std::num::NonZeroU64;

use io::Identity;

use super::Status;

/// The user that an operation acts as, after squashing, and its rights by the export.
#[derive(Clone)]
pub(crate) struct Caller {
    /// The identity of the threads that work for the caller, and the only place of its ids.
    /// [`Identity::Server`] where the server cannot assume other users.
    pub(crate) identity: Identity,
    /// The export is read-only for this caller.
    pub(crate) read_only: bool,
    /// The data that an open of version 4 lets this user use, whatever the mode of the file is by
    /// now.
    pub(crate) opened: OpenedFor,
    /// The client of version 4 behind the call: its own delegations do not keep it from what they
    /// let it do.
    pub(crate) client: Option<NonZeroU64>,
}

/// Uses of data that were permitted when the file was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenedFor {
    pub(crate) reading: bool,
    pub(crate) writing: bool,
}

impl Caller {
    /// User id of file operations.
    pub(crate) fn uid(&self) -> u32 {
        self.identity.uid()
    }

    /// Refuses a change on an export that this caller may only read.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(crate) fn may_change(&self) -> Result<(), Status> {
        if self.read_only { Err(Status::ReadOnly) } else { Ok(()) }
    }
}
