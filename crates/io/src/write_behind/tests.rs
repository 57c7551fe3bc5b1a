//! The window on real files.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::*;
use crate::byte_range::ByteRange;
use crate::data_file::write_at;
use crate::engine::DeviceNumber;
use crate::residency::{cache_state, resident_ranges};
use crate::skip::skip;

const MIB: u64 = 1 << 20;

const DISK: DeviceNumber = (8, 1);
const OTHER_DISK: DeviceNumber = (8, 2);

/// A file of its own in a window, and what it is to hold.
struct Written {
    fd: Arc<OwnedFd>,
    file: Arc<WriteBehindFile>,
}

impl Written {
    fn new(window: &WriteBehind) -> Self {
        Self::of(window, tempfile::tempfile().unwrap())
    }

    fn of(window: &WriteBehind, file: File) -> Self {
        Self { fd: Arc::new(file.into()), file: window.file(DISK) }
    }

    fn write(&self, range: ByteRange) {
        let reservation = self.file.reserve_blocking(range.len());
        let intent = self.file.before_write(self.fd.as_fd(), range, reservation);
        assert_eq!(
            intent.write(self.fd.as_fd(), &[&content(range)], &|| ()).unwrap() as u64,
            range.len()
        );
        intent.enroll(&self.fd, range);
    }

    fn cached_pages(&self) -> u64 {
        let everything = ByteRange::starting_at(0);
        cache_state(self.fd.as_fd(), everything).unwrap().expect("the file is ours").cached
    }
}

/// Bytes that encode their offset.
fn content(range: ByteRange) -> Vec<u8> {
    (range.offset()..range.end()).map(|at| (at % 251).to_le_bytes()[0]).collect()
}

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange::new(offset, len).unwrap()
}

/// Waits for what the window does by itself.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_stream_leaves_the_page_cache_whole() {
    let window = WriteBehind::new(WriteBehindConfig::default());
    let written = Written::new(&window);
    let transfer = 47_008;
    for index in 0..700 {
        written.write(range(index * transfer, transfer));
    }
    window.shutdown();
    assert_eq!(window.bytes(), 0);
    assert!(written.file.is_idle());
    assert!(written.file.take_error().is_none());
    assert_eq!(written.cached_pages(), 0);
    let counts = window.counts();
    assert_eq!(counts.bytes_stuck + counts.bytes_kept + counts.errors + counts.out_of_order, 0);
    assert_eq!(counts.bytes_dropped, (700 * transfer).next_multiple_of(4096));
    let mut found = vec![0; 700 * 47_008];
    crate::read_at(written.fd.as_fd(), &mut found, 0).unwrap();
    assert_eq!(found, content(range(0, 700 * transfer)));
}

#[test]
fn data_leaves_by_itself_and_the_descriptor_with_it() {
    let age_max = Duration::from_secs(1);
    let window = WriteBehind::new(WriteBehindConfig { age_max, ..WriteBehindConfig::default() });
    let written = Written::new(&window);
    written.write(range(100, 10_000));
    assert_eq!(window.bytes(), 3 * 4096);
    assert!(!written.file.is_idle());
    eventually("leaving", || written.file.is_idle());
    assert_eq!((window.bytes(), written.cached_pages()), (0, 0));
    assert_eq!(Arc::strong_count(&written.fd), 1);
}

#[test]
fn threads_of_a_device_without_files_end_when_another_comes() {
    let age_max = Duration::from_millis(5);
    let window = WriteBehind::new(WriteBehindConfig { age_max, ..WriteBehindConfig::default() });
    let written = Written::new(&window);
    written.write(range(0, 4096));
    let device = Arc::downgrade(&window.devices()[0]);
    eventually("leaving", || written.file.is_idle());
    drop(window.file(OTHER_DISK));
    assert!(window.devices().iter().any(|known| Arc::as_ptr(known) == device.as_ptr()));
    drop(written);
    // A thread may still be about to sleep when the first one comes.
    let mut others = (0..).map(|minor| (9, minor));
    eventually("the end of its threads", || {
        drop(window.file(others.next().unwrap()));
        device.strong_count() == 0
    });
    assert_eq!(window.devices().len(), 1);
}

/// Bytes that this thread has read from disks.
fn read_from_disk_bytes() -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let read = counts.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap();
    read.parse().unwrap()
}

