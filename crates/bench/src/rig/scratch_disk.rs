//! A file system of its own for an experiment, in a file.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use server::config::ByteSize;

use super::device::BlockDevice;
use super::limits::DeviceLimits;
use super::program;
use super::quantity::Delay;
use super::undo::Undo;
use crate::{Error, Result};

/// Takes away what is in the directory `$1`, and the delayed device `$2` if there is one. Lazily,
/// because a server that failed may still hold files of it: what is in use goes with its last user.
const REMOVE: &str = r#"
! mountpoint -q "$1/files" || umount --lazy "$1/files"
[ -z "$2" ] || ! dmsetup info "$2" >/dev/null 2>&1 || dmsetup remove --deferred "$2" >/dev/null
for device in $(losetup --noheadings --output NAME --associated "$1/image"); do
    losetup --detach "$device"
done
rm -f "$1/image"
[ ! -d "$1/files" ] || rmdir "$1/files"
rmdir "$1""#;

/// A kind of file system that is made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Xfs,
    Ext4,
    Btrfs,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Xfs, Self::Ext4, Self::Btrfs];

    fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
        }
    }

    /// Nothing is discarded, which would undo the writing of the image, and nothing is left to be
    /// initialized while something is measured.
    fn make(self, device: &str) -> Result<()> {
        let lazily = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        match self {
            Self::Xfs => program::run("mkfs.xfs", &["-q", "-f", "-K", device]),
            Self::Ext4 => program::run("mkfs.ext4", &["-q", "-F", "-E", lazily, device]),
            Self::Btrfs => program::run("mkfs.btrfs", &["-q", "-f", "-K", device]),
        }
        .map(drop)
    }
}

/// Kind and size of a file system: `xfs:8GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchKind {
    kind: Kind,
    size_bytes: u64,
}

/// A text that is no [`ScratchKind`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a file system (xfs, ext4, btrfs) and size: xfs:8GiB", .0.escape_debug())]
pub struct NotAScratchKind(String);

impl FromStr for ScratchKind {
    type Err = NotAScratchKind;

    fn from_str(text: &str) -> std::result::Result<Self, NotAScratchKind> {
        let parsed = text.split_once(':').and_then(|(name, size)| {
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name)?;
            let ByteSize(size_bytes) = size.parse().ok()?;
            Some(Self { kind, size_bytes })
        });
        parsed.ok_or_else(|| NotAScratchKind(text.to_owned()))
    }
}

impl fmt::Display for ScratchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name(), ByteSize(self.size_bytes))
    }
}

/// A file system on a loop device past the page cache, its image written full: no allocation below
/// it is timed. Unmounted and deleted when dropped, also if this process is killed.
#[derive(Debug)]
pub struct ScratchDisk {
    files: PathBuf,
    device: BlockDevice,
    _undo: Undo,
}

impl ScratchDisk {
    /// Makes it, with the image in `directory`. Of the limits it is the delay that is applied here;
    /// for the others there is [`Throttle`](super::Throttle).
    ///
    /// # Errors
    /// [`Error::Misuse`]: not root, or a delay that the kernel cannot do. [`Error::Program`]: one
    /// of dd, losetup, mkfs.KIND, mount or dmsetup is missing or failed.
    pub fn create(what: &ScratchKind, directory: &Path, limits: &DeviceLimits) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            let why = "only root can make a file system for the experiment (loop device, mount)";
            return Err(Error::Misuse(why.to_owned()));
        }
        let made = tempfile::Builder::new()
            .prefix("spillway-bench.")
            .tempdir_in(directory)
            .map_err(Error::machine(directory.display().to_string()))?;
        let base = made.keep();
        let delayed = limits.delay.map(|_| delayed_name(&base)).unwrap_or_default();
        let undo = Undo::new(REMOVE, &[base.as_os_str(), delayed.as_ref()])?;
        let files = base.join("files");
        fs::create_dir(&files).map_err(Error::machine(files.display().to_string()))?;

        let mut device = loop_device(&base.join("image"), what.size_bytes)?;
        let loop_name = device.name.clone();
        let late = match limits.delay {
            Some(delay) => {
                let late = DelayedTable::of(&device, delay)?;
                device = late.create(&delayed)?;
                Some(late)
            }
            None => None,
        };
        what.kind.make(&device.name)?;
        program::run("mount", &[Path::new(&device.name), &files])?;
        if let Some(late) = late {
            late.begin(&delayed)?;
        }
        // In use, it is now only marked to vanish with its last user.
        program::run("losetup", &["--detach", &loop_name])?;
        Ok(Self { files, device, _undo: undo })
    }

    /// Its root directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.files
    }

    /// The device that is mounted; it has no other user.
    #[must_use]
    pub fn device(&self) -> &BlockDevice {
        &self.device
    }
}

