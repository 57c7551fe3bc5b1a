#!/usr/bin/env python3
"""Makes an NFSv3 client call every procedure, with answers good and bad, for `capture.py` to find.

    provoke.py MOUNT SECOND_MOUNT

Both are mounts of one export, without root squashing, and by two clients: on the first, files are
held open which the second one removes, so that calls come back with NFS3ERR_STALE. Two mounts of
one machine share their caches unless they are mounted with `nosharecache`. READDIR comes from a
mount with `nordirplus` that lists what this program leaves behind, MNT and UMNT from mounting.
Needs root. What fails is printed and meant to fail.
"""

import os
import pathlib
import shutil
import socket
import stat
import sys

STRANGER = 1000


def meant_to_fail(what, call, *args, **options):
    try:
        call(*args, **options)
        print(f"{what}: done after all")
    except OSError as failure:
        print(f"{what}: {failure.strerror}")


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")


def create_and_write():
    """CREATE, WRITE, COMMIT. Small pieces, so that the records stay small."""
    pathlib.Path("notes.txt").write_bytes(b"hello, world\n")
    exclusive = os.open("exclusive", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
    os.write(exclusive, b"once")
    os.close(exclusive)
    sparse = os.open("sparse", os.O_CREAT | os.O_RDWR, 0o600)
    # Apart from one another, they do not fit one WRITE: unstable ones and a COMMIT follow.
    for offset, data in [(0, b"first"), (5 << 30, b"second"), (3 << 20, b"third")]:
        os.pwrite(sparse, data, offset)
    os.fsync(sparse)
    os.close(sparse)
    synchronous = os.open("synchronous", os.O_CREAT | os.O_RDWR | os.O_DSYNC, 0o644)
    os.write(synchronous, b"sync")
    os.close(synchronous)


def name_and_describe():
    """MKNOD, SYMLINK, LINK, MKDIR, SETATTR, RENAME, FSSTAT."""
    os.mkfifo("fifo")
    os.mknod("null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(8, 17))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    os.symlink("notes.txt", "link")
    os.link("notes.txt", "hard")
    os.mkdir("dir", 0o750)
    os.mkdir("dir/sub")
    os.chmod("notes.txt", 0o604)
    os.chown("notes.txt", STRANGER, 100)
    os.utime("notes.txt", ns=(10**18 + 1, 15 * 10**17 + 7))
    os.utime("notes.txt")
    os.truncate("notes.txt", 5)
    os.rename("hard", "dir/renamed")
    os.statvfs(".")


def read_back():
    """LOOKUP, ACCESS, READ, READLINK, READDIRPLUS, from empty caches."""
    drop_caches()
    pathlib.Path("notes.txt").read_bytes()
    os.readlink("link")
    for entry in os.scandir("."):
        entry.stat(follow_symlinks=False)
    sparse = os.open("sparse", os.O_RDONLY | os.O_DIRECT)
    os.pread(sparse, 512, 5 << 30)
    os.close(sparse)


def ask_for_errors(second):
    """EXIST, NOENT, NOTEMPTY, and as a stranger ACCES and PERM."""
    meant_to_fail("mkdir", os.mkdir, "dir")
    meant_to_fail("rmdir", os.rmdir, "dir")
    meant_to_fail("stat", os.stat, "missing")
    meant_to_fail("symlink", os.symlink, "x", "dir")
    (second / "work/by-other").touch()
    meant_to_fail("mkfifo", os.mkfifo, "by-other")
    meant_to_fail("link", os.link, "fifo", "by-other")
    meant_to_fail("rename", os.rename, "dir", "dir/sub/x")
    os.setegid(STRANGER)
    os.seteuid(STRANGER)
    meant_to_fail("create", os.open, "denied", os.O_CREAT | os.O_WRONLY)
    meant_to_fail("mkdir", os.mkdir, "denied")
    meant_to_fail("symlink", os.symlink, "x", "denied")
    meant_to_fail("mkfifo", os.mkfifo, "denied")
    meant_to_fail("unlink", os.unlink, "link")
    meant_to_fail("rename", os.rename, "link", "denied")
    meant_to_fail("chmod", os.chmod, "sparse", 0o777)
    meant_to_fail("open", os.open, "sparse", os.O_RDONLY)
    meant_to_fail("list", os.listdir, "dir")
    os.seteuid(0)
    os.setegid(0)
    os.unlink("dir/renamed")
    os.rmdir("dir/sub")


def use_what_is_gone(second):
    """STALE, for each procedure whose file the client does not look at before it calls."""
    for name in ("gone", "full"):
        os.mkdir(name)
    pathlib.Path("full/file").write_bytes(b"z" * 100)
    os.symlink("target", "full/link")
    gone = os.open("gone", os.O_RDONLY)
    file = os.open("full/file", os.O_RDWR)
    link = os.open("full/link", os.O_PATH | os.O_NOFOLLOW)
    drop_caches()
    # Written before the file goes and sent after that: the WRITE itself is refused.
    dirty = os.open("full/dirty", os.O_CREAT | os.O_RDWR, 0o644)
    os.pwrite(dirty, b"late", 4096)
    for name in ("gone", "full"):
        shutil.rmtree(second / "work" / name)
    # At once, while the client still trusts the attributes it has and does not ask for them first.
    meant_to_fail("read", os.pread, file, 10, 0)
    meant_to_fail("write", os.fsync, dirty)
    meant_to_fail("rename", os.rename, "by-other", "x", dst_dir_fd=gone)
    meant_to_fail("statvfs", os.statvfs, file)
    meant_to_fail("readlink", os.readlink, "", dir_fd=link)
    meant_to_fail("truncate", os.ftruncate, file, 3)
    meant_to_fail("stat", os.fstat, file)
    meant_to_fail("list", os.listdir, gone)
    meant_to_fail("mkdir", os.mkdir, "x", dir_fd=gone)
    meant_to_fail("create", os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=gone)
    meant_to_fail("symlink", os.symlink, "target", "x", dir_fd=gone)
    meant_to_fail("mknod", os.mkfifo, "x", dir_fd=gone)
    meant_to_fail("lookup", os.stat, "x", dir_fd=gone)


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    first, second = map(pathlib.Path, sys.argv[1:])
    os.umask(0o022)
    os.mkdir(first / "work")
    os.chdir(first / "work")
    create_and_write()
    name_and_describe()
    ask_for_errors(second)
    read_back()
    use_what_is_gone(second)


if __name__ == "__main__":
    main()