#[test]
fn records_between_those_of_another_writer_read_nothing_back() {
    const RECORD: u64 = 47_008;
    const RECORDS: u64 = 1000;
    let window = WriteBehind::new(WriteBehindConfig::default());
    let written = Written::new(&window);
    let record = |index| range(index * RECORD, RECORD);
    (0..RECORDS).step_by(2).for_each(|index| written.write(record(index)));
    // Two pages of each are left, and none of them in a folio with others.
    eventually("leaving", || written.cached_pages() <= RECORDS);
    assert!(window.bytes() > 0, "nothing waits for the records between");
    let before = read_from_disk_bytes();
    (1..RECORDS).step_by(2).for_each(|index| written.write(record(index)));
    assert_eq!(read_from_disk_bytes(), before);
    assert_eq!(window.counts().edges_given_up, 0);
    window.shutdown();
    assert_eq!((written.cached_pages(), window.counts().bytes_stuck), (0, 0));
    let mut found = vec![0; usize::try_from(RECORDS * RECORD).unwrap()];
    crate::read_at(written.fd.as_fd(), &mut found, 0).unwrap();
    assert_eq!(found, content(range(0, RECORDS * RECORD)));
}

/// An eighth of the window that a server has by default, and of 500 MiB.
#[test]
fn ranks_that_are_500_mib_apart_read_nothing_back() {
    const RECORD: u64 = 47_008;
    const APART: u64 = 500 * MIB / 8 / RECORD;
    let window = WriteBehind::new(WriteBehindConfig {
        window_bytes: 8 * MIB,
        ..WriteBehindConfig::default()
    });
    let written = Written::new(&window);
    let write = |index| written.write(range(index * RECORD, RECORD));
    let before = read_from_disk_bytes();
    // One rank is ahead of the other, and both go on.
    for index in 0..2 * APART {
        if index % 2 == 0 {
            write(index);
        }
        if let Some(behind) = index.checked_sub(APART)
            && behind % 2 == 1
        {
            write(behind);
        }
    }
    (APART..2 * APART).filter(|index| index % 2 == 1).for_each(write);
    assert_eq!((read_from_disk_bytes(), window.counts().edges_given_up), (before, 0));
    window.shutdown();
    let mut found = vec![0; usize::try_from(2 * APART * RECORD).unwrap()];
    crate::read_at(written.fd.as_fd(), &mut found, 0).unwrap();
    assert!(found == content(range(0, 2 * APART * RECORD)));
}

#[test]
fn half_filled_pages_of_a_closed_file_leave_at_once() {
    let window = WriteBehind::new(WriteBehindConfig::default());
    let written = Written::new(&window);
    (0..8).for_each(|index| written.write(range(index * 20_000, 10_000)));
    eventually("leaving", || written.cached_pages() <= 2 * 8);
    assert!(window.bytes() > 0, "nothing waits for the records between");
    written.file.close();
    eventually("leaving", || written.file.is_idle());
    assert_eq!((window.bytes(), written.cached_pages()), (0, 0));
    assert_eq!(Arc::strong_count(&written.fd), 1);
}

#[test]
fn the_last_page_that_a_file_could_have_is_in_the_window_as_any() {
    let window = WriteBehind::new(WriteBehindConfig::default());
    let written = Written::new(&window);
    let largest = u64::try_from(i64::MAX).unwrap();
    for (offset, len) in [(largest - 100, 100), (largest - 1, 1), (largest - 9000, 8999)] {
        let range = range(offset, len);
        let reservation = written.file.reserve_blocking(len);
        let intent = written.file.before_write(written.fd.as_fd(), range, reservation);
        // Not every file system takes it.
        let taken = intent.write(written.fd.as_fd(), &[&content(range)], &|| ()).is_ok();
        println!("written: {taken}");
        intent.enroll(&written.fd, range);
    }
    window.shutdown();
    assert!(written.file.is_idle());
}

/// How often a check may be repeated in which the kernel has reclaimed pages by itself.
const ATTEMPTS_MAX: u32 = 20;

#[test]
fn what_was_cached_before_stays_cached() {
    let attempts = (0..ATTEMPTS_MAX).map(|_| islands_stay_cached());
    assert!(attempts.flatten().next().is_some(), "the kernel reclaims pages each time");
}

