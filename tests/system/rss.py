#!/usr/bin/env python3
"""The server's memory stays under its budget while 16 connections write 4 GiB."""

import subprocess
import time

from fio_verify import need_fio_nfs
from harness import MIB, Server, case, check, main, need_space, scratch_dir

JOBS = 16
JOB_BYTES = 256 * MIB
# The documented default of the server's memory budget, which holds all payload.
BUDGET_BYTES = 256 * MIB
# Everything else: the program itself, its threads' stacks and heaps, open files, the reply cache.
ALLOWANCE_BYTES = 64 * MIB


def write_and_watch(block_bytes):
    """Writes with `JOBS` connections; fails if the resident set passed budget and allowance."""
    need_fio_nfs()
    need_space(JOBS * JOB_BYTES * 5 // 4)
    with Server(scratch_dir("export")) as server:
        writer = subprocess.Popen(
            [
                "fio", "--name=w", "--ioengine=nfs", f"--nfs_url={server.url()}",
                "--filename_format=w.$jobnum", f"--numjobs={JOBS}", "--iodepth=1", "--rw=write",
                f"--bs={block_bytes}", f"--size={JOB_BYTES // block_bytes * block_bytes}",
                "--group_reporting", "--output-format=json",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            samples = 0
            while writer.poll() is None:
                server.resident_bytes()
                samples += 1
                time.sleep(0.05)
        finally:
            writer.kill()
            writer.wait()
        check(writer.returncode == 0, f"fio: {writer.stderr.read()[-300:]}")
        check(samples >= 10, f"only {samples} samples: the load was too short")
        peak = server.resident_bytes("VmHWM")
        allowed = BUDGET_BYTES + ALLOWANCE_BYTES
        load = f"{JOBS} x {JOB_BYTES // MIB} MiB in WRITEs of {block_bytes}"
        print(f"     {load}: peak RSS {peak // MIB} MiB of {allowed // MIB} MiB")
        check(peak <= allowed, f"peak of {peak // MIB} MiB, {allowed // MIB} MiB allowed")
        wrote = sum(file.stat().st_size for file in server.directory.iterdir())
        check(wrote > JOBS * (JOB_BYTES - block_bytes), f"only {wrote} bytes arrived")


@case(secs=240)
def aligned_1mib():
    write_and_watch(MIB)


@case(secs=240)
def misaligned_47008():
    write_and_watch(47008)


if __name__ == "__main__":
    main(__file__)
