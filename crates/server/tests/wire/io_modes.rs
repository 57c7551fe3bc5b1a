//! Every byte in every mode: what READ returns and what WRITE leaves behind must not depend on the
//! way that the data takes.

use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proto::nfs3::*;
use spillway_server::counters::Counter;

use crate::client::{Client, Ids, mode, ok, refusal, size};
use crate::fixture::{Fixture, Mounted, in_modes, is_root, run_or_skip, set_mode};
use crate::local_file::{LocalFile, MODES, assert_same, content, settle};
use crate::loop_device::LoopDevice;
use crate::skip::skip_in_ci_too;

const MIB: u64 = 1 << 20;
const STABLE: [StableHow; 3] = [StableHow::Unstable, StableHow::DataSync, StableHow::FileSync];
const LARGE_TRANSFERS: &str = "max_transfer = \"4MiB\"";

/// Reads `count` bytes at `offset` and holds them and the end of the file against `expected`, all
/// that the file has.
#[track_caller]
fn check_read(client: &mut Client, file: FileHandle, expected: &[u8], offset: u64, count: u32) {
    let what = format!("{count} at {offset}");
    let read = client.read(file, offset, count).unwrap();
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(expected.len());
    let end = start.saturating_add(count as usize).min(expected.len());
    assert_same(&read.data, &expected[start..end], &what);
    assert_eq!(
        read.eof,
        offset.saturating_add(u64::from(count)) >= expected.len() as u64,
        "{what}"
    );
    assert_eq!(read.attributes.unwrap().size, expected.len() as u64, "{what}");
}

/// Reads a file through from its beginning.
#[track_caller]
fn check_stream(client: &mut Client, file: FileHandle, expected: &[u8], transfer: u32) {
    for offset in (0..expected.len() as u64).step_by(transfer as usize) {
        check_read(client, file, expected, offset, transfer);
    }
}

#[test]
fn reads_return_exactly_the_requested_bytes() {
    let bytes = 9 * MIB + 1234;
    let expected = content(1, 0, usize::try_from(bytes).unwrap());
    let transfer = 4 << 20;
    let ranges = [
        (0, 0),
        (5000, 0),
        (0, 1),
        (1, 4095),
        (511, 2),
        (512, 512),
        (4095, 2),
        (4096, 4096),
        (4096, 4097),
        (47_008, 47_008),
        (MIB - 1, 2),
        (MIB - 4096, 8192),
        (MIB - 47_008, 94_017),
        (MIB, 1 << 20),
        (0, transfer),
        (1, transfer),
        (4095, transfer),
        (2 * MIB + 513, transfer - 1),
        (5 * MIB + 511, transfer),
        (bytes - 1, 1),
        (bytes - 1, 4096),
        (bytes - 1234, 1234),
        (bytes - 5000, 4999),
        (bytes - 5000, 5001),
        (bytes - MIB - 7, transfer),
        (bytes, 1),
        (bytes, 0),
        (bytes + 1, 4096),
        (u64::MAX, 4096),
        (1 << 63, transfer),
    ];
    for mode in MODES {
        let fixture = Fixture::in_modes(LARGE_TRANSFERS, mode, "auto");
        let local = LocalFile::create(&fixture.exported("f"), &expected);
        let (mut client, root) = fixture.mounted();
        let file = client.find(root, "f");
        for (offset, count) in ranges {
            local.forget();
            check_read(&mut client, file, &expected, offset, count);
            // Again, with what the first has left in memory.
            check_read(&mut client, file, &expected, offset, count);
        }
    }
}

#[test]
fn a_read_beyond_the_largest_transfer_is_clamped() {
    for mode in MODES {
        let fixture = Fixture::in_modes("max_transfer = \"64KiB\"", mode, "auto");
        let expected = content(1, 0, 200_000);
        LocalFile::create(&fixture.exported("f"), &expected).forget();
        let (mut client, root) = fixture.mounted();
        let file = client.find(root, "f");
        let read = client.read(file, 4097, 150_000).unwrap();
        assert_same(&read.data, &expected[4097..][..65_536], mode);
        assert!(!read.eof, "{mode}");
    }
}

