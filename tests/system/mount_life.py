#!/usr/bin/env python3
"""How a mount begins and ends: in the foreground or not, by which user, with which errors."""

import contextlib
import ctypes
import errno
import mmap
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time

from harness import (
    EXPORT, MIB, Server, Skip, case, check, free_port, main, need, run, run_ok, scratch_dir,
)  # fmt: skip
from mount_rig import (
    END_SECS_MAX, OPTIONS, HeldReplies, OpenServer, eventually, mounted, need_fuse, waits,
)  # fmt: skip
from nfs3 import PROGRAM_MOUNT, READ, WRITE, Rpc, opaque

# fusermount needs a name for its caller, and this user has one on each system.
USER = 65534
FUSE_DEVICE = (10, 229)
# Flags of mount(2).
MS_RDONLY, MS_REMOUNT = 1, 32
# The facility of syslog(3).
DAEMON = 3 << 3


@contextlib.contextmanager
def export():
    """A server of a directory with one file."""
    need_fuse()
    with OpenServer(scratch_dir("export")) as server:
        (server.directory / "file").write_text("content", encoding="ascii")
        yield server


def url(server):
    return f"nfs://127.0.0.1:{server.port}{EXPORT}"


def fusermount():
    """The name that the program has here."""
    for name in ("fusermount3", "fusermount"):
        if shutil.which(name):
            return name
    need("fusermount3")
    return None


def ended_with(mount, status, what):
    """Fails unless the process of `mount` ends with this status and nothing stays mounted."""
    found = mount.process.wait(END_SECS_MAX)
    check(found == status, f"exit status {found} after {what}: {mount.last_words()}")
    check(not mounted(mount.directory), f"still mounted after {what}")


def one_sentence(done, status, *words):
    """Fails unless the program ended with `status` and one line on stderr that has these words."""
    check(done.returncode == status, f"exit status {done.returncode}: {done.stderr}")
    lines = done.stderr.strip().splitlines()
    check(len(lines) == 1, f"{len(lines)} lines on stderr: {done.stderr}")
    for word in words:
        check(word in lines[0], f"no word of {word!r}: {lines[0]}")


@contextlib.contextmanager
def held(mount):
    """A started mount that is torn down in the end, whatever became of it."""
    mount.start()
    try:
        yield mount
    finally:
        mount.tear_down()


@case
def umount_ends_it():
    with export() as server, held(server.mount()) as mount:
        check((mount.directory / "file").read_text() == "content", "wrong content")
        run_ok("umount", mount.directory)
        ended_with(mount, 0, "umount")


@case
def server_lists_it_until_it_ends():
    with export() as server:
        for way in ("umount", "SIGTERM"):
            # A mount leaves the list if the server answers within two seconds.
            for _ in range(3):
                with held(server.mount()) as mount:
                    check(is_listed(server), "the server does not list it")
                    if way == "umount":
                        run_ok("umount", mount.directory)
                    else:
                        mount.process.terminate()
                    ended_with(mount, 0, way)
                if not is_listed(server):
                    break
            check(not is_listed(server), f"the server lists it after {way}")


def is_listed(server):
    """Whether the server's reply to DUMP, RFC 1813 section 5.2.2, has the export."""
    mounts = Rpc("127.0.0.1", server.mount_port, PROGRAM_MOUNT)
    try:
        return opaque(EXPORT.encode()) in mounts.call(2, b"")
    finally:
        mounts.close()


@case
def fusermount_ends_it():
    with export() as server, held(server.mount()) as mount:
        run_ok(fusermount(), "-u", mount.directory)
        ended_with(mount, 0, "fusermount -u")


@case
def signals_end_it():
    with export() as server:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with held(server.mount()) as mount:
                with open(mount.directory / "written", "w", encoding="ascii") as file:
                    file.write("before the signal")
                # A server prints its counters then; nothing ends.
                mount.process.send_signal(signal.SIGUSR1)
                mount.process.send_signal(number)
                ended_with(mount, 0, f"signal {number}")
                text = (server.directory / "written").read_text(encoding="ascii")
                check(text == "before the signal", f"signal {number} lost what was written")
                (server.directory / "written").unlink()


@case
def signals_while_mounting_leave_no_mount():
    """Whenever they come, until the mount is announced."""
    with export() as server:
        for number in range(50):
            mount = server.mount()
            command = [str(word) for word in mount.command()]
            mount.process = subprocess.Popen(command, stdout=mount.log, stderr=mount.log)
            try:
                time.sleep(number * 0.002)
                mount.process.terminate()
                mount.process.wait(END_SECS_MAX)
                check(not mounted(mount.directory), f"mounted after {number * 2} ms")
            finally:
                mount.tear_down()


