//! Sequential READs past the page cache: chunks are read before they are asked for.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::SystemTime;

use io::{
    Buffer, ByteRange, CacheState, ChangeWatches, Chunk, Fill, Holder, Payload, RangeUse, Share,
};

use super::descriptors::note_refused;
use super::read_data::{Fetched, Read, Source, read_and_drop, read_direct};
use super::{Status, Vfs};
use crate::counters::Counter;
use crate::inode_cache::{Permitted, Reading};
use crate::trace::Event;

/// All that reading one chunk takes.
struct FillJob {
    fill: Fill,
    source: FillSource,
    buffer: Buffer,
    /// The pages to read, as the disk sees them.
    seen: (ByteRange, RangeUse),
    watches: ChangeWatches,
}

/// Where a chunk is read from.
struct FillSource {
    file: Permitted<Reading>,
    reader: Arc<OwnedFd>,
    plan: FillPlan,
}

/// How a chunk is read.
#[derive(Clone)]
pub(super) struct FillPlan {
    source: Source,
    /// A chunk that is all in the page cache is read from there, and not past it.
    unless_resident: bool,
}

impl FillPlan {
    /// The plan where the kernel does not show what is cached: `None` if there is none.
    fn without_looking(source: Source) -> Option<Self> {
        match source {
            Source::DropBehind => None,
            Source::Direct(_) => Some(Self { source, unless_resident: false }),
        }
    }

    /// The range as the disk sees it, and the kind of I/O. `None` where that would pass the largest
    /// file offset.
    fn seen(&self, range: ByteRange) -> Option<(ByteRange, RangeUse)> {
        match &self.source {
            Source::DropBehind => Some((range, RangeUse::Cached)),
            Source::Direct(file) => Some((file.align.widen_read(range)?.range(), RangeUse::Direct)),
        }
    }
}

impl Vfs {
    /// Answers from chunks that were read ahead, waiting for those that are being read or that this
    /// client has had begun, and begins to read
    /// the next ones from `source`, but what is resident from the page cache if `unless_resident`.
    /// `None` when the READ has to take its data from the source itself.
    pub(super) async fn fetch_ahead(
        &self,
        read: &Read<'_>,
        source: &Source,
        unless_resident: bool,
    ) -> Option<Fetched> {
        let support = &read.file.root().io_support;
        let source = source.clone();
        let plan = if read.shows_cache() {
            Some(FillPlan { source, unless_resident })
        } else {
            FillPlan::without_looking(source)
        };
        let is_on = read.policy.read_ahead && self.switches.read_ahead();
        let is_safe = read.file.root().shows_changes
            && !read.attributes.is_dax
            && read.version.has_settled(SystemTime::now());
        let pays = is_safe && plan.is_some() && is_on && support.may_watch();
        let ahead = read.file.data().read_ahead.note(
            (Share::current_client(), read.range),
            read.version,
            pays.then_some(&self.read_ahead),
        );
        if ahead.lacks_room {
            read.file.root().counters.add(Counter::ReadAheadWithoutRoom, 1);
        }
        if let Some(plan) = plan.filter(|_| !ahead.fills.is_empty()) {
            let plan = self.cheapest(read, plan).await;
            for fill in ahead.fills {
                self.begin_fill(read, fill, plan.clone());
            }
        }
        let data = self.join_chunks(read, &ahead.chunks).await?;
        // Last, and after this READ began: what was finished before it must show.
        if !read.file.data().read_ahead.serve(read.range, &ahead.chunks, &self.watches) {
            read.file.root().counters.add(Counter::ReadAheadOutdated, 1);
            return None;
        }
        read.file.root().counters.add(Counter::ReadsFromReadAhead, 1);
        Some(Fetched(Some(data)))
    }

    /// The plan, but past the page cache instead of through it and out of it, where the file does
    /// direct I/O: that costs half the processor time.
    async fn cheapest(&self, read: &Read<'_>, plan: FillPlan) -> FillPlan {
        match plan.source {
            Source::DropBehind => match self.direct(read.file).await {
                Ok(Some(file)) => FillPlan { source: Source::Direct(file), unless_resident: true },
                Ok(None) | Err(_) => {
                    // Opened for `begin_fill`, which does not wait.
                    drop(self.quiet_reader(read.file).await);
                    plan
                }
            },
            Source::Direct(_) => plan,
        }
    }

