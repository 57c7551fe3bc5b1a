#!/usr/bin/env python3
"""How runs of `spillway bench` end before their time: by signals, with a server that died, and when
they are asked for what cannot be. What was measured is kept, and nothing else is left behind.
"""

import os
import pathlib
import shutil
import signal
import time

from bench_rig import (
    RUN_SECS_MAX, UNDO_SECS_MAX, Bench, Records, end_at_last, finish, last_words, operations, output_of, sentence,
    wait_for_measurements,
)  # fmt: skip
from harness import (
    Server, Skip, case, check, free_port, main, need, run_ok, scratch_dir,
)  # fmt: skip
from unprivileged import ORDINARY_UID, reachable_place

# Of a case that starts many runs.
MANY_RUNS_SECS_MAX = 600
# What would go on for hours, in measurements of less than a second.
ENDLESS = {
    "io": (
        "--size", "4MiB", "--random-operations", 100, "--rounds", 10000, "--ranks", 2,
        "--no-calibration", "--cache", "found",
    ),
    "threads": ("--threads", 2, "--connections", 1, "--seconds", 1, "--rounds", 10000),
    "names": ("--names", 100, "--rounds", 10000),
    "readdir": ("--entries", 500, "--rounds", 10000),
    "writeback": ("--size", "1MiB", "--record-sizes", "4096", "--rounds", 10000),
    "clients": (
        "--load", "cp", "--size", "16MiB", "--random-size", "4KiB", "--rounds", 10000,
        "--cache", "found",
    ),
    "uncached": ("--files", 2, "--size", "8MiB", "--rounds", 10000),
}  # fmt: skip


def check_kept(process, count):
    """The records of a run that was ended are whole, and are shown."""
    records = Records(process.out)
    kept = len(records.measurements)
    check(kept >= count, f"{kept} measurements were kept of {count}")
    check("Spillway" in output_of(process) and "1 round" in output_of(process), "there is no table")


def interrupted(experiment, *more):
    bench, directory = Bench(), scratch_dir("files")
    process = bench.start(experiment, directory, *ENDLESS[experiment], *more)
    try:
        wait_for_measurements(process, 2)
        process.send_signal(signal.SIGINT)
        status = finish(process, UNDO_SECS_MAX)
        check(status == 1, f"{experiment}: exit status {status} after SIGINT")
        words = sentence(process)
        check(words.startswith("interrupted"), f"{experiment}: {words}")
        check_kept(process, 2)
        bench.check_nothing_left(process, directory)
    finally:
        end_at_last(process)


@case(secs=MANY_RUNS_SECS_MAX)
def interrupted_by_the_user():
    for experiment in ENDLESS:
        interrupted(experiment)


@case
def interrupted_in_a_group_on_a_disk():
    """With all that can be made for a run."""
    if os.geteuid() != 0:
        raise Skip("a disk and a cgroup need root")
    interrupted("io", "--memory-limit", "64MiB", "--scratch", "ext4:64MiB")


@case(secs=MANY_RUNS_SECS_MAX)
def interrupted_in_a_long_measurement():
    """It does not take the end of what is being written to be heard."""
    bench, directory = Bench(), scratch_dir("files")
    options = {
        "writeback": ("--size", "64MiB", "--record-sizes", 1, "--workers", 1),
        "uncached": ("--files", 1, "--block", "512B", "--size", "1000GiB"),
        "io": ("--size", "4GiB", "--easy-bytes", "512B", "--no-calibration", "--cache", "found"),
        "readdir": ("--entries", 10000000),
    }  # fmt: skip
    for experiment, more in options.items():
        process = bench.start(experiment, directory, *more)
        try:
            wait_for_measurements(process, 0)
            time.sleep(1.5)
            check(process.poll() is None, f"{experiment} ended: {last_words(process)}")
            process.send_signal(signal.SIGINT)
            words = f"{experiment}: exit status {finish(process, UNDO_SECS_MAX)}"
            check(words.endswith(" 1"), f"{words}: {last_words(process)}")
            bench.check_nothing_left(process, directory)
        finally:
            end_at_last(process)


@case(secs=MANY_RUNS_SECS_MAX)
def killed():
    """SIGKILL: what was started and mounted ends all the same."""
    bench, directory = Bench(), scratch_dir("files")
    surroundings = [()]
    if os.geteuid() == 0:
        surroundings.append(("--memory-limit", "64MiB", "--scratch", "ext4:64MiB"))
    for more in surroundings:
        process = bench.start("io", directory, *ENDLESS["io"], *more)
        try:
            wait_for_measurements(process, 2)
            # Between two measurements there is none.
            while not bench.processes(f"{Server.binary} serve"):
                check(process.poll() is None, f"it ended before: {last_words(process)}")
            process.kill()
            process.wait()
            bench.check_nothing_left(process, directory, secs=UNDO_SECS_MAX)
            check(len(Records(process.out).measurements) >= 2, "records were lost")
        finally:
            end_at_last(process)


