//! Sequential READs through the page cache that wait for the disk: the kernel is brought to read
//! what comes next into it.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use io::{ByteRange, ClientId, DeviceNumber, IoMode, PrefetchRun, RangeUse, Share};
use rustix::param::page_size;

use super::io_plan::kernel_reads_ahead;
use super::read_ahead::cache_state;
use super::read_data::Read;
use super::{Status, Vfs};
use crate::counters::Counter;
use crate::inode_cache::{Permitted, Reading};
use crate::trace::{CallId, Event, Tracer};

/// Runs of one client on one device at a time, at work or queued: what it has in flight there. Each
/// may hold a data thread. A client may have three quarters of 44 of these by default, and its
/// READs need most of them.
const CLIENT_RUNS_MAX: usize = 8;
/// Chunks that are begun before a READ waits for the disk: that of the READ, and the next. The
/// others of its run are left to another job.
const BEGUN_CHUNKS: usize = 2;

/// The runs of each client on each device. Beyond the bound, READs would wait in the client's queue
/// behind what nothing waits for.
#[derive(Default)]
pub(super) struct PrefetchRuns(Mutex<HashMap<(DeviceNumber, ClientId), usize>>);

/// The right to one run.
struct Permit {
    runs: Arc<PrefetchRuns>,
    whose: (DeviceNumber, ClientId),
}

impl PrefetchRuns {
    /// The right to one more run, unless the client has as many as it may.
    fn begin(self: &Arc<Self>, whose: (DeviceNumber, ClientId)) -> Option<Permit> {
        let mut runs = self.lock();
        let count = runs.entry(whose).or_default();
        if *count == CLIENT_RUNS_MAX {
            return None;
        }
        *count += 1;
        Some(Permit { runs: Arc::clone(self), whose })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(DeviceNumber, ClientId), usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut runs = self.runs.lock();
        if let Some(count) = runs.get_mut(&self.whose) {
            *count -= 1;
            if *count == 0 {
                runs.remove(&self.whose);
            }
        }
    }
}

impl Vfs {
    /// Whether READs like this one are read ahead of here, in `auto`: not where the kernel does
    /// that, it is switched off, or data does not stay in the page cache and would be read twice.
    pub(super) fn prefetches(&self, read: &Read<'_>) -> bool {
        let root = read.file.root();
        let is_on = read.policy.read == IoMode::Auto
            && read.policy.read_ahead
            && self.switches.read_ahead();
        let stays = root.shows_changes && read.shows_cache() && !read.attributes.is_dax;
        is_on && stays && !kernel_reads_ahead(read.kernel_reads_bytes())
    }

    /// Notes a READ whose range was all in memory, and has a data thread bring in what its stream
    /// needs next. That is optional work: nothing waits for it, and errors are left to the READs of
    /// the range.
    pub(super) fn prefetch(&self, read: &Read<'_>) {
        // Where nothing can be begun, each chunk would be read here, and copied.
        let device = read.file.root().kernel_read_ahead;
        let begins = device.is_some_and(|device| device.ahead_bytes > 0);
        if begins && read.file.data().prefetch.follows_streams() {
            self.leave_prefetching(self.prefetching(read, true));
        }
    }

    /// [`Self::on_data_thread`] for a READ that waits for the disk. What its stream needs next is
    /// begun first: the kernel reads what several READs ask for at once, and in file order.
    pub(super) async fn on_data_thread_ahead<T: Send + 'static>(
        &self,
        read: &Read<'_>,
        job: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let prefetching = self.prefetching(read, false);
        let job = move || {
            let mut prefetching = prefetching;
            if let Some(prefetching) = &mut prefetching {
                prefetching.begin(BEGUN_CHUNKS);
            }
            job().map(|done| (done, prefetching))
        };
        let (done, prefetching) = self.on_data_thread(read.file.root(), job).await?;
        self.leave_prefetching(prefetching);
        Ok(done)
    }

    fn prefetching(&self, read: &Read<'_>, was_resident: bool) -> Option<Prefetching> {
        if !self.prefetches(read) {
            return None;
        }
        let noted = (read.range, was_resident);
        let run = read.file.data().prefetch.note(noted, read.attributes.size, Instant::now())?;
        // Chunks that are not taken out of a run are begun again.
        let whose = (read.file.root().device(), Share::current_client());
        Some(Prefetching {
            _permit: self.prefetch_runs.begin(whose)?,
            file: read.file.clone(),
            reader: Arc::clone(&read.reader),
            run,
            awaited: None,
            tracer: Arc::clone(&self.tracer),
            call: read.call.outlasting(),
        })
    }

    fn leave_prefetching(&self, prefetching: Option<Prefetching>) {
        if let Some(prefetching) = prefetching {
            self.engine.leave_to_data(move || prefetching.perform());
        }
    }
}

