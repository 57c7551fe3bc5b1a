#!/usr/bin/env python3
"""The other experiments of `spillway bench`, on tiny input: what they report is held against what
server and kernel have counted, and a slowed one against one that is not.
"""

from bench_rig import (
    READS, ROUNDS_TO_COMPARE, WRITES, Bench, Device, Records, counted, data_bytes, finish, given,
    last_words, near, operations, quick_directory, served_disk, verdicts,
)  # fmt: skip
from harness import MIB, Server, case, check, loop_file_system, main, need, run_ok, scratch_dir
from mount_rig import quick_dir

DELAY_MS = 20
SLOW_NETWORK = ("--net-delay", f"{DELAY_MS}ms")


def grown(server, before, names):
    return counted(server.counters(), names) - counted(before, names)


def check_slower(base, slow, load, figures):
    """`bench compare` reports each of `figures` as slower."""
    found, text = verdicts(base, slow)
    for figure in figures:
        line = found.get((load, figure), "")
        check(line.endswith("slower"), f"{load}, {figure}: {line or text}")


def slowed_by_the_network(experiment, load, figures, *tiny):
    bench, tiny = Bench(), (*tiny, *ROUNDS_TO_COMPARE)
    with quick_directory() as directory:
        base = bench.run(experiment, directory, *tiny)
        slow = bench.run(experiment, directory, *tiny, *SLOW_NETWORK)
    check_slower(base, slow, load, figures)


@case
def threads_counted():
    """The server has counted each call; sweep and fairness record what they varied."""
    bench = Bench()
    tiny = ("--threads", "1,4", "--connections", "1,2", "--seconds", 1, "--rounds", 1,
            "--size", "4MiB")  # fmt: skip
    with served_disk() as (server, mount):
        before = server.counters()
        reading = bench.run("threads", *given(server, mount), *tiny)
        reads = grown(server, before, READS)
        before = server.counters()
        writing = bench.run("threads", *given(server, mount), *tiny, "--write", "--no-fairness")
        writes = grown(server, before, WRITES)
        left = list(mount.iterdir())
    check(not left, f"left on the server: {left}")
    timed = sum(operations(one) for one in reading.measurements)
    check(reads == timed, f"the server saw {reads} READs, not {timed}")
    # A file for each of sixteen connections and for the one beside them, filled by one WRITE.
    timed = sum(operations(one) for one in writing.measurements) + 17
    check(writes == timed, f"the server saw {writes} WRITEs, not {timed}")
    points = [(1, 1), (4, 1), (4, 2)]
    for records, phase in ((reading, "random-read"), (writing, "random-write")):
        swept = [
            (one["parameters"]["threads"], one["parameters"]["connections"])
            for one in records.of(phase=phase)
        ]  # fmt: skip
        check(swept == points, f"{phase}: {swept}")
        for one in records.measurements:
            check(one["figures"]["errors"] == 0, f"{phase}: {one.get('first_error')}")
            check(operations(one) * 4096 == data_bytes(one), f"{phase}: bytes of its seconds")
            check(one["figures"]["secs"] >= 0.99, f"{phase}: {one['figures']['secs']} s of 1")
    others = {one["phase"]: one["figures"] for one in reading.measurements[len(points):]}
    expected = {"one-alone", "one-beside-sixteen", "sixteen-beside-one"}
    check(set(others) == expected, f"phases {set(others)}")
    share = others["one-beside-sixteen"]["mib_per_sec"] / others["one-alone"]["mib_per_sec"]
    recorded = others["one-beside-sixteen"]["beside_others"]
    check(near(recorded, share), f"{recorded} of what it had alone, not {share}")
    check(not sum(reading.figure("wrong_bytes")), "there were wrong bytes")


@case
def threads_slowed():
    slowed_by_the_network(
        "threads", "random-read", ("throughput MiB/s", "latency p50 us"),
        "--threads", 1, "--connections", 1, "--seconds", 1, "--no-fairness", "--size", "4MiB",
    )  # fmt: skip


def check_names(records, subjects):
    """Each phase of each subject and round has been recorded, with three times 40 names."""
    phases = ("create", "open", "stat", "lookup", "access", "remove")
    recorded = [(one["round"], one["subject"], one["phase"]) for one in records.measurements]
    # Each round begins with another subject.
    turns = ((1, subjects), (2, subjects[1:] + subjects[:1]))
    expected = [(turn, name, phase) for turn, names in turns for name in names for phase in phases]
    check(recorded == expected, f"recorded {recorded}")
    for one in records.measurements:
        figures = one["figures"]
        calls = figures["operations_per_sec"] * figures["secs"]
        check(near(calls, 120), f"{one['phase']}: {calls} names, not 120")
        check(figures["latency_p50_us"] <= figures["latency_max_us"], "latencies")


NAMES = ("--connections", 3, "--names", 40, "--rounds", 2)


@case
def names_counted():
    """Each name is created, opened, queried and removed once in each round."""
    bench = Bench()
    with quick_directory() as directory:
        records = bench.run("names", directory, *NAMES)
    check_names(records, ["server"])


