//! Sequential READs through the page cache that wait for the disk: what comes next is read into it,
//! so that the kernel reads further ahead by itself.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use io::{ClientId, DeviceNumber, PrefetchRun, RangeUse, Share};

use super::Vfs;
use super::io_plan::kernel_reads_ahead;
use super::read_ahead::cache_state;
use super::read_data::Read;
use crate::counters::Counter;
use crate::inode_cache::{Permitted, Reading};
use crate::trace::{CallId, Event, Tracer};

/// Runs of one client on one device at a time, at work or queued. Each holds a data thread. A
/// client may have three quarters of 44 of these by default, and its READs need most of them.
const CLIENT_RUNS_MAX: usize = 8;

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
    /// Whether READs like this one are read ahead of here: not where the kernel does that, it is
    /// switched off, or data does not stay in the page cache and would be read twice.
    pub(super) fn prefetches(&self, read: &Read<'_>) -> bool {
        let root = read.file.root();
        let is_on = read.policy.read_ahead && self.switches.read_ahead();
        let stays = root.shows_changes && read.shows_cache() && !read.attributes.is_dax;
        is_on && stays && !kernel_reads_ahead(read.kernel_reads_bytes())
    }

    /// Has a data thread read what the stream of this READ, which waited for the disk, needs next.
    /// That is optional work: nothing waits for it, and errors are left to the READs of the range.
    pub(super) fn prefetch(&self, read: &Read<'_>) {
        let prefetch = &read.file.data().prefetch;
        let run = prefetch.note(read.range, read.attributes.size, Instant::now());
        let Some(run) = run else { return };
        // Chunks that are not taken out of a run are begun again.
        let whose = (read.file.root().device(), Share::current_client());
        let Some(permit) = self.prefetch_runs.begin(whose) else { return };
        // The READs' own description: for each, the kernel keeps how far it has read ahead.
        let (file, reader) = (read.file.clone(), Arc::clone(&read.reader));
        let (tracer, call) = (Arc::clone(&self.tracer), read.call.outlasting());
        self.engine.leave_to_data(move || {
            perform(&file, reader.as_fd(), run, &tracer, call);
            drop(permit);
        });
    }
}

/// Reads chunks into the page cache, unless they are there, or other I/O is at work on their pages.
fn perform(
    file: &Permitted<Reading>,
    reader: BorrowedFd<'_>,
    run: PrefetchRun,
    tracer: &Tracer,
    call: CallId,
) {
    for chunk in run {
        let Some(before) = cache_state(file, reader, chunk) else { return };
        if before.cached == before.pages {
            continue;
        }
        let Some(pages) = file.data().ranges.try_lock(chunk, RangeUse::Cached) else { continue };
        tracer.emit(Event::ReadAhead, call, chunk.offset(), chunk.len(), format_args!(""));
        let Ok(got) = io::read_into_cache(reader, chunk) else { return };
        drop(pages);
        file.root().counters.add(Counter::PrefetchedBytes, got);
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
