//! ONC RPC over byte streams (RFC 5531 §11), for servers and for clients.
//!
//! - [`record`]: record marks, and whole records as they are sent and received;
//! - [`client`]: outbound calls, over connections that are made again when they break;
//! - [`server`]: inbound calls, with payloads received where they belong, and their replies.
//!
//! Messages are decoded by `proto`; the caller has the programs.
#![forbid(unsafe_code)]

pub mod client;
pub mod record;
pub mod server;
