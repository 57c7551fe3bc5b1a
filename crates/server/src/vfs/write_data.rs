//! The data of WRITEs on its way into the file: of one, or of several that are adjacent.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use io::{
    BUFFER_ALIGN, ByteRange, Clients, DioAlign, DontCacheVerdict, Identity, IoMode, RangeGuard,
    RangeUse, Reservation, Route, Segment, WriteBehindFile, WriteData, WriteSplit,
};
use rustix::param::page_size;

use super::descriptors::note_refused;
use super::io_plan::{WindowWhy, WriteFacts, WritePlan};
use super::retry::{Lack, SpaceSource};
use super::{Status, Vfs, Wcc};
use crate::counters::{CallKind, Counter, CounterSet, Phase, PhaseTimer};
use crate::export::ExportRoot;
use crate::inode_cache::{
    Change, DirectFile, Flush, Inode, Permitted, SystemCalls, WriteRequest, WriteTurn, Writing,
};
use crate::trace::{CallId, Event};

/// A WRITE whose caller may write.
pub(super) struct PermittedWrite {
    /// Its place among the WRITEs of the turn.
    pub(super) place: usize,
    pub(super) range: ByteRange,
    pub(super) request: Box<WriteRequest>,
    /// The plan of the first attempt, which counted it; `None` before that.
    plan: Option<WritePlan>,
}

/// A file that may be written to, and its descriptor.
pub(super) struct WriteTarget {
    pub(super) file: Permitted<Writing>,
    pub(super) writer: Arc<OwnedFd>,
}

/// Adjacent WRITEs that may go ahead, with their room in the window and their pages.
struct WriteJob {
    file: Arc<Inode>,
    writer: Arc<OwnedFd>,
    range: ByteRange,
    target: Target,
    /// Keeps I/O of the other kind off these pages until it is done.
    _pages: RangeGuard,
}

/// Where the data goes, with what that takes.
enum Target {
    /// Through the page cache, and left there.
    Cache,
    /// Through the page cache and the window.
    Window(Arc<WriteBehindFile>, Reservation),
    /// The middle past the page cache, the ends through the window.
    Split(Arc<WriteBehindFile>, Reservation, DirectFile, WriteSplit),
}

/// The outcome of a write.
pub(super) struct Written {
    /// Bytes in the file, from the start; all but some if the disk filled up half-way.
    pub(super) result: Result<usize, io::WriteError>,
    /// The alignment of direct I/O that the kernel refused; the data went through the page cache.
    refused: Option<DioAlign>,
    /// Bytes of a WRITE past the page cache that went through the window: its ragged ends, and what
    /// the kernel took through the page cache alone, which is known if all was written.
    window_bytes: u64,
    /// The want of space, if nothing was written for it.
    lack: Option<Lack>,
}

impl Vfs {
    /// Performs adjacent WRITEs of one identity and mode as one. `end` follows on the same thread.
    /// The next phase of `timer` is I/O.
    ///
    /// # Errors
    /// They were not performed.
    pub(super) async fn perform_as_one<W, R>(
        &self,
        target: &WriteTarget,
        calls: SystemCalls,
        mut writes: W,
        mut timer: PhaseTimer<'_>,
        end: impl FnOnce(Written, W) -> R + Send + 'static,
    ) -> Result<R, Status>
    where
        W: AsRef<[PermittedWrite]> + AsMut<[PermittedWrite]> + Send + 'static,
        R: Send + 'static,
    {
        let job = self.prepare_write(target, writes.as_mut()).await?;
        let identity = writes.as_ref()[0].request.caller.identity.clone();
        let file = Arc::clone(&target.file);
        let job = move || {
            let written = Written::by(job, writes.as_ref(), &calls);
            file.note_change();
            (written.refused, end(written, writes))
        };
        // As the caller, so that quotas and reserved blocks count and the kernel clears
        // set-user-id bits.
        let performed = self.engine.data_as(identity, job).await;
        timer.end(Phase::Io);
        let (refused, done) = performed.map_err(|error| Status::no_identity(&error))?;
        if let Some(align) = refused {
            note_refused(&target.file, align);
        }
        Ok(done)
    }

