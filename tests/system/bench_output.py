#!/usr/bin/env python3
"""What `spillway bench` makes of records: one page, drawings, Markdown. Its medians are computed
here again from the lines of JSON.
"""

import re
import statistics
import xml.etree.ElementTree as xml

from bench_rig import Bench, near, quick_directory
from harness import Server, case, check, main, run_ok

XHTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"
TINY = (
    "--ranks", 2, "--depth", 8, "--size", "2MiB", "--random-operations", 50, "--phases",
    "easy-write,random-read", "--modes", "buffered,direct", "--cache", "found",
)  # fmt: skip
# Three digits are shown.
ROUNDING = 0.006
FIGURES = {"throughput, MiB/s": "mib_per_sec", "latency p50, us": "latency_p50_us"}
# What is fetched, or run, when a page is looked at.
FETCHING_TAGS = ("script", "iframe", "object", "embed", "link", "img", "image", "use")
FETCHING_ATTRIBUTES = ("src", "href", "data", "action")


def parsed(path):
    """The tree of a file, which must be well-formed, run nothing and need no other files."""
    text = path.read_text(encoding="utf-8")
    tree = xml.fromstring(text)
    for element in tree.iter():
        tag = element.tag.rpartition("}")[2]
        check(tag not in FETCHING_TAGS, f"{path.name} has <{tag}>")
        for name, value in element.attrib.items():
            name = name.rpartition("}")[2]
            is_inside = name not in FETCHING_ATTRIBUTES or value.startswith("#")
            check(is_inside and not name.startswith("on"), f"{path.name}: {name}={value}")
    for found in re.findall(r"url\(\s*['\"]?([^)]*)\)|(@import)", text):
        check(found[0].startswith("#"), f"{path.name} refers to {found}")
    return tree


def medians(records, phase):
    """Subject to figure to its median over the rounds."""
    subjects = {one["subject"] for one in records.of(phase=phase)}
    return {
        subject: {
            figure: statistics.median(records.figure(figure, phase=phase, subject=subject))
            for figure in FIGURES.values()
        }
        for subject in subjects
    }  # fmt: skip


def number(cell):
    """`1,234 (1,200 to 1,300)` as a number."""
    return float(cell.split(" ")[0].replace(",", ""))


def check_rows(rows, records, phase):
    """The cells of a table: a row for each figure, a column for each subject, and their heads."""
    subjects, rows = rows[0][1:], {row[0]: row[1:] for row in rows[1:]}
    expected = medians(records, phase)
    check(set(subjects) == set(expected), f"{phase}: columns {subjects}")
    for title, figure in FIGURES.items():
        for subject, cell in zip(subjects, rows[title]):
            right = expected[subject][figure]
            is_right = near(number(cell), right, ROUNDING)
            check(is_right, f"{phase}, {subject}: {title} {cell}, not {right}")


def check_table(page, records, phase):
    """The table of all figures of a phase."""
    wanted = f"All figures of {phase}"
    for details in page.iter(f"{XHTML}details"):
        if details.find(f"{XHTML}summary").text == wanted:
            break
    else:
        raise AssertionError(f"no table of {phase}")
    rows = [[cell.text or "" for cell in row] for row in details.iter(f"{XHTML}tr")]
    check_rows(rows, records, phase)


@case
def page_and_drawings():
    """Of a run, and again of its records: the same."""
    bench = Bench()
    page, drawings = bench.results / "page.html", bench.results / "drawings"
    again, redrawn = bench.results / "again.html", bench.results / "redrawn"
    with quick_directory() as directory:
        records = bench.run("io", directory, *TINY, "--report", page, "--svg", drawings)
    tree = parsed(page)
    for phase in ("easy-write", "random-read"):
        check_table(tree, records, phase)
    inside = len(list(tree.iter(f"{SVG}svg")))
    files = sorted(drawings.iterdir())
    check(len(files) >= 10, f"only {len(files)} drawings")
    check(len(files) == inside, f"{inside} drawings in the page, {len(files)} in files")
    for file in files:
        drawing = parsed(file)
        check(drawing.tag == f"{SVG}svg", f"{file.name} is a {drawing.tag}")
        check(next(drawing.iter(f"{SVG}text"), None) is not None, f"{file.name} has no words")
    run_ok(Server.binary, "bench", "report", records.path, "--html", again, "--svg", redrawn)
    check(again.read_bytes() == page.read_bytes(), "the page of the records is another one")
    for file in files:
        same = (redrawn / file.name).read_bytes() == file.read_bytes()
        check(same, f"{file.name} is drawn in another way")


def check_markdown(page, records, phase):
    """The table of a phase: a row for each figure, a column for each subject."""
    section = page.split(f"\n### {phase}\n")[1].split("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [[cell.strip(" *") for cell in line.strip("| ").split(" | ")] for line in lines]
    check_rows(rows, records, phase)


def check_terminal(page, records, phase):
    """The lines of a phase that begin with a subject have its rate in them."""
    section = page.split(f"\n{phase}; ")[1].split("\n\n")[0]
    for subject, figures in medians(records, phase).items():
        lines = [line.split() for line in section.splitlines()]
        rates = [line[1] for line in lines if line and line[0] == subject and len(line) > 1]
        right = figures["mib_per_sec"]
        is_right = rates and near(number(rates[0]), right, ROUNDING)
        check(is_right, f"{phase}, {subject}: {rates}, not {right} MiB/s")


@case
def tables_from_records():
    """On the terminal and as Markdown: each subject, with the medians."""
    bench = Bench()
    markdown = bench.results / "page.md"
    with quick_directory() as directory:
        records = bench.run("io", directory, *TINY)
    text = run_ok(Server.binary, "bench", "report", records.path).stdout
    run_ok(Server.binary, "bench", "report", records.path, "--markdown", markdown)
    page = markdown.read_text(encoding="utf-8")
    for phase in ("easy-write", "random-read"):
        check_terminal(text, records, phase)
        check_markdown(page, records, phase)


if __name__ == "__main__":
    main(__file__)
