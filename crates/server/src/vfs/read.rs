//! READ.
//!
//! [`Vfs::read`] answers from the first of these that has the range: what was read ahead, the page
//! cache (without waiting), the disk by the route that the export's mode asks for.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use io::{Buffer, ByteRange, FileVersion, Identity, IoMode, NowaitRead, RangeUse};
use rustix::fs::Access;

use super::io_plan::{ReadFacts, ReadRoute};
use super::read_ahead::FillWay;
use super::{Answer, Attributes, Caller, Object, Status, Vfs, attributes_of};
use crate::counters::Counter;
use crate::data_descriptors::{DirectFile, Use};
use crate::open_files::OpenFile;
use crate::payload::Payload;
use crate::trace::{CallId, Event};

/// What a READ returns.
pub(crate) struct ReadDone {
    /// The data; `None` when there is none.
    pub(crate) data: Option<Payload>,
    /// The range reached the end of the file.
    pub(crate) eof: bool,
}

impl ReadDone {
    /// Bytes read.
    pub(crate) fn count(&self) -> usize {
        self.data.as_ref().map_or(0, Payload::len)
    }
}

/// A READ at work, with all that was found out before the data is touched.
pub(super) struct Read<'a> {
    pub(super) file: &'a Arc<OpenFile>,
    pub(super) reader: Arc<OwnedFd>,
    pub(super) call: CallId,
    /// Not empty, and inside the file as it was.
    pub(super) range: ByteRange,
    pub(super) attributes: Attributes,
    /// What the file was like when this READ began.
    pub(super) version: FileVersion,
}

impl Read<'_> {
    /// Bytes to read.
    pub(super) fn len(&self) -> usize {
        usize::try_from(self.range.len()).expect("at most transfer_bytes_max")
    }
}

/// Data, and attributes of the file from after it was read or from when it was surely the same.
pub(super) struct Fetched {
    pub(super) data: Option<Payload>,
    pub(super) after: Attributes,
}

impl Fetched {
    pub(super) fn new(buffer: Buffer, start: usize, len: usize, after: Attributes) -> Self {
        Self { data: (len > 0).then(|| Payload::new(buffer, start, len)), after }
    }
}

/// What the page cache had.
enum Tried {
    Done(Fetched),
    /// So many bytes from the start, which are in the buffer.
    Partly(Buffer, usize),
}

impl Vfs {
    /// READ, RFC 1813 §3.3.6. Reads at most `count` bytes (clamped to `transfer_bytes_max`) at
    /// `offset`; short only at the end of the file, and then `eof`.
    ///
    /// # Errors
    /// `Stale`, `IsDirectory`, `Invalid` (no regular file), `Access`, `Io`.
    pub(crate) async fn read(
        &self,
        caller: &Caller,
        object: &Object,
        offset: u64,
        count: u32,
    ) -> Answer<Option<Attributes>, ReadDone> {
        let file = match self.open(object).await {
            Ok(file) => file,
            Err(status) => return Answer::refused(status),
        };
        // Before the attributes: a change that comes between the two makes the version older than
        // it is, never newer.
        let changes = file.changes();
        let attributes = match self.attributes(&file).await {
            Ok(attributes) => attributes,
            Err(status) => return Answer::refused(status),
        };
        let version = version(&attributes, changes);
        match self.read_open(caller, object, &file, (attributes, version), (offset, count)).await {
            Ok((after, done)) => Answer { attributes: Some(after), result: Ok(done) },
            Err(status) => Answer { attributes: Some(attributes), result: Err(status) },
        }
    }

    async fn read_open(
        &self,
        caller: &Caller,
        object: &Object,
        file: &Arc<OpenFile>,
        (attributes, version): (Attributes, FileVersion),
        (offset, count): (u64, u32),
    ) -> Result<(Attributes, ReadDone), Status> {
        must_be_regular(&attributes)?;
        let reader = self.reader(file).await?;
        self.authorize_data(caller, file, &*reader, &attributes, Access::READ_OK).await?;
        let left = attributes.size.saturating_sub(offset);
        let wanted = u64::from(count.min(self.transfer_bytes_max)).min(left);
        let range = match ByteRange::new(offset, wanted) {
            Some(range) if wanted > 0 => range,
            _ => return Ok((attributes, ReadDone { data: None, eof: left == 0 })),
        };
        let call = object.call_id(caller);
        let read = Read { file, reader, call, range, attributes, version };
        let Fetched { data, after } = self.fetch(&read, object.policy.read).await?;
        let count = data.as_ref().map_or(0, Payload::len) as u64;
        self.tracer.emit(Event::ReadIoDone, call, offset, count, format_args!(""));
        self.counters.add(Counter::ReadBytes, count);
        let eof = offset + count >= after.size;
        Ok((after, ReadDone { data, eof }))
    }

