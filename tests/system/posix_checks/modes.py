"""chmod, chown, access: the effects, the permission needed, and the bits that are cleared."""

import errno
import os
import stat
import subprocess

from place import (
    ALICE, BOB, TEAM, as_user, check, content_of, expect, keeps, make, mode_of, opened, refused,
    same, updates,
)  # fmt: skip


@check
def chmod_sets_all_bits():
    make("file")
    os.mkdir("dir")
    for mode in (0, 0o111, 0o222, 0o444, 0o777, 0o1000, 0o2000, 0o4000, 0o7777, 0o640):
        for name in ("file", "dir"):
            os.chmod(name, mode)
            same(mode_of(name), mode, f"mode of {name}")
    expect(stat.S_ISREG(os.stat("file").st_mode), "the kind changed")


@check
def chmod_stamps_ctime_only():
    make("file", b"x")
    updates(["file"], ["st_ctime_ns"], lambda: os.chmod("file", 0o600))
    keeps(["file", "."], ["st_mtime_ns", "st_atime_ns"], lambda: os.chmod("file", 0o640))


@check
def chmod_follows_links():
    make("file")
    os.symlink("file", "link")
    os.chmod("link", 0o600)
    same(mode_of("file"), 0o600, "mode")
    same(mode_of("link"), 0o777, "mode of the link")


@check
def chmod_by_descriptor():
    with opened("file", os.O_CREAT | os.O_RDWR, 0o644) as file:
        os.fchmod(file, 0o600)
        same(os.fstat(file).st_mode & 0o7777, 0o600, "fstat")
    same(mode_of("file"), 0o600, "stat")


@check
def chmod_is_the_owners():
    make("file")
    os.chown("file", ALICE, ALICE)
    as_user(ALICE, os.chmod, "file", 0o600)
    before = os.stat("file").st_ctime_ns
    refused(errno.EPERM, as_user, BOB, os.chmod, "file", 0o666)
    same((mode_of("file"), os.stat("file").st_ctime_ns), (0o600, before), "after the refusal")


@check
def chmod_drops_set_group_id_of_foreign_groups():
    make("file")
    os.chown("file", ALICE, BOB)
    as_user(ALICE, os.chmod, "file", 0o2755)
    same(mode_of("file"), 0o755, "mode")
    as_user(ALICE, os.chmod, "file", 0o2755, groups=[BOB])
    same(mode_of("file"), 0o2755, "mode by a member of the group")


@check
def chmod_errors():
    make("file")
    os.symlink("loop", "loop")
    refused(errno.ENOENT, os.chmod, "missing", 0o600)
    refused(errno.ENOTDIR, os.chmod, "file/below", 0o600)
    refused(errno.ELOOP, os.chmod, "loop", 0o600)
    refused(errno.ENAMETOOLONG, os.chmod, "n" * 256, 0o600)


@check
def chmod_takes_effect_at_once():
    os.mkdir("dir", 0o755)
    make("dir/file", b"x", 0o644)
    for _ in range(5):
        as_user(ALICE, os.stat, "dir/file")
        os.chmod("dir", 0o700)
        refused(errno.EACCES, as_user, ALICE, os.stat, "dir/file")
        os.chmod("dir", 0o755)
        as_user(ALICE, content_of, "dir/file")
        os.chmod("dir/file", 0o600)
        refused(errno.EACCES, as_user, ALICE, os.open, "dir/file", os.O_RDONLY)
        os.chmod("dir/file", 0o644)


@check
def chown_sets_owner_and_group():
    make("file")
    os.mkdir("dir")
    for name in ("file", "dir"):
        os.chown(name, ALICE, BOB)
        os.chown(name, -1, TEAM)
        found = os.stat(name)
        same((found.st_uid, found.st_gid), (ALICE, TEAM), "owner")
        os.chown(name, BOB, -1)
        found = os.stat(name)
        same((found.st_uid, found.st_gid), (BOB, TEAM), "owner")
    updates(["file"], ["st_ctime_ns"], lambda: os.chown("file", ALICE, ALICE))
    keeps(["file"], ["st_mtime_ns"], lambda: os.chown("file", BOB, BOB))


@check
def chown_of_links():
    make("file")
    os.symlink("file", "link")
    os.lchown("link", ALICE, BOB)
    same(os.lstat("link").st_uid, ALICE, "owner of the link")
    same(os.stat("file").st_uid, 0, "owner of the file")
    os.chown("link", BOB, BOB)
    same((os.lstat("link").st_uid, os.stat("file").st_uid), (ALICE, BOB), "owners")


