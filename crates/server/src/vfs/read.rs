//! READ.
//!
//! [`Vfs::read`] answers from the page cache where the plan of the export's mode is that data stays
//! there; otherwise from the first of these that has the range: chunks that were read ahead, the
//! page cache (without waiting), the disk. The steps: facts and plan (`io_plan`), acquire what the
//! plan needs, perform (`read_data`).

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::io_plan::{CachedWhy, ReadFacts, ReadFrom, ReadPlan, Room};
use super::read_data::{Fetched, Partly, Read, Source};
use super::splice::{ThroughCache, is_in_memory};
use super::{Answer, Attributes, Caller, LiveAttributes, Object, Status, Vfs};
use crate::counters::{CallKind, Counter, Phase};
use crate::inode_cache::{Inode, Permitted, Reading};
use crate::trace::{CallId, Event};
use io::{ByteRange, FileVersion, IoMode, IoPolicy, NowaitRead, Payload};

/// The result of a READ.
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

/// The parameters of a READ, beside its file.
#[derive(Clone, Copy)]
struct Asked {
    call: CallId,
    policy: IoPolicy,
    offset: u64,
    count: u32,
}

/// The outcome of an attempt at a READ.
enum Outcome {
    /// It has what the attributes from before it promise.
    Whole(ReadDone),
    /// It has less: the file was cut meanwhile, or has less data than its size.
    CutShort(CutShort),
}

/// Less data than the attributes from before it promise.
struct CutShort {
    fetched: Fetched,
    /// The counter of the bytes that came the same way.
    through: Counter,
    /// The version of the file before it.
    version: FileVersion,
}

/// The attempts of a READ that finds less data than the file's size, before and after it. The file
/// may be truncated meanwhile and grow again; after so many, or two alike of one version of the
/// file, it is taken for one that has no more.
const ATTEMPTS: usize = 16;

/// The part of a range that the page cache had.
enum Tried {
    Done(Fetched),
    Partly(Partly),
}

impl Vfs {
    /// READ of an object that is [held](Self::hold), RFC 1813 §3.3.6. Reads at most `count` bytes
    /// (clamped to `transfer_bytes_max`) at `offset`; short only at the end of the file, and then
    /// `eof`, or where its data ends before its size, and then `eof` if there is none at all.
    ///
    /// # Errors
    /// `Stale`, `IsDirectory`, `Invalid` (no regular file), `Access`, `Io`.
    pub(crate) async fn read(
        &self,
        caller: &Caller,
        (object, file): (&Object, &Arc<Inode>),
        call: CallId,
        offset: u64,
        count: u32,
    ) -> Answer<Option<Attributes>, ReadDone> {
        let asked = Asked { call, policy: object.policy, offset, count };
        // No attempt keeps its buffer: a READ that waits for one while it has another could wait
        // for ever.
        let (mut attempt, mut last) = (1, None);
        loop {
            let (attributes, outcome) = self.read_as_of_now(caller, file, asked).await;
            // The attributes from before the cut must not be in one reply with what it has left.
            let CutShort { fetched, through, version } = match outcome {
                Ok(Outcome::CutShort(cut)) => cut,
                Ok(Outcome::Whole(done)) => return Answer { attributes, result: Ok(done) },
                Err(status) => return Answer { attributes, result: Err(status) },
            };
            let this = Some((version, fetched.len()));
            let eof = match self.live_attributes(file).await {
                Ok(now) if offset + fetched.len() >= now.size => true,
                // Local programs take no data for the end.
                Ok(_) if attempt == ATTEMPTS || this == last => fetched.0.is_none(),
                Ok(_) => {
                    (attempt, last) = (attempt + 1, this);
                    continue;
                }
                Err(status) => return Answer::refused(status),
            };
            count_bytes(file, &fetched, through);
            return Answer { attributes: None, result: Ok(ReadDone { data: fetched.0, eof }) };
        }
    }

    /// Takes the attributes, and then the data.
    async fn read_as_of_now(
        &self,
        caller: &Caller,
        file: &Arc<Inode>,
        asked: Asked,
    ) -> (Option<Attributes>, Result<Outcome, Status>) {
        // Before the attributes: a change that comes between the two makes the version older than
        // it is, never newer.
        let changes = file.changes();
        let live = match self.live_attributes(file).await {
            Ok(live) => live,
            Err(status) => return (None, Err(status)),
        };
        let version = version(&live, changes);
        let attributes = file.lock.attributes(live);
        let outcome = self.read_open(caller, file, (attributes, version), asked).await;
        (Some(attributes), outcome)
    }

