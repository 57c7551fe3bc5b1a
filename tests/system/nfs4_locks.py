#!/usr/bin/env python3
"""Byte-range locks of version 4 beside each other and beside those of local programs.

Who excludes whom is derived from fcntl(2) and RFC 8881 sections 18.10 to 18.12: two locks conflict
if their owners differ, their ranges share a byte and one of them is exclusive. An owner is a
lock_owner4 of a client, an open file description (F_OFD_SETLK) or a process (F_SETLK). A lock by
flock(2) is none of these: on a local file system it conflicts with other such locks alone.
"""

import errno
import fcntl
import itertools
import os
import pathlib
import random
import struct
import threading
import time

import nfs4
from harness import EXPORT, Server, case, check, main, scratch_dir

VERSIONS = ("--nfs-versions", "4.1,4.2")
FLOCK = struct.Struct("hhqqi4x")
SHARED, EXCLUSIVE = nfs4.READ_LT, nfs4.WRITE_LT
END = 1 << 64
PATIENCE_SECS = 20


class ClientOwner:
    """A lock owner of a client of version 4. A range is a pair of an offset and a length."""

    locks_bytes = True

    def __init__(self, client, handle, stateid, name):
        self.client, self.handle, self.stateid, self.name = client, handle, stateid, name
        self.held = None

    def lock(self, wanted, kind):
        """None if it was granted, else the lock in the way."""
        try:
            if self.held is None:
                new = {"owner": self.name, "kind": kind}
                self.held = self.client.lock(self.handle, self.stateid, wanted, **new)
            else:
                self.held = self.client.lock_again(self.handle, self.held, wanted, kind)
        except nfs4.Nfs4Error as error:
            return conflict_of(error)
        return None

    def test(self, wanted, kind):
        """None if it could be granted, else the lock in the way."""
        try:
            self.client.test_lock(self.handle, wanted, self.name, kind)
        except nfs4.Nfs4Error as error:
            return conflict_of(error)
        return None

    def unlock(self, wanted):
        if self.held is not None:
            self.held = self.client.unlock(self.handle, self.held, wanted)

    def shown(self, other):
        """How a conflict with this owner names it to the other."""
        return (self.client.client, self.name) if isinstance(other, ClientOwner) else None


class LocalOwner:
    """An open file description or, with `is_process`, this process."""

    locks_bytes = True

    def __init__(self, path, is_process=False):
        self.fd = os.open(path, os.O_RDWR)
        self.get, self.set, self.wait = (
            (fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW)
            if is_process
            else (fcntl.F_OFD_GETLK, fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW)
        )

    def _control(self, command, wanted, kind):
        offset, length = wanted
        to_end = offset + length >= END - 1
        lock = FLOCK.pack(kind, os.SEEK_SET, offset, 0 if to_end else length, 0)
        return FLOCK.unpack(fcntl.fcntl(self.fd, command, lock))

    def lock(self, wanted, kind):
        tested = self.test(wanted, kind)
        try:
            self._control(self.set, wanted, TYPES[kind])
        except OSError as error:
            check(error.errno in (errno.EAGAIN, errno.EACCES), str(error))
            check(tested is not None, "denied, but fcntl(2) names no lock in the way")
            return tested
        check(tested is None, f"granted in spite of {tested}")
        return None

    def await_lock(self, wanted, kind):
        """Waits until it is granted."""
        self._control(self.wait, wanted, TYPES[kind])

    def test(self, wanted, kind):
        found, _, offset, length, _ = self._control(self.get, wanted, TYPES[kind])
        if found == fcntl.F_UNLCK:
            return None
        kind = EXCLUSIVE if found == fcntl.F_WRLCK else SHARED
        return kind, (offset, length or END - 1), None

    def unlock(self, wanted):
        self._control(self.set, wanted, fcntl.F_UNLCK)

    def shown(self, other):
        """A local lock has no owner in version 4."""
        return (0, b"") if isinstance(other, ClientOwner) else None

    def close(self):
        os.close(self.fd)


