"""mkdir, rmdir, and reading directories."""

import ctypes
import errno
import os
import stat

from place import (
    ALICE, all_at_once, as_user, check, expect, make, mode_of, opened, refused, same, updates,
)  # fmt: skip

TIMES = ["st_mtime_ns", "st_ctime_ns"]


class Dirent(ctypes.Structure):
    """struct dirent64 of glibc."""

    _fields_ = [
        ("d_ino", ctypes.c_uint64),
        ("d_off", ctypes.c_int64),
        ("d_reclen", ctypes.c_ushort),
        ("d_type", ctypes.c_ubyte),
        ("d_name", ctypes.c_char * 256),
    ]


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.opendir.restype = ctypes.c_void_p
LIBC.readdir64.restype = ctypes.POINTER(Dirent)
LIBC.readdir64.argtypes = LIBC.telldir.argtypes = [ctypes.c_void_p]
LIBC.rewinddir.argtypes = LIBC.closedir.argtypes = [ctypes.c_void_p]
LIBC.telldir.restype = ctypes.c_long
LIBC.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]


class Stream:
    """A DIR of the C library, with telldir(3) and seekdir(3)."""

    def __init__(self, name):
        self.dir = LIBC.opendir(os.fsencode(name))
        expect(self.dir, f"opendir: {os.strerror(ctypes.get_errno())}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        LIBC.closedir(self.dir)

    def read(self):
        """The next name, or None at the end."""
        ctypes.set_errno(0)
        entry = LIBC.readdir64(self.dir)
        if not entry:
            same(ctypes.get_errno(), 0, "errno of readdir")
            return None
        return entry.contents.d_name

    def rest(self):
        """All names from here on."""
        names = []
        while (name := self.read()) is not None:
            names.append(name)
        return names

    def tell(self):
        return LIBC.telldir(self.dir)

    def seek(self, position):
        LIBC.seekdir(self.dir, position)

    def rewind(self):
        LIBC.rewinddir(self.dir)


def fill(directory, count):
    """Makes `count` empty files with names of several lengths; returns the names."""
    names = [f"{number:05}" + "x" * (number % 40) for number in range(count)]
    for name in names:
        os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_WRONLY, 0o600))
    return names


@check
def mkdir_applies_mode_and_umask():
    for umask in (0, 0o022, 0o077):
        for mode in (0o777, 0o755, 0o700, 0o1777, 0):
            name = f"{umask:o}-{mode:o}"
            old = os.umask(umask)
            os.mkdir(name, mode)
            os.umask(old)
            same(mode_of(name), mode & ~umask, f"mode {mode:o} under umask {umask:o}")


@check
def mkdir_makes_a_directory_of_the_caller():
    os.chmod(".", 0o777)
    updates(["."], TIMES, lambda: as_user(ALICE, os.mkdir, "dir", 0o750))
    found = os.stat("dir")
    same((found.st_uid, found.st_gid), (ALICE, ALICE), "owner")
    same(found.st_nlink, 2, "links")
    expect(stat.S_ISDIR(found.st_mode), "not a directory")
    same(sorted(os.listdir("dir")), [], "names")


@check
def mkdir_counts_links():
    before = os.stat(".").st_nlink
    for number in range(5):
        os.mkdir(f"dir{number}")
        same(os.stat(".").st_nlink, before + number + 1, "links after mkdir")
    os.rmdir("dir0")
    same(os.stat(".").st_nlink, before + 4, "links after rmdir")


@check
def mkdir_errors():
    make("file")
    os.mkdir("dir", 0o755)
    os.symlink("nowhere", "dangling")
    for name in ("file", "dir", "dangling", "dir/", ".", ".."):
        refused(errno.EEXIST, os.mkdir, name)
    refused(errno.ENOENT, os.mkdir, "missing/new")
    refused(errno.ENOTDIR, os.mkdir, "file/new")
    refused(errno.ENAMETOOLONG, os.mkdir, "n" * 256)
    refused(errno.EACCES, as_user, ALICE, os.mkdir, "dir/new")


@check
def mkdir_has_one_winner():
    for number in range(10):
        answers = all_at_once(6, lambda _, name=f"dir{number}": wins(name))
        same(sum(answers), 1, "winners")


def wins(name):
    try:
        os.mkdir(name)
    except FileExistsError:
        return False
    return True


