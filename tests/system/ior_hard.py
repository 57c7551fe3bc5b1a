#!/usr/bin/env python3
"""The "hard" case of the IOR benchmark in each pair of I/O modes, with a checksum in every block.

Several jobs write one file together, 47,008 bytes at a time, so that no block begins where a page,
a block of the disk or a neighbour's cache does. Another run reads all of it and counts no error.
"""

from fio_verify import MISALIGNED_BYTES, interleave_and_verify
from harness import case, main

MODES = ("buffered", "dontcache", "direct", "auto")
BLOCKS = 512
JOBS = 4


def in_each_read_mode(write_mode):
    for read_mode in MODES:
        serve = ("--write-mode", write_mode, "--read-mode", read_mode)
        try:
            interleave_and_verify(MISALIGNED_BYTES, BLOCKS, jobs=JOBS, serve=serve)
        except AssertionError as failure:
            raise AssertionError(f"written {write_mode}, read {read_mode}: {failure}") from failure


@case(secs=300)
def written_buffered():
    in_each_read_mode("buffered")


@case(secs=300)
def written_dontcache():
    in_each_read_mode("dontcache")


@case(secs=300)
def written_direct():
    in_each_read_mode("direct")


@case(secs=300)
def written_auto():
    in_each_read_mode("auto")


if __name__ == "__main__":
    main(__file__)
