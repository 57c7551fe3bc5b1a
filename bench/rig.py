"""What a measurement stands on: name spaces, a file system, two servers, their counters."""

import contextlib
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

GIB, MIB = 1 << 30, 1 << 20
EXPORT = "/x"
TICKS_PER_SEC = os.sysconf("SC_CLK_TCK")
START_SECS_MAX = 30
ANSWER_SECS_MAX = 5
# The kernel's name for the clock of all the time that a process was on a processor.
CPUCLOCK_SCHED = 2
COUNTERS_BYTES_MAX = 64 << 10
STOP_SECS_MAX = 60
UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# Loopback works; rpcbind, which Ganesha wants, keeps its socket in a /run of its own.
SET_UP = 'ip link set lo up && mount -t tmpfs run /run && exec "$@"'


def run_ok(*command, **options):
    """Runs a program that must succeed; its last words are the error if it does not."""
    words = [str(part) for part in command]
    done = subprocess.run(words, text=True, capture_output=True, check=False, **options)
    if done.returncode != 0:
        last_words = (done.stderr + done.stdout)[-500:]
        raise RuntimeError(f"{words[0]}: status {done.returncode}: {last_words}")
    return done.stdout


def enter_private_name_spaces(marker):
    """Starts this program again with its own network, mounts and processes, unless that is done."""
    if os.environ.get(marker) == "1":
        return
    if os.geteuid() != 0:
        raise SystemExit("needs root: loop devices, mounts, drop_caches")
    os.environ[marker] = "1"
    os.execvp(UNSHARE[0], [*UNSHARE, "bash", "-c", SET_UP, "bash", sys.executable, *sys.argv])


@contextlib.contextmanager
def xfs_on_loop(directory, size_bytes):
    """XFS on a loop device with direct I/O, its image written full: no allocation is timed."""
    image = pathlib.Path(directory) / "spillway-bench.img"
    mount = pathlib.Path(tempfile.mkdtemp(prefix="spillway-bench.", dir=directory))
    try:
        megabytes = size_bytes // MIB
        run_ok("dd", "if=/dev/zero", f"of={image}", "bs=1M", f"count={megabytes}", "oflag=direct")
        run_ok("mkfs.xfs", "-q", "-f", "-K", image)
        device = run_ok("losetup", "--find", "--show", "--direct-io=on", image).strip()
        run_ok("mount", device, mount)
        # In use, the device is now only marked to vanish with its last user: also if we are killed.
        run_ok("losetup", "--detach", device)
        try:
            yield mount
        finally:
            # Lazy, because a server that failed may still hold files of it.
            run_ok("umount", "--lazy", mount)
    finally:
        mount.rmdir()
        image.unlink(missing_ok=True)


@contextlib.contextmanager
def directory_on(directory, kind):
    """A new directory; `directory` must already be on a file system of this kind."""
    found = run_ok("stat", "-f", "-c", "%T", directory).strip()
    if not found.startswith(kind):
        raise SystemExit(f"{directory} is on {found}, not {kind}")
    with tempfile.TemporaryDirectory(prefix="spillway-bench.", dir=directory) as made:
        yield pathlib.Path(made)


def drop_caches():
    """Writes everything back and empties the page, dentry and inode caches."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("3")


def cached_bytes(paths):
    """How many bytes of these files are in the page cache (fincore of util-linux)."""
    existing = [path for path in paths if path.exists()]
    if not existing:
        return 0
    lines = run_ok("fincore", "--bytes", "--noheadings", "--output", "RES", *existing).split()
    return sum(int(line) for line in lines)


def machine_cpu_secs():
    """CPU time of all processes and kernel threads since boot: write-back is nobody's own."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS_PER_SEC


