"""Listings on a terminal: right at its width, no word split, the same in every command."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_samples import fill
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from results_db import BaselineRecord
from search_spaces.log_ratio import LogRatio
from search_spaces.records import Status
from tuner.cli.console import cell
from tuner.cli.text_table import TextTable

GOLDEN = Path(__file__).parent / "terminal"
SCREEN = Console(file=io.StringIO(), width=80)
words = st.text("abcdefgh=_.1234567890数", min_size=1, max_size=12)
texts = st.lists(words, max_size=6).map(" ".join)
values = st.none() | texts | st.integers(0, 10**6) | st.floats(0, 1e6)


def lines_of(table: TextTable, width: int | None) -> list[str]:
    return [line.plain for line in table.make_lines(SCREEN, width)]


@given(
    st.lists(st.fixed_dictionaries({name: values for name in "abcd"}), min_size=1, max_size=5),
    st.integers(40, 130),
    st.sets(st.sampled_from("cd")),
)
def test_no_line_is_too_wide_and_no_word_is_split_or_lost(rows, width, details):
    table = TextTable(rows, "abcd", cell, tuple(details), ("a",))
    lines = lines_of(table, width)
    assert all(cell_len(line) <= width for line in lines)
    said = " ".join(lines).split()
    shown = [
        word
        for row in rows
        for name in "abcd"
        if row[name] not in (None, "")
        for word in cell(row[name]).split()
    ]
    if len({cell(row["a"]) for row in rows}) == 1 and len(rows) > 1:
        shown = [word for row in rows for name in "bcd" if row[name] not in (None, "")
                 for word in cell(row[name]).split()]  # fmt: skip
    assert all(said.count(word) >= shown.count(word) for word in shown)


@given(st.lists(st.fixed_dictionaries({"a": texts, "b": values}), min_size=1, max_size=5))
def test_a_row_is_one_line_where_there_is_no_screen(rows):
    assert len(lines_of(TextTable(rows, "ab", cell), None)) == 1 + len(rows)


@pytest.fixture
def results(url):
    """Three kernels: ahead of everything, slower than a baseline, and not known to be either."""
    eager = BaselineRecord("eager", Status.CORRECT, 98.0, LogRatio(0.3365, 0.33, 0.34))
    vendor = BaselineRecord("vendor", Status.CORRECT, 55.3, LogRatio(-0.2357, -0.24, -0.23))
    fill(url, kernel="softmax", baselines=(eager,))
    fill(url, kernel="grouped_attention", baselines=(eager, vendor), median_us=16445.0)
    fill(url, kernel="rms_norm", gain=0.002, half_width=0.03)


@pytest.mark.parametrize("colour", [True, False], ids=["colour", "plain"])
@pytest.mark.parametrize("columns", [44, 80, 120])
def test_the_winners_are_as_written_down(tuner, results, columns, colour):
    """To write them again after a change that is wanted, delete the files and run the test."""
    text = show(["best"], columns, colour)
    path = GOLDEN / f"best_{columns}_{'colour' if colour else 'plain'}.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path} was written; read it")
    assert text == path.read_text()
    assert max(map(len, strip_styles(text).splitlines())) <= columns
    assert colour == bool(re.search(r"\x1b\[3\dm", text))


@pytest.mark.parametrize(
    "command", [["status"], ["compare", "1", "3"], ["history", "softmax"], ["workers", "list"]]
)
@pytest.mark.parametrize("columns", [44, 80, 120])
def test_other_listings_fit_the_screen(tuner, results, command, columns):
    text = strip_styles(show(command, columns, colour=False))
    listing = [line for line in text.splitlines() if not line.startswith("run 3 of")]
    assert max(map(len, listing)) <= columns, text


def strip_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def show(arguments: list[str], columns: int, colour: bool) -> str:
    """The output of a command whose stdout is a terminal of that width."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": f"{columns}", "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    child = subprocess.Popen(
        [sys.executable, "-m", "tuner", *arguments],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=environment if colour else {**environment, "NO_COLOR": "1"},
    )
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # the terminal's other end is closed
        pass
    os.close(ours)
    assert child.wait(60) == 0
    return b"".join(parts).decode().replace("\r\n", "\n")
