//! The whole server, asked over real sockets: each file is one subject of RFC 1813, of RFC
//! 8881 or of the server's own promises.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::result_large_err, reason = "a refusal comes with attributes, as on the wire")]

mod client;
mod fixture;
mod local_file;
#[path = "../../../../tests/loop_device/mod.rs"]
mod loop_device;
#[expect(dead_code, reason = "nothing is read through mappings here")]
#[path = "../../../../tests/torture/mapping.rs"]
mod mapping;
#[path = "../../../../tests/own_process/mod.rs"]
mod own_process;
#[path = "../../../../tests/skip/mod.rs"]
mod skip;
#[path = "../../../../tests/user_namespace/mod.rs"]
mod user_namespace;

mod concurrency;
mod connections;
mod data_server;
mod durability;
mod exports;
mod handles;
mod hostile;
mod identity;
mod io_counters;
mod io_modes;
mod limits;
mod monitoring;
mod namespace;
mod nfs4;
mod page_cache;
mod prefetch;
mod programs;
mod rate_limits;
mod read_ahead;
mod readdir;
mod retransmission;
mod rpc;
mod shared_tree;
mod splice;
mod stamps;
mod unprivileged;
mod warm_names;
mod wcc;
mod write_window;
