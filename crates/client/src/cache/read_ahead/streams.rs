//! Detects sequential reads of a file.

use std::ops::Range;

/// The streams of one file. Pure: fed with reads in order of arrival.
#[derive(Debug)]
pub(super) struct Streams {
    /// The most recently used last; at most [`STREAMS_MAX`].
    streams: Vec<Stream>,
    /// A read may be this many bytes too early or too late.
    reorder_bytes: u64,
    read_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Start of the furthest read.
    at: u64,
    /// End of the furthest read.
    next: u64,
    /// Whether to read ahead of it.
    confirmed: bool,
}

/// A stream after a read that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noted {
    /// Where it continues.
    pub(super) next: u64,
    /// Whether this read has entered another chunk.
    pub(super) crossed: bool,
}

impl Streams {
    pub(super) fn new(read_bytes: u32) -> Self {
        let read_bytes = u64::from(read_bytes);
        Self { streams: Vec::new(), reorder_bytes: read_bytes.max(REORDER_BYTES), read_bytes }
    }

    /// Notes a read. Returns its stream, if that is to be read ahead.
    pub(super) fn note(&mut self, range: Range<u64>) -> Option<Noted> {
        if range.is_empty() {
            return None;
        }
        let found = self.find(&range).map(|at| self.streams.remove(at));
        let mut stream = match found {
            Some(stream) if range.start != 0 => Stream { confirmed: true, ..stream },
            // A read at the start begins a sequential read of the file, unless it is so short that
            // it only detects the type of the data. It also restarts a stream that is still near.
            _ => {
                let whole = range.start == 0 && range.end >= START_BYTES.min(self.read_bytes);
                Stream { at: range.start, next: range.start, confirmed: whole }
            }
        };
        let chunk_before = stream.next / self.read_bytes;
        if range.end > stream.next {
            (stream.at, stream.next) = (range.start, range.end);
        }
        if self.streams.len() == STREAMS_MAX {
            self.streams.remove(0);
        }
        self.streams.push(stream);
        let crossed = found.is_none() || stream.next / self.read_bytes != chunk_before;
        stream.confirmed.then_some(Noted { next: stream.next, crossed })
    }

    /// Whether a stream with a window of `window_bytes` needs a chunk.
    pub(super) fn wants(&self, chunk: &Range<u64>, window_bytes: u64) -> bool {
        self.streams.iter().any(|stream| {
            chunk.end.saturating_add(self.reorder_bytes) > stream.at
                && chunk.start < stream.next.saturating_add(window_bytes)
        })
    }

    /// Drops all streams.
    pub(super) fn clear(&mut self) {
        self.streams.clear();
    }

    /// The stream that a read continues; of several, the one with the nearest end.
    fn find(&self, range: &Range<u64>) -> Option<usize> {
        let distances = self.streams.iter().map(|stream| {
            let slack = if stream.confirmed || range.start == 0 { self.reorder_bytes } else { 0 };
            Some(range.start.abs_diff(stream.next)).filter(|distance| *distance <= slack)
        });
        let near = distances.enumerate().filter_map(|(at, distance)| Some((distance?, at)));
        near.min().map(|(_, at)| at)
    }
}

/// Streams of one file. The least recently used one is replaced.
const STREAMS_MAX: usize = 8;

/// Reads of one stream that a kernel has in flight at once, and may reorder, in bytes.
const REORDER_BYTES: u64 = 1 << 20;

/// A first read of this length begins a stream. A shorter one may only detect the type of the data.
const START_BYTES: u64 = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u32 = 1 << 20;

    /// Where the stream of a read continues, in KiB.
    fn note(streams: &mut Streams, start_kib: u64, len_kib: u64) -> Option<u64> {
        let range = start_kib * KIB..(start_kib + len_kib) * KIB;
        streams.note(range).map(|noted| noted.next / KIB)
    }

    #[test]
    fn a_read_at_the_start_of_a_file_begins_a_stream() {
        let mut streams = Streams::new(MIB);
        assert_eq!(note(&mut streams, 0, 128), Some(128));
        let mut streams = Streams::new(4096);
        assert_eq!(note(&mut streams, 0, 4), Some(4), "a whole READ");
        let mut streams = Streams::new(MIB);
        assert_eq!(note(&mut streams, 0, 4), None, "too short");
        assert_eq!(note(&mut streams, 0, 4), None);
        assert_eq!(note(&mut streams, 8, 4), None, "elsewhere");
        assert_eq!(note(&mut streams, 4, 4), Some(8));
    }

    #[test]
    fn a_read_that_continues_another_forms_a_stream() {
        let mut streams = Streams::new(MIB);
        assert_eq!(note(&mut streams, 5000, 4), None);
        assert_eq!(note(&mut streams, 5004, 4), Some(5008));
        assert_eq!(note(&mut streams, 5012, 4), Some(5016), "one too early");
        assert_eq!(note(&mut streams, 5008, 4), Some(5016), "one too late");
    }

    #[test]
    fn random_reads_form_no_stream() {
        let mut streams = Streams::new(MIB);
        for n in 1..1000 {
            assert_eq!(note(&mut streams, n * 7919 % 1_000_003, 4), None);
        }
    }

    #[test]
    fn streams_of_one_file_are_distinguished() {
        let mut streams = Streams::new(MIB);
        let starts = (0..STREAMS_MAX as u64).map(|n| n * 100_000);
        for start in starts.clone().skip(1) {
            assert_eq!(note(&mut streams, start, 4), None);
        }
        for step in 1..50 {
            for start in starts.clone().skip(1) {
                let next = start + 4 * step;
                assert_eq!(note(&mut streams, next, 4), Some(next + 4));
            }
        }
        let passed = 100_000 * KIB - 2 * u64::from(MIB)..100_000 * KIB - u64::from(MIB);
        assert!(!streams.wants(&passed, 0));
        let ahead = 101_000 * KIB..102_024 * KIB;
        assert!(streams.wants(&ahead, 2 * u64::from(MIB)));
        assert!(!streams.wants(&ahead, 0));
    }

    #[test]
    fn chunks_of_a_long_read_are_needed_until_the_next_read() {
        let mib = u64::from(MIB);
        let mut streams = Streams::new(MIB);
        assert!(streams.note(0..16 * mib).is_some());
        assert!(streams.wants(&(0..mib), 0));
        assert!(streams.note(16 * mib..32 * mib).is_some());
        assert!(!streams.wants(&(0..mib), 0));
        assert!(streams.wants(&(16 * mib..17 * mib), 0));
    }
}
