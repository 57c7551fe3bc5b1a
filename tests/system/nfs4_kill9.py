#!/usr/bin/env python3
"""Opens and byte-range locks of version 4 survive SIGKILL of the server, and no other gets between.

The server dies while clients open, lock and write. In the grace period after the restart those
clients take back what they held; all others wait.
"""

import threading
import time

import nfs4
from harness import EXPORT, Server, case, check, main, scratch_dir

VERSIONS = ("--nfs-versions", "4.1,4.2")
HOLDERS = 4
FILES = 4
PATIENCE_SECS = 20


class Holder:
    """A client that opens and locks files, and remembers each that the server has granted."""

    def __init__(self, server, number):
        self.server, self.name = server, b"holder-%d" % number
        self.held, self.failure = {}, None
        self.locked = threading.Event()
        self.client = nfs4.Client(server.port, self.name)
        self.client.reclaim_complete()

    def work(self):
        """Opens files, locks a range of each in each turn, and writes, until the server is gone."""
        try:
            directory = self.client.export(EXPORT)
            for number in range(FILES):
                name = self.name + b"-%d" % number
                handle, stateid = self.client.create(directory, name)
                self.held[handle] = (stateid, [])
            turn = 0
            while True:
                for handle, (stateid, ranges) in self.held.items():
                    wanted = (10 * turn, 5)
                    owner = b"owner-%d" % turn
                    self.client.lock(handle, stateid, wanted, owner=owner)
                    ranges.append((wanted, owner))
                    self.client.write(handle, stateid, 100 * turn, b"x" * 100)
                turn += 1
                if turn == 3:
                    self.locked.set()
        except OSError:
            pass  # the kill that this is about
        except nfs4.Nfs4Error as error:
            self.failure = error
        finally:
            self.client.close()

    def reclaim(self):
        """Takes all opens and locks back, without RECLAIM_COMPLETE."""
        self.client = nfs4.Client(self.server.port, self.name)
        for handle, (_, ranges) in self.held.items():
            stateid = self.client.open(handle, reclaim=True)
            self.held[handle] = (stateid, ranges)
            for wanted, owner in ranges:
                self.client.lock(handle, stateid, wanted, reclaim=True, owner=owner)


def kill_under_load(server):
    """Holders with what they held when the server died."""
    holders = [Holder(server, number) for number in range(HOLDERS)]
    threads = [threading.Thread(target=holder.work) for holder in holders]
    for thread in threads:
        thread.start()
    for holder in holders:
        check(holder.locked.wait(PATIENCE_SECS), f"no locks in {PATIENCE_SECS} s: {holder.failure}")
    server.kill()
    for holder, thread in zip(holders, threads):
        thread.join()
        check(holder.failure is None, str(holder.failure))
    return holders


def check_all_is_held(other, holders):
    """Each range that was granted before the crash is denied to another client."""
    for holder in holders:
        for handle, (_, ranges) in holder.held.items():
            stateid = other.open(handle)
            for number, (wanted, _) in enumerate(ranges):
                owner = b"other-%d" % number
                nfs4.refused(nfs4.DENIED, other.lock, handle, stateid, wanted, owner=owner)
            behind = (ranges[-1][0][0] + 1000, 1)
            other.lock(handle, stateid, behind, owner=b"behind")


@case(secs=60)
def locks_survive_and_no_other_gets_between():
    """All locks are taken back in grace, which ends with the last client that reclaims."""
    with Server(scratch_dir("export"), *VERSIONS) as server:
        holders = kill_under_load(server)
        server.start()
        check(server.counters()["nfs4_in_grace"] == 1, "there is no grace period")
        other = nfs4.Client(server.port, b"other")
        handle = next(iter(holders[0].held))
        nfs4.refused(nfs4.RECLAIM_BAD, other.open, handle, reclaim=True)
        other.reclaim_complete()
        nfs4.refused(nfs4.GRACE, other.open, handle)
        for holder in holders:
            holder.reclaim()
            nfs4.refused(nfs4.GRACE, other.open, handle)
        for holder in holders:
            nfs4.refused(nfs4.GRACE, other.open, handle)
            holder.client.reclaim_complete()
        # The clock has not ended it: that takes 90 seconds, and this case may take 60.
        check_all_is_held(other, holders)
        nfs4.refused(nfs4.NO_GRACE, holders[0].client.open, handle, reclaim=True)
        check(server.counters()["nfs4_in_grace"] == 0, "the grace period goes on")
        await_line(server, "the grace period of version 4 is over")


@case
def a_second_crash_in_grace_loses_nothing():
    """The server dies again after some have reclaimed: all may reclaim once more."""
    with Server(scratch_dir("export"), *VERSIONS) as server:
        holders = kill_under_load(server)
        server.start()
        holders[0].reclaim()
        holders[0].client.reclaim_complete()
        holders[1].reclaim()
        server.kill()
        server.start()
        other = nfs4.Client(server.port, b"other")
        other.reclaim_complete()
        nfs4.refused(nfs4.GRACE, other.open, next(iter(holders[0].held)))
        for holder in holders:
            holder.reclaim()
            holder.client.reclaim_complete()
        check_all_is_held(other, holders)


@case
def no_grace_without_recorded_clients():
    """A server that no client had state of serves at once, and so does the first that starts."""
    with Server(scratch_dir("export"), *VERSIONS) as server:
        check(server.counters()["nfs4_in_grace"] == 0, "a first start has a grace period")
        nfs4.Client(server.port, b"unfinished").close()
        server.kill()
        server.start()
        check(server.counters()["nfs4_in_grace"] == 0, "a grace period for no client")
        client = nfs4.Client(server.port, b"new")
        client.reclaim_complete()
        handle, stateid = client.create(client.export(EXPORT), b"file")
        client.lock(handle, stateid)


def await_line(server, line):
    """Waits until the log has a line."""
    deadline = time.monotonic() + PATIENCE_SECS
    while line not in server.log_text():
        check(time.monotonic() < deadline, f"no line {line!r} in the log")
        time.sleep(0.05)


if __name__ == "__main__":
    main(__file__)
