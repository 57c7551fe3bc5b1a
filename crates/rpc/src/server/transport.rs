//! The way out of a connection.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use ::io::Pipe;

/// A stream of bytes that takes replies without waiting. What comes in is read as from any
/// [`AsyncRead`](tokio::io::AsyncRead).
///
/// A socket takes the data in a pipe without a copy. Another stream has to read the pipe, and only
/// as much of it as the stream takes.
pub trait Transport: Send + Sync {
    /// Sends as much of `parts` as the stream takes now, and returns how much. `more`: the message
    /// goes on, so a short segment need not be sent.
    ///
    /// # Errors
    /// `WouldBlock` when the stream is full; any other when it is broken.
    fn try_send(&self, parts: &[IoSlice<'_>], more: bool) -> io::Result<usize>;

    /// The same with the data in a pipe, which is not empty.
    ///
    /// # Errors
    /// As of [`Self::try_send`], and those of the pipe.
    fn try_send_pipe(&self, pipe: &mut Pipe, more: bool) -> io::Result<usize>;

    /// Whether a stream that was full may take more; wakes the last that has asked.
    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Of the bytes sent, those that the peer has not acknowledged.
    ///
    /// # Errors
    /// Why they are not known.
    fn unacknowledged_bytes(&self) -> io::Result<u64>;

    /// Of the bytes sent, those that the peer has acknowledged.
    ///
    /// # Errors
    /// Why they are not known.
    fn acknowledged_bytes(&self) -> io::Result<u64>;

    /// Whether the stream has ended in both directions, or was reset: no reply reaches the peer.
    fn has_hung_up(&self) -> bool;

    /// Bytes that have arrived and were not received yet.
    ///
    /// # Errors
    /// Why they are not known.
    fn unread_bytes(&self) -> io::Result<u64>;
}
