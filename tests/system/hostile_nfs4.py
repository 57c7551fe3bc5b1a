#!/usr/bin/env python3
"""Hostile clients of NFS version 4 do not take the server from a client that behaves.

The bounds are those of `hostile.py`. The client that behaves opens, locks, writes, reads, unlocks and
closes a file, so it needs state while others take all that they can have.
"""

import contextlib
import os
import random
import struct
import time

import nfs3
import nfs4
from harness import EXPORT, MIB, case, check, main
from hostile import (
    ADMITTED, ANSWER_SECS_MAX, BLOCK_BYTES, CASE_SECS_MAX, FILE_BYTES, GOOD, SECS, STRANGER,
    GoodClient, Senders, grows, take_processors, under,
)  # fmt: skip

SLOTS = OPERATIONS = 64
OWNER_BYTES = 1024
# Small enough to be reached in seconds.
SETTINGS = """nfs_versions = ["3", "4.1", "4.2"]
max_clients = 512
max_sessions = 512
max_opens = 4096
max_locks = 8192"""
CLIENTS_MAX = 65_536
# As long as it takes to reach the bound of an address, and as long again.
INTRODUCTIONS_SECS = max(SECS, 6)
# Each call takes its time here: as long as a hundredth of them is more than one.
ALL_SECS = max(SECS, 6)
# TYPE, SIZE, FILEID, MODE and OWNER.
ATTRIBUTES = struct.pack(">III", 2, 1 << 1 | 1 << 4 | 1 << 20, 1 << 1 | 1 << 4)
READ_BYPASS = b"\xff" * 16
# Bytes that no other attack locks.
FAR = (1 << 62, 1)


