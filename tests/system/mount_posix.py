#!/usr/bin/env python3
"""What POSIX and Linux promise of a file system, asked of the mount and first of ext4 itself.

The checks are in `posix_checks`, a case for each of its files. Each check has to pass on ext4,
which is also what the server serves. On the mount it has to pass as well, unless it is listed
here; and what is listed has to fail, so that the list stays true.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from harness import case, check, main, scratch_dir
from mount_rig import spillway_export

CHECKS = pathlib.Path(__file__).resolve().parent / "posix_checks"
MODULES = [
    "opening", "modes", "links", "renaming", "directories", "lengths", "times", "deleted", "nodes",
    "mapping",
]  # fmt: skip
# What version 3 of the protocol cannot say, whoever speaks it.
DEVIATIONS = {
    "times_before_1970": "its times are unsigned",
    "rename_without_replacing": "RENAME has no flags, and the answer is EINVAL",
    "rename_exchanges": "RENAME has no flags, and the answer is EINVAL",
    "deleted_file_has_no_links": "it is renamed until it is closed, so one link stays",
    "deleted_file_is_not_listed": "it is renamed until it is closed, to a name that is listed",
    "deleted_file_does_not_hold_its_directory": "it is renamed until it is closed, and stays there",
}


def failures(module, directory):
    """Runs the checks of one file below `directory`; returns why each failed, by name."""
    command = [sys.executable, CHECKS, f"--module={module}", directory]
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
    check(not there, f"on ext4 itself: {told(there)}")
    found = failures(module, mount)
    known = {*DEVIATIONS, *tolerated}
    wrong = {name: why for name, why in found.items() if why and name not in known}
    for name in found:
        if name in DEVIATIONS and found[name] is None:
            wrong[name] = "passes, though it is listed as a deviation"
    check(not wrong, told(wrong))


def told(failed):
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
def checks_can_fail():
    """Of a directory that nothing can be created in, every check says so."""
    place = scratch_dir("place")
    found = failures("links", place / "missing")
    check(all(found.values()), "a check passed without a directory")


if __name__ == "__main__":
    main(__file__)
