use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

use super::*;
use crate::{BufferPool, Holder};

const MIB: u64 = CHUNK_BYTES;
const SIZE: u64 = 100 * MIB;

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange::new(offset, len).unwrap()
}

fn version(changes: u64) -> FileVersion {
    FileVersion { changed: (1_000, 0), size: SIZE, changes }
}

fn budget(chunks: usize) -> ReadAheadBudget {
    ReadAheadBudget::new(chunks * (1 << 20))
}

/// A file, watched for changes.
#[derive(Default)]
struct Watched {
    watches: ChangeWatches,
    file: OnceLock<File>,
}

impl Watched {
    fn file(&self) -> &File {
        self.file.get_or_init(|| tempfile::tempfile().unwrap())
    }

    async fn complete(&self, pool: &Arc<BufferPool>, fill: Fill, byte: u8) {
        let len = usize::try_from(fill.range().len()).unwrap();
        let mut buffer = pool.take(Holder::OWN, len).await.unwrap();
        buffer.as_mut_slice()[..len].fill(byte);
        fill.watch(&self.watches, self.file().as_fd()).unwrap().complete(buffer, len);
    }
}

async fn complete(pool: &Arc<BufferPool>, fill: Fill, byte: u8) {
    Watched::default().complete(pool, fill, byte).await;
}

/// Reads in sequence until something is to be read ahead.
fn start(ahead: &ReadAhead, version: FileVersion, budget: &ReadAheadBudget) -> Ahead {
    assert!(ahead.note((1, range(0, MIB)), version, Some(budget)).fills.is_empty());
    ahead.note((1, range(MIB, MIB)), version, Some(budget))
}

#[tokio::test]
async fn a_stream_is_read_ahead_and_served() {
    let (pool, budget, ahead) = (BufferPool::new(64 << 20), budget(32), ReadAhead::default());
    let found = start(&ahead, version(0), &budget);
    let ranges: Vec<_> = found.fills.iter().map(Fill::range).collect();
    assert_eq!(ranges, [range(MIB, MIB), range(2 * MIB, MIB), range(3 * MIB, MIB)]);
    assert_eq!(found.chunks.len(), 1);
    assert!(found.chunks[0].data_now().is_none(), "it is on its way");
    for (fill, byte) in found.fills.into_iter().zip(1..) {
        complete(&pool, fill, byte).await;
    }
    assert_eq!(found.chunks[0].data().await.unwrap()[7], 1);
    let both = ahead.find(range(3 * MIB - 10, 20), version(0));
    let bytes: Vec<_> = both.iter().map(|chunk| chunk.data_now().unwrap()[0]).collect();
    assert_eq!(bytes, [2, 3]);
    assert!(ahead.find(range(4 * MIB - 10, 20), version(0)).is_empty());
}

#[tokio::test]
async fn a_changed_file_is_never_served_from_before() {
    let (pool, budget, ahead) = (BufferPool::new(64 << 20), budget(32), ReadAhead::default());
    for fill in start(&ahead, version(0), &budget).fills {
        complete(&pool, fill, 1).await;
    }
    let at = range(2 * MIB, MIB);
    assert_eq!(ahead.find(at, version(0)).len(), 1);
    assert!(ahead.find(at, version(1)).is_empty());
    assert!(ahead.find(at, FileVersion { changed: (1_000, 1), ..version(0) }).is_empty());
    assert!(ahead.find(at, FileVersion { size: SIZE - 1, ..version(0) }).is_empty());
    let found = ahead.note((1, at), version(1), Some(&budget));
    assert!(found.fills.iter().any(|fill| fill.range() == at), "read again");
}

/// The version is unchanged, as if the write had begun long before the chunk was read.
#[tokio::test]
async fn chunk_read_during_a_write_is_dropped_when_the_write_is_finished() {
    let (pool, budget, ahead) = (BufferPool::new(64 << 20), budget(32), ReadAhead::default());
    let watched = Watched::default();
    let found = start(&ahead, version(0), &budget);
    for fill in found.fills {
        watched.complete(&pool, fill, 1).await;
    }
    let at = range(MIB, 10);
    assert!(ahead.serve(at, &found.chunks, &watched.watches));
    watched.file().write_all_at(b"new", 0).unwrap();
    assert!(!ahead.serve(at, &found.chunks, &watched.watches));
    assert!(ahead.find(range(2 * MIB, MIB), version(0)).is_empty(), "nor any other chunk of it");
    // A chunk read after the write is valid.
    let again = ahead.note((1, range(MIB, MIB)), version(0), Some(&budget));
    for fill in again.fills {
        watched.complete(&pool, fill, 2).await;
    }
    assert!(ahead.serve(at, &again.chunks, &watched.watches));
    assert_eq!(again.chunks[0].data().await.unwrap()[0], 2);
}

