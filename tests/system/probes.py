#!/usr/bin/env python3
"""The static probes: their notes in the program, and bpftrace attached to a running server."""

import contextlib
import re
import subprocess
import tempfile
import threading

import nfs3
from harness import (
    EXPORT, MIB, Server, SkipInCiToo, case, check, loop_file_system, main, need, run, run_ok,
    scratch_dir,
)  # fmt: skip

PROVIDER = "spillway"
# All probes, with the number of their arguments.
PROBES = {
    "read_start": 4, "read_vector_dio": 6, "read_direct": 4, "read_vector": 4, "read_splice": 4,
    "read_ahead": 4, "read_io_done": 4, "read_done": 6, "write_start": 4, "write_split": 4,
    "write_vector": 4, "write_direct": 4, "write_io_done": 4, "write_done": 6, "commit_start": 4,
    "commit_done": 6, "readdir_enter": 4, "readdir_exit": 6, "call_start": 4, "call_done": 6,
}  # fmt: skip
COUNT = 47008
PRINT_SECS_MAX = 40
NOTE = re.compile(r"Provider: (\S+)\s+Name: (\S+)\s+Location: (\S+),.*Semaphore: (\S+)\s+Arguments: (.*)")
# Its arguments give the range that the client asked for. Each line begins with its time, because bpftrace
# orders only those of one processor.
GOLDEN = r"""
usdt:%(program)s:spillway:read_vector_dio {
    printf("%%llu read_vector_dio: xid=0x%%08x fh_hash=0x%%08x offset=%%lld len=%%lld start=%%lld+%%lld end=%%lld-%%lld\n",
        nsecs, arg0, arg1, arg2 + arg3, arg4 - arg5 - arg2 - arg3, arg2, arg3, arg4, arg5);
}
usdt:%(program)s:spillway:read_start { printf("%%llu read_start: offset=%%lld len=%%lld\n", nsecs, arg2, arg3); }
usdt:%(program)s:spillway:read_done { printf("%%llu read_done: status=%%lld count=%%lld\n", nsecs, arg4, arg5); }
usdt:%(program)s:spillway:write_start { printf("%%llu write_start: offset=%%lld len=%%lld\n", nsecs, arg2, arg3); }
usdt:%(program)s:spillway:write_done { printf("%%llu write_done: status=%%lld count=%%lld\n", nsecs, arg4, arg5); }
usdt:%(program)s:spillway:commit_done { printf("%%llu commit_done: status=%%lld\n", nsecs, arg4); }
BEGIN { printf("attached\n"); }
"""

CALLS = r"""
usdt:%(program)s:spillway:call_done { printf("%%s status=%%lld\n", str(arg2, arg3), arg4); }
BEGIN { printf("attached\n"); }
"""


@case
def notes_name_all_probes_and_their_arguments():
    need("readelf")
    notes = run_ok("readelf", "--notes", "--wide", Server.binary).stdout
    found = {}
    for provider, name, location, semaphore, arguments in NOTE.findall(notes):
        check(provider == PROVIDER, f"provider {provider}")
        check(int(location, 16) and int(semaphore, 16), f"{name} has no place: {notes}")
        found[name] = len(arguments.split())
    check(found == PROBES, f"probes and their arguments: {found}")


@contextlib.contextmanager
def attached(server, script=GOLDEN):
    """bpftrace attached to a server; yields its lines until it is stopped."""
    script %= {"program": Server.binary}
    words = ["bpftrace", "-p", str(server.process.pid), "-B", "line", "-e", script]
    # A file: where the tracing file system is not mounted, it reports that it cannot detach.
    errors = tempfile.TemporaryFile("w+")
    tracer = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        said = []
        for line in tracer.stdout:
            said.append(line)
            if line == "attached\n":
                break
        else:
            tracer.wait()
            errors.seek(0)
            why = ("".join(said) + errors.read()).strip()
            refused = ("not permitted", "Permission denied", "not supported", "not implemented")
            if any(words in why for words in refused):
                raise SkipInCiToo(f"the kernel refuses probes: {why[-200:]}")
            raise AssertionError(f"bpftrace: {why}")
        yield tracer
    finally:
        tracer.kill()
        tracer.wait()
        errors.close()


