//! Sequential READs past the page cache: chunks are read before they are asked for.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::SystemTime;

use io::{Buffer, ByteRange, Chunk, Fill, RangeGuard, RangeUse};

use super::read::{Fetched, Read, read_and_drop};
use super::{Status, Vfs};
use crate::counters::{Counter, Counters};
use crate::data_descriptors::{DirectFile, Use};
use crate::open_files::OpenFile;
use crate::payload::Payload;
use crate::trace::Event;

/// All that reading one chunk takes.
struct FillJob {
    fill: Fill,
    buffer: Buffer,
    file: Arc<OpenFile>,
    reader: Arc<OwnedFd>,
    way: FillWay,
    pages: RangeGuard,
    counters: Arc<Counters>,
}

/// How a chunk is read.
#[derive(Clone)]
pub(super) enum FillWay {
    /// Through the page cache, to stay there too.
    Keep,
    /// Through the page cache, which is left as it was.
    Drop,
    /// Past the page cache.
    Direct(DirectFile),
    /// Past the page cache, unless all of it is there.
    ResidentOrDirect(DirectFile),
}

impl FillWay {
    /// The same, where the kernel does not tell what is cached: `None` if it cannot be done then.
    fn without_looking(&self) -> Option<Self> {
        match self {
            Self::Keep | Self::Drop => None,
            Self::Direct(file) | Self::ResidentOrDirect(file) => Some(Self::Direct(file.clone())),
        }
    }

    /// The range as the disk sees it, and the kind of I/O. `None` where that would pass the largest
    /// file offset.
    fn seen(&self, range: ByteRange) -> Option<(ByteRange, RangeUse)> {
        match self {
            Self::Keep | Self::Drop => Some((range, RangeUse::Cached)),
            Self::Direct(file) | Self::ResidentOrDirect(file) => {
                Some((file.align.widen_read(range)?.range(), RangeUse::Direct))
            }
        }
    }
}

impl Vfs {
    /// Answers from chunks that were read ahead, waiting for those on their way, and sees to it that
    /// the next ones are read. `None` when the READ has to do it for itself.
    pub(super) async fn fetch_ahead(&self, read: &Read<'_>, way: &FillWay) -> Option<Fetched> {
        let shows_cache = read.file.root().io_support.shows_cache();
        let way = if shows_cache { Some(way.clone()) } else { way.without_looking() };
        let settled = read.version.has_settled(SystemTime::now());
        let pays = settled && way.is_some() && self.switches.read_ahead();
        let ahead =
            read.file.read_ahead.note(read.range, read.version, pays.then_some(&self.read_ahead));
        if let Some(way) = way.filter(|_| !ahead.fills.is_empty()) {
            let way = self.cheapest(read, way).await;
            for fill in ahead.fills {
                self.begin_fill(read, fill, way.clone());
            }
        }
        let data = self.join_chunks(read, &ahead.chunks).await?;
        read.file.read_ahead.served(read.range, &ahead.chunks);
        self.counters.add(Counter::ReadsFromReadAhead, 1);
        Some(Fetched { data: Some(data), after: read.attributes })
    }

    /// What is to leave nothing in the page cache does best to pass it by, where that is possible: it
    /// costs half the processor time.
    async fn cheapest(&self, read: &Read<'_>, way: FillWay) -> FillWay {
        match way {
            FillWay::Drop => match self.direct(read.file, Use::Read).await {
                Ok(Some(file)) => FillWay::ResidentOrDirect(file),
                Ok(None) | Err(_) => {
                    // Opened for `begin_fill`, which does not wait.
                    drop(self.quiet_reader(read.file).await);
                    FillWay::Drop
                }
            },
            FillWay::Keep | FillWay::Direct(_) | FillWay::ResidentOrDirect(_) => way,
        }
    }