    /// Performs a WRITE again if it has failed for want of space and there is some after all.
    ///
    /// # Errors
    /// As [`Self::perform_as_one`].
    pub(super) async fn repeat_lacking<W>(
        &self,
        target: &WriteTarget,
        change: &Change,
        (mut written, mut writes): (Written, W),
    ) -> Result<(Written, W), Status>
    where
        W: AsRef<[PermittedWrite]> + AsMut<[PermittedWrite]> + Send + 'static,
    {
        let root = target.file.root();
        let key = target.file.key();
        for source in SpaceSource::IN_ORDER {
            let Some(lack) = written.lack else { break };
            let bytes = range_of(writes.as_ref()).len();
            if self.free_space((source, lack), (root, key), bytes).await {
                let timer = self.timer(root, CallKind::Write);
                let (calls, end) = (change.system_calls(), |written, writes| (written, writes));
                (written, writes) = self.perform_as_one(target, calls, writes, timer, end).await?;
            }
        }
        Ok((written, writes))
    }

    /// Ends the change of WRITEs of these clients up to the offset `end`, as the caller of the last
    /// one.
    pub(super) async fn end_written(
        &self,
        target: WriteTarget,
        change: Change,
        (identity, by): (Identity, Clients),
        end: u64,
    ) -> Wcc {
        let end = move || change.end_written(target.writer.as_fd(), end, by);
        self.engine.data_as(identity, end).await.unwrap_or_default()
    }

    /// Plans adjacent WRITEs of one identity and mode, and acquires what the plan asks for. `None`
    /// if they have no data. Those that are attempted again, all of them, keep their plan.
    async fn prepare_write(
        &self,
        WriteTarget { file, writer }: &WriteTarget,
        writes: &mut [PermittedWrite],
    ) -> Result<Option<WriteJob>, Status> {
        if writes[0].request.data.is_none() {
            return Ok(None);
        }
        let planned = writes[0].plan;
        let plan = planned.unwrap_or_else(|| self.write_facts(file, writes).plan());
        let job = self.acquire_write(file, Arc::clone(writer), writes, plan).await;
        writes.iter_mut().for_each(|write| write.plan = Some(plan));
        job.map(Some)
    }

    /// The facts that decide how adjacent WRITEs are done.
    fn write_facts(&self, file: &Permitted<Writing>, writes: &[PermittedWrite]) -> WriteFacts {
        let facts = WriteFacts {
            mode: writes[0].request.mode,
            len: range_of(writes).len(),
            stream_bytes: 0,
            come_alone: false,
            outreaches_window: false,
            free_bytes: 0,
            total_bytes: 0,
        };
        if facts.mode != IoMode::Auto {
            return facts;
        }
        let begin_turn = writes.iter().any(|write| write.place == 0);
        let ranges = writes.iter().map(|write| write.range);
        let progress = file.data().note_writes(begin_turn, ranges);
        WriteFacts {
            stream_bytes: progress.bytes,
            come_alone: progress.come_alone,
            outreaches_window: progress.has_gaps
                && file.data().outreaches_window(|| self.window_of(file).outgrows_window()),
            free_bytes: self.memory.free_bytes(),
            total_bytes: self.memory.total_bytes(),
            ..facts
        }
    }

