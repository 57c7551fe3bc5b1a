#!/usr/bin/env python3
"""Data acknowledged as stable survives SIGKILL, and the restart changes the write verifier.

The page cache survives the death of a process, so this does not test a power failure. It
shows that the server holds no acknowledged stable byte in its own memory only. After SIGTERM,
calls are answered first.
"""

import array
import contextlib
import itertools
import os
import struct
import threading
import time

import nfs3
from harness import EXPORT, MIB, Server, case, check, main, scratch_dir

# Sizes that are aligned, small, misaligned and larger than a page but smaller than a large WRITE.
CHUNK_BYTES = (4096, 100, 47008, MIB, 65536 + 1)

# At each of them about three calls of eight creators are under way.
KILLS = 25

# As many as the buffers of the two sockets take, and so that they take more than a second to read.
READS = 3
# The xid of calls whose replies are not waited for.
NOT_ANSWERED = 1 << 31


def connect(server):
    return nfs3.Client("127.0.0.1", server.port, EXPORT, server.mount_port)


@case
def stable_writes_survive():
    """DATA_SYNC, FILE_SYNC and UNSTABLE with COMMIT; handles from before the kill still work."""
    with Server(scratch_dir("export")) as server:
        client = connect(server)
        files, verifiers = {}, set()
        for stable in (nfs3.UNSTABLE, nfs3.DATA_SYNC, nfs3.FILE_SYNC):
            name = f"stable-{stable}"
            handle, content = client.create(client.root, name.encode()), b""
            for size_bytes in CHUNK_BYTES:
                chunk = os.urandom(size_bytes)
                count, done, verifier = client.write(handle, len(content), chunk, stable)
                check(count == size_bytes, f"{count} of {size_bytes} bytes written")
                check(done >= stable, f"asked for stable_how {stable}, got {done}")
                content += chunk
                verifiers.add(verifier)
            if stable == nfs3.UNSTABLE:
                verifiers.add(client.commit(handle))
            files[name] = (handle, content)
        check(len(verifiers) == 1, f"{len(verifiers)} write verifiers without a restart")
        server.kill()
        for name, (_, content) in files.items():
            check((server.directory / name).read_bytes() == content, f"{name} changed on disk")
        server.start()
        client = connect(server)
        for name, (handle, content) in files.items():
            check(client.getattr(handle) == len(content), f"{name}: handle or size lost")
            _, _, verifier = client.write(handle, 0, content[:100], nfs3.UNSTABLE)
            check(verifier not in verifiers, "the write verifier did not change")
        client.close()


@case
def killed_under_load():
    """Four times, the server dies at some moment of a stream; every committed byte is there."""
    source = pattern(256 * MIB)
    with Server(scratch_dir("export")) as server:
        for round_number in range(4):
            promised, committed = [], threading.Event()
            name = f"stream-{round_number}"
            writer = threading.Thread(
                target=stream, args=(server, name, source, promised, committed)
            )
            writer.start()
            check(committed.wait(100), "nothing was committed in 100 s")
            time.sleep(0.2 + 0.137 * round_number)
            ended = not writer.is_alive()
            server.kill()
            writer.join()
            check(not ended, "the stream was over before the kill")
            content = (server.directory / name).read_bytes()
            size_bytes = promised[-1]
            check(len(content) >= size_bytes, f"round {round_number}: committed size lost")
            same = content[:size_bytes] == source[:size_bytes]
            check(same, f"round {round_number}: committed data lost")
            server.start()


@case
def exclusive_creates_are_repeated():
    """CREATE EXCLUSIVE sent again over a killed server succeeds, and so does the SETATTR behind it."""
    with Server(scratch_dir("export")) as server:
        stop, failures, repeated = threading.Event(), [], []
        creators = [
            threading.Thread(target=create_files, args=(caller, number, failures, repeated))
            for number, caller in enumerate([Repeating(server, stop) for _ in range(8)])
        ]
        for creator in creators:
            creator.start()
        try:
            for turn in range(KILLS):
                time.sleep(0.03 + 0.0137 * turn % 0.1)
                # A call may be repeated over several kills where the disk is slow.
                deadline = time.monotonic() + 20
                while turn and len(repeated) <= turn / 2 and time.monotonic() < deadline:
                    time.sleep(0.01)
                server.kill()
                server.start()
        finally:
            stop.set()
            for creator in creators:
                creator.join()
        check(not failures, f"{len(failures)} of {len(repeated)} repeated calls: {failures[:3]}")
        check(len(repeated) > KILLS / 2, f"only {len(repeated)} calls were repeated")


