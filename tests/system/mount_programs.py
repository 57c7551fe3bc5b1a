#!/usr/bin/env python3
"""Ordinary programs on the mount: git, make, cargo, tar, rsync, SQLite, fio."""

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap

from harness import MIB, case, check, main, need, run, run_ok, scratch_dir
from mount_rig import LONGER, spillway_export

FILES = int(1000 * LONGER)
MISALIGNED_BYTES = 47008
GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}  # fmt: skip


def git(directory, *words):
    need("git")
    environment = {**os.environ, **GIT}
    return run_ok("git", "-C", directory, *words, env=environment).stdout


def make_tree(directory, count, seed=1):
    """Files of all kinds and sizes, most of them small, with odd modes and times."""
    choices = random.Random(seed)
    for number in range(count):
        below = directory / f"d{number % 17}" / f"e{number % 5}"
        below.mkdir(parents=True, exist_ok=True)
        path = below / f"file {number}\u00e9"
        length = choices.choice((0, 1, 100, 3000, 5000, 20_000, 200_000 if number % 20 == 0 else 9))
        path.write_bytes(choices.randbytes(length))
        path.chmod(choices.choice((0o644, 0o600, 0o755, 0o444)))
        time_ns = choices.randrange(10**18, 17 * 10**17)
        os.utime(path, ns=(time_ns, time_ns))
        if number % 50 == 0:
            os.symlink("../e0/nowhere", below / f"link{number}")
            os.link(path, below / f"hard{number}")
            os.mkfifo(below / f"fifo{number}")
    (directory / "empty").mkdir()
    return directory


