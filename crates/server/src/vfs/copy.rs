//! SEEK, ALLOCATE, DEALLOCATE, CLONE and COPY: the operations on data that minor version 2 of NFSv4
//! adds.

use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io::{ByteRange, Engine, IoMode, Lengths, Mtime, RangeGuard, RangeUse};
use rustix::fs::{Advice, FallocateFlags, SeekFrom, copy_file_range, fadvise, fallocate, seek};
use rustix::io::Errno;

use super::read_ahead::is_resident;
use super::read_data::drop_behind;
use super::retry::Takes;
use super::{Caller, Object, Stability, Status, Vfs};
use crate::counters::CallKind;
use crate::inode_cache::{Change, Changing, Inode, Permitted, Reading, SystemCalls, Writing};

/// The content that SEEK searches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sought {
    Data,
    Hole,
}

/// The change of a range by ALLOCATE or DEALLOCATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allocation {
    /// It has blocks; the file grows to its end.
    Allocate,
    /// It is a hole; the length stays.
    Deallocate,
}

/// A part of one file that goes to a place in another, or in the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyRange {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Bytes; zero means to the end of the source.
    pub(crate) count: u64,
}

impl CopyRange {
    fn of_source(self) -> ByteRange {
        ByteRange::between(self.from, self.from + self.count)
    }

    fn of_destination(self) -> ByteRange {
        ByteRange::between(self.to, self.to + self.count)
    }

    /// The next part to be copied when `done` bytes of the whole range are.
    fn slice_behind(self, done: u64) -> Self {
        let count = (self.count - done).min(COPY_SLICE_BYTES);
        Self { from: self.from + done, to: self.to + done, count }
    }
}

/// The result of a COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyDone {
    /// Bytes copied, possibly fewer than asked for.
    pub(crate) count: u64,
    /// The stability that they have.
    pub(crate) committed: Stability,
    /// The verifier as it was before they were written.
    pub(crate) verifier: [u8; 8],
}

/// A file that may be read, its descriptor, and its length in bytes.
struct Source {
    file: Permitted<Reading>,
    reader: Arc<OwnedFd>,
    size: u64,
}

/// The source of a COPY.
struct CopySource {
    file: Permitted<Reading>,
    reader: Arc<OwnedFd>,
    brought_in: BroughtIn,
}

/// The use of the pages of its source that a COPY brings into the page cache.
enum BroughtIn {
    Kept,
    /// They are kept, and `auto` counts them as it does those of READs.
    Counted,
    Dropped,
}

/// One file of a copy, and the caller as its export squashes it: the two may differ.
#[derive(Clone, Copy)]
pub(crate) struct CopyEnd<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) object: &'a Object,
}

impl Vfs {
    /// SEEK, RFC 7862 §15.11. Returns where the next data or hole begins, and whether that is the
    /// end of the file.
    ///
    /// # Errors
    /// `NoDevice` beyond the end of the file, and when there is no more data; those of READ.
    pub(crate) async fn seek(
        &self,
        caller: &Caller,
        object: &Object,
        offset: u64,
        sought: Sought,
    ) -> Result<(u64, bool), Status> {
        let file = self.hold(object).await?;
        let Source { reader, size, .. } = self.source(caller, &file).await?;
        let position = match sought {
            Sought::Data => SeekFrom::Data(offset),
            Sought::Hole => SeekFrom::Hole(offset),
        };
        if i64::try_from(offset).is_err() {
            return Err(Status::NoDevice);
        }
        // The descriptor is shared, but only its position changes, which no other operation uses.
        let found = self.engine.data(move || seek(&*reader, position)).await;
        let found = found.map_err(|errno| match errno {
            Errno::NXIO => Status::NoDevice,
            errno => errno.into(),
        })?;
        Ok((found, found >= size))
    }

    /// ALLOCATE and DEALLOCATE, RFC 7862 §15.1 and §15.4, as the caller.
    ///
    /// # Errors
    /// `Invalid` for no bytes, `TooLarge`, `NotSupported`, and those of WRITE.
    pub(crate) async fn allocate(
        &self,
        caller: &Caller,
        object: &Object,
        (offset, length): (u64, u64),
        allocation: Allocation,
    ) -> Result<(), Status> {
        let range = ByteRange::new(offset, length).ok_or(Status::TooLarge)?;
        let takes = match allocation {
            Allocation::Allocate => Takes::BlocksOf(range),
            Allocation::Deallocate => Takes::SOME_BLOCKS,
        };
        let attempt = || self.allocate_once(caller, object, range, allocation);
        self.with_space(object, takes, attempt).await
    }

