"""What the subjects about the FUSE mount stand on: exports of two servers, and mounts of them."""

import contextlib
import fcntl
import os
import pathlib
import socket
import struct
import subprocess
import threading
import time

from harness import (
    EXPORT, LAST_RESORTS, START_SECS_MAX, Server, Skip, check, free_port,
    log_file, loop_file_system, need, run, run_ok, scratch_dir, scratch_root,
)  # fmt: skip
from nfs3 import PROGRAM_NFS

GIB = 1 << 30
END_SECS_MAX = 60
# From the kernel's fs/ext4/ext4.h: the file system stops where it is, journal included.
EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
# What the checks ask of root needs all three. nosuid and nodev are what FUSE has by default.
OPTIONS = "allow_other,suid,dev"
# How much longer than in CI the random and the timed subjects run.
LONGER = float(os.environ.get("SPILLWAY_MOUNT_LONGER", "1"))


def mounted(directory):
    """Whether something is mounted there, without asking what is mounted."""
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        return any(line.split()[4] == str(directory) for line in table)


def waits(pid):
    """The names of a process's threads, each with the function of the kernel in which it waits."""
    found = []
    for task in sorted(pathlib.Path(f"/proc/{pid}/task").iterdir()):
        # One may end meanwhile.
        with contextlib.suppress(OSError):
            found.append(" ".join((task / file).read_text().strip() for file in ("comm", "wchan")))
    return found


def need_fuse():
    """Skips the case unless this process may mount a FUSE file system."""
    if not os.path.exists("/dev/fuse"):
        raise Skip("this machine has no /dev/fuse")
    if os.geteuid() != 0:
        raise Skip("needs root, to mount for other users")


