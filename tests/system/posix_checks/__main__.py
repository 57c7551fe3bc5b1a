"""Runs the checks in a directory: tests/system/posix_checks [--module=NAME] [--removed] DIR [CHECK...]

Each line is a JSON list of the check's name and why it failed, or null. Needs root. Exit status 1:
a check failed.
"""

import argparse
import importlib
import json
import pathlib
import sys

import place

HERE = pathlib.Path(__file__).resolve().parent
MODULES = sorted(
    file.stem for file in HERE.glob("*.py") if file.stem not in ("__main__", "place")
)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", choices=MODULES, action="append")
    parser.add_argument(
        "--removed", action="store_true",
        help="remove the directory of a check before it begins, so that it fails",
    )  # fmt: skip
    parser.add_argument("directory")
    parser.add_argument("check", nargs="*", help="only these")
    options = parser.parse_args()
    for module in options.module or MODULES:
        importlib.import_module(module)
    failed = False
    for name in options.check or place.CHECKS:
        reason = place.run_check(name, options.directory, options.removed)
        failed |= reason is not None
        print(json.dumps([name, reason]), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
