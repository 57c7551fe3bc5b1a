//! The data of one WRITE on its way into the file.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use io::{
    ByteRange, DioAlign, DontCacheVerdict, IoMode, RangeGuard, RangeUse, Room, Route, Segment,
    WriteBehindFile, WriteSplit,
};
use rustix::param::page_size;

use super::io_plan::{WriteFacts, WriteRoute};
use super::{Status, Vfs};
use crate::counters::Counter;
use crate::data_descriptors::{DirectFile, Use};
use crate::export_root::ExportRoot;
use crate::open_files::OpenFile;
use crate::payload::Payload;
use crate::trace::{CallId, Event};

/// A WRITE that may go ahead: what it writes, and all that its way asks for.
pub(super) struct WriteJob {
    file: Arc<OpenFile>,
    writer: Arc<OwnedFd>,
    range: ByteRange,
    way: Way,
    /// Keeps I/O of the other kind off these pages until it is done.
    _pages: RangeGuard,
}

enum Way {
    /// Through the page cache, and left there.
    Cached,
    /// Through the page cache and the window.
    Window(Arc<WriteBehindFile>, Room),
    /// The middle past the page cache, the ends through the window.
    Split(Arc<WriteBehindFile>, Room, DirectFile, WriteSplit),
}

/// What became of the data.
pub(super) struct Written {
    /// Bytes in the file, from the start; all but some if the disk filled up half-way.
    pub(super) result: Result<usize, io::WriteError>,
    /// The kernel refused direct I/O; the data went through the page cache.
    pub(super) refused_direct: bool,
}

impl Vfs {
    /// Decides the way of a WRITE of `range`, not empty, and waits for what it needs: room in the
    /// window, other I/O on the same pages.
    pub(super) async fn plan_write(
        &self,
        file: &Arc<OpenFile>,
        writer: Arc<OwnedFd>,
        range: ByteRange,
        mode: IoMode,
        call: CallId,
    ) -> Result<WriteJob, Status> {
        let (route, direct) = self.write_route(file, range, mode).await?;
        self.counters.add(route.counter(), 1);
        let (way, range_use) = match (route, direct) {
            (WriteRoute::Split(align), Some(direct)) => {
                self.plan_split(file, range, align, direct, call).await
            }
            (WriteRoute::Cached(_), _) => (Way::Cached, RangeUse::Cached),
            (WriteRoute::Window(_) | WriteRoute::Split(_), _) => {
                if file.root().io_support.probe_is_due(range.len()) {
                    self.probe_drop_behind(Arc::clone(file.root()));
                }
                let room = self.window.room(range.len()).await;
                (Way::Window(file.window(&self.window), room), RangeUse::Cached)
            }
        };
        if !matches!(way, Way::Split(..)) {
            self.emit_write(Event::WriteVector, call, range);
        }
        let pages = file.ranges.lock(range, range_use).await;
        Ok(WriteJob { file: Arc::clone(file), writer, range, way, _pages: pages })
    }

    async fn write_route(
        &self,
        file: &Arc<OpenFile>,
        range: ByteRange,
        mode: IoMode,
    ) -> Result<(WriteRoute, Option<DirectFile>), Status> {
        let mut facts = WriteFacts {
            mode,
            len: range.len(),
            align: None,
            stream_bytes: 0,
            free_bytes: 0,
            total_bytes: 0,
        };
        if mode == IoMode::Auto {
            facts.stream_bytes = file.note_writer(range);
            facts.free_bytes = self.memory.free_bytes();
            facts.total_bytes = self.memory.total_bytes();
        }
        if mode != IoMode::Direct || !facts.is_worth_splitting() {
            return Ok((facts.route(), None));
        }
        let direct = self.direct_or_note(file, Use::Write).await?;
        facts.align = direct.as_ref().map(|direct| direct.align);
        Ok((facts.route(), direct))
    }

