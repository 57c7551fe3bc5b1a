#!/usr/bin/env python3
"""Two mounts of one export: close-to-open consistency, and caches that are kept but not too long.

What one mount closed, the other one sees when it opens, with attributes cached as by default. The
server's counters show whether a cache was used: a read from it costs no READ.
"""

import contextlib
import mmap
import os
import pathlib
import threading
import time

from harness import MIB, case, check, main
from mount_rig import eventually, spillway_export

# Longer than one READ, and off every page.
SIZE = 2 * MIB + 12345
DAMON = pathlib.Path("/sys/kernel/mm/damon/admin/kdamonds")


def pattern(length, salt):
    """Bytes of which each eight contain their place and their writer."""
    return b"".join(b"%06x%02x" % (at, salt % 256) for at in range(length // 8 + 1))[:length]


def put(path, content):
    """Writes a file anew and closes it."""
    path.write_bytes(content)


def check_seen(path, wanted, what):
    """A new open finds exactly `wanted`, in size and in content."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        check(size == len(wanted), f"{what}: {size} bytes, not {len(wanted)}")
        found = file.read()
    check(found == wanted, f"{what}: {len(found)} bytes that are not those that were written")


@contextlib.contextmanager
def two_mounts(export, options=""):
    with export.mount(options) as one, export.mount(options) as other:
        yield one, other


def closed_is_seen(export, options=""):
    """Same size, grown, shrunk, emptied, again and again, each way."""
    with two_mounts(export, options) as (one, other):
        lengths = (SIZE, SIZE, SIZE + 5000, SIZE - 70000, 100, 100, 0, 4096, SIZE)
        for turn, length in enumerate(lengths * 2):
            writer, reader = (one, other) if turn % 3 else (other, one)
            content = pattern(length, turn)
            put(writer / "file", content)
            check_seen(reader / "file", content, f"turn {turn}")
            check_seen(writer / "file", content, f"turn {turn}, by the writer")


def closed_in_place_is_seen(export):
    """Without truncation: one byte changed, some appended, cut off, stored through a mapping."""
    with two_mounts(export) as (one, other):
        content = bytearray(pattern(SIZE, 1))
        put(one / "file", content)
        for turn in range(8):
            check_seen(other / "file", bytes(content), f"before turn {turn}")
            change_in_place(one / "file", content, turn)
            check_seen(other / "file", bytes(content), f"after turn {turn}")


def change_in_place(path, content, turn):
    with open(path, "r+b", buffering=0) as file:
        match turn % 4:
            case 0:
                content[turn * 100_000] ^= 0xFF
                os.pwrite(file.fileno(), content[turn * 100_000 :][:1], turn * 100_000)
            case 1:
                content += b"appended"
                os.pwrite(file.fileno(), b"appended", len(content) - 8)
            case 2:
                del content[-50_000:]
                os.ftruncate(file.fileno(), len(content))
            case 3:
                with mmap.mmap(file.fileno(), len(content)) as mapping:
                    mapping[4096:4100] = content[4096:4100] = b"%04d" % turn


def mapping_after_open(export):
    """A mapping made after the open shows what another mount closed before it."""
    with two_mounts(export) as (one, other):
        for turn in range(6):
            content = pattern(SIZE, turn)
            put(one / "file", content)
            with open(other / "file", "rb") as file:
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
                    check(mapping[:] == content, f"turn {turn}: the mapping shows something else")


def synced_is_seen(export):
    """fsync is enough for the other one to see it, without a close."""
    with two_mounts(export) as (one, other):
        with open(one / "file", "wb", buffering=0) as file:
            for turn in range(5):
                file.write(pattern(100_000, turn))
                os.fsync(file.fileno())
                wanted = b"".join(pattern(100_000, each) for each in range(turn + 1))
                check_seen(other / "file", wanted, f"turn {turn}")


def names_are_seen(export):
    """What one creates, the other can open at once by its name; a listing shows it in time."""
    with two_mounts(export, "actimeo=1") as (one, other):
        for number in range(5):
            path = other / f"file{number}"
            check(not path.exists(), "it is there before it was made")
            put(one / f"file{number}", b"x")
            # A name that was missing may be remembered as missing for the second asked for.
            check(eventually(path.exists, 30), f"file{number} does not appear")
        check(eventually(lambda: len(os.listdir(other)) >= 5, 30), "the listing stays short")
        os.unlink(one / "file0")
        check(eventually(lambda: not (other / "file0").exists(), 30), "file0 does not go")
        os.rename(one / "file1", one / "renamed")
        check(eventually((other / "renamed").exists, 30), "the new name does not appear")
        put(one / "fresh", b"y")
        with open(other / "fresh", "rb") as file:
            check(file.read() == b"y", "a name never asked for is not the file")


def replaced_is_seen(export):
    """A file renamed over another one, on the other mount, is the one that opens next."""
    with two_mounts(export, "actimeo=1") as (one, other):
        for turn in range(6):
            put(one / "new", pattern(50_000, turn))
            os.rename(one / "new", one / "current")

            def is_new(wanted=pattern(50_000, turn)):
                return content_or_none(other / "current") == wanted

            seen = eventually(is_new, 30)
            check(seen, f"turn {turn}: the old file is still there")


def content_or_none(path):
    """The content, or None where it is not there (yet)."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def deleted_elsewhere(export):
    """A file open here and removed there fails with ESTALE, and never returns other bytes."""
    with two_mounts(export) as (one, other):
        put(one / "file", pattern(SIZE, 1))
        with open(other / "file", "rb", buffering=0) as file:
            first = os.pread(file.fileno(), 1000, 0)
            check(first == pattern(SIZE, 1)[:1000], "it reads wrong before")
            os.unlink(one / "file")
            put(one / "file", pattern(SIZE, 2))
            with contextlib.suppress(OSError):
                for at in range(0, SIZE, 65536):
                    found = os.pread(file.fileno(), 65536, at)
                    # Short where only a part was cached.
                    wanted = pattern(SIZE, 1)[at : at + len(found)]
                    check(found == wanted, f"foreign bytes at {at}")
        check_seen(other / "file", pattern(SIZE, 2), "the new file")


def turns_of_two_writers(export):
    """Both add lines to one file, in turns that they pass on by closing it."""
    with two_mounts(export) as mounts:
        wanted = b""
        for turn in range(30):
            line = b"turn %d\n" % turn
            with open(mounts[turn % 2] / "log", "ab") as file:
                file.write(line)
            wanted += line
        for mount in mounts:
            check_seen(mount / "log", wanted, "the log")


def exclusive_creation(export):
    """Of two mounts that create one name exclusively, one does."""
    with two_mounts(export) as mounts:
        for number in range(30):
            winners = []

            def create(mount, name=f"lock{number}", winners=winners):
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(mount / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                    winners.append(mount)

            threads = [threading.Thread(target=create, args=(mount,)) for mount in mounts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            check(len(winners) == 1, f"{len(winners)} winners of lock{number}")


def attributes_expire(export):
    """Without an open, another mount's change is seen when the attributes have aged."""
    with two_mounts(export, "actimeo=1") as (one, other):
        put(one / "file", b"x" * 10)
        check((other / "file").stat().st_size == 10, "the size is wrong at first")
        put(one / "file", b"x" * 20)
        os.chmod(one / "file", 0o600)
        check(eventually(lambda: (other / "file").stat().st_size == 20, 30), "the old size stays")
        check(eventually(lambda: (other / "file").stat().st_mode & 0o777 == 0o600, 30), "old mode")


def noac_is_immediate(export):
    with two_mounts(export, "noac") as (one, other):
        for length in range(1, 40):
            with open(one / "file", "ab") as file:
                file.write(b"x")
            size = (other / "file").stat().st_size
            check(size == length, f"{size} bytes, not {length}")


SUBJECTS = [
    closed_is_seen, closed_in_place_is_seen, mapping_after_open, synced_is_seen, names_are_seen,
    replaced_is_seen, deleted_elsewhere, turns_of_two_writers, exclusive_creation,
    attributes_expire, noac_is_immediate,
]  # fmt: skip


def define(subject):
    def against_spillway():
        with spillway_export(quick=True) as export:
            subject(export)

    against_spillway.__name__ = subject.__name__
    case(against_spillway)


for each in SUBJECTS:
    define(each)


@case
def a_name_in_a_shared_directory_leads_to_the_new_file_within_seconds():
    """The directory is known to be changed by another mount, when it changes once more."""
    with spillway_export(quick=True) as export, two_mounts(export) as (one, other):
        os.mkdir(other / "directory")
        for name in ("old", "new"):
            put(other / "directory" / name, b"")
        check(not (one / "directory/absent").exists(), "it is there")
        # In the clock tick of the search the link would not change the times of the directory.
        time.sleep(0.02)
        # A link keeps the old file, so that its handle stays valid.
        os.link(other / "directory/old", other / "directory/kept")
        check((one / "directory/kept").exists(), "the link is not there")
        number = (one / "directory/old").stat().st_ino
        os.rename(other / "directory/new", other / "directory/old")
        is_new = eventually(lambda: (one / "directory/old").stat().st_ino != number, 10)
        check(is_new, "the old file after 10 s")


@case
def times_of_a_directory_are_new_once_a_search_has_shown_its_change():
    with spillway_export(quick=True) as export, two_mounts(export) as (one, other):
        os.mkdir(one / "directory")
        before = (one / "directory").stat().st_mtime_ns
        time.sleep(0.02)
        put(other / "directory/new", b"")
        check((one / "directory/new").exists(), "it is not there")
        check((one / "directory").stat().st_mtime_ns > before, "the old time")


def read_bytes_of(export, action):
    """How many bytes the server was asked for while `action` ran."""
    before = export.counters()["read_bytes"]
    action()
    return export.counters()["read_bytes"] - before


def pages_reclaimed():
    """File pages that the kernel has reclaimed since it was started, and those that DAMON paged
    out, which /proc/vmstat does not count."""
    with open("/proc/vmstat", encoding="ascii") as lines:
        pages = next(int(line.split()[1]) for line in lines if line.startswith("pgsteal_file "))
    for state in DAMON.glob("*/state"):
        # Only root may ask for the counts, and only while the thread runs.
        if os.geteuid() == 0 and state.read_text(encoding="ascii").strip() == "on":
            state.write_text("update_schemes_stats", encoding="ascii")
            for applied in state.parent.glob("contexts/*/schemes/*/stats/sz_applied"):
                pages += int(applied.read_text(encoding="ascii")) // mmap.PAGESIZE
    return pages


def check_kept(again, reclaimed_before, why):
    """That a file's pages were kept, but for those that the kernel reclaimed meanwhile: DAMON does
    so with all memory free."""
    reclaimed = pages_reclaimed() - reclaimed_before
    check(again <= reclaimed * mmap.PAGESIZE, f"{why}, {reclaimed} pages were reclaimed")


def read_through(path, wanted):
    with open(path, "rb") as file:
        check(file.read() == wanted, f"{path.name} reads wrong")


@case
def own_writes_stay_cached():
    """Written, closed, opened, read: nothing is asked of the server, also after chmod and utime."""
    reclaimed = pages_reclaimed()
    with spillway_export(quick=True) as export, export.mount() as mount:
        path, content = mount / "file", pattern(SIZE, 1)
        put(path, content)
        again = read_bytes_of(export, lambda: read_through(path, content))
        check_kept(again, reclaimed, f"{again} bytes were read after the own write")
        for number in range(5):
            content = content[:-8] + b"%08d" % number
            with open(path, "r+b") as file:
                file.seek(len(content) - 8)
                file.write(content[-8:])
            again = read_bytes_of(export, lambda: read_through(path, content))
            check_kept(again, reclaimed, f"{again} bytes were read after own write {number}")
        os.chmod(path, 0o600)
        os.utime(path, ns=(1, 2))
        again = read_bytes_of(export, lambda: read_through(path, content))
        check_kept(again, reclaimed, f"{again} bytes were read after own chmod and utime")


@case
def small_writes_stay_cached():
    """Written a few bytes at a time: no page of it was ever written whole."""
    reclaimed = pages_reclaimed()
    with spillway_export(quick=True) as export, export.mount() as mount:
        content = pattern(300_000, 1)
        for step in (1, 512):
            path = mount / f"by{step}"
            with open(path, "wb", buffering=0) as file:
                for at in range(0, len(content), step):
                    file.write(content[at : at + step])
            again = read_bytes_of(export, lambda path=path: read_through(path, content))
            check_kept(again, reclaimed, f"{again} bytes were read after own writes of {step}")


@case
def unpacked_files_stay_cached():
    """As tar does it: write, futimens, fchmod, close, of many files; then all are read."""
    reclaimed = pages_reclaimed()
    with spillway_export(quick=True) as export, export.mount() as mount:
        paths = [mount / f"file{number}" for number in range(100)]
        for number, path in enumerate(paths):
            with open(path, "wb") as file:
                file.write(pattern(30_000, number))
                file.flush()
                os.utime(file.fileno(), ns=(10**18, 10**18 + number))
                os.fchmod(file.fileno(), 0o640)

        def read_all():
            for number, path in enumerate(paths):
                read_through(path, pattern(30_000, number))

        again = read_bytes_of(export, read_all)
        check_kept(again, reclaimed, f"{again} bytes were read after unpacking")


@case
def read_data_stays_cached():
    """What was read once is not read again at the next open, nor when the attributes have aged."""
    reclaimed = pages_reclaimed()
    with spillway_export(quick=True) as export:
        content = pattern(SIZE, 1)
        (export.directory / "file").write_bytes(content)
        with export.mount("actimeo=1") as mount:
            first = read_bytes_of(export, lambda: read_through(mount / "file", content))
            check(first >= SIZE, f"only {first} of {SIZE} bytes were read at first")
            for number in range(3):
                again = read_bytes_of(export, lambda: read_through(mount / "file", content))
                check_kept(again, reclaimed, f"{again} bytes were read at open {number}")
                time.sleep(0.6)


@case
def a_foreign_change_ends_the_cache():
    """Also one that keeps the size, made on the server itself."""
    with spillway_export(quick=True) as export, export.mount() as mount:
        for number in range(4):
            content = pattern(SIZE, number)
            put(mount / "file", content)
            read_through(mount / "file", content)
            foreign = b"foreign!" + content[8:]
            time.sleep(0.02)
            (export.directory / "file").write_bytes(foreign)
            again = read_bytes_of(export, lambda: read_through(mount / "file", foreign))
            check(again >= SIZE, f"{again} bytes were read after a foreign change")


if __name__ == "__main__":
    main(__file__)
