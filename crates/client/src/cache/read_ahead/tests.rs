use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use proto::nfs3::{Procedure, Status, Time};
use tokio::sync::Semaphore;

use super::*;
use crate::error::Error;
use crate::fixture::file_attributes;

const RSIZE: u32 = 64 << 10;
const CHUNK: u64 = RSIZE as u64;
const AHEAD: usize = 8;

/// A file at a simulated server.
#[derive(Clone)]
struct Source(Arc<Server>);

struct Server {
    file: Mutex<Bytes>,
    calls: Mutex<Vec<(u64, u32, Purpose)>>,
    /// Number of calls that the server answers; it delays the others.
    answers: Semaphore,
    /// Calls at these offsets fail, each once.
    failing: Mutex<BTreeSet<u64>>,
    /// Calls at these offsets get half of the data with `eof`, each once.
    ending_early: Mutex<BTreeSet<u64>>,
    /// The replies have the attributes of the file.
    has_attributes: bool,
    /// Bytes of a reply at most.
    reply_bytes_max: usize,
}

impl ReadSource for Source {
    async fn read(&self, offset: u64, count: u32, purpose: Purpose) -> Result<ReadPart> {
        self.0.calls.lock().unwrap().push((offset, count, purpose));
        self.0.answers.acquire().await.unwrap().forget();
        // Replies overtake each other.
        for _ in 0..offset.wrapping_mul(0x9e37_79b9) % 5 {
            tokio::task::yield_now().await;
        }
        if self.0.failing.lock().unwrap().remove(&offset) {
            return Err(Error::Nfs { procedure: Procedure::Read, status: Status::Io });
        }
        let file = self.0.file.lock().unwrap().clone();
        let at = usize::try_from(offset).unwrap().min(file.len());
        let end = file.len().min(at + (count as usize).min(self.0.reply_bytes_max));
        let size = file.len() as u64;
        let attributes = self.0.has_attributes.then(|| file_attributes(size, Time::default()));
        if self.0.ending_early.lock().unwrap().remove(&offset) {
            let data = file.slice(at..usize::midpoint(at, end));
            return Ok(ReadPart { attributes, eof: true, data });
        }
        Ok(ReadPart { attributes, eof: end == file.len(), data: file.slice(at..end) })
    }
}

impl Source {
    fn new(file: Bytes) -> Self {
        Self::with_replies_of(file, usize::MAX)
    }

    fn with_replies_of(file: Bytes, reply_bytes_max: usize) -> Self {
        Self::of_server(file, reply_bytes_max, true)
    }

    fn without_attributes(file: Bytes) -> Self {
        Self::of_server(file, usize::MAX, false)
    }

    fn of_server(file: Bytes, reply_bytes_max: usize, has_attributes: bool) -> Self {
        Self(Arc::new(Server {
            file: Mutex::new(file),
            calls: Mutex::default(),
            answers: Semaphore::new(Semaphore::MAX_PERMITS / 2),
            failing: Mutex::default(),
            ending_early: Mutex::default(),
            has_attributes,
            reply_bytes_max,
        }))
    }

    /// The server answers `calls` calls from now on.
    fn answer(&self, calls: usize) {
        self.0.answers.forget_permits(usize::MAX);
        self.0.answers.add_permits(calls);
    }

    fn replace(&self, file: Bytes) {
        *self.0.file.lock().unwrap() = file;
    }

    fn fail_at(&self, offset: u64) {
        self.0.failing.lock().unwrap().insert(offset);
    }

    fn end_early_at(&self, offset: u64) {
        self.0.ending_early.lock().unwrap().insert(offset);
    }

    /// The calls since the last use of this.
    fn calls(&self) -> Vec<(u64, u32, Purpose)> {
        std::mem::take(&mut *self.0.calls.lock().unwrap())
    }

    fn open(&self, budget: &Arc<ReadAheadBudget>) -> ReadAhead<Self> {
        let budget = Arc::clone(budget);
        let config = ReadAheadConfig { read_bytes: RSIZE, chunks_ahead: AHEAD, budget };
        ReadAhead::new(self.clone(), config)
    }
}

