"""truncate, holes, offsets, and what is in between."""

import errno
import fcntl
import os
import resource
import signal

from place import (
    ALICE, BOB, as_user, check, content_of, expect, keeps, make, opened, refused, same, updates,
    write_all,
)  # fmt: skip

TIMES = ["st_mtime_ns", "st_ctime_ns"]
PAGE = 4096


@check
def truncate_cuts_and_extends():
    make("file", b"0123456789" * 1000)
    for length in (9999, 5000, 4096, 4095, 1, 0):
        os.truncate("file", length)
        same(content_of("file"), (b"0123456789" * 1000)[:length], f"content at {length}")
    os.truncate("file", 10000)
    same(content_of("file"), b"\0" * 10000, "content after the extension")


@check
def truncate_by_path_needs_write_permission():
    make("file", b"content", 0o444)
    os.chown("file", ALICE, ALICE)
    refused(errno.EACCES, as_user, ALICE, os.truncate, "file", 3)
    same(content_of("file"), b"content", "content")


@check
def ftruncate_needs_no_more_than_the_open_file():
    os.chmod(".", 0o777)

    def use():
        with opened("file", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o444) as file:
            write_all(file, b"content")
            os.ftruncate(file, 3)

    as_user(ALICE, use)
    same(content_of("file"), b"con", "content")


@check
def truncate_leaves_no_old_bytes():
    """What was cut off must not come back when the file grows again, within a page or behind it."""
    for cut, grown in ((100, 200), (PAGE, 2 * PAGE), (PAGE + 1, 3 * PAGE), (0, 10), (5000, 300000)):
        make("file", b"x" * 100000)
        with opened("file", os.O_RDWR) as file:
            same(len(os.pread(file, 200000, 0)), 100000, "length before")
            os.ftruncate(file, cut)
            os.ftruncate(file, grown)
            wanted = b"x" * cut + b"\0" * (grown - cut)
            same(os.pread(file, 400000, 0), wanted, f"cut to {cut}, grown to {grown}")
        same(content_of("file"), wanted, f"cut to {cut}, grown to {grown}, opened again")


@check
def truncate_then_write_behind_the_end():
    make("file", b"x" * 10000)
    with opened("file", os.O_RDWR) as file:
        os.ftruncate(file, 3)
        os.pwrite(file, b"end", 9000)
        same(os.pread(file, 20000, 0), b"xxx" + b"\0" * 8997 + b"end", "content")
    same(content_of("file"), b"xxx" + b"\0" * 8997 + b"end", "content, opened again")


@check
def truncate_with_unsent_data():
    with opened("file", os.O_CREAT | os.O_RDWR) as file:
        write_all(file, b"y" * 50000)
        os.ftruncate(file, 20000)
        same(os.fstat(file).st_size, 20000, "size")
        os.pwrite(file, b"z", 30000)
        same(os.fstat(file).st_size, 30001, "size after a write")
    wanted = b"y" * 20000 + b"\0" * 10000 + b"z"
    same(content_of("file"), wanted, "content")


@check
def truncate_by_name_of_an_open_file():
    with opened("file", os.O_CREAT | os.O_RDWR) as file:
        os.write(file, b"abcdef")
        os.truncate("file", 2)
        same(os.fstat(file).st_size, 2, "size by the descriptor")
        os.write(file, b"G")
        same(os.pread(file, 100, 0), b"ab\0\0\0\0G", "content by the descriptor")


@check
def truncate_stamps_the_file():
    make("file", b"x" * 100)
    updates(["file"], TIMES, lambda: os.truncate("file", 50))
    updates(["file"], TIMES, lambda: os.truncate("file", 150))
    with opened("file", os.O_RDWR) as file:
        updates(["file"], TIMES, lambda: os.ftruncate(file, 20))


@check
def truncate_errors():
    make("file", b"x", 0o644)
    os.mkdir("dir")
    os.symlink("loop", "loop")
    refused(errno.EISDIR, os.truncate, "dir", 0)
    refused(errno.ENOENT, os.truncate, "missing", 0)
    refused(errno.ENOTDIR, os.truncate, "file/below", 0)
    refused(errno.ELOOP, os.truncate, "loop", 0)
    refused(errno.EINVAL, os.truncate, "file", -1)
    refused(errno.ENAMETOOLONG, os.truncate, "n" * 256, 0)
    keeps(["file"], TIMES, lambda: refused(errno.EACCES, as_user, ALICE, os.truncate, "file", 0))
    same(content_of("file"), b"x", "content")


@check
def truncate_by_descriptor_needs_no_permission():
    os.chmod(".", 0o777)
    make("file", b"x" * 100, 0o666)
    os.chown("file", BOB, BOB)

    def cut():
        with opened("file", os.O_RDWR | os.O_CREAT, 0o400) as file:
            os.ftruncate(file, 10)
        with opened("own", os.O_RDWR | os.O_CREAT, 0o400) as file:
            os.write(file, b"x" * 100)
            os.ftruncate(file, 10)

    as_user(ALICE, cut)
    same((os.stat("file").st_size, os.stat("own").st_size), (10, 10), "sizes")


@check
def holes_read_as_zeros():
    with opened("file", os.O_CREAT | os.O_RDWR) as file:
        os.pwrite(file, b"end", 10 << 20)
        os.pwrite(file, b"mid", 5000001)
        same(os.fstat(file).st_size, (10 << 20) + 3, "size")
        same(os.pread(file, 10, 0), b"\0" * 10, "first hole")
        same(os.pread(file, 9, 4999998), b"\0\0\0mid\0\0\0", "around the middle")
        os.fsync(file)
        used = os.fstat(file).st_blocks * 512
        expect(used < 5 << 20, f"{used} bytes are used by a hole of ten MiB")
    content = content_of("file")
    same(content.count(b"\0"), len(content) - 6, "zeros")


