#!/usr/bin/env python3
"""A file system fills up: clients get the error, stable data stays, and the server goes on."""

import contextlib
import os
import time

import nfs3
from fio_verify import fio, need_fio_nfs
from harness import EXPORT, MIB, Server, case, check, loop_file_system, main, need, run

NFS3ERR_NOSPC = 28
# The smallest file systems that their mkfs still makes.
SIZE_BYTES = {"ext4": 64 * MIB, "xfs": 320 * MIB}
BLOCK = bytes(range(256)) * (MIB // 256)
COMMIT_BYTES = 8 * MIB


@contextlib.contextmanager
def full_export(kind):
    """A server on a small file system and a client of it."""
    with loop_file_system(kind, SIZE_BYTES[kind]) as mount, Server(mount) as server:
        client = nfs3.Client("127.0.0.1", server.port, EXPORT, server.mount_port)
        yield server, client
        client.close()


def write_all(client, handle, content):
    """WRITEs that are stable at once; a server may take less of one than it was sent."""
    at = 0
    while at < len(content):
        count, done, _ = client.write(handle, at, content[at : at + MIB], nfs3.FILE_SYNC)
        check(count > 0 and done == nfs3.FILE_SYNC, f"{count} bytes written with stable_how {done}")
        at += count


def fill(client, handle, stable, size_bytes):
    """WRITEs until the server refuses, and COMMITs where they are UNSTABLE.

    Returns the bytes that are promised to be on the disk, those that were acknowledged, and the
    status.
    """
    promised = acknowledged = 0
    verifiers = set()
    try:
        while acknowledged < size_bytes:
            data = part(acknowledged, MIB)
            count, done, verifier = client.write(handle, acknowledged, data, stable)
            check(0 < count <= MIB and done >= stable, f"{count} bytes, stable_how {done}")
            acknowledged += count
            verifiers.add(verifier)
            if stable == nfs3.UNSTABLE:
                if acknowledged - promised < COMMIT_BYTES:
                    continue
                verifiers.add(client.commit(handle))
            # Another verifier takes the promise back, and asks for all of it again.
            if len(verifiers) == 1:
                promised = acknowledged
    except nfs3.NfsError as refusal:
        return promised, acknowledged, refusal.status
    return promised, acknowledged, 0


def part(offset, count):
    """The data at an offset of a file."""
    start = offset % len(BLOCK)
    return (BLOCK * 2)[start : start + count]


def check_kept(server, client, handle, name, size_bytes):
    """The first bytes of a file are as they were written, on the disk and for READ."""
    with open(server.directory / name, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for offset in range(0, size_bytes, MIB):
            count = min(MIB, size_bytes - offset)
            check(file.read(count) == part(offset, count), f"{name} at {offset}: lost on the disk")
    offset = 0
    while offset < size_bytes:
        # READ may return less than it was asked for.
        data = client.read(handle, offset, min(MIB, size_bytes - offset))
        check(data and data == part(offset, len(data)), f"{name} at {offset}: READ returns others")
        offset += len(data)


def remove_and_write_again(client):
    """After a REMOVE there is space again. XFS frees it in the background, in its own time."""
    client.remove(client.root, b"filler")
    handle = client.create(client.root, b"after")
    deadline = time.monotonic() + 20
    while True:
        try:
            write_all(client, handle, BLOCK * 4)
            return handle
        except nfs3.NfsError as refusal:
            check(refusal.status == NFS3ERR_NOSPC, f"status {refusal.status} after the REMOVE")
            check(time.monotonic() < deadline, "no space 20 s after the REMOVE")
            time.sleep(0.2)


def fills_up(kind, stable):
    with full_export(kind) as (server, client):
        kept = client.create(client.root, b"kept")
        write_all(client, kept, BLOCK * 4)
        filler = client.create(client.root, b"filler")
        promised, acknowledged, status = fill(client, filler, stable, SIZE_BYTES[kind])
        check(status == NFS3ERR_NOSPC, f"{acknowledged} bytes acknowledged, then status {status}")
        check(promised > 8 * MIB, f"{promised} bytes promised, {acknowledged} acknowledged")
        check_kept(server, client, filler, "filler", promised)
        after = remove_and_write_again(client)
        for name, handle in (("kept", kept), ("after", after)):
            check(client.getattr(handle) == 4 * MIB, f"{name} has lost its size")
            check_kept(server, client, handle, name, 4 * MIB)


@case
def ext4_file_sync():
    fills_up("ext4", nfs3.FILE_SYNC)


@case
def ext4_unstable():
    fills_up("ext4", nfs3.UNSTABLE)


@case
def xfs_file_sync():
    fills_up("xfs", nfs3.FILE_SYNC)


@case
def xfs_unstable():
    fills_up("xfs", nfs3.UNSTABLE)


@case
def libnfs_gets_the_error():
    """fio ends with NFS3ERR_NOSPC, nfs-cp with a failed write, and the server goes on."""
    need_fio_nfs()
    need("nfs-cp")
    with full_export("ext4") as (server, client):
        done = fio(server, "w", "--rw=write", "--bs=1M", f"--size={2 * SIZE_BYTES['ext4']}")
        check(done.returncode != 0, "fio ended with status 0")
        words = done.stderr + done.stdout
        check("NFS3ERR_NOSPC" in words, f"fio printed: {words[:300]}")
        source = server.directory.with_suffix(".source")
        with open(source, "wb") as file:
            file.truncate(2 * SIZE_BYTES["ext4"])
        copied = run("nfs-cp", source, server.url("copy"))
        source.unlink()
        check("Failed to write" in copied.stderr, f"nfs-cp printed: {copied.stderr}")
        client.getattr(client.root)


if __name__ == "__main__":
    main(__file__)
