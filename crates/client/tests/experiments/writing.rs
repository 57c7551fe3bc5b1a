//! Files written in tiny records: what many WRITEs at a time do to their order and to the speed,
//! and whether the writer still believes its cache afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::nfs3::Procedure;
use spillway_client::{FileSystem, Inode, MountOptions, OpenFlags};

use crate::bed::{Bed, knob, options};
use crate::tap::Seen;

const READ: OpenFlags = OpenFlags { read: true, write: false, sync: false, direct: false };
const WRITE: OpenFlags = OpenFlags { write: true, ..READ };
/// WRITEs of a file that await their reply at once.
const IN_FLIGHT: [usize; 5] = [1, 2, 4, 20, 64];
const MIB: usize = 1 << 20;

/// The data to write.
#[derive(Clone, Copy)]
struct Load {
    record_bytes: usize,
    file_bytes: usize,
}

impl Load {
    /// In a test, so much that a machine that is busy takes a second for it.
    fn all() -> [Self; 2] {
        let bytes = |mib: usize| knob("SPILLWAY_WRITE_MIB", mib) * MIB;
        [(1, bytes(1)), (512, bytes(4))]
            .map(|(record_bytes, file_bytes)| Self { record_bytes, file_bytes })
    }
}

/// By hand WRITEs are as large as the server takes. Small ones make a small file many.
fn with(in_flight: usize, nconnect: usize) -> MountOptions {
    let is_small = std::env::var_os("SPILLWAY_WRITE_MIB").is_none();
    let wsize = is_small.then_some(64 << 10);
    MountOptions { writes_in_flight: in_flight, nconnect, wsize, ..options() }
}

/// Creates a file and writes it record by record. How long it took until it was closed.
async fn write(file_system: &FileSystem, name: &str, load: Load) -> (Arc<Inode>, Duration) {
    let root = file_system.root();
    let inode = file_system.create(&root, name.as_bytes(), 0o644, false).await.unwrap();
    let file = file_system.open_created(&inode, WRITE).unwrap();
    let data = data(load.file_bytes);
    let begun = Instant::now();
    let mut offset = 0;
    for record in data.chunks(load.record_bytes) {
        file.write_at(offset, record).await.unwrap();
        offset += record.len() as u64;
    }
    file.close().await.unwrap();
    (inode, begun.elapsed())
}

/// Bytes of which no WRITE is like another.
fn data(len: usize) -> Vec<u8> {
    let words = (0_u64..).flat_map(|nth| nth.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    words.take(len).collect()
}

/// The WRITEs of `files` files of `load` were as large as they can be, and in order.
fn assert_in_order(bed: &Bed, seen: &Seen, file_system: &FileSystem, load: Load, files: usize) {
    let write_bytes = usize::try_from(file_system.info().wtmax).unwrap();
    let full = files * load.file_bytes.div_ceil(write_bytes);
    // A large file may come to hold all the memory there is for written data, and then its last
    // block goes as it is.
    assert!((full..=full + full / 32).contains(&seen.writes.len()), "{} WRITEs", seen.writes.len());
    let written: u64 = seen.writes.iter().map(|(_, _, len)| u64::from(*len)).sum();
    assert_eq!(written, (files * load.file_bytes) as u64, "nothing is sent twice");
    assert_eq!(seen.late_writes(), 0);
    if let Some(late) = bed.figure("writes_out_of_order") {
        assert_eq!(late, 0);
    }
}

/// Opened again, the file keeps the cache of its writer, and no READ was sent so far.
async fn assert_kept(bed: &Bed, file_system: &FileSystem, inode: &Arc<Inode>) {
    let file = file_system.open(inode, READ).await.unwrap();
    assert!(file.keep_cache(), "no other client has changed it");
    file.close().await.unwrap();
    assert_eq!(bed.seen().count(Procedure::Read), 0);
}

/// Another client reads the data.
async fn assert_holds(bed: &Bed, name: &str, load: Load) {
    let file_system = bed.mount_elsewhere().await;
    let inode = crate::bed::lookup(&file_system, name).await;
    let file = file_system.open(&inode, READ).await.unwrap();
    let (expected, mut offset) = (data(load.file_bytes), 0);
    while offset < expected.len() {
        let read = file.read_at(offset as u64, MIB).await.unwrap();
        assert!(!read.is_empty() && expected[offset..].starts_with(&read), "at {offset}");
        offset += read.len();
    }
    assert!(file.read_at(offset as u64, 1).await.unwrap().is_empty());
    file.close().await.unwrap();
    let root = file_system.root();
    file_system.remove(&root, name.as_bytes()).await.unwrap();
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn print(load: Load, nconnect: usize, in_flight: usize, seen: &Seen, took: Duration, files: usize) {
    let speed = (files * load.file_bytes) as f64 / MIB as f64 / took.as_secs_f64();
    println!(
        "{files:5} {:6} {nconnect:11} {in_flight:9} {:6} {:4} {:7} {speed:8.1}",
        load.record_bytes,
        seen.writes.len(),
        seen.late_writes(),
        seen.count(Procedure::Commit),
    );
}

const HEAD: &str = "files record connections in_flight WRITEs late COMMITs    MiB/s";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiny_records_arrive_large_and_in_order_however_many_writes_are_in_flight() {
    let bed = Bed::new().await;
    println!("{HEAD}");
    for load in Load::all() {
        let many_connections = (4, 64);
        let runs = IN_FLIGHT.map(|in_flight| (1, in_flight)).into_iter().chain([many_connections]);
        for (nconnect, in_flight) in runs {
            let file_system = bed.mount(&with(in_flight, nconnect)).await;
            bed.seen();
            let (inode, took) = write(&file_system, "tiny", load).await;
            let seen = bed.seen();
            print(load, nconnect, in_flight, &seen, took, 1);
            assert_in_order(&bed, &seen, &file_system, load, 1);
            assert_eq!(seen.count(Procedure::Read), 0);
            assert_kept(&bed, &file_system, &inode).await;
            assert_holds(&bed, "tiny", load).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_of_several_files_keep_the_order_of_each() {
    const FILES: usize = 4;
    let bed = Bed::new().await;
    println!("{HEAD}");
    let [_, load] = Load::all();
    let load = Load { file_bytes: load.file_bytes / FILES, ..load };
    for (nconnect, in_flight) in [(1, 1), (1, 64), (4, 4), (4, 64)] {
        let file_system = bed.mount(&with(in_flight, nconnect)).await;
        bed.seen();
        let begun = Instant::now();
        let writers: Vec<_> = (0..FILES)
            .map(|nth| {
                let file_system = file_system.clone();
                tokio::spawn(async move { write(&file_system, &format!("of{nth}"), load).await.0 })
            })
            .collect();
        let mut inodes = Vec::new();
        for writer in writers {
            inodes.push(writer.await.unwrap());
        }
        let took = begun.elapsed();
        let seen = bed.seen();
        print(load, nconnect, in_flight, &seen, took, FILES);
        assert_in_order(&bed, &seen, &file_system, load, FILES);
        for (nth, inode) in inodes.iter().enumerate() {
            assert_kept(&bed, &file_system, inode).await;
            assert_holds(&bed, &format!("of{nth}"), load).await;
        }
    }
}
