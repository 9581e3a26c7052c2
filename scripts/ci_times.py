"""How long `.ci/run` took, by part: print the runs that are kept, or add one.

    python scripts/ci_times.py                       the runs, oldest first
    python scripts/ci_times.py --add PART=SECONDS... add the run that has just ended, and print it

Runs stand in benchmarks/results/ci_times.csv; whoever commits a change commits its run. Times are
wall seconds of one machine, and say nothing without its processors and what else ran there (load).
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "benchmarks" / "results" / "ci_times.csv"
PARTS = ("setup", "checks", "toolchain", "tests")
COLUMNS = ("date", "revision", "processors", "load", *PARTS, "total")


def main() -> int:
    """Print all runs, or the one that is added."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", nargs="+", metavar="PART=SECONDS", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args()
    rows = _read()
    if options.add:
        given = dict(part.split("=") for part in options.add)
        if set(given) != set(PARTS):
            parser.error(f"give the seconds of {', '.join(PARTS)}")
        rows = [_describe({part: int(given[part]) for part in PARTS})]
        _append(rows[0])
    print("  ".join(f"{column:>10}" for column in COLUMNS))
    for row in rows:
        print("  ".join(f"{row[column]:>10}" for column in COLUMNS))
    return 0


def _read() -> list[dict[str, str]]:
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def _describe(seconds: dict[str, int]) -> dict[str, str]:
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "revision": done.stdout.strip() or "?",
        "processors": f"{os.cpu_count()}",
        # Of the last quarter of an hour: the run's own part of it is three to four.
        "load": f"{os.getloadavg()[2]:.1f}",
        **{part: f"{seconds[part]}" for part in PARTS},
        "total": f"{sum(seconds.values())}",
    }


def _append(row: dict[str, str]) -> None:
    with FILE.open("a", newline="") as file:
        csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)


if __name__ == "__main__":
    sys.exit(main())