class MemoryGroup:
    """A memory cgroup with a limit: the server's heap and the page cache it causes, together."""

    def __init__(self, limit_bytes):
        v1 = pathlib.Path("/sys/fs/cgroup/memory")
        self.is_v1 = v1.is_dir()
        self.root = v1 if self.is_v1 else pathlib.Path("/sys/fs/cgroup")
        self.limit_file = "memory.limit_in_bytes" if self.is_v1 else "memory.max"
        self.limit_bytes = limit_bytes

    def join(self, name):
        """Moves the calling process into a group of its own; call it in the child before exec."""
        path = self._path(name)
        path.mkdir(exist_ok=True)
        (path / self.limit_file).write_text(str(self.limit_bytes), encoding="ascii")
        (path / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    def page_cache(self, name):
        """Bytes of page cache charged to the group; of these, dirty and in write-back."""
        text = (self._path(name) / "memory.stat").read_text(encoding="ascii")
        stat = {key: int(value) for key, value in map(str.split, text.splitlines())}
        keys = ("cache", "dirty", "writeback")
        if not self.is_v1:
            keys = ("file", "file_dirty", "file_writeback")
        return dict(zip(("cache", "dirty", "writeback"), (stat[key] for key in keys)))

    def remove(self, name):
        """Removes the group once its process has ended."""
        with contextlib.suppress(FileNotFoundError):
            self._path(name).rmdir()

    def _path(self, name):
        return self.root / f"spillway-bench-{name}"


class Server:
    """One NFS server that exports `directory` as `EXPORT`."""

    name = version = None

    def __init__(self, directory, port, memory_group=None):
        self.directory, self.port, self.mount_port = directory, port, port
        self.memory_group = memory_group
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = None

    def start(self):
        def in_child():
            # All the open files that the machine allows us: Ganesha needs one for each it creates.
            hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
            if self.memory_group:
                self.memory_group.join(self.name)

        self.process = subprocess.Popen(
            [str(part) for part in self.command()], preexec_fn=in_child,
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )  # fmt: skip
        deadline = time.monotonic() + START_SECS_MAX
        for port in (self.port, self.mount_port):
            while not accepts(port):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} did not start: {self.last_words()}")
                time.sleep(0.05)

    def stop(self):
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            raise RuntimeError(f"{self.name} died under the load: {self.last_words()}")
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECS_MAX)
        except subprocess.TimeoutExpired:
            self.end(process)
        if self.memory_group:
            self.memory_group.remove(self.name)

    def end(self, process):
        """SIGKILL, for a server that does not stop or a benchmark that failed."""
        process.kill()
        process.wait()

    def last_words(self):
        self.log.seek(0)
        return self.log.read()[-800:]

    def cpu_secs(self):
        """User and system time of the process so far, ended threads included."""
        # clock_getcpuclockid(3), which Python lacks: /proc/PID/stat counts in steps of 10 ms, and
        # splicing a GiB takes a few of them.
        return time.clock_gettime((~self.process.pid << 3) | CPUCLOCK_SCHED)

    def resident_bytes(self, field="VmRSS"):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
        raise RuntimeError(f"{self.name} is gone: {self.last_words()}")

    def url(self, path=""):
        ports = f"version=3&nfsport={self.port}&mountport={self.mount_port}"
        return f"nfs://127.0.0.1{EXPORT}{'/' + path if path else ''}?{ports}"


class Spillway(Server):
    """The program of this repository, with a configuration that squashes nobody, as Ganesha's."""

    name = "spillway"
    sync = True

    def __init__(self, directory, port, work, options, memory_group):
        super().__init__(directory, port, memory_group)
        self.program, self.flags = options.spillway, options.spillway_flag
        self.work = work / self.name
        self.work.mkdir()
        self.version = run_ok(self.program, "--version").strip()

    def command(self):
        config = self.work / "spillway.toml"
        config.write_text(
            f'[[export]]\npath = "{self.directory}"\nname = "{EXPORT}"\nsquash = "none"\n'
            f"sync = {str(self.sync).lower()}\n\n"
            '[[export.client]]\nhosts = ["*"]\n',
            encoding="utf-8",
        )
        return [
            self.program, "serve", "--config", config, "--listen", f"127.0.0.1:{self.port}",
            "--state-dir", self.work / "state", *self.flags,
        ]  # fmt: skip