    async fn read_open(
        &self,
        caller: &Caller,
        file: &Arc<Inode>,
        (attributes, version): (Attributes, FileVersion),
        Asked { call, policy, offset, count }: Asked,
    ) -> Result<Outcome, Status> {
        let mut timer = self.timer(file.root(), CallKind::Read);
        let file = &self.permit(caller, file, &attributes, &mut timer).await?;
        let reader = self.reader(file).await?;
        let left = attributes.size.saturating_sub(offset);
        let wanted = u64::from(count.min(self.transfer_bytes_max)).min(left);
        let range = match ByteRange::new(offset, wanted) {
            Some(range) if wanted > 0 => range,
            _ => return Ok(Outcome::Whole(ReadDone { data: None, eof: left == 0 })),
        };
        let read = Read { file, reader, call, policy, range, attributes, version };
        let (fetched, through) = self.fetch(&read).await.inspect_err(|status| {
            if matches!(status, Status::Io(_)) {
                file.data().note_failed(Instant::now());
            }
        })?;
        timer.end(Phase::Io);
        let count = fetched.len();
        self.tracer.emit(Event::ReadIoDone, call, offset, count, format_args!(""));
        if count < wanted {
            return Ok(Outcome::CutShort(CutShort { fetched, through, version }));
        }
        count_bytes(file, &fetched, through);
        Ok(Outcome::Whole(ReadDone { data: fetched.0, eof: offset + count >= attributes.size }))
    }

    /// The data, and the counter of the bytes that came the same way.
    async fn fetch(&self, read: &Read<'_>) -> Result<(Fetched, Counter), Status> {
        let from = match self.read_plan(read) {
            ReadPlan::Settled(from) => from,
            ReadPlan::CacheIfReread { looks_in_cache } => {
                if looks_in_cache && let Some(done) = self.fetch_resident(read).await? {
                    read.file.root().counters.add(Counter::ReadsResident, 1);
                    return Ok((done, Counter::ReadPageCacheBytes));
                }
                // Also of what is not looked for: it counts when it is read again.
                let is_reread = self.note_and_check_reread(read);
                ReadFrom::of_absent(looks_in_cache, is_reread)
            }
        };
        let (source, unless_resident) = match from {
            ReadFrom::Buffered => {
                return Ok((self.fetch_buffered(read).await?, Counter::ReadPageCacheBytes));
            }
            ReadFrom::Cache(why) => {
                return Ok((self.fetch_and_keep(read, why).await?, Counter::ReadPageCacheBytes));
            }
            ReadFrom::DropBehind => (Source::DropBehind, true),
            ReadFrom::Direct { unless_resident } => {
                (self.direct_source(read).await?, unless_resident)
            }
        };
        if let Some(done) = self.fetch_ahead(read, &source, unless_resident).await {
            return Ok((done, Counter::ReadFromReadAheadBytes));
        }
        read.file.root().counters.add(source.counter(), 1);
        self.fetch_uncached(read, source).await
    }

    fn read_plan(&self, read: &Read<'_>) -> ReadPlan {
        let (root, data) = (read.file.root(), read.file.data());
        let facts = ReadFacts {
            mode: read.policy.read,
            drops_behind: || root.io_support.drops_behind(),
            room: || self.room_in_cache(read.file, read.attributes.size),
            is_ahead: || !data.read_ahead.find(read.range, read.version).is_empty(),
        };
        facts.plan()
    }

    /// Whether data of a file that is `size` bytes long stays in the page cache when it is read in
    /// this mode.
    pub(super) fn keeps_in_cache(
        &self,
        file: &Permitted<Reading>,
        mode: IoMode,
        size: u64,
    ) -> bool {
        let room = || self.room_in_cache(file, size);
        let facts = ReadFacts { mode, drops_behind: || true, room, is_ahead: || false };
        facts.plan().keeps_in_cache()
    }

    fn room_in_cache(&self, file: &Permitted<Reading>, size: u64) -> Room {
        Room {
            uncached_bytes: size.saturating_sub(file.data().kept_bytes()),
            free_bytes: self.memory.free_bytes(),
            total_bytes: self.memory.total_bytes(),
        }
    }

    /// From the page cache, if all of it is there, in `auto` with memory short.
    async fn fetch_resident(&self, read: &Read<'_>) -> Result<Option<Fetched>, Status> {
        // For what is absent the kernel would begin to read ahead, even with `RWF_NOWAIT`.
        if is_absent(read) {
            return Ok(None);
        }
        match self.try_resident(read).await? {
            Tried::Done(done) => Ok(Some(done)),
            Tried::Partly(_) => Ok(None),
        }
    }

    /// From the page cache, without a copy where that pays.
    async fn fetch_buffered(&self, read: &Read<'_>) -> Result<Fetched, Status> {
        read.file.root().counters.add(Counter::ReadsCachedByMode, 1);
        Ok(self.fetch_through_cache(read).await?.data)
    }

    /// From the page cache, where it stays, in `auto`. What comes next is read ahead if this waits,
    /// and from then on.
    async fn fetch_and_keep(&self, read: &Read<'_>, why: CachedWhy) -> Result<Fetched, Status> {
        let counters = &read.file.root().counters;
        let fetched = self.fetch_through_cache(read).await;
        let was_resident = fetched.as_ref().is_ok_and(|fetched| fetched.was_resident);
        counters.add(if was_resident { Counter::ReadsResident } else { why.counter() }, 1);
        let data = fetched?.data;
        read.file.data().note_kept(read.range, was_resident);
        if was_resident {
            self.prefetch(read);
        }
        Ok(data)
    }