#[test]
fn holes_are_zeroes() {
    let bytes = 4 * MIB + 100;
    let mut expected = vec![0; usize::try_from(bytes).unwrap()];
    for offset in [0, MIB - 100, MIB + 700_001, 3 * MIB + 4096] {
        let at = usize::try_from(offset).unwrap();
        expected[at..at + 5000].copy_from_slice(&content(2, offset, 5000));
    }
    for mode in MODES {
        let fixture = Fixture::in_modes("", mode, "auto");
        let local = LocalFile::create(&fixture.exported("f"), &[]);
        local.set_len(bytes);
        for offset in [0, MIB - 100, MIB + 700_001, 3 * MIB + 4096] {
            local.write(offset, &content(2, offset, 5000));
        }
        local.forget();
        let (mut client, root) = fixture.mounted();
        let file = client.find(root, "f");
        check_stream(&mut client, file, &expected, 47_008);
        check_stream(&mut client, file, &expected, 1 << 20);
    }
}

#[test]
fn a_file_cut_or_grown_between_reads_has_its_new_end() {
    for mode in MODES {
        let fixture = Fixture::in_modes("", mode, "auto");
        let all = content(3, 0, 3 << 20);
        let local = LocalFile::create(&fixture.exported("f"), &all);
        let (mut client, root) = fixture.mounted();
        let file = client.find(root, "f");
        for len in [3 << 20, 2_000_001, 2_000_000, 4097, 4096, 1, 0, 5000, 1_500_000, 3 << 20] {
            local.set_len(len);
            let kept = local.content();
            for (offset, count) in [
                (0, 65_536),
                (len.saturating_sub(3000), 65_536),
                (len.saturating_sub(1), 1),
                (len, 4096),
                (1_900_000, 1 << 20),
            ] {
                check_read(&mut client, file, &kept, offset, count);
            }
        }
    }
}

#[test]
fn reads_of_a_file_cut_and_grown_meanwhile_are_well_formed() {
    for mode in MODES {
        let fixture = Fixture::in_modes("", mode, "auto");
        let (all, kept) = (content(4, 0, 1 << 20), 100_001);
        let local = LocalFile::create(&fixture.exported("f"), &all);
        let (mut client, root) = fixture.mounted();
        let file = client.find(root, "f");
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    local.set_len(kept as u64);
                    local.write(600_000, &all[600_000..]);
                    local.write(kept as u64, &all[kept..600_000]);
                }
            });
            // The other one must end when a check fails, too.
            let checked = panic::catch_unwind(AssertUnwindSafe(|| {
                for i in 0..60 {
                    let (offset, count) = (50_001 + i % 2, 900_001);
                    let read = client.read(file, offset as u64, count).unwrap();
                    let len = read.data.len();
                    assert!((kept - offset..=count as usize).contains(&len), "{mode}: {len}");
                    let (never_cut, cut) = read.data.split_at(kept - offset);
                    assert_same(never_cut, &all[offset..kept], mode);
                    for (found, written) in cut.chunks(4096).zip(all[kept..].chunks(4096)) {
                        let fair = |(found, written): (&u8, &u8)| found == written || *found == 0;
                        let is_fair =
                            written.starts_with(found) || found.iter().zip(written).all(fair);
                        assert!(is_fair, "{mode}: neither written nor a hole");
                    }
                    let end = (offset + len) as u64;
                    // A READ that was cut short has no attributes, which would be of the longer
                    // file.
                    let is_end = read.attributes.is_none_or(|attributes| end >= attributes.size);
                    assert!(!read.eof || is_end, "{mode}: {end}");
                    assert!(read.eof || len == count as usize, "{mode}: {len}");
                }
            }));
            done.store(true, Ordering::Relaxed);
            checked.unwrap();
        });
    }
}

/// Offsets and lengths of WRITEs around pages, the size from which they are split, and the largest.
fn odd_writes() -> Vec<(u64, usize)> {
    let mut writes = Vec::new();
    for (i, len) in [1, 511, 512, 513, 4095, 4096, 4097, 8191, 47_008, 262_144, 524_287, 524_288]
        .into_iter()
        .chain([524_289, 600_007, 1 << 20, (1 << 20) + 1, (4 << 20) - 1, 4 << 20])
        .enumerate()
    {
        let offsets = [0, 1, 511, 4095, 4096, 100_003, 5 * MIB + 2049];
        writes.push((offsets[i % offsets.len()], len));
        writes.push((offsets[(i + 3) % offsets.len()], len));
    }
    writes
}