def git_clone_and_check(export):
    """Clone to the mount, change, commit, collect garbage, clone back: every object is right."""
    source = scratch_dir("source")
    git(source, "init", "--quiet", "--initial-branch=main")
    for commit in range(3):
        tree = scratch_dir("tree")
        make_tree(tree, FILES // 10, commit)
        run_ok("cp", "-a", *(tree / "d0", tree / "d1", tree / "d2"), source)
        for fifo in source.rglob("fifo*"):
            fifo.unlink()
        git(source, "add", "--all")
        git(source, "commit", "--quiet", f"--message=commit {commit}")
    with export.mount() as mount:
        clone = mount / "clone"
        git(mount, "clone", "--quiet", "--no-local", source, clone)
        check(git(clone, "status", "--porcelain") == "", "the clone is not clean")
        (clone / "new").write_text("new\n", encoding="utf-8")
        git(clone, "add", "new")
        git(clone, "commit", "--quiet", "--all", "--message=on the mount")
        git(clone, "checkout", "--quiet", "HEAD~2")
        git(clone, "checkout", "--quiet", "main")
        git(clone, "gc", "--quiet", "--aggressive", "--prune=now")
        git(clone, "fsck", "--full", "--strict")
        check(git(clone, "status", "--porcelain") == "", "not clean after the commit")
        back = scratch_dir("back")
        git(back, "clone", "--quiet", "--no-local", clone, back / "clone")
        git(back / "clone", "fsck", "--full", "--strict")
        git(mount, "clone", "--quiet", clone, mount / "hard-linked")
        git(mount / "hard-linked", "fsck", "--full")
        head = git(clone, "rev-parse", "HEAD")
        check(git(back / "clone", "rev-parse", "HEAD") == head, "another commit came back")
    git(export.directory / "clone", "-c", "safe.directory=*", "fsck", "--full")


MAKEFILE = """
OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))
program: $(OBJECTS)
\tcc -o $@ $(OBJECTS)
%.o: %.c all.h
\tcc -c -O1 -o $@ $<
"""


def make_builds(export, parts=12):
    """make builds, finds nothing to do, builds what was touched, and the program runs."""
    need("make", "cc")
    with export.mount() as mount:
        project = mount / "project"
        project.mkdir()
        (project / "Makefile").write_text(MAKEFILE, encoding="ascii")
        names = [f"part{number}" for number in range(parts)]
        declared = "".join(f"int {name}(void);\n" for name in names)
        (project / "all.h").write_text(declared, encoding="ascii")
        for number, name in enumerate(names):
            body = f'#include "all.h"\nint {name}(void) {{ return {number}; }}\n'
            (project / f"{name}.c").write_text(body, encoding="ascii")
        called = " + ".join(f"{name}()" for name in names)
        body = f'int main(void) {{ printf("%d\\n", {called}); }}\n'
        body = f'#include <stdio.h>\n#include "all.h"\n{body}'
        (project / "main.c").write_text(body, encoding="ascii")

        def make():
            done = run_ok("make", "-C", project, "-j4")
            check("modification time" not in done.stderr, f"make warns: {done.stderr}")
            return done.stdout.count("cc -c")

        compiled = [make(), make()]
        os.utime(project / "part3.c")
        compiled.append(make())
        check(compiled == [parts + 1, 0, 1], f"compiled {compiled}")
        printed = run_ok(project / "program").stdout.strip()
        check(printed == str(sum(range(parts))), f"the program printed {printed}")


def cargo_builds(export):
    """cargo, which locks, hard-links and maps, builds a crate, tests it, and builds it again."""
    need("cargo")
    with export.mount() as mount:
        crate = mount / "crate"
        (crate / "src").mkdir(parents=True)
        (crate / "Cargo.toml").write_text(
            '[package]\nname = "traveller"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n',
            encoding="ascii",
        )
        (crate / "src/lib.rs").write_text(
            "pub fn answer() -> u32 { 42 }\n#[test]\nfn right() { assert_eq!(answer(), 42); }\n",
            encoding="ascii",
        )
        (crate / "src/main.rs").write_text(
            'fn main() { println!("{}", traveller::answer()); }\n', encoding="ascii"
        )
        environment = {**os.environ, "CARGO_TARGET_DIR": str(crate / "target")}
        for command in ("build", "test", "build"):
            run_ok("cargo", command, "--offline", "--quiet", cwd=crate, env=environment)
        printed = run_ok(crate / "target/debug/traveller").stdout
        check(printed == "42\n", f"the program printed {printed}")


def tar_there_and_back(export):
    """Unpacked on the mount, everything compares; packed from there, it is the same."""
    need("tar", "diff")
    tree = make_tree(scratch_dir("tree"), FILES)
    archive = scratch_dir("archive") / "tree.tar"
    run_ok("tar", "-C", tree, "-cf", archive, ".")
    with export.mount() as mount:
        there = mount / "tree"
        there.mkdir()
        run_ok("tar", "-C", there, "-xpf", archive)
        run_ok("tar", "-C", there, "--compare", "-f", archive)
        second = archive.with_name("back.tar")
        run_ok("tar", "-C", there, "-cf", second, ".")
        run_ok("tar", "-C", tree, "--compare", "-f", second)
    run_ok("tar", "-C", export.directory / "tree", "--compare", "-f", archive)
    with export.mount() as mount:
        # A cold cache, and the whole tree again.
        run_ok("tar", "-C", mount / "tree", "--compare", "-f", archive)
        run_ok("rm", "-r", mount / "tree")
    check(not (export.directory / "tree").exists(), "rm left something")


def rsync_there_and_back(export):
    need("rsync")
    tree = make_tree(scratch_dir("tree"), FILES // 2)
    back = scratch_dir("back")
    with export.mount() as mount:
        there = mount / "tree"
        rsync = ("rsync", "--archive", "--hard-links", "--delete")
        run_ok(*rsync, f"{tree}/", f"{there}/")
        make_tree(tree / "d0", 60, seed=9)
        shutil.rmtree(tree / "d3")
        run_ok(*rsync, f"{tree}/", f"{there}/")
        run_ok(*rsync, f"{there}/", f"{back}/")
        for one, other in ((tree, there), (tree, back)):
            words = run_ok(
                *rsync, "--checksum", "--dry-run", "--itemize-changes", f"{one}/", f"{other}/"
            ).stdout  # fmt: skip
            check(words == "", f"differences: {words[:300]}")


# Two of these at a time move money between accounts; the sum never changes, nor does anything get
# lost. One of them is killed in the middle.
TRADER = textwrap.dedent("""
    import random, sqlite3, sys
    path, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    choices = random.Random(seed)
    base = sqlite3.connect(path, timeout=60, isolation_level=None)
    for number in range(count):
        base.execute("begin immediate")
        one, other = choices.randrange(100), choices.randrange(100)
        base.execute("update account set money = money - 1 where id = ?", (one,))
        base.execute("update account set money = money + 1 where id = ?", (other,))
        base.execute("insert into moved (trader, number, note) values (?, ?, ?)",
                     (seed, number, "x" * choices.randrange(2000)))
        base.execute("commit")
        print(number, flush=True)
""")


def sqlite_trades(export, journal, count=60):
    """Three processes at a time, one killed meanwhile; the file is checked, also on the server."""
    with export.mount() as mount:
        path = mount / "base.db"
        base = sqlite3.connect(path)
        mode = base.execute(f"pragma journal_mode={journal}").fetchone()[0]
        check(mode == journal, f"journal mode {mode}")
        base.executescript("""
            create table account (id integer primary key, money integer);
            create table moved (trader integer, number integer, note text);
            create index by_trader on moved (trader, number);
        """)
        base.executemany("insert into account values (?, 100)", ((each,) for each in range(100)))
        base.commit()
        base.close()
        promised = trade(path, count)
        check_base(path, promised, count)
    check_base(export.directory / "base.db", promised, count)


def trade(path, count):
    """Runs the traders; returns the number of commits that succeeded in the one that is killed."""
    command = [sys.executable, "-c", TRADER, path]
    traders = [
        subprocess.Popen([*command, str(seed), str(count)], stdout=subprocess.DEVNULL)
        for seed in (1, 2)
    ]  # fmt: skip
    victim = subprocess.Popen([*command, "3", "100000"], stdout=subprocess.PIPE, text=True)
    with victim:
        promised = [int(victim.stdout.readline()) for _ in range(10)][-1] + 1
        victim.kill()
    for trader in traders:
        check(trader.wait(90) == 0, f"a trader ended with {trader.returncode}")
    return promised


def check_base(path, promised, count):
    base = sqlite3.connect(path)
    answer = base.execute("pragma integrity_check").fetchone()[0]
    check(answer == "ok", f"integrity_check of {path}: {answer}")
    total = base.execute("select sum(money) from account").fetchone()[0]
    check(total == 10_000, f"{total} in all accounts")
    moved = dict(base.execute("select trader, count(*) from moved group by trader"))
    check((moved[1], moved[2]) == (count, count), f"moves {moved}")
    check(moved[3] >= promised, f"{moved[3]} moves of {promised} that were promised")
    base.close()


def fio_verifies(export, *flags, block_bytes, blocks, options=""):
    """fio writes blocks with checksums through the mount and reads them back, and then once more
    through another mount, whose cache is empty.
    """
    need("fio")
    flags = [
        f"--bs={block_bytes}", f"--size={block_bytes * blocks}", "--verify=crc32c",
        "--verify_fatal=1", "--verify_state_save=0", "--randseed=7", "--output-format=json", *flags,
    ]  # fmt: skip

    def fio(directory, *more):
        done = run("fio", "--name=v", f"--filename={directory}/v", *flags, *more)
        check(done.returncode == 0, f"fio: {(done.stderr or done.stdout)[-300:]}")
        job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
        check(job["error"] == 0, f"fio's error is {job['error']}")
        return job["write"]["total_ios"], job["read"]["total_ios"]

    with export.mount(options) as mount:
        written, read = fio(mount, "--rw=randwrite", "--do_verify=1", "--fsync_on_close=1")
        check((written, read) == (blocks, blocks), f"{written} written, {read} verified")
    stored = (export.directory / "v").stat().st_size
    check(stored == block_bytes * blocks, f"a file of {stored} bytes on the server")
    with export.mount(options) as mount:
        _, read = fio(mount, "--rw=read")
        check(read == blocks, f"{read} of {blocks} verified on a cold mount")


def define(name, subject, **arguments):
    def against_spillway():
        with spillway_export(quick=True) as export:
            subject(export, **arguments)

    against_spillway.__name__ = name
    case(against_spillway)


for each in (
    git_clone_and_check, make_builds, cargo_builds, tar_there_and_back, rsync_there_and_back,
):  # fmt: skip
    define(each.__name__, each)
for each in "delete", "truncate", "persist", "wal":
    define(f"sqlite_{each}", sqlite_trades, journal=each)


def define_fio(name, *flags, **arguments):
    def against_spillway():
        with spillway_export(quick=True) as export:
            fio_verifies(export, *flags, **arguments)

    against_spillway.__name__ = name
    case(against_spillway)


define_fio("fio_buffered_1mib", "--ioengine=psync", block_bytes=MIB, blocks=128)
define_fio("fio_buffered_47008", "--ioengine=psync", block_bytes=MISALIGNED_BYTES, blocks=1500)
define_fio("fio_direct_1mib", "--ioengine=libaio", "--iodepth=8", "--direct=1",
           block_bytes=MIB, blocks=128)  # fmt: skip
define_fio("fio_direct_47008", "--ioengine=psync", "--direct=1",
           block_bytes=MISALIGNED_BYTES, blocks=1000)  # fmt: skip
define_fio("fio_mapped_4kib", "--ioengine=mmap", block_bytes=4096, blocks=6000)
define_fio("fio_synchronous", "--ioengine=psync", "--fsync=16", block_bytes=MISALIGNED_BYTES,
           blocks=300, options="sync")  # fmt: skip


if __name__ == "__main__":
    main(__file__)
