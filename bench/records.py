"""What each benchmark does with its results: a line of JSON each, with the circumstances."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text):
    """`4GiB` as bytes."""
    for suffix, factor in SUFFIXES.items():
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) * factor
    raise argparse.ArgumentTypeError(f"{text}: want a number and KiB, MiB or GiB")


def circumstances(fs, note):
    """What a reader must know to compare a result with another one."""
    with open("/proc/meminfo", encoding="ascii") as file:
        memory_kib = int(file.readline().split()[1])
    commit = subprocess.run(
        ["git", "-C", REPOSITORY, "describe", "--always", "--dirty"],
        text=True, capture_output=True, check=False,
    ).stdout.strip()  # fmt: skip
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / (1 << 20), 1),
        "fs": fs,
        "device": "loop, direct I/O" if fs == "xfs" else "the machine's own",
        "note": note,
    }


class Records:
    """The results of one run: in memory for the table, and each at once in a file for others."""

    def __init__(self, directory, name, facts):
        """`name` tells the file from those of other programs; `facts` go into each of its lines."""
        directory.mkdir(exist_ok=True)
        stamp = facts["date"].replace(":", "").replace("+0000", "Z")
        self.path = directory / f"{stamp}-{name}.jsonl"
        self.facts = facts
        self.all = []

    def add(self, record):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({**self.facts, **record}) + "\n")
        self.all.append(record)
