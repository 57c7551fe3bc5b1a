#!/usr/bin/env python3
"""The commands that see and change a running server, and its metrics, while clients work.

Each is held against what the client did. `tests/system/run` gives this subject a network of its
own, and with it a table of sockets: the servers that the commands find are those of a case.
"""

import collections
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import nfs3
import nfs4
from harness import (
    EXPORT, Server, Skip, case, check, free_port, main, need, run, run_ok, scratch_dir,
)  # fmt: skip
from nfs3 import opaque
from unprivileged import reachable_place

# Debian's packages, for another interpreter than Debian's.
sys.path.append("/usr/lib/python3/dist-packages")

FILE_BYTES = 1 << 20
READ_BYTES = 64 << 10
NOENT = 2
STATUSES = {0: "OK", NOENT: "NFS4ERR_NOENT"}
OPERATIONS = {
    getattr(nfs4, name): name
    for name in (
        "CLOSE", "CREATE_SESSION", "EXCHANGE_ID", "GETFH", "LOCK", "LOOKUP", "OPEN", "PUTFH", "PUTROOTFH",
        "READ", "RECLAIM_COMPLETE", "SEQUENCE", "WRITE",
    )
}  # fmt: skip
PATIENCE_SECS = 20
# A view is drawn within a second or so, on a machine that does other things too.
VIEW_SECS_MAX = 60


def operate(*words, secs=60):
    """Runs a command of the program; returns the CompletedProcess."""
    return run(Server.binary, *words, secs=secs)


def operate_ok(*words):
    return run_ok(Server.binary, *words).stdout


def answer(*words):
    """What a command prints as JSON."""
    return json.loads(operate_ok(*words, "--json"))


def make_file(path, name="file"):
    file = pathlib.Path(path) / name
    file.write_bytes(os.urandom(FILE_BYTES))
    file.chmod(0o666)
    return file


class Load:
    """A client that reads a file from its beginning to its end, again and again."""

    def __init__(self, server):
        self.client = nfs3.Client("127.0.0.1", server.port, EXPORT, server.mount_port)
        self.file = self.client.lookup(self.client.root, b"file")
        self.reads = 0
        self.failure = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._read)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()
        self.client.close()
        check(self.failure is None, f"a READ failed: {self.failure}")

    def _read(self):
        try:
            while not self.stopping.is_set():
                for offset in range(0, FILE_BYTES, READ_BYTES):
                    self.client.read(self.file, offset, READ_BYTES)
                    self.reads += 1
                time.sleep(0.001)
        except (OSError, nfs3.NfsError) as failure:
            self.failure = failure


def choices(interval):
    """The READs of the export in an interval, by the counter of their choice."""
    counters = interval["exports"][0]["counters"]
    names = ("reads_cached_by_mode", "reads_dontcache", "reads_direct")
    return {name: counters[name] for name in names if name in counters}


def reads_of_a_second():
    """The choices in a second that has begun after this call; a slow disk may pass one without."""
    deadline = time.monotonic() + VIEW_SECS_MAX
    while True:
        done = operate_ok("nfsstat", "1", "2", "--json").splitlines()
        reads = choices(json.loads(done[1]))
        if reads or time.monotonic() > deadline:
            return reads


@case
def a_mode_changes_under_load_from_one_second_to_the_next():
    path = scratch_dir("export")
    make_file(path)
    flags = ("--read-mode", "buffered", "--no-read-ahead")
    with Server(path, *flags) as server, Load(server) as load:
        for mode, name in (
            ("dontcache", "reads_dontcache"),
            ("direct", "reads_direct"),
            ("buffered", "reads_cached_by_mode"),
        ):
            operate_ok("set", EXPORT, f"io_cache_read={mode}")
            reads = reads_of_a_second()
            if mode == "direct" and set(reads) == {"reads_dontcache"}:
                continue  # A file system without direct I/O.
            check(set(reads) == {name} and reads[name] > 0, f"{mode}: {reads}")
        check(load.reads > 0, "the load has read nothing")


@case
def one_server_is_found_and_of_two_one_is_chosen():
    none = operate("status")
    check(none.returncode == 1, f"without a server: {none.returncode}")
    sentence = "spillway: no server runs on this machine, or it has no control socket\n"
    check(none.stderr == sentence, none.stderr)
    with Server(scratch_dir("one")) as first:
        check(answer("status")["pid"] == first.process.pid, "the only server is found")
        with Server(scratch_dir("two")) as second:
            several = operate("status")
            check(several.returncode == 1, "two servers and no choice")
            for server in (first, second):
                check(f"(process {server.process.pid})" in several.stderr, several.stderr)
                for which in (server.state, server.process.pid):
                    found = answer("status", "--socket", which)["pid"]
                    check(found == server.process.pid, f"{which}: {found}")
        check(answer("status")["pid"] == first.process.pid, "one is left")


