"""Who changes files: local programs, clients of version 3, `spillway` commands, and the guest.

Each changer has kinds of changes, as methods that change the file and its model and return a
description.
"""

import mmap
import os
import struct
import tempfile
import time

import harness
import nfs3
from files import MIB, MODES, PAGE_BYTES, content

JUKEBOX = 10008
SETATTR, LINK = 2, 15
# The server offers it; the client in Python does not ask.
WIRE_BYTES_MAX = MIB
# A recall of a delegation whose holder does not answer ends after 90 seconds.
JUKEBOX_SECS_MAX = 120
# A local program that changes names or attributes of a delegated file does not wait for the holder.
RECALL_SECS = 1.0
SEED_BITS = 40


class Changer:
    """What all changers have of the worker that uses them."""

    def __init__(self, worker):
        self.test, self.dice, self.look = worker.test, worker.dice, worker.look
        self.ask = worker.guest.ask

    def change(self, file):
        """Makes one change; returns its kind and a description."""
        without = self.test.options.without
        kinds = [kind for kind in self.kinds if f"{self.name}-{kind}" not in without]
        kind = self.dice.choice(kinds)
        # Linux opens a file that it knows by its filehandle, which is good as long as the file is
        # open anywhere: a name that is replaced meanwhile can still be the old file.
        if file.is_noisy and kind in ("replace", "mv"):
            kind = self.kinds[0]
        if kind in ("replace", "mv"):
            self.release(file)
        return f"{self.name}-{kind}", getattr(self, kind)(file)

    def release(self, file):
        """Closes what the guest has open of a file."""
        if file.held is not None:
            self.ask("release", path=file.held)
            file.held = None

    def seed(self):
        return self.dice.getrandbits(SEED_BITS)


