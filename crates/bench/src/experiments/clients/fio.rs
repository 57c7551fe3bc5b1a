//! fio with its nfs engine.
//!
//! A job sends COMMIT when it closes the file, after the last I/O that fio times, and fio itself
//! checks for the end of its jobs ten times a second. So the job processes are watched from here: a
//! WRITE is durable when the last of them has ended.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use super::{Check, Done, Started, failed, wait_a_little};
use crate::figure::Figure;
use crate::{Error, Result};

/// A run of fio on one file.
pub(super) struct Job {
    /// As `--rw` has it.
    pub(super) operation: &'static str,
    pub(super) block_bytes: u64,
    /// Processes, each with a connection and one call in flight: the engine can no more.
    pub(super) jobs: u16,
    pub(super) file_bytes: u64,
    pub(super) bytes_by_job: u64,
}

/// How often new job processes are searched for.
const SEARCH_EVERY: Duration = Duration::from_millis(5);

/// The longest wait for the end of fio once it was asked to end.
const END_MAX: Duration = Duration::from_secs(3);

/// Job processes by number; without a descriptor when they have ended.
type Seen = BTreeMap<u32, Option<OwnedFd>>;

impl Job {
    /// The phase: `fio-write-47008`.
    pub(super) fn phase(&self) -> String {
        format!("fio-{}-{}", self.operation, self.block_bytes)
    }

    fn is_write(&self) -> bool {
        self.operation == "write"
    }
}

/// Runs a job in `directory` of the export at `url`. Each size of blocks has its own file; a random
/// job reads that of the largest blocks.
pub(super) fn run(job: &Job, url: &str, directory: &str, check: Check<'_>) -> Result<Done> {
    let file = if job.operation == "randread" { super::EASY_BYTES } else { job.block_bytes };
    let mut command = Command::new("fio");
    command
        .args(["--name=job", "--ioengine=nfs", "--iodepth=1", "--group_reporting"])
        .args(["--output-format=json", "--fallocate=none"])
        .arg(format!("--nfs_url={url}"))
        .arg(format!("--filename=/{directory}/data-{file}"))
        .arg(format!("--rw={}", job.operation))
        .arg(format!("--bs={}", job.block_bytes))
        .arg(format!("--size={}", job.file_bytes))
        .arg(format!("--io_size={}", job.bytes_by_job))
        .arg(format!("--numjobs={}", job.jobs));
    let output = tempfile::tempfile().map_err(Error::machine("cannot make a temporary file"))?;
    let stdout = output.try_clone().map_err(Error::machine("cannot duplicate a descriptor"))?;
    command.stdout(stdout).stderr(Stdio::null());
    let Started { child: mut fio, undo, .. } = super::start(&mut command)?;
    let mut seen = BTreeMap::new();
    let ended = watch(&mut fio, job.jobs, check, &mut seen);
    if ended.is_err() {
        end(&mut fio, seen);
    }
    undo.revoke();
    let ended_ms = ended?;
    let mut text = String::new();
    let read =
        std::io::Seek::rewind(&mut &output).and_then(|()| (&output).read_to_string(&mut text));
    read.map_err(Error::machine("cannot read the output of fio"))?;
    let report = text.find('{').and_then(|at| serde_json::from_str(&text[at..]).ok());
    report.as_ref().and_then(|report| done(job, report, ended_ms)).ok_or_else(|| {
        // fio ends with status 0 where the engine could not even open the file.
        let words: String = text.chars().take(300).collect();
        failed(format!("fio transferred no data: {words}"), check)
    })
}

/// Ends fio and its jobs, which are in sessions of their own: they outlive a fio that is killed,
/// and one that is asked to end takes them along.
fn end(fio: &mut Child, mut seen: Seen) {
    ask_to_end(fio, &mut seen);
    let began = Instant::now();
    while began.elapsed() < END_MAX && matches!(fio.try_wait(), Ok(None)) {
        thread::sleep(SEARCH_EVERY);
    }
    drop(fio.kill());
    drop(fio.wait());
    for job in seen.values().flatten() {
        let _ = pidfd_send_signal(job, Signal::KILL);
    }
}

/// Looks for jobs of fio once more, and asks it to end; `false` if it has ended. The number of a
/// process that was waited for may be another's by now.
fn ask_to_end(fio: &mut Child, seen: &mut Seen) -> bool {
    if !matches!(fio.try_wait(), Ok(None)) {
        return false;
    }
    see_jobs(fio, seen);
    kill_process(Pid::from_child(fio), Signal::TERM).is_ok()
}