    /// The range out of the chunks: without a copy where one chunk has it all.
    async fn join_chunks(&self, read: &Read<'_>, chunks: &[Arc<Chunk>]) -> Option<Payload> {
        if let [chunk] = chunks {
            part_of(read.range, chunk, chunk.data().await?)?;
            let start = read.range.offset() - chunk.range().offset();
            let start = usize::try_from(start).expect("inside a chunk");
            chunk.count_to(Share::current_client());
            return Some(Payload::in_chunk(Arc::clone(chunk), start, read.len()));
        }
        if chunks.is_empty() {
            return None;
        }
        // Not waited for: this READ may hold a buffer already.
        let mut buffer = self.buffers.try_take_for(Share::current_holder(), read.len())?;
        let mut filled = 0;
        for chunk in chunks {
            let part = part_of(read.range, chunk, chunk.data().await?)?;
            buffer.as_mut_slice()[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        }
        (filled == read.len()).then(|| Payload::new(buffer, 0, filled))
    }

    /// Has a chunk read by a data thread, unless that would have to wait for anything: memory, a
    /// place in the queue, a WRITE to the same pages. The pages are free for others until the
    /// thread begins.
    fn begin_fill(&self, read: &Read<'_>, fill: Fill, plan: FillPlan) {
        let range = fill.range();
        let Some(seen) = plan.seen(range) else { return };
        let len = usize::try_from(seen.0.len()).expect("a chunk");
        let holder = Holder { device: read.file.root().device(), ..Holder::OWN };
        let Some(buffer) = self.buffers.try_take_for(holder, len) else { return };
        let (offset, len) = (range.offset(), range.len());
        self.tracer.emit(Event::ReadAhead, read.call, offset, len, format_args!(""));
        let source = FillSource {
            file: read.file.clone(),
            reader: match plan.source {
                Source::DropBehind => read.file.quiet_reader(),
                Source::Direct(_) => None,
            }
            .unwrap_or_else(|| Arc::clone(&read.reader)),
            plan,
        };
        let watches = self.watches.clone();
        let job = FillJob { fill, source, buffer, seen, watches };
        self.engine.leave_to_data(move || job.run());
    }
}

impl FillJob {
    fn run(self) {
        let Self { fill, source, mut buffer, seen, watches } = self;
        let file = Arc::clone(&source.file);
        let Some(pages) = source.file.data().ranges.try_lock(seen.0, seen.1) else { return };
        let counters = &file.root().counters;
        let range = fill.range();
        // Before anything is read.
        let fill = match fill.watch(&watches, source.reader.as_fd()) {
            Ok(fill) => fill,
            Err(error) => {
                counters.add(Counter::ReadAheadUnwatched, 1);
                return source.file.root().io_support.note_no_watch(source.file.root().id, &error);
            }
        };
        // A page may be stored to behind a read through the page cache, and be clean again after
        // it.
        let may_be_read = source.may_be_kept(range);
        let got = if may_be_read { source.read(buffer.as_mut_slice(), range) } else { Ok(0) };
        let may_be_kept = source.may_be_kept(range);
        drop(pages);
        match got {
            Ok(got) if got as u64 == range.len() && may_be_kept => {
                counters.add(Counter::ReadAheadBytes, range.len());
                fill.complete(buffer, got);
            }
            // Direct I/O was refused, or pages are dirty: the next fill may do better.
            Ok(_) => counters.add(Counter::ReadAheadAbandoned, 1),
            // Waiters read for themselves and get the error.
            Err(_) => {
                counters.add(Counter::ReadAheadAbandoned, 1);
                fill.fail();
            }
        }
    }
}

impl FillSource {
    /// Whether a copy of the range cannot be outdated without the file's change time telling. A
    /// page that is dirty may be stored to through a mapping with no trace. A direct read has such
    /// pages written first, after which a store to them is seen.
    fn may_be_kept(&self, range: ByteRange) -> bool {
        let state = cache_state(&self.file, self.reader.as_fd(), range);
        let shows_cache = self.file.root().io_support.shows_cache();
        let is_clean = state.is_some_and(|state| shows_cache && state.dirty == 0);
        let FillPlan { source, unless_resident } = &self.plan;
        is_clean || (matches!(source, Source::Direct(_)) && !unless_resident)
    }

    /// Reads the range into the beginning of `buffer`, which has room for what direct I/O adds.
    /// Nothing if the kernel refuses direct I/O, which is noted: the next fills will do without.
    fn read(&self, buffer: &mut [u8], range: ByteRange) -> Result<usize, Status> {
        let len = usize::try_from(range.len()).expect("a chunk");
        let direct = match &self.plan.source {
            Source::DropBehind => {
                return read_and_drop(&self.file, &self.reader, &mut buffer[..len], range);
            }
            Source::Direct(_) if self.plan.unless_resident && is_resident(&self.reader, range) => {
                None
            }
            Source::Direct(file) => Some(file),
        };
        match direct.and_then(|file| Some((file, file.align.widen_read(range)?))) {
            Some((file, widened)) => {
                let got = read_direct(file, buffer, &widened)?;
                if got.is_none() {
                    note_refused(&self.file, file.align);
                }
                Ok(got.unwrap_or(0).min(len))
            }
            None => Ok(io::read_at(self.reader.as_fd(), &mut buffer[..len], range.offset())?),
        }
    }
}

/// The state of a range in the page cache; `None` if it is not reported. A refusal is remembered.
pub(super) fn cache_state(
    file: &Permitted<Reading>,
    reader: BorrowedFd<'_>,
    range: ByteRange,
) -> Option<CacheState> {
    match io::cache_state(reader, range) {
        Ok(state @ Some(_)) => return state,
        Ok(None) => file.root().io_support.note_hidden_cache(|| file.root().name()),
        // This file alone: it belongs to another user than the server's.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            file.data().note_hidden_cache();
        }
        Err(_) => {}
    }
    None
}

