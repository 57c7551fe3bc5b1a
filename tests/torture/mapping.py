"""A local process that maps a file and touches it with loads and stores only.

    mapping.py FILE BYTES

maps the first BYTES of FILE and obeys its standard input: `r OFFSET COUNT\n` is answered with that
many bytes, and `w OFFSET COUNT\n` with that many bytes behind it stores them and is answered with
one byte.
"""

import mmap
import sys


def main():
    with open(sys.argv[1], "r+b") as file:
        mapped = mmap.mmap(file.fileno(), int(sys.argv[2]))
    while order := sys.stdin.buffer.readline():
        verb, offset, count = order.split()
        span = slice(int(offset), int(offset) + int(count))
        if verb == b"r":
            sys.stdout.buffer.write(mapped[span])
        else:
            mapped[span] = sys.stdin.buffer.read(int(count))
            sys.stdout.buffer.write(b".")
        sys.stdout.buffer.flush()


main()