    async fn fetch(&self, read: &Read<'_>, mode: IoMode) -> Result<Fetched, Status> {
        if mode == IoMode::Buffered {
            return self.fetch_buffered(read).await;
        }
        let is_ahead = !read.file.read_ahead.find(read.range, read.version).is_empty();
        let mut facts = self.read_facts(read, mode);
        let stays = matches!(facts.route(), ReadRoute::Cached(_));
        let mut tried = None;
        if mode == IoMode::Auto && !is_ahead && (stays || may_be_in_memory(read)) {
            let resident = match self.try_spliced(read) {
                Some(done) => Tried::Done(done),
                None => self.try_cached(read).await?,
            };
            match resident {
                Tried::Done(done) => {
                    self.counters.add(Counter::ReadsResident, 1);
                    return Ok(done);
                }
                Tried::Partly(buffer, had) => tried = Some((buffer, had)),
            }
        }
        if mode == IoMode::Auto && !stays {
            facts.read_again = self.is_reread(read, facts.total_bytes / 2);
        }
        let (route, direct) = self.read_route(read, facts).await?;
        let way = match (route, &direct) {
            (ReadRoute::Cached(_), _) => {
                read.file.note_kept(read.range.len());
                FillWay::Keep
            }
            (_, Some(file)) if mode == IoMode::Direct => FillWay::Direct(file.clone()),
            (_, Some(file)) => FillWay::ResidentOrDirect(file.clone()),
            (_, None) => FillWay::Drop,
        };
        if let Some(done) = self.fetch_ahead(read, &way).await {
            return Ok(done);
        }
        self.counters.add(route.counter(), 1);
        match (way, direct, tried) {
            (FillWay::Keep, _, Some((buffer, had))) => self.fetch_cached(read, buffer, had).await,
            (FillWay::Keep, _, None) => {
                let buffer = self.take_buffer(read.len()).await?;
                self.fetch_cached(read, buffer, 0).await
            }
            // Whoever waits for memory must hold none: nobody would get any further.
            (_, Some(direct), tried) => {
                drop(tried);
                self.fetch_direct(read, direct).await
            }
            (_, None, tried) => {
                drop(tried);
                self.fetch_uncached(read).await
            }
        }
    }

    /// From the page cache, without a copy where that pays.
    async fn fetch_buffered(&self, read: &Read<'_>) -> Result<Fetched, Status> {
        self.counters.add(Counter::ReadsCachedByMode, 1);
        if let Some(done) = self.fetch_spliced(read).await? {
            return Ok(done);
        }
        match self.try_cached(read).await? {
            Tried::Done(done) => Ok(done),
            Tried::Partly(buffer, had) => self.fetch_cached(read, buffer, had).await,
        }
    }

    /// What decides the way of a READ, as far as it is known without waiting.
    fn read_facts(&self, read: &Read<'_>, mode: IoMode) -> ReadFacts {
        ReadFacts {
            mode,
            uncached_bytes: read.attributes.size.saturating_sub(read.file.kept_bytes()),
            align: None,
            drops_behind: read.file.root().io_support.drops_behind(),
            free_bytes: self.memory.free_bytes(),
            total_bytes: self.memory.total_bytes(),
            read_again: false,
        }
    }

    /// The way to go when the page cache does not have the range, with the descriptor for it.
    async fn read_route(
        &self,
        read: &Read<'_>,
        mut facts: ReadFacts,
    ) -> Result<(ReadRoute, Option<DirectFile>), Status> {
        // Most READs of these need no direct descriptor, which costs opening it.
        match facts.route() {
            ReadRoute::DontCache if facts.mode != IoMode::DontCache || !facts.drops_behind => {}
            route => return Ok((route, None)),
        }
        let direct = self.direct_or_note(read.file, Use::Read).await?;
        facts.align = direct.as_ref().map(|direct| direct.align);
        if direct.is_none() {
            self.counters.add(Counter::ReadsWithoutDirect, 1);
        }
        Ok((facts.route(), direct))
    }

    fn is_reread(&self, read: &Read<'_>, horizon: u64) -> bool {
        let clock = self.uncached_bytes.fetch_add(read.range.len(), Ordering::Relaxed);
        read.file.read_history.note(read.range, read.attributes.size, clock, horizon)
    }

    /// Reads what is in the page cache, on this thread.
    async fn try_cached(&self, read: &Read<'_>) -> Result<Tried, Status> {
        let mut buffer = self.take_buffer(read.len()).await?;
        if !read.file.root().attributes_in_memory {
            return Ok(Tried::Partly(buffer, 0));
        }
        let slice = &mut buffer.as_mut_slice()[..read.len()];
        let (offset, size) = (read.range.offset(), read.attributes.size);
        match io::try_read_at_nowait(read.reader.as_fd(), slice, offset, size)? {
            NowaitRead::Done(len) => {
                self.emit_vector(read, read.range);
                self.counters.add(Counter::ReadsInline, 1);
                Ok(Tried::Done(Fetched::new(buffer, 0, len, read.attributes)))
            }
            NowaitRead::Partly(had) => Ok(Tried::Partly(buffer, had)),
            NowaitRead::Unsupported => Ok(Tried::Partly(buffer, 0)),
        }
    }