/// Bytes that differ between chunks and, by `seed`, between files.
fn content(len: u64, seed: u32) -> Bytes {
    static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        // A prime period, so that each chunk begins at another phase.
        (0..1_000_003_u32).map(|n| n.wrapping_mul(0x9e37_79b1).to_be_bytes()[0]).collect()
    });
    let start = seed as usize * 4099 % NOISE.len();
    let len = usize::try_from(len).unwrap();
    let mut bytes = NOISE[start..].to_vec();
    while bytes.len() < len {
        bytes.extend_from_slice(&NOISE);
    }
    bytes.truncate(len);
    bytes.into()
}

fn part(file: &Bytes, offset: u64, len: usize) -> Bytes {
    let at = usize::try_from(offset).unwrap().min(file.len());
    file.slice(at..file.len().min(at + len))
}

/// Runs all tasks until they wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn budget() -> Arc<ReadAheadBudget> {
    ReadAheadBudget::new(64 << 20)
}

#[tokio::test]
async fn a_file_is_read_once_in_whole_chunks() {
    let len = 40 * CHUNK + 1000;
    let file = content(len, 1);
    let source = Source::new(file.clone());
    let budget = budget();
    // Also with reads that are not aligned to chunks.
    for step in [4096, 10_000, RSIZE as usize, 1 << 20] {
        let reader = source.open(&budget);
        let mut at = 0;
        while at < len {
            let data = reader.read(at, step, len).await.unwrap();
            assert!(data == part(&file, at, step), "at {at}");
            at += data.len() as u64;
            assert!(budget.used_bytes() <= (AHEAD + 2) * RSIZE as usize + (1 << 20));
        }
        let mut calls = source.calls();
        if step < RSIZE as usize {
            assert_eq!(calls.remove(0), (0, u32::try_from(step).unwrap(), Purpose::Asked));
        }
        calls.sort_unstable_by_key(|(offset, ..)| *offset);
        let chunks: Vec<_> = calls.iter().map(|(offset, count, _)| (*offset, *count)).collect();
        assert_eq!(chunks, (0..=40).map(|n| (n * CHUNK, RSIZE)).collect::<Vec<_>>());
        drop(reader);
        assert_eq!(budget.used_bytes(), 0);
    }
}

#[tokio::test]
async fn the_window_is_full_at_once() {
    let len = 100 * CHUNK;
    let source = Source::new(content(len, 1));
    let reader = source.open(&budget());
    reader.read(0, RSIZE as usize, len).await.unwrap();
    settle().await;
    assert_eq!(source.calls().len(), 1 + AHEAD);
    // Each chunk that is read makes room for another.
    reader.read(CHUNK, RSIZE as usize, len).await.unwrap();
    settle().await;
    let ahead = (CHUNK * (1 + AHEAD as u64), RSIZE, Purpose::Ahead);
    assert_eq!(source.calls(), [ahead]);
}

#[tokio::test]
async fn a_request_within_a_chunk_is_not_copied() {
    let file = content(10 * CHUNK, 1);
    let source = Source::new(file.clone());
    let reader = source.open(&budget());
    for at in [0, CHUNK, CHUNK + 4096] {
        let data = reader.read(at, 4096 << u32::from(at == 0), 10 * CHUNK).await.unwrap();
        assert_eq!(data.as_ptr(), part(&file, at, 1).as_ptr());
    }
}

#[tokio::test]
async fn concurrent_reads_out_of_order_form_a_stream() {
    let len = 32 * CHUNK;
    let file = content(len, 1);
    let source = Source::new(file.clone());
    let reader = source.open(&budget());
    let step = 16 << 10;
    let offsets = (0..len / bytes_u64(step)).map(|n| (n ^ 3) * bytes_u64(step));
    let mut at_work = VecDeque::new();
    let reader = Arc::new(reader);
    for at in offsets {
        let (reader, file) = (Arc::clone(&reader), file.clone());
        at_work.push_back(tokio::spawn(async move {
            let data = reader.read(at, step, len).await.unwrap();
            assert!(data == part(&file, at, step), "at {at}");
        }));
        if at_work.len() == 8 {
            at_work.pop_front().unwrap().await.unwrap();
        }
    }
    for task in at_work {
        task.await.unwrap();
    }
    let small = source.calls().iter().filter(|(_, count, _)| *count != RSIZE).count();
    // Those of the first two groups, until one continues another.
    assert!(small < 8, "{small} requests were asked for by themselves");
}

