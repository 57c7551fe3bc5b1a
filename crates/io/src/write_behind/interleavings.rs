//! Properties that hold for every order of the threads' steps;
//! [Testing](../../../../docs/testing.md) describes how to run them. The checker reports a missing
//! wake-up as a deadlock.
//!
//! The checker knows no time, so everything is due at once. The file is real and has no data: its
//! calls return at once, and only the waiting of threads for each other is checked.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::param::page_size;
use shuttle::{future, thread};

use super::*;
use crate::byte_range::ByteRange;
use crate::engine::DeviceNumber;
use crate::sync::checker::{below, check};

const DISK: DeviceNumber = (8, 1);
const OTHER_DISK: DeviceNumber = (8, 2);

fn window(pages: usize, threads: usize) -> Arc<WriteBehind> {
    window_of(pages, 2, threads)
}

fn window_of(pages: usize, files_max: usize, threads: usize) -> Arc<WriteBehind> {
    Arc::new(WriteBehind::new(WriteBehindConfig {
        window_bytes: (pages * page_size()) as u64,
        files_max,
        run_bytes: 1,
        age_max: Duration::ZERO,
        neighbour_wait: Duration::ZERO,
        threads,
    }))
}

fn empty_file() -> Arc<OwnedFd> {
    let file = tempfile::tempfile().expect("a file in the temporary directory");
    file.set_len(64 * page_size() as u64).expect("a hole");
    Arc::new(file.into())
}

fn pages(first: usize, count: usize) -> ByteRange {
    let [offset, len] = [first, count].map(|pages| (pages * page_size()) as u64);
    ByteRange::new(offset, len).expect("a small file")
}

/// A file in the window, without the writing.
#[derive(Clone)]
struct Enrolled {
    window: Arc<WriteBehind>,
    file: Arc<WriteBehindFile>,
    fd: Arc<OwnedFd>,
    bytes_max: u64,
}

impl Enrolled {
    fn new(window: &Arc<WriteBehind>, pages: usize, fd: &Arc<OwnedFd>) -> Self {
        Self::on(DISK, window, pages, fd)
    }

    fn on(disk: DeviceNumber, window: &Arc<WriteBehind>, pages: usize, fd: &Arc<OwnedFd>) -> Self {
        let (window, file, fd) = (Arc::clone(window), window.file(disk), Arc::clone(fd));
        Self { window, file, fd, bytes_max: (pages * page_size()) as u64 }
    }

    async fn write(self, range: ByteRange) {
        let reservation = self.file.reserve(range.len()).await;
        let intent = self.file.before_write(self.fd.as_fd(), range, reservation);
        future::yield_now().await;
        intent.enroll(&self.fd, range);
        assert!(self.window.bytes() <= self.bytes_max);
    }

    fn check_empty(&self) {
        self.window.shutdown();
        assert_eq!(self.window.bytes(), 0);
        assert!(self.file.is_idle());
        assert!(self.file.take_error().is_none());
    }
}

#[test]
fn all_that_is_enrolled_leaves_and_every_writer_gets_room() {
    for threads in [1, 2] {
        let fd = empty_file();
        check(300, move || {
            let window = window(3, threads);
            let files = [(); 2].map(|()| Enrolled::new(&window, 3, &fd));
            let writers = (0..3).map(|_| {
                let files = files.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let file = files[below(2)].clone();
                        future::block_on(file.write(pages(below(4), 1 + below(2))));
                    }
                })
            });
            for writer in writers.collect::<Vec<_>>() {
                writer.join().expect("it panics where the fault is");
            }
            files.iter().for_each(Enrolled::check_empty);
        });
    }
}

