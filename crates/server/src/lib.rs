//! The NFS server: configuration, exports, and the programs that serve them.
//!
//! A request's way: `listener` → `connection` → `receive` (bytes to a record) → `dispatch` (record
//! to a call) → `nfs3` (arguments, one call, results) → `vfs` (the file operation, over
//! `open_files` and the `io` crate) and back through `reply_queue`.

#![forbid(unsafe_code)]

pub mod config;
mod connection;
pub mod counters;
mod data_descriptors;
mod directory_stream;
mod dispatch;
mod export_root;
pub mod export_table;
mod file_handle;
mod io_support;
mod known_handles;
mod listener;
mod mount3;
mod network_threads;
mod nfs3;
mod open_files;
mod pace;
mod payload;
mod portmap;
mod receive;
mod reply_cache;
mod reply_queue;
mod server;
mod service;
pub mod trace;
mod turns;
mod vfs;
mod write_order;
mod write_verifier;

pub use file_handle::HandleKeyError;
pub use server::{ReloadError, Server, ShutdownError, StartError};
pub use service::ExportError;