#[tokio::test]
async fn a_dropped_fill_releases_its_waiters() {
    let (budget, ahead) = (budget(32), ReadAhead::default());
    let found = start(&ahead, version(0), &budget);
    let chunk = Arc::clone(&found.chunks[0]);
    let waiter = tokio::spawn(async move { chunk.data().await.is_none() });
    tokio::task::yield_now().await;
    drop(found.fills);
    assert!(waiter.await.unwrap());
    assert!(ahead.find(range(MIB, MIB), version(0)).is_empty());
    let again = ahead.note((1, range(MIB, MIB)), version(0), Some(&budget));
    assert!(!again.fills.is_empty(), "a chunk that was not begun may be tried again");
}

#[tokio::test]
async fn chunk_that_was_read_in_vain_is_not_read_again_until_it_is_trimmed_or_the_file_changes() {
    let (budget, ahead, watched) = (budget(32), ReadAhead::default(), Watched::default());
    let fail = |fills: Vec<Fill>| {
        for fill in fills {
            fill.watch(&watched.watches, watched.file().as_fd()).unwrap().fail();
        }
    };
    let at = range(MIB, MIB);
    let note = |changes| ahead.note((1, at), version(changes), Some(&budget));
    let begins = |found: &Ahead| found.fills.iter().any(|fill| fill.range() == at);
    let found = start(&ahead, version(0), &budget);
    assert!(begins(&found));
    let chunk = Arc::clone(&found.chunks[0]);
    fail(found.fills);
    assert!(chunk.data().await.is_none(), "its waiters read for themselves");
    for _ in 0..3 {
        ahead.trim(Instant::now());
        let found = note(0);
        assert!(!begins(&found) && found.chunks.is_empty());
        fail(found.fills);
    }
    let found = note(1);
    assert!(begins(&found), "the file was changed");
    fail(found.fills);
    assert!(!begins(&note(1)));
    ahead.trim(Instant::now() + UNUSED_MAX);
    assert!(begins(&note(1)));
}

#[test]
fn chunks_that_were_read_in_vain_take_no_room() {
    let (budget, ahead, watched) = (budget(4), ReadAhead::default(), Watched::default());
    let found = start(&ahead, version(0), &budget);
    assert_eq!(found.fills.len(), 3, "all that a client may have");
    for fill in found.fills {
        fill.watch(&watched.watches, watched.file().as_fd()).unwrap().fail();
    }
    drop(found.chunks);
    let next = ahead.note((1, range(2 * MIB, MIB)), version(0), Some(&budget));
    assert!(!next.fills.is_empty() && next.fills[0].range() == range(4 * MIB, MIB));
    assert_eq!(ahead.lock().as_ref().unwrap().chunks.len(), next.fills.len());
}

#[test]
fn chunk_that_is_queued_for_long_is_begun_by_another_client_and_not_by_its_own() {
    let (budget, ahead) = (budget(32), ReadAhead::default());
    let fills = start(&ahead, version(0), &budget).fills;
    let at = range(MIB, MIB);
    let begins = |client| {
        let found = ahead.note((client, at), version(0), Some(&budget));
        let begins = found.fills.iter().any(|fill| fill.range() == at);
        (begins, found.fills)
    };
    assert!(!begins(2).0, "it may leave the queue soon");
    std::thread::sleep(UNUSED_MAX);
    assert!(!begins(1).0);
    let (begins, others) = begins(2);
    assert!(begins);
    assert_eq!(ahead.note((2, at), version(0), None).chunks.len(), 1);
    drop((fills, others));
}

/// As on a disk that tries for a minute to read a bad sector.
#[test]
fn chunk_that_is_being_read_for_long_is_not_begun_again() {
    let (budget, ahead) = (budget(32), ReadAhead::default());
    let fills = start(&ahead, version(0), &budget).fills;
    ahead.trim(Instant::now() + 30 * UNUSED_MAX);
    let found = ahead.note((1, range(MIB, MIB)), version(0), Some(&budget));
    assert!(found.fills.iter().all(|fill| !fills.iter().any(|it| it.range() == fill.range())));
    assert_eq!(found.chunks.len(), 1);
    drop(fills);
}

#[tokio::test]
async fn chunk_on_its_way_is_waited_for_by_its_client_and_once_it_is_read_by_all() {
    let (budget, ahead) = (budget(32), ReadAhead::default());
    let (watched, pool) = (Watched::default(), BufferPool::new(64 << 20));
    let mut fills = start(&ahead, version(0), &budget).fills.into_iter();
    let at = range(MIB, MIB);
    let chunks = |client| ahead.note((client, at), version(0), None).chunks.len();
    assert_eq!((chunks(1), chunks(2)), (1, 0), "it may be queued behind other work of its client");
    let fill = fills.next().unwrap().watch(&watched.watches, watched.file().as_fd()).unwrap();
    assert_eq!((chunks(1), chunks(2)), (1, 1));
    fill.complete(pool.take(Holder::OWN, 1 << 20).await.unwrap(), 1 << 20);
    assert_eq!((chunks(1), chunks(2)), (1, 1));
}

