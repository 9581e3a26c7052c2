"""What a call of `tune` shows while it works: on a terminal, in a notebook, in a log."""

from __future__ import annotations

import io
import itertools
import os
import pty
import re
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_spaces import synthesize

import tuner
from tuner.cli.progress import ProgressLines as CommandLines
from tuner.cli.progress import picture
from tuner.display import show_progress
from tuner.display.lines import LineScreen
from tuner.display.progress_thread import Ticker
from tuner.display.terminal import TerminalLine
from tuner.progress import Progress

ROOT = Path(__file__).parents[2]


def words(recorded, **arguments) -> list[str]:
    """The stages that a call reports, without repetitions."""
    seen: list[Progress] = []
    tuner.tune(**recorded, **arguments, on_progress=seen.append, progress=False)
    assert all(each.activity for each in seen)
    pairs = itertools.pairwise([Progress.of_stage(""), *seen])
    return [after.stage for before, after in pairs if after.stage != before.stage]


def test_a_call_reports_its_stages_in_order(recorded):
    found = words(recorded, budget=30)
    order = ["loading", "starting", "building", "searching", "racing", "confirming"]
    order += ["closing", "writing"]
    assert found[:2] == order[:2]
    assert found[-2:] == order[-2:]
    assert [stage for stage in order if stage in found] == found


def test_the_activity_names_the_best_time_and_the_finals(recorded):
    texts: list[str] = []
    found = tuner.tune(
        **recorded, budget=60, on_progress=lambda p: texts.append(p.activity), progress=False
    )
    assert found.median_us
    assert texts[0] == "loading the kernels"
    assert any(re.fullmatch(r"searching: \d+ trials, best [\d.]+ us", text) for text in texts)


def test_the_time_left_counts_the_finals(recorded):
    seen: list[Progress] = []
    tuner.tune(
        **recorded,
        budget=20,
        on_progress=seen.append,
        progress=False,
        settings={"pool": {"devices": {"simulated": {"runners": 1}}}},
    )
    left = [each.left_s for each in seen if each.tasks_total and each.left_s is not None]
    assert left
    for each in seen:
        if each.tasks_total and each.stage == "searching" and each.left_s is not None:
            assert each.total is not None
            assert each.left_s > (each.total - each.done) / each.trials_per_s


class Screen:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ended: list[str] = []

    def show(self, progress: Progress, text: str) -> None:
        self.texts.append(text)

    def end(self, text: str) -> None:
        self.ended.append(text)


def until(condition) -> None:
    deadline = time.monotonic() + 290
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_silent_stage_is_shown_again_and_again():
    screen = Screen()
    with Ticker(screen) as ticker:
        ticker(Progress.of_stage("opening", "opening NVIDIA H200"))
        until(lambda: len(screen.texts) >= 4)
    assert re.match(r"starting +\d+ s", screen.texts[0])
    assert all(text.startswith("opening NVIDIA H200  ") for text in screen.texts[1:])
    (end,) = screen.ended
    assert end.startswith("done in ")


def test_a_screen_that_fails_is_left_alone():
    class Broken(Screen):
        def show(self, progress: Progress, text: str) -> None:
            super().show(progress, text)
            raise BrokenPipeError

    screen = Broken()
    with Ticker(screen) as ticker:
        ticker(Progress.of_stage("searching"))
    assert (len(screen.texts), screen.ended) == (1, [])


def test_a_call_that_fails_says_after_which_time():
    screen = Screen()
    with pytest.raises(KeyboardInterrupt), Ticker(screen):
        raise KeyboardInterrupt
    (end,) = screen.ended
    assert re.fullmatch(r"stopped after \d+ s", end)


