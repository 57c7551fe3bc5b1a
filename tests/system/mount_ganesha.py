#!/usr/bin/env python3
"""The mount against a server that others wrote: nfs-ganesha from Debian.

The same bodies as for Spillway, those of them that need nothing of the server but the protocol.
"""

import mount_pair
import mount_posix
import mount_programs
import mount_random
from harness import MIB, case, main
from mount_rig import ganesha_export

# What this server does in its own way, in some of its versions.
TOLERATED = {
    "truncation_clears_set_id_bits": "set-id bits stay when others cut a file",
    "times_of_links": "SETATTR leaves the times of symbolic links as they are",
    "times_are_the_owners": "a user who may write sets one time to now and leaves the other",
    "statvfs_is_plausible": "PATHCONF returns a name_max of 1024 bytes",
}


def define(name, body, *arguments, **named):
    def against_ganesha():
        with ganesha_export() as export:
            body(export, *arguments, **named)

    against_ganesha.__name__ = name
    case(against_ganesha)


def posix(export, module):
    mount_posix.through_a_mount(module, export, TOLERATED)


for each in mount_posix.MODULES:
    define(f"posix_{each}", posix, each)
define("random_operations", mount_random.random_operations)
for each in (
    mount_pair.closed_is_seen, mount_pair.closed_in_place_is_seen, mount_pair.mapping_after_open,
    mount_pair.turns_of_two_writers, mount_pair.exclusive_creation,
):  # fmt: skip
    define(each.__name__, each)
define("git_clone_and_check", mount_programs.git_clone_and_check)
define("tar_there_and_back", mount_programs.tar_there_and_back)
define("sqlite_wal", mount_programs.sqlite_trades, journal="wal")
define("sqlite_delete", mount_programs.sqlite_trades, journal="delete", count=20)
define("fio_buffered_47008", mount_programs.fio_verifies, "--ioengine=psync",
       block_bytes=mount_programs.MISALIGNED_BYTES, blocks=600)  # fmt: skip
define("fio_direct_1mib", mount_programs.fio_verifies, "--ioengine=libaio", "--iodepth=8",
       "--direct=1", block_bytes=MIB, blocks=32)  # fmt: skip


if __name__ == "__main__":
    main(__file__)