def signalled(pids, number):
    """Sends a signal to those of the processes that are there, and returns them."""
    there = []
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        there.append(pid)
    return there


def dies_under(experiment, *more, program=""):
    """`program` are words of a process that the server is killed under; without, at any moment."""
    bench, directory = Bench(), scratch_dir("files")
    process = bench.start(experiment, directory, *ENDLESS[experiment], *more)
    try:
        wait_for_measurements(process, 2)
        deadline = time.monotonic() + RUN_SECS_MAX
        halted = []
        while program and not halted:
            check(process.poll() is None, f"it ended before: {last_words(process)}")
            check(time.monotonic() < deadline, f"{program} was not found: {last_words(process)}")
            # It would be done before the server is found.
            halted = signalled(bench.processes(program), signal.SIGSTOP)
        # Between two measurements the server may be another one.
        while process.poll() is None:
            check(time.monotonic() < deadline, f"{experiment} goes on: {last_words(process)}")
            signalled(bench.processes(f"{Server.binary} serve"), signal.SIGKILL)
            signalled(halted, signal.SIGCONT)
            time.sleep(0.05)
        status = finish(process)
        check(status == 1, f"{experiment}: exit status {status}: {last_words(process)}")
        words, output = sentence(process), output_of(process)
        # The one that is killed may also be about to end, or so new that it printed nothing.
        ends = ("the server died", "the server failed while it stopped")
        if not words.startswith("the server did not start"):
            check(words.startswith(ends), f"{experiment}: {words}")
            # With the last lines of its log.
            check("INFO spillway_server" in output, f"{experiment}: {last_words(process)}")
        check_kept(process, 2)
        bench.check_nothing_left(process, directory)
    finally:
        end_at_last(process)


@case(secs=MANY_RUNS_SECS_MAX)
def server_dies():
    """A server that is killed under a load ends the run, which reports it."""
    for experiment in ("io", "threads", "names", "readdir", "writeback"):
        dies_under(experiment)
    dies_under("clients", program=f"{Server.binary} cp ")


@case(secs=MANY_RUNS_SECS_MAX)
def server_dies_under_programs_of_others():
    """They try again for ever."""
    need("fio", "nfs-cp")
    for load, program in (("fio", "fio --name=job"), ("nfs-cp", "nfs-cp /dev/shm")):
        dies_under("clients", "--load", load, program=program)


@case
def server_dies_before_it_is_mounted():
    """The run reports the server's end and its last lines, not the failure of a call to it."""
    bench, directory = Bench(), scratch_dir("files")
    server = directory / "server"
    server.write_text(
        f"#!/bin/sh\necho listening on 127.0.0.1:{free_port()}\necho out of luck\nexit 3\n"
    )
    server.chmod(0o755)
    process = bench.start("io", directory, "--program", server, "--no-calibration")
    status = finish(process)
    check(status == 1, f"exit status {status}: {last_words(process)}")
    words = sentence(process)
    check(words.startswith("the server died") and "\nout of luck" in output_of(process), words)
    bench.check_nothing_left(process)


@case
def given_server_dies():
    """So does a server that the run has not started."""
    bench, directory = Bench(), scratch_dir("files")
    server = Server(directory)
    server.start()
    process = bench.start("io", server.url(), *ENDLESS["io"])
    try:
        wait_for_measurements(process, 2)
        server.kill()
        status = finish(process)
        check(status == 1, f"exit status {status}: {last_words(process)}")
        sentence(process)
        check_kept(process, 2)
    finally:
        end_at_last(process)
        if server.process is not None:
            server.stop()


@case
def one_of_two_given_servers_is_full():
    """The run ends with an error, and leaves nothing on either of them."""
    if os.geteuid() != 0:
        raise Skip("a small file system needs root")
    need("mount", "umount")
    bench, roomy, small = Bench(), scratch_dir("roomy"), scratch_dir("small")
    run_ok("mount", "-t", "tmpfs", "-o", "size=2m", "small", small)
    try:
        with Server(roomy) as first, Server(small) as second:
            urls = (f"roomy={first.url()}", f"small={second.url()}")
            process = bench.start("threads", *urls, "--size", "64MiB", "--rounds", 1)
            status = finish(process)
            check(status == 1, f"exit status {status}: {last_words(process)}")
            check("small cannot be filled" in sentence(process), sentence(process))
            bench.check_nothing_left(process, roomy, small)
    finally:
        run_ok("umount", small)


@case(secs=MANY_RUNS_SECS_MAX)
def one_of_two_given_servers_dies():
    """What was made on the other one is removed all the same."""
    for experiment, name in (("io", "first"), ("threads", "first"), ("threads", "second")):
        bench, roomy, dead = Bench(), scratch_dir("roomy"), scratch_dir("dead")
        with Server(roomy) as living:
            server = Server(dead)
            server.start()
            urls = [f"{name}={server.url()}", f"living={living.url()}"]
            if name == "second":
                urls.reverse()
            process = bench.start(experiment, *urls, *ENDLESS[experiment])
            try:
                wait_for_measurements(process, 2)
                server.kill()
                status = finish(process)
                check(status == 1, f"exit status {status}: {last_words(process)}")
                bench.check_nothing_left(process, roomy)
            finally:
                end_at_last(process)
                if server.process is not None:
                    server.stop()


