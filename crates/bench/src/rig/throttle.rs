//! Bounds on what a device does, by cgroups.

use std::fs;
use std::path::{Path, PathBuf};

use super::device::BlockDevice;
use super::limits::DeviceLimits;
use super::memory_group::MemoryGroup;
use super::scratch_disk::ScratchDisk;
use super::undo::Undo;
use crate::{Error, Result};

/// Lifts the limits of device `$1` in the root group `$2`. They went with the device if that is
/// gone.
const LIFT_V1: &str = r#"
for limit in read_bps write_bps read_iops write_iops; do
    echo "$1 0" 2>/dev/null > "$2/blkio.throttle.${limit}_device"
done
true"#;

/// Limits of a device in force. Lifted when dropped, also if this process is killed.
#[derive(Debug)]
pub struct Throttle {
    /// `None` if they end with the group that has them.
    _undo: Option<Undo>,
}

impl Throttle {
    /// Applies rate and requests of `limits` to the device under `directory`; its delay is
    /// [`ScratchDisk`]'s. With version 1 of the controller the limits are for all users of
    /// the device, which charges write-back to no group: so it must be that of `scratch`. With
    /// version 2 they are for the processes in `group`, and the write-back that they cause.
    ///
    /// # Errors
    /// [`Error::Misuse`]: the device, or the group, is not such a one. [`Error::Machine`]: no
    /// controller, or no right to set it.
    pub fn apply(
        limits: &DeviceLimits,
        directory: &Path,
        scratch: Option<&ScratchDisk>,
        group: Option<&MemoryGroup>,
    ) -> Result<Self> {
        if !limits.bounds_throughput() {
            return Ok(Self { _undo: None });
        }
        let device = BlockDevice::under(directory)?.ok_or_else(|| {
            let directory = directory.display();
            Error::Misuse(format!("{directory} is not on a block device whose I/O can be limited"))
        })?;
        let mounts = "/proc/self/mountinfo";
        let mounts = fs::read_to_string(mounts).map_err(Error::machine(mounts))?;
        if let Some(root) = mounts.lines().find_map(blkio_root) {
            if scratch.map(ScratchDisk::device) != Some(&device) {
                return Err(Error::Misuse(
                    "this machine can only bound a device for everybody (cgroups version 1), so it \
                     is done only to a file system of the experiment's own (--scratch)"
                        .to_owned(),
                ));
            }
            return Self::of_everybody(limits, &device, &root);
        }
        let group = group.ok_or_else(|| {
            let why = "the limits of a device need a cgroup for the server, and there is none";
            Error::Misuse(why.to_owned())
        })?;
        let file = group.io_limits()?;
        let text = io_max(&device.disk()?, limits);
        fs::write(&file, text).map_err(Error::machine(format!("limits in {}", file.display())))?;
        Ok(Self { _undo: None })
    }

    fn of_everybody(limits: &DeviceLimits, device: &BlockDevice, root: &Path) -> Result<Self> {
        let undo = Undo::new(LIFT_V1, &[device.number.as_ref(), root.as_os_str()])?;
        for (name, limit) in throttles(limits) {
            let file = root.join(format!("blkio.throttle.{name}_device"));
            fs::write(&file, format!("{} {limit}", device.number))
                .map_err(Error::machine(format!("limits in {} (root may)", file.display())))?;
        }
        Ok(Self { _undo: Some(undo) })
    }
}

/// The limits, in bytes or requests per second, by their names in version 1:
/// `blkio.throttle.NAME_device`.
fn throttles(limits: &DeviceLimits) -> Vec<(&'static str, u64)> {
    let rate = limits.rate.map(|rate| rate.0);
    let operations = limits.operations_per_sec.map(u64::from);
    let all = [
        ("read_bps", rate),
        ("write_bps", rate),
        ("read_iops", operations),
        ("write_iops", operations),
    ];
    all.into_iter().filter_map(|(name, limit)| Some((name, limit?))).collect()
}

/// The line for a device in `io.max` of version 2.
fn io_max(device: &BlockDevice, limits: &DeviceLimits) -> String {
    let names = [("read_bps", "rbps"), ("write_bps", "wbps"), ("read_iops", "riops")];
    let mut text = device.number.clone();
    for (name, limit) in throttles(limits) {
        let name = names.iter().find(|(old, _)| *old == name).map_or("wiops", |(_, new)| new);
        text += &format!(" {name}={limit}");
    }
    text
}

/// Where a line of mountinfo mounts the root group of version 1's controller.
fn blkio_root(line: &str) -> Option<PathBuf> {
    let (mount, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    let (kind, options) = (system.next()?, system.nth(1)?);
    let mut mount = mount.split(' ').skip(3);
    let (shown, path) = (mount.next()?, mount.next()?);
    let is_root = shown == "/" && kind == "cgroup" && options.split(',').any(|it| it == "blkio");
    is_root.then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> DeviceLimits {
        DeviceLimits {
            rate: "10MiB/s".parse().ok(),
            operations_per_sec: Some(500),
            delay: "5ms".parse().ok(),
        }
    }

    #[test]
    fn limits_are_written_as_the_kernel_reads_them() {
        let device = BlockDevice { number: "7:3".to_owned(), name: "/dev/loop3".to_owned() };
        let rate: u64 = 10 << 20;
        let expected = format!("7:3 rbps={rate} wbps={rate} riops=500 wiops=500");
        assert_eq!(io_max(&device, &limits()), expected);
        let only = DeviceLimits { rate: None, delay: None, ..limits() };
        assert_eq!(throttles(&only), [("read_iops", 500), ("write_iops", 500)]);
    }

    #[test]
    fn the_root_of_version_1_is_found() {
        let line = "40 30 0:33 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio";
        assert_eq!(blkio_root(line), Some("/sys/fs/cgroup/blkio".into()));
        let part = "40 30 0:33 /a /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio";
        assert_eq!(blkio_root(part), None);
        let unified = "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(blkio_root(unified), None);
    }

    #[test]
    fn the_disks_of_others_are_not_throttled() {
        let error = Throttle::apply(&limits(), Path::new("/var/tmp"), None, None).unwrap_err();
        assert!(matches!(error, Error::Misuse(_)), "{error}");
        let nothing = DeviceLimits { rate: None, operations_per_sec: None, ..limits() };
        assert!(Throttle::apply(&nothing, Path::new("/var/tmp"), None, None).is_ok());
    }
}