@check
def rmdir_removes_empty_directories_only():
    os.makedirs("dir/sub")
    make("file")
    refused((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, "dir")
    refused(errno.ENOTDIR, os.rmdir, "file")
    refused(errno.ENOENT, os.rmdir, "missing")
    refused(errno.EINVAL, os.rmdir, "dir/.")
    refused((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, "dir/sub/..")
    updates(["dir"], TIMES, lambda: os.rmdir("dir/sub"))
    updates(["."], TIMES, lambda: os.rmdir("dir"))
    same(os.listdir("."), ["file"], "names")


@check
def rmdir_asks_the_directory_above():
    os.makedirs("closed/dir")
    os.chmod("closed", 0o755)
    os.chown("closed/dir", ALICE, ALICE)
    refused(errno.EACCES, as_user, ALICE, os.rmdir, "closed/dir")


@check
def removed_directory_is_dead():
    os.mkdir("dir")
    with opened("dir", os.O_RDONLY) as directory:
        os.rmdir("dir")
        refused((errno.ENOENT, errno.ESTALE), os.mkdir, "new", dir_fd=directory)
        refused((errno.ENOENT, errno.ESTALE), os.open, "new", os.O_CREAT, dir_fd=directory)
    # The name is free, for another kind too.
    make("dir", b"x")
    same(stat.S_ISREG(os.stat("dir").st_mode), True, "kind")


@check
def names_come_and_go_between_kinds():
    """A name is looked up while it is missing, then while it is a file, then a directory."""
    for _ in range(20):
        refused(errno.ENOENT, os.stat, "name")
        make("name", b"x")
        expect(stat.S_ISREG(os.stat("name").st_mode), "no file")
        os.unlink("name")
        refused(errno.ENOENT, os.stat, "name")
        os.mkdir("name")
        expect(stat.S_ISDIR(os.stat("name").st_mode), "no directory")
        os.rmdir("name")


@check
def listing_has_each_entry_once():
    os.mkdir("dir")
    names = fill("dir", 3000)
    with Stream("dir") as stream:
        found = stream.rest()
    same(found.count(b"."), 1, "entries for the directory itself")
    same(found.count(b".."), 1, "entries for the one above")
    same(sorted(found)[2:], sorted(map(os.fsencode, names)), "names")


@check
def listing_has_inodes_and_kinds():
    make("file")
    os.mkdir("dir")
    os.symlink("x", "link")
    os.mkfifo("fifo")
    with os.scandir(".") as entries:
        for entry in entries:
            found = os.lstat(entry.name)
            same(entry.inode(), found.st_ino, f"inode of {entry.name}")
            same(entry.is_dir(follow_symlinks=False), entry.name == "dir", f"{entry.name} a dir")
            same(entry.is_symlink(), entry.name == "link", f"{entry.name} a link")
            same(entry.is_file(follow_symlinks=False), entry.name == "file", f"{entry.name} a file")


@check
def listing_shows_changes_at_once():
    for number in range(30):
        make(f"file{number}")
        same(len(os.listdir(".")), number + 1, "entries after a create")
    os.rename("file0", "renamed")
    expect("renamed" in os.listdir(".") and "file0" not in os.listdir("."), "the rename is missing")
    for number in range(1, 30):
        os.unlink(f"file{number}")
        same(len(os.listdir(".")), 30 - number, "entries after an unlink")


@check
def listing_continues_from_telldir():
    os.mkdir("dir")
    fill("dir", 700)
    with Stream("dir") as stream:
        places, names = [stream.tell()], []
        while (name := stream.read()) is not None:
            names.append(name)
            places.append(stream.tell())
        for index in (0, 1, 2, 333, 600, 701, 702):
            stream.seek(places[index])
            same(stream.rest(), names[index:], f"names from {index} on")
        # Backwards, each from its own place.
        for index in range(len(names) - 1, 0, -97):
            stream.seek(places[index])
            same(stream.read(), names[index], f"name at {index}")


@check
def listing_begins_again():
    os.mkdir("dir")
    names = {os.fsencode(name) for name in fill("dir", 300)}
    with Stream("dir") as stream:
        stream.read()
        make("dir/late")
        os.unlink("dir/" + min(names).decode())
        stream.rewind()
        wanted = (names - {min(names)}) | {b"late", b".", b".."}
        same(sorted(stream.rest()), sorted(wanted), "names after rewinddir")


@check
def listing_survives_removal_of_what_it_listed():
    """As rm -r does: whatever is there is removed while it is listed, and nothing is missed."""
    os.mkdir("dir")
    fill("dir", 2500)
    removed = 0
    with Stream("dir") as stream:
        while (name := stream.read()) is not None:
            if name not in (b".", b".."):
                os.unlink(os.path.join(b"dir", name))
                removed += 1
    same(removed, 2500, "entries removed in one pass")
    os.rmdir("dir")


@check
def listing_misses_nothing_that_stayed():
    """Names come and go meanwhile; those that stay are listed exactly once."""
    os.mkdir("dir")
    stayed = {os.fsencode(name) for name in fill("dir", 2000)}
    with Stream("dir") as stream:
        found, number = [], 0
        while (name := stream.read()) is not None:
            found.append(name)
            if len(found) % 20 == 0:
                make(f"dir/new{number}")
                if number > 5:
                    os.unlink(f"dir/new{number - 5}")
                number += 1
    for name in stayed:
        same(found.count(name), 1, f"entries {name!r}")
    expect(number > 50, "nothing changed meanwhile")


@check
def listing_of_deep_trees():
    path = "."
    for depth in range(60):
        path = f"{path}/d{depth}"
        os.mkdir(path)
    make(f"{path}/leaf", b"x")
    levels = sum(1 for _ in os.walk("."))
    same(levels, 61, "levels")
    for root, dirs, files in os.walk(".", topdown=False):
        for name in files:
            os.unlink(f"{root}/{name}")
        for name in dirs:
            os.rmdir(f"{root}/{name}")
    same(os.listdir("."), [], "names left")


@check
def listing_needs_permission_to_read():
    os.mkdir("dir", 0o711)
    make("dir/file", b"", 0o644)
    refused(errno.EACCES, as_user, ALICE, os.listdir, "dir")
    as_user(ALICE, os.stat, "dir/file")
    os.chmod("dir", 0o744)
    same(as_user(ALICE, os.listdir, "dir"), ["file"], "names")
    refused(errno.EACCES, as_user, ALICE, os.stat, "dir/file")


@check
def working_directory_is_found_again():
    os.makedirs("a/b")
    here = os.getcwd()
    os.chdir("a/b")
    same(os.getcwd(), here + "/a/b", "path")
    os.rename("../b", "../c")
    same(os.getcwd(), here + "/a/c", "path after a rename")
    os.chdir("../..")
    same(os.getcwd(), here, "path two levels up")