/// A loop device on a new file without holes.
fn loop_device(image: &Path, size_bytes: u64) -> Result<BlockDevice> {
    let (output, count) = (format!("of={}", image.display()), format!("count={size_bytes}"));
    let flags = ["bs=1M", "oflag=direct", "iflag=count_bytes", "conv=fsync", "status=none"];
    let words = [&["if=/dev/zero", output.as_str(), count.as_str()][..], &flags].concat();
    program::run("dd", &words)?;
    let options = ["--find", "--show", "--direct-io=on"].map(Path::new);
    let name = program::run("losetup", &[&options[..], &[image]].concat())?;
    let device = BlockDevice::at(name.trim())?;
    let file = format!("/sys/dev/block/{}/loop/dio", device.number);
    let direct = fs::read_to_string(&file).map_err(Error::machine(file))?;
    if direct.trim() == "1" {
        return Ok(device);
    }
    let name = &device.name;
    Err(Error::Misuse(format!(
        "{name} would keep a page cache of its own, because the file system of {} has no direct \
         I/O: choose another directory",
        image.display()
    )))
}

/// A name for the delayed device, as unique as that of the directory.
fn delayed_name(base: &Path) -> String {
    let name = base.file_name().unwrap_or_default().to_string_lossy();
    name.replace('.', "-")
}

/// The table of dm-delay: all sectors, of 512 bytes, of the device `below`, each request `millis`
/// late.
struct DelayedTable {
    sectors: u64,
    below: String,
    millis: u128,
}

