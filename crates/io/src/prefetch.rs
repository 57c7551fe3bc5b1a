//! Read-ahead into the page cache, for devices whose kernel reads too little ahead.
//!
//! Where the reads of a stream are found to wait for the disk, what comes next of the file is read
//! in chunks, and in file order: several chunks at once look to the kernel like reads at random.
//! From then on every read of the file counts, until what is ahead of them is found in memory
//! anyway. What a reader gets comes from the page cache, so nothing here can be outdated.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::byte_range::ByteRange;
use crate::streams::{CHUNK_BYTES, Streams};

/// Chunks of one run. It holds a thread no longer than the largest READ does.
const RUN_CHUNKS_MAX: usize = 4;
/// Chunks remembered for one file: what all streams that are distinguished have ahead of them.
const CHUNKS_MAX: usize = 72;
/// How long a chunk counts as read. Until then its readers have come, or it has left the page
/// cache.
const CHUNK_LASTS: Duration = Duration::from_secs(2);
/// Chunks of a file, one after the other, that are found in memory before reads that do not wait
/// count no more: all that a stream is read ahead. One that is begun can bring in several, by a
/// long window.
const CACHED_CHUNKS_MAX: usize = 8;

/// The read-ahead of one file into the page cache: its streams, and the chunks read lately.
#[derive(Default)]
pub struct Prefetch {
    /// Held while a few entries are examined.
    state: Mutex<State>,
    /// Reads that do not wait count too. Changed with the state held.
    follows: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Of the reads that wait for the disk.
    streams: Streams,
    /// The oldest first.
    chunks: VecDeque<Chunk>,
    /// Chunks that were found in memory, since one was not.
    cached_chunks: usize,
}

struct Chunk {
    range: ByteRange,
    begun: Instant,
    /// Its run has not ended.
    is_running: bool,
}

/// Chunks to be read into the page cache now, of at most [`CHUNK_BYTES`], in file order. No others
/// near them are begun before this is dropped; those that were not taken out count as not read
/// then.
#[must_use = "chunks that are not taken out are not read"]
pub struct PrefetchRun {
    owner: Arc<Prefetch>,
    begun: Vec<ByteRange>,
    /// Of these, how many were taken out.
    taken: usize,
    /// Where what the stream needs ends.
    until: u64,
}

impl Prefetch {
    /// Whether reads that do not wait for the disk are to be noted.
    #[must_use]
    pub fn follows_streams(&self) -> bool {
        self.follows.load(Ordering::Relaxed)
    }

    /// Notes a read of `range`, not empty, in a file of `size` bytes, that found all of it in
    /// memory (`was_cached`) or else waits for the disk. After one that waits those that do not
    /// count too: it may be the first of a stream. Returns what is to be read ahead for its stream,
    /// unless a run near it is at work.
    pub fn note(
        self: &Arc<Self>,
        (range, was_cached): (ByteRange, bool),
        size: u64,
        now: Instant,
    ) -> Option<PrefetchRun> {
        let mut state = self.lock();
        if !was_cached {
            state.cached_chunks = 0;
            self.follows.store(true, Ordering::Relaxed);
        }
        let stream = state.streams.note(range);
        if !stream.is_sequential() {
            return None;
        }
        let wanted = stream.wanted_ahead(range, size);
        let begun = state.begin(wanted, now);
        // Made only then: its drop locks the state.
        (!begun.is_empty()).then(|| PrefetchRun {
            owner: Arc::clone(self),
            begun,
            taken: 0,
            until: wanted.end(),
        })
    }

