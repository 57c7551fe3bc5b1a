//! The way in of a connection.

use std::io;
use std::task::{Context, Poll};

use tokio::io::AsyncRead;

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
