"""What the system tests share: cases and their verdicts, a running server, scratch file systems.

A subject is a program of this directory. It marks its functions with `@case` and ends with
`main(__file__)`. Each case prints one line, PASS, FAIL or SKIP; the last line counts them.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
EXPORT = "/x"
MIB = 1 << 20
# The machine may be so busy, and its disk so slow, that all stands still for seconds; only a failure
# waits so long.
START_SECS_MAX = 60
STOP_SECS_MAX = 90
ANSWER_SECS_MAX = 30
# They are printed in one piece, and this is the end of it.
LAST_COUNTER = "suppressed_log_lines"
# What a case that ran into its deadline has to end by itself, before its mounts are torn down.
GRACE_SECS = 5

CASES = []
# What ends the mounts of the running case by force: a process that waits in the kernel for a file
# system that does not answer hears no signal.
LAST_RESORTS = []


class Skip(Exception):
    """The case needs what this machine lacks: root, a program, a name space, space on the disk.

    The machine of CI has all of that, so CI=true makes this a failure.
    """


class SkipInCiToo(Exception):
    """The case needs what the machine of CI may lack for good: a feature of its kernel."""


class Deadline(Exception):
    """The case ran longer than it may."""


def case(function=None, *, secs=120):
    """Marks a function as a case named after it, which fails after `secs` seconds."""
    if function is None:
        return lambda marked: case(marked, secs=secs)
    CASES.append((function, secs))
    return function


def need(*programs):
    """Skips the case unless all `programs` are in the PATH."""
    for program in programs:
        if shutil.which(program) is None:
            raise Skip(f"{program} is not installed")


def check(condition, why):
    """Fails the case with `why` unless `condition` holds; `assert` would vanish under python -O."""
    if not condition:
        raise AssertionError(why)


def run(*command, secs=100, **options):
    """Runs a program to its end; returns the CompletedProcess, its output as text by default."""
    options = {"text": True, "capture_output": True, **options}
    return subprocess.run([str(part) for part in command], timeout=secs, check=False, **options)


def run_ok(*command, **options):
    """Runs a program that must succeed; fails the case with its last words if it does not."""
    done = run(*command, **options)
    words = f"{done.stderr} {done.stdout}"[-400:].strip()
    check(done.returncode == 0, f"{command[0]} exited with {done.returncode}: {words}")
    return done


def free_port():
    """A TCP port of 127.0.0.1 that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A Spillway process that serves one directory on 127.0.0.1 and is ended with the `with` block.

    The state directory outlives a restart, so file handles must too. `uid` makes the process that
    user, with the group of the same number and no capabilities; it has to reach the program, the
    directory, which should be its own, and `state`.
    """

    binary = None  # set from the command line

    def __init__(self, directory, *flags, port=None, uid=None, state=None):
        self.directory = pathlib.Path(directory)
        # Root is squashed to user 65534 by default, who has to be able to create files here.
        self.directory.chmod(0o777)
        self.port = port or free_port()
        self.mount_port = self.port
        self.flags = flags
        self.identity = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        self.state = state or tempfile.mkdtemp(prefix="state.", dir=scratch_root())
        # Not named after the port, which the kernel may give to a later server too.
        self.log = log_file("server")
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, _kind, failure, _trace):
        try:
            self.stop()
        except AssertionError as second:
            # What went wrong first is the news; a server that died explains it.
            raise AssertionError(f"{failure}; {second}" if failure else str(second)) from failure

    def command(self):
        return [
            self.binary, "serve", self.directory, "--listen", f"127.0.0.1:{self.port}",
            "--as", EXPORT, "--state-dir", self.state, *self.flags,
        ]  # fmt: skip

    def start(self):
        """Starts the process and waits until it accepts connections and commands: its ports are open
        a moment before its control socket is.
        """
        printed = len(self.log_text())
        self.process = subprocess.Popen(
            [str(part) for part in self.command()],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, **self.identity,
        )  # fmt: skip
        deadline = time.monotonic() + START_SECS_MAX
        while "listening on " not in self.log_text()[printed:]:
            ended = self.process.poll()
            check(ended is None, f"the server exited with {ended}: {self.last_words()}")
            check(time.monotonic() < deadline, f"no listener after {START_SECS_MAX} s")
            time.sleep(0.02)

    def stop(self):
        """SIGTERM; fails the case unless the server then exits with status 0."""
        if self.process is None:
            return
        process, self.process = self.process, None
        check(process.poll() is None, f"the server died with {process.poll()}: {self.last_words()}")
        process.terminate()
        try:
            status = process.wait(STOP_SECS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"no exit {STOP_SECS_MAX} s after SIGTERM") from None
        check(status == 0, f"exit status {status} after SIGTERM: {self.last_words()}")

    def kill(self):
        """SIGKILL: the server neither flushes nor closes its connections."""
        self.process.kill()
        self.process.wait()
        self.process = None

    def log_text(self):
        """All that this and earlier processes of this server printed."""
        with open(self.log.name, encoding="utf-8", errors="replace") as log:
            return log.read()

    def last_words(self):
        return self.log_text()[-400:].strip().replace("\n", " | ")

    def url(self, path="", export=EXPORT):
        """The libnfs URL of `path` below the export. libnfs 5 takes it as it is, unescaped."""
        ports = f"version=3&nfsport={self.port}&mountport={self.mount_port}"
        return f"nfs://127.0.0.1{export}{'/' + path if path else ''}?{ports}"

    def counters(self):
        """What the server counted since its start, by name (docs/metrics.md lists them)."""
        begin = os.stat(self.log.name).st_size
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + ANSWER_SECS_MAX
        while time.monotonic() < deadline:
            time.sleep(0.01)
            with open(self.log.name, "rb") as log:
                log.seek(begin)
                pairs = (line.split() for line in log.read().decode().splitlines())
                pairs = [pair for pair in pairs if len(pair) == 2 and pair[1].isdigit()]
            found = {name: int(count) for name, count in pairs}
            if LAST_COUNTER in found:
                return found
        raise AssertionError(f"the server does not print its counters: {self.last_words()}")

    def resident_bytes(self, field="VmRSS"):
        """The process's resident set, in bytes; `VmHWM` for its peak."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
        raise AssertionError(f"no {field} in /proc/{self.process.pid}/status")


