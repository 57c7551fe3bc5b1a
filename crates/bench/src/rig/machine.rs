//! The facts about a machine and a run that a reader needs beside the figures.

use std::fs;

use jiff::{Timestamp, Unit};

use crate::record::Run;
use crate::{Error, Result};

/// Begins the record of a run: its name, date and arguments, and what this machine is. The rest is
/// the experiment's to fill in.
///
/// # Errors
/// [`Error::Machine`]: `/proc` is not readable.
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
        congestion_control: text_or_nothing("/proc/sys/net/ipv4/tcp_congestion_control"),
        arguments,
        ..Run::default()
    })
}

fn read(file: &str) -> Result<String> {
    fs::read_to_string(file).map_err(Error::machine(file))
}

/// The text of a file that some machines do not have, as those without IPv4; else nothing.
fn text_or_nothing(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
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
    }

    #[test]
    fn a_file_that_is_not_there_has_no_text() {
        assert_eq!(text_or_nothing("/missing/tcp_congestion_control"), "");
        assert!(!text_or_nothing("/proc/sys/kernel/ostype").is_empty());
    }

    #[test]
    fn this_machine_is_described() {
        let run = begin_run("io", vec!["--ranks=4".to_owned()]).unwrap();
        assert!(run.id.starts_with("io-2") && run.id.ends_with('Z'), "{}", run.id);
        assert!(run.date.parse::<Timestamp>().is_ok(), "{}", run.date);
        assert!(run.cores >= 1 && run.memory_bytes > 64 << 20, "{run:?}");
        assert!(!run.kernel.is_empty() && !run.cpu.is_empty(), "{run:?}");
        assert!(!run.congestion_control.is_empty(), "{run:?}");
    }
}