def test_a_line_on_a_terminal_rewrites_itself_and_is_erased():
    stream = io.StringIO()
    line = TerminalLine(stream)
    line.show(Progress.of_stage("a"), "x" * 500)
    line.show(Progress.of_stage("a"), "short")
    assert "\n" not in stream.getvalue()
    first, second = stream.getvalue().split("\r\x1b[K")[1:]
    assert first.endswith("…")
    assert len(first) < 500
    assert second == "short"
    line.end("done")
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_log_gets_a_line_for_each_stage_and_for_a_long_one():
    stream, now = io.StringIO(), [0.0]
    lines = LineScreen(stream, clock=lambda: now[0])
    search = replace(Progress.of_stage("searching"), tasks_total=1)
    for second in range(12):
        now[0] = float(second)
        lines.show(replace(search, activity=f"{second} trials"), f"searching {second}")
    lines.show(Progress.of_stage("racing"), "racing 9")
    lines.end("done in 12 s")
    assert stream.getvalue().splitlines() == [
        "searching 0",
        "searching 10",
        "racing 9",
        "done in 12 s",
    ]


@pytest.mark.parametrize(("progress", "lines"), [(None, False), (False, False), (True, True)])
def test_a_stream_that_is_no_terminal_gets_lines_only_on_request(progress, lines, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with show_progress(progress) as show:
        assert (show is not None) == lines
        if show is not None:
            show(Progress.of_stage("racing", "racing 9"))
    assert ("racing 9" in stream.getvalue()) == lines


class Handle:
    def __init__(self, data: dict) -> None:
        self.data = [data]

    def update(self, data: dict, *, raw: bool) -> None:
        assert raw
        self.data.append(data)


@pytest.fixture
def notebook(monkeypatch):
    """The part of IPython that a display needs, as in the kernel of a notebook."""
    handles: list[Handle] = []

    def display(data: dict, *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        handles.append(Handle(data))
        return handles[-1]

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    displays = types.ModuleType("IPython.display")
    displays.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return handles


def test_a_notebook_gets_one_display_that_updates(recorded, notebook):
    tuner.tune(**recorded, budget=20)
    (handle,) = notebook
    texts = [data["text/plain"] for data in handle.data]
    assert any(text.startswith("searching: ") for text in texts)
    assert texts[-1].startswith("done in ")
    assert any("<progress value=" in data["text/html"] for data in handle.data)
    tuner.tune(**recorded, budget=20, progress=False)
    assert len(notebook) == 1


def test_the_display_of_a_notebook_escapes_text(notebook):
    with show_progress(None) as show:
        show(Progress.of_stage("opening", "opening <script>\x1b[31m"))
    html = "".join(data["text/html"] for data in notebook[0].data)
    assert "<script>" not in html
    assert "\x1b" not in html


SCRIPT = """
import tuner

space = tuner.RecordedSpace.load("space.json")
tuner.tune("recorded:space.json", space.workload, budget=10, pool="virtual")
"""


def test_a_script_on_a_terminal_shows_its_progress_from_the_first_moment(tmp_path):
    synthesize(40, seed=5).save(tmp_path / "space.json")
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown_text = b""
    try:
        while chunk := os.read(ours, 4096):
            shown_text += chunk
    except OSError:  # the other end was closed
        pass
    os.close(ours)
    assert child.wait() == 0
    parts = shown_text.decode().split("\r\x1b[K")
    assert re.match(r"starting +\d+ s", parts[1])
    assert any(part.startswith("loading the kernels") for part in parts)
    assert parts[-1] == "", "the line is erased at the end"
    assert "\n" not in shown_text.decode()


def test_the_command_line_writes_the_same_stages():
    written: list[str] = []
    show = CommandLines(written.append)
    for stage, activity in (("starting", "starting 15 builders"), ("racing", "racing 9")):
        show(Progress.of_stage(stage, activity))
        show(Progress.of_stage(stage, activity))
    assert written == ["starting 15 builders\n", "racing 9\n"]


def test_the_command_line_shows_the_stage_before_there_are_figures():
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, markup=False, force_terminal=False)
    console.print(picture(Progress.of_stage("starting", "starting 15 builders\x1b[31m", 3.0)))
    text = console.file.getvalue()
    assert "starting 15 builders" in text
    assert "elapsed 0m03s" in text
    assert "\x1b" not in text