#[tokio::test]
async fn random_reads_cause_no_read_ahead() {
    let len = 512 * CHUNK;
    let file = content(len, 1);
    let source = Source::new(file.clone());
    let reader = source.open(&budget());
    for n in 1..200 {
        let at = n * 104_729 * 4096 % (len - 4096);
        assert!(reader.read(at, 4096, len).await.unwrap() == part(&file, at, 4096));
    }
    settle().await;
    let calls = source.calls();
    assert_eq!(calls.len(), 199);
    assert!(calls.iter().all(|(_, count, purpose)| (*count, *purpose) == (4096, Purpose::Asked)));
}

#[tokio::test]
async fn several_streams_of_one_file_are_read_ahead() {
    let len = 64 * CHUNK;
    let file = content(len, 1);
    let source = Source::new(file.clone());
    let reader = source.open(&budget());
    let starts = [0, 20 * CHUNK, 40 * CHUNK];
    let step = RSIZE as usize / 2;
    for n in 0..24 {
        for start in starts {
            let at = start + n * bytes_u64(step);
            let data = reader.read(at, step, len).await.unwrap();
            assert!(data == part(&file, at, step));
        }
    }
    settle().await;
    // Each chunk once, and the three reads that showed where a stream begins.
    let calls = source.calls();
    assert_eq!(calls.iter().filter(|(_, count, _)| *count == RSIZE).count(), 3 * (12 + AHEAD));
    assert_eq!(calls.len(), 3 * (12 + AHEAD) + 3);
}

