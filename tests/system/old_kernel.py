#!/usr/bin/env python3
"""Runs a program as if on an older kernel: system calls and flags that came later are refused.

    old_kernel.py no-dontcache|no-direct PROGRAM [ARGUMENT...]

`no-dontcache` refuses cachestat and the flag RWF_DONTCACHE (Linux 6.5 and 6.14). `no-direct` also
refuses O_DIRECT, as a file system may that yet reports an alignment, and RWF_NOWAIT. A filter sees
the arguments of a call but not what they point to, so statx stays as new as it is.
"""

import ctypes
import errno
import fcntl
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
RET_ALLOW, RET_ERRNO = 0x7FFF0000, 0x00050000
LOAD, JUMP_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER_AT, ARGUMENTS_AT = 0, 16

CALLS = {
    "x86_64": {"openat": 257, "fcntl": 72, "preadv2": 327, "pwritev2": 328, "cachestat": 451},
    "aarch64": {"openat": 56, "fcntl": 25, "preadv2": 286, "pwritev2": 287, "cachestat": 451},
}
O_DIRECT = {"x86_64": 0o40000, "aarch64": 0o200000}
RWF_NOWAIT, RWF_DONTCACHE = 0x08, 0x80


def instruction(code, value, if_true=0, if_false=0):
    """One BPF instruction, struct sock_filter."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def refuse(number, error, argument=None, bits=0, command=None):
    """Refuses a call, or where `argument` is given only one that has any of these bits in it, or
    where `command` is given only one with this second argument.
    """
    body = instruction(RETURN, RET_ERRNO | error)
    # The lower half of a 64-bit argument: both machines are little-endian.
    if argument is not None:
        test = instruction(JUMP_ANY_BIT, bits, if_false=len(body) // 8)
        body = instruction(LOAD, ARGUMENTS_AT + 8 * argument) + test + body
    if command is not None:
        test = instruction(JUMP_EQUAL, command, if_false=len(body) // 8)
        body = instruction(LOAD, ARGUMENTS_AT + 8) + test + body
    return (
        instruction(LOAD, NUMBER_AT)
        + instruction(JUMP_EQUAL, number, if_false=len(body) // 8)
        + body
    )


def program(age):
    """The BPF program of one of the two ages."""
    machine = platform.machine()
    call, direct = CALLS[machine], O_DIRECT[machine]
    flags = RWF_DONTCACHE | (RWF_NOWAIT if age == "no-direct" else 0)
    text = refuse(call["cachestat"], errno.ENOSYS)
    for name in ("preadv2", "pwritev2"):
        text += refuse(call[name], errno.EOPNOTSUPP, argument=5, bits=flags)
    if age == "no-direct":
        text += refuse(call["openat"], errno.EINVAL, argument=2, bits=direct)
        # Other commands have other things in this argument, or what was there by chance.
        text += refuse(call["fcntl"], errno.EINVAL, argument=2, bits=direct, command=fcntl.F_SETFL)
    return text + instruction(RETURN, RET_ALLOW)


def confine(text):
    """Puts this process and what it becomes under the filter."""
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(text, len(text))
    # struct sock_fprog: a length, and behind padding a pointer.
    filters = struct.pack("@HP", len(text) // 8, ctypes.addressof(instructions))
    for call in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(filters), 0, 0),
    ):
        if libc.prctl(*call) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    confine(program(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
