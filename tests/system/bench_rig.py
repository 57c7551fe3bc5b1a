"""What the subjects about `spillway bench` stand on: running it, its records, what it leaves."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time

from harness import (
    MIB, Server, check, loop_file_system, need, run, run_ok, scratch_dir, scratch_root,
)  # fmt: skip

# In a debug build on a busy machine, all of it.
RUN_SECS_MAX = 100
# The kernel removes a cgroup, and others close a loop device, a moment after the run has ended.
LATER_SECS_MAX = 5
# What a killed process leaves to others to undo.
UNDO_SECS_MAX = 60
# A round that the machine delays widens the interval of a comparison. One of three hides a factor
# of 100 if it takes 14 times as long as the others; one of five, if it takes 400 times as long.
ROUNDS_TO_COMPARE = ("--rounds", 5)
# Groups of counters of docs/io-modes.md: each READ is in one of the first, each WRITE in one of
# the second.
READS = (
    "reads_cached_by_mode", "reads_resident", "reads_cached_in_free_memory",
    "reads_cached_as_reread", "reads_dontcache", "reads_direct", "reads_from_read_ahead",
)  # fmt: skip
WRITES = (
    "writes_cached_by_mode", "writes_cached_in_free_memory", "writes_window_by_mode",
    "writes_window_as_small", "writes_window_without_direct", "writes_window_as_stream",
    "writes_window_under_pressure", "writes_direct",
)  # fmt: skip


def counted(counters, names):
    """The sum of counters, of which those that stayed 0 may be missing."""
    return sum(counters.get(name, 0) for name in names)


class Records:
    """A file of records: the run, and its measurements in the order in which they were made."""

    def __init__(self, path):
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        self.path = path
        self.run = records[0]
        self.measurements = records[1:]
        check(self.run["kind"] == "run", f"the first record is a {self.run['kind']}")
        for measurement in self.measurements:
            check(measurement["kind"] == "measurement", f"{measurement['kind']} in the middle")
            check(measurement["run"] == self.run["id"], "a measurement of another run")

    def of(self, **wanted):
        """The measurements whose fields have these values."""
        return [
            one for one in self.measurements
            if all(one[name] == value for name, value in wanted.items())
        ]  # fmt: skip

    def figure(self, name, **wanted):
        """A figure of each of those measurements."""
        return [one["figures"][name] for one in self.of(**wanted)]


def operations(measurement):
    """How many operations were timed."""
    return sum(bucket["count"] for bucket in measurement.get("latency", []))


def data_bytes(measurement):
    return sum(second["bytes"] for second in measurement["seconds"])


def near(value, expected, part=1e-6):
    return abs(value - expected) <= part * abs(expected)


class Bench:
    """A place for runs of `spillway bench`, with its own directory for temporary files, so that files
    and cgroups that a run leaves are found.
    """

    def __init__(self):
        self.temporary = scratch_dir("tmp")
        self.results = scratch_dir("results")
        self.environment = dict(os.environ, TMPDIR=str(self.temporary))
        self.runs = 0
        self.mounts = set()

    def start(self, *arguments, **options):
        """Starts a run with its output in files; `.out` of the process is where its records go."""
        self.runs += 1
        self.mounts = mounts()
        out = self.results / f"{self.runs}.jsonl"
        words = [Server.binary, "bench", *arguments, "--out", out]
        options = {"env": self.environment, **options}
        with open(self.results / f"{self.runs}.output", "wb") as output:
            process = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, **options,
            )  # fmt: skip
        process.out = out
        process.output = output.name
        return process

    def run(self, *arguments):
        """A run that must succeed; its records."""
        process = self.start(*arguments)
        status = finish(process)
        check(status == 0, f"bench {arguments[0]} exited with {status}: {last_words(process)}")
        return Records(process.out)

    def check_nothing_left(self, process, *directories, secs=LATER_SECS_MAX):
        """Fails unless everything that a run has made is gone, after `secs` at most."""
        deadline = time.monotonic() + secs
        while True:
            left = self._left(process.pid, directories)
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        check(not left, f"left behind: {left}")

    def _left(self, pid, directories):
        left = [f"process {pid}: {words}" for pid, words in self.processes().items()]
        for directory in (self.temporary, *directories):
            left += [str(path) for path in pathlib.Path(directory).iterdir()]
        left += sorted(mounts() - self.mounts)
        left += groups(pid)
        if os.geteuid() == 0:
            loops = run("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").stdout
            places = [str(place) for place in (self.temporary, *directories)]
            left += [line for line in loops.splitlines() if any(at in line for at in places)]
        return left

    def processes(self, wanted=""):
        """The processes of runs, with `wanted` in their words: their ids and words."""
        mark = f"TMPDIR={self.temporary}".encode()
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdigit():
                    continue
                variables = (entry / "environ").read_bytes().split(b"\0")
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                # A process that is ending has no words any more.
                if mark in variables and words and wanted in words:
                    found[int(entry.name)] = words
        return found


def finish(process, secs=RUN_SECS_MAX):
    """Waits for a run; returns its exit status."""
    try:
        return process.wait(secs)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError(f"not done after {secs} s: {last_words(process)}") from None


def output_of(process):
    """All that a run has printed."""
    return pathlib.Path(process.output).read_text(encoding="utf-8")


def last_words(process):
    return output_of(process)[-600:].strip().replace("\n", " | ")


def sentence(process):
    """The one sentence in which a run reports why it failed."""
    complaints = [line for line in output_of(process).splitlines() if line.startswith("spillway: ")]
    # A table names subjects in the same way: `spillway: /path/to/spillway serve`.
    complaints = [line for line in complaints if f"{Server.binary} serve" not in line]
    check(len(complaints) == 1, f"not one complaint: {complaints or last_words(process)}")
    return complaints[0].removeprefix("spillway: ")


def wait_for_measurements(process, count):
    """Returns when so many were recorded."""
    deadline = time.monotonic() + RUN_SECS_MAX
    while True:
        with contextlib.suppress(FileNotFoundError):
            if process.out.read_bytes().count(b"\n") > count:
                return
        check(process.poll() is None, f"it ended before: {last_words(process)}")
        check(time.monotonic() < deadline, f"no {count} measurements: {last_words(process)}")
        time.sleep(0.01)


def end_at_last(process):
    """For a `finally`: a run that a failed case has left."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(UNDO_SECS_MAX)
        process.kill()
        process.wait()