_scratch = None


def scratch_root():
    """The directory that holds everything the running subject makes; removed at its end."""
    return _scratch


def log_file(name):
    """A new file of the running subject for what one process prints, opened to append bytes."""
    return tempfile.NamedTemporaryFile(
        "ab", prefix=name + ".", suffix=".log", dir=scratch_root(), delete=False
    )


def scratch_dir(name):
    """A new, empty directory on the file system of `--dir`."""
    return pathlib.Path(tempfile.mkdtemp(prefix=name + ".", dir=scratch_root()))


def need_space(bytes_wanted):
    """Skips the case unless the scratch file system has this much free space."""
    free = shutil.disk_usage(scratch_root()).free
    if free < bytes_wanted:
        raise Skip(f"needs {bytes_wanted // MIB} MiB, {free // MIB} MiB are free")


@contextlib.contextmanager
def loop_file_system(kind, size_bytes, image_dir=None):
    """Makes a file system of `kind` in a sparse file, mounts it, and takes all away afterwards."""
    if os.geteuid() != 0:
        raise Skip("a loop mount needs root")
    if not os.path.exists("/dev/loop-control"):
        raise Skip("this machine has no loop devices")
    need(f"mkfs.{kind}", "mount", "umount")
    image = os.path.join(image_dir or scratch_root(), f"{kind}.img")
    with open(image, "wb") as file:
        file.truncate(size_bytes)
    force = {"btrfs": "-f", "ext4": "-F", "xfs": "-f"}[kind]
    run_ok(f"mkfs.{kind}", "-q", force, image)
    mount = tempfile.mkdtemp(prefix=kind + ".", dir=scratch_root())
    mounted = run("mount", "-o", "loop", image, mount)
    if mounted.returncode != 0:
        raise Skip(f"mount -o loop: {mounted.stderr.strip()}")
    try:
        yield pathlib.Path(mount)
    finally:
        run_ok("umount", mount)
        os.unlink(image)