    /// Acquires what the plan of adjacent WRITEs, not empty, asks for. Waits while a direct
    /// descriptor is opened, for room in the window and for other I/O on the same pages.
    async fn acquire_write(
        &self,
        file: &Permitted<Writing>,
        writer: Arc<OwnedFd>,
        writes: &[PermittedWrite],
        plan: WritePlan,
    ) -> Result<WriteJob, Status> {
        if writes.len() > 1 {
            count_writes(file, Counter::WritesVectored, writes);
        }
        let range = range_of(writes);
        let target = match plan {
            WritePlan::Cached(_) => self.acquire_cache(file, writes, plan),
            WritePlan::Window(_) => self.acquire_window(file, writes, plan).await,
            WritePlan::Split => match self.direct_or_note(file).await? {
                Some(direct) if writes.len() == 1 || takes_parts(&direct) => {
                    Box::pin(self.acquire_split(file, writes, direct)).await
                }
                Some(_) => {
                    let plan = WritePlan::Window(WindowWhy::Small);
                    self.acquire_window(file, writes, plan).await
                }
                None => {
                    let plan = WritePlan::Window(WindowWhy::NoDirect);
                    self.acquire_window(file, writes, plan).await
                }
            },
        };
        let range_use = match target {
            Target::Cache | Target::Window(..) => RangeUse::CachedWrite,
            // Both kinds of I/O in one range, exclusively. This also excludes another WRITE of the
            // same bytes: the kernel does not order direct writes.
            Target::Split(..) => RangeUse::Exclusive,
        };
        let pages = file.data().ranges.lock(range, range_use).await;
        Ok(WriteJob { file: Arc::clone(file), writer, range, target, _pages: pages })
    }

    fn acquire_cache(&self, file: &Inode, writes: &[PermittedWrite], plan: WritePlan) -> Target {
        count_writes(file, plan.counter(), writes);
        self.emit_writes(Event::WriteVector, writes);
        Target::Cache
    }

    async fn acquire_window(
        &self,
        file: &Permitted<Writing>,
        writes: &[PermittedWrite],
        plan: WritePlan,
    ) -> Target {
        count_writes(file, plan.counter(), writes);
        let len = range_of(writes).len();
        if file.root().io_support.probe_is_due(len) {
            self.probe_drop_behind(Arc::clone(file.root()));
        }
        let window = self.window_of(file);
        let reservation = window.reserve(len).await;
        self.emit_writes(Event::WriteVector, writes);
        Target::Window(window, reservation)
    }

    async fn acquire_split(
        &self,
        file: &Permitted<Writing>,
        writes: &[PermittedWrite],
        direct: DirectFile,
    ) -> Target {
        count_writes(file, WritePlan::Split.counter(), writes);
        let range = range_of(writes);
        let split = direct.align.split_write(range, page_size() as u64);
        if split.middle != range {
            count_writes(file, Counter::WritesSplit, writes);
            self.emit_writes(Event::WriteSplit, writes);
        }
        for Segment { range, route } in split.segments() {
            let event = match route {
                Route::Cached => Event::WriteVector,
                Route::Direct => Event::WriteDirect,
            };
            let overlaps = |write: &&PermittedWrite| write.range.overlaps(range);
            for write in first_attempts(writes).filter(overlaps) {
                self.emit_write(event, write.request.call, write.range.intersection(range));
            }
        }
        let window = self.window_of(file);
        let reservation = window.reserve(split.head.len() + split.tail.len()).await;
        Target::Split(window, reservation, direct, split)
    }

    fn emit_writes(&self, event: Event, writes: &[PermittedWrite]) {
        first_attempts(writes)
            .for_each(|write| self.emit_write(event, write.request.call, write.range));
    }

    fn window_of(&self, file: &Permitted<Writing>) -> Arc<WriteBehindFile> {
        file.data().window(&self.window, file.root().device())
    }

    /// Finds out, on a data thread, whether `RWF_DONTCACHE` can do what the window does.
    fn probe_drop_behind(&self, root: Arc<ExportRoot>) {
        self.engine.leave_to_data(move || {
            let verdict = io::dontcache_writes_pay(root.directory());
            tracing::debug!(export = root.name(), ?verdict, "RWF_DONTCACHE writes were tried");
            let pay = matches!(verdict, Ok(DontCacheVerdict::NoSlower));
            root.io_support.set_drop_behind_writes_pay(pay);
        });
    }

