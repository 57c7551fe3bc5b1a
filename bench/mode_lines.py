"""The lines of `io-modes`: what is measured, and which of its sections need it.

All sizes follow from one, so that a small run is a faithful model of a large one. A line runs once
in a round on each of its contestants, however many sections look at it.
"""

import dataclasses

import rig
from rig import MIB

MISALIGNED_BYTES = 47008
RANDOM_JOBS = 4
MODES = ("buffered", "dontcache", "direct", "auto")
LOCAL, COPYING = "fio --direct=1", "buffered, copying"
# Files of the lines: one that is there, written full; one that each line makes anew.
STANDING, FRESH = "standing", "fresh"
# What memory is short of, in a group this part of the file; Spillway's own buffers need some too.
MEMORY_PART, MEMORY_BYTES_MIN = 4, 128 * MIB


@dataclasses.dataclass(frozen=True)
class Line:
    """A fio job and the circumstances in which it runs."""

    name: str
    sections: tuple
    contestants: tuple
    # fio's: read, write, randread, randwrite.
    rw: str
    block_bytes: int
    # What each job moves, in each of `loops` passes.
    job_bytes: int
    jobs: int = 1
    loops: int = 1
    # Where the first block begins.
    offset: int = 0
    # Random I/O goes all over this many bytes; sequential jobs get a part each.
    random_bytes: int | None = None
    file: str = STANDING
    # The whole file is in the page cache, else nothing of it.
    hot: bool = False
    # Limit of the server's memory cgroup, page cache included.
    memory_bytes: int | None = None

    @property
    def writes(self):
        return self.rw.endswith("write")

    @property
    def unit(self):
        return "op" if self.random_bytes else "MiB"

    def fio_flags(self):
        """The job in fio's words, but for who does it."""
        flags = [f"--rw={self.rw}", f"--bs={self.block_bytes}", f"--offset={self.offset}"]
        if self.loops > 1:
            flags.append(f"--loops={self.loops}")
        if self.random_bytes:
            return [*flags, f"--size={self.random_bytes}", f"--io_size={self.job_bytes}"]
        bytes_of_blocks = self.job_bytes // self.block_bytes * self.block_bytes
        flags.append(f"--size={bytes_of_blocks}")
        if self.jobs > 1:
            flags.append(f"--offset_increment={bytes_of_blocks}")
        return flags


def lines(size_bytes):
    """All of them, in the order in which they run. `size_bytes` is the size of a data file."""
    short = max(size_bytes // MEMORY_PART, MEMORY_BYTES_MIN)
    return [
        *beside_local(size_bytes),
        *streams(size_bytes),
        *under_pressure(size_bytes, short),
        *small_and_random(size_bytes),
        *splicing(size_bytes),
        *split_sizes(size_bytes),
    ]


def beside_local(size_bytes):
    """The same job by a client of the server and by fio itself, on the same file."""
    contestants = ("direct", LOCAL)
    return [
        Line(f"{rw} 1 MiB, {jobs} at once", ("local",), contestants, rw, MIB,
             size_bytes // jobs, jobs=jobs)
        for rw in ("write", "read")
        for jobs in (1, 4)
    ]  # fmt: skip


def streams(size_bytes):
    """One client, one request in flight."""
    def stream(name, sections, rw, block_bytes, **more):
        return Line(name, sections, MODES, rw, block_bytes, size_bytes, **more)

    return [
        stream("stream write 1 MiB", ("streams", "auto", "dontcache"), "write", MIB, file=FRESH),
        stream("stream write 47,008 B", ("streams",), "write", MISALIGNED_BYTES, file=FRESH),
        stream("stream read 1 MiB", ("streams",), "read", MIB),
        stream("stream read 47,008 B", ("streams",), "read", MISALIGNED_BYTES),
        stream("read twice, fits", ("auto",), "read", MIB, loops=2),
    ]


def under_pressure(size_bytes, short):
    return [
        Line("read once, memory short", ("auto", "cpu"), MODES, "read", MIB, size_bytes,
             memory_bytes=short),
        Line("stream write, memory short", ("dontcache", "cpu"), MODES, "write", MIB, size_bytes,
             file=FRESH, memory_bytes=short),
    ]  # fmt: skip


def small_and_random(size_bytes):
    def random(name, rw, job_bytes_max, hot=False):
        job_bytes = min(size_bytes // 16, job_bytes_max)
        return Line(name, ("auto",), MODES, rw, 4096, job_bytes, jobs=RANDOM_JOBS,
                    random_bytes=size_bytes, hot=hot)  # fmt: skip

    return [
        random("random read 4 KiB, cold", "randread", 32 * MIB),
        # Hot it goes so much faster that the cold line's amount would be over in no time.
        random("random read 4 KiB, hot", "randread", 64 * MIB, hot=True),
        random("random write 4 KiB", "randwrite", 16 * MIB),
    ]


def splicing(size_bytes):
    contestants = ("buffered", COPYING)
    return [
        Line(name, ("splice",), contestants, "read", block_bytes, size_bytes, hot=hot)
        for name, block_bytes, hot in (
            ("splice: read 1 MiB, cold", MIB, False),
            ("splice: read 1 MiB, hot", MIB, True),
            ("splice: read 47,008 B, hot", MISALIGNED_BYTES, True),
        )
    ]


def split_sizes(size_bytes):
    """WRITEs that `direct` splits beside the window, which is what `dontcache` uses for all."""
    return [
        Line(f"split: write {kib} KiB at {offset}", ("split",), ("direct", "dontcache"), "write",
             kib << 10, size_bytes // 2, offset=offset, file=FRESH)
        for offset in (0, 1000)
        for kib in (64, 128, 256, 512, 1024)
    ]  # fmt: skip


def make_server(contestant, line, directory, work, options):
    """The server of this contestant, not yet started; None if fio does it by itself."""
    if contestant == LOCAL:
        return None
    mode, flags = contestant, ()
    if contestant == COPYING:
        mode, flags = "buffered", ("--no-splice",)
    group = rig.MemoryGroup(line.memory_bytes) if line.memory_bytes else None
    return rig.SpillwayInMode(
        contestant, mode, directory, options.port, work, options, group, flags
    )
