"""The lines of the comparison: each puts one load on one server and says how long it took.

A load returns `Done`: how many units of work, in how many seconds. The rate of a write counts the
whole client process, because the client's COMMIT comes when it closes the file.
"""

import dataclasses
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time

from rig import EXPORT, MIB, cached_bytes, drop_caches, run_ok

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests/system"))
import nfs3  # noqa: E402  the client of the system tests

MISALIGNED_BYTES = 47008
RANDOM_CLIENTS, METADATA_CLIENTS = 4, 2
# Ganesha answers errors at about 20,000 quick creates.
NAMES_PER_CLIENT = 5000
ENTRIES = 100_000
FIO_SECS_MAX = 600


@dataclasses.dataclass
class Done:
    """Work done by a load: `units` of `unit` in `secs`; what fio says about latency, if it ran."""

    unit: str
    units: float
    secs: float
    detail: dict


@dataclasses.dataclass
class Line:
    """A row of the table. `phase` groups rows that share a freshly started server."""

    name: str
    phase: str
    load: object
    prepare: object = None


def fio(server, name, *flags, jobs=1, durable=False):
    """One fio run of `jobs` connections at depth 1, which is all that fio's nfs engine can do."""
    command = [
        "fio", f"--name={name}", "--ioengine=nfs", f"--nfs_url={server.url()}", "--iodepth=1",
        f"--numjobs={jobs}", "--group_reporting", "--output-format=json", *flags,
    ]  # fmt: skip
    started = time.monotonic()
    ran = subprocess.run(command, text=True, capture_output=True, timeout=FIO_SECS_MAX, check=False)
    process_secs = time.monotonic() - started
    if ran.returncode != 0:
        raise RuntimeError(f"fio: {(ran.stderr + ran.stdout[:300]).strip()}")
    job = json.loads(ran.stdout[ran.stdout.index("{") :])["jobs"][0]
    side = job["write"] if job["write"]["io_bytes"] else job["read"]
    # fio is content, with status 0, where the engine could not even open the file.
    if side["io_bytes"] == 0:
        raise RuntimeError(f"fio moved nothing: {ran.stderr.strip()}")
    latency = side["clat_ns"].get("percentile", {})
    detail = {
        "fio_mib_per_sec": round(side["bw_bytes"] / MIB, 1),
        "process_secs": round(process_secs, 3),
        "p50_us": latency.get("50.000000", 0) / 1000,
        "p99_us": latency.get("99.000000", 0) / 1000,
        "p999_us": latency.get("99.900000", 0) / 1000,
    }
    secs = process_secs if durable else side["runtime"] / 1000
    return side, secs, detail