    async fn allocate_once(
        &self,
        caller: &Caller,
        object: &Object,
        range: ByteRange,
        allocation: Allocation,
    ) -> Result<(), Status> {
        let (flags, lengths) = match allocation {
            Allocation::Allocate => (FallocateFlags::empty(), Lengths::up_to(range.end())),
            Allocation::Deallocate => {
                (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, Lengths::KEPT)
            }
        };
        let (file, change) = self.begin_change(caller, object, (Changing::Data, lengths)).await?;
        let (destination, writer) = self.destination(caller, &file, &change).await?;
        let pages = destination.data().ranges.lock(range, RangeUse::Exclusive).await;
        let work =
            move |writer: &OwnedFd| Ok(fallocate(writer, flags, range.offset(), range.len())?);
        self.change_data(caller, object, (file, change), (writer, pages), work).await
    }

    /// CLONE, RFC 7862 §15.13: reads as the caller of the source, writes as that of the
    /// destination.
    ///
    /// # Errors
    /// `Invalid` for ranges that overlap or are not aligned to the blocks of the file system, or
    /// that end behind the source; `CrossDevice`, `NotSupported`, and those of READ and WRITE.
    pub(crate) async fn clone_range(
        &self,
        source: CopyEnd<'_>,
        destination: CopyEnd<'_>,
        range: CopyRange,
    ) -> Result<(), Status> {
        let attempt = || self.clone_once(source, destination, range);
        // It shares the blocks of the source, and takes some for the tree of extents.
        self.with_space(destination.object, Takes::SOME_BLOCKS, attempt).await
    }

    async fn clone_once(
        &self,
        source: CopyEnd<'_>,
        destination: CopyEnd<'_>,
        range: CopyRange,
    ) -> Result<(), Status> {
        let from = self.hold(source.object).await?;
        let CopyEnd { caller, object } = destination;
        let range = self.resolve(&from, range).await?;
        let what = (Changing::Data, Lengths::up_to(range.to + range.count));
        let (file, change) = self.begin_change(caller, object, what).await?;
        check_apart(&from, &file, range)?;
        let reader = self.source(source.caller, &from).await?.reader;
        let (destination, writer) = self.destination(caller, &file, &change).await?;
        let pages = lock_pages(&from, &destination, range).await;
        let work = move |writer: &OwnedFd| {
            let part = range.of_source();
            // No bytes would mean all to the kernel.
            match range.count {
                0 => Ok(()),
                _ => Ok(io::clone_range(reader.as_fd(), part, writer.as_fd(), range.to)?),
            }
        };
        self.change_data(caller, object, (file, change), (writer, pages), work).await
    }

    /// COPY, RFC 7862 §15.2: reads as the caller of the source, writes as that of the destination.
    /// As a WRITE that asks for UNSTABLE. Copies for about [`COPY_TIME_MAX`], no more than
    /// [`COPY_FLUSHED_BYTES_MAX`] if it is to flush them, and no longer than `may_go_on` returns
    /// true. That is called between two slices, where the copy holds no lock. What the callers were
    /// permitted when they opened the files is taken from the beginning of the call.
    ///
    /// # Errors
    /// `Invalid` for ranges that overlap in one file, or that end behind the source; `CrossDevice`;
    /// those of READ and WRITE.
    pub(crate) async fn copy<F: Future<Output = bool>>(
        &self,
        source: CopyEnd<'_>,
        destination: CopyEnd<'_>,
        range: CopyRange,
        may_go_on: impl Fn() -> F,
    ) -> Result<CopyDone, Status> {
        let from = self.hold(source.object).await?;
        let file = self.hold(destination.object).await?;
        let whole = self.resolve(&from, range).await?;
        // Not each slice by itself: later ones would copy what those before them have written.
        check_apart(&from, &file, whole)?;
        let committed = Stability::Unstable.promoted(destination.object);
        let flush = committed.flush();
        let bytes_max = flush.map_or(u64::MAX, |_| COPY_FLUSHED_BYTES_MAX);
        let part = CopyRange { count: whole.count.min(bytes_max), ..whole };
        let (verifier, failures) = (file.root().file_system.verifier.current(), file.failures());
        let count = self.copy_slices(source, destination, part, may_go_on).await?;
        if let Some(flush) = flush {
            self.make_durable(&file, flush, failures, CallKind::Other).await?;
        }
        Ok(CopyDone { count, committed, verifier })
    }