/// Chunks that are brought into the page cache.
struct Prefetching {
    file: Permitted<Reading>,
    /// The READs' own description: for each, the kernel keeps how far it has read ahead.
    reader: Arc<OwnedFd>,
    run: PrefetchRun,
    /// The last chunk that was begun.
    awaited: Option<ByteRange>,
    tracer: Arc<Tracer>,
    call: CallId,
    _permit: Permit,
}

/// The outcome of bringing in a chunk.
enum Brought {
    /// It was there, or is on its way.
    Begun,
    /// The kernel could not be brought to begin it.
    Unbegun,
    /// It is not known what is there.
    Unknown,
}

impl Prefetching {
    /// Has the kernel begin to read chunks that are not there, at most so many, and as far as it
    /// can be brought to that.
    fn begin(&mut self, chunks_max: usize) {
        for _ in 0..chunks_max {
            let Some(chunk) = self.run.next() else { return };
            if !matches!(self.begin_chunk(chunk), Brought::Begun) {
                return self.run.put_back();
            }
        }
    }

    /// Has the kernel begin to read the chunks, reads those that it cannot be brought to begin,
    /// unless other I/O is at work on their pages, and waits for what was begun: the permit bounds
    /// what is in flight.
    fn perform(mut self) {
        while let Some(chunk) = self.run.next() {
            match self.begin_chunk(chunk) {
                Brought::Begun => continue,
                Brought::Unbegun => {}
                Brought::Unknown => return,
            }
            let pages = self.file.data().ranges.try_lock(chunk, RangeUse::Cached);
            let Some(pages) = pages else { continue };
            let Ok(got) = io::read_into_cache(self.reader.as_fd(), chunk) else {
                return self.file.data().note_failed(Instant::now());
            };
            drop(pages);
            self.note(chunk, got);
        }
        if let Some(last) = self.awaited
            && io::read_at(self.reader.as_fd(), &mut [0], last.offset()).is_err()
        {
            self.file.data().note_failed(Instant::now());
        }
    }

    fn begin_chunk(&mut self, chunk: ByteRange) -> Brought {
        let reader = self.reader.as_fd();
        let ahead = ByteRange::between(chunk.offset(), self.run.until().max(chunk.end()));
        let cached = |range| cache_state(&self.file, reader, range);
        let (Some(state), Some(before)) = (cached(chunk), cached(ahead)) else {
            return Brought::Unknown;
        };
        let was_cached = state.cached == state.pages;
        self.run.note_found(was_cached);
        if was_cached {
            return Brought::Begun;
        }
        let device = self.file.root().kernel_read_ahead;
        let begun = device.and_then(|device| device.begin(reader, chunk, ahead.end()).ok()?);
        let Some(after) = cached(ahead) else { return Brought::Unknown };
        if begun.is_none_or(|begun| begun.cached < begun.pages) {
            return Brought::Unbegun;
        }
        self.note(chunk, after.cached.saturating_sub(before.cached) * page_size() as u64);
        self.awaited = Some(chunk);
        Brought::Begun
    }

    fn note(&self, chunk: ByteRange, got: u64) {
        let (offset, len) = (chunk.offset(), chunk.len());
        self.tracer.emit(Event::ReadAhead, self.call, offset, len, format_args!(""));
        self.file.root().counters.add(Counter::PrefetchedBytes, got);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_client_on_one_device_are_bounded() {
        let (runs, whose) = (Arc::new(PrefetchRuns::default()), ((8, 0), 1));
        let mut permits: Vec<_> = (0..CLIENT_RUNS_MAX).map_while(|_| runs.begin(whose)).collect();
        assert_eq!(permits.len(), CLIENT_RUNS_MAX);
        assert!(runs.begin(whose).is_none());
        assert!(runs.begin(((8, 0), 2)).is_some(), "another client");
        assert!(runs.begin(((8, 16), 1)).is_some(), "another device");
        permits.pop();
        permits.push(runs.begin(whose).expect("one has ended"));
        permits.clear();
        assert!(runs.lock().is_empty());
    }
}
