"""link, unlink, symlink, readlink."""

import errno
import os

from place import (
    ALICE, BOB, as_user, check, content_of, expect, keeps, make, opened, refused, same, updates,
)  # fmt: skip

TIMES = ["st_mtime_ns", "st_ctime_ns"]


@check
def link_is_the_same_file():
    make("one", b"content", 0o640)
    os.link("one", "two")
    one, two = os.stat("one"), os.stat("two")
    same((two.st_ino, two.st_nlink), (one.st_ino, 2), "inode and links")
    same(one.st_nlink, 2, "links by the first name")
    with opened("two", os.O_WRONLY | os.O_APPEND) as file:
        os.write(file, b" and more")
    same(content_of("one"), b"content and more", "content by the first name")
    os.chmod("two", 0o600)
    same(os.stat("one").st_mode & 0o777, 0o600, "mode by the first name")
    os.unlink("one")
    same(os.stat("two").st_nlink, 1, "links after the unlink")
    same(content_of("two"), b"content and more", "content after the unlink")


@check
def link_stamps_file_and_directory():
    make("file")
    os.mkdir("dir")
    updates(["file"], ["st_ctime_ns"], lambda: os.link("file", "dir/two"))
    updates(["dir"], TIMES, lambda: os.link("file", "dir/three"))
    keeps(["file"], ["st_mtime_ns"], lambda: os.link("file", "dir/four"))


@check
def link_counts_up_and_down():
    make("file")
    for number in range(50):
        os.link("file", f"link{number}")
    same(os.stat("file").st_nlink, 51, "links")
    for number in range(0, 50, 2):
        os.unlink(f"link{number}")
    same(os.stat("link1").st_nlink, 26, "links by another name")
    same(os.stat("file").st_nlink, 26, "links")


@check
def link_errors():
    make("file")
    make("other")
    os.mkdir("dir")
    os.symlink("loop", "loop")
    refused(errno.EEXIST, os.link, "file", "other")
    refused(errno.EEXIST, os.link, "file", "dir")
    refused(errno.EEXIST, os.link, "file", "file")
    refused(errno.EPERM, os.link, "dir", "dir2")
    refused(errno.ENOENT, os.link, "missing", "new")
    refused(errno.ENOENT, os.link, "file", "missing/new")
    refused(errno.ENOTDIR, os.link, "file", "other/new")
    refused(errno.ENOTDIR, os.link, "other/file", "new")
    refused(errno.ENAMETOOLONG, os.link, "file", "n" * 256)
    refused(errno.ELOOP, os.link, "loop/file", "new")
    same(os.stat("file").st_nlink, 1, "links")


@check
def link_needs_a_writable_directory():
    make("file", mode=0o666)
    os.mkdir("dir", 0o755)
    refused(errno.EACCES, as_user, ALICE, os.link, "file", "dir/new")
    same(os.stat("file").st_nlink, 1, "links")


@check
def link_to_a_link_is_a_link():
    make("file")
    os.symlink("file", "symlink")
    os.link("symlink", "hard", follow_symlinks=False)
    expect(os.path.islink("hard"), "no symbolic link")
    same(os.lstat("hard").st_ino, os.lstat("symlink").st_ino, "inode")


@check
def unlink_removes_the_name():
    make("file")
    make("kept")
    updates(["."], TIMES, lambda: os.unlink("file"))
    refused(errno.ENOENT, os.stat, "file")
    refused(errno.ENOENT, os.unlink, "file")
    same(os.listdir("."), ["kept"], "names")
    os.link("kept", "two")
    updates(["kept"], ["st_ctime_ns"], lambda: os.unlink("two"))


@check
def unlink_errors():
    make("file")
    os.mkdir("dir")
    refused(errno.EISDIR, os.unlink, "dir")
    refused(errno.ENOENT, os.unlink, "missing")
    refused(errno.ENOTDIR, os.unlink, "file/below")
    refused(errno.ENOTDIR, os.unlink, "file/")
    refused(errno.ENAMETOOLONG, os.unlink, "n" * 256)


@check
def unlink_asks_the_directory_not_the_file():
    os.mkdir("open", 0o777)
    make("open/file", mode=0)
    as_user(ALICE, os.unlink, "open/file")
    os.mkdir("closed", 0o755)
    make("closed/file", mode=0o777)
    os.chown("closed/file", ALICE, ALICE)
    refused(errno.EACCES, as_user, ALICE, os.unlink, "closed/file")


