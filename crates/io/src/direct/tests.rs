mod on_disk;

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// Bytes at an address that is congruent to an offset in the file, as a WRITE's data is received.
struct Placed {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Placed {
    const ALIGN: usize = 1 << 16;

    fn new(len: usize, offset: u64) -> Self {
        let memory = vec![0; len + 2 * Self::ALIGN];
        let aligned = memory.as_ptr().addr().next_multiple_of(Self::ALIGN) - memory.as_ptr().addr();
        let start = aligned + usize::try_from(offset % Self::ALIGN as u64).unwrap();
        Self { memory, start, len }
    }

    /// Bytes that differ from those at nearby places and from those of other seeds.
    fn filled(len: usize, offset: u64, seed: u8) -> Self {
        let mut placed = Self::new(len, offset);
        for (place, byte) in placed.as_mut_slice().iter_mut().enumerate() {
            *byte = u8::try_from((place + usize::from(seed) * 7) % 251).unwrap() | 1;
        }
        placed
    }

    fn as_slice(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// A file that refuses direct I/O which is not aligned, and on demand takes or gives less than it
/// is asked to.
struct SimulatedFile {
    content: Vec<u8>,
    align: DioAlign,
    /// The size at which the disk is full.
    room: usize,
    /// The most that each of the next calls moves; the calls after that have no such bound.
    at_most: VecDeque<usize>,
    /// All calls, with what they moved.
    calls: Vec<(Route, ByteRange, Result<usize, Errno>)>,
}

impl SimulatedFile {
    fn new(align: DioAlign) -> Self {
        Self {
            content: Vec::new(),
            align,
            room: usize::MAX,
            at_most: VecDeque::new(),
            calls: Vec::new(),
        }
    }

    /// Holds `len` bytes without a pattern that repeats within a step.
    fn holding(len: usize, align: DioAlign) -> Self {
        Self { content: Placed::filled(len, 0, 3).as_slice().to_vec(), ..Self::new(align) }
    }

    fn write(&mut self, route: Route, parts: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
        let outcome = self.try_write(route, parts, offset);
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let range = ByteRange::new(offset, len as u64).unwrap();
        self.calls.push((route, range, outcome));
        outcome
    }

    fn try_write(
        &mut self,
        route: Route,
        parts: &[IoSlice<'_>],
        offset: u64,
    ) -> Result<usize, Errno> {
        let align = u64::from(self.align.offset());
        let fits = |part: &IoSlice<'_>| {
            (part.len() as u64).is_multiple_of(align) && self.align.fits_memory(part)
        };
        let aligned = offset.is_multiple_of(align) && parts.iter().all(fits);
        if route == Route::Direct && !aligned {
            return Err(Errno::INVAL);
        }
        let data: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let start = usize::try_from(offset).unwrap();
        let fits = data.len().min(self.room.saturating_sub(start));
        if fits == 0 {
            return Err(Errno::NOSPC);
        }
        let taken = fits.min(self.at_most.pop_front().unwrap_or(usize::MAX));
        if self.content.len() < start + taken {
            self.content.resize(start + taken, 0);
        }
        self.content[start..start + taken].copy_from_slice(&data[..taken]);
        Ok(taken)
    }

    fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let align = u64::from(self.align.read_offset());
        let aligned = offset.is_multiple_of(align) && (buf.len() as u64).is_multiple_of(align);
        let outcome = if aligned && self.align.fits_memory(buf) {
            let start = usize::try_from(offset).unwrap().min(self.content.len());
            let bound = self.at_most.pop_front().unwrap_or(usize::MAX);
            let given = buf.len().min(self.content.len() - start).min(bound);
            buf[..given].copy_from_slice(&self.content[start..start + given]);
            Ok(given)
        } else {
            Err(Errno::INVAL)
        };
        let range = ByteRange::new(offset, buf.len() as u64).unwrap();
        self.calls.push((Route::Direct, range, outcome));
        outcome
    }

    fn write_segments(
        &mut self,
        segments: &[Segment],
        data: &[u8],
    ) -> Result<SegmentsWritten, WriteError> {
        self.write_parts(segments, &[data])
    }

    fn write_parts(
        &mut self,
        segments: &[Segment],
        parts: &[&[u8]],
    ) -> Result<SegmentsWritten, WriteError> {
        write_in_segments(segments, parts, |route, part, offset| self.write(route, part, offset))
    }

    fn read_direct(&mut self, buf: &mut [u8], read: &WidenedRead) -> Result<usize, DataError> {
        let size = self.content.len() as u64;
        read_in_steps(buf, read, |part, offset| self.read(part, offset), || Ok(size))
    }
}

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange::new(offset, len).unwrap()
}

fn aligned_to(align: u32) -> DioAlign {
    DioAlign::new(align, align, align).unwrap()
}

/// A write of head, middle and tail: 100 bytes, 32 KiB and 50 bytes around an aligned middle.
fn ragged_write() -> (ByteRange, [Segment; 3], Placed) {
    let whole = range(4096 - 100, 100 + 32_768 + 50);
    let segments = aligned_to(512).split_write(whole, 4096).segments();
    let data = Placed::filled(usize::try_from(whole.len()).unwrap(), whole.offset(), 9);
    (whole, segments, data)
}

#[test]
fn segments_go_in_the_order_of_the_file_each_by_its_route() {
    let (_, segments, data) = ragged_write();
    let mut file = SimulatedFile::new(aligned_to(512));
    let done = file.write_segments(&segments, data.as_slice()).unwrap();
    let whole = SegmentsWritten { written: 32_918, cached_instead: None, refused_direct: false };
    assert_eq!(done, whole);
    assert_eq!(
        file.calls,
        [
            (Route::Cached, range(3996, 100), Ok(100)),
            (Route::Direct, range(4096, 32_768), Ok(32_768)),
            (Route::Cached, range(36_864, 50), Ok(50)),
        ]
    );
    assert_eq!(file.content[3996..], *data.as_slice());
}

#[test]
fn empty_segments_make_no_calls() {
    let mut file = SimulatedFile::new(aligned_to(4096));
    for (offset, len, calls) in [(0, 0, 0), (5, 0, 0), (5, 10, 1), (4096, 4096, 1)] {
        file.calls.clear();
        let segments = aligned_to(4096).split_write(range(offset, len), 4096).segments();
        let data = Placed::filled(usize::try_from(len).unwrap(), offset, 1);
        let done = file.write_segments(&segments, data.as_slice()).unwrap();
        assert_eq!((done.written as u64, file.calls.len()), (len, calls), "{len} at {offset}");
    }
    assert_eq!(file.write_segments(&[], &[]).unwrap().written, 0);
}

/// A segment can fall short by so little that what it took is more than what is left behind it.
/// Held against that instead of its own length, it would pass for whole: the next segment would be
/// written over a gap, and the count would be a lie.
#[test]
fn no_short_segment_passes_for_a_whole_one() {
    for short in 0..3 {
        for percent in 1..100 {
            let (whole, segments, data) = ragged_write();
            let len = usize::try_from(segments[short].range.len()).unwrap();
            let taken = len * percent / 100;
            let mut file = SimulatedFile::new(aligned_to(512));
            file.at_most.extend(vec![usize::MAX; short]);
            file.at_most.push_back(taken);
            file.room = usize::try_from(segments[short].range.offset()).unwrap() + taken;
            let before: usize = data.len
                - len
                - segments[short + 1..]
                    .iter()
                    .map(|segment| usize::try_from(segment.range.len()).unwrap())
                    .sum::<usize>();

            let failed = file.write_segments(&segments, data.as_slice()).unwrap_err();
            assert_eq!(failed.error, DataError(Errno::NOSPC));
            assert_eq!(failed.written, before + taken, "{percent} % of segment {short}");
            let start = usize::try_from(whole.offset()).unwrap();
            assert_eq!(file.content[start..], data.as_slice()[..before + taken]);
        }
    }
}

#[test]
fn the_rest_of_a_short_direct_write_goes_through_the_cache() {
    for percent in 0..100 {
        let (whole, segments, data) = ragged_write();
        let taken = 32_768 * percent / 100;
        let mut file = SimulatedFile::new(aligned_to(512));
        file.at_most.extend([usize::MAX, taken]);
        let done = file.write_segments(&segments, data.as_slice()).unwrap();
        let rest = ByteRange::between(4096 + taken as u64, 36_864);
        assert_eq!((done.written, done.cached_instead), (data.len, Some(rest)), "{percent} %");
        assert!(!done.refused_direct, "what is short is not refused");
        assert_eq!(file.content[usize::try_from(whole.offset()).unwrap()..], *data.as_slice());
        assert!(!file.calls.iter().any(|(.., outcome)| outcome.is_err()), "{:?}", file.calls);
    }
}

#[test]
fn a_short_cached_write_goes_on_where_it_stopped() {
    let (whole, segments, data) = ragged_write();
    let mut file = SimulatedFile::new(aligned_to(512));
    file.at_most.extend([99, usize::MAX, usize::MAX, 1, 48]);
    let done = file.write_segments(&segments, data.as_slice()).unwrap();
    assert_eq!((done.written, done.cached_instead), (data.len, None));
    assert_eq!(file.content[usize::try_from(whole.offset()).unwrap()..], *data.as_slice());
    assert_eq!(file.calls.len(), 6);
}

#[test]
fn refused_direct_io_falls_back_to_the_page_cache() {
    // The file requires more than it reports: the split is for 512, the file refuses less than 64
    // KiB.
    let (whole, segments, data) = ragged_write();
    let mut file = SimulatedFile::new(aligned_to(65_536));
    let done = file.write_segments(&segments, data.as_slice()).unwrap();
    let expected = SegmentsWritten {
        written: data.len,
        cached_instead: Some(segments[1].range),
        refused_direct: true,
    };
    assert_eq!(done, expected);
    assert_eq!(file.content[usize::try_from(whole.offset()).unwrap()..], *data.as_slice());
}

#[test]
fn after_one_refusal_no_other_segment_tries() {
    let segments = [(0, 512), (512, 1024), (1536, 512)]
        .map(|(offset, len)| Segment { range: range(offset, len), route: Route::Direct });
    let data = Placed::filled(2048, 1, 5);
    let mut file = SimulatedFile::new(aligned_to(512));
    let done = file.write_segments(&segments, data.as_slice()).unwrap();
    assert!(done.refused_direct, "the memory is not aligned");
    assert_eq!(done.cached_instead, Some(range(0, 2048)));
    let direct = file.calls.iter().filter(|(route, ..)| *route == Route::Direct).count();
    assert_eq!(direct, 1);
    assert_eq!(file.content, data.as_slice());
}

#[test]
fn a_failed_direct_write_stops_there() {
    for error in [Errno::IO, Errno::NOSPC, Errno::FBIG, Errno::DQUOT] {
        let (_, segments, data) = ragged_write();
        let mut routes = Vec::new();
        let failed = write_in_segments(&segments, &[data.as_slice()], |route, part, _| {
            routes.push(route);
            let len = part.iter().map(|part| part.len()).sum();
            if route == Route::Direct { Err(error) } else { Ok(len) }
        })
        .unwrap_err();
        assert_eq!((failed.written, failed.error), (100, DataError(error)));
        assert_eq!(routes, [Route::Cached, Route::Direct], "{error}");
    }
}

#[test]
fn interrupted_writes_are_tried_again() {
    let (_, segments, data) = ragged_write();
    let mut file = SimulatedFile::new(aligned_to(512));
    let mut interrupted = false;
    let done = write_in_segments(&segments, &[data.as_slice()], |route, part, offset| {
        interrupted = !interrupted;
        if interrupted { Err(Errno::INTR) } else { file.write(route, part, offset) }
    });
    assert_eq!((done.unwrap().cached_instead, file.calls.len()), (None, 3));
}

#[test]
#[should_panic(expected = "segments must be adjacent")]
fn segments_have_no_gaps() {
    let segments =
        [0, 600].map(|offset| Segment { range: range(offset, 512), route: Route::Cached });
    let _ = SimulatedFile::new(aligned_to(512)).write_segments(&segments, &[0; 1024]);
}

#[test]
#[should_panic(expected = "segments are as long as the data")]
fn segments_are_as_long_as_the_data() {
    let segments = [Segment { range: range(0, 512), route: Route::Cached }];
    let _ = SimulatedFile::new(aligned_to(512)).write_segments(&segments, &[0; 513]);
}

/// Reads `asked` of the file; returns what a client would get.
fn read_asked(file: &mut SimulatedFile, asked: ByteRange) -> Vec<u8> {
    let read = file.align.widen_read(asked).unwrap();
    let mut buf = Placed::new(usize::try_from(read.range().len()).unwrap(), 0);
    let got = file.read_direct(buf.as_mut_slice(), &read).unwrap();
    let first = usize::try_from(read.start_extra).unwrap();
    let len = usize::try_from(read.asked_of(got as u64)).unwrap();
    buf.as_slice().get(first..first + len).unwrap_or_default().to_vec()
}

#[test]
fn reads_end_with_the_file_and_go_to_the_disk_once() {
    for (offset, len, expected, calls) in [
        (0, 10_000, 10_000, 1),
        (1, 9_999, 9_999, 1),
        (9_999, 1, 1, 1),
        (9_999, 1000, 1, 1),
        (9_000, 100_000, 1000, 1),
        (10_000, 100, 0, 1),
        (10_300, 100, 0, 1),
        (1 << 30, 100, 0, 1),
    ] {
        let mut file = SimulatedFile::holding(10_000, aligned_to(512));
        let data = read_asked(&mut file, range(offset, len));
        let start = usize::try_from(offset).unwrap().min(10_000);
        assert_eq!(data, file.content[start..start + expected], "{len} at {offset}");
        assert_eq!(file.calls.len(), calls, "{len} at {offset}: {:?}", file.calls);
    }
}

#[test]
fn short_reads_go_on_only_where_they_are_aligned() {
    // 700 bytes are no place to go on from, 512 are; a read that brings nothing new is the last.
    let mut file = SimulatedFile::holding(10_000, aligned_to(512));
    file.at_most.extend([700, 1024, 4096]);
    assert_eq!(read_asked(&mut file, range(100, 9_000)), file.content[100..9100]);
    let starts: Vec<_> = file.calls.iter().map(|(_, range, _)| range.offset()).collect();
    assert_eq!(starts, [0, 512, 1536, 5632]);
    assert!(file.calls.iter().all(|(.., outcome)| outcome.is_ok()), "{:?}", file.calls);
}

#[test]
fn a_read_that_gets_no_further_ends() {
    for at_most in [0, 1, 511, 512] {
        let mut file = SimulatedFile::holding(10_000, aligned_to(4096));
        file.at_most.extend([at_most; 100]);
        assert_eq!(read_asked(&mut file, range(0, 8192)), file.content[..at_most]);
        assert!(file.calls.len() <= 2, "{:?}", file.calls);
    }
}

#[test]
fn going_on_keeps_the_memory_aligned_too() {
    let align = DioAlign::new(4096, 512, 512).unwrap();
    let mut file = SimulatedFile { align, ..SimulatedFile::holding(20_000, align) };
    file.at_most.extend([4608, 4608]);
    assert_eq!(read_asked(&mut file, range(512, 16_000)), file.content[512..16_512]);
    assert!(file.calls.iter().all(|(.., outcome)| outcome.is_ok()), "{:?}", file.calls);
}

#[test]
fn failed_reads_are_errors() {
    let mut file = SimulatedFile::holding(10_000, aligned_to(4096));
    let read = aligned_to(512).widen_read(range(512, 512)).unwrap();
    let error = file.read_direct(&mut [0; 512], &read).unwrap_err();
    assert_eq!(error, DataError(Errno::INVAL));
}

#[test]
#[should_panic(expected = "have no room")]
fn a_read_needs_room_for_the_widened_range() {
    let file = tempfile::tempfile().unwrap();
    let read = aligned_to(512).widen_read(range(0, 513)).unwrap();
    let _ = read_direct(std::os::fd::AsFd::as_fd(&file), &mut [0; 513], &read);
}

/// One write of the property test: where, how much, and how much the next calls take at most.
type RandomWrite = (u64, usize, Vec<usize>);

fn random_writes() -> impl Strategy<Value = Vec<RandomWrite>> {
    let offset = prop_oneof![0..200_000_u64, (0..400_u64).prop_map(|block| block * 512)];
    let len = prop_oneof![0..2000_usize, 0..150_000_usize];
    let at_most = prop_oneof![Just(usize::MAX), 0..100_000_usize];
    proptest::collection::vec((offset, len, proptest::collection::vec(at_most, 0..3)), 1..12)
}

proptest! {
    /// Whatever the alignment, shortness and room: what is reported as written is in the file, and
    /// nothing else has changed.
    #[test]
    fn writes_leave_what_a_plain_file_would_have(
        (demanded, believed) in prop_oneof![
            3 => prop_oneof![Just(512_u32), Just(4096), Just(65_536)].prop_map(|a| (a, a)),
            1 => Just((4096, 512)),
        ],
        writes in random_writes(),
        room in prop_oneof![2 => Just(usize::MAX), 1 => 0..250_000_usize],
    ) {
        let mut file = SimulatedFile::new(aligned_to(demanded));
        file.room = room;
        let mut model = Vec::new();
        for (seed, (offset, len, at_most)) in (0..).zip(writes) {
            let data = Placed::filled(len, offset, seed);
            let whole = range(offset, len as u64);
            let split = aligned_to(believed).split_write(whole, 4096);
            file.at_most = at_most.into();
            // A cached write that takes nothing is an error of its own, met elsewhere.
            file.at_most.retain(|bound| *bound > 0);
            file.calls.clear();

            let (written, failed) = match file.write_segments(&split.segments(), data.as_slice()) {
                Ok(done) => {
                    prop_assert_eq!(done.refused_direct, refused(&file));
                    (done.written, false)
                }
                Err(failed) => {
                    prop_assert_eq!(failed.error, DataError(Errno::NOSPC));
                    (failed.written, true)
                }
            };
            prop_assert_eq!(failed, written < len, "{} of {}", written, len);
            if failed {
                prop_assert_eq!(usize::try_from(offset).unwrap().saturating_add(written).max(room),
                    usize::try_from(offset).unwrap().saturating_add(written),
                    "there was room for more");
            }
            apply(&mut model, offset, &data.as_slice()[..written]);
            prop_assert!(file.content == model, "after {} at {}", len, offset);
            for (route, range, outcome) in &file.calls {
                let wrong = *route == Route::Direct && demanded == believed && outcome.is_err();
                prop_assert!(!wrong || *outcome == Err(Errno::NOSPC), "{:?} {:?}", range, outcome);
            }
        }
    }
}

proptest! {
    /// Parts, each at its place in memory, have the same outcome as the whole in one piece.
    #[test]
    fn parts_are_written_as_the_whole_would_be(
        align in prop_oneof![Just(512_u32), Just(4096)],
        offset in 0..20_000_u64,
        lens in prop::collection::vec(prop_oneof![1..200_usize, 1..60_000_usize], 1..12),
        room in prop_oneof![2 => Just(usize::MAX), 1 => 0..250_000_usize],
        at_most in prop::collection::vec(1..100_000_usize, 0..4),
    ) {
        let total = lens.iter().sum::<usize>();
        let whole = Placed::filled(total, offset, 5);
        let mut begin = 0;
        let parts: Vec<_> = lens.iter().map(|&len| {
            let mut part = Placed::new(len, offset + begin as u64);
            part.as_mut_slice().copy_from_slice(&whole.as_slice()[begin..begin + len]);
            begin += len;
            part
        }).collect();
        let parts: Vec<_> = parts.iter().map(Placed::as_slice).collect();
        let segments = aligned_to(align).split_write(range(offset, total as u64), 4096).segments();
        let file = || {
            let mut file = SimulatedFile::new(aligned_to(align));
            (file.room, file.at_most) = (room, at_most.clone().into());
            file
        };
        let (mut one, mut other) = (file(), file());
        let outcomes = [one.write_segments(&segments, whole.as_slice()),
            other.write_parts(&segments, &parts)].map(|done| done.map_err(|failed| failed.written));
        prop_assert_eq!(&outcomes[0], &outcomes[1]);
        prop_assert!(one.content == other.content);
        prop_assert_eq!(one.calls, other.calls);
        prop_assert!(outcomes[0].is_err() || !outcomes[0].unwrap().refused_direct);
    }
}

fn refused(file: &SimulatedFile) -> bool {
    file.calls.iter().any(|(.., outcome)| *outcome == Err(Errno::INVAL))
}

/// The write as it should be.
fn apply(model: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let start = usize::try_from(offset).unwrap();
    if data.is_empty() {
        return;
    }
    if model.len() < start + data.len() {
        model.resize(start + data.len(), 0);
    }
    model[start..start + data.len()].copy_from_slice(data);
}
