"""A small NFSv3 client (RFC 1813 over RFC 5531, TCP) for tests and load generation.

It shares no code with the server under test, so an encoding mistake made on one side cannot
hide on the other. It keeps one call in flight on one connection, and it has no cache: each method
is one call on the wire, which is what a rate of calls per second should count.
"""

import itertools
import os
import socket
import struct

PROGRAM_NFS, PROGRAM_MOUNT = 100003, 100005
GETATTR, LOOKUP, READ, WRITE, CREATE, MKDIR, REMOVE = 1, 3, 6, 7, 8, 9, 12
RENAME, COMMIT = 14, 21
UNSTABLE, DATA_SYNC, FILE_SYNC = 0, 1, 2

# An answer larger than this is a broken record mark, not a reply to one of our calls.
RECORD_BYTES_MAX = 16 << 20


class NfsError(Exception):
    """An nfsstat3 or mountstat3 other than OK (RFC 1813 sections 2.6 and 5.1.5)."""

    def __init__(self, procedure, status):
        super().__init__(f"procedure {procedure} answered status {status}")
        self.status = status


def opaque(data):
    """Encodes variable-length opaque data or a string (RFC 4506 section 4.10)."""
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def take_opaque(reply, at):
    """Decodes variable-length opaque data at `at`; returns it and the offset behind its padding."""
    (length,) = struct.unpack_from(">I", reply, at)
    return reply[at + 4 : at + 4 + length], at + 4 + length + (-length % 4)


def skip_attributes(reply, at):
    """Skips a post_op_attr (RFC 1813 section 2.6); returns the offset behind it."""
    (follows,) = struct.unpack_from(">I", reply, at)
    return at + 4 + (84 if follows else 0)


def skip_wcc(reply, at):
    """Skips a wcc_data (RFC 1813 section 2.6); returns the offset behind it."""
    (follows,) = struct.unpack_from(">I", reply, at)
    return skip_attributes(reply, at + 4 + (24 if follows else 0))


class Rpc:
    """One TCP connection to one program, one call in flight, AUTH_SYS as root.

    `source` is the address of this machine that it comes from.
    """

    def __init__(self, host, port, program, timeout_secs=60, source=""):
        address = (host, port)
        self.socket = socket.create_connection(address, timeout_secs, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.program = program
        self.xids = itertools.count(int.from_bytes(os.urandom(3), "big"))
        credential = struct.pack(">I", 0) + opaque(b"spillway-test") + struct.pack(">III", 0, 0, 0)
        self.auth = struct.pack(">I", 1) + opaque(credential) + struct.pack(">II", 0, 0)

    def close(self):
        self.socket.close()

    def record(self, procedure, arguments, xid=None):
        """A call as it is sent, with its record mark."""
        xid = next(self.xids) if xid is None else xid
        head = struct.pack(">IIIIII", xid, 0, 2, self.program, 3, procedure)
        message = head + self.auth + arguments
        return struct.pack(">I", 0x80000000 | len(message)) + message

    def call(self, procedure, arguments):
        """Makes one call; returns the reply's procedure-specific results."""
        xid = next(self.xids)
        self.socket.sendall(self.record(procedure, arguments, xid))
        reply = self._record()
        answered, kind, stat, _flavor, verifier_len = struct.unpack_from(">IIIII", reply)
        if (answered, kind, stat) != (xid, 1, 0):
            raise ConnectionError(f"reply to xid {answered}, kind {kind}, stat {stat}; sent {xid}")
        at = 20 + verifier_len + (-verifier_len % 4)
        (accept,) = struct.unpack_from(">I", reply, at)
        if accept != 0:
            raise ConnectionError(f"procedure {procedure}: accept_stat {accept}")
        return reply[at + 4 :]

    def _record(self):
        record, last = b"", False
        while not last:
            (mark,) = struct.unpack(">I", self._exactly(4))
            last, length = bool(mark >> 31), mark & 0x7FFFFFFF
            if length > RECORD_BYTES_MAX:
                raise ConnectionError(f"a fragment of {length} bytes")
            record += self._exactly(length)
        return record

    def _exactly(self, length):
        data = self.socket.recv(length)
        while len(data) < length:
            more = self.socket.recv(length - len(data))
            if not more:
                raise ConnectionError("the server closed the connection")
            data += more
        return data


class Client:
    """The mounted root of an export and the few NFSv3 procedures that the tests need."""

    def __init__(self, host, port, export, mount_port=None, timeout_secs=60, source=""):
        mount = Rpc(host, mount_port or port, PROGRAM_MOUNT, timeout_secs, source)
        reply = mount.call(1, opaque(export.encode()))
        mount.close()
        (status,) = struct.unpack_from(">I", reply)
        if status != 0:
            raise NfsError("MNT", status)
        self.root, _ = take_opaque(reply, 4)
        self.rpc = Rpc(host, port, PROGRAM_NFS, timeout_secs, source)

    def close(self):
        self.rpc.close()

    def _call(self, procedure, arguments):
        reply = self.rpc.call(procedure, arguments)
        (status,) = struct.unpack_from(">I", reply)
        if status != 0:
            raise NfsError(procedure, status)
        return reply

    def getattr(self, handle):
        """GETATTR, section 3.3.1. Returns the size in bytes."""
        reply = self._call(GETATTR, opaque(handle))
        return struct.unpack_from(">Q", reply, 4 + 20)[0]

    def lookup(self, directory, name):
        """LOOKUP, section 3.3.3. Returns the file handle."""
        return take_opaque(self._call(LOOKUP, opaque(directory) + opaque(name)), 4)[0]

    def read(self, handle, offset, count):
        """READ, section 3.3.6. Returns at most `count` bytes."""
        reply = self._call(READ, opaque(handle) + struct.pack(">QI", offset, count))
        return take_opaque(reply, skip_attributes(reply, 4) + 8)[0]

    def write(self, handle, offset, data, stable):
        """WRITE, section 3.3.7. Returns (bytes written, stable_how done, write verifier)."""
        arguments = opaque(handle) + struct.pack(">QII", offset, len(data), stable) + opaque(data)
        reply = self._call(WRITE, arguments)
        return struct.unpack_from(">II8s", reply, skip_wcc(reply, 4))

    def create(self, directory, name):
        """CREATE, section 3.3.8, UNCHECKED with mode 0644. Returns the file handle."""
        # sattr3: the mode is set; uid, gid, size, atime and mtime are not.
        sattr = struct.pack(">IIIIIII", 1, 0o644, 0, 0, 0, 0, 0)
        reply = self._call(CREATE, opaque(directory) + opaque(name) + struct.pack(">I", 0) + sattr)
        (follows,) = struct.unpack_from(">I", reply, 4)
        return take_opaque(reply, 8)[0] if follows else self.lookup(directory, name)

    def remove(self, directory, name):
        """REMOVE, section 3.3.12."""
        self._call(REMOVE, opaque(directory) + opaque(name))

    def commit(self, handle, offset=0, count=0):
        """COMMIT, section 3.3.21. Returns the write verifier."""
        arguments = opaque(handle) + struct.pack(">QI", offset, count)
        reply = self._call(COMMIT, arguments)
        return struct.unpack_from(">8s", reply, skip_wcc(reply, 4))[0]
