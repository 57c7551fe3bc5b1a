"""A Debian of its own, booted by systemd-nspawn without a network."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import time

PACKAGES = "systemd,systemd-sysv,init-system-helpers,libnfs-utils,rpm"
BOOT_SECS_MAX = 300
ACTION_SECS_MAX = 300
# What a system that runs changes by itself, and what dpkg and rpm record of packages that are gone.
CHANGING = ["/proc", "/sys", "/dev", "/run", "/tmp", "/srv", "/var/log", "/var/lib/dpkg", "/var/lib/rpm",
            "/var/lib/systemd", "/var/lib/apt", "/var/tmp", "/var/cache", "/var/backups", "/etc/machine-id",
            "/etc/.pwd.lock", "/etc/ld.so.cache"]  # fmt: skip


class Failed(Exception):
    """What was found instead of what was expected."""


def check(condition, words):
    if not condition:
        raise Failed(words)


def pid_namespace(process):
    return os.readlink(f"/proc/{process}/ns/pid")


def make_root(root):
    """A minimal Debian of the release that runs here, made once: others that want it wait."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{root}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_locked_root(root)


def make_locked_root(root):
    if all((root / "usr/bin" / program).exists() for program in ["nfs-ls", "rpm"]):
        return
    release = dict(
        line.strip().split("=", 1) for line in open("/etc/os-release", encoding="utf-8") if "=" in line
    )
    suite = release["VERSION_CODENAME"].strip('"')
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, root], check=True
    )


class Machine:
    """A container, in which `with` boots and ends a system."""

    def __init__(self, root):
        self.root = root

    def __enter__(self):
        with contextlib.ExitStack() as unless_booted:
            self.process = subprocess.Popen(
                ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", "--system-call-filter=open_by_handle_at",
                 "--boot", "-D", self.root],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            unless_booted.callback(self.end)
            self.wait_for_boot()
            unless_booted.pop_all()
        return self

    def __exit__(self, *_failure):
        self.end()

    def wait_for_boot(self):
        self.leader = self.wait_for_leader()
        deadline = time.monotonic() + BOOT_SECS_MAX
        while "running" not in self.run("systemctl", "is-system-running", fails=None).stdout:
            check(time.monotonic() < deadline, "the container does not boot")
            if "degraded" in self.run("systemctl", "is-system-running", fails=None).stdout:
                break
            time.sleep(0.2)
        self.before = self.files()

    def wait_for_leader(self):
        """The process id of its systemd, which is the child of systemd-nspawn in another pid namespace."""
        pid, outside = self.process.pid, pid_namespace("self")
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
        deadline = time.monotonic() + BOOT_SECS_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            for child in children.read_text().split():
                # The child that sets up the mounts is in the namespace outside, and ends.
                with contextlib.suppress(OSError):
                    if pid_namespace(child) != outside:
                        return child
            time.sleep(0.1)
        raise Failed("systemd-nspawn does not start")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(ACTION_SECS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def run(self, *command, fails=False, text=None):
        """Runs a command in it; fails unless it ends as expected (`None`: in any way)."""
        words = ["nsenter", "-t", self.leader, "-m", "-u", "-i", "-n", "-p", "-r", "-w", *command]
        try:
            done = subprocess.run(
                words, input=text, text=True, capture_output=True, timeout=ACTION_SECS_MAX, check=False
            )
        except subprocess.TimeoutExpired as expired:
            raise Failed(f"{' '.join(command)}: no end after {ACTION_SECS_MAX} s") from expired
        said = f"{' '.join(command)}: {done.returncode}: {done.stdout} {done.stderr}".strip()
        check(fails is None or (done.returncode != 0) == fails, said)
        return done

    def shell(self, script, **options):
        return self.run("sh", "-ec", script, **options).stdout

    def show(self, name, unit="spillway.service"):
        return self.run("systemctl", "show", "-P", name, unit).stdout.strip()

    def wait_for(self, what, condition):
        deadline = time.monotonic() + ACTION_SECS_MAX
        while not condition():
            check(time.monotonic() < deadline, f"in vain: {what}")
            time.sleep(0.2)

    def files(self):
        """All files that a package could leave behind, with the contents of short ones."""
        found = {}
        for directory, names, files in os.walk(self.root):
            place = "/" + str(pathlib.Path(directory).relative_to(self.root)).lstrip(".")
            names[:] = [name for name in names if os.path.join(place, name) not in CHANGING]
            for name in [*names, *files]:
                path, inside = pathlib.Path(directory, name), os.path.join(place, name)
                if inside in CHANGING:
                    continue
                # The system may remove a file meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    status = path.lstat()
                    is_short = stat.S_ISREG(status.st_mode) and status.st_size < 65536
                    found[inside] = hashlib.sha256(path.read_bytes()).digest() if is_short else None
        return found

    def changed(self):
        """The paths, in order, of what is not as it was after the boot."""
        after = self.files()
        paths = self.before.keys() | after.keys()
        return sorted(path for path in paths if self.before.get(path, "") != after.get(path, ""))