def lines_until(tracer, last):
    """What bpftrace prints up to a line that ends with `last`, or until it has taken too long."""
    # Killed, not interrupted: after SIGINT it has once not ended for 40 seconds.
    watch = threading.Timer(PRINT_SECS_MAX, tracer.kill)
    watch.start()
    lines = []
    try:
        for line in tracer.stdout:
            lines.append(line.rstrip("\n"))
            if lines[-1].endswith(last):
                break
    finally:
        watch.cancel()
    return [line for line in lines if line]


@case(secs=180)
def bpftrace_prints_the_published_reads():
    need("bpftrace", "mkfs.xfs")
    with loop_file_system("xfs", 320 * MIB) as directory:
        (directory / "file").write_bytes(bytes(range(256)) * 4096)
        modes = ("--read-mode", "direct", "--no-read-ahead")
        with Server(directory, *modes) as server:
            client = nfs3.Client("127.0.0.1", server.port, EXPORT)
            file = client.lookup(client.root, b"file")
            written = client.create(client.root, b"written")
            with attached(server) as tracer:
                # Each call after the last line of the one before: the lines of that one have been printed then.
                lines = []
                for number in range(2):
                    client.read(file, number * COUNT, COUNT)
                    lines += lines_until(tracer, f"read_done: status=0 count={COUNT}")
                client.write(written, 0, b"x" * 5000, nfs3.UNSTABLE)
                lines += lines_until(tracer, "write_done: status=0 count=5000")
                client.commit(written)
                lines += lines_until(tracer, "commit_done: status=0")
            client.close()
    timed = sorted((int(time), line) for time, line in (line.split(maxsplit=1) for line in lines))
    lines = [line for _, line in timed]
    widened = [line for line in lines if line.startswith("read_vector_dio")]
    hashes = {re.search(r"fh_hash=0x([0-9a-f]{8}) ", line).group(1) for line in widened}
    check(len(hashes) == 1 and hashes != {"00000000"}, f"handles: {lines}")
    stripped = [re.sub(r" xid=0x[0-9a-f]{8} fh_hash=0x[0-9a-f]{8}", "", line) for line in lines]
    check(
        stripped
        == [
            "read_start: offset=0 len=47008",
            "read_vector_dio: offset=0 len=47008 start=0+0 end=47104-96",
            "read_done: status=0 count=47008",
            "read_start: offset=47008 len=47008",
            "read_vector_dio: offset=47008 len=47008 start=46592+416 end=94208-192",
            "read_done: status=0 count=47008",
            "write_start: offset=0 len=5000",
            "write_done: status=0 count=5000",
            "commit_done: status=0",
        ],
        f"bpftrace printed {lines}",
    )


@case(secs=180)
def bpftrace_names_the_procedures_of_calls():
    need("bpftrace")
    path = scratch_dir("export")
    (path / "file").write_bytes(b"x")
    with Server(path) as server:
        client = nfs3.Client("127.0.0.1", server.port, EXPORT)
        with attached(server, CALLS) as tracer:
            file = client.lookup(client.root, b"file")
            lines = lines_until(tracer, "LOOKUP status=0")
            client.getattr(file)
            lines += lines_until(tracer, "GETATTR status=0")
            client.read(file, 0, 1)
            lines += lines_until(tracer, "READ status=0")
        client.close()
    check(lines == ["LOOKUP status=0", "GETATTR status=0", "READ status=0"], f"bpftrace printed {lines}")


@case
def bpftrace_lists_the_probes():
    need("bpftrace")
    program = Server.binary
    listed = run("bpftrace", "-l", f"usdt:{program}:*", secs=60)
    names = {line.rsplit(":", 1)[-1] for line in listed.stdout.split()}
    check(set(PROBES) <= names, f"bpftrace lists {listed.stdout} {listed.stderr}")


if __name__ == "__main__":
    main(__file__)
