"""The threads of the test: each changes its own files and has the guest open them."""

import collections
import contextlib
import json
import random
import threading
import time
import zlib

import changers
from files import KIB, MIB, File

# The opened file has its last content at once; later opens show how long a wrong one stays.
LATER_SECS = (0, 0.2, 1, 4)
ANSWER_SECS_MAX = 300
BLOCK_BYTES = 512
HOT_BYTES = (6 * MIB, 40 * KIB, 300 * KIB, 9 * KIB, 64 * KIB, 40 * KIB)
COLD_BYTES = 24 * KIB


class Guest:
    """One connection of the agent."""

    def __init__(self, connection):
        connection.settimeout(ANSWER_SECS_MAX)
        self.connection = connection
        self.lines = connection.makefile("rb")

    def close(self):
        """Ends this connection's part of the agent, which waits for requests until then."""
        self.lines.close()
        self.connection.close()

    def ask(self, what, **arguments):
        """Has the agent do one thing; raises its OSError."""
        self.connection.sendall(json.dumps({"do": what, **arguments}).encode() + b"\n")
        line = self.lines.readline()
        if not line:
            raise ConnectionError("the guest has gone")
        answer = json.loads(line)
        if "error" in answer:
            raise OSError(answer["error"], f"{what} {arguments}: {answer['text']}")
        return answer


class Tally:
    """What all workers did, and what was wrong."""

    def __init__(self, out):
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.out = out

    def count(self, *names):
        with self.lock:
            self.counts.update(names)

    def wrong(self, kind, **what):
        line = json.dumps({"wrong": kind, "time": time.time(), **what})
        with self.lock:
            self.counts[f"WRONG {kind}"] += 1
            print(line, file=self.out, flush=True)

    def is_right(self):
        return not any(name.startswith("WRONG") for name in self.counts)