    /// Reads the rest through the page cache, on a data thread, to which the whole call moves if it
    /// can. A short read happens only when the file was cut meanwhile.
    async fn fetch_cached(
        &self,
        read: &Read<'_>,
        mut buffer: Buffer,
        had: usize,
    ) -> Result<Fetched, Status> {
        self.emit_vector(read, read.range);
        let pages = read.file.ranges.lock(read.range, RangeUse::Cached).await;
        let (reader, wanted, offset) = (Arc::clone(&read.reader), read.len(), read.range.offset());
        self.on_data_thread(move || {
            let rest = &mut buffer.as_mut_slice()[had..wanted];
            let len = had + io::read_at(reader.as_fd(), rest, offset + had as u64)?;
            drop(pages);
            Ok(Fetched::new(buffer, 0, len, attributes_of(&*reader)?))
        })
        .await
    }

    /// Reads past the page cache, from and to where the file's alignment allows.
    async fn fetch_direct(&self, read: &Read<'_>, direct: DirectFile) -> Result<Fetched, Status> {
        // The largest transfer, widened to sectors beyond a page, fits no buffer.
        let fits = |len: u64| len <= self.buffers.len_max() as u64;
        let Some(widened) =
            direct.align.widen_read(read.range).filter(|widened| fits(widened.range().len()))
        else {
            return self.fetch_uncached(read).await;
        };
        self.tracer.emit(
            Event::ReadVectorDio,
            read.call,
            read.range.offset(),
            read.range.len(),
            format_args!("{widened}"),
        );
        self.emit_vector(read, widened.range());
        if widened.range() != read.range {
            self.counters.add(Counter::ReadsWidened, 1);
        }
        let len = usize::try_from(widened.range().len()).expect("a transfer and two extras");
        let mut buffer = self.take_buffer(len).await?;
        let pages = read.file.ranges.lock(widened.range(), RangeUse::Direct).await;
        let reader = Arc::clone(&read.reader);
        let fetched = self
            .on_data_thread(move || {
                let got = match io::read_direct(direct.fd.as_fd(), buffer.as_mut_slice(), &widened)
                {
                    Ok(got) => got,
                    // Not the client's fault, nor the disk's.
                    Err(error) if error.raw_os_error() == Some(EINVAL) => return Ok(None),
                    Err(error) => return Err(error.into()),
                };
                drop(pages);
                let len = usize::try_from(widened.asked_of(got as u64)).expect("less than it got");
                let start = usize::try_from(widened.start_extra).expect("less than an alignment");
                Ok(Some(Fetched::new(buffer, start, len, attributes_of(&*reader)?)))
            })
            .await?;
        match fetched {
            // A file system may deliver less although the file goes on; a client would take a short
            // READ for the end.
            Some(done) if is_whole(read, &done) => Ok(done),
            Some(_) => self.fetch_uncached(read).await,
            None => {
                self.note_refused(read.file);
                self.fetch_uncached(read).await
            }
        }
    }

    /// Reads through the page cache and drops what that brought in.
    async fn fetch_uncached(&self, read: &Read<'_>) -> Result<Fetched, Status> {
        let reader = self.quiet_reader(read.file).await?;
        self.emit_vector(read, read.range);
        let mut buffer = self.take_buffer(read.len()).await?;
        let pages = read.file.ranges.lock(read.range, RangeUse::Cached).await;
        let (range, wanted) = (read.range, read.len());
        let file = Arc::clone(read.file);
        self.on_data_thread(move || {
            let slice = &mut buffer.as_mut_slice()[..wanted];
            let len = read_and_drop(&file, &reader, slice, range)?;
            drop(pages);
            Ok(Fetched::new(buffer, 0, len, attributes_of(&*reader)?))
        })
        .await
    }

