"""Files that are unlinked while they are open."""

import errno
import mmap
import os

from place import (
    ALICE, as_user, check, content_of, expect, in_child, make, opened, refused, same, write_all,
)  # fmt: skip

SIZE = 200000


@check
def deleted_file_is_read_on():
    make("file", b"x" * SIZE)
    with opened("file", os.O_RDONLY) as file:
        os.unlink("file")
        refused(errno.ENOENT, os.stat, "file")
        same(os.pread(file, 2 * SIZE, 0), b"x" * SIZE, "content")
        same(os.fstat(file).st_size, SIZE, "size")
    same(os.listdir("."), [], "names after the close")


@check
def deleted_file_is_written_on():
    with opened("file", os.O_CREAT | os.O_RDWR) as file:
        write_all(file, b"x" * SIZE)
        os.unlink("file")
        write_all(file, b"y" * SIZE)
        os.fsync(file)
        os.pwrite(file, b"z", 5)
        os.ftruncate(file, SIZE + 10)
        os.fchmod(file, 0o600)
        wanted = b"xxxxxz" + b"x" * (SIZE - 6) + b"y" * 10
        same(os.pread(file, 3 * SIZE, 0), wanted, "content")
        os.ftruncate(file, 0)
        same(os.fstat(file).st_size, 0, "size")
    same(os.listdir("."), [], "names after the close")


@check
def deleted_file_has_no_links():
    make("file")
    with opened("file", os.O_RDONLY) as file:
        os.unlink("file")
        same(os.fstat(file).st_nlink, 0, "links")


@check
def deleted_file_is_not_listed():
    make("file")
    with opened("file", os.O_RDONLY):
        os.unlink("file")
        same(os.listdir("."), [], "names")


@check
def deleted_file_does_not_hold_its_directory():
    os.mkdir("dir")
    make("dir/file", b"x")
    with opened("dir/file", os.O_RDONLY) as file:
        os.unlink("dir/file")
        os.rmdir("dir")
        same(os.pread(file, 1, 0), b"x", "content")


@check
def deleted_name_is_free():
    make("file", b"old")
    with opened("file", os.O_RDWR) as old:
        os.unlink("file")
        with opened("file", os.O_CREAT | os.O_EXCL | os.O_RDWR) as new:
            os.write(new, b"new content")
            same(os.pread(old, 100, 0), b"old", "content of the old file")
            os.unlink("file")
            with opened("file", os.O_CREAT | os.O_EXCL | os.O_RDWR) as newest:
                os.write(newest, b"newest")
                same(os.pread(new, 100, 0), b"new content", "content of the second file")
            os.pwrite(old, b"OLD", 0)
            same(os.pread(old, 100, 0), b"OLD", "content of the first file")
    same(content_of("file"), b"newest", "content by name")
    same(os.listdir("."), ["file"], "names")


@check
def deleted_file_with_another_link():
    make("one", b"x")
    os.link("one", "two")
    with opened("one", os.O_RDWR) as file:
        os.unlink("one")
        same(os.fstat(file).st_nlink, 1, "links")
        os.write(file, b"y")
        same(content_of("two"), b"y", "content by the other name")
    same(os.listdir("."), ["two"], "names")


@check
def deleted_file_of_two_openers():
    make("file", b"x" * 10)
    first, second = os.open("file", os.O_RDWR), os.open("file", os.O_RDONLY)
    os.unlink("file")
    os.pwrite(first, b"changed", 0)
    os.close(first)
    same(os.pread(second, 10, 0), b"changedxxx", "content by the second descriptor")
    os.close(second)
    same(os.listdir("."), [], "names")


@check
def deleted_by_another_process():
    make("file", b"x" * 10)
    with opened("file", os.O_RDWR) as file:
        in_child(os.unlink, "file")
        os.pwrite(file, b"y", 0)
        same(os.pread(file, 10, 0), b"y" + b"x" * 9, "content")
    same(os.listdir("."), [], "names")


@check
def deleted_by_another_user():
    """The user that opened it need not be able to write to the directory."""
    os.mkdir("dir", 0o755)
    make("dir/file", b"x", 0o666)

    def use():
        with opened("dir/file", os.O_RDWR) as file:
            os.write(go[1], b"!")
            os.read(done[0], 1)
            os.pwrite(file, b"after", 0)
            os.fsync(file)
            same(os.pread(file, 10, 0), b"after", "content")

    go, done = os.pipe(), os.pipe()

    def remove():
        os.read(go[0], 1)
        os.unlink("dir/file")
        os.write(done[1], b"!")

    from place import Child

    remover = Child(remove)
    as_user(ALICE, use)
    remover.result()
    same(os.listdir("dir"), [], "names")


@check
def deleted_while_mapped():
    make("file", b"x" * 8192)
    with opened("file", os.O_RDWR) as file:
        mapping = mmap.mmap(file, 8192)
    # Only the mapping holds the file now.
    os.unlink("file")
    mapping[0:3] = b"map"
    same(mapping[0:4], b"mapx", "content")
    mapping.flush()
    mapping.close()
    same(os.listdir("."), [], "names")


@check
def deleted_replaced_and_reopened_many_times():
    for number in range(50):
        with opened("file", os.O_CREAT | os.O_RDWR | os.O_TRUNC) as file:
            os.write(file, b"%d" % number)
            os.unlink("file")
            same(os.pread(file, 10, 0), b"%d" % number, "content")
    expect(os.listdir(".") == [], f"left behind: {os.listdir('.')[:5]}")
