//! READs that go from the page cache to the socket without a copy.
//!
//! Splicing is a matter of speed alone. Whatever stands in its way, a READ that is not spliced is
//! copied, and meets errors there.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use io::{ByteRange, NowaitRead, Payload, Pipe, RangeUse, ReadTurn};

use super::read_data::{Fetched, Read};
use super::{Status, Vfs};
use crate::counters::Counter;
use crate::trace::Event;

/// READs of fewer bytes are copied. Hot READs over loopback, one at a time, copied and spliced, CPU
/// seconds of the server per GiB (Linux 6.18, 2 processors, median of 5): 16 KiB 0.78 and 0.90,
/// 32 KiB 0.47 and 0.39, 64 KiB 0.50 and 0.28, 256 KiB 0.33 and 0.12, 1 MiB 0.33 and 0.08.
const SPLICE_BYTES_MIN: u64 = 32 * 1024;

/// Data that came through the page cache.
pub(super) struct ThroughCache {
    pub(super) data: Fetched,
    /// All of it was in the page cache.
    pub(super) was_resident: bool,
}

impl Vfs {
    /// Takes the range from the page cache on this thread, if it is all there. `None` if it is not,
    /// or is to be copied.
    pub(super) fn try_spliced(&self, read: &Read<'_>) -> Option<Fetched> {
        if !read.file.root().attributes_in_memory {
            return None;
        }
        let mut pipe = self.pipe(read)?;
        if is_in_memory(read) != Some(true) {
            return None;
        }
        self.fill_here(read, &mut pipe).then(|| self.spliced(read, pipe))
    }

    /// Takes the range through the page cache, on this thread if it is all there. `None` if it is
    /// to be copied.
    pub(super) async fn fetch_spliced(
        &self,
        read: &Read<'_>,
    ) -> Result<Option<ThroughCache>, Status> {
        let Some(mut pipe) = self.pipe(read) else { return Ok(None) };
        if read.file.root().attributes_in_memory {
            match is_in_memory(read) {
                Some(true) if self.fill_here(read, &mut pipe) => {
                    let data = self.spliced(read, pipe);
                    return Ok(Some(ThroughCache { data, was_resident: true }));
                }
                Some(false) => {}
                // Copying finds out without waiting, and has the data then.
                None | Some(true) => return Ok(None),
            }
        }
        // A READ that waits for its turn holds no pipe that another could use.
        drop(pipe);
        self.fill_in_turn(read).await
    }

    /// Takes the range through the page cache when those before it in the file have been read: on
    /// this thread if it was read ahead for them, else on a data thread, to which the whole call
    /// moves if it can. `None` if it is to be copied.
    async fn fill_in_turn(&self, read: &Read<'_>) -> Result<Option<ThroughCache>, Status> {
        let turn = self.read_turn(read).await;
        let has_waited = turn.as_ref().is_some_and(ReadTurn::has_waited);
        if has_waited && is_in_memory(read) == Some(true) {
            let Some(mut pipe) = self.pipe(read) else { return Ok(None) };
            let filled = self.fill_here(read, &mut pipe).then(|| self.spliced(read, pipe));
            if filled.is_some() {
                self.prefetch(read);
            }
            return Ok(filled.map(|data| ThroughCache { data, was_resident: false }));
        }
        let pages = self.pages_on_data_thread(read, read.range, RangeUse::Cached).await;
        let Some(mut pipe) = self.pipe(read) else { return Ok(None) };
        let (reader, range) = (Arc::clone(&read.reader), read.range);
        let filled = self
            .on_data_thread_ahead(read, move || {
                let filled = fill(&mut pipe, &reader, range);
                drop(pages);
                Ok((filled && is_whole(&pipe, range)).then_some(pipe))
            })
            .await?;
        drop(turn);
        let data = filled.map(|pipe| self.spliced(read, pipe));
        Ok(data.map(|data| ThroughCache { data, was_resident: false }))
    }

    /// A pipe for a range that is worth one.
    fn pipe(&self, read: &Read<'_>) -> Option<Pipe> {
        let is_on = read.policy.splice && self.switches.splice();
        if read.range.len() < SPLICE_BYTES_MIN || !is_on {
            return None;
        }
        self.pipes.try_take(read.range)
    }