    /// Copies one slice after the other. Returns the bytes copied, all from the beginning of the
    /// range.
    ///
    /// # Errors
    /// Those of the first slice. An error of a later one ends the copy: the client goes on where it
    /// has ended, and gets the error then.
    async fn copy_slices<F: Future<Output = bool>>(
        &self,
        source: CopyEnd<'_>,
        destination: CopyEnd<'_>,
        whole: CopyRange,
        may_go_on: impl Fn() -> F,
    ) -> Result<u64, Status> {
        let (begun, mut count) = (Instant::now(), 0);
        loop {
            let slice = whole.slice_behind(count);
            let attempt = || self.copy_slice(source, destination, slice);
            let takes = Takes::Bytes(slice.count);
            let copied = match self.with_space(destination.object, takes, attempt).await {
                Err(status) if count == 0 => return Err(status),
                copied => copied.unwrap_or(0),
            };
            count += copied;
            if copied < slice.count || count == whole.count || begun.elapsed() >= COPY_TIME_MAX {
                return Ok(count);
            }
            Engine::give_way().await;
            if !may_go_on().await {
                return Ok(count);
            }
        }
    }

    async fn copy_slice(
        &self,
        source: CopyEnd<'_>,
        destination: CopyEnd<'_>,
        range: CopyRange,
    ) -> Result<u64, Status> {
        let from = self.hold(source.object).await?;
        let CopyEnd { caller, object } = destination;
        let target = range.of_destination();
        let what = (Changing::Data, Lengths::up_to(target.end()));
        let (file, change) = self.begin_change(caller, object, what).await?;
        let read = self.source(source.caller, &from).await?;
        let read = self.plan_copy_source(read, source.object.policy.read).await?;
        let (destination, writer) = self.destination(caller, &file, &change).await?;
        let window = match object.policy.write {
            IoMode::Buffered => None,
            IoMode::DontCache | IoMode::Direct | IoMode::Auto => {
                let window = destination.data().window(&self.window, file.root().device());
                let reservation = window.reserve(range.count).await;
                Some((window, reservation))
            }
        };
        let pages = lock_pages(&from, &destination, range).await;
        let job = move || {
            let intent = window.map(|(window, reservation)| {
                window.before_write(writer.as_fd(), target, reservation)
            });
            let result = read.copy(&writer, range, &change.system_calls());
            if let (Some(intent), Ok(count)) = (intent, &result) {
                intent.enroll(&writer, ByteRange::between(range.to, range.to + count));
            }
            file.note_change();
            drop(pages);
            end(change, &file, &writer, matches!(result, Ok(1..)));
            result
        };
        self.in_data_lane(caller, job).await
    }

    /// The bytes of the source that a range names.
    async fn resolve(&self, source: &Arc<Inode>, range: CopyRange) -> Result<CopyRange, Status> {
        let size = self.live_attributes(source).await?.size;
        let left = size.checked_sub(range.from).ok_or(Status::Invalid)?;
        let count = if range.count == 0 { left } else { range.count };
        if count > left {
            return Err(Status::Invalid);
        }
        ByteRange::new(range.to, count).ok_or(Status::TooLarge)?;
        Ok(CopyRange { count, ..range })
    }

    /// A file to read from.
    async fn source(&self, caller: &Caller, file: &Arc<Inode>) -> Result<Source, Status> {
        let attributes = self.live_attributes(file).await?;
        let timer = &mut self.timer(file.root(), CallKind::Other);
        let file = self.permit::<Reading>(caller, file, &attributes, timer).await?;
        let reader = self.reader(&file).await?;
        Ok(Source { file, reader, size: attributes.size })
    }

