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
from bench_samples import scale_kernel
from cli_samples import fill, replay_campaign
from forked_commands import run_command
from hypothesis import given
from hypothesis import strategies as st
from made_up_spaces import synthesize
from rich.cells import cell_len
from rich.console import Console

from results_db import Store
from results_db.stored_records import BaselineRecord
from search_spaces.records import Device, Status, Toolchain
from tuner.base.log_ratio import LogRatio
from tuner.views.column import Listing, cell, columns_of
from tuner.views.rich_table import render_listing
from workers.job_records import Calibration

GOLDEN = Path(__file__).parent / "terminal"
words = st.text("abcdefgh=_.1234567890数", min_size=1, max_size=12)
texts = st.lists(words, max_size=6).map(" ".join)
values = st.none() | texts | st.integers(0, 10**6) | st.floats(0, 1e6)


def lines_of(rows: list[dict], names: str, width: int) -> list[str]:
    screen = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    for part in render_listing(Listing(columns_of(*names), rows), width):
        screen.print(part)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


@given(
    st.lists(st.fixed_dictionaries({name: values for name in "abcd"}), min_size=1, max_size=5),
    st.integers(40, 130),
)
def test_no_line_is_too_wide_and_no_word_is_split_or_lost(rows, width):
    lines = lines_of(rows, "abcd", width)
    assert all(cell_len(line) <= width for line in lines)
    said = " ".join(lines).split()
    shown = [
        word
        for row in rows
        for name in "abcd"
        if row[name] not in (None, "")
        for word in cell(row[name]).split()
    ]
    assert all(said.count(word) >= shown.count(word) for word in shown)


@given(st.lists(st.fixed_dictionaries({"a": texts, "b": values}), min_size=1, max_size=5))
def test_a_row_is_one_line_where_there_is_no_screen(rows):
    head, *lines = Listing(columns_of("a", "b"), rows).to_text().split("\n")
    assert len(lines) == len(rows)
    assert all(line.startswith(cell(row["a"])) for line, row in zip(lines, rows, strict=True))
    assert head.split() == ["a", "b"]


def test_no_word_of_a_note_or_an_error_is_split(results):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tuner", "compare", "1", "no-run-of-this-name"]
    environment = {**os.environ, "COLUMNS": "40"}
    subprocess.run(command, cwd=results, stderr=theirs, env=environment, check=False)
    lines = os.read(ours, 10_000).decode().splitlines()
    assert max(map(len, lines)) <= 40
    said = " ".join(lines).split()
    assert "'no-run-of-this-name'" in said
    assert "revision;" in said


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder with three kernels: ahead, slower than a baseline, and not known to be either."""
    eager = BaselineRecord("eager", Status.CORRECT, 98.0, LogRatio(0.3365, 0.33, 0.34))
    vendor = BaselineRecord("vendor", Status.CORRECT, 55.3, LogRatio(-0.2357, -0.24, -0.23))
    folder = tmp_path_factory.mktemp("results")
    url = f"sqlite:///{folder / 'results' / 'tuner.db'}"
    fill(url, kernel="softmax", baselines=(eager,))
    fill(url, kernel="grouped_attention", baselines=(eager, vendor), median_us=16445.0)
    fill(url, kernel="rms_norm", gain=0.002, half_width=0.03)
    return folder


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    """A folder in which a campaign of two recordings ran twice, the first time with few trials."""
    folder = tmp_path_factory.mktemp("farm")
    scale_kernel(folder)
    for seed, name in enumerate(("one", "two"), 1):
        recorded = synthesize(30, seed=seed, failures=0.2)
        recorded.save(folder / f"{name}.json.gz", columns=True)
    replay_campaign(folder, "one.json.gz", "two.json.gz")
    with Store.open(f"sqlite:///{folder / 'results' / 'tuner.db'}") as store:
        calibration = Calibration(0.032, {"events": 2.5}, 40.0, 4.24e6, {"bfloat16": 7.6e8})
        store.record_calibration(H200, Toolchain(), "node7", calibration)
    for options in (["--strategy", "random", "--trials", "3"], ["--fresh"]):
        done = run_command(["run", "c", "--no-report", "--quiet", *options], folder)
        assert done.returncode == 0, done.stderr
    return folder


#: A machine whose devices have names that are not those of the machine that runs the tests.
H200 = Device("cuda", "NVIDIA H200", "cuda:90", sm_count=132, memory_bytes=150 * 10**9,
              shared_bytes=232448, power_limit_w=700.0, uuid="GPU-1")  # fmt: skip
EPYC = Device("cpu", "AMD EPYC 9654 96-Core Processor", "cpu:x86-64-avx512", sm_count=96,
              memory_bytes=2**38)  # fmt: skip
#: Commands whose listings are written down, by the name of their files.
LISTINGS = {
    "best": ["best"],
    "run": ["run", "c", "--fresh", "--no-report"],
    "plan": ["run", "c", "--fresh", "--dry-run"],
    "status": ["status", "2"],
    "bench": ["bench", "recorded:two.json.gz", "--quiet"],
    "compare": ["compare", "1", "2"],
    "spaces": ["spaces", "show", "scale.py:Scale"],
    "parameters": ["spaces", "show", "recorded:two.json.gz", "--workload", "N=4096"],
    "workers": ["workers", "list"],
}


@pytest.mark.parametrize(
    ("listing", "columns", "colour"),
    [
        ("best", 44, False),
        *((listing, 80, True) for listing in LISTINGS),
        *((listing, 120, False) for listing in LISTINGS),
    ],
)
def test_a_listing_is_as_written_down(results, farm, listing, columns, colour):
    """To write them again after a change that is wanted, delete the files and run the test."""
    text = show(LISTINGS[listing], columns, colour, results if listing == "best" else farm)
    # Times of this machine and names of its folders are none of the listing.
    text = re.sub(r"started .{16}Z, took \d+ s", "started TIME, took TIME", text)
    text = re.sub(r"(?m)^table: .*/(\w+)@.*", r"table: FOLDER/\1@DEVICE.json", text)
    path = GOLDEN / f"{listing}_{columns}_{'colour' if colour else 'plain'}.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path} was written; read it")
    assert text == path.read_text()
    assert max(map(len, strip_styles(text).splitlines())) <= columns
    judged = listing in ("best", "run", "status", "bench", "compare")
    assert (colour and judged) == bool(re.search(r"\x1b\[3\dm", text))


@pytest.mark.parametrize(
    "arguments",
    [["history", "synthetic"], *(LISTINGS[name] for name in LISTINGS if name != "run")],
    ids=lambda words: words[0],
)
def test_every_listing_fits_a_narrow_screen(farm, arguments):
    lines = strip_styles(show(arguments, 44, False, farm)).splitlines()
    assert max(len(line) for line in lines if not line.startswith("run ")) <= 44, lines


def strip_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


#: What replaces the devices, the processes and the name of the machine.
MACHINE = f"""
import socket
from search_spaces.records import Device
from workers import device, pools
from virtual_pool import VirtualPool
pools.create = VirtualPool
socket.gethostname = lambda: "node7"
devices = [{H200!r}, {EPYC!r}]
device.find_devices = lambda kind: [each for each in devices if each.kind == kind]
"""


def show(arguments: list[str], columns: int, colour: bool, folder: Path) -> str:
    """The output of a command whose stdout is a terminal of that width."""
    done = run_command(
        arguments,
        folder,
        on_terminal=True,
        before=MACHINE,
        COLUMNS=f"{columns}",
        TERM="xterm",
        NO_COLOR="" if colour else "1",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace("\r\n", "\n")