class Mount:
    """A `spillway mount` in the foreground, unmounted at the end of the `with` block.

    `directory` is where it is mounted. Ending it fails the case unless the process then exits with
    status 0.
    """

    def __init__(self, url, options=""):
        need_fuse()
        self.url = url
        self.options = ",".join(filter(None, [OPTIONS, options]))
        self.directory = scratch_dir("mount")
        self.log = log_file("mount")
        self.process = None

    def __enter__(self):
        self.start()
        return self.directory

    def __exit__(self, kind, _failure, _trace):
        if kind is None:
            self.end()
        else:
            self.tear_down()

    def command(self):
        options = ["--foreground", "-o", self.options]
        return [Server.binary, "mount", *options, self.url, self.directory]

    def start(self):
        """Starts the process and waits until it has announced the mount.

        The kernel shows the mount before that, while a signal still ends the process with "not
        mounted".
        """
        self.process = subprocess.Popen(
            [str(word) for word in self.command()],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )  # fmt: skip
        LAST_RESORTS.append(self.tear_down)
        deadline = time.monotonic() + START_SECS_MAX
        while not (mounted(self.directory) and self.is_announced()):
            ended = self.process.poll()
            check(ended is None, f"spillway mount exited with {ended}: {self.last_words()}")
            check(time.monotonic() < deadline, f"no mount after {START_SECS_MAX} s")
            time.sleep(0.01)

    def is_announced(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as log:
            return f" on {self.directory}\n" in log.read()

    def end(self):
        """umount; fails the case unless the process exits with 0 thereafter."""
        process = self.process
        check(process.poll() is None, f"spillway mount died: {process.poll()}, {self.last_words()}")
        try:
            run_ok("umount", self.directory)
            try:
                status = process.wait(END_SECS_MAX)
            except subprocess.TimeoutExpired:
                why = f"no exit {END_SECS_MAX} s after umount: {', '.join(waits(process.pid))}"
                raise AssertionError(f"{why}, {self.last_words()}") from None
        finally:
            self.tear_down()
        check(status == 0, f"exit status {status} after umount: {self.last_words()}")

    def tear_down(self):
        """Ends process and mount whatever their state; what waits for them gets an error."""
        if self.tear_down in LAST_RESORTS:
            LAST_RESORTS.remove(self.tear_down)
        self.process.kill()
        self.process.wait()
        if mounted(self.directory):
            run("umount", "--lazy", self.directory)

    def last_words(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as log:
            return log.read()[-600:].strip().replace("\n", " | ")


class OpenServer(Server):
    """Spillway with an export where root is root, and where it stays mounted over restarts."""

    def __init__(self, directory, *flags, **options):
        super().__init__(directory, *flags, **options)
        self.config = pathlib.Path(scratch_root(), f"server.{self.port}.toml")
        self.config.write_text(
            f'[[export]]\npath = "{self.directory}"\nname = "{EXPORT}"\nsquash = "none"\n',
            encoding="utf-8",
        )

    def command(self):
        return [
            self.binary, "serve", "--config", self.config, "--listen", f"127.0.0.1:{self.port}",
            "--state-dir", self.state, *self.flags,
        ]  # fmt: skip

    def mount(self, options="", path=""):
        """A mount of the export, or of a directory of it."""
        url = f"nfs://127.0.0.1:{self.port}{EXPORT}{'/' + path if path else ''}"
        return Mount(url, options)


GANESHA_CONFIG = """
NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {port}; MNT_Port = {mount_port}; NLM_Port = {nlm_port};
  Enable_RQUOTA = false; Enable_NLM = false; mount_path_pseudo = true; }}
NFSv4 {{ Graceless = true; }}
EXPORT_DEFAULTS {{ Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Transports = TCP; }}
EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = {export}; FSAL {{ Name = VFS; }} }}
LOG {{ Default_Log_Level = EVENT; }}
"""


class Ganesha:
    """nfs-ganesha over a directory, which has to be a mount point, with ports of its own.

    It ends at once where it cannot register with a portmapper, so it gets one: the machine's, or
    one of this name space. D-Bus it can do without.
    """

    def __init__(self, directory):
        need("ganesha.nfsd", "rpcbind", "rpcinfo")
        if os.environ.get("SYSTEM_TEST_PRIVATE_NETWORK") != "yes":
            raise Skip("Ganesha needs a network of its own for its portmapper")
        self.directory = pathlib.Path(directory)
        self.port, self.mount_port, self.nlm_port = free_port(), free_port(), free_port()
        self.log = os.path.join(scratch_root(), "ganesha.log")
        self.process = self.portmapper = None

    def __enter__(self):
        self.portmapper = subprocess.Popen(["rpcbind", "-f", "-w"])
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in (self.process, self.portmapper):
            if process is not None:
                # It takes SIGTERM as a wish and its time; nothing here depends on its end.
                process.kill()
                process.wait()
        self.process = self.portmapper = None

    def _start(self):
        for made in ("/run/ganesha", "/var/lib/nfs/ganesha"):
            os.makedirs(made, exist_ok=True)
        config = os.path.join(scratch_root(), "ganesha.conf")
        with open(config, "w", encoding="utf-8") as file:
            file.write(GANESHA_CONFIG.format(
                port=self.port, mount_port=self.mount_port, nlm_port=self.nlm_port,
                path=self.directory, export=EXPORT,
            ))  # fmt: skip
        wait_for("the portmapper", lambda: run("rpcinfo", "-p", "127.0.0.1").returncode == 0)
        # Newer ones make themselves part of the way of memory to the disk, which not every
        # container permits, and have an option to go on where it does not.
        lenient = ["-x"] if "-x" in run("ganesha.nfsd", "-h").stdout else []
        flags = ["-F", "-f", config, "-L", self.log, "-p", "/run/ganesha/pid", *lenient]
        self.process = subprocess.Popen(
            ["ganesha.nfsd", *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for("Ganesha", self._answers)

    def _answers(self):
        ended = self.process.poll()
        check(ended is None, f"Ganesha exited with {ended}: {self.last_words()}")
        found = run("rpcinfo", "-n", self.mount_port, "-t", "127.0.0.1", "100005", "3")
        return found.returncode == 0

    def last_words(self):
        with contextlib.suppress(OSError), open(self.log, encoding="utf-8") as log:
            return log.read()[-600:].strip().replace("\n", " | ")
        return "no log"

    def mount(self, options=""):
        options = ",".join(filter(None, [f"mountport={self.mount_port}", options]))
        return Mount(f"nfs://127.0.0.1:{self.port}{EXPORT}", options)


class HeldReplies:
    """A way to a server on which the replies to one procedure of NFS wait until they are released.

    `arrived` is set when the server has sent one.
    """

    def __init__(self, port, procedure):
        self.server_port = port
        self.procedure = procedure
        self.arrived, self.released = threading.Event(), threading.Event()
        self.xids = set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets = [self.listener]

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.released.set()
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def mount(self, options=""):
        return Mount(f"nfs://127.0.0.1:{self.port}{EXPORT}", options)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.server_port))
                self.sockets += [client, server]
                sending = threading.Lock()
                for carry in (self._calls, self._replies):
                    ends = (client, server, sending)
                    threading.Thread(target=carry, args=ends, daemon=True).start()

    def _calls(self, client, server, _):
        for record in records(client):
            # RFC 5531 section 9: xid, CALL, RPC version, program, version, procedure.
            xid, _, _, program, _, procedure = struct.unpack_from(">IIIIII", record, 4)
            if (program, procedure) == (PROGRAM_NFS, self.procedure):
                self.xids.add(xid)
            server.sendall(record)

    def _replies(self, client, server, sending):
        for record in records(server):
            (xid,) = struct.unpack_from(">I", record, 4)
            if xid in self.xids:
                threading.Thread(
                    target=self._hold, args=(record, client, sending), daemon=True
                ).start()
                self.arrived.set()
            else:
                with sending:
                    client.sendall(record)

    def _hold(self, record, client, sending):
        self.released.wait()
        with contextlib.suppress(OSError), sending:
            client.sendall(record)


def records(connection):
    """The RPC records of a TCP connection until it ends, each one fragment with its mark."""
    with contextlib.suppress(OSError), connection.makefile("rb") as stream:
        while len(mark := stream.read(4)) == 4:
            length = struct.unpack(">I", mark)[0] & 0x7FFFFFFF
            yield mark + stream.read(length)


def wait_for(what, answers, secs=30):
    """Waits until `answers()` is true."""
    deadline = time.monotonic() + secs
    while not answers():
        check(time.monotonic() < deadline, f"{what}: no answer after {secs} s")
        time.sleep(0.05)


@contextlib.contextmanager
def spillway_export(*flags, size_bytes=4 * GIB, quick=False):
    """Spillway on an ext4 of its own; `directory` is what it serves.

    `quick` is for what makes many files, each of which would wait for the disk.
    """
    need_fuse()
    with loop_file_system("ext4", size_bytes, quick_dir() if quick else None) as disk:
        os.rmdir(disk / "lost+found")
        with OpenServer(disk, *flags) as server:
            yield server


def quick_dir():
    """Where a disk image is in memory, if we have such a place."""
    return "/run" if os.environ.get("SYSTEM_TEST_PRIVATE_NETWORK") == "yes" else None


@contextlib.contextmanager
def ganesha_export(size_bytes=4 * GIB):
    """nfs-ganesha on a file system of its own."""
    need_fuse()
    with loop_file_system("ext4", size_bytes, quick_dir()) as disk:
        os.chmod(disk, 0o777)
        os.rmdir(disk / "lost+found")
        with Ganesha(disk) as server:
            yield server


def power_cut(server):
    """Kills a server, and with it all that its ext4 had not written; starts it on what is left."""
    server.kill()
    directory = os.open(server.directory, os.O_RDONLY)
    try:
        fcntl.ioctl(directory, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    except OSError as error:
        raise Skip(f"this ext4 cannot be shut down: {error}") from error
    finally:
        os.close(directory)
    run_ok("umount", server.directory)
    run_ok("mount", "-o", "loop", pathlib.Path(scratch_root(), "ext4.img"), server.directory)
    server.start()


def eventually(probe, secs=10):
    """Calls `probe` until it is true; returns its last answer."""
    deadline = time.monotonic() + secs
    while not (answer := probe()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer
