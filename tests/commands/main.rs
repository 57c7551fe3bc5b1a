//! The commands that work with files on servers, from outside: the built program against itself as
//! the server, beside coreutils on the directory that is served.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod beside_coreutils;
mod changing;
mod closing;
mod cookies;
mod copying;
mod exports;
mod fixture;
#[path = "../fuse/mod.rs"]
mod fuse;
mod gate;
mod hostile;
mod interrupted;
mod linking;
mod listing;
mod output;
mod relay;
mod replaced;
mod retried;
#[path = "../skip/mod.rs"]
mod skip;
mod targets;
