//! The NFS server: configuration, exports, and the programs that serve them.
//!
//! A request's way: `listener` → `connection` → `receive` (bytes to a record) → `dispatch` (record
//! to a call) → `nfs3` (arguments, one call, results) → `vfs` (the file operation, over
//! `inode_cache` and the `io` crate) and back through `reply_queue`.

#![forbid(unsafe_code)]

mod call;
mod call_log;
pub mod config;
mod connection;
mod connections;
pub mod counters;
mod delivery;
mod descriptor_plan;
mod dispatch;
pub mod export;
mod fs;
mod inode_cache;
mod listener;
mod memory_plan;
mod mount3;
mod mount_list;
mod network_threads;
mod nfs3;
mod pace;
mod payload;
mod peer_wait;
mod portmap;
mod procedures;
mod random;
mod receive;
mod reply;
mod reply_cache;
mod reply_queue;
mod request;
mod server;
mod service;
mod state_dir;
pub mod trace;
mod transport;
mod vfs;
mod write_order;

pub use export::{ExportError, HandleKeyError};
pub use server::{ReloadError, Server, ShutdownError, StartError};
pub use state_dir::StateDirError;