@case
def names_in_two_versions():
    """Version 4.2 does as version 3, in COMPOUNDs that the server has counted one by one."""
    bench = Bench()
    with quick_directory() as directory:
        records = bench.run("names", directory, *NAMES, "--nfs-versions", "3,4.2")
    check_names(records, ["v3", "v4.2"])
    spoken = {name: "version 4.2" in text for name, text in records.run["subjects"].items()}
    check(spoken == {"v3": False, "v4.2": True}, f"subjects {records.run['subjects']}")
    # Version 4 opens and closes what version 3 creates and looks up.
    both = dict.fromkeys(("create", "open"), (120, 240))
    expected = both | dict.fromkeys(("stat", "lookup", "access", "remove"), (120, 120))
    for one in records.measurements:
        calls = one["counters"]["calls"]
        wanted = expected[one["phase"]][one["subject"] == "v4.2"]
        check(calls == wanted, f"{one['phase']} of {one['subject']}: {calls} calls, not {wanted}")


@case
def clients_of_others():
    """fio, nfs-cp and spillway cp move all of the data, and nothing is left on the server."""
    need("fio", "nfs-cp")
    bench, size = Bench(), 8 * MIB
    with served_disk() as (server, mount):
        records = bench.run(
            "clients", *given(server, mount), "--load", "fio,nfs-cp,cp", "--size", "8MiB",
            "--random-size", "128KiB", "--rounds", 1, "--cache", "found",
        )  # fmt: skip
        left = list(mount.iterdir())
    check(not left, f"left on the server: {left}")
    moved = {
        (one["phase"], one["subject"]): one["figures"]["mib_per_sec"] * one["figures"]["secs"]
        for one in records.measurements
    }  # fmt: skip
    hard = size // 47008 * 47008 / MIB
    expected = {
        ("fio-write-47008", "fio"): hard, ("fio-read-47008", "fio"): hard,
        ("fio-write-1048576", "fio"): 8, ("fio-read-1048576", "fio"): 8,
        ("fio-randread-4096", "fio"): 0.5,
        ("copy-to", "nfs-cp"): 8, ("copy-from", "nfs-cp"): 8,
        ("copy-to", "spillway cp"): 8, ("copy-from", "spillway cp"): 8,
    }  # fmt: skip
    check(set(moved) == set(expected), f"measured: {sorted(moved)}")
    for key, mib in expected.items():
        check(near(moved[key], mib), f"{key}: {moved[key]} MiB, not {mib}")


@case
def readdir_counted():
    """Each READDIR is one that the server has seen, and every entry is listed once."""
    bench, entries, directory = Bench(), 300, scratch_dir("export")
    tiny = ("--entries", entries, "--rounds", 1, "--reply", "4KiB", "--change-interval", "10ms")
    with Server(directory) as server:
        before = server.counters()
        records = bench.run("readdir", server.url(), *tiny)
        calls = grown(server, before, ("readdirs",))
        from_start = grown(server, before, ("readdirs_from_start",))
        check(not list(directory.iterdir()), "the directory is left on the server")
        bench.run("readdir", server.url(), *tiny, "--modified", "none", "--keep")
        (kept,) = directory.iterdir()
        there = len(list(kept.iterdir()))
    check(there == entries, f"{there} files were made, not {entries}")
    # When it is removed it is listed, in one call, and found to be empty.
    recorded = sum(one["figures"]["calls"] for one in records.measurements) + 2
    check(calls == recorded, f"the server saw {calls} READDIRs, not {recorded}")
    recorded = sum(one["figures"]["calls_from_start"] for one in records.measurements) + 2
    check(from_start == recorded, f"the server saw {from_start} from the start, not {recorded}")
    subjects = [(one["phase"], one["subject"]) for one in records.measurements]
    expected = [
        (lister, change)
        for lister in ("list-raw", "list-client") for change in ("idle", "adding", "removing")
    ]  # fmt: skip
    check(subjects == expected, f"measured {subjects}")
    for one in records.measurements:
        name, figures = f"{one['phase']}, {one['subject']}", one["figures"]
        check(figures["wrong_entries"] == 0, f"{name}: {figures['wrong_entries']} wrong entries")
        rate = figures["entries"] / figures["secs"]
        check(near(figures["operations_per_sec"], rate), f"{name}: entries by seconds")
        if one["subject"] == "idle":
            check(figures["entries"] == entries, f"{name}: {figures['entries']} entries")
        else:
            check(figures["changes"] >= 1, f"{name}: nothing changed")
        if one["phase"] == "list-raw":
            # An entry takes 36 to 40 bytes, and a reply 4 KiB.
            check(figures["calls"] >= 3, f"{name}: {figures['calls']} calls")


@case
def readdir_by_its_own_server():
    """The records have the values of the server's counters."""
    bench = Bench()
    directory = scratch_dir("export")
    process = bench.start("readdir", directory, "--entries", 200, "--rounds", 1, "--plus")
    check(finish(process) == 0, last_words(process))
    bench.check_nothing_left(process, directory)
    for one in Records(process.out).measurements:
        seen = one["counters"]["readdirs"]
        check(seen == one["figures"]["calls"], f"{one['phase']}: {seen} calls by the server")


