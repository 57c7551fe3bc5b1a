//! Whether a reply has reached its client, by TCP's acknowledgements.
//!
//! A [`Link`] is the remembered state of a connection: its peer, and how many of the bytes sent
//! over it were acknowledged. It outlives the transport. A [`Receipt`] is the place of one reply
//! among these bytes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::transport::Transport;

/// A connection, open or ended.
#[derive(Debug)]
pub struct Link {
    peer: SocketAddr,
    /// Bytes that the transport has taken.
    sent: AtomicU64,
    /// Of these, the bytes that the peer had acknowledged when the transport was last there.
    acknowledged_at_end: AtomicU64,
    is_over: AtomicBool,
    /// Dangles once the connection has ended.
    transport: Weak<dyn Transport>,
}

/// How far a reply has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The peer's TCP has all of it.
    Acknowledged,
    /// It is on its way, or waits to be sent.
    Pending,
    /// The connection has ended without an acknowledgement of all of it.
    Lost,
}

impl Link {
    /// A connection to `peer` over which nothing was sent yet.
    pub fn new(peer: SocketAddr, transport: Weak<dyn Transport>) -> Self {
        Self {
            peer,
            sent: AtomicU64::new(0),
            acknowledged_at_end: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            transport,
        }
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Bytes that the transport has taken.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Notes that the transport has taken so many bytes more.
    pub(super) fn add_sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Release);
    }

    /// Notes that nothing more will be sent, while the transport is still there to be asked.
    pub fn end(&self) {
        self.acknowledge(self.acknowledged());
        self.is_over.store(true, Ordering::Release);
    }

    /// Notes the bytes that the peer has acknowledged, for when the transport is gone.
    pub fn acknowledge(&self, bytes: u64) {
        self.acknowledged_at_end.store(bytes, Ordering::Release);
    }

    /// Bytes that have arrived at the transport and were not received yet; 0 once it is gone.
    pub fn unread_bytes(&self) -> u64 {
        let Some(transport) = self.transport.upgrade() else { return 0 };
        transport.unread_bytes().unwrap_or_else(|error| {
            tracing::warn!(client = %self.peer, %error, "cannot read the number of unread bytes");
            0
        })
    }

    /// Bytes that the peer has acknowledged; less while others are being sent.
    fn acknowledged(&self) -> u64 {
        let Some(transport) = self.transport.upgrade() else {
            return self.acknowledged_at_end.load(Ordering::Acquire);
        };
        // In this order: bytes that are sent in between make the difference smaller, never larger.
        let sent = self.sent_bytes();
        match transport.unacknowledged_bytes() {
            Ok(unacknowledged) => sent.saturating_sub(unacknowledged),
            Err(error) => {
                tracing::warn!(client = %self.peer, %error, "cannot read the number of unacknowledged bytes");
                0
            }
        }
    }
}

/// Where a reply went.
#[derive(Debug)]
pub struct Receipt {
    link: Arc<Link>,
    /// The bytes sent over the link up to the reply's end; 0 until its place is known.
    end: AtomicU64,
}

impl Receipt {
    /// Of a reply that will go over `link`.
    pub fn new(link: Arc<Link>) -> Self {
        Self { link, end: AtomicU64::new(0) }
    }

    /// The connection.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Notes the reply's place: with its last byte, `end` bytes were sent over the link.
    pub fn ends_at(&self, end: u64) {
        self.end.store(end, Ordering::Release);
    }

    /// How far the reply has come.
    pub fn delivery(&self) -> Delivery {
        // Read first: what was acknowledged changes no more after it.
        let is_over = self.link.is_over.load(Ordering::Acquire);
        let end = self.end.load(Ordering::Acquire);
        if end > 0 && self.link.acknowledged() >= end {
            Delivery::Acknowledged
        } else if is_over {
            Delivery::Lost
        } else {
            Delivery::Pending
        }
    }
}
