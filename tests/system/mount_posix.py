#!/usr/bin/env python3
"""What POSIX and Linux promise of a file system, checked on the mount and first on ext4.

The checks are in `posix_checks`, a case for each of its files. Each check has to pass on ext4,
which is also what the server serves. On the mount it has to pass as well, unless it is listed
here; and what is listed has to fail, so that the list stays true.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

from harness import case, check, main, scratch_dir
from mount_rig import HeldReplies, spillway_export
from nfs3 import REMOVE, RENAME

CHECKS = pathlib.Path(__file__).resolve().parent / "posix_checks"
MODULES = [
    "opening", "modes", "links", "renaming", "directories", "lengths", "times", "deleted", "nodes",
    "mapping",
]  # fmt: skip
# Version 3 of the protocol lacks these, with any client.
DEVIATIONS = {
    "times_before_1970": "its times are unsigned",
    "rename_without_replacing": "RENAME has no flags, and the answer is EINVAL",
    "rename_exchanges": "RENAME has no flags, and the answer is EINVAL",
    "deleted_file_has_no_links": "it is renamed until it is closed, so one link stays",
    "deleted_file_is_not_listed": "it is renamed until it is closed, to a name that is listed",
    "deleted_file_does_not_hold_its_directory": "it is renamed until it is closed, and stays there",
}
# Checks that pass in an empty directory whatever can be created there.
CREATE_NOTHING = {"statvfs_is_plausible", "open_directory_reads_no_bytes"}

# Each fstat(2) asks for attributes, and names are used without a LOOKUP that would renew them.
NAMES_CACHED = "acregmin=0,acregmax=0,acdirmin=600,acdirmax=600"


def failures(module, directory, *flags):
    """Runs the checks of one file below `directory`; returns why each failed, by name."""
    command = [sys.executable, CHECKS, f"--module={module}", *flags, directory]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        answers = [json.loads(line) for line in process.stdout]
    check(answers, f"no check of {module} was run")
    # 0 and 1 are its own; anything else is the end of the runner, not of a check.
    check(process.returncode in (0, 1), f"the checks ended with {process.returncode}")
    return dict(answers)


def compare(module, reference, mount, tolerated):
    """Holds the mount against ext4 and against the list of what is known to differ.

    `tolerated` are checks that may fail or pass, besides.
    """
    there = {name: why for name, why in failures(module, reference).items() if why}
    check(not there, f"on ext4 itself: {listed(there)}")
    found = failures(module, mount)
    known = {*DEVIATIONS, *tolerated}
    wrong = {name: why for name, why in found.items() if why and name not in known}
    for name in found:
        if name in DEVIATIONS and found[name] is None:
            wrong[name] = "passes, though it is listed as a deviation"
    check(not wrong, listed(wrong))


def listed(failed):
    return f"{len(failed)} failed:" + "".join(f"\n       {name}: {failed[name]}" for name in failed)


def through_a_mount(module, export, tolerated=()):
    """One file of checks on a mount of `export`, which serves an ext4."""
    with export.mount() as mount:
        compare(module, scratch_ext4(export), mount, tolerated)


def scratch_ext4(export):
    """A directory on the served file system itself, out of the way of the mount's own checks."""
    return pathlib.Path(tempfile.mkdtemp(prefix="reference.", dir=export.directory))


def define(module):
    def checks():
        with spillway_export(quick=True) as export:
            through_a_mount(module, export)

    checks.__name__ = module
    case(checks)


for each in MODULES:
    define(each)


@case
def removed_name_is_subtracted_once():
    """link(2) of a file works after fstat(2) between the removal of a name and its reply."""
    with spillway_export(quick=True) as export:
        removed_during_fstat(export, REMOVE, lambda mount: os.unlink(mount / "second"))
        removed_during_fstat(
            export, RENAME, lambda mount: os.rename(mount / "other", mount / "second")
        )


def removed_during_fstat(export, procedure, remove):
    """Removes one of two names of a file by `remove`, and calls fstat(2) before that is answered.

    The kernel counts links itself; with a count of 0 it refuses link(2) without asking the mount.
    """
    with HeldReplies(export.port, procedure) as way, way.mount(NAMES_CACHED) as mount:
        (mount / "first").write_bytes(b"content")
        (mount / "other").write_bytes(b"content")
        os.link(mount / "first", mount / "second")
        remover = threading.Thread(target=remove, args=(mount,))
        with open(mount / "first", "rb") as file:
            remover.start()
            check(way.arrived.wait(30), "the server did not reply to the removal")
            links = os.fstat(file.fileno()).st_nlink
            check(links in (1, 2), f"{links} links during the removal")
            way.released.set()
            remover.join()
            os.link(mount / "first", mount / "third")
            links = os.fstat(file.fileno()).st_nlink
        check(links == 2, f"{links} links after the removal and link(2)")
        for name in mount.iterdir():
            name.unlink()


@case
def checks_can_fail():
    """Every check begins, and fails where nothing can be created, if it creates anything."""
    place = scratch_dir("place")
    for module in MODULES:
        for name, why in failures(module, place, "--removed").items():
            check(bool(why) != (name in CREATE_NOTHING), f"{name} in a removed directory: {why}")
            check(str(place) not in (why or ""), f"{name} did not begin: {why}")


if __name__ == "__main__":
    main(__file__)