/// Figures of a report; `None` if fio did not do all of the job.
fn done(job: &Job, report: &Value, ended_ms: f64) -> Option<Done> {
    let all = report.get("jobs")?.get(0)?;
    let side = all.get(if job.is_write() { "write" } else { "read" })?;
    let bytes = side.get("io_bytes")?.as_u64()?;
    if bytes < job.bytes_by_job * u64::from(job.jobs) {
        return None;
    }
    let secs = match job.is_write() {
        true => (ended_ms - all.get("job_start")?.as_f64()?) / 1e3,
        false => side.get("runtime")?.as_f64()? / 1e3,
    };
    let percentiles = side.get("clat_ns")?.get("percentile");
    let latency =
        |(figure, name): (Figure, &str)| Some((figure, percentiles?.get(name)?.as_f64()? / 1e3));
    let named = [
        (Figure::LatencyP50Us, "50.000000"),
        (Figure::LatencyP95Us, "95.000000"),
        (Figure::LatencyP99Us, "99.000000"),
        (Figure::LatencyP999Us, "99.900000"),
    ];
    let latencies = named.into_iter().filter_map(latency).collect();
    Some(Done { bytes, operations: side.get("total_ios")?.as_u64(), secs, latencies })
}

/// Waits until fio has ended; when the last of its jobs ended, in milliseconds of Unix time.
fn watch(fio: &mut Child, jobs: u16, check: Check<'_>, seen: &mut Seen) -> Result<f64> {
    let mut ended_ms = 0.0;
    loop {
        let status = fio.try_wait().map_err(Error::machine("cannot wait for fio"))?;
        match status {
            Some(status) if !status.success() => {
                let why = format!("fio: {status}; does it have the nfs engine?");
                return Err(failed(why, check));
            }
            Some(_) if seen.len() < usize::from(jobs) => {
                return Err(failed("fio ended before its jobs started".to_owned(), check));
            }
            Some(_) => return Ok(ended_ms),
            None => check()?,
        }
        if seen.len() < usize::from(jobs) {
            see_jobs(fio, seen);
            thread::sleep(SEARCH_EVERY);
        } else if seen.values().all(Option::is_none) {
            thread::sleep(SEARCH_EVERY);
        }
        let is_end = wait_for_one(seen)?;
        if is_end {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            ended_ms = now.as_secs_f64() * 1e3;
        }
    }
}

fn see_jobs(fio: &Child, seen: &mut Seen) {
    for pid in children(fio.id()) {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let open = |pid| pidfd_open(pid, PidfdFlags::empty()).ok();
        // The job may have ended, and another process may have got its number.
        let is_job = |_: &OwnedFd| parent(pid) == Some(fio.id());
        seen.entry(pid).or_insert_with(|| raw.and_then(open).filter(is_job));
    }
}

/// Waits a little for the end of a job, and forgets the descriptors of those that ended.
fn wait_for_one(seen: &mut Seen) -> Result<bool> {
    let mut ended = Vec::new();
    {
        let open =
            || seen.iter().filter_map(|(pid, descriptor)| Some((*pid, descriptor.as_ref()?)));
        let mut polled: Vec<_> =
            open().map(|(_, descriptor)| PollFd::new(descriptor, PollFlags::IN)).collect();
        if polled.is_empty() {
            return Ok(false);
        }
        wait_a_little(&mut polled).map_err(Error::machine("cannot wait for fio's jobs"))?;
        let pids = open().map(|(pid, _)| pid);
        ended.extend(
            pids.zip(&polled).filter(|(_, one)| !one.revents().is_empty()).map(|(pid, _)| pid),
        );
    }
    for pid in &ended {
        seen.insert(*pid, None);
    }
    Ok(!ended.is_empty())
}

/// The processes whose parent is `number`.
fn children(number: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| parent(*pid) == Some(number)).collect()
}

/// The parent of a process; `None` if there is no such process.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have blanks; state and parent follow it.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;
    use crate::stop::Stop;

    #[test]
    fn fio_that_a_request_to_stop_has_ended_did_not_fail() {
        let mut ended = Command::new("false").spawn().unwrap();
        ended.wait().unwrap();
        let mut watched = |stop: Stop| watch(&mut ended, 1, &|| stop.check(), &mut Seen::new());
        assert!(matches!(watched(Stop::wanted()), Err(Error::Interrupted)));
        assert!(matches!(watched(Stop::default()), Err(Error::Program(_))));
    }

    #[test]
    fn only_a_process_that_runs_is_asked_to_end() {
        let start = |seconds| Command::new("sleep").arg(seconds).spawn().unwrap();
        let mut running = start("60");
        assert!(ask_to_end(&mut running, &mut Seen::new()));
        assert_eq!(running.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
        let mut ended = start("0");
        ended.wait().unwrap();
        assert!(!ask_to_end(&mut ended, &mut Seen::new()));
    }
}