    pub(super) fn emit_write(&self, event: Event, call: CallId, range: ByteRange) {
        self.tracer.emit(event, call, range.offset(), range.len(), format_args!(""));
    }
}

impl Written {
    /// Whether it lacked space, and nothing was written for that.
    pub(super) fn lacks_space(&self) -> bool {
        self.lack.is_some()
    }

    /// The outcome of a job of the change that makes `calls`, or of WRITEs without data, which have
    /// none.
    fn by(job: Option<WriteJob>, writes: &[PermittedWrite], calls: &SystemCalls) -> Self {
        let mut written = match (job, writes) {
            (None, _) => Self::cached(Ok(0)),
            (Some(job), [write]) => job.perform(write.data().as_slice(), calls),
            (Some(job), writes) => {
                let parts: Vec<_> = writes.iter().filter_map(PermittedWrite::data).collect();
                job.perform(&parts, calls)
            }
        };
        if let Err(failed) = &written.result
            && failed.written == 0
            && let status = Status::from(failed.error)
            && status.lacks_space()
        {
            written.lack = Some(Lack { status, since: Instant::now() });
        }
        written
    }

    /// The outcome of a write that was to go through the page cache.
    fn cached(result: Result<usize, io::WriteError>) -> Self {
        Self { result, refused: None, window_bytes: 0, lack: None }
    }

    /// Counts the bytes in the file, and how they went there.
    fn count_bytes(&self, counters: &CounterSet, planned: Counter) {
        let count = self.count() as u64;
        counters.add(Counter::WriteBytes, count);
        counters.add(planned, count - self.window_bytes);
        if self.window_bytes > 0 {
            counters.add(Counter::WriteWindowBytes, self.window_bytes);
        }
    }

    /// Bytes in the file.
    pub(super) fn count(&self) -> usize {
        match &self.result {
            Ok(count) => *count,
            Err(failed) => failed.written,
        }
    }

    /// Bytes in the file, of a job for one WRITE. If it failed after some, it is short: the client
    /// sends the rest again and then gets the error.
    ///
    /// # Errors
    /// Nothing was written.
    pub(super) fn bytes(self) -> Result<usize, Status> {
        match self.result {
            Err(failed) if failed.written == 0 => Err(failed.error.into()),
            Err(failed) => Ok(failed.written),
            Ok(count) => Ok(count),
        }
    }
}

impl PermittedWrite {
    pub(super) fn new(place: usize, range: ByteRange, request: Box<WriteRequest>) -> Self {
        Self { place, range, request, plan: None }
    }

    /// The bytes to write, if there are any.
    fn data(&self) -> Option<&[u8]> {
        self.request.data.as_ref().map(WriteData::as_slice)
    }

    /// Where the first so many of its bytes end in the file; 0 for none.
    pub(super) fn written_up_to(&self, count: usize) -> u64 {
        if count > 0 { self.range.offset() + count as u64 } else { 0 }
    }
}

/// The outcome of a WRITE within `change` that was not performed yet.
pub(super) fn unperformed(file: &Inode, change: &Change, flush: Option<Flush>) -> WriteTurn {
    WriteTurn {
        attributes: change.refused(),
        result: Err(Status::ServerFault),
        verifier: file.root().file_system.verifier.current(),
        failures: file.failures(),
        flush,
    }
}

/// Whether a direct write may have its data in several places of memory, cut at the alignment of
/// buffers.
fn takes_parts(direct: &DirectFile) -> bool {
    direct.align.offset().max(direct.align.memory()) as usize <= BUFFER_ALIGN
}

fn count_writes(file: &Inode, counter: Counter, writes: &[PermittedWrite]) {
    file.root().counters.add(counter, first_attempts(writes).count() as u64);
}