    /// Runs what blocks on the disk, moving the whole call to a data thread if it can.
    pub(super) async fn on_data_thread<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.counters.add(Counter::ReadsQueued, 1);
        self.engine.ask_for_data_thread().await;
        self.engine.data(job).await
    }

    pub(super) async fn take_buffer(&self, len: usize) -> Result<Buffer, Status> {
        self.buffers.take(len).await.map_err(|_| Status::ServerFault)
    }

    fn emit_vector(&self, read: &Read<'_>, range: ByteRange) {
        let (offset, len) = (range.offset(), range.len());
        self.tracer.emit(Event::ReadVector, read.call, offset, len, format_args!(""));
    }

    /// Notes that the kernel refused direct I/O that fits the alignment it told.
    pub(super) fn note_refused(&self, file: &Arc<OpenFile>) {
        self.counters.add(Counter::DirectRefused, 1);
        if file.direct_refused() {
            file.root().io_support.note_no_direct(file.root().id);
        }
    }

    /// The descriptor for reading.
    pub(super) async fn reader(&self, file: &Arc<OpenFile>) -> Result<Arc<OwnedFd>, Status> {
        match file.reader() {
            Some(reader) => Ok(reader),
            None => self.reopen(file, OpenFile::open_reader).await,
        }
    }

    /// The descriptor for reading without the kernel's read-ahead.
    pub(super) async fn quiet_reader(&self, file: &Arc<OpenFile>) -> Result<Arc<OwnedFd>, Status> {
        match file.quiet_reader() {
            Some(reader) => Ok(reader),
            None => self.reopen(file, OpenFile::open_quiet_reader).await,
        }
    }

    /// The descriptor for writing.
    pub(super) async fn writer(&self, file: &Arc<OpenFile>) -> Result<Arc<OwnedFd>, Status> {
        match file.writer() {
            Some(writer) => Ok(writer),
            None => self.reopen(file, OpenFile::open_writer).await,
        }
    }

    /// The descriptor that passes by the page cache, if there can be one.
    pub(super) async fn direct(
        &self,
        file: &Arc<OpenFile>,
        purpose: Use,
    ) -> Result<Option<DirectFile>, Status> {
        match (file.direct(purpose), purpose) {
            (Some(known), _) => Ok(known),
            (None, Use::Read) => self.reopen(file, |file| file.open_direct(Use::Read)).await,
            (None, Use::Write) => self.reopen(file, |file| file.open_direct(Use::Write)).await,
        }
    }

    /// The same, where the mode is not what it says without.
    pub(super) async fn direct_or_note(
        &self,
        file: &Arc<OpenFile>,
        purpose: Use,
    ) -> Result<Option<DirectFile>, Status> {
        let direct = self.direct(file, purpose).await?;
        if direct.is_none() {
            file.root().io_support.note_no_direct(file.root().id);
        }
        Ok(direct)
    }

    async fn reopen<T: Send + 'static>(
        &self,
        file: &Arc<OpenFile>,
        open: fn(&OpenFile) -> Result<T, Status>,
    ) -> Result<T, Status> {
        self.with_descriptors(|| {
            let file = Arc::clone(file);
            self.engine.metadata(Identity::Server, move || open(&file))
        })
        .await
    }
}

/// Reads through the page cache on this thread and drops what was not in it before.
pub(super) fn read_and_drop(
    file: &OpenFile,
    reader: &OwnedFd,
    slice: &mut [u8],
    range: ByteRange,
) -> Result<usize, Status> {
    let support = &file.root().io_support;
    if support.drops_behind() {
        match io::read_dontcache(reader.as_fd(), slice, range.offset())? {
            Some(len) => return Ok(len),
            None => support.note_no_drop_behind(file.root().id),
        }
    }
    let before = io::resident_ranges(reader.as_fd(), range)?;
    let len = io::read_at(reader.as_fd(), slice, range.offset())?;
    // Where nobody can say what was there before, nothing is taken from others.
    if let Some(before) = before {
        for others in before.absent_in(range) {
            io::drop_clean(reader.as_fd(), others)?;
        }
    }
    Ok(len)
}

/// Whether it pays to try the page cache. Trying is not looking: for what is not there, the kernel
/// begins to read ahead, also when it is told not to wait.
fn may_be_in_memory(read: &Read<'_>) -> bool {
    if !read.file.root().io_support.shows_cache() {
        return true;
    }
    let state = io::cache_state(read.reader.as_fd(), read.range);
    !matches!(state, Ok(Some(state)) if state.cached < state.pages)
}

/// Whether a READ has all it asked for, or all up to the end of the file as it is now.
fn is_whole(read: &Read<'_>, done: &Fetched) -> bool {
    let count = done.data.as_ref().map_or(0, Payload::len) as u64;
    count == read.range.len() || read.range.offset() + count >= done.after.size
}

/// What the file is like, from its attributes and the number of changes seen before them.
fn version(attributes: &Attributes, changes: u64) -> FileVersion {
    let changed = (attributes.ctime.seconds, attributes.ctime.nanoseconds);
    FileVersion { changed, size: attributes.size, changes }
}

/// Refuses what has no data of its own.
///
/// # Errors
/// `IsDirectory`, or `Invalid` for any other kind.
pub(super) fn must_be_regular(attributes: &Attributes) -> Result<(), Status> {
    if attributes.is_regular() {
        Ok(())
    } else if attributes.is_directory() {
        Err(Status::IsDirectory)
    } else {
        Err(Status::Invalid)
    }
}

const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