    /// Plans what becomes of the pages that a COPY brings in, as for a READ in this mode.
    async fn plan_copy_source(
        &self,
        Source { file, reader, size }: Source,
        mode: IoMode,
    ) -> Result<CopySource, Status> {
        let (brought_in, quiet) = match mode {
            IoMode::Buffered => (BroughtIn::Kept, None),
            _ if self.keeps_in_cache(&file, mode, size) => (BroughtIn::Counted, None),
            // Pages that the kernel reads ahead lie behind the range, and would not be dropped.
            _ => (BroughtIn::Dropped, self.quiet_reader(&file).await?),
        };
        Ok(CopySource { file, reader: quiet.unwrap_or(reader), brought_in })
    }

    /// A file to write to within a change.
    async fn destination(
        &self,
        caller: &Caller,
        file: &Arc<Inode>,
        change: &Change,
    ) -> Result<(Permitted<Writing>, Arc<OwnedFd>), Status> {
        let timer = &mut self.timer(file.root(), CallKind::Other);
        let permitted = self.permit::<Writing>(caller, file, change.before(), timer).await?;
        let writer = self.writer(&permitted).await?;
        Ok((permitted, writer))
    }

    /// Changes the data of a file by one system call, and flushes it if its export is `sync`.
    async fn change_data(
        &self,
        caller: &Caller,
        object: &Object,
        (file, change): (Arc<Inode>, Change),
        (writer, pages): (Arc<OwnedFd>, impl Send + 'static),
        work: impl FnOnce(&OwnedFd) -> Result<(), Status> + Send + 'static,
    ) -> Result<(), Status> {
        let (changed, failures) = (Arc::clone(&file), file.failures());
        let job = move || {
            change.system_calls().note();
            let result = work(&writer);
            changed.note_change();
            drop(pages);
            end(change, &changed, &writer, result.is_ok());
            result
        };
        let result = self.in_data_lane(caller, job).await;
        let settled = self.settle(&file, object.sync, failures).await;
        result.and(settled)
    }

    /// Runs a blocking operation on data as the caller, within a change.
    async fn in_data_lane<T: Send + 'static>(
        &self,
        caller: &Caller,
        job: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.engine.move_to_data_thread().await;
        let done = self.engine.data_as(caller.identity.clone(), job).await;
        done.unwrap_or_else(|error| Err(Status::no_identity(&error)))
    }
}

impl CopySource {
    /// Copies as much as the kernel does, on a thread that may block.
    fn copy(&self, writer: &OwnedFd, range: CopyRange, calls: &SystemCalls) -> Result<u64, Status> {
        match self.brought_in {
            BroughtIn::Kept => copy(&self.reader, writer, range, calls),
            BroughtIn::Counted => self.copy_and_count(writer, range, calls),
            BroughtIn::Dropped => {
                let work = || self.copy_quietly(writer, range, calls);
                drop_behind(&self.reader, range.of_source(), work)
            }
        }
    }

    fn copy_and_count(
        &self,
        writer: &OwnedFd,
        range: CopyRange,
        calls: &SystemCalls,
    ) -> Result<u64, Status> {
        let was_resident = is_resident(&self.reader, range.of_source());
        let count = copy(&self.reader, writer, range, calls)?;
        let copied = CopyRange { count, ..range }.of_source();
        // A file system that shares blocks between files reads nothing.
        if count > 0 && is_resident(&self.reader, copied) {
            self.file.data().note_kept(copied, was_resident);
        }
        Ok(count)
    }

    /// As [`copy`], by a descriptor without read-ahead. By that the kernel would wait for the disk
    /// after each [`TRIED_BYTES`]; so once it is known that it reads at all, it begins with the
    /// rest of the range. Blocks that the files can share are not divided.
    fn copy_quietly(
        &self,
        writer: &OwnedFd,
        range: CopyRange,
        calls: &SystemCalls,
    ) -> Result<u64, Status> {
        if range.count == 0 {
            return Ok(0);
        }
        calls.note();
        let source = range.of_source();
        match io::clone_range(self.reader.as_fd(), source, writer.as_fd(), range.to) {
            Ok(()) => return Ok(range.count),
            // The file system shares blocks, but not all bytes are in whole ones: the kernel finds
            // those that are.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                return copy(&self.reader, writer, range, calls);
            }
            Err(_) => {}
        }
        let tried = CopyRange { count: range.count.min(TRIED_BYTES), ..range };
        let done = copy(&self.reader, writer, tried, calls)?;
        if done < tried.count || done == range.count {
            return Ok(done);
        }
        let (from, to) = (range.from + done, range.to + done);
        let rest = CopyRange { from, to, count: range.count - done };
        // A network file system has its server copy, and leaves nothing in the cache here.
        let copies_pages = is_resident(writer, tried.of_destination());
        if copies_pages && !is_resident(&self.reader, rest.of_source()) {
            begin_reading(&self.reader, rest.of_source());
        }
        // It is short then, as where the kernel fails on the way.
        Ok(done + copy(&self.reader, writer, rest, calls).unwrap_or(0))
    }
}

