"""open: flags, modes, errors and permissions."""

import errno
import os
import socket
import stat
import subprocess
import time

from place import (
    ALICE, BOB, Child, all_at_once, as_user, check, content_of, expect, keeps, make, mode_of,
    opened, refused, same, updates, write_all,
)  # fmt: skip

CREATE = os.O_CREAT | os.O_WRONLY


def create(name, mode=0o644, flags=0):
    os.close(os.open(name, CREATE | flags, mode))


@check
def open_applies_mode_and_umask():
    for umask in (0, 0o022, 0o027, 0o077, 0o777):
        for mode in (0o777, 0o666, 0o644, 0o640, 0o400, 0o000):
            name = f"{umask:o}-{mode:o}"
            old = os.umask(umask)
            create(name, mode)
            os.umask(old)
            same(mode_of(name), mode & ~umask, f"mode {mode:o} under umask {umask:o}")


@check
def open_keeps_special_bits_of_new_files():
    for mode in (0o4755, 0o2755, 0o1755, 0o6711):
        create(f"{mode:o}", mode)
        same(mode_of(f"{mode:o}"), mode, "mode")


@check
def open_makes_an_empty_file_of_the_caller():
    os.chmod(".", 0o777)
    as_user(ALICE, create, "new", gid=BOB)
    found = os.stat("new")
    same((found.st_uid, found.st_gid), (ALICE, BOB), "owner")
    same((found.st_size, found.st_nlink), (0, 1), "size and links")
    expect(stat.S_ISREG(found.st_mode), "not a regular file")


@check
def open_stamps_the_directory_when_it_creates():
    updates(["."], ["st_mtime_ns", "st_ctime_ns"], lambda: create("new"))
    keeps([".", "new"], ["st_mtime_ns", "st_ctime_ns"], lambda: create("new"))


@check
def open_exclusively_refuses_what_exists():
    make("file")
    os.mkdir("dir")
    os.symlink("nowhere", "dangling")
    os.symlink("file", "link")
    for name in ("file", "dir", "dangling", "link"):
        refused(errno.EEXIST, os.open, name, CREATE | os.O_EXCL)
    expect(not os.path.lexists("nowhere"), "O_EXCL went through a link")


@check
def open_exclusively_has_one_winner():
    for number in range(10):
        answers = all_at_once(6, lambda _, name=f"lock{number}": wins(name))
        same(sum(answers), 1, "winners")


def wins(name):
    try:
        create(name, flags=os.O_EXCL)
    except FileExistsError:
        return False
    return True


@check
def open_exclusively_sets_mode_owner_and_times():
    create("new", 0o640, os.O_EXCL)
    same(mode_of("new"), 0o640, "mode")
    now = os.stat(".")
    found = os.stat("new")
    for field in ("st_atime", "st_mtime", "st_ctime"):
        apart = abs(getattr(found, field) - now.st_mtime)
        expect(apart < 60, f"{field} is {apart} s from the directory's")


@check
def open_creates_through_a_dangling_link():
    os.symlink("target", "link")
    create("link", 0o600)
    same(mode_of("target"), 0o600, "mode of what the link names")


@check
def open_truncates():
    make("file", b"x" * 10000)
    updates(["file"], ["st_mtime_ns", "st_ctime_ns"], lambda: create("file", flags=os.O_TRUNC))
    same(content_of("file"), b"", "content")
    # The times change also where the length does not.
    updates(["file"], ["st_mtime_ns", "st_ctime_ns"], lambda: create("file", flags=os.O_TRUNC))


@check
def open_truncates_under_another_descriptor():
    make("file", b"x" * 10000)
    with opened("file", os.O_RDWR) as file:
        same(os.pread(file, 10, 0), b"x" * 10, "content before")
        create("file", flags=os.O_TRUNC)
        same(os.pread(file, 10, 0), b"", "content after")
        os.pwrite(file, b"new", 5000)
        same(os.fstat(file).st_size, 5003, "size")
        same(os.pread(file, 10, 4996), b"\0\0\0\0new", "content behind the hole")


