//! The window on real files.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::byte_range::ByteRange;
use crate::data_file::write_at;
use crate::residency::{cache_state, resident_ranges};

const MIB: u64 = 1 << 20;

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
        Self { fd: Arc::new(file.into()), file: window.file() }
    }

    fn write(&self, window: &WriteBehind, range: ByteRange) {
        let room = window.room_blocking(range.len());
        let intent = self.file.before_write(self.fd.as_fd(), range, room);
        write_at(self.fd.as_fd(), &content(range), range.offset()).unwrap();
        intent.enroll(&self.fd, range);
    }

    fn cached_pages(&self) -> u64 {
        let everything = ByteRange::starting_at(0);
        cache_state(self.fd.as_fd(), everything).unwrap().expect("the file is ours").cached
    }
}

/// Bytes that tell their offset.
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
        written.write(&window, range(index * transfer, transfer));
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