class Worker(threading.Thread):
    """Changes its own files and has the guest open them after each change."""

    def __init__(self, number, test, guest):
        super().__init__(name=f"worker-{number}", daemon=True)
        self.test, self.guest, self.tally = test, guest, test.tally
        self.dice = random.Random(f"{test.options.seed}/{number}")
        self.hot, self.cold = self._files(number)
        kinds = ((changers.Local, 4), (changers.Nfs3, 3), (changers.Commands, 0.4))
        kinds = [*kinds, (changers.InGuest, 4)]
        kinds = [(kind, often) for kind, often in kinds if kind.name not in test.options.without]
        self.changers = [kind(self) for kind, _ in kinds]
        self.how_often = [often for _, often in kinds]
        self.failure = None

    def _files(self, number):
        """Files that change often, half of them read meanwhile, and files for delegations."""
        options, directory = self.test.options, self.test.directory
        first = number * (options.hot + options.cold)
        behind = first + options.hot
        hot = [
            File(directory, name, HOT_BYTES[name % len(HOT_BYTES)], not options.quiet and name % 2)
            for name in range(first, behind)
        ]
        cold = range(behind, behind + options.cold)
        return hot, [File(directory, name, COLD_BYTES, False) for name in cold]

    def run(self):
        try:
            while time.monotonic() < self.test.ends:
                if self.cold and self.dice.random() < 0.5:
                    self.cold_round(self.dice.choice(self.cold))
                else:
                    self.hot_round(self.dice.choice(self.hot))
        except Exception as failure:
            self.failure = failure
            self.test.ends = 0
            raise

    def hot_round(self, file):
        for _ in range(self.dice.choice((1, 1, 1, 2, 3))):
            self.change(file)
        for mount in self.dice.sample(self.test.mounts, self.dice.choice((1, 2, 3))):
            self.check(file, mount)
        self.check_local(file)

    def cold_round(self, file):
        """Opens a file until a client of version 4 may have a delegation, and changes it."""
        mounts = self.dice.sample(self.test.mounts, 2)
        for mount in mounts:
            self.check(file, mount)
            self.check(file, mount)
        self.change(file)
        for mount in mounts:
            self.check(file, mount)
        self.check_local(file)

    def change(self, file):
        changer = self.dice.choices(self.changers, self.how_often)[0]
        if self.dice.random() < self.test.options.holds:
            self.hold_or_release(file, changer)
        began = time.monotonic()
        kind, what = changer.change(file)
        file.note(f"{kind} {what}, took {time.monotonic() - began:.3f} s")
        self.tally.count("changes", f"change {kind}")

    def hold_or_release(self, file, changer):
        """Leaves the file open in the guest, or closes it.

        It is not open for writing: Linux would then take changes by others for its own.
        """
        if file.held is not None:
            return changer.release(file)
        path = self.dice.choice(self.test.mounts).path(file.name)
        self.guest.ask("hold", path=path)
        file.held = path
        file.note(f"open at {path}")

    def look(self, file, name):
        """Opens the file by a name that it has for a moment."""
        self.check(file, self.dice.choice(self.test.mounts), name, links=2)

    def check(self, file, mount, name=None, links=1):
        """Opens, fstat()s and reads the file in the guest; the result must be the last content."""
        way = self.dice.choices(("read", "map", "direct"), (8, 1, 1))[0]
        path = mount.path(name or file.name)
        began = time.time()
        try:
            seen = self.guest.ask("read", path=path, way=way)
        except OSError as error:
            history = list(file.history)
            self.tally.wrong("error", path=path, way=way, text=str(error), history=history)
            return
        self.tally.count("opens", f"opens through {mount}", f"opens by {way}")
        file.note(f"open at {began:.3f} through {mount}, {way}, ctime {seen['ctime']}")
        wrong = [name for name, right in self.verdicts(file, seen, links) if not right]
        if wrong:
            self.explain(file, path, (way, seen), wrong)

    def verdicts(self, file, seen, links):
        return (
            ("size", seen["size"] == seen["bytes"] == len(file.data)),
            ("data", seen["sum"] == zlib.crc32(file.data)),
            ("links", seen["links"] == links),
            ("mode", seen["mode"] == file.mode),
        )

    def explain(self, file, path, opened, wrong):
        """Reports a wrong result, where it begins, and what later opens find."""
        way, seen = opened
        difference = self.difference(file, seen["bytes"]) if "data" in wrong else None
        later = []
        for pause in LATER_SECS:
            time.sleep(pause)
            with contextlib.suppress(OSError):
                found = self.guest.ask("read", path=path, way=way)
                right = dict(self.verdicts(file, found, seen["links"]))
                later.append({"after": pause, **right, "nlink": found["links"]})
        self.tally.wrong(
            "+".join(wrong), path=path, way=way, noisy=file.is_noisy, held=file.held, seen=seen,
            size=len(file.data), mode=file.mode, difference=difference, later=later,
            local_is_right=file.local.read_bytes() == file.data, history=list(file.history),
        )  # fmt: skip

    def difference(self, file, count):
        """Where the guest's data and the right data differ, and the guest's there."""
        found = bytearray()
        for begin in range(0, count, MIB):
            answer = self.guest.ask("data", begin=begin, end=min(begin + MIB, count))
            found += bytes.fromhex(answer["data"])
        length = min(len(found), len(file.data))
        # In blocks first, because this is a loop of Python.
        blocks = range(0, length, BLOCK_BYTES)
        wrong = [
            at for at in blocks
            if found[at : at + BLOCK_BYTES] != file.data[at : at + BLOCK_BYTES]
        ]  # fmt: skip
        if not wrong:
            return None
        first = next(at for at in range(wrong[0], length) if found[at] != file.data[at])
        shown = found[first : first + 16].hex()
        return {"first": first, "last_block": wrong[-1], "blocks": len(wrong), "found": shown}

    def check_local(self, file):
        """What clients wrote is in the file on this machine."""
        self.tally.count("local checks")
        found = file.local.read_bytes()
        if found != file.data:
            sizes = {"size": len(found), "right_size": len(file.data)}
            self.tally.wrong("local", file=file.name, **sizes, history=list(file.history))
            # Later results are judged by what it is now.
            file.data = bytearray(found)
