"""The lines of the comparison: each puts one load on one server and says how long it took.

A load returns `Done`: how many units of work, in how many seconds. The time of a write ends with the
client's processes, because the client's COMMIT comes when they close the file.
"""

import dataclasses
import os
import shutil
import time

import fio
from rig import EXPORT, MIB, cached_bytes, drop_caches, run_ok

MISALIGNED_BYTES = 47008
RANDOM_CLIENTS, NAME_CLIENTS = 4, 2
# All clients' together below 90 % of 20,000 open files, if that is the limit: Ganesha keeps open what
# it creates, starts to close files at 90 %, and at the limit answers CREATE with NFS3ERR_IO.
NAMES_PER_CLIENT = 8000
ENTRIES = 100_000
NAMES_SECS_MAX = 300


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
    # Runs before each measurement, for the same server, unmeasured.
    prepare: object = None


def nfs_flags(server):
    """What makes fio a client of the server. Depth 1 is all that its nfs engine can do."""
    return ["--ioengine=nfs", f"--nfs_url={server.url()}", "--iodepth=1"]


def run_fio(server, name, *flags, jobs=1, durable=False):
    """One fio run of `jobs` connections at depth 1."""
    done = fio.run(name, *nfs_flags(server), *flags, jobs=jobs)
    detail = {
        "fio_mib_per_sec": round(done.side["bw_bytes"] / MIB, 1),
        "process_secs": round(done.process_secs, 3),
        **done.latencies_us(),
    }
    return done.side, done.job_secs if durable else done.io_secs, detail


class Loads:
    """The loads of one round: `size_bytes` per data file, `names` the program of the name lines."""

    def __init__(self, size_bytes, round_number, names):
        self.size_bytes = size_bytes
        self.round = round_number
        self.names = names

    def data_file(self, block_bytes):
        return f"data-{self.round}-{block_bytes}"

    def path(self, server, block_bytes):
        return server.directory / self.data_file(block_bytes)

    def write(self, server, block_bytes):
        side, secs, detail = run_fio(
            server, "w", "--rw=write", f"--bs={block_bytes}", f"--size={self.blocks(block_bytes)}",
            f"--filename={self.data_file(block_bytes)}", durable=True,
        )  # fmt: skip
        detail["cached_mib"] = cached_bytes([self.path(server, block_bytes)]) // MIB
        return Done("MiB", side["io_bytes"] / MIB, secs, detail)

    def blocks(self, block_bytes):
        return self.size_bytes // block_bytes * block_bytes

    def read(self, server, block_bytes):
        side, secs, detail = run_fio(
            server, "r", "--rw=read", f"--bs={block_bytes}", f"--size={self.blocks(block_bytes)}",
            f"--filename={self.data_file(MIB)}",
        )  # fmt: skip
        detail["cached_mib"] = cached_bytes([self.path(server, MIB)]) // MIB
        return Done("MiB", side["io_bytes"] / MIB, secs, detail)

    def random_read(self, server, per_client_max):
        per_client = min(self.size_bytes // 16, per_client_max)
        side, secs, detail = run_fio(
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

    def read_once(self, server):
        """Both servers' caches as one cold read leaves them: the other one's turn emptied them."""
        drop_caches()
        self.read(server, MIB)

    def list_entries(self, server):
        started = time.monotonic()
        shown = run_ok("nfs-ls", server.url("entries")).count("\n")
        if shown != ENTRIES:
            raise RuntimeError(f"{server.name} listed {shown} of {ENTRIES} entries")
        return Done("list", 1, time.monotonic() - started, {})

    def name_calls(self, server, operation):
        """`NAME_CLIENTS` connections, a directory each, one CREATE, LOOKUP or REMOVE in flight."""
        started = time.monotonic()
        shown = run_ok(
            self.names, f"127.0.0.1:{server.port}", EXPORT, operation,
            "--mount-port", server.mount_port,
            "--clients", NAME_CLIENTS, "--count", NAMES_PER_CLIENT, timeout=NAMES_SECS_MAX,
        )  # fmt: skip
        process_secs = time.monotonic() - started
        said = dict(word.split("=") for word in shown.split()[1:])
        calls = NAME_CLIENTS * NAMES_PER_CLIENT
        detail = {
            "process_secs": round(process_secs, 3),
            "client_cpu_us_per_call": float(said["client_cpu_us_per_call"]),
        }
        return Done("op", calls, calls / float(said["calls_per_sec"]), detail)

    def remove_names(self, server):
        """What a failed round left. Only while the server is stopped: Ganesha would not notice."""
        for client in range(NAME_CLIENTS):
            shutil.rmtree(server.directory / f"names-{client}", ignore_errors=True)

    def remove_data(self, server):
        for block_bytes in (MIB, MISALIGNED_BYTES):
            self.path(server, block_bytes).unlink(missing_ok=True)


def make_entries(directory):
    """The directory of 100,000 names that each server lists."""
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
        Line("read 1 MiB again", "data", lambda s: loads.read(s, MIB), loads.read_once),
        Line("read 1 MiB hot", "data", lambda s: loads.read(s, MIB), loads.hot),
        Line("read 47,008 B cold", "data", lambda s: loads.read(s, misaligned), loads.cold),
        Line("read 47,008 B hot", "data", lambda s: loads.read(s, misaligned), loads.hot),
        # Hot it goes so much faster that the cold line's amount would be over in half a second.
        Line("random read 4 KiB cold, 4 clients", "data",
             lambda s: loads.random_read(s, 64 * MIB), loads.cold),
        Line("random read 4 KiB hot, 4 clients", "data",
             lambda s: loads.random_read(s, 256 * MIB), loads.hot),
        Line("list 100,000 cold", "names", loads.list_entries, loads.cold),
        Line("list 100,000 warm", "names", loads.list_entries, loads.list_entries),
        Line("create, 2 clients", "names", lambda s: loads.name_calls(s, "create")),
        Line("lookup, 2 clients", "names", lambda s: loads.name_calls(s, "lookup")),
        Line("remove, 2 clients", "names", lambda s: loads.name_calls(s, "remove")),
    ]