@case
def signals_end_an_automatic_unmount():
    """fusermount watches over it, but unmounts only what has no daemon any more."""
    fusermount()
    with export() as server, held(server.mount("auto_unmount,timeo=10")) as mount:
        file = os.open(mount.directory / "file", os.O_WRONLY)
        with stopped(server):
            os.write(file, b"C")
            mount.process.terminate()
            time.sleep(1)
        ended_with(mount, 0, "SIGTERM")
        with contextlib.suppress(OSError):
            os.close(file)
        check((server.directory / "file").read_text() == "Content", "the write is lost")


@case
def signal_writes_what_a_mapping_holds():
    """A program has a file mapped and has stored into it; neither unmount nor exit sends that."""
    with export() as server:
        for options in ("", "sync"):
            with held(server.mount(options)) as mount:
                (server.directory / "file").write_bytes(bytes(4 * MIB))
                with mapping_of(mount.directory / "file") as mapping:
                    content = os.urandom(len(mapping))
                    mapping[:] = content
                    mount.process.terminate()
                    ended_with(mount, 0, "SIGTERM")
                    found = (server.directory / "file").read_bytes()
                    check(found == content, "the server lacks what was stored")


@case
def signal_writes_a_mapping_before_the_unmount():
    """The mount waits for the server without limit then, as for other data."""
    with (
        export() as server, HeldReplies(server.port, WRITE) as replies,
        held(replies.mount()) as mount,
        open(mount.directory / "file", "r+b", buffering=0) as file,
        contextlib.closing(mmap.mmap(file.fileno(), 0)) as mapping,
    ):  # fmt: skip
        # A store that waits for a READ stops the threads that carry the reply.
        os.pread(file.fileno(), 1, 0)
        mapping[0] = ord("C")
        mount.process.terminate()
        is_sent = replies.arrived.wait(30)
        is_mounted = mounted(mount.directory)
        replies.released.set()
        check(is_sent, "no WRITE")
        check(is_mounted, "unmounted before the reply")
        ended_with(mount, 0, "SIGTERM")
        text = (server.directory / "file").read_text(encoding="ascii")
        check(text == "Content", f"the server has {text!r}")
        close(file)


@case
def signals_end_a_mount_whose_mapping_is_lost():
    """The kernel holds a page for a READ without a reply, and what lies behind cannot be sent."""
    with export() as server:
        (server.directory / "file").write_bytes(bytes(8 * MIB))
        with (
            HeldReplies(server.port, READ) as replies, held(replies.mount()) as mount,
            open(mount.directory / "file", "r+b", buffering=0) as file,
            contextlib.closing(mmap.mmap(file.fileno(), 0)) as mapping,
        ):  # fmt: skip
            # What is in the page cache is stored into without a READ.
            os.pwrite(file.fileno(), bytes(MIB), 4 * MIB)
            mapping[4 * MIB] = 1
            os.posix_fadvise(file.fileno(), 0, MIB, os.POSIX_FADV_WILLNEED)
            check(replies.arrived.wait(30), "no READ")
            mount.process.terminate()
            stuck = eventually(lambda: waits_for_a_page(mount.process.pid), 30)
            check(stuck, "the mapping is not written back")
            mount.process.terminate()
            ended_with(mount, 1, "a second SIGTERM")
            close(file)


@case
def sigkill_ends_a_mount_that_waits_to_write_a_mapping():
    """The server is silent: no thread waits in the kernel, where it could not be killed."""
    with export() as server, held(server.mount()) as mount:
        with mapping_of(mount.directory / "file") as mapping, stopped_after_a_store(server, mapping):
            mount.process.terminate()
            time.sleep(1)
            check(mount.process.poll() is None, f"ended: {mount.last_words()}")
            mount.process.kill()
            mount.process.wait(END_SECS_MAX)


@contextlib.contextmanager
def stopped_after_a_store(server, mapping):
    """The server stops before the mapping is written back."""
    mapping[0] = ord("C")
    with stopped(server):
        yield


