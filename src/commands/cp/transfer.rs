//! The data of one file, from its source to its sink, with many chunks under way.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use proto::nfs3::Attributes;
use rustix::io::Errno;

use super::super::failure::Failure;
use super::super::window::Window;
use super::entry::blocking;
use super::progress::Progress;
use super::sink::{Sink, Written};
use super::source::{Chunk, Source, extents};

/// The parts of the source to copy, and how.
pub(super) struct Plan {
    /// Where to begin.
    pub(super) start: u64,
    /// The parts that hold data, if the source has holes; else all up to the end of file.
    pub(super) extents: Option<Vec<Range<u64>>>,
    /// The size of the source as it was found; it may end elsewhere by now.
    pub(super) size: u64,
    /// Bytes of a chunk.
    pub(super) chunk_bytes: u32,
    /// Leave out blocks of zeros: [`Sink::is_empty`], and the source seems to have holes.
    pub(super) skip_zeros: bool,
}

impl Plan {
    /// `attributes`: those of the source. `is_empty`: [`Sink::is_empty`]. Into others, zeros are
    /// written where the source has a hole.
    pub(super) async fn new(
        attributes: &Attributes,
        source: &Source,
        start: u64,
        chunk_bytes: u32,
        is_empty: bool,
    ) -> Self {
        let Attributes { size, used, .. } = *attributes;
        let is_sparse = is_empty && used < size;
        let extents = match source {
            Source::Local { file, .. } if is_sparse => {
                let file = Arc::clone(file);
                blocking(move || Ok(extents(&file, size))).await.ok()
            }
            _ => None,
        };
        let skip_zeros = is_sparse && extents.is_none();
        Self { start, extents, size, chunk_bytes, skip_zeros }
    }
}

/// Which side a copy failed at.
pub(super) enum Broken {
    Reading(Failure),
    Writing(Failure),
}

/// Copies as planned, until all of it is safe where it went. Returns where the file ends.
///
/// # Errors
/// The first failure of either side; `IO` when the server kept losing what it had been sent.
pub(super) async fn transfer(
    source: &Source,
    sink: &mut Sink,
    plan: &Plan,
    progress: &Progress,
) -> Result<u64, Broken> {
    let Done { end, written_end } = match &plan.extents {
        None => pass(source, sink, plan, plan.start..u64::MAX, progress).await?,
        Some(extents) => parts(source, sink, plan, extents, progress).await?,
    };
    make_safe(source, sink, plan).await?;
    // The rest of an earlier copy may be longer than the source is now.
    if written_end < end || plan.start > 0 {
        sink.set_size(end).await.map_err(Broken::Writing)?;
    }
    sink.check_close().await.map_err(Broken::Writing)?;
    Ok(end)
}

/// Commits all that was written, and writes again what the server has lost. Boxed, because it needs
/// [`pass`], which needs it.
fn make_safe<'a>(
    source: &'a Source,
    sink: &'a mut Sink,
    plan: &'a Plan,
) -> Pin<Box<dyn Future<Output = Result<(), Broken>> + Send + 'a>> {
    Box::pin(async move {
        for _ in 0..RESENDS_MAX {
            let lost = sink.commit().await.map_err(Broken::Writing)?;
            if lost.is_empty() {
                return Ok(());
            }
            for range in lost {
                pass(source, sink, plan, range, &Progress::hidden()).await?;
            }
        }
        Err(Broken::Writing(Failure::refused(Errno::IO)))
    })
}

struct Done {
    /// Where the source ended, or the range.
    end: u64,
    /// Where the last byte that was written ends; [`Plan::start`] if none was.
    written_end: u64,
}

/// Copies the parts of a file that hold data, and what was appended to it meanwhile.
async fn parts(
    source: &Source,
    sink: &mut Sink,
    plan: &Plan,
    extents: &[Range<u64>],
    progress: &Progress,
) -> Result<Done, Broken> {
    let mut written_end = plan.start;
    for extent in extents {
        let done = pass(source, sink, plan, extent.clone(), progress).await?;
        written_end = written_end.max(done.written_end);
        if done.end < extent.end {
            // The source is shorter than its size was, and may end in front of the extent.
            let size = source.local_size().await.map_err(Broken::Reading)?;
            let end = size.map_or(done.end, |size| size.min(done.end)).max(written_end);
            return Ok(Done { end, written_end });
        }
    }
    // No read has seen whether a hole at the end is still there.
    match source.local_size().await.map_err(Broken::Reading)? {
        Some(size) if size < plan.size => Ok(Done { end: size.max(written_end), written_end }),
        _ => {
            let done = pass(source, sink, plan, plan.size..u64::MAX, progress).await?;
            Ok(Done { end: done.end, written_end: written_end.max(done.written_end) })
        }
    }
}

/// Copies a range, or as much of it as there is.
async fn pass(
    source: &Source,
    sink: &mut Sink,
    plan: &Plan,
    range: Range<u64>,
    progress: &Progress,
) -> Result<Done, Broken> {
    let mut reads = Window::new(source.reads_max(plan.chunk_bytes));
    let mut writes = Window::new(sink.writes_max(plan.chunk_bytes));
    let (mut asked, mut end) = (range.start, range.start);
    let mut written_end = plan.start;
    let mut is_over = false;
    while !is_over {
        while !reads.is_full() && asked < range.end && (reads.is_empty() || asked < plan.size) {
            let len = plan.chunk_bytes;
            let len = u32::try_from(range.end - asked).map_or(len, |left| left.min(len));
            reads.push(source.read(asked, len));
            asked += u64::from(len);
        }
        let Some(chunk) = reads.next().await else { break };
        let Chunk { data, eof } = chunk.map_err(Broken::Reading)?;
        is_over = eof || data.is_empty();
        let at = end;
        end += len(&data);
        progress.advance(len(&data));
        for (offset, piece) in pieces(at, data, plan.skip_zeros) {
            written_end = offset + len(&piece);
            if sink.must_wait(written_end) {
                settle_all(sink, &mut writes).await?;
                make_safe(source, sink, plan).await?;
                sink.note_safe(offset);
            } else if let Some(written) = writes.make_room().await {
                settle(sink, written).await?;
            }
            writes.push(sink.write(offset, piece));
        }
    }
    settle_all(sink, &mut writes).await?;
    Ok(Done { end, written_end })
}

