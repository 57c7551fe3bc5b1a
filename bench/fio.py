"""Runs fio and says how long its work took, without fio's own start and end.

Two things about fio make that a module. With the nfs engine a job sends its COMMIT when it closes
the file, after the last I/O that fio times; and fio looks only ten times a second whether its jobs
have ended. So the job processes are watched from here: what a client waits for until its data is
safe ends when the last of them does.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import resource
import select
import subprocess
import tempfile
import time

SECS_MAX = 600
# How often new job processes are looked for, and how long a wait for their ends may last at once.
SEARCH_MILLISECS, WAIT_MILLISECS = 5, 100


@dataclasses.dataclass
class Run:
    """What one fio did. Times in seconds."""

    # fio's figures for READ or WRITE, all jobs together.
    side: dict
    # Until the last I/O was answered, as fio says.
    io_secs: float
    # From the start of the jobs to the end of the last one: with the COMMIT or fsync at the end.
    job_secs: float
    # With fio's start and end, which take longer than the work if that is small.
    process_secs: float
    # User and system time of fio with all its jobs, and of watching them.
    cpu_secs: float

    def latencies_us(self):
        """Percentiles of the time from a call to its reply."""
        percentiles = self.side["clat_ns"].get("percentile", {})
        named = {"p50_us": "50.000000", "p99_us": "99.000000", "p999_us": "99.900000"}
        return {name: percentiles.get(key, 0) / 1000 for name, key in named.items()}


def run(name, *flags, jobs=1):
    """One fio with `jobs` jobs of the same kind, each a process of its own."""
    command = [
        "fio", f"--name={name}", f"--numjobs={jobs}", "--group_reporting", "--output-format=json",
        *map(str, flags),
    ]  # fmt: skip
    cpu_before, started = _our_cpu_secs(), time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=out, stderr=errors) as process:
            try:
                jobs_seen, last_end = _watch_jobs(process, jobs, started + SECS_MAX)
            finally:
                process.kill()
        process_secs = time.monotonic() - started
        out.seek(0)
        errors.seek(0)
        said, complaints = out.read(), errors.read().strip()
    if process.returncode != 0:
        raise RuntimeError(f"fio: {complaints} {said[:300]}".strip())
    job = json.loads(said[said.index("{") :])["jobs"][0]
    side = job["write"] if job["write"]["io_bytes"] else job["read"]
    # fio is content, with status 0, where the nfs engine could not even open the file.
    if side["io_bytes"] == 0:
        raise RuntimeError(f"fio moved nothing: {complaints}")
    if jobs_seen != jobs:
        raise RuntimeError(f"fio ended {jobs - jobs_seen} of {jobs} jobs before they were seen")
    return Run(
        side=side,
        io_secs=side["runtime"] / 1000,
        job_secs=last_end - job["job_start"] / 1000,
        process_secs=process_secs,
        cpu_secs=_our_cpu_secs() - cpu_before,
    )


def _watch_jobs(process, jobs, deadline):
    """How many of the job processes were seen, and when (Unix time) the last of them ended."""
    poller, seen, last_end = select.poll(), set(), 0.0
    with contextlib.ExitStack() as opened:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, SECS_MAX)
            if len(seen) < jobs:
                for pid in _children(process.pid) - seen:
                    with contextlib.suppress(ProcessLookupError):
                        descriptor = os.pidfd_open(pid)
                        opened.callback(os.close, descriptor)
                        poller.register(descriptor, select.POLLIN)
                        seen.add(pid)
            wait = WAIT_MILLISECS if len(seen) == jobs else SEARCH_MILLISECS
            for descriptor, _events in poller.poll(wait):
                last_end = time.time()
                poller.unregister(descriptor)
    return len(seen), last_end


def _children(parent):
    """The processes whose parent this is; not every kernel has /proc/PID/task/TID/children."""
    found = set()
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The name, in brackets, may hold blanks; the state and the parent come after it.
            if int(status.read_text(encoding="utf-8").rpartition(")")[2].split()[1]) == parent:
                found.add(int(status.parent.name))
    return found


def _our_cpu_secs():
    """CPU time of this program, and of its ended children and theirs."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(of.ru_utime + of.ru_stime for of in used)