@contextlib.contextmanager
def mapping_of(path):
    """The file, mapped shared, without a descriptor."""
    with open(path, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    try:
        yield mapping
    finally:
        mapping.close()


@case
def unmounting_writes_everything():
    """What was written and not synced is on the server when umount has ended."""
    with export() as server, held(server.mount()) as mount:
        content = os.urandom(20 << 20)
        (mount.directory / "large").write_bytes(content)
        run_ok("umount", mount.directory)
        check((server.directory / "large").read_bytes() == content, "the server has other bytes")
        ended_with(mount, 0, "umount")


@case
def busy_is_not_unmounted():
    with export() as server, held(server.mount()) as mount:
        with open(mount.directory / "file", encoding="ascii") as file:
            done = run("umount", mount.directory)
            check(done.returncode != 0 and "busy" in done.stderr, f"umount printed {done.stderr}")
            check(file.read() == "content", "wrong content after the attempt")
            run_ok("umount", "--lazy", mount.directory)
            check(mount.process.poll() is None, "it ended while a file was open")
            file.seek(0)
            check(file.read() == "content", "wrong content after the lazy unmount")
        ended_with(mount, 0, "the last close")


@case
def daemon_goes_to_the_background():
    """Without --foreground the command returns when the mount works, and leaves a daemon."""
    with export() as server:
        place = scratch_dir("mount")
        command = [Server.binary, "mount", "-o", OPTIONS, url(server), place]
        # A daemon that kept its caller's pipes open would keep this from returning.
        done = run(*command, secs=60)
        try:
            check(done.returncode == 0, f"exit status {done.returncode}: {done.stderr}")
            check(done.stdout + done.stderr == "", f"it printed {done.stdout}{done.stderr}")
            check(mounted(place), "nothing is mounted when the command returns")
            check((place / "file").read_text() == "content", "wrong content")
            run_ok("umount", place)
            gone = eventually(lambda: not daemons(place), 10)
            check(gone, f"still running after umount: {daemons(place)}")
        finally:
            if mounted(place):
                run("umount", "--lazy", place)


@contextlib.contextmanager
def daemon(place, *command):
    """The process id of a mount in the background that `command` starts; killed in the end."""
    run_ok(*command)
    (process,) = (int(number) for number in daemons(place))
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        if mounted(place):
            run("umount", "--lazy", place)


@contextlib.contextmanager
def stopped(server):
    """A server that does not answer."""
    server.process.send_signal(signal.SIGSTOP)
    # Until the last of its threads has stopped, the others still answer.
    os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@case
def daemon_is_not_ended_by_signals_to_servers():
    """SIGHUP reloads a server and SIGUSR1 prints its counters; both may reach a mount beside it."""
    with export() as server:
        place = scratch_dir("mount")
        with daemon(place, Server.binary, "mount", "-o", OPTIONS, url(server), place) as process:
            with open(place / "file", "w", encoding="ascii") as file:
                file.write("unsent")
                for number in (signal.SIGUSR1, signal.SIGHUP):
                    os.kill(process, number)
                    ended = eventually(lambda: not daemons(place), 1)
                    check(not ended, f"signal {number} ended the mount")
            run_ok("umount", place)
            check((server.directory / "file").read_text(encoding="ascii") == "unsent", "data lost")


@case
def daemon_appends_its_messages_to_a_file():
    """`log=FILE`, as fstab can have it: a server that does not answer, and one that does again."""
    with export() as server:
        place, log = scratch_dir("mount"), scratch_dir("log") / "log"
        log.write_text("before\n", encoding="ascii")
        has = lambda words: eventually(lambda: words in log.read_text(encoding="utf-8"), 15)
        options = f"{OPTIONS},actimeo=0,log={log}"
        with daemon(place, Server.binary, "mount", "-o", options, url(server), place):
            with stopped(server):
                waiting = subprocess.Popen(["stat", place / "file"], stdout=subprocess.DEVNULL)
                check(has("not responding, still trying"), f"no line: {log.read_text()}")
            check(waiting.wait(20) == 0, "stat failed")
            check(has(" OK"), f"no line of the return: {log.read_text()}")
            run_ok("umount", place)
            check(has("unmounted"), f"no line of the end: {log.read_text()}")
        check(log.read_text().startswith("before\n"), "the file was not appended to")


@case
def daemon_reports_lost_data_to_the_system_log():
    """By /dev/log, which is the test's own in a name space where the daemon runs."""
    with export() as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        place, path = scratch_dir("mount"), scratch_dir("log") / "log"
        receiver.bind(str(path))
        receiver.settimeout(20)
        made = not os.path.lexists("/dev/log")
        inside = (
            '[ -e /dev/log ] || : > /dev/log; mount --bind "$1" /dev/log && shift && exec "$@"'
        )
        space = ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside, "sh", path]
        command = [*space, Server.binary, "mount", "-o", OPTIONS, url(server), place]
        try:
            with daemon(place, *command) as process:
                message_of(receiver, f"<{DAEMON | 6}>spillway[{process}]: ", "mounted")
                file = os.open(f"/proc/{process}/root{place}/file", os.O_WRONLY)
                with stopped(server):
                    os.write(file, b"unsent")
                    for level, words in (
                        (6, "unmounting"), (4, "not all data has been written"),
                        (3, "written data is lost: received SIGTERM"),
                    ):  # fmt: skip
                        os.kill(process, signal.SIGTERM)
                        message_of(receiver, f"<{DAEMON | level}>spillway[{process}]: ", words)
                with contextlib.suppress(OSError):
                    os.close(file)
        finally:
            if made:
                pathlib.Path("/dev/log").unlink(missing_ok=True)


def message_of(receiver, head, words):
    """Waits for a message that begins with `head` and has the words."""
    while True:
        message = receiver.recv(4096).decode()
        if message.startswith(head) and words in message:
            return


