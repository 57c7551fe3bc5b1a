//! The costs of a process: processor time and memory.

use std::fs;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;

use super::memory_group::MemoryGroup;
use crate::{Error, Result};

/// The processor time of a process since its start, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    /// Exact, but not split.
    total: Duration,
    /// In steps of 10 ms, as a rule; their ratio splits the total.
    user_ticks: u64,
    system_ticks: u64,
}

/// Processor time between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuSecs {
    /// In the program.
    pub user: f64,
    /// In the kernel on its behalf.
    pub system: f64,
}

impl CpuTime {
    /// Of process `pid` and all the threads that it has or had.
    ///
    /// # Errors
    /// [`Error::Machine`]: there is no such process.
    pub fn of(pid: u32) -> Result<Self> {
        let no_process = || Error::machine(format!("processor time of process {pid}"));
        let total = io::process_cpu_time(pid).map_err(no_process())?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(no_process())?;
        let (user_ticks, system_ticks) = ticks(&stat)
            .ok_or_else(|| no_process()(std::io::Error::from(std::io::ErrorKind::InvalidData)))?;
        Ok(Self { total, user_ticks, system_ticks })
    }

    /// Of this process.
    ///
    /// # Errors
    /// As [`CpuTime::of`]: without `/proc`.
    pub fn of_self() -> Result<Self> {
        Self::of(std::process::id())
    }

    /// The processor time since `earlier`. The sum is exact. User and system time are split by the
    /// ticks that the kernel sampled since then; without any, by those since the start of the
    /// process.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> CpuSecs {
        let secs = self.total.saturating_sub(earlier.total).as_secs_f64();
        let user = self.user_ticks.saturating_sub(earlier.user_ticks);
        let system = self.system_ticks.saturating_sub(earlier.system_ticks);
        let user_part = match (user + system, self.user_ticks + self.system_ticks) {
            (0, 0) => 0.0,
            (0, ticks) => ratio(self.user_ticks, ticks),
            (ticks, _) => ratio(user, ticks),
        };
        CpuSecs { user: secs * user_part, system: secs * (1.0 - user_part) }
    }
}

impl CpuSecs {
    /// Both.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.user + self.system
    }
}

/// User and system time out of `/proc/PID/stat`. The name of the program before them may hold
/// anything, also parentheses.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, behind_name) = stat.rsplit_once(") ")?;
    let mut fields = behind_name.split(' ').skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Processor time of all processes and kernel threads since boot: write-back belongs to no process.
/// Idle time and waiting for disks do not count; time that a hypervisor took away does not either.
///
/// # Errors
/// [`Error::Machine`]: `/proc/stat` is not readable.
pub fn machine_cpu_secs() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat").map_err(Error::machine("/proc/stat"))?;
    let ticks = machine_ticks(&stat).ok_or_else(|| {
        Error::machine("/proc/stat")(std::io::Error::from(std::io::ErrorKind::InvalidData))
    })?;
    Ok(ratio(ticks, clock_ticks_per_second()))
}

/// user, nice, system, irq and softirq of the first line.
fn machine_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields = line
        .split_whitespace()
        .map(str::parse)
        .collect::<std::result::Result<Vec<u64>, _>>()
        .ok()?;
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = fields[..] else { return None };
    Some(user + nice + system + irq + softirq)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

/// A server process to look at while it works.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The process.
    pub pid: u32,
    /// Its memory cgroup, if it is in one of its own, or of its service.
    pub memory_group: Option<MemoryGroup>,
}

impl Watched {
    /// A process that another program started.
    ///
    /// # Errors
    /// [`Error::Machine`]: there is no such process.
    pub fn new(pid: u32) -> Result<Self> {
        CpuTime::of(pid)?;
        Ok(Self { pid, memory_group: MemoryGroup::of(pid)? })
    }

    /// The processor time of the process so far.
    ///
    /// # Errors
    /// [`Error::Server`]: it is gone.
    pub fn cpu_time(&self) -> Result<CpuTime> {
        CpuTime::of(self.pid).map_err(|_| self.gone())
    }

    /// The context switches of its threads so far, voluntary or not; those of threads that have
    /// ended are not among them.
    ///
    /// # Errors
    /// [`Error::Server`]: it is gone.
    pub fn switches(&self) -> Result<u64> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
        let mut switches = 0;
        for thread in threads.map_err(|_| self.gone())? {
            let thread = thread.map_err(|_| self.gone())?;
            // One that has ended since has no file any more.
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            switches += switches_in(&status);
        }
        Ok(switches)
    }

    /// Its resident memory now.
    ///
    /// # Errors
    /// [`Error::Server`]: it is gone.
    pub fn rss_bytes(&self) -> Result<u64> {
        self.status_bytes("VmRSS:")
    }

    /// Its largest resident memory since its start, or since [`Watched::forget_rss_max`].
    ///
    /// # Errors
    /// [`Error::Server`]: it is gone.
    pub fn rss_bytes_max(&self) -> Result<u64> {
        self.status_bytes("VmHWM:")
    }

    /// Begins [`Watched::rss_bytes_max`] anew.
    ///
    /// # Errors
    /// [`Error::Machine`]: it is another user's process, or gone.
    pub fn forget_rss_max(&self) -> Result<()> {
        let file = format!("/proc/{}/clear_refs", self.pid);
        fs::write(&file, "5").map_err(Error::machine(file))
    }

    fn status_bytes(&self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid));
        let status = status.map_err(|_| self.gone())?;
        kib_of(&status, field).map(|kib| kib * 1024).ok_or_else(|| self.gone())
    }

    fn gone(&self) -> Error {
        Error::Server(format!("server process {} has ended", self.pid))
    }
}