@case
def slow_client_gets_its_last_replies_at_a_stop():
    """Replies in the server's send buffer take several seconds; the client goes on sending calls."""
    with Server(scratch_dir("export")) as server:
        client = connect(server)
        handle = client.create(client.root, b"data")
        for offset in range(0, READS * MIB, MIB):
            client.write(handle, offset, bytes(MIB), nfs3.UNSTABLE)
        client.create(client.root, b"removed")
        rpc, calls = client.rpc, []
        for offset in range(0, READS * MIB, MIB):
            calls.append((nfs3.READ, nfs3.opaque(handle) + struct.pack(">QI", offset, MIB)))
        calls.append((nfs3.REMOVE, nfs3.opaque(client.root) + nfs3.opaque(b"removed")))
        for xid, (procedure, arguments) in enumerate(calls):
            rpc.socket.sendall(rpc.record(procedure, arguments, xid))
        time.sleep(1)
        received = bytearray()
        reader = threading.Thread(target=read_slowly, args=(client, received))
        reader.start()
        server.stop()
        reader.join()
        answered = set()
        while received:
            (mark,) = struct.unpack_from(">I", received)
            bytes_in_record = mark & 0x7FFFFFFF
            check(len(received) >= 4 + bytes_in_record, f"a part of a reply, behind {answered}")
            answered.add(struct.unpack_from(">I", received, 4)[0])
            del received[: 4 + bytes_in_record]
        missing = set(range(len(calls))) - answered
        check(not missing, f"no replies to {missing} of {len(calls)} calls")


def read_slowly(client, received):
    """Reads 640 KiB/s until the server ends the stream, and sends calls meanwhile."""
    getattr_call = client.rpc.record(nfs3.GETATTR, nfs3.opaque(client.root), NOT_ANSWERED)
    try:
        while data := client.rpc.socket.recv(64 << 10):
            received += data
            time.sleep(0.1)
            # Refused once all has arrived in this socket, from which it is still read.
            with contextlib.suppress(OSError):
                client.rpc.socket.sendall(getattr_call)
    except OSError:
        pass  # a reset: what is missing is reported


def create_files(caller, number, failures, repeated):
    """Creates files exclusively, one after the other, and notes the calls that were repeated."""
    try:
        for turn in itertools.count():
            place = nfs3.opaque(caller.root) + nfs3.opaque(b"x%d-%d" % (number, turn))
            reply = caller.call(nfs3.CREATE, place + struct.pack(">I", 2) + os.urandom(8))
            results = [("CREATE", reply)]
            if reply[:4] == bytes(4):
                handle, _ = nfs3.take_opaque(reply, 8)
                # sattr3: mode 0644, both times of the server; no guard.
                new = struct.pack(">IIIIIIII", 1, 0o644, 0, 0, 0, 1, 1, 0)
                results.append(("SETATTR", caller.call(2, nfs3.opaque(handle) + new)))
                found = caller.call(nfs3.LOOKUP, place)
                results.append(("LOOKUP", found))
                if found[:4] == bytes(4) and nfs3.take_opaque(found, 4)[0] != handle:
                    failures.append(("CREATE", "the handle of another file"))
            failures += [(name, reply[:4]) for name, reply in results if reply[:4] != bytes(4)]
            repeated += [turn] * caller.repeated
            caller.repeated = 0
    except Stopped:
        pass
    except nfs3.NfsError as error:
        failures.append(("MNT", error.status))
    finally:
        caller.close()


class Stopped(Exception):
    """The case is over."""


class Repeating:
    """Sends a call again, with its xid, over a new connection until it is answered."""

    def __init__(self, server, stop):
        self.server, self.stop, self.client, self.repeated = server, stop, None, 0
        self.client = connect(server)
        self.root = self.client.root

    def call(self, procedure, arguments):
        xid = int.from_bytes(os.urandom(4), "big")
        for turn in itertools.count():
            if self.stop.is_set():
                raise Stopped
            try:
                self.client = self.client or connect(self.server)
                self.client.rpc.xids = iter([xid])
                reply = self.client.rpc.call(procedure, arguments)
                self.repeated += turn > 0
                return reply
            except OSError:
                self.close()
                time.sleep(0.002)

    def close(self):
        if self.client:
            self.client.close()
        self.client = None


def pattern(size_bytes):
    """Bytes of which each 8 contain their offset."""
    return array.array("Q", range(size_bytes // 8)).tobytes()


def stream(server, name, source, promised, committed):
    """Sends misaligned UNSTABLE WRITEs, COMMITs each tenth, notes the size promised so far.

    What reaches the end of `source` begins again, so that a fast disk is not done before the kill.
    """
    client = connect(server)
    try:
        handle = client.create(client.root, name.encode())
        for index, at in enumerate(itertools.cycle(range(0, len(source), 47008))):
            chunk = source[at : at + 47008]
            client.write(handle, at, chunk, nfs3.UNSTABLE)
            if index % 10 == 9:
                client.commit(handle)
                promised.append(max([at + len(chunk), *promised[-1:]]))
                committed.set()
    except OSError:
        pass  # the kill that this is about; ConnectionError is one of its kinds
    finally:
        client.close()


if __name__ == "__main__":
    main(__file__)
