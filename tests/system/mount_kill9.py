#!/usr/bin/env python3
"""The server dies under a mount, or the power fails, and comes back: nothing is lost or wrong.

The mount is a hard one: programs wait and see no error. Everything that was written is there in
the end, because the client keeps it until a COMMIT under an unchanged verifier, and sends it again
when the verifier changed. In a power cut the server's file system really loses what was not synced.
"""

import array
import errno
import os
import pathlib
import signal
import subprocess
import sys
import time

from harness import MIB, case, check, main, scratch_dir
from mount_random import STEPS, File, random_operations
from mount_rig import LONGER, HeldReplies, eventually, power_cut, spillway_export
from nfs3 import CREATE, MKDIR, RENAME

sys.path.append(str(pathlib.Path(__file__).resolve().parent / "posix_checks"))
from place import Child, opened, same  # noqa: E402: it is beside the checks

ROUNDS = int(4 * LONGER)
CHUNK_BYTES = (4096, 104, 47008, MIB, 65544, 8)
# One file is written until it is this long, then the next one.
FILE_BYTES = 16 * MIB
# A reply that is lost with the server makes a second RENAME fail: version 3 cannot do better.
TWICE_IS_ONCE = [step for step in STEPS if step not in (File.rename, File.replace)]
# It gives up after six seconds; a server that is alive takes less on any machine.
SOFT = "soft,timeo=30,retrans=1"