/// The WRITEs that were not attempted before: those that were are counted and traced already.
fn first_attempts(writes: &[PermittedWrite]) -> impl Iterator<Item = &PermittedWrite> {
    writes.iter().filter(|write| write.plan.is_none())
}

/// The range of adjacent WRITEs.
fn range_of(writes: &[PermittedWrite]) -> ByteRange {
    ByteRange::between(writes[0].range.offset(), writes[writes.len() - 1].range.end())
}

impl WriteJob {
    /// Writes the data, which comes in parts, on a thread that may block.
    fn perform(self, parts: &[&[u8]], calls: &SystemCalls) -> Written {
        let Self { file, writer, range, target, _pages } = self;
        let note_call = || calls.note();
        let planned = target.bytes_counter();
        let written = match target {
            Target::Cache => {
                note_call();
                Written::cached(io::write_parts_at(writer.as_fd(), parts, range.offset()))
            }
            Target::Window(window, reservation) => {
                let data = (parts, range);
                Written::cached(write_behind(
                    &file,
                    &window,
                    reservation,
                    &writer,
                    data,
                    &note_call,
                ))
            }
            Target::Split(window, reservation, direct, split) => {
                write_split(&window, reservation, &writer, &direct, (parts, split), &note_call)
            }
        };
        written.count_bytes(&file.root().counters, planned);
        written
    }
}

impl Target {
    /// The counter of the bytes that go this way.
    fn bytes_counter(&self) -> Counter {
        match self {
            Self::Cache => Counter::WritePageCacheBytes,
            Self::Window(..) => Counter::WriteWindowBytes,
            Self::Split(..) => Counter::WriteDirectBytes,
        }
    }
}

fn write_behind(
    file: &Inode,
    window: &Arc<WriteBehindFile>,
    reservation: Reservation,
    writer: &Arc<OwnedFd>,
    (parts, range): (&[&[u8]], ByteRange),
    before_call: &dyn Fn(),
) -> Result<usize, io::WriteError> {
    if file.root().io_support.drop_behind_writes_pay() {
        before_call();
        if let Some(count) = io::write_dontcache(writer.as_fd(), parts, range.offset())? {
            return Ok(count);
        }
    }
    let intent = window.before_write(writer.as_fd(), range, reservation);
    let result = intent.write(writer.as_fd(), parts, before_call);
    let written = match &result {
        Ok(count) => *count,
        Err(error) => error.written,
    };
    intent.enroll(writer, first_bytes(range, written));
    result
}

/// The middle goes past the page cache; the ends wait in the window for their neighbours, and so
/// does what of the middle the kernel took through the page cache alone.
fn write_split(
    window: &Arc<WriteBehindFile>,
    mut reservation: Reservation,
    writer: &Arc<OwnedFd>,
    direct: &DirectFile,
    (parts, split): (&[&[u8]], WriteSplit),
    before_call: &dyn Fn(),
) -> Written {
    let tail_reservation = reservation.split_off(split.tail.len());
    let head = window.before_write(writer.as_fd(), split.head, reservation);
    let tail = window.before_write(writer.as_fd(), split.tail, tail_reservation);
    let (cached, direct_fd) = (writer.as_fd(), direct.fd.as_fd());
    let outcome = io::write_segments(&split.segments(), parts, cached, direct_fd, before_call);
    let (written, refused, cached) = match &outcome {
        Ok(done) => {
            (done.written, done.refused_direct.then_some(direct.align), done.cached_instead)
        }
        // It may have failed in the page cache: the window passes over pages that are not there.
        Err(error) => (error.written, None, Some(split.middle)),
    };
    let in_file = first_bytes(ByteRange::between(split.head.offset(), split.tail.end()), written);
    let ends = [split.head, split.tail].map(|end| end.intersection(in_file));
    head.enroll(writer, ends[0]);
    tail.enroll(writer, ends[1]);
    let cached = cached.map(|cached| cached.intersection(in_file));
    let cached = cached.filter(|cached| !cached.is_empty());
    if let Some(cached) = cached {
        window.enroll_undirected(writer, cached);
    }
    // Where it failed, it is not known what was cached.
    let instead = cached.filter(|_| outcome.is_ok());
    let window_bytes = ends.into_iter().chain(instead).map(|range| range.len()).sum();
    Written { result: outcome.map(|done| done.written), refused, window_bytes, lack: None }
}

