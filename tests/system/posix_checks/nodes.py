"""mkfifo, mknod, sockets; extended attributes; statvfs."""

import errno
import os
import socket
import stat
import subprocess

from place import ALICE, as_user, check, expect, make, mode_of, opened, refused, same

NO_XATTR = (errno.ENOTSUP, errno.ENODATA)


@check
def nodes_of_each_kind():
    os.mkfifo("fifo", 0o640)
    os.mknod("character", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mknod("block", stat.S_IFBLK | 0o660, os.makedev(7, 1234))
    os.mknod("socket", stat.S_IFSOCK | 0o755)
    os.mknod("regular", stat.S_IFREG | 0o644)
    kinds = {
        "fifo": stat.S_IFIFO | 0o640, "character": stat.S_IFCHR | 0o600,
        "block": stat.S_IFBLK | 0o660, "socket": stat.S_IFSOCK | 0o755,
        "regular": stat.S_IFREG | 0o644,
    }  # fmt: skip
    for name, mode in kinds.items():
        same(os.stat(name).st_mode, mode, f"mode of {name}")
        same(os.stat(name).st_nlink, 1, f"links of {name}")
    same(os.stat("character").st_rdev, os.makedev(1, 3), "device")
    same(os.stat("block").st_rdev, os.makedev(7, 1234), "device")


@check
def nodes_apply_the_umask():
    os.umask(0o027)
    os.mkfifo("fifo", 0o777)
    same(mode_of("fifo"), 0o750, "mode")


@check
def nodes_are_moved_linked_and_removed():
    os.mkfifo("fifo")
    os.link("fifo", "second")
    os.rename("fifo", "third")
    os.chmod("third", 0o600)
    same(os.stat("second").st_nlink, 2, "links")
    os.unlink("second")
    os.unlink("third")
    same(os.listdir("."), [], "names")


@check
def nodes_errors():
    make("file")
    os.chmod(".", 0o777)
    for make_node in (os.mkfifo, os.mknod):
        refused(errno.EEXIST, make_node, "file")
        refused(errno.ENOENT, make_node, "missing/new")
        refused(errno.ENOTDIR, make_node, "file/new")
        refused(errno.ENAMETOOLONG, make_node, "n" * 256)
    refused(errno.EPERM, as_user, ALICE, os.mknod, "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    as_user(ALICE, os.mkfifo, "fifo")
    same(os.stat("fifo").st_uid, ALICE, "owner")


@check
def nodes_sockets_are_bound_once():
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.bind("socket")
        expect(stat.S_ISSOCK(os.stat("socket").st_mode), "no socket")
        refused(errno.EADDRINUSE, second.bind, "socket")
        os.unlink("socket")
        second.bind("socket")


@check
def xattr_answers_are_the_known_ones():
    """Either they work or the file system has none; nothing in between, and no other errno."""
    make("file")
    try:
        os.setxattr("file", "user.test", b"value")
    except OSError as error:
        same(error.errno, errno.ENOTSUP, "errno of setxattr")
        refused(NO_XATTR, os.getxattr, "file", "user.test")
        refused(NO_XATTR, os.removexattr, "file", "user.test")
    else:
        same(os.getxattr("file", "user.test"), b"value", "value")
        same(os.listxattr("file"), ["user.test"], "names")
        os.removexattr("file", "user.test")
    refused(NO_XATTR, os.getxattr, "file", "user.missing")
    refused(NO_XATTR, os.getxattr, "file", "system.posix_acl_access")
    refused(NO_XATTR, os.getxattr, "file", "security.capability")
    try:
        same(os.listxattr("file"), [], "names")
    except OSError as error:
        same(error.errno, errno.ENOTSUP, "errno of listxattr")


@check
def xattr_users_are_content():
    make("file", b"x", 0o640)
    os.symlink("file", "link")
    for command in (["ls", "-l"], ["cp", "-a", "file", "copy"], ["cp", "-a", "link", "link2"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        same((done.returncode, done.stderr), (0, ""), " ".join(command))
    same(mode_of("copy"), 0o640, "mode of the copy")
    same(os.stat("copy").st_mtime_ns, os.stat("file").st_mtime_ns, "mtime of the copy")
    os.unlink("file")
    done = subprocess.run(["mv", "copy", "file"], capture_output=True, text=True, check=False)
    same((done.returncode, done.stderr), (0, ""), "mv")


@check
def statvfs_is_plausible():
    found = os.statvfs(".")
    expect(found.f_bsize >= 512 and found.f_frsize >= 512, f"block sizes {found}")
    expect(found.f_bavail <= found.f_bfree <= found.f_blocks, f"blocks {found}")
    expect(0 < found.f_ffree <= found.f_files, f"inodes {found}")
    same(found.f_namemax, 255, "longest name")
    with opened(".", os.O_RDONLY) as directory:
        same(os.statvfs(directory).f_blocks, found.f_blocks, "blocks by descriptor")


@check
def stat_numbers_are_stable():
    make("file", b"x" * 5000)
    os.mkdir("dir")
    make("dir/file")
    first = {name: os.stat(name) for name in (".", "file", "dir", "dir/file")}
    same(len({found.st_ino for found in first.values()}), 4, "different inodes")
    same(len({found.st_dev for found in first.values()}), 1, "devices")
    for _ in range(3):
        for name, found in first.items():
            same(os.stat(name).st_ino, found.st_ino, f"inode of {name}")
    same(os.stat("file").st_size, 5000, "size")
    expect(os.stat("file").st_blocks * 512 >= 4096 or os.stat("file").st_blocks >= 0, "blocks")
    expect(os.stat("file").st_blksize >= 512, "block size")
