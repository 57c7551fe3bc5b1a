//! Each way that a READ or WRITE can take has its counter, which moves then and only then.

use proto::nfs3::*;
use rustix::param::page_size;
use spillway_server::counters::Counter::{self, *};

use crate::client::{Client, ok, refusal};
use crate::fixture::{Fixture, Mounted, in_modes, is_root};
use crate::local_file::{LocalFile, content};
use crate::skip::skip_in_ci_too;

/// All counters of a route. (How long a READ took decides which thread served it, which is none.)
const WAYS: [Counter; 20] = [
    ReadsCachedByMode,
    ReadsCachedInFreeMemory,
    ReadsCachedAsReread,
    ReadsResident,
    ReadsDontcache,
    ReadsDirect,
    ReadsWidened,
    ReadsWithoutDirect,
    ReadsSpliced,
    DirectRefused,
    DirectReadsFailed,
    WritesCachedByMode,
    WritesCachedInFreeMemory,
    WritesWindowByMode,
    WritesWindowAsSmall,
    WritesWindowWithoutDirect,
    WritesWindowAsStream,
    WritesWindowUnderPressure,
    WritesDirect,
    WritesSplit,
];
/// The counters of bytes of WRITEs by path.
const BYTES_WRITTEN: [Counter; 3] = [WritePageCacheBytes, WriteWindowBytes, WriteDirectBytes];
const FILE_BYTES: usize = (2 << 20) + 100;

/// Runs `action`; returns the routes counted meanwhile, each as often as it was.
fn counted(fixture: &Fixture, action: impl FnOnce()) -> Vec<Counter> {
    let before = WAYS.map(|way| fixture.counter(way));
    action();
    let mut moved = Vec::new();
    for (way, before) in WAYS.into_iter().zip(before) {
        moved.extend((before..fixture.counter(way)).map(|_| way));
    }
    moved
}

fn serving(settings: &str) -> (Fixture, LocalFile, Client, FileHandle) {
    let fixture = Fixture::in_modes(settings, "auto", "auto");
    let local = LocalFile::create(&fixture.exported("f"), &content(1, 0, FILE_BYTES));
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    (fixture, local, client, file)
}

#[test]
fn reads_are_counted_by_path() {
    let settings = "read_ahead = false\nsplice = false";
    let (fixture, local, mut client, file) = serving(settings);
    if !local.is_on_disk() {
        return;
    }
    let (cold, hot) = (false, true);
    let end = FILE_BYTES as u64;
    let cases: [(&str, bool, u64, u32, &[Counter]); 15] = [
        ("buffered", cold, 0, 4096, &[ReadsCachedByMode]),
        ("buffered", hot, 1, 65_536, &[ReadsCachedByMode]),
        ("buffered", hot, end, 4096, &[]),
        ("dontcache", cold, 0, 65_536, &[ReadsDontcache]),
        ("dontcache", hot, 47_008, 47_008, &[ReadsDontcache]),
        ("dontcache", hot, 0, 0, &[]),
        ("direct", cold, 0, 65_536, &[ReadsDirect]),
        ("direct", hot, 65_536, 65_536, &[ReadsDirect]),
        ("direct", cold, 47_009, 47_008, &[ReadsDirect, ReadsWidened]),
        ("direct", cold, end - 100, 4096, &[ReadsDirect, ReadsWidened]),
        ("direct", cold, end, 4096, &[]),
        ("direct", cold, 0, 0, &[]),
        ("auto", hot, 0, 4096, &[ReadsResident]),
        ("auto", hot, 47_008, 47_008, &[ReadsResident]),
        ("auto", hot, end + 1, 47_008, &[]),
    ];
    for (mode, is_hot, offset, count, expected) in cases {
        fixture.reload(&in_modes(settings, mode, "auto"));
        local.forget();
        if is_hot {
            local.content();
        }
        let before = fixture.counter(ReadBytes);
        let mut read = 0;
        let ways = counted(&fixture, || {
            read = client.read(file, offset, count).unwrap().data.len();
        });
        assert_eq!(ways, expected, "{count} at {offset} in {mode}");
        assert_eq!(fixture.counter(ReadBytes) - before, read as u64);
    }
    // How much memory is free decides what becomes of the rest. Where it is to stay in memory, the
    // page cache is tried first, which has the kernel read ahead: a fast disk is done before the
    // try.
    fixture.reload(&in_modes(settings, "auto", "auto"));
    local.forget();
    let inline = fixture.counter(ReadsInline);
    let ways = counted(&fixture, || drop(client.read(file, 0, 65_536).unwrap()));
    if fixture.counter(ReadsInline) > inline {
        assert_eq!(ways, [ReadsResident]);
    } else {
        let fair = [[ReadsCachedInFreeMemory], [ReadsCachedAsReread], [ReadsDirect]];
        assert!(fair.iter().any(|fair| ways == fair), "{ways:?}");
    }
}

