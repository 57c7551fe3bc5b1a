//! ONC RPC over byte streams (RFC 5531 §11), for servers and for clients.
//!
//! - [`record`]: record marks, and whole records as they are sent and received;
//! - [`client`]: outbound calls, over connections that are made again when they break;
//! - [`server`]: inbound calls, with payloads received where they belong, and their replies;
//! - [`blocking`]: records on a thread of their own, with payloads that are not copied.
//!
//! What a message means is decoded by `proto`; which programs there are is the caller's affair.
#![forbid(unsafe_code)]

pub mod blocking;
pub mod client;
pub mod record;
pub mod server;