class SpillwayInMode(Spillway):
    """READ and WRITE in one I/O mode; `name` tells servers of one mode with other flags apart."""

    def __init__(self, name, mode, directory, port, work, options, memory_group=None, flags=()):
        self.name = name
        super().__init__(directory, port, work, options, memory_group)
        self.flags = [*self.flags, "--read-mode", mode, "--write-mode", mode, *flags]

    def counters(self):
        """What the server counted since its start, without what it never did."""
        # Not by seeking: the server's own place in its log is the same one.
        log = self.log.fileno()
        begin = os.fstat(log).st_size
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + ANSWER_SECS_MAX
        while time.monotonic() < deadline:
            time.sleep(0.01)
            text = os.pread(log, COUNTERS_BYTES_MAX, begin).decode()
            pairs = (line.split() for line in text.splitlines())
            found = {
                pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()
            }
            if "calls" in found:
                return {name: count for name, count in found.items() if count}
        raise RuntimeError(f"{self.name} does not tell its counters: {self.last_words()}")


class SpillwayNosync(Spillway):
    """Names as durable as Ganesha makes them: its CREATE and REMOVE do not wait for the disk."""

    name = "spillway-nosync"
    sync = False


GANESHA_CONFIG = """
NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {port}; MNT_Port = {mount_port}; NLM_Port = {nlm_port};
  Enable_RQUOTA = false; Enable_UDP = false; mount_path_pseudo = true;
  Allow_Set_Io_Flusher_Fail = true; }}
EXPORT_DEFAULTS {{ Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Transports = TCP; }}
EXPORT {{ Export_Id = 1; Path = /export/x; Pseudo = {export}; FSAL {{ Name = VFS; }} }}
LOG {{ Default_Log_Level = EVENT; }}
"""


class Ganesha(Server):
    """nfs-ganesha with FSAL VFS, out of a root directory that holds its Debian packages."""

    name = "ganesha"

    def __init__(self, directory, port, options, memory_group):
        super().__init__(directory, port, memory_group)
        self.mount_port = port + 1
        self.root = pathlib.Path(options.ganesha_root)
        self._prepare_root()
        self.version = run_ok("chroot", self.root, "ganesha.nfsd", "-v").split("=")[-1].strip()

    def _prepare_root(self):
        root = self.root
        run_ok("mount", "--bind", "/dev", root / "dev")
        run_ok("mount", "-t", "proc", "proc", root / "proc")
        run_ok("mount", "-t", "tmpfs", "run", root / "run")
        # FSAL VFS reads /etc/mtab and wants its export to be a mount point.
        if not os.path.lexists(root / "etc/mtab"):
            os.symlink("../proc/self/mounts", root / "etc/mtab")
        for made in ("run/ganesha", "run/rpcbind", "var/lib/nfs/ganesha", "export/x"):
            (root / made).mkdir(parents=True, exist_ok=True)
        run_ok("mount", "--bind", self.directory, root / "export/x")
        # Ganesha ends at once if it cannot register.
        run_ok("chroot", root, "rpcbind", "-w", "-h", "127.0.0.1")

    def command(self):
        config = GANESHA_CONFIG.format(
            port=self.port, mount_port=self.mount_port, nlm_port=self.port + 2, export=EXPORT
        )
        (self.root / "run/ganesha.conf").write_text(config, encoding="ascii")
        return [
            "chroot", self.root, "/usr/bin/ganesha.nfsd", "-F", "-x", "-f", "/run/ganesha.conf",
            "-L", "STDERR", "-p", "/run/ganesha/pid", "-N", "EVENT",
        ]  # fmt: skip


@contextlib.contextmanager
def started(server):
    """The server running, and stopped afterwards; it must not have died meanwhile."""
    try:
        server.start()
        yield server
    except BaseException:
        if server.process:
            server.end(server.process)
        if server.memory_group:
            server.memory_group.remove(server.name)
        raise
    server.stop()


def accepts(port):
    """Whether something on 127.0.0.1 accepts connections to this port."""
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False
