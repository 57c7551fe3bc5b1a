"""A small client of NFSv4.1 and 4.2 (RFC 8881 over RFC 5531) for tests: sessions, opens and locks.

It shares no code with the server under test. It keeps one call in flight, in slot 0 of one session.
"""

import os
import struct

from harness import check
from nfs3 import Rpc, opaque, take_opaque

PROGRAM = 100003
COMPOUND = 1
CLOSE, GETATTR, GETFH, LOCK, LOCKT, LOCKU, LOOKUP, OPEN = 4, 9, 10, 12, 13, 14, 15, 18
PUTFH, PUTROOTFH, READ, READDIR, WRITE = 22, 24, 25, 26, 38
EXCHANGE_ID, CREATE_SESSION, SEQUENCE, RECLAIM_COMPLETE = 42, 43, 53, 58
DENIED, GRACE, NO_GRACE, RECLAIM_BAD, RECLAIM_CONFLICT = 10010, 10013, 10033, 10034, 10035
READ_LT, WRITE_LT, READW_LT, WRITEW_LT = 1, 2, 3, 4
BOTH = 3
WHOLE = (0, 0xFFFF_FFFF_FFFF_FFFF)
CONN_BACK_CHAN = 2
# The stateid that the operation before has returned (RFC 8881 section 16.2.3.1.2).
CURRENT_STATEID = struct.pack(">I", 1) + bytes(12)


class Nfs4Error(Exception):
    """The nfsstat4 of the operation that a COMPOUND ended with (RFC 8881 section 15.1)."""

    def __init__(self, operation, status, body):
        super().__init__(f"operation {operation} answered status {status}")
        self.operation, self.status, self.body = operation, status, body

    def conflict(self):
        """What LOCK4denied names: the type of the lock, its range, its client and its owner."""
        offset, length, kind, client = struct.unpack_from(">QQIQ", self.body)
        return kind, (offset, length), client, take_opaque(self.body, 28)[0]


def refused(status, call, *arguments, **options):
    """Checks that a call fails with this status."""
    try:
        call(*arguments, **options)
    except Nfs4Error as error:
        check(error.status == status, f"{call.__name__}: {error}, not {status}")
    else:
        raise AssertionError(f"{call.__name__} succeeded, not {status}")


class Rpc4(Rpc):
    """Calls of version 4 of the program."""

    def record(self, procedure, arguments, xid=None):
        """A call as it is sent, with its record mark."""
        xid = next(self.xids) if xid is None else xid
        head = struct.pack(">IIIIII", xid, 0, 2, self.program, 4, procedure)
        message = head + self.auth + arguments
        return struct.pack(">I", 0x80000000 | len(message)) + message


def encoded(operations, minor_version=1):
    """The arguments of a COMPOUND."""
    body = b"".join(struct.pack(">I", code) + arguments for code, arguments in operations)
    return opaque(b"") + struct.pack(">II", minor_version, len(operations)) + body