impl DelayedTable {
    fn of(below: &BlockDevice, Delay(delay): Delay) -> Result<Self> {
        let millis = delay.as_millis();
        if delay != Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)) {
            return Err(Error::Misuse(
                "the delay of a device must be in whole milliseconds".to_owned(),
            ));
        }
        // It may be built in, or there already: `targets` shows whether it is available.
        let _ = program::run("modprobe", &["dm-delay"]);
        let can_delay = match program::run("dmsetup", &["targets"]) {
            Ok(targets) => targets.lines().any(|line| line.starts_with("delay ")),
            // Without a device mapper in the kernel it fails.
            Err(Error::Program(words)) if words.contains("device-mapper") => false,
            Err(error) => return Err(error),
        };
        if !can_delay {
            return Err(Error::Misuse(
                "this kernel cannot delay requests to a device: it has no dm-delay \
                 (CONFIG_DM_DELAY); --device-rate and --device-iops do not need it"
                    .to_owned(),
            ));
        }
        Ok(Self { sectors: below.sectors()?, below: below.name.clone(), millis })
    }

    fn text(&self, millis: u128) -> String {
        format!("0 {} delay {} 0 {millis}", self.sectors, self.below)
    }

    /// A device that is not late yet, so that making a file system takes no longer than usual.
    fn create(&self, name: &str) -> Result<BlockDevice> {
        program::run("dmsetup", &["create", name, "--noudevsync", "--table", &self.text(0)])?;
        let columns = ["--columns", "--noheadings", "--separator", ":", "-o", "major,minor"];
        let number = program::run("dmsetup", &[&["info"], &columns[..], &[name]].concat())?;
        BlockDevice::numbered(number.trim().to_owned())
    }

    /// From here on every request takes its time.
    fn begin(&self, name: &str) -> Result<()> {
        program::run("dmsetup", &["reload", name, "--table", &self.text(self.millis)])?;
        program::run("dmsetup", &["resume", name, "--noudevsync"]).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::super::file_system::FileSystem;
    use super::super::memory_group::MemoryGroup;
    use super::super::throttle::Throttle;
    use super::*;
    use crate::skip::{skip, skip_in_ci_too};
    use std::time::Instant;

    const MIB: u64 = 1 << 20;

    #[test]
    fn kinds_are_written_with_their_size() {
        let kind: ScratchKind = "xfs:8GiB".parse().unwrap();
        assert_eq!(kind, ScratchKind { kind: Kind::Xfs, size_bytes: 8 << 30 });
        assert_eq!(kind.to_string(), "xfs:8GiB");
        for text in ["", "xfs", "xfs:", "xfs:8", "zfs:8GiB", "xfs 8GiB", "XFS:8GiB"] {
            assert!(text.parse::<ScratchKind>().is_err(), "{text}");
        }
    }

    /// `None`, with the reason printed, if it is not available.
    fn disk(kind: &str, limits: &DeviceLimits) -> Option<ScratchDisk> {
        match ScratchDisk::create(&kind.parse().unwrap(), Path::new("/var/tmp"), limits) {
            Ok(disk) => Some(disk),
            // Without dm-delay.
            Err(error) if limits.delay.is_some() => {
                skip_in_ci_too(error);
                None
            }
            Err(error) => {
                skip(error);
                None
            }
        }
    }

    fn write(disk: &ScratchDisk, mib: u64, flags: &[&str]) -> Duration {
        let output = format!("of={}", disk.directory().join("file").display());
        let count = format!("count={mib}");
        let start = Instant::now();
        let words = [&["if=/dev/zero", output.as_str(), "bs=1M", count.as_str()], flags].concat();
        program::run("dd", &words).unwrap();
        start.elapsed()
    }

    #[test]
    fn a_scratch_disk_counts_exactly_and_is_removed() {
        let Some(disk) = disk("ext4:128MiB", &DeviceLimits::default()) else { return };
        let base = disk.directory().parent().unwrap().to_owned();
        assert_eq!(FileSystem::of(disk.directory()).unwrap().kind, "ext4");
        assert_eq!(BlockDevice::under(disk.directory()).unwrap().as_ref(), Some(disk.device()));

        rustix::fs::sync();
        let before = disk.device().traffic().unwrap();
        write(&disk, 16, &["oflag=direct"]);
        let moved = disk.device().traffic().unwrap().since(&before);
        // Metadata and the journal are a little more.
        assert!((16 * MIB..20 * MIB).contains(&moved.written), "{moved:?}");
        assert!(moved.read < MIB, "{moved:?}");

        let limits = DeviceLimits { rate: "10MiB/s".parse().ok(), ..DeviceLimits::default() };
        match Throttle::apply(&limits, disk.directory(), Some(&disk), None) {
            Ok(throttle) => {
                // Through the page cache: write-back is bounded too.
                let took = write(&disk, 20, &["conv=fsync"]);
                assert!(took >= Duration::from_millis(1500), "{took:?}");
                drop(throttle);
                let limits = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device";
                let limits = fs::read_to_string(limits).unwrap_or_default();
                let number = format!("{} ", disk.device().number);
                assert!(!limits.lines().any(|line| line.starts_with(&number)), "{limits}");
            }
            Err(error) => skip_in_ci_too(error),
        }
        drop(disk);
        assert!(!base.exists());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(base.to_str().unwrap()));
        let loops = program::run("losetup", &["--list"]).unwrap();
        assert!(!loops.contains(base.to_str().unwrap()), "{loops}");
    }

    #[test]
    fn a_group_of_version_2_is_bounded_with_its_write_back() {
        let Some(disk) = disk("ext4:64MiB", &DeviceLimits::default()) else { return };
        let limits = DeviceLimits { rate: "10MiB/s".parse().ok(), ..DeviceLimits::default() };
        let group = MemoryGroup::create("bounded", None).and_then(|group| {
            let directory = disk.directory();
            let throttle = Throttle::apply(&limits, directory, None, Some(&group))?;
            Ok((group, throttle))
        });
        let (group, throttle) = match group {
            Ok(both) => both,
            Err(error) => return skip_in_ci_too(error),
        };
        let output = format!("of={}", disk.directory().join("file").display());
        let start = Instant::now();
        let mut dd = group.command("dd");
        dd.args(["if=/dev/zero", &output, "bs=1M", "count=20", "conv=fsync", "status=none"]);
        assert!(dd.status().unwrap().success());
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(1500), "{took:?}");
        drop(throttle);
    }

    #[test]
    fn a_delayed_disk_is_late() {
        let limits = DeviceLimits { delay: "20ms".parse().ok(), ..DeviceLimits::default() };
        let Some(disk) = disk("ext4:32MiB", &limits) else { return };
        // Ten blocks, one after the other, each waited for.
        let output = format!("of={}", disk.directory().join("file").display());
        let start = Instant::now();
        let words = ["if=/dev/zero", &output, "bs=4k", "count=10", "oflag=direct"];
        program::run("dd", &words).unwrap();
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(200), "{took:?}");
    }
}