#[test]
fn spliced_reads_are_also_counted_by_path() {
    let (fixture, local, mut client, file) = serving("read_ahead = false");
    for (mode, way) in [("buffered", ReadsCachedByMode), ("auto", ReadsResident)] {
        fixture.reload(&in_modes("read_ahead = false", mode, "auto"));
        local.content();
        let ways = counted(&fixture, || drop(client.read(file, 5, 65_536).unwrap()));
        assert_eq!(ways, [way, ReadsSpliced], "{mode}");
    }
}

/// Bytes of a WRITE that lie in pages which it has in part.
fn ragged_bytes(offset: u64, len: u64) -> u64 {
    let page = page_size() as u64;
    let whole = (offset + len) / page * page - offset.next_multiple_of(page);
    len - whole
}

#[test]
fn writes_are_counted_by_path() {
    let (fixture, local, mut client, file) = serving("");
    if !local.is_on_disk() {
        return;
    }
    let cases: [(&str, u64, usize, &[Counter]); 12] = [
        ("buffered", 0, 5000, &[WritesCachedByMode]),
        ("buffered", 0, 1 << 20, &[WritesCachedByMode]),
        ("dontcache", 1, 1, &[WritesWindowByMode]),
        ("dontcache", 4096, 1 << 20, &[WritesWindowByMode]),
        ("direct", 0, 4096, &[WritesWindowAsSmall]),
        ("direct", 0, (512 << 10) - 1, &[WritesWindowAsSmall]),
        ("direct", 0, 512 << 10, &[WritesDirect]),
        ("direct", 1, 512 << 10, &[WritesDirect, WritesSplit]),
        ("direct", 4096, (512 << 10) + 1, &[WritesDirect, WritesSplit]),
        ("direct", 5 << 20, 1 << 20, &[WritesDirect]),
        ("buffered", 0, 0, &[]),
        ("direct", 0, 0, &[]),
    ];
    for (mode, offset, len, expected) in cases {
        fixture.reload(&in_modes("", "auto", mode));
        let in_all = fixture.counter(WriteBytes);
        let before = BYTES_WRITTEN.map(|path| fixture.counter(path));
        let ways = counted(&fixture, || {
            ok(client.write(file, offset, &vec![1; len]));
        });
        assert_eq!(ways, expected, "{len} at {offset} in {mode}");
        let bytes = len as u64;
        assert_eq!(fixture.counter(WriteBytes) - in_all, bytes);
        let ragged = if ways.contains(&WritesSplit) { ragged_bytes(offset, bytes) } else { 0 };
        let expected = match ways.first() {
            Some(WritesCachedByMode) => [bytes, 0, 0],
            Some(WritesDirect) => [0, ragged, bytes - ragged],
            _ => [0, bytes, 0],
        };
        let after = BYTES_WRITTEN.map(|path| fixture.counter(path));
        let moved: Vec<_> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(moved, expected, "{len} at {offset} in {mode}");
    }
    fixture.reload(&in_modes("", "auto", "auto"));
    let ways = counted(&fixture, || {
        for i in 0..10 {
            ok(client.write(file, i << 20, &vec![1; 1 << 20]));
        }
    });
    let streamed = ways.iter().filter(|way| **way == WritesWindowAsStream).count();
    assert_eq!((ways.len(), streamed), (10, 3), "from the eighth MiB on: {ways:?}");
}

