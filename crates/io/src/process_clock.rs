//! How long a process was on a processor.

use std::io;
use std::time::Duration;

/// User and system time of all threads of process `pid` since its start, of those that ended too,
/// in nanoseconds. `/proc/PID/stat` counts the same in steps of 10 ms.
///
/// # Errors
/// `ESRCH` if there is no such process; also once it was waited for. `EPERM` is not among them:
/// the time is everybody's to read.
pub fn process_cpu_time(pid: u32) -> io::Result<Duration> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` outlives the call, which writes one clockid_t there and keeps no pointer.
    let outcome = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if outcome != 0 {
        return Err(io::Error::from_raw_os_error(outcome));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes one timespec there and keeps no pointer.
    let outcome = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if outcome != 0 {
        let error = io::Error::last_os_error();
        // The process ended after its clock was found.
        let ended = error.raw_os_error() == Some(libc::EINVAL);
        return Err(if ended { io::Error::from_raw_os_error(libc::ESRCH) } else { error });
    }
    let secs =
        u64::try_from(time.tv_sec).expect("a process is not on a processor before its start");
    let nanos = u32::try_from(time.tv_nsec).expect("the kernel keeps it below a second");
    Ok(Duration::new(secs, nanos))
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    #[test]
    fn threads_that_ended_count() {
        let spun = Duration::from_millis(50);
        let before = process_cpu_time(std::process::id()).unwrap();
        std::thread::spawn(move || {
            // A new thread's own clock begins at 0.
            let own = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
            while own() < spun {}
        })
        .join()
        .unwrap();
        let after = process_cpu_time(std::process::id()).unwrap();
        assert!(after - before >= spun, "{before:?} to {after:?}");
    }

    #[test]
    fn a_sleeping_child_uses_little_time_and_an_ended_one_has_none() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(process_cpu_time(child.id()).unwrap() < Duration::from_secs(1));
        child.kill().unwrap();
        child.wait().unwrap();
        let error = process_cpu_time(child.id()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        assert!(process_cpu_time(u32::MAX).is_err());
    }
}