@case
def another_user_is_refused():
    if os.geteuid() != 0:
        raise Skip("not root")
    with reachable_place() as (place, directory), Server(directory, state=place / "state") as server:
        os.chmod(server.state, 0o755)
        program = shutil.copy(Server.binary, place)
        expected = "accepts commands only from root and its own user"
        for words in [], ["--socket", str(server.process.pid)]:
            done = run(program, "status", *words, user=65534)
            check(done.returncode == 1 and expected in done.stderr, done.stderr)


# A process of another user that listens as a server does, and has the status of a real one. It takes
# its user itself, who may have no access to the interpreter.
FALSE_SERVER = """
import contextlib, json, os, socket, sys, time
path, status, kind = sys.argv[1:]
os.setuid(65534)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(0 if kind == "full" else 8)
if kind == "full":
    queued = socket.socket(socket.AF_UNIX)
    queued.connect(path)
print("ready", flush=True)
while kind == "full":
    time.sleep(1)
while True:
    peer, _ = listener.accept()
    request = json.loads(peer.makefile().readline() or "{}")
    done = {"changes": "false", "restart_only": []}
    result = json.loads(status) if request.get("command") == "status" else done
    with peer, contextlib.suppress(OSError):
        peer.sendall(json.dumps({"version": 1, "result": result}).encode() + b"\\n")
"""


@case
def a_false_server_of_another_user_neither_gets_nor_delays_commands_of_root():
    if os.geteuid() != 0:
        raise Skip("not root")
    for kind in "answering", "full":
        with Server(scratch_dir("export")) as server, tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o777)
            pid = server.process.pid
            status = json.dumps(answer("status", "--socket", server.state))
            arguments = [f"{directory}/spillway.sock", status, kind]
            command = [sys.executable, "-c", FALSE_SERVER, *arguments]
            false = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                check(false.stdout.readline() == "ready\n", "the false server does not listen")
                for words in [], ["--socket", pid]:
                    done = operate("reload", *words, secs=PATIENCE_SECS)
                    check(done.stdout == "no export changed\n", f"{kind} {words}: {done}")
            finally:
                false.kill()
                false.communicate()


