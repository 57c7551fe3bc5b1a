#!/usr/bin/env python3
"""The modes of files on a mount for all users, where the kernel asks for no open(2) of them.

It opens FIFOs and sockets without a call to FUSE, and checks their modes with `default_permissions`
only. A name that it takes for absent it creates.
"""

import errno
import os
import shutil
import socket
import struct
import subprocess
import time

from harness import case, check, main, run_ok, scratch_dir
from mount_rig import OpenServer, mounted, need_fuse, spillway_export

USER, OWNER = 12345, 12346


def as_user(call):
    """The errno with which a call fails for a user who owns nothing; 0 if it succeeds."""
    child = os.fork()
    if child == 0:
        status = 255
        try:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            call()
            status = 0
        except OSError as error:
            status = error.errno
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def connect(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


@case
def default_permissions_guards_pipes_and_sockets():
    need_fuse()
    with OpenServer(scratch_dir("export")) as server:
        server.directory.chmod(0o755)
        listener = socket.socket(socket.AF_UNIX)
        with server.mount("default_permissions") as directory, listener:
            pipe, name = directory / "pipe", directory / "socket"
            os.mkfifo(pipe)
            listener.bind(str(name))
            listener.listen()
            calls = {
                "reading a FIFO": lambda: os.open(pipe, os.O_RDONLY | os.O_NONBLOCK),
                "writing a FIFO": lambda: os.open(pipe, os.O_RDWR | os.O_NONBLOCK),
                "connecting to a socket": lambda: connect(name),
            }
            for mode, expected in ((0o600, errno.EACCES), (0o666, 0), (0o600, errno.EACCES)):
                pipe.chmod(mode)
                name.chmod(mode)
                for what, call in calls.items():
                    found = as_user(call)
                    check(found == expected, f"{what} of mode {mode:o}: errno {found}")


def find_absent(directory, *names):
    """Makes the kernel remember that there are no such names."""
    for name in names:
        check(not (directory / name).exists(), f"{name} exists")


@case
def created_meanwhile_is_opened_by_its_mode():
    """The kernel creates names that it takes for absent, and which another client has created."""
    need_fuse()
    with OpenServer(scratch_dir("export")) as server:
        server.directory.chmod(0o777)
        with server.mount() as directory:
            opens = [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_TRUNC]
            private = [f"private {flags}" for flags in opens]
            find_absent(directory, *private, "public", "link", "directory")
            for name in [*private, "public"]:
                (server.directory / name).write_bytes(b"data")
                (server.directory / name).chmod(0o666 if name == "public" else 0o600)
            (server.directory / "link").symlink_to("public")
            (server.directory / "directory").mkdir()
            for name, flags in zip(private, opens, strict=True):
                found = as_user(lambda: os.open(directory / name, flags | os.O_CREAT))
                check(found == errno.EACCES, f"{name}: errno {found}")
                check((server.directory / name).read_bytes() == b"data", f"{name} was truncated")
            for name, expected in (("public", 0), ("link", 0), ("directory", errno.EISDIR)):
                found = as_user(lambda: os.open(directory / name, os.O_RDWR | os.O_CREAT))
                check(found == expected, f"{name}: errno {found}")
            exclusive = os.O_RDWR | os.O_CREAT | os.O_EXCL
            found = as_user(lambda: os.open(directory / "public", exclusive))
            check(found == errno.EEXIST, f"O_EXCL: errno {found}")


@case
def closing_a_directory_detaches_nothing():
    """Any user can close an own directory, and must not unmount what is mounted on another."""
    need_fuse()
    with OpenServer(scratch_dir("export")) as server, server.mount() as directory:
        server.directory.chmod(0o755)
        (server.directory / "below").mkdir()
        (server.directory / "own").mkdir(0o755)
        (server.directory / "own/name").touch()
        os.chown(server.directory / "own", USER, USER)
        run_ok("mount", "-t", "tmpfs", "none", directory / "below")
        try:
            os.stat(directory / "own/name")
            found = as_user(lambda: os.chmod(directory / "own", 0o700))
            check(found == 0, f"chmod: errno {found}")
            # The names are expired a moment after that.
            for _ in range(10):
                os.stat(directory / "below")
                check(mounted(directory / "below"), "detached")
                time.sleep(0.05)
        finally:
            if mounted(directory / "below"):
                run_ok("umount", directory / "below")


@case
def truncation_of_a_file_created_meanwhile():
    need_fuse()
    with OpenServer(scratch_dir("export")) as server, server.mount() as directory:
        find_absent(directory, "file")
        (server.directory / "file").write_bytes(b"data")
        (directory / "file").write_bytes(b"new")
        check((server.directory / "file").read_bytes() == b"new", "it was not truncated")


@case
def new_file_may_be_written_by_its_creator():
    need_fuse()
    with OpenServer(scratch_dir("export")) as server, server.mount() as directory:
        server.directory.chmod(0o777)
        flags = os.O_WRONLY | os.O_CREAT
        found = as_user(lambda: os.write(os.open(directory / "file", flags, 0o444), b"data"))
        check(found == 0, f"errno {found}")
        check((server.directory / "file").read_bytes() == b"data", "it was not written")


@case
def program_written_by_another_user_loses_the_rights_of_its_owner():
    """The server clears its set-user-id bit; the kernel has the mode from before."""
    need_fuse()
    with OpenServer(scratch_dir("export")) as server, server.mount("suid") as directory:
        program, _ = set_user_id_program(server, directory)
        found = as_user(lambda: append_one_byte(program))
        check(found == 0, f"write: errno {found}")
        found = effective_user(program)
        check(found == USER, f"it runs as {found}")
        mode = program.stat().st_mode & 0o7777
        check(mode == 0o777, f"mode {mode:o}")


@case
def program_changed_by_another_client_loses_the_rights_of_its_owner():
    """The mount and the kernel have the mode from before."""
    need_fuse()
    options = "suid,acregmin=60,acregmax=60"
    with OpenServer(scratch_dir("export")) as server, server.mount(options) as directory:
        program, copy = set_user_id_program(server, directory)
        append_one_byte(copy)
        copy.chmod(0o777)
        found = effective_user(program)
        check(found == USER, f"it runs as {found}")


def set_user_id_program(server, directory):
    """A program that runs as `OWNER`, on the mount and at the server."""
    server.directory.chmod(0o755)
    # Where cat is one of several commands of a program, its name chooses it.
    program, copy = directory / "cat", server.directory / "cat"
    shutil.copy("/bin/cat", copy)
    os.chown(copy, OWNER, OWNER)
    copy.chmod(0o4777)
    found = effective_user(program)
    check(found == OWNER, f"it runs as {found} before it is changed")
    return program, copy


def append_one_byte(path):
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(file, b"x")
    os.close(file)


def effective_user(program):
    """As which user a copy of cat runs that `USER` starts."""
    command = [program, "/proc/self/status"]
    status = subprocess.run(
        command, user=USER, group=USER, extra_groups=[], capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    _, _, effective, *_ = next(line for line in status.splitlines() if "Uid:" in line).split()
    return int(effective)


def access_list(user):
    """A POSIX access list by which all may read and search a directory but this user."""
    no_id = 0xFFFFFFFF
    entries = [(0x01, 7, no_id), (0x02, 0, user), (0x04, 5, no_id), (0x10, 5, no_id)]
    entries.append((0x20, 5, no_id))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@case
def access_list_closes_a_directory_whose_names_are_listed():
    with (
        spillway_export(quick=True) as server, server.mount("lookupcache=none") as directory,
    ):  # fmt: skip
        server.directory.chmod(0o755)
        closed = server.directory / "closed"
        closed.mkdir()
        (closed / "file").write_bytes(b"data")
        (closed / "file").chmod(0o644)
        os.setxattr(closed, "system.posix_acl_access", access_list(USER))
        check(closed.stat().st_mode & 0o777 == 0o755, "the list shows in the mode")
        check(os.listdir(directory / "closed") == ["file"], "another user lists other names")
        found = as_user(lambda: os.open(directory / "closed" / "file", os.O_RDONLY))
        check(found == errno.EACCES, f"errno {found}")


if __name__ == "__main__":
    main(__file__)