/// The ways of 160 WRITEs of 40 writers, one after the other, after twice as many.
fn ways_of_many_writers(record_bytes: usize) -> Option<Vec<Counter>> {
    let (fixture, local, mut client, file) = serving("");
    if !local.is_on_disk() {
        return None;
    }
    let (writers, record) = (40, vec![1; record_bytes]);
    let mut write = |rounds: std::ops::Range<u64>| {
        counted(&fixture, || {
            for round in rounds {
                // Each writer is some rounds behind the one before it, and they come in no order.
                for step in 0..writers {
                    let writer = step * 17 % writers;
                    let place = (round + writer % 3) * writers + writer;
                    ok(client.write(file, place * record.len() as u64, &record));
                }
            }
        })
    };
    write(0..8);
    Some(write(8..12))
}

#[test]
fn large_writes_of_many_writers_go_through_the_window() {
    if let Some(ways) = ways_of_many_writers(150_000) {
        assert_eq!(ways, [WritesWindowAsStream; 160]);
    }
}

#[test]
fn small_writes_of_many_writers_that_come_alone_go_to_free_memory() {
    if let Some(ways) = ways_of_many_writers(47_008) {
        if ways.contains(&WritesWindowUnderPressure) {
            return skip_in_ci_too("there is too little free memory");
        }
        assert_eq!(ways, [WritesCachedInFreeMemory; 160]);
    }
}

#[test]
fn streams_with_gaps_beyond_the_window_go_to_free_memory() {
    let (fixture, local, mut client, file) = serving("window = \"8MiB\"");
    if !local.is_on_disk() {
        return;
    }
    let record = vec![1; 256 << 10];
    let mut records = (0..).map(|i| i * 2 * record.len() as u64);
    let mut write = |count| {
        counted(&fixture, || {
            for offset in records.by_ref().take(count) {
                ok(client.write(file, offset, &record));
            }
        })
    };
    let beginning = write(200);
    let streamed = beginning.iter().filter(|way| **way == WritesWindowAsStream).count();
    assert!((1..100).contains(&streamed), "{streamed} of {}", beginning.len());
    let end = write(50);
    if end.contains(&WritesWindowUnderPressure) {
        return skip_in_ci_too("there is too little free memory");
    }
    assert_eq!(end, [WritesCachedInFreeMemory; 50]);
}

#[test]
fn impossible_direct_io_is_counted() {
    if !is_root() {
        return;
    }
    let config = in_modes("", "direct", "direct");
    let over = Fixture::over(&config, |dir| Mounted::tmpfs_export(dir, 8 << 10));
    let Some((fixture, _mount)) = over else { return };
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let data = content(1, 0, 600_007);
    let ways = counted(&fixture, || {
        ok(client.write(file, 0, &data));
    });
    assert_eq!(ways, [WritesWindowWithoutDirect]);
    let ways = counted(&fixture, || {
        assert!(client.read(file, 7, 600_000).unwrap().data == data[7..]);
    });
    assert_eq!(ways, [ReadsDontcache, ReadsWithoutDirect]);
    ok(client.commit(file));
}

#[test]
fn late_writes_and_new_listings_are_counted() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let is_counted = |counter, count| assert_eq!(fixture.counter(counter), count, "{counter:?}");
    for offset in [0, 100, 300, 400] {
        ok(client.write(file, offset, &[1; 100]));
    }
    is_counted(WritesOutOfOrder, 0);
    ok(client.write(file, 200, &[1; 100]));
    is_counted(WritesOutOfOrder, 1);

    let page = client.readdir(root, 0, 4096).unwrap();
    let last = page.names.last().unwrap().cookie;
    client.readdir(root, last, 4096).unwrap();
    is_counted(Readdirs, 2);
    is_counted(ReaddirsFromStart, 1);
}