def daemons(place):
    """The processes whose command line names the place."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(place) in (process / "cmdline").read_bytes():
                found.append(process.name)
    return found


@case
def killed_daemon_leaves_a_dead_mount():
    """ENOTCONN, `fusermount -uz` takes it away, and the place can be mounted again."""
    with export() as server, held(server.mount()) as mount:
        file = os.open(mount.directory / "file", os.O_RDWR)
        mount.process.kill()
        mount.process.wait()
        # The kernel may still return what it has cached; nothing new.
        for attempt in (lambda: os.listdir(mount.directory), lambda: os.fsync(file)):
            try:
                attempt()
            except OSError as error:
                check(error.errno in (errno.ENOTCONN, errno.ECONNABORTED), f"{error}")
            else:
                raise AssertionError("it answers without its daemon")
        with contextlib.suppress(OSError):
            os.close(file)
        run_ok(fusermount(), "-uz", mount.directory)
        check(not mounted(mount.directory), "still mounted")
        mount.start()
        check((mount.directory / "file").read_text() == "content", "wrong content")
        mount.end()


@case
def remounted_read_only():
    """As root by mount(2): the newer mount(8) passes options that no FUSE mount can change."""
    libc = ctypes.CDLL(None, use_errno=True)

    def remount(mount, flags):
        done = libc.mount(None, bytes(mount), None, MS_REMOUNT | flags, None)
        return 0 if done == 0 else ctypes.get_errno()

    with export() as server, held(server.mount()) as mount:
        with open(mount.directory / "written", "w", encoding="ascii") as file:
            file.write("before")
            check(remount(mount.directory, MS_RDONLY) == errno.EBUSY, "not busy")
        check(remount(mount.directory, MS_RDONLY) == 0, "refused")
        check((mount.directory / "written").read_text() == "before", "wrong content")
        check((server.directory / "written").read_text() == "before", "the server has other data")
        try:
            (mount.directory / "file").write_text("more", encoding="ascii")
        except OSError as error:
            check(error.errno == errno.EROFS, f"{error}")
        else:
            check(False, "written to a read-only mount")
        check(remount(mount.directory, 0) == 0, "refused")
        (mount.directory / "file").write_text("more", encoding="ascii")
        run_ok("umount", mount.directory)
        ended_with(mount, 0, "umount")


@contextlib.contextmanager
def helpers_of_mount(binary):
    """The directory of mount(8)'s helpers with this program alone, in this mount name space."""
    if os.environ.get("SYSTEM_TEST_PRIVATE_NETWORK") != "yes":
        raise Skip("no mount name space of our own")
    helpers = scratch_dir("sbin")
    for name in ("mount.spillway", "mount.fuse.spillway"):
        (helpers / name).symlink_to(binary)
    helpers.chmod(0o755)
    place = os.path.realpath("/sbin")
    check(place != os.path.realpath("/bin"), "mount(8) is in the directory of its helpers")
    run_ok("mount", "--bind", helpers, place)
    try:
        yield
    finally:
        run_ok("umount", place)


@contextlib.contextmanager
def fstab(server, place, options):
    """A table of mounts with one line, for the export."""
    table = scratch_dir("fstab") / "fstab"
    ports = f"port={server.port},mountport={server.port}"
    line = f"127.0.0.1:{EXPORT} {place} spillway _netdev,{ports},{options} 0 0\n"
    table.write_text(line, encoding="ascii")
    try:
        yield table
    finally:
        if mounted(place):
            run("umount", "--lazy", place)


def flags_of(place):
    """The flags of what is mounted there, and those of its file system."""
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        fields = [line.split() for line in table if line.split()[4] == str(place)][-1]
    return set(fields[5].split(",")), set(fields[-1].split(","))


@case
def mounted_by_fstab():
    """By mount(8): in the background when mount(8) returns, once, and with safe flags."""
    options = "ro,noatime,nofail,noauto,x-systemd.automount,nconnect=2"
    place = scratch_dir("mount")
    with (
        export() as server, helpers_of_mount(Server.binary),
        fstab(server, place, options) as table,
    ):  # fmt: skip
        device = server.directory / "device"
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        run_ok("mount", "-T", table, place)
        check((place / "file").read_text() == "content", "wrong content")
        found = flags_of(place)[0]
        check(found >= {"ro", "nosuid", "nodev"}, f"mounted with {found}")
        try:
            os.close(os.open(place / "device", os.O_RDONLY))
        except OSError as error:
            check(error.errno == errno.EACCES, f"{error}")
        else:
            check(False, "a device was opened")
        run_ok("mount", "-T", table, "-a")
        run_ok("umount", place)
        check(not mounted(place), "mounted twice")
        check(eventually(lambda: not daemons(place)), f"still running: {daemons(place)}")