#[test]
fn a_client_that_keeps_all_it_gets_leaves_room_to_others() {
    let budget = budget(8);
    let files: Vec<_> = (0..5).map(|_| ReadAhead::default()).collect();
    let mut kept = Vec::new();
    for (file, place) in files.iter().flat_map(|file| (0..4).map(move |place| (file, place))) {
        let ahead = file.note((1, range(place * MIB, MIB)), version(0), Some(&budget));
        assert_eq!(ahead.lacks_room, place > 0 && kept.len() + ahead.fills.len() == 6);
        kept.extend(ahead.fills);
    }
    assert_eq!(kept.len(), 6);
    let other = ReadAhead::default();
    let note = |place| other.note((2, range(place * MIB, MIB)), version(0), Some(&budget));
    note(0);
    let found = note(1);
    assert_eq!((found.fills.len(), found.lacks_room), (2, true), "all that is left");
}

#[test]
fn chunk_counts_to_the_client_that_it_is_sent_to() {
    let (budget, ahead) = (budget(4), ReadAhead::default());
    let found = start(&ahead, version(0), &budget);
    assert_eq!(found.fills.len(), 3);
    let others = || {
        let other = ReadAhead::default();
        other.note((2, range(0, MIB)), version(0), Some(&budget));
        other.note((2, range(MIB, MIB)), version(0), Some(&budget)).fills.len()
    };
    assert_eq!(others(), 1);
    ahead.lock().as_ref().unwrap().chunks.iter().for_each(|chunk| chunk.count_to(2));
    assert_eq!(others(), 0, "it has its part");
    let own = ReadAhead::default();
    own.note((1, range(0, MIB)), version(0), Some(&budget));
    assert_eq!(own.note((1, range(MIB, MIB)), version(0), Some(&budget)).fills.len(), 1);
    drop((ahead, found, own));
    assert_eq!(others(), 3);
    assert!(budget.take(1).is_some(), "none counts to it");
}

#[tokio::test]
async fn chunks_give_their_memory_back() {
    let (pool, budget, ahead) = (BufferPool::new(64 << 20), budget(3), ReadAhead::default());
    let found = start(&ahead, version(0), &budget);
    assert_eq!(found.fills.len(), 3);
    let more = ahead.note((1, range(2 * MIB, MIB)), version(0), Some(&budget));
    assert!(more.fills.is_empty(), "the budget is used up");
    drop(more);
    for fill in found.fills {
        complete(&pool, fill, 1).await;
    }
    let in_use = pool.bytes_in_use();
    assert!(ahead.serve(range(MIB, MIB), &found.chunks, &ChangeWatches::default()));
    drop(found.chunks);
    assert!(pool.bytes_in_use() < in_use, "a chunk that was read whole is dropped");
    assert_eq!(ahead.note((1, range(3 * MIB, MIB)), version(0), Some(&budget)).fills.len(), 1);
    ahead.trim(Instant::now() + UNUSED_MAX);
    assert_eq!(pool.bytes_in_use(), 0);
}

#[test]
fn without_a_budget_streams_are_only_noted() {
    let ahead = ReadAhead::default();
    ahead.note((1, range(0, 4096)), version(0), None);
    let found = ahead.note((1, range(4096, 4096)), version(0), None);
    assert!(found.fills.is_empty() && found.chunks.is_empty());
    assert!(!ahead.note((1, range(8192, 4096)), version(0), Some(&budget(32))).fills.is_empty());
}

#[test]
fn a_version_settles_after_a_while() {
    let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(ms);
    let version = FileVersion { changed: (100, 500_000_000), size: 0, changes: 0 };
    assert!(!version.has_settled(at(100_500)));
    assert!(!version.has_settled(at(101_499)));
    assert!(version.has_settled(at(101_500)));
    assert!(!version.has_settled(at(99_000)), "the clock was set back");
    assert!(FileVersion { changed: (-5, 0), ..version }.has_settled(at(0)));
}

#[tokio::test]
async fn no_chunk_of_several_streams_is_read_twice() {
    const STREAMS: u64 = 6;
    const READS: u64 = 40;
    let size = STREAMS * 256 * MIB;
    let version = FileVersion { size, ..version(0) };
    let (pool, budget, ahead) = (BufferPool::new(128 << 20), budget(64), ReadAhead::default());
    let (mut filled, mut unserved) = (0, 0);
    for read in 0..READS {
        for stream in 0..STREAMS {
            let at = range(stream * 256 * MIB + read * MIB, MIB);
            let found = ahead.note((1, at), version, Some(&budget));
            for fill in found.fills {
                filled += 1;
                complete(&pool, fill, 1).await;
            }
            unserved += u64::from(found.chunks.is_empty());
            assert!(ahead.serve(at, &found.chunks, &ChangeWatches::default()));
        }
    }
    let most = STREAMS * (READS + 9);
    assert!(filled <= most, "{filled} chunks were read for {most}");
    assert!(unserved <= 4 * STREAMS, "{unserved} READs found nothing");
}
