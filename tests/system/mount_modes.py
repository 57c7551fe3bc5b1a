#!/usr/bin/env python3
"""The modes of FIFOs and sockets on a mount for all users.

The kernel opens them without a call to FUSE. It checks their modes with `default_permissions` only.
"""

import errno
import os
import socket

from harness import case, check, main, scratch_dir
from mount_rig import OpenServer, need_fuse

USER = 12345


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


if __name__ == "__main__":
    main(__file__)
