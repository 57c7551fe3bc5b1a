//! The common terms of the server: the status of an operation, the attributes and times of an
//! object, the caller. It knows the kernel and nothing of this server.

mod attributes;
mod caller;
mod shown;
mod status;

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::OFlags;

pub(crate) use attributes::{
    CLOCK, LiveAttributes, Timestamp, attributes_and_birth_at, attributes_and_birth_of,
    attributes_of, attributes_of_linked_or_not,
};
pub(crate) use caller::{Caller, OpenedFor};
pub(crate) use shown::{Shown, escaped};
pub(crate) use status::Status;

/// Opens an object for its attributes and as the start of a path, not for data; never through a
/// symbolic link.
pub(crate) const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A path that names the object of a descriptor, for the calls that take no `O_PATH` descriptor.
pub(crate) fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
