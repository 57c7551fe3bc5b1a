//! Detects streams: reads or writes of a file in sequence.

use crate::byte_range::ByteRange;

/// Bytes of a chunk, and what its first byte's offset is a multiple of. One disk request of this
/// size costs little more than its transfer, and clients ask for at most this much by default.
pub const CHUNK_BYTES: u64 = 1024 * 1024;

/// Streams distinguished in one file.
const STREAMS_MAX: usize = 8;
/// How far from its expected place a request may be and still belong to a stream, in requests of
/// its own size: clients send many at once, and they arrive in any order (FreeBSD's server
/// tolerates 16 too).
const REORDERED_REQUESTS_MAX: u64 = 16;
/// The same in bytes.
const REORDERED_BYTES_MAX: u64 = 16 * CHUNK_BYTES;
/// Requests that go on exactly where a stream stood count twice as much as those near it.
const SCORE_EXACT: u32 = 2;
const SCORE_NEAR: u32 = 1;
/// From here on a stream is taken for sequential: one exact request, or two near ones.
const SCORE_SEQUENTIAL: u32 = 2;
/// How far ahead of its reader a stream is read at most, in bytes. At 1 GiB/s these are 8 ms,
/// several times what a disk needs for a request.
const AHEAD_BYTES_MAX: u64 = 8 * CHUNK_BYTES;

/// A stream whose requests leave out more than a quarter of the bytes that it passes has gaps.
const COVERED_QUARTERS_MIN: u64 = 3;
/// Gaps are judged by about so many of the bytes that a stream passed last: enough that requests in
/// any order make none.
const JUDGED_BYTES_MAX: u64 = 2 * REORDERED_BYTES_MAX;

/// The latest streams through a file, of reads or of writes.
#[derive(Debug, Default)]
pub struct Streams {
    /// The one used last is the last.
    streams: Vec<Stream>,
}

/// One reader or writer on its way through the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// The end of the furthest request.
    next: u64,
    /// Bytes that belonged to it.
    bytes: u64,
    /// Of the bytes before `next` that gaps are judged by: how many there are, and how many of them
    /// belonged to it.
    judged_bytes: u64,
    covered_bytes: u64,
    score: u32,
}

impl Streams {
    /// The stream that a request belongs to, with the request noted; a new one if there is none.
    pub fn note(&mut self, range: ByteRange) -> Stream {
        let exact = self.streams.iter().rposition(|stream| stream.next == range.offset());
        let near = || self.streams.iter().rposition(|stream| stream.is_near(range));
        let found = exact.or_else(near);
        let mut stream = match found {
            Some(index) => self.streams.remove(index),
            None => Stream { next: range.offset(), ..Stream::default() },
        };
        if found.is_some() {
            let score = if exact.is_some() { SCORE_EXACT } else { SCORE_NEAR };
            stream.score = stream.score.saturating_add(score);
        }
        stream.advance(range);
        if self.streams.len() == STREAMS_MAX {
            self.streams.remove(0);
        }
        self.streams.push(stream);
        stream
    }
}

impl Stream {
    fn advance(&mut self, range: ByteRange) {
        let passed = range.end().saturating_sub(self.next);
        self.next = self.next.max(range.end());
        self.bytes = self.bytes.saturating_add(range.len());
        self.judged_bytes = self.judged_bytes.saturating_add(passed);
        self.covered_bytes = self.covered_bytes.saturating_add(range.len());
        if self.judged_bytes > JUDGED_BYTES_MAX {
            self.judged_bytes /= 2;
            self.covered_bytes /= 2;
        }
    }

    /// Whether the requests go through the file in order, or nearly so.
    #[must_use]
    pub fn is_sequential(&self) -> bool {
        self.score >= SCORE_SEQUENTIAL
    }

    /// Whether its latest requests leave out part of the file, as those of one writer do among
    /// several that take turns.
    #[must_use]
    pub fn has_gaps(&self) -> bool {
        self.covered_bytes < self.judged_bytes / 4 * COVERED_QUARTERS_MIN
    }

    /// Bytes of all its requests.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The part of the file that should be in memory or being read when `range` is read: whole
    /// chunks, from the one with its first byte on, cut off at the end of the file (`size` bytes).
    /// The further a stream has come, the further it is read ahead.
    pub(crate) fn wanted_ahead(&self, range: ByteRange, size: u64) -> ByteRange {
        let ahead = self.bytes.clamp(CHUNK_BYTES, AHEAD_BYTES_MAX);
        let first = range.offset() - range.offset() % CHUNK_BYTES;
        let last = self.next.saturating_add(ahead);
        let end = last - last % CHUNK_BYTES;
        let end = end.max(range.end().next_multiple_of(CHUNK_BYTES)).min(size);
        // A latecomer of a stream that is far ahead needs its own chunk only.
        let end = end.min(first.saturating_add(AHEAD_BYTES_MAX + CHUNK_BYTES));
        ByteRange::between(first.min(end), end)
    }

