use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use rustix::fs::{MemfdFlags, fstatfs, memfd_create};

use super::*;
use crate::byte_range::OFFSET_MAX;
use crate::file_system_magic::TMPFS;
use crate::identity::{self, Identity, can_assume_users};
use crate::read_at;
use crate::skip::{skip, skip_in_ci_too};

const PAGES: u64 = 64;

fn page_bytes() -> u64 {
    page_size() as u64
}

fn pages(first: u64, count: u64) -> ByteRange {
    ByteRange::new(first * page_bytes(), count * page_bytes()).unwrap()
}

/// A file of [`PAGES`] pages and `beyond` bytes more, nothing of it in the page cache, to be read
/// without read-ahead. Nothing where files live in memory alone.
fn uncached_file(beyond: u64) -> Option<File> {
    let mut file = tempfile::tempfile().unwrap();
    if fstatfs(&file).unwrap().f_type == TMPFS {
        skip_in_ci_too("temporary files are in memory here and cannot be dropped from there");
        return None;
    }
    let len = usize::try_from(PAGES * page_bytes() + beyond).unwrap();
    file.write_all(&vec![7; len]).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    drop_clean(file.as_fd(), ByteRange::new(0, len as u64).unwrap()).unwrap();
    Some(file)
}

/// Reads a byte of each page.
fn read_pages(file: &File, wanted: ByteRange) {
    for offset in (wanted.offset()..wanted.end()).step_by(page_size()) {
        assert_eq!(read_at(file.as_fd(), &mut [0], offset).unwrap(), 1);
    }
}

/// Both ways to ask, which must agree.
fn resident(file: &File, range: ByteRange) -> Residency {
    let by_mincore = resident_by_mincore(file.as_fd(), range.widened_to(page_bytes())).unwrap();
    let found = resident_ranges(file.as_fd(), range).unwrap();
    assert_eq!(found, by_mincore);
    found.expect("one's own files can be asked about")
}

/// File systems with folios of many pages may hold more than was read, but only what is there.
fn holds_more_than_asked(file: &File) -> bool {
    read_pages(file, pages(40, 1));
    let more = resident(file, pages(0, PAGES)).ranges() != [pages(40, 1)];
    drop_clean(file.as_fd(), pages(0, PAGES)).unwrap();
    more
}

#[test]
fn read_pages_are_resident_and_dropped_pages_are_not() {
    let Some(file) = uncached_file(0) else { return };
    let whole = pages(0, PAGES);
    assert!(resident(&file, whole).is_empty(), "all was dropped");
    let exact = !holds_more_than_asked(&file);
    let read = [pages(0, 1), pages(3, 2), pages(31, 3), pages(63, 1)];
    for part in read {
        read_pages(&file, part);
    }
    let found = resident(&file, whole);
    assert!(read.into_iter().all(|part| found.covers(part)), "{found:?}");
    if exact {
        assert_eq!(found.ranges(), read);
        assert_eq!(resident(&file, pages(4, 28)).ranges(), [pages(4, 1), pages(31, 1)]);
        assert!(resident(&file, pages(5, 26)).is_empty());
    }
    drop_clean(file.as_fd(), whole).unwrap();
    assert!(resident(&file, whole).is_empty());
    read_pages(&file, whole);
    assert_eq!(resident(&file, whole).ranges(), [whole]);
}

#[test]
fn answers_are_in_whole_pages_and_end_with_the_file() {
    let Some(file) = uncached_file(100) else { return };
    read_pages(&file, pages(0, PAGES + 1));
    let odd = ByteRange::new(5, page_bytes()).unwrap();
    assert_eq!(resident(&file, odd).ranges(), [pages(0, 2)]);
    // The last page has 100 bytes of the file.
    for beyond in [ByteRange::starting_at(0), pages(0, 1 << 20), pages(0, PAGES + 1)] {
        assert_eq!(resident(&file, beyond).ranges(), [pages(0, PAGES + 1)], "{beyond:?}");
    }
    assert!(resident(&file, pages(PAGES + 1, 10)).is_empty());
    assert!(resident(&file, ByteRange::starting_at(OFFSET_MAX)).is_empty());
    assert!(resident(&file, ByteRange::new(page_bytes(), 0).unwrap()).is_empty());
}

