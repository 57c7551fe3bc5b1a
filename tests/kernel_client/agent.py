"""The part of the close-to-open test that runs where the kernel client is.

It takes no decisions: it connects to the test as often as it is asked to and does there what each
line of JSON requests. `agent.py HOST PORT CONNECTIONS`.
"""

import json
import mmap
import os
import random
import socket
import subprocess
import sys
import zlib

PIECE_BYTES = 1 << 20
DIRECT_BYTES = 4096


def content(seed, count):
    """The data of a change, as the other side makes it."""
    return random.Random(seed).randbytes(count)


class Agent:
    """One connection and what was opened over it."""

    def __init__(self):
        self.held = {}
        self.last = b""

    def mount(self, source, at, options):
        os.makedirs(at, exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "nfs", "-o", options, source, at], capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise OSError(done.returncode, done.stderr.strip())
        return {}

    def read(self, path, way):
        """Opens, takes the attributes, and reads to the end: what close-to-open is about."""
        flags = os.O_RDONLY | (os.O_DIRECT if way == "direct" else 0)
        opened = os.open(path, flags)
        try:
            seen = os.fstat(opened)
            if way == "map" and seen.st_size > 0:
                with mmap.mmap(opened, seen.st_size, prot=mmap.PROT_READ) as mapped:
                    self.last = mapped[:]
            else:
                self.last = self._all(opened, way)
        finally:
            os.close(opened)
        return {
            "size": seen.st_size, "links": seen.st_nlink, "mode": seen.st_mode & 0o7777,
            "bytes": len(self.last), "sum": zlib.crc32(self.last), "ino": seen.st_ino,
            "ctime": seen.st_ctime_ns, "mtime": seen.st_mtime_ns,
        }  # fmt: skip

    def _all(self, opened, way):
        pieces = []
        memory = mmap.mmap(-1, PIECE_BYTES) if way == "direct" else None
        while True:
            if memory is None:
                piece = os.read(opened, PIECE_BYTES)
            else:
                piece = memory[: os.readv(opened, [memory])]
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)

    def data(self, begin, end):
        """A part of what was read last, in hexadecimal digits."""
        return {"data": self.last[begin:end].hex()}

    def hold(self, path):
        """Opens a file and leaves it open until `release`."""
        self.release(path)
        self.held[path] = os.open(path, os.O_RDONLY)
        return {}

    def release(self, path):
        opened = self.held.pop(path, None)
        if opened is not None:
            os.close(opened)
        return {}

    def change(self, path, changes, sync):
        """Opens a file, changes it, and closes it."""
        opened = os.open(path, os.O_RDWR)
        try:
            for change in changes:
                self._one(path, opened, **change)
            if sync:
                os.fsync(opened)
        finally:
            os.close(opened)
        return {}

    def _one(self, path, opened, way, at=0, count=0, seed=0):
        if way == "truncate":
            os.ftruncate(opened, at)
        elif way == "store":
            with mmap.mmap(opened, at + count) as mapped:
                mapped[at : at + count] = content(seed, count)
                mapped.flush()
        elif way == "write":
            _write(opened, content(seed, count), at)
        else:
            flag = {"append": os.O_APPEND, "direct": os.O_DIRECT}[way]
            other = os.open(path, os.O_WRONLY | flag)
            try:
                _write(other, content(seed, count), None if way == "append" else at)
            finally:
                os.close(other)

    def replace(self, path, other, seed, count):
        """Writes a new file and renames it over the old one, as editors do."""
        opened = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _write(opened, content(seed, count), 0)
        finally:
            os.close(opened)
        os.rename(other, path)
        return {}

    def link(self, path, other):
        os.link(path, other)
        return {}

    def rename(self, path, other):
        os.rename(path, other)
        return {}

    def remove(self, path):
        os.unlink(path)
        return {}

    def chmod(self, path, mode):
        os.chmod(path, mode)
        return {}

    def noise(self, paths, count, seed):
        """Opens and reads files while others change them. Nothing is judged."""
        dice, errors = random.Random(seed), 0
        for _ in range(count):
            try:
                self.read(dice.choice(paths), "read")
            except OSError:
                errors += 1
        return {"errors": errors}


def _write(opened, data, at):
    data = memoryview(data)
    while data:
        done = os.write(opened, data) if at is None else os.pwrite(opened, data, at)
        data = data[done:]
        at = None if at is None else at + done


def serve(host, port):
    """Answers one connection until the other side closes it."""
    agent = Agent()
    with socket.create_connection((host, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = connection.makefile("rb")
        for line in lines:
            request = json.loads(line)
            try:
                answer = getattr(agent, request.pop("do"))(**request)
            except OSError as error:
                answer = {"error": error.errno, "text": str(error)}
            connection.sendall(json.dumps(answer).encode() + b"\n")


def main():
    host, port, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    children = []
    for _ in range(connections):
        child = os.fork()
        if child == 0:
            serve(host, port)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
