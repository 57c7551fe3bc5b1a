"""What the I/O modes are for: ratios of lines measured in one run, and whether they are reached."""

import dataclasses
import statistics

from mode_lines import COPYING, LOCAL, MODES

RATE, SERVER_CPU, ALL_CPU = "rate_per_sec", "server_cpu_secs_per_unit", "cpu_secs_per_unit"
WORDS = {RATE: "rate", SERVER_CPU: "server CPU", ALL_CPU: "CPU of server and kernel"}


@dataclasses.dataclass(frozen=True)
class Target:
    """A line on one contestant divided by another, and what that should come to at least or most.

    With neither there is nothing to reach: the ratio is there to be read.
    """

    section: str
    line: str
    contestant: str
    against_line: str
    # More than one: the best of them.
    against: tuple
    figure: str = RATE
    at_least: float | None = None
    at_most: float | None = None

    def title(self):
        if self.against_line != self.line:
            beside = self.against_line
        else:
            beside = self.against[0] if len(self.against) == 1 else "best of the others"
        return f"{self.line}: {self.contestant} / {beside}, {WORDS[self.figure]}"


@dataclasses.dataclass(frozen=True)
class Judgement:
    """The median of the rounds' ratios and their spread; None where a side is missing."""

    target: Target
    ratio: float | None
    lowest: float | None = None
    highest: float | None = None
    against: str | None = None

    def verdict(self):
        wanted = self.target
        if self.ratio is None:
            return "not measured"
        if wanted.at_least is None and wanted.at_most is None:
            return ""
        met = (wanted.at_least is None or self.ratio >= wanted.at_least) and (
            wanted.at_most is None or self.ratio <= wanted.at_most
        )
        return "met" if met else "missed"

    def record(self):
        return {
            "kind": "target",
            **dataclasses.asdict(self.target),
            "against": self.against,
            "ratio": self.ratio,
            "lowest": self.lowest,
            "highest": self.highest,
            "verdict": self.verdict(),
        }


def judge(target, records):
    """Divides within each round: what slowed a whole round down slowed both sides."""
    mine = _by_round(records, target.line, target.contestant, target.figure)
    theirs = {
        name: _by_round(records, target.against_line, name, target.figure)
        for name in target.against
    }
    theirs = {name: rounds for name, rounds in theirs.items() if rounds}
    if not mine or not theirs:
        return Judgement(target, None)
    # The best by its median over all rounds. The best of each round would be one that had luck in
    # it, which nothing could keep up with.
    best = max(theirs, key=lambda name: statistics.median(theirs[name].values()))
    ratios = [
        mine[number] / theirs[best][number]
        for number in mine
        if theirs[best].get(number)
    ]  # fmt: skip
    if not ratios:
        return Judgement(target, None)
    return Judgement(target, statistics.median(ratios), min(ratios), max(ratios), best)


def _by_round(records, line, contestant, figure):
    return {
        record["round"]: record[figure]
        for record in records
        if (record["line"], record["contestant"]) == (line, contestant) and figure in record
    }


def targets(lines, sections):
    """Those of these sections, for the lines that were measured."""
    makers = {
        "local": _local,
        "streams": _streams,
        "auto": _auto,
        "dontcache": _dontcache,
        "cpu": _cpu,
        "splice": lambda mine: _compared("splice", mine, "buffered", COPYING),
        "split": lambda mine: _compared("split", mine, "direct", "dontcache"),
    }
    return [
        target
        for section, make in makers.items() if section in sections
        for target in make([line for line in lines if section in line.sections])
    ]  # fmt: skip


def _local(lines):
    return [
        Target("local", line.name, "direct", line.name, (LOCAL,), at_least=0.9) for line in lines
    ]


def _streams(_lines):
    found = []
    for rw in ("write", "read"):
        small, large = f"stream {rw} 47,008 B", f"stream {rw} 1 MiB"
        for mode in MODES[1:]:
            found.append(Target("streams", small, mode, large, (mode,), at_least=0.8))
            found.append(Target("streams", small, mode, small, ("buffered",), at_least=2.0))
    return found


def _auto(lines):
    return [
        Target("auto", line.name, "auto", line.name, MODES[:3], at_least=0.95) for line in lines
    ]


def _dontcache(_lines):
    plenty, short = "stream write 1 MiB", "stream write, memory short"
    return [
        Target("dontcache", plenty, "dontcache", plenty, ("buffered",), at_least=0.9),
        Target("dontcache", short, "dontcache", short, ("buffered",), at_least=1.0),
    ]


def _cpu(lines):
    return [
        Target("cpu", line.name, "direct", line.name, ("buffered",), figure, at_most=0.6)
        for line in lines
        for figure in (SERVER_CPU, ALL_CPU)
    ]


def _compared(section, lines, contestant, other):
    """Rate and CPU side by side, with nothing promised."""
    return [
        Target(section, line.name, contestant, line.name, (other,), figure)
        for line in lines
        for figure in (RATE, ALL_CPU)
    ]
