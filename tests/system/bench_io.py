#!/usr/bin/env python3
"""`spillway bench io`: what it reports is held against what server and kernel have counted, and a
server that is slowed down on purpose against one that is not.
"""

import os

from bench_rig import (
    READS, ROUNDS_TO_COMPARE, WRITES, Bench, Device, Records, counted, data_bytes, finish, given, near,
    operations, quick_directory, output_of, served_disk, verdicts,
)  # fmt: skip
from harness import (
    MIB, Server, Skip, SkipInCiToo, case, check, loop_file_system, main, need,
    scratch_dir,
)  # fmt: skip

EASY_BYTES, HARD_BYTES, RANDOM_BYTES = MIB, 47008, 4096
SIZE_MIB = 8
RANDOM_OPERATIONS = 200
RANKS = 2
HARD_OPERATIONS = SIZE_MIB * MIB // RANKS // HARD_BYTES * RANKS
# Of each phase: operations, bytes of each, and bytes of all files that it is about.
PHASES = {
    "easy-write": (SIZE_MIB, EASY_BYTES, SIZE_MIB * MIB),
    "easy-read": (SIZE_MIB, EASY_BYTES, SIZE_MIB * MIB),
    "random-read": (RANDOM_OPERATIONS, RANDOM_BYTES, SIZE_MIB * MIB),
    "random-write": (RANDOM_OPERATIONS, RANDOM_BYTES, SIZE_MIB * MIB),
    "hard-write": (HARD_OPERATIONS, HARD_BYTES, HARD_OPERATIONS * HARD_BYTES),
    "hard-read": (HARD_OPERATIONS, HARD_BYTES, HARD_OPERATIONS * HARD_BYTES),
}
TINY = (
    "--ranks", RANKS, "--depth", 8, "--size", f"{SIZE_MIB}MiB",
    "--random-operations", RANDOM_OPERATIONS, "--no-calibration",
)  # fmt: skip
# What a file system writes beside the data of a phase.
METADATA_MIB = 6
DELAY_MS = 20


def check_arithmetic(one):
    """A measurement's figures against each other, and against what was asked for."""
    name, figures = one["phase"], one["figures"]
    count, io_bytes, _ = PHASES[name]
    rate, secs, moved = figures["mib_per_sec"], figures["secs"], data_bytes(one)
    check(operations(one) == count, f"{name}: {operations(one)} latencies of {count}")
    check(moved == count * io_bytes, f"{name}: {moved} bytes in its seconds")
    ended = sum(second["operations"] for second in one["seconds"])
    check(ended == count, f"{name}: {ended} operations in its seconds")
    check(near(rate, moved / MIB / secs), f"{name}: {moved} bytes in {secs} s are not {rate} MiB/s")
    check(near(figures["operations_per_sec"], count / secs), f"{name}: operations by seconds")
    latencies = [figures[f"latency_{it}_us"] for it in ("p50", "p95", "p99", "p999", "max")]
    check(latencies == sorted(latencies), f"{name}: latencies {latencies}")
    check(latencies[0] > 0 and latencies[-1] <= secs * 1e6, f"{name}: {latencies} in {secs} s")
    check(figures["errors"] == 0 and figures["wrong_bytes"] == 0, f"{name}: {figures}")
    check("first_error" not in one, f"{name}: {one.get('first_error')}")


