#!/usr/bin/env python3
"""A file system fills up: clients get the error, stable data stays, and the server goes on."""

import contextlib
import time

import nfs3
from fio_verify import fio, need_fio_nfs
from harness import EXPORT, MIB, Server, case, check, loop_file_system, main, need, run

NFS3ERR_NOSPC = 28
# The smallest file systems that their mkfs still makes.
SIZE_BYTES = {"ext4": 64 * MIB, "xfs": 320 * MIB}
BLOCK = bytes(range(256)) * (MIB // 256)


@contextlib.contextmanager
def full_export(kind):
    """A server on a small file system and a client of it."""
    with loop_file_system(kind, SIZE_BYTES[kind]) as mount, Server(mount) as server:
        client = nfs3.Client("127.0.0.1", server.port, EXPORT, server.mount_port)
        yield server, client
        client.close()


def fill(client, handle, stable, blocks_max):
    """WRITEs and COMMITs until the server refuses; returns (blocks acknowledged, status)."""
    for block in range(blocks_max):
        try:
            client.write(handle, block * MIB, BLOCK, stable)
            if stable == nfs3.UNSTABLE and block % 8 == 7:
                client.commit(handle)
        except nfs3.NfsError as refusal:
            return block, refusal.status
    return blocks_max, 0


def remove_and_write_again(client):
    """After a REMOVE there is space again. XFS frees it in the background, in its own time."""
    client.remove(client.root, b"filler")
    handle = client.create(client.root, b"after")
    deadline = time.monotonic() + 20
    while True:
        try:
            for block in range(4):
                client.write(handle, block * MIB, BLOCK, nfs3.FILE_SYNC)
            return handle
        except nfs3.NfsError as refusal:
            check(refusal.status == NFS3ERR_NOSPC, f"status {refusal.status} after the REMOVE")
            check(time.monotonic() < deadline, "no space 20 s after the REMOVE")
            time.sleep(0.2)


def fills_up(kind, stable):
    with full_export(kind) as (server, client):
        kept = client.create(client.root, b"kept")
        for block in range(4):
            client.write(kept, block * MIB, BLOCK, nfs3.FILE_SYNC)
        filler = client.create(client.root, b"filler")
        done, status = fill(client, filler, stable, SIZE_BYTES[kind] // MIB)
        check(status == NFS3ERR_NOSPC, f"{done} MiB acknowledged, then status {status}")
        check(done > 8, f"refused after {done} MiB only")
        if stable == nfs3.FILE_SYNC:
            for block in range(done):
                read = client.read(filler, block * MIB, MIB)
                same = read and read == BLOCK[: len(read)]
                check(same, f"block {block} was acknowledged and is gone")
        after = remove_and_write_again(client)
        for name, handle in ((b"kept", kept), (b"after", after)):
            check(client.getattr(handle) == 4 * MIB, f"{name} has lost its size")
        content = (server.directory / "kept").read_bytes()
        check(content == BLOCK * 4, "the file written before the file system was full has changed")


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
