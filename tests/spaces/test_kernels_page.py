"""The page of all kernels is what the classes and the committed results give."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

from search_spaces.registry import BUILT_IN

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, f"{ROOT / 'scripts'}")

import site_hooks  # noqa: E402

PAGE = ROOT / "docs" / "kernels.md"


def test_the_page_and_its_pictures_are_current():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "write_kernels_page.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_kernel_is_in_one_group():
    rows = re.findall(r"^\| [\w -]+ \| (\[`.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(re.findall(r"\[`(\w+)`\]\(#\1\)", " ".join(rows))) == sorted(BUILT_IN)


def test_every_row_of_the_overview_has_a_section():
    text = PAGE.read_text()
    sections = re.findall(r"^### (\w+)$", text, re.MULTILINE)
    rows = re.findall(r"^\| \[`\w+`\]\(#(\w+)\)", text, re.MULTILINE)
    assert rows == sorted(BUILT_IN) == sorted(sections)
    assert re.findall(r"^<!-- generated: results (\w+) -->$", text, re.MULTILINE) == sections


def test_the_site_shows_the_results_of_each_kernel():
    """By device, each row of the data once; without a result, the workloads alone."""
    with (ROOT / "docs" / "kernels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["kernel"] for row in rows} == set(BUILT_IN)
    for kernel in BUILT_IN:
        own = [row for row in rows if row["kernel"] == kernel]
        text = site_hooks.results(kernel)
        shown = [line.strip("| ").split(" | ") for line in text.splitlines() if "`" in line]
        assert [cells[0] for cells in shown] == [f"`{row['workload']}`" for row in own]
        assert ("No result is committed." in text) == (not own[0]["device"])
        assert all(f"{row['device']}, {row['measured']}:" in text for row in own if row["device"])
        timed = [(cells[1], row["time, us"]) for cells, row in zip(shown, own, strict=True)
                 if row["time, us"]]  # fmt: skip
        assert all(one == other for one, other in timed)
