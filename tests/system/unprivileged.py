#!/usr/bin/env python3
"""The server as an ordinary user, without capabilities, over a directory that this user owns.

Started as root, the server becomes user 65534, in a place that this user can reach wherever the
checkout is. Started as another user, it stays that user.
"""

import contextlib
import filecmp
import os
import pathlib
import random
import shutil
import tempfile

import nfs3
from harness import (
    EXPORT, MIB, Server, case, check, main, need, run_ok, scratch_dir,
)  # fmt: skip

ORDINARY_UID = 65534
SIZES_BYTES = (0, 1, 4097, 47008, 8 * MIB + 5)
# Deep enough that the walk after a restart has to go through directories of directories.
DIRECTORY = "a/b/c"


@contextlib.contextmanager
def reachable_place():
    """A directory that any user can go into and, in it, one on the file system under test."""
    # A checkout below a home directory is closed to others. /run is this name space's own.
    own_mounts = os.environ.get("SYSTEM_TEST_PRIVATE_NETWORK") == "yes"
    with tempfile.TemporaryDirectory(dir="/run" if own_mounts else None) as name:
        place = pathlib.Path(name)
        place.chmod(0o755)
        directory = place / "export"
        directory.mkdir()
        if not own_mounts:
            yield place, directory
            return
        run_ok("mount", "--bind", scratch_dir("export"), directory)
        try:
            yield place, directory
        finally:
            run_ok("umount", directory)


@contextlib.contextmanager
def unprivileged_server():
    """A server without privileges, and its uid."""
    if os.geteuid() != 0:
        with Server(scratch_dir("export")) as server:
            yield server, os.geteuid()
        return
    with reachable_place() as (place, directory):
        state = place / "state"
        state.mkdir()
        for own in (directory, state):
            os.chown(own, ORDINARY_UID, ORDINARY_UID)
        server = Server(directory, uid=ORDINARY_UID, state=state)
        server.binary = shutil.copy(Server.binary, place)
        with server:
            yield server, ORDINARY_UID


def check_unprivileged(server, uid):
    """The process is that user, has no capability, and has logged what it does without."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    check(set(fields["Uid"].split()) == {str(uid)}, f"the server is user {fields['Uid']}")
    check(int(fields["CapEff"], 16) == 0, f"the server has capabilities {fields['CapEff']}")
    for words in ("serving by remembered paths", "all clients act as"):
        check(words in server.log_text(), f"no word of {words!r}: {server.last_words()}")


def copy_up(server):
    """Copies a file of each size into DIRECTORY; returns the local files."""
    sources = []
    (server.directory / DIRECTORY).mkdir(parents=True)
    for at in DIRECTORY, "a/b", "a":
        shutil.chown(server.directory / at, *2 * [server.directory.stat().st_uid])
    local = scratch_dir("local")
    for size_bytes in SIZES_BYTES:
        source = local / f"file-{size_bytes}"
        source.write_bytes(random.Random(size_bytes).randbytes(size_bytes))
        run_ok("nfs-cp", source, server.url(f"{DIRECTORY}/{source.name}"))
        sources.append(source)
    return sources


def lookup(client, path):
    handle = client.root
    for name in path.split("/"):
        handle = client.lookup(handle, name.encode())
    return handle


@case
def up_restart_down():
    """What went up comes down after a restart; handles from before it work without a LOOKUP."""
    need("nfs-cp", "nfs-cat")
    with unprivileged_server() as (server, uid):
        check_unprivileged(server, uid)
        sources = copy_up(server)
        client = nfs3.Client("127.0.0.1", server.port, EXPORT)
        handles = [lookup(client, f"{DIRECTORY}/{source.name}") for source in sources]
        client.close()
        for restart in (server.stop, server.kill):
            restart()
            server.start()
            # Only MNT goes by name here: the files' handles are all the server has to find them.
            client = nfs3.Client("127.0.0.1", server.port, EXPORT)
            for source, handle in zip(sources, handles):
                content = source.read_bytes()
                check(client.getattr(handle) == len(content), f"{source.name}: handle or size lost")
                last_at = max(0, len(content) - 100)
                same = client.read(handle, last_at, 100) == content[last_at:]
                check(same, f"{source.name}: another file behind the handle")
            client.close()
        for source in sources:
            served = server.directory / DIRECTORY / source.name
            check(served.stat().st_uid == uid, f"{served} belongs to {served.stat().st_uid}")
            same = filecmp.cmp(source, served, shallow=False)
            check(same, f"{source.name} changed going up")
            down = run_ok("nfs-cat", server.url(f"{DIRECTORY}/{source.name}"), text=False).stdout
            check(down == source.read_bytes(), f"{source.name} changed coming down")


if __name__ == "__main__":
    main(__file__)
