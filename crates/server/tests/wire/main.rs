//! The whole server, asked over real sockets: each file is one subject of RFC 1813 or of the
//! server's own promises.

mod client;
mod fixture;

mod durability;
mod exports;
mod handles;
mod hostile;
mod identity;
mod limits;
mod namespace;
mod readdir;
mod retransmission;
mod rpc;
mod wcc;