@case
def remounted_by_mount():
    """With options of fstab and without; mount(8) passes those of the mounted file system then."""
    place = scratch_dir("mount")
    with (
        export() as server, helpers_of_mount(Server.binary),
        fstab(server, place, "noexec,sync,fsname=my files") as table,
    ):  # fmt: skip
        # As fstab(5) writes a blank.
        table.write_text(table.read_text().replace("my files", "my\\040files"))
        run_ok("mount", "-T", table, place)
        written = open(place / "written", "w", encoding="ascii")
        busy = run("mount", "-o", "remount,ro", place)
        written.close()
        check(busy.returncode == 32 and "busy" in busy.stderr.lower(), f"printed {busy.stderr}")
        for words, is_read_only, expected in (
            (["-o", "remount,ro"], True, {"ro", "nosuid", "nodev", "noexec"}),
            (["-o", "remount,rw,exec"], False, {"rw", "nosuid", "nodev"}),
            (["-o", "remount,suid"], False, {"rw", "nodev"}),
            (["-T", table, "-o", "remount,ro"], True, {"ro", "nosuid", "nodev", "noexec"}),
            (["-T", table, "-o", "remount,rw"], False, {"rw", "nosuid", "nodev", "noexec"}),
        ):
            run_ok("mount", *words, place)
            of_mount, of_file_system = flags_of(place)
            of_mount.discard("relatime")
            check(of_mount == expected, f"{words}: {of_mount}")
            check("sync" in of_file_system, f"{words}: {of_file_system}")
            try:
                (place / "file").write_text("more", encoding="ascii")
                check(not is_read_only, f"{words}: written to a read-only mount")
            except OSError as error:
                check(is_read_only and error.errno == errno.EROFS, f"{words}: {error}")
        options = ["-o", "remount,ro"]
        refused = run("/sbin/mount.spillway", "x", scratch_dir("empty"), *options)
        one_sentence(refused, 32, "not a mount of spillway")
        run_ok("umount", place)


@case
def helper_of_mount_ends_with_its_statuses():
    """1 for a wrong option, 32 for a mount that fails; -s ignores options, -f mounts nothing."""
    place = scratch_dir("mount")
    with export() as server, helpers_of_mount(Server.binary), fstab(server, place, "rw") as table:
        source = url(server)
        mount = ("mount", "-t", "spillway", source, place)
        unknown = run(*mount, "-o", "nonsense")
        check(unknown.returncode == 1 and "nonsense" in unknown.stderr, f"printed {unknown.stderr}")
        missing = run("mount", "-t", "spillway", source + "/missing", place)
        one_sentence(missing, 32, "missing")
        run_ok(*mount, "-f")
        check(not mounted(place), "mounted with -f")
        run_ok(*mount, "-s", "-o", "nonsense")
        run_ok("umount", place)
        run_ok("mount", "-T", table, place)
        run_ok("umount", place)


@case
def ordinary_users_mount_by_fstab():
    """A line with `user`: mount(8) calls the helper as that user, who also unmounts."""
    fusermount()
    with export() as server, device_for_everyone(), reachable_place() as reachable:
        os.chown(server.directory, USER, USER)
        place = reachable / "mount"
        place.mkdir()
        os.chown(place, USER, USER)
        binary = shutil.copy(Server.binary, reachable)
        with helpers_of_mount(binary), fstab(server, place, "noauto,user") as table:
            run_ok("mount", "--bind", table, "/etc/fstab")
            try:
                identity = {"user": USER, "group": USER, "extra_groups": [], "cwd": "/"}
                run_ok("mount", place, **identity)
                text = run_ok("cat", place / "file", **identity).stdout
                check(text == "content", f"cat printed {text}")
                found = flags_of(place)[0]
                check(found >= {"nosuid", "nodev", "noexec"}, f"mounted with {found}")
                run_ok("umount", place, **identity)
                check(not mounted(place), "still mounted")
            finally:
                run_ok("umount", "/etc/fstab")


@case
def remounted_many_times():
    with export() as server:
        mount = server.mount()
        for number in range(10):
            mount.start()
            (mount.directory / f"new{number}").write_text("x", encoding="ascii")
            check(len(os.listdir(mount.directory)) == number + 2, "names are missing")
            mount.end()


@contextlib.contextmanager
def covering(server, below):
    """A mount of `server` over the mount `below`."""
    above = server.mount()
    above.directory = below.directory
    command = [str(word) for word in above.command()]
    above.process = subprocess.Popen(command, stdout=above.log, stderr=above.log)
    try:
        check(eventually(lambda: shows_other(below.directory), 5), "nothing is mounted over it")
        yield above
    finally:
        # Once ended, it would take the mount below away.
        if above.process.poll() is None:
            above.tear_down()


def shows_other(directory):
    """Whether the file there is that of another server."""
    with contextlib.suppress(OSError):
        return (directory / "file").read_text(encoding="ascii") == "other"
    return False


@case
def mounted_over_a_mount():
    """A second mount at the same place covers the first, which comes back."""
    with export() as one, export() as other, held(one.mount()) as below:
        (other.directory / "file").write_text("other", encoding="ascii")
        with covering(other, below) as above:
            run_ok("umount", below.directory)
            check(above.process.wait(END_SECS_MAX) == 0, "the second mount did not end well")
        check((below.directory / "file").read_text() == "content", "the first does not come back")
        below.end()