/// `None` if the kernel reclaimed a page of an island before the window was asked to spare it, as
/// it does when memory is short or pages are cold (DAMON). It remembers those pages, and not the
/// ones that were dropped.
fn islands_stay_cached() -> Option<()> {
    let window = WriteBehind::new(WriteBehindConfig::default());
    let written = Written::new(&window);
    // Two islands that someone else has in the cache, one of them dirty.
    let before = [range(10 * 4096, 3 * 4096), range(30 * 4096, 4096)];
    for island in before {
        write_at(written.fd.as_fd(), &content(island), island.offset()).unwrap();
    }
    rustix::fs::fsync(&written.fd).unwrap();
    write_at(written.fd.as_fd(), &content(before[1]), before[1].offset()).unwrap();
    let undisturbed = || {
        let state = |island| cache_state(written.fd.as_fd(), island).unwrap().unwrap();
        before.iter().all(|island| state(*island).evicted == 0).then_some(())
    };
    for index in 0..5 {
        undisturbed()?;
        written.write(range(index * 47_008, 47_008));
    }
    // Pages that the window itself brought in are not foreign when they are written again.
    undisturbed()?;
    written.write(range(0, 20_000));
    window.shutdown();
    undisturbed()?;
    let resident = resident_ranges(written.fd.as_fd(), range(0, MIB)).unwrap().unwrap();
    assert_eq!(resident.ranges(), before);
    let counts = window.counts();
    assert_eq!(counts.bytes_kept, 4 * 4096);
    assert_eq!(counts.bytes_dropped, (5 * 47_008_u64).next_multiple_of(4096) - 4 * 4096);
    Some(())
}

#[test]
fn a_write_that_does_not_happen_leaves_nothing() {
    let window = WriteBehind::new(WriteBehindConfig::default());
    let written = Written::new(&window);
    let reservation = written.file.reserve_blocking(MIB);
    drop(written.file.before_write(written.fd.as_fd(), range(0, MIB), reservation));
    let reservation = written.file.reserve_blocking(MIB);
    let intent = written.file.before_write(written.fd.as_fd(), range(0, MIB), reservation);
    intent.enroll(&written.fd, range(0, 0));
    assert_eq!(window.bytes(), 0);
    assert!(written.file.is_idle());
    assert_eq!(Arc::strong_count(&written.fd), 1);
    // And no reservation is lost: the whole window can be had.
    drop(written.file.reserve_blocking(WriteBehindConfig::default().window_bytes - 4096));
    assert_eq!(window.counts(), WriteBehindCounts::default());
}

#[test]
fn the_bound_holds_under_many_writers() {
    let config =
        WriteBehindConfig { window_bytes: 2 * MIB, run_bytes: MIB, ..WriteBehindConfig::default() };
    let window = WriteBehind::new(config);
    let files: Vec<_> = (0..16).map(|_| Written::new(&window)).collect();
    let highest = std::thread::scope(|scope| {
        let writers: Vec<_> = files
            .iter()
            .map(|file| {
                let window = &window;
                scope.spawn(move || {
                    for index in 0..80 {
                        file.write(range(index * 47_008, 47_008));
                        assert!(window.bytes() <= 2 * MIB);
                    }
                })
            })
            .collect();
        let mut highest = 0;
        while writers.iter().any(|writer| !writer.is_finished()) {
            highest = highest.max(window.bytes());
            std::thread::sleep(Duration::from_millis(1));
        }
        highest
    });
    assert!((1..=2 * MIB).contains(&highest), "{highest}");
    window.shutdown();
    assert!(window.counts().throttled > 0, "57 MiB through a window of 2");
    for file in &files {
        let resident = resident_ranges(file.fd.as_fd(), range(0, 4 * MIB)).unwrap().unwrap();
        assert!(resident.is_empty(), "{resident:?} {:?}", window.counts());
        assert!(file.file.take_error().is_none());
        let mut found = vec![0; 80 * 47_008];
        crate::read_at(file.fd.as_fd(), &mut found, 0).unwrap();
        assert_eq!(found, content(range(0, 80 * 47_008)));
    }
}

#[test]
fn many_small_files_hold_few_descriptors() {
    // Files that waited for their age would take 25 minutes.
    let age_max = Duration::from_secs(60);
    let config = WriteBehindConfig { files_max: 8, age_max, ..WriteBehindConfig::default() };
    let window = WriteBehind::new(config);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    Written::new(&window).write(range(0, 100));
                    assert!(window.files() <= 8);
                }
            });
        }
    });
    assert!(began.elapsed() < age_max, "{:?}", began.elapsed());
    assert!(window.counts().throttled > 0, "200 files through a window of 8");
    window.shutdown();
    assert_eq!((window.files(), window.bytes()), (0, 0));
    // And no place is lost.
    let file = window.file(DISK);
    drop([(); 8].map(|()| file.reserve_blocking(1)));
}