def mounts():
    """The kernel's list of mounts, without those of other programs' name spaces."""
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        return {" ".join(line.split()[3:]) for line in table}


def groups(pid):
    """The cgroups that process `pid` has made, or that were made for it."""
    # Unlike glob, os.walk passes over directories that are removed meanwhile.
    walk = os.walk("/sys/fs/cgroup")
    return [
        os.path.join(parent, name)
        for parent, names, _ in walk
        for name in names
        if name.startswith(f"spillway-bench-{pid}-")
    ]


class Device:
    """The block device under a directory, by the kernel's own counts since it was looked at."""

    def __init__(self, directory):
        number = os.stat(directory).st_dev
        self.stat = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
        self.before = self._bytes()

    def _bytes(self):
        fields = [int(field) for field in self.stat.read_text(encoding="ascii").split()]
        return fields[2] * 512, fields[6] * 512

    def moved_mib(self):
        """Read and written since."""
        os.sync()
        return tuple((now - then) / MIB for now, then in zip(self._bytes(), self.before))


@contextlib.contextmanager
def quick_directory():
    """A directory where nothing waits for a disk, if we may mount one."""
    directory = scratch_dir("quick")
    if os.geteuid() != 0:
        yield directory
        return
    need("mount", "umount")
    run_ok("mount", "-t", "tmpfs", "-o", "size=256m", "quick", directory)
    try:
        yield directory
    finally:
        run_ok("umount", directory)


@contextlib.contextmanager
def served_disk(*flags):
    """A server on a file system of its own, and its directory."""
    with loop_file_system("xfs", 400 * MIB) as mount:
        with Server(mount, *flags) as server:
            yield server, mount


def given(server, directory):
    """The arguments that name a server which the run does not start."""
    pid = server.process.pid
    return (
        f"ours=nfs://127.0.0.1:{server.port}/x?mountport={server.mount_port}",
        "--pid", f"ours={pid}", "--files", f"ours={directory}",
    )  # fmt: skip


def verdicts(base, other):
    """The report of `bench compare`: (load, figure) to the verdict, and its whole text."""
    text = run_ok(Server.binary, "bench", "compare", base.path, other.path).stdout
    found, load, lines = {}, None, text.splitlines()
    for before, line in zip([""] + lines, lines):
        if not before:
            load = line
        columns = line.split("  ")
        if line.startswith("  ") and load:
            found[load.split("; ")[1], columns[1].strip()] = line
    return found, text