TYPES = {SHARED: fcntl.F_RDLCK, EXCLUSIVE: fcntl.F_WRLCK}


class FlockOwner(LocalOwner):
    """An open file description that locks the whole file by flock(2)."""

    locks_bytes = False

    def lock(self, wanted, kind):
        operation = fcntl.LOCK_EX if kind == EXCLUSIVE else fcntl.LOCK_SH
        fcntl.flock(self.fd, operation | fcntl.LOCK_NB)

    def unlock(self, wanted):
        fcntl.flock(self.fd, fcntl.LOCK_UN)


def conflict_of(error):
    """The lock that DENIED names: its kind, its range, and its client and owner."""
    check(error.status == nfs4.DENIED, str(error))
    kind, found, *owner = error.conflict()
    return kind, found, tuple(owner)


class Bed:
    """A file with owners of every kind: two of one client, one of another, and local ones."""

    def __init__(self, server, name):
        self.server, self.path = server, server.directory / name
        self.path.write_bytes(b"x" * 100)
        self.path.chmod(0o666)
        self.one, self.two = (nfs4.Client(server.port, owner) for owner in (b"one", b"two"))
        for client in (self.one, self.two):
            client.reclaim_complete()
        self.handle, stateid = self.open(self.one)
        _, other_stateid = self.open(self.two)
        self.clients = [
            ClientOwner(self.one, self.handle, stateid, b"a"),
            ClientOwner(self.one, self.handle, stateid, b"b"),
            ClientOwner(self.two, self.handle, other_stateid, b"a"),  # as the first one's
        ]
        self.description = LocalOwner(self.path)
        self.process = LocalOwner(self.path, is_process=True)
        self.flock = FlockOwner(self.path)

    def open(self, client):
        return client.create(client.export(EXPORT), self.path.name.encode())

    def close(self):
        """A process loses its locks in a file with any descriptor of it: so all are closed last."""
        for owner in (self.description, self.process, self.flock):
            owner.close()
        for client in (self.one, self.two):
            client.close()


def overlap(a, b):
    """Whether two ranges share a byte."""
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]


RANGES = [(10, 10), (0, 11), (19, 1), (12, 3), nfs4.WHOLE, (0, 10), (20, 10), (20, END - 1)]


@case(secs=60)
def owners_exclude_each_other_as_in_fcntl():
    """Each kind of owner beside each other kind: who gets what, and what is named as in the way."""
    with Server(scratch_dir("export"), *VERSIONS) as server:
        bed = Bed(server, "file")
        holders = [bed.clients[0], bed.description, bed.process, bed.flock]
        seekers = [*bed.clients, bed.description, bed.process, bed.flock]
        cells = itertools.product(holders, seekers, (SHARED, EXCLUSIVE), (SHARED, EXCLUSIVE))
        for holder, seeker, held, wanted in cells:
            is_local = not any(isinstance(owner, ClientOwner) for owner in (holder, seeker))
            if holder is seeker or is_local:
                continue  # of the kernel's own making
            for area in RANGES:
                check_cell((holder, held), (seeker, wanted), area)
        bed.close()


def check_cell(holder, seeker, wanted):
    """One owner holds a range of ten bytes, and the other asks for `wanted`."""
    (holder, held), (seeker, kind) = holder, seeker
    cell = f"{type(holder).__name__} {held}, {type(seeker).__name__} {kind} {wanted}"
    check(holder.lock(RANGES[0], held) is None, f"{cell}: not alone")
    expected = None
    if holder.locks_bytes and seeker.locks_bytes:
        if EXCLUSIVE in (held, kind) and overlap(RANGES[0], wanted):
            expected = (held, RANGES[0], holder.shown(seeker))
    if isinstance(seeker, ClientOwner):
        tested = seeker.test(wanted, kind)
        check(tested == expected, f"{cell}: LOCKT {tested}, not {expected}")
        # A blocking request is answered at once too (section 18.10.3).
        kind = BLOCKING[kind] if expected else kind
    granted = seeker.lock(wanted, kind)
    check(granted == expected, f"{cell}: {granted}, not {expected}")
    holder.unlock(nfs4.WHOLE)
    if expected:
        again = seeker.lock(wanted, kind)
        check(again is None, f"{cell}: {again} after the unlock")
    seeker.unlock(nfs4.WHOLE)


