#!/usr/bin/env python3
"""fio's nfs engine writes with checksums in every block and reads all of them back."""

import json
import os

from harness import (
    MIB, Server, Skip, case, check, main, need, need_space, run, run_ok, scratch_dir,
)  # fmt: skip

MISALIGNED_BYTES = 47008


def need_fio_nfs():
    """Skips the case unless fio is installed and was built with libnfs."""
    need("fio")
    if "nfs_url" not in run("fio", "--enghelp=nfs").stdout:
        raise Skip("fio has no nfs engine")


def fio(server, name, *flags, jobs=1, shared=False):
    """Runs fio on `jobs` connections, with one file each or all with one; returns the process.

    fio 3.39's nfs engine wants `--iodepth=1`; more parallelism comes from more jobs.
    """
    # A format without $jobnum would share the file too, and crashes fio at its end.
    file = f"--filename={name}" if shared else f"--filename_format={name}.$jobnum"
    return run(
        "fio", f"--name={name}", "--ioengine=nfs", f"--nfs_url={server.url()}",
        file, f"--numjobs={jobs}", "--iodepth=1",
        "--group_reporting", "--output-format=json", "--verify=crc32c", "--verify_fatal=1",
        "--verify_state_save=0", "--randseed=7", *flags,
    )  # fmt: skip


def total(done, direction):
    """fio's count of I/Os done; fails the case if fio saw any error."""
    words = (done.stderr + done.stdout)[-300:]
    check(done.returncode == 0, f"fio exited with {done.returncode}: {words}")
    # The engine may print before the report, which is then not the whole of stdout.
    report = json.loads(done.stdout[done.stdout.index("{") :])
    job = report["jobs"][0]
    check(job["error"] == 0, f"fio's error is {job['error']}")
    done_ios = job[direction]["total_ios"]
    # fio is content, with status 0, where the engine could not even open the file.
    check(done_ios > 0, f"fio moved nothing: {done.stderr.strip()[-300:]}")
    return done_ios


def write_and_verify(*flags, block_bytes, blocks, jobs, order="write"):
    """One fio run writes every block once, and another one reads in sequence and verifies."""
    need_fio_nfs()
    need_space(2 * block_bytes * blocks * jobs)
    with Server(scratch_dir("export")) as server:
        load = [f"--bs={block_bytes}", f"--size={block_bytes * blocks}", *flags]
        writer = fio(server, "v", f"--rw={order}", "--do_verify=0", *load, jobs=jobs)
        written = total(writer, "write")
        check(written == blocks * jobs, f"{written} of {blocks * jobs} blocks written")
        read = total(fio(server, "v", "--rw=read", *load, jobs=jobs), "read")
        check(read == blocks * jobs, f"{read} of {blocks * jobs} blocks verified")


def share_and_verify(*flags, block_bytes, blocks, jobs, stride_bytes, order, serve=()):
    """Jobs that start `stride_bytes` apart write one file together; one reader verifies all of it.

    `serve` are flags of the server. Where `block_bytes` is no multiple of a page, neighbours change the same pages at the same time.
    """
    need_fio_nfs()
    need_space(2 * block_bytes * blocks * jobs)
    with Server(scratch_dir("export"), *serve) as server:
        block = f"--bs={block_bytes}"
        load = [f"--rw={order}", block, f"--io_size={block_bytes * blocks}", *flags]
        apart = [f"--offset_increment={stride_bytes}", "--do_verify=0"]
        writer = fio(server, "shared", *load, *apart, jobs=jobs, shared=True)
        written = total(writer, "write")
        check(written == blocks * jobs, f"{written} of {blocks * jobs} blocks written")
        size_bytes = block_bytes * blocks * jobs
        stored = (server.directory / "shared").stat().st_size
        check(stored == size_bytes, f"a file of {stored} bytes, not {size_bytes}")
        whole = ["--rw=read", block, f"--size={size_bytes}"]
        read = total(fio(server, "shared", *whole, shared=True), "read")
        check(read == blocks * jobs, f"{read} of {blocks * jobs} blocks verified")


def interleave_and_verify(block_bytes, blocks, jobs=4, serve=()):
    """Of each `jobs` blocks in a row every job writes one."""
    share_and_verify(
        f"--size={block_bytes * blocks * jobs}", block_bytes=block_bytes, blocks=blocks, jobs=jobs,
        stride_bytes=block_bytes, order=f"write:{block_bytes * (jobs - 1)}", serve=serve,
    )  # fmt: skip


def random_parts_and_verify(block_bytes, blocks, jobs=4):
    """Every job writes its own part of the file in random order, each block once."""
    part_bytes = block_bytes * blocks
    share_and_verify(
        f"--size={part_bytes}", block_bytes=block_bytes, blocks=blocks, jobs=jobs,
        stride_bytes=part_bytes, order="randwrite",
    )  # fmt: skip


@case
def sequential_1mib():
    write_and_verify(block_bytes=MIB, blocks=512, jobs=1)


@case
def sequential_1mib_4_jobs():
    write_and_verify(block_bytes=MIB, blocks=128, jobs=4)


@case
def random_4kib_4_jobs():
    write_and_verify(block_bytes=4096, blocks=8192, jobs=4, order="randwrite")


@case
def misaligned_47008():
    write_and_verify(block_bytes=MISALIGNED_BYTES, blocks=8192, jobs=1)


@case
def misaligned_47008_4_jobs():
    write_and_verify(block_bytes=MISALIGNED_BYTES, blocks=2048, jobs=4)


@case
def misaligned_47008_random():
    write_and_verify(block_bytes=MISALIGNED_BYTES, blocks=4096, jobs=2, order="randwrite")


@case
def shared_1mib_interleaved():
    interleave_and_verify(MIB, 128)


@case
def shared_4kib_interleaved():
    interleave_and_verify(4096, 4096)


@case
def shared_4kib_random():
    random_parts_and_verify(4096, 4096)


@case
def shared_47008_interleaved():
    interleave_and_verify(MISALIGNED_BYTES, 2048)


@case
def shared_47008_random():
    random_parts_and_verify(MISALIGNED_BYTES, 1024)


@case
def verification_can_fail():
    """One byte changed on disk is found: so the cases above prove something."""
    need_fio_nfs()
    with Server(scratch_dir("export")) as server:
        load = ["--bs=64k", "--size=4M"]
        total(fio(server, "v", "--rw=write", "--do_verify=0", *load), "write")
        run_ok("sync")
        with open(server.directory / "v.0", "r+b") as file:
            file.seek(2 * MIB + 1000)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        done = fio(server, "v", "--rw=read", *load)
        check(done.returncode != 0, "fio did not notice the changed byte")
        check("verify" in done.stderr, f"fio failed for another reason: {done.stderr[-300:]}")


if __name__ == "__main__":
    main(__file__)