class GoodClient4(GoodClient):
    """The same over version 4.1."""

    def step(self):
        if self.client is None or self.calls % 40 == 0:
            self.timed("connecting", self.connect)
        self.calls += 1
        client, file = self.client, self.file
        offset = self.calls * BLOCK_BYTES % FILE_BYTES
        data = struct.pack(">Q", self.calls) * (BLOCK_BYTES // 8)
        stateid = self.timed("OPEN", lambda: client.open(file))
        held = self.timed("LOCK", lambda: client.lock(file, stateid, (offset, BLOCK_BYTES)))
        self.timed("WRITE", lambda: client.write(file, stateid, offset, data))
        found = self.timed("READ", lambda: client.read(file, stateid, offset, BLOCK_BYTES))
        check(found == data, f"wrong bytes at {offset}")
        self.timed("LOCKU", lambda: client.unlock(file, held, (offset, BLOCK_BYTES)))
        self.timed("CLOSE", lambda: client.close_file(file, stateid))

    def connect(self):
        if self.client is not None:
            self.client.close()
        self.client = nfs4.Client(self.port, b"good", ANSWER_SECS_MAX, source=GOOD)
        self.client.reclaim_complete()
        self.file = handle_of(self.port, b"good")


def handle_of(port, name):
    """The handle of a file of the export; those of both versions are the same."""
    with contextlib.closing(nfs3.Client(GOOD, port, EXPORT)) as client:
        return client.lookup(client.root, name)


def attacker(port, owner, **options):
    """A client of the attackers' address with the right to open and lock."""
    client = nfs4.Client(port, owner, source=ADMITTED, **options)
    client.reclaim_complete()
    return client


def refusable(call, *arguments, **options):
    """What the call returns; None where it fails."""
    try:
        return call(*arguments, **options)
    except (nfs4.Nfs4Error, OSError):
        return None


@grows(nfs4_opens=10, nfs4_locks=10)
def state_to_the_bounds(port):
    """Clients, sessions, opens and locks, with the longest names, until there are no more."""
    big, number, clients = handle_of(port, b"big"), 0, []
    while True:
        made = refusable(attacker, port, os.urandom(OWNER_BYTES))
        if made is not None:
            clients.append(made)
        for client in clients:
            operations = []
            for _ in range(5):
                number += 1
                operations += client.open_and_lock(big, number, OWNER_BYTES)
            refusable(client.call, *operations)


@grows(calls_in_flight=1)
def compounds_unread(port):
    """COMPOUNDs of many GETATTRs, READDIRs and READs of which no reply is read."""
    big, many = handle_of(port, b"big"), handle_of(port, b"many")
    at_big, at_many = (nfs4.PUTFH, nfs3.opaque(big)), (nfs4.PUTFH, nfs3.opaque(many))
    listing = struct.pack(">Q8sII", 0, bytes(8), MIB, MIB) + ATTRIBUTES
    bodies = [
        [at_big, *[(nfs4.GETATTR, ATTRIBUTES)] * (OPERATIONS - 2)],
        [at_many, *[(nfs4.READDIR, listing)] * (OPERATIONS - 2)],
        [at_big, *[(nfs4.READ, READ_BYPASS + struct.pack(">QI", 0, MIB))] * (OPERATIONS - 2)],
    ]
    clients = [None] * 100
    while True:
        for number, client in enumerate(clients):
            if client is None:
                owner = b"unread %d" % number
                client = refusable(attacker, port, owner, slots=SLOTS, operations=OPERATIONS)
                if client is None:
                    continue
                clients[number] = client
                client.rest = all_slots(client, bodies[number % len(bodies)])
                client.rpc.socket.setblocking(False)
            try:
                client.rest = client.rest[client.rpc.socket.send(client.rest) :]
            except BlockingIOError:
                pass
            except OSError:
                client.close()
                clients[number] = None
        time.sleep(0.005)


def all_slots(client, operations):
    """A call on each slot but the first, which was used."""
    return b"".join(
        client.rpc.record(
            nfs4.COMPOUND, nfs4.encoded([client.sequenced(1, slot, SLOTS - 1), *operations])
        )
        for slot in range(1, SLOTS)
    )


@grows(replays=10)
def retries(port):
    """Calls that are sent again without an end, and others under their numbers."""
    client = None
    while client is None:
        # New owners of the same address push out a client that has no session yet.
        client = refusable(attacker, port, b"retries", slots=SLOTS)
    at_big = (nfs4.PUTFH, nfs3.opaque(handle_of(port, b"big")))

    def write(byte):
        data = nfs3.opaque(bytes([byte]) * 4096)
        return nfs4.WRITE, bytes(16) + struct.pack(">QI", 0, 2) + data

    def make():
        sequence = random.choice([1, 1, 1, 2, random.randrange(1 << 32)])
        slot = random.choice([1, 1, 2, 3, random.randrange(SLOTS), random.randrange(1 << 32)])
        cache_this = slot % 2 == 1
        first = client.sequenced(sequence, slot, SLOTS - 1, cache_this)
        operations = [first, at_big, write(random.choice([0, 0, 0, 1]))]
        return client.rpc.record(nfs4.COMPOUND, nfs4.encoded(operations)) * 4

    Senders(port, ADMITTED, 50, make).run()


@grows(nfs4_clients=10)
def introductions(port):
    introduce(port, ADMITTED)


@grows(denied_calls=100)
def introductions_of_strangers(port):
    introduce(port, STRANGER)


def introduce(port, source):
    """EXCHANGE_ID by an owner that was never seen before, again and again."""
    rpc = nfs4.Rpc4(GOOD, port, nfs4.PROGRAM, source=source)

    def make():
        owner = nfs3.opaque(os.urandom(OWNER_BYTES))
        call = (nfs4.EXCHANGE_ID, os.urandom(8) + owner + struct.pack(">III", 0, 0, 0))
        return rpc.record(nfs4.COMPOUND, nfs4.encoded([call])) * 4

    Senders(port, source, 50, make).run()


@grows(nfs4_waiting_locks=1)
def silent_backchannels(port):
    """Clients that wait for a lock again and again, and answer no notice of it."""
    big, waiters, turn = handle_of(port, b"big"), {}, 0
    while True:
        holder = refusable(attacker, port, b"holder")
        held = holder and refusable(lock_far, holder, big)
        while held:
            turn += 1
            waiter = refusable(silent_waiter, port, big, b"waiter %d" % (turn % 64))
            if waiter is not None:
                waiters[turn % 64] = waiter
            held = refusable(holder.unlock, big, held, FAR)
            held = held and refusable(holder.lock_again, big, held, FAR, nfs4.WRITE_LT)
        # Other attackers have taken its place.
        time.sleep(0.01)


def lock_far(client, handle):
    return client.lock(handle, client.open(handle), FAR)


def silent_waiter(port, handle, owner):
    """A client that waits for the lock as eight owners, and does not read its backchannel."""
    waiter = attacker(port, owner, back=True)
    waiter.silent = waiter.rpc
    waiter.rpc = nfs4.Rpc4(GOOD, port, nfs4.PROGRAM, source=ADMITTED)
    opened = waiter.open(handle)
    for number in range(8):
        refusable(waiter.lock, handle, opened, FAR, owner=b"%d" % number, kind=nfs4.WRITEW_LT)
    return waiter


@case(secs=CASE_SECS_MAX)
def state_up_to_its_bounds():
    under(state_to_the_bounds, settings=SETTINGS, client=GoodClient4)


@case(secs=CASE_SECS_MAX)
def compounds_whose_replies_are_not_read():
    under(compounds_unread, settings=SETTINGS, client=GoodClient4)


@case(secs=CASE_SECS_MAX)
def calls_that_are_sent_again_on_their_slots():
    under(retries, settings=SETTINGS, client=GoodClient4)


@case(secs=CASE_SECS_MAX)
def introductions_of_new_owners():
    # A quarter of so many clients may have one address: a search through them shows.
    settings = SETTINGS.replace("max_clients = 512", f"max_clients = {CLIENTS_MAX}")
    under(
        introductions, introductions_of_strangers, settings=settings, client=GoodClient4,
        secs=INTRODUCTIONS_SECS,
    )  # fmt: skip


@case(secs=CASE_SECS_MAX)
def callbacks_that_are_not_answered():
    under(silent_backchannels, settings=SETTINGS, client=GoodClient4)


@case(secs=CASE_SECS_MAX)
def all_at_once():
    under(
        state_to_the_bounds, compounds_unread, retries, introductions, introductions_of_strangers,
        silent_backchannels, settings=SETTINGS, client=GoodClient4, secs=ALL_SECS,
    )  # fmt: skip


if __name__ == "__main__":
    take_processors()
    main(__file__)