BLOCKING = {SHARED: nfs4.READW_LT, EXCLUSIVE: nfs4.WRITEW_LT}


class Model:
    """Which kind of lock each owner holds on each of some bytes."""

    BYTES = 24

    def __init__(self, owners):
        self.held = {owner: [None] * self.BYTES for owner in owners}

    def set(self, owner, area, kind):
        offset, length = area
        self.held[owner][offset : offset + length] = [kind] * length

    def pieces(self, owner):
        """What an owner holds: the longest ranges of one kind."""
        at = 0
        for kind, run in itertools.groupby(self.held[owner]):
            length = len(list(run))
            if kind is not None:
                yield kind, (at, length)
            at += length

    def conflicts(self, seeker, area, wanted):
        """All that may be named as in the way."""
        return {
            (kind, piece, owner.shown(seeker))
            for owner in self.held
            if owner is not seeker
            for kind, piece in self.pieces(owner)
            if overlap(piece, area) and EXCLUSIVE in (kind, wanted)
        }


@case(secs=60)
def ranges_split_merge_and_change_as_a_model():
    """Random locks, upgrades, downgrades and unlocks in the middle, each compared with a model."""
    seed = int(os.environ.get("SPILLWAY_LOCKS_SEED", random.randrange(1 << 32)))
    choose = random.Random(seed)
    with Server(scratch_dir("export"), *VERSIONS) as server:
        bed = Bed(server, "file")
        owners = [*bed.clients, bed.description, bed.process]
        model = Model(owners)
        denials = 0
        for turn in range(2000):
            owner, kind = choose.choice(owners), choose.choice((SHARED, SHARED, EXCLUSIVE, None))
            offset = choose.randrange(Model.BYTES)
            area = (offset, choose.randrange(1, min(9, Model.BYTES - offset + 1)))
            where = f"seed {seed}, turn {turn}: {type(owner).__name__} {kind} {area}"
            if kind is None:
                owner.unlock(area)
                model.set(owner, area, None)
                continue
            possible = model.conflicts(owner, area, kind)
            for found in (owner.test(area, kind), owner.lock(area, kind)):
                check((found in possible) if possible else found is None, f"{where}: {found}")
            if possible:
                denials += 1
            else:
                model.set(owner, area, kind)
        check(denials > 100, f"seed {seed}: only {denials} conflicts")
        bed.close()


def locks_in_time(owner, area, release, kind=EXCLUSIVE):
    """Checks that a local owner waits for a range until `release` is called, and then has it."""
    check(owner.test(area, kind) is not None, "nothing is in the way")
    waiter = threading.Thread(target=owner.await_lock, args=(area, kind), daemon=True)
    waiter.start()
    await_waiter()
    release()
    waiter.join(PATIENCE_SECS)
    check(not waiter.is_alive(), "it still waits")


def await_waiter():
    """Waits until a lock is waited for, which /proc/locks shows by an arrow."""
    deadline = time.monotonic() + PATIENCE_SECS
    while "->" not in pathlib.Path("/proc/locks").read_text(encoding="ascii"):
        check(time.monotonic() < deadline, "no lock is waited for")
        time.sleep(0.01)