class Client:
    """A client with one session. It may open and lock after `reclaim_complete`.

    `slots` and `operations` are what it asks for; with `back`, callbacks come over its connection.
    """

    def __init__(
        self, port, owner, timeout_secs=30, minor_version=1, source="", slots=8, operations=16,
        back=False,
    ):  # fmt: skip
        self.rpc = Rpc4("127.0.0.1", port, PROGRAM, timeout_secs, source)
        self.owner, self.sequence, self.minor_version = owner, 0, minor_version
        arguments = os.urandom(8) + opaque(owner) + struct.pack(">III", 0, 0, 0)
        reply, at = self._compound([(EXCHANGE_ID, arguments)])
        self.client, number = struct.unpack_from(">QI", reply, at + 8)
        channel = struct.pack(">IIIIIII", 0, 1 << 20, 1 << 20, 2048, operations, slots, 0)
        flags = CONN_BACK_CHAN if back else 0
        arguments = struct.pack(">QII", self.client, number, flags) + 2 * channel
        arguments += struct.pack(">III", 0x40000000, 1, 0)
        reply, at = self._compound([(CREATE_SESSION, arguments)])
        self.session = reply[at + 8 : at + 24]

    def close(self):
        """Closes the connection; the state stays."""
        self.rpc.close()

    def _compound(self, operations):
        """Performs operations that all succeed; returns the reply and the last result's offset."""
        reply = self.rpc.call(COMPOUND, encoded(operations, self.minor_version))
        (status,) = struct.unpack_from(">I", reply)
        _, at = take_opaque(reply, 4)
        (count,) = struct.unpack_from(">I", reply, at)
        at += 4
        for code, _ in operations[: count - 1]:
            at = self._behind(reply, at, code)
        if status != 0:
            raise Nfs4Error(operations[count - 1][0], status, reply[at + 8 :])
        return reply, at

    @staticmethod
    def _behind(reply, at, code):
        """The offset behind a result that is not the last."""
        lengths = {SEQUENCE: 36, PUTFH: 0, PUTROOTFH: 0, LOOKUP: 0, WRITE: 16, LOCK: 16}
        if code == OPEN:
            # The stateid, change_info4 and rflags, then the bitmap and the absent delegation.
            (words,) = struct.unpack_from(">I", reply, at + 8 + 40)
            at += 8 + 44 + 4 * words
            (kind,) = struct.unpack_from(">I", reply, at)
            if kind == 0:
                return at + 4
            (why,) = struct.unpack_from(">I", reply, at + 4)
            return at + 8 + (4 if why in (1, 2) else 0)
        return at + 8 + lengths[code]

    def call(self, *operations):
        """The operations behind SEQUENCE."""
        first = self.sequenced(self.sequence + 1)
        try:
            answer = self._compound([first, *operations])
        except Nfs4Error as error:
            # A refused SEQUENCE leaves the slot as it was.
            self.sequence += int(error.operation != SEQUENCE)
            raise
        self.sequence += 1
        return answer

    def sequenced(self, sequence, slot=0, highest_slot=0, cache_this=False):
        """SEQUENCE of this session."""
        numbers = struct.pack(">IIII", sequence, slot, highest_slot, int(cache_this))
        return SEQUENCE, self.session + numbers

    def reclaim_complete(self):
        """RECLAIM_COMPLETE, RFC 8881 section 18.51."""
        self.call((RECLAIM_COMPLETE, struct.pack(">I", 0)))

    def export(self, name):
        """The handle of an export."""
        path = [(LOOKUP, opaque(part.encode())) for part in name.split("/") if part]
        reply, at = self.call((PUTROOTFH, b""), *path, (GETFH, b""))
        return take_opaque(reply, at + 8)[0]

    @staticmethod
    def _open_arguments(how, claim, owner=b"opener"):
        return struct.pack(">IIIQ", 0, BOTH, 0, 0) + opaque(owner) + how + claim

    def create(self, directory, name):
        """Opens a file by its name, or makes it; returns handle and stateid."""
        attributes = struct.pack(">III", 2, 0, 2) + opaque(struct.pack(">I", 0o644))
        how = struct.pack(">II", 1, 0) + attributes
        arguments = self._open_arguments(how, struct.pack(">I", 0) + opaque(name))
        operations = [(PUTFH, opaque(directory)), (OPEN, arguments)]
        reply, at = self.call(*operations)
        stateid = reply[at + 8 : at + 24]
        reply, at = self.call((PUTFH, opaque(directory)), (LOOKUP, opaque(name)), (GETFH, b""))
        return take_opaque(reply, at + 8)[0], stateid

    def open(self, handle, reclaim=False, owner=b"opener"):
        """Opens a file by its handle; returns the stateid."""
        claim = struct.pack(">II", 1, 0) if reclaim else struct.pack(">I", 4)
        arguments = self._open_arguments(struct.pack(">I", 0), claim, owner)
        reply, at = self.call((PUTFH, opaque(handle)), (OPEN, arguments))
        return reply[at + 8 : at + 24]

    @classmethod
    def open_and_lock(cls, handle, number, name_bytes):
        """Operations: OPEN by an owner of this number, and LOCK of the byte of this number."""
        owner = struct.pack(">Q", number).ljust(name_bytes, b"o")
        claim = struct.pack(">I", 4)
        opening = cls._open_arguments(struct.pack(">I", 0), claim, owner)
        locking = struct.pack(">IIQQII", WRITE_LT, 0, number, 1, 1, 0) + CURRENT_STATEID
        locking += struct.pack(">IQ", 0, 0) + opaque(owner)
        return [(PUTFH, opaque(handle)), (OPEN, opening), (LOCK, locking)]

    def lock(
        self, handle, stateid, lock_range=WHOLE, reclaim=False, owner=b"locker", kind=WRITE_LT
    ):
        """LOCK by an owner that has no lock below this open yet; returns the stateid."""
        locker = struct.pack(">II", 1, 0) + stateid + struct.pack(">IQ", 0, 0) + opaque(owner)
        return self._lock(handle, struct.pack(">IIQQ", kind, int(reclaim), *lock_range) + locker)

    def lock_again(self, handle, held, lock_range, kind):
        """LOCK by the owner of an earlier one, `held`; returns its new stateid."""
        locker = struct.pack(">I", 0) + held + struct.pack(">I", 0)
        return self._lock(handle, struct.pack(">IIQQ", kind, 0, *lock_range) + locker)

    def _lock(self, handle, arguments):
        reply, at = self.call((PUTFH, opaque(handle)), (LOCK, arguments))
        return reply[at + 8 : at + 24]

    def test_lock(self, handle, lock_range, owner, kind):
        """LOCKT."""
        arguments = struct.pack(">IQQQ", kind, *lock_range, 0) + opaque(owner)
        self.call((PUTFH, opaque(handle)), (LOCKT, arguments))

    def unlock(self, handle, held, lock_range=WHOLE):
        """LOCKU; returns the new stateid."""
        arguments = struct.pack(">II", WRITE_LT, 0) + held + struct.pack(">QQ", *lock_range)
        reply, at = self.call((PUTFH, opaque(handle)), (LOCKU, arguments))
        return reply[at + 8 : at + 24]

    def close_file(self, handle, stateid):
        """CLOSE, which ends the locks below the open too."""
        self.call((PUTFH, opaque(handle)), (CLOSE, struct.pack(">I", 0) + stateid))

    def read(self, handle, stateid, offset, count):
        """READ; returns the data."""
        arguments = stateid + struct.pack(">QI", offset, count)
        reply, at = self.call((PUTFH, opaque(handle)), (READ, arguments))
        return take_opaque(reply, at + 12)[0]

    def write(self, handle, stateid, offset, data):
        """A FILE_SYNC WRITE."""
        arguments = stateid + struct.pack(">QI", offset, 2) + opaque(data)
        self.call((PUTFH, opaque(handle)), (WRITE, arguments))
