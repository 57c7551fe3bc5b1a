//! Whether a reply has reached its client, by TCP's acknowledgements.
//!
//! A [`Link`] is the remembered state of a connection: its peer, and how many of the bytes sent
//! over it were acknowledged. It outlives the socket. A [`Receipt`] is the place of one reply among
//! these bytes.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

/// A connection, open or ended.
#[derive(Debug)]
pub(crate) struct Link {
    peer: SocketAddr,
    /// Bytes that the socket has taken.
    sent: AtomicU64,
    /// Of these, the bytes that the peer had acknowledged when the connection ended.
    acknowledged_at_end: AtomicU64,
    is_over: AtomicBool,
    /// Dangles once the connection has ended.
    socket: Weak<OwnedWriteHalf>,
}

/// How far a reply has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The peer's TCP has all of it.
    Acknowledged,
    /// It is on its way, or waits to be sent.
    Pending,
    /// The connection has ended without an acknowledgement of all of it.
    Lost,
}

impl Link {
    pub(crate) fn new(peer: SocketAddr, socket: &Arc<OwnedWriteHalf>) -> Self {
        Self { socket: Arc::downgrade(socket), ..Self::detached(peer) }
    }

    /// A link without a socket.
    fn detached(peer: SocketAddr) -> Self {
        Self {
            peer,
            sent: AtomicU64::new(0),
            acknowledged_at_end: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            socket: Weak::new(),
        }
    }

    /// The other end.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Bytes that the socket has taken.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Notes that the socket has taken so many bytes more.
    pub(crate) fn add_sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Release);
    }

    /// Notes that nothing more will be sent, while the socket is still there to be asked.
    pub(crate) fn end(&self, socket: &OwnedWriteHalf) {
        self.acknowledged_at_end.store(self.acknowledged_by(socket), Ordering::Release);
        self.is_over.store(true, Ordering::Release);
    }

    /// Bytes that have arrived at the socket and were not received yet; 0 once it is closed.
    pub(crate) fn unread_bytes(&self) -> u64 {
        let Some(socket) = self.socket.upgrade() else { return 0 };
        let socket: &TcpStream = OwnedWriteHalf::as_ref(&socket);
        rustix::io::ioctl_fionread(socket).unwrap_or_else(|error| {
            tracing::warn!(client = %self.peer, %error, "cannot read what is unread");
            0
        })
    }

    /// Bytes that the peer has acknowledged; less while others are being sent.
    fn acknowledged(&self) -> u64 {
        match self.socket.upgrade() {
            Some(socket) => self.acknowledged_by(&socket),
            None => self.acknowledged_at_end.load(Ordering::Acquire),
        }
    }

    fn acknowledged_by(&self, socket: &OwnedWriteHalf) -> u64 {
        // In this order: bytes that are sent in between make the difference smaller, never larger.
        let sent = self.sent_bytes();
        let socket: &TcpStream = socket.as_ref();
        match io::unacknowledged_bytes(socket.as_fd()) {
            Ok(unacknowledged) => sent.saturating_sub(unacknowledged),
            Err(error) => {
                tracing::warn!(client = %self.peer, %error, "cannot read what is unacknowledged");
                0
            }
        }
    }
}

/// Where a reply went.
#[derive(Debug)]
pub(crate) struct Receipt {
    link: Arc<Link>,
    /// The bytes sent over the link up to the reply's end; 0 until its place is known.
    end: AtomicU64,
}

impl Receipt {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link, end: AtomicU64::new(0) }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Notes the reply's place: with its last byte, `end` bytes were sent over the link.
    pub(crate) fn ends_at(&self, end: u64) {
        self.end.store(end, Ordering::Release);
    }

    pub(crate) fn delivery(&self) -> Delivery {
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

#[cfg(test)]
impl Link {
    /// A link for tests that need no socket.
    pub(crate) fn test(peer: &str) -> Arc<Self> {
        Arc::new(Self::detached(peer.parse().unwrap()))
    }

    pub(crate) fn acknowledge(&self, bytes: u64) {
        self.acknowledged_at_end.store(bytes, Ordering::Release);
    }

    pub(crate) fn lose(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}