/// The sum of the lines `voluntary_ctxt_switches: 12` and `nonvoluntary_ctxt_switches: 3`.
fn switches_in(status: &str) -> u64 {
    let counts = status.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
    counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}

/// The value of a line `VmRSS:    1234 kB`. A process that is gone and not waited for has none.
fn kib_of(status: &str, field: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn switches_of_a_thread_are_those_of_both_kinds() {
        let status = "Threads:\t1\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(switches_in(status), 15);
        assert_eq!(switches_in("Threads:\t1\n"), 0);
    }

    #[test]
    fn each_wait_of_a_thread_is_a_switch() {
        // Of one thread, which waits for each line: this process's threads come and go.
        let mut echo = Command::new("cat");
        let mut echo = echo.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut lines, mut echoed) = (echo.stdin.take().unwrap(), echo.stdout.take().unwrap());
        let watched = Watched::new(echo.id()).unwrap();
        let mut exchange = || {
            lines.write_all(b"\n").unwrap();
            echoed.read_exact(&mut [0]).unwrap();
            // Until it waits again, or has lost its processor.
            std::thread::sleep(Duration::from_millis(1));
        };
        exchange();
        let before = watched.switches().unwrap();
        (0..20).for_each(|_| exchange());
        assert!(watched.switches().unwrap() >= before + 20);
        drop(lines);
        echo.wait().unwrap();
    }

    #[test]
    fn fields_are_found_behind_an_odd_name() {
        let stat = "17 (a) b (c) S 1 17 17 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 3 0 100 1 1";
        assert_eq!(ticks(stat), Some((250, 50)));
        assert_eq!(ticks("17 (cut) S 1"), None);
        assert_eq!(machine_ticks("cpu  1 2 3 40 50 6 7 8 0 0\ncpu0 1\n"), Some(19));
        assert_eq!(machine_ticks("cpu  1 2\n"), None);
        assert_eq!(kib_of("VmHWM:\t  99 kB\nVmRSS:\t   7 kB\n", "VmRSS:"), Some(7));
        assert_eq!(kib_of("State:\tZ (zombie)\n", "VmRSS:"), None);
    }

    #[test]
    fn the_split_sums_to_the_total() {
        let at = |ms, user_ticks, system_ticks| CpuTime {
            total: Duration::from_millis(ms),
            user_ticks,
            system_ticks,
        };
        let since = |later: CpuTime, earlier: CpuTime| {
            let CpuSecs { user, system } = later.since(&earlier);
            ((user * 1e6).round(), (system * 1e6).round())
        };
        assert_eq!(since(at(1400, 60, 80), at(1000, 50, 50)), (100_000.0, 300_000.0));
        assert_eq!(since(at(1004, 75, 25), at(1000, 75, 25)), (3_000.0, 1_000.0));
        assert_eq!(since(at(4, 0, 0), at(0, 0, 0)), (0.0, 4_000.0));
    }

    #[test]
    fn work_shows_in_both_clocks() {
        let (before, machine_before) = (CpuTime::of_self().unwrap(), machine_cpu_secs().unwrap());
        let spun = Duration::from_millis(100);
        while CpuTime::of_self().unwrap().total - before.total < spun {}
        let spent = CpuTime::of_self().unwrap().since(&before);
        assert!(spent.total() >= spun.as_secs_f64(), "{spent:?}");
        // The machine's clock samples: a tick may be missing at either end.
        let machine = machine_cpu_secs().unwrap() - machine_before;
        assert!(machine >= spun.as_secs_f64() / 2.0, "{machine}");
    }

    #[test]
    fn memory_that_is_touched_is_resident() {
        // A process of its own: other tests of this one free their memory meanwhile. It keeps the
        // end of what it reads.
        let mut child = std::process::Command::new("tail")
            .args(["-c", "64M"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let watched = Watched { pid: child.id(), memory_group: None };
        let mut input = child.stdin.take().unwrap();
        // More than a pipe holds: it has begun.
        std::io::Write::write_all(&mut input, &vec![1; 1 << 20]).unwrap();
        let before = watched.rss_bytes().unwrap();
        std::io::Write::write_all(&mut input, &vec![1; 64 << 20]).unwrap();
        let during = watched.rss_bytes().unwrap();
        let most = watched.rss_bytes_max().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(during >= before + (48 << 20), "{before} to {during}");
        // Both are sums of counters that each processor keeps and hands in now and then.
        let apart = 8 << 20;
        assert!(most + apart >= during, "{most}, {during}");
    }

    #[test]
    fn an_ended_process_is_detected() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let watched = Watched { pid: child.id(), memory_group: None };
        assert!(matches!(watched.rss_bytes(), Err(Error::Server(_))));
        assert!(matches!(watched.cpu_time(), Err(Error::Server(_))));
        assert!(matches!(Watched::new(child.id()), Err(Error::Machine { .. })));
    }
}