@check
def offsets_beyond_32_bits():
    places = (0x7FFFFFFF, 0xFFFFFFFF, 0x123456789, 1 << 40)
    with opened("file", os.O_CREAT | os.O_RDWR) as file:
        for place in places:
            os.pwrite(file, b"<%x>" % place, place)
            same(os.fstat(file).st_size, place + len(b"<%x>" % place), "size")
        os.fsync(file)
    with opened("file", os.O_RDWR) as file:
        for place in places:
            wanted = b"<%x>" % place
            same(os.pread(file, len(wanted), place), wanted, f"content at {place:#x}")
        os.ftruncate(file, 1)


@check
def seek_to_data_and_holes():
    """A file system may call everything data, but must not call data a hole."""
    with opened("file", os.O_CREAT | os.O_RDWR) as file:
        os.pwrite(file, b"x" * PAGE, 1 << 20)
        os.ftruncate(file, 2 << 20)
        os.fsync(file)
        first = os.lseek(file, 0, os.SEEK_DATA)
        expect(first <= 1 << 20, f"SEEK_DATA returned {first}")
        hole = os.lseek(file, 1 << 20, os.SEEK_HOLE)
        expect(hole >= (1 << 20) + PAGE, f"SEEK_HOLE returned {hole}")
        same(os.lseek(file, 0, os.SEEK_END), 2 << 20, "end")
        refused(errno.ENXIO, os.lseek, file, 3 << 20, os.SEEK_DATA)


@check
def seek_to_the_end_sees_unsent_data():
    with opened("file", os.O_CREAT | os.O_RDWR) as file, opened("file", os.O_RDONLY) as other:
        for length in (1, 5000, 70000):
            os.pwrite(file, b"x", length - 1)
            same(os.lseek(other, 0, os.SEEK_END), length, "end by another descriptor")
            same(os.stat("file").st_size, length, "size by name")


@check
def space_is_reserved_one_way_or_the_other():
    """posix_fallocate extends the file, if need be by writing; FALLOC_FL flags may be unknown."""
    with opened("file", os.O_CREAT | os.O_RDWR) as file:
        os.write(file, b"start")
        os.posix_fallocate(file, 0, 20000)
        same(os.fstat(file).st_size, 20000, "size")
        same(os.pread(file, 6, 0), b"start\0", "content")


@check
def copies_within_the_kernel():
    content = bytes(range(256)) * 2000
    make("source", content)
    with opened("source", os.O_RDONLY) as source:
        with opened("ranged", os.O_CREAT | os.O_RDWR) as target:
            rest = len(content)
            while rest:
                rest -= os.copy_file_range(source, target, rest)
        with opened("sent", os.O_CREAT | os.O_RDWR) as target:
            at = 0
            while at < len(content):
                at += os.sendfile(target, source, at, len(content) - at)
    same(content_of("ranged"), content, "content by copy_file_range")
    same(content_of("sent"), content, "content by sendfile")


@check
def limit_of_file_sizes():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
    with opened("file", os.O_CREAT | os.O_RDWR) as file:
        same(os.pwrite(file, b"x" * 20000, 5000), 5000, "bytes of the short write")
        refused(errno.EFBIG, os.pwrite, file, b"x", 10000)
        refused(errno.EFBIG, os.ftruncate, file, 10001)
        same(os.fstat(file).st_size, 10000, "size")


@check
def vectors_of_buffers():
    with opened("file", os.O_CREAT | os.O_RDWR) as file:
        os.pwritev(file, [b"one", b"", b"two" * 3000, b"three"], 7)
        found = [bytearray(3), bytearray(9000), bytearray(10)]
        same(os.preadv(file, found, 7), 9008, "bytes read")
        wanted = [b"one", b"two" * 3000, b"three" + b"\0" * 5]
        same([bytes(part) for part in found], wanted, "parts")


@check
def reads_at_the_end():
    make("file", b"x" * 10)
    with opened("file", os.O_RDONLY) as file:
        same(os.pread(file, 100, 5), b"x" * 5, "across the end")
        same(os.pread(file, 100, 10), b"", "at the end")
        same(os.pread(file, 100, 1 << 40), b"", "far behind the end")
        same(os.pread(file, 0, 0), b"", "nothing")
        with opened("file", os.O_WRONLY | os.O_APPEND) as other:
            os.write(other, b"more")
        same(os.pread(file, 100, 10), b"more", "what was appended")


@check
def writes_of_nothing():
    make("file", b"x")
    with opened("file", os.O_RDWR) as file:
        same(os.pwrite(file, b"", 100), 0, "bytes written")
        same(os.fstat(file).st_size, 1, "size")


@check
def locks_exclude_other_processes():
    make("file", b"x" * 100)
    with opened("file", os.O_RDWR) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(errno.EWOULDBLOCK, as_user, 0, try_flock)
        fcntl.flock(file, fcntl.LOCK_UN)
        as_user(0, try_flock)
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 5)
        refused((errno.EACCES, errno.EAGAIN), as_user, 0, try_lockf, 10, 0)
        as_user(0, try_lockf, 5, 0)
        fcntl.lockf(file, fcntl.LOCK_UN, 10, 5)
        as_user(0, try_lockf, 10, 0)


def try_flock():
    with opened("file", os.O_RDWR) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def try_lockf(length, start):
    with opened("file", os.O_RDWR) as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
