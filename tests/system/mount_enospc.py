#!/usr/bin/env python3
"""A full file system and a full quota: writers get the error, and the mount goes on."""

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

from harness import MIB, case, check, loop_file_system, main, need, run, run_ok
from mount_rig import END_SECS_MAX, OpenServer, eventually, need_fuse, spillway_export

SIZE = 64 * MIB
LIMIT = 20 * MIB
BLOCK = bytes(range(256)) * (MIB // 256)


def write_until_refused(path, blocks, finish=os.fsync):
    """Writes blocks, finishes and closes; returns the errno that was seen and where, or None."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    where = "write"
    try:
        for _ in range(blocks):
            os.write(file, BLOCK)
        where = finish.__name__
        finish(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.close(file)
        return error.errno, where
    where = "close"
    try:
        os.close(file)
    except OSError as error:
        return error.errno, where
    return None


def nothing(_file):
    """Leaves it to close."""


def fails_and_recovers(mount, served, number):
    """By fsync and by close; a file written before is whole, and one written after is too."""
    with open(mount / "kept", "wb") as file:
        file.write(BLOCK * 4)
        os.fsync(file.fileno())
    for finish in (os.fsync, nothing, os.fdatasync):
        answer = write_until_refused(mount / "filler", 3 * SIZE // MIB, finish)
        check(answer is not None, f"written in full, by {finish.__name__}")
        check(answer[0] == number, f"{errno.errorcode.get(answer[0])} from {answer[1]}")
        os.unlink(mount / "filler")
        written = eventually(lambda: write_until_refused(mount / "after", 4) is None, 20)
        check(written, "no space after the unlink")
        check((mount / "after").read_bytes() == BLOCK * 4, "the file written afterwards is wrong")
        os.unlink(mount / "after")
    check((served / "kept").read_bytes() == BLOCK * 4, "the file written before has changed")


@case
def full_disk():
    with spillway_export(size_bytes=SIZE, quick=True) as export, export.mount() as mount:
        fails_and_recovers(mount, export.directory, errno.ENOSPC)


def store_without_descriptor(path, size):
    """Stores through a mapping that alone keeps the file open: no call can return an error."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    os.ftruncate(file, size)
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    check(address != ctypes.c_void_p(-1).value, f"mmap: {ctypes.get_errno()}")
    os.close(file)
    ctypes.memset(address, 1, size)
    check(libc.munmap(address, size) == 0, f"munmap: {ctypes.get_errno()}")


@case
def lost_stores_are_in_the_exit_status():
    with spillway_export(size_bytes=SIZE, quick=True) as export:
        mount = export.mount()
        mount.start()
        try:
            store_without_descriptor(mount.directory / "stores", 2 * SIZE)
            mount.process.send_signal(signal.SIGTERM)
            mount.process.wait(END_SECS_MAX)
        finally:
            mount.tear_down()
        check(mount.process.returncode == 1, f"exit status {mount.process.returncode}")
        check("written data is lost" in mount.last_words(), mount.last_words())


def outcomes(path, flags, *steps):
    """The results of steps on a new file: a number of bytes, None, or the name of an errno."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | flags)
    results = []
    for step in (*steps, os.close):
        try:
            results.append(step(file))
        except OSError as error:
            results.append(errno.errorcode[error.errno])
    os.unlink(path)
    return results


@case
def full_disk_in_one_write():
    """The kernel sends a large write(2) in parts, and returns no error of a later one."""
    with (
        spillway_export(size_bytes=SIZE, quick=True) as export,
        export.mount() as mount,
        mmap.mmap(-1, 2 * SIZE) as data,
    ):
        data[:] = BLOCK * (len(data) // MIB)

        def write(file):
            return os.write(file, data)

        steps = ((write,), (write, os.fsync), (write, write, os.fsync))
        for flags in (os.O_DIRECT, os.O_DIRECT | os.O_SYNC, os.O_SYNC):
            # A second write fails for itself once the first has returned the error.
            for each in steps[:2] if flags == os.O_SYNC else steps:
                found = outcomes(mount / "large", flags, *each)
                # What write(2) has returned fsync(2) returns once more.
                count = 2 if each == steps[2] else 1
                check(found.count("ENOSPC") == count, f"flags {flags:o}: {found}")
        with tempfile.TemporaryFile() as source:
            source.write(data)
            source.flush()

            def send(file):
                return os.sendfile(file, source.fileno(), 0, len(data))

            # The kernel goes on after a short write, and does not return the error.
            found = outcomes(mount / "large", 0, send)
            check(found[-1] == "ENOSPC", f"sendfile: {found}")
        with export.mount("sync") as waiting:
            found = outcomes(waiting / "large", 0, write, os.fsync)
            check(found == ["ENOSPC", None, None], f"on a sync mount: {found}")
            # There the kernel sends no FSYNC, and the next write(2) returns the error.
            for each in steps:
                found = outcomes(waiting / "large", os.O_DIRECT, *each)
                count = 2 if each == steps[2] else 1
                check(found.count("ENOSPC") == count, f"O_DIRECT on a sync mount: {found}")
        # Parts that are sent meanwhile can fail after the error was returned.
        for each in steps:
            found = outcomes(mount / "large", 0, *each, os.fsync)
            check("ENOSPC" in found and found[-2:] != ["ENOSPC"] * 2, f"cached: {found}")


@case
def full_disk_and_threads():
    """Threads that write one open file in turns get the error from write(2). With O_DIRECT each
    does, because each of its writes fails before it returns."""
    with spillway_export(size_bytes=SIZE, quick=True) as export, export.mount() as mount:
        for flags in (0, os.O_DIRECT):
            with (
                ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other,
                mmap.mmap(-1, MIB) as data,
            ):  # fmt: skip
                file = os.open(mount / "file", os.O_CREAT | os.O_WRONLY | flags)
                errors = {one: 0, other: 0}
                for _ in range(3 * SIZE // MIB):
                    for thread in errors:
                        try:
                            thread.submit(os.write, file, data).result()
                        except OSError as error:
                            check(error.errno == errno.ENOSPC, f"{error}")
                            errors[thread] += 1
                with contextlib.suppress(OSError):
                    os.close(file)
                os.unlink(mount / "file")
                found = (all if flags else any)(errors.values())
                check(found, f"flags {flags:o}: {list(errors.values())} errors")


@case
def full_disk_in_small_writes():
    """Many small files, each closed: the error reaches the one whose data was refused."""
    with spillway_export(size_bytes=SIZE, quick=True) as export, export.mount() as mount:
        written, refused = {}, 0
        for number in range(3000):
            path = mount / f"file{number}"
            try:
                with open(path, "wb", buffering=0) as file:
                    count = file.write(BLOCK[:50_000])
                written[path.name] = count
            except OSError as error:
                check(error.errno == errno.ENOSPC, f"file{number}: {error}")
                refused += 1
                if refused == 20:
                    break
        check(refused == 20, f"{len(written)} files written, {refused} refused")
        # Files whose close succeeded are whole on the server.
        for name, count in written.items():
            content = (export.directory / name).read_bytes()
            check(content == BLOCK[:count], f"{name} has {len(content)} bytes of {count}, or others")


@case
def full_disk_and_programs():
    need("dd", "cp")
    with spillway_export(size_bytes=SIZE, quick=True) as export, export.mount() as mount:
        command = ["dd", "if=/dev/zero", f"of={mount}/file", "bs=1M", f"count={2 * SIZE // MIB}"]
        for flags in ([], ["conv=fsync"], ["oflag=direct"], ["oflag=sync"]):
            done = run(*command, *flags)
            check(done.returncode == 1, f"dd {flags} ended with {done.returncode}")
            check("No space left" in done.stderr, f"dd {flags} printed {done.stderr}")
        done = run("cp", "/dev/zero", mount / "copy", secs=60)
        check("No space left" in done.stderr, f"cp printed {done.stderr}")


@case
def programs_behind_one_that_found_the_disk_full():
    """They share its descriptor, as in a script, and have lost nothing."""
    need("dd", "echo")
    with spillway_export(size_bytes=SIZE, quick=True) as export, export.mount() as mount:
        write_until_refused(mount / "filler", SIZE // 2 // MIB)
        with open(mount / "log", "ab", buffering=0) as log:
            # More than the mount caches, so that write(2) fails and not close(2).
            dd = ["dd", "if=/dev/zero", "bs=1M", f"count={4 * SIZE // MIB}"]
            failed = subprocess.run(dd, stdout=log, stderr=subprocess.PIPE, check=False, text=True)
            check("error writing" in failed.stderr, f"dd printed {failed.stderr}")
            os.unlink(mount / "filler")
            written = eventually(lambda: write_until_refused(mount / "after", 4) is None, 20)
            check(written, "no space after the unlink")
            for _ in range(3):
                done = subprocess.run(["/bin/echo", "x"], stdout=log, check=False)
                check(done.returncode == 0, f"echo ended with {done.returncode}")
        check((mount / "log").read_bytes().endswith(b"x\nx\nx\n"), "the lines are not written")


@case
def full_disk_and_a_mapping():
    """msync or fsync returns the error of a store that finds no room."""


    with spillway_export(size_bytes=SIZE, quick=True) as export, export.mount() as mount:
        write_until_refused(mount / "filler", 3 * SIZE // MIB)
        seen = []
        with open(mount / "sparse", "w+b", buffering=0) as file:
            file.truncate(8 * MIB)
            with mmap.mmap(file.fileno(), 8 * MIB) as mapping:
                mapping[:] = b"m" * (8 * MIB)
                for action in (mapping.flush, lambda: os.fsync(file.fileno())):
                    try:
                        action()
                    except OSError as error:
                        seen.append(error.errno)
        check(seen, "neither msync nor fsync failed")
        check(set(seen) <= {errno.ENOSPC, errno.EIO}, f"errnos {seen}")


@case
def full_quota():
    """btrfs limits a subvolume for all users, so the server's privileges do not matter."""
    need_fuse()
    need("btrfs")
    with loop_file_system("btrfs", 600 * MIB) as disk:
        run_ok("btrfs", "subvolume", "create", disk / "limited")
        run_ok("btrfs", "quota", "enable", disk)
        run_ok("btrfs", "qgroup", "limit", str(LIMIT), disk / "limited")
        with OpenServer(disk / "limited") as export, export.mount() as mount:
            answer = write_until_refused(mount / "file", 3 * LIMIT // MIB)
            check(answer is not None, "written in full")
            check(answer[0] == errno.EDQUOT, f"{errno.errorcode.get(answer[0])} from {answer[1]}")


if __name__ == "__main__":
    main(__file__)