@check
def chown_is_roots_and_partly_the_owners():
    make("file")
    os.chown("file", ALICE, ALICE)
    refused(errno.EPERM, as_user, ALICE, os.chown, "file", BOB, -1)
    refused(errno.EPERM, as_user, ALICE, os.chown, "file", -1, BOB)
    refused(errno.EPERM, as_user, BOB, os.chown, "file", -1, BOB)
    as_user(ALICE, os.chown, "file", ALICE, TEAM, groups=[TEAM])
    same(os.stat("file").st_gid, TEAM, "group")
    as_user(ALICE, os.chown, "file", -1, -1)


@check
def chown_clears_set_id_bits():
    make("program")
    for mode, left in ((0o6755, 0o755), (0o4711, 0o711), (0o6777, 0o777)):
        os.chown("program", 0, 0)
        os.chmod("program", mode)
        os.chown("program", ALICE, TEAM)
        same(mode_of("program"), left, f"mode {mode:o} after root's chown")
        os.chmod("program", mode)
        as_user(ALICE, os.chown, "program", -1, ALICE)
        same(mode_of("program"), left, f"mode {mode:o} after the owner's chown")
    os.mkdir("dir")
    os.chmod("dir", 0o2755)
    os.chown("dir", ALICE, TEAM)
    same(mode_of("dir"), 0o2755, "mode of a directory")


@check
def write_clears_set_id_bits():
    make("program", b"x" * 100)
    for actor in (ALICE, BOB):
        os.chown("program", ALICE, ALICE)
        os.chmod("program", 0o6777)
        as_user(actor, overwrite, "program")
        same(mode_of("program"), 0o777, f"mode after a write by {actor}")
    same(content_of("program")[:3], b"new", "content")


def overwrite(name):
    with opened(name, os.O_WRONLY) as file:
        os.write(file, b"new")


@check
def truncation_clears_set_id_bits():
    make("program", b"x" * 100)
    os.chown("program", ALICE, ALICE)
    os.chmod("program", 0o6777)
    as_user(BOB, os.truncate, "program", 10)
    same(mode_of("program"), 0o777, "mode")


@check
def write_by_root_keeps_set_id_bits():
    make("program", b"x" * 100, 0o6755)
    overwrite("program")
    same(mode_of("program"), 0o6755, "mode")


@check
def access_answers_for_each_class():
    make("file", b"", 0o640)
    os.chown("file", ALICE, TEAM)

    def may():
        return [os.access("file", wanted) for wanted in (os.F_OK, os.R_OK, os.W_OK, os.X_OK)]

    same(as_user(ALICE, may), [True, True, True, False], "the owner")
    same(as_user(BOB, may, gid=TEAM), [True, True, False, False], "the group")
    same(as_user(BOB, may), [True, False, False, False], "others")
    same(may(), [True, True, True, False], "root, and no execute bit")
    os.chmod("file", 0o001)
    same(may(), [True, True, True, True], "root, and one execute bit")
    same(as_user(BOB, may), [True, False, False, True], "others, with the execute bit")


@check
def supplementary_groups_count():
    make("file", b"for the team", 0o060)
    os.chown("file", 0, TEAM)
    os.mkdir("dir", 0o770)
    os.chown("dir", 0, TEAM)
    refused(errno.EACCES, as_user, ALICE, content_of, "file")
    same(as_user(ALICE, content_of, "file", groups=[BOB, TEAM]), b"for the team", "content")
    expect(as_user(ALICE, os.access, "file", os.W_OK, groups=[TEAM]), "access(2) fails")
    as_user(ALICE, make, "dir/new", b"x", groups=[7, 8, 9, TEAM])
    refused(errno.EACCES, as_user, ALICE, content_of, "dir/new", groups=[7, 8, 9])


@check
def set_group_id_directories_pass_on_their_group():
    os.mkdir("dir")
    os.chown("dir", ALICE, TEAM)
    os.chmod("dir", 0o2777)
    as_user(BOB, make, "dir/file")
    as_user(BOB, os.mkdir, "dir/dir", 0o755)
    same(os.stat("dir/file").st_gid, TEAM, "group of the file")
    same(os.stat("dir/dir").st_gid, TEAM, "group of the directory")
    same(mode_of("dir/dir"), 0o2755, "mode of the directory")


@check
def programs_run():
    make("script", b"#!/bin/sh\necho it runs\n", 0o755)
    done = subprocess.run(["./script"], capture_output=True, check=True)
    same(done.stdout, b"it runs\n", "output of the script")
    with open("/bin/true", "rb") as program:
        make("program", program.read(), 0o711)
    as_user(ALICE, lambda: subprocess.run(["./program"], check=True))
    os.chmod("program", 0o644)
    refused(errno.EACCES, as_user, ALICE, os.execv, "./program", ["program"])


@check
def running_programs_are_busy():
    with open("/bin/sleep", "rb") as program:
        make("program", program.read(), 0o755)
    with subprocess.Popen(["./program", "60"]) as process:
        try:
            refused(errno.ETXTBSY, os.open, "program", os.O_WRONLY)
        finally:
            process.kill()