#[test]
fn writes_of_all_sizes_leave_what_was_sent() {
    for write_mode in MODES {
        let fixture = Fixture::in_modes(LARGE_TRANSFERS, "buffered", write_mode);
        let (mut client, root) = fixture.mounted();
        let file = client.create(root, "f");
        let local = LocalFile::open(&fixture.exported("f"));
        let mut expected = Vec::new();
        for (i, (offset, len)) in odd_writes().into_iter().enumerate() {
            let data = content(i as u64, offset, len);
            let (start, stable) = (usize::try_from(offset).unwrap(), STABLE[i % 3]);
            expected.resize(expected.len().max(start + len), 0);
            expected[start..start + len].copy_from_slice(&data);
            let done = ok(client.write_stable(file, offset, &data, stable));
            let what = format!("{len} at {offset} in {write_mode}");
            assert_eq!(done.count as usize, len, "{what}");
            assert!(done.committed >= stable, "{what}");
            assert_eq!(done.wcc.after.unwrap().size, expected.len() as u64, "{what}");
            assert_same(&local.content(), &expected, &what);
            if i % 5 == 0 {
                ok(client.commit(file));
            }
        }
        ok(client.commit(file));
        local.forget();
        for read_mode in MODES {
            fixture.reload(&in_modes(LARGE_TRANSFERS, read_mode, write_mode));
            check_stream(&mut client, file, &expected, 1_000_003);
        }
    }
}

#[test]
fn extending_and_cutting_leave_holes_and_no_remains() {
    for mode in MODES {
        let fixture = Fixture::in_modes("", "direct", mode);
        let (mut client, root) = fixture.mounted();
        let file = client.create(root, "f");
        let mut expected = Vec::new();
        for round in 0..12 {
            // Behind the end, with a hole; then cut inside what was just written, which may still
            // be on its way to the disk; then long again.
            let len = [47_008, 600_007, 4097, 1 << 20][round % 4];
            let start = expected.len() + [1, 4096, 70_000][round % 3];
            let data = content(round as u64, start as u64, len);
            ok(client.write(file, start as u64, &data));
            expected.resize(start, 0);
            expected.extend(&data);
            check_read(&mut client, file, &expected, start as u64 - 1, 1 << 20);
            let cut = start + len / 3;
            ok(client.setattr(file, size(cut as u64)));
            expected.truncate(cut);
            let grown = cut + 5000;
            ok(client.setattr(file, size(grown as u64)));
            expected.resize(grown, 0);
            check_read(&mut client, file, &expected, start as u64, 1 << 20);
        }
        ok(client.commit(file));
        let local = LocalFile::open(&fixture.exported("f"));
        local.forget();
        assert_same(&local.content(), &expected, mode);
    }
}

/// The states that WRITEs of one file name, linked from before to after, must be one path: each
/// state left as often as it was reached, but for the first and the last.
#[track_caller]
fn assert_chain(first: WccAttributes, wccs: &[WccData], what: &str) -> WccAttributes {
    let key = |state: WccAttributes| format!("{state:?}");
    let mut balance: HashMap<String, i64> = HashMap::new();
    let mut last = HashMap::new();
    for wcc in wccs {
        let after = WccAttributes::from(&wcc.after.unwrap());
        *balance.entry(key(wcc.before.unwrap())).or_default() += 1;
        *balance.entry(key(after)).or_default() -= 1;
        last.insert(key(after), after);
    }
    balance.retain(|_, balance| *balance != 0);
    assert_eq!(balance.remove(&key(first)), Some(1), "{what}: left once more than reached");
    let ends: Vec<_> = balance.into_iter().collect();
    assert!(matches!(ends[..], [(_, -1)]), "{what}: gaps in the chain: {ends:?}");
    last[&ends[0].0]
}

