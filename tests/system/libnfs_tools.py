#!/usr/bin/env python3
"""nfs-ls, nfs-cp and nfs-cat of libnfs against exports on what --dir is, XFS, btrfs and overlayfs."""

import contextlib
import filecmp
import os
import pathlib
import random
import re
import threading
import time

import nfs3
from harness import (
    EXPORT, MIB, Server, case, check, loop_file_system, main, need, need_space,
    overlay_file_system, run, run_ok, scratch_dir, scratch_root,
)  # fmt: skip

LARGE_FILE_BYTES = 300 * MIB
ENTRIES = 100_000
LISTINGS_MIN = 8
CHANGES_MIN = 300
# "-rw-r--r--  1     0     0            6 name": everything behind the size is the name. The first
# letter is missing for an entry without attributes, as one is that went away during the listing.
LISTED = re.compile(r"^\S{9,10}\s+\d+\s+\d+\s+\d+\s+(\d+) (.*)$")
NAMES = ["plain", "two  spaces", "grün-und-漢字-🌊", "L" * 255, "-dash", "dot.", "quote'\""]


@contextlib.contextmanager
def export_on(file_system):
    """A served, empty directory: below --dir, or on a fresh file system of its own."""
    need("nfs-ls", "nfs-cp", "nfs-cat")
    if file_system == "overlay":
        with overlay_file_system(1536 * MIB) as mount, Server(mount) as server:
            yield server
    elif file_system != "here":
        with loop_file_system(file_system, 1536 * MIB) as mount, Server(mount) as server:
            yield server
    else:
        need_space(3 * LARGE_FILE_BYTES)
        with Server(scratch_dir("export")) as server:
            yield server


def listed(server, path=""):
    """What nfs-ls shows: a list of (name, size in bytes), in the server's order."""
    lines = run_ok("nfs-ls", server.url(path)).stdout.splitlines()
    matches = [LISTED.match(line) for line in lines]
    odd = [line for line, match in zip(lines, matches) if match is None]
    check(not odd, f"nfs-ls printed {odd[:1]}")
    return [(match[2], int(match[1])) for match in matches]


def local_file(name, size_bytes):
    """A local file of incompressible, reproducible content."""
    path = pathlib.Path(scratch_root()) / name
    content = random.Random(size_bytes)
    with open(path, "wb") as file:
        for at in range(0, size_bytes, MIB):
            file.write(content.randbytes(min(MIB, size_bytes - at)))
    return path


def copy_both_ways(file_system):
    """Files of awkward sizes go up and come back; the served copy is compared as well."""
    with export_on(file_system) as server:
        for size_bytes in (0, 1, 4095, 4097, 47008, 3 * MIB + 5, LARGE_FILE_BYTES):
            source = local_file(f"source-{size_bytes}", size_bytes)
            run_ok("nfs-cp", source, server.url(source.name))
            served = server.directory / source.name
            same = filecmp.cmp(source, served, shallow=False)
            check(same, f"{size_bytes} bytes changed going up")
            back = source.with_suffix(".back")
            run_ok("nfs-cp", server.url(source.name), back)
            same = filecmp.cmp(source, back, shallow=False)
            check(same, f"{size_bytes} bytes changed coming down")
            os.unlink(source)
            os.unlink(back)


def names(file_system):
    """Names with spaces, UTF-8, quotes and 255 bytes work in LOOKUP, CREATE and READDIRPLUS."""
    with export_on(file_system) as server:
        for index, name in enumerate(NAMES):
            source = local_file(f"named-{index}", 100 + index)
            run_ok("nfs-cp", source, server.url(name))
            shown = run_ok("nfs-cat", server.url(name), text=False).stdout
            check(shown == source.read_bytes(), f"nfs-cat changed {name!r}")
        expected = {name: 100 + index for index, name in enumerate(NAMES)}
        check(dict(listed(server)) == expected, f"nfs-ls lists {listed(server)}")
        check(set(os.listdir(server.directory)) == set(NAMES), "the names on disk differ")