    async fn plan_split(
        &self,
        file: &Arc<OpenFile>,
        range: ByteRange,
        align: DioAlign,
        direct: DirectFile,
        call: CallId,
    ) -> (Way, RangeUse) {
        let split = align.split_write(range, page_size() as u64);
        let is_ragged = split.middle != range;
        if is_ragged {
            self.counters.add(Counter::WritesSplit, 1);
            self.emit_write(Event::WriteSplit, call, range);
        }
        for Segment { range, route } in split.segments() {
            let event = match route {
                Route::Cached => Event::WriteVector,
                Route::Direct => Event::WriteVectorDio,
            };
            if !range.is_empty() {
                self.emit_write(event, call, range);
            }
        }
        let room = self.window.room(split.head.len() + split.tail.len()).await;
        // Both kinds of I/O in one range, which nobody else may touch meanwhile. Nor may another
        // WRITE of the same bytes: the kernel puts direct ones in no order.
        (Way::Split(file.window(&self.window), room, direct, split), RangeUse::Exclusive)
    }

    /// Finds out, on a data thread, whether `RWF_DONTCACHE` can do what the window does.
    fn probe_drop_behind(&self, root: Arc<ExportRoot>) {
        self.engine.leave_to_data(move || {
            let verdict = io::dontcache_writes_pay(root.directory());
            tracing::debug!(export = root.id, ?verdict, "RWF_DONTCACHE writes were tried");
            let pay = matches!(verdict, Ok(DontCacheVerdict::NoSlower));
            root.io_support.set_drop_behind_writes_pay(pay);
        });
    }

    pub(super) fn emit_write(&self, event: Event, call: CallId, range: ByteRange) {
        self.tracer.emit(event, call, range.offset(), range.len(), format_args!(""));
    }
}

impl Written {
    /// The outcome of a WRITE without data.
    pub(super) fn nothing() -> Self {
        Self { result: Ok(0), refused_direct: false }
    }
}

impl WriteJob {
    /// Writes the data, on a thread that may block.
    pub(super) fn run(self, payload: &Payload) -> Written {
        let Self { file, writer, range, way, _pages } = self;
        let data = payload.as_slice();
        let result = match way {
            Way::Cached => io::write_at(writer.as_fd(), data, range.offset()),
            Way::Window(window, room) => write_behind(&file, &window, room, &writer, data, range),
            Way::Split(window, room, direct, split) => {
                return write_split(&window, room, &writer, &direct, data, split);
            }
        };
        Written { result, refused_direct: false }
    }
}

fn write_behind(
    file: &OpenFile,
    window: &Arc<WriteBehindFile>,
    room: Room,
    writer: &Arc<OwnedFd>,
    data: &[u8],
    range: ByteRange,
) -> Result<usize, io::WriteError> {
    if file.root().io_support.drop_behind_writes_pay()
        && let Some(count) = io::write_dontcache(writer.as_fd(), data, range.offset())?
    {
        return Ok(count);
    }
    let intent = window.before_write(writer.as_fd(), range, room);
    let result = io::write_at(writer.as_fd(), data, range.offset());
    let written = match &result {
        Ok(count) => *count,
        Err(error) => error.written,
    };
    intent.enroll(writer, first_bytes(range, written));
    result
}

/// The middle goes past the page cache; the ends wait in the window for their neighbours.
fn write_split(
    window: &Arc<WriteBehindFile>,
    mut room: Room,
    writer: &Arc<OwnedFd>,
    direct: &DirectFile,
    data: &[u8],
    split: WriteSplit,
) -> Written {
    let tail_room = room.split_off(split.tail.len());
    let head = window.before_write(writer.as_fd(), split.head, room);
    let tail = window.before_write(writer.as_fd(), split.tail, tail_room);
    let outcome = io::write_segments(&split.segments(), data, writer.as_fd(), direct.fd.as_fd());
    let (written, refused_direct) = match &outcome {
        Ok(done) => (done.written, done.refused_direct),
        Err(error) => (error.written, false),
    };
    let in_file = first_bytes(ByteRange::between(split.head.offset(), split.tail.end()), written);
    head.enroll(writer, split.head.intersection(in_file));
    tail.enroll(writer, split.tail.intersection(in_file));
    Written { result: outcome.map(|done| done.written), refused_direct }
}

fn first_bytes(range: ByteRange, len: usize) -> ByteRange {
    ByteRange::between(range.offset(), range.offset() + (len as u64).min(range.len()))
}
