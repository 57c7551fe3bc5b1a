use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{Advice, MemfdFlags, SealFlags, fadvise, fcntl_add_seals, memfd_create};

use super::*;
use crate::skip::skip_in_ci_too;
use crate::{ByteRange, Residency, cache_state, drop_clean, resident_ranges};

const MAX: u64 = i64::MAX as u64;

/// A temporary file that holds 1, 2, 3, … modulo 251, so that nearby offsets have different
/// content.
fn file_of(len: usize) -> (File, Vec<u8>) {
    let content: Vec<u8> = (1..=len).map(|index| u8::try_from(index % 251).unwrap()).collect();
    let file = tempfile::tempfile().unwrap();
    assert_eq!(write_at(file.as_fd(), &content, 0).unwrap(), len);
    (file, content)
}

#[test]
fn reads_stop_at_the_end_of_the_file() {
    let (file, content) = file_of(10_000);
    for (offset, len, expected) in [
        (0, 10_000, 10_000),
        (0, 0, 0),
        (0, 20_000, 10_000),
        (1, 4095, 4095),
        (9_999, 10, 1),
        (10_000, 10, 0),
        (10_001, 10, 0),
        (1 << 40, 10, 0),
    ] {
        let mut buf = vec![0xee; len];
        let read = read_at(file.as_fd(), &mut buf, offset).unwrap();
        assert_eq!(read, expected, "{len} at {offset}");
        let start = usize::try_from(offset).unwrap().min(content.len());
        assert_eq!(buf[..read], content[start..start + read]);
        assert!(buf[read..].iter().all(|&byte| byte == 0xee), "nothing past the end is touched");
    }
}

#[test]
fn holes_read_as_zeroes() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    write_at(file.as_fd(), b"island", 500_000).unwrap();
    let mut buf = [1; 20];
    assert_eq!(read_at(file.as_fd(), &mut buf, 499_993).unwrap(), 20);
    assert_eq!(&buf, b"\0\0\0\0\0\0\0island\0\0\0\0\0\0\0");
    assert_eq!(read_at(file.as_fd(), &mut buf, (1 << 20) - 5).unwrap(), 5);
}

#[test]
fn offsets_at_the_edge_of_the_range_are_errors_or_the_end() {
    let (file, _) = file_of(10);
    let mut buf = [0; 16];
    for offset in [MAX - 16, MAX - 1, MAX] {
        assert_eq!(read_at(file.as_fd(), &mut buf, offset).unwrap(), 0, "at {offset}");
        let read = try_read_at_nowait(file.as_fd(), &mut buf, offset, 10).unwrap();
        assert!(matches!(read, NowaitRead::Done(0) | NowaitRead::Unsupported), "at {offset}");
    }
    for offset in [MAX + 1, u64::MAX - 1, u64::MAX] {
        let error = read_at(file.as_fd(), &mut buf, offset).unwrap_err();
        assert_eq!(error, DataError(Errno::INVAL), "at {offset}");
        let error = try_read_at_nowait(file.as_fd(), &mut buf, offset, 10).unwrap_err();
        assert_eq!(error, DataError(Errno::INVAL), "at {offset}");
    }
    for offset in [MAX - 15, MAX, MAX + 1, u64::MAX - 16, u64::MAX] {
        let WriteError { written, error } = write_at(file.as_fd(), &buf, offset).unwrap_err();
        assert_eq!((written, error), (0, DataError(Errno::FBIG)), "at {offset}");
    }
    assert_eq!(file.metadata().unwrap().len(), 10, "no write went in");
}

#[test]
fn writes_replace_extend_and_leave_holes() {
    let (file, mut content) = file_of(100);
    assert_eq!(write_at(file.as_fd(), b"abc", 50).unwrap(), 3);
    content[50..53].copy_from_slice(b"abc");
    assert_eq!(write_at(file.as_fd(), b"tail", 200).unwrap(), 4);
    content.resize(200, 0);
    content.extend_from_slice(b"tail");
    assert_eq!(write_at(file.as_fd(), b"", 1000).unwrap(), 0);
    let mut buf = vec![0; 300];
    let read = read_at(file.as_fd(), &mut buf, 0).unwrap();
    assert_eq!(buf[..read], content);
}

/// A memory file sealed against growth takes the page that exists and refuses the next: a short
/// write, then the error.
#[test]
fn a_failed_write_returns_the_bytes_written() {
    let fd = memfd_create("sealed", MemfdFlags::ALLOW_SEALING).unwrap();
    let file = File::from(fd);
    file.set_len(4096).unwrap();
    fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    let failed = write_at(file.as_fd(), &[7; 8192], 0).unwrap_err();
    assert_eq!((failed.written, failed.error), (4096, DataError(Errno::PERM)));
    assert_eq!(failed.to_string(), "write failed after 4096 bytes");
    let mut buf = [0; 4096];
    assert_eq!(read_at(file.as_fd(), &mut buf, 0).unwrap(), 4096);
    assert_eq!(buf, [7; 4096], "what was counted is in the file");
}

