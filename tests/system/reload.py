#!/usr/bin/env python3
"""SIGHUP with good and bad files while a client copies: the copies do not notice.

Each reload is waited for, so that none is merged with the next one.
"""

import contextlib
import filecmp
import os
import pathlib
import signal
import threading
import time

import nfs3
from harness import (
    EXPORT, MIB, Server, Skip, case, check, main, need, need_space, run, run_ok, scratch_dir,
)  # fmt: skip

COPY_BYTES = 128 * MIB
COPIES = 3
RELOAD_SECS_MAX = 60
SECOND_EXPORT = "/second"
# What a file may be wrong about, and the words of the refusal.
BAD = (
    ("colour = 1\n", "unknown key `colour`"),
    ("[[export]\n", "spillway.toml:"),
    ('[[export]]\npath = "/nonexistent"\n', "cannot export /nonexistent"),
)


class ConfiguredServer(Server):
    """A server with a configuration file, which `reload` rewrites."""

    def __init__(self, directory):
        super().__init__(directory)
        self.config = scratch_dir("config") / "spillway.toml"
        self.first = f'[[export]]\npath = "{self.directory}"\nname = "{EXPORT}"\n'
        self.config.write_text(self.first, encoding="utf-8")

    def command(self):
        return [
            self.binary, "serve", "--config", self.config, "--listen", f"127.0.0.1:{self.port}",
            "--state-dir", self.state,
        ]  # fmt: skip

    def reload(self, more, verdict):
        """Appends `more` to the first export, sends SIGHUP, returns the log's line of `verdict`."""
        self.config.write_text(self.first + more, encoding="utf-8")
        seen = len(self.log_text())
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + RELOAD_SECS_MAX
        while True:
            lines = self.log_text()[seen:].splitlines(keepends=True)
            found = [line for line in lines if verdict in line and line.endswith("\n")]
            if found:
                return found[0]
            check(time.monotonic() < deadline, f"not {verdict!r}: {self.last_words()}")
            time.sleep(0.005)


class Copier(threading.Thread):
    """Copies one file up again and again; `spans` holds the reloads that each copy lived through."""

    def __init__(self, server, reloads):
        super().__init__()
        self.server, self.reloads = server, reloads
        self.source = scratch_dir("local") / "source"
        self.source.write_bytes(os.urandom(MIB) * (COPY_BYTES // MIB))
        self.spans, self.failure, self.ending = [], "", threading.Event()

    def run(self):
        while not self.ending.is_set() and not self.failure:
            name, before = f"copy-{len(self.spans)}", len(self.reloads)
            copied = run("nfs-cp", self.source, self.server.url(name))
            during = self.reloads[before:]
            served = self.server.directory / name
            if copied.returncode != 0 or not filecmp.cmp(self.source, served, shallow=False):
                self.failure = f"{name} failed: {copied.stderr.strip()[-300:]}"
            self.spans.append(set(during))
            served.unlink(missing_ok=True)


@contextlib.contextmanager
def copying(server, reloads):
    """Runs a Copier during the block, and fails the case if one of its copies failed."""
    copier = Copier(server, reloads)
    copier.start()
    try:
        yield copier
    finally:
        copier.ending.set()
        copier.join()
    check(not copier.failure, copier.failure)


def mounts(server, export):
    """Whether the server lets this machine mount `export`."""
    try:
        nfs3.Client("127.0.0.1", server.port, export).close()
    except nfs3.NfsError:
        return False
    return True


def one_round(server, second, reloads):
    """A good file adds an export, bad ones change nothing, a good one takes it away again."""
    added = f'[[export]]\npath = "{second}"\nname = "{SECOND_EXPORT}"\n'
    server.reload(added, "reloaded")
    reloads.append("good")
    check(mounts(server, SECOND_EXPORT), "the added export cannot be mounted")
    for text, words in BAD:
        line = server.reload(text, "reload refused")
        reloads.append("bad")
        check(words in line, f"refused without {words!r}: {line}")
        check(mounts(server, SECOND_EXPORT), "a refused file took an export away")
    server.reload("", "reloaded")
    reloads.append("good")
    check(not mounts(server, SECOND_EXPORT), "the removed export can be mounted")


@case
def while_a_client_copies():
    """Whole copies arrive through reloads of both kinds, also on a connection from before them."""
    need("nfs-cp")
    need_space(3 * COPY_BYTES)
    second = scratch_dir("second")
    with ConfiguredServer(scratch_dir("export")) as server:
        client = nfs3.Client("127.0.0.1", server.port, EXPORT)
        reloads = []
        with copying(server, reloads) as copier:
            spanned = 0
            while spanned < COPIES and not copier.failure:
                one_round(server, second, reloads)
                spanned = sum(span == {"good", "bad"} for span in copier.spans)
        handle = client.create(client.root, b"kept-connection")
        client.write(handle, 0, b"through", nfs3.FILE_SYNC)
        check(client.read(handle, 0, 100) == b"through", "the old connection reads something else")
        client.close()


@case
def taken_away_while_a_client_copies():
    """A client of an export that is removed is refused, and another client's copies go on."""
    need("nfs-cp", "nfs-ls")
    need_space(3 * COPY_BYTES)
    second = scratch_dir("second")
    second.chmod(0o777)
    with ConfiguredServer(scratch_dir("export")) as server, copying(server, []):
        added = f'[[export]]\npath = "{second}"\nname = "{SECOND_EXPORT}"\n'
        server.reload(added, "reloaded")
        client = nfs3.Client("127.0.0.1", server.port, SECOND_EXPORT)
        handle = client.create(client.root, b"file")
        client.write(handle, 0, b"before", nfs3.FILE_SYNC)
        server.reload("", "reloaded")
        try:
            client.write(handle, 0, b"after!", nfs3.FILE_SYNC)
            refused = False
        except nfs3.NfsError:
            refused = True
        check(refused, "a WRITE to a removed export succeeded")
        check((second / "file").read_bytes() == b"before", "a removed export's file changed")
        server.reload(added, "reloaded")
        check(client.getattr(handle) == 6, "the handle is lost though the export is back")
        client.close()
        run_ok("nfs-ls", server.url(export=SECOND_EXPORT))


@case
def that_exports_the_state_directory_through_another_mount():
    """A bind mount of a directory above the state directory is exported by no start or reload."""
    if os.geteuid() != 0:
        raise Skip("a mount needs root")
    need("mount", "umount")
    server, view = ConfiguredServer(scratch_dir("export")), scratch_dir("view")
    mounted = run("mount", "--bind", pathlib.Path(server.state).parent, view)
    if mounted.returncode != 0:
        raise Skip(f"mount --bind: {mounted.stderr.strip()}")
    try:
        with server:
            words = f"lies inside the export {SECOND_EXPORT}"
            added = f'[[export]]\npath = "{view}"\nname = "{SECOND_EXPORT}"\n'
            line = server.reload(added, "reload")
            check("reload refused" in line and words in line, f"not refused for it: {line}")
            check(not mounts(server, SECOND_EXPORT), "the state directory can be mounted")
            started = run(*server.command())
            check(words in started.stderr, f"started, or not refused for it: {started.stderr}")
    finally:
        run_ok("umount", view)


if __name__ == "__main__":
    main(__file__)