async fn settle_all(
    sink: &mut Sink,
    writes: &mut Window<Result<Written, Failure>>,
) -> Result<(), Broken> {
    while let Some(written) = writes.next().await {
        settle(sink, written).await?;
    }
    Ok(())
}

async fn settle(sink: &mut Sink, written: Result<Written, Failure>) -> Result<(), Broken> {
    let settled = match written {
        Ok(written) => sink.settle(written).await,
        Err(failure) => Err(failure),
    };
    settled.map_err(Broken::Writing)
}

/// The data, or the runs of blocks in it that are not all zeros.
fn pieces(offset: u64, data: Bytes, skip_zeros: bool) -> Vec<(u64, Bytes)> {
    if data.is_empty() {
        return Vec::new();
    }
    if !skip_zeros {
        return vec![(offset, data)];
    }
    let mut runs: Vec<Range<usize>> = Vec::new();
    for start in (0..data.len()).step_by(ZERO_BLOCK_BYTES) {
        let block = start..data.len().min(start + ZERO_BLOCK_BYTES);
        // Without a branch for each byte, which lets the compiler take many at once.
        if data[block.clone()].iter().fold(0, |all, byte| all | byte) == 0 {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == block.start => run.end = block.end,
            _ => runs.push(block),
        }
    }
    let place = |run: &Range<usize>| offset + u64::try_from(run.start).unwrap_or(u64::MAX);
    runs.into_iter().map(|run| (place(&run), data.slice(run))).collect()
}

fn len(data: &Bytes) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}

/// How often data that a server lost is sent to it again: each time it was started anew meanwhile.
const RESENDS_MAX: usize = 16;
/// Blocks of zeros that become holes.
const ZERO_BLOCK_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use super::super::source::Buffers;
    use super::*;

    /// Copies a file of this size with `data` at some offsets, as planned when it had
    /// `planned_bytes` and data only in its first block, and expects a copy of the file as it is.
    async fn assert_copied(planned_bytes: u64, size: u64, data: &[u64]) {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.set_len(size).unwrap();
        for offset in data {
            from.write_all_at(b"data", *offset).unwrap();
        }
        let read = |file: &File| {
            let mut data = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
            file.read_exact_at(&mut data, 0).unwrap();
            data
        };
        let expected = read(&from);
        let source = Source::Local { file: Arc::new(from), buffers: Buffers::default() };
        let mut sink = Sink::local(to).unwrap();
        let first = Range { start: 0, end: 4096 };
        let plan = Plan {
            start: 0,
            extents: Some(vec![first]),
            size: planned_bytes,
            chunk_bytes: 4096,
            skip_zeros: false,
        };
        let copied = transfer(&source, &mut sink, &plan, &Progress::hidden()).await;
        assert_eq!(copied.ok(), Some(size));
        let found = read(&sink.file().unwrap());
        assert_eq!(found.len(), expected.len());
        assert!(found == expected, "{planned_bytes} {size}");
    }

    #[tokio::test]
    async fn no_more_of_an_earlier_copy_is_kept_than_the_source_has_now() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.write_all_at(&[1; 300_000], 0).unwrap();
        to.write_all_at(&[1; 400_000], 0).unwrap();
        let source = Source::Local { file: Arc::new(from), buffers: Buffers::default() };
        let mut sink = Sink::local(to).unwrap();
        let start = 208_000;
        let (size, chunk_bytes) = (500_000, 4096);
        let plan = Plan { start, extents: None, size, chunk_bytes, skip_zeros: false };
        let copied = transfer(&source, &mut sink, &plan, &Progress::hidden()).await;
        assert_eq!(copied.ok(), Some(300_000));
        assert_eq!(sink.file().unwrap().metadata().unwrap().len(), 300_000);
    }

    #[tokio::test]
    async fn files_with_holes_that_change_meanwhile_are_copied_as_they_are() {
        assert_copied(100_000, 100_000, &[0]).await;
        assert_copied(100_000, 200_000, &[0, 100_000, 150_001]).await;
        assert_copied(100_000, 50_000, &[0]).await;
        assert_copied(100_000, 4, &[0]).await;
    }

    #[test]
    fn blocks_of_zeros_are_left_out() {
        const BLOCK: usize = ZERO_BLOCK_BYTES;
        let mut data = vec![0; 4 * BLOCK + 10];
        let found = |data: &[u8]| {
            let pieces = pieces(7, Bytes::copy_from_slice(data), true);
            pieces.iter().map(|(at, piece)| (*at, piece.len())).collect::<Vec<_>>()
        };
        assert_eq!(found(&data), []);
        data[4 * BLOCK + 9] = 1;
        assert_eq!(found(&data), [(7 + 4 * BLOCK as u64, 10)]);
        data[BLOCK] = 1;
        data[3 * BLOCK - 1] = 1;
        assert_eq!(found(&data), [(7 + BLOCK as u64, 2 * BLOCK), (7 + 4 * BLOCK as u64, 10)]);
        assert_eq!(pieces(7, Bytes::copy_from_slice(&data), false).len(), 1);
        assert_eq!(pieces(7, Bytes::new(), false).len(), 0);
    }
}
