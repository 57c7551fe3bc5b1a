//! The server's side of connections: calls come in as [`Record`]s, and replies go out in the order
//! of their completion.
//!
//! The caller interprets and bounds the calls: it finds the payload of a call ([`Layout`]), limits
//! its length, and chooses the connection that has to end to make room by its [`PeerWait`] and its
//! [`Link`].

mod delivery;
mod pace;
mod peer_wait;
mod receive;
mod reply;
mod reply_queue;
mod slots;
mod socket;
mod source;
mod staging;
mod transport;

pub use delivery::{Delivery, Link, Receipt};
pub use peer_wait::PeerWait;
pub use receive::{HEAD_BYTES_MAX, Layout, ReceiveError, Receiver, Record};
pub use reply::{Reply, SendObserver};
pub use reply_queue::ReplyQueue;
pub use slots::{Slot, Slots};
pub use socket::{Socket, SocketReader};
pub use source::Source;
pub use staging::STAGING_BYTES;
pub use transport::Transport;