/// Has the kernel begin to read a range into the page cache, and nothing beside it. Errors are met
/// by those who read it.
fn begin_reading(file: &OwnedFd, range: ByteRange) {
    let mut at = range.offset();
    while let Some(len) = NonZeroU64::new(BEGUN_BYTES.min(range.end() - at)) {
        let _ = fadvise(file, at, Some(len), Advice::WillNeed);
        at += len.get();
    }
}

/// Refuses ranges of one file that overlap.
fn check_apart(source: &Inode, destination: &Inode, range: CopyRange) -> Result<(), Status> {
    let is_apart = range.from.abs_diff(range.to) >= range.count;
    if source.lock.is(&destination.lock) && !is_apart { Err(Status::Invalid) } else { Ok(()) }
}

/// The pages of both ranges. Of two files the one with the lower rank comes first, so that two
/// copies in opposite directions do not wait for each other.
async fn lock_pages(
    source: &Arc<Inode>,
    destination: &Permitted<Writing>,
    range: CopyRange,
) -> Vec<RangeGuard> {
    let to = range.of_destination();
    let from = range.of_source();
    let own = &destination.data().ranges;
    if source.lock.is(&destination.lock) {
        let both = ByteRange::between(to.offset().min(from.offset()), to.end().max(from.end()));
        return vec![own.lock(both, RangeUse::Exclusive).await];
    }
    let Some(other) = source.ranges() else { return Vec::new() };
    if source.lock.rank() < destination.lock.rank() {
        let first = other.lock(from, RangeUse::Cached).await;
        vec![first, own.lock(to, RangeUse::Exclusive).await]
    } else {
        let first = own.lock(to, RangeUse::Exclusive).await;
        vec![first, other.lock(from, RangeUse::Cached).await]
    }
}

/// Copies as much as the kernel does; fewer bytes if it fails on the way, or the source ends.
fn copy(
    source: &OwnedFd,
    writer: &OwnedFd,
    range: CopyRange,
    calls: &SystemCalls,
) -> Result<u64, Status> {
    let (mut from, mut to, end) = (range.from, range.to, range.to + range.count);
    while to < end {
        let left = usize::try_from(end - to).expect("at most 4 MiB");
        calls.note();
        match copy_file_range(source, Some(&mut from), writer, Some(&mut to), left) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) if to == range.to => return Err(errno.into()),
            Err(_) => break,
        }
    }
    Ok(to - range.to)
}

/// Ends a change of data that was made, or that was refused.
fn end(change: Change, file: &Inode, writer: &OwnedFd, is_made: bool) {
    if is_made {
        change.end(writer.as_fd(), Mtime::Renewed);
    } else {
        change.end_refused(file.live_attributes().ok());
    }
}

/// Bytes that the kernel copies at a time through the page cache: those of a pipe.
const TRIED_BYTES: u64 = 64 << 10;
/// Bytes that the kernel is asked to begin to read at once. It cuts them to the longest request of
/// the device or its read-ahead, which is no less on usual devices.
const BEGUN_BYTES: u64 = 128 << 10;
/// Bytes that a COPY copies at a time. For so long it keeps a data thread, the lock of the file and
/// room in the window.
const COPY_SLICE_BYTES: u64 = 4 << 20;
/// The time after which a COPY begins no further slice. Clients send a COMMIT after each COPY, so
/// short ones make many flushes. But each call is to end long before a client takes the server for
/// dead (60 s on Linux) or a lease ends.
const COPY_TIME_MAX: Duration = Duration::from_secs(1);
/// Bytes of a COPY that is flushed before its reply. In [`COPY_TIME_MAX`] memory takes some GiB,
/// which a slow disk writes for longer than a client waits. One of 5 MiB/s writes this in 13 s.
const COPY_FLUSHED_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests;
