//! Calls on the wire: to a server in this process, and to peers that lose, delay and garble.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fixture;
mod peer;
#[path = "../../../../tests/skip/mod.rs"]
mod skip;
mod way;

mod answers;
mod calls;
mod creating;
mod file_system;
mod held_replies;
mod listing;
mod lost_replies;
mod mounting;
mod open_files;
mod reconnect;
mod reserved_ports;