#[test]
fn errors_of_the_system_come_through() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let failed = write_at(full.as_fd(), b"x", 0).unwrap_err();
    assert_eq!((failed.written, failed.error), (0, DataError(Errno::NOSPC)));
    let error = read_at(full.as_fd(), &mut [0], 0).unwrap_err();
    assert_eq!(error, DataError(Errno::BADF));
    let directory = File::open("/").unwrap();
    let error = read_at(directory.as_fd(), &mut [0], 0).unwrap_err();
    assert_eq!(error, DataError(Errno::ISDIR));
}

#[test]
fn a_resident_range_is_read_without_waiting() {
    let (file, content) = file_of(10_000);
    let mut buf = vec![0; 4096];
    if try_read_at_nowait(file.as_fd(), &mut buf, 0, 10_000).unwrap() == NowaitRead::Unsupported {
        return skip_in_ci_too("the file system does not know RWF_NOWAIT");
    }
    for (offset, size_hint, expected) in [
        (0, 10_000, NowaitRead::Done(4096)),
        (5_000, 10_000, NowaitRead::Done(4096)),
        // Short at the end of the file: recognised by the size.
        (8_000, 10_000, NowaitRead::Done(2_000)),
        (10_000, 10_000, NowaitRead::Done(0)),
        (20_000, 10_000, NowaitRead::Done(0)),
        // Short of a size seen before a truncation: only a blocking read can distinguish the two.
        (8_000, 12_000, NowaitRead::Partly(2_000)),
    ] {
        let read = try_read_at_nowait(file.as_fd(), &mut buf, offset, size_hint).unwrap();
        assert_eq!(read, expected, "at {offset} with size {size_hint}");
        if let NowaitRead::Done(read) = read {
            let start = usize::try_from(offset).unwrap().min(content.len());
            assert_eq!(buf[..read], content[start..start + read]);
        }
    }
}

/// A file whose content is on disk and, if the file system heeds the advice, not in memory.
fn evicted_file_of(len: usize) -> (File, Vec<u8>) {
    let (file, content) = file_of(len);
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    (file, content)
}

#[test]
fn a_range_on_disk_would_block() {
    let mut buf = vec![0; 1 << 20];
    let (absent, _) = evicted_file_of(1 << 20);
    let read = try_read_at_nowait(absent.as_fd(), &mut buf, 0, 1 << 20).unwrap();
    if read != NowaitRead::Partly(0) {
        return skip_in_ci_too(format_args!(
            "the file is in memory whatever is advised ({read:?})"
        ));
    }

    // Without read-ahead the first pages come in and the rest stays out: partly resident is not
    // resident.
    let (partial, content) = evicted_file_of(1 << 20);
    fadvise(&partial, 0, None, Advice::Random).unwrap();
    assert_eq!(read_at(partial.as_fd(), &mut buf[..4096], 0).unwrap(), 4096);
    let read = try_read_at_nowait(partial.as_fd(), &mut buf, 0, 1 << 20).unwrap();
    let NowaitRead::Partly(had) = read else { panic!("{read:?}") };
    assert!((4096..1 << 20).contains(&had), "{had}");
    assert_eq!(buf[..had], content[..had]);
    let read = try_read_at_nowait(partial.as_fd(), &mut buf[..4096], 0, 1 << 20).unwrap();
    assert_eq!(read, NowaitRead::Done(4096));

    assert_eq!(read_at(partial.as_fd(), &mut buf, 0).unwrap(), 1 << 20);
    assert_eq!(buf, content);
    let read = try_read_at_nowait(partial.as_fd(), &mut buf, 0, 1 << 20).unwrap();
    assert_eq!(read, NowaitRead::Done(1 << 20));
}

/// How often a check may be repeated in which the kernel has reclaimed pages by itself.
const ATTEMPTS_MAX: u32 = 20;

/// Whether all of `range`, which has just been read, is in the page cache. `None` if the kernel has
/// reclaimed a page of it since, as it does when memory is short or pages are cold (DAMON). It
/// remembers those pages, and not ones that were never read or were dropped.
fn stays_resident(file: &File, range: ByteRange) -> Option<bool> {
    let covers = resident_ranges(file.as_fd(), range).unwrap().unwrap().covers(range);
    let state = cache_state(file.as_fd(), range).unwrap();
    let is_reclaimed = state.is_some_and(|state| state.evicted > 0);
    (covers || !is_reclaimed).then_some(covers)
}