@contextlib.contextmanager
def overlay_file_system(size_bytes):
    """Mounts an overlayfs whose layers lie on different file systems, as live systems have it.

    There, files and directories show different devices though no other file system begins.
    """
    if os.geteuid() != 0:
        raise Skip("a mount needs root")
    need("mount", "umount")
    lower, mount, upper = (scratch_dir(name) for name in ("lower", "overlay", "upper"))
    mounted = run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "upper", upper)
    if mounted.returncode != 0:
        raise Skip(f"mount -t tmpfs: {mounted.stderr.strip()}")
    try:
        for name in ("data", "work"):
            (upper / name).mkdir()
        layers = f"lowerdir={lower},upperdir={upper}/data,workdir={upper}/work"
        mounted = run("mount", "-t", "overlay", "-o", layers, "overlay", mount)
        if mounted.returncode != 0:
            raise SkipInCiToo(f"mount -t overlay: {mounted.stderr.strip()}")
        try:
            yield mount
        finally:
            run_ok("umount", mount)
    finally:
        run_ok("umount", upper)


@contextlib.contextmanager
def _deadline(secs):
    def expire(_signal, _frame):
        raise Deadline(f"not done after {secs} s")

    def use_force():
        for last_resort in LAST_RESORTS:
            last_resort()

    watch = threading.Timer(secs + GRACE_SECS, use_force)
    watch.daemon = True
    watch.start()
    signal.signal(signal.SIGALRM, expire)
    signal.alarm(secs)
    try:
        yield
    finally:
        signal.alarm(0)
        watch.cancel()


def _verdict(function, secs):
    """Runs one case; returns its verdict and the reason of anything but a pass."""
    in_ci = os.environ.get("CI") == "true"
    try:
        with _deadline(secs):
            function()
    except SkipInCiToo as skip:
        return "SKIP", str(skip)
    except Skip as skip:
        return ("FAIL", f"{skip}, and CI=true") if in_ci else ("SKIP", str(skip))
    except (AssertionError, Deadline, subprocess.TimeoutExpired) as failure:
        return "FAIL", str(failure)
    except Exception as surprise:  # a defect of the test or a server that hung up: both are news
        traceback.print_exc()
        return "FAIL", f"{type(surprise).__name__}: {surprise}"
    return "PASS", ""


def main(subject_file):
    """Runs this subject's cases; exits with 1 if one failed."""
    global _scratch
    subject = pathlib.Path(subject_file).stem
    parser = argparse.ArgumentParser(prog=subject)
    parser.add_argument("--spillway", default=TARGET / "release/spillway")
    parser.add_argument("--dir", default=TARGET)
    parser.add_argument("case", nargs="*", help="only these cases")
    options = parser.parse_args()
    Server.binary = options.spillway
    # A subject may import another one for its functions, but has only its own cases.
    cases = [
        (function.__name__, function, secs)
        for function, secs in CASES
        if function.__module__ == "__main__"
    ]
    names = [name for name, _, _ in cases]
    for name in options.case:
        if name not in names:
            parser.error(f"no case {name}; there are {', '.join(names)}")
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    for name, function, secs in cases:
        if options.case and name not in options.case:
            continue
        with tempfile.TemporaryDirectory(prefix="system-test.", dir=options.dir) as _scratch:
            # The server serves directories below this one to a squashed root.
            os.chmod(_scratch, 0o755)
            started = time.monotonic()
            verdict, reason = _verdict(function, secs)
            took = f"{time.monotonic() - started:.1f} s"
        counts[verdict] += 1
        tail = f": {reason}" if reason else f" ({took})"
        print(f"{verdict} {subject}/{name}{tail}", flush=True)
    print("{PASS} passed, {FAIL} failed, {SKIP} skipped".format(**counts), flush=True)
    sys.exit(1 if counts["FAIL"] else 0)
