//! The way out of a connection.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use ::io::{Pipe, unacknowledged_bytes};
use rustix::io::ioctl_fionread;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

/// A stream of bytes that takes replies without waiting. What comes in is read as from any
/// [`AsyncRead`](tokio::io::AsyncRead).
///
/// A socket takes the data in a pipe without a copy. Another stream has to read the pipe, and only as
/// much of it as the stream takes.
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

    /// Bytes that have arrived and were not received yet.
    ///
    /// # Errors
    /// Why they are not known.
    fn unread_bytes(&self) -> io::Result<u64>;
}

impl Transport for OwnedWriteHalf {
    fn try_send(&self, parts: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
        let mut control = SendAncillaryBuffer::default();
        try_write(self.as_ref(), |socket| Ok(sendmsg(socket, parts, &mut control, flags)?))
    }

    fn try_send_pipe(&self, pipe: &mut Pipe, more: bool) -> io::Result<usize> {
        try_write(self.as_ref(), |socket| pipe.send_to(socket, more))
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket: &TcpStream = self.as_ref();
        socket.poll_write_ready(context)
    }

    fn unacknowledged_bytes(&self) -> io::Result<u64> {
        let socket: &TcpStream = self.as_ref();
        unacknowledged_bytes(socket.as_fd())
    }

    fn unread_bytes(&self) -> io::Result<u64> {
        let socket: &TcpStream = self.as_ref();
        Ok(ioctl_fionread(socket)?)
    }
}

/// Tries to write if the socket has room as far as is known, and notes it if there is none.
fn try_write(
    socket: &TcpStream,
    write: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
) -> io::Result<usize> {
    socket.try_io(Interest::WRITABLE, || write(socket.as_fd()))
}