@check
def open_truncates_between_appended_lines_and_not_within_one():
    """Truncating a log beside its writer leaves whole lines and no holes."""
    line = b"x" * 99 + b"\n"
    make("log")

    def append():
        with opened("log", os.O_WRONLY | os.O_APPEND) as log:
            while os.path.exists("log.open"):
                os.write(log, line)

    make("log.open")
    writer = Child(append)
    try:
        for _ in range(100):
            create("log", flags=os.O_TRUNC)
            expect(b"\0" not in content_of("log"), "a hole in front of a line")
    finally:
        os.unlink("log.open")
        writer.result()
    content = content_of("log")
    same(len(content) % len(line), 0, "the rest behind whole lines")
    same(content, line * (len(content) // len(line)), "content")


@check
def open_for_append_writes_at_the_end():
    make("file", b"0123")
    with opened("file", os.O_RDWR | os.O_APPEND) as file:
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, b"45")
        same(os.lseek(file, 0, os.SEEK_CUR), 6, "offset after the write")
        # Linux appends with pwrite too.
        os.pwrite(file, b"67", 0)
        with opened("file", os.O_WRONLY | os.O_APPEND) as other:
            os.write(other, b"89")
        os.write(file, b"ab")
    same(content_of("file"), b"0123456789ab", "content")


@check
def open_for_append_loses_nothing_among_processes():
    make("log")
    line_bytes, lines, writers = 101, 50, 4
    all_at_once(writers, lambda number: append_lines("log", number, line_bytes, lines))
    content = content_of("log")
    same(len(content), line_bytes * lines * writers, "length")
    parts = [content[at : at + line_bytes] for at in range(0, len(content), line_bytes)]
    torn = [part for part in parts if len(set(part)) != 1]
    expect(not torn, f"{len(torn)} of {len(parts)} lines are torn")
    for number in range(writers):
        same(parts.count(bytes([65 + number]) * line_bytes), lines, f"lines of writer {number}")


def append_lines(name, number, line_bytes, lines):
    with opened(name, os.O_WRONLY | os.O_APPEND) as file:
        for _ in range(lines):
            os.write(file, bytes([65 + number]) * line_bytes)


@check
def open_for_append_follows_a_truncation():
    make("file", b"x" * 5000)
    with opened("file", os.O_WRONLY | os.O_APPEND) as file:
        os.write(file, b"y")
        os.truncate("file", 3)
        os.write(file, b"z")
    same(content_of("file"), b"xxxz", "content")


@check
def open_distinguishes_kinds():
    make("file")
    os.mkdir("dir")
    os.symlink("file", "link")
    refused(errno.EISDIR, os.open, "dir", os.O_WRONLY)
    refused(errno.EISDIR, os.open, "dir", os.O_RDWR)
    refused(errno.EISDIR, os.open, "dir", os.O_RDONLY | os.O_CREAT)
    refused(errno.ENOTDIR, os.open, "file", os.O_RDONLY | os.O_DIRECTORY)
    refused(errno.ENOTDIR, os.open, "file/below", os.O_RDONLY)
    refused(errno.ENOTDIR, os.open, "file/", os.O_RDONLY)
    refused(errno.ELOOP, os.open, "link", os.O_RDONLY | os.O_NOFOLLOW)
    refused(errno.ENOENT, os.open, "missing", os.O_RDWR)
    refused(errno.ENOENT, os.open, "missing/below", CREATE)
    refused(errno.EISDIR, os.open, "new/", CREATE)


@check
def open_limits_names():
    longest = "n" * 255
    create(longest)
    same(os.listdir("."), [longest], "names")
    refused(errno.ENAMETOOLONG, os.open, longest + "n", CREATE)
    refused(errno.ENAMETOOLONG, os.open, longest + "n", os.O_RDONLY)
    refused(errno.ENAMETOOLONG, os.open, "./" * 2048 + "file", CREATE)


@check
def open_takes_any_bytes_as_names():
    names = [b"\xff\xfe", "\u00e9\u4e2d".encode(), b" ", b"\n", b"*", b"a\\b", b"...", b"-r", b"\1"]
    for name in names:
        os.close(os.open(name, CREATE, 0o600))
    same(sorted(os.listdir(b".")), sorted(names), "names")


@check
def open_asks_the_files_mode():
    make("file", b"secret", 0o640)
    os.chown("file", ALICE, BOB)
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        as_user(ALICE, lambda flags=flags: os.close(os.open("file", flags)))
        refused(errno.EACCES, as_user, ALICE + 10, os.open, "file", flags)
    as_user(BOB, lambda: os.close(os.open("file", os.O_RDONLY)))
    refused(errno.EACCES, as_user, BOB, os.open, "file", os.O_WRONLY)
    refused(errno.EACCES, as_user, BOB, os.open, "file", os.O_RDONLY | os.O_TRUNC)
    same(content_of("file"), b"secret", "content after refused truncations")


@check
def execve_asks_for_execution_and_not_for_reading():
    os.chmod(".", 0o755)
    make("readable", b"#!/bin/sh\nexit 0\n", 0o744)
    refused(errno.EACCES, as_user, ALICE, status_of, "./readable")
    os.chmod("readable", 0o755)
    same(as_user(ALICE, status_of, "./readable"), 0, "exit status of a script")
    make("executable", content_of("/bin/true"), 0o711)
    same(as_user(ALICE, status_of, "./executable"), 0, "exit status of an unreadable program")
    refused(errno.EACCES, as_user, ALICE, os.open, "executable", os.O_RDONLY)
    os.chmod("executable", 0o744)
    refused(errno.EACCES, as_user, ALICE, status_of, "./executable")


def status_of(program):
    return subprocess.run([program], check=False).returncode


@check
def open_asks_each_class_and_no_other():
    # The owner is the owner, even where others may more.
    make("file", b"", 0o066)
    os.chown("file", ALICE, BOB)
    refused(errno.EACCES, as_user, ALICE, os.open, "file", os.O_RDONLY)
    os.chmod("file", 0o606)
    refused(errno.EACCES, as_user, BOB, os.open, "file", os.O_RDONLY)


@check
def open_asks_the_directories_on_the_way():
    os.mkdir("dir", 0o755)
    make("dir/file", b"", 0o666)
    os.chmod("dir", 0o644)
    refused(errno.EACCES, as_user, ALICE, os.open, "dir/file", os.O_RDONLY)
    refused(errno.EACCES, as_user, ALICE, os.stat, "dir/file")
    os.chmod("dir", 0o711)
    as_user(ALICE, lambda: os.close(os.open("dir/file", os.O_RDWR)))
    refused(errno.EACCES, as_user, ALICE, os.listdir, "dir")


@check
def chmod_of_a_directory_takes_effect_on_the_next_open():
    """chmod takes effect for other users, also after an earlier open by them.

    On a mount, a directory is closed a moment later; it is open to them at once.
    """
    os.mkdir("dir", 0o755)
    make("dir/file", b"", 0o666)
    rounds = 100
    (asked, ask), (answers, answer) = os.pipe(), os.pipe()

    def open_when_asked():
        while True:
            os.read(asked, 1)
            try:
                os.close(os.open("dir/file", os.O_RDONLY))
                os.write(answer, b"opened")
            except PermissionError:
                os.write(answer, b"refused")

    def become_alice():
        os.setgid(ALICE)
        os.setuid(ALICE)

    def ask_alice():
        os.write(ask, b"?")
        return os.read(answers, 10)

    alice = Child(open_when_asked, before=become_alice)
    try:
        for number in range(rounds):
            for mode, right in ((0o755, b"opened"), (0o644, b"refused")):
                os.chmod("dir", mode)
                deadline = time.monotonic() + (1 if right == b"refused" else 0)
                while (found := ask_alice()) != right and time.monotonic() < deadline:
                    time.sleep(0.001)
                same(found, right, f"round {number}, mode {mode:o}")
    finally:
        alice.end()


@check
def open_creates_only_in_writable_directories():
    os.mkdir("dir", 0o755)
    make("dir/file", b"", 0o666)
    refused(errno.EACCES, as_user, ALICE, create, "dir/new")
    # What exists is opened without permission on the directory.
    as_user(ALICE, create, "dir/file")
    expect(not os.path.lexists("dir/new"), "created in spite of EACCES")


@check
def open_lets_its_creator_write_whatever_the_mode():
    """git makes its objects like this; the mode counts from the next open on."""
    os.chmod(".", 0o777)

    def write():
        for mode in (0o444, 0o000, 0o200):
            with opened(f"{mode:o}", os.O_CREAT | os.O_EXCL | os.O_RDWR, mode) as file:
                write_all(file, b"content" * 1000)
                os.fsync(file)
                same(os.pread(file, 7, 7), b"content", "own read")
        refused(errno.EACCES, os.open, "444", os.O_WRONLY)
        refused(errno.EACCES, os.open, "0", os.O_RDONLY)

    as_user(ALICE, write)
    same(content_of("0"), b"content" * 1000, "content")


@check
def open_descriptor_outlives_permission():
    os.chmod(".", 0o777)
    make("file", b"before", 0o600)
    os.chown("file", ALICE, ALICE)

    def use():
        with opened("file", os.O_RDWR) as file:
            os.chmod("file", 0)
            os.pwrite(file, b"after!", 0)
            os.fsync(file)
            same(os.pread(file, 10, 0), b"after!", "content")

    as_user(ALICE, use)


@check
def open_read_only_and_write_only_descriptors():
    make("file", b"x")
    with opened("file", os.O_RDONLY) as file:
        refused(errno.EBADF, os.write, file, b"y")
        refused((errno.EBADF, errno.EINVAL), os.ftruncate, file, 0)
    with opened("file", os.O_WRONLY) as file:
        refused(errno.EBADF, os.read, file, 1)
    same(content_of("file"), b"x", "content")


@check
def open_directory_reads_no_bytes():
    with opened(".", os.O_RDONLY) as directory:
        refused(errno.EISDIR, os.read, directory, 10)
        refused(errno.EISDIR, os.pread, directory, 10, 0)


@check
def open_path_descriptor_and_openat():
    os.mkdir("dir")
    make("dir/file", b"x")
    with opened("dir", os.O_PATH) as directory:
        with opened("file", os.O_RDONLY, dir_fd=directory) as file:
            same(os.read(file, 2), b"x", "content")
        os.rename("dir", "elsewhere")
        create_at = os.open("second", CREATE, 0o600, dir_fd=directory)
        os.close(create_at)
    same(sorted(os.listdir("elsewhere")), ["file", "second"], "names")


@check
def open_fifo_and_socket():
    os.mkfifo("fifo")
    refused(errno.ENXIO, os.open, "fifo", os.O_WRONLY | os.O_NONBLOCK)
    with opened("fifo", os.O_RDONLY | os.O_NONBLOCK) as reader:
        with opened("fifo", os.O_WRONLY | os.O_NONBLOCK) as writer:
            os.write(writer, b"through the pipe")
            same(os.read(reader, 100), b"through the pipe", "what came through")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        listener.listen()
        refused(errno.ENXIO, os.open, "socket", os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect("socket")
            caller.sendall(b"hello")
            same(listener.accept()[0].recv(10), b"hello", "what came through the socket")


@check
def open_unnamed_file_or_not():
    """O_TMPFILE is an option of file systems; its refusal must be the one that callers know."""
    try:
        with opened(".", os.O_TMPFILE | os.O_RDWR) as file:
            os.write(file, b"x")
    except OSError as error:
        expect(error.errno in (errno.EOPNOTSUPP, errno.EISDIR), f"refused with {error}")
    same(os.listdir("."), [], "names")


@check
def open_many_at_once():
    files = []
    for number in range(500):
        files.append(os.open(f"f{number}", os.O_CREAT | os.O_RDWR, 0o600))
        os.write(files[-1], b"%d" % number)
    for number, file in enumerate(files):
        same(os.pread(file, 10, 0), b"%d" % number, f"content of f{number}")
        os.close(file)