@case
def signal_ends_no_mount_above():
    """The mount below ends, and stays in the table of mounts: umount(2) takes the topmost one."""
    with export() as one, export() as other, held(one.mount()) as below:
        (other.directory / "file").write_text("other", encoding="ascii")
        with open(below.directory / "written", "w", encoding="ascii") as file:
            file.write("before the signal")
            file.flush()
            with covering(other, below) as above:
                below.process.terminate()
                found = below.process.wait(END_SECS_MAX)
                check(found == 0, f"exit status {found}: {below.last_words()}")
                check(above.process.poll() is None, "the signal ended the mount above")
                check(shows_other(above.directory), "the mount above is gone")
                text = (one.directory / "written").read_text(encoding="ascii")
                check(text == "before the signal", f"the server has {text!r}")
                run_ok("umount", above.directory)
                check(above.process.wait(END_SECS_MAX) == 0, "the mount above did not end well")
            run_ok("umount", "--lazy", below.directory)
            close(file)


@case
def signal_ends_no_bind_mount_above():
    """A directory of the mount covers it, of the same file system: both stay, dead."""
    with export() as server, held(server.mount()) as mount:
        (server.directory / "sub").mkdir()
        run_ok("mount", "--bind", mount.directory / "sub", mount.directory)
        mount.process.terminate()
        found = mount.process.wait(END_SECS_MAX)
        check(found == 0, f"exit status {found}: {mount.last_words()}")
        check("covers this one" in mount.last_words(), mount.last_words())
        run_ok("umount", mount.directory)
        check(mounted(mount.directory), "the signal removed one of the two")
        run_ok("umount", mount.directory)


@case
def signal_ends_no_mount_below():
    """What is mounted on a directory of the mount keeps its files: the mount stays too, dead."""
    with export() as server, held(server.mount()) as mount:
        scratch = mount.directory / "scratch"
        scratch.mkdir()
        (mount.directory / "written").write_text("before the signal", encoding="ascii")
        run_ok("mount", "-t", "tmpfs", "scratch", scratch)
        (scratch / "kept").write_text("of the tmpfs", encoding="ascii")
        mount.process.terminate()
        found = mount.process.wait(END_SECS_MAX)
        check(found == 0, f"exit status {found}: {mount.last_words()}")
        check("below this one" in mount.last_words(), mount.last_words())
        check(mount.last_words().endswith(" ended"), mount.last_words())
        check(mounted(scratch), "the signal unmounted the file system below")
        text = (scratch / "kept").read_text(encoding="ascii")
        check(text == "of the tmpfs", f"the file system below has {text!r}")
        text = (server.directory / "written").read_text(encoding="ascii")
        check(text == "before the signal", f"the server has {text!r}")
        run_ok("umount", scratch)
        run_ok("umount", mount.directory)


@case
def signal_to_a_mount_whose_directory_was_renamed():
    """It is not at its path any more: it is reported where it stays, dead."""
    with export() as server:
        place = scratch_dir("renamed")
        mount = server.mount()
        mount.directory = place / "one" / "mount"
        mount.directory.mkdir(parents=True)
        with held(mount):
            (mount.directory / "written").write_text("before the signal", encoding="ascii")
            (place / "one").rename(place / "other")
            mount.directory = place / "other" / "mount"
            mount.process.terminate()
            found = mount.process.wait(END_SECS_MAX)
            check(found == 1, f"exit status {found}: {mount.last_words()}")
            moved = f"not unmounted: it has been moved to {mount.directory}"
            check(moved in mount.last_words(), mount.last_words())
            text = (server.directory / "written").read_text(encoding="ascii")
            check(text == "before the signal", f"the server has {text!r}")


@case
def signal_after_a_lazy_unmount():
    """A mount without a path finishes: it removes the deleted file that is still open, and leaves
    alone what is mounted on its directory meanwhile."""
    for is_replaced in (False, True):
        with export() as one, export() as other, held(one.mount()) as mount:
            (other.directory / "file").write_text("other", encoding="ascii")
            file = open(mount.directory / "removed", "w", encoding="ascii")
            file.write("held")
            file.flush()
            (mount.directory / "removed").unlink()
            check(len(os.listdir(one.directory)) == 2, "no .nfs file")
            run_ok("umount", "--lazy", mount.directory)
            new = covering(other, mount) if is_replaced else contextlib.nullcontext()
            with new as above:
                mount.process.terminate()
                found = mount.process.wait(END_SECS_MAX)
                check(found == 0, f"exit status {found}: {mount.last_words()}")
                left = os.listdir(one.directory)
                check(left == ["file"], f"the server still has {left}")
                if above is not None:
                    check(above.process.poll() is None, "the signal ended the new mount")
                    above.end()
            close(file)


def close(file):
    """Closes a file of a mount that has ended."""
    with contextlib.suppress(OSError):
        file.close()