#[test]
fn a_range_is_read_into_the_page_cache_whole() {
    let len = 3 * 1024 * 1024 + 100;
    for (offset, wanted) in [(0, 10), (4096, 1 << 20), (5, (2 << 20) + 17_000), (1 << 20, 3 << 20)]
    {
        let range = ByteRange::new(offset, wanted).unwrap();
        let attempts = (0..ATTEMPTS_MAX).map(|_| {
            let (file, _) = evicted_file_of(len);
            let in_file = wanted.min(len as u64 - offset);
            assert_eq!(read_into_cache(file.as_fd(), range).unwrap(), in_file, "{range:?}");
            stays_resident(&file, ByteRange::new(offset, in_file).unwrap())
        });
        assert_eq!(attempts.flatten().next(), Some(true), "{range:?}");
    }
    let (file, _) = file_of(10);
    let behind = ByteRange::new(4096, 4096).unwrap();
    assert_eq!(read_into_cache(file.as_fd(), behind).unwrap(), 0);
    let directory = File::open("/").unwrap();
    assert!(read_into_cache(directory.as_fd(), behind).is_err());
}

#[test]
fn dontcache_is_like_plain_where_it_is_known() {
    let (file, mut content) = file_of(100_000);
    let range = ByteRange::new(0, 1 << 20).unwrap();
    file.sync_all().unwrap();
    drop_clean(file.as_fd(), range).unwrap();
    let mut buf = vec![0; 60_000];
    let Some(read) = read_dontcache(file.as_fd(), &mut buf, 50_001).unwrap() else {
        assert!(write_dontcache(file.as_fd(), &[b"x"], 0).unwrap().is_none());
        return skip_in_ci_too("the file system does not know RWF_DONTCACHE");
    };
    assert_eq!(buf[..read], content[50_001..]);
    assert_eq!(read_dontcache(file.as_fd(), &mut buf, 100_000).unwrap(), Some(0));
    assert_eq!(resident_ranges(file.as_fd(), range).unwrap(), Some(Residency::default()));

    assert_eq!(write_dontcache(file.as_fd(), &[b"fresh"], 99_998).unwrap(), Some(5));
    assert_eq!(write_dontcache(file.as_fd(), &[b""], 0).unwrap(), Some(0));
    content.truncate(99_998);
    content.extend_from_slice(b"fresh");
    let mut found = vec![0; 200_000];
    let got = read_at(file.as_fd(), &mut found, 0).unwrap();
    assert_eq!(found[..got], content);
}

/// Files in memory do not know the flag, which is no error of the file.
#[test]
fn an_unknown_flag_is_distinguished_from_a_failure() {
    let file = File::from(memfd_create("f", MemfdFlags::CLOEXEC).unwrap());
    assert_eq!(write_at(file.as_fd(), b"data", 0).unwrap(), 4);
    assert_eq!(read_dontcache(file.as_fd(), &mut [0; 4], 0).unwrap(), None);
    assert_eq!(write_dontcache(file.as_fd(), &[b"none"], 0).unwrap(), None);
    let mut found = [0; 8];
    assert_eq!(read_at(file.as_fd(), &mut found, 0).unwrap(), 4);
    assert_eq!(&found[..4], b"data", "nothing was written");

    let error = read_dontcache(file.as_fd(), &mut found, MAX + 1).unwrap_err();
    assert_eq!(error, DataError(Errno::INVAL));
    let failed = write_dontcache(file.as_fd(), &[b"x"], MAX).unwrap_err();
    assert_eq!((failed.written, failed.error), (0, DataError(Errno::FBIG)));
    let (_, write_end) = std::io::pipe().unwrap();
    assert!(read_dontcache(write_end.as_fd(), &mut found, 0).is_err());
    assert!(write_dontcache(write_end.as_fd(), &[b"x"], 0).is_err());
}

#[test]
fn parts_are_adjacent_in_the_file() {
    let (file, mut content) = file_of(100);
    let parts = [&b"one"[..], b"", b"three", b"5"];
    assert_eq!(write_parts_at(file.as_fd(), &parts, 98).unwrap(), 9);
    content.truncate(98);
    content.extend_from_slice(&parts.concat());
    let mut found = vec![0; 200];
    let got = read_at(file.as_fd(), &mut found, 0).unwrap();
    assert_eq!(found[..got], content);
    let failed = write_parts_at(file.as_fd(), &parts, MAX).unwrap_err();
    assert_eq!((failed.written, failed.error), (0, DataError(Errno::FBIG)));
}

#[test]
fn short_writes_of_parts_go_on_where_they_stopped() {
    let parts = [&b"one"[..], b"three", b"5"];
    for step in 1..10 {
        let mut file = Vec::new();
        let outcome = write_all_parts(&parts, 10, |rest, offset| {
            assert_eq!(offset, 10 + file.len() as u64);
            let rest: Vec<u8> = rest.iter().flat_map(|part| part.iter().copied()).collect();
            file.extend_from_slice(&rest[..rest.len().min(step)]);
            Ok(rest.len().min(step))
        });
        assert_eq!((outcome.unwrap(), file), (9, parts.concat()));
    }
    let mut room = 5;
    let failed = write_all_parts(&parts, 0, |_, _| match std::mem::take(&mut room) {
        0 => Err(Errno::NOSPC),
        taken => Ok(taken),
    });
    assert_eq!(failed.unwrap_err().written, 5);
}
