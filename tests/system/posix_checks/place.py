"""What the checks share: how they are marked, how they expect errors, and how they become others.

A check is a function without arguments. It runs as root, with umask 0, in a new and empty directory
of the file system under test that is also its working directory: relative names are all it needs,
and other users reach them wherever the file system is mounted. It fails by an exception.
"""

import contextlib
import errno
import os
import pickle
import signal
import sys
import time
import traceback

CHECKS = {}
# Two users and a group that no system assigns; each user has a group of the same number.
ALICE, BOB, TEAM = 43001, 43002, 43100
CHECK_SECS_MAX = 40


def check(function):
    """Marks a check. Its name, which is what deviations are listed by, is the function's."""
    if function.__name__ in CHECKS:
        raise ValueError(f"two checks are called {function.__name__}")
    CHECKS[function.__name__] = function
    return function


def expect(condition, why):
    """Fails the check with `why` unless `condition` holds."""
    if not condition:
        raise AssertionError(why)


def same(found, wanted, what):
    """Fails the check unless both are equal; long bytes are reported by their first difference."""
    if found == wanted:
        return
    if isinstance(found, bytes) and isinstance(wanted, bytes):
        raise AssertionError(f"{what}: {difference(found, wanted)}")
    raise AssertionError(f"{what}: {found!r:.200}, not {wanted!r:.200}")


def difference(found, wanted):
    """Where two byte strings part, in words."""
    at = next(
        (at for at, (one, other) in enumerate(zip(found, wanted)) if one != other),
        min(len(found), len(wanted)),
    )
    return (
        f"{len(found)} bytes where {len(wanted)} are right; from byte {at} on "
        f"{found[at : at + 16]!r}, not {wanted[at : at + 16]!r}"
    )


def refused(numbers, function, *arguments, **options):
    """Fails the check unless the call fails with the errno, or with one of a tuple of them."""
    allowed = numbers if isinstance(numbers, tuple) else (numbers,)
    names = " or ".join(errno.errorcode[number] for number in allowed)
    try:
        value = function(*arguments, **options)
    except OSError as error:
        if error.errno in allowed:
            return error.errno
        found = errno.errorcode.get(error.errno, error.errno)
        raise AssertionError(f"{words(function, arguments)}: {found}, not {names}") from None
    raise AssertionError(f"{words(function, arguments)}: {value!r:.100}, not {names}")


def words(function, arguments):
    shown = ", ".join(repr(argument)[:60] for argument in arguments)
    return f"{function.__name__}({shown})"


def make(name, content=b"", mode=0o644):
    """Makes or replaces a file with this content and exactly this mode."""
    with opened(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode) as file:
        write_all(file, content)
    os.chmod(name, mode)
    return name


def write_all(file, content):
    """Writes all of `content` at the offset of the descriptor."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def content_of(name):
    """All bytes of a file, by a new open."""
    with opened(name, os.O_RDONLY) as file:
        return read_all(file)


def read_all(file):
    """All bytes from the offset of the descriptor on."""
    parts = []
    while part := os.read(file, 1 << 20):
        parts.append(part)
    return b"".join(parts)


@contextlib.contextmanager
def opened(name, flags, mode=0o666, **options):
    """A descriptor, closed at the end."""
    file = os.open(name, flags, mode, **options)
    try:
        yield file
    finally:
        os.close(file)


def mode_of(name):
    """The permission bits, of a link itself where it is one."""
    return os.lstat(name).st_mode & 0o7777


def tick():
    """Waits until the coarse clock that kernels stamp files with has gone on."""
    time.sleep(0.02)


def updates(names, fields, action):
    """Fails unless `action` makes each of `fields` (st_..._ns) of each of `names` later."""
    compare(names, fields, action, lambda old, new: new > old, "was not updated")


def keeps(names, fields, action):
    """Fails unless `action` leaves each of `fields` (st_..._ns) of each of `names` as it is."""
    compare(names, fields, action, lambda old, new: new == old, "was changed")


def compare(names, fields, action, right, wrong):
    before = [os.lstat(name) for name in names]
    tick()
    action()
    for name, old in zip(names, before):
        new = os.lstat(name)
        for field in fields:
            expect(right(getattr(old, field), getattr(new, field)), f"{field} of {name} {wrong}")


def in_child(function, *arguments):
    """Runs `function` in a process of its own; returns what it returns, raises what it raises."""
    child = Child(function, *arguments)
    return child.result()


class Child:
    """A process that runs one function."""

    def __init__(self, function, *arguments, before=lambda: None):
        self.pipe, answer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self.pipe)
                before()
                reply = (True, function(*arguments))
                status = 0
            except BaseException as failure:  # whatever it is, the parent raises it
                reply = (False, portable(failure))
            with contextlib.suppress(BaseException):
                with os.fdopen(answer, "wb") as stream:
                    pickle.dump(reply, stream)
            os._exit(status)
        os.close(answer)

    def result(self):
        """Waits for the end of the process."""
        with os.fdopen(self.pipe, "rb") as stream:
            reply = stream.read()
        status = self.wait()
        if not reply:
            raise AssertionError(f"a process ended with {os.waitstatus_to_exitcode(status)}")
        succeeded, value = pickle.loads(reply)
        if not succeeded:
            raise value
        return value

    def wait(self):
        _, status = os.waitpid(self.pid, 0)
        self.pid = None
        return status

    def end(self):
        """Kills the process, if that has not ended."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


def portable(failure):
    """An exception that survives a pipe."""
    if isinstance(failure, (OSError, AssertionError)):
        return failure
    return AssertionError("".join(traceback.format_exception(failure))[-600:])


def as_user(uid, function, *arguments, groups=(), gid=None):
    """Runs `function` in a process of that user, whose group has the same number."""

    def become():
        os.setgroups(groups)
        os.setgid(uid if gid is None else gid)
        os.setuid(uid)

    return Child(function, *arguments, before=become).result()


def all_at_once(count, function):
    """Runs `function(number)` in `count` processes at a time; returns what each returned."""
    ready, go = os.pipe()

    def wait_for_all():
        os.close(go)
        # Ends when the parent closes its end, so that all of them start at once.
        os.read(ready, 1)

    children = [Child(function, number, before=wait_for_all) for number in range(count)]
    os.close(ready)
    os.close(go)
    return [child.result() for child in children]


def run_check(name, directory, removed=False):
    """Runs one check in a new directory below `directory`; returns why it failed, or None.

    Where the directory has been `removed` nothing can be created in it.
    """
    place = os.path.join(directory, name)
    child = Child(CHECKS[name], before=lambda: enter(place, removed))
    return verdict(child)


def enter(place, removed):
    os.umask(0)
    os.mkdir(place, 0o755)
    os.chdir(place)
    if removed:
        os.rmdir(place)
    # A check that loops, or whose file system does not answer, ends by itself if it can.
    signal.alarm(CHECK_SECS_MAX)


def verdict(child):
    try:
        child.result()
    except AssertionError as failure:
        return str(failure)
    except OSError as failure:
        name = errno.errorcode.get(failure.errno, failure.errno)
        return f"{name} {failure.filename or ''}: {failure.strerror}"
    return None
