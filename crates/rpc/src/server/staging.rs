//! The bytes of a connection that were received and not yet parsed.

use std::cell::RefCell;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;

use super::source::Source;

/// Socket bytes held before they are parsed: many small calls of a busy client at once.
pub const STAGING_BYTES: usize = 16 * 1024;
/// Staging areas that a thread keeps for its connections' next bytes.
const SPARE_AREAS_MAX: usize = 16;
/// Socket bytes that were received and not yet parsed.
///
/// The memory belongs to the connection only while it holds such bytes: an idle connection, or one
/// that waits for the rest of a record, has none.
#[derive(Default)]
pub(super) struct Staging {
    area: Option<Box<[u8]>>,
    /// The part of `area` that is filled and not yet taken; never empty while there is an area.
    filled: Range<usize>,
}

thread_local! {
    /// Areas of connections that live on this thread, for the next that receives bytes.
    static SPARE_AREAS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

impl Staging {
    pub(super) fn is_empty(&self) -> bool {
        self.area.is_none()
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.area.as_ref().map_or(&[], |area| &area[self.filled.clone()])
    }

    /// Moves the available bytes into `target`; returns their number.
    pub(super) fn take(&mut self, target: &mut [u8]) -> usize {
        let staged = self.as_slice();
        let taken = target.len().min(staged.len());
        target[..taken].copy_from_slice(&staged[..taken]);
        self.skip(taken);
        taken
    }

    pub(super) fn skip(&mut self, len: usize) {
        self.filled.start += len;
        if self.filled.is_empty()
            && let Some(area) = self.area.take()
        {
            give_back(area);
        }
    }

    /// Reads at most `limit` bytes; only while it is empty.
    pub(super) fn poll_fill(
        &mut self,
        stream: &mut impl Source,
        context: &mut Context<'_>,
        limit: usize,
    ) -> Poll<std::io::Result<usize>> {
        let mut area = spare_area();
        let limit = limit.min(STAGING_BYTES);
        match poll_read(stream, context, &mut area[..limit]) {
            Poll::Ready(Ok(len)) if len > 0 => {
                (self.area, self.filled) = (Some(area), 0..len);
                Poll::Ready(Ok(len))
            }
            other => {
                give_back(area);
                other
            }
        }
    }

    /// Reads into `target`, and at most `behind` bytes that follow it; only while it is empty.
    /// Returns the number of bytes in `target`.
    pub(super) fn poll_fill_behind(
        &mut self,
        stream: &mut impl Source,
        context: &mut Context<'_>,
        target: &mut [u8],
        behind: usize,
    ) -> Poll<std::io::Result<usize>> {
        if behind == 0 {
            return poll_read(stream, context, target);
        }
        let mut area = spare_area();
        let behind = behind.min(STAGING_BYTES);
        let read = stream.poll_read_both(context, target, &mut area[..behind]);
        match read {
            Poll::Ready(Ok(len)) if len > target.len() => {
                (self.area, self.filled) = (Some(area), 0..len - target.len());
                Poll::Ready(Ok(target.len()))
            }
            other => {
                give_back(area);
                other
            }
        }
    }
}

fn spare_area() -> Box<[u8]> {
    let spare = SPARE_AREAS.with_borrow_mut(Vec::pop);
    spare.unwrap_or_else(|| vec![0; STAGING_BYTES].into_boxed_slice())
}

fn give_back(area: Box<[u8]>) {
    SPARE_AREAS.with_borrow_mut(|spare| {
        if spare.len() < SPARE_AREAS_MAX {
            spare.push(area);
        }
    });
}

pub(super) fn poll_read(
    stream: &mut impl Source,
    context: &mut Context<'_>,
    target: &mut [u8],
) -> Poll<std::io::Result<usize>> {
    let mut buffer = ReadBuf::new(target);
    ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
    Poll::Ready(Ok(buffer.filled().len()))
}