    /// Puts a range that is in memory into the pipe. Whether all of it: nothing is put there if
    /// this could wait for a READ of these pages or a WRITE of the file.
    fn fill_here(&self, read: &Read<'_>, pipe: &mut Pipe) -> bool {
        let (reader, range) = (&read.reader, read.range);
        let pages = read.file.data().ranges.try_lock(range, RangeUse::InMemory);
        let whole = pages.is_some() && fill(pipe, reader, range) && is_whole(pipe, range);
        if whole {
            read.file.root().counters.add(Counter::ReadsInline, 1);
        }
        whole
    }

    fn spliced(&self, read: &Read<'_>, pipe: Pipe) -> Fetched {
        read.file.root().counters.add(Counter::ReadsSpliced, 1);
        let (offset, len) = (read.range.offset(), read.range.len());
        self.tracer.emit(Event::ReadSplice, read.call, offset, len, format_args!(""));
        Fetched(Some(Payload::in_pipe(pipe)))
    }
}

/// Fills the pipe, waiting for the disk where the range is not in memory.
fn fill(pipe: &mut Pipe, reader: &OwnedFd, range: ByteRange) -> bool {
    match pipe.fill_from(reader.as_fd(), range) {
        Ok(_) => true,
        Err(error) => {
            tracing::debug!(%error, "cannot splice a range; it is copied");
            false
        }
    }
}

/// Whether the pipe has the range, and not less because the file was cut meanwhile.
fn is_whole(pipe: &Pipe, range: ByteRange) -> bool {
    pipe.len() as u64 == range.len()
}

/// Whether the range seems to be in memory, which costs little to ask. `None` if the kernel does
/// not report it.
fn is_in_memory(read: &Read<'_>) -> Option<bool> {
    let (reader, range) = (read.reader.as_fd(), read.range);
    let resident = match io::cache_state(reader, range).ok()? {
        Some(state) => state.cached == state.pages,
        None => io::resident_ranges(reader, range).ok()??.covers(range),
    };
    if !resident {
        return Some(false);
    }
    // A page counts from the moment that its reading begins. Read-ahead reads upwards, so where the
    // last byte has come, the others most likely have. The kernel also refuses while a local
    // program that writes the file holds the lock that splicing takes.
    let last = io::try_read_at_nowait(reader, &mut [0], range.end() - 1, read.attributes.size);
    Some(matches!(last, Ok(NowaitRead::Done(1))))
}

#[cfg(test)]
mod tests {
    use io::{IoMode, RangeUse};

    use super::super::readable::{Readable, open, serve};
    use super::*;

    const PAGE: u64 = 4096;
    const LEN: u64 = 64 * 1024;
    const FILE_BYTES: usize = 256 * 1024;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn range_is_spliced_at_once_only_if_nothing_in_flight_may_make_it_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("export/f");
        std::fs::create_dir(dir.path().join("export")).unwrap();
        std::fs::write(&path, vec![7; FILE_BYTES]).unwrap();
        let server = serve(dir.path()).await;
        let file = open(&server, &path).await;
        let (vfs, ranges) = (&server.service().vfs, file.ranges().unwrap());
        let readable = Readable::of(vfs, &file).await;
        let read = readable.read(IoMode::Buffered, ByteRange::between(0, LEN));
        let splices = || vfs.try_spliced(&read).is_some();
        assert!(splices());
        let (last, next) =
            (ByteRange::between(LEN - PAGE, LEN), ByteRange::between(LEN, LEN + PAGE));
        for (pages, range_use, is_spliced) in [
            (last, RangeUse::Cached, false),
            (next, RangeUse::Cached, true),
            (next, RangeUse::Direct, true),
            (next, RangeUse::CachedWrite, false),
            (next, RangeUse::Exclusive, false),
        ] {
            let other = ranges.try_lock(pages, range_use).unwrap();
            assert_eq!(splices(), is_spliced, "{range_use:?} of {pages:?}");
            drop(other);
            assert!(splices());
        }
    }
}
