//! How much memory the page cache could still take without pushing anything out.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How old a figure may be. A fast disk brings in 100 MiB in this time.
const SAMPLE_AGE_MAX: Duration = Duration::from_millis(50);

/// Memory of the machine or, where that is less, of the control groups this process is in.
#[derive(Debug)]
pub struct Memory {
    groups: Vec<MemoryGroup>,
    started: Instant,
    /// When the figures were taken, in milliseconds since `started`.
    sampled_ms: AtomicU64,
    free_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

/// The limit of one control group and what it uses, page cache included.
#[derive(Debug, PartialEq, Eq)]
struct MemoryGroup {
    limit: PathBuf,
    usage: PathBuf,
}

impl Memory {
    /// The memory of this process, found out now.
    #[must_use]
    pub fn new() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let groups = memory_groups(&own).into_iter().filter(|group| group.limit.exists()).collect();
        let memory = Self {
            groups,
            started: Instant::now(),
            sampled_ms: AtomicU64::new(0),
            free_bytes: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
        };
        memory.sample();
        memory
    }

    /// Unused memory in bytes, page cache not included, at most 50 ms old.
    pub fn free_bytes(&self) -> u64 {
        self.refresh();
        self.free_bytes.load(Ordering::Relaxed)
    }

    /// Bytes there are in all.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes.load(Ordering::Relaxed)
    }

    fn refresh(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let sampled = self.sampled_ms.load(Ordering::Relaxed);
        let due = Duration::from_millis(now.saturating_sub(sampled)) >= SAMPLE_AGE_MAX;
        let order = Ordering::Relaxed;
        // One caller takes the sample; the others go on with the last one.
        if due && self.sampled_ms.compare_exchange(sampled, now, order, order).is_ok() {
            self.sample();
        }
    }

    fn sample(&self) {
        let (mut free, mut total) = machine_memory();
        for group in &self.groups {
            let (Some(limit), Some(usage)) = (number_in(&group.limit), number_in(&group.usage))
            else {
                continue;
            };
            free = free.min(limit.saturating_sub(usage));
            total = total.min(limit);
        }
        self.free_bytes.store(free, Ordering::Relaxed);
        self.total_bytes.store(total, Ordering::Relaxed);
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

/// Free and total memory of the machine, in bytes.
fn machine_memory() -> (u64, u64) {
    // SAFETY: `sysinfo` is a struct of integers, for which all zeros is a valid value.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a whole `sysinfo` of ours, which the call fills.
    let failed = unsafe { libc::sysinfo(&raw mut info) } != 0;
    // It fails for a bad pointer only. Nothing free is the answer that does no harm.
    if failed {
        return (0, 0);
    }
    let unit = u64::from(info.mem_unit);
    (info.freeram.saturating_mul(unit), info.totalram.saturating_mul(unit))
}

/// The memory control groups of a process, from `/proc/PID/cgroup` (cgroups(7)), innermost first:
/// a limit of any of them counts. In a container the paths may be the host's, with nothing there;
/// the group's own files then lie at the top.
fn memory_groups(own: &str) -> Vec<MemoryGroup> {
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (top, limit, usage) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max", "memory.current")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            continue;
        };
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let group = Path::new(top).join(group);
            groups.push(MemoryGroup { limit: group.join(limit), usage: group.join(usage) });
        }
    }
    groups
}

/// The number in a file; `None` for "max" and for what cannot be read.
fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions_are_found_up_to_the_top() {
        let found = memory_groups("5:devices:/\n4:memory:/a/b\n0::/user.slice\nnonsense\n");
        let limits: Vec<_> = found.iter().map(|group| group.limit.to_str().unwrap()).collect();
        assert_eq!(
            limits,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/user.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
    }

    #[test]
    fn the_tightest_limit_counts() {
        let dir = tempfile::tempdir().unwrap();
        let group = MemoryGroup { limit: dir.path().join("l"), usage: dir.path().join("u") };
        fs::write(&group.limit, "1048576\n").unwrap();
        fs::write(&group.usage, "1000000\n").unwrap();
        let unlimited = MemoryGroup { limit: dir.path().join("m"), usage: dir.path().join("u") };
        fs::write(&unlimited.limit, "max\n").unwrap();
        let memory = Memory { groups: vec![unlimited, group], ..Memory::new() };
        memory.sample();
        assert_eq!((memory.free_bytes(), memory.total_bytes()), (48_576, 1_048_576));
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = Memory::new();
        assert!(memory.total_bytes() > 0);
        assert!(memory.free_bytes() <= memory.total_bytes());
    }
}