/// Devices that come and go while the window is divided among them. Each write of two pages is more
/// than the part of one of them, and is admitted when its device has nothing in the window.
#[test]
fn devices_that_divide_the_window_empty_it_and_every_writer_gets_room() {
    let fd = empty_file();
    check(300, move || {
        // Two for each: one may wait for the time to drop a page again, which never comes here.
        let window = window_of(4, 4, 1);
        let files = [DISK, OTHER_DISK].map(|disk| Enrolled::on(disk, &window, 8, &fd));
        let writers = (0..3).map(|_| {
            let files = files.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let file = files[below(2)].clone();
                    future::block_on(file.write(pages(below(4), 1 + below(2))));
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.join().expect("it panics where the fault is");
        }
        files.iter().for_each(Enrolled::check_empty);
        // None is active any more: whichever comes next may have it all.
        assert_eq!(window.window.part(false).bytes, (4 * page_size()) as u64);
    });
}

/// The reservation that is held stands for data on a disk that stands still.
#[test]
fn a_disk_that_stands_still_holds_up_no_other() {
    let fd = empty_file();
    check(500, move || {
        let window = window(4, 1);
        let held = window.file(DISK).reserve_blocking((3 * page_size()) as u64);
        let file = Enrolled::on(OTHER_DISK, &window, 4, &fd);
        let writers = [0, 1].map(|page| {
            let file = file.clone();
            thread::spawn(move || {
                for page in [page, page + 2] {
                    future::block_on(file.clone().write(pages(page, 1)));
                }
            })
        });
        for writer in writers {
            writer.join().expect("there is room for it while the other device's is held");
        }
        drop(held);
        file.check_empty();
    });
}

#[test]
fn who_waits_for_room_may_give_up_at_any_time() {
    let fd = empty_file();
    check(500, move || {
        let window = window(3, 1);
        let file = Enrolled::new(&window, 3, &fd);
        let held = file.file.reserve_blocking(1);
        let leaver = future::spawn(file.clone().write(pages(0, 2)));
        let followers = [1, 2].map(|page| future::spawn(file.clone().write(pages(page, 1))));
        let releaser = thread::spawn(move || drop(held));
        leaver.abort();
        // It may have been done before.
        let _ = future::block_on(leaver);
        for follower in followers {
            future::block_on(follower).expect("it is not cancelled");
        }
        releaser.join().expect("it panics where the fault is");
        file.check_empty();
    });
}

/// While a small reservation is held, a waiter for the whole window blocks later ones for little.
#[test]
fn a_large_writer_that_gives_up_frees_the_small_ones_behind_it() {
    let fd = empty_file();
    check(500, move || {
        let window = window(4, 1);
        let file = Enrolled::new(&window, 4, &fd);
        let held = file.file.reserve_blocking(1);
        let large = future::spawn(file.clone().write(pages(0, 3)));
        let small = [4, 5].map(|page| future::spawn(file.clone().write(pages(page, 1))));
        large.abort();
        for small in small {
            future::block_on(small).expect("there is room for it while one is held");
        }
        let _ = future::block_on(large);
        drop(held);
        file.check_empty();
    });
}

#[test]
fn errors_are_asked_for_and_files_cut_while_data_leaves() {
    let fd = empty_file();
    check(500, move || {
        let window = window(4, 2);
        let file = Enrolled::new(&window, 4, &fd);
        let writer = thread::spawn({
            let file = file.clone();
            move || {
                for page in 0..3 {
                    future::block_on(file.clone().write(pages(page, 1)));
                    // As a COMMIT does: it waits for a write-back that is under way.
                    file.file.flush(|| Ok(())).expect("the disk takes all");
                }
            }
        });
        let cutter = thread::spawn({
            let file = Arc::clone(&file.file);
            move || file.truncated(page_size() as u64)
        });
        cutter.join().expect("it panics where the fault is");
        writer.join().expect("it panics where the fault is");
        file.check_empty();
    });
}

#[test]
fn the_error_of_a_write_back_that_has_begun_reaches_the_next_flush() {
    // Nothing can be written back by it.
    let file = empty_file();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let fd = Arc::new(open(path, OFlags::PATH, Mode::empty()).expect("its path"));
    check(500, move || {
        let window = window(4, 2);
        let file = Enrolled::new(&window, 4, &fd);
        future::block_on(file.clone().write(pages(0, 1)));
        let has_begun = window.counts().runs > 0;
        let error = file.file.take_error();
        assert!(error.is_some() || !has_begun, "the flush misses an error");
        window.shutdown();
    });
}

/// The flush may take the error of whatever the window waits for meanwhile.
#[test]
fn what_leaves_the_disk_during_a_flush_leaves_the_page_cache_if_that_succeeds() {
    let fd = empty_file();
    check(500, move || {
        let window = window(3, 2);
        let file = Enrolled::new(&window, 3, &fd);
        let succeeds = below(2) == 0;
        let flushed = file.file.flush(|| {
            // The last one waits for the room of another, and not for the flush.
            for page in 0..3 {
                future::block_on(file.clone().write(pages(page, 1)));
            }
            if succeeds { Ok(()) } else { Err(Errno::IO.into()) }
        });
        assert_eq!(flushed.is_ok(), succeeds);
        file.check_empty();
        let expected = if succeeds { 3 * page_size() as u64 } else { 0 };
        assert_eq!(window.counts().bytes_dropped, expected);
    });
}

#[test]
fn a_window_may_be_closed_while_it_is_written_to() {
    let fd = empty_file();
    check(500, move || {
        let window = window(3, 2);
        let file = Enrolled::new(&window, 3, &fd);
        let writers = [0, 1].map(|page| {
            let file = file.clone();
            thread::spawn(move || future::block_on(file.write(pages(page, 2))))
        });
        window.shutdown();
        for writer in writers {
            writer.join().expect("it panics where the fault is");
        }
        file.check_empty();
    });
}