def cpu_secs(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def against_counters(verify, verifying_reads, *versions):
    """All phases on a server that was started here; returns the records."""
    bench = Bench()
    flags = ("--nfs-versions", "3,4.1,4.2") if versions else ()
    with served_disk(*flags) as (server, mount):
        before, device, cpu_before = server.counters(), Device(mount), cpu_secs(server.process.pid)
        options = ("--rounds", 1, "--cache", "cold", "--verify", verify, *versions)
        records = bench.run("io", *given(server, mount), *TINY, *options)
        after, moved_mib = server.counters(), device.moved_mib()
        cpu = cpu_secs(server.process.pid) - cpu_before
        left = [path.name for path in mount.iterdir()]
    check(not left, f"left on the server: {left}")
    phases = [one["phase"] for one in records.measurements]
    check(phases == list(PHASES), f"phases {phases}")
    for one in records.measurements:
        check_arithmetic(one)
    reads, writes = (
        counted(after, names) - counted(before, names) for names in (READS, WRITES)
    )  # fmt: skip
    timed = {
        way: sum(operations(one) for one in records.measurements if one["phase"].endswith(way))
        for way in ("-read", "-write")
    }  # fmt: skip
    check(writes == timed["-write"], f"the server saw {writes} WRITEs, not {timed['-write']}")
    expected = timed["-read"] + verifying_reads
    check(reads == expected, f"the server saw {reads} READs, not {expected}")
    grown = after["write_bytes"] - before["write_bytes"]
    sent = sum(data_bytes(one) for one in records.measurements if one["phase"].endswith("-write"))
    check(grown == sent, f"the server took {grown} bytes, not {sent}")
    recorded = sum(
        one["figures"]["server_us_per_operation"] * operations(one) / 1e6
        for one in records.measurements
    )  # fmt: skip
    # By the kernel's ticks, of both sums.
    check(0 < recorded <= cpu + 0.05, f"{recorded} s of the server's processor, which spent {cpu}")
    check_device(records, moved_mib)
    return records


def check_device(records, moved_mib):
    """What the device moved in the phases is what their data takes, and in sum not more than in
    all.
    """
    for one in records.measurements:
        figures, moved = one["figures"], data_bytes(one) / MIB
        written, read = figures["device_written_mib"], figures["device_read_mib"]
        if one["phase"] in ("easy-write", "hard-write"):
            is_right = moved - 0.01 <= written <= moved + METADATA_MIB
            check(is_right, f"{one['phase']}: {moved} MiB, {written} written by the device")
        if one["phase"].endswith("-read"):
            # Whole pages, and whatever is read ahead of what is wanted.
            check(figures["cached_at_start_mib"] == 0, f"{one['phase']}: not cold")
            expected = moved if one["phase"] != "random-read" else moved / 2
            check(read >= expected, f"{one['phase']}: {moved} MiB, {read} read by the device")
            check(written <= METADATA_MIB, f"{one['phase']}: {written} MiB were written")
    for name, all_mib in zip(("device_read_mib", "device_written_mib"), moved_mib):
        phases_mib = sum(one["figures"][name] for one in records.measurements)
        check(phases_mib <= all_mib + 0.01, f"{name}: {phases_mib} in phases, {all_mib} in all")


@case
def counted_by_the_server():
    """Without verification each call is one that was timed."""
    records = against_counters("none", 0)
    verified = sum(one["figures"]["verified_mib"] for one in records.measurements)
    check(verified == 0, f"{verified} MiB verified")


@case
def version_4_counted_by_the_server():
    """The load of version 4.2 is that of version 3, and leaves no state at the server."""
    records = against_counters("none", 0, "--nfs-versions", "4.2")
    for one in records.measurements:
        check(one["subject"].endswith(" v4.2"), f"the subject is {one['subject']}")
        check(one["figures"]["put_off"] == 0, f"{one['phase']}: calls were put off")


@case
def verified_in_full():
    """All that is read is compared, and all that was written is read again, by READs of 1 MiB."""
    wholes = -(-PHASES["hard-write"][2] // EASY_BYTES)
    records = against_counters("full", 2 * SIZE_MIB + wholes)
    for one in records.measurements:
        _, _, files_bytes = PHASES[one["phase"]]
        expected = data_bytes(one) if one["phase"].endswith("-read") else files_bytes
        verified = one["figures"]["verified_mib"] * MIB
        check(near(verified, expected), f"{one['phase']}: {verified} of {expected} bytes compared")


@case
def warm_caches():
    """A phase that finds its files finds them in the page cache."""
    bench = Bench()
    with loop_file_system("xfs", 400 * MIB) as directory:
        options = ("--modes", "buffered", "--cache", "warm", "--rounds", 1)
        records = bench.run("io", directory, *TINY, *options)
    for phase, cached_bytes in (
        ("easy-write", 0), ("easy-read", SIZE_MIB * MIB), ("random-read", SIZE_MIB * MIB),
        ("random-write", SIZE_MIB * MIB), ("hard-write", 0),
    ):  # fmt: skip
        (cached_mib,) = records.figure("cached_at_start_mib", phase=phase)
        check(cached_mib * MIB == cached_bytes, f"{phase}: {cached_mib} MiB cached at the start")


@case
def caches_that_root_may_not_drop():
    """In a container whose /proc/sys is read-only they are as they are found, by default."""
    if os.geteuid() != 0:
        raise Skip("mounting needs root")
    need("unshare", "mount")
    bench, binary = Bench(), Server.binary
    program = scratch_dir("program") / "spillway"
    read_only = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys"
    program.write_text(
        f"#!/bin/sh\nexec unshare --mount sh -c '{read_only} && exec \"$@\"' sh {binary} \"$@\"\n"
    )
    program.chmod(0o755)
    with quick_directory() as directory:
        Server.binary = program
        try:
            records = bench.run("io", directory, *TINY, "--rounds", 1)
        finally:
            Server.binary = binary
    check("as it was found" in records.run["cache"], records.run["cache"])


@case
def names_of_one_export():
    """Two subjects of one export do not write to each other's files."""
    bench, directory = Bench(), scratch_dir("files")
    with Server(directory) as server:
        urls = [f"{name}={server.url()}" for name in ("a", "b")]
        records = bench.run("io", *urls, *TINY, "--rounds", 2, "--cache", "found")
        left = [path.name for path in directory.iterdir()]
    for one in records.measurements:
        check("first_error" not in one, f"{one['subject']}: {one.get('first_error')}")
    check(not left, f"left on the server: {left}")


@case
def modes_under_a_limit():
    """Each mode in its turn, in a memory cgroup, and nothing of it is left behind."""
    modes = ("buffered", "dontcache", "direct", "auto")
    size_mib = 32
    bench = Bench()
    with loop_file_system("xfs", 400 * MIB) as directory:
        process = bench.start(
            "io", directory, "--modes", ",".join(modes), "--memory-limit", "128MiB",
            "--rounds", 2, "--depth", 8, "--phases", "easy-write,easy-read", "--size", f"{size_mib}MiB", "--ranks", RANKS,
        )  # fmt: skip
        status = finish(process)
        if status == 1 and "no memory cgroup" in output_of(process):
            raise SkipInCiToo(output_of(process).splitlines()[-1])
        check(status == 0, output_of(process)[-400:])
        bench.check_nothing_left(process, directory)
    records = Records(process.out)
    limit = records.run["memory_limit_bytes"]
    check(limit == 128 * MIB, f"limited to {limit}")
    check(set(modes) <= set(records.run["subjects"]), f"subjects {records.run['subjects']}")
    for phase in ("easy-write", "easy-read"):
        calibrated = records.of(phase="calibration", subject=phase)
        check([one["round"] for one in calibrated] == [1, 2], f"{phase}: {calibrated}")
        for mode in modes:
            ours = records.of(phase=phase, subject=mode)
            check([one["round"] for one in ours] == [1, 2], f"{phase}, {mode}: rounds")
            for alone, one in zip(calibrated, ours, strict=True):
                figures = one["figures"]
                part = figures["generator_alone_to_server"] * figures["server_us_per_operation"]
                cost = alone["figures"]["generator_us_per_operation"]
                check(abs(part - cost) < cost / 1000, f"{phase}, {mode}: {part} us, {cost} us")
            orders = {one["order"] for one in ours}
            check(len(orders) == 2, f"{phase}, {mode}: the order does not turn: {orders}")
            for one in ours:
                names = READS if phase == "easy-read" else WRITES
                seen = counted(one["counters"], names)
                check(seen == operations(one), f"{phase}, {mode}: the server counted {seen}")
        cache = {
            mode: max(records.figure("page_cache_mib_max", phase=phase, subject=mode))
            for mode in modes
        }  # fmt: skip
        check(cache["buffered"] > size_mib / 2, f"{phase}: page cache {cache}")
        check(cache["direct"] < cache["buffered"] / 4, f"{phase}: page cache {cache}")


@case
def slow_network():
    """A way to the server that takes its time: every phase is reported as slower."""
    bench = Bench()
    tiny = (
        "--ranks", 1, "--depth", 1, "--size", "384KiB", "--easy-bytes", "64KiB",
        "--hard-bytes", 65000, "--random-operations", 6, "--no-calibration", "--cache", "found",
        *ROUNDS_TO_COMPARE,
    )  # fmt: skip
    with quick_directory() as directory:
        base = bench.run("io", directory, *tiny)
        slow = bench.run("io", directory, *tiny, "--net-delay", f"{DELAY_MS}ms")
    check(f"delay {DELAY_MS} ms" in slow.run["network"], f"network: {slow.run['network']}")
    found, text = verdicts(base, slow)
    check("The circumstances differ: network" in text, f"no word of the network in {text}")
    for phase in PHASES:
        # Each way.
        fastest = min(slow.figure("latency_p50_us", phase=phase))
        check(fastest >= 2000 * DELAY_MS, f"{phase}: {fastest} us with {DELAY_MS} ms each way")
        for figure in ("throughput MiB/s", "latency p50 us"):
            line = found[phase, figure]
            check(line.endswith("slower"), f"{phase}: {line}")


@case
def slow_device():
    """A device that is held to a rate: nothing past the page cache is faster."""
    # What the kernel lets pass at once, up to a few tenths of a second, is little of four seconds.
    rate_mib, size_mib = 20, 80
    bench = Bench()
    directory = scratch_dir("disk")
    process = bench.start(
        "io", directory, "--scratch", "ext4:128MiB", "--device-rate", f"{rate_mib}MiB/s",
        "--depth", 8, "--modes", "direct", "--phases", "easy-write,easy-read", "--size", f"{size_mib}MiB",
        "--verify", "none", "--no-calibration", "--rounds", 1,
    )  # fmt: skip
    status = finish(process)
    for reason, skip in (
        ("only root can make a file system", Skip),
        ("I/O can be limited only", SkipInCiToo),
        ("(root may)", SkipInCiToo),
    ):
        if status != 0 and reason in output_of(process):
            raise skip(output_of(process).splitlines()[-1])
    check(status == 0, output_of(process)[-400:])
    bench.check_nothing_left(process, directory)
    records = Records(process.out)
    check("rate 20 MiB/s" in records.run["storage"], f"storage: {records.run['storage']}")
    for phase in ("easy-write", "easy-read"):
        (rate,) = records.figure("mib_per_sec", phase=phase)
        check(rate <= rate_mib * 1.1, f"{phase}: {rate} MiB/s on a device of {rate_mib}")


if __name__ == "__main__":
    main(__file__)