    /// The range out of the chunks: without a copy where one chunk has it all.
    async fn join_chunks(&self, read: &Read<'_>, chunks: &[Arc<Chunk>]) -> Option<Payload> {
        if let [chunk] = chunks {
            part_of(read.range, chunk, chunk.data().await?)?;
            let start = read.range.offset() - chunk.range().offset();
            let start = usize::try_from(start).expect("inside a chunk");
            return Some(Payload::in_chunk(Arc::clone(chunk), start, read.len()));
        }
        if chunks.is_empty() {
            return None;
        }
        // Not waited for: this READ may hold a buffer already.
        let mut buffer = self.buffers.try_take(read.len())?;
        let mut filled = 0;
        for chunk in chunks {
            let part = part_of(read.range, chunk, chunk.data().await?)?;
            buffer.as_mut_slice()[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        }
        (filled == read.len()).then(|| Payload::new(buffer, 0, filled))
    }

    /// Has a chunk read by a data thread, unless that would have to wait for anything: memory, a
    /// place in the queue, a WRITE to the same pages.
    fn begin_fill(&self, read: &Read<'_>, fill: Fill, way: FillWay) {
        let range = fill.range();
        let Some((seen, range_use)) = way.seen(range) else { return };
        let Some(pages) = read.file.ranges.try_lock(seen, range_use) else { return };
        let len = usize::try_from(seen.len()).expect("a chunk");
        let Some(buffer) = self.buffers.try_take(len) else { return };
        let (offset, len) = (range.offset(), range.len());
        self.tracer.emit(Event::ReadAhead, read.call, offset, len, format_args!(""));
        let job = FillJob {
            fill,
            buffer,
            file: Arc::clone(read.file),
            reader: match way {
                FillWay::Drop => read.file.quiet_reader(),
                FillWay::Keep | FillWay::Direct(_) | FillWay::ResidentOrDirect(_) => None,
            }
            .unwrap_or_else(|| Arc::clone(&read.reader)),
            way,
            pages,
            counters: Arc::clone(&self.counters),
        };
        self.engine.leave_to_data(move || job.run());
    }
}

impl FillJob {
    fn run(mut self) {
        let range = self.fill.range();
        // A page may be stored to behind a read through the page cache, and be clean again after it.
        let got = if self.may_be_kept(range) { self.read(range) } else { Ok(0) };
        let may_be_kept = self.may_be_kept(range);
        drop(self.pages);
        match got {
            Ok(got) if got as u64 == range.len() && may_be_kept => {
                self.counters.add(Counter::ReadAheadBytes, range.len());
                self.fill.complete(self.buffer, got);
            }
            // Those who wait for it read for themselves and meet the error, if there is one.
            Ok(_) | Err(_) => {
                self.counters.add(Counter::ReadAheadAbandoned, 1);
                self.fill.abandon();
            }
        }
    }

    /// Whether a copy of the range cannot be outdated without the file's change time telling. A page
    /// that is dirty may be stored to through a mapping with no trace. A direct read has such pages
    /// written first, after which a store to them is seen.
    fn may_be_kept(&self, range: ByteRange) -> bool {
        let support = &self.file.root().io_support;
        let is_clean = match io::cache_state(self.reader.as_fd(), range) {
            Ok(Some(state)) => support.shows_cache() && state.dirty == 0,
            Ok(None) => {
                support.note_hidden_cache(self.file.root().id);
                false
            }
            Err(_) => false,
        };
        is_clean || matches!(self.way, FillWay::Direct(_))
    }

    fn read(&mut self, range: ByteRange) -> Result<usize, Status> {
        let buffer = self.buffer.as_mut_slice();
        let len = usize::try_from(range.len()).expect("a chunk");
        let direct = match &self.way {
            FillWay::Drop => {
                return read_and_drop(&self.file, &self.reader, &mut buffer[..len], range);
            }
            FillWay::Direct(file) => Some(file),
            FillWay::ResidentOrDirect(file) if !is_resident(&self.reader, range) => Some(file),
            FillWay::ResidentOrDirect(_) | FillWay::Keep => None,
        };
        match direct.and_then(|file| Some((file, file.align.widen_read(range)?))) {
            Some((file, widened)) => {
                Ok(io::read_direct(file.fd.as_fd(), buffer, &widened)?.min(len))
            }
            None => Ok(io::read_at(self.reader.as_fd(), &mut buffer[..len], range.offset())?),
        }
    }
}

fn is_resident(reader: &OwnedFd, range: ByteRange) -> bool {
    let state = io::cache_state(reader.as_fd(), range);
    matches!(state, Ok(Some(state)) if state.cached == state.pages)
}

/// The bytes of `range` that a chunk has to give, if it has all it should.
fn part_of<'a>(range: ByteRange, chunk: &Chunk, data: &'a [u8]) -> Option<&'a [u8]> {
    let part = chunk.range().intersection(range);
    let start = usize::try_from(part.offset() - chunk.range().offset()).ok()?;
    data.get(start..start + usize::try_from(part.len()).ok()?)
}
