#!/usr/bin/env python3
"""Where the kernel, the file system or a limit takes an I/O mode away, clients do not notice.

In each pair of modes a client writes and reads, long and short, aligned and not: every byte is
right and no call fails. That direct I/O is not to be had is logged once, not once for each call.
"""

import contextlib
import os
import platform
import random
import sys

import nfs3
import old_kernel
from harness import (
    EXPORT, MIB, Server, Skip, SkipInCiToo, case, check, main, need, overlay_file_system, run,
    run_ok, scratch_dir,
)  # fmt: skip
from ior_hard import MODES

PAIRS = [(read, write) for read in MODES for write in MODES]
LENGTHS_BYTES = (1536, 4096, 47008, 65536, MIB)
FILE_BYTES = 4 * MIB
NO_DIRECT = "direct I/O is not supported"
# NFS3ERR_FBIG, RFC 1813 section 2.6.
TOO_BIG = 27


class ConfinedServer(Server):
    """A server that another program starts, to take something away from it."""

    def __init__(self, directory, *flags, before):
        super().__init__(directory, *flags)
        self.before = before

    def command(self):
        return [*self.before, *super().command()]


def write_and_read(server, name, seed):
    """Writes a file out of order and reads it in sequence; compares all, also with the file."""
    chooser = random.Random(seed)
    client = nfs3.Client("127.0.0.1", server.port, EXPORT)
    handle = client.create(client.root, name.encode())
    model = bytearray(FILE_BYTES)
    client.write(handle, FILE_BYTES - 1, b"\0", nfs3.UNSTABLE)
    for _ in range(8):
        for length in LENGTHS_BYTES:
            offset = chooser.randrange(FILE_BYTES - length)
            offset -= chooser.choice((0, offset % 4096))
            data = chooser.randbytes(length)
            stable = chooser.choice((nfs3.UNSTABLE, nfs3.UNSTABLE, nfs3.FILE_SYNC))
            written, _, _ = client.write(handle, offset, data, stable)
            check(written == length, f"{written} of {length} bytes written")
            model[offset : offset + length] = data
    client.commit(handle)
    for length in LENGTHS_BYTES:
        for offset in range(0, MIB if length < 47008 else FILE_BYTES, length):
            read = client.read(handle, offset, length)
            check(read == model[offset : offset + length], f"wrong: {length} bytes at {offset}")
    check(client.read(handle, FILE_BYTES - 5, 100) == model[-5:], "wrong bytes at the end")
    client.close()
    check((server.directory / name).read_bytes() == model, "another file than was written")


def in_each_pair(start, lacks_direct):
    """Works on servers that `start` makes from flags, one for each pair of modes."""
    for seed, (read_mode, write_mode) in enumerate(PAIRS):
        pair = f"read {read_mode}, write {write_mode}"
        try:
            with start("--read-mode", read_mode, "--write-mode", write_mode) as server:
                write_and_read(server, f"{read_mode}-{write_mode}", seed)
                reports = server.log_text().count(NO_DIRECT)
        except (AssertionError, nfs3.NfsError, ConnectionError) as failure:
            raise AssertionError(f"{pair}: {failure}") from failure
        least = 1 if lacks_direct and "direct" in (read_mode, write_mode) else 0
        most = 1 if lacks_direct and (read_mode, write_mode) != ("buffered", "buffered") else 0
        check(least <= reports <= most, f"{pair}: {reports} reports, not {least} to {most}")


@contextlib.contextmanager
def tmpfs(size_bytes):
    """A mounted tmpfs."""
    if os.geteuid() != 0:
        raise Skip("a mount needs root")
    mount = scratch_dir("tmpfs")
    mounted = run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", mount)
    if mounted.returncode != 0:
        raise Skip(f"mount -t tmpfs: {mounted.stderr.strip()}")
    try:
        yield mount
    finally:
        run_ok("umount", mount)


@contextlib.contextmanager
def fuse():
    """A directory that is served by a program through FUSE."""
    if os.geteuid() != 0:
        raise Skip("a mount needs root")
    need("bindfs")
    if not os.path.exists("/dev/fuse"):
        raise Skip("this machine has no FUSE")
    mount = scratch_dir("fuse")
    mounted = run("bindfs", scratch_dir("behind-fuse"), mount)
    if mounted.returncode != 0:
        raise Skip(f"bindfs: {mounted.stderr.strip()}")
    try:
        yield mount
    finally:
        run_ok("umount", mount)


@case(secs=300)
def on_tmpfs():
    with tmpfs(256 * MIB) as directory:
        in_each_pair(lambda *flags: Server(directory, *flags), lacks_direct=True)


@case(secs=300)
def on_overlayfs():
    with overlay_file_system(256 * MIB) as directory:
        in_each_pair(lambda *flags: Server(directory, *flags), lacks_direct=True)


@case(secs=300)
def on_fuse():
    with fuse() as directory:
        in_each_pair(lambda *flags: Server(directory, *flags), lacks_direct=True)


def under_filter(age, lacks_direct):
    if platform.machine() not in old_kernel.CALLS:
        raise SkipInCiToo(f"the filter does not know the system calls of {platform.machine()}")
    directory = scratch_dir("export")
    before = (sys.executable, old_kernel.__file__, age)
    in_each_pair(
        lambda *flags: ConfinedServer(directory, *flags, before=before), lacks_direct
    )


@case(secs=300)
def kernel_without_dontcache():
    under_filter("no-dontcache", lacks_direct=False)


@case(secs=300)
def kernel_that_refuses_direct():
    under_filter("no-direct", lacks_direct=True)


@case(secs=300)
def few_descriptors():
    need("prlimit")
    directory = scratch_dir("export")
    before = ("prlimit", "--nofile=64:64")
    in_each_pair(
        lambda *flags: ConfinedServer(directory, *flags, before=before), lacks_direct=False
    )


@case(secs=300)
def short_files_only():
    """RLIMIT_FSIZE: a WRITE beyond it fails with NFS3ERR_FBIG, and the server goes on."""
    need("prlimit")
    directory = scratch_dir("export")
    before = ("prlimit", f"--fsize={FILE_BYTES}:{FILE_BYTES}")
    start = lambda *flags: ConfinedServer(directory, *flags, before=before)  # noqa: E731
    in_each_pair(start, lacks_direct=False)
    for mode in MODES:
        with start("--write-mode", mode) as server:
            client = nfs3.Client("127.0.0.1", server.port, EXPORT)
            handle = client.create(client.root, f"long-{mode}".encode())
            for offset, length in ((FILE_BYTES, 1), (2 * FILE_BYTES, MIB), (FILE_BYTES, 47008)):
                try:
                    client.write(handle, offset, bytes(length), nfs3.UNSTABLE)
                    status = 0
                except nfs3.NfsError as refused:
                    status = refused.status
                check(status == TOO_BIG, f"{mode}: {length} at {offset} answered {status}")
            client.write(handle, 0, b"short", nfs3.FILE_SYNC)
            check(client.read(handle, 0, 100) == b"short", f"{mode}: lost after a refusal")
            client.close()


if __name__ == "__main__":
    main(__file__)
