//! The built program from outside: exit status, the one sentence of each failure, and the life of
//! a server from its first line on stdout to its last signal.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod arguments;
mod client;
mod control;
mod discovery;
mod failing_disk;
mod fixture;
mod foreign_servers;
#[path = "../fuse/mod.rs"]
mod fuse;
mod logging;
mod metrics;
mod observing;
mod service;
mod serving;
mod session;
#[path = "../skip/mod.rs"]
mod skip;
mod tracing;