def content(number, offset, length):
    """The content of file `number` from `offset`, a multiple of 8: each 8 bytes are unique."""
    first = (number << 40) + offset // 8
    return array.array("Q", range(first, first + length // 8)).tobytes()


def write_files(mount, journal, writer):
    """Writes file after file until `journal` has a file `stop`; notes what fsync promised."""
    number = writer
    with opened(journal / f"promised{writer}", os.O_CREAT | os.O_WRONLY | os.O_APPEND) as notes:
        while not (journal / "stop").exists():
            with opened(mount / f"data{number}", os.O_CREAT | os.O_WRONLY) as file:
                write_one(file, number, journal, notes)
            number += 10
    return number


def write_one(file, number, journal, notes):
    at = 0
    for turn in range(10**6):
        length = CHUNK_BYTES[turn % len(CHUNK_BYTES)]
        chunk = content(number, at, length)
        done = os.write(file, chunk)
        check(done == length, f"a write of {length} bytes wrote {done}")
        at += length
        if turn % 7 == 6:
            os.fsync(file)
            os.write(notes, b"%d %d\n" % (number, at))
        if at > FILE_BYTES or (journal / "stop").exists():
            return


def read_files(mount, journal, reader):
    """Reads what was promised, past the kernel's cache or through it, and compares."""
    rounds = 0
    while not (journal / "stop").exists():
        for notes in journal.glob("promised*"):
            lines = notes.read_text(encoding="ascii").split("\n")[:-1]
            if not lines:
                continue
            number, size = map(int, lines[(rounds * 7919 + reader) % len(lines)].split())
            read_and_compare(mount / f"data{number}", number, size, reader)
            rounds += 1
            (journal / f"rounds{reader}").write_text(str(rounds), encoding="ascii")
        time.sleep(0.005)


def rounds(journal):
    """How often each of the two readers has compared."""
    counts = [journal / f"rounds{reader}" for reader in (0, 1)]
    return [int(count.read_text() or 0) if count.exists() else 0 for count in counts]


def read_and_compare(path, number, size, reader):
    with opened(path, os.O_RDONLY) as file:
        if reader:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        found = os.stat(path).st_size
        check(found >= size, f"{path.name} has {found} bytes of {size} that were promised")
        for at in range(0, size, 8 * MIB // 3 // 8 * 8):
            length = min(8 * 10_000, size - at)
            part = os.pread(file, length, at)
            wanted = content(number, at, length)
            same(part, wanted, f"{path.name} from {at} on")


def under_load(export, interrupt, options=""):
    """Writers and readers go on while `interrupt` is called again and again."""
    journal = scratch_dir("journal")
    with export.mount(options) as mount:
        children = [Child(write_files, mount, journal, writer) for writer in (1, 2)]
        children += [Child(read_files, mount, journal, reader) for reader in (0, 1)]
        try:
            for turn in range(ROUNDS):
                time.sleep(0.5 + 0.137 * turn % 0.5)
                if turn == ROUNDS - 1:
                    check(eventually(lambda: min(rounds(journal)) > 0, 60), "nothing was read")
                interrupt()
            time.sleep(0.5)
            done = eventually(lambda: min(rounds(journal)) > 3, 60)
            check(done, f"the readers did {rounds(journal)} rounds only")
            (journal / "stop").touch()
            for child in children:
                child.result()
        finally:
            for child in children:
                child.end()
    check_promises(export.directory, journal)


def check_promises(served, journal):
    """Every file on the server is whole, to its end, and as long as was promised at least."""
    promised = {}
    for notes in journal.glob("promised*"):
        for line in notes.read_text(encoding="ascii").splitlines():
            number, size = map(int, line.split())
            promised[number] = size
    check(promised, "nothing was ever promised")
    for number, size in promised.items():
        found = (served / f"data{number}").read_bytes()
        check(len(found) >= size, f"data{number}: {len(found)} bytes of {size} that were promised")
        wanted = content(number, 0, len(found))
        same(found, wanted, f"data{number}")


def kill_and_restart(export, pause_secs=0.2):
    export.kill()
    time.sleep(pause_secs)
    export.start()


@case
def killed_under_load():
    with spillway_export() as export:
        under_load(export, lambda: kill_and_restart(export))


@case
def killed_under_load_with_several_connections():
    with spillway_export() as export:
        under_load(export, lambda: kill_and_restart(export, 0), "nconnect=4")


@case
def power_cut_under_load():
    with spillway_export() as export:
        under_load(export, lambda: power_cut(export))


@case
def random_operations_while_killed():
    """The model of mount_random, without the steps that must not be done twice."""
    with spillway_export() as export:
        left_out = [step for step in STEPS if step not in TWICE_IS_ONCE]

        def meanwhile():
            time.sleep(0.7)
            kill_and_restart(export)

        random_operations(export, secs=ROUNDS, without=left_out, meanwhile=meanwhile)


@case
def random_operations_in_power_cuts():
    with spillway_export() as export:
        left_out = [step for step in STEPS if step not in TWICE_IS_ONCE]

        def meanwhile():
            time.sleep(0.7)
            power_cut(export)

        random_operations(export, secs=ROUNDS, without=left_out, meanwhile=meanwhile)


@case
def written_data_outlives_a_power_cut():
    """Written, closed or not, but not synced; the server loses it; the client does not."""
    wanted = {f"file{number}": content(number, 0, 2 * MIB) for number in range(4)}
    wanted["open"] = content(9, 0, 2 * MIB + 1000)
    with spillway_export() as export, export.mount() as mount:
        # A descriptor of our own would be closed, and so flushed, by each program that we start.
        written, cut = os.pipe(), os.pipe()
        writer = Child(write_and_look_again, mount, wanted, written[1], cut[0])
        os.read(written[0], 1)
        power_cut(export)
        os.write(cut[1], b"!")
        writer.result()
        for name in wanted:
            for place in (mount, export.directory):
                found = (place / name).read_bytes()
                same(found, wanted[name], f"{place / name}")


def write_and_look_again(mount, wanted, written, cut):
    """Writes before the power cut; reads, and syncs, after it."""
    for name in wanted:
        if name != "open":
            (mount / name).write_bytes(wanted[name])
    with opened(mount / "open", os.O_CREAT | os.O_RDWR) as file:
        os.write(file, wanted["open"])
        os.write(written, b"!")
        os.read(cut, 1)
        for name in wanted:
            found = (mount / name).read_bytes()
            same(found, wanted[name], f"{name}, not synced")
            with opened(mount / name, os.O_RDWR) as again:
                os.fsync(again)


@case
def hard_mounts_wait():
    """Without a server, programs wait; a signal that kills ends them; then all goes on."""
    with spillway_export() as export, export.mount("timeo=10") as mount:
        (mount / "file").write_bytes(content(1, 0, MIB))
        export.kill()
        # Two that look for one name wait for each other, in the kernel, which no signal ends.
        waiting = Child(look_for_something_new, mount, "missing")
        doomed = Child(look_for_something_new, mount, "missing too")
        time.sleep(1)
        os.kill(doomed.pid, signal.SIGKILL)
        check(eventually(lambda: os.waitpid(doomed.pid, os.WNOHANG)[0], 30), "it cannot be killed")
        doomed.pid = None
        time.sleep(1)
        check(os.waitpid(waiting.pid, os.WNOHANG)[0] == 0, "it did not wait")
        export.start()
        check(waiting.result() == errno.ENOENT, "an error that came from the wait")


@case
def signals_end_programs_that_wrote():
    """Their exit closes the file, and waits 5 s for the server, which gets the data later."""
    with spillway_export() as export, export.mount("timeo=10") as mount:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGABRT, signal.SIGKILL):
            written = os.pipe()
            doomed = Child(write_and_pause, mount / f"file{number}", number, written[1])
            os.read(written[0], 1)
            export.kill()
            os.kill(doomed.pid, number)
            ended = eventually(lambda: os.waitpid(doomed.pid, os.WNOHANG)[0], 60)
            export.start()
            check(ended, f"signal {number} does not end it")
            doomed.pid = None
            arrived = lambda: (export.directory / f"file{number}").read_bytes() == b"x"
            check(eventually(arrived, 60), f"what was written before signal {number} is lost")


def write_and_pause(path, number, written):
    """Writes, and waits for the signal, which does by default what it does."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.write(os.open(path, os.O_CREAT | os.O_WRONLY), b"x")
    os.write(written, b"!")
    signal.pause()


@case
def programs_start_with_written_descriptors():
    """execve(2) closes them while readers of /proc/PID/stat wait for it. So the mount must not
    look there, neither before it sends the data nor when the server does not take it."""
    with spillway_export(quick=True) as export, export.mount(SOFT) as mount:
        for is_lost in (False, True):
            written, go = os.pipe(), os.pipe()
            path = mount / f"file{is_lost}"
            child = Child(write_and_start_program, path, written[1], go[0])
            os.read(written[0], 1)
            if is_lost:
                export.kill()
            os.write(go[1], b"!")
            ended = eventually(lambda: end_of(child.pid), 60)
            if is_lost:
                export.start()
            check(ended == [0], f"a program hangs or fails, data lost {is_lost}: {ended}")
            child.pid = None
        check((export.directory / "fileFalse").read_bytes() == b"x", "the data is not there")


def end_of(pid):
    """A list of the status of the process, empty until it has ended."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return [status] if found else []


def write_and_start_program(path, written, go):
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    check(not os.get_inheritable(file), "it is not closed when a program starts")
    os.write(file, b"x")
    os.write(written, b"!")
    os.read(go, 1)
    os.execv("/bin/true", ["true"])


@case
def programs_that_start_take_no_error_away():
    """Starting one closes a copy of the descriptor, which gets the error as well."""
    with spillway_export(quick=True) as export, export.mount(SOFT) as mount:
        written, go = os.pipe(), os.pipe()
        child = Child(write_and_run_program, mount / "file", written[1], go[0])
        os.read(written[0], 1)
        export.kill()
        os.write(go[1], b"!")
        numbers = child.result()
        export.start()
        check(numbers == [errno.EIO, 0], f"fsync and close: errno {numbers}")


def write_and_run_program(path, written, go):
    """The errors of fsync(2) and close(2) after a program was run."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(file, b"x")
    os.write(written, b"!")
    os.read(go, 1)
    subprocess.run(["true"], check=True)
    return [errno_of(os.fsync, file), errno_of(os.close, file)]


def errno_of(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0


@case
def names_of_killed_calls_are_found():
    """The kernel has cached that they are missing when the server executes the calls."""
    calls = {
        MKDIR: lambda new, _: os.mkdir(new),
        CREATE: lambda new, _: os.open(new, os.O_CREAT | os.O_WRONLY),
        RENAME: lambda new, old: os.rename(old, new),
    }
    with spillway_export(quick=True) as export:
        for number, call in calls.items():
            with HeldReplies(export.port, number) as way, way.mount("actimeo=600") as mount:
                old, new = mount / f"old{number}", mount / f"new{number}"
                (export.directory / old.name).touch()
                check(not new.exists(), f"{new.name} is there before the call")
                way.arrived.clear()
                doomed = Child(call, new, old)
                check(way.arrived.wait(30), f"procedure {number} was not called")
                os.kill(doomed.pid, signal.SIGKILL)
                doomed.wait()
                found = eventually(new.exists, 30)
                way.released.set()
                check(found, f"{new.name} is not found")


@case
def names_of_calls_without_a_reply_are_found():
    """A soft mount gives up a call that the server has executed."""
    options = f"{SOFT},actimeo=600"
    with spillway_export(quick=True) as export, HeldReplies(export.port, MKDIR) as way:
        with way.mount(options) as mount:
            new = mount / "new"
            check(not new.exists(), "it is there before the call")
            number = errno_of(os.mkdir, new)
            check(number == errno.EIO, f"mkdir: errno {number}")
            check(eventually(new.exists, 30), "it is not found")


def look_for_something_new(mount, name="missing"):
    try:
        os.stat(mount / name)
    except OSError as error:
        return error.errno
    return 0


@case
def soft_mounts_give_up():
    with spillway_export(quick=True) as export:
        with export.mount(f"{SOFT},actimeo=0") as mount:
            (mount / "file").write_bytes(b"x")
            export.kill()
            begun = time.monotonic()
            answer = look_for_something_new(mount)
            took = time.monotonic() - begun
            check(answer == errno.EIO, f"{errno.errorcode.get(answer, answer)}")
            check(5 < took < 60, f"after {took:.1f} s")
            export.start()
            found = eventually(lambda: look_for_something_new(mount) == errno.ENOENT, 60)
            check(found, "it does not work again when the server is back")
            check((mount / "file").read_bytes() == b"x", "the file reads wrong")


if __name__ == "__main__":
    main(__file__)