/// A reservation for a write, if the window has room.
fn reserve_now(file: &WriteBehindFile, bytes: u64) -> Option<Reservation> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(file.reserve(bytes)).poll(&mut context) {
        Poll::Ready(reservation) => Some(reservation),
        Poll::Pending => None,
    }
}

#[test]
fn devices_divide_the_window_equally_and_one_alone_has_it_all() {
    let window_bytes = 64 * 4096;
    let config = WriteBehindConfig { window_bytes, files_max: 8, ..WriteBehindConfig::default() };
    let window = WriteBehind::new(config);
    let [one, other] = [DISK, OTHER_DISK].map(|disk| window.file(disk));
    // Each reservation includes a page, for a write that begins within one.
    let most_of = |bytes: u64| bytes - 4096;
    let all = reserve_now(&one, most_of(window_bytes)).expect("it is alone");
    let half = reserve_now(&other, most_of(window_bytes / 2)).expect("one half is the other's");
    assert!(reserve_now(&other, 1).is_none(), "and no more");
    drop(all);
    assert!(reserve_now(&one, most_of(window_bytes)).is_some(), "a write is always admitted alone");
    let first = reserve_now(&one, 1).unwrap();
    assert!(reserve_now(&one, most_of(window_bytes / 2)).is_none(), "the other one has its half");
    drop(half);
    drop(first);
    // The places of files are divided too.
    let places: Vec<_> = (0..8).map(|_| reserve_now(&one, 1).expect("it is alone")).collect();
    let others: Vec<_> = (0..4).map(|_| reserve_now(&other, 1).expect("half of them")).collect();
    assert!(reserve_now(&other, 1).is_none());
    drop((places, others));
    assert!(reserve_now(&other, most_of(window_bytes)).is_some(), "it is alone again");
}

#[test]
fn a_disk_that_stands_still_holds_up_no_other() {
    let config =
        WriteBehindConfig { window_bytes: 2 * MIB, run_bytes: MIB, ..WriteBehindConfig::default() };
    let window = WriteBehind::new(config);
    let stuck = window.file(DISK);
    let held = stuck.reserve_blocking(2 * MIB - 4096);
    let written = Written { file: window.file(OTHER_DISK), ..Written::new(&window) };
    for index in 0..80 {
        written.write(range(index * 47_008, 47_008));
        assert!(window.bytes() <= MIB);
    }
    eventually("leaving", || written.file.is_idle());
    drop(held);
    window.shutdown();
}

#[test]
fn file_outgrows_the_window_by_its_own_bytes_alone() {
    let never = Duration::from_secs(3600);
    let config = WriteBehindConfig { window_bytes: MIB, age_max: never, ..Default::default() };
    let window = WriteBehind::new(config);
    let written = Written::new(&window);
    written.write(range(0, 4096));
    let other = window.file(DISK);
    // Another file takes the rest, and a write of it waits: the device is under pressure.
    let _taken = other.reserve_blocking(MIB - 3 * 4096);
    let mut waiting = pin!(other.reserve(MIB));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(window.counts().throttled, 1);
    assert!(!written.file.outgrows_window());
    assert!(!other.outgrows_window(), "nothing of it is written");
}

#[test]
fn file_outgrows_the_window_beside_a_second_device_as_without_it() {
    let config = WriteBehindConfig { window_bytes: 8 * MIB, ..Default::default() };
    let window = WriteBehind::new(config);
    let written = Written::new(&window);
    let _other = window.file(OTHER_DISK).reserve_blocking(4096);
    // Records with whole pages between, none of which is long enough to leave at once. Of half of
    // the window they are more than half, so that threads write them back.
    for index in 0..48 {
        written.write(range(index * 2 * 65_536, 65_536));
        assert!(!written.file.outgrows_window());
    }
}