#[test]
fn concurrent_writers_that_share_pages_lose_nothing_and_answer_with_a_chain() {
    const WRITERS: usize = 6;
    const ROUNDS: usize = 5;
    for (mode, len) in [
        ("direct", 600_007),
        ("direct", 524_288),
        ("direct", 5000),
        ("dontcache", 47_008),
        ("auto", 600_007),
        ("buffered", 47_008),
    ] {
        let what = format!("{len} in {mode}");
        let fixture = Fixture::in_modes("", "auto", mode);
        let (mut client, root) = fixture.mounted();
        let file = client.create(root, "f");
        let first = WccAttributes::from(&client.getattr(file).unwrap());
        let barrier = Barrier::new(WRITERS);
        let write = |writer: usize| {
            let mut client = fixture.client();
            barrier.wait();
            let mut wccs = Vec::new();
            for round in 0..ROUNDS {
                // Neighbours are different writers, who write at the same time.
                let offset = ((round * WRITERS + writer) * len) as u64;
                let done = ok(client.write(file, offset, &content(9, offset, len)));
                assert_eq!(done.count as usize, len);
                wccs.push(done.wcc);
            }
            wccs
        };
        let wccs: Vec<WccData> = thread::scope(|scope| {
            let write = &write;
            let writers: Vec<_> =
                (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        let last = assert_chain(first, &wccs, &what);
        assert_eq!(last, WccAttributes::from(&client.getattr(file).unwrap()), "{what}");
        ok(client.commit(file));
        let local = LocalFile::open(&fixture.exported("f"));
        local.forget();
        assert_same(&local.content(), &content(9, 0, WRITERS * ROUNDS * len), &what);
    }
}

#[test]
fn a_reload_changes_the_mode_of_the_next_request_and_no_byte() {
    let fixture = Fixture::in_modes("", "buffered", "buffered");
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let on_disk = LocalFile::open(&fixture.exported("f")).is_on_disk();
    let len = 600_007;
    let counters = [
        ("buffered", Counter::WritesCachedByMode),
        ("dontcache", Counter::WritesWindowByMode),
        ("direct", Counter::WritesDirect),
    ];
    for i in 0..30u64 {
        let (mode, counter) = counters[(i % 3) as usize];
        fixture.reload(&in_modes("", MODES[(i % 4) as usize], mode));
        let before = fixture.counter(counter);
        let offset = i * len as u64;
        ok(client.write(file, offset, &content(5, offset, len)));
        assert_eq!(fixture.counter(counter) - before, u64::from(on_disk || mode != "direct"));
        let read = client.read(file, offset.saturating_sub(10_000), 1 << 20).unwrap();
        let start = offset.saturating_sub(10_000);
        assert_same(&read.data, &content(5, start, read.data.len()), mode);
        assert!(read.eof);
    }
    // And in the middle of a stream, with what was read ahead in one mode there in the next.
    let expected = content(5, 0, 30 * len);
    LocalFile::open(&fixture.exported("f")).forget();
    settle();
    for (i, offset) in (0..expected.len() as u64).step_by(47_008).enumerate() {
        if i % 7 == 0 {
            fixture.reload(&in_modes("", MODES[i / 7 % 4], "auto"));
        }
        check_read(&mut client, file, &expected, offset, 47_008);
    }
}

#[test]
fn a_full_disk_shortens_a_write_in_every_mode_and_then_refuses() {
    if !is_root() {
        return;
    }
    for mode in MODES {
        let mut mount = None;
        let prepare = |dir: &Path| mount = small_disk(dir);
        let fixture = Fixture::prepared(&in_modes(LARGE_TRANSFERS, "auto", mode), prepare);
        let Some(_mount) = mount else { return };
        let (mut client, root) = fixture.mounted();
        let file = client.create(root, "f");
        let (mut expected, len) = (Vec::new(), 1_500_001);
        let refused = loop {
            let data = content(6, expected.len() as u64, len);
            match client.write(file, expected.len() as u64, &data) {
                Ok(done) => expected.extend(&data[..done.count as usize]),
                Err(failure) => break failure,
            }
            assert!(expected.len() < 20 << 20, "the disk has 12 MiB");
        };
        assert_eq!(refused.status, Status::Nospc, "{mode}");
        assert_eq!(refused.body.after.unwrap().size, expected.len() as u64, "{mode}");
        ok(client.commit(file));
        check_stream(&mut client, file, &expected, 1 << 20);
        // Room made is room found.
        ok(client.setattr(file, size(100_001)));
        expected.truncate(100_001);
        let more = content(7, 100_001, len);
        ok(client.write_stable(file, 100_001, &more, StableHow::FileSync));
        expected.extend(more);
        check_stream(&mut client, file, &expected, 1 << 20);
    }
}

/// A file system of 12 MiB.
fn small_disk(dir: &Path) -> Option<Mounted> {
    let image = dir.join("image");
    std::fs::File::create(&image).unwrap().set_len(12 << 20).unwrap();
    let image = image.to_str().unwrap();
    let made = run_or_skip("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", image]);
    made.then(|| Mounted::image(Path::new(image), &dir.join("export"))).flatten()
}

#[test]
fn each_write_that_shares_a_turn_is_permitted_by_itself() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::in_modes("", "auto", "direct");
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let (path, len) = (fixture.exported("f"), 1 << 20);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // Never without a WRITE at work, by someone who always may.
        for i in 1..4 {
            let (mut client, done) = (fixture.client(), &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    ok(client.write(file, i * len as u64, &content(i, 0, len)));
                }
            });
        }
        let mut user = fixture.client().becoming(Ids::user(4711));
        let data = content(8, 0, len / 2);
        let checked = panic::catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..30 {
                set_mode(&path, 0o600);
                assert_eq!(refusal(user.write(file, 0, &data)), Status::Acces);
                set_mode(&path, 0o666);
                ok(user.write(file, 0, &data));
            }
        }));
        done.store(true, Ordering::Relaxed);
        checked.unwrap();
    });
}

