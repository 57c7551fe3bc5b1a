"""utimensat, and which times change by themselves."""

import errno
import os
import time

from place import (
    ALICE, BOB, as_user, check, content_of, expect, keeps, make, opened, refused, same, tick,
    updates, write_all,
)  # fmt: skip

# Python's os.utime has no word for UTIME_NOW and UTIME_OMIT, so they go to the C library.
import ctypes

UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
AT_FDCWD, AT_SYMLINK_NOFOLLOW = -100, 0x100
LIBC = ctypes.CDLL(None, use_errno=True)


def utimensat(name, atime, mtime, flags=0):
    """Each time is (seconds, nanoseconds)."""
    times = (ctypes.c_long * 4)(*atime, *mtime)
    if LIBC.utimensat(AT_FDCWD, os.fsencode(name), times, flags) != 0:
        raise OSError(ctypes.get_errno(), "utimensat", name)


def times_of(name):
    found = os.lstat(name)
    return found.st_atime_ns, found.st_mtime_ns


@check
def times_are_kept_to_the_nanosecond():
    make("file")
    os.mkdir("dir")
    pairs = [(0, 1), (1, 999999999), (1234567890123456789, 987654321987654321), (2**31 * 10**9, 0)]
    for name in ("file", "dir"):
        for pair in pairs:
            os.utime(name, ns=pair)
            same(times_of(name), pair, f"times of {name}")
    with opened("file", os.O_RDONLY) as file:
        os.utime(file, ns=(123456789, 987654321))
        same(times_of("file"), (123456789, 987654321), "times set by descriptor")


@check
def times_before_1970():
    make("file")
    os.utime("file", ns=(-(10**9), -5 * 10**9))
    same(times_of("file"), (-(10**9), -5 * 10**9), "times")


@check
def times_of_links():
    make("file")
    os.symlink("file", "link")
    os.utime("file", ns=(5, 6))
    os.utime("link", ns=(7, 8), follow_symlinks=False)
    same(os.lstat("link").st_mtime_ns, 8, "mtime of the link")
    same(times_of("file"), (5, 6), "times of the file")


@check
def times_now_and_omitted():
    make("file")
    os.utime("file", ns=(10**18, 10**18))
    utimensat("file", (0, UTIME_OMIT), (5, 6))
    same(times_of("file"), (10**18, 5 * 10**9 + 6), "times with atime omitted")
    utimensat("file", (7, 8), (0, UTIME_OMIT))
    same(times_of("file"), (7 * 10**9 + 8, 5 * 10**9 + 6), "times with mtime omitted")
    utimensat("file", (0, UTIME_OMIT), (0, UTIME_NOW))
    same(times_of("file")[0], 7 * 10**9 + 8, "atime, omitted")
    expect(abs(os.stat("file").st_mtime - time.time()) < 60, "mtime is not now")
    utimensat("file", (0, UTIME_NOW), (1, 2))
    expect(abs(os.stat("file").st_atime - time.time()) < 60, "atime is not now")
    same(times_of("file")[1], 10**9 + 2, "mtime")
    both_omitted = lambda: utimensat("file", (0, UTIME_OMIT), (0, UTIME_OMIT))
    keeps(["file"], ["st_atime_ns", "st_mtime_ns", "st_ctime_ns"], both_omitted)


@check
def times_stamp_ctime():
    make("file")
    updates(["file"], ["st_ctime_ns"], lambda: os.utime("file", ns=(1, 2)))


@check
def times_are_the_owners():
    make("shared", b"", 0o666)
    make("closed", b"", 0o644)
    for name in ("shared", "closed"):
        os.chown(name, BOB, BOB)
    # Users with write permission may set times to now; the owner may set any.
    as_user(ALICE, os.utime, "shared")
    refused(errno.EPERM, as_user, ALICE, lambda: os.utime("shared", ns=(1, 2)))
    refused(errno.EACCES, as_user, ALICE, os.utime, "closed")
    refused(errno.EPERM, as_user, ALICE, lambda: os.utime("closed", ns=(1, 2)))
    as_user(BOB, lambda: os.utime("closed", ns=(1, 2)))
    same(times_of("closed"), (1, 2), "times")
    as_user(ALICE, utimensat, "closed", (0, UTIME_OMIT), (0, UTIME_OMIT))
    refused(errno.EPERM, as_user, ALICE, utimensat, "shared", (0, UTIME_NOW), (0, UTIME_OMIT))


@check
def times_errors():
    make("file")
    os.symlink("nowhere", "dangling")
    refused(errno.ENOENT, os.utime, "missing")
    refused(errno.ENOENT, os.utime, "dangling")
    refused(errno.ENOTDIR, os.utime, "file/below")
    refused(errno.EINVAL, utimensat, "file", (0, 10**9), (0, 0))
    refused(errno.EINVAL, utimensat, "file", (0, 0), (0, -1))


@check
def write_stamps_the_file():
    make("file", b"x")
    with opened("file", os.O_RDWR) as file:
        updates(["file"], ["st_mtime_ns", "st_ctime_ns"], lambda: os.pwrite(file, b"y", 0))
        tick()
        before = os.fstat(file).st_mtime_ns
        os.pwrite(file, b"z", 0)
        expect(os.fstat(file).st_mtime_ns > before, "fstat shows the old mtime")
        keeps(["file"], ["st_mtime_ns", "st_ctime_ns"], lambda: os.pread(file, 1, 0))


@check
def write_stamp_does_not_change_later():
    """make compares times: stat returns the same times for ever after the close."""
    for number in range(5):
        with opened(f"file{number}", os.O_CREAT | os.O_WRONLY) as file:
            write_all(file, b"x" * 100000)
        closed = times_of(f"file{number}")[1]
        tick()
        content_of(f"file{number}")
        same(times_of(f"file{number}")[1], closed, "mtime a while after the close")


@check
def times_set_before_the_close_stay():
    """cp -p, tar and rsync write, set the times by descriptor and close."""
    for size in (0, 1, 100000, 3 << 20):
        with opened("file", os.O_CREAT | os.O_WRONLY | os.O_TRUNC) as file:
            write_all(file, b"x" * size)
            os.utime(file, ns=(1111111111, 2222222222))
            os.fchmod(file, 0o640)
        same(times_of("file")[1], 2222222222, f"mtime of a file of {size} bytes")
        tick()
        same(len(content_of("file")), size, "size")
        same(times_of("file")[1], 2222222222, "mtime after a read")


@check
def times_set_by_name_while_open_stay():
    with opened("file", os.O_CREAT | os.O_WRONLY) as file:
        write_all(file, b"x" * 100000)
        os.utime("file", ns=(1111111111, 2222222222))
        same(times_of("file")[1], 2222222222, "mtime while open")
    same(times_of("file")[1], 2222222222, "mtime after the close")


@check
def later_files_are_not_older():
    """Of two files written one after the other the second has no older mtime."""
    for number in range(20):
        make("source", b"x")
        make("object", b"y")
        source, made = times_of("source")[1], times_of("object")[1]
        expect(made >= source, f"round {number}: the later file is {source - made} ns older")
