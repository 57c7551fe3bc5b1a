//! Sequential READs through the page cache that wait for the disk: what comes next is read into it, so
//! that the kernel reads further ahead by itself.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use io::{PrefetchRun, RangeUse};

use super::Vfs;
use super::io_plan::kernel_reads_ahead;
use super::read_ahead::cache_state;
use super::read_data::Read;
use crate::counters::Counter;
use crate::inode_cache::{Permitted, Reading};
use crate::trace::{CallId, Event, Tracer};

impl Vfs {
    /// Whether READs like this one are read ahead of here: not where the kernel does that, it is switched
    /// off, or data does not stay in the page cache and would be read twice.
    pub(super) fn prefetches(&self, read: &Read<'_>) -> bool {
        let root = read.file.root();
        let is_on = read.policy.read_ahead && self.switches.read_ahead();
        let stays = root.shows_changes && read.shows_cache() && !read.attributes.is_dax;
        is_on && stays && !kernel_reads_ahead(read.kernel_reads_bytes())
    }

    /// Has a data thread read what the stream of this READ, which waited for the disk, needs next. That
    /// is optional work: nothing waits for it, and errors are left to the READs of the range.
    pub(super) fn prefetch(&self, read: &Read<'_>) {
        let prefetch = &read.file.data().prefetch;
        let run = prefetch.note(read.range, read.attributes.size, Instant::now());
        let Some(run) = run else { return };
        // The READs' own description: for each, the kernel keeps how far it has read ahead.
        let (file, reader) = (read.file.clone(), Arc::clone(&read.reader));
        let (tracer, call) = (Arc::clone(&self.tracer), read.call);
        self.engine.leave_to_data(move || perform(&file, reader.as_fd(), run, &tracer, call));
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