    /// Forgets chunks read long ago, and the streams when nothing was read ahead lately. To be
    /// called periodically.
    pub fn trim(&self, now: Instant) {
        let mut state = self.lock();
        state.forget_old(now);
        if state.chunks.is_empty() {
            *state = State::default();
            self.follows.store(false, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PrefetchRun {
    /// Where what the stream needs ends, as a multiple of [`CHUNK_BYTES`] or the end of the file.
    #[must_use]
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Puts back the chunk that was taken out last: it counts as not read unless it is taken again.
    pub fn put_back(&mut self) {
        self.taken = self.taken.saturating_sub(1);
    }

    /// Notes whether a chunk was in memory before it was read ahead, all of it.
    pub fn note_found(&self, was_cached: bool) {
        let mut state = self.owner.lock();
        state.cached_chunks = if was_cached { state.cached_chunks + 1 } else { 0 };
        if state.cached_chunks >= CACHED_CHUNKS_MAX {
            self.owner.follows.store(false, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefetch")
            .field("chunks", &self.lock().chunks.len())
            .finish_non_exhaustive()
    }
}

impl State {
    /// The first chunks of `wanted`, which begins with one, that are not read yet.
    fn begin(&mut self, wanted: ByteRange, now: Instant) -> Vec<ByteRange> {
        self.forget_old(now);
        let overlaps = |chunk: &Chunk| !chunk.range.intersection(wanted).is_empty();
        if self.chunks.iter().any(|chunk| chunk.is_running && overlaps(chunk)) {
            return Vec::new();
        }
        let mut run = Vec::new();
        let mut at = wanted.offset();
        while at < wanted.end() && run.len() < RUN_CHUNKS_MAX {
            let range = ByteRange::between(at, at.saturating_add(CHUNK_BYTES).min(wanted.end()));
            if !self.chunks.iter().any(|chunk| chunk.range.contains(range)) {
                if !self.has_room() {
                    break;
                }
                self.chunks.push_back(Chunk { range, begun: now, is_running: true });
                run.push(range);
            }
            at = range.end();
        }
        run
    }

    /// Whether another chunk may be remembered, for which the oldest is forgotten: its readers have
    /// come since.
    fn has_room(&mut self) -> bool {
        if self.chunks.len() == CHUNKS_MAX {
            let oldest = self.chunks.iter().position(|chunk| !chunk.is_running);
            oldest.map(|oldest| self.chunks.remove(oldest));
        }
        self.chunks.len() < CHUNKS_MAX
    }

    fn forget_old(&mut self, now: Instant) {
        self.chunks.retain(|chunk| {
            chunk.is_running || now.saturating_duration_since(chunk.begun) < CHUNK_LASTS
        });
    }
}

impl Iterator for PrefetchRun {
    type Item = ByteRange;

    fn next(&mut self) -> Option<ByteRange> {
        let next = self.begun.get(self.taken).copied();
        self.taken += usize::from(next.is_some());
        next
    }
}

impl Drop for PrefetchRun {
    fn drop(&mut self) {
        let (taken, left) = self.begun.split_at(self.taken);
        let mut state = self.owner.lock();
        state.chunks.retain_mut(|chunk| {
            chunk.is_running &= !taken.contains(&chunk.range);
            !left.contains(&chunk.range)
        });
    }
}

#[cfg(not(shuttle))]
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = CHUNK_BYTES;
    const SIZE: u64 = 1000 * MIB;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange::new(offset, len).unwrap()
    }

    fn chunks(run: Option<PrefetchRun>) -> Vec<u64> {
        run.into_iter().flatten().map(|chunk| chunk.offset() / MIB).collect()
    }

    #[test]
    fn a_stream_is_read_ahead_in_order_and_each_chunk_once() {
        let (prefetch, now) = (Arc::new(Prefetch::default()), Instant::now());
        let mut read = Vec::new();
        for at in 0..900 {
            let run = chunks(prefetch.note((range(at * MIB, MIB), false), SIZE, now));
            assert!(run.len() <= RUN_CHUNKS_MAX, "{run:?}");
            read.extend(run);
            assert!(at == 0 || read.last() > Some(&at), "{at} has been asked for: {read:?}");
        }
        assert_eq!(read, (1..=*read.last().unwrap()).collect::<Vec<_>>());
    }

    #[test]
    fn no_run_begins_near_another() {
        let (prefetch, now) = (Arc::new(Prefetch::default()), Instant::now());
        let far = 500 * MIB;
        for start in [0, far] {
            assert!(prefetch.note((range(start, MIB), false), SIZE, now).is_none());
        }
        let first = prefetch.note((range(MIB, MIB), false), SIZE, now).unwrap();
        assert_eq!(chunks(prefetch.note((range(2 * MIB, MIB), false), SIZE, now)), []);
        assert_ne!(
            chunks(prefetch.note((range(far + MIB, MIB), false), SIZE, now)),
            [],
            "far away"
        );
        drop(first);
        assert_ne!(chunks(prefetch.note((range(3 * MIB, MIB), false), SIZE, now)), []);
    }

    #[test]
    fn chunks_that_were_not_read_are_begun_again() {
        let (prefetch, now) = (Arc::new(Prefetch::default()), Instant::now());
        assert!(prefetch.note((range(0, 3 * MIB), false), SIZE, now).is_none());
        let mut run = prefetch.note((range(3 * MIB, MIB), false), SIZE, now).unwrap();
        assert_eq!(run.next(), Some(range(3 * MIB, MIB)));
        assert_eq!(run.next(), Some(range(4 * MIB, MIB)));
        run.put_back();
        drop(run);
        assert_eq!(chunks(prefetch.note((range(4 * MIB, MIB), false), SIZE, now)), [4, 5, 6, 7]);
    }

    #[test]
    fn reads_that_do_not_wait_count_until_enough_is_found_in_memory() {
        let (prefetch, now) = (Arc::new(Prefetch::default()), Instant::now());
        assert!(!prefetch.follows_streams());
        for at in [0, 1] {
            prefetch.note((range(at * MIB, MIB), false), SIZE, now);
        }
        let mut found = 0;
        for at in 2.. {
            assert!(prefetch.follows_streams());
            let Some(mut run) = prefetch.note((range(at * MIB, MIB), true), SIZE, now) else {
                continue;
            };
            while run.next().is_some() {
                found += 1;
                // One that was not in memory begins the count anew.
                run.note_found(found != 5);
                assert_eq!(prefetch.follows_streams(), found < 5 + CACHED_CHUNKS_MAX, "{found}");
            }
            if found >= 5 + CACHED_CHUNKS_MAX {
                break;
            }
        }
        assert!(!prefetch.follows_streams());
        prefetch.note((range(100 * MIB, MIB), false), SIZE, now);
        assert!(prefetch.follows_streams());
        prefetch.trim(now + CHUNK_LASTS);
        assert!(!prefetch.follows_streams(), "nothing was read ahead lately");
    }

    #[test]
    fn reads_at_random_begin_nothing() {
        let prefetch = Arc::new(Prefetch::default());
        for i in 0..1000 {
            let page = i * 104_729 % 256_000;
            let run = prefetch.note((range(page * 4096, 4096), false), SIZE, Instant::now());
            assert!(run.is_none(), "{i}");
        }
    }

    #[test]
    fn a_file_is_read_ahead_again_when_it_may_have_left_the_page_cache() {
        let (prefetch, now) = (Arc::new(Prefetch::default()), Instant::now());
        let pass = |now| {
            let mut read = Vec::new();
            (0..8).for_each(|at| {
                read.extend(chunks(prefetch.note((range(at * MIB, MIB), false), 8 * MIB, now)))
            });
            read
        };
        assert_eq!(pass(now), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(pass(now), [0]);
        assert_eq!(pass(now), []);
        assert_eq!(pass(now + CHUNK_LASTS), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn what_was_read_long_ago_is_forgotten() {
        let (prefetch, now) = (Arc::new(Prefetch::default()), Instant::now());
        assert!(prefetch.note((range(0, MIB), false), SIZE, now).is_none());
        let run = prefetch.note((range(MIB, MIB), false), SIZE, now);
        prefetch.trim(now + CHUNK_LASTS);
        assert!(!prefetch.lock().chunks.is_empty(), "a run is at work");
        assert_ne!(chunks(run), []);
        prefetch.trim(now);
        assert!(!prefetch.lock().chunks.is_empty());
        prefetch.trim(now + CHUNK_LASTS);
        assert_eq!(prefetch.lock().chunks.capacity(), 0);
    }

    proptest! {
        /// Whatever is read in whatever order, runs at work never overlap, chunks are inside the
        /// file and none is begun twice while it is remembered.
        #[test]
        fn runs_at_work_are_disjoint(
            reads in prop::collection::vec((0_u64..64, 1_u64..3 * MIB, any::<bool>()), 1..200),
        ) {
            let (prefetch, now) = (Arc::new(Prefetch::default()), Instant::now());
            let size = 60 * MIB + 5;
            let mut runs: VecDeque<PrefetchRun> = VecDeque::new();
            let mut begun: Vec<ByteRange> = Vec::new();
            for (at, len, ends) in reads {
                let offset = (at * MIB).min(size - 1);
                let read = range(offset, len.min(size - offset));
                if let Some(mut run) = prefetch.note((read, !ends), size, now) {
                    while let Some(chunk) = run.next() {
                        run.note_found(ends);
                        prop_assert!(!chunk.is_empty() && chunk.end() <= size);
                        for other in begun.iter().rev().take(CHUNKS_MAX - 1) {
                            prop_assert!(other.intersection(chunk).is_empty());
                        }
                        begun.push(chunk);
                    }
                    runs.push_back(run);
                }
                if ends {
                    runs.pop_front();
                }
            }
            prop_assert!(prefetch.lock().chunks.len() <= CHUNKS_MAX);
            runs.clear();
            prop_assert!(prefetch.lock().chunks.iter().all(|chunk| !chunk.is_running));
        }
    }
}