/// Mounts an XFS with blocks of 64 KiB on sectors of 32 KiB, the largest that it knows.
fn mount_large_sectors(dir: &Path) -> Option<Mounted> {
    let image = dir.join("image");
    std::fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
    let device = LoopDevice::on(&image, 32_768).map_err(skip_in_ci_too).ok()?;
    let sizes = ["-q", "-f", "-b", "size=65536", "-s", "size=32768"];
    let made = run_or_skip("mkfs.xfs", &[&sizes[..], &[device.path().to_str().unwrap()]].concat());
    made.then(|| Mounted::device(device.path(), &dir.join("export"))).flatten()
}

#[test]
fn a_disk_with_sectors_beyond_a_page_is_served_like_any_other() {
    if !is_root() {
        return;
    }
    let mut mount = None;
    let config = in_modes(LARGE_TRANSFERS, "direct", "direct");
    let fixture = Fixture::prepared(&config, |dir| {
        mount = mount_large_sectors(dir);
        set_mode(&dir.join("export"), 0o777);
    });
    let Some(_mount) = mount else { return };
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let transfer = 4 << 20;
    let bytes = 2 * transfer + 100_001;
    let expected = content(1, 0, bytes);
    for offset in (0..bytes).step_by(transfer - 4001) {
        let data = &expected[offset..bytes.min(offset + transfer - 4001)];
        let done = ok(client.write(file, offset as u64, data));
        assert_eq!(done.count as usize, data.len());
    }
    ok(client.commit(file));
    let local = LocalFile::open(&fixture.exported("f"));
    local.forget();
    settle();
    // Widened to the sectors, it is longer than a buffer.
    check_read(&mut client, file, &expected, 1, 4 << 20);
    assert_eq!(fixture.counter(Counter::ReadDropBehindBytes), 4 << 20);
    for offset in [0, 32_767, 40_000, (4 << 20) - 1, bytes as u64 - 5000] {
        check_read(&mut client, file, &expected, offset, 4 << 20);
    }
    check_stream(&mut client, file, &expected, 47_008);
    assert_same(&local.content(), &expected, "locally");
    assert!(fixture.counter(Counter::WritesDirect) > 0, "the disk does direct I/O");
    assert!(fixture.counter(Counter::ReadsDirect) > 0, "the disk does direct I/O");
    assert_eq!(fixture.counter(Counter::DirectRefused), 0);
}

/// Without privileges the server may not open this file once more.
#[test]
fn a_file_that_forbids_reading_and_writing_is_written_and_read_through_what_is_open() {
    let data = content(1, 0, 1 << 20);
    for io_mode in MODES {
        let fixture = Fixture::in_modes("", io_mode, io_mode);
        let (mut client, root) = fixture.mounted();
        let created = ok(client.create_how(root, b"f", CreateHow::Guarded(mode(0o400))));
        let file = created.object.unwrap();
        for offset in [0, MIB] {
            let written = ok(client.write(file, offset, &data));
            assert_eq!(u64::from(written.count), MIB, "{io_mode}");
        }
        ok(client.commit(file));
        ok(client.setattr(file, mode(0)));
        for offset in [0, MIB] {
            let read = client.read(file, offset, 1 << 20).unwrap();
            assert_same(&read.data, &data, io_mode);
        }
        let known = [Counter::WritesWindowWithoutDirect, Counter::ReadsWithoutDirect];
        if io_mode == "direct" && !rustix::process::geteuid().is_root() {
            assert_eq!(known.map(|counter| fixture.counter(counter)), [2, 2]);
        }
    }
}