    /// Through the page cache.
    async fn fetch_through_cache(&self, read: &Read<'_>) -> Result<ThroughCache, Status> {
        if let Some(spliced) = self.fetch_spliced(read).await? {
            return Ok(spliced);
        }
        Ok(match self.try_cached(read).await? {
            Tried::Done(data) => ThroughCache { data, was_resident: true },
            Tried::Partly(partly) => {
                ThroughCache { data: self.fetch_cached(read, partly).await?, was_resident: false }
            }
        })
    }

    /// Past the page cache, or through it where the file does no direct I/O. Waits while a direct
    /// descriptor is opened.
    async fn direct_source(&self, read: &Read<'_>) -> Result<Source, Status> {
        if let Some(direct) = self.direct_or_note(read.file).await? {
            return Ok(Source::Direct(direct));
        }
        read.file.root().counters.add(Counter::ReadsWithoutDirect, 1);
        Ok(Source::DropBehind)
    }

    /// Notes that the range is read, and returns whether it was read before while the disk has
    /// delivered no more than half of the memory since.
    fn note_and_check_reread(&self, read: &Read<'_>) -> bool {
        let horizon = self.memory.total_bytes() / 2;
        let clock = self.uncached_bytes.fetch_add(read.range.len(), Ordering::Relaxed);
        read.file.data().read_history.note(read.range, read.attributes.size, clock, horizon)
    }

    /// Takes what is in the page cache, on this thread.
    async fn try_resident(&self, read: &Read<'_>) -> Result<Tried, Status> {
        match self.try_spliced(read) {
            Some(done) => Ok(Tried::Done(done)),
            None => self.try_cached(read).await,
        }
    }

    /// Reads what is in the page cache, on this thread.
    async fn try_cached(&self, read: &Read<'_>) -> Result<Tried, Status> {
        let mut buffer = self.take_buffer(read.len()).await?;
        // The kernel would begin to read ahead, here, and wait for a disk that recovers from an
        // error.
        let may_wait =
            || read.file.data().has_failed(Instant::now) && is_in_memory(read) != Some(true);
        if !read.file.root().attributes_in_memory || may_wait() {
            return Ok(Tried::Partly(Partly(buffer, 0)));
        }
        let slice = &mut buffer.as_mut_slice()[..read.len()];
        let (offset, size) = (read.range.offset(), read.attributes.size);
        match io::try_read_at_nowait(read.reader.as_fd(), slice, offset, size)? {
            NowaitRead::Done(len) => {
                self.emit_vector(read);
                read.file.root().counters.add(Counter::ReadsInline, 1);
                Ok(Tried::Done(Fetched::new(buffer, 0, len)))
            }
            NowaitRead::Partly(had) => Ok(Tried::Partly(Partly(buffer, had))),
            NowaitRead::Unsupported => Ok(Tried::Partly(Partly(buffer, 0))),
        }
    }
}

/// Counts the bytes of an answer, and how they came.
fn count_bytes(file: &Inode, fetched: &Fetched, through: Counter) {
    let counters = &file.root().counters;
    counters.add(Counter::ReadBytes, fetched.len());
    counters.add(through, fetched.len());
}

/// Whether the kernel shows that a page of the range is not in the page cache.
fn is_absent(read: &Read<'_>) -> bool {
    if !read.shows_cache() {
        return false;
    }
    let state = io::cache_state(read.reader.as_fd(), read.range);
    matches!(state, Ok(Some(state)) if state.cached < state.pages)
}

/// The file's version, from its attributes and the number of changes seen before them.
fn version(attributes: &LiveAttributes, changes: u64) -> FileVersion {
    let changed = (attributes.ctime.seconds, attributes.ctime.nanoseconds);
    FileVersion { changed, size: attributes.size, changes }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::readable::{object, open, root_caller, serve};
    use super::*;
    use crate::skip::skip_in_ci_too;

    /// On sysfs, files of a few bytes have the size of a page.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn file_with_less_data_than_its_size_is_read_to_its_end() {
        let directory = Path::new("/sys/kernel/mm/transparent_hugepage");
        let path = directory.join("hpage_pmd_size");
        let Ok(content) = std::fs::read(&path) else { return skip_in_ci_too("no such file") };
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(directory, dir.path().join("export")).unwrap();
        let server = serve(dir.path()).await;
        let file = open(&server, &path).await;
        let (vfs, object) = (&server.service().vfs, object(&server, &file));
        let read = async |offset| {
            let call = CallId::local(1, 1);
            let answer = vfs.read(&root_caller(), (&object, &file), call, offset, 4096).await;
            answer.result.map(|done| (done.count(), done.eof))
        };
        assert_eq!(read(0).await, Ok((content.len(), false)));
        assert_eq!(read(content.len() as u64).await, Ok((0, true)));
        let counters = &file.root().counters;
        assert_eq!(counters.value(Counter::ReadBytes), content.len() as u64);
        let attempts = counters.value(Counter::ReadsQueued) + counters.value(Counter::ReadsInline);
        assert_eq!(attempts, 2 * 2);
    }
}
