#!/usr/bin/env python3
"""A file that changes on the server is seen by the next open(2) on a mount, on a busy machine too.

The kernel executes the replies to one program's requests when that program gets a processor. Here
programs that hardly get one ask for the attributes of the file all the time, so that old sizes come
late; an open(2) and read(2) beside them must see the file as it is.
"""

import os
import signal
import time

from harness import case, check, main
from mount_rig import LONGER, spillway_export

SECS = 4 * LONGER
LATE_PROGRAMS = 6
# No part of a page, so that the end of the file lies within one.
APPENDED_BYTES = 700
FILE_BYTES_MAX = 16 << 20
CUT_EVERY = 50


def in_child(work, processor, is_late=False):
    """The id of a process that does `work` on one processor again and again, until it is killed."""
    child = os.fork()
    if child:
        return child
    try:
        os.sched_setaffinity(0, {processor})
        if is_late:
            # It runs when the processor has nothing else to do.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while True:
            work()
    finally:
        os._exit(1)


def read_behind_the_end(path):
    """Asks for the attributes as a read(2) does."""
    file = os.open(path, os.O_RDONLY)
    os.pread(file, 100, 1 << 30)
    os.close(file)


def change_and_read(there, here, secs):
    """Appends to a file and cuts it on the server, and reads its end through the mount."""
    opens, stale, length = 0, [], 0
    end = time.monotonic() + secs
    writer = os.open(there, os.O_WRONLY | os.O_APPEND)
    while time.monotonic() < end:
        if opens % CUT_EVERY == CUT_EVERY - 1 or length > FILE_BYTES_MAX:
            length //= 2
            os.ftruncate(writer, length)
        else:
            length += os.write(writer, bytes([opens % 255 + 1]) * APPENDED_BYTES)
        reader = os.open(here, os.O_RDONLY)
        start = max(0, length - APPENDED_BYTES)
        found = len(os.pread(reader, 2 * APPENDED_BYTES, start))
        os.close(reader)
        if found != length - start:
            stale.append((opens, found, length - start))
        opens += 1
    os.close(writer)
    return opens, stale


@case
def sizes_are_those_of_the_open():
    with spillway_export() as server, server.mount() as mount:
        there, here = server.directory / "file", mount / "file"
        there.write_bytes(b"")
        processors = sorted(os.sched_getaffinity(0))
        crowded = processors[-1]
        children = [in_child(lambda: None, crowded)]
        for work in (os.stat, read_behind_the_end):
            for _ in range(LATE_PROGRAMS // 2):
                children.append(in_child(lambda work=work: work(here), crowded, is_late=True))
        os.sched_setaffinity(0, {processors[0]})
        try:
            opens, stale = change_and_read(there, here, SECS)
        finally:
            os.sched_setaffinity(0, processors)
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        print(f"     {opens} opens", flush=True)
        check(not stale, f"of {opens} opens {len(stale)} saw another end: {stale[:5]}")
        check(opens > 100, f"only {opens} opens")


if __name__ == "__main__":
    main(__file__)