#[tokio::test]
async fn short_replies_are_completed_and_the_end_is_exact() {
    let len = 3 * CHUNK + 777;
    let file = content(len, 1);
    let source = Source::with_replies_of(file.clone(), 10_000);
    let reader = source.open(&budget());
    // The size that the caller passes has no effect.
    for believed in [0, len - 1, len, len + 1, 100 * CHUNK] {
        for at in [0, CHUNK, 3 * CHUNK, 3 * CHUNK + 700, len - 1, len, len + 1, len + CHUNK] {
            let data = reader.read(at, RSIZE as usize, believed).await.unwrap();
            assert!(data == part(&file, at, RSIZE as usize), "at {at}, believed {believed}");
        }
    }
    assert!(reader.read(u64::MAX - 1, 10, len).await.unwrap().is_empty());
    assert!(reader.read(0, 0, len).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_end_of_file_before_its_end_is_read_on() {
    let len = 20 * CHUNK + 777;
    let file = content(len, 1);
    for source in [Source::new(file.clone()), Source::without_attributes(file.clone())] {
        for early in [0, CHUNK, 7 * CHUNK, 20 * CHUNK] {
            source.end_early_at(early);
        }
        let reader = source.open(&budget());
        let mut at = 0;
        while at < len {
            let data = reader.read(at, RSIZE as usize, len).await.unwrap();
            assert!(data == part(&file, at, RSIZE as usize), "at {at}");
            at += data.len() as u64;
        }
        assert!(reader.read(at, RSIZE as usize, len).await.unwrap().is_empty());
        // Reads outside of streams.
        source.end_early_at(1000);
        let random = source.open(&budget()).read(1000, 500, len).await.unwrap();
        assert!(random == part(&file, 1000, 500));
    }
}

#[tokio::test]
async fn an_end_of_file_costs_one_more_read_only_without_attributes() {
    let file = content(1000, 1);
    for (source, reads) in
        [(Source::new(file.clone()), 1), (Source::without_attributes(file.clone()), 2)]
    {
        let data = source.open(&budget()).read(0, RSIZE as usize, 1000).await.unwrap();
        assert!(data == file);
        assert_eq!(source.calls().len(), reads);
    }
}

/// A server whose replies have one byte each, in records of 4 KiB.
#[derive(Clone, Default)]
struct Trickle {
    /// Records that are held now, and at most.
    held: Arc<AtomicUsize>,
    held_max: Arc<AtomicUsize>,
}

impl ReadSource for Trickle {
    async fn read(&self, _: u64, _: u32, _: Purpose) -> Result<ReadPart> {
        let held = self.held.fetch_add(1, Ordering::Relaxed) + 1;
        self.held_max.fetch_max(held, Ordering::Relaxed);
        let record = Bytes::from_owner(Record([7; 4096], Arc::clone(&self.held)));
        Ok(ReadPart { attributes: None, eof: false, data: record.slice(100..101) })
    }
}

/// Memory that is counted until it is dropped.
struct Record([u8; 4096], Arc<AtomicUsize>);

impl AsRef<[u8]> for Record {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn short_replies_do_not_hold_their_records() {
    let source = Trickle::default();
    let config = ReadAheadConfig { read_bytes: 1000, chunks_ahead: 0, budget: budget() };
    let reader = ReadAhead::new(source.clone(), config);
    assert_eq!(reader.read(0, 999, 1000).await.unwrap(), vec![7; 999]);
    let (held, held_max) = (source.held.load(Ordering::Relaxed), source.held_max);
    assert_eq!((held, held_max.load(Ordering::Relaxed)), (0, 1));
}

#[tokio::test]
async fn a_reply_without_data_or_eof_is_an_error() {
    let source = Source::with_replies_of(content(CHUNK, 1), 0);
    let reader = source.open(&budget());
    let error = reader.read(0, 10, CHUNK).await.unwrap_err();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

#[tokio::test]
async fn an_error_is_returned_to_readers_of_the_range_and_not_cached() {
    let len = 20 * CHUNK;
    let file = content(len, 1);
    let source = Source::new(file.clone());
    let reader = source.open(&budget());
    source.fail_at(3 * CHUNK);
    source.answer(0);
    let waiting = [0, 2, 3, 4].map(|n| reader.read(n * CHUNK, RSIZE as usize, len));
    let [first, second, failing, fourth] = waiting;
    let all = async { tokio::join!(first, second, failing, fourth) };
    let answer = async {
        settle().await;
        source.answer(1000);
    };
    let ((first, second, failing, fourth), ()) = tokio::join!(all, answer);
    assert!(first.unwrap() == part(&file, 0, RSIZE as usize));
    assert!(second.unwrap() == part(&file, 2 * CHUNK, RSIZE as usize));
    assert!(failing.unwrap_err().is(Status::Io));
    assert!(fourth.unwrap() == part(&file, 4 * CHUNK, RSIZE as usize));
    let again = reader.read(3 * CHUNK, RSIZE as usize, len).await.unwrap();
    assert!(again == part(&file, 3 * CHUNK, RSIZE as usize));

    // An error of read-ahead reaches no reader.
    source.fail_at(10 * CHUNK);
    let mut at = 4 * CHUNK;
    while at < len {
        assert!(reader.read(at, 4096, len).await.unwrap() == part(&file, at, 4096));
        settle().await;
        at += 4096;
    }
}

#[tokio::test]
async fn a_cancelled_reader_leaves_its_chunk_to_others() {
    let len = 20 * CHUNK;
    let file = content(len, 1);
    let source = Source::new(file.clone());
    let reader = source.open(&budget());
    source.answer(0);
    let impatient = reader.read(0, RSIZE as usize, len);
    assert!(tokio::time::timeout(Duration::from_millis(1), impatient).await.is_err());
    source.answer(1000);
    assert!(reader.read(0, RSIZE as usize, len).await.unwrap() == part(&file, 0, RSIZE as usize));
    let calls = source.calls();
    assert_eq!(calls.iter().filter(|(offset, ..)| *offset == 0).count(), 1);
}

#[tokio::test]
async fn data_requested_before_an_invalidation_is_not_returned() {
    let len = 20 * CHUNK;
    let (old, new) = (content(len, 1), content(len, 2));
    let source = Source::new(old.clone());
    let reader = source.open(&budget());
    // Fetched chunks.
    assert!(reader.read(0, RSIZE as usize, len).await.unwrap() == part(&old, 0, RSIZE as usize));
    settle().await;
    source.replace(new.clone());
    reader.invalidate();
    let data = reader.read(CHUNK, RSIZE as usize, len).await.unwrap();
    assert!(data == part(&new, CHUNK, RSIZE as usize));

    // Chunks in flight, with waiting readers.
    source.answer(0);
    let (from, next) = (10 * CHUNK, 11 * CHUNK);
    let waiting = async {
        tokio::join!(reader.read(from, RSIZE as usize, len), reader.read(next, RSIZE as usize, len))
    };
    let change = async {
        settle().await;
        source.calls();
        source.replace(old.clone());
        reader.invalidate();
        settle().await;
        source.answer(1000);
    };
    let ((_, waited), ()) = tokio::join!(waiting, change);
    assert!(waited.unwrap() == part(&old, next, RSIZE as usize));
    assert!(source.calls().contains(&(next, RSIZE, Purpose::Asked)), "asked for again");
}

/// One task changes the file while others read it on other threads: no read returns data that was
/// replaced before the read began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_read_is_older_than_the_last_invalidation() {
    let len = 16 * CHUNK;
    let version = |n: u8| Bytes::from(vec![n; RSIZE as usize * 16]);
    let source = Source::new(version(0));
    let reader = Arc::new(source.open(&budget()));
    let published = Arc::new(AtomicU8::new(0));
    let readers: Vec<_> = (0..4)
        .map(|n| {
            let (reader, published) = (Arc::clone(&reader), Arc::clone(&published));
            tokio::spawn(async move {
                let (mut at, mut newest) = (n * 4 * CHUNK, 0);
                while newest < 100 {
                    let oldest = published.load(Ordering::SeqCst);
                    let data = reader.read(at, 100_000, len).await.unwrap();
                    assert!(data.iter().all(|byte| *byte >= oldest), "older than {oldest}");
                    newest = oldest;
                    at = (at + 100_000) % (len - 100_000);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for n in 1..=100 {
        source.replace(version(n));
        reader.invalidate();
        published.store(n, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    for reader in readers {
        reader.await.unwrap();
    }
}

#[tokio::test]
async fn a_grown_file_is_read_beyond_its_old_end() {
    let (short, long) = (CHUNK + 10, 3 * CHUNK);
    let file = content(long, 1);
    let source = Source::new(file.slice(..usize::try_from(short).unwrap()));
    let reader = source.open(&budget());
    let data = reader.read(0, 2 * RSIZE as usize, short).await.unwrap();
    assert!(data == part(&file, 0, data.len()) && data.len() as u64 == short);
    reader.read(CHUNK, 1, short).await.unwrap();
    source.replace(file.clone());
    let data = reader.read(CHUNK, RSIZE as usize, long).await.unwrap();
    assert!(data == part(&file, CHUNK, RSIZE as usize));
}

#[tokio::test]
async fn all_files_together_stay_within_the_budget() {
    let bytes_max = 10 * RSIZE as usize;
    // However slow the machine is, no file counts as idle.
    let budget = ReadAheadBudget::with_idle_after(bytes_max, Duration::MAX);
    let len = 30 * CHUNK;
    let file = content(len, 1);
    let source = Source::new(file.clone());
    let readers: Vec<_> = (0..5).map(|_| source.open(&budget)).collect();
    for at in (0..len).step_by(RSIZE as usize) {
        for reader in &readers {
            let data = reader.read(at, RSIZE as usize, len).await.unwrap();
            assert!(data == part(&file, at, RSIZE as usize));
            assert!(budget.used_bytes() <= bytes_max);
        }
        settle().await;
    }
    assert_eq!(source.calls().len(), 5 * 30, "and nothing is fetched twice");
    drop(readers);
    assert_eq!(budget.used_bytes(), 0);

    let none = ReadAheadBudget::new(0);
    let reader = source.open(&none);
    for at in (0..len).step_by(RSIZE as usize) {
        let data = reader.read(at, RSIZE as usize, len).await.unwrap();
        assert!(data == part(&file, at, RSIZE as usize));
    }
    assert_eq!(source.calls().len(), 30);
}

#[tokio::test]
async fn an_idle_file_makes_room() {
    // Long against the time between the reads of both files on a busy machine.
    let idle_after = Duration::from_secs(1);
    let budget = ReadAheadBudget::with_idle_after(AHEAD * RSIZE as usize, idle_after);
    let len = 30 * CHUNK;
    let source = Source::new(content(len, 1));
    let [left, wanted] = [(); 2].map(|()| source.open(&budget));
    left.read(0, RSIZE as usize, len).await.unwrap();
    settle().await;
    assert!(budget.used_bytes() >= (AHEAD - 1) * RSIZE as usize);
    source.calls();
    wanted.read(0, RSIZE as usize, len).await.unwrap();
    settle().await;
    assert!(source.calls().len() < 3, "the other is at work");
    tokio::time::sleep(2 * idle_after).await;
    wanted.read(CHUNK, RSIZE as usize, len).await.unwrap();
    settle().await;
    assert!(source.calls().len() >= AHEAD - 1, "the other had its time");
}

#[derive(Clone, Debug)]
enum Step {
    /// Continues where the last read of this stream ended.
    Continue {
        stream: usize,
        len: usize,
    },
    Read {
        offset: u64,
        len: usize,
    },
    /// The file gets new content of another length.
    Replace {
        len: u64,
    },
    Fail {
        chunk: u64,
    },
    /// A READ of this chunk has `eof` in the middle.
    EndEarly {
        chunk: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = || prop_oneof![1..5000_usize, 1..300_000_usize];
    let step = prop_oneof![
        12 => (0..3_usize, len()).prop_map(|(stream, len)| Step::Continue { stream, len }),
        3 => (0..40 * CHUNK, len()).prop_map(|(offset, len)| Step::Read { offset, len }),
        1 => (0..40 * CHUNK).prop_map(|len| Step::Replace { len }),
        1 => (0..40_u64).prop_map(|chunk| Step::Fail { chunk }),
        1 => (0..40_u64).prop_map(|chunk| Step::EndEarly { chunk }),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Takes the steps, with concurrent reads between two changes, and compares each with the file.
async fn take(steps: Vec<Step>, reply_bytes_max: usize, budget_chunks: usize) {
    let budget = ReadAheadBudget::new(budget_chunks * RSIZE as usize);
    let mut file = content(30 * CHUNK, 0);
    let source = Source::with_replies_of(file.clone(), reply_bytes_max);
    let reader = Arc::new(source.open(&budget));
    let mut positions = [0, 10 * CHUNK, 25 * CHUNK];
    let mut reads = VecDeque::<tokio::task::JoinHandle<()>>::new();
    for (n, step) in (1..).zip(steps) {
        let (offset, len) = match step {
            Step::Continue { stream, len } => {
                positions[stream] += len as u64;
                (positions[stream] - len as u64, len)
            }
            Step::Read { offset, len } => (offset, len),
            Step::Replace { len } => {
                while let Some(read) = reads.pop_front() {
                    read.await.unwrap();
                }
                file = content(len, n);
                source.replace(file.clone());
                reader.invalidate();
                continue;
            }
            Step::Fail { chunk } => {
                source.fail_at(chunk * CHUNK);
                continue;
            }
            Step::EndEarly { chunk } => {
                source.end_early_at(chunk * CHUNK);
                continue;
            }
        };
        let (reader, file, size) = (Arc::clone(&reader), file.clone(), file.len() as u64);
        reads.push_back(tokio::spawn(async move {
            match reader.read(offset, len, size).await {
                Ok(data) => assert!(data == part(&file, offset, len), "{len} at {offset}"),
                Err(error) => assert!(error.is(Status::Io)),
            }
        }));
        if reads.len() == 4 {
            reads.pop_front().unwrap().await.unwrap();
        }
        assert!(budget.used_bytes() <= budget_chunks * RSIZE as usize);
    }
    for read in reads {
        read.await.unwrap();
    }
    drop(reader);
    settle().await;
    assert_eq!(budget.used_bytes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn bytes_are_those_of_the_file(
        steps in steps(),
        reply_bytes_max in prop_oneof![Just(usize::MAX), 5_000..200_000_usize],
        budget_chunks in 0..20_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(take(steps, reply_bytes_max, budget_chunks));
    }
}