@check
def sticky_directories_protect_names():
    os.mkdir("dir")
    os.chmod("dir", 0o1777)
    for name in ("one", "two"):
        as_user(ALICE, make, f"dir/{name}")
    as_user(ALICE, os.mkdir, "dir/sub")
    as_user(BOB, make, "dir/bobs")
    refused((errno.EPERM, errno.EACCES), as_user, BOB, os.unlink, "dir/one")
    refused((errno.EPERM, errno.EACCES), as_user, BOB, os.rmdir, "dir/sub")
    refused((errno.EPERM, errno.EACCES), as_user, BOB, os.rename, "dir/one", "dir/mine")
    refused((errno.EPERM, errno.EACCES), as_user, BOB, os.rename, "dir/bobs", "dir/one")
    as_user(ALICE, os.unlink, "dir/one")
    # The owner of the directory may as well.
    os.chown("dir", BOB, BOB)
    as_user(BOB, os.unlink, "dir/two")
    as_user(BOB, os.rmdir, "dir/sub")


@check
def symlink_keeps_its_target():
    targets = ["x", "../..", "/absolute/../path//", "n" * 255, "t" * 4095, "a\nnewline", "\u00e9"]
    for number, target in enumerate(targets):
        name = f"link{number}"
        os.symlink(target, name)
        same(os.readlink(name), target, "target")
        same(os.lstat(name).st_size, len(os.fsencode(target)), "size")
        same(os.lstat(name).st_mode, 0o120777, "mode")
        same(os.lstat(name).st_nlink, 1, "links")
    os.symlink(b"\xff\x01", b"bytes")
    same(os.readlink(b"bytes"), b"\xff\x01", "target of bytes")


@check
def symlink_belongs_to_its_maker():
    os.chmod(".", 0o777)
    as_user(ALICE, os.symlink, "target", "link")
    same(os.lstat("link").st_uid, ALICE, "owner")
    updates(["."], TIMES, lambda: os.symlink("target", "link2"))


@check
def symlink_errors():
    make("file")
    os.mkdir("dir", 0o755)
    refused(errno.EEXIST, os.symlink, "x", "file")
    refused(errno.EEXIST, os.symlink, "x", "dir")
    refused(errno.ENOENT, os.symlink, "", "new")
    refused(errno.ENOENT, os.symlink, "x", "missing/new")
    refused(errno.ENOTDIR, os.symlink, "x", "file/new")
    refused(errno.ENAMETOOLONG, os.symlink, "x", "n" * 256)
    refused(errno.ENAMETOOLONG, os.symlink, "t" * 4096, "new")
    refused(errno.EACCES, as_user, ALICE, os.symlink, "x", "dir/new")
    refused(errno.EINVAL, os.readlink, "file")
    refused(errno.EINVAL, os.readlink, "dir")
    refused(errno.ENOENT, os.readlink, "missing")


@check
def symlink_leads_on():
    os.makedirs("a/b")
    make("a/b/file", b"found")
    os.symlink("a/b", "short")
    os.symlink("../b/./file", "a/b/around")
    same(content_of("short/file"), b"found", "content through a directory link")
    same(content_of("short/around"), b"found", "content through two links")
    os.symlink(os.path.join(os.getcwd(), "a"), "absolute")
    same(content_of("absolute/b/file"), b"found", "content through an absolute link")
    refused(errno.ENOTDIR, os.rmdir, "short")
    os.unlink("short")
    same(os.listdir("a/b") != [], True, "the target is still there")


@check
def symlink_loops_end():
    os.symlink("b", "a")
    os.symlink("a", "b")
    for function in (os.stat, os.listdir, os.chdir, content_of):
        refused(errno.ELOOP, function, "a")
    make("end", b"x")
    os.symlink("end", "link0")
    for number in range(1, 42):
        os.symlink(f"link{number - 1}", f"link{number}")
    same(content_of("link39"), b"x", "content through 40 links")
    refused(errno.ELOOP, os.stat, "link41")


@check
def symlink_is_replaced_at_once():
    """A link that is made anew with another target is never seen with the old one."""
    make("one", b"1")
    make("two", b"2")
    for _ in range(10):
        for target, content in (("one", b"1"), ("two", b"2")):
            os.symlink(target, "new")
            os.rename("new", "current")
            same(os.readlink("current"), target, "target")
            same(content_of("current"), content, "content")
