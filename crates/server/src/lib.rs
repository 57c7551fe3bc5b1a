//! The NFS server: configuration, exports, and the programs that serve them.
//!
//! A request's way: `listener` → `connection` → `rpc::server` (bytes to a record) → `dispatch`
//! (record to a call) → `nfs3` (arguments, one call, results) → `vfs` (the file operation, over
//! `inode_cache` and the `io` crate) and back through `rpc::server`.

#![forbid(unsafe_code)]

mod busy_poll;
mod call;
mod call_log;
mod call_trace;
mod callbacks;
pub mod config;
mod connection;
mod connections;
pub mod counters;
mod descriptor_plan;
mod dispatch;
pub mod export;
mod fair_queue;
mod fs;
mod held_files;
mod inode_cache;
mod listener;
mod local_conflicts;
#[cfg(test)]
#[path = "../../../tests/loop_device/mod.rs"]
mod loop_device;
mod memory_plan;
mod moment;
mod mount3;
mod mount_list;
mod network_threads;
mod nfs3;
mod nfs4;
#[cfg(test)]
#[path = "../../../tests/own_process/mod.rs"]
mod own_process;
mod placement;
mod portmap;
mod procedures;
mod random;
mod rate_limits;
mod recovery;
mod reply_cache;
pub mod report;
mod request;
mod server;
mod service;
mod settlement;
#[cfg(test)]
#[path = "../../../tests/skip/mod.rs"]
mod skip;
mod state;
mod state_dir;
mod stay_permits;
#[cfg(test)]
mod test_server;
pub mod trace;
mod vfs;
mod write_order;

pub use export::{ExportError, HandleKeyError};
pub use server::{PreparedServer, ReloadError, Server, ShutdownError, StartError};
pub use state_dir::StateDirError;
