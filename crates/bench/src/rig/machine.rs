//! The facts about a machine and a run that a reader needs beside the figures.

use std::fs;
use std::path::Path;

use jiff::{Timestamp, Unit};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::device::BlockDevice;
use crate::record::Run;
use crate::{Error, Result};

/// Begins the record of a run: its name, date and arguments, and what this machine is. The rest is
/// the experiment's to fill in.
///
/// # Errors
/// [`Error::Machine`]: `/proc` is not to be had.
pub fn begin_run(experiment: &str, arguments: Vec<String>) -> Result<Run> {
    let now = Timestamp::now();
    let to = |unit| now.round(unit).map_err(|error| Error::Misuse(format!("the clock: {error}")));
    Ok(Run {
        id: format!("{experiment}-{}", to(Unit::Millisecond)?),
        experiment: experiment.to_owned(),
        date: to(Unit::Second)?.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpu: cpu_model(&read("/proc/cpuinfo")?),
        cores: cores_online(&read("/sys/devices/system/cpu/online")?)
            .ok_or_else(|| invalid("/sys/devices/system/cpu/online"))?,
        memory_bytes: memory_bytes(&read("/proc/meminfo")?)
            .ok_or_else(|| invalid("/proc/meminfo"))?,
        congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control")?.trim().to_owned(),
        arguments,
        ..Run::default()
    })
}

fn read(file: &str) -> Result<String> {
    fs::read_to_string(file).map_err(Error::machine(file))
}

fn invalid(file: &str) -> Error {
    Error::machine(file)(std::io::ErrorKind::InvalidData.into())
}

/// x86 names the model; others may name only numbers, or nothing.
fn cpu_model(cpuinfo: &str) -> String {
    let value = |name: &str| {
        let mut pairs = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    let numbers = || Some(format!("{} part {}", value("CPU implementer")?, value("CPU part")?));
    value("model name").map(str::to_owned).or_else(numbers).unwrap_or_else(|| "unknown".to_owned())
}

/// How many there are in a list like `0-3,6`.
fn cores_online(list: &str) -> Option<u32> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').map(count).sum()
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The file system that a directory is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// As `xfs`, `overlay`.
    pub kind: String,
    /// What was mounted: mostly a device, `/dev/loop0`.
    pub source: String,
    /// Number of the device, or of what stands for it.
    pub(super) number: String,
}

impl FileSystem {
    /// Of a directory or file.
    ///
    /// # Errors
    /// [`Error::Machine`]: it is missing, or `/proc` is.
    pub fn of(path: &Path) -> Result<Self> {
        let what = || Error::machine(format!("file system of {}", path.display()));
        // The number of the mount, which no bind mount or mount over another can deceive.
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID);
        let mount_id = found.map_err(|error| what()(error.into()))?.stx_mnt_id;
        let mounts = read("/proc/self/mountinfo")?;
        Self::of_mount(mount_id, &mounts).ok_or_else(|| what()(std::io::ErrorKind::NotFound.into()))
    }

    /// From the line of `/proc/self/mountinfo` that describes the mount.
    fn of_mount(mount_id: u64, mounts: &str) -> Option<Self> {
        let mut lines = mounts.lines().filter_map(|line| line.split_once(' '));
        let (_, line) = lines.find(|(id, _)| id.parse() == Ok(mount_id))?;
        let number = line.split(' ').nth(1)?.to_owned();
        let (_, system) = line.split_once(" - ")?;
        let mut fields = system.split(' ');
        let kind = fields.next()?.to_owned();
        Some(Self { kind, source: unescaped(fields.next()?), number })
    }

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

/// Blanks and the like are written as `\040`.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                whole.push(char::from(code));
                whole += &part[3..];
            }
            None => {
                whole.push('\\');
                whole += part;
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel_are_understood() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: Quick 9000\n"), "Quick 9000");
        assert_eq!(cpu_model("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"), "0x41 part 0xd0c");
        assert_eq!(cpu_model(""), "unknown");
        assert_eq!(cores_online("0-3,6\n"), Some(5));
        assert_eq!(cores_online("0\n"), Some(1));
        assert_eq!(cores_online("3-0\n"), None);
        assert_eq!(memory_bytes("MemTotal:       16 kB\nMemFree: 1 kB\n"), Some(16 << 10));
        assert_eq!(unescaped(r"/mnt/a\040b\134c"), r"/mnt/a b\c");
        assert_eq!(unescaped(r"odd\"), r"odd\");
    }

    #[test]
    fn a_mount_is_found_by_its_number() {
        let mounts = "22 27 0:21 / /proc rw - proc proc rw\n\
            90 27 0:44 / /mnt/a\\040b rw,noatime shared:1 master:2 - btrfs /dev/vda2 rw,space\n";
        let found = FileSystem::of_mount(90, mounts).unwrap();
        assert_eq!((found.kind.as_str(), found.source.as_str()), ("btrfs", "/dev/vda2"));
        assert_eq!(found.number, "0:44");
        assert_eq!(FileSystem::of_mount(2, mounts), None);
    }

    #[test]
    fn this_machine_is_described() {
        let run = begin_run("io", vec!["--ranks=4".to_owned()]).unwrap();
        assert!(run.id.starts_with("io-2") && run.id.ends_with('Z'), "{}", run.id);
        assert!(run.date.parse::<Timestamp>().is_ok(), "{}", run.date);
        assert!(run.cores >= 1 && run.memory_bytes > 64 << 20, "{run:?}");
        assert!(!run.kernel.is_empty() && !run.cpu.is_empty(), "{run:?}");
        assert!(!run.congestion_control.is_empty(), "{run:?}");
        assert_eq!(FileSystem::described(Path::new("/proc")).unwrap(), "proc");
        assert!(FileSystem::of(Path::new("/missing/directory")).is_err());
    }
}
