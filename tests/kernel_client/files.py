"""The files of the test and what they must contain."""

import collections
import os
import random
import time

KIB, MIB = 1 << 10, 1 << 20
COUNTS = (1, 7, 100, 512, 4096, 5000, 47008, 65536, 300_000, MIB, 4 * MIB)
PAGE_BYTES = 4096
MODES = (0o600, 0o644, 0o666, 0o755)
NEW_MODE = 0o644
REPLACED_BYTES_MAX = 100_000
# Steps that the report of a wrong result shows.
HISTORY = 12


def content(seed, count):
    """The data of a change, as the agent makes it."""
    return random.Random(seed).randbytes(count)


class File:
    """A file, changed by one thread, so that its content is known at each moment."""

    def __init__(self, directory, number, bytes_max, is_noisy):
        self.name = f"f{number}"
        self.local = directory / self.name
        self.bytes_max = bytes_max
        # It is read during changes too. The kernel renews times before it writes the data of a
        # local change, so a local program sets them again behind it.
        self.is_noisy = is_noisy
        self.data = bytearray(content(number, bytes_max // 2))
        self.mode = NEW_MODE
        self.local.write_bytes(self.data)
        os.chmod(self.local, self.mode)
        self.links = 0
        # The path in the guest at which it is open for reading.
        self.held = None
        self.history = collections.deque(maxlen=HISTORY)

    @property
    def new(self):
        return f"{self.name}.new"

    def new_link(self):
        """A name that no client knows to be missing: open(2) does not renew that."""
        self.links += 1
        return f"{self.name}.link{self.links}"

    def note(self, what):
        self.history.append(f"{time.time():.3f} {what}")

    def put(self, at, data):
        """Writes, also behind the end."""
        self.cut(max(at, len(self.data)))
        self.data[at : at + len(data)] = data

    def cut(self, length):
        """Makes the file shorter or longer."""
        del self.data[length:]
        self.data.extend(bytes(length - len(self.data)))

    def become(self, data, mode=NEW_MODE):
        """The name is another file now."""
        self.data, self.mode = bytearray(data), mode

    def any_span(self, dice):
        """A place, at times behind the end, and a length."""
        count = min(dice.choice(COUNTS), self.bytes_max // 2)
        at = dice.randrange(min(len(self.data) + 5000, self.bytes_max - count) + 1)
        return (at & ~(PAGE_BYTES - 1) if dice.random() < 0.4 else at), count

    def any_appendix(self, dice):
        """The end, and a length that the file has room for."""
        count = min(self.any_span(dice)[1], self.bytes_max - len(self.data))
        return len(self.data), max(count, 1)

    def any_replacement(self, dice):
        return dice.randrange(min(self.bytes_max, REPLACED_BYTES_MAX))
