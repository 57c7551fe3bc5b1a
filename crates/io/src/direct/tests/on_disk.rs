//! The same on real file systems, on loop devices that have sectors of 512 and of 4096 bytes.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use proptest::test_runner::{Config, TestRunner};
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, fallocate, memfd_create};
use rustix::param::page_size;

use super::*;
use crate::loop_device::LoopDevice;
use crate::skip::skip;
use crate::{read_at, write_at};

/// A file system on a loop device, there until dropped.
struct Disk {
    name: String,
    dir: tempfile::TempDir,
    device: LoopDevice,
}

impl Disk {
    /// Every kind of disk that can be made here; prints which are skipped, and why.
    fn all() -> Vec<Self> {
        let kinds = [("ext4", 512), ("ext4", 4096), ("xfs", 512), ("xfs", 4096)];
        kinds.into_iter().filter_map(|(fs, sector_bytes)| Self::new(fs, sector_bytes)).collect()
    }

    fn new(fs: &str, sector_bytes: u32) -> Option<Self> {
        let name = format!("{fs} with sectors of {sector_bytes} bytes");
        let mkfs = format!("mkfs.{fs}");
        if !rustix::process::geteuid().is_root() {
            skip(format_args!("{name}: only root can make a loop device"));
            return None;
        }
        if let Err(error) = Command::new(&mkfs).arg("-V").output() {
            skip(format_args!("{name}: {mkfs}: {error}"));
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        // The least that mkfs.xfs takes is 300 MiB; hardly any of it is ever written.
        File::create(&image).unwrap().set_len(320 << 20).unwrap();
        let device = match LoopDevice::on(&image, sector_bytes) {
            Ok(device) => device,
            Err(why) => {
                skip(format_args!("{name}: no loop device here: {why}"));
                return None;
            }
        };
        let disk = Self { name, dir, device };
        std::fs::create_dir(disk.path("mount")).unwrap();
        run(&mkfs, &["-q".as_ref(), disk.device.path()]).unwrap();
        disk.mount("defaults");
        Some(disk)
    }

    fn mount(&self, options: &str) {
        let (device, mount) = (self.device.path(), self.path("mount"));
        run("mount", &["-o".as_ref(), options.as_ref(), device, &mount]).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file: through the page cache, past it, and what the latter asks for.
    fn file(&self, name: &str) -> (File, File, DioAlign) {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let path = self.path("mount").join(name);
        let cached = options.open(&path).unwrap();
        #[expect(clippy::cast_possible_wrap, reason = "a flag")]
        let direct = options.custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
        let align = dio_align(cached.as_fd()).unwrap().expect("these file systems report it");
        (cached, direct.unwrap(), align)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Not at once: a child that another test is starting has our descriptors for a moment.
        let unmounted = run("umount", &["--lazy".as_ref(), &self.path("mount")]);
        if !std::thread::panicking() {
            unmounted.unwrap();
        }
    }
}

/// Runs a program to its end. The error is its complaint.
fn run(program: &str, args: &[&Path]) -> Result<(), String> {
    let output = Command::new(program).args(args).output().map_err(|error| error.to_string())?;
    let succeeded = output.status.success();
    succeeded.then_some(()).ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

fn page_bytes() -> u64 {
    page_size() as u64
}

/// Reads `asked` directly; returns the bytes of it that there are.
fn read_asked(direct: &File, align: DioAlign, asked: ByteRange) -> Vec<u8> {
    let read = align.widen_read(asked).unwrap();
    let mut buf = Placed::new(usize::try_from(read.range().len()).unwrap(), 0);
    let got = read_direct(direct.as_fd(), buf.as_mut_slice(), &read).unwrap();
    let first = usize::try_from(read.start_extra).unwrap();
    let len = usize::try_from(read.asked_of(got as u64)).unwrap();
    buf.as_slice().get(first..first + len).unwrap_or_default().to_vec()
}

#[test]
fn a_loop_device_is_detached_without_a_call_for_it() {
    const PATIENCE: Duration = Duration::from_secs(10);
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make a loop device");
    }
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let device = match LoopDevice::on(image.path(), 512) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let backing = Path::new("/sys/block").join(device.path().file_name().unwrap());
    let backing = backing.join("loop/backing_file");
    let is_attached = || {
        let file = std::fs::read_to_string(&backing).unwrap_or_default();
        Path::new(file.trim_end()) == image.path()
    };
    assert!(is_attached());
    // As when the process is killed.
    drop(device);
    let began = Instant::now();
    while is_attached() {
        assert!(began.elapsed() < PATIENCE, "it stays attached");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_alignment_is_the_sector_of_the_disk() {
    for disk in Disk::all() {
        let (_cached, _direct, align) = disk.file("f");
        let sector = if disk.name.contains("4096") { 4096 } else { 512 };
        assert_eq!((align.offset(), align.read_offset()), (sector, sector), "{}", disk.name);
        assert!(align.memory() <= sector, "{}: {align:?}", disk.name);
    }
}

#[test]
fn a_file_without_direct_io_has_no_alignment() {
    let memory = memfd_create("f", MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(dio_align(memory.as_fd()).unwrap(), None);
    let Some(disk) = Disk::new("ext4", 512) else { return };
    // ext4 with all data in its journal.
    run("umount", &[&disk.path("mount")]).unwrap();
    disk.mount("data=journal");
    let file = File::create(disk.path("mount/f")).unwrap();
    assert_eq!(dio_align(file.as_fd()).unwrap(), None);
}

#[test]
fn any_range_is_read_as_through_the_page_cache() {
    for disk in Disk::all() {
        let (cached, direct, align) = disk.file("f");
        // An end inside a sector, a hole, and what was never written but has its blocks.
        let mut content = Placed::filled(200_001, 0, 1).as_slice().to_vec();
        content[60_000..130_000].fill(0);
        write_at(cached.as_fd(), &content[..60_000], 0).unwrap();
        write_at(cached.as_fd(), &content[130_000..], 130_000).unwrap();
        fallocate(&cached, FallocateFlags::empty(), 90_000, 20_000).unwrap();
        let edges = [0, 1, 511, 512, 513, 4095, 4096, 4097, 47_008, 59_999, 65_536];
        let ends = [131_071, 196_608, 199_999, 200_000, 200_001, 200_002, 204_800, 1 << 40];
        for offset in edges.into_iter().chain(ends) {
            for len in [1, 2, 511, 512, 513, 4095, 4096, 4097, 47_008, 131_072, 300_000] {
                let mut plain = vec![0; usize::try_from(len).unwrap()];
                let got = read_at(cached.as_fd(), &mut plain, offset).unwrap();
                let there = range(0, 200_001).intersection(range(offset, len)).len();
                assert_eq!(got as u64, there);
                let found = read_asked(&direct, align, range(offset, len));
                assert!(found == plain[..got], "{}: {len} at {offset}", disk.name);
            }
        }
    }
}

#[test]
fn split_writes_leave_what_plain_ones_would() {
    for disk in Disk::all() {
        let config = Config { failure_persistence: None, ..Config::with_cases(24) };
        let outcome = TestRunner::new(config).run(&random_writes(), |writes| {
            let (cached, direct, align) = disk.file("f");
            cached.set_len(0).unwrap();
            split_writes(&cached, &direct, align, writes)
        });
        outcome.unwrap_or_else(|failure| panic!("{}: {failure}", disk.name));
    }
}

/// Writes to an empty file and to a model of it, and compares.
fn split_writes(
    cached: &File,
    direct: &File,
    align: DioAlign,
    writes: Vec<RandomWrite>,
) -> Result<(), TestCaseError> {
    let mut model = Vec::new();
    for (seed, (offset, len, _)) in (0..).zip(writes) {
        let data = Placed::filled(len, offset, seed);
        let split = align.split_write(range(offset, len as u64), page_bytes());
        let (segments, data) = (split.segments(), data.as_slice());
        let done =
            write_segments(&segments, &[data], cached.as_fd(), direct.as_fd(), &|| ()).unwrap();
        prop_assert_eq!((done.written, done.cached_instead), (len, None));
        apply(&mut model, offset, data);
        // The ends were merged in the page cache. Past it the disk must show the same.
        let around = range(offset, len as u64).widened_to(65_536);
        let found = read_asked(direct, align, around);
        let rest = model.get(usize::try_from(around.offset()).unwrap()..).unwrap_or_default();
        let there = rest.len().min(usize::try_from(around.len()).unwrap());
        prop_assert!(found == rest[..there], "{} at {}", len, offset);
    }
    let mut whole = vec![0; model.len() + 1];
    let got = read_at(cached.as_fd(), &mut whole, 0).unwrap();
    prop_assert!(whole[..got] == model, "through the page cache");
    Ok(())
}

#[test]
fn a_misreported_alignment_costs_the_direct_route_and_nothing_else() {
    for disk in Disk::all() {
        let (cached, direct, _) = disk.file("f");
        let whole = range(100, 50_000);
        let data = Placed::filled(50_000, 100, 4);
        // Believed to take every byte anywhere, the file is given all of it directly.
        let segments = aligned_to(1).split_write(whole, 1).segments();
        let done =
            write_segments(&segments, &[data.as_slice()], cached.as_fd(), direct.as_fd(), &|| ())
                .unwrap();
        let expected =
            SegmentsWritten { written: 50_000, cached_instead: Some(whole), refused_direct: true };
        assert_eq!(done, expected, "{}", disk.name);
        let mut found = vec![0; 50_101];
        assert_eq!(read_at(cached.as_fd(), &mut found, 0).unwrap(), 50_100);
        assert!(found[100..50_100] == *data.as_slice(), "{}", disk.name);
    }
}

#[test]
fn a_full_disk_counts_the_written_bytes() {
    for disk in Disk::all() {
        let (cached, direct, align) = disk.file("f");
        let (filler, ..) = disk.file("filler");
        // All but four or five MiB.
        let fill = |mib: u64| fallocate(&filler, FallocateFlags::empty(), mib << 20, 1 << 20);
        let filled = (0..).find(|&mib| fill(mib).is_err()).expect("no disk is endless");
        filler.set_len((filled - 4) << 20).unwrap();
        let whole = range(1000, 8 << 20);
        let data = Placed::filled(8 << 20, 1000, 6);
        let segments = align.split_write(whole, page_bytes()).segments();
        let failed =
            write_segments(&segments, &[data.as_slice()], cached.as_fd(), direct.as_fd(), &|| ())
                .expect_err("eight MiB do not fit");
        assert_eq!(failed.error, DataError(Errno::NOSPC), "{}", disk.name);
        let mut found = vec![0; 1000 + failed.written];
        assert_eq!(read_at(cached.as_fd(), &mut found, 0).unwrap(), found.len(), "{}", disk.name);
        assert!(found[1000..] == data.as_slice()[..failed.written], "{}", disk.name);
    }
}