    fn is_near(&self, range: ByteRange) -> bool {
        let slack = range.len().saturating_mul(REORDERED_REQUESTS_MAX).min(REORDERED_BYTES_MAX);
        range.offset().abs_diff(self.next) <= slack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange::new(offset, len).unwrap()
    }

    #[test]
    fn the_second_read_in_sequence_makes_a_stream() {
        let mut streams = Streams::default();
        assert!(!streams.note(range(0, 47_008)).is_sequential());
        assert!(streams.note(range(47_008, 47_008)).is_sequential());
    }

    #[test]
    fn reads_in_any_order_make_a_stream_a_little_later() {
        let mut streams = Streams::default();
        let order = [0, 2, 1, 3, 5, 4];
        let sequential: Vec<_> =
            order.map(|i| streams.note(range(i * 65_536, 65_536)).is_sequential()).into();
        assert_eq!(sequential, [false, false, true, true, true, true]);
    }

    #[test]
    fn random_reads_make_none() {
        let mut streams = Streams::default();
        for i in 0..1000_u64 {
            // Steps of a large prime through 1 GiB.
            let page = i * 104_729 % 262_144;
            assert!(!streams.note(range(page * 4096, 4096)).is_sequential(), "{i}");
        }
    }

    #[test]
    fn interleaved_streams_are_distinguished() {
        let mut streams = Streams::default();
        for i in 0..10 {
            for start in 0..STREAMS_MAX as u64 {
                let at = range((start << 30) + i * 65_536, 65_536);
                assert_eq!(streams.note(at).is_sequential(), i > 0);
            }
        }
        assert_eq!(streams.streams.len(), STREAMS_MAX);
    }

    #[test]
    fn a_writer_among_several_leaves_gaps() {
        let record = 47_008;
        let mut streams = Streams::default();
        for i in 0..1000 {
            let stream = streams.note(range(i * 2 * record, record));
            assert_eq!(stream.has_gaps(), i > 0, "{i}");
        }
    }

    #[test]
    fn writers_that_keep_in_step_leave_none_together() {
        let record = 47_008;
        let mut streams = Streams::default();
        for i in 0..1000_u64 {
            // Two at a time change places.
            let stream = streams.note(range((i ^ 1) * record, record));
            assert!(!stream.has_gaps() || i < 4, "{i}");
        }
    }

    #[test]
    fn gaps_are_those_of_the_latest_requests() {
        let mib = CHUNK_BYTES;
        let mut streams = Streams::default();
        let mut note = |at: u64| streams.note(range(at * mib, mib)).has_gaps();
        assert!((0..1000).all(|at| !note(at)));
        let gaps = (0..100).map(|i| note(1000 + 2 * i)).collect::<Vec<_>>();
        assert!(gaps[50..].iter().all(|&has_gaps| has_gaps), "{gaps:?}");
        let gaps = (0..100).map(|i| note(1200 + i)).collect::<Vec<_>>();
        assert!(!gaps[99], "{gaps:?}");
    }

    #[test]
    fn the_further_it_came_the_further_it_is_read_ahead() {
        let mib = CHUNK_BYTES;
        let stream =
            |bytes| Stream { next: 64 * mib, bytes, score: SCORE_SEQUENTIAL, ..Stream::default() };
        let at = range(63 * mib, mib);
        let size = 1000 * mib;
        assert_eq!(stream(47_008).wanted_ahead(at, size), range(63 * mib, 2 * mib));
        assert_eq!(stream(2 * mib).wanted_ahead(at, size), range(63 * mib, 3 * mib));
        assert_eq!(stream(64 * mib).wanted_ahead(at, size), range(63 * mib, 9 * mib));
        assert_eq!(stream(64 * mib).wanted_ahead(at, 64 * mib + 5), range(63 * mib, mib + 5));
    }

    #[test]
    fn a_latecomer_is_given_its_own_chunks_only() {
        let mib = CHUNK_BYTES;
        let stream = Stream { next: 64 * mib, bytes: 64 * mib, score: 9, ..Stream::default() };
        let wanted = stream.wanted_ahead(range(48 * mib, 4096), 1000 * mib);
        assert_eq!(wanted, range(48 * mib, 9 * mib));
        assert!(stream.wanted_ahead(range(70 * mib, mib), 10 * mib).is_empty());
    }
}