@case
def read_only_mount_refuses_changes():
    with export() as server, server.mount("ro") as mount:
        check((mount / "file").read_text() == "content", "wrong content")
        for attempt in (
            lambda: (mount / "file").write_text("x"),
            lambda: (mount / "new").mkdir(),
            lambda: (mount / "file").unlink(),
            lambda: (mount / "file").chmod(0o600),
            lambda: (mount / "file").rename(mount / "other"),
        ):
            try:
                attempt()
            except OSError as error:
                check(error.errno == errno.EROFS, f"{error}")
            else:
                raise AssertionError("changed through a read-only mount")


@case
def directory_of_an_export():
    """A URL below the export mounts that directory, and `..` stays inside the mount point."""
    with export() as server:
        (server.directory / "a/b").mkdir(parents=True)
        (server.directory / "a/b/deep").write_text("deep", encoding="ascii")
        with server.mount(path="a/b") as mount:
            check((mount / "deep").read_text() == "deep", "wrong content")
            check(os.path.samefile(mount / "..", mount.parent), "`..` leads elsewhere")


@case
def shown_in_the_table_of_mounts():
    """`mount` and `df` show a FUSE file system of type spillway, and its source."""
    with export() as server, server.mount() as mount:
        with open("/proc/self/mountinfo", encoding="utf-8") as table:
            line = next(line for line in table if line.split()[4] == str(mount))
        kind, source = line.split(" - ")[1].split()[:2]
        check(kind.startswith("fuse."), f"type {kind}")
        check(f"127.0.0.1:{server.port}" in source or EXPORT in source, f"source {source}")
        shown = run_ok("df", "--output=target", mount).stdout
        check(str(mount) in shown, f"df shows {shown}")


@case
def commas_in_a_source():
    """By mount(2), and by fusermount, which gets a list of options that commas separate."""
    fusermount()
    name = "a,b\\c"
    with export() as server:
        (server.directory / name).mkdir()
        for options in ("", "auto_unmount"):
            with server.mount(options, path="a,b%5Cc") as mount:
                with open("/proc/self/mountinfo", encoding="utf-8") as table:
                    line = next(line for line in table if line.split()[4] == str(mount))
                source = line.split(" - ")[1].split()[1]
                check(source.endswith("a,b%5Cc"), f"{options}: source {source}")


@case
def commas_in_a_source_without_the_right_to_mount():
    """As root without CAP_SYS_ADMIN, as in containers: fusermount gets a list of options."""
    need("setpriv")
    with export() as server:
        (server.directory / "a,b").mkdir()
        place = scratch_dir("mount")
        program, words = place / "program", place / "words"
        program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {words}\nexit 1\n", "ascii")
        program.chmod(0o755)
        (place / "dir").mkdir()
        mount = (Server.binary, "mount", f"{url(server)}/a,b", place / "dir")
        environment = {**os.environ, "FUSERMOUNT_PATH": str(program)}
        done = run("setpriv", "--bounding-set", "-sys_admin", *mount, env=environment, secs=60)
        check(done.returncode == 1, f"exit status {done.returncode}: {done.stderr}")
        options = words.read_text("ascii").splitlines()[1]
        check(f"fsname={url(server)}/a\\,b," in options, f"options {options}")


@case
def misuse_is_reported():
    """Exit status 2 and one sentence, for what can be seen before anything is asked of a server."""
    need_fuse()
    place = scratch_dir("mount")
    good = f"nfs://127.0.0.1:{free_port()}{EXPORT}"
    for words, reason in (
        (["-o", "nonsense", good, place], "nonsense"),
        (["-o", "rsize=abc", good, place], "rsize"),
        (["-o", "nconnect=17", good, place], "nconnect"),
        (["-o", "timeo=0", good, place], "timeo"),
        (["http://127.0.0.1/x", place], "http"),
    ):
        done = run(Server.binary, "mount", *words, secs=60)
        check(done.returncode == 2, f"{words[:2]}: exit status {done.returncode}: {done.stderr}")
        check(reason in done.stderr, f"{words[:2]}: it printed {done.stderr}")
        check("panicked" not in done.stderr, done.stderr)


@case
def failures_are_reported():
    """Exit status 1 and one sentence: no server, no such export, no directory to mount on."""
    with export() as server:
        place = scratch_dir("mount")
        unreachable = f"nfs://127.0.0.1:{free_port()}{EXPORT}"
        begun = time.monotonic()
        for words, *reasons in (
            ([unreachable, place], "refused"),
            ([url(server) + "y", place], EXPORT + "y"),
            ([url(server) + "/missing", place], "missing"),
            ([url(server), place / "missing"], str(place / "missing")),
            ([url(server), server.directory / "file"], "file"),
        ):
            for flags in ([], ["--foreground"]):
                done = run(Server.binary, "mount", *flags, *words, secs=30)
                one_sentence(done, 1, *reasons)
        check(time.monotonic() - begun < 40, "it took too long")
        check(not mounted(place), "something is mounted")


