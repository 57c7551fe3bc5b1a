//! READs whose data goes from the page cache to the socket without a copy.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use io::file_system_magic::TMPFS;
use proto::nfs3::{self, *};
use proto::xdr::decode_all;
use spillway_server::counters::Counter;

use crate::client::{Client, encoded, split};
use crate::fixture::Fixture;
use crate::local_file::LocalFile;

const FILE_BYTES: usize = 2 << 20;
const READ: (u32, u32, u32) = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Read as u32);

fn serving(settings: &str, mode: &str) -> (Fixture, Vec<u8>) {
    let fixture = Fixture::with(&config(settings, mode));
    let content: Vec<u8> = (0..=250).cycle().take(FILE_BYTES).collect();
    fs::write(fixture.exported("f"), &content).unwrap();
    (fixture, content)
}

fn config(settings: &str, mode: &str) -> String {
    format!(
        r#"
        {settings}
        [[export]]
        path = "$DIR/export"
        name = "/export"
        squash = "none"
        io_cache_read = "{mode}"
        "#
    )
}

fn opened(fixture: &Fixture) -> (Client, FileHandle) {
    let (mut client, root) = fixture.mounted();
    let file = client.lookup(root, b"f").unwrap().object;
    (client, file)
}

/// Reads ranges of all alignments, and checks every byte.
fn read_all_over(client: &mut Client, file: FileHandle, content: &[u8]) {
    for (offset, count) in [
        (0, 65_536),
        (47_008, 47_008),
        (1, 65_537),
        (4095, 65_538),
        (4096, 65_539),
        (300_001, 524_288),
        (FILE_BYTES - 40_001, 65_536),
        (FILE_BYTES - 3, 65_536),
        (100, 7),
    ] {
        let end = FILE_BYTES.min(offset + count);
        let read = client.read(file, offset as u64, u32::try_from(count).unwrap()).unwrap();
        assert!(read.data == content[offset..end], "{count} at {offset}");
        assert_eq!(read.eof, end == FILE_BYTES, "{count} at {offset}");
    }
}

#[test]
fn every_byte_is_right_with_and_without_a_copy() {
    let (fixture, content) = serving("", "buffered");
    let (mut client, file) = opened(&fixture);
    read_all_over(&mut client, file, &content);
    // All but the two that are too short to be worth it.
    assert_eq!(fixture.counter(Counter::ReadsSpliced), 7);
    let of_export = format!("{}\n    splice = false", config("", "buffered"));
    for off in [config("splice = false", "buffered"), of_export] {
        fixture.reload(&off);
        read_all_over(&mut client, file, &content);
        assert_eq!(fixture.counter(Counter::ReadsSpliced), 7);
    }
}

#[test]
fn uncached_data_is_read_on_a_data_thread() {
    let (fixture, content) = serving("", "buffered");
    let (mut client, file) = opened(&fixture);
    LocalFile::open(&fixture.exported("f")).forget();
    let queued = fixture.counter(Counter::ReadsQueued);
    let read = client.read(file, 1 << 20, 262_144).unwrap();
    assert!(read.data == content[1 << 20..][..262_144]);
    assert_eq!(fixture.counter(Counter::ReadsSpliced), 1);
    if rustix::fs::statfs(fixture.exported("f")).unwrap().f_type != TMPFS {
        assert_eq!(fixture.counter(Counter::ReadsQueued), queued + 1);
    }
}

#[test]
fn auto_splices_what_is_resident() {
    for (mode, spliced) in [("auto", 7), ("dontcache", 0), ("direct", 0)] {
        let (fixture, content) = serving("", mode);
        let (mut client, file) = opened(&fixture);
        read_all_over(&mut client, file, &content);
        assert_eq!(fixture.counter(Counter::ReadsSpliced), spliced, "{mode}");
    }
}

/// Asks for `calls` long READs without taking a reply.
fn ask(client: &mut Client, file: FileHandle, calls: u32) {
    for i in 0..calls {
        let args = ReadArgs { file, offset: u64::from(i), count: 262_144 };
        let call = client.encode(i, READ, &encoded(&args));
        client.send_record(&call);
    }
}

#[test]
fn a_slow_reader_gets_every_reply_whole_with_pipes_or_without() {
    let (fixture, content) = serving("", "buffered");
    let (mut client, file) = opened(&fixture);
    let calls = 100;
    ask(&mut client, file, calls);
    thread::sleep(std::time::Duration::from_millis(300));
    for _ in 0..calls {
        let (header, results) = split(&client.receive_record().unwrap());
        let offset = usize::try_from(header.xid()).unwrap();
        let read = decode_all::<ReadReply<'_>>(&results).unwrap().unwrap();
        assert!(read.data == &content[offset..offset + 262_144], "reply {offset}");
    }
    let spliced = fixture.counter(Counter::ReadsSpliced);
    assert!(spliced > 0 && spliced < u64::from(calls), "{spliced}: more than there are pipes");
}

#[test]
fn lost_connections_leave_no_pipe_behind() {
    let (fixture, content) = serving("", "buffered");
    for _ in 0..20 {
        let (mut client, file) = opened(&fixture);
        ask(&mut client, file, 30);
        client.receive_record().unwrap();
    }
    // All pipes went down with them, or none would be left for this.
    let (mut client, file) = opened(&fixture);
    let spliced = || fixture.counter(Counter::ReadsSpliced);
    let mut before = spliced();
    for _ in 0..500 {
        read_all_over(&mut client, file, &content);
        if spliced() == before + 7 {
            return;
        }
        before = spliced();
        thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("no READ is spliced any more");
}

#[test]
fn a_file_that_is_cut_and_grown_gives_well_formed_replies() {
    let (fixture, content) = serving("", "buffered");
    let (mut client, file) = opened(&fixture);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let local = File::options().write(true).open(fixture.exported("f")).unwrap();
            while !done.load(Ordering::Relaxed) {
                local.set_len(100_001).unwrap();
                local.set_len(FILE_BYTES as u64).unwrap();
                local.write_all_at(&[9; 400_000], 100_001).unwrap();
            }
        });
        // The writer must end when a check fails, too.
        let checked = panic::catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..300 {
                let read = client.read(file, 50_001, 300_001).unwrap();
                let len = read.data.len();
                assert!((50_000..=300_001).contains(&len), "{len}");
                // The part that no one touches.
                assert!(read.data[..50_000] == content[50_001..100_001]);
            }
        }));
        done.store(true, Ordering::Relaxed);
        checked.unwrap();
    });
    assert!(fixture.counter(Counter::ReadsSpliced) > 0);
}
