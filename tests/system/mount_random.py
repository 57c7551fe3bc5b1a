#!/usr/bin/env python3
"""Random operations through the mount beside a model in memory, in the manner of fsx.

Several processes, each with files of its own, do what programs do to files: read, write, append,
truncate, map, write past the page cache, sync, close and open again, rename, drop pages. Each read
is compared with the model, and in the end the served directory itself.

SPILLWAY_MOUNT_SEED repeats the choices of a run, SPILLWAY_MOUNT_LONGER multiplies its length.
"""

import mmap
import os
import pathlib
import random
import sys
import time

from harness import case, check, main, scratch_dir
from mount_rig import LONGER, spillway_export

sys.path.append(str(pathlib.Path(__file__).resolve().parent / "posix_checks"))
from place import Child, difference, same  # noqa: E402: it is beside the checks

PROCESSES = 3
FILES = 3
SECS = 4 * LONGER
LENGTH_MAX = 700_000
PAGE = mmap.PAGESIZE
HISTORY = 12


class File:
    """A file, how it should look, and the descriptor that it is worked on with."""

    def __init__(self, path, choices):
        self.path, self.base, self.choices = path, path.name, choices
        self.model = bytearray()
        self.version = 0
        self.history = []
        self.file = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)

    def note(self, words):
        self.history = [*self.history[1 - HISTORY :], words]

    def some_range(self, length_max=120_000):
        """An offset and a length, often at the edges of pages and near the end."""
        roll = self.choices.random()
        if roll < 0.3:
            offset = self.choices.randrange(0, LENGTH_MAX, PAGE)
        elif roll < 0.5:
            offset = max(0, len(self.model) - self.choices.randrange(200))
        else:
            offset = self.choices.randrange(LENGTH_MAX)
        offset = min(offset, LENGTH_MAX - 1)
        lengths = (self.choices.randrange(1, 100), PAGE, self.choices.randrange(1, length_max))
        return offset, min(self.choices.choice(lengths), LENGTH_MAX - offset)

    def fresh(self, length):
        """Bytes that were not in the file before."""
        self.version += 1
        return (b"%06d." % self.version * (length // 7 + 1))[:length]

    def put(self, offset, content):
        """What a write does to the model."""
        if len(self.model) < offset:
            self.model += bytes(offset - len(self.model))
        self.model[offset : offset + len(content)] = content

    def write(self):
        offset, length = self.some_range()
        self.note(f"write {offset}+{length}")
        content = self.fresh(length)
        written = os.pwrite(self.file, content, offset)
        self.put(offset, content[:written])

    def write_small_in_a_row(self):
        offset, length = self.some_range(3000)
        step = self.choices.randrange(1, 60)
        self.note(f"write {offset}+{length} by {step}")
        content = self.fresh(length)
        for at in range(0, length, step):
            os.pwrite(self.file, content[at : at + step], offset + at)
        self.put(offset, content)

    def append(self):
        _, length = self.some_range(5000)
        if len(self.model) + length > LENGTH_MAX:
            return
        self.note(f"append {length} at {len(self.model)}")
        content = self.fresh(length)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.write(file, content)
        os.close(file)
        self.put(len(self.model), content)

    def read(self):
        offset, length = self.some_range()
        self.note(f"read {offset}+{length}")
        self.compare("read", os.pread(self.file, length, offset), offset, length)

    def compare(self, what, found, offset, length):
        wanted = bytes(self.model[offset : offset + length])
        if found != wanted:
            steps = "; ".join(self.history)
            words = difference(found, wanted)
            raise AssertionError(f"{self.path.name}: {what} at {offset}: {words}; after {steps}")

    def truncate(self):
        length = self.some_range()[0]
        by_name = self.choices.random() < 0.5
        self.note(f"{'truncate' if by_name else 'ftruncate'} {length}")
        os.truncate(self.path if by_name else self.file, length)
        self.model = self.model[:length] + bytes(max(0, length - len(self.model)))

    def map_and_write(self):
        offset, length = self.some_range()
        length = min(length, len(self.model) - offset)
        if length <= 0:
            return
        flush = self.choices.random() < 0.5
        self.note(f"map and write {offset}+{length}{' and flush' if flush else ''}")
        content = self.fresh(length)
        with mmap.mmap(self.file, len(self.model)) as mapping:
            mapping[offset : offset + length] = content
            if flush:
                mapping.flush()
        self.put(offset, content)

    def map_and_read(self):
        offset, length = self.some_range()
        if not self.model:
            return
        self.note(f"map and read {offset}+{length}")
        with mmap.mmap(self.file, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapping:
            self.compare("mapping", mapping[offset : offset + length], offset, length)

    def direct(self):
        """Reads or writes whole pages past the page cache, by a descriptor of its own."""
        offset, length = self.some_range()
        offset, length = offset // PAGE * PAGE, max(PAGE, length // PAGE * PAGE)
        memory = mmap.mmap(-1, length)
        file = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        if self.choices.random() < 0.5:
            self.note(f"write directly {offset}+{length}")
            content = self.fresh(length)
            memory[:] = content
            written = os.pwritev(file, [memory], offset)
            self.put(offset, content[:written])
        else:
            self.note(f"read directly {offset}+{length}")
            count = os.preadv(file, [memory], offset)
            self.compare("direct read", memory[:count], offset, length)
        os.close(file)

    def sync(self):
        self.note("sync")
        self.choices.choice((os.fsync, os.fdatasync))(self.file)

    def reopen(self):
        self.note("close and open")
        os.close(self.file)
        # At a moment without descriptors, its length can be asked for by path.
        size = os.stat(self.path).st_size
        check(size == len(self.model), f"{self.path.name}: {size} bytes, not {len(self.model)}")
        self.file = os.open(self.path, os.O_RDWR)

    def rename(self):
        self.note("rename")
        other = self.path.with_name(f"{self.base}.{self.version}")
        os.rename(self.path, other)
        self.path = other

    def drop_pages(self):
        self.note("drop pages")
        os.fsync(self.file)
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)

    def look(self):
        size = os.fstat(self.file).st_size
        check(size == len(self.model), f"{self.path.name}: {size} bytes, not {len(self.model)}")
        check(os.lseek(self.file, 0, os.SEEK_END) == len(self.model), "the end is elsewhere")

    def replace(self):
        """Writes a new file and renames it over this one, whose descriptor is open."""
        self.note("replace")
        path = self.path.with_name(f"{self.base}.new")
        content = self.fresh(self.some_range()[1])
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
        os.write(file, content)
        os.rename(path, self.path)
        length = 2 * LENGTH_MAX
        self.compare("replaced file", os.pread(self.file, length, 0), 0, length)
        os.close(self.file)
        self.file, self.model = file, bytearray(content)


STEPS = {
    File.write: 6, File.read: 8, File.write_small_in_a_row: 2, File.append: 2, File.truncate: 3,
    File.map_and_write: 2, File.map_and_read: 3, File.direct: 2, File.sync: 1, File.reopen: 2,
    File.rename: 1, File.drop_pages: 1, File.look: 2, File.replace: 1,
}  # fmt: skip


def work(directory, number, seed, secs, without=()):
    """One process: random steps on its files until the time is over; returns names and contents."""
    choices = random.Random(f"{seed}.{number}")
    files = [File(directory / f"{number}.file{index}", choices) for index in range(FILES)]
    steps = [step for step in STEPS if step not in without]
    weights = [STEPS[step] for step in steps]
    done, end = 0, time.monotonic() + secs
    while time.monotonic() < end:
        file = choices.choice(files)
        try:
            choices.choices(steps, weights)[0](file)
        except OSError as error:
            raise AssertionError(f"{error}; after {'; '.join(file.history)}") from error
        done += 1
    for file in files:
        os.close(file.file)
    return done, {file.path.name: bytes(file.model) for file in files}


def random_operations(export, options="", secs=SECS, **more):
    """Runs the processes on a mount of `export` and compares what they did with what is there.

    `without` names steps that are left out; `meanwhile` is called until they have ended.
    """
    seed = os.environ.get("SPILLWAY_MOUNT_SEED") or str(random.SystemRandom().randrange(10**9))
    try:
        with export.mount(options) as mount:
            work_and_compare(mount, export.directory, seed, secs, **more)
    except AssertionError as failure:
        raise AssertionError(f"SPILLWAY_MOUNT_SEED={seed}: {failure}") from failure


def work_and_compare(mount, served, seed, secs, without=(), meanwhile=None):
    begun = time.monotonic()
    children = [Child(work, mount, number, seed, secs, without) for number in range(PROCESSES)]
    contents, total = {}, 0
    try:
        while meanwhile and time.monotonic() < begun + secs:
            meanwhile()
        for child in children:
            done, files = child.result()
            contents.update(files)
            total += done
    finally:
        for child in children:
            child.end()
    for name, wanted in contents.items():
        for place in (mount, served):
            found = (place / name).read_bytes()
            same(found, wanted, f"{name} in the end")
    left = set(os.listdir(served)) - set(contents)
    check(not left, f"left behind: {left}")
    # A file system so slow would be a failure of another kind.
    check(total > PROCESSES * secs, f"only {total} operations in {secs} s")
    print(f"     seed {seed}: {total} operations")


@case
def as_mounted_by_default():
    with spillway_export() as export:
        random_operations(export)


@case
def on_several_connections():
    with spillway_export() as export:
        random_operations(export, "nconnect=4")


@case
def in_small_transfers():
    with spillway_export() as export:
        random_operations(export, "rsize=4096,wsize=4096")


@case
def synchronously_without_attribute_cache():
    with spillway_export() as export:
        random_operations(export, "sync,noac")


@case
def past_the_servers_cache():
    with spillway_export("--read-mode", "direct", "--write-mode", "direct") as export:
        random_operations(export)


@case
def the_model_itself():
    """The same steps in a local directory: the model is right, and what it finds is not its own."""
    place = scratch_dir("local")
    work_and_compare(place, place, "local", 1)


@case
def a_wrong_byte_is_found():
    place = scratch_dir("local")
    choices = random.Random(1)
    file = File(place / "0.file0", choices)
    file.put(0, b"x" * 1000)
    os.pwrite(file.file, b"x" * 500 + b"y" + b"x" * 499, 0)
    try:
        file.compare("read", os.pread(file.file, 1000, 0), 0, 1000)
    except AssertionError as failure:
        check("from byte 500 on" in str(failure), f"the failure is {failure}")
    else:
        raise AssertionError("not found")


if __name__ == "__main__":
    main(__file__)