def parsed(address):
    """The metrics by name and labels, as the client library of Prometheus reads them."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as missing:
        raise Skip("prometheus_client is not installed") from missing
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_SECS) as reply:
        text = reply.read().decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        check(family.documentation and family.type != "unknown", f"{family.name} has no help")
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            check(key not in samples, f"{key} comes twice")
            samples[key] = sample.value
    return samples


def duration_count(samples, operation):
    name = "spillway_operation_duration_seconds_count"
    return value(samples, name, export=EXPORT, program="nfs3", operation=operation)


def parsed_when_timed(address, **counts):
    """The metrics when so many durations are noted. That is done after the reply was sent."""
    deadline = time.monotonic() + PATIENCE_SECS
    while True:
        samples = parsed(address)
        is_timed = all(duration_count(samples, name) >= count for name, count in counts.items())
        if is_timed or time.monotonic() > deadline:
            return samples
        time.sleep(0.05)


def value(samples, name, **labels):
    return samples.get((name, tuple(sorted(labels.items()))), 0)


def phase(samples, name, **labels):
    """How often a part of the work on calls was timed."""
    wanted = {"phase": name, **labels}.items()
    counts = ((dict(found), count) for (metric, found), count in samples.items()
              if metric == "spillway_phase_duration_seconds_count")  # fmt: skip
    return sum(count for found, count in counts if wanted <= found.items())


@case
def metrics_are_exactly_what_the_client_did():
    path = scratch_dir("export")
    make_file(path)
    address = f"127.0.0.1:{free_port()}"
    flags = ("--metrics", address, "--read-mode", "buffered", "--write-mode", "buffered")
    with Server(path, *flags) as server:
        client = nfs3.Client("127.0.0.1", server.port, EXPORT, server.mount_port)
        file = client.lookup(client.root, b"file")
        for number in range(20):
            client.read(file, number * 4096, 4096)
        for number in range(7):
            client.write(file, number * 1000, bytes(1000), nfs3.UNSTABLE)
        client.commit(file)
        for _ in range(3):
            try:
                client.lookup(client.root, b"missing")
            except nfs3.NfsError as error:
                check(error.status == NOENT, f"LOOKUP: {error.status}")
        samples = parsed_when_timed(address, READ=20)
        client.close()

    def operations(operation, status="OK", program="nfs3", export=EXPORT):
        labels = {"operation": operation, "status": status, "program": program, "export": export}
        return value(samples, "spillway_operations_total", **labels)

    def total(name, **labels):
        return value(samples, f"spillway_{name}_total", **labels)

    latency = duration_count(samples, "READ")
    client_calls = total("client_calls", client="127.0.0.1")
    for what, found, expected in (
        ("READ", operations("READ"), 20),
        ("WRITE", operations("WRITE"), 7),
        ("COMMIT", operations("COMMIT"), 1),
        ("LOOKUP", operations("LOOKUP"), 1),
        ("LOOKUP without success", operations("LOOKUP", "NFS3ERR_NOENT"), 3),
        ("MNT", operations("MNT", program="mount3", export=""), 1),
        ("bytes read", total("read_bytes", export=EXPORT), 20 * 4096),
        ("bytes written", total("write_bytes", export=EXPORT), 7000),
        ("bytes by mode",
         total("io_bytes", export=EXPORT, direction="read", mode="page_cache"), 20 * 4096),
        ("reasons",
         total("read_choices", export=EXPORT, source="page_cache", reason="mode"), 20),
        ("times", latency, 20),
        # COMMIT asks for it too.
        ("permissions", phase(samples, "permission"), 28),
        ("inputs and outputs", phase(samples, "io"), 27),
        ("flushes", phase(samples, "sync"), 1),
        ("READs permitted", phase(samples, "permission", export=EXPORT, operation="READ"), 20),
        # A thread that stays with the connection takes the others.
        ("WRITEs that asked for a thread",
         phase(samples, "queue", export=EXPORT, operation="WRITE"),
         7 - total("writes_by_staying_thread")),
        ("flushes by COMMIT", phase(samples, "sync", export=EXPORT, operation="COMMIT"), 1),
        ("LOOKUPs that waited for a thread",
         phase(samples, "queue", export=EXPORT, operation="other"), 4),
        ("calls", total("calls"), client_calls),
        ("failures of the client", total("client_failures", client="127.0.0.1"), 3),
    ):  # fmt: skip
        check(found == expected, f"{what}: {found}, not {expected}")
    sums = sum(count for (name, _), count in samples.items() if name == "spillway_operations_total")
    check(sums == client_calls, f"{sums} operations, and {client_calls} calls")


@case
def a_dropped_client_of_version_4_loses_its_lock_to_another():
    path = scratch_dir("export")
    with Server(path, "--nfs-versions", "3,4.1") as server:
        holder = nfs4.Client(server.port, b"holder")
        holder.reclaim_complete()
        root = holder.export(EXPORT)
        handle, stateid = holder.create(root, b"locked")
        holder.lock(handle, stateid)
        before = answer("status")["nfs4"]
        check(before["clients"] == 1 and before["opens"] == 1, f"before: {before}")
        listed = operate_ok("clients", "--long")
        check("holder" in listed and "active" in listed, listed)
        done = answer("drop-client", "127.0.0.1")
        expected = {"connections": 1, "nfs4_clients": 1, "calls_in_progress": 0}
        check(done == expected, f"{done}")
        other = nfs4.Client(server.port, b"other")
        other.reclaim_complete()
        stateid = other.open(handle)
        other.lock(handle, stateid)
        after = answer("status")["nfs4"]
        check(after["clients"] == 1 and after["opens"] == 1, f"after: {after}")
        other.close()


class Counting(nfs4.Client):
    """A client that counts what it sends."""

    def __init__(self, *arguments):
        self.calls, self.operations = 0, collections.Counter()
        super().__init__(*arguments)

    def _compound(self, operations):
        self.calls += 1
        try:
            done = super()._compound(operations)
        except nfs4.Nfs4Error as error:
            failed = [code for code, _ in operations].index(error.operation)
            self.operations.update((code, 0) for code, _ in operations[:failed])
            self.operations[error.operation, error.status] += 1
            raise
        self.operations.update((code, 0) for code, _ in operations)
        return done


@case
def metrics_of_version_4_are_exactly_what_the_client_did():
    path = scratch_dir("export")
    make_file(path)
    address = f"127.0.0.1:{free_port()}"
    flags = ("--metrics", address, "--nfs-versions", "4.1", "--read-mode", "buffered")
    with Server(path, *flags, "--write-mode", "buffered") as server:
        client = Counting(server.port, b"counted")
        client.reclaim_complete()
        root = client.export(EXPORT)
        handle, stateid = client.create(root, b"new")
        for number in range(5):
            client.write(handle, stateid, number * 100, bytes(100))
        for number in range(20):
            client.read(handle, stateid, number * 10, 10)
        nfs4.refused(NOENT, client.call, (nfs4.PUTFH, opaque(root)), (nfs4.LOOKUP, opaque(b"missing")))
        client.lock(handle, stateid)
        client.close_file(handle, stateid)
        # A reply counts as sent when the kernel has taken it, which the client may notice earlier.
        deadline = time.monotonic() + PATIENCE_SECS
        while (sent := phase(samples := parsed(address), "send")) < client.calls:
            counted = f"{sent} of {client.calls} replies are counted as sent"
            check(time.monotonic() < deadline, f"{counted} after {PATIENCE_SECS} s: {samples}")
        client.close()
    expected = {
        (OPERATIONS[code], STATUSES[status]): count
        for (code, status), count in client.operations.items()
    }
    found = collections.Counter()
    for (name, labels), count in samples.items():
        labels = dict(labels)
        if name == "spillway_operations_total" and count:
            check(labels["program"] == "nfs4", f"{labels}")
            found[labels["operation"], labels["status"]] += count
    check(found == expected, f"{found}, not {expected}")

    def total(name, **labels):
        return value(samples, f"spillway_{name}_total", **labels)

    for what, is_now, is_to_be in (
        ("calls", total("calls"), client.calls),
        ("calls of the client", total("client_calls", client="127.0.0.1"), client.calls),
        ("failures of the client", total("client_failures", client="127.0.0.1"), 1),
        ("bytes read", total("read_bytes", export=EXPORT), 200),
        ("bytes written", total("write_bytes", export=EXPORT), 500),
        ("permissions", phase(samples, "permission"), 25),
        ("inputs and outputs", phase(samples, "io"), 25),
        ("replies sent", phase(samples, "send"), client.calls),
        ("READs sent", phase(samples, "send", export=EXPORT, operation="READ"), 20),
        ("WRITEs permitted", phase(samples, "permission", export=EXPORT, operation="WRITE"), 5),
        ("sent for no export, or none yet", phase(samples, "send", export="", operation="other") > 0, True),
        ("flushes", phase(samples, "sync") >= 5, True),
        ("waits in queues", 5 <= phase(samples, "queue") <= sum(expected.values()), True),
    ):
        check(is_now == is_to_be, f"{what}: {is_now}, not {is_to_be}")


def tmux(*words):
    return run_ok("tmux", "-L", "spillway-test", *words).stdout


@case
def top_fits_80_columns_and_24_rows():
    need("tmux")
    path = scratch_dir("export")
    make_file(path)
    with Server(path) as server, Load(server):
        command = shlex.join([str(Server.binary), "top", "--socket", str(server.state)])
        tmux("new-session", "-d", "-s", "top", "-x", "80", "-y", "24", f"{command}; sleep 300")
        try:
            # An interval without a READ shows a dash.
            phases = r"  ms queue \S+, permission \d+\.\d+, io \d+\.\d+, sync \S+, send \d+\.\d+"
            deadline = time.monotonic() + VIEW_SECS_MAX
            while True:
                view = tmux("capture-pane", "-p", "-t", "top")
                lines = view.rstrip("\n").split("\n")
                found = [line.rstrip() for line in lines if re.fullmatch(phases, line.rstrip())]
                # Of the export, and of the client.
                if "MiB/s" in view and EXPORT in view and "127.0.0.1" in view and len(found) == 2:
                    break
                check(time.monotonic() < deadline, f"no view:\n{view}")
                time.sleep(0.2)
            check(len(lines) <= 24 and max(map(len, lines)) <= 80, view)
            for word in ("spillway ", "calls ", "memory ", "window ", "EXPORT", "CLIENT"):
                check(any(line.startswith(word) for line in lines), f"no {word}:\n{view}")
            tmux("resize-window", "-t", "top", "-x", "60", "-y", "12")
            tmux("send-keys", "-t", "top", "q")
            deadline = time.monotonic() + VIEW_SECS_MAX
            while "EXPORT" in tmux("capture-pane", "-p", "-t", "top"):
                check(time.monotonic() < deadline, "q does not end it")
                time.sleep(0.2)
        finally:
            tmux("kill-server")
        plain = operate_ok("top", "-n", "2", "--socket", server.state)
        check("\x1b" not in plain and plain.count("EXPORT") == 2, plain)
        check(len(re.findall(r"^  ms queue .* send \d", plain, re.MULTILINE)) == 4, plain)


if __name__ == "__main__":
    main(__file__)
