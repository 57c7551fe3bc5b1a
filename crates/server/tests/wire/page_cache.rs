//! The pages that READs and WRITEs leave in the page cache: in `dontcache` and `direct` none of
//! their own, and all that were there before.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use io::{ByteRange, Residency};
use proto::nfs3::*;
use spillway_server::counters::Counter;

use crate::client::{Client, ok};
use crate::fixture::{Fixture, in_modes, is_root};
use crate::local_file::{LocalFile, assert_same, content, eventually, settle};
use crate::own_process::ran_in_own_process;
use crate::skip::skip_in_ci_too;

const MIB: usize = 1 << 20;
const FILE_BYTES: usize = 16 * MIB;
/// The part of 16 MiB that may stay: the pages of a few requests, which were in use when they were
/// dropped.
const REMAINS_MAX: u64 = 128 * 1024;

/// The content of a file, at first and after it was written.
fn old() -> &'static [u8] {
    static OLD: OnceLock<Vec<u8>> = OnceLock::new();
    OLD.get_or_init(|| content(1, 0, FILE_BYTES))
}

fn new() -> &'static [u8] {
    static NEW: OnceLock<Vec<u8>> = OnceLock::new();
    NEW.get_or_init(|| content(2, 0, FILE_BYTES))
}

/// How often something is tried that others disturb.
const ATTEMPTS: u32 = 10;

fn read_through(client: &mut Client, file: FileHandle, transfer: u32) {
    let expected = old();
    for offset in (0..FILE_BYTES).step_by(transfer as usize) {
        let read = client.read(file, offset as u64, transfer).unwrap();
        let end = FILE_BYTES.min(offset + transfer as usize);
        assert_same(&read.data, &expected[offset..end], "a stream");
    }
}

fn write_through(client: &mut Client, file: FileHandle, transfer: usize) {
    write_through_with(client, file, transfer, |_| {});
}

/// As [`write_through`]; `before` is called with the range of each WRITE before that is sent.
fn write_through_with(
    client: &mut Client,
    file: FileHandle,
    transfer: usize,
    mut before: impl FnMut(ByteRange),
) {
    let data = new();
    for offset in (0..FILE_BYTES).step_by(transfer) {
        let end = FILE_BYTES.min(offset + transfer);
        before(ByteRange::new(offset as u64, (end - offset) as u64).unwrap());
        ok(client.write(file, offset as u64, &data[offset..end]));
    }
    ok(client.commit(file));
}

/// Pages of two parts of the file, one of them with ragged ends.
fn cache_parts(local: &LocalFile) -> Residency {
    local.forget();
    local.forbid_read_ahead();
    for _ in 0..ATTEMPTS {
        local.read(0, 3 * MIB);
        for page in 0..100 {
            local.read((8 * MIB + 12_288 * page) as u64, 1);
        }
        let cached = local.residency();
        if cached.covers(ByteRange::new(0, 3 << 20).unwrap()) {
            return cached;
        }
    }
    panic!("what was read just now is not in the page cache");
}

/// No page was dropped. Those in `reclaimed` were reclaimed earlier.
#[track_caller]
fn assert_still_there(local: &LocalFile, cached: &Residency, reclaimed: &[ByteRange], what: &str) {
    let dropped = local.dropped_pages(cached);
    let gone: Vec<_> = dropped.into_iter().filter(|page| !reclaimed.contains(page)).collect();
    assert!(gone.is_empty(), "{what}: of {:?}, {gone:?} is gone", cached.ranges());
}

/// Runs a check again if it failed while the page cache of the whole machine was emptied. A check
/// that fails each time has failed.
fn undisturbed(check: impl Fn()) {
    let drops = || {
        let vmstat = std::fs::read_to_string("/proc/vmstat").unwrap();
        vmstat.lines().find(|line| line.starts_with("drop_pagecache ")).map(str::to_owned)
    };
    for attempt in 1..=ATTEMPTS {
        let before = drops();
        match panic::catch_unwind(AssertUnwindSafe(&check)) {
            Ok(()) => return,
            Err(_) if attempt < ATTEMPTS && drops() != before => {}
            Err(failure) => panic::resume_unwind(failure),
        }
    }
}

#[test]
fn reads_leave_the_page_cache_as_it_was() {
    undisturbed(check_reads);
}

fn check_reads() {
    for mode in ["dontcache", "direct"] {
        let fixture = Fixture::in_modes("", mode, "auto");
        let local = LocalFile::create(&fixture.exported("f"), old());
        if !local.is_on_disk() {
            return;
        }
        let (mut client, root) = fixture.mounted();
        let file = client.find(root, "f");
        settle();
        for (read_ahead, transfer) in [(true, 47_008), (true, 1 << 20), (false, 65_536)] {
            let what = format!("{transfer} in {mode}, read ahead: {read_ahead}");
            let settings = format!("read_ahead = {read_ahead}");
            fixture.reload(&in_modes(&settings, mode, "auto"));
            local.forget();
            read_through(&mut client, file, transfer);
            let left = local.cached_bytes();
            assert!(left <= REMAINS_MAX, "{what}: {left} bytes are left");
            if read_ahead {
                let cached = cache_parts(&local);
                read_through(&mut client, file, transfer);
                assert_still_there(&local, &cached, &[], &what);
            }
        }
    }
}

