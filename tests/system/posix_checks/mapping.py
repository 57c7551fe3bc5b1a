"""mmap, O_DIRECT and fsync: the ways past and through the page cache agree with each other."""

import errno
import mmap
import os
import signal
import threading
import time

from place import (
    Child, all_at_once, check, content_of, expect, in_child, make, opened, refused, same, write_all,
)  # fmt: skip

PAGE = mmap.PAGESIZE
SIZE = 40 * PAGE
DIRECT = os.O_DIRECT


def pattern(length, salt=0):
    """Bytes that contain their offset, different for each `salt`."""
    return b"".join(b"%07x%d" % (at, salt % 10) for at in range((length + 7) // 8))[:length]


def aligned(content):
    """The bytes in memory that O_DIRECT takes: anonymous mappings begin with a page."""
    memory = mmap.mmap(-1, max(PAGE, (len(content) + PAGE - 1) // PAGE * PAGE))
    memory[: len(content)] = content
    return memoryview(memory)[: len(content)]


def read_direct(name, length, offset):
    with opened(name, os.O_RDONLY | DIRECT) as file:
        memory = aligned(bytes(length))
        count = os.preadv(file, [memory], offset)
        return bytes(memory[:count])


@check
def mapping_shows_the_file():
    make("file", pattern(SIZE + 100))
    with opened("file", os.O_RDONLY) as file:
        with mmap.mmap(file, SIZE + 100, mmap.MAP_SHARED, mmap.PROT_READ) as mapping:
            same(mapping[:], pattern(SIZE + 100), "content")
        with mmap.mmap(file, PAGE, mmap.MAP_SHARED, mmap.PROT_READ, offset=3 * PAGE) as mapping:
            same(mapping[:], pattern(SIZE)[3 * PAGE : 4 * PAGE], "content at an offset")
        refused(errno.EACCES, mmap.mmap, file, PAGE, mmap.MAP_SHARED, mmap.PROT_WRITE)


@check
def mapping_writes_the_file():
    make("file", pattern(SIZE))
    wanted = bytearray(pattern(SIZE))
    with opened("file", os.O_RDWR) as file:
        with mmap.mmap(file, SIZE) as mapping:
            for at in (0, 5, PAGE - 2, 7 * PAGE + 1, SIZE - 4):
                mapping[at : at + 4] = wanted[at : at + 4] = b"MAP!"
            same(os.pread(file, SIZE, 0), bytes(wanted), "read beside the mapping")
            mapping.flush()
            same(in_child(content_of, "file"), bytes(wanted), "read by another process")
            mapping[PAGE : 2 * PAGE] = wanted[PAGE : 2 * PAGE] = b"m" * PAGE
    same(content_of("file"), bytes(wanted), "content after the end of the mapping")


@check
def mapping_sees_writes():
    make("file", pattern(SIZE))
    with opened("file", os.O_RDWR) as file, mmap.mmap(file, SIZE) as mapping:
        same(mapping[:8], pattern(8), "before")
        os.pwrite(file, b"WRITTEN", 3 * PAGE - 3)
        same(mapping[3 * PAGE - 3 : 3 * PAGE + 4], b"WRITTEN", "a write by the same descriptor")
        with opened("file", os.O_WRONLY) as other:
            os.pwrite(other, b"other", 0)
        same(mapping[:5], b"other", "a write by another descriptor")


@check
def mapping_without_a_descriptor():
    make("file", pattern(SIZE))
    with opened("file", os.O_RDWR) as file:
        mapping = mmap.mmap(file, SIZE)
    mapping[10:14] = b"late"
    mapping.close()
    same(content_of("file")[10:14], b"late", "stored after the close")


@check
def mapping_private_stays_private():
    make("file", pattern(SIZE))
    with opened("file", os.O_RDONLY) as file:
        with mmap.mmap(file, SIZE, mmap.MAP_PRIVATE) as mapping:
            mapping[:5] = b"mine!"
            same(mapping[:5], b"mine!", "own view")
            mapping[PAGE + 1 : PAGE + 5] = b"mine"
    same(content_of("file"), pattern(SIZE), "content of the file")


@check
def mapping_of_two_processes():
    make("file", b"\0" * SIZE)
    all_at_once(4, stamp_pages)
    wanted = b"".join(b"%d" % (page % 4) * PAGE for page in range(SIZE // PAGE))
    same(content_of("file"), wanted, "content")


def stamp_pages(number):
    with opened("file", os.O_RDWR) as file, mmap.mmap(file, SIZE) as mapping:
        for page in range(number, SIZE // PAGE, 4):
            mapping[page * PAGE : (page + 1) * PAGE] = b"%d" % number * PAGE


@check
def mapping_of_the_last_page():
    """Behind the end there are zeros to read, and stores there do not reach the file."""
    make("file", b"x" * 100)
    with opened("file", os.O_RDWR) as file:
        with mmap.mmap(file, 0) as mapping:
            same(len(mapping), 100, "length")
            mapping[99:100] = b"y"
        os.ftruncate(file, PAGE)
        same(os.pread(file, PAGE, 0), b"x" * 99 + b"y" + b"\0" * (PAGE - 100), "content")


@check
def mapping_grows_and_shrinks_with_the_file():
    make("file", b"a" * PAGE)
    with opened("file", os.O_RDWR) as file:
        os.ftruncate(file, 4 * PAGE)
        with mmap.mmap(file, 4 * PAGE) as mapping:
            mapping[3 * PAGE :] = b"d" * PAGE
            os.ftruncate(file, 2 * PAGE)
            os.ftruncate(file, 4 * PAGE)
            same(mapping[3 * PAGE :], b"\0" * PAGE, "what was cut off")
            mapping[2 * PAGE : 2 * PAGE + 1] = b"c"
        wanted = b"a" * PAGE + b"\0" * PAGE + b"c" + b"\0" * (2 * PAGE - 1)
        same(content_of("file"), wanted, "content")


@check
def mapping_behind_the_end_is_a_bus_error():
    make("file", b"x" * PAGE)

    def touch():
        with opened("file", os.O_RDWR) as file:
            os.ftruncate(file, 2 * PAGE)
            mapping = mmap.mmap(file, 2 * PAGE)
            os.ftruncate(file, PAGE)
            signal.signal(signal.SIGBUS, signal.SIG_DFL)
            return mapping[PAGE]

    try:
        value = Child(touch).result()
    except AssertionError as ended:
        expect(str(ended).endswith(str(-signal.SIGBUS)), f"the process ended otherwise: {ended}")
    else:
        raise AssertionError(f"read {value} behind the end")


@check
def mapping_stamps_the_file():
    make("file", b"x" * PAGE)
    os.utime("file", ns=(1, 1))
    with opened("file", os.O_RDWR) as file, mmap.mmap(file, PAGE) as mapping:
        mapping[0:1] = b"y"
        mapping.flush()
    expect(os.stat("file").st_mtime_ns > 10**9, "mtime is the old one")


@check
def direct_io_aligned():
    content = pattern(SIZE)
    with opened("file", os.O_CREAT | os.O_RDWR | DIRECT) as file:
        same(os.pwrite(file, aligned(content), 0), SIZE, "bytes written")
        same(os.pwrite(file, aligned(content[:PAGE]), 4 * SIZE), PAGE, "bytes written")
        memory = aligned(bytes(SIZE))
        same(os.preadv(file, [memory], 0), SIZE, "bytes read")
        same(bytes(memory), content, "content")
        same(os.preadv(file, [memory], 4 * SIZE), PAGE, "bytes read at the end")
        same(os.preadv(file, [memory], 8 * SIZE), 0, "bytes read behind the end")
        same(os.fstat(file).st_size, 4 * SIZE + PAGE, "size")
    same(content_of("file")[:SIZE], content, "content read through the cache")


@check
def direct_io_misaligned_is_right_or_refused():
    make("file", pattern(SIZE))
    wanted = bytearray(pattern(SIZE))
    with opened("file", os.O_RDWR | DIRECT) as file:
        for offset, length in ((1, 100), (511, 3), (PAGE - 1, 2), (5000, 47008), (0, 7)):
            content = pattern(length, 7)
            try:
                written = os.pwrite(file, aligned(content), offset)
            except OSError as error:
                same(error.errno, errno.EINVAL, "errno of a misaligned write")
                continue
            wanted[offset : offset + written] = content[:written]
            same(os.pread(file, length, offset), content, f"content at {offset}")
    same(content_of("file"), bytes(wanted), "content")


@check
def direct_io_and_the_cache_agree():
    make("file", pattern(SIZE))
    same(content_of("file"), pattern(SIZE), "content in the cache")
    with opened("file", os.O_RDWR | DIRECT) as direct, opened("file", os.O_RDWR) as cached:
        os.pwrite(direct, aligned(b"D" * PAGE), 2 * PAGE)
        same(os.pread(cached, PAGE, 2 * PAGE), b"D" * PAGE, "a direct write, read by the cache")
        os.pwrite(cached, b"C" * 10, 3 * PAGE + 5)
        found = read_direct("file", PAGE, 3 * PAGE)
        same(found[:16], pattern(SIZE)[3 * PAGE :][:5] + b"C" * 10 + found[15:16], "a cached write")
        with mmap.mmap(cached, SIZE) as mapping:
            mapping[5 * PAGE : 5 * PAGE + 6] = b"mapped"
            same(read_direct("file", PAGE, 5 * PAGE)[:6], b"mapped", "a store")
            os.pwrite(direct, aligned(b"E" * PAGE), 6 * PAGE)
            same(mapping[6 * PAGE : 7 * PAGE], b"E" * PAGE, "a direct write, seen by the mapping")


@check
def pages_that_are_read_during_a_direct_write_are_not_kept():
    size = 16 << 20
    make("file", b"o" * size)
    with opened("file", os.O_RDWR | DIRECT) as direct, opened("file", os.O_RDONLY) as cached:
        writing = threading.Thread(target=os.pwrite, args=(direct, aligned(b"n" * size), 0))
        writing.start()
        while writing.is_alive():
            os.pread(cached, PAGE, size - PAGE)
        writing.join()
    same(content_of("file")[-PAGE:], b"n" * PAGE, "the last page")
    same(content_of("file"), b"n" * size, "content")


@check
def direct_io_appends():
    with opened("file", os.O_CREAT | os.O_WRONLY | os.O_APPEND | DIRECT) as file:
        for number in range(5):
            os.write(file, aligned(bytes([65 + number]) * PAGE))
    same(content_of("file"), b"".join(bytes([65 + n]) * PAGE for n in range(5)), "content")


@check
def sync_succeeds_on_everything():
    make("file", b"x")
    with opened("file", os.O_RDWR) as file:
        os.pwrite(file, b"y" * 100000, 0)
        os.fsync(file)
        os.fdatasync(file)
    with opened("file", os.O_RDONLY) as file:
        os.fsync(file)
    with opened(".", os.O_RDONLY) as directory:
        os.fsync(directory)
        os.fdatasync(directory)
    os.sync()
    same(os.stat("file").st_size, 100000, "size")


@check
def sync_flags_of_open():
    for flag in (os.O_SYNC, os.O_DSYNC):
        with opened("file", os.O_CREAT | os.O_TRUNC | os.O_WRONLY | flag) as file:
            write_all(file, pattern(100000))
            os.pwrite(file, b"x", 5)
        same(content_of("file"), pattern(5) + b"x" + pattern(100000)[6:], "content")


@check
def many_writers_of_one_file():
    """Processes that write their own blocks, next to each other and off every page, lose none."""
    block, count, writers = 1000, 200, 4
    make("file")
    all_at_once(writers, lambda number: write_blocks(number, block, count, writers))
    content = content_of("file")
    same(len(content), block * count * writers, "length")
    for index in range(count * writers):
        found = content[index * block : (index + 1) * block]
        same(found, bytes([65 + index % writers]) * block, f"block {index}")


def write_blocks(number, block, count, writers):
    with opened("file", os.O_WRONLY) as file:
        for index in range(number, count * writers, writers):
            os.pwrite(file, bytes([65 + number]) * block, index * block)


@check
def small_writes_gather():
    content = pattern(60000)
    with opened("file", os.O_CREAT | os.O_RDWR) as file:
        for at in range(0, len(content), 13):
            os.write(file, content[at : at + 13])
        same(os.pread(file, 100000, 0), content, "own read")
    same(content_of("file"), content, "content")


@check
def reading_beside_writing():
    """A reader of a growing file sees a prefix of it, never zeros that were not written."""
    make("file")
    reader = Child(read_growing, "file", 300000)
    with opened("file", os.O_WRONLY) as file:
        content = pattern(300000)
        for at in range(0, len(content), 777):
            os.write(file, content[at : at + 777])
            if at % 20 == 0:
                time.sleep(0.005)
    expect(reader.result() > 1, "the reader saw only the end")


def read_growing(name, length):
    wanted, lengths = pattern(length), set()
    with opened(name, os.O_RDONLY) as file:
        found = b""
        while len(found) < length:
            found = os.pread(file, length, 0)
            same(found, wanted[: len(found)], f"the first {len(found)} bytes")
            lengths.add(len(found))
    return len(lengths)
