//! The way in of a connection.

use std::io::{self, ErrorKind, IoSliceMut};
use std::task::{Context, Poll, ready};

use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

/// A stream of bytes that calls come in by.
pub trait Source: AsyncRead + Unpin {
    /// Reads into `first`, and what follows it into `second`, at once: the number of bytes in both
    /// together, 0 at the end of the stream.
    fn poll_read_both(
        &mut self,
        context: &mut Context<'_>,
        first: &mut [u8],
        second: &mut [u8],
    ) -> Poll<io::Result<usize>>;
}

impl Source for OwnedReadHalf {
    fn poll_read_both(
        &mut self,
        context: &mut Context<'_>,
        first: &mut [u8],
        second: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let socket: &TcpStream = self.as_ref();
        let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
        loop {
            ready!(socket.poll_read_ready(context))?;
            match socket.try_read_vectored(&mut parts) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }
}