@case
def readdir_slowed():
    slowed_by_the_network(
        "readdir", "list-raw", ("time s", "operations /s", "latency p50 us"),
        "--entries", 200, "--modified", "none", "--reply", "4KiB",
    )  # fmt: skip


@case
def writeback_counted():
    """Each WRITE is one that the server has seen, and together they are the file."""
    bench, size, directory = Bench(), MIB, scratch_dir("export")
    with Server(directory) as server:
        before = server.counters()
        records = bench.run(
            "writeback", server.url(), "--size", "1MiB", "--record-sizes", "100,4096",
            "--workers", "1,4", "--wsize", "64KiB", "--rounds", 1,
        )  # fmt: skip
        writes = grown(server, before, WRITES)
        taken = grown(server, before, ("write_bytes",))
    recorded = sum(records.figure("calls"))
    check(writes == recorded, f"the server saw {writes} WRITEs, not {recorded}")
    check(taken == 4 * size, f"the server took {taken} bytes, not {4 * size}")
    settings = [
        (one["parameters"]["record_bytes"], one["parameters"]["workers"])
        for one in records.measurements
    ]  # fmt: skip
    check(settings == [(100, 1), (100, 4), (4096, 1), (4096, 4)], f"measured {settings}")
    for one in records.measurements:
        figures, name = one["figures"], one["parameters"]
        check(near(figures["calls"] * figures["call_kib"], size / 1024), f"{name}: sizes of calls")
        check(near(figures["mib_per_sec"] * figures["secs"], size / MIB), f"{name}: rate")
        records_per_sec = -(-size // one["parameters"]["record_bytes"]) / figures["secs"]
        check(near(figures["operations_per_sec"], records_per_sec), f"{name}: records by seconds")
        check(figures["verified_mib"] == size / MIB, f"{name}: {figures['verified_mib']} compared")
        check(figures["wrong_bytes"] == 0, f"{name}: {figures['wrong_bytes']} wrong bytes")
        check(figures["calls"] >= size // (64 << 10), f"{name}: {figures['calls']} calls")


@case
def writeback_slowed():
    slowed_by_the_network(
        "writeback", "record-4096", ("throughput MiB/s", "time s"),
        "--size", "256KiB", "--wsize", "16KiB", "--record-sizes", 4096, "--workers", 1,
    )  # fmt: skip


@case
def uncached_counted():
    """What is written reaches the device once, and what the window has written leaves the cache."""
    bench, files, size_mib = Bench(), 4, 8
    all_mib = files * size_mib
    with loop_file_system("xfs", 400 * MIB) as mount:
        device = Device(mount)
        records = bench.run(
            "uncached", mount, "--files", files, "--size", f"{size_mib}MiB", "--rounds", 2,
            "--window", "1MiB",
        )  # fmt: skip
        _, written_mib = device.moved_mib()
        left = list(mount.iterdir())
    check(not left, f"left on the disk: {left}")
    for one in records.measurements:
        name, figures = one["subject"], one["figures"]
        check(data_bytes(one) == all_mib * MIB, f"{name}: {data_bytes(one)} bytes in its seconds")
        count = sum(second["operations"] for second in one["seconds"])
        check(count == all_mib * 16, f"{name}: {count} writes of 64 KiB")
        check(near(figures["mib_per_sec"] * figures["secs"], all_mib), f"{name}: rate")
        check(figures["verified_mib"] == all_mib, f"{name}: {figures['verified_mib']} compared")
        check(figures["wrong_bytes"] == 0, f"{name}: {figures['wrong_bytes']} wrong bytes")
        written = figures["device_written_mib"]
        is_right = all_mib - 0.01 <= written <= all_mib + 6
        check(is_right, f"{name}: {all_mib} MiB, {written} written by the device")
    recorded = sum(records.figure("device_written_mib"))
    check(recorded <= written_mib + 0.01, f"{recorded} MiB recorded, {written_mib} in all")
    cached = {name: max(records.figure("cached_at_end_mib", subject=name))
              for name in ("cached", "window")}  # fmt: skip
    check(cached["cached"] > all_mib * 0.9, f"in the cache at the end: {cached}")
    check(cached["window"] < all_mib * 0.1, f"in the cache at the end: {cached}")
    is_there = "dontcache" in records.run["subjects"]
    check(is_there != bool(records.run["left_out"]), f"left out: {records.run['left_out']}")


@case
def uncached_slowed():
    """A file system that waits for the disk at every write."""
    bench = Bench()
    tiny = (
        "--files", 1, "--block", "4KiB", "--size", "2MiB", "--modes", "cached,window",
        *ROUNDS_TO_COMPARE,
    )  # fmt: skip
    with loop_file_system("ext4", 64 * MIB, quick_dir()) as mount:
        base = bench.run("uncached", mount, *tiny)
        run_ok("mount", "-o", "remount,sync", mount)
        slow = bench.run("uncached", mount, *tiny)
    check_slower(base, slow, "write", ("throughput MiB/s", "time s"))


if __name__ == "__main__":
    main(__file__)