class Local(Changer):
    """Programs of the server's machine."""

    name = "local"
    kinds = (
        "write", "write", "append", "truncate", "store", "direct", "link", "replace", "chmod"
    )  # fmt: skip

    def change(self, file):
        kind, what = super().change(file)
        if kind in ("local-link", "local-replace", "local-chmod"):
            time.sleep(RECALL_SECS)
        elif file.is_noisy:
            os.utime(file.local)
        return kind, what

    def _write(self, file, at, data, flags=0):
        opened = os.open(file.local, os.O_WRONLY | flags)
        try:
            done = os.write(opened, data) if flags & os.O_APPEND else os.pwrite(opened, data, at)
        finally:
            os.close(opened)
        harness.check(done == len(data), f"{done} of {len(data)} bytes written")

    def _filled(self, file, span, flags=0):
        (at, count), seed = span, self.seed()
        data = content(seed, count)
        self._write(file, at, data, flags)
        file.put(at, data)
        return f"{count} at {at}, seed {seed}"

    def write(self, file):
        return self._filled(file, file.any_span(self.dice))

    def append(self, file):
        return self._filled(file, file.any_appendix(self.dice), os.O_APPEND)

    def direct(self, file):
        (at, count), seed = file.any_span(self.dice), self.seed()
        at, count = at & ~(PAGE_BYTES - 1), max(count & ~(PAGE_BYTES - 1), PAGE_BYTES)
        data = content(seed, count)
        with mmap.mmap(-1, count) as aligned:
            aligned.write(data)
            self._write(file, at, aligned, os.O_DIRECT)
        file.put(at, data)
        return f"{count} at {at}, seed {seed}"

    def truncate(self, file):
        length = self.dice.randrange(file.bytes_max)
        os.truncate(file.local, length)
        file.cut(length)
        return f"to {length}"

    def store(self, file):
        (at, count), seed = file.any_span(self.dice), self.seed()
        count = min(count, len(file.data) - at)
        if count <= 0:
            return self.append(file)
        data = content(seed, count)
        with open(file.local, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
            mapped[at : at + count] = data
            mapped.flush()
        file.put(at, data)
        return f"{count} at {at}, seed {seed}"

    def link(self, file):
        other = file.local.with_name(file.new_link())
        os.link(file.local, other)
        time.sleep(RECALL_SECS)
        self.look(file, other.name)
        os.unlink(other)
        return "and unlink"

    def replace(self, file):
        data = content(self.seed(), file.any_replacement(self.dice))
        other = file.local.with_name(file.new)
        other.write_bytes(data)
        os.rename(other, file.local)
        file.become(data)
        os.chmod(file.local, file.mode)
        return f"{len(data)}"

    def chmod(self, file):
        file.mode = self.dice.choice(MODES)
        os.chmod(file.local, file.mode)
        return oct(file.mode)


class Nfs3(Changer):
    """Clients of version 3 that keep nothing."""

    name = "nfs3"
    kinds = ("write", "write", "write", "append", "truncate", "link", "replace")

    def __init__(self, worker):
        super().__init__(worker)
        server, modes = self.test.server, self.test.options.modes
        self.clients = [
            nfs3.Client("127.0.0.1", server.port, f"/{mode}", server.mount_port) for mode in modes
        ]
        self.client = self.clients[0]

    def change(self, file):
        place = self.dice.randrange(len(self.clients))
        self.client = self.clients[place]
        kind, what = super().change(file)
        return kind, f"over {self.test.options.modes[place]} {what}"

    def _call(self, procedure, arguments):
        return self._patiently(self.client._call, procedure, arguments)

    def _patiently(self, function, *arguments):
        deadline = time.monotonic() + JUKEBOX_SECS_MAX
        while True:
            try:
                return function(*arguments)
            except nfs3.NfsError as error:
                if error.status != JUKEBOX or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def _handle(self, name):
        return self._patiently(self.client.lookup, self.client.root, name.encode())

    def _entry(self, name):
        return nfs3.opaque(self.client.root) + nfs3.opaque(name.encode())

    def _write(self, handle, at, data, stable):
        while data:
            piece = data[:WIRE_BYTES_MAX]
            done = self._patiently(self.client.write, handle, at, piece, stable)[0]
            at, data = at + done, data[done:]

    def _filled(self, file, span):
        (at, count), seed = span, self.seed()
        stable = self.dice.choice((nfs3.UNSTABLE, nfs3.FILE_SYNC))
        data = content(seed, count)
        self._write(self._handle(file.name), at, data, stable)
        file.put(at, data)
        return f"{count} at {at}, stable {stable}, seed {seed}"

    def write(self, file):
        return self._filled(file, file.any_span(self.dice))

    def append(self, file):
        return self._filled(file, file.any_appendix(self.dice))

    def truncate(self, file):
        length = self.dice.randrange(file.bytes_max)
        # sattr3: only the size is set; no guard.
        attributes = struct.pack(">IIIIQIII", 0, 0, 0, 1, length, 0, 0, 0)
        self._call(SETATTR, nfs3.opaque(self._handle(file.name)) + attributes)
        file.cut(length)
        return f"to {length}"

    def link(self, file):
        other = file.new_link()
        self._call(LINK, nfs3.opaque(self._handle(file.name)) + self._entry(other))
        self.look(file, other)
        self._patiently(self.client.remove, self.client.root, other.encode())
        return "and unlink"

    def replace(self, file):
        data = content(self.seed(), file.any_replacement(self.dice))
        handle = self._patiently(self.client.create, self.client.root, file.new.encode())
        self._write(handle, 0, data, nfs3.UNSTABLE)
        self._call(nfs3.RENAME, self._entry(file.new) + self._entry(file.name))
        file.become(data)
        return f"{len(data)}"


class Commands(Changer):
    """`spillway` commands, which are processes and connections of their own."""

    name = "command"
    kinds = ("cp", "mv", "chmod")

    def change(self, file):
        mode = self.dice.choice(self.test.options.modes)
        self.url = f"nfs://127.0.0.1:{self.test.server.port}/{mode}/{file.name}"
        kind, what = super().change(file)
        return kind, f"over {mode} {what}"

    def _run(self, command, *words):
        connection = f"mountport={self.test.server.port}"
        harness.run_ok(self.test.server.binary, command, "-o", connection, *words)

    def _copy(self, file, url):
        data = content(self.seed(), self.dice.randrange(min(file.bytes_max, MIB)))
        with tempfile.NamedTemporaryFile(dir=self.test.scratch) as source:
            os.chmod(source.name, file.mode)
            source.write(data)
            source.flush()
            self._run("cp", source.name, url)
        return data

    def cp(self, file):
        file.data = bytearray(self._copy(file, self.url))
        return f"{len(file.data)}"

    def mv(self, file):
        data = self._copy(file, self.url + ".new")
        self._run("mv", self.url + ".new", self.url)
        file.become(data, os.stat(file.local).st_mode & 0o7777)
        return f"{len(data)}"

    def chmod(self, file):
        file.mode = self.dice.choice(MODES)
        self._run("chmod", f"{file.mode:o}", self.url)
        return oct(file.mode)


class InGuest(Changer):
    """Programs of the guest, through one of its mounts."""

    name = "guest"
    kinds = ("data", "data", "data", "data", "replace", "link", "chmod")

    def change(self, file):
        # Linux takes changes by others for its own if the file is open there for reading when it is
        # opened for writing: neither by `held` nor by readers beside the changes.
        self.release(file)
        self.mount = self.dice.choice(self.test.quiet_mounts if file.is_noisy else self.test.mounts)
        kind, what = super().change(file)
        return kind, f"through {self.mount} {what}"

    def _path(self, name):
        return self.mount.path(name)

    def data(self, file):
        changes = [self._step(file) for _ in range(self.dice.choice((1, 1, 2, 4)))]
        sync = self.dice.random() < 0.3
        self.ask("change", path=self._path(file.name), changes=changes, sync=sync)
        self.test.tally.count(f"guest writes through {self.mount}")
        return f"{changes}, fsync {sync}"

    def _step(self, file):
        way = self.dice.choice(("write", "write", "append", "truncate", "store", "direct"))
        (at, count), seed = file.any_span(self.dice), self.seed()
        if way == "truncate":
            file.cut(at)
            return {"way": way, "at": at}
        if way == "append":
            at, count = file.any_appendix(self.dice)
        elif way == "store" and at + count > len(file.data):
            # A mapping reaches to the end of the file.
            way = "write"
        file.put(at, content(seed, count))
        return {"way": way, "at": at, "count": count, "seed": seed}

    def replace(self, file):
        seed, count = self.seed(), file.any_replacement(self.dice)
        path, other = self._path(file.name), self._path(file.new)
        self.ask("replace", path=path, other=other, seed=seed, count=count)
        file.become(content(seed, count))
        return f"{count}"

    def link(self, file):
        other = file.new_link()
        self.ask("link", path=self._path(file.name), other=self._path(other))
        self.look(file, other)
        self.ask("remove", path=self._path(other))
        return "and unlink"

    def chmod(self, file):
        file.mode = self.dice.choice(MODES)
        self.ask("chmod", path=self._path(file.name), mode=file.mode)
        return oct(file.mode)
