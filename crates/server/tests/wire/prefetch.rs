//! Streams of `auto` that wait for the disk are read into the page cache ahead of their READs,
//! where the kernel reads too little ahead.

use std::path::Path;

use spillway_server::counters::Counter;

use crate::fixture::{Fixture, Mounted, in_modes, is_root};
use crate::local_file::{LocalFile, assert_same, content, eventually};
use crate::skip::{skip, skip_in_ci_too};

const FILE_BYTES: usize = (8 << 20) + 1000;

/// An export in `auto` on a device of its own whose `read_ahead_kb` is given.
struct Streamed {
    fixture: Fixture,
    content: Vec<u8>,
    _mount: Mounted,
}

impl Streamed {
    /// `None` where the system does not permit that, which is printed.
    fn on_device_with(read_ahead_kib: u32) -> Option<Self> {
        if !is_root() {
            return None;
        }
        let mut mount = None;
        let fixture = Fixture::prepared(&in_modes("", "auto", "auto"), |dir| {
            mount = Mounted::ext4_export(dir).filter(|_| {
                let device = rustix::fs::stat(dir.join("export")).unwrap().st_dev;
                let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
                let queue = format!("/sys/dev/block/{major}:{minor}/queue/read_ahead_kb");
                std::fs::write(Path::new(&queue), read_ahead_kib.to_string()).is_ok()
            });
        });
        let Some(mount) = mount else {
            skip("no loop device whose read-ahead can be set");
            return None;
        };
        Some(Self { fixture, content: content(1, 0, FILE_BYTES), _mount: mount })
    }

    /// Reads a new file from the disk, each second READ before the first: to the kernel that is no
    /// sequence, so they wait for the disk. Returns the bytes of it that are kept, and whether some
    /// were read ahead; `None`, which is printed, where there is too little free memory.
    fn stream(&self, settings: &str, transfer: u32, reads_ahead: bool) -> Option<(u64, bool)> {
        self.fixture.reload(&in_modes(settings, "auto", "auto"));
        let name = format!("{settings} {transfer}");
        let local = LocalFile::create(&self.fixture.exported(&name), &self.content);
        local.forget();
        let (mut client, root) = self.fixture.mounted();
        let file = client.find(root, &name);
        let before = self.fixture.counter(Counter::PrefetchedBytes);
        let reads = FILE_BYTES.div_ceil(transfer as usize);
        let order = (0..reads.next_multiple_of(2)).map(|index| index ^ 1);
        for offset in order.filter(|&index| index < reads).map(|index| index * transfer as usize) {
            let read = client.read(file, offset as u64, transfer).unwrap();
            let end = FILE_BYTES.min(offset + transfer as usize);
            assert_same(&read.data, &self.content[offset..end], &name);
            assert_eq!(read.eof, end == FILE_BYTES);
        }
        let uncached = [Counter::ReadsDirect, Counter::ReadsDontcache, Counter::ReadsFromReadAhead];
        if uncached.iter().any(|&counter| self.fixture.counter(counter) > 0) {
            skip_in_ci_too(format_args!(
                "there is not enough free memory to keep {FILE_BYTES} bytes"
            ));
            return None;
        }
        // A data thread may be at work still.
        let has_read = || self.fixture.counter(Counter::PrefetchedBytes) > before;
        let was_read_ahead = if reads_ahead { eventually(has_read) } else { has_read() };
        Some((local.kept_bytes(), was_read_ahead))
    }
}

#[test]
fn a_stream_that_waits_for_the_disk_is_read_into_the_page_cache_ahead() {
    let Some(streamed) = Streamed::on_device_with(128) else { return };
    for (settings, transfer) in [("", 300_007), ("splice = false", 300_007), ("", 47_008)] {
        let Some((cached, was_read_ahead)) = streamed.stream(settings, transfer, true) else {
            return;
        };
        assert!(was_read_ahead, "{transfer} with {settings:?}");
        assert!(cached >= FILE_BYTES as u64, "{cached} of {transfer} with {settings:?}");
    }
    assert_eq!(streamed.fixture.counter(Counter::ReadAheadBytes), 0, "one copy is enough");
}

#[test]
fn nothing_is_read_ahead_where_the_kernel_does_or_it_is_switched_off() {
    for (read_ahead_kib, settings, transfer) in
        [(1024, "", 300_007), (128, "read_ahead = false", 300_007), (128, "", 1 << 20)]
    {
        let Some(streamed) = Streamed::on_device_with(read_ahead_kib) else { return };
        let Some((_, was_read_ahead)) = streamed.stream(settings, transfer, false) else { return };
        assert!(!was_read_ahead, "{transfer} with {settings:?} and {read_ahead_kib}");
    }
}
