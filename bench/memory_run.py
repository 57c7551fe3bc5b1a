"""The memory run: many clients stream much data in and out of a server that has little memory.

What it shows takes time to show: whether the page cache fills up, and whether the rate falls when
it has. So there is no median here but a series, one sample a second, in each mode. Memory is looked
at more often, and the most of each second kept: a bound broken between two samples is broken too.
"""

import pathlib
import statistics
import threading
import time

import fio
import loads
import rig
from mode_lines import MODES
from records import Records
from rig import GIB, MIB

CLIENTS = 16
SAMPLE_SECS, LOOK_SECS = 1.0, 0.1
# What the server may occupy by its default `--memory`, of which the window is a part.
BUDGET_BYTES = 256 * MIB
BOUND_MODES = ("dontcache", "direct")
# What attributes and COMMITs cause at most.
IDLE_MIB_PER_SEC = 1
# A rate that ends below this part of what it began with sags.
SAG_RATIO = 0.9


def run(options, work, facts):
    """Writes and reads in each mode; prints and records the series and what it comes to."""
    facts = {**facts, "clients": CLIENTS, "memory_max_bytes": options.memory_run_max}
    with rig.xfs_on_loop(options.dir, options.memory_run_size + 2 * GIB) as directory:
        records = Records(options.results, "memory-run", facts)
        for mode in MODES:
            one_mode(options, pathlib.Path(work), directory, mode, records)
    print_summary([record for record in records.all if record["kind"] == "summary"])
    print(f"recorded in {records.path}")


def one_mode(options, work, directory, mode, records):
    """Each phase on a server of its own, so that neither inherits the other's memory."""
    job_bytes = options.memory_run_size // CLIENTS
    for file in directory.glob("stream.*"):
        file.unlink()
    for phase in ("write", "read"):
        phase_work = work / f"{mode}-{phase}"
        phase_work.mkdir()
        group = rig.MemoryGroup(options.memory_run_max)
        server = rig.SpillwayInMode(
            mode, mode, directory, options.port, phase_work, options, group
        )
        with rig.started(server):
            rig.drop_caches()
            sampler = Sampler(server)
            with sampler:
                done = fio.run(
                    "stream", *loads.nfs_flags(server), f"--rw={phase}", "--bs=1M",
                    f"--size={job_bytes}", "--filename_format=stream.$jobnum", jobs=CLIENTS,
                )  # fmt: skip
            counters = server.counters()
        for sample in sampler.samples:
            records.add({"kind": "second", "mode": mode, "phase": phase, **sample})
        summary = summarized(sampler.samples, done, phase)
        records.add(
            {"kind": "summary", "mode": mode, "phase": phase, **summary, "counters": counters}
        )
        print(series(mode, phase, sampler.samples), flush=True)


class Sampler:
    """Looks at a server for as long as it is entered."""

    def __init__(self, server):
        self.server = server
        self.samples = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_failure):
        self._ended.set()
        self._thread.join()

    def _run(self):
        started = last = time.monotonic()
        moved, most = loopback_bytes(), self._memory()
        while not self._ended.wait(LOOK_SECS):
            memory = self._memory()
            most = {name: max(most[name], memory[name]) for name in memory}
            now = time.monotonic()
            if now - last < SAMPLE_SECS:
                continue
            moved_now = loopback_bytes()
            self.samples.append({
                "at_secs": round(now - started, 2),
                "mib_per_sec": round((moved_now - moved) / (now - last) / MIB, 1),
                **{f"{name}_mib": round(count / MIB, 1) for name, count in most.items()},
            })  # fmt: skip
            last, moved, most = now, moved_now, memory

    def _memory(self):
        """Bytes; what the server holds is the page cache it caused and its RSS, at one moment."""
        cache = self.server.memory_group.page_cache(self.server.name)
        rss = self.server.resident_bytes()
        return {**cache, "rss": rss, "held": cache["cache"] + rss}


def loopback_bytes():
    """All that went through this network since it was made; only clients and server are in it."""
    with open("/proc/net/dev", encoding="ascii") as file:
        for line in file:
            name, _, counts = line.partition(":")
            if name.strip() == "lo":
                return int(counts.split()[0])
    raise RuntimeError("there is no loopback interface")


def summarized(samples, done, phase):
    """The series in a few figures."""
    rates = flowing([sample["mib_per_sec"] for sample in samples])
    secs = done.job_secs if phase == "write" else done.io_secs
    return {
        "mib_per_sec": round(done.side["io_bytes"] / MIB / secs, 1),
        # What the clients waited for after their last WRITE: write-back that was left to COMMIT.
        "commit_secs": round(done.job_secs - done.io_secs, 2) if phase == "write" else None,
        "lowest_mib_per_sec": min(rates, default=None),
        "last_to_first": last_to_first(rates),
        "held_mib_max": max((sample["held_mib"] for sample in samples), default=None),
        "dirty_mib_max": max((sample["dirty_mib"] for sample in samples), default=None),
    }


def flowing(rates):
    """The seconds in which data flowed, and those between them in which it should have.

    Without the first and the last, which the start and the end of the clients cut off.
    """
    busy = [index for index, rate in enumerate(rates) if rate >= IDLE_MIB_PER_SEC]
    return rates[busy[0] + 1 : busy[-1]] if busy else []


def last_to_first(rates):
    """The rate of the last quarter of the seconds by the first; None if they are too few."""
    quarter = len(rates) // 4
    if quarter == 0:
        return None
    return round(statistics.mean(rates[-quarter:]) / statistics.mean(rates[:quarter]), 3)


def series(mode, phase, samples):
    rates = " ".join(f"{sample['mib_per_sec']:.0f}" for sample in samples)
    held = " ".join(f"{sample['held_mib']:.0f}" for sample in samples)
    return f"{mode} {phase}\n    MiB/s {rates}\n    page cache + RSS, MiB {held}"


def print_summary(summaries):
    print(f"\n{'':18}{'MiB/s':>8}{'lowest':>8}{'last/first':>12}{'held, MiB':>11}{'dirty':>8}"
          f"{'COMMIT, s':>11}")  # fmt: skip
    for one in summaries:
        cells = [
            _cell(one["mib_per_sec"], 8, 0), _cell(one["lowest_mib_per_sec"], 8, 0),
            _cell(one["last_to_first"], 12, 2), _cell(one["held_mib_max"], 11, 0),
            _cell(one["dirty_mib_max"], 8, 0), _cell(one["commit_secs"], 11, 2),
        ]  # fmt: skip
        print(f"{one['mode'] + ' ' + one['phase']:18}{''.join(cells)}  {verdict(one)}")


def _cell(value, width, digits):
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def verdict(summary):
    """What the targets say: flat memory and a steady rate, where the mode promises it."""
    words = []
    if summary["mode"] in BOUND_MODES and summary["held_mib_max"] is not None:
        within = summary["held_mib_max"] * MIB <= BUDGET_BYTES
        words.append(f"{'within' if within else 'over'} {BUDGET_BYTES // MIB} MiB")
    if summary["last_to_first"] is not None:
        words.append("sags" if summary["last_to_first"] < SAG_RATIO else "steady")
    return ", ".join(words)