fn first_bytes(range: ByteRange, len: usize) -> ByteRange {
    ByteRange::between(range.offset(), range.offset() + (len as u64).min(range.len()))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::OpenOptionsExt;
    use std::time::Duration;

    use io::{WriteBehind, WriteBehindConfig, cache_state};
    use rustix::io::Errno;

    use super::*;
    use crate::skip::skip_in_ci_too;

    #[tokio::test]
    async fn what_is_refused_past_the_page_cache_does_not_stay_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let writer = Arc::new(OwnedFd::from(File::create_new(&path).unwrap()));
        let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        let direct = OpenOptions::new().write(true).custom_flags(flags).open(&path);
        let Ok(fd) = direct else { return skip_in_ci_too("no direct I/O here") };
        // The kernel refuses a file that is believed to take every byte anywhere.
        let align = DioAlign::new(1, 1, 1).unwrap();
        let direct = DirectFile { fd: Arc::new(fd.into()), align };
        let range = ByteRange::new(100, 50_000).unwrap();
        let split = align.split_write(range, 1);
        let window = WriteBehind::new(WriteBehindConfig::default());
        let file = window.file((8, 1));
        let reservation = file.reserve(0).await;
        // Other WRITEs have the whole window: their threads may come after this one's.
        let held = file.reserve(WriteBehindConfig::default().window_bytes).await;
        let job = move || {
            let data = vec![7; 50_000];
            let written =
                write_split(&file, reservation, &writer, &direct, (&[&data], split), &|| ());
            window.shutdown();
            (written, cache_state(writer.as_fd(), ByteRange::starting_at(0)))
        };
        let job = tokio::time::timeout(Duration::from_secs(20), tokio::task::spawn_blocking(job));
        let done = job.await;
        drop(held);
        let (written, state) = done.expect("it does not wait for room").unwrap();
        if written.refused.is_none() {
            return skip_in_ci_too("direct I/O takes every byte here");
        }
        assert_eq!(written.result.unwrap(), 50_000);
        let Some(state) = state.unwrap() else { return skip_in_ci_too("no cachestat here") };
        assert_eq!(state.cached, 0);
        assert_eq!(std::fs::read(&path).unwrap()[100..], [7; 50_000]);
    }

    #[test]
    fn number_that_a_device_gives_its_failure_does_not_reach_the_client() {
        for errno in [Errno::ILSEQ, Errno::NODEV, Errno::BUSY, Errno::OPNOTSUPP, Errno::IO] {
            let failed = io::WriteError { written: 0, error: errno.into() };
            assert_eq!(Written::cached(Err(failed)).bytes(), Err(Status::Io(errno)));
        }
    }

    #[test]
    fn bytes_that_went_through_the_page_cache_instead_are_not_counted_as_direct() {
        let failed = io::WriteError { written: 5000, error: Errno::IO.into() };
        for (result, window_bytes, expected) in [
            (Ok(16_384), 0, [16_384, 16_384, 0]),
            (Ok(16_384), 8192, [16_384, 8192, 8192]),
            // The range that went through the page cache is not known then.
            (Err(failed), 0, [5000, 5000, 0]),
        ] {
            let counters = CounterSet::default();
            let written = Written { result, refused: None, window_bytes, lack: None };
            written.count_bytes(&counters, Counter::WriteDirectBytes);
            let counted =
                [Counter::WriteBytes, Counter::WriteDirectBytes, Counter::WriteWindowBytes]
                    .map(|counter| counters.value(counter));
            assert_eq!(counted, expected);
        }
    }
}