#[test]
fn writes_leave_nothing_behind() {
    for (mode, transfers) in [("dontcache", [47_008, MIB]), ("direct", [47_008, 600_007])] {
        let fixture = Fixture::in_modes("", "auto", mode);
        let (mut client, root) = fixture.mounted();
        for transfer in transfers {
            let what = format!("{transfer} in {mode}");
            let file = client.create(root, &what);
            let local = LocalFile::open(&fixture.exported(&what));
            if !local.is_on_disk() {
                return;
            }
            write_through(&mut client, file, transfer);
            let gone = eventually(|| local.cached_bytes() <= REMAINS_MAX);
            assert!(gone, "{what}: {} bytes are left", local.cached_bytes());
            assert!(eventually(|| fixture.figure("window_bytes") == 0), "{what}");
            assert_same(&local.content(), new(), &what);
        }
    }
}

#[test]
fn writes_through_the_window_leave_what_was_there_before() {
    undisturbed(check_writes_over_cached);
}

fn check_writes_over_cached() {
    let fixture = Fixture::in_modes("", "auto", "dontcache");
    let local = LocalFile::create(&fixture.exported("f"), old());
    if !local.is_on_disk() {
        return;
    }
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    for transfer in [47_008, MIB] {
        let what = format!("{transfer}");
        let cached = cache_parts(&local);
        let cached_bytes: u64 = cached.ranges().iter().map(|range| range.len()).sum();
        // A page that the kernel reclaims before a WRITE of it is read in by that WRITE and dropped
        // with it, so its absence at the end is no fault of the window.
        let mut reclaimed = Vec::new();
        write_through_with(&mut client, file, transfer, |range| {
            let absent = local.absent_pages(&cached, range);
            reclaimed.extend(absent.into_iter().filter(|page| local.was_reclaimed(*page)));
        });
        let gone = eventually(|| local.cached_bytes() <= cached_bytes + REMAINS_MAX);
        assert!(gone, "{what}: {} of {cached_bytes} bytes", local.cached_bytes());
        assert!(eventually(|| fixture.figure("window_bytes") == 0));
        assert_still_there(&local, &cached, &reclaimed, &what);
        assert_same(&local.content(), new(), &what);
    }
}

/// A memory control group of a test, removed at its end.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Puts this process in a group with so many bytes; `None`, with the reason printed, where that
    /// is not allowed.
    fn enter(bytes: u64) -> Option<Self> {
        let name = format!("spillway-test-{}", std::process::id());
        for (top, limit) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let group = Path::new(top).join(&name);
            if fs::create_dir(&group).is_err() {
                continue;
            }
            let group = Self(group);
            let entered = fs::write(group.0.join(limit), bytes.to_string())
                .and_then(|()| fs::write(group.0.join("cgroup.procs"), "0"));
            if entered.is_ok() {
                return Some(group);
            }
        }
        skip_in_ci_too("there is no memory control group to be had");
        None
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let top = self.0.parent().expect("it is in a directory");
        // A group with a process in it cannot be removed.
        let _ = fs::write(top.join("cgroup.procs"), "0");
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn with_little_memory_auto_leaves_the_page_cache_alone() {
    if !is_root()
        || ran_in_own_process("page_cache::with_little_memory_auto_leaves_the_page_cache_alone")
    {
        return;
    }
    const GROUP_BYTES: u64 = 128 << 20;
    let Some(_group) = MemoryGroup::enter(GROUP_BYTES) else { return };
    let expected = old();
    // Read-ahead would take over as soon as the file's times are old enough to be trusted.
    let settings = "memory = \"32MiB\"\nwindow = \"8MiB\"\nread_ahead = false";
    let fixture = Fixture::in_modes(settings, "auto", "auto");
    let local = LocalFile::create(&fixture.exported("f"), expected);
    if !local.is_on_disk() {
        return;
    }
    // Far more than there is memory for, so that nothing of it "fits".
    local.set_len(4 * GROUP_BYTES);
    local.forget();
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    for i in 0..200 {
        let offset = i * 37 % 256 * 65_536;
        let read = client.read(file, offset, 65_536).unwrap();
        let start = usize::try_from(offset).unwrap();
        assert_same(&read.data, &expected[start..start + 65_536], "scattered");
    }
    let left = local.cached_bytes();
    assert!(left <= REMAINS_MAX, "{left} bytes are left");
    assert_eq!(fixture.counter(Counter::ReadsDirect), 200, "{:?}", fixture.counters());
}