@case
def a_local_program_waits_for_a_client():
    """F_OFD_SETLKW and F_SETLKW end when a client unlocks, downgrades or closes the file."""
    with Server(scratch_dir("export"), *VERSIONS) as server:
        bed = Bed(server, "file")
        holder = bed.clients[0]
        for local in (bed.description, bed.process):
            check(holder.lock((0, 30), EXCLUSIVE) is None, "it is not free")
            locks_in_time(local, (12, 3), lambda: holder.unlock((10, 10)))
            found = holder.test(nfs4.WHOLE, SHARED)
            check(found == (EXCLUSIVE, (12, 3), (0, b"")), str(found))
            local.unlock(nfs4.WHOLE)
            locks_in_time(local, (25, 9), lambda: holder.lock((20, 10), SHARED), SHARED)
            local.unlock(nfs4.WHOLE)
            holder.unlock(nfs4.WHOLE)
        bed.clients[2].lock((0, 30), SHARED)
        close = (bed.handle, bed.clients[2].stateid)
        locks_in_time(bed.description, (0, 1), lambda: bed.two.close_file(*close))
        bed.description.unlock(nfs4.WHOLE)
        bed.close()


@case
def a_client_repeats_a_request_that_a_local_lock_denied():
    """It gets the lock when the local program has unlocked, and is not reserved a place."""
    with Server(scratch_dir("export"), *VERSIONS) as server:
        bed = Bed(server, "file")
        client, other = bed.clients[0], bed.clients[2]
        bed.description.lock((0, 10), EXCLUSIVE)
        expected = (EXCLUSIVE, (0, 10), (0, b""))
        check(client.lock((5, 1), nfs4.WRITEW_LT) == expected, "a blocking request")
        bed.description.unlock((5, 5))
        check(bed.process.lock((5, 1), EXCLUSIVE) is None, "a local program is reserved nothing")
        bed.process.unlock(nfs4.WHOLE)
        check(client.lock((5, 1), nfs4.WRITEW_LT) is None, "it is free")
        check(other.test((5, 1), SHARED) == (EXCLUSIVE, (5, 1), client.shown(other)), "LOCKT")
        bed.close()


@case(secs=60)
def a_local_program_may_lock_while_the_server_is_down():
    """A reclaim then fails with RECLAIM_CONFLICT; what was not taken is reclaimed, and held."""
    with Server(scratch_dir("export"), *VERSIONS) as server:
        bed = Bed(server, "file")
        first, second = bed.clients[:2]
        check(first.lock((0, 10), EXCLUSIVE) is None, "the first range")
        check(second.lock((20, 10), EXCLUSIVE) is None, "the second range")
        # The kernel ends the server's locks with its process, so one that waits gets its range.
        locks_in_time(bed.description, (5, 1), server.kill)
        server.start()
        other = nfs4.Client(server.port, b"other")
        other.reclaim_complete()
        nfs4.refused(nfs4.GRACE, other.test_lock, bed.handle, (50, 1), b"c", SHARED)
        one = nfs4.Client(server.port, b"one")
        stateid = one.open(bed.handle, reclaim=True)
        reclaim = {"reclaim": True, "owner": b"a"}
        nfs4.refused(nfs4.RECLAIM_CONFLICT, one.lock, bed.handle, stateid, (0, 10), **reclaim)
        one.lock(bed.handle, stateid, (20, 10), reclaim=True, owner=b"b")
        found = bed.process.lock((25, 1), SHARED)
        check(found == (EXCLUSIVE, (20, 10), None), f"a reclaimed lock: {found}")
        bed.description.unlock(nfs4.WHOLE)
        held = one.lock(bed.handle, stateid, (0, 10), **reclaim)
        check(bed.description.test((5, 1), SHARED) is not None, "a reclaimed lock")
        one.unlock(bed.handle, held)
        nfs4.refused(nfs4.GRACE, one.lock, bed.handle, stateid, (40, 1), owner=b"c")
        two = nfs4.Client(server.port, b"two")
        for client in (one, two):
            client.reclaim_complete()
        stateid = other.open(bed.handle)
        other.lock(bed.handle, stateid, (0, 10), owner=b"a")
        nfs4.refused(nfs4.DENIED, other.lock, bed.handle, stateid, (29, 1), owner=b"b")
        bed.close()


if __name__ == "__main__":
    main(__file__)