class Loads:
    """The loads of one round: `size_bytes` per data file, names that no earlier round has used."""

    def __init__(self, size_bytes, round_number):
        self.size_bytes = size_bytes
        self.round = round_number

    def data_file(self, block_bytes):
        return f"data-{self.round}-{block_bytes}"

    def path(self, server, block_bytes):
        return server.directory / self.data_file(block_bytes)

    def write(self, server, block_bytes):
        side, secs, detail = fio(
            server, "w", "--rw=write", f"--bs={block_bytes}", f"--size={self.blocks(block_bytes)}",
            f"--filename={self.data_file(block_bytes)}", durable=True,
        )  # fmt: skip
        detail["cached_mib"] = cached_bytes([self.path(server, block_bytes)]) // MIB
        return Done("MiB", side["io_bytes"] / MIB, secs, detail)

    def blocks(self, block_bytes):
        return self.size_bytes // block_bytes * block_bytes

    def read(self, server, block_bytes):
        side, secs, detail = fio(
            server, "r", "--rw=read", f"--bs={block_bytes}", f"--size={self.blocks(block_bytes)}",
            f"--filename={self.data_file(MIB)}",
        )  # fmt: skip
        detail["cached_mib"] = cached_bytes([self.path(server, MIB)]) // MIB
        return Done("MiB", side["io_bytes"] / MIB, secs, detail)

    def random_read(self, server):
        per_client = min(self.size_bytes // 16, 64 * MIB)
        side, secs, detail = fio(
            server, "r", "--rw=randread", "--bs=4k", f"--size={self.size_bytes}",
            f"--io_size={per_client}", f"--filename={self.data_file(MIB)}", jobs=RANDOM_CLIENTS,
        )  # fmt: skip
        detail["cached_mib"] = cached_bytes([self.path(server, MIB)]) // MIB
        return Done("op", side["total_ios"], secs, detail)

    def cold(self, _server):
        drop_caches()

    def hot(self, server):
        """A local reader brings the file in, so that both servers start from the same cache."""
        run_ok("dd", f"if={self.path(server, MIB)}", "of=/dev/null", "bs=1M")

    def list_entries(self, server):
        started = time.monotonic()
        shown = run_ok("nfs-ls", server.url("entries")).count("\n")
        if shown != ENTRIES:
            raise RuntimeError(f"{server.name} listed {shown} of {ENTRIES} entries")
        return Done("list", 1, time.monotonic() - started, {})

    def metadata(self, server, operation):
        """`METADATA_CLIENTS` processes, each with a connection, a directory, one call at once."""
        context = multiprocessing.get_context("fork")
        together, results = context.Barrier(METADATA_CLIENTS + 1), context.Queue()
        clients = [
            context.Process(
                target=metadata_client,
                args=(server, operation, f"names-{self.round}-{index}", together, results),
            )
            for index in range(METADATA_CLIENTS)
        ]
        for client in clients:
            client.start()
        together.wait(60)
        started = time.monotonic()
        errors = [error for error in (results.get(timeout=300) for _ in clients) if error]
        secs = time.monotonic() - started
        for client in clients:
            client.join()
        if errors:
            raise RuntimeError(f"{operation} on {server.name}: {errors[0]}")
        return Done("op", NAMES_PER_CLIENT * METADATA_CLIENTS, secs, {})

    def make_name_directories(self, server):
        """Before the server starts: Ganesha serves stale names if it is changed behind its back."""
        for index in range(METADATA_CLIENTS):
            made = server.directory / f"names-{self.round}-{index}"
            made.mkdir()

    def remove_data(self, server):
        for block_bytes in (MIB, MISALIGNED_BYTES):
            self.path(server, block_bytes).unlink(missing_ok=True)


def metadata_client(server, operation, directory_name, together, results):
    """The body of one client process; puts None or its error into `results`."""
    error = None
    try:
        client = nfs3.Client("127.0.0.1", server.port, EXPORT, server.mount_port)
        directory = client.lookup(client.root, directory_name.encode())
        call = {"create": client.create, "stat": client.lookup, "remove": client.remove}[operation]
        names = [b"name-%05d" % serial for serial in range(NAMES_PER_CLIENT)]
        together.wait(60)
        for name in names:
            call(directory, name)
    except (OSError, nfs3.NfsError) as failure:
        error = str(failure)
        together.abort()
    results.put(error)


def make_entries(directory):
    """The directory of 100,000 names that both servers list."""
    entries = directory / "entries"
    entries.mkdir()
    for serial in range(ENTRIES):
        os.close(os.open(entries / f"entry-{serial:06}", os.O_CREAT | os.O_WRONLY, 0o644))


def lines(loads):
    """All rows, in the order in which they run."""
    misaligned = MISALIGNED_BYTES
    return [
        Line("write 1 MiB", "data", lambda s: loads.write(s, MIB), loads.cold),
        Line("write 47,008 B", "data", lambda s: loads.write(s, misaligned), loads.cold),
        Line("read 1 MiB cold", "data", lambda s: loads.read(s, MIB), loads.cold),
        Line("read 1 MiB again", "data", lambda s: loads.read(s, MIB)),
        Line("read 1 MiB hot", "data", lambda s: loads.read(s, MIB), loads.hot),
        Line("read 47,008 B cold", "data", lambda s: loads.read(s, misaligned), loads.cold),
        Line("read 47,008 B hot", "data", lambda s: loads.read(s, misaligned), loads.hot),
        Line("random read 4 KiB, 4 clients", "data", loads.random_read, loads.cold),
        Line("list 100,000 cold", "names", loads.list_entries, loads.cold),
        Line("list 100,000 warm", "names", loads.list_entries),
        Line("create, 2 clients", "names", lambda s: loads.metadata(s, "create")),
        Line("stat, 2 clients", "names", lambda s: loads.metadata(s, "stat")),
        Line("remove, 2 clients", "names", lambda s: loads.metadata(s, "remove")),
    ]