#[test]
fn only_whole_pages_are_dropped() {
    let Some(file) = uncached_file(100) else { return };
    if holds_more_than_asked(&file) {
        return skip_in_ci_too("this file system keeps more than pages");
    }
    let all = pages(0, PAGES + 1);
    let one = page_bytes();
    let size = PAGES * one + 100;
    for (start, end, kept) in [
        (0, 0, vec![all]),
        (1, 2 * one - 1, vec![all]),
        (1, 2 * one, vec![pages(0, 1), pages(2, PAGES - 1)]),
        (one, 3 * one - 1, vec![pages(0, 1), pages(2, PAGES - 1)]),
        (60 * one, size - 1, vec![pages(0, 60), pages(PAGES, 1)]),
        (60 * one, size, vec![pages(0, 60)]),
        (60 * one, size + 10, vec![pages(0, 60), pages(PAGES, 1)]),
        (0, OFFSET_MAX, vec![]),
    ] {
        read_pages(&file, all);
        drop_clean(file.as_fd(), ByteRange::between(start, end)).unwrap();
        assert_eq!(resident(&file, all).ranges(), kept, "{start}..{end}");
    }
}

#[test]
fn dirty_pages_are_counted_and_stay() {
    let Some(file) = uncached_file(0) else { return };
    let state = |range| cache_state(file.as_fd(), range).unwrap();
    let Some(nothing) = state(pages(0, PAGES)) else {
        return skip_in_ci_too("cachestat is not known here");
    };
    assert_eq!((nothing.pages, nothing.cached, nothing.dirty), (PAGES, 0, 0));
    // Whole pages, so that none has to be read first.
    let two = vec![8; 2 * page_size()];
    crate::write_at(file.as_fd(), &two, 10 * page_bytes()).unwrap();
    let changed = state(pages(10, 2)).unwrap();
    // Write-back may have begun, but cannot be over and the pages gone.
    assert_eq!((changed.pages, changed.cached), (2, 2));
    drop_clean(file.as_fd(), pages(10, 1)).unwrap();
    assert!(resident(&file, pages(11, 1)).covers(pages(11, 1)));
    file.sync_all().unwrap();
    let clean = state(pages(10, 2)).unwrap();
    assert_eq!((clean.dirty, clean.writeback), (0, 0));
    drop_clean(file.as_fd(), pages(0, PAGES)).unwrap();
    assert_eq!(state(pages(0, PAGES)).unwrap().cached, 0);
}

#[test]
fn pages_count_if_the_range_has_a_byte_of_them() {
    let file = tempfile::tempfile().unwrap();
    let one = page_bytes();
    for (start, end, count) in [
        (0, 0, 0),
        (one, one, 0),
        (0, 1, 1),
        (one - 1, one + 1, 2),
        (one, 2 * one, 1),
        (0, OFFSET_MAX, OFFSET_MAX / one + 1),
    ] {
        let range = ByteRange::between(start, end);
        let Some(state) = cache_state(file.as_fd(), range).unwrap() else {
            return skip_in_ci_too("cachestat is not known here");
        };
        assert_eq!((state.pages, state.cached), (count, 0), "{start}..{end}");
    }
}

fn other_user() -> Identity {
    Identity::User { uid: 65_534, gid: 65_534, groups: [].into() }
}

fn asked_by_another<T: Send>(ask: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            identity::assume(&other_user()).unwrap();
            ask()
        });
        asking.join().unwrap()
    })
}

/// A file of the server's, open for reading alone, with a page in the page cache.
fn file_read_in_part() -> Option<File> {
    let written = uncached_file(0)?;
    let file = File::open(format!("/proc/self/fd/{}", written.as_raw_fd())).unwrap();
    read_pages(&file, pages(2, 1));
    Some(file)
}