#[test]
fn a_thread_stays_with_a_client_that_writes_one_by_one() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let data = content(1, 0, 47_008);
    // A streak is one if there is little time between its WRITEs, also on a busy machine.
    let mut offset = 0;
    while fixture.counter(WritesByStayingThread) < 3 {
        assert!(offset < 2_000 * 47_008, "no thread has stayed");
        let done = ok(client.write(file, offset, &data));
        assert_eq!(done.count, 47_008);
        offset += 47_008;
    }
    // Whatever else comes is answered too.
    assert_eq!(client.getattr(file).unwrap().size, offset);
    let last = client.read(file, offset - 47_008, 47_008).unwrap();
    assert!(last.data == data);
    std::thread::sleep(std::time::Duration::from_millis(20));
    ok(client.write(file, offset, &data));
    ok(client.commit(file));
}

#[test]
fn a_thread_stays_with_a_client_that_reads_and_asks_for_attributes() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let data = content(1, 0, 16 * 47_008);
    ok(client.write(file, 0, &data));
    let mut rounds = 0;
    // A streak is one if there is little time between its calls, also on a busy machine.
    while fixture.counter(ReadsByStayingThread) < 3
        || fixture.counter(MetadataCallsByStayingThread) < 3
    {
        assert!(rounds < 2_000, "no thread has stayed");
        let at = rounds % 16 * 47_008;
        let read = client.read(file, at as u64, 47_008).unwrap();
        assert!(read.data == data[at..][..47_008]);
        assert_eq!(client.getattr(file).unwrap().size, data.len() as u64);
        assert_eq!(client.lookup(root, b"f").unwrap().object, file);
        rounds += 1;
    }
    // Replies show the changes of local programs.
    std::fs::write(fixture.exported("f"), "changed").unwrap();
    assert_eq!(client.getattr(file).unwrap().size, 7);
    assert_eq!(client.read(file, 0, 47_008).unwrap().data, b"changed");
}

#[test]
fn a_thread_stays_with_a_client_that_lists_part_by_part() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let names: Vec<String> = (0..200).map(|number| format!("file-{number}")).collect();
    for name in &names {
        std::fs::write(fixture.exported(name), "").unwrap();
    }
    // A streak is one if there is little time between its calls, also on a busy machine.
    let mut rounds = 0;
    while fixture.counter(MetadataCallsByStayingThread) < 3 {
        assert!(rounds < 500, "no thread has stayed");
        let listed = client.list_by(0, |client, cookie| client.readdir(root, cookie, 512).unwrap());
        assert_eq!(listed.len(), names.len() + 2);
        rounds += 1;
    }
    assert_eq!(fixture.counter(WritesByStayingThread), 0);
    assert_eq!(fixture.counter(ReadsByStayingThread), 0);
    // Listings by a thread that stays show the changes of local programs.
    std::fs::remove_file(fixture.exported("file-7")).unwrap();
    let listed = client.list_by(0, |client, cookie| client.readdir(root, cookie, 512).unwrap());
    assert_eq!(listed.len(), names.len() + 1);
    // Whatever else comes is answered too.
    let file = client.create(root, "f");
    ok(client.write(file, 0, &[1; 100]));
    assert_eq!(client.getattr(file).unwrap().size, 100);
}

fn sum(fixture: &Fixture, counters: &[Counter]) -> u64 {
    counters.iter().map(|counter| fixture.counter(*counter)).sum()
}

#[test]
fn bytes_are_counted_when_they_are_in_the_file() {
    if !is_root() {
        return;
    }
    for mode in ["buffered", "dontcache", "direct", "auto"] {
        let config = in_modes("", "auto", mode);
        let over = Fixture::over(&config, |dir| Mounted::tmpfs_export(dir, 512));
        let Some((fixture, _mount)) = over else { return };
        let (mut client, root) = fixture.mounted();
        let file = client.create(root, "f");
        let data = vec![1; 1 << 20];
        let count = u64::from(ok(client.write(file, 0, &data)).count);
        assert!((1..1 << 20).contains(&count), "{count} bytes fit");
        assert_eq!(refusal(client.write(file, count, &data)), Status::Nospc);
        assert_eq!(fixture.counter(WriteBytes), count, "{mode}");
        assert_eq!(sum(&fixture, &BYTES_WRITTEN), count, "{mode}");
    }
}