#[tokio::test]
async fn writers_are_admitted_in_order_and_may_leave() {
    let config = WriteBehindConfig { window_bytes: 64 << 10, ..WriteBehindConfig::default() };
    let window = WriteBehind::new(config);
    let file = window.file(DISK);
    let all = file.reserve(60 << 10).await;
    let (order, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for (name, bytes) in [(0, 40 << 10), (1, 4 << 10), (2, 50 << 10), (3, 1)] {
        let (file, order) = (Arc::clone(&file), order.clone());
        tasks.push(tokio::spawn(async move {
            let reservation = file.reserve(bytes).await;
            order.send(name).unwrap();
            // A writer that needs more than is left waits until this one is done.
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(reservation);
        }));
        tokio::task::yield_now().await;
    }
    assert_eq!(window.counts().throttled, 4);
    // The third gives up, which must not hold up the fourth.
    tasks[2].abort();
    drop(all);
    for expected in [0, 1, 3] {
        let next = tokio::time::timeout(Duration::from_secs(20), arrived.recv()).await;
        assert_eq!(next.expect("no writer is forgotten"), Some(expected));
    }
    for task in tasks {
        drop(task.await);
    }
    assert_eq!(window.bytes(), 0);
    // More than the window can ever hold goes in when it is empty.
    drop(file.reserve(10 * MIB).await);
}

#[test]
fn misaligned_neighbours_meet_before_they_reach_the_disk() {
    let window = WriteBehind::new(WriteBehindConfig::default());
    let written = Written::new(&window);
    for record in [0, 2, 1, 4, 3, 7, 6, 5] {
        written.write(range(record * 1536, 1536));
    }
    window.shutdown();
    let counts = window.counts();
    assert_eq!((counts.out_of_order, counts.put_in_order), (4, 4));
    assert_eq!((counts.runs, counts.bytes_written_back), (1, 3 * 4096));
    let mut found = vec![0; 8 * 1536];
    crate::read_at(written.fd.as_fd(), &mut found, 0).unwrap();
    assert_eq!(found, content(range(0, 8 * 1536)));
}

#[test]
fn scattered_pages_leave_within_the_bound() {
    let config = WriteBehindConfig { window_bytes: MIB, ..WriteBehindConfig::default() };
    let window = WriteBehind::new(config);
    let written = Written::new(&window);
    // A fixed walk over 256 MiB that never meets itself.
    for index in 0..2000_u64 {
        written.write(range(index * 40_503 % 65_536 * 4096, 4096));
        assert!(window.bytes() <= MIB);
    }
    window.shutdown();
    assert_eq!(written.cached_pages(), 0);
    assert_eq!(window.counts().bytes_dropped, 2000 * 4096);
    for index in [0, 1, 1000, 1999_u64] {
        let page = range(index * 40_503 % 65_536 * 4096, 4096);
        let mut found = vec![0; 4096];
        crate::read_at(written.fd.as_fd(), &mut found, page.offset()).unwrap();
        assert_eq!(found, content(page));
    }
}

#[test]
fn a_file_that_is_cut_takes_its_bytes_out_of_the_window() {
    let window = WriteBehind::new(WriteBehindConfig::default());
    let written = Written::new(&window);
    written.write(range(0, MIB));
    rustix::fs::ftruncate(&written.fd, 5000).unwrap();
    written.file.truncated(5000);
    assert_eq!(window.bytes(), 8192);
    rustix::fs::ftruncate(&written.fd, 0).unwrap();
    written.file.truncated(0);
    assert_eq!(window.bytes(), 0);
    assert!(written.file.is_idle());
    assert_eq!(Arc::strong_count(&written.fd), 1);
    window.shutdown();
    assert_eq!(window.counts().runs, 0);
}

#[test]
fn mapped_pages_are_tried_again_and_then_left() {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let window = WriteBehind::new(WriteBehindConfig::default());
    let written = Written::new(&window);
    written.write(range(0, 8 * 4096));
    // SAFETY: a shared mapping at an address of the kernel's choice, of pages that the file has and
    // keeps; it is read once and unmapped.
    let mapped = unsafe {
        let (len, offset) = (4096, 3 * 4096);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, &written.fd, offset).unwrap()
    };
    window.shutdown();
    let counts = window.counts();
    // How many others stay with it is up to the size of the kernel's folios.
    assert!(counts.bytes_stuck >= 4096, "{counts:?}");
    assert_eq!(counts.bytes_stuck + counts.bytes_dropped, 8 * 4096);
    assert_eq!(written.cached_pages(), counts.bytes_stuck / 4096);
    assert!(written.file.is_idle());
    // SAFETY: exactly what was mapped, and nothing refers to it.
    unsafe { munmap(mapped, 4096).unwrap() };
}

