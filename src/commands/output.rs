//! Standard output for much text, written beside the network's work.

use std::io::{self, Write as _};

use bytes::Bytes;
use tokio::task::spawn_blocking;

use crate::stdout;

/// Gathers text and writes it in large pieces, on a thread of its own: a reader that pauses, like a
/// pager, must not keep replies of the server from being taken in.
#[derive(Default)]
pub(crate) struct Output {
    gathered: Vec<u8>,
}

impl Output {
    /// Where text is added; nothing is written before [`Output::settle`] or [`Output::finish`].
    pub(crate) fn text(&mut self) -> &mut Vec<u8> {
        &mut self.gathered
    }

    /// Writes what was gathered, if it is worth a call.
    pub(crate) async fn settle(&mut self) -> io::Result<()> {
        if self.gathered.len() < WORTH_BYTES { Ok(()) } else { self.finish().await }
    }

    /// Writes what was gathered.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        write(std::mem::take(&mut self.gathered).into()).await
    }
}

/// Writes `data` to stdout past any buffer.
pub(crate) async fn write(data: Bytes) -> io::Result<()> {
    let written = spawn_blocking(move || {
        let mut stdout = stdout::lock();
        stdout.write_all(&data)?;
        stdout.flush()
    });
    written.await.expect("writing does not panic")
}

const WORTH_BYTES: usize = 64 << 10;