def listing_100k(file_system):
    """Each of 100,000 names is listed exactly once."""
    with export_on(file_system) as server:
        directory = server.directory / "many"
        directory.mkdir()
        wanted = {f"entry-{index:06}" for index in range(ENTRIES)}
        for name in wanted:
            os.close(os.open(directory / name, os.O_CREAT | os.O_WRONLY, 0o644))
        shown = [name for name, _ in listed(server, "many")]
        check(len(shown) == ENTRIES, f"{len(shown)} entries listed")
        check(set(shown) == wanted, "the names differ")


def listing_while_names_change(file_system):
    """Entries that stay are listed exactly once while others come and go (RFC 1813 section 3.3.16).

    One writer changes the directory through the server, the other one behind its back.
    """
    with export_on(file_system) as server:
        directory = server.directory / "busy"
        directory.mkdir()
        directory.chmod(0o777)
        staying = {f"stay-{index:05}" for index in range(5000)}
        for name in staying:
            (directory / name).touch()
        with (
            changing(change_through_server, server) as remote,
            changing(change_locally, server) as local,
        ):
            rounds = 0
            # Each change through the server waits for the disk, so the writers set the pace.
            while rounds < LISTINGS_MIN or min(sum(remote), sum(local)) < CHANGES_MIN:
                shown = [name for name, _ in listed(server, "busy")]
                stayed = [name for name in shown if name.startswith("stay-")]
                check(len(stayed) == len(set(stayed)), f"round {rounds}: listed twice")
                missing = staying - set(stayed)
                check(not missing, f"round {rounds}: {len(missing)} missing")
                rounds += 1


@case
def copy_both_ways_here():
    copy_both_ways("here")


@case
def copy_both_ways_xfs():
    copy_both_ways("xfs")


@case
def copy_both_ways_btrfs():
    copy_both_ways("btrfs")


@case
def copy_both_ways_overlay():
    copy_both_ways("overlay")


@case
def names_here():
    names("here")


@case
def names_xfs():
    names("xfs")


@case
def names_btrfs():
    names("btrfs")


@case(secs=180)
def listing_100k_here():
    listing_100k("here")


@case(secs=180)
def listing_100k_xfs():
    listing_100k("xfs")


@case(secs=180)
def listing_100k_btrfs():
    listing_100k("btrfs")


@case(secs=180)
def listing_100k_overlay():
    listing_100k("overlay")


@case
def listing_while_names_change_here():
    listing_while_names_change("here")


@case
def listing_while_names_change_xfs():
    listing_while_names_change("xfs")


@case
def listing_while_names_change_btrfs():
    listing_while_names_change("btrfs")


@case
def missing_file_is_an_error():
    """A name that is not there is refused in words, and nothing is created on the way."""
    with export_on("here") as server:
        source = local_file("source", 10)
        for command in (
            ("nfs-cat", server.url("absent")),
            ("nfs-cp", source, server.url("absent/file")),
        ):
            # The words count: the exit status of libnfs's tools is 0 in some versions.
            done = run(*command)
            check("Failed" in done.stderr, f"{command[0]} was content: {done.stderr}")
        check(not os.listdir(server.directory), "something was created")


@case
def listing_while_names_change_overlay():
    listing_while_names_change("overlay")


@contextlib.contextmanager
def changing(writer, server):
    """Runs `writer` in a thread during the block; yields the list of its counts."""
    stop, counts = threading.Event(), []
    thread = threading.Thread(target=writer, args=(server, stop, counts))
    thread.start()
    try:
        yield counts
    finally:
        stop.set()
        thread.join()


def change_through_server(server, stop, counts):
    client = nfs3.Client("127.0.0.1", server.port, EXPORT, server.mount_port)
    directory = client.lookup(client.root, b"busy")
    while not stop.is_set():
        for serial in range(50):
            client.create(directory, b"remote-%d" % serial)
        for serial in range(50):
            client.remove(directory, b"remote-%d" % serial)
        counts.append(100)
    client.close()


def change_locally(server, stop, counts):
    directory = server.directory / "busy"
    while not stop.is_set():
        for serial in range(50):
            (directory / f"local-{serial}").touch()
        for serial in range(50):
            (directory / f"local-{serial}").unlink()
        counts.append(100)
        time.sleep(0.001)


if __name__ == "__main__":
    main(__file__)