/// Whether the kernel shows that all of the range is in the page cache.
pub(super) fn is_resident(reader: &OwnedFd, range: ByteRange) -> bool {
    let state = io::cache_state(reader.as_fd(), range);
    matches!(state, Ok(Some(state)) if state.cached == state.pages)
}

/// The bytes of `range` that a chunk has to give, if it has all it should.
fn part_of<'a>(range: ByteRange, chunk: &Chunk, data: &'a [u8]) -> Option<&'a [u8]> {
    let part = chunk.range().intersection(range);
    let start = usize::try_from(part.offset() - chunk.range().offset()).ok()?;
    data.get(start..start + usize::try_from(part.len()).ok()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::time::Duration;

    use io::{DioAlign, IoMode, LaneKind};
    use rustix::fs::{Advice, OFlags, fadvise};

    use super::super::readable::{Readable, block_threads, open, serve};
    use super::*;
    use crate::inode_cache::Inode;
    use crate::skip::skip_in_ci_too;

    const FILE_BYTES: usize = (2 << 20) + 1000;
    const TRANSFER: usize = 47_008;

    /// READs the file in sequence; whether the last one is answered from what was read ahead.
    async fn stream(vfs: &Vfs, file: &Arc<Inode>) -> bool {
        let readable = Readable::of(vfs, file).await;
        let mut is_ahead = false;
        for offset in (0..FILE_BYTES).step_by(TRANSFER) {
            let end = FILE_BYTES.min(offset + TRANSFER);
            let range = ByteRange::between(offset as u64, end as u64);
            let read = readable.read(IoMode::DontCache, range);
            is_ahead = vfs.fetch_ahead(&read, &Source::DropBehind, true).await.is_some();
            // The read-ahead that it has begun may end.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        is_ahead
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_refusal_of_direct_io_ends_the_fills_that_meet_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("export/f");
        std::fs::create_dir(dir.path().join("export")).unwrap();
        std::fs::write(&path, vec![7; FILE_BYTES]).unwrap();
        let local = std::fs::File::open(&path).unwrap();
        local.sync_all().unwrap();
        fadvise(&local, 0, None, Advice::DontNeed).unwrap();
        let flags = OFlags::DIRECT.bits().cast_signed();
        let direct = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(&path);
        if !direct.is_ok_and(|direct| direct.read_at(&mut [0; 100], 1).is_err()) {
            return skip_in_ci_too("no direct I/O here, or it takes every byte");
        }
        // Until its change time is not that of a change which may still go on.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let server = serve(dir.path()).await;
        let file = open(&server, &path).await;
        // The chunk at the end of the file does not fit what the kernel wants.
        file.believe_align(DioAlign::new(1, 1, 1).unwrap());
        let mut is_ahead = false;
        // A fill is not begun while a place or a buffer is busy.
        for _ in 0..10 {
            is_ahead = is_ahead || stream(&server.service().vfs, &file).await;
        }
        let counters = &file.root().counters;
        assert!(counters.value(Counter::DirectRefused) > 0);
        assert!(counters.value(Counter::ReadAheadBytes) >= FILE_BYTES as u64);
        assert!(is_ahead, "the chunk at the end is read again");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn chunks_that_wait_in_the_queue_of_a_client_hold_up_no_other_client() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("export/f");
        std::fs::create_dir(dir.path().join("export")).unwrap();
        std::fs::write(&path, vec![7; FILE_BYTES]).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        // Until its change time is not that of a change which may still go on.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let server = serve(dir.path()).await;
        let file = open(&server, &path).await;
        let (vfs, counters) = (&server.service().vfs, &file.root().counters);
        let readable = Readable::of(vfs, &file).await;
        let len = TRANSFER as u64;
        let reads = [0, 1].map(|place| {
            let range = ByteRange::between(place * len, (place + 1) * len);
            readable.read(IoMode::DontCache, range)
        });
        let source = Source::DropBehind;
        let ahead = |read| vfs.fetch_ahead(read, &source, true);
        let device = vfs.engine.device(file.root().device());
        let [busy, other] = [1, 2].map(|client| Share::new(&device, client));
        // Opens what is read through.
        busy.clone().run(ahead(&reads[0])).await;
        let releases = block_threads(&busy, LaneKind::Data);
        let moment = Duration::from_millis(100);
        let own = tokio::time::timeout(moment, busy.run(ahead(&reads[1]))).await;
        if own.is_ok() {
            drop(releases);
            return skip_in_ci_too("nothing is read ahead here");
        }
        let patience = Duration::from_secs(20);
        let others = other.run(async {
            assert!(ahead(&reads[1]).await.is_none(), "the READ takes its data itself");
            drop(file.ranges().unwrap().lock(reads[1].range, RangeUse::Cached).await);
            drop(file.ranges().unwrap().lock(reads[1].range, RangeUse::Direct).await);
        });
        tokio::time::timeout(patience, others).await.expect("nothing is held in the queue");
        assert_eq!(counters.value(Counter::ReadAheadBytes), 0);
        drop(releases);
        while counters.value(Counter::ReadAheadBytes) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
