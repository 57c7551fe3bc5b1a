//! Standard output for much text, written beside the network's work.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::LazyLock;

use bytes::Bytes;
use tokio::task::spawn_blocking;

use super::text::quote;
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

/// A name as standard output takes it: as it is for a program; for a terminal, with quotes if that
/// would not show all of it.
pub(crate) fn name(name: &[u8]) -> Cow<'_, [u8]> {
    if *IS_TERMINAL { quote::if_unprintable(name) } else { name.into() }
}

static IS_TERMINAL: LazyLock<bool> = LazyLock::new(|| io::stdout().is_terminal());

const WORTH_BYTES: usize = 64 << 10;