@case
def server_that_is_gone_lets_go():
    """Without unwritten data the end needs no server. umount(8) asks for the size of the file
    system first, which does need it, unless it is called with `--lazy`."""
    with export() as server:
        for way in ("fusermount", "umount", "SIGTERM"):
            with held(server.mount("timeo=10")) as mount:
                check((mount.directory / "file").read_text() == "content", "wrong content")
                server.kill()
                begun = time.monotonic()
                match way:
                    case "fusermount":
                        run_ok(fusermount(), "-u", mount.directory, secs=60)
                    case "umount":
                        run_ok("umount", "--lazy", mount.directory, secs=60)
                    case "SIGTERM":
                        mount.process.terminate()
                ended_with(mount, 0, f"{way} without a server")
                check(time.monotonic() - begun < 15, f"{way} took too long")
                server.start()


def waits_for_a_page(pid):
    """Whether a thread of the process waits in the kernel for a page that is locked."""
    return any("folio_lock" in wait for wait in waits(pid))


@case
def umount_does_not_wait_for_a_silent_server():
    """Not for the page of a READ without reply either, in a file that another client has changed."""
    with export() as server:
        (server.directory / "file").write_bytes(os.urandom(8 * MIB))
        with (
            HeldReplies(server.port, READ) as replies, held(replies.mount("actimeo=0")) as mount,
        ):  # fmt: skip
            file = os.open(mount.directory / "file", os.O_RDONLY)
            os.posix_fadvise(file, 0, MIB, os.POSIX_FADV_WILLNEED)
            check(replies.arrived.wait(30), "no READ")
            with open(server.directory / "file", "r+b") as changed:
                changed.write(b"foreign")
            os.stat(mount.directory / "file")
            # Longer than the mount waits until it drops the pages.
            eventually(lambda: waits_for_a_page(mount.process.pid), 3)
            os.close(file)
            umount = subprocess.Popen(["umount", mount.directory])
            ended = eventually(lambda: umount.poll() is not None, 10)
            replies.released.set()
            check(umount.wait() == 0 and ended, "umount(8) waited for the reply")
            ended_with(mount, 0, "umount")


@contextlib.contextmanager
def device_for_everyone():
    """/dev/fuse as distributions have it, for everyone, in this mount name space."""
    if os.stat("/dev/fuse").st_mode & 0o006 == 0o006:
        yield
        return
    if os.environ.get("SYSTEM_TEST_PRIVATE_NETWORK") != "yes":
        raise Skip("/dev/fuse is root's, and this is no name space of our own")
    device = scratch_dir("device") / "fuse"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(*FUSE_DEVICE))
    os.chmod(device, 0o666)
    run_ok("mount", "--bind", device, "/dev/fuse")
    try:
        yield
    finally:
        # A mount in the background closes the device a moment after it was unmounted.
        ended = eventually(lambda: run("umount", "/dev/fuse").returncode == 0)
        check(ended, "/dev/fuse is busy")


@case
def ordinary_users_mount():
    """With fusermount, without allow_other: the user sees it, root does not, the user ends it."""
    name = fusermount()
    if not os.stat(shutil.which(name)).st_mode & stat.S_ISUID:
        raise Skip(f"{name} has no set-user-id bit")
    with export() as server, device_for_everyone(), reachable_place() as place:
        os.chown(server.directory, USER, USER)
        binary = shutil.copy(Server.binary, place)
        target = place / "mount"
        target.mkdir()
        os.chown(target, USER, USER)

        def as_user(*words):
            return run(*words, user=USER, group=USER, extra_groups=[], cwd="/", secs=60)

        done = as_user(binary, "mount", url(server), target)
        try:
            check(done.returncode == 0, f"exit status {done.returncode}: {done.stderr}")
            read = as_user("cat", target / "file")
            check(read.stdout == "content", f"cat printed {read.stdout}{read.stderr}")
            wrote = as_user("sh", "-c", f"echo mine > {target}/new")
            check(wrote.returncode == 0, f"sh printed {wrote.stderr}")
            check((server.directory / "new").stat().st_uid == USER, "another owner")
            peeped = run("ls", target, user=USER - 1, group=USER - 1, extra_groups=[], cwd="/")
            check(peeped.returncode != 0, "another user sees the mount")
            done = as_user(name, "-u", target)
            check(done.returncode == 0, f"{name} -u: {done.stderr}")
            check(not mounted(target), "still mounted")
            check(eventually(lambda: not daemons(target), 10), "the daemon still runs")
        finally:
            if mounted(target):
                run("umount", "--lazy", target)


@contextlib.contextmanager
def reachable_place():
    """A directory that any user can go into: a checkout below a home directory is closed."""
    own_mounts = os.environ.get("SYSTEM_TEST_PRIVATE_NETWORK") == "yes"
    with tempfile.TemporaryDirectory(dir="/run" if own_mounts else None) as name:
        place = pathlib.Path(name)
        place.chmod(0o755)
        yield place


if __name__ == "__main__":
    main(__file__)