/// The threads of the engine stay the user whom they acted for last.
#[test]
fn a_thread_that_acts_for_a_user_asks_as_the_server() {
    if !can_assume_users() {
        return skip("cannot act as other users");
    }
    let Some(file) = file_read_in_part() else { return };
    let range = pages(0, PAGES);
    let fd = file.as_fd();
    let Some(state) = asked_by_another(|| cache_state(fd, range)).unwrap() else {
        return skip_in_ci_too("cachestat is not known here");
    };
    assert!(state.cached > 0);
    let found = asked_by_another(|| resident_ranges(fd, range)).unwrap();
    assert!(found.expect("the file is the server's").covers(pages(2, 1)));
    // And goes on as the user.
    let write = || {
        cache_state(fd, range)?;
        File::options().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
    };
    let error = asked_by_another(write).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn pages_that_others_have_read_are_not_reported_by_mincore() {
    if !can_assume_users() {
        return skip("cannot act as other users");
    }
    let Some(file) = file_read_in_part() else { return };
    let found = asked_by_another(|| resident_by_mincore(file.as_fd(), pages(0, PAGES)));
    assert_eq!(found.unwrap(), None);
}

#[test]
fn files_in_memory_are_resident() {
    let file = File::from(memfd_create("f", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(PAGES * page_bytes()).unwrap();
    crate::write_at(file.as_fd(), &[1], 9 * page_bytes()).unwrap();
    assert_eq!(resident(&file, pages(0, PAGES)).ranges(), [pages(9, 1)]);
    drop_clean(file.as_fd(), pages(0, PAGES)).unwrap();
    assert_eq!(resident(&file, pages(0, PAGES)).ranges(), [pages(9, 1)], "there is no disk");
}

/// Asks a row of pages, each resident or not; returns what was found and how often was asked.
fn bisect_row(row: &[bool]) -> (Residency, usize) {
    let mut calls = 0;
    let outcome = bisect(pages(0, row.len() as u64), |range| {
        calls += 1;
        let page = |offset| usize::try_from(offset / page_bytes()).unwrap();
        let part = &row[page(range.offset())..page(range.end())];
        let cached = part.iter().filter(|resident| **resident).count() as u64;
        Ok(CacheState { pages: part.len() as u64, cached, ..CacheState::default() })
    });
    (outcome.unwrap(), calls)
}

#[test]
fn halving_asks_once_where_all_or_nothing_is_resident() {
    for resident in [false, true] {
        assert_eq!(bisect_row(&[resident; 1000]).1, 1);
    }
    let mut border = [false; 1024];
    border[..333].fill(true);
    let (found, calls) = bisect_row(&border);
    assert_eq!(found.ranges(), [pages(0, 333)]);
    assert!(calls <= 1 + 2 * 10, "{calls} calls for one border");
}

proptest::proptest! {
    #[test]
    fn halving_finds_exactly_the_resident_pages(
        row in proptest::collection::vec(proptest::bool::weighted(0.3), 0..70),
    ) {
        let (found, calls) = bisect_row(&row);
        let flags = (0..row.len() as u64).map(|page| found.covers(pages(page, 1)));
        proptest::prop_assert_eq!(flags.collect::<Vec<_>>(), row.clone());
        let touched = (0..row.len() as u64).map(|page| found.touches(pages(page, 1)));
        proptest::prop_assert_eq!(touched.collect::<Vec<_>>(), row.clone());
        let ends = found.ranges().windows(2).all(|two| two[0].end() < two[1].offset());
        proptest::prop_assert!(ends, "ranges ascend and do not touch");
        proptest::prop_assert!(calls <= 2 * row.len() + 1);
    }
}

/// File systems that change the answer as they are asked must not make the search endless.
#[test]
fn halving_ends_for_any_reported_state() {
    let mut answers = (0..).map(|i| i % 3);
    let outcome = bisect(pages(0, 256), |range| {
        let pages = range.len() / page_bytes();
        let cached = answers.next().unwrap().min(pages);
        Ok(CacheState { pages, cached, ..CacheState::default() })
    });
    outcome.unwrap();
}
