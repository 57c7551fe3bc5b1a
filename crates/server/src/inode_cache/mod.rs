//! The inode cache: objects and their descriptors, kept open between requests.
//!
//! Purposes: NFSv3 has no OPEN and no CLOSE, and opening a file for each READ or WRITE costs more
//! than the I/O itself; and the state of a file between requests (unflushed data, changes in
//! progress) needs one place.
//!
//! Bounds: every descriptor of an object counts from before it is opened until it is closed
//! (`descriptor_count`), and others make room for it (`room`); those of a directory being listed
//! are counted apart (`DescriptorPlan::listings`). Unused objects are given up (`idle`): soon where
//! a descriptor can write, because the kernel neither executes a file that is open for writing nor
//! gives a lease of it, which a delegation takes. A file that is used but not written is closed for
//! writing alone. An object with unflushed data is flushed before it leaves; one in use does not
//! leave at all, so that there is never a second one of it.

mod busy_devices;
mod closings;
mod data_descriptors;
mod delegation_gate;
mod descriptor_count;
mod directory;
mod file;
mod flush;
mod flush_scope;
mod handle_cache;
mod idle;
mod inode;
mod inode_lock;
mod known_rights;
mod lock_descriptor;
mod name_change;
mod permitted;
mod rights;
mod room;
mod state;
mod sweeps;
mod table;
#[cfg(test)]
mod two_devices;
mod unlinked;
mod write_progress;
mod write_queue;

pub(crate) use data_descriptors::{DataDescriptors, DirectFile};
pub(crate) use delegation_gate::{Changing, Holder, Holders, RecallRequests};
pub(crate) use descriptor_count::Counted;
pub(crate) use directory::{DirectoryStream, DirectoryStreams, KernelEntry};
pub(crate) use flush_scope::Flush;
pub(crate) use handle_cache::HandleCache;
pub(crate) use idle::IdleInodes;
pub(crate) use inode::{Inode, InodeKey};
pub(crate) use inode_lock::{Attributes, Change, ExclusiveGuard, InodeLock, SystemCalls, Wcc};
pub(crate) use known_rights::AccessRights;
pub(crate) use lock_descriptor::LockDescriptor;
pub(crate) use name_change::NameChange;
pub(crate) use permitted::{DataUse, Permitted, Reading, Writing, kernel_allows};
pub(crate) use table::InodeCache;
pub(crate) use unlinked::UnusedInodes;
pub(crate) use write_queue::{
    BATCH_WRITES_MAX, BatchDuty, WaitingWrite, Woken, WriteQueue, WriteRequest, WriteTurn,
};
