//! Block devices: which one is under a directory, and what it read and wrote.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::file_system::FileSystem;
use crate::{Error, Result};

/// The unit of `/sys/dev/block/*/stat`, whatever the device's own.
const SECTOR_BYTES: u64 = 512;

/// A block device, or a partition of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// As sysfs and cgroups name it: `7:0`.
    pub number: String,
    /// As `/dev/loop0`.
    pub name: String,
}

/// The finished I/O of a device since boot, or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTraffic {
    /// Bytes from the medium.
    pub read: u64,
    /// Bytes to the medium; discarded bytes are not.
    pub written: u64,
    /// Requests that read, after those that the kernel has joined.
    pub reads: u64,
    /// Requests that wrote.
    pub writes: u64,
}

impl BlockDevice {
    /// The device that the file system of `directory` is on; `None` if it has none of its own, as
    /// tmpfs and overlays. Of a Btrfs on several it is the one that was named when mounting.
    ///
    /// # Errors
    /// [`Error::Machine`]: the directory is missing, or `/proc` is.
    pub fn under(directory: &Path) -> Result<Option<Self>> {
        let system = FileSystem::of(directory)?;
        // Btrfs shows a number of its own making, so its device is asked.
        let number = match fs::metadata(&system.source) {
            Ok(source) if source.file_type().is_block_device() => number(source.rdev()),
            Ok(_) | Err(_) => system.number.clone(),
        };
        if !sysfs(&number).is_dir() {
            return Ok(None);
        }
        Self::numbered(number).map(Some)
    }

    /// The device at `path`.
    ///
    /// # Errors
    /// [`Error::Machine`]: it is not there.
    pub(super) fn at(path: &str) -> Result<Self> {
        let device = fs::metadata(path).map_err(Error::machine(path))?.rdev();
        Self::numbered(number(device))
    }

    /// The device of this number.
    ///
    /// # Errors
    /// [`Error::Machine`]: there is none.
    pub(super) fn numbered(number: String) -> Result<Self> {
        let link = sysfs(&number);
        let target = fs::read_link(&link).map_err(Error::machine(link.display().to_string()))?;
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        // Names with a slash have a `!` in sysfs.
        let name = format!("/dev/{}", name.replace('!', "/"));
        Ok(Self { number, name })
    }

    /// The whole device, if this is a partition: limits are set on disks only.
    ///
    /// # Errors
    /// [`Error::Machine`]: it is gone.
    pub(super) fn disk(&self) -> Result<Self> {
        let own = sysfs(&self.number);
        if !own.join("partition").exists() {
            return Ok(self.clone());
        }
        let file = own.join("../dev");
        let number = fs::read_to_string(&file).map_err(Error::machine(self.name.as_str()))?;
        Self::numbered(number.trim().to_owned())
    }

    /// Its size, in units of 512 bytes.
    ///
    /// # Errors
    /// [`Error::Machine`]: it is gone.
    pub(super) fn sectors(&self) -> Result<u64> {
        let what = || Error::machine(format!("size of {}", self.name));
        let text = fs::read_to_string(sysfs(&self.number).join("size")).map_err(what())?;
        text.trim().parse().map_err(|_| what()(std::io::ErrorKind::InvalidData.into()))
    }

    /// Its I/O since boot, by all its users. Requests in flight are not counted.
    ///
    /// # Errors
    /// [`Error::Machine`]: it is gone.
    pub fn traffic(&self) -> Result<DeviceTraffic> {
        let file = sysfs(&self.number).join("stat");
        let what = || Error::machine(format!("counters of {}", self.name));
        let text = fs::read_to_string(file).map_err(what())?;
        moved(&text).ok_or_else(|| what()(std::io::ErrorKind::InvalidData.into()))
    }
}

impl FileSystem {
    /// File system and device under `directory`, as records tell them: `xfs, /dev/loop0`.
    ///
    /// # Errors
    /// [`Error::Machine`]: the directory is missing, or `/proc` is.
    pub fn described(directory: &Path) -> Result<String> {
        let system = Self::of(directory)?;
        Ok(match BlockDevice::under(directory)? {
            Some(device) => format!("{}, {}", system.kind, device.name),
            None => system.kind,
        })
    }
}

impl DeviceTraffic {
    /// The I/O since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            read: self.read.saturating_sub(earlier.read),
            written: self.written.saturating_sub(earlier.written),
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
        }
    }
}

fn sysfs(number: &str) -> PathBuf {
    Path::new("/sys/dev/block").join(number)
}

fn number(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// The first fields of a `stat`: requests that read, those joined to others, sectors read, and time
/// taken; then the same of writing.
fn moved(text: &str) -> Option<DeviceTraffic> {
    let fields = text.split_whitespace().take(8).map(|field| field.parse().ok());
    let fields: Vec<u64> = fields.collect::<Option<_>>()?;
    let &[reads, _, read, _, writes, _, written, _] = &fields[..] else { return None };
    Some(DeviceTraffic {
        read: read * SECTOR_BYTES,
        written: written * SECTOR_BYTES,
        reads,
        writes,
    })
}

#[cfg(test)]
mod tests {
    use super::super::program;
    use super::*;
    use crate::skip::skip_in_ci_too;

    #[test]
    fn sectors_are_found() {
        let text = "  3009   8  100  77  5  0  200  1 0 1 1 0 0 0 0 0 0\n";
        assert_eq!(
            moved(text),
            Some(DeviceTraffic { read: 51_200, written: 102_400, reads: 3009, writes: 5 })
        );
        assert_eq!(moved("1 2 3"), None);
    }

    #[test]
    fn direct_io_of_dd_is_counted() {
        const MIB: u64 = 1 << 20;
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let Some(device) = BlockDevice::under(directory.path()).unwrap() else {
            return skip_in_ci_too("no block device under /var/tmp");
        };
        let file = directory.path().join("file").display().to_string();
        let before = device.traffic().unwrap();
        let (input, output) = (format!("if={file}"), format!("of={file}"));
        let write = ["if=/dev/zero", &output, "bs=1M", "count=16", "oflag=direct"];
        if let Err(error) = program::run("dd", &write) {
            return skip_in_ci_too(error);
        }
        program::run("dd", &[&input, "of=/dev/null", "bs=1M", "iflag=direct"]).unwrap();
        let moved = device.traffic().unwrap().since(&before);
        // Others may use the device too, so there is no upper bound here.
        assert!(moved.read >= 16 * MIB && moved.written >= 16 * MIB, "{moved:?}");
    }

    #[test]
    fn file_systems_without_a_device_have_none() {
        assert_eq!(BlockDevice::under(Path::new("/proc")).unwrap(), None);
        assert!(BlockDevice::under(Path::new("/missing/directory")).is_err());
    }
}