@case(secs=MANY_RUNS_SECS_MAX)
def asked_for_what_cannot_be():
    """One sentence each: 2 for what is wrong in itself, 1 for what turns out to be."""
    bench, directory = Bench(), scratch_dir("files")
    file = directory / "file"
    file.write_bytes(b"")
    unreachable = f"nfs://127.0.0.1:{free_port()}/x"
    missing = directory / "missing"
    table = [
        (1, missing, ("io", missing)),
        (1, missing, ("threads", missing)),
        (1, missing, ("readdir", missing)),
        (1, missing, ("writeback", missing)),
        (1, missing, ("uncached", missing)),
        (1, file, ("io", file)),
        (1, "Connection refused", ("io", unreachable, "--no-calibration")),
        (1, "Connection refused", ("threads", unreachable)),
        (1, "Connection refused", ("readdir", unreachable)),
        (1, "Connection refused", ("writeback", unreachable)),
        (2, "sideways", ("io", directory, "--phases", "sideways")),
        (2, "`5` is not a time", ("io", directory, "--net-delay", "5")),
        (2, "rounds", ("io", directory, "--rounds", 0)),
        (2, "rounds", ("threads", directory, "--rounds", 0)),
        (2, "rounds", ("readdir", directory, "--rounds", 0)),
        (2, "rounds", ("writeback", directory, "--rounds", 0)),
        (2, "rounds", ("uncached", directory, "--rounds", 0)),
        (2, "--size is at least 1B", ("uncached", directory, "--size", "0B")),
        (2, "`0ms` is not a time", ("readdir", directory, "--change-interval", "0ms")),
        (2, "seconds", ("io", directory, "--seconds", "10000000000000000000")),
        (2, "--memory-limit is for", ("io", unreachable, "--memory-limit", "1GiB")),
        (2, "--scratch is for", ("threads", unreachable, "--scratch", "xfs:1GiB")),
        (2, "--device-rate is for", ("names", unreachable, "--device-rate", "1MiB/s")),
        (2, "no URL is named `x`", ("io", directory, "--pid", "x=1")),
        (2, "named spillway", ("io", directory, directory)),
        (1, "not start", ("io", directory, "--server-arg=--nonsense", "--no-calibration")),
    ]
    for expected, part, arguments in table:
        words = " ".join(str(word) for word in arguments)
        process = bench.start(*arguments)
        status = finish(process)
        check(status == expected, f"{words}: exit status {status}: {last_words(process)}")
        complaint = sentence(process)
        check(str(part) in complaint, f"{words}: {complaint}")
        check(complaint.count(str(part)) == 1, f"{words} reports it twice: {complaint}")
        file_left = [path for path in directory.iterdir() if path != file]
        check(not file_left, f"{words} left {file_left}")
        bench.check_nothing_left(process)


@case
def ordinary_user():
    """In a directory of one's own all of it works, but for what root is needed for."""
    if os.geteuid() != 0:
        raise Skip("this is tested wherever root runs something else")
    with reachable_place() as (place, directory):
        bench = Bench()
        program = shutil.copy(Server.binary, place)
        # The results, and what is temporary, are that user's too.
        bench.temporary, bench.results = place / "tmp", place / "results"
        bench.environment["TMPDIR"] = str(bench.temporary)
        for own in (directory, bench.temporary, bench.results):
            own.mkdir(exist_ok=True)
            os.chown(own, ORDINARY_UID, ORDINARY_UID)
        user = {"user": ORDINARY_UID, "group": ORDINARY_UID, "extra_groups": [], "cwd": place}
        tiny = ("--size", "4MiB", "--random-operations", 100, "--rounds", 1, "--ranks", 2)
        binary, Server.binary = Server.binary, program
        try:
            process = bench.start("io", directory, *tiny, **user)
            check(finish(process) == 0, last_words(process))
            records = Records(process.out)
            check("as it was found" in records.run["cache"], records.run["cache"])
            measured = [one["parameters"]["depth"] for one in records.measurements]
            check(sorted(measured) == [1] * 12 + [8] * 12, "six phases, and six against nothing")
            check(all(operations(one) for one in records.measurements), "nothing was measured")
            check(not sum(records.figure("errors")), "there were errors")
            bench.check_nothing_left(process, directory)
            for more, part in (
                (("--memory-limit", "64MiB"), "root may"),
                (("--cache", "cold"), "cannot drop caches"),
                (("--scratch", "ext4:64MiB"), "only root"),
            ):
                process = bench.start("io", directory, *tiny, *more, **user)
                status = finish(process)
                check(status in (1, 2), f"{more}: exit status {status}: {last_words(process)}")
                check(part in sentence(process), f"{more}: {sentence(process)}")
                bench.check_nothing_left(process, directory)
        finally:
            Server.binary = binary


if __name__ == "__main__":
    main(__file__)