#[test]
fn without_a_disk_nothing_is_held() {
    let window = WriteBehind::new(WriteBehindConfig::default());
    let memory = rustix::fs::memfd_create("spillway", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let written = Written::of(&window, memory.into());
    written.write(range(0, MIB));
    assert_eq!(window.bytes(), 0);
    assert!(written.file.is_idle());
    assert_eq!(written.cached_pages(), 256);
    window.shutdown();
    assert_eq!(window.counts().runs, 0);
}

#[test]
fn an_unlinked_file_and_a_closed_window_are_no_trouble() {
    let window = WriteBehind::new(WriteBehindConfig::default());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    let options = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let written = Written::of(&window, options);
    written.write(range(0, MIB));
    std::fs::remove_file(path).unwrap();
    window.shutdown();
    assert_eq!(written.cached_pages(), 0);
    // A late range leaves at once, and a second end finds nothing to do.
    written.write(range(0, MIB));
    eventually("leaving", || written.file.is_idle());
    window.shutdown();
    assert_eq!((window.bytes(), written.cached_pages()), (0, 0));
    // It need not be ended.
    let window = WriteBehind::new(WriteBehindConfig::default());
    let written = Written::new(&window);
    written.write(range(0, MIB));
    drop(window);
    eventually("leaving", || written.file.is_idle());
    assert_eq!(written.cached_pages(), 0);
}

/// A file system on a disk that takes about a MiB of what seems to be 32: the kernel accepts more
/// into its cache and then cannot write it back. Unmounted when dropped.
struct LyingDisk(tempfile::TempDir);

impl LyingDisk {
    /// `None`, with the reason printed, where nothing may be mounted or there is no loop device.
    fn new() -> Option<Self> {
        let disk = Self(tempfile::tempdir().unwrap());
        let [backing, mounted] = ["backing", "mounted"].map(|name| disk.0.path().join(name));
        std::fs::create_dir(&backing).unwrap();
        std::fs::create_dir(&mounted).unwrap();
        let [backing, mounted] = [&backing, &mounted].map(|path| path.to_str().unwrap());
        let image = format!("{backing}/image");
        run("mount", &["-t", "tmpfs", "-o", "size=1536k", "tmpfs", backing])?;
        File::create(&image).unwrap().set_len(32 * MIB).unwrap();
        let options = ["-q", "-F", "-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1"];
        run("mkfs.ext4", &[&options[..], &["-N", "64", &image]].concat())?;
        run("mount", &["-o", "loop", &image, mounted])?;
        Some(disk)
    }

    fn create(&self) -> File {
        let path = self.0.path().join("mounted/f");
        File::options().read(true).write(true).create_new(true).open(path).unwrap()
    }
}

impl Drop for LyingDisk {
    fn drop(&mut self) {
        for name in ["mounted", "backing"] {
            let _ = run("umount", &["--lazy", self.0.path().join(name).to_str().unwrap()]);
        }
    }
}

/// Runs a command of the system; `None`, with the reason printed, if it fails.
fn run(program: &str, arguments: &[&str]) -> Option<()> {
    match std::process::Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Some(()),
        Ok(output) => {
            eprintln!("{program}: {}", String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(error) => {
            eprintln!("{program}: {error}");
            None
        }
    }
}

#[test]
fn an_error_of_write_back_is_kept_until_it_is_asked_for() {
    let Some(disk) = LyingDisk::new() else { return skip("no lying disk here") };
    let window = WriteBehind::new(WriteBehindConfig::default());
    let written = Written::of(&window, disk.create());
    for index in 0..6 {
        written.write(range(index * MIB, MIB));
    }
    window.shutdown();
    assert!(window.counts().errors > 0, "{:?}", window.counts());
    // The window has consumed the error, so the flush succeeds. That is why the error must be
    // reported by another way.
    assert!(rustix::fs::fsync(&written.fd).is_ok());
    assert!(written.file.take_error().is_some());
    assert!(written.file.take_error().is_none(), "once");
    drop(written);
}

/// A flush while the window writes reports a failure, by the one way or the other.
#[test]
fn no_error_slips_between_the_window_and_a_flush() {
    for round in 0..8 {
        let Some(disk) = LyingDisk::new() else { return skip("no lying disk here") };
        let config = WriteBehindConfig { run_bytes: MIB, ..WriteBehindConfig::default() };
        let window = WriteBehind::new(config);
        let written = Written::of(&window, disk.create());
        for index in 0..6 {
            written.write(range(index * MIB, MIB));
        }
        std::thread::sleep(Duration::from_millis(3 * round));
        let flushed = rustix::fs::fsync(&written.fd);
        let kept = written.file.take_error();
        assert!(flushed.is_err() || kept.is_some(), "six MiB were lost on a disk of one");
        window.shutdown();
        drop(written);
    }
}
